/* SPDX-License-Identifier: BSD-3-Clause */
/* What is measured of calls that weigh their codec (weighing.h).
 *
 * A rank measures in periods from the beginning of a call until none is under way, as calls
 * that overlap share the port. A period in which all calls were of one kind says how fast that
 * kind is, for each size of call that was in it. */
#include "collectives/sequence/weighing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "collectives/plan/topology.h"

static double best(const struct bny_samples *s)
{
    double most = 0;

    for (int i = 0; i < BNY_SAMPLES; i++)
        most = fmax(most, s->of[i]);
    return most;
}

static int is_less(const void *a, const void *b)
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
    qsort(of, n, sizeof *of, is_less);
    return n < 2 ? 0 : of[n / 2];
}

static void add(struct bny_samples *s, double x)
{
    s->of[s->n++ % BNY_SAMPLES] = x;
}

/* ---- the communicator's ---- */

struct bny_weighing *bny_weighing_find(const struct banyan_comm *c, const struct bny_call *call)
{
    struct bny_weighing *w = c->weighings;

    while (w && (w->codec != call->codec || w->collective != call->collective ||
                 w->dtype != call->dtype))
        w = w->next;
    return w;
}

struct bny_weighing *bny_weighing_of(struct banyan_comm *c, const struct bny_call *call)
{
    struct bny_weighing *w = bny_weighing_find(c, call);

    if (w)
        return w;
    w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->codec = call->codec;
    w->collective = call->collective;
    w->dtype = call->dtype;
    w->next = c->weighings;
    c->weighings = w;
    return w;
}

void bny_weighings_free(struct banyan_comm *c)
{
    for (struct bny_weighing *w = c->weighings, *next; w; w = next) {
        next = w->next;
        if (c->world->port.of == w)
            c->world->port.of = NULL;
        free(w);
    }
    c->weighings = NULL;
}

int bny_weighing_kind(const struct bny_weighing *w, const struct bny_codec *codec)
{
    const struct bny_budget *b = w->codec->budget;
    int i = 0;

    while (codec && b && b->pairs[i] != codec)
        i++;
    return codec ? 1 + i : 0;
}

int bny_weighing_size(double bytes)
{
    int size = ilogb(fmax(bytes, BNY_WEIGHED_LEAST) / BNY_WEIGHED_LEAST);

    return size < BNY_WEIGHED_SIZES ? size : BNY_WEIGHED_SIZES - 1;
}

/* ---- answers ---- */

size_t bny_weighing_numbers(const struct bny_weighing *w)
{
    size_t kinds = 1 + (size_t)(w->codec->budget ? w->codec->budget->npairs : 1);

    return 2 + kinds * BNY_WEIGHED_SIZES;
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
    for (int k = 0; k < BNY_WEIGHED_KINDS; k++)
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

void bny_port_begin(struct banyan_comm *c, struct bny_weighing *w, double bytes)
{
    struct bny_port *p = &c->world->port;

    if (!p->active++) {
        p->begun_ns = bny_now_ns();
        p->sent = sent(c->world);
        p->kinds = 0;
        p->of = w;
        p->kind = -1;
        p->bytes = 0;
        p->sizes = 0;
    }
    p->bytes += bytes;
    p->sizes |= 1u << bny_weighing_size(bytes);
    if (p->of != w)
        p->of = NULL;
}

void bny_port_runs(struct banyan_comm *c, int kind)
{
    struct bny_port *p = &c->world->port;

    p->kinds |= kind ? 2 : 1;
    if (p->kind >= 0 && p->kind != kind)
        p->of = NULL;
    p->kind = kind;
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
    for (int i = 0; p->of && p->kind >= 0 && i < BNY_WEIGHED_SIZES; i++)
        if (p->sizes >> i & 1)
            add(&p->of->speeds[p->kind][i], p->bytes / seconds);
}

void bny_port_done(struct banyan_comm *c, int result)
{
    struct bny_port *p = &c->world->port;

    p->kinds |= result ? 4 : 0;
    if (!--p->active)
        period_ends(p, c);
}
