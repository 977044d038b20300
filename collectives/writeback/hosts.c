/* SPDX-License-Identifier: BSD-3-Clause */
/* Sums of several hosts, with as many ranks on each, in three parts:
 *   first   a pass (pass.h) of this host's ranks: each adds its part of the vector
 *   rails   an operation of the engine between ranks of the same place on each host: a stage,
 *           under a number that was kept for it, in which other ranks have no step
 *   last    a pass of this host's ranks: each gives its part to the others
 * What is left of the vector behind the parts, a few elements, is a sum of all ranks beside
 * them (rest).
 *
 * The passes have areas of their own, one for the first and one for the last: places in an area
 * are given in the order in which operations start, and the last part of one operation comes
 * after the first part of the next. Both passes take their turn when the operation begins. */
#include <stdlib.h>
#include <string.h>

#include "collectives/op/child.h"
#include "collectives/writeback/writeback_choice.h"
#include "collectives/writeback/turn.h"
#include "collectives/writeback/writeback.h"

enum part { FIRST, RAILS, LAST, OVER };
/* Begun in this order: their numbers follow the operation's. */
enum stage { REST, RAIL, STAGES };

struct hosts { /* the way's state of an operation */
    struct bny_child stage[STAGES];
    enum part part;
    struct bny_turn first, last; /* the passes */
    size_t count;                /* elements of a part */
    uint8_t failed;
    char *tile;
    size_t tile_cap;
    struct bny_pass_peer peers[]; /* of both passes */
};

static struct hosts *hosts_of(const struct bny_op *op)
{
    return op->of_way[BNY_WAY_HOSTS];
}

static int hosts_init(struct bny_op *op)
{
    struct hosts *s = hosts_of(op);
    size_t near = (size_t)op->comm->scope.near;

    if (!s)
        s = op->of_way[BNY_WAY_HOSTS] = calloc(1, sizeof *s + 2 * near * sizeof s->peers[0]);
    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
    op->numbers = STAGES;
    s->count = bny_hosts_part(&op->comm->scope, &op->call);
    return bny_grow(&s->tile, &s->tile_cap, BNY_PASS_TILE, 1, "a tile of a sum");
}

static void hosts_free(struct bny_op *op)
{
    struct hosts *s = hosts_of(op);

    for (int i = 0; i < STAGES; i++)
        bny_child_free(&s->stage[i], op);
    free(s->tile);
    free(s);
    op->of_way[BNY_WAY_HOSTS] = NULL;
}

/* ---- beginning ---- */

/* Only a peer that lies lends anything. */
static int borrow(void *ctx, int r, size_t at, size_t len, const char **src, char **dst)
{
    return -1;
}

static void hosts_give_back(void *ctx, int r)
{
}

static int store(void *ctx, int r, size_t at, const char *src, size_t len)
{
    return -1;
}

static char *hosts_part_of(const struct bny_op *op, int place)
{
    return op->out + hosts_of(op)->count * op->esz * (size_t)place;
}

static int start_pass(struct bny_op *op, struct bny_turn *t, enum bny_area which,
                      struct bny_pass_peer *peers)
{
    struct bny_pass *p = &t->pass;
    int rc = bny_turn_start(op, t, which, peers);

    if (rc)
        return rc;
    p->adds = which == BNY_AREA_HOST_FIRST;
    p->same = !p->adds;
    p->root = -1;
    p->kind = p->adds || p->n == 2 ? BNY_PASS_EXCHANGE : BNY_PASS_BLOCKS;
    p->in = p->adds ? op->in : hosts_part_of(op, p->rank);
    p->out = p->adds ? hosts_part_of(op, p->rank) : op->out;
    p->count = hosts_of(op)->count;
    p->tile = hosts_of(op)->tile;
    p->lends = BNY_PASS_KEEPS;
    p->borrow = borrow;
    p->give_back = hosts_give_back;
    p->store = store;
    bny_pass_cut(p, op->plan.chunk_bytes);
    return 0;
}

static int hosts_start(struct bny_op *op)
{
    struct hosts *s = hosts_of(op);
    int rc = start_pass(op, &s->first, BNY_AREA_HOST_FIRST, s->peers);

    if (rc)
        return rc;
    rc = start_pass(op, &s->last, BNY_AREA_HOST_LAST, s->peers + op->comm->scope.near);
    if (rc)
        bny_turn_leave(op, &s->first);
    s->part = FIRST;
    s->failed = 0;
    s->stage[REST].runs = s->stage[RAIL].runs = 0;
    return rc;
}

/* ---- stages ---- */

