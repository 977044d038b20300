/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear codecs: short codes that are summed by ordinary allreduces, in one or a few stages,
 * and decoded once. */
#ifndef BNY_COMPRESS_LINEAR_H
#define BNY_COMPRESS_LINEAR_H

#include "compress/codec.h"

struct bny_linear { /* one operation of a linear codec; all pointers are the caller's */
    const struct bny_codec *codec;
    unsigned cpu_flags;
    int rank, nranks;
    uint64_t seed; /* the same on all ranks */
    uint32_t step;
    const float *src;
    float *dst; /* may be src; written by finish() only */
    size_t n;
    int64_t rows, cols; /* of the matrix the tensor is taken as: rows * cols == n */
    float scale;        /* of the result (AVG) */
    float *ef;          /* [n] or NULL */
    float ef_scale;
    void *keep; /* [keep_bytes] survives from one operation to the next (zero before the first);
                   NULL: no state */
    void *work; /* [work_bytes], this operation's */
    void *code; /* [code_bytes] what a stage contributes, and the sum afterwards */
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
    /* 1: such a matrix is summed as it is, as its code would not be shorter; NULL: never. */
    int (*is_dense)(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols);
    /* Writes this rank's contribution to stage k into code, and says what it is. k > 0: code
     * holds the sum of stage k - 1 on entry, the same bits on every rank. 0; or an error
     * (-BANYAN_EINVAL, -BANYAN_ENOTSUP: sums would overflow, too many ranks) that every rank
     * returns alike where it depends on agreed values only. */
    int (*contribute)(struct bny_linear *l, int k, struct bny_stage *s);
    /* After the last stage: dst from the sum in code; ef takes what this rank's contribution
     * lost. */
    int (*finish)(struct bny_linear *l);
};

#endif
