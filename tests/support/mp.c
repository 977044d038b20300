/* SPDX-License-Identifier: BSD-3-Clause */
/* The multi-process harness: spawns, watches, signals, reaps. */
#include "tests/support/mp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/bootstrap/bootstrap.h"

extern char **environ;

#define FD_SHARED  3 /* in the worker */
#define FD_LISTEN  4 /* rank 0 only */
#define TAIL_BYTES 6000

static char skip_reason[512];
static char report[8192];

struct run {
    const struct mp *mp;
    struct mp_shared *shared;
    int shared_fd, listen_fd;
    char id_hex[2 * sizeof(struct bny_id) + 1];
    uint64_t seed;
    pid_t pid[MP_RANKS_MAX];
    int log_fd[MP_RANKS_MAX];
    int status[MP_RANKS_MAX]; /* as waitpid gives it; -1 while running */
    uint32_t ended;           /* bit r: we had to end rank r */
    int signalled;
    uint64_t signal_due_ns; /* 0: the marker was not reached yet */
};

const char *mp_report(void)
{
    return report;
}

/* Prints, and keeps for mp_report. */
static void __attribute__((format(printf, 1, 2))) say(const char *fmt, ...)
{
    size_t at = strlen(report);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(report + at, sizeof report - at, fmt, ap);
    va_end(ap);
    fputs(report + at, stderr);
}

const char *mp_skip_reason(void)
{
    return skip_reason;
}

double mp_patience(void)
{
    const char *text = getenv("BANYAN_TEST_PATIENCE");
    double factor = text ? atof(text) : 1;

    return factor > 1 ? factor : 1;
}

static double timeout_of(const struct mp *mp)
{
    return (mp->timeout_s > 0 ? mp->timeout_s : MP_TIMEOUT_S) * mp_patience();
}

uint64_t mp_seed(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = 0;

    if (!text || !*text)
        return 20261122;
    if (strcmp(text, "random") != 0)
        return strtoull(text, NULL, 0);
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = bny_now_ns();
    return seed | 1;
}

struct mp_shared *mp_shared_map(void)
{
    struct mp_shared *s;

    if (getenv("BANYAN_TEST_ALONE")) /* started by a launcher: for cases that share nothing */
        return mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);
    s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, FD_SHARED, 0);

    if (s == MAP_FAILED) {
        fprintf(stderr, "rank: no shared memory at descriptor %d; run me by the tests\n",
                FD_SHARED);
        exit(2);
    }
    close(FD_SHARED);
    return s;
}

uint32_t mp_shared_arrive(struct mp_shared *s, int n)
{
    uint32_t sense = atomic_load(&s->sense);

    if (atomic_fetch_add(&s->arrived, 1) + 1 == (uint32_t)n) {
        atomic_store(&s->arrived, 0);
        atomic_fetch_add(&s->sense, 1);
    }
    return sense;
}

void mp_shared_barrier(struct mp_shared *s, int n)
{
    uint32_t sense = mp_shared_arrive(s, n);

    while (atomic_load(&s->sense) == sense)
        sched_yield();
}

/* Above the descriptors that dup2 in the child writes to, so that they cannot collide. */
static int high_fd(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 20);

    close(fd);
    return high;
}

static int make_listener(uint16_t *port)
{
    struct sockaddr_in sa = { .sin_family = AF_INET,
                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof sa;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof sa) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &len) != 0)
        return -1;
    *port = ntohs(sa.sin_port);
    return high_fd(fd);
}

/* The id that banyan_run would make: rank 0 inherits the socket which it names. */
static int make_id(struct run *r)
{
    struct bny_id id = { .magic = { 'b', 'n', 'y', '1' }, .family = 4 };
    uint32_t loopback = htonl(INADDR_LOOPBACK);

    r->listen_fd = make_listener(&id.port);
    if (r->listen_fd < 0)
        return -1;
    memcpy(id.addr, &loopback, sizeof loopback);
    if (getrandom(id.secret, sizeof id.secret, 0) != sizeof id.secret ||
        getrandom(id.job, sizeof id.job, 0) != sizeof id.job)
        return -1;
    for (size_t i = 0; i < sizeof id; i++)
        snprintf(r->id_hex + 2 * i, 3, "%02x", ((unsigned char *)&id)[i]);
    return 0;
}

