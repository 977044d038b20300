/* SPDX-License-Identifier: BSD-3-Clause */
/* Builds the programs of all ranks (program_sets.h). */
#include "program_sets.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"

static enum bny_forest_use use_of(int collective)
{
    if (collective == BNY_ALLREDUCE)
        return BNY_FOREST_ALLREDUCE;
    return collective == BNY_REDUCE || collective == BNY_BROADCAST ? BNY_FOREST_ROOTED
                                                                   : BNY_FOREST_SCATTERED;
}

/* ---- random forests ---- */

/* A random tree: ranks join in random order below one that has joined. The order becomes the
 * steps. */
static void random_tree(uint64_t *rng, int n, int root, int *parent, uint32_t *step,
                        int downwards)
{
    int order[SET_MAX_RANKS];

    for (int v = 0; v < n; v++)
        order[v] = (root + v) % n;
    for (int i = n - 1; i > 1; i--) {
        int k = 1 + (int)bny_rng_below(rng, (uint64_t)i), v = order[i];

        order[i] = order[k];
        order[k] = v;
    }
    parent[root] = -1;
    for (int i = 1; i < n; i++) {
        parent[order[i]] = order[bny_rng_below(rng, (uint64_t)i)];
        step[order[i]] = (uint32_t)(downwards ? i - 1 : n - 1 - i);
    }
}

/* What planners make of graphs with unequal links: weights that differ, several trees of one
 * root, a broadcast direction of its own. The same for the same arguments. */
static int random_build(struct bny_forest **out, int n, enum bny_forest_use use, int root)
{
    uint64_t rng = (uint64_t)n * 64 + (uint64_t)root * 8 + use;
    int ntrees = use == BNY_FOREST_SCATTERED ? n : 1 + (int)bny_rng_below(&rng, 5);
    struct bny_forest *f = bny_forest_alloc("random", n, ntrees);
    uint32_t sum = 0;

    for (int t = 0; t < ntrees; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->root = use == BNY_FOREST_SCATTERED ? t
                     : use == BNY_FOREST_ROOTED  ? root
                                                 : (int)bny_rng_below(&rng, (uint64_t)n);
        tree->weight_num =
            use == BNY_FOREST_SCATTERED ? 1 : 1 + (uint32_t)bny_rng_below(&rng, 9);
        tree->pipeline = (uint32_t)bny_rng_below(&rng, 6);
        sum += tree->weight_num;
        random_tree(&rng, n, tree->root, tree->parent, tree->step, 0);
        if (t % 2 && use != BNY_FOREST_SCATTERED)
            continue;
        tree->down_parent = calloc((size_t)n, sizeof *tree->down_parent);
        tree->down_step = calloc((size_t)n, sizeof *tree->down_step);
        random_tree(&rng, n, tree->root, tree->down_parent, tree->down_step, 1);
    }
    for (int t = 0; t < ntrees; t++)
        f->trees[t].weight_den = sum;
    f->nsteps = n > 1 ? (uint32_t)n - 1 : 0;
    *out = f;
    return 0;
}

static const struct bny_builder_ops random_builder = {
    .name = "random",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED | BNY_FOREST_ROOTED,
    .build = random_build,
};

static int nbuilders(void)
{
    int n = 0;

    while (bny_builders[n])
        n++;
    return n;
}

static const struct bny_builder_ops *builder_at(int b)
{
    return b < nbuilders() ? bny_builders[b] : &random_builder;
}

/* ---- kinds ---- */

static int builder_kind(int b, int *k, struct program_kind *out)
{
    for (int c = BNY_ALLREDUCE; c <= BNY_ALLGATHER; c++)
        for (int coalesce = 0; coalesce < 2; coalesce++) {
            if (!(builder_at(b)->uses & use_of(c)))
                continue;
            *out = (struct program_kind){ b, -1, c, coalesce };
            if ((*k)-- == 0)
                return 1;
        }
    return 0;
}

int program_kind_at(int k, struct program_kind *out)
{
    for (int b = 0; b < nbuilders(); b++)
        if (builder_kind(b, &k, out))
            return 1;
    for (int d = 0; bny_directs[d]; d++)
        for (int c = 0; c < BNY_COLLECTIVE_COUNT; c++) {
            if (!(bny_directs[d]->collectives & 1u << c))
                continue;
            *out = (struct program_kind){ -1, d, c, 0 };
            if (k-- == 0)
                return 1;
        }
    return builder_kind(nbuilders(), &k, out);
}

int program_kind_rooted(const struct program_kind *kind)
{
    return kind->collective == BNY_REDUCE || kind->collective == BNY_BROADCAST ||
           kind->collective == BNY_GATHER || kind->collective == BNY_SCATTER;
}

static int compile_all(struct program_set *s, const struct program_kind *kind, int root)
{
    struct bny_forest *f;
    int e = builder_at(kind->builder)->build(&f, s->n, use_of(kind->collective), root);

    if (e)
        return e;
    for (int r = 0; r < s->n; r++) {
        e = bny_compile(&s->p[r], f, kind->collective, r, kind->coalesce);
        cr_assert_eq(e, 0, "%s rank %d: %s", s->name, r, banyan_last_error());
    }
    bny_forest_free(f);
    return 0;
}

int program_set_build(struct program_set *s, const struct program_kind *kind, int n, int root)
{
    const char *name =
        kind->builder >= 0 ? builder_at(kind->builder)->name : bny_directs[kind->direct]->name;
    int e = 0;

    memset(s, 0, sizeof *s);
    s->n = n;
    snprintf(s->name, sizeof s->name, "%s %s n=%d root=%d%s", name,
             bny_collective_name(kind->collective), n, root, kind->coalesce ? " joined" : "");
    if (kind->builder >= 0)
        return compile_all(s, kind, root);
    for (int r = 0; r < n; r++) {
        e = bny_directs[kind->direct]->build(&s->p[r], kind->collective, n, r, root);
        cr_assert_eq(e, 0, "%s rank %d: %s", s->name, r, banyan_last_error());
    }
    return 0;
}

void program_set_free(struct program_set *s)
{
    for (int r = 0; r < s->n; r++)
        bny_program_free(s->p[r]);
}
