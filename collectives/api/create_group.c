/* SPDX-License-Identifier: BSD-3-Clause */
/* A communicator that its members alone make, as by MPI_Comm_create_group: one agreement among
 * them, in which the control planes of the other ranks help, whatever these do. Calls meet by
 * what is the same at all members: the parent, the tag, the ranks in their order, and how often
 * that was asked for. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "collectives/api/arguments.h"
#include "collectives/api/comm_parts.h"
#include "collectives/api/job.h"
#include "collectives/api/survive.h"

static uint32_t create_group_key_of(const struct banyan_comm *comm, const int *ranks, int n,
                                    int tag)
{
    uint64_t s = ((uint64_t)comm->id << 32) + (uint32_t)tag, key;

    key = bny_rng_next(&s);
    for (int i = 0; i < n; i++) {
        s = key + (uint64_t)comm->peers[ranks[i]].world_rank;
        key = bny_rng_next(&s);
    }
    return (uint32_t)(key >> 32);
}

/* The number of this call, from 1; 0: no memory. */
static uint32_t count_call(struct banyan_comm *comm, uint32_t key)
{
    struct bny_groups *g;
    uint32_t calls = 0;

    bny_world_lock(comm->world);
    for (g = comm->groups; g && g->key != key; g = g->next)
        ;
    if (!g && (g = calloc(1, sizeof *g))) {
        g->key = key;
        g->next = comm->groups;
        comm->groups = g;
    }
    if (g)
        calls = ++g->calls;
    bny_world_unlock(comm->world);
    return calls;
}

#define WHAT "banyan_comm_create_group"

/* members: room for a set of the world's ranks. */
static int check_ranks(const struct banyan_comm *comm, const int *ranks, int n,
                       uint64_t *members)
{
    int mine = 0;

    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->n)
            return bny_fail(BANYAN_EINVAL, WHAT ": ranks[%d]: rank %d of %d", i, ranks[i],
                            comm->n);
        if (bny_in_set(members, comm->peers[ranks[i]].world_rank))
            return bny_fail(BANYAN_EINVAL, WHAT ": ranks[%d]: rank %d is there twice", i,
                            ranks[i]);
        bny_add_to_set(members, comm->peers[ranks[i]].world_rank);
        mine |= ranks[i] == comm->rank;
    }
    return mine ? 0
                : bny_fail(BANYAN_EINVAL,
                           WHAT ": rank %d is not among ranks; only members call it",
                           comm->rank);
}

/* A rank that is gone cannot be in it; all members get this error. */
static int check_gone(const struct banyan_comm *comm, const int *ranks, int n,
                      const uint64_t *gone)
{
    int *dead = malloc((size_t)n * sizeof *dead), ndead = 0;
    char names[200];

    if (!dead)
        return bny_fail(BANYAN_ENOMEM, WHAT ": no memory");
    for (int i = 0; i < n; i++)
        if (bny_in_set(gone, comm->peers[ranks[i]].world_rank))
            dead[ndead++] = ranks[i];
    if (ndead)
        bny_rank_list(names, sizeof names, dead, ndead);
    free(dead);
    return ndead ? bny_fail(BANYAN_ERANKDEAD,
                            WHAT ": %s died or left; make it of those who live", names)
                 : 0;
}

/* sets: two, zeroed; given: a number a rank of the world. */
static int create_group_make(struct banyan_comm *comm, const int *ranks, int n, int tag,
                             double timeout_s, uint64_t *sets, uint32_t *given,
                             struct banyan_comm **out)
{
    uint32_t drawn = bny_comm_draw(comm), id;
    struct bny_meeting m = { .comm = comm,
                             .what = WHAT,
                             .how = " with these ranks and this tag before the communicator "
                                    "was revoked or",
                             .members = sets,
                             .timeout_s = timeout_s };
    struct bny_contribution mine = { .bits = 1,
                                     .each = sizeof drawn,
                                     .mine = &drawn,
                                     .parent = comm->id,
                                     .told = atomic_load(&comm->told) };
    struct bny_agreed got = { .gone = sets + bny_world_words(comm->world),
                              .given = (uint8_t *)given };
    int rc = check_ranks(comm, ranks, n, sets);

    if (rc)
        return rc;
    m.id = create_group_key_of(comm, ranks, n, tag);
    m.call = count_call(comm, m.id);
    if (!m.call)
        return bny_fail(BANYAN_ENOMEM, WHAT ": no memory");
    m.call |= BNY_CALL_OF_SOME;
    rc = bny_meet(&m, &mine, &got);
    if (rc == -BANYAN_ETIMEDOUT)
        bny_comm_note_told(comm);
    if (rc == 0)
        rc = check_gone(comm, ranks, n, got.gone);
    if (rc)
        return rc;
    id = given[comm->peers[ranks[0]].world_rank];
    if (!id)
        return bny_fail(BANYAN_ENOMEM, WHAT ": rank %d has no number left for a communicator",
                        ranks[0]);
    rc = bny_comm_among(comm, ranks, n, out);
    if (rc == 0)
        bny_comm_name(*out, id);
    else
        bny_comm_not_made(comm, id);
    return rc;
}

int banyan_comm_create_group_within(struct banyan_comm *comm, const int *ranks, int n, int tag,
                                    double timeout_s, struct banyan_comm **out)
{
    int rc = bny_comm_may_agree(comm, WHAT);
    uint64_t *sets;
    uint32_t *given;

    if (rc == 0)
        rc = bny_check_seconds(WHAT ": timeout_s", timeout_s);
    if (rc)
        return rc;
    if (!out)
        return bny_fail(BANYAN_EINVAL, WHAT ": out must not be NULL");
    *out = NULL;
    if (!ranks || n < 1)
        return bny_fail(BANYAN_EINVAL, WHAT ": ranks: %d ranks at %s", n,
                        ranks ? "an address" : "NULL");
    sets = calloc(2 * bny_world_words(comm->world), sizeof *sets);
    given = calloc((size_t)comm->world->nranks, sizeof *given);
    rc = sets && given ? create_group_make(comm, ranks, n, tag, timeout_s, sets, given, out)
                       : bny_fail(BANYAN_ENOMEM, WHAT ": no memory");
    free(sets);
    free(given);
    return rc;
}

int banyan_comm_create_group(struct banyan_comm *comm, const int *ranks, int n, int tag,
                             struct banyan_comm **out)
{
    int rc = bny_comm_check(comm, WHAT);

    return rc ? rc
              : banyan_comm_create_group_within(comm, ranks, n, tag, comm->op_timeout_s, out);
}
