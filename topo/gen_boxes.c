/* SPDX-License-Identifier: BSD-3-Clause */
/* Boxes of accelerators, in GB/s (DGX-1: in NVLinks), with the link speeds that ForestColl
 * (arXiv 2402.06787) uses: DGX A100 300 to the NVSwitch and 25 to InfiniBand for each GPU, DGX
 * H100 450 and 50, MI250 50 for each xGMI link and 16. One box has no InfiniBand. */
#include <stdio.h>

#include "base/err.h"
#include "topo/gen.h"

static int box_rank(struct bny_graph *g, int box, int gpu, int x, int y)
{
    int v = bny_gen_rank(g, box, x, y, 0);

    if (v >= 0)
        snprintf(g->nodes[v].name, sizeof g->nodes[v].name, "gpu%d.%d", box, gpu);
    return v;
}

static int make_dgx(struct bny_graph *g, const char *args, const char *usage, int nvlink,
                    int ib)
{
    int n = 0, e = bny_gen_dims(&n, 1, args, usage), sw;

    for (int i = 0; i < 9 * n && e >= 0; i++) {
        char name[40];
        snprintf(name, sizeof name, "nvs%d", i / 9);
        e = i % 9 < 8 ? box_rank(g, i / 9, i % 9, i / 9 * 9 + i % 9, 1)
                      : bny_gen_switch(g, name, i / 9 * 9 + 4, 2, 0);
    }
    if (e < 0)
        return e;
    for (int i = 0; i < 9 * n && e >= 0; i++)
        if (i % 9 < 8)
            e = bny_graph_both(g, i, i / 9 * 9 + 8, nvlink, BNY_GEN_LAT_NVLINK);
    if (n == 1 || e < 0)
        return e;
    e = sw = bny_gen_switch(g, "ib", n * 9 / 2, 0, 0);
    for (int i = 0; i < 9 * n && e >= 0; i++)
        if (i % 9 < 8)
            e = bny_graph_both(g, i, sw, ib, BNY_GEN_LAT_NET);
    return e;
}

static int make_a100(struct bny_graph *g, const char *args)
{
    return make_dgx(g, args, bny_gen_dgx_a100.usage, 300, 25);
}

static int make_h100(struct bny_graph *g, const char *args)
{
    return make_dgx(g, args, bny_gen_dgx_h100.usage, 450, 50);
}

/* Hybrid cube mesh of the V100, as printed by `nvidia-smi topo -m`: 6 NVLinks per GPU. */
static const unsigned char dgx1[][3] = {
    { 0, 1, 1 }, { 0, 2, 1 }, { 0, 3, 2 }, { 0, 4, 2 }, { 1, 2, 2 }, { 1, 3, 1 },
    { 1, 5, 2 }, { 2, 3, 2 }, { 2, 6, 1 }, { 3, 7, 1 }, { 4, 5, 1 }, { 4, 6, 1 },
    { 4, 7, 2 }, { 5, 6, 2 }, { 5, 7, 1 }, { 6, 7, 2 },
};

static int make_dgx1(struct bny_graph *g, const char *args)
{
    int e = 0;

    if (*args)
        return bny_gen_usage(args, bny_gen_dgx1.usage);
    g->unit_Bps = 25e9;
    for (int i = 0; i < 8 && e >= 0; i++)
        e = box_rank(g, 0, i, i % 4 / 2 + i / 4 * 3, i % 4 % 2 * 2 + i % 4 / 2);
    for (size_t i = 0; i < sizeof dgx1 / sizeof dgx1[0] && e >= 0; i++)
        for (int lane = 0; lane < dgx1[i][2] && e >= 0; lane++)
            e = bny_graph_both(g, dgx1[i][0], dgx1[i][1], 1, BNY_GEN_LAT_NVLINK);
    return e;
}

/* xGMI links of a box with 8 MI250 (16 dies): four between the two dies of a package, the rest
 * between packages. Half b (dies 8b .. 8b+7) is wired alike; six links cross. ForestColl's
 * published optima follow from these counts. */
