/* SPDX-License-Identifier: BSD-3-Clause */
/* Two ranks' counts of each other: numbers of messages by tag, epochs, credit (match.h). */
#include "collectives/match/table.h"

#include <stdlib.h>
#include <string.h>

#define EPOCH_TAGS 256u   /* from so many on, tags are forgotten where that costs no wait */
#define CROWD_TAGS 16384u /* from so many on, sends wait until it can be done */
#define TAGS_MIN   64u
#define TAGS_KEPT  1024u /* a larger table is given back with its epoch */
#define EPOCH_MASK 0x7fffu
/* Received and not told of: then by a message of its own. */
#define CREDIT_TELL (BNY_CREDIT / 4)
#define HELD_FULL   (BNY_CREDIT / 2) /* the sender may be out of credit before long */
#define UNIT_BYTES  1024u
#define UNITS_MAX   17u /* of a message: the longest eager one's */

static uint32_t units_of(uint64_t bytes)
{
    uint64_t units = 1 + bytes / UNIT_BYTES;

    return units > UNITS_MAX ? UNITS_MAX : (uint32_t)units;
}

/* ---- tags ---- */

static uint32_t flow_place(const struct bny_tags *t, uint32_t tag)
{
    uint32_t h = tag * 0x9e3779b1u;

    return (h ^ h >> 16) & (t->cap - 1);
}

static struct bny_tag_count *find_tag(const struct bny_tags *t, uint32_t tag)
{
    uint32_t at = flow_place(t, tag);

    while (t->at[at].count && t->at[at].tag != tag)
        at = (at + 1) & (t->cap - 1);
    return &t->at[at];
}

uint32_t bny_tags_get(const struct bny_tags *t, uint32_t tag)
{
    return t->cap ? find_tag(t, tag)->count : 0;
}

static int tags_grow(struct bny_tags *t)
{
    struct bny_tags more = { .cap = t->cap ? 2 * t->cap : TAGS_MIN, .used = t->used };

    more.at = calloc(more.cap, sizeof *more.at);
    if (!more.at)
        return bny_fail(BANYAN_ENOMEM, "no memory for %u tags", more.cap);
    for (uint32_t i = 0; i < t->cap; i++)
        if (t->at[i].count)
            *find_tag(&more, t->at[i].tag) = t->at[i];
    free(t->at);
    *t = more;
    return 0;
}

/* The next number with this tag; or -BANYAN_ENOMEM. */
static int tags_count(struct bny_tags *t, uint32_t tag, uint32_t *number)
{
    struct bny_tag_count *c;

    if (2 * (t->used + 1) > t->cap && tags_grow(t) != 0)
        return -BANYAN_ENOMEM;
    c = find_tag(t, tag);
    t->used += !c->count;
    c->tag = tag;
    *number = c->count++;
    return 0;
}

static void tags_forget(struct bny_tags *t)
{
    t->used = 0;
    if (t->cap <= TAGS_KEPT) {
        if (t->at)
            memset(t->at, 0, t->cap * sizeof *t->at);
        return;
    }
    free(t->at);
    *t = (struct bny_tags){ 0 };
}

/* ---- flows ---- */

struct bny_flow *bny_flow_of(const struct bny_match *m, int peer)
{
    return m->flows ? m->flows[peer] : NULL;
}

static struct bny_flow *flow_get(struct bny_match *m, int peer)
{
    if (!m->flows)
        m->flows = calloc((size_t)m->n, sizeof(struct bny_flow *));
    if (m->flows && !m->flows[peer])
        m->flows[peer] = calloc(1, sizeof **m->flows);
    if (!m->flows || !m->flows[peer])
        bny_fail(BANYAN_ENOMEM, "no memory for messages with rank %d", peer);
    return m->flows ? m->flows[peer] : NULL;
}

void bny_flows_free(struct bny_match *m)
{
    for (int r = 0; m->flows && r < m->n; r++)
        if (m->flows[r]) {
            free(m->flows[r]->tx.tags.at);
            free(m->flows[r]->rx.tags.at);
            free(m->flows[r]);
        }
    free(m->flows);
    m->flows = NULL;
}

