/* SPDX-License-Identifier: BSD-3-Clause */
/* CPU features. */
#include "base/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/param.h"

#if defined(__x86_64__)
/* clang 14's __builtin_cpu_supports does not know "f16c". Its answer for "avx2" includes that
 * the system saves the wide registers. */
static int has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static unsigned cpu_look(void)
{
    unsigned flags = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        flags |= BNY_CPU_AVX2;
    if ((flags & BNY_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        flags |= BNY_CPU_AVX512;
#elif defined(__aarch64__)
    flags |= BNY_CPU_NEON;
#endif
    return flags & (unsigned)bny_param_int("BANYAN_CPU_MASK");
}

/* Called for every chunk; under a hypervisor each cpuid instruction costs tens of
 * microseconds. */
unsigned bny_cpu_flags(void)
{
    static _Atomic unsigned known; /* flags and one more bit: valid */
    unsigned flags = known;

    if (!flags)
        known = flags = cpu_look() | 1u << 31;
    return flags & ~(1u << 31);
}
