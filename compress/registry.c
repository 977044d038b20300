/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs by name and number: those of codecs.h, then those that the program brought. */
#include <stdatomic.h>
#include <string.h>

#include "base/err.h"
#include "base/fork.h"
#include "compress/codecs.h"
#include "compress/parse.h"

#define ENTRY(table) &table,
const struct bny_codec_ops *const bny_codecs[] = { BNY_CODECS(ENTRY) NULL };
#undef ENTRY

/* Codecs of the program: codec.h. Written under the lock, counted last, never removed. */
static const struct bny_codec_ops *added[BNY_CODECS_ADDED];
static atomic_size_t nadded;
static struct bny_lock lock = BNY_LOCK(NULL);

const struct bny_codec_ops *bny_codec_at(size_t i)
{
    size_t own = 0;

    while (bny_codecs[own])
        own++;
    if (i < own)
        return bny_codecs[i];
    return i - own < atomic_load(&nadded) ? added[i - own] : NULL;
}

const struct bny_codec_ops *bny_codec_find(const char *name)
{
    const struct bny_codec_ops *ops;

    for (size_t i = 0; (ops = bny_codec_at(i)); i++)
        if (!strcmp(ops->name, name))
            return ops;
    return NULL;
}

int bny_codec_add(const struct bny_codec_ops *ops)
{
    size_t n;
    int rc = 0;

    bny_lock_take(&lock);
    n = atomic_load(&nadded);
    if (bny_codec_find(ops->name) || bny_levels_is_name(ops->name))
        rc = bny_fail(BANYAN_EINVAL, "codec: there is one of the name %s already", ops->name);
    else if (n == BNY_CODECS_ADDED)
        rc = bny_fail(BANYAN_ENOMEM, "codec: %d are registered, there is no room for %s",
                      BNY_CODECS_ADDED, ops->name);
    else {
        added[n] = ops;
        atomic_store(&nadded, n + 1);
    }
    bny_lock_give(&lock);
    return rc;
}
