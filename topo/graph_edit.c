/* SPDX-License-Identifier: BSD-3-Clause */
/* Textual changes to a graph (graph_edit.h): every change makes a copy with some links removed
 * or scaled. */
#include "topo/graph_edit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

struct change {
    int node;          /* dead node, or -1 */
    int a, b;          /* the link's ends, or -1 */
    int64_t divide;    /* 0: the link is dead; else its capacity is divided by this */
    int64_t all_times; /* and all capacities are multiplied by this */
};

int bny_graph_find_node(const struct bny_graph *g, const char *text, size_t len)
{
    int64_t rank = 0;

    for (int v = 0; v < g->nnodes; v++)
        if (strlen(g->nodes[v].name) == len && !memcmp(g->nodes[v].name, text, len))
            return v;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || rank > g->nranks)
            return -1;
        rank = rank * 10 + (text[i] - '0');
    }
    return len && rank < g->nranks ? g->rank_node[rank] : -1;
}

/* The copy with the change; node numbers above a dead one move down. */
static struct bny_graph *graph_edit_apply(const struct bny_graph *g, const struct change *c)
{
    struct bny_graph *h = bny_graph_alloc(g->name);
    int e = 0, shift = 0;

    if (!h)
        return NULL;
    h->unit_Bps = g->unit_Bps / (double)c->all_times;
    for (int v = 0; v < g->nnodes && e >= 0; v++) {
        if (v == c->node)
            continue;
        e = bny_graph_node(h, g->nodes[v].kind, g->nodes[v].host, g->nodes[v].name);
        if (e < 0)
            break;
        h->nodes[e] = g->nodes[v];
        if (c->node >= 0 && h->nodes[e].rank > g->nodes[c->node].rank &&
            g->nodes[c->node].rank >= 0)
            h->nodes[e].rank--;
    }
    for (int l = 0; l < g->nlinks && e >= 0; l++) {
        const struct bny_link *k = &g->links[l];
        int hit = (k->from == c->a && k->to == c->b) || (k->from == c->b && k->to == c->a);
        int64_t cap;
        if (k->from == c->node || k->to == c->node || (hit && !c->divide))
            continue;
        if (__builtin_mul_overflow(k->cap, c->all_times, &cap)) {
            e = bny_fail(BANYAN_EINVAL, "capacities of graph %s overflow", g->name);
            break;
        }
        shift = c->node >= 0;
        e = bny_graph_link(h, k->from - (shift && k->from > c->node),
                           k->to - (shift && k->to > c->node), hit ? cap / c->divide : cap,
                           k->lat_ns);
        if (e >= 0)
            h->links[e].lanes = k->lanes;
    }
    if (e >= 0)
        e = bny_graph_freeze(h);
    if (e < 0) {
        bny_graph_free(h);
        return NULL;
    }
    return h;
}

/* "A-B" into a link's index: names may contain '-', so every split is tried. -1: none. */
static int find_link(const struct bny_graph *g, const char *text, size_t len)
{
    for (size_t cut = 1; cut + 1 < len; cut++) {
        int a, b;
        if (text[cut] != '-')
            continue;
        a = bny_graph_find_node(g, text, cut);
        b = bny_graph_find_node(g, text + cut + 1, len - cut - 1);
        for (int i = a < 0 || b < 0 ? 0 : g->out_first[a];
             a >= 0 && b >= 0 && i < g->out_first[a + 1]; i++)
            if (g->links[g->out[i]].to == b)
                return g->out[i];
    }
    return -1;
}

static int graph_edit_bad(const char *text, size_t len, const char *why)
{
    return bny_fail(
        BANYAN_EINVAL,
        "\"!%.*s\": %s; write !dead=A-B, !dead=A or !slow=A-B/F, where A and B are names of "
        "nodes or ranks",
        (int)(len < 60 ? len : 60), text, why);
}

