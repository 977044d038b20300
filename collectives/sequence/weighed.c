/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls with a codec, where nobody has said what the links carry: whether the codec pays is
 * decided when the call runs, from what earlier calls measured, and all ranks decide alike.
 *
 * A call is a list of an exchange (ask) and the operation itself (run), raw or with the codec.
 * Of hosts of several ranks it is a hierarchical sum (hierarchical.c), whose rail is what runs
 * raw or with the codec.
 *
 * Each rank measures what its port carries, and how fast calls are that run raw or with a codec
 * (weighing.c). The exchange is the maximum over the ranks of all this, as the rank that began
 * last waited for none. Ranks number calls of the same codec as they begin: a few of them ask,
 * the first ones and later every 32nd. The others take the answer of the latest call before
 * them that asked, and wait for it if it is not there yet. Until a codec has run twice it is
 * judged by the model, at the rate that was measured; from then on by what it took. Some calls
 * run another way than the verdict says, as a trial, so that all ways are known as they are
 * now. The first calls of a size and every 32nd may be trials. The longer the other way takes,
 * the fewer of them are.
 *
 * Where raw data waits for the wire, and the codec for the cores, a part of a long sum runs
 * with the codec beside the rest as raw data: both end at the same time. Once both were
 * measured, so many sixteenths are tried if that promises a gain, and kept if it was one. The
 * first call goes by what the devices say that they carry. Where they say nothing, and until
 * something is measured, data runs raw. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fpmode.h"
#include "base/log.h"
#include "collectives/plan/budget_choice.h"
#include "collectives/plan/cost.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/tuning.h"
#include "collectives/sequence/sequence.h"
#include "compress/linear.h"

#define ASK_EVERY   32u
#define MIXED_ALIKE 2 /* parts: mixtures that differ by so many take about as long */

/* ---- choice ---- */

int bny_weighed_can(const struct bny_scope *s, const struct bny_call *call)
{
    const struct bny_collective_row *row = bny_call_row(call);

    /* Raw sums of hosts of more than two ranks may be hierarchical, which is no child. */
    return row->has_use && (!call->codec->ops->linear || s->near <= 2) && !call->vector &&
           !call->has_set && !call->first && !call->via_allreduce && !call->is_child &&
           s->link_Bps <= 0 && !s->shares_memory && bny_call_is_open(call) &&
           bny_schedule_is_auto(s->schedule) && bny_call_bytes(s, call) >= BNY_WEIGHED_LEAST &&
           bny_topology_beta(s) <= 0 && bny_topology_applies(s) && bny_topology_nhosts(s) > 1;
}

/* ---- measuring ---- */

void bny_weighed_begin(struct bny_op *op)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;

    if (!op->plan.weighs || w->runs)
        return;
    w->runs = 1;
    bny_port_begin(op->comm);
}

void bny_weighed_done(struct bny_op *op, int result)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;

    if (w->runs)
        bny_port_done(op->comm, result);
    w->runs = 0;
}

/* ---- asking ---- */

static int is_asking(uint32_t k)
{
    return !(k & (k - 1)) || k % ASK_EVERY == 0;
}

static uint32_t turn_of(struct bny_weighing *all, int size)
{
    return is_asking(all->sized[size].begun++) ? ++all->sized[size].turns : 0;
}

static int begin_state(struct bny_op *op, const struct bny_codec *codec)
{
    struct bny_sequence *s = bny_sequence_of(op);
    int is_matrix = codec && codec->ops->linear != NULL, rc;

    if (!s->lent)
        return 0;
    s->lent->busy = 0;
    rc = bny_state_begin(s->lent, codec, is_matrix ? op->call.rows : 1,
                         is_matrix ? op->call.cols : (int64_t)s->lent->count, 1);
    s->has_begun = rc == 0;
    return rc;
}

