/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans: which program serves a call, by which path it runs, how long its chunks are. */
#ifndef BNY_COLLECTIVES_PLAN_H
#define BNY_COLLECTIVES_PLAN_H

#include "collectives/plan/scope.h"
#include "collectives/program/program.h"

/* The ways to run an operation, in the order in which the choice asks them: of two that are
 * predicted alike the first is taken. ROW(id, symbol, name): enum BNY_WAY_<id>; the table
 * bny_way_<symbol> (way.h); the schedule by which users ask for it, "" where they cannot. */
#define BNY_WAYS(ROW)                                                                          \
    ROW(DIRECT, direct, "direct")           /* each contribution to all that need it */        \
    ROW(PIPELINE, pipeline, "pipeline")     /* passes over shared memory */                    \
    ROW(SEQUENCE, sequence, "hierarchical") /* a list of operations: a sum of several hosts, a \
                                               linear codec */                                 \
    ROW(ARRIVAL, arrival, "arrival")        /* a reduction in the order in which ranks come */ \
    ROW(PROGRAM, program, "")               /* a program of steps, chunk by chunk */

#define BNY_WAY_ID(id, symbol, name) BNY_WAY_##id,
enum bny_way_id { BNY_WAYS(BNY_WAY_ID) BNY_WAY_COUNT };
#undef BNY_WAY_ID

/* The carriers of the way direct (direct/direct.h), in this order. The schedule
 * "direct:<symbol>" insists on one. */
#define BNY_CARRIERS(ROW) ROW(alone) ROW(cells) ROW(messages)

/* Of an arrival reduction: the set of its contributors fits the shortest eager message. */
#define BNY_ARRIVAL_RANKS_MAX 32768

struct bny_kept_program;

struct bny_plan {
    enum bny_way_id way;
    const struct bny_program *program; /* NULL: the way has none */
    struct bny_kept_program *kept;     /* that holds it */
    const struct bny_codec *codec;     /* NULL: none, or refused as predicted to lose: */
    double refused_s;                  /* its prediction; 0 */
    size_t chunk_bytes;
    double predicted_s;
    double late_s; /* > 0: a sum that is run in order of arrival while ranks are late by so
                    * much (arrival/lateness.h); the rest of the plan is what is run else */
    size_t arrival_chunk;  /* of that one, in bytes */
    double together_s;     /* in order of arrival: so long slots wait for all ranks to come */
    double pace_s;         /* > 0: a step's chunks are sent evenly over so many seconds */
    double cts_wait_s;     /* > 0: sends wait so long for CTS of all who are to say so */
    uint8_t weighs;        /* whether the codec is used is decided when the call runs */
    uint8_t breaks_budget; /* raw, as no codec of the call's budget keeps it */
    uint8_t is_substitute; /* the communicator's schedule cannot serve the call */
    uint8_t hash;          /* of what ranks must agree on */
    char schedule[BNY_NAME_MAX];
};

/* The codec of a program's steps of this enum bny_code; NULL: their data is raw. */
static inline const struct bny_codec *bny_plan_codec(const struct bny_plan *plan, unsigned code)
{
    return !plan->codec || code == BNY_CODE_NONE ? NULL
           : code == BNY_CODE_UP                 ? plan->codec->up
                                                 : plan->codec->down;
}

/* Chooses the plan for a call into *out; cached. The caller gives it back by bny_plan_drop().
 * Returns 0, -BANYAN_EINVAL (unknown schedule), -BANYAN_ENOTSUP (a schedule or codec asked for
 * that cannot do this), -BANYAN_ENOMEM. */
int bny_plan_get(struct bny_scope *s, const struct bny_call *call, struct bny_plan *out);
/* Takes a plan of zeros. */
void bny_plan_drop(struct bny_plan *plan);
/* All that the scope keeps. Plans that are still held stay valid. */
void bny_plans_free(struct bny_scope *s);

/* The way that serves call->schedule: why it cannot serve the call (way.h); and its prediction,
 * INFINITY where it cannot, or where others are faster. For ways that run it as a part of
 * theirs. */
const char *bny_plan_cannot(const struct bny_scope *s, const struct bny_call *call);
double bny_plan_seconds(struct bny_scope *s, const struct bny_call *call);
/* The cheapest for ranks that are there: way, schedule and predicted_s of a plan of zeros. For
 * ways that weigh their own plan against it. 0 or an error. */
int bny_plan_cheapest(struct bny_scope *s, const struct bny_call *call, struct bny_plan *plan);
/* Does the call leave the schedule to the communicator? */
static inline int bny_call_is_open(const struct bny_call *call)
{
    return !call->schedule[0] || !strcmp(call->schedule, "auto");
}

/* "auto": the cheapest, by who is late perhaps; "static": the cheapest for ranks that are
 * there; or a name of banyan_schedule_name(). */
int bny_schedule_known(const char *name);
int bny_schedule_is_auto(const char *name); /* it names none: "", "auto" or "static" */
const char *bny_schedule_list(void);        /* "auto, static, ring, ..." for messages */

#endif
