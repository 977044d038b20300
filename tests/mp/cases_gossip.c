/* SPDX-License-Identifier: BSD-3-Clause */
/* methods.h: gossip, against a plain reference that knows all ranks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/rng.h"
#include "tests/mp/case.h"
#include "methods/gossip_graph.h"

enum { TENSORS = 4, ELEMENTS = 5 + 24 * 18 + 1 + 12 * 4 * 5, RANKS = 16 };
static const int64_t shape_a[] = { 5 }, shape_b[] = { 24, 18 }, shape_d[] = { 12, 4, 5 };
static const struct {
    int at, rows, cols;
} part[TENSORS] = { { 0, 5, 1 }, { 5, 24, 18 }, { 437, 1, 1 }, { 438, 12, 20 } };

struct model {
    float x[ELEMENTS];
    struct banyan_tensor tensors[TENSORS];
};

static void model_init(struct model *m)
{
    memset(m, 0, sizeof *m);
    m->tensors[0] = (struct banyan_tensor){ "a", BANYAN_F32, 1, shape_a, m->x };
    m->tensors[1] = (struct banyan_tensor){ "b", BANYAN_F32, 2, shape_b, m->x + 5 };
    m->tensors[2] = (struct banyan_tensor){ "c", BANYAN_F32, 0, NULL, m->x + 437 };
    m->tensors[3] = (struct banyan_tensor){ "d", BANYAN_F32, 3, shape_d, m->x + 438 };
}

/* What a step of its own adds to a rank's parameters: known to all. */
static void learn(float *x, uint64_t seed, int rank, int step)
{
    uint64_t state = seed * 1000003 + (uint64_t)(step * 64 + rank);

    bny_rng_next(&state);
    for (int i = 0; i < ELEMENTS; i++)
        x[i] += (float)(bny_rng_unit(&state) - 0.5);
}

static double distance(const float *a, const float *b)
{
    double sum = 0;

    for (int i = 0; i < ELEMENTS; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum);
}

/* ---- the reference: all ranks in one memory, pair after pair, in double ---- */

struct reference {
    double x[RANKS][ELEMENTS];
    double basis[256][TENSORS][4][24]; /* of each edge */
    int uses[256];
};

/* Half of D Q Q^T off low, onto high; the orthonormal factor of D Q is the next basis. */
static void low_rank_pair(double *low, double *high, double (*q)[24], int rows, int cols,
                          int columns, int r)
{
    int n = columns ? cols : rows, along = columns ? rows : cols;
    double f[4][24];

    for (int k = 0; k < r; k++)
        for (int i = 0; i < n; i++) {
            f[k][i] = 0;
            for (int j = 0; j < along; j++) {
                int at = columns ? j * cols + i : i * cols + j;

                f[k][i] += (low[at] - high[at]) * q[k][j];
            }
        }
    for (int k = 0; k < r; k++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < along; j++) {
                int at = columns ? j * cols + i : i * cols + j;

                low[at] -= 0.5 * f[k][i] * q[k][j];
                high[at] += 0.5 * f[k][i] * q[k][j];
            }
    for (int k = 0; k < r; k++) {
        double length = 0;

        for (int p = 0; p < k; p++) {
            double dot = 0;

            for (int i = 0; i < n; i++)
                dot += f[k][i] * f[p][i];
            for (int i = 0; i < n; i++)
                f[k][i] -= dot * f[p][i];
        }
        for (int i = 0; i < n; i++)
            length += f[k][i] * f[k][i];
        for (int i = 0; i < n; i++)
            f[k][i] /= sqrt(length);
        memcpy(q[k], f[k], sizeof f[k]);
    }
}

static void reference_pair(struct reference *ref, int e, int a, int b, int r, int whole)
{
    for (int i = 0; i < TENSORS; i++) {
        double *low = ref->x[a] + part[i].at, *high = ref->x[b] + part[i].at;
        int n = part[i].rows * part[i].cols;

        if (r && i % 2) {
            low_rank_pair(low, high, ref->basis[e][i], part[i].rows, part[i].cols,
                          ref->uses[e] & 1, r);
            continue;
        }
        for (int k = 0; k < n && whole; k++)
            low[k] = high[k] = (low[k] + high[k]) / 2;
    }
    ref->uses[e]++;
}

