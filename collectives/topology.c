/* SPDX-License-Identifier: BSD-3-Clause */
/* Schedules that rest on the network (topology.h): files, builders that look at the graph, and hosts of several ranks. */
#include "collectives/topology.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/err.h"
#include "collectives/internal.h"
#include "collectives/msccl.h"
#include "topo/bound.h"
#include "topo/plan.h"
#include "topo/route.h"

#define PROVE_RANKS_MAX 512 /* the most ranks of a plan's file: one that is not proven is not run; 1.3 s and 150 MB there */
#define FAMILY_RANKS_MAX 64 /* and so many, packed forests under caps on their height */
#define AUTO_RANKS_MAX 256  /* up to so many ranks auto builds every kind of forest: seconds at most, once */
#define ROUNDS_MAX     32    /* of a direct program whose cost is looked at */
#define DIRECTS_MAX    8
#define WIRE_SHARE 0.955    /* payload of what a link carries: headers of TCP, IP and Ethernet in 1514 bytes */

struct made { /* a forest of the communicator's ranks */
    struct made *next;
    char schedule[BNY_NAME_MAX];
    enum bny_forest_use use;
    int root;
    int rc;                     /* 0, or why there is none */
    struct bny_forest *forest;
    int height;                 /* time steps a phase */
    struct bny_topology_cost cost;
};

struct direct_cost { /* of an allreduce that is no forest, round by round */
    const struct bny_direct_ops *ops;
    int rc, rounds;
    double per_byte;
};

struct bny_topology {
    struct bny_graph *graph;    /* NULL: not given */
    struct bny_plan_file plan;  /* forest NULL: none */
    struct bny_program_set set; /* p NULL: none */
    char *file;                 /* name of the schedule's file, or NULL */
    uint64_t file_hash;
    int nranks, nhosts;
    int *host_of;               /* [nranks] */
    int *local;                 /* [nranks] ranks host by host */
    int *local_first;           /* [nhosts + 1] */
    int grouped;                /* graph or plan are of hosts that have several ranks */
    struct made *made;
    struct direct_cost directs[DIRECTS_MAX];
};

/* ---- names ------------------------------------------------------------------------------------------- */

/* Hosts as a full mesh, several ranks on each: which builder joins the hosts. */
static const struct {
    const char *name, *hosts;
} hosts_of[] = { { "host_ring", "ring" }, { "host_tree", "double_binary_tree" } };
#define NHOSTS_OF (sizeof hosts_of / sizeof hosts_of[0])

static const char *hosts_builder(const char *schedule)
{
    for (size_t i = 0; i < NHOSTS_OF; i++)
        if (!strcmp(schedule, hosts_of[i].name))
            return hosts_of[i].hosts;
    return NULL;
}

/* "packed_h5": packed with trees of at most 5 edges from end to end. Returns 5, or 0. */
static int height_cap(const char *schedule)
{
    int cap = 0, len = 0;

    return sscanf(schedule, "packed_h%3d%n", &cap, &len) == 1 && !schedule[len] && cap > 0 ? cap : 0;
}

const char *bny_topology_schedule_name(size_t i)
{
    size_t n = 0;

    while (bny_graph_builders[n])
        n++;
    if (i < n)
        return bny_graph_builders[i]->name;
    return i - n < NHOSTS_OF ? hosts_of[i - n].name : NULL;
}

static int ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n > m && !strcmp(text + n - m, end);
}

int bny_schedule_is_file(const char *schedule)
{
    return strchr(schedule, '/') || ends_with(schedule, ".json") || ends_with(schedule, ".xml");
}

int bny_topology_schedule_known(const char *name)
{
    const char *known;

    for (size_t i = 0; (known = bny_topology_schedule_name(i)); i++)
        if (!strcmp(known, name))
            return 1;
    return bny_schedule_is_file(name) || !strncmp(name, "file:", 5) || height_cap(name);
}

void bny_topology_file_name(const struct bny_topology *t, char *buf, size_t cap)
{
    snprintf(buf, cap, "file:%016llx", (unsigned long long)t->file_hash);
}

/* ---- loading ----------------------------------------------------------------------------------------- */

