/* SPDX-License-Identifier: BSD-3-Clause */
/* Growing: the members' part.
 *
 *   1. they agree that all want the same, on a communicator that is whole;
 *   2. rank 0 makes the new world's id and broadcasts it over the old communicator;
 *   3. the rank that made the id of the growth takes the newcomers, tells them their places,
 *      then the members that all are there, or why not;
 *   4. members and newcomers join the new world as any job is joined, rank 0 at the root;
 *   5. all who have joined agree on that in the new world: it is theirs only if nobody is
 *      missing, and then all know that.
 * Members that fail in 2 to 5 agree in the old world who of them is gone, and else have the
 * same sentence from rank 0, and agree that they have it. They look at the old communicator all
 * the time: it tells deaths of members first. A new world instead of a larger one: no table has
 * to grow, and no byte of an earlier life of a rank can be taken, for it has another key. */
#include "collectives/api/grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/counts.h"
#include "base/param.h"
#include "collectives/api/comm_parts.h"
#include "collectives/api/job.h"
#include "collectives/api/survive.h"
#include "collectives/progress/progress.h"
#include "transport/bootstrap/board.h"
#include "transport/bootstrap/newcomers.h"

static const char grow[] = "banyan_comm_grow";
#define MARGIN_S   10.0        /* of the broadcast, over what its root may take */
#define LACKING_NS 2000000000u /* how long there may be no memory for a word */

/* ---- ids ---- */

static struct bny_grow_id **find_id(struct banyan_comm *comm, const struct banyan_id *id)
{
    struct bny_grow_id **g = &comm->grow_ids;

    while (*g && memcmp(&(*g)->id, id, sizeof(*g)->id) != 0)
        g = &(*g)->next;
    return g;
}

int banyan_comm_grow_id(struct banyan_comm *comm, struct banyan_id *id)
{
    int rc = bny_comm_enter(comm, "banyan_comm_grow_id");
    struct bny_grow_id *g;

    if (rc == 0)
        rc = bny_comm_error(comm);
    if (rc)
        return rc;
    if (!id)
        return bny_fail(BANYAN_EINVAL, "banyan_comm_grow_id: id must not be NULL");
    g = calloc(1, sizeof *g);
    if (!g)
        return bny_fail(BANYAN_ENOMEM, "no memory for an id");
    rc = bny_id_create(&g->id, bny_param_str("BANYAN_IFNAME"),
                       bny_param_str("BANYAN_PORT_RANGE"), 1);
    if (rc) {
        free(g);
        return rc;
    }
    memcpy(id, &g->id, sizeof *id);
    g->next = comm->grow_ids;
    comm->grow_ids = g;
    bny_board_post(bny_board_get(), &g->id);
    return 0;
}

/* ---- what all know ---- */

struct growth {
    struct banyan_comm *comm;
    struct bny_grow_id *mine; /* this rank made the id; NULL: another one */
    int newcomers, maker;     /* who made it, in comm */
    struct banyan_config cfg;
    struct bny_id next; /* of the new world */
};

/* A rank's word to the others over the old communicator. */
struct word {
    int32_t code; /* negative, 0: all is well */
    char text[400];
    uint8_t box[BNY_ID_BOX]; /* step 2: the id; nobody may see it on a tcp connection */
};

static void fill_word(struct word *w, int rc)
{
    memset(w, 0, sizeof *w);
    w->code = rc;
    if (rc)
        snprintf(w->text, sizeof w->text, "%.390s", banyan_last_error());
}

/* root's word to all. An operation that found no memory before it had a number was none: this
 * rank's next one would be taken for it, and the others wait. So it is tried again, and then
 * said. */
static int broadcast(struct growth *g, int root, struct word *w)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_comm *comm = g->comm;
    uint64_t since = bny_now_ns();
    struct bny_waiter wt;
    int rc;

    opts.codec = "none";
    opts.schedule = "auto";
    opts.timeout_s = g->cfg.init_timeout_s > 0 ? g->cfg.init_timeout_s + MARGIN_S : 0;
    bny_wait_init(&wt);
    for (;;) {
        rc = banyan_broadcast(w, sizeof *w, BANYAN_U8, root, comm, &opts);
        if (rc != -BANYAN_ENOMEM || bny_comm_has_failed(comm) || comm->begin_failed)
            return rc;
        if (bny_now_ns() - since > LACKING_NS)
            break;
        bny_world_poll(comm->world);
        bny_wait_turn(&wt, comm->world, comm);
    }
    bny_world_lock(comm->world);
    bny_report(comm->world, comm, BNY_CAUSE_RESET, BANYAN_ENOMEM, comm->world->rank,
               "rank %d has no memory to grow", comm->rank);
    bny_world_unlock(comm->world);
    return rc;
}

