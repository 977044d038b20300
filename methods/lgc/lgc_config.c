/* SPDX-License-Identifier: BSD-3-Clause */
/* Settings of LGC, and the part of each tensor. */
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sized.h"
#include "methods/lgc/lgc.h"

/* ---- settings ---- */
static int lgc_config_wrong(const char *name, const char *must, double is)
{
    return bny_fail(BANYAN_EINVAL, "banyan_lgc_create: %s is %g; it must be %s", name, is,
                    must);
}

static int check_numbers(const struct banyan_lgc_config *c)
{
    if (!(c->delta > 0 && c->delta <= 1))
        return lgc_config_wrong("delta", "above 0 and at most 1", c->delta);
    if (!(c->delta_innovation > 0 && c->delta_innovation <= c->delta))
        return lgc_config_wrong("delta_innovation", "above 0 and at most delta",
                                c->delta_innovation);
    if (!(c->learning_rate > 0 && c->learning_rate < 1e3))
        return lgc_config_wrong("learning_rate", "above 0", c->learning_rate);
    if (!(c->lambda_reconstruction > 0 && c->lambda_reconstruction < 1e6))
        return lgc_config_wrong("lambda_reconstruction", "above 0", c->lambda_reconstruction);
    if (!(c->lambda_similarity >= 0 && c->lambda_similarity < 1e6))
        return lgc_config_wrong("lambda_similarity", "at least 0", c->lambda_similarity);
    if (!(c->gate >= -2 && c->gate <= 2))
        return lgc_config_wrong("gate", "in [-2, 2]", c->gate);
    return 0;
}

