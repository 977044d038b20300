/* SPDX-License-Identifier: BSD-3-Clause */
/* Transport ud over the simulated device: what the transports' conformance and traffic tests do
 * not ask. Time is what each test says. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "tests/support/key.h"
#include "tests/support/tpset.h"
#include "tests/support/verbs_sim.h"
#include "transport/datagram/dgram.h"
#include "transport/ud/ud.h"

#define PEERS 512

static const struct bny_transport_ops *ud;
static uint64_t ahead_ns; /* of the clock */
static int by_calls; /* it goes on by 0.5 us with each look at it: no machine is too busy */

int __real_clock_gettime(clockid_t which, struct timespec *t);
int __wrap_clock_gettime(clockid_t which, struct timespec *t);
int __wrap_clock_gettime(clockid_t which, struct timespec *t)
{
    int rc = __real_clock_gettime(which, t);
    uint64_t ns = (uint64_t)t->tv_nsec + ahead_ns;

    if (by_calls) {
        static uint64_t calls;

        t->tv_sec = 1000;
        ns = ++calls * 500;
    }

    t->tv_sec += (time_t)(ns / 1000000000u);
    t->tv_nsec = (long)(ns % 1000000000u);
    return rc;
}

static void set_up(void)
{
    ud = bny_transport_find("ud");
    set_key("BANYAN_UD=check", "none");
    set_key("BANYAN_UD=memory", "12M");
}

TestSuite(ud, .init = set_up, .timeout = 120);

static struct dp_ep *inside(struct bny_ep *ep)
{
    return (struct dp_ep *)ep;
}

static struct bny_dgram_port *port_of(struct bny_tp *tp)
{
    return ((struct dp_tp *)tp)->port;
}

static struct bny_tp *made(int rank, int nranks, const char *secret, const char *ifname)
{
    uint8_t key[32] = { 0 };
    struct bny_tp_config cfg = {
        .rank = rank,
        .nranks = nranks,
        .nlocal = 1,
        .secret = key,
        .ifname = ifname,
    };
    struct bny_tp *tp = NULL;

    snprintf((char *)key, sizeof key, "%s", secret);
    cr_assert_eq(ud->create(&tp, &cfg), 0, "%s", banyan_last_error());
    return tp;
}

static struct bny_ep *joined(struct bny_tp *tp, struct bny_tp *to)
{
    uint8_t blob[BNY_ADDR_MAX];
    int len = ud->address(to, blob, sizeof blob);
    struct bny_ep *ep = NULL;

    cr_assert_gt(len, 0);
    cr_assert_eq(ud->connect(tp, to->rank, blob, (size_t)len, &ep), 0, "%s",
                 banyan_last_error());
    return ep;
}

/* Sends `n` messages of `len` bytes from 0 to 1, and reads each as soon as it comes. */
static void stream(struct tpset *s, uint32_t n, uint32_t len)
{
    uint8_t *buf = malloc(len), *got = malloc(len);

    for (uint32_t i = 0; i < n; i++) {
        struct bny_hdr hdr = tpset_hdr((int)(i % BNY_CHANNELS), i, len);
        struct bny_msg *msg;

        tpset_fill(buf, len, 0, 1, i);
        tpset_send(s, 0, 1, &hdr, buf, buf);
        msg = tpset_wait(s, 1, BNY_EV_MSG).msg;
        tpset_read(s, msg, got, 1 << 16, 0);
        cr_assert_eq(tpset_check(got, len, 0, 1, i), -1, "message %u", i);
        ud->release(msg);
        tpset_wait(s, 0, BNY_EV_SENT);
    }
    free(buf);
    free(got);
}

/* Half of all datagrams are overtaken by up to 200 others. */
Test(ud, srd_that_reorders_sends_nothing_again)
{
    struct tpset s;

    by_calls = 1;
    setenv("BANYAN_TEST_SRD", "1", 1);
    tpset_open(&s, ud, 2, NULL);
    stream(&s, 20, 1 << 20);
    cr_assert_gt(verbs_sim.ud_overtaken, 1000u);
    cr_assert_eq(inside(s.ep[0][1])->tx.resent, 0u);
    cr_assert_eq(inside(s.ep[0][1])->tx.timeouts, 0u);
    cr_assert_gt(inside(s.ep[0][1])->frame, 8900u, "as long as the device's datagrams");
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
}

