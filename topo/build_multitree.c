/* SPDX-License-Identifier: BSD-3-Clause */
/* Forests by MultiTree (multitree.c has the construction and the paper). One tree per rank and
 * T steps; k trees per rank (opts.k) cut the shards into k sub-chunks. T(n, k) >= ceil(k (n-1)
 * / deg), deg the smallest capacity at a rank.
 *
 *   allreduce  2 T (alpha + S / (n k B)): every step moves one (sub-)shard per link
 *   scattered  half of it; programs need k = 1
 *   rooted     k trees from one root, by default as many as the root has links
 *
 * If every link has a reverse of the same capacity, reducing runs the same edges backwards;
 * else its trees are grown on the reversed graph. */
#include "topo/multitree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/build_graph.h"

/* Trees of `m` as the reducing direction: towards the roots, or away from them and reversed. */
static int set_up(struct bny_forest *f, const struct bny_multitree *m,
                  const struct bny_graph *g, int turned)
{
    for (int t = 0; t < f->ntrees; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->up = calloc((size_t)f->nranks, sizeof *tree->up);
        if (!tree->up)
            return -BANYAN_ENOMEM;
        for (int v = 0; v < f->nranks; v++) {
            size_t i = (size_t)t * (size_t)f->nranks + (size_t)v;
            int hops = m->first[i + 1] - m->first[i];

            tree->parent[v] = m->parent[i];
            tree->step[v] = m->parent[i] < 0 ? 0 : m->nsteps - 1 - m->when[i];
            if (bny_route_set(&tree->up[v], m->links + m->first[i], hops))
                return -BANYAN_ENOMEM;
            if (turned)
                bny_route_reverse(&tree->up[v], g);
        }
    }
    return 0;
}

/* The broadcast direction: has its own parents only if the graph is not symmetric. */
static int set_down(struct bny_forest *f, const struct bny_multitree *m, int own)
{
    for (int t = 0; t < f->ntrees; t++) {
        struct bny_tree *tree = &f->trees[t];
        size_t row = (size_t)t * (size_t)f->nranks, n = (size_t)f->nranks;

        tree->down = calloc(n, sizeof *tree->down);
        if (own) {
            tree->down_parent = malloc(n * sizeof *tree->down_parent);
            tree->down_step = malloc(n * sizeof *tree->down_step);
        }
        if (!tree->down || (own && (!tree->down_parent || !tree->down_step)))
            return -BANYAN_ENOMEM;
        for (size_t v = 0; v < n; v++) {
            const int *links = m->links + m->first[row + v];

            if (bny_route_set(&tree->down[v], links, m->first[row + v + 1] - m->first[row + v]))
                return -BANYAN_ENOMEM;
            if (own) {
                tree->down_parent[v] = m->parent[row + v];
                tree->down_step[v] = m->when[row + v];
            }
        }
    }
    return 0;
}

static int multitree_make(struct bny_forest *f, const struct bny_graph *g, const int *roots,
                          int height_cap, unsigned flags)
{
    int symmetric = bny_graph_is_symmetric(g), e;
    struct bny_multitree m, back = { 0 };

    e = bny_multitree_grow(&m, g, roots, f->ntrees, height_cap, flags);
    if (!e && !symmetric)
        e = bny_multitree_grow(&back, g, roots, f->ntrees, height_cap,
                               flags | BNY_MULTITREE_REVERSED);
    for (int t = 0; !e && t < f->ntrees; t++)
        f->trees[t].root = roots[t];
    if (!e)
        e = set_up(f, symmetric ? &m : &back, g, symmetric);
    if (!e)
        e = set_down(f, &m, !symmetric);
    bny_multitree_free(&m);
    bny_multitree_free(&back);
    return e;
}

static int build_as(struct bny_forest **out, const struct bny_graph *g, enum bny_forest_use use,
                    int root, const struct bny_build_opts *opts, const char *name,
                    unsigned flags)
{
    int k = opts && opts->k > 0 ? opts->k : 0, n = g->nranks, e;
    int rooted = use == BNY_FOREST_ROOTED, node = g->rank_node[rooted ? root : 0];
    int *roots;
    struct bny_forest *f;

    *out = NULL;
    if (!k)
        k = rooted ? g->out_first[node + 1] - g->out_first[node] : 1;
    k = k > 0 ? k : 1;
    f = bny_forest_alloc(name, n, rooted ? k : n * k);
    roots = f ? malloc((size_t)f->ntrees * sizeof *roots) : NULL;
    if (!roots) {
        bny_forest_free(f);
        return bny_forest_no_memory(name, n);
    }
    for (int t = 0; t < f->ntrees; t++)
        roots[t] = rooted ? root : use == BNY_FOREST_SCATTERED ? t / k : t % n;
    e = multitree_make(f, g, roots, opts ? opts->height_cap : 0, flags);
    free(roots);
    if (e) {
        bny_forest_free(f);
        return e == -BANYAN_ENOMEM ? bny_forest_no_memory(name, n) : e;
    }
    return bny_graph_forest_finish(out, f, g, use, root);
}

static int multitree_build(struct bny_forest **out, const struct bny_graph *g,
                           enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    return build_as(out, g, use, root, opts, "multitree", 0);
}

static int build_reference(struct bny_forest **out, const struct bny_graph *g,
                           enum bny_forest_use use, int root, const struct bny_build_opts *opts)
{
    struct bny_build_opts published = { .k = use == BNY_FOREST_ROOTED && opts ? opts->k : 1 };

    return build_as(out, g, use, root, &published, "multitree_reference",
                    BNY_MULTITREE_REFERENCE);
}

const struct bny_graph_builder_ops bny_build_multitree = {
    .name = "multitree",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED | BNY_FOREST_ROOTED,
    .build = multitree_build,
};

const struct bny_graph_builder_ops bny_build_multitree_reference = {
    .name = "multitree_reference",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED | BNY_FOREST_ROOTED,
    .build = build_reference,
};
