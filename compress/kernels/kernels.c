/* SPDX-License-Identifier: BSD-3-Clause */
/* Chooses the table of inner loops. */
#include "compress/kernels/kernels.h"

#include <pthread.h>

#include "base/cpu.h"

static const struct bny_kernels *machine;

const struct bny_kernels *bny_kernels_for(unsigned cpu_flags)
{
#if defined(__x86_64__)
    if (cpu_flags & BNY_CPU_AVX512)
        return &bny_kernels_avx512;
    if (cpu_flags & BNY_CPU_AVX2)
        return &bny_kernels_avx2;
#elif defined(__aarch64__)
    if (cpu_flags & BNY_CPU_NEON)
        return &bny_kernels_neon;
#endif
    return &bny_kernels_scalar;
}

static void choose(void)
{
    machine = bny_kernels_for(bny_cpu_flags());
}

const struct bny_kernels *bny_kernels(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, choose);
    return machine;
}
