/* SPDX-License-Identifier: BSD-3-Clause */
/* Where a process runs. This decides whether two ranks may share memory or a loopback. */
#ifndef BNY_PROCESS_PLACE_H
#define BNY_PROCESS_PLACE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bny_place {
    uint8_t host[16]; /* the kernel that runs it */
    uint8_t net[8];   /* its network namespace; unique if that is unknown */
    uint8_t user[8];  /* its user, and that user's identity outside of its user namespace */
};

/* Can they reach each other by loopback? */
static inline int bny_place_has_one_loopback(const struct bny_place *a,
                                             const struct bny_place *b)
{
    return memcmp(a, b, offsetof(struct bny_place, user)) == 0;
}

/* Returns 0, or -BANYAN_ESYSTEM: no descriptor is left for it. */
int bny_place_get(struct bny_place *out);

#endif
