/* SPDX-License-Identifier: BSD-3-Clause */
/* Trees of exchange patterns: in step s rank v sends the blocks that it no longer owns to its
 * peers of that step. Halving, Bine, Swing and Trivance differ only in their peers. */
#ifndef BNY_TOPO_BUTTERFLY_H
#define BNY_TOPO_BUTTERFLY_H

#include "topo/forest.h"

/* nranks = radix^nsteps ranks; over the steps s, s+1, ... the ranks whose data rank v receives
 * must differ for each of its peers. */
struct bny_butterfly {
    int nranks, nsteps;
    int npeers;                                           /* radix - 1 */
    int (*peer)(const void *ctx, int v, int step, int k); /* k in 0 .. npeers-1 */
    const void *ctx;
};

/* Fills root, parent and step of tree; steps begin at `first_step`. Ranks from nranks on are
 * unchanged. Returns 0 or -BANYAN_ENOMEM. */
int bny_butterfly_tree(const struct bny_butterfly *b, struct bny_tree *tree, int root,
                       int first_step);
/* roots[nranks]: an order of trees in which the blocks of every message are adjacent, if the
 * pattern has one. Returns 0 or -BANYAN_ENOMEM. */
int bny_butterfly_order(const struct bny_butterfly *b, int *roots);

/* The negabinary distance (1 - (-2)^(s+1)) / 3: 1, -1, 3, -5, 11 ... (Bine trees and Swing);
 * even ranks of a ring of `size` go that far up, odd ones down. */
int bny_negabinary_peer(int v, int size, int s);

#endif
