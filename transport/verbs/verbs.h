/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the verbs transport: RC queue pairs on InfiniBand, RoCE and iWARP, made by ourselves
 * (desk.c, port.c) or through rdma_cm. fn.c: the libraries; device.c: which device; rail.c:
 * several of them;
 * tp_verbs.c: the table, polling, life and death; join.c, accept.c: connecting and proving the
 * secret; cq.c, srq.c: a completion queue, and perhaps a receive queue, for all of a device;
 * mem.c: registered memory, cache.c: what nobody registered, watch.c: while it stays what it
 * is; slab.c: how much of ours. What two ranks have with each other, slabs
 * and credits, is in peer.h: peer.c, its memory; read.c, the ends of messages. A queue pair and
 * its requests are in lane.h: conn.c makes it; lane.c has another one for one that broke;
 * path.c: on their way out; arrive.c: in; stripe.c: over several of them; recall.c: without the
 * user's memory.
 *
 * Messages. A rank writes a message (48-byte header at offset 0, payload at 64) with
 * WRITE_WITH_IMM into a slot of the receiver's slab, which it may use because it has its
 * credit. There are two kinds of slots:
 *   eager  up to 256 of 4 KiB. Both ends keep them in one order: message n takes the n-th of
 * it, and those that are freed are put at its end, so no message says where it is. They are
 *            freed in any order, many told at once: of the messages that are not told yet, so
 *            many after skipping those that are held (bny_verbs_free_order)
 *   bulk   up to 8 of up to 256 KiB, used in any order; each one's freedom is told as it
 *            comes. Longer messages travel in pieces, one such message at a time, in at most
 *            half of the slots
 * The immediate says kind and slot: kind << 28 | value. Whatever is told to a peer is an
 * immediate, so a receiver never looks at memory that no completion vouches for, and a sleeper
 * is woken by all of it. Every immediate consumes a receive request; credits bound how many can
 * be under way (RECVS), so the receiver is always ready (RNR cannot happen). Where queues are
 * short there are fewer requests than slots, and a count of what was taken is told, too
 * (depth.c).
 *
 * Messages arrive in the order in which they were sent, but that those of other channels may
 * pass one that is longer than a slot and waits for slots.
 *
 * Rails and lanes. A rank may use several devices (rails: rail i of one rank joins rail i of
 * the other) and several queue pairs on each (BANYAN_VERBS_QPS). A lane is the connection of
 * one queue pair; lane k is at home on rail k % rails. Lane 0 carries every message's
 * immediate, in order, and everything short. Of a long payload the other lanes may carry
 * stripes: a stripe is a write with an immediate of its own, and the message's immediate on
 * lane 0 says which lanes carry one (bits from VB_LANES_AT). Both are sent in one order, and a
 * lane is a queue: so the n-th message that names a lane has the n-th stripe of that lane. The
 * receiver counts the stripes that came on each lane, and hands a message on when all of its
 * are here; what comes after it on lane 0 waits behind it (stripe.c). Every stripe belongs to a
 * message that has a credit, so that credits bound the stripes of a lane, too.
 *
 * A lane whose queue pair breaks gets another one, over another rail if its own does not serve:
 * everything recorded on it goes that way, and nothing is lost or doubled (lane.c). When its
 * own serves again, it goes home the same way (rail.c).
 *
 * Up to VB_RAILS rails. A window has room for the keys of four devices; those of the others go
 * ahead of it once a region and peer, as VB_IMM_KEYS on lane 0 (mem.c, stripe.c). Who has up to
 * four never sees it.
 *
 * Slots are in a slab of our own at either end, registered once with each device: 3.02 MiB to
 * receive and as much to send, a peer and device, in jobs of up to 43 ranks, and less in larger
 * ones (slab.h); and VB_LANE_BYTES a lane. VB_PEER_BYTES bounds all of it. A queue pair that
 * breaks is replaced, the slabs stay.
 *
 * Devices without immediates (iWARP) get a note behind the data instead: a message of 8 bytes,
 * the immediate and the length. */
