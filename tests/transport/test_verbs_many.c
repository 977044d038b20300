/* SPDX-License-Identifier: BSD-3-Clause */
/* Hundreds of peers that connect to one rank at once, as gather, scatter and stars do: it tells
 * those it has no place for to ask again, and nobody takes that for an end. Over the simulated
 * device. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"
#include "transport/proof.h"
#include "transport/wire.h"

#define MANY_S 200.0 /* of the machine's time */
#define SECOND 1000000000ull

enum { RANKS_MAX = 1024 };

TestSuite(verbs_many, .timeout = 280);

static const uint8_t secret[32] = "a secret of the tests, 32 bytes";

/* Time that passed without anybody's waiting for it. */
static uint64_t skipped_ns;

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    int rc = __real_clock_gettime(id, ts);
    uint64_t ns = (uint64_t)ts->tv_nsec + skipped_ns;

    ts->tv_sec += (time_t)(ns / SECOND);
    ts->tv_nsec = (long)(ns % SECOND);
    return rc;
}

/* What the system lets a listener keep at most (net.core.somaxconn); 0: what it asks for. */
static int most_backlog;

int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);

int __wrap_listen(int fd, int backlog)
{
    return __real_listen(fd, most_backlog && backlog > most_backlog ? most_backlog : backlog);
}

struct crowd { /* rank 0 and all others, which know nobody else */
    const struct bny_transport_ops *ops;
    const char *devices;
    int n;
    struct bny_tp *tp[RANKS_MAX];
    struct bny_ep *to_hub[RANKS_MAX];
    int sent[RANKS_MAX], heard[RANKS_MAX];
};

/* As many as a run of all tests has time for; by hand BANYAN_TEST_CROWD=1024. */
static int crowd_size(void)
{
    const char *text = getenv("BANYAN_TEST_CROWD");
    int n = text ? atoi(text) : 301;

    return n < 2 || n > RANKS_MAX ? RANKS_MAX : n;
}

