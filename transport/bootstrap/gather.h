/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the all-gather: what the root's file and the clients' file share.
 *
 * Frames after the handshake:
 *   client -> root  CARD   struct gather_card, the card
 *   client -> root  READY  nothing: it has all cards, and its connections to other ranks stand
 *   client -> root  ABORT  u32 code, the sentence: it will not join; instead of the others, or
 *                          after any of them; all that a connection of BNY_CONN_ABORT sends
 *   root -> client  ALL    struct gather_all, a piece of the packed table of all cards (pack.h)
 *   root -> client  GO     nothing: all ranks are ready
 *   root -> client  FAIL   u32 code, the sentence: everybody fails with it */
#ifndef BNY_BOOTSTRAP_GATHER_H
#define BNY_BOOTSTRAP_GATHER_H

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/conn.h"

#define GATHER_PIECE      32768 /* bytes of the packed table in one ALL frame */
#define GATHER_FRAME_MAX  (GATHER_PIECE + 64)
#define GATHER_TEXT       400
#define GATHER_ATTEMPT_NS 5000000000u /* a connection must have proven itself by then */

enum gather_frame {
    GATHER_CARD = 1,
    GATHER_ALL,
    GATHER_FAIL,
    GATHER_READY,
    GATHER_ABORT,
    GATHER_GO
};

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
    size_t *sent;   /* [nranks], bytes of it queued */
    uint8_t *ready; /* [nranks], this rank is */
    int nready;     /* besides the root */
    int settling;   /* all ranks have to live until all are ready */
    int went;       /* GO is queued to all */
    struct bny_conn *
        *leaving; /* were sent a failure; closed when they close, or when time is up */
    int nleaving, leaving_cap;
    int arrived, served;     /* ranks besides the root */
    uint64_t first_deadline; /* the earliest of all ranks that are there; 0: none */
    uint64_t linger_until;   /* after a failure */
    struct bny_foreign foreign;
    struct gather_strange { /* a rank that says it is of this job, with another secret */
        uint8_t times;
        uint64_t first_ns;
    } * strange; /* [nranks] */
};

struct gather_client {
    struct bny_conn *conn;
    struct gather_strange strange; /* the root to us */
    struct bny_addr addr;
    int candidate, refused; /* port of the span; handshakes that the root ended */
    unsigned tries;
    uint64_t retry_ns, attempt_end_ns;
    uint8_t *packed; /* [total] */
    size_t total, got;
    int joined;           /* the card is sent */
    int said_ready, told; /* told: the root knows of the failure, or we know it from the root */
    uint64_t refused_ns;  /* first time that nobody listened; 0: somebody does */
    char last[160];       /* what the latest attempt met */
};

struct bny_bootstrap {
    struct bny_id id;
    int nranks, rank;
    size_t card_bytes;
    uint64_t start_ns, deadline_ns;
    int epfd;
    struct bny_conn_self self;
    uint8_t *table; /* [nranks * card_bytes], our card at its place */
    int has_card;   /* ours */
    int listening;  /* the root's listener is there until it has ended */
    int done;       /* 1: the table is full */
    int settled;    /* 1: all ranks are ready */
    int error;      /* negative code once failed */
    char text[GATHER_TEXT];
    struct gather_root root;
    struct gather_client client;
};

/* One more attempt met another secret. 1: often enough, and for so long, that it is a rank and
 * not a stranger that passed by. The root's time is shorter: it tells the others before the
 * client gives up. */
#define GATHER_STRANGE_TIMES     3
#define GATHER_STRANGE_ROOT_NS   700000000u
#define GATHER_STRANGE_CLIENT_NS 1000000000u
int gather_strange(struct gather_strange *s, const struct bny_conn *c, uint64_t patience_ns);
/* What to do about it, for ids of that kind. */
const char *gather_strange_remedy(const struct bny_id *id);

int gather_root_start(struct bny_bootstrap *b);
/* Sets b->done or b->error; with an error set before, tells the ranks. Returns 1 when there is
 * nothing left to do. */
int gather_root_progress(struct bny_bootstrap *b);
/* As gather_root_progress, once done; sets b->settled. */
int gather_root_settle(struct bny_bootstrap *b, int ready);
/* Tells everybody who is here or still comes of b->error. 1: all were told, or time is up. */
int gather_root_tell(struct bny_bootstrap *b);
void gather_root_finish(struct bny_bootstrap *b);

/* The payload of FAIL and ABORT, both ways. Returns its length. */
size_t gather_pack_failure(const struct bny_bootstrap *b, uint8_t frame[4 + GATHER_TEXT]);
void gather_take_failure(struct bny_bootstrap *b, const uint8_t *data, size_t len);

/* Sets the error once; the first one stays. Returns -code. */
int gather_fail(struct bny_bootstrap *b, enum banyan_error code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
