/* SPDX-License-Identifier: BSD-3-Clause */
/* The benchmark loop of perf/perf_run.c for other libraries, so that all are measured alike:
 * buffers are written again before every operation (up to 32 KiB: before every 16), then a
 * barrier, then the clock is read around the operations; a time is the slowest rank's; medians.
 * C and C++.
 *
 * Arguments: COLLECTIVE ITERS WARMUP INPLACE SIZE... ; sizes in bytes, as banyan_perf counts
 * them (allgather, reduce_scatter, alltoall, gather, scatter: of the larger side). Output of
 * rank 0: JSON lines. PEER_SPREAD=SECONDS: ranks come to each operation one after the other. */
#ifndef PEER_LOOP_H
#define PEER_LOOP_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PEER_BATCH       16
#define PEER_BATCH_BYTES 32768

struct peer_call {
    const char *collective;
    float *send, *recv; /* in place: the same for allreduce, reduce and broadcast */
    size_t count;       /* f32 elements of the call: per block where there are blocks */
    int inplace;
};

/* What a library's file fills in. */
struct peer {
    const char *name;
    int rank, nranks;
    void *ctx;
    void (*barrier)(struct peer *p);
    /* Returns 0, or -1: no such collective. */
    int (*run)(struct peer *p, const struct peer_call *c);
    void (*max_times)(struct peer *p, double *us, int n); /* element-wise, result at rank 0 */
    /* Made before the first call with these buffers, freed after the last; both may be NULL. */
    void (*prepare)(struct peer *p, const struct peer_call *c);
    void (*forget)(struct peer *p);
    /* Buffers of its own kind; NULL: aligned_alloc. */
    float *(*alloc)(struct peer *p, size_t bytes);
};

static inline double peer_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

static inline int peer_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static inline int peer_is(const struct peer_call *c, const char *name)
{
    return !strcmp(c->collective, name);
}

static inline float *peer_alloc(struct peer *p, size_t bytes)
{
    size_t whole = (bytes + 4096 + 4095) & ~(size_t)4095;
    float *m = p->alloc ? p->alloc(p, whole) : (float *)aligned_alloc(4096, whole);

    if (!m) {
        fprintf(stderr, "%s: out of memory\n", p->name);
        exit(1);
    }
    memset(m, 0, whole);
    return m;
}

struct peer_size {
    struct peer_call call;
    float *pristine;
    size_t send_bytes, recv_bytes;
};

static inline void peer_rewrite(struct peer_size *s)
{
    if (s->call.send != s->call.recv || !s->send_bytes)
        memset(s->call.recv, 0xa5, s->recv_bytes);
    memcpy(s->call.send, s->pristine, s->send_bytes);
}

/* Wrong elements of one allreduce of small whole numbers. */
static inline size_t peer_check(struct peer *p, struct peer_size *s)
{
    size_t wrong = 0;

    peer_rewrite(s);
    p->run(p, &s->call);
    p->barrier(p);
    for (size_t i = 0; peer_is(&s->call, "allreduce") && i < s->call.count; i++) {
        float want = (float)(p->nranks * (p->nranks - 1) / 2 + p->nranks * (int)(i % 1000));

        wrong += s->call.recv[i] != want;
    }
    return wrong;
}

static inline void peer_sleep_us(double us)
{
    struct timespec ts = { (time_t)(us / 1e6), (long)(us * 1e3) % 1000000000 };

    if (us > 0)
        nanosleep(&ts, NULL);
}

/* Ranks 1 to n-1 come one after the other over so long, rank 0 with those in the middle
 * (perf/hoplite/node.py). Prints each time from the last arrival to the last end, microseconds.
 */
static inline int peer_time_spread(struct peer *p, struct peer_size *s, size_t bytes, int iters,
                                   int warmup, double spread_us)
{
    double *came = (double *)calloc((size_t)iters * 2, sizeof(double)), *gone = came + iters;
    int place = p->rank ? p->rank : p->nranks / 2;
    size_t wrong = peer_check(p, s);

    for (int it = -warmup; it < iters; it++) {
        double t0;

        peer_rewrite(s);
        p->barrier(p);
        peer_sleep_us(spread_us * place / (p->nranks - 1));
        t0 = peer_now_us();
        if (p->run(p, &s->call) != 0)
            return -1;
        if (it >= 0) {
            came[it] = t0;
            gone[it] = peer_now_us();
        }
    }
    p->max_times(p, came, 2 * iters);
    if (p->rank == 0) {
        printf(
            "{\"peer\":\"%s\",\"collective\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"wrong\":%zu,"
            "\"us\":[",
            p->name, s->call.collective, p->nranks, bytes, wrong);
        for (int it = 0; it < iters; it++)
            printf("%s%.3f", it ? "," : "", gone[it] - came[it]);
        printf("]}\n");
        fflush(stdout);
    }
    free(came);
    return wrong ? -1 : 0;
}

