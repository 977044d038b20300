/* SPDX-License-Identifier: BSD-3-Clause */
/* The tensors of a model, checked, copied, and compared between ranks. */
#ifndef BNY_TRAINING_TENSORS_H
#define BNY_TRAINING_TENSORS_H

#include "banyan/training.h"

#define BNY_TENSOR_DIMS 8

struct bny_tensor {
    char *name;
    enum banyan_dtype dtype;
    int ndim;
    int64_t shape[BNY_TENSOR_DIMS];
    void *grad;
    size_t count, bytes; /* elements; bytes of the gradient */
};

struct bny_tensors {
    struct bny_tensor *at;
    size_t n;
    size_t count;  /* elements of all */
    uint64_t hash; /* of names, types, shapes and order */
};

/* Copies what the user described. 0; -BANYAN_EINVAL: a name missing or twice, a shape or a type
 * that cannot be (dtypes: bits 1 << enum banyan_dtype), grad NULL; -BANYAN_ENOMEM. */
int bny_tensors_copy(struct bny_tensors *out, const struct banyan_tensor *tensors, size_t n,
                     unsigned dtypes);
void bny_tensors_free(struct bny_tensors *t);
/* Collective. Are they the same at all ranks? 0, or -BANYAN_EMISMATCH: the first tensor that
 * differs from rank 0's, at which rank, and how (number, order, shape, type). */
int bny_tensors_agree(const struct bny_tensors *t, struct banyan_comm *comm);
/* The index of a name, or n. */
size_t bny_tensors_find(const struct bny_tensors *t, const char *name);

#endif
