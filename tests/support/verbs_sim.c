/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated device: queues and execution. Memory is in verbs_sim_mem.c, connections are in
 * verbs_sim_cm.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/support/verbs_sim_inside.h"

#define LOST_TRIES 200

struct verbs_sim verbs_sim;

struct sim_qp *sim_qps;
static uint32_t next_qpn = 17;
static uint32_t free_qpns[64], nfree_qpns; /* of queue pairs that are no more: used first */

static uint32_t random_below(uint32_t n)
{
    return (uint32_t)bny_rng_below(&verbs_sim.seed, n);
}

uint32_t sim_random(uint32_t n)
{
    return random_below(n);
}

int sim_fails(const char *what, int err)
{
    if (++verbs_sim.calls != verbs_sim.fail_call)
        return 0;
    verbs_sim.failed = what;
    errno = err;
    return 1;
}

int sim_fd(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void sim_fd_set(int fd, int ready)
{
    uint64_t v = 1;

    if (ready)
        (void)!write(fd, &v, sizeof v);
    else
        (void)!read(fd, &v, sizeof v);
}

/* ---- completions ---- */

static struct ibv_comp_channel *create_channel(struct ibv_context *ctx)
{
    struct sim_channel *ch =
        sim_fails("ibv_create_comp_channel", EMFILE) ? NULL : calloc(1, sizeof *ch);

    if (!ch)
        return NULL;
    verbs_sim.open++;
    ch->ch = (struct ibv_comp_channel){ .context = ctx, .fd = sim_fd() };
    return &ch->ch;
}

static int destroy_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    verbs_sim.open--;
    return 0;
}

static struct ibv_cq *create_cq(struct ibv_context *ctx, int cqe, void *context,
                                struct ibv_comp_channel *channel, int vector)
{
    struct sim_cq *cq;

    if (sim_fails("ibv_create_cq", ENOMEM))
        return NULL;
    if (vector < 0 || vector >= ctx->num_comp_vectors) {
        errno = EINVAL;
        return NULL;
    }
    verbs_sim.vectors |= 1ull << vector;
    if (cqe > sim_max_cqe()) {
        errno = EINVAL;
        return NULL;
    }
    cq = calloc(1, sizeof *cq);
    if (cq)
        cq->ring = calloc((size_t)cqe, sizeof *cq->ring);
    if (!cq || !cq->ring) {
        free(cq);
        return NULL;
    }
    verbs_sim.open++;
    cq->cq = (struct ibv_cq){
        .context = ctx, .channel = channel, .cq_context = context, .cqe = cqe
    };
    return &cq->cq;
}

static int destroy_cq(struct ibv_cq *ibcq)
{
    struct sim_cq *cq = (struct sim_cq *)ibcq;
    struct sim_channel *ch = (struct sim_channel *)ibcq->channel;

    for (int i = 0; ch && i < ch->n; i++)
        if (ch->ready[i] == cq) {
            memmove(&ch->ready[i], &ch->ready[i + 1],
                    (size_t)(--ch->n - i) * sizeof ch->ready[0]);
            i--;
        }
    if (cq->told != cq->acked)
        abort(); /* the real call waits for ever */
    free(cq->ring);
    free(cq);
    verbs_sim.open--;
    return 0;
}

static int get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
    struct sim_channel *ch = (struct sim_channel *)channel;

    if (ch->n == 0) {
        sim_fd_set(channel->fd, 0);
        errno = EAGAIN;
        return -1;
    }
    *cq = &ch->ready[0]->cq;
    *context = (*cq)->cq_context;
    ch->ready[0]->told++;
    memmove(&ch->ready[0], &ch->ready[1], (size_t)--ch->n * sizeof ch->ready[0]);
    if (ch->n == 0)
        sim_fd_set(channel->fd, 0);
    return 0;
}

static void ack_cq_events(struct ibv_cq *cq, unsigned n)
{
    ((struct sim_cq *)cq)->acked += n;
}

