/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads plan files (plan_file.h has the format). Nothing in them is trusted: every number has a
 * range, every list a required length, and memory is allocated only for what the file
 * contains. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/lazy_cjson.h"
#include "base/text.h"
#include "topo/bound.h"
#include "topo/plan_file.h"

#define RANKS_MAX 65536
#define NODES_MAX (1 << 24)
#define LINKS_MAX (1 << 26)
#define DUAL_MAX  (INT64_C(1) << 26) /* sets x nodes of a proof */

struct reader {
    const char *name; /* of the file */
    struct bny_plan_file *out;
    int n; /* ranks */
};

static int plan_json_bad(const struct reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static int plan_json_bad(const struct reader *r, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return bny_fail(BANYAN_EINVAL, "%s: %s", r->name, text);
}

char *bny_file_read(const char *path, size_t max, size_t *len)
{
    int fd = bny_fd_high(open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    struct stat st;
    char *text = NULL;
    size_t have = 0;

    if (fd < 0 || fstat(fd, &st) != 0) {
        bny_fail_errno("%.200s cannot be read", path);
        goto out;
    }
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size > max) {
        bny_fail(BANYAN_EINVAL, "%.200s is %s", path,
                 S_ISREG(st.st_mode) ? "too large" : "no regular file");
        goto out;
    }
    text = malloc((size_t)st.st_size + 1);
    if (!text) {
        bny_fail(BANYAN_ENOMEM, "no memory for %.200s", path);
        goto out;
    }
    while (have < (size_t)st.st_size) {
        ssize_t got = read(fd, text + have, (size_t)st.st_size - have);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    text[have] = '\0';
    *len = have;
out:
    if (fd >= 0)
        close(fd);
    return text;
}

static const cJSON *plan_json_get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

/* A whole number of [min, max]. */
static int plan_json_whole(const cJSON *v, double min, double max, int64_t *out)
{
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= min && v->valuedouble <= max) ||
        v->valuedouble != floor(v->valuedouble))
        return -1;
    *out = (int64_t)v->valuedouble;
    return 0;
}

static int member(const struct reader *r, const cJSON *o, const char *where, const char *key,
                  double min, double max, int64_t *out)
{
    *out = 0;
    if (plan_json_whole(plan_json_get(o, key), min, max, out) != 0)
        return plan_json_bad(r, "%s%s: a whole number from %.0f to %.0f is expected", where,
                             key, min, max);
    return 0;
}

static int use_by_name(const cJSON *v, enum bny_forest_use *use)
{
    static const enum bny_forest_use uses[] = { BNY_FOREST_ALLREDUCE, BNY_FOREST_SCATTERED,
                                                BNY_FOREST_ROOTED };

    for (int i = 0; i < 3; i++)
        if (cJSON_IsString(v) && !strcmp(v->valuestring, bny_use_name(uses[i]))) {
            *use = uses[i];
            return 0;
        }
    return -1;
}

/* ---- trees ---- */

/* A list with one whole number for each rank, as int32 (steps fit as well). */
static int plan_json_list(const struct reader *r, const cJSON *o, int t, const char *key,
                          double min, double max, void *out)
{
    const cJSON *a = plan_json_get(o, key);
    int i = 0;

    if (!cJSON_IsArray(a) || cJSON_GetArraySize(a) != r->n)
        return plan_json_bad(
            r, "trees[%d].%s: a list of %d numbers is expected, one for each rank", t, key,
            r->n);
    for (const cJSON *v = a->child; v; v = v->next, i++) {
        int64_t x;

        if (plan_json_whole(v, min, max, &x) != 0)
            return plan_json_bad(
                r, "trees[%d].%s[%d]: a whole number from %.0f to %.0f is expected", t, key, i,
                min, max);
        ((int32_t *)out)[i] = (int32_t)x;
    }
    return 0;
}

static int read_route(struct bny_route *to, const cJSON *v)
{
    const cJSON *first = cJSON_IsArray(v) ? v->child : v;
    int n = cJSON_IsArray(v) ? cJSON_GetArraySize(v) : 1;
    int64_t x;

    if (!n)
        return 0;
    to->links = malloc((size_t)n * sizeof *to->links);
    if (!to->links)
        return -BANYAN_ENOMEM;
    for (v = first; v && to->nlinks < n; v = v->next) {
        if (plan_json_whole(v, 0, LINKS_MAX, &x) != 0)
            return -BANYAN_EINVAL;
        to->links[to->nlinks++] = (int)x;
    }
    return 0;
}

