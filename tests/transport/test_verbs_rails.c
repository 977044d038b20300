/* SPDX-License-Identifier: BSD-3-Clause */
/* Several queue pairs to a peer, and several devices: stripes, order, rails that go away. Over
 * the simulated devices, which execute requests of different queue pairs in random order; the
 * first tests also over real ones, where BANYAN_TEST_IFNAMES=a+c,b+d names two for each rank.
 */
#include <arpa/inet.h>
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

TestSuite(verbs_rails, .timeout = 100);

static int rails_here(void)
{
    return verbs_real_device() ? 1 + (strchr(getenv("BANYAN_TEST_IFNAMES"), '+') != NULL) : 2;
}

/* Two ranks with all their lanes. */
static void opened(struct tpset *s, int rails, int qps)
{
    char text[8];

    snprintf(text, sizeof text, "%d", qps);
    set_key("BANYAN_VERBS=qps", text);
    if (!verbs_real_device())
        verbs_sim.devices = rails;
    verbs_joined(s, 2);
    verbs_lanes_joined(s, (uint32_t)(rails * qps));
}

static void check_all_lanes_carried(struct tpset *s, uint32_t lanes)
{
    for (uint32_t k = 1; k < lanes; k++)
        for (int r = 0; r < 2; r++)
            cr_assert(verbs_lane_conn(s, r, !r, k)->imm_sent > 0,
                      "lane %u of rank %d carried nothing", k, r);
}

static const struct {
    int rails, qps;
} shapes[] = { { 1, 2 }, { 1, 4 }, { 2, 1 }, { 2, 2 }, { 1, 16 }, { 5, 1 }, { 8, 2 } };

Test(verbs_rails, stripes_come_in_order_and_whole)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct tpset s;

        if (verbs_real_device() && (shapes[i].rails != rails_here() || shapes[i].qps > 1))
            continue;
        opened(&s, shapes[i].rails, shapes[i].qps);
        verbs_stream(&s, &(struct verbs_stream){ .seed = 5 + i });
        check_all_lanes_carried(&s, (uint32_t)(shapes[i].rails * shapes[i].qps));
        verbs_left(&s);
    }
}

Test(verbs_rails, lanes_that_break_are_replaced)
{
    for (uint64_t i = 0; i < (verbs_real_device() ? 1u : 12u); i++) {
        struct tpset s;
        uint32_t epochs = 0, lanes;
        uint64_t deadline;

        opened(&s, verbs_real_device() ? rails_here() : shapes[i % 4].rails,
               verbs_real_device() ? 2 : shapes[i % 4].qps);
        lanes = ((struct vb_ep *)s.ep[0][1])->nlanes;
        verbs_stream(&s, &(struct verbs_stream){ .breaks = 1 + (int)i % 5, .seed = 100 + i });
        deadline = bny_deadline_in(TPSET_DEADLINE_S);
        while (epochs == 0) { /* what broke last may be still in the making */
            cr_assert(!bny_deadline_passed(deadline), "nothing was replaced");
            tpset_step(&s);
            for (uint32_t k = 0; k < lanes; k++)
                epochs += verbs_lane_conn(&s, 0, 1, k)->epoch;
        }
        cr_assert_eq(bny_counter_read(&s.tp[0]->replaced), epochs);
        cr_assert_eq(bny_counter_read(&s.tp[0]->moved), 0u);
        verbs_left(&s);
    }
}

/* Devices without immediates: notes tell of stripes, too. */
Test(verbs_rails, lanes_without_immediates)
{
    if (verbs_real_device())
        return;
    set_key("BANYAN_VERBS=notify", "1");
    for (size_t i = 0; i < 4; i++) {
        struct tpset s;

        opened(&s, shapes[i].rails, shapes[i].qps);
        verbs_stream(&s, &(struct verbs_stream){ .breaks = (int)i, .seed = 200 + i });
        verbs_left(&s);
    }
    verbs_sim.no_immediates = 1; /* a device of iWARP, which replaces no queue pair */
    for (size_t i = 0; i < 4; i++) {
        struct tpset s;

        opened(&s, shapes[i].rails, shapes[i].qps);
        verbs_stream(&s, &(struct verbs_stream){ .seed = 300 + i });
        verbs_left(&s);
    }
}

