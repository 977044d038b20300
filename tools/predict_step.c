/* SPDX-License-Identifier: BSD-3-Clause */
/* A step as a job of the simulator: computing, buckets that start as they fill, the verdict. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tools/predict.h"
#include "training/cut.h"

#define NODES_MAX 20000000u
/* As training/buckets_step.c. */
#define IN_FLIGHT_MOST 64
#define VERDICT_COUNT  3

/* ---- the job ---- */

int predict_job_init(struct predict_job *j, const struct predict_world *w)
{
    size_t n = (size_t)w->graph->nranks;

    *j = (struct predict_job){ .w = w };
    bny_sim_job_init(&j->sim, w->graph->nranks);
    j->sim.nprocessors = 2 * w->graph->nranks;
    j->sent = calloc(2 * n, sizeof *j->sent);
    j->work = j->sent ? j->sent + n : NULL;
    return j->sent ? 0 : bny_fail(BANYAN_ENOMEM, "no memory to predict steps of %zu ranks", n);
}

void predict_job_free(struct predict_job *j)
{
    bny_sim_job_free(&j->sim);
    free(j->nodes);
    free(j->sent);
}

static uint32_t predict_step_add(struct predict_job *j, const struct bny_transfer *t,
                                 enum predict_what what)
{
    uint32_t id;

    if (j->sim.n >= j->nodes_cap && !j->sim.failed) {
        uint32_t cap = 2 * j->nodes_cap + 1024;
        struct predict_node *more =
            cap < NODES_MAX ? reallocarray(j->nodes, cap, sizeof *more) : NULL;
        if (more) {
            j->nodes = more;
            j->nodes_cap = cap;
        } else {
            j->sim.failed = 1;
        }
    }
    id = bny_sim_add(&j->sim, t);
    if (!j->sim.failed)
        j->nodes[id] = (struct predict_node){ .what = what, .bucket = j->bucket };
    return id;
}

uint32_t predict_work(struct predict_job *j, int rank, enum predict_what what, double seconds)
{
    struct bny_transfer t = { .from = rank,
                              .to = rank,
                              .work_s = seconds * j->w->slower,
                              .processor = 1 + rank + (j->w->has_thread ? j->sim.nranks : 0) };

    j->work[rank] += t.work_s;
    return predict_step_add(j, &t, what);
}

uint32_t predict_compute(struct predict_job *j, int rank, double seconds)
{
    struct bny_transfer t = { .from = rank,
                              .to = rank,
                              .work_s = seconds * j->w->compute_slower,
                              .processor = 1 + rank,
                              .is_last = 1 };

    return predict_step_add(j, &t, PREDICT_COMPUTE);
}

uint32_t predict_join(struct predict_job *j, int rank)
{
    struct bny_transfer t = { .from = rank, .to = rank };

    return predict_step_add(j, &t, PREDICT_OTHER);
}

uint32_t predict_message(struct predict_job *j, int from, int to, double bytes,
                         uint32_t priority)
{
    struct bny_transfer t = { .from = from, .to = to, .bytes = bytes, .step = priority };

    j->sent[from] += bytes;
    return predict_step_add(j, &t, PREDICT_WIRE);
}

void predict_after(struct predict_job *j, uint32_t later, uint32_t earlier)
{
    bny_sim_after(&j->sim, later, earlier);
}

/* ---- buckets ---- */

struct bucket {
    struct predict_op op;
    uint64_t bytes;
    uint32_t last; /* the tensor with which it is full: its place in the order */
};

struct step {
    const struct predict_world *w;
    const struct predict_setting *s;
    struct predict_job j;
    struct bny_scope *scopes; /* [n] */
    int *members;             /* [n] 0, 1, ... */
    struct bucket *buckets;
    size_t nbuckets;
    uint32_t *nodes; /* [(buckets + 1) x n] start, sent and finish of each; the last: verdict */
    uint32_t *compute; /* [n] the latest part of each rank's computing */
};

static const char *codec_of(const struct step *x, const struct bny_profile_tensor *t)
{
    if (!strcmp(x->s->codec, "profile"))
        return t->codec;
    return t->count >= x->w->codec_from ? x->s->codec : "none";
}

