/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the verbs transport: RC queue pairs through rdma_cm, on InfiniBand, RoCE and iWARP with immediates.
 * fn.c: the libraries; device.c: which device; tp_verbs.c: the table, polling, life and death; join.c: connecting and
 * proving the secret; conn.c: memory and queue pair; lane.c: another queue pair for one that broke; path.c: messages on their
 * way out; arrive.c: in; read.c: their ends; mem.c: registered memory.
 *
 * Messages. A rank writes a message (48-byte header at offset 0, payload at 64) with WRITE_WITH_IMM into a slot of the
 * receiver's slab, which it may use because it has its credit. There are two kinds of slots:
 *   eager  256 of 4 KiB, used round about; freed in order, told by one count for many
 *   bulk     8 of 256 KiB, used in any order; each one's freedom is told as it comes. Longer messages travel in
 *            pieces, one such message at a time, in at most half of the slots
 * The immediate says kind and slot: kind << 28 | value. Whatever is told to a peer is an immediate, so a receiver never
 * looks at memory that no completion vouches for, and a sleeper is woken by all of it. Every immediate consumes a receive
 * request; credits bound how many can be under way (RECVS), so the receiver is always ready (RNR cannot happen).
 *
 * One queue pair a peer: messages of all channels arrive in the order in which they were sent.
 *
 * Slots are in a slab of our own at either end, registered once: 3.02 MiB to receive and as much to send, a peer;
 * VB_PEER_BYTES bounds all of it. A queue pair that breaks is replaced, the slabs stay (lane.c).
 *
 * Devices without immediates (iWARP) get a note behind the data instead: a message of 8 bytes, the immediate and the
 * length. */
#ifndef BNY_VERBS_VERBS_H
#define BNY_VERBS_VERBS_H

#include <stddef.h>
#include <stdint.h>

#include "transport/bootstrap/net.h"
#include "transport/transport.h"
#include "transport/verbs/fn.h"

#define VB_HEAD         64u    /* of a slot: header, padded so that payload is aligned */
#define VB_EAGER_SLOTS  256u   /* power of two */
#define VB_EAGER_MAX    4096u
#define VB_EAGER_STRIDE (VB_HEAD + VB_EAGER_MAX)
#define VB_EAGER_REPORT 64u    /* freed slots that are told at once */
#define VB_BULK_SLOTS   8u
#define VB_SLOT_MAX     262144u
#define VB_BULK_STRIDE  (VB_HEAD + VB_SLOT_MAX)
#define VB_SLAB_EAGER   (VB_EAGER_SLOTS * VB_EAGER_STRIDE)
#define VB_SLAB_BYTES   (VB_SLAB_EAGER + VB_BULK_SLOTS * VB_BULK_STRIDE)
#define VB_PEER_BYTES   (2 * VB_SLAB_BYTES + 8192u) /* registered for a peer, at most */
#define VB_ZCOPY_MIN    4097u  /* from here on registered memory is sent as it is */
#define VB_RECVS        320u   /* receive requests posted: all credits, their returns, a farewell, and a batch */
#define VB_RECV_BATCH   16u
#define VB_SENDS        512u   /* send requests that may be under way; power of two */
#define VB_SENDS_SPARE  32u    /* kept for credits and farewells */
#define VB_SIGNAL_EVERY 16u
#define VB_POLL         16
#define VB_SHAPES       4u   /* headers that both ends remember */
#define VB_WR_RECV      (1ull << 63) /* wr_id: of receive requests, with the number of the note */
#define VB_WR_HELLO     (1ull << 62)
#define VB_LONG_MAX     (1u << 30)
#define VB_LONGS        8u /* they fit into the spare requests: conn_close() */
#define VB_INLINE       220u   /* asked for; what the device gives is read back */
#define VB_JOIN_S       15.0   /* a peer that does not come to terms by then is down */
#define VB_HALF_MAX     64     /* incoming connections that have not proven themselves */

/* Values, 28 bits. EAGER: slot, shape << 8. AGAIN, PUT_AGAIN: what the header of that shape became: shape << 26,
 * chunk << 16, growth of seq << 8, growth of started. FREED_EAGER: the low 24 bits of a count. Others: a slot. */
enum vb_imm { VB_IMM_EAGER = 1, VB_IMM_BULK, VB_IMM_FREED_EAGER, VB_IMM_FREED_BULK, VB_IMM_FAREWELL,
              VB_IMM_LONG, VB_IMM_PART, VB_IMM_AGAIN, VB_IMM_PUT_AGAIN };

struct vb_blob { /* address */
    char magic[4];
    int32_t rank;
    struct bny_addr addr;
    uint8_t transport; /* enum ibv_transport_type */
    uint8_t link;      /* link layer is told apart by transport and address alone; 0 */
    char device[32];
    uint8_t reserved[2];
};
_Static_assert(sizeof(struct vb_blob) == 64, "wire format");

/* Private data of the connection request, and of its acceptance. */
struct vb_request {
    char magic[4];
    uint16_t wire;
    uint8_t resumes, notify; /* resumes: gives a connection that broke another queue pair */
    int32_t from, to;
    uint8_t nonce[16];
};
_Static_assert(sizeof(struct vb_request) == 32, "wire format");
struct vb_accept {
    uint8_t nonce[16], proof[16];
};

