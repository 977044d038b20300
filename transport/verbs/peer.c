/* SPDX-License-Identifier: BSD-3-Clause */
/* A peer's memory: the slabs at this end. */
#include <stdlib.h>
#include <sys/mman.h>

#include "transport/verbs/lane.h"

#define SLAB_MAPPED (2 * (size_t)VB_SLAB_BYTES)

struct vb_peer *bny_verbs_peer_new(struct vb_lane *first)
{
    struct vb_peer *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->t = first->t;
    p->first = first;
    p->slab =
        mmap(NULL, SLAB_MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p->slab != MAP_FAILED)
        return p;
    free(p);
    return NULL;
}

int bny_verbs_peer_register(struct vb_peer *p, const struct vb_fn *fn,
                            const struct vb_rail *rail)
{
    int i = rail->index;

    if (!p->mr_in[i])
        p->mr_in[i] = fn->ibv_reg_mr(rail->pd, p->slab, VB_SLAB_BYTES,
                                     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (p->mr_in[i] && !p->mr_out[i])
        p->mr_out[i] = fn->ibv_reg_mr(rail->pd, p->slab + VB_SLAB_BYTES, VB_SLAB_BYTES,
                                      IBV_ACCESS_LOCAL_WRITE);
    return p->mr_out[i] ? 0 : -1;
}

void bny_verbs_peer_deregister(struct vb_peer *p, const struct vb_fn *fn)
{
    for (uint32_t i = 0; i < VB_RAILS; i++) {
        if (p->mr_in[i])
            fn->ibv_dereg_mr(p->mr_in[i]);
        if (p->mr_out[i])
            fn->ibv_dereg_mr(p->mr_out[i]);
        p->mr_in[i] = p->mr_out[i] = NULL;
    }
}

void bny_verbs_peer_free(struct vb_peer *p)
{
    munmap(p->slab, SLAB_MAPPED);
    free(p->waiting);
    free(p);
}
