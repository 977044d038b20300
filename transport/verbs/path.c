/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of a message: a slot of the peer's, the write, its completion there, release, the slot's return. verbs.h
 * has the scheme. Peers' numbers (slots, lengths, counts) are checked: a wrong one ends the connection. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "transport/verbs/verbs.h"

static char *eager_in(const struct vb_conn *c, uint32_t slot)
{
    return c->slab + (size_t)slot * VB_EAGER_STRIDE;
}

static char *eager_out(const struct vb_conn *c, uint32_t slot)
{
    return c->slab + VB_SLAB_BYTES + (size_t)slot * VB_EAGER_STRIDE;
}

static char *bulk_out(const struct vb_conn *c, uint32_t slot)
{
    return c->slab + VB_SLAB_BYTES + VB_SLAB_EAGER + (size_t)slot * VB_BULK_STRIDE;
}

static char *hello_out(const struct vb_conn *c)
{
    return c->slab + 2 * (size_t)VB_SLAB_BYTES + sizeof(struct vb_hello);
}

static struct vb_conn *open_conn(struct bny_ep *ep, int *rc)
{
    struct vb_ep *e = (struct vb_ep *)ep;

    if (e->state == VB_OPEN)
        return e->conn;
    *rc = BNY_AGAIN;
    if (e->down || e->left)
        *rc = bny_fail(BANYAN_ERANKDEAD, "rank %d %s", ep->peer, e->down ? e->reason : "has left");
    else if (e->state == VB_IDLE)
        bny_verbs_ask(e);
    return NULL;
}

/* ---- posting ---------------------------------------------------------------------------- */

static uint32_t under_way(const struct vb_conn *c)
{
    return c->posted - c->reported;
}

/* Room for data requests; the rest is for what must always go. */
static int has_room(const struct vb_conn *c, uint32_t requests)
{
    return under_way(c) + requests <= VB_SENDS - VB_SENDS_SPARE;
}

/* tells: its end is told as SENT(cookie). A request that was kept back goes before it. */
static int post(struct vb_conn *c, struct ibv_send_wr *wr, int tells, void *cookie)
{
    struct ibv_send_wr *bad, *first = c->kept ? c->kept : wr;
    int rc;

    c->sent[c->posted % VB_SENDS] = (struct vb_sent){ cookie, tells };
    wr->wr_id = c->posted;
    if (tells || c->posted % VB_SIGNAL_EVERY == 0)
        wr->send_flags |= IBV_SEND_SIGNALED;
    if (c->kept)
        c->kept->next = wr;
    c->kept = NULL;
    rc = ibv_post_send(c->id->qp, first, &bad);
    if (rc) {
        bny_verbs_down(c->e, "refuses a send request on device %s: %s", c->t->device, strerror(rc));
        return bny_fail(BANYAN_ERANKDEAD, "rank %d %s", c->e->ep.peer, c->e->reason);
    }
    c->posted++;
    return 0;
}

/* Keeps a request back, so that it and the next one ring the device's bell once. The caller posts that one while *wr
 * lives, whatever comes. */
static void keep(struct vb_conn *c, struct ibv_send_wr *wr)
{
    c->sent[c->posted % VB_SENDS] = (struct vb_sent){ NULL, 0 };
    wr->wr_id = c->posted;
    if (c->posted++ % VB_SIGNAL_EVERY == 0)
        wr->send_flags |= IBV_SEND_SIGNALED;
    c->kept = wr;
}

int bny_verbs_tell(struct vb_conn *c, enum vb_imm kind, uint32_t value)
{
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                              .imm_data = htonl((uint32_t)kind << 28 | (value & 0xfffffff)),
                              .send_flags = kind == VB_IMM_FAREWELL ? IBV_SEND_SIGNALED : 0 };

    if (under_way(c) >= VB_SENDS)
        return BNY_AGAIN;
    wr.wr.rdma.remote_addr = c->remote_addr;
    wr.wr.rdma.rkey = c->rkey;
    return post(c, &wr, 0, NULL);
}

