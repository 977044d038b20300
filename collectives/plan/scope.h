/* SPDX-License-Identifier: BSD-3-Clause */
/* A communicator as the choice of a plan may see it: its ranks, and the values on which all of
 * them agreed when it was made. Nothing in here is one rank's own; a plan is a function of this
 * and of a call alone, so that every rank makes the same one without asking. Guarded by the
 * world's lock. */
#ifndef BNY_COLLECTIVES_SCOPE_H
#define BNY_COLLECTIVES_SCOPE_H

#include "collectives/call/call.h"

struct bny_plans;
struct bny_topology;
struct bny_way;

struct bny_scope {
    int n, rank;
    int *members;                      /* [n] their ranks in the job */
    struct bny_topology *topology;     /* the job's */
    const struct bny_way *const *ways; /* [BNY_WAY_COUNT] */
    /* Agreed */
    uint32_t eager_max;     /* largest payload that every pair may send eagerly */
    uint32_t at_once;       /* the same of pairs that share no memory, which is more */
    uint32_t chunk_max;     /* largest chunk that every endpoint of every rank can carry */
    uint32_t coded_max;     /* largest that arrives in one piece: for encoded ones */
    uint8_t shares_memory;  /* every pair talks by shared memory */
    uint8_t small_slots;    /* a chunk beyond chunk_max may be impossible to send as it is */
    uint8_t one_host;       /* all ranks of the job are on one host */
    uint8_t oversubscribed; /* ranks that share a CPU, on the job's fullest host; 0: none do */
    uint8_t codec_force;    /* codecs are used even where they are predicted to lose */
    uint8_t deterministic;
    /* Several hosts, on each of which so many ranks share memory; 0: not that */
    int near;
    const int *memory_of; /* [ranks of the job] borrowed: alike where ranks share memory */
    double link_Bps;      /* the user's word on a rank's link; 0: none */
    double device_Bps;    /* the slowest rank's device, as it says; 0: not all of them say it */
    size_t chunk_bytes;
    char schedule[BNY_NAME_MAX], codec_spec[128];
    const struct bny_codec *codec; /* NULL: none */
    struct bny_plans *plans;       /* made so far: programs.c; NULL: none yet */
};

/* Where `near` is set: do two ranks share memory? */
static inline int bny_scope_is_near(const struct bny_scope *s, int a, int b)
{
    return s->memory_of[s->members[a]] == s->memory_of[s->members[b]];
}

/* Rank r's place among those that share its memory: 0 to near - 1. */
static inline int bny_scope_place(const struct bny_scope *s, int r)
{
    int place = 0;

    for (int q = 0; q < r; q++)
        place += bny_scope_is_near(s, q, r);
    return place;
}

/* Does no other rank take part? */
static inline int bny_call_is_local(const struct bny_scope *s, const struct bny_call *call)
{
    if (call->collective == BNY_SENDRECV)
        return call->is_send && call->root == s->rank;
    return s->n == 1 || (call->has_set && call->nset == 0);
}

#endif
