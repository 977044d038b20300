/* SPDX-License-Identifier: BSD-3-Clause */
/* One pass of a write-back allreduce, or of an exchange of blocks, on memory that is there
 * already: no communicator, no operation, no transport. It never waits: it goes on as far as it
 * can and is called again.
 *
 * The vector is cut into a part for each rank, its owner, and each part into chunks. Of chunk c
 *   in    each rank copies its input to the others' parts into its own slot
 *   add   the owner of a part adds all ranks' inputs to it, in the order of the ranks, and
 *         stores the sum in its output and back into the slots that the inputs came in
 *   out   each rank copies the others' sums out of its own slot
 * Two waits a chunk: an add needs all others' in, an out needs all others' add. So the chunks
 * overlap: after the in of chunk c come the add of chunk c - lag and the out of chunk c - 2
 * lag. A slot is used anew only when its own rank has copied the sums out, which is after all
 * others were there: nothing else guards it.
 *
 * Each line written by others lies in their own area, which they alone advance; inputs and sums
 * change hands in one and the same cache line. Each element is added once, so all ranks have
 * the same bits, and these depend on nothing but the inputs and the order of the ranks.
 *
 * A rank may lend its vector where others can reach it: owners read its input and store their
 * sums there, and it has no in and no out.
 *
 * An exchange (exchange.c) is the same with other in, add and out: allgather, alltoall and
 * reduce_scatter, in which each rank has a block for each of the others. One half of a block
 * goes in; the rank that takes it out leaves the other half of its own block for the first rank
 * in the same lines. So both halves of a slot's way are used, and both ranks write what both
 * read.
 *
 * A reduction to a root (pipeline_reduce.c) has an owner for each part but the root's; the
 * sums go into the root's slots, and the root adds its input as it takes them out.
 *
 * Blocks (blocks.c) are copied in once and out by whoever needs them: broadcast, gather,
 * scatter, and allgather between more than two ranks. No rank waits but for what it needs: who
 * gives, for room in its slots, or until what it lends is taken; so a rank may be operations
 * ahead of others. Its counts and slots are there until all are done with them (area/).
 *
 * The root of a gather would copy alone what the others could copy side by side. It may lend
 * its output even where that is not shared memory: others write there by the kernel's copy. */
#ifndef BNY_COLLECTIVES_PASS_H
#define BNY_COLLECTIVES_PASS_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/area/slots.h"
#include "collectives/call/redop.h"

#define BNY_PASS_TILE      4096u
#define BNY_PASS_RANKS_MAX 64

enum bny_pass_loan { BNY_PASS_KEEPS, BNY_PASS_LENDS, BNY_PASS_LENDS_COPIES };

struct bny_pass_peer {
    struct bny_area_head *area;
    char *slice; /* NULL: it has not told which */
    uint32_t filled, added;
    uint8_t lends;
    const char *src;  /* of the chunk that is being added: its input, and where the sum goes */
    const char *src2; /* exchange: the same of the second half */
    char *dst;
    uint8_t differs; /* it runs another operation: theirs */
    struct bny_sig theirs;
};

enum bny_pass_kind { BNY_PASS_ALLREDUCE, BNY_PASS_EXCHANGE, BNY_PASS_REDUCE, BNY_PASS_BLOCKS };

struct bny_pass {
    enum bny_pass_kind kind;
    uint8_t adds;      /* exchange: blocks are added up */
    uint8_t same;      /* exchange, blocks: our block is the same for all ranks */
    uint8_t touches;   /* the reader of a slot writes it, too */
    uint8_t from_root; /* blocks: the root gives, else it takes */
    uint8_t direct;    /* gather: givers ask the root first, and store there if it lends */
    int root;          /* reduce, blocks; -1: all ranks give and take */
    const struct bny_area_shape *shape;
    struct bny_pass_peer *peers; /* [n]; of this rank its own area and slice */
    int n, rank, averages;
    struct bny_redop redop;
    enum banyan_dtype dtype;
    const char *in;
    char *out;
    size_t count, esz, share, step; /* elements: of all or of a block, of a part, of a chunk */
    size_t stride;                  /* bytes from chunk to chunk in a slot */
    size_t tile_elems;
    char *tile; /* [tile_elems * esz] */
    uint32_t seq, slice, nchunks, stage, lag, phase;
    uint32_t nadded;                    /* chunks of our own part; blocks: that we have taken */
    uint32_t nin;                       /* blocks: chunks that we have given */
    uint32_t nslots;                    /* blocks: chunks that there is room for */
    uint32_t taken_to, nstored, stored; /* a broadcast whose root stores the chunks from
                                           taken_to on: now from here on; for whom it has */
    size_t stores_from; /* bytes of such a broadcast at least; all ranks alike */
    int stores_for;     /* for which rank, as bny_pass_nth(); 0: none */
    int lends;   /* enum bny_pass_loan, of this rank; its input alone, but for sums to all
                    and a root's; of an exchange's sums, if all others do */
    int has_met; /* others know that it lends */
    /* Bytes [at, at + len) of rank r's lent vector, until give_back: 0, or -1: not now. Where
     * it lends its input alone only *src is set, and is good until the end without give_back.
     */
    int (*borrow)(void *ctx, int r, size_t at, size_t len, const char **src, char **dst);
    void (*give_back)(void *ctx, int r);
    /* Stores len bytes at `at` of our block in what rank r lends. 0, or -1: not now. */
    int (*store)(void *ctx, int r, size_t at, const char *src, size_t len);
    void *ctx;
    struct bny_sig sig;
    uint32_t history;
    int told;        /* something was written for peers since this was last cleared */
    uint64_t copied; /* bytes, in and out; goes round */
    uint64_t handed; /* bytes for others */
};

