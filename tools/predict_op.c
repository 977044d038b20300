/* SPDX-License-Identifier: BSD-3-Clause */
/* An operation of a predicted step: the plan that the library would choose for it, its messages
 * and its work as nodes of the simulator's job. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "compress/speed.h"
#include "tools/predict.h"

#define PIECES_MAX  8           /* of a message: finer ones change a prediction by little */
#define PIECE_BYTES (64u << 10) /* TCP's streams share a port about so finely */
#define GAMMA_S     0.05e-9     /* adding, a byte: collectives/plan/cost.c */

/* ---- what an element costs ---- */

struct rates { /* seconds and bytes an element */
    double encode_s, decode_s;
    double wire, result; /* a contribution, a result */
};

static const struct bny_profile_codec *measured(const struct bny_profile *p, const char *spec)
{
    for (size_t i = 0; i < p->ncodecs; i++) {
        const struct bny_codec *c;
        if (bny_codec_parse(&c, p->codecs[i].codec) == 0 && !strcmp(c->spec, spec))
            return &p->codecs[i];
    }
    return NULL;
}

/* As collectives/plan/cost.c has it: the sum of sparse parts is as many times denser. */
static struct rates rates_of(const struct predict_job *j, const struct bny_codec *codec,
                             enum banyan_dtype dtype)
{
    double esz = (double)banyan_dtype_bytes(dtype);
    struct rates r = { .wire = esz, .result = esz, .decode_s = GAMMA_S * esz };
    const struct bny_profile_codec *m;
    struct bny_codec_speed k;

    if (!codec)
        return r;
    k = bny_codec_speed(codec, dtype);
    m = measured(j->w->profile, codec->spec);
    r = (struct rates){ m ? m->encode_s : k.encode_s, m ? m->decode_s : k.decode_s,
                        m ? m->wire_bytes : k.wire_bytes, 0 };
    r.result = r.wire;
    if (codec->ops->family == BNY_CODEC_SPARSE && bny_codec_get(codec, "reselect") != 1)
        r.result = fmin(r.wire * j->sim.nranks, esz);
    return r;
}

/* ---- programs ---- */

struct build {
    struct predict_job *j;
    struct predict_op *op;
    struct bny_plan *plans; /* [n] */
    struct rates rates;
    int n, pieces, is_lossy;
    size_t *first;   /* [n] of rank's steps, in the lists */
    uint32_t *works; /* [steps x pieces] the work of a step */
    uint32_t *ways;  /* the same: of a send, its message */
    uint32_t *told;  /* [n x n] [to * n + from]: `to` has heard that `from` has started; 0: it
                        need not */
};

static double elements_of(const struct build *b, const struct bny_program *p,
                          const struct bny_step *s)
{
    double share = 0;

    for (uint32_t k = s->block; k < s->block + s->nblocks; k++)
        share += p->weight_num ? (double)p->weight_num[k] / p->weight_den[k] : 1.0 / p->nblocks;
    return share * (double)b->op->count;
}

static int is_send(const struct bny_step *s)
{
    return s->kind == BNY_SEND || s->kind == BNY_FORWARD;
}

static double step_bytes(const struct build *b, const struct bny_program *p,
                         const struct bny_step *s)
{
    return elements_of(b, p, s) * (s->kind == BNY_FORWARD ? b->rates.result : b->rates.wire);
}

/* Does the step receive what a FORWARD sent? Then it is a result, not a contribution. */
static double step_work(const struct build *b, const struct bny_program *p,
                        const struct bny_step *s)
{
    const struct predict_world *w = b->j->w;
    double n = elements_of(b, p, s);
    int coded = b->plans[0].codec != NULL;

    switch (s->kind) {
    case BNY_SEND: return w->message_s + w->byte_s * n * b->rates.wire + n * b->rates.encode_s;
    case BNY_FORWARD: return w->message_s + w->byte_s * n * b->rates.result;
    case BNY_RECV_ADD:
        return w->message_s + w->byte_s * n * b->rates.wire + n * b->rates.decode_s;
    case BNY_RECV_COPY:
        return w->message_s + w->byte_s * n * b->rates.result +
               (coded ? n * b->rates.decode_s : 0);
    default: return b->is_lossy ? n * (b->rates.encode_s + b->rates.decode_s) : 0;
    }
}

