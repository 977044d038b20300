/* SPDX-License-Identifier: BSD-3-Clause */
#include "collectives/writeback/turn.h"

#include "base/err.h"

int bny_turn_start(struct bny_op *op, struct bny_turn *t, enum bny_area which,
                   struct bny_pass_peer *peers)
{
    struct bny_writeback *w = bny_area_get(op->comm, which);
    struct bny_pass *p = &t->pass;

    if (!w)
        return -BANYAN_ENOMEM;
    t->area = w;
    t->counted = 0;
    t->has_areas = t->has_place = t->failed = 0;
    p->n = w->n;
    p->rank = w->rank;
    p->shape = &w->shape;
    p->touches = w->tp->touches != 0;
    p->peers = peers;
    p->redop = op->call.redop;
    p->dtype = op->call.dtype;
    p->esz = op->esz;
    p->seq = bny_op_seq(op);
    p->sig = op->sig;
    p->history = bny_area_history(w, op);
    p->ctx = op;
    bny_link_in(&w->queue, &t->link);
    return 0;
}

int bny_turn_meet(struct bny_op *op, struct bny_turn *t)
{
    int rank = 0, rc = t->has_areas ? 1 : bny_area_meet(t->area, op, &rank);

    if (rc < 0) {
        t->failed = 1;
        bny_op_send_failed(op, rank, rc, "");
    }
    return rc == 1;
}

int bny_turn_take_place(struct bny_op *op, struct bny_turn *t)
{
    if (t->failed || !bny_turn_meet(op, t))
        return 0;
    for (int i = 0; i < t->area->n && !t->has_areas; i++)
        t->pass.peers[i].area = t->area->peers[i].area;
    t->has_areas = 1;
    t->has_place = (uint8_t)bny_area_claim(t->area, &t->link, bny_op_seq(op), &t->pass.slice);
    return t->has_place;
}

void bny_turn_leave(const struct bny_op *op, struct bny_turn *t)
{
    bny_link_out(&t->link);
    if (t->has_place)
        bny_area_release(t->area, bny_op_seq(op), t->pass.slice, bny_pass_is_read_on(&t->pass));
    t->has_place = 0;
}

int bny_turn_go(struct bny_op *op, struct bny_turn *t, int *moved)
{
    int has_moved = t->has_place ? bny_pass_go(&t->pass) : 0,
        is_done = t->has_place && bny_pass_is_done(&t->pass);

    if (is_done)
        bny_turn_leave(op, t); /* before others wake, who may wait for that */
    if (t->pass.told)
        bny_area_told(t->area, op, &t->pass, &t->counted);
    if (!has_moved && t->has_place && !t->failed)
        t->failed = (uint8_t)bny_area_differ(t->area, op, t->pass.peers);
    *moved |= has_moved | is_done;
    return is_done;
}

int bny_turn_waits_on(const struct bny_turn *t, int r)
{
    for (int i = 0; i < t->area->n; i++) {
        const struct bny_area_peer *peer = &t->area->peers[i];

        if (t->area->ranks[i] != r || i == t->area->rank)
            continue;
        if (!t->has_areas)
            return !peer->area || !peer->said;
        return !t->has_place || bny_pass_lacks(&t->pass, i);
    }
    return 0;
}
