/* SPDX-License-Identifier: BSD-3-Clause */
/* Random calls of every collective, run and checked. */
#include "tests/mp/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/rng.h"

/* A call being run on this rank: its arguments as the API wants them. Element numbers are of
 * dtype. */
struct bound {
    const struct call *c;
    struct call own; /* that c points at */
    struct banyan_comm *comm;
    int made; /* op must be freed */
    int n, rank;
    size_t elem;
    banyan_op op;
    struct banyan_opts opts;
    struct image im[2]; /* send, receive; in place only im[1] is used */
    size_t bytes[2];
    void *sp, *rp;
    size_t counts[MP_RANKS_MAX], displs[MP_RANKS_MAX]; /* v-variants; alltoallv: receive side */
    size_t scounts[MP_RANKS_MAX], sdispls[MP_RANKS_MAX]; /* alltoallv: send side */
    int packed;                                          /* displacements are given as NULL */
};

static const char *const names[C_COUNT] = {
    "allreduce",  "reduce",  "broadcast", "reduce_scatter", "reduce_scatterv", "allgather",
    "allgatherv", "gather",  "gatherv",   "scatter",        "scatterv",        "alltoall",
    "alltoallv",  "barrier", "scan",      "exscan",         "sendrecv",
};

const char *call_name(enum coll c)
{
    return names[c];
}

int call_reduces(enum coll c)
{
    return c == C_ALLREDUCE || c == C_REDUCE || c == C_REDUCE_SCATTER ||
           c == C_REDUCE_SCATTERV || c == C_SCAN || c == C_EXSCAN;
}

int call_fits(enum coll c, enum model_op op, enum banyan_dtype dtype)
{
    if ((c == C_SCAN || c == C_EXSCAN) && (int)op == BANYAN_AVG)
        return 0; /* the average of a prefix is not defined */
    return model_op_fits(op, dtype);
}

static int may_be_in_place(enum coll c)
{
    switch (c) {
    case C_ALLREDUCE:
    case C_REDUCE:
    case C_REDUCE_SCATTER:
    case C_REDUCE_SCATTERV:
    case C_ALLGATHER:
    case C_ALLGATHERV:
    case C_ALLTOALL:
    case C_SCAN:
    case C_EXSCAN: return 1;
    default: return 0;
    }
}

/* ---- making one ---- */
static size_t random_count(uint64_t *s, int n, size_t max)
{
    static const size_t odd[] = { 4093, 1024, 333, 65536, 16384 };
    size_t count;

    switch (bny_rng_below(s, 8)) {
    case 0: count = bny_rng_below(s, 2); break;
    case 1: count = (size_t)n - 1 + bny_rng_below(s, 3); break;
    case 2:
    case 3: count = 1 + bny_rng_below(s, 64); break;
    case 4: count = odd[bny_rng_below(s, sizeof odd / sizeof odd[0])]; break;
    case 5: count = bny_rng_below(s, 20000); break;
    default: count = bny_rng_below(s, 2000); break;
    }
    if (bny_rng_below(s, 50) == 0)
        count = max / 2 + bny_rng_below(s, max / 2);
    return count < max ? count : max;
}

static const char *random_schedule(uint64_t *s)
{
    size_t n = 0;

    while (banyan_schedule_name(n))
        n++;
    return n && bny_rng_below(s, 3) ? banyan_schedule_name(bny_rng_below(s, n)) : NULL;
}

