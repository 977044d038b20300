/* SPDX-License-Identifier: BSD-3-Clause */
/* The worker of the multi-process tests.
 *   rank CASE RANK N SEED ARG          one rank, started by mp_run
 *   rank --threads N CASE [SEED ARG]   N ranks as threads of this process (ThreadSanitizer)
 *   rank --list                        the cases */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "collectives/progress/progress.h"
#include "tests/mp/case.h"

const struct banyan_opts case_exact = {
    .size = sizeof case_exact, .codec = "none", .timeout_s = -1, .deterministic = -1
};

/* clang-format off */
static const struct mp_case *const tables[] = {
    cases_collectives,
    cases_codecs,
    cases_flow,
    cases_short,
    cases_ops,
    cases_requests,
    cases_comms,
    cases_memory,
    cases_failures,
    cases_misuse,
    cases_init,
    cases_quiet,
    cases_product,
    cases_self,
    cases_wire, cases_resets,
    cases_participants,
    cases_groups,
    cases_again,
    cases_shrink,
    cases_residuals,
    cases_outer,
    cases_training,
    cases_gossip,
    cases_rows,
    cases_sketch,
    cases_stale,
    cases_lazy,
    cases_buckets,
    cases_buckets_wrong,
    cases_lgc,
    cases_survive, cases_trouble, cases_grow, cases_arrival,
    cases_pipeline, cases_cells, cases_hosts, cases_hostile, cases_in_flight, cases_objects,
};
/* clang-format on */
#define NTABLES (sizeof tables / sizeof tables[0])

void case_fail(const struct test *t, const char *file, int line, const char *what,
               const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s:%d: rank %d of %d: %s: %s; last error: '%s'; BANYAN_TEST_SEED=%llu\n",
            file, line, t->rank, t->n, what, text, banyan_last_error(),
            (unsigned long long)t->seed);
    fflush(NULL);
    _exit(1);
}

int case_has(const char *text, const char *part)
{
    size_t len = strlen(part);

    for (; *text; text++)
        if (!strncasecmp(text, part, len))
            return 1;
    return 0;
}

int case_skip(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
    return MP_SKIP;
}

struct banyan_config case_config(const struct test *t)
{
    struct banyan_config cfg = BANYAN_CONFIG_INIT;

    if (t->transport)
        cfg.transport = t->transport;
    if (!getenv("BANYAN_TEST_ALONE") && !getenv("BANYAN_TEST_IFNAMES"))
        cfg.ifname = "lo";
    return cfg;
}

int case_init(const struct test *t, const struct banyan_config *cfg, struct banyan_comm **out)
{
    struct banyan_config own = case_config(t);

    if (!cfg)
        cfg = &own;
    if (t->id)
        return banyan_comm_init(out, t->id, t->n, t->rank, cfg);
    return banyan_comm_init_env(out, cfg);
}

void case_done(struct test *t, uint64_t nth)
{
    atomic_store(&t->shared->value[t->rank][7], nth);
}

void case_await_done(struct test *t, uint64_t nth, int but)
{
    for (int r = 0; r < t->n; r++)
        while (r != but && atomic_load(&t->shared->value[r][7]) < nth)
            usleep(1000);
}

void case_await_told(const struct banyan_comm *comm)
{
    while (!bny_control_told(comm->world->control) && !bny_comm_has_failed(comm))
        usleep(1000);
}

uint64_t case_hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

int case_try_agree(const struct test *t, struct banyan_comm *comm, uint64_t x, const char *what)
{
    uint64_t all[MP_RANKS_MAX];
    int n = banyan_comm_count(comm);
    int rc = banyan_allgather(&x, all, 1, BANYAN_U64, comm, NULL);

    for (int i = 0; i < n && rc == 0; i++)
        CHECK(t, all[i] == x, "%s: rank %d has %llx, this one %llx", what, i,
              (unsigned long long)all[i], (unsigned long long)x);
    return rc;
}

void case_check_agree(const struct test *t, struct banyan_comm *comm, uint64_t x,
                      const char *what)
{
    CHECK_OK(t, case_try_agree(t, comm, x, what));
}

void case_check_works(const struct test *t, struct banyan_comm *comm)
{
    uint32_t n = (uint32_t)banyan_comm_count(comm), x = (uint32_t)banyan_comm_rank(comm) + 1;
    uint32_t sum = 0;

    CHECK_OK(t, banyan_allreduce(&x, &sum, 1, BANYAN_U32, BANYAN_SUM, comm, NULL));
    CHECK(t, sum == n * (n + 1) / 2, "sum %u of %u ranks", sum, n);
}

void case_meet(const struct test *t, struct banyan_comm *comm)
{
    uint32_t sense = mp_shared_arrive(t->shared, banyan_comm_count(comm));

    while (atomic_load(&t->shared->sense) == sense)
        banyan_progress(comm);
}

