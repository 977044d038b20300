/* SPDX-License-Identifier: BSD-3-Clause */
/* A connection's memory, queue pair and end. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/param.h"
#include "transport/verbs/verbs.h"

#define SLAB_MAPPED (2 * (size_t)VB_SLAB_BYTES)

/* What is not slots: hellos, and notes in place of immediates. */
struct page {
    struct vb_hello hello_in, hello_out;
    struct vb_note notes_in[VB_RECVS], notes_out[VB_SENDS];
};

_Static_assert(2 * VB_SLAB_BYTES + sizeof(struct page) <= VB_PEER_BYTES, "documented");

struct vb_hello *bny_verbs_hello_in(const struct vb_conn *c)
{
    return &c->page->hello_in;
}

struct vb_hello *bny_verbs_hello_out(const struct vb_conn *c)
{
    return &c->page->hello_out;
}

struct vb_note *bny_verbs_notes_in(const struct vb_conn *c)
{
    return c->page->notes_in;
}

struct vb_note *bny_verbs_notes_out(const struct vb_conn *c)
{
    return c->page->notes_out;
}

/* ---- the end ------------------------------------------------------------------------------ */

static void unlink_half(struct vb_conn *c)
{
    for (struct vb_conn **p = &c->t->half; *p; p = &(*p)->next)
        if (*p == c) {
            *p = c->next;
            return;
        }
}

/* It is no longer in the making: c->e is known, or c is closed. */
void bny_verbs_made(struct vb_conn *c)
{
    if (!c->making)
        return;
    c->making = 0;
    c->t->joining--;
    if (!c->active)
        unlink_half(c);
    else if (c->e->trial == c)
        c->e->trial = NULL;
}

void bny_verbs_page_free(struct vb_conn *c)
{
    if (c->mr_page)
        c->t->fn->ibv_dereg_mr(c->mr_page);
    c->mr_page = NULL;
    free(c->page);
    c->page = NULL;
}

void bny_verbs_conn_close(struct vb_conn *c)
{
    struct vb_tp *t = c->t;

    if (c->dead)
        return;
    c->dead = 1;
    bny_verbs_made(c);
    t->joining -= c->lost != 0;
    bny_verbs_lane_close(c);
    bny_verbs_page_free(c);
    if (c->mr_in)
        t->fn->ibv_dereg_mr(c->mr_in);
    if (c->mr_out)
        t->fn->ibv_dereg_mr(c->mr_out);
    while (c->longs_done != c->longs_queued)
        c->sent[c->posted++ % VB_SENDS] =
            (struct vb_sent){ .cookie = c->longs[c->longs_done++ % VB_LONGS].cookie, .tells = 1 };
    c->done = c->to_post = c->posted; /* nobody reads the memory any more */
    c->next = t->dead;
    t->dead = c;
}

void bny_verbs_conn_free(struct vb_conn *c)
{
    if (c->slab)
        munmap(c->slab, SLAB_MAPPED);
    free(c->sent);
    free(c);
}

void bny_verbs_down(struct vb_ep *e, const char *fmt, ...)
{
    va_list ap;

    if (e->down)
        return;
    if (e->trial)
        bny_verbs_conn_close(e->trial);
    if (e->conn)
        bny_verbs_conn_close(e->conn);
    e->state = VB_CLOSED;
    if (e->left)
        return;
    va_start(ap, fmt);
    vsnprintf(e->reason, sizeof e->reason, fmt, ap);
    va_end(ap);
    e->down = 1;
}

/* ---- resources ---------------------------------------------------------------------------- */

struct vb_conn *bny_verbs_conn_new(struct vb_tp *t, struct vb_ep *e, struct rdma_cm_id *id, int active)
{
    struct vb_conn *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->t = t;
    c->e = e;
    c->id = id;
    c->active = active;
    c->deadline_ns = bny_deadline_in(VB_JOIN_S);
    c->born_ns = bny_now_ns();
    c->making = 1;
    t->joining++;
    if (active) {
        e->trial = c;
    } else {
        c->next = t->half;
        t->half = c;
    }
    return c;
}