int bny_verbs_post_hello(struct vb_conn *c, const struct vb_hello *h)
{
    struct ibv_sge sge = { .addr = (uintptr_t)hello_out(c), .length = sizeof *h,
                           .lkey = c->mr_out->lkey };
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };

    memcpy(hello_out(c), h, sizeof *h);
    return post(c, &wr, 0, NULL);
}

/* Receive requests without memory: immediates bring their data by themselves. */
int bny_verbs_post_recvs(struct vb_conn *c, uint32_t n)
{
    struct ibv_recv_wr wrs[VB_RECV_BATCH], *bad;

    memset(wrs, 0, sizeof wrs);
    while (n) {
        uint32_t m = n < VB_RECV_BATCH ? n : VB_RECV_BATCH;

        for (uint32_t i = 0; i < m; i++)
            wrs[i].next = i + 1 < m ? &wrs[i + 1] : NULL;
        if (ibv_post_recv(c->id->qp, wrs, &bad) != 0)
            return -BANYAN_ESYSTEM;
        n -= m;
    }
    return 0;
}

/* ---- sending ---------------------------------------------------------------------------- */

/* Writes header and payload into a slot of the peer's. `mem` is our slot of the same number: it holds the header, and
 * the payload too unless `user` (registered as mr) does. */
static int write_slot(struct vb_conn *c, enum vb_imm kind, uint32_t slot, char *mem,
                      const struct bny_hdr *hdr, uint32_t len, const void *user,
                      const struct ibv_mr *mr, int tells, void *cookie)
{
    struct ibv_sge sge[2] = { { .addr = (uintptr_t)mem, .lkey = c->mr_out->lkey } };
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .sg_list = sge, .num_sge = 1,
                              .imm_data = htonl((uint32_t)kind << 28 | slot) };

    memcpy(mem, hdr, sizeof *hdr);
    sge[0].length = VB_HEAD + (user ? 0 : len);
    if (user && len) {
        sge[1] = (struct ibv_sge){ .addr = (uintptr_t)user, .length = len, .lkey = mr->lkey };
        wr.num_sge = 2;
    }
    if (!user && sge[0].length <= c->inline_max)
        wr.send_flags = IBV_SEND_INLINE;
    wr.wr.rdma.remote_addr = c->remote_addr + (kind == VB_IMM_EAGER || kind == VB_IMM_PUT
                                                   ? (uint64_t)slot * VB_EAGER_STRIDE
                                                   : VB_SLAB_EAGER + (uint64_t)slot * VB_BULK_STRIDE);
    wr.wr.rdma.rkey = c->rkey;
    c->t->tp.messages += kind != VB_IMM_PART;
    c->t->tp.wire_bytes += len;
    return post(c, &wr, tells, cookie);
}

static int check(const struct bny_ep *ep, const struct bny_hdr *hdr, uint32_t max)
{
    if (hdr->chan < BNY_CHANNELS && hdr->len <= max)
        return 0;
    return bny_fail(BANYAN_EINVAL, "message to rank %d: channel %u (below %d), %u bytes (at most %u)", ep->peer,
                    hdr->chan, BNY_CHANNELS, hdr->len, max);
}

static int send_eager(struct vb_conn *c, const struct bny_hdr *hdr, const void *buf, int tells,
                      void *cookie)
{
    uint32_t slot = c->eager_sent % VB_EAGER_SLOTS;
    char *mem = eager_out(c, slot);

    if (c->eager_sent - c->eager_freed >= VB_EAGER_SLOTS || !has_room(c, 1))
        return BNY_AGAIN;
    if (hdr->len)
        memcpy(mem + VB_HEAD, buf, hdr->len);
    c->eager_sent++;
    return write_slot(c, VB_IMM_EAGER, slot, mem, hdr, hdr->len, NULL, NULL, tells, cookie);
}

int bny_verbs_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf)
{
    int rc = 0;
    struct vb_conn *c;

    rc = check(ep, hdr, ep->eager_max);
    if (rc)
        return rc;
    c = open_conn(ep, &rc);
    return c ? send_eager(c, hdr, buf, 0, NULL) : rc;
}

