/* SPDX-License-Identifier: BSD-3-Clause */
/* Reliable messages over datagrams, for two transports: dpdk sends UDP packets, over IPv4 or
 * IPv6, through ethdev ports (transport/dpdk); ud sends datagrams of RDMA devices
 * (transport/ud). A driver (driver.h) moves the frames. tp_dgram.c: the functions of both
 * tables, set-up, polling, life and death; dgram_settings.c: settings; ports.c: ports and
 * addresses; iface.h, neighbour.c: facts from the kernel and the link; dgram_send.c,
 * dgram_recv.c: messages to packets and back; dgram_flow.c: reliability; packet.c: frames;
 * held.c: memory that a card may read; fault.c: seeded faults.
 *
 * A message is cut into fragments, one for each packet, with their message and offset. Sending:
 * memory is attached to packets if the driver can, and stays borrowed until all fragments are
 * acknowledged, and the driver holds none that was sent twice (held.c). Receiving: fragments
 * stay in the driver's buffers, and are lent from there; a message in one packet is lent whole.
 * Messages of one channel are delivered in order, each when those before it are complete. */
#ifndef BNY_DATAGRAM_DGRAM_H
#define BNY_DATAGRAM_DGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "transport/datagram/driver.h"
#include "transport/datagram/flow.h"
#include "transport/datagram/grant.h"
#include "transport/datagram/packet.h"
#include "transport/msg_list.h"
#include "transport/transport.h"

#define DP_EAGER_MAX 4096u
#define DP_SLOT_MAX  65536u
#define DP_SLOTS     32u
#define DP_EAGERS    256u                          /* messages with their own buffer */
#define DP_MESSAGES  (DP_EAGERS + DP_SLOTS + 256u) /* most in flight to a peer */
#define DP_EP_BYTES  (DP_EAGERS * DP_EAGER_MAX + DP_SLOTS * DP_SLOT_MAX)
#define DP_MAP_MOST  (64u << 20) /* ud: most registered bytes for all endpoints together */
#define DP_COPY_MAX  320u        /* fragments up to this are copied into the packet */
/* Received buffers of one peer that may be held: beyond that no credit is sent, and frames
 * beyond the credit are dropped. */
#define DP_BUDGET 512u
/* Total of all peers if a card's speed needs a wider window and peers are few. */
#define DP_SPARE_BYTES (10u << 20)
#define DP_SPARE_MAX   4096u
#define DP_FAR_NS      110000u /* round trip and queue for which the window is sized */
#define DP_RING_MIN    512u
#define DP_RING_MAX    4096u
#define DP_WIRE        24u     /* bytes around a frame: preamble, checksum, gap */
#define DP_ASK_NS      500000u /* first wait for the answer to a request for grants */
#define DP_ASK_MAX_NS  100000000u
#define DP_ACK_EVERY   8u
#define DP_ACK_NS      20000u
#define DP_JOIN_NS     15000000000u /* a pair whose link is not up by then is down */
#define DP_LINK_NS     5000000000u  /* a device's link that is down for this long is reported */
#define DP_LINK_EVERY  64u          /* polls between checks of links */
#define DP_LINGER_NS   500000000u   /* for a peer that said goodbye and may lack ours */
#define DP_NAP_NS      50000u       /* no descriptor reports packets, or timers run */
#define DP_SLEEP_NS    1000000u     /* one does: until the next check of links */
#define DP_FRAME       9216u        /* memif and ring: bytes of a frame, if not set */
#define DP_SAFE_FRAME  1514u        /* until a longer one is known to pass */
#define DP_SAFE_FRAME6 1294u        /* of IPv6: what every link passes (RFC 8200, 5) */

#define BNY_DGRAM_IP_TEXT 48

struct dp_settings {
    enum bny_dgram_kind kind;
    char device[200]; /* interface, vdev string, PCI address */
    char args[500];
    char iface[16]; /* the kernel's interface behind a device; empty: none */
    int queues;
    uint32_t frame;         /* 0: by kind */
    struct bny_dgram_ip ip; /* none: the interface's */
    int prefix; /* prefix length of our subnet, of 128; 0: the interface's, or unknown */
    struct bny_dgram_ip gateway;
    uint16_t vlan; /* 0: frames have no tag */
    enum bny_dgram_checks checks;
    struct dp_fault {
        double loss, duplicate, reorder, corrupt;
        double rate; /* bytes a second; 0: any */
        uint64_t seed;
        int on;
    } fault;
};

