/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the shared-memory transport: the layout of a segment, and the writer of each word.
 *
 * A segment carries one direction, tx -> rx. tx creates it, seals its size and passes it in its
 * hello. Everything in it comes from another process: it is copied, then checked, then used.
 *
 *   ring   64-byte records. tx publishes a record by storing position + 1 into seq, which
 *          differs from the previous lap's value: nothing needs clearing, and an 8-byte message
 *          is one cache line.
 *   data   bytes of eager messages, allocated in ring order and freed with the record.
 *   head   records that rx has released, with all before. Published once per quarter ring, as
 *          otherwise tx and rx would bounce its cache line; tx reads it only when the ring
 *          looks full.
 *   slots  bulk memory for reserve(). slot_done counts releases; tx knows its own commits. rx
 *          writes each line of data and slots that it has read; tx reads neither.
 *   done   ring of finished send() descriptors: (count << 8 | completion index).
 *   guard  windows that tx (their owner) has open for puts by rx; rx writes `writing`. */
#ifndef BNY_SHM_IMPL_H
#define BNY_SHM_IMPL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport/msg_list.h"
#include "transport/process_place.h"
#include "transport/proof.h"
#include "transport/transport.h"

#define SHM_MAGIC     0x6d68736eu /* "nshm" */
#define SHM_VERSION   5u
#define SHM_RING      256u         /* records; a power of two up to 256 (indices are bytes) */
#define SHM_INLINE    8u           /* payload bytes in a record */
#define SHM_MSGS      512u         /* messages of one peer that the engine may hold */
#define SHM_DATA      (256u << 10) /* eager bytes, a power of two */
#define SHM_EAGER_MAX (16u << 10)
/* In jobs of more ranks a pair uses only this part of the data area, and pages are populated on
 * first touch. */
#define SHM_RANKS_FEW  16
#define SHM_DATA_MANY  (64u << 10)
#define SHM_TOUCH_MIN  256u /* eager messages of fewer bytes are not touched */
#define SHM_SLOTS      8u
#define SHM_SLOT_BYTES (128u << 10)
#define SHM_GUARDS     64u
#define SHM_TILE       (128u << 10) /* a view's piece: stays in L2 during a reduction */
#define SHM_ZCOPY_MIN  (8u << 10)   /* single copy from this size on, if not measured */
#define SHM_ARENAS     256u         /* for each rank at a time */
#define SHM_ARENA_BITS 8            /* id = generation << bits | index */
#define SHM_SENT       256u         /* SENT events of puts that await poll() */
#define SHM_AREAS_TOLD 4096u        /* of a peer, not taken yet: one for each communicator */

#define SHM_LIKELY(x)   __builtin_expect(!!(x), 1)
#define SHM_UNLIKELY(x) __builtin_expect(!!(x), 0)

enum shm_rec_kind { SHM_REC_INLINE = 1, SHM_REC_EAGER, SHM_REC_SLOT, SHM_REC_DESC };

struct shm_rec {
    _Atomic uint32_t seq;
    uint32_t info; /* kind:3, then index:8 (slot, completion) and arena:21, or data line:29 */
    struct bny_hdr hdr;
    uint64_t word; /* inline payload; a descriptor's address, or offset in the arena */
};
_Static_assert(sizeof(struct shm_rec) == 64, "a record is a cache line");

struct shm_seg {
    uint32_t magic, version;
    uint64_t bytes;
    _Alignas(64) _Atomic uint32_t head;        /* rx */
    _Alignas(64) _Atomic uint32_t tx_sleeping; /* set by tx, cleared by the waker */
    _Atomic uint32_t tx_left;                  /* tx: farewell */
    _Alignas(64) _Atomic uint32_t tx_cpu;      /* tx: 1 + its CPU, 0: not published */
    _Alignas(64) _Atomic uint32_t rx_sleeping; /* set by rx, cleared by the waker */
    _Atomic uint32_t rx_left;                  /* rx: farewell */
    _Alignas(64) _Atomic uint32_t writing;     /* rx: 1 + guard of the put in progress, or 0 */
    _Alignas(64) _Atomic uint32_t guard[SHM_GUARDS];    /* tx: key of the open window, or 0 */
    _Alignas(64) _Atomic uint32_t slot_done[SHM_SLOTS]; /* rx */
    _Alignas(64) _Atomic uint32_t done[SHM_RING];       /* rx */
    _Alignas(4096) struct shm_rec ring[SHM_RING];
    _Alignas(4096) uint8_t data[SHM_DATA];
    _Alignas(4096) uint8_t slots[SHM_SLOTS][SHM_SLOT_BYTES];
};

