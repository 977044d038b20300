/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of looking for a device's driver: a search only where a library has come since the
 * last one, and a driver that came later is found. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "collectives/local/memory_kind.h"
#include "tests/support/fake_cuda.h"

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
static int searches;

void *__wrap_dlopen(const char *name, int flags)
{
    searches++;
    return __real_dlopen(name, flags);
}

Test(device, a_search_for_each_library_that_came)
{
    const struct fake_cuda *(*fake)(void);
    const struct bny_mem_kind *kind;
    void *lib, *memory;

    for (int i = 0; i < 100; i++)
        bny_device_look();
    cr_assert_eq(searches, 1, "%d", searches);
    cr_assert(__real_dlopen("libm.so.6", RTLD_LAZY) != NULL);
    for (int i = 0; i < 100; i++)
        bny_device_look();
    cr_assert(searches <= 2 && !bny_mem_others, "%d", searches);
    lib = __real_dlopen(getenv("BANYAN_TEST_FAKE_CUDA"), RTLD_LAZY);
    cr_assert_not_null(lib, "%s", dlerror());
    bny_device_look();
    cr_assert(searches <= 3 && bny_mem_others);
    *(void **)&fake = dlsym(lib, "fake_cuda");
    memory = fake()->alloc(64, 0);
    cr_assert(bny_mem_kind_of(&kind, memory) == 0 && kind == &bny_mem_cuda);
    for (int i = 0; i < 100; i++)
        bny_device_look();
    cr_assert(searches <= 3, "%d", searches);
}
