/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_perf's parts that need no ranks: options, statistics, JSON rows, and that checks find
 * wrong values. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "perf/perf.h"

static int parse(struct perf_opts *o, int argc, const char *const *args)
{
    char *argv[16];
    int status = -1, rc;

    for (int i = 0; i < argc; i++)
        argv[i] = (char *)(uintptr_t)args[i];
    rc = perf_opts_parse(o, argc, argv, &status);
    return rc ? status : 0;
}

Test(perf, options_are_those_of_nccl_tests)
{
    const char *args[] = { "banyan_perf", "reduce", "-b",   "4K", "-e",  "64M", "-f",
                           "2",           "-d",     "half", "-o", "max", "-r",  "3" };
    struct perf_opts o;

    cr_assert_eq(parse(&o, 14, args), 0);
    cr_assert_str_eq(o.what->name, "reduce");
    cr_assert_eq(o.min_bytes, 4096);
    cr_assert_eq(o.max_bytes, 64u << 20);
    cr_assert_eq(o.dtype, BANYAN_F16);
    cr_assert_eq(o.op, (unsigned)BANYAN_MAX);
    cr_assert_eq(o.root, 3);
    cr_assert_eq(perf_next_bytes(&o, 4096), 8192);
    cr_assert_eq(perf_next_bytes(&o, 64u << 20), 0);
}

Test(perf, steps_add_bytes_when_asked)
{
    const char *args[] = { "banyan_perf", "allreduce", "-b", "1K", "-e", "3K", "-i", "1K" };
    struct perf_opts o;

    cr_assert_eq(parse(&o, 8, args), 0);
    cr_assert_eq(perf_next_bytes(&o, 1024), 2048);
    cr_assert_eq(perf_next_bytes(&o, 2048), 3072);
    cr_assert_eq(perf_next_bytes(&o, 3072), 0);
}

Test(perf, wrong_options_exit_with_2)
{
    const char *bad[][4] = {
        { "banyan_perf", "allreduce", "-b", "4Q" },
        { "banyan_perf", "allreduce", "--gid", "0" },
        { "banyan_perf", "allreduce", "-d", "float9" },
        { "banyan_perf", "allreduce", "-o", "bor" },
        { "banyan_perf", "allreduce", "-f", "1" },
        { "banyan_perf", "broadcast", "--inplace", "0" },
        { "banyan_perf", "frob", "-n", "1" },
        { "banyan_perf", "allreduce", "--transport", "loop" },
    };
    struct perf_opts o;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(parse(&o, 4, bad[i]), 2, "%s %s", bad[i][1], bad[i][2]);
}

Test(perf, medians_lie_between_neighbours)
{
    double v[] = { 9, 1, 4, 2 };

    perf_sort(v, 4);
    cr_assert_eq(perf_percentile(v, 4, 0.5), 3);
    cr_assert_eq(perf_percentile(v, 4, 0), 1);
    cr_assert_eq(perf_percentile(v, 4, 1), 9);
    cr_assert_eq(perf_percentile(v, 1, 0.99), 1);
}

Test(perf, json_row_has_exactly_the_documented_fields)
{
    struct perf_row row = { .collective = "allreduce",
                            .transport = "shm",
                            .schedule = "a\"b",
                            .codec = "none",
                            .ranks = 2,
                            .bytes = 8,
                            .count = 2,
                            .dtype = "f32",
                            .op = "sum",
                            .inplace = 1,
                            .iters = 5,
                            .time_min_us = 1,
                            .time_median_us = 2,
                            .time_p99_us = 3,
                            .predicted_us = 1.5,
                            .algbw = 0.5,
                            .busbw = 0.25,
                            .wire_bytes = 8,
                            .wire_busbw = 0.125,
                            .wrong = 0,
                            .cpu_s = 0.75 };
    char line[1024];

    cr_assert_eq(perf_row_json(&row, line, sizeof line), (int)strlen(line));
    cr_assert_str_eq(
        line, "{\"collective\":\"allreduce\",\"transport\":\"shm\",\"schedule\":\"a\\\"b\","
              "\"codec\":\"none\","
              "\"ranks\":2,\"bytes\":8,\"count\":2,\"dtype\":\"f32\",\"op\":\"sum\","
              "\"inplace\":1,\"iters\":5,"
              "\"time_us\":{\"min\":1.000,\"median\":2.000,\"p99\":3.000},\"predicted_us\":1.5,"
              "\"algbw_GBps\":0.5,"
              "\"busbw_GBps\":0.25,\"wire_bytes\":8,\"wire_busbw_GBps\":0.125,\"wrong\":0,"
              "\"max_abs_err\":0,\"rel_err\":0,\"cpu_s\":0.75,\"roofline_GBps\":null}");
}