static void add_cqe(struct sim_cq *cq, const struct sim_cqe *e)
{
    struct sim_channel *ch = (struct sim_channel *)cq->cq.channel;

    if (cq->count == cq->cq.cqe) {
        verbs_sim.overflows++;
        return;
    }
    cq->ring[(cq->head + cq->count++) % cq->cq.cqe] = *e;
    if (cq->armed && ch && ch->n < SIM_READY) {
        cq->armed = 0;
        ch->ready[ch->n++] = cq;
        sim_fd_set(ch->ch.fd, 1);
    }
}

void sim_add_cqe(struct ibv_cq *cq, const struct sim_cqe *e)
{
    add_cqe((struct sim_cq *)cq, e);
}

/* ---- queue pairs ---- */

struct sim_qp *sim_qp_new(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
    uint32_t inl = verbs_sim.max_inline == UINT32_MAX ? 0
                   : verbs_sim.max_inline             ? verbs_sim.max_inline
                                                      : 220;
    struct sim_qp *q;

    if (sim_fails("rdma_create_qp", ENOMEM))
        return NULL;
    if (verbs_sim.max_qp) {
        int n = 0;

        for (q = sim_qps; q; q = q->next)
            n++;
        if (n >= verbs_sim.max_qp) {
            errno = ENOMEM;
            return NULL;
        }
    }
    if (a->cap.max_send_wr > (uint32_t)sim_max_send_wr() ||
        a->cap.max_recv_wr > (uint32_t)sim_max_send_wr() ||
        (verbs_sim.max_sge && a->cap.max_send_sge > (uint32_t)verbs_sim.max_sge) ||
        a->cap.max_inline_data > inl || a->cap.max_send_sge > SIM_SGES) {
        errno = EINVAL;
        return NULL;
    }
    q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->sq = calloc(a->cap.max_send_wr, sizeof *q->sq);
    q->srq = (struct sim_srq *)a->srq;
    q->rq = calloc(a->cap.max_recv_wr + 1u, sizeof *q->rq);
    if (!q->sq || !q->rq)
        abort();
    q->qp = (struct ibv_qp){ .context = pd->context,
                             .pd = pd,
                             .send_cq = a->send_cq,
                             .recv_cq = a->recv_cq,
                             .qp_num = nfree_qpns ? free_qpns[--nfree_qpns] : next_qpn++,
                             .qp_type = a->qp_type,
                             .state = IBV_QPS_INIT };
    q->cap = a->cap;
    q->hidden_end = &q->hidden;
    q->next = sim_qps;
    sim_qps = q;
    verbs_sim.open++;
    return q;
}

/* What its end leaves in a completion queue stays there, with its number. */
static void orphan(struct ibv_cq *ibcq, const struct sim_qp *q)
{
    struct sim_cq *cq = (struct sim_cq *)ibcq;

    for (int i = 0; i < cq->count; i++) {
        struct sim_cqe *e = &cq->ring[(cq->head + i) % ibcq->cqe];

        if (e->qp == q)
            e->qp = NULL;
    }
}

void sim_orphan(const struct sim_qp *q)
{
    orphan(q->qp.send_cq, q);
    orphan(q->qp.recv_cq, q);
}

void sim_qp_free(struct sim_qp *q)
{
    sim_place(q, UINT64_MAX);
    for (struct sim_qp **p = &sim_qps; *p; p = &(*p)->next)
        if (*p == q) {
            *p = q->next;
            break;
        }
    for (struct sim_qp *o = sim_qps; o; o = o->next)
        if (o->remote == q)
            o->remote = NULL;
    sim_orphan(q);
    if (nfree_qpns < sizeof free_qpns / sizeof free_qpns[0])
        free_qpns[nfree_qpns++] = q->qp.qp_num;
    for (uint32_t i = q->sq_done; i != q->sq_posted; i++)
        free(q->sq[i % q->cap.max_send_wr].inlined);
    free(q->sq);
    free(q->rq);
    free(q);
    verbs_sim.open--;
}

static void broken_cqe(struct sim_qp *q, struct ibv_cq *cq, uint64_t wr_id,
                       enum ibv_wc_status status, int send, uint32_t retire)
{
    struct sim_cqe e = { .qp = q, .send = send, .retire = retire };