static int start_stage(struct bny_op *op, enum stage i, const char *in, char *out, size_t count,
                       const char *schedule)
{
    struct hosts *s = hosts_of(op);
    struct bny_call call;
    int rc;

    memset(&call, 0, sizeof call);
    call.collective = BNY_ALLREDUCE;
    call.dtype = op->call.dtype;
    call.redop = op->call.redop;
    call.sendbuf = in;
    call.recvbuf = out;
    call.count = count;
    call.root = -1;
    call.tag = op->call.tag;
    call.chunk_bytes = op->call.chunk_bytes;
    bny_call_set_schedule(&call, schedule);
    rc = bny_child_init(&s->stage[i], op, &call);
    if (rc)
        return rc;
    s->stage[i].op.sig = op->sig; /* what differs is told as the program called it */
    s->stage[i].op.sig.codec_sched ^= s->stage[i].op.plan.hash;
    return bny_child_start(&s->stage[i], op, 1 + (uint32_t)i);
}

static int start_rail(struct bny_op *op)
{
    char *part = hosts_part_of(op, hosts_of(op)->first.area->rank), schedule[BNY_NAME_MAX];

    bny_hosts_rails(&op->comm->scope, &op->call, schedule);
    return start_stage(op, RAIL, part, part, hosts_of(op)->count, schedule);
}

static int start_rest(struct bny_op *op)
{
    struct hosts *s = hosts_of(op);
    size_t at = s->count * (size_t)s->first.pass.n;

    if (at == op->call.count || s->stage[REST].runs)
        return 0;
    return start_stage(op, REST, op->in + at * op->esz, op->out + at * op->esz,
                       op->call.count - at, "static");
}

/* ---- passes ---- */

/* 1: it is done, 0: not yet; *moved. */
static int go(struct bny_op *op, struct bny_turn *t, int *moved)
{
    if (!t->has_place && bny_turn_take_place(op, t))
        bny_pass_begin(&t->pass);
    return bny_turn_go(op, t, moved);
}

/* ---- going on ---- */

static void hosts_fail(struct bny_op *op, int rc)
{
    hosts_of(op)->failed = 1;
    if (!bny_comm_has_failed(op->comm))
        bny_report(op->comm->world, op->comm, BNY_CAUSE_RESET, (enum banyan_error) - rc,
                   op->comm->world->rank, "rank %d: %s", op->comm->rank, bny_why(rc));
}

static int has_failed(const struct hosts *s)
{
    return s->failed || s->first.failed || s->last.failed;
}

static int hosts_advance(struct bny_op *op)
{
    struct hosts *s = hosts_of(op);
    int moved = 0, rc = 0;

    if (has_failed(s) || bny_comm_has_failed(op->comm))
        return 0;
    bny_turn_meet(op, &s->last); /* areas are told before any part: a peer may be far ahead */
    if (s->part == FIRST && !has_failed(s)) {
        rc = start_rest(op);
        if (rc == 0 && go(op, &s->first, &moved)) {
            s->part = RAILS;
            rc = start_rail(op);
        }
    }
    if (rc == 0 && s->part == RAILS && !bny_child_is_busy(&s->stage[RAIL]) &&
        s->stage[RAIL].op.result == 0) {
        s->part = LAST;
        moved = 1;
    }
    if (rc == 0 && s->part == LAST && !has_failed(s) && go(op, &s->last, &moved))
        s->part = OVER;
    if (rc)
        hosts_fail(op, rc);
    if (s->part == OVER && !bny_child_is_busy(&s->stage[REST]) &&
        (!s->stage[REST].runs || s->stage[REST].op.result == 0)) {
        bny_op_complete(op, 0);
        return 1;
    }
    if (!has_failed(s) && (s->part == FIRST || s->part == LAST))
        bny_op_mark_runnable(op);
    return moved;
}

static void hosts_drop(struct bny_op *op, int result)
{
    struct hosts *s = hosts_of(op);

    bny_turn_leave(op, &s->first);
    bny_turn_leave(op, &s->last);
}

/* After a failure a stage may still be closing: it completes us when it has. */
static int close_stages(struct bny_op *op)
{
    return bny_child_is_busy(&hosts_of(op)->stage[RAIL]) ||
                   bny_child_is_busy(&hosts_of(op)->stage[REST])
               ? BNY_AGAIN
               : 0;
}

static unsigned hosts_pending(const struct bny_op *op, int r)
{
    const struct hosts *s = hosts_of(op);

    for (int i = 0; i < STAGES; i++)
        if (bny_child_is_busy(&s->stage[i]) && bny_op_waits_on(&s->stage[i].op, r))
            return BNY_PENDING_WAITS;
    return (s->part == FIRST && bny_turn_waits_on(&s->first, r)) ||
                   (s->part == LAST && bny_turn_waits_on(&s->last, r))
               ? BNY_PENDING_WAITS
               : 0;
}

const struct bny_way bny_way_hosts = {
    .traits = BNY_WAY_POLLED,
    .cannot = bny_hosts_cannot,
    .seconds = bny_hosts_seconds,
    .plan = bny_writeback_plan,
    .init = hosts_init,
    .start = hosts_start,
    .advance = hosts_advance,
    .message = bny_area_message,
    .drop = hosts_drop,
    .close = close_stages,
    .pending = hosts_pending,
    .free = hosts_free,
};
