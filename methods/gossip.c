/* SPDX-License-Identifier: BSD-3-Clause */
/* Gossip: pairs of neighbours exchange what they need of their parameters' difference, whole or
 * of low rank, and move towards each other. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/methods.h"
#include "base/err.h"
#include "base/rng.h"
#include "base/sized.h"
#include "methods/gossip_graph.h"
#include "training/object.h"
#include "training/saved.h"
#include "training/settings.h"
#include "training/tensors.h"

#define KIND 0x50534f47u /* "GOSP" */

enum {
    TAG = 20551,
    RANK_MAX = 32,
    HEAD = 2, /* floats in front of a message: the number of the step */
    LANES = 8,
};

/* A tensor as a matrix; cols 0: it travels whole. */
struct matrix {
    float *x;
    size_t rows, cols, count;
    size_t basis; /* where its basis lies, in floats, among those of a link */
};

/* A message is one of four: which factor, and whether whole tensors come with it. */
struct form {
    size_t count; /* floats; 0: never sent */
    struct banyan_request *send, *recv;
};

/* This rank's end of an edge. */
struct link {
    int peer, lower; /* lower: this rank is the lower one */
    uint64_t uses;   /* exchanges; even ones multiply rows */
    float *out, *in; /* the messages */
    float *basis;    /* [basis] of each matrix low_rank vectors, for the next exchange */
    struct form form[4];
};

struct banyan_gossip {
    struct bny_object object;
    struct banyan_comm *comm;
    struct banyan_gossip_config cfg;
    char *graph;
    struct bny_tensors tensors;
    struct matrix *matrix; /* [tensors.n] */
    size_t basis;          /* floats of a link's bases */
    int degree, colours;
    struct link *link; /* [colours]; peer -1: none of this colour */
    float *flat;       /* [count], for means */
    uint64_t steps, bytes;
};

static struct bny_handles handles = BNY_HANDLES(KIND, struct banyan_gossip);

static int gossip_settings(struct banyan_gossip *g, const struct banyan_gossip_config *cfg)
{
    int rc;

    g->cfg = (struct banyan_gossip_config)BANYAN_GOSSIP_CONFIG_INIT;
    rc = bny_sized_take(&g->cfg, sizeof g->cfg, cfg, "banyan_gossip_create",
                        "BANYAN_GOSSIP_CONFIG_INIT");
    if (rc < 0)
        return rc;
    if (g->cfg.low_rank < 0 || g->cfg.low_rank > RANK_MAX || g->cfg.iterations < 1 ||
        g->cfg.rounds < 0)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_gossip_create: low_rank is %d (0 to %d), iterations %d (1 or "
                        "more), rounds %d (0: all, or more)",
                        g->cfg.low_rank, RANK_MAX, g->cfg.iterations, g->cfg.rounds);
    g->graph = strdup(g->cfg.graph ? g->cfg.graph : "ring");
    g->cfg.graph = g->graph;
    return g->graph ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for gossip");
}

enum { SETTINGS = 5 };

static void gossip_list(const struct banyan_gossip *g, struct bny_setting *s)
{
    s[0] = (struct bny_setting){ "graph", bny_setting_of_text(g->graph) };
    s[1] = (struct bny_setting){ "low_rank", (uint64_t)g->cfg.low_rank };
    s[2] = (struct bny_setting){ "iterations", (uint64_t)g->cfg.iterations };
    s[3] = (struct bny_setting){ "rounds", (uint64_t)g->cfg.rounds };
    s[4] = (struct bny_setting){ "seed", g->cfg.seed };
}

static int gossip_agree(const struct banyan_gossip *g)
{
    struct bny_setting s[SETTINGS];

    gossip_list(g, s);
    return bny_settings_agree(g->comm, s, SETTINGS, "banyan_gossip_create");
}

/* ---- matrices and messages ---- */

static size_t longer(const struct matrix *m)
{
    return m->rows > m->cols ? m->rows : m->cols;
}