int bny_weighed_start(struct bny_op *op)
{
    struct bny_sequence *s = bny_sequence_of(op);
    const struct bny_codec *codec = op->plan.codec;
    struct bny_weighed *w = &s->weighed;
    struct bny_weighing *all;
    int rc;

    s->lent = codec && codec->ops->family != BNY_CODEC_EXACT ? op->call.state : NULL;
    s->has_begun = 0;
    w->is_weighed = w->parts = w->is_trial = 0;
    w->runs = 0;
    w->of = NULL;
    if (op->plan.weighs) {
        w->of = all = bny_weighing_of(op->comm, &op->call);
        if (!all)
            return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
        all->uses++;
        w->asks = (uint8_t)is_asking(all->begun++);
        all->asks += w->asks;
        w->nth = all->asks;
        w->turn = turn_of(all, bny_weighing_size(bny_call_bytes(&op->comm->scope, &op->call)));
        w->has_answer = all->known == w->nth;
        if (w->has_answer)
            bny_weighing_copy(all, &w->answer, &all->answer);
        if (s->lent)
            s->lent->busy = 1;
        return 0;
    }
    w->asks = 0;
    rc = begin_state(op, codec);
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
    if (s->weighed.of)
        bny_weighing_release(op->comm, s->weighed.of);
    s->weighed.of = NULL;
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

    if (!w->asks)
        return BNY_SEQUENCE_NOTHING;
    bny_weighing_ask(w->of, &op->comm->world->port, &w->answer);
    call->dtype = BANYAN_F32;
    call->count = bny_weighing_numbers(w->of);
    call->sendbuf = call->recvbuf = &w->answer;
    bny_call_set_schedule(call, "static");
    return bny_redop_get(&call->redop, BANYAN_MAX, call->dtype) == 0 ? BNY_SEQUENCE_CHILD
                                                                     : -BANYAN_EINVAL;
}

/* Tells of a port that turned out to be another than was assumed. */
static void compare(struct banyan_comm *c, int lengthy, const struct bny_measured *before,
                    const struct bny_measured *now)
{
    double old =
        before->Bps[lengthy] > 0 ? before->Bps[lengthy] : 1 / bny_cost_model_of(&c->scope).beta;

    if (c->rank == 0 && now->Bps[lengthy] > 0 && fabs(log2(now->Bps[lengthy] / old)) > 1)
        bny_info("a port carries %.3g Gbit/s in %s calls, as measured; %.3g were assumed",
                 now->Bps[lengthy] * 8e-9, lengthy ? "long" : "short", old * 8e-9);
}

/* The answer is there: for all calls that wait for it, and those that follow. */
static void settle(struct bny_op *op)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;
    struct bny_weighing *all = w->of;

    if ((int32_t)(w->nth - all->known) > 0) {
        for (int i = 0; i < 2; i++)
            compare(op->comm, i, &all->answer, &w->answer);
        all->known = w->nth;
        bny_weighing_copy(all, &all->answer, &w->answer);
    }
    for (struct bny_op *o = op->comm->active_first; o; o = o->next) {
        struct bny_weighed *other = o->way == op->way ? &bny_sequence_of(o)->weighed : NULL;

        if (!other || !o->plan.weighs || other->of != all || other->nth != w->nth ||
            other->has_answer)
            continue;
        bny_weighing_copy(all, &other->answer, &w->answer);
        other->has_answer = 1;
        bny_op_mark_runnable(o);
    }
}

/* ---- the verdict ---- */

/* Of a part, raw or with a codec, by the model. */
static double seconds_of(struct bny_scope *s, const struct bny_call *part,
                         const struct bny_codec *codec)
{
    struct bny_call call = *part;

    call.codec = codec;
    call.is_child = codec ? BNY_CHILD_CODED : BNY_CHILD;
    return bny_plan_seconds(s, &call);
}

struct prices { /* of codecs */
    const struct bny_weighing *of;
    const struct bny_measured *known;
    double bytes; /* of the call */
    double scale; /* what calls take that were measured, over what the model has for them */
};

static double price(struct bny_scope *s, const struct bny_call *part, void *prices)
{
    const struct prices *p = prices;
    double t = bny_measured_seconds(p->known, bny_weighing_kind(p->of, part->codec), p->bytes);

    return t > 0 ? t : p->scale * seconds_of(s, part, part->codec);
}

