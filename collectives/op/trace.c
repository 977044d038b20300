/* SPDX-License-Identifier: BSD-3-Clause */
/* The ring of events; perf/perf_trace.c makes a file of them. */
#include "collectives/op/trace.h"

#include <stdlib.h>
#include <string.h>

int bny_trace_begin(struct banyan_comm *comm, size_t cap)
{
    struct bny_world *w = comm->world;
    struct bny_trace *t = calloc(1, sizeof *t);

    if (t)
        t->events = malloc((cap ? cap : 1) * sizeof *t->events);
    if (!t || !t->events) {
        free(t);
        return bny_fail(BANYAN_ENOMEM, "no memory for %zu events of a trace", cap);
    }
    t->cap = cap ? cap : 1;
    memset(t->events, 0xff,
           t->cap * sizeof *t->events); /* pages are made now, not while somebody measures */
    bny_world_lock(w);
    if (w->trace) {
        bny_world_unlock(w);
        free(t->events);
        free(t);
        return bny_fail(BANYAN_EINVAL, "rank %d is traced already", w->rank);
    }
    w->trace = t;
    bny_world_unlock(w);
    return 0;
}

/* The ring's oldest event becomes the first. */
static void unroll(struct bny_trace *t)
{
    size_t at = (size_t)(t->n % t->cap);
    struct bny_trace_event *all;

    if (t->n <= t->cap || at == 0)
        return;
    all = malloc(t->cap * sizeof *all);
    if (!all) { /* as good as lost */
        t->n = at;
        return;
    }
    memcpy(all, t->events + at, (t->cap - at) * sizeof *all);
    memcpy(all + t->cap - at, t->events, at * sizeof *all);
    free(t->events);
    t->events = all;
}

int bny_trace_end(struct banyan_comm *comm, struct bny_trace_event **events, size_t *n,
                  uint64_t *lost)
{
    struct bny_world *w = comm->world;
    struct bny_trace *t;
    uint64_t all;

    bny_world_lock(w);
    t = w->trace;
    w->trace = NULL;
    bny_world_unlock(w);
    if (!t)
        return bny_fail(BANYAN_EINVAL, "rank %d is not traced", w->rank);
    all = t->n;
    unroll(t);
    *events = t->events;
    *n = t->n < t->cap ? (size_t)t->n : t->cap;
    *lost = all - *n;
    free(t);
    return 0;
}

void bny_trace_add(const struct bny_op *op, uint32_t step, enum bny_trace_kind kind,
                   uint32_t chunk, uint64_t t0, uint64_t t1, size_t bytes)
{
    struct bny_trace *t = op->comm->world->trace;
    const struct bny_step *s = step != BNY_TRACE_STAGE ? &op->plan.program->steps[step] : NULL;

    if (kind == BNY_TRACE_ENCODE)
        t->encoded_ns = t1;
    if (kind == BNY_TRACE_POST && t0 < t->encoded_ns)
        t0 = t->encoded_ns;
    t->events[t->n++ % t->cap] = (struct bny_trace_event){
        .t0 = t0,
        .t1 = t1,
        .seq = bny_op_seq(op),
        .step = s ? step : 0,
        .ordinal = s ? s->ordinal : 0,
        .chunk = chunk,
        .bytes = (uint32_t)bytes,
        .peer = !s || s->kind == BNY_KEEP ? -1 : s->peer,
        .kind = kind,
    };
}

void bny_trace_encoded(const struct bny_op *op, uint32_t step, uint32_t chunk, uint64_t t0,
                       uint64_t t1, size_t bytes, uint32_t thread)
{
    struct bny_trace *t = op->comm->world->trace;
    uint64_t before = t->encoded_ns;

    bny_trace_add(op, step, BNY_TRACE_ENCODE, chunk, t0, t1, bytes);
    t->events[(t->n - 1) % t->cap].thread = thread;
    if (thread) /* a post does not begin after it: it was done beside other things */
        t->encoded_ns = before;
}
