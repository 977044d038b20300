/* SPDX-License-Identifier: BSD-3-Clause */
/* Floats that do not add exactly: all ranks hold the same bits, errors stay within bounds,
 * deterministic mode gives the same bits always; codecs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/linear.h"
#include "tests/mp/case.h"
#include "tests/mp/model.h"
#include "tests/support/fp_modes.h"

static double unit_roundoff(enum banyan_dtype dtype)
{
    return dtype == BANYAN_F64   ? 0x1p-53
           : dtype == BANYAN_F32 ? 0x1p-24
           : dtype == BANYAN_F16 ? 0x1p-11
                                 : 0x1p-8;
}

/* The sum (or average) of all ranks' gauss data in double, and the sum of magnitudes. */
static void reference(double *sum, double *mag, size_t n, enum banyan_dtype dtype, int ranks,
                      uint64_t key)
{
    void *in = case_malloc(n * 8);

    memset(sum, 0, n * sizeof *sum);
    memset(mag, 0, n * sizeof *mag);
    for (int r = 0; r < ranks; r++) {
        model_gauss(in, n, dtype, model_mix(key, (uint64_t)r));
        for (size_t i = 0; i < n; i++) {
            sum[i] += model_get(in, i, dtype);
            mag[i] += fabs(model_get(in, i, dtype));
        }
    }
    free(in);
}

struct gauss {
    enum banyan_dtype dtype;
    banyan_op op;
    size_t n;
    const char *schedule, *codec;
    double error; /* relative to the magnitudes' sum, allowed */
};

/* One rank computes what all should hold, in turn: their bits are the same. */
static void gauss_bounds(struct test *t, const struct gauss *g, uint64_t key, const void *out)
{
    double *sum = case_malloc(g->n * 8), *mag = case_malloc(g->n * 8);
    double scale = g->op == BANYAN_AVG ? 1.0 / t->n : 1.0;

    reference(sum, mag, g->n, g->dtype, t->n, key);
    for (size_t i = 0; i < g->n; i++) {
        double err = fabs(model_get(out, i, g->dtype) - sum[i] * scale);
        CHECK(t, err <= g->error * (mag[i] * scale + 1e-6),
              "%s %s %s op %u: element %zu of %zu is %g, "
              "the sum is %g, of magnitudes %g",
              banyan_dtype_name(g->dtype), g->schedule ? g->schedule : "-",
              g->codec ? g->codec : "-", g->op, i, g->n, model_get(out, i, g->dtype),
              sum[i] * scale, mag[i] * scale);
    }
    free(sum);
    free(mag);
}

/* Returns 1 when refused, else checks bits and bounds. */
static int gauss_check(struct test *t, const struct gauss *g, uint64_t key)
{
    size_t bytes = g->n * banyan_dtype_bytes(g->dtype);
    void *in = case_malloc(bytes), *out = case_malloc(bytes);
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    int rc;

    opts.schedule = g->schedule;
    opts.codec = g->codec;
    model_gauss(in, g->n, g->dtype, model_mix(key, (uint64_t)t->rank));
    rc = banyan_allreduce(in, out, g->n, g->dtype, g->op, t->comm, &opts);
    CHECK(t, rc == 0 || rc == -BANYAN_ENOTSUP, "%s %s returned %d",
          g->schedule ? g->schedule : "-", g->codec ? g->codec : "-", rc);
    if (rc == 0) {
        case_check_agree(t, t->comm, case_hash(out, bytes),
                         g->codec      ? g->codec
                         : g->schedule ? g->schedule
                                       : "auto");
        if (key % (uint64_t)t->n == (uint64_t)t->rank)
            gauss_bounds(t, g, key, out);
    }
    free(in);
    free(out);
    return rc != 0;
}

