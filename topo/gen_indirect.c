/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks below switches: star, fat tree, leaf-spine, BiGraph, dragonfly. Host links have
 * capacity 1 unless specified otherwise. Rows of the drawing: ranks at the bottom (large y),
 * upper switches above them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/gen.h"

/* "4x100+4x25": 4 hosts of capacity 100, then 4 of 25; "8": 8 of capacity 1. Ranks come first,
 * so their capacities are stored until the switch has its number. */
static int star_group(const char *text, size_t len, int *v)
{
    char group[40];

    if (len >= sizeof group)
        return bny_gen_usage(text, bny_gen_star.usage);
    memcpy(group, text, len);
    group[len] = 0;
    v[1] = 1;
    return bny_gen_dims(v, 2, group, bny_gen_star.usage);
}

static int make_star(struct bny_graph *g, const char *args)
{
    int hosts = 0, r = 0, hub, e = 0, v[2];

    for (const char *s = args;; s++) {
        size_t len = strcspn(s, "+");
        e = star_group(s, len, v);
        if (e >= 0 && (hosts += v[0]) > BNY_GEN_RANKS_MAX)
            e = bny_gen_usage(args, bny_gen_star.usage);
        s += len;
        if (e < 0 || !*s)
            break;
    }
    for (int i = 0; i < hosts && e >= 0; i++)
        e = bny_gen_rank(g, i, i, 1, 0);
    e = hub = e < 0 ? e : bny_gen_switch(g, "sw", hosts / 2, 0, 0);
    for (const char *s = args; e >= 0; s++) {
        size_t len = strcspn(s, "+");
        e = star_group(s, len, v);
        for (int i = 0; i < v[0] && e >= 0; i++)
            e = bny_graph_both(g, r++, hub, v[1], BNY_GEN_LAT_NET);
        s += len;
        if (!*s)
            break;
    }
    return e;
}

/* k-ary n-tree (Petrini and Vanneschi, IPPS 1997): k^n ranks and n levels of up to k^(n-1)
 * switches with k links down and k up. Numbers of switches have n - 1 digits in base k; switch
 * w of level l - 1 is connected to those of level l that differ from it at most in digit l - 1.
 * Oversubscription R keeps the upward links whose digit is below k/R, so that a level l has
 * only switches with digits 0 .. l-1 below k/R. */
static int kept(int w, int level, int k, int over)
{
    for (; level > 0; level--, w /= k)
        if (w % k >= k / over)
            return 0;
    return 1;
}

/* Level l above `down`; up[w]: the node of switch w. digit = k^(l-1). */
static int fattree_level(struct bny_graph *g, const int *down, int *up, int n, int l, int k,
                         int over, int digit)
{
    for (int w = 0; w < n; w++) {
        if (!kept(w, l, k, over))
            continue;
        for (int d = 0; d < k; d++) {
            int below = w + (d - w / digit % k) * digit;
            int e = kept(below, l - 1, k, over)
                        ? bny_graph_both(g, down[below], up[w], 1, BNY_GEN_LAT_NET)
                        : 0;
            if (e < 0)
                return e;
        }
    }
    return 0;
}

/* node: room for (levels + 1) x ranks. */
static int fattree(struct bny_graph *g, int *node, int ranks, int k, int levels, int over)
{
    int n = ranks / k, e = 0, *leaf = node + ranks;

    for (int r = 0; r < ranks && e >= 0; r++)
        e = node[r] = bny_gen_rank(g, r, r, levels, 0);
    for (int l = 0; l < levels && e >= 0; l++)
        for (int w = 0; w < n && e >= 0; w++) {
            char name[40];
            snprintf(name, sizeof name, "s%d.%d", l, w);
            if (kept(w, l, k, over))
                e = leaf[l * n + w] = bny_gen_switch(g, name, w * k + k / 2, levels - 1 - l, 0);
        }
    for (int r = 0; r < ranks && e >= 0; r++)
        e = bny_graph_both(g, node[r], leaf[r / k], 1, BNY_GEN_LAT_NET);
    for (int l = 1, digit = 1; l < levels && e >= 0; l++, digit *= k)
        e = fattree_level(g, leaf + (l - 1) * n, leaf + l * n, n, l, k, over, digit);
    return e;
}

