/* SPDX-License-Identifier: BSD-3-Clause */
/* Packets of a rank, or of one that guessed its tag, put together to messages: every byte that
 * is lent is read, messages are as long as their headers say, in order, and each buffer is
 * given back. The input is a list of packets and of uses of the messages they make; struct
 * packet below is a packet, its payload is made up. */
#include "input.h"

#include "transport/datagram/dgram.h"

#define HELD 16 /* messages, at most */

struct packet {
    uint8_t flags, chan, msg, type;
    uint8_t seq; /* from the next one */
    uint8_t ack;
    uint16_t off, len, total; /* off: in 64 bytes; total: of the message, in its first packet */
};

static int buffers;

static void put_back(void *const *bufs, int n)
{
    for (int i = 0; i < n; i++, buffers--)
        free(bufs[i]);
}

static int transmit(struct bny_dgram_port *port, const struct bny_dgram_tx *tx, int n)
{
    return n;
}

static int busy(const struct bny_dgram_ref *ref)
{
    return 0;
}

static void reclaim(struct bny_dgram_port *port)
{
}

static const struct bny_dgram_driver driver = {
    .tx = transmit, .free = put_back, .ref_busy = busy, .reclaim = reclaim
};
static const struct bny_dgram_addr other = { { 2 }, 7, BNY_DGRAM_IP4(1) };

static void open_both(struct dp_tp *t, struct dp_ep *e)
{
    memset(t, 0, sizeof *t);
    memset(e, 0, sizeof *e);
    t->tp = (struct bny_tp){ .rank = 0, .nranks = 2 };
    t->eth = BNY_DGRAM_ETH;
    t->drv = &driver;
    t->now = 1000000;
    t->blob = (struct dp_blob){ .udp_port = 8, .ip = BNY_DGRAM_IP4(2) };
    e->ep = (struct bny_ep){
        .tp = &t->tp, .peer = 1, .eager_max = DP_EAGER_MAX, .slot_max = DP_SLOT_MAX
    };
    for (int c = 0; c < BNY_CHANNELS; c++)
        e->queue[c].tail = &e->queue[c].head;
    e->sent_tail = &e->sent;
    e->self = (struct bny_dgram_addr){ { 4 }, 8, BNY_DGRAM_IP4(2) };
    e->tag_in = 77;
    e->lanes = 1;
    bny_flow_tx_init(&e->tx, 0, BNY_DGRAM_WINDOW, 9000);
}

