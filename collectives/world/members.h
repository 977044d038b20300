/* SPDX-License-Identifier: BSD-3-Clause */
/* The members of the job, and the numbers that a communicator gives to some of them. The only
 * places sized by the number of ranks of a job. Guarded by the world's lock. */
#ifndef BNY_COLLECTIVES_MEMBERS_H
#define BNY_COLLECTIVES_MEMBERS_H

#include <stdint.h>

#include "transport/transport.h"

struct bny_member {
    struct bny_ep *ep; /* NULL for this rank */
    /* progress/: it left in order, and an operation waits for it */
    uint32_t looks;             /* that have found it so */
    uint64_t missed_ns;         /* the first of them; 0: none */
    int is_down;                /* its connection has ended, and nothing more comes from it */
    struct bny_last_reads last; /* of a dead one */
};

struct bny_members {
    int n;
    struct bny_member *of; /* [n] */
};

/* Ranks 0 .. nranks - 1 are members, without endpoints. 0 or -BANYAN_ENOMEM. */
int bny_members_init(struct bny_members *m, int nranks);
void bny_members_free(struct bny_members *m);

static inline int bny_members_has(const struct bny_members *m, int rank)
{
    return rank >= 0 && rank < m->n;
}

/* NULL: this rank, or no member. */
static inline struct bny_ep *bny_members_ep(const struct bny_members *m, int rank)
{
    return bny_members_has(m, rank) ? m->of[rank].ep : NULL;
}

/* From ranks of the job to ranks of a communicator, in memory of the communicator's size. */
struct bny_rank_map {
    const int *members; /* [n], borrowed */
    int n;
    uint32_t mask;
    int *slots; /* [mask + 1] ranks of the communicator, -1: free; NULL: 0 is 0, 1 is 1, ... */
};

int bny_rank_map_init(struct bny_rank_map *map, const int *members, int n);
void bny_rank_map_free(struct bny_rank_map *map);
/* -1: not of the communicator. */
int bny_rank_map_find(const struct bny_rank_map *map, int world_rank);

static inline int bny_rank_of(const struct bny_rank_map *map, int world_rank)
{
    return world_rank >= 0 && world_rank < map->n && map->members[world_rank] == world_rank
               ? world_rank
               : bny_rank_map_find(map, world_rank);
}

#endif