/* Sets "NAME=value" in env[*n], over an earlier one of that name; "NAME" removes it. */
static void env_put(char **env, size_t *n, const char *kv)
{
    size_t name = strcspn(kv, "="), i;

    for (i = 0; i < *n; i++)
        if (!strncmp(env[i], kv, name) && env[i][name] == '=')
            break;
    if (i < *n) {
        free(env[i]);
        env[i] = env[--*n];
        env[*n] = NULL;
    }
    if (kv[name] == '=') {
        env[(*n)++] = strdup(kv);
        env[*n] = NULL;
    }
}

static char **make_env(const struct run *r, int rank)
{
    const struct mp *mp = r->mp;
    size_t n = 0, cap = 32;
    char **env, kv[512];

    for (char **e = environ; *e; e++)
        cap++;
    env = calloc(cap, sizeof *env);
    if (!env)
        abort();
    for (char **e = environ; *e; e++)
        if (strncmp(*e, "BANYAN_", 7) != 0 || !strncmp(*e, "BANYAN_TEST_", 12))
            env[n++] = strdup(*e);
#define PUT(...) (snprintf(kv, sizeof kv, __VA_ARGS__), env_put(env, &n, kv))
    PUT("BANYAN_ID=%s", r->id_hex);
    PUT("BANYAN_RANK=%d", rank);
    PUT("BANYAN_WORLD_SIZE=%d", mp->n);
    if (rank == 0)
        PUT("BANYAN_LISTEN_FD=%d", FD_LISTEN);
    if (mp->transport)
        PUT("BANYAN_TRANSPORT=%s", mp->transport);
    if (getenv("BANYAN_TEST_CODEC")) /* of communicators, where a row has no other */
        PUT("BANYAN_CODEC=%s", getenv("BANYAN_TEST_CODEC"));
#undef PUT
    for (int i = 0; i < MP_ENV_MAX && mp->env[i]; i++) {
        const char *e = mp->env[i];
        if (*e == '@') {
            char *rest;
            if (strtol(e + 1, &rest, 10) != rank)
                continue;
            e = rest + 1;
        }
        env_put(env, &n, e);
    }
    return env;
}

static int spawn_rank(struct run *r, int rank)
{
    const char *worker = getenv("BANYAN_TEST_WORKER");
    char rank_text[16], n_text[16], seed_text[32];
    char *argv[] = { (char *)"rank",
                     (char *)r->mp->case_name,
                     rank_text,
                     n_text,
                     seed_text,
                     (char *)(r->mp->arg ? r->mp->arg : ""),
                     NULL };
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    char **env;
    int rc;

    if (!worker) {
        fprintf(stderr, "mp: BANYAN_TEST_WORKER is not set; run by meson test\n");
        return -1;
    }
    snprintf(rank_text, sizeof rank_text, "%d", rank);
    snprintf(n_text, sizeof n_text, "%d", r->mp->n);
    snprintf(seed_text, sizeof seed_text, "%llu", (unsigned long long)r->seed);
    r->log_fd[rank] = high_fd(memfd_create("rank-log", MFD_CLOEXEC));
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&fa, r->log_fd[rank], 1);
    posix_spawn_file_actions_adddup2(&fa, r->log_fd[rank], 2);
    posix_spawn_file_actions_adddup2(&fa, r->shared_fd, FD_SHARED);
    if (rank == 0)
        posix_spawn_file_actions_adddup2(&fa, r->listen_fd, FD_LISTEN);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attr, rank == 0 ? 0 : r->pid[0]);
    env = make_env(r, rank);
    rc = posix_spawn(&r->pid[rank], worker, &fa, &attr, argv, env);
    for (char **e = env; *e; e++)
        free(*e);
    free(env);
    posix_spawn_file_actions_destroy(&fa);
    posix_spawnattr_destroy(&attr);
    if (rc != 0) {
        fprintf(stderr, "mp: cannot start %s: %s\n", worker, strerror(rc));
        r->pid[rank] = 0;
        return -1;
    }
    r->status[rank] = -1;
    return 0;
}