static int load_file(struct bny_topology *t, const char *path)
{
    size_t len;
    char *text = bny_file_read(path, BNY_PLAN_BYTES_MAX, &len);
    uint8_t hash[crypto_generichash_BYTES_MIN];
    const char *first;
    int e;

    if (!text)
        return -BANYAN_EINVAL;
    crypto_generichash(hash, sizeof hash, (const uint8_t *)text, len, NULL, 0);
    memcpy(&t->file_hash, hash, sizeof t->file_hash);
    first = text + strspn(text, " \t\r\n");
    e = *first == '<' ? bny_msccl_parse(&t->set, text, len, path) : bny_plan_parse(&t->plan, text, len, path);
    free(text);
    return e;
}

int bny_topology_load(struct bny_topology **out, const char *topo, const char *schedule)
{
    struct bny_topology *t = calloc(1, sizeof *t);
    int e = 0;

    *out = NULL;
    if (!t)
        return bny_fail(BANYAN_ENOMEM, "no memory for a topology");
    if (*topo)
        e = bny_graph_make(&t->graph, topo);
    if (!e && bny_schedule_is_file(schedule)) {
        t->file = strdup(schedule);
        e = t->file ? load_file(t, schedule) : bny_fail(BANYAN_ENOMEM, "no memory for a topology");
    }
    if (!e && t->plan.forest && t->graph)
        e = bny_plan_fits(&t->plan, t->graph, schedule);
    if (e)
        bny_topology_free(t);
    else
        *out = t;
    return e;
}

void bny_topology_free(struct bny_topology *t)
{
    if (!t)
        return;
    while (t->made) {
        struct made *m = t->made;

        t->made = m->next;
        bny_forest_free(m->forest);
        free(m);
    }
    bny_graph_free(t->graph);
    bny_plan_close(&t->plan);
    bny_program_set_free(&t->set);
    free(t->file);
    free(t->host_of);
    free(t->local);
    free(t->local_first);
    free(t);
}

int bny_topology_same_host(const struct bny_topology *t, int a, int b)
{
    return t->host_of && t->host_of[a] == t->host_of[b];
}

uint64_t bny_topology_hash(const struct bny_topology *t)
{
    return t->graph ? bny_graph_hash(t->graph) : 0;
}

uint64_t bny_topology_file_hash(const struct bny_topology *t)
{
    return t->file_hash;
}

/* ---- hosts ------------------------------------------------------------------------------------------- */

static int set_hosts(struct bny_topology *t, const int *host_of, int nranks)
{
    int at = 0;

    t->nranks = nranks;
    for (int r = 0; r < nranks; r++)
        if (host_of[r] >= t->nhosts)
            t->nhosts = host_of[r] + 1;
    t->host_of = calloc((size_t)nranks, sizeof *t->host_of);
    t->local = calloc((size_t)nranks, sizeof *t->local);
    t->local_first = calloc((size_t)t->nhosts + 1, sizeof *t->local_first);
    if (!t->host_of || !t->local || !t->local_first)
        return bny_fail(BANYAN_ENOMEM, "no memory for a topology");
    memcpy(t->host_of, host_of, (size_t)nranks * sizeof *host_of);
    for (int h = 0; h < t->nhosts; h++) {
        t->local_first[h] = at;
        for (int r = 0; r < nranks; r++)
            if (host_of[r] == h)
                t->local[at++] = r;
    }
    t->local_first[t->nhosts] = at;
    return 0;
}

static int nlocal(const struct bny_topology *t, int host)
{
    return t->local_first[host + 1] - t->local_first[host];
}

/* The i-th rank of a host, counted round and round. */
static int local_rank(const struct bny_topology *t, int host, int i)
{
    return t->local[t->local_first[host] + i % nlocal(t, host)];
}

static int index_on_host(const struct bny_topology *t, int rank)
{
    int h = t->host_of[rank], i = 0;

    while (t->local[t->local_first[h] + i] != rank)
        i++;
    return i;
}

static int count_fits(struct bny_topology *t, int n, const char *what)
{
    if (n == t->nranks)
        return 0;
    if (n != t->nhosts)
        return bny_fail(BANYAN_EINVAL, "%s is for %d ranks; this job has %d%s", what, n, t->nranks,
                        t->nhosts < t->nranks ? ", and not that many hosts either" : "");
    t->grouped = 1;
    return 0;
}

