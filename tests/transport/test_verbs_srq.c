/* SPDX-License-Identifier: BSD-3-Clause */
/* One receive queue for all queue pairs of a device. Over simulated devices, where a request
 * that finds the queue empty is an error at once; the streams also over real ones, where
 * BANYAN_TEST_IFNAMES names two. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim_inside.h"

TestSuite(verbs_srq, .timeout = 100);

static const struct {
    int rails, qps;
} shapes[] = { { 1, 1 }, { 1, 2 }, { 2, 2 } };

static void opened(struct tpset *s, int n, int rails, int qps)
{
    char text[8];

    snprintf(text, sizeof text, "%d", qps);
    set_key("BANYAN_VERBS=qps", text);
    set_key("BANYAN_VERBS=srq", "1");
    if (!verbs_real_device())
        verbs_sim.devices = rails;
    verbs_joined(s, n);
    verbs_lanes_joined(s, (uint32_t)(rails * qps));
    for (int i = 0; i < rails; i++)
        cr_assert(((struct vb_tp *)s->tp[0])->rails[i].shared.srq,
                  "rail %d has no shared receive queue", i);
}

/* Steps until a queue pair was replaced: what broke last may be still in the making. */
static void replaced(struct tpset *s)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    for (uint32_t n = 0; n == 0; tpset_step(s)) {
        cr_assert(!bny_deadline_passed(deadline), "nothing was replaced");
        for (uint32_t k = 0; k < ((struct vb_ep *)s->ep[0][1])->nlanes; k++)
            n += verbs_lane_conn(s, 0, 1, k)->epoch;
    }
}

static uint32_t posted(const struct vb_srq *q)
{
    return ((struct sim_srq *)q->srq)->posted - ((struct sim_srq *)q->srq)->taken;
}

/* Steps until no connection is in the making any more (that one has a share of 1, for its
 * hello) and all that the device took was counted: no request is lost. But `forgotten`, which
 * the device keeps for itself. */
static void all_counted(struct tpset *s, uint32_t forgotten)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    for (int r = 0; r < s->n; r++)
        for (int i = 0; i < ((struct vb_tp *)s->tp[r])->nrails; i++) {
            const struct vb_srq *q = &((struct vb_tp *)s->tp[r])->rails[i].shared;

            while (q->wanted % (VB_RECVS + 1) != 0 ||
                   posted(q) + (forgotten ? q->ended : 0) < q->n - q->nidle) {
                cr_assert(!bny_deadline_passed(deadline),
                          "%u are posted, %u should be; shares are %u", posted(q),
                          q->n - q->nidle, q->wanted);
                tpset_step(s);
            }
            cr_assert_leq(posted(q), q->n - q->nidle);
            cr_assert_gt(q->n - q->nidle + VB_RECV_BATCH, q->wanted + q->ended);
        }
}

static void left(struct tpset *s)
{
    verbs_left(s);
    cr_assert_eq(verbs_sim.srqs_open, 0);
    cr_assert(verbs_real_device() || verbs_sim.srq_taken > 0, "the queue was not used");
    cr_assert_eq(verbs_sim.registered_bytes, 0u);
}

Test(verbs_srq, streams_are_whole)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        unsigned rails = (unsigned)shapes[i].rails, lanes = rails * (unsigned)shapes[i].qps;
        struct tpset s;

        if (verbs_real_device() && rails > 1)
            continue;
        opened(&s, 2, shapes[i].rails, shapes[i].qps);
        verbs_stream(&s, &(struct verbs_stream){ .seed = 5 + i });
        if (!verbs_real_device()) {
            all_counted(&s, 0);
            cr_assert_leq(
                verbs_sim.registered_bytes,
                2 * (VB_PEER_BYTES(rails, lanes) +
                     rails * sizeof(struct vb_hello) * VB_SRQ_ENTRIES(2, lanes, VB_RECVS)));
        }
        left(&s);
    }
}

/* Also where the device tells by no event that a queue pair is done with, and where it forgets
 * a request of each. */
Test(verbs_srq, breaks_lose_nothing)
{
    for (uint64_t i = 0; i < (verbs_real_device() ? 2u : 12u); i++) {
        struct tpset s;

        verbs_sim.tells_last = i % 2 == 0;
        verbs_sim.srq_forgets = i % 3 == 0;
        opened(&s, 2, verbs_real_device() ? 1 : shapes[i % 3].rails, shapes[i % 3].qps);
        verbs_stream(&s, &(struct verbs_stream){ .breaks = 1 + (int)i % 5, .seed = 100 + i });
        replaced(&s);
        if (!verbs_real_device())
            all_counted(&s, verbs_sim.srq_forgets);
        left(&s);
    }
}

/* More of them than the queue has to spare: what each connection has beyond its credits is
 * left. */
Test(verbs_srq, a_device_that_forgets_starves_nobody)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.tells_last = verbs_sim.srq_forgets = 1;
    opened(&s, 2, 1, 1);
    for (int i = 0; i < 2; i++)
        ((struct vb_tp *)s.tp[i])->rails[0].shared.ended = VB_SRQ_SPARE - 3;
    for (uint64_t i = 0; i < 3; i++)
        verbs_stream(&s, &(struct verbs_stream){ .breaks = 5, .seed = 400 + i });
    left(&s);
}

