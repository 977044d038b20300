/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the verbs transport: RC queue pairs on InfiniBand, RoCE and iWARP, which we make
 * ourselves (tcp_cm.c, verbs_port.c) or through rdma_cm. ibv_symbols.c: the libraries;
 * verbs_device.c: the device choice; rail.c: several devices; tp_verbs.c: the table, polling,
 * life and death; verbs_join.c, accept.c: connecting and proving the secret; cq.c, srq.c: a
 * completion queue, and optionally a receive queue, for all of a device; mem.c: registered
 * memory, cache.c: a cache for unregistered memory, watch.c: detects its changes; slab.c: slab
 * sizes. peer.h has the state between two ranks, slabs and credits: peer.c, its memory; read.c,
 * releasing messages. lane.h has a queue pair and its requests: verbs_conn.c makes it; lane.c
 * replaces a broken one; verbs_path.c: sending; arrive.c: receiving; stripe.c: striping over
 * several; recall.c: returning user memory early.
 *
 * Messages. A rank writes a message (48-byte header at offset 0, payload at 64) with
 * WRITE_WITH_IMM into a slot of the receiver's slab for which it has a credit. There are two
 * kinds of slots:
 *   eager  up to 256 of 4 KiB. Both ends keep them in one order: message n uses the n-th, and
 *          freed ones go to the end, so no message contains its slot. They are freed in any
 *          order, many in one report: so many of the unreported messages, after skipping those
 *          that are held (bny_verbs_free_order)
 *   bulk   up to 8 of up to 256 KiB, used in any order; each one is reported when freed. Longer
 *          messages travel in pieces, one such message at a time, in at most half of the slots
 * The immediate has kind and slot: kind << 28 | value. Every notification to a peer is an
 * immediate, so a receiver never reads memory without a completion, and each one wakes a
 * sleeper. Every immediate consumes a receive request; credits bound their number in flight
 * (RECVS), so the receiver is always ready (RNR cannot happen). If queues are short there are
 * fewer requests than slots, and the count of taken messages is reported, too (depth.c).
 *
 * Messages arrive in the order of sending, except that those of other channels may pass one
 * that is longer than a slot and waits for slots.
 *
 * Rails and lanes. A rank may use several devices (rails: rail i of one rank connects to rail i
 * of the other) and several queue pairs on each (BANYAN_VERBS=qps). A lane is the connection of
 * one queue pair; lane k's home is rail k % rails. Lane 0 carries every message's immediate, in
 * order, and all short payload. The other lanes may carry stripes of a long payload: a stripe
 * is a write with its own immediate, and the message's immediate on lane 0 has the bits of the
 * lanes that carry one (from VB_LANES_AT). Both are sent in one order, and a lane is a queue:
 * so the n-th message that names a lane has the n-th stripe of that lane. The receiver counts
 * the stripes on each lane, and delivers a message when all of its stripes have arrived; later
 * messages on lane 0 wait (stripe.c). Every stripe belongs to a message with a credit, so
 * credits bound the stripes of a lane, too.
 *
 * A lane whose queue pair breaks gets another one, over another rail if its own does not work:
 * all its recorded requests go that way, and none is lost or doubled (lane.c). When its own
 * rail works again, it goes home the same way (rail.c).
 *
 * Up to VB_RAILS rails. A window has room for the keys of four devices; VB_IMM_KEYS on lane 0
 * carries the others' ahead of it, once for each region and peer (mem.c, stripe.c). A rank with
 * up to four never needs it.
 *
 * Slots are in slabs at both ends, registered once with each device: in jobs of up to 43 ranks
 * 3.02 MiB to receive and as much to send, for each peer and device, less in larger ones
 * (slab.h); and VB_LANE_BYTES for each lane. VB_PEER_BYTES is the limit. Slabs outlive a broken
 * queue pair.
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
#include "transport/verbs/ibv_symbols.h"
#include "transport/verbs/slab.h"

