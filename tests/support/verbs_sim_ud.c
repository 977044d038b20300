/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulated device: datagrams. They get lost, come twice, and are overtaken, by chance; a
 * receiver without a request posted loses them, silently. Of what a queue pair had before it
 * was reset, completions may still come. With SRD nothing is lost, and all is out of order:
 * what a send's completion says is that it has arrived. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/verbs_sim_inside.h"

#define GRH    40
#define LATEST 200  /* calls until one that was overtaken arrives */
#define GHOSTS 8    /* each way */
#define HAUNTS 1500 /* calls until their completions come */
#define AGAIN  20   /* calls until SRD tries again */

struct late {
    struct late *next;
    struct ibv_context *ctx; /* where it comes from */
    uint32_t to_qpn, to_qkey, len, wait;
    uint16_t pkey;
    uint32_t from_qpn; /* SRD: completes then; 0: nobody waits */
    uint64_t wr_id;
    char bytes[];
};

static struct late *lates;

/* Of requests that a reset queue pair had. */
static struct ghost {
    struct ibv_cq *cq;
    uint64_t wr_id;
    uint32_t qpn, wait;
} ghosts[2 * GHOSTS];

static int by_chance(double share)
{
    return share > 0 && sim_random(1000000) < share * 1000000;
}

static void complete(struct sim_qp *q, uint64_t wr_id, uint32_t retire)
{
    struct sim_cqe e = { .qp = q, .send = 1, .retire = retire };

    e.wc.wr_id = wr_id;
    e.wc.opcode = IBV_WC_SEND;
    e.wc.qp_num = q->qp.qp_num;
    sim_add_cqe(q->qp.send_cq, &e);
}

/* 0: it has no request posted, or is not there yet. */
static int deliver(const struct late *l)
{
    struct sim_qp *to = sim_hand_number(l->ctx, l->to_qpn);
    uint32_t grh = to && to->sort == SIM_UD ? GRH : 0;
    struct sim_cqe e = { .qp = to };
    const struct sim_rwqe *r;
    char head[GRH];

    if (!to || to->qp.state == IBV_QPS_RESET || to->qp.state == IBV_QPS_INIT ||
        to->qp.state == IBV_QPS_ERR)
        return 0;
    if (to->sort == SIM_CONNECTED || l->to_qkey != to->qkey || (l->pkey ^ to->pkey) & 0x7fff) {
        verbs_sim.ud_bad_key++;
        return 1;
    }
    r = sim_recv_next(to);
    if (!r || r->length < l->len + grh) {
        verbs_sim.ud_no_room++;
        return 0;
    }
    memset(head, 0xb6, sizeof head);
    if (grh)
        sim_hide(to, r->addr, head, grh);
    sim_hide(to, r->addr + grh, l->bytes, l->len);
    e.apply = to->brought;
    e.wc.wr_id = r->wr_id;
    e.wc.opcode = IBV_WC_RECV;
    e.wc.byte_len = l->len + grh;
    e.wc.wc_flags = grh ? IBV_WC_GRH : 0;
    e.wc.qp_num = to->qp.qp_num;
    sim_recv_taken(to);
    sim_add_cqe(to->qp.recv_cq, &e);
    return 1;
}

/* 1: it is done with, and freed. */
static int arrive(struct late *l)
{
    struct sim_qp *from = l->from_qpn ? sim_hand_number(l->ctx, l->from_qpn) : NULL;
    int there = deliver(l);

    if (!there && l->from_qpn && from) { /* SRD: it goes again */
        l->wait = AGAIN;
        return 0;
    }
    if (from && from->qp.state == IBV_QPS_RTS)
        complete(from, l->wr_id, 0);
    free(l);
    return 1;
}

static void haunt(void)
{
    for (int i = 0; i < 2 * GHOSTS; i++) {
        struct ghost *g = &ghosts[i];
        struct sim_cqe e = { .send = 1 };

        if (!g->cq || g->wait-- > 0)
            continue;
        memset(&e.wc, 0xa5, sizeof e.wc);
        e.wc.wr_id = g->wr_id;
        e.wc.status = IBV_WC_WR_FLUSH_ERR;
        e.wc.qp_num = g->qpn;
        sim_add_cqe(g->cq, &e);
        g->cq = NULL;
    }
}

void sim_ud_run(int all)
{
    haunt();
    for (struct late *l = lates; all && l; l = l->next)
        l->wait = 0;
    for (struct late **at = &lates; *at;) {
        struct late *l = *at, *next = l->next;

        if (l->wait) {
            l->wait--;
            at = &l->next;
        } else if (arrive(l)) {
            *at = next;
        } else {
            at = &l->next;
        }
    }
}

static void launch(struct sim_qp *q, const struct sim_wqe *w, const char *bytes)
{
    struct late *l = malloc(sizeof *l + w->len);

    if (!l)
        abort();
    *l = (struct late){ .ctx = q->qp.context,
                        .to_qpn = w->to_qpn,
                        .to_qkey = w->to_qkey,
                        .len = w->len,
                        .pkey = q->pkey };
    memcpy(l->bytes, bytes, w->len);
    if (q->sort == SIM_SRD) {
        l->from_qpn = q->qp.qp_num;
        l->wr_id = w->wr_id;
    }
    if (by_chance(verbs_sim.ud_late)) {
        verbs_sim.ud_overtaken++;
        l->wait = 1 + sim_random(LATEST);
    } else if (arrive(l)) {
        return;
    }
    l->next = lates;
    lates = l;
}

