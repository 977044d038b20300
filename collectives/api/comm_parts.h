/* SPDX-License-Identifier: BSD-3-Clause */
/* Parts of a communicator that other files fill and that are freed with it: a join that is not
 * over (join.c), ids for newcomers (grow.c), counts of groups (create_group.c). */
#ifndef BNY_API_COMM_PARTS_H
#define BNY_API_COMM_PARTS_H

#include "collectives/api/peer_info.h"
#include "collectives/world/comm.h"
#include "transport/bootstrap/bootstrap.h"

/* A join that is not over. */
struct bny_init {
    struct bny_world *w;
    struct bny_bootstrap *boot;
    struct bny_id id;
    struct bny_peer_info info, *infos; /* peer infos: NULL where the bootstrap has them */
    struct banyan_config cfg;
    int done, joined, settled, rc;
    uint64_t deadline_ns, failed_ns; /* failed: a control connection said so first */
    char text[512];                  /* of rc */
};
void bny_init_free(struct bny_init *init); /* takes NULL */

/* An id that this rank made, by which newcomers may come. */
struct bny_grow_id {
    struct bny_grow_id *next;
    struct bny_id id;
};
/* Frees it; no newcomer can join by it any more. */
void bny_grow_id_free(struct bny_grow_id *g);

/* How often a group was made of a communicator. */
struct bny_groups {
    struct bny_groups *next;
    uint32_t key, calls;
};

/* Frees all three. The caller holds the lock. */
void bny_comm_parts_free(struct banyan_comm *comm);

#endif
