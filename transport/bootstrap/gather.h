/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the all-gather: declarations that its files share.
 *
 * A rank serves the ranks below it (gather_below.c; the root alone: gather_root.c), and each
 * rank but the root has a rank above it (gather_client.c). In small jobs all ranks are below
 * the root. From BANYAN_INIT_TREE ranks on peer infos go up a tree, each rank's with those of
 * all below it, and the table comes down. If the launcher tells which ranks share a host, those
 * are a tree of their own, over Unix sockets (host_tree.h), and its head represents them at the
 * root: it reports the ranks that have come. A rank that is alone on its host, or cannot join
 * the host's tree, is a head too. Once all ranks have come the root makes a tree of the heads
 * and sends each its place and the number of ranks below it; at a timeout it makes a tree of
 * those that came. So no rank guesses what to wait for. The root itself serves a rank that
 * cannot reach its place or is refused there. A head stays connected to the root until it has
 * the table.
 *
 * Frames after the handshake, from below:
 *   HERE   struct gather_here, ranks (u32 each): from a head to the root, in large jobs: the
 *          address where it serves others, the ranks of its host that have come. Again for
 *          later ranks
 *   CARD   struct gather_card, the sender's peer info
 *   CARDS  struct gather_cards, ranks (u32 each), their peer infos, each packed as differences
 * from the one before (wire_pack.h): includes those from below READY  empty: the sender has all
 * peer infos and is connected to all ranks, as are all ranks whose peer infos it brought; or
 * the ranks (u32 each) that are, when the deadline is near ABORT  u32 code, the sentence: the
 * sender will not join; instead of the others, or after any of them; a BNY_CONN_ABORT
 * connection sends nothing else and from above: PLACE  struct gather_place, from the root: go
 * there; or stay ALL    struct gather_all, a piece of the packed table of all peer infos GO
 * empty: all ranks are ready FAIL   u32 code, the sentence: all ranks fail with it */
#ifndef BNY_BOOTSTRAP_GATHER_H
#define BNY_BOOTSTRAP_GATHER_H

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/conn.h"
#include "transport/bootstrap/host_tree.h"

#define GATHER_PIECE      65536 /* bytes of peer infos in one frame, about */
#define GATHER_FRAME_MAX  (2 * GATHER_PIECE)
#define GATHER_TEXT       400
#define GATHER_ATTEMPT_NS 5000000000u  /* time for a connection to authenticate, */
#define GATHER_KNOWN_NS   60000000000u /* and for one that knows the job: its host is busy */

enum gather_frame {
    GATHER_CARD = 1,
    GATHER_ALL,
    GATHER_FAIL,
    GATHER_READY,
    GATHER_ABORT,
    GATHER_GO,
    GATHER_HERE,
    GATHER_PLACE,
    GATHER_CARDS
};

struct gather_peer_info {
    uint32_t bytes;        /* of the peer info */
    uint32_t remaining_ms; /* until the sender's deadline; 0: none */
};

struct gather_peer_infos {
    uint32_t bytes, remaining_ms; /* of one peer info; until the earliest of their deadlines */
    uint32_t count, zero;
};

struct gather_all {
    uint32_t total, offset; /* bytes of the packed table; where the piece lies in it */
};

struct gather_here {
    struct bny_addr addr; /* family 0: the sender serves no ranks */
    uint32_t count;       /* ranks that follow; the first HERE includes the sender */
};

struct gather_place {
    struct bny_addr addr; /* family 0: stay */
    int32_t rank;
    uint32_t below; /* number of ranks of other hosts that will connect */
};

