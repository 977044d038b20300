/* SPDX-License-Identifier: BSD-3-Clause */
/* The kinds of memory, one row each. */
#include "collectives/local/memory_kind.h"

#include <string.h>

#include "base/err.h"

#define KINDS_MAX 8

static int host_copy(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
    return 0;
}

const struct bny_mem_kind bny_mem_host = { .name = "host", .direct = 1, .copy = host_copy };

static _Atomic(const struct bny_mem_kind *) kinds[KINDS_MAX] = { &bny_mem_cuda };
atomic_int bny_mem_others;

int bny_mem_kind_of(const struct bny_mem_kind **out, const void *ptr)
{
    *out = &bny_mem_host;
    if (!ptr || !bny_mem_has_others())
        return 0;
    for (int i = 0; i < KINDS_MAX; i++) {
        const struct bny_mem_kind *k = atomic_load_explicit(&kinds[i], memory_order_acquire);
        int rc = k ? k->owns(ptr) : 0;

        if (rc < 0)
            return rc;
        if (rc) {
            *out = k;
            break;
        }
    }
    return 0;
}

int bny_mem_kind_add(const struct bny_mem_kind *kind)
{
    for (int i = 0; i < KINDS_MAX; i++) {
        const struct bny_mem_kind *none = NULL;
        if (atomic_compare_exchange_strong(&kinds[i], &none, kind)) {
            atomic_store(&bny_mem_others, 1);
            return 0;
        }
    }
    return bny_fail(BANYAN_ENOMEM, "there are %d kinds of memory already", KINDS_MAX);
}