/* Returns the number of ranks still running. Zombies are reaped only here. */
static int reap(struct run *r)
{
    int running = 0;

    for (int i = 0; i < r->mp->n; i++) {
        int status;
        if (r->pid[i] > 0 && r->status[i] == -1) {
            if (waitpid(r->pid[i], &status, WNOHANG) == r->pid[i])
                r->status[i] = status;
            else
                running++;
        }
    }
    return running;
}

static int is_victim(const struct run *r, int rank)
{
    return r->mp->kill.signal != 0 && r->mp->kill.rank == rank;
}

/* It has killed itself, and we did not. */
static int died_as_told(const struct run *r, int rank)
{
    int s = r->status[rank];

    return (r->mp->may_die & ~r->ended) >> rank & 1 && s != -1 && WIFSIGNALED(s) &&
           WTERMSIG(s) == SIGKILL;
}

/* It need not end well. */
static int is_excused(const struct run *r, int rank)
{
    return (is_victim(r, rank) && r->signalled) || (r->mp->may_end >> rank & 1) ||
           died_as_told(r, rank);
}

/* Ranks still running that must end by themselves. */
static int waiting_for(const struct run *r)
{
    int n = 0;

    for (int i = 0; i < r->mp->n; i++)
        n += r->pid[i] > 0 && r->status[i] == -1 && !is_excused(r, i);
    return n;
}

static int any_failed(const struct run *r)
{
    for (int i = 0; i < r->mp->n; i++) {
        int s = r->status[i];
        if (s == -1 || is_excused(r, i))
            continue;
        if (!WIFEXITED(s) || (WEXITSTATUS(s) != 0 && WEXITSTATUS(s) != MP_SKIP))
            return 1;
    }
    return 0;
}

static void maybe_signal(struct run *r)
{
    const struct mp_signal *k = &r->mp->kill;

    if (k->signal == 0 || r->signalled || atomic_load(&r->shared->marker[k->rank]) < k->marker)
        return;
    if (r->signal_due_ns == 0)
        r->signal_due_ns = bny_now_ns() + k->delay_us * 1000ull;
    if (bny_now_ns() < r->signal_due_ns)
        return;
    r->signalled = 1;
    if (r->status[k->rank] == -1) {
        atomic_store(&r->shared->signal_ns, bny_now_ns());
        kill(r->pid[k->rank], k->signal);
    }
}

static void watch(struct run *r)
{
    uint64_t deadline = bny_deadline_in(timeout_of(r->mp));
    uint64_t failed_at = 0;

    for (;;) {
        reap(r);
        maybe_signal(r);
        if (waiting_for(r) == 0)
            return;
        /* When one rank failed the others get two seconds to say what they see. */
        if (any_failed(r) && failed_at == 0)
            failed_at = bny_now_ns();
        if (failed_at != 0 && bny_now_ns() > failed_at + 2000000000ull)
            return;
        if (bny_deadline_passed(deadline)) {
            say("mp: %s: the run did not end within its %g s\n", r->mp->case_name,
                timeout_of(r->mp));
            return;
        }
        poll(NULL, 0, r->mp->kill.signal && !r->signalled ? 1 : 3);
    }
}

static void end_all(struct run *r)
{
    for (int i = 0; i < r->mp->n; i++)
        if (r->pid[i] > 0 && r->status[i] == -1) {
            kill(r->pid[i], SIGKILL);
            r->ended |= 1u << i;
        }
    for (int i = 0; i < r->mp->n; i++)
        if (r->pid[i] > 0 && r->status[i] == -1)
            waitpid(r->pid[i], &r->status[i], 0);
}

static size_t read_tail(int fd, char *buf, size_t cap)
{
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > (off_t)cap - 1 ? end - (off_t)cap + 1 : 0;
    ssize_t got = pread(fd, buf, cap - 1, from);

    if (got < 0)
        got = 0;
    buf[got] = '\0';
    return (size_t)got;
}