/* Bit-identical on all ranks, whatever the schedule. */
static int identical(struct test *t)
{
    static const size_t counts[] = { 1, 3, 100, 4093, 40001 };
    const char *name;
    uint64_t key = t->seed;

    for (size_t s = 0; s == 0 || banyan_schedule_name(s - 1); s++) {
        name = s ? banyan_schedule_name(s - 1) : NULL;
        for (int d = BANYAN_F32; d <= BANYAN_BF16; d++)
            for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
                struct gauss g = { .dtype = (enum banyan_dtype)d,
                                   .n = counts[k],
                                   .schedule = name,
                                   .op = k & 1 ? BANYAN_AVG : BANYAN_SUM };
                g.error = unit_roundoff(g.dtype) * (t->n + 1);
                gauss_check(t, &g, key++);
            }
    }
    return 0;
}

/* Every codec, insisted on: ranks agree on every bit. Each value is quantised at most twice on
 * its way, so the error is that of the narrow format; what others lose is for the tests of the
 * codecs themselves. */
static int codecs(struct test *t)
{
    static const size_t counts[] = { 1, 100, 4093, 100003, 300007 };
    uint64_t key = t->seed;
    int served = 0;
    const char *name;

    for (size_t i = 0; (name = banyan_codec_name(i)); i++) {
        int exact =
            !strcmp(name, "none") || !strcmp(name, "lossless") || !strcmp(name, "blocksparse");
        double u = !strcmp(name, "bf16")  ? 0x1p-8
                   : !strcmp(name, "f16") ? 0x1p-11
                   : exact                ? 0x1p-24
                                          : 1e30;
        char text[64];
        snprintf(text, sizeof text, "%s%s", name, strcmp(name, "none") ? ":force=1" : "");
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            struct gauss g = { .dtype = BANYAN_F32,
                               .op = k & 1 ? BANYAN_AVG : BANYAN_SUM,
                               .n = counts[k],
                               .codec = text };
            g.error = 2.02 * u + (t->n + 1) * 0x1p-24;
            served += gauss_check(t, &g, key++) == 0;
        }
    }
    CHECK(t, served > 0, "no codec works");
    return 0;
}

/* Insisted on, and no shorter than the tensor: refused. */
static int is_dense(struct test *t, const char *codec, size_t n, const int64_t shape[2])
{
    const struct bny_codec *c = NULL;

    CHECK_OK(t, bny_codec_parse(&c, codec));
    return c->ops->linear->is_dense && c->ops->linear->is_dense(c, n, shape[0], shape[1]);
}

/* Linear codecs with a state and the tensor's shape, small and odd ones too: ranks agree, and
 * what went in is what came out and what the residuals of all ranks hold. */
static void stateful_check(struct test *t, const char *codec, const int64_t shape[2],
                           uint64_t key)
{
    size_t n = (size_t)(shape[0] * shape[1]);
    float *in = case_malloc(n * 4), *out = case_malloc(n * 4);
    double *lost = case_malloc(n * 8), *sum = case_malloc(n * 8), *mag = case_malloc(n * 8),
           size = 0;
    struct banyan_opts opts = BANYAN_OPTS_INIT, plain = BANYAN_OPTS_INIT;

    plain.codec = "none";
    opts.codec = codec;
    opts.shape = shape;
    opts.ndim = 2;
    if (is_dense(t, codec, n, shape)) {
        CHECK_RC(t, -BANYAN_ENOTSUP,
                 banyan_allreduce(in, out, n, BANYAN_F32, BANYAN_SUM, t->comm, &opts));
        CHECK_HAS(t, banyan_last_error(), "opts.shape");
        n = 0;
    }
    memset(lost, 0, n * 8);
    CHECK_OK(t, banyan_codec_state_create(&opts.codec_state, n, t->seed));
    for (int step = 0; step < 6 && n; step++, key++) {
        model_gauss(in, n, BANYAN_F32, model_mix(key, (uint64_t)t->rank));
        CHECK_OK(t, banyan_allreduce(in, out, n, BANYAN_F32, BANYAN_SUM, t->comm, &opts));
        case_check_agree(t, t->comm, case_hash(out, n * 4), codec);
        reference(sum, mag, n, BANYAN_F32, t->n, key);
        for (size_t i = 0; i < n; i++) {
            lost[i] += sum[i] - (double)out[i];
            size += mag[i];
        }
    }
    if (t->n > 1 && n) { /* alone, nothing is encoded */
        const float *ef = banyan_codec_state_residual(opts.codec_state);

        CHECK_OK(t, banyan_allreduce(ef, out, n, BANYAN_F32, BANYAN_SUM, t->comm, &plain));
        for (size_t i = 0; i < n; i++)
            CHECK(t, fabs(lost[i] - (double)out[i]) <= 1e-4 * (1 + size / (double)n),
                  "%s %d x %d: element %zu: %g went, the residuals have %g", codec,
                  (int)shape[0], (int)shape[1], i, lost[i], (double)out[i]);
    }
    banyan_codec_state_free(opts.codec_state);
    free(in);
    free(out);
    free(lost);
    free(sum);
    free(mag);
}

