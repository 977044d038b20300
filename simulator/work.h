/* SPDX-License-Identifier: BSD-3-Clause */
/* The work of a simulated job's ranks: calls whose results are known. */
#ifndef BNY_SIM_WORK_H
#define BNY_SIM_WORK_H

#include "banyan/banyan.h"
#include "simulator/sim.h"

/* The library's functions, of one copy. In the order of SIM_API_NAMES. */
struct sim_api {
    int (*id_create)(struct banyan_id *);
    int (*comm_init)(struct banyan_comm **, const struct banyan_id *, int, int,
                     const struct banyan_config *);
    int (*comm_finalize)(struct banyan_comm *);
    int (*comm_destroy)(struct banyan_comm *);
    int (*comm_shrink)(struct banyan_comm *, struct banyan_comm **);
    int (*comm_agree)(struct banyan_comm *, uint64_t *, int *, int);
    int (*comm_grow_id)(struct banyan_comm *, struct banyan_id *);
    int (*comm_grow)(struct banyan_comm *, const struct banyan_id *, int,
                     const struct banyan_config *, struct banyan_comm **);
    int (*comm_join)(struct banyan_comm **, const struct banyan_id *,
                     const struct banyan_config *);
    int (*comm_count)(const struct banyan_comm *);
    int (*comm_rank)(const struct banyan_comm *);
    int (*comm_stats)(struct banyan_comm *, struct banyan_stats *);
    int (*async_error)(struct banyan_comm *, int *, char *, size_t);
    const char *(*last_error)(void);
    int (*allreduce)(const void *, void *, size_t, enum banyan_dtype, banyan_op,
                     struct banyan_comm *, const struct banyan_opts *);
    int (*reduce)(const void *, void *, size_t, enum banyan_dtype, banyan_op, int,
                  struct banyan_comm *, const struct banyan_opts *);
    int (*broadcast)(void *, size_t, enum banyan_dtype, int, struct banyan_comm *,
                     const struct banyan_opts *);
    int (*allgather)(const void *, void *, size_t, enum banyan_dtype, struct banyan_comm *,
                     const struct banyan_opts *);
    int (*alltoall)(const void *, void *, size_t, enum banyan_dtype, struct banyan_comm *,
                    const struct banyan_opts *);
    int (*barrier)(struct banyan_comm *, const struct banyan_opts *);
    int (*allgatherv)(const void *, void *, const size_t *, const size_t *, enum banyan_dtype,
                      struct banyan_comm *, const struct banyan_opts *);
    int (*alltoallv)(const void *, const size_t *, const size_t *, void *, const size_t *,
                     const size_t *, enum banyan_dtype, struct banyan_comm *,
                     const struct banyan_opts *);
};
#define SIM_API_NAMES                                                                          \
    "banyan_id_create", "banyan_comm_init", "banyan_comm_finalize", "banyan_comm_destroy",     \
        "banyan_comm_shrink", "banyan_comm_agree", "banyan_comm_grow_id", "banyan_comm_grow",  \
        "banyan_comm_join", "banyan_comm_count", "banyan_comm_rank", "banyan_comm_stats",      \
        "banyan_async_error", "banyan_last_error", "banyan_allreduce", "banyan_reduce",        \
        "banyan_broadcast", "banyan_allgather", "banyan_alltoall", "banyan_barrier",           \
        "banyan_allgatherv", "banyan_alltoallv"

struct sim_work {
    uint64_t seed;
    int ops;          /* random ones; 0: the one below, `repeats` times */
    const char *call; /* "allreduce" */
    size_t bytes;
    int repeats;
    const char *schedule; /* NULL: auto */
    const char *codec;    /* of reductions; NULL: none */
    int mix;              /* other codecs and schedules in each call, and v-variants */
    const char *topology; /* that the ranks are told; NULL: none */
    int survive;          /* after a failure those who are left go on */
    int newcomers;        /* the last so many ranks join a job that runs */
    double init_timeout_s, op_timeout_s;
    uint64_t think_ns;        /* between operations at most so long */
    uint64_t late_ns;         /* before the call of a rank at most so long, by chance */
    int late_rank;            /* this one alone is late, by all of it; -1: all are, by chance */
    int at_least;             /* of arrival reductions */
    int kill_rank;            /* dies in the last operation; -1: nobody */
    uint64_t kill_ns;         /* so long after the first rank has come to it */
    void (*all_are_in)(void); /* called when the last rank is through init; NULL: nothing is */
};
extern struct sim_work sim_work;

/* The call that all ranks make. */
void sim_work_config(const struct sim_rank *r, struct banyan_config *cfg);
/* A rank that was not there at the start tries to get in, by each id that members make; 1: it
 * is in, 0: nobody is left to join. */
int sim_work_join(struct sim_rank *r, struct banyan_comm **comm);
/* All operations of a rank; *comm becomes what is left of it. 0, or the first error; 1: a wrong
 * value, told in r->text. */
int sim_work_run(struct sim_rank *r, struct banyan_comm **comm);
/* Threads of all ranks, ready to run. 0 or -1. */
int sim_ranks_start(uint64_t seed, int per_host);

#endif
