/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading: small messages are lent from a shared 64 KiB buffer; a large one is announced by its
 * header alone, and view() moves its bytes from the socket to the caller's memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/assert.h"
#include "base/err.h"
#include "transport/tcp/tcp.h"

/* Read ahead after a large message: bytes read here must be copied again. */
#define LITTLE        2048u
#define ROOM_MIN      4096u /* smallest space to read into */
#define DISCARD_TURNS 16

/* ---- buffers ---- */

static struct tcp_chunk *chunk_get(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;
    struct tcp_chunk *k = t->free_chunks;

    if (c->nchunks == TCP_CHUNKS_MAX)
        return NULL;
    if (k) {
        t->free_chunks = k->next;
    } else {
        k = aligned_alloc(64, sizeof *k);
        if (!k)
            return NULL;
        k->all = t->all_chunks;
        t->all_chunks = k;
    }
    k->refs = 1;
    k->owner = c;
    c->nchunks++;
    return k;
}

static void chunk_put(struct tcp_tp *t, struct tcp_chunk *k)
{
    BNY_ASSERT(k->refs > 0 && k->owner->nchunks > 0);
    if (--k->refs)
        return;
    k->owner->nchunks--;
    if (k->owner->stalled) {
        k->owner->stalled = 0;
        bny_tcp_activate(k->owner);
    }
    k->next = t->free_chunks;
    t->free_chunks = k;
}

/* If nothing is left to read, so that idle connections hold no buffer. */
static void tcp_recv_give_back(struct tcp_conn *c)
{
    if (!c->chunk || c->chunk->refs != 1 || c->start != c->end || c->discard)
        return;
    chunk_put(c->tp, c->chunk);
    c->chunk = NULL;
    c->start = c->end = 0;
}

static struct tcp_msg *msg_get(struct tcp_conn *c, const struct bny_hdr *hdr)
{
    struct tcp_tp *t = c->tp;
    struct tcp_msg *m = (struct tcp_msg *)bny_msg_list_pop_front(&t->free_msgs);

    if (!m) {
        m = malloc(sizeof *m);
        if (!m)
            return NULL;
        m->all = t->all_msgs;
        t->all_msgs = m;
    }
    m->msg = (struct bny_msg){ .ep = &c->ep->ep, .hdr = *hdr };
    m->chunk = NULL;
    m->conn = NULL;
    return m;
}

/* One read. > 0 bytes; 0: none now; -1: the connection is closed. */
static ssize_t read_wire(struct tcp_conn *c, void *dst, size_t len)
{
    ssize_t n;

    if (c->fd < 0) {
        c->readable = 0;
        return 0;
    }
    if (c->ends && len > c->until - c->got)
        len = (size_t)(c->until - c->got);
    do
        n = recv(c->fd, dst, len, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    c->got += n > 0 ? (uint64_t)n : 0;
    if (n > 0 && c->ep)
        c->ep->ep.moved++;
    if (n > 0 && c->ends && c->got == c->until) {
        bny_tcp_switch(c);
        return n;
    }
    if (n == (ssize_t)len)
        return n;
    /* Short: the socket is empty; epoll reports the edge of new data or of the end. */
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) {
        c->readable = 0;
        return n > 0 ? n : 0;
    }
    bny_tcp_lost(c, n == 0 ? c->err : errno);
    return c->state == TCP_OPEN ? 0 : -1;
}

/* The same for records: only verified bytes. */
static ssize_t read_records(struct tcp_conn *c, void *dst, size_t len)
{
    struct tcp_secure *s = c->sec;
    ssize_t n;

    while (!s->nclear && !bny_tcp_has_record(s)) {
        memmove(s->raw, s->raw + s->start, s->end - s->start);
        s->end -= s->start;
        s->start = 0;
        n = read_wire(c, s->raw + s->end, s->cap - s->end);
        if (n <= 0)
            return n;
        s->end += (uint32_t)n;
    }
    if (!s->nclear && bny_tcp_open(s) != 0) {
        bny_tcp_down(c->ep, "its data were altered in transit, or are not its own");
        return -1;
    }
    len = len < s->nclear ? len : s->nclear;
    memcpy(dst, s->raw + s->clear, len);
    s->clear += (uint32_t)len;
    s->nclear -= (uint32_t)len;
    if (s->nclear || bny_tcp_has_record(s))
        c->readable = 1;
    return (ssize_t)len;
}

static ssize_t read_some(struct tcp_conn *c, void *dst, size_t len)
{
    return c->sec ? read_records(c, dst, len) : read_wire(c, dst, len);
}

/* Makes contiguous room for a frame of `need` bytes at c->start. Returns 0, or -1: no buffer
 * now. */
