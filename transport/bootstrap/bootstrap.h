/* SPDX-License-Identifier: BSD-3-Clause */
/* How ranks find each other, and how they learn of failures.
 *
 * bootstrap: a TCP star to the id's root, authenticated both ways with the id's secret, framed
 * and bounded; used once, for one all-gather of every rank's card (address blobs, version,
 * settings hash). Or the caller's own all-gather. launch_env: finds (id, rank, nranks) in the
 * environment. control: sockets to ranks at distance +-2^k (a sparse overlay), which stay for
 * the life of the world: they notice dead processes by EOF and flood failure records, farewells
 * and aborts; no rank is special. */
#ifndef BNY_BOOTSTRAP_H
#define BNY_BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

#include "banyan/banyan.h"

/* ---- ids ---- */
enum bny_key_from {                 /* where the secret of an id comes from */
                    BNY_KEY_DRAWN,  /* it was drawn at random with the id */
                    BNY_KEY_SECRET, /* BANYAN_SECRET, BANYAN_SECRET_FILE */
                    BNY_KEY_COOKIE, /* the user's file, cookie.h */
                    BNY_KEY_WORDS,  /* BANYAN_INSECURE: what everybody may know */
};
struct bny_id {       /* the content of banyan_id, 128 bytes */
    uint8_t magic[4]; /* "bny1" */
    uint16_t port;  /* of the root, host order; 0: no root (one rank, or caller's all-gather) */
    uint8_t family; /* 4 or 6 */
    uint8_t span; /* the root listens at one of the ports port .. port+span-1; 0 counts as 1 */
    uint8_t addr[16];
    uint8_t secret[32];
    uint8_t job[8];    /* random: tells jobs apart */
    uint8_t key_from;  /* enum bny_key_from: what to say when a peer has another secret */
    uint8_t listening; /* the root listened before anybody had the id */
    uint8_t pad[62];
};
_Static_assert(sizeof(struct bny_id) == 128, "banyan_id");

/* Makes an id; with listen != 0 opens the root's listening socket, which stays in a
 * process-wide table until bny_bootstrap_* takes it. Returns 0, -BANYAN_ESYSTEM,
 * -BANYAN_ECONFIG (interface, port range). */
int bny_id_create(struct bny_id *out, const char *ifname, const char *port_range, int listen);
/* The id's listening socket, which stays in the table: to pass it on to the process that
 * becomes rank 0 (clear FD_CLOEXEC there, name it in BANYAN_LISTEN_FD). -1: none. Any thread.
 */
int bny_id_listen_fd(const struct bny_id *id);
/* Nobody shall come by it any more: closes its listening socket, if it is still in the table.
 */
void bny_id_close(const struct bny_id *id);
/* As text for BANYAN_ID: 256 hexadecimal digits and NUL. from_hex returns 0 or -BANYAN_EINVAL.
 */
#define BNY_ID_HEX 257
void bny_id_to_hex(const struct bny_id *id, char out[BNY_ID_HEX]);
int bny_id_from_hex(struct bny_id *out, const char *text);

/* An id on its way between processes that share a secret [32] already: encrypted and
 * authenticated, under a fresh nonce. open returns 0, or -BANYAN_EPROTO. */
#define BNY_ID_BOX (24 + 16 + sizeof(struct bny_id))
void bny_id_seal(uint8_t box[BNY_ID_BOX], const struct bny_id *id, const uint8_t *secret);
int bny_id_unseal(struct bny_id *id, const uint8_t box[BNY_ID_BOX], const uint8_t *secret);

/* ---- the launcher's environment ---- */
struct bny_launch {
    struct bny_id id;
    int rank, nranks;
    const char
        *how; /* "banyan_run", "torchrun", "pmix", "mpich", "openmpi", "slurm", "single" */
};
/* Reads the environment (and asks PMIx or PMI when they are there) so that every rank of the
 * job ends up with the same id, rank 0 listening. deadline_ns absolute. Returns 0, or
 * -BANYAN_ECONFIG (names the variable and the remedy), -BANYAN_ETIMEDOUT, -BANYAN_ESYSTEM. */
