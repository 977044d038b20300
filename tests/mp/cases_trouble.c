/* SPDX-License-Identifier: BSD-3-Clause */
/* A job that loses ranks, gets new ones and goes on, as docs/failures.md has it: random calls,
 * an agreement behind each step, a shrink where it was needed, growth where somebody waits.
 * Some of its processes are in trouble at random moments, wherever they are by then: in init,
 * in an operation, in agree, shrink or grow. Every result is right or an error, nobody hangs,
 * and all who are left end with the same ranks. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "collectives/world/comm.h"
#include "tests/mp/fate.h"
#include "tests/mp/trouble_work.h"

#define STEPS   8
#define GROWTHS 4 /* ids that members make, at most */

/* ---- the job ---- */

struct state {                             /* the same at all members */
    uint32_t step, growths, joined, fresh; /* fresh: has none yet */
    uint32_t round;                        /* of agreement */
};

struct job {
    struct test *t;
    struct fate *fate;
    struct banyan_comm *comm;
    struct work *work;
    struct state state;
    int newcomers;
    uint32_t members;  /* as the harness numbers them, a bit each */
    uint64_t worst_ns; /* of a step, an agreement, a shrink */
};

static void use(struct job *j, struct banyan_comm *comm)
{
    pthread_mutex_lock(&j->fate->lock);
    if (j->comm)
        banyan_comm_destroy(j->comm);
    j->comm = j->fate->comm = comm;
    atomic_store(&j->fate->world, comm ? comm->world : NULL);
    pthread_mutex_unlock(&j->fate->lock);
}

/* Ends the process where the library says that it lacks something, as is its trouble; or, asks
 * being true, that it counts as dead: it lacked that for its control links. */
