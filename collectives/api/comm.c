/* SPDX-License-Identifier: BSD-3-Clause */
/* Communicators: made by joining a job, by dup and by split; ended by finalize and destroy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <unistd.h>

#include "base/param.h"
#include "base/sized.h"
#include "collectives/api/job.h"
#include "collectives/api/survive.h"
#include "collectives/local/memory_kind.h"
#include "collectives/plan/topology.h"
#include "collectives/progress/progress.h"
#include "transport/bootstrap/board.h"

int banyan_comm_destroy(struct banyan_comm *comm)
{
    static const char what[] = "banyan_comm_destroy";
    int rc = comm ? bny_inside_may_wait(what) : 0;

    if (comm && rc == 0)
        rc = bny_comm_enter(comm, what);
    if (comm && rc == 0)
        bny_comm_end(comm);
    return rc == -BANYAN_EFORK ? 0 : rc; /* the parent's connections are not ours to close */
}

/* Messages that others sent before they came to the barrier have been handled by now, even if a
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
static int check_idle(struct banyan_comm *comm, const char *what)
{
    const struct bny_op *op;
    char name[64] = "";

    bny_world_lock(comm->world);
    op = comm->active_first;
    while (op && op->free_detached)
        op = op->next;
    if (op && op->call.collective == BNY_SENDRECV)
        snprintf(name, sizeof name, "a %s rank %d", op->call.is_send ? "send to" : "recv from",
                 op->call.root);
    else if (op)
        snprintf(name, sizeof name, "%s (operation %u)", bny_call_name(&op->call),
                 bny_op_seq(op));
    if (op && op->is_any_source && op->call.root < 0)
        snprintf(name, sizeof name, "a recv from any rank");
    bny_world_unlock(comm->world);
    return *name ? bny_fail(BANYAN_EBUSY,
                            "%s: rank %d: %s is in flight; wait for its request first", what,
                            comm->rank, name)
                 : 0;
}

/* A mismatch of which no call has told yet: it came to light after the last one. A failure of
 * the job is told by any of its communicators. */
static int untold_mismatch(struct banyan_comm *comm)
{
    return atomic_load(&comm->failed) == -BANYAN_EMISMATCH &&
                   !atomic_load(&comm->is_failure_told)
               ? bny_comm_error(comm)
               : 0;
}

/* A barrier and no agreement: docs/failures.md, "Why finalize does not agree". */
static int meet_for_the_end(struct banyan_comm *comm, const struct banyan_opts *opts)
{
    int rc;

    if (comm->init)
        return 0;
    if (atomic_load(&comm->failed))
        return untold_mismatch(comm);
    rc = banyan_barrier(comm, opts);
    if (rc == 0)
        rc = late_failure(comm);
    comm->finalized = rc == 0;
    return rc;
}

int banyan_comm_finalize(struct banyan_comm *comm)
{
    static const char what[] = "banyan_comm_finalize";
    int rc = bny_comm_enter(comm, what);

    if (rc == 0)
        rc = bny_place_may_wait(what);
    if (rc == 0 && !comm->init && !atomic_load(&comm->failed))
        rc = check_idle(comm, what);
    if (rc)
        return rc;
    rc = meet_for_the_end(comm, NULL);
    banyan_comm_destroy(comm);
    return rc;
}

int banyan_comm_finalize_within(struct banyan_comm *comm, double seconds)
{
    static const char what[] = "banyan_comm_finalize_within";
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    int rc = bny_comm_enter(comm, what);

    if (rc == 0)
        rc = bny_place_may_wait(what);
    if (rc == 0 && !(seconds > 0))
        rc = bny_fail(BANYAN_EINVAL, "%s: seconds must be above 0", what);
    if (rc)
        return rc;
    opts.timeout_s = seconds;
    if (!atomic_load(&comm->failed) && check_idle(comm, what) != 0)
        rc = bny_fail(BANYAN_EABORTED, "%s", bny_why(-BANYAN_EBUSY));
    if (rc == 0)
        rc = meet_for_the_end(comm, &opts);
    if (atomic_load(&comm->world->refs) == 1)
        comm->world->within_s = seconds;
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

int banyan_abort(struct banyan_comm *comm, const char *reason)
{
    return bny_comm_give_up(comm, "banyan_abort", "aborted", reason);
}

/* Handles what was agreed on since this world's last progress. Whoever has the lock is at it,
 * or hears of it soon. */
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

    bny_lock_take(&bny_comm_ending);
    code = async_error(comm, blamed, buf, cap);
    bny_lock_give(&bny_comm_ending);
    return code;
}

