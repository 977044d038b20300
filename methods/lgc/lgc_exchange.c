/* SPDX-License-Identifier: BSD-3-Clause */
/* The ways in which gradients travel in a step of LGC (lgc.h), and what they come to. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "methods/lgc/lgc.h"

int bny_lgc_leader(const struct banyan_lgc *lgc)
{
    return (int)(lgc->v.step % (uint64_t)lgc->n);
}

static int is_root(const struct banyan_lgc *lgc)
{
    return lgc->rank == lgc->cfg.root;
}

int bny_lgc_give_up(struct banyan_lgc *lgc, int rc)
{
    banyan_abort(lgc->comm, banyan_last_error());
    return rc;
}

/* ---- the autoencoder, timed ---- */
static int worked(struct banyan_lgc *lgc, enum bny_lgc_work work, uint64_t began, int rc)
{
    lgc->work_ns[work] += bny_now_ns() - began;
    lgc->works[work]++;
    if (rc == 0)
        return 0;
    return bny_lgc_give_up(
        lgc, bny_fail(BANYAN_ESYSTEM, "rank %d: LGC: %s", lgc->rank, lgc->net->text));
}

static int lgc_exchange_encode(struct banyan_lgc *lgc)
{
    uint64_t began = bny_now_ns();

    return worked(lgc, BNY_LGC_ENCODING, began, lgc->ops->encode(lgc->net, lgc->x, lgc->code));
}

static int lgc_exchange_decode(struct banyan_lgc *lgc, int decoder, const float *innovation,
                               float *x)
{
    uint64_t began = bny_now_ns();

    return worked(lgc, BNY_LGC_DECODING, began,
                  lgc->ops->decode(lgc->net, decoder, lgc->code, innovation, x));
}

/* ---- dense ---- */
int bny_lgc_send_dense(struct banyan_lgc *lgc, int all)
{
    int rc = 0;

    for (size_t i = 0; i < lgc->tensors.n && rc == 0; i++)
        if (all || lgc->part[i].role == BNY_LGC_PART_DENSE)
            rc = bny_lgc_allreduce(lgc, BANYAN_LGC_DENSE, lgc->part[i].grad, lgc->part[i].count,
                                   BANYAN_F32, BANYAN_AVG);
    return rc;
}

/* ---- plain top-k ---- */
/* The part that has kept number `at` as its first; kept numbers [first, end) are whole parts.
 */
static int within(const struct bny_lgc_part *p, size_t first, size_t end)
{
    return p->role != BNY_LGC_PART_DENSE && p->at >= first && p->at < end;
}

void bny_lgc_choose(struct banyan_lgc *lgc, size_t first, size_t end)
{
    for (size_t i = 0; i < lgc->tensors.n; i++) {
        const struct bny_lgc_part *p = &lgc->part[i];

        if (within(p, first, end))
            bny_lgc_select(p->grad, p->count, p->k, lgc->index + p->at, lgc->histogram);
    }
}

/* From a peer: are the indices of rank r those of elements? */
static int check_plain(struct banyan_lgc *lgc, int r, size_t first, size_t end)
{
    const uint32_t *sent = lgc->payloads + (size_t)r * 2 * (end - first);

    for (size_t i = 0; i < lgc->tensors.n; i++) {
        const struct bny_lgc_part *p = &lgc->part[i];

        for (size_t j = 0; within(p, first, end) && j < p->k; j++)
            if (sent[p->at - first + j] >= p->count)
                return bny_fail(BANYAN_EPROTO,
                                "rank %d sent index %u of tensor %s, which has %zu elements", r,
                                sent[p->at - first + j], lgc->tensors.at[i].name, p->count);
    }
    return 0;
}

int bny_lgc_send_plain(struct banyan_lgc *lgc, size_t first, size_t end)
{
    size_t n = end - first;
    int rc;

    if (n == 0)
        return 0;
    memcpy(lgc->payload, lgc->index + first, n * sizeof *lgc->payload);
    for (size_t i = 0; i < lgc->tensors.n; i++) {
        const struct bny_lgc_part *p = &lgc->part[i];

        for (size_t j = 0; within(p, first, end) && j < p->k; j++)
            memcpy(&lgc->payload[n + p->at - first + j], &p->grad[lgc->index[p->at + j]],
                   sizeof(float));
    }
    rc = bny_lgc_exchange_pairs(lgc, lgc->payload, lgc->payloads, n);
    if (rc < 0)
        return rc;
    for (int r = 0; r < lgc->n && rc == 0; r++)
        rc = check_plain(lgc, r, first, end);
    return rc < 0 ? bny_lgc_give_up(lgc, rc) : 0;
}

