/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions in order of arrival, in jobs of 1 to 8 processes over the local transports. */
#include "tests/mp/table.h"

static struct mp_row random_calls[] = {
    { "arrival", "shm", 1, "40" },
    { "arrival", "shm", 2 },
    { "arrival", "shm", 3 },
    { "arrival", "shm", 4 },
    { "arrival", "shm", 8, "80" },
    { "arrival", "tcp", 2 },
    { "arrival", "tcp", 3 },
    { "arrival", "tcp", 5, "100" },
    { "arrival", "tcp", 4, "100", 0, { "BANYAN_TEST_SEED=random" } },
};
MP_TABLE(arrival, random_calls_are_right, random_calls)

static struct mp_row refused[] = {
    { "arrival_refused", "shm", 2 },
    { "arrival_refused", "shm", 5 },
    { "arrival_refused", "tcp", 3 },
};
MP_TABLE(arrival, what_it_cannot_do_is_refused, refused)

static struct mp_row late[] = {
    { "arrival_late", "shm", 3, "0" }, { "arrival_late", "shm", 4, "1" },
    { "arrival_late", "shm", 5, "2" }, { "arrival_late", "shm", 5, "4" },
    { "arrival_late", "tcp", 3, "0" }, { "arrival_late", "tcp", 4, "1" },
    { "arrival_late", "tcp", 4, "3" },
};
MP_TABLE(arrival, who_is_late_is_not_waited_for, late)

/* A link of so little makes a sum of 1 MB take so long that a machine with much to do makes no
 * rank late by as much as pays. */
#define SLOW "BANYAN_LINK_GBPS=0.1"

static struct mp_row by_itself[] = {
    { "arrival_auto", "tcp", 3, "1", 200, { SLOW } },
    { "arrival_auto", "tcp", 4, "0", 200, { SLOW } },
    { "arrival_auto", "tcp", 5, "4", 200, { SLOW } },
};
MP_TABLE(arrival, auto_changes_over_and_back, by_itself)

static struct mp_row ahead[] = {
    { "arrival_ahead", "tcp", 3, "2", 200, { SLOW } },
    { "arrival_ahead", "tcp", 4, "1", 200, { SLOW } },
};
MP_TABLE(arrival, sums_begun_before_it_is_known, ahead)