void call_random(struct call *c, int n, size_t max_bytes, uint64_t seed, uint64_t local_seed)
{
    static const size_t chunks[] = { 0, 0, 0, 4096, 65536 };
    uint64_t s = seed, l = local_seed;
    size_t unit, blocks;

    memset(c, 0, sizeof *c);
    c->deterministic = -1;
    c->coll = (enum coll)bny_rng_below(&s, C_COUNT);
    c->seed = bny_rng_next(&s);
    do {
        c->dtype = (enum banyan_dtype)bny_rng_below(&s, BNY_DTYPE_COUNT);
        c->op = (enum model_op)bny_rng_below(&s, M_OP_COUNT);
    } while (!call_fits(c->coll, c->op, c->dtype));
    if (!call_reduces(c->coll))
        c->op = (enum model_op)BANYAN_SUM;
    unit = model_unit(c->op);
    blocks = c->coll == C_ALLREDUCE || c->coll == C_REDUCE || c->coll == C_BROADCAST ||
                     c->coll == C_SCAN || c->coll == C_EXSCAN || c->coll == C_SENDRECV
                 ? 1
                 : (size_t)n;
    c->count =
        random_count(&s, n, max_bytes / banyan_dtype_bytes(c->dtype) / blocks / unit) * unit;
    c->root = (int)bny_rng_below(&s, (uint64_t)n);
    c->in_place = may_be_in_place(c->coll) && bny_rng_below(&s, 2);
    c->mode = (enum call_mode)bny_rng_below(&s, MODE_COUNT);
    c->schedule = random_schedule(&s);
    c->tag = (uint32_t)bny_rng_below(&s, 3);
    c->chunk_bytes = chunks[bny_rng_below(&s, sizeof chunks / sizeof chunks[0])];
    c->shift = (int)bny_rng_below(&s, (uint64_t)n);
    c->misalign[0] = bny_rng_below(&l, 2) ? bny_rng_below(&l, 64) : 0;
    c->misalign[1] = bny_rng_below(&l, 2) ? bny_rng_below(&l, 64) : 0;
}

/* ---- block tables ---- */
/* Elements of block `b` of rank `from`'s table: between 0 and count, in units; in a third of
 * the calls count, as in the plain collective. */
static size_t v_count(const struct call *c, int from, int b)
{
    size_t unit = model_unit(c->op);
    uint64_t s = model_mix(c->seed ^ 0xb10c, (uint64_t)from * 64 + (uint64_t)b);

    if (c->seed % 3 == 0)
        return c->count;
    return bny_rng_below(&s, 3) == 0 ? c->count : bny_rng_below(&s, c->count / unit + 1) * unit;
}

static void pack(const size_t *counts, size_t *displs, int n, size_t gap)
{
    size_t at = 0;

    for (int i = 0; i < n; i++) {
        displs[i] = at;
        at += counts[i] + gap;
    }
}

static size_t extent(const size_t *counts, const size_t *displs, int n)
{
    size_t end = 0;

    for (int i = 0; i < n; i++)
        if (displs[i] + counts[i] > end)
            end = displs[i] + counts[i];
    return end;
}

static void make_tables(struct bound *b)
{
    const struct call *c = b->c;
    /* Gaps differ by rank, which displacements may. */
    size_t gap = c->coll == C_REDUCE_SCATTERV ? 0 : model_mix(c->seed, (uint64_t)b->rank) % 4;

    for (int i = 0; i < b->n; i++) {
        b->counts[i] = c->coll == C_ALLTOALLV ? v_count(c, i, b->rank)
                       : c->coll == C_REDUCE_SCATTERV || c->coll == C_ALLGATHERV ||
                               c->coll == C_GATHERV || c->coll == C_SCATTERV
                           ? v_count(c, 0, i)
                           : c->count;
        b->scounts[i] = v_count(c, b->rank, i);
    }
    if (c->coll != C_ALLGATHERV && c->coll != C_GATHERV && c->coll != C_SCATTERV &&
        c->coll != C_ALLTOALLV)
        gap = 0;
    b->packed = gap == 0;
    pack(b->counts, b->displs, b->n, gap);
    pack(b->scounts, b->sdispls, b->n, gap);
}

/* ---- buffers ---- */
static void buffer_sizes(struct bound *b, size_t *send, size_t *recv)
{
    const struct call *c = b->c;
    size_t all = extent(b->counts, b->displs, b->n), own = b->counts[b->rank];
    int at_root = b->rank == c->root;

    *send = *recv = c->count;
    switch (c->coll) {
    case C_REDUCE: *recv = at_root ? c->count : 0; break;
    case C_BROADCAST: *send = 0; break;
    case C_REDUCE_SCATTER:
    case C_REDUCE_SCATTERV:
        *send = all;
        *recv = own;
        break;
    case C_ALLGATHER:
    case C_ALLGATHERV:
        *send = own;
        *recv = all;
        break;
    case C_GATHER:
    case C_GATHERV:
        *send = own;
        *recv = at_root ? all : 0;
        break;
    case C_SCATTER:
    case C_SCATTERV:
        *send = at_root ? all : 0;
        *recv = own;
        break;
    case C_ALLTOALL: *send = *recv = all; break;
    case C_ALLTOALLV:
        *send = extent(b->scounts, b->sdispls, b->n);
        *recv = all;
        break;
    case C_BARRIER: *send = *recv = 0; break;
    default: break;
    }
}

