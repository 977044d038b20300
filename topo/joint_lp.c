/* SPDX-License-Identifier: BSD-3-Clause */
/* The joint program by cutting planes (joint_lp.h), solved in its dual: variables are
 * multipliers u of the links, y and z of sets of nodes (dual.h) and the potentials of switches;
 * a set that the current solution violates, found by one flow per rank and direction, is a new
 * column. Its prices are the loads and weights of the primal. Rows:
 *   0            sum cap_e u_e <= 1                                       price: T
 *   1 + e        y of sets that e leaves + p_j - p_i - u_e <= 0           price: down[e]
 *   1 + m + e    z of sets that e enters + q_i - q_j - u_e <= 0           price: up[e]
 *   1 + 2m + v   lambda - y and z of sets that hold rank v <= 0           price: weight[v] */
#include "topo/joint_lp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/cuts.h"
#include "topo/simplex.h"

#define MOST_ROWS   1300
#define MOST_ROUNDS 200
#define UNIT        1e9 /* loads and weights become whole multiples of 1/UNIT for the flows */

struct set {
    int column, reduce;
    uint8_t *in; /* [nnodes] */
};

struct lp {
    const struct bny_graph *g;
    struct bny_simplex s;
    struct bny_cuts cuts[2]; /* broadcast; reduction, on the reversed graph */
    struct set *sets;
    int nsets, sets_cap;
    int pots;     /* first of the four columns of each switch: +p -p +q -q */
    double scale; /* largest capacity */
    int *row;     /* scratch of a column */
    double *a;
    uint8_t *mark;
};

static int joint_lp_no_memory(const struct bny_graph *g)
{
    return bny_fail(BANYAN_ENOMEM, "no memory for the linear program of %s", g->name);
}

static int known(const struct lp *lp, const uint8_t *in, int reduce)
{
    for (int i = 0; i < lp->nsets; i++)
        if (lp->sets[i].reduce == reduce && !memcmp(lp->sets[i].in, in, (size_t)lp->g->nnodes))
            return 1;
    return 0;
}

/* 1 if the set is new, 0 if it is known, or an error. */
static int add_set(struct lp *lp, const uint8_t *in, int reduce)
{
    const struct bny_graph *g = lp->g;
    struct set *set;
    int n = 0;

    if (known(lp, in, reduce))
        return 0;
    if (lp->nsets == lp->sets_cap) {
        int cap = lp->sets_cap ? 2 * lp->sets_cap : 64;
        struct set *sets = realloc(lp->sets, (size_t)cap * sizeof *sets);

        if (!sets)
            return joint_lp_no_memory(g);
        lp->sets = sets;
        lp->sets_cap = cap;
    }
    for (int e = 0; e < g->nlinks; e++) {
        int i = g->links[e].from, j = g->links[e].to;

        if (reduce ? in[j] && !in[i] : in[i] && !in[j]) {
            lp->row[n] = 1 + (reduce ? g->nlinks : 0) + e;
            lp->a[n++] = 1;
        }
    }
    for (int r = 0; r < g->nranks; r++)
        if (in[g->rank_node[r]]) {
            lp->row[n] = 1 + 2 * g->nlinks + r;
            lp->a[n++] = -1;
        }
    set = &lp->sets[lp->nsets];
    set->reduce = reduce;
    set->in = malloc((size_t)g->nnodes);
    if (!set->in)
        return joint_lp_no_memory(g);
    memcpy(set->in, in, (size_t)g->nnodes);
    lp->nsets++;
    set->column = bny_simplex_column(&lp->s, n, lp->row, lp->a, 0);
    return set->column < 0 ? set->column : 1;
}

static int add_potentials(struct lp *lp, int v)
{
    const struct bny_graph *g = lp->g;

    for (int kind = 0; kind < 4; kind++) {
        int reduce = kind / 2, n = 0, c;

        for (int e = 0; e < g->nlinks; e++) {
            double sign = g->links[e].to == v ? 1 : g->links[e].from == v ? -1 : 0;

            if (sign == 0)
                continue;
            lp->row[n] = 1 + reduce * g->nlinks + e;
            lp->a[n++] = (reduce ? -sign : sign) * (kind % 2 ? -1 : 1);
        }
        c = bny_simplex_column(&lp->s, n, lp->row, lp->a, 0);
        if (c < 0)
            return c;
    }
    return 0;
}

