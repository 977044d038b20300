/* SPDX-License-Identifier: BSD-3-Clause */
/* Seeded faults between messages and the driver: loss, duplication, reordering, corruption and
 * a rate, for links that have none (memif, ring). BANYAN_DPDK; off by default, at no
 * cost. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "transport/datagram/dgram.h"

#define HELD_MAX  256u
#define LATE_MOST 8u       /* packets that overtake a delayed one */
#define LATE_NS   200000u  /* or this time */
#define QUEUE_NS  3000000u /* of the rate's queue; then it drops */

struct late {
    struct dp_ep *e;
    uint8_t *bytes;
    uint32_t len;
    uint32_t after;  /* packets that must still pass it */
    uint64_t due_ns; /* at the latest; with a rate: at the earliest */
};

struct dp_faults {
    struct dp_fault f;
    uint64_t rng, free_ns; /* free_ns: when the wire is free */
    uint32_t n;
    struct late late[HELD_MAX]; /* in order of departure if there is a rate */
};

struct fate { /* of one packet, by copy */
    int copies, corrupt[2], late[2];
};

struct dp_faults *bny_dgram_faults_new(const struct dp_fault *f, uint64_t salt)
{
    struct dp_faults *s = calloc(1, sizeof *s);

    if (s) {
        s->f = *f;
        s->rng = f->seed * 0x9e3779b97f4a7c15u + salt;
    }
    return s;
}

void bny_dgram_faults_free(struct dp_faults *s)
{
    for (uint32_t i = 0; s && i < s->n; i++)
        free(s->late[i].bytes);
    free(s);
}

/* Sends due frames, of the endpoint of the first of them, in one burst. Returns their number;
 * -1: the port is full. */
static int release_some(struct dp_tp *t)
{
    struct dp_faults *s = t->faults;
    struct bny_dgram_tx tx[BNY_DGRAM_BURST];
    struct dp_ep *e = NULL;
    int n = 0, sent;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < s->n && n < BNY_DGRAM_BURST; i++) {
        const struct late *l = &s->late[i];

        if ((t->now < l->due_ns && (s->f.rate > 0 || l->after)) || (e && l->e != e))
            continue;
        e = l->e;
        tx[n++] = (struct bny_dgram_tx){ .head = l->bytes, .head_len = l->len };
    }
    if (n == 0)
        return 0;
    sent = e->down ? n : t->drv->tx(e->port, tx, n);
    for (uint32_t i = 0, k = 0; i < s->n; i++) {
        if (k < (uint32_t)sent && s->late[i].bytes == tx[k].head) {
            free(s->late[i].bytes);
            k++;
        } else {
            s->late[kept++] = s->late[i];
        }
    }
    s->n = kept;
    return sent == n ? sent : -1;
}

void bny_dgram_faults_flush(struct dp_tp *t)
{
    while (t->faults->n && release_some(t) > 0)
        ;
}

static void hold(struct dp_tp *t, struct dp_ep *e, uint8_t *bytes, uint32_t len, uint32_t after,
                 uint64_t due)
{
    struct dp_faults *s = t->faults;

    if (s->n == HELD_MAX) {
        free(bytes);
        return;
    }
    s->late[s->n++] = (struct late){ e, bytes, len, after, due };
}

static void overtaken_by(struct dp_faults *s, uint32_t n)
{
    for (uint32_t i = 0; i < s->n; i++)
        s->late[i].after -= s->late[i].after < n ? s->late[i].after : n;
}

/* A copy to send later. Takes bytes; passed: packets that have overtaken it. */
static void detain(struct dp_tp *t, struct dp_ep *e, uint8_t *bytes, uint32_t len, int late,
                   uint32_t passed)
{
    struct dp_faults *s = t->faults;
    uint32_t after = late ? 1 + (uint32_t)bny_rng_below(&s->rng, LATE_MOST) : 0;
    uint64_t start = s->free_ns > t->now ? s->free_ns : t->now;

    if (s->f.rate <= 0) {
        hold(t, e, bytes, len, after > passed ? after - passed : 0, t->now + LATE_NS);
        return;
    }
    if (start - t->now > QUEUE_NS) {
        free(bytes);
        return;
    }
    s->free_ns = start + (uint64_t)(len / s->f.rate * 1e9);
    hold(t, e, bytes, len, 0, s->free_ns);
}

static int dice(struct dp_faults *s, double p)
{
    return p > 0 && bny_rng_unit(&s->rng) < p;
}

static void decide(struct dp_faults *s, struct fate *f)
{
    f->copies = 1 + dice(s, s->f.duplicate);
    if (dice(s, s->f.loss))
        f->copies = 0;
    for (int k = 0; k < f->copies; k++) {
        f->corrupt[k] = dice(s, s->f.corrupt);
        f->late[k] = dice(s, s->f.reorder);
    }
}

static int at_once(const struct dp_faults *s, const struct fate *f, int k)
{
    return s->f.rate <= 0 && !f->corrupt[k] && !f->late[k];
}

/* Makes the copies to send later. */
static void suffer(struct dp_tp *t, struct dp_ep *e, const struct bny_dgram_tx *tx,
                   const struct fate *f, uint32_t passed)
{
    uint32_t len = tx->head_len + tx->body_len;

    for (int k = 0; k < f->copies; k++) {
        uint8_t *bytes;

        if (at_once(t->faults, f, k))
            continue;
        bytes = malloc(len);
        if (!bytes)
            return; /* counts as a lost packet */
        memcpy(bytes, tx->head, tx->head_len);
        if (tx->body_len)
            memcpy(bytes + tx->head_len, tx->body, tx->body_len);
        if (f->corrupt[k])
            bytes[bny_rng_below(&t->faults->rng, len)] ^=
                (uint8_t)(1u << bny_rng_below(&t->faults->rng, 8));
        detain(t, e, bytes, len, f->late[k], passed);
    }
}

/* Immediate frames, duplicates included, go in bursts, as without faults: so a measurement
 * shows the faults, not this file. */
int bny_dgram_transmit(struct dp_tp *t, struct dp_ep *e, const struct bny_dgram_tx *tx, int n)
{
    struct fate fate[BNY_DGRAM_BURST] = { { .copies = 0 } };
    struct bny_dgram_tx out[2 * BNY_DGRAM_BURST];
    int of[2 * BNY_DGRAM_BURST + 1], m = 0, sent = 0, got, done;

    if (!t->faults)
        return t->drv->tx(e->port, tx, n);
    for (int i = 0; i < n; i++) {
        decide(t->faults, &fate[i]);
        for (int k = 0; k < fate[i].copies; k++)
            if (at_once(t->faults, &fate[i], k)) {
                of[m] = i;
                out[m++] = tx[i];
            }
    }
    of[m] = n;
    do {
        got = m > sent ? t->drv->tx(e->port, out + sent,
                                    m - sent < BNY_DGRAM_BURST ? m - sent : BNY_DGRAM_BURST)
                       : 0;
        sent += got;
    } while (got > 0 && sent < m);
    done = of[sent] +
           (sent > 0 && of[sent - 1] == of[sent]); /* a duplicate without room is lost */
    overtaken_by(t->faults, (uint32_t)sent);
    for (int i = 0, passed = sent; i < done; i++) {
        while (passed > 0 && of[sent - passed] <= i)
            passed--;
        suffer(t, e, &tx[i], &fate[i], (uint32_t)passed);
    }
    bny_dgram_faults_flush(t);
    return done;
}
