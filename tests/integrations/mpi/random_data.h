/* SPDX-License-Identifier: BSD-3-Clause */
/* What random_calls.c makes its calls of. */
#ifndef BNY_TESTS_RANDOM_DATA_H
#define BNY_TESTS_RANDOM_DATA_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#define MARGIN 4096

extern int me, world_n; /* of MPI_COMM_WORLD */
extern uint64_t all_state,
    my_state; /* the two generators: the same on all ranks, and this rank's own */

uint64_t next(uint64_t *s);
int all(int n); /* in [0, n), the same on all ranks */
int mine(int n);
uint64_t hash(uint64_t h, const void *p, size_t bytes);

struct base {
    MPI_Datatype type;
    int size, extent; /* bytes of value from the start; and between elements */
    char kind;        /* i integer, f float, d double, g long double, c float complex, z double
                         complex, b bool, p pair */
};
extern struct base bases[];
extern int nbases;
void make_bases(void);
/* A layout of `per` elements: any of these has the same signature. */
MPI_Datatype layout(const struct base *b, int which, int *per);

struct area {
    char *mem;
    size_t bytes; /* margins included */
};
struct area area(size_t elems, int extent);
char *at(struct area *a);
/* Values whose sums and products are exact, also in float; or (rough) any between -1 and 1. */
void fill(char *p, const struct base *b, int count, int product, int sum, int rough);

void add_mod(void *in, void *inout, int *n, MPI_Datatype *type);
/* 2 x 2 matrices, in x inout: order matters. */
void multiply(void *in, void *inout, int *n, MPI_Datatype *type);
MPI_Op pick_op(char kind, int *product, int *which);

#endif
