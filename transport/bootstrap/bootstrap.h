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
struct bny_id {       /* the content of banyan_id, 128 bytes */
    uint8_t magic[4]; /* "bny1" */
    uint16_t port;  /* of the root, host order; 0: no root (one rank, or caller's all-gather) */
    uint8_t family; /* 4 or 6 */
    uint8_t span; /* the root listens at one of the ports port .. port+span-1; 0 counts as 1 */
    uint8_t addr[16];
    uint8_t secret[32];
    uint8_t job[8]; /* random: tells jobs apart */
    uint8_t pad[64];
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
/* As text for BANYAN_ID: 256 hexadecimal digits and NUL. from_hex returns 0 or -BANYAN_EINVAL.
 */
#define BNY_ID_HEX 257
void bny_id_to_hex(const struct bny_id *id, char out[BNY_ID_HEX]);
int bny_id_from_hex(struct bny_id *out, const char *text);

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

/* ---- the all-gather ---- */
struct bny_bootstrap; /* one all-gather in progress */
#define BNY_CARD_MAX 4096

/* Starts. card[card_bytes <= BNY_CARD_MAX] is copied. Returns 0 or an error. */
int bny_bootstrap_start(struct bny_bootstrap **out, const struct bny_id *id, int nranks,
                        int rank, const void *card, size_t card_bytes, const char *ifname,
                        const char *port_range, uint64_t deadline_ns);
/* Progresses without blocking. 1: done, cards[nranks * card_bytes] is filled. 0: not yet. Else
 * an error: -BANYAN_ETIMEDOUT names the ranks that are missing (or the root that does not
 * answer, with address and remedy), -BANYAN_EPROTO duplicate rank / rank out of range /
 * different nranks, -BANYAN_EVERSION. When one rank fails here for a reason others can know
 * (duplicate, version), the root tells all and all fail with it. */
int bny_bootstrap_progress(struct bny_bootstrap *b, void *cards);
/* A descriptor set to sleep on: fills fds[0..cap), returns the number. */
int bny_bootstrap_fds(struct bny_bootstrap *b, int *fds, int cap);
void bny_bootstrap_destroy(struct bny_bootstrap *b); /* takes NULL */

/* ---- control plane ---- */
struct bny_control;
#define BNY_CONTROL_ADDR_MAX 64

enum bny_cause { /* order of precedence: the smallest wins, then the smallest rank; but an abort
                    before its rank's end */
                 BNY_CAUSE_DEATH = 1,
                 BNY_CAUSE_MISMATCH,
                 BNY_CAUSE_ABORT,
                 BNY_CAUSE_RESET,
                 BNY_CAUSE_DEADLINE,
                 BNY_CAUSE_LEFT, /* a rank that is needed left in order, mostly for one of the
                                    causes above */
};
/* What happened, as it floods. */
struct bny_failure {
    uint32_t cause;   /* enum bny_cause */
    uint32_t code;    /* positive enum banyan_error */
    int32_t blamed;   /* world rank, or -1 */
    int32_t reporter; /* world rank that saw it first */
    uint32_t comm;    /* communicator it concerns, 0: all of the world */
    char text[300];   /* NUL-terminated sentence */
};

/* Opens this rank's control listener, before the all-gather. */
int bny_control_create(struct bny_control **out, int rank, int nranks, const uint8_t *secret,
                       const uint8_t *job, const char *ifname, const char *port_range);
/* Address blob for the card; returns its length. */
int bny_control_address(struct bny_control *c, void *blob, size_t cap);
/* After the all-gather: stride bytes apart, rank r's blob at blobs + r*stride. Starts
 * connecting to the overlay neighbours; never blocks. same_host[r]: 1 when rank r runs on this
 * host. */
int bny_control_connect(struct bny_control *c, const void *blobs, size_t stride,
                        const uint8_t *same_host);
/* Progresses (accept, connect, read, flood). Cheap enough to call every few 100 us; it makes
 * system calls. Returns 1 when a failure is known and its grace (30 ms) has passed, else 0. */
int bny_control_progress(struct bny_control *c);
/* The agreed failure (smallest known). Returns 1 when there is one. Any thread. */
int bny_control_failure(struct bny_control *c, struct bny_failure *out);
/* The agreed failure that concerns communicator comm: its own and the world's. As
 * bny_control_failure. */
int bny_control_failure_of(struct bny_control *c, uint32_t comm, struct bny_failure *out);
/* 1 while such a failure is known but its grace has not passed: soon there is an agreed one.
 * Any thread. */
int bny_control_pending(struct bny_control *c, uint32_t comm);
/* 1 when every neighbour is connected (or known to have failed). Init should wait for it, by
 * progress: until then a process that dies before it could connect is not noticed. Any thread.
 */
int bny_control_ready(struct bny_control *c);
/* Reports a failure of our own and floods it. Any thread; never blocks (it may leave the
 * sending to the next progress). */
void bny_control_report(struct bny_control *c, const struct bny_failure *f);
/* Any failure known at all (before the grace passes)? An atomic load. Any thread. */
int bny_control_suspect(struct bny_control *c);
/* Says goodbye to the neighbours, so that our exit is no failure. Progresses. Returns 0 or
 * BNY_AGAIN (output waits, or a neighbour has not connected yet). */
int bny_control_farewell(struct bny_control *c);
int bny_control_fds(struct bny_control *c, int *fds, int cap);
void bny_control_destroy(struct bny_control *c); /* takes NULL */

#endif
