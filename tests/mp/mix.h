/* SPDX-License-Identifier: BSD-3-Clause */
/* Rounds of several calls each over the product of features: on several communicators, of any
 * collective, type, operation, codec, schedule, chunk and memory, with and without states, by
 * arrival; one after the other, in a group, in flight together as persistent requests, or a
 * thread a communicator.
 *
 * What a round does is drawn from the seed alike on all ranks; each rank draws by itself what
 * may differ: alignment, memory, lateness, the order of waiting. Exact calls are compared with
 * the model byte for byte (call.c, arrival_call.c), lossy ones by the law of their codec
 * (lossy.c). */
#ifndef BNY_TESTS_MP_MIX_H
#define BNY_TESTS_MP_MIX_H

#include "tests/mp/arrival_call.h"
#include "tests/mp/call.h"
#include "tests/mp/lossy.h"

#define MIX_COMMS  4
#define MIX_ITEMS  5
#define MIX_STATES 3 /* sizes of tensors; each communicator has a state of each */

enum mix_manner { MIX_IN_TURN, MIX_IN_GROUP, MIX_IN_FLIGHT, MIX_IN_THREADS, MIX_MANNERS };
enum mix_kind { MIX_EXACT, MIX_LOSSY, MIX_ARRIVAL, MIX_KINDS };

struct mix_item {
    const struct test *t;
    int comm; /* its number */
    enum mix_kind kind;
    struct call call;
    struct lossy_call lossy;
    struct arrival_call arrival;
    struct bound *bound;
    struct lossy *coded;
    struct arrived *arrived;
    struct banyan_request *rq[2];
    int rc, starts;
};

struct mix {
    const struct test *t;
    struct banyan_comm *comm[MIX_COMMS];
    int ncomms;
    unsigned without; /* a bit a manner; behind these a bit a kind, MIX_EXACT excepted */
    struct banyan_codec_state *state[MIX_COMMS][MIX_STATES]; /* NULL: none */
    struct image_pool pool[MIX_ITEMS][2];                    /* mem NULL: none */
    size_t max;                                              /* bytes of the largest buffer */
    uint32_t late_us;     /* ranks are late by up to so much */
    uint64_t shared, own; /* random numbers: of all ranks alike, of this one */
    struct mix_item item[MIX_ITEMS];
    int nitems;
    long calls, refused;
};

/* 0, or the first error of a call: then all communicators are revoked, so that nobody waits for
 * this rank in one that did not fail. Nothing is in flight at its return. */
int mix_round(struct mix *m);

#endif
