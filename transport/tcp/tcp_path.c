/* SPDX-License-Identifier: BSD-3-Clause */
/* Writing: each connection has a ring of messages, which go to the socket many at a time. User
 * memory and slots are queued by reference; eager payload goes straight to the socket if
 * nothing waits, else into a ring of copies, allocated on demand.
 *
 * Bytes in the local kernel are not sent yet: until the peer's kernel has them they may have to
 * be sent again (resume.c). So a message keeps its memory until it is acknowledged; if that
 * takes more than a few queries, unacknowledged bytes are copied (keep.c). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/assert.h"
#include "base/err.h"
#include "transport/tcp/tcp.h"

#define IOVS_MAX     48         /* header, payload and padding of 16 messages */
#define FLUSH_BYTES  (1u << 20) /* then the other direction has its turn */
#define SEALED_AHEAD 131072u    /* records sealed before the socket accepts them */
#define LITTLE       16384u     /* copied instead of a query that costs a system call */
#define JOINED_BYTES 65536u     /* of eager messages that go to the socket together */
#define FREE_RINGS   64         /* free rings that a transport holds */

static const uint8_t zeros[16];

int bny_tcp_pending(const struct tcp_conn *c)
{
    return c->written != c->queued || c->resend;
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

/* Bytes that the socket accepted; 0: none now (writable is cleared); -1: broken, c->err is
 * set. */
static ssize_t write_iov(struct tcp_conn *c, struct iovec *iov, int n, uint64_t want)
{
    struct msghdr mh = { .msg_iov = iov, .msg_iovlen = (size_t)n };
    ssize_t put;

    do
        put = sendmsg(c->fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (put < 0 && errno == EINTR);
    if (put < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
        c->err = errno;
        return -1;
    }
    if (put < (ssize_t)want)
        c->writable = 0;
    if (put <= 0)
        return 0;
    c->pos += (uint64_t)put;
    c->put = c->pos > c->put ? c->pos : c->put;
    c->looks = 0;
    return put;
}

/* The kernel has all of the item at `written`. */
static void step_on(struct tcp_conn *c)
{
    BNY_ASSERT(c->written != c->queued);
    c->ep->ep.unsent--;
    c->tp->tp.unsent--;
    c->written++;
    c->write_off = 0;
}

static void step_back(struct tcp_conn *c)
{
    BNY_ASSERT(c->written != c->reported);
    c->ep->ep.unsent++;
    c->tp->tp.unsent++;
    c->written--;
    c->write_off = 0;
}

/* A connection has a ring of messages only while something is queued: most peers of a large job
 * seldom get a message. */
static int have_items(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;

    if (c->items)
        return 0;
    c->items = t->free_items;
    if (!c->items) {
        c->items = malloc(TCP_ITEMS * sizeof *c->items);
        return c->items
                   ? 0
                   : bny_fail(BANYAN_ENOMEM, "rank %d: no memory for what is sent to rank %d",
                              t->tp.rank, c->ep->ep.peer);
    }
    t->free_items = c->items->own;
    t->nfree_items--;
    return 0;
}

static void give_items(struct tcp_conn *c)
{
    struct tcp_tp *t = c->tp;

    if (t->nfree_items == FREE_RINGS) {
        free(c->items);
    } else {
        c->items->own = t->free_items;
        t->free_items = c->items;
        t->nfree_items++;
    }
    c->items = NULL;
}

/* The item at `reported` no longer needs its memory: no byte is sent again from there. */
static void release_item(struct tcp_conn *c)
{
    struct tcp_item *it = item_at(c, c->reported);

    BNY_ASSERT(c->reported != c->written && c->copy_used >= it->copy_used);
    c->copy_head = (c->copy_head + it->copy_used) % TCP_COPY_BYTES;
    c->copy_used -= it->copy_used;
    if (!c->copy_used)
        c->copy_head = 0; /* keeps the touched part as small as the queue */
    if (it->kind == TCP_SLOT)
        c->ep->slots_busy &= ~(1u << it->slot);
    if (it->own) { /* rarely: saves the call */
        free(it->own);
        it->own = NULL;
    }
    if (++c->reported == c->queued)
        give_items(c);
}

void bny_tcp_finish_items(struct tcp_conn *c)
{
    while (c->written != c->queued)
        step_on(c);
    c->resend = 0;
    bny_tcp_drop_kept(c);
    c->acked = UINT64_MAX;
    bny_tcp_owe(c);
}

void bny_tcp_owe(struct tcp_conn *c)
{
    int owes = c->resend || (c->resuming && c->put > c->acked);

    c->ep->ep.unsent += (uint32_t)(owes - c->owed);
    c->tp->tp.unsent += (uint64_t)(int64_t)(owes - c->owed);
    c->owed = owes;
}

int bny_tcp_rewind(struct tcp_conn *c, uint64_t at)
{
    uint64_t off = c->held_from;
    uint32_t to = c->reported;

    if (at < c->acked || at > c->put)
        return -1;
    bny_tcp_acked(c, at);
    c->pos = at;
    c->looks = 0;
    c->resend = at < off ? off - at : 0;
    bny_tcp_owe(c);
    if (c->sec) /* all bytes given to the kernel are kept */
        return 0;
    while (at > off && off + frame_bytes(&item_at(c, to)->hdr) <= at) {
        BNY_ASSERT(to != c->queued);
        off += frame_bytes(&item_at(c, to++)->hdr);
    }
    while ((int32_t)(to - c->written) > 0)
        step_on(c);
    while (c->written != to)
        step_back(c);
    c->write_off = at > off ? at - off : 0;
    return 0;
}

static ssize_t write_kept(struct tcp_conn *c)
{
    struct iovec iov[IOVS_MAX];
    int n = 0;
    uint64_t want = bny_tcp_kept_iov(c, iov, IOVS_MAX, &n);
    ssize_t put = write_iov(c, iov, n, want);

    c->resend -= put > 0 ? (uint64_t)put : 0;
    return put;
}

static ssize_t write_items(struct tcp_conn *c)
{
    struct iovec iov[IOVS_MAX];
    int n = 0;
    uint64_t want = 0;
    ssize_t put;

    for (uint32_t pos = c->written; pos != c->queued && n + 3 <= IOVS_MAX && want < FLUSH_BYTES;
         pos++) {
        const struct tcp_item *it = item_at(c, pos);

        want += add_frame(iov, &n, &it->hdr, it->buf, pos == c->written ? c->write_off : 0);
    }
    put = write_iov(c, iov, n, want);
    c->write_off += put > 0 ? (uint64_t)put : 0;
    while (c->written != c->queued &&
           c->write_off >= frame_bytes(&item_at(c, c->written)->hdr)) {
        uint64_t rest = c->write_off - frame_bytes(&item_at(c, c->written)->hdr);

        step_on(c);
        c->write_off = rest;
    }
    return put;
}

/* Copies one record's bytes from the frames at `written`. Returns their number. */
static uint32_t take_plain(struct tcp_conn *c, uint8_t *to, uint32_t room)
{
    uint32_t len = 0;

    while (c->written != c->queued && len < room) {
        const struct tcp_item *it = item_at(c, c->written);
        struct iovec iov[3];
        int n = 0;
        uint64_t left = add_frame(iov, &n, &it->hdr, it->buf, c->write_off);

        for (int i = 0; i < n && len < room; i++) {
            uint32_t part = iov[i].iov_len < room - len ? (uint32_t)iov[i].iov_len : room - len;

            memcpy(to + len, iov[i].iov_base, part);
            len += part;
            c->write_off += part;
            left -= part;
        }
        if (left == 0)
            step_on(c);
    }
    return len;
}

static uint64_t plain_bytes(const struct tcp_conn *c, uint64_t most)
{
    uint64_t bytes = 0;

    for (uint32_t pos = c->written; pos != c->queued && bytes < most + c->write_off; pos++)
        bytes += frame_bytes(&item_at(c, pos)->hdr);
    bytes -= bytes ? c->write_off : 0;
    return bytes < most ? bytes : most;
}

/* Seals records of the queue, and sends them from the blocks where they are kept. */
static void seal_items(struct tcp_conn *c)
{
    c->full = 0;
    while (c->written != c->queued && c->resend < SEALED_AHEAD) {
        uint32_t len = (uint32_t)plain_bytes(c, TCP_RECORD_MAX);
        uint8_t *rec = bny_tcp_keep_room(c, len + bny_tcp_record_extra(c->sec));

        if (!rec) {
            c->full = 1;
            return;
        }
        len = take_plain(c, rec + TCP_RECORD_HEAD, len);
        bny_tcp_keep_filled(c, bny_tcp_seal(c->sec, rec, len));
    }
}

/* The read side determines whether the peer left in order or died. */
static void write_failed(struct tcp_conn *c)
{
    int fd = c->fd;

    c->writable = 0;
    c->readable = 1;
    bny_tcp_read_control(c);
    if (c->state == TCP_OPEN && c->fd == fd)
        bny_tcp_lost(c, c->err);
}

int bny_tcp_flush(struct tcp_conn *c)
{
    uint64_t total = 0;

    while (c->state == TCP_OPEN && bny_tcp_pending(c) && c->writable && total < FLUSH_BYTES) {
        ssize_t put;

        if (c->sec && c->resend < SEALED_AHEAD)
            seal_items(c);
        if (c->sec && !c->resend)
            break;
        put = c->resend ? write_kept(c) : write_items(c);
        if (put < 0) {
            write_failed(c);
            return -1;
        }
        total += (uint64_t)put;
    }
    bny_tcp_owe(c);
    return 0;
}

/* ---- memory that comes back ---- */

/* Copies the unacknowledged bytes of the item at `reported`. 0: there is no room. */
static int keep_item(struct tcp_conn *c)
{
    const struct tcp_item *it = item_at(c, c->reported);
    uint64_t end = c->held_from + frame_bytes(&it->hdr);

    if (!bny_tcp_may_keep(c, end - (c->acked > c->held_from ? c->acked : c->held_from)))
        return 0;
    bny_tcp_keep(c, &it->hdr, sizeof it->hdr);
    bny_tcp_keep(c, it->buf, it->hdr.len);
    bny_tcp_keep(c, zeros, tcp_pad(it->hdr.len));
    return 1;
}

/* Queries the acknowledged bytes after each write, and then less and less often. 1: enough
 * queries, or few bytes: copy. */
static int tcp_path_look(struct tcp_conn *c)
{
    uint32_t looks = c->looks++;

    if (looks == 0 || looks == TCP_LOOKS || looks % 32 == 0)
        bny_tcp_ask_acked(c);
    return looks >= TCP_LOOKS || c->pos - c->acked <= LITTLE;
}

int bny_tcp_take_sent(struct tcp_conn *c, struct bny_event *ev, int n)
{
    int got = 0,
        copy = c->reported != c->written && c->state == TCP_OPEN && !c->sec && tcp_path_look(c);

    while (c->reported != c->written) {
        struct tcp_item *it = item_at(c, c->reported);

        if (it->kind == TCP_USER && got == n)
            break;
        if (!c->sec && c->acked > c->held_from &&
            c->acked - c->held_from >= frame_bytes(&it->hdr))
            c->held_from += c->acked == UINT64_MAX ? 0 : frame_bytes(&it->hdr);
        else if (!c->sec && (!copy || !keep_item(c)))
            break;
        if (it->kind == TCP_USER)
            ev[got++] = (struct bny_event){ .kind = BNY_EV_SENT,
                                            .ep = &c->ep->ep,
                                            .cookie = it->cookie };
        release_item(c);
    }
    return got;
}

/* Replaces memory that its owner takes back by our own copy. */
static void copy_item(struct tcp_conn *c, struct tcp_item *it)
{
    it->own = malloc(it->hdr.len ? it->hdr.len : 1);
    if (!it->own) {
        bny_tcp_down(c->ep, "no memory is left for data in transit to it");
        return;
    }
    if (it->hdr.len)
        memcpy(it->own, it->buf, it->hdr.len);
    it->buf = it->own;
}

void bny_tcp_recall(struct bny_tp *tp, void *cookie)
{
    struct tcp_tp *t = (struct tcp_tp *)tp;

    for (int r = 0; r < tp->nranks; r++)
        for (int lane = 0; t->eps[r] && lane < TCP_LANES; lane++) {
            struct tcp_conn *c = t->eps[r]->out[lane];

            for (uint32_t pos = c ? c->reported : 0; c && pos != c->queued; pos++) {
                struct tcp_item *it = item_at(c, pos);

                if (it->kind == TCP_USER && it->cookie == cookie && !it->own &&
                    c->state != TCP_CLOSED)
                    copy_item(c, it);
            }
        }
}

/* ---- the ops ---- */

static int tcp_path_check(const struct bny_ep *ep, const struct bny_hdr *hdr, uint32_t max)
{
    const struct tcp_ep *e = (const struct tcp_ep *)ep;

    if (hdr->chan >= BNY_CHANNELS || hdr->len > max)
        return bny_fail(BANYAN_EINVAL,
                        "message to rank %d: channel %u (below %d), %u bytes (at most %u)",
                        ep->peer, hdr->chan, BNY_CHANNELS, hdr->len, max);
    if (e->down || e->ends.since_ns)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d is gone: %s", ep->peer, tcp_reason(e));
    if (e->left)
        return bny_fail(BANYAN_ERANKDEAD, "rank %d has left the job", ep->peer);
    return 0;
}

struct tcp_conn *bny_tcp_out(struct tcp_ep *e, int lane)
{
    struct tcp_conn *c = e->out[lane];

    if (c)
        return c;
    c = calloc(1, sizeof *c);
    if (!c) {
        bny_fail(BANYAN_ENOMEM, "rank %d: no memory for the connection to rank %d",
                 e->ep.tp->rank, e->ep.peer);
        return NULL;
    }
    c->fd = -1;
    c->tp = (struct tcp_tp *)e->ep.tp;
    c->ep = e;
    c->lane = lane;
    c->outgoing = 1;
    e->out[lane] = c;
    return c;
}

struct tcp_conn *bny_tcp_lane(struct bny_ep *ep, int lane)
{
    struct tcp_conn *c = bny_tcp_out((struct tcp_ep *)ep, lane);

    if (c && c->state == TCP_IDLE)
        bny_tcp_start_connect(c);
    return c;
}

static struct tcp_conn *conn_of(struct bny_ep *ep, const struct bny_hdr *hdr)
{
    return bny_tcp_lane(ep, hdr->chan % TCP_LANES);
}

static struct tcp_item *tcp_path_push(struct tcp_conn *c, const struct bny_hdr *hdr,
                                      const void *buf, enum tcp_item_kind kind)
{
    struct tcp_item *it = item_at(c, c->queued++);

    BNY_ASSERT(c->queued - c->reported <= TCP_ITEMS);
    *it = (struct tcp_item){ .hdr = *hdr, .buf = buf, .kind = kind };
    c->ep->ep.unsent++;
    c->tp->tp.unsent++;
    return it;
}

/* Contiguous room for len bytes in the ring of copies; *used includes bytes skipped at its end.
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

static void tcp_path_count(struct bny_ep *ep, const struct bny_hdr *hdr, int copied)
{
    bny_counter_add(&ep->tp->messages, 1);
    bny_counter_add(&ep->tp->wire_bytes, hdr->len);
    if (copied)
        bny_tp_staged(ep->tp, hdr->len);
}

/* Straight to the socket, after bny_tcp_may_keep. The rest, and bytes for a new connection, are
 * sent from the kept blocks. */
static void write_now(struct tcp_conn *c, const struct bny_hdr *hdr, const void *buf)
{
    struct iovec iov[3];
    int n = 0;
    uint64_t want = add_frame(iov, &n, hdr, buf, 0);
    ssize_t done = write_iov(c, iov, n, want);

    if (done < 0)
        write_failed(c);
    if (c->state == TCP_CLOSED)
        return;
    bny_tcp_keep(c, hdr, sizeof *hdr);
    bny_tcp_keep(c, buf, hdr->len);
    bny_tcp_keep(c, zeros, tcp_pad(hdr->len));
    if (done == (ssize_t)want)
        return;
    c->resend += want - (done > 0 ? (uint64_t)done : 0);
    bny_tcp_owe(c);
    bny_tcp_activate(c);
}

static int make_copies(struct tcp_conn *c)
{
    if (!c->copy)
        c->copy = malloc(TCP_COPY_BYTES);
    return c->copy != NULL;
}

/* The ring of copies. Returns 0; BNY_AGAIN: no memory, but none is needed once the queue is
 * empty; or an error. */
static int have_copies(struct tcp_conn *c)
{
    if (make_copies(c))
        return 0;
    if (!c->sec && (bny_tcp_pending(c) || c->reported != c->queued || c->nkept))
        return BNY_AGAIN;
    return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for what is sent to rank %d",
                    c->tp->tp.rank, c->ep->ep.peer);
}

/* May the message wait for the next one? */
static int waits_for_more(struct tcp_conn *c, const struct bny_hdr *hdr)
{
    return c->tp->tp.more && !c->sec &&
           plain_bytes(c, JOINED_BYTES) + frame_bytes(hdr) < JOINED_BYTES && make_copies(c);
}

int bny_tcp_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf)
{
    int rc = tcp_path_check(ep, hdr, TCP_EAGER_MAX), waits;
    struct tcp_conn *c;
    uint32_t used = 0;
    uint8_t *copy;

    if (rc != 0)
        return rc;
    c = conn_of(ep, hdr);
    if (!c)
        return -BANYAN_ENOMEM;
    /* A rank that has sent may not poll again: nobody would finish the handshake. */
    if (c->state != TCP_OPEN || c->queued - c->reported >= TCP_ITEMS_SOFT)
        return BNY_AGAIN;
    waits = waits_for_more(c, hdr);
    if (!waits && !c->sec && c->reported == c->queued && !c->resend && c->writable &&
        bny_tcp_may_keep(c, frame_bytes(hdr))) {
        write_now(c, hdr, buf);
        tcp_path_count(ep, hdr, 0);
        return 0;
    }
    rc = have_copies(c);
    if (rc == 0)
        rc = have_items(c);
    if (rc != 0)
        return rc;
    copy = copy_room(c, hdr->len, &used); /* an idle connection always has room */
    if (!copy)
        return BNY_AGAIN;
    if (hdr->len)
        memcpy(copy, buf, hdr->len);
    tcp_path_push(c, hdr, copy, TCP_COPY)->copy_used = used;
    tcp_path_count(ep, hdr, 1);
    if (!waits)
        bny_tcp_flush(c);
    bny_tcp_activate(c);
    return 0;
}