/* The expected value of each element of an allreduce, by the slow way: one element, one rank at
 * a time. */
static void reduce_by_hand(const struct perf_values *v, void *out, size_t n)
{
    size_t es = banyan_dtype_bytes(v->dtype);

    for (size_t i = 0; i < n; i++) {
        unsigned char x[8];
        float sum = 0;
        int32_t whole = 0;

        for (int r = 0; r < v->nranks; r++) {
            perf_values_fill(v, r, i, 1, x);
            if (v->dtype == BANYAN_F32)
                sum += *(float *)(void *)x;
            else
                whole += *(int32_t *)(void *)x;
        }
        memcpy((char *)out + i * es, v->dtype == BANYAN_F32 ? (void *)&sum : (void *)&whole,
               es);
    }
}

static uint64_t wrong_after(const struct perf_values *v, void *result, size_t n)
{
    struct perf_call call = {
        .recv = result, .count = n, .dtype = v->dtype, .nranks = v->nranks
    };
    struct perf_check check = { 0 };

    perf_values_check(v, perf_case_find("allreduce"), &call, &check);
    return check.wrong;
}

Test(perf, checks_accept_right_sums_and_count_wrong_ones)
{
    enum { N = 2500 };
    const enum perf_data_kind kinds[] = { PERF_RANDOM, PERF_GAUSS, PERF_LAPLACE, PERF_SPARSE };
    const enum banyan_dtype types[] = { BANYAN_F32, BANYAN_I32 };
    char result[N * 4];

    for (size_t k = 0; k < 4; k++)
        for (size_t d = 0; d < 2; d++) {
            struct perf_data_spec spec = { .kind = kinds[k], .p = 0.5 };
            struct perf_values v = { .spec = &spec,
                                     .dtype = types[d],
                                     .reduces = 1,
                                     .op = BANYAN_SUM,
                                     .nranks = 5,
                                     .count = N,
                                     .seed = 3 };

            reduce_by_hand(&v, result, N);
            cr_assert_eq(wrong_after(&v, result, N), 0, "kind %zu type %zu", k, d);
            result[4 * 1700 + 2] ^= 0x40;
            result[3] ^= 0x10;
            cr_assert_eq(wrong_after(&v, result, N), 2, "kind %zu type %zu", k, d);
        }
}

Test(perf, errors_are_judged_by_what_the_codec_promises)
{
    enum { N = 2500 };
    static const struct {
        const char *codec;
        int lossy, is_bound;
        float off; /* with which a result is wrong; 0: any finite one is right */
    } cases[] = {
        { "none", 0, 0, 0.01f },         { "lossless", 0, 0, 0.01f },
        { "bf16", 1, 1, 2.0f },          { "int8", 1, 1, 4.0f },
        { "int8:random=1", 1, 1, 8.0f }, { "topk:delta=0.01", 1, 0, 0 },
        { "powersgd:rank=2", 1, 0, 0 },
    };
    struct perf_data_spec spec = { .kind = PERF_GAUSS };
    float result[N], kept;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct perf_values v = { .spec = &spec,
                                 .dtype = BANYAN_F32,
                                 .reduces = 1,
                                 .op = BANYAN_SUM,
                                 .nranks = 4,
                                 .count = N,
                                 .seed = 3 };

        cr_assert_eq(perf_codec_error(&v.codec, cases[i].codec, perf_case_find("allreduce"),
                                      BANYAN_F32, BANYAN_SUM),
                     0);
        cr_assert_eq(v.codec.lossy, cases[i].lossy, "%s", cases[i].codec);
        cr_assert_eq(v.codec.is_bound, cases[i].is_bound, "%s", cases[i].codec);
        reduce_by_hand(&v, result, N);
        cr_assert_eq(wrong_after(&v, result, N), 0, "%s", cases[i].codec);
        kept = result[1700];
        result[1700] = kept + (cases[i].off ? cases[i].off : 1e6f);
        cr_assert_eq(wrong_after(&v, result, N), cases[i].off != 0, "%s", cases[i].codec);
        result[1700] = NAN;
        result[1701] = INFINITY;
        cr_assert_eq(wrong_after(&v, result, N), 2, "%s: not finite", cases[i].codec);
    }
    cr_assert(!perf_codec_serves("int8", perf_case_find("allreduce"), BANYAN_F32, BANYAN_MIN));
    cr_assert(!perf_codec_serves("powersgd", perf_case_find("reduce"), BANYAN_F32, BANYAN_SUM));
    cr_assert(
        perf_codec_serves("lossless", perf_case_find("alltoall"), BANYAN_BF16, BANYAN_MIN));
}

