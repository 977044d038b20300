/* SPDX-License-Identifier: BSD-3-Clause */
/* What each method does at the points of a training loop. */
#include "method.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements: on smaller tensors a codec costs more time in calls than it saves on any wire. */
#define PROFILE_STEPS 200 /* the latest, of a profile */
#define ENCODE_MIN    1024

struct method {
    const struct face *face;
    struct banyan_comm *comm;
    struct method_model model;
    struct method_options opt;
    double rate;
    struct banyan_buckets *buckets;
    struct banyan_accordion *accordion;
    struct banyan_lazy *lazy;
    struct banyan_lgc *lgc;
    struct banyan_outer *local;
    struct banyan_shared_mask *mask;
    struct banyan_gossip *gossip;
    struct banyan_sketch *sketch;
    struct banyan_stale *stale;
    struct banyan_tensor *values; /* local SGD, gossip: the parameters as tensors */
};

struct face { /* NULL: nothing to do */
    const char *name;
    int (*create)(struct method *m);
    int (*ready)(struct method *m, size_t tensor);
    int (*reduce)(struct method *m);
    int (*stepped)(struct method *m, double squared, double loss, double rate);
    int (*describe)(struct method *m, char *buf, size_t cap);
    size_t (*bytes)(const struct method *m);
    int (*save)(const struct method *m, void *buf, size_t cap);
    int (*load)(struct method *m, const void *buf, size_t bytes);
};

static size_t elements(const struct banyan_tensor *t)
{
    size_t n = 1;

    for (int d = 0; d < t->ndim; d++)
        n *= (size_t)t->shape[d];
    return n;
}

static double delta(const struct method *m, double otherwise)
{
    return m->opt.delta > 0 ? m->opt.delta : otherwise;
}

/* What averages gives n times too little for a loop that sums. */
static int times_ranks(struct method *m, int rc)
{
    float n = (float)banyan_comm_count(m->comm);

    for (size_t i = 0; i < m->model.n && rc == 0; i++)
        m->model.grad[i] *= n;
    return rc;
}

/* ---- calls: one allreduce a tensor when backward has ended ---- */

static int calls_reduce(struct method *m)
{
    int rc = 0;

    for (size_t i = 0; i < m->model.ntensors && rc == 0; i++) {
        const struct banyan_tensor *t = &m->model.tensors[i];
        struct banyan_opts o = BANYAN_OPTS_INIT;

        o.codec = "none";
        rc = banyan_allreduce(t->grad, t->grad, elements(t), t->dtype, BANYAN_SUM, m->comm, &o);
    }
    return rc;
}

/* ---- buckets ---- */

static int buckets_with(struct method *m, const char *codec)
{
    struct banyan_buckets_config cfg = BANYAN_BUCKETS_CONFIG_INIT;
    char rules[160];

    cfg.op = BANYAN_SUM;
    cfg.seed = m->opt.seed;
    cfg.bucket_bytes = m->opt.bucket_bytes ? m->opt.bucket_bytes : cfg.bucket_bytes;
    snprintf(rules, sizeof rules, "*:>=%d=%s", ENCODE_MIN, codec ? codec : "none");
    cfg.rules = m->opt.rules ? m->opt.rules : rules;
    cfg.profile = m->opt.profile ? PROFILE_STEPS : 0;
    return banyan_buckets_create(&m->buckets, m->comm, m->model.tensors, m->model.ntensors,
                                 &cfg);
}

static int buckets_create(struct method *m)
{
    return buckets_with(m, m->opt.codec);
}

static int buckets_ready(struct method *m, size_t tensor)
{
    return banyan_buckets_ready(m->buckets, tensor);
}

static int buckets_reduce(struct method *m)
{
    return banyan_buckets_wait(m->buckets);
}

static int buckets_stepped(struct method *m, double squared, double loss, double rate)
{
    (void)squared;
    (void)loss;
    return rate == m->rate ? 0 : banyan_buckets_scale_residuals(m->buckets, m->rate / rate);
}

static int buckets_describe(struct method *m, char *buf, size_t cap)
{
    struct banyan_buckets_stats s = { .size = sizeof s };
    int rc = banyan_buckets_stats(m->buckets, &s);

    snprintf(buf, cap, "buckets=%llu hidden_s=%.4f exposed_s=%.4f",
             (unsigned long long)s.buckets, s.hidden_s_sum, s.exposed_s_sum);
    return rc;
}

