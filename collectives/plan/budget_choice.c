/* SPDX-License-Identifier: BSD-3-Clause */
/* Which codecs, up and down, a call takes within its budget (budget_choice.h).
 *
 * A contribution is encoded once on its way to the owner of a sum, and the result once. The
 * largest errors add up: partial sums never grow by coding, as codes keep a block's largest
 * value. Mean squared errors of contributions that are uncorrelated, or agree, are at most
 * their mean, over which the owner's own contribution counts as raw. */
#include "collectives/plan/budget_choice.h"

#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "collectives/plan/cost.h"
#include "compress/speed.h"

#define CONTRACTS 0.5 /* residuals stay bounded where less is lost */

int bny_budget_serves(const char *schedule)
{
    static const char *const stars[] = { "star", "host_star", "hierarchical" };
    size_t i = 0;

    while (i < sizeof stars / sizeof *stars && strcmp(stars[i], schedule) != 0)
        i++;
    return bny_schedule_is_auto(schedule) || i < sizeof stars / sizeof *stars;
}

struct bny_loss bny_budget_loss(const struct bny_call *call, int parts)
{
    int sums = bny_call_row(call)->averages,
        results = call->collective == BNY_ALLREDUCE || !sums;
    struct bny_loss sum = { 0, 0 }, one;

    if (sums && parts > 1) {
        bny_codec_loss(call->codec->up, &one.nmse, &one.max);
        sum.nmse = one.nmse * (parts - 1) / parts;
        sum.max = one.max;
    }
    if (results && parts > 1) {
        bny_codec_loss(call->codec->down, &one.nmse, &one.max);
        sum.nmse += one.nmse;
        sum.max += one.max;
    }
    return sum;
}

int bny_budget_keeps(const struct bny_budget *b, const struct bny_loss *loss)
{
    return loss->max <= b->max && loss->nmse <= (b->feedback ? CONTRACTS : b->nmse);
}

const struct bny_codec *bny_budget_choose(struct bny_scope *s, const struct bny_call *call,
                                          double (*seconds)(struct bny_scope *,
                                                            const struct bny_call *, void *),
                                          void *ctx)
{
    const struct bny_budget *b = call->codec->budget;
    const struct bny_codec *best = NULL;
    struct bny_call one = *call;
    double least = INFINITY;

    for (int i = 0; i < b->npairs; i++) {
        struct bny_loss loss;
        double t;

        one.codec = b->pairs[i];
        if (call->collective != BNY_ALLREDUCE && one.codec->up != one.codec->down)
            continue; /* data goes one way */
        loss = bny_budget_loss(&one, s->n);
        t = bny_budget_keeps(b, &loss) ? seconds(s, &one, ctx) : INFINITY;
        if (t < least) {
            least = t;
            best = one.codec;
        }
    }
    return best;
}

static const char *code_name(const struct bny_codec *c)
{
    return c ? c->ops->name : "raw";
}

void bny_budget_tell(char *text, size_t cap, const struct bny_scope *s,
                     const struct bny_call *call, const struct bny_plan *plan)
{
    int nhosts = bny_topology_nhosts(s), by_hosts = nhosts > 1 && nhosts < s->n;
    const char *schedule = plan->way == BNY_WAY_PROGRAM ? plan->schedule : "host_star";
    struct bny_call coded = *call;
    struct bny_loss loss;
    size_t at;

    *text = '\0';
    coded.codec = plan->codec;
    if (!plan->codec || plan->weighs || plan->codec->ops->linear ||
        (plan->way != BNY_WAY_PROGRAM && plan->way != BNY_WAY_SEQUENCE))
        return;
    by_hosts = by_hosts && bny_topology_hosts_builder(schedule);
    at = (size_t)snprintf(text, cap, "%s, net up %s, down %s", by_hosts ? ", host raw" : "",
                          code_name(plan->codec->up), code_name(plan->codec->down));
    loss = bny_budget_loss(&coded, by_hosts ? nhosts : bny_call_parts(call, s->n));
    if (at < cap && bny_budget_serves(plan->schedule) && isfinite(loss.max))
        at += (size_t)bny_snprintf(text + at, cap - at, ", nmse %.3g, max %.3g", loss.nmse,
                                   loss.max);
    if (at < cap && plan->predicted_s > 0)
        bny_snprintf(text + at, cap - at, ", cpu %.2g",
                     fmin(1, bny_cost_coding(s, &coded, schedule) / plan->predicted_s));
}
