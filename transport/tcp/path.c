/* SPDX-License-Identifier: BSD-3-Clause */
/* Writing: a ring of messages per connection, handed to the socket many at a time. User memory
 * and slots are queued by reference; eager payload goes straight to the socket when nothing
 * waits, else into a ring of copies. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/assert.h"
#include "base/err.h"
#include "transport/tcp/tcp.h"

#define IOVS_MAX    48         /* header, payload and padding of 16 messages */
#define FLUSH_BYTES (1u << 20) /* then let the other direction have its turn */

static const uint8_t zeros[16];

int bny_tcp_pending(const struct tcp_conn *c)
{
    return c->written != c->queued;
}

static struct tcp_item *item_at(const struct tcp_conn *c, uint32_t pos)
{
    return &c->items[pos & (TCP_ITEMS - 1)];
}

static uint64_t frame_bytes(const struct bny_hdr *hdr)
{
    return sizeof *hdr + (uint64_t)hdr->len + tcp_pad(hdr->len);
}

/* Adds [base, base+len) without its first *skip bytes. Returns the bytes added. */
static uint64_t add_iov(struct iovec *iov, int *n, const void *base, size_t len, uint64_t *skip)
{
    if (*skip >= len) {
        *skip -= len;
        return 0;
    }
    iov[*n].iov_base = (uint8_t *)(uintptr_t)base + *skip;
    iov[*n].iov_len = len - (size_t)*skip;
    *skip = 0;
    return iov[(*n)++].iov_len;
}

static uint64_t add_frame(struct iovec *iov, int *n, const struct bny_hdr *hdr, const void *buf,
                          uint64_t skip)
{
    uint64_t bytes = add_iov(iov, n, hdr, sizeof *hdr, &skip);

    bytes += add_iov(iov, n, buf, hdr->len, &skip);
    return bytes + add_iov(iov, n, zeros, tcp_pad(hdr->len), &skip);
}

/* Bytes the socket took; 0: none now (writable is cleared); -1: broken. */
static ssize_t write_iov(struct tcp_conn *c, struct iovec *iov, int n, uint64_t want)
{
    struct msghdr mh = { .msg_iov = iov, .msg_iovlen = (size_t)n };
    ssize_t put;

    do
        put = sendmsg(c->fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (put < 0 && errno == EINTR);
    if (put < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS)
        return -1;
    if (put < (ssize_t)want)
        c->writable = 0;
    return put < 0 ? 0 : put;
}

/* The item at `written` needs its memory no more. */
static void finish_item(struct tcp_conn *c)
{
    struct tcp_item *it = item_at(c, c->written);

    BNY_ASSERT(bny_tcp_pending(c) && c->copy_used >= it->copy_used);
    c->ep->ep.unsent--;
    c->tp->tp.unsent--;
    c->copy_head = (c->copy_head + it->copy_used) % TCP_COPY_BYTES;
    c->copy_used -= it->copy_used;
    if (it->kind == TCP_SLOT)
        c->ep->slots_busy &= ~(1u << it->slot);
    c->written++;
    c->write_off = 0;
    if (it->kind != TCP_USER && c->reported == c->written - 1)
        c->reported = c->written;
}

void bny_tcp_finish_items(struct tcp_conn *c)
{
    while (bny_tcp_pending(c))
        finish_item(c);
}

int bny_tcp_flush(struct tcp_conn *c)
{
    uint64_t total = 0;

    while (c->state == TCP_OPEN && bny_tcp_pending(c) && c->writable && total < FLUSH_BYTES) {
        struct iovec iov[IOVS_MAX];
        int n = 0;
        uint64_t want = 0;
        ssize_t put;

        for (uint32_t pos = c->written;
             pos != c->queued && n + 3 <= IOVS_MAX && want < FLUSH_BYTES; pos++) {
            const struct tcp_item *it = item_at(c, pos);

            want += add_frame(iov, &n, &it->hdr, it->buf, pos == c->written ? c->write_off : 0);
        }
        put = write_iov(c, iov, n, want);
        if (put < 0) {
            /* The read side knows whether the peer left in order or died. */
            c->writable = 0;
            c->readable = 1;
            bny_tcp_read_control(c);
            return -1;
        }
        total += (uint64_t)put;
        c->write_off += (uint64_t)put;
        while (bny_tcp_pending(c) &&
               c->write_off >= frame_bytes(&item_at(c, c->written)->hdr)) {
            uint64_t rest = c->write_off - frame_bytes(&item_at(c, c->written)->hdr);

            finish_item(c);
            c->write_off = rest;
        }
    }
    return 0;
}

int bny_tcp_take_sent(struct tcp_conn *c, struct bny_event *ev, int n)
{
    int got = 0;

    while (c->reported != c->written &&
           (got < n || item_at(c, c->reported)->kind != TCP_USER)) {
        struct tcp_item *it = item_at(c, c->reported++);

        if (it->kind == TCP_USER)
            ev[got++] = (struct bny_event){ .kind = BNY_EV_SENT,
                                            .ep = &c->ep->ep,
                                            .cookie = it->cookie };
    }
    return got;
}

/* ---- the ops ---- */

static int check(const struct bny_ep *ep, const struct bny_hdr *hdr, uint32_t max)
{
    const struct tcp_ep *e = (const struct tcp_ep *)ep;

    if (hdr->chan >= BNY_CHANNELS || hdr->len > max)
        return bny_fail(BANYAN_EINVAL,
                        "message to rank %d: channel %u (below %d), %u bytes (at most %u)",
                        ep->peer, hdr->chan, BNY_CHANNELS, hdr->len, max);
    if (e->down)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d is gone: %s", ep->peer, e->reason);
    if (e->left)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d has left the job", ep->peer);
    return 0;
}

/* The connection of the header's channel, opened when it is idle; NULL: no memory. */
static struct tcp_conn *conn_of(struct bny_ep *ep, const struct bny_hdr *hdr)
{
    struct tcp_conn *c = &((struct tcp_ep *)ep)->out[hdr->chan % TCP_LANES];

    if (!c->items) {
        c->items = calloc(TCP_ITEMS, sizeof *c->items);
        c->copy = malloc(TCP_COPY_BYTES);
        if (!c->items || !c->copy) {
            free(c->items);
            free(c->copy);
            c->items = NULL;
            c->copy = NULL;
            bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the connection to rank %d",
                     ep->tp->rank, ep->peer);
            return NULL;
        }
    }
    if (c->state == TCP_IDLE)
        bny_tcp_start_connect(c);
    return c;
}

