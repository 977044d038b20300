/* SPDX-License-Identifier: BSD-3-Clause */
/* Gossip between ranks: against a reference, states, and how it fails. */
#include "tests/mp/table.h"

static struct mp_row reference[] = {
    { "gossip_reference", "shm", 1 }, { "gossip_reference", "shm", 2 },
    { "gossip_reference", "tcp", 3 }, { "gossip_reference", "shm", 5 },
    { "gossip_reference", "shm", 8 },
};
MP_TABLE(gossip, does_as_the_reference, reference)

static struct mp_row together[] = {
    { "gossip_recovers", "shm", 2 },
    { "gossip_consensus", "shm", 2 },
    { "gossip_consensus", "tcp", 4 },
    { "gossip_consensus", "shm", 7 },
};
MP_TABLE(gossip, ranks_come_together, together)

static struct mp_row states[] = {
    { "gossip_state", "shm", 1 }, { "gossip_state", "shm", 2 }, { "gossip_state", "tcp", 5 },
    { "gossip_quiet", "shm", 2 }, { "gossip_quiet", "shm", 3 },
};
MP_TABLE(gossip, states_continue_bit_by_bit, states)

static struct mp_row wrong[] = {
    { "gossip_disagrees", "shm", 2 },  { "gossip_disagrees", "tcp", 4 },
    { "gossip_nonfinite", "shm", 2 },  { "gossip_nonfinite", "tcp", 6 },
    { "gossip_apart", "shm", 2, "2" }, { "gossip_apart", "tcp", 5, "1" },
    { "gossip_apart", "tcp", 5, "2" },
};
MP_TABLE(gossip, what_is_wrong_is_told, wrong)
