/* SPDX-License-Identifier: BSD-3-Clause */
/* Random traffic between all pairs over every transport: each message arrives exactly once and
 * intact, in order within its channel where the transport promises that, whatever way it was
 * sent and however long the receiver keeps it. Over loop with faults from several seeds.
 * BANYAN_TEST_SEED runs one seed of your own. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/tpset.h"

#define RANKS       4   /* at most */
#define MESSAGES    120 /* per ordered pair */
#define HELD_MAX    3
#define LONGEST(ep) (3 * (ep)->slot_max) /* of a send: several slots */

struct param {
    int index, ranks;
    uint64_t seed;
    double loss, duplicate, reorder;
    uint32_t delay, queue;
    char name[16];
};

struct reading { /* a message without data pointer that is being viewed */
    struct reading *next;
    struct bny_msg *msg;
    uint8_t *buf;
    uint32_t off;
};

struct flow {                /* one ordered pair */
    uint32_t next;           /* to be sent */
    uint8_t got[MESSAGES];   /* times received */
    uint8_t sent[MESSAGES];  /* 1: SENT is awaited */
    uint8_t *buf[MESSAGES];  /* borrowed memory */
    long last[BNY_CHANNELS]; /* newest number received on the channel */
    struct bny_msg *held[HELD_MAX];
    struct reading *reading[BNY_CHANNELS];
    uint8_t *bytes; /* the next message's, made once however often it is tried */
    uint32_t bytes_of, bytes_len;
    uint8_t *room; /* the next message is sent from its end */
};

struct traffic {
    struct tpset s;
    const struct param *p;
    uint64_t rng;
    uint32_t received, awaited;
    struct flow flow[RANKS][RANKS]; /* [from][to] */
};

static struct criterion_test_params traffic_params(void)
{
    static const struct param faults[] = {
        { .ranks = 2, .seed = 1 },
        { .ranks = 3, .seed = 2, .queue = 2 },
        { .ranks = 2, .seed = 3, .loss = 0.3 },
        { .ranks = 2, .seed = 4, .duplicate = 0.4, .delay = 5 },
        { .ranks = 3, .seed = 5, .reorder = 0.4, .delay = 3 },
        { .ranks = 3,
          .seed = 6,
          .loss = 0.1,
          .duplicate = 0.1,
          .reorder = 0.2,
          .delay = 9,
          .queue = 5 },
        { .ranks = 4,
          .seed = 7,
          .loss = 0.5,
          .duplicate = 0.5,
          .reorder = 0.5,
          .delay = 2,
          .queue = 1 },
    };
    static struct param params[64];
    size_t n = 0;

    const char *only = getenv("BANYAN_TEST_TRANSPORT");

    for (int i = 0; bny_transports[i]; i++)
        for (size_t k = 0; k < sizeof faults / sizeof faults[0] && n < 64; k++) {
            if (only && strcmp(only, bny_transports[i]->name) != 0)
                break;
            if (strcmp(bny_transports[i]->name, "loop") != 0 && k > 1)
                continue;
            params[n] = faults[k];
            params[n].index = i;
            strcpy(params[n++].name, bny_transports[i]->name);
        }
    return cr_make_param_array(struct param, params, n);
}

static uint32_t length_of(struct traffic *t, const struct bny_ep *ep, int how)
{
    uint32_t max = how == 0 ? ep->eager_max : how == 1 ? ep->slot_max : LONGEST(ep);
    uint64_t dice = bny_rng_below(&t->rng, 8);

    if (dice == 0)
        return 0;
    if (dice == 1 && how < 2)
        return max;
    return (uint32_t)bny_rng_below(&t->rng, dice < 5 && max > 2048 ? 2048 : (uint64_t)max + 1);
}

/* The first len bytes of the flow's next message, which do not depend on its length. */
static const uint8_t *bytes_of(struct flow *f, const struct bny_ep *ep, uint32_t len, int from,
                               int to)
{
    if (!f->bytes)
        f->bytes = malloc(LONGEST(ep));
    if (f->bytes_of != f->next || f->bytes_len < len) {
        tpset_fill(f->bytes, len, from, to, f->next);
        f->bytes_of = f->next;
        f->bytes_len = len;
    }
    return f->bytes;
}

/* len bytes, and nothing behind them. */
static uint8_t *room_for(struct flow *f, const struct bny_ep *ep, uint32_t len)
{
    if (!f->room)
        f->room = malloc(LONGEST(ep));
    return f->room + LONGEST(ep) - len;
}