Test(ud, what_gets_lost_is_sent_again)
{
    struct tpset s;

    setenv("BANYAN_TEST_LOSSY", "3", 1);
    tpset_open(&s, ud, 2, NULL);
    stream(&s, 20, 1 << 20);
    cr_assert_gt(verbs_sim.ud_lost, 100u);
    cr_assert_geq(inside(s.ep[0][1])->tx.resent, verbs_sim.ud_lost / 4);
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
    cr_assert_eq(verbs_sim.overflows, 0u);
}

Test(ud, a_queue_pair_that_breaks_begins_anew)
{
    struct tpset s;

    tpset_open(&s, ud, 2, NULL);
    stream(&s, 3, 1 << 18);
    verbs_sim.ud_fail = verbs_sim.ud_sent + 100;
    stream(&s, 10, 1 << 18);
    cr_assert_eq(verbs_sim.resets, 1u); /* what comes late of the one before breaks nothing */
    for (int r = 0; r < 2; r++)
        cr_assert_eq(port_of(s.tp[r])->posted + port_of(s.tp[r])->nidle,
                     port_of(s.tp[r])->nplaces, "rank %d lost places", r);
    cr_assert_eq(port_of(s.tp[0])->restarts + port_of(s.tp[1])->restarts, 1u);
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN) + tpset_count(&s, 1, BNY_EV_DOWN), 0);
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
}

Test(ud, a_queue_pair_that_does_not_begin_anew_ends_its_peers)
{
    struct bny_event ev;
    struct tpset s;

    tpset_open(&s, ud, 2, NULL);
    stream(&s, 1, 100);
    port_of(s.tp[0])->broken = 1;
    verbs_sim.fail_call = verbs_sim.calls + 2; /* it looks at the port first */
    ev = tpset_wait(&s, 0, BNY_EV_DOWN);
    cr_assert_str_eq(verbs_sim.failed, "ibv_modify_qp");
    cr_assert(strstr(ev.reason, "accepts nothing any more"), "%s", ev.reason);
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
}

/* A queue pair that breaks as soon as it is begun anew would be begun for ever. */
Test(ud, a_queue_pair_that_breaks_again_and_again_ends_its_peers)
{
    struct bny_event ev;
    struct tpset s;

    tpset_open(&s, ud, 2, NULL);
    stream(&s, 1, 100);
    for (int i = 0; i < 10000 && !port_of(s.tp[0])->dead; i++) {
        port_of(s.tp[0])->broken = 1;
        ahead_ns += 1000000;
        tpset_step(&s);
    }
    cr_assert_leq(port_of(s.tp[0])->restarts, 510u);
    ev = tpset_wait(&s, 0, BNY_EV_DOWN);
    cr_assert(strstr(ev.reason, "accepts nothing any more"), "%s", ev.reason);
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
}

/* As while an interface is down, or up and without its route yet: each frame breaks the queue
 * pair. No number of these ends anything, nor how long the port is down. */
Test(ud, breaks_in_a_short_time_or_while_the_port_is_down_end_nothing)
{
    struct bny_dgram_port *p;
    struct tpset s;
    uint64_t restarts;

    tpset_open(&s, ud, 2, NULL);
    stream(&s, 1, 100);
    p = port_of(s.tp[0]);
    for (int down = 0; down < 2; down++) {
        verbs_sim.port_down = down;
        restarts = p->restarts;
        for (int i = 0; i < 1000; i++) {
            p->broken = 1;
            ahead_ns += down ? 10000000 : 1000;
            tpset_step(&s);
            cr_assert(!p->dead, "after %d breaks", i + 1);
        }
        cr_assert(down ? p->restarts == restarts : p->restarts > restarts);
        verbs_sim.port_down = 0;
        ahead_ns += 20000000;
        stream(&s, 3, 1 << 16);
        cr_assert_eq(p->broken, 0);
    }
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN) + tpset_count(&s, 1, BNY_EV_DOWN), 0);
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
}

static void event_is_taken(struct tpset *s)
{
    for (int i = 0; i < 100000 && (verbs_sim.event || verbs_sim.broken_cq); i++) {
        ahead_ns += 1000000;
        tpset_step(s);
    }
    cr_assert(!verbs_sim.event && !verbs_sim.broken_cq, "nobody listens to the device");
}

