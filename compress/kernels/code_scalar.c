/* SPDX-License-Identifier: BSD-3-Clause */
/* The codecs' inner loops for any processor: the definition. */
#define LANES 4
#include "compress/kernels/code_base.h"

#include "compress/kernels/code_plain.h"

#define TABLE      bny_code_scalar
#define TABLE_NAME "scalar"
#include "compress/kernels/code_loops.h"
