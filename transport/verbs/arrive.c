/* SPDX-License-Identifier: BSD-3-Clause */
/* Completions: messages into slots, credits, ends of requests. Peers' numbers (slots, lengths,
 * counts) are checked: an invalid one ends the connection. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "transport/verbs/lane.h"

static char *eager_in(const struct vb_peer *p, uint32_t slot)
{
    return p->slab + (size_t)slot * VB_EAGER_STRIDE;
}

/* Slot of the next message: both ends know it. */
static uint32_t eager_slot(const struct vb_peer *p)
{
    return p->order_in[p->eager_next & (p->shape.eager - 1)];
}

static int has_credit(const struct vb_peer *p)
{
    return p->eager_next - p->eager_told < p->shape.eager;
}

static struct vb_msg *take_msg(struct vb_tp *t)
{
    struct vb_msg *m = (struct vb_msg *)bny_msg_list_pop_front(&t->free_msgs);

    if (m)
        return m;
    m = calloc(1, sizeof *m);
    if (m) {
        m->all = t->all_msgs;
        t->all_msgs = m;
    }
    return m;
}

static uint32_t part_bytes(const struct vb_peer *p, const struct vb_msg *m, uint32_t part)
{
    uint32_t left = m->msg.hdr.len - part * p->shape.slot_max;

    return left < p->shape.slot_max ? left : p->shape.slot_max;
}

/* A piece of the incoming long message. */
static int part_arrived(struct vb_peer *p, uint32_t slot, uint32_t bytes)
{
    struct vb_msg *m = p->streaming;

    if (!m || slot >= p->shape.bulk || (p->bulk_held >> slot & 1) ||
        (bytes && bytes != VB_HEAD + part_bytes(p, m, m->parts))) {
        bny_verbs_down(p->e, "writes a piece of %u bytes into slot %u, where none is expected",
                       bytes, slot);
        return -1;
    }
    p->bulk_held |= 1u << slot;
    m->part_slot[m->parts++ % VB_BULK_SLOTS] = (uint8_t)slot;
    if ((uint64_t)m->parts * p->shape.slot_max >= m->msg.hdr.len)
        p->streaming = NULL;
    if (!m->dropped)
        return 0;
    bny_verbs_free_bulk(p, slot);
    if (!p->streaming)
        bny_verbs_give_msg(p->t, m);
    return 0;
}

static int arrive_give(struct vb_peer *p, struct vb_msg *m, struct bny_event *ev)
{
    m->msg.ep = &p->e->ep;
    m->msg.descriptor = 0;
    m->peer = p;
    *ev = (struct bny_event){ .kind = BNY_EV_MSG, .ep = &p->e->ep, .msg = &m->msg };
    return 1;
}

static struct vb_msg *new_msg(struct vb_peer *p, int is_long)
{
    struct vb_msg *m = take_msg(p->t);

    if (!m) {
        bny_verbs_lacks(p->t, ENOMEM, "no memory for a message");
        bny_verbs_deaf(p->e);
        return NULL;
    }
    m->is_long = is_long;
    m->dropped = 0;
    m->parts = m->parts_freed = 0;
    return m;
}

static int says_wrongly(struct vb_peer *p, struct vb_msg *m, uint32_t bytes)
{
    bny_verbs_give_msg(p->t, m);
    bny_verbs_down(p->e, "announces a message of %u bytes and writes %u", m->msg.hdr.len,
                   bytes);
    return 0;
}

/* A message has come into a bulk slot. 1: *ev is set; 0: the connection is broken. */
static int bulk_arrived(struct vb_peer *p, int is_long, uint32_t slot, uint32_t bytes,
                        struct bny_event *ev)
{
    const char *mem;
    struct vb_msg *m;

