/* SPDX-License-Identifier: BSD-3-Clause */
/* A user buffer with guards, and the exact bytes that it must hold after a call: every byte is
 * either expected to change or expected not to, guards, gaps and the caller's inputs included.
 */
#ifndef BNY_TESTS_MP_IMAGE_H
#define BNY_TESTS_MP_IMAGE_H

#include "tests/mp/case.h"

#define IMAGE_GUARD 192

enum image_memory { IMAGE_MALLOC, IMAGE_BANYAN, IMAGE_REGISTERED };

struct image {
    unsigned char *mem;    /* guard, misalignment, data, guard */
    unsigned char *expect; /* the same bytes as they must be afterwards */
    unsigned char *data;
    size_t total, bytes, lead;
    int owned; /* mem is from malloc */
};

/* mem NULL: from malloc; else a piece of shared memory of at least bytes + 2 IMAGE_GUARD + 64.
 * All bytes get a pattern of `key`. misalign < 64. */
void image_make(struct image *im, void *mem, size_t bytes, size_t misalign, uint64_t key);
/* Puts input there; it must still be there afterwards, unless image_want says otherwise. */
void image_put(struct image *im, size_t offset, const void *src, size_t bytes);
/* Expects these bytes after the call. */
void image_want(struct image *im, size_t offset, const void *src, size_t bytes);
/* For results that need not match to the bit (model_compare): compares elements, then takes
 * what is there as expected. Returns the index of the first wrong one, or n. */
size_t image_settle(struct image *im, size_t offset, size_t n, enum banyan_dtype dtype, int op);
/* Offset of the first byte that differs, relative to the data (may be in a guard); 0 and *ok =
 * 1 if none. */
ptrdiff_t image_check(const struct image *im, int *ok);
void image_free(struct image *im);

/* Memory of one kind that lives as long as a case: [2] arenas of `bytes`. */
struct image_pool {
    enum image_memory kind;
    size_t bytes;
    void *mem[2];
};
void image_pool_make(const struct test *t, struct banyan_comm *comm, struct image_pool *pool,
                     enum image_memory kind, size_t bytes);
void image_pool_free(const struct test *t, struct banyan_comm *comm, struct image_pool *pool);

#endif
