/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators are independent of each other, whatever they share. */
#include "tests/mp/table.h"

static struct mp_row comms[] = {
    { "split", "shm", 1 },
    { "split", "shm", 2 },
    { "split", "shm", 5 },
    { "split", "shm", 8 },
    { "split", "tcp", 4 },
    { "dup", "shm", 1 },
    { "dup", "shm", 3 },
    { "dup", "tcp", 2 },
    { "overlapping", "shm", 4 },
    { "overlapping", "shm", 6 },
    { "overlapping", "tcp", 4 },
    { "split_half_made", "shm", 3 },
    { "split_half_made", "tcp", 3, "", 0, { "BANYAN_OP_TIMEOUT=20" } },
    { "part_destroyed", "shm", 2 },
    { "part_destroyed", "tcp", 2 },
    { "split_network", "shm", 8, "", 0, { "BANYAN_TOPO=torus:2x4" } },
    { "split_network", "tcp", 6, "", 0, { "BANYAN_TOPO=star:3x4+3x1" } },
    { "split_network", "shm", 6, "", 0, { "BANYAN_TOPO=mesh:2x3" } },
};
MP_TABLE(comms, split_and_dup, comms)

static struct mp_row ids[] = {
    { "ids", "shm", 2 },       { "ids", "shm", 4 },
    { "ids", "tcp", 3 },       { "ids_of_two_parents", "shm", 2 },
    { "ids_again", "shm", 2 }, { "ids_again", "tcp", 3 },
};
MP_TABLE(comms, every_communicator_has_an_id_of_its_own, ids)

static struct mp_row inits[] = {
    { "init_nonblocking", "shm", 2 },
    { "init_nonblocking", "tcp", 4 },
    { "init_allgather", "shm", 3 },
    { "init_allgather", "tcp", 2 },
    { "init_again", "shm", 2 },
    { "init_again", "tcp", 3 },
    { "init_arguments", "shm", 1 },
    { "single", "", 1, "", 0, { "BANYAN_ID", "BANYAN_RANK", "BANYAN_WORLD_SIZE" } },
};
MP_TABLE(comms, every_way_to_init, inits)