/* Nothing would come any more, and the port may still call itself up. */
Test(ud, a_device_that_fails_ends_its_peers)
{
    for (int of_cq = 0; of_cq < 2; of_cq++) {
        struct bny_event ev;
        struct tpset s;

        tpset_open(&s, ud, 2, NULL);
        stream(&s, 1, 100);
        s.paused[1] = 1; /* it has the device, too */
        if (of_cq)
            verbs_sim.broken_cq = port_of(s.tp[0])->rcq;
        else
            verbs_sim.event = (int)IBV_EVENT_DEVICE_FATAL + 1;
        event_is_taken(&s);
        ev = tpset_wait(&s, 0, BNY_EV_DOWN);
        cr_assert(strstr(ev.reason, "accepts nothing any more"), "%s", ev.reason);
        tpset_close(&s);
        cr_assert_eq(verbs_sim.open, 0);
    }
}

/* The kernel filled the table anew, as after ip link down and up: the same GID at another
 * place. */
Test(ud, a_gid_that_moves_is_found_again)
{
    struct tpset s;

    memset(verbs_sim.gids, 0, sizeof verbs_sim.gids);
    verbs_sim.gids[1].raw[0] = 0xfd;
    verbs_sim.gids[1].raw[15] = 1;
    verbs_sim.gids[1].type = IBV_GID_TYPE_ROCE_V2;
    tpset_open(&s, ud, 2, NULL);
    stream(&s, 3, 1 << 16);
    verbs_sim.gids[3] = verbs_sim.gids[1];
    memset(&verbs_sim.gids[1], 0, sizeof verbs_sim.gids[1]);
    for (int r = 0; r < 2; r++) { /* both have the device, and one of them takes an event */
        s.paused[!r] = 1;
        verbs_sim.event = (int)IBV_EVENT_GID_CHANGE + 1;
        event_is_taken(&s);
        s.paused[!r] = 0;
        cr_assert_eq(port_of(s.tp[r])->rail.port.gids[0].index, 3);
    }
    stream(&s, 3, 1 << 16);
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
}

static int is_readable(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };

    return poll(&p, 1, 0) == 1;
}

Test(ud, who_sleeps_is_woken_by_a_frame)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    uint8_t buf[100] = { 5 };
    struct bny_event ev[8];
    struct tpset s;
    int fd, n;

    tpset_open(&s, ud, 2, NULL);
    stream(&s, 2, 100);
    for (int i = 0; i < 3; i++) {
        for (;;) {
            ud->disarm(s.tp[1]); /* of a frame that came since it was armed */
            if (ud->arm(s.tp[1], &fd, 1, &n) == DP_SLEEP_NS)
                break;            /* nothing is due any more */
            ahead_ns += 20000000; /* rank 0 sends again what is not acknowledged */
            tpset_step(&s);
        }
        cr_assert_eq(n, 1);
        cr_assert_eq(ud->poll(s.tp[1], ev, 8), 0);
        cr_assert(!is_readable(fd));
        tpset_eager(&s, 0, 1, &hdr, buf);
        cr_assert(is_readable(fd));
        ud->disarm(s.tp[1]);
        cr_assert(!is_readable(fd));
        cr_assert_lt(ud->arm(s.tp[0], &fd, 1, &n), DP_SLEEP_NS, "it waits for news of it");
        ud->disarm(s.tp[0]);
        ud->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    }
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
}

/* The kernel has no hardware address for a while. */
Test(ud, a_way_that_is_refused_is_tried_again)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    uint8_t buf[100] = { 5 };
    struct tpset s;

    tpset_open(&s, ud, 2, NULL);
    verbs_sim.no_ah = ETIMEDOUT;
    tpset_eager(&s, 0, 1, &hdr, buf);
    for (int i = 0; i < 500; i++)
        tpset_step(&s);
    cr_assert_eq(verbs_sim.ahs_open, 0);
    verbs_sim.no_ah = 0;
    ud->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    while (verbs_sim.ahs_open < 2) /* its acknowledgement */
        tpset_step(&s);
    tpset_close(&s);
}

Test(ud, a_way_that_stays_refused_is_told)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    uint8_t buf[100] = { 5 };
    struct bny_event ev;
    struct tpset s;

    tpset_open(&s, ud, 2, NULL);
    verbs_sim.no_ah = ETIMEDOUT;
    tpset_eager(&s, 0, 1, &hdr, buf);
    for (int i = 0; i < 200; i++)
        tpset_step(&s);
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN), 0);
    ahead_ns = 16000000000u;
    ev = tpset_wait(&s, 0, BNY_EV_DOWN);
    cr_assert(strstr(ev.reason, "finds no route") && strstr(ev.reason, "not resolved"), "%s",
              ev.reason);
    tpset_close(&s);
}

