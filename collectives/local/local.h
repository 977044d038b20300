/* SPDX-License-Identifier: BSD-3-Clause */
/* Local work: what a rank does to bytes between messages. Each function does it now; a job
 * (workers.h) is the same work, done by a thread. Copies and reductions of operations go
 * through here. */
#ifndef BNY_COLLECTIVES_LOCAL_H
#define BNY_COLLECTIVES_LOCAL_H

#include <string.h>

#include "collectives/call/redop.h"

/* Byte offsets of buffers, which are NULL where a call has none: C knows no NULL + 0. */
static inline const char *bny_in_at(const char *base, size_t bytes)
{
    return base ? base + bytes : NULL;
}

static inline char *bny_out_at(char *base, size_t bytes)
{
    return base ? base + bytes : NULL;
}

/* Both ends may be the same memory. */
static inline void bny_local_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes && dst != src)
        memmove(dst, src, bytes);
}

/* They do not overlap: the common case, which the compiler makes faster. */
static inline void bny_local_place(void *dst, const void *src, size_t bytes)
{
    if (bytes)
        memcpy(dst, src, bytes);
}

/* dst = a (op) b of n elements, a's ranks first. dst may be a or b. */
static inline void bny_local_reduce(const struct bny_redop *op, enum banyan_dtype dtype,
                                    void *dst, const void *a, const void *b, size_t n)
{
    bny_redop_run(op, dtype, dst, a, b, n);
}

/* dst = in[0] (op) in[1] (op) ... of k >= 2 (bny_redop_all). */
static inline void bny_local_reduce_all(const struct bny_redop *op, enum banyan_dtype dtype,
                                        void *dst, void *work, const void *const in[], int k,
                                        size_t n)
{
    bny_redop_all(op, dtype, dst, work, in, k, n);
}

/* A sum's last step: divided by the number of ranks (averages) or copied. */
static inline void bny_local_finish(int averages, enum banyan_dtype dtype, void *dst,
                                    const void *src, size_t n, int nranks)
{
    if (averages)
        bny_divide(dst, src, n, dtype, nranks);
    else
        bny_local_copy(dst, src, n * banyan_dtype_bytes(dtype));
}

#endif