/* ---- the leader's frame ---- */
static void fill_frame(struct banyan_lgc *lgc)
{
    double sum = 0;
    float rms;

    for (size_t i = 0; i < lgc->tensors.n; i++) {
        const struct bny_lgc_part *p = &lgc->part[i];

        for (size_t j = 0; p->role == BNY_LGC_PART_CODED && j < p->k; j++) {
            float v = p->grad[lgc->index[p->at + j]];

            lgc->frame[1 + p->at + j] = lgc->index[p->at + j];
            sum += (double)v * v;
        }
    }
    rms = (float)sqrt(sum / (double)lgc->ncoded);
    memcpy(lgc->frame, &rms, sizeof rms);
}

/* From a peer: are indices those of elements, each once? */
static int check_frame(struct banyan_lgc *lgc, int leader)
{
    float rms;

    memcpy(&rms, lgc->frame, sizeof rms);
    if (!isfinite(rms) || rms < 0)
        return bny_fail(BANYAN_EPROTO, "rank %d: leader %d's values have root mean square %g",
                        lgc->rank, leader, (double)rms);
    for (size_t i = 0; i < lgc->tensors.n; i++) {
        const struct bny_lgc_part *p = &lgc->part[i];
        const uint32_t *index = lgc->frame + 1 + p->at;

        for (size_t j = 0; p->role == BNY_LGC_PART_CODED && j < p->k; j++)
            if (index[j] >= p->count || (j && index[j] <= index[j - 1]))
                return bny_fail(BANYAN_EPROTO,
                                "rank %d: leader %d sent index %u of tensor %s of %zu elements",
                                lgc->rank, leader, index[j], lgc->tensors.at[i].name, p->count);
    }
    lgc->scale = rms > 0 ? rms : 1;
    return 0;
}

static void read_frame(struct banyan_lgc *lgc)
{
    for (size_t i = 0; i < lgc->tensors.n; i++) {
        const struct bny_lgc_part *p = &lgc->part[i];

        for (size_t j = 0; p->role == BNY_LGC_PART_CODED && j < p->k; j++)
            lgc->x[p->at + j] = p->grad[lgc->frame[1 + p->at + j]] / lgc->scale;
    }
}

int bny_lgc_send_frame(struct banyan_lgc *lgc)
{
    int leader = bny_lgc_leader(lgc), rc;

    if (lgc->rank == leader)
        fill_frame(lgc);
    rc = bny_lgc_broadcast(lgc, BANYAN_LGC_INDICES, lgc->frame, 1 + lgc->ncoded, BANYAN_U32,
                           leader);
    if (rc < 0)
        return rc;
    rc = check_frame(lgc, leader);
    if (rc < 0)
        return bny_lgc_give_up(lgc, rc);
    read_frame(lgc);
    return 0;
}

/* ---- correlation ---- */
/* z[n] becomes of mean 0 and norm 1; returns 1, or 0 and zeros where all are alike. */
static int standardise(float *z, size_t n)
{
    double mean = 0, norm = 0;

    for (size_t i = 0; i < n; i++)
        mean += z[i];
    mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        norm += (z[i] - mean) * (z[i] - mean);
    norm = norm > 0 ? 1 / sqrt(norm) : 0;
    for (size_t i = 0; i < n; i++)
        z[i] = (float)((z[i] - mean) * norm);
    return norm > 0;
}

/* The mean over all pairs of ranks, from the sum of their standardised vectors: its squared
 * norm is the number of them that are not zero and twice the sum of the pairs' correlations. */
static double mean_correlation(const float *sum, size_t n, double nonzero, int ranks)
{
    double norm = 0;

    if (ranks < 2)
        return 1;
    for (size_t i = 0; i < n; i++)
        norm += (double)sum[i] * sum[i];
    return (norm - nonzero) / ((double)ranks * (ranks - 1));
}

static void measured(struct banyan_lgc *lgc, double correlation)
{
    lgc->v.correlation = correlation;
    lgc->v.sum += correlation;
    lgc->v.measured++;
}

