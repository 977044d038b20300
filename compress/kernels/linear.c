/* SPDX-License-Identifier: BSD-3-Clause */
/* Chooses the linear codecs' loops. */
#include "compress/kernels/linear_kernels.h"

#include "base/cpu.h"

const struct bny_linear_kernels *bny_linear_kernels_for(unsigned cpu_flags)
{
#if defined(__x86_64__)
    if (cpu_flags & BNY_CPU_AVX512)
        return &bny_linear_avx512;
    if (cpu_flags & BNY_CPU_AVX2)
        return &bny_linear_avx2;
#endif
    return &bny_linear_scalar;
}
