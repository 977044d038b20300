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

/* The list of forest builders: one row each, the table that its file defines. */
#define BNY_BUILDERS(ROW)                                                                      \
    ROW(bny_build_ring)                                                                        \
    ROW(bny_build_ring_uni)                                                                    \
    ROW(bny_build_halving)                                                                     \
    ROW(bny_build_double_binary_tree)                                                          \
    ROW(bny_build_binomial)                                                                    \
    ROW(bny_build_star)                                                                        \
    ROW(bny_build_linear)                                                                      \
    ROW(bny_build_bucket)                                                                      \
    ROW(bny_build_bine)                                                                        \
    ROW(bny_build_trivance)                                                                    \
    ROW(bny_build_pat)

#define BNY_BUILDER_DECLARED(table) extern const struct bny_builder_ops table;
BNY_BUILDERS(BNY_BUILDER_DECLARED)
#undef BNY_BUILDER_DECLARED

/* Sets nsteps from the trees' steps and returns the forest in *out; always 0. */
int bny_forest_finish(struct bny_forest **out, struct bny_forest *f);
/* -BANYAN_ENOMEM with its sentence. */
int bny_forest_no_memory(const char *name, int nranks);
/* Smallest L with 2^L >= n, n >= 1. */
int bny_log2_ceil(int n);

#endif