#define VB_EAGER_TELLS 5u   /* reports of freed slots that the peer may not have taken yet */
#define VB_RAILS       8u   /* most devices of a rank: the room in an address */
#define VB_WINDOW_KEYS 4u   /* room in a window: further ones are sent ahead */
#define VB_FURTHER     256u /* regions for which a peer keeps further keys */
#define VB_WINDOWS     256u /* most open windows for a peer: power of two */
#define VB_LANES       16u  /* most queue pairs to a peer: bits of an immediate */
#define VB_LANES_AT    12u  /* position of these bits in its value */
/* most bytes registered for a peer */
#define VB_PEER_BYTES(rails, lanes) ((rails)*2ull * VB_SLAB_BYTES + (lanes)*VB_LANE_BYTES)
/* Shortest payload to stripe, and about the shortest stripe. */
#define VB_STRIPE_MIN 65536u
#define VB_ZCOPY_MIN  4097u /* from here on registered memory is sent in place */
/* Most receive requests posted: all credits, their returns, a farewell, and a batch; and their
 * number for a given number of eager slots, which shrinks in larger jobs (slab.h). */
#define VB_RECVS           320u
#define VB_RECVS_OF(eager) ((eager) + 64u)
#define VB_RECV_BATCH      16u
#define VB_SENDS           512u /* most send requests in flight; power of two */
#define VB_SENDS_OF(eager) ((eager) < 32u ? 64u : 2u * (eager))
#define VB_SHAPES          4u           /* header shapes that both ends remember */
#define VB_WR_RECV         (1ull << 63) /* wr_id: receive requests for notes */
#define VB_WR_HELLO        (1ull << 62)
#define VB_LONG_MAX        (1u << 30)
#define VB_LONGS           8u /* they fit into the spare requests: conn_close() */
/* with reservations committed behind them; power of two */
#define VB_WAITING (VB_LONGS + VB_BULK_SLOTS)
#define VB_GIDS    8    /* most GIDs of a port in its address */
#define VB_INLINE  220u /* requested; the device's actual value is read back */
/* Time limit of a first connection: then the peer is down. */
#define VB_JOIN_S 15.0
/* Time for the next attempt if the peer's kernel does not answer TCP: this also happens while
 * it computes and its accept queue is full. */
#define VB_SILENCE_S 60.0
/* Unauthenticated incoming connections of a rank, by number of ranks: each locks memory
 * (VB_PEER_BYTES). Excess ones must retry. */
#define VB_HALF_MAX(ranks) ((ranks) < 64 ? 64u : (ranks) > 256 ? 256u : (uint32_t)(ranks))
/* Requests that the kernel queues for us while we compute: one of every peer. */
#define VB_BACKLOG(ranks) ((ranks) < 64 ? 64 : (ranks))
#define VB_SRQ_SPARE      256u /* for a shared receive queue: srq.c */
/* its entries; each has the memory of a hello. lanes: most per rank; recvs: of a queue pair */
#define VB_SRQ_ENTRIES(ranks, lanes, recvs)                                                    \
    (((ranks)-1ull) * (lanes) * ((recvs) + 1) + VB_HALF_MAX(ranks) + VB_SRQ_SPARE)

/* Adaptive routing. Switches that route each packet separately do so for plain writes only, and
 * keep those with an immediate in order. So with such switches a long write has no immediate,
 * and an empty write with the immediate follows: the device completes it when all data before
 * it has arrived, in any order. Its length is then 0, and the header has the length of the
 * data. */
#define VB_APART_MIN 8193u

/* Values, 28 bits. KEYS, CLOSE: slot. EAGER: slot, shape << 8, lanes << 12. AGAIN, PUT_AGAIN:
 * change of that shape's header: shape << 26, chunk << 16, growth of seq << 8, growth of
 * started. FREED_EAGER: number of free slots, held ones before them << 12. TAKEN: the low 24
 * bits of a count. FREED_BULK: a slot. BULK, LONG, PART: slot, lanes << 12. STRIPE: 0. */
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

enum vb_how { VB_HOW_CM, VB_HOW_QP }; /* rdma_cm makes connections, or tcp_cm.c */

