/* SPDX-License-Identifier: BSD-3-Clause */
/* Local SGD: differences to the last agreed parameters are averaged every period. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sized.h"
#include "training/object.h"
#include "training/saved.h"
#include "training/tensors.h"

#define KIND 0x4447534cu /* "LSGD" */

struct banyan_local_sgd {
    struct bny_object object;
    struct banyan_comm *comm;
    struct banyan_local_sgd_config cfg;
    char *codec;
    struct bny_tensors tensors;
    float *agreed; /* [count] parameters that all ranks had after the last average */
    float *mean;   /* [count] this rank's difference to them, then the mean difference */
    float *sent; /* [count] overlapped: this rank's parameters when its difference was taken */
    struct banyan_codec_state *state; /* NULL without a codec */
    struct banyan_request *average;   /* of mean, in place */
    int under_way;                    /* average was started and not yet used */
    uint64_t steps, since;            /* all; since the last period ended */
    int period;
    double loss, first_loss; /* sum of losses since the last period; mean of the first */
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_local_sgd);

static int local_sgd_settings(struct banyan_local_sgd_config *out,
                              const struct banyan_local_sgd_config *cfg)
{
    int rc;

    *out = (struct banyan_local_sgd_config)BANYAN_LOCAL_SGD_CONFIG_INIT;
    rc = bny_sized_take(out, sizeof *out, cfg, "banyan_local_sgd_create",
                        "BANYAN_LOCAL_SGD_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (out->mode > BANYAN_LOCAL_OVERLAPPED || out->period < 1 || out->warm_up < 0)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_local_sgd_create: mode is %d (0 to 2), period %d (1 or more), "
                        "warm_up %d (0 or more)",
                        (int)out->mode, out->period, out->warm_up);
    return 0;
}

static int make_request(struct banyan_local_sgd *l)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;

    o.codec = l->codec ? l->codec : "none";
    o.codec_state = l->state;
    return banyan_allreduce_init(l->mean, l->mean, l->tensors.count, BANYAN_F32, BANYAN_AVG,
                                 l->comm, &o, &l->average);
}

static int local_sgd_allocate(struct banyan_local_sgd *l)
{
    size_t n = l->tensors.count ? l->tensors.count : 1;

    l->agreed = malloc(n * sizeof(float));
    l->mean = malloc(n * sizeof(float));
    if (l->cfg.mode == BANYAN_LOCAL_OVERLAPPED)
        l->sent = malloc(n * sizeof(float));
    if (l->cfg.codec)
        l->codec = strdup(l->cfg.codec);
    if (!l->agreed || !l->mean || (l->cfg.codec && !l->codec) ||
        (l->cfg.mode == BANYAN_LOCAL_OVERLAPPED && !l->sent))
        return bny_fail(BANYAN_ENOMEM, "no memory to average %zu parameters", n);
    return l->codec ? banyan_codec_state_create(&l->state, l->tensors.count, l->cfg.seed) : 0;
}

/* Do all ranks have these settings? */
static int local_sgd_agree(const struct banyan_local_sgd *l)
{
    int64_t v[8] = { (int64_t)l->cfg.mode, l->cfg.period, l->cfg.warm_up,
                     (int64_t)l->cfg.seed };
    static const char *const names[] = { "mode", "period", "warm_up", "seed" };
    int rc;

    for (int k = 0; k < 4; k++)
        v[4 + k] = ~v[k];
    rc = banyan_allreduce(v, v, 8, BANYAN_I64, BANYAN_MAX, l->comm, &bny_exact);
    for (int k = 0; k < 4 && rc == 0; k++)
        if (v[k] != ~v[4 + k])
            rc = bny_fail(BANYAN_EMISMATCH,
                          "banyan_local_sgd_create: %s differs between ranks; rank %d has %lld",
                          names[k], banyan_comm_rank(l->comm),
                          (long long)(k == 0   ? (int64_t)l->cfg.mode
                                      : k == 1 ? l->cfg.period
                                      : k == 2 ? l->cfg.warm_up
                                               : (int64_t)l->cfg.seed));
    return rc;
}

int banyan_local_sgd_create(struct banyan_local_sgd **out, struct banyan_comm *comm,
                            const struct banyan_tensor *tensors, size_t n,
                            const struct banyan_local_sgd_config *cfg)
{
    struct banyan_local_sgd *l;
    int rc;

    l = bny_object_new(&handles, out, comm, "banyan_local_sgd_create", &rc);
    if (!l)
        return rc;
    l->comm = comm;
    rc = local_sgd_settings(&l->cfg, cfg);
    if (rc == 0)
        rc = bny_tensors_copy(&l->tensors, tensors, n, 1u << BANYAN_F32);
    if (rc == 0)
        rc = local_sgd_allocate(l);
    if (rc == 0)
        rc = make_request(l);
    rc = bny_all_can(comm, rc, "banyan_local_sgd_create");
    if (rc == 0)
        rc = bny_tensors_agree(&l->tensors, comm);
    if (rc == 0)
        rc = local_sgd_agree(l);
    if (rc == 0) {
        bny_tensors_get(&l->tensors, l->agreed);
        rc = banyan_broadcast(l->agreed, l->tensors.count, BANYAN_F32, 0, comm, &bny_exact);
        bny_tensors_put(&l->tensors, l->agreed);
        l->period = l->cfg.period;
    }
    if (rc < 0)
        banyan_local_sgd_free(l);
    else
        *out = l;
    return rc;
}

