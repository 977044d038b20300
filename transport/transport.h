/* SPDX-License-Identifier: BSD-3-Clause */
/* Transport contract: reliable tagged messages between ranks. One table for each back end,
 * listed in transports.c; the conformance suite (tests/transport/) loops over that list.
 *
 * A transport knows bytes and ranks, no floats and no operations. Nothing here blocks; a call
 * that cannot proceed returns BNY_AGAIN. All calls on one bny_tp come from one thread at a time
 * (the world's progress lock).
 *
 * Messages. A message is a struct bny_hdr (wire.h) and hdr.len payload bytes. Messages from one
 * peer are delivered exactly once, intact; order is guaranteed only within one (peer, channel),
 * and not at all if caps has BNY_TP_UNORDERED. Payload up to ep->eager_max may be sent by
 * eager(): it is copied and needs no co-operation of the receiver beyond polling. Longer
 * payload goes by reserve/commit or send: the caller (engine) sends those only after the peer
 * has announced that it started the operation (CTS), unless caps has BNY_TP_DESC: then a send
 * posts only a descriptor. A sender may get BNY_AGAIN while 8 of its eager messages are not
 * released; at least 200 released ones fit behind one that is held. A receiver always drains:
 * the engine holds (lent) a message that it cannot use yet, or copies it to the heap and
 * releases it, so that no channel or operation blocks another.
 *
 * Ownership words: "lends": the memory belongs to the transport and is valid until release.
 *                  "borrows": the memory is the caller's and must stay valid until the SENT
 *                  event. */
#ifndef BNY_TRANSPORT_TRANSPORT_H
#define BNY_TRANSPORT_TRANSPORT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/counter.h"
#include "transport/shared_memory.h"
#include "transport/wire.h"

#define BNY_ADDR_MAX 512 /* largest address blob of a transport */

enum bny_tp_caps {
    BNY_TP_DESC =
        1 << 0, /* send() posts a descriptor: no data moves before the receiver's view */
    BNY_TP_PUT = 1 << 1,       /* put() and windows exist */
    BNY_TP_UNORDERED = 1 << 2, /* messages may overtake each other */
    BNY_TP_LOCAL = 1 << 3,     /* same host only */
    BNY_TP_MEM = 1 << 4,       /* mem_alloc and mem_free exist */
    BNY_TP_ATTACH = 1 << 5, /* attach() and detach() exist: devices access registered memory */
};

struct bny_tp;
struct bny_ep;

/* Common head of every transport's endpoint; the transport embeds it first in its own struct.
 */
struct bny_ep {
    struct bny_tp *tp;
    const struct bny_transport_ops *ops;
    uint64_t kept;      /* collectives/match/; transports do not touch it */
    int peer;           /* world rank */
    uint32_t eager_max; /* largest payload of eager(), at least 4096. Eager messages arrive
                           whole: data != NULL */
    uint32_t slot_max;  /* largest payload of reserve(), at least 16384 */
    uint32_t zcopy_min; /* smallest size for which send() should beat copying into reserve() */
    uint32_t whole_max; /* longer payload may arrive in pieces, which a codec must assemble
                           first; 0: no limit. The smaller of both ends' limits */
    uint32_t coming;    /* connections that may still deliver input of the peer, even if others
                           have ended; 0 if all is there once sent */
    uint32_t moved;     /* changes with each read from these connections */
    uint32_t unsent; /* messages that move only by further calls here: no connection yet, a full
                        socket */
    const _Atomic uint32_t
        *cpu; /* the peer's tp->cpu when it sent its latest message; NULL: unknown */
    /* Shared memory */
    const _Atomic uint32_t *asleep; /* not 0: the peer sleeps; NULL: no connection yet */
    uint32_t cpu_told;              /* the value of tp->cpu that the peer knows */
};

/* A dead peer's messages are read before its death counts. */
struct bny_last_reads {
    uint64_t since_ns; /* when the death was known; 0: it is not */
    uint64_t moved_ns; /* when something was read last */
    uint32_t moved;    /* ep->moved at that time */
};
#define BNY_LAST_READS_NS 2000000000u /* at most so long */
/* With no read for so long nothing more comes by itself: the peer's kernel sends what it has,
 * and a lost segment again after 200 ms. The rest may wait for other ranks, which wait for this
 * one. */
#define BNY_LAST_QUIET_NS 250000000u

