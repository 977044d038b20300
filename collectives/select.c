/* SPDX-License-Identifier: BSD-3-Clause */
/* Which program serves a call: the smallest predicted time among what can serve it.
 *
 * The choice is a pure function of the call (collective, count, type, op, codec, root) and of constants that all
 * ranks agreed on at init, so every rank chooses alike without asking. v-variants choose without counts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/internal.h"
#include "collectives/topology.h"
#include "compress/speed.h"

/* What a chunk costs on a network of given links, for the size of chunks: ranks there wait for sockets. */
#define NETWORK_ALPHA_S   30e-6
#define CODED_CHUNK_S     30e-6 /* a coded chunk's own cost: system calls, a wake-up */
#define NETWORK_BYTES_MIN 4096 /* below, plans for the network are not worth looking for */

/* A linear model of one message: alpha + bytes * beta, and gamma for the addition of a byte. */
struct cost_model {
    double alpha_s, beta, gamma; /* seconds, seconds per byte */
};

/* Measured on a two-core machine (perf/RESULTS.md); what matters is their proportion. */
static struct cost_model model_of(const struct banyan_comm *c)
{
    struct cost_model m;

    if (c->all_shm)
        m = (struct cost_model){ 0.8e-6, 0.10e-9, 0.05e-9 };
    else
        m = (struct cost_model){ 4e-6, 0.25e-9, 0.05e-9 };
    if (c->world->oversubscribed) {
        m.alpha_s *= 5; /* each message waits for a context switch */
        m.beta *= 2;
        m.gamma *= 2;
    }
    if (bny_topology_beta(c) > m.beta)
        m.beta = bny_topology_beta(c);
    if (c->world->link_Bps > 0 && !c->all_shm) {
        m.beta = 1 / c->world->link_Bps;
        if (m.alpha_s < 30e-6 && m.beta > 0.05e-9)
            m.alpha_s = 30e-6; /* a link that somebody had to name is no loopback */
    }
    return m;
}

/* ---- costs ------------------------------------------------------------------------------------------------------- */

/* Bytes of the whole vector that a collective's cost formula counts. */
static double call_bytes(const struct banyan_comm *c, const struct bny_call *call)
{
    double one = (double)call->count * (double)banyan_dtype_bytes(call->dtype);

    switch (call->collective) {
    case BNY_REDUCE_SCATTER:
    case BNY_ALLGATHER:
    case BNY_GATHER:
    case BNY_SCATTER:
    case BNY_ALLTOALL: return one * c->n;
    default: return one;
    }
}

/* Longest contribution of a one-shot: what the rings take, or a board where one copy serves several peers. */
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
    return !call->vector && !call->codec && c->n > 1 && c->n <= 64 && bytes <= oneshot_max(c, call) &&
           call->count <= bytes + 1;
}

/* One message delay; each rank combines n - 1 messages, which are copied into a ring each or, from 3 ranks on, to one
 * board for all. */
static double oneshot_cost(const struct banyan_comm *c, const struct bny_call *call,
                           const struct cost_model *m)
{
    double bytes = (double)call->count * (double)banyan_dtype_bytes(call->dtype);

    double per_byte = c->all_shm && c->n > 2 ? 0.8 * m->beta : m->beta + 1.3 * m->gamma;

    return m->alpha_s / 3 + (c->n - 1) * (0.05e-6 + bytes * per_byte);
}

/* Chunks of a schedule on the graph that the user gave; 0 when it says nothing about it. */
static size_t network_chunk(const struct banyan_comm *c, const struct bny_call *call, const char *schedule, double bytes,
                            struct bny_topology_cost *k)
{
    if (bny_topology_cost(k, c, (enum bny_collective)call->collective, schedule, call->root) != 0)
        return 0;
    return bny_topology_chunk(k, bytes, NETWORK_ALPHA_S);
}

