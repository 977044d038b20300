/* SPDX-License-Identifier: BSD-3-Clause */
/* Going on after failures: who is gone, a communicator given up at all ranks, and agreement
 * among those who are left. */
#include "collectives/api/survive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/job.h"
#include "collectives/progress/progress.h"

void bny_sets_begin(struct bny_sets *s, const struct bny_world *w)
{
    s->words = bny_world_words(w);
    s->at = s->words > 64 ? calloc(3 * s->words, sizeof *s->at) : s->own;
    if (s->at == s->own)
        memset(s->own, 0, 3 * s->words * sizeof *s->own);
}

void bny_sets_end(struct bny_sets *s)
{
    if (s->at != s->own)
        free(s->at);
}

int bny_comm_members_in(const struct banyan_comm *comm, const uint64_t *set, int *ranks,
                        int cap)
{
    int n = 0;

    for (int r = 0; r < comm->n; r++) {
        if (!bny_in_set(set, comm->peers[r].world_rank))
            continue;
        if (n < cap && ranks)
            ranks[n] = r;
        n++;
    }
    return n;
}

int banyan_comm_failed(struct banyan_comm *comm, int *ranks, int cap)
{
    int rc = bny_comm_check(comm, "banyan_comm_failed");
    uint64_t *gone;

    if (rc)
        return rc;
    if (cap < 0 || (cap > 0 && !ranks))
        return bny_fail(BANYAN_EINVAL, "banyan_comm_failed: ranks: room for %d ranks at %s",
                        cap, ranks ? "an address" : "NULL");
    if (!comm->world->control)
        return 0;
    gone = calloc(bny_world_words(comm->world), sizeof *gone);
    if (!gone)
        return bny_fail(BANYAN_ENOMEM, "banyan_comm_failed: no memory");
    bny_control_gone(comm->world->control, gone);
    rc = bny_comm_members_in(comm, gone, ranks, cap);
    free(gone);
    return rc;
}

int banyan_comm_revoke(struct banyan_comm *comm, const char *why)
{
    return bny_comm_give_up(comm, "banyan_comm_revoke", "revoked", why);
}

/* ---- agreement ---- */

int bny_comm_was_late(const struct banyan_comm *comm)
{
    return comm->was_missed || atomic_load(&comm->failed) == -BANYAN_ETIMEDOUT;
}

void bny_rank_list(char *buf, size_t cap, const int *ranks, int n)
{
    size_t len = 0;

    snprintf(buf, cap, "rank%s", n > 1 ? "s" : "");
    for (int i = 0; i < n && (len = strlen(buf)) < cap - 16; i++)
        snprintf(buf + len, cap - len, "%s %d", i ? "," : "", ranks[i]);
}

#define NAMES_MAX 40 /* in a sentence */

/* Somebody was left out: an error at all where it had not come, as nobody knows what it would
 * have said. A member that came and then slept counts in the result. */
int bny_meet_late(const struct bny_meeting *m, const struct bny_agreed *got)
{
    struct banyan_comm *comm = m->comm;
    char names[200];
    int n = 0, late[NAMES_MAX];

    for (int r = 0; r < comm->n && n < NAMES_MAX; r++) {
        int world = comm->peers[r].world_rank;

        if (bny_in_set(m->members, world) && bny_in_set(got->late, world) &&
            !bny_in_set(got->has, world) && !bny_in_set(got->gone, world))
            late[n++] = r;
    }
    if (n)
        bny_rank_list(names, sizeof names, late, n);
    comm->was_missed |= n && m->id == comm->id;
    return n ? bny_fail(BANYAN_ETIMEDOUT,
                        "%s: %s did not call it%s within %.3g s, and the others went on",
                        m->what, names, m->how, m->timeout_s)
             : 0;
}

int bny_comm_may_agree(struct banyan_comm *comm, const char *what)
{
    int rc = banyan_comm_may_wait(comm, what);

    if (rc)
        return rc;
    if (!comm->world->control && comm->n > 1)
        return bny_fail(BANYAN_ENOTSUP, "%s: this world has no control plane", what);
    return 0;
}

/* Nobody else is there. */
static void agree_alone(const struct banyan_comm *comm, const struct bny_contribution *mine,
                        const struct bny_agreed *out)
{
    size_t bytes = bny_world_words(comm->world) * sizeof(uint64_t);

    if (out->bits)
        *out->bits = mine->bits;
    if (out->has) {
        memset(out->has, 0, bytes);
        out->has[comm->world->rank / 64] |= (uint64_t)1 << (comm->world->rank % 64);
    }
    if (out->gone)
        memset(out->gone, 0, bytes);
    if (out->late)
        memset(out->late, 0, bytes);
    if (out->given && mine->each)
        memcpy(out->given + (size_t)comm->world->rank * mine->each, mine->mine, mine->each);
}