static int take_bulk(struct vb_conn *c, uint32_t *slot)
{
    uint32_t idle = ~c->bulk_busy & ((1u << VB_BULK_SLOTS) - 1);

    if (!idle)
        return BNY_AGAIN;
    *slot = (uint32_t)__builtin_ctz(idle);
    c->bulk_busy |= 1u << *slot;
    return 0;
}

int bny_verbs_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot)
{
    struct vb_conn *c;
    uint32_t k;
    int rc = 0;

    if (cap > ep->slot_max)
        return bny_fail(BANYAN_EINVAL, "verbs: a reservation of %u bytes; at most %u", cap, ep->slot_max);
    c = open_conn(ep, &rc);
    if (!c)
        return rc;
    /* a reservation holds room for its request: commit never fails for want of it */
    if (!has_room(c, VB_BULK_SLOTS))
        return BNY_AGAIN;
    rc = take_bulk(c, &k);
    if (rc)
        return rc;
    *slot = (struct bny_slot){ .mem = bulk_out(c, k) + VB_HEAD, .cap = VB_SLOT_MAX, .index = k, .impl = c };
    return 0;
}

int bny_verbs_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr)
{
    struct vb_conn *c = slot->impl;
    int rc = 0;

    if (open_conn(ep, &rc) != c)
        return rc == BNY_AGAIN ? bny_fail(BANYAN_ERANKDEAD, "rank %d: its connection broke", ep->peer) : rc;
    if (hdr->len > slot->cap)
        return bny_fail(BANYAN_EINVAL, "verbs: %u bytes in a slot of %u", hdr->len, slot->cap);
    return write_slot(c, VB_IMM_BULK, slot->index, (char *)slot->mem - VB_HEAD, hdr, hdr->len, NULL,
                      NULL, 0, NULL);
}

void bny_verbs_cancel(struct bny_ep *ep, struct bny_slot *slot)
{
    struct vb_conn *c = slot->impl;

    if (((struct vb_ep *)ep)->conn == c)
        c->bulk_busy &= ~(1u << slot->index);
}

/* One message or one piece of it, by reference where the memory is registered, else copied to our slot. */
static int write_user(struct vb_conn *c, enum vb_imm kind, uint32_t slot, const struct bny_hdr *hdr,
                      const void *buf, uint32_t len, int tells, void *cookie)
{
    struct ibv_mr *mr = len ? bny_verbs_region(c->t, buf, len) : NULL;

    if (!mr && len) {
        memcpy(bulk_out(c, slot) + VB_HEAD, buf, len);
        c->t->tp.copied_bytes += len;
    }
    return write_slot(c, kind, slot, bulk_out(c, slot), hdr, len, mr ? buf : NULL, mr, tells,
                      cookie);
}

/* Sends pieces of long messages, one message after the other, as far as credits go. They leave half of the slots to
 * others: a receiver that holds a long message must still hear what it waits for. */
static int push_longs(struct vb_conn *c)
{
    while (c->longs_done != c->longs_queued) {
        struct vb_long *l = &c->longs[c->longs_done % VB_LONGS];
        uint32_t len = l->hdr.len - l->off < VB_SLOT_MAX ? l->hdr.len - l->off : VB_SLOT_MAX, k;
        int last = l->off + len == l->hdr.len, rc;

        if (__builtin_popcount(c->bulk_busy) >= (int)VB_BULK_SLOTS / 2 ||
            !has_room(c, 1 + VB_BULK_SLOTS) || take_bulk(c, &k) != 0)
            return 0;
        rc = write_user(c, l->off ? VB_IMM_PART : VB_IMM_LONG, k, &l->hdr, l->buf + l->off, len,
                        last, l->cookie);
        if (rc)
            return rc;
        l->off += len;
        c->longs_done += (uint32_t)last;
    }
    return 0;
}

