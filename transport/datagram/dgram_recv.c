/* SPDX-License-Identifier: BSD-3-Clause */
/* Packets to messages. Fragments stay in the driver's buffers until they are viewed. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/err.h"
#include "base/log.h"
#include "transport/datagram/dgram.h"

#define FRAGS_AT_ONCE 256u
#define WRONG_TAGS    1024u /* that are told, and each time that they have doubled */

static struct dp_frag *take_frag(struct dp_tp *t)
{
    struct dp_frag *f = t->free_frags;

    if (!f) {
        struct {
            struct dp_block head;
            struct dp_frag frags[FRAGS_AT_ONCE];
        } *b = malloc(sizeof *b);

        if (!b)
            return NULL;
        b->head.next = t->blocks;
        t->blocks = &b->head;
        for (uint32_t i = 0; i < FRAGS_AT_ONCE; i++) {
            b->frags[i].next = t->free_frags;
            t->free_frags = &b->frags[i];
        }
        f = t->free_frags;
    }
    t->free_frags = f->next;
    return f;
}

static struct dp_msg *take_msg(struct dp_tp *t)
{
    struct dp_msg *m = (struct dp_msg *)bny_msg_list_pop_front(&t->free_msgs), *all;

    if (m) {
        all = m->all;
    } else {
        m = malloc(sizeof *m);
        if (!m)
            return NULL;
        all = t->all_msgs;
        t->all_msgs = m;
    }
    memset(m, 0, offsetof(struct dp_msg, seam));
    m->all = all;
    m->tail = &m->frags;
    return m;
}

static void give_msg(struct dp_tp *t, struct dp_msg *m)
{
    free(m->flat);
    m->flat = NULL;
    bny_msg_list_push_front(&t->free_msgs, &m->msg);
}

/* Returns the first fragment's buffer. */
static void drop_front(struct dp_ep *e, struct dp_msg *m)
{
    struct dp_tp *t = dp_tp_of(e);
    struct dp_frag *f = m->frags;

    BNY_ASSERT(f && e->held > 0);
    m->frags = f->next;
    if (!m->frags)
        m->tail = &m->frags;
    t->drv->free(&f->buf, 1);
    e->held--;
    dp_wake(e); /* for its credit */
    f->next = t->free_frags;
    t->free_frags = f;
}

static void drop_all(struct dp_ep *e, struct dp_msg *m)
{
    while (m->frags)
        drop_front(e, m);
}

/* ---- placing fragments ---- */

/* The message with this number; made if new. NULL: it is complete, farther away than a window
 * allows, or there is no memory. Packet and message numbers grow together: messages after an
 * incomplete one are within one window from it, and within two if a complete one is starved, as
 * no credit is given then. */
static struct dp_msg *dpdk_recv_find(struct dp_ep *e, const struct bny_dgram_head *h)
{
    struct dp_in *in = &e->in[h->chan];
    struct dp_msg **at = &in->list, *m;

    if (h->msg - in->next_id >= 2 * dp_window(e))
        return NULL;
    while (*at && bny_flow_before((*at)->id, h->msg))
        at = &(*at)->next;
    if (*at && (*at)->id == h->msg)
        return *at;
    m = take_msg(dp_tp_of(e));
    if (!m)
        return NULL;
    m->id = h->msg;
    m->msg.ep = &e->ep;
    m->next = *at;
    *at = m;
    return m;
}

/* The end of the last fragment so far. Only the first one has the length of the message: until
 * then any may come, and none is dropped. */
static uint32_t beyond(const struct dp_msg *m)
{
    const struct dp_frag *f;

    if (!m->frags)
        return 0;
    f = (const struct dp_frag *)(const void *)((const char *)m->tail -
                                               offsetof(struct dp_frag, next));
    return f->off + f->len;
}

/* 1: the fragment is consistent with its message. */
static int agrees(const struct dp_msg *m, const struct bny_dgram_packet *p)
{
    uint32_t end = p->head.off + p->len;
    int first = p->head.flags & BNY_DGRAM_FIRST, last = p->head.flags & BNY_DGRAM_LAST;

    if ((first && m->first) || (last && m->last) || p->head.off < m->reach)
        return 0;
    if (first && beyond(m) > p->hdr.len)
        return 0;
    if (m->first && (end > m->msg.hdr.len || (last && end != m->msg.hdr.len)))
        return 0;
    if (m->last && (end > m->end || (first && p->hdr.len != m->end)))
        return 0;
    if (!first && m->reach == 0 && m->first) /* nothing follows an empty or whole one */
        return m->msg.hdr.len > 0;
    return 1;
}

