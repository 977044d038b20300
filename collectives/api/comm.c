/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators: made by joining a job, by dup and by split; ended by finalize and destroy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <unistd.h>

#include "base/nearest.h"
#include "base/param.h"
#include "base/sized.h"
#include "collectives/api/arguments.h"
#include "collectives/api/job.h"
#include "collectives/api/survive.h"
#include "collectives/local/memory_kind.h"
#include "collectives/progress/progress.h"
#include "collectives/writeback/writeback.h"
#include "transport/bootstrap/board.h"

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
    c->paths = bny_paths;
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

/* What the ranks of the world agreed on, as the plans of this communicator see it. */
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
    s->oversubscribed = w->oversubscribed != 0;
    s->codec_force = w->codec_force != 0;
    s->link_Bps = w->link_Bps;
    s->manner.pace = w->pace;
    s->manner.lockstep = w->lockstep;
    s->manner.order = w->order;
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
    early = bny_unclaimed_take(w, c->id);
    while ((msg = bny_msg_list_pop_front(&early)))
        bny_comm_message(c, msg->ep ? bny_rank_of(&c->ranks, msg->ep->peer) : c->rank, msg);
}

void bny_comm_free(struct banyan_comm *c)
{
    struct bny_world *w = c->world;

    for (struct banyan_comm **p = &w->comms; *p; p = &(*p)->next_comm)
        if (*p == c) {
            *p = c->next_comm;
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
    bny_writeback_end(c);
    bny_plans_free(&c->scope);
    bny_groups_free(c);
    bny_init_free(c->init);
    bny_grow_ids_close(c);
    bny_match_destroy(c->match);
    bny_rank_map_free(&c->ranks);
    free(c->scope.members);
    free(c->peers);
    bny_handle_free(&handles, &c->handle);
}

static void end_detached(struct banyan_comm *comm)
{
    for (struct bny_op *op = comm->active_first, *next; op; op = next) {
        next = op->next;
        if (op->is_detached)
            bny_op_complete(op, -BANYAN_EABORTED);
    }
}

/* A program may give a communicator up, or ask for its failure, by one thread while another
 * finalizes it: held while the handle goes, before which the world is there. */
static struct bny_lock ending = BNY_LOCK(NULL);

void banyan_comm_destroy(struct banyan_comm *comm)
{
    struct bny_world *w;
    int rc;

    static atomic_int told;

    if (!comm)
        return;
    rc = bny_comm_enter(comm, "banyan_comm_destroy");
    if (rc == -BANYAN_EFORK)
        return; /* the parent's connections are not ours to close */
    if (rc) {
        if (!atomic_exchange(&told, 1))
            bny_warn("%s", banyan_last_error());
        return;
    }
    w = comm->world;
    bny_world_lock(w);
    /* After a failure that all know of we leave in order: who hears of it a little later must
     * not take our exit for the first cause. */
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
    if (!comm->finalized || comm->had_desk)
        bny_unclaimed_end(w, comm->id);
    bny_lock_take(&ending);
    bny_comm_free(comm);
    bny_lock_give(&ending);
    bny_world_unlock(w);
    bny_world_unref(w);
}

/* What the others sent before they came to the barrier has been looked at by now, also where a
 * rank only sent in its last calls. A failure that this has brought to light is the
 * communicator's when it is agreed on. */
static int late_failure(struct banyan_comm *comm)
{
    struct bny_world *w = comm->world;
    struct bny_waiter wt;
    int pending;

    bny_wait_init(&wt);
    for (;;) {
        bny_world_lock(w);
        pending = w->control && bny_control_pending(w->control, comm->id);
        if (!pending)
            bny_failure_adopt(w);
        bny_world_unlock(w);
        if (!pending)
            return bny_comm_error(comm);
        bny_wait_turn(&wt, w, comm);
        bny_world_poll(w);
    }
}

/* 0, or -BANYAN_EBUSY naming the oldest operation that would be cut off. */
static int check_idle(struct banyan_comm *comm)
{
    const struct bny_op *op;
    char name[48] = "";
    int rc = bny_place_may_wait("banyan_comm_finalize");

    if (rc)
        return rc;
    bny_world_lock(comm->world);
    op = comm->active_first;
    while (op && op->is_detached)
        op = op->next;
    if (op && op->call.collective == BNY_SENDRECV)
        snprintf(name, sizeof name, "a %s rank %d", op->call.is_send ? "send to" : "recv from",
                 op->call.root);
    else if (op)
        snprintf(name, sizeof name, "%s (operation %u)", bny_call_name(&op->call),
                 bny_op_seq(op));
    bny_world_unlock(comm->world);
    return *name ? bny_fail(BANYAN_EBUSY,
                            "banyan_comm_finalize: rank %d: %s is in flight; wait for its "
                            "request first",
                            comm->rank, name)
                 : 0;
}

/* A barrier and no agreement: docs/failures.md, "Why finalize does not agree". */
int banyan_comm_finalize(struct banyan_comm *comm)
{
    int rc = bny_comm_enter(comm, "banyan_comm_finalize");

    if (rc)
        return rc;
    if (!comm->init && !atomic_load(&comm->failed)) {
        rc = check_idle(comm);
        if (rc)
            return rc;
        rc = banyan_barrier(comm, NULL);
        if (rc == 0)
            rc = late_failure(comm);
        comm->finalized = rc == 0;
    }
    banyan_comm_destroy(comm);
    return rc;
}

int banyan_comm_rank(const struct banyan_comm *comm)
{
    int rc = bny_comm_check(comm, "banyan_comm_rank");

    return rc ? rc : comm->rank;
}

int banyan_comm_count(const struct banyan_comm *comm)
{
    int rc = bny_comm_check(comm, "banyan_comm_count");

    return rc ? rc : comm->n;
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

    bny_lock_take(&ending);
    rc = report_give_up(comm, what, did, why, &f);
    bny_lock_give(&ending);
    if (rc)
        return rc < 0 ? rc : 0;
    w = comm->world;
    if (bny_in_user_op) { /* of this world's: there is only this thread, with the lock */
        w->has_local_failure = 1;
        w->local_failure = f;
        return 0;
    }
    bny_world_lock(w);
    bny_comm_set_failure(comm, &f);
    bny_world_unlock(w);
    return 0;
}

int banyan_abort(struct banyan_comm *comm, const char *reason)
{
    return bny_comm_give_up(comm, "banyan_abort", "aborted", reason);
}

/* What was agreed on since this world's last progress. Whoever has the lock is at it, or hears
 * of it soon. */
static void hear_of_failures(struct bny_world *w)
{
    if (!w->control || !bny_world_trylock(w))
        return;
    bny_control_news(w->control);
    if (bny_world_has_news(w))
        bny_failure_adopt(w);
    bny_world_unlock(w);
}

static int async_error(struct banyan_comm *comm, int *blamed, char *buf, size_t cap)
{
    int code = bny_comm_check(comm, "banyan_async_error");

    if (code)
        return code;
    hear_of_failures(comm->world);
    code = atomic_load_explicit(&comm->failed, memory_order_acquire);
    if (blamed)
        *blamed = code ? comm->blamed : -1;
    if (buf && cap)
        snprintf(buf, cap, "%s", code ? comm->failure_text : "");
    if (code)
        bny_comm_note_told(comm);
    return code;
}

int banyan_async_error(struct banyan_comm *comm, int *blamed, char *buf, size_t cap)
{
    int code;

    bny_lock_take(&ending);
    code = async_error(comm, blamed, buf, cap);
    bny_lock_give(&ending);
    return code;
}

/* ---- dup and split ---- */

/* An id names a communicator in every message, so no two that a process knows may share one. It
 * is put together from a rank of the world and a number which only that rank gives out: the
 * world's ranks take as many bits as they need, the numbers the rest (32 bits in all: 16 each
 * for 65536 ranks, 22 for the numbers of 1024). The world's own is number 1 of rank 0. A rank
 * whose numbers begin anew skips what it still uses itself, and the members ask each other. */
struct member { /* what every rank tells the others in a split */
    int32_t color, key;
    uint32_t id;    /* of its group's communicator, should it be the first in it */
    uint32_t again; /* that id may have been used before */
};

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

/* Does this rank know a communicator of that id, or something meant for one? Lock held. */
static int id_is_used(struct bny_world *w, uint32_t id)
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

/* The next id that this rank may give, or 0: all are in use. Lock held. */
static uint32_t draw_id(struct bny_world *w)
{
    int bits = id_bits(w);
    uint32_t most = (uint32_t)(((uint64_t)1 << bits) - 1), high;

    high = bits < 32 ? (uint32_t)w->rank << bits : 0;
    for (uint32_t tries = 0; tries < most; tries++) {
        if (w->comm_ids == most)
            w->comm_ids_again = 1;
        w->comm_ids = w->comm_ids == most ? 1 : w->comm_ids + 1;
        if (!w->comm_ids_again || !id_is_used(w, high | w->comm_ids))
            return high | w->comm_ids;
    }
    return 0;
}

static void inherit(struct banyan_comm *c, const struct banyan_comm *parent)
{
    memcpy(c->scope.schedule, parent->scope.schedule, sizeof c->scope.schedule);
    memcpy(c->scope.codec_spec, parent->scope.codec_spec, sizeof c->scope.codec_spec);
    c->scope.chunk_bytes = parent->scope.chunk_bytes;
    c->scope.deterministic = parent->scope.deterministic;
    c->op_timeout_s = parent->op_timeout_s;
    c->progress_hook = parent->progress_hook;
    c->progress_hook_ctx = parent->progress_hook_ctx;
}

/* Members of our color, ordered by (key, rank). Returns their number. */
static int pick(const struct banyan_comm *parent, const struct member *all, int color,
                int *ranks)
{
    int n = 0;

    for (int r = 0; r < parent->n; r++) {
        int at;
        if (all[r].color != color)
            continue;
        for (at = n++; at > 0 && all[ranks[at - 1]].key > all[r].key; at--)
            ranks[at] = ranks[at - 1];
        ranks[at] = r;
    }
    return n;
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
            inherit(*out, parent);
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
    id = w->comm_ids_again ? 0 : draw_id(w);
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

/* ranks: memory for a number a member of the parent. */
static int make_child(struct banyan_comm *parent, const struct member *all, int color,
                      int *ranks, struct banyan_comm **out)
{
    struct bny_world *w = parent->world;
    int n = pick(parent, all, color, ranks), me = -1;
    uint32_t id = all[ranks[0]].id;

    for (int i = 0; i < n; i++) {
        if (ranks[i] == parent->rank)
            me = i;
        ranks[i] = parent->peers[ranks[i]].world_rank;
    }
    bny_world_lock(w);
    *out = color < 0 ? NULL : bny_comm_alloc(w, id, n, me, ranks);
    if (*out) {
        atomic_fetch_add(&w->refs, 1);
        inherit(*out, parent);
        (*out)->parent_id = parent->id;
        (*out)->parent_call = parent->splits;
        bny_comm_settle(*out);
    }
    bny_world_unlock(w);
    if (*out || color < 0)
        return 0;
    bny_comm_not_made(parent, id);
    return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
}

/* One round: every rank's wish and id. 1: some member still uses the id that its group would
 * get, so the next round must draw others. Or an error. Ids that are new need no such question.
 */
static int exchange(struct banyan_comm *comm, struct member *mine, struct member *all,
                    int *ranks)
{
    struct bny_world *w = comm->world;
    uint8_t used = 0, *any = (uint8_t *)ranks;
    int rc, again = 0;

    bny_world_lock(w);
    mine->id = draw_id(w);
    mine->again = (uint32_t)w->comm_ids_again;
    bny_world_unlock(w);
    rc = banyan_allgather(mine, all, sizeof *mine, BANYAN_U8, comm, NULL);
    for (int r = 0; rc == 0 && r < comm->n; r++) {
        if (all[r].id == 0)
            return bny_fail(BANYAN_ENOMEM,
                            "banyan_comm_split: rank %d has no number left for a communicator; "
                            "free some",
                            r);
        again |= all[r].again != 0;
    }
    if (rc || !again)
        return rc;
    pick(comm, all, mine->color, ranks);
    bny_world_lock(w);
    used = (uint8_t)id_is_used(w, all[ranks[0]].id);
    bny_unclaimed_begin(w, all[ranks[0]].id); /* who has heard of it from all may send */
    bny_world_unlock(w);
    rc = banyan_allgather(&used, any, 1, BANYAN_U8, comm, NULL);
    for (int r = 0; rc == 0 && r < comm->n; r++)
        used |= any[r];
    return rc ? rc : used;
}

int banyan_comm_split(struct banyan_comm *comm, int color, int key, struct banyan_comm **out)
{
    struct member mine = { .color = color < 0 ? -1 : color, .key = key }, *all;
    int rc = banyan_comm_may_wait(comm, "banyan_comm_split"), *ranks, was_well;

    if (rc)
        return rc;
    was_well = !bny_comm_has_failed(comm);
    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_comm_split: out must not be NULL");
    *out = NULL;
    comm->splits++;
    all = malloc((size_t)comm->n * sizeof *all);
    ranks = malloc((size_t)comm->n * sizeof *ranks);
    if (!all || !ranks)
        rc = bny_fail(BANYAN_ENOMEM, "no memory for a split");
    else
        while ((rc = exchange(comm, &mine, all, ranks)) == 1)
            ;
    if (rc && was_well && bny_comm_has_failed(comm))
        bny_comm_not_made(comm, 0);
    if (rc == 0)
        rc = make_child(comm, all, mine.color, ranks, out);
    free(all);
    free(ranks);
    return rc;
}

int banyan_comm_dup(struct banyan_comm *comm, struct banyan_comm **out)
{
    return banyan_comm_split(comm, 0, 0, out);
}

/* ---- statistics, progress ---- */

int banyan_comm_stats(struct banyan_comm *comm, struct banyan_stats *out)
{
    struct banyan_stats s = { 0 };
    struct bny_world *w;
    size_t size;
    int rc = bny_comm_check(comm, "banyan_comm_stats");

    if (rc)
        return rc;
    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_comm_stats: out must not be NULL");
    size = out->size ? out->size : offsetof(struct banyan_stats, replaced);
    size = size < sizeof s ? size : sizeof s;
    s.size = size;
    w = comm->world;
    for (int i = 0; i < w->ntps; i++) {
        s.wire_bytes += bny_counter_read(&w->tps[i]->wire_bytes);
        s.messages += bny_counter_read(&w->tps[i]->messages);
        s.copied_bytes += bny_counter_read(&w->tps[i]->copied_bytes);
        s.replaced += bny_counter_read(&w->tps[i]->replaced);
        s.moved += bny_counter_read(&w->tps[i]->moved);
        s.staged_bytes += bny_counter_read(&w->tps[i]->staged_bytes);
        s.pinned_bytes += bny_counter_read(&w->tps[i]->pinned_bytes);
    }
    s.ops = atomic_load_explicit(&comm->ops_done, memory_order_relaxed);
    s.sleeps = atomic_load_explicit(&w->sleeps, memory_order_relaxed);
    s.sums_asked = atomic_load_explicit(&comm->sums_asked, memory_order_relaxed);
    s.sums_by_arrival = atomic_load_explicit(&comm->sums_by_arrival, memory_order_relaxed);
    memcpy(out, &s, size);
    return 0;
}

int banyan_progress(struct banyan_comm *comm)
{
    struct bny_world *w;
    int n, rc = bny_comm_enter(comm, "banyan_progress");

    if (rc)
        return rc;
    w = comm->world;
    n = w->progress_fd >= 0 ? bny_descriptor_progress(w) : bny_world_poll(w);
    rc = bny_comm_error(comm);
    return rc ? rc : n;
}

int banyan_progress_fd(struct banyan_comm *comm)
{
    int fd, rc = bny_comm_enter(comm, "banyan_progress_fd");

    if (rc)
        return rc;
    bny_world_lock(comm->world);
    fd = bny_descriptor_open(comm->world);
    bny_world_unlock(comm->world);
    return fd;
}

/* ---- init ---- */

void banyan_config_default(struct banyan_config *cfg)
{
    if (!cfg)
        return;
    memset(cfg, 0, sizeof *cfg);
    cfg->size = sizeof *cfg;
    cfg->init_timeout_s = bny_param_real("BANYAN_INIT_TIMEOUT");
    cfg->op_timeout_s = bny_param_real("BANYAN_OP_TIMEOUT");
    cfg->transport = bny_param_str("BANYAN_TRANSPORT");
    cfg->schedule = bny_param_str("BANYAN_SCHEDULE");
    cfg->codec = bny_param_str("BANYAN_CODEC");
    cfg->ifname = bny_param_str("BANYAN_IFNAME");
    cfg->port_range = bny_param_str("BANYAN_PORT_RANGE");
    cfg->chunk_bytes = (size_t)bny_param_int("BANYAN_CHUNK");
    cfg->deterministic = (int)bny_param_int("BANYAN_DETERMINISTIC");
    cfg->progress_cpu = -1;
    cfg->topology = bny_param_str("BANYAN_TOPO");
}

static const char *transport_list(void)
{
    static _Thread_local char text[100];
    const char *name;
    size_t at = 0;

    for (size_t i = 0; (name = banyan_transport_name(i)) && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i ? ", " : "", name);
    return text;
}

/* A caller built against an older header knows fewer members: the rest keep their defaults,
 * which the environment may have set wrong. */
int bny_config_take(struct banyan_config *out, const struct banyan_config *given)
{
    const struct bny_codec *codec;
    int rc;

    banyan_config_default(out);
    rc = bny_sized_take(out, sizeof *out, given, offsetof(struct banyan_config, transport),
                        "config", "banyan_config_default()");
    if (rc == 0)
        rc = bny_check_seconds("config: init_timeout_s", out->init_timeout_s);
    if (rc == 0)
        rc = bny_check_seconds("config: op_timeout_s", out->op_timeout_s);
    if (rc)
        return rc;
    if (out->transport && strcmp(out->transport, "auto") != 0 &&
        !bny_transport_find(out->transport))
        return bny_fail(
            BANYAN_EINVAL,
            "transport (of the config or BANYAN_TRANSPORT): \"%s\" is unknown%s; there are: "
            "auto, %s",
            out->transport, bny_did_you_mean(out->transport, banyan_transport_name, "auto"),
            transport_list());
    if (out->schedule && !bny_schedule_known(out->schedule))
        return bny_fail(
            BANYAN_EINVAL,
            "schedule (of the config or BANYAN_SCHEDULE): \"%s\" is unknown%s; there are: "
            "%s",
            out->schedule, bny_did_you_mean(out->schedule, banyan_schedule_name, "auto"),
            bny_schedule_list());
    return out->codec ? bny_codec_parse(&codec, out->codec) : 0;
}

int banyan_comm_init_start(struct banyan_comm **out, const struct banyan_id *id, int nranks,
                           int rank, const struct banyan_config *cfg)
{
    struct banyan_config c;
    int rc;

    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_comm_init: out must not be NULL");
    *out = NULL;
    if (bny_in_user_op)
        return bny_user_op_refuse("banyan_comm_init");
    bny_device_look();
    bny_param_check_unknown();
    rc = bny_config_take(&c, cfg);
    if (rc) {
        if (id && !c.allgather && rank >= 0 && rank < nranks)
            bny_init_refuse((const struct bny_id *)id, nranks, rank, rc,
                            bny_deadline_in(c.init_timeout_s));
        return rc;
    }
    if (nranks < 1 || nranks > 65536)
        return bny_fail(BANYAN_EINVAL, "nranks: %d is not in [1, 65536]", nranks);
    if (rank < 0 || rank >= nranks)
        return bny_fail(BANYAN_EINVAL, "rank: %d is not in [0, %d) (nranks is %d)", rank,
                        nranks, nranks);
    if (!id && !c.allgather && nranks > 1)
        return bny_fail(
            BANYAN_EINVAL,
            "rank %d: id must not be NULL: make one with banyan_id_create at rank 0 and "
            "send it to all, or set config.allgather",
            rank);
    if (!id && !strcmp(c.transport ? c.transport : "auto", "loop") && nranks > 1)
        return bny_fail(BANYAN_EINVAL, "rank %d: the loop transport needs an id", rank);
    return bny_init_start(out, (const struct bny_id *)id, nranks, rank, &c);
}

int banyan_comm_init_test(struct banyan_comm *comm, int *done)
{
    int rc = bny_comm_enter(comm, "banyan_comm_init_test");

    if (rc)
        return rc;
    if (!done)
        return bny_fail(BANYAN_EINVAL, "banyan_comm_init_test: done must not be NULL");
    bny_world_lock(comm->world);
    rc = bny_init_progress(comm);
    bny_world_unlock(comm->world);
    bny_worlds_progress(comm->world);
    *done = rc == 1;
    return rc < 0 ? rc : 0;
}

/* Sleeps until something comes. Whatever waits for time (attempts to connect) is looked at
 * after each nap; naps get longer while nothing comes: hundreds of ranks that look every
 * millisecond take the CPUs from the one they wait for. longest_ms: 1 in small jobs. */
static void init_nap(struct banyan_comm *comm, int *ms, int longest_ms)
{
    struct pollfd p[64];
    int fds[64], n = bny_init_fds(comm, fds, 64);

    for (int i = 0; i < n; i++)
        p[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
    if (poll(p, (nfds_t)n, *ms) > 0 || n == 0)
        *ms = 1;
    else if (*ms < longest_ms)
        *ms *= 2;
}

void bny_comm_discard(struct banyan_comm **comm)
{
    char text[512];

    snprintf(text, sizeof text, "%s", banyan_last_error());
    banyan_comm_destroy(*comm);
    *comm = NULL;
    bny_set_last_error(text);
}

/* The communicator that this rank comes from: it hears of deaths first. */
static int look_after(struct banyan_comm *from, struct banyan_comm *comm)
{
    int rc;

    bny_world_poll(from->world);
    rc = bny_comm_error(from);
    if (rc)
        bny_init_give_up(comm, rc);
    return rc;
}

int bny_comm_enter_world(struct banyan_comm **out, const struct banyan_id *id, int nranks,
                         int rank, const struct banyan_config *cfg, struct banyan_comm *from)
{
    int longest_ms = nranks < 512 ? nranks / 8 : 64, ms = 1, done = 0;
    int rc = banyan_comm_init_start(out, id, nranks, rank, cfg);

    while (rc == 0 && !done) {
        rc = banyan_comm_init_test(*out, &done);
        if (rc == 0 && !done && from)
            rc = look_after(from, *out);
        if (rc == 0 && !done) /* the bootstrap's own deadline ends this */
            init_nap(*out, &ms, longest_ms);
    }
    if (rc && out && *out)
        bny_comm_discard(out);
    return rc;
}

int banyan_comm_init(struct banyan_comm **out, const struct banyan_id *id, int nranks, int rank,
                     const struct banyan_config *cfg)
{
    return bny_comm_enter_world(out, id, nranks, rank, cfg, NULL);
}

int banyan_comm_init_env(struct banyan_comm **out, const struct banyan_config *cfg)
{
    struct banyan_config c;
    struct bny_launch launch;
    char wrong[512];
    uint64_t deadline;
    int rc, launched;

    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_comm_init_env: out must not be NULL");
    *out = NULL;
    if (banyan_job_restarts() > 0 && bny_board_get())
        return bny_fail(BANYAN_ECONFIG,
                        "banyan_comm_init_env: banyan_run --restart has started this process "
                        "again, and the job runs: call banyan_comm_join(&comm, NULL, config) "
                        "where banyan_job_restarts() is not 0");
    rc = bny_config_take(&c, cfg);
    snprintf(wrong, sizeof wrong, "%s", banyan_last_error());
    deadline = bny_deadline_in(c.init_timeout_s);
    launched = bny_launch_env(&launch, c.ifname ? c.ifname : "",
                              c.port_range ? c.port_range : "", deadline);
    if (rc) { /* the other ranks shall know of it */
        bny_set_last_error(wrong);
        if (launched == 0)
            bny_init_refuse(&launch.id, launch.nranks, launch.rank, rc, deadline);
        return rc;
    }
    if (launched)
        return launched;
    bny_info("rank %d of %d, started by %s", launch.rank, launch.nranks, launch.how);
    return banyan_comm_init(out, (const struct banyan_id *)&launch.id, launch.nranks,
                            launch.rank, cfg);
}

int banyan_id_create(struct banyan_id *out)
{
    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_id_create: out must not be NULL");
    bny_param_check_unknown();
    return bny_id_create((struct bny_id *)out, bny_param_str("BANYAN_IFNAME"),
                         bny_param_str("BANYAN_PORT_RANGE"), 1);
}

#define STR2(x) #x
#define STR(x)  STR2(x)

const char *banyan_version_string(void)
{
    return STR(BANYAN_VERSION_MAJOR) "." STR(BANYAN_VERSION_MINOR) "." STR(
        BANYAN_VERSION_PATCH);
}

int banyan_version(void)
{
    return BANYAN_VERSION_MAJOR * 10000 + BANYAN_VERSION_MINOR * 100 + BANYAN_VERSION_PATCH;
}
