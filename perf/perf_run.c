/* SPDX-License-Identifier: BSD-3-Clause */
/* Times one size of one collective.
 *
 * The timed loop, the same as in perf/peers: every operation (below 32 KiB: every 16
 * operations) finds its buffers freshly written, because data that lies in the right cache
 * already makes any library look fast; then a barrier; then the clock is read around the
 * operations. An operation's time is that of the slowest rank. Checks stand outside the clock.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "perf/perf.h"

/* One row's call in both variants, with what must be rewritten before each operation. */
struct timed {
    struct perf_run *run;
    struct perf_row *row;
    const struct perf_case *pc;
    struct perf_call call;
    struct banyan_opts opts;
    struct banyan_codec_state *state; /* of the tensor; NULL: the codec wants none */
    struct perf_values values;
    size_t send_bytes, recv_bytes;
    int batch;
    struct perf_check check;
    int checked;   /* operations checked */
    uint64_t wire; /* payload bytes of this rank in timed operations */
    double cpu_s;
};

static int no_memory(size_t bytes)
{
    return bny_fail(BANYAN_ENOMEM,
                    "no memory for a buffer of %zu bytes, of three; use a smaller -e", bytes);
}

static int alloc_one(struct perf_run *run, void **out, int *fd, size_t bytes)
{
    if (run->opts->mem == PERF_BANYAN)
        return banyan_mem_alloc(run->comm, bytes, out);
    if (run->opts->mem == PERF_MALLOC) {
        *out = aligned_alloc(4096, bytes);
        return *out ? 0 : no_memory(bytes);
    }
    *fd = memfd_create("banyan_perf", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, (off_t)bytes) != 0)
        return bny_fail_errno("a memfd of %zu bytes for -R 1", bytes);
    *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (*out == MAP_FAILED) {
        *out = NULL;
        return no_memory(bytes);
    }
    return banyan_mem_register(run->comm, *out, bytes, *fd, 0);
}

static void free_one(struct perf_run *run, void *ptr, int fd)
{
    if (ptr && run->opts->mem == PERF_BANYAN) {
        banyan_mem_free(run->comm, ptr);
    } else if (ptr && run->opts->mem == PERF_REGISTERED) {
        banyan_mem_deregister(run->comm, ptr);
        munmap(ptr, run->buf.bytes);
    } else {
        free(ptr);
    }
    if (fd >= 0)
        close(fd);
}

int perf_buffers_alloc(struct perf_run *run, size_t bytes)
{
    int rc;

    run->buf = (struct perf_buffers){ .fd = { -1, -1 } };
    run->buf.bytes = (bytes + 4095 + 4096) & ~(size_t)4095;
    rc = alloc_one(run, &run->buf.send, &run->buf.fd[0], run->buf.bytes);
    if (rc == 0)
        rc = alloc_one(run, &run->buf.recv, &run->buf.fd[1], run->buf.bytes);
    run->buf.pristine = aligned_alloc(4096, run->buf.bytes);
    if (rc == 0 && !run->buf.pristine)
        rc = no_memory(run->buf.bytes);
    if (rc < 0)
        return rc;
    /* Pages are made now, not in the first timed operation. */
    memset(run->buf.send, 0, run->buf.bytes);
    memset(run->buf.recv, 0, run->buf.bytes);
    memset(run->buf.pristine, 0, run->buf.bytes);
    return 0;
}

void perf_buffers_free(struct perf_run *run)
{
    free_one(run, run->buf.send, run->buf.fd[0]);
    free_one(run, run->buf.recv, run->buf.fd[1]);
    free(run->buf.pristine);
    run->buf = (struct perf_buffers){ .fd = { -1, -1 } };
}

/* The op of this rank; mulsum's is created, and freed by drop_op. */
static int make_op(unsigned op, int rank, banyan_op *out)
{
    if (op == PERF_MULSUM)
        return banyan_op_create_premul_sum(perf_mulsum_scalar(rank), out);
    *out = op;
    return 0;
}

static void drop_op(unsigned op, banyan_op handle)
{
    if (op == PERF_MULSUM)
        banyan_op_free(handle);
}

/* The codec of the row, and a residual where the codec wants one: as in training, each
 * operation is given what the one before has lost. */
