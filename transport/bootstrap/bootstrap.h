/* SPDX-License-Identifier: BSD-3-Clause */
/* How ranks find each other, and how they learn of failures.
 *
 * bootstrap: a TCP star around the id's root, authenticated both ways with the id's secret,
 * with bounded frames. One all-gather of every rank's peer info (address blobs, version, hash
 * of settings) uses it once. The caller may provide the all-gather instead. launch_env: finds
 * (id, rank, nranks) in the environment. control: sockets to the ranks at distance +-2^k (a
 * sparse overlay), open for the life of the world. They detect dead processes by EOF and flood
 * failure records, farewells and aborts; no rank is special. */
#ifndef BNY_BOOTSTRAP_H
#define BNY_BOOTSTRAP_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "banyan/banyan.h"

/* ---- ids ---- */
enum bny_key_from {                 /* source of an id's secret */
                    BNY_KEY_DRAWN,  /* drawn at random with the id */
                    BNY_KEY_SECRET, /* BANYAN_SECRET, BANYAN_SECRET_FILE */
                    BNY_KEY_COOKIE, /* the user's file, cookie.h */
                    BNY_KEY_WORDS,  /* BANYAN_INSECURE: derived from public data */
};
struct bny_id {       /* the content of banyan_id, 128 bytes */
    uint8_t magic[4]; /* "bny1" */
    uint16_t
        port; /* of the root, host order; 0: no root (one rank, or the caller's all-gather) */
    uint8_t family; /* 4 or 6 */
    uint8_t span; /* the root listens at one of the ports port .. port+span-1; 0 counts as 1 */
    uint8_t addr[16];
    uint8_t secret[32];
    uint8_t job[8];    /* random: distinguishes jobs */
    uint8_t key_from;  /* enum bny_key_from: selects the remedy if secrets differ */
    uint8_t listening; /* the root listened before any other process had the id */
    uint8_t pad[62];
};
_Static_assert(sizeof(struct bny_id) == 128, "banyan_id");

/* Makes an id; with listen != 0 opens the root's listening socket, which stays in a
 * process-wide table until bny_bootstrap_* takes it. Returns 0, -BANYAN_ESYSTEM,
 * -BANYAN_ECONFIG (interface, port range). */
int bny_id_create(struct bny_id *out, const char *ifname, const char *port_range, int listen);
/* The id's listening socket, which stays in the table. The caller may pass it on to the process
 * that becomes rank 0 (clear FD_CLOEXEC there, name it in BANYAN_LISTEN_FD). -1: none. Any
 * thread. */
int bny_id_listen_fd(const struct bny_id *id);
/* Closes the id's listening socket if it is still in the table: no rank can join by it any
 * more. */
void bny_id_close(const struct bny_id *id);
/* As text for BANYAN_ID: 256 hexadecimal digits and NUL. from_hex returns 0 or -BANYAN_EINVAL.
 */
#define BNY_ID_HEX 257
void bny_id_to_hex(const struct bny_id *id, char out[BNY_ID_HEX]);
int bny_id_from_hex(struct bny_id *out, const char *text);

/* An id encrypted and authenticated, under a fresh nonce, for processes that already share a
 * secret [32]. unseal returns 0 or -BANYAN_EPROTO. */
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
/* Reads the environment (and asks PMIx or PMI if present) so that all ranks of the job get the
 * same id and rank 0 listens. deadline_ns is absolute. Returns 0, or -BANYAN_ECONFIG (names the
 * variable and the remedy), -BANYAN_ETIMEDOUT, -BANYAN_ESYSTEM. */
int bny_launch_env(struct bny_launch *out, const char *ifname, const char *port_range,
                   uint64_t deadline_ns);

/* ---- the all-gather ---- */
struct bny_bootstrap; /* one all-gather in progress */
#define BNY_PEER_INFO_MAX 4096

/* Starts. peer info[card_bytes <= BNY_PEER_INFO_MAX] is copied; NULL: bny_bootstrap_peer_info
 * sets it later. The call starts connecting to the root at once, before this rank does anything
 * that may fail or take long. Returns 0 or an error. */
int bny_bootstrap_start(struct bny_bootstrap **out, const struct bny_id *id, int nranks,
                        int rank, const void *info, size_t info_bytes, const char *ifname,
                        const char *port_range, uint64_t deadline_ns);
void bny_bootstrap_peer_info(struct bny_bootstrap *b, const void *info);
/* Progresses without blocking. Returns 1: done, peer infos[nranks * card_bytes] is filled
 * (NULL: use bny_bootstrap_peer_table). 0: not yet. Else an error: -BANYAN_ETIMEDOUT names the
 * missing ranks (or the root that does not answer, with address and remedy), -BANYAN_EPROTO
 * duplicate rank / rank out of range / different nranks, -BANYAN_EVERSION. If one rank fails
 * for a reason that others can know (duplicate, version), the root sends the failure to all
 * ranks, which fail with it. */
