/* SPDX-License-Identifier: BSD-3-Clause */
/* A job that loses ranks, gets new ones and goes on, as docs/failures.md has it: random calls,
 * an agreement behind each step, a shrink where it was needed, growth where somebody waits.
 * Some of its processes are in trouble at random moments, wherever they are by then: in init,
 * in an operation, in agree, shrink or grow. Every result is right or an error, nobody hangs,
 * and all who are left end with the same ranks. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/world/comm.h"
#include "tests/mp/call.h"
#include "tests/support/cut.h"
#include "transport/tcp/tcp.h"

#define STEPS   8
#define GROWTHS 4 /* ids that members make, at most */

/* ---- trouble ---- */

enum trouble { KILL, EXIT, STOP, SLOW, RESET, NO_FD, NO_MEMORY, TROUBLES };
static const char *const names[TROUBLES] = { "kill",  "exit", "stop", "slow",
                                             "reset", "nofd", "nomem" };

struct fate {
    struct test *t;
    int n; /* troubles of this rank */
    struct {
        enum trouble kind;
        uint32_t after_us, lasts_us;
    } at[3];
    int in_init; /* the time runs from before init */
    atomic_int slow_us, over;
    _Atomic(struct bny_world *) world; /* whose connections are reset; locked below */
    pthread_mutex_t lock;
    pthread_t thread;
};

/* Troubles of the job by its seed: one to three, of ranks that may be the same. */
static void draw_fate(struct test *t, struct fate *f)
{
    static const uint32_t scales[] = { 2000, 20000, 200000 };
    uint64_t s = t->seed;
    int n = 1 + (int)bny_rng_below(&s, 3), ends = 0;

    f->in_init = bny_rng_below(&s, 4) == 0;
    for (int i = 0; i < n; i++) {
        int rank = (int)bny_rng_below(&s, (uint64_t)t->n);
        enum trouble kind = (enum trouble)bny_rng_below(&s, TROUBLES);
        uint32_t scale = scales[bny_rng_below(&s, 3)],
                 after = (uint32_t)bny_rng_below(&s, scale),
                 lasts = (uint32_t)bny_rng_below(&s, kind == STOP ? 400000 : 3000);

        if (*t->arg && !strstr(t->arg, names[kind]))
            continue;
        ends += kind == KILL || kind == EXIT || kind == NO_FD || kind == NO_MEMORY;
        if (ends >= t->n / 2 || rank != t->rank)
            continue;
        f->at[f->n].kind = kind;
        f->at[f->n].after_us = after;
        f->at[f->n++].lasts_us = lasts;
        printf("trouble: %s after %u us, for %u us\n", names[kind], after, lasts);
    }
}

static int may_end(const struct fate *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->at[i].kind == NO_FD || f->at[i].kind == NO_MEMORY)
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

/* One of its data connections, if it has any. */
static void reset_one(struct fate *f, uint64_t *s)
{
    struct bny_world *w;

    pthread_mutex_lock(&f->lock);
    w = atomic_load(&f->world);
    if (w) {
        bny_world_lock(w);
        for (int i = 0; i < w->ntps; i++) {
            struct tcp_tp *tp = (struct tcp_tp *)w->tps[i];
            struct tcp_ep *e;
            struct tcp_conn *c;

            if (strcmp(tp->tp.ops->name, "tcp") != 0)
                continue;
            e = tp->eps[bny_rng_below(s, (uint64_t)tp->tp.nranks)];
            c = e ? &e->out[bny_rng_below(s, TCP_LANES)] : NULL;
            if (c && c->state == TCP_OPEN && c->fd >= 0)
                cut(c->fd);
        }
        bny_world_unlock(w);
    }
    pthread_mutex_unlock(&f->lock);
}

/* From now on no descriptor is to be had. */
static void use_up_descriptors(void)
{
    int next = fcntl(0, F_DUPFD_CLOEXEC, 0);
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = next > 0 ? (rlim_t)next : 3;
    setrlimit(RLIMIT_NOFILE, &limit);
    close(next);
}