/* ---- rails that go away ---- */

static int victim, by_event;

static void kill_rail(struct tpset *s, uint32_t heard)
{
    (void)s;
    if (heard < 10 || verbs_sim.dead_device)
        return;
    verbs_sim.dead_device = 1 + victim;
    verbs_sim.event_device = victim;
    verbs_sim.event =
        by_event ? (int)(by_event == 1 ? IBV_EVENT_PORT_ERR : IBV_EVENT_DEVICE_FATAL) + 1 : 0;
}

Test(verbs_rails, a_rail_that_dies_in_the_middle_loses_nothing)
{
    if (verbs_real_device())
        return;
    for (int i = 0; i < 12; i++) {
        struct tpset s;
        uint64_t moved, deadline;

        victim = i & 1;
        by_event = i / 2 % 3;
        verbs_sim.dead_device = 0;
        opened(&s, 2, 1 + i / 6);
        verbs_stream(&s,
                     &(struct verbs_stream){ .meddle = kill_rail, .seed = 300 + (uint64_t)i });
        moved = bny_counter_read(&s.tp[0]->moved);
        cr_assert_leq(moved, bny_counter_read(&s.tp[0]->replaced));
        cr_assert(moved > 0 && moved <= (uint64_t)(1 + i / 6), "%llu lanes moved",
                  (unsigned long long)moved);
        deadline = bny_deadline_in(TPSET_DEADLINE_S);
        for (uint32_t k = 0; k < (uint32_t)(2 * (1 + i / 6)); k++)
            while (verbs_lane_conn(&s, 0, 1, k)->rail->index == victim &&
                   !verbs_lane_conn(&s, 0, 1, k)->lost &&
                   verbs_lane_conn(&s, 0, 1, k)->done != verbs_lane_conn(&s, 0, 1, k)->posted) {
                cr_assert(!bny_deadline_passed(deadline), "lane %u stays", k);
                tpset_step(&s);
            }
        verbs_sim.dead_device = 0;
        verbs_sim.event = 0;
        verbs_left(&s);
    }
}

/* ---- more rails than a window has keys for ---- */

static void kill_first_six(struct tpset *s, uint32_t heard)
{
    (void)s;
    verbs_sim.dead_below = heard < 10 ? 0 : 6;
}

/* Puts go on over devices whose keys the window does not have, those that were under way
 * included. */
Test(verbs_rails, further_devices_take_over)
{
    for (uint64_t i = 0; i < 3 && !verbs_real_device(); i++) {
        struct tpset s;

        verbs_sim.dead_below = 0;
        opened(&s, 8, 1);
        verbs_stream(&s, &(struct verbs_stream){ .meddle = kill_first_six, .seed = 40 + i });
        cr_assert_geq(bny_counter_read(&s.tp[0]->moved), 1u);
        cr_assert_geq(verbs_conn(&s, 0, 1)->rail->index, 6, "%d",
                      verbs_conn(&s, 0, 1)->rail->index);
        cr_assert_eq(verbs_sim.bad_keys, 0u);
        verbs_sim.dead_below = 0;
        verbs_left(&s);
    }
}

/* Each region's keys are told once a peer; a region that takes another's number is told anew.
 * Beyond the regions that have numbers, messages take the place of puts. */
