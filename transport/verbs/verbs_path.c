/* SPDX-License-Identifier: BSD-3-Clause */
/* Sending: a slot of the peer's, the write, and its use of credits and requests. verbs.h has
 * the scheme. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/err.h"
#include "transport/verbs/lane.h"

#define POST_BATCH 16u /* requests for each doorbell */

static char *eager_out(const struct vb_peer *p, uint32_t slot)
{
    return p->slab + p->shape.bytes + (size_t)slot * VB_EAGER_STRIDE;
}

static char *bulk_out(const struct vb_peer *p, uint32_t slot)
{
    return p->slab + p->shape.bytes + p->shape.bulk_at + (size_t)slot * p->shape.stride;
}

/* NULL with BNY_AGAIN also while the queue pair is being replaced. */
static struct vb_lane *open_conn(struct bny_ep *ep, int *rc)
{
    struct vb_ep *e = (struct vb_ep *)ep;

    if (e->state == VB_OPEN)
        return e->conn;
    *rc = BNY_AGAIN;
    if (e->down || e->left)
        *rc = bny_fail(BANYAN_ERANKDEAD, "rank %d %s", ep->peer,
                       e->down ? e->reason : "has left");
    else if (e->state == VB_IDLE && !e->conn && bny_now_ns() >= e->again_ns)
        bny_verbs_ask(e);
    return NULL;
}

/* ---- posting ---- */

static uint32_t under_way(const struct vb_lane *c)
{
    return c->posted - c->reported;
}

/* Is there room for data requests? Control messages have a reserve. */
int bny_verbs_has_room(const struct vb_lane *c, uint32_t requests)
{
    return under_way(c) + requests <= c->t->depth.sends - c->t->depth.spare;
}

/* The same on an idle lane. */
int bny_verbs_may_have_room(const struct vb_tp *t, uint32_t requests)
{
    return requests <= t->depth.sends - t->depth.spare;
}

/* The note that replaces record k's immediate, for a write of so many bytes. wr has its
 * flags. */
static void fill_note(struct vb_lane *c, uint32_t k, uint32_t bytes, struct ibv_send_wr *wr,
                      struct ibv_sge *sge)
{
    struct vb_note *note = &bny_verbs_notes_out(c)[k % VB_SENDS];

    *note = (struct vb_note){ htonl(c->sent[k % VB_SENDS].imm), bytes };
    *sge = (struct ibv_sge){ .addr = (uintptr_t)note,
                             .length = sizeof *note,
                             .lkey = c->mr_page->lkey };
    *wr = (struct ibv_send_wr){
        .wr_id = k,
        .sg_list = sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = wr->send_flags | (sizeof *note <= c->inline_max ? IBV_SEND_INLINE : 0)
    };
}

static unsigned inlined(const struct vb_lane *c, uint32_t bytes)
{
    return bytes && bytes <= c->inline_max ? IBV_SEND_INLINE : 0;
}

/* Request k in the device's form: one; two if the immediate follows the data, alone or as a
 * message; or three if header and payload are separate and the device takes one piece. */
static unsigned verbs_path_fill(struct vb_lane *c, uint32_t k, struct ibv_send_wr *wr,
                                struct ibv_sge *sge)
{
    struct vb_sent *s = &c->sent[k % VB_SENDS];
    uint32_t bytes =
        (s->nsge > 0 ? s->sge[0].length : 0) + (s->nsge > 1 ? s->sge[1].length : 0);
    unsigned signaled =
        s->tells || s->signals || k % c->t->depth.signal_every == 0 ? IBV_SEND_SIGNALED : 0;

