/* SPDX-License-Identifier: BSD-3-Clause */
/* Which of the schedules that are programs serves a call: the smallest predicted time among
 * those that can. */
#include "collectives/plan/schedules.h"

#include <math.h>
#include <stdio.h>

#include "base/err.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/tuning.h"
#include "collectives/program/directs.h"

const char *bny_schedules_cannot(const struct bny_scope *s, const struct bny_call *call)
{
    return call->codec && call->codec->ops->linear
               ? "codes of linear codecs are summed in stages of all ranks"
               : NULL;
}

/* Shall sends of several trees to one peer be one step? Not where a tree alone has several
 * chunks and the plan is for a graph: a joined step sends one tree's after the other's, others
 * send them side by side, and the trees wait for both. */
static int joins_trees(const struct bny_scope *s, const struct bny_call *call,
                       const char *schedule)
{
    double bytes = bny_call_bytes(s, call);
    struct bny_topology_cost k;
    size_t chunk;

    if (call->vector || call->codec)
        return 0;
    if (call->has_set)
        return 1;
    chunk = bny_cost_network_chunk(s, call, schedule, bytes, &k);
    if (chunk && (call->chunk_bytes || s->chunk_bytes))
        chunk = call->chunk_bytes ? call->chunk_bytes : s->chunk_bytes;
    return !chunk || bny_topology_joins(&k, bytes, chunk);
}

/* The schedule that serves the call alone; NULL: the cheapest of several. */
static const char *only_schedule(const struct bny_call *call)
{
    const struct bny_collective_row *row = bny_call_row(call);

    if (row->only)
        return row->only;
    return row->ordered && bny_call_is_ordered(call) ? row->ordered : NULL;
}

/* Schedules of which there turned out to be no program. */
struct without {
    int n;
    char name[8][BNY_NAME_MAX];
};

static int is_without(const struct without *w, const char *name)
{
    for (int i = 0; i < w->n; i++)
        if (!strcmp(w->name[i], name))
            return 1;
    return 0;
}

struct cheapest {
    double seconds; /* only what takes less is of interest */
    char *schedule;
};

static void consider(struct cheapest *c, const char *name, double seconds)
{
    if (seconds >= c->seconds)
        return;
    c->seconds = seconds;
    snprintf(c->schedule, BNY_NAME_MAX, "%s", name);
}

/* The same of a schedule that takes so long without the call's codec. */
static void consider_raw(struct cheapest *c, const struct bny_scope *s,
                         const struct bny_call *call, const char *name, double seconds)
{
    consider(c, name, call->codec ? bny_cost_exact(s, call, seconds) : seconds);
}

/* Lossy codecs run on forests, whose sums have one owner each, who tells all others. Of these
 * auto takes what encodes a value twice, however many ranks there are: stars, of ranks and of
 * hosts. Others are asked for by name. */
static void choose_lossy(const struct bny_scope *s, const struct bny_call *call,
                         struct cheapest *c)
{
    int nhosts = bny_topology_nhosts(s);

    consider(c, "star", bny_cost_coded(s, call, "star", BNY_CODED_CHUNK));
    if (bny_call_row(call)->has_use && nhosts > 1 && nhosts < s->n)
        consider(c, "host_star", bny_cost_coded(s, call, "host_star", BNY_CODED_CHUNK));
}

static void consider_forest(struct bny_scope *s, const struct bny_call *call, const char *name,
                            double cost, const struct without *w, struct cheapest *c)
{
    if (is_without(w, name) ||
        bny_topology_crowded(s, (enum bny_collective)call->collective, name, call->root))
        return;
    consider_raw(c, s, call, name,
                 bny_cost_switched(s, call, name, cost, call->codec ? INFINITY : c->seconds));
}

static void choose_forest(struct bny_scope *s, const struct bny_call *call, double bytes,
                          const struct bny_cost_model *m, const struct without *w,
                          struct cheapest *c)
{
    enum bny_forest_use use = bny_call_row(call)->use;
    char lower[BNY_NAME_MAX] = "";
    const char *name;

    for (int i = 0; bny_builders[i]; i++) {
        const struct bny_builder_ops *b = bny_builders[i];
        if ((b->uses & use) && !(b->traits & BNY_BUILDER_ORDERED))
            consider_forest(s, call, b->name, bny_cost_builder(s, call, b, use, bytes, m), w,
                            c);
    }
    if (!bny_topology_applies(s) || bytes < BNY_NETWORK_BYTES_MIN)
        return;
    for (size_t i = 0; (name = bny_topology_schedule_name(i)); i++) {
        double cost = bny_topology_worth_trying(s, name, bytes)
                          ? bny_cost_scheduled(s, call, name, use, bytes, m)
                          : 0;
        if (cost > 0)
            consider_forest(s, call, name, cost, w, c);
    }
    while (bny_topology_lower(lower, s, (enum bny_collective)call->collective, call->root)) {
        double cost = bny_cost_scheduled(s, call, lower, use, bytes, m);
        if (cost > 0)
            consider_forest(s, call, lower, cost, w, c);
    }
}

