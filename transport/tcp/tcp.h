/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the tcp transport. addr.c: listening and address blobs; tcp_join.c: connecting,
 * accepting, proving the secret; tcp_path.c, tcp_recv.c: the bytes; keep.c: bytes that may be
 * sent again; resume.c: lost connections and their replacement; secure.c: authenticated or
 * encrypted bytes; tcp.c: the table, polling, life and death.
 *
 * Connections. A connection carries messages one way, from the rank that opened it, and at most
 * a farewell the other way. So two ranks that send at the same moment need no tie-break, and a
 * rank that only receives opens nothing. Each direction has up to LANES connections, which the
 * first message of a channel (channel modulo LANES) opens; a stalled one does not block
 * another.
 *
 * A lost connection (a reset, a broken path) is not a death: the sender reconnects and
 * continues at the first byte that the receiver lacks. Both ends count the bytes since the
 * first handshake; frames have no numbers. resume.c has the rules.
 *
 * On the wire after the handshake: frames of struct bny_hdr, payload, and zeros up to a
 * multiple of 16, so that payload lent from the receive buffer is aligned. */
#ifndef BNY_TCP_TCP_H
#define BNY_TCP_TCP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/secret.h"
#include "transport/bootstrap/net.h"
#include "transport/msg_list.h"
#include "transport/tcp/secure.h"
#include "transport/transport.h"

#define TCP_LANES       2
#define TCP_ADDRS       BNY_NET_CANDIDATES_MAX
#define TCP_EAGER_MAX   65536u /* a longer message waits for CTS: one more one-way trip */
#define TCP_SLOT_MAX    262144u
#define TCP_ZCOPY_MIN   8192u
#define TCP_PAYLOAD_MAX (1u << 30)
#define TCP_CHUNK       131072u /* one receive buffer */
/* Receive buffers of one connection, while messages in them are held. */
#define TCP_CHUNKS_MAX    64
#define TCP_TILE          65536u
#define TCP_SLOTS         8    /* send slots of one endpoint */
#define TCP_ITEMS         128u /* ring of messages to write; power of two */
#define TCP_ITEMS_SOFT    64u  /* limit of eager and send; the rest is for commit, farewell */
#define TCP_COPY_BYTES    262144u /* eager payload waiting for the socket, per connection */
#define TCP_HALF_MAX      128     /* accepted connections not yet authenticated */
#define TCP_STRANGERS_MIN 16      /* for those without a name of ours; or nranks */
#define TCP_HANDSHAKE_NS  5000000000u
#define TCP_STARVED_NS    2000000000u /* without a descriptor or memory for a connection */
#define TCP_CONNECT_NS    15000000000u
#define TCP_NOT_ME        UINT64_MAX
#define TCP_KIND_FAREWELL 0xf0   /* control frame, no payload */
#define TCP_KEPT_BYTES    16360u /* with its head 16 KiB */
#define TCP_LITTLE_BYTES  1000u  /* first block of a connection, with its head 1 KiB */
#define TCP_KEPT_MAX      64     /* blocks of a connection: 1 MiB */
#define TCP_SEALED_MAX    256    /* the same if they hold everything sent */
#define TCP_NEXT_MAX      16     /* connections waiting until older ones are read */
#define TCP_LOOKS         4      /* queries of the acknowledged bytes before a copy */

struct tcp_tp;
struct tcp_ep;

/* Address blob, 208 bytes. Listening addresses, best first. */
struct tcp_blob {
    char magic[4];
    int32_t rank;
    uint32_t count;
    uint32_t reserved;
    uint8_t host[8];     /* equal for processes that share a network stack */
    uint8_t instance[8]; /* random: identifies the listening process */
    uint8_t unused[16];
    struct bny_addr addrs[TCP_ADDRS];
};
_Static_assert(sizeof(struct tcp_blob) == 208, "wire format");

/* Handshake: the connecting rank sends the hello, receives answer and proof, sends its
 * proof. */
