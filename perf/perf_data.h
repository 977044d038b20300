/* SPDX-License-Identifier: BSD-3-Clause */
/* Values for banyan_perf's buffers: a pure function of (pattern, type, op, rank, index), so
 * that every rank can compute what the others sent and check each element of a result. */
#ifndef BNY_PERF_PERF_DATA_H
#define BNY_PERF_PERF_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "perf/perf_case.h"
#include "perf/perf_codec.h"

enum perf_data_kind {
    PERF_RANDOM,  /* small integers whose sums are exact; uniform in [-1, 1) with a lossy codec
                   */
    PERF_GAUSS,   /* normal, mean 0, deviation 1 */
    PERF_LAPLACE, /* density exp(-|x|) / 2 */
    PERF_SPARSE,  /* normal with probability p, else 0 */
    PERF_FILE,    /* f32 values of a file, rank r starts r * count elements in; repeated */
};

struct perf_data_spec {
    enum perf_data_kind kind;
    double p;
    const float *file; /* mapped */
    size_t file_elems;
};
/* "random", "gauss", "laplace", "sparse=0.01", "file=PATH". Returns 0, or -1 with a message on
 * stderr. */
int perf_data_parse(struct perf_data_spec *spec, const char *text);

/* One size's values. */
struct perf_values {
    const struct perf_data_spec *spec;
    enum banyan_dtype dtype;
    int reduces; /* 1: op below applies; 0: values are only moved */
    unsigned op; /* enum banyan_op_kind or PERF_MULSUM */
    int nranks;
    size_t count; /* of the call; where file= starts a rank */
    struct perf_codec_error codec;
    uint64_t seed;
};
/* The scalar of rank r in op mulsum: whole, so that sums stay exact. */
static inline double perf_mulsum_scalar(int rank)
{
    return 1 + (rank & 1);
}

/* dst[0..n) = elements [first, first+n) of rank's send buffer. */
void perf_values_fill(const struct perf_values *v, int rank, size_t first, size_t n, void *dst);

/* Sums over checked elements. Floating sums of small integers are exact, and compared so; other
 * sums must lie within the error bound of their type, codec and number of ranks. */
struct perf_check {
    uint64_t wrong;
    double max_abs_err;
    double err2, ref2; /* squares of errors, of expected values */
    uint64_t hash;     /* of the bytes, to compare ranks */
};
/* Checks a whole result of the call; adds to *out. */
void perf_values_check(const struct perf_values *v, const struct perf_case *pc,
                       const struct perf_call *call, struct perf_check *out);

#endif
