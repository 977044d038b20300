/* SPDX-License-Identifier: BSD-3-Clause */
/* How newcomers join a running job. A rank of the job makes an id and listens at its address;
 * newcomers connect there at any time and wait in the kernel's queue while the rank computes.
 * When the job grows, that rank accepts as many as are wanted, and once all have come sends
 * each its place in the new world and that world's id. They then join it by bootstrap.h.
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
/* Takes the id's listener, also on failure. Returns 0; -BANYAN_EINVAL: this process has no
 * listener for it; -BANYAN_ENOMEM, -BANYAN_ESYSTEM. */
int bny_newcomers_start(struct bny_newcomers **out, const struct bny_id *id, int wanted,
                        uint64_t deadline_ns);
/* Returns 1: as many as wanted have come; 0: not yet; else an error, which was sent to those
 * that came: -BANYAN_ETIMEDOUT, -BANYAN_ERANKDEAD (a newcomer has ended), -BANYAN_EVERSION. */
int bny_newcomers_progress(struct bny_newcomers *n);
/* Sends their places: rank, rank + 1, ... in the order of arrival. */
int bny_newcomers_place(struct bny_newcomers *n, const struct bny_newcomer_place *first);
/* Sends the error to those that came. */
void bny_newcomers_refuse(struct bny_newcomers *n, enum banyan_error code, const char *text);
void bny_newcomers_free(struct bny_newcomers *n); /* takes NULL */

/* ---- a newcomer ---- */

struct bny_arrival;
/* Starts to connect; deadline_ns 0: none. Returns 0 or an error. */
int bny_arrival_start(struct bny_arrival **out, const struct bny_id *id, uint64_t deadline_ns);
/* Returns 1: *out is filled. 0: not yet. -BANYAN_ERANKDEAD: the listener or its process has
 * ended; -BANYAN_EPROTO: the listener does not know this id; -BANYAN_ETIMEDOUT; the code of a
 * refusal. */
int bny_arrival_progress(struct bny_arrival *a, struct bny_newcomer_place *out);
int bny_arrival_fd(const struct bny_arrival *a); /* for poll() with a timeout of some ms */
void bny_arrival_free(struct bny_arrival *a);    /* takes NULL */

#endif