Test(verbs_srq, notes_come_by_it)
{
    set_key("BANYAN_VERBS=notify", "1");
    for (size_t i = 0; i < 3 && !verbs_real_device(); i++) {
        struct tpset s;

        opened(&s, 2, shapes[i].rails, shapes[i].qps);
        verbs_stream(&s, &(struct verbs_stream){ .breaks = (int)i, .seed = 200 + i });
        all_counted(&s, 0);
        left(&s);
    }
}

/* ---- many peers ---- */

static int heard;

static int release(struct tpset *s, int rank, const struct bny_event *ev)
{
    (void)rank;
    if (ev->kind != BNY_EV_MSG)
        return 0;
    heard++;
    s->ops->release(ev->msg);
    return 1;
}

/* All peers send what they have credits for while nobody listens, thrice; then one of them
 * leaves, and the others again. */
Test(verbs_srq, credits_of_all_peers_fit)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 0, 0);
    struct bny_slot slot;

    if (verbs_real_device())
        return;
    opened(&s, 4, 1, 2);
    s.sink = release;
    for (int round = 0; round < 4; round++) {
        int sent = 0, n = 4 - round / 3;

        heard = 0;
        s.paused[0] = 1;
        for (int r = 1; r < n; r++) {
            for (hdr.len = 0; s.ops->eager(s.ep[r][0], &hdr, NULL) == 0; hdr.seq++)
                sent++;
            for (hdr.len = 70000; s.ops->reserve(s.ep[r][0], hdr.len, &slot) == 0;
                 sent++, hdr.seq++)
                cr_assert_eq(s.ops->commit(s.ep[r][0], &slot, &hdr), 0);
        }
        cr_assert_geq(sent, (n - 1) * (int)VB_EAGER_SLOTS / 2);
        for (int i = 0; i < 4000; i++)
            tpset_step(&s);
        s.paused[0] = 0;
        for (uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S); heard < sent;
             tpset_step(&s))
            cr_assert(!bny_deadline_passed(deadline), "%d of %d", heard, sent);
        all_counted(&s, 0);
        if (round == 2) {
            tpset_destroy_rank(&s, 3);
            for (int r = 0; r < 3; r++)
                verbs_expect_down(&s, r, "ended");
            s.n = 3;
        }
    }
    free(s.events[3]);
    left(&s);
}

/* ---- a queue pair that broke ---- */

/* Its event ends the wait, which would be long. */
Test(verbs_srq, the_last_request_is_told)
{
    for (int told = 0; told < 2 && !verbs_real_device(); told++) {
        struct tpset s;
        struct vb_ep *e;

        verbs_sim.tells_last = told;
        opened(&s, 2, 1, 1);
        e = (struct vb_ep *)s.ep[0][1];
        s.paused[1] = 1;
        bny_verbs_lost(e->conn, "is of no use in this test");
        e->conn->drain_ns = bny_deadline_in(1000.0);
        for (int i = 0; i < 500; i++)
            tpset_step(&s);
        cr_assert_eq(e->conn->has_qp, !told, "told %d: it waits for nothing, or not", told);
        e->conn->drain_ns = bny_now_ns();
        s.paused[1] = 0;
        verbs_stream(&s, &(struct verbs_stream){ .seed = 7 });
        cr_assert_eq(e->conn->epoch, 1u);
        left(&s);
    }
}

/* Nobody sends, and no request is flushed: its event alone tells. */
Test(verbs_srq, an_idle_one_is_replaced)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.tells_last = 1;
    opened(&s, 2, 1, 1);
    s.paused[1] = 1; /* only rank 0 is told */
    verbs_break_pair(&s, 0, 1);
    while (verbs_sim.last_told == 0)
        tpset_step(&s);
    s.paused[1] = 0;
    replaced(&s);
    verbs_stream(&s, &(struct verbs_stream){ .seed = 8 });
    all_counted(&s, 0);
    left(&s);
}

/* Who looks too late hears all the same what had come. */
Test(verbs_srq, what_came_is_heard_when_time_is_up)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 0, 0);
    struct vb_lane *c;
    uint64_t deadline;

    if (verbs_real_device())
        return;
    opened(&s, 2, 1, 1);
    s.sink = release;
    heard = 0;
    c = verbs_conn(&s, 0, 1);
    s.paused[0] = 1;
    for (; hdr.seq < 200; hdr.seq++)
        cr_assert_eq(s.ops->eager(s.ep[1][0], &hdr, NULL), 0);
    for (deadline = bny_deadline_in(TPSET_DEADLINE_S); verbs_conn(&s, 1, 0)->done < 190;
         tpset_step(&s))
        cr_assert(!bny_deadline_passed(deadline), "nothing is sent");
    bny_verbs_lost(c, "is of no use in this test");
    c->drain_ns = bny_now_ns();
    s.paused[0] = 0;
    for (deadline = bny_deadline_in(TPSET_DEADLINE_S); heard < 200 || c->epoch == 0;
         tpset_step(&s))
        cr_assert(!bny_deadline_passed(deadline), "%d of 200", heard);
    cr_assert_eq(heard, 200);
    cr_assert_eq(tpset_count(&s, 1, BNY_EV_DOWN), 0);
    all_counted(&s, 0);
    left(&s);
}

