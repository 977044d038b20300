/* SPDX-License-Identifier: BSD-3-Clause */
/* Schedules that rest on the network (topology.h): files, builders that look at the graph, and
 * hosts of several ranks. */
#include "collectives/plan/topology_made.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/err.h"
#include "base/fpmode.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/shared.h"
#include "collectives/plan/tuning.h"
#include "topo/graph_edit.h"

/* The most ranks of a plan's file: one that is not proven is not run; 2 s and 150 MB there,
 * each rank. */
#define PROVE_RANKS_MAX  512
#define PIECES_MAX       8  /* of a rank's share in reduce_scatter and allgather */
#define FAMILY_RANKS_MAX 64 /* and so many, packed forests under caps on their height */
/* With more ranks one piece it is: twice as many trees take twice as long, and of 1024 ranks
 * one of each is minutes. */
#define PIECES_RANKS_MAX BNY_AUTO_RANKS_MAX

/* ---- names ---- */

/* Hosts as a full mesh, several ranks on each: which builder joins the hosts. */
static const struct {
    const char *name, *hosts;
} hosts_of[] = { { "host_ring", "ring" },
                 { "host_tree", "double_binary_tree" },
                 { "host_star", "star" } };
#define NHOSTS_OF (sizeof hosts_of / sizeof hosts_of[0])

const char *bny_topology_hosts_builder(const char *schedule)
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

    return sscanf(schedule, "packed_h%3d%n", &cap, &len) == 1 && !schedule[len] && cap > 0 ? cap
                                                                                           : 0;
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

/* ---- loading ---- */

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
    e = *first == '<' ? bny_msccl_parse(&t->set, text, len, path)
                      : bny_plan_parse(&t->plan, text, len, path);
    free(text);
    return e;
}

int bny_topology_load(struct bny_topology **out, const char *topo, const char *schedule)
{
    struct bny_topology *t = calloc(1, sizeof *t);
    int e = 0;
    BNY_FIXED_FP_MODE;

    *out = NULL;
    if (!t)
        return bny_fail(BANYAN_ENOMEM, "no memory for a topology");
    if (*topo)
        e = bny_graph_make(&t->graph, topo);
    if (!e && bny_schedule_is_file(schedule)) {
        t->file = strdup(schedule);
        e = t->file ? load_file(t, schedule)
                    : bny_fail(BANYAN_ENOMEM, "no memory for a topology");
    }
    if (!e && t->plan.forest && t->plan.forest->nranks > PROVE_RANKS_MAX)
        e = bny_fail(BANYAN_EINVAL,
                     "%s is for %d ranks; plans of more than %d cannot be proven at load and "
                     "are not run: name "
                     "a schedule instead",
                     t->file, t->plan.forest->nranks, PROVE_RANKS_MAX);
    if (!e && t->plan.forest && t->graph)
        e = bny_plan_fits(&t->plan, t->graph, schedule);
    if (e)
        bny_topology_free(t);
    else
        *out = t;
    return e;
}

static void made_free(struct bny_made *m)
{
    if (!m->shared)
        bny_forest_free(m->forest);
    free(m);
}

void bny_topology_free(struct bny_topology *t)
{
    if (!t)
        return;
    while (t->made) {
        struct bny_made *m = t->made;

        t->made = m->next;
        made_free(m);
    }
    while (t->subsets) {
        struct bny_topology *sub = t->subsets;

        t->subsets = sub->next;
        bny_topology_free(sub);
    }
    bny_shared_leave(t);
    free(t->members);
    bny_graph_free(t->graph);
    bny_plan_close(&t->plan);
    bny_program_set_free(&t->set);
    free(t->file);
    free(t->host_of);
    free(t->local);
    free(t->local_first);
    free(t);
}

uint64_t bny_topology_hash(const struct bny_topology *t)
{
    return t->graph ? bny_graph_hash(t->graph) : 0;
}

uint64_t bny_topology_file_hash(const struct bny_topology *t)
{
    return t->file_hash;
}

/* ---- hosts ---- */

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