/* A budget's max bounds the whole error, and codecs that break it do not widen the bound. */
Test(perf, a_budget_bounds_errors)
{
    const struct perf_case *pc = perf_case_find("allreduce");
    struct perf_codec_error error;

    cr_assert_eq(perf_codec_error(&error, "auto:max=1e-2", pc, BANYAN_F32, BANYAN_SUM), 0);
    cr_expect(error.lossy && error.is_bound && error.of_sum == 1e-2);
    cr_expect_lt(error.of_largest, 1.0 / 100, "%g is int4's", error.of_largest);
    cr_assert_eq(perf_codec_error(&error, "auto:nmse=.1", pc, BANYAN_F32, BANYAN_SUM), 0);
    cr_expect(error.of_sum == INFINITY && error.of_largest > 1.0 / 20);
    cr_assert_eq(perf_codec_error(&error, "int8", pc, BANYAN_F32, BANYAN_SUM), 0);
    cr_expect(error.of_sum == INFINITY);
}

Test(perf, moved_blocks_are_checked_against_their_source)
{
    enum { N = 1500, RANKS = 3 };
    struct perf_data_spec spec = { .kind = PERF_RANDOM };
    struct perf_values v = {
        .spec = &spec, .dtype = BANYAN_U8, .nranks = RANKS, .count = N * RANKS
    };
    unsigned char got[RANKS * N];
    struct perf_call call = {
        .recv = got, .count = N, .dtype = BANYAN_U8, .rank = 1, .nranks = RANKS
    };
    struct perf_check check = { 0 };

    for (int r = 0; r < RANKS; r++) /* alltoall: block r is rank r's block for rank 1 */
        perf_values_fill(&v, r, N, N, got + r * N);
    perf_values_check(&v, perf_case_find("alltoall"), &call, &check);
    cr_assert_eq(check.wrong, 0);
    got[2 * N + 7] ^= 1;
    perf_values_check(&v, perf_case_find("alltoall"), &call, &check);
    cr_assert_eq(check.wrong, 1);
}

Test(perf, half_sums_of_many_ranks_stay_exact)
{
    struct perf_data_spec spec = { .kind = PERF_RANDOM };
    struct perf_values v = { .spec = &spec,
                             .dtype = BANYAN_BF16,
                             .reduces = 1,
                             .op = BANYAN_SUM,
                             .nranks = 300,
                             .count = 64 };
    double sum[64] = { 0 };

    for (int r = 0; r < v.nranks; r++) {
        uint16_t x[64];

        perf_values_fill(&v, r, 0, 64, x);
        for (int i = 0; i < 64; i++) {
            uint32_t u = (uint32_t)x[i] << 16;
            float f;

            memcpy(&f, &u, 4);
            sum[i] += (double)(f < 0 ? -f : f);
            cr_assert_leq(sum[i], 256, "rank %d element %d", r, i);
        }
    }
}

Test(perf, bus_factors_follow_the_definitions)
{
    cr_assert_float_eq(perf_bus_factor(perf_case_find("allreduce"), 4), 1.5, 1e-12);
    cr_assert_float_eq(perf_bus_factor(perf_case_find("allgather"), 4), 0.75, 1e-12);
    cr_assert_float_eq(perf_bus_factor(perf_case_find("broadcast"), 4), 1, 1e-12);
    cr_assert_float_eq(perf_bus_factor(perf_case_find("allreduce"), 1), 0, 1e-12);
}