static size_t buckets_bytes(const struct method *m)
{
    return banyan_buckets_bytes(m->buckets);
}

static int buckets_save(const struct method *m, void *buf, size_t cap)
{
    return banyan_buckets_save(m->buckets, buf, cap);
}

static int buckets_load(struct method *m, const void *buf, size_t bytes)
{
    return banyan_buckets_load(m->buckets, buf, bytes);
}

/* ---- accordion: buckets whose codecs, or whose batch, adapt ---- */

static int accordion_create(struct method *m)
{
    struct banyan_accordion_config cfg = BANYAN_ACCORDION_CONFIG_INIT;
    int rc;

    cfg.interval = m->opt.interval;
    cfg.min_count = ENCODE_MIN;
    cfg.accumulate = m->opt.accumulate;
    cfg.little = m->opt.little;
    cfg.much = m->opt.codec ? m->opt.codec : cfg.much;
    rc = banyan_accordion_create(&m->accordion, m->comm, m->model.tensors, m->model.ntensors,
                                 &cfg);
    return rc < 0 ? rc : buckets_with(m, cfg.accumulate > 1 ? m->opt.codec : cfg.little);
}

static int accordion_ready(struct method *m, size_t tensor)
{
    int last = banyan_buckets_micro(m->buckets) + 1 >= method_accumulate(m);
    int rc = last ? banyan_accordion_observe(m->accordion, tensor) : 0;

    return rc < 0 ? rc : banyan_buckets_ready(m->buckets, tensor);
}

static int accordion_stepped(struct method *m, double squared, double loss, double rate)
{
    int rc = buckets_stepped(m, squared, loss, rate), changed;

    if (rc < 0)
        return rc;
    changed = banyan_accordion_step(m->accordion, m->rate);
    if (changed <= 0)
        return changed;
    if (m->opt.accumulate > 1)
        return banyan_buckets_set_accumulate(m->buckets,
                                             banyan_accordion_accumulate(m->accordion));
    for (size_t i = 0; i < m->model.ntensors && rc == 0; i++)
        if (elements(&m->model.tensors[i]) >= ENCODE_MIN)
            rc = banyan_buckets_set_codec(m->buckets, i,
                                          banyan_accordion_codec(m->accordion, i));
    return rc;
}

static int accordion_describe(struct method *m, char *buf, size_t cap)
{
    int much = 0, of = 0;

    for (size_t i = 0; i < m->model.ntensors; i++) {
        of += elements(&m->model.tensors[i]) >= ENCODE_MIN;
        much += banyan_accordion_level(m->accordion, i);
    }
    snprintf(buf, cap, "much=%d of=%d batches=%d", much, of,
             banyan_accordion_accumulate(m->accordion));
    return 0;
}

/* Two states, the first with its length before it. */
static size_t accordion_bytes(const struct method *m)
{
    return sizeof(uint64_t) + banyan_accordion_bytes(m->accordion) +
           banyan_buckets_bytes(m->buckets);
}

static int accordion_save(const struct method *m, void *buf, size_t cap)
{
    uint64_t first = banyan_accordion_bytes(m->accordion);
    char *at = buf;
    int rc;

    memcpy(at, &first, sizeof first);
    rc = banyan_accordion_save(m->accordion, at + sizeof first, (size_t)first);
    at += sizeof first + (size_t)first;
    return rc < 0 ? rc : banyan_buckets_save(m->buckets, at, cap - (size_t)(at - (char *)buf));
}

static int accordion_load(struct method *m, const void *buf, size_t bytes)
{
    uint64_t first = 0;
    const char *at = buf;
    int rc;

    if (bytes >= sizeof first)
        memcpy(&first, at, sizeof first);
    if (first > bytes - sizeof first)
        first = 0; /* which no state has: the load says so */
    rc = banyan_accordion_load(m->accordion, at + sizeof first, (size_t)first);
    at += sizeof first + (size_t)first;
    return rc < 0 ? rc : banyan_buckets_load(m->buckets, at, bytes - sizeof first - first);
}

/* ---- ordered, lag, chb ---- */

