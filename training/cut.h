/* SPDX-License-Identifier: BSD-3-Clause */
/* Cutting: which tensors share an allreduce, and in which order allreduces start. A pure
 * function of order, sizes, types, codecs and schedules, which all ranks share. Buckets are cut
 * by it (buckets_cut.c), and predicted by it (banyan_topo predict). */
#ifndef BNY_TRAINING_CUT_H
#define BNY_TRAINING_CUT_H

#include <stddef.h>
#include <stdint.h>

struct bny_cut_tensor {
    /* Given. */
    size_t count, elem;   /* elements; bytes of one */
    int kind;             /* of elements: different kinds share no bucket */
    const char *schedule; /* NULL: the communicator's; different ones share no bucket */
    int alone;            /* has a codec: an operation of its own, in one piece */
    /* Found. */
    size_t first, npieces; /* its buckets, in the order in which buckets start */
    size_t piece;          /* elements in each of them but the last */
};

struct bny_cut {
    size_t nbuckets, nspans;
};

/* order [n]: tensors as they become ready. 0 or -BANYAN_ENOMEM. */
int bny_cut(struct bny_cut *out, struct bny_cut_tensor *t, size_t n, const uint32_t *order,
            size_t bucket_bytes, size_t first_bytes);

#endif