static int tcp_recv_make_room(struct tcp_conn *c, uint32_t need)
{
    uint32_t have = c->end - c->start;
    struct tcp_chunk *k;

    if (c->chunk && have == 0 && c->chunk->refs == 1)
        c->start = c->end = tcp_pad(c->discard); /* so that the next header is aligned */
    need = need > have + ROOM_MIN ? need : have + ROOM_MIN;
    if (c->chunk && TCP_CHUNK - c->start >= need)
        return 0;
    if (c->chunk && c->chunk->refs == 1 && c->start > 15) {
        memmove(c->chunk->data, c->chunk->data + c->start, have);
        c->start = 0;
        c->end = have;
        return 0;
    }
    k = chunk_get(c);
    if (!k) {
        c->stalled = c->nchunks == TCP_CHUNKS_MAX;
        c->starved = !c->stalled;
        return -1;
    }
    if (c->chunk) {
        memcpy(k->data, c->chunk->data + c->start, have);
        chunk_put(c->tp, c->chunk);
    }
    c->chunk = k;
    c->start = have ? 0 : tcp_pad(c->discard);
    c->end = c->start + have;
    return 0;
}

/* Reads ahead into the buffer. 1: more bytes came. 0: not now, or lost. */
static int tcp_recv_fill(struct tcp_conn *c, uint32_t need)
{
    uint32_t room, have = c->end - c->start;
    ssize_t n;

    if (!c->readable || c->fd < 0 || tcp_recv_make_room(c, need) != 0)
        return 0;
    room = TCP_CHUNK - c->end;
    if (c->large && room > LITTLE)
        room = need > have && need - have > LITTLE ? need - have : LITTLE;
    n = read_some(c, c->chunk->data + c->end, room);
    if (n <= 0) {
        tcp_recv_give_back(c);
        return 0;
    }
    c->end += (uint32_t)n;
    return 1;
}

/* ---- tiles: buffers for a large message ---- */

static int tile_get(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;

    if (c->tile)
        return 0;
    c->tile = t->free_tiles;
    if (c->tile)
        memcpy(&t->free_tiles, c->tile, sizeof t->free_tiles);
    else
        c->tile = aligned_alloc(4096, TCP_TILE);
    return c->tile ? 0 : -1;
}

/* If nothing of the large message is left to read. */
static void tile_put(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;

    if (!c->tile || c->streaming || c->discard > 15)
        return;
    memcpy(c->tile, &t->free_tiles, sizeof t->free_tiles);
    t->free_tiles = c->tile;
    c->tile = NULL;
}

/* ---- messages ---- */

/* Drops the unread rest of a released message. */
static void skip(struct tcp_conn *c)
{
    uint32_t have = c->end - c->start, n = c->discard < have ? c->discard : have;

    c->start += n;
    c->discard -= n;
    for (int i = 0; i < DISCARD_TURNS && c->discard > 15 && c->readable && c->fd >= 0; i++) {
        uint32_t want = c->discard < TCP_TILE ? c->discard : TCP_TILE;
        ssize_t got = read_some(c, c->tile, want);

        if (got > 0)
            c->discard -= (uint32_t)got;
    }
    tile_put(c);
}

static int valid(const struct tcp_conn *c, const struct bny_hdr *h)
{
    if (h->kind == TCP_KIND_FAREWELL)
        return h->len == 0;
    return h->kind >= BNY_MSG_DATA && h->kind < 64 && h->chan < BNY_CHANNELS &&
           h->chan % TCP_LANES == c->lane && h->len <= TCP_PAYLOAD_MAX;
}

static void farewell(struct tcp_conn *c)
{
    c->farewell_seen = 1;
    c->ep->left = 1;
}

/* Announces a large message: its header is read, its payload is not. */
static struct tcp_msg *begin_stream(struct tcp_conn *c, const struct bny_hdr *h)
{
    struct tcp_msg *m = tile_get(c) == 0 ? msg_get(c, h) : NULL;

    if (!m) {
        tile_put(c);
        c->starved = 1;
        return NULL;
    }
    c->start += (uint32_t)sizeof *h;
    m->conn = c;
    c->streaming = m;
    c->viewed = c->ncarry = 0;
    c->stream_left = h->len;
    c->large = 1;
    return m;
}

static struct tcp_msg *tcp_recv_lend(struct tcp_conn *c, const struct bny_hdr *h)
{
    struct tcp_msg *m = msg_get(c, h);

    if (!m) {
        c->starved = 1;
        return NULL;
    }
    m->msg.data = c->chunk->data + c->start + sizeof *h;
    m->chunk = c->chunk;
    c->chunk->refs++;
    c->start += (uint32_t)sizeof *h + h->len + tcp_pad(h->len);
    c->large = 0;
    return m;
}

/* The next message, or NULL. */
static struct tcp_msg *next_message(struct tcp_conn *c)
{
    for (;;) {
        uint32_t have, need = sizeof(struct bny_hdr);
        struct bny_hdr h;

        if (c->discard)
            skip(c);
        if (c->discard > 15)
            return NULL;
        have = c->end - c->start;
        if (c->discard == 0 && have >= need) {
            memcpy(&h, c->chunk->data + c->start, sizeof h);
            if (!valid(c, &h)) {
                bny_tcp_down(c->ep, "it broke the protocol: invalid header");
                return NULL;
            }
            if (h.kind == TCP_KIND_FAREWELL) {
                farewell(c);
                c->start += need;
                continue;
            }
            if (h.len > TCP_EAGER_MAX)
                return begin_stream(c, &h);
            need += h.len + tcp_pad(h.len);
            if (have >= need)
                return tcp_recv_lend(c, &h);
        }
        if (!tcp_recv_fill(c, need + c->discard))
            return NULL;
    }
}

