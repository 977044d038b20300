/* SPDX-License-Identifier: BSD-3-Clause */
/* The topologies that bounds and packings are held against, and what is known of them: 1/x* =
 * max |X & compute| / B+(X) from ForestColl (arXiv 2402.06787), MultiTree (ISCA 2021) or by
 * hand. Shared by tests and perf/forests.py. */
#ifndef BNY_TESTS_ZOO_H
#define BNY_TESTS_ZOO_H

struct zoo_entry {
    char topo[40];  /* for bny_graph_make */
    char shard[12]; /* 1/x* */
    int ranks;
};

static const struct zoo_entry zoo[] = {
    { "torus:4x4", "15/4", 16 },
    { "torus:8x8", "63/4", 64 },
    { "mesh:4x4", "15/2", 16 },
    { "mesh:8x8", "63/2", 64 },
    { "torus:16x16", "255/4", 256 },
    { "torus:4x4x4", "21/2", 64 },
    { "ring:8", "7/2", 8 },
    { "dgx-1", "7/6", 8 },
    { "dgx-a100:1", "7/300", 8 },
    { "dgx-a100:2", "3/65", 16 },
    { "dgx-a100:4", "3/25", 32 },
    { "dgx-a100:8", "7/25", 64 },
    { "dgx-h100:2", "3/100", 16 },
    { "dgx-h100:16", "3/10", 128 },
    { "dgx-h100:128", "127/50", 1024 },
    { "mi250:1", "7/150", 16 },
    { "mi250:2", "15/166", 32 },
    { "mi250:2,dies=8", "1/13", 16 },
    { "mi250:4", "3/16", 64 },
    { "fattree:64", "63", 64 },
    { "fattree:64,over=4", "63", 64 },
    { "fattree:64,over=8", "63", 64 },
    { "dragonfly:9x4x2", "71", 72 },
    { "star:4x100+4x25", "7/25", 8 },
    { "torus:8x8!dead=0-1", "21", 64 },
    { "torus:8x8!slow=0-1/2", "9", 64 },
    { "dgx-a100:2!dead=gpu0.0-ib", "1/20", 16 },
    { "dgx-a100:4!dead=gpu0.0-ib", "24/175", 32 },
};

#define ZOO_ENTRIES ((int)(sizeof zoo / sizeof zoo[0]))

#endif