static int lazy_create(struct method *m)
{
    struct banyan_lazy_config cfg = BANYAN_LAZY_CONFIG_INIT;

    cfg.rule = !strcmp(m->opt.name, "lag")   ? BANYAN_LAZY_LAG
               : !strcmp(m->opt.name, "chb") ? BANYAN_LAZY_CHB
                                             : BANYAN_LAZY_ORDERED_R2;
    /* Of the sum: ranks' gradients are shares of it. */
    cfg.alpha = m->opt.alpha > 0 ? m->opt.alpha : m->opt.rate;
    if (m->opt.xi >= 0)
        cfg.xi = m->opt.xi;
    cfg.codec = m->opt.codec ? m->opt.codec : "none";
    cfg.seed = m->opt.seed;
    return banyan_lazy_create(&m->lazy, m->comm, m->model.n, &cfg);
}

static int lazy_reduce(struct method *m)
{
    return banyan_lazy_exchange(m->lazy, m->model.grad, m->model.grad);
}

static int lazy_stepped(struct method *m, double squared, double loss, double rate)
{
    (void)loss;
    (void)rate;
    return banyan_lazy_moved(m->lazy, squared);
}

static int lazy_describe(struct method *m, char *buf, size_t cap)
{
    struct banyan_lazy_stats s = { .size = sizeof s };
    int rc = banyan_lazy_stats(m->lazy, &s);

    snprintf(buf, cap, "uploads=%llu silent=%llu", (unsigned long long)s.uploads,
             (unsigned long long)s.silent);
    return rc;
}

static size_t lazy_bytes(const struct method *m)
{
    return banyan_lazy_bytes(m->lazy);
}

static int lazy_save(const struct method *m, void *buf, size_t cap)
{
    return banyan_lazy_save(m->lazy, buf, cap);
}

static int lazy_load(struct method *m, const void *buf, size_t bytes)
{
    return banyan_lazy_load(m->lazy, buf, bytes);
}

/* ---- lgc ---- */

/* Of those that are long enough to be encoded. */
static int matrices(const struct method *m)
{
    int n = 0;

    for (size_t i = 0; i < m->model.ntensors; i++)
        n += m->model.tensors[i].ndim > 1 && elements(&m->model.tensors[i]) >= ENCODE_MIN;
    return n;
}

static int lgc_create(struct method *m)
{
    struct banyan_lgc_config cfg = BANYAN_LGC_CONFIG_INIT;

    cfg.instance = strcmp(m->opt.lgc, "server") ? BANYAN_LGC_RING : BANYAN_LGC_SERVER;
    cfg.dense_steps = (uint64_t)m->opt.dense_steps;
    cfg.train_steps = (uint64_t)m->opt.train_steps;
    cfg.delta = delta(m, 0.01);
    cfg.delta_innovation = cfg.delta / 100;
    if (matrices(m) < 3) { /* none is left to encode, were first and last to be spared */
        cfg.dense = "";
        cfg.topk = "";
    }
    cfg.gate = m->opt.gate;
    cfg.seed = m->opt.seed;
    return banyan_lgc_create(&m->lgc, m->comm, m->model.tensors, m->model.ntensors, &cfg);
}

static int lgc_reduce(struct method *m)
{
    return times_ranks(m, banyan_lgc_step(m->lgc));
}

static int lgc_describe(struct method *m, char *buf, size_t cap)
{
    struct banyan_lgc_stats s = { .size = sizeof s };
    int rc = banyan_lgc_get_stats(m->lgc, &s);
    uint64_t sent = 0;

    for (size_t k = 0; k < sizeof s.sent / sizeof s.sent[0]; k++)
        sent += s.sent[k];
    snprintf(buf, cap,
             "phase=%d coded=%llu correlation=%.3f error=%.3f error_largest=%.3f sent=%llu "
             "sent_dense=%llu",
             s.phase, (unsigned long long)s.coded, s.correlation, s.error, s.error_largest,
             (unsigned long long)sent, (unsigned long long)s.sent_dense);
    return rc;
}

static size_t lgc_bytes(const struct method *m)
{
    return banyan_lgc_bytes(m->lgc);
}

static int lgc_save(const struct method *m, void *buf, size_t cap)
{
    return banyan_lgc_save(m->lgc, buf, cap);
}

static int lgc_load(struct method *m, const void *buf, size_t bytes)
{
    return banyan_lgc_load(m->lgc, buf, bytes);
}

/* ---- local SGD ---- */

static int parameters_as_tensors(struct method *m)
{
    float *at = m->model.param;

    m->values = calloc(m->model.ntensors + 1, sizeof *m->values);
    for (size_t i = 0; m->values && i < m->model.ntensors; i++) {
        m->values[i] = m->model.tensors[i];
        m->values[i].grad = at;
        at += elements(&m->values[i]);
    }
    return m->values ? 0 : -BANYAN_ENOMEM;
}

