/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BNY_TOOLS_MSCCL_WRITE_H
#define BNY_TOOLS_MSCCL_WRITE_H

#include <stdio.h>

#include "collectives/program/msccl.h"

/* Writes programs of all ranks. -BANYAN_ENOTSUP when the weights have no common denominator up
 * to 4096, or for another collective than allreduce, allgather and reduce_scatter. */
int msccl_write(FILE *to, struct bny_program *const *programs, int n);

#endif
