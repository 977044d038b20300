/* SPDX-License-Identifier: BSD-3-Clause */
/* methods.h: sketched updates, against a plain reference over all ranks' gradients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/rng.h"
#include "tests/mp/case.h"
#include "methods/sketch_table.h"

enum { TENSORS = 3, N = 37 + 1 + 300, CELLS_MOST = 9 * 64 };
static const int64_t shape_a[] = { 37 }, shape_c[] = { 20, 15 };

struct model {
    float x[N];
    struct banyan_tensor tensors[TENSORS];
};

static void model_init(struct model *m)
{
    memset(m, 0, sizeof *m);
    m->tensors[0] = (struct banyan_tensor){ "a", BANYAN_F32, 1, shape_a, m->x };
    m->tensors[1] = (struct banyan_tensor){ "b", BANYAN_F32, 0, NULL, m->x + 37 };
    m->tensors[2] = (struct banyan_tensor){ "c", BANYAN_F32, 2, shape_c, m->x + 38 };
}

/* A rank's gradient: whole numbers, so that all sums of a few steps are exact in f32. */
static void gradient(float *x, uint64_t seed, int rank, int step)
{
    uint64_t state = seed * 131 + (uint64_t)(step * 64 + rank);

    bny_rng_next(&state);
    for (int i = 0; i < N; i++)
        x[i] = (float)bny_rng_below(&state, 17) - 8 + (i % 40 == 3 ? 20.f : 0);
}

/* Of each element and row its cell and sign, from the tables of unit vectors. */
struct reference {
    int cell[N][9], sign[N][9];
    double sum[CELLS_MOST], momentum[CELLS_MOST], waits[CELLS_MOST], estimate[N];
    double second[N], largest[N];
    int updates[N];
};