/* The programs of a plan's forest are proven before any of them runs. */
static int prove_plan(const struct bny_topology *t)
{
    static const enum bny_collective of_use[3][2] = { { BNY_ALLREDUCE, BNY_ALLREDUCE },
                                                      { BNY_REDUCE_SCATTER, BNY_ALLGATHER },
                                                      { BNY_REDUCE, BNY_BROADCAST } };
    const struct bny_forest *f = t->plan.forest;
    struct bny_program_set set = { .n = f->nranks };
    char why[256];
    int e = 0, kinds = t->plan.use == BNY_FOREST_ALLREDUCE ? 1 : 2;

    if (f->nranks > PROVE_RANKS_MAX)
        return bny_fail(BANYAN_EINVAL, "%s is for %d ranks; plans of more than %d cannot be proven at load and are not run: name "
                        "a schedule instead", t->file, f->nranks, PROVE_RANKS_MAX);
    for (int i = 0; i < kinds && !e; i++) {
        set.collective = of_use[t->plan.use == BNY_FOREST_ALLREDUCE ? 0 : t->plan.use == BNY_FOREST_SCATTERED ? 1 : 2][i];
        set.p = calloc((size_t)set.n, sizeof *set.p);
        e = set.p ? bny_compile_all(set.p, f, set.collective, 1) : bny_fail(BANYAN_ENOMEM, "no memory to prove %s", t->file);
        if (!e && bny_program_set_prove(&set, 8, why, sizeof why) != 0)
            e = bny_fail(BANYAN_EINVAL, "%s is no correct plan: %s", t->file, why);
        bny_program_set_free(&set);
    }
    return e;
}

int bny_topology_settle(struct bny_topology *t, const int *host_of, int nranks)
{
    int e = set_hosts(t, host_of, nranks);

    if (!e && t->graph)
        e = count_fits(t, t->graph->nranks, t->graph->name);
    if (!e && t->plan.forest)
        e = count_fits(t, t->plan.forest->nranks, t->file);
    if (!e && t->set.p && t->set.n != nranks)
        e = bny_fail(BANYAN_EINVAL, "%s is for %d ranks; this job has %d", t->file, t->set.n, nranks);
    return !e && t->plan.forest ? prove_plan(t) : e;
}

/* ---- forests of hosts ---------------------------------------------------------------------------------- */

/* One tree of hosts, grown to one of ranks: on each host one rank (that of the given index) stands for it, and the
 * others are its children. They reduce first and receive last, over shared memory. */
static int grow_tree(struct bny_tree *to, const struct bny_tree *from, const struct bny_topology *t, uint32_t nsteps,
                     int index, int root)
{
    int hroot = from->root;

    to->root = root;
    to->weight_num = from->weight_num;
    to->weight_den = from->weight_den;
    to->pipeline = from->pipeline;
    if (from->down_parent) {
        to->down_parent = calloc((size_t)t->nranks, sizeof *to->down_parent);
        to->down_step = calloc((size_t)t->nranks, sizeof *to->down_step);
        if (!to->down_parent || !to->down_step)
            return -1;
    }
    for (int r = 0; r < t->nranks; r++) {
        int h = t->host_of[r], up, down, leader = h == hroot ? root : local_rank(t, h, index);

        if (r != leader) {
            to->parent[r] = leader;
            to->step[r] = 0;
            if (from->down_parent) {
                to->down_parent[r] = leader;
                to->down_step[r] = nsteps;
            }
            continue;
        }
        up = from->parent[h];
        to->parent[r] = up < 0 ? -1 : up == hroot ? root : local_rank(t, up, index);
        to->step[r] = up < 0 ? 0 : from->step[h] + 1;
        if (!from->down_parent)
            continue;
        down = from->down_parent[h];
        to->down_parent[r] = down < 0 ? -1 : down == hroot ? root : local_rank(t, down, index);
        to->down_step[r] = down < 0 ? 0 : from->down_step[h];
    }
    return 0;
}

/* A forest of ranks from one of hosts. Trees take turns with the ranks of a host. */
static int grow_forest(struct bny_forest **out, const struct bny_topology *t, const struct bny_forest *hosts,
                       enum bny_forest_use use, int root)
{
    int scattered = use == BNY_FOREST_SCATTERED, n = scattered ? t->nranks : hosts->ntrees;
    struct bny_forest *f = bny_forest_alloc(hosts->name, t->nranks, n);

