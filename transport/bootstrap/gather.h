/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the all-gather: what its files share.
 *
 * A rank has ranks below it, whom it serves (gather_below.c; what the root alone does:
 * gather_root.c), and all but the root have somebody above (gather_client.c). In small jobs
 * everybody is below the root. From BANYAN_INIT_TREE ranks on cards go up a tree, each rank's
 * with those of all below it, and the table comes down. Where the launcher says who is on one
 * host its ranks are a tree of their own, over Unix sockets (near.h), and one of them, its
 * head, speaks for all with the root: it says who has come. Who is alone on its host, or is not
 * let in there, is a head too. Once all have come the root makes a tree of the heads and says
 * to each where its place is, and how many come below it; those who came when time was up are a
 * tree of their own. So nobody guesses what to wait for. Who does not reach its place, or comes
 * to it in vain, is served by the root itself. A head stays connected to the root until it has
 * the table.
 *
 * Frames after the handshake, from below:
 *   HERE   struct gather_here, so many ranks (u32): of a head to the root, in large jobs: where
 *          are others to find it, who of its host has come? Again for those who come later
 *   CARD   struct gather_card, the card of who sends it
 *   CARDS  struct gather_cards, so many ranks (u32), their cards, each packed as differences
 *          from the one before (pack.h): also those from below
 *   READY  nothing: it has all cards, and its connections to other ranks stand, and the same of
 *          all whose cards it brought; or the ranks (u32) that are, when time grows short
 *   ABORT  u32 code, the sentence: it will not join; instead of the others, or after any of
 *          them; all that a connection of BNY_CONN_ABORT sends
 * and from above:
 *   PLACE  struct gather_place, of the root: go there; or stay
 *   ALL    struct gather_all, a piece of the packed table of all cards
 *   GO     nothing: all ranks are ready
 *   FAIL   u32 code, the sentence: everybody fails with it */
#ifndef BNY_BOOTSTRAP_GATHER_H
#define BNY_BOOTSTRAP_GATHER_H

#include "transport/bootstrap/bootstrap.h"
#include "transport/bootstrap/conn.h"
#include "transport/bootstrap/near.h"

#define GATHER_PIECE      65536 /* bytes of cards in one frame, about */
#define GATHER_FRAME_MAX  (2 * GATHER_PIECE)
#define GATHER_TEXT       400
#define GATHER_ATTEMPT_NS 5000000000u  /* a connection must have proven itself by then, */
#define GATHER_KNOWN_NS   60000000000u /* or by then, if it knows the job: its host is busy */

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

struct gather_card {
    uint32_t bytes;        /* of the card */
    uint32_t remaining_ms; /* until the sender's deadline; 0: none */
};

struct gather_cards {
    uint32_t bytes, remaining_ms; /* of one card; until the earliest deadline of them */
    uint32_t count, zero;
};

struct gather_all {
    uint32_t total, offset; /* bytes of the packed table; where the piece lies in it */
};

struct gather_here {
    struct bny_addr addr; /* family 0: nobody is served there */
    uint32_t count;       /* ranks that follow; the first HERE names its sender as well */
};

struct gather_place {
    struct bny_addr addr; /* family 0: stay */
    int32_t rank;
    uint32_t below; /* so many ranks of other hosts come below it */
};

struct gather_below {
    int listen_fd;          /* -1: nobody is served, or no more */
    int near_fd;            /* the same of those on our host */
    struct bny_conn **half; /* they have not said what they come for */
    int nhalf, half_cap;
    struct bny_conn **ranks;   /* [nranks], by rank: who has come */
    int *members, nmembers;    /* those of them whose cards came by it: who is served */
    int32_t *via;              /* [nranks], the member that brought this card; -1: none did */
    size_t *sent;              /* [nranks], bytes of the table queued */
    uint8_t *told;             /* [nranks], this rank was sent the failure */
    uint8_t *ready;            /* [nranks], this rank is */
    int arrived, nready;       /* cards; ranks; besides our own */
    int served;                /* members that have the table */
    int settling;              /* all ranks have to live until all are ready */
    int went;                  /* GO is queued to all */
    struct bny_conn **leaving; /* were sent a failure; closed when they close, or when time is
                                  up */
    int nleaving, leaving_cap;
    int near_told;           /* of those who come by near_fd */
    uint64_t first_deadline; /* the earliest of all ranks that are there; 0: none */
    uint64_t linger_until;   /* after a failure */
    struct bny_foreign foreign;
    /* The root's. */
    uint64_t waits_ns; /* since when somebody waits for a place; 0: nobody does */
    int nhere, nwait;  /* ranks that have come, the root among them; heads that wait */
    struct gather_spot {
        struct bny_addr addr;
        int32_t above;  /* who speaks for it; of a head whom it is below; 0: the root */
        uint32_t ranks; /* of a head: it speaks for so many */
        uint8_t here, asked, waits;
    } * spots;              /* [nranks] of large jobs */
    struct gather_strange { /* a rank that says it is of this job, with another secret */
        uint8_t times;
        uint64_t first_ns;
    } * strange;              /* [nranks] */
    struct bny_conn **probes; /* to ports at which another root may be; nobody is served
                                 before it is known */
    int nprobes;
    uint64_t probes_end_ns;
};