#ifndef BNY_VERBS_VERBS_H
#define BNY_VERBS_VERBS_H

#include <stddef.h>
#include <stdint.h>

#include "transport/bootstrap/net.h"
#include "transport/msg_list.h"
#include "transport/proof.h"
#include "transport/transport.h"
#include "transport/verbs/fn.h"
#include "transport/verbs/slab.h"

#define VB_EAGER_TELLS 5u   /* tellings of freed slots that the peer may not have taken yet */
#define VB_RAILS       8u   /* devices of a rank, at most: an address has room for so many */
#define VB_WINDOW_KEYS 4u   /* that a window has room for: further ones are told before */
#define VB_FURTHER     256u /* regions whose further keys a peer keeps */
#define VB_WINDOWS     256u /* that are open to a peer at a time, at most: power of two */
#define VB_LANES       16u  /* queue pairs to a peer, at most: bits of an immediate */
#define VB_LANES_AT    12u  /* where they begin in its value */
/* registered for a peer, at most */
#define VB_PEER_BYTES(rails, lanes) ((rails)*2ull * VB_SLAB_BYTES + (lanes)*VB_LANE_BYTES)
/* Shortest payload that goes over other lanes, and about the shortest stripe. */
#define VB_STRIPE_MIN 65536u
#define VB_ZCOPY_MIN  4097u /* from here on registered memory is sent as it is */
/* Receive requests posted, at most: all credits, their returns, a farewell, and a batch; and
 * those of ranks with so many eager slots, which shrink in larger jobs (slab.h). */
#define VB_RECVS           320u
#define VB_RECVS_OF(eager) ((eager) + 64u)
#define VB_RECV_BATCH      16u
#define VB_SENDS           512u /* send requests that may be under way, at most; power of two */
#define VB_SENDS_OF(eager) ((eager) < 32u ? 64u : 2u * (eager))
#define VB_SHAPES          4u           /* headers that both ends remember */
#define VB_WR_RECV         (1ull << 63) /* wr_id: of receive requests, with the note */
#define VB_WR_HELLO        (1ull << 62)
#define VB_LONG_MAX        (1u << 30)
#define VB_LONGS           8u /* they fit into the spare requests: conn_close() */
/* with what was reserved, and committed behind them; power of two */
#define VB_WAITING (VB_LONGS + VB_BULK_SLOTS)
#define VB_GIDS    8    /* of a port that its peers are told, at most */
#define VB_INLINE  220u /* asked for; what the device gives is read back */
/* A network that does not carry a first connection by then: the peer is down. */
#define VB_JOIN_S 15.0
/* The same where its kernel does not answer TCP: that happens also while it computes, where
 * more come to it than it keeps. */
#define VB_SILENCE_S 60.0
/* Incoming connections that have not proven themselves, of a rank among so many: each takes
 * locked memory (VB_PEER_BYTES). Who comes on top is told to ask again. */
#define VB_HALF_MAX(ranks) ((ranks) < 64 ? 64u : (ranks) > 256 ? 256u : (uint32_t)(ranks))
/* Requests that the kernel keeps for us while we compute: of every peer one. */
#define VB_BACKLOG(ranks) ((ranks) < 64 ? 64 : (ranks))
#define VB_SRQ_SPARE      256u /* of a shared receive queue: srq.c */
/* its entries; each has as much memory as a hello. lanes: of each rank, at most; recvs: of a
 * queue pair */
#define VB_SRQ_ENTRIES(ranks, lanes, recvs)                                                    \
    (((ranks)-1ull) * (lanes) * ((recvs) + 1) + VB_HALF_MAX(ranks) + VB_SRQ_SPARE)

/* Adaptive routing. Switches that choose a way for each packet spread plain writes only: those
 * with an immediate keep their order. So where that may be, a long write goes without, and an
 * empty write with the immediate follows: the device completes it when all before it is there,
 * in whatever order its packets came. Its length is 0 then, and what was written is what the
 * header says. */
