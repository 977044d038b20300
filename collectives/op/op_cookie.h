/* SPDX-License-Identifier: BSD-3-Clause */
/* Cookies name (operation, step) to a transport that borrows its memory. */
#ifndef BNY_COLLECTIVES_OP_COOKIE_H
#define BNY_COLLECTIVES_OP_COOKIE_H

#include "collectives/op/op.h"

struct bny_cookie {
    struct bny_op *op; /* NULL once the operation failed */
    uint32_t step;
    struct bny_cookie *next; /* free list; or of the operation's */
    struct bny_cookie *prev;
    uint32_t *readers; /* of memory that several peers read: counted down; op is NULL then */
};

struct bny_cookie *bny_cookie_take(struct bny_world *w, struct bny_op *op, uint32_t step);
void bny_cookie_give(struct bny_world *w, struct bny_cookie *ck);
/* The transport has given its memory back. Takes ck. */
void bny_cookie_sent(struct bny_world *w, struct bny_cookie *ck);
/* The operation has failed: its memory is the user's, transports return its cookies later. */
void bny_cookies_drop(struct bny_op *op);
void bny_cookies_free(struct bny_world *w);

#endif
