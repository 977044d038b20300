/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls that all ranks draw from the seed alike, on integers, so that every result is known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "simulator/work.h"

#define ELEMS_MAX      (1u << 16)
#define SIM_ROUNDS_MAX 4096

struct sim_work sim_work;

/* Rank r's contribution at element i of operation op. */
static uint32_t value(int op, int r, size_t i)
{
    uint64_t s = sim_work.seed + (uint64_t)op * 1000003u + (uint64_t)r * 7919u + i;

    return (uint32_t)bny_rng_next(&s);
}

static int work_wrong(struct sim_rank *r, const char *what, int op, size_t i)
{
    snprintf(r->text, sizeof r->text, "%s, operation %d: element %zu is wrong", what, op, i);
    return 1;
}

/* Elements that are checked lie so far apart: among many ranks a sum takes long to know. */
static size_t stride(int n, size_t count)
{
    size_t work = (size_t)n * count;

    return work > (1u << 20) ? work >> 20 : 1;
}

struct job {
    struct sim_rank *r;
    struct banyan_comm *comm;
    int32_t *members; /* [n] of the job's ranks */
    uint32_t *in, *out;
    uint8_t *in_sum; /* [n] whose inputs are in the result */
    int op, n, me, root;
    int round, growths, joined; /* the same at all members */
    int fresh;                  /* knows none of these yet */
    int total, tried;           /* operations; the one that was begun last */
    size_t count;
    uint64_t own; /* chances of this rank alone */
    uint64_t mix; /* chances of the operation, the same at all */
};

static uint32_t sum(const struct job *j, size_t i)
{
    uint32_t x = 0;

    for (int r = 0; r < j->n; r++)
        if (j->in_sum[r])
            x += value(j->op, j->members[r], i);
    return x;
}

static void ended(const struct job *j)
{
    j->r->op_ended_ns = sim_time();
}

/* The ranks whose inputs are in the result, as the call reports them: of ranks of the
 * communicator. 1: that cannot be. */
static int contributors_wrong(const struct job *j, int at_least)
{
    int m = 0;

    for (int r = 0; r < j->n; r++)
        m += j->in_sum[r];
    return m != j->n && (m != at_least || !at_least);
}

/* Of a reduction. */
static void draw_opts(struct job *j, struct banyan_opts *o, struct banyan_reduce_opts *inputs)
{
    static const char *const codecs[] = { NULL, NULL, "blocksparse:force=1" };
    static const char *const schedules[] = { NULL, "arrival", "arrival" };

    o->codec = sim_work.codec;
    if (sim_work.at_least) {
        o->schedule = "arrival";
        inputs->at_least = sim_work.at_least < j->n ? sim_work.at_least : j->n;
    }
    if (!sim_work.mix)
        return;
    o->codec = codecs[bny_rng_below(&j->mix, sizeof codecs / sizeof codecs[0])];
    o->schedule = schedules[bny_rng_below(&j->mix, sizeof schedules / sizeof schedules[0])];
    if (o->schedule && !strcmp(o->schedule, "arrival"))
        inputs->at_least = bny_rng_below(&j->mix, 2)
                               ? 1 + (int)bny_rng_below(&j->mix, (uint64_t)j->n)
                           : j->op % 2 ? j->n
                                       : 0;
    o->chunk_bytes = bny_rng_below(&j->mix, 2) ? 8192 : 0;
}

static int reduction(struct job *j, int is_reduce)
{
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int rc, gets = !is_reduce || j->me == j->root;

    for (size_t i = 0; i < j->count; i++)
        j->in[i] = value(j->op, j->r->rank, i);
    draw_opts(j, &o, &inputs);
    inputs.contributors = j->in_sum;
    o.reduce = &inputs;
    if (is_reduce)
        rc = j->r->api->reduce(j->in, j->out, j->count, BANYAN_U32, BANYAN_SUM, j->root,
                               j->comm, &o);
    else
        rc = j->r->api->allreduce(j->in, j->out, j->count, BANYAN_U32, BANYAN_SUM, j->comm, &o);
    ended(j);
    if (rc || !gets)
        return rc;
    if (contributors_wrong(j, inputs.at_least)) {
        snprintf(j->r->text, sizeof j->r->text, "operation %d: the contributors are wrong",
                 j->op);
        return 1;
    }
    for (size_t i = 0; i < j->count; i += stride(j->n, j->count))
        if (j->out[i] != sum(j, i))
            return work_wrong(j->r, is_reduce ? "reduce" : "allreduce", j->op, i);
    return 0;
}