struct dp_blob { /* address */
    char magic[4];
    int32_t rank;
    uint8_t kind, checks;
    uint16_t udp_port;
    uint8_t mac[6];
    uint16_t queues;
    uint32_t frame;
    uint64_t nonce;
    struct bny_dgram_ip ip;
    uint8_t place[16]; /* reach of the kind: network stack or process; devices: 0 */
    uint32_t unasked;  /* UNITs that each peer may send before the first grant */
    uint16_t share;    /* packets of each peer that fit in our ring; 0: any number */
    uint8_t grants;    /* 1: we grant what peers may send to us */
    uint8_t verifies;  /* 1: our port verifies UDP checksums */
};
_Static_assert(sizeof(struct dp_blob) == 72, "wire format");

enum dp_kind { DP_FREE, DP_EAGER, DP_SLOT, DP_USER, DP_BYE };

/* An outgoing message. */
struct dp_out {
    struct dp_out *next; /* in its channel's queue, or free */
    struct bny_hdr hdr;
    const uint8_t *buf;
    void *cookie;
    struct dp_held *held; /* readers of its memory; NULL: it is copied into packets */
    uint32_t lo, hi;      /* attached range, if held is not NULL */
    uint32_t id, off;     /* off: bytes sent */
    uint32_t unacked;     /* fragments */
    uint8_t kind, all_sent;
    uint8_t twice; /* the driver may have had some fragment twice */
    uint16_t slot;
    uint8_t *own;  /* its buffer of DP_EAGER_MAX bytes, or NULL */
    uint8_t *copy; /* copy of memory that its owner took back, or NULL */
};

/* Memory of a message that frames of the driver point to. */
struct dp_held {
    struct dp_held *next;     /* list of those that outlive their message, or free */
    struct bny_dgram_ref ref; /* lives until the driver has returned all frames */
    struct dp_ep *e;
    struct dp_out *out; /* waits for that; NULL: none */
    const uint8_t *buf;
    uint32_t len;
    uint64_t since_ns;
};

struct dp_queue {                /* of one channel: messages in order */
    struct dp_out *head, **tail; /* incomplete */
    struct dp_out *sending;      /* the first not sent completely */
    uint32_t next_id;
};

struct dp_frag {
    struct dp_frag *next;
    void *buf;
    const uint8_t *data;
    uint32_t off, len;
};

/* An incoming message. */
struct dp_msg {
    struct bny_msg msg;
    struct dp_msg *next;           /* in its channel, by id */
    struct dp_msg *all;            /* list of all ever allocated */
    struct dp_frag *frags, **tail; /* by off; viewed ones are removed */
    uint32_t id, got, reach;       /* got: bytes; reach: all bytes below have arrived */
    uint8_t first, last, reported, dropped, bye;
    uint8_t whole;    /* complete, and off its channel's list */
    uint32_t end;     /* of the payload, once `last` is known */
    uint8_t *flat;    /* eager payload that came in pieces */
    uint8_t seam[64]; /* view(): bytes around a boundary */
};

struct dp_in {           /* of one channel */
    struct dp_msg *list; /* incomplete, or waiting for earlier ones; by id */
    uint32_t next_id;    /* the first incomplete one */
};