/* Inserts by offset. 0: it overlaps, or no memory. */
static int insert(struct dp_ep *e, struct dp_msg *m, const struct bny_dgram_packet *p,
                  void *buf)
{
    struct dp_frag **at = &m->frags, *f, *before = NULL;

    if (m->frags && p->head.off > m->frags->off) {
        for (; *at && (*at)->off < p->head.off; at = &(*at)->next)
            before = *at;
        if (before && before->off + before->len > p->head.off)
            return 0;
    }
    if (*at && (*at)->off < p->head.off + p->len)
        return 0;
    f = take_frag(dp_tp_of(e));
    if (!f)
        return 0;
    *f = (struct dp_frag){
        .next = *at, .buf = buf, .data = p->payload, .off = p->head.off, .len = p->len
    };
    *at = f;
    if (!f->next)
        m->tail = &f->next;
    e->held++;
    return 1;
}

/* Appends without a search if it is the last. */
static int append(struct dp_ep *e, struct dp_msg *m, const struct bny_dgram_packet *p,
                  void *buf)
{
    struct dp_frag *f;

    if (p->head.off != m->reach || *m->tail != NULL)
        return insert(e, m, p, buf);
    if (m->frags && m->tail != &m->frags) {
        const struct dp_frag *end =
            (const struct dp_frag *)(const void *)((const char *)m->tail -
                                                   offsetof(struct dp_frag, next));

        if (end->off >= p->head.off)
            return insert(e, m, p, buf);
    }
    f = take_frag(dp_tp_of(e));
    if (!f)
        return 0;
    *f = (struct dp_frag){ .buf = buf, .data = p->payload, .off = p->head.off, .len = p->len };
    *m->tail = f;
    m->tail = &f->next;
    e->held++;
    return 1;
}

/* Assembles an eager message that came in pieces: it must be lent whole. */
static int flatten(struct dp_ep *e, struct dp_msg *m)
{
    m->flat = malloc(m->msg.hdr.len);
    if (!m->flat)
        return 0;
    for (struct dp_frag *f = m->frags; f; f = f->next)
        memcpy(m->flat + f->off, f->data, f->len);
    bny_counter_add(&e->ep.tp->copied_bytes, m->msg.hdr.len);
    drop_all(e, m);
    m->msg.data = m->flat;
    return 1;
}

static int dpdk_recv_complete(const struct dp_msg *m)
{
    return m->first && m->got == m->msg.hdr.len;
}

static int report(struct dp_ep *e, struct dp_msg *m)
{
    if (!dpdk_recv_complete(m)) {
        if (!m->first || m->msg.hdr.len <= e->ep.eager_max)
            return 0;
        m->msg.data = NULL;
    } else if (m->msg.hdr.len == 0) {
        m->msg.data = m->seam;
    } else if (!m->frags->next) {
        m->msg.data = m->frags->data;
    } else if (m->msg.hdr.len <= e->ep.eager_max && !flatten(e, m)) {
        e->starved |= 1u << m->msg.hdr.chan;
        return 0;
    }
    m->reported = 1;
    return 1;
}

/* Delivers due messages, and moves past complete ones. */
static void dpdk_recv_advance(struct dp_ep *e, struct dp_in *in)
{
    struct dp_msg *m;

    while ((m = in->list) && m->id == in->next_id) {
        if (m->bye && dpdk_recv_complete(m)) {
            e->left = 1;
            e->left_ns = dp_tp_of(e)->now;
            m->dropped = 1;
        } else if (!m->reported && !m->bye) {
            if (!report(e, m))
                return;
            bny_msg_list_push_back(&e->ready, &m->msg);
        }
        if (!dpdk_recv_complete(m))
            return;
        in->list = m->next;
        in->next_id++;
        m->whole = 1;
        if (m->dropped) {
            drop_all(e, m);
            give_msg(dp_tp_of(e), m);
        }
    }
}

void bny_dgram_retry(struct dp_ep *e)
{
    uint32_t chans = e->starved;

    e->starved = 0;
    for (int c = 0; c < BNY_CHANNELS; c++)
        if (chans >> c & 1)
            dpdk_recv_advance(e, &e->in[c]);
}

/* 1: kept, 0: accepted without its buffer, -1: contradicts its message (or no memory). */
static int dpdk_recv_place(struct dp_ep *e, const struct bny_dgram_packet *p, void *buf)
{
    struct dp_msg *m = dpdk_recv_find(e, &p->head);
    int kept = 0;

    if (!m || !agrees(m, p))
        return -1;
    if (!m->dropped && p->len) {
        if (!append(e, m, p, buf))
            return -1;
        kept = 1;
    }
    if (p->head.flags & BNY_DGRAM_FIRST) {
        m->msg.hdr = p->hdr;
        m->first = 1;
        m->bye = (p->head.flags & BNY_DGRAM_BYE) != 0;
    }
    if (p->head.flags & BNY_DGRAM_LAST) {
        m->last = 1;
        m->end = p->head.off + p->len;
    }
    m->got += p->len;
    if (!m->dropped && p->head.off == m->reach) {
        struct dp_frag *f = m->frags;

        while (f && f->off < m->reach)
            f = f->next;
        for (; f && f->off == m->reach; f = f->next)
            m->reach += f->len;
    }
    dpdk_recv_advance(e, &e->in[p->head.chan]);
    return kept;
}

