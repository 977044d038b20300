/* SPDX-License-Identifier: BSD-3-Clause */
/* Learned gradient compression (banyan/methods.h has the method and its source): the life of
 * the object, and the step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/sized.h"
#include "methods/lgc/lgc.h"

static struct bny_handles handles = BNY_HANDLES(BNY_LGC_KIND, struct banyan_lgc);

/* ---- life ---- */
static int make_net(struct banyan_lgc *lgc)
{
    const struct banyan_lgc_config *c = &lgc->cfg;
    struct bny_lgc_net_conf conf = { .mu = lgc->mu,
                                     .ranks = lgc->n,
                                     .decoders = lgc->server ? lgc->n : 1,
                                     .trains = lgc->rank == c->root,
                                     .sgd = c->optimiser == BANYAN_LGC_SGD,
                                     .threads = c->threads,
                                     .rate = c->learning_rate,
                                     .lambda_rec = c->lambda_reconstruction,
                                     .lambda_similar = c->lambda_similarity,
                                     .seed = c->seed };
    char text[BNY_LGC_TEXT];
    int rc = bny_lgc_net_load(&lgc->ops, c->module);

    if (rc == 0 && lgc->ops->create(&lgc->net, &conf, text))
        rc = bny_fail(BANYAN_ESYSTEM, "rank %d: LGC: %s", lgc->rank, text);
    return rc;
}

/* Zeroed memory for n things; counts those that could not be had. */
static void *some(size_t n, size_t bytes, int *missing)
{
    void *p = calloc(n ? n : 1, bytes);

    *missing += !p;
    return p;
}

static int make_buffers(struct banyan_lgc *lgc)
{
    size_t n = (size_t)lgc->n, roots = lgc->rank == lgc->cfg.root ? n : 0;
    int missing = 0;

    lgc->index = some(lgc->nkept, sizeof *lgc->index, &missing);
    lgc->payload = some(2 * lgc->nkept, sizeof *lgc->payload, &missing);
    lgc->payloads = some(n * 2 * lgc->nkept, sizeof *lgc->payloads, &missing);
    lgc->frame = some(1 + lgc->ncoded, sizeof *lgc->frame, &missing);
    lgc->x = some(lgc->mu, sizeof *lgc->x, &missing);
    lgc->xs = some(roots * lgc->mu, sizeof *lgc->xs, &missing);
    lgc->innovation =
        some(lgc->server ? roots * lgc->mu : 0, sizeof *lgc->innovation, &missing);
    lgc->mean = some(lgc->mu + 1, sizeof *lgc->mean, &missing);
    lgc->y = some(lgc->mu, sizeof *lgc->y, &missing);
    lgc->code = some(lgc->net->ncode, sizeof *lgc->code, &missing);
    lgc->news = some(2 * lgc->ninnovation, sizeof *lgc->news, &missing);
    lgc->all_news = some(roots * 2 * lgc->ninnovation, sizeof *lgc->all_news, &missing);
    lgc->sample = some(lgc->nsample + 1, sizeof *lgc->sample, &missing);
    lgc->sample_index = some(lgc->nsample, sizeof *lgc->sample_index, &missing);
    lgc->counts = some(n, sizeof *lgc->counts, &missing);
    return missing
               ? bny_fail(BANYAN_ENOMEM, "no memory for LGC of %zu kept elements", lgc->nkept)
               : 0;
}

/* The checks that a rank makes alone. */
static int lgc_prepare(struct banyan_lgc *lgc, const struct banyan_tensor *tensors, size_t n,
                       const struct banyan_lgc_config *cfg)
{
    int rc = bny_lgc_config_take(&lgc->cfg, cfg, lgc->n);

    lgc->server = lgc->cfg.instance == BANYAN_LGC_SERVER && lgc->n > 1;
    if (rc == 0)
        rc = bny_tensors_copy(&lgc->tensors, tensors, n, 1u << BANYAN_F32);
    if (rc == 0)
        rc = bny_lgc_parts(lgc);
    if (rc == 0)
        rc = make_net(lgc);
    return rc == 0 ? make_buffers(lgc) : rc;
}

int banyan_lgc_create(struct banyan_lgc **out, struct banyan_comm *comm,
                      const struct banyan_tensor *tensors, size_t n,
                      const struct banyan_lgc_config *cfg)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_lgc *lgc;
    int rc;

    lgc = bny_object_new(&handles, out, comm, "banyan_lgc_create", &rc);
    if (!lgc) /* without memory: the others wait for it until their deadline */
        return rc;
    lgc->comm = comm;
    lgc->n = banyan_comm_count(comm);
    lgc->rank = banyan_comm_rank(comm);
    lgc->opts = opts;
    lgc->opts.codec = "none";
    rc = bny_all_can(comm, lgc_prepare(lgc, tensors, n, cfg), "banyan_lgc_create");
    if (rc == 0)
        rc = bny_tensors_agree(&lgc->tensors, comm);
    if (rc == 0)
        rc = bny_lgc_config_agree(lgc);
    if (rc < 0) {
        banyan_lgc_free(lgc);
        return rc;
    }
    lgc->cfg.dense = lgc->cfg.topk = lgc->cfg.module = NULL; /* the caller's memory */
    lgc->v.rng = lgc->cfg.seed ^ 0x4c4743;
    *out = lgc;
    return 0;
}