static const char *schedule_of(const struct step *x, const struct bny_profile_tensor *t)
{
    return strcmp(x->s->schedule, "auto") != 0 ? x->s->schedule : t->schedule;
}

static int fill_buckets(struct step *x, const struct bny_cut_tensor *cut)
{
    const struct bny_profile *p = x->w->profile;

    x->buckets = calloc(x->nbuckets + 1, sizeof *x->buckets);
    if (!x->buckets)
        return bny_fail(BANYAN_ENOMEM, "no memory for %zu buckets", x->nbuckets);
    for (size_t i = 0; i < p->n; i++)
        for (size_t k = 0; k < cut[i].npieces; k++) {
            struct bucket *b = &x->buckets[cut[i].first + k];
            size_t rest = cut[i].count - k * cut[i].piece;

            b->op.count += rest < cut[i].piece ? rest : cut[i].piece;
            b->op.dtype = p->tensors[i].dtype;
            b->op.codec = codec_of(x, &p->tensors[i]);
            b->op.schedule = schedule_of(x, &p->tensors[i]);
            b->last = (uint32_t)i;
        }
    for (size_t k = 0; k < x->nbuckets; k++)
        x->buckets[k].bytes =
            x->buckets[k].op.count * banyan_dtype_bytes(x->buckets[k].op.dtype);
    x->buckets[x->nbuckets] = (struct bucket){ .op = { VERDICT_COUNT, BANYAN_U64, "none",
                                                       "auto", NULL, NULL, NULL, "", 0 } };
    return 0;
}

static int make_buckets(struct step *x)
{
    const struct bny_profile *p = x->w->profile;
    struct bny_cut_tensor *cut = calloc(p->n + 1, sizeof *cut);
    uint32_t *order = calloc(p->n + 1, sizeof *order);
    struct bny_cut c = { 0 };
    int rc = cut && order ? 0 : -BANYAN_ENOMEM;

    for (size_t i = 0; i < p->n && rc == 0; i++) {
        const char *codec = codec_of(x, &p->tensors[i]),
                   *schedule = schedule_of(x, &p->tensors[i]);

        order[i] = (uint32_t)i;
        cut[i] =
            (struct bny_cut_tensor){ .count = p->tensors[i].count,
                                     .elem = banyan_dtype_bytes(p->tensors[i].dtype),
                                     .kind = p->tensors[i].dtype,
                                     .schedule = strcmp(schedule, "auto") ? schedule : NULL,
                                     .alone = strcmp(codec, "none") != 0 };
    }
    if (rc == 0)
        rc = bny_cut(&c, cut, p->n, order, x->s->bucket_bytes, x->s->first_bytes);
    if (rc)
        rc = bny_fail(BANYAN_ENOMEM, "no memory for the buckets of %zu tensors", p->n);
    x->nbuckets = c.nbuckets;
    if (rc == 0)
        rc = fill_buckets(x, cut);
    free(cut);
    free(order);
    return rc;
}

/* ---- what the library knows when it chooses ---- */

static int make_scopes(struct step *x)
{
    size_t n = (size_t)x->w->graph->nranks;

    x->scopes = calloc(n, sizeof *x->scopes);
    x->members = calloc(n, sizeof *x->members);
    if (!x->scopes || !x->members)
        return bny_fail(BANYAN_ENOMEM, "no memory for the scopes of %zu ranks", n);
    for (size_t r = 0; r < n; r++) {
        x->members[r] = (int)r;
        x->scopes[r] = (struct bny_scope){ .n = (int)n,
                                           .rank = (int)r,
                                           .members = x->members,
                                           .topology = x->w->topology,
                                           .ways = bny_ways,
                                           .eager_max = PREDICT_EAGER_MAX,
                                           .at_once = PREDICT_EAGER_MAX,
                                           .chunk_max = PREDICT_CHUNK_MAX,
                                           .coded_max = PREDICT_CHUNK_MAX,
                                           .codec_force = (uint8_t)x->w->force,
                                           .link_Bps = x->w->link_Bps,
                                           .schedule = "auto" };
    }
    return 0;
}