/* ---- packets over the sockets ---- */
enum shm_packet_type {
    SHM_PKT_HELLO = 1,  /* with the segment's descriptor */
    SHM_PKT_ARENA,      /* with the arena's descriptor: id, bytes, offset in the file */
    SHM_PKT_ARENA_GONE, /* id */
    SHM_PKT_DOORBELL,
    SHM_PKT_AREA, /* with the area's descriptor: id, bytes */
};
struct shm_packet {
    uint32_t magic, version, type, id;
    int32_t from, to; /* world ranks */
    uint64_t bytes, offset;
    uint8_t proof[BNY_PROOF_BYTES]; /* hello: of this packet without this member */
};

#define SHM_NAME_BYTES 40 /* abstract socket name without the leading zero byte */
struct shm_blob {
    uint32_t magic, version, pid, pad;
    struct bny_place at; /* abstract names are per network namespace */
    uint64_t probe; /* address of `nonce` in the owner's memory: proves that we may read it */
    uint8_t nonce[16];
    uint32_t cma;    /* the owner allows others to read its memory; */
    uint32_t rights; /* only equal rights allow it for both ranks */
    char name[SHM_NAME_BYTES];
};

/* ---- this rank's side ---- */
enum shm_copy { SHM_COPY_NONE, SHM_COPY_CMA, SHM_COPY_DIRECT /* same process */ };
enum shm_fate { SHM_ALIVE, SHM_LEFT, SHM_DEAD };

struct shm_msg {
    struct bny_msg base;
    uint64_t word;
    uint32_t pos;
    uint32_t segment;
    uint8_t kind, index;
    uint16_t lines; /* of the data area */
};

struct shm_conn; /* a socket or pidfd in the epoll set */

struct shm_peer_arena {
    uint32_t id; /* 0: none */
    uint8_t *map, *mem;
    size_t map_bytes, bytes;
};

struct shm_area { /* ours, or one announced by a peer */
    struct shm_area *next;
    void *mem;
    size_t bytes;
    uint32_t id;
    int fd, untold; /* ours: peers not yet informed; at 0 fd is closed and -1 */
};

struct shm_ep {
    struct bny_ep base;

    /* receiving */
    struct shm_seg *in; /* NULL until the peer's hello */
    struct bny_msg_list free_msgs;
    uint32_t nmsgs;        /* of msgs, ever used: the others are untouched */
    uint32_t data_bytes;   /* of the data area in each direction, for eager messages */
    uint32_t in_pos;       /* next record to read */
    uint32_t in_head;      /* all records before are released */
    uint32_t in_published; /* last value stored to in->head */
    uint32_t in_lines;     /* data lines released since then */
    uint32_t in_done;      /* completions written */
    uint32_t idle;         /* polls in a row without an event */
    uint8_t fate, opened, reported, copy;
    uint8_t liar;   /* broke the protocol: nothing of it is read any more */
    uint8_t listed; /* in tp->eps */
    uint8_t ended;  /* its process or connection has ended: it reads and writes nothing */

    /* sending */
    struct shm_seg *out;
    uint32_t out_pos, out_head; /* next record; last value read of out->head */
    uint32_t out_reserved;      /* records promised to reservations */
    uint32_t data_tail, data_head;
    uint32_t done_pos;       /* next completion */
    uint32_t nsends;         /* descriptors without completion */
    uint32_t nsent, sent_at; /* queue of finished puts */
    uint32_t slots_free;     /* bit mask */

    pid_t pid;
    pid_t card_pid; /* by its address, of the process whose memory `copy` accesses */
    struct shm_conn *out_conn, *in_conn, *pid_conn;
    uint8_t *tiles;                     /* [BNY_CHANNELS * SHM_TILE] */
    struct shm_peer_arena *peer_arenas; /* [SHM_ARENAS] or NULL */
    uint32_t next_key;
    uint64_t guards_open; /* bit mask of our windows for this peer */
    char name[SHM_NAME_BYTES];
    char reason[200];

    uint32_t slot_sent[SHM_SLOTS], slot_done[SHM_SLOTS];
    uint16_t released[SHM_RING]; /* 1 + data lines, 0: not released */
    uint32_t data_end[SHM_RING]; /* data_tail after each record */
    uint8_t free_sends[SHM_RING];
    uint8_t send_busy[SHM_RING];
    void *send_cookie[SHM_RING];
    void *sent[SHM_SENT];
    uint8_t told[SHM_ARENAS]; /* enum shm_told */
    struct shm_area *areas;   /* announced by the peer, not taken yet */
    uint32_t nareas;
    struct shm_msg msgs[SHM_MSGS];
};
enum shm_told { SHM_UNTOLD, SHM_TOLD, SHM_TELL_GONE };

