/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that disagree get an error that names both sides, everywhere, soon, and nothing is
 * written beyond a buffer. The deadline of operations lies beyond that of the run: who waits
 * for it fails. */
#include "tests/mp/table.h"

#define MISMATCH(kind, n, count, deviant)                                                      \
    { "mismatch", "shm", n, kind " " count " " deviant, 20, { "BANYAN_OP_TIMEOUT=100" } },     \
    {                                                                                          \
        "mismatch", "tcp", n, kind " " count " " deviant, 20,                                  \
        {                                                                                      \
            "BANYAN_OP_TIMEOUT=100"                                                            \
        }                                                                                      \
    }

static struct mp_row mismatches[] = {
    MISMATCH("count", 2, "2", "1"),
    MISMATCH("count", 2, "2", "0"),
    MISMATCH("count", 3, "300000", "1"),
    MISMATCH("count", 2, "300000", "1"),
    MISMATCH("count", 4, "20000", "3"),
    MISMATCH("count", 2, "1025", "0"),
    MISMATCH("count", 2, "8193", "1"),
    MISMATCH("type", 2, "2", "1"),
    MISMATCH("type", 3, "300000", "0"),
    MISMATCH("op", 2, "2", "0"),
    MISMATCH("op", 3, "300000", "2"),
    MISMATCH("root", 2, "2", "1"),
    MISMATCH("root", 3, "300000", "1"),
    MISMATCH("reduce_root", 2, "2", "1"),
    MISMATCH("reduce_root", 4, "300000", "2"),
    MISMATCH("late_root", 2, "2", "0"),
    MISMATCH("late_root", 3, "300000", "1"),
    MISMATCH("order", 2, "2", "1"),
    MISMATCH("order", 3, "300000", "1"),
    MISMATCH("tag", 2, "2", "1"),
    MISMATCH("tag", 3, "300000", "2"),
    MISMATCH("schedule", 3, "300000", "2"),
    MISMATCH("schedule", 4, "300000", "0"),
    MISMATCH("recvcount", 2, "100", "1"),
    MISMATCH("recvcount", 3, "300000", "1"),
    MISMATCH("deterministic", 2, "100", "1"),
    MISMATCH("deterministic", 3, "100", "0"),
    MISMATCH("deterministic", 3, "300000", "2"),
    MISMATCH("chunk", 2, "100", "0"),
    MISMATCH("chunk", 4, "100", "3"),
    MISMATCH("chunk", 3, "300000", "1"),
    MISMATCH("gatherv", 2, "100", "1"),
    MISMATCH("gatherv", 3, "100", "0"),
    MISMATCH("gatherv", 3, "20001", "1"),
    MISMATCH("scatterv", 2, "100", "1"),
    MISMATCH("scatterv", 3, "20001", "2"),
    MISMATCH("allgatherv", 2, "100000", "1"),
    MISMATCH("alltoallv_small", 3, "100", "1"),
    MISMATCH("alltoallv", 3, "100000", "2"),
};
MP_TABLE(misuse, ranks_that_disagree_are_told, mismatches)

static struct mp_row senders[] = {
    { "only_sending", "shm", 2, "world" },    { "only_sending", "shm", 2, "dup" },
    { "only_sending", "tcp", 2, "world" },    { "only_sending", "tcp", 2, "dup" },
    { "only_sending", "tcp", 2, "dup late" },
};
MP_TABLE(misuse, ranks_that_only_sent_are_told_at_the_end, senders)

static struct mp_row lengths[] = {
    { "send_too_long", "shm", 2, "3", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "send_too_long", "shm", 2, "1000000", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "send_too_long", "tcp", 2, "3", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "send_too_long", "tcp", 2, "1000000", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "recv_too_long", "shm", 2, "3", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "recv_too_long", "shm", 2, "1000000", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "recv_too_long", "tcp", 2, "3", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "recv_too_long", "tcp", 2, "1000000", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "send_bulk_for_little", "shm", 2, "", 20, { "BANYAN_OP_TIMEOUT=100" } },
    { "send_bulk_for_little", "tcp", 2, "", 20, { "BANYAN_OP_TIMEOUT=100" } },
};
MP_TABLE(misuse, send_and_recv_of_different_lengths, lengths)

static struct mp_row arguments[] = {
    { "arguments", "shm", 1 },
    { "arguments", "shm", 2 },
    { "arguments", "tcp", 3 },
};
MP_TABLE(misuse, wrong_arguments_are_refused_by_name, arguments)

static struct mp_row busy[] = {
    { "finalize_busy", "shm", 1 },
    { "finalize_busy", "shm", 2 },
    { "finalize_busy", "tcp", 3 },
};
MP_TABLE(misuse, finalize_refuses_what_is_in_flight, busy)

static struct mp_row grouped[] = {
    { "destroy_in_group", "shm", 1 },
    { "destroy_in_group", "shm", 3 },
    { "destroy_in_group", "tcp", 2 },
};
MP_TABLE(misuse, destroy_inside_a_group_drops_its_calls, grouped)

static struct mp_row inside[] = {
    { "op_calls_banyan", "shm", 2, "", 20 },
    { "op_calls_banyan", "tcp", 3, "", 20 },
};
MP_TABLE(misuse, calls_inside_a_user_operation_are_refused, inside)

static struct mp_row meetings[] = {
    { "agree_on_other_things", "shm", 2, "", 40 },
    { "agree_on_other_things", "tcp", 5, "", 40 },
};
MP_TABLE(misuse, calls_that_agree_on_other_things_are_told, meetings)

static struct mp_row freed[] = {
    { "dead_handles", "shm", 1 },
    { "dead_handles", "shm", 2 },
    { "dead_handles", "tcp", 3 },
};
MP_TABLE(misuse, handles_that_were_freed_are_refused, freed)
