/* SPDX-License-Identifier: BSD-3-Clause */
/* Libraries that are loaded on first use, so that neither the shared library nor a static
 * program needs them to start. A header of its own for each (lazy_*.h) lists the functions,
 * includes the library's header, and redirects the names to a table; the table may be used once
 * its bny_lazy_NAME() has returned 0. */
#ifndef BNY_BASE_LAZY_H
#define BNY_BASE_LAZY_H

#include "base/fork.h"

struct bny_lazy {
    const char *soname, *package; /* libcjson.so.1, libcjson1 */
    const char *const *names;     /* NULL-terminated */
    void **table;                 /* as many pointers */
    struct bny_lock lock;
    int loaded;
};

/* 0, or -BANYAN_ENOTSUP with how to get the library. Any thread; tried again after a failure.
 * The library stays. */
int bny_lazy_load(struct bny_lazy *l);

#endif
