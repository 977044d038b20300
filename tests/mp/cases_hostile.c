/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank that writes into all memory that it shares with others, at random and at any moment:
 * segments, cells, and the areas of passes, also of its host's. It may send wrong numbers and
 * stop its communicators, but the others neither crash nor hang, and what they compute among
 * themselves is right, or an error says that it is not there. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/world/comm.h"
#include "tests/mp/case.h"

#define OPS        120   /* unless they end earlier */
#define MOST       65536 /* elements; beyond what cells take from 4096 on */
#define OP_S       0.4
#define PLACES     256
#define LOOK_AGAIN 64 /* words between two looks for new memory */

/* What an honest rank says in value[rank] of the shared memory; and the hostile one: words that
 * it wrote into segments, and into areas of cells and passes. */
enum { WENT_WELL, FAILED, AMONG_HONEST, ENDED };
enum { INTO_SEGMENTS, INTO_AREAS };

struct places {
    char *at[PLACES];
    size_t bytes[PLACES];
    int is_area[PLACES];
    int n;
};

/* What the library has made to share: all memory files of its names that this process may
 * write. */
static void find_places(struct places *p)
{
    FILE *f = fopen("/proc/self/maps", "re");
    unsigned long from, to;
    char line[512], mode[8];

    p->n = 0;
    while (f && p->n < PLACES && fgets(line, sizeof line, f))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && !strcmp(mode, "rw-s") &&
            strstr(line, "/memfd:banyan")) {
            p->at[p->n] = (char *)from;
            p->is_area[p->n] = strstr(line, "/memfd:banyan-mem") != NULL;
            p->bytes[p->n++] = to - from;
        }
    if (f)
        fclose(f);
}

/* Any word, and such as lead deeper: a neighbour of what is there, a bit of it, an old number.
 */
static uint32_t some_word(uint64_t *rng, uint32_t was)
{
    uint32_t any = (uint32_t)bny_rng_next(rng);

    switch (bny_rng_below(rng, 6)) {
    case 0: return any;
    case 1: return was + 1;
    case 2: return was - 1;
    case 3: return was ^ 1u << (any & 31);
    case 4: return any & 0xff;
    default: return any | 0xffff0000u;
    }
}

/* Heads and counts lie at the beginning, and in the lines that all write often. */
static void spoil(const struct places *p, uint64_t *rng, _Atomic uint64_t *says)
{
    size_t which = bny_rng_below(rng, (uint64_t)p->n), words = p->bytes[which] / 4,
           begin = words < 16384 ? words : 16384;
    size_t nth = bny_rng_below(rng, 4) ? bny_rng_below(rng, begin) : bny_rng_below(rng, words);
    uint32_t *at = (uint32_t *)(void *)p->at[which] + nth;

    __atomic_store_n(at, some_word(rng, __atomic_load_n(at, __ATOMIC_RELAXED)),
                     __ATOMIC_RELAXED);
    atomic_fetch_add(&says[p->is_area[which] ? INTO_AREAS : INTO_SEGMENTS], 1);
}

/* Memory that is unmapped meanwhile ends this process, which is the hostile one's. */
static void *write_everywhere(void *arg)
{
    struct test *t = arg;
    uint64_t own = t->seed ^ 99, *rng = &own;
    struct places p = { .n = 0 };

    for (uint64_t i = 0;; i++) {
        if (i % LOOK_AGAIN == 0)
            find_places(&p);
        if (p.n)
            spoil(&p, rng, t->shared->value[t->rank]);
        if (bny_rng_below(rng, 64) == 0)
            usleep((unsigned)bny_rng_below(rng, 200));
    }
    return NULL;
}

/* Any operation of all ranks. Its result is of no interest: the hostile rank takes part. */
static int any_operation(struct banyan_comm *comm, uint64_t *s, uint32_t *in, uint32_t *out)
{
    size_t n = (size_t)banyan_comm_count(comm), room = MOST / n,
           count = 1 + bny_rng_below(s, bny_rng_below(s, 2) ? 60 : room);
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    int root = (int)bny_rng_below(s, n);

    if (!comm->scope.shares_memory && count > 4096) /* of several hosts */
        opts.schedule = "hierarchical";
    switch (bny_rng_below(s, 7)) {
    case 0: return banyan_barrier(comm, NULL);
    case 1: return banyan_broadcast(out, count, BANYAN_U32, root, comm, NULL);
    case 2: return banyan_reduce(in, out, count, BANYAN_U32, BANYAN_SUM, root, comm, NULL);
    case 3: return banyan_gather(in, out, count, BANYAN_U32, root, comm, NULL);
    case 4: return banyan_alltoall(in, out, count, BANYAN_U32, comm, NULL);
    case 5: return banyan_allgather(in, out, count, BANYAN_U32, comm, NULL);
    default: return banyan_allreduce(in, out, count, BANYAN_U32, BANYAN_SUM, comm, &opts);
    }
}