/* The send buffer lies in the receive image or the other way round. */
static void make_buffers(struct bound *b)
{
    const struct call *c = b->c;
    size_t n[2];
    int big, in_place = c->in_place && (c->coll != C_REDUCE || b->rank == c->root);

    buffer_sizes(b, &n[0], &n[1]);
    big = n[1] >= n[0];
    for (int i = 0; i < 2; i++) {
        size_t bytes = n[in_place ? big : i] * b->elem;
        void *mem =
            c->pool && bytes + 2 * IMAGE_GUARD + 64 <= c->pool->bytes ? c->pool->mem[i] : NULL;
        image_make(&b->im[i], mem, bytes, c->misalign[i], model_mix(c->seed, (uint64_t)i));
    }
    b->sp = b->im[0].data;
    b->rp = b->im[1].data;
    if (in_place) {
        size_t own = b->displs[b->rank] * b->elem;
        b->sp = b->rp;
        if (c->coll == C_REDUCE_SCATTER || c->coll == C_REDUCE_SCATTERV)
            b->rp = (unsigned char *)b->sp + own;
        if (c->coll == C_ALLGATHER || c->coll == C_ALLGATHERV)
            b->sp = (unsigned char *)b->rp + own;
    }
}

static int in_place(const struct bound *b)
{
    const unsigned char *lo = b->im[1].mem, *hi = lo + b->im[1].total;

    return (const unsigned char *)b->sp >= lo && (const unsigned char *)b->sp < hi;
}

static struct image *image_of(struct bound *b, const void *p, size_t *offset)
{
    struct image *im = p == b->sp && !in_place(b) ? &b->im[0] : &b->im[1];

    *offset = (size_t)((const unsigned char *)p - im->data);
    return im;
}

enum what { PUT, WANT };

/* Puts or expects `n` elements of `src` at element `first` of the send or receive buffer p. */
static void place(struct bound *b, enum what what, const void *p, size_t first, const void *src,
                  size_t n)
{
    size_t offset;
    struct image *im = image_of(b, p, &offset);

    (what == PUT ? image_put : image_want)(im, offset + first * b->elem, src, n * b->elem);
}

/* Data that rank `from` has for rank `to`; to is 0 where all get the same. */
static void place_bytes(struct bound *b, enum what what, const void *p, size_t first, size_t n,
                        int from, int to)
{
    void *tmp = case_malloc(n * b->elem);

    model_bytes(tmp, n * b->elem, model_mix(b->c->seed, (uint64_t)(from * 64 + to)));
    place(b, what, p, first, tmp, n);
    free(tmp);
}

/* ---- what goes in ---- */
static void put_reduction_input(struct bound *b)
{
    size_t n, r;
    void *tmp;

    buffer_sizes(b, &n, &r);
    tmp = case_malloc(n * b->elem);
    model_fill(tmp, 0, n, b->c->dtype, b->c->op, b->rank, b->c->seed);
    place(b, PUT, b->sp, 0, tmp, n);
    free(tmp);
}

static void put_input(struct bound *b)
{
    const struct call *c = b->c;

    switch (c->coll) {
    case C_BARRIER: return;
    case C_BROADCAST:
        if (b->rank == c->root)
            place_bytes(b, PUT, b->rp, 0, c->count, c->root, 0);
        return;
    case C_ALLGATHER:
    case C_ALLGATHERV:
    case C_GATHER:
    case C_GATHERV: place_bytes(b, PUT, b->sp, 0, b->counts[b->rank], b->rank, 0); return;
    case C_SCATTER:
    case C_SCATTERV:
        for (int i = 0; i < b->n && b->rank == c->root; i++)
            place_bytes(b, PUT, b->sp, b->displs[i], b->counts[i], b->rank, i);
        return;
    case C_ALLTOALL:
        for (int i = 0; i < b->n; i++)
            place_bytes(b, PUT, b->sp, b->displs[i], b->counts[i], b->rank, i);
        return;
    case C_ALLTOALLV:
        for (int i = 0; i < b->n; i++)
            place_bytes(b, PUT, b->sp, b->sdispls[i], b->scounts[i], b->rank, i);
        return;
    case C_SENDRECV: place_bytes(b, PUT, b->sp, 0, c->count, b->rank, 0); return;
    default: put_reduction_input(b);
    }
}