#define VB_APART_MIN 8193u

/* Values, 28 bits. KEYS, CLOSE: slot. EAGER: slot, shape << 8, lanes << 12. AGAIN, PUT_AGAIN:
 * what the header of that shape became: shape << 26, chunk << 16, growth of seq << 8, growth of
 * started. FREED_EAGER: how many are free, those before them that are not << 12. TAKEN: the low
 * 24 bits of a count. FREED_BULK: a slot. BULK, LONG, PART: slot, lanes << 12. STRIPE: 0. */
enum vb_imm {
    VB_IMM_EAGER = 1,
    VB_IMM_BULK,
    VB_IMM_FREED_EAGER,
    VB_IMM_FREED_BULK,
    VB_IMM_FAREWELL,
    VB_IMM_LONG,
    VB_IMM_PART,
    VB_IMM_AGAIN,
    VB_IMM_PUT_AGAIN,
    VB_IMM_STRIPE,
    VB_IMM_KEYS,
    VB_IMM_TAKEN,
    VB_IMM_CLOSE
};

enum vb_how { VB_HOW_CM, VB_HOW_QP }; /* how connections are made: rdma_cm, or desk.c */

struct vb_place { /* a rail, in an address */
    struct bny_addr addr;
    uint32_t mbps; /* of its port; 0: unknown */
    char device[28];
    uint8_t transport; /* enum ibv_transport_type */
    uint8_t mtu;       /* enum ibv_mtu: of its port, now; 0: it has none, or none is known */
    uint8_t how;       /* enum vb_how */
    uint8_t kinds;     /* VB_HOW_QP: bits, 1 << enum ibv_gid_type of the GIDs that it has */
    uint16_t pkey;     /* VB_HOW_QP */
    uint8_t reserved[2];
};
_Static_assert(sizeof(struct vb_place) == 60, "wire format");
struct vb_blob { /* address; as long as it has rails */
    char magic[4];
    int32_t rank;
    uint8_t nrails, qps; /* qps: queue pairs on each */
    uint8_t slab;        /* its shape's number */
    uint8_t reserved[5];
    struct vb_place rail[VB_RAILS];
};
_Static_assert(sizeof(struct vb_blob) == 16 + VB_RAILS * 60, "wire format");

/* Keys of a region with the devices that a window has no room for, told once before the first
 * window onto it, in an eager slot. The window has the region's number + 1 as its segment. */
struct vb_further {
    uint32_t region, key[VB_RAILS - VB_WINDOW_KEYS];
};

/* A window of an operation that failed, in an eager slot: whoever puts to it stops and answers;
 * what it put is here when its answer is, as messages arrive in order. */
struct vb_closing {
    uint32_t window; /* number | generation << 5 */
    uint32_t answer;
};

/* Private data of the connection request, and of its acceptance. */
struct vb_request {
    char magic[4];
    uint16_t wire;
    uint8_t resumes, notify; /* resumes: the connection is open where the request comes from,
                                and lost its queue pair */
    int32_t from, to;
    uint8_t nonce[16];
    uint8_t lane, rail; /* rail: of both ends */
    uint8_t reserved[2];
};
_Static_assert(sizeof(struct vb_request) == 36, "wire format");
struct vb_accept {
    uint8_t nonce[16], proof[BNY_PROOF_BYTES];
};

/* The first message each way: proof, and where the peer may write. */
struct vb_hello {
    uint8_t proof[BNY_PROOF_BYTES]; /* of the rest, too */
    uint64_t addr;
    uint32_t rkey, slab_bytes;
    uint32_t eager_slots, bulk_slots;
    uint32_t delivered;  /* immediates that came over the connection before */
    uint32_t eager_most; /* messages to eager slots that may be under way */
};
_Static_assert(sizeof(struct vb_hello) == 64, "wire format");