    *wr = (struct ibv_send_wr){ .wr_id = k,
                                .sg_list = s->sge,
                                .num_sge = s->nsge,
                                .opcode =
                                    s->has_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
                                .imm_data = htonl(s->imm),
                                .send_flags = inlined(c, bytes) };
    wr->wr.rdma.remote_addr = s->remote;
    wr->wr.rdma.rkey = s->rkey;
    if (s->nsge > (int)c->t->depth.sges) {
        wr->opcode = IBV_WR_RDMA_WRITE;
        wr[1] = wr[0];
        wr[0].num_sge = wr[1].num_sge = 1;
        wr[0].send_flags = inlined(c, s->sge[0].length);
        wr[1].send_flags = inlined(c, s->sge[1].length);
        wr[1].sg_list = &s->sge[1];
        wr[1].wr.rdma.remote_addr += s->sge[0].length;
        wr[2] = (struct ibv_send_wr){ .wr_id = k,
                                      .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                      .imm_data = htonl(s->imm),
                                      .send_flags = signaled };
        wr[2].wr.rdma = wr[0].wr.rdma;
        if (c->notify)
            fill_note(c, k, bytes, &wr[2], sge);
        return 3;
    }
    if (c->t->apart && s->has_imm && bytes >= VB_APART_MIN) {
        wr[1] = (struct ibv_send_wr){ .wr_id = k,
                                      .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                      .imm_data = wr->imm_data,
                                      .send_flags = signaled };
        wr[1].wr.rdma = wr->wr.rdma;
        wr->opcode = IBV_WR_RDMA_WRITE;
        return 2;
    }
    if (!c->notify || !s->has_imm) {
        wr->send_flags |= signaled;
        return 1;
    }
    wr->opcode = IBV_WR_RDMA_WRITE;
    wr += s->nsge > 0;
    wr->send_flags = signaled;
    fill_note(c, k, bytes, wr, sge);
    return 1 + (s->nsge > 0);
}

/* Posts the records. Those that the device refuses are posted again on the next queue pair,
 * like all that have not arrived. */
int bny_verbs_post(struct vb_lane *c)
{
    struct ibv_send_wr wr[3 * POST_BATCH], *bad;
    struct ibv_sge notes[POST_BATCH];

    while (c->to_post != c->posted && !c->lost && !c->dead) {
        unsigned n = 0;
        int rc;

        for (unsigned i = 0; i < POST_BATCH && c->to_post != c->posted; i++)
            n += verbs_path_fill(c, c->to_post++, &wr[n], &notes[i]);
        for (unsigned i = 0; i + 1 < n; i++)
            wr[i].next = &wr[i + 1];
        rc = ibv_post_send(c->id->qp, wr, &bad);
        if (rc)
            bny_verbs_lost(c, "refuses a send request on device %s: %s", c->rail->at,
                           strerror(rc));
    }
    return c->dead ? bny_fail(BANYAN_ERANKDEAD, "rank %d %s", c->e->ep.peer, c->e->reason) : 0;
}

void bny_verbs_record(struct vb_lane *c, struct vb_sent s)
{
    /* or one whose memory the device still uses would be overwritten */
    BNY_ASSERT(under_way(c) < c->t->depth.sends);
    s.seq = c->imm_sent + 1;
    c->imm_sent += s.has_imm;
    c->sent[c->posted++ % VB_SENDS] = s;
}

int bny_verbs_tell(struct vb_lane *c, enum vb_imm kind, uint32_t value)
{
    if (under_way(c) >= c->t->depth.sends - VB_BULK_SLOTS) /* reserved by reservations */
        return BNY_AGAIN;
    bny_verbs_record(c, (struct vb_sent){ .remote = c->peer->remote_addr,
                                          .rkey = c->rkey,
                                          .has_imm = 1,
                                          .imm = (uint32_t)kind << 28 | (value & 0xfffffff),
                                          .signals = kind == VB_IMM_FAREWELL });
    return bny_verbs_post(c);
}

int bny_verbs_post_hello(struct vb_lane *c, const struct vb_hello *h)
{
    struct ibv_sge sge = { .addr = (uintptr_t)bny_verbs_hello_out(c),
                           .length = sizeof *h,
                           .lkey = c->mr_page->lkey };
    struct ibv_send_wr *bad,
        wr = { .wr_id = VB_WR_HELLO, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };

    memcpy(bny_verbs_hello_out(c), h, sizeof *h);
    return ibv_post_send(c->id->qp, &wr, &bad);
}

/* Receive requests: without memory, as immediates bring their own data; or for notes. */
int bny_verbs_post_recvs(struct vb_lane *c, uint32_t n)
{
    struct ibv_recv_wr wrs[VB_RECV_BATCH], *bad;
    struct ibv_sge sge[VB_RECV_BATCH];

    while (n) {
        uint32_t m = n < VB_RECV_BATCH ? n : VB_RECV_BATCH;
        int rc;

        for (uint32_t i = 0; i < m; i++) {
            uint32_t k = c->recvs_posted++ % VB_RECVS;

            wrs[i] = (struct ibv_recv_wr){ .wr_id = VB_WR_RECV | k,
                                           .next = i + 1 < m ? &wrs[i + 1] : NULL };
            if (!c->notify)
                continue;
            sge[i] = (struct ibv_sge){ .addr = (uintptr_t)&bny_verbs_notes_in(c)[k],
                                       .length = sizeof(struct vb_note),
                                       .lkey = c->mr_page->lkey };
            wrs[i].sg_list = &sge[i];
            wrs[i].num_sge = 1;
        }
        rc = ibv_post_recv(c->id->qp, wrs, &bad);
        if (rc)
            return rc;
        n -= m;
    }
    return 0;
}