struct gather_below {
    int listen_fd;          /* -1: serves none, or no more */
    int near_fd;            /* the same for ranks on our host */
    struct bny_conn **half; /* connections whose purpose is unknown yet */
    int nhalf, half_cap;
    struct bny_conn **ranks; /* [nranks], by rank: connections that have come */
    int *members, nmembers;  /* ranks served: their peer infos came by their own connection */
    int32_t *via;            /* [nranks], the member that brought this peer info; -1: none */
    size_t *sent;            /* [nranks], bytes of the table queued */
    uint8_t *told;           /* [nranks], the failure was sent to this rank */
    uint8_t *ready;          /* [nranks], this rank is ready */
    int arrived, nready;     /* number of peer infos; of ready ranks; without our own */
    int served;              /* members that have the table */
    int settling;            /* all ranks must live until all are ready */
    int went;                /* GO is queued to all */
    struct bny_conn *
        *leaving; /* were sent a failure; closed when they close, or at the timeout */
    int nleaving, leaving_cap;
    int near_told;           /* failures sent to connections of near_fd */
    uint64_t first_deadline; /* the earliest deadline of all connected ranks; 0: none */
    uint64_t linger_until;   /* after a failure */
    struct bny_foreign foreign;
    /* The root's alone. */
    uint64_t waits_ns; /* since when a rank waits for a place; 0: none waits */
    int nhere, nwait;  /* ranks that have come, the root among them; heads that wait */
    struct gather_spot {
        struct bny_addr addr;
        int32_t above;  /* rank that represents it; for a head the head above it; 0: the root */
        uint32_t ranks; /* of a head: number of ranks it represents */
        uint8_t here, asked, waits;
    } * spots;              /* [nranks] of large jobs */
    struct gather_strange { /* a rank that claims to be of this job but has another secret */
        uint8_t times;
        uint64_t first_ns;
    } * strange; /* [nranks] */
    struct bny_conn *
        *probes; /* to ports where another root may listen; until known no rank is served */
    int nprobes;
    uint64_t probes_end_ns;
};

struct gather_client {
    struct bny_conn *conn;         /* to the root */
    struct gather_strange strange; /* the root as seen by us */
    struct bny_addr addr;
    int candidate, refused; /* port of the span; handshakes that the root closed */
    unsigned tries;
    uint64_t retry_ns, attempt_end_ns;
    int joined;           /* a peer info was sent */
    int said_ready, told; /* told: the root knows of the failure, or sent it */
    uint64_t refused_ns;  /* time of the first refused connection; 0: the root listens */
    char last[160];       /* result of the latest attempt */
    /* For large jobs. */
    struct bny_conn *up; /* to the rank above us */
    struct bny_addr up_addr;
    int up_rank; /* 0: the root */
    enum { PLACE_NONE, PLACE_NEAR, PLACE_ASKED, PLACE_UP, PLACE_ROOT } place;
    uint64_t near_end_ns;    /* by then a rank must listen on our host */
    int expected;            /* ranks that will connect to us */
    uint64_t up_end_ns;      /* by then the rank above must have authenticated */
    struct gather_here here; /* the address where we serve others */
    uint64_t give_ns,
        give_wait_ns; /* when the peer infos so far are sent up, complete or not */
    int given;        /* peer infos of other ranks */
    int looked;       /* `arrived` at the latest HERE to the root */
    uint8_t *said;    /* [nranks], ranks reported in it */
    uint8_t *gave;    /* [nranks] */
    int nready_said;
};

struct bny_bootstrap {
    struct bny_id id;
    int nranks, rank;
    int tree; /* the job is a large one */
    size_t info_bytes;
    uint64_t start_ns, deadline_ns;
    int epfd;
    struct bny_conn_self self;
    struct bny_conn_tally tally;
    struct bny_near near;
    uint8_t
        *table; /* [nranks * card_bytes], our peer info at its place, and those from below */
    int has_peer_info; /* our peer info is set */
    uint8_t *packed;   /* [npacked] the packed table; have: bytes received */
    size_t npacked, have;
    int full;      /* the table is complete */
    int listening; /* the root's listener is open until the root ends */
    int words;     /* of init that lasts: said so far */
    int done;      /* 1: the table is complete and was sent to all ranks served */
    int settled;   /* 1: all ranks are ready */
    int error;     /* negative code once failed */
    char text[GATHER_TEXT];
    struct gather_below below;
    struct gather_client client;
};

/* Counts an attempt that met another secret. 1: often and long enough that the peer is a rank
 * and not a passing stranger. The root's time is shorter, so that it sends the failure to the
 * others before the client gives up. */