int bny_launch_env(struct bny_launch *out, const char *ifname, const char *port_range,
                   uint64_t deadline_ns);

/* ---- the all-gather, and what comes after it ---- */
struct bny_bootstrap; /* one all-gather in progress */
#define BNY_CARD_MAX 4096

/* Starts. card[card_bytes <= BNY_CARD_MAX] is copied; NULL: it follows. The connection to the
 * root is begun at once: before this rank does what may fail or take long. Returns 0 or an
 * error. */
int bny_bootstrap_start(struct bny_bootstrap **out, const struct bny_id *id, int nranks,
                        int rank, const void *card, size_t card_bytes, const char *ifname,
                        const char *port_range, uint64_t deadline_ns);
void bny_bootstrap_card(struct bny_bootstrap *b, const void *card);
/* Progresses without blocking. 1: done, cards[nranks * card_bytes] is filled (NULL: they are to
 * be had by bny_bootstrap_deck). 0: not yet. Else
 * an error: -BANYAN_ETIMEDOUT names the ranks that are missing (or the root that does not
 * answer, with address and remedy), -BANYAN_EPROTO duplicate rank / rank out of range /
 * different nranks, -BANYAN_EVERSION. When one rank fails here for a reason others can know
 * (duplicate, version), the root tells all and all fail with it. */
int bny_bootstrap_progress(struct bny_bootstrap *b, void *cards);
/* After progress said 1, of more than one rank: all cards, in the order of ranks; to be closed
 * before b is destroyed. 0 or -BANYAN_ENOMEM. */
struct bny_deck;
int bny_bootstrap_deck(const struct bny_bootstrap *b, struct bny_deck *out);
/* After progress said 1: watches that all ranks live until they have connected to each other.
 * ready: this rank has. 1: all have, 0: not yet, else an error as of progress. */
int bny_bootstrap_settle(struct bny_bootstrap *b, int ready);
/* This rank cannot join: all others end with code and text, unless it is they who ended it.
 * Blocks until that is on its way: a rank that is not the root 5 s at most, while the root does
 * not answer; the root 2 s, for those who still come. */
void bny_bootstrap_abort(struct bny_bootstrap *b, enum banyan_error code, const char *text);
/* As this, where those who have not come are not waited for: they learn it by other means. */
void bny_bootstrap_abort_now(struct bny_bootstrap *b, enum banyan_error code, const char *text);
/* The same for another process that has ended, by who started it. Blocks until the root has
 * taken it, or has gone, or needs no ranks any more. */
void bny_bootstrap_report(const struct bny_id *id, int nranks, int rank, enum banyan_error code,
                          const char *text, uint64_t deadline_ns);
/* A descriptor set to sleep on: fills fds[0..cap), returns the number. */
int bny_bootstrap_fds(struct bny_bootstrap *b, int *fds, int cap);
void bny_bootstrap_destroy(struct bny_bootstrap *b); /* takes NULL */

/* ---- control plane ---- */
struct bny_control;
#define BNY_CONTROL_ADDR_MAX 64

enum bny_cause { /* order of precedence: the smallest wins, then the smallest rank; but an abort
                    before its rank's end */
                 BNY_CAUSE_DEATH = 1, /* proven: its kernel said so */
                 BNY_CAUSE_SILENT,    /* nothing was heard of it for too long */
                 BNY_CAUSE_MISMATCH,
                 BNY_CAUSE_ABORT,
                 BNY_CAUSE_RESET,
                 BNY_CAUSE_DEADLINE,
                 BNY_CAUSE_LEFT, /* a rank that is needed left in order, mostly for one of the
                                    causes above */
                 BNY_CAUSE_NOT_MADE, /* communicators that were split from comm as number `call`
                                        of those calls, or later, are not there at a rank */
};
/* What happened, as it floods. */
struct bny_failure {
    uint32_t cause;   /* enum bny_cause */
    uint32_t code;    /* positive enum banyan_error */
    int32_t blamed;   /* world rank, or -1 */
    int32_t reporter; /* world rank that saw it first */
    uint32_t comm;    /* communicator it concerns, 0: all of the world */
    uint32_t call;    /* NOT_MADE; else 0 */
    char text[300];   /* NUL-terminated sentence */
};