    memset(&e.wc, 0xa5, sizeof e.wc);
    e.wc.wr_id = wr_id;
    e.wc.status = status;
    e.wc.vendor_err = 0x77;
    e.wc.qp_num = q->qp.qp_num;
    add_cqe((struct sim_cq *)cq, &e);
}

void sim_qp_error(struct sim_qp *q)
{
    if (q->qp.state == IBV_QPS_ERR)
        return;
    q->qp.state = IBV_QPS_ERR;
    while (q->sq_done != q->sq_posted) {
        struct sim_wqe *w = &q->sq[q->sq_done++ % q->cap.max_send_wr];

        broken_cqe(q, q->qp.send_cq, w->wr_id, IBV_WC_WR_FLUSH_ERR, 1, q->sq_done);
        free(w->inlined);
        w->inlined = NULL;
    }
    q->last_due = q->srq && verbs_sim.tells_last;
    if (q->srq && verbs_sim.srq_forgets && sim_recv_next(q))
        sim_recv_taken(q);
    while (q->rq_taken != q->rq_posted) { /* of a shared queue: nothing is flushed */
        broken_cqe(q, q->qp.recv_cq, q->rq[q->rq_taken % q->cap.max_recv_wr].wr_id,
                   IBV_WC_WR_FLUSH_ERR, 0, 0);
        q->rq_taken++;
    }
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    if (sim_fails("ibv_modify_qp", EIO))
        return EIO;
    if ((mask & IBV_QP_STATE) && attr->qp_state != IBV_QPS_ERR)
        return sim_hand_modify((struct sim_qp *)qp, attr, mask);
    if ((mask & IBV_QP_STATE) && attr->qp_state == IBV_QPS_ERR)
        sim_qp_error((struct sim_qp *)qp);
    return 0;
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
                    struct ibv_qp_init_attr *init)
{
    (void)mask;
    if (sim_fails("ibv_query_qp", EIO))
        return EIO;
    memset(attr, 0, sizeof *attr);
    memset(init, 0, sizeof *init);
    attr->qp_state = qp->state;
    attr->path_mtu = (enum ibv_mtu)(31 - __builtin_clz(((struct sim_qp *)qp)->mtu / 128));
    return 0;
}

void sim_fail_head(struct sim_qp *q, enum ibv_wc_status status)
{
    struct sim_wqe *w = &q->sq[q->sq_done++ % q->cap.max_send_wr];

    broken_cqe(q, q->qp.send_cq, w->wr_id, status, 1, q->sq_done);
    free(w->inlined);
    w->inlined = NULL;
    sim_qp_error(q);
}

char *sim_collect(const struct sim_qp *q, const struct sim_wqe *w)
{
    char *bytes = malloc(w->len + 1);
    size_t at = 0;

    if (!bytes)
        abort();
    if (w->inlined) {
        memcpy(bytes, w->inlined, w->len);
        return bytes;
    }
    for (int i = 0; i < w->nsge; i++) {
        if (!sim_find_mr(q->qp.context, w->sge[i].lkey, 0, w->sge[i].addr, w->sge[i].length)) {
            free(bytes);
            return NULL;
        }
        memcpy(bytes + at, (const void *)(uintptr_t)w->sge[i].addr, w->sge[i].length);
        at += w->sge[i].length;
    }
    return bytes;
}

/* Where the request's bytes go at the receiver. 0, or the status that the sender gets. */
static enum ibv_wc_status target(struct sim_qp *to, const struct sim_wqe *w, char **dst)
{
    struct sim_mr *m;

    if (w->opcode == IBV_WR_SEND) {
        const struct sim_rwqe *r = sim_recv_next(to);

        if (r->length < w->len)
            return IBV_WC_REM_INV_REQ_ERR;
        *dst = r->addr;
        return 0;
    }
    *dst = (char *)(uintptr_t)w->remote_addr;
    if (w->len == 0) /* keys of empty writes are not looked at */
        return 0;
    m = sim_find_mr(to->qp.context, w->rkey, 1, w->remote_addr, w->len);
    if (m && (m->access & IBV_ACCESS_REMOTE_WRITE))
        return 0;
    verbs_sim.bad_keys++;
    return IBV_WC_REM_ACCESS_ERR;
}