struct vb_place { /* a rail in an address */
    struct bny_addr addr;
    uint32_t mbps; /* of its port; 0: unknown */
    char device[28];
    uint8_t transport; /* enum ibv_transport_type */
    uint8_t mtu;       /* current enum ibv_mtu of its port; 0: none or unknown */
    uint8_t how;       /* enum vb_how */
    uint8_t kinds;     /* VB_HOW_QP: bits, 1 << enum ibv_gid_type of its GIDs */
    uint16_t pkey;     /* VB_HOW_QP */
    uint8_t reserved[2];
};
_Static_assert(sizeof(struct vb_place) == 60, "wire format");
struct vb_blob { /* address; its length depends on its rails */
    char magic[4];
    int32_t rank;
    uint8_t nrails, qps; /* qps: queue pairs on each */
    uint8_t slab;        /* its shape's number */
    uint8_t reserved[5];
    struct vb_place rail[VB_RAILS];
};
_Static_assert(sizeof(struct vb_blob) == 16 + VB_RAILS * 60, "wire format");

/* A region's keys for devices that do not fit in a window, sent once before the first window
 * onto it, in an eager slot. The window's segment is the region's number + 1. */
struct vb_further {
    uint32_t region, key[VB_RAILS - VB_WINDOW_KEYS];
};

/* A window of a failed operation, in an eager slot: the putting peer stops and answers;
 * messages arrive in order, so its answer follows all that it has put. */
struct vb_closing {
    uint32_t window; /* number | generation << 5 */
    uint32_t answer;
};

/* Private data of connection request and acceptance. */
struct vb_request {
    char magic[4];
    uint16_t wire;
    uint8_t resumes,
        notify; /* resumes: the requester's connection is open, and lost its queue pair */
    int32_t from, to;
    uint8_t nonce[16];
    uint8_t lane, rail; /* rail: at both ends */
    uint8_t reserved[2];
    uint8_t proof[20]; /* the first bytes of BNY_PROOF_REQUEST, of the rest */
};
_Static_assert(sizeof(struct vb_request) == 56, "all that a request of rdma_cm has room for");
struct vb_accept {
    uint8_t nonce[16], proof[BNY_PROOF_BYTES];
};

/* The first message in each direction: proof, and the memory that the peer may write. */
struct vb_hello {
    uint8_t proof[BNY_PROOF_BYTES]; /* covers the rest, too */
    uint64_t addr;
    uint32_t rkey, slab_bytes;
    uint32_t eager_slots, bulk_slots;
    uint32_t delivered;  /* immediates received over the connection before */
    uint32_t eager_most; /* messages to eager slots that may be in flight */
};
_Static_assert(sizeof(struct vb_hello) == 64, "wire format");

enum vb_state {
    VB_IDLE,
    VB_ADDR,      /* active: resolving the address */
    VB_ROUTE,     /* active: resolving the route */
    VB_ASKING,    /* active: request sent */
    VB_YIELDED,   /* both requested; the peer's request will come */
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
    struct ibv_srq *srq; /* NULL: each queue pair has its own queue */
    struct ibv_mr *mr;
    char (*bytes)[sizeof(struct vb_hello)]; /* [n]: memory of the entries */
    uint32_t *idle;                         /* [n]: entries not posted */
    uint32_t n, nidle;
    uint32_t wanted; /* total share of all queue pairs */
    uint32_t ended;  /* ended queue pairs; VB_SRQ_SPARE at most */
};

struct vb_parked { /* an identifier whose end would be sent over a port that is down: lane.c */
    struct rdma_cm_id *id;
    int established;
    struct vb_parked *next;
};

struct vb_gid { /* wire format */
    uint8_t raw[16];
    uint8_t type;     /* enum ibv_gid_type */
    uint8_t bits;     /* subnet prefix of its address; 0: unknown */
    uint16_t index;   /* in its owner's table */
    uint32_t ifindex; /* its owner's interface; 0 on the wire */
};
_Static_assert(sizeof(struct vb_gid) == 24, "wire format");

struct vb_port {                 /* a rail's port, for tcp_cm.c */
    struct vb_gid gids[VB_GIDS]; /* usable ones, the best first */
    int ngids;
    uint16_t lid, pkey, pkey_index;
    uint8_t lmc;
    int tc; /* set for the port by the machine's owner; -1: none */
};

