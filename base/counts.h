/* SPDX-License-Identifier: BSD-3-Clause */
/* How many enumerators banyan.h has: not public, as they become more. */
#ifndef BNY_BASE_COUNTS_H
#define BNY_BASE_COUNTS_H

#include "banyan/banyan.h"

#define BNY_ERROR_COUNT (BANYAN_ECONFIG + 1)
#define BNY_DTYPE_COUNT (BANYAN_F8E5M2 + 1)
#define BNY_OP_COUNT    (BANYAN_BXOR + 1) /* built in */

#endif
