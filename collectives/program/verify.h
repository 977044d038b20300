/* SPDX-License-Identifier: BSD-3-Clause */
/* The parts of the program verifier (verify.c: form, V2, V3; verify_values.c: V1;
 * verify_progress.c: V4; verify_codes.c: V9, V10) and what they share. Steps of all ranks are
 * numbered through: step i of rank r is g = base[r] + i. */
#ifndef BNY_COLLECTIVES_VERIFY_H
#define BNY_COLLECTIVES_VERIFY_H

#include "collectives/program/program.h"

struct bny_proof {
    struct bny_program *const *p;
    int n;
    uint32_t nsteps; /* of all ranks */
    uint32_t *base;  /* [n + 1] */
    uint32_t *match; /* [nsteps] the step at the other end of a message, UINT32_MAX for KEEP */
    char *why;
    size_t why_cap;
};

/* Writes the violation and returns -BANYAN_EINVAL. */
int bny_proof_fail(const struct bny_proof *v, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int bny_proof_no_memory(const struct bny_proof *v);

static inline const struct bny_step *bny_proof_step(const struct bny_proof *v, int rank,
                                                    uint32_t g)
{
    return &v->p[rank]->steps[g - v->base[rank]];
}

static inline int bny_step_is_recv(const struct bny_step *s)
{
    return s->kind == BNY_RECV_ADD || s->kind == BNY_RECV_COPY;
}

/* Runs each rank strictly in program order with unbounded buffers: step(of, rank, i) for each,
 * a receive behind its send. The first error, or that a rank waits for ever. */
int bny_proof_run(const struct bny_proof *v, int (*step)(void *of, int rank, uint32_t i),
                  void *of);

/* V1, for IN and OUT in different memory and for IN == OUT; runs each rank strictly in program
 * order with unbounded buffers, so it also proves that this order never waits for ever. */
int bny_prove_values(const struct bny_proof *v);
/* V9: sum is what V10 compares. */
int bny_prove_codes(const struct bny_proof *v, const struct bny_loss code[BNY_CODES],
                    struct bny_loss *sum);
/* V4. */
int bny_prove_progress(const struct bny_proof *v, int slots);

#endif