Test(verbs_rails, keys_of_further_devices)
{
    struct tpset s;
    static char mem[VB_FURTHER + 1][64];
    struct bny_window win;
    struct vb_region *r;
    uint32_t told;

    if (verbs_real_device())
        return;
    opened(&s, 6, 1);
    for (uint32_t i = 0; i <= VB_FURTHER; i++)
        cr_assert_eq(s.ops->attach(s.tp[1], mem[i], sizeof mem[i]), 0);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], mem[VB_FURTHER], 64, &win), -BANYAN_ENOTSUP);
    told = verbs_conn(&s, 1, 0)->peer->eager_sent;
    for (int again = 0; again < 2; again++) {
        cr_assert_eq(s.ops->window_open(s.ep[1][0], mem[7], 64, &win), 0);
        cr_assert_eq(s.ops->window_close(s.ep[1][0], &win), 0);
    }
    cr_assert(win.segment == 8 && verbs_conn(&s, 1, 0)->peer->eager_sent == told + 1);
    cr_assert_eq(s.ops->detach(s.tp[1], mem[7]), 0);
    cr_assert_eq(s.ops->attach(s.tp[1], mem[7], 64), 0);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], mem[7], 64, &win), 0);
    cr_assert(win.segment == 8 && verbs_conn(&s, 1, 0)->peer->eager_sent == told + 2);
    for (r = ((struct vb_tp *)s.tp[1])->regions; r->at != mem[7];)
        r = r->next;
    for (int i = 0; i < 1000; i++)
        tpset_step(&s);
    for (uint32_t k = 0; k < 6; k++)
        cr_assert_eq(bny_verbs_window_key(verbs_lane_conn(&s, 0, 1, k), &win), r->mr[k]->rkey);
    s.ops->window_close(s.ep[1][0], &win);
    bny_verbs_further_arrived(verbs_conn(&s, 0, 1)->peer,
                              &(struct vb_further){ .region = VB_FURTHER });
    verbs_expect_down(&s, 0, "sends keys of region 256");
    verbs_left(&s);
}

/* The first dies, comes back, then the other one dies. */
static void swap_rails(struct tpset *s, uint32_t heard)
{
    verbs_sim.dead_device = heard < 10                                              ? 0
                            : heard < 30 || bny_counter_read(&s->tp[0]->moved) == 0 ? 1
                                                                                    : 2;
}

Test(verbs_rails, a_rail_that_comes_back_is_used_again)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    opened(&s, 2, 1);
    verbs_stream(&s, &(struct verbs_stream){ .meddle = swap_rails });
    cr_assert_geq(bny_counter_read(&s.tp[0]->moved), 2u);
    verbs_sim.dead_device = 0;
    verbs_left(&s);
}

/* A device that comes and goes while streams run. */
enum { ALL_HOME, DEAD, BACK };
static struct {
    uint64_t rng;
    int phase;
    int told;            /* by events */
    int returns, fickle; /* fickle: so often it may die once more before all lanes are home */
} visitor;

static int lanes_on(struct tpset *s, int rail)
{
    int n = 0;

    for (int r = 0; r < 2; r++)
        for (uint32_t k = 0; k < ((struct vb_ep *)s->ep[r][!r])->nlanes; k++)
            n += verbs_lane_conn(s, r, !r, k)->rail->index == rail;
    return n;
}

static int all_lanes_open(struct tpset *s)
{
    for (int r = 0; r < 2; r++) {
        const struct vb_ep *e = (struct vb_ep *)s->ep[r][!r];

        if (e->state != VB_OPEN || e->lanes_open != (1u << e->nlanes) - 2)
            return 0;
    }
    return 1;
}

/* Both ranks, by events. */
static void tell(struct tpset *s, enum ibv_event_type type)
{
    for (int r = 0; r < 2 && visitor.told; r++) {
        verbs_sim.event_device = victim;
        verbs_sim.event = (int)type + 1;
        bny_verbs_async((struct vb_tp *)s->tp[r]);
    }
}

static void enter(struct tpset *s, int phase)
{
    visitor.phase = phase;
    verbs_sim.dead_device = phase == DEAD ? 1 + victim : 0;
    if (phase != ALL_HOME)
        tell(s, phase == DEAD ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE);
}

static void come_and_go(struct tpset *s, uint32_t heard)
{
    struct vb_tp *t;
    int home = (int)((struct vb_ep *)s->ep[0][1])->nlanes; /* ends of lanes at home on a rail */

    (void)heard;
    for (int r = 0; r < 2 && bny_rng_below(&visitor.rng, 4) == 0; r++) {
        t = (struct vb_tp *)s->tp[r];
        t->turns = UINT32_MAX; /* it looks now, and goes home now, also in vain */
        t->home_ns = t->home_ns && visitor.phase != ALL_HOME;
    }
    switch (visitor.phase) {
    case ALL_HOME:
        if (visitor.returns < 3 && bny_rng_below(&visitor.rng, 60) == 0)
            enter(s, DEAD);
        break;
    case DEAD:
        if (lanes_on(s, victim) == 0 && all_lanes_open(s) &&
            bny_rng_below(&visitor.rng, 30) == 0)
            enter(s, BACK);
        break;
    case BACK:
        if (visitor.fickle && lanes_on(s, victim) < home &&
            bny_rng_below(&visitor.rng, 50) == 0) {
            enter(s, DEAD);
            visitor.fickle--;
        } else if (lanes_on(s, victim) == home && all_lanes_open(s)) {
            enter(s, ALL_HOME);
            visitor.returns++;
        }
        break;
    }
}

