/* SPDX-License-Identifier: BSD-3-Clause */
/* Frames to datagrams and back. */
#include <stdlib.h>
#include <string.h>

#include "transport/datagram/packet.h"
#include "transport/ud/ud.h"

#define BATCH        32
#define SIGNAL_EVERY 32 /* sends; and the last of a burst */

/* ---- sends ---- */

void bny_ud_out_done(struct bny_dgram_port *p, uint32_t i)
{
    struct ud_out *o = &p->outs[i % p->nouts];

    if (o->ref)
        o->ref->opaque[0]--;
    o->ref = NULL;
    o->done = 1;
}

/* UD completes in order, so the last completion of a burst covers all; SRD completes each. */
static void sent(struct bny_dgram_port *p, uint32_t place)
{
    uint32_t i = p->out_tail;

    while (i != p->out_head && i % p->nouts != place)
        i++;
    if (i == p->out_head)
        return; /* our devices never report this */
    if (p->srd) {
        bny_ud_out_done(p, i);
    } else {
        for (uint32_t k = p->out_tail; k != i + 1; k++)
            bny_ud_out_done(p, k);
    }
    while (p->out_tail != p->out_head && p->outs[p->out_tail % p->nouts].done)
        p->out_tail++;
}

void bny_ud_reclaim(struct bny_dgram_port *p)
{
    struct ibv_wc wc[BATCH];
    int n;

    if (p->dead || p->out_tail == p->out_head)
        return;
    do {
        n = ibv_poll_cq(p->scq, BATCH, wc);
        for (int i = 0; i < n; i++) {
            if ((uint32_t)(wc[i].wr_id >> 32) != p->turn)
                continue;
            if (wc[i].status != IBV_WC_SUCCESS &&
                (!p->srd || wc[i].status == IBV_WC_WR_FLUSH_ERR))
                p->broken = 1; /* SRD reports this for one peer, and continues */
            p->missed += wc[i].status != IBV_WC_SUCCESS;
            sent(p, (uint32_t)wc[i].wr_id);
        }
    } while (n == BATCH);
    if (n < 0)
        p->broken = 1;
}

static int covers(const struct ud_mem *m, const uint8_t *at, size_t bytes)
{
    return m && at >= m->at && bytes <= m->bytes && (size_t)(at - m->at) <= m->bytes - bytes;
}

static struct ibv_mr *registered(struct bny_dgram_port *p, const void *at, size_t bytes)
{
    struct ud_mem *m = p->latest;

    if (covers(m, at, bytes))
        return m->mr;
    for (m = p->mems; m && !covers(m, at, bytes); m = m->next)
        continue;
    p->latest = m ? m : p->latest;
    return m ? m->mr : NULL;
}

/* The rank in the frame's destination MAC (from ports.c). */
static uint32_t rank_of(const uint8_t *frame)
{
    uint32_t rank;

    memcpy(&rank, frame + 2, sizeof rank);
    return rank;
}

struct request {
    struct ibv_send_wr wr;
    struct ibv_sge sge[2];
};

static void ud_io_fill(struct bny_dgram_port *p, const struct bny_dgram_tx *tx,
                       const struct ud_way *w, struct request *r)
{
    uint32_t place = p->out_head % p->nouts, head = tx->head_len - BNY_DGRAM_ETH;
    uint8_t *at = p->pool + place * p->stride + UD_FRAME_AT;
    struct ud_out *o = &p->outs[place];
    struct ibv_mr *mr =
        tx->ref && tx->body_len && p->sges > 1 ? registered(p, tx->body, tx->body_len) : NULL;

    memcpy(at, (const uint8_t *)tx->head + BNY_DGRAM_ETH, head);
    *o = (struct ud_out){ .ref = mr ? tx->ref : NULL };
    r->sge[0] = (struct ibv_sge){ .addr = (uintptr_t)at, .length = head, .lkey = p->mr->lkey };
    r->wr = (struct ibv_send_wr){ .wr_id = (uint64_t)p->turn << 32 | place,
                                  .sg_list = r->sge,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND };
    if (mr) {
        tx->ref->opaque[0]++;
        r->sge[1] = (struct ibv_sge){ .addr = (uintptr_t)tx->body,
                                      .length = tx->body_len,
                                      .lkey = mr->lkey };
        r->wr.num_sge = 2;
    } else if (tx->body_len) {
        memcpy(at + head, tx->body, tx->body_len);
        r->sge[0].length += tx->body_len;
    }
    r->wr.wr.ud.ah = w->ah;
    r->wr.wr.ud.remote_qpn = w->addr->qpn;
    r->wr.wr.ud.remote_qkey = w->addr->qkey;
    p->out_head++;
}

