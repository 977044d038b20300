/* SPDX-License-Identifier: BSD-3-Clause */
/* Cut bounds (bound.h) by Newton's method on the ratio |X & compute| / B(X): starts at the
 * obvious cut around the rank with the least ingress; a terminal that fails the flow at that
 * ratio gives a cut with a larger one. Terminals that passed stay passed, since a larger ratio
 * only adds capacity, so one pass over the terminals suffices. Capacities are first divided by
 * their greatest common divisor, to stay within 64 bits. */
#include "topo/bound.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/cuts.h"
#include "topo/dual.h"
#include "topo/route.h"

void bny_bound_free(struct bny_bound *b)
{
    free(b->cut);
    bny_dual_free(b->dual);
    memset(b, 0, sizeof *b);
}

int64_t bny_graph_common_cap(const struct bny_graph *g)
{
    int64_t common = 0;

    for (int l = 0; l < g->nlinks; l++)
        for (int64_t a = g->links[l].cap; a;) {
            int64_t r = common % a;

            common = a;
            a = r;
        }
    return common ? common : 1;
}

int64_t bny_cut_out(const struct bny_graph *g, const uint8_t *cut, int mask, int reversed)
{
    int64_t sum = 0;

    for (int l = 0; l < g->nlinks; l++) {
        int from = (cut[g->links[l].from] & mask) != 0, to = (cut[g->links[l].to] & mask) != 0;

        if (reversed ? to && !from : from && !to)
            sum += g->links[l].cap;
    }
    return sum;
}

int bny_cut_ranks(const struct bny_graph *g, const uint8_t *cut, int mask)
{
    int ranks = 0;

    for (int r = 0; r < g->nranks; r++)
        ranks += (cut[g->rank_node[r]] & mask) != 0;
    return ranks;
}

static int too_large(const struct bny_graph *g)
{
    return bny_fail(
        BANYAN_ENOTSUP,
        "the capacities of %s are too large or too uneven for exact bounds in 64 bits; "
        "round them to fewer digits",
        g->name);
}

static int bound_start(struct bny_bound *out, const struct bny_graph *g)
{
    memset(out, 0, sizeof *out);
    out->value = out->shard = bny_ratio_of(0, 1);
    out->cut_nodes = g->nnodes;
    out->cut = calloc((size_t)g->nnodes + 1, 1);
    return out->cut ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a cut of %d nodes", g->nnodes);
}

/* The cut of all nodes but the rank with the least ingress (egress when reversed). */
static void obvious(struct bny_bound *out, const struct bny_graph *g, int reversed)
{
    int64_t least = INT64_MAX;
    int at = 0;

    for (int r = 0; r < g->nranks; r++) {
        int v = g->rank_node[r];
        const int *first = reversed ? g->out_first : g->in_first,
                  *of = reversed ? g->out : g->in;
        int64_t sum = 0;

        for (int i = first[v]; i < first[v + 1]; i++)
            sum += g->links[of[i]].cap;
        if (sum < least) {
            least = sum;
            at = v;
        }
    }
    memset(out->cut, 1, (size_t)g->nnodes);
    out->cut[at] = 0;
    out->shard = bny_ratio_of(g->nranks - 1, least);
}

/* Sets all capacities and demands for the ratio shard = p/q (in units of `common`). Returns 0
 * or -BANYAN_ENOTSUP. */
static int scale(struct bny_cuts *c, const struct bny_graph *g, struct bny_ratio shard,
                 int64_t common)
{
    struct bny_ratio r = bny_ratio_mul(shard, bny_ratio_of(common, 1));
    int64_t sum = 0, cap, need;

    if (!bny_ratio_ok(r) || __builtin_mul_overflow(r.den, (int64_t)g->nranks, &need))
        return too_large(g);
    for (int l = 0; l < g->nlinks; l++)
        if (__builtin_mul_overflow(g->links[l].cap / common, r.num, &cap) ||
            __builtin_add_overflow(sum, cap, &sum))
            return too_large(g);
    if (need >= BNY_FLOW_INF || sum >= BNY_FLOW_INF)
        return too_large(g);
    for (int l = 0; l < g->nlinks; l++)
        bny_cuts_cap(c, l, g->links[l].cap / common * r.num);
    for (int t = 0; t < g->nranks; t++)
        bny_cuts_need(c, t, r.den);
    return 0;
}