static void tell_receiver(struct sim_qp *to, const struct sim_wqe *w)
{
    struct sim_cqe e = { .qp = to, .apply = to->brought };

    e.wc.wr_id = sim_recv_next(to)->wr_id;
    sim_recv_taken(to);
    e.wc.opcode = w->opcode == IBV_WR_SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM;
    e.wc.byte_len = w->len;
    e.wc.imm_data = w->imm;
    e.wc.wc_flags = w->opcode == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM;
    e.wc.qp_num = to->qp.qp_num;
    add_cqe((struct sim_cq *)to->qp.recv_cq, &e);
}

int sim_is_dead(const struct ibv_context *ctx)
{
    return (verbs_sim.dead_device && ctx == &sim_context[verbs_sim.dead_device - 1]) ||
           ctx - sim_context < verbs_sim.dead_below;
}

unsigned sim_mtu(void)
{
    int least = verbs_sim.mtu[0] < verbs_sim.mtu[1] ? verbs_sim.mtu[0] : verbs_sim.mtu[1];

    return least ? 128u << least : 0;
}

/* It gets lost so often as the device tries; the peer's requests arrive meanwhile. */
static int is_lost(const struct sim_qp *q, const struct sim_wqe *w)
{
    return (verbs_sim.lost_above && w->len > verbs_sim.lost_above) ||
           (sim_mtu() && w->len > sim_mtu() && q->mtu > sim_mtu());
}

static int is_too_long(struct sim_qp *q, const struct sim_wqe *w)
{
    if (!is_lost(q, w) || q->lost_tries < LOST_TRIES)
        return 0;
    q->lost_tries = 0;
    return 1;
}

/* Its packets, in any order; some lie there at once, which nobody may rely on: garbage is at
 * the place of others until a completion vouches for all. */
static void spray(struct sim_qp *to, char *dst, const char *bytes, uint32_t len)
{
    uint32_t n = (len + 4095) / 4096, first = random_below(n), step = n > 2 ? n - 1 : 1;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (uint32_t)((first + (uint64_t)i * step) % n) * 4096,
                 m = len - at < 4096 ? len - at : 4096;

        sim_hide(to, dst + at, bytes + at, m);
        memset(dst + at, 0x5a, m);
        if (random_below(2))
            memcpy(dst + at, bytes + at, m);
        verbs_sim.packets++;
    }
}

/* Executes the head of a send queue. 0: it waits. */
static int execute(struct sim_qp *q)
{
    struct sim_wqe *w = &q->sq[q->sq_done % q->cap.max_send_wr];
    struct sim_qp *to = q->sort ? NULL : q->by_hand ? sim_hand_peer(q) : q->remote;
    enum ibv_wc_status st;
    char *bytes, *dst;

    if (q->sort != SIM_CONNECTED)
        return sim_ud_execute(q);
    if (!to || to->qp.state == IBV_QPS_ERR || sim_is_dead(q->qp.context) || is_too_long(q, w) ||
        (verbs_sim.cut_after && verbs_sim.executed >= verbs_sim.cut_after)) {
        sim_fail_head(q, IBV_WC_RETRY_EXC_ERR);
        return 1;
    }
    if (is_lost(q, w)) {
        q->lost_tries++;
        return 0;
    }
    if (w->opcode != IBV_WR_RDMA_WRITE && !sim_recv_next(to)) {
        verbs_sim.rnr++;
        if (q->rnr_retry == 7 || q->rnr_tries++ < q->rnr_retry)
            return 0;
        sim_fail_head(q, IBV_WC_RNR_RETRY_EXC_ERR);
        return 1;
    }
    q->rnr_tries = 0;
    bytes = sim_collect(q, w);
    if (!bytes || w->len > SIM_MSG_MAX) {
        free(bytes);
        sim_fail_head(q, bytes ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR);
        return 1;
    }
    st = target(to, w, &dst);
    if (st) {
        free(bytes);
        sim_fail_head(q, st);
        sim_qp_error(to);
        return 1;
    }
    if (w->len && verbs_sim.reorders)
        spray(to, dst, bytes, w->len);
    else if (w->len)
        sim_hide(to, dst, bytes, w->len);
    free(bytes);
    if (w->opcode != IBV_WR_RDMA_WRITE)
        tell_receiver(to, w);
    verbs_sim.long_imms += w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && w->len > 8192;
    verbs_sim.executed++;
    q->sq_done++;
    if (w->signaled) {
        struct sim_cqe e = { .qp = q, .send = 1, .retire = q->sq_done };

        e.wc.wr_id = w->wr_id;
        e.wc.opcode = w->opcode == IBV_WR_SEND ? IBV_WC_SEND : IBV_WC_RDMA_WRITE;
        e.wc.qp_num = q->qp.qp_num;
        add_cqe((struct sim_cq *)q->qp.send_cq, &e);
    }
    free(w->inlined);
    w->inlined = NULL;
    return 1;
}

