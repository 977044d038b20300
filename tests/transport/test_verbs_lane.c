/* SPDX-License-Identifier: BSD-3-Clause */
/* Queue pairs that break and are replaced, devices without immediates, and what devices tell by
 * themselves. Over the simulated device, or a real one where BANYAN_TEST_IFNAMES names two
 * interfaces. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

TestSuite(verbs_lane, .timeout = 100);

static void stream_and_break(int breaks)
{
    struct tpset s;
    int broken;

    verbs_joined(&s, 2);
    breaks = verbs_iwarp(&s) ? 0 : breaks;
    broken = verbs_stream(&s, &(struct verbs_stream){ .breaks = breaks });
    cr_assert(broken > 0 || breaks == 0 || verbs_real_device());
    cr_assert(broken == 0 || verbs_conn(&s, 0, 1)->epoch > 0, "nothing was replaced");
    verbs_left(&s);
}

Test(verbs_lane, a_queue_pair_in_error_is_replaced)
{
    stream_and_break(0);
    for (int i = 1; i <= (verbs_real_device() ? 3 : 12); i++)
        stream_and_break(i % 4 + 1);
}

/* Any queue pair there is, of either end: that of a lane, or of one in the making. */
static struct {
    uint64_t rng;
    int breaks, broken;
    uint32_t steps;
} early;

static void break_early(struct tpset *s, uint32_t heard)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    int r = (int)bny_rng_below(&early.rng, 2);
    struct vb_ep *e = (struct vb_ep *)s->ep[r][!r];
    uint32_t k = (uint32_t)bny_rng_below(&early.rng, 3);
    struct vb_ep *l = k ? e->lanes[k] : e;
    struct vb_lane *c = l && l->trial ? l->trial : l ? l->conn : NULL;

    if (++early.steps % 20 == 0)
        verbs_travel(s, 0);
    if (early.broken == early.breaks || bny_rng_below(&early.rng, 6) || !c || !c->has_qp)
        return;
    c->t->fn->ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE);
    early.broken++;
}

/* One end may have a lane open that the other has not, and each asks for what it lacks: a new
 * one, or another queue pair for that one. */
Test(verbs_lane, queue_pairs_break_while_further_ones_are_made, .timeout = 100)
{
    const char *told = getenv("BANYAN_TEST_SEED");
    uint64_t first = told ? strtoull(told, NULL, 0) : 1, broken = 0;
    struct tpset s;

    if (verbs_real_device())
        return;
    set_key("BANYAN_VERBS=qps", "3");
    for (uint64_t seed = first; seed < first + (told ? 1 : 100); seed++) {
        fprintf(stderr, "# BANYAN_TEST_SEED=%llu\n", (unsigned long long)seed);
        verbs_sim.seed = seed;
        early.rng = seed * 0x9e3779b97f4a7c15u;
        early.breaks = (int)(seed % 3) + 1;
        early.broken = 0;
        early.steps = 0;
        tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
        if (verbs_iwarp(&s)) {
            tpset_close(&s);
            return;
        }
        verbs_stream(&s, &(struct verbs_stream){ .seed = seed, .meddle = break_early });
        broken += (uint64_t)early.broken;
        verbs_left(&s);
    }
    cr_assert(told || broken > 100, "%llu broken", (unsigned long long)broken);
}

/* Notes in place of immediates: the same promises. */
Test(verbs_lane, a_device_without_immediates_works)
{
    set_key("BANYAN_VERBS=notify", "1");
    verbs_sim.no_immediates = 1;
    stream_and_break(0);
    verbs_sim.no_immediates = 0; /* else it is iWARP, and replaces nothing */
    stream_and_break(3);
    if (verbs_real_device())
        return;
    verbs_sim.max_inline = UINT32_MAX;
    stream_and_break(1);
}

/* There a completion does not tell that something arrived. */
Test(verbs_lane, iwarp_replaces_nothing)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.no_immediates = 1;
    verbs_joined(&s, 2);
    cr_assert(verbs_iwarp(&s));
    verbs_break_pair(&s, 0, 1);
    verbs_expect_down(&s, 0, "not reached");
    verbs_expect_down(&s, 1, "device sim0"); /* closed, or not reached */
    tpset_close(&s);
}

/* A peer that has ended takes no other connection: that is told, soon. */
Test(verbs_lane, a_peer_that_ended_is_told)
{
    struct tpset s;

    verbs_joined(&s, 2);
    tpset_destroy_rank(&s, 1);
    verbs_expect_down(&s, 0, verbs_iwarp(&s) ? "not reached" : "ended");
    tpset_close(&s);
}

/* Packets are lost for a while: longer than the device tries, shorter than we do. */
Test(verbs_lane, a_flap_is_invisible)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 7, 64);
    uint8_t buf[64] = { 0 };
    struct bny_msg *msg;

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    verbs_sim.cut_after = verbs_sim.executed;
    cr_assert_eq(s.ops->eager(s.ep[0][1], &hdr, buf), 0);
    while (!verbs_conn(&s, 0, 1)->lost)
        tpset_step(&s);
    verbs_sim.cut_after = 0;
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    cr_assert_eq(msg->hdr.seq, 7u);
    s.ops->release(msg);
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN) + tpset_count(&s, 1, BNY_EV_DOWN), 0);
    verbs_left(&s);
}

Test(verbs_lane, what_a_device_tells)
{
    struct tpset s;
    static const enum ibv_event_type harmless[] = { IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE,
                                                    IBV_EVENT_LID_CHANGE, IBV_EVENT_GID_CHANGE,
                                                    IBV_EVENT_SRQ_ERR };

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    s.paused[1] = 1;
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        verbs_sim.event = (int)harmless[i] + 1;
        while (verbs_sim.event)
            tpset_step(&s);
        cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN), 0);
    }
    verbs_sim.event = (int)IBV_EVENT_DEVICE_FATAL + 1;
    verbs_expect_down(&s, 0, "device sim0 has failed");
    s.paused[1] = 0;
    tpset_close(&s);
}