enum vb_state {
    VB_IDLE,
    VB_ADDR,      /* active: resolving the address */
    VB_ROUTE,     /* active: resolving the route */
    VB_ASKING,    /* active: request sent */
    VB_YIELDED,   /* both asked; the peer's request will come */
    VB_ACCEPTING, /* passive: accepted */
    VB_HELLO,     /* established: waits for the peer's hello */
    VB_OPEN,
    VB_DRAINING, /* the queue pair broke; then IDLE, with a connection */
    VB_CLOSED,
};

struct vb_tp;
struct vb_ep;
struct vb_msg;
struct vb_cache;
struct vb_cq;   /* cq.c */
struct vb_lane; /* lane.h */
struct vb_peer; /* peer.h */

struct vb_srq {          /* a shared receive queue */
    struct ibv_srq *srq; /* NULL: each queue pair has a queue of its own */
    struct ibv_mr *mr;
    char (*bytes)[sizeof(struct vb_hello)]; /* [n]: the entries' memory */
    uint32_t *idle;                         /* [n]: entries that are not posted */
    uint32_t n, nidle;
    uint32_t wanted; /* the shares of all queue pairs */
    uint32_t ended;  /* queue pairs that are no more; VB_SRQ_SPARE at most */
};

struct vb_parked { /* an identifier whose end would be told over a port that is down: lane.c */
    struct rdma_cm_id *id;
    int established;
    struct vb_parked *next;
};

struct vb_gid { /* wire format */
    uint8_t raw[16];
    uint8_t type;     /* enum ibv_gid_type */
    uint8_t bits;     /* of the subnet that its address is on; 0: unknown */
    uint16_t index;   /* in its owner's table */
    uint32_t ifindex; /* its owner's interface; 0 on the wire */
};
_Static_assert(sizeof(struct vb_gid) == 24, "wire format");

struct vb_port {                 /* what desk.c has to know of a rail's port */
    struct vb_gid gids[VB_GIDS]; /* that may be used, the best first */
    int ngids;
    uint16_t lid, pkey, pkey_index;
    uint8_t lmc;
    int tc; /* that the machine's owner set for the port; -1: none */
};

struct vb_rail { /* a device's port */
    struct rdma_cm_id *listener;
    struct ibv_context *ctx; /* the listener's device; owned by librdmacm, or the desk */
    struct vb_port port;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct vb_cq *cqs; /* cq.c */
    struct vb_srq shared;
    struct bny_addr addr;
    uint32_t mbps;
    uint8_t mtu;  /* enum ibv_mtu: the port's active one; 0: unknown, or iWARP */
    int ethernet; /* RoCE */
    int index;
    int down; /* 1: its port is; 2: the device is gone for good */
    struct vb_parked *parked;
    char device[64];
    char at[80]; /* "mlx5_0 port 1" */
};

/* Windows of ours, by number, and of the peer's. A number's generation grows with each window
 * that was closed while the peer might still put. */
struct vb_windows {
    /* bits; closing: fenced; closed: the peer says so */
    uint32_t open[VB_WINDOWS / 32], closing[VB_WINDOWS / 32], asked[VB_WINDOWS / 32],
        closed[VB_WINDOWS / 32];
    uint32_t generation[VB_WINDOWS];
    uint64_t cut_ns[VB_WINDOWS]; /* of closing ones: the peer is waited for until then */
    uint32_t shut[VB_WINDOWS];   /* of the peer's: the first generation that may be put to */
    uint32_t answers_due[VB_WINDOWS / 32], nanswers; /* bits; how many there are */
};

/* A peer; or one of the further lanes to it, of which ep, state, conn, trial and what is about
 * them count. */
