/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the all-gather: what the root's file and the clients' file share.
 *
 * Frames after the handshake:
 *   client -> root  CARD   struct gather_card, the card
 *   root -> client  ALL    struct gather_all, a piece of the packed table of all cards (pack.h)
 *   root -> client  FAIL   u32 code, the sentence: everybody fails with it */
#ifndef BNY_BOOTSTRAP_GATHER_H
#define BNY_BOOTSTRAP_GATHER_H

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/conn.h"

#define GATHER_PIECE      32768 /* bytes of the packed table in one ALL frame */
#define GATHER_FRAME_MAX  (GATHER_PIECE + 64)
#define GATHER_TEXT       400
#define GATHER_ATTEMPT_NS 5000000000u /* a connection must have proven itself by then */

enum gather_frame { GATHER_CARD = 1, GATHER_ALL, GATHER_FAIL };

struct gather_card {
    uint32_t bytes;        /* of the card */
    uint32_t remaining_ms; /* until the sender's deadline; 0: none */
};

struct gather_all {
    uint32_t total, offset; /* bytes of the packed table; where the piece lies in it */
};

struct gather_root {
    int listen_fd;          /* -1 once everybody is there */
    struct bny_conn **half; /* no card from them yet */
    int nhalf, half_cap;
    struct bny_conn **ranks; /* [nranks], by rank */
    uint8_t *told;           /* [nranks], this rank was sent the failure */
    uint8_t *packed;         /* [npacked] once all are there: the table as it is sent */
    size_t npacked;
    size_t *sent; /* [nranks], bytes of it queued */
    struct bny_conn *
        *leaving; /* were sent a failure; closed when they close, or when time is up */
    int nleaving, leaving_cap;
    int arrived, served;     /* ranks besides the root */
    uint64_t first_deadline; /* the earliest of all ranks that are there; 0: none */
    uint64_t linger_until;   /* after a failure */
    struct bny_foreign foreign;
};

struct gather_client {
    struct bny_conn *conn;
    struct bny_addr addr;
    int candidate, refused; /* port of the span; handshakes that the root ended */
    unsigned tries;
    uint64_t retry_ns, attempt_end_ns;
    uint8_t *packed; /* [total] */
    size_t total, got;
    int joined;     /* the card is sent */
    char last[160]; /* what the latest attempt met */
};

struct bny_bootstrap {
    struct bny_id id;
    int nranks, rank;
    size_t card_bytes;
    uint64_t start_ns, deadline_ns;
    int epfd;
    struct bny_conn_self self;
    uint8_t *table; /* [nranks * card_bytes], our card at its place */
    int done;       /* 1: the table is full */
    int error;      /* negative code once failed */
    char text[GATHER_TEXT];
    struct gather_root root;
    struct gather_client client;
};

int gather_root_start(struct bny_bootstrap *b);
/* Sets b->done or b->error; with an error set before, tells the ranks. Returns 1 when there is
 * nothing left to do. */
int gather_root_progress(struct bny_bootstrap *b);
void gather_root_finish(struct bny_bootstrap *b);

/* Sets the error once; the first one stays. Returns -code. */
int gather_fail(struct bny_bootstrap *b, enum banyan_error code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
