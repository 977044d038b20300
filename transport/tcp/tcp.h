/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the tcp transport. addr.c: listening and address blobs; join.c: connecting, accepting,
 * proving the secret; path.c, recv.c: the bytes; keep.c: those that may have to be sent again;
 * resume.c: connections that are lost and made anew; secure.c: bytes that are checked or
 * encrypted; tcp.c: the table, polling, life and death.
 *
 * Connections. A connection carries messages one way, from the rank that opened it; the other
 * way it carries at most a farewell. So two ranks that first speak at the same moment need no
 * tie-break, and a rank that only receives opens nothing. Up to LANES connections per
 * direction, opened by the first message of a channel (channel modulo LANES); a stalled one
 * does not hold up another.
 *
 * A connection that is lost (a reset, a path that is gone) is no death: the sender connects
 * again, and the bytes go on where the receiver has no more of them. What both count are the
 * bytes since the first handshake; frames have no numbers. resume.c has the rules.
 *
 * On the wire after the handshake: frames of struct bny_hdr, payload, and zeros up to a
 * multiple of 16, so that payload that is lent straight from the receive buffer is aligned. */
#ifndef BNY_TCP_TCP_H
#define BNY_TCP_TCP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "transport/bootstrap/net.h"
#include "transport/msg_list.h"
#include "transport/tcp/secure.h"
#include "transport/transport.h"

#define TCP_LANES       2
#define TCP_ADDRS       BNY_NET_CANDIDATES_MAX
#define TCP_EAGER_MAX   65536u /* a longer one waits for READY: a way there more */
#define TCP_SLOT_MAX    262144u
#define TCP_ZCOPY_MIN   8192u
#define TCP_PAYLOAD_MAX (1u << 30)
#define TCP_CHUNK       131072u /* one receive buffer */
/* Receive buffers of one connection, while messages in them are held. */
#define TCP_CHUNKS_MAX    64
#define TCP_TILE          65536u
#define TCP_SLOTS         8       /* send slots of one endpoint */
#define TCP_ITEMS         128u    /* ring of messages to write; power of two */
#define TCP_ITEMS_SOFT    64u     /* eager and send stop here; the rest: commit, farewell */
#define TCP_COPY_BYTES    262144u /* eager payload that waits for the socket, per connection */
#define TCP_HALF_MAX      128     /* accepted connections that have not proven themselves yet */
#define TCP_HANDSHAKE_NS  5000000000u
#define TCP_STARVED_NS    2000000000u /* without a descriptor, or memory, for a connection */
#define TCP_CONNECT_NS    15000000000u
#define TCP_NOT_ME        UINT64_MAX
#define TCP_KIND_FAREWELL 0xf0   /* control frame, no payload */
#define TCP_KEPT_BYTES    16360u /* with its head 16 KiB */
#define TCP_LITTLE_BYTES  1000u  /* of a connection's first block, with its head 1 KiB */
#define TCP_KEPT_MAX      64     /* blocks of a connection: 1 MiB */
#define TCP_SEALED_MAX    256    /* the same where all that is sent is in them */
#define TCP_NEXT_MAX      16     /* connections that wait until the older ones were read */
#define TCP_LOOKS         4      /* at what is acknowledged, before it is copied */

struct tcp_tp;
struct tcp_ep;

/* Address blob, 208 bytes. Listening addresses, best first. */
struct tcp_blob {
    char magic[4];
    int32_t rank;
    uint32_t count;
    uint32_t reserved;
    uint8_t host[8];     /* equal for processes that share a network stack */
    uint8_t instance[8]; /* random: of the process that listens, and no later one */
    uint8_t unused[16];
    struct bny_addr addrs[TCP_ADDRS];
};
_Static_assert(sizeof(struct tcp_blob) == 208, "wire format");

/* Handshake: the connecting rank sends the hello, gets answer and proof, sends its proof. */
struct tcp_hello {
    char magic[4];
    uint16_t wire, lane;
    int32_t from, to;
    uint8_t nonce[32];
    uint32_t epoch;                   /* attempts of this lane to go on, 0: it begins */
    uint8_t integrity, ciphers;       /* enum tcp_integrity; bits of enum tcp_cipher */
    uint8_t reserved[2], instance[8]; /* of the process that is meant */
    uint8_t random[32];               /* the lane's, for its key: always the same */
};
_Static_assert(sizeof(struct tcp_hello) == 96, "wire format");

