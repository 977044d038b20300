/* SPDX-License-Identifier: BSD-3-Clause */
/* Which program serves a call: the smallest predicted time among what can serve it.
 *
 * The choice is a pure function of the call (collective, count, type, op, codec, root) and of
 * constants that all ranks agreed on at init, so every rank chooses alike without asking.
 * v-variants choose without counts. */
#include <stdio.h>
#include <string.h>

#include "collectives/cost.h"

/* Longest contribution of a one-shot: what the rings take, or a board where one copy serves
 * several peers. */
static size_t oneshot_max(const struct banyan_comm *c, const struct bny_call *call)
{
    return c->all_shm && c->n > 2 &&
                   (call->collective == BNY_ALLREDUCE || call->collective == BNY_ALLGATHER)
               ? BNY_BOARD_BYTES
               : c->eager_agreed;
}

static int oneshot_possible(const struct banyan_comm *c, const struct bny_call *call)
{
    size_t bytes = call->count * banyan_dtype_bytes(call->dtype);

    switch (call->collective) {
    case BNY_ALLREDUCE:
    case BNY_REDUCE:
    case BNY_BROADCAST:
    case BNY_ALLGATHER:
    case BNY_GATHER:
    case BNY_SCATTER:
    case BNY_ALLTOALL:
    case BNY_BARRIER: break;
    default: return 0;
    }
    return !call->vector && !call->codec && c->n > 1 && c->n <= 64 &&
           bytes <= oneshot_max(c, call) && call->count <= bytes + 1;
}

/* Shall sends of several trees to one peer be one step? Not where a tree alone has several
 * chunks and the plan is for a graph: a joined step sends one tree's after the other's, others
 * send them side by side, and the trees wait for both. */
static int joins_trees(const struct banyan_comm *c, const struct bny_call *call,
                       const char *schedule)
{
    double bytes = bny_call_bytes(c, call);
    struct bny_topology_cost k;
    size_t chunk;

    if (call->vector || call->codec)
        return 0;
    chunk = bny_cost_network_chunk(c, call, schedule, bytes, &k);
    if (chunk && (call->chunk_bytes || c->chunk_bytes))
        chunk = call->chunk_bytes ? call->chunk_bytes : c->chunk_bytes;
    return !chunk || k.largest * bytes <= (double)chunk;
}

/* Sums whose order of addition must be that of the ranks. */
static int ordered(const struct bny_call *call)
{
    switch (call->collective) {
    case BNY_ALLREDUCE:
    case BNY_REDUCE:
    case BNY_REDUCE_SCATTER: return !call->redop.commutative || call->deterministic;
    default: return 0;
    }
}

/* Does the call's codec lose something? Then only forests serve it: their sums have one owner,
 * who tells all others. */
static int lossy(const struct bny_call *call)
{
    return call->codec && call->codec->ops->family != BNY_CODEC_EXACT;
}

static const char *only_schedule(const struct bny_call *call)
{
    switch (call->collective) {
    case BNY_BARRIER: return "dissemination";
    case BNY_GATHER:
    case BNY_SCATTER: return "direct";
    case BNY_ALLTOALL: return "pairwise";
    case BNY_SCAN:
    case BNY_EXSCAN: return "chain";
    case BNY_REDUCE:
        if (ordered(call))
            return "linear_reduce";
        return lossy(call) ? "star" : NULL;
    case BNY_ALLREDUCE:
        if (ordered(call))
            return "linear";
        return lossy(call) ? "star" : NULL;
    default: return lossy(call) ? "star" : NULL;
    }
}

static void consider(struct bny_plan *plan, const char *name, double cost)
{
    if (plan->schedule[0] && cost >= plan->predicted_s)
        return;
    plan->predicted_s = cost;
    snprintf(plan->schedule, sizeof plan->schedule, "%s", name);
}

/* Takes the schedule when it is the cheapest so far and there is a program of it. */
static void consider_forest(struct banyan_comm *c, const struct bny_call *call,
                            const char *name, enum bny_forest_use use, double cost,
                            struct bny_plan *plan)
{
    const struct bny_program *p;

    if (plan->schedule[0] && cost >= plan->predicted_s)
        return;
    if (bny_program_get(c, (enum bny_collective)call->collective, name,
                        use == BNY_FOREST_ROOTED ? call->root : -1, joins_trees(c, call, name),
                        &p) == 0)
        consider(plan, name, cost);
}