static int set_up_codec(struct timed *t)
{
    size_t count = t->pc->send_elems(&t->call);
    int rc =
        perf_codec_error(&t->values.codec, t->row->codec, t->pc, t->call.dtype, t->values.op);

    if (rc == 0 && t->values.codec.feeds)
        rc = banyan_codec_state_create(&t->state, count, t->row->bytes);
    t->opts.codec_state = t->state;
    return rc;
}

static int set_up(struct timed *t)
{
    struct perf_run *run = t->run;
    const struct perf_row *row = t->row;
    const struct perf_opts *o = run->opts;
    struct perf_call *c = &t->call;
    int dtype = perf_parse_dtype(row->dtype), op = perf_parse_op(row->op);
    size_t es = banyan_dtype_bytes((enum banyan_dtype)dtype);
    int rc;

    t->opts = (struct banyan_opts)BANYAN_OPTS_INIT;
    if (o->timeout_s > 0)
        t->opts.timeout_s = o->timeout_s;
    c->count = row->count;
    c->dtype = (enum banyan_dtype)dtype;
    c->root = row->root;
    c->comm = run->comm;
    c->opts = &t->opts;
    c->rank = run->rank;
    c->nranks = run->nranks;
    c->send = run->buf.send;
    c->recv = run->buf.recv;
    if (row->inplace) {
        c->send = (char *)run->buf.recv + t->pc->inplace_send(c) * es;
        c->recv = (char *)run->buf.recv + t->pc->inplace_recv(c) * es;
    }
    t->send_bytes = t->pc->send_elems(c) * es;
    t->recv_bytes = (size_t)t->pc->recv_blocks(c) * row->count * es;
    t->batch = row->bytes <= PERF_BATCH_BYTES ? PERF_BATCH : 1;
    t->values = (struct perf_values){
        .spec = &o->data,
        .dtype = c->dtype,
        .reduces = (t->pc->flags & PERF_REDUCES) != 0,
        .op = (unsigned)(op < 0 ? 0 : op),
        .nranks = run->nranks,
        .count = t->pc->send_elems(c),
        .seed = row->bytes,
    };
    rc = set_up_codec(t);
    perf_values_fill(&t->values, run->rank, 0, t->pc->send_elems(c), run->buf.pristine);
    return rc;
}

/* Writes the send data again, and over the old result: a call that did nothing must not pass.
 */
static void rewrite(struct timed *t)
{
    if (!t->row->inplace || t->call.recv < t->call.send ||
        (char *)t->call.recv >= (const char *)t->call.send + t->send_bytes)
        memset(t->call.recv, 0xa5, t->recv_bytes);
    else if (t->recv_bytes > t->send_bytes)
        memset(t->call.recv, 0xa5, t->recv_bytes);
    memcpy((void *)(uintptr_t)t->call.send, t->run->buf.pristine, t->send_bytes);
}

static void check(struct timed *t)
{
    perf_values_check(&t->values, t->pc, &t->call, &t->check);
    t->checked++;
}

static int run_once(struct timed *t, int checked)
{
    int rc;

    rewrite(t);
    rc = t->pc->run(&t->call);
    if (rc == 0 && checked)
        check(t);
    return rc;
}

static double cpu_now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts); /* other ranks may be threads beside us */
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static uint64_t wire_now(struct timed *t)
{
    struct banyan_stats s = { .size = sizeof s };

    return banyan_comm_stats(t->run->comm, &s) == 0 ? s.wire_bytes : 0;
}

static int timed_loop(struct timed *t)
{
    uint64_t wire = wire_now(t), sync_wire, t0, t1;
    int rc = banyan_barrier(t->run->comm, &t->opts);

    sync_wire =
        wire_now(t) - wire; /* what the loop's own barriers send is no part of the operation */
    for (int it = 0; rc == 0 && it < t->row->iters; it++) {
        double cpu;

        rewrite(t);
        wire = wire_now(t);
        rc = banyan_barrier(t->run->comm, &t->opts);
        if (rc == 0)
            perf_fault_due(t->run);
        cpu = cpu_now_s();
        t0 = bny_now_ns();
        for (int k = 0; rc == 0 && k < t->batch; k++)
            rc = t->pc->run(&t->call);
        t1 = bny_now_ns();
        t->cpu_s += cpu_now_s() - cpu;
        t->wire += wire_now(t) - wire - sync_wire;
        t->run->times_us[it] = (double)(t1 - t0) / 1000 / t->batch;
    }
    /* A batch in place has reduced its own results again; all others end as a single call does.
     */
    if (rc == 0 && t->run->opts->check && (t->batch == 1 || !t->row->inplace))
        check(t);
    return rc;
}