static int make_matrices(struct banyan_gossip *g)
{
    size_t r = (size_t)g->cfg.low_rank;

    g->matrix = calloc(g->tensors.n + 1, sizeof *g->matrix);
    g->flat = malloc((g->tensors.count + 1) * sizeof *g->flat);
    if (!g->matrix || !g->flat)
        return bny_fail(BANYAN_ENOMEM, "no memory for gossip of %zu parameters",
                        g->tensors.count);
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct bny_tensor *t = &g->tensors.at[i];
        struct matrix *m = &g->matrix[i];

        *m = (struct matrix){ .x = t->grad, .count = t->count, .basis = g->basis };
        m->rows = t->ndim > 0 ? (size_t)t->shape[0] : 1;
        m->cols = t->count / m->rows;
        if (t->ndim < 2 || !r || (m->rows + m->cols) * r >= m->count)
            m->cols = 0;
        else
            g->basis += longer(m) * r;
    }
    return 0;
}

/* Forms: bit 0: columns are multiplied (factors have cols elements); bit 1: with whole tensors,
 * which a pair exchanges once a step. */
static size_t form_count(const struct banyan_gossip *g, int form)
{
    size_t n = 0;

    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct matrix *m = &g->matrix[i];

        if (m->cols)
            n += (form & 1 ? m->cols : m->rows) * (size_t)g->cfg.low_rank;
        else if (form & 2)
            n += m->count;
    }
    return n ? n + HEAD : 0;
}

/* A first basis, or one for what has become zero: the same at both ends of the pair. */
static void gossip_draw(const struct banyan_gossip *g, const struct link *l, uint64_t salt,
                        float *x, size_t n)
{
    uint64_t rank = (uint64_t)banyan_comm_rank(g->comm), peer = (uint64_t)l->peer;
    uint64_t low = l->lower ? rank : peer, high = l->lower ? peer : rank;
    uint64_t state = g->cfg.seed * 0x9e3779b97f4a7c15u + (low << 32 | high) + (salt << 16);

    bny_rng_next(&state);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(bny_rng_unit(&state) - 0.5);
}

