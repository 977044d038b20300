/* SPDX-License-Identifier: BSD-3-Clause */
/* Chain scan and exscan: rank r gets the prefix of ranks 0..r-1 from r - 1, puts its operand
 * after it and hands the sum on. The prefix keeps rank order. Chunks follow each other down the
 * chain, so for large messages the time is that of one hop plus n - 1 chunks.
 *
 * exscan wants the received prefix itself in OUT, and prefix o IN to hand on; as IN may be OUT
 * the second must be made before the first overwrites it. So a prefix is sent twice, on two
 * channels: added to IN into SCRATCH, then copied to OUT. The last rank gets it once. Rank 0's
 * OUT is left alone.
 *
 *   scan    (n-1) alpha + S beta + S gamma (pipelined)
 *   exscan  2 (n-1) alpha + 2 S beta + S gamma (pipelined) */
#include "collectives/program/directs.h"
#include "collectives/program/writer.h"

static void scan(struct bny_writer *w, int nranks, int rank)
{
    if (rank == 0)
        bny_writer_step(w, BNY_KEEP, -1, BNY_IN, BNY_OUT, 0, 0);
    else
        bny_writer_step(w, BNY_RECV_ADD, rank - 1, BNY_IN, BNY_OUT, 0, BNY_STEP_REV);
    if (rank + 1 < nranks)
        bny_writer_step(w, BNY_SEND, rank + 1, BNY_OUT, BNY_NOWHERE, 0, 0);
}

static void copy_prefix(struct bny_writer *w, enum bny_step_kind kind, int peer,
                        enum bny_space src, enum bny_space dst)
{
    struct bny_step copy = {
        .kind = (uint8_t)kind,
        .chan = 1,
        .src = (uint8_t)src,
        .dst = (uint8_t)dst,
        .peer = peer,
        .nblocks = 1,
        .from = UINT32_MAX,
    };

    bny_writer_add(w, &copy);
}

static void exscan(struct bny_writer *w, int nranks, int rank)
{
    enum bny_space sum = rank ? BNY_SCRATCH : BNY_IN;
    int last = nranks - 1;

    if (rank && rank < last)
        bny_writer_step(w, BNY_RECV_ADD, rank - 1, BNY_IN, BNY_SCRATCH, 0, BNY_STEP_REV);
    if (rank)
        copy_prefix(w, BNY_RECV_COPY, rank - 1, BNY_NOWHERE, BNY_OUT);
    if (rank + 1 < last)
        bny_writer_step(w, BNY_SEND, rank + 1, sum, BNY_NOWHERE, 0, 0);
    if (rank < last)
        copy_prefix(w, BNY_SEND, rank + 1, sum, BNY_NOWHERE);
}

static int chain_build(struct bny_program **out, enum bny_collective c, int nranks, int rank,
                       int root)
{
    struct bny_writer w;
    int e;

    *out = NULL;
    e = bny_direct_check(&bny_prog_chain, c, nranks, rank, root);
    if (e)
        return e;
    bny_writer_init(&w, "chain", c, nranks, rank, -1, 1, 1);
    (c == BNY_SCAN ? scan : exscan)(&w, nranks, rank);
    return bny_writer_finish(&w, out);
}

static double chain_cost(enum bny_collective c, int nranks, double bytes, double alpha,
                         double beta, double gamma)
{
    if (nranks == 1)
        return 0;
    return (c == BNY_SCAN ? 1 : 2) * ((nranks - 1) * alpha + bytes * beta) + bytes * gamma;
}

const struct bny_direct_ops bny_prog_chain = {
    .name = "chain",
    .collectives = 1u << BNY_SCAN | 1u << BNY_EXSCAN,
    .build = chain_build,
    .cost = chain_cost,
};
