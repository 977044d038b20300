/* SPDX-License-Identifier: BSD-3-Clause */
/* training.h: rows between ranks, against what each rank knows of all others. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/training.h"
#include "base/rng.h"
#include "tests/mp/case.h"
#include "training/rows_code.h"

enum { WIDTH = 20, ROWS = 30, RANKS = 8, MOST = ROWS * RANKS };

/* Which rows go where, of all ranks: known to all. */
struct lists {
    size_t counts[RANKS][RANKS]; /* from, to */
    uint32_t rows[RANKS][MOST];
    size_t recv[RANKS]; /* of this rank */
    uint32_t all[MOST]; /* 0, 1, ...: rows to send back */
};

static size_t sum(const size_t *counts, int n)
{
    size_t s = 0;

    for (int p = 0; p < n; p++)
        s += counts[p];
    return s;
}

/* Some pairs have nothing for each other; ranks have rows for themselves too. */
static void lists_make(struct test *t, struct lists *l)
{
    uint64_t state = t->seed + (uint64_t)t->n;

    memset(l, 0, sizeof *l);
    for (int a = 0; a < t->n; a++) {
        size_t at = 0;

        for (int b = 0; b < t->n; b++) {
            l->counts[a][b] = bny_rng_below(&state, 3) ? bny_rng_below(&state, ROWS) : 0;
            for (size_t k = 0; k < l->counts[a][b]; k++)
                l->rows[a][at++] = (uint32_t)bny_rng_below(&state, ROWS);
        }
    }
    for (int p = 0; p < t->n; p++)
        l->recv[p] = l->counts[p][t->rank];
    for (uint32_t k = 0; k < MOST; k++)
        l->all[k] = k;
}

static struct banyan_rows_plan plan_of(struct test *t, struct lists *l, int back)
{
    struct banyan_rows_plan plan = BANYAN_ROWS_PLAN_INIT;

    plan.name = back ? "g" : "h";
    plan.width = WIDTH;
    plan.rows = back ? sum(l->recv, t->n) : ROWS;
    plan.send_counts = back ? l->recv : l->counts[t->rank];
    plan.send_rows = back ? l->all : l->rows[t->rank];
    plan.recv_counts = back ? l->counts[t->rank] : l->recv;
    return plan;
}

/* The matrix of a rank at a step: a third of its rows change in each, some a little. */
static void matrix(uint64_t seed, int rank, int step, float *x)
{
    for (int row = 0; row < ROWS; row++) {
        int when = step - (step + row) % 3;
        uint64_t state = seed * 31 + (uint64_t)(rank * 1000 + row);
        uint64_t small = state + (uint64_t)when * 7919;

        for (int i = 0; i < WIDTH; i++)
            x[row * WIDTH + i] =
                (float)(bny_rng_unit(&state) - 0.5 + 0.02 * row * (bny_rng_unit(&small) - 0.5));
    }
}

/* What a pair's receiver has by CACHED, by the words of training.h. */
struct known {
    float x[WIDTH];
    int sent;
};

static int resend(struct known *k, const float *x, double threshold, int bits)
{
    unsigned char wire[4 * WIDTH + 4];
    double most = 0, off = 0;

    for (int i = 0; i < WIDTH; i++) {
        most = fmax(most, fabs((double)x[i]));
        off = fmax(off, fabs((double)(x[i] - k->x[i])));
    }
    if (k->sent && off <= threshold * most)
        return 0;
    bny_row_encode(wire, x, WIDTH, bits);
    bny_row_decode(k->x, wire, WIDTH, bits);
    k->sent = 1;
    return 1;
}

/* The k-th row that came from p. */
static const float *row_of(struct lists *l, const float *x, int p, int to, size_t k)
{
    return x + (size_t)l->rows[p][sum(l->counts[p], to) + k] * WIDTH;
}