/* Seconds on that graph; 0 when it says nothing. */
static double network_cost(const struct banyan_comm *c, const struct bny_call *call, const char *schedule, double bytes,
                           const struct cost_model *m)
{
    struct bny_topology_cost k;
    size_t chunk = network_chunk(c, call, schedule, bytes, &k);

    if (chunk && (call->chunk_bytes || c->chunk_bytes))
        chunk = call->chunk_bytes ? call->chunk_bytes : c->chunk_bytes;
    return chunk ? bny_topology_seconds(&k, bytes, chunk, m->alpha_s) : 0;
}

/* Shall sends of several trees to one peer be one step? Not where a tree alone has several chunks and the plan is for a graph:
 * a joined step sends one tree's after the other's, others send them side by side, and the trees wait for both. */
static int joins_trees(const struct banyan_comm *c, const struct bny_call *call, const char *schedule)
{
    double bytes = call_bytes(c, call);
    struct bny_topology_cost k;
    size_t chunk;

    if (call->vector || call->codec)
        return 0;
    chunk = network_chunk(c, call, schedule, bytes, &k);
    if (chunk && (call->chunk_bytes || c->chunk_bytes))
        chunk = call->chunk_bytes ? call->chunk_bytes : c->chunk_bytes;
    return !chunk || k.largest * bytes <= (double)chunk;
}

/* Hosts of several ranks, joined as a full mesh: what crosses hosts, and what the ranks of one add and copy. */
static double hierarchical_cost(const struct banyan_comm *c, const char *schedule, enum bny_forest_use use, double bytes,
                                const struct cost_model *m)
{
    double local = (double)c->n / bny_topology_nhosts(c), phases = use == BNY_FOREST_ALLREDUCE ? 2 : 1;
    const struct bny_builder_ops *b = bny_builder_find(strcmp(schedule, "host_ring") ? "double_binary_tree" : "ring");

    return b->cost(bny_topology_nhosts(c), use, bytes, m->alpha_s, m->beta, m->gamma) +
           phases * (1e-6 * local + bytes * 0.2e-9);
}

/* A schedule that rests on the network; 0: it cannot be priced here. */
static double topology_cost(const struct banyan_comm *c, const struct bny_call *call, const char *schedule,
                            enum bny_forest_use use, double bytes, const struct cost_model *m)
{
    double cost = network_cost(c, call, schedule, bytes, m);

    if (cost > 0 || strncmp(schedule, "host_", 5) != 0 || bny_topology_beta(c) > 0)
        return cost;
    return hierarchical_cost(c, schedule, use, bytes, m);
}

/* Ranks that all share memory pull at the same time: there is no port that the (n - 1) messages of a star queue
 * at, as the closed forms have it. What counts is how often ranks wait for each other, and the memory's speed. */
static double builder_cost(const struct banyan_comm *c, const struct bny_call *call, const struct bny_builder_ops *b,
                           enum bny_forest_use use, double bytes, const struct cost_model *m)
{
    struct cost_model shared = *m;
    int nhosts = bny_topology_nhosts(c);
    double n = c->n;

    if (network_cost(c, call, b->name, bytes, m) > 0)
        return network_cost(c, call, b->name, bytes, m);
    if (nhosts > 1 && nhosts < c->n && strncmp(b->name, "ring", 4) != 0)
        shared.beta *= n / nhosts; /* ranks of a host share its port; a ring crosses once */
    if (c->all_shm && !strcmp(b->name, "star") && use != BNY_FOREST_ROOTED) {
        double phases = use == BNY_FOREST_ALLREDUCE ? 2 : 1;
        /* 0.8 us: the system calls of a message to pull or to put */
        return phases * (m->alpha_s + (n - 1) * 0.8e-6 * (c->world->oversubscribed ? 2 : 1)) +
               (n - 1) / n * bytes * (phases * 0.9 * m->beta + m->gamma / 2);
    }
    if (c->all_shm && !strcmp(b->name, "star"))
        return m->alpha_s + (n - 1) * 0.1e-6 + bytes * m->beta * (n > 8 ? n / 8 : 1);
    return b->cost(c->n, use, bytes, m->alpha_s, shared.beta, m->gamma);
}

