/* SPDX-License-Identifier: BSD-3-Clause */
/* A receiver's credit (grant.h). */
#include "transport/datagram/grant.h"

#include <string.h>

#include "transport/datagram/flow.h"

#define PACE      1.05
#define SILENT_NS 100000u
#define LOOK_NS   25000u /* between checks for silent senders */

void bny_grant_init(struct bny_grant_pool *p, double rate, uint32_t frame, uint32_t senders)
{
    double ns = BNY_GRANT_BASE_NS + BNY_GRANT_QUEUE_NS,
           unasked = rate * ns / (senders ? senders : 1);
    uint32_t frames = BNY_GRANT_QUANTUM / frame;

    memset(p, 0, sizeof *p);
    p->rate = rate;
    p->frame = bny_flow_units(frame);
    p->quantum = p->frame * (frames ? frames : 1);
    if (unasked > BNY_GRANT_UNASKED)
        unasked = BNY_GRANT_UNASKED;
    p->unasked = (uint32_t)(unasked / frame) * p->frame;
}

void bny_grant_rate(struct bny_grant_pool *p, double rate)
{
    p->rate = rate;
}

void bny_grant_begin(const struct bny_grant_pool *p, struct bny_grant *g)
{
    void *user = g->user;

    *g = (struct bny_grant){ .limit = p->unasked, .cap = UINT32_MAX / 2, .user = user };
    g->wait = UINT32_MAX;
}

static double base_of(const struct bny_grant *g)
{
    return g->base_ns ? (double)g->base_ns : BNY_GRANT_BASE_NS;
}

/* UNITs that may be outstanding. */
static double pool(const struct bny_grant_pool *p)
{
    double base = p->asking ? p->bases / p->asking : BNY_GRANT_BASE_NS;
    double w = p->rate * (base + BNY_GRANT_QUEUE_NS) / BNY_DGRAM_UNIT;

    return w > 4.0 * p->frame ? w : 4.0 * p->frame;
}

/* Outstanding units count while there is demand and the sender responds. */
static void grant_count(struct bny_grant_pool *p, struct bny_grant *g)
{
    uint32_t out =
        g->next && !g->silent && bny_flow_before(g->used, g->limit) ? g->limit - g->used : 0;

    p->out += out;
    p->out -= g->out;
    g->out = out;
}

static void grant_join(struct bny_grant_pool *p, struct bny_grant *g)
{
    if (g->next)
        return;
    if (!p->ring) {
        p->ring = g->next = g->prev = g;
    } else { /* last in turn */
        g->next = p->ring;
        g->prev = p->ring->prev;
        g->prev->next = g->next->prev = g;
    }
    p->asking++;
    p->bases += base_of(g);
}

static void leave(struct bny_grant_pool *p, struct bny_grant *g)
{
    if (!g->next)
        return;
    g->prev->next = g->next;
    g->next->prev = g->prev;
    if (p->ring == g)
        p->ring = g->next == g ? NULL : g->next;
    g->next = g->prev = NULL;
    p->asking--;
    p->bases -= base_of(g);
    if (!p->asking)
        p->bases = 0;
}

static void set_base(struct bny_grant_pool *p, struct bny_grant *g, uint32_t base)
{
    double before = base_of(g);

    if (!base)
        return;
    g->base_ns = (uint64_t)base * 250;
    if (g->next)
        p->bases += base_of(g) - before;
}

/* Once per round trip: credit that waits longer than the target queue is more useful
 * elsewhere. */
static void cap(struct bny_grant_pool *p, struct bny_grant *g, uint32_t wait_us)
{
    double frame_ns = p->frame * (double)BNY_DGRAM_UNIT / p->rate, wait, most = pool(p);

    if (wait_us < g->wait)
        g->wait = wait_us;
    if (p->now - g->round_ns < (uint64_t)base_of(g))
        return;
    wait = g->wait * 1000.0;
    if (g->cap > most)
        g->cap = (uint32_t)most;
    if (wait > 2 * (frame_ns > BNY_GRANT_QUEUE_NS ? frame_ns : BNY_GRANT_QUEUE_NS))
        g->cap = g->cap * 3 / 4;
    else if (wait <= (frame_ns > BNY_GRANT_QUEUE_NS ? frame_ns : BNY_GRANT_QUEUE_NS))
        g->cap += g->cap / 8 + p->frame / 2;
    if (g->cap < p->quantum)
        g->cap = p->quantum;
    g->round_ns = p->now;
    g->wait = UINT32_MAX;
}

