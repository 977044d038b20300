/* SPDX-License-Identifier: BSD-3-Clause */
/* Outer: local steps, and now and then an average of what they changed, one fragment of the
 * model at a time. Buckets carry the averages: fusion, rules, codecs and their states, order
 * between ranks, and faults of one rank are theirs. A fragment has a communicator of its own,
 * since averages of several may be in flight. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sized.h"
#include "training/buckets.h"
#include "training/saved.h"
#include "training/settings.h"

#define KIND        0x5254554fu /* "OUTR" */
#define MERGED_MOST (((uint64_t)1 << 42) - 1)
#define WEIGHT      "outer weight" /* the name of a tensor of one element, its rank's weight */

struct fragment {
    size_t first, n;  /* tensors */
    size_t at, count; /* elements */
    struct banyan_comm *comm;
    struct banyan_buckets *buckets;
    float tokens;    /* weight of this rank's steps since the latest start */
    float own;       /* that weight at the latest start */
    float weight;    /* the same, then the sum of all ranks' */
    int under_way;   /* its average was started, and is not merged */
    int lost;        /* its latest average failed */
    uint64_t since;  /* steps since the latest start */
    uint64_t merged; /* averages */
};

struct banyan_outer {
    struct bny_object object;
    struct banyan_outer_config cfg; /* codec: a copy */
    struct bny_rules rules;         /* the weight's own, then the user's */
    struct bny_tensors tensors;
    struct fragment *at; /* [n] */
    int n;
    float *agreed;   /* theta [count]: parameters that all ranks agree on */
    float *change;   /* [count]: of this rank since then, then the mean of all */
    float *momentum; /* [count], or NULL */
    float *sent;     /* [count]: this rank's parameters when the average started; or NULL */
    uint64_t steps;
    int period;
    double loss, first_loss; /* sum since the latest average; mean of the first */
    uint64_t losses;         /* of that sum */
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_outer);

/* ---- settings ---- */

static int outer_settings(struct banyan_outer_config *c, const struct banyan_outer_config *cfg)
{
    static const char what[] = "banyan_outer_create";
    int rc;

    *c = (struct banyan_outer_config)BANYAN_OUTER_CONFIG_INIT;
    rc = bny_sized_take(c, sizeof *c, cfg, what, "BANYAN_OUTER_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (c->period < 1 || c->fragments < 1 || c->delay < 0 || c->delay > c->period ||
        c->warm_up < 0)
        return bny_fail(BANYAN_EINVAL,
                        "%s: period is %d, fragments %d (1 or more), delay %d (0 to period), "
                        "warm_up %d (0 or more)",
                        what, c->period, c->fragments, c->delay, c->warm_up);
    if (!(c->momentum >= 0 && c->momentum < 1) || !(c->rate > 0 && c->rate < 1e3) ||
        !(c->merge > 0 && c->merge <= 1) || !(c->residual >= 0 && c->residual <= 1))
        return bny_fail(BANYAN_EINVAL,
                        "%s: momentum is %g (0 to below 1), rate %g (above 0, below 1000), "
                        "merge %g (above 0 to 1), residual %g (0 to 1)",
                        what, c->momentum, c->rate, c->merge, c->residual);
    if (c->adaptive && c->fragments != 1)
        return bny_fail(BANYAN_EINVAL, "%s: adaptive takes one fragment, not %d", what,
                        c->fragments);
    return 0;
}

/* Codec and rules are compared by buckets. */
static int outer_agree(const struct banyan_outer *o, struct banyan_comm *comm)
{
    const struct banyan_outer_config *c = &o->cfg;
    const struct bny_setting s[] = {
        { "period", (uint64_t)c->period },
        { "fragments", (uint64_t)c->fragments },
        { "delay", (uint64_t)c->delay },
        { "warm_up", (uint64_t)c->warm_up },
        { "momentum", bny_setting_of_double(c->momentum) },
        { "rate", bny_setting_of_double(c->rate) },
        { "merge", bny_setting_of_double(c->merge) },
        { "residual", bny_setting_of_double(c->residual) },
        { "adaptive", (uint64_t)c->adaptive },
        { "weighted", (uint64_t)c->weighted },
        { "seed", c->seed },
    };

    return bny_settings_agree(comm, s, sizeof s / sizeof s[0], "banyan_outer_create");
}