struct tcp_hello {
    char magic[4];
    uint16_t wire, lane;
    int32_t from, to;
    uint8_t nonce[32];
    uint32_t epoch;             /* reconnection attempts of this lane, 0: first connection */
    uint8_t integrity, ciphers; /* enum bny_integrity; bits of enum tcp_cipher */
    uint8_t reserved[2], instance[8]; /* instance: of the addressed process */
    uint8_t key[32];                  /* the lane's public key (secure.h); constant */
};
_Static_assert(sizeof(struct tcp_hello) == 96, "wire format");

struct tcp_answer {
    uint8_t nonce[32];
    uint64_t got; /* bytes of the lane that the answering rank has, or will read; or TCP_NOT_ME.
                     On the wire it is xored with a pad: strangers get an answer, too */
    uint8_t cipher, reserved[7];
    uint8_t key[32]; /* public key of the answering process */
};
_Static_assert(sizeof(struct tcp_answer) == 80, "wire format");

struct tcp_keys { /* X25519; secret is 0 where nothing is protected: public is random then */
    uint8_t secret[32], public[32];
};
_Static_assert(sizeof(struct tcp_keys) <= BNY_SECRET_ROOM, "bny_secret_new() has room for it");

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

struct tcp_item { /* a message to write */
    struct bny_hdr hdr;
    const uint8_t *buf;
    void *cookie, *own; /* own: buf is a copy of ours */
    uint32_t copy_used; /* bytes of the copy ring that are free after it */
    int slot;
    enum tcp_item_kind kind;
};

struct tcp_kept { /* bytes handed to the kernel */
    struct tcp_kept *next;
    uint64_t from; /* their offset in the lane */
    uint32_t len, room;
    uint8_t data[];
};

struct tcp_chunk { /* a receive buffer; freed to the tp's list at 0 references */
    struct tcp_chunk *next, *all;
    struct tcp_conn *owner;
    uint32_t refs; /* the connection that fills it, and each message lent from it */
    _Alignas(64) uint8_t data[TCP_CHUNK];
};

struct tcp_msg {
    struct bny_msg msg;
    struct tcp_msg *all;
    struct tcp_chunk *chunk; /* buffer that holds data; NULL: viewed from conn */
    struct tcp_conn *conn;   /* while it is viewed */
};

