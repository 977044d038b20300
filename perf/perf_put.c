/* SPDX-License-Identifier: BSD-3-Clause */
/* put_bw and put_lat: the windows of the transport contract, between 2 ranks, without the
 * engine. put_bw   rank 0 puts a batch (of large ones: over a device only) into rank 1's
 * window; the clock stops when rank 1 has answered that the last one arrived. put_lat  the two
 * put to each other in turn; half a round trip: over a device the median of 64, else the mean
 * of 16. The transport instance is our own: the communicator only carries the addresses. */
#include <poll.h>
#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/param.h"
#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "perf/perf.h"
#include "transport/transport.h"

#define PUT_TIMEOUT_S 30.0
/* Under way together where a device moves them: a bandwidth is that of a stream. */
#define STREAM_BYTES (8u << 20)
#define STREAM_MOST  64u
#define ROUNDS       64 /* of put_lat over a device, each timed by itself */

static _Thread_local struct { /* of this rank */
    const struct bny_transport_ops *ops;
    struct bny_tp *tp;
    struct bny_ep *ep;
    char *mem; /* [cap], the window */
    size_t cap;
    struct bny_window mine, theirs;
    uint64_t arrived, answered, sent_done;
    char *send;              /* what is sent: the run's buffer, or memory of the transport */
    struct bny_msg *reading; /* without windows: a message that is still arriving */
    uint32_t read;
    int adds;          /* it is added to mem, as a reduction would; else copied */
    int naps;          /* waits sleep after a while: streams over a device */
    void *attached[2]; /* buffers that the device knows */
} put;

/* What one rank tells the other at set-up. */
struct put_card {
    uint32_t len, pad;
    unsigned char blob[BNY_ADDR_MAX];
    unsigned char secret[32]; /* rank 0's counts */
    struct bny_window window;
};

/* A transport without windows: messages instead, which the receiver adds to its memory straight
 * from where the transport lends them. */
static int by_messages(void)
{
    return !(put.ops->caps & BNY_TP_PUT);
}

/* Uses what has arrived of the first message. 1: all of it, 0: not yet, or an error. */
static int take_first(void)
{
    static const struct bny_redop sum = { .kind = BANYAN_SUM };
    struct bny_msg *m = put.reading;

    while (put.read < m->hdr.len) {
        const void *ptr = (const char *)m->data + put.read;
        long n = m->hdr.len - put.read;
        char *at = put.mem + put.read;

        if (!m->data)
            n = put.ops->view(m, put.read, (uint32_t)n, put.adds ? NULL : at, &ptr);
        if (n == BNY_AGAIN)
            return 0;
        if (n < 0)
            return (int)n;
        if (put.adds)
            bny_redop_run(&sum, BANYAN_F32, at, at, ptr, (size_t)n / 4);
        else if (m->data)
            memcpy(at, ptr, (size_t)n);
        put.read += (uint32_t)n;
    }
    put.reading = m->next;
    put.read = 0;
    put.ops->release(m);
    put.arrived++;
    return 1;
}

/* In the order in which they came. 0, or an error. */
static int take_in(void)
{
    int rc = 1;

    while (put.reading && rc > 0)
        rc = take_first();
    return rc < 0 ? rc : 0;
}

/* The first of a message, perhaps before the last of the one before it. */
static int begin(struct bny_msg *m)
{
    struct bny_msg **last = &put.reading;

    if (m->hdr.len > put.cap)
        return bny_fail(BANYAN_EPROTO, "a message is longer than the buffer");
    while (*last)
        last = &(*last)->next;
    m->next = NULL;
    *last = m;
    return take_in();
}

/* One poll: counts arrivals, answers and completed puts. */
static int turn(void)
{
    struct bny_event ev[16];
    int n = put.ops->poll(put.tp, ev, 16);

    for (int i = 0; i < n; i++) {
        if (ev[i].kind == BNY_EV_DOWN)
            return bny_fail(BANYAN_ERANKDEAD, "the other rank is gone: %s", ev[i].reason);
        if (ev[i].kind == BNY_EV_SENT) {
            put.sent_done++;
        } else if (ev[i].kind == BNY_EV_MSG) {
            int rc = 0;

            if (ev[i].msg->hdr.kind == BNY_MSG_PUT && by_messages()) {
                rc = begin(ev[i].msg);
                if (rc < 0)
                    return rc;
                continue;
            }
            if (ev[i].msg->hdr.kind == BNY_MSG_PUT)
                put.arrived++;
            else
                put.answered++;
            put.ops->release(ev[i].msg);
        }
    }
    if (put.reading) {
        int rc = take_in();

        if (rc < 0)
            return rc;
    }
    return n < 0 ? n : 0;
}