static int read_dead(struct change *c, const struct bny_graph *g, const char *text, size_t len)
{
    int l = find_link(g, text + 5, len - 5);

    c->node = l < 0 ? bny_graph_find_node(g, text + 5, len - 5) : -1;
    if (l >= 0) {
        c->a = g->links[l].from;
        c->b = g->links[l].to;
    }
    return l < 0 && c->node < 0 ? graph_edit_bad(text, len, "no such link or node") : 0;
}

static int read_slow(struct change *c, const struct bny_graph *g, const char *text, size_t len)
{
    const char *slash = memchr(text, '/', len);
    int l = slash ? find_link(g, text + 5, (size_t)(slash - text) - 5) : -1, back;
    int64_t by = 0;

    if (l < 0)
        return graph_edit_bad(text, len, slash ? "no such link" : "how much slower?");
    for (const char *s = slash + 1; s < text + len; s++) {
        if (*s < '0' || *s > '9' || by > 100000)
            return graph_edit_bad(text, len, "F is no whole number");
        by = by * 10 + (*s - '0');
    }
    if (by < 1)
        return graph_edit_bad(text, len, "F is no whole number above 0");
    c->a = g->links[l].from;
    c->b = g->links[l].to;
    c->divide = by;
    back = g->reverse[l];
    if (g->links[l].cap % by || (back >= 0 && g->links[back].cap % by))
        c->all_times = by;
    return 0;
}

int bny_graph_edit(struct bny_graph **g, const char *text)
{
    struct bny_graph *now = *g, *next;
    char whole[sizeof now->name];

    snprintf(whole, sizeof whole, "%.30s%.33s", (*g)->name, text);
    for (const char *s = text; *s;) {
        struct change c = { -1, -1, -1, 0, 1 };
        size_t len;
        int e;
        if (*s++ != '!')
            return graph_edit_bad(text, strlen(text), "a change begins with !");
        len = strcspn(s, "!");
        if (len > 5 && !memcmp(s, "dead=", 5))
            e = read_dead(&c, now, s, len);
        else if (len > 5 && !memcmp(s, "slow=", 5))
            e = read_slow(&c, now, s, len);
        else
            e = graph_edit_bad(s, len, "no such change");
        next = e ? NULL : graph_edit_apply(now, &c);
        if (now != *g)
            bny_graph_free(now);
        if (!next)
            return e ? e : -BANYAN_EINVAL;
        now = next;
        s += len;
    }
    if (now != *g) {
        bny_graph_free(*g);
        snprintf(now->name, sizeof now->name, "%s", whole);
        *g = now;
    }
    return 0;
}

struct bny_graph *bny_graph_subset(const struct bny_graph *g, const int *ranks, int n)
{
    struct bny_graph *h = bny_graph_alloc(g->name);
    int e = 0;

    if (!h)
        return NULL;
    h->unit_Bps = g->unit_Bps;
    for (int v = 0; v < g->nnodes && e >= 0; v++) {
        e = bny_graph_node(h, g->nodes[v].kind, g->nodes[v].host, g->nodes[v].name);
        if (e < 0)
            break;
        h->nodes[v] = g->nodes[v];
        if (h->nodes[v].kind == BNY_NODE_COMPUTE)
            h->nodes[v].kind = BNY_NODE_SWITCH;
        h->nodes[v].rank = -1;
    }
    for (int r = 0; r < n && e >= 0; r++) {
        h->nodes[g->rank_node[ranks[r]]].kind = BNY_NODE_COMPUTE;
        h->nodes[g->rank_node[ranks[r]]].rank = r;
    }
    for (int l = 0; l < g->nlinks && e >= 0; l++) {
        e = bny_graph_link(h, g->links[l].from, g->links[l].to, g->links[l].cap,
                           g->links[l].lat_ns);
        if (e >= 0)
            h->links[e].lanes = g->links[l].lanes;
    }
    if (e >= 0)
        e = bny_graph_freeze(h);
    if (e < 0) {
        bny_graph_free(h);
        return NULL;
    }
    snprintf(h->name, sizeof h->name, "%.40s: %d of %d", g->name, n, g->nranks);
    return h;
}
