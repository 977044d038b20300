/* SPDX-License-Identifier: BSD-3-Clause */
/* Random regular graphs, seeded: Steger and Wormald's pairing (Combinatorics, Probability and
 * Computing 1999). Draws two free ends at a time and joins them unless that makes a loop or a
 * second link; restarts if no remaining ends can be joined. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "topo/gen.h"

#define TRIES 200

struct pairing {
    int n, degree, left; /* ranks; free ends */
    int *ends;           /* [n x degree], the free ones first: the rank of each */
    int *to, *used;      /* [n x degree] neighbours; [n] their number */
};

static int joined(const struct pairing *p, int a, int b)
{
    for (int i = 0; i < p->used[a]; i++)
        if (p->to[a * p->degree + i] == b)
            return 1;
    return a == b;
}

static int any_pair_left(const struct pairing *p)
{
    for (int i = 0; i < p->left; i++)
        for (int j = 0; j < i; j++)
            if (!joined(p, p->ends[i], p->ends[j]))
                return 1;
    return 0;
}

/* 1 when all ends are joined. */
static int random_draw(struct pairing *p, uint64_t *rng)
{
    int misses = 0;

    p->left = p->n * p->degree;
    memset(p->used, 0, (size_t)p->n * sizeof *p->used);
    for (int i = 0; i < p->left; i++)
        p->ends[i] = i / p->degree;
    while (p->left) {
        int i = (int)bny_rng_below(rng, (uint64_t)p->left),
            j = (int)bny_rng_below(rng, (uint64_t)p->left);
        int a = p->ends[i], b = p->ends[j];
        if (joined(p, a, b)) {
            if (++misses % 100 == 0 && p->left < 100 && !any_pair_left(p))
                return 0;
            continue;
        }
        p->to[a * p->degree + p->used[a]++] = b;
        p->to[b * p->degree + p->used[b]++] = a;
        p->ends[i > j ? i : j] = p->ends[--p->left];
        p->ends[i > j ? j : i] = p->ends[--p->left];
    }
    return 1;
}

static int random_connected(const struct pairing *p)
{
    int *queue = p->ends, head = 0, tail = 0; /* the ends are no longer needed */

    for (int i = 0; i < p->n; i++)
        p->used[i] = 0;
    queue[tail++] = 0;
    p->used[0] = 1;
    while (head < tail) {
        const int *to = p->to + queue[head++] * p->degree;
        for (int i = 0; i < p->degree; i++) {
            if (!p->used[to[i]])
                queue[tail++] = to[i];
            p->used[to[i]] = 1;
        }
    }
    return tail == p->n;
}

static int emit(struct bny_graph *g, const struct pairing *p)
{
    int side = 1, e = 0;

    while (side * side < p->n)
        side++;
    for (int r = 0; r < p->n && e >= 0; r++)
        e = bny_gen_rank(g, r, r % side, r / side, 0);
    for (int r = 0; r < p->n; r++)
        for (int i = 0; i < p->degree && e >= 0; i++)
            if (r < p->to[r * p->degree + i])
                e = bny_graph_both(g, r, p->to[r * p->degree + i], 1, BNY_GEN_LAT_ROUTER);
    return e;
}

static int make_random(struct bny_graph *g, const char *args)
{
    int degree = 4, seed = 1, done = 0, e;
    struct pairing p = { 0 };
    const struct bny_gen_option options[] = { { "degree", &degree, 2, 64 },
                                              { "seed", &seed, 0, 65536 } };
    uint64_t rng;
    char head[32];

    e = bny_gen_options(head, sizeof head, args, options, 2, bny_gen_random.usage);
    if (!e)
        e = bny_gen_dims(&p.n, 1, head, bny_gen_random.usage);
    if (e < 0)
        return e;
    if (p.n <= degree || p.n * degree % 2)
        return bny_fail(
            BANYAN_EINVAL,
            "random:%.40s: needs more ranks than links a rank (%d), and an even number of "
            "link ends",
            args, degree);
    p.degree = degree;
    p.ends = malloc((size_t)p.n * (size_t)degree * sizeof(int));
    p.to = malloc((size_t)p.n * (size_t)degree * sizeof(int));
    p.used = malloc((size_t)p.n * sizeof(int));
    rng = (uint64_t)seed;
    e = p.ends && p.to && p.used ? 0
                                 : bny_fail(BANYAN_ENOMEM, "no memory for random:%.40s", args);
    for (int i = 0; !e && i < TRIES && !done; i++)
        done = random_draw(&p, &rng) && random_connected(&p);
    if (!e)
        e = done ? emit(g, &p)
                 : bny_fail(BANYAN_EINVAL, "random:%.40s: no connected graph in %d tries", args,
                            TRIES);
    free(p.ends);
    free(p.to);
    free(p.used);
    return e;
}

const struct bny_generator bny_gen_random = {
    "random", "random:N[,degree=4][,seed=1]  random regular graph, links of capacity 1",
    make_random
};