void *case_malloc(size_t bytes)
{
    void *p;

    case_feed(1);
    p = malloc(bytes ? bytes : 1);
    case_feed(0);
    if (!p) {
        fprintf(stderr, "out of memory for %zu bytes\n", bytes);
        _exit(2);
    }
    return p;
}

static const struct mp_case *find(const char *name)
{
    const struct mp_case *found = NULL;
    int n = 0;

    for (size_t i = 0; i < NTABLES; i++)
        for (const struct mp_case *c = tables[i]; c->name; c++)
            if (!strcmp(c->name, name)) {
                found = c;
                n++;
            }
    if (n == 1)
        return found;
    fprintf(stderr, "rank: %d cases have the name %s\n", n, name);
    exit(2);
}

static int run_case(const struct mp_case *c, struct test *t)
{
    int rc;

    if (!(c->flags & CASE_OWN_INIT))
        CHECK_OK(t, case_init(t, NULL, &t->comm));
    rc = c->run(t);
    if (c->flags & CASE_FAILS)
        banyan_comm_destroy(t->comm);
    else if (t->comm)
        CHECK_OK(t, banyan_comm_finalize(t->comm));
    return rc;
}

struct thread_rank {
    const struct mp_case *c;
    struct test t;
    int rc;
};

static void *thread_main(void *arg)
{
    struct thread_rank *r = arg;

    r->rc = run_case(r->c, &r->t);
    return NULL;
}

static int run_threads(int n, const char *name, uint64_t seed, const char *arg)
{
    static struct thread_rank ranks[MP_RANKS_MAX];
    static struct mp_shared shared;
    pthread_t thread[MP_RANKS_MAX];
    struct banyan_id id;
    int rc = 0;

    if (n < 1 || n > MP_RANKS_MAX)
        return 2;
    setenv("BANYAN_IFNAME", "lo", 1);
    if (banyan_id_create(&id) != 0) {
        fprintf(stderr, "rank: %s\n", banyan_last_error());
        return 1;
    }
    for (int i = 0; i < n; i++) {
        ranks[i].c = find(name);
        if (ranks[i].c->flags & CASE_NO_THREADS)
            return 2;
        ranks[i].t = (struct test){ .rank = i,
                                    .n = n,
                                    .seed = seed,
                                    .arg = arg,
                                    .id = &id,
                                    .threads = 1,
                                    .shared = &shared,
                                    .transport = getenv("BANYAN_TEST_TRANSPORT") };
        pthread_create(&thread[i], NULL, thread_main, &ranks[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(thread[i], NULL);
        if (ranks[i].rc != 0)
            rc = ranks[i].rc;
    }
    return rc;
}

static int list(void)
{
    for (size_t i = 0; i < NTABLES; i++)
        for (const struct mp_case *c = tables[i]; c->name; c++)
            puts(c->name);
    return 0;
}

/* All ranks of a job on the first CPU that they may use: each runs only when the others let it.
 */
static void share_one_cpu(void)
{
    cpu_set_t set;
    int cpu = 0;

    sched_getaffinity(0, sizeof set, &set);
    while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &set))
        cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* BANYAN_TEST_IFNAMES: of hosts, "w0+v0,w1": ranks are on them by turns. */
static void choose_interfaces(int rank)
{
    const char *all = getenv("BANYAN_TEST_IFNAMES"), *at = all;
    char names[128];
    int hosts = 1;

    for (const char *p = all; p && *p; p++)
        hosts += *p == ',';
    for (int i = 0; at && i < rank % hosts; i++)
        at = strchr(at, ',') + 1;
    if (!at)
        return;
    snprintf(names, sizeof names, "%.*s", (int)strcspn(at, ","), at);
    for (char *p = names; *p; p++)
        *p = *p == '+' ? ',' : *p;
    setenv("BANYAN_IFNAME", names, 1);
}

int main(int argc, char **argv)
{
    struct test t = { 0 };

    if (argc == 2 && !strcmp(argv[1], "--list"))
        return list();
    if (argc >= 4 && !strcmp(argv[1], "--threads"))
        return run_threads(atoi(argv[2]), argv[3],
                           argc > 4 ? strtoull(argv[4], NULL, 0) : mp_seed(),
                           argc > 5 ? argv[5] : "");
    if (argc != 6) {
        fprintf(
            stderr,
            "usage: rank CASE RANK|env N SEED ARG | --threads N CASE [SEED ARG] | --list\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing survives a killed test */
    if (getenv("BANYAN_TEST_ONE_CPU"))
        share_one_cpu();
    if (!strcmp(argv[2], "env")) {
        argv[2] = getenv("BANYAN_RANK");
        argv[3] = getenv("BANYAN_WORLD_SIZE");
    }
    t.rank = argv[2] ? atoi(argv[2]) : 0;
    t.n = argv[3] ? atoi(argv[3]) : 1;
    t.seed = strtoull(argv[4], NULL, 0);
    t.arg = argv[5];
    t.transport = getenv("BANYAN_TRANSPORT");
    t.shared = mp_shared_map();
    choose_interfaces(t.rank);
    return run_case(find(argv[1]), &t);
}