    if (slot >= p->shape.bulk || (p->bulk_held >> slot & 1)) {
        bny_verbs_down(p->e, "writes into slot %u, which it has no credit for", slot);
        return 0;
    }
    m = new_msg(p, is_long);
    if (!m)
        return 0;
    mem = bny_verbs_bulk_in(p, slot);
    memcpy(&m->msg.hdr, mem, sizeof m->msg.hdr);
    if (is_long ? m->msg.hdr.len <= p->shape.slot_max || p->streaming != NULL ||
                      (bytes && bytes != p->shape.stride)
                : m->msg.hdr.len > p->shape.slot_max ||
                      (bytes && (bytes < VB_HEAD || m->msg.hdr.len != bytes - VB_HEAD)))
        return says_wrongly(p, m, bytes);
    m->slot = slot;
    m->bulk = 1;
    m->msg.data = is_long ? NULL : mem + VB_HEAD;
    if (is_long) {
        p->streaming = m;
        part_arrived(p, slot, bytes);
    } else {
        p->bulk_held |= 1u << slot;
    }
    return arrive_give(p, m, ev);
}

/* The header that an immediate stands for. 0: none. */
static int shape_of(struct vb_peer *p, uint32_t value, struct bny_hdr *hdr)
{
    uint32_t i = value >> 26;

    if (!(p->shapes_in_set >> i & 1))
        return 0;
    *hdr = p->shapes_in[i];
    hdr->chunk = value >> 16 & 0x3ff;
    hdr->seq += value >> 8 & 0xff;
    hdr->started += value & 0xff;
    p->shapes_in[i] = *hdr;
    return 1;
}

/* The same for eager slots. A put's data is already in place, and has the slot's credit
 * only. */
static int eager_arrived(struct vb_peer *p, enum vb_imm kind, uint32_t value, uint32_t bytes,
                         struct bny_event *ev)
{
    uint32_t slot = eager_slot(p), shape = value >> 8,
             head = kind == VB_IMM_EAGER ? VB_HEAD : 0;
    const char *mem = eager_in(p, slot);
    struct vb_msg *m;

    if (!has_credit(p) ||
        (kind == VB_IMM_EAGER && ((value & 0xff) != slot || shape >= VB_SHAPES))) {
        bny_verbs_down(p->e, "writes into slot %u, which it has no credit for", value & 0xff);
        return 0;
    }
    m = new_msg(p, 0);
    if (!m)
        return 0;
    if (kind == VB_IMM_EAGER) {
        memcpy(&m->msg.hdr, mem, sizeof m->msg.hdr);
        p->shapes_in[shape] = m->msg.hdr;
        p->shapes_in_set |= 1u << shape;
    } else if (!shape_of(p, value, &m->msg.hdr)) {
        bny_verbs_give_msg(p->t, m);
        bny_verbs_down(p->e, "repeats a header that it never sent");
        return 0;
    }
    if (kind == VB_IMM_PUT_AGAIN
            ? m->msg.hdr.kind != BNY_MSG_PUT || m->msg.hdr.len ||
                  (bytes && m->msg.hdr.codec_len_raw != bytes)
            : bytes < head || m->msg.hdr.len != bytes - head || bytes - head > VB_EAGER_MAX)
        return says_wrongly(p, m, bytes);
    p->eager_held[slot] = 1;
    p->eager_next++;
    m->slot = slot;
    m->bulk = 0;
    m->msg.data = mem + VB_HEAD;
    return arrive_give(p, m, ev);
}

/* Keys of a region of the peer, or the end of a window, in an eager slot. */
static void told_ahead(struct vb_peer *p, enum vb_imm kind, uint32_t value, uint32_t bytes)
{
    uint32_t slot = eager_slot(p);
    struct vb_closing c;
    struct vb_further f;

    if (!has_credit(p) || value != slot || bytes != VB_HEAD) {
        bny_verbs_down(p->e, "writes %s of %u bytes into slot %u, which is not its turn",
                       kind == VB_IMM_KEYS ? "keys" : "the end of a window", bytes, value);
        return;
    }
    memcpy(&f, eager_in(p, slot), sizeof f);
    memcpy(&c, eager_in(p, slot), sizeof c);
    p->eager_held[slot] = 1;
    p->eager_next++;
    bny_verbs_free_eager(p, slot);
    if (kind == VB_IMM_KEYS)
        bny_verbs_further_arrived(p, &f);
    else
        bny_verbs_closing_arrived(p->e, &c);
}

