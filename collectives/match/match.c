/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of receivers and of messages that have none yet. */
#include "collectives/match/table.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUCKETS_MIN 64u
#define IDLE_MAX    64u
/* Made at once: how many are needed varies with how far peers run ahead. */
#define IDLE_FIRST 16u

/* ---- life ---- */

static void make_idle(struct bny_match *m)
{
    for (; m->nidle < IDLE_FIRST; m->nidle++) {
        struct bny_unexpected *u = malloc(sizeof *u);
        if (!u)
            return;
        u->next = m->idle;
        m->idle = u;
    }
}

struct bny_match *bny_match_create(struct bny_buffer_pool *pool, int n, int rank)
{
    struct bny_match *m = calloc(1, sizeof *m);

    if (!m)
        return NULL;
    m->pool = pool;
    m->n = n;
    m->rank = rank;
    m->mask = BUCKETS_MIN - 1;
    m->receivers = calloc(BUCKETS_MIN, sizeof(struct bny_receiver *));
    m->unexpected = calloc(BUCKETS_MIN, sizeof(struct bny_unexpected *));
    if (m->receivers && m->unexpected) {
        make_idle(m);
        return m;
    }
    free(m->receivers);
    free(m->unexpected);
    free(m);
    return NULL;
}

static void unexpected_free(struct bny_match *m, struct bny_unexpected *u)
{
    m->news.nunexpected--;
    if (m->nidle == IDLE_MAX) {
        free(u);
        return;
    }
    u->next = m->idle;
    m->idle = u;
    m->nidle++;
}

static uint64_t cost_of(const struct bny_msg *msg)
{
    return BNY_KEPT_COST + (msg->descriptor ? 0 : msg->hdr.len);
}

/* Of this host, in bytes. */
static uint64_t host_memory(void)
{
    static _Atomic uint64_t known;
    uint64_t bytes = atomic_load_explicit(&known, memory_order_relaxed);

    if (!bytes) {
        long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

        bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
        atomic_store_explicit(&known, bytes, memory_order_relaxed);
    }
    return bytes;
}

/* Takes msg. */
static int keep_in(struct bny_buffer_pool *pool, struct bny_msg_list *list, struct bny_msg *msg)
{
    uint64_t kept = msg->ep ? msg->ep->kept + cost_of(msg) : 0, most;

    if (kept > BNY_KEPT_LEAST && /* which no host and job goes below */
        kept > (most = bny_kept_max(host_memory(), msg->ep->tp ? msg->ep->tp->nranks : 1))) {
        int peer = msg->ep->peer;
        bny_msg_release(pool, msg);
        return bny_fail(BANYAN_EPROTO,
                        "rank %d of the job is too far ahead: %llu MiB of its messages wait "
                        "for operations that this rank has not begun; let the ranks meet now "
                        "and then, for example by banyan_barrier",
                        peer, (unsigned long long)(most >> 20));
    }
    msg = bny_msg_hold(pool, msg);
    if (!msg)
        return bny_fail(BANYAN_ENOMEM, "no memory for a message that came early");
    if (msg->ep)
        msg->ep->kept += cost_of(msg);
    bny_msg_list_push_back(list, msg);
    return 0;
}

static void uncount(const struct bny_msg *msg)
{
    if (msg->ep)
        msg->ep->kept -= cost_of(msg);
}

/* Releases the messages that wait in an entry, which ends. */
static struct bny_msg_list match_take_out(struct bny_match *m, struct bny_unexpected **at)
{
    struct bny_unexpected *u = *at;
    struct bny_msg_list all = u->msgs;

    for (const struct bny_msg *x = all.first; x; x = x->next) {
        if (u->key.side == BNY_SIDE_RECEIVES)
            bny_flow_held(m, &u->key, &x->hdr, -1);
        uncount(x);
    }
    *at = u->next;
    unexpected_free(m, u);
    return all;
}

static void match_drop(struct bny_match *m, struct bny_unexpected **at)
{
    struct bny_msg_list all = match_take_out(m, at);

    bny_msg_list_release(m->pool, &all);
}

void bny_match_forget(struct bny_match *m)
{
    for (uint32_t b = 0; b <= m->mask; b++)
        while (m->unexpected[b])
            match_drop(m, &m->unexpected[b]);
}

