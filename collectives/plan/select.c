/* SPDX-License-Identifier: BSD-3-Clause */
/* Which program serves a call: the smallest predicted time among what can serve it.
 *
 * The choice is a pure function of the call (collective, count, type, op, codec, root) and of
 * constants that all ranks agreed on at init, so every rank chooses alike without asking.
 * v-variants choose without counts. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/fpmode.h"
#include "base/log.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/kept.h"
#include "collectives/plan/shape.h"
#include "collectives/program/directs.h"

/* Longest contribution of a one-shot: what the rings take, or a board where one copy serves
 * several peers. */
static size_t oneshot_max(const struct bny_scope *s, const struct bny_call *call)
{
    return s->shares_memory && s->n > 2 &&
                   (call->collective == BNY_ALLREDUCE || call->collective == BNY_ALLGATHER)
               ? BNY_BOARD_BYTES
               : s->eager_max;
}

static int oneshot_possible(const struct bny_scope *s, const struct bny_call *call)
{
    size_t bytes = call->count * banyan_dtype_bytes(call->dtype);

    return bny_call_row(call)->oneshot && !call->vector && !call->codec && s->n > 1 &&
           s->n <= 64 && bytes <= oneshot_max(s, call) && call->count <= bytes + 1;
}

/* User operations of long elements, which no chunk may cut, go elsewhere; so do stages: their
 * order of start may differ between ranks, and places are given in that order. A reduction to a
 * root adds the root's input last. */
static int writeback_possible(const struct bny_scope *s, const struct bny_call *call)
{
    return bny_call_row(call)->writeback && !call->vector && s->shares_memory && s->n > 1 &&
           s->n <= BNY_WRITEBACK_RANKS_MAX && !call->codec && !call->has_set && !call->first &&
           !call->is_stage && !(call->collective == BNY_REDUCE && bny_call_is_ordered(call)) &&
           bny_redop_quantum(&call->redop) * banyan_dtype_bytes(call->dtype) <=
               BNY_WRITEBACK_ELEM_MAX;
}

/* From how many bytes of the whole vector passes are faster than what else there is, as
 * measured with 2, 4, 8 and 16 ranks (perf/RESULTS.md); NEVER: by name only. In a scatter all
 * others read the root's buffer at once, and do as well. */
#define NEVER SIZE_MAX

static size_t writeback_from(const struct bny_scope *s, const struct bny_call *call)
{
    int pair = s->n == 2, crowded = s->oversubscribed;

    switch (call->collective) {
    case BNY_REDUCE: return pair || crowded ? 128 << 10 : 0;
    case BNY_BROADCAST: return pair ? 32 << 10 : crowded ? 128 << 10 : 0;
    case BNY_SCATTER: return pair ? 1 << 20 : crowded ? 128 << 10 : NEVER;
    case BNY_GATHER: return pair ? NEVER : crowded ? 4 << 20 : 512 << 10;
    case BNY_ALLGATHER: return pair ? 0 : crowded ? 512 << 10 : 256 << 10;
    case BNY_REDUCE_SCATTER: return pair ? 0 : crowded ? 4 << 20 : 256 << 10;
    case BNY_ALLTOALL: return pair ? 0 : (size_t)s->n * (crowded ? 16 << 10 : 4 << 10);
    default: return 0;
    }
}

static int writeback_pays(const struct bny_scope *s, const struct bny_call *call)
{
    return writeback_possible(s, call) &&
           bny_call_bytes(s, call) >= (double)writeback_from(s, call);
}

/* Forests, in which a root copies its vector for each child, and takes one of each, are left
 * out where a pass copies it once; no model of a message says what that costs. */
static int needs_no_forest(const struct bny_scope *s, const struct bny_call *call)
{
    return s->n > 2 && writeback_pays(s, call) &&
           (call->collective == BNY_REDUCE || call->collective == BNY_BROADCAST);
}

/* Short operations of ranks that share memory; not stages, as above. A rank that has another
 * part for each of the others shows them side by side. */
static int lines_possible(const struct bny_scope *s, const struct bny_call *call)
{
    size_t bytes = call->count * banyan_dtype_bytes(call->dtype),
           most = s->n == 2 ? BNY_LINES_BYTES : BNY_LINES_MANY_BYTES;

    return bny_call_row(call)->lines && s->shares_memory && s->n > 1 && s->n <= 64 &&
           !call->codec && !call->vector && !call->has_set && !call->first && !call->is_stage &&
           call->count <= most &&
           bny_lines_bytes((enum bny_collective)call->collective, s->n, bytes) <= most;
}

