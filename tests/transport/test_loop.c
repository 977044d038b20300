/* SPDX-License-Identifier: BSD-3-Clause */
/* What is special about loop: runs are repeatable, ranks can be killed, and each rank may have
 * its own thread. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/tpset.h"

extern const struct bny_transport_ops bny_loop_ops;

static const struct bny_loop_faults faults = {
    .seed = 42, .loss = 0.3, .duplicate = 0.2, .reorder = 0.3, .delay_polls_max = 4
};

/* Polls until 100 messages have crossed; returns a hash of the order in which they came. */
static uint64_t run(const struct bny_loop_faults *f)
{
    struct tpset s;
    uint64_t hash = 0;

    tpset_open(&s, &bny_loop_ops, 2, f);
    for (uint32_t i = 0; i < 100; i++) {
        struct bny_hdr hdr = tpset_hdr((int)i % BNY_CHANNELS, i, 8);

        tpset_eager(&s, 0, 1, &hdr, "8 bytes.");
    }
    for (int i = 0; i < 100; i++) {
        struct bny_msg *msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;

        hash = hash * 1000003 + msg->hdr.seq + s.steps;
        s.ops->release(msg);
    }
    tpset_close(&s);
    return hash;
}

Test(loop, equal_seeds_give_equal_runs)
{
    struct bny_loop_faults other = faults;

    other.seed = 43;
    cr_assert_eq(run(&faults), run(&faults));
    cr_assert_neq(run(&faults), run(&other), "the seed changes nothing");
}

Test(loop, killed_rank_is_down_and_silent)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 4);

    tpset_open(&s, &bny_loop_ops, 3, NULL);
    cr_assert_eq(s.ops->eager(s.ep[2][0], &hdr, "dead"), 0);
    bny_loop_fabric_kill(s.fabric, 2);
    for (int r = 0; r < 2; r++)
        cr_assert_eq(tpset_wait(&s, r, BNY_EV_DOWN).ep, s.ep[r][2]);
    for (int i = 0; i < 100; i++)
        tpset_step(&s);
    for (int r = 0; r < 3; r++)
        cr_assert_eq(s.nevents[r], 0, "rank %d", r);
    cr_assert_eq(s.ops->eager(s.ep[0][2], &hdr, "dead"), -BANYAN_ERANKDEAD);
    cr_assert_eq(s.ops->eager(s.ep[2][0], &hdr, "dead"), -BANYAN_ERANKDEAD);
    tpset_close(&s);
}

#define PER_THREAD 2000

struct half {
    struct tpset *s;
    int rank, failed;
};

/* Sends PER_THREAD messages to the other rank and receives as many. */
static void *half_main(void *arg)
{
    struct half *h = arg;
    struct bny_ep *ep = h->s->ep[h->rank][!h->rank];
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    uint32_t sent = 0, got = 0;

    while (sent < PER_THREAD || got < PER_THREAD) {
        struct bny_hdr hdr = tpset_hdr((int)sent % BNY_CHANNELS, sent, 8);
        struct bny_event ev[4];
        uint8_t buf[8];
        int n;

        tpset_fill(buf, 8, h->rank, !h->rank, sent);
        if (sent < PER_THREAD && h->s->ops->eager(ep, &hdr, buf) == 0)
            sent++;
        n = h->s->ops->poll(h->s->tp[h->rank], ev, 4);
        for (int i = 0; i < n; i++, got++) {
            if (ev[i].kind != BNY_EV_MSG ||
                tpset_check(ev[i].msg->data, 8, !h->rank, h->rank, ev[i].msg->hdr.seq) != -1)
                h->failed = 1;
            else
                h->s->ops->release(ev[i].msg);
        }
        if (h->failed || bny_deadline_passed(deadline)) {
            h->failed = 1;
            break;
        }
    }
    while (!h->failed && h->s->ops->farewell(h->s->tp[h->rank]) == BNY_AGAIN)
        h->failed = bny_deadline_passed(deadline);
    return NULL;
}

Test(loop, ranks_may_have_threads_of_their_own, .timeout = 60)
{
    struct tpset s;
    struct half half[2];
    pthread_t thread[2];

    tpset_open(&s, &bny_loop_ops, 2, &faults);
    for (int r = 0; r < 2; r++) {
        half[r] = (struct half){ .s = &s, .rank = r };
        cr_assert_eq(pthread_create(&thread[r], NULL, half_main, &half[r]), 0);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(thread[r], NULL);
    cr_assert_eq(half[0].failed + half[1].failed, 0);
    tpset_close(&s);
}
