/* SPDX-License-Identifier: BSD-3-Clause */
/* methods.h: stale and K-of-n updates, against what each rank knows of all. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/rng.h"
#include "tests/mp/case.h"

enum { TENSORS = 2, N = 21 + 700, RANKS = 8, STEPS = 20 };
static const int64_t shape_a[] = { 21 }, shape_b[] = { 7, 100 };

struct model {
    float x[N];
    struct banyan_tensor tensors[TENSORS];
};

static void model_init(struct model *m)
{
    memset(m, 0, sizeof *m);
    m->tensors[0] = (struct banyan_tensor){ "a", BANYAN_F32, 1, shape_a, m->x };
    m->tensors[1] = (struct banyan_tensor){ "b", BANYAN_F32, 2, shape_b, m->x + 21 };
}

/* Whole numbers: sums are exact, in whatever order. */
static float gradient(uint64_t seed, int rank, int step, int i)
{
    uint64_t state = seed * 77 + (uint64_t)(step * 64 + rank) * 4096 + (uint64_t)i;

    return (float)bny_rng_below(&state, 201) - 100;
}

static void fill(struct test *t, struct model *m, int step)
{
    for (int i = 0; i < N; i++)
        m->x[i] = gradient(t->seed, t->rank, step, i);
}

/* Every sum of all steps, as the words of methods.h have it. */
static void reference(struct test *t, const struct banyan_stale_config *cfg, float (*sum)[N])
{
    int k = cfg->k && cfg->k < t->n ? cfg->k : t->n;

    for (int i = 0; i < N; i++) {
        float waits[RANKS] = { 0 };

        for (int step = 0; step < STEPS; step++) {
            sum[step][i] = 0;
            for (int p = 0; p < t->n; p++) {
                float x = gradient(t->seed, p, step, i);
                int in = 0;

                for (int j = 0; j < k; j++)
                    in |= (step * k + j) % t->n == p;
                x += cfg->late ? waits[p] : 0;
                waits[p] = in ? 0 : x;
                sum[step][i] += in ? x : 0;
            }
            sum[step][i] *= 1 / (float)(cfg->late ? t->n : k);
        }
    }
}

static int stale_reference(struct test *t)
{
    float(*sum)[N] = case_malloc(STEPS * sizeof *sum);

    for (int delay = 0; delay < 5; delay += 1 + delay)
        for (int k = 0; k <= t->n; k++)
            for (int late = 0; late < 2; late++) {
                struct banyan_stale_config cfg;
                struct banyan_stale *s;
                struct model m;

                model_init(&m);
                cfg = (struct banyan_stale_config)BANYAN_STALE_CONFIG_INIT;
                cfg.delay = delay;
                cfg.k = k;
                cfg.late = late;
                cfg.schedule = *t->arg ? t->arg : NULL;
                reference(t, &cfg, sum);
                CHECK_OK(t, banyan_stale_create(&s, t->comm, m.tensors, TENSORS, &cfg));
                for (int step = 0; step < STEPS; step++) {
                    fill(t, &m, step);
                    CHECK_RC(t, step >= delay, banyan_stale_step(s));
                    for (int i = 0; i < N; i++) {
                        float want = step < delay ? 0 : sum[step - delay][i];

                        CHECK(t, m.x[i] == want,
                              "delay %d, %d of %d, late %d: step %d, element %d: %g, not %g",
                              delay, k, t->n, late, step, i, (double)m.x[i], (double)want);
                    }
                }
                banyan_stale_free(s);
            }
    free(sum);
    return 0;
}

/* Saved in the middle, with exchanges that nobody has used yet, loaded into a new object: the
 * same from there on. */
static int stale_state(struct test *t)
{
    for (int kind = 0; kind < 4; kind++) {
        struct banyan_stale_config cfg = BANYAN_STALE_CONFIG_INIT;
        struct banyan_stale *s[3];
        struct model m[3];
        size_t bytes;
        char *buf;

        cfg.delay = kind;
        cfg.late = kind % 2;
        for (int j = 0; j < 3; j++) {
            model_init(&m[j]);
            cfg.k = kind > 1 ? 1 : 0;
            cfg.delay += j == 2;
            CHECK_OK(t, banyan_stale_create(&s[j], t->comm, m[j].tensors, TENSORS, &cfg));
        }
        for (int step = 0; step < 7; step++) {
            fill(t, &m[0], step);
            CHECK(t, banyan_stale_step(s[0]) >= 0, "step %d", step);
        }
        bytes = banyan_stale_bytes(s[0]);
        buf = case_malloc(bytes);
        if (kind)
            CHECK_RC(t, -BANYAN_EBUSY, banyan_stale_save(s[0], buf, bytes));
        CHECK_OK(t, banyan_stale_settle(s[0]));
        CHECK_RC(t, -BANYAN_EINVAL, banyan_stale_save(s[0], buf, bytes - 1));
        CHECK_OK(t, banyan_stale_save(s[0], buf, bytes));
        buf[bytes - 1] ^= 1;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_stale_load(s[1], buf, bytes));
        buf[bytes - 1] ^= 1;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_stale_load(s[1], buf, bytes - 1));
        CHECK_RC(t, -BANYAN_EINVAL, banyan_stale_load(s[2], buf, bytes)); /* the delay */
        CHECK_OK(t, banyan_stale_load(s[1], buf, bytes));
        for (int step = 7; step < 16; step++)
            for (int j = 0; j < 2; j++) {
                fill(t, &m[j], step);
                CHECK_RC(t, 1, banyan_stale_step(s[j]));
                CHECK(t, j == 0 || !memcmp(m[0].x, m[1].x, sizeof m[0].x), "delay %d, step %d",
                      kind, step);
            }
        for (int j = 0; j < 3; j++)
            banyan_stale_free(s[j]); /* with what is under way */
        free(buf);
    }
    return 0;
}