/* 0: the sum of the honest ranks is right, which this checks; else the error. */
static int honest_sum(struct test *t, struct banyan_comm *comm, uint64_t *s, uint32_t *in,
                      uint32_t *out)
{
    uint32_t n = (uint32_t)banyan_comm_count(comm), me = (uint32_t)banyan_comm_rank(comm);
    size_t count = 1 + bny_rng_below(s, bny_rng_below(s, 2) ? 60 : MOST);
    int rc;

    for (size_t i = 0; i < count; i++)
        in[i] = (uint32_t)i * 3 + me;
    rc = banyan_allreduce(in, out, count, BANYAN_U32, BANYAN_SUM, comm, NULL);
    for (size_t i = 0; rc == 0 && i < count; i++)
        CHECK(t, out[i] == n * (uint32_t)i * 3 + n * (n - 1) / 2,
              "a sum among honest ranks is wrong at %zu: %u", i, out[i]);
    return rc;
}

static void honest(struct test *t, struct banyan_comm *all, struct banyan_comm *own, int from)
{
    static uint32_t in[MOST], out[MOST];
    _Atomic uint64_t *says = t->shared->value[t->rank];
    uint64_t s = t->seed, mine = t->seed ^ 77;
    int rc = 0, among = 0;

    for (int i = 0; i < OPS && rc == 0 && among == 0; i++) {
        rc = any_operation(all, &s, in, out);
        atomic_fetch_add(&says[rc ? FAILED : WENT_WELL], rc || i >= from);
        if (i >= from) /* so that there is something to read */
            usleep(300);
        if (i % 3)
            continue;
        among = honest_sum(t, own, &mine, in, out);
        atomic_fetch_add(&says[AMONG_HONEST], among == 0 && i >= from);
    }
    banyan_comm_destroy(own);
    banyan_comm_destroy(all);
    atomic_store(&says[ENDED], 1);
}

/* Its own end, if what it wrote harmed itself. */
static void leave(int signal)
{
    (void)signal;
    _exit(0);
}

/* Goes on writing until the others have ended, or for as long as two operations take. */
static void hostile(struct test *t, struct banyan_comm *all, int from)
{
    static const int ends[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE };
    static uint32_t in[MOST], out[MOST];
    uint64_t s = t->seed;
    pthread_t thread;
    uint64_t until;
    int rc = 0, left;

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        signal(ends[i], leave);
    for (int i = 0; i < OPS && rc == 0; i++) {
        if (i == from)
            CHECK(t, pthread_create(&thread, NULL, write_everywhere, t) == 0, "no thread");
        rc = any_operation(all, &s, in, out);
    }
    until = bny_deadline_in(2 * OP_S * mp_patience());
    do {
        usleep(1000);
        left = 0;
        for (int r = 0; r < t->n - 1; r++)
            left += !atomic_load(&t->shared->value[r][ENDED]);
    } while (left && !bny_deadline_passed(until));
    _exit(0);
}

/* The last rank is hostile. arg: a number that makes another job of it. */
static int hostile_memory(struct test *t)
{
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *all, *own;
    uint64_t s = t->seed += strtoull(t->arg, NULL, 0);
    int from = 1 + (int)bny_rng_below(&s, OPS / 2), is_hostile = t->rank == t->n - 1;

    cfg.op_timeout_s = OP_S * mp_patience();
    CHECK_OK(t, case_init(t, &cfg, &all));
    CHECK_OK(t, banyan_comm_split(all, is_hostile, t->rank, &own));
    if (is_hostile)
        hostile(t, all, from);
    honest(t, all, own, from);
    return 0;
}

const struct mp_case cases_hostile[] = {
    { "hostile_memory", hostile_memory, CASE_OWN_INIT | CASE_NO_THREADS },
    { 0 },
};
