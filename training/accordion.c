/* SPDX-License-Identifier: BSD-3-Clause */
/* Accordion: rank 0 sums its gradients, compares norms from one interval to the next, and tells
 * all ranks the levels. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sized.h"
#include "training/object.h"
#include "training/saved.h"
#include "training/settings.h"
#include "training/tensors.h"

#define KIND 0x52434341u /* "ACCR" */

struct banyan_accordion {
    struct bny_object object;
    struct banyan_comm *comm;
    struct banyan_accordion_config cfg;
    char *little, *much;
    struct bny_tensors tensors;
    float *sum;     /* [tensors.count] at rank 0, else NULL */
    double *before; /* [n] norms at the last decision; the whole model's behind them */
    unsigned char *much_of, *was; /* [n] levels, and whether the batch is large; those before */
    struct claim *claims;         /* [ranks] */
    uint64_t steps, in_interval;
    double rate; /* at the last decision or drop; 0: none yet */
};

/* The values that each rank assumes when it decides. */
struct claim {
    uint64_t steps, settings;
    double rate;
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_accordion);

static int accordion_settings(struct banyan_accordion_config *out,
                              const struct banyan_accordion_config *cfg)
{
    int rc;

    *out = (struct banyan_accordion_config)BANYAN_ACCORDION_CONFIG_INIT;
    rc = bny_sized_take(out, sizeof *out, cfg, "banyan_accordion_create",
                        "BANYAN_ACCORDION_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (!(out->eta > 0) || out->interval < 1 || out->window < 0 ||
        out->window > out->interval || !(out->rate_drop > 0 && out->rate_drop <= 1) ||
        out->accumulate < 1)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_accordion_create: eta is %g (above 0), interval %d (1 or "
                        "more), window %d (0 to interval), rate_drop %g (above 0, at most 1), "
                        "accumulate %d (1 or more)",
                        out->eta, out->interval, out->window, out->rate_drop, out->accumulate);
    if (!out->little || !out->much)
        return bny_fail(BANYAN_EINVAL, "banyan_accordion_create: little and much must name "
                                       "codecs, or \"none\"");
    out->window = out->window ? out->window : out->interval;
    return 0;
}

static int is_controlled(const struct banyan_accordion *a, size_t tensor)
{
    return a->tensors.at[tensor].count >= a->cfg.min_count;
}

int banyan_accordion_create(struct banyan_accordion **out, struct banyan_comm *comm,
                            const struct banyan_tensor *tensors, size_t n,
                            const struct banyan_accordion_config *cfg)
{
    struct banyan_accordion *a;
    int rc;

    a = bny_object_new(&handles, out, comm, "banyan_accordion_create", &rc);
    if (!a)
        return rc;
    a->comm = comm;
    rc = accordion_settings(&a->cfg, cfg);
    if (rc == 0)
        rc = bny_tensors_copy(&a->tensors, tensors, n, 1u << BANYAN_F32);
    if (rc == 0) {
        a->little = strdup(a->cfg.little);
        a->much = strdup(a->cfg.much);
        a->before = calloc(n + 1, sizeof *a->before);
        a->much_of = calloc(n + 1, 1);
        a->was = calloc(n + 1, 1);
        a->claims = calloc((size_t)banyan_comm_count(comm), sizeof *a->claims);
        if (banyan_comm_rank(comm) == 0)
            a->sum = calloc(a->tensors.count ? a->tensors.count : 1, sizeof *a->sum);
        if (!a->little || !a->much || !a->before || !a->much_of || !a->was || !a->claims ||
            (banyan_comm_rank(comm) == 0 && !a->sum))
            rc = bny_fail(BANYAN_ENOMEM, "no memory for Accordion's sums of %zu elements",
                          a->tensors.count);
    }
    rc = bny_all_can(comm, rc, "banyan_accordion_create");
    if (rc == 0)
        rc = bny_tensors_agree(&a->tensors, comm);
    if (rc < 0)
        banyan_accordion_free(a);
    else
        *out = a;
    return rc;
}

int banyan_accordion_free(struct banyan_accordion *a)
{
    int rc = bny_object_may_free(a, KIND, "banyan_accordion_free");

    if (rc <= 0)
        return rc;
    bny_tensors_free(&a->tensors);
    free(a->little);
    free(a->much);
    free(a->sum);
    free(a->before);
    free(a->much_of);
    free(a->was);
    free(a->claims);
    bny_handle_free(&handles, &a->object.handle);
    return 0;
}

static int check_tensor(const struct banyan_accordion *a, size_t tensor, const char *what)
{
    int rc = bny_object_check(a, KIND, what);

    if (rc == 0 && tensor >= a->tensors.n)
        rc = bny_fail(BANYAN_EINVAL, "%s: there is no tensor %zu", what, tensor);
    return rc;
}

