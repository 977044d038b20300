/* SPDX-License-Identifier: BSD-3-Clause */
/* Revised primal simplex with a dense explicit inverse (simplex.h). Programs of cuts are highly
 * degenerate (nearly every right-hand side is 0), so each right-hand side gets a small fixed
 * pseudo-random addition; the resulting basis is also optimal for the given one. */
#include "topo/simplex.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define EPS         1e-9
#define PERTURB     1e-5
#define MOST_PIVOTS 40000

static int simplex_no_memory(int rows)
{
    return bny_fail(BANYAN_ENOMEM, "no memory for a linear program of %d rows", rows);
}

int bny_simplex_init(struct bny_simplex *s, int rows, const double *rhs)
{
    size_t n = (size_t)rows;
    uint64_t seed = 88172645463325252u;

    memset(s, 0, sizeof *s);
    s->rows = rows;
    s->rhs = malloc(n * sizeof *s->rhs);
    s->exact = malloc(n * sizeof *s->exact);
    s->inverse = calloc(n * n, sizeof *s->inverse);
    s->x = malloc(n * sizeof *s->x);
    s->price = calloc(n, sizeof *s->price);
    s->basic = malloc(n * sizeof *s->basic);
    s->work = malloc(n * sizeof *s->work);
    if (!s->rhs || !s->exact || !s->inverse || !s->x || !s->price || !s->basic || !s->work) {
        bny_simplex_free(s);
        return simplex_no_memory(rows);
    }
    for (int i = 0; i < rows; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        s->exact[i] = rhs[i];
        s->rhs[i] = s->x[i] = rhs[i] + PERTURB * (1 + (double)(seed >> 40) / (1 << 24));
        s->basic[i] = -1 - i;
        s->inverse[(size_t)i * n + (size_t)i] = 1;
    }
    return 0;
}

void bny_simplex_free(struct bny_simplex *s)
{
    for (int c = 0; c < s->ncols; c++) {
        free(s->cols[c].row);
        free(s->cols[c].a);
    }
    free(s->cols);
    free(s->rhs);
    free(s->exact);
    free(s->inverse);
    free(s->x);
    free(s->price);
    free(s->basic);
    free(s->in_basis);
    free(s->work);
    memset(s, 0, sizeof *s);
}

int bny_simplex_column(struct bny_simplex *s, int n, const int *row, const double *a,
                       double cost)
{
    struct bny_column *c;

    if (s->ncols == s->cols_cap) {
        int cap = s->cols_cap ? 2 * s->cols_cap : 256;
        struct bny_column *cols = realloc(s->cols, (size_t)cap * sizeof *cols);
        char *in;

        if (cols)
            s->cols = cols;
        in = realloc(s->in_basis, (size_t)cap);
        if (in)
            s->in_basis = in;
        if (!cols || !in)
            return simplex_no_memory(s->rows);
        s->cols_cap = cap;
    }
    c = &s->cols[s->ncols];
    c->n = n;
    c->cost = cost;
    c->row = malloc((size_t)(n ? n : 1) * sizeof *c->row);
    c->a = malloc((size_t)(n ? n : 1) * sizeof *c->a);
    s->in_basis[s->ncols] = 0;
    s->ncols++;
    if (!c->row || !c->a)
        return simplex_no_memory(s->rows);
    memcpy(c->row, row, (size_t)n * sizeof *row);
    memcpy(c->a, a, (size_t)n * sizeof *a);
    return s->ncols - 1;
}

/* The column (or slack, as -1 - row) with the best price, or INT32_MIN at the optimum. */
static int entering(const struct bny_simplex *s)
{
    double best = EPS;
    int which = INT32_MIN;

    for (int j = 0; j < s->ncols; j++) {
        const struct bny_column *c = &s->cols[j];
        double d = c->cost, norm = 1;

        if (s->in_basis[j])
            continue;
        for (int i = 0; i < c->n; i++) {
            d -= s->price[c->row[i]] * c->a[i];
            norm += c->a[i] * c->a[i];
        }
        if (d > EPS && d * d / norm > best * best) {
            best = sqrt(d * d / norm);
            which = j;
        }
    }
    for (int i = 0; i < s->rows; i++)
        if (-s->price[i] > best) {
            best = -s->price[i];
            which = -1 - i;
        }
    return which;
}

/* work = inverse * column */
static void transform(struct bny_simplex *s, int j)
{
    size_t n = (size_t)s->rows;

    for (size_t i = 0; i < n; i++) {
        const double *row = s->inverse + i * n;
        double sum = 0;

        if (j < 0) {
            sum = row[-1 - j];
        } else {
            const struct bny_column *c = &s->cols[j];

            for (int k = 0; k < c->n; k++)
                sum += row[c->row[k]] * c->a[k];
        }
        s->work[i] = sum;
    }
}

/* Selects the leaving row; of ties, the one with the largest pivot. */
static int leaving(const struct bny_simplex *s)
{
    double best = INFINITY;
    int which = -1;

    for (int i = 0; i < s->rows; i++) {
        double ratio;

        if (s->work[i] < 1e-8)
            continue;
        ratio = (s->x[i] > 0 ? s->x[i] : 0) / s->work[i];
        if (ratio < best - 1e-13 ||
            (ratio < best + 1e-13 && which >= 0 && s->work[i] > s->work[which])) {
            best = ratio;
            which = i;
        }
    }
    return which;
}

static void pivot(struct bny_simplex *s, int j, int r)
{
    size_t n = (size_t)s->rows;
    double *pivot_row = s->inverse + (size_t)r * n, d = j < 0 ? 0 : s->cols[j].cost;

    if (j < 0) {
        d -= s->price[-1 - j];
    } else {
        for (int k = 0; k < s->cols[j].n; k++)
            d -= s->price[s->cols[j].row[k]] * s->cols[j].a[k];
    }
    for (size_t k = 0; k < n; k++)
        pivot_row[k] /= s->work[r];
    s->x[r] /= s->work[r];
    for (size_t i = 0; i < n; i++) {
        double f = s->work[i], *row = s->inverse + i * n;

        if ((int)i == r || f == 0)
            continue;
        for (size_t k = 0; k < n; k++)
            row[k] -= f * pivot_row[k];
        s->x[i] -= f * s->x[r];
    }
    for (size_t k = 0; k < n; k++)
        s->price[k] += d * pivot_row[k];
    if (s->basic[r] >= 0)
        s->in_basis[s->basic[r]] = 0;
    if (j >= 0)
        s->in_basis[j] = 1;
    s->basic[r] = j;
    s->pivots++;
}

int bny_simplex_solve(struct bny_simplex *s)
{
    for (int j; (j = entering(s)) != INT32_MIN;) {
        int r;

        transform(s, j);
        r = leaving(s);
        if (r < 0 || s->pivots > MOST_PIVOTS)
            return bny_fail(BANYAN_ENOTSUP,
                            "a linear program of %d rows has no solution after %d pivots",
                            s->rows, s->pivots);
        pivot(s, j, r);
    }
    return 0;
}

void bny_simplex_values(const struct bny_simplex *s, double *values)
{
    size_t n = (size_t)s->rows;

    memset(values, 0, (size_t)s->ncols * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        double sum = 0;

        if (s->basic[i] < 0)
            continue;
        for (size_t k = 0; k < n; k++)
            sum += s->inverse[i * n + k] * s->exact[k];
        values[s->basic[i]] = sum;
    }
}
