/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of one process over verbs; see verbs_ranks.h. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

int verbs_real_device(void)
{
    return getenv("BANYAN_TEST_IFNAMES") != NULL;
}

int verbs_iwarp(const struct tpset *s)
{
    return ((struct vb_tp *)s->tp[0])->rails[0].ctx->device->transport_type ==
           IBV_TRANSPORT_IWARP;
}

void verbs_joined(struct tpset *s, int n)
{
    tpset_open(s, bny_transport_find("verbs"), n, NULL);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            struct bny_hdr hdr = tpset_hdr(0, 1u << 20, 0);

            if (a == b)
                continue;
            tpset_eager(s, a, b, &hdr, NULL);
            s->ops->release(tpset_wait(s, b, BNY_EV_MSG).msg);
        }
}

void verbs_left(struct tpset *s)
{
    tpset_close(s);
    if (verbs_real_device())
        return;
    cr_assert_eq(verbs_sim.rnr, 0u, "%llu requests found no receive request",
                 (unsigned long long)verbs_sim.rnr);
    cr_assert_eq(verbs_sim.overflows, 0u, "a completion queue overflowed");
    cr_assert_eq(verbs_sim.open, 0, "%d objects leaked", verbs_sim.open);
}

struct vb_lane *verbs_conn(struct tpset *s, int from, int to)
{
    return ((struct vb_ep *)s->ep[from][to])->conn;
}

void verbs_expect_down(struct tpset *s, int rank, const char *part)
{
    struct bny_event ev = tpset_wait(s, rank, BNY_EV_DOWN);

    cr_assert(strstr(ev.reason, part), "\"%s\" lacks \"%s\"", ev.reason, part);
    for (int i = 0; i < 50; i++)
        tpset_step(s);
    cr_assert_eq(tpset_count(s, rank, BNY_EV_DOWN), 0, "told twice");
}

struct vb_lane *verbs_lane_conn(struct tpset *s, int from, int to, uint32_t lane)
{
    struct vb_ep *e = (struct vb_ep *)s->ep[from][to];

    return lane == 0                           ? e->conn
           : lane < VB_LANES && e->lanes[lane] ? e->lanes[lane]->conn
                                               : NULL;
}

void verbs_lanes_joined(struct tpset *s, uint32_t lanes)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    for (int a = 0; a < s->n; a++)
        for (int b = 0; b < s->n; b++)
            while (a != b && ((struct vb_ep *)s->ep[a][b])->lanes_open != (1u << lanes) - 2) {
                cr_assert(!bny_deadline_passed(deadline), "lanes %x from %d to %d",
                          ((struct vb_ep *)s->ep[a][b])->lanes_open, a, b);
                tpset_step(s);
            }
}

/* ---- time, which nobody waits for ---- */

static void pass(uint64_t *deadline_ns)
{
    *deadline_ns = *deadline_ns ? 1 : 0;
}

static void age(struct vb_ep *e, int all)
{
    pass(&e->again_ns);
    pass(&e->attempt_ns);
    pass(&e->leaving_ns);
    if (e->conn)
        pass(&e->conn->drain_ns);
    if (all)
        pass(&e->deadline_ns);
    for (uint32_t k = 1; k < e->nlanes; k++)
        if (e->lanes[k])
            age(e->lanes[k], all);
}

void verbs_travel(struct tpset *s, int all)
{
    for (int r = 0; r < s->n; r++) {
        struct vb_tp *t = (struct vb_tp *)s->tp[r];

        if (!t)
            continue;
        pass(&t->home_ns);
        if (all && s->paused[r])
            pass(&t->seen_ns);
        t->turns = UINT32_MAX;
        for (int p = 0; p < s->n; p++)
            if (t->eps[p])
                age(t->eps[p], all);
        for (struct vb_lane *c = t->half; c && all; c = c->next)
            pass(&c->deadline_ns);
    }
}

/* ---- a stream each way ---- */

enum { KINDS = 7, STREAM_BYTES = 600000 };

static int is_reserved(uint32_t seq)
{
    return seq % KINDS == 2 || seq % KINDS == 5;
}

static uint32_t stream_len(const struct tpset *s, uint32_t seq)
{
    static const uint32_t lens[KINDS] = {
        16, 4096, 60000, STREAM_BYTES, 20000, 200000, 333333
    };
    uint32_t len = lens[seq % KINDS], most = s->ep[0][1]->slot_max;

    return is_reserved(seq) && len > most ? most : len;
}

static int is_borrowed(uint32_t seq)
{
    return seq % KINDS == 3 || seq % KINDS == 4 || seq % KINDS == 6;
}

/* Where put seq goes: each has a place of its own, as a sender may be ahead of what its
 * receiver has looked at. */
static size_t place_of(uint32_t seq)
{
    return (size_t)(seq / KINDS * 2 + (seq % KINDS == 6)) * STREAM_BYTES;
}