/* In lanes, whose order is the same on all machines. */
static double dot(const float *a, const float *b, size_t n)
{
    double lane[LANES] = { 0 }, sum = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += (double)a[i + (size_t)k] * (double)b[i + (size_t)k];
    for (int k = 0; k < LANES; k++)
        sum += lane[k];
    for (; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Takes the first k of the vectors out of the k-th. Returns what is left of its length, as a
 * part of what it was. */
static double project(float *q, size_t k, size_t n)
{
    float *x = q + k * n;
    double before = sqrt(dot(x, x, n));

    for (int twice = 0; twice < 2; twice++)
        for (size_t j = 0; j < k; j++) {
            float along = (float)dot(x, q + j * n, n);

            for (size_t i = 0; i < n; i++)
                x[i] -= along * q[j * n + i];
        }
    return before > 0 ? sqrt(dot(x, x, n)) / before : 0;
}

/* Modified Gram-Schmidt, twice. A vector that vanishes is drawn anew: where parameters are
 * equal they need not stay so. Those beyond what fits into n dimensions become zero. */
static void orthonormalise(const struct banyan_gossip *g, const struct link *l, float *q,
                           size_t r, size_t n, size_t matrix)
{
    for (size_t k = 0; k < r; k++) {
        float *x = q + k * n;
        double length;
        int tries = 0;

        while (project(q, k, n) < 1e-5 && tries < 4)
            gossip_draw(g, l, (l->uses * 64 + k) * 1031 + matrix * 5 + (uint64_t)tries++, x, n);
        length = sqrt(dot(x, x, n));
        for (size_t i = 0; i < n; i++)
            x[i] = tries < 4 && length > 0 ? (float)((double)x[i] / length) : 0;
    }
}

/* ---- one exchange of a pair ---- */

static float *multiply(const struct matrix *m, const float *basis, size_t r, int columns,
                       float *to)
{
    for (size_t k = 0; k < r; k++) {
        const float *q = basis + k * (columns ? m->rows : m->cols);

        if (columns) { /* X^T u */
            memset(to, 0, m->cols * sizeof *to);
            for (size_t i = 0; i < m->rows; i++)
                for (size_t j = 0; j < m->cols; j++)
                    to[j] += q[i] * m->x[i * m->cols + j];
            to += m->cols;
        } else { /* X q */
            for (size_t i = 0; i < m->rows; i++)
                *to++ = (float)dot(m->x + i * m->cols, q, m->cols);
        }
    }
    return to;
}

/* Half of the difference's part in the basis goes away from here: half is the other end's. */
static void move(const struct matrix *m, const float *basis, const float *d, size_t r,
                 int columns, float half)
{
    for (size_t k = 0; k < r; k++) {
        const float *left = columns ? basis + k * m->rows : d + k * m->rows;
        const float *right = columns ? d + k * m->cols : basis + k * m->cols;

        for (size_t i = 0; i < m->rows; i++)
            for (size_t j = 0; j < m->cols; j++)
                m->x[i * m->cols + j] -= half * left[i] * right[j];
    }
}

/* Fills the message. Returns the first tensor that is not finite, or tensors.n. */
static size_t gossip_pack(struct banyan_gossip *g, struct link *l, int form)
{
    size_t r = (size_t)g->cfg.low_rank, bad = g->tensors.n;
    float *at = l->out + HEAD, *from;

    memcpy(l->out, &g->steps, sizeof g->steps);
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct matrix *m = &g->matrix[i];

        from = at;
        if (m->cols) {
            at = multiply(m, l->basis + m->basis, r, form & 1, at);
        } else if (form & 2) {
            memcpy(at, m->x, m->count * sizeof *at);
            at += m->count;
        }
        for (; from < at && bad == g->tensors.n; from++)
            bad = isfinite(*from) ? bad : i;
    }
    return bad;
}

/* Moves by what came; the factor of the difference is the next basis. */
static void gossip_apply(struct banyan_gossip *g, struct link *l, int form)
{
    const float *low = (l->lower ? l->out : l->in) + HEAD,
                *high = (l->lower ? l->in : l->out) + HEAD;
    size_t r = (size_t)g->cfg.low_rank;

    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct matrix *m = &g->matrix[i];
        float *d = g->flat; /* it has room: a factor is smaller than its tensor */
        size_t n = m->cols ? (form & 1 ? m->cols : m->rows) * r : form & 2 ? m->count : 0;

        if (m->cols) {
            for (size_t k = 0; k < n; k++)
                d[k] = low[k] - high[k];
            move(m, l->basis + m->basis, d, r, form & 1, l->lower ? 0.5f : -0.5f);
            memcpy(l->basis + m->basis, d, n * sizeof *d);
            orthonormalise(g, l, l->basis + m->basis, r, n / r, i);
        } else {
            for (size_t k = 0; k < n; k++)
                m->x[k] = 0.5f * (low[k] + high[k]);
        }
        low += n;
        high += n;
    }
}

/* Ends the communicator with this sentence: a rank that is farther away would wait. */
static int gossip_give_up(struct banyan_gossip *g, enum banyan_error code, const char *why)
{
    banyan_abort(g->comm, why);
    return bny_fail(code, "%s", why);
}

