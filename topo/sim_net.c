/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulator's network and the index of its transfers (sim_net.h). */
#include "topo/sim_net.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void bny_sim_net_free(struct bny_sim_net *net)
{
    free(net->s_per_byte);
    free(net->latency_s);
    free(net->parts);
    free(net->first_part);
    free(net->first_next);
    free(net->next);
    free(net->waits);
    free(net->first_of_step);
    free(net->by_step);
    free(net->pool);
    memset(net, 0, sizeof *net);
}

static int make_links(struct bny_sim_net *net)
{
    const struct bny_graph *g = net->g;
    const struct bny_sim_opts *o = net->opts;
    double header = o->header > 0 ? o->header : 1;

    net->nlinks = g->nlinks + (o->port_cap > 0 ? 2 * g->nranks : 0);
    net->s_per_byte = malloc(((size_t)net->nlinks + 1) * sizeof *net->s_per_byte);
    net->latency_s = malloc(((size_t)net->nlinks + 1) * sizeof *net->latency_s);
    if (!net->s_per_byte || !net->latency_s)
        return -BANYAN_ENOMEM;
    for (int l = 0; l < net->nlinks; l++) {
        int port = l >= g->nlinks;
        double cap = port ? o->port_cap : (double)g->links[l].cap;

        net->s_per_byte[l] = header / (cap * g->unit_Bps);
        net->latency_s[l] =
            port ? 0 : o->hop_s + (o->no_link_latency ? 0 : 1e-9 * (double)g->links[l].lat_ns);
    }
    return 0;
}

static int pool_add(struct bny_sim_net *net, const int *links, int n)
{
    if (net->npool + (size_t)n > net->pool_cap) {
        size_t cap = 2 * net->pool_cap + (size_t)n + 1024;
        int *more = reallocarray(net->pool, cap, sizeof *more);

        if (!more)
            return -BANYAN_ENOMEM;
        net->pool = more;
        net->pool_cap = cap;
    }
    memcpy(net->pool + net->npool, links, (size_t)n * sizeof *links);
    net->npool += (size_t)n;
    return 0;
}

static struct bny_sim_part *part_add(struct bny_sim_net *net, uint32_t *cap)
{
    if (net->nparts == *cap) {
        uint32_t want = *cap ? *cap + *cap / 2 : net->job->n + 16;
        struct bny_sim_part *more = reallocarray(net->parts, want, sizeof *more);

        if (!more)
            return NULL;
        net->parts = more;
        *cap = want;
    }
    return &net->parts[net->nparts++];
}

/* Parts get pointers into the pool only when it no longer moves: until then `nlinks` is known
 * and positions follow from the order. */