int banyan_lgc_free(struct banyan_lgc *lgc)
{
    int rc = bny_object_may_free(lgc, BNY_LGC_KIND, "banyan_lgc_free");

    if (rc <= 0)
        return rc;
    if (lgc->net)
        lgc->ops->destroy(lgc->net);
    bny_tensors_free(&lgc->tensors);
    free(lgc->part);
    free(lgc->residuals);
    free(lgc->index);
    free(lgc->payload);
    free(lgc->payloads);
    free(lgc->frame);
    free(lgc->x);
    free(lgc->xs);
    free(lgc->innovation);
    free(lgc->mean);
    free(lgc->y);
    free(lgc->code);
    free(lgc->news);
    free(lgc->all_news);
    free(lgc->sample);
    free(lgc->sample_index);
    free(lgc->counts);
    bny_handle_free(&handles, &lgc->object.handle);
    return 0;
}

/* ---- the step ---- */
static int is_finite(const float *x, size_t n)
{
    uint32_t bad = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

/* Are all gradients of all ranks finite, and all ranks at this step? The largest number names
 * the first tensor that is not, and the first rank that has it so. */
static int lgc_check(struct banyan_lgc *lgc)
{
    uint64_t v[3] = { 0, lgc->v.step, ~lgc->v.step };
    size_t n = lgc->tensors.n;
    int rc;

    for (size_t i = 0; i < n && v[0] == 0; i++)
        if (!is_finite(lgc->part[i].grad, lgc->part[i].count))
            v[0] = (uint64_t)(n - i) << 32 | (uint64_t)(lgc->n - lgc->rank);
    rc = bny_lgc_allreduce(lgc, BANYAN_LGC_CHECKS, v, 3, BANYAN_U64, BANYAN_MAX);
    if (rc < 0)
        return rc;
    if (v[1] != ~v[2])
        return bny_fail(BANYAN_EMISMATCH,
                        "banyan_lgc_step: rank %d has done %llu steps, others %llu to %llu; "
                        "load states of one step on all ranks",
                        lgc->rank, (unsigned long long)lgc->v.step, (unsigned long long)~v[2],
                        (unsigned long long)v[1]);
    if (v[0] == 0)
        return 0;
    return bny_fail(BANYAN_EINVAL,
                    "banyan_lgc_step: the gradient of tensor %s has a NaN or an infinity at "
                    "rank %d; skip this step, or lower the learning rate",
                    lgc->tensors.at[n - (size_t)(v[0] >> 32)].name,
                    lgc->n - (int)(v[0] & 0xffffffffu));
}

static int phase(const struct banyan_lgc *lgc)
{
    if (lgc->v.step < lgc->cfg.dense_steps)
        return 1;
    return lgc->v.step - lgc->cfg.dense_steps < lgc->cfg.train_steps ? 2 : 3;
}

/* Beyond 1 no correlation opens the gate, below -1 none shuts it: nothing is measured. */
static int measures(const struct banyan_lgc *lgc)
{
    return fabs(lgc->cfg.gate) <= 1;
}

/* Is this step the last one before the gate is moved? */
static int decides(const struct banyan_lgc *lgc)
{
    uint64_t done = lgc->v.step + 1;

    return done % lgc->cfg.gate_every == 0 ||
           done == lgc->cfg.dense_steps + lgc->cfg.train_steps;
}

static void decide(struct banyan_lgc *lgc)
{
    if (!measures(lgc))
        lgc->v.open = lgc->cfg.gate < 0;
    else if (lgc->v.measured)
        lgc->v.open = lgc->v.sum / (double)lgc->v.measured > lgc->cfg.gate;
    lgc->v.open &= !lgc->v.broken;
    lgc->v.sum = 0;
    lgc->v.measured = 0;
}

static int choose_way(struct banyan_lgc *lgc, enum bny_lgc_way *way)
{
    int at = phase(lgc), rc = 0;

    *way = at == 1 ? BNY_LGC_WAY_DENSE : at == 2 ? BNY_LGC_WAY_TRAIN : BNY_LGC_WAY_PLAIN;
    if (at < 3 || !lgc->v.open)
        return 0;
    if (!lgc->v.shipped)
        rc = bny_lgc_ship(lgc);
    if (lgc->v.broken)
        lgc->v.open = 0;
    if (rc == 0 && lgc->v.open)
        *way = BNY_LGC_WAY_CODED;
    else if (rc == 0 && lgc->rank == lgc->cfg.root)
        bny_warn("LGC: the autoencoder's training diverged; plain top-k from here on");
    return rc;
}

static void add_residuals(struct banyan_lgc *lgc)
{
    for (size_t i = 0; i < lgc->tensors.n; i++) {
        struct bny_lgc_part *p = &lgc->part[i];

        for (size_t j = 0; p->residual && j < p->count; j++)
            p->grad[j] += p->residual[j];
    }
}

/* Phases 2 and 3. Residuals change only in bny_lgc_commit, after everything was exchanged. */
static int sparse_step(struct banyan_lgc *lgc, enum bny_lgc_way way)
{
    int leads = lgc->rank == bny_lgc_leader(lgc);
    size_t first = way == BNY_LGC_WAY_PLAIN ? 0 : lgc->ncoded;
    int rc;

    add_residuals(lgc);
    bny_lgc_choose(lgc, leads ? 0 : first, lgc->nkept);
    rc = bny_lgc_send_dense(lgc, 0);
    if (rc == 0)
        rc = bny_lgc_send_plain(lgc, first, lgc->nkept);
    if (rc == 0 && way != BNY_LGC_WAY_PLAIN)
        rc = bny_lgc_send_frame(lgc);
    if (rc == 0 && way == BNY_LGC_WAY_TRAIN)
        rc = bny_lgc_send_values(lgc);
    if (rc == 0 && way == BNY_LGC_WAY_CODED)
        rc = bny_lgc_send_codes(lgc);
    if (rc == 0 && way != BNY_LGC_WAY_TRAIN && measures(lgc) && decides(lgc))
        rc = bny_lgc_measure(lgc, way == BNY_LGC_WAY_CODED);
    if (rc < 0)
        return rc;
    bny_lgc_commit(lgc, way);
    return way == BNY_LGC_WAY_TRAIN && lgc->rank == lgc->cfg.root ? bny_lgc_train(lgc) : 0;
}

int banyan_lgc_step(struct banyan_lgc *lgc)
{
    enum bny_lgc_way way;
    int rc = bny_object_enter(lgc, BNY_LGC_KIND, "banyan_lgc_step");

    if (rc < 0)
        return rc;
    rc = lgc_check(lgc);
    if (rc == 0)
        rc = choose_way(lgc, &way);
    if (rc == 0)
        rc = way == BNY_LGC_WAY_DENSE ? bny_lgc_send_dense(lgc, 1) : sparse_step(lgc, way);
    if (rc < 0)
        return rc;
    if (way != BNY_LGC_WAY_DENSE && decides(lgc))
        decide(lgc);
    lgc->v.coded += way == BNY_LGC_WAY_CODED;
    lgc->v.sent_dense += 4 * lgc->tensors.count * (uint64_t)lgc->n;
    lgc->v.step++;
    return 0;
}

/* ---- numbers ---- */
/* First the checks that only the root can make, then the differences between ranks. */
static int lgc_collect(struct banyan_lgc *lgc, uint64_t *wire)
{
    double v[3] = { lgc->v.loss, lgc->v.error, lgc->v.error_largest };
    int rc = banyan_broadcast(v, 3, BANYAN_F64, lgc->cfg.root, lgc->comm, &lgc->opts);

    if (rc < 0)
        return rc;
    lgc->v.loss = v[0];
    lgc->v.error = v[1];
    lgc->v.error_largest = v[2];
    memcpy(wire, lgc->v.wire, sizeof lgc->v.wire);
    return banyan_allreduce(wire, wire, BNY_LGC_KINDS, BANYAN_U64, BANYAN_SUM, lgc->comm,
                            &lgc->opts);
}

static double mean_us(const struct banyan_lgc *lgc, enum bny_lgc_work w)
{
    return lgc->works[w] ? (double)lgc->work_ns[w] / 1e3 / (double)lgc->works[w] : 0;
}

int banyan_lgc_get_stats(struct banyan_lgc *lgc, struct banyan_lgc_stats *out)
{
    struct banyan_lgc_stats s = { 0 };
    int rc = bny_object_enter(lgc, BNY_LGC_KIND, "banyan_lgc_get_stats");

    if (rc == 0)
        rc = bny_sized_check(out, "banyan_lgc_get_stats");
    if (rc == 0)
        rc = lgc_collect(lgc, s.wire);
    if (rc < 0)
        return rc;
    s.step = lgc->v.step;
    s.phase = phase(lgc);
    s.open = s.phase == 3 && lgc->v.open;
    s.coded = lgc->v.coded;
    s.mu = lgc->mu;
    s.code = lgc->net->ncode;
    s.kept = lgc->nkept;
    s.correlation = lgc->v.correlation;
    s.loss = lgc->v.loss;
    s.error = lgc->v.error;
    s.error_largest = lgc->v.error_largest;
    memcpy(s.sent, lgc->v.sent, sizeof lgc->v.sent);
    s.sent_dense = lgc->v.sent_dense;
    s.encode_us = mean_us(lgc, BNY_LGC_ENCODING);
    s.decode_us = mean_us(lgc, BNY_LGC_DECODING);
    s.train_us = mean_us(lgc, BNY_LGC_TRAINING);
    bny_sized_give(out, &s, sizeof s);
    return 0;
}