/* The weight's own rule comes first, as the user's may fit all names. */
static int outer_texts(struct banyan_outer *o)
{
    const char *rules = o->cfg.rules ? o->cfg.rules : "", *codec = o->cfg.codec;
    size_t cap = sizeof WEIGHT "=none;" + strlen(rules);
    char *text = malloc(cap);
    int rc;

    o->cfg.codec = codec ? strdup(codec) : NULL;
    o->cfg.rules = NULL;
    if (!text || (codec && !o->cfg.codec)) {
        free(text);
        return bny_fail(BANYAN_ENOMEM, "no memory for the settings of banyan_outer");
    }
    snprintf(text, cap, WEIGHT "=none;%s", rules);
    rc = bny_rules_parse(&o->rules, text);
    free(text);
    return rc;
}

/* ---- fragments ---- */

/* Consecutive tensors, each in the fragment in which its middle lies; those without any are
 * left out. */
static void outer_divide(struct banyan_outer *o)
{
    double share = (double)o->tensors.count / o->cfg.fragments;
    int latest = -1;

    for (size_t i = 0; i < o->tensors.n; i++) {
        const struct bny_tensor *t = &o->tensors.at[i];
        int of = (int)(((double)t->before + (double)t->count / 2) / (share > 0 ? share : 1));

        of = of < o->cfg.fragments ? of : o->cfg.fragments - 1;
        if (of != latest || !o->n)
            o->at[o->n++] = (struct fragment){ .first = i, .at = t->before };
        latest = of;
        o->at[o->n - 1].n++;
        o->at[o->n - 1].count += t->count;
    }
}

/* Fragments are due one after another. */
static uint64_t outer_offset(const struct banyan_outer *o, const struct fragment *f)
{
    return (uint64_t)(f - o->at) * (uint64_t)o->cfg.period / (uint64_t)o->n;
}

static int outer_allocate(struct banyan_outer *o)
{
    size_t n = o->tensors.count ? o->tensors.count : 1;

    o->at = calloc(o->tensors.n + 1, sizeof *o->at);
    o->agreed = malloc(n * sizeof(float));
    o->change = malloc(n * sizeof(float));
    if (o->cfg.momentum > 0)
        o->momentum = calloc(n, sizeof(float));
    if (o->cfg.delay)
        o->sent = malloc(n * sizeof(float));
    if (!o->at || !o->agreed || !o->change || (o->cfg.momentum > 0 && !o->momentum) ||
        (o->cfg.delay && !o->sent))
        return bny_fail(BANYAN_ENOMEM, "no memory to average %zu parameters", n);
    return 0;
}

/* All of a fragment without a codec is one operation: no backward pass is to be overlapped. */
static struct banyan_buckets_config outer_buckets(const struct banyan_outer *o, int k)
{
    struct banyan_buckets_config c = BANYAN_BUCKETS_CONFIG_INIT;

    c.bucket_bytes = c.first_bytes = o->at[k].count * sizeof(float) + sizeof(float);
    c.op = o->cfg.weighted ? BANYAN_SUM : BANYAN_AVG;
    c.codec = o->cfg.codec;
    c.seed = o->cfg.seed + (uint64_t)k;
    c.check_nan = 1;
    return c;
}

static int outer_carry(struct banyan_outer *o, int k, struct banyan_comm *comm)
{
    struct fragment *f = &o->at[k];
    struct banyan_tensor *t = calloc(f->n + 1, sizeof *t);
    struct banyan_buckets_config c = outer_buckets(o, k);
    int rc = t ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a fragment of %zu", f->n);
    static const int64_t one = 1;

    for (size_t i = 0; rc == 0 && i < f->n; i++) {
        const struct bny_tensor *of = &o->tensors.at[f->first + i];

        t[i] = (struct banyan_tensor){ .name = of->name,
                                       .dtype = BANYAN_F32,
                                       .ndim = of->ndim,
                                       .shape = of->shape,
                                       .grad = o->change + of->before };
    }
    if (rc == 0)
        t[f->n] = (struct banyan_tensor){
            .name = WEIGHT, .dtype = BANYAN_F32, .ndim = 1, .shape = &one, .grad = &f->weight
        };
    rc = bny_all_can(comm, rc, "banyan_outer_create");
    if (rc == 0)
        rc = banyan_comm_dup(comm, &f->comm);
    if (rc == 0)
        rc = bny_buckets_create(&f->buckets, f->comm, t, f->n + (o->cfg.weighted ? 1 : 0), &c,
                                &o->rules);
    free(t);
    return rc;
}

