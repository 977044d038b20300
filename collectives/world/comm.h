/* SPDX-License-Identifier: BSD-3-Clause */
/* A communicator: some ranks of a world, their numbers, and what is in flight between them. */
#ifndef BNY_COLLECTIVES_COMM_H
#define BNY_COLLECTIVES_COMM_H

#include "base/handle.h"
#include "base/ring.h"
#include "collectives/world/world.h"

struct bny_op;
struct bny_match;
struct bny_way;
struct bny_areas;
/* Memory that ranks share: all of a communicator; or those of each host, the first and the last
 * part of their sums. */
enum bny_area { BNY_AREA_ALL, BNY_AREA_HOST_FIRST, BNY_AREA_HOST_LAST, BNY_AREAS };

struct bny_peer {
    struct bny_ep *ep; /* NULL for this rank */
    int world_rank;
};

/* A service gets a communicator's messages instead of operations; it may outlive the
 * communicator's failure. All with the world's lock held. */
struct bny_service_ops {
    void (*message)(struct banyan_comm *c, int from, struct bny_msg *msg); /* takes msg */
    int (*advance)(struct banyan_comm *c); /* where the world has work; 1: something moved */
    void (*tick)(struct banyan_comm *c, uint64_t now);
};
struct bny_service { /* embedded in what it serves */
    const struct bny_service_ops *ops;
};

/* Of the sums that schedule auto may run in order of arrival, counted as they begin:
 * arrival/lateness.h. The same at all ranks, but for was_late. */
struct bny_lateness {       /* arrival/lateness.h */
    uint32_t begun, known;  /* sums that began; of these, the first `known` are settled */
    uint64_t settled, late; /* of sum k, bit k % 64 */
    uint8_t was_late;       /* a rank was late for the latest sum that this rank coordinated */
};

struct banyan_comm {
    struct bny_handle handle;
    struct bny_world *world;
    uint32_t id;
    int rank, n;
    struct bny_peer *peers;                    /* [n] */
    struct bny_rank_map ranks;                 /* of the world, to this communicator's */
    struct bny_scope scope;                    /* what plans rest on */
    struct bny_match *match;                   /* the operation of a message */
    struct bny_op *active_first, *active_last; /* started, not complete; in order of start */
    struct bny_link runnable;                  /* of these, something happened to */
    struct bny_op *pool;                       /* idle operations of blocking calls */
    double op_timeout_s;                       /* this rank's own */
    void (*progress_hook)(void *);
    void *progress_hook_ctx;
    _Atomic uint32_t hook_turns; /* yields in waits, about; some of them call the hook */
    /* failure: code is set last, release */
    atomic_int failed; /* negative code, 0 while healthy */
    int blamed;
    char failure_text[320];
    atomic_int is_failure_told; /* to the program, by a call of this communicator */
    atomic_int told; /* how many failures of the world were logged when a call last told one */
    const char *unused[8]; /* names of codecs and schedules: a warning said that a call ran
                            * without */
    struct bny_init *init; /* while not joined yet: api/join.c */
    atomic_uint_fast64_t ops_done;
    struct banyan_comm *next_comm;
    int finalized;
    struct bny_areas *areas[BNY_AREAS]; /* area/; NULL: none yet */
    uint8_t had_coordinator;            /* arrival/: words of others may come when it is gone */
    struct bny_lateness lateness;
    struct bny_weighing *weighings;                   /* sequence/weighing.h */
    atomic_uint_fast64_t sums_asked, sums_by_arrival; /* for statistics */
    uint32_t agree_calls;                             /* api/survive.c: on all members alike */
    uint32_t splits;                 /* calls of banyan_comm_split; on all members alike */
    uint32_t parent_id, parent_call; /* that made it; 0: none of these */
    int any_sources;                 /* op/: receives from any rank that have found none yet */
    int any_latest;                  /* op/: the rank that the latest of them was from */
    int begin_failed; /* op/: of an operation that has its number, and is reported */
    int was_missed;   /* a member did not come to one of these in time; alike, too */
    struct bny_grow_id *grow_ids; /* api/grow.c: that this rank made and nobody used yet */
    struct bny_groups *groups;    /* api/create_group.c */
    struct bny_position position; /* for the control plane */
    struct bny_records *records;  /* op/recorder.h; NULL: none yet */
    struct bny_service *service;  /* objects/; NULL: operations */
};

static inline int bny_comm_has_failed(const struct banyan_comm *comm)
{
    return atomic_load_explicit(&comm->failed, memory_order_relaxed);
}

/* The communicator's failure as this thread's error; 0 when healthy. Any thread. */
int bny_comm_error(struct banyan_comm *comm);
/* The program knows from this call on what has failed up to now. Any thread. */
void bny_comm_note_told(struct banyan_comm *comm);

#endif