struct vb_ep {
    struct bny_ep ep;
    struct vb_ep *main; /* itself, but of further lanes */
    uint32_t lane;
    uint32_t tries;      /* attempts since it last had a queue pair: each over the next rail */
    uint32_t refused;    /* bits: rails where the peer let nobody in */
    uint64_t attempt_ns; /* the attempt's deadline, where there are several rails */
    uint32_t lanes_open; /* bits: further lanes that may be used now */
    uint32_t nlanes;     /* numbers of lanes that are known; 1: only the first */
    uint32_t weight[VB_RAILS];
    uint32_t told_keys[VB_FURTHER / 32]; /* bits: regions whose further keys it was told, or is
                                            before anything else when the connection opens */
    uint32_t next_lane;                  /* that begins the next stripes */
    int growing;                         /* a further lane that is in t->joining */
    uint64_t leaving_ns; /* its farewell waits for stripes: until then nothing is made of closed
                            connections; 0: it does not */
    struct vb_ep *lanes[VB_LANES]; /* [0] is NULL */
    int nrails, qps;               /* that both ends have */
    struct vb_blob blob;
    enum vb_state state;
    struct vb_lane *conn,
        *trial; /* trial: our attempt to make one, or to replace its queue pair */
    uint64_t deadline_ns, again_ns;
    uint32_t busy;   /* times in a row that the peer was busy */
    int patient;     /* the deadline passed in silence, which is waited out */
    int unheard;     /* the deadline is that of silence over TCP */
    char broke[300]; /* why the queue pair is being replaced */
    int claimed;     /* connect() was called */
    struct vb_windows windows;
    int left, farewell_sent, gone; /* gone: the connection was ended by the peer */
    int down;                      /* 1: to be reported, 2: was */
    char reason[460];
};

struct vb_region { /* memory of the user that is registered */
    char *at;
    size_t bytes;
    struct ibv_mr *mr[VB_RAILS];
    uint32_t number; /* below VB_FURTHER: of those whose further keys may be told */
    int ours;        /* not the user's: nothing is detached */
    struct vb_region *next;
};

/* BANYAN_VERBS_PATH; -1: left to rdma_cm, or to the port. */
struct vb_path {
    int tc;        /* traffic class: DSCP x 4 + ECN bits */
    int sl;        /* service level; over RoCE the priority */
    int timeout;   /* 4.096 us x 2^timeout before a packet is sent again */
    int retry;     /* times that it is */
    int gid_index; /* BANYAN_IB_GID_INDEX */
    int pkey;      /* BANYAN_IB_PKEY; -1: the port's */
};

/* What a rank's devices allow, of all of them the least; UINT32_MAX: any. */
struct vb_limits {
    uint32_t wr, cqe, sge;
    int shared; /* receive requests are in a queue of all queue pairs */
};
/* Queues of a rank: how deep they are. */
struct vb_depth {
    uint32_t sends;        /* records under way on a lane */
    uint32_t spare;        /* of them, kept for credits and farewells */
    uint32_t signal_every; /* records that one completion tells of */
    uint32_t requests;     /* of the device, that a record may need */
    uint32_t sges;         /* pieces of memory of a request: 1 or 2 */
    uint32_t recvs;        /* receive requests of a queue pair, besides the hello's */
    uint32_t recv_batch;   /* that are posted again at once */
    uint32_t eager;        /* messages to eager slots that we have not taken, at most */
};