int bny_bootstrap_progress(struct bny_bootstrap *b, void *infos);
/* After progress returned 1 in a job of more than one rank: all peer infos in the order of
 * ranks. The caller closes the peer table before it destroys b. Returns 0 or -BANYAN_ENOMEM. */
struct bny_peer_table;
int bny_bootstrap_peer_table(const struct bny_bootstrap *b, struct bny_peer_table *out);
/* After progress returned 1: checks that all ranks live until they are connected to each other.
 * ready: this rank is. Returns 1: all are, 0: not yet, else an error as from progress. */
int bny_bootstrap_settle(struct bny_bootstrap *b, int ready);
/* This rank cannot join: all others end with code and text, unless the failure came from them.
 * Blocks until the message is sent. A rank that is not the root waits at most 5 s while the
 * root does not answer; the root waits 2 s for ranks that connect late. */
void bny_bootstrap_abort(struct bny_bootstrap *b, enum banyan_error code, const char *text);
/* Same, but does not wait for ranks that have not connected. */
void bny_bootstrap_abort_now(struct bny_bootstrap *b, enum banyan_error code, const char *text);
/* Same on behalf of another process that has ended, called by the process that started it.
 * Blocks until the root has accepted the report, has ended, or needs no ranks any more. */
void bny_bootstrap_report(const struct bny_id *id, int nranks, int rank, enum banyan_error code,
                          const char *text, uint64_t deadline_ns);
/* A descriptor set to sleep on: fills fds[0..cap), returns the number. */
int bny_bootstrap_fds(struct bny_bootstrap *b, int *fds, int cap);
void bny_bootstrap_destroy(struct bny_bootstrap *b); /* takes NULL */

/* ---- control plane ---- */
struct bny_control;
#define BNY_CONTROL_ADDR_MAX 64

enum bny_cause { /* by precedence: the smallest wins, then the smallest rank; but a rank's abort
                    comes before its end */
                 BNY_CAUSE_DEATH = 1, /* proven: its kernel reported it */
                 BNY_CAUSE_SILENT,    /* it sent nothing for too long */
                 BNY_CAUSE_MISMATCH,
                 BNY_CAUSE_ABORT,
                 BNY_CAUSE_RESET,
                 BNY_CAUSE_DEADLINE,
                 BNY_CAUSE_LEFT, /* a needed rank left in order, usually because of one of the
                                    causes above */
                 BNY_CAUSE_NOT_MADE, /* a rank does not have the communicators split from comm
                                        by call number `call` or a later one */
};
/* A failure, as ranks flood it. */
struct bny_failure {
    uint32_t cause;   /* enum bny_cause */
    uint32_t code;    /* positive enum banyan_error */
    int32_t blamed;   /* world rank, or -1 */
    int32_t reporter; /* world rank that detected it first */
    uint32_t comm;    /* communicator it concerns, 0: all of the world */
    uint32_t call;    /* NOT_MADE; else 0 */
    char text[300];   /* NUL-terminated sentence */
};

/* Opens this rank's control listener before the all-gather. secret [32] is borrowed for the
 * life of the control plane; its value at bny_control_connect counts. */
int bny_control_create(struct bny_control **out, int rank, int nranks, const uint8_t *secret,
                       const uint8_t *job, const char *ifname, const char *port_range);
/* Address blob for the peer info; returns its length. */
int bny_control_address(struct bny_control *c, void *blob, size_t cap);
/* After the all-gather: rank r's blob lies at blobs + r*stride. Starts connecting to the
 * overlay neighbours; never blocks. same_host[r]: 1 if rank r runs on this host and in our
 * network namespace. */
int bny_control_connect(struct bny_control *c, const void *blobs, size_t stride,
                        const uint8_t *same_host);
/* " (pid 4711 on node7)" into text[BNY_WHERE_TEXT], which it returns; "" until
 * bny_control_connect has the rank's peer info. Any thread. */
#define BNY_WHERE_TEXT 64
const char *bny_control_where(const struct bny_control *c, int rank, char *text);
/* Starts the thread that receives, forwards and answers while this rank computes, and sleeps
 * while no message comes. Call it once the links are up. Returns 0. Without a thread
 * (BANYAN_CONTROL_THREAD=0, or none can be made) only bny_control_progress does this. */
int bny_control_start(struct bny_control *c);
/* Before that: the thread calls fn, without a lock, whenever anything woke it, and when the
 * milliseconds have passed that fn returned last; -1: no time. fn's second argument is 1 if a
 * descriptor of bny_control_watch_fd may have something. */
void bny_control_watch(struct bny_control *c, int (*fn)(void *, int), void *ctx);
/* fd wakes the thread when it becomes readable. Any thread. */
void bny_control_watch_fd(struct bny_control *c, int fd);