struct tcp_answer {
    uint8_t nonce[32];
    uint64_t got; /* bytes of the lane that the answering rank has, or will read; or
                     TCP_NOT_ME */
    uint8_t cipher, reserved[7];
};
_Static_assert(sizeof(struct tcp_answer) == 48, "wire format");

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
    void *cookie, *own; /* own: buf is a copy of ours */
    uint32_t copy_used; /* bytes of the copy ring that its end frees */
    int slot;
    enum tcp_item_kind kind;
};

struct tcp_kept { /* bytes that the kernel has been given */
    struct tcp_kept *next;
    uint64_t from; /* their place in the lane */
    uint32_t len, room;
    uint8_t data[];
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
    struct tcp_conn *next_connecting,
        **at_connecting; /* in tp's list; at NULL: it is in none */
    int farewell_sent, farewell_seen;
    /* handshake */
    struct tcp_hello hello;
    struct tcp_answer answer;
    struct tcp_secure *sec; /* NULL: plain */
    uint8_t random[32];
    uint8_t hs[96];
    uint32_t hs_have;
    uint64_t begun_ns, deadline_ns, give_up_ns, retry_ns; /* begun: the attempt */
    int candidate, round;
    int spared;   /* an attempt of this round says nothing against the peer: the round is not
                     counted */
    int silences; /* attempts that the peer's kernel accepted, and nobody answered */
    char why[64]; /* the latest attempt failed */
    int lacks;    /* errno, where it failed for want of something here; else 0 */
    uint64_t lacks_ns; /* since when all attempts do; 0: the latest did not */
    /* loss (resume.c) */
    uint32_t epoch;     /* of the latest attempt; incoming: of the latest that was proven */
    int resuming;       /* outgoing: was open, and is being connected again */
    int err;            /* errno of a write, which the socket tells only once */
    int tried, refused; /* addresses in this round */
    int refusals;       /* rounds in which nobody listened */
    int losses;         /* in a row, without a byte between them */
    uint64_t resumed_at;
    /* writing (outgoing) */
    struct tcp_item *items; /* [TCP_ITEMS], or NULL while nothing is queued */
    uint8_t *copy;          /* [TCP_COPY_BYTES], or NULL */
    /* Ring positions: reported <= written <= queued. Items before `written` are the kernel's,
     * and held until their bytes are acknowledged or kept. */
    uint32_t reported, written, queued;
    uint64_t write_off; /* bytes of the item at `written` that the kernel has */
    uint32_t copy_head, copy_used;
    /* Bytes since the first handshake: the next one for the kernel, and the most it has had;
     * those before `acked` the peer's kernel has, for certain; the item at `reported` begins
     * at held_from, before which they are kept, from `acked` on. */
    uint64_t pos, put, acked, held_from;
    uint64_t resend;                /* bytes before held_from that must be sent again */
    struct tcp_kept *kept, *newest; /* oldest first */
    struct tcp_kept
        *little;            /* its own, the first to be used when none is kept; NULL: not yet */
    uint32_t nkept, ask_at; /* blocks; with so many, ask what is acknowledged */
    int owed; /* counted in unsent: kept bytes that must go, a connection that must come */
    int full; /* of kept bytes: no more is sealed */
    uint32_t looks; /* in vain, since the latest write */
    /* reading (incoming) */
    uint64_t got;   /* bytes taken off the wire since the first handshake */
    uint64_t until; /* ends: fd is read up to here, then the next one */
    int ends, nnext;
    struct tcp_next {
        int fd;
        uint64_t until; /* of all but the last */
    } next[TCP_NEXT_MAX];
    struct tcp_chunk *chunk;
    uint32_t start, end; /* unread bytes of chunk */
    uint32_t nchunks;
    int starved; /* no memory to open it, or to receive by: looked at again at the next poll */
    int stalled; /* no receive buffer: held messages must be released first */
    int large;   /* the latest message was viewed: read little besides headers */
    int more;    /* delivery stopped because the caller's array was full */
    struct tcp_msg
        *streaming; /* delivered without data; nothing else is until it is released */
    uint32_t viewed, stream_left; /* given to the caller; not yet taken off the wire */
    uint32_t discard;             /* bytes to drop before the next header */
    uint32_t ncarry;
    uint8_t carry[64]; /* taken off the wire, less than what view may give */
    uint8_t *tile;     /* [TCP_TILE], while a large message is read */
};