/* Message seq of a stream from `a` to `b`, by another way each time. BNY_AGAIN: not now. */
static int send_one(struct tpset *s, int a, int b, uint32_t seq, uint8_t *buf,
                    const struct bny_window *win)
{
    struct bny_hdr hdr = tpset_hdr(0, seq, stream_len(s, seq));
    struct bny_slot slot;
    int rc;

    tpset_fill(buf, hdr.len, a, b, seq);
    switch (seq % KINDS) {
    case 0:
    case 1: return s->ops->eager(s->ep[a][b], &hdr, buf);
    case 2:
    case 5:
        rc = s->ops->reserve(s->ep[a][b], hdr.len, &slot);
        if (rc)
            return rc;
        memcpy(slot.mem, buf, hdr.len);
        return s->ops->commit(s->ep[a][b], &slot, &hdr);
    case 3: return s->ops->send(s->ep[a][b], &hdr, buf, buf);
    default:
        hdr.kind = BNY_MSG_PUT;
        return s->ops->put(s->ep[a][b], &hdr, buf, hdr.len, win, place_of(seq), buf);
    }
}

struct end { /* of the two streams */
    uint8_t *src, *dst;
    struct bny_window win;
    uint32_t sent, heard, free_again;
};

static void move(struct tpset *s, int r, struct end *mine, const struct end *peer,
                 uint32_t messages, uint8_t *got)
{
    struct bny_msg *msg;
    uint32_t seq;

    if (mine->sent < messages && mine->free_again) {
        int rc = send_one(s, r, !r, mine->sent, mine->src, &peer->win);

        cr_assert(rc == 0 || rc == BNY_AGAIN, "%d: %s", rc, banyan_last_error());
        mine->free_again = rc != 0 || !is_borrowed(mine->sent);
        mine->sent += rc == 0;
    }
    if (tpset_count(s, r, BNY_EV_SENT)) {
        tpset_wait(s, r, BNY_EV_SENT);
        mine->free_again++;
        cr_assert_eq(mine->free_again, 1u, "memory came back twice");
    }
    cr_assert_eq(tpset_count(s, r, BNY_EV_DOWN), 0);
    if (!tpset_count(s, r, BNY_EV_MSG))
        return;
    msg = tpset_wait(s, r, BNY_EV_MSG).msg;
    seq = msg->hdr.seq;
    cr_assert_eq(seq, mine->heard, "message %u instead of %u", seq, mine->heard);
    mine->heard++;
    if (msg->hdr.kind == BNY_MSG_DATA)
        tpset_read(s, msg, got, 100000, 0);
    cr_assert_eq(tpset_check(msg->hdr.kind == BNY_MSG_PUT ? mine->dst + place_of(seq) : got,
                             stream_len(s, seq), !r, r, seq),
                 -1, "message %u of %u bytes", seq, stream_len(s, seq));
    s->ops->release(msg);
}

void verbs_break_pair(struct tpset *s, int from, int to)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    struct vb_lane *c = verbs_conn(s, from, to);

    cr_assert_eq(c->t->fn->ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE), 0);
}

static int break_one(struct tpset *s, uint64_t *rng)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    int r = (int)bny_rng_below(rng, 2);
    uint32_t lanes = ((struct vb_ep *)s->ep[r][!r])->nlanes;
    struct vb_lane *c = verbs_lane_conn(s, r, !r, (uint32_t)bny_rng_below(rng, lanes));

    if (!c || !c->id)
        return 0;
    cr_assert_eq(c->t->fn->ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE), 0);
    return 1;
}

int verbs_stream(struct tpset *s, const struct verbs_stream *how)
{
    const uint32_t messages = verbs_real_device() ? 14 : 63;
    struct end end[2] = { { .free_again = 1 }, { .free_again = 1 } };
    uint8_t *got = malloc(STREAM_BYTES);
    uint64_t rng = how->seed ? how->seed : 77 + (uint64_t)how->breaks,
             deadline = bny_deadline_in(TPSET_DEADLINE_S);
    int broken = 0;

    for (int r = 0; r < 2; r++) {
        end[r].src = malloc(STREAM_BYTES);
        end[r].dst = malloc(place_of(messages + KINDS));
        cr_assert_eq(s->ops->attach(s->tp[r], end[r].src, STREAM_BYTES), 0);
        cr_assert_eq(s->ops->attach(s->tp[r], end[r].dst, place_of(messages + KINDS)), 0);
        cr_assert_eq(s->ops->window_open(s->ep[r][!r], end[r].dst, place_of(messages + KINDS),
                                         &end[r].win),
                     0);
    }
    while (end[0].heard < messages || end[1].heard < messages || !end[0].free_again ||
           !end[1].free_again) {
        cr_assert(!bny_deadline_passed(deadline), "%u and %u of %u, after %d breaks",
                  end[0].heard, end[1].heard, messages, broken);
        for (int r = 0; r < 2; r++)
            move(s, r, &end[r], &end[!r], messages, got);
        tpset_step(s);
        if (how->meddle)
            how->meddle(s, end[0].heard);
        if (broken < how->breaks && bny_rng_below(&rng, 12) == 0 && break_one(s, &rng)) {
            broken++;
            deadline = bny_deadline_in(TPSET_DEADLINE_S);
        }
    }
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(s->ops->window_close(s->ep[r][!r], &end[r].win), 0);
        cr_assert_eq(s->ops->detach(s->tp[r], end[r].src), 0);
        cr_assert_eq(s->ops->detach(s->tp[r], end[r].dst), 0);
        free(end[r].src);
        free(end[r].dst);
    }
    free(got);
    return broken;
}
