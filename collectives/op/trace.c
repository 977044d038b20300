/* SPDX-License-Identifier: BSD-3-Clause */
/* The ring of events. */
#include "collectives/op/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int bny_trace_begin(struct bny_world *w)
{
    struct bny_trace *t = malloc(sizeof *t);

    if (!t)
        return -BANYAN_ENOMEM;
    memset(t, 0, sizeof *t); /* pages are made now, not while somebody measures */
    w->trace = t;
    return 0;
}

void bny_trace_end(struct bny_world *w)
{
    free(w->trace);
    w->trace = NULL;
}

void bny_trace_write(FILE *f, const struct bny_world *w, int64_t add_ns)
{
    const struct bny_trace *t = w->trace;
    uint64_t first = t->n > BNY_TRACE_EVENTS ? t->n - BNY_TRACE_EVENTS : 0;

    fprintf(f, "\"lost_events\": %" PRIu64 ", \"events\": [", first);
    for (uint64_t i = first; i < t->n; i++) {
        const struct bny_trace_event *e = &t->events[i % BNY_TRACE_EVENTS];

        fprintf(f, "%s\n[%u,%u,%u,%u,%u,%u,%u,%u,%u,%d,%u,%" PRIu64 ",%" PRIu64 "]",
                i > first ? "," : "", e->kind, e->comm, e->seq, e->call_comm, e->call_seq,
                e->step, e->ordinal, e->chunk, e->bytes, e->peer, e->thread,
                e->t0 + (uint64_t)add_ns, e->t1 + (uint64_t)add_ns);
    }
    fputc(']', f);
}

void bny_trace_add(const struct bny_op *op, uint32_t step, enum bny_trace_kind kind,
                   uint32_t chunk, uint64_t t0, uint64_t t1, size_t bytes)
{
    struct bny_trace *t = op->comm->world->trace;
    const struct bny_op *call = op;
    const struct bny_step *s = step != BNY_TRACE_STAGE ? &op->plan.program->steps[step] : NULL;

    while (call->parent)
        call = call->parent;
    if (kind == BNY_TRACE_ENCODE)
        t->encoded_ns = t1;
    if (kind == BNY_TRACE_POST && t0 < t->encoded_ns)
        t0 = t->encoded_ns;
    t->events[t->n++ % BNY_TRACE_EVENTS] = (struct bny_trace_event){
        .t0 = t0,
        .t1 = t1,
        .comm = op->comm->id,
        .seq = bny_op_seq(op),
        .call_comm = call->comm->id,
        .call_seq = bny_op_seq(call),
        .step = s ? step : 0,
        .ordinal = s ? s->ordinal : 0,
        .chunk = chunk,
        .bytes = (uint32_t)bytes,
        .peer = !s || s->kind == BNY_KEEP ? -1 : op->comm->peers[s->peer].world_rank,
        .kind = (uint16_t)kind,
    };
}

void bny_trace_encoded(const struct bny_op *op, uint32_t step, uint32_t chunk, uint64_t t0,
                       uint64_t t1, size_t bytes, uint32_t thread)
{
    struct bny_trace *t = op->comm->world->trace;
    uint64_t before = t->encoded_ns;

    bny_trace_add(op, step, BNY_TRACE_ENCODE, chunk, t0, t1, bytes);
    t->events[(t->n - 1) % BNY_TRACE_EVENTS].thread = (uint16_t)thread;
    if (thread) /* a post does not begin after it: it was done beside other things */
        t->encoded_ns = before;
}
