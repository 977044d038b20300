/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_sim: jobs in virtual time. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "simulator/faults.h"
#include "simulator/real.h"
#include "simulator/work.h"

static struct {
    int ranks, per_host, some, verbose;
    uint64_t seed;
    long seeds;
    double gbps, latency_us, until_s, window_s;
    const char *graph, *library;
    int faults[SIM_FAULT_KINDS];
} opt = { .ranks = 4,
          .per_host = 1,
          .seed = 1,
          .seeds = 1,
          .gbps = 10,
          .latency_us = 20,
          .until_s = 600,
          .window_s = 0.2 };

struct outcome { /* of a seed; from the child that ran it */
    int failed;
    int deaths, errors;
    uint64_t hash, events, ns;
    uint64_t sums_asked, sums_by_arrival; /* of a rank, at most */
    uint64_t op_ns; /* of the latest call: from the first rank's begin to the last one's end */
    uint64_t init_ns, init_messages[2], init_bytes[2]; /* tell_init() */
    uint64_t messages, bytes;                          /* of all ranks, until the end */
    uint64_t after_ns;                                 /* from the last one's begin on */
    uint64_t half_ns; /* until half of the ranks were through */
};

/* ---- one run ---- */

static struct sim_fault faults[SIM_FAULTS_MAX + 1]; /* and --kill */
static int nfaults;

static int is_hit(int r)
{
    for (int i = 0; i < nfaults; i++)
        if (sim_fault_hits(&faults[i], r))
            return 1;
    return 0;
}

static void main_tell(const char *what, uint64_t seed)
{
    printf("seed %llu: %s\n", (unsigned long long)seed, what);
    for (int i = 0; i < nfaults; i++)
        sim_fault_print(&faults[i]);
    for (int r = 0; r < sim_nranks && r < 32; r++) {
        const struct sim_rank *s = &sim_ranks[r];

        printf("  rank %d: %s, %s%d operations, %d shrinks, %d growths, %s%d%s%s\n", r,
               s->fate == SIM_DEAD ? "dead"
               : s->done           ? "done"
                                   : "waits",
               s->is_in ? "" : "outside, ", s->ops, s->shrinks, s->growths,
               s->rc ? "error " : "", s->rc, s->rc ? ": " : "", s->text);
    }
}

/* Those who live have to come within a deadline, or all are told so. */
static int waited_long(const struct sim_rank *r)
{
    double most = 0;

    for (int i = 0; i < nfaults; i++)
        if (faults[i].kind == SIM_STOP || faults[i].kind == SIM_CUT)
            most = (double)faults[i].for_ns > most ? (double)faults[i].for_ns : most;
    return r->rc == -BANYAN_ETIMEDOUT && most > sim_work.op_timeout_s * 0.9e9;
}

/* A view in which a rank is silent fails if no more than half are left, and a rank that stands
 * still then is not one of them (docs/failures.md): one is silent behind a long cut, others are
 * stopped. So is a rank that was silent for long, stopped behind a reset, when its port
 * refused: it may have gone on, and been through. */
static int too_few_may_be_left(void)
{
    int members = 0, missed = 0, silent = 0;

    for (int r = 0; r < sim_nranks; r++)
        members += sim_ranks[r].fate != SIM_DEAD;
    for (int i = 0; i < nfaults; i++) {
        const struct sim_fault *f = &faults[i];
        int dead = f->kind == SIM_STOP && sim_ranks[f->victim].fate == SIM_DEAD &&
                   f->for_ns >= 5 * (uint64_t)SIM_S;

        members += dead;
        silent += dead || (f->kind == SIM_CUT && f->for_ns >= 4 * (uint64_t)SIM_S);
        missed += !dead && f->kind == SIM_STOP && f->for_ns >= 2 * (uint64_t)SIM_S;
    }
    return silent && 2 * (members - silent - missed) <= members;
}

/* A rank that was ready goes on when its connection to the root is reset, as others do once the
 * root has let them go. Where a death then ended init for them, nobody is there. */
static int init_failed_for_most(void)
{
    int alive = 0, begun = 0;

    for (int r = 0; r < sim_nranks - sim_work.newcomers; r++) {
        alive += sim_ranks[r].fate != SIM_DEAD;
        begun += sim_ranks[r].fate != SIM_DEAD && sim_ranks[r].begun_ns;
    }
    return 2 * begun <= alive;
}

