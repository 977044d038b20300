/* SPDX-License-Identifier: BSD-3-Clause */
/* Combinations of cuts as proofs (dual.h). */
#include "topo/dual.h"

#include <stdlib.h>

struct bny_dual *bny_dual_alloc(int nnodes, int nsets)
{
    struct bny_dual *d = calloc(1, sizeof *d);

    if (!d)
        return NULL;
    d->nnodes = nnodes;
    d->nsets = nsets;
    d->reduce = calloc((size_t)nsets + 1, 1);
    d->times = calloc((size_t)nsets + 1, sizeof *d->times);
    d->in = calloc((size_t)nsets * (size_t)nnodes + 1, 1);
    d->down_pot = calloc((size_t)nnodes, sizeof *d->down_pot);
    d->up_pot = calloc((size_t)nnodes, sizeof *d->up_pot);
    if (d->reduce && d->times && d->in && d->down_pot && d->up_pot)
        return d;
    bny_dual_free(d);
    return NULL;
}

void bny_dual_free(struct bny_dual *d)
{
    if (!d)
        return;
    free(d->reduce);
    free(d->times);
    free(d->in);
    free(d->down_pot);
    free(d->up_pot);
    free(d);
}

/* Bound for all multipliers and potentials of one link, so that no sum overflows. */
#define LARGEST (INT64_C(1) << 44)

static int sane(const struct bny_dual *d, const struct bny_graph *g)
{
    int64_t sum = 0;

    if (d->nnodes != g->nnodes)
        return 0;
    for (int s = 0; s < d->nsets; s++) {
        int ranks = 0;

        if (d->times[s] < 0 || d->times[s] > LARGEST || (sum += d->times[s]) > LARGEST)
            return 0;
        for (int r = 0; r < g->nranks; r++)
            ranks += d->in[(size_t)s * (size_t)g->nnodes + (size_t)g->rank_node[r]] != 0;
        if (ranks == g->nranks)
            return 0;
    }
    for (int v = 0; v < g->nnodes; v++)
        if (llabs(d->down_pot[v]) > LARGEST || llabs(d->up_pot[v]) > LARGEST ||
            (g->nodes[v].rank >= 0 && (d->down_pot[v] || d->up_pot[v])))
            return 0;
    return 1;
}

struct bny_ratio bny_dual_value(const struct bny_dual *d, const struct bny_graph *g)
{
    const struct bny_ratio bad = { 1, 0 };
    int64_t least = INT64_MAX, cost = 0;

    if (!sane(d, g))
        return bad;
    for (int r = 0; r < g->nranks; r++) {
        int64_t sum = 0;

        for (int s = 0; s < d->nsets; s++)
            if (d->in[(size_t)s * (size_t)g->nnodes + (size_t)g->rank_node[r]])
                sum += d->times[s];
        least = sum < least ? sum : least;
    }
    for (int l = 0; l < g->nlinks; l++) {
        int i = g->links[l].from, j = g->links[l].to;
        int64_t y = d->down_pot[j] - d->down_pot[i], z = d->up_pot[i] - d->up_pot[j], part;

        for (int s = 0; s < d->nsets; s++) {
            const uint8_t *in = d->in + (size_t)s * (size_t)g->nnodes;

            if (!d->reduce[s] && in[i] && !in[j])
                y += d->times[s];
            if (d->reduce[s] && in[j] && !in[i])
                z += d->times[s];
        }
        y = y > z ? y : z;
        if (y > 0 && (__builtin_mul_overflow(y, g->links[l].cap, &part) ||
                      __builtin_add_overflow(cost, part, &cost)))
            return bad;
    }
    return cost > 0 ? bny_ratio_of(least, cost) : bny_ratio_of(0, 1);
}