int bny_verbs_message(struct vb_peer *p, uint32_t imm, uint32_t bytes, struct bny_event *ev)
{
    uint32_t value = imm & 0xfffffff;

    switch (imm >> 28) {
    case VB_IMM_BULK:
    case VB_IMM_LONG: return bulk_arrived(p, imm >> 28 == VB_IMM_LONG, value, bytes, ev);
    case VB_IMM_PART: part_arrived(p, value, bytes); return 0;
    case VB_IMM_FAREWELL: p->e->left = 1; return 0;
    case VB_IMM_KEYS:
    case VB_IMM_CLOSE: told_ahead(p, (enum vb_imm)(imm >> 28), value, bytes); return 0;
    default: return eager_arrived(p, (enum vb_imm)(imm >> 28), value, bytes, ev);
    }
}

static int immediate(struct vb_lane *c, uint32_t imm, uint32_t bytes, struct bny_event *ev)
{
    uint32_t value = imm & 0xfffffff, more;

    c->losses = 0;
    if (c->e->lane)
        return bny_verbs_stripe_arrived(c, imm, bytes);
    c->imm_taken++;
    switch (imm >> 28) {
    case VB_IMM_EAGER:
    case VB_IMM_BULK:
    case VB_IMM_LONG:
    case VB_IMM_PART:
    case VB_IMM_AGAIN:
    case VB_IMM_PUT_AGAIN:
    case VB_IMM_FAREWELL:
    case VB_IMM_KEYS:
    case VB_IMM_CLOSE:
        if (!bny_verbs_lanes_of(imm) && c->peer->waits_first == c->peer->waits_end)
            return bny_verbs_message(c->peer, imm, bytes, ev);
        bny_verbs_wait(c->peer, imm, bytes);
        return 0;
    case VB_IMM_FREED_EAGER:
        more = value & 0xfff;
        if (more && (value >> 12) + more <= c->peer->eager_sent - c->peer->eager_freed) {
            bny_verbs_free_order(c->peer->order_out, c->peer->shape.eager, c->peer->eager_freed,
                                 value >> 12, more);
            c->peer->eager_freed += more;
            return 0;
        }
        break;
    case VB_IMM_TAKEN: /* the low 24 bits of a count */
        more = (value - c->peer->eager_taken) & 0xffffff;
        if (more <= c->peer->eager_sent - c->peer->eager_taken) {
            c->peer->eager_taken += more;
            return 0;
        }
        break;
    case VB_IMM_FREED_BULK:
        if (value < c->peer->shape.bulk && (c->peer->bulk_busy >> value & 1)) {
            c->peer->bulk_busy &= ~(1u << value);
            return 0;
        }
        break;
    default: break;
    }
    bny_verbs_down(c->e, "sends an immediate that means nothing here: %08x", imm);
    return 0;
}

/* ---- completions ---- */

/* Can another queue pair help? Not if memory or credits are at fault at either end. An error of
 * the device itself (rxe's, if its interface is down) may not occur on another rail. */
static int is_lasting(const struct vb_lane *c, enum ibv_wc_status status)
{
    if (status == IBV_WC_LOC_QP_OP_ERR && bny_verbs_rail_others(c->e, c->rail))
        return 0;
    return status != IBV_WC_WR_FLUSH_ERR && status != IBV_WC_RETRY_EXC_ERR &&
           status != IBV_WC_RESP_TIMEOUT_ERR && status != IBV_WC_FATAL_ERR &&
           status != IBV_WC_GENERAL_ERR && status != IBV_WC_REM_ABORT_ERR;
}

/* The first completion of a broken queue pair has the cause; if it is a flushed one, the other
 * end broke it. Receive requests complete in order, so nothing has come after the first flushed
 * one. */
static void failed(struct vb_lane *c, const struct ibv_wc *wc)
{
    const char *why = c->t->fn->ibv_wc_status_str(wc->status);
    char remedy[VB_REMEDY];

    if (!c->lost && is_lasting(c, wc->status))
        bny_verbs_down(c->e, "is not reached over device %s any more: %s (vendor %#x); %s",
                       c->rail->at, why, wc->vendor_err,
                       bny_verbs_remedy(c, wc->status, remedy));
    else if (!c->lost)
        bny_verbs_lost(c, "is not reached over device %s any more: %s (vendor %#x); %s",
                       c->rail->at, why, wc->vendor_err,
                       bny_verbs_remedy(c, wc->status, remedy));
    if (wc->wr_id & VB_WR_RECV)
        c->drained = 1;
    else if (!(wc->wr_id & VB_WR_HELLO))
        c->ended = (uint32_t)wc->wr_id + 1;
}