/* ---- sending ---- */

/* An earlier message had this header except for the counters: *value has its index and their
 * growth, and the header need not be sent. Both ends keep the same few headers, as messages
 * arrive in order. */
static int known_shape(struct vb_peer *p, const struct bny_hdr *hdr, uint32_t *value)
{
    for (uint32_t i = 0; i < VB_SHAPES; i++) {
        struct bny_hdr h = p->shapes_out[i];
        uint32_t seq = hdr->seq - h.seq, started = hdr->started - h.started;

        h.seq = hdr->seq;
        h.started = hdr->started;
        h.chunk = hdr->chunk;
        if (!(p->shapes_out_set >> i & 1) || seq > 0xff || started > 0xff ||
            hdr->chunk > 0x3ff || memcmp(&h, hdr, sizeof h) != 0)
            continue;
        p->shapes_out[i] = h;
        *value = i << 26 | hdr->chunk << 16 | seq << 8 | started;
        return 1;
    }
    return 0;
}

static uint32_t new_shape(struct vb_peer *p, const struct bny_hdr *hdr)
{
    uint32_t i = p->shapes_next++ % VB_SHAPES;

    p->shapes_out[i] = *hdr;
    p->shapes_out_set |= 1u << i;
    return i;
}

/* Writes header and payload into a slot of the peer's; s: the record's other fields. `mem` is
 * our slot of the same number: it holds the header, and the payload too unless `user`
 * (registered) does. skip: bytes from the beginning to leave out. */
static int write_slot(struct vb_lane *c, struct vb_sent s, uint64_t at, char *mem,
                      uint32_t skip, uint32_t len, const void *user,
                      const struct vb_region *region)
{
    uint32_t own = VB_HEAD + (user ? 0 : len) - skip;

    s.has_imm = 1;
    s.remote = c->peer->remote_addr + at + skip;
    s.rkey = c->rkey;
    if (own)
        s.sge[s.nsge++] = (struct ibv_sge){ .addr = (uintptr_t)mem + skip,
                                            .length = own,
                                            .lkey = c->peer->mr_out[c->rail->index]->lkey };
    if (user && len)
        s.sge[s.nsge++] = (struct ibv_sge){ .addr = (uintptr_t)user,
                                            .length = len,
                                            .lkey = region->mr[c->rail->index]->lkey };
    bny_counter_add(&c->t->tp.messages, s.imm >> 28 != VB_IMM_PART &&
                                            s.imm >> 28 != VB_IMM_KEYS &&
                                            s.imm >> 28 != VB_IMM_CLOSE);
    bny_counter_add(&c->t->tp.wire_bytes, len);
    bny_verbs_record(c, s);
    return s.stripes ? bny_verbs_post_lanes(c, s.stripes) : bny_verbs_post(c);
}

static int write_bulk(struct vb_lane *c, enum vb_imm kind, uint32_t slot,
                      const struct bny_hdr *hdr, uint32_t len, const void *user,
                      const struct vb_region *region, int tells, void *cookie)
{
    struct vb_sent s = { .cookie = cookie,
                         .tells = tells != 0,
                         .signals = user != NULL, /* a recall waits for its completion */
                         .imm = (uint32_t)kind << 28 | slot };
    uint64_t at = c->peer->shape.bulk_at + (uint64_t)slot * c->peer->shape.stride;
    char *mem = bulk_out(c->peer, slot);
    uint32_t first = len;

    c->peer->lent[slot] = user ? cookie : NULL;
    memcpy(mem, hdr, sizeof *hdr);
    if (len >= VB_STRIPE_MIN && c->e->lanes_open) {
        struct vb_span span = { .from = user ? user : mem + VB_HEAD,
                                .user = region,
                                .cookie = cookie,
                                .len = len,
                                .to = c->peer->remote_addr + at + VB_HEAD };
        uint32_t lanes = bny_verbs_stripe(c, &span, &first);

        s.stripes = (uint16_t)lanes;
        s.imm |= lanes << VB_LANES_AT;
        bny_counter_add(&c->t->tp.wire_bytes, len - first);
    }
    return write_slot(c, s, at, mem, 0, first, user, region);
}

