/* SPDX-License-Identifier: BSD-3-Clause */
/* Eager slots, which are given back in any order: held messages take their own slots and no
 * others, whatever else happens. And how large slabs are in jobs of how many ranks. Over the
 * simulated device. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

TestSuite(verbs_slots, .timeout = 60);

enum { LEN = 40 };

static struct bny_msg *one_message(struct tpset *s, int from, uint32_t seq)
{
    struct bny_hdr hdr = tpset_hdr((int)(seq % BNY_CHANNELS), seq, LEN);
    struct bny_msg *msg;
    uint8_t buf[LEN];

    tpset_fill(buf, LEN, from, !from, seq);
    tpset_eager(s, from, !from, &hdr, buf);
    msg = tpset_wait(s, !from, BNY_EV_MSG).msg;
    cr_assert_eq(msg->hdr.seq, seq);
    cr_assert_eq(tpset_check(msg->data, LEN, from, !from, seq), -1, "message %u", seq);
    return msg;
}

/* Both ends have the same order of slots, once all is told. */
static void expect_one_order(struct tpset *s, int from)
{
    const struct vb_peer *out = verbs_conn(s, from, !from)->peer,
                         *in = verbs_conn(s, !from, from)->peer;
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    uint8_t seen[VB_EAGER_SLOTS] = { 0 };

    while (out->eager_freed != in->eager_told) {
        cr_assert(!bny_deadline_passed(deadline), "%u told, %u heard", in->eager_told,
                  out->eager_freed);
        tpset_step(s);
    }
    cr_assert_eq(out->eager_sent, in->eager_next);
    cr_assert_eq(memcmp(out->order_out, in->order_in, sizeof in->order_in), 0);
    for (uint32_t i = 0; i < VB_EAGER_SLOTS; i++)
        seen[in->order_in[i]]++;
    for (uint32_t i = 0; i < VB_EAGER_SLOTS; i++)
        cr_assert_eq(seen[i], 1u, "slot %u is there %u times", i, seen[i]);
}

Test(verbs_slots, held_messages_stop_nobody)
{
    static const uint32_t held[] = { 1, 100, VB_EAGER_SLOTS - 1 };

    for (size_t k = 0; k < sizeof held / sizeof held[0] && !verbs_real_device(); k++) {
        struct bny_msg *keep[VB_EAGER_SLOTS];
        uint32_t seq = 0;
        struct tpset s;

        verbs_joined(&s, 2);
        for (uint32_t i = 0; i < held[k]; i++)
            keep[i] = one_message(&s, 0, seq++);
        for (uint32_t i = 0; i < 4 * VB_EAGER_SLOTS; i++) /* and the other way, too */
            s.ops->release(one_message(&s, (int)i & 1, seq++));
        for (uint32_t i = 0; i < held[k]; i++) {
            cr_assert_eq(tpset_check(keep[i]->data, LEN, 0, 1, i), -1, "held message %u", i);
            s.ops->release(keep[i]);
        }
        for (uint32_t i = 0; i < 2 * VB_EAGER_SLOTS; i++)
            s.ops->release(one_message(&s, (int)i & 1, seq++));
        expect_one_order(&s, 0);
        expect_one_order(&s, 1);
        verbs_left(&s);
    }
}

/* Each telling of free slots takes a receive request of the peer, which may be asleep with as
 * many messages under way to it as it can have. */