static int stateful(struct test *t)
{
    static const char *const specs[] = { "powersgd",   "powersgd:rank=2,classic=1",
                                         "sketch",     "sketch:delta=0.05,rows=3",
                                         "randomk",    "maxnorm:width=16",
                                         "maxnorm_ms", "ebint:rel=0.01" };
    static const int64_t shapes[][2] = {
        { 1, 1 }, { 7, 1 }, { 37, 53 }, { 200, 150 }, { 3, 10007 }
    };
    uint64_t key = t->seed;

    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++, key += 100) {
            char text[64];

            snprintf(text, sizeof text, "%s%sforce=1", specs[i],
                     strchr(specs[i], ':') ? "," : ":");
            stateful_check(t, text, shapes[k], key);
        }
    return 0;
}

/* Deterministic: element i has the same bits whatever count, chunk and schedule the call has.
 */
static int deterministic(struct test *t)
{
    static const size_t counts[] = { 1, 17, 1000, 4093, 50021, 200003 },
                        chunks[] = { 0, 4096, 65536 };
    enum { MOST = 200003 };
    float *in = case_malloc(MOST * 4), *base = case_malloc(MOST * 4),
          *out = case_malloc(MOST * 4);
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    size_t served = 0;

    model_gauss(in, MOST, BANYAN_F32, model_mix(t->seed, (uint64_t)t->rank));
    opts.deterministic = 1;
    CHECK_OK(t, banyan_allreduce(in, base, MOST, BANYAN_F32, BANYAN_SUM, t->comm, &opts));
    case_check_agree(t, t->comm, case_hash(base, MOST * 4), "deterministic");
    for (size_t s = 0; s == 0 || banyan_schedule_name(s - 1); s++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            int rc;
            opts.schedule = s ? banyan_schedule_name(s - 1) : NULL;
            opts.chunk_bytes = chunks[k % 3];
            memset(out, 0, counts[k] * 4);
            rc = banyan_allreduce(in, out, counts[k], BANYAN_F32, BANYAN_SUM, t->comm, &opts);
            CHECK(t, rc == 0 || (s && rc == -BANYAN_ENOTSUP), "returned %d", rc);
            if (rc == 0) {
                served++;
                CHECK(t, !memcmp(out, base, counts[k] * 4),
                      "%s count %zu chunk %zu: other bits", s ? opts.schedule : "auto",
                      counts[k], opts.chunk_bytes);
            }
        }
    CHECK(t, served >= sizeof counts / sizeof counts[0], "only %zu calls were served", served);
    /* In place, reduce, and another memory must not matter either. */
    opts.schedule = NULL;
    CHECK_OK(t, banyan_reduce(in, out, MOST, BANYAN_F32, BANYAN_SUM, 0, t->comm, &opts));
    CHECK(t, t->rank != 0 || !memcmp(out, base, MOST * 4), "reduce has other bits");
    CHECK_OK(t, banyan_allreduce(in, in, MOST, BANYAN_F32, BANYAN_SUM, t->comm, &opts));
    CHECK(t, !memcmp(in, base, MOST * 4), "in place has other bits");
    free(in);
    free(base);
    free(out);
    return 0;
}

