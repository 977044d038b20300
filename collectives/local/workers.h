/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs: local work (local.h) that is done now by the thread that has it, or later by another
 * thread while the thread that makes progress does something else. Jobs know nothing of
 * operations: the giver of a job decides what becomes of the bytes. */
#ifndef BNY_COLLECTIVES_WORKERS_H
#define BNY_COLLECTIVES_WORKERS_H

#include <fenv.h>
#include <stdatomic.h>

#include "collectives/call/redop.h"
#include "collectives/local/memory_kind.h"
#include "compress/codec.h"
#include "transport/transport.h"

#define BNY_WORKERS_MAX 16

enum bny_job_state { BNY_JOB_NONE, BNY_JOB_WAITS, BNY_JOB_RUNS, BNY_JOB_DONE };

enum bny_job_what { BNY_JOB_COPY, BNY_JOB_REDUCE, BNY_JOB_ENCODE, BNY_JOB_DECODE };

struct bny_job {
    struct bny_job *next; /* of the queue */
    atomic_int state; /* enum bny_job_state; what a worker wrote may be read once it is DONE */
    /* given */
    enum bny_job_what what;
    union {
        struct {
            const struct bny_mem_kind
                *kind; /* of whichever end is not direct; NULL: both are */
            void *dst;
            const void *src;
            size_t bytes;
        } copy;
        struct {
            const struct bny_redop *op;
            enum banyan_dtype dtype;
            void *dst;
            const void *a, *b;
            size_t n;
        } reduce;
        struct {
            struct bny_enc enc;
            void *wire;
            size_t cap;
            const void *src;
            size_t n;
            int with_crc;
        } encode;
        struct {
            struct bny_dec dec;
            void *dst;
            const void *wire;
            size_t len, n;
        } decode;
    };
    int is_timed;
    fenv_t env; /* any thread rounds as the giver does */
    /* the giver's own */
    uint32_t chunk;
    struct bny_slot slot; /* where wire points */
    /* taken */
    long result;     /* 0 or an error; ENCODE: bny_message_encode's */
    char text[200];  /* the sentence of an error */
    uint32_t thread; /* 0: the giver; else number of the worker, from 1 */
    uint64_t t0, t1; /* when is_timed */
};

struct bny_workers;

/* How many threads a rank gets: `asked` (BANYAN_ENCODE_THREADS), or, when that is negative, one
 * for each CPU that this process may use beyond one for each of `nlocal` ranks, two at most. */
int bny_workers_count(long long asked, int nlocal);
/* Starts `count` threads, 1 to BNY_WORKERS_MAX. They choose their place themselves (hwloc):
 * near the device that the caller's core is near to, on other cores than the caller's. 0, or
 * -BANYAN_ENOMEM (then all are gone again). */
int bny_workers_start(struct bny_workers **out, int count);
/* Ends and joins them; no job is left. Takes NULL. Not in a child of fork, which has no such
 * threads. */
void bny_workers_stop(struct bny_workers *w);

/* Queues a job, which is borrowed until it is DONE or taken back. */
void bny_job_give(struct bny_workers *w, struct bny_job *job);
/* 1: no worker had begun it, and none will: it is the caller's, state RUNS. 0: a worker has it,
 * or is done. */
int bny_job_take_back(struct bny_workers *w, struct bny_job *job);
/* Does here and now a job that was taken back, or never given; DONE afterwards. */
void bny_job_run(struct bny_job *job, uint32_t thread);

static inline enum bny_job_state bny_job_state(struct bny_job *job)
{
    return (enum bny_job_state)atomic_load_explicit(&job->state, memory_order_acquire);
}

#endif