static int gossip_exchange(struct banyan_gossip *g, struct link *l, int whole)
{
    int form = (int)(l->uses & 1) | (whole ? 2 : 0), rc;
    struct form *f = &l->form[form];
    uint64_t step;
    size_t bad;
    char why[256];

    if (!f->count)
        return 0;
    bad = gossip_pack(g, l, form);
    if (bad < g->tensors.n) {
        snprintf(why, sizeof why,
                 "the parameter of tensor %s at rank %d has a value that is no finite number",
                 g->tensors.at[bad].name, banyan_comm_rank(g->comm));
        return gossip_give_up(g, BANYAN_EINVAL, why);
    }
    rc = banyan_start(f->recv);
    if (rc == 0)
        rc = banyan_start(f->send);
    if (rc == 0)
        rc = banyan_wait_all((struct banyan_request *[]){ f->recv, f->send }, 2, -1);
    if (rc < 0)
        return rc;
    memcpy(&step, l->in, sizeof step);
    if (step != g->steps) {
        snprintf(why, sizeof why,
                 "banyan_gossip_step: rank %d has done %llu steps, its neighbour rank %d %llu; "
                 "load states of the same step on all ranks",
                 banyan_comm_rank(g->comm), (unsigned long long)g->steps, l->peer,
                 (unsigned long long)step);
        return gossip_give_up(g, BANYAN_EMISMATCH, why);
    }
    g->bytes += f->count * sizeof(float);
    l->uses++;
    gossip_apply(g, l, form);
    return 0;
}

int banyan_gossip_step(struct banyan_gossip *g)
{
    int rounds, rc;

    rc = bny_object_enter(g, KIND, "banyan_gossip_step");
    if (rc < 0)
        return rc;
    rounds = g->cfg.rounds && g->cfg.rounds < g->colours ? g->cfg.rounds : g->colours;
    for (int k = 0; k < rounds && rc == 0; k++) {
        uint64_t turn = g->steps * (uint64_t)rounds + (uint64_t)k;
        struct link *l = &g->link[turn % (uint64_t)g->colours];

        for (int i = 0; i < g->cfg.iterations && rc == 0 && l->peer >= 0; i++)
            rc = gossip_exchange(g, l, i == 0);
    }
    if (rc == 0)
        g->steps++;
    return rc;
}

/* ---- the object ---- */

static int make_link(struct banyan_gossip *g, struct link *l)
{
    size_t most = 1, r = (size_t)g->cfg.low_rank;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int rc = 0;

    o.codec = "none";
    o.tag = TAG;
    for (int f = 0; f < 4; f++) {
        l->form[f].count = form_count(g, f);
        most = l->form[f].count > most ? l->form[f].count : most;
    }
    l->out = malloc(most * sizeof *l->out);
    l->in = malloc(most * sizeof *l->in);
    l->basis = calloc(g->basis + 1, sizeof *l->basis);
    if (!l->out || !l->in || !l->basis)
        return bny_fail(BANYAN_ENOMEM, "no memory for gossip with rank %d", l->peer);
    for (int f = 0; f < 4 && rc == 0; f++) {
        struct form *form = &l->form[f];

        if (!form->count || (!(f & 2) && g->cfg.iterations == 1))
            continue;
        rc = banyan_send_init(l->out, form->count, BANYAN_F32, l->peer, g->comm, &o,
                              &form->send);
        if (rc == 0)
            rc = banyan_recv_init(l->in, form->count, BANYAN_F32, l->peer, g->comm, &o,
                                  &form->recv);
    }
    for (size_t i = 0; i < g->tensors.n; i++) {
        const struct matrix *m = &g->matrix[i];

        if (!m->cols)
            continue;
        gossip_draw(g, l, i, l->basis + m->basis, m->cols * r);
        orthonormalise(g, l, l->basis + m->basis, r, m->cols, i);
    }
    return rc;
}

