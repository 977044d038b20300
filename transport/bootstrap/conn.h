/* SPDX-License-Identifier: BSD-3-Clause */
/* One TCP connection between two processes of a job: mutual authentication, then frames.
 *
 * Handshake of three frames; H_c, H_s are the two struct bny_hello, the proofs
 * (transport/proof.h) are those of the asker and the answerer:
 *   client -> server  HELLO  H_c
 *   server -> client  PROOF  H_s, proof of the answerer
 *   client -> server  AUTH   proof of the asker
 *                 or  DIFFERS  empty: the server's proof does not match our secret
 *
 * After DIFFERS the client waits for the end of the stream. Until the proof is verified a frame
 * has at most 128 bytes and nothing in it is trusted, rank and version included. Frame: u32
 * payload length, u32 type, payload; after the handshake ChaCha20-Poly1305 (RFC 8439) seals the
 * payload, with a key of this connection and direction, the frame's number as nonce and the
 * header as additional data, and appends 16 bytes. Everything is little endian.
 *
 * Nothing here blocks. One thread at a time. */
#ifndef BNY_BOOTSTRAP_CONN_H
#define BNY_BOOTSTRAP_CONN_H

#include <stddef.h>
#include <stdint.h>

#include "transport/bootstrap/net.h"

enum bny_conn_purpose {
    BNY_CONN_BOOTSTRAP = 1,
    BNY_CONN_CONTROL = 2,
    BNY_CONN_ABORT = 3, /* to the root: from a rank that will not join */
    BNY_CONN_JOIN = 4,  /* to a running job: from a newcomer */
};

/* Layout is the same in all wire versions, so that versions can be compared. */
struct bny_hello {
    uint8_t magic[4];
    uint16_t wire;    /* BNY_WIRE_VERSION */
    uint16_t purpose; /* enum bny_conn_purpose */
    uint32_t version; /* of the library, as banyan_version() */
    int32_t rank, nranks;
    uint32_t zero;
    uint8_t job[8];
    uint8_t nonce[32];
};
_Static_assert(sizeof(struct bny_hello) == 64, "wire format");

/* Frames and their bytes in both directions, handshake included. */
struct bny_conn_tally {
    uint64_t frames, bytes;
};

/* This process. The secret is borrowed for the life of the connection. */
struct bny_conn_self {
    const uint8_t *secret; /* [32] */
    uint8_t job[8];
    int rank, nranks;
    uint16_t purpose, wire;
    uint32_t version;
    struct bny_conn_tally *tally; /* over all its connections; NULL: not counted */
};
void bny_conn_self_init(struct bny_conn_self *self, enum bny_conn_purpose purpose,
                        const uint8_t *secret, const uint8_t *job, int rank, int nranks);

enum bny_conn_state { BNY_CONN_CONNECTING, BNY_CONN_HELLO, BNY_CONN_PROOF, BNY_CONN_READY };

struct bny_conn {
    int fd, epfd;
    uint32_t armed; /* epoll events requested now */
    enum bny_conn_state state;
    uint8_t client, eof,
        mute;        /* eof: nothing more will come; mute: a send failed, output is discarded */
    uint8_t known;   /* server: the hello names our job (unproven) */
    uint8_t astray;  /* server: the hello names our job, but another of its services */
    uint8_t differs; /* the peer names our job (unproven) but has another secret */
    uint8_t look;    /* client: if the secrets differ, is the other end another user's? */
    uint8_t others;  /* result of that check, made while the other end waited */
    uint8_t fin;     /* the peer's kernel ended the stream in order */
    int err;         /* errno of the end, 0: orderly end or protocol error */
    int mute_err;    /* errno of the failed send */
    const char *why; /* reason for the end, static text */
    struct bny_addr peer;
    const struct bny_conn_self *self;
    struct bny_hello mine, theirs;
    uint8_t *tx_key, *rx_key; /* [32] each, of one bny_secret_new(); NULL until ready */
    uint64_t tx_count, rx_count;
    uint32_t frame_max; /* payload bytes accepted once ready */
    uint8_t *in, *out;
    size_t in_at, in_len, in_cap,
        in_used; /* in_used: bytes of the frame lent by the last next() */
    size_t out_at, out_len, out_cap;
    uint64_t since_ns; /* time of creation */
    int slot;          /* the owner's */
    int expects;       /* client: the only rank accepted as peer; -1: any */
};

/* Do the first bytes of a connection say that its client speaks as bny_conn_new() does? For
 * ports that others listen at. */
int bny_conn_is_hello(const void *bytes, size_t len);
/* Takes fd (also on failure) and adds it to epoll set epfd (data.ptr is the connection). A
 * client's fd may still be connecting. Returns NULL if there is no memory. */
struct bny_conn *bny_conn_new(int fd, int epfd, int client, const struct bny_addr *peer,
                              const struct bny_conn_self *self, uint32_t frame_max);
/* Reads pending input first, so that close() does not reset data on the way to the peer. */
void bny_conn_free(struct bny_conn *c); /* takes NULL */
/* Same, but the peer receives a reset instead of an orderly end: this process is still
 * alive. */
void bny_conn_break(struct bny_conn *c);

/* Connects, shakes hands, flushes. Returns 1: ready. 0: not yet. -1: ended before it was ready;
 * c->why is the reason. */
int bny_conn_progress(struct bny_conn *c);
/* Once ready: returns 1 and the next frame (lent until the next call), 0: none yet, -1: the
 * connection has ended and all its frames were returned. */
int bny_conn_next(struct bny_conn *c, uint32_t *type, const uint8_t **data, size_t *len);
/* Queues a frame and sends what the socket accepts. Returns 0 or -BANYAN_ENOMEM. */
int bny_conn_send(struct bny_conn *c, uint32_t type, const void *data, size_t len);
/* Same, with a frame of two parts. */
int bny_conn_send_parts(struct bny_conn *c, uint32_t type, const void *head, size_t head_len,
                        const void *data, size_t len);
/* Queued bytes that the socket has not accepted yet. */
size_t bny_conn_unsent(const struct bny_conn *c);

/* 1: the kernel reports that the other end belongs to another user on this host, or to no
 * process (so any user may have had it). 0: it is ours, or on another host, or the kernel does
 * not report it. Slow: reads the table of all connections. */
int bny_conn_is_another_users(const struct bny_conn *c);

/* Counts foreign connections and warns about them at most once per second. */
struct bny_foreign {
    uint64_t total, held, last_ns;
};
void bny_foreign_drop(struct bny_foreign *f, const struct bny_conn *c, const char *why);

#endif