struct vb_rail { /* a device's port */
    struct rdma_cm_id *listener;
    struct ibv_context *ctx; /* the listener's device; librdmacm, or the desk, owns it */
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
    int down; /* 1: its port is; 2: the device, for good */
    struct vb_parked *parked;
    char device[64];
    char at[80]; /* "mlx5_0 port 1" */
};

/* Our windows, by number, and the peer's. A number's generation increments for each window
 * closed while the peer might still put. */
struct vb_windows {
    /* bits; closing: fenced; closed: the peer confirmed */
    uint32_t open[VB_WINDOWS / 32], closing[VB_WINDOWS / 32], asked[VB_WINDOWS / 32],
        closed[VB_WINDOWS / 32];
    uint32_t generation[VB_WINDOWS];
    uint64_t cut_ns[VB_WINDOWS]; /* of closing ones: deadline for the peer's answer */
    uint32_t shut[VB_WINDOWS];   /* the peer's: the first generation that may be put to */
    uint32_t answers_due[VB_WINDOWS / 32], nanswers; /* bits; their number */
};

/* A peer; or a further lane to it, of which only ep, state, conn, trial and their data are
 * used. */
struct vb_ep {
    struct bny_ep ep;
    struct vb_ep *main; /* itself; for further lanes the peer */
    uint32_t lane;
    uint32_t tries;      /* attempts since its last queue pair: each over the next rail */
    uint32_t refused;    /* bits: rails over which the peer refused */
    uint64_t attempt_ns; /* the attempt's deadline if there are several rails */
    uint32_t lanes_open; /* bits: usable further lanes */
    uint32_t nlanes;     /* lanes with known numbers; 1: only the first */
    uint32_t weight[VB_RAILS];
    uint32_t told_keys[VB_FURTHER / 32]; /* bits: regions whose further keys it was sent, or
                                            will get first when the connection opens */
    uint32_t next_lane;                  /* at which the next stripes start */
    int growing;                         /* a further lane counted in t->joining */
    uint64_t leaving_ns; /* deadline of its farewell, which waits for stripes: until then closed
                            connections are ignored; 0: no farewell */
    struct vb_ep *lanes[VB_LANES]; /* [0] is NULL */
    int nrails, qps;               /* common to both ends */
    struct vb_blob blob;
    enum vb_state state;
    struct vb_lane *conn,
        *trial; /* trial: our attempt to make one, or to replace its queue pair */
    uint64_t deadline_ns, again_ns;
    uint32_t busy;   /* consecutive busy answers of the peer */
    int patient;     /* the deadline passed in silence; we keep waiting */
    int unheard;     /* the deadline is that of silence over TCP */
    char broke[300]; /* why the queue pair is being replaced */
    int claimed;     /* connect() was called */
    struct vb_windows windows;
    int left, farewell_sent, gone; /* gone: the peer ended the connection */
    int down;                      /* 1: to be reported, 2: was */
    char reason[460];
};

struct vb_region { /* registered user memory */
    char *at;
    size_t bytes;
    struct ibv_mr *mr[VB_RAILS];
    uint32_t number; /* below VB_FURTHER: its further keys may be sent */
    int ours;        /* not the user's: never detached */
    struct vb_region *next;
};

/* Of BANYAN_VERBS; -1: rdma_cm, or the port, decides. */
struct vb_path {
    int tc;        /* traffic class: DSCP x 4 + ECN bits */
    int sl;        /* service level; the priority over RoCE */
    int timeout;   /* 4.096 us x 2^timeout before a retransmission */
    int retry;     /* retransmissions */
    int gid_index; /* -1: by its type */
    int pkey;      /* -1: the port's */
};

/* The minimum of what a rank's devices allow; UINT32_MAX: any. */
struct vb_limits {
    uint32_t wr, cqe, sge;
    int shared; /* all queue pairs share a receive queue */
};
/* Depths of a rank's queues. */
struct vb_depth {
    uint32_t sends;        /* records in flight on a lane */
    uint32_t spare;        /* of these, reserved for credits and farewells */
    uint32_t signal_every; /* records for each completion */
    uint32_t requests;     /* device requests that a record may need */
    uint32_t sges;         /* scatter/gather entries of a request: 1 or 2 */
    uint32_t recvs;        /* receive requests of a queue pair, besides the hello's */
    uint32_t recv_batch;   /* posted together */
    uint32_t eager;        /* most messages in eager slots that we have not taken */
};

