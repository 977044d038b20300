/* SPDX-License-Identifier: BSD-3-Clause */
/* Forests: allocation, and the check of a single forest (forest.h). */
#include "topo/forest.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "topo/build.h"
#include "topo/dual.h"

struct bny_forest *bny_forest_alloc(const char *name, int nranks, int ntrees)
{
    struct bny_forest *f = calloc(1, sizeof *f);

    if (!f)
        return NULL;
    snprintf(f->name, sizeof f->name, "%s", name);
    f->nranks = nranks;
    f->trees = calloc((size_t)ntrees, sizeof *f->trees);
    if (!f->trees) {
        bny_forest_free(f);
        return NULL;
    }
    f->ntrees = ntrees;
    f->sink = -1;
    for (int t = 0; t < ntrees; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->weight_num = 1;
        tree->weight_den = (uint32_t)ntrees;
        tree->parent = malloc((size_t)nranks * sizeof *tree->parent);
        tree->step = calloc((size_t)nranks, sizeof *tree->step);
        if (!tree->parent || !tree->step) {
            bny_forest_free(f);
            return NULL;
        }
        for (int v = 0; v < nranks; v++)
            tree->parent[v] = -1;
    }
    return f;
}

static void paths_free(struct bny_route *paths, int n)
{
    for (int v = 0; paths && v < n; v++)
        free(paths[v].links);
    free(paths);
}

void bny_forest_free(struct bny_forest *f)
{
    if (!f)
        return;
    for (int t = 0; f->trees && t < f->ntrees; t++) {
        free(f->trees[t].parent);
        free(f->trees[t].step);
        free(f->trees[t].down_parent);
        free(f->trees[t].down_step);
        paths_free(f->trees[t].up, f->nranks);
        paths_free(f->trees[t].down, f->nranks);
    }
    free(f->trees);
    free(f->present);
    free(f->host_of);
    free(f->claim.cut);
    bny_dual_free(f->claim.dual);
    free(f);
}

/* 1 + the largest step of an edge, in either direction. */
static uint32_t steps_of(const struct bny_tree *tree, int nranks)
{
    uint32_t n = 0;

    for (int v = 0; v < nranks; v++) {
        if (tree->parent[v] >= 0 && tree->step[v] >= n)
            n = tree->step[v] + 1;
        if (tree->down_parent && tree->down_parent[v] >= 0 && tree->down_step[v] >= n)
            n = tree->down_step[v] + 1;
    }
    return n;
}

int bny_forest_finish(struct bny_forest **out, struct bny_forest *f)
{
    f->nsteps = 0;
    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];

        if (steps_of(tree, f->nranks) > f->nsteps)
            f->nsteps = steps_of(tree, f->nranks);
    }
    *out = f;
    return 0;
}

int bny_forest_no_memory(const char *name, int nranks)
{
    return bny_fail(BANYAN_ENOMEM, "no memory for the %s forest of %d ranks", name, nranks);
}

int bny_log2_ceil(int n)
{
    int l = 0;

    while ((1 << l) < n)
        l++;
    return l;
}

static int violated(char *why, size_t cap, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static int violated(char *why, size_t cap, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (why && cap)
        snprintf(why, cap, "%s", text);
    return bny_fail(BANYAN_EINVAL, "forest: %s", text);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t r = a % b;

        a = b;
        b = r;
    }
    return a;
}

/* Sums a reduced fraction; denominators too large for that are rejected. */
static int check_weights(const struct bny_forest *f, char *why, size_t cap)
{
    uint64_t num = 0, den = 1;

    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];
        uint64_t g, mine, sum;

        if (!tree->weight_num || !tree->weight_den)
            return violated(why, cap, "tree %d has weight %u/%u", t, tree->weight_num,
                            tree->weight_den);
        g = gcd(den, tree->weight_den);
        if (__builtin_mul_overflow(num, tree->weight_den / g, &sum) ||
            __builtin_mul_overflow(tree->weight_num, den / g, &mine) ||
            __builtin_add_overflow(sum, mine, &sum) ||
            __builtin_mul_overflow(den / g, tree->weight_den, &den))
            return violated(why, cap,
                            "weights up to tree %d have no common denominator below "
                            "2^64",
                            t);
        g = gcd(sum, den);
        num = sum / g;
        den /= g;
    }
    if (num != 1 || den != 1)
        return violated(why, cap, "weights sum to %llu/%llu, not 1", (unsigned long long)num,
                        (unsigned long long)den);
    return 0;
}

/* Checks a separate broadcast direction; its steps grow away from the root. */
/* Is rank v in the reduction? */
static int is_part(const struct bny_forest *f, int v)
{
    return !f->present || f->present[v];
}

/* Does rank v get the result of tree t from another one? */
static int is_served(const struct bny_forest *f, int t, int v)
{
    return v != f->trees[t].root && (f->sink < 0 || v == f->sink);
}

