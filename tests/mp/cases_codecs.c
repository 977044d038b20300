/* SPDX-License-Identifier: BSD-3-Clause */
/* The law of error feedback between processes: whatever went into a codec's allreduces came
 * out, or is in the ranks' residuals. On the whole communicator and on a split of it, through
 * changes of parameters, schedules and chunks. With BANYAN_ENCODE_THREADS set this is also what
 * runs under the thread sanitizer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "tests/mp/case.h"
#include "tests/mp/model.h"
#include "tests/mp/call.h"

#define COLUMNS 250

/* Of a matrix; fewer in slow builds, where making the numbers takes most of the time. */
static int64_t law_rows(void)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");

    return scale && atof(scale) < 1 ? 60 : 240;
}

/* Codecs with other parameters in half of the steps; NULL: the same. */
static const char *variant(const char *name, int step, char *buf, size_t cap)
{
    static const char *const others[][2] = {
        { "topk", "delta=0.1,reselect=1" }, { "sidco", "delta=0.05" }, { "int8", "block=64" },
        { "randomk", "delta=0.2" },         { "powersgd", "rank=4" },
    };

    snprintf(buf, cap, "%s%cforce=1", name, strchr(name, ':') ? ',' : ':');
    for (size_t i = 0; step % 4 >= 2 && i < sizeof others / sizeof others[0]; i++)
        if (!strcmp(others[i][0], name))
            snprintf(buf, cap, "%s:%s,force=1", name, others[i][1]);
    return buf;
}

/* members: their ranks in the world, for what they contribute. */
static void law(struct test *t, struct banyan_comm *comm, const int *members, int n,
                const char *name, int any_forest, int steps)
{
    const int64_t shape[2] = { law_rows(), COLUMNS };
    size_t count = (size_t)(shape[0] * shape[1]);
    struct banyan_opts opts = BANYAN_OPTS_INIT, plain = BANYAN_OPTS_INIT;
    float *in = case_malloc(count * 4), *out = case_malloc(count * 4);
    double *lost = case_malloc(count * 8), size = 0;
    uint64_t key = t->seed;
    char codec[64];

    memset(lost, 0, count * 8);
    plain.codec = "none";
    opts.shape = shape;
    opts.ndim = 2;
    CHECK_OK(t, banyan_codec_state_create(&opts.codec_state, count, t->seed));
    for (int step = 0; step < steps; step++, key++) {
        int avg = step % 3 == 1;

        opts.codec = variant(name, step, codec, sizeof codec);
        opts.schedule = any_forest && step % 5 == 4 ? "ring" : NULL;
        opts.chunk_bytes = step % 2 ? 16384 : 0;
        for (int r = 0; r < n; r++) {
            model_gauss(in, count, BANYAN_F32, model_mix(key, (uint64_t)members[r]));
            for (size_t i = 0; i < count; i++) {
                lost[i] += (double)in[i];
                size += fabs((double)in[i]);
            }
        }
        model_gauss(in, count, BANYAN_F32, model_mix(key, (uint64_t)t->rank));
        CHECK_OK(t, banyan_allreduce(in, out, count, BANYAN_F32, avg ? BANYAN_AVG : BANYAN_SUM,
                                     comm, &opts));
        case_check_agree(t, comm, case_hash(out, count * 4), codec);
        for (size_t i = 0; i < count; i++)
            lost[i] -= (double)out[i] * (avg ? n : 1);
    }
    if (n > 1) { /* alone, nothing is encoded */
        CHECK_OK(t, banyan_allreduce(banyan_codec_state_residual(opts.codec_state), out, count,
                                     BANYAN_F32, BANYAN_SUM, comm, &plain));
        for (size_t i = 0; i < count; i++)
            CHECK(t, fabs(lost[i] - (double)out[i]) <= 1e-4 * (1 + size / count),
                  "%s, %d ranks: element %zu: %g went, the residuals have %g", name, n, i,
                  lost[i], (double)out[i]);
    }
    banyan_codec_state_free(opts.codec_state);
    free(in);
    free(out);
    free(lost);
}

