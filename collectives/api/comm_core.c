/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of a communicator, as the other files of this folder need it: allocate, settle, end
 * and give up; make one of another one's ranks and name it by a number. comm.c has the public
 * functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/comm_parts.h"
#include "collectives/api/job.h"
#include "collectives/api/survive.h"
#include "collectives/op/recorder.h"
#include "collectives/plan/way.h"
#include "collectives/progress/progress.h"
#include "collectives/sequence/weighing.h"
#include "collectives/area/area.h"

static struct bny_handles handles = BNY_HANDLES(BNY_COMM_MARK, struct banyan_comm);

int bny_comm_refuse(const struct banyan_comm *comm, const char *what)
{
    if (!comm)
        return bny_fail(BANYAN_EINVAL, "%s: comm must not be NULL", what);
    if (!bny_handle_is(&comm->handle, BNY_COMM_MARK))
        return bny_fail(BANYAN_EINVAL, "%s: comm was finalized or destroyed already", what);
    return bny_fail(BANYAN_EFORK,
                    "%s: this process was forked from the one that made the communicator; make "
                    "one of its own here",
                    what);
}

struct banyan_comm *bny_comm_alloc(struct bny_world *w, uint32_t id, int n, int rank,
                                   const int *world_ranks)
{
    struct banyan_comm *c = bny_handle_new(&handles);
    int rc = -1;

    if (!c)
        return NULL;
    c->world = w;
    c->id = id;
    c->n = n;
    c->rank = rank;
    c->blamed = -1;
    c->scope.ways = bny_ways;
    c->scope.n = n;
    c->scope.rank = rank;
    c->peers = calloc((size_t)n, sizeof *c->peers);
    c->scope.members = malloc((size_t)n * sizeof *c->scope.members);
    c->match = bny_match_create(&w->held, n, rank);
    if (c->peers && c->scope.members && c->match) {
        for (int r = 0; r < n; r++) {
            c->peers[r].world_rank = c->scope.members[r] = world_ranks[r];
            c->peers[r].ep = bny_world_ep(w, world_ranks[r]);
        }
        rc = bny_rank_map_init(&c->ranks, c->scope.members, n);
    }
    if (rc) {
        free(c->peers);
        free(c->scope.members);
        bny_match_destroy(c->match);
        bny_handle_free(&handles, &c->handle);
        return NULL;
    }
    c->next_comm = w->comms;
    w->comms = c;
    return c;
}

/* Ranks that share memory, in a job whose ranks do not all: a host's, say. */
static int is_in_memory(const struct banyan_comm *c)
{
    const int *of = c->world->memory_of;

    if (!of || c->n < 2 || of[c->scope.members[0]] < 0)
        return 0;
    for (int r = 1; r < c->n; r++)
        if (of[c->scope.members[r]] != of[c->scope.members[0]])
            return 0;
    return 1;
}

/* Ranks of several hosts, as many on each: how many. */
static int count_near(const struct banyan_comm *c)
{
    const int *of = c->world->memory_of, *members = c->scope.members;
    int *on = c->world->on_memory, near;

    if (!of)
        return 0;
    for (int r = 0; r < c->n; r++)
        if (of[members[r]] < 0)
            return 0;
    for (int r = 0; r < c->n; r++)
        on[of[members[r]]] = 0;
    for (int r = 0; r < c->n; r++)
        on[of[members[r]]]++;
    near = on[of[members[0]]];
    for (int r = 0; r < c->n; r++)
        if (on[of[members[r]]] != near)
            return 0;
    return near > 1 && near < c->n ? near : 0;
}

/* The agreements of the world's ranks, as the plans of this communicator see them. */
static void settle_scope(struct banyan_comm *c)
{
    const struct bny_world *w = c->world;
    const struct bny_limits *limits = is_in_memory(c) ? &w->in_memory : &w->agreed;
    struct bny_scope *s = &c->scope;

    if (bny_codec_parse(&s->codec, s->codec_spec) != 0)
        s->codec = NULL; /* checked at init */
    if (s->codec && s->codec->ops->family == BNY_CODEC_RAW)
        s->codec = NULL;
    s->topology = w->topology;
    s->one_host = w->all_local || limits->shares_memory;
    s->oversubscribed = (uint8_t)(w->oversubscribed < 255 ? w->oversubscribed : 255);
    s->codec_force = w->codec_force != 0;
    s->link_Bps = w->link_Bps;
    s->device_Bps = w->device_Bps;
    s->shares_memory = limits->shares_memory;
    s->small_slots = limits->small_slots;
    s->eager_max = limits->eager_max;
    s->at_once = limits->at_once;
    s->chunk_max = limits->slot_max;
    s->memory_of = w->memory_of;
    s->near = count_near(c);
    s->coded_max = limits->whole_max < s->chunk_max ? limits->whole_max : s->chunk_max;
}