/* Recursive doubling sends what it has just summed, by copies; on shared memory that costs 2.5 times a put. */
static double direct_cost(const struct banyan_comm *c, const struct bny_direct_ops *d,
                          const struct bny_call *call, double bytes, const struct cost_model *m)
{
    double network = bytes < NETWORK_BYTES_MIN ? 0
                                               : bny_topology_direct_seconds(c, (enum bny_collective)call->collective, d,
                                                                             bytes, m->alpha_s);

    if (network > 0)
        return network;
    return d->cost((enum bny_collective)call->collective, c->n, bytes, m->alpha_s,
                   (c->all_shm ? 2.5 : 1) * m->beta, m->gamma);
}

/* ---- choice -------------------------------------------------------------------------------------------------------- */

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

/* Does the call's codec lose something? Then only forests serve it: their sums have one owner, who tells all others. */
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
static void consider_forest(struct banyan_comm *c, const struct bny_call *call, const char *name, enum bny_forest_use use,
                            double cost, struct bny_plan *plan)
{
    const struct bny_program *p;

    if (plan->schedule[0] && cost >= plan->predicted_s)
        return;
    if (bny_program_get(c, (enum bny_collective)call->collective, name, use == BNY_FOREST_ROOTED ? call->root : -1,
                    joins_trees(c, call, name), &p) == 0)
        consider(plan, name, cost);
}

static void choose_forest(struct banyan_comm *c, const struct bny_call *call, enum bny_forest_use use, double bytes,
                          const struct cost_model *m, struct bny_plan *plan)
{
    char lower[BNY_NAME_MAX] = "";
    const char *name;

    for (int i = 0; bny_builders[i]; i++) {
        const struct bny_builder_ops *b = bny_builders[i];
        if ((b->uses & use) && strcmp(b->name, "linear") != 0)
            consider_forest(c, call, b->name, use, builder_cost(c, call, b, use, bytes, m), plan);
    }
    if (!bny_topology_applies(c) || bytes < NETWORK_BYTES_MIN)
        return;
    for (size_t i = 0; (name = bny_topology_schedule_name(i)); i++) {
        double cost = bny_topology_worth_trying(c, name) ? topology_cost(c, call, name, use, bytes, m) : 0;
        if (cost > 0)
            consider_forest(c, call, name, use, cost, plan);
    }
    while (bny_topology_lower(lower, c, (enum bny_collective)call->collective, call->root)) {
        double cost = topology_cost(c, call, lower, use, bytes, m);
        if (cost > 0)
            consider_forest(c, call, lower, use, cost, plan);
    }
}

static int choose_auto(struct banyan_comm *c, const struct bny_call *call, struct bny_plan *plan)
{
    struct cost_model m = model_of(c);
    double bytes = call_bytes(c, call);
    enum bny_forest_use use;
    const char *only = only_schedule(call);

    plan->schedule[0] = '\0';
    if (oneshot_possible(c, call))
        consider(plan, "oneshot", oneshot_cost(c, call, &m));
    if (only) {
        const struct bny_direct_ops *d = bny_direct_find(only);
        double cost = d ? direct_cost(c, d, call, bytes, &m)
                        : 2 * m.alpha_s + bytes * (c->n - 1) * (2 * m.beta + m.gamma);
        consider(plan, only, cost);
        return 0;
    }
    for (int i = 0; bny_directs[i]; i++)
        if ((bny_directs[i]->collectives & (1u << call->collective)) && call->collective == BNY_ALLREDUCE)
            consider(plan, bny_directs[i]->name, direct_cost(c, bny_directs[i], call, bytes, &m));
    if (bny_collective_use((enum bny_collective)call->collective, &use))
        choose_forest(c, call, use, bytes, &m, plan);
    return plan->schedule[0] ? 0 : bny_fail(BANYAN_ENOTSUP, "no schedule serves %s of %d ranks",
                                            bny_collective_name((enum bny_collective)call->collective), c->n);
}

