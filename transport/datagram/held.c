/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that a card may still read. Frames refer to it, and a driver returns them late: most
 * only when they get more frames, some hundreds later. Waiting for that before an owner gets
 * its buffer back would delay every operation, so:
 *
 *   - Data given to the driver once, and acknowledged, has been read: its message is done. A
 *     separate struct dp_held keeps the driver's count.
 *   - Of data given to it twice, or never acknowledged (the peer is gone), a frame may yet be
 *     read. The message waits until the driver has returned all. A slow driver is nudged, with
 *     frames to ourselves that are dropped, and in the end its port is stopped and started.
 *   - Memory is freed, or withdrawn from the card, only when no frame refers to it, whatever
 *     was acknowledged. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/err.h"
#include "base/log.h"
#include "transport/datagram/dgram.h"

#define NUDGE_NS    100000u /* time that a driver may take, and between two nudges */
#define STUCK_NS    1000000000u
#define NUDGE_BYTES 60u
#define ROUNDS      2000 /* of waiting for memory; each is a burst and 0.5 ms */
#define ROUND_NS    500000

static struct dp_held *held_take(struct dp_tp *t)
{
    struct dp_held *h = t->free_held;
    struct dp_held_block *b;

    if (h) {
        t->free_held = h->next;
        return h;
    }
    b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->next = t->held_blocks;
    t->held_blocks = b;
    for (size_t i = 1; i < sizeof b->of / sizeof b->of[0]; i++) {
        b->of[i].next = t->free_held;
        t->free_held = &b->of[i];
    }
    return &b->of[0];
}

static void held_give(struct dp_tp *t, struct dp_held *h)
{
    h->next = t->free_held;
    t->free_held = h;
}

/* Bounded by the ports' rings and the messages in flight. Without memory for one, the message
 * is copied. */
struct dp_held *bny_dgram_hold(struct dp_ep *e, const void *buf, uint32_t len)
{
    struct dp_tp *t = dp_tp_of(e);
    struct dp_held *h = held_take(t);

    if (!h)
        return NULL;
    h->e = e;
    h->out = NULL;
    h->buf = buf;
    h->len = len;
    t->drv->ref_init(&h->ref);
    return h;
}

void bny_dgram_let_go(struct dp_ep *e, struct dp_out *o, int read)
{
    struct dp_tp *t = dp_tp_of(e);
    struct dp_held *h = o->held;

    o->held = NULL;
    if (h && t->drv->ref_busy(&h->ref)) {
        h->since_ns = t->now;
        h->next = t->held;
        t->held = h;
        if (!read) {
            h->out = o;
            e->ending++;
            return;
        }
    } else if (h) {
        held_give(t, h);
    }
    bny_dgram_out_done(e, o);
}

void bny_dgram_detach_out(struct dp_ep *e, struct dp_out *o)
{
    struct dp_tp *t = dp_tp_of(e);
    struct dp_held *h = o->held;

    o->held = NULL;
    o->lo = o->hi = 0;
    if (h && t->drv->ref_busy(&h->ref)) {
        h->since_ns = t->now;
        h->next = t->held;
        t->held = h;
    } else if (h) {
        held_give(t, h);
    }
}

/* Processes returned frames. Returns the start time of the oldest message that waits for more,
 * or 0. */
static uint64_t held_collect(struct dp_tp *t, struct dp_ep **whose)
{
    uint64_t oldest = 0;

    for (struct dp_held **p = &t->held; *p;) {
        struct dp_held *h = *p;

        if (t->drv->ref_busy(&h->ref)) {
            if (h->out && (!oldest || h->since_ns < oldest)) {
                oldest = h->since_ns;
                *whose = h->e;
            }
            p = &h->next;
            continue;
        }
        *p = h->next;
        if (h->out) {
            BNY_ASSERT(h->e->ending > 0);
            h->e->ending--;
            bny_dgram_out_done(h->e, h->out);
        }
        held_give(t, h);
    }
    return oldest;
}

/* Frames from us to us, of a type for local experiments (IEEE Std 802): a switch does not
 * return them to their source, and we drop them. */
static void nudge(struct dp_tp *t, struct bny_dgram_port *port)
{
    uint8_t frame[NUDGE_BYTES] = { 0 };
    struct bny_dgram_tx tx[BNY_DGRAM_BURST];

    memcpy(frame, t->blob.mac, 6);
    memcpy(frame + 6, t->blob.mac, 6);
    frame[12] = 0x88;
    frame[13] = 0xb5;
    for (int i = 0; i < BNY_DGRAM_BURST; i++)
        tx[i] = (struct bny_dgram_tx){ .head = frame, .head_len = sizeof frame };
    t->drv->tx(port, tx, BNY_DGRAM_BURST);
    t->drv->reclaim(port);
}

static void flush(struct dp_tp *t, struct bny_dgram_port *port)
{
    bny_warn("rank %d: the driver of %s does not give back what it was to send: its port is "
             "stopped and started",
             t->tp.rank, t->set.device);
    t->drv->flush(port);
}

void bny_dgram_held_run(struct dp_tp *t)
{
    struct dp_ep *e = NULL;
    uint64_t oldest;

    if (!t->held)
        return;
    oldest = held_collect(t, &e);
    if (!oldest || t->now - oldest < NUDGE_NS || t->now - t->nudged_ns < NUDGE_NS)
        return;
    t->nudged_ns = t->now;
    if (t->now - oldest >= STUCK_NS && t->now - t->flushed_ns >= STUCK_NS) {
        t->flushed_ns = t->now;
        flush(t, e->port);
    } else {
        nudge(t, e->port);
    }
    held_collect(t, &e);
}

static struct dp_held *pointing_to(const struct dp_tp *t, const void *at, size_t bytes)
{
    const uint8_t *from = at;

    for (struct dp_held *h = t->held; h; h = h->next)
        if (h->buf < from + bytes && from < h->buf + h->len)
            return h;
    return NULL;
}

int bny_dgram_held_settle(struct dp_tp *t, const void *at, size_t bytes)
{
    const struct timespec pause = { .tv_nsec = ROUND_NS };
    struct dp_held *h;
    struct dp_ep *e;

    for (int i = 0; i < ROUNDS; i++) {
        held_collect(t, &e);
        h = pointing_to(t, at, bytes);
        if (!h)
            return 0;
        nudge(t, h->e->port);
        if (i >= 8) /* a driver that needs more frames has had them; the card takes its time */
            nanosleep(&pause, NULL);
    }
    flush(t, h->e->port);
    held_collect(t, &e);
    return pointing_to(t, at, bytes) ? -1 : 0;
}

/* A frame that a driver keeps even after its port is closed stays counted in its block. */
void bny_dgram_held_free(struct dp_tp *t)
{
    struct dp_ep *e;

    held_collect(t, &e);
    if (t->held) {
        bny_warn("rank %d: the driver of %s keeps frames of a port that is closed", t->tp.rank,
                 t->set.device);
        return;
    }
    while (t->held_blocks) {
        struct dp_held_block *b = t->held_blocks;

        t->held_blocks = b->next;
        free(b);
    }
}
