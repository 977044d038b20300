/* SPDX-License-Identifier: BSD-3-Clause */
/* Lower bounds for allreduce with any roots and overlapping phases (bound.h), from simple
 * proofs to hard ones: the smallest cut; all ports or all parts of a partition together; the
 * linear program's dual. If a simple bound equals that of reduce-scatter + allgather, both are
 * exact and no program is solved. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/bound.h"
#include "topo/cuts.h"
#include "topo/joint_lp.h"

/* Takes the new value and copies the cut if the value is larger. */
static void raise_to(struct bny_bound *out, struct bny_ratio value, enum bny_cut_kind kind,
                     const uint8_t *cut)
{
    if (!bny_ratio_ok(value) || bny_ratio_cmp(value, out->value) <= 0)
        return;
    out->value = value;
    out->kind = kind;
    memcpy(out->cut, cut, (size_t)out->cut_nodes);
}

/* The smallest cut: from rank 0 to the others and back; one of both sides of any cut holds rank
 * 0. */
static int bound_allreduce_split(struct bny_bound *out, const struct bny_graph *g, uint8_t *cut)
{
    for (int reversed = 0; reversed < 2; reversed++) {
        int64_t value;
        int e = bny_cut_from(g, 0, reversed, &value, cut);

        if (e)
            return e;
        raise_to(out, bny_ratio_of(1, value), BNY_CUT_SPLIT, cut);
    }
    return 0;
}

struct bny_ratio bny_bound_ports(const struct bny_graph *g)
{
    int64_t in = 0, out = 0;

    for (int l = 0; l < g->nlinks; l++) {
        in += g->nodes[g->links[l].to].rank >= 0 ? g->links[l].cap : 0;
        out += g->nodes[g->links[l].from].rank >= 0 ? g->links[l].cap : 0;
    }
    return bny_ratio_of(2 * ((int64_t)g->nranks - 1), in < out ? in : out);
}

struct bny_ratio bny_bound_parts(const struct bny_graph *g, const uint8_t *part)
{
    uint8_t has[256] = { 0 };
    int64_t in = 0, out = 0, k = 0;

    for (int r = 0; r < g->nranks; r++)
        has[part[g->rank_node[r]]] = 1;
    for (int p = 1; p < 256; p++)
        k += has[p];
    for (int l = 0; l < g->nlinks; l++) {
        int from = part[g->links[l].from], to = part[g->links[l].to];

        if (from == to)
            continue;
        in += has[to] && to ? g->links[l].cap : 0;
        out += has[from] && from ? g->links[l].cap : 0;
    }
    in = in < out ? in : out;
    return k < 2 || in <= 0 ? bny_ratio_of(0, 1) : bny_ratio_of(2 * (k - 1), in);
}

/* Nodes on the ranks' side of the smallest cut around one host join the host's part. */
static int grow_part(const struct bny_graph *g, int host, uint8_t number, uint8_t *part,
                     uint8_t *mark)
{
    struct bny_cuts c;
    int e = bny_cuts_of_graph(&c, g, 0), sink;

    if (e)
        return e;
    sink = -1;
    for (int r = 0; r < g->nranks; r++) {
        int v = g->rank_node[r], mine = g->nodes[v].host == host;

        bny_flow_set(&c.flow, c.feed[r], mine ? 0 : BNY_FLOW_INF);
        if (mine && sink < 0)
            sink = v;
        else if (mine)
            e = bny_flow_arc(&c.flow, v, sink, BNY_FLOW_INF) < 0 ? -BANYAN_ENOMEM : e;
    }
    for (int l = 0; l < g->nlinks; l++)
        bny_cuts_cap(&c, l, g->links[l].cap);
    bny_flow_reset(&c.flow);
    bny_flow_run(&c.flow, c.source, sink, BNY_FLOW_INF);
    bny_flow_side(&c.flow, c.source, mark);
    for (int v = 0; v < g->nnodes; v++)
        if (!mark[v] && !part[v])
            part[v] = number;
    bny_cuts_free(&c);
    return e;
}

/* A part for each host that has ranks; at most 255. */
static int hosts(struct bny_bound *out, const struct bny_graph *g, uint8_t *part, uint8_t *mark)
{
    int n = 0, e = 0;

    memset(part, 0, (size_t)g->nnodes);
    for (int r = 0; r < g->nranks && !e; r++) {
        int v = g->rank_node[r];

        if (part[v])
            continue;
        if (n == 255 || g->nodes[v].host < 0)
            return 0;
        e = grow_part(g, g->nodes[v].host, (uint8_t)++n, part, mark);
    }
    if (!e && n > 1 && n < g->nranks)
        raise_to(out, bny_bound_parts(g, part), BNY_CUT_PARTS, part);
    return e;
}

/* One side of the smallest cut with the rest as single ranks is no useful partition; both sides
 * are. */
static int simple(struct bny_bound *out, const struct bny_graph *g)
{
    uint8_t *cut = malloc((size_t)g->nnodes + 1), *part = malloc((size_t)g->nnodes + 1);
    int e = cut && part ? bound_allreduce_split(out, g, cut)
                        : bny_fail(BANYAN_ENOMEM, "no memory for cuts of %s", g->name);

    if (!e) {
        memset(cut, 1, (size_t)g->nnodes);
        raise_to(out, bny_bound_ports(g), BNY_CUT_PORTS, cut);
        e = hosts(out, g, part, cut);
    }
    free(cut);
    free(part);
    return e;
}

static int linear_program(struct bny_bound *out, const struct bny_graph *g)
{
    struct bny_joint j;
    struct bny_ratio value;
    int e = bny_joint_solve(&j, g);

    if (e)
        return e == -BANYAN_ENOTSUP ? 0 : e;
    value = bny_dual_value(j.dual, g);
    if (bny_ratio_ok(value) && bny_ratio_cmp(value, out->value) > 0) {
        out->value = value;
        out->kind = BNY_CUT_LP;
        memset(out->cut, 1, (size_t)out->cut_nodes);
        out->dual = j.dual;
        j.dual = NULL;
    }
    bny_joint_free(&j);
    return 0;
}

int bny_bound_allreduce(struct bny_bound *out, const struct bny_graph *g)
{
    struct bny_bound apart;
    int e = bny_bound_rs_ag(&apart, g);

    memset(out, 0, sizeof *out);
    if (e)
        return e;
    out->cut = calloc((size_t)g->nnodes + 1, 1);
    out->cut_nodes = g->nnodes;
    out->value = bny_ratio_of(0, 1);
    if (!out->cut)
        e = bny_fail(BANYAN_ENOMEM, "no memory for a cut of %d nodes", g->nnodes);
    if (!e && g->nranks > 1)
        e = simple(out, g);
    if (!e && g->nranks > 1 && bny_ratio_cmp(out->value, apart.value) < 0)
        e = linear_program(out, g);
    bny_bound_free(&apart);
    if (e) {
        bny_bound_free(out);
        return e;
    }
    out->shard = bny_ratio_mul(out->value, bny_ratio_of(g->nranks, 1));
    return 0;
}