struct tcp_conn {
    int fd;
    enum tcp_state state;
    struct tcp_tp *tp;
    struct tcp_ep *ep; /* NULL until an incoming connection is authenticated */
    int lane, outgoing;
    struct bny_addr addr; /* the peer's */
    /* attention: in tp's list of connections with something to do */
    struct tcp_conn *next_active;
    int active, readable, writable;
    struct tcp_conn *next_connecting,
        **at_connecting; /* in tp's list; at NULL: it is in none */
    int farewell_sent, farewell_seen;
    /* handshake */
    int names_us; /* incoming: its hello has our instance, which only cards tell */
    struct tcp_hello hello;
    struct tcp_answer answer;
    struct tcp_secure *sec; /* NULL: plain */
    struct tcp_keys keys;   /* outgoing: the lane's; secret until sec exists */
    uint8_t hs[112];
    uint32_t hs_have;
    uint64_t begun_ns, deadline_ns, give_up_ns, retry_ns; /* begun: the attempt */
    int candidate, round;
    int spared; /* an attempt of this round failed through no fault of the peer: do not count it
                 */
    int silences; /* attempts that the peer's kernel accepted but the peer did not answer */
    int unheard;  /* attempts that the peer's kernel did not answer either */
    int sounding; /* this attempt is at port 0 of the address: is there a path? */
    char why[64]; /* why the latest attempt failed */
    int lacks;    /* errno if a local resource was missing; else 0 */
    uint64_t lacks_ns; /* since when all attempts lack it; 0: the latest did not */
    /* loss (resume.c) */
    uint32_t epoch;     /* of the latest attempt; incoming: of the latest authenticated one */
    int resuming;       /* outgoing: was open, and reconnects */
    int err;            /* errno of a write, which the socket reports only once */
    int tried, refused; /* addresses in this round */
    int refusals;       /* rounds in which nobody listened */
    int losses;         /* consecutive losses without a byte between them */
    uint64_t resumed_at;
    /* losses of packets (paths.c): those sent, and sent again, in this window, and in the
     * windows in a row that lost too many; the counts when last seen */
    uint64_t sent, lossy_sent, seen_put;
    uint32_t resent, lossy_resent, seen_resent;
    int lossy; /* windows in a row that lost too many */
    /* and how long data was on its way, and how much arrived, when last seen */
    uint64_t seen_ns, seen_busy_us, seen_arrived;
    /* writing (outgoing) */
    struct tcp_item *items; /* [TCP_ITEMS], or NULL while nothing is queued */
    uint8_t *copy;          /* [TCP_COPY_BYTES], or NULL */
    /* Ring positions: reported <= written <= queued. Items before `written` are the kernel's,
     * and stay until their bytes are acknowledged or kept. */
    uint32_t reported, written, queued;
    uint64_t write_off; /* bytes of the item at `written` that the kernel has */
    uint32_t copy_head, copy_used;
    /* Byte counts since the first handshake: the next byte for the kernel, and the most it has
     * had; the peer's kernel surely has those before `acked`; the item at `reported` begins at
     * held_from, and bytes from `acked` up to there are kept. */
    uint64_t pos, put, acked, held_from;
    uint64_t resend;                /* bytes before held_from that must be sent again */
    struct tcp_kept *kept, *newest; /* oldest first */
    struct tcp_kept *little; /* its own block, used first if none is kept; NULL: not yet */
    uint32_t nkept, ask_at;  /* blocks; at this number query the acknowledged bytes */
    int owed;                /* counted in unsent: kept bytes to send, a connection to make */
    int full;                /* of kept bytes: no more records are sealed */
    uint32_t looks;          /* without result, since the latest write */
    /* reading (incoming) */
    uint64_t got;   /* bytes read from the wire since the first handshake */
    uint64_t until; /* ends: reads fd up to here, then the next one */
    int ends, nnext;
    struct tcp_next {
        int fd;
        uint64_t until; /* of all but the last */
    } next[TCP_NEXT_MAX];
    struct tcp_chunk *chunk;
    uint32_t start, end; /* unread bytes of chunk */
    uint32_t nchunks;
    int starved; /* no memory to open it or to receive; retried at the next poll */
    int stalled; /* no receive buffer until held messages are released */
    int large;   /* the latest message was viewed: reads little besides headers */
    int more;    /* delivery stopped because the caller's array was full */
    struct tcp_msg
        *streaming; /* delivered without data; blocks all others until it is released */
    uint32_t viewed, stream_left; /* given to the caller; not yet read from the wire */
    uint32_t discard;             /* bytes to drop before the next header */
    uint32_t ncarry;
    uint8_t carry[64]; /* read from the wire, but fewer bytes than view may return */
    uint8_t *tile;     /* [TCP_TILE], while a large message is read */
};

/* Every other rank has one from init on; rarely needed parts are allocated at their first
 * use. */
struct tcp_ep {
    struct bny_ep ep;
    struct bny_addr *addrs; /* the peer's, best first */
    uint8_t instance[8];    /* identifies its process */
    uint32_t naddrs;
    uint32_t slots_busy;                             /* bits */
    struct tcp_conn *out[TCP_LANES], *in[TCP_LANES]; /* NULL: not yet */
    uint8_t **slots;                                 /* NULL, or [TCP_SLOTS], NULL until used */
    uint32_t idle_polls;
    int claimed; /* connect() was called */
    int same_host;
    int told_gone;              /* a warning */
    int left;                   /* said farewell */
    int down;                   /* 1: to be reported, 2: was reported */
    char *reason;               /* of down; NULL: there was no memory for it */
    struct bny_last_reads ends; /* since_ns > 0: it has ended, and is down after them */
    uint64_t resent;            /* packets that were sent again, when last seen */
    uint32_t replaced;
};

