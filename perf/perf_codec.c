/* SPDX-License-Identifier: BSD-3-Clause */
/* Error bounds of codecs, from the top comments of compress/codec_*.c. What is not in the table
 * promises nothing of a single element (signs, sparse and low-rank codecs, random roundings to
 * the whole norm): there, ranks must agree to the bit and values must be finite, and rel_err
 * tells the rest. */
#include "perf/perf_codec.h"

#include <math.h>
#include <string.h>

#include "collectives/plan/budget_choice.h"
#include "compress/speed.h"
#include "perf/perf.h"

static const struct {
    char name[12];
    double relative, of_largest;
} bounds[] = {
    { "f16", 0x1p-11, 0 },
    { "bf16", 0x1p-8, 0 },
    { "int8", 0, 1.0 / 254 + 0x1p-22 },
    { "int4", 0, 1.0 / 14 + 0x1p-22 },
    { "int8z", 0, 1.0 / 254 + 0x1p-22 },
    { "int4z", 0, 1.0 / 14 + 0x1p-22 },
    { "e4m3", 0.0626, 0x1p-10 / 448 },
    { "e5m2", 0.1251, 0x1p-17 },
    { "mxfp8", 0.14, 0x1p-10 / 256 }, /* saturates: 64 of 464 */
    { "mxfp4", 0.34, 1.0 / 16 },      /* saturates: 2 of 6 */
    { "natural", 1, 0 },
    { "adaq", 0, 0.501 }, /* 2 bits at least */
};

/* As bny_check_codec() of collectives/api/arguments.c: a communicator's codec steps aside where
 * it does not fit. */
static int serves(const struct bny_codec_ops *ops, const struct perf_case *pc,
                  enum banyan_dtype dtype, unsigned op)
{
    const char *collective = pc->name;
    int sums = op == BANYAN_SUM || op == BANYAN_AVG || op == PERF_MULSUM;
    int linear = ops->family == BNY_CODEC_LINEAR;

    if (ops->family == BNY_CODEC_RAW || (pc->flags & (PERF_RAW | PERF_NO_DATA)) ||
        !strcmp(collective, "sendrecv"))
        return 0;
    if (ops->family == BNY_CODEC_EXACT)
        return ((ops->dtypes ? ops->dtypes : 1u << BANYAN_F32) >> dtype & 1) != 0;
    if (dtype != BANYAN_F32)
        return 0;
    if (!strcmp(collective, "allreduce"))
        return sums;
    if (!strcmp(collective, "reduce") || !strcmp(collective, "reduce_scatter"))
        return sums && !linear;
    return (!strcmp(collective, "broadcast") || !strcmp(collective, "allgather")) && !linear;
}

int perf_codec_serves(const char *codec, const struct perf_case *pc, enum banyan_dtype dtype,
                      unsigned op)
{
    const struct bny_codec *c;

    return bny_codec_parse(&c, codec) == 0 && serves(c->ops, pc, dtype, op);
}

static int rounds_at_random(const struct bny_codec *codec)
{
    for (int i = 0; i < BNY_CODEC_PARAMS && codec->ops->params[i].name[0]; i++)
        if (!strcmp(codec->ops->params[i].name, "random"))
            return codec->param[i] != 0;
    return 0;
}

/* Widens the bound by that of a codec of one direction; NULL: raw. */
static void widen(struct perf_codec_error *out, const struct bny_codec *c)
{
    double twice = c && rounds_at_random(c) ? 2 : 1;
    size_t i = 0, n = sizeof bounds / sizeof bounds[0];

    if (!c || c->ops->family == BNY_CODEC_EXACT)
        return;
    while (i < n && strcmp(bounds[i].name, c->ops->name) != 0)
        i++;
    if (i == n) {
        out->is_bound = 0;
        return;
    }
    out->relative = fmax(out->relative, twice * bounds[i].relative);
    out->of_largest = fmax(out->of_largest, twice * bounds[i].of_largest);
}

/* May a plan of some ranks choose this pair of a budget? */
static int may_run(const struct bny_budget *b, const struct bny_codec *c,
                   const struct perf_case *pc)
{
    int both = !strcmp(pc->name, "allreduce"), sums = both || (pc->flags & PERF_REDUCES);
    struct bny_loss up, down, least = { 0, 0 };

    bny_codec_loss(c->up, &up.nmse, &up.max);
    bny_codec_loss(c->down, &down.nmse, &down.max);
    if (sums) /* of two ranks */
        least = (struct bny_loss){ up.nmse / 2, up.max };
    if (both || !sums)
        least = (struct bny_loss){ least.nmse + down.nmse, least.max + down.max };
    return (both || c->up == c->down) && bny_budget_keeps(b, &least);
}

int perf_codec_error(struct perf_codec_error *out, const char *codec,
                     const struct perf_case *pc, enum banyan_dtype dtype, unsigned op)
{
    const struct bny_codec *c, *const *may = &c;
    int rc, n = 1;

    *out = (struct perf_codec_error){ 0 };
    rc = bny_codec_parse(&c, codec);
    if (rc)
        return rc;
    if (c->ops->family == BNY_CODEC_EXACT || !serves(c->ops, pc, dtype, op))
        return 0;
    out->lossy = 1;
    out->feeds = (c->ops->flags & BNY_CODEC_FEEDBACK) && (pc->flags & PERF_REDUCES);
    out->is_bound = 1;
    out->of_sum = INFINITY;
    if (c->budget) { /* any of them */
        may = c->budget->pairs;
        n = c->budget->npairs;
        out->of_sum = c->budget->max;
    }
    for (int i = 0; i < n; i++) {
        if (c->budget && !may_run(c->budget, may[i], pc))
            continue;
        widen(out, may[i]->up);
        widen(out, may[i]->down);
    }
    return 0;
}