struct shm_arena {
    uint8_t *mem; /* NULL: unused */
    size_t bytes;
    uint64_t offset; /* in its file */
    uint32_t id;
    int fd;    /* -1: registered without one */
    int owned; /* from mem_alloc: free unmaps it */
};

struct shm_tp {
    struct bny_tp base;
    struct shm_tp *next_live; /* of this process: tp_shm.c */
    struct shm_ep **peers;    /* [nranks] or NULL each */
    struct shm_ep **eps;      /* [neps] opened ones with pending work: bny_shm_enlist() */
    int neps, next_ep;
    uint32_t polls, idle;
    uint64_t serviced_ns, period_ns;
    int epfd, may_be_read, gone_pending;
    uint32_t rights;        /* of struct shm_blob */
    uint32_t zcopy_min;     /* 0: not looked up yet */
    int starved;            /* errno: a peer waits and we lack a descriptor or memory for it */
    struct shm_conn *spare; /* memory for the next accepted connection */
    uint64_t lacks_ns;      /* since when there is none; 0: there is */
    uint32_t dropped;       /* foreign connections since the latest log line about them */
    uint64_t dropped_ns;
    struct shm_conn *conns, *closed;
    struct shm_conn *listener;
    uint32_t narenas, last_arena; /* high-water mark; last hit */
    struct shm_area *areas;       /* ours */
    uint32_t area_id;             /* of the latest */
    uint32_t arena_gen[SHM_ARENAS];
    struct shm_arena arenas[SHM_ARENAS];
    const uint8_t *secret; /* [32] */
    uint8_t nonce[16];     /* read by peers' probes */
    char name[SHM_NAME_BYTES];
    struct bny_place at;
};

/* shm_packet.c: over a socket. send: 0, BNY_AGAIN, or -1 if the connection is broken. receive:
 * 1, 0: none, -1: the connection has ended; the caller owns *fd, -1: none, SHM_FD_LOST: this
 * process has too many open files to receive it. Unrequested descriptors are closed. */
#define SHM_FD_LOST -2
int bny_shm_packet_send(int sock, const struct shm_packet *p, int fd);
int bny_shm_packet_receive(int sock, struct shm_packet *p, int *fd);

/* shm_link.c: sockets */
int bny_shm_listen(struct shm_tp *tp);
/* Makes the outgoing segment and connection if there is none: 0, BNY_AGAIN or an error. */
int bny_shm_open_out(struct shm_ep *ep);
/* Accepts, reads, detects deaths. Makes system calls. Returns the number of things that
 * happened. */
int bny_shm_service(struct shm_tp *tp);
/* Reads the input of the peer's own connection. */
void bny_shm_drain(struct shm_ep *ep);
/* Sends one packet, with a descriptor if fd >= 0. Returns 0, BNY_AGAIN, or -1 if the connection
 * is broken. */
int bny_shm_packet(struct shm_ep *ep, struct shm_packet *p, int fd);
void bny_shm_doorbell(struct shm_ep *ep);
void bny_shm_link_destroy(struct shm_tp *tp);
/* The peer's record, made on first use. NULL: no memory. */
struct shm_ep *bny_shm_peer(struct shm_tp *tp, int rank);
void bny_shm_peer_free(struct shm_ep *ep);
/* Adds the peer to the polled ones, if it is opened and connected: in large jobs most peers
 * never connect. */
void bny_shm_enlist(struct shm_ep *ep);
/* Returns 0, or the error for the resource that this process lacks. */
int bny_shm_starves(const struct shm_tp *tp);
/* pid: the peer's process, by the kernel. If its address names another one's memory, the peer
 * is marked as gone, and that memory is never accessed. Returns 0 or an error. */
int bny_shm_ep_check(struct shm_ep *ep, pid_t pid);
/* Marks the peer as gone for a reason, which poll reports. Returns bny_fail(code, the
 * reason). */
