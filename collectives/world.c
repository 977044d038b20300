/* SPDX-License-Identifier: BSD-3-Clause */
/* The world: this process's place in a job. Its lock, progress, other worlds of this process,
 * making and leaving. How it joins is in join.c. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#include "base/cpu.h"
#include "base/param.h"
#include "collectives/internal.h"
#include "collectives/plan/topology.h"
#include "collectives/workers.h"
#include "transport/loop/loop.h"

#define WORLD_IDLE_NS 1000000u /* since the last tick: nobody waits in that world */

/* ---- lock, generation ---- */

static atomic_uint generation = 1;

/* All worlds of this process that have joined, by ->next_world. */
static pthread_mutex_t worlds_lock = PTHREAD_MUTEX_INITIALIZER;
static struct bny_world *worlds;

static void in_child(void)
{
    static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;

    atomic_fetch_add(&generation, 1);
    worlds_lock = unlocked; /* whoever held it is not here; the parent's worlds are not ours */
    worlds = NULL;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

unsigned bny_process_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

int bny_world_trylock(struct bny_world *w)
{
    return !atomic_flag_test_and_set_explicit(&w->lock, memory_order_acquire);
}

void bny_world_lock(struct bny_world *w)
{
    for (unsigned i = 0; !bny_world_trylock(w); i++) {
        if (i % 64 == 63)
            sched_yield();
        else
            bny_pause();
    }
}

void bny_world_unlock(struct bny_world *w)
{
    atomic_flag_clear_explicit(&w->lock, memory_order_release);
}

/* ---- progress ---- */

static void stray_for_unknown_comm(struct bny_world *w, struct bny_msg *msg)
{
    if (msg->hdr.kind == BNY_MSG_PROBE) { /* its sender asks again */
        bny_msg_release(w, msg);
        return;
    }
    msg = bny_msg_spill(w, msg);
    if (!msg)
        return;
    msg->next = NULL;
    if (w->strays_last)
        w->strays_last->next = msg;
    else
        w->strays = msg;
    w->strays_last = msg;
}

static void message(struct bny_world *w, struct bny_msg *msg)
{
    struct banyan_comm *c = w->last_comm;

    if (!c || c->id != msg->hdr.comm) {
        for (c = w->comms; c && c->id != msg->hdr.comm; c = c->next_comm)
            ;
        if (!c) {
            stray_for_unknown_comm(w, msg);
            return;
        }
        w->last_comm = c;
    }
    bny_comm_message(c, c->rank_of_world[msg->ep->peer], msg);
}

static void sent(struct bny_world *w, struct bny_cookie *ck)
{
    if (ck->readers)
        --*ck->readers;
    if (ck->op)
        bny_engine_sent(ck->op, ck->step);
    bny_cookie_give(w, ck);
}

/* On this host a process that is gone without a farewell died. Over a network a connection can
 * also break because its peer, having heard of a failure, left with our bytes unread: then the
 * failure counts, and a true death is told by the control plane. */
static void down(struct bny_world *w, struct bny_ep *ep, const char *reason)
{
    int sure = (ep->ops->caps & BNY_TP_LOCAL) || !w->control;

    if (!sure)
        bny_control_progress(w->control); /* what it left for may be waiting there */
    bny_report(w, NULL, sure ? BNY_CAUSE_DEATH : BNY_CAUSE_LEFT, BANYAN_ERANKDEAD, ep->peer,
               "rank %d is gone (seen by rank %d over %s: %s)", ep->peer, w->rank,
               ep->ops->name, reason ? reason : "connection lost");
}

void bny_world_event(struct bny_world *w, struct bny_event *ev)
{
    switch (ev->kind) {
    case BNY_EV_MSG: message(w, ev->msg); break;
    case BNY_EV_SENT:
        if (ev->cookie)
            sent(w, ev->cookie);
        break;
    case BNY_EV_DOWN: down(w, ev->ep, ev->reason); break;
    }
}

static int advance_ops(struct bny_world *w, int all)
{
    int moved = 0;

    for (struct banyan_comm *c = w->comms; c; c = c->next_comm)
        for (struct bny_op *op = c->active_first, *next; op; op = next) {
            next = op->next;
            if (!op->dirty && !all)
                continue;
            op->dirty = 0;
            if (atomic_load_explicit(&op->state, memory_order_relaxed) == BNY_OP_CLOSING) {
                bny_op_complete(op, op->result);
            } else if (bny_op_advance(op)) {
                moved = 1;
                op->dirty = 1; /* only looked at again while it is active */
            }
        }
    return moved;
}

int bny_world_progress(struct bny_world *w)
{
    struct bny_event ev[16];
    int total = 0, drained = 0;

    for (int i = 0; i < w->ntps; i++) {
        int n = w->tps[i]->ops->poll(w->tps[i], ev, 16);
        for (int k = 0; k < n; k++)
            bny_world_event(w, &ev[k]);
        total += n > 0 ? n : 0;
    }
    if (w->draining)
        drained = bny_msg_drain(w);
    total += drained + advance_ops(w, drained);
    if (w->has_local_failure)
        bny_failure_adopt(w);
    return total;
}

static void check_deadlines(struct bny_world *w, uint64_t now)
{
    for (struct banyan_comm *c = w->comms; c; c = c->next_comm)
        for (struct bny_op *op = c->active_first; op; op = op->next) {
            double timeout = op->call.timeout_s < 0 ? c->op_timeout_s : op->call.timeout_s;
            char who[64];
            int first;
            bny_probe_if_due(op, now);
            if (!op->deadline_ns) {
                op->deadline_ns = bny_deadline_after(now, timeout);
                op->allowed_ns = op->deadline_ns - now;
            }
            if (!op->deadline_ns || now < op->deadline_ns || atomic_load(&c->failed))
                continue;
            first = bny_op_waiting_for(op, who, sizeof who);
            bny_report(
                w, c, BNY_CAUSE_DEADLINE, BANYAN_ETIMEDOUT,
                first >= 0 ? c->peers[first].world_rank : -1,
                "the deadline of %s (operation %u, %.3g s) passed; rank %d was waiting for %s",
                bny_collective_name(op->call.collective), op->seq,
                (double)op->allowed_ns * 1e-9, c->rank, who);
            break;
        }
}

void bny_world_count(struct bny_world *w)
{
    uint64_t wire = 0, messages = 0, copied = 0, replaced = 0, moved = 0;

    for (int i = 0; i < w->ntps; i++) {
        wire += w->tps[i]->wire_bytes;
        messages += w->tps[i]->messages;
        copied += w->tps[i]->copied_bytes;
        replaced += w->tps[i]->replaced;
        moved += w->tps[i]->moved;
    }
    atomic_store_explicit(&w->wire_bytes, wire, memory_order_relaxed);
    atomic_store_explicit(&w->messages, messages, memory_order_relaxed);
    atomic_store_explicit(&w->copied_bytes, copied, memory_order_relaxed);
    atomic_store_explicit(&w->replaced, replaced, memory_order_relaxed);
    atomic_store_explicit(&w->moved, moved, memory_order_relaxed);
}

void bny_world_tick(struct bny_world *w)
{
    uint64_t now = bny_now_ns();

    w->tick_ns = now;
    bny_world_count(w);
    check_deadlines(w, now);
    if (w->control && bny_control_progress(w->control) == 1)
        bny_failure_adopt(w);
    if (w->has_local_failure)
        bny_failure_adopt(w);
}

/* ---- worlds side by side ---- */

void bny_worlds_add(struct bny_world *w)
{
    pthread_mutex_lock(&worlds_lock);
    w->next_world = worlds;
    worlds = w;
    pthread_mutex_unlock(&worlds_lock);
}

static void worlds_remove(struct bny_world *w)
{
    pthread_mutex_lock(&worlds_lock);
    for (struct bny_world **at = &worlds; *at; at = &(*at)->next_world)
        if (*at == w) {
            *at = w->next_world;
            break;
        }
    pthread_mutex_unlock(&worlds_lock);
}

/* Locks inside worlds_lock are only tried: a thread may want that one while it holds a world's.
 */
void bny_worlds_progress(const struct bny_world *except)
{
    uint64_t now = bny_now_ns();

    if (pthread_mutex_trylock(&worlds_lock) != 0)
        return;
    for (struct bny_world *w = worlds; w; w = w->next_world) {
        if (w == except || !bny_world_trylock(w))
            continue;
        if (now > w->tick_ns &&
            now - w->tick_ns >= WORLD_IDLE_NS) { /* else somebody waits in it */
            bny_world_progress(w);
            bny_world_tick(w);
        }
        bny_world_unlock(w);
    }
    pthread_mutex_unlock(&worlds_lock);
}

int bny_world_poll(struct bny_world *w)
{
    int n, ticked;

    if (!bny_world_trylock(w))
        return 0;
    n = bny_world_progress(w);
    ticked = bny_now_ns() - w->tick_ns > 500000;
    if (ticked)
        bny_world_tick(w);
    bny_world_unlock(w);
    if (ticked)
        bny_worlds_progress(w);
    return n;
}

/* ---- making a world ---- */

/* Loop ranks of one process find their fabric by the job's name. */
static pthread_mutex_t fabrics_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_fabric {
    struct shared_fabric *next;
    uint8_t job[8];
    int refs;
    struct bny_loop_fabric *fabric;
} * fabrics;

struct bny_loop_fabric *bny_fabric_join(const uint8_t *job, int nranks)
{
    struct shared_fabric *f;

    pthread_mutex_lock(&fabrics_lock);
    for (f = fabrics; f && memcmp(f->job, job, 8) != 0; f = f->next)
        ;
    if (!f && (f = calloc(1, sizeof *f))) {
        memcpy(f->job, job, 8);
        f->fabric = bny_loop_fabric_create(nranks, NULL);
        f->next = fabrics;
        fabrics = f;
    }
    if (f)
        f->refs++;
    pthread_mutex_unlock(&fabrics_lock);
    return f ? f->fabric : NULL;
}

static void fabric_leave(struct bny_loop_fabric *fabric)
{
    pthread_mutex_lock(&fabrics_lock);
    for (struct shared_fabric **p = &fabrics; *p; p = &(*p)->next)
        if ((*p)->fabric == fabric) {
            struct shared_fabric *f = *p;
            if (--f->refs == 0) {
                *p = f->next;
                bny_loop_fabric_destroy(f->fabric);
                free(f);
            }
            break;
        }
    pthread_mutex_unlock(&fabrics_lock);
}

void bny_world_free(struct bny_world *w)
{
    if (!w)
        return;
    worlds_remove(w);
    if (w->has_thread) {
        atomic_store(&w->stop_thread, 1);
        pthread_join(w->thread, NULL);
    }
    if (w->generation == bny_process_generation())
        bny_workers_stop(w->workers);
    while (w->strays) {
        struct bny_msg *msg = w->strays;
        w->strays = msg->next;
        bny_msg_release(w, msg);
    }
    for (int i = 0; i < w->ntps; i++)
        w->tps[i]->ops->destroy(w->tps[i]);
    bny_control_destroy(w->control);
    bny_cookies_free(w);
    bny_boards_free(w);
    bny_spills_free(w);
    bny_plain_free(w);
    if (w->fabric)
        fabric_leave(w->fabric);
    if (w->progress_fd >= 0)
        close(w->progress_fd);
    free(w->eps);
    free(w->same_host);
    bny_topology_free(w->topology);
    free(w);
}

#define FAREWELL_NS 500000000u

static int transports_wait(struct bny_world *w, uint64_t waited)
{
    int failed = w->control && bny_control_suspect(w->control), waiting = 0;

    for (int i = 0; i < w->ntps; i++) {
        const struct bny_transport_ops *ops = w->tps[i]->ops;
        uint64_t most = ops->farewell_ns && !failed ? ops->farewell_ns : FAREWELL_NS;

        if (ops->farewell(w->tps[i]) == BNY_AGAIN)
            waiting |= waited < most;
    }
    return waiting;
}

/* Says goodbye, so that our exit is no failure. */
static void farewell(struct bny_world *w)
{
    uint64_t since = bny_now_ns(), waited;
    int waiting;

    do {
        waited = bny_now_ns() - since;
        waiting = transports_wait(w, waited);
        if (w->control && bny_control_farewell(w->control) == BNY_AGAIN)
            waiting |= waited < FAREWELL_NS;
        if (waiting) {
            bny_world_progress(w);
            bny_worlds_progress(w);
            sched_yield();
        }
    } while (waiting);
}

void bny_world_unref(struct bny_world *w)
{
    if (atomic_fetch_sub(&w->refs, 1) != 1)
        return;
    if (w->generation == bny_process_generation() && w->orderly) {
        bny_world_lock(w);
        farewell(w);
        bny_world_unlock(w);
    }
    bny_world_free(w);
}

static enum bny_order order_asked(void)
{
    const char *text = bny_param_str("BANYAN_ORDER");

    if (strcmp(text, "auto") != 0 && strcmp(text, "step") != 0 && strcmp(text, "chunk") != 0 &&
        bny_param_first_wrong("BANYAN_ORDER"))
        bny_warn("BANYAN_ORDER=%s is neither auto, step nor chunk; auto is taken", text);
    return !strcmp(text, "step")    ? BNY_ORDER_STEP
           : !strcmp(text, "chunk") ? BNY_ORDER_CHUNK
                                    : BNY_ORDER_AUTO;
}

struct bny_world *bny_world_new(int nranks, int rank)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct bny_world *w = calloc(1, sizeof *w);

    pthread_once(&once, watch_forks);
    if (!w)
        return NULL;
    w->rank = rank;
    w->nranks = nranks;
    w->generation = bny_process_generation();
    w->progress_fd = -1;
    w->orderly = 1;
    w->spin_us = bny_param_int("BANYAN_SPIN_US");
    w->pace = (int)bny_param_int("BANYAN_PACE");
    w->lockstep = (int)bny_param_int("BANYAN_LOCKSTEP");
    w->order = order_asked();
    w->codec_crc = (int)bny_param_int("BANYAN_CODEC_CRC");
    w->codec_force = (int)bny_param_int("BANYAN_CODEC_FORCE");
    w->encode_threads = bny_param_int("BANYAN_ENCODE_THREADS");
    w->link_Bps = bny_param_real("BANYAN_LINK_GBPS") / 8e-9;
    atomic_flag_clear(&w->lock);
    atomic_init(&w->refs, 1);
    w->eps = calloc((size_t)nranks, sizeof *w->eps);
    w->same_host = calloc((size_t)nranks, 1);
    if (!w->eps || !w->same_host) {
        bny_world_free(w);
        return NULL;
    }
    return w;
}
