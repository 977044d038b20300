/* SPDX-License-Identifier: BSD-3-Clause */
/* The same random blocks of elements on every rank (random-k with a shared seed): only values
 * are sent, and summed like any others. The blocks of a tensor are divided into as many groups
 * as are sent; each group draws one, by seed and step.
 *
 * One stage: SUM of f32, delta * n of them. The residual keeps the rest; with unbiased=1, and
 * no residual, a block is multiplied by its group's size instead, and E[decoded] = sum. */
#include "compress/codecs.h"
#include "compress/fields.h"
#include "compress/kernels/code.h"

enum { DELTA, BLOCK, UNBIASED };

struct plan {
    size_t blocks, groups, block;
};

static struct plan plan_of(const struct bny_codec *c, size_t n)
{
    size_t block = (size_t)c->param[BLOCK], blocks = (n + block - 1) / block;
    size_t groups = (size_t)(c->param[DELTA] * (double)blocks + 0.5);

    return (struct plan){ blocks, blocks && !groups ? 1 : groups, block };
}

static size_t group_start(const struct plan *p, size_t g)
{
    return (size_t)((__extension__(unsigned __int128) p->blocks * g) / p->groups);
}

/* The first element of group g's block; *len of them; the group has *size blocks. */
static size_t drawn(const struct bny_linear *l, const struct plan *p, size_t g, size_t *len,
                    size_t *size)
{
    struct bny_rand key = bny_rand_key(l->seed, l->step, 0);
    size_t first = group_start(p, g), at;

    *size = group_start(p, g + 1) - first;
    at = (first + (size_t)((uint64_t)bny_rand_at(key, (uint32_t)g) * *size >> 32)) * p->block;
    *len = l->n - at < p->block ? l->n - at : p->block;
    return at;
}

static int randomk_nstages(const struct bny_codec *c)
{
    return 1;
}

static size_t randomk_code(const struct bny_codec *c, size_t n, int64_t rows, int64_t cols)
{
    struct plan p = plan_of(c, n);

    return 4 * p.groups * p.block;
}

static int randomk_contribute(struct bny_linear *l, int k, struct bny_stage *s)
{
    struct plan p = plan_of(l->codec, l->n);
    float *code = l->code;
    size_t out = 0, len, size;

    for (size_t g = 0; g < p.groups; g++) {
        size_t at = drawn(l, &p, g, &len, &size);
        float factor = l->codec->param[UNBIASED] != 0 && !l->ef ? (float)size : 1;

        for (size_t i = 0; i < len; i++)
            code[out++] = bny_linear_value(l, at + i) * factor;
    }
    bny_linear_poison(l);
    *s = (struct bny_stage){ BANYAN_F32, BANYAN_SUM, out };
    return 0;
}

static int randomk_finish(struct bny_linear *l)
{
    struct plan p = plan_of(l->codec, l->n);
    const float *code = l->code;
    size_t out = 0, len, size;
    int rc = bny_linear_poisoned(l, l->code, 4 * (p.groups > 0));

    if (rc)
        return rc;
    if (l->ef) {
        bny_code_kernels_for(l->cpu_flags)->compensate(l->ef, l->src, l->ef, l->ef_scale, l->n);
        for (size_t g = 0; g < p.groups; g++) {
            size_t at = drawn(l, &p, g, &len, &size);

            memset(l->ef + at, 0, len * sizeof *l->ef);
        }
    }
    if (l->n)
        memset(l->dst, 0, 4 * l->n);
    for (size_t g = 0; g < p.groups; g++) {
        size_t at = drawn(l, &p, g, &len, &size);

        for (size_t i = 0; i < len; i++)
            bny_linear_result(l, at + i, code[out++]);
    }
    return 0;
}

static const struct bny_linear_ops randomk_linear = {
    .nstages = randomk_nstages,
    .keep_bytes = bny_linear_no_bytes,
    .work_bytes = bny_linear_no_bytes,
    .code_bytes = randomk_code,
    .contribute = randomk_contribute,
    .finish = randomk_finish,
};

const struct bny_codec_ops bny_codec_randomk = {
    .name = "randomk",
    .family = BNY_CODEC_LINEAR,
    .flags = BNY_CODEC_FEEDBACK,
    .doc = "the same random blocks of elements on every rank, values only",
    .encode_ns = 0.7,
    .decode_ns = 1.5,
    .params = {
        [DELTA] = { "delta", 0.1, 1e-6, 1, 0, "part of the elements that is sent" },
        [BLOCK] = { "block", 64, 1, 65536, 1, "elements of a block" },
        [UNBIASED] = { "unbiased", 0, 0, 1, 1, "multiply what is sent instead "
"of keeping the rest" },
    },
    .linear = &randomk_linear,
};