struct tcp_tp {
    struct bny_tp tp;
    const uint8_t *secret; /* [32] */
    int integrity;         /* enum bny_integrity */
    unsigned ciphers;      /* available here for it */
    struct tcp_keys *keys; /* of bny_secret_new() */
    int told;              /* lanes whose cipher was logged */
    int epfd;
    int nlisten, listeners[TCP_ADDRS];
    struct tcp_blob blob;
    struct bny_subnet subnets[2 * TCP_ADDRS]; /* of our interfaces */
    int nsubnets;
    struct tcp_ep **eps; /* [nranks] */
    struct tcp_conn *active_head, **active_tail;
    struct tcp_conn *half[TCP_HALF_MAX];
    int nhalf, ndown, nends;
    struct tcp_conn *connecting;  /* list: from bny_tcp_join_begin to _end */
    struct tcp_conn *timers_next; /* next one while timers are checked */
    struct tcp_conn *grave; /* dropped half-open connections, freed at the end of a poll */
    struct tcp_chunk *free_chunks, *all_chunks;
    uint8_t *free_tiles;         /* each begins with the address of the next */
    struct tcp_item *free_items; /* rings; `own` of the first item is the next ring */
    uint32_t nfree_items;
    struct tcp_kept *free_kept;
    uint32_t nfree_kept;
    uint64_t replace_ns; /* time limit for replacing a lost connection; 0: never replaced */
    uint64_t watch_ns;   /* next check of the paths */
    int told_losses;     /* a warning, of the first path that loses packets */
    uint32_t serves;
    struct bny_msg_list free_msgs;
    struct tcp_msg *all_msgs;
    uint64_t foreign_log_ns;
    uint32_t foreign_held;
    int lacks;              /* errno: the resource that this process lacks for connecting */
    uint64_t starved_ns;    /* since when a waiting connection could not be accepted; 0: none */
    int starved_by;         /* errno of the failed accept */
    uint64_t unopened_ns;   /* since when an authenticated one waits for memory; 0: none does */
    struct tcp_conn *spare; /* memory for the next accepted connection */
};

/* addr.c */
int bny_tcp_listen(struct tcp_tp *t, const char *ifname, const char *port_range);
/* Moves the peer's addresses on networks that we share to the front: a host with several
 * interfaces is reached by the nearest, and each link of a direct network carries only its
 * neighbours' data. */
void bny_tcp_prefer_adjacent(const struct tcp_tp *t, struct tcp_blob *blob);
/* 1 if blob is that of a peer that this host can reach; fills *out. */
int bny_tcp_blob_check(const struct tcp_tp *t, int peer, const void *blob, size_t len,
                       struct tcp_blob *out, int *same_host);

/* tcp_join.c */
void bny_tcp_start_connect(struct tcp_conn *c); /* an idle outgoing connection */
void bny_tcp_accept(struct tcp_tp *t, int listener);
void bny_tcp_join_event(
    struct tcp_conn *c); /* a socket event of a connection that is not open */
void bny_tcp_join_lost(struct tcp_conn *c); /* the answer did not come */
/* Registers and removes a connection that is being made: its timers count. */
void bny_tcp_join_begin(struct tcp_conn *c);
void bny_tcp_join_end(struct tcp_conn *c);
void bny_tcp_join_timers(struct tcp_tp *t);
/* Opens that rank's half-open connections that need only a check. */
void bny_tcp_join_half(struct tcp_tp *t, int rank);
void bny_tcp_keys_make(const struct tcp_tp *t, struct tcp_keys *k);
uint64_t bny_tcp_join_next_ns(const struct tcp_tp *t); /* absolute; UINT64_MAX: none */

/* tcp_path.c */
int bny_tcp_pending(const struct tcp_conn *c); /* bytes wait for the socket */
/* Writes what the socket accepts. Returns 0, or -1 if the connection is lost (then closed). */
int bny_tcp_flush(struct tcp_conn *c);
/* Our connection, made if there is none; NULL: no memory. bny_tcp_lane also opens an idle
 * one. */
