/* SPDX-License-Identifier: BSD-3-Clause */
#include "collectives/op/child.h"

int bny_child_init(struct bny_child *c, const struct bny_op *parent, struct bny_call *call)
{
    int rc = 0;

    if (!call->is_child)
        call->is_child = BNY_CHILD;
    if (call->redop.wire == 0xfd) /* the parent's input is scaled already */
        rc = bny_redop_get(&call->redop, BANYAN_SUM, call->dtype);
    if (rc == 0)
        rc = bny_op_init(&c->op, parent->comm, call);
    c->op.sig = parent->sig;
    c->op.sig.codec_sched ^= c->op.plan.hash;
    return rc;
}

int bny_child_start(struct bny_child *c, struct bny_op *parent, uint32_t nth)
{
    int rc;

    c->runs = 1;
    rc = bny_op_start_child(&c->op, parent, bny_op_seq(parent) + nth);
    if (rc)
        c->runs = 0;
    return rc;
}

void bny_child_free(struct bny_child *c, const struct bny_op *parent)
{
    if (c->op.comm && parent->comm)
        bny_op_finish(&c->op);
    else if (c->op.comm)
        bny_op_finish_orphan(&c->op);
}
