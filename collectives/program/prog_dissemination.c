/* SPDX-License-Identifier: BSD-3-Clause */
/* Dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier
 * synchronization", Int. J. of Parallel Programming 1988). In round k a rank tells rank + 2^k
 * and hears from rank - 2^k; what it tells in a round includes all it has heard before, so
 * after L = ceil(log2 n) rounds it has heard of everybody. The message's content means nothing:
 * one dummy block, sent from SCRATCH2 and received into SCRATCH.
 *
 *   L alpha */
#include "collectives/program/directs.h"
#include "collectives/program/writer.h"

static int dissemination_build(struct bny_program **out, enum bny_collective c, int nranks,
                               int rank, int root)
{
    struct bny_writer w;
    uint32_t heard = 0;
    int e;

    *out = NULL;
    e = bny_direct_check(&bny_prog_dissemination, c, nranks, rank, root);
    if (e)
        return e;
    bny_writer_init(&w, "dissemination", c, nranks, rank, -1, 1, 0);
    for (int far = 1; far < nranks; far *= 2) {
        uint32_t tell = bny_writer_step(&w, BNY_SEND, (rank + far) % nranks, BNY_SCRATCH2,
                                        BNY_NOWHERE, 0, 0);

        if (far > 1)
            bny_writer_after(&w, tell, heard);
        heard = bny_writer_step(&w, BNY_RECV_COPY, (rank - far + nranks) % nranks, BNY_NOWHERE,
                                BNY_SCRATCH, 0, 0);
    }
    return bny_writer_finish(&w, out);
}

static double dissemination_cost(enum bny_collective c, int nranks, double bytes, double alpha,
                                 double beta, double gamma)
{
    double seconds = 0;

    for (int far = 1; far < nranks; far *= 2)
        seconds += alpha;
    return seconds;
}

const struct bny_direct_ops bny_prog_dissemination = {
    .name = "dissemination",
    .collectives = 1u << BNY_BARRIER,
    .build = dissemination_build,
    .cost = dissemination_cost,
};
