/* SPDX-License-Identifier: BSD-3-Clause */
/* Eager slots, which are given back in any order: held messages take their own slots and no
 * others, whatever else happens. Over the simulated device. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
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
        setenv("BANYAN_VERBS_NOTIFY", i == 1 ? "1" : "0", 1);
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
    unsetenv("BANYAN_VERBS_NOTIFY");
}