static int verbs_path_check(const struct bny_ep *ep, const struct bny_hdr *hdr, uint32_t max)
{
    if (hdr->chan < BNY_CHANNELS && hdr->len <= max)
        return 0;
    return bny_fail(BANYAN_EINVAL,
                    "message to rank %d: channel %u (below %d), %u bytes (at most %u)",
                    ep->peer, hdr->chan, BNY_CHANNELS, hdr->len, max);
}

/* A channel keeps its order: does one of its messages still wait for slots? */
static int is_behind(const struct vb_peer *p, uint32_t chan)
{
    for (uint32_t i = p->longs_done; i != p->longs_queued; i++)
        if (p->longs[i % VB_WAITING].hdr.chan == chan)
            return 1;
    return 0;
}

/* Of long messages; reservations may follow them even so. */
static int is_full(const struct vb_peer *p)
{
    return p->longs_queued - p->longs_done >= VB_LONGS;
}

static int eager_full(const struct vb_peer *p)
{
    return p->eager_sent - p->eager_freed >= p->shape.eager ||
           (p->eager_most < p->shape.eager && p->eager_sent - p->eager_taken >= p->eager_most);
}

/* Slot of the next message, if there is one. */
static uint32_t eager_slot(const struct vb_peer *p)
{
    return p->order_out[p->eager_sent & (p->shape.eager - 1)];
}

/* lanes: those with stripes of the put. */
static int send_eager(struct vb_lane *c, const struct bny_hdr *hdr, const void *buf,
                      uint32_t lanes, int tells, void *cookie)
{
    struct vb_sent s = { .cookie = cookie, .tells = tells != 0, .stripes = (uint16_t)lanes };
    uint32_t slot = eager_slot(c->peer), value = 0, skip = VB_HEAD;
    char *mem = eager_out(c->peer, slot);

    if (eager_full(c->peer) || is_behind(c->peer, hdr->chan) || !bny_verbs_has_room(c, 1))
        return BNY_AGAIN;
    if (!lanes && known_shape(c->peer, hdr, &value)) {
        s.imm = (uint32_t)VB_IMM_AGAIN << 28 | value;
    } else {
        s.imm = (uint32_t)VB_IMM_EAGER << 28 | lanes << VB_LANES_AT |
                new_shape(c->peer, hdr) << 8 | slot;
        skip = 0;
        memcpy(mem, hdr, sizeof *hdr);
    }
    if (hdr->len)
        memcpy(mem + VB_HEAD, buf, hdr->len);
    c->peer->eager_sent++;
    return write_slot(c, s, (uint64_t)slot * VB_EAGER_STRIDE, mem, skip, hdr->len, NULL, NULL);
}

int bny_verbs_tell_ahead(struct vb_lane *c, enum vb_imm kind, const void *what, size_t len)
{
    uint32_t slot = eager_slot(c->peer);
    char *mem = eager_out(c->peer, slot);

    if (eager_full(c->peer) || !bny_verbs_has_room(c, 1))
        return BNY_AGAIN;
    BNY_ASSERT(len <= VB_HEAD);
    memcpy(mem, what, len);
    c->peer->eager_sent++;
    return write_slot(c, (struct vb_sent){ .imm = (uint32_t)kind << 28 | slot },
                      (uint64_t)slot * VB_EAGER_STRIDE, mem, 0, 0, NULL, NULL);
}

int bny_verbs_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf)
{
    int rc = 0;
    struct vb_lane *c;

    rc = verbs_path_check(ep, hdr, ep->eager_max);
    if (rc)
        return rc;
    c = open_conn(ep, &rc);
    return c ? send_eager(c, hdr, buf, 0, 0, NULL) : rc;
}

static int take_bulk(struct vb_peer *p, uint32_t *slot)
{
    uint32_t idle = ~p->bulk_busy & ((1u << p->shape.bulk) - 1);

    if (!idle)
        return BNY_AGAIN;
    *slot = (uint32_t)__builtin_ctz(idle);
    p->bulk_busy |= 1u << *slot;
    p->lent[*slot] = NULL;
    return 0;
}