static void close_both(struct dp_tp *t, struct dp_ep *e)
{
    bny_dgram_forget(e);
    for (struct dp_msg *m = t->all_msgs, *next; m; m = next) {
        next = m->all;
        free(m);
    }
    for (struct dp_block *b = t->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    EXPECT(buffers == 0 && e->held == 0);
}

static void frame(struct dp_tp *t, struct dp_ep *e, const struct packet *p)
{
    struct bny_dgram_head h = {
        .magic = BNY_DGRAM_MAGIC, .tag = 77, .from = 1, .length = BNY_DGRAM_HEAD
    };
    struct bny_hdr hdr = {
        .len = p->total, .chan = p->chan % BNY_CHANNELS, .kind = BNY_MSG_DATA, .chunk = p->msg
    };
    struct bny_dgram_rx rx;
    uint32_t n = p->len, all;
    uint8_t *f;

    h.type = p->type ? p->type : BNY_DGRAM_DATA;
    h.flags = p->flags & (BNY_DGRAM_FIRST | BNY_DGRAM_LAST | BNY_DGRAM_BYE | BNY_DGRAM_AGAIN);
    h.chan = p->chan % BNY_CHANNELS;
    h.msg = p->msg;
    h.off = 64 * (uint32_t)p->off;
    h.seq = e->rx.cum + p->seq;
    if (bny_flow_before(e->limit_told, e->rx.cum + bny_dgram_credit(e)))
        e->limit_told =
            e->rx.cum + bny_dgram_credit(e); /* as if every packet were acknowledged at once */
    h.ack = p->ack;
    h.credit = p->ack;
    if (h.type == BNY_DGRAM_DATA && (h.flags & BNY_DGRAM_FIRST))
        h.length = (uint8_t)(h.length + sizeof hdr);
    if (h.type == BNY_DGRAM_ACK)
        h.length = (uint8_t)(h.length + sizeof(struct bny_dgram_sack));
    all = BNY_DGRAM_ETH + h.length + n;
    f = malloc(all); /* exactly as long: a sanitizer sees one byte too many */
    memset(f, p->msg, all);
    bny_dgram_eth_init(f, &other, &e->self);
    memcpy(f + BNY_DGRAM_ETH, &h, sizeof h);
    if (h.length > sizeof h)
        memset(f + BNY_DGRAM_ETH + sizeof h, 0, h.length - sizeof h);
    if (h.type == BNY_DGRAM_DATA && (h.flags & BNY_DGRAM_FIRST))
        memcpy(f + BNY_DGRAM_ETH + sizeof h, &hdr, sizeof hdr);
    bny_dgram_eth_length(f, all);
    buffers++;
    rx = (struct bny_dgram_rx){ .buf = f, .data = f, .len = all };
    if (!bny_dgram_frame(t, e, &rx))
        put_back(&rx.buf, 1);
}

/* ---- use ---- */

struct held {
    struct bny_msg *msg[HELD];
    uint32_t viewed[HELD];
    int n;
};

/* Every byte of a message is its number; what is not is another's. */
static void read_all(const struct bny_msg *m, const void *data, size_t len)
{
    const uint8_t *at = data;

    for (size_t i = 0; i < len; i++)
        EXPECT(at[i] == (uint8_t)m->hdr.chunk);
}

static void take(struct dp_ep *e, struct held *h)
{
    while (!bny_msg_list_is_empty(&e->ready) && h->n < HELD) {
        struct bny_msg *m = bny_msg_list_pop_front(&e->ready);

        EXPECT(m->data || m->hdr.len > e->ep.eager_max);
        if (m->data)
            read_all(m, m->data, m->hdr.len);
        h->viewed[h->n] = 0;
        h->msg[h->n++] = m;
    }
}

static void release(struct held *h, int i)
{
    bny_dgram_release(h->msg[i]);
    h->n--;
    memmove(&h->msg[i], &h->msg[i + 1], (size_t)(h->n - i) * sizeof h->msg[0]);
    memmove(&h->viewed[i], &h->viewed[i + 1], (size_t)(h->n - i) * sizeof h->viewed[0]);
}

static void view(struct held *h, int i, unsigned how)
{
    static uint8_t place[1 << 17];
    uint32_t left = h->msg[i]->hdr.len - h->viewed[i], len = 64u << (how >> 4);
    const void *ptr;
    long n;

    len = len < left ? len : left;
    if (h->msg[i]->data || !len)
        return;
    n = bny_dgram_view(h->msg[i], h->viewed[i], len, how & 8 ? place : NULL, &ptr);
    if (n < 0)
        return;
    EXPECT(n > 0 && n <= (long)len && (n % 64 == 0 || n == (long)len));
    read_all(h->msg[i], ptr, (size_t)n);
    h->viewed[i] += (uint32_t)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    static struct dp_tp t;
    static struct dp_ep e;
    struct held held = { .n = 0 };

    open_both(&t, &e);
    while (in.left) {
        unsigned how = input_byte(&in);
        struct packet p;

        if (how & 1) {
            input_copy(&in, &p, sizeof p);
            t.now += 1000;
            frame(&t, &e, &p);
        }
        take(&e, &held);
        if (held.n && (how & 4))
            view(&held, (int)(how >> 1 & 1) * (held.n - 1), how);
        if (held.n && ((how & 6) == 2 || held.n == HELD))
            release(&held, 0);
    }
    while (held.n)
        release(&held, 0);
    close_both(&t, &e);
    return 0;
}
