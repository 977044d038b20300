/* SPDX-License-Identifier: BSD-3-Clause */
/* A kind of memory as a device has it: the processor cannot read it through the user's pointers
 * (it would crash), only the kind's own copy function reaches the bytes. Every collective runs
 * twice over the loop transport, with the same input, in ordinary memory and with buffers of
 * that kind: afterwards all bytes of all buffers are the same, those around the data too. The
 * kind is one of the test's own, or CUDA's over a driver that copies as late as it may. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/local/memory_kind.h"
#include "tests/support/fake_cuda.h"
#include "transport/loop/loop.h"

#define MAX_N 4
#define AREA  (1u << 18) /* of a buffer */
#define GUARD 64u

/* ---- the kind ---- */

static char *hidden, *behind; /* the same pages: no access, and all */
static size_t hidden_bytes;
static size_t copies;
static const struct fake_cuda *fake; /* NULL: the kind of this test */

static int owns(const void *ptr)
{
    return (const char *)ptr >= hidden && (const char *)ptr < hidden + hidden_bytes;
}

static void *reach(const void *ptr)
{
    return owns(ptr) ? behind + ((const char *)ptr - hidden) : (char *)ptr;
}

static int copy(void *dst, const void *src, size_t bytes)
{
    copies++;
    cr_assert(owns(dst) || owns(src), "the kind was asked to copy other memory");
    memcpy(reach(dst), reach(src), bytes);
    return 0;
}

static const struct bny_mem_kind device = { .name = "test", .owns = owns, .copy = copy };

static size_t copies_so_far(void)
{
    struct fake_cuda_counts c;

    if (!fake)
        return copies;
    fake->counts(&c);
    cr_assert(c.pageable == 0 && c.stack == 0);
    return c.copies;
}

static void cuda_open(void)
{
    fake = fake_cuda_load();
    cr_assert_not_null(fake);
    hidden_bytes = (size_t)2 * MAX_N * AREA;
    hidden = fake->alloc(hidden_bytes, 1);
    behind = fake->reach(hidden);
}