/* ---- one step ---- */

static int add_operation(struct step *x, size_t k)
{
    size_t n = (size_t)x->w->graph->nranks;
    struct bucket *b = &x->buckets[k];
    uint32_t *at = x->nodes + 3 * n * k;

    x->j.bucket = (uint32_t)k;
    b->op.start = at;
    b->op.sent = at + n;
    b->op.finish = at + 2 * n;
    for (size_t r = 0; r < n; r++) {
        at[r] = predict_work(&x->j, (int)r, PREDICT_START, x->w->message_s);
        b->op.sent[r] = predict_join(&x->j, (int)r);
        b->op.finish[r] = predict_join(&x->j, (int)r);
        if (k) /* in their order, and not too many at a time */
            predict_after(&x->j, at[r], x->buckets[k - 1].op.start[r]);
        if (k >= IN_FLIGHT_MOST)
            predict_after(&x->j, at[r], x->buckets[k - IN_FLIGHT_MOST].op.finish[r]);
    }
    return predict_op_add(&x->j, x->scopes, &b->op);
}

/* A part of the computing of all ranks, behind the one before. */
static void add_computing(struct step *x, double seconds)
{
    for (int r = 0; r < x->w->graph->nranks; r++) {
        uint32_t part = predict_compute(&x->j, r, seconds);

        if (x->compute[r] != UINT32_MAX)
            predict_after(&x->j, part, x->compute[r]);
        x->compute[r] = part;
    }
}

/* Tensors in the order in which buckets fill; what another order would make ready earlier waits
 * for nothing. Buckets that are full start before computing goes on, which without a progress
 * thread waits until what they send at once is sent. */
static int add_backward(struct step *x)
{
    const struct bny_profile *p = x->w->profile;
    double at = 0;
    size_t k = 0;
    int rc = 0;

    for (size_t i = 0; i < p->n && rc == 0; i++) {
        double ready = fmax(at, p->tensors[i].ready_s);

        add_computing(x, ready - at);
        at = ready;
        for (; k < x->nbuckets && x->buckets[k].last <= i && rc == 0; k++) {
            rc = add_operation(x, k);
            for (int r = 0; r < x->w->graph->nranks && rc == 0; r++) {
                predict_after(&x->j, x->buckets[k].op.start[r], x->compute[r]);
                if (!x->w->has_thread && k < IN_FLIGHT_MOST)
                    x->compute[r] = x->buckets[k].op.sent[r];
            }
        }
    }
    if (rc == 0)
        add_computing(x, fmax(at, p->compute_s) - at);
    for (; k < x->nbuckets && rc == 0; k++) {
        rc = add_operation(x, k);
        for (int r = 0; r < x->w->graph->nranks && rc == 0; r++)
            predict_after(&x->j, x->buckets[k].op.start[r], x->compute[r]);
    }
    return rc;
}

/* Started behind all others, when the rank waits. */
static int add_verdict(struct step *x)
{
    int rc = add_operation(x, x->nbuckets);

    for (int r = 0; r < x->w->graph->nranks && rc == 0; r++)
        predict_after(&x->j, x->buckets[x->nbuckets].op.start[r], x->compute[r]);
    return rc;
}

static void sum_up(struct predicted *out, const struct step *x, const struct bny_sim_result *r)
{
    const struct bucket *largest = x->buckets;
    double sent = 0;

    out->step_s = r->seconds;
    out->compute_s = x->w->profile->compute_s * x->w->compute_slower;
    out->wire_share = r->utilisation;
    out->buckets = x->nbuckets;
    for (size_t k = 0; k < x->nbuckets; k++) {
        out->refused += x->buckets[k].op.refused != 0;
        if (x->buckets[k].bytes > largest->bytes)
            largest = &x->buckets[k];
    }
    memcpy(out->schedule, largest->op.chosen, sizeof out->schedule);
    for (int rank = 0; rank < x->w->graph->nranks; rank++) {
        sent = fmax(sent, x->j.sent[rank]);
        out->work_s = fmax(out->work_s, x->j.work[rank]);
    }
    out->wire_bytes = (uint64_t)sent;
}

