/* SPDX-License-Identifier: BSD-3-Clause */
/* Completion queues that many peers share: what a look costs, room for all, and that nothing of
 * a queue pair outlives it. Over simulated devices, which leave the completions of a destroyed
 * queue pair where they are and give its number to the next one. */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim_inside.h"

TestSuite(verbs_cq, .timeout = 60);

static void say(struct tpset *s, int from, int to, uint32_t seq)
{
    struct bny_hdr hdr = tpset_hdr(0, seq, 0);
    struct bny_event ev;

    tpset_eager(s, from, to, &hdr, NULL);
    ev = tpset_wait(s, to, BNY_EV_MSG);
    cr_assert(ev.ep == s->ep[to][from] && ev.msg->hdr.seq == seq);
    s->ops->release(ev.msg);
}

/* Rank 0 with all others, which do not know each other. */
static void star(struct tpset *s, int n, int devices)
{
    uint64_t deadline;

    verbs_sim.devices = devices;
    tpset_open(s, bny_transport_find("verbs"), n, NULL);
    for (int p = 1; p < n; p++) {
        say(s, 0, p, 1);
        say(s, p, 0, 2);
    }
    for (deadline = bny_deadline_in(TPSET_DEADLINE_S); ((struct vb_tp *)s->tp[0])->joining;
         tpset_step(s))
        cr_assert(!bny_deadline_passed(deadline), "lanes are still in the making");
}

static uint64_t polls_of(struct tpset *s, int looks, int one)
{
    struct bny_event ev[8];

    verbs_sim.polls = 0;
    for (int i = 0; i < looks; i++)
        cr_assert_eq(one ? s->ops->poll_ep(s->ep[0][1 + i % (s->n - 1)], ev, 8)
                         : s->ops->poll(s->tp[0], ev, 8),
                     0);
    return verbs_sim.polls;
}

Test(verbs_cq, one_look_a_rail_for_64_peers)
{
    for (int rails = 1; rails <= 2 && !verbs_real_device(); rails++) {
        struct tpset s;

        star(&s, rails == 1 ? 65 : 17, rails);
        cr_assert_eq(polls_of(&s, 100, 0), 100u * (unsigned)rails);
        cr_assert_eq(polls_of(&s, 100, 1), 100u * (unsigned)rails);
        for (int p = 1; p < s.n; p++)
            say(&s, p, 0, 3);
        verbs_left(&s);
    }
}

/* A device whose queues are short: as many as it takes. Each full of completions. */
Test(verbs_cq, short_queues_are_several)
{
    enum { PEERS = 8, EACH = 200 };
    struct bny_hdr hdr = tpset_hdr(0, 0, 0);
    uint32_t heard[PEERS + 1] = { 0 };
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.max_cqe = 3 * (VB_SENDS + VB_RECVS + 2);
    star(&s, PEERS + 1, 1);
    cr_assert_eq(polls_of(&s, 100, 0), 300u, "%d peers, 3 for a queue", PEERS);
    s.paused[0] = 1;
    for (int p = 1; p <= PEERS; p++)
        for (hdr.seq = 0; hdr.seq < EACH; hdr.seq++)
            cr_assert_eq(s.ops->eager(s.ep[p][0], &hdr, NULL), 0);
    for (int i = 0; i < 1000; i++)
        tpset_step(&s);
    s.paused[0] = 0;
    for (int i = 0; i < PEERS * EACH; i++) {
        struct bny_event ev = tpset_wait(&s, 0, BNY_EV_MSG);

        cr_assert_eq(ev.msg->hdr.seq, heard[ev.ep->peer]++, "rank %d", ev.ep->peer);
        s.ops->release(ev.msg);
    }
    verbs_left(&s);
}

/* Rank 1's queue pair ends while its messages are in the queue, and rank 2's gets its number
 * before the queue is looked at. */
Test(verbs_cq, nothing_of_a_queue_pair_outlives_it)
{
    struct bny_hdr hdr = tpset_hdr(0, 0, 0);
    struct tpset s;
    uint32_t number;

    if (verbs_real_device())
        return;
    tpset_open(&s, bny_transport_find("verbs"), 3, NULL);
    say(&s, 1, 0, 7);
    number = verbs_conn(&s, 0, 1)->qp_num;
    s.paused[0] = 1;
    for (hdr.seq = 0; hdr.seq < 250; hdr.seq++)
        cr_assert_eq(s.ops->eager(s.ep[1][0], &hdr, NULL), 0);
    cr_assert_eq(s.ops->eager(s.ep[2][0], &hdr, NULL), BNY_AGAIN); /* asks */
    for (int i = 0; i < 1000; i++)
        tpset_step(&s);
    bny_verbs_down((struct vb_ep *)s.ep[0][1], "is cut off by this test");
    ((struct vb_tp *)s.tp[0])->turns = UINT32_MAX; /* the request is looked at first */
    s.paused[0] = 0;
    verbs_expect_down(&s, 0, "cut off");
    say(&s, 2, 0, 9);
    cr_assert_eq(verbs_conn(&s, 0, 2)->qp_num, number, "another number: nothing was tested");
    cr_assert_eq(verbs_conn(&s, 2, 0)->epoch, 0u);
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_MSG), 0);
    verbs_left(&s);
}