static int make_fattree(struct bny_graph *g, const char *args)
{
    int levels = 2, over = 1, ranks, k = 0, power = 0, e, *node;
    const struct bny_gen_option options[] = { { "levels", &levels, 1, 6 },
                                              { "over", &over, 1, 1024 } };
    char head[32];

    e = bny_gen_options(head, sizeof head, args, options, 2, bny_gen_fattree.usage);
    if (!e)
        e = bny_gen_dims(&ranks, 1, head, bny_gen_fattree.usage);
    if (e < 0)
        return e;
    while (power < ranks) {
        power = ++k;
        for (int l = 1; l < levels && power <= ranks; l++)
            power *= k;
    }
    if (power != ranks || k % over)
        return bny_fail(
            BANYAN_EINVAL,
            "fattree:%.40s: ranks must be K to the power of %d levels, and K divisible by "
            "the oversubscription %d",
            args, levels, over);
    node = calloc((size_t)ranks * (size_t)(levels + 1), sizeof *node);
    if (!node)
        return bny_fail(BANYAN_ENOMEM, "no memory for a fat tree of %d ranks", ranks);
    e = fattree(g, node, ranks, k, levels, over);
    free(node);
    return e;
}

/* Dong et al., "EFLOPS" (HPCA 2020): two layers of S/2 switches each, each upper one connected
 * to each lower one, H ranks on each. */
static int make_bigraph(struct bny_graph *g, const char *args)
{
    int v[2], e = bny_gen_dims(v, 2, args, bny_gen_bigraph.usage), hosts = v[0],
              switches = v[1];

    if (e < 0)
        return e;
    if (e != 2 || switches % 2)
        return bny_gen_usage(args, bny_gen_bigraph.usage);
    for (int r = 0; r < hosts * switches; r++) {
        int s = r / hosts, upper = s < switches / 2;
        e = bny_gen_rank(g, r, (s % (switches / 2)) * hosts + r % hosts, upper ? 0 : 3, 0);
        if (e < 0)
            return e;
    }
    for (int s = 0; s < switches; s++) {
        char name[40];
        int upper = s < switches / 2, sw;
        snprintf(name, sizeof name, "%s%d", upper ? "upper" : "lower", s % (switches / 2));
        e = sw =
            bny_gen_switch(g, name, (s % (switches / 2)) * hosts + hosts / 2, upper ? 1 : 2, 0);
        for (int i = 0; i < hosts && e >= 0; i++)
            e = bny_graph_both(g, s * hosts + i, sw, 1, BNY_GEN_LAT_NET);
        for (int u = 0; !upper && u < switches / 2 && e >= 0; u++)
            e = bny_graph_both(g, hosts * switches + u, sw, 1, BNY_GEN_LAT_NET);
        if (e < 0)
            return e;
    }
    return 0;
}

/* Row 0: spines, row 1: leaves, row 2: hosts. */
static int make_leafspine(struct bny_graph *g, const char *args)
{
    int v[2], spines = 0, over = 1, e, cap;
    const struct bny_gen_option options[] = { { "spines", &spines, 1, 4096 },
                                              { "over", &over, 1, 4096 } };
    char head[40], name[40];

    e = bny_gen_options(head, sizeof head, args, options, 2, bny_gen_leafspine.usage);
    if (!e)
        e = bny_gen_dims(v, 2, head, bny_gen_leafspine.usage);
    if (e < 0)
        return e;
    if (e != 2)
        return bny_gen_usage(args, bny_gen_leafspine.usage);
    if (!spines)
        spines = v[1] / over;
    if (!spines || v[1] % (over * spines))
        return bny_fail(
            BANYAN_EINVAL,
            "leafspine:%.40s: the hosts of a leaf must be divisible by over x spines, so "
            "that uplinks have whole capacities",
            args);
    cap = v[1] / over / spines;
    for (int r = 0; r < v[0] * v[1] && e >= 0; r++)
        e = bny_gen_rank(g, r, r / v[1] * (v[1] + 1) + r % v[1], 2, 0);
    for (int s = 0; s < spines + v[0] && e >= 0; s++) {
        int leaf = s - spines;
        snprintf(name, sizeof name, leaf < 0 ? "spine%d" : "leaf%d", leaf < 0 ? s : leaf);
        e = bny_gen_switch(g, name,
                           leaf < 0 ? (2 * s + 1) * v[0] * (v[1] + 1) / (2 * spines)
                                    : leaf * (v[1] + 1) + v[1] / 2,
                           leaf >= 0, 0);
        for (int h = 0; leaf >= 0 && h < v[1] && e >= 0; h++)
            e = bny_graph_both(g, leaf * v[1] + h, v[0] * v[1] + s, 1, BNY_GEN_LAT_NET);
        for (int up = 0; leaf >= 0 && up < spines && e >= 0; up++)
            e = bny_graph_both(g, v[0] * v[1] + up, v[0] * v[1] + s, cap, BNY_GEN_LAT_NET);
    }
    return e;
}

