/* SPDX-License-Identifier: BSD-3-Clause */
/* Completion queues: one for each rail and up to 128 queue pairs, so one poll serves all peers;
 * completions are sorted to the lanes of their queue pairs (wc.qp_num).
 *
 * Size. A queue has entries for everything that its queue pairs may have in flight, including
 * requests flushed by a break, so it cannot overflow. It is made with the first queue pair,
 * with places for as many as the job's ranks may make here, at most CQ_PLACES and what the
 * device's max_cqe allows (at most some 7 MiB, 11 with notes, like the slabs of one or two
 * peers; with a shared receive queue, entries for all of that, too). If all places are taken
 * the rail gets another queue, and each poll costs one call more until that is empty again;
 * queues are not resized, as not every device can.
 *
 * The end of a queue pair. Some devices remove its entries, others leave them and may reuse its
 * number for the next queue pair. So after its destruction, when no new ones can come, the
 * queue is polled until empty: all entries go to their lanes, this one's to be dropped. Only
 * then its number and place are free. A queue is first in, first out, so polling as many
 * entries as it holds suffices. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/err.h"
#include "transport/verbs/lane.h"

#define CQ_PLACES 128u
#define CQ_SPARE  8u /* for replacements and foreign connections in small jobs */
#define CQ_BATCH  64 /* completions for each poll */

struct vb_cq {
    struct ibv_cq *cq;
    struct vb_tp *t;
    struct vb_rail *rail;
    struct vb_cq *next;
    uint32_t places, taken;
    struct vb_lane **lanes; /* [mask + 1]: hashed by queue pair number, with linear probing */
    uint32_t mask;
    unsigned events; /* not acknowledged yet */
    int failed;      /* a poll did */
};

/* ---- the owner of a completion ---- */

static struct vb_lane *cq_find(const struct vb_cq *q, uint32_t number)
{
    uint32_t i = number & q->mask;

    while (q->lanes[i] && q->lanes[i]->qp_num != number)
        i = (i + 1) & q->mask;
    return q->lanes[i];
}

static void cq_put(struct vb_cq *q, struct vb_lane *c)
{
    uint32_t i = c->qp_num & q->mask;

    while (q->lanes[i])
        i = (i + 1) & q->mask;
    q->lanes[i] = c;
}

/* Moves up later entries that would no longer be found. */
static void cq_take_out(struct vb_cq *q, const struct vb_lane *c)
{
    uint32_t i = c->qp_num & q->mask;

    while (q->lanes[i] != c)
        i = (i + 1) & q->mask;
    q->lanes[i] = NULL;
    for (i = (i + 1) & q->mask; q->lanes[i]; i = (i + 1) & q->mask) {
        struct vb_lane *l = q->lanes[i];

        q->lanes[i] = NULL;
        cq_put(q, l);
    }
}

/* ---- what comes ---- */

/* Most completions that a queue pair can have in flight: for each receive request and, when it
 * breaks, for each send request. */
static uint32_t most_of(const struct vb_tp *t)
{
    return t->depth.requests * t->depth.sends + 1 + t->depth.recvs + 1;
}

/* Gives it to its lane. There is room, unless the peer sends more than its credits to a shared
 * receive queue. */
static void deliver(struct vb_cq *q, const struct ibv_wc *wc)
{
    struct vb_lane *c = cq_find(q, wc->qp_num);
    uint32_t most = most_of(q->t);

    if (!c || c->stashed - c->stash_at == most) {
        if (c)
            c->overrun = 1;
        if ((wc->wr_id & VB_WR_RECV) && q->rail->shared.srq)
            bny_verbs_srq_take(q->rail, wc);
        return;
    }
    if (c->stashed == most) {
        c->stashed -= c->stash_at;
        memmove(c->stash, c->stash + c->stash_at, c->stashed * sizeof *c->stash);
        c->stash_at = 0;
    }
    c->stash[c->stashed++] = *wc;
}

/* One poll. Returns the number of completions; 0 also if it fails. */
static uint32_t cq_look(struct vb_cq *q, int n)
{
    struct ibv_wc wc[CQ_BATCH];
    int k = ibv_poll_cq(q->cq, n, wc);

    q->failed |= k < 0;
    for (int i = 0; i < k; i++)
        deliver(q, &wc[i]);
    return k > 0 ? (uint32_t)k : 0;
}