/* arg: one codec's name. */
static int conservation(struct test *t)
{
    struct banyan_comm *half;
    int all[64], some[64], n = 0;

    CHECK_OK(t, banyan_comm_split(t->comm, t->rank % 2, t->n - t->rank, &half));
    for (int r = 0; r < t->n; r++)
        all[r] = r;
    for (int r = t->n - 1; r >= 0; r--) /* by key: backwards */
        if (r % 2 == t->rank % 2)
            some[n++] = r;
    for (size_t i = 0; bny_codecs[i]; i++) {
        const struct bny_codec_ops *ops = bny_codecs[i];

        if (!(ops->flags & BNY_CODEC_FEEDBACK) || ops->elem_floats ||
            (*t->arg && strcmp(t->arg, ops->name) != 0))
            continue;
        law(t, t->comm, all, t->n, ops->name, ops->family != BNY_CODEC_LINEAR, *t->arg ? 6 : 8);
        law(t, half, some, n, ops->name, ops->family != BNY_CODEC_LINEAR, *t->arg ? 6 : 8);
    }
    for (int i = 0; i < 4 && !*t->arg; i++) /* of both directions */
        law(t, i % 2 ? half : t->comm, i % 2 ? some : all, i % 2 ? n : t->n,
            i < 2 ? "levels:up=raw,down=int8" : "auto:nmse=1e-3,feedback=1", i < 2, 8);
    CHECK_OK(t, banyan_comm_finalize(half));
    return 0;
}

/* Exact codecs, insisted on, permitted, or the communicator's, where ranks have blocks of their
 * own lengths: how long chunks are must not depend on what one rank alone knows. */
static int vector_codecs(struct test *t)
{
    static const char *const codecs[] = { "",
                                          "lossless",
                                          "lossless:force=1",
                                          "blocksparse",
                                          "blocksparse:force=1",
                                          "levels:up=raw,down=lossless,force=1",
                                          "auto:like=int8,force=1" };
    static const enum coll colls[] = { C_SCATTERV, C_GATHERV, C_ALLGATHERV, C_ALLTOALLV,
                                       C_REDUCE_SCATTERV };
    uint64_t key = t->seed;

    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++)
        for (size_t k = 0; k < sizeof colls / sizeof colls[0]; k++)
            for (int round = 0; round < 4; round++) {
                struct call c = { .coll = colls[k],
                                  .dtype = BANYAN_F32,
                                  .op = (enum model_op)BANYAN_SUM,
                                  .count = 120000,
                                  .root = round % t->n,
                                  .deterministic = -1,
                                  .seed = key++ };

                snprintf(c.codec, sizeof c.codec, "%s", codecs[i]);
                CHECK(t, call_check(t, t->comm, &c) == 0, "%s refused", c.codec);
            }
    return 0;
}

/* ---- what is asked for and not used ---- */

static int told;

static void count_unused(void *ctx, enum banyan_log_level level, const char *line)
{
    told += level == BANYAN_LOG_WARN && strstr(line, "is not used") && strstr(line, ctx);
}

/* Told once for a communicator and codec, at rank 0; refused where it was insisted on. The
 * communicator's codec is int8:force=1. */
static int codec_unused(struct test *t)
{
    enum { N = 1 << 18 };
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    float *x = case_malloc(N * sizeof *x);
    struct banyan_comm *more;
    char why[16] = "f32 alone";

    memset(x, 0, N * sizeof *x);
    banyan_set_log(count_unused, why, BANYAN_LOG_WARN);
    for (int i = 0; i < 3; i++)
        CHECK_OK(t, banyan_allreduce(x, x, N, BANYAN_BF16, BANYAN_SUM, t->comm, NULL));
    CHECK(t, told == (t->rank == 0), "told %d times", told);
    CHECK_OK(t, banyan_comm_dup(t->comm, &more));
    strcpy(why, "force=1");
    told = 0;
    for (int i = 0; i < 3; i++) {
        opts.codec = i < 2 ? "int4" : "e4m3"; /* these ranks share memory */
        CHECK_OK(t, banyan_allreduce(x, x, N, BANYAN_F32, BANYAN_SUM, more, &opts));
    }
    CHECK(t, told == 2 * (t->rank == 0), "told %d times", told);
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    opts.codec = "int8:force=1";
    CHECK_RC(t, -BANYAN_ENOTSUP,
             banyan_allreduce(x, x, N, BANYAN_BF16, BANYAN_SUM, t->comm, &opts));
    CHECK_HAS(t, banyan_last_error(), "f32 alone");
    opts.codec = "powersgd:force=1";
    opts.shape = (const int64_t[]){ 997 }; /* flat */
    opts.ndim = 1;
    CHECK_RC(t, -BANYAN_ENOTSUP,
             banyan_allreduce(x, x, 997, BANYAN_F32, BANYAN_SUM, t->comm, &opts));
    CHECK_HAS(t, banyan_last_error(), "997 x 1");
    CHECK_OK(t, banyan_comm_finalize(more));
    free(x);
    return 0;
}

const struct mp_case cases_codecs[] = {
    { "codec_unused", codec_unused, CASE_NO_THREADS },
    { "conservation", conservation, 0 },
    { "vector_codecs", vector_codecs, 0 },
    { 0 },
};