static size_t cell(const struct build *b, int rank, uint32_t step, int piece)
{
    return (b->first[rank] + step) * (size_t)b->pieces + (size_t)piece;
}

/* Older operations first, of one the earlier pieces. */
static uint32_t priority_of(const struct build *b, int piece)
{
    return b->j->bucket * PIECES_MAX + (uint32_t)piece;
}

static void add_nodes(struct build *b, int rank)
{
    const struct bny_program *p = b->plans[rank].program;

    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct bny_step *s = &p->steps[i];
        double work = step_work(b, p, s) / b->pieces, bytes = step_bytes(b, p, s) / b->pieces;

        for (int c = 0; c < b->pieces; c++) {
            enum predict_what what = is_send(s) ? PREDICT_ENCODE : PREDICT_DECODE;
            b->works[cell(b, rank, i, c)] = predict_work(b->j, rank, what, work);
            if (is_send(s))
                b->ways[cell(b, rank, i, c)] =
                    predict_message(b->j, rank, s->peer, bytes, priority_of(b, c));
        }
    }
}

/* The events for which another step waits: a send's memory is free, a received chunk was
 * applied. */
static uint32_t done_of(const struct build *b, int rank, uint32_t i, int c)
{
    const struct bny_step *s = &b->plans[rank].program->steps[i];

    return is_send(s) ? b->ways[cell(b, rank, i, c)] : b->works[cell(b, rank, i, c)];
}

/* The message that a receiving step takes: the peer's send of that number. */
static int sender_of(const struct build *b, int rank, const struct bny_step *s, uint32_t *step)
{
    const struct bny_program *p = b->plans[s->peer].program;

    for (uint32_t i = 0; i < p->nsteps; i++)
        if (is_send(&p->steps[i]) && p->steps[i].peer == rank &&
            p->steps[i].ordinal == s->ordinal) {
            *step = i;
            return 0;
        }
    return bny_fail(BANYAN_EINVAL,
                    "schedule %s: rank %d waits for a message that rank %d does "
                    "not send",
                    p->schedule, rank, s->peer);
}

/* What is encoded into the transport's memory waits until its peer has said that it has started
 * (collectives/engine/coded.c), where it may be longer than what goes eagerly. A rank that
 * computes hears of it between two tensors. */
static int must_hear(const struct build *b, const struct bny_program *p,
                     const struct bny_step *s)
{
    const struct bny_codec *codec = b->plans[0].codec;
    double esz = (double)banyan_dtype_bytes(b->op->dtype), n = elements_of(b, p, s);

    if (!codec || s->kind != BNY_SEND)
        return 0;
    n = fmin(n, (double)b->plans[0].chunk_bytes / esz);
    return codec->ops->bound(codec, (size_t)n, b->op->dtype) > PREDICT_EAGER_MAX;
}

static uint32_t predict_op_hear(struct build *b, int rank, int peer)
{
    uint32_t *told = &b->told[(size_t)rank * (size_t)b->n + (size_t)peer];

    if (!*told) {
        uint32_t way = predict_message(b->j, peer, rank, 64, priority_of(b, 0));

        *told = predict_work(b->j, rank, PREDICT_START, b->j->w->message_s);
        predict_after(b->j, way, b->op->start[peer]);
        predict_after(b->j, *told, way);
    }
    return *told;
}