static void strike(struct fate *f, int i, uint64_t *s)
{
    uint32_t lasts = f->at[i].lasts_us;

    switch (f->at[i].kind) {
    case KILL: raise(SIGKILL); return;
    case EXIT: _exit(0);
    case STOP: sleep_a_while(lasts); return;
    case SLOW: atomic_store(&f->slow_us, (int)(lasts * 20)); return;
    case NO_FD: use_up_descriptors(); return;
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

static void begin_fate(struct fate *f)
{
    CHECK(f->t, pthread_create(&f->thread, NULL, fate_main, f) == 0, "a thread");
}

static void end_fate(struct fate *f)
{
    struct rlimit limit;

    atomic_store(&f->over, 1);
    pthread_join(f->thread, NULL);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max; /* a sanitizer looks for leaks in files of /proc */
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* ---- the job ---- */

struct state {                             /* the same at all members */
    uint32_t step, growths, joined, fresh; /* fresh: has none yet */
};

struct job {
    struct test *t;
    struct fate *fate;
    struct banyan_comm *comm;
    struct state state;
    int newcomers;
    uint32_t members; /* as the harness numbers them, a bit each */
};

static void use(struct job *j, struct banyan_comm *comm)
{
    pthread_mutex_lock(&j->fate->lock);
    if (j->comm)
        banyan_comm_destroy(j->comm);
    j->comm = comm;
    atomic_store(&j->fate->world, comm ? comm->world : NULL);
    pthread_mutex_unlock(&j->fate->lock);
}

/* Ends the process where the library says that it lacks something, as is its trouble; or, asks
 * being true, that it counts as dead: it lacked that for its control links. */
static void check_code(struct job *j, int rc, const char *what, int asks)
{
    int own = rc == -BANYAN_ENOMEM || rc == -BANYAN_ESYSTEM;

    if ((own || (asks && rc == -BANYAN_ERANKDEAD)) && may_end(j->fate)) {
        printf("%s: gives up: %s\n", what, banyan_last_error());
        use(j, NULL);
        fflush(NULL);
        _exit(0);
    }
    CHECK(j->t,
          own || rc == -BANYAN_ERANKDEAD || rc == -BANYAN_EABORTED || rc == -BANYAN_EPROTO,
          "%s returned %d (%s)", what, rc, banyan_strerror(rc));
}

/* Who is here, and where they are: as those say who know. */
static int meet(struct job *j)
{
    struct {
        struct state state;
        uint32_t who;
    } mine = { j->state, 1u << j->t->rank }, all[MP_RANKS_MAX];
    int rc = banyan_allgather(&mine, all, sizeof mine, BANYAN_U8, j->comm, NULL), known = -1;

    if (rc)
        return rc;
    j->members = 0;
    for (int r = 0; r < banyan_comm_count(j->comm); r++) {
        j->members |= all[r].who;
        if (all[r].state.fresh)
            continue;
        CHECK(j->t, known < 0 || !memcmp(&all[known].state, &all[r].state, sizeof mine.state),
              "step %u, growths %u at one member, %u, %u at another", all[known].state.step,
              all[known].state.growths, all[r].state.step, all[r].state.growths);
        known = r;
    }
    CHECK(j->t, known >= 0, "nobody knows where we are");
    j->state = all[known].state;
    return 0;
}

/* Calls of any kind; 0, or the first error. */
static int work(struct job *j)
{
    uint64_t s = j->t->seed + 77 + j->state.step, local = s + (uint64_t)j->t->rank;
    int rc = 0;

    for (int i = 0; i < 6 && rc == 0; i++) {
        struct call c;

        usleep((useconds_t)atomic_load(&j->fate->slow_us));
        call_random(&c, banyan_comm_count(j->comm), i % 3 ? 20000 : 1u << 20, bny_rng_next(&s),
                    bny_rng_next(&local));
        rc = call_try(j->t, j->comm, &c);
    }
    return rc;
}

static void make_id(struct job *j, uint32_t number)
{
    unsigned char *at = j->t->shared->blob[0] + number * sizeof(struct banyan_id);
    struct banyan_id id;
    int rc = banyan_comm_grow_id(j->comm, &id);

    if (rc) {
        check_code(j, rc, "banyan_comm_grow_id", 0);
        memset(&id, 0, sizeof id);
    }
    memcpy(at, &id, sizeof id);
    atomic_store(&j->t->shared->value[0][7], number);
}

/* One more rank; whoever it is. Nobody may come, and all may go on. */
static int grow(struct job *j)
{
    int makes = banyan_comm_rank(j->comm) == 0, rc;
    uint32_t number = ++j->state.growths;
    struct banyan_config cfg = case_config(j->t);
    struct banyan_comm *next;
    struct banyan_id id;

    cfg.init_timeout_s = 3;
    cfg.op_timeout_s = 20;
    if (makes) {
        make_id(j, number);
        memcpy(&id, j->t->shared->blob[0] + number * sizeof id, sizeof id);
    }
    rc = banyan_comm_grow(j->comm, makes ? &id : NULL, 1, &cfg, &next);
    if (rc) {
        if (rc != -BANYAN_ETIMEDOUT && rc != -BANYAN_EINVAL && rc != -BANYAN_EPROTO)
            check_code(j, rc, "banyan_comm_grow", 0);
        return 0;
    }
    use(j, next);
    j->state.joined++;
    return 1;
}

/* On with those who live. */
static void shrink(struct job *j)
{
    struct banyan_comm *next;
    int rc = banyan_comm_shrink(j->comm, &next);

    if (rc)
        check_code(j, rc, "banyan_comm_shrink", 1);
    CHECK(j->t, rc == 0, "banyan_comm_shrink returned %d (%s)", rc, banyan_strerror(rc));
    use(j, next);
}

static int wants_growth(const struct job *j)
{
    return (int)j->state.joined < j->newcomers && j->state.growths + 1 < GROWTHS &&
           j->state.step > 2 * j->state.growths;
}

/* Steps until all are done; met: this rank knows where the others are. */
static void go_on(struct job *j)
{
    int met = 0, done = 0;

    for (int round = 0; !done; round++) {
        int rc = met ? 0 : meet(j), last = j->state.step == STEPS, dead, well;
        uint64_t word;

        CHECK(j->t, round < 200, "no end");
        if (rc == 0 && !last)
            rc = work(j);
        if (rc)
            check_code(j, rc, "an operation", 0);
        word = rc == 0;
        dead = banyan_comm_agree(j->comm, &word, NULL, 0);
        if (dead < 0)
            check_code(j, dead, "banyan_comm_agree", 1);
        CHECK(j->t, dead >= 0, "banyan_comm_agree returned %d (%s)", dead,
              banyan_strerror(dead));
        well = word & 1;
        met = well && dead == 0;
        j->state.step += well && !last;
        done = met && last;
        if (!met)
            shrink(j);
        else if (!done && wants_growth(j) && grow(j))
            met = 0;
    }
}

/* Tries id after id; 1 when it is in. */
static int join(struct job *j)
{
    struct banyan_config cfg = case_config(j->t);
    struct mp_shared *shared = j->t->shared;
    struct banyan_comm *comm;

    cfg.init_timeout_s = 3;
    cfg.op_timeout_s = 20;
    for (uint32_t tried = 0;;) {
        uint32_t number = (uint32_t)atomic_load(&shared->value[0][7]);
        struct banyan_id id;
        int rc;

        if (number == tried && atomic_load(&shared->value[1][7]))
            return 0; /* the job is over */
        if (number == tried) {
            usleep(500);
            continue;
        }
        tried = number;
        memcpy(&id, shared->blob[0] + number * sizeof id, sizeof id);
        rc = banyan_comm_join(&comm, &id, &cfg);
        if (rc == 0) {
            use(j, comm);
            j->state.fresh = 1;
            return 1;
        }
    }
}

/* The first members. 1 when there is a communicator. */
static int start(struct job *j, int n)
{
    unsigned char *at = j->t->shared->blob[0];
    struct banyan_config cfg = case_config(j->t);
    struct banyan_comm *comm;
    struct banyan_id id;
    int rc;

    cfg.init_timeout_s = 10;
    cfg.op_timeout_s = 20;
    if (j->t->rank == 0) {
        CHECK_OK(j->t, banyan_id_create(&id));
        memcpy(at, &id, sizeof id);
    }
    mp_shared_barrier(j->t->shared, j->t->n);
    memcpy(&id, at, sizeof id);
    if (j->fate->in_init)
        begin_fate(j->fate);
    rc = banyan_comm_init(&comm, &id, n, j->t->rank, &cfg);
    CHECK(j->t, rc == 0 || j->fate->in_init, "banyan_comm_init returned %d (%s)", rc,
          banyan_strerror(rc));
    if (!j->fate->in_init)
        begin_fate(j->fate);
    if (rc == 0)
        use(j, comm);
    return rc == 0;
}

/* arg: kinds of trouble; "": all. value[r][0]: the members at its end, + 1 << 32, where rank r
 * came to it. */
static int trouble(struct test *t)
{
    struct fate fate = { .t = t, .lock = PTHREAD_MUTEX_INITIALIZER };
    struct job j = { .t = t, .fate = &fate };
    int in;

    j.newcomers = (int)(t->seed % 3) < t->n - 2 ? (int)(t->seed % 3) : 0;
    if (getenv("BANYAN_TEST_DEBUG"))
        setenv("BANYAN_DEBUG", getenv("BANYAN_TEST_DEBUG"), 1);
    draw_fate(t, &fate);
    if (t->rank < t->n - j.newcomers) {
        in = start(&j, t->n - j.newcomers);
    } else {
        mp_shared_barrier(t->shared, t->n);
        begin_fate(&fate);
        in = join(&j);
    }
    if (in) {
        go_on(&j);
        atomic_store(&t->shared->value[t->rank][0], j.members | (uint64_t)1 << 32);
    }
    atomic_store(&t->shared->value[1][7], 1);
    end_fate(&fate);
    if (in) {
        atomic_store(&fate.world, NULL);
        if (fate.n == 0)
            CHECK(t, banyan_comm_finalize(j.comm) != -BANYAN_ETIMEDOUT, "finalize");
        else
            banyan_comm_destroy(j.comm);
    }
    return 0;
}

const struct mp_case cases_trouble[] = {
    { "trouble", trouble, CASE_OWN_INIT | CASE_NO_THREADS },
    { 0 },
};