struct vb_tp {
    struct bny_tp tp;
    struct vb_depth depth;
    struct vb_slab slab; /* all ranks' */
    struct vb_path path;
    const struct vb_fn *fn;
    int datagrams; /* transport/ud: devices that have no connected queue pairs serve, too */
    enum vb_how how;
    const char *port_range; /* for listeners, while the transport is made */
    struct vb_fn own;       /* VB_HOW_QP: the libraries' but for rdma_cm, which is desk.c */
    const uint8_t *secret;  /* [32] */
    struct rdma_event_channel *events;
    struct vb_rail rails[VB_RAILS];
    int nrails;
    uint32_t max_msg; /* bytes of one request; of all rails the least */
    int notify;       /* the devices have no immediates */
    int apart;        /* BANYAN_IB_AR: long writes have none, it follows alone */
    int relaxed;      /* BANYAN_IB_RELAXED_ORDERING: what is written comes in any order */
    unsigned ncqs;    /* completion queues, so far */
    int told_apart;   /* peers that have no rail in common with us */
    struct vb_blob blob;
    struct vb_ep **eps;   /* [nranks] */
    struct vb_lane *half; /* incoming, not proven */
    uint32_t nhalf;
    struct vb_lane *dead; /* to be freed once no message is lent from them */
    struct vb_region *regions;
    struct vb_cache *cache; /* cache.c; NULL: there is none */
    struct bny_msg_list free_msgs;
    struct vb_msg *all_msgs;
    int joining;               /* connections in the making */
    uint64_t seen_ns, away_ns; /* cm_progress: its latest call; the latest that came a second or
                                  more after the one before */
    uint64_t turned_away;      /* requests that were not from ranks of this job */
    uint64_t told_busy;        /* requests that were answered so */
    struct {
        int err; /* errno: what this process lacks for connections; 0: nothing */
        char why[400];
        uint64_t first_ns, last_ns; /* requests that could not be answered */
    } lack;                         /* lack.c */
    uint64_t home_ns; /* when lanes that are not at home are tried there next; 0: none moved */
    uint64_t home_wait; /* ns between two such times */
    int came_home;      /* one did, since the last time */
    int first;          /* rank that is polled first */
    uint32_t turns;
};

/* desk.c */
/* Takes rdma_cm's place in t->fn and t->events. 0, or an error. */
int bny_verbs_desk_open(struct vb_tp *t);
int bny_verbs_desk_contexts(const struct vb_tp *t, struct ibv_context *const **out);

/* port.c */
enum { VB_NO_PORT = 1 };
/* As bny_verbs_listen, for VB_HOW_QP. VB_NO_PORT: nothing has that name. */
int bny_verbs_port_listen(struct vb_tp *t, struct vb_rail *rail, const char *name);
/* The port alone, and its number: rail has device, context and port. 0, VB_NO_PORT or an error.
 */
int bny_verbs_port_find(struct vb_tp *t, struct vb_rail *rail, const char *name, int *number);
/* GIDs, LID and the place of its key may have changed: what is connected next uses them. */
void bny_verbs_port_renew(struct vb_tp *t, struct vb_rail *rail, int number);
/* The best pair: *mine of the rail's, *theirs of theirs[n]. 0: no two fit. */
int bny_verbs_port_pair(const struct vb_rail *rail, const struct vb_gid *theirs, int n,
                        int *mine, int *other);
const char *bny_verbs_gid_text(const struct vb_gid *g, char *out); /* out[64] */
/* Are they of one network, as far as addresses tell? */
int bny_verbs_port_meets(const struct vb_port *a, const struct vb_port *b);
#define VB_NEAR_NAME 80
/* Of all ports that ifname does not exclude, those that are nearest to this rank, at most
 * `most`: names as BANYAN_IFNAME has them. Returns how many; 0: there is nothing to choose. */
int bny_verbs_port_near(struct vb_tp *t, const char *ifname, char (*names)[VB_NEAR_NAME],
                        int most);
/* The same where rdma_cm connects: of the devices of our addresses. */
int bny_verbs_cm_near(struct vb_tp *t, const char *ifname, char (*names)[VB_NEAR_NAME],
                      int most);
struct vb_near;
/* The choice of both, and what is said of it. */
int bny_verbs_near_take(const struct vb_tp *t, struct vb_near *near, int n,
                        char (*names)[VB_NEAR_NAME], int most);
void bny_verbs_near_apart(const char *device, const char *first);

/* depth.c */
/* The depth within these limits for so many eager slots, where a record needs so many requests.
 * 0; or the room for requests that a queue pair needs at least. Pure. */
uint32_t bny_verbs_depth_of(struct vb_depth *d, const struct vb_limits *l, uint32_t eager,
                            uint32_t requests);
int bny_verbs_depth(struct vb_tp *t); /* sets t->depth. 0, or an error */

/* device.c */
/* Opens a rail at what `name` is: interfaces as for tcp, or a device: "mlx5_0", "mlx5_0:1" (its
 * port). The rails so far are left out. */