Test(verbs_cq, a_queue_that_fails_takes_its_rail_along)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.devices = 2;
    verbs_joined(&s, 2);
    verbs_lanes_joined(&s, 2);
    verbs_sim.broken_cq = bny_verbs_cq_of(verbs_conn(&s, 0, 1));
    s.paused[1] = 1; /* only rank 0 is told */
    for (uint64_t end = bny_deadline_in(TPSET_DEADLINE_S); verbs_sim.broken_cq; tpset_step(&s))
        cr_assert(!bny_deadline_passed(end), "nobody asks for events");
    s.paused[1] = 0;
    verbs_stream(&s, &(struct verbs_stream){ .seed = 9 });
    cr_assert_eq(((struct vb_tp *)s.tp[0])->rails[0].down, 2);
    cr_assert_gt(bny_counter_read(&s.tp[0]->moved), 0u);
    verbs_left(&s);
}

/* The rest of the job may sleep: the queue is there to the end, and fails at each look. */
Test(verbs_cq, a_queue_that_fails_for_good_keeps_nobody_awake)
{
    struct tpset s;
    uint64_t end = bny_deadline_in(TPSET_DEADLINE_S);
    int fds[8], n;

    if (verbs_real_device())
        return;
    verbs_sim.devices = 2;
    verbs_joined(&s, 2);
    verbs_lanes_joined(&s, 2);
    verbs_sim.dead_cq = bny_verbs_cq_of(verbs_conn(&s, 0, 1));
    verbs_stream(&s, &(struct verbs_stream){ .seed = 9 });
    cr_assert_eq(((struct vb_tp *)s.tp[0])->rails[0].down, 2);
    while (s.ops->arm(s.tp[0], fds, 8, &n) == 0) {
        cr_assert(!bny_deadline_passed(end), "it cannot sleep");
        s.ops->disarm(s.tp[0]);
        tpset_step(&s);
    }
    s.ops->disarm(s.tp[0]);
    verbs_left(&s);
}

/* Any of many wakes a sleeper, and nobody wakes it for nothing. */
Test(verbs_cq, any_of_many_peers_wakes_a_sleeper)
{
    struct pollfd p[8];
    struct bny_event ev;
    struct tpset s;
    int fds[8], n = 0;

    if (verbs_real_device())
        return;
    star(&s, 9, 1);
    for (int from = 1; from < s.n; from++) {
        struct bny_hdr hdr = tpset_hdr(0, (uint32_t)from, 0);
        uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

        for (;;) {
            s.ops->disarm(s.tp[0]); /* of what came since it was armed */
            if (s.ops->arm(s.tp[0], fds, 8, &n) != 0)
                break;
            cr_assert(!bny_deadline_passed(deadline), "there is always something");
            cr_assert_eq(s.ops->poll(s.tp[0], &ev, 1), 0);
        }
        for (int k = 0; k < n; k++)
            p[k] = (struct pollfd){ .fd = fds[k], .events = POLLIN };
        cr_assert_eq(poll(p, (nfds_t)n, 0), 0, "woken for nothing");
        cr_assert_eq(s.ops->eager(s.ep[from][0], &hdr, NULL), 0);
        cr_assert_gt(poll(p, (nfds_t)n, 20000), 0, "rank %d does not wake it", from);
        s.ops->disarm(s.tp[0]);
        ev = tpset_wait(&s, 0, BNY_EV_MSG);
        cr_assert_eq(ev.ep->peer, from);
        s.ops->release(ev.msg);
    }
    verbs_left(&s);
}

/* One interrupt would wake all of a host's ranks on one CPU. */
Test(verbs_cq, ranks_sleep_on_different_vectors)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.vectors = 0;
    verbs_joined(&s, 3);
    verbs_left(&s);
    cr_assert_eq(verbs_sim.vectors, 7u, "%llx", (unsigned long long)verbs_sim.vectors);
}