/* ---- dup and split ---- */

#define NO_COLOR (-1) /* in no group; host h has the color NO_COLOR - 1 - h */

struct member { /* what every rank tells the others in a split */
    int32_t color, key;
    uint32_t id;    /* of its group's communicator, should it be the first in it */
    uint32_t again; /* that id may have been used before */
};

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
    *out = color == NO_COLOR ? NULL : bny_comm_alloc(w, id, n, me, ranks);
    if (*out) {
        atomic_fetch_add(&w->refs, 1);
        bny_comm_inherit(*out, parent);
        (*out)->parent_id = parent->id;
        (*out)->parent_call = parent->splits;
        bny_comm_settle(*out);
    }
    bny_world_unlock(w);
    if (*out || color == NO_COLOR)
        return 0;
    bny_comm_not_made(parent, id);
    return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
}

/* One round: every rank's wish and id. 1: some member still uses the id that its group would
 * get, so the next round must draw others. Or an error. Ids that are new need no such question.
 */
static int comm_exchange(struct banyan_comm *comm, struct member *mine, struct member *all,
                         int *ranks)
{
    struct bny_world *w = comm->world;
    uint8_t used = 0, *any = (uint8_t *)ranks;
    int rc, again = 0;

    bny_world_lock(w);
    mine->id = bny_comm_draw_id(w);
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
    used = (uint8_t)bny_comm_id_is_used(w, all[ranks[0]].id);
    bny_orphans_begin(w, all[ranks[0]].id); /* a rank that has all the others' words may send */
    bny_world_unlock(w);
    rc = banyan_allgather(&used, any, 1, BANYAN_U8, comm, NULL);
    for (int r = 0; rc == 0 && r < comm->n; r++)
        used |= any[r];
    return rc ? rc : used;
}

static int32_t color_of(const struct banyan_comm *comm, int asked)
{
    if (asked == BANYAN_SPLIT_HOST)
        return NO_COLOR - 1 - bny_topology_host(comm->world->topology, comm->world->rank);
    return asked < 0 ? NO_COLOR : asked;
}

int banyan_comm_split(struct banyan_comm *comm, int color, int key, struct banyan_comm **out)
{
    int rc = banyan_comm_may_wait(comm, "banyan_comm_split"), *ranks, was_well;
    struct member mine = { .key = key }, *all;

    if (rc)
        return rc;
    mine.color = color_of(comm, color);
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
        while ((rc = comm_exchange(comm, &mine, all, ranks)) == 1)
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
    int rc = bny_comm_check(comm, "banyan_comm_stats");

    if (rc == 0)
        rc = bny_sized_check(out, "banyan_comm_stats");
    if (rc)
        return rc;
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
    bny_sized_give(out, &s, sizeof s);
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

int banyan_comm_init_start(struct banyan_comm **out, const struct banyan_id *id, int nranks,
                           int rank, const struct banyan_config *cfg)
{
    struct banyan_config c;
    int rc;

    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_comm_init: out must not be NULL");
    *out = NULL;
    rc = bny_inside_may_wait("banyan_comm_init");
    if (rc)
        return rc;
    bny_device_look();
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
    bny_completed_call();
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
    launched = bny_launch_env(&launch, c.ifname, c.port_range, deadline);
    if (rc) { /* the other ranks shall know of it */
        bny_set_last_error(wrong);
        if (launched == 0)
            bny_init_refuse(&launch.id, launch.nranks, launch.rank, rc, deadline);
    } else if (launched) {
        rc = launched;
    } else {
        bny_info("rank %d of %d, started by %s", launch.rank, launch.nranks, launch.how);
        rc = banyan_comm_init(out, (const struct banyan_id *)&launch.id, launch.nranks,
                              launch.rank, cfg);
    }
    explicit_bzero(&launch, sizeof launch);
    return rc;
}

int banyan_id_create(struct banyan_id *out)
{
    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_id_create: out must not be NULL");
    return bny_id_create((struct bny_id *)out, bny_param_str("BANYAN_IFNAME"),
                         bny_param_str("BANYAN_PORT_RANGE"), 1);
}

int banyan_job_waiting(void)
{
    return bny_board_waiting(bny_board_get());
}

int banyan_job_restarts(void)
{
    return (int)bny_param_int("BANYAN_RESTART_COUNT");
}