struct gather_client {
    struct bny_conn *conn;         /* to the root */
    struct gather_strange strange; /* the root to us */
    struct bny_addr addr;
    int candidate, refused; /* port of the span; handshakes that the root ended */
    unsigned tries;
    uint64_t retry_ns, attempt_end_ns;
    int joined;           /* a card is sent */
    int said_ready, told; /* told: the root knows of the failure, or we know it from the root */
    uint64_t refused_ns;  /* first time that nobody listened; 0: somebody does */
    char last[160];       /* what the latest attempt met */
    /* Of large jobs. */
    struct bny_conn *up; /* to the rank above us */
    struct bny_addr up_addr;
    int up_rank; /* 0: the root */
    enum { PLACE_NONE, PLACE_NEAR, PLACE_ASKED, PLACE_UP, PLACE_ROOT } place;
    uint64_t near_end_ns;           /* then somebody must listen on our host */
    int expected;                   /* ranks that come below us */
    uint64_t up_end_ns;             /* it must have proven itself by then */
    struct gather_here here;        /* where we serve others */
    uint64_t give_ns, give_wait_ns; /* when what has come is given on, complete or not */
    int given;                      /* cards of others */
    int looked;                     /* arrived when the root was told of them */
    uint8_t *said;                  /* [nranks], these */
    uint8_t *gave;                  /* [nranks] */
    int nready_said;
};

struct bny_bootstrap {
    struct bny_id id;
    int nranks, rank;
    int tree; /* the job is a large one */
    size_t card_bytes;
    uint64_t start_ns, deadline_ns;
    int epfd;
    struct bny_conn_self self;
    struct bny_conn_tally tally;
    struct bny_near near;
    uint8_t *table;  /* [nranks * card_bytes], our card at its place, and those from below:
                        what nobody writes to takes no memory */
    int has_card;    /* ours */
    uint8_t *packed; /* [npacked] the table as it travels; have: bytes of it that are here */
    size_t npacked, have;
    int full;      /* all of it */
    int listening; /* the root's listener is there until it has ended */
    int done;      /* 1: the table is full, and was sent to all whom we serve */
    int settled;   /* 1: all ranks are ready */
    int error;     /* negative code once failed */
    char text[GATHER_TEXT];
    struct gather_below below;
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

/* ---- gather_below.c: both kinds ---- */

/* Serves those who come to listen_fd and near_fd, which are taken; -1: none. */
int gather_below_start(struct bny_bootstrap *b, int listen_fd, int near_fd);
void gather_below_finish(struct bny_bootstrap *b);
void gather_stop_listening(struct gather_below *r);
/* Who has come, spoken, ended. */
void gather_look_around(struct bny_bootstrap *b);
/* Looks at what members said before it counted, which no event tells. */
void gather_settle_begin(struct bny_bootstrap *b);
/* Sends what is here of the table. 1: members have all of it. */
int gather_serve(struct bny_bootstrap *b);
/* GO to all members; gather_went: it is on its way. */
void gather_let_go(struct bny_bootstrap *b);
int gather_went(struct bny_bootstrap *b);
/* Tells everybody who is here of b->error, and who comes until linger_until. 1: all that are
 * here were told, or time is up. */
int gather_tell_all(struct bny_bootstrap *b);

/* ---- gather_root.c ---- */

int gather_root_start(struct bny_bootstrap *b);
/* Sets b->done or b->error; with an error set before, tells the ranks. Returns 1 when there is
 * nothing left to do. */
int gather_root_progress(struct bny_bootstrap *b);
/* As gather_root_progress, once done; sets b->settled. */
int gather_root_settle(struct bny_bootstrap *b, int ready);
/* Tells everybody who is here or still comes of b->error. 1: all were told, or time is up. */
int gather_root_tell(struct bny_bootstrap *b);
/* Where the root listens, as text[BNY_ADDR_TEXT]. */
const char *gather_root_text(const struct bny_bootstrap *b, char *text);
/* Of large jobs: the card of a rank has come by another's connection, or its own. */
void gather_root_came(struct bny_bootstrap *b, int rank, int from);
/* A head says who of its host has come, and asks for its place. */
void gather_root_here(struct bny_bootstrap *b, struct bny_conn *c, const uint8_t *data,
                      size_t len);
/* Another root has proven that it has our secret. */
void gather_root_second(struct bny_bootstrap *b, const struct bny_conn *c);
void gather_root_stop_probes(struct gather_below *r);
/* A connection that says that our secret is another one. */
void gather_root_strange(struct bny_bootstrap *b, const struct bny_conn *c);

/* ---- gather_client.c ---- */

/* What the ranks of our host come to, if any are below us; -1: nothing. */
int gather_near_start(struct bny_bootstrap *b);
/* Of large jobs: opens what others come to, if this rank may be above any. */
int gather_client_start(struct bny_bootstrap *b, const char *ifname, const char *port_range);
/* Sets b->done or b->error. */
void gather_client_progress(struct bny_bootstrap *b);
void gather_client_settle(struct bny_bootstrap *b, int ready);
/* Sends b->error as soon as the root answers. silent_ns: how long it may not. */
void gather_client_tell(struct bny_bootstrap *b, uint64_t deadline_ns, uint64_t silent_ns);
/* Is there anybody above to tell at once? */
int gather_client_reaches(const struct bny_bootstrap *b);
void gather_client_finish(struct bny_bootstrap *b);

/* The payload of FAIL and ABORT, both ways. Returns its length. */
size_t gather_pack_failure(const struct bny_bootstrap *b, uint8_t frame[4 + GATHER_TEXT]);
void gather_take_failure(struct bny_bootstrap *b, const uint8_t *data, size_t len);

/* Sets the error once; the first one stays. Returns -code. */
int gather_fail(struct bny_bootstrap *b, enum banyan_error code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
