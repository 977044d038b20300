/* SPDX-License-Identifier: BSD-3-Clause */
/* How long the slots of an area are, and where they lie. */
#include "collectives/area/slots.h"

/* A chunk is long enough that its two waits cost little, and so short that the slots of two
 * ranks stay in a cache. With more ranks than CPUs each wait lets another rank run: few, long
 * chunks and nothing ahead. */
#define CHUNK_MAX  (32u << 10)
#define CHUNK_MIN  (4u << 10)
#define SLOT_MAX   (256u << 10) /* all parts' chunks of a slot */
#define LAG        3u
#define CROWD_STEP (1u << 20) /* of the vector */

void bny_area_shape_init(struct bny_area_shape *s, int n, int crowded, size_t between)
{
    size_t most = crowded ? CROWD_STEP / (size_t)n : SLOT_MAX / (size_t)n;

    if (!crowded && most > CHUNK_MAX)
        most = CHUNK_MAX;
    if (most < CHUNK_MIN)
        most = CHUNK_MIN;
    s->n = n;
    s->lag = crowded ? 0 : LAG;
    s->slots = 2 * s->lag + 1;
    s->chunk_max = most & ~(size_t)(BNY_AREA_LINE - 1);
    s->slice_bytes = s->slots * ((size_t)n - 1) * s->chunk_max;
    s->slices_at = (sizeof(struct bny_area_head) + between + 4095) & ~(size_t)4095;
    s->area_bytes = (s->slices_at + BNY_AREA_SLICES * s->slice_bytes + 4095) & ~(size_t)4095;
}