/* The code that a word says, with its sentence; 0: all is well. */
static int read_word(struct word *w)
{
    if (!w->code)
        return 0;
    w->text[sizeof w->text - 1] = '\0';
    bny_set_last_error(w->text);
    return w->code < 0 && w->code > -BNY_ERROR_COUNT ? w->code : -BANYAN_EPROTO;
}

/* The same. Returns the code that it says, or the broadcast's own error. */
static int grow_tell(struct growth *g, int root, struct word *w)
{
    int rc = broadcast(g, root, w);

    return rc ? rc : read_word(w);
}

/* ---- 1: all want the same ---- */

/* All have agreed that a member is gone, or that the communicator has failed somewhere. That
 * failure is in a view, or soon will be. All members come to it, each in its time, because they
 * first read what a member sent before its end. Grow misses a rank that left in order. */
static int await_failure(struct banyan_comm *comm, const uint64_t *gone)
{
    struct bny_world *w = comm->world;
    uint64_t deadline = bny_deadline_after(bny_now_ns(), 2 * comm->op_timeout_s);
    struct bny_waiter wt;
    int rc;

    bny_world_lock(w);
    for (int r = 0; r < comm->n; r++) {
        int peer = comm->peers[r].world_rank;

        if (bny_in_set(gone, peer) && bny_control_left(w->control, peer))
            bny_report(w, NULL, BNY_CAUSE_LEFT, BANYAN_ERANKDEAD, peer,
                       "rank %d has left, and %s waits for it", peer, grow);
    }
    bny_world_unlock(w);
    bny_wait_init(&wt);
    while ((rc = bny_comm_error(comm)) == 0 && !bny_deadline_passed(deadline)) {
        bny_world_poll(w);
        bny_wait_turn(&wt, w, comm);
    }
    return rc ? rc : bny_fail(BANYAN_ERANKDEAD, "%s: a member is gone", grow);
}

struct wish {
    int32_t code, newcomers;
    uint8_t makes, failed; /* failed: the communicator has */
};

/* Each rank is there, all agree, and one has the id. */
static int compare(struct growth *g, const struct wish *all, const uint64_t *gone)
{
    const struct banyan_comm *comm = g->comm;
    int makers = 0, failed = bny_comm_members_in(comm, gone, NULL, 0);

    for (int r = 0; r < comm->n; r++)
        failed += all[comm->peers[r].world_rank].failed;
    if (failed) /* all say the same */
        return await_failure(g->comm, gone);
    for (int r = 0; r < comm->n; r++) {
        const struct wish *w = &all[comm->peers[r].world_rank];

        if (w->code && r == comm->rank)
            return w->code;
        if (w->code)
            return bny_fail((enum banyan_error) - w->code, "%s: rank %d could not: %s", grow, r,
                            banyan_strerror(w->code));
        if (w->newcomers != g->newcomers)
            return bny_fail(BANYAN_EMISMATCH,
                            "%s: newcomers: rank %d wants %d, rank %d wants %d", grow,
                            comm->rank, g->newcomers, r, w->newcomers);
        makers += w->makes;
        g->maker = w->makes ? r : g->maker;
    }
    return makers == 1 ? 0
                       : bny_fail(BANYAN_EINVAL,
                                  "%s: id: %d ranks gave one; the rank that made it gives it, "
                                  "the others NULL",
                                  grow, makers);
}

/* A member without memory for what the others want still comes, and reports it: they wait for
 * it. */