static void change(struct bny_match *m, struct bny_receiver *rc, enum bny_change what)
{
    bny_link_in(&m->news.changed, &rc->changes);
    if (rc->changed != BNY_CHANGE_NUMBER) /* which the others come with */
        rc->changed = (uint8_t)what;
}

/* Numbers the open receivers of a side of a flow that no message was exchanged for anew, in
 * their order: all before them are finished at both ends, so both find the same numbers. */
static void renumber(struct bny_match *m, int peer, enum bny_side side, struct bny_tags *tags,
                     uint16_t epoch)
{
    struct bny_receiver *moved = NULL, *rc;

    for (uint32_t b = 0; b <= m->mask; b++)
        for (struct bny_receiver **at = &m->receivers[b]; (rc = *at);) {
            struct bny_receiver **to;

            if (rc->side != side || rc->peer != peer || rc->is_sent) {
                at = &rc->next;
                continue;
            }
            *at = rc->next;
            m->nreceivers--;
            rc->is_open = 0;
            for (to = &moved; *to && (int32_t)((*to)->seq - rc->seq) < 0; to = &(*to)->next)
                ;
            rc->next = *to;
            *to = rc;
        }
    while ((rc = moved)) {
        moved = rc->next;
        rc->epoch = epoch;
        if (tags_count(tags, rc->tag, &rc->seq) != 0)
            rc->seq = UINT32_MAX; /* no memory: it gets nothing, and its deadline says so */
        bny_match_insert(m, rc);
        change(m, rc, BNY_CHANGE_NUMBER);
    }
}

static void receiver_epoch(struct bny_match *m, int peer, struct bny_flow *f, uint16_t epoch)
{
    tags_forget(&f->rx.tags);
    f->rx.epoch = epoch;
    f->rx.announce_all = 0;
    bny_match_drop_stale(m, peer, BNY_SIDE_RECEIVES, epoch);
    renumber(m, peer, BNY_SIDE_RECEIVES, &f->rx.tags, epoch);
}

/* Are so many remembered that to forget them pays? All sends that wait are looked at then. */
static int has_many_tags(const struct bny_flow *f, uint32_t many)
{
    return f->tx.tags.used >= many && f->tx.tags.used >= 2 * f->tx.carried;
}

/* All that was sent has been received. */
static void sender_epoch(struct bny_match *m, int peer, struct bny_flow *f)
{
    BNY_ASSERT(f->tx.sent == f->tx.acked);
    tags_forget(&f->tx.tags);
    f->tx.epoch = (f->tx.epoch + 1) & EPOCH_MASK;
    f->tx.crowded = 0;
    m->news.nsay -= f->tx.say_ask == 1;
    f->tx.say_ask = 0;
    bny_match_drop_stale(m, peer, BNY_SIDE_SENDS, f->tx.epoch);
    renumber(m, peer, BNY_SIDE_SENDS, &f->tx.tags, f->tx.epoch);
    f->tx.carried = f->tx.tags.used;
    if (peer == m->rank) {
        receiver_epoch(m, peer, f, f->tx.epoch);
        return;
    }
    m->news.nsay += !f->tx.say_epoch;
    f->tx.say_epoch = 1;
}

/* ---- receivers ---- */

int bny_match_open_p2p(struct bny_match *m, struct bny_receiver *rc, int peer, uint32_t tag,
                       int is_send, size_t bytes)
{
    struct bny_flow *f = flow_get(m, peer);
    struct bny_receiver key = { .peer = peer, .tag = tag, .units = units_of(bytes) };

    if (!f)
        return -BANYAN_ENOMEM;
    key.side = is_send ? BNY_SIDE_SENDS : BNY_SIDE_RECEIVES;
    if (is_send && has_many_tags(f, EPOCH_TAGS) && f->tx.sent == f->tx.acked)
        sender_epoch(m, peer, f);
    if (is_send && has_many_tags(f, CROWD_TAGS))
        f->tx.crowded = 1;
    if (tags_count(is_send ? &f->tx.tags : &f->rx.tags, tag, &key.seq) != 0)
        return -BANYAN_ENOMEM;
    key.epoch = is_send ? f->tx.epoch : f->rx.epoch;
    key.announce = !is_send && (f->rx.announce_all || f->rx.held >= HELD_FULL);
    *rc = key;
    bny_match_insert(m, rc);
    return 0;
}