int bny_verbs_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot)
{
    struct vb_lane *c;
    uint32_t k;
    int rc = 0;

    if (cap > ep->slot_max)
        return bny_fail(BANYAN_EINVAL, "verbs: a reservation of %u bytes; at most %u", cap,
                        ep->slot_max);
    c = open_conn(ep, &rc);
    if (!c)
        return rc;
    /* a reservation includes room for its request: commit never lacks it */
    if (!bny_verbs_has_room(c, VB_BULK_SLOTS) || is_full(c->peer))
        return BNY_AGAIN;
    rc = take_bulk(c->peer, &k);
    if (rc)
        return rc;
    *slot = (struct bny_slot){
        .mem = bulk_out(c->peer, k) + VB_HEAD, .cap = ep->slot_max, .index = k, .impl = c
    };
    return 0;
}

/* Frees the slot, which earlier messages may need. */
static int commit_later(struct vb_peer *p, const struct bny_slot *slot,
                        const struct bny_hdr *hdr)
{
    char *own = malloc(hdr->len ? hdr->len : 1);

    if (!own)
        return bny_fail(BANYAN_ENOMEM, "verbs: no memory for a message that waits for another");
    memcpy(own, slot->mem, hdr->len);
    p->bulk_busy &= ~(1u << slot->index);
    BNY_ASSERT(p->longs_queued - p->longs_done < VB_WAITING);
    p->longs[p->longs_queued++ % VB_WAITING] =
        (struct vb_long){ .hdr = *hdr, .buf = own, .own = own, .is_short = 1 };
    return 0;
}

int bny_verbs_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr)
{
    struct vb_lane *c = slot->impl;

    BNY_ASSERT(c->dead || c->peer->bulk_busy >> slot->index & 1);
    if (c->dead) /* while its queue pair is being replaced the record waits */
        return bny_fail(BANYAN_ERANKDEAD, "rank %d: its connection broke", ep->peer);
    if (hdr->len > slot->cap)
        return bny_fail(BANYAN_EINVAL, "verbs: %u bytes in a slot of %u", hdr->len, slot->cap);
    if (is_behind(c->peer, hdr->chan))
        return commit_later(c->peer, slot, hdr);
    return write_bulk(c, VB_IMM_BULK, slot->index, hdr, hdr->len, NULL, NULL, 0, NULL);
}

void bny_verbs_cancel(struct bny_ep *ep, struct bny_slot *slot)
{
    struct vb_lane *c = slot->impl;

    BNY_ASSERT(c->dead || c->peer->bulk_busy >> slot->index & 1);
    if (((struct vb_ep *)ep)->conn == c)
        c->peer->bulk_busy &= ~(1u << slot->index);
}

/* One message or piece, in place if the memory is registered, else copied to our slot. */
static int write_user(struct vb_lane *c, enum vb_imm kind, uint32_t slot,
                      const struct bny_hdr *hdr, const void *buf, uint32_t len, int tells,
                      void *cookie)
{
    const struct vb_region *region = len ? bny_verbs_region(c->t, buf, len) : NULL;

    if (region && !region->mr[c->rail->index]) /* the device was gone when the memory was
                                                  registered with the others */
        region = NULL;
    if (!region && len) {
        memcpy(bulk_out(c->peer, slot) + VB_HEAD, buf, len);
        bny_tp_staged(&c->t->tp, len);
    }
    return write_bulk(c, kind, slot, hdr, len, region ? buf : NULL, region, tells, cookie);
}

static enum vb_imm kind_of(const struct vb_long *l)
{
    if (l->is_short)
        return VB_IMM_BULK;
    return l->off ? VB_IMM_PART : VB_IMM_LONG;
}

/* Sends pieces of long messages, one message after another, within the credits. Half of the
 * slots are left to others: a receiver that holds a long message must still receive the one
 * that it waits for. */
int bny_verbs_push_longs(struct vb_peer *p)
{
    const uint32_t each = p->shape.slot_max;

    while (p->longs_done != p->longs_queued) {
        struct vb_long *l = &p->longs[p->longs_done % VB_WAITING];
        uint32_t len = l->hdr.len - l->off < each ? l->hdr.len - l->off : each, k;
        int last = l->off + len == l->hdr.len, rc;

        if ((!l->is_short && __builtin_popcount(p->bulk_busy) >= (int)p->shape.bulk / 2) ||
            !bny_verbs_has_room(p->first, 1 + VB_BULK_SLOTS) || take_bulk(p, &k) != 0)
            return 0;
        rc = write_user(p->first, kind_of(l), k, &l->hdr, l->buf + (l->off - l->from), len,
                        last && !l->is_short, l->cookie);
        if (last) {
            free(l->own);
            l->own = NULL;
        }
        if (rc)
            return rc;
        l->off += len;
        p->longs_done += (uint32_t)last;
    }
    return 0;
}