uint32_t bny_verbs_cq_sweep(struct vb_cq *q)
{
    uint32_t most = (uint32_t)q->cq->cqe, came = 0, k;

    do {
        k = cq_look(q, CQ_BATCH);
        came += k;
    } while (k && came < most);
    return came;
}

int bny_verbs_cq_next(struct vb_lane *c, struct ibv_wc *wc)
{
    if (!bny_verbs_cq_has(c))
        return 0;
    *wc = c->stash[c->stash_at++];
    if (c->stash_at == c->stashed)
        c->stash_at = c->stashed = 0;
    return 1;
}

static void cq_free(struct vb_cq *q)
{
    if (q->cq && q->events)
        q->t->fn->ibv_ack_cq_events(q->cq, q->events);
    if (q->cq)
        q->t->fn->ibv_destroy_cq(q->cq);
    free(q->lanes);
    free(q);
}

/* Frees temporary queues, e.g. for foreign connections, to save polls. */
static void free_empty(struct vb_rail *rail)
{
    struct vb_cq **p = rail->cqs ? &rail->cqs->next : &rail->cqs, *q;

    while ((q = *p)) {
        if (q->taken) {
            p = &q->next;
            continue;
        }
        *p = q->next;
        cq_free(q);
    }
}

void bny_verbs_cqs_poll(struct vb_tp *t)
{
    for (int i = 0; i < t->nrails; i++) {
        free_empty(&t->rails[i]);
        for (struct vb_cq *q = t->rails[i].cqs; q; q = q->next) {
            char why[128];

            cq_look(q, CQ_BATCH);
            if (!q->failed)
                continue;
            q->failed = 0;
            if (t->rails[i].down == 2) /* for good, and already reported */
                continue;
            snprintf(why, sizeof why, "the completion queue of device %s fails",
                     t->rails[i].at);
            bny_verbs_rail_down(t, &t->rails[i], 2, why);
        }
    }
}

int bny_verbs_cqs_arm(struct vb_tp *t)
{
    uint32_t came = 0;

    for (int i = 0; i < t->nrails; i++)
        for (struct vb_cq *q = t->rails[i].cqs; q; q = q->next) {
            ibv_req_notify_cq(q->cq, 0);
            came += bny_verbs_cq_sweep(q);
            came += q->failed && t->rails[i].down != 2;
        }
    return came != 0;
}

void bny_verbs_cqs_disarm(struct vb_tp *t)
{
    struct ibv_cq *cq;
    void *context;

    for (int i = 0; i < t->nrails; i++)
        while (t->fn->ibv_get_cq_event(t->rails[i].channel, &cq, &context) == 0) {
            struct vb_cq *q = context;

            if (++q->events == 1024) { /* it takes a lock */
                t->fn->ibv_ack_cq_events(q->cq, q->events);
                q->events = 0;
            }
        }
}

/* ---- making and ending ---- */

/* One peer that ignores its credits may consume the whole shared receive queue. */
static uint32_t beyond_shares(const struct vb_tp *t, const struct vb_rail *rail,
                              uint32_t places)
{
    uint32_t shares = places * (t->depth.recvs + 1);

    return rail->shared.n > shares ? rail->shared.n - shares : 0;
}

/* For a number of queue pairs. Returns NULL with errno. */
/* Distributes interrupts: the ranks of a host, numbered in turn as a rule, use different
 * vectors of a device, and so do a rank's further queues. */
static int vector_of(struct vb_tp *t, const struct vb_rail *rail)
{
    int n = rail->ctx->num_comp_vectors;

    return n > 1 ? (int)(((unsigned)t->tp.rank + t->ncqs++) % (unsigned)n) : 0;
}

static struct vb_cq *cq_new(struct vb_tp *t, struct vb_rail *rail, uint32_t places)
{
    uint32_t room = 2, entries = places * most_of(t);
    struct vb_cq *q = calloc(1, sizeof *q);

