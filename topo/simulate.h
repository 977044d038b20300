/* SPDX-License-Identifier: BSD-3-Clause */
/* Predicts what a forest takes on a graph: event by event, or in closed form for the selector.
 *
 * The model (schedules.md 7 of the design). A transfer is what one rank sends another in one
 * step; transfers are cut into chunks. Links are directed and have a capacity and a latency;
 * switches and the routers of ranks pass a chunk on while it arrives (cut-through, unbounded
 * buffers), the ranks at both ends store it whole. A chunk costs alpha once, before its first
 * link. Ports of ranks are links of their own where port_cap says so. Adding takes gamma a byte
 * of one resource a rank. Where messages cost their ranks time (send_s, recv_s,
 * copy_s_per_byte) each rank has one processor for that, which takes what comes first. A rank
 * sends a chunk on when all that it is made of has arrived and was added; in lock-step no
 * transfer of a step starts before all of the step before are done. Same input, same result. */
#ifndef BNY_TOPO_SIMULATE_H
#define BNY_TOPO_SIMULATE_H

#include <stdint.h>

#include "topo/forest.h"
#include "topo/graph.h"
#include "topo/route.h"

enum bny_sim_order {
    BNY_SIM_FIFO,     /* links serve chunks as they come */
    BNY_SIM_PRIORITY, /* the oldest chunk first, of equal ones the earliest step */
    BNY_SIM_FAIR      /* all at once, max-min fair rates; O(chunks x links) an event */
};

/* Messages over sockets at their best, as they are in banyan_sim: until the receiver looks; the
 * work of both, who take several at a time where they are busy; what they copy. */
#define BNY_SIM_TCP_ALPHA_S         4.5e-6
#define BNY_SIM_TCP_SEND_S          0.5e-6
#define BNY_SIM_TCP_RECV_S          0.4e-6
#define BNY_SIM_TCP_COPY_S_PER_BYTE 0.1e-9

struct bny_sim_opts {
    double bytes;           /* S, the whole vector */
    double alpha_s;         /* a message, before its first link; sends of a rank overlap */
    double overhead_s;      /* a message, during which its sender starts no other */
    double send_s, recv_s;  /* a message, of the one processor of its sender, its receiver */
    double copy_s_per_byte; /* of both processors; with these three a rank does one at a time */
    double hop_s;           /* a link, beside its own latency */
    double gamma_s_per_byte; /* adding */
    double header;   /* bytes on the wire / bytes of data; 0: 1. 17/16: MultiTree's packets */
    double burst_s;  /* shaped links: one that was idle may send at once what it carries in so
                        long */
    double port_cap; /* of injection and ejection of a rank, in the graph's units; 0: none */
    int no_link_latency; /* 1: leaves the links' own latencies out */
    int chunks;          /* that each tree's data are cut into; 0: 1 */
    int slots; /* chunks on the way in a channel (from, to, transfer.channel) at most; 0: no
                * limit. A slot is free again when its chunk was added or stored */
    int lockstep;
    int separate;  /* 1: trees do not share messages where they go the same way in the same step
                    */
    double joined; /* bytes of such a message at most: a longer one is sent on in so long parts;
                      0: no limit */
    int spans;     /* 1: the result says when each transfer was under way */
    enum bny_sim_order order;
    enum bny_routing routing;
    uint64_t seed; /* ECMP */
};

struct bny_sim_result {
    double seconds;
    double bound_s;     /* by the forest's certificate; 0: it has none */
    double *busy_s;     /* [nlinks] time in which each link was used; bny_sim_result_free */
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
    double lockstep_s; /* steps one after the other: alpha, the longest way's latency, the worst
                          load */
    double steady_s;   /* the worst load of all steps together: perfect pipelining */
    double fill_s;     /* the first byte's way through the longest chain of messages */
};

enum bny_sim_phase { BNY_SIM_REDUCE = 1, BNY_SIM_SPREAD = 2 }; /* both: allreduce */

/* Simulates the phases of a forest. Edges without routes are routed by opts.routing, and all
 * are unless it is BNY_ROUTE_PLAN. 0, -BANYAN_ENOMEM, -BANYAN_EINVAL (the forest is for another
 * number of ranks, an option is wrong; a stall, which names its step). */
int bny_sim_forest(struct bny_sim_result *out, const struct bny_graph *g,
                   const struct bny_forest *f, unsigned phases,
                   const struct bny_sim_opts *opts);
int bny_sim_forest_closed(struct bny_sim_closed *out, const struct bny_graph *g,
                          const struct bny_forest *f, unsigned phases,
                          const struct bny_sim_opts *opts);

/* ---- jobs: what is no forest --------------------------------------------------------------
 */

struct bny_transfer {
    int from, to; /* the same: no message, only waits and is waited for */
    uint32_t step;
    int adds;    /* 1: the receiver adds it */
    int channel; /* transfers of different channels do not take each other's slots:
                  * tree.pipeline % 4
                  */
    double bytes;
    const struct bny_route *route; /* borrowed; NULL: by opts.routing */
    /* from == to: work of so many seconds. processor: 0: of none, only time passes; k: of the
     * job's k-th, which does one thing at a time, in the order in which they may begin */
    double work_s;
    int processor;
    int is_last; /* 1: begins when nothing else may that is not last */
};

struct bny_sim_job {
    int nranks, nprocessors; /* processors: what work names; not by BNY_SIM_FAIR or closed */
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
/* Fills an initialised job. 0 or -BANYAN_EINVAL, -BANYAN_ENOMEM. f is borrowed by the job. */
int bny_sim_job_forest(struct bny_sim_job *job, const struct bny_forest *f, unsigned phases,
                       const struct bny_sim_opts *opts);
int bny_sim_run(struct bny_sim_result *out, const struct bny_graph *g,
                const struct bny_sim_job *job, const struct bny_sim_opts *opts);
int bny_sim_run_closed(struct bny_sim_closed *out, const struct bny_graph *g,
                       const struct bny_sim_job *job, const struct bny_sim_opts *opts);

#endif
