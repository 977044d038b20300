/* SPDX-License-Identifier: BSD-3-Clause */
/* A program: what one rank does in one collective, as steps. Size-free: blocks index a table
 * (offset and count of each block) that a call fills in; the engine cuts steps into chunks.
 * Forests compile to programs (compile.c); algorithms that are no forest build theirs directly
 * (prog_*.c). verify.c proves programs. */
#ifndef BNY_PROGRAM_PROGRAM_H
#define BNY_PROGRAM_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/call/collective.h"
#include "topo/forest.h"

/* Messages from a rank to another in an operation: bny_hdr.step has 16 bits. Programs with more
 * are refused: -BANYAN_ENOTSUP. */
#define BNY_MESSAGES_MAX 65536u

enum bny_step_kind {
    BNY_SEND,      /* encode the operand `src` and send it to peer */
    BNY_RECV_ADD,  /* dst = src (op) received; with BNY_STEP_REV: received (op) src */
    BNY_RECV_COPY, /* dst = received */
    BNY_FORWARD, /* send on, unchanged, the bytes that step `from` received (RECV_COPY) or made
                  * (KEEP); with an exact codec the same as SEND of `src` */
    BNY_KEEP, /* local, peer -1: the block is fully reduced here. dst = finish(src): divides for
               * AVG; with a lossy codec dst = decode(encode(src)), whose bytes FORWARD sends;
               * copies when src and dst are different memory */
};

enum bny_space { BNY_IN, BNY_OUT, BNY_SCRATCH, BNY_SCRATCH2, BNY_NOWHERE };

enum bny_step_flag {
    BNY_STEP_REV = 1 << 0,   /* RECV_ADD: received operand comes first (lower ranks) */
    BNY_STEP_PLACE = 1 << 1, /* SEND/FORWARD: the matching step is a RECV_COPY to BNY_OUT of the
                              * same blocks, whose offsets are the same on both ranks: put() may
                              * be used. Set on that RECV_COPY as well */
};

/* Where a step's data is on its way. A plan has a codec for each, or none: its data is raw. */
enum bny_code {
    BNY_CODE_NONE, /* between ranks of one host: raw whatever the codec; KEEP: nothing is
                      encoded */
    BNY_CODE_UP,   /* contributions and their sums, towards the owner; all that is no result */
    BNY_CODE_DOWN, /* results. A lossy code of one is made once, by KEEP, and FORWARD sends it
                    */
    BNY_CODES
};

struct bny_step {
    uint8_t kind;     /* enum bny_step_kind */
    uint8_t chan;     /* wire channel, 0..BNY_CHANNELS-1; the same on both sides */
    uint8_t src, dst; /* enum bny_space; BNY_NOWHERE when the kind has none */
    uint8_t flags;    /* enum bny_step_flag */
    uint8_t code;     /* enum bny_code; the same on both sides */
    int32_t peer;     /* rank; -1 for KEEP */
    uint32_t block,
        nblocks; /* operand: blocks [block, block + nblocks) of this rank's table, in order */
    uint32_t ordinal; /* k: this is the k-th step from src rank to dst rank; the peer's k-th
                         matches */
    uint32_t
        from; /* FORWARD: index of the RECV_COPY or KEEP step, same blocks; else UINT32_MAX */
    uint32_t dep,
        ndeps; /* deps[dep .. dep+ndeps): steps whose overlapping elements must be complete
                * first: true dependencies, the order of additions, and reuse of memory (a RECV
                * into blocks that an earlier step still sends from). Complete means: received
                * and applied; for sends: the memory may be overwritten. */
};

struct bny_program {
    enum bny_collective collective;
    int rank, nranks;
    int root; /* -1 when the collective has none */
    char schedule[32];
    uint8_t *present;     /* [nranks] 0: a rank without an operand (participants), whose IN
                             is never read; NULL: all have one */
    uint32_t nblocks;     /* of the block table */
    uint32_t *weight_num; /* [nblocks] share of the call's count, for collectives that split one
                             count */
    uint32_t *weight_den; /* (allreduce, reduce, broadcast, scan: blocks partition [0,count));
                             else NULL */
    int contiguous; /* 1: consecutive blocks are adjacent in IN, OUT and SCRATCH on all ranks */
    int uses_scratch, uses_scratch2;
    int owned_only; /* SCATTERED uses: OUT (reduce_scatter) or IN (allgather) has this rank's
                       blocks alone */
    uint32_t *owned_first; /* these: rank r's blocks are owned_first[r] .. owned_first[r + 1]),
                            * and weight_num, weight_den their shares of the whole; [nranks +
                            * 1]. NULL: block r is rank r's */
    uint32_t nsteps, ndeps;
    struct bny_step *steps; /* in program order: a legal sequential order on this rank */
    uint32_t *deps;
    uint32_t *user_first; /* [nsteps + 1] the other way round: users[user_first[i] ..) depend on
                             step i. NULL: no step depends on any */
    uint32_t *users;
    /* Steps by peer, for matching: recv_of[recv_first[p] + k] is the k-th receive step from
     * rank p. */
    uint32_t *recv_first; /* [nranks + 1] */
    uint32_t *recv_of;
};

/* Where rank r's blocks begin in a SCATTERED use, or in gather and scatter; those of r + 1
 * begin where they end. */
static inline uint32_t bny_owned_first(const struct bny_program *p, uint32_t r)
{
    return p->owned_first ? p->owned_first[r] : r;
}

