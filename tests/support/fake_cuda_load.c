/* SPDX-License-Identifier: BSD-3-Clause */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda.h"

const struct fake_cuda *fake_cuda_load(void)
{
    const char *path = getenv("BANYAN_TEST_FAKE_CUDA");
    void *lib = path ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    void *symbol = lib ? dlsym(lib, "fake_cuda") : NULL;
    const struct fake_cuda *(*get)(void) = NULL;

    if (!symbol)
        fprintf(stderr, "the fake driver of BANYAN_TEST_FAKE_CUDA (%s) cannot be loaded: %s\n",
                path ? path : "not set", path ? dlerror() : "");
    memcpy(&get, &symbol, sizeof get);
    return get ? get() : NULL;
}
