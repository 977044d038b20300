/* SPDX-License-Identifier: BSD-3-Clause */
/* The end of a world: saying goodbye, and giving back what others keep in it. And the fabric
 * that loop ranks of one process share. */
#include "collectives/api/job.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/local/workers.h"
#include "collectives/op/op_cookie.h"
#include "collectives/op/observe.h"
#include "collectives/plan/topology.h"
#include "collectives/progress/progress.h"
#include "transport/loop/loop.h"

/* Loop ranks of one process find their fabric by the job's name. */
static struct shared_fabric {
    struct shared_fabric *next;
    uint8_t job[8];
    int refs;
    struct bny_loop_fabric *fabric;
} * fabrics;

static void job_in_child(struct bny_lock *l)
{
    fabrics = NULL; /* the parent's are not ours */
}

static struct bny_lock fabrics_lock = BNY_LOCK(job_in_child);

struct bny_loop_fabric *bny_fabric_join(const uint8_t *job, int nranks)
{
    struct shared_fabric *f;

    bny_lock_take(&fabrics_lock);
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
    bny_lock_give(&fabrics_lock);
    return f ? f->fabric : NULL;
}

static void fabric_leave(struct bny_loop_fabric *fabric)
{
    bny_lock_take(&fabrics_lock);
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
    bny_lock_give(&fabrics_lock);
}

void bny_world_free(struct bny_world *w)
{
    if (!w)
        return;
    bny_worlds_remove(w);
    if (w->has_thread) {
        atomic_store(&w->stop_thread, 1);
        pthread_join(w->thread, NULL);
    }
    if (w->generation == bny_process_generation())
        bny_workers_stop(w->workers);
    bny_msg_list_release(&w->held, &w->unclaimed);
    /* First: to others we are gone at once, and to us nobody is because they break off. */
    bny_control_destroy(w->control);
    w->control = NULL;
    bny_observer_close(w);
    for (int i = 0; i < w->ntps; i++)
        w->tps[i]->ops->destroy(w->tps[i]);
    bny_cookies_free(w);
    bny_recorder_close(w);
    if (w->fabric)
        fabric_leave(w->fabric);
    bny_world_close_descriptor(w);
    bny_topology_free(w->topology);
    bny_world_delete(w);
}

/* How long a goodbye may take, at least (and at most, where others were not asked), where
 * operations have no deadline, and after a failure of the world. */
#define FAREWELL_NS        10000000000u
#define FAREWELL_LONG_NS   300000000000u
#define FAREWELL_FAILED_NS 500000000u

/* Where the world has not failed all ranks are in it by now: a slow rank gets the time that an
 * operation has, or it would take our exit for a death. A failure of one communicator makes
 * nobody leave. */
uint64_t bny_farewell_ns(const struct bny_world *w)
{
    struct bny_failure f;
    double most = (w->within_s > 0 ? w->within_s : w->op_timeout_s) * 1e9;

    if (!w->control || bny_control_pending(w->control, 0) ||
        bny_control_failure_of(w->control, 0, &f))
        return FAREWELL_FAILED_NS;
    if (w->orderly == 2)
        return FAREWELL_NS;
    if (!(most > 0) || most > FAREWELL_LONG_NS)
        return FAREWELL_LONG_NS;
    return w->within_s > 0 || most > FAREWELL_NS ? (uint64_t)most : FAREWELL_NS;
}

/* Says goodbye, so that our exit is no failure. */
static void farewell(struct bny_world *w)
{
    uint64_t since = bny_now_ns();
    int waiting;

    do {
        waiting = w->control && bny_control_farewell(w->control) == BNY_AGAIN;
        for (int i = 0; i < w->ntps; i++)
            waiting |= w->tps[i]->ops->farewell(w->tps[i]) == BNY_AGAIN;
        if (waiting) {
            bny_world_progress(w);
            bny_worlds_progress(w);
            sched_yield();
        }
    } while (waiting && bny_now_ns() - since < bny_farewell_ns(w));
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