/* ---- what comes out ---- */
static void reduction_range(const struct bound *b, size_t *first, size_t *n, int *ranks)
{
    const struct call *c = b->c;

    *first = 0;
    *n = c->count;
    *ranks = b->n;
    if (c->coll == C_REDUCE && b->rank != c->root)
        *n = 0;
    if (c->coll == C_REDUCE_SCATTER || c->coll == C_REDUCE_SCATTERV) {
        *first = b->displs[b->rank];
        *n = b->counts[b->rank];
    }
    if (c->coll == C_SCAN)
        *ranks = b->rank + 1;
    if (c->coll == C_EXSCAN) {
        *ranks = b->rank;
        if (b->rank == 0)
            *n = 0;
    }
}

static void want_reduction(struct bound *b)
{
    const struct call *c = b->c;
    size_t first, n;
    int ranks;
    void *tmp;

    reduction_range(b, &first, &n, &ranks);
    if (n == 0)
        return;
    tmp = case_malloc(n * b->elem);
    model_reduce(tmp, first, n, c->dtype, c->op, ranks, b->n, c->seed);
    place(b, WANT, b->rp, 0, tmp, n);
    free(tmp);
}

static void want_output(struct bound *b)
{
    const struct call *c = b->c;

    switch (c->coll) {
    case C_BARRIER: return;
    case C_BROADCAST: place_bytes(b, WANT, b->rp, 0, c->count, c->root, 0); return;
    case C_ALLGATHER:
    case C_ALLGATHERV:
    case C_GATHER:
    case C_GATHERV:
        if ((c->coll == C_GATHER || c->coll == C_GATHERV) && b->rank != c->root)
            return;
        for (int i = 0; i < b->n; i++)
            place_bytes(b, WANT, b->rp, b->displs[i], b->counts[i], i, 0);
        return;
    case C_SCATTER:
    case C_SCATTERV:
        place_bytes(b, WANT, b->rp, 0, b->counts[b->rank], c->root, b->rank);
        return;
    case C_ALLTOALL:
    case C_ALLTOALLV:
        for (int i = 0; i < b->n; i++)
            place_bytes(b, WANT, b->rp, b->displs[i], b->counts[i], i, b->rank);
        return;
    case C_SENDRECV:
        place_bytes(b, WANT, b->rp, 0, c->count, (b->rank - c->shift + b->n) % b->n, 0);
        return;
    default: want_reduction(b);
    }
}

/* ---- the call ---- */
static int issue_sendrecv(struct bound *b, struct banyan_comm *comm, struct banyan_request **rq)
{
    const struct call *c = b->c;
    int to = (b->rank + c->shift) % b->n, from = (b->rank - c->shift + b->n) % b->n, rc, rc2;

    if (rq) {
        rc = banyan_send_init(b->sp, c->count, c->dtype, to, comm, &b->opts, &rq[0]);
        return rc ? rc
                  : banyan_recv_init(b->rp, c->count, c->dtype, from, comm, &b->opts, &rq[1]);
    }
    if ((c->seed >> b->rank) % 2) /* the same to the peers */
        return banyan_sendrecv(b->sp, c->count, c->dtype, to, b->rp, c->count, c->dtype, from,
                               comm, &b->opts);
    rc = banyan_group_start();
    if (rc == 0)
        rc = banyan_send(b->sp, c->count, c->dtype, to, comm, &b->opts);
    if (rc == 0)
        rc = banyan_recv(b->rp, c->count, c->dtype, from, comm, &b->opts);
    rc2 = banyan_group_end();
    return rc ? rc : rc2;
}