/* Two that were through with different members: both parts of a network went on. A rank that
 * ended before it had to shrink made all its calls with everybody. Others may have missed it in
 * their last call. */
static int went_on_apart(void)
{
    const struct sim_rank *first = NULL;

    for (int i = 0; i < sim_nranks; i++) {
        const struct sim_rank *r = &sim_ranks[i];

        if (r->fate == SIM_DEAD || r->rc || !r->is_in || (!r->shrinks && !r->growths))
            continue;
        if (first && (first->lowest != r->lowest || first->left != r->left))
            return 1;
        first = r;
    }
    return 0;
}

/* One split that lasts for longer than silence may (half as long again where many hosts are
 * missed, from when the kernel gave up), or for so short that nobody is silent, and nothing
 * else: its larger part goes on. */
static int larger_part_failed(void)
{
    const struct sim_fault *f = &faults[0];
    int size[2] = { 0, 0 }, larger, brief = f->for_ns < 5 * (uint64_t)SIM_S;

    if (nfaults != 1 || (f->kind != SIM_SPLIT && f->kind != SIM_ONEWAY) || f->bridge >= 0 ||
        (!brief && f->for_ns < 12 * (uint64_t)SIM_S))
        return 0;
    for (int r = 0; r < sim_nranks; r++)
        size[sim_fault_part(f, r)]++;
    if (brief && size[0] == size[1])
        return 0;
    larger = size[0] == size[1] ? sim_fault_part(f, 0) : size[1] > size[0];
    for (int r = 0; r < sim_nranks; r++)
        if (sim_fault_part(f, r) == larger && sim_ranks[r].rc && sim_ranks[r].begun_ns)
            return 1;
    return 0;
}

/* One host that misses at least two others, whom all the rest reach: it is the one who is left
 * out. */
static int many_pay_for_one(void)
{
    const struct sim_fault *f = &faults[0];

    if (nfaults != 1 || f->kind != SIM_PARTIAL || f->number < 2 ||
        f->for_ns < 12 * (uint64_t)SIM_S || f->number + 2 > (uint64_t)sim_net_nhosts())
        return 0;
    for (int r = 0; r < sim_nranks; r++)
        if (sim_fault_part(f, r) != 0 && sim_ranks[r].rc && sim_ranks[r].begun_ns)
            return 1;
    return 0;
}

/* Ranks that come to the end together have run each sum alike. */
static int chose_apart(void)
{
    const struct sim_rank *first = NULL;

    for (int i = 0; i < sim_nranks; i++) {
        const struct sim_rank *r = &sim_ranks[i];

        if (r->fate == SIM_DEAD || !r->done || r->rc || is_hit(i))
            continue;
        if (first && first->left == r->left &&
            (first->sums_asked != r->sums_asked ||
             first->sums_by_arrival != r->sums_by_arrival))
            return 1;
        first = r;
    }
    return 0;
}

/* NULL, or what is wrong with how the run went. */
static const char *verdict(int stuck)
{
    const struct sim_rank *first = NULL;

    if (sim_work.survive && went_on_apart())
        return "two parts of the job went on";
    if (sim_work.survive && larger_part_failed())
        return "the larger part did not go on";
    if (sim_work.survive && many_pay_for_one())
        return "one host is cut off, and others were left out";
    for (int i = 0; i < sim_nranks; i++) {
        const struct sim_rank *r = &sim_ranks[i];

        if (r->fate == SIM_DEAD)
            continue;
        if (!r->done)
            return stuck ? "a rank waits for ever" : "a rank still waits at the end";
        if (r->rc == 1)
            return "a wrong value";
        if (r->rc && nfaults == 0)
            return "an error without a fault";
        if (!r->is_in && nfaults == 0)
            return "a newcomer did not get in, without a fault";
        if (r->rc && sim_work.survive && r->begun_ns && !is_hit(i) && !waited_long(r) &&
            !too_few_may_be_left() && !init_failed_for_most())
            return "a rank that nothing happened to did not go on";
        if (r->rc == 0 || r->blamed < 0)
            continue;
        if (sim_work.survive) /* each wave has its own, by the numbers of what was left */
            continue;
        if (r->blamed == i && is_hit(i)) /* excluded: no survivor */
            continue;
        if (!is_hit(r->blamed))
            return "a rank is blamed that nothing happened to";
        if (first && first->blamed != r->blamed)
            return "survivors blame different ranks";
        first = r;
    }
    return chose_apart() ? "ranks chose differently when to add in order of arrival" : NULL;
}

