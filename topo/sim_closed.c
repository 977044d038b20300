/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulator's closed forms: loads of links, step by step and in total. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/sim_net.h"

struct sums {
    double *step, *all; /* [nlinks] seconds of work */
    int *touched, ntouched;
    double *fill; /* [transfers] arrival time of the first byte */
};

static double way_s(const struct bny_sim_net *net, const struct bny_sim_part *p)
{
    double sum = 0;

    for (int h = 0; h < p->nlinks; h++)
        sum += net->latency_s[p->links[h]];
    return sum;
}

/* Adds a transfer's load; returns its latency. */
static double sim_closed_load(const struct bny_sim_net *net, struct sums *s, uint32_t id)
{
    double bytes = net->job->transfers[id].bytes, longest = 0;

    for (uint32_t i = net->first_part[id]; i < net->first_part[id + 1]; i++) {
        const struct bny_sim_part *p = &net->parts[i];
        double way = way_s(net, p);

        longest = way > longest ? way : longest;
        for (int h = 0; bytes > 0 && h < bny_sim_hops(net, p); h++) {
            int l = bny_sim_link(net, p, h);

            if (s->step[l] == 0)
                s->touched[s->ntouched++] = l;
            s->step[l] += bytes * p->share * net->s_per_byte[l];
        }
    }
    return longest;
}

/* Dependencies lead from earlier steps to later ones, except through sums at roots, which are
 * processed after their step. */
static void fill_on(const struct bny_sim_net *net, struct sums *s, uint32_t id, double at)
{
    s->fill[id] = at;
    for (uint32_t i = net->first_next[id]; i < net->first_next[id + 1]; i++)
        if (s->fill[net->next[i]] < at)
            s->fill[net->next[i]] = at;
}

static void add_step(const struct bny_sim_net *net, struct sums *s, uint32_t step,
                     struct bny_sim_closed *out)
{
    double longest = 0, worst = 0;
    int messages = 0;

    for (int sums = 0; sums < 2; sums++)
        for (uint32_t i = net->first_of_step[step]; i < net->first_of_step[step + 1]; i++) {
            uint32_t id = net->by_step[i];
            const struct bny_transfer *t = &net->job->transfers[id];
            double latency, cost;

            if ((t->from == t->to) != sums)
                continue;
            messages |= !sums;
            latency = sim_closed_load(net, s, id);
            longest = latency > longest ? latency : longest;
            cost = s->fill[id] + (sums ? 0 : net->opts->alpha_s + latency);
            fill_on(net, s, id, cost);
            out->fill_s = cost > out->fill_s ? cost : out->fill_s;
        }
    for (int i = 0; i < s->ntouched; i++) {
        int l = s->touched[i];

        worst = s->step[l] > worst ? s->step[l] : worst;
        s->all[l] += s->step[l];
        out->steady_s = s->all[l] > out->steady_s ? s->all[l] : out->steady_s;
        s->step[l] = 0;
    }
    s->ntouched = 0;
    if (messages)
        out->lockstep_s += net->opts->alpha_s + longest + worst;
}

int bny_sim_run_closed(struct bny_sim_closed *out, const struct bny_graph *g,
                       const struct bny_sim_job *job, const struct bny_sim_opts *opts)
{
    struct bny_sim_net net;
    struct sums s = { 0 };
    int e = bny_sim_net_make(&net, g, job, opts);

    memset(out, 0, sizeof *out);
    if (!e && job->nprocessors)
        e = bny_fail(BANYAN_EINVAL, "the closed form knows no processors");
    if (!e) {
        size_t n = (size_t)net.nlinks + 1;

        s.step = calloc(n, sizeof *s.step);
        s.all = calloc(n, sizeof *s.all);
        s.touched = malloc(n * sizeof *s.touched);
        s.fill = calloc((size_t)job->n + 1, sizeof *s.fill);
        if (!s.step || !s.all || !s.touched || !s.fill)
            e = bny_fail(BANYAN_ENOMEM, "no memory to simulate %u transfers", job->n);
    }
    for (uint32_t step = 0; !e && step < net.nsteps; step++)
        add_step(&net, &s, step, out);
    free(s.step);
    free(s.all);
    free(s.touched);
    free(s.fill);
    bny_sim_net_free(&net);
    return e;
}