static int newton(struct bny_bound *out, const struct bny_graph *g, int reversed)
{
    int64_t common = bny_graph_common_cap(g);
    uint8_t *mark = malloc((size_t)g->nnodes + 1);
    struct bny_cuts c;
    int e = mark ? bny_cuts_of_graph(&c, g, reversed)
                 : bny_fail(BANYAN_ENOMEM, "no memory for a cut of %d nodes", g->nnodes);

    if (e) {
        free(mark);
        return e;
    }
    obvious(out, g, reversed);
    e = scale(&c, g, out->shard, common);
    for (int t = 0; !e;) {
        int64_t leaving;

        t = bny_cuts_violated(&c, t, mark);
        if (t == g->nranks)
            break;
        leaving = bny_cut_out(g, mark, 1, reversed);
        if (leaving <= 0) {
            e = bny_fail(BANYAN_EINVAL, "%s: rank %d cannot be reached by all other ranks",
                         g->name, t);
            break;
        }
        out->shard = bny_ratio_of(bny_cut_ranks(g, mark, 1), leaving);
        memcpy(out->cut, mark, (size_t)g->nnodes);
        e = scale(&c, g, out->shard, common);
    }
    bny_cuts_free(&c);
    free(mark);
    out->value = bny_ratio_div(out->shard, bny_ratio_of(g->nranks, 1));
    return e ? e : bny_ratio_ok(out->value) ? 0 : too_large(g);
}

static int one_way(struct bny_bound *out, const struct bny_graph *g, int reversed)
{
    int e = bound_start(out, g);

    if (!e && g->nranks > 1) {
        out->kind = reversed ? BNY_CUT_IN : BNY_CUT_OUT;
        e = newton(out, g, reversed);
    }
    if (e)
        bny_bound_free(out);
    return e;
}

int bny_bound_allgather(struct bny_bound *out, const struct bny_graph *g)
{
    return one_way(out, g, 0);
}

int bny_bound_reduce_scatter(struct bny_bound *out, const struct bny_graph *g)
{
    return one_way(out, g, 1);
}

int bny_bound_rs_ag(struct bny_bound *out, const struct bny_graph *g)
{
    struct bny_bound rs;
    int e = bny_bound_allgather(out, g), same = bny_graph_is_symmetric(g);

    if (e || g->nranks == 1)
        return e;
    out->kind = BNY_CUT_OUT_IN;
    if (same) {
        out->shard = bny_ratio_add(out->shard, out->shard);
        out->value = bny_ratio_add(out->value, out->value);
    } else {
        e = bny_bound_reduce_scatter(&rs, g);
        if (e) {
            bny_bound_free(out);
            return e;
        }
        for (int v = 0; v < g->nnodes; v++)
            out->cut[v] |= (uint8_t)(rs.cut[v] << 1);
        out->shard = bny_ratio_add(out->shard, rs.shard);
        out->value = bny_ratio_add(out->value, rs.value);
        bny_bound_free(&rs);
    }
    if (bny_ratio_ok(out->value) && bny_ratio_ok(out->shard))
        return 0;
    bny_bound_free(out);
    return too_large(g);
}

/* The smallest cut that separates `root` from some other rank: capacity leaving root's side
 * (arriving there if reversed). */
int bny_cut_from(const struct bny_graph *g, int root, int reversed, int64_t *value,
                 uint8_t *cut)
{
    struct bny_cuts c;
    int e = bny_cuts_of_graph(&c, g, reversed);
    uint8_t *mark = e ? NULL : malloc((size_t)g->nnodes + 1);

    *value = BNY_FLOW_INF;
    if (!e && !mark)
        e = bny_fail(BANYAN_ENOMEM, "no memory for a cut of %d nodes", g->nnodes);
    for (int l = 0; !e && l < g->nlinks; l++) {
        bny_cuts_cap(&c, l, g->links[l].cap);
        if (g->links[l].cap >= BNY_FLOW_INF / g->nlinks)
            e = too_large(g);
    }
    if (!e)
        bny_flow_set(&c.flow, c.feed[root], BNY_FLOW_INF);
    for (int i = 1; !e && i < g->nranks; i++) {
        int t = (root + i) % g->nranks;
        int64_t flow;

        bny_flow_reset(&c.flow);
        flow = bny_flow_run(&c.flow, c.source, c.term[t], *value);
        if (flow < *value) {
            *value = flow;
            bny_flow_side(&c.flow, c.source, mark);
            memcpy(cut, mark, (size_t)g->nnodes);
        }
        bny_flow_set(&c.flow, c.feed[t], BNY_FLOW_INF);
    }
    free(mark);
    bny_cuts_free(&c);
    return e;
}

int bny_bound_rooted(struct bny_bound *out, const struct bny_graph *g, int root, int reduce)
{
    int64_t flow = 0;
    int e;

    if (root < 0 || root >= g->nranks)
        return bny_fail(BANYAN_EINVAL, "root %d of %d ranks", root, g->nranks);
    e = bound_start(out, g);
    if (!e && g->nranks > 1) {
        out->kind = reduce ? BNY_CUT_ROOT_IN : BNY_CUT_ROOT_OUT;
        e = bny_cut_from(g, root, reduce, &flow, out->cut);
        if (!e) {
            out->value = bny_ratio_of(1, flow);
            out->shard = bny_ratio_of(g->nranks, flow);
        }
    }
    if (e)
        bny_bound_free(out);
    return e;
}