static const unsigned char mi250_half[][3] = {
    { 0, 1, 4 }, { 2, 3, 4 }, { 4, 5, 4 }, { 6, 7, 4 }, { 0, 4, 2 }, { 3, 7, 2 },
    { 1, 5, 1 }, { 2, 6, 1 }, { 4, 6, 1 }, { 5, 6, 1 }, { 5, 7, 1 },
};
static const unsigned char mi250_cross[][2] = {
    { 0, 8 }, { 3, 11 }, { 1, 9 }, { 1, 10 }, { 2, 9 }, { 2, 10 },
};

static int mi250_box(struct bny_graph *g, int first, int dies)
{
    int e = 0;

    for (int half = 0; half < dies / 8 && e >= 0; half++)
        for (size_t i = 0; i < sizeof mi250_half / sizeof mi250_half[0] && e >= 0; i++)
            for (int lane = 0; lane < mi250_half[i][2] && e >= 0; lane++)
                e = bny_graph_both(g, first + half * 8 + mi250_half[i][0],
                                   first + half * 8 + mi250_half[i][1], 50, BNY_GEN_LAT_NVLINK);
    for (size_t i = 0; dies == 16 && i < sizeof mi250_cross / sizeof mi250_cross[0] && e >= 0;
         i++)
        e = bny_graph_both(g, first + mi250_cross[i][0], first + mi250_cross[i][1], 50,
                           BNY_GEN_LAT_NVLINK);
    return e;
}

static int make_mi250(struct bny_graph *g, const char *args)
{
    static const unsigned char column[] = { 0, 0, 1, 1, 0, 0, 1, 1 },
                               row[] = { 0, 1, 0, 1, 2, 3, 2, 3 };
    int dies = 16, n = 0, e, sw;
    const struct bny_gen_option options[] = { { "dies", &dies, 8, 16 } };
    char head[32];

    e = bny_gen_options(head, sizeof head, args, options, 1, bny_gen_mi250.usage);
    if (!e)
        e = bny_gen_dims(&n, 1, head, bny_gen_mi250.usage);
    if (e >= 0 && dies != 8 && dies != 16)
        e = bny_gen_usage(args, bny_gen_mi250.usage);
    for (int box = 0; box < n && e >= 0; box++) {
        for (int i = 0; i < dies && e >= 0; i++)
            e = box_rank(g, box, i, box * 5 + (i < 8 ? 1 - column[i % 8] : 2 + column[i % 8]),
                         1 + row[i % 8]);
        if (e >= 0)
            e = mi250_box(g, box * dies, dies);
    }
    if (e < 0 || n == 1)
        return e;
    e = sw = bny_gen_switch(g, "ib", n * 5 / 2, 0, 0);
    for (int i = 0; i < dies * n && e >= 0; i++)
        e = bny_graph_both(g, i, sw, 16, BNY_GEN_LAT_NET);
    return e;
}

const struct bny_generator bny_gen_mi250 = {
    "mi250",
    "mi250:N[,dies=8]  N boxes of 16 MI250 dies (or the first 8 of each): xGMI links of 50 "
    "GB/s, InfiniBand "
    "of 16",
    make_mi250
};
const struct bny_generator bny_gen_dgx_a100 = {
    "dgx-a100",
    "dgx-a100:N  N boxes of 8 GPUs: 300 GB/s to the NVSwitch, 25 to InfiniBand, each", make_a100
};
const struct bny_generator bny_gen_dgx_h100 = {
    "dgx-h100",
    "dgx-h100:N  N boxes of 8 GPUs: 450 GB/s to the NVSwitch, 50 to InfiniBand, each", make_h100
};
const struct bny_generator bny_gen_dgx1 = {
    "dgx-1", "dgx-1  8 V100 GPUs in a hybrid cube mesh; capacity 1 is one NVLink", make_dgx1
};