int bny_verbs_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie)
{
    struct vb_lane *c;
    uint32_t k;
    int rc = 0;

    rc = verbs_path_check(ep, hdr, VB_LONG_MAX);
    if (rc)
        return rc;
    c = open_conn(ep, &rc);
    if (!c)
        return rc;
    if (hdr->len > ep->slot_max) {
        if (is_full(c->peer))
            return BNY_AGAIN;
        c->peer->longs[c->peer->longs_queued++ % VB_WAITING] =
            (struct vb_long){ .hdr = *hdr, .buf = buf, .cookie = cookie };
        return bny_verbs_push_longs(c->peer);
    }
    if (is_behind(c->peer, hdr->chan) || !bny_verbs_has_room(c, 1 + VB_BULK_SLOTS))
        return BNY_AGAIN;
    rc = take_bulk(c->peer, &k);
    return rc ? rc : write_user(c, VB_IMM_BULK, k, hdr, buf, hdr->len, 1, cookie);
}

/* Writes the bytes to their final place. The header follows in a slot only if the peer cannot
 * derive it from the last similar one. */
int bny_verbs_put(struct bny_ep *ep, const struct bny_hdr *hdr, const void *src, uint32_t len,
                  const struct bny_window *win, uint64_t offset, void *cookie)
{
    struct vb_tp *t = (struct vb_tp *)ep->tp;
    const struct vb_region *region = bny_verbs_region(t, src, len);
    struct vb_span span = { .from = src,
                            .user = region,
                            .to = win->addr + offset,
                            .win = win,
                            .len = len,
                            .cookie = cookie };
    struct vb_sent s = { .remote = span.to, .nsge = 1, .cookie = cookie };
    struct bny_hdr h = *hdr;
    struct vb_lane *c;
    uint32_t value, lanes = 0, first = len;
    struct ibv_mr *mr;
    int rc = 0;

    if ((!region && len) || !bny_verbs_may_have_room(t, 2 + len / t->max_msg))
        return -BANYAN_ENOTSUP;
    if (offset > win->bytes || len > win->bytes - offset)
        return bny_fail(BANYAN_EINVAL, "verbs: a put of %u bytes at %llu of a window of %llu",
                        len, (unsigned long long)offset, (unsigned long long)win->bytes);
    c = open_conn(ep, &rc);
    if (!c)
        return rc;
    if (!bny_verbs_window_is_open((struct vb_ep *)ep, win))
        return -BANYAN_ENOTSUP;
    if (eager_full(c->peer) || is_behind(c->peer, hdr->chan) ||
        !bny_verbs_has_room(c, 2 + len / t->max_msg))
        return BNY_AGAIN;
    mr = region ? region->mr[c->rail->index] : NULL;
    if (!mr && len)
        return -BANYAN_ENOTSUP;
    s.rkey = bny_verbs_window_key(c, win);
    h.len = 0;
    h.codec_len_raw = len;
    bny_counter_add(&t->tp.wire_bytes, len);
    if (len >= VB_STRIPE_MIN && c->e->lanes_open)
        lanes = bny_verbs_stripe(c, &span, &first);
    if (!lanes && len && len <= t->max_msg && known_shape(c->peer, &h, &value)) {
        s.sge[0] = (struct ibv_sge){ .addr = (uintptr_t)src, .length = len, .lkey = mr->lkey };
        s.imm = (uint32_t)VB_IMM_PUT_AGAIN << 28 | value;
        s.has_imm = s.tells = 1;
        bny_counter_add(&t->tp.messages, 1);
        c->peer->eager_sent++;
        bny_verbs_record_put(c, s, win);
        return bny_verbs_post(c);
    }
    for (uint32_t at = 0, n; at < first; at += n, s.remote += n) {
        n = first - at < t->max_msg ? first - at : t->max_msg;
        s.sge[0] =
            (struct ibv_sge){ .addr = (uintptr_t)src + at, .length = n, .lkey = mr->lkey };
        bny_verbs_record_put(c, s, win);
    }
    return send_eager(c, &h, NULL, lanes, 1, cookie);
}
