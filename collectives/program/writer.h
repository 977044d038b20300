/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes a program step by step (program.c). The writer derives what follows from the order of
 * the steps: ordinals, dependencies between steps that touch the same memory, the receive
 * index. So a builder states operands and order only, and an order of messages that both ranks
 * know gives matching ordinals. */
#ifndef BNY_COLLECTIVES_PROGRAM_WRITER_H
#define BNY_COLLECTIVES_PROGRAM_WRITER_H

#include "collectives/program/program.h"

struct bny_writer {
    struct bny_program *p; /* the writer's until bny_writer_finish */
    uint32_t cap;          /* allocated steps */
    uint32_t (*extra)[2];  /* [nextra] (step, the earlier step it also waits for) */
    uint32_t nextra;
    int failed; /* 1: out of memory; later calls do nothing, finish reports it */
};

/* Starts a program. nblocks equal blocks; split: they partition the call's count, so weights
 * 1/nblocks are set (callers may change them) and the blocks are contiguous. */
void bny_writer_init(struct bny_writer *w, const char *schedule, enum bny_collective c,
                     int nranks, int rank, int root, uint32_t nblocks, int split);
/* Room for so many steps at once. */
void bny_writer_reserve(struct bny_writer *w, uint32_t steps);
/* Appends a step; ordinal, dep and ndeps are set by finish. Returns its index. */
uint32_t bny_writer_add(struct bny_writer *w, const struct bny_step *step);
/* Shorthand: flags as given, one block, no FORWARD; of code UP. */
uint32_t bny_writer_step(struct bny_writer *w, enum bny_step_kind kind, int peer,
                         enum bny_space src, enum bny_space dst, uint32_t block,
                         unsigned flags);
/* Makes `step` wait for the earlier step `on` although they share no memory. */
void bny_writer_after(struct bny_writer *w, uint32_t step, uint32_t on);
/* Completes the program. Returns 0 and *out, or -BANYAN_ENOMEM; the writer is empty then. */
int bny_writer_finish(struct bny_writer *w, struct bny_program **out);

#endif