static void outer_drop(struct fragment *f)
{
    banyan_buckets_free(f->buckets);
    banyan_comm_destroy(f->comm);
    f->buckets = NULL;
    f->comm = NULL;
}

/* ---- an average ---- */

/* Starts to average what this rank has learnt of a fragment since all agreed. */
static int outer_start(struct banyan_outer *o, struct fragment *f, int warm)
{
    float weight = o->cfg.weighted ? f->tokens : 1;
    int rc = 0;

    f->own = f->weight = weight;
    f->tokens = 0;
    for (size_t i = f->first; i < f->first + f->n; i++) {
        const struct bny_tensor *t = &o->tensors.at[i];
        const float *x = t->grad;

        if (o->sent)
            memcpy(o->sent + t->before, x, t->bytes);
        for (size_t k = 0; k < t->count; k++) {
            float d = x[k] - o->agreed[t->before + k];
            o->change[t->before + k] = o->cfg.weighted ? weight * d : d;
        }
    }
    f->since = warm ? outer_offset(o, f) : 0;
    if (o->cfg.residual < 1 && f->merged)
        rc = banyan_buckets_scale_residuals(f->buckets, o->cfg.residual);
    f->under_way = 1;
    for (size_t i = f->n + (o->cfg.weighted ? 1 : 0); rc == 0 && i-- > 0;)
        rc = banyan_buckets_ready(f->buckets, i);
    return rc;
}

/* theta moves by the mean change: Nesterov's momentum. */
static void outer_move_agreed(struct banyan_outer *o, const struct fragment *f, int plain)
{
    float mu = (float)o->cfg.momentum, eta = plain ? 1 : (float)o->cfg.rate;
    float whole = o->cfg.weighted ? f->weight : 1;

    for (size_t k = f->at; k < f->at + f->count; k++) {
        float g = o->cfg.weighted ? o->change[k] / whole : o->change[k], m = 0;

        if (o->momentum && !plain)
            m = o->momentum[k] = mu * o->momentum[k] + g;
        o->agreed[k] += eta * (g + mu * m);
    }
}

/* Parameters become what was agreed, and what this rank has learnt since it sent. */
static void outer_take(struct banyan_outer *o, struct fragment *f)
{
    float alpha = (float)o->cfg.merge;

    for (size_t i = f->first; i < f->first + f->n; i++) {
        const struct bny_tensor *t = &o->tensors.at[i];
        const float *agreed = o->agreed + t->before;
        const float *sent = o->sent ? o->sent + t->before : t->grad;
        float *x = t->grad;

        for (size_t k = 0; k < t->count; k++)
            x[k] = o->sent || alpha < 1 ? x[k] + alpha * (agreed[k] - sent[k]) : agreed[k];
    }
}

/* All of the change stays in the parameters, and is in the next average: what the codec kept of
 * it would count twice. */
static void outer_lose(struct fragment *f)
{
    f->under_way = 0;
    f->lost = 1;
    f->tokens += f->own;
    bny_buckets_drop_residuals(f->buckets);
}

static int outer_end(struct banyan_outer *o, struct fragment *f, int plain)
{
    int rc = banyan_buckets_wait(f->buckets);

    f->under_way = 0;
    if (rc < 0) {
        outer_lose(f);
        return rc;
    }
    f->lost = 0;
    f->merged++;
    if (o->cfg.weighted && !(f->weight > 0))
        return 0; /* nobody had any weight: what was learnt waits for the next average */
    outer_move_agreed(o, f, plain);
    outer_take(o, f);
    return 0;
}

