/* SPDX-License-Identifier: BSD-3-Clause */
/* Jobs, the threads that do them, and their queue. */
#include "collectives/local/workers.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/quota.h"
#include "collectives/local/local.h"
#include "topo/machine.h"

struct bny_workers {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t more;
    struct bny_job *first, **last;
    int stops;
    int count, numbered; /* threads; of them, have a number */
    int cpu;             /* the starter's */
    pthread_t thread[BNY_WORKERS_MAX];
};

int bny_workers_count(long long asked, int nlocal)
{
    cpu_set_t set;
    uint64_t group;
    int cpus, spare, quota;

    if (asked >= 0)
        return asked < BNY_WORKERS_MAX ? (int)asked : BNY_WORKERS_MAX;
    cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    quota = bny_cpu_quota(&group);
    cpus = quota && quota < cpus ? quota : cpus;
    spare = cpus / (nlocal > 0 ? nlocal : 1) - 1;
    return spare < 0 ? 0 : spare < 2 ? spare : 2;
}

/* ---- where they run ---- */

static const struct bny_machine_core *core_of(const struct bny_machine *m, int cpu)
{
    for (int c = 0; c < m->ncores; c++)
        for (int p = 0; p < m->cores[c].npus; p++)
            if (m->cores[c].pu[p] == cpu)
                return &m->cores[c];
    return NULL;
}

/* CPUs that this process may use, of cores with the memory that the network device is near to
 * (or the starter's own), without the starter's core. A set, not a CPU each: ranks mostly are
 * not bound, and the kernel knows who is where. */
static void choose_place(cpu_set_t *place, const struct bny_machine *m, int starter)
{
    const struct bny_machine_core *own = core_of(m, starter);
    cpu_set_t may;
    int numa;

    CPU_ZERO(place);
    if (!own || sched_getaffinity(0, sizeof may, &may) != 0)
        return;
    numa =
        own->nic >= 0 && m->devices[own->nic].numa >= 0 ? m->devices[own->nic].numa : own->numa;
    for (int c = 0; c < m->ncores; c++)
        for (int p = 0; p < m->cores[c].npus && &m->cores[c] != own && m->cores[c].numa == numa;
             p++) {
            int cpu = m->cores[c].pu[p];

            if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET((size_t)cpu, &may))
                CPU_SET((size_t)cpu, place);
        }
}

/* Read once, by a worker: it takes milliseconds, which nobody else waits for. Kept for the
 * process: what hwloc calls is not made for two threads at a time. */
static pthread_once_t machine_once = PTHREAD_ONCE_INIT;
static struct bny_machine *machine; /* NULL: no hwloc */

static void read_machine(void)
{
    if (bny_machine_live(&machine) != 0)
        machine = NULL;
}

static void go_to_place(const struct bny_workers *w)
{
    cpu_set_t place;

    pthread_once(&machine_once, read_machine);
    if (!machine)
        return;
    choose_place(&place, machine, w->cpu);
    if (CPU_COUNT(&place) && pthread_setaffinity_np(pthread_self(), sizeof place, &place) != 0)
        bny_info("encoding threads stay where they are: they cannot be bound");
}

/* ---- their work ---- */

static long do_job(struct bny_job *job)
{
    switch (job->what) {
    case BNY_JOB_COPY:
        if (job->copy.kind)
            return job->copy.kind->copy(job->copy.dst, job->copy.src, job->copy.bytes);
        bny_local_copy(job->copy.dst, job->copy.src, job->copy.bytes);
        return 0;
    case BNY_JOB_REDUCE:
        bny_local_reduce(job->reduce.op, job->reduce.dtype, job->reduce.dst, job->reduce.a,
                         job->reduce.b, job->reduce.n);
        return 0;
    case BNY_JOB_ENCODE:
        return bny_message_encode(&job->encode.enc, job->encode.wire, job->encode.cap,
                                  job->encode.src, job->encode.n, job->encode.with_crc);
    case BNY_JOB_DECODE:
        return bny_message_decode(&job->decode.dec, job->decode.dst, job->decode.wire,
                                  job->decode.len, job->decode.n);
    }
    return bny_fail(BANYAN_EINVAL, "no such job: %d", (int)job->what);
}

void bny_job_run(struct bny_job *job, uint32_t thread)
{
    job->thread = thread;
    job->t0 = job->is_timed ? bny_now_ns() : 0;
    job->result = do_job(job);
    job->t1 = job->is_timed ? bny_now_ns() : 0;
    if (job->result < 0)
        snprintf(job->text, sizeof job->text, "%s", banyan_last_error());
    atomic_store_explicit(&job->state, BNY_JOB_DONE, memory_order_release);
}

static struct bny_job *next_job(struct bny_workers *w)
{
    struct bny_job *job;

    pthread_mutex_lock(&w->lock);
    while (!w->first && !w->stops)
        pthread_cond_wait(&w->more, &w->lock);
    job = w->first;
    if (job) {
        w->first = job->next;
        if (!w->first)
            w->last = &w->first;
        atomic_store_explicit(&job->state, BNY_JOB_RUNS, memory_order_relaxed);
    }
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *work(void *arg)
{
    struct bny_workers *w = arg;
    struct bny_job *job;
    uint32_t number;

    pthread_mutex_lock(&w->lock);
    number = (uint32_t)++w->numbered;
    pthread_mutex_unlock(&w->lock);
    go_to_place(w);
    while ((job = next_job(w)) != NULL) {
        fesetenv(&job->env);
        bny_job_run(job, number);
    }
    return NULL;
}

void bny_job_give(struct bny_workers *w, struct bny_job *job)
{
    job->next = NULL;
    fegetenv(&job->env);
    pthread_mutex_lock(&w->lock);
    atomic_store_explicit(&job->state, BNY_JOB_WAITS, memory_order_relaxed);
    *w->last = job;
    w->last = &job->next;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}

int bny_job_take_back(struct bny_workers *w, struct bny_job *job)
{
    struct bny_job **at;
    int mine;

    if (bny_job_state(job) != BNY_JOB_WAITS)
        return 0;
    pthread_mutex_lock(&w->lock);
    mine = atomic_load_explicit(&job->state, memory_order_relaxed) == BNY_JOB_WAITS;
    if (mine) {
        for (at = &w->first; *at != job;)
            at = &(*at)->next;
        *at = job->next;
        if (w->last == &job->next)
            w->last = at;
        atomic_store_explicit(&job->state, BNY_JOB_RUNS, memory_order_relaxed);
    }
    pthread_mutex_unlock(&w->lock);
    return mine;
}

/* ---- life ---- */

int bny_workers_start(struct bny_workers **out, int count)
{
    struct bny_workers *w = calloc(1, sizeof *w);
    sigset_t all, before;

    *out = NULL;
    if (!w)
        return bny_fail(BANYAN_ENOMEM, "no memory for encoding threads");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    w->last = &w->first;
    w->cpu = sched_getcpu();
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (w->count < count && pthread_create(&w->thread[w->count], NULL, work, w) == 0)
        w->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (w->count < count) {
        int had = w->count;

        bny_workers_stop(w);
        return bny_fail(BANYAN_ENOMEM,
                        "only %d of %d encoding threads can be started (BANYAN_ENCODE_THREADS)",
                        had, count);
    }
    *out = w;
    return 0;
}

void bny_workers_stop(struct bny_workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stops = 1;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->count; i++)
        pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