/* Replaces the consumed request. */
static int receive_again(struct vb_lane *c)
{
    uint32_t n = c->recvs_due + 1;

    if (c->rail->shared.srq) /* for others, too, which may continue although c cannot */
        return bny_verbs_srq_fill(c->rail, VB_RECV_BATCH);
    c->recvs_due = n < c->t->depth.recv_batch || c->lost ? n : 0;
    return c->recvs_due ? 0 : bny_verbs_post_recvs(c, n);
}

/* One completion. Returns the number of events: 0 or 1. */
int bny_verbs_complete(struct vb_lane *c, const struct ibv_wc *wc, struct bny_event *ev)
{
    const void *came = NULL;
    struct vb_note note;

    if ((wc->wr_id & VB_WR_RECV) && c->notify)
        came = &bny_verbs_notes_in(c)[(uint32_t)wc->wr_id % VB_RECVS];
    if ((wc->wr_id & VB_WR_RECV) && c->rail->shared.srq)
        came = bny_verbs_srq_take(c->rail, wc);
    if (wc->status != IBV_WC_SUCCESS) {
        failed(c, wc);
        return 0;
    }
    if (!(wc->wr_id & VB_WR_RECV)) {
        c->done = (uint32_t)wc->wr_id + 1;
        c->losses = 0;
        return 0;
    }
    note = (struct vb_note){ wc->imm_data, wc->byte_len };
    if (c->notify)
        memcpy(&note, came, sizeof note);
    if (receive_again(c) != 0)
        bny_verbs_lost(c, "cannot be received from: device %s refuses receive requests",
                       c->rail->at);
    if (c->notify ? wc->byte_len != sizeof note : !(wc->wc_flags & IBV_WC_WITH_IMM)) {
        bny_verbs_down(c->e, "sends a message without an immediate");
        return 0;
    }
    return immediate(c, ntohl(note.imm), note.bytes, ev);
}

/* SENT events of completed requests. */
static int take_sent(struct vb_lane *c, struct bny_event *ev, int n)
{
    int got = 0;

    while (c->reported != c->done && got < n) {
        const struct vb_sent *s = &c->sent[c->reported % VB_SENDS];

        if (s->stripes && !c->dead && !bny_verbs_stripes_done(c, s->stripes))
            break;
        if (s->tells)
            ev[got++] =
                (struct bny_event){ .kind = BNY_EV_SENT, .ep = &c->e->ep, .cookie = s->cookie };
        c->reported++;
    }
    return got;
}

int bny_verbs_poll_conn(struct vb_ep *e, struct bny_event *ev, int n)
{
    struct vb_lane *c = e->conn;
    int got = take_sent(c, ev, n);
    struct ibv_wc wc;

    if (c->peer->waits_first != c->peer->waits_end)
        got += bny_verbs_poll_waiting(c->peer, ev + got, n - got);
    if (c->dead || !c->cq)
        return got;
    while (got < n && !e->down && bny_verbs_cq_next(c, &wc))
        got += bny_verbs_complete(c, &wc, &ev[got]);
    if (c->copies)
        bny_verbs_copies_drop(c);
    if (c->overrun && !c->dead)
        bny_verbs_down(e, "sends more than it has credits for");
    if (e->state == VB_OPEN) {
        bny_verbs_tell_credits(c->peer);
        bny_verbs_push_longs(c->peer);
        got += take_sent(c, ev + got, n - got);
    } else if (c->lost && !c->dead && !bny_verbs_cq_has(c) && bny_verbs_heard_out(c)) {
        if (e->left) /* its farewell was in this input */
            bny_verbs_down(e, "has left");
        else if (bny_verbs_may_end(e))
            bny_verbs_lane_close(c);
    }
    return got;
}