int banyan_local_sgd_free(struct banyan_local_sgd *l)
{
    int rc = bny_object_may_free(l, KIND, "banyan_local_sgd_free");

    if (rc <= 0)
        return rc;
    if (l->under_way)
        banyan_wait(l->average, -1);
    banyan_request_free(l->average);
    banyan_codec_state_free(l->state);
    bny_tensors_free(&l->tensors);
    free(l->codec);
    free(l->agreed);
    free(l->mean);
    free(l->sent);
    bny_handle_free(&handles, &l->object.handle);
    return 0;
}

/* Starts to average what this rank has learnt since all agreed. */
static int local_sgd_start(struct banyan_local_sgd *l)
{
    int rc;

    bny_tensors_get(&l->tensors, l->mean);
    if (l->sent)
        memcpy(l->sent, l->mean, l->tensors.count * sizeof *l->mean);
    for (size_t i = 0; i < l->tensors.count; i++)
        l->mean[i] -= l->agreed[i];
    rc = banyan_start(l->average);
    l->under_way = rc == 0;
    return rc;
}

/* Waits for the mean difference, and moves what all agree on by it. */
static int local_sgd_end(struct banyan_local_sgd *l)
{
    size_t n = l->tensors.count;
    int rc = banyan_wait(l->average, -1);

    l->under_way = 0;
    if (rc < 0)
        return rc;
    if (bny_tensors_nonfinite(&l->tensors, l->mean) < l->tensors.n) {
        bny_tensors_get(&l->tensors, l->mean);
        return bny_tensors_blame(&l->tensors, l->comm,
                                 bny_tensors_nonfinite(&l->tensors, l->mean), "parameter");
    }
    for (size_t i = 0; i < n; i++)
        l->agreed[i] += l->mean[i];
    return 0;
}

/* Parameters become what was agreed, and what this rank has learnt since it sent. */
static void local_sgd_take(struct banyan_local_sgd *l)
{
    for (size_t i = 0; i < l->tensors.n; i++) {
        const struct bny_tensor *t = &l->tensors.at[i];
        float *x = t->grad;
        const float *agreed = l->agreed + t->before;

        if (!l->sent)
            memcpy(x, agreed, t->bytes);
        else
            for (size_t k = 0; k < t->count; k++)
                x[k] += agreed[k] - l->sent[t->before + k];
    }
}

/* The next period, from the mean loss of all ranks over the last one. */
static int adapt(struct banyan_local_sgd *l)
{
    double loss = l->loss / (double)l->since;
    int rc = banyan_allreduce(&loss, &loss, 1, BANYAN_F64, BANYAN_AVG, l->comm, &bny_exact);

    if (rc < 0)
        return rc;
    if (!isfinite(loss))
        return bny_fail(BANYAN_EINVAL,
                        "local SGD: the mean loss of all ranks is no finite "
                        "number; at rank %d it is %g",
                        banyan_comm_rank(l->comm), l->loss / (double)l->since);
    if (l->first_loss == 0)
        l->first_loss = loss > 0 ? loss : 1;
    l->period = (int)ceil(l->cfg.period * sqrt((loss > 0 ? loss : 0) / l->first_loss));
    l->period = l->period < 1 ? 1 : l->period > l->cfg.period ? l->cfg.period : l->period;
    return 0;
}

int banyan_local_sgd_step(struct banyan_local_sgd *l, double loss)
{
    int rc, taken = 0, warm;

    rc = bny_object_enter(l, KIND, "banyan_local_sgd_step");
    if (rc < 0)
        return rc;
    warm = l->steps++ < (uint64_t)l->cfg.warm_up;
    l->since++;
    l->loss += loss;
    if (!warm && l->since < (uint64_t)l->period) {
        if (l->under_way)
            rc = banyan_progress(l->comm);
        return rc < 0 ? rc : 0;
    }
    if (l->under_way) { /* of the period before */
        rc = local_sgd_end(l);
        if (rc == 0)
            local_sgd_take(l);
        taken = 1;
    }
    if (rc == 0)
        rc = local_sgd_start(l);
    if (rc == 0 && (!l->sent || warm)) {
        rc = local_sgd_end(l);
        if (rc == 0)
            local_sgd_take(l);
        taken = 1;
    }
    if (rc == 0 && l->cfg.mode == BANYAN_LOCAL_ADAPTIVE)
        rc = adapt(l);
    l->since = 0;
    l->loss = 0;
    return rc < 0 ? rc : taken;
}

int banyan_local_sgd_settle(struct banyan_local_sgd *l)
{
    int rc;

    rc = bny_object_enter(l, KIND, "banyan_local_sgd_settle");
    if (rc < 0)
        return rc;
    if (!l->under_way)
        return 0;
    rc = local_sgd_end(l);
    if (rc == 0)
        local_sgd_take(l);
    return rc;
}

