/* SPDX-License-Identifier: BSD-3-Clause */
/* Participation sets: results against the model of the ranks that take part, over random sets,
 * types, operations, schedules and ways to call; what the others send; codecs and residuals;
 * sets that differ; a participant that dies. */
#include <stdatomic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/rng.h"
#include "compress/codec.h"
#include "tests/mp/case.h"
#include "tests/mp/model.h"

#define RANKS_MAX 64
#define COUNTED   60000
/* Of one peer, what counts as bytes sent and is no payload: where bulk is to be put (struct
 * bny_window), and on a slow machine a probe or two. */
#define CONTROL_BYTES 480u

/* One call; the same on all ranks but for what buf is. */
struct part_call {
    int reduce, root, in_place, deterministic, m;
    enum banyan_dtype dtype;
    enum model_op op;
    size_t count;
    const char *schedule, *codec;
    int mode; /* 0: blocking, 1: a request, twice, 2: in a group with another call */
    uint64_t seed;
    uint8_t set[RANKS_MAX];
};

static void draw_set(uint8_t *set, int n, int *m, int may_be_empty, uint64_t *s)
{
    uint64_t share = 1 + bny_rng_below(s, 4); /* of 4 */

    *m = 0;
    for (int r = 0; r < n; r++) {
        set[r] = bny_rng_below(s, 4) < share;
        *m += set[r];
    }
    if (*m == 0 && !may_be_empty) {
        set[bny_rng_below(s, (uint64_t)n)] = 1;
        *m = 1;
    }
    if (may_be_empty && bny_rng_below(s, 8) == 0) {
        memset(set, 0, (size_t)n);
        *m = 0;
    }
}

static void draw(struct part_call *c, int n, uint64_t *s)
{
    static const size_t counts[] = { 0, 1, 3, 17, 240, 1000, 4096, 9000, 70000, 300000 };
    static const char *const schedules[] = {
        NULL,     NULL,      "direct",   "star",
        "ring",   "pat",     "binomial", "double_binary_tree",
        "bucket", "bine",    "trivance", "halving",
        "linear", "ring_uni"
    };
    static const char *const rooted[] = { NULL,       NULL,   "star",     "double_binary_tree",
                                          "binomial", "bine", "trivance", "linear" };
    size_t unit;

    memset(c, 0, sizeof *c);
    do {
        c->dtype = (enum banyan_dtype)bny_rng_below(s, BNY_DTYPE_COUNT);
        c->op = (enum model_op)bny_rng_below(s, M_OP_COUNT);
    } while (!model_op_fits(c->op, c->dtype));
    unit = model_unit(c->op);
    c->reduce = (int)bny_rng_below(s, 2);
    c->root = (int)bny_rng_below(s, (uint64_t)n);
    c->in_place = (int)bny_rng_below(s, 2);
    c->deterministic = bny_rng_below(s, 4) == 0;
    c->count = counts[bny_rng_below(s, sizeof counts / sizeof counts[0])] / unit * unit;
    c->schedule = c->reduce
                      ? rooted[bny_rng_below(s, sizeof rooted / sizeof rooted[0])]
                      : schedules[bny_rng_below(s, sizeof schedules / sizeof schedules[0])];
    c->mode = (int)bny_rng_below(s, 3);
    if (c->dtype == BANYAN_F32 && bny_rng_below(s, 4) == 0)
        c->codec = "lossless:force=1";
    c->seed = bny_rng_next(s);
    draw_set(c->set, n, &c->m,
             (int)c->op == BANYAN_SUM || (int)c->op == BANYAN_AVG || c->op == M_PREMUL, s);
}