struct dp_ep {
    struct bny_ep ep;
    struct dp_blob blob;
    struct bny_dgram_port *port; /* its own for pairs, else the transport's */
    struct bny_dgram_info info;
    struct bny_dgram_addr self, other;
    uint8_t eth[BNY_DGRAM_ETH6];
    uint8_t *key; /* [32] of checks, of bny_secret_new() */
    uint64_t tag_out, tag_in;
    uint64_t tx_at, rx_at; /* tx.una and rx.cum with their upper halves: bny_dgram_high() */
    uint32_t frame, frame_wanted; /* bytes known to pass; bytes that might */
    struct bny_dgram_ip via;      /* next hop: the peer's address, or the gateway's */
    int is_routed;                /* by the gateway; until that is resolved nothing is sent */
    unsigned lanes;        /* UDP source ports: one, or one per channel if a card hashes them */
    uint64_t link_lost_ns; /* since when a device's link is down; 0: up */
    int link_told;         /* the down link was reported */
    struct bny_flow_tx tx;
    struct bny_flow_rx rx;
    struct dp_queue queue[BNY_CHANNELS];
    struct dp_in in[BNY_CHANNELS];
    struct dp_out *outs, *free_outs;
    uint8_t *memory;            /* [DP_EP_BYTES] of the driver */
    int is_unmapped;            /* ud: the device cannot read it, frames are copied */
    struct dp_out *free_eagers; /* those with a buffer */
    uint32_t slots_busy;        /* bits */
    uint32_t ending;            /* messages that wait only for the driver */
    unsigned turn;              /* next channel to serve */
    struct bny_msg_list ready;  /* to be delivered */
    struct dp_sent {
        struct dp_sent *next;
        void *cookie;
    } * sent, **sent_tail, *free_sent;
    uint32_t held;    /* received buffers */
    uint32_t starved; /* bits: channels whose next message lacks memory for assembly */
    uint32_t acks_due;
    struct bny_grant grant; /* what the peer may send us */
    struct dp_ep *next_told;
    int told;                      /* of its grants: in the list of those to be sent */
    struct bny_flow_packet *wide;  /* memory of a wider window, or NULL */
    uint64_t backlog;              /* bytes never sent; including headers */
    uint32_t demand_told;          /* KiB */
    uint64_t grant_ns, grant_wait; /* when we requested grants; time until the next request */
    uint32_t limit_told;           /* packet numbers from here on never had credit */
    uint64_t ack_since_ns;
    uint32_t echo;
    uint64_t echo_ns;
    uint64_t asked_ns;         /* request of credit, a MAC or a longer frame */
    int heard, ever_heard;     /* of the peer: since our request; at all */
    unsigned asks, queued;     /* queued: incomplete messages */
    unsigned waiting;          /* of these, messages whose memory a caller waits for */
    int port_is_own, resolved; /* resolved: its link confirmed the peer's MAC, or gave another
                                  that is used */
    uint8_t answered[6], has_answer; /* another MAC, from its link */
    int used, was_up, up, left, bye,
        down;          /* bye: 1 sent, 2 acknowledged; down: 1 to be reported, 2 was */
    uint64_t first_ns; /* of use */
    uint64_t left_ns;  /* its goodbye came */
    char reason[200];
};

struct dp_tp {
    struct bny_tp tp;
    const struct bny_dgram_driver *drv;
    struct dp_settings set;
    const uint8_t *secret;       /* [32] */
    struct bny_dgram_port *port; /* of devices; NULL with pairs */
    struct bny_dgram_info info;
    struct dp_blob blob;
    struct dp_ep **eps; /* [nranks] */
    uint8_t *active; /* [nranks] 1: may need work at each poll; others are served with links */
    int guard; /* UDP socket that reserves the port number and drops the kernel's copies; -1 */
    struct bny_msg_list free_msgs;
    struct dp_msg *all_msgs;
    struct dp_frag *free_frags;
    struct dp_block {
        struct dp_block *next;
    } * blocks; /* memory of fragments */
    struct dp_mem {
        struct dp_mem *next;
        uint8_t *at, *lo, *hi; /* lo, hi: whole pages that the port can read */
        size_t bytes;
        int kind;
    } * mem; /* of banyan_mem_*(), and attached memory */
    struct dp_held *held, *free_held;
    struct dp_held_block {
        struct dp_held_block *next;
        struct dp_held of[64];
    } * held_blocks;
    uint64_t nudged_ns, flushed_ns;
    struct dp_faults *faults;
    uint64_t drops[BNY_DGRAM_DROPS];
    struct bny_grant_pool grants; /* rate 0: no grants */
    struct dp_ep *told;           /* those with grants not sent yet */
    uint32_t eth;                 /* bytes of a frame before struct bny_dgram_head */
    int tentative;                /* the interface's IPv6 address is not usable yet */
    uint32_t polls;
    int first;    /* rank that is polled first */
    uint64_t now; /* of this poll */
};

static inline struct dp_tp *dp_tp_of(const struct dp_ep *e)
{
    return (struct dp_tp *)e->ep.tp;
}

