/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages to packets. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/err.h"
#include "transport/datagram/dgram.h"

/* ---- memory of an endpoint ---- */

const char *bny_dgram_more(const struct dp_tp *t)
{
    return t->set.kind == BNY_DGRAM_UD
               ? ""
               : "; give DPDK more: BANYAN_DPDK_ARGS=\"-m MIB\", or hugepages";
}

/* Only if peers are few, so that pinned memory does not grow with their number. Else frames are
 * copied from there. */
static void register_memory(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);
    char text[BNY_DGRAM_TEXT];

    if ((uint64_t)t->tp.nranks * DP_EP_BYTES > DP_MAP_MOST ||
        t->drv->map(t->port, e->memory, DP_EP_BYTES, text) != 0) {
        e->is_unmapped = 1;
        return;
    }
    bny_counter_add(&t->tp.pinned_bytes, DP_EP_BYTES);
}

int bny_dgram_ep_memory(struct dp_ep *e)
{
    const struct bny_dgram_driver *drv = dp_tp_of(e)->drv;

    e->outs = calloc(DP_MESSAGES, sizeof *e->outs);
    e->memory = drv->alloc(DP_EP_BYTES);
    if (!e->outs || !e->memory)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for messages to rank %d%s",
                        e->ep.tp->rank, e->ep.peer, bny_dgram_more(dp_tp_of(e)));
    if (dp_tp_of(e)->set.kind == BNY_DGRAM_UD)
        register_memory(e);
    for (uint32_t i = DP_MESSAGES; i-- > 0;) {
        struct dp_out *o = &e->outs[i];
        struct dp_out **list = i < DP_EAGERS ? &e->free_eagers : &e->free_outs;

        if (i < DP_EAGERS)
            o->own = e->memory + i * DP_EAGER_MAX;
        o->next = *list;
        *list = o;
    }
    return 0;
}

static void give_out(struct dp_ep *e, struct dp_out *o)
{
    struct dp_out **list = o->own ? &e->free_eagers : &e->free_outs;

    BNY_ASSERT(o->kind != DP_FREE);
    if (o->kind == DP_SLOT)
        e->slots_busy &= ~(1u << o->slot);
    free(o->copy);
    o->copy = NULL;
    o->kind = DP_FREE;
    o->next = *list;
    *list = o;
}

/* ---- packets ---- */

uint32_t bny_dgram_credit(const struct dp_ep *e)
{
    uint32_t room = e->held < dp_budget(e) && !e->starved ? dp_budget(e) - e->held : 0;

    return room < dp_window(e) ? room : dp_window(e);
}

static void fill_head(struct dp_ep *e, struct bny_dgram_head *h, enum bny_dgram_type type,
                      uint32_t length)
{
    uint32_t credit = bny_dgram_credit(e);

    memset(h, 0, sizeof *h);
    h->magic = BNY_DGRAM_MAGIC;
    h->type = (uint8_t)type;
    h->tag = (uint32_t)e->tag_out;
    h->tag_rest = (uint32_t)(e->tag_out >> 32);
    h->ack = e->rx.cum;
    h->credit = (uint16_t)credit;
    h->length = (uint8_t)length;
    h->time = (uint32_t)(dp_tp_of(e)->now >> 6);
    h->from = (uint16_t)e->ep.tp->rank;
    bny_dgram_grants_say(e, h);
    if (bny_flow_before(e->limit_told, e->rx.cum + credit))
        e->limit_told = e->rx.cum + credit;
}

/* The number near `at` whose lower half this is. */
static uint64_t whole_number(uint64_t at, uint32_t low)
{
    return at + (uint64_t)(int64_t)(int32_t)(low - (uint32_t)at);
}