static int routes(const struct reader *r, const cJSON *o, int t, const char *key,
                  struct bny_route **out)
{
    const cJSON *a = plan_json_get(o, key);
    int i = 0, e;

    if (!a)
        return 0;
    if (!cJSON_IsArray(a) || cJSON_GetArraySize(a) != r->n)
        return plan_json_bad(r,
                             "trees[%d].%s: a list of %d routes is expected, one for each rank",
                             t, key, r->n);
    *out = calloc((size_t)r->n, sizeof **out);
    if (!*out)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for its routes", r->name);
    for (const cJSON *v = a->child; v; v = v->next, i++) {
        e = read_route(&(*out)[i], v);
        if (e == -BANYAN_EINVAL)
            return plan_json_bad(
                r, "trees[%d].%s[%d]: the number of a link, or a list of such, is expected", t,
                key, i);
        if (e)
            return bny_fail(BANYAN_ENOMEM, "%s: no memory for its routes", r->name);
    }
    return 0;
}

static int read_down(const struct reader *r, const cJSON *o, int t, struct bny_tree *tree)
{
    int e;

    if (!plan_json_get(o, "down_parent") && !plan_json_get(o, "down_step"))
        return 0;
    tree->down_parent = calloc((size_t)r->n, sizeof *tree->down_parent);
    tree->down_step = calloc((size_t)r->n, sizeof *tree->down_step);
    if (!tree->down_parent || !tree->down_step)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for its trees", r->name);
    e = plan_json_list(r, o, t, "down_parent", -1, r->n - 1, tree->down_parent);
    return e ? e : plan_json_list(r, o, t, "down_step", 0, INT32_MAX, tree->down_step);
}

static int read_tree(const struct reader *r, const cJSON *o, int t, struct bny_tree *tree)
{
    const cJSON *weight = plan_json_get(o, "weight");
    struct bny_ratio w;
    char where[40];
    int64_t root, pipeline = 0;
    int e;

    snprintf(where, sizeof where, "trees[%d].", t);
    e = member(r, o, where, "root", 0, r->n - 1, &root);
    if (!e && plan_json_get(o, "pipeline"))
        e = member(r, o, where, "pipeline", 0, UINT32_MAX, &pipeline);
    if (e)
        return e;
    if (!cJSON_IsString(weight) || bny_ratio_parse(&w, weight->valuestring) != 0 || w.num < 1 ||
        w.den < 1 || w.num > UINT32_MAX || w.den > UINT32_MAX)
        return plan_json_bad(r, "%sweight: a fraction in quotes is expected, as \"1/9\"",
                             where);
    tree->root = (int)root;
    tree->pipeline = (uint32_t)pipeline;
    tree->weight_num = (uint32_t)w.num;
    tree->weight_den = (uint32_t)w.den;
    e = plan_json_list(r, o, t, "parent", -1, r->n - 1, tree->parent);
    if (!e)
        e = plan_json_list(r, o, t, "step", 0, INT32_MAX, tree->step);
    if (!e)
        e = read_down(r, o, t, tree);
    if (!e)
        e = routes(r, o, t, "up", &tree->up);
    return e ? e : routes(r, o, t, "down", &tree->down);
}

static int read_trees(struct reader *r, const cJSON *root)
{
    const cJSON *a = plan_json_get(root, "trees"), *name = plan_json_get(root, "name"), *v;
    int n = cJSON_IsArray(a) ? cJSON_GetArraySize(a) : 0, t = 0, e = 0;
    int64_t nsteps;

    if (n < 1 || n > (1 << 20))
        return plan_json_bad(r, "trees: a list of trees is expected");
    cJSON_ArrayForEach(v, a)
    { /* before memory is allocated for that many ranks and trees */
        if (cJSON_GetArraySize(plan_json_get(v, "parent")) != r->n)
            return plan_json_bad(
                r, "trees[%d].parent: a list of %d numbers is expected, one for each rank", t,
                r->n);
        t++;
    }
    e = member(r, root, "", "steps", 0, INT32_MAX, &nsteps);
    if (e)
        return e;
    r->out->forest = bny_forest_alloc(
        cJSON_IsString(name) && *name->valuestring ? name->valuestring : "file", r->n, n);
    if (!r->out->forest)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for %d trees of %d ranks", r->name, n,
                        r->n);
    r->out->forest->nsteps = (uint32_t)nsteps;
    t = 0;
    for (v = a->child; v && !e; v = v->next, t++)
        e = read_tree(r, v, t, &r->out->forest->trees[t]);
    return e;
}

