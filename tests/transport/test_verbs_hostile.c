/* SPDX-License-Identifier: BSD-3-Clause */
/* Peers that are broken or hostile while they connect, are replaced or leave: each is told in
 * one sentence, and nothing else suffers. Over the simulated device. test_verbs.c and
 * test_verbs_rails.c have what peers say once they are connected. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"
#include "tests/support/verbs_sim_inside.h"

TestSuite(verbs_hostile, .timeout = 100);

static struct vb_fn meddled; /* the table of one rank */
static const struct vb_fn *real;
static uint64_t rng;

/* Two ranks that have not talked. `rank` gets a table of its own, to be changed. */
static int opened(struct tpset *s, int rank)
{
    if (verbs_real_device())
        return 0;
    tpset_open(s, bny_transport_find("verbs"), 2, NULL);
    real = bny_verbs_fn();
    meddled = *real;
    ((struct vb_tp *)s->tp[rank])->fn = &meddled;
    return 1;
}

static void ask(struct tpset *s, int from)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);

    cr_assert_eq(s->ops->eager(s->ep[from][!from], &hdr, NULL), BNY_AGAIN);
}

static void steps(struct tpset *s, int n)
{
    while (n-- > 0)
        tpset_step(s);
}

static void expect_nothing(struct tpset *s, int rank)
{
    for (int k = BNY_EV_MSG; k <= BNY_EV_DOWN; k++)
        cr_assert_eq(tpset_count(s, rank, (enum bny_event_kind)k), 0, "an event of kind %d", k);
}

static void closed(struct tpset *s)
{
    tpset_close(s);
    cr_assert_eq(verbs_sim.open, 0, "%d objects leaked", verbs_sim.open);
}

/* ---- leaving ---- */

/* Its queue pair breaks when the farewell has just come: the request for another one is here
 * before it is looked at. */
Test(verbs_hostile, a_farewell_and_a_break)
{
    for (uint32_t qps = 1; qps <= 2 && !verbs_real_device(); qps++) {
        const struct vb_ep *e;
        struct tpset s;
        uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

        set_key("BANYAN_VERBS=qps", qps == 1 ? "1" : "2");
        verbs_joined(&s, 2);
        verbs_lanes_joined(&s, qps);
        s.paused[1] = 1;
        cr_assert_eq(s.ops->farewell(s.tp[0]), BNY_AGAIN);
        ibv_req_notify_cq(bny_verbs_cq_of(verbs_conn(&s, 0, 1)), 0); /* the device works */
        verbs_break_pair(&s, 0, 1);
        for (e = (struct vb_ep *)s.ep[0][1]; !e->trial || e->state != VB_ASKING; tpset_step(&s))
            cr_assert(!bny_deadline_passed(deadline), "it does not ask");
        s.paused[1] = 0;
        ((struct vb_tp *)s.tp[1])->turns = UINT32_MAX; /* the request is looked at first */
        for (; s.ops->farewell(s.tp[0]) == BNY_AGAIN; tpset_step(&s))
            cr_assert(!bny_deadline_passed(deadline), "it never leaves");
        steps(&s, 3000);
        expect_nothing(&s, 1);
        cr_assert_geq(((struct vb_tp *)s.tp[1])->joining, 0);
        closed(&s);
    }
}

/* Nobody waits to take leave of one that is dead. */
Test(verbs_hostile, the_dead_get_no_farewell)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    tpset_destroy_rank(&s, 1);
    verbs_expect_down(&s, 0, "ended");
    cr_assert_eq(s.ops->farewell(s.tp[0]), 0);
    closed(&s);
}

/* ---- silence ---- */

static struct rdma_cm_id *swallowed; /* whose request got lost */

static int swallow_connect(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    (void)p;
    swallowed = id;
    return 0;
}