static void choose_forest(struct banyan_comm *c, const struct bny_call *call,
                          enum bny_forest_use use, double bytes, const struct bny_cost_model *m,
                          struct bny_plan *plan)
{
    char lower[BNY_NAME_MAX] = "";
    const char *name;

    for (int i = 0; bny_builders[i]; i++) {
        const struct bny_builder_ops *b = bny_builders[i];
        if ((b->uses & use) && strcmp(b->name, "linear") != 0)
            consider_forest(c, call, b->name, use, bny_cost_builder(c, call, b, use, bytes, m),
                            plan);
    }
    if (!bny_topology_applies(c) || bytes < BNY_NETWORK_BYTES_MIN)
        return;
    for (size_t i = 0; (name = bny_topology_schedule_name(i)); i++) {
        double cost = bny_topology_worth_trying(c, name)
                          ? bny_cost_scheduled(c, call, name, use, bytes, m)
                          : 0;
        if (cost > 0)
            consider_forest(c, call, name, use, cost, plan);
    }
    while (bny_topology_lower(lower, c, (enum bny_collective)call->collective, call->root)) {
        double cost = bny_cost_scheduled(c, call, lower, use, bytes, m);
        if (cost > 0)
            consider_forest(c, call, lower, use, cost, plan);
    }
}

static int choose_auto(struct banyan_comm *c, const struct bny_call *call,
                       struct bny_plan *plan)
{
    struct bny_cost_model m = bny_cost_model_of(c);
    double bytes = bny_call_bytes(c, call);
    enum bny_forest_use use;
    const char *only = only_schedule(call);

    plan->schedule[0] = '\0';
    if (oneshot_possible(c, call))
        consider(plan, "oneshot", bny_cost_oneshot(c, call, &m));
    if (only) {
        const struct bny_direct_ops *d = bny_direct_find(only);
        double cost = d ? bny_cost_direct(c, d, call, bytes, &m)
                        : 2 * m.alpha_s + bytes * (c->n - 1) * (2 * m.beta + m.gamma);
        consider(plan, only, cost);
        return 0;
    }
    for (int i = 0; bny_directs[i]; i++)
        if ((bny_directs[i]->collectives & (1u << call->collective)) &&
            call->collective == BNY_ALLREDUCE)
            consider(plan, bny_directs[i]->name,
                     bny_cost_direct(c, bny_directs[i], call, bytes, &m));
    if (bny_collective_use((enum bny_collective)call->collective, &use))
        choose_forest(c, call, use, bytes, &m, plan);
    return plan->schedule[0]
               ? 0
               : bny_fail(BANYAN_ENOTSUP, "no schedule serves %s of %d ranks",
                          bny_collective_name((enum bny_collective)call->collective), c->n);
}

/* A schedule that the call, or the communicator's settings, asked for. Returns 0 when it can
 * serve. */
static int choose_forced(struct banyan_comm *c, const struct bny_call *call, const char *name,
                         struct bny_plan *plan)
{
    const struct bny_program *p;
    enum bny_forest_use use;
    int root = bny_collective_use((enum bny_collective)call->collective, &use) &&
                       use != BNY_FOREST_ROOTED
                   ? -1
                   : call->root;
    const char *only = only_schedule(call);
    struct bny_cost_model m = bny_cost_model_of(c);

    if (!strcmp(name, "oneshot") ? !oneshot_possible(c, call)
                                 : only && ordered(call) && strcmp(only, name) != 0)
        return -BANYAN_ENOTSUP;
    if (lossy(call) && (bny_direct_find(name) || !strcmp(name, "oneshot")))
        return -BANYAN_ENOTSUP; /* each hop would quantise for itself: ranks would differ */
    if (strcmp(name, "oneshot") != 0) {
        int rc = bny_program_get(c, (enum bny_collective)call->collective, name, root,
                                 joins_trees(c, call, name), &p);
        if (rc)
            return rc;
    }
    plan->predicted_s = bny_cost_network(c, call, name, bny_call_bytes(c, call), &m);
    snprintf(plan->schedule, sizeof plan->schedule, "%s", name);
    return 0;
}

