/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of graph generators (gen_*.c): parsing arguments, drawing positions. */
#ifndef BNY_TOPO_GEN_H
#define BNY_TOPO_GEN_H

#include <stdint.h>

#include "topo/graph.h"

#define BNY_GEN_RANKS_MAX 65536
#define BNY_GEN_DIMS_MAX  8
/* Latencies of links, ns. MultiTree's evaluation (ISCA 2021) has 150 cycles at 1 GHz between
 * routers. */
#define BNY_GEN_LAT_ROUTER 150
#define BNY_GEN_LAT_NVLINK 300
#define BNY_GEN_LAT_NET    500

/* "4x8x2" into v[0..max): their number, or -BANYAN_EINVAL. Every number is 1 ..
 * BNY_GEN_RANKS_MAX, and so is their product. The error includes `usage`. */
int bny_gen_dims(int *v, int max, const char *args, const char *usage);
/* "8" or "8x4,over=2,levels=3": splits at the first ',' (copied to head) and reads the named
 * numbers that follow into *values[i], which keep their defaults if not named. Returns 0 or
 * -BANYAN_EINVAL. */
struct bny_gen_option {
    const char *name;
    int *value;
    int min, max;
};
int bny_gen_options(char *head, size_t head_cap, const char *args,
                    const struct bny_gen_option *options, int n, const char *usage);
int bny_gen_usage(const char *args,
                  const char *usage); /* fails with the usage: -BANYAN_EINVAL */

/* Adds a compute node with its position. Returns its index or an error. */
int bny_gen_rank(struct bny_graph *g, int host, int x, int y, int z);
int bny_gen_switch(struct bny_graph *g, const char *name, int x, int y, int z);

extern const struct bny_generator bny_gen_torus, bny_gen_mesh, bny_gen_hypercube, bny_gen_ring,
    bny_gen_random, bny_gen_star, bny_gen_fattree, bny_gen_leafspine, bny_gen_bigraph,
    bny_gen_dragonfly, bny_gen_dgx1, bny_gen_dgx_a100, bny_gen_dgx_h100, bny_gen_mi250,
    bny_gen_machine;

#endif
