/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated device: receive queues of several queue pairs, which take their requests in
 * order. Of a queue pair that breaks nothing is flushed. What a request's memory gets is where
 * it was posted until the completion is polled. */
#include <errno.h>
#include <stdlib.h>

#include "tests/support/verbs_sim_inside.h"

struct sim_rwqe *sim_recv_next(struct sim_qp *q)
{
    struct sim_srq *s = q->srq;

    if (s)
        return s->posted == s->taken ? NULL : &s->ring[s->taken % s->max];
    return q->rq_posted == q->rq_taken ? NULL : &q->rq[q->rq_taken % q->cap.max_recv_wr];
}

void sim_recv_taken(struct sim_qp *q)
{
    struct sim_srq *s = q->srq;

    if (!s) {
        q->rq_taken++;
        return;
    }
    s->taken++;
    verbs_sim.srq_taken++;
}

static struct ibv_srq *create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct sim_srq *s;

    if (sim_fails("ibv_create_srq", ENOMEM))
        return NULL;
    if (verbs_sim.max_srq_wr < 0 ||
        attr->attr.max_wr > (verbs_sim.max_srq_wr ? (uint32_t)verbs_sim.max_srq_wr : 32767)) {
        errno = EINVAL;
        return NULL;
    }
    s = calloc(1, sizeof *s);
    if (s)
        s->ring = calloc(attr->attr.max_wr, sizeof *s->ring);
    if (!s || !s->ring)
        abort();
    s->srq = (struct ibv_srq){ .context = pd->context, .pd = pd };
    s->max = attr->attr.max_wr;
    verbs_sim.open++;
    verbs_sim.srqs_open++;
    return &s->srq;
}

static int destroy_srq(struct ibv_srq *srq)
{
    for (struct sim_qp *q = sim_qps; q; q = q->next)
        if (&q->srq->srq == srq)
            return EBUSY;
    free(((struct sim_srq *)srq)->ring);
    free(srq);
    verbs_sim.open--;
    verbs_sim.srqs_open--;
    return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct sim_srq *s = (struct sim_srq *)srq;

    if (sim_fails("ibv_post_srq_recv", ENOMEM)) {
        *bad = wr;
        return ENOMEM;
    }
    for (; wr; wr = wr->next) {
        if (s->posted - s->taken >= s->max ||
            !sim_find_mr(srq->context, wr->sg_list[0].lkey, 0, wr->sg_list[0].addr,
                         wr->sg_list[0].length)) {
            *bad = wr;
            return ENOMEM;
        }
        s->ring[s->posted++ % s->max] =
            (struct sim_rwqe){ .wr_id = wr->wr_id,
                               .addr = (char *)(uintptr_t)wr->sg_list[0].addr,
                               .length = wr->sg_list[0].length };
    }
    return 0;
}

void sim_srq_functions(struct vb_fn *fn)
{
    fn->ibv_create_srq = create_srq;
    fn->ibv_destroy_srq = destroy_srq;
    for (int i = 0; i < SIM_DEVICES; i++)
        sim_context[i].ops.post_srq_recv = post_srq_recv;
}
