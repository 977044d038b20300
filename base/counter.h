/* SPDX-License-Identifier: BSD-3-Clause */
/* A count that one thread at a time increments, under its owner's lock, and any thread reads
 * without it: adding is as cheap as on a plain integer. */
#ifndef BNY_BASE_COUNTER_H
#define BNY_BASE_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

struct bny_counter {
    atomic_uint_fast64_t value;
};

static inline uint64_t bny_counter_read(const struct bny_counter *c)
{
    return atomic_load_explicit(&c->value, memory_order_relaxed);
}

static inline void bny_counter_add(struct bny_counter *c, uint64_t n)
{
    atomic_store_explicit(&c->value, bny_counter_read(c) + n, memory_order_relaxed);
}

#endif
