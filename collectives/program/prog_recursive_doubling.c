/* SPDX-License-Identifier: BSD-3-Clause */
/* Recursive doubling allreduce (Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4.5), for
 * small messages and exact codecs. p = 2^L is the largest power of two <= n, r = n - p. Fold:
 * of the first 2r ranks the even ones send their operand to the next rank and get the result at
 * the end; the p others, numbered in rank order, exchange whole vectors with the rank whose
 * number differs in bit k, k = 0..L-1. A sum always covers consecutive ranks, and both partners
 * compute (lower ranks) o (higher ranks): the bits are the same on all ranks, and operations
 * that do not commute are right.
 *
 * Memory: round k reads X_k, which the partner may still be sent from, and writes X_k+1
 * elsewhere. X_0 is IN (SCRATCH2 where a fold was added), the inner ones alternate SCRATCH and
 * SCRATCH2, the last is OUT; but when the last round itself sends from IN (n = 2, and rank 2 of
 * 3), it adds into SCRATCH and KEEP moves the sum to OUT, since IN may be OUT and two partners
 * that each wait for their own send to end would wait for ever.
 *
 *   L (alpha + S beta + S gamma); fold: + 2 (alpha + S beta) + S gamma */
#include "collectives/program/directs.h"
#include "collectives/program/writer.h"

struct core {
    int p, levels, folded; /* folded: r */
};

static struct core core_of(int n)
{
    struct core c = { .p = 1 };

    while (c.p <= n / 2) {
        c.p *= 2;
        c.levels++;
    }
    c.folded = n - c.p;
    return c;
}

static int rank_of(const struct core *c, int number)
{
    return number < c->folded ? 2 * number + 1 : number + c->folded;
}

static void recursive_doubling_exchange(struct bny_writer *w, const struct core *c, int rank)
{
    int number = rank < 2 * c->folded ? rank / 2 : rank - c->folded;
    enum bny_space at = BNY_IN;

    if (rank < 2 * c->folded) {
        at = c->levels ? BNY_SCRATCH2 : BNY_OUT;
        bny_writer_step(w, BNY_RECV_ADD, rank - 1, BNY_IN, at, 0, BNY_STEP_REV);
    }
    for (int k = 0; k < c->levels; k++) {
        int peer = rank_of(c, number ^ (1 << k));
        enum bny_space to = at == BNY_SCRATCH ? BNY_SCRATCH2 : BNY_SCRATCH;

        if (k == c->levels - 1 && at != BNY_IN)
            to = BNY_OUT;
        bny_writer_step(w, BNY_SEND, peer, at, BNY_NOWHERE, 0, 0);
        bny_writer_step(w, BNY_RECV_ADD, peer, at, to, 0, peer < rank ? BNY_STEP_REV : 0);
        at = to;
    }
    bny_writer_step(w, BNY_KEEP, -1, at, BNY_OUT, 0, 0);
    if (rank < 2 * c->folded)
        bny_writer_step(w, BNY_SEND, rank - 1, BNY_OUT, BNY_NOWHERE, 0, BNY_STEP_PLACE);
}

static int recursive_doubling_build(struct bny_program **out, enum bny_collective c, int nranks,
                                    int rank, int root)
{
    struct core core = core_of(nranks);
    struct bny_writer w;
    int e;

    *out = NULL;
    e = bny_direct_check(&bny_prog_recursive_doubling, c, nranks, rank, root);
    if (e)
        return e;
    bny_writer_init(&w, "recursive_doubling", c, nranks, rank, -1, 1, 1);
    if (rank < 2 * core.folded && rank % 2 == 0) {
        bny_writer_step(&w, BNY_SEND, rank + 1, BNY_IN, BNY_NOWHERE, 0, 0);
        bny_writer_step(&w, BNY_RECV_COPY, rank + 1, BNY_NOWHERE, BNY_OUT, 0, BNY_STEP_PLACE);
    } else {
        recursive_doubling_exchange(&w, &core, rank);
    }
    return bny_writer_finish(&w, out);
}

static double recursive_doubling_cost(enum bny_collective c, int nranks, double bytes,
                                      double alpha, double beta, double gamma)
{
    struct core core = core_of(nranks);
    double seconds = core.levels * (alpha + bytes * (beta + gamma));

    return core.folded ? seconds + 2 * (alpha + bytes * beta) + bytes * gamma : seconds;
}

const struct bny_direct_ops bny_prog_recursive_doubling = {
    .name = "recursive_doubling",
    .collectives = 1u << BNY_ALLREDUCE,
    .build = recursive_doubling_build,
    .cost = recursive_doubling_cost,
};
