/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of a job's ranks, and the map to a communicator's. */
#include "collectives/world/members.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int bny_members_init(struct bny_members *m, int nranks)
{
    *m = (struct bny_members){ .n = nranks };
    m->of = calloc((size_t)nranks, sizeof *m->of);
    if (!m->of)
        return bny_fail(BANYAN_ENOMEM, "no memory for a table of %d ranks", nranks);
    return 0;
}

void bny_members_free(struct bny_members *m)
{
    free(m->of);
    *m = (struct bny_members){ 0 };
}

static uint32_t members_place(const struct bny_rank_map *map, int world_rank)
{
    uint32_t h = (uint32_t)world_rank * 0x9e3779b9u;

    return (h ^ h >> 16) & map->mask;
}

int bny_rank_map_init(struct bny_rank_map *map, const int *members, int n)
{
    int r = 0;

    *map = (struct bny_rank_map){ .members = members, .n = n };
    while (r < n && members[r] == r)
        r++;
    if (r == n)
        return 0;
    for (map->mask = 1; map->mask < 2 * (uint32_t)n; map->mask = 2 * map->mask + 1)
        ;
    map->slots = malloc(((size_t)map->mask + 1) * sizeof *map->slots);
    if (!map->slots)
        return bny_fail(BANYAN_ENOMEM, "no memory for a map of %d ranks", n);
    memset(map->slots, 0xff, ((size_t)map->mask + 1) * sizeof *map->slots);
    for (r = 0; r < n; r++) {
        uint32_t at = members_place(map, members[r]);

        while (map->slots[at] >= 0)
            at = (at + 1) & map->mask;
        map->slots[at] = r;
    }
    return 0;
}

void bny_rank_map_free(struct bny_rank_map *map)
{
    free(map->slots);
    *map = (struct bny_rank_map){ 0 };
}

int bny_rank_map_find(const struct bny_rank_map *map, int world_rank)
{
    if (!map->slots) /* 0 is 0, 1 is 1, ... */
        return world_rank >= 0 && world_rank < map->n ? world_rank : -1;
    for (uint32_t at = members_place(map, world_rank); map->slots[at] >= 0;
         at = (at + 1) & map->mask)
        if (map->members[map->slots[at]] == world_rank)
            return map->slots[at];
    return -1;
}