uint64_t bny_dgram_high(struct dp_ep *e, const struct bny_dgram_head *h, int ours)
{
    uint64_t seq, ack;

    e->tx_at = whole_number(e->tx_at, e->tx.una);
    e->rx_at = whole_number(e->rx_at, e->rx.cum);
    seq = whole_number(ours ? e->tx_at : e->rx_at, h->seq);
    ack = whole_number(ours ? e->rx_at : e->tx_at, h->ack);
    return (h->type == BNY_DGRAM_DATA ? seq >> 32 << 32 : 0) | ack >> 32;
}

/* Completes a frame with its header at head + t->eth. */
static void dpdk_send_finish(struct dp_ep *e, uint8_t *head, struct bny_dgram_tx *tx)
{
    struct dp_tp *t = dp_tp_of(e);
    struct bny_dgram_head h;
    uint64_t v;

    if (t->set.checks) {
        memcpy(&h, head + t->eth, sizeof h);
        v = bny_dgram_check(t->set.checks, e->key, bny_dgram_high(e, &h, 1), head + t->eth,
                            tx->head_len - t->eth, tx->body, tx->body_len);
        memcpy(head + t->eth + BNY_DGRAM_HEAD, &v, sizeof v);
    }
    memcpy(head, e->eth, t->eth);
    if (t->set.kind == BNY_DGRAM_UD)
        return; /* the driver uses the destination, the rest is not sent */
    if (e->lanes > 1)
        bny_dgram_eth_lane(head, &e->self,
                           head[t->eth + offsetof(struct bny_dgram_head, chan)]);
    bny_dgram_eth_length(head, tx->head_len + tx->body_len);
    /* With the payload: with IPv4 only for a port that verifies it, as 0 means none there (RFC
     * 768); IPv6 requires it (RFC 8200, 8.1). */
    if ((e->blob.verifies || t->eth == BNY_DGRAM_ETH6) && !(e->info.caps & BNY_DGRAM_CSUM))
        bny_dgram_udp_sum(head, tx->head_len, tx->body, tx->body_len);
}

static uint32_t check_bytes(const struct dp_tp *t)
{
    return t->set.checks ? BNY_DGRAM_CHECK : 0;
}

void bny_dgram_control(struct dp_ep *e, enum bny_dgram_type type, uint32_t off, uint32_t frame)
{
    static const uint8_t padding[65536];
    struct dp_tp *t = dp_tp_of(e);
    uint8_t head[BNY_DGRAM_HEAD_MAX];
    uint32_t extra = check_bytes(t), len = BNY_DGRAM_HEAD + extra;
    struct bny_dgram_tx tx = { .head = head };
    struct bny_dgram_head h;
    struct bny_dgram_sack sack;

    memset(head, 0, sizeof head);
    if (type == BNY_DGRAM_ACK) {
        bny_flow_sack(&e->rx, &sack);
        sack.delay =
            (uint32_t)(t->now - e->echo_ns < UINT32_MAX ? t->now - e->echo_ns : UINT32_MAX);
        memcpy(head + t->eth + len, &sack, sizeof sack);
        len += (uint32_t)sizeof sack;
    }
    fill_head(e, &h, type, len);
    h.off = off;
    h.echo = e->echo;
    h.flags = t->set.checks ? BNY_DGRAM_CHECKED : 0;
    memcpy(head + t->eth, &h, sizeof h);
    tx.head_len = t->eth + len;
    if (frame > tx.head_len) {
        tx.body = padding;
        tx.body_len = frame - tx.head_len;
    }
    dpdk_send_finish(e, head, &tx);
    bny_dgram_transmit(t, e, &tx, 1);
}

void bny_dgram_ack(struct dp_ep *e)
{
    e->acks_due = 0;
    bny_dgram_control(e, BNY_DGRAM_ACK, 0, 0);
}

static int more_to_send(const struct dp_ep *e)
{
    for (int c = 0; c < BNY_CHANNELS; c++)
        if (e->queue[c].sending)
            return 1;
    return 0;
}

static int is_attached(const struct dp_out *o, uint32_t off, uint32_t len)
{
    return o->held && off >= o->lo && off + len <= o->hi;
}

