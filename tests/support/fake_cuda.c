/* SPDX-License-Identifier: BSD-3-Clause */
/* Stands in for libcuda.so.1: knows one range of "device" memory, for the test that device
 * pointers are refused. Values are those of CUDA's driver API. */
#include <stddef.h>
#include <stdint.h>

enum { CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, CU_MEMORYTYPE_DEVICE = 2 };
enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };

static uintptr_t range_begin, range_bytes;

__attribute__((visibility("default"))) void fake_cuda_set_range(const void *begin,
                                                                size_t bytes);
__attribute__((visibility("default"))) int cuPointerGetAttribute(void *data, int attribute,
                                                                 uintptr_t ptr);

void fake_cuda_set_range(const void *begin, size_t bytes)
{
    range_begin = (uintptr_t)begin;
    range_bytes = bytes;
}

int cuPointerGetAttribute(void *data, int attribute, uintptr_t ptr)
{
    if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE || ptr - range_begin >= range_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
}