static inline void dp_wake(const struct dp_ep *e)
{
    if (dp_tp_of(e)->active)
        dp_tp_of(e)->active[e->ep.peer] = 1;
}

/* Packets beyond the oldest missing one that the peer may send; twice as many of its received
 * buffers may be held. */
static inline uint32_t dp_window(const struct dp_ep *e)
{
    return e->rx.size ? e->rx.size : BNY_DGRAM_WINDOW;
}

static inline uint32_t dp_budget(const struct dp_ep *e)
{
    return 2 * dp_window(e);
}

/* dgram_settings.c */
int bny_dpdk_settings(struct dp_settings *s);
int bny_ud_settings(struct dp_settings *s); /* BANYAN_UD */
/* 1: the first `prefix` bits are the same. */
int bny_dgram_ip_shares(const struct bny_dgram_ip *a, const struct bny_dgram_ip *b, int prefix);

/* ports.c */
/* The transport's own port, if its kind has one. ifname: for ud. */
int bny_dgram_open_device(struct dp_tp *t, const char *ifname);
int bny_dgram_open_pair(struct dp_ep *e); /* the port to one peer */
int bny_dgram_place(enum bny_dgram_kind kind, uint8_t out[16]);
void bny_dgram_derive(struct dp_ep *e); /* tags, key, addresses */
/* Handles what becomes due without a packet: links, MACs, longer frames, credit. */
void bny_dgram_watch(struct dp_ep *e);
/* Handles a frame of the link itself: ARP or neighbour discovery, "packet too big". */
void bny_dgram_hear(struct dp_tp *t, const uint8_t *frame, uint32_t len);
/* "10.9.0.1", "fd00::1". */
const char *bny_dgram_ip_text(const struct bny_dgram_ip *ip, char text[BNY_DGRAM_IP_TEXT]);

/* credit.c: grants and windows between ranks */
uint32_t bny_dgram_bufs(const struct dp_tp *t); /* receive buffers for all peers */
uint32_t
bny_dgram_ring(const struct dp_tp *t);       /* ring places that a port should have for them */
void bny_dgram_grants_open(struct dp_tp *t); /* for the opened port */
int bny_dgram_grants_new(struct dp_ep *e);
void bny_dgram_grants_end(struct dp_ep *e);
void bny_dgram_grants_speed(struct dp_tp *t); /* the link came up */
void bny_dgram_grants_say(struct dp_ep *e, struct bny_dgram_head *h);
void bny_dgram_grants_hear(struct dp_ep *e, const struct bny_dgram_head *h);
void bny_dgram_grants_run(struct dp_tp *t);
void bny_dgram_grants_ask(struct dp_ep *e); /* if all are used up and more data waits */

/* dgram_send.c */
int bny_dgram_ep_memory(struct dp_ep *e);
const char *
bny_dgram_more(const struct dp_tp *t);            /* remedy for lack of memory: "; ..." or "" */
uint32_t bny_dgram_credit(const struct dp_ep *e); /* packets that the peer may send now */
/* The upper halves of a header's seq and ack, for its MAC: without them a packet of 2^32
 * packets before would be right again. ours: we send it. */
uint64_t bny_dgram_high(struct dp_ep *e, const struct bny_dgram_head *h, int ours);
/* Payload of the fragment at off in a frame of `frame` bytes. */
uint32_t bny_dgram_fragment(const struct dp_tp *t, uint32_t off, uint32_t frame);
void bny_dgram_push(struct dp_ep *e); /* sends what is allowed */
void bny_dgram_ack(struct dp_ep *e);  /* at once */
void bny_dgram_control(struct dp_ep *e, enum bny_dgram_type type, uint32_t off, uint32_t frame);
void bny_dgram_acked(void *ctx, struct bny_flow_packet *p);
void bny_dgram_reap(struct dp_ep *e); /* complete messages: SENT, memory */
void bny_dgram_give_up(
    struct dp_ep *e); /* no acknowledgement will come: returns all memory to its owners */
int bny_dgram_bye(struct dp_ep *e);
int bny_dgram_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
int bny_dgram_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);
int bny_dgram_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
int bny_dgram_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
void bny_dgram_cancel(struct bny_ep *ep, struct bny_slot *slot);
void bny_dgram_recall(struct bny_tp *tp, void *cookie);

