/* SPDX-License-Identifier: BSD-3-Clause */
/* A CUDA driver without a device: a shared library that looks like libcuda.so.1. A copy takes
 * place as late as a real driver may do it, or earlier, by the seed: who reads what it copies
 * into, or overwrites what it copies from, before it waited gets wrong bytes. Device memory
 * cannot be read by the processor. */
#ifndef BNY_TESTS_FAKE_CUDA_H
#define BNY_TESTS_FAKE_CUDA_H

#include <stddef.h>
#include <stdint.h>

struct fake_cuda_counts {
    size_t calls, copies;                  /* of the driver; copies between host and device */
    size_t pageable;                       /* of these, from or to memory that is not pinned */
    size_t streams, events, pinned, stack; /* made; contexts pushed and not popped */
};

struct fake_cuda {
    /* Memory of device 0 or 1; NULL: none left. It stays. */
    void *(*alloc)(size_t bytes, int device);
    /* The same bytes, for the processor. Of other memory: ptr itself. */
    void *(*reach)(const void *ptr);
    void (*seed)(uint64_t seed);
    /* All calls behind the next `after` ones return this error; 0: none. */
    void (*fail)(int error, size_t after);
    /* Queries of a pointer return this error; 0: none. */
    void (*fail_queries)(int error);
    void (*counts)(struct fake_cuda_counts *out);
};

/* Loads the library that BANYAN_TEST_FAKE_CUDA names. NULL: it could not be loaded. */
const struct fake_cuda *fake_cuda_load(void);

#endif