static int run_allreduce(struct job *j)
{
    return reduction(j, 0);
}

static int run_reduce(struct job *j)
{
    return reduction(j, 1);
}

static int run_broadcast(struct job *j)
{
    int rc;

    for (size_t i = 0; i < j->count; i++)
        j->out[i] = j->me == j->root ? value(j->op, j->members[j->root], i) : 0;
    rc = j->r->api->broadcast(j->out, j->count, BANYAN_U32, j->root, j->comm, NULL);
    ended(j);
    for (size_t i = 0; rc == 0 && i < j->count; i++)
        if (j->out[i] != value(j->op, j->members[j->root], i))
            return work_wrong(j->r, "broadcast", j->op, i);
    return rc;
}

static int run_allgather(struct job *j)
{
    size_t each = j->count / (size_t)j->n;
    int rc;

    for (size_t i = 0; i < each; i++)
        j->in[i] = value(j->op, j->r->rank, i);
    rc = j->r->api->allgather(j->in, j->out, each, BANYAN_U32, j->comm, NULL);
    ended(j);
    for (size_t i = 0; rc == 0 && i < each * (size_t)j->n; i++)
        if (j->out[i] != value(j->op, j->members[i / each], i % each))
            return work_wrong(j->r, "allgather", j->op, i);
    return rc;
}

static int run_alltoall(struct job *j)
{
    size_t each = j->count / (size_t)j->n;
    int rc;

    for (size_t i = 0; i < each * (size_t)j->n; i++)
        j->in[i] = value(j->op, j->r->rank, i);
    rc = j->r->api->alltoall(j->in, j->out, each, BANYAN_U32, j->comm, NULL);
    ended(j);
    for (size_t i = 0; rc == 0 && i < each * (size_t)j->n; i++)
        if (j->out[i] != value(j->op, j->members[i / each], i % each + each * (size_t)j->me))
            return work_wrong(j->r, "alltoall", j->op, i);
    return rc;
}

static int run_barrier(struct job *j)
{
    return j->r->api->barrier(j->comm, NULL);
}

/* ---- of --mix only ---- */

/* Elements of block i, of so many that all could have. */
static size_t share(const struct job *j, int i)
{
    uint64_t s = sim_work.seed + (uint64_t)j->op * 31u + (uint64_t)i;

    return bny_rng_below(&s, j->count / (size_t)j->n + 1);
}

static int run_allgatherv(struct job *j)
{
    size_t *counts = calloc((size_t)j->n, sizeof *counts), at = 0;
    int rc;

    if (!counts)
        return -BANYAN_ENOMEM;
    for (int r = 0; r < j->n; r++)
        counts[r] = share(j, r);
    for (size_t i = 0; i < counts[j->me]; i++)
        j->in[i] = value(j->op, j->r->rank, i);
    rc = j->r->api->allgatherv(j->in, j->out, counts, NULL, BANYAN_U32, j->comm, NULL);
    ended(j);
    for (int r = 0; r < j->n && rc == 0; at += counts[r++])
        for (size_t i = 0; i < counts[r] && rc == 0; i++)
            if (j->out[at + i] != value(j->op, j->members[r], i))
                rc = work_wrong(j->r, "allgatherv", j->op, at + i);
    free(counts);
    return rc;
}

/* Rank r has for rank k as many as their numbers together draw. */
static int run_alltoallv(struct job *j)
{
    size_t *counts = calloc((size_t)j->n, sizeof *counts), at = 0;
    int rc;

    if (!counts)
        return -BANYAN_ENOMEM;
    for (int r = 0; r < j->n; r++) {
        counts[r] = share(j, j->me + r);
        for (size_t i = 0; i < counts[r]; i++)
            j->in[at++] = value(j->op + r, j->r->rank, i);
    }
    rc = j->r->api->alltoallv(j->in, counts, NULL, j->out, counts, NULL, BANYAN_U32, j->comm,
                              NULL);
    ended(j);
    at = 0;
    for (int r = 0; r < j->n && rc == 0; at += counts[r++])
        for (size_t i = 0; i < counts[r] && rc == 0; i++)
            if (j->out[at + i] != value(j->op + j->me, j->members[r], i))
                rc = work_wrong(j->r, "alltoallv", j->op, at + i);
    free(counts);
    return rc;
}

/* The results of the first rank of the same members: all ranks must get the same bits. */
static struct {
    uint64_t members, bits;
} got[SIM_ROUNDS_MAX];

static uint64_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

