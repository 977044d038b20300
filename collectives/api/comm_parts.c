/* SPDX-License-Identifier: BSD-3-Clause */
/* Frees the parts of a communicator that other files fill. */
#include "collectives/api/comm_parts.h"

#include <stdlib.h>

#include <sodium.h>

#include "transport/bootstrap/board.h"

void bny_init_free(struct bny_init *init)
{
    if (!init)
        return;
    bny_bootstrap_destroy(init->boot);
    sodium_memzero(&init->id, sizeof init->id);
    free(init->infos);
    free((char *)init->cfg.transport);
    free((char *)init->cfg.schedule);
    free((char *)init->cfg.codec);
    free((char *)init->cfg.ifname);
    free((char *)init->cfg.port_range);
    free((char *)init->cfg.topology);
    free(init);
}

void bny_grow_id_free(struct bny_grow_id *g)
{
    bny_board_unpost(bny_board_get(), &g->id);
    bny_id_close(&g->id);
    sodium_memzero(g, sizeof *g);
    free(g);
}

void bny_comm_parts_free(struct banyan_comm *comm)
{
    struct bny_grow_id *id;
    struct bny_groups *group;

    while ((group = comm->groups)) {
        comm->groups = group->next;
        free(group);
    }
    bny_init_free(comm->init);
    while ((id = comm->grow_ids)) {
        comm->grow_ids = id->next;
        bny_grow_id_free(id);
    }
}