Test(verbs_slots, tellings_meet_a_peer_that_is_ready)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_msg *held[VB_EAGER_SLOTS];
    uint32_t n = 0, sent = 0, freed;
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    while (s.ops->eager(s.ep[0][1], &hdr, NULL) == 0)
        sent++;
    for (; n < sent; n++)
        held[n] = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    s.paused[0] = 1;
    freed = verbs_conn(&s, 0, 1)->peer->eager_freed;
    while (s.ops->eager(s.ep[1][0], &hdr, NULL) == 0)
        ;
    for (uint32_t i = 0; i < n; i += 2) { /* no two are neighbours */
        s.ops->release(held[i]);
        tpset_step(&s);
    }
    for (int i = 0; i < 100; i++)
        tpset_step(&s);
    cr_assert_eq(verbs_sim.rnr, 0u);
    s.paused[0] = 0;
    for (uint32_t i = 0; i < 4 * VB_EAGER_SLOTS;
         i++) { /* those that wait are told one by one */
        tpset_eager(&s, 0, 1, &hdr, NULL);
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    }
    cr_assert_gt(verbs_conn(&s, 0, 1)->peer->eager_freed - freed, 4 * VB_EAGER_SLOTS);
    for (uint32_t i = 1; i < n; i += 2)
        s.ops->release(held[i]);
    while (tpset_count(&s, 0, BNY_EV_MSG))
        s.ops->release(tpset_wait(&s, 0, BNY_EV_MSG).msg);
    verbs_left(&s);
}

/* ---- by chance ---- */

struct flow { /* one way */
    uint32_t sent, came;
    struct bny_msg *held[VB_EAGER_SLOTS];
    uint32_t nheld, most;
};

static void let_go(struct tpset *s, struct flow *f, int from, uint32_t i)
{
    struct bny_msg *msg = f->held[i];

    cr_assert_eq(tpset_check(msg->data, msg->hdr.len, from, !from, msg->hdr.seq), -1,
                 "message %u", msg->hdr.seq);
    s->ops->release(msg);
    f->held[i] = f->held[--f->nheld];
}

static void flow_step(struct tpset *s, struct flow *f, int from, uint32_t messages,
                      uint64_t *rng)
{
    for (uint64_t n = bny_rng_below(rng, 60); n && f->sent < messages; n--) {
        /* always a header like the last one, or seldom */
        uint32_t less = f->sent / 300 % 2 ? 0 : (uint32_t)bny_rng_below(rng, 30);
        struct bny_hdr hdr = tpset_hdr((int)(f->sent % BNY_CHANNELS), f->sent, LEN - less);
        uint8_t buf[LEN];
        int rc;

        tpset_fill(buf, hdr.len, from, !from, f->sent);
        rc = s->ops->eager(s->ep[from][!from], &hdr, buf);
        cr_assert(rc == 0 || rc == BNY_AGAIN, "%d: %s", rc, banyan_last_error());
        if (rc)
            break;
        f->sent++;
    }
    cr_assert_eq(tpset_count(s, !from, BNY_EV_DOWN), 0);
    while (tpset_count(s, !from, BNY_EV_MSG)) {
        struct bny_msg *msg = tpset_wait(s, !from, BNY_EV_MSG).msg;

        cr_assert_eq(msg->hdr.seq, f->came, "message %u instead of %u", msg->hdr.seq, f->came);
        f->came++;
        cr_assert_lt(f->nheld, VB_EAGER_SLOTS);
        f->held[f->nheld++] = msg;
    }
    if (bny_rng_below(rng, 40) == 0)
        f->most = (uint32_t)bny_rng_below(rng, VB_EAGER_SLOTS);
    while (f->nheld > f->most || (f->nheld && bny_rng_below(rng, 8) == 0))
        let_go(s, f, from, (uint32_t)bny_rng_below(rng, f->nheld));
}

/* Messages are held and released by chance, receivers sleep and queue pairs break. With
 * immediates, with notes, and with queues that have fewer requests than there are slots. */