void bny_comm_settle(struct banyan_comm *c)
{
    struct bny_world *w = c->world;
    struct bny_msg_list early;
    struct bny_msg *msg;

    settle_scope(c);
    c->position.comm = c->id;
    if (w->control)
        bny_control_position_add(w->control, &c->position);
    early = bny_orphans_take(w, c->id);
    while ((msg = bny_msg_list_pop_front(&early)))
        bny_comm_message(c, msg->ep ? bny_rank_of(&c->ranks, msg->ep->peer) : c->rank, msg);
}

void bny_comm_free(struct banyan_comm *c)
{
    struct bny_world *w = c->world;

    if (w->comms == c && !c->next_comm)
        bny_recorder_finish(w);
    else
        bny_recorder_ended(c);
    for (struct banyan_comm **p = &w->comms; *p; p = &(*p)->next_comm)
        if (*p == c) {
            *p = c->next_comm;
            w->ops_before += atomic_load_explicit(&c->ops_done, memory_order_relaxed);
            break;
        }
    if (w->last_comm == c)
        w->last_comm = NULL;
    if (w->control)
        bny_control_position_remove(w->control, &c->position);
    while (c->pool) {
        struct bny_op *op = c->pool;
        c->pool = op->next;
        bny_op_finish(op);
        free(op);
    }
    bny_weighings_free(c);
    bny_areas_end(c);
    bny_plans_free(&c->scope);
    bny_comm_parts_free(c);
    bny_match_destroy(c->match);
    bny_rank_map_free(&c->ranks);
    free(c->scope.members);
    free(c->peers);
    free(c->records);
    bny_handle_free(&handles, &c->handle);
}

/* ---- the end ---- */

struct bny_lock bny_comm_ending = BNY_LOCK(NULL);

static void end_detached(struct banyan_comm *comm)
{
    for (struct bny_op *op = comm->active_first, *next; op; op = next) {
        next = op->next;
        if (op->free_detached)
            bny_op_complete(op, -BANYAN_EABORTED);
    }
}

void bny_comm_end(struct banyan_comm *comm)
{
    struct bny_world *w = comm->world;

    bny_completed_hold();
    bny_world_lock(w);
    /* After a failure that all know of we leave in order: a rank that learns of it a little
     * later must not take our exit for the first cause. */
    if (comm->finalized && comm->n == w->nranks)
        w->orderly =
            1; /* all ranks were in that barrier: none needs what was destroyed before */
    else if (!comm->finalized && !atomic_load(&comm->failed))
        w->orderly = comm->active_first ? 0 : w->orderly ? 2 : 0;
    if (comm->finalized)
        end_detached(comm); /* all ranks were in that barrier: nobody waits for them */
    if (!atomic_load(&comm->failed) && comm->active_first) {
        struct bny_failure f = {
            .cause = BNY_CAUSE_ABORT,
            .code = BANYAN_EABORTED,
            .blamed = w->rank,
            .comm = comm->id,
            .text = "the communicator was destroyed with operations in flight"
        };
        bny_comm_set_failure(comm, &f);
    }
    if (!comm->finalized || comm->had_coordinator)
        bny_orphans_end(w, comm->id);
    bny_lock_take(&bny_comm_ending);
    bny_comm_free(comm);
    bny_lock_give(&bny_comm_ending);
    bny_world_unlock(w);
    bny_completed_release();
    bny_world_unref(w);
    bny_completed_call();
}

void bny_comm_discard(struct banyan_comm **comm)
{
    char text[512];

    snprintf(text, sizeof text, "%s", banyan_last_error());
    if (*comm)
        bny_comm_end(*comm);
    *comm = NULL;
    bny_set_last_error(text);
}

/* 1: done; 0: this world has no control plane; or an error. */
static int report_give_up(struct banyan_comm *comm, const char *what, const char *did,
                          const char *why, struct bny_failure *f)
{
    int rc = bny_comm_check(comm, what);

    if (rc)
        return rc;
    memset(f, 0, sizeof *f);
    f->cause = BNY_CAUSE_ABORT;
    f->code = BANYAN_EABORTED;
    f->blamed = f->reporter = comm->world->rank;
    f->comm = comm->id;
    snprintf(f->text, sizeof f->text, "rank %d %s the communicator: %.200s", comm->rank, did,
             why ? why : "no reason given");
    if (comm->world->control)
        bny_control_report(comm->world->control, f); /* any thread */
    return comm->world->control != NULL;
}

int bny_comm_give_up(struct banyan_comm *comm, const char *what, const char *did,
                     const char *why)
{
    struct bny_world *w;
    struct bny_failure f;
    int rc;

    bny_lock_take(&bny_comm_ending);
    rc = report_give_up(comm, what, did, why, &f);
    bny_lock_give(&bny_comm_ending);
    if (rc)
        return rc < 0 ? rc : 0;
    w = comm->world;
    if (bny_inside == BNY_IN_USER_OP) { /* of this world's: this thread holds its lock */
        w->has_local_failure = 1;
        w->local_failure = f;
        return 0;
    }
    bny_world_lock(w);
    bny_comm_set_failure(comm, &f);
    bny_world_unlock(w);
    bny_completed_call();
    return 0;
}

