/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo show: a graph. */
#include <inttypes.h>
#include <stdlib.h>

#include "tools/topo.h"

static const char *const kinds[] = { "compute", "switch", "nic" };

static void show_json(FILE *f, const struct bny_graph *g)
{
    fprintf(f, "{\"topo\":");
    topo_json_text(f, g->name);
    fprintf(f, ",\"ranks\":%d,\"nodes\":%d,\"links\":%d,\"unit_GBps\":%.9g}\n", g->nranks,
            g->nnodes, g->nlinks, g->unit_Bps / 1e9);
}

static void show_text(FILE *f, const struct bny_graph *g)
{
    fprintf(f, "%s: %d ranks, %d nodes, %d links; capacity 1 is %.6g GB/s\n", g->name,
            g->nranks, g->nnodes, g->nlinks, g->unit_Bps / 1e9);
    for (int v = 0; v < g->nnodes; v++) {
        const struct bny_node *n = &g->nodes[v];
        fprintf(f, "%-16s %-7s", n->name, kinds[n->kind]);
        if (n->rank >= 0)
            fprintf(f, " rank %d", n->rank);
        for (int i = g->out_first[v]; i < g->out_first[v + 1]; i++)
            fprintf(f, "%s %s:%" PRId64, i == g->out_first[v] ? " ->" : "",
                    g->nodes[g->links[g->out[i]].to].name, g->links[g->out[i]].cap);
        fputc('\n', f);
    }
}

static int run(const struct topo_opts *o)
{
    struct bny_graph *g;
    FILE *f;

    if (topo_graph(&g, o))
        return topo_failed(NULL);
    f = topo_open(o);
    if (!f) {
        bny_graph_free(g);
        return 1;
    }
    if (o->json)
        show_json(f, g);
    else
        show_text(f, g);
    bny_graph_free(g);
    return topo_close(f, o);
}

const struct topo_command topo_show = { "show", "toJ", "the graph of --topo", run };