/* In a forest a root copies its vector once for each child, and takes one of each; no model of
 * a message says what that costs. So forests are left out where another way shares that work
 * among the ranks, and is fast. */
static int needs_no_forest(struct bny_scope *s, const struct bny_call *call)
{
    char name[BNY_NAME_MAX] = "";

    if (s->n == 2 || (call->collective != BNY_REDUCE && call->collective != BNY_BROADCAST))
        return 0;
    for (int i = 0; i < BNY_WAY_COUNT; i++) {
        const struct bny_way *w = s->ways[i];

        if ((w->traits & BNY_WAY_SHARES) && !w->cannot(s, call) &&
            w->seconds(s, call, INFINITY, name) < INFINITY)
            return 1;
    }
    return 0;
}

static void choose_priced(struct bny_scope *s, const struct bny_call *call,
                          const struct without *w, struct cheapest *c)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    double bytes = bny_call_bytes(s, call);
    const char *only = only_schedule(call);

    if (only) {
        const struct bny_direct_ops *d = bny_direct_find(only);

        consider_raw(c, s, call, only,
                     d ? bny_cost_direct(s, d, call, bytes, &m)
                       : 2 * m.alpha_s + bytes * (s->n - 1) * (2 * m.beta + m.gamma));
        return;
    }
    if (bny_call_is_lossy(call)) {
        choose_lossy(s, call, c);
        return;
    }
    for (int i = 0; bny_directs[i]; i++)
        if ((bny_directs[i]->collectives & (1u << call->collective)) &&
            call->collective == BNY_ALLREDUCE)
            consider_raw(c, s, call, bny_directs[i]->name,
                         bny_cost_direct(s, bny_directs[i], call, bytes, &m));
    if (bny_call_row(call)->has_use && !needs_no_forest(s, call))
        choose_forest(s, call, bytes, &m, w, c);
}

/* Only of the cheapest is a program made, as that of many ranks takes long. Where there is
 * none, the cheapest of the others. */
static double schedules_choose(struct bny_scope *s, const struct bny_call *call, double most,
                               char *schedule)
{
    struct without w = { 0 };
    struct bny_kept_program *k;

    for (;;) {
        struct cheapest c = { most, schedule };

        schedule[0] = '\0';
        choose_priced(s, call, &w, &c);
        if (!schedule[0])
            return INFINITY;
        if (only_schedule(call) || bny_call_is_lossy(call) || bny_direct_find(schedule) ||
            w.n == (int)(sizeof w.name / sizeof w.name[0]) ||
            bny_program_get(s, call, schedule, joins_trees(s, call, schedule), &k) == 0)
            return c.seconds;
        memcpy(w.name[w.n++], schedule, BNY_NAME_MAX);
    }
}

/* ---- participation sets ---- */

#define PART_CANDIDATES 16

struct candidate {
    const char *name;
    double cost;
};

/* The cost of the forest of the ranks in the set, and of the steps in which the others get the
 * result. */
static double part_cost(const struct bny_scope *s, const struct bny_call *call,
                        const struct bny_builder_ops *b, double bytes,
                        const struct bny_cost_model *m)
{
    int parts = (int)call->nset;
    double cost = 0, left = bny_call_row(call)->rooted ? 1 : (double)s->n / parts;

    if (parts > 1)
        cost = bny_cost_mesh(s, parts, b, bny_call_row(call)->use, bytes, m);
    for (; left > 1; left /= 2)
        cost += m->alpha_s + bytes * m->beta / parts;
    return cost;
}

/* Only what is built for any ranks. Priced first, made in order of price, as a set may be used
 * once. */