static int take_data(struct dp_ep *e, const struct bny_dgram_packet *p, void *buf)
{
    struct dp_tp *t = dp_tp_of(e);
    int fresh = bny_flow_is_new(&e->rx, p->head.seq), gap = bny_flow_gap(&e->rx), kept;

    if (fresh < 0) {
        t->drops[BNY_DGRAM_BAD_PLACE]++;
        return 0;
    }
    /* Credit is never revoked, a packet keeps its number in retransmissions, and channels share
     * the numbers: an honest peer has no number from limit_told on, whatever the order of its
     * packets and our credit. */
    if (fresh && !bny_flow_before(p->head.seq, e->limit_told)) {
        t->drops[BNY_DGRAM_NO_CREDIT]++;
        return 0;
    }
    if (e->acks_due++ == 0) {
        e->ack_since_ns = t->now;
        e->echo = p->head.time;
        e->echo_ns = t->now;
    }
    if (!fresh) {
        bny_flow_arrived(&e->rx, p->head.seq); /* counts it */
        if (p->head.flags &
            BNY_DGRAM_AGAIN) /* an acknowledgement was lost; else the network duplicated it */
            e->acks_due = DP_ACK_EVERY;
        return 0;
    }
    kept = dpdk_recv_place(e, p, buf);
    if (kept < 0) {
        t->drops[BNY_DGRAM_BAD_PLACE]++;
        return 0;
    }
    bny_flow_arrived(&e->rx, p->head.seq);
    /* At once for a gap that opens or closes; also for the end of a long message, and for the
     * sender's last packet: it waits, and this rank may not poll for long after it. */
    if (bny_flow_gap(&e->rx) != gap || (p->head.flags & (BNY_DGRAM_BYE | BNY_DGRAM_WAITS)) ||
        (p->head.flags & BNY_DGRAM_LAST && p->head.off))
        e->acks_due = DP_ACK_EVERY;
    return kept;
}

/* ---- frames ---- */

static int take_ack(struct dp_ep *e, const struct bny_dgram_packet *p)
{
    struct dp_tp *t = dp_tp_of(e);
    const struct bny_dgram_sack *sack = p->head.type == BNY_DGRAM_ACK ? &p->sack : NULL;
    uint64_t rtt = 0;

    if (sack && p->head.echo) {
        rtt = (uint64_t)((uint32_t)(t->now >> 6) - p->head.echo) << 6;
        rtt = rtt > sack->delay && rtt < 10000000000u ? rtt - sack->delay : 0;
    }
    return bny_flow_ack(&e->tx, p->head.ack, p->head.credit, sack, rtt, t->now, bny_dgram_acked,
                        NULL);
}

static struct dp_ep *sender(struct dp_tp *t, struct dp_ep *e, const struct bny_dgram_head *h)
{
    if (!e && h->from < t->tp.nranks)
        e = t->eps[h->from];
    if (e && e->ep.peer == h->from && e->tag_in == ((uint64_t)h->tag_rest << 32 | h->tag))
        return e;
    return NULL;
}

/* Some of an earlier job are no wonder. */
static void wrong_tag(struct dp_tp *t)
{
    uint64_t n = t->drops[BNY_DGRAM_BAD_TAG] + 1;

    if (n >= WRONG_TAGS && (n & (n - 1)) == 0)
        bny_warn(
            "%s: rank %d has dropped %llu packets with wrong tags: they are of another job, "
            "or somebody guesses",
            t->tp.ops->name, t->tp.rank, (unsigned long long)n);
}

