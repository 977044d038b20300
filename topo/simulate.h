/* SPDX-License-Identifier: BSD-3-Clause */
/* Predicts the time of a forest on a graph: event by event, or in closed form for the selector.
 *
 * The model. A transfer is the data from one rank to another in
 * one step; transfers are cut into chunks. Links are directed and have a capacity and a
 * latency; switches and the routers of ranks forward a chunk while it arrives (cut-through,
 * unbounded buffers), the ranks at both ends store it whole. A chunk costs alpha once, before
 * its first link. With port_cap the ports of ranks are links of their own. Adding takes gamma
 * per byte of one resource per rank. If messages cost their ranks time (send_s, recv_s,
 * copy_s_per_byte) each rank has one processor for that, in order of arrival. A rank sends a
 * chunk on when all of its inputs have arrived and were added; in lock-step no transfer of a
 * step starts before all of the step before are done. Same input, same result. */
#ifndef BNY_TOPO_SIMULATE_H
#define BNY_TOPO_SIMULATE_H

#include <stdint.h>

#include "topo/forest.h"
#include "topo/graph.h"
#include "topo/route.h"

enum bny_sim_order {
    BNY_SIM_FIFO,     /* links serve chunks in order of arrival */
    BNY_SIM_PRIORITY, /* the oldest chunk first, of equal ones the earliest step */
    BNY_SIM_FAIR      /* all at once, max-min fair rates; O(chunks x links) per event */
};

/* Socket messages at their best, as in banyan_sim: time until the receiver polls; work of both
 * ends, which batch several if busy; cost of their copies. */
#define BNY_SIM_TCP_ALPHA_S         4.5e-6
#define BNY_SIM_TCP_SEND_S          0.5e-6
#define BNY_SIM_TCP_RECV_S          0.4e-6
#define BNY_SIM_TCP_COPY_S_PER_BYTE 0.1e-9

struct bny_sim_opts {
    double bytes;           /* S, the whole vector */
    double alpha_s;         /* per message, before its first link; sends of a rank overlap */
    double overhead_s;      /* per message, during which its sender starts no other */
    double send_s, recv_s;  /* per message, on the processor of its sender, its receiver */
    double copy_s_per_byte; /* on both processors; with these three a rank does one at a time */
    double hop_s;           /* per link, besides its own latency */
    double gamma_s_per_byte; /* adding */
    double header;   /* bytes on the wire / bytes of data; 0: 1. 17/16: MultiTree's packets */
    double burst_s;  /* shaped links: an idle one may then send at once what it carries in this
                        time */
    double *free_s;  /* [graph's links] when each is free, below 0: so long idle before; and
                        after the run, when each was. NULL: idle for burst_s and more */
    double port_cap; /* of injection and ejection of a rank, in the graph's units; 0: none */
    int no_link_latency; /* 1: ignores the links' own latencies */
    int chunks;          /* number of chunks of each tree's data; 0: 1 */
    int slots; /* most chunks in transit in a channel (from, to, transfer.channel); 0: no limit.
                  A slot is free again when its chunk was added or stored */
    int lockstep;
    int separate;  /* 1: trees with the same path in the same step do not share messages */
    double joined; /* largest such message in bytes: longer ones are forwarded in parts of this
                      size; 0: no limit */
    int spans;     /* 1: the result has the time span of each transfer */
    enum bny_sim_order order;
    enum bny_routing routing;
    uint64_t seed; /* ECMP */
};

struct bny_sim_result {
    double seconds;
    double bound_s;     /* from the forest's certificate; 0: none */
    double *busy_s;     /* [nlinks] busy time of each link; bny_sim_result_free */
    double utilisation; /* of the busiest link */
    int max_queue;      /* chunks waiting at one link; 0 for FAIR */
    uint64_t messages, events;
    struct bny_sim_span {
        double began_s, ended_s;
    } * spans; /* [transfers] with opts.spans: first chunk sent or work begun; last chunk done
                */
};
void bny_sim_result_free(struct bny_sim_result *r); /* frees what it points at */

struct bny_sim_closed {
    double
        lockstep_s;  /* steps in sequence: alpha, the longest path's latency, the worst load */
    double steady_s; /* the worst load of all steps together: perfect pipelining */
    double fill_s;   /* the first byte's time through the longest chain of messages */
};

enum bny_sim_phase { BNY_SIM_REDUCE = 1, BNY_SIM_SPREAD = 2 }; /* both: allreduce */

/* Simulates the phases of a forest. opts.routing routes edges without routes, and all edges
 * unless it is BNY_ROUTE_PLAN. Returns 0, -BANYAN_ENOMEM, -BANYAN_EINVAL (the forest is for
 * another number of ranks, an invalid option; a stall, with its step). */
int bny_sim_forest(struct bny_sim_result *out, const struct bny_graph *g,
                   const struct bny_forest *f, unsigned phases,
                   const struct bny_sim_opts *opts);
int bny_sim_forest_closed(struct bny_sim_closed *out, const struct bny_graph *g,
                          const struct bny_forest *f, unsigned phases,
                          const struct bny_sim_opts *opts);

/* ---- jobs: transfers without a forest
 * ----------------------------------------------------- */

struct bny_transfer {
    int from, to; /* equal: no message, only dependencies */
    uint32_t step;
    int adds;    /* 1: the receiver adds it */
    int channel; /* channels do not share slots: tree.pipeline % 4 */
    double bytes;
    const struct bny_route *route; /* borrowed; NULL: by opts.routing */
    /* from == to: work of this many seconds. processor: 0: none, only time passes; k: the job's
     * k-th, which does one thing at a time, in the order in which they become ready */
    double work_s;
    int processor;
    int is_last; /* 1: begins only if nothing else is ready */
};

struct bny_sim_job {
    int nranks,
        nprocessors; /* processors: those that work uses; not with BNY_SIM_FAIR or closed */
    uint32_t n, cap;
    struct bny_transfer *transfers;
    uint32_t ndeps, deps_cap;
    uint32_t (*deps)[2]; /* (later, earlier) */
    int failed;          /* 1: out of memory; later calls do nothing, a run reports it */
};
void bny_sim_job_init(struct bny_sim_job *job, int nranks);
void bny_sim_job_free(struct bny_sim_job *job);
/* The transfer's number. */
uint32_t bny_sim_add(struct bny_sim_job *job, const struct bny_transfer *t);
void bny_sim_after(struct bny_sim_job *job, uint32_t later, uint32_t earlier);
/* Fills an initialised job. Returns 0 or -BANYAN_EINVAL, -BANYAN_ENOMEM. The job borrows f. */
int bny_sim_job_forest(struct bny_sim_job *job, const struct bny_forest *f, unsigned phases,
                       const struct bny_sim_opts *opts);
int bny_sim_run(struct bny_sim_result *out, const struct bny_graph *g,
                const struct bny_sim_job *job, const struct bny_sim_opts *opts);
int bny_sim_run_closed(struct bny_sim_closed *out, const struct bny_graph *g,
                       const struct bny_sim_job *job, const struct bny_sim_opts *opts);

#endif
