/* SPDX-License-Identifier: BSD-3-Clause */
/* The linear codecs' inner loops for any processor: the definition. */
#define LANES      4
#define TABLE      bny_linear_scalar
#define TABLE_NAME "scalar"
#include "compress/kernels/linear_loops.h"