static int rows_arrive(struct test *t)
{
    struct lists *l = case_malloc(sizeof *l);
    struct known(*known)[MOST] = case_malloc(2 * sizeof *known); /* that come, that go */
    float *x = case_malloc(RANKS * ROWS * WIDTH * sizeof *x), *own;
    float *out = case_malloc(MOST * WIDTH * sizeof *out);

    lists_make(t, l);
    own = x + t->rank * ROWS * WIDTH;
    for (int mode = 0; mode < 2; mode++)
        for (int bits = 8; bits <= 32; bits += 24) {
            struct banyan_rows_stats s = { .size = sizeof s };
            struct banyan_rows_plan plan = plan_of(t, l, 0);
            struct banyan_rows_config cfg;
            struct banyan_rows *r;
            uint64_t sent = 0, bytes = 0;

            memset(known, 0, 2 * sizeof *known);
            cfg = (struct banyan_rows_config)BANYAN_ROWS_CONFIG_INIT;
            cfg.mode = (enum banyan_rows_mode)mode;
            cfg.bits = bits;
            cfg.threshold = 0.1;
            CHECK_OK(t, banyan_rows_create(&r, t->comm, &plan, &cfg));
            for (int step = 0; step < 10; step++) {
                for (int p = 0; p < t->n; p++)
                    matrix(t->seed, p, step, x + p * ROWS * WIDTH);
                CHECK_OK(t, banyan_rows_exchange(r, own, out));
                for (int p = 0, at = 0; p < t->n; p++)
                    for (size_t k = 0; k < l->recv[p]; k++, at++) {
                        resend(&known[0][at], row_of(l, x + p * ROWS * WIDTH, p, t->rank, k),
                               mode ? 0.1 : -1, bits);
                        CHECK(t, !memcmp(out + at * WIDTH, known[0][at].x, sizeof known[0]->x),
                              "mode %d, %d bits, step %d: row %zu from rank %d", mode, bits,
                              step, k, p);
                    }
                for (int p = 0, at = 0; p < t->n; p++) {
                    uint64_t here = 0;

                    for (size_t k = 0; k < l->counts[t->rank][p]; k++, at++)
                        here += (uint64_t)resend(&known[1][at], row_of(l, own, t->rank, p, k),
                                                 mode ? 0.1 : -1, bits);
                    sent += here;
                    if (p != t->rank)
                        bytes += 16 + here * (bits == 8 ? WIDTH + 4 : 4 * WIDTH) +
                                 (mode && here ? (l->counts[t->rank][p] + 7) / 8 : 0);
                }
            }
            CHECK_OK(t, banyan_rows_stats(r, &s));
            CHECK(t, s.sent == sent && s.bytes == bytes && s.steps == 10,
                  "%llu rows and %llu bytes, not %llu and %llu", (unsigned long long)s.sent,
                  (unsigned long long)s.bytes, (unsigned long long)sent,
                  (unsigned long long)bytes);
            CHECK(t, s.rows == 10 * sum(l->counts[t->rank], t->n) && s.sent <= s.rows,
                  "%llu rows of %llu", (unsigned long long)s.sent, (unsigned long long)s.rows);
            banyan_rows_free(r);
        }
    free(l);
    free(known);
    free(x);
    free(out);
    return 0;
}

/* Elements that travel are exact, the others 0; as many as the ratio says; and what comes back
 * are the same. */