static int agree_on_wish(struct growth *g, int rc)
{
    struct bny_world *w = g->comm->world;
    struct wish mine = { rc, g->newcomers, g->mine != NULL, bny_comm_has_failed(g->comm) != 0 };
    struct wish *all = calloc((size_t)w->nranks, sizeof *all);
    struct bny_contribution c = { .bits = 1, .each = sizeof mine, .mine = &mine };
    struct bny_agreed out = { .given = (uint8_t *)all };
    struct bny_sets gone;
    char own[512];
    int agreed;

    bny_sets_begin(&gone, w);
    out.gone = gone.at;
    if (rc == 0 && (!all || !gone.at))
        mine.code = rc = bny_fail(BANYAN_ENOMEM, "%s: no memory", grow);
    snprintf(own, sizeof own, "%s", banyan_last_error());
    agreed = bny_comm_agree(g->comm, grow, &c, &out);
    if (rc)
        bny_set_last_error(own);
    if (all && gone.at)
        rc = agreed ? agreed : compare(g, all, gone.at);
    bny_sets_end(&gone);
    free(all);
    return rc;
}

/* ---- 2, 3 ---- */

static int name_world(struct growth *g)
{
    struct word w = { 0 };
    int rc = 0;

    if (g->comm->rank == 0) {
        rc = bny_id_create(&g->next, g->cfg.ifname ? g->cfg.ifname : "",
                           g->cfg.port_range ? g->cfg.port_range : "", 1);
        fill_word(&w, rc);
        bny_id_seal(w.box, &g->next, g->comm->world->secret);
    }
    rc = grow_tell(g, 0, &w);
    return rc ? rc : bny_id_unseal(&g->next, w.box, g->comm->world->secret);
}

/* Waits for them, at the rank that made the id. */
static int await_newcomers(struct growth *g, struct bny_newcomers *n)
{
    struct bny_world *w = g->comm->world;
    struct bny_waiter wt;
    int rc;

    bny_wait_init(&wt);
    for (;;) {
        rc = bny_newcomers_progress(n);
        if (rc)
            return rc < 0 ? rc : 0;
        if (bny_world_poll(w) > 0)
            bny_wait_found(&wt, w);
        rc = bny_comm_error(g->comm);
        if (rc)
            return rc;
        bny_wait_turn(&wt, w, g->comm);
    }
}

static int take_newcomers(struct growth *g)
{
    struct bny_newcomer_place place = { .rank = g->comm->n,
                                        .nranks = g->comm->n + g->newcomers };
    struct bny_newcomers *n;
    char text[512];
    int rc = bny_newcomers_start(&n, &g->mine->id, g->newcomers,
                                 bny_deadline_in(g->cfg.init_timeout_s));

    if (rc)
        return rc;
    place.id = g->next;
    rc = await_newcomers(g, n);
    if (rc == 0)
        rc = bny_newcomers_place(n, &place);
    if (rc) {
        snprintf(text, sizeof text, "%s", banyan_last_error());
        bny_newcomers_refuse(n, (enum banyan_error) - rc, text);
        bny_set_last_error(text);
    }
    bny_newcomers_free(n);
    sodium_memzero(&place, sizeof place);
    return rc;
}

static int gather_newcomers(struct growth *g)
{
    struct word w = { 0 };

    if (g->mine)
        fill_word(&w, take_newcomers(g));
    return grow_tell(g, g->maker, &w);
}

/* ---- 5 ---- */

/* In other agreements a member counts that came unnoticed. Here it would wake outside, but it
 * may be the last of those who grow, so it goes on without the newcomers. */
int bny_grow_settle(struct banyan_comm *next, const char *what)
{
    struct bny_contribution c = { .bits = 1 };
    struct bny_agreed out = { 0 };
    struct bny_sets sets; /* gone, late */
    int rc, rank;

    bny_sets_begin(&sets, next->world);
    if (!sets.at)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory", what);
    out.gone = sets.at;
    out.late = sets.at + sets.words;
    rc = bny_comm_agree(next, what, &c, &out);
    if (rc == 0 && bny_comm_members_in(next, out.gone, &rank, 1) > 0)
        rc = bny_fail(BANYAN_ERANKDEAD, "%s: rank %d of the %d ended before all had joined",
                      what, rank, next->n);
    if (rc == 0 && bny_comm_members_in(next, out.late, &rank, 1) > 0)
        rc = bny_fail(BANYAN_ETIMEDOUT,
                      "%s: nothing was heard of rank %d of the %d before all had joined", what,
                      rank, next->n);
    bny_sets_end(&sets);
    return rc;
}