/* Root in phase 2: of all ranks' vectors; y is free. */
static double correlation_of_all(struct banyan_lgc *lgc)
{
    double nonzero = 0;

    memset(lgc->mean, 0, lgc->mu * sizeof *lgc->mean);
    for (int r = 0; r < lgc->n; r++) {
        memcpy(lgc->y, lgc->xs + (size_t)r * lgc->mu, lgc->ncoded * sizeof *lgc->y);
        nonzero += standardise(lgc->y, lgc->ncoded);
        for (size_t i = 0; i < lgc->ncoded; i++)
            lgc->mean[i] += lgc->y[i];
    }
    return mean_correlation(lgc->mean, lgc->ncoded, nonzero, lgc->n);
}

/* Where in the frame the gate looks for the i-th time. */
static size_t sampled(const struct banyan_lgc *lgc, size_t i)
{
    return i * lgc->ncoded / lgc->nsample;
}

/* The leader's indices that the gate looks at, and this rank's values there. */
static int sample_plain(struct banyan_lgc *lgc)
{
    int leader = bny_lgc_leader(lgc), rc;
    size_t at = 0;

    for (size_t i = 0; lgc->rank == leader && i < lgc->nsample; i++)
        lgc->sample_index[i] = lgc->index[sampled(lgc, i)];
    rc = bny_lgc_broadcast(lgc, BANYAN_LGC_GATE, lgc->sample_index, lgc->nsample, BANYAN_U32,
                           leader);
    for (size_t i = 0; i < lgc->tensors.n && rc == 0; i++) {
        const struct bny_lgc_part *p = &lgc->part[i];

        if (p->role != BNY_LGC_PART_CODED)
            continue;
        for (; at < lgc->nsample && sampled(lgc, at) < p->at + p->k && rc == 0; at++) {
            if (lgc->sample_index[at] < p->count)
                lgc->sample[at] = p->grad[lgc->sample_index[at]];
            else
                rc = bny_lgc_give_up(
                    lgc, bny_fail(BANYAN_EPROTO,
                                  "rank %d: leader %d sent index %u of tensor %s of %zu "
                                  "elements",
                                  lgc->rank, leader, lgc->sample_index[at],
                                  lgc->tensors.at[i].name, p->count));
        }
    }
    return rc;
}

int bny_lgc_measure(struct banyan_lgc *lgc, int framed)
{
    size_t n = lgc->nsample;
    int rc = 0;

    if (!framed)
        rc = sample_plain(lgc);
    for (size_t i = 0; framed && i < n; i++)
        lgc->sample[i] = lgc->x[sampled(lgc, i)];
    if (rc < 0)
        return rc;
    lgc->sample[n] = (float)standardise(lgc->sample, n);
    rc = bny_lgc_allreduce(lgc, BANYAN_LGC_GATE, lgc->sample, n + 1, BANYAN_F32, BANYAN_SUM);
    if (rc == 0)
        measured(lgc, mean_correlation(lgc->sample, n, lgc->sample[n], lgc->n));
    return rc;
}

/* ---- phase 2: values in the frame ---- */
static void mean_of_all(struct banyan_lgc *lgc)
{
    float share = 1 / (float)lgc->n;

    memset(lgc->mean, 0, lgc->mu * sizeof *lgc->mean);
    for (int r = 0; r < lgc->n; r++)
        for (size_t i = 0; i < lgc->mu; i++)
            lgc->mean[i] += lgc->xs[(size_t)r * lgc->mu + i];
    for (size_t i = 0; i < lgc->mu; i++)
        lgc->mean[i] *= share;
}

int bny_lgc_send_values(struct banyan_lgc *lgc)
{
    int rc;

    for (int r = 0; r < lgc->n; r++)
        lgc->counts[r] = lgc->mu;
    rc = bny_lgc_gather(lgc, BANYAN_LGC_VALUES, lgc->x, lgc->xs);
    if (rc == 0 && is_root(lgc)) {
        float correlation = (float)correlation_of_all(lgc);

        mean_of_all(lgc);
        lgc->mean[lgc->mu] = correlation;
    }
    if (rc == 0)
        rc = bny_lgc_broadcast(lgc, BANYAN_LGC_MEANS, lgc->mean, lgc->mu + 1, BANYAN_F32,
                               lgc->cfg.root);
    if (rc == 0)
        measured(lgc, lgc->mean[lgc->mu]);
    return rc;
}

