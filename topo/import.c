/* SPDX-License-Identifier: BSD-3-Clause */
/* Graphs from files (import.h): reading, detecting the format, names, the common unit of
 * capacities. */
#include "topo/import.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/text.h"
#include "topo/graph_edit.h"

const struct bny_importer *const bny_importers[] = {
    &bny_import_json,
    &bny_import_graphml,
    &bny_import_nccl,
    &bny_import_hwloc,
    &bny_import_ib,
    &bny_import_edges,
    NULL,
};

int bny_import_fail(const struct bny_import *im, int line, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (line)
        return bny_fail(BANYAN_EINVAL, "%.150s:%d: %s", im->file, line, text);
    return bny_fail(BANYAN_EINVAL, "%.150s: %s", im->file, text);
}

/* Position of name in the table, or the free place for it (FNV-1a). */
static int *name_slot(const struct bny_import *im, const char *name)
{
    uint32_t h = 2166136261u;
    int i;

    for (const unsigned char *s = (const unsigned char *)name; *s; s++)
        h = (h ^ *s) * 16777619u;
    i = (int)(h & (uint32_t)(im->names_cap - 1));
    while (im->names[i] >= 0 && strcmp(im->g->nodes[im->names[i]].name, name))
        i = (i + 1) & (im->names_cap - 1);
    return &im->names[i];
}

static int names_grow(struct bny_import *im)
{
    int cap = im->names_cap ? im->names_cap * 2 : 256, *p;

    if (2 * (im->g->nnodes + 1) <= im->names_cap)
        return 0;
    p = malloc((size_t)cap * sizeof *p);
    if (!p)
        return bny_fail(BANYAN_ENOMEM, "no memory for the names of %s", im->file);
    free(im->names);
    im->names = p;
    im->names_cap = cap;
    memset(p, 0xff, (size_t)cap * sizeof *p);
    for (int v = 0; v < im->g->nnodes; v++)
        *name_slot(im, im->g->nodes[v].name) = v;
    return 0;
}

int bny_import_find(const struct bny_import *im, const char *name)
{
    return im->names_cap ? *name_slot(im, name) : -1;
}

int bny_import_node(struct bny_import *im, const char *name, int line)
{
    int *slot, v, e;

    if (!*name || strlen(name) >= sizeof im->g->nodes[0].name)
        return bny_import_fail(im, line,
                               "the name \"%.50s\" of a node is empty or longer than %zu bytes",
                               name, sizeof im->g->nodes[0].name - 1);
    for (const unsigned char *s = (const unsigned char *)name; *s; s++)
        if (*s < 0x20 || *s == 0x7f)
            return bny_import_fail(im, line,
                                   "the name of a node has the control character 0x%02x", *s);
    e = names_grow(im);
    if (e)
        return e;
    slot = name_slot(im, name);
    if (*slot >= 0)
        return *slot;
    if (im->g->nnodes >= BNY_IMPORT_NODES_MAX)
        return bny_import_fail(im, line, "more than %d nodes, which is the most",
                               BNY_IMPORT_NODES_MAX);
    v = bny_graph_node(im->g, BNY_NODE_COMPUTE, -1, name);
    if (v >= 0)
        *slot = v;
    return v;
}

int bny_import_link(struct bny_import *im, int from, int to, struct bny_ratio cap,
                    int64_t lat_ns, int line)
{
    const char *a = im->g->nodes[from].name, *b = im->g->nodes[to].name;

    if (from == to)
        return bny_import_fail(im, line, "node %s has a link to itself", a);
    if (!bny_ratio_ok(cap) || cap.num <= 0)
        return bny_import_fail(im, line, "the capacity of the link %s -> %s is not above 0", a,
                               b);
    if (lat_ns < 0 || lat_ns > INT64_C(1000000000000))
        return bny_import_fail(
            im, line, "the latency of the link %s -> %s is not between 0 and 1000 s", a, b);
    if (im->nlinks >= BNY_IMPORT_LINKS_MAX)
        return bny_import_fail(im, line, "more than %d links, which is the most",
                               BNY_IMPORT_LINKS_MAX);
    if (im->nlinks == im->links_cap) {
        int more = im->links_cap ? im->links_cap * 2 : 256;
        void *p = reallocarray(im->links, (size_t)more, sizeof *im->links);
        if (!p)
            return bny_fail(BANYAN_ENOMEM, "no memory for the links of %s", im->file);
        im->links = p;
        im->links_cap = more;
    }
    im->links[im->nlinks++] = (struct bny_import_link){ from, to, cap, lat_ns, 1 };
    return 0;
}

int bny_import_number(const struct bny_import *im, struct bny_ratio *out, const char *text,
                      const char *what, int line)
{
    if (bny_ratio_parse(out, text) || out->den > 1000000000)
        return bny_import_fail(im, line, "%s \"%.40s\" is no number: write 12, 12.5 or 25/2",
                               what, text);
    return 0;
}