/* Sums of several hosts; not stages, as above. No model of a graph prices them. */
static int hosts_possible(const struct bny_scope *s, const struct bny_call *call)
{
    return call->collective == BNY_ALLREDUCE && s->near > 1 &&
           s->near <= BNY_WRITEBACK_RANKS_MAX && !call->vector && !call->codec &&
           !call->has_set && !call->first && !call->is_stage && !bny_call_is_ordered(call) &&
           bny_redop_quantum(&call->redop) * banyan_dtype_bytes(call->dtype) <=
               BNY_WRITEBACK_ELEM_MAX &&
           bny_hosts_part(s, call) > 0 && bny_topology_beta(s) <= 0;
}

/* Where both passes pay in a job of one host; where ranks share CPUs each rank's part has to be
 * as long as that, as waits are (2 hosts of 3 and 4 ranks on 2 CPUs: 1.5 of the engine's speed
 * from 1 MiB on, .97 at 512 KiB). Two ranks of a host gain nothing: the engine's chunks cross
 * hosts while others are added. */
static int hosts_pay(const struct bny_scope *s, const struct bny_call *call)
{
    struct bny_scope host = { .n = s->near };
    struct bny_call first = { .collective = BNY_REDUCE_SCATTER },
                    last = { .collective = BNY_ALLGATHER };
    double bytes = bny_call_bytes(s, call) / (s->oversubscribed ? s->near : 1);

    return s->near > 2 && hosts_possible(s, call) &&
           bytes >= (double)writeback_from(&host, &first) &&
           bytes >= (double)writeback_from(&host, &last);
}

void bny_hosts_rails(const struct bny_scope *s, const struct bny_call *call, char *schedule)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    const char *rails;

    bny_cost_hosts(s, call, &m, &rails);
    snprintf(schedule, BNY_NAME_MAX, BNY_RAILS "%s", rails);
}

/* The schedules that are paths of their own. */
static int is_path(const char *name)
{
    return !strcmp(name, "oneshot") || !strcmp(name, "writeback") || !strcmp(name, "lines") ||
           !strcmp(name, "hosts");
}

