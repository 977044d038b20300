/* SPDX-License-Identifier: BSD-3-Clause */
/* The choice's half of reductions in order of arrival (plan/way.h): what they can serve, what
 * they cost, and which other plans they take over. */
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
        return "it takes no participation set; at_least counts those who come first";
    if (call->codec && call->codec->ops->linear)
        return "codes of linear codecs are summed in stages of all ranks; use another codec";
    return s->n > BNY_ARRIVAL_RANKS_MAX ? "it is for up to 32768 ranks" : NULL;
}

/* A rank's port takes a sum of full length and gives one, and then the result. Each rank
 * decodes what comes, adds, and encodes it once. */
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
    wire = phases * elems * bny_cost_result_bytes(s, call, &k) * m.beta;
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

/* A chunk's own cost is to be no more than its time on the link. */
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

    if (call->collective != BNY_ALLREDUCE || !bny_call_is_open(call) ||
        strcmp(s->schedule, "auto") != 0 || call->codec || call->is_child ||
        call->via_allreduce || s->n < 3 || plan->predicted_s < BNY_LATE_SUM_S || !has_ports(s))
        return 0;
    after = bny_arrival_tree_seconds(
        s->n, bny_arrival_tree_choose(s->n, bytes, chunk, m.alpha_s, m.beta), bytes, chunk,
        m.alpha_s, m.beta);
    if (after > BNY_LATE_GAIN * plan->predicted_s)
        return 0;
    late = 2 * after - plan->predicted_s; /* where the others' sum was not done before */
    return late > BNY_LATE_S_MIN ? late : BNY_LATE_S_MIN;
}

/* Slots of long sums wait for all ranks to come, who then run what is built for that: it sends
 * 2 (n - 1) / n S a rank, arrival trees 2 S. A reduce needs S a port either way, and a chain
 * gets by with that. They wait so long only as is little beside the sum, and where some ranks
 * are enough, as is nothing. */
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

/* From when the last rank has come until all have the result. A chain's result goes round
 * behind the sum; elsewhere it goes back when that is there. */
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

/* Short sums need all inputs, and a schedule that knows all ranks beforehand has them sooner,
 * also after the last one has come: no coordinator is asked. at_least, of all ranks too,
 * insists on the order of arrival. 1: plan is that schedule's, 0: it is not, or an error. */
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