static void learn_cells(struct reference *ref, const struct banyan_sketch_config *cfg)
{
    const struct bny_sketch_shape s = { cfg->rows, cfg->cols, cfg->seed };
    int cells = cfg->rows * (int)cfg->cols;
    float table[CELLS_MOST], one = 1;

    for (int i = 0; i < N; i++) {
        memset(table, 0, sizeof table);
        bny_sketch_add(&s, table, &one, (size_t)i, 1);
        for (int c = 0; c < cells; c++)
            if (table[c] != 0) {
                ref->cell[i][c / (int)cfg->cols] = c;
                ref->sign[i][c / (int)cfg->cols] = table[c] > 0 ? 1 : -1;
            }
    }
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* The next of the k largest: of equal ones the first. */
static int largest_left(const struct reference *ref, const char *taken)
{
    int best = -1;

    for (int i = 0; i < N; i++)
        if (!taken[i] && (best < 0 || fabs(ref->estimate[i]) > fabs(ref->estimate[best])))
            best = i;
    return best;
}

static double adam(struct reference *ref, const struct banyan_sketch_config *cfg, int i,
                   double x)
{
    double moment;

    ref->updates[i]++;
    ref->second[i] = cfg->beta2 * ref->second[i] + (1 - cfg->beta2) * x * x;
    moment = ref->second[i] / (1 - pow(cfg->beta2, ref->updates[i]));
    ref->largest[i] = fmax(ref->largest[i], moment);
    return x / (sqrt(ref->largest[i]) + cfg->epsilon);
}

static void reference_step(struct test *t, struct reference *ref,
                           const struct banyan_sketch_config *cfg, int step, double *out)
{
    int cells = cfg->rows * (int)cfg->cols;
    char taken[N] = { 0 };

    memset(ref->sum, 0, sizeof ref->sum);
    memset(out, 0, N * sizeof *out);
    for (int p = 0; p < t->n; p++) {
        float g[N];

        gradient(g, t->seed, p, step);
        for (int i = 0; i < N; i++)
            for (int r = 0; r < cfg->rows; r++)
                ref->sum[ref->cell[i][r]] += ref->sign[i][r] * (double)g[i] / t->n;
    }
    for (int c = 0; c < cells; c++) {
        ref->momentum[c] = cfg->momentum * ref->momentum[c] +
                           (cfg->mode ? 1 - cfg->momentum : 1) * ref->sum[c];
        ref->waits[c] += ref->momentum[c];
    }
    for (int i = 0; i < N; i++) {
        double said[9];

        for (int r = 0; r < cfg->rows; r++)
            said[r] = ref->sign[i][r] * ref->waits[ref->cell[i][r]];
        qsort(said, (size_t)cfg->rows, sizeof *said, ascending);
        ref->estimate[i] = said[cfg->rows / 2];
    }
    for (size_t k = 0; k < cfg->k; k++) {
        int i = largest_left(ref, taken);

        taken[i] = 1;
        out[i] = cfg->mode ? adam(ref, cfg, i, ref->estimate[i]) : ref->estimate[i];
        for (int r = 0; r < cfg->rows; r++)
            ref->waits[ref->cell[i][r]] = ref->momentum[ref->cell[i][r]] = 0;
    }
}

static int sketch_reference(struct test *t)
{
    struct reference *ref = case_malloc(sizeof *ref);

    for (int mode = 0; mode < 2; mode++)
        for (int rows = 1; rows <= 9; rows += 4)
            for (size_t cols = 16; cols <= 64; cols *= 2)
                for (size_t k = 1; k < 40; k += 12) {
                    struct banyan_sketch_stats stats = { .size = sizeof stats };
                    struct banyan_sketch_config cfg;
                    struct banyan_sketch *s;
                    double want[N];
                    struct model m;

                    memset(ref, 0, sizeof *ref);
                    model_init(&m);
                    cfg = (struct banyan_sketch_config)BANYAN_SKETCH_CONFIG_INIT;
                    cfg.mode = (enum banyan_sketch_mode)mode;
                    cfg.rows = rows;
                    cfg.cols = cols;
                    cfg.k = k;
                    cfg.momentum = 0.5;
                    cfg.beta2 = 0.75;
                    cfg.seed = t->seed + k;
                    learn_cells(ref, &cfg);
                    CHECK_OK(t, banyan_sketch_create(&s, t->comm, m.tensors, TENSORS, &cfg));
                    for (int step = 0; step < 6; step++) {
                        gradient(m.x, t->seed, t->rank, step);
                        reference_step(t, ref, &cfg, step, want);
                        CHECK_OK(t, banyan_sketch_step(s));
                        for (int i = 0; i < N; i++)
                            CHECK(t, fabs((double)m.x[i] - want[i]) <= (mode ? 1e-5 : 0),
                                  "mode %d, %d x %zu, k %zu, step %d, element %d: %g, not %g",
                                  mode, rows, cols, k, step, i, (double)m.x[i], want[i]);
                    }
                    CHECK_OK(t, banyan_sketch_stats(s, &stats));
                    CHECK(t,
                          stats.steps == 6 && stats.cells == (size_t)rows * cols &&
                              stats.k == k && stats.recovered > 0,
                          "%llu cells", (unsigned long long)stats.cells);
                    banyan_sketch_free(s);
                }
    free(ref);
    return 0;
}

/* With one row that is wide and all elements taken, an update is the mean gradient, but for
 * blocks that collide; the same bits on all ranks, of any number. */
static int sketch_agrees(struct test *t)
{
    struct banyan_sketch_config cfg;
    struct banyan_sketch *s;
    float mean[N];
    struct model m;
    int off = 0;

    model_init(&m);
    cfg = (struct banyan_sketch_config)BANYAN_SKETCH_CONFIG_INIT;
    cfg.cols = 1 << 14;
    cfg.momentum = 0;
    cfg.k = 1000;
    cfg.seed = t->seed;
    CHECK_OK(t, banyan_sketch_create(&s, t->comm, m.tensors, TENSORS, &cfg));
    for (int step = 0; step < 5; step++) {
        gradient(m.x, t->seed, t->rank, step);
        CHECK_OK(t,
                 banyan_allreduce(m.x, mean, N, BANYAN_F32, BANYAN_AVG, t->comm, &case_exact));
        CHECK_OK(t, banyan_sketch_step(s));
        case_check_agree(t, t->comm, case_hash(m.x, sizeof m.x), "updates");
        for (int i = 0; i < N; i++)
            off += fabsf(m.x[i] - mean[i]) > 1e-5f;
        CHECK_OK(t, banyan_sketch_scale(s, 0)); /* what collisions left */
    }
    CHECK(t, off <= 5 * 16, "%d elements differ from the mean", off);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_sketch_scale(s, NAN));
    banyan_sketch_free(s);
    return 0;
}

