/* SPDX-License-Identifier: BSD-3-Clause */
/* The linear codecs' inner loops for x86-64 processors with AVX-512 F, BW, VL and DQ. */
#define LANES      16
#define TABLE      bny_linear_avx512
#define TABLE_NAME "avx512"
#include "compress/kernels/linear_loops.h"