static const struct local_way {
    const char *name;
    double momentum, rate, residual;
    int fragments, delay, adaptive; /* delay -1: a period */
} local_ways[] = {
    { "fixed", 0, 1, 1, 1, 0, 0 },       { "adaptive", 0, 1, 1, 1, 0, 1 },
    { "overlapped", 0, 1, 1, 1, -1, 0 }, { "diloco", .9, .7, 1, 1, 0, 0 },
    { "streaming", .9, .7, 1, 4, 1, 0 }, { "sparseloco", 0, 1, .95, 1, 0, 0 },
};
#define NLOCAL_WAYS (sizeof local_ways / sizeof local_ways[0])

/* NULL: there is none of that name. */
static const struct local_way *local_way(const char *name)
{
    for (size_t i = 0; i < NLOCAL_WAYS; i++)
        if (!strcmp(local_ways[i].name, name))
            return &local_ways[i];
    return NULL;
}

static int local_create(struct method *m)
{
    const struct local_way *way = local_way(m->opt.local);
    struct banyan_outer_config cfg = BANYAN_OUTER_CONFIG_INIT;
    int rc = parameters_as_tensors(m);

    if (rc < 0)
        return rc;
    cfg.period = m->opt.period;
    cfg.fragments = way->fragments;
    cfg.delay = way->delay < 0 ? cfg.period : way->delay;
    cfg.momentum = way->momentum;
    cfg.rate = way->rate;
    cfg.residual = way->residual;
    cfg.adaptive = way->adaptive;
    cfg.codec = m->opt.codec;
    cfg.seed = m->opt.seed;
    return banyan_outer_create(&m->local, m->comm, m->values, m->model.ntensors, &cfg);
}

/* This rank's step is by its own examples alone. */
static int local_reduce(struct method *m)
{
    return times_ranks(m, 0);
}

static int local_stepped(struct method *m, double squared, double loss, double rate)
{
    int rc = banyan_outer_step(m->local, loss, 1);

    (void)squared;
    (void)rate;
    return rc < 0 ? rc : 0;
}

static int local_describe(struct method *m, char *buf, size_t cap)
{
    snprintf(buf, cap, "period=%d", banyan_outer_period(m->local));
    return 0;
}

static size_t local_bytes(const struct method *m)
{
    return banyan_outer_bytes(m->local);
}

static int local_save(const struct method *m, void *buf, size_t cap)
{
    return banyan_outer_save(m->local, buf, cap);
}

static int local_load(struct method *m, const void *buf, size_t bytes)
{
    return banyan_outer_load(m->local, buf, bytes);
}

/* ---- gossip; a rank's step is by its own examples, as in local SGD ---- */

static int gossip_create(struct method *m)
{
    struct banyan_gossip_config cfg = BANYAN_GOSSIP_CONFIG_INIT;
    int rc = parameters_as_tensors(m);

    cfg.graph = m->opt.graph;
    cfg.low_rank = m->opt.low_rank;
    cfg.iterations = m->opt.iterations;
    cfg.rounds = m->opt.rounds;
    cfg.seed = m->opt.seed;
    return rc < 0
               ? rc
               : banyan_gossip_create(&m->gossip, m->comm, m->values, m->model.ntensors, &cfg);
}

static int gossip_stepped(struct method *m, double squared, double loss, double rate)
{
    (void)squared;
    (void)loss;
    (void)rate;
    return banyan_gossip_step(m->gossip);
}

static int gossip_describe(struct method *m, char *buf, size_t cap)
{
    struct banyan_gossip_stats s = { .size = sizeof s };
    double apart = 0;
    int rc = banyan_gossip_consensus(m->gossip, &apart);

    if (rc == 0)
        rc = banyan_gossip_stats(m->gossip, &s);
    snprintf(buf, cap, "consensus=%.5f rounds=%d step_bytes=%.0f", apart, s.rounds,
             s.steps ? (double)s.bytes / (double)s.steps : 0);
    return rc;
}

static size_t gossip_bytes(const struct method *m)
{
    return banyan_gossip_bytes(m->gossip);
}

static int gossip_save(const struct method *m, void *buf, size_t cap)
{
    return banyan_gossip_save(m->gossip, buf, cap);
}

