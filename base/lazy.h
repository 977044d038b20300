/* SPDX-License-Identifier: BSD-3-Clause */
/* Libraries loaded on first use, so that neither the shared library nor a static program needs
 * them to start. A header for each (lazy_*.h) lists the functions, includes the library's
 * header, and redirects the names to a table, which may be used once its bny_lazy_NAME() has
 * returned 0. */
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

/* Returns 0, or -BANYAN_ENOTSUP with the package to install. Any thread; a later call retries
 * after a failure. The library stays loaded. */
int bny_lazy_load(struct bny_lazy *l);

#endif