/* Blocking with rq NULL, else makes requests. */
static int issue(struct bound *b, struct banyan_comm *comm, struct banyan_request **rq)
{
    const struct call *c = b->c;
    const struct banyan_opts *o = &b->opts;
    const size_t *displs = b->packed ? NULL : b->displs,
                 *sdispls = b->packed ? NULL : b->sdispls;
    size_t own = b->counts[b->rank];

#define GO(name, ...)                                                                          \
    return rq ? banyan_##name##_init(__VA_ARGS__, comm, o, rq)                                 \
              : banyan_##name(__VA_ARGS__, comm, o)
    switch (c->coll) {
    case C_ALLREDUCE: GO(allreduce, b->sp, b->rp, c->count, c->dtype, b->op);
    case C_REDUCE:
        GO(reduce, b->sp, b->rank == c->root ? b->rp : NULL, c->count, c->dtype, b->op,
           c->root);
    case C_BROADCAST: GO(broadcast, b->rp, c->count, c->dtype, c->root);
    case C_REDUCE_SCATTER: GO(reduce_scatter, b->sp, b->rp, c->count, c->dtype, b->op);
    case C_REDUCE_SCATTERV: GO(reduce_scatterv, b->sp, b->rp, b->counts, c->dtype, b->op);
    case C_ALLGATHER: GO(allgather, b->sp, b->rp, c->count, c->dtype);
    case C_ALLGATHERV: GO(allgatherv, b->sp, b->rp, b->counts, displs, c->dtype);
    case C_GATHER: GO(gather, b->sp, b->rp, c->count, c->dtype, c->root);
    case C_GATHERV: GO(gatherv, b->sp, own, b->rp, b->counts, displs, c->dtype, c->root);
    case C_SCATTER: GO(scatter, b->sp, b->rp, c->count, c->dtype, c->root);
    case C_SCATTERV: GO(scatterv, b->sp, b->counts, displs, b->rp, own, c->dtype, c->root);
    case C_ALLTOALL: GO(alltoall, b->sp, b->rp, c->count, c->dtype);
    case C_ALLTOALLV:
        GO(alltoallv, b->sp, b->scounts, sdispls, b->rp, b->counts, displs, c->dtype);
    case C_SCAN: GO(scan, b->sp, b->rp, c->count, c->dtype, b->op);
    case C_EXSCAN: GO(exscan, b->sp, b->rp, c->count, c->dtype, b->op);
    case C_SENDRECV: return issue_sendrecv(b, comm, rq);
    default: return rq ? banyan_barrier_init(comm, o, rq) : banyan_barrier(comm, o);
    }
#undef GO
}

static int finish(struct banyan_request *const *rq, size_t n, enum call_mode mode)
{
    int rc = 0, done;

    for (size_t i = 0; i < n && rc == 0; i++)
        rc = banyan_start(rq[i]);
    if (rc == 0 && mode == MODE_WAIT)
        return banyan_wait_all(rq, n, -1);
    for (size_t i = 0; i < n && rc == 0; i++)
        for (done = 0; !done && rc == 0;)
            rc = banyan_test(rq[i], &done);
    return rc;
}

static int run(struct bound *b, struct banyan_comm *comm)
{
    struct banyan_request *rq[2] = { NULL, NULL };
    int rc, rc2;

    switch (b->c->mode) {
    case MODE_BLOCKING: return issue(b, comm, NULL);
    case MODE_GROUP:
        rc = banyan_group_start();
        if (rc == 0)
            rc = issue(b, comm, NULL);
        rc2 = banyan_group_end();
        return rc ? rc : rc2;
    default:
        rc = issue(b, comm, rq);
        if (rc == 0)
            rc = finish(rq, rq[1] ? 2 : 1, b->c->mode);
        for (int i = 0; i < 2 && rq[i]; i++) {
            rc2 = banyan_request_free(rq[i]);
            rc = rc ? rc : rc2;
        }
        return rc;
    }
}

static void describe(const struct call *c, char *buf, size_t cap)
{
    snprintf(buf, cap,
             "%s %s op %d count %zu root %d in_place %d mode %d schedule %s tag %u chunk %zu "
             "codec %s deterministic %d misalign %zu %zu memory %d",
             names[c->coll], banyan_dtype_name(c->dtype), (int)c->op, c->count, c->root,
             c->in_place, (int)c->mode, c->schedule ? c->schedule : "-", c->tag, c->chunk_bytes,
             *c->codec ? c->codec : "-", c->deterministic, c->misalign[0], c->misalign[1],
             c->pool ? (int)c->pool->kind : 0);
}

static void check_images(const struct test *t, struct bound *b, const char *what)
{
    for (int i = 0; i < 2; i++) {
        int ok;
        ptrdiff_t at = image_check(&b->im[i], &ok);
        const struct image *im = &b->im[i];
        CHECK(t, ok, "%s: %s buffer of %zu bytes: byte %td is %02x, not %02x", what,
              i ? "receive" : "send", im->bytes, at, im->data[at],
              im->expect[im->lead + (size_t)at]);
    }
}

