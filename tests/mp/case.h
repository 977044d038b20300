/* SPDX-License-Identifier: BSD-3-Clause */
/* What a case of the worker gets and how it checks. A case is a function run by every rank of a
 * job; it returns 0 or MP_SKIP (after printing why), and a failed check ends the process with
 * status 1. */
#ifndef BNY_TESTS_MP_CASE_H
#define BNY_TESTS_MP_CASE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan/banyan.h"
#include "tests/support/mp.h"

/* A deadline beyond every run's limit: a call that waits for it never passes. */
#define CASE_NEVER_S 3600.0

struct test {
    int rank, n;
    struct banyan_comm *comm; /* NULL for cases that init by themselves */
    uint64_t seed;            /* the same on all ranks */
    const char *arg;          /* "" when none */
    const char *transport;
    struct mp_shared *shared;
    int threads;                /* 1: the ranks are threads of one process */
    const struct banyan_id *id; /* threads only; else NULL: the environment has it */
};

enum case_flag {
    CASE_OWN_INIT = 1 << 0, /* comm is NULL; the case makes what it needs */
    CASE_FAILS = 1 << 1, /* the communicator is broken at the end: destroyed, not finalized */
    CASE_NO_THREADS = 1 << 2 /* does something to the whole process */
};
struct mp_case {
    const char *name;
    int (*run)(struct test *t);
    unsigned flags;
};
/* Ranks that are done with something, counted in value[rank][7] of the shared memory: each says
 * so once for each nth, from 1, and whoever waits goes on when all but `but` have said it. */
void case_done(struct test *t, uint64_t nth);
void case_await_done(struct test *t, uint64_t nth, int but);
/* Waits until this rank knows that the communicator failed: its control thread has heard it, or
 * a call of its own said so. */
void case_await_told(const struct banyan_comm *comm);
/* Options of what a case compares with: without a codec, whatever the communicator's is. */
extern const struct banyan_opts case_exact;
/* NULL-terminated tables, one a file. */
extern const struct mp_case cases_collectives[];
extern const struct mp_case cases_codecs[];
extern const struct mp_case cases_flow[];
extern const struct mp_case cases_short[];
extern const struct mp_case cases_ops[];
extern const struct mp_case cases_requests[];
extern const struct mp_case cases_comms[];
extern const struct mp_case cases_memory[];
extern const struct mp_case cases_failures[];
extern const struct mp_case cases_misuse[];
extern const struct mp_case cases_init[];
extern const struct mp_case cases_quiet[];
extern const struct mp_case cases_product[];
extern const struct mp_case cases_self[];
extern const struct mp_case cases_wire[];
extern const struct mp_case cases_resets[];
extern const struct mp_case cases_participants[];
extern const struct mp_case cases_groups[];
extern const struct mp_case cases_again[];
extern const struct mp_case cases_shrink[];
extern const struct mp_case cases_residuals[];
extern const struct mp_case cases_outer[];
extern const struct mp_case cases_training[];
extern const struct mp_case cases_gossip[];
extern const struct mp_case cases_rows[];
extern const struct mp_case cases_sketch[];
extern const struct mp_case cases_stale[];
extern const struct mp_case cases_lazy[];
extern const struct mp_case cases_buckets[];
extern const struct mp_case cases_buckets_wrong[];
extern const struct mp_case cases_lgc[];
extern const struct mp_case cases_survive[];
extern const struct mp_case cases_trouble[];
extern const struct mp_case cases_grow[];
extern const struct mp_case cases_arrival[];
extern const struct mp_case cases_pipeline[];
extern const struct mp_case cases_cells[];
extern const struct mp_case cases_hosts[];
extern const struct mp_case cases_hostile[];
extern const struct mp_case cases_in_flight[];
extern const struct mp_case cases_objects[];

/* Prints file, line, rank, the text, banyan_last_error and the seed; ends the process. */
void case_fail(const struct test *t, const char *file, int line, const char *what,
               const char *fmt, ...) __attribute__((noreturn, format(printf, 5, 6)));
#define CHECK(t, cond, ...)                                                                    \
    do {                                                                                       \
        if (!(cond))                                                                           \
            case_fail((t), __FILE__, __LINE__, #cond, __VA_ARGS__);                            \
    } while (0)
/* The call must return `code`. */
#define CHECK_RC(t, code, call)                                                                \
    do {                                                                                       \
        int check_rc_ = (call);                                                                \
        if (check_rc_ != (code))                                                               \
            case_fail((t), __FILE__, __LINE__, #call, "returned %d (%s), not %d", check_rc_,   \
                      banyan_strerror(check_rc_), (int)(code));                                \
    } while (0)
#define CHECK_OK(t, call) CHECK_RC(t, 0, call)
/* Does `text` hold `part`, letters of either case? */
#define CHECK_HAS(t, text, part)                                                               \
    CHECK(t, case_has((text), (part)), "'%s' lacks '%s'", (text), (part))
int case_has(const char *text, const char *part);

/* Prints why and returns MP_SKIP. */
int case_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Initialises from the environment, or from t->id for threads. */
int case_init(const struct test *t, const struct banyan_config *cfg, struct banyan_comm **out);
/* A config with the test's transport. */
struct banyan_config case_config(const struct test *t);
/* Every rank's x is the same, or the test fails saying `what`. */
void case_check_agree(const struct test *t, struct banyan_comm *comm, uint64_t x,
                      const char *what);
/* The same where ranks may die: 0, or the library's error. */
int case_try_agree(const struct test *t, struct banyan_comm *comm, uint64_t x,
                   const char *what);
/* FNV-1a, for comparing large results between ranks. */
uint64_t case_hash(const void *data, size_t bytes);
/* A u32 sum allreduce whose result is known: does the communicator work? */
void case_check_works(const struct test *t, struct banyan_comm *comm);
/* All ranks of comm are out of the calls before this: none hears in one of them of a failure
 * that comes behind it. Nothing of the library but progress. */
void case_meet(const struct test *t, struct banyan_comm *comm);
void *case_malloc(size_t bytes);
/* Calls of malloc and its like so far, in this process, by the worker and the library in it. */
unsigned long case_allocations(void);
/* realloc of this process finds no memory, from now on; 0: it does again. */
void case_starve(int starve);
/* Behind so many allocations of this process so many find no memory; case_malloc's never are
 * among them. */
void case_starve_after(long calls, long fail);
/* This thread is left out of that, or no longer. */
void case_feed(int on);

#endif