static int is_lost_on_the_way(const struct sim_qp *q, const struct sim_wqe *w)
{
    const struct ibv_ah_attr *a = &w->ah->attr;
    const struct sim_qp *to = sim_hand_number(q->qp.context, w->to_qpn);

    return sim_is_dead(q->qp.context) ||
           (verbs_sim.lost_above && w->len > verbs_sim.lost_above) || !to ||
           (a->is_global && !sim_hand_has_gid(to->qp.context, q->qp.context, a->grh.sgid_index,
                                              a->grh.dgid.raw)) ||
           (!a->is_global && a->dlid != verbs_sim.lid) ||
           (q->sort == SIM_UD && by_chance(verbs_sim.ud_loss));
}

int sim_ud_execute(struct sim_qp *q)
{
    struct sim_wqe *w = &q->sq[q->sq_done % q->cap.max_send_wr];
    uint32_t most = q->sort == SIM_SRD ? SIM_SRD_MAX : 4096;
    char *bytes = sim_collect(q, w);

    if (!bytes || w->len > most ||
        (verbs_sim.ud_fail && ++verbs_sim.ud_sent == verbs_sim.ud_fail)) {
        sim_fail_head(q, !bytes          ? IBV_WC_LOC_PROT_ERR
                         : w->len > most ? IBV_WC_LOC_LEN_ERR
                                         : IBV_WC_LOC_QP_OP_ERR);
        free(bytes);
        return 1;
    }
    verbs_sim.ud_sent += !verbs_sim.ud_fail;
    verbs_sim.executed++;
    q->sq_done++;
    if (is_lost_on_the_way(q, w)) {
        verbs_sim.ud_lost++;
        if (q->sort == SIM_SRD)
            complete(q, w->wr_id, 0);
    } else {
        launch(q, w, bytes);
        if (q->sort == SIM_UD && by_chance(verbs_sim.ud_double)) {
            verbs_sim.ud_doubled++;
            launch(q, w, bytes);
        }
    }
    if (q->sort == SIM_UD && w->signaled)
        complete(q, w->wr_id, q->sq_done);
    free(bytes);
    return 1;
}

static void reset(struct sim_qp *q)
{
    uint64_t recv = q->rq_posted ? q->rq[0].wr_id : 0, send = q->sq[0].wr_id;

    sim_place(q, UINT64_MAX);
    sim_orphan(q);
    for (uint32_t i = 0; i < GHOSTS && q->rq_posted > GHOSTS; i++) {
        ghosts[2 * i] = (struct ghost){ q->qp.recv_cq, recv, q->qp.qp_num, HAUNTS + i };
        ghosts[2 * i + 1] = (struct ghost){ q->qp.send_cq, send, q->qp.qp_num, HAUNTS + i };
    }
    q->sq_done = q->sq_retired = q->sq_posted;
    q->rq_taken = q->rq_posted;
    q->qp.state = IBV_QPS_RESET;
    verbs_sim.resets++;
}

int sim_ud_modify(struct sim_qp *q, const struct ibv_qp_attr *a, int mask)
{
    switch (a->qp_state) {
    case IBV_QPS_RESET:
        if (mask != IBV_QP_STATE)
            return EINVAL;
        reset(q);
        return 0;
    case IBV_QPS_INIT:
        if (mask != (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) ||
            q->qp.state != IBV_QPS_RESET || a->port_num != 1 || a->qkey >> 31)
            return EINVAL;
        q->pkey = verbs_sim.pkeys[0] ? verbs_sim.pkeys[a->pkey_index % 4] : 0xffff;
        q->qkey = a->qkey;
        break;
    case IBV_QPS_RTR:
        if (mask != IBV_QP_STATE || q->qp.state != IBV_QPS_INIT)
            return EINVAL;
        break;
    case IBV_QPS_RTS:
        if ((mask & ~IBV_QP_RNR_RETRY) != (IBV_QP_STATE | IBV_QP_SQ_PSN) ||
            (!(mask & IBV_QP_RNR_RETRY)) != (q->sort != SIM_SRD) ||
            q->qp.state != IBV_QPS_RTR || a->sq_psn > 0xffffff)
            return EINVAL;
        break;
    default: return EINVAL;
    }
    q->qp.state = a->qp_state;
    return 0;
}

static struct ibv_ah *create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    struct sim_ah *h;

    if (verbs_sim.no_ah) {
        errno = verbs_sim.no_ah;
        return NULL;
    }
    if (sim_fails("ibv_create_ah", ENOMEM))
        return NULL;
    if (attr->port_num != 1 || (attr->is_global && !attr->grh.hop_limit) ||
        (!attr->is_global && !attr->dlid)) {
        errno = EINVAL;
        return NULL;
    }
    h = calloc(1, sizeof *h);
    if (!h)
        return NULL;
    h->ah = (struct ibv_ah){ .context = pd->context, .pd = pd };
    h->attr = *attr;
    verbs_sim.open++;
    verbs_sim.ahs_open++;
    return &h->ah;
}

static int destroy_ah(struct ibv_ah *ah)
{
    free(ah);
    verbs_sim.open--;
    verbs_sim.ahs_open--;
    return 0;
}

static int efa_query(struct ibv_context *ctx, struct vb_efa *out)
{
    (void)ctx;
    *out = (struct vb_efa){
        .max_send = 256, .max_recv = 1024, .max_send_sge = 2, .retries_rnr = 1
    };
    return verbs_sim.srd ? 0 : EOPNOTSUPP;
}

static struct vb_fn *functions;

static struct ibv_qp *efa_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp_init_attr a = *attr;

    a.qp_type = IBV_QPT_DRIVER;
    return functions->ibv_create_qp(pd, &a);
}

void sim_ud_functions(struct vb_fn *fn)
{
    functions = fn;
    fn->ibv_create_ah = create_ah;
    fn->ibv_destroy_ah = destroy_ah;
    fn->efa_query = efa_query;
    fn->efa_create_qp = efa_create_qp;
}