/* May more come? The first call, with since_ns 0, begins. */
static inline int bny_last_reads_go_on(struct bny_last_reads *r, const struct bny_ep *ep,
                                       uint64_t now_ns)
{
    if (!r->since_ns || r->moved != ep->moved) {
        r->since_ns = r->since_ns ? r->since_ns : now_ns;
        r->moved_ns = now_ns;
        r->moved = ep->moved;
    }
    return ep->coming && now_ns - r->since_ns < BNY_LAST_READS_NS &&
           now_ns - r->moved_ns < BNY_LAST_QUIET_NS;
}

/* The peer to which data was on its way for the largest part of the time lately, though it had
 * room for it; how fast the network took that data. */
struct bny_busy_path {
    int peer;
    float part;
    double Bps;
    uint64_t seen_ns; /* 0: nothing was measured */
};

struct bny_tp {
    const struct bny_transport_ops *ops;
    int rank, nranks; /* world */
    struct bny_counter wire_bytes, messages, copied_bytes, staged_bytes, replaced, moved,
        pinned_bytes; /* banyan_stats; pinned_bytes may fall */
    uint64_t unsent;  /* of all endpoints */
    /* Set by create(): the least that any endpoint of this rank can carry, as in struct bny_ep.
     * All ranks exchange them. */
    uint32_t eager_max, slot_max, whole_max;
    uint8_t integrity; /* set by create(): enum bny_integrity of its data */
    uint32_t mbps;     /* set by create(): megabits a second, as the devices say; 0: unknown */
    char at[64];       /* set by create(), for people: its devices or addresses; "": none */
    uint32_t touches;  /* shared memory: a reader of another rank's data calls bny_touch() */
    uint32_t cpu;      /* set by the owner: 1 + the CPU it runs on, 0: irrelevant */
    struct bny_busy_path busiest; /* of transports that ask the kernel */
    /* Set by the owner for a call of eager(): more messages to this peer, or a poll, follow at
     * once. A transport that pays for each system call may wait for that. */
    uint8_t more;
};

/* n bytes of payload were copied before sending. */
static inline void bny_tp_staged(struct bny_tp *tp, uint64_t n)
{
    bny_counter_add(&tp->copied_bytes, n);
    bny_counter_add(&tp->staged_bytes, n);
}

/* What BANYAN_INTEGRITY asks for. */
enum bny_integrity {
    BNY_PLAIN,
    BNY_MAC,
    BNY_ENCRYPT,
    BNY_NO_WIRE, /* of a transport: data stays in the memory of a host or process */
};

struct bny_tp_config {
    int rank, nranks;
    int nlocal;             /* ranks on this host, a hint for buffer sizes; 0: unknown */
    const uint8_t *secret;  /* [32] authenticates connections; borrowed for the life of the
                               transport; its value at the first connect counts */
    const char *ifname;     /* BANYAN_IFNAME syntax; "" any */
    const char *port_range; /* "lo-hi" or "" */
    void *fabric;           /* loop only: the struct bny_loop_fabric that joins the ranks */
};

/* A received message. Lent from the MSG event until release(). */
struct bny_msg {
    struct bny_ep *ep;
    struct bny_hdr hdr; /* a private copy: peers cannot change it after the check */
    const void *data;   /* the whole payload, contiguous, lent; NULL: use view() */
    int descriptor;     /* 1: the sender still has the bytes; holding the message costs the
                           transport nothing */
    int touch;  /* 1: the reader calls bny_touch() for the payload as it reads; else release()
                   does */
    void *user; /* for the holder of the message */
    struct bny_msg *next; /* for the holder of the message */
};

/* Writes to each line of payload that was read (msg->touch), which destroys its content. On
 * some CPUs a line that one core only reads and another only writes costs two transactions per
 * lap, to share and to invalidate it, and a line that both write costs one. On others the
 * writes only cost, so tp->touches decides. The sender ignores the values. */
static inline void bny_touch(const void *payload, size_t bytes)
{
    volatile uint8_t *p = (volatile uint8_t *)(uintptr_t)payload;

    for (size_t at = 0; at < bytes; at += 64)
        p[at] = 0;
}

enum bny_event_kind {
    BNY_EV_MSG = 1, /* msg: message or descriptor arrived; release() it */
    BNY_EV_SENT,    /* cookie: the caller again owns the memory given to send()/put() */
    BNY_EV_DOWN,    /* ep: the peer is gone; reason text. Reported once */
};
struct bny_event {
    enum bny_event_kind kind;
    struct bny_ep *ep;
    struct bny_msg *msg;
    void *cookie;
    const char *reason; /* static or owned by the ep */
};

