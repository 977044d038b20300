/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks below switches: star, fat tree, BiGraph. Host links have capacity 1 unless said
 * otherwise. Rows of the drawing: ranks at the bottom (large y), upper switches above them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/gen.h"

/* "4x100+4x25": 4 hosts of capacity 100, then 4 of 25; "8": 8 of capacity 1. */
static int make_star(struct bny_graph *g, const char *args)
{
    char group[40];
    int x = 0, hub = bny_gen_switch(g, "sw", 0, 0, 0);

    for (const char *s = args; hub >= 0;) {
        size_t len = strcspn(s, "+");
        int v[2] = { 0, 1 }, n;
        if (len >= sizeof group)
            return bny_gen_usage(args, bny_gen_star.usage);
        memcpy(group, s, len);
        group[len] = 0;
        n = bny_gen_dims(v, 2, group, bny_gen_star.usage);
        if (n < 0)
            return n;
        if (x + v[0] > BNY_GEN_RANKS_MAX)
            return bny_gen_usage(args, bny_gen_star.usage);
        for (int i = 0; i < v[0]; i++, x++) {
            int r = bny_gen_rank(g, x, x, 1, 0);
            int e = r < 0 ? r : bny_graph_both(g, r, hub, v[1], BNY_GEN_LAT_NET);
            if (e < 0)
                return e;
        }
        if (!s[len])
            break;
        s += len + 1;
    }
    if (hub >= 0)
        g->nodes[hub].x = x / 2;
    return hub < 0 ? hub : 0;
}

/* k-ary n-tree (Petrini and Vanneschi, IPPS 1997): k^n ranks and n levels of up to k^(n-1) switches with k links down
 * and k up. Numbers of switches have n - 1 digits in base k; switch w of level l - 1 is joined with those of level l
 * that differ from it in digit l - 1 at most. Oversubscription R keeps the upward links whose digit is below k/R, so
 * that a level l has only switches with digits 0 .. l-1 below k/R. */
static int kept(int w, int level, int k, int over)
{
    for (; level > 0; level--, w /= k)
        if (w % k >= k / over)
            return 0;
    return 1;
}

/* Level l above `down`; up[w]: the node of switch w. digit = k^(l-1). */
static int fattree_level(struct bny_graph *g, const int *down, int *up, int n, int l, int k, int over, int digit)
{
    for (int w = 0; w < n; w++) {
        if (!kept(w, l, k, over))
            continue;
        for (int d = 0; d < k; d++) {
            int below = w + (d - w / digit % k) * digit;
            int e = kept(below, l - 1, k, over)
                        ? bny_graph_both(g, down[below], up[w], 1, BNY_GEN_LAT_NET) : 0;
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
    const struct bny_gen_option options[] = { { "levels", &levels, 1, 6 }, { "over", &over, 1, 1024 } };
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
        return bny_fail(BANYAN_EINVAL, "fattree:%.40s: ranks must be K to the power of %d levels, and K divisible by "
                        "the oversubscription %d", args, levels, over);
    node = calloc((size_t)ranks * (size_t)(levels + 1), sizeof *node);
    if (!node)
        return bny_fail(BANYAN_ENOMEM, "no memory for a fat tree of %d ranks", ranks);
    e = fattree(g, node, ranks, k, levels, over);
    free(node);
    return e;
}

/* Dong et al., "EFLOPS" (HPCA 2020): two layers of S/2 switches each, every upper one joined with every lower one, H
 * ranks on each. */
static int make_bigraph(struct bny_graph *g, const char *args)
{
    int v[2], e = bny_gen_dims(v, 2, args, bny_gen_bigraph.usage), hosts = v[0], switches = v[1];

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
        e = sw = bny_gen_switch(g, name, (s % (switches / 2)) * hosts + hosts / 2, upper ? 1 : 2, 0);
        for (int i = 0; i < hosts && e >= 0; i++)
            e = bny_graph_both(g, s * hosts + i, sw, 1, BNY_GEN_LAT_NET);
        for (int u = 0; !upper && u < switches / 2 && e >= 0; u++)
            e = bny_graph_both(g, hosts * switches + u, sw, 1, BNY_GEN_LAT_NET);
        if (e < 0)
            return e;
    }
    return 0;
}

const struct bny_generator bny_gen_star = {
    "star", "star:N[xC][+N[xC]...]  N hosts of capacity C (1) on one switch; star:4x100+4x25 has fast and slow ones",
    make_star
};
const struct bny_generator bny_gen_fattree = {
    "fattree", "fattree:RANKS[,levels=2][,over=1]  K-ary tree of K^levels ranks, oversubscribed over:1 upwards",
    make_fattree
};
const struct bny_generator bny_gen_bigraph = {
    "bigraph", "bigraph:HxS  S switches in two fully joined layers, H ranks on each (bigraph:4x8 has 32 ranks)",
    make_bigraph
};