static int path_possible(const struct bny_scope *s, const struct bny_call *call,
                         const char *name)
{
    if (!strcmp(name, "hosts"))
        return hosts_possible(s, call);
    if (!strcmp(name, "lines"))
        return lines_possible(s, call);
    return !strcmp(name, "oneshot") ? oneshot_possible(s, call) : writeback_possible(s, call);
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

/* The schedule that serves the call alone; NULL: the cheapest of several. Lossy codecs run on
 * forests only: their sums have one owner, who tells all others. */
static const char *only_schedule(const struct bny_call *call)
{
    const struct bny_collective_row *row = bny_call_row(call);

    if (row->only)
        return row->only;
    if (row->ordered && bny_call_is_ordered(call))
        return row->ordered;
    return bny_call_is_lossy(call) ? "star" : NULL;
}

static void consider(struct bny_plan *plan, const char *name, double cost)
{
    if (plan->schedule[0] && cost >= plan->predicted_s)
        return;
    plan->predicted_s = cost;
    snprintf(plan->schedule, sizeof plan->schedule, "%s", name);
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

/* Takes the schedule when it is the cheapest so far. */
static void consider_forest(struct bny_scope *s, const struct bny_call *call, const char *name,
                            double cost, const struct without *w, struct bny_plan *plan)
{
    if (is_without(w, name) ||
        bny_topology_crowded(s, (enum bny_collective)call->collective, name, call->root))
        return;
    cost = bny_cost_switched(s, call, name, cost,
                             plan->schedule[0] ? plan->predicted_s : INFINITY);
    consider(plan, name, cost);
}

static void choose_forest(struct bny_scope *s, const struct bny_call *call,
                          enum bny_forest_use use, double bytes, const struct bny_cost_model *m,
                          const struct without *w, struct bny_plan *plan)
{
    char lower[BNY_NAME_MAX] = "";
    const char *name;

    for (int i = 0; bny_builders[i]; i++) {
        const struct bny_builder_ops *b = bny_builders[i];
        if ((b->uses & use) && !(b->traits & BNY_BUILDER_ORDERED))
            consider_forest(s, call, b->name, bny_cost_builder(s, call, b, use, bytes, m), w,
                            plan);
    }
    if (!bny_topology_applies(s) || bytes < BNY_NETWORK_BYTES_MIN)
        return;
    for (size_t i = 0; (name = bny_topology_schedule_name(i)); i++) {
        double cost = bny_topology_worth_trying(s, name)
                          ? bny_cost_scheduled(s, call, name, use, bytes, m)
                          : 0;
        if (cost > 0)
            consider_forest(s, call, name, cost, w, plan);
    }
    while (bny_topology_lower(lower, s, (enum bny_collective)call->collective, call->root)) {
        double cost = bny_cost_scheduled(s, call, lower, use, bytes, m);
        if (cost > 0)
            consider_forest(s, call, lower, cost, w, plan);
    }
}

static int choose_priced(struct bny_scope *s, const struct bny_call *call,
                         const struct without *w, struct bny_plan *plan)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    double bytes = bny_call_bytes(s, call);
    const struct bny_collective_row *row = bny_call_row(call);
    const char *only = only_schedule(call);
    const char *rails;

    plan->schedule[0] = '\0';
    if (oneshot_possible(s, call))
        consider(plan, "oneshot", bny_cost_oneshot(s, call, &m));
    if (writeback_pays(s, call))
        consider(plan, "writeback", bny_cost_writeback(s, call, &m));
    if (lines_possible(s, call))
        consider(plan, "lines", bny_cost_lines(s, call, &m));
    if (hosts_pay(s, call))
        consider(plan, "hosts", bny_cost_hosts(s, call, &m, &rails));
    if (only) {
        const struct bny_direct_ops *d = bny_direct_find(only);
        double cost = d ? bny_cost_direct(s, d, call, bytes, &m)
                        : 2 * m.alpha_s + bytes * (s->n - 1) * (2 * m.beta + m.gamma);
        consider(plan, only, cost);
        return 0;
    }
    for (int i = 0; bny_directs[i]; i++)
        if ((bny_directs[i]->collectives & (1u << call->collective)) &&
            call->collective == BNY_ALLREDUCE)
            consider(plan, bny_directs[i]->name,
                     bny_cost_direct(s, bny_directs[i], call, bytes, &m));
    if (row->has_use && !needs_no_forest(s, call))
        choose_forest(s, call, row->use, bytes, &m, w, plan);
    return plan->schedule[0] ? 0
                             : bny_fail(BANYAN_ENOTSUP, "no schedule serves %s of %d ranks",
                                        bny_call_name(call), s->n);
}

/* Only of the cheapest is a program made, as that of many ranks takes long. Where there is
 * none, the cheapest of the others. */
static int choose_auto(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    struct without w = { 0 };
    struct bny_kept_program *k;
    int rc;

    for (;;) {
        rc = choose_priced(s, call, &w, plan);
        if (rc || is_path(plan->schedule) || bny_direct_find(plan->schedule) ||
            w.n == (int)(sizeof w.name / sizeof w.name[0]))
            return rc;
        rc = bny_program_get(s, call, plan->schedule, joins_trees(s, call, plan->schedule), &k);
        if (!rc || rc == -BANYAN_ENOMEM)
            return rc;
        memcpy(w.name[w.n++], plan->schedule, BNY_NAME_MAX);
    }
}

/* ---- participation sets ---- */

#define PART_CANDIDATES 16

struct candidate {
    const char *name;
    double cost;
};

/* What the forest of the ranks in the set costs by itself, and the steps in which the others
 * get the result. */
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

/* Only what is built for any ranks: oneshot, and builders. Priced first, made in order of
 * price, as a set may be used once. */
static int choose_part(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    const struct bny_collective_row *row = bny_call_row(call);
    struct bny_cost_model m = bny_cost_model_of(s);
    const char *only = bny_call_is_ordered(call) ? "linear"
                       : bny_call_is_lossy(call) ? "star"
                                                 : NULL;
    double bytes = bny_call_bytes(s, call);
    struct candidate c[PART_CANDIDATES];
    struct bny_kept_program *k;
    int n = 0, rc;

    if (oneshot_possible(s, call))
        c[n++] = (struct candidate){ "oneshot", bny_cost_oneshot(s, call, &m) };
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
        rc = strcmp(c[least].name, "oneshot") != 0
                 ? bny_program_get(s, call, c[least].name, joins_trees(s, call, c[least].name),
                                   &k)
                 : 0;
        if (rc == 0) {
            plan->predicted_s = c[least].cost;
            snprintf(plan->schedule, sizeof plan->schedule, "%s", c[least].name);
        }
        if (rc != -BANYAN_ENOTSUP)
            return rc;
        c[least] = c[--n];
    }
    return bny_fail(BANYAN_ENOTSUP, "no schedule serves %s of %zu of %d ranks",
                    bny_call_name(call), call->nset, s->n);
}