/* A handle that is freed, unknown or of another type is refused, and nothing is sent. */
static void count_fn(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dtype)
{
    size_t *calls = ctx;

    ++*calls;
    for (size_t i = 0; i < n; i++)
        ((float *)inout)[i] += ((const float *)in)[i];
}

static int user_handles(struct test *t)
{
    size_t calls = 0;
    banyan_op op, premul;
    float x = 1, y = 0;
    int32_t k = 1;

    CHECK_OK(t, banyan_op_create_user(count_fn, &calls, 0, 0, 1, &op));
    CHECK_OK(t, banyan_op_create_premul_sum(2.0, &premul));
    CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_F32, op, t->comm, NULL));
    CHECK(t, y == (float)t->n, "user sum %g", (double)y);
    CHECK(t, t->n == 1 || calls > 0 || t->rank > 0, "the function was not called at rank 0");
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allreduce(&k, &k, 1, BANYAN_I32, premul, t->comm, NULL));
    CHECK_OK(t, banyan_op_free(op));
    CHECK_OK(t, banyan_op_free(premul));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_op_free(op));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_op_free(BANYAN_SUM));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_allreduce(&x, &y, 1, BANYAN_F32, op, t->comm, NULL));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_op_create_user(NULL, NULL, 0, 0, 1, &op));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_op_create_user(count_fn, NULL, 4, 3, 1, &op));
    case_check_works(t, t->comm);
    return 0;
}

/* An allreduce with the ranks' threads in those modes; returns the bits' hash. */
static uint64_t in_mode(struct test *t, struct banyan_comm *comm, int mode, size_t n,
                        banyan_op op, const char *codec)
{
    float *x = case_malloc(n * sizeof *x);
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    uint64_t hash;

    opts.codec = codec;
    fp_fill(x, n, t->rank);
    for (size_t i = 0; codec && i < n; i++) /* what every codec takes */
        if (i % 9 == 4 || i % 1024 == 77)
            x[i] = 1;
    fp_take(mode);
    CHECK_OK(t, banyan_allreduce(x, x, n, BANYAN_F32, op, comm, &opts));
    CHECK(t, fp_is(mode), "mode %d is another behind %zu floats", mode, n);
    fp_take(FP_DEFAULT);
    hash = case_hash(x, n * sizeof *x);
    free(x);
    return hash;
}

/* Each rank's thread has another mode, and a progress thread the default one: the bits are
 * those of the default, whoever adds. arg: "progress", or "". */
static int fp_modes(struct test *t)
{
    static const size_t counts[] = { 1, 64, 3000, 40000, 600000 };
    static const char *const codecs[] = { NULL, "f16:force=1", "int8:force=1", "topk:force=1" };
    struct banyan_config cfg = case_config(t);
    struct banyan_comm *comm;

    cfg.progress_thread = !strcmp(t->arg, "progress");
    CHECK_OK(t, case_init(t, &cfg, &comm));
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++)
        for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++)
            for (banyan_op op = BANYAN_SUM; op <= BANYAN_AVG; op++) {
                uint64_t want = in_mode(t, comm, FP_DEFAULT, counts[k], op, codecs[c]);
                case_check_agree(t, comm, want, "the default");
                for (int m = 0; m < FP_MODES; m++) {
                    int mode = (m + t->rank) % FP_MODES;
                    uint64_t got = in_mode(t, comm, mode, counts[k], op, codecs[c]);
                    CHECK(t, got == want, "mode %d: other bits of %zu floats, op %u, codec %s",
                          mode, counts[k], op, codecs[c] ? codecs[c] : "none");
                }
            }
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

const struct mp_case cases_ops[] = {
    { "identical", identical, 0 },
    { "codecs", codecs, 0 },
    { "stateful", stateful, 0 },
    { "deterministic", deterministic, 0 },
    { "user_handles", user_handles, 0 },
    { "fp_modes", fp_modes, CASE_OWN_INIT },
    { 0 },
};