static int stale_quiet(struct test *t)
{
    for (int kind = 0; kind < 3; kind++) {
        unsigned long fewest = ~0ul;
        struct banyan_stale_config cfg;
        struct banyan_stale *s;
        struct model m;

        model_init(&m);
        cfg = (struct banyan_stale_config)BANYAN_STALE_CONFIG_INIT;
        cfg.delay = kind;
        cfg.k = kind == 2 ? t->n - 1 : 0;
        CHECK_OK(t, banyan_stale_create(&s, t->comm, m.tensors, TENSORS, &cfg));
        for (int round = 0; round < 8; round++) {
            unsigned long before = case_allocations();

            for (int step = 0; step < 12; step++) {
                fill(t, &m, step);
                CHECK(t, banyan_stale_step(s) >= 0, "step %d", step);
            }
            if (case_allocations() - before < fewest)
                fewest = case_allocations() - before;
        }
        CHECK(t, fewest == 0, "kind %d: %lu allocations in 12 steps", kind, fewest);
        CHECK_OK(t, banyan_stale_settle(s));
        banyan_stale_free(s);
    }
    return 0;
}

static int stale_wrong(struct test *t)
{
    static const char *const want[] = { "delay",       "k differs", "late", "schedule",
                                        "delay is 65", "k -1",      "" };
    int last = t->rank == t->n - 1;
    struct banyan_stale_config cfg;
    struct banyan_stale *s;
    struct model m;
    char rank[40];

    for (int what = 0; what < 7; what++) {
        snprintf(rank, sizeof rank, "rank %d", t->n - 1);
        model_init(&m);
        cfg = (struct banyan_stale_config)BANYAN_STALE_CONFIG_INIT;
        cfg.delay = what == 4 ? 65 : 1 + (last && what == 0);
        cfg.k = what == 5 ? -1 : last && what == 1 ? 1 : 2;
        cfg.late = last && what == 2;
        cfg.schedule = what == 6 ? "nothing" : last && what == 3 ? "ring" : NULL;
        CHECK_RC(t, what < 4 ? -BANYAN_EMISMATCH : -BANYAN_EINVAL,
                 banyan_stale_create(&s, t->comm, m.tensors, TENSORS, &cfg));
        CHECK(t, !s, "an object was made");
        CHECK_HAS(t, banyan_last_error(), want[what]);
        if (what < 4)
            CHECK_HAS(t, banyan_last_error(), rank);
        case_check_works(t, t->comm);
    }
    snprintf(rank, sizeof rank, "tensor b at rank %d", t->n - 1);
    model_init(&m);
    cfg = (struct banyan_stale_config)BANYAN_STALE_CONFIG_INIT;
    cfg.delay = 2;
    CHECK_OK(t, banyan_stale_create(&s, t->comm, m.tensors, TENSORS, &cfg));
    for (int step = 0; step < 9; step++) {
        fill(t, &m, step);
        if (last && step == 3)
            m.x[50] = NAN;
        CHECK_RC(t, step < 2 ? 0 : step == 5 ? -BANYAN_EINVAL : 1, banyan_stale_step(s));
        if (step == 5)
            CHECK_HAS(t, banyan_last_error(), rank);
    }
    CHECK_OK(t, banyan_stale_settle(s));
    case_check_works(t, t->comm);
    banyan_stale_free(s);
    return 0;
}

const struct mp_case cases_stale[] = {
    { "stale_reference", stale_reference, 0 },
    { "stale_state", stale_state, 0 },
    { "stale_quiet", stale_quiet, CASE_NO_THREADS },
    { "stale_wrong", stale_wrong, 0 },
    { NULL, NULL, 0 },
};
