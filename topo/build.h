/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of builders: one table each (build_*.c), and the final step for a forest. Only
 * the registry and the builders include this.
 *
 * The cost model of all cost() members, for a uniform full mesh with one full-duplex port per
 * rank: a rank pays alpha for each message that it sends, beta for each byte that leaves (or
 * enters, if that is more), gamma for each byte that it adds; phases and time steps follow one
 * another unless the formula says pipelined. SCATTERED and ROOTED are priced as the reducing
 * direction: pass gamma = 0 for allgather and broadcast. Formulas use n ranks, S bytes, L =
 * ceil(log2 n). */
#ifndef BNY_TOPO_BUILD_H
#define BNY_TOPO_BUILD_H

#include "topo/forest.h"

extern const struct bny_builder_ops bny_build_ring, bny_build_ring_uni, bny_build_halving,
    bny_build_double_binary_tree, bny_build_binomial, bny_build_star, bny_build_linear,
    bny_build_bucket, bny_build_bine, bny_build_trivance, bny_build_pat;

/* Sets nsteps from the trees' steps and returns the forest in *out; always 0. */
int bny_forest_finish(struct bny_forest **out, struct bny_forest *f);
/* -BANYAN_ENOMEM with its sentence. */
int bny_forest_no_memory(const char *name, int nranks);
/* Smallest L with 2^L >= n, n >= 1. */
int bny_log2_ceil(int n);

#endif