static int choose_auto_or_part(struct bny_scope *s, const struct bny_call *call,
                               struct bny_plan *plan)
{
    return call->has_set ? choose_part(s, call, plan) : choose_auto(s, call, plan);
}

/* Why reductions in order of arrival cannot serve the call; NULL: they can. */
static const char *arrival_lacks(const struct bny_scope *s, const struct bny_call *call)
{
    if (call->collective != BNY_ALLREDUCE && call->collective != BNY_REDUCE)
        return "it serves allreduce and reduce alone";
    if (call->deterministic)
        return "it adds in order of arrival, so that no two runs need have the same bits; "
               "leave "
               "deterministic 0";
    if (!call->redop.commutative)
        return "it adds in order of arrival, and the operation does not commute";
    if (call->has_set)
        return "it takes no participation set; at_least counts those who come first";
    if (call->codec && call->codec->ops->linear)
        return "codes of linear codecs are summed in stages of all ranks; use another codec";
    return s->n > BNY_ARRIVAL_RANKS_MAX ? "it is for up to 32768 ranks" : NULL;
}

/* Does the call leave the schedule to the communicator? */
static int is_open(const struct bny_call *call)
{
    return !call->schedule[0] || !strcmp(call->schedule, "auto");
}

static int asks_for_arrival(const struct bny_scope *s, const struct bny_call *call)
{
    return !strcmp(is_open(call) ? s->schedule : call->schedule, "arrival") &&
           !arrival_lacks(s, call);
}

/* A schedule that the call, or the communicator's settings, asked for. Returns 0 when it can
 * serve. */
static int choose_forced(struct bny_scope *s, const struct bny_call *call, const char *name,
                         struct bny_plan *plan)
{
    struct bny_kept_program *k;
    const char *only =
        call->has_set && bny_call_is_ordered(call) ? "linear" : only_schedule(call);
    struct bny_cost_model m = bny_cost_model_of(s);

    if (!strcmp(name, "arrival")) {
        snprintf(plan->schedule, sizeof plan->schedule, "arrival");
        return arrival_lacks(s, call) ? -BANYAN_ENOTSUP : 0;
    }
    if (is_path(name) ? !path_possible(s, call, name)
                      : only && bny_call_is_ordered(call) && strcmp(only, name) != 0)
        return -BANYAN_ENOTSUP;
    if (bny_call_is_lossy(call) && (bny_direct_find(name) || is_path(name)))
        return -BANYAN_ENOTSUP; /* each hop would quantise for itself: ranks would differ */
    if (!is_path(name)) {
        int rc = bny_program_get(s, call, name, joins_trees(s, call, name), &k);
        if (rc)
            return rc;
    }
    plan->predicted_s =
        call->has_set ? 0 : bny_cost_network(s, call, name, bny_call_bytes(s, call), &m);
    if (plan->predicted_s > 0)
        plan->predicted_s = bny_cost_switched(s, call, name, plan->predicted_s, INFINITY);
    snprintf(plan->schedule, sizeof plan->schedule, "%s", name);
    return 0;
}

/* Of what ranks must agree on; also where the plan is the same whatever they asked for: chunks
 * that it has no use for, and deterministic sums. */