static void until_state(struct tpset *s, int rank, enum vb_state state)
{
    const struct vb_ep *e = (struct vb_ep *)s->ep[rank][!rank];

    for (uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S); e->state != state;
         tpset_step(s))
        cr_assert(!bny_deadline_passed(deadline), "rank %d is in state %d, not %d", rank,
                  e->state, state);
}

/* Both ask; the lower rank turns the other's request away, and its own gets lost. */
Test(verbs_hostile, a_rank_that_gave_way_does_not_wait_for_ever)
{
    struct tpset s;
    int fds[8], n;

    if (!opened(&s, 0))
        return;
    meddled.rdma_connect = swallow_connect;
    ask(&s, 0);
    ask(&s, 1);
    until_state(&s, 1, VB_YIELDED);
    s.paused[0] = 1;
    cr_assert_neq(s.ops->arm(s.tp[1], fds, 8, &n), UINT64_MAX, "it would sleep for ever");
    s.ops->disarm(s.tp[1]);
    verbs_travel(&s, 1);
    until_state(&s, 1, VB_IDLE);
    expect_nothing(&s, 1);
    meddled.rdma_connect = real->rdma_connect;
    verbs_sim_unreachable(swallowed);
    s.paused[0] = 0;
    ask(&s, 1);
    until_state(&s, 1, VB_OPEN);
    closed(&s);
}

/* It computes: its kernel keeps the request for it. */
Test(verbs_hostile, a_peer_that_is_late_is_waited_for)
{
    struct tpset s;

    if (!opened(&s, 0))
        return;
    s.paused[1] = 1;
    ask(&s, 0);
    until_state(&s, 0, VB_ASKING);
    for (int minutes = 0; minutes < 3; minutes++) {
        verbs_travel(&s, 1);
        steps(&s, 1000);
        expect_nothing(&s, 0);
    }
    s.paused[1] = 0;
    until_state(&s, 0, VB_OPEN);
    closed(&s);
}

/* The peer accepted, waited for our hello, and has ended that connection when we come back. */
Test(verbs_hostile, a_rank_that_was_away_asks_once_more)
{
    struct tpset s;

    if (!opened(&s, 0))
        return;
    ask(&s, 0);
    until_state(&s, 0, VB_ASKING);
    s.paused[0] = 1;
    steps(&s, 1000);
    verbs_travel(&s, 1);
    steps(&s, 1000);
    s.paused[0] = 0;
    ask(&s, 0);
    steps(&s, 1000);
    expect_nothing(&s, 0);
    verbs_travel(&s, 0);
    ask(&s, 0);
    until_state(&s, 0, VB_OPEN);
    closed(&s);
}

/* What the kernel gives up is no matter of a peer that computes. */
Test(verbs_hostile, a_network_that_swallows_requests_is_a_failure)
{
    struct tpset s;

    if (!opened(&s, 0))
        return;
    meddled.rdma_connect = swallow_connect;
    ask(&s, 0);
    until_state(&s, 0, VB_ASKING);
    verbs_travel(&s, 1);
    steps(&s, 1000);
    expect_nothing(&s, 0);
    verbs_travel(&s, 1);
    verbs_sim_unreachable(swallowed);
    verbs_expect_down(&s, 0, "does not answer to device sim0 port 1 (unreachable)");
    closed(&s);
}

static int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static void (*alter)(struct vb_hello *h, uint32_t *len);
static uint32_t hellos, alter_from, alter_till;

static int meddle_hellos(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct ibv_sge sge;

    if (wr->wr_id != VB_WR_HELLO || ++hellos < alter_from || hellos >= alter_till)
        return post_send(qp, wr, bad);
    if (!alter)
        return 0; /* it says nothing */
    sge = wr->sg_list[0];
    alter((struct vb_hello *)(uintptr_t)sge.addr, &sge.length);
    wr->sg_list = &sge;
    return post_send(qp, wr, bad);
}

