/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by topology.c (graphs, files, hosts, forests) and topology_cost.c (the costs of
 * forests). */
#ifndef BNY_COLLECTIVES_TOPOLOGY_MADE_H
#define BNY_COLLECTIVES_TOPOLOGY_MADE_H

#include "collectives/program/msccl.h"
#include "collectives/plan/topology.h"
#include "topo/bound.h"
#include "topo/plan_file.h"

#define BNY_DIRECTS_MAX 8
/* Up to so many ranks auto builds every kind of forest: seconds at most, once. */
#define BNY_AUTO_RANKS_MAX 256
/* Vectors of up to 2 to the power of so many bytes, less one, may be simulated. */
#define BNY_SIMULATED_MAX 41

struct bny_made { /* a forest of the communicator's ranks */
    struct bny_made *next;
    char schedule[BNY_NAME_MAX];
    enum bny_forest_use use;
    int root;
    int rc;                    /* 0, or why there is none */
    struct bny_forest *forest; /* NULL with rc 0: not kept, of many ranks */
    int shared;                /* the forest is lent by others of the process (shared.h) */
    int height;                /* time steps a phase */
    struct bny_topology_cost cost;
    /* The simulator's times of 2^k bytes, for auto's choice; 0: not asked yet, -1: none.
     */
    double simulated[BNY_SIMULATED_MAX];
};

struct bny_direct_cost { /* of an allreduce that is no forest, round by round */
    const struct bny_direct_ops *ops;
    int rc, rounds;
    double per_byte;
};

struct bny_topology {
    struct bny_graph *graph;    /* NULL: not given */
    struct bny_plan_file plan;  /* forest NULL: none */
    struct bny_program_set set; /* p NULL: none */
    char *file;                 /* name of the schedule's file, or NULL */
    uint64_t file_hash;
    int nranks, nhosts;
    int *host_of;     /* [nranks] */
    int *local;       /* [nranks] ranks host by host */
    int *local_first; /* [nhosts + 1] */
    int grouped;      /* graph or plan are of hosts that have several ranks */
    struct bny_made *made;
    /* What others of the process have made (shared.h), and that of all ranks, of which these
     * are some; NULL: none. */
    struct bny_share *share, *job_share;
    struct bny_direct_cost directs[BNY_DIRECTS_MAX];
    struct bny_topology
        *subsets; /* of communicators of some ranks, or in another order, made when one asks */
    struct bny_topology *next; /* among these */
    int *members;              /* [nranks] of a subset: ranks of the world */
};

/* The topology of this communicator's ranks; NULL: nothing is known of them. */
struct bny_topology *bny_topology_of(const struct bny_scope *s);
/* The cached forest, or a new one. 0, or why there is none. root: where the collective's
 * forests have one. */
int bny_topology_make(struct bny_made **out, const struct bny_scope *s, const char *schedule,
                      enum bny_collective coll, int root);
/* The cost of forest f on graph g; routes it. */
int bny_topology_set_cost(struct bny_topology_cost *k, struct bny_forest *f,
                          const struct bny_graph *g, enum bny_forest_use use);

#endif
