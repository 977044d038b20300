/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the tcp transport. addr.c: listening and address blobs; join.c: connecting, accepting,
 * proving the secret; path.c: the bytes; tcp.c: the table, polling, life and death.
 *
 * Connections. A connection carries messages one way, from the rank that opened it; the other
 * way it carries at most a farewell. So two ranks that first speak at the same moment need no
 * tie-break, and a rank that only receives opens nothing. Up to LANES connections per
 * direction, opened by the first message of a channel (channel modulo LANES); a stalled one
 * does not hold up another.
 *
 * On the wire after the handshake: frames of struct bny_hdr, payload, and zeros up to a
 * multiple of 16, so that payload that is lent straight from the receive buffer is aligned. */
#ifndef BNY_TCP_TCP_H
#define BNY_TCP_TCP_H

#include <stddef.h>
#include <stdint.h>

#include "transport/bootstrap/net.h"
#include "transport/msg_list.h"
#include "transport/transport.h"

#define TCP_LANES       2
#define TCP_ADDRS       BNY_NET_CANDIDATES_MAX
#define TCP_EAGER_MAX   16384u
#define TCP_SLOT_MAX    262144u
#define TCP_ZCOPY_MIN   8192u
#define TCP_PAYLOAD_MAX (1u << 30)
#define TCP_CHUNK       65536u /* one receive buffer */
/* Receive buffers of one connection, while messages in them are held. */
#define TCP_CHUNKS_MAX    64
#define TCP_TILE          65536u
#define TCP_SLOTS         8       /* send slots of one endpoint */
#define TCP_ITEMS         128u    /* ring of messages to write; power of two */
#define TCP_ITEMS_SOFT    64u     /* eager and send stop here; the rest: commit, farewell */
#define TCP_COPY_BYTES    262144u /* eager payload that waits for the socket, per connection */
#define TCP_HALF_MAX      128     /* accepted connections that have not proven themselves yet */
#define TCP_HANDSHAKE_NS  5000000000u
#define TCP_CONNECT_NS    15000000000u
#define TCP_KIND_FAREWELL 0xf0 /* control frame, no payload */

struct tcp_tp;
struct tcp_ep;

/* Address blob, 208 bytes. Listening addresses, best first. */
struct tcp_blob {
    char magic[4];
    int32_t rank;
    uint32_t count;
    uint32_t reserved;
    uint8_t host[32]; /* equal for processes that share a network stack */
    struct bny_addr addrs[TCP_ADDRS];
};
_Static_assert(sizeof(struct tcp_blob) == 208, "wire format");

/* Handshake: the connecting rank sends the hello, gets nonce and proof, sends its proof. */
struct tcp_hello {
    char magic[4];
    uint16_t wire, lane;
    int32_t from, to;
    uint8_t nonce[32];
    uint8_t reserved[16];
};
_Static_assert(sizeof(struct tcp_hello) == 64, "wire format");

enum tcp_state {
    TCP_IDLE,       /* outgoing: not needed yet */
    TCP_BACKOFF,    /* outgoing: waits for retry_ns */
    TCP_CONNECTING, /* outgoing: connect() runs */
    TCP_CHALLENGE,  /* outgoing: hello sent, waits for the proof */
    TCP_HELLO,      /* incoming: waits for the hello */
    TCP_PROOF,      /* incoming: waits for the proof */
    TCP_OPEN,
    TCP_CLOSED,
};

enum tcp_item_kind { TCP_COPY, TCP_USER, TCP_SLOT };

struct tcp_item { /* one message to be written */
    struct bny_hdr hdr;
    const uint8_t *buf;
    void *cookie;
    uint32_t copy_used; /* bytes of the copy ring that its end frees */
    int slot;
    enum tcp_item_kind kind;
};

struct tcp_chunk { /* a receive buffer; freed to the tp's list at 0 references */
    struct tcp_chunk *next, *all;
    struct tcp_conn *owner;
    uint32_t refs; /* the connection that fills it, and every message lent from it */
    _Alignas(64) uint8_t data[TCP_CHUNK];
};

struct tcp_msg {
    struct bny_msg msg;
    struct tcp_msg *all;
    struct tcp_chunk *chunk; /* where data lies; NULL: viewed from conn */
    struct tcp_conn *conn;   /* while it is viewed */
};