static uint8_t hash_plan(const struct bny_scope *scope, const struct bny_call *call,
                         const struct bny_plan *plan)
{
    size_t asked = call->chunk_bytes ? call->chunk_bytes : scope->chunk_bytes;
    uint32_t h = 2166136261u;

    for (const char *s = plan->schedule; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    for (const char *s = plan->codec ? plan->codec->spec : ""; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    h = (h ^ (uint32_t)plan->chunk_bytes) * 16777619u;
    h = (h ^ (uint32_t)(plan->late_s > 0 ? plan->arrival_chunk : 0)) * 16777619u;
    h = (h ^ (uint32_t)asked) * 16777619u;
    h = (h ^ (uint32_t)call->first) * 16777619u;
    h = (h ^ (call->deterministic && bny_call_row(call)->reduces)) * 16777619u;
    for (int i = 0; call->has_set && i < 16; i++)
        h = (h ^ (uint8_t)(call->set_key[i / 8] >> i % 8 * 8)) * 16777619u;
    return (uint8_t)(h ^ (h >> 8) ^ (h >> 16) ^ (h >> 24));
}

static void say(const struct bny_scope *s, const struct bny_call *call,
                const struct bny_plan *plan)
{
    bny_info(
        "plan: %s of %zu %s on %d ranks: schedule %s, chunk %zu, codec %s, predicted %.3g us",
        bny_call_name(call), call->count, banyan_dtype_name(call->dtype), s->n, plan->schedule,
        plan->chunk_bytes, plan->codec ? plan->codec->spec : "none", plan->predicted_s * 1e6);
}

#define GAIN_MIN 0.9 /* of raw's time: less is not worth the risk of a model */

static int choose(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);

/* The call raw, when it is predicted to be faster so; the codec is a permission. 1: plan is
 * chosen, 0: go on with the codec, or an error. */
static int refuse_codec(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    struct bny_call raw = *call;
    double coded = asks_for_arrival(s, call) ? bny_cost_arrival(s, call, 1)
                                             : bny_cost_coded(s, call, 256 << 10);
    int rc;

    if (call->codec->force || s->codec_force)
        return 0;
    raw.codec = NULL;
    if (is_open(call) && !strcmp(s->schedule, "auto") && !call->has_set)
        bny_call_set_schedule(&raw, "static"); /* its state is that of a call with a codec */
    rc = choose(s, &raw, plan);
    if (rc == -BANYAN_ENOTSUP)
        return 0;
    if (rc)
        return rc;
    if (s->shares_memory || (plan->predicted_s > 0 && coded >= GAIN_MIN * plan->predicted_s)) {
        /* the data of ranks that share memory is read once and written once: no encoder does
         * with less */
        plan->refused_s = coded;
        bny_info("plan: codec %s is refused: predicted %.3g us, without it %.3g us "
                 "(BANYAN_CODEC_FORCE=1 insists)",
                 call->codec->spec, coded * 1e6, plan->predicted_s * 1e6);
        return 1;
    }
    bny_plan_drop(plan);
    return 0;
}

/* Who sends at once to those who said READY first fills queues that others' READY must pass,
 * and sends in the order of these: fattree:64, 16 MiB by chunks of 256 KiB, 53.5 ms; 43.4 where
 * all were waited for. Who comes later than this part of the call does not hold up the others.
 */
#define READY_PART (1.0 / 128)

/* When a plan for a graph sends: local, ranks need not agree. */
static void set_pace(const struct bny_scope *s, const struct bny_call *call,
                     const struct bny_topology_cost *k, struct bny_plan *plan)
{
    double bytes = bny_call_bytes(s, call);

    plan->ready_s = s->shares_memory ? 0 : READY_PART * k->per_byte * bytes;
    if (!plan->codec && /* encoded data takes less of the links than the plan counts on; */
        !joins_trees(s, call, plan->schedule)) /* joined steps go in turn, each at full rate */
        plan->pace_s = k->per_byte * bytes;
}

/* By name: of the call, else of the communicator, else the cheapest. */
static int choose_schedule(struct bny_scope *s, const struct bny_call *call,
                           struct bny_plan *plan)
{
    int rc = -BANYAN_ENOTSUP;

    if (!strcmp(call->schedule, "static")) /* whatever the communicator's is */
        return choose_auto_or_part(s, call, plan);
    if (!is_open(call)) {
        rc = choose_forced(s, call, call->schedule, plan);
        if (rc == -BANYAN_ENOTSUP && !strcmp(call->schedule, "arrival"))
            return bny_fail(BANYAN_ENOTSUP, "schedule: arrival cannot serve this %s: %s",
                            bny_call_name(call), arrival_lacks(s, call));
        if (rc == -BANYAN_ENOTSUP)
            return bny_fail(
                BANYAN_ENOTSUP,
                "schedule: \"%s\" cannot serve %s of %zu %s on %d ranks%s%s; use auto",
                call->schedule, bny_call_name(call), call->count,
                banyan_dtype_name(call->dtype), s->n,
                call->has_set ? " with a participation set" : "",
                call->codec ? " with this codec" : "");
    } else if (!bny_schedule_is_auto(s->schedule)) {
        rc = choose_forced(s, call, s->schedule, plan); /* where it does not fit, auto */
    }
    return rc == -BANYAN_ENOTSUP ? choose_auto_or_part(s, call, plan) : rc;
}

/* Program, chunks and pace of the engine. */
static int set_program(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    struct bny_topology_cost k;
    struct bny_kept_program *kept;
    int rc =
        bny_program_get(s, call, plan->schedule, joins_trees(s, call, plan->schedule), &kept);

    if (rc)
        return rc;
    bny_plan_hold(plan, kept);
    plan->chunk_bytes =
        bny_chunk_of(s, call, call->has_set ? NULL : plan->schedule, plan->program);
    if (plan->codec)
        plan->predicted_s = bny_cost_coded(s, call, plan->chunk_bytes);
    plan->raw_in_host =
        bny_call_is_lossy(call) && bny_topology_hosts_builder(plan->schedule) != NULL;
    if (call->collective != BNY_SENDRECV && !call->has_set &&
        bny_topology_schedule_known(plan->schedule) &&
        bny_cost_network_chunk(s, call, plan->schedule, bny_call_bytes(s, call), &k))
        set_pace(s, call, &k, plan);
    return 0;
}

/* The last chunk is through so many chunks after the last byte could be as a chain has hops, up
 * and down: a tenth of all of them, or less. */
#define ARRIVAL_CHUNKS     32u /* at least */
#define ARRIVAL_CHUNKS_HOP 16u
#define ARRIVAL_CHUNK_MIN  (16u << 10)
#define ARRIVAL_CHUNK_SLOW (4u << 10) /* where a link takes long for it */

/* A chunk's own cost is to be no more than its time on the link. */
static size_t arrival_chunk_least(const struct bny_scope *s)
{
    double least = s->link_Bps * bny_cost_chunk_s(s);

    if (s->link_Bps <= 0 || s->shares_memory || least > ARRIVAL_CHUNK_MIN)
        return ARRIVAL_CHUNK_MIN;
    return least < ARRIVAL_CHUNK_SLOW ? ARRIVAL_CHUNK_SLOW : (size_t)least & ~(size_t)63;
}

static size_t arrival_chunk(const struct bny_scope *s, const struct bny_call *call)
{
    static const struct bny_program one_block = { .nblocks = 1 };
    size_t most = bny_chunk_of(s, call, NULL, &one_block), want, least = arrival_chunk_least(s),
           chunks = ARRIVAL_CHUNKS_HOP * (size_t)(s->n - 1);

    if (call->chunk_bytes || s->chunk_bytes)
        return most;
    chunks = chunks < ARRIVAL_CHUNKS ? ARRIVAL_CHUNKS : chunks;
    want = (size_t)bny_call_bytes(s, call) / chunks & ~(size_t)63;
    want = want < least ? least : want;
    return want < most ? want : most;
}

/* ---- auto, where ranks are late ---- */

#define LATE_S_MIN 2e-3 /* less is the work of schedulers */
#define LATE_SUM_S 5e-3 /* shorter sums have little to gain beside what ranks are late by */
#define LATE_GAIN  0.85 /* of the schedule's time, for what the model does not see */

/* Has each rank a port of its own, which both schedules share with nobody? Chains in order of
 * arrival know nothing of hosts and graphs. */
static int has_ports(const struct bny_scope *s)
{
    int alone = bny_topology_nhosts(s) == s->n;

    if (s->shares_memory || bny_topology_beta(s) > 0)
        return 0;
    if (s->link_Bps > 0)
        return s->one_host || alone;
    return alone && !s->one_host && !s->oversubscribed;
}

/* So late must a rank be for the sum to be faster in order of arrival; 0: it is not, or the
 * call has no use for that. A reduce gains too little: S a port are needed after the last has
 * come, either way. Of a lossy codec ranks in a chain would encode more often than it promises.
 */
static double pays_from(const struct bny_scope *s, const struct bny_call *call,
                        const struct bny_plan *plan)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    double bytes = bny_call_bytes(s, call), chunk = (double)arrival_chunk(s, call), after, late;

    if (call->collective != BNY_ALLREDUCE || !is_open(call) ||
        strcmp(s->schedule, "auto") != 0 || call->codec || call->is_stage ||
        call->via_allreduce || arrival_lacks(s, call) || s->n < 3 ||
        plan->predicted_s < LATE_SUM_S || !has_ports(s))
        return 0;
    after = bny_shape_seconds(s->n, bny_shape_choose(s->n, bytes, chunk, m.alpha_s, m.beta),
                              bytes, chunk, m.alpha_s, m.beta);
    if (after > LATE_GAIN * plan->predicted_s)
        return 0;
    late = 2 * after - plan->predicted_s; /* where the others' sum was not done before */
    return late > LATE_S_MIN ? late : LATE_S_MIN;
}

/* ---- arrival, by name ---- */

/* Slots of long sums wait for all ranks to come, who then run what is built for that: it sends
 * 2 (n - 1) / n S a rank, arrival trees 2 S. A reduce needs S a port either way, and a chain
 * gets by with that. They wait so long only as is little beside the sum, and where some ranks
 * are enough, as is nothing. */
#define TOGETHER_S     2e-3
#define TOGETHER_BYTES (64u << 10)
#define TOGETHER_PART  2
#define TOGETHER_FIRST 16

static double together_s(const struct bny_scope *s, const struct bny_call *call,
                         const struct bny_plan *plan)
{
    int part;

    if (bny_call_bytes(s, call) < TOGETHER_BYTES)
        return 0;
    if (call->collective == BNY_REDUCE && !plan->codec && has_ports(s))
        return 0;
    part = call->first && call->first < (size_t)s->n ? TOGETHER_FIRST : TOGETHER_PART;
    return fmin(TOGETHER_S, plan->predicted_s / part);
}

#define DESK_PART 0.05 /* of a sum's time: a word to the desk and one back may take as much */

/* From when the last rank has come until all have the result. A chain's result goes round
 * behind the sum; elsewhere it goes back when that is there. */
static double after_last_s(const struct bny_scope *s, const struct bny_call *call, double desk)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    double bytes = bny_call_bytes(s, call), chunk = (double)arrival_chunk(s, call);
    int depth = bny_shape_choose(s->n, bytes, chunk, m.alpha_s, m.beta),
        ways = depth && call->collective == BNY_ALLREDUCE ? 2 : 1;

    return desk + ways * bny_shape_seconds(s->n, depth, bytes, chunk, m.alpha_s, m.beta);
}

