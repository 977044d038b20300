/* SPDX-License-Identifier: BSD-3-Clause */
/* One floating-point mode for the library's arithmetic: round to nearest, with subnormal
 * numbers, without traps. A program or thread may have set another mode, and which thread adds
 * is a race, but all ranks promise the same bits. */
#ifndef BNY_BASE_FPMODE_H
#define BNY_BASE_FPMODE_H

#if defined(__x86_64__)
#include <xmmintrin.h>

#define BNY_FP_FLAGS 0x3fu   /* status flags, not mode bits */
#define BNY_FP_FIXED 0x1f80u /* all exceptions masked; rounds to nearest, no FTZ, no DAZ */
typedef unsigned bny_fp_mode;

static inline bny_fp_mode bny_fp_get(void)
{
    return _mm_getcsr();
}

static inline void bny_fp_set(bny_fp_mode m)
{
    _mm_setcsr(m);
}

#elif defined(__aarch64__)
#include <stdint.h>

#define BNY_FP_FLAGS 0u /* status flags are in another register */
#define BNY_FP_FIXED 0u
typedef uint64_t bny_fp_mode;

static inline bny_fp_mode bny_fp_get(void)
{
    bny_fp_mode m;

    __asm__ volatile("mrs %0, fpcr" : "=r"(m) : : "memory");
    return m;
}

static inline void bny_fp_set(bny_fp_mode m)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(m) : "memory");
}

#else
#error "the floating-point mode of this processor"
#endif

static inline int bny_fp_is_fixed(bny_fp_mode m)
{
    return __builtin_expect((m & ~(bny_fp_mode)BNY_FP_FLAGS) == BNY_FP_FIXED, 1);
}

static inline bny_fp_mode bny_fp_enter(void)
{
    bny_fp_mode before = bny_fp_get();

    if (!bny_fp_is_fixed(before))
        bny_fp_set(BNY_FP_FIXED);
    return before;
}

static inline void bny_fp_leave(const bny_fp_mode *before)
{
    if (!bny_fp_is_fixed(*before))
        bny_fp_set(*before);
}

/* From here to the end of the block, for arithmetic on memory, or in functions that the
 * compiler does not see (kernels, codecs): the compiler ignores modes, and may move other code
 * out of the block. */
#define BNY_FIXED_FP_MODE                                                                      \
    __attribute__((cleanup(bny_fp_leave), unused)) const bny_fp_mode fp_mode_before =          \
        bny_fp_enter()

#endif