int bny_dgram_frame(struct dp_tp *t, struct dp_ep *e, const struct bny_dgram_rx *rx)
{
    struct bny_dgram_addr self = { .port = t->blob.udp_port,
                                   .ip = e ? e->self.ip : t->blob.ip };
    struct bny_dgram_packet p;
    enum bny_dgram_drop why = t->set.kind == BNY_DGRAM_UD
                                  ? bny_dgram_parse_bare(rx->data, rx->len, &p)
                                  : bny_dgram_parse(rx->data, rx->len, &self, &p);

    if (why == BNY_DGRAM_OK) {
        e = sender(t, e, &p.head);
        if (!e)
            why = BNY_DGRAM_BAD_TAG;
        else if (t->eth == BNY_DGRAM_ETH6 && !rx->summed && !bny_dgram_udp_sum_ok(rx->data))
            why = BNY_DGRAM_BAD_CHECK;
        else if (t->set.checks &&
                 !bny_dgram_check_ok(t->set.checks, e->key, bny_dgram_high(e, &p.head, 0), &p))
            why = BNY_DGRAM_BAD_CHECK;
    } else if (why == BNY_DGRAM_FOREIGN && !e && t->set.kind != BNY_DGRAM_UD) {
        bny_dgram_hear(t, rx->data, rx->len);
    }
    if (why == BNY_DGRAM_BAD_TAG)
        wrong_tag(t);
    if (why != BNY_DGRAM_OK) {
        t->drops[why]++;
        return 0;
    }
    if (e->down)
        return 0;
    dp_wake(e);
    if (!e->ever_heard)
        e->asks = 0; /* no peer was there to answer */
    e->heard = e->ever_heard = 1;
    if (take_ack(e, &p) != 0) {
        t->drops[BNY_DGRAM_BAD_PLACE]++;
        return 0;
    }
    bny_dgram_grants_hear(e, &p.head);
    switch (p.head.type) {
    case BNY_DGRAM_DATA: return take_data(e, &p, rx->buf);
    case BNY_DGRAM_PROBE:
        if (p.head.off)
            bny_dgram_control(e, BNY_DGRAM_PROBED, rx->len, 0);
        else
            e->acks_due = DP_ACK_EVERY;
        return 0;
    case BNY_DGRAM_PROBED:
        if (p.head.off == e->frame_wanted)
            e->frame = e->frame_wanted;
        return 0;
    case BNY_DGRAM_ABORT:
        if (!e->left)
            bny_dgram_down(e, "ended without a farewell");
        return 0;
    default: return 0;
    }
}

/* ---- lending ---- */

/* Copies [off, off + len) out; all of it has arrived. */
static void copy_out(struct dp_msg *m, uint32_t off, uint32_t len, uint8_t *to)
{
    for (const struct dp_frag *f = m->frags; f && len; f = f->next) {
        uint32_t skip = off - f->off, n = f->len - skip;

        if (f->off > off || skip >= f->len)
            continue;
        n = n < len ? n : len;
        memcpy(to, f->data + skip, n);
        to += n;
        off += n;
        len -= n;
    }
}

long bny_dgram_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst,
                    const void **ptr)
{
    struct dp_msg *m = (struct dp_msg *)msg;
    struct dp_ep *e = (struct dp_ep *)msg->ep;
    uint32_t n, in_frag;

    if (m->flat || msg->hdr.len == 0) {
        *ptr = m->flat ? m->flat + off : m->seam;
        if (dst)
            *ptr = memcpy(dst, *ptr, len);
        return len;
    }
    while (m->frags && m->frags->off + m->frags->len <= off)
        drop_front(e, m); /* viewed */
    if (m->reach <= off)
        return e->down
                   ? bny_fail(BANYAN_ERANKDEAD, "rank %d is gone: it %s", e->ep.peer, e->reason)
                   : BNY_AGAIN;
    n = m->reach - off < len ? m->reach - off : len;
    if (n < len)
        n &= ~63u;
    if (n == 0)
        return BNY_AGAIN;
    if (dst) {
        copy_out(m, off, n, dst);
        *ptr = dst;
        bny_counter_add(&e->ep.tp->copied_bytes, n);
        while (m->frags && m->frags->off + m->frags->len <= off + n)
            drop_front(e, m);
        return n;
    }
    in_frag = m->frags->len - (off - m->frags->off);
    if (in_frag >= n || in_frag >= 64) {
        *ptr = m->frags->data + (off - m->frags->off);
        return in_frag >= n ? n : in_frag & ~63u;
    }
    n = n < 64 ? n : 64; /* across a boundary */
    copy_out(m, off, n, m->seam);
    *ptr = m->seam;
    return n;
}

void bny_dgram_release(struct bny_msg *msg)
{
    struct dp_msg *m = (struct dp_msg *)msg;
    struct dp_ep *e = (struct dp_ep *)msg->ep;

    drop_all(e, m);
    if (m->whole)
        give_msg(dp_tp_of(e), m);
    else
        m->dropped = 1; /* later fragments are dropped */
}

void bny_dgram_forget(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);

    for (struct dp_msg *m = t->all_msgs; m; m = m->all)
        if (m->msg.ep == &e->ep) {
            drop_all(e, m);
            free(m->flat);
            m->flat = NULL;
        }
}