int bny_tcp_deliver(struct tcp_conn *c, struct bny_event *ev, int n)
{
    int got = 0;

    c->starved = 0;
    while (got < n && !c->streaming && !c->ep->down && c->state == TCP_OPEN) {
        struct tcp_msg *m = next_message(c);

        if (!m)
            break;
        ev[got++] = (struct bny_event){ .kind = BNY_EV_MSG, .ep = &c->ep->ep, .msg = &m->msg };
    }
    c->more = got == n || c->starved; /* nothing else would call this again */
    return got;
}

/* The reverse direction of an outgoing connection carries only one farewell. */
void bny_tcp_read_control(struct tcp_conn *c)
{
    struct bny_hdr h;

    while (c->fd >= 0 && c->readable) {
        ssize_t n = read_some(c, c->hs + c->hs_have, sizeof h - c->hs_have);

        if (n <= 0)
            return;
        c->hs_have += (uint32_t)n;
        if (c->hs_have < sizeof h)
            continue;
        memcpy(&h, c->hs, sizeof h);
        c->hs_have = 0;
        if (h.kind != TCP_KIND_FAREWELL || h.len != 0) {
            bny_tcp_down(c->ep,
                         "it broke the protocol: data came back where only a farewell may");
            return;
        }
        farewell(c);
    }
}

/* ---- view and release ---- */

/* Reads up to want payload bytes from the buffer and the socket, after the carried ones.
 * Returns the bytes now at dst, or -1 if the connection is lost. */
static long tcp_recv_gather(struct tcp_conn *c, uint8_t *dst, uint32_t want)
{
    uint32_t got = c->ncarry < want ? c->ncarry : want, have = c->end - c->start, n;
    ssize_t r;

    memcpy(dst, c->carry, got);
    memmove(c->carry, c->carry + got, c->ncarry - got);
    c->ncarry -= got;
    n = want - got < have ? want - got : have;
    if (n) {
        memcpy(dst + got, c->chunk->data + c->start, n);
        bny_counter_add(&c->tp->tp.copied_bytes, n);
        c->start += n;
        c->stream_left -= n;
        got += n;
    }
    if (got == want)
        return (long)got;
    r = read_some(c, dst + got, want - got);
    if (r < 0)
        return -1;
    c->stream_left -= (uint32_t)r;
    return (long)got + r;
}

long bny_tcp_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst, const void **ptr)
{
    struct tcp_msg *m = (struct tcp_msg *)msg;
    struct tcp_conn *c = m->conn;
    struct tcp_ep *e = (struct tcp_ep *)msg->ep;
    uint8_t *to = dst;
    long got;
    uint32_t keep;

    if (!c || len == 0 || off != c->viewed || len > msg->hdr.len - off)
        return bny_fail(BANYAN_EINVAL,
                        "view of [%u, +%u) in a message of %u bytes from rank %d that "
                        "must be viewed front to back",
                        off, len, msg->hdr.len, e->ep.peer);
    if (c->state != TCP_OPEN)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d is gone: %s", e->ep.peer, tcp_reason(e));
    if (!to) {
        to = c->tile;
        len = len < TCP_TILE ? len : TCP_TILE;
    }
    got = tcp_recv_gather(c, to, len);
    if (got < 0)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d is gone: %s", e->ep.peer, tcp_reason(e));
    keep = got == (long)len ? 0 : (uint32_t)got & 63;
    if (keep) { /* only whole blocks of 64 may be returned; the rest waits for more */
        memmove(c->carry + keep, c->carry, c->ncarry);
        memcpy(c->carry, to + got - keep, keep);
        c->ncarry += keep;
        got -= keep;
    }
    if (got == 0)
        return BNY_AGAIN;
    c->viewed += (uint32_t)got;
    *ptr = to;
    return got;
}

void bny_tcp_release(struct bny_msg *msg)
{
    struct tcp_msg *m = (struct tcp_msg *)msg;
    struct tcp_tp *t = (struct tcp_tp *)msg->ep->tp;
    struct tcp_conn *c = m->conn;

    if (m->chunk) {
        struct tcp_conn *from = m->chunk->owner;

        chunk_put(t, m->chunk);
        if (from->chunk == m->chunk)
            tcp_recv_give_back(from);
    }
    if (c) {
        c->discard = c->stream_left + tcp_pad(msg->hdr.len);
        c->streaming = NULL;
        tile_put(c);
        c->readable = 1; /* view() read without clearing the flag */
        bny_tcp_activate(c);
    }
    bny_msg_list_push_front(&t->free_msgs, msg);
}
