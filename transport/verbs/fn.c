/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads libibverbs and librdmacm (fn.h). */
#include "transport/verbs/fn.h"

#include <dlfcn.h>
#include <pthread.h>

#include "base/err.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vb_fn real;
static int loaded;
static const struct vb_fn *other;

/* A symbol of either library: librdmacm brings libibverbs. */
static int take(void *lib, const char *name, void **out)
{
    *out = dlsym(lib, name);
    return *out ? 0
                : bny_fail(BANYAN_ENOTSUP,
                           "librdmacm.so.1 or libibverbs.so.1 has no %s: it is too old; "
                           "update rdma-core",
                           name);
}

static int load(void)
{
    void *lib = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    int rc = 0;

    if (!lib)
        return bny_fail(BANYAN_ENOTSUP,
                        "librdmacm is not installed (%s): apt-get install librdmacm1 "
                        "ibverbs-providers",
                        dlerror());
#define VERBS_TAKE(type, name, args)                                                           \
    if (rc == 0)                                                                               \
        rc = take(lib, #name, (void **)(void *)&real.name);
    VERBS_FUNCTIONS(VERBS_TAKE)
#undef VERBS_TAKE
    return rc;
}

const struct vb_fn *bny_verbs_fn(void)
{
    const struct vb_fn *fn;

    pthread_mutex_lock(&lock);
    if (!other && !loaded)
        loaded = load() == 0;
    fn = other ? other : loaded ? &real : NULL;
    pthread_mutex_unlock(&lock);
    return fn;
}

void bny_verbs_fn_set(const struct vb_fn *fn)
{
    pthread_mutex_lock(&lock);
    other = fn;
    pthread_mutex_unlock(&lock);
}
