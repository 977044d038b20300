/* SPDX-License-Identifier: BSD-3-Clause */
/* Which way serves a call, and by which schedule: the smallest predicted time among the rows of
 * the table of ways (way.h) that can serve it, unless the user names one.
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
#include "collectives/plan/budget_choice.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/tuning.h"
#include "collectives/plan/way.h"

#define WAY_NAME(id, symbol, name) [BNY_WAY_##id] = (name),
static const char *const names[BNY_WAY_COUNT] = { BNY_WAYS(WAY_NAME) };

static int serves(const struct bny_way *w, const struct bny_scope *s,
                  const struct bny_call *call)
{
    return (!call->among || (w->traits & BNY_WAY_AMONG)) && !w->cannot(s, call);
}

/* A way with such a trait that serves the call; BNY_WAY_COUNT: none. */
static enum bny_way_id with_trait(const struct bny_scope *s, const struct bny_call *call,
                                  unsigned trait)
{
    int i = 0;

    while (i < BNY_WAY_COUNT && !((s->ways[i]->traits & trait) && serves(s->ways[i], s, call)))
        i++;
    return (enum bny_way_id)i;
}

/* The way of a schedule, up to a colon. Names that are no way's are those of a family. */
static enum bny_way_id named(const struct bny_scope *s, const char *name)
{
    size_t len = strcspn(name, ":");
    int family = 0;

    for (int i = 0; i < BNY_WAY_COUNT; i++) {
        if (len && !strncmp(names[i], name, len) && !names[i][len])
            return (enum bny_way_id)i;
        if (s->ways[i]->traits & BNY_WAY_FAMILY)
            family = i;
    }
    return (enum bny_way_id)family;
}

static int select_complete(struct bny_scope *s, const struct bny_call *call,
                           struct bny_plan *plan)
{
    const struct bny_way *w = s->ways[plan->way];

    return w->plan ? w->plan(s, call, plan) : 0;
}

int bny_plan_cheapest(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    plan->schedule[0] = '\0';
    plan->predicted_s = INFINITY;
    for (int i = 0; i < BNY_WAY_COUNT; i++) {
        const struct bny_way *w = s->ways[i];
        char name[BNY_NAME_MAX] = "";
        double seconds;

        if (!w->seconds || (w->traits & BNY_WAY_BY_NAME) || !serves(w, s, call))
            continue;
        memcpy(name, names[i], strlen(names[i]) + 1);
        seconds = w->seconds(s, call, plan->predicted_s, name);
        if (seconds >= plan->predicted_s)
            continue;
        plan->way = (enum bny_way_id)i;
        plan->predicted_s = seconds;
        memcpy(plan->schedule, name, sizeof name);
    }
    if (plan->schedule[0])
        return 0;
    plan->predicted_s = 0;
    if (call->has_set)
        return bny_fail(BANYAN_ENOTSUP, "no schedule serves %s of %zu of %d ranks",
                        bny_call_name(call), call->nset, s->n);
    return bny_fail(BANYAN_ENOTSUP, "no schedule serves %s of %d ranks", bny_call_name(call),
                    s->n);
}

const char *bny_plan_cannot(const struct bny_scope *s, const struct bny_call *call)
{
    return s->ways[named(s, call->schedule)]->cannot(s, call);
}

double bny_plan_seconds(struct bny_scope *s, const struct bny_call *call)
{
    const struct bny_way *w = s->ways[named(s, call->schedule)];
    struct bny_plan cheapest = { .hash = 0 };
    char name[BNY_NAME_MAX];

    if (call->codec && call->codec->ops->linear) /* a schedule is that of its children */
        return bny_plan_cheapest(s, call, &cheapest) == 0 ? cheapest.predicted_s : INFINITY;
    return serves(w, s, call) ? w->seconds(s, call, INFINITY, name) : INFINITY;
}

static int choose_cheapest(struct bny_scope *s, const struct bny_call *call,
                           struct bny_plan *plan)
{
    int rc = bny_plan_cheapest(s, call, plan);

    return rc ? rc : select_complete(s, call, plan);
}

/* A schedule that the call, or the communicator's settings, asked for. 0, or -BANYAN_ENOTSUP:
 * it cannot serve the call, *why if there is more to say; or another error. */
static int choose_named(struct bny_scope *s, const struct bny_call *call, const char *name,
                        struct bny_plan *plan, const char **why)
{
    struct bny_plan p = *plan;
    int rc;

