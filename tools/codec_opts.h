/* SPDX-License-Identifier: BSD-3-Clause */
/* Options of banyan_codec. */
#ifndef BNY_TOOLS_CODEC_OPTS_H
#define BNY_TOOLS_CODEC_OPTS_H

#include "base/cpu.h"

struct codec_opts {
    int json;
    const char *codec, *isa, *where, *kernel; /* NULL: all */
    long elems, reps;                         /* elems 0: as usual there */
};

/* The instruction sets that loops come in, as CPU flags. */
static const unsigned codec_levels[] = { 0, BNY_CPU_AVX2, BNY_CPU_AVX2 | BNY_CPU_AVX512,
                                         BNY_CPU_NEON };
#define CODEC_LEVELS (sizeof codec_levels / sizeof codec_levels[0])

/* 0: go on; -1: done (help or version were asked for); 2: wrong, which is said. */
int codec_opts_parse(struct codec_opts *opt, int argc, char **argv);
/* Says what is wrong; 2. */
int codec_bad(const char *what, const char *value);

#endif