static int fails(const struct vb_conn *c, const char *what)
{
    int err = errno;

    return bny_fail(err == ENOMEM ? BANYAN_ENOMEM : BANYAN_ESYSTEM, "device %s: %s fails: %s%s", c->t->device, what,
                    strerror(err),
                    err == ENOMEM ? " (each connection registers 6.1 MiB; raise the limit of locked memory: "
                                    "ulimit -l unlimited)" : "");
}

static int make_qp(struct vb_conn *c)
{
    static const uint32_t sizes[] = { VB_INLINE, 128, 64, 0 };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct ibv_qp_init_attr a = { .send_cq = c->cq, .recv_cq = c->cq, .qp_type = IBV_QPT_RC,
                                      .cap = { .max_send_wr = (1u + (unsigned)c->notify) * VB_SENDS + 1,
                                               .max_recv_wr = VB_RECVS + 1, .max_send_sge = 2, .max_recv_sge = 1,
                                               .max_inline_data = sizes[i] } };

        if (c->t->fn->rdma_create_qp(c->id, c->t->pd, &a) == 0) {
            c->has_qp = 1;
            c->inline_max = a.cap.max_inline_data;
            return 0;
        }
    }
    return fails(c, "creating a queue pair");
}

static int make_slab(struct vb_conn *c)
{
    struct vb_tp *t = c->t;

    c->sent = calloc(VB_SENDS, sizeof *c->sent);
    c->slab = mmap(NULL, SLAB_MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->slab == MAP_FAILED)
        c->slab = NULL;
    if (!c->sent || !c->slab)
        return bny_fail(BANYAN_ENOMEM, "no memory for the slabs of a connection");
    c->mr_in = t->fn->ibv_reg_mr(t->pd, c->slab, VB_SLAB_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    c->mr_out = c->mr_in ? t->fn->ibv_reg_mr(t->pd, c->slab + VB_SLAB_BYTES, VB_SLAB_BYTES, IBV_ACCESS_LOCAL_WRITE)
                         : NULL;
    return c->mr_out ? 0 : fails(c, "registering memory");
}

/* Slab (unless the connection has one), completion queue, queue pair, receive requests: the hello's, then those of
 * immediates. */
int bny_verbs_conn_prepare(struct vb_conn *c, int resumes)
{
    struct vb_tp *t = c->t;
    struct ibv_sge sge;
    struct ibv_recv_wr wr = { .wr_id = VB_WR_HELLO, .sg_list = &sge, .num_sge = 1 }, *bad;
    int rc;

    if (c->id->verbs != t->ctx)
        return bny_fail(BANYAN_ENOTSUP, "the way to it goes over another device than %s", t->device);
    rc = resumes ? 0 : make_slab(c);
    if (rc)
        return rc;
    c->notify = t->notify;
    c->page = calloc(1, sizeof *c->page);
    if (!c->page)
        return bny_fail(BANYAN_ENOMEM, "no memory for a connection");
    c->mr_page = t->fn->ibv_reg_mr(t->pd, c->page, sizeof *c->page, IBV_ACCESS_LOCAL_WRITE);
    if (!c->mr_page)
        return fails(c, "registering memory");
    c->cq = t->fn->ibv_create_cq(t->ctx, (int)(VB_SENDS + VB_RECVS + 2), c, t->channel, 0);
    if (!c->cq)
        return fails(c, "creating a completion queue");
    rc = make_qp(c);
    if (rc)
        return rc;
    sge = (struct ibv_sge){ .addr = (uintptr_t)bny_verbs_hello_in(c), .length = sizeof(struct vb_hello),
                            .lkey = c->mr_page->lkey };
    if (ibv_post_recv(c->id->qp, &wr, &bad) != 0 || bny_verbs_post_recvs(c, VB_RECVS) != 0)
        return fails(c, "posting receive requests");
    return 0;
}