static int by_time(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void op_times(struct outcome *o)
{
    uint64_t first = UINT64_MAX, begun = 0, *ended = malloc((size_t)sim_nranks * sizeof *ended);
    int n = 0;

    for (int r = 0; r < sim_nranks && ended; r++) {
        const struct sim_rank *s = &sim_ranks[r];

        if (s->fate == SIM_DEAD)
            continue;
        first = s->op_begun_ns < first ? s->op_begun_ns : first;
        begun = s->op_begun_ns > begun ? s->op_begun_ns : begun;
        ended[n++] = s->op_ended_ns;
    }
    if (!ended)
        return;
    qsort(ended, (size_t)n, sizeof *ended, by_time);
    if (n && ended[0] > first) {
        o->op_ns = ended[n - 1] - first;
        o->after_ns = ended[n - 1] > begun ? ended[n - 1] - begun : 0;
        o->half_ns = ended[(n - 1) / 2] - first;
    }
    free(ended);
}

/* The time of init: until the last rank was through; of the busiest rank; and of the busiest
 * rank but rank 0, to which all others connect first. */
static void tell_init(struct outcome *o)
{
    for (int r = 0; r < sim_nranks; r++) {
        const struct sim_rank *k = &sim_ranks[r];

        o->init_ns = k->begun_ns > o->init_ns ? k->begun_ns : o->init_ns;
        o->messages += k->messages;
        o->bytes += k->bytes;
        for (int i = 0; i < (r ? 2 : 1); i++) {
            if (k->init_bytes > o->init_bytes[i])
                o->init_bytes[i] = k->init_bytes;
            if (k->init_messages > o->init_messages[i])
                o->init_messages[i] = k->init_messages;
        }
    }
}

static void begin_faults(void)
{
    sim_faults_plan(faults, sim_work.kill_rank >= 0 ? nfaults - 1 : nfaults);
}

static void main_run(struct outcome *o, uint64_t seed)
{
    uint64_t s = seed;
    int nhosts = (opt.ranks + opt.per_host - 1) / opt.per_host, stuck;
    const char *bad;

    sim_mix(seed);
    sim_seed(seed);
    sim_work.seed = bny_rng_next(&s);
    if (sim_net_open(nhosts, opt.gbps / 8 * 1e9, (uint64_t)(opt.latency_us * 1e3), opt.graph) !=
            0 ||
        sim_ranks_start(bny_rng_next(&s), opt.per_host) != 0)
        exit(2);
    nfaults = sim_faults_draw(faults, opt.faults, opt.some, (uint64_t)(opt.window_s * 1e9), &s);
    if (sim_work.ops) /* a call that is measured has them when all ranks are in */
        sim_faults_plan(faults, nfaults);
    else
        sim_work.all_are_in = begin_faults;
    if (sim_work.kill_rank >= 0) /* work.c kills it */
        faults[nfaults++] =
            (struct sim_fault){ .kind = SIM_KILL, .victim = sim_work.kill_rank, .bridge = -1 };
    for (int r = 0; r < sim_nranks; r++)
        sim_ranks[r].is_hit = is_hit(r);
    stuck = sim_run((uint64_t)(opt.until_s * 1e9));
    bad = verdict(stuck);
    op_times(o);
    tell_init(o);
    for (int r = 0; r < sim_nranks; r++) {
        o->deaths += sim_ranks[r].fate == SIM_DEAD;
        if (sim_ranks[r].sums_asked > o->sums_asked)
            o->sums_asked = sim_ranks[r].sums_asked;
        if (sim_ranks[r].sums_by_arrival > o->sums_by_arrival)
            o->sums_by_arrival = sim_ranks[r].sums_by_arrival;
        o->errors += sim_ranks[r].fate != SIM_DEAD && sim_ranks[r].rc != 0;
        if (sim_ranks[r].done && sim_ranks[r].done_ns > o->ns)
            o->ns = sim_ranks[r].done_ns;
    }
    o->failed = bad != NULL;
    o->hash = sim_hash;
    o->events = sim_nevents;
    if (bad || opt.verbose)
        main_tell(bad ? bad : "as it should be", seed);
    else if (opt.seeds == 1 && nfaults)
        printf("seed %llu: as it should be; faults %s\n", (unsigned long long)seed,
               sim_work.ops ? "from the start on" : "from the end of init on");
    fflush(stdout);
}

/* In a process of its own: threads of the dead stay until its end. */
static int run_in_child(struct outcome *o, uint64_t seed)
{
    int fds[2], status;
    pid_t pid;

    memset(o, 0, sizeof *o);
    if (pipe(fds) != 0 || (pid = fork()) < 0) {
        perror("banyan_sim");
        exit(2);
    }
    if (pid == 0) {
        main_run(o, seed);
        _exit(write(fds[1], o, sizeof *o) == sizeof *o ? 0 : 2);
    }
    close(fds[1]);
    if (read(fds[0], o, sizeof *o) != sizeof *o)
        o->failed = 1;
    close(fds[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status) && WEXITSTATUS(status) == SIM_NO_MEMORY)
        printf("seed %llu: this machine has no memory for it\n", (unsigned long long)seed);
    else if (status)
        printf("seed %llu: the run ended with status %d\n", (unsigned long long)seed, status);
    if (status)
        o->failed = 1;
    return o->failed;
}

static double seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int run_all(void)
{
    double begin = seconds();
    uint64_t events = 0, asked = 0, by_arrival = 0;
    long failed = 0, deaths = 0, errors = 0;
    struct outcome o, twice;

    for (long i = 0; i < opt.seeds; i++) {
        failed += run_in_child(&o, opt.seed + (uint64_t)i);
        events += o.events;
        deaths += o.deaths;
        asked += o.sums_asked;
        by_arrival += o.sums_by_arrival;
        errors += o.errors;
        if (opt.seeds == 1 || i % 100 != 0 || o.failed)
            continue;
        run_in_child(&twice, opt.seed + (uint64_t)i);
        if (twice.hash != o.hash) {
            printf("seed %llu: two runs differ (%016llx, %016llx)\n",
                   (unsigned long long)opt.seed + (unsigned long long)i,
                   (unsigned long long)o.hash, (unsigned long long)twice.hash);
            failed++;
        }
    }
    printf("%ld seeds of %d ranks: %ld failed, %ld deaths, %ld ranks with errors, %.3g events, "
           "%.1f s\n",
           opt.seeds, opt.ranks, failed, deaths, errors, (double)events, seconds() - begin);
    if (asked)
        printf(
            "auto: %llu allreduces asked who was late, of these %llu ran in order of arrival\n",
            (unsigned long long)asked, (unsigned long long)by_arrival);
    if (opt.seeds == 1)
        printf("hash %016llx, %.6f s of virtual time\n", (unsigned long long)o.hash,
               (double)o.ns * 1e-9);
    if (opt.seeds == 1)
        printf("init: %.6f s; the busiest rank: %llu messages, %llu bytes; but rank 0: %llu, "
               "%llu\n",
               (double)o.init_ns * 1e-9, (unsigned long long)o.init_messages[0],
               (unsigned long long)o.init_bytes[0], (unsigned long long)o.init_messages[1],
               (unsigned long long)o.init_bytes[1]);
    if (opt.seeds == 1)
        printf("all ranks: %llu messages, %llu bytes, both ways\n",
               (unsigned long long)o.messages, (unsigned long long)o.bytes);
    if (opt.seeds == 1 && !sim_work.ops)
        printf("%s of %zu bytes: %.3f us, %.3f us after the last call, half of the ranks after "
               "%.3f us\n",
               sim_work.call, sim_work.bytes, (double)o.op_ns * 1e-3, (double)o.after_ns * 1e-3,
               (double)o.half_ns * 1e-3);
    return failed != 0;
}

/* ---- options ---- */

static void usage(void)
{
    puts("usage: banyan_sim [options] [COLLECTIVE BYTES]\n"
         "Jobs of many ranks in virtual time, over a network that is computed: the library\n"
         "itself, one copy a rank. The same seed gives the same run. Without a collective:\n"
         "random calls.\n"
         "  --ranks N          (4)\n"
         "  --per-host K       ranks of a host (1)\n"
         "  --seed S           (1)\n"
         "  --seeds COUNT      runs, of the seeds from S on (1)\n"
         "  --ops N            random calls, or repetitions of the one that is given (20)\n"
         "  --faults LIST      kill=N, crash=N, stop=N, cut=N, split=N, vanish=N,\n"
         "                     reset=N, break=N, oneway=N, partial=N\n"
         "  --some             at most so many, as the seed decides\n"
         "  --window SECONDS   when faults come, from the start on; of a collective that is "
         "given,\n"
         "                     from the end of init on (0.2)\n"
         "  --kill R@MS        rank R dies MS after the last call has begun\n"
         "  --survive          after a failure those who are left shrink and go on\n"
         "  --grow N           the last N ranks join the running job, one after the other\n"
         "  --think MS         ranks compute between calls, at most so long (0)\n"
         "  --late MS          ranks come to a call at most so late, by chance (0)\n"
         "  --late-rank R      this one alone, by all of it\n"
         "  --at-least K       reductions are of the first K to come (schedule arrival)\n"
         "  --gbps G           of a host's port (10)\n"
         "  --latency US       from host to host (20)\n"
         "  --topo GRAPH       a network, such as fattree:1024, in place of these two\n"
         "  --schedule NAME    of the calls (auto)\n"
         "  --codec SPEC       of reductions, one that changes no bit (none)\n"
         "  --mix              calls with codecs, lossy ones too, by arrival, and v-variants\n"
         "  --timeout SECONDS  of operations (30) and init (60)\n"
         "  --until SECONDS    of virtual time; who waits then has failed (600)\n"
         "  --library FILE     of which copies are made\n"
         "  --verbose          what became of each rank\n"
         "Exit status: 0, 1: a run failed, 2: wrong options.");
}

enum {
    OPT_FIRST = 256,
    RANKS,
    PER_HOST,
    SEED,
    SEEDS,
    OPS,
    FAULTS,
    SOME,
    SURVIVE,
    GROW,
    WINDOW,
    KILL,
    THINK,
    LATE,
    LATE_RANK,
    AT_LEAST,
    GBPS,
    LATENCY,
    TOPO,
    SCHEDULE,
    CODEC,
    MIX,
    TIMEOUT,
    UNTIL,
    LIBRARY,
    VERBOSE,
    HELP
};

static const struct option options[] = { { "ranks", 1, NULL, RANKS },
                                         { "per-host", 1, NULL, PER_HOST },
                                         { "seed", 1, NULL, SEED },
                                         { "seeds", 1, NULL, SEEDS },
                                         { "ops", 1, NULL, OPS },
                                         { "faults", 1, NULL, FAULTS },
                                         { "some", 0, NULL, SOME },
                                         { "survive", 0, NULL, SURVIVE },
                                         { "grow", 1, NULL, GROW },
                                         { "window", 1, NULL, WINDOW },
                                         { "kill", 1, NULL, KILL },
                                         { "think", 1, NULL, THINK },
                                         { "gbps", 1, NULL, GBPS },
                                         { "latency", 1, NULL, LATENCY },
                                         { "topo", 1, NULL, TOPO },
                                         { "schedule", 1, NULL, SCHEDULE },
                                         { "codec", 1, NULL, CODEC },
                                         { "mix", 0, NULL, MIX },
                                         { "timeout", 1, NULL, TIMEOUT },
                                         { "until", 1, NULL, UNTIL },
                                         { "late", 1, NULL, LATE },
                                         { "late-rank", 1, NULL, LATE_RANK },
                                         { "at-least", 1, NULL, AT_LEAST },
                                         { "library", 1, NULL, LIBRARY },
                                         { "verbose", 0, NULL, VERBOSE },
                                         { "help", 0, NULL, HELP },
                                         { NULL, 0, NULL, 0 } };

static size_t size_of(const char *text)
{
    char *end;
    double x = strtod(text, &end);

    if (*end == 'K')
        x *= 1 << 10;
    else if (*end == 'M')
        x *= 1 << 20;
    else if (*end == 'G')
        x *= 1 << 30;
    return (size_t)x;
}

static int take_kill(const char *text)
{
    double ms;

    if (sscanf(text, "%d@%lf", &sim_work.kill_rank, &ms) != 2 || ms < 0)
        return 1;
    sim_work.kill_ns = (uint64_t)(ms * 1e6);
    return sim_work.kill_rank < 0;
}

static int main_take(int o)
{
    switch (o) {
    case RANKS: opt.ranks = atoi(optarg); return opt.ranks < 1 || opt.ranks > 65536;
    case PER_HOST: opt.per_host = atoi(optarg); return opt.per_host < 1;
    case SEED: opt.seed = strtoull(optarg, NULL, 0); return 0;
    case SEEDS: opt.seeds = atol(optarg); return opt.seeds < 1;
    case OPS: sim_work.ops = sim_work.repeats = atoi(optarg); return sim_work.ops < 1;
    case FAULTS: return sim_faults_parse(opt.faults, optarg);
    case SURVIVE: sim_work.survive = 1; return 0;
    case SOME: opt.some = 1; return 0;
    case GROW:
        sim_work.survive = 1;
        sim_work.newcomers = atoi(optarg);
        return sim_work.newcomers < 0;
    case WINDOW: opt.window_s = atof(optarg); return 0;
    case KILL: return take_kill(optarg);
    case THINK: sim_work.think_ns = (uint64_t)(atof(optarg) * 1e6); return 0;
    case LATE: sim_work.late_ns = (uint64_t)(atof(optarg) * 1e6); return 0;
    case LATE_RANK: sim_work.late_rank = atoi(optarg); return sim_work.late_rank < 0;
    case AT_LEAST: sim_work.at_least = atoi(optarg); return sim_work.at_least < 1;
    case GBPS: opt.gbps = atof(optarg); return opt.gbps <= 0;
    case LATENCY: opt.latency_us = atof(optarg); return opt.latency_us < 0;
    case TOPO: opt.graph = sim_work.topology = optarg; return 0;
    case SCHEDULE: sim_work.schedule = optarg; return 0;
    case CODEC: sim_work.codec = optarg; return 0;
    case MIX: sim_work.mix = 1; return 0;
    case TIMEOUT: sim_work.op_timeout_s = atof(optarg); return sim_work.op_timeout_s <= 0;
    case UNTIL: opt.until_s = atof(optarg); return opt.until_s <= 0;
    case LIBRARY: opt.library = optarg; return 0;
    case VERBOSE: opt.verbose = 1; return 0;
    default: return 1;
    }
}

/* The library beside this program, as it is built or installed. */
static const char *find_library(void)
{
    static const char *const places[] = { "../libbanyan.so", "../lib/libbanyan.so",
                                          "../lib/x86_64-linux-gnu/libbanyan.so",
                                          "../../libbanyan.so" };
    static char path[PATH_MAX + 64];
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    self[n < 0 ? 0 : n] = '\0';
    *(strrchr(self, '/') ? strrchr(self, '/') : self) = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", self, places[i]);
        if (access(path, R_OK) == 0)
            return path;
    }
    return "libbanyan.so";
}