static int gossip_load(struct method *m, const void *buf, size_t bytes)
{
    return banyan_gossip_load(m->gossip, buf, bytes);
}

/* ---- shared mask ---- */

static int mask_create(struct method *m)
{
    struct banyan_shared_mask_config cfg = BANYAN_SHARED_MASK_CONFIG_INIT;

    cfg.delta = delta(m, cfg.delta);
    cfg.block = m->opt.block;
    cfg.seed = m->opt.seed;
    return banyan_shared_mask_create(&m->mask, m->comm, m->model.tensors, m->model.ntensors,
                                     &cfg);
}

static int mask_reduce(struct method *m)
{
    return times_ranks(m, banyan_shared_mask_step(m->mask));
}

static int mask_stepped(struct method *m, double squared, double loss, double rate)
{
    (void)squared;
    (void)loss;
    return rate == m->rate ? 0 : banyan_shared_mask_scale(m->mask, m->rate / rate);
}

static size_t mask_bytes(const struct method *m)
{
    return banyan_shared_mask_bytes(m->mask);
}

static int mask_save(const struct method *m, void *buf, size_t cap)
{
    return banyan_shared_mask_save(m->mask, buf, cap);
}

static int mask_load(struct method *m, const void *buf, size_t bytes)
{
    return banyan_shared_mask_load(m->mask, buf, bytes);
}

/* ---- sketches, which have a momentum of their own ---- */

static int sketch_create(struct method *m)
{
    struct banyan_sketch_config cfg = BANYAN_SKETCH_CONFIG_INIT;

    cfg.mode = strcmp(m->opt.sketch, "adam") ? BANYAN_SKETCH_SGD : BANYAN_SKETCH_ADAM;
    cfg.rows = m->opt.sketch_rows;
    cfg.cols = (size_t)(m->opt.sketch_part * (double)m->model.n / cfg.rows);
    cfg.k = (size_t)(delta(m, 0.05) * (double)m->model.n) + 1;
    cfg.seed = m->opt.seed;
    return banyan_sketch_create(&m->sketch, m->comm, m->model.tensors, m->model.ntensors, &cfg);
}

static int sketch_reduce(struct method *m)
{
    int rc = banyan_sketch_step(m->sketch);

    return strcmp(m->opt.sketch, "adam") ? times_ranks(m, rc) : rc;
}

static int sketch_stepped(struct method *m, double squared, double loss, double rate)
{
    (void)squared;
    (void)loss;
    return rate == m->rate ? 0 : banyan_sketch_scale(m->sketch, m->rate / rate);
}

static int sketch_describe(struct method *m, char *buf, size_t cap)
{
    struct banyan_sketch_stats s = { .size = sizeof s };
    int rc = banyan_sketch_stats(m->sketch, &s);

    snprintf(buf, cap, "cells=%llu k=%llu recovered=%.3f", (unsigned long long)s.cells,
             (unsigned long long)s.k, s.recovered);
    return rc;
}

static size_t sketch_bytes(const struct method *m)
{
    return banyan_sketch_bytes(m->sketch);
}

static int sketch_save(const struct method *m, void *buf, size_t cap)
{
    return banyan_sketch_save(m->sketch, buf, cap);
}

static int sketch_load(struct method *m, const void *buf, size_t bytes)
{
    return banyan_sketch_load(m->sketch, buf, bytes);
}

/* ---- stale and K-of-n ---- */

static int stale_create(struct method *m)
{
    struct banyan_stale_config cfg = BANYAN_STALE_CONFIG_INIT;

    cfg.delay = m->opt.delay;
    cfg.k = m->opt.k;
    cfg.late = m->opt.late;
    return banyan_stale_create(&m->stale, m->comm, m->model.tensors, m->model.ntensors, &cfg);
}

static int stale_reduce(struct method *m)
{
    int rc = banyan_stale_step(m->stale);

    return times_ranks(m, rc > 0 ? 0 : rc);
}

static size_t stale_bytes(const struct method *m)
{
    return banyan_stale_bytes(m->stale);
}

static int stale_save(const struct method *m, void *buf, size_t cap)
{
    return banyan_stale_save(m->stale, buf, cap);
}

static int stale_load(struct method *m, const void *buf, size_t bytes)
{
    return banyan_stale_load(m->stale, buf, bytes);
}

/* ---- all of them ---- */