int bny_meet_begin(const struct bny_meeting *m, struct bny_contribution *mine)
{
    struct bny_control *control = m->comm->world->control;
    int rc;

    if (!control)
        return 0;
    mine->hasty = bny_comm_was_late(m->comm);
    mine->members = m->members;
    rc = bny_control_agree_start(control, m->id, m->call, mine,
                                 bny_deadline_after(bny_now_ns(), m->timeout_s));
    mine->members = NULL;
    if (rc == 0 && !(m->call & BNY_CALL_OF_SOME))
        m->comm->agree_calls = m->call; /* else it may be tried again */
    return rc;
}

int bny_meet_look(const struct bny_meeting *m, const struct bny_contribution *mine,
                  const struct bny_agreed *out)
{
    struct bny_world *w = m->comm->world;
    int rc;

    if (!w->control) {
        agree_alone(m->comm, mine, out);
        return 1;
    }
    rc = bny_control_agree_test(w->control, m->id, m->call, out);
    if (rc == 0)
        return 0;
    rc = rc < 0 || m->takes_late ? rc : bny_meet_late(m, out);
    if (rc == -BANYAN_ERANKDEAD) { /* it is the communicator's failure, too */
        bny_world_lock(w);
        bny_failure_adopt(w);
        bny_world_unlock(w);
    }
    return rc < 0 ? rc : 1;
}

int bny_meet(const struct bny_meeting *m, struct bny_contribution *mine, struct bny_agreed *out)
{
    struct bny_world *w = m->comm->world;
    struct bny_agreed got = *out;
    struct bny_waiter wt;
    struct bny_sets sets; /* has, gone, late */
    int rc;

    bny_sets_begin(&sets, w);
    if (!sets.at)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory", m->what);
    got.each = mine->each;
    got.has = got.has ? got.has : sets.at;
    got.gone = got.gone ? got.gone : sets.at + sets.words;
    got.late = got.late ? got.late : sets.at + 2 * sets.words;
    rc = bny_meet_begin(m, mine);
    bny_wait_init(&wt);
    while (rc == 0 && (rc = bny_meet_look(m, mine, &got)) == 0) {
        bny_wait_turn(&wt, w, m->comm);
        if (bny_world_poll(w) > 0)
            bny_wait_found(&wt, w);
    }
    bny_sets_end(&sets);
    return rc < 0 ? rc : 0;
}

static void add_members(uint64_t *set, const struct banyan_comm *comm)
{
    for (int r = 0; set && r < comm->n; r++)
        bny_add_to_set(set, comm->peers[r].world_rank);
}

uint64_t *bny_comm_members(const struct banyan_comm *comm)
{
    uint64_t *members = calloc(bny_world_words(comm->world), sizeof *members);

    add_members(members, comm);
    return members;
}

void bny_meeting_of_all(struct bny_meeting *m, struct banyan_comm *comm, const char *what,
                        const uint64_t *members)
{
    /* A member may come from an operation that has just waited for its own deadline. */
    *m = (struct bny_meeting){ .comm = comm,
                               .what = what,
                               .how = "",
                               .members = members,
                               .id = comm->id,
                               .call = comm->agree_calls + 1,
                               .timeout_s = 2 * comm->op_timeout_s };
}

int bny_comm_agree(struct banyan_comm *comm, const char *what, struct bny_contribution *mine,
                   struct bny_agreed *out)
{
    int rc = bny_comm_may_agree(comm, what);
    struct bny_meeting m;
    struct bny_sets members;

    if (rc)
        return rc;
    bny_sets_begin(&members, comm->world);
    add_members(members.at, comm);
    if (!members.at)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory", what);
    bny_meeting_of_all(&m, comm, what, members.at);
    rc = bny_meet(&m, mine, out);
    bny_sets_end(&members);
    return rc;
}

int banyan_comm_agree(struct banyan_comm *comm, uint64_t *bits, int *dead, int cap)
{
    int rc = bny_comm_enter(comm, "banyan_comm_agree");
    struct bny_contribution mine = { .bits = bits ? *bits : ~(uint64_t)0 };
    struct bny_agreed out = { 0 };
    struct bny_sets gone;

    if (rc)
        return rc;
    if (cap < 0 || (cap > 0 && !dead))
        return bny_fail(BANYAN_EINVAL, "banyan_comm_agree: dead: room for %d ranks at %s", cap,
                        dead ? "an address" : "NULL");
    out.bits = &mine.bits;
    bny_sets_begin(&gone, comm->world);
    out.gone = gone.at;
    if (!out.gone)
        return bny_fail(BANYAN_ENOMEM, "banyan_comm_agree: no memory");
    rc = bny_comm_agree(comm, "banyan_comm_agree", &mine, &out);
    bny_comm_note_told(comm); /* a rank that went on to it has nothing left from before */
    if (rc == 0 && bits)
        *bits = mine.bits;
    if (rc == 0)
        rc = bny_comm_members_in(comm, out.gone, dead, cap);
    bny_sets_end(&gone);
    return rc;
}
