/* SPDX-License-Identifier: BSD-3-Clause */
/* Operations that take ten times what was predicted, of which the network's pace to another
 * rank explains a good part: the rank tells one of them, with that other rank. A rank that
 * comes late, or CPUs that many ranks share, leave the network idle. Nothing is decided by it.
 */
#include "base/log.h"
#include "collectives/op/op.h"
#include "transport/bootstrap/net.h"

#define TIMES       10
#define TOGETHER_NS 1000000000u /* such operations take, less the others, until one is told */
#define BUSY        .5f         /* of the time */
#define EXPLAINED   .25         /* of an operation's time: its bytes at the network's pace */
#define RECENT_NS   2500000000u /* the transport looks once a second */

static const struct bny_busy_path *busiest(const struct bny_world *w)
{
    const struct bny_busy_path *most = NULL;

    for (int i = 0; i < w->ntps; i++) {
        const struct bny_busy_path *p = &w->tps[i]->busiest;

        if (p->part >= BUSY && w->tick_ns < p->seen_ns + RECENT_NS &&
            (!most || p->part > most->part))
            most = p;
    }
    return most;
}

static void tell(const struct bny_op *op, const struct bny_busy_path *p, double seconds)
{
    const struct bny_world *w = op->comm->world;
    char where[BNY_WHERE_TEXT] = "";

    if (w->control)
        bny_control_where(w->control, p->peer, where);
    bny_warn("%s of %zu %s took %.3g s, %.0f times what was predicted (%.3g s). Data "
             "to rank %d%s was on its way for %.0f %% of the last second, at %.3g Mbit/s: that "
             "link is slow, or others use it; " BNY_NET_DOCTOR
             ". If the network is so slow, BANYAN_LINK_GBPS=%.2g on all ranks makes "
             "plans for it (told once)",
             bny_call_name(&op->call), op->call.count, banyan_dtype_name(op->call.dtype),
             seconds, seconds / op->plan.predicted_s, op->plan.predicted_s, p->peer, where,
             100. * (double)p->part, p->Bps * 8e-6, p->Bps * 8e-9);
}

void bny_slow_look(const struct bny_op *op)
{
    struct bny_world *w = op->comm->world;
    uint64_t began = op->deadline_ns - op->allowed_ns;
    uint64_t took = w->tick_ns > began ? w->tick_ns - began : 0;
    const struct bny_busy_path *p;

    /* weighed.c learns what calls take that weigh their codec. */
    if (op->plan.weighs || op->plan.predicted_s <= 0 || !op->call.count)
        return;
    if ((double)took < TIMES * 1e9 * op->plan.predicted_s) {
        w->slow_ns -= took < w->slow_ns ? took : w->slow_ns;
        return;
    }
    p = busiest(w);
    if (p && (double)op->wire_bytes < EXPLAINED * 1e-9 * (double)took * p->Bps)
        p = NULL;
    w->slow_ns += p ? took : 0;
    if (!p || w->slow_ns < TOGETHER_NS)
        return;
    w->told_slow = 1;
    tell(op, p, 1e-9 * (double)took);
}
