/* SPDX-License-Identifier: BSD-3-Clause */
/* Encoding threads run ahead of the wire. When a chunk of a SEND is to be sent, those behind it
 * whose data is ready get send memory too and are queued for the threads (workers.h); each is
 * sent in its turn. Which thread encodes changes no bit.
 *
 * Nobody waits for a thread that has not begun: a chunk whose turn comes while it is still
 * queued is taken back and encoded here. So threads that never get a CPU cost nothing but their
 * start.
 *
 * Send memory is held only where the chunk before could be sent too (the peer is ready, credit
 * was there), and given up by encoding alone. A chunk that its codec declines gives its own
 * back before it asks for another way. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/internal.h"
#include "collectives/trace.h"
#include "collectives/workers.h"

struct bny_workers *bny_ahead_workers(struct bny_world *w)
{
    int count;

    if (w->workers_tried)
        return w->workers;
    w->workers_tried = 1;
    count = bny_workers_count(w->encode_threads, w->nlocal);
    if (count > 0 && bny_workers_start(&w->workers, count) != 0)
        bny_warn("rank %d encodes without threads: %s", w->rank, banyan_last_error());
    return w->workers;
}

void bny_ahead_prepare(struct bny_op *op)
{
    for (uint32_t i = 0; i < op->program->nsteps; i++) {
        struct bny_step_state *st = &op->steps[i];

        st->ahead = 0;
        for (int k = 0; st->jobs && k < BNY_AHEAD; k++)
            atomic_init(&st->jobs[k].state, BNY_JOB_NONE);
    }
}

/* A job of chunk c. 0, BNY_AGAIN (no send memory) or an error. */
static int make(struct bny_op *op, struct bny_step_state *st, struct bny_ep *ep, uint32_t c,
                size_t n, size_t most)
{
    struct bny_job *job = &st->jobs[c % BNY_AHEAD];
    int rc = ep->ops->reserve(ep, (uint32_t)most, &job->slot);

    if (rc != 0)
        return rc;
    bny_coded_inputs(op, st, c, (uint32_t)op->comm->rank, &job->enc);
    job->chunk = c;
    job->wire = job->slot.mem;
    job->cap = most;
    job->src = st->src + (size_t)c * op->chunk_elems * op->esz;
    job->n = n;
    job->with_crc = op->comm->world->codec_crc;
    job->is_timed = bny_trace_is_on(op);
    op->comm->world->jobs_out++;
    bny_job_give(op->workers, job);
    return 0;
}

/* Jobs of chunk `posted`, without which nothing can be sent, and of those behind it that are as
 * long. */
static int make_jobs(struct bny_op *op, uint32_t index, struct bny_ep *ep, size_t most)
{
    struct bny_step_state *st = &op->steps[index];
    size_t n = bny_engine_chunk(op, st, st->posted);

    if (st->ahead < st->posted) /* chunks that went another way */
        st->ahead = st->posted;
    for (; st->ahead < st->nchunks && st->ahead < st->posted + BNY_AHEAD; st->ahead++) {
        int rc;

        if (st->ahead > st->posted && (bny_engine_chunk(op, st, st->ahead) != n ||
                                       !bny_engine_is_ready(op, index, st->ahead)))
            break;
        rc = make(op, st, ep, st->ahead, n, most);
        if (rc != 0)
            return st->ahead > st->posted ? 0 : rc;
    }
    return 0;
}

/* The job's result is the caller's. */
static void collect(struct bny_op *op, const struct bny_step_state *st, struct bny_job *job)
{
    op->comm->world->jobs_out--;
    atomic_store_explicit(&job->state, BNY_JOB_NONE, memory_order_relaxed);
    if (job->is_timed && bny_trace_is_on(op))
        bny_trace_encoded(op, st, job->chunk, job->t0, job->t1,
                          job->len > 0 ? (size_t)job->len : 0, job->thread);
}

int bny_ahead_send(struct bny_op *op, uint32_t index, struct bny_hdr *h, size_t most)
{
    struct bny_ep *ep = op->comm->peers[op->program->steps[index].peer].ep;
    struct bny_step_state *st = &op->steps[index];
    struct bny_job *job = &st->jobs[h->chunk % BNY_AHEAD];
    int rc = make_jobs(op, index, ep, most);

    st->awaits = 0;
    if (rc != 0)
        return rc;
    if (bny_job_take_back(op->workers, job))
        bny_job_run(job, 0);
    if (bny_job_state(job) != BNY_JOB_DONE) {
        st->awaits = 1;
        return BNY_AGAIN;
    }
    collect(op, st, job);
    if (job->len < 0) {
        ep->ops->cancel(ep, &job->slot);
        bny_set_last_error(job->text);
        return (int)job->len;
    }
    h->len = (uint32_t)job->len;
    h->codec_len_raw = (uint32_t)(job->n * op->esz);
    rc = ep->ops->commit(ep, &job->slot, h);
    return rc == 0 ? 1 : rc;
}

void bny_ahead_stop(struct bny_op *op)
{
    for (uint32_t i = 0; op->workers && i < op->program->nsteps; i++) {
        struct bny_step_state *st = &op->steps[i];

        for (int k = 0; st->jobs && k < BNY_AHEAD; k++) {
            struct bny_ep *ep = op->comm->peers[op->program->steps[i].peer].ep;
            struct bny_job *job = &st->jobs[k];

            if (bny_job_state(job) == BNY_JOB_NONE)
                continue;
            if (!bny_job_take_back(op->workers, job))
                while (bny_job_state(job) !=
                       BNY_JOB_DONE) /* as long as a chunk's encoding takes */
                    sched_yield();
            op->comm->world->jobs_out--;
            atomic_store_explicit(&job->state, BNY_JOB_NONE, memory_order_relaxed);
            ep->ops->cancel(ep, &job->slot);
        }
    }
    op->workers = NULL;
}
