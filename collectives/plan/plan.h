/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans: which program serves a call, by which path it runs, how long its chunks are. */
#ifndef BNY_COLLECTIVES_PLAN_H
#define BNY_COLLECTIVES_PLAN_H

#include "collectives/plan/scope.h"
#include "collectives/program/program.h"

/* Ways to run an operation, each with a table of its own: op/path.h. */
enum bny_path {
    BNY_PATH_ENGINE,    /* a program, in chunks */
    BNY_PATH_ONESHOT,   /* everybody's whole contribution in one message to everybody */
    BNY_PATH_STAGES,    /* a linear codec: one operation after another */
    BNY_PATH_ALONE,     /* a communicator of one rank */
    BNY_PATH_SELF,      /* a message to oneself: its sending */
    BNY_PATH_ARRIVAL,   /* a reduction in the order in which ranks come */
    BNY_PATH_DESK,      /* no call's: who hands out the places of such a one */
    BNY_PATH_WRITEBACK, /* longer operations in shared memory, without messages */
    BNY_PATH_LINES,     /* a short operation in shared memory, without messages */
    BNY_PATH_HOSTS,     /* a sum of several hosts, that of each in shared memory */
    BNY_PATH_COUNT
};

/* Of a one-shot: the longest that one copy for all serves. */
#define BNY_BOARD_BYTES (32u << 10)

/* Of a write-back allreduce: longest element that must stay whole. */
#define BNY_WRITEBACK_ELEM_MAX  4096u
#define BNY_WRITEBACK_RANKS_MAX 64

/* Of a short operation in lines: the most that a rank shows; of more than two ranks, with which
 * longer ones were not measured. */
#define BNY_LINES_BYTES      16384u
#define BNY_LINES_MANY_BYTES 4096u

/* A part for one rank, where ranks have several. Longer ones begin in a line of their own. */
static inline size_t bny_lines_part(size_t bytes)
{
    size_t unit = bytes < 64 ? 8 : 64;

    return (bytes + unit - 1) & ~(unit - 1);
}

/* What a rank of n shows, at most, of a collective whose count is `bytes`. */
static inline size_t bny_lines_bytes(enum bny_collective collective, int n, size_t bytes)
{
    switch (collective) {
    case BNY_BARRIER: return 0;
    case BNY_ALLTOALL:
    case BNY_SCATTER:
    case BNY_REDUCE_SCATTER: return (size_t)n * bny_lines_part(bytes);
    default: return bytes;
    }
}

/* Of a sum of several hosts: elements of each rank's part, which it sums with its equals on
 * other hosts. The parts leave a few elements at the end. */
static inline size_t bny_hosts_part(const struct bny_scope *s, const struct bny_call *call)
{
    size_t quantum = bny_redop_quantum(&call->redop),
           units = call->count / quantum / (size_t)s->near;

    return (units >= 1024 ? units & ~(size_t)63 : units) * quantum;
}

/* Of such a part: the schedule between equals, not a user's name. */
#define BNY_RAILS "rails:"
void bny_hosts_rails(const struct bny_scope *s, const struct bny_call *call, char *schedule);

/* Of an arrival reduction: the set of its contributors fits the shortest eager message. */
#define BNY_ARRIVAL_RANKS_MAX 32768

struct bny_kept_program;

struct bny_plan {
    enum bny_path path;
    const struct bny_program *program; /* NULL: the path has none */
    struct bny_kept_program *kept;     /* that holds it */
    const struct bny_codec *codec;     /* NULL: none, or refused as predicted to lose: */
    double refused_s;                  /* its prediction; 0 */
    size_t chunk_bytes;
    double predicted_s;
    double late_s; /* > 0: a sum that is run in order of arrival while ranks are late by so
                    * much (arrival/lateness.h); the rest of the plan is what is run else */
    size_t arrival_chunk; /* of that one, in bytes */
    double together_s;    /* in order of arrival: so long slots wait for all ranks to come */
    double pace_s;        /* > 0: a step's chunks are sent evenly over so many seconds */
    double ready_s;       /* > 0: sends wait so long for READY of all who are to say so */
    uint8_t raw_in_host;  /* a lossy codec: between ranks of one host nothing is encoded */
    uint8_t hash;         /* of what ranks must agree on */
    char schedule[BNY_NAME_MAX];
};

/* Chooses the plan for a call into *out; cached. The caller gives it back by bny_plan_drop().
 * Returns 0, -BANYAN_EINVAL (unknown schedule), -BANYAN_ENOTSUP (a schedule or codec asked for
 * that cannot do this), -BANYAN_ENOMEM. */
int bny_plan_get(struct bny_scope *s, const struct bny_call *call, struct bny_plan *out);
/* Takes a plan of zeros. */
void bny_plan_drop(struct bny_plan *plan);
/* All that the scope keeps. Plans that are still held stay valid. */
void bny_plans_free(struct bny_scope *s);

/* "auto": the cheapest, by who is late perhaps; "static": the cheapest for ranks that are
 * there; or a name of banyan_schedule_name(). */
int bny_schedule_known(const char *name);
int bny_schedule_is_auto(const char *name); /* it names none: "", "auto" or "static" */
const char *bny_schedule_list(void);        /* "auto, static, ring, ..." for messages */

#endif