static int add_fixed_columns(struct lp *lp)
{
    const struct bny_graph *g = lp->g;
    int e;

    for (int r = 0; r < g->nranks; r++) {
        lp->row[r] = 1 + 2 * g->nlinks + r;
        lp->a[r] = 1;
    }
    e = bny_simplex_column(&lp->s, g->nranks, lp->row, lp->a, 1);
    for (int l = 0; l < g->nlinks && e >= 0; l++) {
        int row[3] = { 0, 1 + l, 1 + g->nlinks + l };
        double a[3] = { (double)g->links[l].cap / lp->scale, -1, -1 };

        e = bny_simplex_column(&lp->s, 3, row, a, 0);
    }
    lp->pots = lp->s.ncols;
    for (int v = 0; v < g->nnodes && e >= 0; v++)
        if (g->nodes[v].rank < 0)
            e = add_potentials(lp, v);
    return e < 0 ? e : 0;
}

/* Around each rank, and all but it: enough to bound the first solution. */
static int add_first_sets(struct lp *lp)
{
    const struct bny_graph *g = lp->g;
    int e = 0;

    for (int r = 0; r < g->nranks && e >= 0; r++)
        for (int kind = 0; kind < 4 && e >= 0; kind++) {
            memset(lp->mark, kind < 2, (size_t)g->nnodes);
            lp->mark[g->rank_node[r]] = kind >= 2;
            e = add_set(lp, lp->mark, kind % 2);
        }
    return e < 0 ? e : 0;
}

/* Adds sets that the current loads violate: the smallest cut in front of each rank. Returns
 * their number, or an error. */
static int separate(struct lp *lp, int reduce)
{
    const struct bny_graph *g = lp->g;
    struct bny_cuts *c = &lp->cuts[reduce];
    const double *load = lp->s.price + 1 + (reduce ? g->nlinks : 0),
                 *weight = lp->s.price + 1 + 2 * g->nlinks;
    int found = 0;

    for (int l = 0; l < g->nlinks; l++)
        bny_cuts_cap(c, l, (int64_t)(fmax(load[l], 0) * UNIT + 0.5));
    for (int r = 0; r < g->nranks; r++) {
        bny_cuts_need(c, r, (int64_t)(fmax(weight[r], 0) * UNIT + 0.5));
        bny_flow_set(&c->flow, c->feed[r], c->need[r]);
    }
    for (int r = 0; r < g->nranks; r++) {
        int e;

        bny_flow_reset(&c->flow);
        if (bny_flow_run(&c->flow, c->source, c->term[r], c->total) >
            c->total - (int64_t)(1e-6 * UNIT))
            continue;
        bny_flow_side(&c->flow, c->source, lp->mark);
        e = add_set(lp, lp->mark, reduce);
        if (e < 0)
            return e;
        found += e;
    }
    return found;
}

static int solve(struct lp *lp, struct bny_joint *j)
{
    for (j->rounds = 1; j->rounds <= MOST_ROUNDS; j->rounds++) {
        int e = bny_simplex_solve(&lp->s), found;

        if (e)
            return e;
        found = separate(lp, 0);
        e = found < 0 ? found : separate(lp, 1);
        if (e < 0)
            return e;
        if (found + e == 0)
            return 0;
    }
    return bny_fail(BANYAN_ENOTSUP, "the joint allreduce program of %s does not settle",
                    lp->g->name);
}

/* Smallest d up to 100000 that makes all values whole, or 2^30. */
static double denominator(const double *values, int n)
{
    for (int d = 1; d <= 100000; d++) {
        int i = 0;

        while (i < n && fabs(values[i] * d - nearbyint(values[i] * d)) < 1e-7 * d)
            i++;
        if (i == n)
            return d;
        if (d > 5000 && i < n / 2)
            d += d / 1000; /* larger ones are unlikely */
    }
    return 1 << 30;
}

