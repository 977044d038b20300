/* SPDX-License-Identifier: BSD-3-Clause */
/* The growth of MultiTree's trees over a graph (multitree.c), independent of forests. */
#ifndef BNY_TOPO_MULTITREE_H
#define BNY_TOPO_MULTITREE_H

#include "topo/bound.h"

enum bny_multitree_flag {
    BNY_MULTITREE_REFERENCE = 1 << 0, /* as published: see multitree.c */
    BNY_MULTITREE_REVERSED =
        1 << 1, /* data flows against the links: trees towards their roots */
};

/* Trees away from their roots (with REVERSED: towards them), in time steps. */
struct bny_multitree {
    int nranks, ntrees;
    uint32_t nsteps;
    int *parent; /* [ntrees * nranks], -1 for roots */
    uint32_t
        *when;  /* [ntrees * nranks] the step of the edge between v and its parent, from 0 */
    int *first; /* [ntrees * nranks + 1] links[first[i] .. first[i+1]): the edge's links, in
                   order of travel */
    int *links;
};

/* roots[ntrees]. height_cap: 0 for none. Returns 0, -BANYAN_ENOMEM, or -BANYAN_EINVAL if
 * height_cap is below the distance from some root. Call bny_multitree_free in any case. */
int bny_multitree_grow(struct bny_multitree *out, const struct bny_graph *g, const int *roots,
                       int ntrees, int height_cap, unsigned flags);
void bny_multitree_free(struct bny_multitree *m); /* frees what it points at */

#endif
