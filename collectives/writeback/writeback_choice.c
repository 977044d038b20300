/* SPDX-License-Identifier: BSD-3-Clause */
/* The choice's half of the ways over shared memory (plan/way.h): what they can serve, and
 * what they cost. */
#include "collectives/writeback/writeback_choice.h"

#include <math.h>
#include <stdio.h>

#include "collectives/plan/cost.h"
#include "collectives/program/directs.h"

/* They take places in the order in which operations start; that of stages may
 * differ between ranks. */
static const char *not_plain(const struct bny_call *call)
{
    const char *why = bny_call_beyond_plain(call);

    if (why)
        return why;
    if (call->has_set)
        return "it takes no participation set";
    return call->is_stage ? "it is no stage of another operation" : NULL;
}

/* ---- passes ---- */

/* A pass cuts no element. */
static const char *no_pass(const struct bny_call *call)
{
    const char *why = not_plain(call);

    if (why)
        return why;
    return bny_redop_quantum(&call->redop) * banyan_dtype_bytes(call->dtype) >
                   BNY_WRITEBACK_ELEM_MAX
               ? "an element has to fit into 4096 bytes"
               : NULL;
}

/* A reduction to a root adds the root's input last. */
const char *bny_writeback_cannot(const struct bny_scope *s, const struct bny_call *call)
{
    if (!bny_call_row(call)->writeback)
        return "it does not serve this collective";
    if (!s->shares_memory)
        return "ranks of this communicator share no memory";
    if (s->n > BNY_WRITEBACK_RANKS_MAX)
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

double bny_writeback_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                             char *schedule)
{
    struct bny_cost_model m = bny_cost_model_of(s);

    return bny_call_bytes(s, call) >=
                   (double)passes_from(s->n, s->oversubscribed, call->collective)
               ? pass_seconds(s, call, &m)
               : INFINITY;
}

int bny_writeback_plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    plan->chunk_bytes = call->chunk_bytes ? call->chunk_bytes : s->chunk_bytes;
    return 0;
}

/* ---- sums of several hosts ---- */

size_t bny_hosts_part(const struct bny_scope *s, const struct bny_call *call)
{
    size_t quantum = bny_redop_quantum(&call->redop),
           units = call->count / quantum / (size_t)s->near;

    return (units >= 1024 ? units & ~(size_t)63 : units) * quantum;
}

/* No model of a graph prices them. */
const char *bny_hosts_cannot(const struct bny_scope *s, const struct bny_call *call)
{
    const char *why = no_pass(call);

    if (call->collective != BNY_ALLREDUCE)
        return "it serves allreduce alone";
    if (s->near < 2)
        return "it needs several hosts, with as many ranks on each and two at least";
    if (s->near > BNY_WRITEBACK_RANKS_MAX)
        return "it is for up to 64 ranks a host";
    if (why)
        return why;
    if (bny_call_is_ordered(call))
        return "it adds by hosts, not in the order of ranks";
    if (bny_topology_beta(s) > 0)
        return "the links' speeds are given, and no model of them prices it";
    return bny_hosts_part(s, call) ? NULL
                                   : "there is less than an element for each rank of a host";
}

/* Between equals of so many hosts; ranks of a host share its port, so all of the vector counts.
 */
static double rails_cost(const struct bny_scope *s, const char *schedule, double bytes,
                         const struct bny_cost_model *m)
{
    const struct bny_direct_ops *d = bny_direct_find(schedule);
    int hosts = s->n / s->near;

    if (d)
        return d->cost(BNY_ALLREDUCE, hosts, bytes, m->alpha_s, m->beta, m->gamma);
    return bny_builder_find(schedule)->cost(hosts, BNY_FOREST_ALLREDUCE, bytes, m->alpha_s,
                                            m->beta, m->gamma);
}

static double sum_of_hosts(const struct bny_scope *s, const struct bny_call *call,
                           const struct bny_cost_model *m, const char **rails)
{
    static const char *const names[] = { "recursive_doubling", "ring_uni", "ring", "halving",
                                         "double_binary_tree" };
    double bytes = bny_call_bytes(s, call), least = INFINITY;
    struct bny_scope host = { .n = s->near,
                              .shares_memory = 1,
                              .oversubscribed = s->oversubscribed };
    struct bny_cost_model shared = bny_cost_model_of(&host);
    struct bny_call part = *call;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double t = rails_cost(s, names[i], bytes, m);

        if (t < least) {
            least = t;
            *rails = names[i];
        }
    }
    part.count = call->count / (size_t)s->near;
    part.collective = BNY_REDUCE_SCATTER;
    least += pass_seconds(&host, &part, &shared);
    part.collective = BNY_ALLGATHER;
    return least + pass_seconds(&host, &part, &shared);
}

/* Where both passes pay in a job of one host; where ranks share CPUs each rank's part has to be
 * as long as that, as waits are (2 hosts of 3 and 4 ranks on 2 CPUs: 1.5 of the engine's speed
 * from 1 MiB on, .97 at 512 KiB). Two ranks of a host gain nothing: the engine's chunks cross
 * hosts while others are added. */
double bny_hosts_seconds(struct bny_scope *s, const struct bny_call *call, double most,
                         char *schedule)
{
    double bytes = bny_call_bytes(s, call) / (s->oversubscribed ? s->near : 1);
    struct bny_cost_model m = bny_cost_model_of(s);
    const char *rails;

    return s->near > 2 && bytes >= (double)passes_from(s->near, 0, BNY_REDUCE_SCATTER) &&
                   bytes >= (double)passes_from(s->near, 0, BNY_ALLGATHER)
               ? sum_of_hosts(s, call, &m, &rails)
               : INFINITY;
}

void bny_hosts_rails(const struct bny_scope *s, const struct bny_call *call, char *schedule)
{
    struct bny_cost_model m = bny_cost_model_of(s);
    const char *rails;

    sum_of_hosts(s, call, &m, &rails);
    snprintf(schedule, BNY_NAME_MAX, BNY_RAILS "%s", rails);
}
