/* SPDX-License-Identifier: BSD-3-Clause */
/* CPU features. */
#ifndef BNY_BASE_CPU_H
#define BNY_BASE_CPU_H

enum bny_cpu_flag {
    BNY_CPU_AVX2 = 1 << 0,   /* with FMA and F16C */
    BNY_CPU_AVX512 = 1 << 1, /* F, BW, VL, DQ */
    BNY_CPU_NEON = 1 << 2,
};

/* The machine's flags and'ed with BANYAN_CPU_MASK (default: all; 0 forces scalar). Any thread.
 */
unsigned bny_cpu_flags(void);

#endif