static void kept_free(struct bny_kept_numbers *k)
{
    while (k) {
        struct bny_kept_numbers *next = k->next;
        free(k);
        k = next;
    }
}

void bny_match_destroy(struct bny_match *m)
{
    if (!m)
        return;
    bny_match_forget(m);
    while (m->idle) {
        struct bny_unexpected *u = m->idle;
        m->idle = u->next;
        free(u);
    }
    kept_free(m->kept);
    kept_free(m->spare);
    bny_flows_free(m);
    free(m->receivers);
    free(m->unexpected);
    free(m);
}

/* ---- the table ---- */

/* Twice the buckets; without memory chains grow longer. */
static void match_grow(struct bny_match *m)
{
    uint32_t old = m->mask + 1;
    struct bny_receiver **receivers = calloc(2 * (size_t)old, sizeof *receivers), *rc;
    struct bny_unexpected **unexpected = calloc(2 * (size_t)old, sizeof *unexpected), *u;

    if (!receivers || !unexpected) {
        free(receivers);
        free(unexpected);
        return;
    }
    m->mask = 2 * old - 1;
    for (uint32_t b = 0; b < old; b++) {
        while ((rc = m->receivers[b])) {
            uint32_t to = bny_match_bucket(m, rc);
            m->receivers[b] = rc->next;
            rc->next = receivers[to];
            receivers[to] = rc;
        }
        while ((u = m->unexpected[b])) {
            uint32_t to = bny_match_bucket(m, &u->key);
            m->unexpected[b] = u->next;
            u->next = unexpected[to];
            unexpected[to] = u;
        }
    }
    free(m->receivers);
    free(m->unexpected);
    m->receivers = receivers;
    m->unexpected = unexpected;
}

void bny_match_insert(struct bny_match *m, struct bny_receiver *rc)
{
    uint32_t b;

    BNY_ASSERT(!rc->is_open);
    if (m->nreceivers + m->news.nunexpected > 2 * m->mask)
        match_grow(m);
    b = bny_match_bucket(m, rc);
    rc->next = m->receivers[b];
    rc->is_open = 1;
    m->receivers[b] = rc;
    m->nreceivers++;
}

void bny_match_remove(struct bny_match *m, struct bny_receiver *rc)
{
    struct bny_receiver **at;

    BNY_ASSERT(rc->is_open);
    rc->is_open = 0;
    if (m->news.latest == rc) {
        m->news.latest = NULL;
        return;
    }
    at = &m->receivers[bny_match_bucket(m, rc)];
    while (*at != rc)
        at = &(*at)->next;
    *at = rc->next;
    m->nreceivers--;
}

static struct bny_unexpected **find_unexpected(struct bny_match *m,
                                               const struct bny_receiver *key)
{
    struct bny_unexpected **at = &m->unexpected[bny_match_bucket(m, key)];

    while (*at && !bny_match_same(&(*at)->key, key))
        at = &(*at)->next;
    return at;
}

/* ---- collectives ---- */

/* The latest is in the table only once another one is opened beside it: most are over before.
 */
static void open_all(struct bny_match *m, struct bny_receiver *rc, const struct bny_sig *sig,
                     uint32_t seq)
{
    BNY_ASSERT(rc != m->news.latest);
    if (m->news.latest) {
        m->news.latest->is_open = 0;
        bny_match_insert(m, m->news.latest);
    }
    rc->seq = seq; /* what is of messages between two ranks is not looked at */
    rc->peer = -1;
    rc->side = BNY_SIDE_ALL;
    rc->announce = rc->changed = 0;
    rc->is_open = 1;
    rc->waits = rc->changes = (struct bny_link){ 0 };
    if (m->news.next_seq - seq - 1 < BNY_PAST_SIGS) /* else the place is a later one's */
        m->news.past[seq % BNY_PAST_SIGS] = *sig;
    m->news.latest = rc;
}

int bny_match_open(struct bny_match *m, struct bny_receiver *rc, const struct bny_sig *sig,
                   uint32_t more)
{
    uint32_t seq = m->news.next_seq;

    if (more) {
        struct bny_kept_numbers *k = m->spare ? m->spare : calloc(1, sizeof *k);
        if (!k)
            return bny_fail(BANYAN_ENOMEM, "no memory for an operation");
        m->spare = k->next;
        *k = (struct bny_kept_numbers){ .next = m->kept, .seq = seq + 1, .n = more };
        m->kept = k;
    }
    m->news.next_seq += 1 + more;
    open_all(m, rc, sig, seq);
    return 0;
}