#define LAZY(name)                                                                             \
    {                                                                                          \
        name, lazy_create, NULL, lazy_reduce, lazy_stepped, lazy_describe, lazy_bytes,         \
            lazy_save, lazy_load                                                               \
    }

static const struct face faces[] = {
    { .name = "calls", .reduce = calls_reduce },
    { "buckets", buckets_create, buckets_ready, buckets_reduce, buckets_stepped,
      buckets_describe, buckets_bytes, buckets_save, buckets_load },
    { "accordion", accordion_create, accordion_ready, buckets_reduce, accordion_stepped,
      accordion_describe, accordion_bytes, accordion_save, accordion_load },
    LAZY("ordered"),
    LAZY("lag"),
    LAZY("chb"),
    { "lgc", lgc_create, NULL, lgc_reduce, NULL, lgc_describe, lgc_bytes, lgc_save, lgc_load },
    { "local", local_create, NULL, local_reduce, local_stepped, local_describe, local_bytes,
      local_save, local_load },
    { "gossip", gossip_create, NULL, local_reduce, gossip_stepped, gossip_describe,
      gossip_bytes, gossip_save, gossip_load },
    { "shared-mask", mask_create, NULL, mask_reduce, mask_stepped, NULL, mask_bytes, mask_save,
      mask_load },
    { "sketch", sketch_create, NULL, sketch_reduce, sketch_stepped, sketch_describe,
      sketch_bytes, sketch_save, sketch_load },
    { "stale", stale_create, NULL, stale_reduce, NULL, NULL, stale_bytes, stale_save,
      stale_load },
};
#define NFACES (sizeof faces / sizeof faces[0])

const char *method_names(void)
{
    static char text[128];

    if (!*text)
        for (size_t i = 0; i < NFACES; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? ", " : "",
                     faces[i].name);
    return text;
}

float method_momentum(const char *name)
{
    return !name || (strcmp(name, "sketch") && strcmp(name, "shared-mask")) ? 0.9f
           : strcmp(name, "sketch")                                         ? 0.5f
                                                                            : 0;
}

static double number(const char *program, const char *option, const char *text, double lo,
                     double hi)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= lo && v <= hi)) {
        fprintf(stderr, "%s: --%s wants a number from %g to %g, got %s\n", program, option, lo,
                hi, text);
        exit(2);
    }
    return v;
}

int method_option(struct method_options *o, int option, const char *value, const char *program)
{
    switch (option) {
    case METHOD_CONTROLLER: o->name = value; break;
    case METHOD_LITTLE: o->little = value; break;
    case METHOD_INTERVAL: o->interval = (int)number(program, "interval", value, 1, 1e6); break;
    case METHOD_ACCUMULATE:
        o->accumulate = (int)number(program, "accumulate", value, 1, 1000);
        break;
    case METHOD_LOCAL: o->local = value; break;
    case METHOD_PERIOD: o->period = (int)number(program, "period", value, 1, 1e6); break;
    case METHOD_LGC: o->lgc = value; break;
    case METHOD_PHASES:
        if (sscanf(value, "%d,%d", &o->dense_steps, &o->train_steps) != 2 ||
            o->dense_steps < 0 || o->train_steps < 1) {
            fprintf(stderr, "%s: --phases wants two numbers of steps, as 200,300; got %s\n",
                    program, value);
            exit(2);
        }
        break;
    case METHOD_GATE: o->gate = number(program, "gate", value, -2, 2); break;
    case METHOD_DELTA: o->delta = number(program, "delta", value, 1e-9, 1); break;
    case METHOD_XI: o->xi = number(program, "xi", value, 0, 1e9); break;
    case METHOD_GRAPH: o->graph = value; break;
    case METHOD_LOW_RANK: o->low_rank = (int)number(program, "low-rank", value, 0, 32); break;
    case METHOD_ITERATIONS:
        o->iterations = (int)number(program, "iterations", value, 1, 1000);
        break;
    case METHOD_ROUNDS: o->rounds = (int)number(program, "rounds", value, 0, 1000); break;
    case METHOD_SKETCH: o->sketch = value; break;
    case METHOD_CELLS: o->sketch_part = number(program, "cells", value, 1e-6, 100); break;
    case METHOD_ROWS: o->sketch_rows = (int)number(program, "sketch-rows", value, 1, 9); break;
    case METHOD_RULES: o->rules = value; break;
    case METHOD_PROFILE: o->profile = value; break;
    case METHOD_DELAY: o->delay = (int)number(program, "delay", value, 0, 64); break;
    case METHOD_K: o->k = (int)number(program, "k", value, 0, 1000); break;
    case METHOD_LATE: o->late = 1; break;
    case METHOD_BLOCK: o->block = (size_t)number(program, "block", value, 1, 1e9); break;
    case METHOD_BUCKET:
        o->bucket_bytes = (size_t)number(program, "bucket", value, 1, 1e12);
        break;
    default: return 0;
    }
    return 1;
}

