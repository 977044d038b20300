/* SPDX-License-Identifier: BSD-3-Clause */
/* A proof of a lower bound for allreduce with any roots: a combination of cuts (a dual solution
 * of the linear program of joint_lp.h, in whole numbers).
 *
 * A forest of total weight 1 that broadcasts over loads b and reduces over loads r, r + b <= T
 * cap on each link, has for each set X of nodes b(leaving X) >= w(X) and r(arriving in X) >=
 * w(X), w(X) the weight of the roots in X, unless X holds all ranks; and a switch sends what it
 * receives. Hence with multipliers y >= 0 for sets of the broadcast, z >= 0 for sets of the
 * reduction, and any potentials p, q of switches:
 *   T * sum over links e = (i, j) of cap_e * max(0, Y_e, Z_e)
 *       >= min over ranks v of (sum of y and z of sets that hold v)
 *   Y_e = sum of y over sets with i inside and j outside, + p_j - p_i
 *   Z_e = sum of z over sets with j inside and i outside, + q_i - q_j
 * Any whole numbers give a valid bound, so rounding the program's dual weakens the bound a
 * little, but never invalidates it. */
#ifndef BNY_TOPO_DUAL_H
#define BNY_TOPO_DUAL_H

#include "topo/graph.h"

struct bny_dual {
    int nnodes, nsets;
    uint8_t *reduce;            /* [nsets] 1: a set of the reduction */
    int64_t *times;             /* [nsets] multiplier, > 0 */
    uint8_t *in;                /* [nsets * nnodes] in[s * nnodes + v] = 1: v in set s */
    int64_t *down_pot, *up_pot; /* [nnodes] p and q; 0 at ranks */
};

struct bny_dual *bny_dual_alloc(int nnodes, int nsets); /* all zero; NULL on no memory */
void bny_dual_free(struct bny_dual *d);                 /* takes NULL */
/* The bound that the dual proves for g, 0 if none; {1, 0} for a dual of another graph or one
 * whose numbers do not fit in 64 bits. */
struct bny_ratio bny_dual_value(const struct bny_dual *d, const struct bny_graph *g);

#endif
