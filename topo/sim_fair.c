/* SPDX-License-Identifier: BSD-3-Clause */
/* The simulator with max-min fair sharing of links: all chunks in transit move at once, each at
 * the rate of progressive filling (Bertsekas and Gallager, "Data Networks", section 6.5.2): the
 * link with the least capacity per flow fixes their rate, and so on with the rest. For small
 * cases: every event recomputes all rates. Slots and overhead are not modelled here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/sim_net.h"

enum flow_state { WAITING, STARTING, MOVING, LANDING, OVER };

struct flow {    /* a part of a chunk */
    double left; /* bytes */
    double rate;
    double at; /* STARTING, LANDING: end of that */
    enum flow_state state;
};

struct fair {
    const struct bny_sim_net *net;
    struct bny_sim_result *out;
    struct flow *flows;        /* [parts * chunks] */
    uint32_t *active, nactive; /* flows that neither wait nor are over */
    uint32_t *waits;           /* [transfers * chunks] */
    uint32_t *parts;           /* [transfers * chunks] not yet landed */
    uint64_t *step_left, done;
    uint32_t step;
    double *left, *busy, *adder_free; /* [nlinks] unassigned capacity, [nlinks], [nranks] */
    uint32_t *users;                  /* [nlinks] moving flows without a fixed rate yet */
    double now;
};

static const struct bny_sim_part *sim_fair_part_of(const struct fair *f, uint32_t flow)
{
    return &f->net->parts[flow / (uint32_t)f->net->chunks];
}

static void fair_done(struct fair *f, uint32_t id, uint32_t chunk);

static void fair_ready(struct fair *f, uint32_t id, uint32_t chunk)
{
    const struct bny_sim_net *net = f->net;
    const struct bny_transfer *t = &net->job->transfers[id];
    uint32_t k = (uint32_t)net->chunks;

    if (t->from == t->to) {
        fair_done(f, id, chunk);
        return;
    }
    f->out->messages++;
    f->parts[id * k + chunk] = net->first_part[id + 1] - net->first_part[id];
    for (uint32_t p = net->first_part[id]; p < net->first_part[id + 1]; p++) {
        struct flow *flow = &f->flows[p * k + chunk];

        flow->left = t->bytes * net->parts[p].share / k;
        flow->at = f->now + net->opts->alpha_s;
        flow->state = STARTING;
        f->active[f->nactive++] = p * k + chunk;
    }
}

static void fair_done(struct fair *f, uint32_t id, uint32_t chunk)
{
    const struct bny_sim_net *net = f->net;
    uint32_t k = (uint32_t)net->chunks;

    f->done++;
    f->step_left[net->job->transfers[id].step]--;
    for (uint32_t i = net->first_next[id]; i < net->first_next[id + 1]; i++) {
        uint32_t to = net->next[i];

        if (--f->waits[to * k + chunk] == 0 &&
            (!net->opts->lockstep || net->job->transfers[to].step <= f->step))
            fair_ready(f, to, chunk);
    }
}

static void fair_open(struct fair *f)
{
    const struct bny_sim_net *net = f->net;
    uint32_t k = (uint32_t)net->chunks;

    while (net->opts->lockstep && f->step + 1 < net->nsteps && f->step_left[f->step] == 0) {
        f->step++;
        for (uint32_t i = net->first_of_step[f->step]; i < net->first_of_step[f->step + 1]; i++)
            for (uint32_t c = 0; c < k; c++)
                if (f->waits[net->by_step[i] * k + c] == 0)
                    fair_ready(f, net->by_step[i], c);
    }
}

