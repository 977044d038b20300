/* SPDX-License-Identifier: BSD-3-Clause */
/* LightGBM on banyan: the two functions that LGBM_NetworkInitWithFunctions() of its C interface
 * takes. LightGBM makes all else of them. This library knows LightGBM by the types below alone.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unwind.h>

#include "banyan/extend.h"
#include "base/err.h"

/* LGBM_NetworkInitWithFunctions: 0, or -1. */
typedef int (*network_init_fn)(int num_machines, int rank, void *reduce_scatter,
                               void *allgather);
/* inout = inout (op) in, both of `bytes` bytes in elements of type_size. */
typedef void (*reducer_fn)(const char *in, char *inout, int type_size, int bytes);

/* Makes LightGBM of this thread communicate over comm, which it borrows until
 * banyan_lightgbm_stop(): init is the program's LGBM_NetworkInitWithFunctions. Call it before
 * data sets are made, on the thread that trains; a thread has one. Returns 0, -EINVAL, -ENOMEM,
 * -ESYSTEM (init failed: LGBM_GetLastError() says why). Where a call of LightGBM fails in
 * banyan it raises an exception that LightGBM returns as an error, after the sentence on
 * stderr. */
BANYAN_API int banyan_lightgbm_start(struct banyan_comm *comm, network_init_fn init);
/* Forgets the communicator, behind LGBM_NetworkFree(). Returns 0. */
BANYAN_API int banyan_lightgbm_stop(void);

#define OPS 16 /* LightGBM has some six */

struct known_op {
    reducer_fn reducer;
    int type_size;
    enum banyan_dtype dtype; /* of the call; U8: op is a user operation */
    banyan_op op;
};

/* LightGBM's state of the network is each thread's own, too. */
static __thread struct {
    struct banyan_comm *comm;
    int nranks;
    size_t *counts, *displs; /* [nranks] */
    struct known_op ops[OPS];
    int nops;
} net;

/* LightGBM's functions of C catch any exception, and return -1. */
static void fail(const char *what)
{
    static __thread struct _Unwind_Exception failure;

    banyan_log(BANYAN_LOG_ERROR, "LightGBM's %s failed: %s", what, banyan_last_error());
    _Unwind_RaiseException(&failure);
    _exit(1); /* nobody catches it: a call of something else than LightGBM */
}

static void run_reducer(void *ctx, const void *in, void *inout, size_t n,
                        enum banyan_dtype dtype)
{
    const struct known_op *k = ctx;

    k->reducer(in, inout, k->type_size, (int)n * k->type_size);
}

/* Is the reducer a sum of such numbers? It tells on numbers whose sum nothing else gives. */
static int is_sum(reducer_fn reducer, int type_size, enum banyan_dtype dtype)
{
    enum { BYTES = 256 };
    _Alignas(16) char in[BYTES], inout[BYTES], sum[BYTES];
    size_t item = banyan_dtype_bytes(dtype), n = (size_t)type_size / item * 2;

    if ((size_t)type_size % item || n * item > BYTES)
        return 0;
    for (size_t i = 0; i < n; i++) {
        double x = 0.1 + (double)i / 3, y = 1e-7 * (double)(i + 1) - 5;
        uint64_t u = 0x0123456789abcdefu * (i + 1), v = 0x7edcba987654321u + i, s = u + v;
        double d = x + y;

        /* The low bytes of a 64-bit sum are the 32-bit one. */
        memcpy(in + i * item, dtype == BANYAN_F64 ? (void *)&x : &u, item);
        memcpy(inout + i * item, dtype == BANYAN_F64 ? (void *)&y : &v, item);
        memcpy(sum + i * item, dtype == BANYAN_F64 ? (void *)&d : &s, item);
    }
    reducer(in, inout, type_size, (int)(n * item));
    return memcmp(inout, sum, n * item) == 0;
}

/* Sums of histograms are most of what is reduced: they run in the library's own loop. NULL
 * after bny_fail(). */
