/* SPDX-License-Identifier: BSD-3-Clause */
/* The choice's half of reductions in order of arrival (plan/way.h): which calls they can serve,
 * what they cost, and which plans of other ways they take over. */
#include "collectives/arrival/arrival_choice.h"

#include <math.h>

#include "base/err.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/arrival_tree.h"

/* Why reductions in order of arrival cannot serve the call; NULL: they can. */
const char *bny_arrival_cannot(const struct bny_scope *s, const struct bny_call *call)
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
        return "it takes no participation set; at_least counts the ranks that come first";
    if (call->codec && call->codec->ops->linear)
        return "codes of linear codecs are summed in stages of all ranks; use another codec";
    if (call->codec && call->codec->is_levels)
        return "each rank of its chains encodes a sum, with one codec for all of them";
    return s->n > BNY_ARRIVAL_RANKS_MAX ? "it is for up to 32768 ranks" : NULL;
}

/* A rank's port receives a sum of full length and sends one, and then the result. Each rank
 * decodes what it receives, adds, and encodes its sum once. */
static double arrival_seconds(const struct bny_scope *s, const struct bny_call *call,
                              int is_coded)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    double phases = call->collective == BNY_ALLREDUCE ? 2 : 1, bytes = bny_call_bytes(s, call),
           elems = bytes / (double)banyan_dtype_bytes(call->dtype), wire, work;
    struct bny_codec_speed k;

    if (!is_coded)
        return phases * (m.alpha_s + bytes * m.beta);
    k = bny_codec_speed(call->codec, call->dtype);
    wire = phases * elems * bny_cost_result_bytes(call, &k, s->n) * m.beta;
    work = elems * (k.encode_s + phases * k.decode_s);
    if (s->oversubscribed)
        work *= 2;
    if (!s->one_host || s->link_Bps > 0)
        return phases * m.alpha_s + fmax(wire, work);
    return phases * m.alpha_s + wire + work;
}

double bny_arrival_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                           char *schedule)
{
    return arrival_seconds(s, call, call->codec != NULL);
}

/* The overhead of a chunk must not exceed its time on the link. */
static size_t arrival_chunk_least(const struct bny_scope *s)
{
    double least = s->link_Bps * bny_cost_chunk_s(s);

    if (s->link_Bps <= 0 || s->shares_memory || least > BNY_ARRIVAL_CHUNK_MIN)
        return BNY_ARRIVAL_CHUNK_MIN;
    return least < BNY_ARRIVAL_CHUNK_SLOW ? BNY_ARRIVAL_CHUNK_SLOW
                                          : (size_t)least & ~(size_t)63;
}

static size_t arrival_chunk(const struct bny_scope *s, const struct bny_call *call)
{
    static const struct bny_program one_block = { .nblocks = 1 };
    size_t most = bny_chunk_of(s, call, NULL, &one_block), want, least = arrival_chunk_least(s),
           chunks = BNY_ARRIVAL_CHUNKS_HOP * (size_t)(s->n - 1);

    if (call->chunk_bytes || s->chunk_bytes)
        return most;
    chunks = chunks < BNY_ARRIVAL_CHUNKS ? BNY_ARRIVAL_CHUNKS : chunks;
    want = (size_t)bny_call_bytes(s, call) / chunks & ~(size_t)63;
    want = want < least ? least : want;
    return want < most ? want : most;
}

/* Has each rank a port of its own? The model of chains in order of arrival has neither hosts
 * nor graphs. */
static int has_ports(const struct bny_scope *s)
{
    int alone = bny_topology_nhosts(s) == s->n;

    if (s->shares_memory || bny_topology_beta(s) > 0)
        return 0;
    if (s->link_Bps > 0)
        return s->one_host || alone;
    return alone && !s->one_host && !s->oversubscribed;
}

/* Seconds by which a rank has to be late for the sum to be faster in order of arrival; 0: it
 * never is, or the call does not qualify. A reduce gains too little: a port has to transfer S
 * after the last arrival either way. With a lossy codec the ranks of a chain would encode more
 * often than the codec promises. */