/* A number, and all before it of the same operation, are not to begin any more. */
static void give_up_kept(struct bny_match *m, uint32_t seq)
{
    for (struct bny_kept_numbers **at = &m->kept, *k; (k = *at); at = &k->next) {
        uint32_t upto = seq + 1 - k->seq;

        if (upto == 0 || upto > k->n)
            continue;
        k->seq += upto;
        k->n -= upto;
        if (!k->n) {
            *at = k->next;
            k->next = m->spare;
            m->spare = k;
        }
        return;
    }
}

static int is_kept(const struct bny_match *m, uint32_t seq)
{
    for (const struct bny_kept_numbers *k = m->kept; k; k = k->next)
        if (seq - k->seq < k->n)
            return 1;
    return 0;
}

void bny_match_open_kept(struct bny_match *m, struct bny_receiver *rc,
                         const struct bny_sig *sig, uint32_t seq)
{
    give_up_kept(m, seq);
    open_all(m, rc, sig, seq);
}

void bny_match_give_up(struct bny_match *m, uint32_t seq, uint32_t n)
{
    if (n)
        give_up_kept(m, seq + n - 1);
}

const struct bny_sig *bny_match_past(const struct bny_match *m, uint32_t seq)
{
    return m->news.next_seq - seq - 1 < BNY_PAST_SIGS ? &m->news.past[seq % BNY_PAST_SIGS]
                                                      : NULL;
}

/* ---- messages ---- */

static int is_p2p(const struct bny_hdr *hdr)
{
    return hdr->sig.collective == BNY_SENDRECV;
}

static enum bny_verdict match_key_of(struct bny_match *m, int from, const struct bny_hdr *hdr,
                                     struct bny_receiver *key)
{
    if (is_p2p(hdr))
        return bny_flow_key(m, from, hdr, key);
    *key = (struct bny_receiver){ .seq = hdr->seq, .peer = -1, .side = BNY_SIDE_ALL };
    return BNY_MATCH_FOUND;
}

static int is_past(const struct bny_match *m, const struct bny_receiver *key)
{
    if (key->side != BNY_SIDE_ALL)
        return bny_flow_is_past(m, key);
    return (int32_t)(key->seq - m->news.next_seq) < 0 && !is_kept(m, key->seq);
}

enum bny_verdict bny_match_find(struct bny_match *m, int from, const struct bny_hdr *hdr,
                                struct bny_receiver **out)
{
    struct bny_receiver key;
    enum bny_verdict v = match_key_of(m, from, hdr, &key);

    if (v != BNY_MATCH_FOUND)
        return v;
    *out = m->news.latest;
    if (*out && bny_match_same(*out, &key))
        return BNY_MATCH_FOUND;
    for (*out = m->receivers[bny_match_bucket(m, &key)]; *out; *out = (*out)->next)
        if (bny_match_same(*out, &key))
            return BNY_MATCH_FOUND;
    return is_past(m, &key) ? BNY_MATCH_PAST : BNY_MATCH_EARLY;
}

/* A rank that waits for us asks again and again: one such message is enough. */
static int has_probe(const struct bny_unexpected *u, const struct bny_msg *msg)
{
    for (const struct bny_msg *x = u->msgs.first; x; x = x->next)
        if (x->hdr.kind == BNY_MSG_PROBE && x->ep == msg->ep && x->hdr.step == msg->hdr.step &&
            !memcmp(&x->hdr.sig, &msg->hdr.sig, sizeof x->hdr.sig))
            return 1;
    return 0;
}

static struct bny_unexpected *unexpected_new(struct bny_match *m,
                                             const struct bny_receiver *key)
{
    struct bny_unexpected *u = m->idle;
    uint32_t b;

    if (u) {
        m->idle = u->next;
        m->nidle--;
    } else {
        u = malloc(sizeof *u);
    }
    if (!u)
        return NULL;
    if (m->nreceivers + m->news.nunexpected > 2 * m->mask)
        match_grow(m);
    b = bny_match_bucket(m, key);
    *u = (struct bny_unexpected){ .key = *key, .next = m->unexpected[b] };
    m->unexpected[b] = u;
    m->news.nunexpected++;
    return u;
}

