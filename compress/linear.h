/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear codecs: short codes that ordinary allreduces sum, in one or a few stages, decoded
 * once. */
#ifndef BNY_COMPRESS_LINEAR_H
#define BNY_COMPRESS_LINEAR_H

#include "compress/codec.h"

struct bny_linear { /* one operation of a linear codec; the caller owns all pointers */
    const struct bny_codec *codec;
    unsigned cpu_flags;
    int rank, nranks;
    uint64_t seed; /* the same on all ranks */
    uint32_t step;
    const float *src;
    float *dst; /* may be src; written by finish() only */
    size_t n;
    int64_t rows, cols; /* of the tensor as a matrix: rows * cols == n */
    float scale;        /* of the result (AVG) */
    float *ef;          /* [n] or NULL */
    float ef_scale;
    void *keep; /* [keep_bytes] kept from one operation to the next (zero before the first);
                   NULL: no state */
    void *work; /* [work_bytes], this operation's */
    void *code; /* [code_bytes] this rank's contribution to a stage, and the sum afterwards */
};

struct bny_stage { /* one allreduce of `code` */
    enum banyan_dtype dtype;
    enum banyan_op_kind op;
    size_t count; /* the same on all ranks; 0: nothing to do */
};

struct bny_linear_ops {
    int (*nstages)(const struct bny_codec *c); /* 1..4; the same on all ranks */
    size_t (*keep_bytes)(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols);
    size_t (*work_bytes)(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols);
    size_t (*code_bytes)(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols);
    /* 1: such a matrix is summed uncompressed, as its code would not be shorter; NULL:
     * never. */
    int (*is_dense)(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols);
    /* Writes this rank's contribution to stage k into code, and describes it. k > 0: code holds
     * the sum of stage k - 1 on entry, the same bits on every rank. Returns 0; or an error
     * (-BANYAN_EINVAL, -BANYAN_ENOTSUP: sums would overflow, too many ranks), the same on every
     * rank if it depends on agreed values only. */
    int (*contribute)(struct bny_linear *l, int k, struct bny_stage *s);
    /* After the last stage: dst from the sum in code; ef gets the loss of this rank's
     * contribution. */
    int (*finish)(struct bny_linear *l);
};

#endif