static void make(struct test *t, struct banyan_sketch **s, struct model *m, int mode)
{
    struct banyan_sketch_config cfg;

    model_init(m);
    cfg = (struct banyan_sketch_config)BANYAN_SKETCH_CONFIG_INIT;
    cfg.mode = (enum banyan_sketch_mode)mode;
    cfg.cols = 50;
    cfg.k = 20;
    CHECK_OK(t, banyan_sketch_create(s, t->comm, m->tensors, TENSORS, &cfg));
}

/* Saved in the middle, loaded into a new object: the same bits from there on. */
static int sketch_state(struct test *t)
{
    for (int mode = 0; mode < 2; mode++) {
        struct banyan_sketch *s[3];
        struct model m[3];
        size_t bytes;
        char *buf;

        for (int k = 0; k < 3; k++)
            make(t, &s[k], &m[k], k == 2 ? !mode : mode);
        for (int step = 0; step < 7; step++) {
            gradient(m[0].x, t->seed, t->rank, step);
            CHECK_OK(t, banyan_sketch_step(s[0]));
        }
        bytes = banyan_sketch_bytes(s[0]);
        buf = case_malloc(bytes);
        CHECK_RC(t, -BANYAN_EINVAL, banyan_sketch_save(s[0], buf, bytes - 1));
        CHECK_OK(t, banyan_sketch_save(s[0], buf, bytes));
        buf[bytes / 2] ^= 1;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_sketch_load(s[1], buf, bytes));
        buf[bytes / 2] ^= 1;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_sketch_load(s[1], buf, bytes - 4));
        CHECK_RC(t, -BANYAN_EINVAL, banyan_sketch_load(s[2], buf, bytes)); /* the mode */
        CHECK_OK(t, banyan_sketch_load(s[1], buf, bytes));
        for (int step = 7; step < 15; step++)
            for (int k = 0; k < 2; k++) {
                gradient(m[k].x, t->seed, t->rank, step);
                CHECK_OK(t, banyan_sketch_step(s[k]));
                CHECK(t, k == 0 || !memcmp(m[0].x, m[1].x, sizeof m[0].x), "mode %d, step %d",
                      mode, step);
            }
        for (int k = 0; k < 3; k++)
            banyan_sketch_free(s[k]);
        free(buf);
    }
    return 0;
}

static int sketch_quiet(struct test *t)
{
    for (int mode = 0; mode < 2; mode++) {
        unsigned long fewest = ~0ul;
        struct banyan_sketch *s;
        struct model m;

        make(t, &s, &m, mode);
        for (int round = 0; round < 8; round++) {
            unsigned long before = case_allocations();

            for (int step = 0; step < 10; step++) {
                gradient(m.x, t->seed, t->rank, step);
                CHECK_OK(t, banyan_sketch_step(s));
            }
            if (case_allocations() - before < fewest)
                fewest = case_allocations() - before;
        }
        CHECK(t, fewest == 0, "mode %d: %lu allocations in 10 steps", mode, fewest);
        banyan_sketch_free(s);
    }
    return 0;
}

/* What cannot be, or differs at the last rank; then gradients that are not finite, and ranks at
 * other steps. */