static void device_open(void)
{
    int fd = memfd_create("device", 0);

    hidden_bytes = (size_t)2 * MAX_N * AREA;
    cr_assert(fd >= 0 && ftruncate(fd, (off_t)hidden_bytes) == 0);
    hidden = mmap(NULL, hidden_bytes, PROT_NONE, MAP_SHARED, fd, 0);
    behind = mmap(NULL, hidden_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert(hidden != MAP_FAILED && behind != MAP_FAILED);
    close(fd);
    cr_assert_eq(bny_mem_kind_add(&device), 0);
}

/* ---- calls ---- */

enum what {
    ALLREDUCE,
    ALLREDUCE_IN_PLACE,
    ALLREDUCE_AVG,
    ALLREDUCE_PREMUL,
    ALLREDUCE_PREMUL_IN_PLACE,
    ALLREDUCE_USER,
    ALLREDUCE_ORDERED_USER,
    ALLREDUCE_CODED,
    ALLREDUCE_LINEAR,
    REDUCE,
    REDUCE_IN_PLACE,
    REDUCE_SCATTER,
    REDUCE_SCATTER_IN_PLACE,
    REDUCE_SCATTER_PREMUL,
    REDUCE_SCATTER_ORDERED,
    REDUCE_SCATTER_ORDERED_IN_PLACE,
    REDUCE_SCATTER_ORDERED_PREMUL,
    REDUCE_SCATTERV,
    REDUCE_SCATTERV_ORDERED,
    SCAN,
    SCAN_IN_PLACE,
    EXSCAN,
    EXSCAN_IN_PLACE,
    BROADCAST, /* from here on nothing is reduced */
    ALLGATHER,
    ALLGATHER_IN_PLACE,
    ALLGATHERV,
    ALLGATHERV_IN_PLACE,
    GATHER,
    GATHER_IN_PLACE,
    GATHERV,
    GATHERV_IN_PLACE,
    SCATTER,
    SCATTERV,
    ALLTOALL,
    ALLTOALL_IN_PLACE,
    ALLTOALLV,
    BARRIER,
    SENDRECV,
    SEND_TO_SELF,
    WHATS
};

struct rig {
    int n;
    struct bny_loop_fabric *fabric;
    struct banyan_comm *comm[MAX_N];
    uint64_t rng;
    banyan_op premul[MAX_N], sum, chain;
    char *host; /* as `hidden`, in ordinary memory */
    size_t counts[MAX_N], displs[MAX_N], both[2][MAX_N];
    int root;
};

/* Of elements of four bytes, where order counts: a function composed with another. */
static void compose(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dtype)
{
    const uint16_t *a = in;
    uint16_t *b = inout;

    for (size_t i = 0; i < 2 * n; i += 2) { /* x -> b0 x + b1 after x -> a0 x + a1 */
        b[i + 1] = (uint16_t)(b[i] * a[i + 1] + b[i + 1]);
        b[i] = (uint16_t)(a[i] * b[i]);
    }
}

static void add(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dtype)
{
    for (size_t i = 0; i < n; i++)
        ((uint32_t *)inout)[i] += ((const uint32_t *)in)[i];
}

static void rig_open(struct rig *g, int n)
{
    struct banyan_config cfg = BANYAN_CONFIG_INIT;

    *g = (struct rig){ .n = n, .rng = 7 + (uint64_t)n };
    g->fabric = bny_loop_fabric_create(n, NULL);
    g->host = malloc(hidden_bytes);
    cr_assert(g->fabric && g->host);
    for (int r = 0; r < n; r++) {
        cr_assert_eq(bny_comm_loop(&g->comm[r], g->fabric, n, r, &cfg), 0, "%s",
                     banyan_last_error());
        cr_assert_eq(banyan_op_create_premul_sum(0.5 + r, &g->premul[r]), 0);
    }
    cr_assert_eq(banyan_op_create_user(add, NULL, 0, 0, 1, &g->sum), 0);
    cr_assert_eq(banyan_op_create_user(compose, NULL, 4, 0, 0, &g->chain), 0);
}

static void rig_close(struct rig *g)
{
    for (int r = 0; r < g->n; r++) {
        g->comm[r]->world->orderly = 0; /* no farewell: one thread cannot wait for itself */
        banyan_comm_destroy(g->comm[r]);
        banyan_op_free(g->premul[r]);
    }
    banyan_op_free(g->sum);
    banyan_op_free(g->chain);
    bny_loop_fabric_destroy(g->fabric);
    free(g->host);
}

/* Blocks of different lengths (of `skew` elements more by rank) with holes between them, not in
 * order of ranks; rank 0's first, so that its part in place begins where the whole does. */
static void lay_out(struct rig *g, size_t count, size_t skew)
{
    size_t at = 0;

    for (int k = 0; k < g->n; k++) {
        int r = k ? g->n - k : 0;

        g->counts[r] = count + (count ? (size_t)r * skew : 0);
        g->displs[r] = at;
        at += g->counts[r] + 5;
    }
    for (int i = 0; i < g->n; i++) /* of alltoallv: from a to b go as many as b expects */
        g->both[0][i] = g->both[1][i] = count / (size_t)g->n;
}

/* Rank r's request of a reduction, -1 of another call. s, d: its buffers. */
static int reduction(struct rig *g, enum what what, size_t n, int r, char *s, char *d,
                     struct banyan_request **q)
{
    struct banyan_opts o = BANYAN_OPTS_INIT, det = BANYAN_OPTS_INIT, coded = BANYAN_OPTS_INIT;
    struct banyan_comm *c = g->comm[r];
    const size_t *counts = g->counts;
    size_t before = 0;
    int root = g->root;

    for (int i = 0; i < r; i++)
        before += counts[i];
    o.chunk_bytes = det.chunk_bytes = coded.chunk_bytes = 4096;
    det.deterministic = 1;
    coded.codec = what == ALLREDUCE_LINEAR ? "randomk:delta=1,force=1" : "int8:force=1";
    switch (what) {
    case ALLREDUCE: return banyan_allreduce_init(s, d, n, BANYAN_I32, BANYAN_SUM, c, &o, q);
    case ALLREDUCE_IN_PLACE:
        return banyan_allreduce_init(d, d, n, BANYAN_I32, BANYAN_SUM, c, &o, q);
    case ALLREDUCE_AVG: return banyan_allreduce_init(s, d, n, BANYAN_F32, BANYAN_AVG, c, &o, q);
    case ALLREDUCE_PREMUL:
        return banyan_allreduce_init(s, d, n, BANYAN_F32, g->premul[r], c, &o, q);
    case ALLREDUCE_PREMUL_IN_PLACE:
        return banyan_allreduce_init(d, d, n, BANYAN_F32, g->premul[r], c, &o, q);
    case ALLREDUCE_USER: return banyan_allreduce_init(s, d, n, BANYAN_U32, g->sum, c, &o, q);
    case ALLREDUCE_ORDERED_USER:
        return banyan_allreduce_init(s, d, 4 * n, BANYAN_U8, g->chain, c, &o, q);
    case ALLREDUCE_CODED:
    case ALLREDUCE_LINEAR:
        return banyan_allreduce_init(s, d, n, BANYAN_F32, BANYAN_SUM, c, &coded, q);
    case REDUCE:
        return banyan_reduce_init(s, r == root ? d : NULL, n, BANYAN_I32, BANYAN_SUM, root, c,
                                  &o, q);
    case REDUCE_IN_PLACE:
        return banyan_reduce_init(d, d, n, BANYAN_I32, BANYAN_SUM, root, c, &o, q);
    case REDUCE_SCATTER:
        return banyan_reduce_scatter_init(s, d, n, BANYAN_I32, BANYAN_SUM, c, &o, q);
    case REDUCE_SCATTER_IN_PLACE:
        return banyan_reduce_scatter_init(d, d + 4 * n * (size_t)r, n, BANYAN_I32, BANYAN_SUM,
                                          c, &o, q);
    case REDUCE_SCATTER_PREMUL:
        return banyan_reduce_scatter_init(s, d, n, BANYAN_F32, g->premul[r], c, &o, q);
    case REDUCE_SCATTER_ORDERED:
        return banyan_reduce_scatter_init(s, d, n, BANYAN_F32, BANYAN_SUM, c, &det, q);
    case REDUCE_SCATTER_ORDERED_IN_PLACE:
        return banyan_reduce_scatter_init(d, d + 4 * n * (size_t)r, n, BANYAN_F32, BANYAN_SUM,
                                          c, &det, q);
    case REDUCE_SCATTER_ORDERED_PREMUL:
        return banyan_reduce_scatter_init(s, d, n, BANYAN_F32, g->premul[r], c, &det, q);
    case REDUCE_SCATTERV:
        return banyan_reduce_scatterv_init(s, d, counts, BANYAN_I32, BANYAN_SUM, c, &o, q);
    case REDUCE_SCATTERV_ORDERED:
        return banyan_reduce_scatterv_init(d, d + 4 * before, counts, BANYAN_F32, BANYAN_SUM, c,
                                           &det, q);
    case SCAN: return banyan_scan_init(s, d, n, BANYAN_I32, BANYAN_SUM, c, &o, q);
    case SCAN_IN_PLACE: return banyan_scan_init(d, d, n, BANYAN_I32, BANYAN_SUM, c, &o, q);
    case EXSCAN: return banyan_exscan_init(s, d, n, BANYAN_I32, BANYAN_SUM, c, &o, q);
    case EXSCAN_IN_PLACE: return banyan_exscan_init(d, d, n, BANYAN_I32, BANYAN_SUM, c, &o, q);
    default: return -1;
    }
}

/* The same of any other collective. */
static int movement(struct rig *g, enum what what, size_t n, int r, char *s, char *d,
                    struct banyan_request **q)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct banyan_comm *c = g->comm[r];
    const size_t *counts = g->counts, *displs = g->displs;
    int root = g->root;

    o.chunk_bytes = 4096;
    switch (what) {
    case BROADCAST: return banyan_broadcast_init(d, n, BANYAN_I32, root, c, &o, q);
    case ALLGATHER: return banyan_allgather_init(s, d, n, BANYAN_I32, c, &o, q);
    case ALLGATHER_IN_PLACE:
        return banyan_allgather_init(d + 4 * n * (size_t)r, d, n, BANYAN_I32, c, &o, q);
    case ALLGATHERV: return banyan_allgatherv_init(s, d, counts, displs, BANYAN_I32, c, &o, q);
    case ALLGATHERV_IN_PLACE:
        return banyan_allgatherv_init(d + 4 * displs[r], d, counts, displs, BANYAN_I32, c, &o,
                                      q);
    case GATHER:
        return banyan_gather_init(s, r == root ? d : NULL, n, BANYAN_I32, root, c, &o, q);
    case GATHER_IN_PLACE:
        return banyan_gather_init(r == root ? d + 4 * n * (size_t)r : s, d, n, BANYAN_I32, root,
                                  c, &o, q);
    case GATHERV:
        return banyan_gatherv_init(s, counts[r], d, counts, displs, BANYAN_I32, root, c, &o, q);
    case GATHERV_IN_PLACE:
        return banyan_gatherv_init(r == root ? d + 4 * displs[r] : s, counts[r], d, counts,
                                   displs, BANYAN_I32, root, c, &o, q);
    case SCATTER:
        return banyan_scatter_init(r == root ? s : NULL, d, n, BANYAN_I32, root, c, &o, q);
    case SCATTERV:
        return banyan_scatterv_init(s, counts, displs, d, counts[r], BANYAN_I32, root, c, &o,
                                    q);
    case ALLTOALL: return banyan_alltoall_init(s, d, n, BANYAN_I32, c, &o, q);
    case ALLTOALL_IN_PLACE: return banyan_alltoall_init(d, d, n, BANYAN_I32, c, &o, q);
    case ALLTOALLV:
        return banyan_alltoallv_init(s, g->both[0], displs, d, g->both[1], displs, BANYAN_I32,
                                     c, &o, q);
    case BARRIER: return banyan_barrier_init(c, &o, q);
    default: return -1;
    }
}