struct tcp_conn *bny_tcp_out(struct tcp_ep *e, int lane);
struct tcp_conn *bny_tcp_lane(struct bny_ep *ep, int lane);
int bny_tcp_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
int bny_tcp_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);
int bny_tcp_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
int bny_tcp_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
void bny_tcp_cancel(struct bny_ep *ep, struct bny_slot *slot);
int bny_tcp_push_farewell(struct tcp_conn *c);
/* Counts what the connection owes as unsent. */
void bny_tcp_owe(struct tcp_conn *c);
/* Returns SENT events of finished messages. */
int bny_tcp_take_sent(struct tcp_conn *c, struct bny_event *ev, int n);
/* The connection writes nothing more: finishes everything queued. */
void bny_tcp_finish_items(struct tcp_conn *c);
/* Moves to byte `at`, which the receiver needs next. -1: that byte is not here. */
int bny_tcp_rewind(struct tcp_conn *c, uint64_t at);
void bny_tcp_recall(struct bny_tp *tp, void *cookie);

/* keep.c */
/* Queries the kernel for the acknowledged bytes, and drops them. */
void bny_tcp_ask_acked(struct tcp_conn *c);
void bny_tcp_acked(struct tcp_conn *c, uint64_t at); /* all before `at` are */
/* Is there room to keep len bytes? */
int bny_tcp_may_keep(struct tcp_conn *c, uint64_t len);
/* Appends bytes to the kept ones, after bny_tcp_may_keep. */
void bny_tcp_keep(struct tcp_conn *c, const void *data, size_t len);
/* Contiguous room for len bytes, for the caller to fill; then they are kept and sent. NULL: not
 * now. */
uint8_t *bny_tcp_keep_room(struct tcp_conn *c, uint32_t len);
void bny_tcp_keep_filled(struct tcp_conn *c, uint32_t len);
void bny_tcp_drop_kept(struct tcp_conn *c);
/* Puts bytes that must be sent again into iov[max]. Returns their number. */
uint64_t bny_tcp_kept_iov(const struct tcp_conn *c, struct iovec *iov, int max, int *n);

/* resume.c */
/* A read or write ended the connection: err, or 0: in order, but without a farewell. Afterwards
 * the connection is lost and being replaced, or its peer is down. */
void bny_tcp_lost(struct tcp_conn *c, int err);
/* Closes at once: output in transit is dropped, and the peer sees no orderly end. */
void bny_tcp_abort(int fd);
/* A round of attempts has failed. 1: the connection is given up. */
int bny_tcp_resume_gives_up(const struct tcp_conn *c, uint64_t now);
/* The answering rank is authenticated: continues from its count. -1: the peer is down. */
int bny_tcp_resumed(struct tcp_conn *c);
/* The count to answer a hello of this lane with. */
uint64_t bny_tcp_announce(const struct tcp_conn *in);
/* An authenticated connection succeeds the lane's present one. Takes its socket. -1: not
 * now. */
int bny_tcp_follow(struct tcp_conn *in, struct tcp_conn *fresh);
void bny_tcp_switch(struct tcp_conn *in); /* to the next socket; there must be one */
void bny_tcp_close(struct tcp_conn *c);   /* all its sockets */
/* paths.c */
void bny_tcp_traffic(const struct bny_ep *base, struct bny_traffic *out);
/* Once per second: a connection with waiting output and an unresponsive peer is lost;
 * one that loses many packets is told of. */
void bny_tcp_watch_paths(struct tcp_tp *t);

/* tcp_recv.c */
int bny_tcp_deliver(struct tcp_conn *c, struct bny_event *ev, int n);
void bny_tcp_read_control(struct tcp_conn *c); /* outgoing connections: farewell or the end */
long bny_tcp_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst, const void **ptr);
void bny_tcp_release(struct bny_msg *msg);

/* tcp.c */
struct tcp_ep *bny_tcp_ep(struct tcp_tp *t, int peer); /* made on first use; NULL: no memory */
void bny_tcp_activate(struct tcp_conn *c);
void bny_tcp_shut(struct tcp_conn *c); /* for good */
void bny_tcp_down(struct tcp_ep *e, const char *why);
/* Its process has ended or is unreachable: down after its earlier input is delivered. */
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
