/* SPDX-License-Identifier: BSD-3-Clause */
/* Calls with codecs, and their laws. */
#include "tests/mp/lossy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "compress/codec.h"
#include "tests/mp/call.h"

struct lossy {
    struct lossy_call c;
    struct banyan_comm *comm;
    int n, rank;
    size_t block, lo, hi; /* elements [lo, hi) of the tensor are a result here */
    struct banyan_opts opts;
    int64_t shape[2];
    float *in, *out;
    double *sum, *mag; /* of what goes in */
    float *before;     /* the ranks' residuals together */
};

size_t lossy_count(int which)
{
    return which == 2 ? 840 * 400 : which ? 840 * 40 : 840;
}

/* ---- making one ---- */
static const char *random_codec(uint64_t *s, char *buf, size_t cap)
{
    static const char *const others[][2] = {
        { "topk", "delta=0.1,reselect=1" },
        { "sidco", "delta=0.05" },
        { "int8", "block=64" },
        { "randomk", "delta=0.2" },
        { "powersgd", "rank=4" },
        { "int8", "random=1" },
        { "int4", "random=1" },
        { "maxnorm", "width=16" },
        { "ebint", "rel=0.01" },
    };
    size_t count = 0, k;
    const char *params = "";

    while (bny_codecs[count])
        count++;
    k = bny_rng_below(s, count);
    if (bny_rng_below(s, 2))
        for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
            if (!strcmp(others[i][0], bny_codecs[k]->name))
                params = others[i][1];
    snprintf(buf, cap, "%s%s%s", bny_codecs[k]->name, *params ? ":" : "", params);
    if (strcmp(bny_codecs[k]->name, "none") != 0 && bny_rng_below(s, 3))
        snprintf(buf + strlen(buf), cap - strlen(buf), "%sforce=1", *params ? "," : ":");
    return bny_codecs[k]->name;
}

void lossy_random(struct lossy_call *c, int which, int n, uint64_t seed)
{
    static const enum coll colls[] = { C_ALLREDUCE,      C_ALLREDUCE, C_REDUCE,
                                       C_REDUCE_SCATTER, C_BROADCAST, C_ALLGATHER };
    static const size_t chunks[] = { 0, 0, 4096, 16384 };
    static const char *const schedules[] = {
        NULL, NULL, NULL, "ring", "star", "binomial", "halving", "double_binary_tree"
    };
    uint64_t s = seed;
    const char *name;

    memset(c, 0, sizeof *c);
    c->seed = bny_rng_next(&s);
    name = random_codec(&s, c->codec, sizeof c->codec);
    c->coll = colls[bny_rng_below(&s, sizeof colls / sizeof colls[0])];
    if (bny_codec_find(name)->family == BNY_CODEC_LINEAR)
        c->coll = C_ALLREDUCE;
    c->op = bny_rng_below(&s, 3) ? BANYAN_SUM : BANYAN_AVG;
    c->count = lossy_count(which);
    c->root = (int)bny_rng_below(&s, (uint64_t)n);
    c->schedule = schedules[bny_rng_below(&s, sizeof schedules / sizeof schedules[0])];
    c->chunk_bytes = chunks[bny_rng_below(&s, sizeof chunks / sizeof chunks[0])];
    c->shaped = (int)bny_rng_below(&s, 2);
}

/* ---- what goes in ---- */
static void add_input(struct lossy *y, const float *x, size_t at, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y->sum[at + i] += (double)x[i];
        y->mag[at + i] += fabs((double)x[i]);
    }
}

static void make_input(struct lossy *y)
{
    const struct lossy_call *c = &y->c;
    float *x = case_malloc(c->count * 4);

    for (int r = 0; r < y->n; r++) {
        size_t at = c->coll == C_ALLGATHER ? (size_t)r * y->block : 0;
        size_t n = c->coll == C_ALLGATHER ? y->block : c->count;

        if (c->coll == C_BROADCAST && r != c->root)
            continue;
        model_gauss(x, n, BANYAN_F32, model_mix(c->seed, (uint64_t)r));
        add_input(y, x, at, n);
        if (r == y->rank)
            memcpy(c->coll == C_BROADCAST ? y->out : y->in, x, n * 4);
    }
    free(x);
}

/* Sums of all ranks' residuals, in `into`. */
static int add_residuals(struct lossy *y, float *into)
{
    struct banyan_opts plain = BANYAN_OPTS_INIT;

    plain.codec = "none";
    return banyan_allreduce(banyan_codec_state_residual(y->c.state), into, y->c.count,
                            BANYAN_F32, BANYAN_SUM, y->comm, &plain);
}

struct lossy *lossy_open(const struct test *t, struct banyan_comm *comm,
                         const struct lossy_call *c)
{
    struct lossy *y = case_malloc(sizeof *y);

    *y = (struct lossy){ .c = *c,
                         .comm = comm,
                         .n = banyan_comm_count(comm),
                         .rank = banyan_comm_rank(comm),
                         .opts = BANYAN_OPTS_INIT };
    y->block = c->count / (size_t)y->n;
    y->hi = c->coll == C_REDUCE && y->rank != c->root ? 0 : c->count;
    if (c->coll == C_REDUCE_SCATTER) {
        y->lo = y->block * (size_t)y->rank;
        y->hi = y->lo + y->block;
    }
    y->opts.codec = y->c.codec;
    y->opts.schedule = c->schedule;
    y->opts.chunk_bytes = c->chunk_bytes;
    y->opts.codec_state = c->state;
    y->shape[0] = 24;
    y->shape[1] = (int64_t)c->count / 24;
    if (c->shaped && c->coll == C_ALLREDUCE) {
        y->opts.shape = y->shape;
        y->opts.ndim = 2;
    }
    y->in = case_malloc(c->count * 4);
    y->out = case_malloc(c->count * 4);
    y->before = case_malloc(c->count * 4);
    y->sum = case_malloc(c->count * sizeof *y->sum);
    y->mag = case_malloc(c->count * sizeof *y->mag);
    memset(y->sum, 0, c->count * sizeof *y->sum);
    memset(y->mag, 0, c->count * sizeof *y->mag);
    memset(y->out, 0x5c, c->count * 4);
    make_input(y);
    return y;
}