/* A survey asks all ranks for a text, each of which its owner writes, and is for tools: a rank
 * that does not answer does not matter. A rank makes one at a time. The question goes to all
 * ranks over the links, and answers come back by the way that it took. Any thread. */
#define BNY_SURVEY_TEXT 16384 /* longest answer */
struct bny_survey {
    int32_t by; /* the rank that asks */
    uint32_t number;
};
/* Begins one, and forgets the answers to the one before. */
void bny_control_survey_begin(struct bny_control *c);
/* 1: a question, this rank's own included, that this rank has not answered; 0: there is none.
 */
int bny_control_survey_asked(struct bny_control *c, struct bny_survey *out);
void bny_control_survey_answer(struct bny_control *c, const struct bny_survey *s,
                               const char *text, size_t len);
/* The answers to its own question that have come since the last call, a line each, for the
 * caller to free; NULL: none. *missing: live ranks that have not answered. */
char *bny_control_survey_take(struct bny_control *c, size_t *len, int *missing);
/* Seconds since this rank was last seen waiting inside the library; < 0: never. */
double bny_control_away_s(const struct bny_control *c);
/* If there is no thread, receives, forwards and answers. Cheap enough for a call every few 100
 * us. Returns 1 if a failure has been agreed on, else 0. */
int bny_control_progress(struct bny_control *c);
/* Does the same even if there is a thread: all that neighbours have sent is known afterwards.
 * Any thread. */
int bny_control_hear(struct bny_control *c);
/* Wakes the thread. Any thread. */
void bny_control_wake(struct bny_control *c);
/* The first failure agreed on. Returns 1 if there is one. Any thread. */
int bny_control_failure(struct bny_control *c, struct bny_failure *out);
/* The first failure of communicator comm, its own or the world's. As bny_control_failure. */
int bny_control_failure_of(struct bny_control *c, uint32_t comm, struct bny_failure *out);
/* Same, but a failure of the world counts only if it blames no rank or a rank for which has()
 * is true. */
int bny_control_failure_among(struct bny_control *c, uint32_t comm,
                              int (*has)(const void *ctx, int rank), const void *ctx,
                              struct bny_failure *out);
/* The first failure agreed on in which a rank for which has() is true lacks memory or
 * descriptors. As bny_control_failure. */
int bny_control_lacking(struct bny_control *c, int (*has)(const void *ctx, int rank),
                        const void *ctx, struct bny_failure *out);
/* 1 while such a failure is known but not yet agreed on. Any thread. */
int bny_control_pending(struct bny_control *c, uint32_t comm);
/* The ranks that are dead or have left, by the latest view. Returns its number; 0: none yet.
 * gone: one bit for each rank, [(nranks + 63) / 64]. Any thread. */
uint32_t bny_control_gone(struct bny_control *c, uint64_t *gone);
/* The error, with its sentence, if this rank no longer takes part: the others consider it dead,
 * it is cut off from too many of them, or it lacks resources for its links. Else 0. Any
 * thread. */
int bny_control_out(struct bny_control *c);
/* 1: this rank has sent its farewell. Views alone do not record farewells. Any thread. */
int bny_control_left(struct bny_control *c, int rank);
/* Agreement of the ranks `members` (NULL: all) on their contributions, identified by
 * communicator and number of the call; a rank begins call i + 1 after call i. Dead ranks do not
 * block it, and it ends after the view that records them; ranks cut off from the majority get
 * an error. When deadline_ns (0: none) has passed on any rank, members that have not entered
 * are left out (late), but none in the first second. It works after any failure. Any thread.
 * start returns 0 or an error; test returns 1: decided, 0: not yet, or an error, until call i +
 * 2 begins. Pointers of out that are not NULL are filled. */
struct bny_contribution {
    const uint64_t *members;           /* set of ranks, one bit each; NULL: all */
    uint64_t bits;                     /* combined by AND */
    const struct bny_failure *records; /* not for calls */
    int nrecords;
    unsigned each; /* bytes of each rank, equal on all, at most BNY_CONSENSUS_EACH; 0: none */
    const void *mine; /* [each] */
    int hasty;        /* this rank alone: does not wait for members that do not answer */
    uint32_t parent;  /* this rank alone; 0: none. Once it is aborted, missing members are not
                         waited for */
    int told; /* a value of bny_control_logged(): earlier aborts of parent do not count */
};
struct bny_agreed {
    uint64_t *bits;
    /* Sets: ranks whose contribution is in; ranks that are gone (of the world); ranks left
     * out. */
    uint64_t *has, *gone, *late; /* [(nranks + 63) / 64] */
    uint8_t *given;              /* [nranks * each]; 0 for ranks not in has */
    unsigned each;               /* as this rank contributed */
};
#define BNY_CONSENSUS_EACH 32
int bny_control_agree_start(struct bny_control *c, uint32_t comm, uint32_t call,
                            const struct bny_contribution *mine, uint64_t deadline_ns);
