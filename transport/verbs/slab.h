/* SPDX-License-Identifier: BSD-3-Clause */
/* Size of a peer's slabs. All of it is pinned, so large jobs have smaller ones:
 * BANYAN_VERBS=memory bounds the total of a rank's peers. Both ends need the same size, and all
 * ranks know the number of ranks, so nothing is negotiated; init reports settings that differ.
 * Independent of libibverbs, so that tools can use it. */
#ifndef BNY_VERBS_SLAB_H
#define BNY_VERBS_SLAB_H

#include <stdint.h>

#define VB_HEAD         64u  /* of a slot: header, padded so that payload is aligned */
#define VB_EAGER_SLOTS  256u /* at most; power of two */
#define VB_EAGER_MAX    4096u
#define VB_EAGER_STRIDE (VB_HEAD + VB_EAGER_MAX)
#define VB_EAGER_LEAST  8u      /* slots, and messages that a rank can receive between polls */
#define VB_BULK_SLOTS   8u      /* at most */
#define VB_SLOT_MAX     262144u /* payload of a bulk slot, at most */
#define VB_BULK_STRIDE  (VB_HEAD + VB_SLOT_MAX)
#define VB_SLAB_EAGER   (VB_EAGER_SLOTS * VB_EAGER_STRIDE)
#define VB_SLAB_BYTES   (VB_SLAB_EAGER + VB_BULK_SLOTS * VB_BULK_STRIDE) /* at most */
#define VB_LANE_BYTES   8192u /* most of a queue pair: hellos and notes */
#define VB_SLAB_SHAPES  6

struct vb_slab {     /* the shape of a slab */
    uint32_t eager;  /* slots of VB_EAGER_MAX; power of two */
    uint32_t report; /* number of freed eager slots that are reported at once */
    uint32_t bulk;   /* slots of slot_max */
    uint32_t slot_max;
    uint32_t stride;  /* of bulk slots */
    uint32_t bulk_at; /* offset of the first */
    uint32_t bytes;   /* total */
    uint8_t number;   /* 0: the largest */
};

/* Most bytes registered with a device for a peer with so many queue pairs: a slab to receive,
 * one to send. */
uint64_t bny_verbs_peer_bytes(const struct vb_slab *s, uint32_t lanes);
/* The largest shape for which all peers of a job of n ranks use at most `memory` bytes of a
 * device; else the smallest. Pure. */
struct vb_slab bny_verbs_slab(int n, uint64_t memory);

#endif