/* Words that choose a way within a method. */
static int words_are_known(const struct method_options *o)
{
    static const char *const lgcs[] = { "ring", "server" };
    int local = local_way(o->local) != NULL, lgc = 0,
        sketch = !strcmp(o->sketch, "sgd") || !strcmp(o->sketch, "adam");

    for (int i = 0; i < 2; i++)
        lgc |= !strcmp(o->lgc, lgcs[i]);
    if (!local)
        fprintf(stderr,
                "--local is fixed, adaptive, overlapped, diloco, streaming or sparseloco, "
                "got %s\n",
                o->local);
    if (!lgc)
        fprintf(stderr, "--lgc is ring or server, got %s\n", o->lgc);
    if (!sketch)
        fprintf(stderr, "--sketch is sgd or adam, got %s\n", o->sketch);
    return local && lgc && sketch;
}

int method_create(struct method **out, struct banyan_comm *comm,
                  const struct method_model *model, const struct method_options *opt)
{
    struct method *m = calloc(1, sizeof *m);

    *out = m;
    if (!m)
        return -BANYAN_ENOMEM;
    m->comm = comm;
    m->model = *model;
    m->opt = *opt;
    m->rate = opt->rate;
    for (size_t i = 0; i < NFACES; i++)
        if (!strcmp(faces[i].name, opt->name))
            m->face = &faces[i];
    if (!m->face) {
        fprintf(stderr, "no method is called %s; there are %s\n", opt->name, method_names());
        return -BANYAN_EINVAL;
    }
    if (!words_are_known(opt))
        return -BANYAN_EINVAL;
    return m->face->create ? m->face->create(m) : 0;
}

void method_free(struct method *m)
{
    if (!m)
        return;
    banyan_buckets_free(m->buckets);
    banyan_accordion_free(m->accordion);
    banyan_lazy_free(m->lazy);
    banyan_lgc_free(m->lgc);
    banyan_outer_free(m->local);
    banyan_gossip_free(m->gossip);
    banyan_sketch_free(m->sketch);
    banyan_stale_free(m->stale);
    banyan_shared_mask_free(m->mask);
    free(m->values);
    free(m);
}

int method_ready(struct method *m, size_t tensor)
{
    return m->face->ready ? m->face->ready(m, tensor) : 0;
}

int method_reduce(struct method *m)
{
    return m->face->reduce(m);
}

int method_stepped(struct method *m, double squared, double loss, double rate)
{
    int rc = m->face->stepped ? m->face->stepped(m, squared, loss, rate) : 0;

    m->rate = rate;
    return rc;
}

int method_accumulate(const struct method *m)
{
    return m->accordion ? banyan_accordion_accumulate(m->accordion) : 1;
}

int method_is_local(const struct method *m)
{
    return m->local || m->gossip;
}

int method_settle(struct method *m)
{
    return m->local   ? banyan_outer_settle(m->local)
           : m->stale ? banyan_stale_settle(m->stale)
                      : 0;
}

int method_finish(struct method *m)
{
    if (m->opt.profile && m->buckets && banyan_comm_rank(m->comm) == 0) {
        int rc = banyan_buckets_profile(m->buckets, m->opt.profile);
        if (rc < 0)
            return rc;
    }
    return m->local    ? banyan_outer_finish(m->local)
           : m->gossip ? banyan_gossip_finish(m->gossip)
                       : 0;
}

int method_describe(struct method *m, char *buf, size_t cap)
{
    *buf = 0;
    return m->face->describe ? m->face->describe(m, buf, cap) : 0;
}

size_t method_bytes(const struct method *m)
{
    return m->face->bytes ? m->face->bytes(m) : 0;
}

int method_save(const struct method *m, void *buf, size_t cap)
{
    return m->face->save ? m->face->save(m, buf, cap) : 0;
}

int method_load(struct method *m, const void *buf, size_t bytes)
{
    return m->face->load ? m->face->load(m, buf, bytes) : 0;
}
