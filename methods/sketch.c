/* SPDX-License-Identifier: BSD-3-Clause */
/* Sketched updates: tables are summed by an allreduce; momentum, and what waits, are tables
 * that every rank keeps; the largest elements are taken out. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sized.h"
#include "methods/lgc/lgc.h"
#include "methods/sketch_table.h"
#include "training/object.h"
#include "training/saved.h"
#include "training/settings.h"
#include "training/tensors.h"

#define KIND 0x54484b53u /* "SKHT" */

enum {
    SETTINGS = 8,
    STEPS = 64, /* steps are compared modulo this, by sums of f32, which are exact below 2^24 */
};

struct banyan_sketch {
    struct bny_object object;
    struct banyan_comm *comm;
    struct banyan_sketch_config cfg;
    struct bny_tensors tensors;
    struct bny_sketch_shape shape;
    size_t cells;
    float *sum;      /* [cells + 2] of this step; behind it the step, and its square */
    float *momentum; /* [cells] */
    float *waits;    /* [cells] momentum that was not taken yet */
    float *estimate; /* [count] */
    float *second, *largest, *unseen; /* [count] ADAM: second moment, its largest so far, and
                                       * beta2 to the number of an element's updates */
    uint32_t *taken;                  /* [k] elements of the update, ascending */
    uint32_t *histogram;
    uint64_t steps;
    double recovered;
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_sketch);

static int sketch_settings(struct banyan_sketch *s, const struct banyan_sketch_config *cfg)
{
    struct banyan_sketch_config *c = &s->cfg;
    int rc;

    *c = (struct banyan_sketch_config)BANYAN_SKETCH_CONFIG_INIT;
    rc = bny_sized_take(c, sizeof *c, cfg, "banyan_sketch_create", "BANYAN_SKETCH_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (c->mode > BANYAN_SKETCH_ADAM || c->rows < 1 || c->rows > BNY_SKETCH_ROWS ||
        c->rows % 2 == 0)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_sketch_create: mode is %d (0 or 1), rows %d (odd, 1 to %d)",
                        (int)c->mode, c->rows, BNY_SKETCH_ROWS);
    if ((c->cols && c->cols < BNY_SKETCH_BLOCK) || c->cols > (size_t)1 << 40)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_sketch_create: cols is %zu (%d or more; 0: by the tensors)",
                        c->cols, BNY_SKETCH_BLOCK);
    if (!(c->momentum >= 0 && c->momentum < 1) || !(c->beta2 >= 0 && c->beta2 < 1) ||
        !(c->epsilon > 0 && c->epsilon < 1))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_sketch_create: momentum is %g and beta2 %g (0 or more, below "
                        "1), epsilon %g (above 0)",
                        c->momentum, c->beta2, c->epsilon);
    return 0;
}

static void sketch_list(const struct banyan_sketch *s, struct bny_setting *out)
{
    const struct bny_setting all[SETTINGS] = {
        { "mode", (uint64_t)s->cfg.mode },
        { "rows", (uint64_t)s->cfg.rows },
        { "cols", s->cfg.cols },
        { "k", s->cfg.k },
        { "momentum", bny_setting_of_double(s->cfg.momentum) },
        { "beta2", bny_setting_of_double(s->cfg.beta2) },
        { "epsilon", bny_setting_of_double(s->cfg.epsilon) },
        { "seed", s->cfg.seed },
    };

    memcpy(out, all, sizeof all);
}

static float *floats(size_t n, float value)
{
    float *x = malloc((n + 1) * sizeof *x);

    for (size_t i = 0; x && i <= n; i++)
        x[i] = value;
    return x;
}

static int sketch_allocate(struct banyan_sketch *s)
{
    size_t n = s->tensors.count;
    int adam = s->cfg.mode == BANYAN_SKETCH_ADAM;

    if (n > UINT32_MAX)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_sketch_create: %zu elements; 2^32 - 1 are the most", n);
    if (!s->cfg.cols)
        s->cfg.cols = n / 50 > BNY_SKETCH_BLOCK ? n / 50 : BNY_SKETCH_BLOCK;
    if (!s->cfg.k)
        s->cfg.k = n / 100 ? n / 100 : 1;
    s->cfg.k = s->cfg.k < n ? s->cfg.k : n;
    s->shape = (struct bny_sketch_shape){ s->cfg.rows, s->cfg.cols, s->cfg.seed };
    s->cells = (size_t)s->cfg.rows * s->cfg.cols;
    s->sum = floats(s->cells + 2, 0);
    s->momentum = floats(s->cells, 0);
    s->waits = floats(s->cells, 0);
    s->estimate = floats(n, 0);
    s->second = adam ? floats(n, 0) : NULL;
    s->largest = adam ? floats(n, 0) : NULL;
    s->unseen = adam ? floats(n, 1) : NULL;
    s->taken = malloc((s->cfg.k + 1) * sizeof *s->taken);
    s->histogram = malloc(2048 * sizeof *s->histogram); /* 11 bits at a time */
    if (!s->sum || !s->momentum || !s->waits || !s->estimate || !s->taken || !s->histogram ||
        (adam && (!s->second || !s->largest || !s->unseen)))
        return bny_fail(BANYAN_ENOMEM, "no memory for sketches of %zu cells and %zu elements",
                        s->cells, n);
    return 0;
}

