/* SPDX-License-Identifier: BSD-3-Clause */
/* Splitting off pair by pair (split.h). Replacing m units of (u, w) and (w, t) by (u, t) takes
 * m from the sets that hold u and t but not w, and from those that hold w but neither u nor t;
 * no other set loses. The limit is the least capacity(leaving X) - need(X) over those without
 * at least one rank: flows with u, t (or w) as further sources and w (or u, t) as further
 * sinks. */
#include "base/err.h"
#include "topo/split.h"

static void hold(struct bny_split *s, int v, int on)
{
    bny_flow_set(&s->flow, s->feed[v], on ? BNY_FLOW_INF : bny_split_feed(s, v));
}

static void leave_out(struct bny_split *s, int v, int on)
{
    bny_flow_set(&s->flow, s->drain[v], on ? BNY_FLOW_INF : 0);
}

static int64_t surplus(struct bny_split *s, int64_t most)
{
    bny_flow_reset(&s->flow);
    return bny_flow_run(&s->flow, s->g->nnodes, s->g->nnodes + 1, s->total + most) - s->total;
}

/* Least surplus, at most `most`, of sets with the current sources and sinks and without some
 * rank. */
static int64_t split_exact_least(struct bny_split *s, int64_t most)
{
    const struct bny_graph *g = s->g;

    for (int r = 0; r < g->nranks && most > 0; r++) {
        int v = g->rank_node[r];
        int64_t here;

        if (s->flow.full[s->feed[v]] == BNY_FLOW_INF)
            continue;
        leave_out(s, v, 1);
        here = surplus(s, most);
        leave_out(s, v, 0);
        hold(s, v, 1);
        most = here < most ? here : most;
    }
    for (int r = 0; r < g->nranks; r++)
        hold(s, g->rank_node[r], 0);
    return most;
}

static int64_t amount(struct bny_split *s, int u, int w, int t, int64_t most)
{
    const struct bny_node *nodes = s->g->nodes;

    hold(s, w, 1);
    leave_out(s, u, 1);
    leave_out(s, t, 1);
    if (nodes[u].rank >= 0 || nodes[t].rank >= 0) {
        int64_t here = surplus(s, most);

        most = here < most ? here : most;
    } else {
        most = split_exact_least(s, most);
    }
    hold(s, w, 0);
    leave_out(s, u, 0);
    leave_out(s, t, 0);
    if (most <= 0)
        return 0;
    hold(s, u, 1);
    hold(s, t, 1);
    leave_out(s, w, 1);
    most = split_exact_least(s, most);
    hold(s, u, 0);
    hold(s, t, 0);
    leave_out(s, w, 0);
    return most > 0 ? most : 0;
}

enum pairing { OTHER_HOSTS, OTHERS, BACK };

/* Joins an arriving edge with the edges leaving w; capacity back to its origin vanishes. */
static int split_in(struct bny_split *s, int in, int w, enum pairing how)
{
    const struct bny_node *nodes = s->g->nodes;
    int u = s->edges[in].from, n = s->nedges, e = 0;

    for (int i = 0; i < n && s->edges[in].cap && e >= 0; i++) {
        int out = (in + 1 + i) % n, t = s->edges[out].to;
        int64_t m = s->edges[in].cap < s->edges[out].cap ? s->edges[in].cap : s->edges[out].cap;

        if (s->edges[out].from != w || (t == u) != (how == BACK) || !m ||
            (how == OTHER_HOSTS && nodes[t].host == nodes[u].host && nodes[u].host >= 0))
            continue;
        m = amount(s, u, w, t, m);
        if (!m)
            continue;
        bny_split_cap(s, in, s->edges[in].cap - m);
        bny_split_cap(s, out, s->edges[out].cap - m);
        e = how == BACK ? 0 : bny_split_edge(s, u, t, m, &s->edges[in], &s->edges[out]);
    }
    return e < 0 ? e : 0;
}

int bny_split_exact(struct bny_split *s, int w)
{
    int n = s->nedges, e = 0, left = 0;

    for (int how = OTHER_HOSTS; how <= BACK; how++)
        for (int i = 0; i < n && !e; i++)
            if (s->edges[i].to == w && s->edges[i].cap)
                e = split_in(s, i, w, (enum pairing)how);
    for (int i = 0; i < n && !e; i++)
        if (s->edges[i].cap && (s->edges[i].to == w || s->edges[i].from == w)) {
            bny_split_cap(s, i, 0);
            left = 1;
        }
    if (e || !left)
        return e;
    hold(s, w, 0);
    for (int r = 0; r < s->g->nranks; r++) {
        int v = s->g->rank_node[r];

        leave_out(s, v, 1);
        if (surplus(s, 0) < 0)
            e = bny_fail(BANYAN_ENOTSUP,
                         "switch %s of %s cannot be removed: it sends more than arrives",
                         s->g->nodes[w].name, s->g->name);
        leave_out(s, v, 0);
    }
    return e;
}