static int add_waits(struct build *b, int rank)
{
    const struct bny_program *p = b->plans[rank].program;
    int rc = 0;

    for (uint32_t i = 0; i < p->nsteps && rc == 0; i++) {
        const struct bny_step *s = &p->steps[i];
        int hears = must_hear(b, p, s);
        uint32_t other = 0;

        if (s->kind == BNY_RECV_ADD || s->kind == BNY_RECV_COPY)
            rc = sender_of(b, rank, s, &other);
        for (int c = 0; c < b->pieces && rc == 0; c++) {
            uint32_t work = b->works[cell(b, rank, i, c)];

            predict_after(b->j, work, b->op->start[rank]);
            for (uint32_t d = s->dep; d < s->dep + s->ndeps; d++)
                predict_after(b->j, work, done_of(b, rank, p->deps[d], c));
            if (s->kind == BNY_FORWARD)
                predict_after(b->j, work, done_of(b, rank, s->from, c));
            if (hears)
                predict_after(b->j, work, predict_op_hear(b, rank, s->peer));
            if (is_send(s))
                predict_after(b->j, b->ways[cell(b, rank, i, c)], work);
            else if (s->kind != BNY_KEEP)
                predict_after(b->j, work, b->ways[cell(b, s->peer, other, c)]);
            predict_after(b->j, b->op->finish[rank], done_of(b, rank, i, c));
            if (s->kind == BNY_SEND && s->ndeps == 0 && !hears)
                predict_after(b->j, b->op->sent[rank], work);
        }
    }
    return rc;
}

static int pieces_of(const struct build *b)
{
    const struct bny_program *p = b->plans[0].program;
    double each = (double)b->plans[0].chunk_bytes, most = 0;

    for (uint32_t i = 0; i < p->nsteps; i++)
        most = fmax(most, elements_of(b, p, &p->steps[i]));
    most *= (double)banyan_dtype_bytes(b->op->dtype);
    each = each > 0 && each < PIECE_BYTES ? each : PIECE_BYTES;
    return most > PIECES_MAX * each ? PIECES_MAX : most > each ? (int)ceil(most / each) : 1;
}

static int add_program(struct build *b)
{
    size_t cells = 0;
    int rc = 0;

    b->pieces = pieces_of(b);
    b->first = calloc((size_t)b->n, sizeof *b->first);
    for (int r = 0; b->first && r < b->n; r++) {
        b->first[r] = cells;
        cells += b->plans[r].program->nsteps;
    }
    b->works = calloc(cells * (size_t)b->pieces + 1, sizeof *b->works);
    b->ways = calloc(cells * (size_t)b->pieces + 1, sizeof *b->ways);
    b->told = calloc((size_t)b->n * (size_t)b->n, sizeof *b->told);
    if (!b->first || !b->works || !b->ways || !b->told)
        rc = bny_fail(BANYAN_ENOMEM, "no memory to predict an operation of %d ranks", b->n);
    for (int r = 0; r < b->n && rc == 0; r++)
        add_nodes(b, r);
    for (int r = 0; r < b->n && rc == 0; r++)
        rc = add_waits(b, r);
    free(b->first);
    free(b->works);
    free(b->ways);
    free(b->told);
    return rc;
}

/* ---- other paths ---- */

/* Everybody's whole contribution in one message to everybody. */
static void add_messages(struct build *b)
{
    double bytes = (double)b->op->count * (double)banyan_dtype_bytes(b->op->dtype);
    const struct predict_world *w = b->j->w;

    for (int r = 0; r < b->n; r++)
        for (int k = 1; k < b->n; k++) {
            int to = (r + k) % b->n;
            uint32_t send =
                predict_work(b->j, r, PREDICT_ENCODE, w->message_s + w->byte_s * bytes);
            uint32_t way = predict_message(b->j, r, to, bytes, priority_of(b, 0));
            uint32_t add = predict_work(b->j, to, PREDICT_DECODE,
                                        w->message_s + (w->byte_s + GAMMA_S) * bytes);

            predict_after(b->j, send, b->op->start[r]);
            predict_after(b->j, way, send);
            predict_after(b->j, add, b->op->start[to]);
            predict_after(b->j, add, way);
            predict_after(b->j, b->op->sent[r], send);
            predict_after(b->j, b->op->finish[to], add);
        }
}

/* A linear codec: encoded, an ordinary allreduce of the codes, decoded. Its stages count as
 * one.
 */