static int sketch_disagrees(struct test *t)
{
    static const char *const want[] = { "mode",       "rows",          "cols",     "k differs",
                                        "momentum",   "beta2",         "seed",     "rows 4",
                                        "cols is 15", "momentum is 1", "epsilon 0" };
    int last = t->rank == t->n - 1;
    struct banyan_sketch *s;
    struct model m;
    char rank[32];

    snprintf(rank, sizeof rank, "rank %d", t->n - 1);
    for (int what = 0; what < 11; what++) {
        struct banyan_sketch_config cfg;

        model_init(&m);
        cfg = (struct banyan_sketch_config)BANYAN_SKETCH_CONFIG_INIT;
        cfg.mode = last && what == 0 ? BANYAN_SKETCH_ADAM : BANYAN_SKETCH_SGD;
        cfg.rows = what == 7 ? 4 : last && what == 1 ? 7 : 5;
        cfg.cols = what == 8 ? 15 : last && what == 2 ? 33 : 32;
        cfg.k = last && what == 3 ? 5 : 4;
        cfg.momentum = what == 9 ? 1 : last && what == 4 ? 0.5 : 0.9;
        cfg.beta2 = last && what == 5 ? 0.5 : 0.9;
        cfg.seed += last && what == 6;
        cfg.epsilon = what == 10 ? 0 : 1e-8;
        CHECK_RC(t, what < 7 ? -BANYAN_EMISMATCH : -BANYAN_EINVAL,
                 banyan_sketch_create(&s, t->comm, m.tensors, TENSORS, &cfg));
        CHECK(t, !s, "an object was made");
        CHECK_HAS(t, banyan_last_error(), want[what]);
        if (what < 7)
            CHECK_HAS(t, banyan_last_error(), rank);
        case_check_works(t, t->comm);
    }
    return 0;
}

static int sketch_wrong(struct test *t)
{
    struct banyan_sketch *s[3];
    struct model m[3];
    char want[40], *buf;

    for (int k = 0; k < 3; k++)
        make(t, &s[k], &m[k], 0);
    snprintf(want, sizeof want, "tensor c at rank %d", t->n - 1);
    for (int step = 0; step < 4; step++) {
        if (step == 2) {
            gradient(m[0].x, t->seed, t->rank, step);
            m[0].x[100] = t->rank == t->n - 1 ? INFINITY : 0;
            CHECK_RC(t, -BANYAN_EINVAL, banyan_sketch_step(s[0]));
            CHECK_HAS(t, banyan_last_error(), want);
        }
        for (int k = 0; k < 2; k++) {
            gradient(m[k].x, t->seed, t->rank, step);
            CHECK_OK(t, banyan_sketch_step(s[k]));
        }
        CHECK(t, !memcmp(m[0].x, m[1].x, sizeof m[0].x), "step %d: something has changed",
              step);
    }
    buf = case_malloc(banyan_sketch_bytes(s[0]));
    CHECK_OK(t, banyan_sketch_save(s[0], buf, banyan_sketch_bytes(s[0])));
    if (t->rank == 0)
        CHECK_OK(t, banyan_sketch_load(s[2], buf, banyan_sketch_bytes(s[0])));
    gradient(m[2].x, t->seed, t->rank, 0);
    CHECK_RC(t, -BANYAN_EMISMATCH, banyan_sketch_step(s[2]));
    CHECK_HAS(t, banyan_last_error(), "other numbers of steps");
    case_check_works(t, t->comm);
    for (int k = 0; k < 3; k++)
        banyan_sketch_free(s[k]);
    free(buf);
    return 0;
}

const struct mp_case cases_sketch[] = {
    { "sketch_reference", sketch_reference, 0 },
    { "sketch_agrees", sketch_agrees, 0 },
    { "sketch_state", sketch_state, 0 },
    { "sketch_quiet", sketch_quiet, CASE_NO_THREADS },
    { "sketch_disagrees", sketch_disagrees, 0 },
    { "sketch_wrong", sketch_wrong, 0 },
    { NULL, NULL, 0 },
};
