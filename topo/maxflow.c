/* SPDX-License-Identifier: BSD-3-Clause */
/* Maximum flow by shortest augmenting paths in layers (Dinic, "Algorithm for solution of a
 * problem of maximum flow in networks with power estimation", 1970). Layers are counted from
 * the sink and only as far as the source: the sinks of one check are next to nodes that already
 * count as sources, so most searches visit only a few nodes. */
#include "topo/maxflow.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int bny_flow_init(struct bny_flow *f, int nodes, int links)
{
    memset(f, 0, sizeof *f);
    f->n = nodes;
    f->arcs_cap = 2 * (links > 8 ? links : 8);
    f->arcs = malloc((size_t)f->arcs_cap * sizeof *f->arcs);
    f->full = malloc((size_t)f->arcs_cap * sizeof *f->full);
    f->first = malloc((size_t)nodes * sizeof *f->first);
    f->level = malloc((size_t)nodes * sizeof *f->level);
    f->iter = malloc((size_t)nodes * sizeof *f->iter);
    f->queue = malloc((size_t)nodes * sizeof *f->queue);
    if (!f->arcs || !f->full || !f->first || !f->level || !f->iter || !f->queue) {
        bny_flow_free(f);
        return bny_fail(BANYAN_ENOMEM, "no memory for a flow network of %d nodes", nodes);
    }
    for (int v = 0; v < nodes; v++)
        f->first[v] = -1;
    return 0;
}

void bny_flow_free(struct bny_flow *f)
{
    free(f->arcs);
    free(f->full);
    free(f->first);
    free(f->level);
    free(f->iter);
    free(f->queue);
    memset(f, 0, sizeof *f);
}

static int maxflow_grow(struct bny_flow *f)
{
    int cap = f->arcs_cap * 2;
    struct bny_arc *arcs = realloc(f->arcs, (size_t)cap * sizeof *arcs);
    int64_t *full;

    if (arcs)
        f->arcs = arcs;
    full = realloc(f->full, (size_t)cap * sizeof *full);
    if (full)
        f->full = full;
    if (!arcs || !full)
        return bny_fail(BANYAN_ENOMEM, "no memory for a flow network of %d arcs", cap);
    f->arcs_cap = cap;
    return 0;
}

int bny_flow_arc(struct bny_flow *f, int from, int to, int64_t cap)
{
    int a = f->m;

    if (f->m + 2 > f->arcs_cap && maxflow_grow(f))
        return -BANYAN_ENOMEM;
    f->arcs[a] = (struct bny_arc){ to, f->first[from], cap };
    f->first[from] = a;
    f->arcs[a + 1] = (struct bny_arc){ from, f->first[to], 0 };
    f->first[to] = a + 1;
    f->full[a] = cap;
    f->full[a + 1] = 0;
    f->m += 2;
    return a;
}

void bny_flow_pop(struct bny_flow *f)
{
    int from = f->arcs[f->m - 1].to, to = f->arcs[f->m - 2].to;

    f->first[to] = f->arcs[f->m - 1].next;
    f->first[from] = f->arcs[f->m - 2].next;
    f->m -= 2;
}

void bny_flow_set(struct bny_flow *f, int arc, int64_t cap)
{
    f->full[arc] = cap;
}

void bny_flow_reset(struct bny_flow *f)
{
    for (int a = 0; a < f->m; a++)
        f->arcs[a].cap = f->full[a];
}

/* Distances to t along arcs with residual capacity; 0 if s is unreachable. */
static int layers(struct bny_flow *f, int s, int t)
{
    int head = 0, tail = 0;

    memset(f->level, -1, (size_t)f->n * sizeof *f->level);
    f->level[t] = 0;
    f->queue[tail++] = t;
    while (head < tail) {
        int v = f->queue[head++];

        if (f->level[s] >= 0 && f->level[v] >= f->level[s])
            break;
        for (int a = f->first[v]; a >= 0; a = f->arcs[a].next) {
            int u = f->arcs[a].to;

            if (f->level[u] < 0 && f->arcs[a ^ 1].cap > 0) {
                f->level[u] = f->level[v] + 1;
                f->queue[tail++] = u;
            }
        }
    }
    return f->level[s] >= 0;
}

static int64_t maxflow_push(struct bny_flow *f, int v, int t, int64_t limit)
{
    int64_t sent = 0;

    if (v == t)
        return limit;
    for (; f->iter[v] >= 0; f->iter[v] = f->arcs[f->iter[v]].next) {
        int a = f->iter[v];
        int64_t room = limit - sent, got;

        if (f->arcs[a].cap <= 0 || f->level[f->arcs[a].to] != f->level[v] - 1)
            continue;
        if (f->arcs[a].cap < room)
            room = f->arcs[a].cap;
        got = maxflow_push(f, f->arcs[a].to, t, room);
        f->arcs[a].cap -= got;
        f->arcs[a ^ 1].cap += got;
        sent += got;
        if (sent == limit)
            return sent; /* this arc may carry more: iter stays */
    }
    return sent;
}

int64_t bny_flow_run(struct bny_flow *f, int s, int t, int64_t limit)
{
    int64_t sent = 0;

    if (s == t)
        return limit;
    while (sent < limit && layers(f, s, t)) {
        memcpy(f->iter, f->first, (size_t)f->n * sizeof *f->iter);
        sent += maxflow_push(f, s, t, limit - sent);
    }
    return sent;
}

void bny_flow_side(struct bny_flow *f, int s, uint8_t *mark)
{
    int head = 0, tail = 0;

    memset(mark, 0, (size_t)f->n);
    mark[s] = 1;
    f->queue[tail++] = s;
    while (head < tail) {
        int v = f->queue[head++];

        for (int a = f->first[v]; a >= 0; a = f->arcs[a].next) {
            int u = f->arcs[a].to;

            if (!mark[u] && f->arcs[a].cap > 0) {
                mark[u] = 1;
                f->queue[tail++] = u;
            }
        }
    }
}
