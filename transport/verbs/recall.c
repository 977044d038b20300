/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that returns to its owner before its requests are done, as an operation has failed.
 * First waits for the device, which takes no longer than the wire, whatever the peer's program
 * does: there is room for all that is in flight. If the wire stalls, gives up the queue pair,
 * which ends all of its requests, and its successor (lane.c) sends from copies: into slots from
 * our slots of the same number, which are idle meanwhile, elsewhere from memory of our own. The
 * peer notices at most another queue pair. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "transport/verbs/lane.h"

#define STILL_S 1.0   /* without a completion: the wire stalls */
#define AT_ONCE 64    /* polls before it sleeps */
#define NAP_NS  20000 /* between two polls */

struct vb_copy {
    struct vb_region region;
    struct vb_copy *next;
    uint32_t last; /* its request */
    char bytes[];
};

static char *own_slots(const struct vb_lane *c)
{
    return c->peer->slab + c->peer->shape.bytes;
}

static int is_own(const struct vb_lane *c, uint64_t at)
{
    return at >= (uintptr_t)own_slots(c) && at - (uintptr_t)own_slots(c) < c->peer->shape.bytes;
}

static int borrows(const struct vb_lane *c, const struct vb_sent *s, const void *cookie)
{
    for (int i = 0; i < s->nsge && s->cookie == cookie; i++)
        if (!is_own(c, s->sge[i].addr))
            return 1;
    return 0;
}

/* ---- waiting ---- */

/* How many requests of a queue pair the device has done; *well: none of them failed. */
static uint32_t ended(const struct vb_lane *c, int *well)
{
    uint32_t upto = c->lost ? c->ended : c->done;

    *well = !c->lost;
    for (uint32_t i = c->stash_at; i < c->stashed; i++) {
        const struct ibv_wc *wc = &c->stash[i];

        if (wc->wr_id & (VB_WR_RECV | VB_WR_HELLO))
            continue;
        *well &= wc->status == IBV_WC_SUCCESS;
        upto = (uint32_t)wc->wr_id + 1;
    }
    return upto;
}

/* Waits until requests below `end` are done. 1: they are, without error; 0: the queue pair
 * broke; -1: the wire stalls. */
static int recall_wait_for(const struct vb_lane *c, uint32_t end)
{
    const struct timespec nap = { .tv_nsec = NAP_NS };
    uint64_t deadline = bny_deadline_in(STILL_S);
    uint32_t before = c->done;

    for (int i = 0;; i++) {
        int well;
        uint32_t upto = ended(c, &well);

        if ((int32_t)(upto - end) >= 0)
            return well;
        if (upto != before)
            deadline = bny_deadline_in(STILL_S);
        else if (bny_deadline_passed(deadline))
            return -1;
        before = upto;
        if (i >= AT_ONCE)
            nanosleep(&nap, NULL);
        bny_verbs_cq_sweep(c->cq);
    }
}

/* ---- copies ---- */

/* Into our slot of the same number. */
static void copy_to_slot(const struct vb_lane *c, struct vb_sent *s, const void *cookie)
{
    struct vb_peer *p = c->peer;
    uint64_t at = s->remote - p->remote_addr;
    uint64_t slot = (at - p->shape.bulk_at) / p->shape.stride;

    if (p->lent[slot] != cookie) { /* the peer has it: it released the slot */
        s->nsge = 0;
        return;
    }
    for (int i = 0; i < s->nsge; i++) {
        struct ibv_sge *g = &s->sge[i];

        if (!is_own(c, g->addr)) {
            memcpy(own_slots(c) + at, (const void *)(uintptr_t)g->addr, g->length);
            g->addr = (uintptr_t)own_slots(c) + at;
            g->lkey = p->mr_out[c->rail->index]->lkey;
        }
        at += g->length;
    }
}