int bny_topology_host(const struct bny_topology *t, int rank)
{
    return t && t->host_of ? t->host_of[rank] : 0;
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
        return bny_fail(BANYAN_EINVAL, "%s is for %d ranks; this job has %d%s", what, n,
                        t->nranks,
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
    static const struct bny_loss lossy[BNY_CODES] = {
        [BNY_CODE_UP] = { 1, 1 }, [BNY_CODE_DOWN] = { 1, 1 }
    };
    const struct bny_forest *f = t->plan.forest;
    struct bny_program_set set = { .n = f->nranks };
    char why[256];
    int e = 0, kinds = t->plan.use == BNY_FOREST_ALLREDUCE ? 1 : 2;

    for (int i = 0; i < 2 * kinds && !e;
         i++) { /* steps joined and apart: sizes decide which of these is run */
        set.collective = of_use[t->plan.use == BNY_FOREST_ALLREDUCE   ? 0
                                : t->plan.use == BNY_FOREST_SCATTERED ? 1
                                                                      : 2][i / 2];
        set.p = calloc((size_t)set.n, sizeof *set.p);
        e = set.p ? bny_compile_all(set.p, f, set.collective, i % 2)
                  : bny_fail(BANYAN_ENOMEM, "no memory to prove %s", t->file);
        if (!e && (bny_program_set_prove(&set, 8, why, sizeof why) != 0 ||
                   (i % 2 == 0 && bny_program_verify_codes(set.p, set.n, lossy, NULL, NULL, why,
                                                           sizeof why) != 0)))
            e = bny_fail(BANYAN_EINVAL, "%s is no correct plan: %s", t->file, why);
        bny_program_set_free(&set);
    }
    return e;
}

int bny_topology_settle(struct bny_topology *t, const int *host_of, int nranks)
{
    int e = set_hosts(t, host_of, nranks);
    BNY_FIXED_FP_MODE;

    if (!e && t->graph)
        e = count_fits(t, t->graph->nranks, t->graph->name);
    if (!e && t->plan.forest)
        e = count_fits(t, t->plan.forest->nranks, t->file);
    if (!e && t->set.p && t->set.n != nranks)
        e = bny_fail(BANYAN_EINVAL, "%s is for %d ranks; this job has %d", t->file, t->set.n,
                     nranks);
    if (!e && t->plan.forest)
        e = prove_plan(t);
    if (!e)
        bny_shared_join(t, NULL);
    return e;
}

/* ---- forests of hosts ---- */

/* One tree of hosts, grown to one of ranks: on each host one rank (that of the given index)
 * stands for it, and the others are its children. They reduce first and receive last, over
 * shared memory. */
static int grow_tree(struct bny_tree *to, const struct bny_tree *from,
                     const struct bny_topology *t, uint32_t nsteps, int index, int root)
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
static int grow_forest(struct bny_forest **out, const struct bny_topology *t,
                       const struct bny_forest *hosts, enum bny_forest_use use, int root)
{
    int scattered = use == BNY_FOREST_SCATTERED, n = scattered ? t->nranks : hosts->ntrees;
    struct bny_forest *f = bny_forest_alloc(hosts->name, t->nranks, n);
    size_t bytes = (size_t)t->nranks * sizeof *t->host_of;

    if (f && !(f->host_of = malloc(bytes))) {
        bny_forest_free(f);
        f = NULL;
    }
    if (f)
        memcpy(f->host_of, t->host_of, bytes);
    for (int i = 0; f && i < n; i++) {
        const struct bny_tree *from = &hosts->trees[scattered ? t->host_of[i] : i];
        int r = scattered ? i : use == BNY_FOREST_ROOTED ? root : local_rank(t, from->root, i);

        if (grow_tree(&f->trees[i], from, t, hosts->nsteps, scattered ? index_on_host(t, i) : i,
                      r)) {
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

/* ---- making forests ---- */

/* A copy of the plan's forest, without claim and routes of a direction that nobody asked for.
 */
static int copy_plan(struct bny_forest **out, const struct bny_topology *t,
                     enum bny_forest_use use, int root)
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

/* Pieces of a rank's share, each with a tree: as few as come near the bound, as every piece is
 * a step or several. */
static int build_scattered(struct bny_forest **out, const struct bny_graph_builder_ops *g,
                           const struct bny_topology *t, int height_cap)
{
    double least = 0;

    *out = NULL;
    for (int k = 1; k <= PIECES_MAX; k *= 2) {
        struct bny_build_opts opts = { .k = k, .height_cap = height_cap, .quick = 1 };
        struct bny_forest *f;
        double time;
        int e = g->build(&f, t->graph, BNY_FOREST_SCATTERED, -1, &opts);

        if (e)
            return *out ? 0 : e;
        time = f->claim.time.den ? bny_ratio_value(f->claim.time) : 0;
        if (*out && time >= 0.99 * least) {
            bny_forest_free(f);
        } else {
            bny_forest_free(*out);
            *out = f;
            least = time;
        }
        if (t->grouped || t->nranks > PIECES_RANKS_MAX || !(*out)->claim.bound.den ||
            least <= 1.01 * bny_ratio_value((*out)->claim.bound))
            break;
    }
    return 0;
}

/* The forest of graph ranks (hosts, when grouped) of a schedule. */
static int build_base(struct bny_forest **out, const struct bny_topology *t,
                      const char *schedule, enum bny_forest_use use, int root)
{
    const struct bny_graph_builder_ops *g =
        bny_graph_builder_find(height_cap(schedule) ? "packed" : schedule);
    struct bny_build_opts opts = { .height_cap = height_cap(schedule), .quick = 1 };
    const struct bny_builder_ops *b = bny_builder_find(
        bny_topology_hosts_builder(schedule) ? bny_topology_hosts_builder(schedule) : schedule);
    int n = bny_topology_hosts_builder(schedule) ? t->nhosts
            : t->graph                           ? t->graph->nranks
                                                 : t->nranks;

    if (!strncmp(schedule, "file:", 5))
        return t->plan.forest ? copy_plan(out, t, use, root) : -BANYAN_ENOTSUP;
    if (g && t->graph && use == BNY_FOREST_SCATTERED && g->uses & use)
        return build_scattered(out, g, t, opts.height_cap);
    if (g)
        return t->graph && g->uses & use ? g->build(out, t->graph, use, root, &opts)
                                         : -BANYAN_ENOTSUP;
    if (!b || !(b->uses & use) ||
        (bny_topology_hosts_builder(schedule) && (t->nhosts < 2 || t->nhosts == t->nranks)))
        return -BANYAN_ENOTSUP;
    return b->build(out, n, use, root);
}

/* ---- cache ---- */

#define MADE_MAX 256
/* Forests of more ranks are not kept, only what they cost: with their routes they take 100
 * bytes for each pair of ranks, and auto looks at nearly ten. The one that is run is made
 * again. */
#define KEPT_RANKS_MAX 64

/* Where many roots are asked for by turns: those of the longest ago go. */
static void topology_make_room(struct bny_topology *t)
{
    struct bny_made **at = &t->made;

    for (int i = 0; *at && i < MADE_MAX - 1; i++)
        at = &(*at)->next;
    while (*at) {
        struct bny_made *m = *at;

        *at = m->next;
        made_free(m);
    }
}

/* Fills m, of zeros but its key. */
static void topology_make(struct bny_made *m, const struct bny_topology *t)
{
    const char *schedule = m->schedule;
    enum bny_forest_use use = m->use;
    struct bny_forest *hosts = NULL;
    int grouped = t->grouped || bny_topology_hosts_builder(schedule), root = m->root,
        hroot = root < 0  ? -1
                : grouped ? t->host_of[root]
                          : root;

    m->rc = build_base(&hosts, t, schedule, use, hroot);
    if (m->rc == 0 && t->graph && t->graph->nranks == hosts->nranks)
        m->rc = bny_topology_set_cost(&m->cost, hosts, t->graph, use);
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
}

int bny_topology_make(struct bny_made **out, const struct bny_scope *s, const char *schedule,
                      enum bny_collective coll, int root)
{
    const struct bny_collective_row *row = bny_collective_row(coll);
    struct bny_topology *t = bny_topology_of(s);
    struct bny_made *m;
    int rc;

    if (!t || !row->has_use)
        return -BANYAN_ENOTSUP;
    root = row->use == BNY_FOREST_ROOTED ? root : -1;
    for (m = t->made; m; m = m->next)
        if (m->use == row->use && m->root == root && !strcmp(m->schedule, schedule)) {
            *out = m;
            return m->rc;
        }
    m = calloc(1, sizeof *m);
    if (!m)
        return bny_plans_starve(s);
    snprintf(m->schedule, sizeof m->schedule, "%s", schedule);
    m->use = row->use;
    m->root = root;
    if (!bny_shared_find(t, m)) {
        topology_make(m, t);
        if (m->rc == -BANYAN_ENOMEM) { /* another time there is some */
            made_free(m);
            return bny_plans_starve(s);
        }
        if (t->nranks > KEPT_RANKS_MAX) {
            bny_forest_free(m->forest);
            m->forest = NULL;
        }
        bny_shared_tell(t, m, m->forest != NULL);
    }
    rc = m->rc;
    topology_make_room(t);
    m->next = t->made;
    t->made = m;
    *out = m;
    return rc;
}

/* The program of m, whose forest was not kept. Others of the process that run the same one now
 * have it from the first of them. */
static int compile_again(struct bny_program **out, const struct bny_made *m,
                         struct bny_topology *t, const struct bny_scope *s,
                         enum bny_collective coll, int coalesce)
{
    struct bny_made again = { .use = m->use, .root = m->root };
    struct bny_compiler *k = bny_shared_borrow(t, m);
    int rc, lent = k != NULL;

    if (!k) {
        memcpy(again.schedule, m->schedule, sizeof again.schedule);
        topology_make(&again, t);
        rc = again.rc ? again.rc : bny_compiler_new(&k, again.forest, coll);
        if (rc) {
            bny_forest_free(again.forest);
            return rc;
        }
        lent = bny_shared_lend(t, m, again.forest, k);
    }
    rc = bny_compiler_run(k, out, coll, s->rank, coalesce);
    if (lent) {
        bny_shared_give_back(t, m);
        return rc;
    }
    bny_compiler_free(k);
    bny_forest_free(again.forest);
    return rc;
}

/* ---- some of the ranks ---- */

/* The graph for ranks[n] of the world: of them, or of their hosts where the graph is of hosts.
 */
static int subset_graph(struct bny_topology *sub, const struct bny_topology *t,
                        const int *host_of_world)
{
    int *nodes = malloc((size_t)sub->nranks * sizeof *nodes),
        n = t->grouped ? sub->nhosts : sub->nranks;

    if (!nodes)
        return bny_fail(BANYAN_ENOMEM, "no memory for a topology");
    for (int r = 0; r < sub->nranks; r++)
        nodes[t->grouped ? sub->host_of[r] : r] =
            t->grouped ? host_of_world[r] : sub->members[r];
    sub->graph = bny_graph_subset(t->graph, nodes, n);
    sub->grouped = t->grouped && sub->nhosts < sub->nranks;
    free(nodes);
    return sub->graph ? 0 : -BANYAN_EINVAL;
}

#define SUBSETS_MAX 64 /* kept; nobody keeps a pointer to one from call to call */

/* A communicator of some ranks, or of all in another order: the same network, in which the
 * other ranks only pass on. A schedule's file is for all ranks. */
static struct bny_topology *make_subset(const struct bny_topology *t, const struct bny_scope *s)
{
    struct bny_topology *sub = calloc(1, sizeof *sub);
    int *host_of = calloc(2 * (size_t)s->n, sizeof *host_of), *of_world = host_of + s->n,
        nhosts = 0, e = -1;

    if (sub && host_of && (sub->members = calloc((size_t)s->n, sizeof *sub->members)) != NULL) {
        for (int r = 0; r < s->n; r++) {
            int first = 0;

            sub->members[r] = s->members[r];
            of_world[r] = t->host_of[sub->members[r]];
            while (of_world[first] != of_world[r])
                first++;
            host_of[r] = first == r ? nhosts++ : host_of[first];
        }
        e = set_hosts(sub, host_of, s->n);
        if (!e && t->graph && s->n > 1)
            e = subset_graph(sub, t, of_world);
        if (!e)
            bny_shared_join(sub, t);
    }
    free(host_of);
    if (e) {
        bny_topology_free(sub);
        return NULL;
    }
    return sub;
}

static int is_of(const struct bny_topology *sub, const struct bny_scope *s)
{
    int r = 0;

    while (sub->nranks == s->n && r < s->n &&
           (sub->members ? sub->members[r] : r) == s->members[r])
        r++;
    return sub->nranks == s->n && r == s->n;
}

struct bny_topology *bny_topology_of(const struct bny_scope *s)
{
    struct bny_topology *t = s->topology, **at, *sub;
    int n = 1;

    if (!t || !t->host_of || is_of(t, s))
        return t && t->host_of ? t : NULL;
    for (at = &t->subsets; (sub = *at) && !is_of(sub, s); at = &sub->next)
        n++;
    if (sub)
        *at = sub->next;
    else if (!(sub = make_subset(t, s)))
        bny_plans_starve(s);
    if (!sub)
        return NULL;
    sub->next = t->subsets; /* the latest use first */
    t->subsets = sub;
    if (n <= SUBSETS_MAX)
        return sub;
    for (at = &t->subsets, n = 0; n < SUBSETS_MAX; n++)
        at = &(*at)->next;
    while ((t = *at)) {
        *at = t->next;
        t->next = NULL;
        bny_topology_free(t);
    }
    return sub;
}

int bny_topology_applies(const struct bny_scope *s)
{
    return bny_topology_of(s) != NULL;
}

int bny_topology_nhosts(const struct bny_scope *s)
{
    const struct bny_topology *t = bny_topology_of(s);

    return t ? t->nhosts : s->n;
}

/* ---- for communicators ---- */

int bny_topology_lower(char *name, const struct bny_scope *s, enum bny_collective coll,
                       int root)
{
    struct bny_topology *t = bny_topology_of(s);
    struct bny_made *m;
    int cap;

    if (!t || !t->graph || t->graph->nranks > FAMILY_RANKS_MAX ||
        bny_topology_make(&m, s, *name ? name : "packed", coll, root) != 0 || m->height < 2)
        return 0;
    cap = m->height > 4 ? m->height * 3 / 4 : m->height - 1;
    snprintf(name, BNY_NAME_MAX, "packed_h%d", cap);
    return bny_topology_make(&m, s, name, coll, root) == 0;
}

static int has_switches(const struct bny_topology *t)
{
    const struct bny_graph *g = t ? t->graph : NULL;
    int v = 0;

    while (g && v < g->nnodes && g->nodes[v].kind != BNY_NODE_SWITCH)
        v++;
    return g && v < g->nnodes;
}

int bny_topology_worth_trying(const struct bny_scope *s, const char *schedule, double bytes)
{
    if (!strcmp(schedule, "multitree_reference"))
        return 0;
    if (!strcmp(schedule, "host_star") &&
        (bny_topology_nhosts(s) < 3 || bytes > BNY_HOST_STAR_BYTES_MAX))
        return 0;
    if (bny_topology_hosts_builder(schedule))
        return bny_topology_nhosts(s) > 1 && bny_topology_nhosts(s) < s->n;
    if (s->n <= BNY_AUTO_RANKS_MAX || !strcmp(schedule, "torus_bucket") ||
        !strcmp(schedule, "swing"))
        return 1;
    /* through switches it would connect each with each (bny_topology_crowded) */
    return !strcmp(schedule, "multitree") && !has_switches(bny_topology_of(s));
}

int bny_topology_program(struct bny_program **out, int *borrowed, const struct bny_scope *s,
                         enum bny_collective coll, const char *schedule, int root, int coalesce)
{
    struct bny_topology *t = bny_topology_of(s);
    struct bny_made *m;
    int rc;

    *borrowed = 0;
    if (t && bny_collective_row(coll)->has_use && !strncmp(schedule, "file:", 5) && t->set.p) {
        *borrowed = 1;
        *out = t->set.p[s->rank];
        return t->set.collective == coll ? 0 : -BANYAN_ENOTSUP;
    }
    rc = bny_topology_make(&m, s, schedule, coll, root);
    if (rc == 0 && !m->forest)
        return compile_again(out, m, t, s, coll, coalesce);
    return rc ? rc : bny_compile(out, m->forest, coll, s->rank, coalesce);
}