    while (room < 2 * places)
        room *= 2;
    if (rail->shared.srq)
        entries += beyond_shares(t, rail, places);
    if (q)
        q->lanes = calloc(room, sizeof(struct vb_lane *));
    if (!q || !q->lanes) {
        free(q);
        errno = ENOMEM;
        return NULL;
    }
    q->t = t;
    q->rail = rail;
    q->places = places;
    q->mask = room - 1;
    q->cq = t->fn->ibv_create_cq(rail->ctx, (int)entries, q, rail->channel, vector_of(t, rail));
    if (q->cq)
        return q;
    free(q->lanes);
    free(q);
    return NULL;
}

/* As many places as needed, if the device has entries for them. */
static uint32_t places_for(const struct vb_tp *t, const struct vb_rail *rail)
{
    uint64_t lanes = (uint64_t)(t->tp.nranks - 1) * t->blob.qps + CQ_SPARE;
    uint32_t shared = rail->shared.srq ? rail->shared.n : 0, fit;
    uint32_t each = most_of(t) - (shared ? t->depth.recvs + 1 : 0);
    struct ibv_device_attr attr;

    if (lanes > CQ_PLACES)
        lanes = CQ_PLACES;
    memset(&attr, 0, sizeof attr);
    if (t->fn->ibv_query_device(rail->ctx, &attr) != 0 || attr.max_cqe <= 0)
        return 1;
    fit = (uint32_t)attr.max_cqe > shared ? ((uint32_t)attr.max_cqe - shared) / each : 1;
    return fit < lanes ? fit + !fit : (uint32_t)lanes;
}

int bny_verbs_cq_join(struct vb_lane *c)
{
    struct vb_cq **p = &c->rail->cqs;

    while (*p && (*p)->taken == (*p)->places)
        p = &(*p)->next;
    if (!*p)
        *p = cq_new(c->t, c->rail, places_for(c->t, c->rail));
    if (!*p)
        return -1;
    c->stash = malloc(most_of(c->t) * sizeof *c->stash);
    if (!c->stash) {
        errno = ENOMEM;
        return -1;
    }
    c->cq = *p;
    c->cq->taken++;
    return 0;
}

uint32_t bny_verbs_cq_least(const struct vb_lane *c)
{
    uint32_t shared = c->rail->shared.srq ? beyond_shares(c->t, c->rail, 1) : 0;

    return most_of(c->t) + shared;
}

struct ibv_cq *bny_verbs_cq_of(const struct vb_lane *c)
{
    return c->cq->cq;
}

void bny_verbs_cq_begin(struct vb_lane *c)
{
    BNY_ASSERT(!cq_find(c->cq, c->id->qp->qp_num));
    c->qp_num = c->id->qp->qp_num;
    cq_put(c->cq, c);
}

void bny_verbs_cq_pass(struct vb_lane *from, struct vb_lane *to)
{
    BNY_ASSERT(!to->cq && !bny_verbs_cq_has(to));
    cq_take_out(from->cq, from);
    free(to->stash);
    to->stash = from->stash;
    to->stash_at = from->stash_at;
    to->stashed = from->stashed;
    to->overrun = from->overrun;
    to->cq = from->cq;
    to->qp_num = from->qp_num;
    cq_put(to->cq, to);
    from->stash = NULL;
    from->cq = NULL;
    from->qp_num = 0;
}

void bny_verbs_cq_forget(struct vb_lane *c)
{
    struct ibv_wc wc;

    if (c->cq && c->qp_num)
        bny_verbs_cq_sweep(c->cq);
    while (bny_verbs_cq_next(c, &wc))
        if ((wc.wr_id & VB_WR_RECV) && c->rail->shared.srq)
            bny_verbs_srq_take(c->rail, &wc);
}

void bny_verbs_cq_leave(struct vb_lane *c)
{
    if (!c->cq)
        return;
    bny_verbs_cq_forget(c);
    if (c->qp_num)
        cq_take_out(c->cq, c);
    c->qp_num = 0;
    c->overrun = 0;
    c->cq->taken--;
    c->cq = NULL;
}

int bny_verbs_cq_is_of(const struct vb_rail *rail, const struct ibv_cq *cq)
{
    const struct vb_cq *q = rail->cqs;

    while (q && q->cq != cq)
        q = q->next;
    return q != NULL;
}

void bny_verbs_cqs_close(struct vb_rail *rail)
{
    while (rail->cqs) {
        struct vb_cq *q = rail->cqs;

        rail->cqs = q->next;
        cq_free(q);
    }
}
