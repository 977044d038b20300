/* SPDX-License-Identifier: BSD-3-Clause */
/* MSCCL XML, the format of msccl-tools: import to programs, for allreduce, allgather and
 * reduce_scatter.
 *
 *   <algo name proto nchannels nchunksperloop ngpus coll inplace>
 *     <gpu id i_chunks o_chunks s_chunks>
 *       <tb id send recv chan>                        a sequence of steps with at most one peer
 *                                                     to send to and one
 *         <step s type srcbuf srcoff dstbuf dstoff cnt depid deps hasdep/>       to receive
 *                                                                                from; -1: none
 *
 * Step types that are understood: s (send), r (receive), rcs (and send on), rrc (receive,
 * reduce, store), rrs (and send instead of storing), rrcs (and send), cpy (where it needs no
 * copy here: of an input to its own place), nop. Buffers: i, o, s. depid, deps: waits for that
 * step of that tb of this gpu, and what came before it.
 *
 * Import runs the file symbolically and writes down what each rank did. The result is an
 * ordinary program, and like every other it is not run unless bny_program_verify accepts it.
 * Chunks of scratch memory become blocks by what they hold, so a file that stores a chunk where
 * another belongs is refused. */
#ifndef BNY_COLLECTIVES_MSCCL_H
#define BNY_COLLECTIVES_MSCCL_H

#include "collectives/program/program.h"

#define BNY_MSCCL_BYTES_MAX (256u << 20)

struct bny_program_set {
    enum bny_collective collective;
    int n;
    int slots;              /* least number of buffers a channel with which it is proven */
    struct bny_program **p; /* [n] */
};
void bny_program_set_free(struct bny_program_set *set);
/* Proves a set with 0, 1, 2, 4 ... max_slots buffers a channel, and sets slots to the first
 * that suffices. 0, or -BANYAN_EINVAL with the reason in why. */
int bny_program_set_prove(struct bny_program_set *set, int max_slots, char *why,
                          size_t why_cap);

/* Reads, converts and proves. 0 and *out (bny_program_set_free); -BANYAN_EINVAL with
 * "file:line: what is wrong"; -BANYAN_ENOTSUP for what is right but has no counterpart here;
 * -BANYAN_ENOMEM. */
int bny_msccl_load(struct bny_program_set *out, const char *path);
int bny_msccl_parse(struct bny_program_set *out, const char *text, size_t len,
                    const char *name);

/* ---- shared by msccl_xml.c (parser) and msccl_import.c ---- */
enum bny_msccl_type {
    MSCCL_NOP,
    MSCCL_S,
    MSCCL_R,
    MSCCL_RCS,
    MSCCL_RRC,
    MSCCL_RRS,
    MSCCL_RRCS,
    MSCCL_CPY
};

struct bny_msccl_step {
    uint8_t type;
    char srcbuf, dstbuf; /* 'i', 'o', 's' */
    int srcoff, dstoff, cnt, depid, deps, line;
};
struct bny_msccl_tb {
    int send, recv, chan;
    int first, nsteps; /* in steps of the algorithm */
    int line;
};
struct bny_msccl_gpu {
    int chunks[3]; /* of i, o, s */
    int first, ntbs;
    int line;
};
struct bny_msccl {
    char name[32];
    enum bny_collective collective;
    int ngpus, nchunks, inplace;
    struct bny_msccl_gpu *gpus; /* [ngpus] */
    struct bny_msccl_tb *tbs;
    struct bny_msccl_step *steps;
    int ntbs, nsteps;
};
/* The file's structure, with all numbers in range. */
int bny_msccl_read(struct bny_msccl *out, const char *text, size_t len, const char *name);
void bny_msccl_free(struct bny_msccl *m);

#endif