/* A schedule that the call, or the communicator's settings, asked for. Returns 0 when it can serve. */
static int choose_forced(struct banyan_comm *c, const struct bny_call *call, const char *name,
                         struct bny_plan *plan)
{
    const struct bny_program *p;
    enum bny_forest_use use;
    int root = bny_collective_use((enum bny_collective)call->collective, &use) && use != BNY_FOREST_ROOTED ? -1
                                                                                                : call->root;
    const char *only = only_schedule(call);
    struct cost_model m = model_of(c);

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
    plan->predicted_s = network_cost(c, call, name, call_bytes(c, call), &m);
    snprintf(plan->schedule, sizeof plan->schedule, "%s", name);
    return 0;
}

/* Bytes of a chunk on shared memory. Each is a system call or two, so few large ones are best while a rank's two halves of
 * them stay in its L2 (allreduce, 2 ranks, 256 KiB, 1 and 4 MiB: chunks of 64 KiB take 26, 103, 440 us, of 128 KiB 23.4, 97,
 * 335). One block that travels from rank to rank needs smaller ones to overlap. */
static size_t shared_chunk(const struct bny_call *call, const struct bny_program *p)
{
    return p->nblocks > 1 || call->collective == BNY_SENDRECV ? 128u << 10 : 64u << 10;
}

/* Bytes (before encoding) of a chunk that fills and drains the pipeline of encoder, wire and decoder about as fast as its own
 * cost allows: sqrt(S a / sum of the other stages' seconds a byte), compression.md's closed form. The bottleneck's own
 * speed does not matter. */
static size_t pipeline_chunk(const struct banyan_comm *c, const struct bny_call *call, const struct bny_program *p)
{
    struct bny_codec_speed k = bny_codec_speed(call->codec, call->dtype);
    double esz = (double)banyan_dtype_bytes(call->dtype), bytes = call_bytes(c, call), most, others, want;
    double stage[3] = { k.encode_s / esz, k.wire_bytes / esz * model_of(c).beta, 2 * k.decode_s / esz };

    most = fmax(stage[0], fmax(stage[1], stage[2]));
    others = stage[0] + stage[1] + stage[2] - most;
    want = sqrt(bytes * (c->n - 1) / c->n * CODED_CHUNK_S / others);
    if (p->nblocks && want > bytes / p->nblocks / 2)
        want = bytes / p->nblocks / 2;
    return want < 64 << 10 ? 64 << 10 : want > 4 << 20 ? 4 << 20 : (size_t)want;
}

/* With a codec: what a slot holds, encoded; and raw where shared memory may have to copy a chunk that was declined. */
static size_t codec_chunk(const struct banyan_comm *c, const struct bny_call *call, const struct bny_program *p,
                          size_t want, int is_free)
{
    size_t esz = banyan_dtype_bytes(call->dtype), most = c->small_slots ? c->chunk_max : (size_t)1 << 26;

    if (is_free)
        want = pipeline_chunk(c, call, p);
    if (want > most)
        want = most;
    while (want > 1024 && bny_message_bound(call->codec, want / esz, call->dtype, 0) > c->coded_max)
        want -= want / 16;
    return want;
}

/* Small enough that a block is several chunks (so that work overlaps) and that a chunk stays in the cache between its
 * addition and its last send; large enough that its own cost is small. Sockets like larger ones: tcp on loopback, 1 MiB:
 * 64, 128, 256 KiB take 317, 256, 243 us. */