int banyan_sketch_create(struct banyan_sketch **out, struct banyan_comm *comm,
                         const struct banyan_tensor *tensors, size_t n,
                         const struct banyan_sketch_config *cfg)
{
    struct bny_setting set[SETTINGS];
    struct banyan_sketch *s;
    int rc;

    s = bny_object_new(&handles, out, comm, "banyan_sketch_create", &rc);
    if (!s)
        return rc;
    s->comm = comm;
    rc = sketch_settings(s, cfg);
    if (rc == 0)
        rc = bny_tensors_copy(&s->tensors, tensors, n, 1u << BANYAN_F32);
    if (rc == 0)
        rc = sketch_allocate(s);
    rc = bny_all_can(comm, rc, "banyan_sketch_create");
    if (rc == 0)
        rc = bny_tensors_agree(&s->tensors, comm);
    sketch_list(s, set);
    if (rc == 0)
        rc = bny_settings_agree(comm, set, SETTINGS, "banyan_sketch_create");
    if (rc < 0)
        banyan_sketch_free(s);
    else
        *out = s;
    return rc;
}

int banyan_sketch_free(struct banyan_sketch *s)
{
    int rc = bny_object_may_free(s, KIND, "banyan_sketch_free");

    if (rc <= 0)
        return rc;
    bny_tensors_free(&s->tensors);
    free(s->sum);
    free(s->momentum);
    free(s->waits);
    free(s->estimate);
    free(s->second);
    free(s->largest);
    free(s->unseen);
    free(s->taken);
    free(s->histogram);
    bny_handle_free(&handles, &s->object.handle);
    return 0;
}

/* ---- a step ---- */

/* The sum of all ranks' tables, in sum; sound and of one step, or the error of all ranks. */
static int sketch_exchange(struct banyan_sketch *s)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int n = banyan_comm_count(s->comm), rc, good = 1;
    size_t bad;

    memset(s->sum, 0, s->cells * sizeof *s->sum);
    for (size_t i = 0; i < s->tensors.n; i++)
        bny_sketch_add(&s->shape, s->sum, s->tensors.at[i].grad, s->tensors.at[i].before,
                       s->tensors.at[i].count);
    s->sum[s->cells] = (float)(s->steps % STEPS);
    s->sum[s->cells + 1] = (float)(s->steps % STEPS * (s->steps % STEPS));
    o.codec = "none";
    rc = banyan_allreduce(s->sum, s->sum, s->cells + 2, BANYAN_F32, BANYAN_SUM, s->comm, &o);
    if (rc < 0)
        return rc;
    /* n times the sum of squares is the square of the sum only of equal numbers (Cauchy) */
    if (n * (double)s->sum[s->cells + 1] != pow((double)s->sum[s->cells], 2))
        return bny_fail(BANYAN_EMISMATCH,
                        "banyan_sketch_step: ranks have done other numbers of steps; rank %d "
                        "%" PRIu64 "; load states of the same step on all ranks",
                        banyan_comm_rank(s->comm), s->steps);
    for (size_t i = 0; i < s->cells; i++)
        good &= isfinite(s->sum[i]) != 0;
    if (good)
        return 0;
    bny_tensors_get(&s->tensors, s->estimate);
    bad = bny_tensors_nonfinite(&s->tensors, s->estimate);
    return bny_tensors_blame(&s->tensors, s->comm, bad, "gradient");
}

static void gather_momentum(struct banyan_sketch *s)
{
    float rho = (float)s->cfg.momentum;
    float part =
        (s->cfg.mode == BANYAN_SKETCH_ADAM ? 1 - rho : 1) / (float)banyan_comm_count(s->comm);

    for (size_t i = 0; i < s->cells; i++) {
        s->momentum[i] = rho * s->momentum[i] + part * s->sum[i];
        s->waits[i] += s->momentum[i];
    }
}

/* Divides an element of the update by the root of its second moment (AMSGrad). */
static float normalised(struct banyan_sketch *s, size_t e, float x)
{
    float b = (float)s->cfg.beta2, moment;

    s->unseen[e] *= b;
    s->second[e] = b * s->second[e] + (1 - b) * x * x;
    moment = s->second[e] / (1 - s->unseen[e]);
    s->largest[e] = moment > s->largest[e] ? moment : s->largest[e];
    return x / (sqrtf(s->largest[e]) + (float)s->cfg.epsilon);
}