static int rows_vary(struct test *t)
{
    struct lists *l = case_malloc(sizeof *l);
    float *x = case_malloc(RANKS * ROWS * WIDTH * sizeof *x);
    float *out = case_malloc(MOST * WIDTH * sizeof *out);
    float *home = case_malloc(MOST * WIDTH * sizeof *home);
    struct banyan_rows_plan there, back;
    struct banyan_rows *r[2];
    struct banyan_rows_config cfg;
    int differ = 0;

    lists_make(t, l);
    there = plan_of(t, l, 0);
    back = plan_of(t, l, 1);
    cfg = (struct banyan_rows_config)BANYAN_ROWS_CONFIG_INIT;
    cfg.mode = BANYAN_ROWS_VARIABLE;
    cfg.first = 10;
    cfg.slope = 2;
    cfg.steps = 12;
    cfg.seed = t->seed;
    CHECK_OK(t, banyan_rows_create(&r[0], t->comm, &there, &cfg));
    CHECK_OK(t, banyan_rows_create(&r[1], t->comm, &back, &cfg));
    for (int step = 0; step < 12; step++) {
        double ratio = fmax(1, 10 - 2 * 9.0 * step / 12);
        int part = (int)ceil(WIDTH / ratio);
        float *own = x + t->rank * ROWS * WIDTH;

        for (int p = 0; p < t->n; p++)
            matrix(t->seed, p, step, x + p * ROWS * WIDTH);
        CHECK_OK(t, banyan_rows_exchange(r[0], own, out));
        CHECK_OK(t, banyan_rows_exchange(r[1], out, home));
        for (int p = 0, at = 0; p < t->n; p++)
            for (size_t k = 0; k < l->recv[p]; k++, at++) {
                const float *want = row_of(l, x + p * ROWS * WIDTH, p, t->rank, k);
                int came = 0;

                for (int i = 0; i < WIDTH; i++) {
                    float got = out[at * WIDTH + i];

                    CHECK(t, got == 0 || got == want[i], "step %d: %g, not %g", step,
                          (double)got, (double)want[i]);
                    came += got != 0;
                    differ += at > 0 && (got != 0) != (out[(at - 1) * WIDTH + i] != 0);
                }
                CHECK(t, came == part, "step %d: %d elements, not %d", step, came, part);
            }
        for (int p = 0, at = 0; p < t->n; p++)
            for (size_t k = 0; k < l->counts[t->rank][p]; k++, at++)
                for (int i = 0, came = 0; i < WIDTH; i++) {
                    float got = home[at * WIDTH + i];

                    came += got != 0;
                    CHECK(t, got == 0 || got == row_of(l, own, t->rank, p, k)[i],
                          "step %d: other elements came back", step);
                    CHECK(t, i < WIDTH - 1 || came == part, "step %d: %d came back, not %d",
                          step, came, part);
                }
    }
    CHECK(t, differ || sum(l->recv, t->n) < 2, "all rows choose the same elements");
    banyan_rows_free(r[0]);
    banyan_rows_free(r[1]);
    free(l);
    free(x);
    free(out);
    free(home);
    return 0;
}

static int rows_adapt(struct test *t)
{
    static const double losses[] = { 3, 2, 1, 2, 1, 1 };
    static const double factors[] = { 1, 2, 2, 0.5, 2, 0.5 };
    struct banyan_rows_stats s = { .size = sizeof s };
    struct lists *l = case_malloc(sizeof *l);
    struct banyan_rows_config cfg;
    struct banyan_rows_plan plan;
    struct banyan_rows *r;
    double want = 0.1;

    lists_make(t, l);
    plan = plan_of(t, l, 0);
    cfg = (struct banyan_rows_config)BANYAN_ROWS_CONFIG_INIT;
    cfg.mode = BANYAN_ROWS_CACHED;
    cfg.threshold = 0.1;
    cfg.least = 0.09;
    cfg.most = 0.3;
    cfg.grow = 2;
    cfg.shrink = 0.5;
    CHECK_OK(t, banyan_rows_create(&r, t->comm, &plan, &cfg));
    for (int k = 0; k < 6; k++) {
        CHECK_OK(t, banyan_rows_adapt(r, losses[k]));
        want = fmin(fmax(want * factors[k], 0.09), 0.3);
        CHECK_OK(t, banyan_rows_stats(r, &s));
        CHECK(t, fabs(s.threshold - want) < 1e-12, "%d: %g, not %g", k, s.threshold, want);
    }
    CHECK_RC(t, -BANYAN_EINVAL, banyan_rows_adapt(r, NAN));
    banyan_rows_free(r);
    free(l);
    return 0;
}