static int predict_step_build(struct step *x)
{
    size_t n = (size_t)x->w->graph->nranks;
    int rc = predict_job_init(&x->j, x->w);

    if (rc == 0)
        rc = make_scopes(x);
    if (rc == 0)
        rc = make_buckets(x);
    if (rc)
        return rc;
    x->nodes = calloc(3 * n * (x->nbuckets + 1), sizeof *x->nodes);
    x->compute = malloc(n * sizeof *x->compute);
    if (!x->nodes || !x->compute)
        return bny_fail(BANYAN_ENOMEM, "no memory for %zu buckets of %zu ranks", x->nbuckets,
                        n);
    memset(x->compute, 0xff, n * sizeof *x->compute);
    rc = add_backward(x);
    if (rc == 0)
        rc = add_verdict(x);
    if (rc == 0 && x->j.sim.failed)
        rc =
            bny_fail(BANYAN_ENOMEM,
                     "no memory for a step of %zu buckets on %zu ranks, or more than %u parts: "
                     "larger buckets or fewer ranks",
                     x->nbuckets, n, NODES_MAX);
    return rc;
}

#define STEPS_MOST 12
#define SETTLED    1e-3

/* A step after many: what a link saves up while it is idle in one step it may send at once in
 * the next. The first step simulated begins with nothing saved, and those behind it with what
 * the one before left, until two take the same time. */
static int run_steps(struct bny_sim_result *r, const struct step *x, struct bny_sim_opts *opts)
{
    int nlinks = x->w->graph->nlinks, rc = 0;
    double before = 0;

    if (opts->burst_s <= 0)
        return bny_sim_run(r, x->w->graph, &x->j.sim, opts);
    opts->free_s = calloc((size_t)nlinks + 1, sizeof *opts->free_s);
    if (!opts->free_s)
        return bny_fail(BANYAN_ENOMEM, "no memory for %d links", nlinks);
    for (int i = 0; i < STEPS_MOST && rc == 0; i++) {
        bny_sim_result_free(r);
        rc = bny_sim_run(r, x->w->graph, &x->j.sim, opts);
        if (fabs(r->seconds - before) <= SETTLED * r->seconds)
            break;
        before = r->seconds;
        for (int l = 0; l < nlinks; l++)
            opts->free_s[l] -= r->seconds;
    }
    free(opts->free_s);
    opts->free_s = NULL;
    return rc;
}

int predict_step(struct predicted *out, const struct predict_world *world,
                 const struct predict_setting *s, enum predict_without without,
                 const char *trace)
{
    struct predict_world w = *world;
    struct step x = { .w = &w, .s = s };
    struct bny_sim_opts opts = { .order = BNY_SIM_PRIORITY, .spans = trace != NULL };
    struct bny_sim_result r = { 0 };
    int rc;

    memset(out, 0, sizeof *out);
    if (without == WITHOUT_WORK)
        w.slower = 0;
    opts.alpha_s = without == WITHOUT_LATENCY ? 0 : w.alpha_s;
    opts.no_link_latency = without == WITHOUT_LATENCY;
    opts.burst_s = w.burst_s;
    opts.header = 1 / PREDICT_WIRE_SHARE;
    if (without == WITHOUT_WIRE)
        opts.header *= 1e-9;
    rc = predict_step_build(&x);
    if (rc == 0)
        rc = run_steps(&r, &x, &opts);
    if (rc == 0)
        sum_up(out, &x, &r);
    if (rc == 0 && trace)
        rc = predict_trace(trace, &x.j, &r, out);
    bny_sim_result_free(&r);
    for (int k = 0; x.scopes && k < w.graph->nranks; k++)
        bny_plans_free(&x.scopes[k]);
    free(x.scopes);
    free(x.members);
    free(x.buckets);
    free(x.nodes);
    free(x.compute);
    predict_job_free(&x.j);
    return rc;
}