/* ---- claim and topology ---- */

static int read_ratio(const struct reader *r, const cJSON *o, const char *key,
                      struct bny_ratio *out)
{
    const cJSON *v = plan_json_get(o, key);

    if (!cJSON_IsString(v) || bny_ratio_parse(out, v->valuestring) != 0 || out->num < 0 ||
        !bny_ratio_ok(*out))
        return plan_json_bad(r, "claim.%s: a fraction in quotes is expected, as \"16/9\"", key);
    return 0;
}

static int read_cut(const struct reader *r, const cJSON *a, int64_t nodes,
                    struct bny_claim *claim)
{
    int i = 0;

    if (!cJSON_IsArray(a))
        return plan_json_bad(r, "claim.cut: a list of numbers of nodes is expected");
    claim->cut = calloc((size_t)nodes, 1);
    if (!claim->cut)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for its cut", r->name);
    claim->cut_nodes = (int)nodes;
    for (const cJSON *v = a->child; v; v = v->next, i++) {
        int64_t x;

        if (plan_json_whole(v, 0, (double)nodes - 1, &x) != 0)
            return plan_json_bad(r, "claim.cut[%d]: a node from 0 to %" PRId64 " is expected",
                                 i, nodes - 1);
        claim->cut[x] = 1;
    }
    return 0;
}

/* The numbers of a cut with more than in and out (kinds parts and out_in). */
static int read_parts(const struct reader *r, const cJSON *a, int64_t nodes,
                      struct bny_claim *claim)
{
    int i = 0;

    if (!cJSON_IsArray(a) || cJSON_GetArraySize(a) != nodes)
        return plan_json_bad(
            r, "claim.parts: a list of %" PRId64 " numbers is expected, one for each node",
            nodes);
    claim->cut = calloc((size_t)nodes, 1);
    if (!claim->cut)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for its cut", r->name);
    claim->cut_nodes = (int)nodes;
    for (const cJSON *v = a->child; v; v = v->next, i++) {
        int64_t x;

        if (plan_json_whole(v, 0, 255, &x) != 0)
            return plan_json_bad(r, "claim.parts[%d]: a number from 0 to 255 is expected", i);
        claim->cut[i] = (uint8_t)x;
    }
    return 0;
}

static int read_potentials(const struct reader *r, const cJSON *d, const char *key,
                           int64_t nodes, int64_t *out)
{
    const cJSON *a = plan_json_get(d, key);
    int i = 0;

    if (!cJSON_IsArray(a) || cJSON_GetArraySize(a) != nodes)
        return plan_json_bad(
            r, "claim.dual.%s: a list of %" PRId64 " numbers is expected, one for each node",
            key, nodes);
    for (const cJSON *v = a->child; v; v = v->next, i++)
        if (plan_json_whole(v, -9007199254740992.0, 9007199254740992.0, &out[i]) != 0)
            return plan_json_bad(r, "claim.dual.%s[%d]: a whole number is expected", key, i);
    return 0;
}

static int read_set(const struct reader *r, const cJSON *set, int s, struct bny_dual *d)
{
    const cJSON *nodes = plan_json_get(set, "nodes");
    char where[48];
    int64_t reduce, x;
    int e, i = 0;

    snprintf(where, sizeof where, "claim.dual.sets[%d].", s);
    e = member(r, set, where, "reduce", 0, 1, &reduce);
    if (!e)
        e = member(r, set, where, "times", 0, 9007199254740992.0, &d->times[s]);
    if (e)
        return e;
    d->reduce[s] = (uint8_t)reduce;
    if (!cJSON_IsArray(nodes))
        return plan_json_bad(r, "%snodes: a list of numbers of nodes is expected", where);
    for (const cJSON *v = nodes->child; v; v = v->next, i++) {
        if (plan_json_whole(v, 0, (double)d->nnodes - 1, &x) != 0)
            return plan_json_bad(r, "%snodes[%d]: a node from 0 to %d is expected", where, i,
                                 d->nnodes - 1);
        d->in[(size_t)s * (size_t)d->nnodes + (size_t)x] = 1;
    }
    return 0;
}