int bny_verbs_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie)
{
    struct vb_conn *c;
    uint32_t k;
    int rc = 0;

    rc = check(ep, hdr, VB_LONG_MAX);
    if (rc)
        return rc;
    c = open_conn(ep, &rc);
    if (!c)
        return rc;
    if (hdr->len > ep->slot_max) {
        if (c->longs_queued - c->longs_done == VB_LONGS)
            return BNY_AGAIN;
        c->longs[c->longs_queued++ % VB_LONGS] = (struct vb_long){ *hdr, buf, cookie, 0 };
        return push_longs(c);
    }
    if (!has_room(c, 1 + VB_BULK_SLOTS))
        return BNY_AGAIN;
    rc = take_bulk(c, &k);
    return rc ? rc : write_user(c, VB_IMM_BULK, k, hdr, buf, hdr->len, 1, cookie);
}

static int put_tiny(struct vb_conn *c, const struct bny_hdr *hdr, const void *src, uint64_t addr, uint32_t len,
                    uint32_t rkey, void *cookie)
{
    uint32_t slot = c->eager_sent++ % VB_EAGER_SLOTS;
    struct vb_tiny tiny = { addr, rkey, len };
    char *mem = eager_out(c, slot);

    memcpy(mem + sizeof *hdr, &tiny, sizeof tiny);
    memcpy(mem + VB_HEAD, src, len);
    return write_slot(c, VB_IMM_PUT, slot, mem, hdr, len, NULL, NULL, 1, cookie);
}

int bny_verbs_put(struct bny_ep *ep, const struct bny_hdr *hdr, const void *src, uint32_t len,
                  const struct bny_window *win, uint64_t offset, void *cookie)
{
    struct vb_tp *t = (struct vb_tp *)ep->tp;
    struct ibv_mr *mr = bny_verbs_region(t, src, len);
    struct ibv_sge sge = { .addr = (uintptr_t)src, .length = len };
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1 };
    struct bny_hdr h = *hdr;
    struct vb_conn *c;
    int rc = 0;

    if (!mr && len)
        return -BANYAN_ENOTSUP;
    if (offset > win->bytes || len > win->bytes - offset)
        return bny_fail(BANYAN_EINVAL, "verbs: a put of %u bytes at %llu of a window of %llu", len,
                        (unsigned long long)offset, (unsigned long long)win->bytes);
    c = open_conn(ep, &rc);
    if (!c)
        return rc;
    if (c->eager_sent - c->eager_freed >= VB_EAGER_SLOTS || !has_room(c, 2))
        return BNY_AGAIN;
    h.len = 0;
    h.codec_len_raw = len;
    if (len && VB_HEAD + len <= c->inline_max)
        return put_tiny(c, &h, src, win->addr + offset, len, (uint32_t)win->key, cookie);
    if (len) {
        sge.lkey = mr->lkey;
        wr.wr.rdma.remote_addr = win->addr + offset;
        wr.wr.rdma.rkey = (uint32_t)win->key;
        keep(c, &wr);
        t->tp.wire_bytes += len;
    }
    return send_eager(c, &h, NULL, 1, cookie);
}

/* ---- completions ------------------------------------------------------------------------ */

static struct vb_msg *take_msg(struct vb_tp *t)
{
    struct vb_msg *m = t->free_msgs;

    if (m) {
        t->free_msgs = m->next;
        return m;
    }
    m = calloc(1, sizeof *m);
    if (m) {
        m->all = t->all_msgs;
        t->all_msgs = m;
    }
    return m;
}

static uint32_t part_bytes(const struct vb_msg *m, uint32_t part)
{
    uint32_t left = m->msg.hdr.len - part * VB_SLOT_MAX;

    return left < VB_SLOT_MAX ? left : VB_SLOT_MAX;
}