    for (int i = 0; f && i < n; i++) {
        const struct bny_tree *from = &hosts->trees[scattered ? t->host_of[i] : i];
        int r = scattered ? i : use == BNY_FOREST_ROOTED ? root : local_rank(t, from->root, i);

        if (grow_tree(&f->trees[i], from, t, hosts->nsteps, scattered ? index_on_host(t, i) : i, r)) {
            bny_forest_free(f);
            f = NULL;
            break;
        }
        if (scattered) {
            f->trees[i].weight_num = 1;
            f->trees[i].weight_den = (uint32_t)n;
        }
    }
    if (!f)
        return bny_fail(BANYAN_ENOMEM, "no memory for a forest of %d ranks", t->nranks);
    f->nsteps = hosts->nsteps + 1;
    *out = f;
    return 0;
}

/* ---- making forests ------------------------------------------------------------------------------------ */

static enum bny_forest_use use_of(enum bny_collective c)
{
    return c == BNY_ALLREDUCE ? BNY_FOREST_ALLREDUCE
           : c == BNY_REDUCE_SCATTER || c == BNY_ALLGATHER ? BNY_FOREST_SCATTERED
                                                           : BNY_FOREST_ROOTED;
}

static int has_use(enum bny_collective c)
{
    return c == BNY_ALLREDUCE || c == BNY_REDUCE || c == BNY_BROADCAST || c == BNY_REDUCE_SCATTER ||
           c == BNY_ALLGATHER;
}

/* A copy of the plan's forest, without claim and routes of a direction that nobody asked for. */
static int copy_plan(struct bny_forest **out, const struct bny_topology *t, enum bny_forest_use use, int root)
{
    const struct bny_forest *f = t->plan.forest;
    struct bny_forest *c = bny_forest_alloc(f->name, f->nranks, f->ntrees);
    size_t n = (size_t)f->nranks;

    if (!c)
        return bny_fail(BANYAN_ENOMEM, "no memory for a plan");
    c->nsteps = f->nsteps;
    for (int i = 0; i < f->ntrees; i++) {
        const struct bny_tree *from = &f->trees[i];
        struct bny_tree *to = &c->trees[i];

        to->root = from->root;
        to->weight_num = from->weight_num;
        to->weight_den = from->weight_den;
        to->pipeline = from->pipeline;
        memcpy(to->parent, from->parent, n * sizeof *to->parent);
        memcpy(to->step, from->step, n * sizeof *to->step);
        if (!from->down_parent)
            continue;
        to->down_parent = malloc(n * sizeof *to->down_parent);
        to->down_step = malloc(n * sizeof *to->down_step);
        if (!to->down_parent || !to->down_step) {
            bny_forest_free(c);
            return bny_fail(BANYAN_ENOMEM, "no memory for a plan");
        }
        memcpy(to->down_parent, from->down_parent, n * sizeof *to->down_parent);
        memcpy(to->down_step, from->down_step, n * sizeof *to->down_step);
    }
    if (bny_forest_check(c, use, root, NULL, 0) != 0) { /* made for another collective */
        bny_forest_free(c);
        return -BANYAN_ENOTSUP;
    }
    *out = c;
    return 0;
}

/* The forest of graph ranks (hosts, when grouped) of a schedule. */
static int build_base(struct bny_forest **out, const struct bny_topology *t, const char *schedule,
                      enum bny_forest_use use, int root)
{
    const struct bny_graph_builder_ops *g = bny_graph_builder_find(height_cap(schedule) ? "packed" : schedule);
    struct bny_build_opts opts = { .k = use == BNY_FOREST_SCATTERED, /* programs of these have a block a rank */
                                   .height_cap = height_cap(schedule) };
    const struct bny_builder_ops *b = bny_builder_find(hosts_builder(schedule) ? hosts_builder(schedule) : schedule);
    int n = hosts_builder(schedule) ? t->nhosts : t->graph ? t->graph->nranks : t->nranks;