int bny_verbs_listen(struct vb_tp *t, struct vb_rail *rail, const char *name);
struct sockaddr *bny_verbs_sockaddr(const struct bny_addr *a, struct sockaddr_storage *ss);
void bny_verbs_describe(struct vb_lane *c, int rank);
#define VB_REMEDY 260
/* What to do about a path that loses everything: as in "see that ...". */
const char *bny_verbs_path_remedy(const struct vb_ep *e, const struct vb_rail *rail, char *out);
/* What to do about a completion in error; out[VB_REMEDY], which it returns. */
const char *bny_verbs_remedy(const struct vb_lane *c, enum ibv_wc_status status, char *out);

/* rail.c */
int bny_verbs_nonblocking(int fd);
int bny_verbs_is_iwarp(const struct vb_rail *rail);
int bny_verbs_apart(struct vb_tp *t); /* sets t->apart. 0, or an error */
int bny_verbs_rails_open(struct vb_tp *t, const char *ifname); /* one a part of a list */
void bny_verbs_rails_close(struct vb_tp *t);
struct vb_rail *bny_verbs_rail_of(struct vb_tp *t,
                                  const struct rdma_cm_id *id); /* NULL: none of ours */
/* How many rails a rank with this blob and ours have in common; 0: none. */
int bny_verbs_rails_common(const struct vb_tp *t, const struct vb_blob *b);
int bny_verbs_relaxed(struct vb_tp *t); /* may what comes be written in any order? 0 or error */
/* Tells why they have none. */
void bny_verbs_rails_apart(struct vb_tp *t, int peer, const struct vb_blob *b);
void bny_verbs_async(struct vb_tp *t); /* what the devices tell by themselves */
/* Its lanes go elsewhere where they can; others go down. why: as in "rank 1 is not reached any
 * more: ...". */
void bny_verbs_rail_down(struct vb_tp *t, struct vb_rail *rail, int how, const char *why);
/* The rail of the next attempt to connect a lane. */
struct vb_rail *bny_verbs_rail_next(const struct vb_ep *e);
int bny_verbs_rail_others(
    const struct vb_ep *e,
    const struct vb_rail *rail); /* rails besides this one that may serve */
struct vb_rail *bny_verbs_home(const struct vb_ep *e);
void bny_verbs_go_home(
    struct vb_tp *t); /* asks for the lanes that are elsewhere; when it is time */
void bny_verbs_has_moved(struct vb_lane *c); /* to another rail, home perhaps */

/* First byte of a rejection's private data. */
enum vb_refusal {
    VB_TURNED_AWAY = 1 /* both asked */,
    VB_NO_MEMORY,
    VB_NOT_ABLE,
    VB_GIVEN_UP /* it will not talk to us again */,
    VB_OTHER_VERSION,
    VB_NOT_NOW /* or not over this rail */,
    VB_BUSY /* too many ask at once: ask again, later each time */,
    VB_NO_DESCRIPTOR
};

/* ep.c */
struct vb_ep *bny_verbs_ep(struct vb_tp *t, int peer);
struct vb_ep *bny_verbs_lane_ep(struct vb_tp *t, int peer,
                                uint32_t lane); /* NULL: no memory, or no such lane */
void bny_verbs_grow(struct vb_ep *e); /* asks for further lanes if that is for us to do */

/* route.c */
int bny_verbs_path_settings(int rank, struct vb_path *p);
void bny_verbs_path_options(const struct vb_tp *t, struct rdma_cm_id *id); /* of either end */
unsigned bny_verbs_mtu_bytes(unsigned code);            /* of an enum ibv_mtu; 0 of 0 */
unsigned bny_verbs_path_mtu(const struct vb_lane *c);   /* the smaller end's; 0: unknown */
int bny_verbs_resolve_route(struct vb_lane *c, int ms); /* as rdma_resolve_route */
/* 0: the queue pair has a longer MTU than one of the ends, for why's reason. */
int bny_verbs_mtu_fits(const struct vb_lane *c, char *why, size_t cap);

