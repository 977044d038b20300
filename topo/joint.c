/* SPDX-License-Identifier: BSD-3-Clause */
/* joint: allreduce trees with weighted roots and both phases at once. If reduce-scatter and
 * allgather with equal shards are proven optimal, packed is used. Otherwise (hosts of different
 * speed, borders of meshes) the joint program gives each rank's root weight and each link's
 * share of the phases; both become whole units over a common K, and the trees of each phase are
 * packed into its share (pack.h). The solution is a vertex of a program with whole
 * coefficients, so small K often represent it exactly; if not, units are rounded up and K grows
 * until the loss is below one per cent. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/build_graph.h"
#include "topo/cuts.h"
#include "topo/joint_lp.h"
#include "topo/pack.h"

#define GOOD_GAP    0.005
#define EXACT_UNITS 720 /* the largest K tried for an exact representation */

struct units {           /* of one phase */
    int64_t *need, *cap; /* [nranks], [nlinks] */
};

static int joint_no_memory(const struct bny_graph *g)
{
    return bny_fail(BANYAN_ENOMEM, "no memory for a joint plan on %s", g->name);
}

static int joint_whole(double v)
{
    return fabs(v - nearbyint(v)) < 1e-5;
}

/* The smallest number of units that represents weights and loads exactly, or 0. */
static int exact_units(const struct bny_joint *j, const struct bny_graph *g)
{
    for (int k = 1; k <= EXACT_UNITS; k++) {
        int ok = 1;

        for (int r = 0; r < g->nranks && ok; r++)
            ok = joint_whole(j->weight[r] * k);
        for (int l = 0; l < g->nlinks && ok; l++)
            ok = joint_whole(j->down[l] * k) && joint_whole(j->up[l] * k);
        if (ok)
            return k;
    }
    return 0;
}

/* Weights in k units: rounds down, and gives the rest to the largest remainders. */
static void share_units(int64_t *need, const struct bny_joint *j, int nranks, int k)
{
    int64_t left = k;

    for (int r = 0; r < nranks; r++) {
        need[r] = (int64_t)floor(fmax(j->weight[r], 0) * k + 1e-6);
        left -= need[r];
    }
    for (; left > 0; left--) {
        double most = -1;
        int at = 0;

        for (int r = 0; r < nranks; r++)
            if (j->weight[r] * k - (double)need[r] > most) {
                most = j->weight[r] * k - (double)need[r];
                at = r;
            }
        need[at]++;
    }
}

/* A switch must not send more than it receives (vice versa if reversed): reduces links to ranks
 * by the difference and compensates by raising arriving links in turn. */
static void feed_switches(const struct bny_graph *g, int64_t *cap, int reversed)
{
    const int *in_first = reversed ? g->out_first : g->in_first,
              *in = reversed ? g->out : g->in;
    const int *out_first = reversed ? g->in_first : g->out_first,
              *out = reversed ? g->in : g->out;

    for (int v = 0; v < g->nnodes; v++) {
        int64_t lack = 0;

        if (g->nodes[v].rank >= 0)
            continue;
        for (int i = out_first[v]; i < out_first[v + 1]; i++)
            lack += cap[out[i]];
        for (int i = in_first[v]; i < in_first[v + 1]; i++)
            lack -= cap[in[i]];
        for (int i = in_first[v]; lack > 0; i = i + 1 < in_first[v + 1] ? i + 1 : in_first[v]) {
            cap[in[i]]++;
            lack--;
        }
    }
}

/* Raises links until every cut carries the units. */
static int make_feasible(struct units *u, const struct bny_graph *g, int reversed)
{
    uint8_t *mark = malloc((size_t)g->nnodes + 1);
    struct bny_cuts c;
    int e = mark ? bny_cuts_of_graph(&c, g, reversed) : joint_no_memory(g), t = 0;

    if (e) {
        free(mark);
        return e;
    }
    for (int r = 0; r < g->nranks; r++)
        bny_cuts_need(&c, r, u->need[r]);
    while (t < g->nranks) {
        int best = -1;
        double least = INFINITY;

        for (int l = 0; l < g->nlinks; l++)
            bny_cuts_cap(&c, l, u->cap[l]);
        t = bny_cuts_violated(&c, t, mark);
        for (int l = 0; l < g->nlinks && t < g->nranks; l++) {
            int from = mark[g->links[l].from], to = mark[g->links[l].to];
            double load = (double)(u->cap[l] + 1) / (double)g->links[l].cap;

            if ((reversed ? to && !from : from && !to) && load < least) {
                least = load;
                best = l;
            }
        }
        if (best >= 0)
            u->cap[best]++;
    }
    bny_cuts_free(&c);
    free(mark);
    return 0;
}