/* A message to `next` and one from `last`. */
static int messages(struct rig *g, size_t n, int r, int next, int last, char *s, char *d,
                    struct banyan_request **q)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int rc;

    o.chunk_bytes = 4096;
    rc = banyan_send_init(s, n, BANYAN_I32, next, g->comm[r], &o, q);
    return rc ? rc : banyan_recv_init(d, n, BANYAN_I32, last, g->comm[r], &o, q + 1);
}

/* The requests of rank r; how many. s, d: its buffers. */
static int requests(struct rig *g, enum what what, size_t n, int r, char *s, char *d,
                    struct banyan_request **q)
{
    int rc;

    if (what == SENDRECV)
        rc = messages(g, n, r, (r + 1) % g->n, (r + g->n - 1) % g->n, s, d, q);
    else if (what == SEND_TO_SELF)
        rc = messages(g, n, r, r, r, s, d, q);
    else if (what < BROADCAST)
        rc = reduction(g, what, n, r, s, d, q);
    else
        rc = movement(g, what, n, r, s, d, q);
    cr_assert_eq(rc, 0, "call %d of %zu elements, rank %d of %d: %s", what, n, r, g->n,
                 banyan_last_error());
    return what == SENDRECV || what == SEND_TO_SELF ? 2 : 1;
}