/* So much more of a peer's is here, and it may send as much again. */
static void received(struct bny_match *m, int peer, struct bny_flow *f, uint32_t units)
{
    f->rx.received += units;
    if (peer == m->rank) {
        f->tx.acked = f->rx.received;
    } else if (f->rx.received - f->rx.told >= CREDIT_TELL && !f->rx.say_credit) {
        f->rx.say_credit = 1;
        m->news.nsay++;
    }
}

void bny_match_close(struct bny_match *m, struct bny_receiver *rc, int is_here)
{

    if (!rc->is_open)
        return;
    bny_match_remove(m, rc);
    bny_link_out(&rc->changes);
    bny_link_out(&rc->waits);
    rc->changed = 0;
    if (rc->side == BNY_SIDE_RECEIVES && is_here)
        received(m, rc->peer, m->flows[rc->peer], rc->units);
}

int bny_match_has_credit(struct bny_match *m, struct bny_receiver *rc)
{
    struct bny_flow *f = m->flows[rc->peer];

    if (rc->is_sent || rc->peer == m->rank)
        return 1;
    if (!f->tx.crowded && f->tx.sent + rc->units - f->tx.acked <= BNY_CREDIT)
        return 1;
    if (f->tx.crowded && f->tx.sent == f->tx.acked) {
        sender_epoch(m, rc->peer, f); /* and this one is told of its number */
    } else {
        bny_link_in(&f->tx.waiting, &rc->waits);
        m->news.nsay += f->tx.crowded && !f->tx.say_ask;
        if (f->tx.crowded && !f->tx.say_ask)
            f->tx.say_ask = 1;
    }
    return 0;
}

void bny_match_stamp(struct bny_match *m, const struct bny_receiver *rc, struct bny_hdr *hdr)
{
    hdr->step = (uint16_t)(rc->epoch << 1 | (rc->side == BNY_SIDE_SENDS));
    hdr->started = m->flows[rc->peer]->rx.received;
}

void bny_match_stamped(struct bny_match *m, struct bny_receiver *rc, const struct bny_hdr *hdr)
{
    struct bny_flow *f = m->flows[rc->peer];

    f->rx.told = hdr->started;
    if (rc->side == BNY_SIDE_SENDS && !rc->is_sent && hdr->kind != BNY_MSG_PROBE) {
        rc->is_sent = 1;
        bny_link_out(&rc->waits);
        f->tx.sent += rc->units;
    }
}

/* ---- messages ---- */

/* As many of the sends that wait as the credit is for; crowded: one, which begins an epoch. */
static void wake_sends(struct bny_match *m, struct bny_flow *f)
{
    uint32_t out = f->tx.sent - f->tx.acked, units;

    if (f->tx.crowded ? out != 0 : out >= BNY_CREDIT) /* CTS lets sends go without credit */
        return;
    units = BNY_CREDIT - out;
    while (!bny_ring_is_empty(&f->tx.waiting)) {
        struct bny_receiver *rc = BNY_LINK_OF(f->tx.waiting.next, struct bny_receiver, waits);

        if (!f->tx.crowded && rc->units > units)
            return;
        bny_link_out(&rc->waits);
        change(m, rc, BNY_CHANGE_CREDIT);
        if (f->tx.crowded)
            return;
        units -= rc->units;
    }
}

static void announce_receives(struct bny_match *m, int peer)
{
    for (uint32_t b = 0; b <= m->mask; b++)
        for (struct bny_receiver *rc = m->receivers[b]; rc; rc = rc->next)
            if (rc->side == BNY_SIDE_RECEIVES && rc->peer == peer && !rc->announce) {
                rc->announce = 1;
                change(m, rc, BNY_CHANGE_ANNOUNCE);
            }
}

/* The peer has received so much of ours, it says. */
static void take_credit(struct bny_match *m, struct bny_flow *f, uint32_t received)
{
    uint32_t more = received - f->tx.acked;

    if (more == 0 || more > f->tx.sent - f->tx.acked)
        return;
    f->tx.acked = received;
    wake_sends(m, f);
}