int lossy_begin(struct lossy *y)
{
    return y->c.state ? add_residuals(y, y->before) : 0;
}

/* ---- the call ---- */
int lossy_issue(struct lossy *y, struct banyan_request **rq)
{
    const struct lossy_call *c = &y->c;
    struct banyan_comm *comm = y->comm;
    const struct banyan_opts *o = &y->opts;

#define GO(name, ...)                                                                          \
    return rq ? banyan_##name##_init(__VA_ARGS__, comm, o, rq)                                 \
              : banyan_##name(__VA_ARGS__, comm, o)
    switch (c->coll) {
    case C_ALLREDUCE: GO(allreduce, y->in, y->out, c->count, BANYAN_F32, c->op);
    case C_REDUCE: GO(reduce, y->in, y->out, c->count, BANYAN_F32, c->op, c->root);
    case C_REDUCE_SCATTER: GO(reduce_scatter, y->in, y->out, y->block, BANYAN_F32, c->op);
    case C_BROADCAST: GO(broadcast, y->out, c->count, BANYAN_F32, c->root);
    default: GO(allgather, y->in, y->out, y->block, BANYAN_F32);
    }
#undef GO
}

/* ---- what comes out ---- */
static int averages(const struct lossy *y)
{
    return y->c.op == BANYAN_AVG &&
           (y->c.coll == C_ALLREDUCE || y->c.coll == C_REDUCE || y->c.coll == C_REDUCE_SCATTER);
}

static int check_law(const struct test *t, struct lossy *y, const char *what)
{
    float *after = case_malloc(y->c.count * 4);
    double most = 0, times = averages(y) ? y->n : 1;
    int rc = add_residuals(y, after);

    for (size_t i = y->lo; i < y->hi && rc == 0; i++) {
        double size = y->mag[i] + fabs((double)y->before[i]) + fabs((double)after[i]);
        most = size > most ? size : most;
    }
    for (size_t i = y->lo; i < y->hi && rc == 0; i++) {
        double went = y->sum[i] + (double)y->before[i],
               came = (double)y->out[i - y->lo] * times + (double)after[i];
        CHECK(t, fabs(went - came) <= 1e-5 * (1 + most),
              "%s: element %zu: %.9g went in (%.9g of it residuals), %.9g came out (%.9g)",
              what, i, went, (double)y->before[i], came, (double)after[i]);
    }
    free(after);
    return rc;
}

/* Partial sums are rounded at every hop, the result once more; f16 has a least step. */
static void check_bound(const struct test *t, const struct lossy *y, const char *what)
{
    const struct bny_codec *exact = NULL;
    int is_exact = bny_codec_parse(&exact, *y->c.codec ? y->c.codec : "none") == 0 &&
                   exact->ops->family <= BNY_CODEC_EXACT;
    double u = !strncmp(y->c.codec, "bf16", 4)  ? 0x1p-8
               : !strncmp(y->c.codec, "f16", 3) ? 0x1p-11
               : is_exact                       ? 0
                                                : INFINITY;
    double least = !strncmp(y->c.codec, "f16", 3) ? 0x1p-25 : 0;
    double times = averages(y) ? y->n : 1;

    for (size_t i = y->lo; i < y->hi; i++) {
        double bound = (1.02 * u + 0x1p-23) * (y->mag[i] + 1e-6) + least;
        double err = fabs((double)y->out[i - y->lo] * times - y->sum[i]);
        CHECK(t, err <= (y->n + 1) * bound, "%s: element %zu is %.9g, not %.9g", what, i,
              (double)y->out[i - y->lo], y->sum[i] / times);
    }
}

/* Momentum adds inputs several times: more comes out than went in, by intention. */
static int has_momentum(const char *codec)
{
    const struct bny_codec *c;

    return *codec && bny_codec_parse(&c, codec) == 0 && c->ops->elem_floats;
}

int lossy_close(const struct test *t, struct lossy *y, int rc)
{
    const struct lossy_call *c = &y->c;
    char what[256];

    snprintf(what, sizeof what,
             "%s op %u count %zu root %d codec %s schedule %s chunk %zu state %d shape %d, %d "
             "ranks",
             call_name((enum coll)c->coll), c->op, c->count, c->root, c->codec,
             c->schedule ? c->schedule : "-", c->chunk_bytes, c->state != NULL, c->shaped,
             y->n);
    if (rc == 0) {
        for (size_t i = y->lo; i < y->hi; i++)
            CHECK(t, isfinite(y->out[i - y->lo]), "%s: element %zu is %g", what, i,
                  (double)y->out[i - y->lo]);
        if (!c->state)
            check_bound(t, y, what);
        if (c->coll == C_ALLREDUCE || c->coll == C_BROADCAST || c->coll == C_ALLGATHER)
            rc = case_try_agree(t, y->comm, case_hash(y->out, c->count * 4), what);
        if (rc == 0 && c->state && !has_momentum(c->codec))
            rc = check_law(t, y, what);
    }
    free(y->in);
    free(y->out);
    free(y->before);
    free(y->sum);
    free(y->mag);
    free(y);
    return rc == -BANYAN_ENOTSUP ? 1 : rc;
}
