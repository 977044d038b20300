/* SPDX-License-Identifier: BSD-3-Clause */
/* What banyan_perf knows of codecs: which calls one serves, and how far a result may lie from
 * the exact one. */
#ifndef BNY_PERF_PERF_CODEC_H
#define BNY_PERF_PERF_CODEC_H

#include "banyan/banyan.h"
#include "perf/perf_case.h"

/* The largest error of one quantisation of x: relative * |x| + of_largest * (the largest
 * |value| of the tensor). */
struct perf_codec_error {
    int lossy;    /* 0: values arrive as they are */
    int is_bound; /* 0: the codec promises nothing of a single element; results must be finite
                   */
    int feeds;    /* the codec is meant to be used with a residual: banyan_codec_state */
    double relative, of_largest;
    double of_sum; /* a budget's bound of the whole error, over the sum of the ranks' largest
                      |values|; INFINITY: none */
};
/* Whether a call runs with the codec, where that is not refused for being slow. 0 for "none"
 * and for what does not parse. */
int perf_codec_serves(const char *codec, const struct perf_case *pc, enum banyan_dtype dtype,
                      unsigned op);
/* *out for a call with this codec ("none", "name", "name:param=value"); all zero where the call
 * runs without it. op: enum banyan_op_kind or PERF_MULSUM. Returns 0 or the library's error. */
int perf_codec_error(struct perf_codec_error *out, const char *codec,
                     const struct perf_case *pc, enum banyan_dtype dtype, unsigned op);

#endif
