/* SPDX-License-Identifier: BSD-3-Clause */
/* Schedules of other papers and libraries, for the simulator only: what ours are compared with.
 */
#ifndef PERF_SIM_BASELINES_H
#define PERF_SIM_BASELINES_H

#include "topo/simulate.h"

/* NCCL's double binary tree: tree 0 over ranks 0..n-1 below rank 0, tree 1 its mirror image (n
 * even) or shifted by one (odd). bny_forest_free. NULL on no memory, as below. */
struct bny_forest *sim_nccl_double_tree(int nranks);
/* Halving that begins with the nearest partner (v xor 1) and half of the data; a power of two.
 */
struct bny_forest *sim_near_halving(int nranks);
/* NCCL's rings over boxes of `box` ranks: channel c leaves and enters each box by another rank.
 */
struct bny_forest *sim_rail_rings(int boxes, int box);
/* A one-way ring through ranks in this order. */
struct bny_forest *sim_ring_through(const int *order, int nranks);

/* MultiTree's 2D-ring on a torus of rows x cols, in two passes: each half of the data is
 * reduced over the rings of one dimension, both ways round, and then over those of the other.
 * Fills an initialised job. */
void sim_ring_2d(struct bny_sim_job *job, int rows, int cols, double bytes);

#endif
