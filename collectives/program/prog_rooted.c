/* SPDX-License-Identifier: BSD-3-Clause */
/* Gather and scatter: the root exchanges one message with every other rank. Block b is
 * rank b's; the root has all n of them, the others only their own.
 *
 *   (n-1) (alpha + S/n beta), S bytes of all n blocks, at the root's port */
#include "collectives/program/directs.h"
#include "collectives/program/writer.h"

static void gather(struct bny_writer *w, int nranks, int rank, int root)
{
    if (rank != root) {
        bny_writer_step(w, BNY_SEND, root, BNY_IN, BNY_NOWHERE, (uint32_t)rank, 0);
        return;
    }
    bny_writer_step(w, BNY_KEEP, -1, BNY_IN, BNY_OUT, (uint32_t)rank, 0);
    for (int k = 1; k < nranks; k++) {
        int from = (root + k) % nranks;

        bny_writer_step(w, BNY_RECV_COPY, from, BNY_NOWHERE, BNY_OUT, (uint32_t)from, 0);
    }
}

static void scatter(struct bny_writer *w, int nranks, int rank, int root)
{
    if (rank != root) {
        bny_writer_step(w, BNY_RECV_COPY, root, BNY_NOWHERE, BNY_OUT, (uint32_t)rank, 0);
        return;
    }
    for (int k = 1; k < nranks; k++) {
        int to = (root + k) % nranks;

        bny_writer_step(w, BNY_SEND, to, BNY_IN, BNY_NOWHERE, (uint32_t)to, 0);
    }
    bny_writer_step(w, BNY_KEEP, -1, BNY_IN, BNY_OUT, (uint32_t)rank, 0);
}

static int rooted_build(struct bny_program **out, enum bny_collective c, int nranks, int rank,
                        int root)
{
    struct bny_writer w;
    int e;

    *out = NULL;
    e = bny_direct_check(&bny_prog_rooted, c, nranks, rank, root);
    if (e)
        return e;
    bny_writer_init(&w, "rooted", c, nranks, rank, root, (uint32_t)nranks, 0);
    if (!w.failed)
        (c == BNY_GATHER ? gather : scatter)(&w, nranks, rank, root);
    return bny_writer_finish(&w, out);
}

static double rooted_cost(enum bny_collective c, int nranks, double bytes, double alpha,
                          double beta, double gamma)
{
    return (nranks - 1) * (alpha + bytes / nranks * beta);
}

const struct bny_direct_ops bny_prog_rooted = {
    .name = "rooted",
    .collectives = 1u << BNY_GATHER | 1u << BNY_SCATTER,
    .build = rooted_build,
    .cost = rooted_cost,
};
