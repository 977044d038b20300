/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs of all ranks together, for the tests of programs and of their verifier. */
#ifndef TESTS_PROGRAM_SETS_H
#define TESTS_PROGRAM_SETS_H

#include "collectives/program/program.h"

#define SET_MAX_RANKS 64

struct program_set {
    int n;
    char name[96]; /* what it is, for messages */
    struct bny_program *p[SET_MAX_RANKS];
};

/* Every way to make programs: builders with their collectives, coalesced or not, and directs.
 * Plain numbers, so that it can be a test parameter. */
struct program_kind {
    int builder, direct; /* index in bny_builders (one past them: random forests) or
                            bny_directs; -1: the other one */
    int collective, coalesce;
};

/* The k-th kind; 0 past the end. */
int program_kind_at(int k, struct program_kind *out);
/* Root matters for the kind's collective. */
int program_kind_rooted(const struct program_kind *kind);
/* Builds all ranks' programs; returns 0, or -BANYAN_ENOTSUP where the kind has none for n.
 * Asserts all else. */
int program_set_build(struct program_set *s, const struct program_kind *kind, int n, int root);
void program_set_free(struct program_set *s);

#endif