void bny_grant_heard(struct bny_grant_pool *p, struct bny_grant *g, uint32_t used,
                     uint32_t demand, uint32_t base, uint32_t wait_us, uint64_t now)
{
    if (p->rate <= 0 || bny_flow_before(used, g->used))
        return; /* overtaken */
    if (used - g->used > UINT32_MAX / 4)
        return; /* no sender sends so much between two frames */
    if (used - g->limit < UINT32_MAX / 2 && used != g->limit)
        g->limit = used; /* a timer's frames need no credit */
    p->now = now;
    g->used = used;
    g->want = used + demand * (1024 / BNY_DGRAM_UNIT);
    g->since_ns = now;
    g->silent = 0;
    set_base(p, g, base);
    if (demand)
        grant_join(p, g);
    else
        leave(p, g);
    cap(p, g, wait_us);
    if (!demand && bny_flow_before(g->limit, used + p->unasked))
        g->limit = used + p->unasked; /* for the next ones */
    grant_count(p, g);
}

void bny_grant_end(struct bny_grant_pool *p, struct bny_grant *g)
{
    leave(p, g);
    grant_count(p, g);
}

/* Those with a grant that are silent. */
static void find_silent(struct bny_grant_pool *p, void (*tell)(struct bny_grant *g, void *ctx),
                        void *ctx)
{
    struct bny_grant *g = p->ring;

    for (uint32_t i = 0; i < p->asking; i++, g = g->next) {
        uint64_t patience = 4 * ((uint64_t)base_of(g) + BNY_GRANT_QUEUE_NS);

        if (!g->out || g->silent)
            continue;
        if (p->now - g->since_ns > (patience > SILENT_NS ? patience : SILENT_NS)) {
            g->silent = 1;
            grant_count(p, g);
            tell(g, ctx);
        }
    }
}

/* The next in turn gets a quantum. 0: it gets none, nor does any behind it. */
static int grant_give(struct bny_grant_pool *p, double most,
                      void (*tell)(struct bny_grant *, void *), void *ctx, uint32_t *passed)
{
    struct bny_grant *g = p->ring;
    uint32_t left = g->want - g->limit, q = left < p->quantum ? left : p->quantum;

    if (!bny_flow_before(g->limit, g->want) || g->silent || g->out + q > g->cap) {
        p->ring = g->next;
        return ++*passed < p->asking;
    }
    if ((double)p->out + q > most || p->tokens < q)
        return 0;
    if (!g->out)
        g->since_ns = p->now;
    g->limit += q;
    grant_count(p, g);
    p->tokens -= q;
    p->ring = g->next;
    *passed = 0;
    tell(g, ctx);
    return 1;
}

void bny_grant_run(struct bny_grant_pool *p, uint64_t now,
                   void (*tell)(struct bny_grant *g, void *ctx), void *ctx)
{
    double fresh, most;
    uint32_t passed = 0;

    if (p->rate <= 0)
        return;
    fresh = now > p->paced_ns && p->paced_ns
                ? PACE * p->rate * (double)(now - p->paced_ns) / BNY_DGRAM_UNIT
                : 0;
    most = 3 * fresh > 2.0 * p->quantum ? 3 * fresh : 2.0 * p->quantum;
    p->paced_ns = p->now = now;
    p->tokens = p->tokens + fresh < most ? p->tokens + fresh : most;
    if (now - p->looked_ns >= LOOK_NS) {
        find_silent(p, tell, ctx);
        p->looked_ns = now;
    }
    most = pool(p);
    while (p->ring && grant_give(p, most, tell, ctx, &passed))
        continue;
}