    p.way = named(s, name);
    *why = s->ways[p.way]->cannot(s, call);
    if (*why)
        return -BANYAN_ENOTSUP;
    snprintf(p.schedule, sizeof p.schedule, "%s", name);
    rc = select_complete(s, call, &p);
    if (rc)
        bny_plan_drop(&p);
    else
        *plan = p;
    return rc;
}

/* Of what ranks must agree on; also where the plan is the same whatever they asked for: chunks
 * that it has no use for, and deterministic sums. */
static uint8_t hash_plan(const struct bny_scope *scope, const struct bny_call *call,
                         const struct bny_plan *plan)
{
    size_t asked = call->chunk_bytes ? call->chunk_bytes : scope->chunk_bytes;
    uint32_t h = 2166136261u, is_exact;

    for (const char *s = plan->schedule; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    for (const char *s = plan->codec ? plan->codec->spec : ""; *s; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    h = (h ^ (uint32_t)plan->chunk_bytes) * 16777619u;
    h = (h ^ (uint32_t)(plan->late_s > 0 ? plan->arrival_chunk : 0)) * 16777619u;
    h = (h ^ (uint32_t)asked) * 16777619u;
    h = (h ^ (uint32_t)call->first) * 16777619u;
    for (int i = 0; call->has_set && i < 16; i++)
        h = (h ^ (uint8_t)(call->set_key[i / 8] >> i % 8 * 8)) * 16777619u;
    /* Sums that differ in this alone always differ here. */
    is_exact = call->deterministic && bny_call_row(call)->reduces;
    return (uint8_t)(h ^ (h >> 8) ^ (h >> 16) ^ (h >> 24) ^ is_exact << 7);
}

static void say(const struct bny_scope *s, const struct bny_call *call,
                const struct bny_plan *plan)
{
    bny_info(
        "plan: %s of %zu %s on %d ranks: schedule %s, chunk %zu, codec %s, predicted %.3g us",
        bny_call_name(call), call->count, banyan_dtype_name(call->dtype), s->n, plan->schedule,
        plan->chunk_bytes, plan->codec ? plan->codec->spec : "none", plan->predicted_s * 1e6);
}

static int select_choose(struct bny_scope *s, const struct bny_call *call,
                         struct bny_plan *plan);

/* Seconds with the codec: of the schedule that is asked for, where it takes codecs; else of the
 * cheapest. */
static double coded_seconds(struct bny_scope *s, const struct bny_call *call, void *unused)
{
    const char *asked = bny_call_is_open(call) ? s->schedule : call->schedule;
    const struct bny_way *w = s->ways[named(s, asked)];
    struct bny_plan cheapest = { .hash = 0 };
    char name[BNY_NAME_MAX];

    if (bny_schedule_is_auto(asked) || !serves(w, s, call))
        return bny_plan_cheapest(s, call, &cheapest) == 0 ? cheapest.predicted_s : INFINITY;
    return w->traits & BNY_WAY_FAMILY ? bny_cost_coded(s, call, asked, BNY_CODED_CHUNK)
                                      : w->seconds(s, call, INFINITY, name);
}

/* Is it decided when the call runs whether its codec pays? 1: plan is chosen, 0, or an error.
 */
static int weigh_codec(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    int i = 0, rc;

    while (i < BNY_WAY_COUNT && !(s->ways[i]->traits & BNY_WAY_WEIGHS))
        i++;
    if (i == BNY_WAY_COUNT)
        return 0;
    *plan = (struct bny_plan){ .way = (enum bny_way_id)i, .codec = call->codec, .weighs = 1 };
    rc = select_complete(s, call, plan);
    if (rc == 0)
        return 1;
    bny_plan_drop(plan);
    return rc == -BANYAN_ENOTSUP ? 0 : rc;
}

/* The call without its codec. */
static struct bny_call raw_of(const struct bny_scope *s, const struct bny_call *call)
{
    struct bny_call raw = *call;

    raw.codec = NULL;
    if (bny_call_is_open(call) && !strcmp(s->schedule, "auto") && !call->has_set)
        bny_call_set_schedule(&raw, "static"); /* its state is that of a call with a codec */
    return raw;
}

/* The codecs that a budget leaves are chosen here. 1: plan is chosen, or an error. */
static int spend_budget(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    struct bny_call chosen = raw_of(s, call);
    const struct bny_codec *codec = bny_budget_choose(s, call, coded_seconds, NULL);
    int rc;

    if (codec) {
        chosen = *call;
        chosen.codec = codec;
    }
    rc = select_choose(s, &chosen, plan);
    plan->breaks_budget = !codec;
    return rc ? rc : 1;
}

/* The call raw, when it is predicted to be faster so; the codec is a permission. 1: plan is
 * chosen, 0: go on with the codec, or an error. */
static int refuse_codec(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    int insists = call->codec->force || s->codec_force || call->is_child == BNY_CHILD_CODED,
        rc = insists ? 0 : weigh_codec(s, call, plan);
    struct bny_call raw;
    double coded;

    if (rc || call->codec->budget)
        return rc ? rc : spend_budget(s, call, plan);
    if (insists)
        return 0;
    coded = coded_seconds(s, call, NULL);
    raw = raw_of(s, call);
    rc = select_choose(s, &raw, plan);
    if (rc == -BANYAN_ENOTSUP)
        return 0;
    if (rc)
        return rc;
    if (s->shares_memory ||
        (plan->predicted_s > 0 && coded >= BNY_CODEC_GAIN * plan->predicted_s)) {
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

static int refuse_schedule(const struct bny_scope *s, const struct bny_call *call,
                           const char *why)
{
    if (why)
        return bny_fail(BANYAN_ENOTSUP, "schedule: %s cannot serve this %s: %s", call->schedule,
                        bny_call_name(call), why);
    return bny_fail(
        BANYAN_ENOTSUP, "schedule: \"%s\" cannot serve %s of %zu %s on %d ranks%s%s; use auto",
        call->schedule, bny_call_name(call), call->count, banyan_dtype_name(call->dtype), s->n,
        call->has_set ? " with a participation set" : "",
        call->codec ? " with this codec" : "");
}

/* By name: of the call, else of the communicator, else the cheapest. */
static int choose_schedule(struct bny_scope *s, const struct bny_call *call,
                           struct bny_plan *plan)
{
    const char *why;
    int rc = -BANYAN_ENOTSUP;

    if (!strcmp(call->schedule, "static")) /* whatever the communicator's is */
        return choose_cheapest(s, call, plan);
    if (!bny_call_is_open(call)) {
        rc = choose_named(s, call, call->schedule, plan, &why);
        if (rc == -BANYAN_ENOTSUP)
            return refuse_schedule(s, call, why);
    } else if (!bny_schedule_is_auto(s->schedule)) {
        rc = choose_named(s, call, s->schedule, plan, &why); /* where it does not fit, auto */
        plan->is_substitute = rc == -BANYAN_ENOTSUP && !call->is_child;
    }
    return rc == -BANYAN_ENOTSUP ? choose_cheapest(s, call, plan) : rc;
}

/* The plan, raw or with its codec. */
static int choose_way(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    enum bny_way_id late;
    const char *why;
    int rc;

    plan->codec = call->codec;
    if (call->codec && call->codec->ops->linear) /* a schedule is that of its children */
        rc = choose_cheapest(s, call, plan);
    else if (call->collective == BNY_SENDRECV)
        rc = choose_named(s, call, "sendrecv", plan, &why);
    else
        rc = choose_schedule(s, call, plan);
    late = rc ? BNY_WAY_COUNT : with_trait(s, call, BNY_WAY_LATE);
    if (late == BNY_WAY_COUNT || late == plan->way)
        return rc;
    return s->ways[late]->plan(s, call, plan); /* it may take the plan over */
}

/* plan: of zeros. */
static int select_choose(struct bny_scope *s, const struct bny_call *call,
                         struct bny_plan *plan)
{
    enum bny_way_id asked = named(s, call->schedule);
    int rc = 0;

    if (bny_call_is_local(s, call)) {
        plan->way = with_trait(s, call, BNY_WAY_LOCAL);
        rc = select_complete(s, call, plan);
    } else {
        if (call->collective != BNY_SENDRECV && (s->ways[asked]->traits & BNY_WAY_BY_NAME) &&
            !serves(s->ways[asked], s, call))
            return refuse_schedule(s, call, s->ways[asked]->cannot(s, call));
        rc = call->codec ? refuse_codec(s, call, plan) : 0;
        if (rc < 0 || (rc && !plan->weighs))
            return rc < 0 ? rc : 0;
        rc = rc ? 0 : choose_way(s, call, plan);
    }
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
    slot = bny_plan_slot(plans, &agreed);
    if (!slot->valid || !bny_call_same(&slot->call, &agreed)) {
        BNY_FIXED_FP_MODE; /* all ranks choose the same */

        slot->valid = 0;
        bny_plan_drop(&slot->plan);
        plans->starved = 0;
        rc = select_choose(s, &agreed, &slot->plan);
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