static struct tcp_item *push(struct tcp_conn *c, const struct bny_hdr *hdr, const void *buf,
                             enum tcp_item_kind kind)
{
    struct tcp_item *it = item_at(c, c->queued++);

    BNY_ASSERT(c->queued - c->reported <= TCP_ITEMS);
    *it = (struct tcp_item){ .hdr = *hdr, .buf = buf, .kind = kind };
    c->ep->ep.unsent++;
    c->tp->tp.unsent++;
    return it;
}

/* Room for len contiguous bytes in the ring of copies; *used counts what is skipped at its end.
 * NULL: full. */
static uint8_t *copy_room(struct tcp_conn *c, uint32_t len, uint32_t *used)
{
    uint32_t tail = (c->copy_head + c->copy_used) % TCP_COPY_BYTES, skip = 0;

    if (tail + len > TCP_COPY_BYTES)
        skip = TCP_COPY_BYTES - tail;
    if (c->copy_used + skip + len > TCP_COPY_BYTES)
        return NULL;
    *used = skip + len;
    c->copy_used += *used;
    return c->copy + (skip ? 0 : tail);
}

static void count(struct bny_ep *ep, const struct bny_hdr *hdr, int copied)
{
    ep->tp->messages++;
    ep->tp->wire_bytes += hdr->len;
    if (copied)
        ep->tp->copied_bytes += hdr->len;
}

/* Straight to the socket. 1: all of it went, or the peer is lost. 0: *put bytes went. */
static int write_now(struct tcp_conn *c, const struct bny_hdr *hdr, const void *buf,
                     uint64_t *put)
{
    struct iovec iov[3];
    int n = 0;
    uint64_t want = add_frame(iov, &n, hdr, buf, 0);
    ssize_t done = write_iov(c, iov, n, want);

    if (done < 0) {
        c->writable = 0;
        c->readable = 1;
        bny_tcp_read_control(c);
        return 1;
    }
    *put = (uint64_t)done;
    return *put == want;
}

