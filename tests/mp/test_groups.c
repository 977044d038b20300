/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_comm_create_group in jobs of up to 9 processes. */
#include "tests/mp/table.h"

static struct mp_row groups[] = {
    { "groups_alone", "shm", 1 },          { "groups_alone", "shm", 4 },
    { "groups_alone", "tcp", 3 },          { "groups_alone", "tcp", 9 },
    { "groups_crossing", "shm", 4 },       { "groups_crossing", "tcp", 3 },
    { "groups_late", "shm", 3 },           { "groups_late", "tcp", 4 },
    { "groups_stopped", "shm", 3 },        { "groups_stopped", "tcp", 6 },
    { "groups_revoked", "shm", 3 },        { "groups_revoked", "tcp", 4 },
    { "groups_revoked_before", "shm", 2 }, { "groups_revoked_before", "tcp", 4 },
    { "groups_wrong", "shm", 2 },          { "groups_wrong", "tcp", 3 },
};
MP_TABLE(groups, made_by_members_only, groups)

struct deaths {
    char transport[8];
    int n;
};
static struct deaths deaths[] = { { "shm", 3 }, { "shm", 5 }, { "tcp", 4 }, { "tcp", 9 } };

ParameterizedTestParameters(groups, of_those_who_live)
{
    return MP_ROWS(struct deaths, deaths);
}

ParameterizedTest(struct deaths *d, groups, of_those_who_live, .timeout = 100)
{
    struct mp mp = { .n = d->n,
                     .case_name = "groups_and_deaths",
                     .transport = d->transport,
                     .may_die = 1u | 1u << (d->n - 1),
                     .timeout_s = 60 };

    MP_CHECK(mp_run(&mp));
}
