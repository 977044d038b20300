/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading a received message, releasing it, and reporting free slots to the peer. */
#include <string.h>

#include "base/assert.h"
#include "base/err.h"
#include "transport/verbs/lane.h"

char *bny_verbs_bulk_in(const struct vb_peer *p, uint32_t slot)
{
    return p->slab + p->shape.bulk_at + (size_t)slot * p->shape.stride;
}

void bny_verbs_give_msg(struct vb_tp *t, struct vb_msg *m)
{
    bny_msg_list_push_front(&t->free_msgs, &m->msg);
}

void bny_verbs_free_bulk(struct vb_peer *p, uint32_t slot)
{
    BNY_ASSERT(slot < p->shape.bulk && p->bulk_held >> slot & 1);
    p->bulk_held &= ~(1u << slot);
    p->credits_due |= 1u << slot;
}

void bny_verbs_free_eager(struct vb_peer *p, uint32_t slot)
{
    BNY_ASSERT(p->eager_held[slot]);
    p->eager_held[slot] = 0;
    p->eager_idle++;
}

/* Of the messages whose release is not reported, the longest free run: its length, after *skip
 * others. There is one. */
static uint32_t longest_run(const struct vb_peer *p, uint32_t *skip)
{
    uint32_t best = 0, all = p->eager_next - p->eager_told;

    for (uint32_t i = 0; i < all && best < p->shape.report; i++) {
        uint32_t from = i;

        while (i < all &&
               !p->eager_held[p->order_in[(p->eager_told + i) & (p->shape.eager - 1)]])
            i++;
        if (i - from <= best)
            continue;
        best = i - from;
        *skip = from;
    }
    return best;
}

/* Is it time to report free eager slots? If they are many, or the peer has used all others. And
 * it must have taken all but a few of the reports, each of which costs it a receive request: a
 * report was taken if the peer has since used a slot that it freed. */
static int may_tell_eager(const struct vb_peer *p)
{
    uint32_t all = p->eager_next - p->eager_told; /* including held ones */

    if (all < p->shape.report)
        return 0;
    if (p->eager_idle < p->shape.report && (!p->eager_idle || all < p->shape.eager))
        return 0;
    return p->eager_next - p->tell_at[p->oldest] > p->shape.eager;
}

static void tell_eager(struct vb_peer *p)
{
    while (may_tell_eager(p)) {
        uint32_t skip = 0, n = longest_run(p, &skip);

        if (bny_verbs_tell(p->first, VB_IMM_FREED_EAGER, skip << 12 | n) != 0)
            return;
        bny_verbs_free_order(p->order_in, p->shape.eager, p->eager_told, skip, n);
        p->tell_at[p->oldest] = p->eager_told;
        p->oldest = (p->oldest + 1) % VB_EAGER_TELLS;
        p->eager_told += n;
        p->eager_idle -= n;
    }
}

/* Reports the free slots to the peer. */
void bny_verbs_tell_credits(struct vb_peer *p)
{
    if (p->e->windows.nanswers)
        bny_verbs_answer_closing(p->e);
    tell_eager(p);
    /* with fewer receive requests than slots: reports that these are available again */
    if (p->t->depth.eager < p->shape.eager &&
        p->eager_next - p->taken_told >= p->t->depth.eager / 4 &&
        bny_verbs_tell(p->first, VB_IMM_TAKEN, p->eager_next & 0xffffff) == 0)
        p->taken_told = p->eager_next;
    while (p->credits_due) {
        uint32_t slot = (uint32_t)__builtin_ctz(p->credits_due);

        if (bny_verbs_tell(p->first, VB_IMM_FREED_BULK, slot) != 0)
            return;
        p->credits_due &= ~(1u << slot);
    }
}

/* Long messages: copies [off, off + len), which has arrived, from the pieces' slots. */
static void read_gather(const struct vb_msg *m, uint32_t off, uint32_t len, char *dst)
{
    const uint32_t each = m->peer->shape.slot_max;

    while (len) {
        uint32_t part = off / each, at = off % each;
        uint32_t n = len < each - at ? len : each - at;

        memcpy(dst,
               bny_verbs_bulk_in(m->peer, m->part_slot[part % VB_BULK_SLOTS]) + VB_HEAD + at,
               n);
        off += n;
        dst += n;
        len -= n;
    }
}

/* Frees the pieces before the one that holds `off`: views go front to back. */
static void free_parts(struct vb_msg *m, uint32_t off)
{
    struct vb_peer *p = m->peer;

    while (m->parts_freed < m->parts && m->parts_freed < off / p->shape.slot_max)
        bny_verbs_free_bulk(p, m->part_slot[m->parts_freed++ % VB_BULK_SLOTS]);
    if (!p->first->dead && p->e->state == VB_OPEN)
        bny_verbs_tell_credits(p);
}

static long view_long(struct vb_msg *m, uint32_t off, uint32_t len, void *dst, const void **ptr)
{
    const uint32_t each = m->peer->shape.slot_max;
    uint64_t there = (uint64_t)m->parts * each;
    uint32_t at = off % each, n = len;

    free_parts(m, off);
    if (there < (uint64_t)off + len) {
        n = there > off ? (uint32_t)(there - off) & ~63u : 0;
        if (n == 0)
            return m->peer->first->dead
                       ? bny_fail(BANYAN_ERANKDEAD,
                                  "rank %d: its connection broke in a message", m->msg.ep->peer)
                       : BNY_AGAIN;
    }
    if (!dst && n > each - at) { /* extends into the next piece */
        n = each - at;
        if (n >= 64) {
            n &= ~63u;
        } else {
            n = len < 64 ? len : 64;
            read_gather(m, off, n, m->seam);
            *ptr = m->seam;
            return n;
        }
    }
    *ptr = dst;
    if (dst)
        read_gather(m, off, n, dst);
    else
        *ptr =
            bny_verbs_bulk_in(m->peer, m->part_slot[off / each % VB_BULK_SLOTS]) + VB_HEAD + at;
    return n;
}

long bny_verbs_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst,
                    const void **ptr)
{
    const char *from = (const char *)msg->data + off;

    if (off > msg->hdr.len || len > msg->hdr.len - off)
        return bny_fail(BANYAN_EINVAL, "verbs: view of %u bytes at %u of a message of %u", len,
                        off, msg->hdr.len);
    if (dst)
        bny_counter_add(&msg->ep->tp->copied_bytes, len);
    if (((struct vb_msg *)msg)->is_long)
        return view_long((struct vb_msg *)msg, off, len, dst, ptr);
    if (dst)
        memcpy(dst, from, len);
    *ptr = dst ? dst : from;
    return len;
}

void bny_verbs_release(struct bny_msg *msg)
{
    struct vb_msg *m = (struct vb_msg *)msg;
    struct vb_peer *p = m->peer;

    if (m->is_long) {
        while (m->parts_freed < m->parts)
            bny_verbs_free_bulk(p, m->part_slot[m->parts_freed++ % VB_BULK_SLOTS]);
        m->dropped = p->streaming == m; /* later pieces are dropped on arrival */
    } else if (m->bulk) {
        bny_verbs_free_bulk(p, m->slot);
    } else {
        bny_verbs_free_eager(p, m->slot);
    }
    if (!m->is_long || !m->dropped)
        bny_verbs_give_msg(p->t, m);
    if (!p->first->dead && p->e->state == VB_OPEN)
        bny_verbs_tell_credits(p);
}