/* How p->count elements are cut. The caller has set kind and what goes with it, shape, n, rank,
 * redop, dtype, esz and count; chunk: bytes that are wanted, 0: any. Sets tile_elems, for which
 * the caller has memory. */
void bny_pass_cut(struct bny_pass *p, size_t chunk);
/* Begins: seq, sig, slice, in, out, lends and all peers' areas are set. */
void bny_pass_begin(struct bny_pass *p);
/* Goes on. 1: something moved. */
int bny_pass_go(struct bny_pass *p);
static inline int bny_pass_is_done(const struct bny_pass *p)
{
    return p->stage == p->nchunks + 2 * p->lag;
}
/* May others still read our slots when it is done? */
int bny_pass_is_read_on(const struct bny_pass *p);
/* Is it rank r that it waits for? */
int bny_pass_lacks(const struct bny_pass *p, int r);

/* ---- between pass.c and the kinds ---- */

/* Vectors and blocks up to this have shorter chunks, or nothing would overlap. */
#define BNY_PASS_SHORT_BYTES (128u << 10)
#define BNY_PASS_SHORT_CHUNK (16u << 10)
#define BNY_PASS_RUN_MAX     (1u << 20) /* bytes of what is lent between two looks elsewhere */

static inline size_t bny_pass_round_up(size_t x, size_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* The i-th rank behind ours: ranks begin at different ones. */
static inline int bny_pass_nth(const struct bny_pass *p, int i)
{
    return p->rank + i < p->n ? p->rank + i : p->rank + i - p->n;
}

/* Elements that are not parted. */
size_t bny_pass_unit(const struct bny_pass *p);
/* Steps of `want` bytes (0: any) of parts of p->share elements. */
void bny_pass_cut_steps(struct bny_pass *p, size_t want);
/* Parts for so many owners, and their steps. */
void bny_pass_cut_parts(struct bny_pass *p, int owners, size_t chunk);
/* Elements [at, at + return) of part q are its chunk c. */
size_t bny_pass_chunk_of(const struct bny_pass *p, int q, uint32_t c, size_t *at);
/* Where rank r has its chunk c for rank q. */
char *bny_pass_slot(const struct bny_pass *p, int r, uint32_t c, int q);
/* This rank's counts, and rank r's: it takes part; chunk c is in; chunk c is added, or taken.
 * Counts of another operation have no effect. */
void bny_pass_tell_met(struct bny_pass *p);
void bny_pass_tell_filled(struct bny_pass *p, uint32_t before, uint32_t now);
void bny_pass_tell_added(struct bny_pass *p, uint32_t now);
int bny_pass_has_met(struct bny_pass *p, int r);
int bny_pass_has_filled(struct bny_pass *p, int r, uint32_t c);
int bny_pass_has_added(struct bny_pass *p, int r, uint32_t c);
uint32_t bny_pass_added_of(struct bny_pass *p, int r); /* the word; 0: none yet */

/* Chunk c of our inputs is in. */
void bny_exchange_in(struct bny_pass *p, uint32_t c);
/* All others' chunk c is in: takes the first halves, leaves our second ones. 0: not now. */
int bny_exchange_swap(struct bny_pass *p, uint32_t c);
/* All others have left theirs. */
void bny_exchange_out(struct bny_pass *p, uint32_t c);
void bny_exchange_cut(struct bny_pass *p, size_t chunk);

void bny_reduce_cut(struct bny_pass *p, size_t chunk);
void bny_reduce_begin(struct bny_pass *p);
void bny_reduce_in(struct bny_pass *p, uint32_t c);
/* All others' chunk c is in: adds it up for the root. 0: not now. */
int bny_reduce_add(struct bny_pass *p, uint32_t c);
/* All owners have added: the root takes it. */
void bny_reduce_out(struct bny_pass *p, uint32_t c);

void bny_blocks_cut(struct bny_pass *p, size_t chunk);
int bny_blocks_gives(const struct bny_pass *p, int r);
/* May the root store into what others lend? And shall we lend to rank r? */
int bny_blocks_stores(const struct bny_pass *p);
int bny_blocks_reaches(const struct bny_pass *p, int r);
void bny_blocks_begin(struct bny_pass *p);
int bny_blocks_go(struct bny_pass *p);
int bny_blocks_lacks(const struct bny_pass *p, int r);

#endif
