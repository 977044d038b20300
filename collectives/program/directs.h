/* SPDX-License-Identifier: BSD-3-Clause */
/* The direct programs' tables (prog_*.c), for the registry. Costs follow the model of
 * topo/build.h. */
#ifndef BNY_COLLECTIVES_DIRECTS_H
#define BNY_COLLECTIVES_DIRECTS_H

#include "collectives/program/program.h"

extern const struct bny_direct_ops bny_prog_recursive_doubling, bny_prog_dissemination,
    bny_prog_pairwise, bny_prog_direct, bny_prog_chain, bny_prog_linear_reduce;

/* 0, or -BANYAN_EINVAL with a sentence: ops does not serve c, or rank or root are not in
 * 0..nranks-1 (root is looked at only for collectives that have one). */
int bny_direct_check(const struct bny_direct_ops *ops, enum bny_collective c, int nranks,
                     int rank, int root);

#endif