static int make_dual(const struct lp *lp, struct bny_joint *j)
{
    const struct bny_graph *g = lp->g;
    double *values = malloc((size_t)lp->s.ncols * sizeof *values), least = INFINITY, d;
    int used = 0, column = lp->pots;

    if (!values)
        return joint_lp_no_memory(g);
    bny_simplex_values(&lp->s, values);
    for (int i = 0; i < lp->s.ncols; i++)
        if (values[i] > 1e-7 && values[i] < least)
            least = values[i];
    for (int i = 0; i < lp->s.ncols; i++)
        values[i] = values[i] > 1e-7 ? values[i] / least : 0;
    d = denominator(values + lp->pots, lp->s.ncols - lp->pots);
    for (int i = 0; i < lp->nsets; i++)
        used += values[lp->sets[i].column] * d >= 0.5;
    j->dual = bny_dual_alloc(g->nnodes, used);
    for (int i = 0, s = 0; j->dual && i < lp->nsets; i++) {
        int64_t times = (int64_t)nearbyint(values[lp->sets[i].column] * d);

        if (times <= 0)
            continue;
        j->dual->times[s] = times;
        j->dual->reduce[s] = (uint8_t)lp->sets[i].reduce;
        memcpy(j->dual->in + (size_t)s++ * (size_t)g->nnodes, lp->sets[i].in,
               (size_t)g->nnodes);
    }
    for (int v = 0; j->dual && v < g->nnodes; v++)
        if (g->nodes[v].rank < 0) {
            j->dual->down_pot[v] =
                (int64_t)nearbyint((values[column] - values[column + 1]) * d);
            j->dual->up_pot[v] =
                (int64_t)nearbyint((values[column + 2] - values[column + 3]) * d);
            column += 4;
        }
    free(values);
    return j->dual ? 0 : joint_lp_no_memory(g);
}

static int hand_out(const struct lp *lp, struct bny_joint *j)
{
    const struct bny_graph *g = lp->g;
    size_t n = (size_t)g->nranks, m = (size_t)g->nlinks;

    j->weight = malloc(n * sizeof *j->weight);
    j->down = malloc((m + 1) * sizeof *j->down);
    j->up = malloc((m + 1) * sizeof *j->up);
    if (!j->weight || !j->down || !j->up)
        return joint_lp_no_memory(g);
    memcpy(j->down, lp->s.price + 1, m * sizeof *j->down);
    memcpy(j->up, lp->s.price + 1 + m, m * sizeof *j->up);
    memcpy(j->weight, lp->s.price + 1 + 2 * m, n * sizeof *j->weight);
    j->time = lp->s.price[0] / lp->scale;
    j->cuts = lp->nsets;
    return make_dual(lp, j);
}

static int joint_lp_prepare(struct lp *lp)
{
    const struct bny_graph *g = lp->g;
    int rows = 1 + 2 * g->nlinks + g->nranks, e;
    double *rhs = calloc((size_t)rows, sizeof *rhs);

    lp->row = malloc((size_t)rows * sizeof *lp->row);
    lp->a = malloc((size_t)rows * sizeof *lp->a);
    lp->mark = malloc((size_t)g->nnodes + 1);
    if (!rhs || !lp->row || !lp->a || !lp->mark) {
        free(rhs);
        return joint_lp_no_memory(g);
    }
    rhs[0] = 1;
    e = bny_simplex_init(&lp->s, rows, rhs);
    free(rhs);
    for (int l = 0; l < g->nlinks; l++)
        lp->scale = fmax(lp->scale, (double)g->links[l].cap);
    if (!e)
        e = bny_cuts_of_graph(&lp->cuts[0], g, 0);
    if (!e)
        e = bny_cuts_of_graph(&lp->cuts[1], g, 1);
    if (!e)
        e = add_fixed_columns(lp);
    return e ? e : add_first_sets(lp);
}

int bny_joint_solve(struct bny_joint *j, const struct bny_graph *g)
{
    struct lp lp = { .g = g };
    int e;

    memset(j, 0, sizeof *j);
    if (1 + 2 * g->nlinks + g->nranks > MOST_ROWS)
        return bny_fail(BANYAN_ENOTSUP,
                        "the joint allreduce program of %s has %d links; that is too many",
                        g->name, g->nlinks);
    e = joint_lp_prepare(&lp);
    if (!e)
        e = solve(&lp, j);
    if (!e)
        e = hand_out(&lp, j);
    for (int i = 0; i < lp.nsets; i++)
        free(lp.sets[i].in);
    free(lp.sets);
    free(lp.row);
    free(lp.a);
    free(lp.mark);
    bny_cuts_free(&lp.cuts[0]);
    bny_cuts_free(&lp.cuts[1]);
    bny_simplex_free(&lp.s);
    if (e)
        bny_joint_free(j);
    return e;
}

void bny_joint_free(struct bny_joint *j)
{
    free(j->weight);
    free(j->down);
    free(j->up);
    bny_dual_free(j->dual);
    memset(j, 0, sizeof *j);
}