static void crowd_open(struct crowd *c, int devices)
{
    uint8_t hub[BNY_ADDR_MAX], blob[BNY_ADDR_MAX];
    struct bny_ep *ep;
    int hub_len = 0;

    memset(c, 0, sizeof *c);
    c->ops = bny_transport_find("verbs");
    c->n = crowd_size();
    if (devices > 1 && c->n > 512)
        c->n = 512; /* the simulated ones look at all queue pairs each time */
    c->devices = devices > 1 ? "sim0,sim1" : "lo";
    verbs_sim_use();
    verbs_sim.devices = devices;
    for (int r = 0; r < c->n; r++) {
        struct bny_tp_config cfg = {
            .rank = r, .nranks = c->n, .secret = secret, .ifname = c->devices, .port_range = ""
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
    for (int r = 0; r < c->n; r++)
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

    for (int r = 1; r < c->n; r++)
        if (!c->sent[r]) {
            int rc = c->ops->eager(c->to_hub[r], &hdr, NULL);

            cr_assert(rc == 0 || rc == BNY_AGAIN, "rank %d: %s", r, banyan_last_error());
            c->sent[r] = rc == 0;
        }
}

static void crowd_poll(struct crowd *c, int from)
{
    struct bny_event ev[8];

    for (int r = from; r < c->n; r++) {
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

    while (asking < c->n - 1) {
        cr_assert(!bny_deadline_passed(deadline), "%d of %d ask", asking, c->n - 1);
        crowd_send(c);
        crowd_poll(c, 1);
        asking = 0;
        for (int r = 1; r < c->n; r++)
            asking += hub_of(c, r)->state == VB_ASKING;
    }
}

/* As after many polls, with which a thread for each would be done. */
static void all_look(struct crowd *c)
{
    for (int r = 0; r < c->n; r++)
        ((struct vb_tp *)c->tp[r])->turns = UINT32_MAX;
    crowd_poll(c, 0);
}

/* All look until everybody came. Each round takes so long. */
static void all_come(struct crowd *c, uint64_t round_ns)
{
    struct timespec ts, begun;
    int heard = 0;

    __real_clock_gettime(CLOCK_MONOTONIC, &begun);
    while (heard < c->n - 1) {
        __real_clock_gettime(CLOCK_MONOTONIC, &ts);
        cr_assert_lt(difftime(ts.tv_sec, begun.tv_sec), MANY_S, "%d of %d came", heard,
                     c->n - 1);
        all_look(c);
        crowd_send(c);
        skipped_ns += round_ns;
        heard = 0;
        for (int r = 1; r < c->n; r++) {
            cr_assert_leq(c->heard[r], 1, "the message of rank %d came twice", r);
            heard += c->heard[r];
        }
    }
    while (((struct vb_tp *)c->tp[0])->nhalf || ((struct vb_tp *)c->tp[0])->joining) {
        __real_clock_gettime(CLOCK_MONOTONIC, &ts); /* lanes of further devices */
        cr_assert_lt(difftime(ts.tv_sec, begun.tv_sec), MANY_S,
                     "%u are half open, %d in the making", ((struct vb_tp *)c->tp[0])->nhalf,
                     ((struct vb_tp *)c->tp[0])->joining);
        all_look(c);
    }
}

Test(verbs_many, all_come_to_a_rank_that_computes)
{
    static struct crowd c;

    if (verbs_real_device())
        return;
    crowd_open(&c, 1);
    all_ask(&c);
    cr_assert_eq(verbs_sim.dropped, 0u, "the kernel kept too few requests: %llu were lost",
                 (unsigned long long)verbs_sim.dropped);
    all_come(&c, 0);
    cr_assert_gt(((struct vb_tp *)c.tp[0])->told_busy, 0u, "there was no crowd");
    crowd_close(&c);
}

/* Seconds in which the hub computes and the others look, often enough to trust clocks. */
static void hub_sleeps(struct crowd *c, int seconds)
{
    for (int i = 0; i < seconds * 4; i++) {
        skipped_ns += SECOND / 4;
        crowd_send(c);
        crowd_poll(c, 1);
    }
}

static void hub_looks(struct crowd *c)
{
    struct bny_event ev[8];

    ((struct vb_tp *)c->tp[0])->turns = UINT32_MAX;
    cr_assert_eq(c->ops->poll(c->tp[0], ev, 8), 0);
}

/* The hub looked so often before it slept, each time after all others. */
struct looks {
    int n;
};

static const struct looks all_looks[] = { { 0 }, { 1 }, { 2 }, { 3 } };

ParameterizedTestParameters(verbs_many, all_come_to_a_rank_that_slept)
{
    return cr_make_param_array(struct looks, (void *)(uintptr_t)all_looks,
                               sizeof all_looks / sizeof all_looks[0]);
}

ParameterizedTest(struct looks *p, verbs_many, all_come_to_a_rank_that_slept)
{
    static struct crowd c;

    if (verbs_real_device())
        return;
    crowd_open(&c, 1);
    for (int i = 0; i < p->n; i++) {
        crowd_send(&c);
        if (i)
            crowd_poll(&c, 1);
        hub_looks(&c);
    }
    hub_sleeps(&c, 20);
    all_come(&c, 0);
    crowd_close(&c);
}

/* Whose request waits there tries no other device, and leaves no request behind. */
Test(verbs_many, all_come_over_two_devices_to_a_rank_that_slept)
{
    static struct crowd c;

    if (verbs_real_device())
        return;
    crowd_open(&c, 2);
    hub_sleeps(&c, 20);
    all_come(&c, 0);
    crowd_close(&c);
}

/* Systems keep 128 and fewer for a listener: nobody answers the others. */
Test(verbs_many, all_come_to_a_rank_that_slept_behind_a_full_queue)
{
    static struct crowd c;

    if (verbs_real_device())
        return;
    most_backlog = 16;
    crowd_open(&c, 1);
    hub_sleeps(&c, 20);
    all_come(&c, SECOND / 100);
    crowd_close(&c);
}

/* Strangers fill the queue of a rank that computes: its kernel answers nobody then, for longer
 * than any attempt takes. */
Test(verbs_many, all_come_to_a_rank_whose_queue_strangers_filled)
{
    enum { STRANGERS = 1100 };
    static struct crowd c;
    const struct bny_addr *at;

    if (verbs_real_device())
        return;
    setenv("BANYAN_TEST_CROWD", "3", 1);
    crowd_open(&c, 1);
    at = &((struct vb_tp *)c.tp[0])->rails[0].addr;
    for (int i = 0; i < STRANGERS; i++)
        close(bny_net_connect(at)); /* what the kernel has accepted stays in the queue */
    hub_sleeps(&c, 100);
    for (int r = 1; r < c.n; r++)
        cr_assert_eq(hub_of(&c, r)->conn, NULL);
    all_come(&c, SECOND / 100);
    crowd_close(&c);
}

/* ---- a flood ---- */

enum { IDLE = 1100, COMPUTES_S = 20, ROUNDS_S = 100, A_SECOND = 1000 };

struct cost { /* of first messages to a rank that has computed for COMPUTES_S */
    unsigned rounds;
    uint64_t queue_pairs, executed, pinned; /* pinned: bytes, at most */
};

enum { OFFER = 28 + VB_GIDS * 24 + 64 + BNY_PROOF_BYTES };

struct flood {
    const struct bny_addr *at;
    int fd[IDLE];
    uint64_t made;
    uint8_t offer[OFFER]; /* that a rank has made to somebody who recorded it */
};

/* What rank 1 offers to whom it takes for rank 0, since he listens at its address. */
static void record_offer(uint8_t offer[OFFER])
{
    struct {
        char magic[4];
        uint16_t wire;
        uint8_t reserved[2], nonce[24];
    } greeting = { "bnyR", BNY_WIRE_VERSION, { 0 }, { 1, 2, 3 } };
    const struct bny_transport_ops *ops = bny_transport_find("verbs");
    struct bny_tp_config cfg = {
        .rank = 1, .nranks = 3, .secret = secret, .ifname = "lo", .port_range = ""
    };
    struct bny_addr at = bny_addr_loopback(0), from;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    int listener = bny_net_listen_at(&at, 4), fd = -1, len;
    struct bny_event ev;
    struct vb_blob blob;
    struct bny_tp *tp;
    struct bny_ep *ep;
    ssize_t n = 0;

    cr_assert_geq(listener, 0);
    verbs_sim_use();
    cr_assert_eq(ops->create(&tp, &cfg), 0, "%s", banyan_last_error());
    len = ops->address(tp, &blob, sizeof blob);
    blob.rank = 0;
    for (int i = 0; i < blob.nrails; i++)
        blob.rail[i].addr = at;
    cr_assert_eq(ops->connect(tp, 0, &blob, (size_t)len, &ep), 0, "%s", banyan_last_error());
    for (int i = 0; i < 100000 && n != OFFER; i++) {
        ops->eager(ep, &hdr, NULL);
        cr_assert_geq(ops->poll(tp, &ev, 1), 0);
        if (fd < 0 && (fd = bny_net_accept(listener, &from)) >= 0)
            cr_assert_eq(send(fd, &greeting, sizeof greeting, 0), (ssize_t)sizeof greeting);
        n = fd < 0 ? 0 : recv(fd, offer, OFFER, MSG_PEEK | MSG_DONTWAIT);
    }
    cr_assert(n == OFFER && !memcmp(offer, "bnyQ", 4), "there is no offer: %zd", n);
    close(fd);
    close(listener);
    ops->destroy(tp);
}

/* One that says nothing, or repeats the offer. */
static void strange(struct flood *f)
{
    int *fd = &f->fd[f->made % IDLE];

    if (f->made >= IDLE)
        close(*fd);
    *fd = bny_net_connect(f->at);
    if (f->made++ >= IDLE && f->made % 2)
        (void)!send(*fd, f->offer, sizeof f->offer, MSG_NOSIGNAL);
}

/* All others open their first lane once rank 0 looks again; strangers came before, and go on.
 */
static struct cost first_messages(int strangers)
{
    static struct flood f;
    static struct crowd c;
    struct cost cost = { .rounds = 0 };
    int heard = 0;

    if (strangers)
        record_offer(f.offer);
    verbs_sim = (struct verbs_sim){ .seed = 5 };
    crowd_open(&c, 1);
    f.made = 0;
    f.at = &((struct vb_tp *)c.tp[0])->rails[0].addr;
    for (int i = 0; strangers && i < IDLE; i++)
        strange(&f);
    skipped_ns += COMPUTES_S * SECOND;
    while (heard < c.n - 1) {
        cr_assert_lt(cost.rounds, 100000u, "%d of %d came", heard, c.n - 1);
        for (int i = 0; strangers && i < A_SECOND / ROUNDS_S; i++)
            strange(&f);
        all_look(&c);
        crowd_send(&c);
        skipped_ns += SECOND / ROUNDS_S;
        cost.rounds++;
        if (verbs_sim.registered_bytes > cost.pinned)
            heard = 0;
        for (int r = 1; r < c.n; r++)
            heard += c.heard[r];
    }
    cost.queue_pairs = verbs_sim.by_hand;
    cost.executed = verbs_sim.executed;
    if (strangers)
        cr_assert_gt(((struct vb_tp *)c.tp[0])->turned_away, 0u, "no stranger was heard");
    for (int i = 0; i < IDLE && (uint64_t)i < f.made; i++)
        close(f.fd[i]);
    crowd_close(&c);
    return cost;
}

/* Neither is a rank kept from another by strangers, nor does their number cost queue pairs or
 * locked memory. The time is that which passes in the test, not the machine's. */
Test(verbs_many, first_lanes_are_opened_through_a_flood)
{
    const char *how = getenv("BANYAN_VERBS");
    struct cost calm, flood;

    if (verbs_real_device() || (how && strstr(how, "connect=cm"))) /* rdma_cm makes no offers */
        return;
    setenv("BANYAN_TEST_CROWD", "3", 1);
    setenv("BANYAN_DEBUG", "error", 1);
    calm = first_messages(0);
    flood = first_messages(1);
    fprintf(stderr, "# %u rounds, beside strangers %u\n", calm.rounds, flood.rounds);
    cr_assert_eq(flood.queue_pairs, calm.queue_pairs);
    cr_assert_eq(flood.pinned, calm.pinned);
    cr_assert_eq(flood.executed, calm.executed);
    cr_assert_leq(5 * (COMPUTES_S * ROUNDS_S + flood.rounds),
                  6 * (COMPUTES_S * ROUNDS_S + calm.rounds),
                  "they are delayed: %u rounds, not %u", flood.rounds, calm.rounds);
}

/* A machine with so much to do that each look at all takes so long. */
Test(verbs_many, all_come_where_everything_takes_long)
{
    static struct crowd c;

    if (verbs_real_device())
        return;
    crowd_open(&c, 1);
    all_come(&c, SECOND * 9 / 10);
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
    crowd_open(&c, 1);
    all_ask(&c);
    if (((struct vb_tp *)c.tp[0])->how ==
        VB_HOW_QP) { /* over rdma_cm they have asked already */
        hub_looks(&c);
        crowd_poll(&c, 1); /* their offers, which had to wait for that */
    }
    e = hub_of(&c, c.n - 1); /* the last one to ask */
    for (uint32_t k = 0; k < 3; k++) {
        uint64_t begun = bny_now_ns();

        /* the others say nothing, so that no place is free again */
        for (int i = 0; i < 3 && e->state == VB_ASKING; i++) {
            hub_looks(&c);
            cr_assert_eq(c.ops->poll(e->ep.tp, ev, 8), 0);
        }
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