/* accept.c */
void bny_verbs_requested(struct vb_tp *t, struct rdma_cm_id *id, const uint8_t *data,
                         size_t len);

/* join.c */
/* Of the request and the acceptance. Borrows from c. */
struct bny_transcript bny_verbs_said(const struct vb_lane *c);
struct rdma_conn_param bny_verbs_param(const struct vb_tp *t, const void *data, size_t len);
void bny_verbs_ask(struct vb_ep *e); /* starts to connect; where there is a connection that
                                        serves: a better one */
void bny_verbs_cm_progress(struct vb_tp *t); /* connection events, hellos and deadlines */

/* srq.c */
int bny_verbs_srqs_open(struct vb_tp *t); /* one for each rail, if they are asked for */
void bny_verbs_srq_close(struct vb_tp *t, struct vb_rail *rail); /* after all queue pairs */
int bny_verbs_srq_fill(struct vb_rail *rail,
                       uint32_t least); /* if at least so many requests are missing */
int bny_verbs_srq_share(struct vb_lane *c, uint32_t share); /* c's share is this from now on */
/* What a completion took is free again; returns its memory, which stays until the next fill. */
const void *bny_verbs_srq_take(struct vb_rail *rail, const struct ibv_wc *wc);
void bny_verbs_srq_leave(struct vb_lane *c); /* before its queue pair goes */
void bny_verbs_srq_last(struct vb_tp *t,
                        const struct ibv_qp *qp); /* it took its last request */

/* path.c, read.c */
int bny_verbs_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
int bny_verbs_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
int bny_verbs_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
void bny_verbs_cancel(struct bny_ep *ep, struct bny_slot *slot);
int bny_verbs_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);
int bny_verbs_put(struct bny_ep *ep, const struct bny_hdr *hdr, const void *src, uint32_t len,
                  const struct bny_window *win, uint64_t offset, void *cookie);
long bny_verbs_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst,
                    const void **ptr);
void bny_verbs_release(struct bny_msg *msg);

/* recall.c */
void bny_verbs_recall(struct bny_tp *tp, void *cookie);

/* mem.c */
/* Registers memory of our own, or of the user. 0, or an error. The caller keeps r. */
int bny_verbs_region_add(struct vb_tp *t, struct vb_region *r, void *at, size_t bytes);
void bny_verbs_region_end(struct vb_tp *t, struct vb_region *r);
/* The same for one that no list has. */
int bny_verbs_region_make(struct vb_tp *t, struct vb_region *r, void *at, size_t bytes);
void bny_verbs_region_unmake(const struct vb_tp *t, struct vb_region *r);
/* key and offset of a window onto it */
void bny_verbs_region_keys(const struct vb_region *r, struct bny_window *out);
const struct vb_region *bny_verbs_region(const struct vb_tp *t, const void *at,
                                         size_t bytes); /* NULL: not registered */
/* That the user registered, or the library. */
const struct vb_region *bny_verbs_listed(const struct vb_tp *t, const void *at, size_t bytes);
/* For a request that is under way: also what the cache keeps for such alone. */
const struct vb_region *bny_verbs_region_before(const struct vb_tp *t, const void *at,
                                                size_t bytes);
int bny_verbs_attach(struct bny_tp *tp, void *at, size_t bytes);
int bny_verbs_detach(struct bny_tp *tp, void *at);
void bny_verbs_regions_free(struct vb_tp *t);
void bny_verbs_tell_owed(struct vb_ep *e); /* keys, when the first lane opens */
int bny_verbs_window_open(struct bny_ep *ep, void *addr, size_t bytes, struct bny_window *out);
int bny_verbs_window_close(struct bny_ep *ep, struct bny_window *win);
void bny_verbs_fence(struct bny_ep *ep, const struct bny_window *win);
/* May it be put to? Not after the peer has told that it closes it. */
int bny_verbs_window_is_open(const struct vb_ep *e, const struct bny_window *win);

#endif
