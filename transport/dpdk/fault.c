/* SPDX-License-Identifier: BSD-3-Clause */
/* Faults on purpose, by a seed, between messages and the driver: loss, doubling, reordering, corruption and a rate, for
 * links that have none of their own (memif, ring). BANYAN_DPDK_FAULT; off by default, at no cost. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "transport/dpdk/dpdk.h"

#define HELD_MAX   256u
#define LATE_MOST  8u      /* packets that overtake one that is held back */
#define LATE_NS    200000u /* or time */
#define QUEUE_NS   3000000u /* of the rate's queue; then it drops */

struct late {
    struct dp_ep *e;
    uint8_t *bytes;
    uint32_t len;
    uint32_t after;  /* packets still to pass */
    uint64_t due_ns; /* at latest; with a rate: at earliest */
};

struct dp_faults {
    struct dp_fault f;
    uint64_t rng, free_ns; /* free_ns: when the wire is free */
    uint32_t n;
    struct late late[HELD_MAX]; /* in order of departure where there is a rate */
};

struct fate { /* of one packet, by copy */
    int copies, corrupt[2], late[2];
};

struct dp_faults *bny_dpdk_faults_new(const struct dp_fault *f, uint64_t salt)
{
    struct dp_faults *s = calloc(1, sizeof *s);

    if (s) {
        s->f = *f;
        s->rng = f->seed * 0x9e3779b97f4a7c15u + salt;
    }
    return s;
}

void bny_dpdk_faults_free(struct dp_faults *s)
{
    for (uint32_t i = 0; s && i < s->n; i++)
        free(s->late[i].bytes);
    free(s);
}

static int emit(struct dp_tp *t, struct dp_ep *e, const uint8_t *bytes, uint32_t len)
{
    struct bny_dpdk_tx tx = { .head = bytes, .head_len = len };

    return t->drv->tx(e->port, &tx, 1);
}

static void drop(struct dp_faults *s, uint32_t i)
{
    free(s->late[i].bytes);
    s->n--;
    memmove(&s->late[i], &s->late[i + 1], (s->n - i) * sizeof s->late[0]);
}

void bny_dpdk_faults_flush(struct dp_tp *t)
{
    struct dp_faults *s = t->faults;

    for (uint32_t i = 0; i < s->n;) {
        struct late *l = &s->late[i];

        if (t->now < l->due_ns && (s->f.rate > 0 || l->after)) {
            i++;
            continue;
        }
        if (!l->e->down && emit(t, l->e, l->bytes, l->len) != 1)
            return; /* full: later */
        drop(s, i);
    }
}

static void hold(struct dp_tp *t, struct dp_ep *e, uint8_t *bytes, uint32_t len, uint32_t after, uint64_t due)
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

/* Takes bytes. */
static void pass(struct dp_tp *t, struct dp_ep *e, uint8_t *bytes, uint32_t len, int corrupt, int late)
{
    struct dp_faults *s = t->faults;

    if (corrupt)
        bytes[bny_rng_below(&s->rng, len)] ^= (uint8_t)(1u << bny_rng_below(&s->rng, 8));
    if (s->f.rate > 0) {
        uint64_t start = s->free_ns > t->now ? s->free_ns : t->now;

        if (start - t->now > QUEUE_NS) {
            free(bytes);
            return;
        }
        s->free_ns = start + (uint64_t)(len / s->f.rate * 1e9);
        hold(t, e, bytes, len, 0, s->free_ns);
    } else if (late) {
        hold(t, e, bytes, len, 1 + (uint32_t)bny_rng_below(&s->rng, LATE_MOST), t->now + LATE_NS);
    } else {
        emit(t, e, bytes, len);
        free(bytes);
        overtaken_by(s, 1);
    }
}

static int dice(struct dp_faults *s, double p)
{
    return p > 0 && bny_rng_unit(&s->rng) < p;
}

/* 1: the packet goes as it is. */
static int decide(struct dp_faults *s, struct fate *f)
{
    f->copies = 1 + dice(s, s->f.duplicate);
    if (dice(s, s->f.loss))
        f->copies = 0;
    for (int k = 0; k < f->copies; k++) {
        f->corrupt[k] = dice(s, s->f.corrupt);
        f->late[k] = dice(s, s->f.reorder);
    }
    return s->f.rate <= 0 && f->copies == 1 && !f->corrupt[0] && !f->late[0];
}

static void suffer(struct dp_tp *t, struct dp_ep *e, const struct bny_dpdk_tx *tx, const struct fate *f)
{
    uint32_t len = tx->head_len + tx->body_len;

    for (int k = 0; k < f->copies; k++) {
        uint8_t *bytes = malloc(len);

        if (!bytes)
            return; /* one more way to lose a packet */
        memcpy(bytes, tx->head, tx->head_len);
        if (tx->body_len)
            memcpy(bytes + tx->head_len, tx->body, tx->body_len);
        pass(t, e, bytes, len, f->corrupt[k], f->late[k]);
    }
}

/* What goes as it is goes in bursts, as without faults: measurements are of the faults, not of this file. */
int bny_dpdk_transmit(struct dp_tp *t, struct dp_ep *e, const struct bny_dpdk_tx *tx, int n)
{
    struct fate fate = { .copies = 0 };
    int done = 0;

    if (!t->faults)
        return t->drv->tx(e->port, tx, n);
    for (int i = 0; i <= n; i++) {
        int sent;

        if (i < n && decide(t->faults, &fate))
            continue;
        sent = i > done ? t->drv->tx(e->port, tx + done, i - done) : 0;
        overtaken_by(t->faults, (uint32_t)sent);
        done += sent;
        if (done < i || i == n)
            break;
        suffer(t, e, &tx[i], &fate);
        done++;
    }
    bny_dpdk_faults_flush(t);
    return done;
}
