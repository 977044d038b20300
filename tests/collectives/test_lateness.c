/* SPDX-License-Identifier: BSD-3-Clause */
/* How sums of schedule auto are run where ranks are late: ranks that begin and settle the same
 * sums in orders of their own say the same of each, and what they say is the rule of
 * lateness.h. */
#include <criterion/criterion.h>

#include "base/rng.h"
#include "collectives/arrival/lateness.h"

#define SUMS 4000
#define FAR  60 /* begun and not settled, at most */

/* The rule, from all that happened: sum i is `was_late`, if it had a desk. */
static enum bny_lateness_how model(const uint8_t *told_late, int k)
{
    int end = k - k % 8 - 4, late = 0;

    for (int i = end - 8; i < end; i++)
        late |= i >= 0 && told_late[i];
    return late ? BNY_LATENESS_ARRIVAL : k % 8 ? BNY_LATENESS_STATIC : BNY_LATENESS_ASKS;
}

/* A rank: sums begin in order; each of those begun may settle, once how it is run is known. */
struct rank {
    struct bny_lateness l;
    uint32_t base;
    int begun, settled;
    uint8_t is_settled[SUMS], how[SUMS];
};

static void step(struct rank *r, uint8_t *told_late, const uint8_t *was_late, int ahead,
                 uint64_t *s)
{
    int k = r->settled;

    if (r->begun < SUMS && r->begun - r->settled < ahead && bny_rng_below(s, 3)) {
        r->l.begun++;
        r->begun++;
        return;
    }
    k += (int)bny_rng_below(s, (uint64_t)(r->begun - k + 1));
    if (k >= r->begun || r->is_settled[k])
        return;
    r->how[k] = (uint8_t)bny_lateness_of(&r->l, r->base + (uint32_t)k);
    if (r->how[k] == BNY_LATENESS_UNKNOWN)
        return;
    cr_assert_eq((enum bny_lateness_how)r->how[k], model(told_late, k), "sum %d: %d", k,
                 r->how[k]);
    told_late[k] = r->how[k] != BNY_LATENESS_STATIC && was_late[k];
    bny_lateness_settle(&r->l, r->base + (uint32_t)k, told_late[k]);
    r->is_settled[k] = 1;
    while (r->settled < r->begun && r->is_settled[r->settled])
        r->settled++;
}

/* Late in runs and by chance, as `mood` says. */
static void draw_late(uint8_t *was_late, int mood, uint64_t *s)
{
    for (int k = 0, is = 0; k < SUMS; k++) {
        if (bny_rng_below(s, 40) == 0)
            is = !is;
        was_late[k] = mood == 0 ? (uint8_t)is : mood == 1 ? bny_rng_below(s, 9) == 0 : 0;
    }
}

Test(lateness, all_ranks_say_the_rule)
{
    static struct rank ranks[3];
    static uint8_t told_late[SUMS], was_late[SUMS];
    int by_arrival = 0, by_schedule = 0;
    uint64_t s = 20261126;

    for (int run = 0; run < 60; run++) {
        memset(ranks, 0, sizeof ranks);
        memset(told_late, 0, sizeof told_late);
        draw_late(was_late, run % 3, &s);
        for (int r = 0; r < 3; r++) {
            struct rank *at = &ranks[r];
            int ahead = 1 + (int)bny_rng_below(&s, FAR);

            at->base = run % 2 ? 0u - 2000u : 0; /* counts go round; a multiple of 8 */
            at->l.begun = at->l.known = at->base;
            for (long turns = 0; at->settled < SUMS; turns++) {
                cr_assert_lt(turns, 10000000, "rank %d waits for ever at %d", r, at->settled);
                step(at, told_late, was_late, ahead, &s);
            }
        }
        for (int k = 0; k < SUMS; k++) {
            cr_assert_eq(ranks[0].how[k], ranks[1].how[k], "sum %d", k);
            cr_assert_eq(ranks[0].how[k], ranks[2].how[k], "sum %d", k);
            by_arrival += ranks[0].how[k] == BNY_LATENESS_ARRIVAL;
            by_schedule += ranks[0].how[k] == BNY_LATENESS_STATIC;
        }
    }
    cr_assert_gt(by_arrival, SUMS);
    cr_assert_gt(by_schedule, SUMS);
}

/* One after the other, as blocking calls are: from the first late one on it takes at most 12
 * sums to change over, and as many to change back. */
Test(lateness, changes_over_and_back)
{
    struct bny_lateness l = { 0 };
    int first = -1, last = -1;

    for (uint32_t k = 0; k < 200; k++) {
        enum bny_lateness_how how = bny_lateness_of(&l, k);
        int late = k >= 50 && k < 100;

        cr_assert_neq(how, BNY_LATENESS_UNKNOWN, "sum %u", k);
        first = how == BNY_LATENESS_ARRIVAL && first < 0 ? (int)k : first;
        last = how == BNY_LATENESS_ARRIVAL ? (int)k : last;
        bny_lateness_settle(&l, k, how != BNY_LATENESS_STATIC && late);
    }
    cr_assert(first > 50 && first <= 50 + 7 + 8, "%d", first);
    cr_assert(last >= 99 && last < 100 + 16, "%d", last);
}