static double pays_from(const struct bny_scope *s, const struct bny_call *call,
                        const struct bny_plan *plan)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    double bytes = bny_call_bytes(s, call), chunk = (double)arrival_chunk(s, call), after, late;

    if (call->collective != BNY_ALLREDUCE || !bny_call_is_open(call) ||
        strcmp(s->schedule, "auto") != 0 || call->codec || call->is_child ||
        call->via_allreduce || s->n < 3 || plan->predicted_s < BNY_LATE_SUM_S || !has_ports(s))
        return 0;
    after = bny_arrival_tree_seconds(
        s->n, bny_arrival_tree_choose(s->n, bytes, chunk, m.alpha_s, m.beta), bytes, chunk,
        m.alpha_s, m.beta);
    if (after > BNY_LATE_GAIN * plan->predicted_s)
        return 0;
    late = 2 * after - plan->predicted_s; /* the others' sum is not done at the last arrival */
    return late > BNY_LATE_S_MIN ? late : BNY_LATE_S_MIN;
}

/* How long the slots of a long sum wait for all ranks, which then run the static schedule: that
 * sends 2 (n - 1) / n S a rank, an arrival tree 2 S. A reduce needs S a port either way, and a
 * chain needs no more. The wait is short beside the sum, and shorter where some ranks are
 * enough. */
static double together_s(const struct bny_scope *s, const struct bny_call *call,
                         const struct bny_plan *plan)
{
    int part;

    if (bny_call_bytes(s, call) < BNY_TOGETHER_BYTES)
        return 0;
    if (call->collective == BNY_REDUCE && !plan->codec && has_ports(s))
        return 0;
    part = call->first && call->first < (size_t)s->n ? BNY_TOGETHER_FIRST : BNY_TOGETHER_PART;
    return fmin(BNY_TOGETHER_S, plan->predicted_s / part);
}

/* Seconds from the last arrival until all ranks have the result. In a chain the result follows
 * the sum around; in other trees it starts back when the sum is complete. */
static double after_last_s(const struct bny_scope *s, const struct bny_call *call,
                           double coordinator)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    double bytes = bny_call_bytes(s, call), chunk = (double)arrival_chunk(s, call);
    int depth = bny_arrival_tree_choose(s->n, bytes, chunk, m.alpha_s, m.beta),
        ways = depth && call->collective == BNY_ALLREDUCE ? 2 : 1;

    return coordinator +
           ways * bny_arrival_tree_seconds(s->n, depth, bytes, chunk, m.alpha_s, m.beta);
}

/* A short sum needs all inputs, and a schedule with fixed parents completes it sooner, also
 * after the last arrival: the call asks no coordinator. at_least, of all ranks too, insists on
 * the order of arrival. 1: plan has that schedule, 0: it does not, or an error. */
static int choose_sooner(struct bny_scope *s, const struct bny_call *call,
                         struct bny_plan *plan)
{
    double coordinator = 2 * bny_cost_model_of(s).alpha_s;
    struct bny_plan fixed = { .way = plan->way };
    int rc;

    if (call->first || call->codec)
        return 0;
    rc = bny_plan_cheapest(s, call, &fixed);
    if (rc == -BANYAN_ENOMEM)
        return rc;
    if (rc || (fixed.predicted_s > after_last_s(s, call, coordinator) &&
               BNY_COORDINATOR_PART * fixed.predicted_s > coordinator))
        return 0;
    *plan = fixed;
    return 1;
}

/* Takes over the plan of a sum that is faster in order of arrival while ranks are late. */
static void take_over(const struct bny_scope *s, const struct bny_call *call,
                      struct bny_plan *plan)
{
    double late_s = plan->program ? pays_from(s, call, plan) : 0;

    if (late_s <= 0)
        return;
    plan->way = BNY_WAY_ARRIVAL;
    plan->late_s = late_s;
    plan->arrival_chunk = arrival_chunk(s, call);
    plan->together_s = BNY_TOGETHER_S;
}

int bny_arrival_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    int rc;

    if (plan->way != BNY_WAY_ARRIVAL) {
        take_over(s, call, plan);
        return 0;
    }
    rc = choose_sooner(s, call, plan);
    if (rc < 0)
        return rc;
    if (rc)
        return s->ways[plan->way]->plan(s, call, plan);
    plan->chunk_bytes = arrival_chunk(s, call);
    plan->predicted_s = arrival_seconds(s, call, plan->codec != NULL);
    plan->together_s = together_s(s, call, plan);
    return 0;
}