/* Sent: emits SENT and frees it. */
void bny_dgram_out_done(struct dp_ep *e, struct dp_out *o);

/* held.c */
struct dp_held *bny_dgram_hold(struct dp_ep *e, const void *buf, uint32_t len); /* or NULL */
/* o is not sent any more. read: the card is known to have read all of it. */
void bny_dgram_let_go(struct dp_ep *e, struct dp_out *o, int read);
/* o continues without its memory: its frames are copied from now on. */
void bny_dgram_detach_out(struct dp_ep *e, struct dp_out *o);
void bny_dgram_held_run(struct dp_tp *t);
/* 0: no frame refers to this memory; -1: the driver keeps some. Waits up to about a second. */
int bny_dgram_held_settle(struct dp_tp *t, const void *at, size_t bytes);
void bny_dgram_held_free(struct dp_tp *t); /* after the ports are closed */

/* dgram_recv.c */
/* Processes a frame; keep: 1 if its buffer is held. */
int bny_dgram_frame(struct dp_tp *t, struct dp_ep *e, const struct bny_dgram_rx *rx);
void bny_dgram_retry(struct dp_ep *e); /* starved channels */
long bny_dgram_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst,
                    const void **ptr);
void bny_dgram_release(struct bny_msg *msg);
void bny_dgram_forget(struct dp_ep *e); /* returns every buffer */

/* fault.c */
struct dp_faults *bny_dgram_faults_new(const struct dp_fault *f, uint64_t salt);
void bny_dgram_faults_free(struct dp_faults *f);
int bny_dgram_transmit(struct dp_tp *t, struct dp_ep *e, const struct bny_dgram_tx *tx, int n);
void bny_dgram_faults_flush(struct dp_tp *t); /* delayed frames that are due */

extern const struct bny_transport_ops bny_dpdk_ops, bny_ud_ops;

/* tp_dgram.c: the functions of both transports' tables */
int bny_dgram_create(struct bny_tp **out, const struct bny_tp_config *cfg,
                     const struct bny_transport_ops *ops,
                     const struct bny_dgram_driver *(*driver)(void),
                     int (*settings)(struct dp_settings *s));
int bny_dgram_address(struct bny_tp *tp, void *blob, size_t cap);
int bny_dgram_reachable(struct bny_tp *tp, int peer, const void *blob, size_t len);
int bny_dgram_connect(struct bny_tp *tp, int peer, const void *blob, size_t len,
                      struct bny_ep **out);
void bny_dgram_destroy(struct bny_tp *tp);
int bny_dgram_farewell(struct bny_tp *tp);
int bny_dgram_poll(struct bny_tp *tp, struct bny_event *ev, int n);
int bny_dgram_poll_ep(struct bny_ep *ep, struct bny_event *ev, int n);
uint64_t bny_dgram_arm(struct bny_tp *tp, int *fds, int cap, int *nfds);
void bny_dgram_disarm(struct bny_tp *tp);
int bny_dgram_mem_alloc(struct bny_tp *tp, size_t bytes, void **out);
int bny_dgram_mem_free(struct bny_tp *tp, void *ptr);
int bny_dgram_attach(struct bny_tp *tp, void *at, size_t bytes);
int bny_dgram_detach(struct bny_tp *tp, void *at);

#define BNY_DGRAM_TABLE                                                                        \
    .caps = BNY_TP_MEM | BNY_TP_ATTACH, .address = bny_dgram_address,                          \
    .reachable = bny_dgram_reachable, .connect = bny_dgram_connect,                            \
    .destroy = bny_dgram_destroy, .farewell = bny_dgram_farewell, .eager = bny_dgram_eager,    \
    .reserve = bny_dgram_reserve, .commit = bny_dgram_commit, .cancel = bny_dgram_cancel,      \
    .send = bny_dgram_send, .poll = bny_dgram_poll, .poll_ep = bny_dgram_poll_ep,              \
    .view = bny_dgram_view, .release = bny_dgram_release, .recall = bny_dgram_recall,          \
    .arm = bny_dgram_arm, .disarm = bny_dgram_disarm, .mem_alloc = bny_dgram_mem_alloc,        \
    .mem_free = bny_dgram_mem_free, .attach = bny_dgram_attach, .detach = bny_dgram_detach

void bny_dgram_down(struct dp_ep *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