/* The next period, from the mean loss of all ranks over the last one. */
static int outer_adapt(struct banyan_outer *o)
{
    double own = o->loss / (double)(o->losses ? o->losses : 1), loss = own, period;
    int rc;

    o->loss = 0;
    o->losses = 0;
    rc = banyan_allreduce(&loss, &loss, 1, BANYAN_F64, BANYAN_AVG, o->object.comm, &bny_exact);
    if (rc < 0)
        return rc;
    if (!isfinite(loss))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_outer_step: the mean loss of all ranks is no finite number; at "
                        "rank %d it is %g",
                        banyan_comm_rank(o->object.comm), own);
    if (o->first_loss == 0)
        o->first_loss = loss > 0 ? loss : 1;
    period = ceil(o->cfg.period * sqrt((loss > 0 ? loss : 0) / o->first_loss));
    o->period = period >= o->cfg.period ? o->cfg.period : period >= 1 ? (int)period : 1;
    return 0;
}

/* One fragment's part of a step. Returns 1 if an average was merged. */
static int outer_fragment(struct banyan_outer *o, struct fragment *f, int warm)
{
    uint64_t period = (uint64_t)o->period, steps = f->since;
    int due = warm || steps >= period, rc = 0, taken = 0;

    if (f->under_way && (due || steps >= (uint64_t)o->cfg.delay)) {
        rc = outer_end(o, f, 0);
        taken = rc == 0;
    } else if (f->under_way) {
        banyan_buckets_progress(f->buckets); /* its end tells what failed, on all ranks alike */
    }
    if (rc < 0 || !due)
        return rc < 0 ? rc : taken;
    rc = outer_start(o, f, warm);
    if (rc == 0 && (!o->cfg.delay || warm)) {
        rc = outer_end(o, f, warm);
        taken = 1;
    }
    if (rc == 0 && o->cfg.adaptive)
        rc = outer_adapt(o);
    return rc < 0 ? rc : taken;
}

int banyan_outer_step(struct banyan_outer *o, double loss, double weight)
{
    int rc = bny_object_enter(o, KIND, "banyan_outer_step"), taken = 0, warm;

    if (rc == 0 && !(weight >= 0 && weight < 1e30))
        rc = bny_fail(BANYAN_EINVAL, "banyan_outer_step: weight is %g; 0 or more", weight);
    if (rc < 0)
        return rc;
    warm = o->steps++ < (uint64_t)o->cfg.warm_up;
    o->loss += loss;
    o->losses++;
    for (int k = 0; k < o->n; k++) {
        o->at[k].tokens += (float)weight;
        o->at[k].since++;
    }
    for (int k = 0; k < o->n && rc >= 0; k++) {
        rc = outer_fragment(o, &o->at[k], warm);
        taken |= rc > 0;
    }
    return rc < 0 ? rc : taken;
}

int banyan_outer_settle(struct banyan_outer *o)
{
    int rc = bny_object_enter(o, KIND, "banyan_outer_settle");

    for (int k = 0; k < (rc < 0 ? 0 : o->n); k++)
        if (o->at[k].under_way) {
            int failed = outer_end(o, &o->at[k], 0);
            rc = rc ? rc : failed;
        }
    return rc;
}

int banyan_outer_finish(struct banyan_outer *o)
{
    int rc = banyan_outer_settle(o);

    if (rc < 0)
        return rc;
    bny_tensors_get(&o->tensors, o->change);
    rc = banyan_allreduce(o->change, o->change, o->tensors.count, BANYAN_F32, BANYAN_AVG,
                          o->object.comm, &bny_exact);
    if (rc < 0)
        return rc;
    memcpy(o->agreed, o->change, o->tensors.count * sizeof *o->agreed);
    bny_tensors_put(&o->tensors, o->agreed);
    for (int k = 0; k < o->n; k++)
        o->at[k].tokens = 0;
    o->loss = 0;
    o->losses = 0;
    return 0;
}

int banyan_outer_period(const struct banyan_outer *o)
{
    int rc = bny_object_check(o, KIND, "banyan_outer_period");

    return rc < 0 ? 0 : o->steps < (uint64_t)o->cfg.warm_up ? 1 : o->period;
}

/* ---- life ---- */

/* What ranks share besides theta and momentum. */
struct shared {
    uint64_t steps, period, first_loss; /* the latter: its bits */
};

/* The rank whose theta is the latest: after a failure one may have merged an average that
 * others lost. One that moved has a later one than all that were made now. Of several the
 * lowest. -1: *rc. */