int banyan_accordion_observe(struct banyan_accordion *a, size_t tensor)
{
    const struct bny_tensor *t;
    const float *grad;
    float *sum;
    int rc = check_tensor(a, tensor, "banyan_accordion_observe");

    if (rc < 0)
        return rc;
    if (!a->sum || a->in_interval + (uint64_t)a->cfg.window < (uint64_t)a->cfg.interval)
        return 0;
    t = &a->tensors.at[tensor];
    grad = t->grad;
    sum = a->sum + t->before;
    for (size_t i = 0; i < t->count; i++)
        sum[i] += grad[i];
    return 0;
}

static double square_of(const float *x, size_t n)
{
    double lane[8] = { 0 }, sum = 0;
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            lane[k] += (double)x[i + (size_t)k] * (double)x[i + (size_t)k];
    for (; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (int k = 0; k < 8; k++)
        sum += lane[k];
    return sum;
}

/* The paper's rule; it takes a norm of 0 before for a change. */
static int is_critical(const struct banyan_accordion *a, double before, double now)
{
    return before == 0 || fabs(before - now) >= a->cfg.eta * before;
}

/* Rank 0: levels from the sums, which begin anew. Returns the first tensor whose norm is not
 * finite, or n. */
static size_t decide(struct banyan_accordion *a)
{
    size_t n = a->tensors.n, bad = n;
    const float *sum = a->sum;
    double all = 0;

    for (size_t i = 0; i < n; sum += a->tensors.at[i++].count) {
        double square = square_of(sum, a->tensors.at[i].count);

        if (!isfinite(square) && bad == n)
            bad = i;
        a->much_of[i] = is_controlled(a, i) && !is_critical(a, a->before[i], sqrt(square));
        a->before[i] = sqrt(square);
        all += square;
    }
    if (!is_critical(a, a->before[n], sqrt(all)))
        a->much_of[n] = 1;
    a->before[n] = sqrt(all);
    memset(a->sum, 0, a->tensors.count * sizeof *a->sum);
    return bad;
}

static uint64_t settings_of(const struct banyan_accordion *a)
{
    const struct bny_setting s[] = {
        { "eta", bny_setting_of_double(a->cfg.eta) },
        { "interval", (uint64_t)a->cfg.interval },
        { "window", (uint64_t)a->cfg.window },
        { "rate_drop", bny_setting_of_double(a->cfg.rate_drop) },
        { "accumulate", (uint64_t)a->cfg.accumulate },
        { "min_count", a->cfg.min_count },
        { "little", bny_setting_of_text(a->little) },
        { "much", bny_setting_of_text(a->much) },
    };

    return bny_settings_hash(s, sizeof s / sizeof s[0], a->tensors.hash);
}

/* Do all ranks decide the same thing now? */
static int accordion_agree(struct banyan_accordion *a, double rate)
{
    struct claim mine = { a->steps, settings_of(a), rate };
    int rc = banyan_allgather(&mine, a->claims, sizeof mine, BANYAN_U8, a->comm, &bny_exact);

    for (int r = 1; rc == 0 && r < banyan_comm_count(a->comm); r++) {
        const struct claim *first = &a->claims[0], *c = &a->claims[r];

        if (c->steps != first->steps)
            rc = bny_fail(BANYAN_EMISMATCH,
                          "Accordion: rank %d has ended %llu steps, rank 0 "
                          "%llu",
                          r, (unsigned long long)c->steps, (unsigned long long)first->steps);
        else if (c->settings != first->settings)
            rc = bny_fail(BANYAN_EMISMATCH, "Accordion: rank %d has other settings than rank 0",
                          r);
        else if (memcmp(&c->rate, &first->rate, sizeof c->rate) != 0)
            rc = bny_fail(BANYAN_EMISMATCH,
                          "Accordion: the learning rate is %.9g at rank %d, %.9g at rank 0",
                          c->rate, r, first->rate);
    }
    return rc;
}

/* Rank 0's levels for all; in place of the batch's, 2 and up: a tensor is not finite. */
static int spread(struct banyan_accordion *a, size_t bad)
{
    uint64_t first = bad;
    int rc = banyan_broadcast(&first, 1, BANYAN_U64, 0, a->comm, &bny_exact);

    if (rc == 0 && first < a->tensors.n)
        return bny_fail(BANYAN_EINVAL,
                        "Accordion: the gradient of tensor %s at rank 0 has a value that is no "
                        "finite number",
                        a->tensors.at[first].name);
    if (rc == 0)
        rc = banyan_broadcast(a->much_of, a->tensors.n + 1, BANYAN_U8, 0, a->comm, &bny_exact);
    return rc;
}

static int changes(const unsigned char *before, const unsigned char *now, size_t n)
{
    int count = 0;

    for (size_t i = 0; i < n; i++)
        count += before[i] != now[i];
    return count;
}

/* All to little compression. Returns how many had much. */
static int relax(struct banyan_accordion *a)
{
    int count = 0;

    for (size_t i = 0; i < a->tensors.n; i++) {
        count += a->much_of[i];
        a->much_of[i] = 0;
    }
    return a->cfg.accumulate > 1 ? 0 : count;
}

static int end_interval(struct banyan_accordion *a, double rate)
{
    size_t n = a->tensors.n, bad = n;
    int rc = accordion_agree(a, rate), count, large = a->much_of[n];

    if (rc < 0)
        return rc;
    memcpy(a->was, a->much_of, n + 1);
    if (a->sum)
        bad = decide(a);
    rc = spread(a, bad);
    count = a->cfg.accumulate > 1 ? large != a->much_of[n] : changes(a->was, a->much_of, n);
    a->in_interval = 0;
    a->rate = rate;
    return rc < 0 ? rc : count;
}

int banyan_accordion_step(struct banyan_accordion *a, double rate)
{
    int rc = bny_object_enter(a, KIND, "banyan_accordion_step");

    if (rc < 0)
        return rc;
    if (!(rate > 0) || !isfinite(rate))
        return bny_fail(BANYAN_EINVAL, "banyan_accordion_step: the learning rate must be a "
                                       "positive number");
    a->steps++;
    a->in_interval++;
    if (a->rate == 0)
        a->rate = rate;
    if (rate < a->cfg.rate_drop * a->rate) {
        int count = relax(a);

        a->rate = rate;
        if (a->in_interval < (uint64_t)a->cfg.interval)
            return count;
        rc = end_interval(a, rate);
        relax(a);
        return rc < 0 ? rc : count;
    }
    return a->in_interval < (uint64_t)a->cfg.interval ? 0 : end_interval(a, rate);
}

int banyan_accordion_level(const struct banyan_accordion *a, size_t tensor)
{
    int rc = check_tensor(a, tensor, "banyan_accordion_level");

    return rc < 0 ? rc : a->much_of[tensor];
}

const char *banyan_accordion_codec(const struct banyan_accordion *a, size_t tensor)
{
    if (check_tensor(a, tensor, "banyan_accordion_codec") < 0)
        return NULL;
    return a->much_of[tensor] ? a->much : a->little;
}

int banyan_accordion_accumulate(const struct banyan_accordion *a)
{
    int rc = bny_object_check(a, KIND, "banyan_accordion_accumulate");

    return rc == 0 && a->much_of[a->tensors.n] ? a->cfg.accumulate : 1;
}

static void accordion_walk(struct bny_saved *s, struct banyan_accordion *a)
{
    uint64_t hash = a->tensors.hash, sums = a->sum ? a->tensors.count : 0;

    bny_saved_bytes(s, &hash, sizeof hash);
    bny_saved_bytes(s, &sums, sizeof sums);
    if (hash != a->tensors.hash || sums != (a->sum ? a->tensors.count : 0)) {
        s->short_of = 1;
        return;
    }
    bny_saved_bytes(s, &a->steps, sizeof a->steps);
    bny_saved_bytes(s, &a->in_interval, sizeof a->in_interval);
    bny_saved_bytes(s, &a->rate, sizeof a->rate);
    bny_saved_bytes(s, a->before, (a->tensors.n + 1) * sizeof *a->before);
    bny_saved_bytes(s, a->much_of, a->tensors.n + 1);
    bny_saved_bytes(s, a->sum, (size_t)sums * sizeof *a->sum);
}

size_t banyan_accordion_bytes(const struct banyan_accordion *a)
{
    struct bny_saved s;

    if (bny_object_check(a, KIND, "banyan_accordion_bytes") < 0)
        return 0;
    bny_saved_count(&s, KIND);
    accordion_walk(&s, (struct banyan_accordion *)(uintptr_t)a); /* counting changes nothing */
    return s.len;
}

int banyan_accordion_save(const struct banyan_accordion *a, void *buf, size_t cap)
{
    struct bny_saved s;
    int rc = bny_object_check(a, KIND, "banyan_accordion_save");

    if (rc == 0)
        rc = bny_saved_write(&s, KIND, buf, cap, banyan_accordion_bytes(a));
    if (rc < 0)
        return rc;
    accordion_walk(&s, (struct banyan_accordion *)(uintptr_t)a);
    return bny_saved_end(&s, NULL);
}

int banyan_accordion_load(struct banyan_accordion *a, const void *buf, size_t bytes)
{
    struct bny_saved s;
    uint64_t head[2];
    int rc = bny_object_check(a, KIND, "banyan_accordion_load");

    if (rc == 0)
        rc = bny_saved_read(&s, KIND, buf, bytes, "banyan_accordion_load");
    if (rc < 0)
        return rc;
    bny_saved_bytes(&s, head, sizeof head);
    if (bytes != banyan_accordion_bytes(a) || head[0] != a->tensors.hash)
        return bny_fail(BANYAN_EINVAL, "banyan_accordion_load: the state is of other tensors, "
                                       "or of rank 0 and another rank");
    s.len -= sizeof head;
    accordion_walk(&s, a);
    return bny_saved_end(&s, NULL);
}
