/* SPDX-License-Identifier: BSD-3-Clause */
/* How newcomers find a job that runs. A rank of it has made an id, and listens where it says;
 * newcomers connect there, at any time, and wait: the kernel keeps them, while the rank
 * computes. When the ranks grow, that rank takes as many as are wanted, and once all are there
 * tells each its place in the new world, whose own id it names. Joining that is bootstrap.h's
 * affair.
 *
 * Frames after the handshake (conn.h, purpose BNY_CONN_JOIN), all to the newcomer:
 *   PLACE   i32 rank, i32 nranks, the new world's id in a box (bny_id_seal)
 *   REFUSE  u32 code, the sentence
 *
 * One thread at a time; only bny_newcomers_place blocks, for a moment. */
#ifndef BNY_BOOTSTRAP_NEWCOMERS_H
#define BNY_BOOTSTRAP_NEWCOMERS_H

#include "transport/bootstrap/bootstrap.h"

struct bny_newcomer_place {
    int32_t rank, nranks;
    struct bny_id id; /* of the new world */
};

/* ---- the rank that made the id ---- */

struct bny_newcomers;
/* Takes the id's listener, also on failure. 0; -BANYAN_EINVAL: no listener of it is here;
 * -BANYAN_ENOMEM, -BANYAN_ESYSTEM. */
int bny_newcomers_start(struct bny_newcomers **out, const struct bny_id *id, int wanted,
                        uint64_t deadline_ns);
/* 1: as many as wanted are there; 0: not yet; else an error, which was told to those who came:
 * -BANYAN_ETIMEDOUT, -BANYAN_ERANKDEAD (one that had come has ended), -BANYAN_EVERSION. */
int bny_newcomers_progress(struct bny_newcomers *n);
/* Tells them their places: rank, rank + 1, ... in the order in which they came. */
int bny_newcomers_place(struct bny_newcomers *n, const struct bny_newcomer_place *first);
/* Tells those who came that nothing comes of it. */
void bny_newcomers_refuse(struct bny_newcomers *n, enum banyan_error code, const char *text);
void bny_newcomers_free(struct bny_newcomers *n); /* takes NULL */

/* ---- a newcomer ---- */

struct bny_arrival;
/* Begins to connect; deadline_ns 0: none. 0 or an error. */
int bny_arrival_start(struct bny_arrival **out, const struct bny_id *id, uint64_t deadline_ns);
/* 1: *out is filled. 0: not yet. -BANYAN_ERANKDEAD: nobody listens any more, or who did has
 * ended; -BANYAN_EPROTO: who listens knows no such id; -BANYAN_ETIMEDOUT; what was refused. */
int bny_arrival_progress(struct bny_arrival *a, struct bny_newcomer_place *out);
int bny_arrival_fd(const struct bny_arrival *a); /* to sleep on, some milliseconds */
void bny_arrival_free(struct bny_arrival *a);    /* takes NULL */

#endif
