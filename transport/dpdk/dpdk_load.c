/* SPDX-License-Identifier: BSD-3-Clause */
/* Loads the module that links with DPDK (driver.h). */
#include <dlfcn.h>
#include <string.h>

#include "base/err.h"
#include "base/fork.h"
#include "base/module.h"
#include "transport/datagram/driver.h"

#define MODULE "libbanyan-dpdk.so"

static struct bny_lock lock = BNY_LOCK(NULL);
static const struct bny_dgram_driver *real, *other;

static const struct bny_dgram_driver *dpdk_load_load(void)
{
    const struct bny_dgram_driver *d;
    bny_dgram_driver_fn *get;
    char path[400];
    void *lib = bny_module_load(MODULE, "transport/dpdk/module/", path, sizeof path), *symbol;

    if (!lib) {
        bny_fail(
            BANYAN_ENOTSUP,
            "transport dpdk: its module cannot be loaded (%.300s); on Debian: apt-get install "
            "libdpdk-dev, then build banyan again, or install what is missing",
            path);
        return NULL;
    }
    symbol = dlsym(lib, "bny_dpdk_module");
    memcpy(&get, &symbol, sizeof get);
    d = symbol ? get() : NULL;
    if (!d || d->version != BNY_DGRAM_DRIVER_VERSION) {
        bny_fail(
            BANYAN_EVERSION,
            "transport dpdk: %s is of another version of banyan; install both from one build",
            path);
        return NULL;
    }
    return d;
}

const struct bny_dgram_driver *bny_dpdk_driver(void)
{
    const struct bny_dgram_driver *d;

    bny_lock_take(&lock);
    if (!other && !real)
        real = dpdk_load_load();
    d = other ? other : real;
    bny_lock_give(&lock);
    return d;
}

void bny_dpdk_driver_set(const struct bny_dgram_driver *driver)
{
    bny_lock_take(&lock);
    other = driver;
    bny_lock_give(&lock);
}