/* To the sender: what receives say, and receivers' questions. */
static int is_from_sender(const struct bny_hdr *hdr)
{
    return hdr->step & 1;
}

enum bny_verdict bny_flow_key(struct bny_match *m, int from, const struct bny_hdr *hdr,
                              struct bny_receiver *key)
{
    struct bny_flow *f = flow_get(m, from);
    uint16_t epoch = hdr->step >> 1, ahead;

    if (!f)
        return BNY_MATCH_EARLY;
    if (from != m->rank)
        take_credit(m, f, hdr->started);
    ahead = (epoch - f->rx.epoch) & EPOCH_MASK;
    if (is_from_sender(hdr) && ahead && ahead <= EPOCH_MASK / 2) /* those between were empty */
        receiver_epoch(m, from, f, epoch);
    if (hdr->kind == BNY_MSG_CREDIT) {
        if (hdr->chunk && is_from_sender(hdr)) { /* it asks */
            f->rx.announce_all = 1;
            announce_receives(m, from);
            m->news.nsay += !f->rx.say_credit;
            f->rx.say_credit = 1;
        }
        return BNY_MATCH_CONTROL;
    }
    *key = (struct bny_receiver){ .seq = hdr->seq,
                                  .peer = from,
                                  .tag = hdr->sig.root_tag,
                                  .epoch = epoch,
                                  .side = is_from_sender(hdr) ? BNY_SIDE_RECEIVES
                                                              : BNY_SIDE_SENDS };
    return epoch == (is_from_sender(hdr) ? f->rx.epoch : f->tx.epoch) ? BNY_MATCH_FOUND
                                                                      : BNY_MATCH_STALE;
}

int bny_flow_is_past(const struct bny_match *m, const struct bny_receiver *key)
{
    const struct bny_flow *f = bny_flow_of(m, key->peer);
    const struct bny_tags *t = key->side == BNY_SIDE_SENDS ? &f->tx.tags : &f->rx.tags;

    return (int32_t)(key->seq - bny_tags_get(t, key->tag)) < 0;
}

int bny_flow_held(struct bny_match *m, const struct bny_receiver *key,
                  const struct bny_hdr *hdr, int by)
{
    struct bny_flow *f;
    uint32_t units;

    if (key->side != BNY_SIDE_RECEIVES || key->peer == m->rank || hdr->kind == BNY_MSG_PROBE ||
        hdr->chunk != 0)
        return 0;
    f = m->flows[key->peer];
    units = units_of(hdr->len > hdr->codec_len_raw ? hdr->len : hdr->codec_len_raw);
    if (by < 0) {
        f->rx.held -= units;
        return 0;
    }
    if (f->rx.held + units > BNY_CREDIT)
        return bny_fail(BANYAN_EPROTO, "rank %d sent more than it has credit for", key->peer);
    f->rx.held += units;
    if (f->rx.held >= HELD_FULL && f->rx.held - units < HELD_FULL)
        announce_receives(m, key->peer);
    return 0;
}

/* ---- without a receiver ---- */

/* Where the next number with this tag is counted, if that takes no memory. */
static struct bny_tag_count *count_of(const struct bny_tags *t, uint32_t tag)
{
    return 2 * (t->used + 1) > t->cap ? NULL : find_tag(t, tag);
}

static void count_one(struct bny_tags *t, uint32_t tag)
{
    struct bny_tag_count *c = find_tag(t, tag);

    t->used += !c->count;
    c->tag = tag;
    c->count++;
}

int bny_match_next_send(struct bny_match *m, int peer, const struct bny_sig *sig, size_t bytes,
                        struct bny_hdr *hdr)
{
    const struct bny_flow *f = bny_flow_of(m, peer);
    const struct bny_tag_count *c = f ? count_of(&f->tx.tags, sig->root_tag) : NULL;

    if (!c || f->tx.crowded || !bny_ring_is_empty(&f->tx.waiting) ||
        has_many_tags(f, EPOCH_TAGS) || f->tx.sent + units_of(bytes) - f->tx.acked > BNY_CREDIT)
        return 0;
    hdr->seq = c->count;
    hdr->step = (uint16_t)(f->tx.epoch << 1 | 1);
    hdr->started = f->rx.received;
    return 1;
}

