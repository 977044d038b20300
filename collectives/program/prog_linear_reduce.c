/* SPDX-License-Identifier: BSD-3-Clause */
/* Linear reduce: rank 0 adds x0 o x1 o ... in rank order, in SCRATCH, and sends the result to
 * the root. The canonical association of the linear allreduce for any root
 * (topo/build_linear.c), for deterministic mode and operations that do not commute. Rank 0 as
 * root adds in OUT.
 *
 *   (n-1) (alpha + S beta + S gamma), and alpha + S beta when the root is not 0 */
#include "collectives/program/directs.h"
#include "collectives/program/writer.h"

static void linear_reduce_collect(struct bny_writer *w, int nranks, int root)
{
    enum bny_space sum = root == 0 ? BNY_OUT : BNY_SCRATCH, at = BNY_IN;

    for (int r = 1; r < nranks; r++) {
        bny_writer_step(w, BNY_RECV_ADD, r, at, sum, 0, 0);
        at = sum;
    }
    bny_writer_step(w, BNY_KEEP, -1, at, sum, 0, 0);
    if (root != 0)
        bny_writer_step(w, BNY_SEND, root, sum, BNY_NOWHERE, 0, 0);
}

static int linear_reduce_build(struct bny_program **out, enum bny_collective c, int nranks,
                               int rank, int root)
{
    struct bny_writer w;
    int e;

    *out = NULL;
    e = bny_direct_check(&bny_prog_linear_reduce, c, nranks, rank, root);
    if (e)
        return e;
    bny_writer_init(&w, "linear_reduce", c, nranks, rank, root, 1, 1);
    if (rank == 0) {
        linear_reduce_collect(&w, nranks, root);
    } else {
        bny_writer_step(&w, BNY_SEND, 0, BNY_IN, BNY_NOWHERE, 0, 0);
        if (rank == root)
            bny_writer_step(&w, BNY_RECV_COPY, 0, BNY_NOWHERE, BNY_OUT, 0, 0);
    }
    return bny_writer_finish(&w, out);
}

static double linear_reduce_cost(enum bny_collective c, int nranks, double bytes, double alpha,
                                 double beta, double gamma)
{
    return nranks == 1 ? 0 : nranks * (alpha + bytes * beta) + (nranks - 1) * bytes * gamma;
}

const struct bny_direct_ops bny_prog_linear_reduce = {
    .name = "linear_reduce",
    .collectives = 1u << BNY_REDUCE,
    .build = linear_reduce_build,
    .cost = linear_reduce_cost,
};
