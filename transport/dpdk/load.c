/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds and loads the module that links DPDK (driver.h). It lies beside libbanyan, or in ../lib
 * of a program that has the library inside, or where a build puts it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"
#include "transport/dpdk/driver.h"

#define MODULE "libbanyan-dpdk.so"

static struct bny_lock lock = BNY_LOCK(NULL);
static const struct bny_dpdk_driver *real, *other;

/* The path of MODULE, or its bare name, for the loader to look for. */
static void find(char *path, size_t cap)
{
    static const char *const places[] = { "",
                                          "../lib/",
                                          "transport/dpdk/module/",
                                          "../transport/dpdk/module/",
                                          "../../transport/dpdk/module/",
                                          "../../../transport/dpdk/module/" };
    char here[4096];
    const char *slash;
    Dl_info info;
    ssize_t n;

    snprintf(path, cap, "%s", MODULE);
    if (!dladdr((void *)(uintptr_t)&bny_dpdk_driver, &info) || !info.dli_fname)
        return;
    if (strchr(info.dli_fname, '/')) {
        snprintf(here, sizeof here, "%s", info.dli_fname);
    } else { /* a program that was found on PATH */
        n = readlink("/proc/self/exe", here, sizeof here - 1);
        here[n > 0 ? n : 0] = '\0';
    }
    slash = strrchr(here, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof places[0]; i++) {
        char try[4200];

        snprintf(try, sizeof try, "%.*s%s%s", (int)(slash - here) + 1, here, places[i], MODULE);
        if (access(try, R_OK) == 0) {
            snprintf(path, cap, "%s", try);
            return;
        }
    }
}

static const struct bny_dpdk_driver *load(void)
{
    const struct bny_dpdk_driver *d;
    bny_dpdk_driver_fn *get;
    char path[4200];
    void *lib, *symbol;

    find(path, sizeof path);
    lib = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib) {
        bny_fail(
            BANYAN_ENOTSUP,
            "transport dpdk: its module cannot be loaded (%.300s); on Debian: apt-get install "
            "libdpdk-dev, then build banyan again, or install what is missing",
            dlerror());
        return NULL;
    }
    symbol = dlsym(lib, "bny_dpdk_module");
    memcpy(&get, &symbol, sizeof get);
    d = symbol ? get() : NULL;
    if (!d || d->version != BNY_DPDK_DRIVER_VERSION) {
        bny_fail(
            BANYAN_EVERSION,
            "transport dpdk: %s is of another version of banyan; install both from one build",
            path);
        return NULL;
    }
    return d;
}

const struct bny_dpdk_driver *bny_dpdk_driver(void)
{
    const struct bny_dpdk_driver *d;

    bny_lock_take(&lock);
    if (!other && !real)
        real = load();
    d = other ? other : real;
    bny_lock_give(&lock);
    return d;
}

void bny_dpdk_driver_set(const struct bny_dpdk_driver *driver)
{
    bny_lock_take(&lock);
    other = driver;
    bny_lock_give(&lock);
}
