/* SPDX-License-Identifier: BSD-3-Clause */
/* A graph from text: a generator with its arguments, followed by changes
 * ("torus:8x8!dead=0-1"). */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "topo/graph.h"
#include "topo/graph_edit.h"
#include "topo/import.h"

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

/* "FILE" or "FILE!dead=A-B", where the file name may contain '!'. *change: the text after the
 * name. */
static int graph_text_load(struct bny_graph **out, const char *text, const char **change)
{
    char path[4096];
    size_t len = strlen(text);
    const char *dead = strstr(text, "!dead="), *slow = strstr(text, "!slow=");

    *change = text + len;
    if (access(text, F_OK) && (dead || slow))
        *change = !dead || (slow && slow < dead) ? slow : dead;
    len = (size_t)(*change - text);
    if (len >= sizeof path)
        return bny_fail(BANYAN_EINVAL, "the path of the topology is longer than %zu bytes",
                        sizeof path - 1);
    memcpy(path, text, len);
    path[len] = 0;
    return bny_graph_load(out, path);
}

static int is_path(const char *text)
{
    return strchr(text, '/') || strchr(text, '.') || !access(text, F_OK);
}

int bny_graph_make(struct bny_graph **out, const char *text)
{
    const struct bny_generator *gen = generator(text);
    const char *change = text;
    int e;

    *out = NULL;
    if (gen) {
        size_t skip = strlen(gen->name) + (text[strlen(gen->name)] == ':');
        change = text + strcspn(text, "!");
        e = generate(out, gen, text + skip, (size_t)(change - text) - skip);
    } else if (is_path(text)) {
        e = graph_text_load(out, text, &change);
    } else {
        e = bny_fail(
            BANYAN_EINVAL,
            "\"%.60s\" is neither a generator such as torus:8x8 (banyan_topo --help lists "
            "them) nor a file",
            text);
    }
    if (!e && *change)
        e = bny_graph_edit(out, change);
    if (e) {
        bny_graph_free(*out);
        *out = NULL;
    }
    return e;
}