/* Assigns every moving flow its rate. */
static void share_links(struct fair *f)
{
    const struct bny_sim_net *net = f->net;
    uint32_t todo = 0;

    for (int l = 0; l < net->nlinks; l++) {
        f->left[l] = 1 / net->s_per_byte[l];
        f->users[l] = 0;
    }
    for (uint32_t i = 0; i < f->nactive; i++) {
        struct flow *flow = &f->flows[f->active[i]];
        const struct bny_sim_part *p = sim_fair_part_of(f, f->active[i]);

        flow->rate = 0;
        for (int h = 0; flow->state == MOVING && h < bny_sim_hops(net, p); h++)
            f->users[bny_sim_link(net, p, h)]++;
        todo += flow->state == MOVING;
    }
    while (todo) {
        double least = INFINITY;

        for (int l = 0; l < net->nlinks; l++)
            if (f->users[l] && f->left[l] / f->users[l] < least)
                least = f->left[l] / f->users[l];
        for (uint32_t i = 0; i < f->nactive; i++) {
            struct flow *flow = &f->flows[f->active[i]];
            const struct bny_sim_part *p = sim_fair_part_of(f, f->active[i]);
            int tight = 0;

            if (flow->state != MOVING || flow->rate > 0)
                continue;
            for (int h = 0; h < bny_sim_hops(net, p) && !tight; h++) {
                int l = bny_sim_link(net, p, h);

                tight = f->left[l] / f->users[l] <= least * (1 + 1e-12);
            }
            if (!tight)
                continue;
            flow->rate = least;
            todo--;
            for (int h = 0; h < bny_sim_hops(net, p); h++) {
                int l = bny_sim_link(net, p, h);

                f->left[l] -= least;
                f->users[l]--;
            }
        }
    }
}

static double next_event(const struct fair *f)
{
    double at = INFINITY;

    for (uint32_t i = 0; i < f->nactive; i++) {
        const struct flow *flow = &f->flows[f->active[i]];
        double t = flow->state == MOVING ? f->now + flow->left / flow->rate : flow->at;

        at = t < at ? t : at;
    }
    return at;
}

static void sim_fair_advance(struct fair *f, double to)
{
    for (uint32_t i = 0; i < f->nactive; i++) {
        struct flow *flow = &f->flows[f->active[i]];
        const struct bny_sim_part *p = sim_fair_part_of(f, f->active[i]);

        if (flow->state != MOVING)
            continue;
        for (int h = 0; h < bny_sim_hops(f->net, p); h++) {
            int l = bny_sim_link(f->net, p, h);

            f->busy[l] += flow->rate * (to - f->now) * f->net->s_per_byte[l];
        }
        flow->left -= flow->rate * (to - f->now);
    }
    f->now = to;
}

static double landing_s(const struct fair *f, const struct bny_sim_part *p)
{
    double sum = 0;

    for (int h = 0; h < bny_sim_hops(f->net, p); h++)
        sum += f->net->latency_s[bny_sim_link(f->net, p, h)];
    return sum;
}

/* Ends states that are over now (within rounding). Returns the number of changed flows. */
static int turn_over(struct fair *f)
{
    const struct bny_sim_net *net = f->net;
    uint32_t k = (uint32_t)net->chunks, n = f->nactive, kept = 0;
    double eps = 1e-13 * f->now;
    int changed = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct flow *flow = &f->flows[f->active[i]];
        const struct bny_sim_part *p = sim_fair_part_of(f, f->active[i]);
        const struct bny_transfer *t = &net->job->transfers[p->transfer];

        if (flow->state == STARTING && flow->at <= f->now + eps) {
            flow->state = flow->left > 0 ? MOVING : LANDING;
            changed++;
        } else if (flow->state == MOVING && flow->left <= 1e-12 * t->bytes) {
            flow->state = LANDING;
            flow->at = f->now + landing_s(f, p);
            changed++;
        }
        if (flow->state == LANDING && flow->at <= f->now + eps) {
            uint32_t cell = p->transfer * k + f->active[i] % k;
            double gamma = net->opts->gamma_s_per_byte, *busy = &f->adder_free[t->to];

            changed++;
            if (f->parts[cell] == 1 && t->adds &&
                gamma > 0) { /* it lands again after the addition */
                f->parts[cell] = UINT32_MAX;
                *busy = (*busy > f->now ? *busy : f->now) + gamma * t->bytes / k;
                flow->at = *busy;
                continue;
            }
            flow->state = OVER;
            if (f->parts[cell] == UINT32_MAX || --f->parts[cell] == 0)
                fair_done(f, p->transfer, f->active[i] % k);
        }
    }
    fair_open(f);
    for (uint32_t i = 0; i < f->nactive; i++)
        if (f->flows[f->active[i]].state != OVER)
            f->active[kept++] = f->active[i];
    f->nactive = kept;
    return changed;
}