/* Saved in the middle, loaded into a new object: the same bits and bytes from there on. */
static int rows_state(struct test *t)
{
    struct lists *l = case_malloc(sizeof *l);
    float *x = case_malloc(ROWS * WIDTH * sizeof *x);
    float *out = case_malloc(2 * MOST * WIDTH * sizeof *out);

    lists_make(t, l);
    for (int kind = 0; kind < 6; kind++) {
        struct banyan_rows_stats s[2] = { { .size = sizeof s[0] }, { .size = sizeof s[0] } };
        struct banyan_rows_plan plan = plan_of(t, l, 0);
        size_t bytes, n = sum(l->recv, t->n) * WIDTH * sizeof *out;
        struct banyan_rows_config cfg = BANYAN_ROWS_CONFIG_INIT;
        struct banyan_rows *r[2];
        char *buf;

        cfg.mode = (enum banyan_rows_mode)(kind / 2);
        cfg.bits = kind % 2 ? 8 : 32;
        cfg.steps = 20;
        cfg.slope = 1;
        for (int k = 0; k < 2; k++)
            CHECK_OK(t, banyan_rows_create(&r[k], t->comm, &plan, &cfg));
        for (int step = 0; step < 14; step++) {
            matrix(t->seed, t->rank, step, x);
            CHECK_OK(t, banyan_rows_exchange(r[0], x, out));
            CHECK_OK(t, banyan_rows_adapt(r[0], 10.0 - step));
            if (step > 5) {
                CHECK_OK(t, banyan_rows_exchange(r[1], x, out + MOST * WIDTH));
                CHECK_OK(t, banyan_rows_adapt(r[1], 10.0 - step));
                CHECK(t, !memcmp(out, out + MOST * WIDTH, n), "kind %d, step %d", kind, step);
            }
            if (step != 5)
                continue;
            bytes = banyan_rows_bytes(r[0]);
            buf = case_malloc(bytes);
            CHECK_RC(t, -BANYAN_EINVAL, banyan_rows_save(r[0], buf, bytes - 1));
            CHECK_OK(t, banyan_rows_save(r[0], buf, bytes));
            buf[bytes / 2] ^= 8;
            CHECK_RC(t, -BANYAN_EINVAL, banyan_rows_load(r[1], buf, bytes));
            buf[bytes / 2] ^= 8;
            CHECK_RC(t, -BANYAN_EINVAL, banyan_rows_load(r[1], buf, bytes - 1));
            CHECK_OK(t, banyan_rows_load(r[1], buf, bytes));
            free(buf);
        }
        for (int k = 0; k < 2; k++)
            CHECK_OK(t, banyan_rows_stats(r[k], &s[k]));
        CHECK(t, !memcmp(&s[0], &s[1], sizeof s[0]), "kind %d: counters differ", kind);
        banyan_rows_free(r[0]);
        banyan_rows_free(r[1]);
    }
    free(l);
    free(x);
    free(out);
    return 0;
}

/* Where lengths stay, a step allocates nothing. */
static int rows_quiet(struct test *t)
{
    struct lists *l = case_malloc(sizeof *l);
    float *x = case_malloc(ROWS * WIDTH * sizeof *x);
    float *out = case_malloc(MOST * WIDTH * sizeof *out);

    lists_make(t, l);
    matrix(t->seed, t->rank, 0, x);
    for (int mode = 0; mode < 3; mode++) {
        struct banyan_rows_plan plan = plan_of(t, l, 0);
        unsigned long fewest = ~0ul;
        struct banyan_rows_config cfg = BANYAN_ROWS_CONFIG_INIT;
        struct banyan_rows *r;

        cfg.mode = (enum banyan_rows_mode)mode;
        cfg.slope = 0;
        CHECK_OK(t, banyan_rows_create(&r, t->comm, &plan, &cfg));
        for (int round = 0; round < 8; round++) {
            unsigned long before = case_allocations();

            for (int step = 0; step < 10; step++)
                CHECK_OK(t, banyan_rows_exchange(r, x, out));
            if (case_allocations() - before < fewest)
                fewest = case_allocations() - before;
        }
        CHECK(t, fewest == 0, "mode %d: %lu allocations in 10 steps", mode, fewest);
        banyan_rows_free(r);
    }
    free(l);
    free(x);
    free(out);
    return 0;
}