#define GATHER_STRANGE_TIMES     3
#define GATHER_STRANGE_ROOT_NS   700000000u
#define GATHER_STRANGE_CLIENT_NS 1000000000u
int gather_strange(struct gather_strange *s, const struct bny_conn *c, uint64_t patience_ns);
/* The remedy for an id of that kind. */
const char *gather_strange_remedy(const struct bny_id *id);

/* ---- gather_below.c: both kinds ---- */

/* Serves the connections of listen_fd and near_fd, which are taken; -1: none. */
int gather_below_start(struct bny_bootstrap *b, int listen_fd, int near_fd);
void gather_below_finish(struct bny_bootstrap *b);
void gather_stop_listening(struct gather_below *r);
/* Processes new connections, their input and their ends. */
void gather_look_around(struct bny_bootstrap *b);
/* Processes what members sent before this call, for which no event comes. */
void gather_settle_begin(struct bny_bootstrap *b);
/* Sends the available part of the table. 1: members have all of it. */
int gather_serve(struct bny_bootstrap *b);
/* Sends GO to all members; gather_went: it is sent. */
void gather_let_go(struct bny_bootstrap *b);
int gather_went(struct bny_bootstrap *b);
/* Sends b->error to all connected ranks, and to those that connect until linger_until. 1: all
 * connected ones were sent it, or the time is up. */
int gather_tell_all(struct bny_bootstrap *b);

/* ---- gather_root.c ---- */

int gather_root_start(struct bny_bootstrap *b);
/* Sets b->done or b->error; if there is an error already, sends it to the ranks. Returns 1 when
 * there is nothing left to do. */
int gather_root_progress(struct bny_bootstrap *b);
/* As gather_root_progress, once done; sets b->settled. */
int gather_root_settle(struct bny_bootstrap *b, int ready);
/* Sends b->error to all ranks, connected or late. 1: all were sent it, or the time is up. */
int gather_root_tell(struct bny_bootstrap *b);
/* The root's address as text[BNY_ADDR_TEXT]. */
const char *gather_root_text(const struct bny_bootstrap *b, char *text);
/* Large jobs: a rank's peer info has come, over another rank's connection or its own. */
void gather_root_came(struct bny_bootstrap *b, int rank, int from);
/* A head reports the ranks of its host that have come, and requests its place. */
void gather_root_here(struct bny_bootstrap *b, struct bny_conn *c, const uint8_t *data,
                      size_t len);
/* Another root has proven knowledge of our secret. */
void gather_root_second(struct bny_bootstrap *b, const struct bny_conn *c);
void gather_root_stop_probes(struct gather_below *r);
/* A connection claims that our secret is wrong. */
void gather_root_strange(struct bny_bootstrap *b, const struct bny_conn *c);

/* ---- gather_client.c ---- */

/* Opens the socket for the ranks of our host below us, if any; -1: none. */
int gather_near_start(struct bny_bootstrap *b);
/* Large jobs: opens the listener for other ranks, if this rank may be above any. */
int gather_client_start(struct bny_bootstrap *b, const char *ifname, const char *port_range);
/* Sets b->done or b->error. */
void gather_client_progress(struct bny_bootstrap *b);
void gather_client_settle(struct bny_bootstrap *b, int ready);
/* Sends b->error as soon as the root answers. silent_ns: the longest wait for that answer. */
void gather_client_tell(struct bny_bootstrap *b, uint64_t deadline_ns, uint64_t silent_ns);
/* Is there a connection upwards that can carry the error now? */
int gather_client_reaches(const struct bny_bootstrap *b);
void gather_client_finish(struct bny_bootstrap *b);

/* The payload of FAIL and ABORT, both ways. Returns its length. */
size_t gather_pack_failure(const struct bny_bootstrap *b, uint8_t frame[4 + GATHER_TEXT]);
void gather_take_failure(struct bny_bootstrap *b, const uint8_t *data, size_t len);

/* 1, once each: init has lasted for 5 s, and for 15 s. */
int gather_word_due(struct bny_bootstrap *b);

/* Sets the error once; the first one stays. Returns -code. */
int gather_fail(struct bny_bootstrap *b, enum banyan_error code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
