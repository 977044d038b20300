/* SPDX-License-Identifier: BSD-3-Clause */
/* Chooses the table of the codecs' inner loops. */
#include "compress/kernels/code.h"

#include "base/cpu.h"

const struct bny_code_kernels *bny_code_kernels_for(unsigned cpu_flags)
{
#if defined(__x86_64__)
    if (cpu_flags & BNY_CPU_AVX512)
        return &bny_code_avx512;
    if (cpu_flags & BNY_CPU_AVX2)
        return &bny_code_avx2;
#elif defined(__aarch64__)
    if (cpu_flags & BNY_CPU_NEON)
        return &bny_code_neon;
#endif
    return &bny_code_scalar;
}
