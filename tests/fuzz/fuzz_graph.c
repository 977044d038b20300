/* SPDX-License-Identifier: BSD-3-Clause */
/* Any bytes as a graph's file: refused, or a graph that is written and read back as the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "topo/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_graph: %s: %s\n", what, banyan_last_error());
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bny_graph *g, *h;
    char *text = malloc(size + 1), *json;
    size_t len;
    FILE *f;
    int e;

    memcpy(text, data, size);
    text[size] = 0;
    e = bny_graph_parse(&g, "f", text, size);
    free(text);
    expect(!e == (g != NULL), "an error and a graph, or neither");
    if (e)
        return 0;
    f = open_memstream(&json, &len);
    expect(!bny_graph_save(g, f, NULL), "cannot write");
    fclose(f);
    expect(!bny_graph_parse(&h, "f", json, len), "cannot read back");
    expect(h->nnodes == g->nnodes && h->nlinks == g->nlinks && h->nranks == g->nranks,
           "changed");
    expect(!g->nlinks || !memcmp(g->links, h->links, (size_t)g->nlinks * sizeof *g->links),
           "links changed");
    free(json);
    bny_graph_free(g);
    bny_graph_free(h);
    return 0;
}
