/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of ways: BNY_WAYS in plan/plan.h has their rows. */
#include "collectives/plan/way.h"

#define BNY_WAY_ROW(id, symbol, name) [BNY_WAY_##id] = &bny_way_##symbol,
const struct bny_way *const bny_ways[BNY_WAY_COUNT] = { BNY_WAYS(BNY_WAY_ROW) };