static void visit(uint64_t seed, int qps, int fickle, int breaks)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    struct tpset s;

    victim = (int)(seed & 1);
    visitor.rng = seed;
    visitor.phase = ALL_HOME;
    visitor.returns = 0;
    visitor.told = (int)(seed / 2 % 2);
    visitor.fickle = fickle;
    verbs_sim.dead_device = verbs_sim.event = 0;
    opened(&s, 2, qps);
    for (uint64_t i = 0; visitor.returns < 3; i++) {
        cr_assert(!bny_deadline_passed(deadline),
                  "seed %llu: %d returns, phase %d, %d ends there, %d",
                  (unsigned long long)seed, visitor.returns, visitor.phase,
                  lanes_on(&s, victim), all_lanes_open(&s));
        verbs_stream(&s, &(struct verbs_stream){
                             .meddle = come_and_go, .seed = seed * 100 + i, .breaks = breaks });
    }
    for (int r = 0; r < 2; r++)
        for (uint32_t k = 0; k < (uint32_t)(2 * qps); k++)
            cr_assert_eq(verbs_lane_conn(&s, r, !r, k)->rail->index, (int)k % 2,
                         "seed %llu: rank %d, lane %u", (unsigned long long)seed, r, k);
    for (int r = 0; r < 2; r++)
        cr_assert_geq(bny_counter_read(&s.tp[r]->moved), (uint64_t)(visitor.returns * 2 * qps));
    if (!fickle && !breaks)
        cr_assert_eq(bny_counter_read(&s.tp[0]->moved), bny_counter_read(&s.tp[1]->moved));
    verbs_left(&s);
}

Test(verbs_rails, lanes_go_home_when_their_rail_is_back)
{
    for (uint64_t seed = 0; seed < 8 && !verbs_real_device(); seed++)
        visit(seed, 1 + (int)(seed / 4), 0, 0);
}

/* Ending a connection over a port that is down would make the device's connection manager deaf:
 * rxe's is so, for good. */
Test(verbs_rails, a_port_that_is_down_hears_of_no_end)
{
    verbs_sim.deafens = 1;
    for (uint64_t seed = 16; seed < 20 && !verbs_real_device(); seed++)
        visit(seed, 1 + (int)(seed % 2), 0, 0);
    cr_assert_eq(verbs_sim.deaf, 0);
    verbs_sim.deafens = 0;
}

/* It breaks at any time, also when lanes are on their way home, and so does what is elsewhere.
 */
Test(verbs_rails, lanes_go_home_in_spite_of_breaks)
{
    for (uint64_t seed = 8; seed < 16 && !verbs_real_device(); seed++)
        visit(seed, 1 + (int)(seed % 2), 5, (int)(seed % 3));
}

Test(verbs_rails, the_last_rail_takes_the_peer_along)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    opened(&s, 2, 1);
    verbs_sim.dead_device = 1;
    verbs_sim.event = (int)IBV_EVENT_DEVICE_FATAL + 1;
    s.paused[1] = 1; /* only rank 0 is told */
    while (verbs_sim.event)
        tpset_step(&s);
    s.paused[1] = 0;
    while (bny_counter_read(&s.tp[0]->moved) == 0)
        tpset_step(&s);
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN), 0);
    s.paused[1] = 1;
    verbs_sim.event_device = 1;
    verbs_sim.dead_device = 0;
    verbs_sim.event = (int)IBV_EVENT_DEVICE_FATAL + 1;
    verbs_expect_down(&s, 0, "device sim1 has failed");
    s.paused[1] = 0;
    tpset_close(&s);
}