/* A piece of the long message that is arriving. */
static int part_arrived(struct vb_conn *c, uint32_t slot, uint32_t bytes)
{
    struct vb_msg *m = c->streaming;

    if (!m || slot >= VB_BULK_SLOTS || (c->bulk_held >> slot & 1) ||
        bytes != VB_HEAD + part_bytes(m, m->parts)) {
        bny_verbs_down(c->e, "writes a piece of %u bytes into slot %u, where none is expected", bytes, slot);
        return -1;
    }
    c->bulk_held |= 1u << slot;
    m->part_slot[m->parts++ % VB_BULK_SLOTS] = (uint8_t)slot;
    if ((uint64_t)m->parts * VB_SLOT_MAX >= m->msg.hdr.len)
        c->streaming = NULL;
    if (!m->dropped)
        return 0;
    bny_verbs_free_bulk(c, slot);
    if (!c->streaming)
        bny_verbs_give_msg(c->t, m);
    return 0;
}

/* Puts the bytes of a small put into the window that it names. The key is what lets a peer write, as with the device. */
static int place_tiny(struct vb_conn *c, const char *mem, const struct bny_hdr *hdr, uint32_t bytes)
{
    struct vb_tiny tiny;

    memcpy(&tiny, mem + sizeof *hdr, sizeof tiny);
    if (hdr->len != 0 || tiny.len == 0 || bytes != VB_HEAD + tiny.len || tiny.len != hdr->codec_len_raw ||
        c->e->windows <= 0 || !bny_verbs_region_has_key(c->t, tiny.addr, tiny.len, tiny.rkey)) {
        bny_verbs_down(c->e, "puts %u bytes where no window is open to it", tiny.len);
        return 0;
    }
    memcpy((void *)(uintptr_t)tiny.addr, mem + VB_HEAD, tiny.len);
    return 1;
}

/* A message has come into a slot. 1: *ev is it; 0: the connection is broken. */
static int arrived(struct vb_conn *c, enum vb_imm kind, uint32_t slot, uint32_t bytes,
                   struct bny_event *ev)
{
    int is_long = kind == VB_IMM_LONG, bulk = is_long || kind == VB_IMM_BULK;
    const char *mem;
    struct vb_msg *m;

    if (bulk ? slot >= VB_BULK_SLOTS || (c->bulk_held >> slot & 1)
             : slot != c->eager_next % VB_EAGER_SLOTS || c->eager_held[slot]) {
        bny_verbs_down(c->e, "writes into slot %u, which it has no credit for", slot);
        return 0;
    }
    mem = bulk ? bny_verbs_bulk_in(c, slot) : eager_in(c, slot);
    m = take_msg(c->t);
    if (!m) {
        bny_verbs_down(c->e, "cannot be heard: no memory for a message");
        return 0;
    }
    memcpy(&m->msg.hdr, mem, sizeof m->msg.hdr);
    if (kind == VB_IMM_PUT) {
        if (!place_tiny(c, mem, &m->msg.hdr, bytes)) {
            bny_verbs_give_msg(c->t, m);
            return 0;
        }
        bytes = VB_HEAD;
    }
    if (is_long ? m->msg.hdr.len <= VB_SLOT_MAX || bytes != VB_HEAD + VB_SLOT_MAX || c->streaming != NULL
                : bytes < VB_HEAD || m->msg.hdr.len != bytes - VB_HEAD ||
                      m->msg.hdr.len > (bulk ? VB_SLOT_MAX : VB_EAGER_MAX)) {
        bny_verbs_give_msg(c->t, m);
        bny_verbs_down(c->e, "says a message has %u bytes and writes %u", m->msg.hdr.len, bytes);
        return 0;
    }
    m->is_long = is_long;
    m->dropped = 0;
    m->parts = m->parts_freed = 0;
    if (is_long) {
        c->streaming = m;
        part_arrived(c, slot, bytes);
    } else if (bulk) {
        c->bulk_held |= 1u << slot;
    } else {
        c->eager_held[slot] = 1;
        c->eager_next++;
    }
    m->msg.ep = &c->e->ep;
    m->msg.data = is_long ? NULL : mem + VB_HEAD;
    m->msg.descriptor = 0;
    m->conn = c;
    m->slot = slot;
    m->bulk = bulk;
    *ev = (struct bny_event){ .kind = BNY_EV_MSG, .ep = &c->e->ep, .msg = &m->msg };
    return 1;
}