/* A sum of floats by a codec that loses some of it. */
static int run_lossy(struct job *j)
{
    static const char *const codecs[] = { "int8:force=1",
                                          "topk:delta=0.1,force=1",
                                          "powersgd:rank=2",
                                          "randomk:force=1",
                                          "e4m3:force=1",
                                          "topk:delta=0.1,reselect=1,force=1",
                                          "sidco:delta=0.1,force=1",
                                          "bf16:force=1" };
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint64_t members = hash_of(j->members, (size_t)j->n * sizeof *j->members), bits;
    float *in = (float *)j->in;
    int rc;

    for (size_t i = 0; i < j->count; i++)
        in[i] = (float)(int32_t)value(j->op, j->r->rank, i) * 0x1p-31f;
    o.codec = codecs[bny_rng_below(&j->mix, sizeof codecs / sizeof codecs[0])];
    rc = j->r->api->allreduce(j->in, j->out, j->count, BANYAN_F32, BANYAN_SUM, j->comm, &o);
    ended(j);
    if (rc == -BANYAN_ENOTSUP) /* at all: so few elements */
        return 0;
    if (rc || j->op >= SIM_ROUNDS_MAX)
        return rc;
    members += sim_work.seed + (uint64_t)j->round; /* tried again: other random numbers */
    bits = hash_of(j->out, j->count * sizeof *j->out) | 1;
    if (got[j->op].bits && got[j->op].members == members && got[j->op].bits != bits) {
        snprintf(j->r->text, sizeof j->r->text, "operation %d: %s gives ranks other bits",
                 j->op, o.codec);
        return 1;
    }
    got[j->op].members = members;
    got[j->op].bits = bits;
    return 0;
}

static const struct {
    const char *name;
    int (*run)(struct job *j);
} calls[] = { { "allreduce", run_allreduce },   { "reduce", run_reduce },
              { "broadcast", run_broadcast },   { "allgather", run_allgather },
              { "alltoall", run_alltoall },     { "barrier", run_barrier },
              { "allgatherv", run_allgatherv }, { "alltoallv", run_alltoallv },
              { "lossy", run_lossy },           { "lossy", run_lossy } };
#define NCALLS (sizeof calls / sizeof calls[0])
#define PLAIN  6 /* calls without --mix */

static size_t work_find(const char *name)
{
    for (size_t i = 0; i < NCALLS; i++)
        if (!strcmp(calls[i].name, name))
            return i;
    return 0;
}

static void sleep_ns(uint64_t ns)
{
    struct timespec ts = { .tv_sec = (time_t)(ns / SIM_S), .tv_nsec = (long)(ns % SIM_S) };

    nanosleep(&ts, NULL);
}

static void think(uint64_t *s)
{
    uint64_t ns = sim_work.think_ns ? bny_rng_below(s, sim_work.think_ns) : 0;

    if (ns && bny_rng_below(s, 4) == 0)
        sleep_ns(ns);
}

static void be_late(struct job *j)
{
    uint64_t ns = sim_work.late_ns;

    if (!ns || (sim_work.late_rank >= 0 && sim_work.late_rank != j->r->rank))
        return;
    ns = sim_work.late_rank < 0 ? bny_rng_below(&j->own, ns) : ns;
    sleep_ns(ns);
}

static void dies(void *a, uint64_t b)
{
    (void)b;
    sim_rank_kill(a);
}

#define TOGETHER_NS SIM_MS /* more than ranks leave a barrier apart, on an idle network */

/* All begin the call that is named at the same time. Else the barrier's last messages stand
 * behind the data of those who have left it, and who has begun early is not measured. */
static void begin_together(const struct job *j)
{
    static int op = -1;
    static uint64_t at_ns;
    uint64_t now_ns = sim_time();

    if (op != j->op) {
        op = j->op;
        at_ns = now_ns + TOGETHER_NS;
    }
    if (now_ns < at_ns)
        sleep_ns(at_ns - now_ns);
}

/* Its times are those from when it was begun first: it may be tried again. */
static void begins(struct job *j)
{
    static int has_killer;

    if (j->tried == j->op)
        return;
    j->tried = j->op;
    if (!sim_work.ops)
        begin_together(j);
    be_late(j);
    j->r->op_begun_ns = sim_time();
    if (sim_work.kill_rank >= 0 && j->op + 1 == j->total && !has_killer) {
        has_killer = 1;
        sim_at(sim_now + sim_work.kill_ns, dies, &sim_ranks[sim_work.kill_rank], 0);
    }
}