/* One fragment. */
static void dpdk_send_build(struct dp_ep *e, struct bny_dgram_tx *tx, uint8_t *head,
                            uint32_t seq)
{
    struct dp_tp *t = dp_tp_of(e);
    const struct bny_flow_packet *p = &e->tx.pk[seq % e->tx.size];
    struct dp_out *o = p->msg;
    uint32_t at = BNY_DGRAM_HEAD + check_bytes(t),
             full = (t->eth + at + (uint32_t)sizeof o->hdr + 63) & ~63u;
    struct bny_dgram_head h;
    uint32_t length;

    length = p->off == 0 ? at + (uint32_t)sizeof o->hdr : at;
    if (e->frame >= 4096)
        length = full - t->eth;
    fill_head(e, &h, BNY_DGRAM_DATA, length);
    h.flags = (uint8_t)((p->off == 0 ? BNY_DGRAM_FIRST : 0) |
                        (p->off + p->len == o->hdr.len ? BNY_DGRAM_LAST : 0) |
                        (p->tries > 1 ? BNY_DGRAM_AGAIN : 0) |
                        (o->kind == DP_BYE ? BNY_DGRAM_BYE : 0) |
                        (e->waiting && !more_to_send(e) ? BNY_DGRAM_WAITS : 0) |
                        (t->set.checks ? BNY_DGRAM_CHECKED : 0));
    h.seq = seq;
    h.chan = o->hdr.chan;
    h.msg = o->id;
    h.off = p->off;
    memset(head + t->eth + BNY_DGRAM_HEAD, 0, length - BNY_DGRAM_HEAD);
    memcpy(head + t->eth, &h, sizeof h);
    if (p->off == 0)
        memcpy(head + t->eth + at, &o->hdr, sizeof o->hdr);
    *tx = (struct bny_dgram_tx){ .head = head,
                                 .head_len = t->eth + length,
                                 .body = o->buf + p->off,
                                 .body_len = p->len,
                                 .ref = is_attached(o, p->off, p->len) ? &o->held->ref : NULL };
    if (!tx->ref)
        bny_tp_staged(&t->tp, p->len);
    if (p->tries > 1 || t->faults) /* faults may duplicate it */
        o->twice = 1;
    bny_counter_add(&t->tp.wire_bytes, p->len);
    dpdk_send_finish(e, head, tx);
}

uint32_t bny_dgram_fragment(const struct dp_tp *t, uint32_t off, uint32_t frame)
{
    uint32_t at = t->eth + BNY_DGRAM_HEAD + check_bytes(t);

    if (off == 0 || frame >= 4096)
        at += (uint32_t)sizeof(struct bny_hdr);
    if (frame >= 4096)
        at = (at + 63) & ~63u;
    return (frame - at) & ~63u;
}

/* The next message with data to send, channels in turn. */
static struct dp_out *next_out(struct dp_ep *e)
{
    for (unsigned i = 0; i < BNY_CHANNELS; i++) {
        struct dp_queue *q = &e->queue[(e->turn + i) % BNY_CHANNELS];

        if (q->sending) {
            e->turn = (e->turn + i + 1) % BNY_CHANNELS;
            return q->sending;
        }
    }
    return NULL;
}

static uint32_t send_next(struct dp_ep *e, struct dp_out *o, uint64_t now)
{
    uint32_t len = bny_dgram_fragment(dp_tp_of(e), o->off, e->frame), seq;

    BNY_ASSERT(!o->all_sent && o->off <= o->hdr.len);
    if (len > o->hdr.len - o->off)
        len = o->hdr.len - o->off;
    seq = bny_flow_send(&e->tx, o, o->off, len, now);
    e->backlog -= len + (o->off == 0 ? DP_WIRE : 0);
    o->off += len;
    o->unacked++;
    if (o->off == o->hdr.len) {
        o->all_sent = 1;
        e->queue[o->hdr.chan].sending = o->next;
    }
    return seq;
}

/* Messages not yet given to the driver: operations must not end before, as their rank may
 * compute for long afterwards. */
