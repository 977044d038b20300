/* SPDX-License-Identifier: BSD-3-Clause */
/* Trouble at random moments. */
#include "tests/mp/fate.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/world/world.h"
#include "tests/support/cut.h"
#include "transport/tcp/tcp.h"
#ifdef BNY_HAVE_VERBS
#include "transport/verbs/lane.h"
#endif

static const char *const names[TROUBLES] = { "kill", "exit",  "stop",   "slow", "reset",
                                             "nofd", "nomem", "starve", "abort" };
static const char *const calls[FATE_CALLS] = { "agree", "shrink", "grow", "create_group" };

static int lacks_something(enum trouble kind)
{
    return kind == NO_FD || kind == NO_MEMORY || kind == STARVE;
}

void fate_draw(struct test *t, int members, struct fate *f)
{
    static const uint32_t scales[] = { 2000, 20000, 200000 };
    uint64_t s = t->seed, last = t->seed ^ 0xf1a1;
    int n = 1 + (int)bny_rng_below(&s, 3), ends = 0, is_double = bny_rng_below(&s, 4) == 0;
    uint32_t first = 0;

    f->in_init = bny_rng_below(&s, 4) == 0;
    f->in_finalize = !f->in_init && bny_rng_below(&last, 5) == 0;
    for (int i = 0; i < n; i++) {
        int rank = (int)bny_rng_below(&s, (uint64_t)t->n);
        enum trouble kind = (enum trouble)bny_rng_below(&s, TROUBLES);
        uint32_t scale = scales[bny_rng_below(&s, 3)],
                 after = (uint32_t)bny_rng_below(&s, scale),
                 lasts = (uint32_t)bny_rng_below(&s, kind == STOP ? 400000 : 3000);

        if (is_double && i < 2) {
            kind = KILL;
            after = i ? first + (uint32_t)bny_rng_below(&s, 100000) : after;
            first = after;
        }
        if (*t->arg && !strstr(t->arg, names[kind]))
            continue;
        ends += kind == KILL || kind == EXIT || lacks_something(kind);
        if (ends >= members)
            return;
        if (rank != t->rank)
            continue;
        f->at[f->n].kind = kind;
        f->at[f->n].after_us = !f->in_finalize ? after : after % (kind == ABORT ? 800 : 5000);
        f->at[f->n++].lasts_us = lasts;
        printf("trouble: %s after %u us, for %u us\n", names[kind], after, lasts);
    }
}

int fate_may_end(const struct fate *f)
{
    for (int i = 0; i < f->n; i++)
        if (lacks_something(f->at[i].kind))
            return 1;
    return 0;
}

static void sleep_a_while(uint32_t us)
{
    pid_t me = getpid(), child = fork();
    int status;

    if (child == 0) {
        kill(me, SIGSTOP);
        usleep(us);
        kill(me, SIGCONT);
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
}

static void reset_tcp(struct tcp_tp *tp, uint64_t *s)
{
    struct tcp_ep *e = tp->eps[bny_rng_below(s, (uint64_t)tp->tp.nranks)];
    struct tcp_conn *c = e ? e->out[bny_rng_below(s, TCP_LANES)] : NULL;

    if (c && c->state == TCP_OPEN && c->fd >= 0)
        cut(c->fd);
}

/* A queue pair in error: both ends find it broken. */
static void reset_verbs(struct bny_tp *any, uint64_t *s)
{
#ifdef BNY_HAVE_VERBS
    struct vb_tp *tp = (struct vb_tp *)any;
    struct vb_ep *e = tp->eps[bny_rng_below(s, (uint64_t)any->nranks)];
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_ERR };

    if (e && e->state == VB_OPEN && e->conn && e->conn->has_qp)
        tp->fn->ibv_modify_qp(e->conn->id->qp, &a, IBV_QP_STATE);
#endif
}