int bny_tcp_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie)
{
    int rc = tcp_path_check(ep, hdr, TCP_PAYLOAD_MAX);
    struct tcp_conn *c;

    if (rc != 0)
        return rc;
    c = conn_of(ep, hdr);
    if (!c)
        return -BANYAN_ENOMEM;
    if (c->queued - c->reported >= TCP_ITEMS_SOFT)
        return BNY_AGAIN;
    if (have_items(c) != 0)
        return -BANYAN_ENOMEM;
    tcp_path_push(c, hdr, buf, TCP_USER)->cookie = cookie;
    tcp_path_count(ep, hdr, 0);
    bny_tcp_flush(c);
    bny_tcp_activate(c);
    return 0;
}

int bny_tcp_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot)
{
    struct tcp_ep *e = (struct tcp_ep *)ep;
    struct bny_hdr probe = { .len = cap };
    int rc = tcp_path_check(ep, &probe, TCP_SLOT_MAX), i = 0;

    if (rc != 0)
        return rc;
    while (i < TCP_SLOTS && (e->slots_busy >> i & 1))
        i++;
    if (i == TCP_SLOTS)
        return BNY_AGAIN;
    /* Room on every lane for all reserved slots and a farewell. */
    for (int lane = 0; lane < TCP_LANES; lane++)
        if (e->out[lane] &&
            e->out[lane]->queued - e->out[lane]->reported + TCP_SLOTS >= TCP_ITEMS - 1)
            return BNY_AGAIN;
    if (!e->slots)
        e->slots = calloc(TCP_SLOTS, sizeof *e->slots);
    if (e->slots && !e->slots[i])
        e->slots[i] = aligned_alloc(4096, TCP_SLOT_MAX);
    if (!e->slots || !e->slots[i])
        return bny_fail(BANYAN_ENOMEM, "no memory for a send slot of %u bytes", TCP_SLOT_MAX);
    e->slots_busy |= 1u << i;
    *slot = (struct bny_slot){ .mem = e->slots[i], .cap = TCP_SLOT_MAX, .index = (uint32_t)i };
    return 0;
}

int bny_tcp_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr)
{
    int rc = tcp_path_check(ep, hdr, slot->cap);
    struct tcp_conn *c = rc == 0 ? conn_of(ep, hdr) : NULL;

    BNY_ASSERT(((struct tcp_ep *)ep)->slots_busy >> slot->index & 1);
    if (!c || have_items(c) != 0) {
        bny_tcp_cancel(ep, slot);
        return rc != 0 ? rc : -BANYAN_ENOMEM;
    }
    tcp_path_push(c, hdr, slot->mem, TCP_SLOT)->slot = (int)slot->index;
    tcp_path_count(ep, hdr, 0);
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

    if (c->queued - c->reported >= TCP_ITEMS || have_items(c) != 0)
        return BNY_AGAIN;
    tcp_path_push(c, &hdr, NULL, TCP_COPY);
    c->farewell_sent = 1;
    bny_tcp_flush(c);
    bny_tcp_activate(c);
    return 0;
}