Test(verbs_slots, released_in_any_order)
{
    const uint32_t messages = 3000;

    for (int i = 0; i < 3 && !verbs_real_device(); i++) {
        uint64_t seed = bny_now_ns(), rng = seed, deadline = bny_deadline_in(TPSET_DEADLINE_S);
        static struct flow flow[2];
        int breaks = 0;
        struct tpset s;

        printf("# seed %llu\n", (unsigned long long)seed);
        verbs_sim = (struct verbs_sim){ .seed = 0 };
        if (i == 2)
            verbs_sim = (struct verbs_sim){ .max_send_wr = 64, .max_cqe = 128, .max_sge = 1 };
        set_key("BANYAN_VERBS=notify", i == 1 ? "1" : "0");
        memset(flow, 0, sizeof flow);
        verbs_joined(&s, 2);
        while (flow[0].came < messages || flow[1].came < messages) {
            cr_assert(!bny_deadline_passed(deadline), "seed %llu: %u and %u came, %u, %u held",
                      (unsigned long long)seed, flow[0].came, flow[1].came, flow[0].nheld,
                      flow[1].nheld);
            for (int r = 0; r < 2; r++)
                flow_step(&s, &flow[r], r, messages, &rng);
            for (int r = 0; r < 2; r++)
                if (bny_rng_below(&rng, 30) == 0)
                    s.paused[r] = !s.paused[r];
            if (breaks < 4 && bny_rng_below(&rng, 60) == 0 && verbs_conn(&s, 0, 1)->id) {
                verbs_break_pair(&s, 0, 1);
                breaks++;
            }
            tpset_step(&s);
        }
        s.paused[0] = s.paused[1] = 0;
        for (int r = 0; r < 2; r++)
            while (flow[r].nheld)
                let_go(&s, &flow[r], r, 0);
        for (uint32_t k = 0; k < 600; k++)
            s.ops->release(one_message(&s, (int)k & 1, k));
        expect_one_order(&s, 0);
        expect_one_order(&s, 1);
        verbs_left(&s);
    }
    set_key("BANYAN_VERBS=notify", NULL);
}

/* ---- shapes ---- */

enum { MIB = 1 << 20 };

Test(verbs_slots, shapes_keep_the_contract_and_the_bound)
{
    struct vb_slab before = bny_verbs_slab(1, 256 * MIB);

    cr_assert_eq(before.bytes, VB_SLAB_BYTES);
    for (int n = 2; n <= 8192; n++) {
        struct vb_slab s = bny_verbs_slab(n, 256 * MIB);

        cr_assert(s.number >= before.number && s.bytes <= before.bytes, "%d ranks", n);
        cr_assert(s.eager >= VB_EAGER_LEAST && s.eager <= VB_EAGER_SLOTS);
        cr_assert_eq(s.eager & (s.eager - 1), 0u);
        cr_assert(s.bulk >= 4 && s.bulk <= VB_BULK_SLOTS);
        cr_assert(s.slot_max >= 16384 && s.slot_max <= VB_SLOT_MAX);
        cr_assert_eq(s.bytes, s.eager * VB_EAGER_STRIDE + s.bulk * (VB_HEAD + s.slot_max));
        cr_assert(n > 43 || s.bytes == VB_SLAB_BYTES, "%d ranks have less than before", n);
        cr_assert(n > 1024 || (uint64_t)(n - 1) * bny_verbs_peer_bytes(&s, 1) < 256ull * MIB,
                  "%d ranks", n);
        before = s;
    }
}

/* Two of a job of so many: what they register is what the formula says, and all peers together
 * stay below the bound. */
