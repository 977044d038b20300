/* SPDX-License-Identifier: BSD-3-Clause */
/* Trees of exchange patterns (butterfly.h). */
#include "topo/butterfly.h"

#include <stdlib.h>

#include "banyan/banyan.h"

/* Backwards in time: the root received its final data from its peers of the last step, and each
 * of those from theirs of the step before. */
int bny_butterfly_tree(const struct bny_butterfly *b, struct bny_tree *tree, int root,
                       int first_step)
{
    int *members = malloc((size_t)b->nranks * sizeof *members), n = 1;

    if (!members)
        return -BANYAN_ENOMEM;
    members[0] = root;
    tree->root = root;
    for (int s = b->nsteps - 1; s >= 0; s--)
        for (int i = 0, before = n; i < before; i++)
            for (int k = 0; k < b->npeers; k++) {
                int child = b->peer(b->ctx, members[i], s, k);

                tree->parent[child] = members[i];
                tree->step[child] = (uint32_t)(first_step + s);
                members[n++] = child;
            }
    free(members);
    return 0;
}

struct sorting {
    int nranks, nsteps;
    const int
        *least; /* [nsteps * nranks] least rank at which v's blocks may end after step s */
};

static int by_path(const void *x, const void *y, void *arg)
{
    const struct sorting *o = arg;
    int a = *(const int *)x, b = *(const int *)y;

    for (int s = 0; s < o->nsteps; s++) {
        int la = o->least[s * o->nranks + a], lb = o->least[s * o->nranks + b];

        if (la != lb)
            return la < lb ? -1 : 1;
    }
    return a < b ? -1 : a > b;
}

int bny_butterfly_order(const struct bny_butterfly *b, int *roots)
{
    int n = b->nranks, *least = malloc((size_t)n * (size_t)(b->nsteps + 1) * sizeof *least);
    struct sorting o = { n, b->nsteps, least };

    if (!least)
        return -BANYAN_ENOMEM;
    for (int v = 0; v < n; v++) {
        roots[v] = v;
        for (int s = 0; s < b->nsteps; s++)
            least[s * n + v] = v;
    }
    /* Row s: from v and the ranks that its peers of later steps lead to. */
    for (int s = b->nsteps - 2; s >= 0; s--)
        for (int v = 0; v < n; v++) {
            int m = least[(s + 1) * n + v];

            for (int k = 0; k < b->npeers; k++) {
                int p = least[(s + 1) * n + b->peer(b->ctx, v, s + 1, k)];

                m = p < m ? p : m;
            }
            least[s * n + v] = m;
        }
    qsort_r(roots, (size_t)n, sizeof *roots, by_path, &o);
    free(least);
    return 0;
}

int bny_negabinary_peer(int v, int size, int s)
{
    int power = 1, distance;

    for (int i = 0; i <= s; i++)
        power *= -2;
    distance = (1 - power) / 3;
    if (v % 2)
        distance = -distance;
    return ((v + distance) % size + size) % size;
}
