/* SPDX-License-Identifier: BSD-3-Clause */
/* Connection requests: which ones are accepted. verbs_join.c has the protocol. */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include <sodium.h>

#include "base/err.h"
#include "base/log.h"
#include "transport/verbs/lane.h"

/* Rejected requests that are logged one by one; then each time that their number has
 * doubled. */
#define TOLD 8u

/* Is it no banyan request at all? Versions are compared separately, as the other fields depend
 * on them. */
static int is_foreign(const struct vb_tp *t, const struct vb_request *r, size_t len)
{
    return len < sizeof *r || r->to != t->tp.rank || r->from < 0 || r->from >= t->tp.nranks ||
           r->from == r->to || r->lane >= VB_LANES;
}

void bny_verbs_request_prove(const struct vb_tp *t, struct vb_request *r)
{
    static const uint8_t nothing[16]; /* of the answerer's is known yet */
    const struct bny_transcript said = { .secret = t->secret,
                                         .asked = r,
                                         .asked_len = offsetof(struct vb_request, proof),
                                         .answered = nothing,
                                         .answered_len = sizeof nothing };
    uint8_t proof[BNY_PROOF_BYTES];

    bny_proof_make(proof, &said, BNY_PROOF_REQUEST);
    memcpy(r->proof, proof, sizeof r->proof);
}

/* Until it has, a request costs neither a queue pair nor locked memory. */
static int has_proven(const struct vb_tp *t, const struct vb_request *r)
{
    struct vb_request good = *r;

    bny_verbs_request_prove(t, &good);
    return sodium_memcmp(good.proof, r->proof, sizeof good.proof) == 0;
}

/* Foreign requests must not fill the log. 1: log this one. */
static int is_told(struct vb_tp *t)
{
    uint64_t n = ++t->turned_away;

    return n <= TOLD || (n & (n - 1)) == 0;
}

/* 0, or the reason to reject this request; -1: reject without a reason. */
static int refusal(struct vb_tp *t, const struct vb_request *r, size_t len,
                   const struct vb_rail *rail)
{
    struct vb_ep *e, *l;

    if (memcmp(r->magic, "bnyV", 4) == 0 && r->wire != BNY_WIRE_VERSION) {
        if (is_told(t))
            bny_warn("verbs: a rank with wire version %d was turned away, ours is %d: install "
                     "the same version of banyan on all hosts",
                     r->wire, BNY_WIRE_VERSION);
        return VB_OTHER_VERSION;
    }
    if (memcmp(r->magic, "bnyV", 4) != 0 || is_foreign(t, r, len) || !has_proven(t, r)) {
        if (is_told(t))
            bny_warn("verbs: a connection request that is not from a rank of this job was "
                     "turned away (requests turned away so "
                     "far: %llu)",
                     (unsigned long long)t->turned_away);
        return -1;
    }
    if (r->notify != t->notify) {
        bny_warn("verbs: rank %d was turned away: BANYAN_VERBS=notify differs, or its device "
                 "is of another kind",
                 r->from);
        return VB_NOT_ABLE;
    }
    if (!rail || r->rail != rail->index) {
        bny_warn("verbs: rank %d was turned away: it addresses our device %d and reaches %s; "
                 "the routes of its devices are mixed up",
                 r->from, r->rail, rail ? rail->device : "another");
        return VB_NOT_ABLE;
    }
    e = t->eps[r->from];
    l = e && r->lane ? e->lanes[r->lane] : e;
    /* A connection that is open there may never have opened here, if the queue pair broke
     * between the two hellos: then it is still being made, and begins with this one. */
    if ((e && (e->down || e->left)) ||
        (r->resumes && (!l || (!l->conn && l->state == VB_CLOSED))))
        return VB_GIVEN_UP;
    if (rail->down == 2 ||
        /* TCP may carry the request although this port is down */
        (t->how == VB_HOW_QP && bny_verbs_port_is_down(t, rail)) ||
        (r->lane && (!e || !e->conn))) /* further lanes: the first one is not open here yet */
        return VB_NOT_NOW;
    if (l && l->trial && t->tp.rank < r->from)
        return VB_TURNED_AWAY;
    if (t->nhalf < VB_HALF_MAX(t->tp.nranks))
        return 0;
    t->told_busy++;
    return VB_BUSY;
}

/* 1: for a lane that is open here, whatever its state there. */
static int is_another(struct vb_tp *t, const struct vb_request *r)
{
    const struct vb_ep *e = t->eps[r->from], *l = e && r->lane ? e->lanes[r->lane] : e;

    return l && l->conn;
}

/* The peer of a request; NULL: a new one. */
static struct vb_peer *peer_of(struct vb_tp *t, const struct vb_request *r)
{
    return r->lane || is_another(t, r) ? t->eps[r->from]->conn->peer : NULL;
}

void bny_verbs_requested(struct vb_tp *t, struct rdma_cm_id *id, const uint8_t *data,
                         size_t len)
{
    struct vb_rail *rail = bny_verbs_rail_of(t, id);
    struct vb_request r = { .wire = 0 };
    struct vb_accept a;
    struct bny_transcript said;
    struct rdma_conn_param p;
    struct vb_lane *c;
    uint8_t why;
    int rc;

    memcpy(&r, data, len < sizeof r ? len : sizeof r);
    rc = refusal(t, &r, len, rail);
    why = (uint8_t)rc;
    c = rc ? NULL : bny_verbs_conn_new(t, NULL, id, 0);
    if (!c && rc == 0) {
        bny_verbs_starves(t, ENOMEM, "no memory for a connection that a rank requests");
        why = VB_NO_MEMORY;
        rc = why;
    }
    if (!c) {
        t->fn->rdma_reject(id, rc > 0 ? &why : NULL, rc > 0);
        t->fn->rdma_destroy_id(id);
        return;
    }
    id->context = c;
    c->rail = rail;
    c->request = r;
    randombytes_buf(c->nonce, sizeof c->nonce);
    memcpy(a.nonce, c->nonce, sizeof a.nonce);
    said = bny_verbs_said(c);
    bny_proof_make(a.proof, &said, BNY_PROOF_ANSWERER);
    p = bny_verbs_param(t, &a, sizeof a);
    c->another = is_another(t, &r);
    rc = bny_verbs_conn_prepare(c, peer_of(t, &r), c->another);
    if (rc != 0 || t->fn->rdma_accept(id, &p) != 0) {
        int err = rc == -BANYAN_ENOMEM ? ENOMEM : rc ? EIO : errno;
        const char *what = rc ? banyan_last_error() : strerror(err);

        why = bny_verbs_is_lack(err) ? VB_NO_MEMORY : VB_NOT_ABLE;
        if (why != VB_NO_MEMORY || !t->lack.first_ns) /* it retries again and again */
            bny_warn("verbs: rank %d cannot be accepted: %s", r.from, what);
        if (why == VB_NO_MEMORY)
            bny_verbs_starves(t, err, what);
        t->fn->rdma_reject(id, &why, 1);
        bny_verbs_conn_close(c);
        return;
    }
    c->established = 1;
    t->lack.first_ns = 0;
}