static void describe(int status, char *buf, size_t cap)
{
    if (WIFEXITED(status))
        snprintf(buf, cap, "exit status %d", WEXITSTATUS(status));
    else if (WIFSIGNALED(status))
        snprintf(buf, cap, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(buf, cap, "status %#x", (unsigned)status);
}

static void print_tails(const struct run *r)
{
    static char tail[TAIL_BYTES];
    char how[64];

    say("mp: case %s%s%s, %d ranks, transport %s failed; BANYAN_TEST_SEED=%llu\n",
        r->mp->case_name, r->mp->arg ? " " : "", r->mp->arg ? r->mp->arg : "", r->mp->n,
        r->mp->transport ? r->mp->transport : "unset", (unsigned long long)r->seed);
    for (int i = 0; i < r->mp->n; i++) {
        if (r->pid[i] <= 0)
            continue;
        describe(r->status[i], how, sizeof how);
        read_tail(r->log_fd[i], tail, sizeof tail);
        say("mp: rank %d (pid %d): %s\n%s", i, (int)r->pid[i], how, tail);
    }
}

/* What the cases print on lines that start with "note:" is for the reader of a passing run too.
 */
static void print_notes(const struct run *r)
{
    static char text[TAIL_BYTES];
    char *save, *line;

    for (int i = 0; i < r->mp->n; i++) {
        read_tail(r->log_fd[i], text, sizeof text);
        for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
            if (!strncmp(line, "note:", 5))
                fprintf(stderr, "# %s n=%d %s: rank %d:%s\n", r->mp->case_name, r->mp->n,
                        r->mp->transport ? r->mp->transport : "-", i, line + 5);
    }
}

static void keep_skip_reason(const struct run *r, int rank)
{
    char text[sizeof skip_reason], *line;
    size_t len = read_tail(r->log_fd[rank], text, sizeof text);

    while (len > 0 && text[len - 1] == '\n')
        text[--len] = '\0';
    line = strrchr(text, '\n');
    snprintf(skip_reason, sizeof skip_reason, "%s", line ? line + 1 : text);
}

static int verdict(const struct run *r)
{
    int skip = 0;

    for (int i = 0; i < r->mp->n; i++) {
        int s = r->status[i];
        if (r->pid[i] <= 0)
            return 1;
        if (is_excused(r, i))
            continue;
        if (WIFEXITED(s) && WEXITSTATUS(s) == MP_SKIP) {
            keep_skip_reason(r, i);
            skip = 1;
        } else if (!WIFEXITED(s) || WEXITSTATUS(s) != 0) {
            return 1;
        }
    }
    if (r->mp->kill.signal && !r->signalled && !skip) {
        say("mp: rank %d never reached marker %u\n", r->mp->kill.rank, r->mp->kill.marker);
        return 1;
    }
    return skip ? MP_SKIP : 0;
}

int mp_run(const struct mp *mp)
{
    struct run r = { .mp = mp, .shared_fd = -1, .listen_fd = -1 };
    int rc = 1, ok = 1;

    skip_reason[0] = report[0] = '\0';
    r.seed = mp->seed ? mp->seed : mp_seed();
    r.shared_fd = high_fd(memfd_create("mp-shared", MFD_CLOEXEC));
    if (mp->n > MP_RANKS_MAX || r.shared_fd < 0 ||
        ftruncate(r.shared_fd, sizeof *r.shared) != 0 || make_id(&r) != 0) {
        perror("mp: set-up");
        return 1;
    }
    r.shared = mmap(NULL, sizeof *r.shared, PROT_READ | PROT_WRITE, MAP_SHARED, r.shared_fd, 0);
    if (r.shared == MAP_FAILED) {
        perror("mp: mmap");
        return 1;
    }
    for (int i = 0; i < mp->n && ok; i++)
        ok = spawn_rank(&r, i) == 0;
    close(r.listen_fd); /* rank 0 has its own */
    if (ok)
        watch(&r);
    end_all(&r);
    rc = verdict(&r);
    if (rc == 1)
        print_tails(&r);
    else
        print_notes(&r);
    if (mp->out)
        memcpy(mp->out, r.shared, sizeof *mp->out);
    for (int i = 0; i < mp->n; i++)
        if (r.pid[i] > 0)
            close(r.log_fd[i]);
    munmap(r.shared, sizeof *r.shared);
    close(r.shared_fd);
    return rc;
}
