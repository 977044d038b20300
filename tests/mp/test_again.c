/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocking calls that are made again with other buffers, or nearly so: what was checked of the
 * one before may hold for no other. */
#include "tests/mp/table.h"

static struct mp_row again[] = {
    { "again", "shm", 1, "1000" },
    { "again", "shm", 2, "4000" },
    { "again", "shm", 2, "2000", .env = { "BANYAN_TEST_SEED=random" } },
    { "again", "shm", 4, "1000" },
    { "again", "tcp", 2, "1500" },
    { "again", "tcp", 3, "600", .env = { "BANYAN_TEST_SEED=random" } },
    { "again", "shm", 2, "1000", .env = { "BANYAN_CODEC=int8" } },
    { "again", "shm", 3, "1000", .env = { "BANYAN_DETERMINISTIC=1" } },
    { "pairs", "shm", 1, "300" },
    { "pairs", "shm", 2, "2000" },
    { "pairs", "shm", 3, "1000" },
    { "pairs", "tcp", 3, "500", .env = { "BANYAN_TEST_SEED=random" } },
    { "again_wrong", "shm", 2 },
    { "again_wrong", "tcp", 3 },
    { "again_elsewhere", "shm", 2 },
    { "again_elsewhere", "tcp", 3 },
    { "told_without_waiting", "shm", 2, "broadcast" },
    { "told_without_waiting", "tcp", 2, "broadcast" },
    { "told_without_waiting", "shm", 2, "send" },
    { "told_without_waiting", "tcp", 3, "send" },
    { "complete_behind", "shm", 2 },
    { "complete_behind", "shm", 4 },
    { "complete_behind", "tcp", 3 },
    { "late_behind_a_deadline", "shm", 2, "allreduce" },
    { "late_behind_a_deadline", "tcp", 3, "allreduce" },
    { "late_behind_a_deadline", "shm", 2, "pair" },
    { "late_behind_a_deadline", "tcp", 3, "pair" },
    { "late_behind_a_deadline", "shm", 2, "send" },
    { "late_behind_a_deadline", "tcp", 3, "send" },
    { "late_behind_a_deadline", "shm", 2, "group" },
    { "late_behind_a_deadline", "tcp", 3, "group" },
    { "late_behind_a_deadline", "shm", 2, "request" },
    { "late_behind_a_deadline", "tcp", 3, "request" },
    { "late_behind_a_deadline", "shm", 4, "barrier" },
};
MP_TABLE(again, whatever_was_called_before, again)