/* A connection that is cut off with messages unread, some of them taken from its queue: no
 * request is lost to the others. */
Test(verbs_srq, what_nobody_reads_is_counted)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 0, 0);
    struct bny_event ev;
    uint64_t deadline;

    if (verbs_real_device())
        return;
    opened(&s, 3, 1, 1);
    s.sink = release;
    s.paused[0] = 1;
    for (; hdr.seq < 200; hdr.seq++)
        cr_assert_eq(s.ops->eager(s.ep[1][0], &hdr, NULL), 0);
    for (deadline = bny_deadline_in(TPSET_DEADLINE_S); verbs_conn(&s, 1, 0)->done < 190;
         tpset_step(&s))
        cr_assert(!bny_deadline_passed(deadline), "nothing is sent");
    for (int i = 0; i < 20 && verbs_conn(&s, 0, 1)->stash_at == verbs_conn(&s, 0, 1)->stashed;
         i++) {
        s.ops->disarm(s.tp[0]);
        cr_assert_eq(s.ops->arm(s.tp[0], (int[8]){ 0 }, 8, &(int){ 0 }), 0u);
    }
    cr_assert_gt(verbs_conn(&s, 0, 1)->stashed, 1);
    cr_assert_eq(s.ops->poll_ep(s.ep[0][1], &ev, 1), 1);
    s.ops->release(ev.msg);
    bny_verbs_down((struct vb_ep *)s.ep[0][1], "is cut off by this test");
    s.paused[0] = 0;
    verbs_expect_down(&s, 0, "cut off");
    all_counted(&s, 0);
    heard = 0;
    for (hdr.seq = 0; hdr.seq < 200; hdr.seq++)
        cr_assert_eq(s.ops->eager(s.ep[2][0], &hdr, NULL), 0);
    for (deadline = bny_deadline_in(TPSET_DEADLINE_S); heard < 200; tpset_step(&s))
        cr_assert(!bny_deadline_passed(deadline), "%d of 200", heard);
    left(&s);
}

Test(verbs_srq, a_queue_that_fails_takes_its_rail_along)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    opened(&s, 2, 2, 1);
    verbs_sim.broken_srq = ((struct vb_tp *)s.tp[0])->rails[0].shared.srq;
    s.paused[1] = 1; /* only rank 0 is told */
    while (verbs_sim.broken_srq)
        tpset_step(&s);
    s.paused[1] = 0;
    verbs_stream(&s, &(struct verbs_stream){ .seed = 9 });
    cr_assert_eq(((struct vb_tp *)s.tp[0])->rails[0].down, 2);
    cr_assert_gt(bny_counter_read(&s.tp[0]->moved), 0u);
    left(&s);
}

/* ---- devices without ---- */

Test(verbs_srq, a_device_without_is_told)
{
    const struct bny_transport_ops *ops = bny_transport_find("verbs");
    static uint8_t secret[32];
    struct bny_tp_config cfg = {
        .rank = 1, .nranks = 4, .secret = secret, .ifname = "lo", .port_range = ""
    };
    struct bny_tp *tp;

    if (verbs_real_device())
        return;
    verbs_sim_use();
    set_key("BANYAN_VERBS=srq", "1");
    set_key("BANYAN_VERBS=qps", "2");
    verbs_sim.max_srq_wr = -1;
    cr_assert_eq(ops->create(&tp, &cfg), -BANYAN_ECONFIG);
    cr_assert_str_eq(
        banyan_last_error(),
        "rank 1: device sim0 has no shared receive queues: set BANYAN_VERBS=srq=0");
    verbs_sim.max_srq_wr = 2245;
    cr_assert_eq(ops->create(&tp, &cfg), -BANYAN_ECONFIG);
    cr_assert_str_eq(
        banyan_last_error(),
        "rank 1: a shared receive queue of device sim0 has 2245 requests at most, and 4 ranks "
        "with 2 queue pairs to each other need 2246: set BANYAN_VERBS=srq=0");
    verbs_sim.max_srq_wr = 2246;
    cr_assert_eq(ops->create(&tp, &cfg), 0, "%s", banyan_last_error());
    ops->destroy(tp);
    verbs_sim.registrations = 1;
    verbs_sim.registered = 1;
    cr_assert_eq(ops->create(&tp, &cfg), -BANYAN_ENOMEM);
    cr_assert(strstr(banyan_last_error(), "ulimit -l unlimited"), "%s", banyan_last_error());
    cr_assert_eq(verbs_sim.registered_bytes, 0u);
    cr_assert_eq(verbs_sim.srqs_open, 0);
}