/* A few requests of queue pairs by chance; all: until nothing moves any more. */
static void run(int all)
{
    int moved = 1;

    if (verbs_sim.write_delay)
        return;
    sim_ud_run(all);
    while (moved) {
        moved = 0;
        for (struct sim_qp *q = sim_qps; q; q = q->next)
            for (uint32_t k = all ? 1 : random_below(4);
                 k && q->qp.state == IBV_QPS_RTS && q->sq_done != q->sq_posted; k--)
                moved |= execute(q);
        if (!all)
            return;
    }
    sim_ud_run(all);
}

static int anybody_sleeps(void)
{
    for (struct sim_qp *q = sim_qps; q; q = q->next)
        if (((struct sim_cq *)q->qp.recv_cq)->armed)
            return 1;
    return 0;
}

static int post_one(struct sim_qp *q, const struct ibv_send_wr *wr)
{
    struct sim_wqe *w = &q->sq[q->sq_posted % q->cap.max_send_wr];

    if (q->sq_posted - q->sq_retired >= q->cap.max_send_wr)
        return ENOMEM;
    if (wr->num_sge > (int)q->cap.max_send_sge ||
        (verbs_sim.no_immediates && wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM))
        return EINVAL;
    *w = (struct sim_wqe){ .wr_id = wr->wr_id,
                           .opcode = wr->opcode,
                           .imm = wr->imm_data,
                           .nsge = wr->num_sge,
                           .signaled = (wr->send_flags & IBV_SEND_SIGNALED) != 0,
                           .remote_addr = wr->wr.rdma.remote_addr,
                           .rkey = wr->wr.rdma.rkey };
    if (q->sort != SIM_CONNECTED) {
        w->ah = (struct sim_ah *)wr->wr.ud.ah;
        w->to_qpn = wr->wr.ud.remote_qpn;
        w->to_qkey = wr->wr.ud.remote_qkey;
        if (wr->opcode != IBV_WR_SEND || !w->ah || w->ah->ah.pd != q->qp.pd)
            return EINVAL;
    }
    for (int i = 0; i < wr->num_sge; i++) {
        w->sge[i] = wr->sg_list[i];
        w->len += wr->sg_list[i].length;
    }
    if (wr->send_flags & IBV_SEND_INLINE) {
        size_t at = 0;

        if (w->len > q->cap.max_inline_data)
            return EINVAL;
        w->inlined = malloc(w->len + 1u);
        if (!w->inlined)
            abort();
        for (int i = 0; i < wr->num_sge; at += wr->sg_list[i++].length)
            memcpy(w->inlined + at, (const void *)(uintptr_t)wr->sg_list[i].addr,
                   wr->sg_list[i].length);
    }
    q->sq_posted++;
    if (q->qp.state == IBV_QPS_ERR) {
        q->sq_done++;
        broken_cqe(q, q->qp.send_cq, w->wr_id, IBV_WC_WR_FLUSH_ERR, 1, q->sq_done);
        free(w->inlined);
        w->inlined = NULL;
    }
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    struct sim_qp *q = (struct sim_qp *)qp;

    if (sim_fails("ibv_post_send", ENOMEM)) {
        *bad = wr;
        return ENOMEM;
    }
    if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) {
        *bad = wr;
        return EINVAL;
    }
    for (; wr; wr = wr->next) {
        int rc = post_one(q, wr);

        if (rc) {
            *bad = wr;
            return rc;
        }
    }
    if (anybody_sleeps())
        run(1);
    return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    struct sim_qp *q = (struct sim_qp *)qp;
    int steal = verbs_sim.steal_recvs;

    if (sim_fails("ibv_post_recv", ENOMEM)) {
        *bad = wr;
        errno = 0;
        return ENOMEM;
    }
    for (; wr; wr = wr->next) {
        if (steal-- > 0 && q->rq_posted > 0)
            continue;
        if (qp->state == IBV_QPS_RESET || q->srq ||
            q->rq_posted - q->rq_taken >= q->cap.max_recv_wr) {
            *bad = wr;
            return ENOMEM;
        }
        if (q->sort != SIM_CONNECTED &&
            !sim_find_mr(qp->context, wr->sg_list[0].lkey, 0, wr->sg_list[0].addr,
                         wr->sg_list[0].length)) {
            *bad = wr;
            return EINVAL;
        }
        q->rq[q->rq_posted++ % q->cap.max_recv_wr] =
            (struct sim_rwqe){ .wr_id = wr->wr_id,
                               .addr =
                                   wr->num_sge ? (char *)(uintptr_t)wr->sg_list[0].addr : NULL,
                               .length = wr->num_sge ? wr->sg_list[0].length : 0 };
    }
    return 0;
}