/* What cannot be, or differs at the last rank. */
static int rows_disagree(struct test *t)
{
    static const char *const want[] = { "width",     "mode",      "bits",  "threshold",
                                        "first",     "steps",     "seed",  "sends",
                                        "send_rows", "mode is 7", "slope", "counts" };
    int last = t->rank == t->n - 1;
    struct lists *l = case_malloc(sizeof *l);
    char rank[32];

    snprintf(rank, sizeof rank, "rank %d", t->n - 1);
    for (int what = 0; what < 12; what++) {
        struct banyan_rows_plan plan;
        struct banyan_rows_config cfg;
        struct banyan_rows *r;

        lists_make(t, l);
        l->counts[t->rank][0] += l->counts[t->rank][0] == 0; /* something to send */
        l->recv[0] += t->rank == 0 && l->counts[0][0] != l->recv[0];
        for (int p = 1; p < t->n && t->rank == 0; p++)
            l->recv[p] += l->recv[p] == 0;
        plan = plan_of(t, l, 0);
        cfg = (struct banyan_rows_config)BANYAN_ROWS_CONFIG_INIT;
        plan.width += last && what == 0;
        cfg.mode = last && what == 1 ? BANYAN_ROWS_CACHED : what == 9 ? 7 : BANYAN_ROWS_DENSE;
        cfg.bits = last && what == 2 ? 8 : 32;
        cfg.threshold += last && what == 3 ? 0.01 : 0;
        cfg.first += last && what == 4;
        cfg.steps += last && what == 5;
        cfg.seed += last && what == 6;
        l->recv[0] += last && what == 7;
        if (last && what == 8)
            l->rows[t->rank][0] = ROWS;
        cfg.slope = what == 10 ? NAN : 1;
        plan.recv_counts = what == 11 ? NULL : plan.recv_counts;
        CHECK_RC(t, what < 8 ? -BANYAN_EMISMATCH : -BANYAN_EINVAL,
                 banyan_rows_create(&r, t->comm, &plan, &cfg));
        CHECK(t, !r, "an object was made");
        if (what != 8 || last)
            CHECK_HAS(t, banyan_last_error(), want[what]);
        if (what < 8 || (what == 8 && !last))
            CHECK_HAS(t, banyan_last_error(), rank);
        case_check_works(t, t->comm);
    }
    free(l);
    return 0;
}

/* A value that is not finite: told to all, nothing has changed; so are ranks at other steps. */
static int rows_wrong(struct test *t)
{
    struct lists *l = case_malloc(sizeof *l);
    float *x = case_malloc(ROWS * WIDTH * sizeof *x);
    float *out = case_malloc(MOST * WIDTH * sizeof *out);
    int last = t->rank == t->n - 1;
    char rank[32];

    snprintf(rank, sizeof rank, "h at rank %d", t->n - 1);
    lists_make(t, l);
    for (int mode = 0; mode < 3; mode++) {
        struct banyan_rows_stats s = { .size = sizeof s };
        struct banyan_rows_plan plan = plan_of(t, l, 0);
        struct banyan_rows_config cfg = BANYAN_ROWS_CONFIG_INIT;
        struct banyan_rows *r[2];
        char *buf;

        cfg.mode = (enum banyan_rows_mode)mode;
        for (int k = 0; k < 2; k++)
            CHECK_OK(t, banyan_rows_create(&r[k], t->comm, &plan, &cfg));
        matrix(t->seed, t->rank, 0, x);
        CHECK_OK(t, banyan_rows_exchange(r[0], x, out));
        for (int i = 0; i < ROWS * WIDTH && last; i++)
            x[i] = i % 2 ? NAN : INFINITY;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_rows_exchange(r[0], x, out));
        CHECK_HAS(t, banyan_last_error(), rank);
        CHECK_OK(t, banyan_rows_stats(r[0], &s));
        CHECK(t, s.steps == 1, "%llu steps", (unsigned long long)s.steps);
        matrix(t->seed, t->rank, 1, x);
        CHECK_OK(t, banyan_rows_exchange(r[0], x, out));
        buf = case_malloc(banyan_rows_bytes(r[0]));
        CHECK_OK(t, banyan_rows_save(r[0], buf, banyan_rows_bytes(r[0])));
        if (last)
            CHECK_OK(t, banyan_rows_load(r[1], buf, banyan_rows_bytes(r[0])));
        CHECK_RC(t, -BANYAN_EMISMATCH, banyan_rows_exchange(r[1], x, out));
        CHECK_HAS(t, banyan_last_error(), "has done 2 steps");
        case_check_works(t, t->comm);
        for (int k = 0; k < 2; k++)
            banyan_rows_free(r[k]);
        free(buf);
    }
    free(l);
    free(x);
    free(out);
    return 0;
}

const struct mp_case cases_rows[] = {
    { "rows_arrive", rows_arrive, 0 },
    { "rows_vary", rows_vary, 0 },
    { "rows_adapt", rows_adapt, 0 },
    { "rows_state", rows_state, 0 },
    { "rows_quiet", rows_quiet, CASE_NO_THREADS },
    { "rows_disagree", rows_disagree, 0 },
    { "rows_wrong", rows_wrong, 0 },
    { NULL, NULL, 0 },
};