/* Also of the chunk asked for, which some plans have no use for: ranks must agree on it. */
static uint8_t hash_plan(const struct banyan_comm *c, const struct bny_call *call,
                         const struct bny_plan *plan)
{
    uint32_t h = 2166136261u;
    size_t asked = call->chunk_bytes ? call->chunk_bytes : c->chunk_bytes;

    for (const char *s = plan->schedule; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    for (const char *s = plan->codec ? plan->codec->spec : ""; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    h = (h ^ (uint32_t)plan->chunk_bytes) * 16777619u;
    h = (h ^ (uint32_t)asked) * 16777619u;
    return (uint8_t)(h ^ (h >> 8) ^ (h >> 16) ^ (h >> 24));
}

static void say(const struct banyan_comm *c, const struct bny_call *call,
                const struct bny_plan *plan)
{
    bny_info(
        "plan: %s of %zu %s on %d ranks: schedule %s, chunk %zu, codec %s, predicted %.3g us",
        bny_collective_name((enum bny_collective)call->collective), call->count,
        banyan_dtype_name(call->dtype), c->n, plan->schedule, plan->chunk_bytes,
        plan->codec ? plan->codec->spec : "none", plan->predicted_s * 1e6);
}

#define GAIN_MIN 0.9 /* of raw's time: less is not worth the risk of a model */

static int choose(struct banyan_comm *c, const struct bny_call *call, struct bny_plan *plan);

/* The call raw, when it is predicted to be faster so; the codec is a permission. 1: plan is
 * chosen, 0: go on with the codec, or an error. */
static int refuse_codec(struct banyan_comm *c, const struct bny_call *call,
                        struct bny_plan *plan)
{
    struct bny_call raw = *call;
    double coded = bny_cost_coded(c, call, 256 << 10);
    int rc;

    if (call->codec->force || c->world->codec_force)
        return 0;
    raw.codec = NULL;
    rc = choose(c, &raw, plan);
    if (rc == -BANYAN_ENOTSUP)
        return 0;
    if (rc)
        return rc;
    if (c->all_shm || (plan->predicted_s > 0 && coded >= GAIN_MIN * plan->predicted_s)) {
        /* the data of ranks that share memory is read once and written once: no encoder does
         * with less */
        plan->refused_s = coded;
        bny_info("plan: codec %s is refused: predicted %.3g us, without it %.3g us "
                 "(BANYAN_CODEC_FORCE=1 insists)",
                 call->codec->spec, coded * 1e6, plan->predicted_s * 1e6);
        return 1;
    }
    memset(plan, 0, sizeof *plan);
    return 0;
}

/* How a plan for a graph sends: local, ranks need not agree. */
static void set_manner(const struct banyan_comm *c, const struct bny_call *call,
                       const struct bny_topology_cost *k, struct bny_plan *plan)
{
    const struct bny_world *w = c->world;
    double bytes = bny_call_bytes(c, call);

    plan->by_chunk = w->order == BNY_ORDER_CHUNK;
    if (w->lockstep)
        plan->step_s = bny_topology_step_s(k, bytes, BNY_NETWORK_ALPHA_S);
    else if (w->pace &&
             !plan->codec) /* encoded data takes less of the links than the plan counts on */
        plan->pace_s = k->per_byte * bytes;
}

static int choose(struct banyan_comm *c, const struct bny_call *call, struct bny_plan *plan)
{
    struct bny_topology_cost k;
    enum bny_forest_use use;
    int rc, rooted, has_use;

    plan->codec = call->codec;
    plan->path = BNY_PATH_ENGINE;
    rc = call->codec ? refuse_codec(c, call, plan) : 0;
    if (rc)
        return rc < 0 ? rc : 0;
    plan->codec = call->codec;
    if (call->collective == BNY_SENDRECV) {
        plan->program = bny_plan_sendrecv(c, call->root, call->is_send);
        if (!plan->program)
            return -BANYAN_ENOMEM;
        snprintf(plan->schedule, sizeof plan->schedule,
                 "sendrecv"); /* the same on both ends: it is hashed */
        plan->chunk_bytes = bny_chunk_of(c, call, NULL, plan->program);
        plan->sched_hash = hash_plan(c, call, plan);
        return 0;
    }
    if (call->codec &&
        call->codec->ops->family == BNY_CODEC_LINEAR) { /* its stages have plans of their own */
        plan->path = BNY_PATH_STAGES;
        snprintf(plan->schedule, sizeof plan->schedule, "stages");
        plan->predicted_s = bny_cost_coded(c, call, 256 << 10);
        plan->sched_hash = hash_plan(c, call, plan);
        say(c, call, plan);
        return 0;
    }
    rc = -BANYAN_ENOTSUP;
    if (strcmp(call->schedule, "auto") != 0 && call->schedule[0]) {
        rc = choose_forced(c, call, call->schedule, plan);
        if (rc == -BANYAN_ENOTSUP)
            return bny_fail(
                BANYAN_ENOTSUP,
                "schedule: \"%s\" cannot serve %s of %zu %s on %d ranks%s; use auto",
                call->schedule, bny_collective_name((enum bny_collective)call->collective),
                call->count, banyan_dtype_name(call->dtype), c->n,
                call->codec ? " with this codec" : "");
    } else if (strcmp(c->schedule, "auto") != 0) {
        rc = choose_forced(c, call, c->schedule,
                           plan); /* a default: where it does not fit, auto */
    }
    if (rc == -BANYAN_ENOTSUP)
        rc = choose_auto(c, call, plan);
    if (rc)
        return rc;
    if (!strcmp(plan->schedule, "oneshot")) {
        plan->path = BNY_PATH_ONESHOT;
        plan->program = NULL;
        plan->chunk_bytes = c->eager_agreed;
    } else {
        has_use = bny_collective_use((enum bny_collective)call->collective, &use);
        rooted = !has_use || use == BNY_FOREST_ROOTED;
        rc = bny_program_get(c, (enum bny_collective)call->collective, plan->schedule,
                             rooted ? call->root : -1, joins_trees(c, call, plan->schedule),
                             &plan->program);
        if (rc)
            return rc;
        plan->chunk_bytes = bny_chunk_of(c, call, plan->schedule, plan->program);
        if (plan->codec)
            plan->predicted_s = bny_cost_coded(c, call, plan->chunk_bytes);
        if (bny_topology_schedule_known(plan->schedule) &&
            bny_cost_network_chunk(c, call, plan->schedule, bny_call_bytes(c, call), &k))
            set_manner(c, call, &k, plan);
    }
    plan->sched_hash = hash_plan(c, call, plan);
    say(c, call, plan);
    return 0;
}

/* Of a call's plan among those that are kept. All fields must reach the top bits: calls that
 * differ only in the collective are often made by turns. */
static unsigned place_of(const struct bny_call *call)
{
    uint64_t small = call->collective | (uint64_t)call->dtype << 8 |
                     (uint64_t)call->redop.wire << 16 |
                     (uint64_t)(uint32_t)(call->root + 1) << 24;

    return (unsigned)((call->count * 0x9e3779b97f4a7c15u + small * 0xc2b2ae3d27d4eb4fu) >> 58);
}

int bny_plan_get(struct banyan_comm *c, const struct bny_call *call, struct bny_plan *out)
{
    struct bny_plan *plan = &c->plans[place_of(call)];
    int rc;

    if (c->n == 1 && call->collective != BNY_SENDRECV) {
        memset(out, 0, sizeof *out);
        out->path = BNY_PATH_ENGINE;
        snprintf(out->schedule, sizeof out->schedule, "alone");
        return 0;
    }
    if (plan->valid && plan->collective == call->collective && plan->dtype == call->dtype &&
        plan->redop_wire == call->redop.wire && plan->ordered == ordered(call) &&
        plan->vector == call->vector && plan->is_send == call->is_send &&
        plan->root == call->root && plan->count == call->count && plan->asked == call->codec &&
        plan->forced_chunk == call->chunk_bytes && !strcmp(plan->forced, call->schedule)) {
        *out = *plan;
        return 0;
    }
    memset(plan, 0, sizeof *plan);
    rc = choose(c, call, plan);
    if (rc)
        return rc;
    plan->collective = call->collective;
    plan->dtype = (uint8_t)call->dtype;
    plan->redop_wire = call->redop.wire;
    plan->ordered = (uint8_t)ordered(call);
    plan->vector = call->vector;
    plan->is_send = call->is_send;
    plan->root = call->root;
    plan->count = call->count;
    plan->asked = call->codec;
    plan->forced_chunk = call->chunk_bytes;
    snprintf(plan->forced, sizeof plan->forced, "%s", call->schedule);
    plan->valid = 1;
    *out = *plan;
    return 0;
}