static int poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
    struct sim_cq *cq = (struct sim_cq *)ibcq;
    int got = 0;

    verbs_sim.polls++;
    run(0);
    if (ibcq == verbs_sim.dead_cq || (cq->count && sim_fails("ibv_poll_cq", EIO)))
        return -1;
    n = n > 1 ? 1 + (int)random_below((uint32_t)n) : n;
    for (; got < n && cq->count; got++) {
        struct sim_cqe *e = &cq->ring[cq->head];

        wc[got] = e->wc;
        cq->head = (cq->head + 1) % ibcq->cqe;
        cq->count--;
        if (!e->qp)
            continue;
        if (e->send && e->qp->sort == SIM_SRD)
            e->qp->sq_retired++; /* in any order */
        else if (e->send)
            e->qp->sq_retired = e->retire;
        else if (e->wc.status == IBV_WC_SUCCESS)
            sim_place(e->qp, e->apply);
    }
    return got;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
    (void)solicited;
    run(1);
    ((struct sim_cq *)cq)->armed = 1;
    return 0;
}

static const char *wc_status_str(enum ibv_wc_status status)
{
    return status == IBV_WC_RETRY_EXC_ERR       ? "transport retry counter exceeded"
           : status == IBV_WC_RNR_RETRY_EXC_ERR ? "RNR retry counter exceeded"
           : status == IBV_WC_REM_ACCESS_ERR    ? "remote access error"
                                                : "simulated error";
}

void verbs_sim_use(void)
{
    static struct vb_fn fn;

    fn = (struct vb_fn){
        .ibv_create_comp_channel = create_channel,
        .ibv_destroy_comp_channel = destroy_channel,
        .ibv_create_cq = create_cq,
        .ibv_destroy_cq = destroy_cq,
        .ibv_get_cq_event = get_cq_event,
        .ibv_ack_cq_events = ack_cq_events,
        .ibv_modify_qp = modify_qp,
        .ibv_query_qp = query_qp,
        .ibv_wc_status_str = wc_status_str,
        .loopback = 1,
    };
    sim_mem_functions(&fn);
    sim_cm_functions(&fn);
    sim_hand_functions(&fn);
    sim_srq_functions(&fn);
    sim_ud_functions(&fn);
    for (int i = 0; i < SIM_DEVICES; i++) {
        sim_context[i].ops.post_send = post_send;
        sim_context[i].ops.post_recv = post_recv;
        sim_context[i].ops.poll_cq = poll_cq;
        sim_context[i].ops.req_notify_cq = req_notify_cq;
    }
    bny_verbs_fn_set(&fn);
}
