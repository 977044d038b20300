/* SPDX-License-Identifier: BSD-3-Clause */
/* A graph from text: a generator with its arguments. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "topo/graph.h"

static const struct bny_generator *generator(const char *text)
{
    for (int i = 0; bny_generators[i]; i++) {
        size_t n = strlen(bny_generators[i]->name);
        if (!strncmp(text, bny_generators[i]->name, n) && (!text[n] || text[n] == ':'))
            return bny_generators[i];
    }
    return NULL;
}

int bny_graph_make(struct bny_graph **out, const char *text)
{
    const struct bny_generator *gen = generator(text);
    struct bny_graph *g;
    int e;

    *out = NULL;
    if (!gen)
        return bny_fail(BANYAN_EINVAL, "\"%.60s\" is no topology", text);
    g = bny_graph_alloc(text);
    if (!g)
        return bny_fail(BANYAN_ENOMEM, "no memory for graph %.60s", text);
    text += strlen(gen->name);
    e = gen->make(g, text + (*text == ':'));
    if (e >= 0)
        e = bny_graph_freeze(g);
    if (e < 0) {
        bny_graph_free(g);
        return e;
    }
    *out = g;
    return 0;
}