/* The device refused the requests from bad on. */
static int not_taken(struct bny_dgram_port *p, struct request *r, int n,
                     const struct ibv_send_wr *bad)
{
    int taken = 0;

    while (taken < n && &r[taken].wr != bad)
        taken++;
    for (int i = n; i-- > taken;)
        bny_ud_out_done(p, --p->out_head);
    return taken;
}

/* A frame to no rank, or without an address handle yet, counts as taken: it is lost. */
int bny_ud_tx(struct bny_dgram_port *p, const struct bny_dgram_tx *tx, int n)
{
    struct request r[BNY_DGRAM_BURST];
    int frame_of[BNY_DGRAM_BURST + 1], m = 0, done, taken;
    struct ibv_send_wr *bad = NULL;

    if (!bny_ud_ready(p))
        return 0;
    if (p->nouts - (p->out_head - p->out_tail) < (uint32_t)n)
        bny_ud_reclaim(p);
    for (done = 0; done < n && m < BNY_DGRAM_BURST; done++) {
        const struct ud_way *w = bny_ud_way(p, rank_of(tx[done].head));
        uint32_t bytes = tx[done].head_len - BNY_DGRAM_ETH + tx[done].body_len;

        if (!w || bytes > p->payload) {
            p->missed++;
            continue;
        }
        if (p->out_head - p->out_tail == p->nouts)
            break;
        frame_of[m] = done;
        ud_io_fill(p, &tx[done], w, &r[m]);
        if (p->srd || p->out_head % SIGNAL_EVERY == 0)
            r[m].wr.send_flags = IBV_SEND_SIGNALED;
        r[m].wr.next = NULL;
        if (m)
            r[m - 1].wr.next = &r[m].wr;
        m++;
    }
    if (!m)
        return done;
    r[m - 1].wr.send_flags |= IBV_SEND_SIGNALED;
    frame_of[m] = done;
    if (ibv_post_send(p->qp, &r[0].wr, &bad) == 0)
        return done;
    taken = not_taken(p, r, m, bad);
    /* Earlier ones have no completion: a later one covers them. A queue that accepts nothing
     * although it is empty is broken. */
    if (!taken && p->out_head == p->out_tail)
        p->broken = 1;
    return frame_of[taken];
}

/* ---- receives ---- */

static uint8_t *place_at(const struct bny_dgram_port *p, uint32_t i)
{
    return p->pool + (size_t)(p->nouts + i) * p->stride;
}

void bny_ud_post(struct bny_dgram_port *p)
{
    struct ibv_recv_wr wr[BATCH], *bad;
    struct ibv_sge sge[BATCH];
    uint32_t skip = p->srd ? UD_FRAME_AT : UD_FRAME_AT - UD_GRH;

    while (p->nidle && !p->broken && !p->dead) {
        int n = 0;

        for (uint32_t i = p->idle; i != UD_NONE && n < BATCH; i = p->places[i].next, n++) {
            sge[n] = (struct ibv_sge){ .addr = (uintptr_t)place_at(p, i) + skip,
                                       .length = p->payload + UD_FRAME_AT - skip,
                                       .lkey = p->mr->lkey };
            wr[n] = (struct ibv_recv_wr){ .wr_id = (uint64_t)p->turn << 32 | i,
                                          .sg_list = &sge[n],
                                          .num_sge = 1 };
            if (n)
                wr[n - 1].next = &wr[n];
        }
        bad = NULL;
        if (ibv_post_recv(p->qp, wr, &bad) == 0)
            bad = &wr[n];
        for (int k = 0; k < n && &wr[k] != bad; k++) {
            p->places[p->idle].is_posted = 1;
            p->idle = p->places[p->idle].next;
            p->nidle--;
            p->posted++;
        }
        if (bad != &wr[n])
            return; /* when the next one is free again */
    }
}

