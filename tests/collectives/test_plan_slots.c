/* SPDX-License-Identifier: BSD-3-Clause */
/* The plans that a communicator keeps: calls that are made by turns keep theirs beside each
 * other. */
#include <criterion/criterion.h>
#include <string.h>

#include "collectives/plan/program_cache.h"

/* Sends and receives by turns are what point to point is for: if both had one slot, each would
 * drop the other's plan, and every call would plan anew. */
Test(plan_slots, send_and_receive_apart)
{
    static struct bny_plans plans;

    for (int peer = 0; peer < 64; peer++)
        for (size_t count = 0; count < 5000; count += count < 20 ? 1 : 111) {
            struct bny_call send, recv;

            memset(&send, 0, sizeof send);
            send.collective = BNY_SENDRECV;
            send.root = peer;
            send.count = count;
            recv = send;
            send.is_send = 1;
            cr_assert_neq(bny_plan_slot(&plans, &send), bny_plan_slot(&plans, &recv),
                          "peer %d, count %zu", peer, count);
        }
}

/* So are those of different collectives of one size. */
Test(plan_slots, collectives_apart)
{
    static struct bny_plans plans;
    const struct bny_plan_slot *of[2];
    struct bny_call call;

    memset(&call, 0, sizeof call);
    call.root = -1;
    call.count = 256;
    call.collective = BNY_ALLREDUCE;
    of[0] = bny_plan_slot(&plans, &call);
    call.collective = BNY_ALLGATHER;
    of[1] = bny_plan_slot(&plans, &call);
    cr_assert_neq(of[0], of[1]);
}