/* The path takes less than both ports. */
Test(ud, long_datagrams_that_do_not_pass_are_not_sent)
{
    struct tpset s;

    verbs_sim.lost_above = 2000;
    tpset_open(&s, ud, 2, NULL);
    stream(&s, 4, 1 << 18);
    cr_assert_leq(inside(s.ep[0][1])->frame, 2000u);
    tpset_close(&s);
    verbs_sim.lost_above = 0;
    tpset_open(&s, ud, 2, NULL);
    stream(&s, 4, 1 << 18);
    cr_assert_eq(inside(s.ep[0][1])->frame, 4096u + BNY_DGRAM_ETH);
    tpset_close(&s);
}

/* Rank 2's messages come, whatever rank 1's hold. */
Test(ud, messages_that_wait_do_not_use_the_pool_up)
{
    struct bny_msg *held[400];
    uint8_t buf[2000], got[2000];
    struct tpset s;

    set_key("BANYAN_UD=memory", "1M");
    tpset_open(&s, ud, 3, NULL);
    cr_assert_lt(port_of(s.tp[0])->nplaces, 200u);
    for (uint32_t i = 0; i < 400; i++) {
        struct bny_hdr hdr = tpset_hdr(0, i, sizeof buf);

        tpset_fill(buf, sizeof buf, 1, 0, i);
        tpset_eager(&s, 1, 0, &hdr, buf);
        held[i] = tpset_wait(&s, 0, BNY_EV_MSG).msg;
    }
    cr_assert_gt(port_of(s.tp[0])->copied, 200u);
    for (uint32_t i = 0; i < 50; i++) {
        struct bny_hdr hdr = tpset_hdr(0, i, sizeof buf);
        struct bny_msg *msg;

        tpset_fill(buf, sizeof buf, 2, 0, i);
        tpset_eager(&s, 2, 0, &hdr, buf);
        msg = tpset_wait(&s, 0, BNY_EV_MSG).msg;
        tpset_read(&s, msg, got, sizeof got, 0);
        cr_assert_eq(tpset_check(got, sizeof got, 2, 0, i), -1);
        ud->release(msg);
    }
    for (uint32_t i = 0; i < 400; i++) {
        cr_assert_eq(tpset_check(held[i]->data, sizeof buf, 1, 0, i), -1);
        ud->release(held[i]);
    }
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0);
}

Test(ud, registered_memory_is_sent_from_where_it_lies)
{
    uint32_t len = 1 << 20;
    uint64_t before, pinned;
    uint8_t *user = malloc(len);
    struct bny_hdr hdr = tpset_hdr(0, 1, len);
    struct tpset s;
    void *ours;

    tpset_open(&s, ud, 2, NULL);
    stream(&s, 4, 1 << 16); /* frames have their length */
    pinned = bny_counter_read(&s.tp[0]->pinned_bytes);
    cr_assert_eq(ud->mem_alloc(s.tp[0], len, &ours), 0);
    cr_assert_eq(ud->attach(s.tp[0], user, len), 0);
    cr_assert_eq(bny_counter_read(&s.tp[0]->pinned_bytes), pinned + 2 * (uint64_t)len);
    for (int i = 0; i < 2; i++) {
        uint8_t *buf = i ? user : ours;

        before = bny_counter_read(&s.tp[0]->staged_bytes);
        tpset_fill(buf, len, 0, 1, 1);
        tpset_send(&s, 0, 1, &hdr, buf, buf);
        ud->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        tpset_wait(&s, 0, BNY_EV_SENT);
        cr_assert_leq(bny_counter_read(&s.tp[0]->staged_bytes), before + 4096);
    }
    cr_assert_eq(ud->detach(s.tp[0], user), 0);
    cr_assert_eq(ud->mem_free(s.tp[0], ours), 0);
    cr_assert_eq(bny_counter_read(&s.tp[0]->pinned_bytes), pinned);
    tpset_close(&s);
    free(user);
    cr_assert_eq(verbs_sim.open, 0);
}

