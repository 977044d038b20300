/* SPDX-License-Identifier: BSD-3-Clause */
/* Device memory is refused, not crashed on: when a CUDA driver library is in the process it is
 * asked about pointers. */
#include <dlfcn.h>

#include "collectives/internal.h"

#define MEMORY_TYPE 2 /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define DEVICE      2 /* CU_MEMORYTYPE_DEVICE */

typedef int (*get_attribute_fn)(void *data, int attribute, unsigned long long ptr);

static _Atomic(get_attribute_fn) get_attribute;

void bny_device_look(void)
{
    void *lib, *symbol;

    if (atomic_load_explicit(&get_attribute, memory_order_relaxed))
        return;
    lib = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!lib)
        return;
    symbol = dlsym(lib, "cuPointerGetAttribute");
    if (symbol)
        atomic_store(&get_attribute, (get_attribute_fn)(uintptr_t)symbol);
    dlclose(lib); /* only our own count: the program's keeps it */
}

int bny_device_check(const void *ptr, const char *argument)
{
    get_attribute_fn fn = atomic_load_explicit(&get_attribute, memory_order_relaxed);
    unsigned type = 0;

    if (!fn || !ptr || fn(&type, MEMORY_TYPE, (unsigned long long)(uintptr_t)ptr) != 0 ||
        type != DEVICE)
        return 0;
    return bny_fail(BANYAN_ENOTSUP,
                    "%s: %p is device memory, which banyan does not move yet; copy it to host "
                    "memory first",
                    argument, ptr);
}