struct vb_tp {
    struct bny_tp tp;
    struct vb_depth depth;
    struct vb_slab slab; /* of all ranks */
    struct vb_path path;
    const struct vb_fn *fn;
    int datagrams; /* transport/ud: devices without connected queue pairs work, too */
    enum vb_how how;
    const char *port_range; /* for listeners, during creation */
    struct vb_fn own;       /* VB_HOW_QP: the libraries' functions, with tcp_cm.c for rdma_cm */
    const uint8_t *secret;  /* [32] */
    struct rdma_event_channel *events;
    struct vb_rail rails[VB_RAILS];
    int nrails;
    uint32_t max_msg; /* largest request, minimum of all rails */
    int notify;       /* the devices have no immediates */
    int apart;        /* BANYAN_VERBS=ar: long writes have no immediate, it follows alone */
    int relaxed;      /* BANYAN_VERBS=relaxed_ordering: writes land in any order */
    unsigned ncqs;    /* number of completion queues so far */
    int told_apart;   /* peers without a common rail */
    struct vb_blob blob;
    struct vb_ep **eps;   /* [nranks] */
    struct vb_lane *half; /* incoming, not authenticated */
    uint32_t nhalf;
    struct vb_lane *dead; /* freed once no message is lent from them */
    struct vb_region *regions;
    struct vb_cache *cache; /* cache.c; NULL: none */
    struct bny_msg_list free_msgs;
    struct vb_msg *all_msgs;
    int joining;               /* connections being made */
    uint64_t seen_ns, away_ns; /* cm_progress: its latest call; the latest that came at least 1
                                  s after the one before */
    uint64_t turned_away;      /* requests that were not from ranks of this job */
    uint64_t told_busy;        /* requests answered with VB_BUSY */
    struct {
        int err; /* errno: the resource that connections lack; 0: none */
        char why[400];
        uint64_t first_ns, last_ns; /* requests that could not be answered */
    } lack;                         /* verbs_errors.c */
    uint64_t home_ns;   /* next attempt for lanes that are not at home; 0: none moved */
    uint64_t home_wait; /* ns between two attempts */
    int came_home;      /* one did, since the last attempt */
    int first;          /* rank that is polled first */
    uint32_t turns;
};

/* tcp_cm.c */
/* Replaces rdma_cm in t->fn and t->events. Returns 0, or an error. */
int bny_verbs_tcp_cm_open(struct vb_tp *t);
int bny_verbs_tcp_cm_contexts(const struct vb_tp *t, struct ibv_context *const **out);

/* verbs_port.c */
enum { VB_NO_PORT = 1 };
/* As bny_verbs_listen, for VB_HOW_QP. VB_NO_PORT: the name matches nothing. */
int bny_verbs_port_listen(struct vb_tp *t, struct vb_rail *rail, const char *name);
/* Only finds the port and its number: sets device, context and port of rail. Returns 0,
 * VB_NO_PORT or an error. */
int bny_verbs_port_find(struct vb_tp *t, struct vb_rail *rail, const char *name, int *number);
/* GIDs, LID and the index of its key may have changed: rereads them for later connections. */
void bny_verbs_port_renew(struct vb_tp *t, struct vb_rail *rail, int number);
/* The best pair: *mine of the rail's, *theirs of theirs[n]. 0: no pair matches. */
int bny_verbs_port_pair(const struct vb_rail *rail, const struct vb_gid *theirs, int n,
                        int *mine, int *other);
const char *bny_verbs_gid_text(const struct vb_gid *g, char *out); /* out[64] */
/* Are they on one network, judged by addresses? */
int bny_verbs_port_meets(const struct vb_port *a, const struct vb_port *b);
#define VB_NEAR_NAME 80
/* The ports nearest to this rank, at most `most`, that ifname does not exclude: names as in
 * BANYAN_IFNAME. Returns the number; 0: no choice. */
int bny_verbs_port_near(struct vb_tp *t, const char *ifname, char (*names)[VB_NEAR_NAME],
                        int most);