/* The operation with the job's number: what it is depends on the seed and the number alone. */
static int one(struct job *j)
{
    uint64_t s = sim_work.seed + (uint64_t)j->op * 0x9e3779b97f4a7c15u;
    size_t which = bny_rng_below(&s, sim_work.mix ? NCALLS : PLAIN),
           bits = bny_rng_below(&s, 17);
    int rc = 0;

    j->count = bny_rng_below(&s, (uint64_t)1 << bits) + (bits > 4 ? 16 : 0);
    j->count = j->count < ELEMS_MAX ? j->count : ELEMS_MAX;
    j->root = (int)bny_rng_below(&s, (uint64_t)j->n);
    if (!sim_work.ops) {
        which = work_find(sim_work.call);
        j->count = sim_work.bytes / 4;
        rc = j->r->api->barrier(j->comm, NULL);
    }
    j->mix = s;
    begins(j);
    rc = rc ? rc : calls[which].run(j);
    think(&j->own);
    return rc;
}

/* Those who are left tell each other who they are, and where they are: fresh ones do not know.
 */
static int work_meet(struct job *j)
{
    enum { RANK, OP, ROUND, GROWTHS, JOINED, FRESH, WORDS };
    int32_t mine[WORDS] = { j->r->rank, j->op, j->round, j->growths, j->joined, j->fresh },
            *all = (int32_t *)j->out;
    int rc = j->r->api->allgather(mine, all, WORDS, BANYAN_I32, j->comm, NULL);

    for (int r = 0; rc == 0 && r < j->n; r++) {
        const int32_t *theirs = all + (ptrdiff_t)r * WORDS;

        j->members[r] = theirs[RANK];
        if (theirs[FRESH])
            continue;
        j->op = theirs[OP] > j->op ? theirs[OP] : j->op;
        j->round = theirs[ROUND];
        j->growths = theirs[GROWTHS];
        j->joined = theirs[JOINED];
    }
    j->fresh = j->fresh && rc;
    return rc;
}

/* ---- growing ---- */

#define GROWTHS_MAX 16

/* Ids on their way to those who want in: by memory that all ranks share. */
static struct {
    struct banyan_id ids[GROWTHS_MAX];
    int number;
} board;

void sim_work_config(const struct sim_rank *r, struct banyan_config *cfg)
{
    *cfg = (struct banyan_config)BANYAN_CONFIG_INIT;
    cfg->transport = "tcp";
    if (sim_work.schedule)
        cfg->schedule = sim_work.schedule;
    if (sim_work.topology)
        cfg->topology = sim_work.topology;
    cfg->init_timeout_s = sim_work.init_timeout_s;
    cfg->op_timeout_s = sim_work.op_timeout_s;
}

static void grow_config(const struct sim_rank *r, struct banyan_config *cfg)
{
    sim_work_config(r, cfg);
    if (cfg->init_timeout_s > 5)
        cfg->init_timeout_s = 5;
}

static int anybody_is_in(void)
{
    for (int i = 0; i < sim_nranks; i++)
        if (sim_ranks[i].is_in && !sim_ranks[i].done && sim_ranks[i].fate != SIM_DEAD)
            return 1;
    return 0;
}

int sim_work_join(struct sim_rank *r, struct banyan_comm **comm)
{
    const struct timespec pause = { .tv_nsec = 200 * SIM_US };
    struct banyan_config cfg;
    int tried = 0;

    while (tried != board.number || anybody_is_in()) {
        if (tried == board.number) {
            nanosleep(&pause, NULL);
            continue;
        }
        tried = board.number;
        grow_config(r, &cfg);
        if (r->api->comm_join(comm, &board.ids[tried], &cfg) == 0) {
            r->is_in = r->came = 1;
            return 1;
        }
    }
    return 0;
}

static int wants_growth(const struct job *j)
{
    return j->joined < sim_work.newcomers && j->growths + 1 < GROWTHS_MAX &&
           j->growths < sim_work.newcomers + 3 && j->op > 3 * j->growths;
}

/* By one; all or nobody. 1: it has grown. */
static int work_grow(struct job *j)
{
    int makes = j->me == 0;
    struct banyan_config cfg;
    struct banyan_comm *next;
    struct banyan_id id;

    j->growths++;
    makes = makes && j->r->api->comm_grow_id(j->comm, &id) == 0;
    if (makes) {
        board.ids[j->growths] = id;
        board.number = j->growths > board.number ? j->growths : board.number;
    }
    grow_config(j->r, &cfg);
    if (j->r->api->comm_grow(j->comm, makes ? &id : NULL, 1, &cfg, &next))
        return 0;
    j->r->api->comm_destroy(j->comm);
    j->comm = next;
    j->n = j->r->api->comm_count(next);
    j->me = j->r->api->comm_rank(next);
    j->joined++;
    j->r->growths++;
    return 1;
}