/* ---- running ---- */

/* The same bytes in both: small numbers, which are floats too. */
static void fill(struct rig *g)
{
    for (size_t i = 0; i < hidden_bytes; i += 4) {
        float f = (float)bny_rng_below(&g->rng, 64);

        memcpy(g->host + i, &f, 4);
    }
    memcpy(behind, g->host, hidden_bytes);
}

static void drive(struct rig *g, struct banyan_request **q, int n)
{
    int left = n;

    for (int i = 0; i < n; i++)
        cr_assert_eq(banyan_start(q[i]), 0, "%s", banyan_last_error());
    for (long turn = 0; left; turn++) {
        left = 0;
        cr_assert_lt(turn, 1000000, "stuck");
        for (int i = 0; i < n; i++) {
            int done = 0;

            cr_assert_eq(banyan_test(q[i], &done), 0, "%s", banyan_last_error());
            left += !done;
        }
    }
}

static char *buffer(struct rig *g, int is_device, int r, int which)
{
    return (is_device ? hidden : g->host) + (size_t)(2 * r + which) * AREA + GUARD;
}

/* kinds: bit 0, the send buffers are of the kind; bit 1, the others. */
static void compare(struct rig *g, enum what what, size_t count, size_t skew, int kinds)
{
    struct banyan_request *host[2 * MAX_N], *dev[2 * MAX_N];
    int n = 0, m = 0;
    size_t before = copies_so_far();

    lay_out(g, count, skew);
    for (int r = 0; r < g->n; r++) {
        n += requests(g, what, count, r, buffer(g, 0, r, 0), buffer(g, 0, r, 1), host + n);
        m += requests(g, what, count, r, buffer(g, kinds & 1, r, 0), buffer(g, kinds & 2, r, 1),
                      dev + m);
    }
    for (int again = 0; again < 2; again++) { /* requests are persistent */
        char *was = malloc(hidden_bytes), *same = malloc(hidden_bytes);

        if (fake)
            fake->seed(bny_rng_next(&g->rng));
        fill(g);
        memcpy(was, g->host, hidden_bytes);
        drive(g, host, n);
        memcpy(same, g->host, hidden_bytes);
        memcpy(g->host, was, hidden_bytes);
        drive(g, dev, m);
        for (int b = 0; b < 2 * g->n; b++) {
            size_t at = (size_t)b * AREA, bad = 0;
            const char *got = kinds & (b % 2 ? 2 : 1) ? behind + at : g->host + at;

            if (memcmp(got, same + at, AREA) == 0)
                continue;
            while (got[bad] == same[at + bad])
                bad++;
            cr_assert_fail(
                "call %d of %zu elements on %d ranks, kinds %d, run %d: rank %d's %s "
                "buffer differs at byte %zd",
                what, count, g->n, kinds, again, b / 2, b % 2 ? "receive" : "send",
                (ssize_t)(bad - GUARD));
        }
        free(was);
        free(same);
    }
    cr_assert(copies_so_far() > before || count < (size_t)g->n || what == BARRIER || kinds != 3,
              "call %d: nothing was copied", what);
    for (int i = 0; i < n; i++) {
        banyan_request_free(host[i]);
        banyan_request_free(dev[i]);
    }
}