/* For writes to a window. -1: no memory. */
static int copy_apart(struct vb_lane *c, struct vb_sent *s, uint32_t k)
{
    struct ibv_sge *g = &s->sge[0];
    struct vb_copy *copy = malloc(sizeof *copy + g->length);

    if (!copy)
        return -1;
    memcpy(copy->bytes, (const void *)(uintptr_t)g->addr, g->length);
    copy->last = k;
    copy->region = (struct vb_region){ .number = VB_FURTHER, .ours = 1 };
    if (bny_verbs_region_add(c->t, &copy->region, copy->bytes, g->length) != 0) {
        free(copy);
        return -1;
    }
    copy->next = c->copies;
    c->copies = copy;
    g->addr = (uintptr_t)copy->bytes;
    g->lkey = copy->region.mr[c->rail->index] ? copy->region.mr[c->rail->index]->lkey : 0;
    return 0;
}

void bny_verbs_copies_drop(struct vb_lane *c)
{
    for (struct vb_copy **p = &c->copies; *p;) {
        struct vb_copy *copy = *p;

        if ((int32_t)(c->done - copy->last) <= 0) {
            p = &copy->next;
            continue;
        }
        *p = copy->next;
        bny_verbs_region_end(c->t, &copy->region);
        free(copy);
    }
}

static void copy_all(struct vb_lane *c, const void *cookie)
{
    for (uint32_t k = c->done; k != c->posted; k++) {
        struct vb_sent *s = &c->sent[k % VB_SENDS];

        if (!borrows(c, s, cookie))
            continue;
        if (s->remote - c->peer->remote_addr < c->peer->shape.bytes) {
            copy_to_slot(c, s, cookie);
        } else if (copy_apart(c, s, k) != 0) {
            bny_verbs_down(c->e, "gets no more: no memory is left for data in transit to it");
            return;
        }
    }
}

/* ---- recalling ---- */

static void recall_lane(struct vb_lane *c, const void *cookie)
{
    uint32_t end = c->done, posted;
    int rc = 0;

    for (uint32_t k = c->done; k != c->posted; k++)
        if (borrows(c, &c->sent[k % VB_SENDS], cookie))
            end = k + 1;
    if (end == c->done)
        return;
    if (!c->lost)
        rc = recall_wait_for(c, end);
    if (rc < 0) {
        bny_verbs_lost(c, "accepts nothing over device %s", c->rail->at);
        if (c->dead) /* no other queue pair can be made: it is down */
            return;
    }
    posted = (int32_t)(c->to_post - end) < 0 ? c->to_post : end;
    if (c->lost && c->cq && posted != c->done)
        recall_wait_for(c, posted); /* a device that flushes nothing sends nothing, either */
    if (rc <= 0)
        copy_all(c, cookie);
}

/* Those that have not begun. */
static void recall_longs(struct vb_peer *p, const void *cookie)
{
    for (uint32_t i = p->longs_done; i != p->longs_queued; i++) {
        struct vb_long *l = &p->longs[i % VB_WAITING];

        if (l->cookie != cookie || l->own)
            continue;
        l->own = malloc(l->hdr.len - l->off);
        if (!l->own) {
            bny_verbs_down(p->e, "gets no more: no memory is left for data in transit to it");
            return;
        }
        memcpy(l->own, l->buf + l->off, l->hdr.len - l->off);
        l->buf = l->own;
        l->from = l->off;
    }
}

void bny_verbs_recall(struct bny_tp *tp, void *cookie)
{
    const struct vb_tp *t = (struct vb_tp *)tp;

    for (int r = 0; r < tp->nranks && cookie; r++) {
        const struct vb_ep *e = t->eps[r];

        if (!e || !e->conn)
            continue;
        for (uint32_t k = 1; k < e->nlanes; k++)
            if (e->lanes[k] && e->lanes[k]->conn)
                recall_lane(e->lanes[k]->conn, cookie);
        recall_lane(e->conn, cookie);
        if (!e->conn->dead)
            recall_longs(e->conn->peer, cookie);
    }
}
