/* SPDX-License-Identifier: BSD-3-Clause */
/* The linear codecs' inner loops for x86-64 processors with AVX2. */
#define LANES      8
#define TABLE      bny_linear_avx2
#define TABLE_NAME "avx2"
#include "compress/kernels/linear_loops.h"
