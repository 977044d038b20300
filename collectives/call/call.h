/* SPDX-License-Identifier: BSD-3-Clause */
/* One collective call, as the user gave it, checked (api/arguments.c). */
#ifndef BNY_COLLECTIVES_CALL_H
#define BNY_COLLECTIVES_CALL_H

#include <string.h>

#include "collectives/call/collective.h"
#include "collectives/call/redop.h"
#include "compress/codec.h"
#include "compress/state.h"

#define BNY_NAME_MAX 32

/* Which ranks of the communicator run an operation. A child may be for some of them; others run
 * one of their own beside it. */
enum bny_among {
    BNY_AMONG_ALL,
    BNY_AMONG_HOST, /* those that share a host's memory */
    BNY_AMONG_RAIL, /* those of the same place on each host */
};

/* Of another operation, under a number that was kept for it. */
enum bny_childhood {
    BNY_CHILD = 1,
    BNY_CHILD_CODED, /* the parent has decided for its codec, and lends it the codec's state */
};

/* Calls that differ only in their buffers have the same shape. Shapes are compared as bytes. Of
 * those with ordinary options only; is_set 0: of no call. */
struct bny_call_shape {
    uint64_t count;
    int32_t root; /* or the peer */
    uint32_t tag;
    uint8_t collective, is_send, dtype, op, deterministic, is_set, zero[2];
};
_Static_assert(sizeof(struct bny_call_shape) == 24, "no padding");

struct bny_call {
    /* The key: all that a plan and an operation's tables rest on, compared as bytes. */
    uint8_t collective; /* enum bny_collective */
    uint8_t vector;     /* v-variant: counts are per rank */
    uint8_t is_send;    /* SENDRECV: direction */
    uint8_t deterministic;
    uint8_t via_allreduce; /* an ordered reduce_scatter: allreduce into staging, then copy the
                              own block */
    uint8_t has_set;       /* participants: not all ranks' inputs count */
    uint8_t is_child;      /* enum bny_childhood; 0: it is none */
    uint8_t among;         /* enum bny_among */
    enum banyan_dtype dtype;
    int root; /* or the peer of SENDRECV; -1 */
    struct bny_redop redop;
    size_t count; /* elements: of the whole (allreduce...), of a block (allgather, alltoall...);
                     of a v-variant: this rank's own part where only that is known */
    const struct bny_codec *codec;
    int64_t rows, cols; /* the matrix that a linear codec takes the tensor for */
    size_t chunk_bytes;
    uint64_t set_key[2];         /* has_set: the set, see bny_call_set_participants(); else 0 */
    size_t nset;                 /* has_set: ranks in it; else 0 */
    size_t first;                /* arrival: at_least; 0: not said, all count */
    char schedule[BNY_NAME_MAX]; /* bny_call_set_schedule() */
    /* Not of the key. */
    uint32_t tag;
    const void *sendbuf;
    void *recvbuf;
    size_t *scounts, *sdispls, *rcounts, *rdispls; /* [n], owned by the op; vector only */
    size_t *spread; /* [n] or NULL, owned by the op: an even allgatherv's displacements, to
                       which its blocks go from a private copy */
    size_t own_at, own_count;         /* via_allreduce */
    struct banyan_codec_state *state; /* or NULL */
    size_t tensor_at;       /* its first element's place in the state: of a part of a tensor */
    uint8_t *contributors;  /* [n] or NULL: gets the ranks whose inputs are in the result */
    const uint8_t *present; /* [n] has_set: the set, 0 or 1; of an op its own copy */
    double timeout_s;       /* < 0: the communicator's */
    struct bny_call_shape shape;    /* calls that may take over what was checked of this one */
    uint8_t takes_send, takes_recv; /* sendbuf, recvbuf must not be NULL */
};

#define BNY_CALL_KEY_BYTES offsetof(struct bny_call, tag)
_Static_assert(offsetof(struct bny_call, redop) == 16 && sizeof(struct bny_redop) == 48 &&
                   BNY_CALL_KEY_BYTES % 8 == 0 &&
                   BNY_CALL_KEY_BYTES == offsetof(struct bny_call, schedule) + BNY_NAME_MAX,
               "a key has no padding: it is compared as bytes");