    if (!strncmp(schedule, "file:", 5))
        return t->plan.forest ? copy_plan(out, t, use, root) : -BANYAN_ENOTSUP;
    if (g)
        return t->graph && g->uses & use ? g->build(out, t->graph, use, root, &opts) : -BANYAN_ENOTSUP;
    if (!b || !(b->uses & use) || (hosts_builder(schedule) && (t->nhosts < 2 || t->nhosts == t->nranks)))
        return -BANYAN_ENOTSUP;
    return b->build(out, n, use, root);
}

/* ---- cost ---------------------------------------------------------------------------------------------- */

static int height(const struct bny_tree *tree, const int *parent, int n, int *depth)
{
    int most = 0;

    memset(depth, 0xff, (size_t)n * sizeof *depth);
    depth[tree->root] = 0;
    for (int v = 0; v < n; v++) {
        int at = v, d = 0;

        while (depth[at] < 0) {
            at = parent[at];
            d++;
        }
        d += depth[at];
        most = d > most ? d : most;
        for (at = v; depth[at] < 0; at = parent[at])
            depth[at] = d--;
    }
    return most;
}

static void add_load(const struct bny_graph *g, const struct bny_route *r, double share, double *load, double *slowest)
{
    for (int i = 0; i < r->nlinks; i++) {
        double cap = (double)g->links[r->links[i]].cap;

        load[r->links[i]] += share;
        if (*slowest <= 0 || cap < *slowest)
            *slowest = cap;
    }
}

static int set_cost(struct bny_topology_cost *k, struct bny_forest *f, const struct bny_graph *g,
                    enum bny_forest_use use)
{
    int both = use == BNY_FOREST_ALLREDUCE, up = 0, down = 0;
    double *load = calloc(2 * (size_t)g->nlinks + 1, sizeof *load), slowest = 0, most = 0, largest = 0;
    double *other = load ? load + (both ? 0 : g->nlinks) : NULL; /* phases meet on the links of an allreduce */
    int *depth = calloc((size_t)f->nranks, sizeof *depth);
    int e = load && depth ? bny_forest_route(f, g) : bny_fail(BANYAN_ENOMEM, "no memory for the loads of links");

    for (int t = 0; t < f->ntrees && !e; t++) {
        const struct bny_tree *tree = &f->trees[t];
        double share = (double)tree->weight_num / tree->weight_den;
        int h = height(tree, tree->parent, f->nranks, depth);
        int d = tree->down_parent ? height(tree, tree->down_parent, f->nranks, depth) : h;

        largest = share > largest ? share : largest;
        up = h > up ? h : up;
        down = d > down ? d : down;
        for (int v = 0; v < f->nranks; v++) {
            add_load(g, &tree->up[v], share, load, &slowest);
            add_load(g, &tree->down[v], share, other, &slowest);
        }
    }
    *k = (struct bny_topology_cost){ .largest = largest,
                                     .link_Bps = slowest * g->unit_Bps,
                                     .hops = both ? up + down : up > down ? up : down,
                                     .steps = (int)f->nsteps * (both ? 2 : 1) };
    for (int l = 0; l < g->nlinks && !e; l++) {
        double carried = load[l] > other[l] ? load[l] : other[l];
        double s = carried / ((double)g->links[l].cap * g->unit_Bps) / WIRE_SHARE;

        k->per_byte = s > k->per_byte ? s : k->per_byte;
        most = carried > most ? carried : most;
    }
    k->carried = most;
    free(load);
    free(depth);
    return e;
}

size_t bny_topology_chunk(const struct bny_topology_cost *k, double bytes, double alpha_s)
{
    /* Time of chunk size c: carried * bytes / c messages of alpha, and hops - 1 chunks of c / rate to fill. */
    double c = k->hops > 1 ? sqrt(k->carried * bytes * alpha_s * k->link_Bps / (k->hops - 1)) : 262144;

    c = c < 4096 ? 4096 : c > 262144 ? 262144 : c;
    return (size_t)c & ~(size_t)1023;
}

double bny_topology_step_s(const struct bny_topology_cost *k, double bytes, double alpha_s)
{
    return alpha_s + k->largest * bytes / k->link_Bps / WIRE_SHARE;
}

double bny_topology_seconds(const struct bny_topology_cost *k, double bytes, size_t chunk, double alpha_s)
{
    double c = (double)chunk < bytes ? (double)chunk : bytes;

    return k->per_byte * bytes + (k->hops > 1 ? k->hops - 1 : 0) * c / k->link_Bps + k->hops * alpha_s +
           k->carried * bytes / (c > 1 ? c : 1) * alpha_s;
}