/* The scale of the fastest codec that was tried, else of raw data; 1: the model has nothing for
 * it. */
static double scale_of(struct bny_scope *s, const struct bny_call *part, const struct prices *p,
                       double raw_s)
{
    const struct bny_budget *b = part->codec->budget;
    double least = INFINITY, scale = raw_s / seconds_of(s, part, NULL);

    for (int i = 0; b && i < b->npairs; i++) {
        double t = bny_measured_seconds(p->known, 1 + i, p->bytes);

        if (t > 0 && t < least) {
            least = t;
            scale = t / seconds_of(s, part, b->pairs[i]);
        }
    }
    return scale > 0 && isfinite(scale) ? scale : 1;
}

static int is_mixed(unsigned parts)
{
    return parts > 0 && parts < BNY_MIXED_PARTS;
}

static double chosen_s(const struct bny_judgement *v)
{
    return is_mixed(v->parts) ? v->mixed_s : v->parts ? v->coded_s : v->raw_s;
}

/* What trials take: the other ways, by turns. */
static double others_s(const struct bny_judgement *v)
{
    double other = v->parts ? v->raw_s : v->coded_s;

    if (is_mixed(v->parts))
        return (v->raw_s + v->coded_s) / 2;
    return v->mixed ? (other + v->mixed_s) / 2 : other;
}

/* How rarely a call that takes so long runs another way: tuning.h. */
static uint32_t turns_between(const struct bny_judgement *v)
{
    double more = others_s(v) / chosen_s(v) - 1;

    return (uint32_t)fmin(fmax(1, ceil(more / (BNY_CODEC_CLOSE - 1))),
                          v->parts ? BNY_CODEC_STALE : 1 << 20);
}

/* Residuals of the raw part wait, so codecs that live by them do not mix. */
static int may_mix(const struct bny_scope *s, const struct bny_call *call)
{
    return call->collective == BNY_ALLREDUCE && call->among == BNY_AMONG_ALL &&
           call->codec->ops->family == BNY_CODEC_BLOCK && call->dtype == BANYAN_F32 &&
           bny_call_bytes(s, call) / s->n >= BNY_MIXED_LEAST;
}

/* x of the vector has the codec. Its wire is busy for raw_s (1 - x (1 - share)), its cores for
 * x coded_s: as long where x = raw_s / (coded_s + (1 - share) raw_s). */
static void mix(const struct bny_scope *s, const struct bny_call *call, const struct prices *p,
                struct bny_judgement *v)
{
    double less = 1 - bny_cost_share(s, call), x = v->raw_s / (v->coded_s + less * v->raw_s);
    double parts = rint(x * BNY_MIXED_PARTS), known;

    if (!may_mix(s, call) || !(parts >= 1 && parts < BNY_MIXED_PARTS))
        return;
    x = parts / BNY_MIXED_PARTS;
    known = bny_measured_seconds(p->known, bny_weighing_mixed(p->of), p->bytes);
    v->mixed = (uint8_t)parts;
    v->mixed_s = known > 0 ? known : fmax(x * v->coded_s, (1 - x * less) * v->raw_s);
    if (v->mixed_s <
        (known > 0 ? BNY_CODEC_TRIED : BNY_MIXED_GAIN) * fmin(v->raw_s, v->coded_s))
        v->parts = v->mixed;
}

static void judge(struct bny_scope *s, const struct bny_call *part, struct prices *p,
                  struct bny_judgement *v)
{
    double raw_s = bny_measured_seconds(p->known, 0, p->bytes);
    struct bny_measured nothing = { .Bps = { 0 } };
    struct bny_call chosen = *part;
    int is_tried;