int bny_import_us(const struct bny_import *im, int64_t *ns, const char *text, int line)
{
    struct bny_ratio us;
    int e = bny_import_number(im, &us, text, "latency", line);

    if (e)
        return e;
    if (us.num < 0 || us.num / us.den > 1000000000)
        return bny_import_fail(im, line, "the latency %.40s us is not between 0 and 1000 s",
                               text);
    *ns = (int64_t)(bny_ratio_value(us) * 1000 + 0.5);
    return 0;
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Capacities become whole numbers: multiplied by the least common multiple of their
 * denominators. */
static int add_links(struct bny_import *im)
{
    int64_t lcm = 1, all = 0, cap;

    for (int l = 0; l < im->nlinks; l++) {
        int64_t den = im->links[l].cap.den;
        if (__builtin_mul_overflow(lcm, den / gcd(lcm, den), &lcm) ||
            lcm > INT64_C(1000000000000))
            return bny_import_fail(
                im, 0, "the capacities have no common unit that is large enough; round them");
    }
    for (int l = 0; l < im->nlinks; l++) {
        struct bny_ratio *c = &im->links[l].cap;
        if (__builtin_mul_overflow(c->num, lcm / c->den, &cap))
            return bny_import_fail(im, 0,
                                   "the capacities differ too much for 64 bits; round them");
        *c = (struct bny_ratio){ cap, 1 };
        all = gcd(cap, all);
    }
    if (!im->reduce)
        all = 1;
    im->g->unit_Bps = im->unit_Bps / (double)lcm * (double)(all ? all : 1);
    for (int l = 0; l < im->nlinks; l++) {
        const struct bny_import_link *k = &im->links[l];
        int i = bny_graph_link(im->g, k->from, k->to, k->cap.num / all, k->lat_ns);
        if (i < 0)
            return i;
        im->g->links[i].lanes += k->lanes - 1;
    }
    return 0;
}

/* The number in name if that has only digits, or -1. */
static int decimal(const char *name)
{
    int v = 0;

    for (const char *s = name; *s; s++) {
        if (*s < '0' || *s > '9' || v > BNY_IMPORT_NODES_MAX)
            return -1;
        v = v * 10 + (*s - '0');
    }
    return *name ? v : -1;
}

/* If no ranks are given and all compute nodes are named 0 .. n-1 (as by networkx), these are
 * the ranks. Default for hosts: one per compute node. */
static void number_nodes(struct bny_graph *g)
{
    int n = 0, numbered = 1, host = 0;

    for (int v = 0; v < g->nnodes; v++) {
        n += g->nodes[v].kind == BNY_NODE_COMPUTE;
        host = g->nodes[v].host >= host ? g->nodes[v].host + 1 : host;
    }
    for (int v = 0; v < g->nnodes; v++) {
        int d = decimal(g->nodes[v].name);
        if (g->nodes[v].kind == BNY_NODE_COMPUTE)
            numbered &= g->nodes[v].rank < 0 && d >= 0 && d < n &&
                        (d == 0 || g->nodes[v].name[0] != '0');
    }
    for (int v = 0; v < g->nnodes; v++) {
        if (g->nodes[v].kind != BNY_NODE_COMPUTE)
            continue;
        if (numbered)
            g->nodes[v].rank = decimal(g->nodes[v].name);
        if (g->nodes[v].host < 0)
            g->nodes[v].host = host++;
    }
}

static int placed(const struct bny_graph *g)
{
    for (int v = 0; v < g->nnodes; v++)
        if (g->nodes[v].x || g->nodes[v].y || g->nodes[v].z)
            return 1;
    return 0;
}

static int import_parse(struct bny_import *im)
{
    char why[400];
    int i = 0, e;

    while (!bny_importers[i]->sniff(im->text, im->len))
        i++;
    e = bny_importers[i]->parse(im);
    if (!e)
        e = add_links(im);
    if (e)
        return e;
    number_nodes(im->g);
    e = bny_graph_freeze(im->g);
    if (!e && !placed(im->g))
        e = bny_graph_layout(im->g);
    if (e == -BANYAN_EINVAL) {
        snprintf(why, sizeof why, "%s", banyan_last_error());
        return bny_import_fail(im, 0, "%s", why);
    }
    return e;
}

int bny_graph_parse(struct bny_graph **out, const char *file, const char *text, size_t len)
{
    const char *base = strrchr(file, '/');
    struct bny_import im = { .file = file, .text = text, .len = len, .unit_Bps = 1e9 };
    int e;

    *out = NULL;
    if (len > BNY_IMPORT_BYTES_MAX)
        return bny_import_fail(&im, 0, "longer than %d MiB, which is the most",
                               BNY_IMPORT_BYTES_MAX >> 20);
    im.g = bny_graph_alloc(base ? base + 1 : file);
    if (!im.g)
        return bny_fail(BANYAN_ENOMEM, "no memory for the graph in %s", file);
    e = import_parse(&im);
    free(im.links);
    free(im.names);
    if (e) {
        bny_graph_free(im.g);
        return e;
    }
    *out = im.g;
    return 0;
}

/* Reads all of fd, at most a byte more than the limit. */
static int read_all(int fd, char **text, size_t *len, const char *path)
{
    size_t cap = 1 << 16, n = 0;
    char *p = malloc(cap + 1), *more;

    while (p) {
        ssize_t r = read(fd, p + n, cap - n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0) {
            free(p);
            return bny_fail_errno("reading %s", path);
        }
        n += (size_t)r;
        if (!r || n > BNY_IMPORT_BYTES_MAX) {
            p[n] = 0;
            *text = p;
            *len = n;
            return 0;
        }
        if (n < cap)
            continue;
        cap *= 2;
        more = realloc(p, cap + 1);
        if (!more)
            free(p);
        p = more;
    }
    return bny_fail(BANYAN_ENOMEM, "no memory for %s", path);
}

int bny_graph_load(struct bny_graph **out, const char *path)
{
    int fd = bny_fd_high(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)), e;
    struct stat st;
    char *text = NULL;
    size_t len = 0;

    *out = NULL;
    if (fd < 0)
        return bny_fail_errno("opening %s", path);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return bny_fail(BANYAN_EINVAL, "%s is no regular file", path);
    }
    e = read_all(fd, &text, &len, path);
    close(fd);
    if (e)
        return e;
    e = bny_graph_parse(out, path, text, len);
    free(text);
    return e;
}