/* Short sums need all inputs, and a schedule that knows all ranks beforehand has them sooner,
 * also after the last one has come: no desk is asked. at_least, of all ranks too, insists on
 * the order of arrival. 1: plan is that schedule's, 0: it is not, or an error. */
static int choose_sooner(struct bny_scope *s, const struct bny_call *call,
                         struct bny_plan *plan)
{
    double desk = 2 * bny_cost_model_of(s).alpha_s;
    struct bny_plan fixed = { .path = plan->path };
    int rc;

    if (call->first || call->codec)
        return 0;
    rc = choose_auto_or_part(s, call, &fixed);
    if (rc == -BANYAN_ENOMEM)
        return rc;
    if (rc || (fixed.predicted_s > after_last_s(s, call, desk) &&
               DESK_PART * fixed.predicted_s > desk))
        return 0;
    *plan = fixed;
    return 1;
}

static int choose_path(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    int rc;

    if (call->collective == BNY_SENDRECV) {
        snprintf(plan->schedule, sizeof plan->schedule, "sendrecv");
        if (call->is_send && call->root == s->rank)
            plan->path = BNY_PATH_SELF;
        return set_program(s, call, plan);
    }
    if (call->codec && call->codec->ops->linear) { /* its stages have plans of their own */
        plan->path = BNY_PATH_STAGES;
        snprintf(plan->schedule, sizeof plan->schedule, "stages");
        plan->predicted_s = bny_cost_coded(s, call, 256 << 10);
        return 0;
    }
    rc = choose_schedule(s, call, plan);
    if (rc == 0 && !strcmp(plan->schedule, "arrival"))
        rc = choose_sooner(s, call, plan);
    if (rc < 0)
        return rc;
    if (!strcmp(plan->schedule, "arrival")) {
        plan->path = BNY_PATH_ARRIVAL;
        plan->chunk_bytes = arrival_chunk(s, call);
        plan->predicted_s = bny_cost_arrival(s, call, plan->codec != NULL);
        plan->together_s = together_s(s, call, plan);
        return 0;
    }
    if (!strcmp(plan->schedule, "writeback") || !strcmp(plan->schedule, "hosts")) {
        plan->path = plan->schedule[0] == 'h' ? BNY_PATH_HOSTS : BNY_PATH_WRITEBACK;
        plan->chunk_bytes = call->chunk_bytes ? call->chunk_bytes : s->chunk_bytes;
        return 0;
    }
    if (!strcmp(plan->schedule, "lines")) {
        plan->path = BNY_PATH_LINES;
        plan->chunk_bytes = BNY_LINES_BYTES;
        return 0;
    }
    if (strcmp(plan->schedule, "oneshot") != 0) {
        plan->late_s = pays_from(s, call, plan);
        if (plan->late_s > 0) {
            plan->path = BNY_PATH_ARRIVAL;
            plan->arrival_chunk = arrival_chunk(s, call);
            plan->together_s = TOGETHER_S;
        }
        return set_program(s, call, plan);
    }
    plan->path = BNY_PATH_ONESHOT;
    plan->chunk_bytes = s->eager_max;
    return 0;
}