static double choose_part(struct bny_scope *s, const struct bny_call *call, double most,
                          char *schedule)
{
    const struct bny_collective_row *row = bny_call_row(call);
    struct bny_cost_model m = bny_cost_model_of(s);
    const char *only = bny_call_is_ordered(call) ? "linear"
                       : bny_call_is_lossy(call) ? "star"
                                                 : NULL;
    double bytes = bny_call_bytes(s, call);
    struct candidate c[PART_CANDIDATES];
    struct bny_kept_program *k;
    int n = 0;

    for (int i = 0; bny_builders[i] && n < PART_CANDIDATES; i++) {
        const struct bny_builder_ops *b = bny_builders[i];

        if ((b->uses & row->use) &&
            (only ? !strcmp(only, b->name) : !(b->traits & BNY_BUILDER_ORDERED)))
            c[n++] = (struct candidate){ b->name, part_cost(s, call, b, bytes, &m) };
    }
    while (n) {
        int least = 0;

        for (int i = 1; i < n; i++)
            if (c[i].cost < c[least].cost)
                least = i;
        if (c[least].cost >= most)
            break;
        if (bny_program_get(s, call, c[least].name, joins_trees(s, call, c[least].name), &k) ==
            0) {
            snprintf(schedule, BNY_NAME_MAX, "%s", c[least].name);
            return c[least].cost;
        }
        c[least] = c[--n];
    }
    return INFINITY;
}

/* ---- between hosts ---- */

/* Ranks of a host share its port, so all of their vectors count. */
static double choose_rail(const struct bny_scope *s, const struct bny_call *call, double most,
                          char *schedule)
{
    static const char *const names[] = { "recursive_doubling", "ring_uni", "ring", "halving",
                                         "double_binary_tree" };
    struct cheapest c = { most, schedule };

    if (bny_call_is_lossy(call))
        consider(&c, "star", bny_cost_coded(s, call, "star", BNY_CODED_CHUNK));
    for (size_t i = 0; !bny_call_is_lossy(call) && i < sizeof names / sizeof *names; i++)
        consider_raw(&c, s, call, names[i], bny_cost_raw(s, call, names[i]));
    return c.seconds < most ? c.seconds : INFINITY;
}

double bny_schedules_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                             char *schedule)
{
    double part;

    if (!call->has_set)
        return call->among ? choose_rail(s, call, most, schedule)
                           : schedules_choose(s, call, most, schedule);
    part = choose_part(s, call, call->codec ? INFINITY : most, schedule);
    return call->codec && part < INFINITY ? bny_cost_coded(s, call, schedule, BNY_CODED_CHUNK)
                                          : part;
}

/* ---- the plan ---- */

/* When a plan for a graph sends: local, ranks need not agree. Encoded data takes less of the
 * links than the plan counts on, and joined steps go in turn, each at full rate. */
static void set_pace(const struct bny_scope *s, const struct bny_call *call,
                     const struct bny_topology_cost *k, struct bny_plan *plan)
{
    double bytes = bny_call_bytes(s, call);

    plan->cts_wait_s = s->shares_memory ? 0 : BNY_READY_PART * k->per_byte * bytes;
    if (!plan->codec && !joins_trees(s, call, plan->schedule))
        plan->pace_s = k->per_byte * bytes;
}

/* May this schedule serve the call? Additions of an ordered call have one order; of a lossy
 * codec each hop of a direct would quantise for itself, and ranks would differ. */
static int may_serve(const struct bny_call *call, const char *schedule)
{
    const char *only =
        call->has_set && bny_call_is_ordered(call) ? "linear" : only_schedule(call);

    return !(only && bny_call_is_ordered(call) && strcmp(only, schedule) != 0) &&
           !(bny_call_is_lossy(call) && bny_direct_find(schedule));
}

/* Of a schedule that was chosen by its name: on a graph. */
static double network_seconds(const struct bny_scope *s, const struct bny_call *call,
                              const char *schedule)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    double t = call->has_set || call->collective == BNY_SENDRECV
                   ? 0
                   : bny_cost_network(s, call, schedule, bny_call_bytes(s, call), &m);

    return t > 0 ? bny_cost_switched(s, call, schedule, t, INFINITY) : t;
}

int bny_schedules_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    struct bny_topology_cost k;
    struct bny_kept_program *kept;
    int rc;

    if (!may_serve(call, plan->schedule))
        return -BANYAN_ENOTSUP;
    rc = bny_program_get(s, call, plan->schedule, joins_trees(s, call, plan->schedule), &kept);
    if (rc)
        return rc;
    bny_plan_hold(plan, kept);
    if (plan->predicted_s <= 0)
        plan->predicted_s = network_seconds(s, call, plan->schedule);
    plan->chunk_bytes =
        bny_chunk_of(s, call, call->has_set ? NULL : plan->schedule, plan->program);
    if (plan->codec && !call->among)
        plan->predicted_s = bny_cost_coded(s, call, plan->schedule, plan->chunk_bytes);
    if (call->collective != BNY_SENDRECV && !call->has_set &&
        bny_topology_schedule_known(plan->schedule) &&
        bny_cost_network_chunk(s, call, plan->schedule, bny_call_bytes(s, call), &k))
        set_pace(s, call, &k, plan);
    return 0;
}