static void model_part(void *dst, const struct part_call *c, int n)
{
    size_t esz = banyan_dtype_bytes(c->dtype);
    void *in = case_malloc(c->count * esz + 1);
    int first = 1;

    memset(dst, 0, c->count * esz);
    for (int r = 0; r < n; r++) {
        if (!c->set[r])
            continue;
        model_fill(first ? dst : in, 0, c->count, c->dtype, c->op, r, c->seed);
        model_begin(first ? dst : in, c->count, c->dtype, c->op, r);
        if (!first)
            model_add(dst, in, c->count, c->dtype, c->op);
        first = 0;
    }
    if (!first)
        model_end(dst, c->count, c->dtype, c->op, c->m);
    free(in);
}

static int issue(struct test *t, const struct part_call *c, const void *in, void *out,
                 banyan_op op, struct banyan_request **req)
{
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int rc;
    uint8_t set[RANKS_MAX];

    memcpy(set, c->set, sizeof set);
    inputs.participants = set;
    o.reduce = &inputs;
    o.schedule = c->schedule;
    o.codec = c->codec;
    o.deterministic = c->deterministic;
    if (req)
        rc =
            c->reduce
                ? banyan_reduce_init(in, out, c->count, c->dtype, op, c->root, t->comm, &o, req)
                : banyan_allreduce_init(in, out, c->count, c->dtype, op, t->comm, &o, req);
    else
        rc = c->reduce ? banyan_reduce(in, out, c->count, c->dtype, op, c->root, t->comm, &o)
                       : banyan_allreduce(in, out, c->count, c->dtype, op, t->comm, &o);
    memset(set, 2, sizeof set); /* it was borrowed for the call alone */
    return rc;
}