void bny_match_sent(struct bny_match *m, int peer, size_t bytes, const struct bny_hdr *hdr)
{
    struct bny_flow *f = m->flows[peer];

    count_one(&f->tx.tags, hdr->sig.root_tag);
    f->tx.sent += units_of(bytes);
    f->rx.told = hdr->started;
}

int bny_match_expect(struct bny_match *m, struct bny_expected *x)
{
    const struct bny_flow *f = bny_flow_of(m, x->peer);
    const struct bny_tag_count *c = f ? count_of(&f->rx.tags, x->sig->root_tag) : NULL;

    if (!c || f->rx.announce_all || f->rx.held >= HELD_FULL)
        return 0;
    for (const struct bny_expected *o = m->news.expected; o; o = o->next)
        if (o->peer == x->peer)
            return 0;
    x->seq = c->count;
    x->step = (uint16_t)(f->rx.epoch << 1 | 1);
    x->units = units_of(x->len);
    x->got = 0;
    x->next = m->news.expected;
    m->news.expected = x;
    return 1;
}

void bny_match_give_up_expected(struct bny_match *m)
{
    m->news.expected = NULL;
}

struct bny_expected *bny_match_is_expected(const struct bny_match *m, int from,
                                           const struct bny_hdr *hdr)
{
    struct bny_expected *x = m->news.expected;

    while (x && x->peer != from)
        x = x->next;
    if (!x || x->got || hdr->seq != x->seq || hdr->step != x->step ||
        hdr->kind != BNY_MSG_DATA || hdr->chunk || hdr->len != x->len ||
        memcmp(&hdr->sig, x->sig, sizeof hdr->sig) != 0)
        return NULL;
    return x->step >> 1 == m->flows[from]->rx.epoch ? x : NULL;
}

void bny_match_met(struct bny_match *m, struct bny_expected *x, const struct bny_hdr *hdr)
{
    struct bny_flow *f = m->flows[x->peer];

    take_credit(m, f, hdr->started);
    count_one(&f->rx.tags, x->sig->root_tag);
    received(m, x->peer, f, x->units);
    x->got = 1;
}

/* ---- what others must do ---- */

struct bny_receiver *bny_match_changed(struct bny_match *m, enum bny_change *what)
{
    struct bny_receiver *rc;

    if (bny_ring_is_empty(&m->news.changed))
        return NULL;
    rc = BNY_LINK_OF(m->news.changed.next, struct bny_receiver, changes);
    bny_link_out(&rc->changes);
    *what = (enum bny_change)rc->changed;
    rc->changed = 0;
    return rc;
}

int bny_match_to_say(struct bny_match *m, int *peer, struct bny_hdr *hdr)
{
    for (int r = *peer; m->news.nsay && r < m->n; r++) {
        const struct bny_flow *f = m->flows[r];

        if (!f || (!f->tx.say_epoch && f->tx.say_ask != 1 && !f->rx.say_credit))
            continue;
        memset(hdr, 0, sizeof *hdr);
        hdr->kind = BNY_MSG_CREDIT;
        hdr->sig.collective = BNY_SENDRECV;
        hdr->started = f->rx.received;
        if (f->tx.say_epoch || f->tx.say_ask == 1) {
            hdr->step = (uint16_t)(f->tx.epoch << 1 | 1);
            hdr->chunk = !f->tx.say_epoch;
        }
        *peer = r;
        return 1;
    }
    return 0;
}

void bny_match_said(struct bny_match *m, int peer, const struct bny_hdr *hdr)
{
    struct bny_flow *f = m->flows[peer];

    f->rx.told = hdr->started;
    if (f->rx.say_credit)
        m->news.nsay--;
    f->rx.say_credit = 0;
    if ((hdr->step & 1) && !hdr->chunk && f->tx.say_epoch) {
        f->tx.say_epoch = 0;
        m->news.nsay--;
    }
    if ((hdr->step & 1) && hdr->chunk && f->tx.say_ask == 1) {
        f->tx.say_ask = 2; /* asked */
        m->news.nsay--;
    }
}