/* plan: of zeros. */
static int choose(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    int rc;

    if (call->codec && call->codec->ops->linear && !strcmp(call->schedule, "arrival"))
        return bny_fail(BANYAN_ENOTSUP, "schedule: arrival cannot serve this %s: %s",
                        bny_call_name(call), arrival_lacks(s, call));
    rc = call->codec ? refuse_codec(s, call, plan) : 0;
    if (rc)
        return rc < 0 ? rc : 0;
    plan->path = BNY_PATH_ENGINE;
    plan->codec = call->codec;
    rc = choose_path(s, call, plan);
    if (rc) {
        bny_plan_drop(plan);
        return rc;
    }
    plan->hash = hash_plan(s, call, plan);
    if (call->collective != BNY_SENDRECV)
        say(s, call, plan);
    return 0;
}

/* The call as all ranks see it: what is one rank's own, and what no plan rests on, is left out.
 * So nothing local can enter a plan. */
static struct bny_call agreed_part(const struct bny_call *call)
{
    struct bny_call c;

    memset(&c, 0, sizeof c);
    memcpy(&c, call, BNY_CALL_KEY_BYTES);
    c.present = call->present;
    c.redop.user = NULL;
    c.redop.user_ctx = NULL;
    c.redop.alignment = 0;
    c.redop.scalar = 0;
    if (c.vector)
        c.count = 0; /* of gatherv and scatterv a rank knows its own; none is for all */
    return c;
}

