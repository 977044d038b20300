/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls with a codec, where nobody has said what the links carry: whether the codec pays is
 * decided when the call runs, from what earlier calls measured, and all ranks decide alike.
 *
 * A call is a list of an exchange (ask) and the operation itself (run), raw or with the codec.
 * Of hosts of several ranks it is a hierarchical sum (hierarchical.c), whose rail is what runs
 * raw or with the codec.
 *
 * Each rank measures what its port carries while raw data runs, and how well the prediction of
 * coded data holds: in periods from the beginning of a call until none is under way, as calls
 * that overlap share the port. The exchange is the maximum over the ranks of both, as the rank
 * that began last waited for none. Ranks number these calls as they begin: a few of them ask,
 * the first ones and later every 32nd. The others take the answer of the latest call before
 * them that asked, and wait for it if it is not there yet. The first call goes by what the
 * devices say that they carry. Where they say nothing, and until something is measured, data
 * runs raw. */
#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/fpmode.h"
#include "base/log.h"
#include "collectives/plan/budget_choice.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/program_cache.h"
#include "collectives/sequence/sequence.h"

#define ASK_EVERY   32u
#define BYTES_LEAST (32u << 10) /* of a call that is weighed, and of a measurement */
#define BYTES_LONG  (1u << 20)
#define OFF         2.0 /* predictions that are wrong by more are corrected */

/* ---- choice ---- */

int bny_weighed_can(const struct bny_scope *s, const struct bny_call *call)
{
    const struct bny_collective_row *row = bny_call_row(call);

    return row->has_use && !call->codec->ops->linear && !call->vector && !call->has_set &&
           !call->first && !call->via_allreduce && !call->is_child && s->link_Bps <= 0 &&
           !s->shares_memory && bny_call_is_open(call) && bny_schedule_is_auto(s->schedule) &&
           bny_call_bytes(s, call) >= BYTES_LEAST && bny_topology_beta(s) <= 0 &&
           bny_topology_applies(s) && bny_topology_nhosts(s) > 1;
}

/* ---- measuring ---- */

static double best(const struct bny_samples *s)
{
    double most = 0;

    for (int i = 0; i < BNY_SAMPLES; i++)
        most = fmax(most, s->of[i]);
    return most;
}

static void add(struct bny_samples *s, double x)
{
    s->of[s->n++ % BNY_SAMPLES] = x;
}

/* What is known of a port. The first period finds cold caches and connections that have just
 * been made. What coded data needed of the port is the least that it carries. */
static double rate_of(const struct bny_port *p, int lengthy)
{
    if (p->rates[lengthy].n < 2)
        return lengthy ? 0 : rate_of(p, 1);
    return fmax(best(&p->rates[lengthy]), best(&p->coded[lengthy]));
}

/* Bytes that this rank has given to its networks. */
static uint64_t sent(const struct bny_world *w)
{
    uint64_t sum = 0;

    for (int i = 0; i < w->ntps; i++)
        if (!w->tps[i]->ops->shared)
            sum += bny_counter_read(&w->tps[i]->wire_bytes);
    return sum;
}

void bny_weighed_begin(struct bny_op *op)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;
    struct bny_port *p = &op->comm->world->port;

    if (!op->plan.weighs || w->runs)
        return;
    w->runs = 1;
    if (!p->active++) {
        p->begun_ns = bny_now_ns();
        p->sent = sent(op->comm->world);
        p->kinds = 0;
        p->predicted_s = 0;
    }
    p->kinds |= w->coded ? 2 : 1;
    p->predicted_s += w->coded ? w->predicted_s : 0;
}

/* Short periods measure delays as well. All that the rank sent meanwhile counts, and that of as
 * many ranks as share the port. */
static void period_ends(struct bny_port *p, const struct banyan_comm *c)
{
    int nhosts = bny_topology_nhosts(&c->scope);
    double seconds = (double)(bny_now_ns() - p->begun_ns) * 1e-9,
           bytes = (double)(sent(c->world) - p->sent) * ((c->n + nhosts - 1) / nhosts);
    int lengthy = bytes >= BYTES_LONG / 4.0; /* of int8 */

    if (seconds <= 0)
        return;
    if (p->kinds == 2) {
        add(&p->prompt[lengthy], p->predicted_s / seconds);
        add(&p->coded[lengthy], bytes / seconds);
    } else if (p->kinds == 1 && bytes >= BYTES_LEAST) {
        add(&p->rates[lengthy], bytes / seconds);
        p->coded[lengthy] = (struct bny_samples){ .n = 0 }; /* older */
    }
}