/* There is one for each other rank, from init on: what only some need is made when it is first
 * used. */
struct tcp_ep {
    struct bny_ep ep;
    struct bny_addr *addrs; /* the peer's, best first */
    uint8_t instance[8];    /* its process */
    uint32_t naddrs;
    uint32_t slots_busy;                             /* bits */
    struct tcp_conn *out[TCP_LANES], *in[TCP_LANES]; /* NULL: not yet */
    uint8_t **slots;                                 /* NULL, or [TCP_SLOTS], NULL until used */
    uint32_t idle_polls;
    int claimed; /* connect() was called */
    int same_host;
    int left;                   /* said farewell */
    int down;                   /* 1: to be reported, 2: was reported */
    char *reason;               /* of down; NULL: there was no memory for it */
    struct bny_last_reads ends; /* since_ns > 0: it has ended, and is down after them */
};

struct tcp_tp {
    struct bny_tp tp;
    const uint8_t *secret; /* [32] */
    int integrity;         /* enum tcp_integrity */
    unsigned ciphers;      /* that we have for it */
    int told;              /* lanes whose cipher was told of */
    int epfd;
    int nlisten, listeners[TCP_ADDRS];
    struct tcp_blob blob;
    struct bny_subnet subnets[2 * TCP_ADDRS]; /* that we are on */
    int nsubnets;
    struct tcp_ep **eps; /* [nranks] */
    struct tcp_conn *active_head, **active_tail;
    struct tcp_conn *half[TCP_HALF_MAX];
    int nhalf, ndown, nends;
    struct tcp_conn *connecting;  /* list: from bny_tcp_join_begin to _end */
    struct tcp_conn *timers_next; /* of it, while the timers are looked at */
    struct tcp_conn *grave; /* dropped half-open connections, freed at the end of a poll */
    struct tcp_chunk *free_chunks, *all_chunks;
    uint8_t *free_tiles;         /* each begins with the next one's address */
    struct tcp_item *free_items; /* rings; `own` of the first item is the next one */
    uint32_t nfree_items;
    struct tcp_kept *free_kept;
    uint32_t nfree_kept;
    uint64_t replace_ns; /* in which a lost connection must be made anew; 0: it is not */
    uint64_t watch_ns;   /* when paths are looked at next */
    uint32_t serves;
    struct bny_msg_list free_msgs;
    struct tcp_msg *all_msgs;
    uint64_t foreign_log_ns;
    uint32_t foreign_held;
    int lacks;              /* errno: what this process has not got to connect to a peer */
    uint64_t starved_ns;    /* since when it could not accept one that waits; 0: it can */
    int starved_by;         /* errno: why it could not */
    uint64_t unopened_ns;   /* since when a proven one waits for memory; 0: none does */
    struct tcp_conn *spare; /* memory for the next connection to be accepted */
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
void bny_tcp_join_lost(struct tcp_conn *c); /* an attempt that waits for its answer */
/* The connection is being made: its timers count. */
void bny_tcp_join_begin(struct tcp_conn *c);
void bny_tcp_join_end(struct tcp_conn *c);
void bny_tcp_join_timers(struct tcp_tp *t);
/* Half-open connections of that rank which have only to be looked at become open. */
void bny_tcp_join_half(struct tcp_tp *t, int rank);
uint64_t bny_tcp_join_next_ns(const struct tcp_tp *t); /* absolute; UINT64_MAX: none */

/* path.c */
int bny_tcp_pending(const struct tcp_conn *c); /* bytes wait for the socket */
/* Writes what the socket takes. 0, or -1 when the connection is lost (then it is closed). */
int bny_tcp_flush(struct tcp_conn *c);
/* A connection of ours, made when there is none; NULL: no memory. bny_tcp_lane opens it, too,
 * when it is idle. */
struct tcp_conn *bny_tcp_out(struct tcp_ep *e, int lane);
struct tcp_conn *bny_tcp_lane(struct bny_ep *ep, int lane);
int bny_tcp_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
int bny_tcp_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);
int bny_tcp_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
int bny_tcp_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
void bny_tcp_cancel(struct bny_ep *ep, struct bny_slot *slot);
int bny_tcp_push_farewell(struct tcp_conn *c);
/* Whoever waits for unsent messages waits for what the connection owes, too. */
void bny_tcp_owe(struct tcp_conn *c);
/* SENT events of finished messages. */
int bny_tcp_take_sent(struct tcp_conn *c, struct bny_event *ev, int n);
/* The connection will write nothing more: everything queued is finished. */
void bny_tcp_finish_items(struct tcp_conn *c);
/* Goes back (or on) to byte `at`, which the receiver wants next. -1: that byte is not here. */
int bny_tcp_rewind(struct tcp_conn *c, uint64_t at);
void bny_tcp_recall(struct bny_tp *tp, void *cookie);