static int phase(struct bny_pack *p, const struct bny_graph *g, const struct bny_joint *j,
                 int k, int reversed)
{
    struct units u = { calloc((size_t)g->nranks, sizeof *u.need),
                       calloc((size_t)g->nlinks + 1, sizeof *u.cap) };
    const double *load = reversed ? j->up : j->down;
    int e = u.need && u.cap ? 0 : joint_no_memory(g);

    if (!e) {
        share_units(u.need, j, g->nranks, k);
        for (int l = 0; l < g->nlinks; l++)
            u.cap[l] = (int64_t)ceil(fmax(load[l], 0) * k - 1e-4);
        e = make_feasible(&u, g, reversed);
    }
    if (!e) {
        feed_switches(g, u.cap, reversed);
        e = bny_pack_graph(p, g, u.cap, u.need, reversed, BNY_PACK_ANY);
    }
    free(u.need);
    free(u.cap);
    return e;
}

static int plan(struct bny_forest **out, const struct bny_graph *g, const struct bny_joint *j,
                int k)
{
    struct bny_pack down = { 0 }, up = { 0 };
    int e = phase(&down, g, j, k, 0);

    if (!e)
        e = phase(&up, g, j, k, 1);
    if (!e)
        e = bny_pack_forest(out, "joint", g, &down, &up);
    bny_pack_free(&down);
    bny_pack_free(&up);
    return e;
}

static double gap(const struct bny_claim *c)
{
    return bny_ratio_value(c->time) / bny_ratio_value(c->bound) - 1;
}

/* Keeps the better of *best (may be NULL) and f, which it owns from now on. */
static void keep_better(struct bny_forest **best, struct bny_forest *f)
{
    if (*best && gap(&(*best)->claim) <= gap(&f->claim)) {
        bny_forest_free(f);
        return;
    }
    bny_forest_free(*best);
    *best = f;
}

static int by_program(struct bny_forest **out, const struct bny_graph *g)
{
    struct bny_joint j;
    int e = bny_joint_solve(&j, g), exact, last = -BANYAN_ENOTSUP;

    if (e)
        return e;
    exact = exact_units(&j, g);
    for (int k = exact ? exact : 16; k <= 4096; k = exact && k == exact ? 64 : k * 4) {
        struct bny_forest *f = NULL;

        e = plan(&f, g, &j, k);
        if (!e)
            e = bny_forest_certify(f, g, BNY_FOREST_ALLREDUCE, -1, 1);
        if (!e)
            keep_better(out, f);
        else
            bny_forest_free(f);
        last = e;
        if (e == -BANYAN_ENOMEM || (*out && gap(&(*out)->claim) <= GOOD_GAP))
            break;
    }
    bny_joint_free(&j);
    return *out ? 0 : last;
}

static int by_packing(struct bny_forest **out, const struct bny_graph *g,
                      const struct bny_build_opts *opts)
{
    struct bny_forest *f = NULL;
    int e = bny_build_packed.build(&f, g, BNY_FOREST_ALLREDUCE, -1, opts);

    if (!e)
        e = bny_forest_certify(f, g, BNY_FOREST_ALLREDUCE, -1, 1);
    if (e)
        bny_forest_free(f);
    else
        keep_better(out, f);
    return e;
}

static int joint_build(struct bny_forest **out, const struct bny_graph *g,
                       enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    struct bny_forest *best = NULL;
    int e;

    *out = NULL;
    if (use != BNY_FOREST_ALLREDUCE)
        return bny_fail(BANYAN_ENOTSUP, "joint is for allreduce; use packed");
    e = by_packing(&best, g, opts);
    if (!e && g->nranks > 1 && gap(&best->claim) > GOOD_GAP)
        e = by_program(&best, g);
    if (!best)
        return e;
    strcpy(best->name, "joint");
    *out = best;
    return 0;
}

const struct bny_graph_builder_ops bny_build_joint = {
    .name = "joint",
    .uses = BNY_FOREST_ALLREDUCE,
    .build = joint_build,
};
