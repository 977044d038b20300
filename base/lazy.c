/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads libraries on first use (lazy.h); has the tables. */
#include "base/lazy.h"

#include <dlfcn.h>

#include "base/err.h"
#include "base/lazy_cjson.h"
#include "base/lazy_expat.h"
#include "base/lazy_hwloc.h"

static int lazy_load(struct bny_lazy *l)
{
    /* Global: otherwise hwloc's plugins do not find its symbols. */
    void *lib = dlopen(l->soname, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);

    if (!lib)
        return bny_fail(BANYAN_ENOTSUP,
                        "%s cannot be loaded (%.200s); on Debian: apt-get install %s",
                        l->soname, dlerror(), l->package);
    for (int i = 0; l->names[i]; i++) {
        l->table[i] = dlsym(lib, l->names[i]);
        if (!l->table[i])
            return bny_fail(
                BANYAN_ENOTSUP,
                "%s has no %s: it is too old or too new; on Debian: apt-get install %s",
                l->soname, l->names[i], l->package);
    }
    return 0;
}

int bny_lazy_load(struct bny_lazy *l)
{
    int e = 0;

    bny_lock_take(&l->lock);
    if (!l->loaded)
        e = lazy_load(l);
    l->loaded = !e;
    bny_lock_give(&l->lock);
    return e;
}

#define NAME(f) #f,
#define LAZY(lib, LIB, soname, package)                                                        \
    struct bny_##lib##_table bny_##lib##_table;                                                \
    int bny_lazy_##lib(void)                                                                   \
    {                                                                                          \
        static const char *const names[] = { BNY_##LIB##_FUNCTIONS(NAME) NULL };               \
        static struct bny_lazy l = { soname,         package,                                  \
                                     names,          (void **)(void *)&bny_##lib##_table,      \
                                     BNY_LOCK(NULL), 0 };                                      \
        return bny_lazy_load(&l);                                                              \
    }

LAZY(cjson, CJSON, "libcjson.so.1", "libcjson1")
LAZY(expat, EXPAT, "libexpat.so.1", "libexpat1")
LAZY(hwloc, HWLOC, "libhwloc.so.15", "libhwloc15")
