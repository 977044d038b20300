/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators of the survivors. The members agree on who they are, and on the id, in one
 * round for each. The rest is local: connections stand, what was agreed on at init holds for
 * any of the ranks, and plans are made for the ranks that a communicator has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/job.h"
#include "collectives/api/survive.h"
#include "collectives/progress/progress.h"

/* A member's contribution: it has come; and it knows whether a rank has missed a deadline. */
enum { HAS_COME = 1, KNOWS_LATE = 2 };

/* One communicator on its way. */
struct shrinking {
    struct banyan_comm *comm, **out;
    struct bny_meeting meeting;
    struct bny_contribution mine;
    struct bny_agreed got;
    uint64_t *members, *sets;
    uint32_t drawn, *given; /* an id that only this rank could have drawn; each rank's */
    uint64_t bits;
    int *ranks, rc, over;
};

static int shrink_prepare(struct shrinking *s, struct banyan_comm *comm,
                          struct banyan_comm **out)
{
    size_t words = bny_world_words(comm->world);

    s->comm = comm;
    s->out = out;
    s->members = bny_comm_members(comm);
    s->sets = calloc(3 * words, sizeof *s->sets);
    s->given = calloc((size_t)comm->world->nranks, sizeof *s->given);
    s->ranks = malloc((size_t)comm->n * sizeof *s->ranks);
    if (!s->members || !s->sets || !s->given || !s->ranks)
        return -BANYAN_ENOMEM;
    s->drawn = bny_comm_draw(comm);
    s->mine = (struct bny_contribution){ .bits = HAS_COME,
                                         .each = sizeof s->drawn,
                                         .mine = &s->drawn };
    if (bny_comm_was_late(comm))
        s->mine.bits |= KNOWS_LATE;
    s->got = (struct bny_agreed){ .bits = &s->bits,
                                  .has = s->sets,
                                  .gone = s->sets + words,
                                  .late = s->sets + 2 * words,
                                  .given = (uint8_t *)s->given,
                                  .each = sizeof s->drawn };
    return 0;
}

static void forget(struct shrinking *s, int n)
{
    for (int i = 0; s && i < n; i++) {
        free(s[i].members);
        free(s[i].sets);
        free(s[i].given);
        free(s[i].ranks);
    }
    free(s);
}

/* Are those who came to go on without those who live and did not? Not in both parts of a
 * network that is cut: as views of the world (transport/bootstrap/consensus.h). */
static int is_quorum(const struct shrinking *s)
{
    const struct banyan_comm *comm = s->comm;
    int least = bny_control_quorum(comm->world->control), came = 0, cut = 0, first = -1;

    for (int r = 0; r < comm->n; r++) {
        int world = comm->peers[r].world_rank, has = bny_in_set(s->got.has, world);

        if (bny_in_set(s->got.gone, world))
            continue;
        first = first < 0 ? has : first;
        came += has;
        cut += !has;
    }
    if (least)
        return least < 0 || came >= least;
    return came > cut || (came == cut && first == 1);
}

/* A living rank that does not come is an error at all ranks. If an operation or a call before
 * had missed its deadline already, that rank is no member any more. All come to the same. */
static int judge_late(const struct shrinking *s)
{
    const struct banyan_comm *comm = s->comm;
    int rc = bny_meet_late(&s->meeting, &s->got);

    if (rc == 0 || !(s->bits & KNOWS_LATE) || !is_quorum(s))
        return rc;
    if (bny_in_set(s->got.has, comm->world->rank))
        return 0;
    return bny_fail(
        BANYAN_ERANKDEAD,
        "%s: rank %d was left out: an operation had missed its deadline, and it did "
        "not call this in time; was it stopped, or its network cut?",
        s->meeting.what, comm->rank);
}

/* The agreement: the living ranks, and the id of the lowest of them. */
static int shrink_make(struct shrinking *s)
{
    struct banyan_comm *comm = s->comm;
    uint32_t id = 0;
    int n = 0, rc;

    for (int r = 0; r < comm->n; r++) {
        int world = comm->peers[r].world_rank;

        if (!bny_in_set(s->got.has, world) || bny_in_set(s->got.gone, world))
            continue;
        s->ranks[n++] = r;
        id = id ? id : s->given[world];
    }
    if (!id)
        return bny_fail(BANYAN_ENOMEM, "%s: no survivor has a number left for a communicator",
                        s->meeting.what);
    rc = bny_comm_among(comm, s->ranks, n, s->out);
    if (rc == 0)
        bny_comm_name(*s->out, id);
    else
        bny_comm_not_made(comm, id);
    return rc;
}