/* 0, or what refused it. Fills what is to be sent before each run. */
static int run(struct test *t, const struct part_call *c, void *in, void *out, banyan_op op)
{
    size_t bytes = c->count * banyan_dtype_bytes(c->dtype);
    int has_in = c->set[t->rank], gets = !c->reduce || c->root == t->rank;
    const void *send = !has_in ? NULL : c->in_place && gets ? out : in;
    struct banyan_request *rq = NULL;
    uint32_t other = 1;
    int rc = 0;

    if (has_in)
        model_fill((void *)(uintptr_t)send, 0, c->count, c->dtype, c->op, t->rank, c->seed);
    if (!has_in && c->in_place && gets)
        send = out;
    if (c->mode == 0)
        return issue(t, c, send, gets ? out : NULL, op, NULL);
    if (c->mode == 2) {
        CHECK_OK(t, banyan_group_start());
        rc = issue(t, c, send, gets ? out : NULL, op, NULL);
        CHECK_OK(t, banyan_allreduce(&other, &other, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
        CHECK_OK(t, banyan_group_end());
        CHECK(t, other == (uint32_t)t->n, "the other call of the group: %u", other);
        return rc;
    }
    rc = issue(t, c, send, gets ? out : NULL, op, &rq);
    for (int i = 0; i < 2 && rc == 0; i++) {
        if (i && has_in && send == out)
            model_fill(out, 0, c->count, c->dtype, c->op, t->rank, c->seed);
        else if (i && gets)
            memset(out, 0x5a, bytes);
        CHECK_OK(t, banyan_start(rq));
        CHECK_OK(t, banyan_wait(rq, -1));
    }
    CHECK_OK(t, banyan_request_free(rq));
    return rc;
}

static uint64_t wire_bytes(struct test *t)
{
    struct banyan_stats st = { .size = sizeof st };

    CHECK_OK(t, banyan_comm_stats(t->comm, &st));
    return st.wire_bytes;
}

static void one(struct test *t, const struct part_call *c, int *refused)
{
    size_t bytes = c->count * banyan_dtype_bytes(c->dtype);
    char *in = case_malloc(bytes + 1), *out = case_malloc(bytes + 1),
         *want = case_malloc(bytes + 1);
    int gets = !c->reduce || c->root == t->rank, made, rc;
    uint64_t before;
    banyan_op op;
    size_t bad;

    memset(out, 0x5a, bytes + 1);
    CHECK_OK(t, model_op_create(c->op, t->rank, &op, &made));
    before = wire_bytes(t);
    rc = run(t, c, in, out, op);
    *refused += rc != 0;
    CHECK(t, rc == 0 || (rc == -BANYAN_ENOTSUP && c->schedule), "%s returned %d (%s)",
          c->schedule ? c->schedule : "auto", rc, banyan_strerror(rc));
    if (rc == 0 && !c->set[t->rank] && c->mode != 2 && (c->reduce || 2 * c->m >= t->n))
        CHECK(t, wire_bytes(t) - before <= CONTROL_BYTES * (unsigned)t->n,
              "rank %d of %d takes no part and sent %llu bytes of %zu", t->rank, t->n,
              (unsigned long long)(wire_bytes(t) - before), bytes);
    if (rc == 0 && gets) {
        model_part(want, c, t->n);
        bad = model_compare(out, want, c->count, c->dtype, c->op);
        CHECK(t, bad == c->count,
              "%s of %zu %s, op %d, %d of %d, schedule %s, mode %d, in place %d: element %zu",
              c->reduce ? "reduce" : "allreduce", c->count, banyan_dtype_name(c->dtype),
              (int)c->op, c->m, t->n, c->schedule ? c->schedule : "auto", c->mode, c->in_place,
              bad);
    }
    CHECK(t, out[bytes] == 0x5a, "written behind the result");
    if (made)
        CHECK_OK(t, banyan_op_free(op));
    free(in);
    free(out);
    free(want);
}

/* arg: calls. */
static int participants(struct test *t)
{
    int calls = *t->arg ? atoi(t->arg) : 200, refused = 0;
    uint64_t s = t->seed;

    for (int i = 0; i < calls; i++) {
        struct part_call c;

        draw(&c, t->n, &s);
        one(t, &c, &refused);
    }
    CHECK(t, refused < calls / 3, "%d of %d calls were refused", refused, calls);
    case_check_works(t, t->comm);
    return 0;
}

/* Wire bytes are counted: of all ranks together those of the way up among m and down to all,
 * of a rank that is not in the set none, whatever the schedule. */
static int set_bytes(struct test *t)
{
    static const char *const schedules[] = { "star", "ring", "binomial", "direct" };
    float *x = case_malloc(COUNTED * 4), *y = case_malloc(COUNTED * 4);
    uint64_t slack = CONTROL_BYTES * (uint64_t)t->n * (uint64_t)t->n;

    for (size_t i = 0; i < COUNTED; i++)
        x[i] = 1;
    for (int k = 0; k < 4; k++)
        for (int m = 1; m <= t->n; m++) {
            int direct = k == 3;
            size_t count = direct ? 500 : COUNTED, bytes = count * 4;
            uint64_t sent, all, want;
            struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
            struct banyan_opts o = BANYAN_OPTS_INIT;
            uint8_t set[RANKS_MAX] = { 0 };

            inputs.participants = set;
            o.reduce = &inputs;
            o.schedule = schedules[k];
            for (int r = 0; r < m; r++)
                set[t->n - 1 - r] = 1;
            sent = wire_bytes(t);
            CHECK_OK(t, banyan_allreduce(set[t->rank] ? x : NULL, y, count, BANYAN_F32,
                                         BANYAN_SUM, t->comm, &o));
            sent = wire_bytes(t) - sent;
            CHECK(t, y[count - 1] == (float)m, "%g of %d", (double)y[count - 1], m);
            if (!set[t->rank] && (2 * m >= t->n || direct))
                CHECK(t, sent <= CONTROL_BYTES * (unsigned)t->n, "%s: absent of %d: %llu bytes",
                      schedules[k], m, (unsigned long long)sent);
            CHECK_OK(t,
                     banyan_allreduce(&sent, &all, 1, BANYAN_U64, BANYAN_SUM, t->comm, NULL));
            want = (uint64_t)(direct ? m * (t->n - 1) : m - 1 + t->n - 1) * bytes;
            CHECK(t, all >= want && all <= want + slack,
                  "%s, %d of %d: %llu bytes in all, not %llu", schedules[k], m, t->n,
                  (unsigned long long)all, (unsigned long long)want);
        }
    free(x);
    free(y);
    return 0;
}

/* ---- codecs ---- */

#define COUNT 20000

struct law {
    float *in, *out, *before;
    double *lost;
    double size;
    struct banyan_reduce_opts inputs;
};

/* root < 0: an allreduce, else a reduce. */
static void law_step(struct test *t, struct law *l, struct banyan_opts *o, const uint8_t *set,
                     int m, int avg, int root, uint64_t key)
{
    struct banyan_opts plain = BANYAN_OPTS_INIT;
    const float *residual = banyan_codec_state_residual(o->codec_state);

    plain.codec = "none";
    memcpy(l->before, residual, COUNT * 4);
    for (int r = 0; r < t->n; r++) {
        if (!set[r])
            continue;
        model_gauss(l->in, COUNT, BANYAN_F32, model_mix(key, (uint64_t)r));
        for (size_t i = 0; i < COUNT; i++) {
            l->lost[i] += (double)l->in[i];
            l->size += fabs((double)l->in[i]);
        }
    }
    model_gauss(l->in, COUNT, BANYAN_F32, model_mix(key, (uint64_t)t->rank));
    l->inputs.participants = set;
    o->reduce = &l->inputs;
    if (root < 0)
        CHECK_OK(t, banyan_allreduce(set[t->rank] ? l->in : NULL, l->out, COUNT, BANYAN_F32,
                                     avg ? BANYAN_AVG : BANYAN_SUM, t->comm, o));
    else
        CHECK_OK(t, banyan_reduce(set[t->rank] ? l->in : NULL, l->out, COUNT, BANYAN_F32,
                                  avg ? BANYAN_AVG : BANYAN_SUM, root, t->comm, o));
    if (root >= 0) /* as it is, for the account that all keep */
        CHECK_OK(t, banyan_broadcast(l->out, COUNT, BANYAN_F32, root, t->comm, &plain));
    case_check_agree(t, t->comm, case_hash(l->out, COUNT * 4), o->codec);
    for (size_t i = 0; i < COUNT; i++)
        l->lost[i] -= (double)l->out[i] * (avg ? m : 1);
    residual = banyan_codec_state_residual(o->codec_state);
    if (!set[t->rank])
        CHECK(t, !memcmp(l->before, residual, COUNT * 4),
              "%s: the residual of a rank that takes no part has changed", o->codec);
}

/* What went in came out or waits in the residuals of those who took part; no other changes. */
static int set_codecs(struct test *t)
{
    static const int64_t shape[2] = { 100, 200 };
    uint64_t s = t->seed;
    struct law l = { .in = case_malloc(COUNT * 4),
                     .out = case_malloc(COUNT * 4),
                     .before = case_malloc(COUNT * 4),
                     .lost = case_malloc(COUNT * 8),
                     .inputs = BANYAN_REDUCE_OPTS_INIT };

    for (size_t i = 0; bny_codecs[i]; i++) {
        struct banyan_opts o = BANYAN_OPTS_INIT, plain = BANYAN_OPTS_INIT;
        char codec[64];

        if (!(bny_codecs[i]->flags & BNY_CODEC_FEEDBACK) || bny_codecs[i]->elem_floats ||
            (*t->arg && strcmp(t->arg, bny_codecs[i]->name) != 0))
            continue;
        snprintf(codec, sizeof codec, "%s:force=1", bny_codecs[i]->name);
        o.codec = codec;
        plain.codec = "none";
        o.shape = shape;
        o.ndim = 2;
        l.size = 0;
        memset(l.lost, 0, COUNT * 8);
        CHECK_OK(t, banyan_codec_state_create(&o.codec_state, COUNT, t->seed));
        for (int step = 0; step < 12; step++) {
            int linear = bny_codecs[i]->family == BNY_CODEC_LINEAR, m,
                root = linear || step % 2 ? -1 : (int)bny_rng_below(&s, (uint64_t)t->n);
            uint8_t set[RANKS_MAX];

            draw_set(set, t->n, &m, 1, &s);
            o.schedule = linear || step % 3 != 2 ? NULL : root < 0 ? "ring" : "binomial";
            o.chunk_bytes = step % 2 ? 16384 : 0;
            law_step(t, &l, &o, set, m, step % 3 == 1, root, s + (uint64_t)step);
        }
        CHECK_OK(t, banyan_allreduce(banyan_codec_state_residual(o.codec_state), l.out, COUNT,
                                     BANYAN_F32, BANYAN_SUM, t->comm, &plain));
        for (size_t k = 0; k < COUNT && t->n > 1; k++)
            CHECK(t, fabs(l.lost[k] - (double)l.out[k]) <= 1e-4 * (1 + l.size / COUNT),
                  "%s, %d ranks: element %zu: %g went, the residuals have %g", codec, t->n, k,
                  l.lost[k], (double)l.out[k]);
        banyan_codec_state_free(o.codec_state);
    }
    free(l.in);
    free(l.out);
    free(l.before);
    free(l.lost);
    return 0;
}

/* A factor that waits for the residuals waits on while the rank takes no part. */
static int set_scale(struct test *t)
{
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    float *x = case_malloc(COUNT * 4), *y = case_malloc(COUNT * 4);
    uint8_t set[RANKS_MAX];
    float old;

    memset(set, 1, sizeof set);
    o.codec = "topk:delta=0.01,force=1";
    inputs.participants = set;
    o.reduce = &inputs;
    model_gauss(x, COUNT, BANYAN_F32, model_mix(t->seed, (uint64_t)t->rank));
    CHECK_OK(t, banyan_codec_state_create(&o.codec_state, COUNT, 1));
    CHECK_OK(t, banyan_allreduce(x, y, COUNT, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    old = banyan_codec_state_residual(o.codec_state)[7];
    CHECK_OK(t, banyan_codec_state_scale(o.codec_state, 0.5));
    set[0] = 0;
    memset(x, 0, COUNT * 4);
    CHECK_OK(
        t, banyan_allreduce(t->rank ? x : NULL, y, COUNT, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    if (t->rank == 0)
        CHECK(t, banyan_codec_state_residual(o.codec_state)[7] == old, "rank 0 was scaled");
    set[0] = 1;
    CHECK_OK(t, banyan_allreduce(x, y, COUNT, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    if (t->rank == 0 && banyan_codec_state_residual(o.codec_state)[7] != 0)
        CHECK(t, banyan_codec_state_residual(o.codec_state)[7] == old / 2, "%g of %g",
              (double)banyan_codec_state_residual(o.codec_state)[7], (double)old);
    banyan_codec_state_free(o.codec_state);
    free(x);
    free(y);
    return 0;
}

/* ---- misuse ---- */

static int set_misuse(struct test *t)
{
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint8_t set[RANKS_MAX];
    float x[4] = { 1, 2, 3, 4 }, y[4] = { 9, 9, 9, 9 };

    memset(set, 0, sizeof set);
    inputs.participants = set;
    o.reduce = &inputs;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allreduce(x, y, 4, BANYAN_F32, BANYAN_MAX, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "nobody takes part");
    CHECK_OK(t, banyan_allreduce(NULL, y, 4, BANYAN_F32, BANYAN_AVG, t->comm, &o));
    CHECK(t, y[0] == 0 && y[3] == 0, "the mean of nothing is %g", (double)y[0]);
    CHECK_RC(t, -BANYAN_EINVAL, banyan_broadcast(y, 4, BANYAN_F32, 0, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "broadcast takes all inputs");
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allgather(x, y, 1, BANYAN_F32, t->comm, &o));
    set[t->n - 1] = 7;
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allreduce(x, y, 4, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK_HAS(t, banyan_last_error(), "participants: [");
    set[t->n - 1] = 1;
    if (t->n > 1) {
        o.schedule = "recursive_doubling";
        CHECK_RC(t, -BANYAN_ENOTSUP,
                 banyan_allreduce(x, y, 4, BANYAN_F32, BANYAN_SUM, t->comm, &o));
        CHECK_HAS(t, banyan_last_error(), "with a participation set");
    }
    o.schedule = NULL;
    if (t->rank == t->n - 1)
        CHECK_RC(t, -BANYAN_EINVAL,
                 banyan_allreduce(NULL, y, 4, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    inputs.size = sizeof inputs.size; /* a caller that knows no member */
    CHECK_OK(t, banyan_allreduce(x, y, 4, BANYAN_F32, BANYAN_SUM, t->comm, &o));
    CHECK(t, y[0] == (float)t->n, "%g", (double)y[0]);
    case_check_works(t, t->comm);
    return 0;
}

/* Ranks differ in the set: no wrong sum, an error everywhere; where nothing is needed of who
 * differs, by the next call that needs it. arg: the count. */
static int set_mismatch(struct test *t)
{
    size_t count = (size_t)atol(t->arg);
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint8_t set[RANKS_MAX];
    float *x = case_malloc(count * 4), *y = case_malloc(count * 4);
    int rc = 0;

    memset(x, 0, count * 4);
    memset(set, 0, sizeof set);
    set[0] = set[1] = 1;
    if (t->rank == t->n - 1)
        set[2] = 1;
    inputs.participants = set;
    o.reduce = &inputs;
    o.timeout_s = 20;
    for (int i = 0; i < 100 && rc == 0; i++)
        rc = banyan_allreduce(x, y, count, BANYAN_F32, BANYAN_SUM, t->comm, &o);
    if (rc == 0)
        rc = banyan_barrier(t->comm, NULL);
    /* Who leaves before the others have heard is dead to them: that is another test's. */
    mp_shared_barrier(t->shared, t->n);
    CHECK(t, rc == -BANYAN_EMISMATCH, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), t->n > 15 ? "participants of hash" : "participants 0,1");
    free(x);
    free(y);
    return 0;
}

/* As until_death of cases_failures.c: the harness kills the rank arg, which takes part. */
static int set_death(struct test *t)
{
    size_t count = 1u << 20;
    float *x = case_malloc(count * 4);
    struct banyan_reduce_opts inputs = BANYAN_REDUCE_OPTS_INIT;
    struct banyan_opts o = BANYAN_OPTS_INIT;
    uint8_t set[RANKS_MAX] = { 0 };
    int victim = atoi(t->arg), rc = 0, blamed = -2;
    uint64_t s = t->seed;

    memset(x, 0, count * 4);
    inputs.participants = set;
    o.reduce = &inputs;
    while (rc == 0) {
        for (int r = 0; r < t->n; r++)
            set[r] = r == victim || bny_rng_below(&s, 2);
        rc = banyan_allreduce(set[t->rank] ? x : NULL, x, count, BANYAN_F32, BANYAN_SUM,
                              t->comm, &o);
        atomic_fetch_add(&t->shared->marker[t->rank], 1);
    }
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_RC(t, rc, banyan_async_error(t->comm, &blamed, NULL, 0));
    CHECK(t, blamed == victim, "rank %d is blamed, %d was killed", blamed, victim);
    free(x);
    return 0;
}

const struct mp_case cases_participants[] = {
    { "participants", participants, 0 },    { "set_bytes", set_bytes, 0 },
    { "set_codecs", set_codecs, 0 },        { "set_scale", set_scale, 0 },
    { "set_misuse", set_misuse, 0 },        { "set_mismatch", set_mismatch, CASE_FAILS },
    { "set_death", set_death, CASE_FAILS }, { 0 },
};