static int make_parts(struct bny_sim_net *net, struct bny_router *router)
{
    const struct bny_sim_job *job = net->job;
    struct bny_ways ways = { 0 };
    uint32_t cap = 0;
    int e = 0;
    size_t at = 0;

    for (uint32_t i = 0; i < job->n && !e; i++) {
        const struct bny_transfer *t = &job->transfers[i];

        net->first_part[i] = net->nparts;
        if (t->from == t->to)
            continue;
        ways.nparts = 1;
        if (!t->route)
            e = bny_router_ways(router, t->from, t->to, &ways);
        for (int k = 0; k < ways.nparts && !e; k++) {
            struct bny_sim_part *p = part_add(net, &cap);
            int n = t->route ? t->route->nlinks : ways.first[k + 1] - ways.first[k];

            if (!p)
                e = -BANYAN_ENOMEM;
            else
                *p = (struct bny_sim_part){ i, n, t->route ? t->route->links : NULL,
                                            t->route ? 1 : ways.share[k] };
            if (!e && !t->route)
                e = pool_add(net, ways.links + ways.first[k], n);
        }
    }
    net->first_part[job->n] = net->nparts;
    for (uint32_t i = 0; i < net->nparts && !e; i++) {
        if (net->parts[i].links)
            continue;
        net->parts[i].links = net->pool + at;
        at += (size_t)net->parts[i].nlinks;
    }
    free(ways.links);
    return e;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

/* Counting sorts: waiting transfers, and transfers by step. Transfers that become ready at once
 * begin in their order, which for a forest is that of its steps: ranks do the same, and if all
 * roots sent to rank 0 first, all would wait for its port. */
static int make_indexes(struct bny_sim_net *net)
{
    const struct bny_sim_job *job = net->job;

    for (uint32_t i = 0; i < job->n; i++)
        if (job->transfers[i].step >= net->nsteps)
            net->nsteps = job->transfers[i].step + 1;
    net->first_next = calloc((size_t)job->n + 2, sizeof *net->first_next);
    net->next = malloc(((size_t)job->ndeps + 1) * sizeof *net->next);
    net->waits = calloc((size_t)job->n + 1, sizeof *net->waits);
    net->first_of_step = calloc((size_t)net->nsteps + 2, sizeof *net->first_of_step);
    net->by_step = malloc(((size_t)job->n + 1) * sizeof *net->by_step);
    if (!net->first_next || !net->next || !net->waits || !net->first_of_step || !net->by_step)
        return -BANYAN_ENOMEM;
    for (uint32_t d = 0; d < job->ndeps; d++) {
        net->first_next[job->deps[d][1] + 2]++;
        net->waits[job->deps[d][0]]++;
    }
    for (uint32_t i = 0; i < job->n; i++)
        net->first_next[i + 1] += net->first_next[i];
    for (uint32_t d = 0; d < job->ndeps; d++)
        net->next[net->first_next[job->deps[d][1] + 1]++] = job->deps[d][0];
    for (uint32_t i = 0; i < job->n; i++) {
        uint32_t n = net->first_next[i + 1] - net->first_next[i];

        if (n > 1)
            qsort(net->next + net->first_next[i], n, sizeof *net->next, by_number);
    }
    for (uint32_t i = 0; i < job->n; i++)
        net->first_of_step[job->transfers[i].step + 2]++;
    for (uint32_t s = 0; s < net->nsteps; s++)
        net->first_of_step[s + 1] += net->first_of_step[s];
    for (uint32_t i = 0; i < job->n; i++)
        net->by_step[net->first_of_step[job->transfers[i].step + 1]++] = i;
    return 0;
}

static int sim_net_check(const struct bny_graph *g, const struct bny_sim_job *job,
                         const struct bny_sim_opts *o)
{
    if (job->nranks != g->nranks)
        return bny_fail(BANYAN_EINVAL, "the job is for %d ranks, graph %s has %d", job->nranks,
                        g->name, g->nranks);
    if (job->failed)
        return bny_fail(BANYAN_ENOMEM, "no memory for the transfers of a simulation");
    if (!(o->bytes >= 0) || !(o->alpha_s >= 0) || !(o->gamma_s_per_byte >= 0) ||
        !(o->hop_s >= 0) || !(o->overhead_s >= 0) || !(o->burst_s >= 0) || !(o->send_s >= 0) ||
        !(o->recv_s >= 0) || !(o->copy_s_per_byte >= 0) || !(o->joined >= 0) || o->chunks < 0 ||
        o->slots < 0)
        return bny_fail(BANYAN_EINVAL, "a simulation needs bytes, costs, chunks and slots of 0 "
                                       "or more");
    return 0;
}

static int check_work(const struct bny_sim_job *job, const struct bny_sim_opts *o)
{
    for (uint32_t i = 0; i < job->n; i++) {
        const struct bny_transfer *t = &job->transfers[i];

        if (!(t->work_s >= 0) || t->processor < 0 || t->processor > job->nprocessors)
            return bny_fail(BANYAN_EINVAL,
                            "transfer %u: work of %g s by processor %d; 0 or more, and 0 to %d "
                            "processors",
                            i, t->work_s, t->processor, job->nprocessors);
        if (o->order == BNY_SIM_FAIR && (t->work_s > 0 || t->processor))
            return bny_fail(BANYAN_EINVAL, "fair rates are simulated without work");
    }
    return 0;
}

int bny_sim_net_make(struct bny_sim_net *net, const struct bny_graph *g,
                     const struct bny_sim_job *job, const struct bny_sim_opts *opts)
{
    struct bny_router *router;
    int e = sim_net_check(g, job, opts);

    *net = (struct bny_sim_net){ .g = g, .job = job, .opts = opts };
    if (!e)
        e = check_work(job, opts);
    if (e)
        return e;
    net->chunks = opts->chunks > 0 ? opts->chunks : 1;
    router = bny_router_create(g, opts->routing, opts->seed);
    net->first_part = malloc(((size_t)job->n + 1) * sizeof *net->first_part);
    e = router && net->first_part ? make_links(net) : -BANYAN_ENOMEM;
    if (!e)
        e = make_indexes(net);
    if (!e)
        e = make_parts(net, router);
    bny_router_destroy(router);
    if (e == -BANYAN_ENOMEM)
        bny_fail(BANYAN_ENOMEM, "no memory to simulate %u transfers", job->n);
    return e;
}
