/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear codecs: an allreduce as a list of stages (compress/linear.h), each an ordinary
 * allreduce of a short code.
 *
 * The stages are children (op/child.h): their parent waits for one after the other. */
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/fpmode.h"
#include "collectives/op/child.h"
#include "collectives/op/trace.h"
#include "collectives/plan/cost.h"
#include "collectives/xfer/xfer.h"
#include "compress/linear.h"

struct bny_stages {
    struct bny_child child;
    struct bny_linear l;
    int stage, nstages; /* stage: that runs */
    int told; /* an error was reported: nothing is tried again until the communicator has failed
                 of it */
    char *work, *code, *nothing; /* nothing: zeros, for a rank that has no input */
    size_t work_cap, code_cap, nothing_cap;
    struct bny_tp *code_tp;          /* the device that knows code, or NULL */
    struct banyan_codec_state *lent; /* to this operation, while it is active; or NULL */
};

static struct bny_stages *stages_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_STAGES];
}

static const struct bny_linear_ops *ops_of(const struct bny_op *op)
{
    return op->plan.codec->ops->linear;
}

static int stages_init(struct bny_op *op)
{
    const struct bny_codec *codec = op->plan.codec;
    const struct bny_call *c = &op->call;
    struct bny_stages *s = stages_of(op);
    size_t work = ops_of(op)->work_bytes(codec, c->count, c->rows, c->cols);
    size_t code = ops_of(op)->code_bytes(codec, c->count, c->rows, c->cols);
    int rc = 0;

    if (!s)
        s = op->of_way[BNY_WAY_STAGES] = calloc(1, sizeof *s);
    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    s->nstages = ops_of(op)->nstages(codec);
    op->numbers = (uint32_t)s->nstages;
    if (!bny_call_takes_part(c, op->comm->rank))
        rc = bny_grow(&s->nothing, &s->nothing_cap, c->count * sizeof(float) + 64, 1, "zeros");
    if (rc == 0)
        rc = bny_grow(&s->work, &s->work_cap, work + 64, 1, "a codec's work");
    if (rc || code + 64 <= s->code_cap)
        return rc;
    bny_xfer_deregister(&s->code_tp, s->code);
    rc = bny_grow(&s->code, &s->code_cap, code + 64, 1, "a code");
    if (rc == 0) /* codes go out by reference */
        s->code_tp = bny_xfer_register(op->comm->world, s->code, s->code_cap);
    return rc;
}

static void stages_free(struct bny_op *op)
{
    struct bny_stages *s = stages_of(op);

    bny_child_free(&s->child, op);
    free(s->work);
    free(s->nothing);
    if (op->comm)
        bny_xfer_deregister(&s->code_tp, s->code);
    free(s->code);
    free(s);
    op->of_way[BNY_WAY_STAGES] = NULL;
}