Test(verbs_rails, a_peer_that_ended_is_told)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    opened(&s, 2, 2);
    tpset_destroy_rank(&s, 1);
    verbs_expect_down(&s, 0, "ended");
    tpset_close(&s);
}

/* What was sent before a farewell is heard, also where its stripes come late; and then there is
 * silence. */
Test(verbs_rails, a_farewell_comes_behind_stripes)
{
    for (int i = 0; i < 10 && !verbs_real_device(); i++) {
        struct tpset s;
        struct bny_hdr hdr = tpset_hdr(0, 1, 600000);
        uint8_t *buf = malloc(600000), *got = malloc(600000);
        struct bny_msg *msg;

        opened(&s, 1 + i % 2, 2);
        verbs_sim.seed = (uint64_t)i;
        tpset_fill(buf, 600000, 0, 1, 1);
        tpset_send(&s, 0, 1, &hdr, buf, buf);
        tpset_wait(&s, 0, BNY_EV_SENT);
        while (s.ops->farewell(s.tp[0]) == BNY_AGAIN)
            tpset_step(&s);
        tpset_destroy_rank(&s, 0);
        msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
        tpset_read(&s, msg, got, 100000, 0);
        cr_assert_eq(tpset_check(got, 600000, 0, 1, 1), -1);
        s.ops->release(msg);
        for (int k = 0; k < 3000; k++)
            tpset_step(&s);
        cr_assert_eq(tpset_count(&s, 1, BNY_EV_DOWN), 0,
                     "a rank that took its leave is called dead");
        tpset_close(&s);
        free(buf);
        free(got);
    }
}

/* ---- how much of it ---- */

/* Stripes are as long as their rails are fast: 10 and 25 Gbit/s. */
Test(verbs_rails, shares_are_as_the_rates)
{
    struct tpset s;
    uint8_t *src = calloc(1, 716800), *dst = calloc(1, 716800);
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_window win;

    if (verbs_real_device())
        return;
    opened(&s, 2, 1);
    cr_assert_eq(s.ops->attach(s.tp[0], src, 716800), 0);
    cr_assert_eq(s.ops->attach(s.tp[1], dst, 716800), 0);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, 716800, &win), 0);
    hdr.kind = BNY_MSG_PUT;
    cr_assert_eq(s.ops->put(s.ep[0][1], &hdr, src, 716800, &win, 0, src), 0);
    s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    cr_assert_eq(verbs_lane_conn(&s, 1, 0, 1)->stripe_bytes[0], 512000u, "%u",
                 verbs_lane_conn(&s, 1, 0, 1)->stripe_bytes[0]);
    tpset_wait(&s, 0, BNY_EV_SENT);
    verbs_left(&s);
    free(src);
    free(dst);
}

Test(verbs_rails, one_end_may_have_more_of_them)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.devices = 2;
    verbs_sim.uneven = 1;
    set_key("BANYAN_VERBS=qps", "2");
    verbs_joined(&s, 2);
    verbs_lanes_joined(&s, 2);
    verbs_stream(&s, &(struct verbs_stream){ .breaks = 2 });
    verbs_left(&s);
}

Test(verbs_rails, registered_memory_is_bounded)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && !verbs_real_device(); i++) {
        struct tpset s;

        opened(&s, shapes[i].rails, shapes[i].qps);
        cr_assert_leq(verbs_sim.registered_bytes,
                      2 * VB_PEER_BYTES((unsigned)shapes[i].rails,
                                        (unsigned)(shapes[i].rails * shapes[i].qps)));
        verbs_stream(&s, &(struct verbs_stream){ .breaks = 3 });
        cr_assert_leq(verbs_sim.registered_bytes,
                      2 * VB_PEER_BYTES((unsigned)shapes[i].rails,
                                        (unsigned)(shapes[i].rails * shapes[i].qps)));
        verbs_left(&s);
        cr_assert_eq(verbs_sim.registered_bytes, 0u);
    }
}

/* A lane that does not come about is done without. */
Test(verbs_rails, lanes_that_cannot_be_are_done_without)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.devices = 2;
    verbs_sim.dead_device = 2;
    verbs_joined(&s, 2);
    verbs_stream(&s, &(struct verbs_stream){ .breaks = 1 });
    cr_assert_eq(((struct vb_ep *)s.ep[0][1])->lanes_open, 0u);
    verbs_left(&s);
}