/* Of the hellos from the from-th on, before the till-th. */
static void meddle_with_hellos(uint32_t from, uint32_t till,
                               void (*how)(struct vb_hello *h, uint32_t *len))
{
    if (sim_context[0].ops.post_send != meddle_hellos)
        post_send = sim_context[0].ops.post_send;
    sim_context[0].ops.post_send = meddle_hellos;
    hellos = 0;
    alter_from = from;
    alter_till = till;
    alter = how;
}

/* The first hello is of the one that asks, the second one the answer. */
Test(verbs_hostile, a_peer_that_accepts_and_says_nothing)
{
    for (uint32_t which = 1; which <= 2 && !verbs_real_device(); which++) {
        struct tpset s;

        opened(&s, 0);
        meddle_with_hellos(which, 99, NULL);
        ask(&s, 0);
        for (int minutes = 0; minutes < 3; minutes++) {
            steps(&s, 3000);
            expect_nothing(&s, 0);
            verbs_travel(&s, 1);
        }
        tpset_destroy_rank(&s, 1);
        until_state(&s, 0, VB_IDLE);
        verbs_travel(&s, 0);
        ask(&s, 0);
        verbs_expect_down(&s, 0, "it has ended");
        closed(&s);
    }
}

Test(verbs_hostile, a_replacement_that_says_nothing)
{
    for (uint32_t which = 1; which <= 2 && !verbs_real_device(); which++) {
        struct tpset s;

        verbs_joined(&s, 2);
        meddle_with_hellos(which, 99, NULL);
        verbs_break_pair(&s, 0, 1);
        steps(&s, 3000);
        expect_nothing(&s, 0);
        verbs_travel(&s, 1);
        verbs_expect_down(&s, 0, "no other connection came about in time");
        closed(&s);
    }
}

static void other_key(struct vb_hello *h, uint32_t *len)
{
    (void)len;
    h->rkey ^= 1;
}

/* Where one may write is part of what is proven. */
Test(verbs_hostile, a_hello_that_was_changed_on_its_way)
{
    for (uint32_t which = 1; which <= 2 && !verbs_real_device(); which++) {
        struct tpset s;

        opened(&s, 0);
        meddle_with_hellos(which, which + 1, other_key);
        ask(&s, 0);
        if (which == 2)
            verbs_expect_down(&s, 0, "does not know the job's secret");
        for (int k = 0; k < 2000; k++)
            tpset_step(&s);
        cr_assert_eq(tpset_count(&s, 1, BNY_EV_MSG), 0);
        closed(&s);
    }
}

/* ---- many of them ---- */

static int attempts;

static int not_now(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    static const uint8_t why = VB_NOT_NOW;

    (void)p;
    attempts++;
    real->rdma_reject(id, &why, 1);
    errno = EBUSY;
    return -1;
}

/* A peer that always says "not now" is asked now and then, and attempts that failed keep
 * nothing. */
Test(verbs_hostile, a_storm_of_rejections)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    uint64_t t0 = bny_now_ns(), spent;
    struct tpset s;
    int slabs = 0;

    if (!opened(&s, 1))
        return;
    meddled.rdma_accept = not_now;
    attempts = 0;
    while (attempts < 5) {
        cr_assert_eq(s.ops->eager(s.ep[0][1], &hdr, NULL), BNY_AGAIN);
        tpset_step(&s);
    }
    spent = bny_now_ns() - t0;
    cr_assert_geq(spent, 4 * 40000000u, "%d attempts in %llu us", attempts,
                  (unsigned long long)spent / 1000);
    for (int r = 0; r < 2; r++)
        for (const struct vb_lane *c = ((struct vb_tp *)s.tp[r])->dead; c; c = c->next)
            slabs += c->peer != NULL;
    cr_assert_eq(slabs, 0, "%d attempts that failed keep memory", slabs);
    verbs_travel(&s, 1);
    while (s.ops->eager(s.ep[0][1], &hdr, NULL) == BNY_AGAIN)
        tpset_step(&s);
    verbs_expect_down(&s, 0, "not ready there");
    closed(&s);
}

static int lines;

