/* SPDX-License-Identifier: BSD-3-Clause */
/* Schedules of other papers and libraries (sim_baselines.h). */
#include "sim_baselines.h"

#include <stdlib.h>

#include "topo/build.h"
#include "topo/butterfly.h"

static struct bny_forest *finished(struct bny_forest *f)
{
    struct bny_forest *out = NULL;

    if (f)
        bny_forest_finish(&out, f);
    return out;
}

/* Parent of v > 0 in the in-order tree over 1..n-1 that hangs below 0. */
static int in_order_parent(int v, int n)
{
    int bit = v & -v, up = (v ^ bit) | (bit << 1);

    return up >= n ? v ^ bit : up;
}

struct bny_forest *sim_nccl_double_tree(int n)
{
    struct bny_forest *f = bny_forest_alloc("nccl_double_tree", n, 2);

    for (int t = 0; f && t < 2; t++) {
        struct bny_tree *tree = &f->trees[t];

        tree->pipeline = (uint32_t)t;
        for (int v = 0; v < n; v++) {
            int rank = !t ? v : n % 2 ? (v + 1) % n : n - 1 - v, up;

            if (v == 0) {
                tree->root = rank;
                continue;
            }
            up = in_order_parent(v, n);
            tree->parent[rank] = !t ? up : n % 2 ? (up + 1) % n : n - 1 - up;
        }
        for (int v = 0; v < n; v++) {
            uint32_t height = 0;

            for (int u = v; u != tree->root; u = tree->parent[u], height++)
                if (tree->step[u] < height)
                    tree->step[u] = height;
        }
    }
    return finished(f);
}

static int xor_peer(const void *ctx, int v, int step, int k)
{
    return v ^ 1 << step;
}

struct bny_forest *sim_near_halving(int n)
{
    struct bny_butterfly pattern = { n, bny_log2_ceil(n), 1, xor_peer, NULL };
    struct bny_forest *f = bny_forest_alloc("near_halving", n, n);

    for (int t = 0; f && t < n; t++)
        if (bny_butterfly_tree(&pattern, &f->trees[t], t, 0)) {
            bny_forest_free(f);
            return NULL;
        }
    return finished(f);
}

static void lay_ring(struct bny_forest *f, int first_tree, const int *order)
{
    int n = f->nranks;

    for (int r = 0; r < n; r++) {
        struct bny_tree *tree = &f->trees[first_tree + r];

        tree->root = order[r];
        tree->pipeline = (uint32_t)(first_tree / n);
        for (int dist = 1; dist < n; dist++) {
            int v = order[(r - dist + n) % n];

            tree->parent[v] = order[(r - dist + 1 + n) % n];
            tree->step[v] = (uint32_t)(n - 1 - dist);
        }
    }
}

struct bny_forest *sim_rail_rings(int boxes, int box)
{
    int n = boxes * box, *order = malloc((size_t)n * sizeof *order);
    struct bny_forest *f = order ? bny_forest_alloc("rail_rings", n, n * box) : NULL;

    for (int c = 0; f && c < box; c++) {
        for (int i = 0; i < n;
             i++) { /* box b is entered by rank c - b and left by the one before */
            int b = i / box;

            order[i] = b * box + ((c - b + i % box) % box + box) % box;
        }
        lay_ring(f, c * n, order);
    }
    free(order);
    return finished(f);
}

struct bny_forest *sim_ring_through(const int *order, int nranks)
{
    struct bny_forest *f = bny_forest_alloc("ring_through", nranks, nranks);

    if (f)
        lay_ring(f, 0, order);
    return finished(f);
}

struct ring_2d {
    struct bny_sim_job *job;
    int rows, cols;
    double bytes;
    uint32_t
        *last[2][2]; /* [half][direction][rank]: the latest transfer to it; UINT32_MAX: none */
};

/* Neighbour of rank v along its row (or column), upwards or downwards. */
static int next_2d(const struct ring_2d *r, int v, int along_row, int down)
{
    int row = v / r->cols, col = v % r->cols;

    if (along_row)
        col = (col + (down ? r->cols - 1 : 1)) % r->cols;
    else
        row = (row + (down ? r->rows - 1 : 1)) % r->rows;
    return row * r->cols + col;
}

/* One half's ring allreduce over one dimension in one direction. */
static void pass_2d(struct ring_2d *r, int half, int down, int along_row, uint32_t first_step,
                    uint32_t *const before[2])
{
    int n = r->rows * r->cols, p = along_row ? r->cols : r->rows;
    uint32_t *now = malloc((size_t)n * sizeof *now), *last = r->last[half][down];

    for (int s = 0; now && s < 2 * (p - 1); s++) {
        for (int v = 0; v < n; v++) {
            int to = next_2d(r, v, along_row, down);
            struct bny_transfer t = {
                v, to, first_step + (uint32_t)s, s < p - 1, 0, r->bytes / 4 / p, NULL, 0, 0, 0
            };
            uint32_t id = bny_sim_add(r->job, &t);

            for (int d = 0; d < 2;
                 d++) { /* a pass begins when both directions of the last are done */
                uint32_t on = s == 0 ? before[d][v] : d == down ? last[v] : UINT32_MAX;

                if (on != UINT32_MAX)
                    bny_sim_after(r->job, id, on);
            }
            now[to] = id;
        }
        for (int v = 0; v < n; v++)
            last[v] = now[v];
    }
    r->job->failed |= !now;
    free(now);
}

void sim_ring_2d(struct bny_sim_job *job, int rows, int cols, double bytes)
{
    size_t n = (size_t)rows * (size_t)cols;
    struct ring_2d r = { job, rows, cols, bytes, { { NULL } } };
    uint32_t *all = malloc(6 * n * sizeof *all), *before[2];

    job->failed |= !all;
    if (!all)
        return;
    for (size_t i = 0; i < 6 * n; i++)
        all[i] = UINT32_MAX;
    for (int half = 0; half < 2; half++)
        for (int d = 0; d < 2; d++)
            r.last[half][d] = all + (size_t)(2 * half + d) * n;
    before[0] = all + 4 * n;
    before[1] = all + 5 * n;
    for (int pass = 0; pass < 2; pass++) {
        uint32_t first = pass ? 2 * (uint32_t)((rows > cols ? rows : cols) - 1) : 0;

        for (int half = 0; half < 2; half++) {
            for (int d = 0; d < 2; d++)
                for (size_t v = 0; v < n; v++)
                    before[d][v] = r.last[half][d][v];
            for (int d = 0; d < 2; d++)
                pass_2d(&r, half, d, half == pass, first, before);
        }
    }
    free(all);
}
