/* SPDX-License-Identifier: BSD-3-Clause */
/* A communicator of the survivors. Who they are, and its id, is agreed by all of them in one
 * round; the rest is local: connections stand, what was agreed on at init holds for any of the
 * ranks, and plans are made for the ranks that a communicator has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/job.h"
#include "collectives/api/survive.h"
#include "collectives/progress/progress.h"

/* Everybody brings an id that only it could have drawn; the one of the lowest survivor counts.
 * ranks: as comm numbers them, in order. Returns their number, or an error. */
static int agree_on_members(struct banyan_comm *comm, int *ranks, uint32_t *id)
{
    struct bny_world *w = comm->world;
    uint32_t drawn = bny_comm_draw(comm), *given = calloc((size_t)w->nranks, sizeof *given);
    uint64_t *sets = calloc(2 * bny_world_words(w), sizeof *sets);
    struct bny_contribution mine = { .bits = 1, .each = sizeof drawn, .mine = &drawn };
    struct bny_agreed out = { .given = (uint8_t *)given };
    int n = 0, rc;

    if (!given || !sets) {
        free(given);
        free(sets);
        return bny_fail(BANYAN_ENOMEM, "no memory to shrink a communicator");
    }
    out.has = sets;
    out.gone = sets + bny_world_words(w);
    rc = bny_comm_agree(comm, "banyan_comm_shrink", &mine, &out);
    *id = 0;
    for (int r = 0; rc == 0 && r < comm->n; r++) {
        int world = comm->peers[r].world_rank;

        if (!bny_in_set(out.has, world) || bny_in_set(out.gone, world))
            continue;
        ranks[n++] = r;
        *id = *id ? *id : given[world];
    }
    free(given);
    free(sets);
    if (rc == 0 && !*id)
        rc = bny_fail(BANYAN_ENOMEM,
                      "banyan_comm_shrink: no survivor has a number left for a communicator");
    return rc ? rc : n;
}

void bny_comm_not_made(struct banyan_comm *comm, uint32_t id)
{
    struct bny_failure f = { .cause = BNY_CAUSE_RESET,
                             .code = BANYAN_ENOMEM,
                             .blamed = comm->world->rank,
                             .reporter = comm->world->rank,
                             .comm = id };

    snprintf(f.text, sizeof f.text,
             "rank %d has no memory for a communicator that the others have", comm->rank);
    if (comm->world->control)
        bny_control_report(comm->world->control, &f);
}

int banyan_comm_shrink(struct banyan_comm *comm, struct banyan_comm **out)
{
    int rc = bny_comm_enter(comm, "banyan_comm_shrink"), *ranks, n;
    uint32_t id = 0;

    if (rc)
        return rc;
    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_comm_shrink: out must not be NULL");
    *out = NULL;
    ranks = malloc((size_t)comm->n * sizeof *ranks);
    if (!ranks)
        return bny_fail(BANYAN_ENOMEM, "no memory to shrink a communicator");
    rc = bny_comm_give_up(comm, "shrank", "its survivors go on with another");
    n = rc ? rc : agree_on_members(comm, ranks, &id);
    if (n > 0) {
        rc = bny_comm_among(comm, ranks, n, out);
        if (rc == 0)
            bny_comm_name(*out, id);
        else
            bny_comm_not_made(comm, id);
    }
    free(ranks);
    return n < 0 ? n : rc;
}