/* The block's owner. */
static inline uint32_t bny_block_owner(const struct bny_program *p, uint32_t block)
{
    uint32_t low = 0, high = (uint32_t)p->nranks;

    while (p->owned_first && high - low > 1) {
        uint32_t mid = low + (high - low) / 2;

        if (p->owned_first[mid] <= block)
            low = mid;
        else
            high = mid;
    }
    return p->owned_first ? low : block;
}

/* Compiles a forest for one rank. collective: ALLREDUCE; REDUCE_SCATTER, ALLGATHER (SCATTERED
 * forests); REDUCE, BROADCAST (ROOTED). coalesce: joins sends of several trees to one peer in
 * one step where their blocks are adjacent (exact codecs only: FORWARD then is SEND). Operands:
 *   ALLREDUCE      leaves SEND from IN; the first RECV_ADD has src IN, dst OUT, later ones src
 *                  OUT dst OUT; the root KEEPs OUT and FORWARDs; others RECV_COPY to OUT and
 *                  FORWARD. IN and OUT may be the same memory, so reuse dependencies treat them
 *                  as one.
 *   REDUCE         as above with SCRATCH instead of OUT on ranks that are not the root.
 *   BROADCAST      everything in OUT.
 *   REDUCE_SCATTER partial sums of other ranks' blocks in SCRATCH, own block in OUT.
 *   ALLGATHER      own block sent from IN (KEEP first copies IN to OUT), others RECV_COPY to
 *                  OUT.
 *   A forest of a part (bny_forest.present) serves ALLREDUCE, and REDUCE to its sink: where
 *   that is not the trees' root, the root KEEPs in SCRATCH and FORWARDs to the sink. A root
 *   without children that add KEEPs from IN.
 * Children are added in order of (step, rank). Returns 0, -BANYAN_ENOMEM, -BANYAN_EINVAL,
 * -BANYAN_ENOTSUP (BNY_MESSAGES_MAX; on all ranks alike). Pure. */
int bny_compile(struct bny_program **out, const struct bny_forest *forest,
                enum bny_collective collective, int rank, int coalesce);

/* The same by turns, for several ranks of a process that have one forest: what does not depend
 * on the rank is made once, and checked once for each collective. Borrows the forest. Any
 * number of threads may run one at the same time. Errors: as above. */
struct bny_compiler;
int bny_compiler_new(struct bny_compiler **out, const struct bny_forest *forest,
                     enum bny_collective collective);
int bny_compiler_run(struct bny_compiler *k, struct bny_program **out,
                     enum bny_collective collective, int rank, int coalesce);
void bny_compiler_free(struct bny_compiler *k); /* takes NULL */

/* The programs of all ranks, out[nranks], for much less than that many calls. On an error some
 * may be there already. */
int bny_compile_all(struct bny_program **out, const struct bny_forest *forest,
                    enum bny_collective collective, int coalesce);

/* Programs that are no forest. Same errors; -BANYAN_ENOTSUP when not for such n. */
struct bny_direct_ops {
    char name[24];
    unsigned collectives; /* bits 1 << enum bny_collective */
    int (*build)(struct bny_program **out, enum bny_collective c, int nranks, int rank,
                 int root);
    double (*cost)(enum bny_collective c, int nranks, double bytes, double alpha_s,
                   double beta_s_per_byte, double gamma_s_per_byte);
};
/* NULL-terminated; directs.h lists them. Blocks of an alltoall: 0..n-1 are what I send to rank
 * b, from IN; n..2n-1 what I get from rank b-n, to OUT; KEEP copies the own block. Of gather
 * and scatter: block b is rank b's; the root has all n in OUT or IN, others only their own. */
extern const struct bny_direct_ops *const bny_directs[];
const struct bny_direct_ops *bny_direct_find(const char *name);

void bny_program_free(struct bny_program *p); /* takes NULL */

/* Proves the programs of all ranks together, in four parts. Contributions: symbolic execution
 * with sets of ranks for each block: sums are of disjoint sets, the result is complete where
 * the collective promises it (of SCAN its order, too), and each block of it is kept once
 * (KEEP), by its owner. Memory: no step reads what a concurrent step may overwrite, whether IN
 * is OUT or not; IN is never written unless it is OUT. Matching: the k-th send from a to b and
 * b's k-th receive from a name as many blocks of the same weights, on the same channel and in
 * the same code. Progress: no deadlock with `slots` messages in flight in each direction of a
 * channel (0: rendezvous, a send completes when it is received), each step cut into slots + 2
 * chunks. programs[nranks]. Returns 0, or -BANYAN_EINVAL with the first violation in why. */
int bny_program_verify(struct bny_program *const *programs, int nranks, int slots, char *why,
                       size_t why_cap);

/* What is lost: the mean squared error over the energy of the data, and the largest error over
 * the largest values of the inputs, each rank's in the same block, together. Of one encoding:
 * of its input. All zero: nothing is; INFINITY: unknown. */
struct bny_loss {
    double nmse, max;
};

/* Proves of programs that bny_program_verify accepts what codecs with these losses do to
 * results. Of each block there is one lossy code, made by KEEP; nobody encodes a result again,
 * and all ranks that end with the block decode that code. *found (or NULL): the losses of all
 * encodings on the longest path of a contribution, added, and their mean over contributions.
 * They are at most those of claim (NULL: any). Returns as bny_program_verify. */
int bny_program_verify_codes(struct bny_program *const *programs, int nranks,
                             const struct bny_loss code[BNY_CODES],
                             const struct bny_loss *claim, struct bny_loss *found, char *why,
                             size_t why_cap);

#endif