/* Somebody who knows our address, not the job's secret; then one who does not know the key. */
Test(ud, datagrams_of_strangers_are_dropped)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 100);
    struct bny_tp *tp, *other, *stranger;
    uint8_t buf[100] = { 5 };
    struct bny_event ev[8];
    struct bny_ep *ep;

    verbs_sim_use();
    tp = made(0, 2, "ours", "lo");
    other = made(1, 2, "ours", "lo");
    stranger = made(1, 2, "theirs", "lo");
    joined(tp, other);
    ep = joined(stranger, tp);
    cr_assert_eq(ud->eager(ep, &hdr, buf), 0);
    for (int i = 0; i < 200; i++) {
        cr_assert_eq(ud->poll(tp, ev, 8), 0);
        cr_assert_eq(ud->poll(stranger, ev, 8), 0);
    }
    cr_assert_gt(((struct dp_tp *)tp)->drops[BNY_DGRAM_BAD_TAG], 0u);
    cr_assert_eq(verbs_sim.ud_bad_key, 0u);
    port_of(stranger)->ways[0].addr->qkey ^= 1;
    ahead_ns = 1000000000u; /* it says it again */
    for (int i = 0; i < 200; i++)
        cr_assert_eq(ud->poll(stranger, ev, 8), 0);
    cr_assert_gt(verbs_sim.ud_bad_key, 0u);
    ud->destroy(stranger);
    ud->destroy(other);
    ud->destroy(tp);
    cr_assert_eq(verbs_sim.open, 0);
}

Test(ud, other_partitions_and_kinds_are_not_reached)
{
    uint8_t blob[BNY_ADDR_MAX];
    struct bny_tp *a, *b;
    struct ud_addr *at = (struct ud_addr *)(void *)(blob + sizeof(struct dp_blob));
    size_t len;

    verbs_sim_use();
    a = made(0, 2, "ours", "lo");
    b = made(1, 2, "ours", "lo");
    len = (size_t)ud->address(b, blob, sizeof blob);
    cr_assert_eq(ud->reachable(a, 1, blob, len), 1);
    at->srd = 1;
    cr_assert_eq(ud->reachable(a, 1, blob, len), 0);
    at->srd = 0;
    at->pkey = 0x8001;
    cr_assert_eq(ud->reachable(a, 1, blob, len), 0);
    at->pkey = 0xffff;
    at->ngids = 1;
    at->gids[0].type = IBV_GID_TYPE_IB;
    cr_assert_eq(ud->reachable(a, 1, blob, len), 0);
    at->ngids = VB_GIDS + 1;
    cr_assert_eq(ud->reachable(a, 1, blob, len), 0);
    ud->destroy(a);
    ud->destroy(b);
}

Test(ud, the_device_is_the_one_that_is_named)
{
    struct bny_tp *tp;

    verbs_sim.devices = 3;
    verbs_sim_use();
    tp = made(0, 2, "ours", "sim2:1");
    cr_assert_str_eq(port_of(tp)->rail.at, "sim2 port 1");
    ud->destroy(tp);
}

/* Where none is named: as verbs has it, the nearest, and what is equally near by turns. */
Test(ud, ranks_of_a_host_share_its_devices)
{
    static const char *const want[] = { "sim0 port 1", "sim1 port 1", "sim2 port 1",
                                        "sim0 port 1" };
    struct bny_tp *tp[4];
    uint8_t blob[BNY_ADDR_MAX];

    verbs_sim = (struct verbs_sim){ .devices = 3, .one_network = 1, .link_ib = 1, .lid = 7 };
    verbs_sim.gids[0].raw[0] = 0xfe;
    verbs_sim.gids[0].raw[1] = 0x80;
    verbs_sim.gids[0].raw[15] = 1;
    verbs_sim.gids[0].type = IBV_GID_TYPE_IB;
    verbs_sim_use();
    set_key("BANYAN_VERBS=devices", "1");
    unsetenv("BANYAN_RANK");
    for (int r = 0; r < 4; r++) {
        tp[r] = made(r, 4, "ours", "");
        cr_assert_str_eq(port_of(tp[r])->rail.at, want[r], "rank %d: %s", r,
                         port_of(tp[r])->rail.at);
    }
    for (int r = 0; r < 4; r++)
        for (int peer = 0; peer < 4; peer++) {
            int len = ud->address(tp[peer], blob, sizeof blob);

            cr_assert(peer == r || ud->reachable(tp[r], peer, blob, (size_t)len));
        }
    for (int r = 0; r < 4; r++)
        ud->destroy(tp[r]);
}