struct tcp_conn {
    int fd;
    enum tcp_state state;
    struct tcp_tp *tp;
    struct tcp_ep *ep; /* NULL until an incoming one has proven itself */
    int lane, outgoing;
    struct bny_addr addr; /* the peer's */
    /* attention: in tp's list of connections with something to do */
    struct tcp_conn *next_active;
    int active, readable, writable;
    int farewell_sent, farewell_seen;
    /* handshake */
    struct tcp_hello hello;
    uint8_t nonce[32], hs[64];
    uint32_t hs_have;
    uint64_t begun_ns, deadline_ns, give_up_ns, retry_ns; /* begun: the attempt */
    int candidate, round;
    int spared;   /* an attempt of this round says nothing against the peer: the round is not
                     counted */
    int silences; /* attempts that the peer's kernel accepted, and nobody answered */
    char why[64]; /* the latest attempt failed */
    /* writing (outgoing) */
    struct tcp_item *items;             /* [TCP_ITEMS] */
    uint8_t *copy;                      /* [TCP_COPY_BYTES] */
    uint32_t reported, written, queued; /* ring positions: reported <= written <= queued */
    uint64_t write_off;                 /* bytes of the item at `written` that the kernel has */
    uint32_t copy_head, copy_used;
    /* reading (incoming) */
    struct tcp_chunk *chunk;
    uint32_t start, end; /* unread bytes of chunk */
    uint32_t nchunks;
    int stalled; /* no receive buffer: held messages must be released first */
    int large;   /* the latest message was viewed: read little besides headers */
    int more;    /* delivery stopped because the caller's array was full */
    struct tcp_msg
        *streaming; /* delivered without data; nothing else is until it is released */
    uint32_t viewed, stream_left; /* given to the caller; not yet taken off the wire */
    uint32_t discard;             /* bytes to drop before the next header */
    uint32_t ncarry;
    uint8_t carry[64]; /* taken off the wire, less than what view may give */
    uint8_t *tile;     /* [TCP_TILE] */
};

struct tcp_ep {
    struct bny_ep ep;
    struct tcp_blob blob;
    struct tcp_conn out[TCP_LANES], *in[TCP_LANES];
    uint8_t *slots[TCP_SLOTS];
    uint32_t slots_busy; /* bits */
    uint32_t idle_polls;
    int claimed; /* connect() was called */
    int same_host;
    int left; /* said farewell */
    int down; /* 1: to be reported, 2: was reported */
    char reason[200];
};

struct tcp_tp {
    struct bny_tp tp;
    uint8_t secret[32];
    int epfd;
    int nlisten, listeners[TCP_ADDRS];
    struct tcp_blob blob;
    struct bny_subnet subnets[2 * TCP_ADDRS]; /* that we are on */
    int nsubnets;
    struct tcp_ep **eps; /* [nranks] */
    struct tcp_conn *active_head, **active_tail;
    struct tcp_conn *half[TCP_HALF_MAX];
    int nhalf, nconnecting, ndown;
    struct tcp_conn *grave; /* dropped half-open connections, freed at the end of a poll */
    struct tcp_chunk *free_chunks, *all_chunks;
    struct bny_msg_list free_msgs;
    struct tcp_msg *all_msgs;
    uint64_t foreign_log_ns;
    uint32_t foreign_held;
};

/* addr.c */
int bny_tcp_listen(struct tcp_tp *t, const char *ifname, const char *port_range);
/* A peer's addresses on a network that we are on too come first: a host with several interfaces
 * is reached by the nearest, and each link of a direct network carries what is for its other
 * end. */
void bny_tcp_prefer_adjacent(const struct tcp_tp *t, struct tcp_blob *blob);
/* 1 when blob is a peer's that this host can reach; fills *out. */
int bny_tcp_blob_check(const struct tcp_tp *t, int peer, const void *blob, size_t len,
                       struct tcp_blob *out, int *same_host);

/* join.c */
void bny_tcp_start_connect(struct tcp_conn *c); /* an idle outgoing connection */
void bny_tcp_accept(struct tcp_tp *t, int listener);
void bny_tcp_join_event(
    struct tcp_conn *c); /* a socket event of a connection that is not open */
void bny_tcp_join_timers(struct tcp_tp *t);
uint64_t bny_tcp_join_next_ns(const struct tcp_tp *t); /* absolute; UINT64_MAX: none */

/* path.c */
int bny_tcp_pending(const struct tcp_conn *c); /* messages wait for the socket */
/* Writes what the socket takes. 0, or -1 when the connection is lost (then it is closed). */
int bny_tcp_flush(struct tcp_conn *c);
int bny_tcp_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
int bny_tcp_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);
int bny_tcp_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
int bny_tcp_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
void bny_tcp_cancel(struct bny_ep *ep, struct bny_slot *slot);
int bny_tcp_push_farewell(struct tcp_conn *c);
/* SENT events of finished messages. */
int bny_tcp_take_sent(struct tcp_conn *c, struct bny_event *ev, int n);
/* The connection will write nothing more: everything queued is finished. */
void bny_tcp_finish_items(struct tcp_conn *c);

/* recv.c */
int bny_tcp_deliver(struct tcp_conn *c, struct bny_event *ev, int n);
void bny_tcp_read_control(struct tcp_conn *c); /* outgoing connections: farewell or the end */
long bny_tcp_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst, const void **ptr);
void bny_tcp_release(struct bny_msg *msg);

/* tcp.c */
struct tcp_ep *bny_tcp_ep(struct tcp_tp *t, int peer); /* made on first use; NULL: no memory */
void bny_tcp_activate(struct tcp_conn *c);
/* The connection ended. With a farewell seen it is only closed; else the peer is down. */
void bny_tcp_lost(struct tcp_conn *c, const char *why);
void bny_tcp_down(struct tcp_ep *e, const char *why);
void bny_tcp_watch(struct tcp_conn *c); /* adds fd to the epoll set */

static inline uint32_t tcp_pad(uint32_t len)
{
    return (0u - len) & 15;
}

#endif
