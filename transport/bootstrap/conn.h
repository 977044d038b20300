/* SPDX-License-Identifier: BSD-3-Clause */
/* One TCP connection between two processes of a job: mutual authentication, then frames.
 *
 * Handshake, three frames; H_c, H_s are the two struct bny_hello, asked and answered of the
 * proofs (transport/proof.h):
 *   client -> server  HELLO  H_c
 *   server -> client  PROOF  H_s, proof of the answerer
 *   client -> server  AUTH   proof of the asker
 *                 or  DIFFERS  empty: the server's proof is not of our secret
 *
 * After DIFFERS the client waits for the end. Until the proof is verified a frame is at most
 * 128 bytes and nothing that the peer says is believed, its rank and version included. Frame:
 * u32 payload length, u32 type, payload; after the handshake 32 bytes HMAC over (counter,
 * header, payload) with a key of this connection and direction. Everything is little endian.
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
    BNY_CONN_ABORT = 3, /* at the bootstrap: a rank that will not come */
    BNY_CONN_JOIN = 4,  /* at a job that runs: a newcomer */
};

/* Stable across wire versions: it is how versions get compared. */
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

/* Frames in and out, those of the handshake among them, and their bytes. */
struct bny_conn_tally {
    uint64_t frames, bytes;
};

/* Who we are. The secret is borrowed for the life of the connection. */
struct bny_conn_self {
    const uint8_t *secret; /* [32] */
    uint8_t job[8];
    int rank, nranks;
    uint16_t purpose, wire;
    uint32_t version;
    struct bny_conn_tally *tally; /* of all its connections; NULL: nobody counts */
};
void bny_conn_self_init(struct bny_conn_self *self, enum bny_conn_purpose purpose,
                        const uint8_t *secret, const uint8_t *job, int rank, int nranks);

enum bny_conn_state { BNY_CONN_CONNECTING, BNY_CONN_HELLO, BNY_CONN_PROOF, BNY_CONN_READY };

struct bny_conn {
    int fd, epfd;
    uint32_t armed; /* epoll events now asked for */
    enum bny_conn_state state;
    uint8_t client, eof,
        mute;      /* eof: nothing more will come; mute: sending failed, output is discarded */
    uint8_t known; /* server: the hello was of our job (still unproven) */
    uint8_t
        astray; /* server: says that it is of our job, and looks for another of its services */
    uint8_t differs; /* says that it is of our job (still unproven), with another secret */
    uint8_t look;    /* client: the owner wants to know whose the other end is, if it differs */
    uint8_t others;  /* with look: bny_conn_is_another_users, while the other end waited */
    uint8_t fin;     /* the peer's kernel ended the stream in order */
    int err;         /* errno of the end, 0: orderly end or broken protocol */
    int mute_err;    /* of the sending that failed */
    const char *why; /* why it ended, static text */
    struct bny_addr peer;
    const struct bny_conn_self *self;
    struct bny_hello mine, theirs;
    uint8_t tx_key[32], rx_key[32];
    uint64_t tx_count, rx_count;
    uint32_t frame_max; /* payload bytes accepted once ready */
    uint8_t *in, *out;
    size_t in_at, in_len, in_cap,
        in_used; /* in_used: bytes of the frame lent by the last next() */
    size_t out_at, out_len, out_cap;
    uint64_t since_ns; /* when it was made */
    int slot;          /* the owner's */
    int expects;       /* client: no other rank may answer; -1: any may */
};

/* Takes fd (also on failure) and watches it in epoll set epfd (data.ptr is the connection). A
 * client's fd may still be connecting. Returns NULL without memory. */
struct bny_conn *bny_conn_new(int fd, int epfd, int client, const struct bny_addr *peer,
                              const struct bny_conn_self *self, uint32_t frame_max);
/* Reads what is there first, so that closing does not reset data still on the way to
 * the peer. */
void bny_conn_free(struct bny_conn *c); /* takes NULL */
/* As this, but the peer sees a reset and no end: we are still there. */
void bny_conn_break(struct bny_conn *c);

/* Connects, shakes hands, flushes. 1: ready. 0: not yet. -1: ended before it was ready; c->why
 * says why. */
int bny_conn_progress(struct bny_conn *c);
/* After ready: 1 and the next frame (lent until the next call), 0 none yet, -1 the connection
 * has ended and all its frames were handed out. */
int bny_conn_next(struct bny_conn *c, uint32_t *type, const uint8_t **data, size_t *len);
/* Queues a frame. Returns 0 or -BANYAN_ENOMEM. Sends at once what the socket takes. */
int bny_conn_send(struct bny_conn *c, uint32_t type, const void *data, size_t len);
/* As this, of a head and what follows it. */
int bny_conn_send_parts(struct bny_conn *c, uint32_t type, const void *head, size_t head_len,
                        const void *data, size_t len);
/* Bytes queued and not yet taken by the socket. */
size_t bny_conn_unsent(const struct bny_conn *c);

/* 1 when the kernel says that the other end is another user's, on this host, or that nobody
 * holds it any more, so that it may have been anybody's. 0: it is ours, or of another host, or
 * the kernel does not say. Slow: reads the table of all connections. */
int bny_conn_is_another_users(const struct bny_conn *c);

/* Counts foreign connections and warns about them at most once a second. */
struct bny_foreign {
    uint64_t total, held, last_ns;
};
void bny_foreign_drop(struct bny_foreign *f, const struct bny_conn *c, const char *why);

#endif