static size_t choose_chunk(const struct banyan_comm *c, const struct bny_call *call, const char *schedule,
                           const struct bny_program *p)
{
    size_t want = call->chunk_bytes ? call->chunk_bytes : c->chunk_bytes, bytes;
    struct bny_topology_cost k;

    if (!want && schedule)
        want = network_chunk(c, call, schedule, call_bytes(c, call), &k);
    if (!want) {
        bytes = (size_t)call_bytes(c, call) / (p->nblocks ? p->nblocks : 1);
        want = c->all_shm             ? shared_chunk(call, p)
               : bytes < 256u << 10 ? 128u << 10
                                    : 256u << 10;
        if (call->vector)
            want = 64u << 10;
    }
    if (want > c->chunk_max && (c->all_shm || call->codec)) /* others send() any length; shm may have to copy */
        want = c->chunk_max;
    if (call->codec)
        want = codec_chunk(c, call, p, want, !call->chunk_bytes && !c->chunk_bytes);
    return want < 64 ? 64 : want & ~(size_t)63;
}

static uint8_t hash_plan(const struct bny_plan *plan)
{
    uint32_t h = 2166136261u;

    for (const char *s = plan->schedule; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    for (const char *s = plan->codec ? plan->codec->spec : ""; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    h = (h ^ (uint32_t)plan->chunk_bytes) * 16777619u;
    return (uint8_t)(h ^ (h >> 8) ^ (h >> 16) ^ (h >> 24));
}

static void say(const struct banyan_comm *c, const struct bny_call *call, const struct bny_plan *plan)
{
    bny_info("plan: %s of %zu %s on %d ranks: schedule %s, chunk %zu, codec %s, predicted %.3g us",
             bny_collective_name((enum bny_collective)call->collective), call->count,
             banyan_dtype_name(call->dtype), c->n, plan->schedule, plan->chunk_bytes,
             plan->codec ? plan->codec->spec : "none", plan->predicted_s * 1e6);
}

/* Wire bytes for an element of a result. A sum of sparse parts has what any of them has, where it is not selected from
 * again: with elements in different places everywhere n times as many, and dense at most. */
static double result_bytes(const struct banyan_comm *c, const struct bny_call *call, const struct bny_codec_speed *k)
{
    if (call->codec->ops->family != BNY_CODEC_SPARSE || bny_codec_get(call->codec, "reselect") == 1)
        return k->wire_bytes;
    return fmin(c->n * k->wire_bytes, (double)banyan_dtype_bytes(call->dtype));
}

/* Seconds of the call with its codec. Each element is encoded once, decoded by its owner and by all. Across hosts the
 * wire works while we do; on one host it is our own work. */
static double coded_cost(const struct banyan_comm *c, const struct bny_call *call, size_t chunk)
{
    struct bny_codec_speed k = bny_codec_speed(call->codec, call->dtype);
    struct cost_model m = model_of(c);
    double esz = (double)banyan_dtype_bytes(call->dtype), n = c->n, elems = call_bytes(c, call) / esz;
    int reduces = call->collective == BNY_ALLREDUCE || call->collective == BNY_REDUCE ||
                  call->collective == BNY_REDUCE_SCATTER;
    double phases = call->collective == BNY_ALLREDUCE ? 2 : 1, share = (n - 1) / n;
    double wire = share * elems * (k.wire_bytes + (phases - 1) * result_bytes(c, call, &k)) * m.beta;
    double work = elems * (reduces ? k.encode_s : k.encode_s / n) + elems * k.decode_s * (phases * share + 1 / n);
    double fill = phases * (m.alpha_s + (n - 1) * 2e-6);

    if (call->collective == BNY_BROADCAST || call->collective == BNY_REDUCE)
        wire = elems * k.wire_bytes * m.beta * (n - 1);
    if (c->world->oversubscribed)
        work *= 2;
    if (!c->world->all_local || c->world->link_Bps > 0)
        return fmax(wire, work) + fill + fmin(wire, work) / fmax(1, elems * esz / (double)chunk);
    return wire + work + fill;
}

#define GAIN_MIN 0.9 /* of raw's time: less is not worth the risk of a model */

static int choose(struct banyan_comm *c, const struct bny_call *call, struct bny_plan *plan);

/* The call raw, when it is predicted to be faster so; the codec is a permission. 1: plan is chosen, 0: go on with the
 * codec, or an error. */
static int refuse_codec(struct banyan_comm *c, const struct bny_call *call, struct bny_plan *plan)
{
    struct bny_call raw = *call;
    double coded = coded_cost(c, call, 256 << 10);
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
        /* the data of ranks that share memory is read once and written once: no encoder does with less */
        plan->refused_s = coded;
        bny_info("plan: codec %s is refused: predicted %.3g us, without it %.3g us (BANYAN_CODEC_FORCE=1 insists)",
                 call->codec->spec, coded * 1e6, plan->predicted_s * 1e6);
        return 1;
    }
    memset(plan, 0, sizeof *plan);
    return 0;
}

/* How a plan for a graph sends: local, ranks need not agree. */
static void set_manner(const struct banyan_comm *c, const struct bny_call *call, const struct bny_topology_cost *k,
                       struct bny_plan *plan)
{
    const struct bny_world *w = c->world;
    double bytes = call_bytes(c, call);

    plan->by_chunk = w->order == BNY_ORDER_CHUNK;
    if (w->lockstep)
        plan->step_s = bny_topology_step_s(k, bytes, NETWORK_ALPHA_S);
    else if (w->pace && !plan->codec) /* encoded data takes less of the links than the plan counts on */
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
        snprintf(plan->schedule, sizeof plan->schedule, "sendrecv"); /* the same on both ends: it is hashed */
        plan->chunk_bytes = choose_chunk(c, call, NULL, plan->program);
        plan->sched_hash = hash_plan(plan);
        return 0;
    }
    if (call->codec && call->codec->ops->family == BNY_CODEC_LINEAR) { /* its stages have plans of their own */
        plan->path = BNY_PATH_STAGES;
        snprintf(plan->schedule, sizeof plan->schedule, "stages");
        plan->predicted_s = coded_cost(c, call, 256 << 10);
        plan->sched_hash = hash_plan(plan);
        say(c, call, plan);
        return 0;
    }
    rc = -BANYAN_ENOTSUP;
    if (strcmp(call->schedule, "auto") != 0 && call->schedule[0]) {
        rc = choose_forced(c, call, call->schedule, plan);
        if (rc == -BANYAN_ENOTSUP)
            return bny_fail(BANYAN_ENOTSUP, "schedule: \"%s\" cannot serve %s of %zu %s on %d ranks%s; use auto",
                            call->schedule, bny_collective_name((enum bny_collective)call->collective),
                            call->count, banyan_dtype_name(call->dtype), c->n,
                            call->codec ? " with this codec" : "");
    } else if (strcmp(c->schedule, "auto") != 0) {
        rc = choose_forced(c, call, c->schedule, plan); /* a default: where it does not fit, auto */
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
                         rooted ? call->root : -1, joins_trees(c, call, plan->schedule), &plan->program);
        if (rc)
            return rc;
        plan->chunk_bytes = choose_chunk(c, call, plan->schedule, plan->program);
        if (plan->codec)
            plan->predicted_s = coded_cost(c, call, plan->chunk_bytes);
        if (bny_topology_schedule_known(plan->schedule) && network_chunk(c, call, plan->schedule, call_bytes(c, call), &k))
            set_manner(c, call, &k, plan);
    }
    plan->sched_hash = hash_plan(plan);
    say(c, call, plan);
    return 0;
}

/* Of a call's plan among those that are kept. All fields must reach the top bits: calls that differ only in the collective
 * are often made by turns. */
static unsigned place_of(const struct bny_call *call)
{
    uint64_t small = call->collective | (uint64_t)call->dtype << 8 | (uint64_t)call->redop.wire << 16 |
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