/* Tries to send the flow's next message; numbers carry the length's and way's dice. */
static void try_send(struct traffic *t, int from, int to)
{
    struct flow *f = &t->flow[from][to];
    struct bny_ep *ep = t->s.ep[from][to];
    uint32_t seq = f->next;
    uint64_t saved = t->rng;
    int how = (int)bny_rng_below(&t->rng, 3), chan = (int)bny_rng_below(&t->rng, BNY_CHANNELS),
        rc;
    struct bny_hdr hdr = tpset_hdr(chan, seq, length_of(t, ep, how));
    uint8_t *buf;
    struct bny_slot slot;

    if (how == 1) {
        rc = t->s.ops->reserve(ep, hdr.len, &slot);
        if (rc == 0) {
            memcpy(slot.mem, bytes_of(f, ep, hdr.len, from, to), hdr.len);
            rc = t->s.ops->commit(ep, &slot, &hdr);
        }
    } else {
        buf = room_for(f, ep, hdr.len);
        memcpy(buf, bytes_of(f, ep, hdr.len, from, to), hdr.len);
        rc = how == 0 ? t->s.ops->eager(ep, &hdr, buf)
                      : t->s.ops->send(ep, &hdr, buf, &f->sent[seq]);
        if (how == 2 && rc == 0) {
            f->buf[seq] = f->room;
            f->sent[seq] = 1;
            t->awaited++;
        } else if (rc == 0) {
            free(f->room);
        }
        if (rc == 0)
            f->room = NULL;
    }
    cr_assert(rc == 0 || rc == BNY_AGAIN, "seed %llu: send: %s", (unsigned long long)t->p->seed,
              banyan_last_error());
    if (rc == 0)
        f->next++;
    else
        t->rng = saved ^ t->s.steps;
}

static void verify(struct traffic *t, struct flow *f, const struct bny_msg *msg,
                   const uint8_t *bytes, int from, int to)
{
    cr_assert_eq(tpset_check(bytes, msg->hdr.len, from, to, msg->hdr.seq), -1,
                 "seed %llu: message %u from %d to %d, %u bytes: wrong bytes",
                 (unsigned long long)t->p->seed, msg->hdr.seq, from, to, msg->hdr.len);
}

static int on_event(struct tpset *s, int rank, const struct bny_event *ev)
{
    struct traffic *t = (struct traffic *)s;
    int peer = ev->ep->peer;
    struct flow *f = &t->flow[peer][rank];
    const struct bny_hdr *h = ev->msg ? &ev->msg->hdr : NULL;

    if (ev->kind == BNY_EV_SENT) {
        uint8_t *mark = ev->cookie;
        size_t seq = (size_t)(mark - t->flow[rank][peer].sent);

        cr_assert(seq < MESSAGES && *mark == 1, "SENT twice or for nothing");
        *mark = 2;
        memset(t->flow[rank][peer].buf[seq], 0xdd, 1);
        free(t->flow[rank][peer].buf[seq]); /* ASan catches a late reader */
        t->awaited--;
        return 1;
    }
    cr_assert_eq(ev->kind, BNY_EV_MSG, "seed %llu: DOWN: %s", (unsigned long long)t->p->seed,
                 ev->reason);
    cr_assert(h->seq < MESSAGES && h->chan < BNY_CHANNELS);
    cr_assert_eq(f->got[h->seq]++, 0, "seed %llu: message %u twice",
                 (unsigned long long)t->p->seed, h->seq);
    t->received++;
    if (!(s->ops->caps & BNY_TP_UNORDERED)) {
        cr_assert_gt((long)h->seq, f->last[h->chan], "channel %u out of order", h->chan);
        f->last[h->chan] = h->seq;
    }
    if (!ev->msg->data && h->len) {
        struct reading *r = calloc(1, sizeof *r), **at = &f->reading[h->chan];

        r->msg = ev->msg;
        r->buf = malloc(h->len);
        while (*at)
            at = &(*at)->next;
        *at = r;
        return 1;
    }
    for (int i = 0; i < HELD_MAX; i++)
        if (!f->held[i] && bny_rng_below(&t->rng, 2)) {
            f->held[i] = ev->msg;
            return 1;
        }
    verify(t, f, ev->msg, ev->msg->data, peer, rank);
    s->ops->release(ev->msg);
    return 1;
}

