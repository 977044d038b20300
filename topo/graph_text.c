/* SPDX-License-Identifier: BSD-3-Clause */
/* A graph from text: a generator with its arguments, and changes behind it
 * ("torus:8x8!dead=0-1"). */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "topo/graph.h"
#include "topo/graph_edit.h"

static const struct bny_generator *generator(const char *text)
{
    for (int i = 0; bny_generators[i]; i++) {
        size_t n = strlen(bny_generators[i]->name);
        if (!strncmp(text, bny_generators[i]->name, n) && strchr(":!", text[n]))
            return bny_generators[i];
    }
    return NULL;
}

static int generate(struct bny_graph **out, const struct bny_generator *gen, const char *args,
                    size_t len)
{
    char text[128];
    struct bny_graph *g;
    int e;

    if (len >= sizeof text)
        return bny_fail(BANYAN_EINVAL, "\"%.60s...\" is too long for arguments of %s", args,
                        gen->name);
    snprintf(text, sizeof text, "%s%s%.*s", gen->name, len ? ":" : "", (int)len, args);
    g = bny_graph_alloc(text);
    if (!g)
        return bny_fail(BANYAN_ENOMEM, "no memory for graph %s", text);
    e = gen->make(g, text + strlen(gen->name) + (len > 0));
    if (e >= 0)
        e = bny_graph_freeze(g);
    if (e < 0) {
        bny_graph_free(g);
        return e;
    }
    *out = g;
    return 0;
}

int bny_graph_make(struct bny_graph **out, const char *text)
{
    const struct bny_generator *gen = generator(text);
    size_t len = strcspn(text, "!"), skip;
    int e;

    *out = NULL;
    if (!gen)
        return bny_fail(BANYAN_EINVAL, "\"%.60s\" is no topology", text);
    skip = strlen(gen->name) + (text[strlen(gen->name)] == ':');
    e = generate(out, gen, text + skip, len - skip);
    if (!e && text[len])
        e = bny_graph_edit(out, text + len);
    if (e) {
        bny_graph_free(*out);
        *out = NULL;
    }
    return e;
}
