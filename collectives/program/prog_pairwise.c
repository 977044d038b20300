/* SPDX-License-Identifier: BSD-3-Clause */
/* Pairwise alltoall (Thakur et al., IJHPCA 2005, section 4.4): in round k = 1..n-1 a rank sends
 * to rank + k and receives from rank - k, so each port carries one message each way at a time.
 * Block b < n is what this rank sends to b (IN), block n + b what it gets from b (OUT). KEEP
 * copies the own block: it names block n + rank, whose place in IN is that of block `rank`.
 *
 *   (n-1) (alpha + S/n beta), S bytes of all n blocks */
#include "collectives/program/directs.h"
#include "collectives/program/writer.h"

static int pairwise_build(struct bny_program **out, enum bny_collective c, int nranks, int rank,
                          int root)
{
    struct bny_writer w;
    int e;

    *out = NULL;
    e = bny_direct_check(&bny_prog_pairwise, c, nranks, rank, root);
    if (e)
        return e;
    bny_writer_init(&w, "pairwise", c, nranks, rank, -1, 2 * (uint32_t)nranks, 0);
    bny_writer_step(&w, BNY_KEEP, -1, BNY_IN, BNY_OUT, (uint32_t)(nranks + rank), 0);
    for (int k = 1; k < nranks; k++) {
        int to = (rank + k) % nranks, from = (rank - k + nranks) % nranks;

        bny_writer_step(&w, BNY_SEND, to, BNY_IN, BNY_NOWHERE, (uint32_t)to, 0);
        bny_writer_step(&w, BNY_RECV_COPY, from, BNY_NOWHERE, BNY_OUT,
                        (uint32_t)(nranks + from), 0);
    }
    return bny_writer_finish(&w, out);
}

static double pairwise_cost(enum bny_collective c, int nranks, double bytes, double alpha,
                            double beta, double gamma)
{
    return (nranks - 1) * (alpha + bytes / nranks * beta);
}

const struct bny_direct_ops bny_prog_pairwise = {
    .name = "pairwise",
    .collectives = 1u << BNY_ALLTOALL,
    .build = pairwise_build,
    .cost = pairwise_cost,
};