static char *aligned(char *p)
{
    return (char *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

static int stages_start(struct bny_op *op)
{
    struct bny_stages *s = stages_of(op);
    const struct bny_call *c = &op->call;
    int takes_part = bny_call_takes_part(c, op->comm->rank),
        parts = bny_call_parts(c, op->comm->n), rc = 0;

    s->lent = NULL;
    if (c->state)
        rc = bny_state_begin(c->state, op->plan.codec, c->rows, c->cols, takes_part);
    if (rc)
        return rc;
    s->lent = c->state;
    s->stage = 0;
    s->child.runs = s->told = 0;
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

/* Starts the child of a stage that has something to sum. 0 or an error. */
static int start_child(struct bny_op *op, const struct bny_stage *stage)
{
    struct bny_stages *s = stages_of(op);
    struct bny_call call;
    int rc;

    memset(&call, 0, sizeof call);
    call.collective = BNY_ALLREDUCE;
    call.dtype = stage->dtype;
    call.sendbuf = call.recvbuf = s->l.code;
    call.count = stage->count;
    call.root = -1;
    call.tag = op->call.tag;
    call.chunk_bytes = op->call.chunk_bytes;
    if (op->call.has_set)
        bny_call_set_participants(&call, op->call.present, op->comm->n);
    bny_call_set_schedule(&call, op->call.schedule);
    rc = bny_redop_get(&call.redop, (banyan_op)stage->op, stage->dtype);
    if (rc == 0)
        rc = bny_child_init(&s->child, op, &call);
    if (rc == -BANYAN_ENOTSUP) { /* the schedule asked for does not serve so short a code */
        bny_call_set_schedule(&call, "auto");
        rc = bny_child_init(&s->child, op, &call);
    }
    if (rc)
        return rc;
    s->child.op.sig.codec_sched = (uint8_t)(s->child.op.plan.hash ^ op->plan.codec->hash);
    return bny_child_start(&s->child, op, 1 + (uint32_t)s->stage);
}

static int contribute(struct bny_op *op, struct bny_stage *stage)
{
    struct bny_stages *s = stages_of(op);
    BNY_FIXED_FP_MODE;

    return ops_of(op)->contribute(&s->l, s->stage, stage);
}

static int stages_finish(struct bny_op *op)
{
    BNY_FIXED_FP_MODE;

    return ops_of(op)->finish(&stages_of(op)->l);
}

/* The stage that runs is finished, or there is none yet: goes on. 0, 1: all are done, or an
 * error. */
static int next_stage(struct bny_op *op)
{
    struct bny_stages *s = stages_of(op);
    struct bny_stage stage = { .count = 0 };
    uint64_t t0;
    int rc;

    while (s->stage < s->nstages) {
        t0 = bny_trace_clock(op);
        rc = contribute(op, &stage);
        bny_trace(op, BNY_TRACE_STAGE, BNY_TRACE_ENCODE, (uint32_t)s->stage, t0,
                  stage.count * banyan_dtype_bytes(stage.dtype));
        if (rc)
            return rc;
        if (stage.count)
            return start_child(op, &stage);
        s->stage++;
    }
    t0 = bny_trace_clock(op);
    rc = stages_finish(op);
    bny_trace(op, BNY_TRACE_STAGE, BNY_TRACE_DECODE, (uint32_t)s->nstages, t0,
              op->call.count * sizeof(float));
    return rc ? rc : 1;
}

static int stages_advance(struct bny_op *op)
{
    struct bny_stages *s = stages_of(op);
    int rc = 0, moved = 0;

    while (rc == 0 && !s->told && bny_op_is_active(op) && !bny_comm_has_failed(op->comm)) {
        if (s->child.runs) {
            if (bny_child_is_busy(&s->child))
                return moved;
            s->child.runs = 0;
            if (s->child.op.result) /* the communicator has failed: it ends us too */
                return moved;
            s->stage++;
        }
        moved = 1;
        rc = next_stage(op);
    }
    if (rc == 1)
        bny_op_complete(op, 0);
    if (rc < 0 && !bny_comm_has_failed(op->comm))
        bny_report(op->comm->world, op->comm, BNY_CAUSE_RESET, (enum banyan_error) - rc,
                   op->comm->world->rank, "rank %d: codec %s: %s", op->comm->rank,
                   op->plan.codec->spec, banyan_last_error());
    s->told |= rc < 0;
    return moved;
}

static void stages_drop(struct bny_op *op, int result)
{
    struct bny_stages *s = stages_of(op);

    if (s->lent)
        bny_state_end(s->lent);
    s->lent = NULL;
}

/* After a failure a stage may still be closing: it completes us when it has. */
static int close_stage(struct bny_op *op)
{
    return bny_child_is_busy(&stages_of(op)->child) ? BNY_AGAIN : 0;
}

static unsigned stages_pending(const struct bny_op *op, int r)
{
    const struct bny_stages *s = stages_of(op);

    return bny_child_is_busy(&s->child) && bny_op_waits_on(&s->child.op, r) ? BNY_PENDING_WAITS
                                                                            : 0;
}

/* ---- choice ---- */

static const char *cannot(const struct bny_scope *s, const struct bny_call *call)
{
    return call->codec && call->codec->ops->linear ? NULL : "it serves linear codecs alone";
}

/* The stages have plans of their own. */
static int plan_stages(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan)
{
    snprintf(plan->schedule, sizeof plan->schedule, "stages");
    plan->predicted_s = bny_cost_coded(s, call, BNY_CODED_CHUNK);
    return 0;
}

const struct bny_way bny_way_stages = {
    .traits = BNY_WAY_SOLE,
    .cannot = cannot,
    .plan = plan_stages,
    .init = stages_init,
    .start = stages_start,
    .advance = stages_advance,
    .drop = stages_drop,
    .close = close_stage,
    .pending = stages_pending,
    .free = stages_free,
};
