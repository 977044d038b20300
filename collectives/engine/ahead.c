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
#include "collectives/engine/coded.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/local/workers.h"

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
    const struct bny_engine *e = bny_engine_of(op);

    for (uint32_t i = 0; i < e->program->nsteps; i++) {
        struct bny_coded_step *cs = &e->coded->steps[i];

        for (int k = 0; cs->jobs && k < BNY_AHEAD; k++)
            atomic_init(&cs->jobs[k].state, BNY_JOB_NONE);
    }
}

/* A job of chunk c. 0, BNY_AGAIN (no send memory) or an error. */
static int ahead_make(struct bny_op *op, uint32_t i, struct bny_ep *ep, uint32_t c, size_t n,
                      size_t most)
{
    struct bny_coded *k = bny_engine_of(op)->coded;
    struct bny_job *job = &k->steps[i].jobs[c % BNY_AHEAD];
    int rc = ep->ops->reserve(ep, (uint32_t)most, &job->slot);

    if (rc != 0)
        return rc;
    BNY_ASSERT(bny_job_state(job) == BNY_JOB_NONE);
    bny_coded_inputs(op, i, c, (uint32_t)op->comm->rank, &job->encode.enc);
    job->what = BNY_JOB_ENCODE;
    job->chunk = c;
    job->encode.wire = job->slot.mem;
    job->encode.cap = most;
    job->encode.src = bny_engine_of(op)->steps[i].src + (size_t)c * op->chunk_elems * op->esz;
    job->encode.n = n;
    job->encode.with_crc = op->comm->world->codec_crc;
    job->is_timed = bny_trace_is_on(op);
    op->comm->world->jobs_out++;
    bny_job_give(k->workers, job);
    return 0;
}

/* Jobs of chunk `posted`, without which nothing can be sent, and of those behind it that are as
 * long. */
static int make_jobs(struct bny_op *op, uint32_t i, struct bny_ep *ep, size_t most)
{
    const struct bny_step_state *st = &bny_engine_of(op)->steps[i];
    struct bny_coded_step *cs = bny_coded_step(op, i);
    size_t n = bny_engine_chunk(op, st, st->posted);

    if (cs->ahead < st->posted) /* chunks that went another way */
        cs->ahead = st->posted;
    for (; cs->ahead < st->nchunks && cs->ahead < st->posted + BNY_AHEAD; cs->ahead++) {
        int rc;

        if (cs->ahead > st->posted && (bny_engine_chunk(op, st, cs->ahead) != n ||
                                       !bny_engine_is_ready(op, i, cs->ahead)))
            break;
        rc = ahead_make(op, i, ep, cs->ahead, n, most);
        if (rc != 0)
            return cs->ahead > st->posted ? 0 : rc;
    }
    return 0;
}

/* The job's result is the caller's. */
static void ahead_collect(struct bny_op *op, uint32_t i, struct bny_job *job)
{
    op->comm->world->jobs_out--;
    atomic_store_explicit(&job->state, BNY_JOB_NONE, memory_order_relaxed);
    if (job->is_timed && bny_trace_is_on(op))
        bny_trace_encoded(op, i, job->chunk, job->t0, job->t1,
                          job->result > 0 ? (size_t)job->result : 0, job->thread);
}

int bny_ahead_send(struct bny_op *op, uint32_t i, struct bny_hdr *h, size_t most)
{
    const struct bny_engine *e = bny_engine_of(op);
    struct bny_ep *ep = op->comm->peers[e->program->steps[i].peer].ep;
    struct bny_coded_step *cs = bny_coded_step(op, i);
    struct bny_job *job = &cs->jobs[h->chunk % BNY_AHEAD];
    int rc = make_jobs(op, i, ep, most);

    cs->awaits = 0;
    if (rc != 0)
        return rc;
    if (bny_job_take_back(e->coded->workers, job))
        bny_job_run(job, 0);
    if (bny_job_state(job) != BNY_JOB_DONE) {
        cs->awaits = 1;
        return BNY_AGAIN;
    }
    ahead_collect(op, i, job);
    if (job->result < 0) {
        ep->ops->cancel(ep, &job->slot);
        return bny_fail((enum banyan_error) - (int)job->result, "%s", job->text);
    }
    h->len = (uint32_t)job->result;
    h->codec_len_raw = (uint32_t)(job->encode.n * op->esz);
    rc = ep->ops->commit(ep, &job->slot, h);
    return rc == 0 ? 1 : rc;
}

void bny_ahead_stop(struct bny_op *op)
{
    const struct bny_engine *e = bny_engine_of(op);
    struct bny_coded *c = e->coded;

    for (uint32_t i = 0; c->workers && i < e->program->nsteps; i++)
        for (int k = 0; c->steps[i].jobs && k < BNY_AHEAD; k++) {
            struct bny_ep *ep = op->comm->peers[e->program->steps[i].peer].ep;
            struct bny_job *job = &c->steps[i].jobs[k];

            if (bny_job_state(job) == BNY_JOB_NONE)
                continue;
            if (!bny_job_take_back(c->workers, job))
                while (bny_job_state(job) != BNY_JOB_DONE) /* as long as encoding takes */
                    sched_yield();
            op->comm->world->jobs_out--;
            atomic_store_explicit(&job->state, BNY_JOB_NONE, memory_order_relaxed);
            ep->ops->cancel(ep, &job->slot);
        }
    c->workers = NULL;
}
