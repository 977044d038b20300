/* SPDX-License-Identifier: BSD-3-Clause */
/* Hundreds of peers that connect to one rank at once, as gather, scatter and stars do: it tells
 * those it has no place for to ask again, and nobody takes that for an end. Over the simulated
 * device. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

enum { RANKS = 301, MANY_S = 60 };

TestSuite(verbs_many, .timeout = 100);

static const uint8_t secret[32] = "a secret of the tests, 32 bytes";

struct crowd { /* rank 0 and all others, which know nobody else */
    const struct bny_transport_ops *ops;
    struct bny_tp *tp[RANKS];
    struct bny_ep *to_hub[RANKS];
    int sent[RANKS], heard[RANKS];
};

static void crowd_open(struct crowd *c)
{
    uint8_t hub[BNY_ADDR_MAX], blob[BNY_ADDR_MAX];
    struct bny_ep *ep;
    int hub_len = 0;

    memset(c, 0, sizeof *c);
    c->ops = bny_transport_find("verbs");
    verbs_sim_use();
    for (int r = 0; r < RANKS; r++) {
        struct bny_tp_config cfg = {
            .rank = r, .nranks = RANKS, .secret = secret, .ifname = "lo", .port_range = ""
        };
        int len;

        cr_assert_eq(c->ops->create(&c->tp[r], &cfg), 0, "%s", banyan_last_error());
        len = c->ops->address(c->tp[r], r ? blob : hub, BNY_ADDR_MAX);
        cr_assert_gt(len, 0);
        if (r == 0) {
            hub_len = len;
            continue;
        }
        cr_assert_eq(c->ops->connect(c->tp[r], 0, hub, (size_t)hub_len, &c->to_hub[r]), 0, "%s",
                     banyan_last_error());
        cr_assert_eq(c->ops->connect(c->tp[0], r, blob, (size_t)len, &ep), 0, "%s",
                     banyan_last_error());
    }
}

static void crowd_close(struct crowd *c)
{
    for (int r = 0; r < RANKS; r++)
        c->ops->destroy(c->tp[r]);
    cr_assert_eq(verbs_sim.open, 0, "%d objects leaked", verbs_sim.open);
}

static struct vb_ep *hub_of(const struct crowd *c, int rank)
{
    return (struct vb_ep *)c->to_hub[rank];
}

/* Each that has not sent its message tries to. */
static void crowd_send(struct crowd *c)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);

    for (int r = 1; r < RANKS; r++)
        if (!c->sent[r]) {
            int rc = c->ops->eager(c->to_hub[r], &hdr, NULL);

            cr_assert(rc == 0 || rc == BNY_AGAIN, "rank %d: %s", r, banyan_last_error());
            c->sent[r] = rc == 0;
        }
}

static void crowd_poll(struct crowd *c, int from)
{
    struct bny_event ev[8];

    for (int r = from; r < RANKS; r++) {
        int n = c->ops->poll(c->tp[r], ev, 8);

        for (int i = 0; i < n; i++) {
            cr_assert_eq(ev[i].kind, BNY_EV_MSG, "rank %d hears of rank %d: %s", r,
                         ev[i].ep->peer, ev[i].kind == BNY_EV_DOWN ? ev[i].reason : "?");
            c->heard[ev[i].ep->peer]++;
            c->ops->release(ev[i].msg);
        }
    }
}

/* All others have asked; their requests wait at rank 0, which computes. */
static void all_ask(struct crowd *c)
{
    uint64_t deadline = bny_deadline_in(MANY_S);
    int asking = 0;

    while (asking < RANKS - 1) {
        cr_assert(!bny_deadline_passed(deadline), "%d of %d ask", asking, RANKS - 1);
        crowd_send(c);
        crowd_poll(c, 1);
        asking = 0;
        for (int r = 1; r < RANKS; r++)
            asking += hub_of(c, r)->state == VB_ASKING;
    }
}

Test(verbs_many, all_come_to_a_rank_that_computes)
{
    uint64_t deadline = bny_deadline_in(MANY_S);
    static struct crowd c;
    int heard = 0;

    if (verbs_real_device())
        return;
    crowd_open(&c);
    all_ask(&c);
    cr_assert_eq(verbs_sim.dropped, 0u, "the kernel kept too few requests: %llu were lost",
                 (unsigned long long)verbs_sim.dropped);
    while (heard < RANKS - 1) {
        cr_assert(!bny_deadline_passed(deadline), "%d of %d came", heard, RANKS - 1);
        crowd_poll(&c, 0);
        crowd_send(&c);
        heard = 0;
        for (int r = 1; r < RANKS; r++) {
            cr_assert_leq(c.heard[r], 1, "the message of rank %d came twice", r);
            heard += c.heard[r];
        }
    }
    cr_assert_gt(((struct vb_tp *)c.tp[0])->told_busy, 0u, "there was no crowd");
    cr_assert_eq(((struct vb_tp *)c.tp[0])->nhalf, 0u);
    cr_assert_eq(((struct vb_tp *)c.tp[0])->joining, 0);
    crowd_close(&c);
}

/* Who was told so asks later each time, and not when somebody sends meanwhile; a sleeper looks
 * again by itself. */
Test(verbs_many, a_busy_rank_is_not_pressed)
{
    static struct crowd c;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_event ev[8];
    struct vb_ep *e;
    int fds[8], n;

    if (verbs_real_device())
        return;
    crowd_open(&c);
    all_ask(&c);
    e = hub_of(&c, RANKS - 1); /* the last one to ask */
    for (uint32_t k = 0; k < 3; k++) {
        uint64_t begun;

        /* the others say nothing, so that no place is free again */
        ((struct vb_tp *)c.tp[0])->turns = UINT32_MAX;
        cr_assert_eq(c.ops->poll(c.tp[0], ev, 8), 0);
        begun = bny_now_ns();
        cr_assert_eq(c.ops->poll(e->ep.tp, ev, 8), 0);
        cr_assert_eq(e->state, VB_IDLE);
        cr_assert_eq(e->busy, k + 1);
        cr_assert_eq(e->down, 0);
        cr_assert_geq(e->again_ns, begun + (20000000ull << k), "it comes back at once");
        cr_assert_neq(c.ops->arm(e->ep.tp, fds, 8, &n), UINT64_MAX, "it would never look");
        c.ops->disarm(e->ep.tp);
        e->again_ns = UINT64_MAX;
        cr_assert_eq(c.ops->eager(&e->ep, &hdr, NULL), BNY_AGAIN);
        cr_assert_eq(e->state, VB_IDLE, "it asks too early");
        e->again_ns = 0;
        cr_assert_eq(c.ops->eager(&e->ep, &hdr, NULL), BNY_AGAIN);
        while (e->state != VB_ASKING)
            cr_assert_eq(c.ops->poll(e->ep.tp, ev, 8), 0);
    }
    crowd_close(&c);
}