static void count_line(void *ctx, enum banyan_log_level level, const char *text)
{
    (void)ctx;
    (void)level;
    lines += strstr(text, "turned away") != NULL;
}

/* The log is not theirs to fill. */
Test(verbs_hostile, a_storm_of_strangers)
{
    struct tpset s;
    uint8_t data[56];

    if (!opened(&s, 0))
        return;
    banyan_set_log(count_line, NULL, BANYAN_LOG_WARN);
    for (int i = 0; i < 1000; i++) {
        struct rdma_cm_id *id;

        for (size_t k = 0; k < sizeof data; k++)
            data[k] = (uint8_t)bny_rng_below(&rng, 256);
        cr_assert_eq(
            real->rdma_create_id(((struct vb_tp *)s.tp[1])->events, &id, NULL, RDMA_PS_TCP), 0);
        id->verbs = &sim_context[0];
        id->port_num = 1;
        bny_verbs_requested((struct vb_tp *)s.tp[1], id, data,
                            (size_t)bny_rng_below(&rng, sizeof data + 1));
    }
    cr_assert(lines > 0 && lines < 30, "%d lines", lines);
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    closed(&s);
}

/* ---- nonsense ---- */

static uint32_t any(uint32_t below)
{
    return (uint32_t)bny_rng_below(&rng, below);
}

static size_t garble(uint8_t *out, const void *data, size_t len, size_t max)
{
    size_t n = any(3) ? len : any((uint32_t)max + 1);

    for (size_t i = 0; i < n; i++)
        out[i] = i < len ? ((const uint8_t *)data)[i] : (uint8_t)any(256);
    for (uint32_t k = any(4); k && n; k--)
        out[any((uint32_t)n)] = any(2) ? (uint8_t)any(256) : any(2) ? 0 : 0xff;
    return n;
}

static int garbled_connect(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    static const int32_t odd[] = { INT32_MIN, -1, 0, 1, 2, INT32_MAX };
    uint8_t data[56] = { 0 };
    struct rdma_conn_param q = *p;
    struct vb_request r;

    memcpy(&r, p->private_data, sizeof r);
    switch (any(8)) {
    case 0: r.from = odd[any(6)]; break;
    case 1: r.to = odd[any(6)]; break;
    case 2: r.lane = (uint8_t)(any(2) ? any(17) : 255); break;
    case 3: r.rail = (uint8_t)(any(2) ? any(4) : 255); break;
    case 4: r.resumes = (uint8_t)any(3); break;
    case 5: r.notify = (uint8_t)any(3); break;
    case 6: r.wire = (uint16_t)any(65536); break;
    default:
        q.private_data_len = (uint8_t)garble(data, &r, sizeof r, sizeof data);
        q.private_data = data;
        break;
    }
    if (any(4))
        bny_verbs_request_prove(((const struct vb_lane *)id->context)->t, &r);
    if (q.private_data != data)
        q.private_data = &r;
    return real->rdma_connect(id, &q);
}

static int garbled_accept(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    uint8_t data[196];
    struct rdma_conn_param q = *p;

    q.private_data_len = (uint8_t)garble(data, p->private_data, p->private_data_len, 195);
    q.private_data = data;
    return real->rdma_accept(id, &q);
}

static int garbled_reject(struct rdma_cm_id *id, struct rdma_conn_param *p)
{
    uint8_t data[148];

    (void)p;
    real->rdma_reject(id, data,
                      (uint8_t)garble(data, (const uint8_t[]){ (uint8_t)any(8) }, 1, 147));
    errno = EIO;
    return -1;
}

static void garbled_hello(struct vb_hello *h, uint32_t *len)
{
    if (any(4) == 0)
        *len = any(sizeof *h + 1);
    for (uint32_t k = any(3); k; k--)
        ((uint8_t *)h)[any(sizeof *h)] = (uint8_t)any(256);
}

