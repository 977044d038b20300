/* SPDX-License-Identifier: BSD-3-Clause */
/* Reduction operations: the built-in kinds, and what banyan_op_create_* made. */
#ifndef BNY_COLLECTIVES_REDOP_H
#define BNY_COLLECTIVES_REDOP_H

#include <stddef.h>
#include <stdint.h>

#include "banyan/banyan.h"
#include "compress/reduce.h"

struct bny_redop {
    uint8_t wire; /* built-in kind, or 0xfd premul, 0xfe user: goes into the signature */
    uint8_t kind; /* enum banyan_op_kind that the built-in kernels run (premul: SUM) */
    uint8_t commutative;
    uint8_t zero[5];     /* no padding: calls are compared as bytes */
    banyan_user_fn user; /* NULL: built-in */
    void *user_ctx;
    size_t elem_bytes, alignment; /* of a user's opaque element; 0: the datatype */
    double scalar;                /* premul */
};

/* Looks an op up for a type. Returns 0 or -BANYAN_EINVAL. Any thread. */
int bny_redop_get(struct bny_redop *out, banyan_op op, enum banyan_dtype dtype);
const char *bny_redop_name(unsigned wire);
/* Whether there is a kernel that stores its results twice, and it: bny_redop_run, and the same
 * into copy. */
int bny_redop_twice(const struct bny_redop *op, enum banyan_dtype dtype);
void bny_redop_run_twice(const struct bny_redop *op, enum banyan_dtype dtype, void *dst,
                         void *copy, const void *a, const void *b, size_t n);
/* dst = a (op) b, n elements; a's ranks come before b's. dst may be a or b. */
void bny_redop_run(const struct bny_redop *op, enum banyan_dtype dtype, void *dst,
                   const void *a, const void *b, size_t n);

/* dst = in[0] (op) in[1] (op) ... of k >= 2 operands, in this order and from the first on, n
 * elements. dst may be one of them; work: n elements that are nobody else's. */
void bny_redop_all(const struct bny_redop *op, enum banyan_dtype dtype, void *dst, void *work,
                   const void *const in[], int k, size_t n);

/* The sum of parts of one number: divided by the number of ranks at the end? */
static inline int bny_redop_averages(const struct bny_redop *op)
{
    return op->kind == BANYAN_AVG && !op->user;
}

/* Elements that must stay together. */
static inline size_t bny_redop_quantum(const struct bny_redop *op)
{
    return op->elem_bytes > 1 ? op->elem_bytes : 1;
}

#endif