int banyan_local_sgd_finish(struct banyan_local_sgd *l)
{
    int rc = bny_object_enter(l, KIND, "banyan_local_sgd_finish");

    if (rc == 0)
        rc = banyan_local_sgd_settle(l);
    if (rc < 0)
        return rc;
    bny_tensors_get(&l->tensors, l->agreed);
    rc = banyan_allreduce(l->agreed, l->agreed, l->tensors.count, BANYAN_F32, BANYAN_AVG,
                          l->comm, &bny_exact);
    if (rc == 0)
        bny_tensors_put(&l->tensors, l->agreed);
    l->since = 0;
    l->loss = 0;
    return rc;
}

int banyan_local_sgd_period(const struct banyan_local_sgd *l)
{
    int rc = bny_object_check(l, KIND, "banyan_local_sgd_period");

    return rc < 0 ? 0 : l->steps < (uint64_t)l->cfg.warm_up ? 1 : l->period;
}

/* Of walk(): the residuals lie in the codec's state, which has a format of its own. */
static size_t residual_bytes(const struct banyan_local_sgd *l)
{
    return l->state ? banyan_codec_state_bytes(l->state) : 0;
}

static void local_sgd_walk(struct bny_saved *s, struct banyan_local_sgd *l, uint64_t *residual)
{
    bny_saved_bytes(s, residual, sizeof *residual);
    bny_saved_bytes(s, &l->steps, sizeof l->steps);
    bny_saved_bytes(s, &l->since, sizeof l->since);
    bny_saved_bytes(s, &l->period, sizeof l->period);
    bny_saved_bytes(s, &l->loss, sizeof l->loss);
    bny_saved_bytes(s, &l->first_loss, sizeof l->first_loss);
    bny_saved_bytes(s, l->agreed, l->tensors.count * sizeof *l->agreed);
}

size_t banyan_local_sgd_bytes(const struct banyan_local_sgd *l)
{
    struct bny_saved s;
    uint64_t residual;

    if (bny_object_check(l, KIND, "banyan_local_sgd_bytes") < 0)
        return 0;
    residual = residual_bytes(l);
    bny_saved_count(&s, KIND);
    bny_saved_bytes(&s, NULL, sizeof l->tensors.hash);
    local_sgd_walk(&s, (struct banyan_local_sgd *)(uintptr_t)l, &residual);
    return s.len + (size_t)residual;
}

/* May it be saved, or loaded? */
static int is_settled(const struct banyan_local_sgd *l, const char *what)
{
    int rc = bny_object_check(l, KIND, what);

    if (rc == 0 && l->under_way)
        rc = bny_fail(BANYAN_EBUSY,
                      "%s: an average is under way; call banyan_local_sgd_settle on all ranks "
                      "first",
                      what);
    return rc;
}

int banyan_local_sgd_save(const struct banyan_local_sgd *l, void *buf, size_t cap)
{
    uint64_t residual, hash;
    struct bny_saved s;
    int rc = is_settled(l, "banyan_local_sgd_save");

    if (rc < 0)
        return rc;
    residual = residual_bytes(l);
    hash = l->tensors.hash;
    rc = bny_saved_write(&s, KIND, buf, cap, banyan_local_sgd_bytes(l));
    if (rc < 0)
        return rc;
    bny_saved_bytes(&s, &hash, sizeof hash);
    local_sgd_walk(&s, (struct banyan_local_sgd *)(uintptr_t)l, &residual);
    if (l->state)
        rc = banyan_codec_state_save(l->state, s.at + s.len, (size_t)residual);
    s.len += (size_t)residual;
    return rc < 0 ? rc : bny_saved_end(&s, NULL);
}

int banyan_local_sgd_load(struct banyan_local_sgd *l, const void *buf, size_t bytes)
{
    uint64_t hash, residual;
    struct bny_saved s;
    size_t fixed;
    int rc = is_settled(l, "banyan_local_sgd_load");

    if (rc == 0)
        rc = bny_saved_read(&s, KIND, buf, bytes, "banyan_local_sgd_load");
    if (rc < 0)
        return rc;
    fixed = banyan_local_sgd_bytes(l) - residual_bytes(l);
    bny_saved_bytes(&s, &hash, sizeof hash);
    bny_saved_bytes(&s, &residual, sizeof residual);
    if (s.short_of || hash != l->tensors.hash || bytes < fixed || residual != bytes - fixed ||
        !residual != !l->state)
        return bny_fail(BANYAN_EINVAL, "banyan_local_sgd_load: the state is of other tensors, "
                                       "or with another codec");
    if (l->state)
        rc = banyan_codec_state_load(l->state, (const char *)buf + fixed, (size_t)residual);
    if (rc < 0)
        return rc;
    s.len -= sizeof residual;
    local_sgd_walk(&s, l, &residual);
    s.len += (size_t)residual;
    return bny_saved_end(&s, NULL);
}