int bny_shm_ep_fail(struct shm_ep *ep, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The error of a call on an endpoint whose peer is gone. */
int bny_shm_ep_gone(struct shm_ep *ep);
/* A system call found no such process: it left, or it died. Returns the error. */
int bny_shm_ep_process_gone(struct shm_ep *ep);

/* shm_path.c: the data path */
int bny_shm_eager(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf);
int bny_shm_reserve(struct bny_ep *ep, uint32_t cap, struct bny_slot *slot);
int bny_shm_commit(struct bny_ep *ep, struct bny_slot *slot, const struct bny_hdr *hdr);
void bny_shm_cancel(struct bny_ep *ep, struct bny_slot *slot);
int bny_shm_send(struct bny_ep *ep, const struct bny_hdr *hdr, const void *buf, void *cookie);
int bny_shm_poll(struct bny_tp *tp, struct bny_event *ev, int n);
int bny_shm_poll_ep(struct bny_ep *ep, struct bny_event *ev, int n);
long bny_shm_view(struct bny_msg *msg, uint32_t off, uint32_t len, void *dst, const void **ptr);
void bny_shm_release(struct bny_msg *msg);
/* 1 if a poll of the endpoint would return an event. */
int bny_shm_ready(struct shm_ep *ep);
/* Is there room for one more record? Rereads head if the ring looks full. 1, 0, or an error of
 * the peer. */
int bny_shm_has_room(struct shm_ep *ep);
/* Publishes the next record; the caller has checked for room. */
void bny_shm_post(struct shm_ep *ep, const struct bny_hdr *hdr, uint32_t info, uint64_t word);

/* shm_mem.c: arenas, windows, puts */
int bny_shm_window_open(struct bny_ep *ep, void *addr, size_t bytes, struct bny_window *out);
int bny_shm_window_close(struct bny_ep *ep, struct bny_window *win);
void *bny_shm_put_map(struct bny_ep *ep, const struct bny_window *win, uint64_t offset,
                      uint32_t len);
void bny_shm_put_unmap(struct bny_ep *ep);
int bny_shm_window_store(struct bny_ep *ep, const struct bny_window *win, uint64_t offset,
                         const void *src, uint32_t len);
int bny_shm_put(struct bny_ep *ep, const struct bny_hdr *hdr, const void *src, uint32_t len,
                const struct bny_window *win, uint64_t offset, void *cookie);
int bny_shm_mem_alloc(struct bny_tp *tp, size_t bytes, void **out);
int bny_shm_mem_free(struct bny_tp *tp, void *ptr);
int bny_shm_mem_register(struct bny_tp *tp, void *ptr, size_t bytes, int fd, uint64_t offset);
int bny_shm_mem_deregister(struct bny_tp *tp, void *ptr);
int bny_shm_mem_is_shared(struct bny_tp *tp, const void *at, size_t bytes);
/* Our arena that holds [addr, addr+len), or NULL. */
struct shm_arena *bny_shm_arena_find(struct shm_tp *tp, const void *addr, size_t len);
/* Ensures that the peer learns of the arena before the next message: 0, BNY_AGAIN, error. */
int bny_shm_arena_tell(struct shm_ep *ep, const struct shm_arena *a);
/* Memory [offset, offset+len) of the peer's arena `id`, or NULL: it has none there. */
uint8_t *bny_shm_peer_arena(struct shm_ep *ep, uint32_t id, uint64_t offset, uint64_t len);
/* The peer's packets. Takes fd. Return 0, EPROTO: malformed, or ENOMEM. */
int bny_shm_arena_packet(struct shm_ep *ep, const struct shm_packet *p, int fd);
void bny_shm_arena_gone(struct shm_ep *ep, uint32_t id);
/* Reports freed arenas to peers; gone_pending stays set if a socket is full. */
void bny_shm_arena_flush(struct shm_tp *tp);
/* A sealed memfd of the given size, mapped. flags: for memfd_create. Returns the descriptor or
 * -1. */
int bny_shm_memfd(size_t bytes, unsigned flags, uint8_t **mem);
void bny_shm_ep_unmap(struct shm_ep *ep);
void bny_shm_mem_destroy(struct shm_tp *tp);

/* shm_area.c: areas */
int bny_shm_area_make(struct bny_tp *tp, size_t bytes, int readers, void **mem, uint32_t *id);
int bny_shm_area_tell(struct bny_ep *ep, uint32_t id);
void *bny_shm_area_take(struct bny_ep *ep, uint32_t id, size_t bytes);
void bny_shm_area_give(struct bny_ep *ep, void *mem, size_t bytes);
void bny_shm_area_free(struct bny_tp *tp, uint32_t id);
void bny_shm_area_wake(struct bny_ep *ep);
/* The peer's packet. Takes fd. Returns 0, EPROTO: malformed, or ENOMEM. */
int bny_shm_area_packet(struct shm_ep *ep, const struct shm_packet *p, int fd);
void bny_shm_areas_forget(struct shm_ep *ep); /* areas that were not taken */
void bny_shm_areas_destroy(struct shm_tp *tp);

#endif
