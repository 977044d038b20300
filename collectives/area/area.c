/* SPDX-License-Identifier: BSD-3-Clause */
/* Areas: made, told, mapped, shared out among operations. */
#include "collectives/area/area.h"

#include <stdlib.h>
#include <string.h>

struct said { /* wire format */
    uint32_t id;
    uint16_t copies; /* 1: the sender reaches the other's memory by the kernel's copy */
    uint16_t which;  /* of a communicator: enum bny_area */
    uint64_t bytes;
};
_Static_assert(sizeof(struct said) == 16, "wire format");

/* ---- making ---- */

/* Behind the head and the loans, on a page of their own. */
static size_t cells_at(int n)
{
    size_t loans = sizeof(struct bny_area_loan) * BNY_AREA_ENTRIES * (size_t)n;

    return (sizeof(struct bny_area_head) + loans + 4095) & ~(size_t)4095;
}

static struct bny_cells *cells_in(void *area, int n)
{
    return (struct bny_cells *)(void *)((char *)area + cells_at(n));
}

/* The ranks that have the area: those of the communicator that share this one's memory. */
static int find_ranks(struct bny_areas *w, const struct banyan_comm *c)
{
    const struct bny_scope *s = &c->scope;

    w->n = s->shares_memory ? c->n : s->near;
    w->peers = calloc((size_t)w->n, sizeof *w->peers);
    w->ranks = calloc((size_t)w->n, sizeof *w->ranks);
    if (!w->peers || !w->ranks)
        return -1;
    for (int r = 0, i = 0; r < c->n && i < w->n; r++)
        if (s->shares_memory || bny_scope_is_near(s, r, c->rank)) {
            w->rank = r == c->rank ? i : w->rank;
            w->ranks[i++] = r;
        }
    return 0;
}

static void area_drop(struct bny_areas *w)
{
    if (w) {
        free(w->peers);
        free(w->ranks);
    }
    free(w);
}

static struct bny_areas *make(struct banyan_comm *c, enum bny_area which)
{
    struct bny_areas *w = calloc(1, sizeof *w);
    void *mem;

    if (!w || find_ranks(w, c) != 0) {
        area_drop(w);
        bny_fail(BANYAN_ENOMEM, "no memory for the shared areas of %d ranks", c->n);
        return NULL;
    }
    w->which = which;
    bny_area_shape_init(&w->shape, w->n, c->scope.oversubscribed,
                        cells_at(w->n) - sizeof(struct bny_area_head) +
                            sizeof(struct bny_cells));
    w->tp = bny_area_ep(w, c, w->rank == 0 ? 1 : 0)->tp;
    w->untold = w->unmapped = w->n - 1;
    if (w->tp->ops->shared->area_make(w->tp, w->shape.area_bytes, w->n - 1, &mem, &w->id) !=
        0) {
        area_drop(w);
        return NULL;
    }
    w->peers[w->rank].area = mem;
    w->own = w->peers[w->rank].cells = cells_in(mem, w->n);
    bny_cells_init(w->own);
    return w;
}

struct bny_areas *bny_area_get(struct banyan_comm *comm, enum bny_area which)
{
    if (!comm->areas[which])
        comm->areas[which] = make(comm, which);
    return comm->areas[which];
}

static void area_end(struct banyan_comm *comm, struct bny_areas *w)
{
    for (int i = 0; i < w->n; i++)
        if (i != w->rank && w->peers[i].area)
            w->tp->ops->shared->area_give(bny_area_ep(w, comm, i), w->peers[i].area,
                                          w->shape.area_bytes);
    w->tp->ops->shared->area_free(w->tp, w->id);
    area_drop(w);
}

void bny_areas_end(struct banyan_comm *comm)
{
    for (int i = 0; i < BNY_AREAS; i++)
        if (comm->areas[i]) {
            area_end(comm, comm->areas[i]);
            comm->areas[i] = NULL;
        }
}

/* ---- meeting ---- */

/* 0, BNY_AGAIN or an error. */
static int tell(struct bny_areas *w, struct bny_op *op, int i)
{
    struct bny_ep *ep = bny_area_ep(w, op->comm, i);
    struct said said = { .id = w->id,
                         .copies = ep->zcopy_min != UINT32_MAX,
                         .which = w->which,
                         .bytes = w->shape.area_bytes };
    struct bny_area_peer *p = &w->peers[i];
    struct bny_hdr h;
    int rc = p->told ? 0 : w->tp->ops->shared->area_tell(ep, w->id);

    if (rc)
        return rc;
    p->told = 1;
    bny_op_header(op, &h, BNY_MSG_CTS);
    h.len = h.codec_len_raw = sizeof said;
    rc = ep->ops->eager(ep, &h, &said);
    if (rc)
        return rc;
    p->said = 1;
    w->untold--;
    return 0;
}

int bny_area_meet(struct bny_areas *w, struct bny_op *op, int *rank)
{
    for (int i = 0; w->untold && i < w->n; i++) {
        int rc = i == w->rank || w->peers[i].said ? 0 : tell(w, op, i);

        if (rc < 0 && rc != BNY_AGAIN) {
            *rank = w->ranks[i];
            return rc;
        }
    }
    return !w->untold && !w->unmapped;
}