int bny_lgc_config_take(struct banyan_lgc_config *out, const struct banyan_lgc_config *cfg,
                        int n)
{
    int rc;

    *out = (struct banyan_lgc_config)BANYAN_LGC_CONFIG_INIT;
    rc = bny_sized_take(out, sizeof *out, cfg, "banyan_lgc_create", "BANYAN_LGC_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (out->instance != BANYAN_LGC_RING && out->instance != BANYAN_LGC_SERVER)
        return lgc_config_wrong("instance", "BANYAN_LGC_RING or BANYAN_LGC_SERVER",
                                out->instance);
    if (out->optimiser != BANYAN_LGC_ADAM && out->optimiser != BANYAN_LGC_SGD)
        return lgc_config_wrong("optimiser", "BANYAN_LGC_ADAM or BANYAN_LGC_SGD",
                                out->optimiser);
    if (out->root < 0 || out->root >= n)
        return lgc_config_wrong("root", "a rank of the communicator", out->root);
    if (out->threads < 1 || out->threads > 1024)
        return lgc_config_wrong("threads", "at least 1", out->threads);
    if (out->train_steps < 1)
        return lgc_config_wrong("train_steps", "at least 1", (double)out->train_steps);
    if (out->gate_every < 1)
        return lgc_config_wrong("gate_every", "at least 1", (double)out->gate_every);
    return check_numbers(out);
}

/* ---- which tensor is what ---- */
/* Marks tensors whose names a pattern of the list matches. */
static int mark(const struct bny_tensors *t, const char *list, const char *setting, char *out)
{
    while (*list) {
        size_t len = strcspn(list, ",");
        char pattern[128];
        int found = 0;

        if (len >= sizeof pattern)
            return bny_fail(BANYAN_EINVAL,
                            "banyan_lgc_create: a pattern of %s is longer than %zu bytes",
                            setting, sizeof pattern - 1);
        snprintf(pattern, sizeof pattern, "%.*s", (int)len, list);
        for (size_t i = 0; i < t->n; i++)
            if (fnmatch(pattern, t->at[i].name, 0) == 0)
                out[i] = 1, found = 1;
        if (!found)
            return bny_fail(BANYAN_EINVAL,
                            "banyan_lgc_create: no tensor's name matches \"%s\" of %s; the "
                            "first is %s",
                            pattern, setting, t->n ? t->at[0].name : "none");
        list += len + (list[len] == ',');
    }
    return 0;
}

/* The last tensor of two or more dimensions, and those after it: a layer with its bias. */
static void mark_last(const struct bny_tensors *t, char *out)
{
    size_t i = t->n;

    while (i > 0 && t->at[i - 1].ndim < 2)
        i--;
    for (i = i ? i - 1 : t->n; i < t->n; i++)
        out[i] = 1;
}

static int assign_roles(struct banyan_lgc *lgc, char *dense, char *topk)
{
    const struct bny_tensors *t = &lgc->tensors;
    int rc = 0;

    if (lgc->cfg.dense)
        rc = mark(t, lgc->cfg.dense, "dense", dense);
    else if (t->n)
        dense[0] = 1;
    if (rc == 0 && lgc->cfg.topk)
        rc = mark(t, lgc->cfg.topk, "topk", topk);
    else if (rc == 0)
        mark_last(t, topk);
    for (size_t i = 0; i < t->n && rc == 0; i++) {
        lgc->part[i].role = dense[i] || t->at[i].count < lgc->cfg.dense_below
                                ? BNY_LGC_PART_DENSE
                            : topk[i] ? BNY_LGC_PART_TOPK
                                      : BNY_LGC_PART_CODED;
        if (t->at[i].count > UINT32_MAX)
            rc = bny_fail(BANYAN_EINVAL,
                          "banyan_lgc_create: tensor %s has more than 2^32 - 1 elements",
                          t->at[i].name);
    }
    return rc;
}

static size_t kept_of(size_t count, double delta)
{
    double k = ceil((double)count * delta * (1 - 1e-12)); /* 1000 * .001 is 1, not 2 */

    return k < 1 ? 1 : k < (double)count ? (size_t)k : count;
}

/* Numbers the kept elements of the parts of a role; returns how many elements they have. */
static size_t lgc_config_number(struct banyan_lgc *lgc, enum bny_lgc_role role)
{
    size_t count = 0;

    for (size_t i = 0; i < lgc->tensors.n; i++) {
        struct bny_lgc_part *p = &lgc->part[i];

        if (p->role != role)
            continue;
        p->k = kept_of(p->count, lgc->cfg.delta);
        p->at = lgc->nkept;
        lgc->nkept += p->k;
        count += p->count;
    }
    return count;
}

static int lay_out(struct banyan_lgc *lgc)
{
    size_t coded, at = 0;

    for (size_t i = 0; i < lgc->tensors.n; i++) {
        lgc->part[i].count = lgc->tensors.at[i].count;
        lgc->part[i].grad = lgc->tensors.at[i].grad;
    }
    coded = lgc_config_number(lgc, BNY_LGC_PART_CODED);
    lgc->ncoded = lgc->nkept;
    if (lgc->ncoded == 0 || lgc->ncoded > 1 << 26)
        return bny_fail(
            BANYAN_EINVAL,
            "banyan_lgc_create: %zu values of %zu tensors are left for the autoencoder, "
            "which takes 1 to 2^26: %s goes as it is, and tensors of fewer than %zu "
            "elements; %s as top-k; set dense, dense_below, topk or delta so that "
            "others are left",
            lgc->ncoded, lgc->tensors.n,
            lgc->cfg.dense ? "what dense names" : "the first tensor", lgc->cfg.dense_below,
            lgc->cfg.topk ? "what topk names" : "the last matrix");
    lgc->mu = (lgc->ncoded + BNY_LGC_SHORTER - 1) / BNY_LGC_SHORTER * BNY_LGC_SHORTER;
    lgc->ninnovation = kept_of(coded, lgc->cfg.delta_innovation);
    if (lgc->ninnovation > lgc->ncoded)
        lgc->ninnovation = lgc->ncoded;
    lgc->nsample = lgc->cfg.gate_sample && lgc->cfg.gate_sample < lgc->ncoded
                       ? lgc->cfg.gate_sample
                       : lgc->ncoded;
    lgc->nresiduals = coded + lgc_config_number(lgc, BNY_LGC_PART_TOPK);
    lgc->residuals = calloc(lgc->nresiduals, sizeof *lgc->residuals);
    if (!lgc->residuals)
        return bny_fail(BANYAN_ENOMEM, "no memory for residuals of %zu elements",
                        lgc->nresiduals);
    for (size_t i = 0; i < lgc->tensors.n; i++)
        if (lgc->part[i].role != BNY_LGC_PART_DENSE) {
            lgc->part[i].residual = lgc->residuals + at;
            at += lgc->part[i].count;
        }
    return 0;
}

int bny_lgc_parts(struct banyan_lgc *lgc)
{
    size_t n = lgc->tensors.n + 1;
    char *dense = calloc(n, 1), *topk = calloc(n, 1);
    int rc;

    lgc->part = calloc(n, sizeof *lgc->part);
    if (dense && topk && lgc->part)
        rc = assign_roles(lgc, dense, topk);
    else
        rc = bny_fail(BANYAN_ENOMEM, "no memory for the parts of %zu tensors", n - 1);
    free(dense);
    free(topk);
    return rc < 0 ? rc : lay_out(lgc);
}

/* ---- do ranks agree ---- */
static uint64_t of_text(const char *text)
{
    uint64_t hash = text ? 14695981039346656037u : 0;

    for (; text && *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

static uint64_t of_real(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#define SETTINGS 17
static const char *const names[SETTINGS] = {
    "instance",
    "optimiser",
    "root",
    "dense_steps",
    "train_steps",
    "delta",
    "delta_innovation",
    "dense",
    "topk",
    "dense_below",
    "gate",
    "gate_every",
    "gate_sample",
    "seed",
    "learning_rate",
    "lambda_reconstruction",
    "lambda_similarity",
};

int bny_lgc_config_agree(struct banyan_lgc *lgc)
{
    const struct banyan_lgc_config *c = &lgc->cfg;
    uint64_t mine[SETTINGS] = {
        c->instance,
        c->optimiser,
        (uint64_t)c->root,
        c->dense_steps,
        c->train_steps,
        of_real(c->delta),
        of_real(c->delta_innovation),
        of_text(c->dense),
        of_text(c->topk),
        c->dense_below,
        of_real(c->gate),
        c->gate_every,
        c->gate_sample,
        c->seed,
        of_real(c->learning_rate),
        of_real(c->lambda_reconstruction),
        of_real(c->lambda_similarity),
    };
    uint64_t first[SETTINGS];
    int rc;

    memcpy(first, mine, sizeof first);
    rc = banyan_broadcast(first, SETTINGS, BANYAN_U64, 0, lgc->comm, &lgc->opts);
    lgc->v.id = lgc->tensors.hash;
    for (int i = 0; i < SETTINGS && rc == 0; i++) {
        if (mine[i] != first[i])
            rc = bny_fail(BANYAN_EMISMATCH,
                          "banyan_lgc_create: %s is another one at rank %d than at rank 0; all "
                          "ranks must have the same settings",
                          names[i], lgc->rank);
        lgc->v.id = (lgc->v.id ^ mine[i]) * 1099511628211u;
    }
    lgc->v.id = (lgc->v.id ^ (uint64_t)lgc->n << 32 ^ (uint64_t)lgc->rank) * 1099511628211u;
    return bny_all_can(lgc->comm, rc, "banyan_lgc_create");
}
