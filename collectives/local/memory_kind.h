/* SPDX-License-Identifier: BSD-3-Clause */
/* Kinds of memory that a user's buffer may be in. Ordinary memory is `direct`: loads and stores
 * of any thread, and every transport, reach it. Data of other kinds is copied by the kind's own
 * function to private memory before an operation and from it afterwards (op/staging.c), so the
 * paths see direct memory only. */
#ifndef BNY_COLLECTIVES_MEMORY_KIND_H
#define BNY_COLLECTIVES_MEMORY_KIND_H

#include <stdatomic.h>
#include <stddef.h>

struct bny_mem_kind {
    const char *name;
    int direct;
    /* Is the pointer into memory of this kind? Or an error with its sentence, when nobody
     * knows. Any thread; fast: it is asked for every buffer. */
    int (*owns)(const void *ptr);
    /* Copies between this kind and direct memory, either way, before it returns. 0 or an error
     * with its sentence. */
    int (*copy)(void *dst, const void *src, size_t bytes);
};

extern const struct bny_mem_kind bny_mem_host, bny_mem_cuda;

/* The kind of a buffer; bny_mem_host for NULL. 0 or an error of owns(). Any thread. */
int bny_mem_kind_of(const struct bny_mem_kind **out, const void *ptr);
/* Another kind, from now on and for ever. 0 or -BANYAN_ENOMEM. Any thread. */
int bny_mem_kind_add(const struct bny_mem_kind *kind);

extern atomic_int bny_mem_others; /* is any kind but the host's in use in this process? */
static inline int bny_mem_has_others(void)
{
    return atomic_load_explicit(&bny_mem_others, memory_order_relaxed);
}

void bny_device_look(void); /* is a CUDA driver in this process by now? */

#endif