static void count_unsent(struct dp_ep *e)
{
    uint32_t n = 0;

    for (int c = 0; c < BNY_CHANNELS && !e->down; c++)
        n += e->queue[c].sending != NULL;
    n += !e->down && e->tx.lost > 0;
    e->ep.tp->unsent += n;
    e->ep.tp->unsent -= e->ep.unsent;
    e->ep.unsent = n;
}

static void dpdk_send_push(struct dp_ep *e)
{
    struct dp_tp *t = dp_tp_of(e);
    uint8_t heads[BNY_DGRAM_BURST][BNY_DGRAM_HEAD_MAX];
    struct bny_dgram_tx tx[BNY_DGRAM_BURST];
    uint32_t seqs[BNY_DGRAM_BURST];
    int n, sent;

    if (!e->up || e->down)
        return;
    do {
        for (n = 0; n < BNY_DGRAM_BURST; n++) {
            struct dp_out *o;

            if (!bny_flow_resend(&e->tx, &seqs[n], t->now)) {
                if (!bny_flow_may_send(&e->tx) || !(o = next_out(e)))
                    break;
                seqs[n] = send_next(e, o, t->now);
            }
            dpdk_send_build(e, &tx[n], heads[n], seqs[n]);
        }
        sent = n ? bny_dgram_transmit(t, e, tx, n) : 0;
        for (int i = n; i-- > sent;)
            bny_flow_unsend(&e->tx, seqs[i]);
        if (sent > 0 && !bny_flow_gap(&e->rx))
            e->acks_due = 0; /* this packet carried them */
    } while (n == BNY_DGRAM_BURST && sent == n);
}

void bny_dgram_push(struct dp_ep *e)
{
    dpdk_send_push(e);
    count_unsent(e);
}

/* ---- what is complete ---- */

void bny_dgram_acked(void *ctx, struct bny_flow_packet *p)
{
    BNY_ASSERT(((struct dp_out *)p->msg)->unacked > 0);
    ((struct dp_out *)p->msg)->unacked--;
}

static void tell_sent(struct dp_ep *e, void *cookie)
{
    struct dp_sent *s = e->free_sent;

    if (s)
        e->free_sent = s->next;
    else
        s = malloc(sizeof *s);
    if (!s)
        return; /* the caller waits for it until its deadline: no memory is left */
    dp_wake(e);
    s->next = NULL;
    s->cookie = cookie;
    *e->sent_tail = s;
    e->sent_tail = &s->next;
}

void bny_dgram_out_done(struct dp_ep *e, struct dp_out *o)
{
    if (o->kind == DP_USER)
        tell_sent(e, o->cookie);
    give_out(e, o);
}

void bny_dgram_reap(struct dp_ep *e)
{
    for (int c = 0; c < BNY_CHANNELS; c++) {
        struct dp_queue *q = &e->queue[c];
        struct dp_out *o;

        while ((o = q->head) && o->all_sent && o->unacked == 0) {
            q->head = o->next;
            if (!q->head)
                q->tail = &q->head;
            e->queued--;
            if (o->kind == DP_USER)
                e->waiting--;
            if (o->kind == DP_BYE)
                e->bye = 2;
            bny_dgram_let_go(e, o, !o->twice);
        }
    }
}

void bny_dgram_give_up(struct dp_ep *e)
{
    for (int c = 0; c < BNY_CHANNELS; c++) {
        struct dp_queue *q = &e->queue[c];

        while (q->head) {
            struct dp_out *o = q->head;

            q->head = o->next;
            bny_dgram_let_go(e, o, 0);
        }
        q->tail = &q->head;
        q->sending = NULL;
    }
    e->queued = e->waiting = 0;
    e->backlog = 0;
    bny_dgram_grants_end(e);
    bny_flow_tx_init(&e->tx, 1, 0, e->frame);
    count_unsent(e);
}

/* ---- the contract ---- */