/* The same if rdma_cm connects: the devices of our addresses. */
int bny_verbs_cm_near(struct vb_tp *t, const char *ifname, char (*names)[VB_NEAR_NAME],
                      int most);
struct vb_near;
/* The choice of both, and its log line. */
int bny_verbs_near_take(const struct vb_tp *t, struct vb_near *near, int n,
                        char (*names)[VB_NEAR_NAME], int most);
void bny_verbs_near_apart(const char *device, const char *first);

/* depth.c */
/* The depth within these limits for so many eager slots, if a record needs so many requests.
 * Returns 0; or the least number of requests that a queue pair needs. Pure. */
uint32_t bny_verbs_depth_of(struct vb_depth *d, const struct vb_limits *l, uint32_t eager,
                            uint32_t requests);
int bny_verbs_depth(struct vb_tp *t); /* sets t->depth. 0, or an error */

/* verbs_device.c */
/* Opens a rail at `name`: interfaces as for tcp, or a device: "mlx5_0", "mlx5_0:1" (its port).
 * Skips the existing rails. */
int bny_verbs_listen(struct vb_tp *t, struct vb_rail *rail, const char *name);
struct sockaddr *bny_verbs_sockaddr(const struct bny_addr *a, struct sockaddr_storage *ss);
void bny_verbs_describe(struct vb_lane *c, int rank);
#define VB_REMEDY 260
/* The remedy for a path that loses everything, following "see that ...". */
const char *bny_verbs_path_remedy(const struct vb_ep *e, const struct vb_rail *rail, char *out);
/* The remedy for a completion in error, in out[VB_REMEDY], which it returns. */
const char *bny_verbs_remedy(const struct vb_lane *c, enum ibv_wc_status status, char *out);

/* rail.c */
int bny_verbs_nonblocking(int fd);
int bny_verbs_is_iwarp(const struct vb_rail *rail);
int bny_verbs_apart(const struct vb_tp *t);                    /* of struct vb_tp */
int bny_verbs_rails_open(struct vb_tp *t, const char *ifname); /* one for each part of a list */
void bny_verbs_rails_close(struct vb_tp *t);
struct vb_rail *bny_verbs_rail_of(struct vb_tp *t,
                                  const struct rdma_cm_id *id); /* NULL: not ours */
/* Number of rails common to us and a rank with this blob; 0: none. */
int bny_verbs_rails_common(const struct vb_tp *t, const struct vb_blob *b);
int bny_verbs_relaxed(struct vb_tp *t); /* may writes land in any order? 0 or an error */
/* Logs why they have none. */
void bny_verbs_rails_apart(struct vb_tp *t, int peer, const struct vb_blob *b);
void bny_verbs_async(struct vb_tp *t); /* asynchronous events of the devices */
/* Its lanes move to other rails if possible; else the peers go down. why follows "rank 1 is not
 * reached any more: ". */
void bny_verbs_rail_down(struct vb_tp *t, struct vb_rail *rail, int how, const char *why);
/* The rail of the next attempt to connect a lane. */
struct vb_rail *bny_verbs_rail_next(const struct vb_ep *e);
int bny_verbs_rail_others(const struct vb_ep *e,
                          const struct vb_rail *rail); /* other rails that may work */
struct vb_rail *bny_verbs_home(const struct vb_ep *e);
void bny_verbs_go_home(
    struct vb_tp *t); /* requests the lanes that are away from home; if it is time */
void bny_verbs_has_moved(struct vb_lane *c); /* to another rail, possibly home */

/* First byte of a rejection's private data. */
enum vb_refusal {
    VB_TURNED_AWAY = 1 /* both requested */,
    VB_NO_MEMORY,
    VB_NOT_ABLE,
    VB_GIVEN_UP /* it will not talk to us again */,
    VB_OTHER_VERSION,
    VB_NOT_NOW /* or not over this rail */,
    VB_BUSY /* too many ask at once: retry, later each time */,
    VB_NO_DESCRIPTOR
};

/* ep.c */
struct vb_ep *bny_verbs_ep(struct vb_tp *t, int peer);
struct vb_ep *bny_verbs_lane_ep(struct vb_tp *t, int peer,
                                uint32_t lane); /* NULL: no memory, or no such lane */
void bny_verbs_grow(struct vb_ep *e); /* requests further lanes if that is this rank's task */

