/* SPDX-License-Identifier: BSD-3-Clause */
/* blueconnect: first inside hosts, then across them (BlueConnect, Cho et al., MLSys 2019, with
 * two levels). Ranks of one host share a number; rank j of each host forms rail j with the j-th
 * ranks of the others (a host with fewer ranks repeats them). Tree r, rank r the j-th of host
 * H: in every host all ranks send directly to the host's rank on rail j; rail j then runs a
 * two-armed ring to H. With m hosts of h ranks:
 *
 *   allreduce  2 (1 + floor(m/2)) steps; inside a host 2 (h-1)/h S, across 2 (m-1)/(m h) S per
 *              rail
 *   scattered  half of it
 *   rooted     one tree: a binomial tree over hosts, a star in each */
#include <stdlib.h>

#include "base/err.h"
#include "topo/build_graph.h"

struct hosts {
    int n;   /* hosts with ranks */
    int *of; /* [nranks] 0 .. n-1 in order of their first ranks; a rank without host has its own
              */
    int *place;   /* [nranks] the rank's index in its host */
    int *first;   /* [n + 1] members[first[h] .. first[h+1]) */
    int *members; /* [nranks] in order of ranks */
};

static void hosts_free(struct hosts *h)
{
    free(h->of);
    free(h->place);
    free(h->first);
    free(h->members);
}

static int hosts_make(struct hosts *h, const struct bny_graph *g)
{
    size_t n = (size_t)g->nranks;

    *h = (struct hosts){ .of = malloc(n * sizeof *h->of),
                         .place = malloc(n * sizeof *h->place),
                         .first = calloc(n + 2, sizeof *h->first),
                         .members = malloc(n * sizeof *h->members) };
    if (!h->of || !h->place || !h->first || !h->members)
        return -BANYAN_ENOMEM;
    for (int r = 0; r < g->nranks; r++) {
        int host = g->nodes[g->rank_node[r]].host, s = 0;

        while (s < r && (host < 0 || g->nodes[g->rank_node[s]].host != host))
            s++;
        h->of[r] = s < r ? h->of[s] : h->n++;
        h->place[r] = h->first[h->of[r] + 1]++;
    }
    for (int i = 0; i < h->n; i++)
        h->first[i + 1] += h->first[i];
    for (int r = 0; r < g->nranks; r++)
        h->members[h->first[h->of[r]] + h->place[r]] = r;
    return 0;
}

/* Host i's rank on rail j. */
static int on_rail(const struct hosts *h, int i, int j)
{
    return h->members[h->first[i] + j % (h->first[i + 1] - h->first[i])];
}

static void lay_tree(struct bny_tree *tree, const struct hosts *h,
                     const struct bny_tree *across, int n, int root)
{
    int rail = h->place[root];

    tree->root = root;
    for (int v = 0; v < n; v++) {
        int host = h->of[v], head = on_rail(h, host, rail);

        if (v != head) {
            tree->parent[v] = head;
        } else if (v != root) {
            tree->parent[v] = on_rail(h, across->parent[host], rail);
            tree->step[v] = 1 + across->step[host];
        }
    }
}

static int blueconnect_build(struct bny_forest **out, const struct bny_graph *g,
                             enum bny_forest_use use, int root,
                             const struct bny_build_opts *opts)
{
    int rooted = use == BNY_FOREST_ROOTED, n = g->nranks, e;
    struct bny_forest *across = NULL, *f;
    struct hosts h;

    *out = NULL;
    e = hosts_make(&h, g);
    f = e ? NULL : bny_forest_alloc("blueconnect", n, rooted ? 1 : n);
    if (!f) {
        hosts_free(&h);
        return bny_forest_no_memory("blueconnect", n);
    }
    if (rooted)
        e = bny_build_binomial.build(&across, h.n, BNY_FOREST_ROOTED, h.of[root]);
    else
        e = bny_build_ring.build(&across, h.n, BNY_FOREST_SCATTERED, 0);
    for (int t = 0; !e && t < f->ntrees; t++) {
        int at = rooted ? root : t;

        lay_tree(&f->trees[t], &h, &across->trees[rooted ? 0 : h.of[at]], n, at);
    }
    bny_forest_free(across);
    hosts_free(&h);
    if (e) {
        bny_forest_free(f);
        return e;
    }
    return bny_graph_forest_finish(out, f, g, use, root);
}

const struct bny_graph_builder_ops bny_build_blueconnect = {
    .name = "blueconnect",
    .uses = BNY_FOREST_ALLREDUCE | BNY_FOREST_SCATTERED | BNY_FOREST_ROOTED,
    .build = blueconnect_build,
};