/* Opens this rank's control listener, before the all-gather. secret [32] is borrowed for its
 * life, and counts as it is at bny_control_connect. */
int bny_control_create(struct bny_control **out, int rank, int nranks, const uint8_t *secret,
                       const uint8_t *job, const char *ifname, const char *port_range);
/* Address blob for the card; returns its length. */
int bny_control_address(struct bny_control *c, void *blob, size_t cap);
/* After the all-gather: stride bytes apart, rank r's blob at blobs + r*stride. Starts
 * connecting to the overlay neighbours; never blocks. same_host[r]: 1 when rank r runs on this
 * host, and in our network namespace. */
int bny_control_connect(struct bny_control *c, const void *blobs, size_t stride,
                        const uint8_t *same_host);
/* Starts the thread that hears, forwards and answers while this rank computes, sleeping while
 * nothing comes. Once the links are up. Returns 0; without a thread (BANYAN_CONTROL_THREAD=0,
 * or it cannot be made) all of that happens in bny_control_progress alone. */
int bny_control_start(struct bny_control *c);
/* Hears what has come, forwards and answers; without a thread (else that does it). Cheap enough
 * to call every few 100 us. Returns 1 when a failure has been agreed on, else 0. */
int bny_control_progress(struct bny_control *c);
/* The same, thread or not: what neighbours have sent until now is known behind it. Any thread.
 */
int bny_control_hear(struct bny_control *c);
/* Makes the thread look. Any thread. */
void bny_control_wake(struct bny_control *c);
/* The first failure that was agreed on. Returns 1 when there is one. Any thread. */
int bny_control_failure(struct bny_control *c, struct bny_failure *out);
/* The first that concerns communicator comm: its own and the world's. As bny_control_failure.
 */
int bny_control_failure_of(struct bny_control *c, uint32_t comm, struct bny_failure *out);
/* As this, where the world's concern it only if they blame nobody, or somebody whom it has. */
int bny_control_failure_among(struct bny_control *c, uint32_t comm,
                              int (*has)(const void *ctx, int rank), const void *ctx,
                              struct bny_failure *out);
/* The first that was agreed on by which a rank that `has` knows of lacks memory or descriptors
 * for whatever it does. As bny_control_failure. */
int bny_control_lacking(struct bny_control *c, int (*has)(const void *ctx, int rank),
                        const void *ctx, struct bny_failure *out);
/* 1 while such a failure is known but not agreed on: soon there is an agreed one. Any thread.
 */
int bny_control_pending(struct bny_control *c, uint32_t comm);
/* The ranks that are dead or have left, agreed on with the latest view, whose number is
 * returned: 0 while there was none. gone: a bit a rank, [(nranks + 63) / 64]. Any thread. */
uint32_t bny_control_gone(struct bny_control *c, uint64_t *gone);
/* This rank takes no part any more: the others took it for dead, it is cut off from too many of
 * them, or lacks what its links need. Its error, with the sentence, or 0. Any thread. */
int bny_control_out(struct bny_control *c);
/* 1: this rank has said its farewell, of which no view tells by itself. Any thread. */
int bny_control_left(struct bny_control *c, int rank);
/* Agreement of the ranks `members` (NULL: all) on what they contribute, by communicator and
 * number of the call; a rank begins call i + 1 behind call i. Ranks that die do not hinder it,
 * and it ends behind the view that says so; with an error for those who are cut off from most;
 * those that have not come when deadline_ns (0: none) has passed anywhere are left out (late),
 * though nobody in the first second.
 * Works whatever failed. Any thread; start returns 0 or an error, test 1: decided, 0: not yet,
 * or an error, as long as call i + 2 was not begun. Where out has pointers they are filled. */
