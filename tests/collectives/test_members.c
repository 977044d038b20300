/* SPDX-License-Identifier: BSD-3-Clause */
/* Who is in a job, and the ranks of a communicator in it. BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "banyan/banyan.h"
#include "collectives/world/members.h"

#define RANKS 200

static uint64_t seed_of_run(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 99;

    fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    return seed;
}

Test(members, begin_with_all)
{
    struct bny_members m;

    cr_assert_eq(bny_members_init(&m, 5), 0);
    for (int r = -2; r < 8; r++) {
        cr_assert_eq(bny_members_has(&m, r), r >= 0 && r < 5);
        cr_assert_null(bny_members_ep(&m, r));
    }
    bny_members_free(&m);
}

Test(members, ranks_of_a_communicator)
{
    uint64_t rng = seed_of_run();

    for (int round = 0; round < 500; round++) {
        int all[RANKS], rank_of[RANKS], n = 1 + (int)bny_rng_below(&rng, RANKS);
        struct bny_rank_map map;

        for (int i = 0; i < RANKS; i++) {
            all[i] = i;
            rank_of[i] = -1;
        }
        for (int i = RANKS - 1; i > 0 && round % 4; i--) { /* some are 0, 1, 2, ... */
            int k = (int)bny_rng_below(&rng, (uint64_t)i + 1), t = all[i];
            all[i] = all[k];
            all[k] = t;
        }
        for (int i = 0; i < n; i++)
            rank_of[all[i]] = i;
        cr_assert_eq(bny_rank_map_init(&map, all, n), 0);
        for (int w = 0; w < RANKS; w++)
            cr_assert_eq(bny_rank_of(&map, w), rank_of[w], "rank %d of the job", w);
        cr_assert_eq(bny_rank_of(&map, -1), -1);
        cr_assert_eq(bny_rank_of(&map, RANKS + 7), -1);
        cr_assert_eq(bny_rank_of(&map, 1 << 30), -1);
        bny_rank_map_free(&map);
    }
}