static int outer_newest(const struct banyan_outer *o, struct banyan_comm *comm, int moved,
                        int *rc)
{
    uint64_t merged = 0, best;

    for (int k = 0; k < o->n; k++)
        merged += o->at[k].merged;
    merged = merged < MERGED_MOST ? merged : MERGED_MOST;
    best = (uint64_t)moved << 63 | merged << 20 | (0xfffffu - (uint32_t)banyan_comm_rank(comm));
    *rc = banyan_allreduce(&best, &best, 1, BANYAN_U64, BANYAN_MAX, comm, &bny_exact);
    return *rc < 0 ? -1 : (int)(0xfffffu - (best & 0xfffffu));
}

/* Fragments' counts, from the root. A rank whose average was lost merges what the root has. */
static int outer_counts(struct banyan_outer *o, struct banyan_comm *comm, int root)
{
    int rc = 0;

    for (int k = 0; k < o->n && rc == 0; k++) {
        struct fragment *f = &o->at[k];
        uint64_t v[2] = { f->since, f->merged };

        rc = banyan_broadcast(v, 2, BANYAN_U64, root, comm, &bny_exact);
        if (rc < 0)
            break;
        if (f->lost && v[1] > f->merged) {
            outer_take(o, f);
            f->tokens -= f->own;
        }
        f->since = v[0];
        f->merged = v[1];
        f->lost = 0;
    }
    return rc;
}

static int outer_share(struct banyan_outer *o, struct banyan_comm *comm, int moved)
{
    struct shared s = { .steps = o->steps, .period = (uint64_t)o->period };
    int rc, root = outer_newest(o, comm, moved, &rc);

    memcpy(&s.first_loss, &o->first_loss, sizeof s.first_loss);
    if (rc == 0)
        rc = banyan_broadcast(&s, sizeof s / 8, BANYAN_U64, root, comm, &bny_exact);
    if (rc == 0)
        rc = banyan_broadcast(o->agreed, o->tensors.count, BANYAN_F32, root, comm, &bny_exact);
    if (rc == 0 && o->momentum)
        rc =
            banyan_broadcast(o->momentum, o->tensors.count, BANYAN_F32, root, comm, &bny_exact);
    if (rc == 0)
        rc = outer_counts(o, comm, root);
    o->steps = s.steps;
    o->period = (int)s.period;
    memcpy(&o->first_loss, &s.first_loss, sizeof s.first_loss);
    return rc;
}

static int outer_join(struct banyan_outer *o, struct banyan_comm *comm, int moved)
{
    int rc = bny_tensors_agree(&o->tensors, comm);

    if (rc == 0)
        rc = outer_agree(o, comm);
    for (int k = 0; k < o->n && rc == 0; k++)
        rc = outer_carry(o, k, comm);
    return rc ? rc : outer_share(o, comm, moved);
}

int banyan_outer_create(struct banyan_outer **out, struct banyan_comm *comm,
                        const struct banyan_tensor *tensors, size_t n,
                        const struct banyan_outer_config *cfg)
{
    static const char what[] = "banyan_outer_create";
    struct banyan_outer *o;
    char why[512];
    int rc;

    o = bny_object_new(&handles, out, comm, what, &rc);
    if (!o)
        return rc;
    rc = outer_settings(&o->cfg, cfg);
    if (rc == 0)
        rc = outer_texts(o);
    else
        o->cfg.codec = NULL; /* the caller's */
    if (rc == 0)
        rc = bny_tensors_copy(&o->tensors, tensors, n, 1u << BANYAN_F32);
    if (rc == 0)
        rc = outer_allocate(o);
    rc = bny_all_can(comm, rc, what);
    if (rc == 0) {
        outer_divide(o);
        for (int k = 0; k < o->n; k++)
            o->at[k].since = outer_offset(o, &o->at[k]);
        o->period = o->cfg.period;
        bny_tensors_get(&o->tensors, o->agreed);
        rc = outer_join(o, comm, 0);
    }
    if (rc == 0)
        rc = bny_all_can(comm, rc, what); /* as those that moved say */
    if (rc == 0) {
        bny_tensors_put(&o->tensors, o->agreed);
        bny_rules_tell_idle(&o->rules, 1, &o->tensors, comm);
        *out = o;
        return 0;
    }
    snprintf(why, sizeof why, "%s", banyan_last_error());
    banyan_outer_free(o);
    return bny_fail((enum banyan_error) - rc, "%s", why);
}