/* ---- made of another one ---- */

/* An id names a communicator in every message, so no two that a process knows may share one. It
 * is put together from a rank of the world and a number which only that rank gives out: the
 * world's ranks take as many bits as they need, the numbers the rest (32 bits in all: 16 each
 * for 65536 ranks, 22 for the numbers of 1024). The world's own is number 1 of rank 0. A rank
 * whose numbers begin anew skips what it still uses itself, and the members ask each other. */
static int id_bits(const struct bny_world *w)
{
    int bits = 32;

    while (bits > 16 && (uint64_t)w->nranks > (uint64_t)1 << (32 - bits))
        bits--;
    return w->comm_id_bits ? w->comm_id_bits : bits;
}

static int nobody(const void *ctx, int rank)
{
    return 0;
}

int bny_comm_id_is_used(struct bny_world *w, uint32_t id)
{
    struct bny_failure f;

    for (const struct banyan_comm *c = w->comms; c; c = c->next_comm)
        if (c->id == id)
            return 1;
    for (const struct bny_msg *m = w->unclaimed.first; m; m = m->next)
        if (m->hdr.comm == id)
            return 1;
    return w->control &&
           ((bny_control_failure_among(w->control, id, nobody, NULL, &f) && f.comm == id) ||
            bny_control_not_made(w->control, id, UINT32_MAX, &f));
}

uint32_t bny_comm_draw_id(struct bny_world *w)
{
    int bits = id_bits(w);
    uint32_t most = (uint32_t)(((uint64_t)1 << bits) - 1), high;

    high = bits < 32 ? (uint32_t)w->rank << bits : 0;
    for (uint32_t tries = 0; tries < most; tries++) {
        if (w->comm_ids == most)
            w->comm_ids_again = 1;
        w->comm_ids = w->comm_ids == most ? 1 : w->comm_ids + 1;
        if (!w->comm_ids_again || !bny_comm_id_is_used(w, high | w->comm_ids))
            return high | w->comm_ids;
    }
    return 0;
}

void bny_comm_inherit(struct banyan_comm *c, const struct banyan_comm *parent)
{
    memcpy(c->scope.schedule, parent->scope.schedule, sizeof c->scope.schedule);
    memcpy(c->scope.codec_spec, parent->scope.codec_spec, sizeof c->scope.codec_spec);
    c->scope.chunk_bytes = parent->scope.chunk_bytes;
    c->scope.deterministic = parent->scope.deterministic;
    c->op_timeout_s = parent->op_timeout_s;
    c->progress_hook = parent->progress_hook;
    c->progress_hook_ctx = parent->progress_hook_ctx;
}

int bny_comm_among(struct banyan_comm *parent, const int *ranks, int n,
                   struct banyan_comm **out)
{
    struct bny_world *w = parent->world;
    int *world_ranks = malloc((size_t)n * sizeof *world_ranks), me = -1;

    *out = NULL;
    for (int i = 0; world_ranks && i < n; i++) {
        world_ranks[i] = parent->peers[ranks[i]].world_rank;
        if (ranks[i] == parent->rank)
            me = i;
    }
    if (world_ranks) {
        bny_world_lock(w);
        *out = bny_comm_alloc(w, 0, n, me, world_ranks);
        if (*out) {
            atomic_fetch_add(&w->refs, 1);
            bny_comm_inherit(*out, parent);
        }
        bny_world_unlock(w);
    }
    free(world_ranks);
    return *out ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a communicator of %d ranks", n);
}

uint32_t bny_comm_draw(struct banyan_comm *parent)
{
    struct bny_world *w = parent->world;
    uint32_t id;

    bny_world_lock(w);
    id = w->comm_ids_again ? 0 : bny_comm_draw_id(w);
    if (w->comm_ids_again) /* members that still use it would have to be asked */
        id = 0;
    bny_world_unlock(w);
    return id;
}

void bny_comm_name(struct banyan_comm *comm, uint32_t id)
{
    bny_world_lock(comm->world);
    comm->id = id;
    bny_comm_settle(comm);
    bny_world_unlock(comm->world);
}

void bny_comm_not_made(struct banyan_comm *comm, uint32_t id)
{
    struct bny_failure f = { .reporter = comm->world->rank };

    if (id) {
        f.cause = BNY_CAUSE_RESET;
        f.code = BANYAN_ENOMEM;
        f.blamed = comm->world->rank;
        f.comm = id;
        snprintf(f.text, sizeof f.text,
                 "rank %d has no memory for a communicator that the others have", comm->rank);
    } else {
        f.cause = BNY_CAUSE_NOT_MADE;
        f.code = BANYAN_EABORTED;
        f.blamed = -1;
        f.comm = comm->id;
        f.call = comm->splits;
        snprintf(f.text, sizeof f.text,
                 "rank %d does not have this communicator, as the one that it was made of "
                 "failed meanwhile",
                 comm->rank);
    }
    if (comm->world->control)
        bny_control_report(comm->world->control, &f);
}
