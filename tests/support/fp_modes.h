/* SPDX-License-Identifier: BSD-3-Clause */
/* Floating-point modes that programs set, for tests that the library's arithmetic has its own.
 */
#ifndef BNY_TESTS_FP_MODES_H
#define BNY_TESTS_FP_MODES_H

#include <fenv.h>
#include <string.h>

#include "base/fpmode.h"

enum { FP_DEFAULT, FP_FLUSH, FP_UP, FP_DOWN, FP_TOWARDS_0, FP_TRAPS, FP_MODES };

/* This thread's. Traps: as Fortran programs ask for by -ffpe-trap. */
static inline void fp_take(int mode)
{
    static const int rounding[FP_MODES] = {
        [FP_UP] = FE_UPWARD, [FP_DOWN] = FE_DOWNWARD, [FP_TOWARDS_0] = FE_TOWARDZERO
    };

    fesetenv(FE_DFL_ENV);
    fesetround(rounding[mode]);
#if defined(__x86_64__)
    if (mode == FP_FLUSH)
        bny_fp_set(bny_fp_get() | 0x8040); /* FTZ, DAZ */
#else
    if (mode == FP_FLUSH)
        bny_fp_set(bny_fp_get() | 1u << 24); /* FZ */
#endif
    if (mode == FP_TRAPS)
        feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);
}

/* Whether the thread still has what it took: the modes, not the flags. */
static inline int fp_is(int mode)
{
    bny_fp_mode now = bny_fp_get(), same;

    fp_take(mode);
    same = (bny_fp_get() ^ now) & ~(bny_fp_mode)BNY_FP_FLAGS;
    return same == 0;
}

/* Sums of these need rounding, are subnormal, overflow, or are no numbers. Made of whole
 * numbers alone, so that the mode does not matter. */
static inline void fp_fill(float *x, size_t n, int rank)
{
    static const unsigned bits[] = { 1000,       0x00400001, 0x3f800000, 0x33000001, 0x7f7fffff,
                                     0x4b7fffff, 0x807fffff, 0x3dcccccd, 0xbf8ccccd };

    for (size_t i = 0; i < n; i++) {
        unsigned b = bits[i % 9] + (unsigned)rank * 3 + (unsigned)(i / 9 % 1000);
        if (i % 1024 == 77)
            b = rank % 2 ? 0xff800000 : 0x7f800000;
        memcpy(&x[i], &b, 4);
    }
}

#endif