static int make_links(struct banyan_gossip *g)
{
    int rank = banyan_comm_rank(g->comm), rc;
    struct bny_gossip_graph graph;

    rc = bny_gossip_graph_make(&graph, g->graph, banyan_comm_count(g->comm));
    if (rc < 0)
        return rc;
    g->degree = graph.degree;
    g->colours = graph.colours;
    g->link = calloc((size_t)graph.colours + 1, sizeof *g->link);
    if (!g->link)
        rc = bny_fail(BANYAN_ENOMEM, "no memory for gossip with %d ranks", graph.degree);
    for (int c = 0; c < graph.colours && rc == 0; c++)
        g->link[c].peer = -1;
    for (size_t e = 0; e < graph.edges && rc == 0; e++) {
        const struct bny_gossip_edge *edge = &graph.edge[e];
        struct link *l = &g->link[edge->colour];

        if (edge->low != rank && edge->high != rank)
            continue;
        l->lower = edge->low == rank;
        l->peer = l->lower ? edge->high : edge->low;
        rc = make_link(g, l);
    }
    bny_gossip_graph_free(&graph);
    return rc;
}

int banyan_gossip_create(struct banyan_gossip **out, struct banyan_comm *comm,
                         const struct banyan_tensor *tensors, size_t n,
                         const struct banyan_gossip_config *cfg)
{
    struct banyan_gossip *g;
    int rc;

    g = bny_object_new(&handles, out, comm, "banyan_gossip_create", &rc);
    if (!g)
        return rc;
    g->comm = comm;
    rc = gossip_settings(g, cfg);
    if (rc == 0)
        rc = bny_tensors_copy(&g->tensors, tensors, n, 1u << BANYAN_F32);
    if (rc == 0)
        rc = make_matrices(g);
    if (rc == 0)
        rc = make_links(g);
    rc = bny_all_can(comm, rc, "banyan_gossip_create");
    if (rc == 0)
        rc = bny_tensors_agree(&g->tensors, comm);
    if (rc == 0)
        rc = gossip_agree(g);
    if (rc == 0) {
        bny_tensors_get(&g->tensors, g->flat);
        rc = banyan_broadcast(g->flat, g->tensors.count, BANYAN_F32, 0, comm, &bny_exact);
        bny_tensors_put(&g->tensors, g->flat);
    }
    if (rc < 0)
        banyan_gossip_free(g);
    else
        *out = g;
    return rc;
}

int banyan_gossip_free(struct banyan_gossip *g)
{
    int rc = bny_object_may_free(g, KIND, "banyan_gossip_free");

    if (rc <= 0)
        return rc;
    for (int c = 0; c < g->colours && g->link; c++) {
        for (int f = 0; f < 4; f++) {
            banyan_request_free(g->link[c].form[f].send);
            banyan_request_free(g->link[c].form[f].recv);
        }
        free(g->link[c].out);
        free(g->link[c].in);
        free(g->link[c].basis);
    }
    bny_tensors_free(&g->tensors);
    free(g->link);
    free(g->matrix);
    free(g->flat);
    free(g->graph);
    bny_handle_free(&handles, &g->object.handle);
    return 0;
}

/* flat becomes the mean of all ranks' parameters. */
static int mean(struct banyan_gossip *g)
{
    bny_tensors_get(&g->tensors, g->flat);
    return banyan_allreduce(g->flat, g->flat, g->tensors.count, BANYAN_F32, BANYAN_AVG, g->comm,
                            &bny_exact);
}

int banyan_gossip_consensus(struct banyan_gossip *g, double *out)
{
    double sums[2] = { 0, 0 }; /* squares: of the distance, over ranks; of the mean */
    int rc = bny_object_enter(g, KIND, "banyan_gossip_consensus");

    if (rc < 0)
        return rc;
    if (!out)
        return bny_fail(BANYAN_EINVAL, "banyan_gossip_consensus: out must not be NULL");
    rc = mean(g);
    for (size_t i = 0; i < g->tensors.n && rc == 0; i++) {
        const struct bny_tensor *t = &g->tensors.at[i];

        for (size_t k = 0; k < t->count; k++) {
            double m = (double)g->flat[t->before + k], d = (double)((float *)t->grad)[k] - m;

            sums[0] += d * d;
            sums[1] += m * m;
        }
    }
    if (rc == 0)
        rc = banyan_allreduce(sums, sums, 1, BANYAN_F64, BANYAN_AVG, g->comm, &bny_exact);
    *out = rc == 0 && sums[1] > 0 ? sqrt(sums[0] / sums[1]) : 0;
    return rc;
}