/* The first message each way: proof, and where the peer may write. */
struct vb_hello {
    uint8_t proof[16];
    uint64_t addr;
    uint32_t rkey, slab_bytes;
    uint32_t eager_slots, bulk_slots;
    uint32_t delivered; /* immediates that came over the connection before */
    uint32_t reserved[5];
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
    VB_DRAINING,  /* the queue pair broke; then IDLE, with a connection */
    VB_CLOSED,
};

/* A send request under way, and all it takes to post it once more: its memory is ours until the peer has it. */
struct vb_sent {
    void *cookie;
    uint64_t remote;
    struct ibv_sge sge[2];
    uint32_t rkey, imm;
    uint32_t seq; /* number of its immediate, or of the next one */
    uint8_t nsge, has_imm;
    uint8_t tells;   /* SENT(cookie) is due when it is done */
    uint8_t signals; /* its end is of interest */
};

/* Takes the place of an immediate on devices without (iWARP). */
struct vb_note {
    uint32_t imm, bytes; /* imm: big endian, as immediates are; bytes: of the write before it */
};

struct vb_long { /* a message longer than a slot, on its way out */
    struct bny_hdr hdr;
    const char *buf;
    void *cookie;
    uint32_t off;
};

struct vb_tp;
struct vb_ep;
struct vb_msg;

/* A connection: everything that belongs to one queue pair. */
struct vb_conn {
    struct vb_tp *t;
    struct vb_ep *e;   /* NULL: incoming, not proven */
    struct rdma_cm_id *id;
    struct ibv_cq *cq;
    int has_qp, active, established, dead;
    int making;        /* in t->half, or e->trial */
    int notify;        /* no immediates: notes */
    int lost, drained; /* the queue pair broke; and nothing comes from it any more */
    uint64_t drain_ns;
    uint32_t losses;   /* in a row */
    uint32_t epoch;    /* queue pairs before this one */
    uint32_t inline_max;
    struct vb_request request;
    uint8_t nonce[16]; /* of the accepting side */
    char *slab;        /* [2 * VB_SLAB_BYTES]: to receive, to send */
    struct page *page; /* conn.c */
    struct ibv_mr *mr_in, *mr_out, *mr_page;
    uint64_t deadline_ns, born_ns;
    struct vb_conn *next; /* half open, or dead ones */
    /* the peer's slab */
    uint64_t remote_addr;
    uint32_t rkey;
    /* sending */
    struct vb_sent *sent; /* [VB_SENDS] */
    uint32_t posted, to_post, done, reported; /* send requests; reported <= done <= to_post <= posted */
    uint32_t imm_sent;    /* immediates, since the connection began */
    struct bny_hdr shapes_out[VB_SHAPES], shapes_in[VB_SHAPES];
    uint32_t shapes_out_set, shapes_in_set; /* bits */
    uint32_t shapes_next;
    uint32_t eager_sent, eager_freed; /* counts */
    uint32_t bulk_busy;   /* bits: the peer's slot is taken, by a message or a reservation */
    struct vb_long longs[VB_LONGS];
    uint32_t longs_queued, longs_done;
    /* receiving */
    struct vb_msg *streaming; /* a long message whose pieces still come */
    uint32_t recvs_posted, recvs_due; /* due: requests to be posted again */
    uint32_t imm_taken;   /* immediates that came, since the connection began */
    uint32_t eager_next;  /* the slot the next eager message must come in */
    uint32_t eager_released, eager_told;
    uint8_t eager_held[VB_EAGER_SLOTS]; /* 1: arrived and not released */
    uint32_t bulk_held;   /* bits: arrived and not released */
    uint32_t credits_due; /* bits: bulk slots whose release could not be told yet */
    int hello_seen;
    struct ibv_wc stash[VB_POLL]; /* taken while arming */
    int stashed, stash_at;
    unsigned events;      /* completion events to acknowledge */
};

struct vb_msg {
    struct bny_msg msg;
    struct vb_conn *conn;
    uint32_t slot;
    int bulk;
    /* of messages longer than a slot, which come in pieces */
    int is_long, dropped; /* dropped: released before all of it was here */
    uint32_t parts, parts_freed;
    uint8_t part_slot[VB_BULK_SLOTS];
    char seam[64];        /* bytes around the end of a piece */
    struct vb_msg *next, *all;
};

struct vb_ep {
    struct bny_ep ep;
    struct vb_blob blob;
    enum vb_state state;
    struct vb_conn *conn, *trial; /* trial: our attempt to make one, or to replace its queue pair */
    uint64_t deadline_ns, again_ns;
    char broke[200]; /* why the queue pair is being replaced */
    int claimed; /* connect() was called */
    int windows; /* open ones */
    int left, farewell_sent, gone; /* gone: the connection was ended by the peer */
    int down;    /* 1: to be reported, 2: was */
    char reason[320];
};

struct vb_region { /* memory of the user that is registered */
    char *at;
    size_t bytes;
    struct ibv_mr *mr;
    struct vb_region *next;
};