/* The first basis of an edge and a matrix is the library's own choice: from its saved state,
 * whose form this knows: head of 24 bytes, hash, steps, bytes, then of each colour of this rank
 * uses and bases. */
static void first_bases(struct test *t, struct banyan_gossip *g,
                        const struct bny_gossip_graph *graph, int r, struct reference *ref)
{
    size_t bytes = banyan_gossip_bytes(g), each = (size_t)r * (24 + 20);
    char *buf = case_malloc(bytes), *at = buf + 24 + 3 * 8;
    float *mine = case_malloc(256 * (each + 1) * sizeof *mine);

    memset(mine, 0, 256 * (each + 1) * sizeof *mine);
    CHECK_OK(t, banyan_gossip_save(g, buf, bytes));
    for (int c = 0; c < graph->colours; c++)
        for (size_t e = 0; e < graph->edges; e++)
            if (graph->edge[e].colour == c &&
                (graph->edge[e].low == t->rank || graph->edge[e].high == t->rank)) {
                if (graph->edge[e].low == t->rank)
                    memcpy(mine + e * each, at + 8, each * sizeof *mine);
                at += 8 + each * sizeof *mine;
            }
    CHECK(t, at == buf + bytes, "the state has %zu bytes, expected %zu", bytes,
          (size_t)(at - buf));
    CHECK_OK(t, banyan_allreduce(mine, mine, 256 * each, BANYAN_F32, BANYAN_SUM, t->comm,
                                 &case_exact));
    for (size_t e = 0; e < graph->edges; e++)
        for (int k = 0; k < r; k++) {
            for (int j = 0; j < 18; j++)
                ref->basis[e][1][k][j] = (double)mine[e * each + (size_t)(k * 18 + j)];
            for (int j = 0; j < 20; j++)
                ref->basis[e][3][k][j] = (double)mine[e * each + (size_t)(r * 24 + k * 20 + j)];
        }
    free(buf);
    free(mine);
}

/* Steps of all ranks, here and in the reference: parameters, and bytes by the formula. */
static void compare(struct test *t, const char *name, int r, int iterations, int rounds)
{
    struct banyan_gossip_stats s = { .size = sizeof s };
    struct reference *ref = case_malloc(sizeof *ref);
    struct banyan_gossip_config cfg;
    struct bny_gossip_graph graph;
    struct banyan_gossip *g;
    uint64_t bytes = 0;
    struct model m;
    int every;

    memset(ref, 0, sizeof *ref);
    model_init(&m);
    cfg = (struct banyan_gossip_config)BANYAN_GOSSIP_CONFIG_INIT;
    cfg.graph = name;
    cfg.low_rank = r;
    cfg.iterations = iterations;
    cfg.rounds = rounds;
    cfg.seed = t->seed;
    CHECK_OK(t, bny_gossip_graph_make(&graph, name, t->n));
    CHECK_OK(t, banyan_gossip_create(&g, t->comm, m.tensors, TENSORS, &cfg));
    if (r)
        first_bases(t, g, &graph, r, ref);
    every = rounds && rounds < graph.colours ? rounds : graph.colours;
    for (int step = 0; step < 4; step++) {
        learn(m.x, t->seed, t->rank, step);
        for (int k = 0; k < t->n; k++) {
            float delta[ELEMENTS] = { 0 };

            learn(delta, t->seed, k, step);
            for (int i = 0; i < ELEMENTS; i++)
                ref->x[k][i] += (double)delta[i];
        }
        CHECK_OK(t, banyan_gossip_step(g));
        for (int k = 0; k < every; k++)
            for (size_t e = 0; e < graph.edges; e++)
                for (int i = 0; graph.edge[e].colour == (step * every + k) % graph.colours &&
                                i < iterations && (r || i == 0);
                     i++) {
                    int columns = ref->uses[e] & 1, whole = r ? 6 : ELEMENTS;

                    reference_pair(ref, (int)e, graph.edge[e].low, graph.edge[e].high, r,
                                   i == 0);
                    if (graph.edge[e].low == t->rank || graph.edge[e].high == t->rank)
                        bytes += 4 * (uint64_t)((i == 0 ? whole : 0) +
                                                r * (columns ? 18 + 20 : 24 + 12) + 2);
                }
        for (int i = 0; i < ELEMENTS; i++)
            CHECK(t, fabs((double)m.x[i] - ref->x[t->rank][i]) < 2e-3,
                  "%s, rank %d, %d iterations, %d rounds: step %d, element %d: %g, not %g",
                  name, r, iterations, rounds, step, i, (double)m.x[i], ref->x[t->rank][i]);
    }
    CHECK_OK(t, banyan_gossip_stats(g, &s));
    CHECK(t, s.bytes == bytes && s.steps == 4, "%llu bytes, not %llu",
          (unsigned long long)s.bytes, (unsigned long long)bytes);
    banyan_gossip_free(g);
    bny_gossip_graph_free(&graph);
    free(ref);
}