static int reduce_doubles(struct timed *t, double *v, size_t n, enum banyan_op_kind op)
{
    struct banyan_opts plain = BANYAN_OPTS_INIT;

    plain.schedule = "auto";
    plain.codec = "none";
    return banyan_allreduce(v, v, n, BANYAN_F64, op, t->run->comm, &plain);
}

/* After an allreduce (and other collectives that end alike) all ranks must hold the same bits,
 * whatever was rounded on the way. */
static int same_bits(struct timed *t, double *differ)
{
    struct banyan_opts plain = BANYAN_OPTS_INIT;
    uint64_t v[2] = { t->check.hash, ~t->check.hash };
    int rc;

    plain.schedule = "auto";
    plain.codec = "none";
    rc = banyan_allreduce(v, v, 2, BANYAN_U64, BANYAN_MAX, t->run->comm, &plain);
    *differ = v[0] != ~v[1] && t->call.rank == 0;
    return rc;
}

/* Joins all ranks' numbers and fills the row. */
static int summarise(struct timed *t)
{
    struct perf_row *row = t->row;
    size_t n = (size_t)row->iters;
    double sums[5] = { (double)t->check.wrong, t->check.err2, t->check.ref2, t->cpu_s, 0 };
    double most[2] = { t->check.max_abs_err, (double)t->wire }, factor;
    int rc = 0;

    if (t->pc->flags & PERF_SAME)
        rc = same_bits(t, &sums[4]);
    if (rc == 0)
        rc = reduce_doubles(t, t->run->times_us, n, BANYAN_MAX);
    if (rc == 0)
        rc = reduce_doubles(t, sums, 5, BANYAN_SUM);
    if (rc == 0)
        rc = reduce_doubles(t, most, 2, BANYAN_MAX);
    if (rc < 0)
        return rc;
    perf_sort(t->run->times_us, n);
    row->time_min_us = t->run->times_us[0];
    row->time_median_us = perf_percentile(t->run->times_us, n, 0.5);
    row->time_p99_us = perf_percentile(t->run->times_us, n, 0.99);
    factor = perf_bus_factor(t->pc, row->ranks);
    if (row->time_median_us > 0) {
        row->algbw = (double)row->bytes / row->time_median_us / 1000;
        row->busbw = row->algbw * factor;
        row->wire_bytes = (uint64_t)(most[1] / ((double)n * t->batch) + 0.5);
        row->wire_busbw = (double)row->wire_bytes / row->time_median_us / 1000;
    }
    row->wrong = t->checked ? (int64_t)(sums[0] + sums[4]) : -1;
    row->max_abs_err = most[0];
    row->rel_err = sums[2] > 0 ? sqrt(sums[1] / sums[2]) : sqrt(sums[1]);
    row->cpu_s = sums[3];
    return 0;
}

int perf_run_row(struct perf_run *run, struct perf_row *row)
{
    const struct perf_opts *o = run->opts;
    struct timed t = { .run = run, .row = row, .pc = o->what };
    unsigned op = (unsigned)perf_parse_op(row->op);
    int rc = 0;

    if (o->what->flags & PERF_REDUCES)
        rc = make_op(op, run->rank, &t.call.op);
    if (rc < 0)
        return rc;
    rc = set_up(&t);
    for (int i = 0; rc == 0 && i < o->check; i++)
        rc = run_once(&t, 1);
    for (int i = 0; rc == 0 && i < o->warmup * t.batch; i++)
        rc = run_once(&t, 0);
    if (rc == 0)
        rc = timed_loop(&t);
    for (int i = 0; rc == 0 && i < o->check; i++)
        rc = run_once(&t, 1);
    if (rc == 0)
        rc = summarise(&t);
    if (o->what->flags & PERF_REDUCES)
        drop_op(op, t.call.op);
    banyan_codec_state_free(t.state);
    return rc;
}