int banyan_outer_free(struct banyan_outer *o)
{
    int rc = bny_object_may_free(o, KIND, "banyan_outer_free");

    if (rc <= 0)
        return rc;
    for (int k = 0; k < o->n; k++)
        outer_drop(&o->at[k]);
    bny_tensors_free(&o->tensors);
    free((char *)(uintptr_t)o->cfg.codec);
    bny_rules_free(&o->rules);
    free(o->at);
    free(o->agreed);
    free(o->change);
    free(o->momentum);
    free(o->sent);
    bny_handle_free(&handles, &o->object.handle);
    return 0;
}

/* All ranks have, or none has, what carries the fragments there; those of before stay where it
 * failed, for their residuals. */
static int outer_moved(struct banyan_outer *o, struct fragment *old, struct banyan_comm *comm,
                       int rc)
{
    char why[512];

    rc = bny_all_can(comm, rc, "banyan_outer_move");
    snprintf(why, sizeof why, "%s", rc < 0 ? banyan_last_error() : "");
    o->object.comm = comm;
    for (int k = 0; k < o->n; k++) {
        struct fragment *f = &o->at[k];

        if (rc < 0) {
            struct banyan_buckets *buckets = f->buckets;
            struct banyan_comm *made = f->comm;

            f->buckets = old[k].buckets;
            f->comm = old[k].comm;
            old[k].buckets = buckets;
            old[k].comm = made;
        }
        outer_drop(&old[k]);
    }
    return rc < 0 ? bny_fail((enum banyan_error) - rc, "%s", why) : 0;
}

