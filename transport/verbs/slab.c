/* SPDX-License-Identifier: BSD-3-Clause */
#include "transport/verbs/slab.h"

/* The smallest satisfies the transports' contract (eager_max, slot_max of transport.h), and
 * 1023 of them take less than 256 MiB. */
static const struct {
    uint32_t eager, bulk, slot_max;
} shapes[VB_SLAB_SHAPES] = {
    { VB_EAGER_SLOTS, VB_BULK_SLOTS, VB_SLOT_MAX },
    { 128, VB_BULK_SLOTS, 131072 },
    { 64, VB_BULK_SLOTS, 65536 },
    { 32, VB_BULK_SLOTS, 32768 },
    { 16, VB_BULK_SLOTS, 16384 },
    { VB_EAGER_LEAST, 5, 16384 },
};

static struct vb_slab shape(uint8_t i)
{
    struct vb_slab s = { .eager = shapes[i].eager,
                         .report = shapes[i].eager / 4,
                         .bulk = shapes[i].bulk,
                         .slot_max = shapes[i].slot_max,
                         .stride = VB_HEAD + shapes[i].slot_max,
                         .bulk_at = shapes[i].eager * VB_EAGER_STRIDE,
                         .number = i };

    s.bytes = s.bulk_at + s.bulk * s.stride;
    return s;
}

uint64_t bny_verbs_peer_bytes(const struct vb_slab *s, uint32_t lanes)
{
    return 2ull * s->bytes + (uint64_t)lanes * VB_LANE_BYTES;
}

struct vb_slab bny_verbs_slab(int n, uint64_t memory)
{
    for (uint8_t i = 0;; i++) {
        struct vb_slab s = shape(i);

        if (i + 1 == VB_SLAB_SHAPES ||
            (uint64_t)(n > 1 ? n - 1 : 1) * bny_verbs_peer_bytes(&s, 1) <= memory)
            return s;
    }
}
