/* SPDX-License-Identifier: BSD-3-Clause */
/* The cut condition (cuts.h) by one flow per terminal. The flow to terminal t from all roots
 * must carry their whole demand: the smallest cut X costs need(outside X) + capacity(leaving
 * X). As in Hao and Orlin's minimum cut (1994), a terminal that passed is a source for later
 * ones: the first terminal outside X finds X, so all of them together cost little more than one
 * flow. */
#include "topo/cuts.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int bny_cuts_init(struct bny_cuts *c, int nodes, int nlinks, int nterms, const int *term)
{
    memset(c, 0, sizeof *c);
    c->source = nodes;
    c->nterms = nterms;
    c->term = malloc((size_t)nterms * sizeof *c->term);
    c->feed = malloc((size_t)nterms * sizeof *c->feed);
    c->need = calloc((size_t)nterms, sizeof *c->need);
    c->link = malloc((size_t)(nlinks ? nlinks : 1) * sizeof *c->link);
    if (!c->term || !c->feed || !c->need || !c->link ||
        bny_flow_init(&c->flow, nodes + 1, nlinks + nterms)) {
        bny_cuts_free(c);
        return bny_fail(BANYAN_ENOMEM, "no memory for the cuts of %d nodes", nodes);
    }
    for (int t = 0; t < nterms; t++) {
        c->term[t] = term[t];
        c->feed[t] = bny_flow_arc(&c->flow, c->source, term[t], 0);
    }
    return 0;
}

void bny_cuts_free(struct bny_cuts *c)
{
    bny_flow_free(&c->flow);
    free(c->term);
    free(c->feed);
    free(c->need);
    free(c->link);
    memset(c, 0, sizeof *c);
}

int bny_cuts_link(struct bny_cuts *c, int from, int to, int64_t cap)
{
    int a = bny_flow_arc(&c->flow, from, to, cap);

    if (a < 0)
        return a;
    c->link[c->nlinks++] = a;
    return 0;
}

void bny_cuts_need(struct bny_cuts *c, int t, int64_t need)
{
    c->total += need - c->need[t];
    c->need[t] = need;
}

void bny_cuts_cap(struct bny_cuts *c, int l, int64_t cap)
{
    bny_flow_set(&c->flow, c->link[l], cap);
}

int bny_cuts_violated(struct bny_cuts *c, int first, uint8_t *mark)
{
    for (int t = 0; t < c->nterms; t++)
        bny_flow_set(&c->flow, c->feed[t], t < first ? BNY_FLOW_INF : c->need[t]);
    for (int t = first; t < c->nterms; t++) {
        bny_flow_reset(&c->flow);
        if (bny_flow_run(&c->flow, c->source, c->term[t], c->total) < c->total) {
            bny_flow_side(&c->flow, c->source, mark);
            return t;
        }
        bny_flow_set(&c->flow, c->feed[t], BNY_FLOW_INF);
    }
    return c->nterms;
}

int bny_cuts_of_graph(struct bny_cuts *c, const struct bny_graph *g, int reversed)
{
    int e = bny_cuts_init(c, g->nnodes, g->nlinks, g->nranks, g->rank_node);

    for (int l = 0; !e && l < g->nlinks; l++) {
        const struct bny_link *k = &g->links[l];

        e = reversed ? bny_cuts_link(c, k->to, k->from, 0)
                     : bny_cuts_link(c, k->from, k->to, 0);
    }
    if (e)
        bny_cuts_free(c);
    return e;
}