static int immediate(struct vb_conn *c, const struct ibv_wc *wc, struct bny_event *ev)
{
    uint32_t imm = ntohl(wc->imm_data), value = imm & 0xfffffff;

    switch (imm >> 28) {
    case VB_IMM_EAGER:
    case VB_IMM_PUT:
    case VB_IMM_BULK:
    case VB_IMM_LONG: return arrived(c, (enum vb_imm)(imm >> 28), value, wc->byte_len, ev);
    case VB_IMM_PART: part_arrived(c, value, wc->byte_len); return 0;
    case VB_IMM_FREED_EAGER: { /* the low 24 bits of a count */
        uint32_t more = (value - c->eager_freed) & 0xffffff;

        if (more <= c->eager_sent - c->eager_freed) {
            c->eager_freed += more;
            return 0;
        }
        break;
    }
    case VB_IMM_FREED_BULK:
        if (value < VB_BULK_SLOTS && (c->bulk_busy >> value & 1)) {
            c->bulk_busy &= ~(1u << value);
            return 0;
        }
        break;
    case VB_IMM_FAREWELL: c->e->left = 1; return 0;
    default: break;
    }
    bny_verbs_down(c->e, "sends an immediate that means nothing here: %08x", imm);
    return 0;
}

/* One completion. Returns the number of events: 0 or 1. */
static int complete(struct vb_conn *c, const struct ibv_wc *wc, struct bny_event *ev)
{
    if (wc->status != IBV_WC_SUCCESS) {
        /* the first completion of a broken queue pair says why; where it is a flushed one, somebody else broke it */
        bny_verbs_down(c->e, "is not reached over device %s any more: %s (vendor %#x)", c->t->device,
                       c->t->fn->ibv_wc_status_str(wc->status), wc->vendor_err);
        return 0;
    }
    if (!(wc->opcode & IBV_WC_RECV)) {
        c->done = (uint32_t)wc->wr_id + 1;
        return 0;
    }
    if (!c->hello_seen) {
        bny_verbs_hello_arrived(c, wc->byte_len);
        return 0;
    }
    if (++c->recvs_due >= VB_RECV_BATCH) {
        if (bny_verbs_post_recvs(c, c->recvs_due) != 0)
            bny_verbs_down(c->e, "cannot be heard: device %s refuses receive requests", c->t->device);
        c->recvs_due = 0;
    }
    if (!(wc->wc_flags & IBV_WC_WITH_IMM)) {
        bny_verbs_down(c->e, "sends a message without an immediate");
        return 0;
    }
    return immediate(c, wc, ev);
}

/* SENT of the requests that are done. */
static int take_sent(struct vb_conn *c, struct bny_event *ev, int n)
{
    int got = 0;

    while (c->reported != c->done && got < n) {
        const struct vb_sent *s = &c->sent[c->reported % VB_SENDS];

        if (s->tells)
            ev[got++] = (struct bny_event){ .kind = BNY_EV_SENT, .ep = &c->e->ep, .cookie = s->cookie };
        c->reported++;
    }
    return got;
}

int bny_verbs_poll_conn(struct vb_ep *e, struct bny_event *ev, int n)
{
    struct vb_conn *c = e->conn;
    int got = take_sent(c, ev, n), k;

    if (c->dead)
        return got;
    if (got < n && c->stash_at == c->stashed) {
        k = ibv_poll_cq(c->cq, n - got < VB_POLL ? n - got : VB_POLL, c->stash);
        c->stashed = k > 0 ? k : 0;
        c->stash_at = 0;
        if (k < 0)
            bny_verbs_down(e, "is not reached any more: the completion queue of device %s fails", c->t->device);
    }
    while (got < n && c->stash_at < c->stashed && e->conn == c && !e->down)
        got += complete(c, &c->stash[c->stash_at++], &ev[got]);
    if (e->conn == c && e->state == VB_OPEN) {
        bny_verbs_tell_credits(c);
        push_longs(c);
        got += take_sent(c, ev + got, n - got);
    }
    return got;
}