/* ---- failure ---- */

/* Is every member here, and well? Else the communicator's failure, the same at all. */
static int confirm(struct growth *g, int well)
{
    struct bny_contribution c = { .bits = well && bny_comm_error(g->comm) == 0 };
    struct bny_agreed out = { .bits = &c.bits };
    struct bny_sets gone;
    int rc;

    bny_sets_begin(&gone, g->comm->world);
    out.gone = gone.at;
    if (!gone.at)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory", grow);
    rc = bny_comm_agree(g->comm, grow, &c, &out);
    if (rc == 0 && (!c.bits || bny_comm_members_in(g->comm, gone.at, NULL, 0) > 0))
        rc = await_failure(g->comm, gone.at);
    bny_sets_end(&gone);
    return rc;
}

/* Not all have joined. All members come here, whatever each has seen. A broadcast may end well
 * at some and fail at others, so rank 0's word is what all say only where all have it. */
static int same_error(struct growth *g, int rc)
{
    struct word w;

    fill_word(&w, rc);
    rc = confirm(g, 1);
    if (rc == 0)
        rc = confirm(g, broadcast(g, 0, &w) == 0);
    if (rc == 0)
        rc = read_word(&w);
    return rc ? rc : bny_fail(BANYAN_EPROTO, "%s: rank 0 knows of no error", grow);
}

/* ---- all ---- */

/* Errors of this rank alone. */
static int grow_check(struct growth *g, const struct banyan_id *id,
                      const struct banyan_config *cfg, struct banyan_comm **out)
{
    int rc = bny_comm_error(g->comm);

    if (rc == 0)
        rc = bny_config_take(&g->cfg, cfg);
    if (rc)
        return rc;
    g->cfg.allgather = NULL; /* there is an id */
    if (!out)
        return bny_fail(BANYAN_EINVAL, "%s: out must not be NULL", grow);
    if (g->newcomers < 1 || g->newcomers > 65536 - g->comm->n)
        return bny_fail(BANYAN_EINVAL, "%s: newcomers: %d is not in [1, %d]", grow,
                        g->newcomers, 65536 - g->comm->n);
    if (id && !g->mine)
        return bny_fail(BANYAN_EINVAL,
                        "%s: id: this rank made no such id for this communicator, or it was "
                        "used; an id serves once",
                        grow);
    return 0;
}

static int grow_run(struct growth *g, struct banyan_comm **out)
{
    struct banyan_comm *comm = g->comm;
    int rc = name_world(g);

    if (rc == 0)
        rc = gather_newcomers(g);
    if (rc)
        bny_id_close(&g->next); /* of rank 0: nobody comes */
    else
        rc = bny_comm_enter_world(out, (const struct banyan_id *)&g->next,
                                  comm->n + g->newcomers, comm->rank, &g->cfg, comm);
    if (rc == 0)
        rc = bny_grow_settle(*out, grow);
    if (rc == 0)
        return 0;
    if (*out)
        bny_comm_discard(out);
    return same_error(g, rc); /* a broadcast may have failed here alone: all agree */
}

int banyan_comm_grow(struct banyan_comm *comm, const struct banyan_id *id, int newcomers,
                     const struct banyan_config *cfg, struct banyan_comm **out)
{
    struct growth g = { .comm = comm, .newcomers = newcomers, .maker = -1 };
    struct bny_grow_id **found;
    char text[512];
    int rc = banyan_comm_may_wait(comm, grow);

    if (rc)
        return rc;
    if (out)
        *out = NULL;
    found = id ? find_id(comm, id) : NULL;
    g.mine = found ? *found : NULL;
    if (g.mine)
        *found = g.mine->next;
    rc = agree_on_wish(&g, grow_check(&g, id, cfg, out));
    if (rc == 0)
        rc = grow_run(&g, out);
    if (g.mine) {
        snprintf(text, sizeof text, "%s", banyan_last_error());
        bny_grow_id_free(g.mine);
        bny_set_last_error(text);
    }
    sodium_memzero(&g.next, sizeof g.next);
    return rc;
}
