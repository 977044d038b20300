/* SPDX-License-Identifier: BSD-3-Clause */
/* Paths of operations without a peer. */
#ifndef BNY_COLLECTIVES_ALONE_H
#define BNY_COLLECTIVES_ALONE_H

#include "collectives/plan/way.h"

#endif
