/* SPDX-License-Identifier: BSD-3-Clause */
/* What is measured of calls that weigh their codec (weighing.h).
 *
 * A rank measures in periods from the beginning of a call until none is under way, as calls
 * that overlap share the port. A period says how fast its calls were: all of them together
 * where they are a group, of the same codec, kind and size; else its seconds are divided. */
#include "collectives/sequence/weighing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "collectives/plan/topology.h"

static double best(const struct bny_samples *s)
{
    double most = 0;

    for (int i = 0; i < BNY_SAMPLES; i++)
        most = fmax(most, s->of[i]);
    return most;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median, which a late rank or a link's burst does not move; 0: not two of them yet, of
 * which the first found cold caches. */
static double typical(const struct bny_samples *s)
{
    size_t n = s->n < BNY_SAMPLES ? s->n : BNY_SAMPLES;
    double of[BNY_SAMPLES];

    memcpy(of, s->of, sizeof of);
    qsort(of, n, sizeof *of, compare);
    return n < 2 ? 0 : of[n / 2];
}

static void add(struct bny_samples *s, double x)
{
    s->of[s->n++ % BNY_SAMPLES] = x;
}

/* ---- the communicator's ---- */

/* Where the list has it; the list's end: nowhere. */
static struct bny_weighing **place_of(struct bny_weighing **p, const struct bny_call *call)
{
    while (*p && ((*p)->codec != call->codec || (*p)->collective != call->collective ||
                  (*p)->dtype != call->dtype || (*p)->is_dropped))
        p = &(*p)->next;
    return p;
}

struct bny_weighing *bny_weighing_find(const struct banyan_comm *c, const struct bny_call *call)
{
    struct bny_weighing *first = c->weighings;

    return *place_of(&first, call);
}

/* A period with its calls measures nothing. */
static void forget(struct bny_port *p, const struct bny_weighing *w)
{
    for (int i = 0; i < p->ngroups && i < BNY_PORT_GROUPS; i++)
        if (p->groups[i].of == w)
            p->ngroups = BNY_PORT_GROUPS + 1;
}

static void drop(struct banyan_comm *c, struct bny_weighing **p)
{
    struct bny_weighing *w = *p;

    w->is_dropped = 1;
    if (w->uses)
        return;
    *p = w->next;
    forget(&c->world->port, w);
    free(w);
}

/* The last one behind those that a communicator remembers. */
static void drop_oldest(struct banyan_comm *c)
{
    struct bny_weighing **oldest = NULL;
    int n = 0;

    for (struct bny_weighing **p = &c->weighings; *p; p = &(*p)->next)
        if (!(*p)->is_dropped && ++n > BNY_WEIGHINGS)
            oldest = p;
    if (oldest)
        drop(c, oldest);
}

static struct bny_weighing *weighing_new(const struct bny_call *call)
{
    int nkinds = 2 + (call->codec->budget ? call->codec->budget->npairs : 1);
    struct bny_weighing *w = calloc(1, sizeof *w + (size_t)nkinds * sizeof w->speeds[0]);

    if (!w)
        return NULL;
    w->codec = call->codec;
    w->collective = call->collective;
    w->dtype = call->dtype;
    w->nkinds = nkinds;
    return w;
}

struct bny_weighing *bny_weighing_of(struct banyan_comm *c, const struct bny_call *call)
{
    struct bny_weighing **p = place_of(&c->weighings, call), *w = *p;

    if (w)
        *p = w->next;
    else
        w = weighing_new(call);
    if (!w)
        return NULL;
    w->next = c->weighings;
    c->weighings = w;
    drop_oldest(c);
    return w;
}

void bny_weighing_release(struct banyan_comm *c, struct bny_weighing *w)
{
    struct bny_weighing **p = &c->weighings;

    if (--w->uses || !w->is_dropped)
        return;
    while (*p != w)
        p = &(*p)->next;
    drop(c, p);
}

void bny_weighings_free(struct banyan_comm *c)
{
    for (struct bny_weighing *w = c->weighings, *next; w; w = next) {
        next = w->next;
        forget(&c->world->port, w);
        free(w);
    }
    c->weighings = NULL;
}

int bny_weighing_kind(const struct bny_weighing *w, const struct bny_codec *codec)
{
    const struct bny_budget *b = w->codec->budget;
    int i = 0;

    if (!codec)
        return 0;
    while (b && i < b->npairs && b->pairs[i] != codec)
        i++;
    BNY_ASSERT(1 + i < bny_weighing_mixed(w));
    return 1 + i;
}

int bny_weighing_size(double bytes)
{
    int size = ilogb(fmax(bytes, BNY_WEIGHED_LEAST) / BNY_WEIGHED_LEAST);

    return size < BNY_WEIGHED_SIZES ? size : BNY_WEIGHED_SIZES - 1;
}

/* ---- answers ---- */

size_t bny_weighing_numbers(const struct bny_weighing *w)
{
    return 2 + (size_t)w->nkinds * BNY_WEIGHED_SIZES;
}

void bny_weighing_copy(const struct bny_weighing *w, struct bny_measured *to,
                       const struct bny_measured *from)
{
    memcpy(to, from, bny_weighing_numbers(w) * sizeof(float));
}

/* What is known of a port. The first period finds cold caches and connections that have just
 * been made. What coded data needed of the port is the least that it carries. */
static double rate_of(const struct bny_port *p, int lengthy)
{
    if (p->rates[lengthy].n < 2)
        return lengthy ? 0 : rate_of(p, 1);
    return fmax(best(&p->rates[lengthy]), best(&p->coded[lengthy]));
}

void bny_weighing_ask(const struct bny_weighing *w, const struct bny_port *p,
                      struct bny_measured *own)
{
    for (int i = 0; i < 2; i++)
        own->Bps[i] = (float)rate_of(p, i);
    for (int k = 0; k < w->nkinds; k++)
        for (int i = 0; i < BNY_WEIGHED_SIZES; i++)
            own->speeds[k][i] = (float)typical(&w->speeds[k][i]);
}

double bny_measured_seconds(const struct bny_measured *m, int kind, double bytes)
{
    double speed = m->speeds[kind][bny_weighing_size(bytes)];

    return speed > 0 ? bytes / speed : 0;
}

/* ---- periods ---- */

/* Bytes that this rank has given to its networks. */
static uint64_t sent(const struct bny_world *w)
{
    uint64_t sum = 0;

    for (int i = 0; i < w->ntps; i++)
        if (!w->tps[i]->ops->shared)
            sum += bny_counter_read(&w->tps[i]->wire_bytes);
    return sum;
}

void bny_port_begin(struct banyan_comm *c)
{
    struct bny_port *p = &c->world->port;

    if (!p->active++) {
        p->begun_ns = bny_now_ns();
        p->sent = sent(c->world);
        p->kinds = 0;
        p->ngroups = 0;
    }
}

void bny_port_runs(struct banyan_comm *c, struct bny_weighing *w, int kind, double bytes,
                   int is_trial)
{
    struct bny_port *p = &c->world->port;
    int size = bny_weighing_size(bytes), i = 0;

    p->kinds |= kind ? 2 : 1;
    if (p->ngroups > BNY_PORT_GROUPS)
        return;
    while (i < p->ngroups && (p->groups[i].of != w || p->groups[i].kind != kind ||
                              p->groups[i].size != size || p->groups[i].is_trial != is_trial))
        i++;
    if (i == p->ngroups && p->ngroups++ < BNY_PORT_GROUPS)
        p->groups[i] = (struct bny_port_group){ w, kind, size, is_trial, 0 };
    if (i < BNY_PORT_GROUPS)
        p->groups[i].bytes += bytes;
}

/* Seconds that a group takes by earlier periods; 0: unknown. That of a trial may be out of
 * date. */
static double expected(const struct bny_port_group *g)
{
    double speed = g->is_trial ? 0 : typical(&g->of->speeds[g->kind][g->size]);

    return speed > 0 ? g->bytes / speed : 0;
}

/* Calls of several groups shared a period. What it took beyond the known groups is the unknown
 * ones', each by its bytes. Where all are known, each took its part of the period. */
static void divide(struct bny_port *p, double seconds)
{
    double known = 0, unknown = 0, rest;

    for (int i = 0; i < p->ngroups; i++) {
        double t = expected(&p->groups[i]);

        known += t;
        unknown += t > 0 ? 0 : p->groups[i].bytes;
    }
    rest = fmax(seconds - known, seconds / 32); /* known ones may have been faster than usual */
    for (int i = 0; i < p->ngroups; i++) {
        const struct bny_port_group *g = &p->groups[i];
        double t = expected(g);

        if (unknown > 0 && t > 0)
            continue;
        add(&g->of->speeds[g->kind][g->size],
            unknown > 0 ? unknown / rest : g->bytes / t * known / seconds);
    }
}

/* Short periods measure delays as well. All that the rank sent meanwhile counts, and that of as
 * many ranks as share the port. */
static void period_ends(struct bny_port *p, const struct banyan_comm *c)
{
    int nhosts = bny_topology_nhosts(&c->scope);
    double seconds = (double)(bny_now_ns() - p->begun_ns) * 1e-9,
           bytes = (double)(sent(c->world) - p->sent) * ((c->n + nhosts - 1) / nhosts);
    int lengthy = bytes >= BNY_WEIGHED_LONG / 4.0; /* of int8 */

    if (seconds <= 0 || p->kinds & 4)
        return;
    if (p->kinds == 2)
        add(&p->coded[lengthy], bytes / seconds);
    else if (p->kinds == 1 && bytes >= BNY_WEIGHED_LEAST) {
        add(&p->rates[lengthy], bytes / seconds);
        p->coded[lengthy] = (struct bny_samples){ .n = 0 }; /* older */
    }
    if (p->ngroups <= BNY_PORT_GROUPS)
        divide(p, seconds);
}

void bny_port_done(struct banyan_comm *c, int result)
{
    struct bny_port *p = &c->world->port;

    p->kinds |= result ? 4 : 0;
    if (!--p->active)
        period_ends(p, c);
}
