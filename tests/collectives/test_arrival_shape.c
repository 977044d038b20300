/* SPDX-License-Identifier: BSD-3-Clause */
/* Trees of slots that fill in order: for all numbers of slots and all depths each is one tree
 * of few children, whose subtrees are runs of slots, so that neighbours in time are neighbours
 * in the tree. */
#include <criterion/criterion.h>
#include <string.h>

#include "collectives/plan/arrival_tree.h"

#define SLOTS_MAX 130

static int parent[SLOTS_MAX], low[SLOTS_MAX], high[SLOTS_MAX], children[SLOTS_MAX];

/* Widens the runs of all above slot s by it; how far the top is. */
static int climb(int s, int slots)
{
    int steps = 0;

    for (int at = s; at != BNY_SHAPE_TOP; at = parent[at], steps++) {
        cr_assert(at >= 0 && at < slots && steps <= slots, "slot %d of %d", s, slots);
        low[at] = s < low[at] ? s : low[at];
        high[at] = s > high[at] ? s : high[at];
    }
    return steps;
}

static void check(int slots, int depth)
{
    int tops = 0, most = depth == BNY_SHAPE_STAR ? slots : depth ? 2 : 1;
    int sizes[SLOTS_MAX] = { 0 }, spoilt[SLOTS_MAX];

    bny_arrival_tree_parents(slots, depth, parent);
    for (int s = 0; s < slots; s++) {
        low[s] = high[s] = s;
        children[s] = 0;
    }
    for (int s = 0; s < slots; s++) {
        tops += parent[s] == BNY_SHAPE_TOP;
        if (parent[s] != BNY_SHAPE_TOP)
            children[parent[s]]++;
        climb(s, slots);
    }
    cr_assert_eq(tops, 1, "%d slots, depth %d: %d tops", slots, depth, tops);
    for (int s = 0; s < slots; s++)
        for (int at = s; at != BNY_SHAPE_TOP; at = parent[at])
            sizes[at]++;
    for (int s = 0; s < slots; s++) {
        cr_assert_leq(children[s], most, "%d slots, depth %d: slot %d has %d children", slots,
                      depth, s, children[s]);
        cr_assert_eq(sizes[s], high[s] - low[s] + 1,
                     "%d slots, depth %d: what is below slot %d is no run", slots, depth, s);
        memcpy(spoilt, parent, sizeof spoilt);
        cr_assert_eq(bny_arrival_tree_below(slots, spoilt, s), sizes[s],
                     "%d slots, depth %d: not so many are below slot %d", slots, depth, s);
    }
}

Test(arrival_shape, every_shape_is_one_tree_in_order)
{
    for (int slots = 1; slots <= SLOTS_MAX; slots++)
        for (int depth = BNY_SHAPE_STAR; depth <= bny_arrival_tree_depth_max(slots); depth++)
            check(slots, depth);
}

Test(arrival_shape, short_sums_take_a_star_and_long_ones_a_chain)
{
    cr_assert_eq(bny_arrival_tree_choose(8, 64, 65536, 1e-5, 1e-9), BNY_SHAPE_STAR);
    cr_assert_eq(bny_arrival_tree_choose(8, 1e9, 65536, 1e-5, 1e-9), 0);
    cr_assert_gt(bny_arrival_tree_choose(100, 1e5, 65536, 1e-5, 1e-9), 0);
}