/* One of its data connections, if it has any. */
static void reset_one(struct fate *f, uint64_t *s)
{
    struct bny_world *w;

    pthread_mutex_lock(&f->lock);
    w = atomic_load(&f->world);
    if (w) {
        bny_world_lock(w);
        for (int i = 0; i < w->ntps; i++) {
            const char *name = w->tps[i]->ops->name;

            if (!strcmp(name, "tcp"))
                reset_tcp((struct tcp_tp *)w->tps[i], s);
            else if (!strcmp(name, "verbs"))
                reset_verbs(w->tps[i], s);
        }
        bny_world_unlock(w);
    }
    pthread_mutex_unlock(&f->lock);
}

void fate_use_up_descriptors(void)
{
    int next = fcntl(0, F_DUPFD_CLOEXEC, 0);
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = next > 0 ? (rlim_t)next : 3;
    setrlimit(RLIMIT_NOFILE, &limit);
    close(next);
}

/* In the next call of one kind, wherever that allocates. */
static void choose_starved(struct fate *f, uint32_t lasts, uint64_t *s)
{
    int call = (int)bny_rng_below(s, FATE_CALLS);

    f->starves_at = (long)bny_rng_below(s, 1 + bny_rng_below(s, 60));
    f->starves_for = 1 + (lasts % 4 ? 0 : lasts / 200);
    printf("no memory in %s: %ld allocations from its number %ld on\n", calls[call],
           f->starves_for, f->starves_at);
    atomic_store(&f->starves_in, 1 + call);
}

void fate_enter(struct fate *f, enum fate_call call)
{
    if (atomic_load(&f->starves_in) == 1 + (int)call)
        case_starve_after(f->starves_at, f->starves_for);
}

void fate_leave(struct fate *f, enum fate_call call)
{
    int chosen = 1 + (int)call;

    if (atomic_compare_exchange_strong(&f->starves_in, &chosen, 0))
        case_starve_after(0, 0);
}

static void give_up(struct fate *f)
{
    pthread_mutex_lock(&f->lock);
    if (f->comm)
        banyan_abort(f->comm, "a test of abort");
    pthread_mutex_unlock(&f->lock);
}

static void strike(struct fate *f, int i, uint64_t *s)
{
    uint32_t lasts = f->at[i].lasts_us;

    switch (f->at[i].kind) {
    case KILL: raise(SIGKILL); return;
    case EXIT: _exit(0);
    case STOP: sleep_a_while(lasts); return;
    case SLOW: atomic_store(&f->slow_us, (int)(lasts * 20)); return;
    case NO_FD: fate_use_up_descriptors(); return;
    case STARVE: choose_starved(f, lasts, s); return;
    case ABORT: give_up(f); return;
    case NO_MEMORY: case_starve_after((long)bny_rng_below(s, 60), 1 + lasts / 200); return;
    default:
        for (int k = 0; k < 5; k++) {
            reset_one(f, s);
            usleep(lasts);
        }
    }
}

static void *fate_main(void *arg)
{
    struct fate *f = arg;
    uint64_t s = f->t->seed + (uint64_t)f->t->rank, begin = bny_now_ns();
    uint32_t done = 0;

    while (!atomic_load(&f->over) && done != (1u << f->n) - 1) {
        for (int i = 0; i < f->n; i++)
            if (!(done >> i & 1) && bny_now_ns() - begin >= f->at[i].after_us * 1000ull) {
                done |= 1u << i;
                strike(f, i, &s);
            }
        usleep(200);
    }
    return NULL;
}

void fate_begin(struct fate *f)
{
    f->begun = 1;
    CHECK(f->t, pthread_create(&f->thread, NULL, fate_main, f) == 0, "a thread");
}

void fate_end(struct fate *f)
{
    struct rlimit limit;

    atomic_store(&f->over, 1);
    if (f->begun)
        pthread_join(f->thread, NULL);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max; /* a sanitizer looks for leaks in files of /proc */
    setrlimit(RLIMIT_NOFILE, &limit);
}