static int gossip_reference(struct test *t)
{
    static const char *const names[] = { "ring", "exponential", "complete", "random" };

    for (int k = 0; k < 4; k++)
        for (int r = 0; r < 4; r++)
            for (int iterations = 1; iterations < 4; iterations++)
                for (int rounds = 0; rounds < 2; rounds++)
                    if (k < 3 || (t->n > 3 && t->n % 2 == 0))
                        compare(t, names[k], r, iterations, rounds);
    return 0;
}

/* Two ranks whose matrices differ by one of rank r are alike after two exchanges, and what was
 * the sum is still. */
static int gossip_recovers(struct test *t)
{
    for (int r = 1; r < 4; r++) {
        struct banyan_gossip_config cfg;
        struct banyan_gossip *g;
        float other[ELEMENTS];
        struct model m;
        double start, end;

        model_init(&m);
        cfg = (struct banyan_gossip_config)BANYAN_GOSSIP_CONFIG_INIT;
        cfg.low_rank = r;
        cfg.iterations = 2;
        CHECK_OK(t, banyan_gossip_create(&g, t->comm, m.tensors, TENSORS, &cfg));
        learn(m.x, t->seed, 9, 0); /* the same at both */
        for (int i = 0; i < TENSORS; i++)
            for (int e = 0; e < part[i].rows * part[i].cols && t->rank; e++)
                for (int k = 0; k < r; k++)
                    m.x[part[i].at + e] += (float)(sin(e / part[i].cols * (k + 1.3)) *
                                                   cos(e % part[i].cols * (k + 0.7)));
        for (int i = 0; i < ELEMENTS; i++)
            other[i] = t->rank ? m.x[i] : 0;
        CHECK_OK(t, banyan_broadcast(other, ELEMENTS, BANYAN_F32, 1, t->comm, &case_exact));
        start = distance(m.x, other);
        CHECK(t, t->rank || start > 1, "ranks begin %g apart", start);
        CHECK_OK(t, banyan_gossip_step(g));
        memcpy(other, m.x, sizeof other);
        CHECK_OK(t, banyan_broadcast(other, ELEMENTS, BANYAN_F32, 1, t->comm, &case_exact));
        end = distance(m.x, other);
        CHECK(t, end < 1e-4, "rank %d: %g apart after a step", r, end);
        banyan_gossip_free(g);
    }
    return 0;
}

/* Without steps of their own ranks come together at the mean, which stays; and are then alike
 * after _finish. */
static int gossip_consensus(struct test *t)
{
    for (int r = 0; r < 3; r++) {
        struct banyan_gossip_config cfg;
        double apart[2], mean[ELEMENTS];
        struct banyan_gossip *g;
        struct model m;

        model_init(&m);
        cfg = (struct banyan_gossip_config)BANYAN_GOSSIP_CONFIG_INIT;
        cfg.low_rank = r;
        cfg.iterations = r ? 2 : 1;
        CHECK_OK(t, banyan_gossip_create(&g, t->comm, m.tensors, TENSORS, &cfg));
        CHECK_OK(t, banyan_gossip_consensus(g, &apart[0]));
        CHECK(t, apart[0] == 0, "%g apart at the beginning", apart[0]);
        learn(m.x, t->seed, t->rank, 0);
        for (int i = 0; i < ELEMENTS; i++)
            mean[i] = (double)m.x[i];
        CHECK_OK(t,
                 banyan_allreduce(mean, mean, ELEMENTS, BANYAN_F64, BANYAN_AVG, t->comm, NULL));
        CHECK_OK(t, banyan_gossip_consensus(g, &apart[0]));
        for (int step = 0; step < 200; step++)
            CHECK_OK(t, banyan_gossip_step(g));
        CHECK_OK(t, banyan_gossip_consensus(g, &apart[1]));
        CHECK(t, apart[0] > 0.5 && apart[1] < apart[0] / 500, "%g apart, then %g", apart[0],
              apart[1]);
        CHECK_OK(t, banyan_gossip_finish(g));
        case_check_agree(t, t->comm, case_hash(m.x, sizeof m.x), "parameters");
        for (int i = 0; i < ELEMENTS; i++)
            CHECK(t, fabs((double)m.x[i] - mean[i]) < 1e-4, "element %d: %g, the mean was %g",
                  i, (double)m.x[i], mean[i]);
        banyan_gossip_free(g);
    }
    return 0;
}

