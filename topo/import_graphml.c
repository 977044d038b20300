/* SPDX-License-Identifier: BSD-3-Clause */
/* GraphML (graphml.graphdrawing.org), as written by networkx. Data of nodes: kind (compute,
 * switch, nic), host, rank, x, y, z. Of edges: GBps or cap or capacity (GB/s, 1), us
 * (microseconds, 0), lat (ns). Other data is ignored. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "topo/import_xml.h"

#define KEYS_MAX 64

struct graphml {
    struct {
        char id[40], name[40];
    } keys[KEYS_MAX];
    int nkeys, directed;
    char key[40];                        /* of the open data element; "" none */
    int node;                            /* the open node, or -1 */
    int edge, both, from, to, edge_line; /* the open edge */
    struct bny_ratio cap;
    int64_t lat_ns;
};

static int graphml_sniff(const char *text, size_t len)
{
    return bny_xml_root_is(text, len, "graphml");
}

static int graphml_copy(struct bny_xml *x, char *to, size_t cap, const char *text,
                        const char *what)
{
    if (!text || strlen(text) >= cap)
        return bny_import_fail(x->im, x->line, "%s is missing or longer than %zu bytes", what,
                               cap - 1);
    memcpy(to, text, strlen(text) + 1);
    return 0;
}

static int start_edge(struct bny_xml *x, const char **attr)
{
    struct graphml *m = x->arg;
    const char *src = bny_xml_attr(attr, "source"), *dst = bny_xml_attr(attr, "target");
    const char *directed = bny_xml_attr(attr, "directed");

    m->from = src ? bny_import_find(x->im, src) : -1;
    m->to = dst ? bny_import_find(x->im, dst) : -1;
    if (m->from < 0 || m->to < 0)
        return bny_import_fail(
            x->im, x->line,
            "an edge from \"%.40s\" to \"%.40s\": there is no such node before it",
            src ? src : "", dst ? dst : "");
    m->both = directed ? !strcmp(directed, "false") : !m->directed;
    m->cap = (struct bny_ratio){ 1, 1 };
    m->lat_ns = 0;
    m->edge = 1;
    m->edge_line = x->line;
    return 0;
}

static int graphml_start(struct bny_xml *x, const char *name, const char **attr)
{
    struct graphml *m = x->arg;
    const char *id = bny_xml_attr(attr, "id"), *value;
    int e;

    if (!strcmp(name, "key")) {
        if (m->nkeys == KEYS_MAX)
            return bny_import_fail(x->im, x->line, "more than %d keys", KEYS_MAX);
        e = graphml_copy(x, m->keys[m->nkeys].id, sizeof m->keys[0].id, id, "the id of a key");
        value = bny_xml_attr(attr, "attr.name");
        return e ? e
                 : graphml_copy(x, m->keys[m->nkeys++].name, sizeof m->keys[0].name,
                                value ? value : id, "the attr.name of a key");
    }
    if (!strcmp(name, "graph")) {
        value = bny_xml_attr(attr, "edgedefault");
        m->directed = value && !strcmp(value, "directed");
    } else if (!strcmp(name, "hyperedge")) {
        return bny_import_fail(x->im, x->line, "hyperedges have no meaning here");
    } else if (!strcmp(name, "node")) {
        if (!id || bny_import_find(x->im, id) >= 0)
            return bny_import_fail(x->im, x->line,
                                   "a node without id, or its id \"%.40s\" is there twice",
                                   id ? id : "");
        m->node = bny_import_node(x->im, id, x->line);
        return m->node < 0 ? m->node : 0;
    } else if (!strcmp(name, "edge")) {
        return start_edge(x, attr);
    } else if (!strcmp(name, "data")) {
        value = bny_xml_attr(attr, "key");
        m->key[0] = 0;
        for (int i = 0; value && i < m->nkeys; i++)
            if (!strcmp(m->keys[i].id, value))
                memcpy(m->key, m->keys[i].name, sizeof m->key);
    }
    return 0;
}

static int node_data(struct bny_xml *x, const char *text)
{
    static const char *const names[] = { "host", "rank", "x", "y", "z" };
    struct graphml *m = x->arg;
    struct bny_node *v = &x->im->g->nodes[m->node];
    int *to[] = { &v->host, &v->rank, &v->x, &v->y, &v->z };
    char *end;
    double d;

    if (!strcmp(m->key, "kind")) {
        static const char *const kinds[] = { "compute", "switch", "nic" };
        for (int k = 0; k < 3; k++)
            if (!strcmp(text, kinds[k])) {
                v->kind = (enum bny_node_kind)k;
                return 0;
            }
        return bny_import_fail(x->im, x->line, "kind \"%.40s\" is none of compute, switch, nic",
                               text);
    }
    for (int i = 0; i < 5; i++) {
        if (strcmp(m->key, names[i]))
            continue;
        d = bny_strtod(text, &end);
        if (end == text || *end || !(d >= -1e6 && d <= 1e6) || (i < 2 && d != (double)(int)d))
            return bny_import_fail(x->im, x->line, "%s \"%.40s\" is no number that fits",
                                   names[i], text);
        *to[i] = (int)d;
    }
    return 0;
}

static int edge_data(struct bny_xml *x, const char *text)
{
    struct graphml *m = x->arg;
    struct bny_ratio ns;
    int e;

    if (!strcmp(m->key, "GBps") || !strcmp(m->key, "cap") || !strcmp(m->key, "capacity"))
        return bny_import_number(x->im, &m->cap, text, "capacity", x->line);
    if (!strcmp(m->key, "us"))
        return bny_import_us(x->im, &m->lat_ns, text, x->line);
    if (strcmp(m->key, "lat"))
        return 0;
    e = bny_import_number(x->im, &ns, text, "latency", x->line);
    if (!e)
        m->lat_ns = ns.num / ns.den;
    return e;
}

static int graphml_end(struct bny_xml *x, const char *name, const char *text)
{
    struct graphml *m = x->arg;
    int e = 0;

    if (!strcmp(name, "data")) {
        if (m->key[0])
            e = m->edge ? edge_data(x, text) : m->node >= 0 ? node_data(x, text) : 0;
        m->key[0] = 0;
    } else if (!strcmp(name, "node")) {
        m->node = -1;
    } else if (!strcmp(name, "edge") && m->edge) {
        m->edge = 0;
        e = bny_import_link(x->im, m->from, m->to, m->cap, m->lat_ns, m->edge_line);
        if (!e && m->both)
            e = bny_import_link(x->im, m->to, m->from, m->cap, m->lat_ns, m->edge_line);
    }
    return e;
}

static int graphml_parse(struct bny_import *im)
{
    struct graphml *m = calloc(1, sizeof *m);
    struct bny_xml x = { .im = im, .arg = m, .start = graphml_start, .end = graphml_end };
    int e;

    if (!m)
        return bny_fail(BANYAN_ENOMEM, "no memory for %s", im->file);
    m->node = -1;
    e = bny_xml_parse(&x);
    free(m);
    return e;
}

const struct bny_importer bny_import_graphml = { "graphml", graphml_sniff, graphml_parse };
