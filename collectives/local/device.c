/* SPDX-License-Identifier: BSD-3-Clause */
/* CUDA memory is told, so that it is refused and not crashed on: when a driver library is in
 * the process it is asked about pointers. */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>

#include "collectives/local/memory_kind.h"

#define MEMORY_TYPE 2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define DEVICE      2 /* CU_MEMORYTYPE_DEVICE */

typedef int (*get_attribute_fn)(void *data, int attribute, unsigned long long ptr);

static _Atomic(get_attribute_fn) get_attribute;
static _Atomic unsigned long long looked_at; /* libraries loaded so far, when it was looked */

/* The first call tells how many libraries this process has ever loaded. */
static int take_loaded(struct dl_phdr_info *info, size_t size, void *loaded)
{
    *(unsigned long long *)loaded = info->dlpi_adds;
    return 1;
}

/* A driver library can have come only where some library has: to look for one by dlopen takes
 * 17 us, to count takes .1. */
void bny_device_look(void)
{
    unsigned long long loaded = 0;
    void *lib, *symbol;

    if (atomic_load_explicit(&get_attribute, memory_order_relaxed))
        return;
    dl_iterate_phdr(take_loaded, &loaded);
    if (loaded && loaded == atomic_load_explicit(&looked_at, memory_order_relaxed))
        return;
    lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    atomic_store_explicit(&looked_at, loaded, memory_order_relaxed);
    if (!lib)
        return;
    symbol = dlsym(lib, "cuPointerGetAttribute");
    if (symbol) {
        atomic_store(&get_attribute, (get_attribute_fn)(uintptr_t)symbol);
        atomic_store(&bny_mem_others, 1);
    }
    dlclose(lib); /* only our own count: the program's keeps it */
}

static int owns(const void *ptr)
{
    get_attribute_fn fn = atomic_load_explicit(&get_attribute, memory_order_relaxed);
    unsigned type = 0;

    return fn && fn(&type, MEMORY_TYPE, (unsigned long long)(uintptr_t)ptr) == 0 &&
           type == DEVICE;
}

const struct bny_mem_kind bny_mem_cuda = { .name = "CUDA", .owns = owns };