static int check_down(const struct bny_forest *f, int t, char *why, size_t cap)
{
    const struct bny_tree *tree = &f->trees[t];

    if (!tree->down_parent || !tree->down_step)
        return violated(why, cap, "tree %d has half of a broadcast direction", t);
    for (int v = 0; v < f->nranks; v++) {
        int p = tree->down_parent[v];

        if (!is_served(f, t, v)) {
            if (p != -1)
                return violated(why, cap, "tree %d: %s %d has broadcast parent %d", t,
                                v == tree->root ? "root" : "rank", v, p);
            continue;
        }
        if (p < 0 || p >= f->nranks || p == v)
            return violated(why, cap, "tree %d: rank %d has broadcast parent %d", t, v, p);
        if (tree->down_step[v] >= f->nsteps)
            return violated(why, cap, "tree %d: rank %d has broadcast step %u of %u", t, v,
                            tree->down_step[v], f->nsteps);
        if (p != tree->root && tree->down_step[v] <= tree->down_step[p])
            return violated(why, cap,
                            "tree %d: broadcast step %u of rank %d is not above step %u of its "
                            "parent %d",
                            t, tree->down_step[v], v, tree->down_step[p], p);
    }
    return 0;
}

/* Steps that grow strictly towards the root also exclude cycles, and as each rank has one
 * parent, every rank reaches the root. */
static int check_tree(const struct bny_forest *f, int t, char *why, size_t cap)
{
    const struct bny_tree *tree = &f->trees[t];

    if (tree->root < 0 || tree->root >= f->nranks)
        return violated(why, cap, "tree %d has root %d of %d ranks", t, tree->root, f->nranks);
    if (!is_part(f, tree->root))
        return violated(why, cap, "tree %d has root %d, which is absent", t, tree->root);
    if (f->present && !tree->down_parent && (f->sink < 0 || f->sink != tree->root))
        return violated(why, cap, "tree %d tells its result to nobody", t);
    for (int v = 0; v < f->nranks; v++) {
        int p = tree->parent[v];

        if (v == tree->root || !is_part(f, v)) {
            if (p != -1)
                return violated(why, cap, "tree %d: %s %d has parent %d", t,
                                v == tree->root ? "root" : "absent rank", v, p);
            continue;
        }
        if (p < 0 || p >= f->nranks || p == v || !is_part(f, p))
            return violated(why, cap, "tree %d: rank %d has parent %d", t, v, p);
        if (tree->step[v] >= f->nsteps)
            return violated(why, cap, "tree %d: rank %d has step %u of %u", t, v, tree->step[v],
                            f->nsteps);
        if (p != tree->root && tree->step[v] >= tree->step[p])
            return violated(why, cap,
                            "tree %d: step %u of rank %d is not below step %u of its "
                            "parent %d",
                            t, tree->step[v], v, tree->step[p], p);
    }
    return tree->down_parent || tree->down_step ? check_down(f, t, why, cap) : 0;
}

/* Trees are in order of their roots, and each rank's weights sum to 1/n. */
static int check_scattered(const struct bny_forest *f, char *why, size_t cap)
{
    int t = 0;

    for (int r = 0; r < f->nranks; r++) {
        struct bny_ratio sum = bny_ratio_of(0, 1);
        char text[48];

        for (; t < f->ntrees && f->trees[t].root == r; t++)
            sum = bny_ratio_add(sum,
                                bny_ratio_of(f->trees[t].weight_num, f->trees[t].weight_den));
        if (bny_ratio_cmp(sum, bny_ratio_of(1, f->nranks)) || !bny_ratio_ok(sum))
            return violated(why, cap,
                            "the trees in order give rank %d a weight of %s instead of 1/%d", r,
                            bny_ratio_text(sum, text, sizeof text), f->nranks);
    }
    return t == f->ntrees
               ? 0
               : violated(why, cap, "tree %d has root %d out of order", t, f->trees[t].root);
}

static int check_use(const struct bny_forest *f, enum bny_forest_use use, int root, char *why,
                     size_t cap)
{
    if (use == BNY_FOREST_SCATTERED)
        return check_scattered(f, why, cap);
    for (int t = 0; use == BNY_FOREST_ROOTED && t < f->ntrees; t++)
        if (f->trees[t].root != root)
            return violated(why, cap, "tree %d has root %d instead of %d", t, f->trees[t].root,
                            root);
    return 0;
}

int bny_forest_check(const struct bny_forest *f, enum bny_forest_use use, int root, char *why,
                     size_t why_cap)
{
    int e;
    uint32_t longest = 0;

    if (f->nranks < 1 || f->ntrees < 1)
        return violated(why, why_cap, "%d ranks and %d trees", f->nranks, f->ntrees);
    if (use == BNY_FOREST_ROOTED && (root < 0 || root >= f->nranks))
        return violated(why, why_cap, "root %d of %d ranks", root, f->nranks);
    for (int t = 0; t < f->ntrees; t++) {
        e = check_tree(f, t, why, why_cap);
        if (e)
            return e;
        if (steps_of(&f->trees[t], f->nranks) > longest)
            longest = steps_of(&f->trees[t], f->nranks);
    }
    if (longest != f->nsteps)
        return violated(why, why_cap, "nsteps is %u, the trees have %u", f->nsteps, longest);
    e = check_weights(f, why, why_cap);
    return e ? e : check_use(f, use, root, why, why_cap);
}

int bny_forest_height(const struct bny_forest *f, int down)
{
    int most = 0;

    for (int t = 0; t < f->ntrees; t++) {
        const struct bny_tree *tree = &f->trees[t];
        const int *parent = down && tree->down_parent ? tree->down_parent : tree->parent;

        for (int v = 0; v < f->nranks; v++) {
            int depth = 0;

            for (int u = v; parent[u] >= 0; u = parent[u])
                depth++;
            most = depth > most ? depth : most;
        }
    }
    return most;
}