    p->scale = 1;
    if (raw_s > 0) {
        p->scale = scale_of(s, part, p, raw_s);
        v->raw_s = raw_s;
    } else {
        p->known = &nothing;
        v->raw_s = seconds_of(s, part, NULL);
    }
    v->codec = part->codec->budget ? bny_budget_choose(s, part, price, p) : part->codec;
    if (!v->codec)
        return;
    v->kind = bny_weighing_kind(p->of, v->codec);
    is_tried = bny_measured_seconds(p->known, v->kind, p->bytes) > 0;
    chosen.codec = v->codec;
    v->coded_s = price(s, &chosen, p);
    if (v->coded_s < (is_tried ? BNY_CODEC_TRIED : BNY_CODEC_GAIN) * v->raw_s)
        v->parts = BNY_MIXED_PARTS;
    if (is_tried && raw_s > 0)
        mix(s, &chosen, p, v);
    v->every = is_tried ? turns_between(v) : 0;
}

/* Before the first measurement the devices' word counts. */
static double rate_for(const struct bny_scope *s, const struct bny_measured *m, uint32_t nth,
                       double bytes)
{
    double Bps = m->Bps[bytes >= BNY_WEIGHED_LONG];

    return Bps > 0 || nth > 1 ? Bps : s->device_Bps;
}

static void describe(const struct bny_judgement *v, char *buf, size_t cap)
{
    if (is_mixed(v->parts))
        snprintf(buf, cap, "%.60s on %d/%d, raw data beside", v->codec->spec, v->parts,
                 BNY_MIXED_PARTS);
    else
        snprintf(buf, cap, "%.90s", v->parts ? v->codec->spec : "raw data");
}

/* Of a call like this one, whose answer is that of the nth that asked. */
static const struct bny_judgement *verdict_of(struct bny_weighing *of,
                                              const struct bny_scope *scope,
                                              const struct bny_call *part, double bytes,
                                              const struct bny_measured *answer, uint32_t nth)
{
    struct bny_scope s = *scope;
    struct prices p = { of, answer, bytes, 1 };
    struct bny_judgement v = { .codec = of->codec,
                               .raw_s = INFINITY,
                               .coded_s = INFINITY,
                               .mixed_s = INFINITY,
                               .bytes = bytes };
    int size = bny_weighing_size(bytes);
    BNY_FIXED_FP_MODE;

    if (of->latest[size].nth == nth && bny_call_same(&of->latest[size].part, part))
        return &of->latest[size].verdict;
    s.link_Bps = v.Bps = rate_for(scope, answer, nth, bytes);
    if (v.Bps > 0) /* else to measure what raw data takes */
        judge(&s, part, &p, &v);
    of->latest[size].nth = nth;
    of->latest[size].part = *part;
    of->latest[size].verdict = v;
    describe(&v, of->latest[size].text, sizeof of->latest[size].text);
    return &of->latest[size].verdict;
}

static void refuse(struct bny_op *op, const struct bny_judgement *v)
{
    char why[160];

    bny_codec_figures(why, sizeof why, v->coded_s, v->raw_s, v->Bps);
    bny_codec_unused(op->comm, &op->call, why, BNY_CODEC_INSISTS);
}

/* Trials run the other ways by turns. */
static int another_way(const struct bny_judgement *v, uint32_t nth)
{
    int rest = v->parts == 0 ? BNY_MIXED_PARTS : 0;

    if (is_mixed(v->parts))
        return nth % 2 ? BNY_MIXED_PARTS : 0;
    return v->mixed && nth % 2 == 0 ? v->mixed : rest;
}

/* How many of BNY_MIXED_PARTS shall run with the codec? */
static int decide(struct bny_op *op, const struct bny_call *part)
{
    struct bny_weighed *w = &bny_sequence_of(op)->weighed;
    const struct bny_judgement *v;

    if (!bny_plans_of(&op->comm->scope))
        return 0;
    v = verdict_of(w->of, &op->comm->scope, part, bny_call_bytes(&op->comm->scope, &op->call),
                   &w->answer, w->nth);
    w->codec = v->codec;
    if (!v->codec) /* a call with force=1 does not come here */
        bny_budget_unkept(op->comm, &op->call);
    else if (v->Bps > 0 && !v->parts)
        refuse(op, v);
    w->is_trial = v->every && w->turn && w->turn % v->every == 0;
    return w->is_trial ? another_way(v, w->turn / v->every) : v->parts;
}