int banyan_gossip_finish(struct banyan_gossip *g)
{
    int rc;

    rc = bny_object_enter(g, KIND, "banyan_gossip_finish");
    if (rc < 0)
        return rc;
    rc = mean(g);
    if (rc == 0)
        bny_tensors_put(&g->tensors, g->flat);
    return rc;
}

int banyan_gossip_stats(const struct banyan_gossip *g, struct banyan_gossip_stats *out)
{
    struct banyan_gossip_stats s;
    int rc = bny_object_check(g, KIND, "banyan_gossip_stats");

    if (rc == 0)
        rc = bny_sized_check(out, "banyan_gossip_stats");
    if (rc < 0)
        return rc;
    s = (struct banyan_gossip_stats){ .size = sizeof s,
                                      .steps = g->steps,
                                      .bytes = g->bytes,
                                      .degree = g->degree,
                                      .rounds = g->colours };
    for (int c = 0; c < g->colours; c++)
        s.neighbours += g->link[c].peer >= 0;
    bny_sized_give(out, &s, sizeof s);
    return 0;
}

/* ---- state ---- */

/* Identity of a state: the tensors and the settings. */
static uint64_t gossip_hash(const struct banyan_gossip *g)
{
    struct bny_setting s[SETTINGS];

    gossip_list(g, s);
    return bny_settings_hash(s, SETTINGS, g->tensors.hash);
}

static void gossip_walk(struct bny_saved *s, struct banyan_gossip *g)
{
    bny_saved_bytes(s, &g->steps, sizeof g->steps);
    bny_saved_bytes(s, &g->bytes, sizeof g->bytes);
    for (int c = 0; c < g->colours; c++) {
        struct link *l = &g->link[c];

        if (l->peer < 0)
            continue;
        bny_saved_bytes(s, &l->uses, sizeof l->uses);
        bny_saved_bytes(s, l->basis, g->basis * sizeof *l->basis);
    }
}

size_t banyan_gossip_bytes(const struct banyan_gossip *g)
{
    struct bny_saved s;

    if (bny_object_check(g, KIND, "banyan_gossip_bytes") < 0)
        return 0;
    bny_saved_count(&s, KIND);
    bny_saved_bytes(&s, NULL, sizeof(uint64_t));
    gossip_walk(&s, (struct banyan_gossip *)(uintptr_t)g); /* counting changes nothing */
    return s.len;
}

int banyan_gossip_save(const struct banyan_gossip *g, void *buf, size_t cap)
{
    struct bny_saved s;
    uint64_t of;
    int rc = bny_object_check(g, KIND, "banyan_gossip_save");

    if (rc == 0)
        rc = bny_saved_write(&s, KIND, buf, cap, banyan_gossip_bytes(g));
    if (rc < 0)
        return rc;
    of = gossip_hash(g);
    bny_saved_bytes(&s, &of, sizeof of);
    gossip_walk(&s, (struct banyan_gossip *)(uintptr_t)g);
    return bny_saved_end(&s, NULL);
}

int banyan_gossip_load(struct banyan_gossip *g, const void *buf, size_t bytes)
{
    struct bny_saved s;
    uint64_t of;
    int rc = bny_object_check(g, KIND, "banyan_gossip_load");

    if (rc == 0)
        rc = bny_saved_read(&s, KIND, buf, bytes, "banyan_gossip_load");
    if (rc < 0)
        return rc;
    bny_saved_bytes(&s, &of, sizeof of);
    if (bytes != banyan_gossip_bytes(g) || of != gossip_hash(g))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_gossip_load: the state is of other tensors or settings");
    gossip_walk(&s, g);
    return bny_saved_end(&s, NULL);
}