/* Each call of the libraries fails once. */
Test(ud, what_fails_at_init_is_told_and_given_back)
{
    uint8_t key[32] = { 1 };
    struct bny_tp_config cfg = { .nranks = 2, .secret = key, .ifname = "lo" };
    struct bny_tp *tp = NULL;
    int failures = 0;

    verbs_sim_use();
    for (uint64_t n = 1;; n++) {
        int rc;

        verbs_sim.fail_call = verbs_sim.calls + n;
        verbs_sim.failed = NULL;
        rc = ud->create(&tp, &cfg);
        if (!verbs_sim.failed) {
            cr_assert_eq(rc, 0, "%s", banyan_last_error());
            ud->destroy(tp);
            break;
        }
        if (rc == 0)
            ud->destroy(tp);
        else
            cr_assert(strstr(banyan_last_error(), "rank 0"), "%s: %s", verbs_sim.failed,
                      banyan_last_error());
        failures += rc != 0;
        cr_assert_eq(verbs_sim.open, 0, "%s", verbs_sim.failed);
    }
    cr_assert_geq(failures, 9);
}

static uint64_t hub_of(int peers)
{
    struct bny_tp *hub, **tp = calloc((size_t)peers, sizeof *tp);
    struct bny_ep **there = calloc((size_t)peers, sizeof *there),
                  **back = calloc((size_t)peers, sizeof *back);
    struct bny_hdr hdr = tpset_hdr(0, 1, 3000);
    int asked = 0, answered = 0, open;
    uint8_t buf[3000];
    struct bny_event ev[64];
    uint64_t pinned;

    set_key("BANYAN_UD=memory", "12M");
    hub = made(0, peers + 1, "ours", "lo");
    open = verbs_sim.open;
    set_key("BANYAN_UD=memory", "1M");
    for (int i = 0; i < peers; i++)
        tp[i] = made(i + 1, peers + 1, "ours", "lo");
    for (int i = 0; i < peers; i++) {
        there[i] = joined(tp[i], hub);
        back[i] = joined(hub, tp[i]);
        tpset_fill(buf, sizeof buf, i + 1, 0, 1);
        cr_assert_eq(ud->eager(there[i], &hdr, buf), 0);
    }
    while (answered < peers) { /* all ask at once, and each is answered */
        int n = ud->poll(hub, ev, 64);

        for (int k = 0; k < n; k++) {
            int from = ev[k].ep->peer;

            cr_assert_eq(ev[k].kind, BNY_EV_MSG);
            cr_assert_eq(tpset_check(ev[k].msg->data, sizeof buf, from, 0, 1), -1);
            ud->release(ev[k].msg);
            tpset_fill(buf, sizeof buf, 0, from, 1);
            cr_assert_eq(ud->eager(back[from - 1], &hdr, buf), 0);
            asked++;
        }
        for (int i = 0; i < peers; i++) {
            n = ud->poll(tp[i], ev, 1);
            if (n == 0)
                continue;
            cr_assert_eq(tpset_check(ev[0].msg->data, sizeof buf, 0, i + 1, 1), -1);
            ud->release(ev[0].msg);
            answered++;
        }
    }
    cr_assert_eq(asked, peers);
    pinned = bny_counter_read(&hub->pinned_bytes);
    for (int i = 0; i < peers; i++)
        ud->destroy(tp[i]);
    /* one handle a peer is all that it cost the device, and the messages' memory of a few */
    cr_assert_eq(verbs_sim.open - open, verbs_sim.ahs_open + (peers < 21 ? peers : 0));
    cr_assert_eq(verbs_sim.ahs_open, peers);
    cr_log_info("%d peers: %.1f MiB", peers, (double)pinned / (1 << 20));
    ud->destroy(hub);
    cr_assert_eq(verbs_sim.open, 0);
    free(tp);
    free(there);
    free(back);
    return pinned;
}

/* What docs/rdma.md says of it. */
Test(ud, hundreds_of_peers_share_one_queue_pair_and_its_memory)
{
    uint64_t most = 12u << 20;

    verbs_sim_use();
    cr_assert_leq(hub_of(1), most + DP_EP_BYTES);
    cr_assert_leq(hub_of(20), most + 20u * DP_EP_BYTES);
    cr_assert_leq(hub_of(64), most);
    cr_assert_leq(hub_of(PEERS), most);
}
