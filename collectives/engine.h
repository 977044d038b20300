/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the engine: between a chunk's life (engine.c) and where an operation begins and ends
 * (engine_open.c), and what may move (engine_order.c). */
#ifndef BNY_COLLECTIVES_ENGINE_H
#define BNY_COLLECTIVES_ENGINE_H

#include "collectives/internal.h"

static inline int bny_is_send(const struct bny_step *s)
{
    return s->kind == BNY_SEND || s->kind == BNY_FORWARD;
}

/* engine_open.c */
/* May chunks of this step be put straight into the peer's output? Both ends decide alike. */
int bny_engine_placeable(const struct bny_op *op, const struct bny_step *s,
                         const struct bny_ep *ep);
void bny_engine_header(const struct bny_op *op, struct bny_hdr *h, const struct bny_step *s,
                       uint32_t c);
/* Tells peers that will send bulk that we are ready. 1: something was sent. */
int bny_engine_announce(struct bny_op *op);
/* A peer told so. Gives the message back. */
void bny_engine_announced(struct bny_op *op, int from, struct bny_msg *msg);

/* engine_order.c: may a SEND's next chunk leave now? Sets dirty, and the world's alarm, where
 * only time is missing. */
int bny_engine_may_send(struct bny_op *op, uint32_t i);

#endif