static int read_dual(const struct reader *r, const cJSON *d, int64_t nodes,
                     struct bny_claim *claim)
{
    const cJSON *sets = plan_json_get(d, "sets");
    int n = cJSON_IsArray(sets) ? cJSON_GetArraySize(sets) : -1, e, s = 0;

    if (n < 0 || n * nodes > DUAL_MAX)
        return plan_json_bad(r, "claim.dual.sets: a list of at most %d sets is expected",
                             (int)(DUAL_MAX / nodes));
    if (cJSON_GetArraySize(plan_json_get(d, "down_pot")) != nodes)
        return plan_json_bad(r,
                             "claim.dual.down_pot: a list of %" PRId64
                             " numbers is expected, one for each node",
                             nodes);
    claim->dual = bny_dual_alloc((int)nodes, n);
    if (!claim->dual)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for its proof", r->name);
    e = read_potentials(r, d, "down_pot", nodes, claim->dual->down_pot);
    if (!e)
        e = read_potentials(r, d, "up_pot", nodes, claim->dual->up_pot);
    for (const cJSON *v = sets->child; v && !e; v = v->next, s++)
        e = read_set(r, v, s, claim->dual);
    return e;
}

static int read_claim(const struct reader *r, const cJSON *root, int64_t nodes)
{
    const cJSON *c = plan_json_get(root, "claim"), *kind = plan_json_get(c, "kind");
    struct bny_claim *claim = &r->out->forest->claim;
    int e;

    if (!c)
        return 0;
    if (!cJSON_IsObject(c) || !nodes)
        return plan_json_bad(r, "claim: an object is expected, and a topology");
    e = read_ratio(r, c, "time", &claim->time);
    if (!e)
        e = read_ratio(r, c, "bound", &claim->bound);
    if (e)
        return e;
    for (int k = 0; k <= BNY_CUT_PARTS; k++)
        if (cJSON_IsString(kind) && !strcmp(kind->valuestring, bny_cut_kind_name(k)))
            claim->cut_kind = k;
    if (plan_json_get(c, "parts"))
        e = read_parts(r, plan_json_get(c, "parts"), nodes, claim);
    else if (plan_json_get(c, "cut"))
        e = read_cut(r, plan_json_get(c, "cut"), nodes, claim);
    return !e && plan_json_get(c, "dual") ? read_dual(r, plan_json_get(c, "dual"), nodes, claim)
                                          : e;
}

static int read_topology(const struct reader *r, const cJSON *root, int64_t *nodes)
{
    const cJSON *o = plan_json_get(root, "topology"), *name = plan_json_get(o, "name"),
                *hash = plan_json_get(o, "hash");
    char *end;

    *nodes = 0;
    if (!o)
        return 0;
    if (!cJSON_IsString(name) || !cJSON_IsString(hash) || strlen(hash->valuestring) != 16)
        return plan_json_bad(r,
                             "topology: name and a hash of 16 hexadecimal digits are expected");
    r->out->graph_hash = strtoull(hash->valuestring, &end, 16);
    if (*end || !r->out->graph_hash)
        return plan_json_bad(r, "topology.hash: 16 hexadecimal digits are expected");
    snprintf(r->out->topology, sizeof r->out->topology, "%s", name->valuestring);
    return member(r, o, "topology.", "nodes", 1, NODES_MAX, nodes);
}

/* ---- whole ---- */

static int syntax(const struct reader *r, const char *text, const char *at)
{
    int line = 1, column = 1;

    for (; text < at && *text; text++) {
        column = *text == '\n' ? 1 : column + 1;
        line += *text == '\n';
    }
    return plan_json_bad(r, "line %d, column %d: this is no JSON", line, column);
}

static int read_plan(struct reader *r, const cJSON *root)
{
    enum bny_forest_use use;
    int64_t version = 0, n, at = -1, nodes;
    char why[256];
    int e;

    if (!cJSON_IsObject(root) ||
        plan_json_whole(plan_json_get(root, "banyan_plan"), 1, 1e9, &version) != 0)
        return plan_json_bad(r, "this is no plan: \"banyan_plan\": 1 is missing");
    if (version != 1)
        return plan_json_bad(r, "banyan_plan: version %" PRId64 " is unknown here, 1 is known",
                             version);
    if (use_by_name(plan_json_get(root, "use"), &use) != 0)
        return plan_json_bad(r, "use: allreduce, scattered or rooted is expected");
    e = member(r, root, "", "ranks", 1, RANKS_MAX, &n);
    if (!e && use == BNY_FOREST_ROOTED)
        e = member(r, root, "", "root", 0, (double)n - 1, &at);
    if (e)
        return e;
    r->n = (int)n;
    r->out->use = use;
    r->out->root = (int)at;
    e = read_trees(r, root);
    if (!e)
        e = read_topology(r, root, &nodes);
    if (!e)
        e = read_claim(r, root, nodes);
    if (!e && bny_forest_check(r->out->forest, use, r->out->root, why, sizeof why) != 0)
        e = plan_json_bad(r, "%s", why);
    return e;
}