int bny_match_keep(struct bny_match *m, int from, struct bny_msg *msg)
{
    struct bny_receiver key;
    struct bny_unexpected *u;
    enum bny_verdict v = match_key_of(m, from, &msg->hdr, &key);

    if (v != BNY_MATCH_FOUND) {
        bny_msg_release(m->pool, msg);
        return v == BNY_MATCH_EARLY ? -BANYAN_ENOMEM : 0;
    }
    u = *find_unexpected(m, &key);
    if (u && msg->hdr.kind == BNY_MSG_PROBE && has_probe(u, msg)) {
        bny_msg_release(m->pool, msg);
        return 0;
    }
    if (bny_flow_held(m, &key, &msg->hdr, 1) != 0) {
        bny_msg_release(m->pool, msg);
        return -BANYAN_EPROTO;
    }
    u = u ? u : unexpected_new(m, &key);
    if (u)
        return keep_in(m->pool, &u->msgs, msg);
    bny_msg_release(m->pool, msg);
    return bny_fail(BANYAN_ENOMEM, "no memory for a message that came early");
}

struct bny_msg_list bny_match_take(struct bny_match *m, struct bny_receiver *rc)
{
    struct bny_unexpected **at = m->news.nunexpected ? find_unexpected(m, rc) : NULL;

    return at && *at ? match_take_out(m, at) : (struct bny_msg_list){ 0 };
}

void bny_match_drop_stale(struct bny_match *m, int peer, enum bny_side side, uint16_t epoch)
{
    for (uint32_t b = 0; m->news.nunexpected && b <= m->mask; b++)
        for (struct bny_unexpected **at = &m->unexpected[b], *u; (u = *at);)
            if (u->key.side != side || u->key.peer != peer || u->key.epoch == epoch)
                at = &u->next;
            else
                match_drop(m, at);
}

const struct bny_msg *bny_match_next(struct bny_match *m, int peer, uint32_t tag)
{
    struct bny_receiver key = { .peer = peer, .tag = tag, .side = BNY_SIDE_RECEIVES };
    const struct bny_flow *f = m->news.nunexpected ? bny_flow_of(m, peer) : NULL;
    const struct bny_unexpected *u;

    if (!f)
        return NULL;
    key.epoch = f->rx.epoch;
    key.seq = bny_tags_get(&f->rx.tags, tag);
    u = *find_unexpected(m, &key);
    return u ? u->msgs.first : NULL;
}

/* ---- communicators that do not exist here yet, or no more ---- */

int bny_orphans_has_ended(const struct bny_world *w, uint32_t comm_id)
{
    for (uint32_t i = 0; i < BNY_ENDED_MAX && i < w->nended; i++)
        if (w->ended[i] == comm_id)
            return 1;
    return 0;
}

void bny_orphans_end(struct bny_world *w, uint32_t comm_id)
{
    struct bny_msg_list late = bny_orphans_take(w, comm_id);

    bny_msg_list_release(&w->held, &late);
    if (!bny_orphans_has_ended(w, comm_id))
        w->ended[w->nended++ % BNY_ENDED_MAX] = comm_id;
}

void bny_orphans_begin(struct bny_world *w, uint32_t comm_id)
{
    for (uint32_t i = 0; i < BNY_ENDED_MAX; i++)
        if (w->ended[i] == comm_id)
            w->ended[i] = 0; /* nobody's id */
}

int bny_orphans_keep(struct bny_world *w, struct bny_msg *msg)
{
    int is_over = msg->hdr.kind == BNY_MSG_CREDIT && !(msg->hdr.step & 1); /* for our sends */

    if (is_over || msg->hdr.kind == BNY_MSG_PROBE || /* its sender asks again */
        bny_orphans_has_ended(w, msg->hdr.comm)) {
        bny_msg_release(&w->held, msg);
        return 0;
    }
    return keep_in(&w->held, &w->unclaimed, msg);
}

struct bny_msg_list bny_orphans_take(struct bny_world *w, uint32_t comm_id)
{
    struct bny_msg_list all = bny_msg_list_take(&w->unclaimed), mine = { 0 };
    struct bny_msg *msg;

    while ((msg = bny_msg_list_pop_front(&all))) {
        if (msg->hdr.comm == comm_id)
            uncount(msg);
        bny_msg_list_push_back(msg->hdr.comm == comm_id ? &mine : &w->unclaimed, msg);
    }
    return mine;
}