/* 0, or -1: it makes no sense. */
static int take(struct banyan_comm *comm, int from, const struct bny_msg *msg)
{
    struct bny_areas *w;
    struct bny_area_peer *p;
    struct said said;
    int i = 0;

    if (msg->hdr.kind != BNY_MSG_CTS || msg->hdr.len != sizeof said || !msg->data)
        return -1;
    memcpy(&said, msg->data, sizeof said);
    w = said.which < BNY_AREAS ? comm->areas[said.which] : NULL;
    while (w && i < w->n && w->ranks[i] != from)
        i++;
    if (!w || i == w->n || w->peers[i].area || said.bytes != w->shape.area_bytes)
        return -1;
    p = &w->peers[i];
    p->area =
        w->tp->ops->shared->area_take(bny_area_ep(w, comm, i), said.id, w->shape.area_bytes);
    if (!p->area)
        return -1;
    p->cells = cells_in(p->area, w->n);
    p->copies = said.copies == 1;
    w->unmapped--;
    return 0;
}

void bny_area_message(struct bny_op *op, int from, struct bny_msg *msg)
{
    struct banyan_comm *c = op->comm;

    if (take(c, from, msg) != 0)
        bny_report(c->world, c, BNY_CAUSE_RESET, BANYAN_EPROTO, c->peers[from].world_rank,
                   "rank %d: rank %d sent no area for %s that can be used", c->rank, from,
                   bny_call_name(&op->call));
    bny_msg_release(&c->world->held, msg);
}

/* ---- places ---- */

static void tell_done(struct bny_areas *w, uint32_t seq)
{
    atomic_store_explicit(&w->own->passes_done, seq, memory_order_release);
}

/* Are all ranks done with what its counts belong to? Ranks need not wait for each other. */
static int is_free(struct bny_areas *w, uint32_t seq)
{
    const struct bny_area_use *u = &w->entry_use[seq % BNY_AREA_ENTRIES];

    for (int r = 0; u->used && r < w->shape.n; r++) {
        struct bny_area_peer *p = &w->peers[r];

        if (p->cells == w->own || (int32_t)(p->passes_done - u->seq) > 0)
            continue;
        p->passes_done = atomic_load_explicit(&p->cells->passes_done, memory_order_acquire);
        /* The second: so long ago that numbers have gone half round. */
        if ((int32_t)(p->passes_done - u->seq) <= 0 &&
            (int32_t)(p->passes_done + BNY_AREA_ENTRIES - seq) <= 0)
            return 0;
    }
    return 1;
}

#define LONG_AGO (1u << 30) /* numbers go round */

/* Have all ranks read what operation number u->seq left in a slice? */
static int is_read(struct bny_areas *w, const struct bny_area_use *u, uint32_t seq)
{
    for (int r = 0; r < w->shape.n; r++) {
        struct bny_area_peer *p = &w->peers[r];

        if (p->cells == w->own || (int32_t)(p->passes_done - u->seq) > 0)
            continue;
        p->passes_done = atomic_load_explicit(&p->cells->passes_done, memory_order_acquire);
        if (seq - u->seq < LONG_AGO ? (int32_t)(p->passes_done - u->seq) <= 0
                                    : seq - p->passes_done >= LONG_AGO)
            return 0;
    }
    return 1;
}

/* The lowest, which is in caches. -1: none is free. */
static int free_slice(struct bny_areas *w, uint32_t seq)
{
    for (int i = 0; i < BNY_AREA_SLICES; i++) {
        struct bny_area_use *u = &w->slice_use[i];

        if (w->slices & 1u << i || (u->used && !is_read(w, u, seq)))
            continue;
        u->used = 0;
        return i;
    }
    return -1;
}

/* In order of start, which is the same on all ranks: the operation that started first has a
 * place on all ranks, so the oldest can always go on. */
int bny_area_claim(struct bny_areas *w, struct bny_link *link, uint32_t seq, uint32_t *slice)
{
    uint32_t nth = seq % BNY_AREA_ENTRIES;
    int free;

    if (w->queue.next != link || (w->entries & 1u << nth))
        return 0;
    if (!w->entries && w->passes_next != seq) /* others had no place */
        tell_done(w, seq);
    if (!is_free(w, seq))
        return 0;
    free = free_slice(w, seq);
    if (free < 0)
        return 0;
    *slice = (uint32_t)free;
    w->entries |= 1u << nth;
    w->slices |= 1u << *slice;
    w->entry_use[nth] = (struct bny_area_use){ seq, 1 };
    w->passes_next = seq + 1;
    bny_link_out(link);
    return 1;
}

void bny_area_release(struct bny_areas *w, uint32_t seq, uint32_t slice, int is_read_on)
{
    uint32_t done = w->passes_next;

    if (is_read_on)
        w->slice_use[slice] = (struct bny_area_use){ seq, 1 };
    w->entries &= ~(1u << seq % BNY_AREA_ENTRIES);
    w->slices &= ~(1u << slice);
    for (uint32_t left = w->entries; left; left &= left - 1) {
        uint32_t other = w->entry_use[__builtin_ctz(left)].seq;

        if ((int32_t)(other - done) < 0)
            done = other;
    }
    tell_done(w, done);
}

/* ---- ranks that differ ---- */

uint32_t bny_area_history(struct bny_areas *w, const struct bny_op *op)
{
    struct bny_cell_key next = bny_cell_key(bny_op_seq(op), &op->sig, w->history);
    uint32_t before = w->history;

    next.what += op->sig.count; /* of which a cell has but a part */
    w->history = bny_cell_history(&next);
    return before;
}

void bny_area_differed(struct bny_op *op, int r)
{
    struct banyan_comm *c = op->comm;

    bny_report(c->world, c, BNY_CAUSE_MISMATCH, BANYAN_EMISMATCH, c->peers[r].world_rank,
               "rank %d and rank %d called different operations before operation %u",
               c->rank < r ? c->rank : r, c->rank < r ? r : c->rank, bny_op_seq(op));
}