/* ---- cache ---------------------------------------------------------------------------------------------- */

static struct made *make(struct bny_topology *t, const char *schedule, enum bny_forest_use use, int root)
{
    struct made *m;
    struct bny_forest *hosts = NULL;
    int grouped = t->grouped || hosts_builder(schedule), hroot = root < 0 ? -1 : grouped ? t->host_of[root] : root;

    for (m = t->made; m; m = m->next)
        if (m->use == use && m->root == root && !strcmp(m->schedule, schedule))
            return m;
    m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    snprintf(m->schedule, sizeof m->schedule, "%s", schedule);
    m->use = use;
    m->root = root;
    m->next = t->made;
    t->made = m;
    m->rc = build_base(&hosts, t, schedule, use, hroot);
    if (m->rc == 0 && t->graph && t->graph->nranks == hosts->nranks)
        m->rc = set_cost(&m->cost, hosts, t->graph, use);
    m->height = m->rc == 0 ? (int)hosts->nsteps : 0;
    if (m->rc == 0 && grouped) {
        m->rc = grow_forest(&m->forest, t, hosts, use, root);
        m->cost.hops += use == BNY_FOREST_ALLREDUCE ? 2 : 1;
        bny_forest_free(hosts);
    } else if (m->rc == 0) {
        m->forest = hosts;
    } else {
        bny_forest_free(hosts);
    }
    return m;
}

int bny_topology_lower(char *name, const struct banyan_comm *c, enum bny_collective coll, int root)
{
    struct bny_topology *t = bny_topology_applies(c) ? c->world->topology : NULL;
    struct made *m;
    int cap;

    if (!t || !t->graph || !has_use(coll) || t->graph->nranks > FAMILY_RANKS_MAX)
        return 0;
    root = use_of(coll) == BNY_FOREST_ROOTED ? root : -1;
    m = make(t, *name ? name : "packed", use_of(coll), root);
    if (!m || m->rc || m->height < 2)
        return 0;
    cap = m->height > 4 ? m->height * 3 / 4 : m->height - 1;
    snprintf(name, BNY_NAME_MAX, "packed_h%d", cap);
    m = make(t, name, use_of(coll), root);
    return m && m->rc == 0;
}

int bny_topology_worth_trying(const struct banyan_comm *c, const char *schedule)
{
    if (hosts_builder(schedule))
        return c->world->nhosts > 1 && c->world->nhosts < c->n;
    return strcmp(schedule, "multitree_reference") != 0 && (c->n <= AUTO_RANKS_MAX || !strcmp(schedule, "multitree"));
}

double bny_topology_beta(const struct banyan_comm *c)
{
    const struct bny_graph *g = bny_topology_applies(c) ? c->world->topology->graph : NULL;
    double least = 0;

    for (int r = 0; g && r < g->nranks; r++) {
        double port = 0;

        for (int i = g->out_first[g->rank_node[r]]; i < g->out_first[g->rank_node[r] + 1]; i++)
            port += (double)g->links[g->out[i]].cap;
        least = least > 0 && least < port ? least : port;
    }
    return least > 0 ? 1 / (least * g->unit_Bps * WIRE_SHARE) : 0;
}

int bny_topology_applies(const struct banyan_comm *c)
{
    const struct bny_topology *t = c->world->topology;

    if (!t || c->n != c->world->nranks || !t->host_of)
        return 0;
    for (int r = 0; r < c->n; r++)
        if (c->peers[r].world_rank != r)
            return 0;
    return 1;
}

int bny_topology_program(struct bny_program **out, int *borrowed, const struct banyan_comm *c,
                         enum bny_collective coll, const char *schedule, int root, int coalesce)
{
    struct bny_topology *t = c->world->topology;
    struct made *m;

