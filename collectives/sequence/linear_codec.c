/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear codecs: an allreduce as a list of stages (compress/linear.h), each an ordinary
 * allreduce of a short code. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/fpmode.h"
#include "collectives/op/trace.h"
#include "collectives/plan/cost.h"
#include "collectives/sequence/sequence.h"
#include "collectives/xfer/xfer.h"
#include "compress/linear.h"

struct bny_linear_state {
    struct bny_linear l;
    char *work, *code, *nothing; /* nothing: zeros, for a rank that has no input */
    size_t work_cap, code_cap, nothing_cap;
    struct bny_tp *code_tp;          /* the device that knows code, or NULL */
    struct banyan_codec_state *lent; /* to this operation, while it is active; or NULL */
    int has_begun;                   /* its step, by this operation and not by its parent */
};

static struct bny_linear_state *state_of(const struct bny_op *op)
{
    return bny_sequence_of(op)->linear;
}

static const struct bny_linear_ops *ops_of(const struct bny_op *op)
{
    return op->plan.codec->ops->linear;
}

static int linear_init(struct bny_op *op)
{
    const struct bny_codec *codec = op->plan.codec;
    const struct bny_call *c = &op->call;
    struct bny_linear_state *s = state_of(op);
    size_t work = ops_of(op)->work_bytes(codec, c->count, c->rows, c->cols);
    size_t code = ops_of(op)->code_bytes(codec, c->count, c->rows, c->cols);
    int rc = 0;

    if (!s)
        s = bny_sequence_of(op)->linear = calloc(1, sizeof *s);
    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    if (!bny_call_takes_part(c, op->comm->rank))
        rc = bny_grow(&s->nothing, &s->nothing_cap, c->count * sizeof(float) + 64, 1, "zeros");
    if (rc == 0)
        rc = bny_grow(&s->work, &s->work_cap, work + 64, 1, "a codec's work");
    if (rc == 0 && code + 64 > s->code_cap) {
        bny_xfer_deregister(&s->code_tp, s->code);
        rc = bny_grow(&s->code, &s->code_cap, code + 64, 1, "a code");
        if (rc == 0) /* codes go out by reference */
            s->code_tp = bny_xfer_register(op->comm->world, s->code, s->code_cap);
    }
    return rc ? rc : ops_of(op)->nstages(codec);
}

static void linear_free(struct bny_op *op)
{
    struct bny_linear_state *s = state_of(op);

    if (!s)
        return;
    free(s->work);
    free(s->nothing);
    if (op->comm)
        bny_xfer_deregister(&s->code_tp, s->code);
    free(s->code);
    free(s);
    bny_sequence_of(op)->linear = NULL;
}

static char *aligned(char *p)
{
    return (char *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

static int linear_start(struct bny_op *op)
{
    struct bny_linear_state *s = state_of(op);
    const struct bny_call *c = &op->call;
    int takes_part = bny_call_takes_part(c, op->comm->rank),
        parts = bny_call_parts(c, op->comm->n), rc = 0;

    s->lent = NULL;
    s->has_begun = c->state && !c->is_child;
    if (s->has_begun)
        rc = bny_state_begin(c->state, op->plan.codec, c->rows, c->cols, takes_part);
    if (rc)
        return rc;
    s->lent = c->state;
    s->l =
        (struct bny_linear){ .codec = op->plan.codec,
                             .cpu_flags = bny_cpu_flags(),
                             .rank = op->comm->rank,
                             .nranks = parts,
                             .step = bny_op_seq(op),
                             .src = (const float *)op->in,
                             .dst = (float *)op->out,
                             .n = c->count,
                             .rows = c->rows,
                             .cols = c->cols,
                             .scale = bny_call_averages(&op->call) ? bny_reciprocal(parts) : 1,
                             .ef_scale = 1,
                             .work = aligned(s->work),
                             .code = aligned(s->code) };
    if (s->lent) {
        s->l.seed = s->lent->seed;
        s->l.step = s->lent->step;
        s->l.ef = takes_part ? s->lent->ef : NULL;
        s->l.keep = s->lent->keep;
    }
    if (!takes_part) { /* it goes through the stages for what all ranks keep alike */
        memset(s->nothing, 0, c->count * sizeof(float));
        s->l.src = (const float *)(const void *)s->nothing;
    }
    return 0;
}

static int contribute(struct bny_op *op, int i, struct bny_stage *stage)
{
    BNY_FIXED_FP_MODE;

    return ops_of(op)->contribute(&state_of(op)->l, i, stage);
}

static int linear_next(struct bny_op *op, int i, struct bny_call *call)
{
    struct bny_stage stage = { .count = 0 };
    uint64_t t0 = bny_trace_clock(op);
    int rc = contribute(op, i, &stage);

    bny_trace(op, BNY_TRACE_STAGE, BNY_TRACE_ENCODE, (uint32_t)i, t0,
              stage.count * banyan_dtype_bytes(stage.dtype));
    if (rc || !stage.count)
        return rc ? rc : BNY_SEQUENCE_NOTHING;
    call->dtype = stage.dtype;
    call->sendbuf = call->recvbuf = state_of(op)->l.code;
    call->count = stage.count;
    if (op->call.has_set)
        bny_call_set_participants(call, op->call.present, op->comm->n);
    bny_call_set_schedule(call, op->call.schedule);
    rc = bny_redop_get(&call->redop, (banyan_op)stage.op, stage.dtype);
    return rc ? rc : BNY_SEQUENCE_CHILD;
}

static int decode(struct bny_op *op)
{
    BNY_FIXED_FP_MODE;

    return ops_of(op)->finish(&state_of(op)->l);
}

static int linear_finish(struct bny_op *op)
{
    uint64_t t0 = bny_trace_clock(op);
    int rc = decode(op);

    bny_trace(op, BNY_TRACE_STAGE, BNY_TRACE_DECODE, (uint32_t)bny_sequence_of(op)->n, t0,
              op->call.count * sizeof(float));
    return rc;
}

static void linear_end(struct bny_op *op)
{
    struct bny_linear_state *s = state_of(op);

    if (s->lent && s->has_begun)
        bny_state_end(s->lent);
    s->lent = NULL;
}

/* Of sums of equal parts of the code, and of the work before and behind them. */
static double linear_seconds(struct bny_scope *s, const struct bny_call *call)
{
    const struct bny_linear_ops *ops = call->codec->ops->linear;
    struct bny_codec_speed k = bny_codec_speed(call->codec, call->dtype);
    double bytes = (double)ops->code_bytes(call->codec, call->count, call->rows, call->cols),
           stages = ops->nstages(call->codec);
    struct bny_plan codes = { .hash = 0 };
    struct bny_call child;

    bny_sequence_call(call, &child);
    child.dtype = BANYAN_F32;
    child.count = (size_t)ceil(bytes / stages / sizeof(float));
    if (bny_redop_get(&child.redop, BANYAN_SUM, child.dtype) != 0 ||
        bny_plan_cheapest(s, &child, &codes) != 0)
        return INFINITY;
    return stages * codes.predicted_s +
           bny_cost_work(s, (double)call->count * (k.encode_s + k.decode_s));
}

const struct bny_list bny_list_linear = {
    .name = "sequence",
    .seconds = linear_seconds,
    .init = linear_init,
    .start = linear_start,
    .next = linear_next,
    .finish = linear_finish,
    .end = linear_end,
    .free = linear_free,
};