int bny_tcp_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf)
{
    int rc = check(ep, hdr, TCP_EAGER_MAX);
    struct tcp_conn *c;
    struct tcp_item *it;
    uint64_t put = 0;
    uint32_t used = 0;
    uint8_t *copy;

    if (rc != 0)
        return rc;
    c = conn_of(ep, hdr);
    if (!c)
        return -BANYAN_ENOMEM;
    /* Who has sent may poll no more: nobody would finish the handshake. */
    if (c->state != TCP_OPEN || c->queued - c->reported >= TCP_ITEMS_SOFT)
        return BNY_AGAIN;
    if (!bny_tcp_pending(c) && c->writable && write_now(c, hdr, buf, &put)) {
        count(ep, hdr, 0);
        return 0;
    }
    copy = copy_room(c, hdr->len, &used); /* an idle connection always has room */
    if (!copy)
        return BNY_AGAIN;
    if (hdr->len)
        memcpy(copy, buf, hdr->len);
    it = push(c, hdr, copy, TCP_COPY);
    it->copy_used = used;
    c->write_off = c->queued - c->written == 1 ? put : c->write_off;
    count(ep, hdr, 1);
    bny_tcp_activate(c);
    return 0;
}

int bny_tcp_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie)
{
    int rc = check(ep, hdr, TCP_PAYLOAD_MAX);
    struct tcp_conn *c;

    if (rc != 0)
        return rc;
    c = conn_of(ep, hdr);
    if (!c)
        return -BANYAN_ENOMEM;
    if (c->queued - c->reported >= TCP_ITEMS_SOFT)
        return BNY_AGAIN;
    push(c, hdr, buf, TCP_USER)->cookie = cookie;
    count(ep, hdr, 0);
    bny_tcp_flush(c);
    bny_tcp_activate(c);
    return 0;
}

int bny_tcp_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot)
{
    struct tcp_ep *e = (struct tcp_ep *)ep;
    struct bny_hdr probe = { .len = cap };
    int rc = check(ep, &probe, TCP_SLOT_MAX), i = 0;

    if (rc != 0)
        return rc;
    while (i < TCP_SLOTS && (e->slots_busy >> i & 1))
        i++;
    if (i == TCP_SLOTS)
        return BNY_AGAIN;
    /* Room for every reserved slot on whichever lane it is committed, and for a farewell. */
    for (int lane = 0; lane < TCP_LANES; lane++)
        if (e->out[lane].queued - e->out[lane].reported + TCP_SLOTS >= TCP_ITEMS - 1)
            return BNY_AGAIN;
    if (!e->slots[i])
        e->slots[i] = aligned_alloc(4096, TCP_SLOT_MAX);
    if (!e->slots[i])
        return bny_fail(BANYAN_ENOMEM, "no memory for a send slot of %u bytes", TCP_SLOT_MAX);
    e->slots_busy |= 1u << i;
    *slot = (struct bny_slot){ .mem = e->slots[i], .cap = TCP_SLOT_MAX, .index = (uint32_t)i };
    return 0;
}

int bny_tcp_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr)
{
    int rc = check(ep, hdr, slot->cap);
    struct tcp_conn *c = rc == 0 ? conn_of(ep, hdr) : NULL;

    BNY_ASSERT(((struct tcp_ep *)ep)->slots_busy >> slot->index & 1);
    if (!c) {
        bny_tcp_cancel(ep, slot);
        return rc != 0 ? rc : -BANYAN_ENOMEM;
    }
    push(c, hdr, slot->mem, TCP_SLOT)->slot = (int)slot->index;
    count(ep, hdr, 0);
    bny_tcp_flush(c);
    bny_tcp_activate(c);
    return 0;
}

void bny_tcp_cancel(struct bny_ep *ep, struct bny_slot *slot)
{
    BNY_ASSERT(((struct tcp_ep *)ep)->slots_busy >> slot->index & 1);
    ((struct tcp_ep *)ep)->slots_busy &= ~(1u << slot->index);
}

int bny_tcp_push_farewell(struct tcp_conn *c)
{
    struct bny_hdr hdr = { .kind = TCP_KIND_FAREWELL };

    if (c->queued - c->reported >= TCP_ITEMS)
        return BNY_AGAIN;
    push(c, &hdr, NULL, TCP_COPY);
    c->farewell_sent = 1;
    bny_tcp_flush(c);
    bny_tcp_activate(c);
    return 0;
}
