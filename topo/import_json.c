/* SPDX-License-Identifier: BSD-3-Clause */
/* Own JSON, both ways. README.md has the format. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "base/lazy_cjson.h"
#include "base/text.h"
#include "topo/import.h"

static const char *const kind_names[] = { "compute", "switch", "nic" };

static int json_sniff(const char *text, size_t len)
{
    return text[strspn(text, " \t\r\n")] == '{';
}

/* Rejects unknown members of an object. */
static int check_keys(const struct bny_import *im, const cJSON *o, const char *where, int i,
                      const char *const *keys)
{
    for (const cJSON *m = o->child; m; m = m->next) {
        int k = 0;
        while (keys[k] && strcmp(keys[k], m->string))
            k++;
        if (!keys[k])
            return bny_import_fail(im, 0, "%s[%d] has the unknown member \"%.40s\"", where, i,
                                   m->string);
    }
    return 0;
}

/* A whole number lo .. hi into *out, which is unchanged if there is none. */
static int json_whole(const struct bny_import *im, const cJSON *o, const char *key,
                      const char *where, int i, double lo, double hi, int64_t *out)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);

    if (!v)
        return 0;
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= lo && v->valuedouble <= hi) ||
        floor(v->valuedouble) != v->valuedouble)
        return bny_import_fail(im, 0, "%s[%d].%s is no whole number from %.0f to %.0f", where,
                               i, key, lo, hi);
    *out = (int64_t)v->valuedouble;
    return 0;
}

/* Names are strings or whole numbers. NULL after an error. */
static const char *name_of(const struct bny_import *im, const cJSON *v, const char *where,
                           int i, const char *key, char *buf, size_t cap)
{
    if (cJSON_IsString(v))
        return v->valuestring;
    if (cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble < 1e9 &&
        floor(v->valuedouble) == v->valuedouble) {
        bny_snprintf(buf, cap, "%.0f", v->valuedouble);
        return buf;
    }
    bny_import_fail(im, 0, "%s[%d].%s is missing or neither a string nor a whole number", where,
                    i, key);
    return NULL;
}

static int read_node(struct bny_import *im, const cJSON *o, int i)
{
    static const char *const keys[] = { "id", "kind", "host", "rank", "pos", "attrs", NULL };
    const cJSON *kind, *pos = cJSON_GetObjectItemCaseSensitive(o, "pos");
    char buf[24];
    const char *name;
    struct bny_node *n;
    int64_t host = -1, rank = -1, at[3] = { 0, 0, 0 };
    int v, k = 0,
           e = cJSON_IsObject(o) ? check_keys(im, o, "nodes", i, keys)
                                 : bny_import_fail(im, 0, "nodes[%d] is no object", i);

    if (e)
        return e;
    name = name_of(im, cJSON_GetObjectItemCaseSensitive(o, "id"), "nodes", i, "id", buf,
                   sizeof buf);
    if (!name)
        return -BANYAN_EINVAL;
    if (bny_import_find(im, name) >= 0)
        return bny_import_fail(im, 0, "nodes[%d]: the id \"%.40s\" is there twice", i, name);
    v = bny_import_node(im, name, 0);
    if (v < 0)
        return v;
    kind = cJSON_GetObjectItemCaseSensitive(o, "kind");
    while (kind && k < 3 &&
           !(cJSON_IsString(kind) && !strcmp(kind->valuestring, kind_names[k])))
        k++;
    if (k == 3)
        return bny_import_fail(im, 0, "nodes[%d].kind is none of compute, switch, nic", i);
    e = json_whole(im, o, "host", "nodes", i, -1, 1e6, &host);
    if (!e)
        e = json_whole(im, o, "rank", "nodes", i, -1, 1e6, &rank);
    if (pos && (!cJSON_IsArray(pos) || cJSON_GetArraySize(pos) > 3))
        e = bny_import_fail(im, 0, "nodes[%d].pos is no array of up to three numbers", i);
    k = 0;
    for (const cJSON *c = pos ? pos->child : NULL; c && !e; c = c->next) {
        if (!cJSON_IsNumber(c) || !(fabs(c->valuedouble) <= 1e6))
            return bny_import_fail(im, 0, "nodes[%d].pos is no array of up to three numbers",
                                   i);
        at[k++] = (int64_t)c->valuedouble;
    }
    n = &im->g->nodes[v];
    *n = (struct bny_node){
        .host = (int)host, .rank = (int)rank, .x = (int)at[0], .y = (int)at[1], .z = (int)at[2]
    };
    for (n->kind = BNY_NODE_COMPUTE; kind && strcmp(kind->valuestring, kind_names[n->kind]);)
        n->kind++;
    memcpy(n->name, name, strlen(name) + 1);
    return e;
}