/* Do both calls have the same plan and the same tables? */
static inline int bny_call_same(const struct bny_call *a, const struct bny_call *b)
{
    typedef uint64_t __attribute__((may_alias)) word;
    const word *x = (const word *)(const void *)a, *y = (const word *)(const void *)b;
    uint64_t differ = 0;

    for (size_t i = 0; i < BNY_CALL_KEY_BYTES / sizeof *x; i++)
        differ |= x[i] ^ y[i];
    return !differ;
}

static inline const struct bny_collective_row *bny_call_row(const struct bny_call *call)
{
    return bny_collective_row((enum bny_collective)call->collective);
}

/* As users call it: banyan_<name>. */
static inline const char *bny_call_name(const struct bny_call *call)
{
    if (call->collective == BNY_SENDRECV)
        return call->is_send ? "send" : "recv";
    return bny_call_row(call)->name;
}

/* Does the input of this rank count? */
static inline int bny_call_takes_part(const struct bny_call *call, int rank)
{
    return !call->has_set || call->present[rank];
}

/* Does rank `to` need something of rank `from`, where each gives its contribution to all who
 * need it? */
static inline int bny_call_sends(const struct bny_call *call, int from, int to)
{
    if (from == to || !bny_call_takes_part(call, from))
        return 0;
    switch (call->collective) {
    case BNY_BROADCAST:
    case BNY_SCATTER: return from == call->root;
    case BNY_REDUCE:
    case BNY_GATHER: return to == call->root;
    default: return 1;
    }
}

/* Ranks whose inputs count, of n. */
static inline int bny_call_parts(const struct bny_call *call, int n)
{
    return call->has_set ? (int)call->nset : n;
}

/* Is the sum divided by the number of ranks? That of a host is but a part of it. */
static inline int bny_call_averages(const struct bny_call *call)
{
    return bny_call_row(call)->averages && bny_redop_averages(&call->redop) &&
           call->among != BNY_AMONG_HOST;
}

/* Must additions follow the order of the ranks? */
static inline int bny_call_is_ordered(const struct bny_call *call)
{
    return bny_call_row(call)->averages && (!call->redop.commutative || call->deterministic);
}

/* A codec that loses something? */
static inline int bny_call_is_lossy(const struct bny_call *call)
{
    return call->codec && call->codec->ops->family != BNY_CODEC_EXACT;
}

/* present [n]: 0 or 1; borrowed. Up to 64 ranks the key is the set itself, beyond two hashes of
 * 64 bits. The set of all ranks is none. */
static inline void bny_call_set_participants(struct bny_call *call, const uint8_t *present,
                                             int n)
{
    uint64_t bits = 0, a = 0x9e3779b97f4a7c15u, b = 0xc2b2ae3d27d4eb4fu;

    call->nset = 0;
    for (int r = 0; r < n; r++) {
        bits |= (uint64_t)(present[r] != 0) << r % 64;
        call->nset += present[r] != 0;
        if (n > 64 && (r % 64 == 63 || r == n - 1)) {
            a = (a ^ bits) * 0xff51afd7ed558ccdu;
            a ^= a >> 32;
            b = (b + bits) * 0xc4ceb9fe1a85ec53u;
            b ^= b >> 29;
            bits = 0;
        }
    }
    call->has_set = call->nset < (size_t)n;
    call->set_key[0] = !call->has_set ? 0 : n > 64 ? a : bits;
    call->set_key[1] = call->has_set && n > 64 ? b : 0;
    call->present = call->has_set ? present : NULL;
    if (!call->has_set)
        call->nset = 0;
}

/* name: shorter than BNY_NAME_MAX, else it is cut. */
static inline void bny_call_set_schedule(struct bny_call *call, const char *name)
{
    size_t len = strnlen(name, BNY_NAME_MAX - 1);

    memset(call->schedule, 0, sizeof call->schedule);
    memcpy(call->schedule, name, len);
}

#endif