int banyan_outer_move(struct banyan_outer *o, struct banyan_comm *comm)
{
    static const char what[] = "banyan_outer_move";
    struct fragment *old = NULL;
    int rc = bny_object_check(o, KIND, what);

    if (rc == 0)
        rc = banyan_comm_may_wait(comm, what);
    if (rc < 0)
        return rc;
    old = calloc((size_t)o->n + 1, sizeof *old);
    rc = bny_all_can(comm, old ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for fragments"), what);
    if (rc < 0) {
        free(old);
        return rc;
    }
    for (int k = 0; k < o->n; k++) {
        struct fragment *f = &o->at[k];

        if (f->under_way) {
            banyan_buckets_wait(f->buckets);
            outer_lose(f);
        }
        old[k] = *f;
        f->buckets = NULL;
        f->comm = NULL;
    }
    rc = outer_join(o, comm, 1);
    for (int k = 0; k < o->n && rc == 0; k++)
        rc = bny_buckets_move_residuals(o->at[k].buckets, old[k].buckets);
    rc = outer_moved(o, old, comm, rc);
    free(old);
    return rc;
}

/* ---- states ---- */

static void outer_walk(struct bny_saved *s, struct banyan_outer *o)
{
    bny_saved_bytes(s, &o->steps, sizeof o->steps);
    bny_saved_bytes(s, &o->period, sizeof o->period);
    bny_saved_bytes(s, &o->loss, sizeof o->loss);
    bny_saved_bytes(s, &o->losses, sizeof o->losses);
    bny_saved_bytes(s, &o->first_loss, sizeof o->first_loss);
    for (int k = 0; k < o->n; k++) {
        struct fragment *f = &o->at[k];

        bny_saved_bytes(s, &f->since, sizeof f->since);
        bny_saved_bytes(s, &f->merged, sizeof f->merged);
        bny_saved_bytes(s, &f->tokens, sizeof f->tokens);
    }
    bny_saved_bytes(s, o->agreed, o->tensors.count * sizeof *o->agreed);
    if (o->momentum)
        bny_saved_bytes(s, o->momentum, o->tensors.count * sizeof *o->momentum);
}

/* Bytes that outer_walk() writes. */
static size_t outer_fixed(const struct banyan_outer *o)
{
    struct bny_saved s = { .what = BNY_SAVED_COUNT };

    outer_walk(&s, (struct banyan_outer *)(uintptr_t)o);
    return s.len;
}

/* What the state is of. */
static uint64_t outer_hash(const struct banyan_outer *o)
{
    const struct bny_setting s[] = { { "fragments", (uint64_t)o->n },
                                     { "momentum", o->momentum != NULL } };

    return bny_settings_hash(s, 2, o->tensors.hash);
}

size_t banyan_outer_bytes(const struct banyan_outer *o)
{
    struct bny_saved s;
    uint64_t hash = 0;

    if (bny_object_check(o, KIND, "banyan_outer_bytes") < 0)
        return 0;
    bny_saved_count(&s, KIND);
    bny_saved_bytes(&s, &hash, sizeof hash);
    s.len += outer_fixed(o);
    for (int k = 0; k < o->n; k++)
        s.len += sizeof(uint64_t) + banyan_buckets_bytes(o->at[k].buckets);
    return s.len;
}

static int outer_is_settled(const struct banyan_outer *o, const char *what)
{
    int rc = bny_object_check(o, KIND, what);

    for (int k = 0; rc == 0 && k < o->n; k++)
        if (o->at[k].under_way)
            rc = bny_fail(BANYAN_EBUSY,
                          "%s: an average is under way; call banyan_outer_settle on all ranks "
                          "first",
                          what);
    return rc;
}

int banyan_outer_save(const struct banyan_outer *o, void *buf, size_t cap)
{
    int rc = outer_is_settled(o, "banyan_outer_save");
    struct bny_saved s;
    uint64_t hash;

    if (rc < 0)
        return rc;
    hash = outer_hash(o);
    rc = bny_saved_write(&s, KIND, buf, cap, banyan_outer_bytes(o));
    if (rc < 0)
        return rc;
    bny_saved_bytes(&s, &hash, sizeof hash);
    outer_walk(&s, (struct banyan_outer *)(uintptr_t)o);
    for (int k = 0; k < o->n && rc == 0; k++) {
        uint64_t bytes = banyan_buckets_bytes(o->at[k].buckets);

        bny_saved_bytes(&s, &bytes, sizeof bytes);
        rc = banyan_buckets_save(o->at[k].buckets, s.at + s.len, bytes);
        s.len += bytes;
    }
    return rc < 0 ? rc : bny_saved_end(&s, NULL);
}

/* What buckets and outer_walk() may not find: 0, or an error. */
static int outer_check(const struct banyan_outer *o, struct bny_saved s, const char *what)
{
    uint64_t hash, steps;
    int period;

    bny_saved_bytes(&s, &hash, sizeof hash);
    bny_saved_bytes(&s, &steps, sizeof steps);
    bny_saved_bytes(&s, &period, sizeof period);
    if (s.short_of || hash != outer_hash(o) || period < 1 || period > o->cfg.period)
        return bny_fail(BANYAN_EINVAL, "%s: the state is of other tensors or settings", what);
    return 0;
}

/* Fragments' codec states first: they may refuse theirs. */
int banyan_outer_load(struct banyan_outer *o, const void *buf, size_t bytes)
{
    static const char what[] = "banyan_outer_load";
    int rc = outer_is_settled(o, what);
    struct bny_saved s, parts;
    uint64_t hash, part;

    if (rc == 0)
        rc = bny_saved_read(&s, KIND, buf, bytes, what);
    if (rc == 0)
        rc = outer_check(o, s, what);
    if (rc < 0)
        return rc;
    bny_saved_bytes(&s, &hash, sizeof hash);
    parts = s;
    parts.len += outer_fixed(o);
    for (int k = 0; k < o->n && rc == 0; k++) {
        if (parts.len > parts.cap)
            parts.len = parts.cap;
        bny_saved_bytes(&parts, &part, sizeof part);
        if (parts.short_of || part > parts.cap - parts.len)
            return bny_fail(BANYAN_EINVAL, "%s: the state is too short", what);
        rc = banyan_buckets_load(o->at[k].buckets, parts.at + parts.len, part);
        parts.len += part;
    }
    if (rc == 0)
        rc = bny_saved_end(&parts, NULL);
    if (rc == 0)
        outer_walk(&s, o);
    for (int k = 0; k < o->n && rc == 0; k++) {
        struct fragment *f = &o->at[k];

        f->lost = 0;
        f->tokens = isfinite(f->tokens) && f->tokens > 0 ? f->tokens : 0;
    }
    if (rc == 0 && !(isfinite(o->first_loss) && o->first_loss >= 0))
        o->first_loss = 0;
    return rc;
}