/* ---- phase 3: codes ---- */
int bny_lgc_ship(struct banyan_lgc *lgc)
{
    size_t n = lgc->server ? lgc->net->nencoder : lgc->net->nweights;
    int rc;

    for (size_t i = 0; is_root(lgc) && i < lgc->net->nweights; i++)
        lgc->v.diverged |= !isfinite(lgc->net->weights[i]);
    lgc->v.broken = lgc->v.diverged;
    rc = bny_lgc_broadcast(lgc, BANYAN_LGC_WEIGHTS, &lgc->v.broken, 1, BANYAN_U32,
                           lgc->cfg.root);
    if (rc < 0 || lgc->v.broken)
        return rc;
    rc = bny_lgc_broadcast(lgc, BANYAN_LGC_WEIGHTS, lgc->net->weights, n, BANYAN_F32,
                           lgc->cfg.root);
    if (rc < 0)
        return rc;
    lgc->v.shipped = 1;
    if (lgc->ops->pack(lgc->net) == 0)
        return 0;
    return bny_lgc_give_up(
        lgc, bny_fail(BANYAN_ESYSTEM, "rank %d: LGC: %s", lgc->rank, lgc->net->text));
}

void bny_lgc_innovate(struct banyan_lgc *lgc, const float *x, uint32_t *news)
{
    size_t n = lgc->ninnovation;

    bny_lgc_select(x, lgc->ncoded, n, news, lgc->histogram);
    for (size_t i = 0; i < n; i++)
        memcpy(&news[n + i], &x[news[i]], sizeof *news);
}

/* One rank's innovations as a vector, into out [mu]. */
static int scatter_news(struct banyan_lgc *lgc, const uint32_t *news, int from, float *out)
{
    size_t n = lgc->ninnovation;

    memset(out, 0, lgc->mu * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        if (news[i] >= lgc->ncoded)
            return bny_lgc_give_up(lgc, bny_fail(BANYAN_EPROTO,
                                                 "rank %d: rank %d sent innovation %u of %zu",
                                                 lgc->rank, from, news[i], lgc->ncoded));
        memcpy(&out[news[i]], &news[n + i], sizeof *out);
    }
    return 0;
}

static int send_codes_ring(struct banyan_lgc *lgc)
{
    int rc = lgc_exchange_encode(lgc);

    if (rc == 0)
        rc = bny_lgc_allreduce(lgc, BANYAN_LGC_CODES, lgc->code, lgc->net->ncode, BANYAN_F32,
                               BANYAN_AVG);
    return rc < 0 ? rc : lgc_exchange_decode(lgc, 0, NULL, lgc->mean);
}

/* At the root: one reconstruction a rank, averaged. */
static int reconstruct(struct banyan_lgc *lgc)
{
    float share = 1 / (float)lgc->n;
    int rc = 0;

    memset(lgc->mean, 0, lgc->mu * sizeof *lgc->mean);
    for (int r = 0; r < lgc->n && rc == 0; r++) {
        rc = scatter_news(lgc, lgc->all_news + (size_t)r * 2 * lgc->ninnovation, r,
                          lgc->innovation);
        if (rc == 0)
            rc = lgc_exchange_decode(lgc, r, lgc->innovation, lgc->y);
        for (size_t i = 0; i < lgc->mu; i++)
            lgc->mean[i] += share * lgc->y[i];
    }
    return rc;
}

static int send_codes_server(struct banyan_lgc *lgc)
{
    int leader = bny_lgc_leader(lgc), rc = 0;

    if (lgc->rank == leader)
        rc = lgc_exchange_encode(lgc);
    for (int r = 0; r < lgc->n; r++)
        lgc->counts[r] = r == leader ? lgc->net->ncode : 0;
    if (rc == 0)
        rc = bny_lgc_gather(lgc, BANYAN_LGC_CODES, lgc->code, lgc->y);
    if (rc == 0 && is_root(lgc))
        memcpy(lgc->code, lgc->y, lgc->net->ncode * sizeof *lgc->code);
    bny_lgc_innovate(lgc, lgc->x, lgc->news);
    for (int r = 0; r < lgc->n; r++)
        lgc->counts[r] = 2 * lgc->ninnovation;
    if (rc == 0)
        rc = bny_lgc_gather(lgc, BANYAN_LGC_INNOVATIONS, lgc->news, lgc->all_news);
    if (rc == 0 && is_root(lgc))
        rc = reconstruct(lgc);
    return rc < 0 ? rc
                  : bny_lgc_broadcast(lgc, BANYAN_LGC_MEANS, lgc->mean, lgc->ncoded, BANYAN_F32,
                                      lgc->cfg.root);
}