static int go_on(struct job *j)
{
    struct banyan_comm *next;
    int rc = j->r->api->comm_shrink(j->comm, &next);

    if (rc)
        return rc;
    j->r->api->comm_destroy(j->comm);
    j->comm = next;
    j->n = j->r->api->comm_count(next);
    j->me = j->r->api->comm_rank(next);
    j->r->shrinks++;
    return 0;
}

/* Is all well with everybody? All who get an answer get the same. 1: they do not. */
static int work_agree(struct job *j, int *ok)
{
    static struct answer {
        uint64_t bits;
        int dead, known;
    } answers[SIM_ROUNDS_MAX], *a;
    uint64_t bits = *ok ? ~((uint64_t)2 << j->r->rank % 63) : 0;
    int dead = j->r->api->comm_agree(j->comm, &bits, NULL, 0);

    if (dead < 0)
        return dead;
    *ok = (bits & 1) && dead == 0;
    if (j->r->is_hit || j->fresh) /* the others may go on without it while it thinks otherwise;
                                     it does not know which agreement this is */
        return 0;
    a = &answers[j->round % SIM_ROUNDS_MAX];
    if (!a->known)
        *a = (struct answer){ bits, dead, 1 };
    if (a->bits == bits && a->dead == dead)
        return 0;
    snprintf(j->r->text, sizeof j->r->text,
             "agreement %d: bits %llx and %d dead, others have %llx and %d", j->round,
             (unsigned long long)bits, dead, (unsigned long long)a->bits, a->dead);
    return 1;
}

/* A call that is measured is taken again by all, by those too whose part in it was done. */
static void take_again(struct job *j, int op)
{
    if (sim_work.ops)
        return;
    j->r->ops -= j->op - op;
    j->op = op;
}

/* Rounds of operations, after each of which all ask each other whether to go on so, or with
 * those who are left. */
static int survive(struct job *j, int total)
{
    int rc = 0, met = !j->fresh, done = 0;

    for (; !done; j->round++) {
        int ok = met || work_meet(j) == 0, first = j->op,
            last = first + 1 + (sim_work.ops ? j->round % 5 : 0);

        met = ok;
        while (ok && j->op < last && j->op <= total) {
            rc = j->op < total ? one(j) : j->r->api->barrier(j->comm, NULL);
            if (rc == 1)
                return rc;
            ok = rc == 0;
            j->op += ok;
            j->r->ops += ok;
        }
        rc = work_agree(j, &ok);
        done = ok && j->op > total; /* else others may not have come so far */
        if (rc == 0 && !ok) {
            rc = go_on(j);
            met = 0;
            take_again(j, first);
        } else if (rc == 0 && !done && wants_growth(j)) {
            met = !work_grow(j);
        }
        if (rc)
            return rc;
    }
    return 0;
}

int sim_work_run(struct sim_rank *r, struct banyan_comm **comm)
{
    int total = sim_work.ops ? sim_work.ops : sim_work.repeats, rc = 0;
    uint64_t own = sim_work.seed ^ ((uint64_t)r->rank << 40);
    size_t elems = sim_work.bytes / 4 > ELEMS_MAX ? sim_work.bytes / 4 : ELEMS_MAX;
    struct job j = { .r = r,
                     .comm = *comm,
                     .n = r->api->comm_count(*comm),
                     .me = r->api->comm_rank(*comm),
                     .own = own,
                     .fresh = r->came,
                     .total = total,
                     .tried = -1 };

    j.in = malloc(elems * 4);
    j.out = malloc(elems * 4);
    j.members = malloc((size_t)sim_nranks * sizeof *j.members);
    j.in_sum = malloc((size_t)sim_nranks);
    for (int i = 0; i < sim_nranks; i++)
        j.members[i] = i;
    if (sim_work.survive)
        rc = survive(&j, total);
    for (; rc == 0 && j.op < total; j.op++) {
        rc = one(&j);
        r->ops += rc == 0;
    }
    if (rc == 0) {
        struct banyan_stats st = { .size = sizeof st };

        rc = r->api->comm_stats(j.comm, &st);
        r->sums_asked = st.sums_asked;
        r->sums_by_arrival = st.sums_by_arrival;
    }
    *comm = j.comm;
    r->left = j.n;
    r->lowest = j.members[0];
    free(j.in);
    free(j.out);
    free(j.members);
    free(j.in_sum);
    return rc;
}