void bny_weighed_done(struct bny_op *op, int result)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;
    struct bny_port *p = &op->comm->world->port;

    if (!w->runs)
        return;
    w->runs = 0;
    p->kinds |= result ? 4 : 0;
    if (!--p->active)
        period_ends(p, op->comm);
}

/* ---- asking ---- */

static int is_asking(uint32_t k)
{
    return !(k & (k - 1)) || k % ASK_EVERY == 0;
}

static int begin_state(struct bny_sequence *s, const struct bny_codec *codec)
{
    int rc;

    if (!s->lent)
        return 0;
    s->lent->busy = 0;
    rc = bny_state_begin(s->lent, codec, 1, (int64_t)s->lent->count, 1);
    s->has_begun = rc == 0;
    return rc;
}

int bny_weighed_start(struct bny_op *op)
{
    struct bny_sequence *s = bny_sequence_of(op);
    struct bny_weighing *all = &op->comm->weighing;
    const struct bny_codec *codec = op->plan.codec;
    struct bny_weighed *w = &s->weighed;
    int rc;

    s->lent = codec && codec->ops->family != BNY_CODEC_EXACT ? op->call.state : NULL;
    s->has_begun = 0;
    w->is_weighed = w->coded = 0;
    w->runs = 0;
    if (op->plan.weighs) {
        w->asks = (uint8_t)is_asking(all->begun++);
        all->asks += w->asks;
        w->nth = all->asks;
        w->has_answer = all->known == w->nth;
        w->answer = all->answer;
        if (s->lent)
            s->lent->busy = 1;
        return 0;
    }
    w->asks = 0;
    rc = begin_state(s, codec);
    if (rc)
        s->lent = NULL;
    return rc;
}

void bny_weighed_end(struct bny_op *op)
{
    struct bny_sequence *s = bny_sequence_of(op);

    bny_weighed_done(op, -BANYAN_EABORTED); /* where it has not been done */
    for (int i = 0; i < s->n; i++)
        if (bny_child_is_busy(&s->children[i]))
            return;
    if (s->has_begun)
        bny_state_end(s->lent);
    else if (s->lent)
        s->lent->busy = 0;
    s->has_begun = 0;
    s->lent = NULL;
}

int bny_weighed_ask(struct bny_op *op, struct bny_call *call)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;
    const struct bny_port *p = &op->comm->world->port;

    if (!w->asks)
        return BNY_SEQUENCE_NOTHING;
    for (int i = 0; i < 2; i++) {
        w->answer.Bps[i] = rate_of(p, i);
        w->answer.promptness[i] = best(&p->prompt[i]);
    }
    call->dtype = BANYAN_F64;
    call->count = sizeof w->answer / sizeof(double);
    call->sendbuf = call->recvbuf = &w->answer;
    bny_call_set_schedule(call, "static");
    return bny_redop_get(&call->redop, BANYAN_MAX, call->dtype) == 0 ? BNY_SEQUENCE_CHILD
                                                                     : -BANYAN_EINVAL;
}

/* What was measured of the prediction was so on another network. */
static void compare(struct banyan_comm *c, int lengthy, const struct bny_measured *before,
                    const struct bny_measured *now)
{
    double old =
        before->Bps[lengthy] > 0 ? before->Bps[lengthy] : 1 / bny_cost_model_of(&c->scope).beta;

    if (now->Bps[lengthy] <= 0 || fabs(log2(now->Bps[lengthy] / old)) <= 1)
        return;
    c->world->port.prompt[lengthy] = (struct bny_samples){ .n = 0 };
    if (c->rank == 0)
        bny_info("a port carries %.3g Gbit/s in %s calls, as measured; %.3g were assumed",
                 now->Bps[lengthy] * 8e-9, lengthy ? "long" : "short", old * 8e-9);
}

/* The answer is there: for all calls that wait for it, and those that follow. */
static void settle(struct bny_op *op)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;
    struct bny_weighing *all = &op->comm->weighing;

    if ((int32_t)(w->nth - all->known) > 0) {
        for (int i = 0; i < 2; i++)
            compare(op->comm, i, &all->answer, &w->answer);
        all->known = w->nth;
        all->answer = w->answer;
    }
    for (struct bny_op *o = op->comm->active_first; o; o = o->next) {
        struct bny_weighed *other = o->way == op->way ? &bny_sequence_of(o)->weighed : NULL;

        if (!other || !o->plan.weighs || other->nth != w->nth || other->has_answer)
            continue;
        other->answer = w->answer;
        other->has_answer = 1;
        bny_op_mark_runnable(o);
    }
}