/* Until both have nothing more to say. Only rank 0, which asks, may find rank 1 down. */
static void come_to_an_end(struct tpset *s, uint64_t seed)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 64);
    const uint8_t buf[64] = { 0 };
    int sent = 0;

    for (int i = 0; i < 60 && !tpset_count(s, 0, BNY_EV_DOWN) && !tpset_count(s, 1, BNY_EV_MSG);
         i++) {
        for (int k = 0; k < 60; k++) {
            int rc = sent ? 0 : s->ops->eager(s->ep[0][1], &hdr, buf);

            cr_assert(rc == 0 || rc == BNY_AGAIN || rc == -BANYAN_ERANKDEAD, "seed %llu: %d",
                      (unsigned long long)seed, rc);
            sent |= rc == 0;
            tpset_step(s);
        }
        verbs_travel(s, i > 20);
    }
    if (tpset_count(s, 1, BNY_EV_MSG)) {
        s->ops->release(tpset_wait(s, 1, BNY_EV_MSG).msg);
        return;
    }
    cr_assert_eq(tpset_count(s, 0, BNY_EV_DOWN), 1,
                 "seed %llu: neither a message nor a sentence", (unsigned long long)seed);
    verbs_expect_down(s, 0, " ");
}

static void garble_all(int rank, void (*set)(void))
{
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct tpset s;

        rng = seed;
        if (!opened(&s, rank))
            return;
        set();
        ask(&s, 0);
        come_to_an_end(&s, seed);
        closed(&s);
    }
}

static void set_connect(void)
{
    meddled.rdma_connect = garbled_connect;
}
static void set_accept(void)
{
    meddled.rdma_accept = garbled_accept;
}
static void set_reject(void)
{
    meddled.rdma_accept = garbled_reject;
}
static void set_hello(void)
{
    meddle_with_hellos(1 + any(2), 3, garbled_hello);
}

Test(verbs_hostile, garbled_requests)
{
    garble_all(0, set_connect);
}
Test(verbs_hostile, garbled_acceptances)
{
    garble_all(1, set_accept);
}
Test(verbs_hostile, garbled_rejections)
{
    garble_all(1, set_reject);
}
Test(verbs_hostile, garbled_hellos)
{
    garble_all(0, set_hello);
}

/* The same of connections that are replaced. Either rank may tell; both come to an end. */
Test(verbs_hostile, garbled_replacements)
{
    for (uint64_t seed = 1; seed <= 400 && !verbs_real_device(); seed++) {
        struct bny_hdr hdr = tpset_hdr(0, 1, 0);
        struct tpset s;
        int over = 0;

        rng = seed;
        opened(&s, 0);
        tpset_eager(&s, 0, 1, &hdr, NULL);
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        switch (seed % 4) {
        case 0: set_connect(); break;
        case 1: set_hello(); break;
        case 2:
            ((struct vb_tp *)s.tp[0])->fn = real;
            ((struct vb_tp *)s.tp[1])->fn = &meddled;
            set_accept();
            break;
        default:
            ((struct vb_tp *)s.tp[0])->fn = real;
            ((struct vb_tp *)s.tp[1])->fn = &meddled;
            set_reject();
            break;
        }
        verbs_break_pair(&s, 0, 1);
        for (int i = 0; i < 60 && !over; i++) {
            steps(&s, 60);
            verbs_travel(&s, i > 20);
            over = tpset_count(&s, 0, BNY_EV_DOWN) || tpset_count(&s, 1, BNY_EV_DOWN) ||
                   (bny_counter_read(&s.tp[0]->replaced) &&
                    ((struct vb_ep *)s.ep[0][1])->state == VB_OPEN &&
                    ((struct vb_ep *)s.ep[1][0])->state == VB_OPEN);
        }
        cr_assert(over, "seed %llu: states %d and %d", (unsigned long long)seed,
                  ((struct vb_ep *)s.ep[0][1])->state, ((struct vb_ep *)s.ep[1][0])->state);
        closed(&s);
    }
}