static inline int peer_time(struct peer *p, struct peer_size *s, size_t bytes, int iters,
                            int warmup)
{
    int batch = bytes <= PEER_BATCH_BYTES ? PEER_BATCH : 1;
    double *us = (double *)calloc((size_t)iters, sizeof(double));
    size_t wrong = peer_check(p, s);

    for (int i = 0; i < warmup * batch; i++)
        if (p->run(p, &s->call) != 0)
            return -1;
    for (int it = 0; it < iters; it++) {
        double t0;

        peer_rewrite(s);
        p->barrier(p);
        t0 = peer_now_us();
        for (int k = 0; k < batch; k++)
            p->run(p, &s->call);
        us[it] = (peer_now_us() - t0) / batch;
    }
    p->max_times(p, us, iters);
    qsort(us, (size_t)iters, sizeof(double), peer_compare);
    if (p->rank == 0) {
        printf(
            "{\"peer\":\"%s\",\"collective\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"inplace\":%d,"
            "\"iters\":%d,\"time_us\":{\"min\":%.3f,\"median\":%.3f},\"wrong\":%zu}\n",
            p->name, s->call.collective, p->nranks, bytes, s->call.inplace, iters, us[0],
            (us[(iters - 1) / 2] + us[iters / 2]) / 2, wrong);
        fflush(stdout);
    }
    free(us);
    return wrong ? -1 : 0;
}

static inline int peer_main(struct peer *p, int argc, char **argv)
{
    size_t most = 0, n = (size_t)p->nranks;
    float *a, *b;
    struct peer_size s;
    int rc = 0;

    memset(&s, 0, sizeof s);
    if (argc < 6) {
        fprintf(stderr, "usage: %s COLLECTIVE ITERS WARMUP INPLACE SIZE...\n", argv[0]);
        return 2;
    }
    for (int i = 5; i < argc; i++)
        most = strtoul(argv[i], NULL, 10) > most ? strtoul(argv[i], NULL, 10) : most;
    a = peer_alloc(p, most + 4 * n);
    b = peer_alloc(p, most + 4 * n);
    s.pristine = (float *)malloc(most + 4 * n);
    for (size_t i = 0; i < most / 4 + n; i++)
        s.pristine[i] = (float)(p->rank + (int)(i % 1000));
    s.call.collective = argv[1];
    s.call.inplace = atoi(argv[4]);
    for (int i = 5; i < argc && rc == 0; i++) {
        size_t bytes = strtoul(argv[i], NULL, 10), elems = bytes / 4;
        int blocks_in = peer_is(&s.call, "reduce_scatter") || peer_is(&s.call, "alltoall") ||
                        (peer_is(&s.call, "scatter") && p->rank == 0);
        int blocks_out = peer_is(&s.call, "allgather") || peer_is(&s.call, "alltoall") ||
                         (peer_is(&s.call, "gather") && p->rank == 0);
        int blocks = blocks_in || blocks_out || peer_is(&s.call, "gather") ||
                     peer_is(&s.call, "scatter");

        s.call.count = blocks ? elems / n : elems;
        if (s.call.count == 0 && bytes)
            s.call.count = 1;
        s.send_bytes = s.call.count * 4 * (blocks_in ? n : 1);
        s.recv_bytes = s.call.count * 4 * (blocks_out ? n : 1);
        s.call.send = a;
        s.call.recv = s.call.inplace ? a : b;
        if (peer_is(&s.call, "broadcast") && p->rank != 0)
            s.send_bytes = 0;
        if (p->prepare)
            p->prepare(p, &s.call);
        bytes = s.call.count * 4 * (blocks ? n : 1);
        if (getenv("PEER_SPREAD"))
            rc = peer_time_spread(p, &s, bytes, atoi(argv[2]), atoi(argv[3]),
                                  atof(getenv("PEER_SPREAD")) * 1e6);
        else
            rc = peer_time(p, &s, bytes, atoi(argv[2]), atoi(argv[3]));
        if (p->forget)
            p->forget(p);
    }
    free(s.pristine);
    if (rc)
        fprintf(stderr, "%s: rank %d: wrong values, or it has no %s\n", p->name, p->rank,
                argv[1]);
    return rc != 0;
}

#endif