/* verbs_route.c */
struct vb_path bny_verbs_path_settings(void);
void bny_verbs_path_options(const struct vb_tp *t, struct rdma_cm_id *id); /* for either end */
unsigned bny_verbs_mtu_bytes(unsigned code);            /* of an enum ibv_mtu; 0 of 0 */
unsigned bny_verbs_path_mtu(const struct vb_lane *c);   /* the smaller end's; 0: unknown */
int bny_verbs_resolve_route(struct vb_lane *c, int ms); /* as rdma_resolve_route */
/* 0: the queue pair's MTU exceeds that of one end; why: the reason. */
int bny_verbs_mtu_fits(const struct vb_lane *c, char *why, size_t cap);

/* accept.c */
void bny_verbs_request_prove(const struct vb_tp *t, struct vb_request *r); /* its last field */
void bny_verbs_requested(struct vb_tp *t, struct rdma_cm_id *id, const uint8_t *data,
                         size_t len);

/* verbs_join.c */
/* The transcript of request and acceptance. Borrows from c. */
struct bny_transcript bny_verbs_said(const struct vb_lane *c);
struct rdma_conn_param bny_verbs_param(const struct vb_tp *t, const void *data, size_t len);
void bny_verbs_ask(
    struct vb_ep *e); /* starts to connect; if a connection works: a better one */
void bny_verbs_cm_progress(struct vb_tp *t); /* connection events, hellos and deadlines */

/* srq.c */
int bny_verbs_srqs_open(struct vb_tp *t); /* one for each rail, if requested */
void bny_verbs_srq_close(struct vb_tp *t, struct vb_rail *rail); /* after all queue pairs */
int bny_verbs_srq_fill(struct vb_rail *rail,
                       uint32_t least); /* if at least so many requests are missing */
int bny_verbs_srq_share(struct vb_lane *c, uint32_t share); /* sets c's share */
/* Frees the entry that a completion used; returns its memory, valid until the next fill. */
const void *bny_verbs_srq_take(struct vb_rail *rail, const struct ibv_wc *wc);
void bny_verbs_srq_leave(struct vb_lane *c); /* before its queue pair goes */
void bny_verbs_srq_last(struct vb_tp *t,
                        const struct ibv_qp *qp); /* it used its last request */

/* verbs_path.c, read.c */
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
/* Registers memory, ours or the user's. Returns 0, or an error. The caller keeps r. */
int bny_verbs_region_add(struct vb_tp *t, struct vb_region *r, void *at, size_t bytes);
void bny_verbs_region_end(struct vb_tp *t, struct vb_region *r);
/* The same without adding it to a list. */
int bny_verbs_region_make(struct vb_tp *t, struct vb_region *r, void *at, size_t bytes);
void bny_verbs_region_unmake(const struct vb_tp *t, struct vb_region *r);
/* key and offset of a window onto it */
void bny_verbs_region_keys(const struct vb_region *r, struct bny_window *out);
const struct vb_region *bny_verbs_region(const struct vb_tp *t, const void *at,
                                         size_t bytes); /* NULL: not registered */
/* A region that the user or the library registered. */
const struct vb_region *bny_verbs_listed(const struct vb_tp *t, const void *at, size_t bytes);
/* For a request in flight: includes what the cache keeps only for those. */
const struct vb_region *bny_verbs_region_before(const struct vb_tp *t, const void *at,
                                                size_t bytes);
int bny_verbs_attach(struct bny_tp *tp, void *at, size_t bytes);
int bny_verbs_detach(struct bny_tp *tp, void *at);
void bny_verbs_regions_free(struct vb_tp *t);
void bny_verbs_tell_owed(struct vb_ep *e); /* keys, when the first lane opens */
int bny_verbs_window_open(struct bny_ep *ep, void *addr, size_t bytes, struct bny_window *out);
int bny_verbs_window_close(struct bny_ep *ep, struct bny_window *win);
void bny_verbs_fence(struct bny_ep *ep, const struct bny_window *win);
/* May puts use it? Not after the peer has announced its close. */
int bny_verbs_window_is_open(const struct vb_ep *e, const struct bny_window *win);

#endif