static void all(int n, void (*open)(void))
{
    static const size_t counts[] = { 0, 33, 9001, 1, 1500 };
    const char *scale = getenv("BANYAN_TEST_SCALE"); /* below 1 for slow builds */
    size_t ncounts = scale && atof(scale) < 1 ? 3 : 5;
    struct rig g;

    open();
    rig_open(&g, n);
    for (int what = 0; what < WHATS; what++)
        for (size_t k = 0; k < ncounts; k++)
            for (int kinds = fake || k > 2 ? 3 : 1; kinds < 4; kinds++) {
                g.root = (int)(k + (size_t)what) % n;
                compare(&g, (enum what)what, counts[k], 3, kinds);
                g.root = 0;
                compare(&g, (enum what)what, counts[k], k % 2 ? 3 : 0, kinds);
            }
    rig_close(&g);
}

Test(memory_kind, every_call_on_one_rank, .timeout = 300)
{
    all(1, device_open);
}

Test(memory_kind, every_call_on_three_ranks, .timeout = 300)
{
    all(3, device_open);
}

Test(memory_kind, every_call_on_four_ranks, .timeout = 300)
{
    all(4, device_open);
}

Test(memory_kind, every_call_of_cuda_memory_on_one_rank, .timeout = 300)
{
    all(1, cuda_open);
}

Test(memory_kind, every_call_of_cuda_memory_on_three_ranks, .timeout = 300)
{
    all(3, cuda_open);
}