/* ---- the verdict ---- */

/* Of a part, raw or with a codec. */
static double seconds_of(struct bny_scope *s, const struct bny_call *part)
{
    struct bny_call call = *part;

    call.is_child = call.codec ? BNY_CHILD_CODED : BNY_CHILD;
    return bny_plan_seconds(s, &call);
}

/* Predictions of the part, at this rate; the codec for it, NULL: none keeps its budget. */
static const struct bny_codec *predict(struct bny_op *op, const struct bny_call *part,
                                       double Bps, double *raw, double *coded)
{
    const struct bny_codec *codec = op->plan.codec;
    struct bny_call call = *part;
    struct bny_scope s;

    *raw = *coded = INFINITY;
    if (!bny_plans_of(&op->comm->scope))
        return codec;
    s = op->comm->scope;
    s.link_Bps = Bps;
    call.codec = NULL;
    *raw = seconds_of(&s, &call);
    call.codec = codec;
    if (codec->budget)
        codec = call.codec = bny_budget_choose(&s, &call, seconds_of);
    if (codec)
        *coded = seconds_of(&s, &call);
    return codec;
}

static void refuse(struct bny_op *op, double coded, double raw, double Bps)
{
    char why[160];

    bny_codec_figures(why, sizeof why, coded, raw, Bps);
    bny_codec_unused(op->comm, &op->call, why, BNY_CODEC_INSISTS);
}

static int pays(struct bny_op *op, const struct bny_call *part)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;
    int lengthy = bny_call_bytes(&op->comm->scope, &op->call) >= BYTES_LONG;
    double Bps = w->answer.Bps[lengthy], promptness = w->answer.promptness[lengthy], raw, coded;
    BNY_FIXED_FP_MODE;

    if (Bps <= 0 && w->nth == 1) /* before the first measurement the devices' word counts */
        Bps = op->comm->scope.device_Bps;
    if (Bps <= 0)
        return 0; /* to measure what raw data takes */
    w->codec = predict(op, part, Bps, &raw, &coded);
    w->predicted_s = coded;
    if (!w->codec) { /* a call with force=1 does not come here */
        bny_budget_unkept(op->comm, &op->call);
        return 0;
    }
    if (promptness > 0 && (promptness < 1 / OFF || promptness > OFF))
        coded /= promptness;
    if (coded < BNY_CODEC_GAIN * raw)
        return 1;
    refuse(op, coded, raw, Bps);
    return 0;
}

int bny_weighed_codec(struct bny_op *op, struct bny_call *part)
{
    struct bny_sequence *s = bny_sequence_of(op);
    struct bny_weighed *w = &s->weighed;
    int rc = 0;

    if (op->plan.weighs && !w->is_weighed) {
        if (w->asks && !w->has_answer && !bny_child_is_busy(&s->children[s->asked]))
            settle(op);
        if (!w->has_answer)
            return BNY_AGAIN;
        w->is_weighed = 1;
        w->coded = (uint8_t)pays(op, part);
        rc = w->coded ? begin_state(s, w->codec) : 0;
    }
    if (op->plan.weighs)
        part->codec = w->coded ? w->codec : NULL;
    if (!part->codec)
        part->is_child = BNY_CHILD;
    part->state = part->codec ? s->lent : NULL;
    return rc;
}

/* ---- the list ---- */

enum { ASK, RUN, CHILDREN };

static int weighed_init(struct bny_op *op)
{
    return CHILDREN;
}

static int weighed_next(struct bny_op *op, int i, struct bny_call *call)
{
    int rc;

    if (i == ASK) {
        bny_sequence_of(op)->asked = ASK;
        return bny_weighed_ask(op, call);
    }
    *call = op->call;
    call->sendbuf = op->in;
    call->recvbuf = op->out;
    call->spread = NULL;
    call->contributors = NULL;
    call->codec = op->plan.codec;
    call->is_child = BNY_CHILD_CODED;
    bny_call_set_schedule(call, "static");
    rc = bny_weighed_codec(op, call);
    if (rc)
        return rc;
    bny_weighed_begin(op);
    return BNY_SEQUENCE_CHILD;
}

static int weighed_finish(struct bny_op *op)
{
    bny_weighed_done(op, 0);
    return 0;
}

const struct bny_list bny_list_weighed = {
    .name = "weighed",
    .init = weighed_init,
    .start = bny_weighed_start,
    .next = weighed_next,
    .finish = weighed_finish,
    .end = bny_weighed_end,
};