/* What a transport knows of its traffic with one peer, since the start. */
struct bny_traffic {
    uint64_t sent, received; /* bytes, with the transport's own */
    uint64_t resent;         /* packets that were sent again */
    uint32_t replaced;       /* connections to the peer */
    uint32_t rtt_us;         /* 0: unknown */
};

/* Describes memory that a peer may put into; CTS messages carry it unchanged. */
struct bny_window {
    uint64_t addr, bytes;
    uint32_t segment, slot; /* the transport's: shared segment id, guard slot */
    uint64_t offset, key;
};
_Static_assert(sizeof(struct bny_window) == 40, "wire format");

/* A reservation of send memory. */
struct bny_slot {
    void *mem;      /* lent: write the payload here */
    uint32_t cap;   /* bytes available, >= the requested ones */
    uint32_t index; /* the transport's */
    void *impl;     /* the transport's */
};

struct bny_transport_ops {
    char name[16];
    unsigned caps;
    /* Both ends work on the same memory, without a wire: put() copies before it returns, and
     * its cookie may be NULL. NULL: they do not. */
    const struct bny_shared_memory *shared;

    /* Creates this rank's end. Nothing is connected yet. Returns 0, or an error with its
     * sentence (-BANYAN_ENOTSUP: not possible on this machine; names what is missing). */
    int (*create)(struct bny_tp **out, const struct bny_tp_config *cfg);
    /* Writes the blob by which peers reach this rank; returns its length <= cap, or an
     * error. */
    int (*address)(struct bny_tp *tp, void *blob, size_t cap);
    /* 1 if this transport can reach a peer with this blob, else 0. The blob is untrusted
     * input. */
    int (*reachable)(struct bny_tp *tp, int peer, const void *blob, size_t len);
    /* Makes the endpoint for a peer. Returns at once; first use and poll() make the connection,
     * and sends return BNY_AGAIN meanwhile. Also called for peers that may connect to us
     * first. */
    int (*connect)(struct bny_tp *tp, int peer, const void *blob, size_t len,
                   struct bny_ep **out);
    /* Frees everything, endpoints included. Peers see this rank as gone, unless a farewell was
     * sent. */
    void (*destroy)(struct bny_tp *tp);
    /* Sends a farewell to connected peers: they report no DOWN after our end. Returns 0, or
     * BNY_AGAIN (call again). */
    int (*farewell)(struct bny_tp *tp);