int bny_plan_get(struct bny_scope *s, const struct bny_call *call, struct bny_plan *out)
{
    struct bny_call agreed = agreed_part(call);
    struct bny_plans *plans = bny_plans_of(s);
    struct bny_plan_slot *slot;
    int rc;

    memset(out, 0, sizeof *out);
    if (!plans)
        return -BANYAN_ENOMEM;
    if (s->n == 1 && call->collective != BNY_SENDRECV) {
        out->path = BNY_PATH_ALONE;
        snprintf(out->schedule, sizeof out->schedule, "alone");
        return 0;
    }
    if (call->has_set && call->nset == 0) { /* zeros: arguments.c */
        out->path = BNY_PATH_ALONE;
        out->hash = hash_plan(s, &agreed, out);
        snprintf(out->schedule, sizeof out->schedule, "alone");
        return 0;
    }
    slot = bny_plan_slot(plans, &agreed);
    if (!slot->valid || !bny_call_same(&slot->call, &agreed)) {
        BNY_FIXED_FP_MODE; /* all ranks choose the same */

        slot->valid = 0;
        bny_plan_drop(&slot->plan);
        plans->starved = 0;
        rc = choose(s, &agreed, &slot->plan);
        if (plans->starved) { /* others may have found a cheaper one, or one at all */
            bny_plan_drop(&slot->plan);
            rc = bny_fail(BANYAN_ENOMEM, "no memory for plans");
        }
        if (rc)
            return rc;
        slot->call = agreed;
        slot->call.present = NULL; /* the caller's */
        slot->valid = 1;
    }
    *out = slot->plan;
    if (out->kept)
        bny_plan_hold(out, out->kept);
    return 0;
}