/* What this rank has measured of mixtures is of others where the parts, or the codec, were. */
static void note_mixture(struct bny_weighing *of, int size, const struct bny_weighed *w)
{
    if (!is_mixed(w->parts))
        return;
    if (of->sized[size].mixed_codec != w->codec ||
        abs((int)of->sized[size].mixed - w->parts) > MIXED_ALIKE) {
        of->speeds[bny_weighing_mixed(of)][size].n = 0;
        of->sized[size].mixed_codec = w->codec;
        of->sized[size].mixed = w->parts;
    }
}

static int kind_of(const struct bny_weighed *w)
{
    return is_mixed(w->parts) ? bny_weighing_mixed(w->of)
           : w->parts         ? bny_weighing_kind(w->of, w->codec)
                              : 0;
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
        w->parts = (uint8_t)decide(op, part);
        note_mixture(w->of, bny_weighing_size(bny_call_bytes(&op->comm->scope, &op->call)), w);
        bny_weighed_begin(op);
        bny_port_runs(op->comm, w->of, kind_of(w), bny_call_bytes(&op->comm->scope, &op->call),
                      w->is_trial);
        rc = w->parts ? begin_state(op, w->codec) : 0;
    }
    if (op->plan.weighs)
        part->codec = w->parts ? w->codec : NULL;
    if (!part->codec)
        part->is_child = BNY_CHILD;
    part->state = part->codec ? s->lent : NULL;
    return rc;
}

const char *bny_weighed_tell(struct banyan_comm *c, const struct bny_call *call,
                             struct bny_plan *plan)
{
    const struct bny_weighing *of = bny_weighing_find(c, call);
    double bytes = bny_call_bytes(&c->scope, call), seconds;
    const struct bny_judgement *v;

    if (!of || !of->latest[bny_weighing_size(bytes)].nth)
        return NULL;
    v = &of->latest[bny_weighing_size(bytes)].verdict;
    seconds = chosen_s(v);
    if (!isfinite(seconds))
        return NULL;
    plan->predicted_s = seconds * bytes / v->bytes;
    return of->latest[bny_weighing_size(bytes)].text;
}

/* ---- the list ---- */

enum { ASK, RUN, BESIDE, CHILDREN };

/* Linear codecs do not mix: RUN is the last child, and its own children follow it. */
static int weighed_init(struct bny_op *op)
{
    const struct bny_linear_ops *linear = op->plan.codec->ops->linear;

    bny_sequence_of(op)->inner = linear ? linear->nstages(op->plan.codec) : 0;
    return linear ? BESIDE : CHILDREN;
}

/* Elements that have the codec: those in front. */
static size_t cut_of(const struct bny_op *op)
{
    return op->call.count / BNY_MIXED_PARTS * bny_sequence_of(op)->weighed.parts & ~(size_t)63;
}

/* The rest of a mixture, as raw data. */
static int beside(const struct bny_op *op, struct bny_call *call)
{
    size_t cut = cut_of(op);

    if (!is_mixed(bny_sequence_of(op)->weighed.parts))
        return BNY_SEQUENCE_NOTHING;
    call->codec = NULL;
    call->state = NULL;
    call->is_child = BNY_CHILD;
    call->sendbuf = op->in + cut * op->esz;
    call->recvbuf = op->out + cut * op->esz;
    call->count -= cut;
    return BNY_SEQUENCE_CHILD;
}

static int weighed_next(struct bny_op *op, int i, struct bny_call *call)
{
    const struct bny_weighed *w = &bny_sequence_of(op)->weighed;
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
    if (i == BESIDE)
        return beside(op, call);
    rc = bny_weighed_codec(op, call);
    if (rc || !is_mixed(w->parts))
        return rc ? rc : BNY_SEQUENCE_CHILD;
    call->count = cut_of(op);
    return BNY_SEQUENCE_BESIDE;
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