/* One view of the oldest unread message of a channel. */
static void read_some(struct traffic *t, int from, int to, struct reading **head)
{
    struct reading *r = *head;
    uint32_t left, want;
    const void *ptr;
    int to_dst = (int)r->msg->hdr.seq & 1;
    long n;

    left = r->msg->hdr.len - r->off;
    want = (uint32_t)bny_rng_below(&t->rng, left) + 1;
    n = t->s.ops->view(r->msg, r->off, want, to_dst ? r->buf + r->off : NULL, &ptr);
    if (n == BNY_AGAIN)
        return;
    cr_assert(n > 0 && n <= (long)want && (n % 64 == 0 || n == (long)want), "view: %ld of %u",
              n, want);
    if (!to_dst)
        memcpy(r->buf + r->off, ptr, (size_t)n);
    r->off += (uint32_t)n;
    if (r->off < r->msg->hdr.len)
        return;
    verify(t, &t->flow[from][to], r->msg, r->buf, from, to);
    t->s.ops->release(r->msg);
    *head = r->next;
    free(r->buf);
    free(r);
}

static void receive_some(struct traffic *t, int from, int to)
{
    struct flow *f = &t->flow[from][to];

    for (int c = 0; c < BNY_CHANNELS; c++)
        if (f->reading[c])
            read_some(t, from, to, &f->reading[c]);
    for (int i = 0; i < HELD_MAX; i++)
        if (f->held[i] && bny_rng_below(&t->rng, 20) == 0) {
            verify(t, f, f->held[i], f->held[i]->data, from, to);
            t->s.ops->release(f->held[i]);
            f->held[i] = NULL;
        }
}

static int anything_held(const struct traffic *t)
{
    for (int a = 0; a < t->s.n; a++)
        for (int b = 0; b < t->s.n; b++) {
            for (int i = 0; i < HELD_MAX; i++)
                if (t->flow[a][b].held[i])
                    return 1;
            for (int c = 0; c < BNY_CHANNELS; c++)
                if (t->flow[a][b].reading[c])
                    return 1;
        }
    return 0;
}

ParameterizedTestParameters(conformance, traffic_arrives_exactly_once)
{
    return traffic_params();
}

ParameterizedTest(struct param *p, conformance, traffic_arrives_exactly_once, .timeout = 600)
{
    struct traffic *t = calloc(1, sizeof *t);
    const char *own_seed = getenv("BANYAN_TEST_SEED");
    struct bny_loop_faults faults = { p->seed,    p->loss,  p->duplicate,
                                      p->reorder, p->delay, p->queue };
    uint32_t expected = (uint32_t)(p->ranks * (p->ranks - 1) * MESSAGES);
    uint32_t arrived = 0;
    uint64_t deadline = 0;

    if (own_seed)
        faults.seed = p->seed = strtoull(own_seed, NULL, 0);
    tpset_open(&t->s, bny_transports[p->index], p->ranks, &faults);
    t->p = p;
    t->rng = p->seed;
    t->s.sink = on_event;
    for (int a = 0; a < p->ranks; a++)
        for (int b = 0; b < p->ranks; b++)
            for (int c = 0; c < BNY_CHANNELS; c++)
                t->flow[a][b].last[c] = -1;
    while (t->received < expected || t->awaited || anything_held(t)) {
        for (int a = 0; a < p->ranks; a++)
            for (int b = 0; b < p->ranks; b++) {
                if (a != b && t->flow[a][b].next < MESSAGES)
                    try_send(t, a, b);
                if (a != b)
                    receive_some(t, a, b);
            }
        tpset_step(&t->s);
        if (!deadline || t->received > arrived) /* it may be slow, but not stuck */
            deadline = bny_deadline_in(60);
        arrived = t->received;
        cr_assert(!bny_deadline_passed(deadline),
                  "%s seed %llu: %u of %u received, %u SENT missing", p->name,
                  (unsigned long long)p->seed, t->received, expected, t->awaited);
    }
    for (int i = 0; i < 300; i++) /* late duplicates would come now */
        tpset_step(&t->s);
    cr_assert_eq(t->received, expected);
    for (int a = 0; a < p->ranks; a++)
        for (int b = 0; b < p->ranks; b++)
            free(t->flow[a][b].bytes), free(t->flow[a][b].room);
    tpset_close(&t->s);
    free(t);
}