static void settle(const struct test *t, struct bound *b, const char *what)
{
    size_t first, n, offset, bad;
    int ranks;
    struct image *im;

    if (!call_reduces(b->c->coll))
        return;
    reduction_range(b, &first, &n, &ranks);
    im = image_of(b, b->rp, &offset);
    bad = image_settle(im, offset, n, b->c->dtype, (int)b->c->op);
    CHECK(t, bad == n, "%s: element %zu of %zu is wrong", what, bad, n);
}

struct bound *call_open(const struct test *t, struct banyan_comm *comm, const struct call *c)
{
    struct bound *b = case_malloc(sizeof *b);

    *b = (struct bound){ .own = *c,
                         .comm = comm,
                         .n = banyan_comm_count(comm),
                         .rank = banyan_comm_rank(comm),
                         .elem = banyan_dtype_bytes(c->dtype),
                         .opts = BANYAN_OPTS_INIT };
    b->c = &b->own;
    b->opts.schedule = c->schedule;
    b->opts.codec = *c->codec ? b->own.codec : NULL;
    b->opts.tag = c->tag;
    b->opts.chunk_bytes = c->chunk_bytes;
    b->opts.deterministic = c->deterministic;
    case_feed(1);
    CHECK_OK(t, model_op_create(c->op, b->rank, &b->op, &b->made));
    case_feed(0);
    make_tables(b);
    make_buffers(b);
    put_input(b);
    return b;
}

int call_issue(struct bound *b, struct banyan_request **rq)
{
    return issue(b, b->comm, rq);
}

static void give_back(const struct test *t, struct bound *b)
{
    image_free(&b->im[0]);
    image_free(&b->im[1]);
    if (b->made)
        CHECK_OK(t, banyan_op_free(b->op));
    free(b);
}

int call_close(const struct test *t, struct bound *b, int rc)
{
    char what[256];

    describe(b->c, what, sizeof what);
    CHECK(t, rc == 0 || (rc == -BANYAN_ENOTSUP && (b->c->schedule || *b->c->codec)),
          "%s returned %d (%s)", what, rc, banyan_strerror(rc));
    if (rc == 0) {
        want_output(b);
        settle(t, b, what);
    }
    check_images(t, b, what);
    give_back(t, b);
    return rc != 0;
}

int call_close_any(const struct test *t, struct bound *b, int rc)
{
    if (rc == 0 || rc == -BANYAN_ENOTSUP)
        return call_close(t, b, rc);
    give_back(t, b);
    return rc;
}

int call_try(const struct test *t, struct banyan_comm *comm, const struct call *c)
{
    struct bound *b = call_open(t, comm, c);
    int rc;

    if (b->own.mode == MODE_TEST) /* which looks no more at the others when one fails */
        b->own.mode = MODE_WAIT;
    rc = call_close_any(t, b, run(b, comm));
    return rc > 0 ? 0 : rc;
}

int call_check(const struct test *t, struct banyan_comm *comm, const struct call *c)
{
    struct bound *b = call_open(t, comm, c);

    return call_close(t, b, run(b, comm));
}

void call_same_bits(const struct test *t, struct banyan_comm *a, struct banyan_comm *b)
{
    static const char *const codecs[] = { "none", "int8:force=1", "topk:delta=0.05,force=1",
                                          "e4m3:force=1", "lossless:force=1" };
    size_t counts[] = { 1, 777, 40000 };
    float *in = case_malloc(2 * 40000 * sizeof *in), *x = case_malloc(40000 * sizeof *x),
          *y = case_malloc(40000 * sizeof *y);

    for (size_t i = 0; i < 40000; i++)
        in[i] = (float)model_mix(t->seed + (uint64_t)t->rank, i) * 0x1p-64f - 0.5f;
    for (size_t k = 0; k < sizeof codecs / sizeof codecs[0]; k++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            struct banyan_opts opts = BANYAN_OPTS_INIT;

            opts.codec = codecs[k];
            CHECK_OK(t, banyan_allreduce(in, x, counts[i], BANYAN_F32, BANYAN_SUM, a, &opts));
            CHECK_OK(t, banyan_allreduce(in, y, counts[i], BANYAN_F32, BANYAN_SUM, b, &opts));
            CHECK(t, !memcmp(x, y, counts[i] * sizeof *x), "%s, %zu elements: other bits",
                  codecs[k], counts[i]);
        }
    free(in);
    free(x);
    free(y);
}
