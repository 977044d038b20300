/* SPDX-License-Identifier: BSD-3-Clause */
/* The direct programs' tables (prog_*.c), for the registry. Costs follow the model of
 * topo/build.h. */
#ifndef BNY_COLLECTIVES_DIRECTS_H
#define BNY_COLLECTIVES_DIRECTS_H

#include "collectives/program/program.h"

/* The list of direct programs: one row each, the table that its file defines. */
#define BNY_DIRECTS(ROW)                                                                       \
    ROW(bny_prog_recursive_doubling)                                                           \
    ROW(bny_prog_dissemination)                                                                \
    ROW(bny_prog_pairwise)                                                                     \
    ROW(bny_prog_rooted)                                                                       \
    ROW(bny_prog_chain)                                                                        \
    ROW(bny_prog_linear_reduce)

#define BNY_DIRECT_DECLARED(table) extern const struct bny_direct_ops table;
BNY_DIRECTS(BNY_DIRECT_DECLARED)
#undef BNY_DIRECT_DECLARED

/* 0, or -BANYAN_EINVAL with a sentence: ops does not serve c, or rank or root are not in
 * 0..nranks-1 (root is looked at only for collectives that have one). */
int bny_direct_check(const struct bny_direct_ops *ops, enum bny_collective c, int nranks,
                     int rank, int root);

#endif