/* A number, or a string with a number or a fraction. */
static int read_cap(const struct bny_import *im, const cJSON *o, int i, struct bny_ratio *cap)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, "cap");
    char text[40], what[40];

    snprintf(what, sizeof what, "links[%d].cap", i);
    if (cJSON_IsNumber(v) && v->valuedouble == floor(v->valuedouble) &&
        fabs(v->valuedouble) < 9e15) {
        *cap = bny_ratio_of((int64_t)v->valuedouble, 1);
        return 0;
    }
    if (cJSON_IsNumber(v))
        bny_snprintf(text, sizeof text, "%.6f", v->valuedouble);
    else if (!cJSON_IsString(v))
        return bny_import_fail(
            im, 0, "%s is missing, or neither a number nor a string like \"25/2\"", what);
    return bny_import_number(im, cap, cJSON_IsNumber(v) ? text : v->valuestring, what, 0);
}

static int read_end(const struct bny_import *im, const cJSON *o, int i, const char *key)
{
    char buf[24];
    const char *name =
        name_of(im, cJSON_GetObjectItemCaseSensitive(o, key), "links", i, key, buf, sizeof buf);
    int v = name ? bny_import_find(im, name) : -1;

    if (name && v < 0)
        return bny_import_fail(im, 0, "links[%d].%s: there is no node \"%.40s\"", i, key, name);
    return v < 0 ? -BANYAN_EINVAL : v;
}

static int read_link(struct bny_import *im, const cJSON *o, int i)
{
    static const char *const keys[] = { "src", "dst",   "cap",   "lat",
                                        "dir", "lanes", "attrs", NULL };
    const cJSON *dir = cJSON_GetObjectItemCaseSensitive(o, "dir");
    struct bny_ratio cap;
    int64_t lat = 0, lanes = 1;
    int both = 0, src, dst,
        e = cJSON_IsObject(o) ? check_keys(im, o, "links", i, keys)
                              : bny_import_fail(im, 0, "links[%d] is no object", i);

    if (e)
        return e;
    src = read_end(im, o, i, "src");
    dst = src < 0 ? src : read_end(im, o, i, "dst");
    if (dst < 0)
        return dst;
    e = read_cap(im, o, i, &cap);
    if (!e)
        e = json_whole(im, o, "lat", "links", i, 0, 1e12, &lat);
    if (!e)
        e = json_whole(im, o, "lanes", "links", i, 1, 1e6, &lanes);
    if (dir && !(cJSON_IsString(dir) &&
                 (!strcmp(dir->valuestring, "one") || !strcmp(dir->valuestring, "both"))))
        e = bny_import_fail(im, 0, "links[%d].dir is neither \"one\" nor \"both\"", i);
    both = !e && dir && !strcmp(dir->valuestring, "both");
    for (int k = 0; k <= both && !e; k++) {
        e = bny_import_link(im, k ? dst : src, k ? src : dst, cap, lat, 0);
        if (e == -BANYAN_EINVAL) {
            char why[300];
            snprintf(why, sizeof why, "%s", strstr(banyan_last_error(), ": ") + 2);
            return bny_import_fail(im, 0, "links[%d]: %s", i, why);
        }
        if (!e)
            im->links[im->nlinks - 1].lanes = lanes;
    }
    return e;
}

/* "ranks": ["r0", "r1", ...], the node of each rank. */
static int read_ranks(struct bny_import *im, const cJSON *list)
{
    int r = 0;

    for (const cJSON *c = list->child; c; c = c->next, r++) {
        char buf[24];
        const char *name = name_of(im, c, "ranks", r, "node", buf, sizeof buf);
        int v = name ? bny_import_find(im, name) : -1;
        if (!name)
            return -BANYAN_EINVAL;
        if (v < 0 || im->g->nodes[v].kind != BNY_NODE_COMPUTE)
            return bny_import_fail(im, 0, "ranks[%d]: there is no compute node \"%.40s\"", r,
                                   name);
        if (im->g->nodes[v].rank >= 0 && im->g->nodes[v].rank != r)
            return bny_import_fail(im, 0, "ranks[%d]: node \"%.40s\" has rank %d already", r,
                                   name, im->g->nodes[v].rank);
        im->g->nodes[v].rank = r;
    }
    return 0;
}