static void check_code(struct job *j, int rc, const char *what, int asks)
{
    int own = rc == -BANYAN_ENOMEM || rc == -BANYAN_ESYSTEM;

    if ((own || (asks && rc == -BANYAN_ERANKDEAD)) && fate_may_end(j->fate)) {
        printf("%s: gives up: %s\n", what, banyan_last_error());
        work_leave(j->work);
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
    int fresh = 0;

    if (rc)
        return rc;
    j->members = 0;
    for (int r = 0; r < banyan_comm_count(j->comm); r++) {
        j->members |= all[r].who;
        fresh += (int)all[r].state.fresh;
        if (all[r].state.fresh)
            continue;
        CHECK(j->t, known < 0 || !memcmp(&all[known].state, &all[r].state, sizeof mine.state),
              "step %u, growths %u at one member, %u, %u at another", all[known].state.step,
              all[known].state.growths, all[r].state.step, all[r].state.growths);
        known = known < 0 ? r : known;
    }
    CHECK(j->t, known >= 0, "nobody knows where we are");
    if (fresh)
        rc = work_hand_over(j->work, j->comm, known, (int)mine.state.fresh);
    j->state = all[known].state;
    j->state.fresh = rc ? mine.state.fresh : 0;
    return rc;
}

/* Nothing takes longer than its deadline, and what the agreement behind that may take. */
static void check_time(struct job *j, uint64_t begin, const char *what)
{
    uint64_t ns = bny_now_ns() - begin;

    j->worst_ns = ns > j->worst_ns ? ns : j->worst_ns;
    CHECK(j->t, (double)ns < (2 * WORK_OP_S + 10) * 1e9 * mp_patience(), "%s took %.1f s", what,
          (double)ns * 1e-9);
}

/* Calls of any kind; 0, or the first error. */
static int work(struct job *j)
{
    struct work_place at = { j->comm,        j->members,        j->state.step,
                             j->state.round, &j->fate->slow_us, j->fate };
    uint64_t begin = bny_now_ns();
    int rc = work_step(j->work, &at);

    check_time(j, begin, "a step");
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

    cfg.init_timeout_s = 3 * mp_patience();
    cfg.op_timeout_s = WORK_OP_S * mp_patience();
    if (makes) {
        make_id(j, number);
        memcpy(&id, j->t->shared->blob[0] + number * sizeof id, sizeof id);
    }
    fate_enter(j->fate, FATE_GROW);
    rc = banyan_comm_grow(j->comm, makes ? &id : NULL, 1, &cfg, &next);
    fate_leave(j->fate, FATE_GROW);
    if (rc) {
        if (rc != -BANYAN_ETIMEDOUT && rc != -BANYAN_EINVAL && rc != -BANYAN_EPROTO)
            check_code(j, rc, "banyan_comm_grow", 0);
        return 0;
    }
    work_leave(j->work);
    use(j, next);
    j->state.joined++;
    return 1;
}

/* On with those who live. */
static void shrink(struct job *j)
{
    struct banyan_comm *next = NULL;
    uint64_t begin = bny_now_ns();
    int rc;

    fate_enter(j->fate, FATE_SHRINK);
    rc = work_shrink(j->work, j->comm, &next);
    fate_leave(j->fate, FATE_SHRINK);
    check_time(j, begin, "shrink");
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

/* All who got an answer of this round got the same. */
static void check_alike(struct job *j, int table, uint64_t mine, const char *what)
{
    _Atomic uint64_t *all = (_Atomic uint64_t *)(void *)j->t->shared->blob[table];
    uint64_t theirs = 0;

    if (j->state.fresh) /* it has not been told which round this is */
        return;
    CHECK(j->t, j->state.round < sizeof j->t->shared->blob[0] / sizeof *all, "no end");
    if (!atomic_compare_exchange_strong(&all[j->state.round], &theirs, mine))
        CHECK(j->t, theirs == mine, "round %u: %s: %llx here, %llx at another", j->state.round,
              what, (unsigned long long)mine, (unsigned long long)theirs);
}

/* Did it go well at all? *dead: how many are gone. */
static int agree(struct job *j, int went_well, int *dead)
{
    int ranks[MP_RANKS_MAX], blamed = -1, code;
    uint64_t word = (uint64_t)went_well, mask = 0, begin = bny_now_ns();

    j->state.round++;
    fate_enter(j->fate, FATE_AGREE);
    *dead = banyan_comm_agree(j->comm, &word, ranks, MP_RANKS_MAX);
    fate_leave(j->fate, FATE_AGREE);
    check_time(j, begin, "agree");
    if (*dead < 0)
        check_code(j, *dead, "banyan_comm_agree", 1);
    CHECK(j->t, *dead >= 0, "banyan_comm_agree returned %d (%s)", *dead,
          banyan_strerror(*dead));
    for (int i = 0; i < *dead; i++)
        mask |= 1u << ranks[i];
    check_alike(j, 1, mask << 8 | (word & 1) << 1 | 1, "the answer");
    code = banyan_async_error(j->comm, &blamed, NULL, 0);
    if (code)
        check_alike(j, 2, (uint64_t)(-code) << 16 | (uint64_t)(blamed + 1) << 1 | 1,
                    "to blame");
    return (int)(word & 1);
}

/* Steps until all are done; met: this rank knows where the others are. */
static void go_on(struct job *j)
{
    int met = 0, done = 0;

    while (!done) {
        int rc = met ? 0 : meet(j), last = j->state.step == STEPS, works = !rc && !last, dead;
        int well;

        if (works)
            rc = work(j);
        else if (rc)
            work_miss(j->work);
        if (rc)
            check_code(j, rc, "an operation", 0);
        well = agree(j, rc == 0, &dead);
        if (!last || !well)
            work_settle(j->work, well, dead);
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

    cfg.init_timeout_s = 3 * mp_patience();
    cfg.op_timeout_s = WORK_OP_S * mp_patience();
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

    cfg.init_timeout_s = 10 * mp_patience();
    cfg.op_timeout_s = WORK_OP_S * mp_patience();
    if (j->t->rank == 0) {
        CHECK_OK(j->t, banyan_id_create(&id));
        memcpy(at, &id, sizeof id);
    }
    mp_shared_barrier(j->t->shared, j->t->n);
    memcpy(&id, at, sizeof id);
    if (j->fate->in_init)
        fate_begin(j->fate);
    rc = banyan_comm_init(&comm, &id, n, j->t->rank, &cfg);
    CHECK(j->t, rc == 0 || j->fate->in_init, "banyan_comm_init returned %d (%s)", rc,
          banyan_strerror(rc));
    if (!j->fate->in_init && !j->fate->in_finalize)
        fate_begin(j->fate);
    if (rc == 0)
        use(j, comm);
    return rc == 0;
}

/* Without those of a GPU's driver, which keeps them. */
static int descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    char name[16];
    int n = 0;

    while (dir && (entry = readdir(dir))) {
        ssize_t len = readlinkat(dirfd(dir), entry->d_name, name, sizeof name);

        n += len < 11 || memcmp(name, "/dev/nvidia", 11) != 0;
    }
    if (dir)
        closedir(dir);
    return n;
}

/* All who came to the end call it, and some may come to no good in it: who returns has an
 * answer, in time. */
static void finalize(struct job *j)
{
    uint64_t begin = bny_now_ns();
    int rc;

    work_free(j->work, 1);
    pthread_mutex_lock(&j->fate->lock);
    atomic_store(&j->fate->world, NULL); /* but it may be aborted all the time */
    pthread_mutex_unlock(&j->fate->lock);
    rc = banyan_comm_finalize(j->comm);
    pthread_mutex_lock(&j->fate->lock);
    j->fate->comm = NULL;
    pthread_mutex_unlock(&j->fate->lock);
    check_time(j, begin, "finalize");
    CHECK(j->t,
          rc == 0 || rc == -BANYAN_ERANKDEAD || rc == -BANYAN_ENOMEM || rc == -BANYAN_ESYSTEM ||
              rc == -BANYAN_EABORTED, /* a revoke in the last step */
          "banyan_comm_finalize returned %d (%s)", rc, banyan_strerror(rc));
}

/* arg: kinds of trouble; "": all. value[r][0]: the members at its end, + 1 << 32, where rank r
 * came to it; [5]: whose objects were lost for it. */
static int trouble(struct test *t)
{
    struct fate fate = { .t = t, .lock = PTHREAD_MUTEX_INITIALIZER };
    struct job j = { .t = t, .fate = &fate };
    uint64_t s = t->seed ^ 0xe2d;
    int in, before, members, finalizes;

    j.newcomers = (int)(t->seed % 3) < t->n - 2 ? (int)(t->seed % 3) : 0;
    members = t->n - j.newcomers;
    if (getenv("BANYAN_TEST_DEBUG"))
        setenv("BANYAN_DEBUG", getenv("BANYAN_TEST_DEBUG"), 1);
    j.work = work_make(t);
    fate_draw(t, members, &fate);
    finalizes = fate.in_finalize || bny_rng_below(&s, 3) == 0;
    before = descriptors();
    if (t->rank < members) {
        in = start(&j, members);
    } else {
        mp_shared_barrier(t->shared, t->n);
        if (!fate.in_finalize)
            fate_begin(&fate);
        in = join(&j);
    }
    if (in) {
        go_on(&j);
        atomic_store(&t->shared->value[t->rank][0], j.members | (uint64_t)1 << 32);
    }
    atomic_store(&t->shared->value[1][7], 1);
    if (in && finalizes) {
        if (fate.in_finalize)
            fate_begin(&fate);
        finalize(&j);
        fate_end(&fate);
    } else {
        fate_end(&fate);
        work_free(j.work, 0);
        atomic_store(&fate.world, NULL);
        if (in && fate.n == 0)
            CHECK(t, banyan_comm_finalize(j.comm) != -BANYAN_ETIMEDOUT, "finalize");
        else if (in)
            banyan_comm_destroy(j.comm);
    }
    printf("worst %.0f ms\n", (double)j.worst_ns * 1e-6);
    if (strcmp(t->transport, "dpdk") != 0) /* whose EAL stays, and has some */
        CHECK(t, descriptors() == before, "%d descriptors, %d before", descriptors(), before);
    return 0;
}

const struct mp_case cases_trouble[] = {
    { "trouble", trouble, CASE_OWN_INIT | CASE_NO_THREADS },
    { 0 },
};