struct bny_contribution {
    const uint64_t *members;           /* set of ranks, a bit each; NULL: all */
    uint64_t bits;                     /* all contributed: AND */
    const struct bny_failure *records; /* not of calls */
    int nrecords;
    unsigned each;    /* bytes of each rank, the same on all, at most BNY_AGREE_EACH; 0: none */
    const void *mine; /* [each] */
    int hasty;        /* of this rank alone: members that do not answer are not waited for */
    uint32_t parent;  /* of this rank alone; 0: none. Once that communicator is aborted members
                       * that have not come are waited for no longer */
    int told;         /* of bny_control_logged(): aborts of parent among these do not count */
};
struct bny_agreed {
    uint64_t *bits;
    /* Sets: whose contribution is in; who is gone (any rank of the world); who was left out. */
    uint64_t *has, *gone, *late; /* [(nranks + 63) / 64] */
    uint8_t *given;              /* [nranks * each]; 0 of who is not in has */
    unsigned each;               /* as this rank has contributed */
};
#define BNY_AGREE_EACH 32
int bny_control_agree_start(struct bny_control *c, uint32_t comm, uint32_t call,
                            const struct bny_contribution *mine, uint64_t deadline_ns);
/* BANYAN_QUORUM: 0: most; -1: any; else so many ranks. */
int bny_control_quorum(const struct bny_control *c);
/* 1: it is agreed on; 0: not yet. -BANYAN_EMISMATCH: others have contributed something else. */
int bny_control_agree_test(struct bny_control *c, uint32_t comm, uint32_t call,
                           const struct bny_agreed *out);
/* Where a rank is in a communicator, for its own control plane, which asks from another thread.
 * The owner stores `started` whenever it begins an operation, and when `wanted` is set, soon if
 * it is in the library at all: active and waits, then fresh, and clears wanted. */
struct bny_position {
    uint32_t comm;
    _Atomic uint32_t started; /* operations begun so far: the number of the next */
    _Atomic uint32_t active;  /* 1 + number of the oldest in flight; 0: none */
    _Atomic uint32_t waits;   /* 1 + a rank of the world that it waits for; 0: nobody */
    _Atomic uint32_t wanted, fresh;
    uint64_t asked_ns;         /* the control plane's */
    struct bny_position *next; /* the control plane's */
};
/* From settled to freed. */
void bny_control_position_add(struct bny_control *c, struct bny_position *p);
void bny_control_position_remove(struct bny_control *c, struct bny_position *p);
/* Operation seq of a communicator has missed its deadline; what: which, in words, the same on
 * all ranks. Its members tell where they are, all come to the same verdict on who is to blame,
 * and that is reported. Any number of times, by any members. Any thread. */
void bny_control_blame(struct bny_control *c, uint32_t comm, uint32_t seq,
                       const uint64_t *members, const char *what);
/* 1 when every neighbour is connected (or known to have failed), 0: not yet, -BANYAN_ESYSTEM:
 * without a descriptor for them. Init should wait for it, by progress: until then a process
 * that dies before it could connect is not noticed. Any thread. */
int bny_control_ready(struct bny_control *c);
/* Reports a failure of our own and floods it. Any thread; never blocks (it may leave the
 * sending to the next progress). */
void bny_control_report(struct bny_control *c, const struct bny_failure *f);
/* As bny_control_failure, of the communicator that was split from `parent` as number `call` of
 * those calls: a member does not have it. */
int bny_control_not_made(struct bny_control *c, uint32_t parent, uint32_t call,
                         struct bny_failure *out);
/* How many failures were agreed on. An atomic load. Any thread. */
int bny_control_logged(const struct bny_control *c);
/* The same, and where no thread hears, that is done first. */
int bny_control_news(struct bny_control *c);
/* Any failure known at all, agreed on or not? An atomic load. Any thread. */
int bny_control_suspect(struct bny_control *c);
/* Has any rank said its farewell? An atomic load. Any thread. */
int bny_control_some_left(struct bny_control *c);
/* Was something decided since the latest progress? An atomic load. Any thread. */
int bny_control_told(struct bny_control *c);
/* Says goodbye to the neighbours, so that our exit is no failure. Progresses. Returns 0 or
 * BNY_AGAIN (output waits, or a neighbour has not connected yet). */
int bny_control_farewell(struct bny_control *c);
int bny_control_fds(struct bny_control *c, int *fds, int cap);
void bny_control_destroy(struct bny_control *c); /* takes NULL */

#endif