/* Saved in the middle, loaded into a new object: the same bits from there on. */
static int gossip_state(struct test *t)
{
    for (int kind = 0; kind < 4; kind++) {
        struct banyan_gossip_config cfg = BANYAN_GOSSIP_CONFIG_INIT;
        struct banyan_gossip *g[3];
        struct model m[3];
        size_t bytes;
        char *buf;

        cfg.low_rank = kind;
        cfg.rounds = kind % 2;
        for (int k = 0; k < 3; k++) {
            model_init(&m[k]);
            cfg.iterations = k == 2 ? 3 : 1 + kind / 2;
            CHECK_OK(t, banyan_gossip_create(&g[k], t->comm, m[k].tensors, TENSORS, &cfg));
        }
        for (int step = 0; step < 5; step++) {
            learn(m[0].x, t->seed, t->rank, step);
            CHECK_OK(t, banyan_gossip_step(g[0]));
        }
        bytes = banyan_gossip_bytes(g[0]);
        buf = case_malloc(bytes);
        CHECK_RC(t, -BANYAN_EINVAL, banyan_gossip_save(g[0], buf, bytes - 1));
        CHECK_OK(t, banyan_gossip_save(g[0], buf, bytes));
        buf[bytes / 2] ^= 4;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_gossip_load(g[1], buf, bytes));
        buf[bytes / 2] ^= 4;
        CHECK_RC(t, -BANYAN_EINVAL, banyan_gossip_load(g[1], buf, bytes - 8));
        CHECK_RC(t, -BANYAN_EINVAL, banyan_gossip_load(g[2], buf, bytes)); /* iterations */
        CHECK_OK(t, banyan_gossip_load(g[1], buf, bytes));
        memcpy(m[1].x, m[0].x, sizeof m[0].x);
        for (int step = 5; step < 12; step++)
            for (int k = 0; k < 2; k++) {
                learn(m[k].x, t->seed, t->rank, step);
                CHECK_OK(t, banyan_gossip_step(g[k]));
            }
        CHECK(t, !memcmp(m[0].x, m[1].x, sizeof m[0].x), "kind %d goes on otherwise", kind);
        for (int k = 0; k < 3; k++)
            banyan_gossip_free(g[k]);
        free(buf);
    }
    return 0;
}

/* A steady step allocates nothing. */
static int gossip_quiet(struct test *t)
{
    for (int r = 0; r < 3; r++) {
        unsigned long fewest = ~0ul;
        struct banyan_gossip_config cfg;
        struct banyan_gossip *g;
        struct model m;

        model_init(&m);
        cfg = (struct banyan_gossip_config)BANYAN_GOSSIP_CONFIG_INIT;
        cfg.low_rank = r;
        CHECK_OK(t, banyan_gossip_create(&g, t->comm, m.tensors, TENSORS, &cfg));
        for (int round = 0; round < 8; round++) {
            unsigned long before = case_allocations();

            for (int step = 0; step < 12; step++) {
                learn(m.x, t->seed, t->rank, step);
                CHECK_OK(t, banyan_gossip_step(g));
            }
            if (case_allocations() - before < fewest)
                fewest = case_allocations() - before;
        }
        CHECK(t, fewest == 0, "rank %d: %lu allocations in 12 steps", r, fewest);
        banyan_gossip_free(g);
    }
    return 0;
}