void bny_ud_give(struct bny_dgram_port *p, uint32_t i)
{
    p->places[i].is_posted = 0;
    p->places[i].next = p->idle;
    p->idle = i;
    p->nidle++;
}

void bny_ud_free(void *const *bufs, int n)
{
    struct bny_dgram_port *p = NULL;

    for (int i = 0; i < n; i++) {
        struct ud_place *b = bufs[i];

        p = b->port;
        if (b->outside) {
            free(b);
            continue;
        }
        bny_ud_give(p, (uint32_t)(b - p->places));
    }
    if (p && p->nidle >= BATCH / 2)
        bny_ud_post(p);
}

/* Copies the frame to memory of its own. */
static struct ud_place *copy_of(struct bny_dgram_port *p, const uint8_t *from, uint32_t len)
{
    struct ud_place *b = malloc(sizeof *b + 64 + UD_FRAME_AT + len);

    if (!b)
        return NULL;
    b->port = p;
    b->outside = (uint8_t *)(((uintptr_t)(b + 1) + 63) & ~(uintptr_t)63);
    memcpy(b->outside + UD_FRAME_AT, from + UD_FRAME_AT, len);
    return b;
}

/* 1: *rx is a frame. */
static int ud_io_take(struct bny_dgram_port *p, const struct ibv_wc *wc,
                      struct bny_dgram_rx *rx)
{
    uint32_t i = (uint32_t)wc->wr_id, grh = p->srd ? 0 : UD_GRH, len;
    struct ud_place *b;

    if ((uint32_t)(wc->wr_id >> 32) != p->turn || i >= p->nplaces || !p->places[i].is_posted)
        return 0;
    p->posted--;
    if (wc->status != IBV_WC_SUCCESS || wc->byte_len < grh || wc->byte_len > grh + p->payload) {
        p->broken |= wc->status != IBV_WC_SUCCESS;
        p->missed++;
        bny_ud_give(p, i);
        return 0;
    }
    p->futile = 0;
    b = &p->places[i];
    b->is_posted = 0;
    len = wc->byte_len - grh;
    *rx = (struct bny_dgram_rx){ .buf = b, .data = place_at(p, i), .len = UD_FRAME_AT + len };
    if (p->posted >= p->nplaces / 2)
        return 1;
    b = copy_of(p, rx->data, len);
    p->copied++;
    bny_ud_give(p, i);
    if (!b) {
        p->missed++;
        return 0;
    }
    rx->buf = b;
    rx->data = b->outside;
    return 1;
}

int bny_ud_rx(struct bny_dgram_port *p, struct bny_dgram_rx *rx, int n)
{
    struct ibv_wc wc[BNY_DGRAM_BURST];
    int got, frames = 0;

    if (!bny_ud_ready(p))
        return 0;
    bny_ud_reclaim(p);
    got = ibv_poll_cq(p->rcq, n < BNY_DGRAM_BURST ? n : BNY_DGRAM_BURST, wc);
    if (got < 0)
        p->broken = 1;
    for (int i = 0; i < got; i++)
        frames += ud_io_take(p, &wc[i], &rx[frames]);
    if (p->nidle)
        bny_ud_post(p);
    return frames;
}

/* ---- sleep ---- */

int bny_ud_arm(struct bny_dgram_port *p)
{
    if (!p->channel || p->dead || ibv_req_notify_cq(p->rcq, 0) != 0)
        return -1;
    return p->channel->fd;
}

void bny_ud_disarm(struct bny_dgram_port *p)
{
    unsigned events = 0;
    struct ibv_cq *cq;
    void *context;

    while (p->channel && p->fn->ibv_get_cq_event(p->channel, &cq, &context) == 0)
        events++;
    if (events)
        p->fn->ibv_ack_cq_events(p->rcq, events);
}