/* keep.c */
/* Asks the kernel what the peer's has acknowledged, and drops that. */
void bny_tcp_ask_acked(struct tcp_conn *c);
void bny_tcp_acked(struct tcp_conn *c, uint64_t at); /* all before it are */
/* There is room to keep len bytes. */
int bny_tcp_may_keep(struct tcp_conn *c, uint64_t len);
/* Keeps the next bytes behind those kept, after bny_tcp_may_keep. */
void bny_tcp_keep(struct tcp_conn *c, const void *data, size_t len);
/* Room for len bytes in a row, to be filled, and then kept and sent. NULL: not now. */
uint8_t *bny_tcp_keep_room(struct tcp_conn *c, uint32_t len);
void bny_tcp_keep_filled(struct tcp_conn *c, uint32_t len);
void bny_tcp_drop_kept(struct tcp_conn *c);
/* As many of the bytes to be sent again as go into iov[max]. Returns them. */
uint64_t bny_tcp_kept_iov(const struct tcp_conn *c, struct iovec *iov, int max, int *n);

/* resume.c */
/* A read or write ended the connection: err, or 0: in order, but without a farewell. After it
 * the connection is lost, and made anew, or its peer is down. */
void bny_tcp_lost(struct tcp_conn *c, int err);
/* Closes at once: what is on the way is sent no more, and the peer sees no orderly end. */
void bny_tcp_abort(int fd);
/* A round of attempts has failed. 1: the connection is given up. */
int bny_tcp_resume_gives_up(const struct tcp_conn *c, uint64_t now);
/* The answering rank's word is good: goes on from there. -1: the peer is down. */
int bny_tcp_resumed(struct tcp_conn *c);
/* What to answer a hello of this lane. */
uint64_t bny_tcp_announce(const struct tcp_conn *in);
/* A proven connection follows the lane's present one. Takes its socket. -1: not now. */
int bny_tcp_follow(struct tcp_conn *in, struct tcp_conn *fresh);
void bny_tcp_switch(struct tcp_conn *in); /* to the next socket; there is one */
void bny_tcp_close(struct tcp_conn *c);   /* all its sockets */
/* Once a second: a connection whose output waits while nobody answers is lost. */
void bny_tcp_watch_paths(struct tcp_tp *t);

/* recv.c */
int bny_tcp_deliver(struct tcp_conn *c, struct bny_event *ev, int n);
void bny_tcp_read_control(struct tcp_conn *c); /* outgoing connections: farewell or the end */
long bny_tcp_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst, const void **ptr);
void bny_tcp_release(struct bny_msg *msg);

/* tcp.c */
struct tcp_ep *bny_tcp_ep(struct tcp_tp *t, int peer); /* made on first use; NULL: no memory */
void bny_tcp_activate(struct tcp_conn *c);
void bny_tcp_shut(struct tcp_conn *c); /* for good */
void bny_tcp_down(struct tcp_ep *e, const char *why);
/* Its process has ended, or cannot be reached: down behind what came before that. */
void bny_tcp_gone(struct tcp_ep *e, const char *why);
void bny_tcp_watch(struct tcp_conn *c); /* adds fd to the epoll set */

static inline const char *tcp_reason(const struct tcp_ep *e)
{
    return e->reason ? e->reason : "and no memory is left to say why";
}

static inline uint32_t tcp_pad(uint32_t len)
{
    return (0u - len) & 15;
}

#endif