/* Settings that differ, or cannot be. */
static int gossip_disagrees(struct test *t)
{
    static const char *const want[] = { "graph", "low_rank", "iterations", "rounds", "seed" };
    int last = t->rank == t->n - 1;
    struct banyan_gossip_config cfg;
    struct banyan_gossip *g;
    char rank[32];
    struct model m;

    model_init(&m);
    snprintf(rank, sizeof rank, "rank %d", t->n - 1);
    for (int what = 0; what < 5; what++) {
        cfg = (struct banyan_gossip_config)BANYAN_GOSSIP_CONFIG_INIT;
        cfg.graph = last && what == 0 ? "complete" : "ring";
        cfg.low_rank += last && what == 1;
        cfg.iterations += last && what == 2;
        cfg.rounds += last && what == 3;
        cfg.seed += last && what == 4;
        CHECK_RC(t, -BANYAN_EMISMATCH,
                 banyan_gossip_create(&g, t->comm, m.tensors, TENSORS, &cfg));
        CHECK_HAS(t, banyan_last_error(), want[what]);
        CHECK_HAS(t, banyan_last_error(), rank);
        case_check_works(t, t->comm);
    }
    for (int what = 0; what < 4; what++) {
        cfg = (struct banyan_gossip_config)BANYAN_GOSSIP_CONFIG_INIT;
        cfg.size = what == 0 ? 3 : cfg.size;
        cfg.graph = what == 1 ? "torus:9x9" : "ring";
        cfg.low_rank = what == 2 ? 33 : 1;
        cfg.iterations = what != 3;
        CHECK_RC(t, -BANYAN_EINVAL,
                 banyan_gossip_create(&g, t->comm, m.tensors, TENSORS, &cfg));
        CHECK(t, !g, "an object was made");
        case_check_works(t, t->comm);
    }
    return 0;
}

/* A parameter that is not finite: that rank says so, and all others hear it, near and far. */
static int gossip_nonfinite(struct test *t)
{
    struct banyan_gossip *g;
    struct model m;
    int rc = 0;

    model_init(&m);
    CHECK_OK(t, banyan_gossip_create(&g, t->comm, m.tensors, TENSORS, NULL));
    for (int step = 0; step < 200 && rc == 0; step++) {
        learn(m.x, t->seed, t->rank, step);
        if (t->rank == 1 && step == 3)
            m.x[438] = INFINITY;
        rc = banyan_gossip_step(g);
    }
    CHECK(t, rc == (t->rank == 1 ? -BANYAN_EINVAL : -BANYAN_EABORTED), "%s",
          banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "tensor d at rank 1");
    banyan_gossip_free(g);
    return 0;
}

/* One rank is t->arg steps ahead of its neighbours. */
static int gossip_apart(struct test *t)
{
    struct banyan_gossip *g[2];
    struct model m[2];
    size_t bytes;
    char *buf;
    int rc = 0;

    for (int k = 0; k < 2; k++) {
        model_init(&m[k]);
        CHECK_OK(t, banyan_gossip_create(&g[k], t->comm, m[k].tensors, TENSORS, NULL));
    }
    for (int ahead = 0; ahead < atoi(t->arg); ahead++)
        CHECK_OK(t, banyan_gossip_step(g[0]));
    case_meet(t, t->comm);
    bytes = banyan_gossip_bytes(g[0]);
    buf = case_malloc(bytes);
    CHECK_OK(t, banyan_gossip_save(g[0], buf, bytes));
    if (t->rank == 0)
        CHECK_OK(t, banyan_gossip_load(g[1], buf, bytes));
    for (int step = 0; step < 200 && rc == 0; step++)
        rc = banyan_gossip_step(g[1]);
    CHECK(t, rc == -BANYAN_EMISMATCH || rc == -BANYAN_EABORTED, "%s", banyan_strerror(rc));
    /* Steps that differ by an odd number want messages of different lengths. */
    CHECK_HAS(t, banyan_last_error(),
              atoi(t->arg) % 2 ? "tag 20551" : "steps, its neighbour rank");
    for (int k = 0; k < 2; k++)
        banyan_gossip_free(g[k]);
    free(buf);
    return 0;
}

const struct mp_case cases_gossip[] = {
    { "gossip_reference", gossip_reference, 0 },
    { "gossip_recovers", gossip_recovers, 0 },
    { "gossip_consensus", gossip_consensus, 0 },
    { "gossip_state", gossip_state, 0 },
    { "gossip_quiet", gossip_quiet, CASE_NO_THREADS },
    { "gossip_disagrees", gossip_disagrees, 0 },
    { "gossip_nonfinite", gossip_nonfinite, CASE_FAILS },
    { "gossip_apart", gossip_apart, CASE_FAILS },
    { NULL, NULL, 0 },
};