/* Our own transport goes on meanwhile: the other rank may wait for what it has still to send.
 */
static int swap_cards(struct perf_run *run, struct put_card *both, const struct put_card *me)
{
    struct banyan_request *req;
    int done = 0,
        rc = banyan_allgather_init(me, both, sizeof *me, BANYAN_U8, run->comm, NULL, &req);

    if (rc < 0)
        return rc;
    rc = banyan_start(req);
    while (rc >= 0 && !done) {
        rc = banyan_test(req, &done);
        if (rc >= 0 && put.ep)
            rc = turn();
    }
    banyan_request_free(req);
    return rc;
}

/* Sleeps until something comes: a stream's receiver must not take the CPU from a device that is
 * software. */
static void nap(void)
{
    struct pollfd p[8];
    int fds[8], n = 0;
    uint64_t most = put.ops->arm(put.tp, fds, 8, &n);

    for (int i = 0; i < n; i++)
        p[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
    if (most)
        poll(p, (nfds_t)n, most < 10000000u ? 1 : 10);
    put.ops->disarm(put.tp);
}

static int wait_for(const uint64_t *counter, uint64_t value)
{
    uint64_t deadline = 0;
    unsigned spins = 0;

    while (*counter < value) {
        int rc = turn();

        if (rc < 0)
            return rc;
        if (++spins & 1023)
            continue;
        if (put.naps)
            nap();
        else
            sched_yield(); /* a soft-RoCE device is another thread of this machine */
        if (!deadline)
            deadline = bny_deadline_in(PUT_TIMEOUT_S);
        if (bny_deadline_passed(deadline))
            return bny_fail(BANYAN_ETIMEDOUT, "a put was not answered within %g s",
                            PUT_TIMEOUT_S);
    }
    return 0;
}

static int try_put(struct perf_run *run, uint32_t bytes)
{
    struct bny_hdr hdr = { .kind = BNY_MSG_PUT,
                           .codec_len_raw = bytes,
                           .len = by_messages() ? bytes : 0 };
    int rc;

    if (!by_messages())
        return put.ops->put(put.ep, &hdr, put.send, bytes, &put.theirs, 0, run);
    if (bytes > put.ep->eager_max)
        return put.ops->send(put.ep, &hdr, put.send, run);
    rc = put.ops->eager(put.ep, &hdr, put.send);
    put.sent_done += rc == 0;
    return rc;
}

static int put_one(struct perf_run *run, uint32_t bytes)
{
    int rc;

    while ((rc = try_put(run, bytes)) == BNY_AGAIN)
        if ((rc = turn()) < 0)
            return rc;
    return rc;
}

static int answer(void)
{
    struct bny_hdr hdr = { .kind = BNY_MSG_DATA };
    int rc;

    while ((rc = put.ops->eager(put.ep, &hdr, NULL)) == BNY_AGAIN)
        if ((rc = turn()) < 0)
            return rc;
    return rc;
}

/* Connections are made on first use: a greeting each way, so that the first put finds one. */
static int greet(void)
{
    uint64_t answered = put.answered;
    int rc = answer();

    return rc < 0 ? rc : wait_for(&put.answered, answered + 1);
}

/* A device reads and writes only memory that it knows. */
static int attach(void *mem, size_t bytes)
{
    int i = put.attached[0] != NULL, rc;

    if (!(put.ops->caps & BNY_TP_ATTACH))
        return 0;
    rc = put.ops->attach(put.tp, mem, bytes);
    if (rc == 0)
        put.attached[i] = mem;
    return rc;
}

static int open_window(struct bny_window *out)
{
    int rc;

    memset(out, 0, sizeof *out);
    if (by_messages())
        return 0;
    while ((rc = put.ops->window_open(put.ep, put.mem, put.cap, out)) == BNY_AGAIN)
        if ((rc = turn()) < 0)
            return rc;
    return rc;
}

static int set_up(struct perf_run *run)
{
    const char *name = strcmp(run->opts->transport, "auto") ? run->opts->transport : "shm";
    struct bny_tp_config cfg = { .rank = run->rank,
                                 .nranks = 2,
                                 .nlocal = 2,
                                 .port_range = "",
                                 .ifname = run->opts->device ? run->opts->device
                                                             : bny_param_str("BANYAN_IFNAME") };
    struct put_card me, both[2];
    uint64_t seed = bny_now_ns();
    int rc, len;

    put.ops = bny_transport_find(name);
    if (!put.ops || (by_messages() && strcmp(name, "dpdk") != 0 && strcmp(name, "ud") != 0))
        return bny_fail(BANYAN_ENOTSUP,
                        "transport %s has no windows to put into; use shm, verbs, ud or dpdk",
                        name);
    memset(&me, 0, sizeof me);
    for (int i = 0; i < 32; i++)
        me.secret[i] = (unsigned char)bny_rng_next(&seed);
    rc = swap_cards(run, both, &me);
    cfg.secret = both[0].secret;
    if (rc == 0)
        rc = put.ops->create(&put.tp, &cfg);
    if (rc < 0)
        return rc;
    len = put.ops->address(put.tp, me.blob, sizeof me.blob);
    if (len < 0)
        return len;
    me.len = (uint32_t)len;
    memcpy(me.secret, cfg.secret, sizeof me.secret);
    rc = swap_cards(run, both, &me);
    if (rc == 0)
        rc = put.ops->connect(put.tp, !run->rank, both[!run->rank].blob, both[!run->rank].len,
                              &put.ep);
    if (rc < 0)
        return rc;
    put.cap = run->buf.bytes;
    put.mem = run->buf.recv;
    if (run->opts->mem == PERF_BANYAN && (put.ops->caps & BNY_TP_MEM))
        rc = put.ops->mem_alloc(put.tp, put.cap, (void **)&put.mem);
    put.send = run->buf.send;
    if (run->opts->mem == PERF_BANYAN && by_messages() && rc == 0)
        rc = put.ops->mem_alloc(put.tp, run->buf.bytes, (void **)&put.send);
    if (rc == 0)
        rc = attach(put.mem, put.cap);
    if (rc == 0)
        rc = attach(run->buf.send, run->buf.bytes);
    if (rc == 0)
        rc = greet();
    if (rc == 0)
        rc = open_window(&me.window);
    put.mine = me.window;
    if (rc == 0)
        rc = swap_cards(run, both, &me);
    put.theirs = both[!run->rank].window;
    return rc;
}

/* batch puts one way, then the answer. */
static int one_way(struct perf_run *run, uint32_t bytes, int batch)
{
    uint64_t arrived = put.arrived, answered = put.answered, done = put.sent_done;
    int rc = 0;

    if (run->rank == 1) {
        rc = wait_for(&put.arrived, arrived + (uint64_t)batch);
        return rc < 0 ? rc : answer();
    }
    for (int i = 0; i < batch && rc == 0; i++)
        rc = put_one(run, bytes);
    if (rc == 0)
        rc = wait_for(&put.sent_done, done + (uint64_t)batch);
    return rc < 0 ? rc : wait_for(&put.answered, answered + 1);
}

/* rounds_us: NULL, or what each round took. */
static int ping_pong(struct perf_run *run, uint32_t bytes, int batch, double *rounds_us)
{
    uint64_t arrived = put.arrived, done = put.sent_done, t0 = bny_now_ns();
    int rc = 0;

    for (int i = 1; i <= batch && rc == 0; i++) {
        if (run->rank == 0)
            rc = put_one(run, bytes);
        if (rc == 0)
            rc = wait_for(&put.arrived, arrived + (uint64_t)i);
        if (rc == 0 && run->rank == 1)
            rc = put_one(run, bytes);
        if (rounds_us) {
            uint64_t t1 = bny_now_ns();

            rounds_us[i - 1] = (double)(t1 - t0) / 1000;
            t0 = t1;
        }
    }
    return rc < 0 ? rc : wait_for(&put.sent_done, done + (uint64_t)batch);
}

static int batch_of(uint32_t bytes, int latency)
{
    uint32_t n = STREAM_BYTES / (bytes ? bytes : 1);

    if (latency && (put.ops->caps & BNY_TP_ATTACH))
        return ROUNDS;
    if (bytes <= PERF_BATCH_BYTES)
        return PERF_BATCH;
    if (latency || !(put.ops->caps & BNY_TP_ATTACH))
        return 1;
    return n < 1 ? 1 : n > STREAM_MOST ? (int)STREAM_MOST : (int)n;
}

static int timed_loop(struct perf_run *run, struct perf_row *row, const struct perf_values *v,
                      int latency, struct perf_check *check)
{
    uint32_t bytes = (uint32_t)row->bytes;
    int batch = batch_of(bytes, latency), rc = 0;
    double rounds_us[ROUNDS], *rounds = latency && batch == ROUNDS ? rounds_us : NULL;
    struct perf_call call = {
        .recv = put.mem, .count = row->count, .rank = run->rank, .nranks = 2
    };

    put.adds = by_messages() && !latency && batch == 1 && !strcmp(row->dtype, "f32");
    put.naps = !latency && (put.ops->caps & BNY_TP_ATTACH);
    for (int it = -run->opts->warmup; it < row->iters && rc == 0; it++) {
        uint64_t t0;

        perf_values_fill(v, run->rank, 0, row->count, put.send);
        memset(put.mem, put.adds ? 0 : 0xa5, bytes);
        rc = banyan_barrier(run->comm, NULL);
        t0 = bny_now_ns();
        if (rc == 0)
            rc = latency ? ping_pong(run, bytes, batch, rounds) : one_way(run, bytes, batch);
        if (it >= 0)
            run->times_us[it] = (double)(bny_now_ns() - t0) / 1000 / batch / (latency ? 2 : 1);
        if (it >= 0 && rounds &&
            rc == 0) { /* as ib_write_lat does: a round that was interrupted does not count */
            perf_sort(rounds, ROUNDS);
            run->times_us[it] = rounds[ROUNDS / 2] / 2;
        }
        /* Rank 0 receives nothing in put_bw. */
        if (rc == 0 && run->opts->check && (latency || run->rank == 1))
            perf_values_check(v, run->opts->what, &call, check);
    }
    return rc;
}

int perf_put_row(struct perf_run *run, struct perf_row *row)
{
    int latency = !strcmp(row->collective, "put_lat"), rc = put.ep ? 0 : set_up(run);
    uint64_t wire;
    struct perf_check check = { 0 };
    struct perf_values v = { .spec = &run->opts->data,
                             .dtype = (enum banyan_dtype)perf_parse_dtype(row->dtype),
                             .nranks = 2,
                             .count = row->count,
                             .seed = row->bytes };
    double wrong;
    size_t n = (size_t)row->iters;

    if (rc < 0)
        return rc;
    if (row->bytes > (1u << 31))
        return bny_fail(BANYAN_EINVAL, "%s: one put carries at most 2G; use a smaller -e",
                        row->collective);
    wire = bny_counter_read(&put.tp->wire_bytes);
    rc = timed_loop(run, row, &v, latency, &check);
    wrong = (double)check.wrong;
    if (rc == 0)
        rc = banyan_allreduce(&wrong, &wrong, 1, BANYAN_F64, BANYAN_SUM, run->comm, NULL);
    if (rc == 0)
        rc = banyan_allreduce(run->times_us, run->times_us, n, BANYAN_F64, BANYAN_MAX,
                              run->comm, NULL);
    if (rc < 0)
        return rc;
    perf_sort(run->times_us, n);
    row->time_min_us = run->times_us[0];
    row->time_median_us = perf_percentile(run->times_us, n, 0.5);
    row->time_p99_us = perf_percentile(run->times_us, n, 0.99);
    row->algbw = row->busbw = (double)row->bytes / row->time_median_us / 1000;
    row->wire_bytes = bny_counter_read(&put.tp->wire_bytes) > wire ? row->bytes : 0;
    row->wire_busbw = row->algbw;
    row->wrong = run->opts->check ? (int64_t)wrong : -1;
    return 0;
}

void perf_put_finish(void)
{
    uint64_t deadline = bny_deadline_in(2);
    int rc = put.ep && !by_messages() ? put.ops->window_close(put.ep, &put.mine) : 0;

    while (rc == BNY_AGAIN && !bny_deadline_passed(deadline)) {
        turn();
        rc = put.ops->window_close(put.ep, &put.mine);
    }
    while (put.ep && put.ops->farewell(put.tp) == BNY_AGAIN && !bny_deadline_passed(deadline))
        turn();
    for (int i = 0; i < 2 && put.attached[i]; i++)
        put.ops->detach(put.tp, put.attached[i]);
    if (put.tp)
        put.ops->destroy(put.tp);
    memset(&put, 0, sizeof put);
}
