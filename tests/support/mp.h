/* SPDX-License-Identifier: BSD-3-Clause */
/* Harness of the multi-process tests: runs one case of the worker `rank` as n processes, with
 * the environment that banyan_run gives them. Used by tests (mp_run) and by the worker (struct
 * mp_shared).
 *
 * The ranks form a process group of their own and die with the test. Everything they share with
 * the harness is an inherited memfd, so that nothing can be left behind. Their output goes to
 * memfds too and is shown when the run fails. */
#ifndef BNY_TESTS_MP_H
#define BNY_TESTS_MP_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define MP_RANKS_MAX 16
#define MP_ENV_MAX   12
#define MP_SKIP      77

/* Mapped by the harness and by every rank; zero at the start. */
struct mp_shared {
    _Atomic uint32_t marker[MP_RANKS_MAX]; /* how far a rank is; see struct mp_signal */
    _Atomic uint64_t signal_ns;            /* CLOCK_MONOTONIC just before the signal was sent */
    _Atomic uint64_t value[MP_RANKS_MAX][8]; /* results of a case, for its test */
    _Atomic uint32_t arrived, sense;         /* mp_shared_barrier */
    unsigned char blob[MP_RANKS_MAX][16384]; /* the cases' own all-gather */
};

/* Of a run that says nothing else: far more than any takes, even under a sanitizer and beside
 * other programs. */
#define MP_TIMEOUT_S 150.0

/* One signal, sent when rank `rank` has set its marker to at least `marker` and delay_us have
 * passed. The rank that got it need not end well: the run passes when the others do. */
struct mp_signal {
    int signal; /* 0: none */
    int rank;
    uint32_t marker, delay_us;
};

struct mp {
    int n;
    const char *case_name;
    const char *transport; /* BANYAN_TRANSPORT; NULL: unset */
    double timeout_s;      /* the whole run; 0: MP_TIMEOUT_S */
    uint64_t seed;         /* 0: mp_seed() */
    const char *arg;       /* handed to the case; NULL: "" */
    const char
        *env[MP_ENV_MAX]; /* "NAME=value", or "@2 NAME=value" for rank 2 only; "NAME" unsets */
    struct mp_signal kill;
    uint32_t may_end;      /* a bit a rank: it need not end well, the case ends it */
    uint32_t may_die;      /* a bit a rank: it ends well or kills itself, by SIGKILL */
    struct mp_shared *out; /* NULL, or where to copy the shared memory after the run */
};

/* Runs it. Returns 0 when every rank exited with 0, MP_SKIP when one exited with 77 and none
 * failed, else 1 after printing the tail of the outputs to stderr. No process of the run is
 * alive afterwards. */
int mp_run(const struct mp *mp);
/* The last line that a rank of the latest run printed before it skipped; "" when none. */
const char *mp_skip_reason(void);
/* What the latest run printed when it failed, the outputs' tails included: Criterion swallows
 * stderr when it writes TAP. */
const char *mp_report(void);
/* BANYAN_TEST_SEED; a random one where that is "random"; else always the same. */
uint64_t mp_seed(void);
/* BANYAN_TEST_PATIENCE, a factor of all deadlines, for slow machines; else 1. */
double mp_patience(void);

/* In a worker: the shared memory; exits when there is none. With BANYAN_TEST_ALONE set, private
 * memory. */
struct mp_shared *mp_shared_map(void);
/* A barrier of n workers that uses nothing of the library under test. */
void mp_shared_barrier(struct mp_shared *s, int n);
/* Its first half: all are there when s->sense is no longer what this returns. */
uint32_t mp_shared_arrive(struct mp_shared *s, int n);

/* For Criterion tests: turns what mp_run returned into pass, skip or failure. */
#define MP_CHECK(result)                                                                       \
    do {                                                                                       \
        int mp_rc = (result);                                                                  \
        if (mp_rc == MP_SKIP)                                                                  \
            cr_skip_test("%s", mp_skip_reason());                                              \
        cr_assert_eq(mp_rc, 0, "a rank failed:\n%s", mp_report());                             \
    } while (0)

#endif