/* ---- peers that are not as they should be ---- */

static int (*connect_as_is)(struct rdma_cm_id *id, struct rdma_conn_param *p);

static int older(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    struct vb_request r;

    memcpy(&r, p->private_data, sizeof r);
    r.wire--;
    p->private_data = &r;
    return connect_as_is(id, p);
}

Test(verbs_rails, another_version_is_told)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct vb_fn fn;

    if (verbs_real_device())
        return;
    tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
    fn = *((struct vb_tp *)s.tp[0])->fn;
    connect_as_is = fn.rdma_connect;
    fn.rdma_connect = older;
    ((struct vb_tp *)s.tp[0])->fn = &fn;
    cr_assert_eq(s.ops->eager(s.ep[0][1], &hdr, NULL), BNY_AGAIN);
    verbs_expect_down(&s, 0, "another version of banyan");
    tpset_close(&s);
}

static int resuming(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    struct vb_request r;

    memcpy(&r, p->private_data, sizeof r);
    r.resumes = 1;
    bny_verbs_request_prove(((const struct vb_lane *)id->context)->t, &r);
    p->private_data = &r;
    return connect_as_is(id, p);
}

/* A request to resume what never was, to a rank that has not heard of the one that asks. */
Test(verbs_rails, nothing_is_resumed_that_never_was)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_ep *known;
    struct vb_fn fn;

    if (verbs_real_device())
        return;
    tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
    known = (struct bny_ep *)((struct vb_tp *)s.tp[1])->eps[0];
    ((struct vb_tp *)s.tp[1])->eps[0] = NULL;
    fn = *((struct vb_tp *)s.tp[0])->fn;
    connect_as_is = fn.rdma_connect;
    fn.rdma_connect = resuming;
    ((struct vb_tp *)s.tp[0])->fn = &fn;
    cr_assert_eq(s.ops->eager(s.ep[0][1], &hdr, NULL), BNY_AGAIN);
    verbs_expect_down(&s, 0, "refuses the connection");
    ((struct vb_tp *)s.tp[1])->eps[0] = (struct vb_ep *)known;
    tpset_close(&s);
}

Test(verbs_rails, hostile_stripes_end_the_connection)
{
    static const struct {
        uint32_t lane, imm, times;
        const char *part;
    } forged[] = {
        { 1, (uint32_t)VB_IMM_STRIPE << 28 | 1, 1, "on lane 1" },
        { 1, VB_IMM_BULK << 28, 1, "on lane 1" },
        { 1, (uint32_t)VB_IMM_STRIPE << 28, VB_RECVS + 1,
          "on lane 1" }, /* no message has such */
        { 0, VB_IMM_BULK << 28 | 0xc << VB_LANES_AT, 1, "no such lane" },
        { 0, (uint32_t)VB_IMM_KEYS << 28, 1, "not its turn" },
        { 0, (uint32_t)VB_IMM_TAKEN << 28 | 0x800000, 1, "means nothing here" },
    };

    for (size_t i = 0; i < sizeof forged / sizeof forged[0] && !verbs_real_device(); i++) {
        struct tpset s;

        opened(&s, 1, 2);
        for (uint32_t k = 0; k < forged[i].times && tpset_count(&s, 1, BNY_EV_DOWN) == 0; k++) {
            struct vb_lane *c = verbs_lane_conn(&s, 0, 1, forged[i].lane);
            struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                            .imm_data = htonl(forged[i].imm),
                                            .send_flags = IBV_SEND_SIGNALED };

            c->sent[c->posted % VB_SENDS] =
                (struct vb_sent){ .seq = ++c->imm_sent, .has_imm = 1 };
            wr.wr_id = c->posted++;
            c->to_post = c->posted;
            cr_assert_eq(ibv_post_send(c->id->qp, &wr, &bad), 0);
            for (int n = 0; n < 40; n++)
                tpset_step(&s);
        }
        verbs_expect_down(&s, 1, forged[i].part);
        tpset_close(&s);
    }
}