static int dpdk_send_check(struct dp_ep *e, const struct bny_hdr *hdr, uint32_t max)
{
    if (hdr->chan >= BNY_CHANNELS || hdr->len > max)
        return bny_fail(BANYAN_EINVAL,
                        "message to rank %d: channel %u (below %d), %u bytes (at most %u)",
                        e->ep.peer, hdr->chan, BNY_CHANNELS, hdr->len, max);
    if (e->left)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d has left the job", e->ep.peer);
    if (e->down)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d is gone: it %s", e->ep.peer, e->reason);
    if (!e->used) {
        e->used = 1;
        e->first_ns = dp_tp_of(e)->now;
    }
    return 0;
}

static void dpdk_send_enqueue(struct dp_ep *e, struct dp_out *o, const struct bny_hdr *hdr,
                              const void *buf)
{
    struct dp_queue *q = &e->queue[hdr->chan];

    dp_wake(e);
    dp_tp_of(e)->now = bny_now_ns();
    o->hdr = *hdr;
    o->buf = buf;
    o->id = q->next_id++;
    o->off = o->unacked = 0;
    o->all_sent = o->twice = 0;
    o->held = o->lo < o->hi ? bny_dgram_hold(e, buf, hdr->len) : NULL;
    o->next = NULL;
    *q->tail = o;
    q->tail = &o->next;
    if (!q->sending)
        q->sending = o;
    e->queued++;
    if (!e->backlog)
        e->tx.busy_ns = dp_tp_of(e)->now;
    e->backlog += hdr->len + DP_WIRE;
    e->waiting += o->kind == DP_USER;
    bny_counter_add(&e->ep.tp->messages, 1);
    bny_dgram_push(e);
}

static struct dp_out *dpdk_send_take(struct dp_out **list)
{
    struct dp_out *o = *list;

    if (o)
        *list = o->next;
    return o;
}

/* The part of a message that the driver can read in place: all, nothing, or the whole pages of
 * registered memory. Short messages are copied, which is cheaper. */
static void attach(const struct dp_ep *e, struct dp_out *o, const void *buf, uint32_t len,
                   int is_ours)
{
    const uint8_t *at = buf;

    o->lo = o->hi = 0;
    if (!(e->info.caps & BNY_DGRAM_GATHER) || len <= DP_COPY_MAX)
        return;
    if (is_ours || (e->info.caps & BNY_DGRAM_EXT_ANY) ||
        ((e->info.caps & BNY_DGRAM_EXT_EAL) && dp_tp_of(e)->drv->owns(buf, len))) {
        o->hi = len;
        return;
    }
    for (const struct dp_mem *m = dp_tp_of(e)->mem; m; m = m->next)
        if (m->lo < m->hi && at < m->hi && m->lo < at + len) {
            o->lo = at < m->lo ? (uint32_t)(m->lo - at) : 0;
            o->hi = at + len > m->hi ? (uint32_t)(m->hi - at) : len;
            return;
        }
}

int bny_dgram_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf)
{
    struct dp_ep *e = (struct dp_ep *)ep;
    int rc = dpdk_send_check(e, hdr, ep->eager_max);
    struct dp_out *o;

    if (rc)
        return rc;
    o = dpdk_send_take(&e->free_eagers);
    if (!o)
        return BNY_AGAIN;
    o->kind = DP_EAGER;
    attach(e, o, o->own, hdr->len, !e->is_unmapped);
    if (hdr->len)
        memcpy(o->own, buf, hdr->len);
    bny_tp_staged(ep->tp, hdr->len);
    dpdk_send_enqueue(e, o, hdr, o->own);
    return 0;
}

int bny_dgram_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie)
{
    struct dp_ep *e = (struct dp_ep *)ep;
    int rc = dpdk_send_check(e, hdr, UINT32_MAX);
    struct dp_out *o;

    if (rc)
        return rc;
    o = dpdk_send_take(&e->free_outs);
    if (!o)
        return BNY_AGAIN;
    o->kind = DP_USER;
    o->cookie = cookie;
    attach(e, o, buf, hdr->len, 0);
    dpdk_send_enqueue(e, o, hdr, buf);
    return 0;
}

