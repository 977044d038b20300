/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan's training layer: what a data-parallel training loop needs on top of the collectives
 * of banyan.h. Compiles alone as C11 and as C++17; part of libbanyan.
 *
 * Conventions are banyan.h's: errors are negative BANYAN_E* codes with a sentence in
 * banyan_last_error() that names tensor and rank, _free takes NULL, one thread at a time per
 * object and communicator. Besides:
 *   All ranks  make the same objects of the same tensors in the same order, and call them
 * alike. What differs between ranks is found where it can be and told with -EMISMATCH.
 *   Decisions  (levels, stops, phases) are functions of values that all ranks agreed on, so
 *              that all ranks decide alike.
 *   State      what survives a step can be saved to memory of the caller's and loaded again; a
 *              run then goes on bit-identically. The format has a version and a checksum.
 *   Steady     a step allocates nothing once every kind of step was seen.
 */
#ifndef BANYAN_TRAINING_H
#define BANYAN_TRAINING_H

#include <banyan/banyan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One tensor of a model. Arrays of these describe a model, in an order that all ranks share;
 * functions copy what they need but for what grad points to. */
struct banyan_tensor {
    const char *name;        /* unique in the model: rules and errors name it */
    enum banyan_dtype dtype; /* F32; buckets: any floating type */
    int ndim;                /* 0: a scalar; at most 8 */
    const int64_t *shape;    /* [ndim], each > 0 */
    void *grad; /* its gradient, row-major, packed; borrowed for as long as the object lives */
};

#ifdef __cplusplus
}
#endif

#endif
