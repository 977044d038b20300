/* SPDX-License-Identifier: BSD-3-Clause */
/* Endpoints: one for each peer, which is its first lane, and one for each further lane. */
#include <stdlib.h>

#include "transport/verbs/lane.h"

struct vb_ep *bny_verbs_ep(struct vb_tp *t, int peer)
{
    struct vb_ep *e = t->eps[peer];

    if (e)
        return e;
    e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->ep = (struct bny_ep){ .tp = &t->tp,
                             .ops = t->tp.ops,
                             .peer = peer,
                             .eager_max = VB_EAGER_MAX,
                             .slot_max = t->slab.slot_max,
                             .zcopy_min = VB_ZCOPY_MIN };
    e->main = e;
    e->nlanes = 1;
    e->nrails = t->nrails;
    t->eps[peer] = e;
    return e;
}

struct vb_ep *bny_verbs_lane_ep(struct vb_tp *t, int peer, uint32_t lane)
{
    struct vb_ep *e = bny_verbs_ep(t, peer), *l;

    if (!e || lane == 0 || lane >= VB_LANES || e->lanes[lane])
        return !e || lane >= VB_LANES ? NULL : lane ? e->lanes[lane] : e;
    l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->ep = e->ep;
    l->main = e;
    l->lane = lane;
    l->claimed = 1; /* its peer's was */
    e->lanes[lane] = l;
    if (e->nlanes <= lane)
        e->nlanes = lane + 1;
    return l;
}

/* The lower rank requests further lanes once the first one is open and the peer's address
 * known. */
void bny_verbs_grow(struct vb_ep *e)
{
    struct vb_tp *t = (struct vb_tp *)e->ep.tp;

    if (e->state != VB_OPEN || !e->claimed || e->ep.peer < t->tp.rank || e->conn->epoch)
        return;
    for (uint32_t k = 1; k < (uint32_t)(e->nrails * e->qps) && k < VB_LANES; k++) {
        struct vb_ep *l = bny_verbs_lane_ep(t, e->ep.peer, k);

        if (!l || l->conn || l->state != VB_IDLE || l->growing)
            continue;
        l->growing = 1;
        t->joining++;
        bny_verbs_ask(l);
    }
}