    /* Sends hdr and buf[hdr->len <= eager_max], which it copies. Returns 0, BNY_AGAIN, or an
     * error. */
    int (*eager)(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
    /* Lends send memory of at least cap <= slot_max bytes. Returns 0, BNY_AGAIN (no credit), or
     * an error. */
    int (*reserve)(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
    /* Sends the reservation with hdr->len <= slot->cap bytes, in any order among reservations.
     * Succeeds, or returns an error if the peer is gone. */
    int (*commit)(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
    void (*cancel)(struct bny_ep *ep, struct bny_slot *slot);
    /* Sends buf[hdr->len] without copying if possible. Borrows buf until SENT(cookie). Returns
     * 0, BNY_AGAIN, or an error. If ep->zcopy_min is UINT32_MAX it may return -BANYAN_ENOTSUP
     * (shm between processes that may not read each other's memory, buf in no shared arena):
     * use reserve. So may window_open. */
    int (*send)(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);

    /* Windows (BNY_TP_PUT). open: describes [addr, addr+bytes) to the peer of ep, which may put
     * until close. close returns 0 if no put into it is running or can start any more,
     * BNY_AGAIN while one runs (call again; a dead peer counts as not running). */
    int (*window_open)(struct bny_ep *ep, void *addr, size_t bytes, struct bny_window *out);
    int (*window_close)(struct bny_ep *ep, struct bny_window *win);
    /* Writes src[len] into the peer's window at offset (checked against win->bytes), then
     * delivers hdr (kind PUT, hdr->len 0 payload; codec_len_raw = len) as a message ordered
     * after the data. Borrows src until SENT(cookie) is polled (cookie NULL: src is free on
     * return, no event; only for transports that copy within the call). Returns 0, BNY_AGAIN,
     * or an error; -BANYAN_ENOTSUP (without a sentence): the device cannot read src, use send.
     * window_open returns it for memory that the device cannot write. */
    int (*put)(struct bny_ep *ep, const struct bny_hdr *hdr, const void *src, uint32_t len,
               const struct bny_window *win, uint64_t offset, void *cookie);

    /* Collects up to n events of all endpoints; connects, accepts, retransmits and so on.
     * Returns their number or an error of the whole transport. */
    int (*poll)(struct bny_tp *tp, struct bny_event *ev, int n);
    /* The same for one endpoint only, without system calls if possible. */
    int (*poll_ep)(struct bny_ep *ep, struct bny_event *ev, int n);
    /* Payload bytes [off, off+len) of a message. dst != NULL: places them there (*ptr = dst).
     * dst == NULL: *ptr is lent memory (shared memory, or a tile of the transport, valid until
     * the next view of this endpoint's channel). Callers view a message front to back, without
     * gaps, one message of a channel at a time. Returns bytes available n, 0 < n <= len, a
     * multiple of 64 unless it reaches the end of [off, off+len); BNY_AGAIN if none has arrived
     * yet; or an error. */
    long (*view)(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst, const void **ptr);
    /* Returns the message; for a descriptor this causes the sender's SENT. A message need not
     * have been viewed (then its bytes are dropped). */
    void (*release)(struct bny_msg *msg);
    /* An operation has failed: the owner takes back the memory of a send() without SENT(cookie)
     * now. The transport copies the bytes that it must still send; SENT follows as usual. NULL:
     * not needed. */
    void (*recall)(struct bny_tp *tp, void *cookie);

    /* Prepares sleeping. Puts descriptors for poll(2), for reading, into fds[0..*nfds). Returns
     * the longest useful sleep in ns (UINT64_MAX: none), or 0 if something is ready: do not
     * sleep. */
    uint64_t (*arm)(struct bny_tp *tp, int *fds, int cap, int *nfds);
    /* After sleeping (or deciding not to). */
    void (*disarm)(struct bny_tp *tp);

    /* Memory that devices, or ranks of this host, reach without a copy (BNY_TP_MEM). */
    int (*mem_alloc)(struct bny_tp *tp, size_t bytes, void **out);
    int (*mem_free)(struct bny_tp *tp, void *ptr);

    /* BNY_TP_ATTACH. Registers memory of the user (from any allocator) with the device, and
     * undoes that; at must be that of an attach. Returns 0, or an error: the memory then
     * travels through slots. */
    int (*attach)(struct bny_tp *tp, void *at, size_t bytes);
    int (*detach)(struct bny_tp *tp, void *at);
    /* A hint: an operation will send from this memory, or open windows onto it, and the memory
     * stays mapped until it ends. The device may register it. NULL: no use. */
    void (*use)(struct bny_tp *tp, void *at, size_t bytes);
    /* Called after a failed operation, before each window_close, which then returns BNY_AGAIN
     * until the peer can no longer write into this window. A peer that does not poll for most
     * of a second is cut off (DOWN). NULL: window_close suffices. */
    void (*fence)(struct bny_ep *ep, const struct bny_window *win);
    /* Fills *out, for tools. NULL: the transport does not count by peer. */
    void (*traffic)(const struct bny_ep *ep, struct bny_traffic *out);
};

/* Shared memory: wakes the peer if it sleeps, after something was written for it. */
static inline void bny_ep_wake(struct bny_ep *ep)
{
    if (ep->asleep &&
        (atomic_load_explicit(ep->asleep, memory_order_relaxed) || ep->tp->cpu != ep->cpu_told))
        ep->ops->shared->area_wake(ep);
}

/* Sends a copy of len bytes, which a slot holds, with header h, which is complete. 1: sent,
 * BNY_AGAIN, or an error. */
static inline int bny_tp_send_copy(struct bny_ep *ep, const struct bny_hdr *h, const void *ptr,
                                   uint32_t len)
{
    struct bny_slot slot;
    int rc = ep->ops->reserve(ep, len, &slot);

    if (rc != 0)
        return rc;
    memcpy(slot.mem, ptr, len);
    bny_tp_staged(ep->tp, len);
    rc = ep->ops->commit(ep, &slot, h);
    return rc == 0 ? 1 : rc;
}

/* NULL-terminated. Mandatory members are never NULL (a test asserts it); members of windows and
 * memory are present if caps has their bit. */
extern const struct bny_transport_ops *const bny_transports[];
const struct bny_transport_ops *bny_transport_find(const char *name);

#endif