int bny_lgc_send_codes(struct banyan_lgc *lgc)
{
    return lgc->server ? send_codes_server(lgc) : send_codes_ring(lgc);
}

/* ---- what a step comes to ---- */
/* Residual: what was not sent. Gradient: the mean of what was. */
static void commit_framed(struct banyan_lgc *lgc, const struct bny_lgc_part *p)
{
    const uint32_t *index = lgc->frame + 1 + p->at;

    memcpy(p->residual, p->grad, p->count * sizeof *p->grad);
    memset(p->grad, 0, p->count * sizeof *p->grad);
    for (size_t j = 0; j < p->k; j++) {
        p->residual[index[j]] = 0;
        p->grad[index[j]] = lgc->mean[p->at + j] * lgc->scale;
    }
}

static void commit_plain(struct banyan_lgc *lgc, const struct bny_lgc_part *p, size_t first,
                         size_t n)
{
    float share = 1 / (float)lgc->n;

    memcpy(p->residual, p->grad, p->count * sizeof *p->grad);
    memset(p->grad, 0, p->count * sizeof *p->grad);
    for (size_t j = 0; j < p->k; j++)
        p->residual[lgc->index[p->at + j]] = 0;
    for (int r = 0; r < lgc->n; r++) {
        const uint32_t *index = lgc->payloads + (size_t)r * 2 * n + p->at - first;

        for (size_t j = 0; j < p->k; j++) {
            float v;

            memcpy(&v, &index[n + j], sizeof v);
            p->grad[index[j]] += v * share;
        }
    }
}

void bny_lgc_commit(struct banyan_lgc *lgc, enum bny_lgc_way way)
{
    size_t first = way == BNY_LGC_WAY_PLAIN ? 0 : lgc->ncoded;

    for (size_t i = 0; i < lgc->tensors.n; i++) {
        const struct bny_lgc_part *p = &lgc->part[i];

        if (p->role == BNY_LGC_PART_CODED && way != BNY_LGC_WAY_PLAIN)
            commit_framed(lgc, p);
        else if (p->role != BNY_LGC_PART_DENSE)
            commit_plain(lgc, p, first, lgc->nkept - first);
    }
}

/* ---- training ---- */
static double squares(const float *x, const float *less, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) {
        double d = less ? (double)x[i] - less[i] : x[i];

        sum += d * d;
    }
    return sum;
}

/* How well y, and how well as many of the largest values as a code has numbers, make the mean
 * vector. */
static void rate_reconstruction(struct banyan_lgc *lgc)
{
    double all = squares(lgc->mean, NULL, lgc->mu), kept = 0;
    size_t k = lgc->net->ncode < lgc->ncoded ? lgc->net->ncode : lgc->ncoded;

    bny_lgc_select(lgc->mean, lgc->ncoded, k, lgc->payload, lgc->histogram);
    for (size_t i = 0; i < k; i++)
        kept += (double)lgc->mean[lgc->payload[i]] * lgc->mean[lgc->payload[i]];
    lgc->v.error = all > 0 ? squares(lgc->y, lgc->mean, lgc->mu) / all : 0;
    lgc->v.error_largest = all > 0 ? (all - kept) / all : 0;
}

int bny_lgc_train(struct banyan_lgc *lgc)
{
    uint64_t began = bny_now_ns();
    int chosen = (int)bny_rng_below(&lgc->v.rng, (uint64_t)lgc->n), rc = 0;

    for (int r = 0; lgc->server && r < lgc->n && rc == 0; r++) {
        bny_lgc_innovate(lgc, lgc->xs + (size_t)r * lgc->mu, lgc->news);
        rc = scatter_news(lgc, lgc->news, r, lgc->innovation + (size_t)r * lgc->mu);
    }
    if (rc < 0 || lgc->v.diverged)
        return rc;
    rc = lgc->ops->gradients(lgc->net, lgc->xs, lgc->server ? lgc->innovation : NULL, chosen,
                             lgc->y, &lgc->v.loss);
    if (rc == 0) {
        rate_reconstruction(lgc);
        lgc->v.diverged = !isfinite(lgc->v.loss);
        if (!lgc->v.diverged)
            rc = lgc->ops->update(lgc->net);
    }
    return worked(lgc, BNY_LGC_TRAINING, began, rc);
}