int bny_plan_parse(struct bny_plan_file *out, const char *text, size_t len, const char *name)
{
    struct reader r = { .name = name, .out = out };
    const char *end = NULL;
    cJSON *root;
    int e;

    memset(out, 0, sizeof *out);
    out->root = -1;
    e = bny_lazy_cjson();
    if (e)
        return e;
    root = bny_json_parse(text, len, &end);
    e = root ? read_plan(&r, root) : syntax(&r, text, end ? end : text);
    cJSON_Delete(root);
    if (e)
        bny_plan_close(out);
    return e;
}

int bny_plan_load(struct bny_plan_file *out, const char *path)
{
    size_t len;
    char *text = bny_file_read(path, BNY_PLAN_BYTES_MAX, &len);
    int e;

    memset(out, 0, sizeof *out);
    if (!text)
        return -BANYAN_EINVAL;
    e = bny_plan_parse(out, text, len, path);
    free(text);
    return e;
}

/* A route from node a to node b. */
static int leads(const struct bny_graph *g, const struct bny_route *route, int a, int b)
{
    for (int i = 0; i < route->nlinks; i++) {
        int l = route->links[i];

        if (l < 0 || l >= g->nlinks || g->links[l].from != a)
            return 0;
        a = g->links[l].to;
    }
    return a == b && route->nlinks > 0;
}

/* Existing routes use links of the graph, whatever graph the plan was made for. */
static int tree_fits(const struct bny_plan_file *plan, int t, const struct bny_graph *g,
                     const char *name)
{
    const struct bny_forest *f = plan->forest;
    const struct bny_tree *tree = &f->trees[t];

    if (plan->graph_hash && (!tree->up || !tree->down))
        return bny_fail(BANYAN_EINVAL, "%s: tree %d has no routes", name, t);
    for (int v = 0; v < f->nranks; v++) {
        int up = tree->parent[v], down = tree->down_parent ? tree->down_parent[v] : up;

        if (v == tree->root)
            continue;
        if (tree->up && !leads(g, &tree->up[v], g->rank_node[v], g->rank_node[up]))
            return bny_fail(
                BANYAN_EINVAL,
                "%s: trees[%d].up[%d]: no links of %s lead from rank %d to rank %d that way",
                name, t, v, g->name, v, up);
        if (tree->down && !leads(g, &tree->down[v], g->rank_node[down], g->rank_node[v]))
            return bny_fail(
                BANYAN_EINVAL,
                "%s: trees[%d].down[%d]: no links of %s lead from rank %d to rank %d that way",
                name, t, v, g->name, down, v);
    }
    return 0;
}

int bny_plan_fits(const struct bny_plan_file *plan, const struct bny_graph *g, const char *name)
{
    const struct bny_forest *f = plan->forest;
    int e = 0;

    if (f->nranks != g->nranks)
        return bny_fail(BANYAN_EINVAL, "%s is a plan of %d ranks, topology %s has %d", name,
                        f->nranks, g->name, g->nranks);
    if (plan->graph_hash && plan->graph_hash != bny_graph_hash(g))
        return bny_fail(
            BANYAN_EINVAL,
            "%s was made for topology %s, which is not the same as this %s (hash %016" PRIx64
            " against %016" PRIx64 ")",
            name, plan->topology, g->name, plan->graph_hash, bny_graph_hash(g));
    if (f->claim.cut && f->claim.cut_nodes != g->nnodes)
        return bny_fail(BANYAN_EINVAL, "%s: its cut is of %d nodes, topology %s has %d", name,
                        f->claim.cut_nodes, g->name, g->nnodes);
    for (int t = 0; t < f->ntrees && !e; t++)
        e = tree_fits(plan, t, g, name);
    return e;
}

void bny_plan_close(struct bny_plan_file *plan)
{
    bny_forest_free(plan->forest);
    plan->forest = NULL;
}