static int fair_prepare(struct fair *f)
{
    const struct bny_sim_net *net = f->net;
    size_t k = (size_t)net->chunks, cells = (size_t)net->job->n * k + 1;

    f->flows = calloc((size_t)net->nparts * k + 1, sizeof *f->flows);
    f->active = malloc(((size_t)net->nparts * k + 1) * sizeof *f->active);
    f->waits = malloc(cells * sizeof *f->waits);
    f->parts = calloc(cells, sizeof *f->parts);
    f->step_left = calloc((size_t)net->nsteps + 1, sizeof *f->step_left);
    f->left = malloc(((size_t)net->nlinks + 1) * sizeof *f->left);
    f->busy = calloc((size_t)net->nlinks + 1, sizeof *f->busy);
    f->users = malloc(((size_t)net->nlinks + 1) * sizeof *f->users);
    f->adder_free = calloc((size_t)net->g->nranks, sizeof *f->adder_free);
    if (!f->flows || !f->active || !f->waits || !f->parts || !f->step_left || !f->left ||
        !f->busy || !f->users || !f->adder_free)
        return bny_fail(BANYAN_ENOMEM, "no memory to simulate %u transfers", net->job->n);
    for (uint32_t i = 0; i < net->job->n; i++)
        for (size_t c = 0; c < k; c++)
            f->waits[i * k + c] = net->waits[i];
    for (uint32_t s = 0; s < net->nsteps; s++)
        f->step_left[s] = (net->first_of_step[s + 1] - net->first_of_step[s]) * k;
    return 0;
}

static int fair_run(struct fair *f)
{
    const struct bny_sim_net *net = f->net;
    uint64_t cells = (uint64_t)net->job->n * (uint64_t)net->chunks;

    for (uint32_t i = 0; i < net->job->n; i++)
        for (uint32_t c = 0; c < (uint32_t)net->chunks; c++)
            if (net->waits[i] == 0 &&
                (!net->opts->lockstep || net->job->transfers[i].step == 0))
                fair_ready(f, i, c);
    fair_open(f);
    while (f->nactive) {
        while (turn_over(f))
            f->out->events++;
        if (!f->nactive)
            break;
        share_links(f);
        sim_fair_advance(f, next_event(f));
    }
    if (f->done != cells)
        return bny_fail(BANYAN_EINVAL,
                        "the simulation stalls after %llu of %llu chunks: its "
                        "transfers wait for each other",
                        (unsigned long long)f->done, (unsigned long long)cells);
    f->out->seconds = f->now;
    for (int l = 0; l < net->g->nlinks; l++)
        if (f->now > 0 && f->busy[l] / f->now > f->out->utilisation)
            f->out->utilisation = f->busy[l] / f->now;
    return 0;
}

int bny_sim_run_fair(struct bny_sim_result *out, const struct bny_sim_net *net)
{
    struct fair f = { .net = net, .out = out };
    int e = net->opts->slots || net->opts->overhead_s > 0
                ? bny_fail(BANYAN_EINVAL, "fair sharing has no slots and no overhead; simulate "
                                          "by fifo or priority")
                : fair_prepare(&f);

    if (!e)
        e = fair_run(&f);
    if (!e) {
        out->busy_s = f.busy;
        f.busy = NULL;
    }
    free(f.flows);
    free(f.active);
    free(f.waits);
    free(f.parts);
    free(f.step_left);
    free(f.left);
    free(f.busy);
    free(f.users);
    free(f.adder_free);
    return e;
}