/* Returns 1 while its members are waited for; 0 when it is over, made or not. */
static int shrink_look(struct shrinking *s)
{
    int rc = bny_meet_look(&s->meeting, &s->mine, &s->got);

    if (rc == 0)
        return 1;
    if (rc > 0)
        rc = judge_late(s);
    s->rc = rc < 0 ? rc : shrink_make(s);
    return 0;
}

/* All at once: each is made when its members are there, whatever else they wait for. words: of
 * the first that failed, as later calls of this thread may leave others. */
static void meet_all(struct shrinking *all, int n, char *words, size_t cap)
{
    struct bny_waiter wt;
    int open = n;

    words[0] = 0;
    bny_wait_init(&wt);
    for (int i = 0; i < n; i++)
        all[i].rc = bny_meet_begin(&all[i].meeting, &all[i].mine);
    while (open) {
        struct shrinking *waits = NULL;

        open = 0;
        for (int i = 0; i < n; i++) {
            struct shrinking *s = &all[i];

            if (s->over)
                continue;
            s->over = s->rc < 0 || !shrink_look(s);
            if (s->over && s->rc && !words[0])
                snprintf(words, cap, "%s", banyan_last_error());
            open += !s->over;
            waits = s->over ? waits : s;
            if (!s->over && bny_world_poll(s->comm->world) > 0)
                bny_wait_found(&wt, s->comm->world);
        }
        if (waits)
            bny_wait_turn(&wt, waits->comm->world, waits->comm);
    }
}

/* Has it failed, as far as all have agreed by now? A call of banyan_comm_agree that has just
 * told of the dead has not looked. */
static int has_failed(struct banyan_comm *comm)
{
    bny_world_lock(comm->world);
    bny_failure_adopt(comm->world);
    bny_world_unlock(comm->world);
    return atomic_load_explicit(&comm->failed, memory_order_acquire) != 0;
}

static int shrink(struct banyan_comm *const *comms, int n, struct banyan_comm **out,
                  const char *what)
{
    struct shrinking *all = calloc((size_t)n, sizeof *all);
    char words[512];
    int rc = all ? 0 : -BANYAN_ENOMEM;

    for (int i = 0; i < n && rc == 0; i++)
        rc = shrink_prepare(&all[i], comms[i], &out[i]);
    if (rc) {
        forget(all, n);
        return bny_fail(BANYAN_ENOMEM, "%s: no memory", what);
    }
    for (int i = 0; i < n; i++) /* a rank that knows of a failure has learnt it from all, or has
                                   told all: of N ranks N more notices would be N floods */
        if (!has_failed(comms[i]))
            bny_comm_give_up(comms[i], "banyan_comm_shrink", "shrank",
                             "its survivors go on with another");
    for (int i = 0; i < n; i++) {
        bny_meeting_of_all(&all[i].meeting, comms[i], what, all[i].members);
        all[i].meeting.takes_late = 1;
    }
    meet_all(all, n, words, sizeof words);
    for (int i = 0; i < n && rc == 0; i++)
        rc = all[i].rc;
    forget(all, n);
    return rc ? bny_fail(-rc, "%s", words) : 0;
}

static int shrink_check(struct banyan_comm *comm, struct banyan_comm **out, const char *what)
{
    int rc = bny_comm_may_agree(comm, what);

    return rc || out ? rc : bny_fail(BANYAN_EINVAL, "%s: out must not be NULL", what);
}

int banyan_comm_shrink(struct banyan_comm *comm, struct banyan_comm **out)
{
    static const char what[] = "banyan_comm_shrink";
    int rc = shrink_check(comm, out, what);

    if (rc)
        return rc;
    *out = NULL;
    return shrink(&comm, 1, out, what);
}

int banyan_comm_shrink_many(struct banyan_comm *const *comms, int n, struct banyan_comm **out)
{
    static const char what[] = "banyan_comm_shrink_many";

    if (n < 1 || !comms)
        return bny_fail(BANYAN_EINVAL, "%s: %d communicators at %s", what, n,
                        comms ? "an address" : "NULL");
    for (int i = 0; i < n; i++) {
        int rc = shrink_check(comms[i], out, what);

        if (rc)
            return rc;
        for (int k = 0; k < i; k++)
            if (comms[k] == comms[i])
                return bny_fail(BANYAN_EINVAL, "%s: comms[%d] and comms[%d] are the same", what,
                                k, i);
    }
    memset(out, 0, (size_t)n * sizeof(struct banyan_comm *));
    return shrink(comms, n, out, what);
}
