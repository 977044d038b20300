/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo bound: the exact lower bound of a collective on a graph, and the cut that proves
 * it. "bound" is 1/x* = max |X & compute| / B+(X) in the graph's capacities, that is the time
 * in shards of 1/ranks; for broadcast, reduce and joint allreduce the same as a time over S is
 * "value". */
#include <stdlib.h>

#include "base/clock.h"
#include "tools/topo.h"
#include "topo/bound.h"
#include "topo/plan_file.h"

static int compute(struct bny_bound *b, const struct bny_graph *g, const struct topo_opts *o)
{
    switch (o->collective) {
    case TOPO_ALLREDUCE:
        return o->joint ? bny_bound_allreduce(b, g) : bny_bound_allgather(b, g);
    case TOPO_ALLGATHER: return bny_bound_allgather(b, g);
    case TOPO_REDUCE_SCATTER: return bny_bound_reduce_scatter(b, g);
    case TOPO_BROADCAST:
    case TOPO_REDUCE: return bny_bound_rooted(b, g, o->root, o->collective == TOPO_REDUCE);
    }
    return 0;
}

static void print_json(FILE *f, const struct bny_graph *g, const struct bny_bound *b,
                       double seconds)
{
    const char *comma = "";
    char text[48];

    fprintf(f, "{\"topo\":");
    topo_json_text(f, g->name);
    fprintf(f, ",\"ranks\":%d,\"bound\":\"%s\"", g->nranks,
            bny_ratio_text(b->shard, text, sizeof text));
    fprintf(f, ",\"value\":\"%s\",\"kind\":\"%s\",\"cut\":[",
            bny_ratio_text(b->value, text, sizeof text), bny_cut_kind_name((int)b->kind));
    for (int v = 0; v < b->cut_nodes; v++)
        if (b->cut[v]) {
            fprintf(f, "%s%d", comma, v);
            comma = ",";
        }
    fprintf(f, "],\"seconds\":%.6f}\n", seconds);
}

static void print_text(FILE *f, const struct bny_graph *g, const struct bny_bound *b,
                       const struct topo_opts *o, double seconds)
{
    double value = bny_ratio_value(b->value);
    char text[2][48];
    int shown = 0;

    fprintf(f,
            "%s: %d ranks; at least %s shards of 1/%d, %s of the vector, over capacity 1 (%.4g "
            "GB/s)\n",
            g->name, g->nranks, bny_ratio_text(b->shard, text[0], 48), g->nranks,
            bny_ratio_text(b->value, text[1], 48), value > 0 ? g->unit_Bps / value / 1e9 : 0.0);
    if (o->collective == TOPO_ALLREDUCE && !o->joint)
        fprintf(f, "  in each phase: reduce-scatter, then allgather; --joint bounds allreduce "
                   "with any roots\n");
    fprintf(f, "  proof: %s; nodes", bny_cut_kind_name((int)b->kind));
    for (int v = 0; v < b->cut_nodes; v++)
        if (b->cut[v] && ++shown <= 24)
            fprintf(f, " %s", g->nodes[v].name);
    if (shown > 24)
        fprintf(f, " and %d more", shown - 24);
    if (b->dual)
        fprintf(f, "; %d weighted sets of nodes", b->dual->nsets);
    fprintf(f, "\n  %.6f s to compute\n", seconds);
}

static int topo_bound_run(const struct topo_opts *o)
{
    struct bny_bound b;
    struct bny_graph *g;
    uint64_t since;
    double seconds;
    FILE *f;

    if (o->nargs)
        return topo_failed_args(o);
    if (topo_graph(&g, o))
        return topo_failed(NULL);
    if (topo_root_missing(o, g)) {
        bny_graph_free(g);
        return 2;
    }
    since = bny_now_ns();
    if (compute(&b, g, o)) {
        bny_graph_free(g);
        return topo_failed(o->topo);
    }
    seconds = (double)(bny_now_ns() - since) * 1e-9;
    f = topo_open(o);
    if (f && o->json)
        print_json(f, g, &b, seconds);
    else if (f)
        print_text(f, g, &b, o, seconds);
    bny_bound_free(&b);
    bny_graph_free(g);
    return f ? topo_close(f, o) : 1;
}

const struct topo_command topo_bound = {
    .name = "bound",
    .options = "tcrjoJ",
    .usage = "the least time that the graph allows, exactly, and the cut that proves it",
    .run = topo_bound_run,
};
