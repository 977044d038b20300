/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads libibverbs and librdmacm (ibv_symbols.h). */
#include "transport/verbs/ibv_symbols.h"

#include <dlfcn.h>

#include "base/err.h"
#include "base/fork.h"

static struct bny_lock lock = BNY_LOCK(NULL);
static struct vb_fn real;
static int loaded;
static const struct vb_fn *other;

/* A symbol of either library: librdmacm loads libibverbs. */
static int ibv_symbols_take(void *lib, const char *name, void **out)
{
    *out = dlsym(lib, name);
    return *out ? 0
                : bny_fail(BANYAN_ENOTSUP,
                           "librdmacm.so.1 or libibverbs.so.1 has no %s: it is too old; "
                           "update rdma-core",
                           name);
}

static int ibv_symbols_load(void)
{
    void *cm = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE), *lib = cm;
    int rc = 0;

    if (!lib)
        lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (!lib)
        return bny_fail(BANYAN_ENOTSUP,
                        "libibverbs is not installed (%s): apt-get install librdmacm1 "
                        "ibverbs-providers",
                        dlerror());
#define VERBS_TAKE(type, name, args)                                                           \
    if (rc == 0)                                                                               \
        rc = ibv_symbols_take(lib, #name, (void **)(void *)&real.name);
    VERBS_FUNCTIONS(VERBS_TAKE)
    if (cm) {
        VERBS_CM_FUNCTIONS(VERBS_TAKE)
    }
#undef VERBS_TAKE
    *(void **)(void *)&real.reg_mr_iova2 = dlsym(lib, "ibv_reg_mr_iova2");
    *(void **)(void *)&real.fork_status = dlsym(lib, "ibv_is_fork_initialized");
    *(void **)(void *)&real.query_gid_table = dlsym(lib, "_ibv_query_gid_table");
    bny_verbs_efa_load(&real);
    return rc;
}

const struct vb_fn *bny_verbs_fn(void)
{
    const struct vb_fn *fn;

    bny_lock_take(&lock);
    if (!other && !loaded)
        loaded = ibv_symbols_load() == 0;
    fn = other ? other : loaded ? &real : NULL;
    bny_lock_give(&lock);
    return fn;
}

void bny_verbs_fn_set(const struct vb_fn *fn)
{
    bny_lock_take(&lock);
    other = fn;
    bny_lock_give(&lock);
}