/* Replaces memory that its owner takes back by our own copy. */
static void take_copy(struct dp_ep *e, struct dp_out *o)
{
    o->copy = malloc(o->hdr.len ? o->hdr.len : 1);
    if (!o->copy) {
        bny_dgram_down(e, "gets no more: no memory is left for data in transit to it");
        return;
    }
    if (o->hdr.len)
        memcpy(o->copy, o->buf, o->hdr.len);
    bny_dgram_detach_out(e, o);
    o->buf = o->copy;
}

static struct dp_out *dpdk_send_find(const struct dp_ep *e, const void *cookie)
{
    for (int c = 0; c < BNY_CHANNELS; c++)
        for (struct dp_out *o = e->queue[c].head; o; o = o->next)
            if (o->kind == DP_USER && o->cookie == cookie && !o->copy)
                return o;
    return NULL;
}

/* Unsent and unacknowledged fragments come from the copy. Frames in the driver refer to the
 * original memory until they are sent. */
void bny_dgram_recall(struct bny_tp *tp, void *cookie)
{
    struct dp_tp *t = (struct dp_tp *)tp;

    t->now = bny_now_ns();
    for (int r = 0; r < tp->nranks; r++) {
        struct dp_out *o = t->eps[r] ? dpdk_send_find(t->eps[r], cookie) : NULL;
        const void *mem = o ? o->buf : NULL;
        uint32_t len = o ? o->hdr.len : 0;

        if (o)
            take_copy(t->eps[r], o);
        if (o)
            bny_dgram_held_settle(t, mem, len);
    }
    for (struct dp_held *h = t->held; h; h = h->next)
        if (h->out && h->out->cookie == cookie) {
            bny_dgram_held_settle(t, h->buf, h->len);
            break; /* the list has changed */
        }
}

int bny_dgram_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot)
{
    struct dp_ep *e = (struct dp_ep *)ep;
    struct bny_hdr probe = { .len = cap };
    int rc = dpdk_send_check(e, &probe, ep->slot_max);
    struct dp_out *o;

    if (rc)
        return rc;
    if (e->slots_busy == UINT32_MAX || !(o = dpdk_send_take(&e->free_outs)))
        return BNY_AGAIN;
    o->kind = DP_SLOT;
    o->slot = (uint16_t)__builtin_ctz(~e->slots_busy);
    e->slots_busy |= 1u << o->slot;
    slot->index = o->slot;
    slot->mem = e->memory + DP_EAGERS * DP_EAGER_MAX + o->slot * DP_SLOT_MAX;
    slot->cap = DP_SLOT_MAX;
    slot->impl = o;
    return 0;
}

void bny_dgram_cancel(struct bny_ep *ep, struct bny_slot *slot)
{
    give_out((struct dp_ep *)ep, slot->impl);
}

int bny_dgram_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr)
{
    struct dp_ep *e = (struct dp_ep *)ep;
    int rc = dpdk_send_check(e, hdr, slot->cap);

    if (rc)
        give_out(e, slot->impl);
    else {
        attach(e, slot->impl, slot->mem, hdr->len, !e->is_unmapped);
        dpdk_send_enqueue(e, slot->impl, hdr, slot->mem);
    }
    return rc;
}

int bny_dgram_bye(struct dp_ep *e)
{
    struct bny_hdr hdr = { .len = 0 };
    struct dp_out *o;

    if (e->bye || e->down || !e->up)
        return 0;
    if (e->queued && !e->left)
        return BNY_AGAIN;
    o = dpdk_send_take(&e->free_eagers);
    if (!o)
        return BNY_AGAIN;
    o->kind = DP_BYE;
    o->lo = o->hi = 0;
    e->bye = 1;
    dpdk_send_enqueue(e, o, &hdr, NULL);
    return 0;
}