static int read_graph(struct bny_import *im, const cJSON *o)
{
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(o, "nodes"), *c;
    const cJSON *links = cJSON_GetObjectItemCaseSensitive(o, "links");
    const cJSON *ranks = cJSON_GetObjectItemCaseSensitive(o, "ranks");
    const cJSON *unit = cJSON_GetObjectItemCaseSensitive(o, "unit");
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(o, "name");
    int i = 0, e = 0;

    if (!cJSON_IsArray(nodes) || !cJSON_IsArray(links) || (ranks && !cJSON_IsArray(ranks)))
        return bny_import_fail(
            im, 0,
            "no graph: the object needs the arrays \"nodes\" and \"links\"; \"ranks\" is an "
            "array or not there");
    if (unit && (!cJSON_IsNumber(unit) || !(unit->valuedouble > 0 && unit->valuedouble < 1e18)))
        return bny_import_fail(im, 0, "unit is no number of bytes per second above 0");
    im->unit_Bps = unit ? unit->valuedouble : 1;
    im->reduce = !unit;
    if (cJSON_IsString(name))
        snprintf(im->g->name, sizeof im->g->name, "%s", name->valuestring);
    for (c = nodes->child; c && !e; c = c->next)
        e = read_node(im, c, i++);
    for (c = links->child, i = 0; c && !e; c = c->next)
        e = read_link(im, c, i++);
    return e || !ranks ? e : read_ranks(im, ranks);
}

static int json_parse(struct bny_import *im)
{
    const char *end = NULL;
    int line = 1, e = bny_lazy_cjson();
    cJSON *o = e ? NULL : bny_json_parse(im->text, im->len, &end);

    for (const char *s = im->text; end && s < end && s < im->text + im->len; s++)
        line += *s == '\n';
    if (e)
        return e;
    if (!o)
        return bny_import_fail(im, line, "no JSON from here on");
    if (end && end[strspn(end, " \t\r\n")]) {
        cJSON_Delete(o);
        return bny_import_fail(im, line, "something follows the JSON object");
    }
    e = read_graph(im, o);
    cJSON_Delete(o);
    return e;
}

static void write_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *s = (const unsigned char *)text; *s; s++)
        fprintf(f, *s == '"' || *s == '\\' ? "\\%c" : *s < 0x20 ? "\\u%04x" : "%c", *s);
    fputc('"', f);
}

int bny_graph_save(const struct bny_graph *g, FILE *f, const char *extra)
{
    fprintf(f, "{\"name\": ");
    write_text(f, g->name);
    bny_fprintf(f, ", \"unit\": %.17g%s,\n\"nodes\": [", g->unit_Bps, extra ? extra : "");
    for (int v = 0; v < g->nnodes; v++) {
        const struct bny_node *n = &g->nodes[v];
        fprintf(f, "%s\n {\"id\": ", v ? "," : "");
        write_text(f, n->name);
        fprintf(f, ", \"kind\": \"%s\"", kind_names[n->kind]);
        if (n->host >= 0)
            fprintf(f, ", \"host\": %d", n->host);
        if (n->rank >= 0)
            fprintf(f, ", \"rank\": %d", n->rank);
        fprintf(f, ", \"pos\": [%d, %d, %d]}", n->x, n->y, n->z);
    }
    fprintf(f, "],\n\"links\": [");
    for (int l = 0; l < g->nlinks; l++) {
        const struct bny_link *k = &g->links[l];
        fprintf(f, "%s\n {\"src\": ", l ? "," : "");
        write_text(f, g->nodes[k->from].name);
        fprintf(f, ", \"dst\": ");
        write_text(f, g->nodes[k->to].name);
        /* Above 2^53 a JSON number would lose digits. */
        fprintf(f, k->cap >> 53 ? ", \"cap\": \"%" PRId64 "\"" : ", \"cap\": %" PRId64, k->cap);
        fprintf(f, ", \"lat\": %" PRId64, k->lat_ns);
        fprintf(f, k->lanes > 1 ? ", \"lanes\": %" PRId64 "}" : "}", k->lanes);
    }
    fprintf(f, "]}\n");
    return ferror(f) ? bny_fail_errno("writing graph %s", g->name) : 0;
}

const struct bny_importer bny_import_json = { "json", json_sniff, json_parse };
