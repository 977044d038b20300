/* SPDX-License-Identifier: BSD-3-Clause */
/* Arguments of graph generators (gen.h), and the list of generators. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/gen.h"

int bny_gen_usage(const char *args, const char *usage)
{
    return bny_fail(BANYAN_EINVAL, "cannot make a graph from \"%.60s\"; usage: %s", args,
                    usage);
}

/* Digits only, 1 .. BNY_GEN_RANKS_MAX: strtol would accept blanks, signs and an empty text. */
static const char *args_number(const char *s, long *v)
{
    const char *start = s;

    for (*v = 0; *s >= '0' && *s <= '9' && *v <= BNY_GEN_RANKS_MAX; s++)
        *v = *v * 10 + (*s - '0');
    return s > start && *v <= BNY_GEN_RANKS_MAX ? s : NULL;
}

int bny_gen_dims(int *v, int max, const char *args, const char *usage)
{
    const char *s = args;
    int64_t product = 1;

    for (int n = 0; n < max; n++) {
        long one;
        s = args_number(s, &one);
        if (!s || one < 1)
            break;
        v[n] = (int)one;
        product *= one;
        if (product > BNY_GEN_RANKS_MAX)
            return bny_fail(BANYAN_EINVAL,
                            "\"%.60s\" has more than %d ranks, which is the most", args,
                            BNY_GEN_RANKS_MAX);
        if (!*s)
            return n + 1;
        if (*s++ != 'x')
            break;
    }
    return bny_gen_usage(args, usage);
}

static int read_option(const char *text, size_t len, const struct bny_gen_option *options,
                       int n)
{
    for (int i = 0; i < n; i++) {
        size_t k = strlen(options[i].name);
        const char *end;
        long v;
        if (len <= k + 1 || memcmp(text, options[i].name, k) || text[k] != '=')
            continue;
        end = args_number(text + k + 1, &v);
        if (end != text + len)
            return -1;
        if (v < options[i].min || v > options[i].max)
            return bny_fail(BANYAN_EINVAL, "%s=%ld is not between %d and %d", options[i].name,
                            v, options[i].min, options[i].max);
        *options[i].value = (int)v;
        return 0;
    }
    return -1;
}

int bny_gen_options(char *head, size_t head_cap, const char *args,
                    const struct bny_gen_option *options, int n, const char *usage)
{
    size_t len = strcspn(args, ",");

    if (len >= head_cap)
        return bny_gen_usage(args, usage);
    memcpy(head, args, len);
    head[len] = 0;
    for (const char *s = args + len; *s;) {
        int e;
        len = strcspn(++s, ",");
        e = read_option(s, len, options, n);
        if (e)
            return e == -1 ? bny_gen_usage(args, usage) : e;
        s += len;
    }
    return 0;
}

int bny_gen_rank(struct bny_graph *g, int host, int x, int y, int z)
{
    int v = bny_graph_node(g, BNY_NODE_COMPUTE, host, NULL);

    if (v >= 0) {
        g->nodes[v].x = x;
        g->nodes[v].y = y;
        g->nodes[v].z = z;
    }
    return v;
}

int bny_gen_switch(struct bny_graph *g, const char *name, int x, int y, int z)
{
    int v = bny_graph_node(g, BNY_NODE_SWITCH, -1, name);

    if (v >= 0) {
        g->nodes[v].x = x;
        g->nodes[v].y = y;
        g->nodes[v].z = z;
    }
    return v;
}

const struct bny_generator *const bny_generators[] = {
    &bny_gen_torus,    &bny_gen_mesh,      &bny_gen_hypercube, &bny_gen_ring,
    &bny_gen_random,   &bny_gen_star,      &bny_gen_fattree,   &bny_gen_leafspine,
    &bny_gen_bigraph,  &bny_gen_dragonfly, &bny_gen_dgx1,      &bny_gen_dgx_a100,
    &bny_gen_dgx_h100, &bny_gen_mi250,     &bny_gen_machine,   NULL,
};
