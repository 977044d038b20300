/* SPDX-License-Identifier: BSD-3-Clause */
/* A communicator of one rank over the loop transport, and its peers' ends, by which a fuzz
 * target says to it what it likes. Lives in the target: all others are transports without a
 * world. */
#ifndef BNY_TESTS_FUZZ_LOOP_RIG_H
#define BNY_TESTS_FUZZ_LOOP_RIG_H

#include "collectives/api/job.h"
#include "input.h"
#include "transport/loop/loop.h"

/* Of `n` ranks this is `me`. tp[n], ep[n]: the others' transports, and their endpoints to it.
 */
static inline void loop_rig_open(struct bny_loop_fabric **fabric, struct banyan_comm **comm,
                                 int n, int me, struct bny_tp **tp, struct bny_ep **ep)
{
    static const uint8_t secret[32];

    *fabric = bny_loop_fabric_create(n, NULL);
    EXPECT(*fabric && bny_comm_loop(comm, *fabric, n, me, NULL) == 0);
    for (int r = 0; r < n; r++) {
        struct bny_tp_config tc = { .rank = r,
                                    .nranks = n,
                                    .secret = secret,
                                    .ifname = "",
                                    .port_range = "",
                                    .fabric = *fabric };
        uint8_t blob[BNY_ADDR_MAX];

        if (r == me)
            continue;
        EXPECT(bny_transport_find("loop")->create(&tp[r], &tc) == 0);
        EXPECT(tp[r]->ops->connect(tp[r], me, blob, bny_loop_fabric_address(*fabric, me, blob),
                                   &ep[r]) == 0);
    }
}

#endif
