/* SPDX-License-Identifier: BSD-3-Clause */
/* The tensors of a model, checked, copied, and compared between ranks. */
#ifndef BNY_TRAINING_TENSORS_H
#define BNY_TRAINING_TENSORS_H

#include "banyan/training.h"

#define BNY_TENSOR_DIMS 8

/* Options of all that this layer communicates for itself: without a codec, whatever the
 * communicator's is. NULL would take that. */
extern const struct banyan_opts bny_exact;

struct bny_tensor {
    char *name;
    enum banyan_dtype dtype;
    int ndim;
    int64_t shape[BNY_TENSOR_DIMS];
    void *grad;
    size_t count, bytes; /* elements; bytes of the gradient */
    size_t before;       /* elements of the tensors before it */
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
/* Collective. rc: 0, or what went wrong at this rank, whose sentence is the last error. Returns
 * that; where it went wrong at another rank its code, naming the rank; else 0. So nobody waits
 * for a rank that has given up. what: the function called. */
int bny_all_can(struct banyan_comm *comm, int rc, const char *what);
/* Collective. Are they the same at all ranks? 0, or -BANYAN_EMISMATCH: the first tensor that
 * differs from rank 0's, at which rank, and how (number, order, shape, type). */
int bny_tensors_agree(const struct bny_tensors *t, struct banyan_comm *comm);

/* Of f32 tensors, one after another in flat[count]: copied out, and back. */
void bny_tensors_get(const struct bny_tensors *t, float *flat);
void bny_tensors_put(const struct bny_tensors *t, const float *flat);
/* The first tensor of flat[count] with a value that is no finite number, or n. */
size_t bny_tensors_nonfinite(const struct bny_tensors *t, const float *flat);
/* Collective, after a result that all ranks saw was not finite. bad: this rank's first such
 * tensor, or n. Returns -BANYAN_EINVAL with the tensor and the lowest rank that has one; what:
 * "gradient". Or the error that came up on the way. */
int bny_tensors_blame(const struct bny_tensors *t, struct banyan_comm *comm, size_t bad,
                      const char *what);

#endif