/* The largest elements leave the tables and become the gradients. */
static void sketch_take(struct banyan_sketch *s)
{
    double all = 0, taken = 0;
    size_t i = 0;

    for (size_t c = 0; c < s->cells; c++)
        all += (double)s->waits[c] * (double)s->waits[c] / s->cfg.rows;
    bny_sketch_estimate(&s->shape, s->waits, s->estimate, s->tensors.count);
    bny_lgc_select(s->estimate, s->tensors.count, s->cfg.k, s->taken, s->histogram);
    for (size_t t = 0; t < s->tensors.n; t++)
        memset(s->tensors.at[t].grad, 0, s->tensors.at[t].bytes);
    for (size_t k = 0; k < s->cfg.k; k++) {
        size_t e = s->taken[k];
        float x = s->estimate[e];

        while (e >= s->tensors.at[i].before + s->tensors.at[i].count)
            i++;
        bny_sketch_clear(&s->shape, s->waits, e);
        bny_sketch_clear(&s->shape, s->momentum, e);
        taken += (double)x * (double)x;
        if (s->cfg.mode == BANYAN_SKETCH_ADAM)
            x = normalised(s, e, x);
        ((float *)s->tensors.at[i].grad)[e - s->tensors.at[i].before] = x;
    }
    s->recovered = all > 0 ? taken / all : 0;
}

int banyan_sketch_step(struct banyan_sketch *s)
{
    int rc;

    rc = bny_object_enter(s, KIND, "banyan_sketch_step");
    if (rc < 0)
        return rc;
    rc = sketch_exchange(s);
    if (rc < 0)
        return rc;
    gather_momentum(s);
    sketch_take(s);
    s->steps++;
    return 0;
}

int banyan_sketch_scale(struct banyan_sketch *s, double factor)
{
    int rc = bny_object_check(s, KIND, "banyan_sketch_scale");

    if (rc < 0)
        return rc;
    if (!isfinite(factor))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_sketch_scale: the factor must be a finite number");
    for (size_t i = 0; i < s->cells; i++)
        s->waits[i] *= (float)factor;
    return 0;
}

int banyan_sketch_stats(const struct banyan_sketch *s, struct banyan_sketch_stats *out)
{
    struct banyan_sketch_stats now;
    int rc = bny_object_check(s, KIND, "banyan_sketch_stats");

    if (rc == 0)
        rc = bny_sized_check(out, "banyan_sketch_stats");
    if (rc < 0)
        return rc;
    now = (struct banyan_sketch_stats){ .size = sizeof now,
                                        .steps = s->steps,
                                        .cells = s->cells,
                                        .k = s->cfg.k,
                                        .recovered = s->recovered };
    bny_sized_give(out, &now, sizeof now);
    return 0;
}

/* ---- state ---- */

static uint64_t sketch_hash(const struct banyan_sketch *s)
{
    struct bny_setting set[SETTINGS];

    sketch_list(s, set);
    return bny_settings_hash(set, SETTINGS, s->tensors.hash);
}

static void sketch_walk(struct bny_saved *to, struct banyan_sketch *s)
{
    size_t n = s->tensors.count * sizeof(float);

    bny_saved_bytes(to, &s->steps, sizeof s->steps);
    bny_saved_bytes(to, &s->recovered, sizeof s->recovered);
    bny_saved_bytes(to, s->momentum, s->cells * sizeof *s->momentum);
    bny_saved_bytes(to, s->waits, s->cells * sizeof *s->waits);
    if (s->cfg.mode != BANYAN_SKETCH_ADAM)
        return;
    bny_saved_bytes(to, s->second, n);
    bny_saved_bytes(to, s->largest, n);
    bny_saved_bytes(to, s->unseen, n);
}

size_t banyan_sketch_bytes(const struct banyan_sketch *s)
{
    struct bny_saved to;

    if (bny_object_check(s, KIND, "banyan_sketch_bytes") < 0)
        return 0;
    bny_saved_count(&to, KIND);
    bny_saved_bytes(&to, NULL, sizeof(uint64_t));
    sketch_walk(&to, (struct banyan_sketch *)(uintptr_t)s); /* counting changes nothing */
    return to.len;
}

int banyan_sketch_save(const struct banyan_sketch *s, void *buf, size_t cap)
{
    struct bny_saved to;
    uint64_t of;
    int rc = bny_object_check(s, KIND, "banyan_sketch_save");

    if (rc == 0)
        rc = bny_saved_write(&to, KIND, buf, cap, banyan_sketch_bytes(s));
    if (rc < 0)
        return rc;
    of = sketch_hash(s);
    bny_saved_bytes(&to, &of, sizeof of);
    sketch_walk(&to, (struct banyan_sketch *)(uintptr_t)s);
    return bny_saved_end(&to, NULL);
}

int banyan_sketch_load(struct banyan_sketch *s, const void *buf, size_t bytes)
{
    struct bny_saved from;
    uint64_t of;
    int rc = bny_object_check(s, KIND, "banyan_sketch_load");

    if (rc == 0)
        rc = bny_saved_read(&from, KIND, buf, bytes, "banyan_sketch_load");
    if (rc < 0)
        return rc;
    bny_saved_bytes(&from, &of, sizeof of);
    if (bytes != banyan_sketch_bytes(s) || of != sketch_hash(s))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_sketch_load: the state is of other tensors or settings");
    sketch_walk(&from, s);
    return bny_saved_end(&from, NULL);
}
