/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of collectives that banyan_perf can run: how many elements each buffer has, how it
 * is called, and what the result must be. */
#ifndef BNY_PERF_PERF_CASE_H
#define BNY_PERF_PERF_CASE_H

#include <stddef.h>

#include "banyan/banyan.h"

/* Arguments of one call, as the API takes them. */
struct perf_call {
    const void *send;
    void *recv;
    size_t count;
    enum banyan_dtype dtype;
    banyan_op op;
    int root;
    struct banyan_comm *comm;
    const struct banyan_opts *opts;
    int rank, nranks;
};

/* Where block b of the receive buffer comes from: elements [offset, offset + count) of rank
 * src's send buffer, or the reduction over all ranks of those. */
struct perf_source {
    int src; /* PERF_REDUCED, or a rank */
    size_t offset;
};
#define PERF_REDUCED (-1)

enum perf_case_flags {
    PERF_ROOTED = 1 << 0,  /* has a root */
    PERF_REDUCES = 1 << 1, /* has an op */
    PERF_BLOCKS = 1 << 2,  /* a size is that of nranks blocks of count elements */
    PERF_IN = 1 << 3,      /* can run in place */
    PERF_OUT = 1 << 4,     /* can run out of place */
    PERF_RAW = 1 << 5,     /* raw transport, not a collective (perf_put.c) */
    PERF_NO_DATA = 1 << 6, /* moves nothing (barrier) */
    PERF_SAME = 1 << 7,    /* all ranks end with the same result */
};

struct perf_case {
    char name[16];
    unsigned flags;
    /* busbw = algbw * (a*(n-1) + b*n) / n */
    int bus_a, bus_b;
    int (*run)(const struct perf_call *c);
    /* Elements in this rank's send buffer, and blocks of count elements it receives; per rank n
     * ranks. */
    size_t (*send_elems)(const struct perf_call *c);
    int (*recv_blocks)(const struct perf_call *c);
    struct perf_source (*source)(const struct perf_call *c, int block);
    /* In place: element offset of the send data in the one buffer, and of the result. */
    size_t (*inplace_send)(const struct perf_call *c);
    size_t (*inplace_recv)(const struct perf_call *c);
};

/* Ends with an empty name. */
extern const struct perf_case perf_cases[];
const struct perf_case *perf_case_find(const char *name);
double perf_bus_factor(const struct perf_case *pc, int nranks);

#endif