/* BANYAN_QUORUM: 0: majority; -1: any; else a number of ranks. */
int bny_control_quorum(const struct bny_control *c);
/* 1: agreed; 0: not yet. -BANYAN_EMISMATCH: other ranks contributed to another call. */
int bny_control_agree_test(struct bny_control *c, uint32_t comm, uint32_t call,
                           const struct bny_agreed *out);
/* A rank's position in a communicator, which its own control plane reads from another thread.
 * The owner stores `started` when it begins an operation. If `wanted` is set it also stores
 * active and waits, then fresh, and clears wanted: soon, if it is inside the library. */
struct bny_position {
    uint32_t comm;
    _Atomic uint32_t started; /* operations begun so far: the number of the next */
    _Atomic uint32_t active;  /* 1 + number of the oldest in flight; 0: none */
    _Atomic uint32_t waits;   /* 1 + world rank that it waits for; 0: none */
    _Atomic uint32_t wanted, fresh;
    uint64_t asked_ns;         /* the control plane's */
    int told;                  /* the control plane's: warnings of slow operations */
    struct bny_position *next; /* the control plane's */
};
/* A communicator's position is registered from the time it is settled until it is freed. */
void bny_control_position_add(struct bny_control *c, struct bny_position *p);
void bny_control_position_remove(struct bny_control *c, struct bny_position *p);
/* Operation seq of a communicator missed its deadline; what names the operation, equal on all
 * ranks. Its members exchange their positions, reach the same verdict on the rank to blame, and
 * report it. Any member may call it any number of times. Any thread. */
void bny_control_blame(struct bny_control *c, uint32_t comm, uint32_t seq,
                       const uint64_t *members, const char *what);
/* The same for an operation that takes long: the members warn, and nothing fails. Some warnings
 * a communicator, one after the other. Returns 1: the rank has asked, or warns no more; 0: call
 * it again. */
int bny_control_ask_where(struct bny_control *c, uint32_t comm, uint32_t seq,
                          const uint64_t *members, const char *what);
/* This rank waits inside the library now, which its progress thread alone does not say. Any
 * thread. */
void bny_control_here(struct bny_control *c);
/* 1: every neighbour is connected or known to have failed, 0: not yet, -BANYAN_ESYSTEM: no
 * descriptor for them. Init should progress until then: before that, nobody detects the death
 * of a process that has not connected. Any thread. */
int bny_control_ready(struct bny_control *c);
/* Reports a failure that this rank detected and floods it. Any thread; never blocks (it may
 * leave the sending to the next progress). */
void bny_control_report(struct bny_control *c, const struct bny_failure *f);
/* As bny_control_failure, for the communicator that call number `call` split from `parent`: a
 * member does not have it. */
int bny_control_not_made(struct bny_control *c, uint32_t parent, uint32_t call,
                         struct bny_failure *out);
/* What the inline functions below read, each by an atomic load; the beginning of struct
 * bny_control. */
struct bny_control_seen {
    atomic_int suspect;   /* a failure is known */
    atomic_int some_left; /* a farewell has arrived */
    atomic_int logged;    /* number of failures agreed on */
    atomic_int told;      /* the descriptor for decisions is readable */
};
static inline const struct bny_control_seen *bny_control_seen(const struct bny_control *c)
{
    return (const struct bny_control_seen *)(const void *)c;
}
/* Number of failures agreed on. Any thread. */
static inline int bny_control_logged(const struct bny_control *c)
{
    return atomic_load_explicit(&bny_control_seen(c)->logged, memory_order_acquire);
}
/* Same, but without a thread it receives first. */
int bny_control_news(struct bny_control *c);
/* Is any failure known, agreed on or not? Any thread. */
static inline int bny_control_suspect(const struct bny_control *c)
{
    return atomic_load_explicit(&bny_control_seen(c)->suspect, memory_order_acquire);
}
/* Has any rank sent its farewell? Any thread. */
static inline int bny_control_some_left(const struct bny_control *c)
{
    return atomic_load_explicit(&bny_control_seen(c)->some_left, memory_order_acquire);
}
/* Has a decision been made since the latest progress? Any thread. */
static inline int bny_control_told(const struct bny_control *c)
{
    return atomic_load_explicit(&bny_control_seen(c)->told, memory_order_relaxed);
}
/* Sends a farewell to the neighbours, so that our exit does not count as a failure. Progresses.
 * Returns 0 or BNY_AGAIN (output waits, or a neighbour has not connected yet). */
int bny_control_farewell(struct bny_control *c);
int bny_control_fds(struct bny_control *c, int *fds, int cap);
void bny_control_destroy(struct bny_control *c); /* takes NULL */

#endif
