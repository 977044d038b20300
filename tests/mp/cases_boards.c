/* SPDX-License-Identifier: BSD-3-Clause */
/* A contribution that several ranks read in one place of shared memory: who does not read his,
 * because it computes or is dead, holds up nobody who does not need it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/mp/case.h"

#define BYTES 20000u /* more than a ring takes at once */
#define CALLS 80     /* more than there are places */

static unsigned char byte_of(int rank, int call, size_t i)
{
    return (unsigned char)(rank * 89 + call * 31 + (int)(i % 251));
}

static void fill(unsigned char *x, int rank, int call)
{
    for (size_t i = 0; i < BYTES; i++)
        x[i] = byte_of(rank, call, i);
}

static void check(const struct test *t, const unsigned char *all, int n, int call)
{
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < BYTES; i++)
            CHECK(t, all[(size_t)r * BYTES + i] == byte_of(r, call, i),
                  "call %d: byte %zu of rank %d", call, i, r);
}

/* The last rank begins as many allgathers as arg says and does not look again; when the others
 * are through these, it dies ("dead") or computes ("slow"), and they go on without it. */
static int boards(struct test *t)
{
    int begun = atoi(t->arg), is_last = t->rank == t->n - 1, dies = case_has(t->arg, "dead");
    unsigned char *x = case_malloc(BYTES), *all = case_malloc((size_t)t->n * BYTES);
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_request *rq[32];
    struct banyan_comm *some;

    CHECK(t, begun <= 32, "%d", begun);
    opts.timeout_s = 20 * mp_patience();
    CHECK_OK(t, banyan_comm_split(t->comm, is_last ? -1 : 0, 0, &some));
    fill(x, t->rank, 0);
    CHECK_OK(t, banyan_allgather(x, all, BYTES, BANYAN_U8, t->comm, &opts));
    check(t, all, t->n, 0);
    for (int i = 0; i < begun; i++)
        CHECK_OK(t, banyan_allgather_init(x, all, BYTES, BANYAN_U8, t->comm, &opts, &rq[i]));
    for (int i = 0; i < begun && is_last; i++)
        CHECK_OK(t, banyan_start(rq[i]));
    mp_shared_barrier(t->shared, t->n);
    for (int i = 0; i < begun && !is_last; i++) {
        CHECK_OK(t, banyan_start(rq[i]));
        CHECK_OK(t, banyan_wait(rq[i], -1));
        check(t, all, t->n, 0);
    }
    mp_shared_barrier(t->shared, t->n);
    if (is_last && dies)
        kill(getpid(), SIGKILL);
    for (int call = 1; call <= CALLS && !is_last; call++) {
        fill(x, t->rank, call);
        CHECK_OK(t, banyan_allgather(x, all, BYTES, BANYAN_U8, some, &opts));
        check(t, all, t->n - 1, call);
    }
    if (!dies)
        mp_shared_barrier(t->shared, t->n);
    for (int i = 0; i < begun; i++) {
        if (is_last)
            CHECK_OK(t, banyan_wait(rq[i], -1));
        CHECK_OK(t, banyan_request_free(rq[i]));
    }
    if (!is_last)
        CHECK_OK(t, banyan_comm_finalize(some));
    free(x);
    free(all);
    return 0;
}

static int boards_of_the_dead(struct test *t)
{
    return boards(t);
}

const struct mp_case cases_boards[] = {
    { "boards", boards, 0 },
    { "boards_of_the_dead", boards_of_the_dead, CASE_NO_THREADS | CASE_FAILS },
    { 0 },
};
