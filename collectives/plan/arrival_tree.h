/* SPDX-License-Identifier: BSD-3-Clause */
/* Trees of slots that are filled in order: Hoplite (Zhuang et al., SIGCOMM 2021, section 4.2),
 * whose released code joins its three shapes in one. Slots are numbered in order (in-order
 * traversal), so that ranks that come one after the other sit side by side and begin to add at
 * once. */
#ifndef BNY_COLLECTIVES_ARRIVAL_TREE_H
#define BNY_COLLECTIVES_ARRIVAL_TREE_H

#define BNY_SHAPE_STAR (-1) /* slot 0 is the parent of all others */
#define BNY_SHAPE_TOP  (-1) /* who has no parent */

/* depth: BNY_SHAPE_STAR; 0, one chain; or that of a full binary tree, under whose leaves chains
 * hang. The greatest one that so many slots can have is bny_arrival_tree_depth_max(). */
int bny_arrival_tree_depth_max(int slots);
/* parent [slots]: the slot that each one's sum goes to; BNY_SHAPE_TOP for the top. */
void bny_arrival_tree_parents(int slots, int depth, int *parent);
/* So many slots' sums come through `slot`, its own among them. Spoils parent [slots]. */
int bny_arrival_tree_below(int slots, int *parent, int slot);
/* From when the last one has come until all have the result of a sum of `bytes`, where all
 * others had the time to add before: message delay alpha_s, beta seconds a byte, chunks of
 * `chunk` bytes. */
double bny_arrival_tree_seconds(int slots, int depth, double bytes, double chunk, double alpha,
                                double beta);
/* The fastest for a sum of `bytes`: message delay alpha_s, beta seconds a byte, chunks of
 * `chunk` bytes. */
int bny_arrival_tree_choose(int slots, double bytes, double chunk, double alpha_s, double beta);

#endif