static int add_linear(struct build *b, struct bny_scope *scopes)
{
    struct predict_op raw = { .count = (uint64_t)ceil((double)b->op->count * b->rates.wire / 4),
                              .dtype = BANYAN_F32,
                              .codec = "none",
                              .schedule = b->op->schedule,
                              .sent = b->op->sent };
    uint32_t *start = calloc(2 * (size_t)b->n, sizeof *start);
    int rc = start ? 0 : bny_fail(BANYAN_ENOMEM, "no memory to predict an operation");

    raw.start = start;
    raw.finish = start ? start + b->n : NULL;
    for (int r = 0; r < b->n && rc == 0; r++) {
        start[r] =
            predict_work(b->j, r, PREDICT_ENCODE, (double)b->op->count * b->rates.encode_s);
        raw.finish[r] = predict_join(b->j, r);
        predict_after(b->j, start[r], b->op->start[r]);
    }
    if (rc == 0)
        rc = predict_op_add(b->j, scopes, &raw);
    for (int r = 0; r < b->n && rc == 0; r++) {
        uint32_t decode =
            predict_work(b->j, r, PREDICT_DECODE, (double)b->op->count * b->rates.decode_s);
        predict_after(b->j, decode, raw.finish[r]);
        predict_after(b->j, b->op->finish[r], decode);
    }
    free(start);
    return rc;
}

/* ---- the plan ---- */

/* A matrix as square as may be: profiles have no shapes. */
static void set_shape(struct bny_call *call)
{
    int64_t rows = (int64_t)sqrt((double)call->count);

    while (rows > 1 && (int64_t)call->count % rows)
        rows--;
    call->rows = rows > 0 ? rows : 1;
    call->cols = (int64_t)call->count / call->rows;
}

static int make_call(struct bny_call *call, const struct predict_op *op)
{
    int rc;

    memset(call, 0, sizeof *call);
    call->collective = BNY_ALLREDUCE;
    call->dtype = op->dtype;
    call->count = (size_t)op->count;
    call->root = -1;
    call->timeout_s = -1;
    bny_call_set_schedule(call, op->schedule);
    rc = bny_redop_get(&call->redop, BANYAN_AVG, op->dtype);
    if (rc == 0 && strcmp(op->codec, "none") != 0)
        rc = bny_codec_parse(&call->codec, op->codec);
    if (rc == 0 && call->codec && call->codec->ops->family == BNY_CODEC_RAW)
        call->codec = NULL;
    if (rc == 0 && call->codec && call->codec->ops->linear)
        set_shape(call);
    return rc;
}

/* Nobody is late here. */
static int add_path(struct build *b, struct bny_scope *scopes)
{
    const struct bny_plan *plan = &b->plans[0];

    if (plan->program)
        return add_program(b);
    if (plan->codec && plan->codec->ops->linear)
        return add_linear(b, scopes);
    if (plan->way == BNY_WAY_DIRECT) /* hosts share no memory */
        add_messages(b);
    else
        return bny_fail(BANYAN_ENOTSUP, "schedule %s is not predicted; name another",
                        plan->schedule);
    return 0;
}

int predict_op_add(struct predict_job *j, struct bny_scope *scopes, struct predict_op *op)
{
    struct build b = { .j = j, .op = op, .n = j->sim.nranks };
    struct bny_call call;
    int rc = make_call(&call, op);

    b.plans = calloc((size_t)b.n, sizeof *b.plans);
    if (rc == 0 && !b.plans)
        rc = bny_fail(BANYAN_ENOMEM, "no memory for the plans of %d ranks", b.n);
    for (int r = 0; r < b.n && rc == 0; r++)
        rc = bny_plan_get(&scopes[r], &call, &b.plans[r]);
    if (rc == 0) {
        const struct bny_plan *plan = &b.plans[0];

        op->refused = call.codec && !plan->codec && b.n > 1;
        memcpy(op->chosen, plan->schedule, sizeof op->chosen);
        b.is_lossy = plan->codec && plan->codec->ops->family != BNY_CODEC_EXACT;
        b.rates = rates_of(j, plan->codec, op->dtype);
        rc = add_path(&b, scopes);
        for (int r = 0; r < b.n; r++) { /* also where nothing was to be done */
            predict_after(j, op->sent[r], op->start[r]);
            predict_after(j, op->finish[r], op->start[r]);
        }
    }
    for (int r = 0; b.plans && r < b.n; r++)
        bny_plan_drop(&b.plans[r]);
    free(b.plans);
    return rc;
}
