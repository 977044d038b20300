/* SPDX-License-Identifier: BSD-3-Clause */
/* Time, events, and threads of which one runs at a time. Whoever gives way runs the events that
 * come next, in its own stack, until one of them wakes a thread. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/rng.h"
#include "simulator/real.h"
#include "simulator/sim.h"

#define WAKE_NS   2000u  /* from a wake-up to its thread running */
#define JITTER_NS 3000u  /* and by chance so much more */
#define YIELD_NS  3000u  /* a sched_yield that finds nobody */
#define AHEAD_NS  50000u /* a thread that does not give way is made to */

struct event {
    uint64_t ns, number;
    void (*fn)(void *a, uint64_t b);
    void *a;
    uint64_t b;
};

uint64_t sim_now, sim_hash, sim_nevents;
static struct event *heap;
static size_t nheap, heap_cap;
static uint64_t numbers, limit_ns;
static struct sim_turn main_turn;
static int stuck; /* the events ran out */
static __thread struct sim_thread *self;

struct sim_thread *sim_self(void)
{
    return self;
}

void sim_mix(uint64_t x)
{
    sim_hash = (sim_hash ^ x) * 0x9e3779b97f4a7c15u;
    sim_hash ^= sim_hash >> 29;
}

void sim_no_memory(void)
{
    _exit(SIM_NO_MEMORY);
}

/* ---- events ---- */

static int before(const struct event *a, const struct event *b)
{
    return a->ns != b->ns ? a->ns < b->ns : a->number < b->number;
}

void sim_at(uint64_t ns, void (*fn)(void *a, uint64_t b), void *a, uint64_t b)
{
    struct event e = { ns < sim_now ? sim_now : ns, numbers++, fn, a, b };
    size_t i = nheap++;

    if (nheap > heap_cap) {
        heap_cap = heap_cap ? 2 * heap_cap : 1024;
        heap = realloc(heap, heap_cap * sizeof *heap);
        if (!heap)
            sim_no_memory();
    }
    while (i > 0 && before(&e, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = e;
}

static struct event pop(void)
{
    struct event first = heap[0], last = heap[--nheap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < nheap) {
        child += child + 1 < nheap && before(&heap[child + 1], &heap[child]);
        if (!before(&heap[child], &last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

/* ---- threads ---- */

/* The function of an event that wakes a thread; the loop knows it by its address. */
static void resume(void *a, uint64_t b)
{
    (void)a;
    (void)b;
}

/* Is it this thread's turn by this event? b: number of the wait, and whether it is its end. */
static struct sim_thread *woken(const struct event *e)
{
    struct sim_thread *t = e->a;

    if (e->fn != resume || !t->blocked || t->wait != (uint32_t)(e->b >> 1) ||
        t->rank->fate == SIM_DEAD)
        return NULL;
    if (t->rank->fate == SIM_STOPPED) {
        sim_at(sim_now + 10 * SIM_MS, resume, t, e->b); /* looks again */
        return NULL;
    }
    t->timed_out = (int)(e->b & 1);
    return t;
}

/* Runs events until it is this thread's turn (NULL: the real main thread's, at the end). */
static void run_events(struct sim_thread *me)
{
    for (;;) {
        struct sim_thread *t = NULL;
        struct event e;

        if (nheap == 0 || heap[0].ns > limit_ns) {
            stuck = nheap == 0;
            if (!me)
                return;
            sim_turn_pass(&me->turn, &main_turn); /* for ever */
            abort();
        }
        e = pop();
        sim_now = e.ns;
        sim_nevents++;
        if (e.fn == resume)
            t = woken(&e);
        else
            e.fn(e.a, e.b);
        if (!t)
            continue;
        sim_mix(sim_now ^ (uint64_t)t->rank->rank << 48);
        t->blocked = 0;
        t->ahead = 0;
        if (t == me)
            return;
        sim_turn_pass(me ? &me->turn : &main_turn, &t->turn);
        return;
    }
}

int sim_wait(uint64_t until_ns, const void *what)
{
    struct sim_thread *t = self;
    uint64_t local = sim_now + t->ahead;

    t->wait++;
    t->blocked = 1;
    t->waits_for = what;
    if (until_ns != SIM_NEVER)
        sim_at(until_ns > local ? until_ns : local, resume, t, (uint64_t)t->wait << 1 | 1);
    run_events(t);
    t->waits_for = NULL;
    return t->timed_out;
}

void sim_wake(struct sim_thread *t)
{
    if (t->blocked)
        sim_at(sim_now + t->ahead + WAKE_NS + sim_random() % JITTER_NS, resume, t,
               (uint64_t)t->wait << 1);
}

void sim_wake_all(struct sim_rank *rank, const void *what, int most)
{
    for (struct sim_thread *t = rank->threads; t && most > 0; t = t->next)
        if (t->blocked && t->waits_for == what) {
            t->waits_for = NULL;
            sim_wake(t);
            most--;
        }
}

static void body(void *arg)
{
    struct sim_thread *t = arg;

    self = t;
    t->result = t->start(t->arg);
    t->ended = 1;
    sim_wake_all(t->rank, t, 1 << 30);
    for (;;)
        sim_wait(SIM_NEVER, NULL);
}

struct sim_thread *sim_thread_new(struct sim_rank *rank, void *(*start)(void *), void *arg)
{
    struct sim_thread *t = calloc(1, sizeof *t), **at = &rank->threads;
    int rc;

    if (!t)
        return NULL;
    t->rank = rank;
    t->start = start;
    t->arg = arg;
    t->blocked = 1;
    rc = sim_turn_new(&t->turn, body, t);
    if (rc != 0) {
        free(t);
        errno = rc;
        return NULL;
    }
    while (*at)
        at = &(*at)->next;
    *at = t;
    sim_wake(t);
    return t;
}

uint64_t sim_time(void)
{
    return sim_now + (self ? self->ahead : 0);
}

uint64_t sim_clock(void)
{
    uint64_t *seen = &self->rank->clock_ns, ns = sim_time();

    *seen = ns > *seen ? ns : *seen;
    return *seen;
}

void sim_charge(uint64_t ns)
{
    struct sim_rank *r = self->rank;

    self->ahead += ns;
    if (++r->calls == r->die_at_call)
        sim_rank_kill(r);
    if (r->fate != SIM_LIVES || self->ahead > AHEAD_NS)
        sim_yield();
}

void sim_yield(void)
{
    sim_wait(sim_now + self->ahead + YIELD_NS, NULL);
}

int sim_run(uint64_t until_ns)
{
    sim_turn_init(&main_turn);
    limit_ns = until_ns;
    stuck = 0;
    run_events(NULL);
    return stuck;
}

/* ---- chance ---- */

static uint64_t chance;

uint64_t sim_random(void)
{
    return bny_rng_next(&chance);
}

void sim_seed(uint64_t seed)
{
    chance = seed;
}