/* Kim, Dally, Scott, Abts (ISCA 2008): G groups of A routers, fully connected within a group, P
 * ranks on each router, one link between any two groups. Global port k of a group (on its
 * router k / h) leads to the group k + 1 further on. */
static int make_dragonfly(struct bny_graph *g, const char *args)
{
    int v[3], e = bny_gen_dims(v, 3, args, bny_gen_dragonfly.usage), h, first;

    if (e != 3)
        return e < 0 ? e : bny_gen_usage(args, bny_gen_dragonfly.usage);
    h = (v[0] - 1 + v[1] - 1) / v[1];
    first = v[0] * v[1] * v[2];
    for (int r = 0; r < first && e >= 0; r++) {
        int router = r / v[2];
        e = bny_gen_rank(g, r, router % v[1] * (v[2] + 1) + r % v[2], router / v[1] * 3, 0);
    }
    for (int s = 0; s < v[0] * v[1] && e >= 0; s++) {
        char name[40];
        snprintf(name, sizeof name, "g%d.%d", s / v[1], s % v[1]);
        e = bny_gen_switch(g, name, s % v[1] * (v[2] + 1) + v[2] / 2, s / v[1] * 3 + 1, 0);
        for (int p = 0; p < v[2] && e >= 0; p++)
            e = bny_graph_both(g, s * v[2] + p, first + s, 1, BNY_GEN_LAT_NET);
        for (int o = s / v[1] * v[1]; o < s && e >= 0; o++)
            e = bny_graph_both(g, first + o, first + s, 1, BNY_GEN_LAT_NET);
    }
    for (int i = 0; i < v[0]; i++)
        for (int k = 0; k < v[0] - 1 && e >= 0; k++) {
            int other = (i + k + 1) % v[0];
            if (i < other)
                e = bny_graph_both(g, first + i * v[1] + k / h,
                                   first + other * v[1] + (v[0] - 2 - k) / h, 1,
                                   BNY_GEN_LAT_NET);
        }
    return e;
}

const struct bny_generator bny_gen_leafspine = {
    "leafspine",
    "leafspine:LxH[,over=1][,spines=H/over]  L leaves with H hosts each, oversubscribed over:1",
    make_leafspine
};
const struct bny_generator bny_gen_dragonfly = {
    "dragonfly",
    "dragonfly:GxAxP  G groups of A routers with P ranks each, a link between any two groups",
    make_dragonfly
};
const struct bny_generator bny_gen_star = {
    "star",
    "star:N[xC][+N[xC]...]  N hosts of capacity C (1) on one switch; star:4x100+4x25 has fast "
    "and slow ones",
    make_star
};
const struct bny_generator bny_gen_fattree = {
    "fattree",
    "fattree:RANKS[,levels=2][,over=1]  K-ary tree of K^levels ranks, oversubscribed over:1 "
    "upwards",
    make_fattree
};
const struct bny_generator bny_gen_bigraph = {
    "bigraph",
    "bigraph:HxS  S switches in two fully joined layers, H ranks on each (bigraph:4x8 has 32 "
    "ranks)",
    make_bigraph
};