    *borrowed = 0;
    if (!bny_topology_applies(c) || !has_use(coll))
        return -BANYAN_ENOTSUP;
    if (!strncmp(schedule, "file:", 5) && t->set.p) {
        *borrowed = 1;
        *out = t->set.p[c->rank];
        return t->set.collective == coll ? 0 : -BANYAN_ENOTSUP;
    }
    m = make(t, schedule, use_of(coll), use_of(coll) == BNY_FOREST_ROOTED ? root : -1);
    if (!m)
        return bny_fail(BANYAN_ENOMEM, "no memory for a forest");
    return m->rc ? m->rc : bny_compile(out, m->forest, coll, c->rank, coalesce);
}

/* Adds what the sends of one rank load on the links in round after round: its k-th send belongs to round k. */
static int add_rounds(double *load, int *nrounds, const struct bny_program *p, const struct bny_graph *g, struct bny_router *router)
{
    struct bny_ways ways = { 0 };
    int round = 0, e = 0;

    for (uint32_t i = 0; i < p->nsteps && !e; i++) {
        const struct bny_step *s = &p->steps[i];
        double share = 0;

        if ((s->kind != BNY_SEND && s->kind != BNY_FORWARD) || round == ROUNDS_MAX)
            continue;
        for (uint32_t b = s->block; b < s->block + s->nblocks; b++)
            share += p->weight_num ? (double)p->weight_num[b] / p->weight_den[b] : 1.0 / p->nblocks;
        e = bny_router_ways(router, p->rank, s->peer, &ways);
        for (int w = 0; w < ways.nparts && !e; w++)
            for (int l = ways.first[w]; l < ways.first[w + 1]; l++)
                load[round * g->nlinks + ways.links[l]] += share * ways.share[w];
        round++;
    }
    *nrounds = round > *nrounds ? round : *nrounds;
    free(ways.links);
    return e;
}

static int direct_rounds(struct direct_cost *d, const struct bny_direct_ops *ops, enum bny_collective coll,
                         const struct bny_graph *g)
{
    double *load = calloc((size_t)ROUNDS_MAX * (size_t)g->nlinks + 1, sizeof *load);
    struct bny_router *router = bny_router_create(g, BNY_ROUTE_AUTO, 0);
    int e = load && router ? 0 : -BANYAN_ENOMEM;

    for (int r = 0; r < g->nranks && !e; r++) {
        struct bny_program *p;

        e = ops->build(&p, coll, g->nranks, r, -1);
        if (!e) {
            e = add_rounds(load, &d->rounds, p, g, router);
            bny_program_free(p);
        }
    }
    for (int k = 0; k < d->rounds && !e; k++) {
        double most = 0;

        for (int l = 0; l < g->nlinks; l++)
            most = fmax(most, load[k * g->nlinks + l] / ((double)g->links[l].cap * g->unit_Bps) / WIRE_SHARE);
        d->per_byte += most;
    }
    free(load);
    bny_router_destroy(router);
    return e;
}

double bny_topology_direct_seconds(const struct banyan_comm *c, enum bny_collective coll, const struct bny_direct_ops *ops,
                                   double bytes, double alpha_s)
{
    struct bny_topology *t = bny_topology_applies(c) ? c->world->topology : NULL;
    struct direct_cost *d;

    if (!t || !t->graph || t->grouped || coll != BNY_ALLREDUCE || t->graph->nranks > AUTO_RANKS_MAX)
        return 0;
    for (d = t->directs; d < t->directs + DIRECTS_MAX && d->ops && d->ops != ops; d++)
        ;
    if (d == t->directs + DIRECTS_MAX)
        return 0;
    if (!d->ops) {
        d->ops = ops;
        d->rc = direct_rounds(d, ops, coll, t->graph);
    }
    return d->rc ? 0 : d->rounds * alpha_s + d->per_byte * bytes;
}

int bny_topology_cost(struct bny_topology_cost *out, const struct banyan_comm *c, enum bny_collective coll,
                      const char *schedule, int root)
{
    struct bny_topology *t = c->world->topology;
    struct made *m;

    if (!bny_topology_applies(c) || !t->graph || !has_use(coll))
        return -BANYAN_ENOTSUP;
    if (t->grouped && bny_builder_find(schedule)) /* it knows nothing of hosts */
        return -BANYAN_ENOTSUP;
    m = make(t, schedule, use_of(coll), use_of(coll) == BNY_FOREST_ROOTED ? root : -1);
    if (!m || m->rc)
        return m ? m->rc : -BANYAN_ENOMEM;
    *out = m->cost;
    return 0;
}
