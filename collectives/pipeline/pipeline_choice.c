/* SPDX-License-Identifier: BSD-3-Clause */
/* The choice's half of the way pipeline (plan/way.h): what it can serve, and
 * what they cost. */
#include "collectives/pipeline/pipeline_choice.h"

#include <math.h>
#include <stdio.h>

#include "collectives/plan/cost.h"

/* It takes places in the order in which operations start; that of children may differ between
 * ranks, but for those of a host's ranks. */
static const char *not_plain(const struct bny_call *call)
{
    const char *why = bny_call_beyond_plain(call);

    if (why)
        return why;
    if (call->has_set)
        return "it takes no participation set";
    return call->is_child && !call->among ? "it is no child of another operation" : NULL;
}

/* ---- passes ---- */

/* A pass cuts no element. */
static const char *no_pass(const struct bny_call *call)
{
    const char *why = not_plain(call);

    if (why)
        return why;
    return bny_redop_quantum(&call->redop) * banyan_dtype_bytes(call->dtype) >
                   BNY_PIPELINE_ELEM_MAX
               ? "an element has to fit into 4096 bytes"
               : NULL;
}

/* A reduction to a root adds the root's input last. */
const char *bny_pipeline_cannot(const struct bny_scope *s, const struct bny_call *call)
{
    int is_of_host = call->among == BNY_AMONG_HOST;

    if (!bny_call_row(call)->pipeline)
        return "it does not serve this collective";
    if (!s->shares_memory && !is_of_host)
        return "ranks of this communicator share no memory";
    if ((is_of_host ? s->near : s->n) > BNY_PIPELINE_RANKS_MAX)
        return "it is for up to 64 ranks";
    if (call->collective == BNY_REDUCE && bny_call_is_ordered(call))
        return "it adds the root's input last";
    return no_pass(call);
}

/* From how many bytes of the whole vector passes are faster than what else there is. In a
 * scatter all others read the root's buffer at once, and do as well. */
static uint64_t passes_from(int n, int is_crowded, int collective)
{
    static const struct bny_pass_from from[BNY_COLLECTIVE_COUNT] = {
        [BNY_REDUCE] = BNY_PASS_FROM_REDUCE,
        [BNY_BROADCAST] = BNY_PASS_FROM_BROADCAST,
        [BNY_SCATTER] = BNY_PASS_FROM_SCATTER,
        [BNY_GATHER] = BNY_PASS_FROM_GATHER,
        [BNY_ALLGATHER] = BNY_PASS_FROM_ALLGATHER,
        [BNY_REDUCE_SCATTER] = BNY_PASS_FROM_REDUCE_SCATTER,
        [BNY_ALLTOALL] = BNY_PASS_FROM_ALLTOALL,
    };
    uint64_t bytes = n == 2       ? from[collective].pair
                     : is_crowded ? from[collective].crowded
                                  : from[collective].many;

    return collective == BNY_ALLTOALL && n > 2 ? bytes * (uint64_t)n : bytes;
}

/* Two message delays, of which each is a short message's; all but a rank's own part is copied
 * in and out in lines that change hands both ways at once, and all ranks add a part each.
 * Exchanges have two waits, too: blocks that are only copied are dearer than messages up to
 * about 12 KiB, as measured, whose price above has an addition in it. */
static double pass_seconds(const struct bny_scope *s, const struct bny_call *call,
                           const struct bny_cost_model *m)
{
    double bytes = (double)call->count * (double)banyan_dtype_bytes(call->dtype), n = s->n,
           waits = (n - 1) * 0.05e-6;

    switch (call->collective) {
    case BNY_ALLREDUCE:
        return 2 * m->alpha_s / 3 + waits + bytes * ((n - 1) / n * m->beta + m->gamma / 2);
    case BNY_REDUCE_SCATTER: return 2 * m->alpha_s / 3 + waits + (n - 1) * bytes * m->beta;
    case BNY_REDUCE:
    case BNY_BROADCAST:
        if (n > 2)
            return 1.6 * m->alpha_s + 2 * waits + bytes * 2 * m->beta;
        return 2 * m->alpha_s / 3 + waits + bytes * 0.7 * m->beta;
    case BNY_SCATTER: return 2 * m->alpha_s / 3 + waits + (n - 1) * bytes * 0.7 * m->beta;
    default:
        return (n > 2 ? 2 : 4) * m->alpha_s / 3 + waits +
               (n - 1) * bytes * (n > 2 ? 0.7 : 1) * m->beta;
    }
}

/* Ranks of a host are priced as a job of one host. Where they share CPUs each rank's part has
 * to be as long as that, as waits are (2 hosts of 3 and 4 ranks on 2 CPUs: 1.5 of the engine's
 * speed from 1 MiB on, .97 at 512 KiB). */
double bny_pipeline_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                            char *schedule)
{
    const struct bny_scope host = { .n = s->near,
                                    .shares_memory = 1,
                                    .oversubscribed = s->oversubscribed };
    int is_of_host = call->among == BNY_AMONG_HOST, is_crowded = s->oversubscribed;
    const struct bny_scope *of = is_of_host ? &host : s;
    double bytes = bny_call_bytes(of, call), from;
    struct bny_cost_model m = bny_cost_model_of(of);

    if (is_of_host && is_crowded)
        bytes /= of->n;
    from = (double)passes_from(of->n, is_crowded && !is_of_host, call->collective);
    return bytes >= from ? pass_seconds(of, call, &m) : INFINITY;
}

int bny_pipeline_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    plan->chunk_bytes = call->chunk_bytes ? call->chunk_bytes : s->chunk_bytes;
    return 0;
}
