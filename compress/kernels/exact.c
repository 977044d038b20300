/* SPDX-License-Identifier: BSD-3-Clause */
/* Chooses the lossless codec's loops. */
#include "compress/kernels/exact.h"

#include "base/cpu.h"

const struct bny_exact_kernels *bny_exact_for(unsigned cpu_flags)
{
#if defined(__x86_64__)
    if (cpu_flags & BNY_CPU_AVX512)
        return &bny_exact_avx512;
    if (cpu_flags & BNY_CPU_AVX2)
        return &bny_exact_avx2;
#endif
    return &bny_exact_scalar;
}