static const struct known_op *op_of(reducer_fn reducer, int type_size)
{
    static const enum banyan_dtype sums[] = { BANYAN_F64, BANYAN_I64, BANYAN_I32 };
    struct known_op *k;

    for (k = net.ops; k < net.ops + net.nops; k++)
        if (k->reducer == reducer && k->type_size == type_size)
            return k;
    if (net.nops == OPS) {
        bny_fail(BANYAN_ENOMEM, "more than %d reducers", OPS);
        return NULL;
    }
    *k = (struct known_op){ reducer, type_size, BANYAN_U8, 0 };
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++)
        if (is_sum(reducer, type_size, sums[i])) {
            k->dtype = sums[i];
            k->op = BANYAN_SUM;
            break;
        }
    if (k->dtype == BANYAN_U8 &&
        banyan_op_create_user(run_reducer, k, (size_t)type_size, 0, 1, &k->op) < 0)
        return NULL;
    net.nops++;
    return k;
}

/* Lengths in bytes to elements of `item`. The blocks lie one after the other. */
static int take_blocks(const int *start, const int *len, int nblocks, size_t item)
{
    if (!net.comm || nblocks != net.nranks)
        return bny_fail(BANYAN_EINVAL,
                        "%d blocks for %d ranks: banyan_lightgbm_start() was "
                        "called on another thread",
                        nblocks, net.nranks);
    for (int r = 0; r < nblocks; r++) {
        if (start[r] < 0 || len[r] < 0 || (size_t)len[r] % item)
            return bny_fail(BANYAN_EINVAL, "block %d has %d bytes at %d, elements of %zu", r,
                            len[r], start[r], item);
        net.counts[r] = (size_t)len[r] / item;
        net.displs[r] = (size_t)start[r] / item;
    }
    return 0;
}

static int reduce_scatter_rc(char *in, int type_size, const int *start, const int *len,
                             int nblocks, char *out, reducer_fn reducer)
{
    const struct known_op *k = op_of(reducer, type_size);
    int rc;

    if (!k)
        return -BANYAN_ENOMEM;
    rc = take_blocks(start, len, nblocks, banyan_dtype_bytes(k->dtype));
    for (int r = 1; r < nblocks && rc == 0; r++)
        if (start[r] != start[r - 1] + len[r - 1])
            rc = bny_fail(BANYAN_EINVAL, "block %d does not follow block %d", r, r - 1);
    if (rc < 0)
        return rc;
    return banyan_reduce_scatterv(in, out, net.counts, k->dtype, k->op, net.comm, NULL);
}

/* The reducer comes as a reference to a function pointer. */
static void reduce_scatter(char *in, int in_bytes, int type_size, const int *start,
                           const int *len, int nblocks, char *out, int out_bytes,
                           const reducer_fn *reducer)
{
    if (reduce_scatter_rc(in, type_size, start, len, nblocks, out, *reducer) < 0)
        fail("reduce-scatter");
}

static void allgather(char *in, int in_bytes, const int *start, const int *len, int nblocks,
                      char *out, int out_bytes)
{
    if (take_blocks(start, len, nblocks, 1) < 0 ||
        banyan_allgatherv(in, out, net.counts, net.displs, BANYAN_U8, net.comm, NULL) < 0)
        fail("allgather");
}

int banyan_lightgbm_start(struct banyan_comm *comm, network_init_fn init)
{
    int nranks = banyan_comm_count(comm);

    if (nranks < 0)
        return nranks;
    if (!init)
        return bny_fail(BANYAN_EINVAL, "init must be LGBM_NetworkInitWithFunctions, not NULL");
    banyan_lightgbm_stop();
    net.counts = calloc((size_t)nranks, sizeof *net.counts);
    net.displs = calloc((size_t)nranks, sizeof *net.displs);
    if (!net.counts || !net.displs) {
        banyan_lightgbm_stop();
        return bny_fail(BANYAN_ENOMEM, "no memory for the blocks of %d ranks", nranks);
    }
    net.comm = comm;
    net.nranks = nranks;
    if (init(nranks, banyan_comm_rank(comm), (void *)(uintptr_t)reduce_scatter,
             (void *)(uintptr_t)allgather) != 0) {
        banyan_lightgbm_stop();
        return bny_fail(BANYAN_ESYSTEM,
                        "LGBM_NetworkInitWithFunctions failed; LGBM_GetLastError() says why");
    }
    return 0;
}

int banyan_lightgbm_stop(void)
{
    for (int i = 0; i < net.nops; i++)
        if (net.ops[i].dtype == BANYAN_U8)
            banyan_op_free(net.ops[i].op);
    free(net.counts);
    free(net.displs);
    memset(&net, 0, sizeof net);
    return 0;
}