struct vb_tp {
    struct bny_tp tp;
    const struct vb_fn *fn;
    uint8_t secret[32];
    struct rdma_event_channel *events;
    struct rdma_cm_id *listener;
    struct ibv_context *ctx; /* the listener's device; owned by librdmacm */
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_device_attr attr;
    uint32_t max_msg; /* bytes of one request */
    int notify;       /* the device has no immediates */
    char device[64];
    struct vb_blob blob;
    struct vb_ep **eps;   /* [nranks] */
    struct vb_conn *half; /* incoming, not proven */
    struct vb_conn *dead; /* to be freed once no message is lent from them */
    struct vb_region *regions;
    struct vb_msg *free_msgs, *all_msgs;
    int joining;          /* connections in the making */
    int first;            /* rank that is polled first */
    uint32_t turns;
};

/* device.c */
/* ifname: interfaces as for tcp, or a device: "mlx5_0", "mlx5_0:1" (its port). */
int bny_verbs_listen(struct vb_tp *t, const char *ifname);
struct sockaddr *bny_verbs_sockaddr(const struct bny_addr *a, struct sockaddr_storage *ss);
void bny_verbs_describe(struct vb_conn *c, int rank);
uint32_t bny_verbs_max_msg(const struct vb_tp *t);
void bny_verbs_async(struct vb_tp *t);

/* join.c */
void bny_verbs_ask(struct vb_ep *e);        /* starts to connect */
void bny_verbs_cm_progress(struct vb_tp *t);/* connection events, hellos and deadlines */
struct vb_ep *bny_verbs_ep(struct vb_tp *t, int peer);

/* conn.c */
struct vb_conn *bny_verbs_conn_new(struct vb_tp *t, struct vb_ep *e, struct rdma_cm_id *id, int active);
int bny_verbs_conn_prepare(struct vb_conn *c, int resumes);
void bny_verbs_made(struct vb_conn *c);
void bny_verbs_page_free(struct vb_conn *c);
struct vb_hello *bny_verbs_hello_in(const struct vb_conn *c);
struct vb_hello *bny_verbs_hello_out(const struct vb_conn *c);
struct vb_note *bny_verbs_notes_in(const struct vb_conn *c);  /* [VB_RECVS] */
struct vb_note *bny_verbs_notes_out(const struct vb_conn *c); /* [VB_SENDS] */
void bny_verbs_conn_free(struct vb_conn *c);
/* Ends a connection: no SENT, no message comes from it any more. */
void bny_verbs_conn_close(struct vb_conn *c);
void bny_verbs_down(struct vb_ep *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* lane.c */
/* Its queue pair is of no use any more. It gets another one, or its peer is down. */
void bny_verbs_lost(struct vb_conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void bny_verbs_lane_close(struct vb_conn *c);
void bny_verbs_resume(struct vb_conn *c, struct vb_conn *fresh, uint32_t delivered);

/* path.c */
int bny_verbs_post_recvs(struct vb_conn *c, uint32_t n);
int bny_verbs_post_hello(struct vb_conn *c, const struct vb_hello *h);
int bny_verbs_post(struct vb_conn *c);
int bny_verbs_push_longs(struct vb_conn *c);
/* An immediate without data. 0, BNY_AGAIN, or an error. */
int bny_verbs_tell(struct vb_conn *c, enum vb_imm kind, uint32_t value);
int bny_verbs_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
int bny_verbs_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
int bny_verbs_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
void bny_verbs_cancel(struct bny_ep *ep, struct bny_slot *slot);
int bny_verbs_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);
int bny_verbs_put(struct bny_ep *ep, const struct bny_hdr *hdr, const void *src, uint32_t len,
                  const struct bny_window *win, uint64_t offset, void *cookie);

/* arrive.c */
/* Events of one endpoint. */
int bny_verbs_poll_conn(struct vb_ep *e, struct bny_event *ev, int n);

/* read.c */
char *bny_verbs_bulk_in(const struct vb_conn *c, uint32_t slot); /* a bulk slot of ours */
void bny_verbs_give_msg(struct vb_tp *t, struct vb_msg *m);
void bny_verbs_free_bulk(struct vb_conn *c, uint32_t slot);
void bny_verbs_tell_credits(struct vb_conn *c); /* as far as there is room to send */
long bny_verbs_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst, const void **ptr);
void bny_verbs_release(struct bny_msg *msg);

/* mem.c */
struct ibv_mr *bny_verbs_region(struct vb_tp *t, const void *at, size_t bytes); /* NULL: not registered */
/* The same, if its key is this one. */
int bny_verbs_region_has_key(struct vb_tp *t, uint64_t addr, size_t bytes, uint32_t rkey);
int bny_verbs_attach(struct bny_tp *tp, void *at, size_t bytes);
int bny_verbs_detach(struct bny_tp *tp, void *at);
void bny_verbs_regions_free(struct vb_tp *t);
int bny_verbs_window_open(struct bny_ep *ep, void *addr, size_t bytes, struct bny_window *out);
int bny_verbs_window_close(struct bny_ep *ep, struct bny_window *win);

#endif