static void one_cpu(void)
{
    cpu_set_t set;
    int cpu = -1;

    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (int i = 0; i < CPU_SETSIZE && cpu < 0; i++)
        if (CPU_ISSET((size_t)i, &set))
            cpu = i;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char **argv)
{
    int o, rc = 0;

    sim_real_find();
    sim_work = (struct sim_work){ .ops = 20,
                                  .repeats = 1,
                                  .init_timeout_s = 60,
                                  .op_timeout_s = 30,
                                  .late_rank = -1,
                                  .kill_rank = -1 };
    while (!rc && (o = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (o == HELP || o == 'h') {
            usage();
            return 0;
        }
        rc = main_take(o);
    }
    if (rc || sim_work.newcomers >= opt.ranks || sim_work.kill_rank >= opt.ranks ||
        (argc != optind && argc != optind + 2)) {
        fprintf(stderr, "banyan_sim: wrong options; see --help\n");
        return 2;
    }
    if (argc == optind + 2) {
        sim_work.ops = 0;
        sim_work.call = argv[optind];
        sim_work.bytes = size_of(argv[optind + 1]);
    }
    setenv("BANYAN_SPIN_US", "0", 0); /* spinning takes no virtual time */
    one_cpu();
    return sim_ranks_open(opt.ranks, opt.library ? opt.library : find_library()) ? 2
                                                                                 : run_all();
}
