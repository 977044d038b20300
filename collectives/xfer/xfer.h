/* SPDX-License-Identifier: BSD-3-Clause */
/* Which way bytes go between two ranks, by their number, by what the transport can do, and by
 * what the receiver has said:
 *   eager    copied into the transport's ring; needs nothing of the peer but room
 *   put      straight to its final place at the peer, after the peer's CTS with its window
 *   send     by reference: the peer pulls it (descriptor), or the network card reads it
 *   reserve  copied or encoded into lent send memory
 * One rule, for both ends: a sender waits for CTS where bny_xfer_needs_cts() says so of the
 * bytes that it has, and a receiver announces where bny_xfer_announces() says so of the most
 * that may come. The second holds wherever the first can hold at the other end (a test proves
 * it over all capabilities and sizes); it is wider, as either end may be able to read the
 * other's memory where the other is not. Between two ranks the receiver of several chunks
 * always announces: a sender without descriptors waits for it behind its first message. */
#ifndef BNY_COLLECTIVES_XFER_H
#define BNY_COLLECTIVES_XFER_H

#include "base/err.h"
#include "collectives/op/op_cookie.h"

/* An operation's and a peer's announcements to each other. */
struct bny_xfer {
    uint8_t cts_wanted; /* we must send CTS to it */
    uint8_t cts_sent;
    uint8_t window_wanted; /* with a window */
    uint8_t cts_seen;      /* it has started this operation */
    struct bny_window ours, theirs;
};

/* A message's bytes that are to go. */
struct bny_xfer_send {
    struct bny_op *op;
    struct bny_ep *ep;
    const struct bny_xfer *peer;
    uint32_t step; /* for the cookie */
    const char *ptr;
    uint32_t len;
    int placeable;   /* their place in the peer's window is known: */
    uint64_t offset; /* there */
    int prefers_put; /* this end shall do the copying where both could */
};

#define BNY_WAITS_FOR_CTS (-1001) /* waits for the peer's CTS; never leaves the library */

/* Payload that is better not copied through the eager ring. */
static inline int bny_xfer_is_bulk(const struct bny_ep *ep, size_t len)
{
    return len > ep->eager_max || ((ep->ops->caps & BNY_TP_DESC) && len >= ep->zcopy_min);
}

static inline int bny_xfer_may_place(const struct bny_ep *ep)
{
    return (ep->ops->caps & BNY_TP_PUT) != 0;
}

/* Must the sender of len bytes wait for the receiver's CTS? */
static inline int bny_xfer_needs_cts(const struct bny_ep *ep, size_t len, int placeable)
{
    return bny_xfer_is_bulk(ep, len) && (placeable || !(ep->ops->caps & BNY_TP_DESC));
}

/* Must a receiver of messages of up to `most` bytes announce itself? The sender may find bulk
 * what is none here (it may read us, we not it): from 4 KiB on. */
static inline int bny_xfer_announces(const struct bny_ep *ep, size_t most, int placeable)
{
    size_t least = ep->ops->caps & BNY_TP_DESC ? 4096 : ep->eager_max;

    return most > least && (placeable || !(ep->ops->caps & BNY_TP_DESC));
}

/* Sends s->len bytes under h, whose kind and lengths it sets. 1: sent, and the memory is free
 * again; 2: sent, it is borrowed until the cookie comes back; BNY_AGAIN: the transport has no
 * room; BNY_WAITS_FOR_CTS; or an error. */
int bny_xfer_send(const struct bny_xfer_send *s, struct bny_hdr *h);
/* Eagerly, whatever it is. 1, BNY_AGAIN, BNY_WAITS_FOR_CTS (no credit) or an error. */
int bny_xfer_eager(struct bny_op *op, struct bny_ep *ep, const struct bny_xfer *peer,
                   struct bny_hdr *h, const void *ptr, uint32_t len);
/* CTS to the peer, with a window over [memory, memory + bytes) where one is wanted and can be
 * made. 1: sent, BNY_AGAIN, or an error. */
int bny_xfer_announce(struct bny_op *op, struct bny_ep *ep, struct bny_xfer *x, void *memory,
                      size_t bytes);
/* The peer's CTS for an operation with `bytes` of output. Does not release msg. */
void bny_xfer_announced(struct bny_xfer *x, const struct bny_msg *msg, size_t bytes);
/* Closes our window. 0, or BNY_AGAIN while the peer still writes. fence: whatever it takes. */
int bny_xfer_close(struct bny_ep *ep, struct bny_xfer *x, int fence);

/* ---- memory of an operation that goes out by reference ---- */

/* The device that knows it now, or NULL: it is copied. */
struct bny_tp *bny_xfer_register(struct bny_world *w, void *at, size_t bytes);
void bny_xfer_deregister(struct bny_tp **tp, void *at);

#endif