Test(verbs_slots, a_thousand_ranks)
{
    static const uint8_t secret[32] = "a secret of the tests, 32 bytes";
    const struct bny_transport_ops *ops = bny_transport_find("verbs");
    static const int ranks[] = { 2, 64, 256, 1024 };

    for (size_t k = 0; k < sizeof ranks / sizeof ranks[0] && !verbs_real_device(); k++) {
        struct bny_tp_config cfg = {
            .nranks = ranks[k], .secret = secret, .ifname = "lo", .port_range = ""
        };
        struct vb_slab slab = bny_verbs_slab(ranks[k], 256 * MIB);
        struct bny_hdr hdr = tpset_hdr(0, 1, 0);
        uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S), pinned;
        uint8_t blob[2][BNY_ADDR_MAX];
        struct bny_event ev[8];
        struct bny_ep *ep[2];
        struct bny_tp *tp[2];
        int len[2], got = 0, rc = BNY_AGAIN;

        verbs_sim_use();
        for (int r = 0; r < 2; r++) {
            cfg.rank = r;
            cr_assert_eq(ops->create(&tp[r], &cfg), 0, "%s", banyan_last_error());
            len[r] = ops->address(tp[r], blob[r], BNY_ADDR_MAX);
        }
        for (int r = 0; r < 2; r++)
            cr_assert_eq(ops->connect(tp[r], !r, blob[!r], (size_t)len[!r], &ep[r]), 0, "%s",
                         banyan_last_error());
        while (!got) {
            cr_assert(!bny_deadline_passed(deadline));
            rc = rc ? ops->eager(ep[0], &hdr, NULL) : 0;
            cr_assert(rc == 0 || rc == BNY_AGAIN, "%s", banyan_last_error());
            ops->poll(tp[0], ev, 8);
            if (ops->poll(tp[1], ev, 8) == 1) {
                cr_assert_eq(ev[0].kind, BNY_EV_MSG);
                ops->release(ev[0].msg);
                got = 1;
            }
        }
        pinned = bny_counter_read(&tp[0]->pinned_bytes);
        cr_assert_eq(verbs_sim.registered_bytes,
                     pinned + bny_counter_read(&tp[1]->pinned_bytes));
        cr_assert_leq(pinned, bny_verbs_peer_bytes(&slab, 1));
        cr_assert_gt(pinned, 2ull * slab.bytes);
        cr_assert(ranks[k] < 64 || pinned * (uint64_t)(ranks[k] - 1) < 256ull * MIB);
        for (int r = 0; r < 2; r++)
            ops->destroy(tp[r]);
        cr_assert_eq(verbs_sim.open, 0, "%d objects leaked", verbs_sim.open);
    }
}

/* Queue pairs break in the middle of streams over slots of each shape. */
Test(verbs_slots, streams_over_each_shape)
{
    static const char *const memory[] = { "64K", "400K", "1M", "2M", "4M" };
    uint32_t before = 0;

    for (size_t i = 0; i < sizeof memory / sizeof memory[0] && !verbs_real_device(); i++) {
        struct tpset s;

        verbs_sim = (struct verbs_sim){ .seed = 0 };
        set_key("BANYAN_VERBS=memory", memory[i]);
        verbs_joined(&s, 2);
        cr_assert_gt(((struct vb_tp *)s.tp[0])->slab.bytes, before, "another shape");
        before = ((struct vb_tp *)s.tp[0])->slab.bytes;
        verbs_stream(&s, &(struct verbs_stream){ .breaks = 2, .seed = 40 + i });
        verbs_left(&s);
    }
    set_key("BANYAN_VERBS=memory", NULL);
}

Test(verbs_slots, ranks_that_differ_are_told)
{
    static const uint8_t secret[32] = "a secret of the tests, 32 bytes";
    const struct bny_transport_ops *ops = bny_transport_find("verbs");
    struct bny_tp_config cfg = {
        .nranks = 2, .secret = secret, .ifname = "lo", .port_range = ""
    };
    uint8_t blob[BNY_ADDR_MAX];
    struct bny_tp *tp[2];
    struct bny_ep *ep;
    int len;

    if (verbs_real_device())
        return;
    verbs_sim_use();
    cr_assert_eq(ops->create(&tp[0], &cfg), 0, "%s", banyan_last_error());
    set_key("BANYAN_VERBS=memory", "1M");
    cfg.rank = 1;
    cr_assert_eq(ops->create(&tp[1], &cfg), 0, "%s", banyan_last_error());
    set_key("BANYAN_VERBS=memory", NULL);
    len = ops->address(tp[1], blob, sizeof blob);
    cr_assert_eq(ops->reachable(tp[0], 1, blob, (size_t)len), 0);
    cr_assert_eq(ops->connect(tp[0], 1, blob, (size_t)len, &ep), -BANYAN_ECONFIG);
    cr_assert_not_null(strstr(banyan_last_error(), "set BANYAN_VERBS=memory to the same"));
    blob[offsetof(struct vb_blob, slab)] = VB_SLAB_SHAPES; /* no such one */
    cr_assert_eq(ops->reachable(tp[0], 1, blob, (size_t)len), 0);
    for (int r = 0; r < 2; r++)
        ops->destroy(tp[r]);
}
