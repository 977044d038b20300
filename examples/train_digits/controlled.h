/* SPDX-License-Identifier: BSD-3-Clause */
/* train_digits: the network's gradients as tensors of a method of banyan's training layer. */
#ifndef CONTROLLED_H
#define CONTROLLED_H

#include "method.h"
#include "network.h"

struct controlled {
    struct method *method; /* NULL: exchange.h does it */
    struct banyan_comm *comm;
    struct banyan_tensor tensors[2 * LAYERS_MAX + 1]; /* the last has no name */
    int64_t dims[2 * LAYERS_MAX][2];
    char names[2 * LAYERS_MAX][32];
    float *grad, *before; /* [n] before: parameters before the step */
    size_t n, coded;      /* coded: of the matrices in front that a codec serves */
    uint64_t wire;        /* bytes that this rank sent in steps */
};

/* Returns 0 or what the library did. grad [n]: borrowed. */
int controlled_init(struct controlled *c, struct banyan_comm *comm, const struct network *net,
                    float *grad, const struct method_options *opt);
void controlled_free(struct controlled *c);
/* A micro-step's gradients are added to grad; the step's last one scales them by share, and
 * exchanges them. */
int controlled_reduce(struct controlled *c, int last, float share);
/* Before and after the parameters move. loss: this rank's; rate: of the next step. */
void controlled_before(struct controlled *c, const struct network *net);
/* Ends what is under way, before what is not counted. */
int controlled_settle(struct controlled *c);
int controlled_after(struct controlled *c, const struct network *net, double loss, double rate);

#endif
