/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of the simulator's modes: links and ports with their speeds, the paths of
 * transfers, their dependencies. */
#ifndef BNY_TOPO_SIM_NET_H
#define BNY_TOPO_SIM_NET_H

#include "topo/simulate.h"

struct bny_sim_part { /* a share of a transfer on one path */
    uint32_t transfer;
    int nlinks;
    const int *links; /* the graph's, without ports */
    double share;
};

struct bny_sim_net {
    const struct bny_graph *g;
    const struct bny_sim_job *job;
    const struct bny_sim_opts *opts;
    int nlinks,
        chunks; /* links with ports: injection of rank r is g->nlinks + r, ejection n beyond */
    double *s_per_byte; /* [nlinks] with the header's share */
    double *latency_s;  /* [nlinks] */
    uint32_t nparts;
    struct bny_sim_part *parts;
    uint32_t *first_part;        /* [transfers + 1] */
    uint32_t *first_next, *next; /* [transfers + 1]: transfers that wait for this one */
    uint32_t *waits;             /* [transfers] number that it waits for */
    uint32_t nsteps, *first_of_step, *by_step; /* transfers of each step */
    int *pool;                                 /* links of paths from the router */
    size_t npool, pool_cap;
};
/* Returns 0, -BANYAN_ENOMEM, -BANYAN_EINVAL. Call bny_sim_net_free in any case. */
int bny_sim_net_make(struct bny_sim_net *net, const struct bny_graph *g,
                     const struct bny_sim_job *job, const struct bny_sim_opts *opts);
void bny_sim_net_free(struct bny_sim_net *net);

static inline int bny_sim_hops(const struct bny_sim_net *net, const struct bny_sim_part *p)
{
    return p->nlinks + (net->opts->port_cap > 0 ? 2 : 0);
}

static inline int bny_sim_link(const struct bny_sim_net *net, const struct bny_sim_part *p,
                               int hop)
{
    const struct bny_transfer *t = &net->job->transfers[p->transfer];

    if (net->opts->port_cap <= 0)
        return p->links[hop];
    if (hop == 0)
        return net->g->nlinks + t->from;
    return hop <= p->nlinks ? p->links[hop - 1] : net->g->nlinks + net->g->nranks + t->to;
}

/* Max-min fair sharing (sim_fair.c), with the contract of bny_sim_run. */
int bny_sim_run_fair(struct bny_sim_result *out, const struct bny_sim_net *net);

#endif
