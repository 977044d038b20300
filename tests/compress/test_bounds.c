/* SPDX-License-Identifier: BSD-3-Clause */
/* Bounds of every codec of the registry that encodes chunks: with memory of bound() bytes,
 * whatever the parameters, the length, the data and the state, encode writes nothing behind it,
 * returns no more, and what it returned is decoded again. So does a message of
 * bny_message_bound(), and where raw fits too it is never refused. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/counts.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "compress/codec.h"

#define SEED  0xb0071d
#define GUARD 64
#define FILL  0xa7
#define SHORT 300    /* every length up to here */
#define N_MAX 131072 /* the largest block or bin of any codec, twice */
#define STEPS 3      /* operations of a tensor with state */

/* Combinations of two parameters take every so manieth length. Builds that look for mistakes
 * are ten times slower. */
#define PAIR_STRIDE (BNY_CHECKS ? 101 : 23)
#define ONE_STRIDE  (BNY_CHECKS ? 13 : 1)
#define VALUES_MAX  64

TestSuite(bounds, .timeout = 250);

enum kind {
    ZEROS,
    GAUSS,
    SPIKE,
    LONE,
    SUBNORMAL,
    HUGE_ONES,
    CONSTANT,
    SPREAD,
    NONFINITE,
    KINDS
};
static const char *const kind_names[KINDS] = {
    "zeros",    "gauss",         "spike",           "lone", "subnormal", "huge",
    "constant", "all exponents", "NaN and infinity"
};

static double gauss(uint64_t *rng)
{
    double sum = -6;

    for (int i = 0; i < 12; i++)
        sum += bny_rng_unit(rng);
    return sum;
}

static double value_of(enum kind kind, size_t i, uint64_t *rng)
{
    double g = gauss(rng);

    switch (kind) {
    case ZEROS: return 0;
    case SPIKE: return i % 50 == 7 ? 1000 : g;
    case LONE: return i % 100 == 3 ? g : 0;
    case SUBNORMAL: return g * 0x1p-135;
    case HUGE_ONES: return g * 0x1p125; /* |g| < 6: below the largest float */
    case CONSTANT: return -0.3;
    case SPREAD: return g * ldexp(1, (int)bny_rng_below(rng, 240) - 125);
    case NONFINITE: return i % 70 == 9 ? (i % 140 == 9 ? (double)NAN : (double)-INFINITY) : g;
    default: return g;
    }
}

/* [N_MAX + SHORT] elements of a kind as the type has them: floats by value, others by bits. */
static void fill(void *out, enum banyan_dtype dtype, enum kind kind)
{
    size_t bytes = banyan_dtype_bytes(dtype);
    uint64_t rng = SEED + (uint64_t)kind;

    for (size_t i = 0; i < N_MAX + SHORT; i++) {
        double wide = value_of(kind, i, &rng);
        float v = (float)wide;
        uint64_t bits[2] = { 0 };
        uint32_t narrow;

        if (dtype == BANYAN_F64 || dtype == BANYAN_C128) {
            memcpy(bits, &wide, sizeof wide);
        } else {
            memcpy(&narrow, &v, sizeof v);
            bits[0] = bytes <= 2 ? narrow >> 16 : narrow;
        }
        memcpy((char *)out + i * bytes, bits, bytes);
    }
}

/* What an operation leaves for the next one of the same tensor. */
struct state {
    float *ef, *more; /* NULL: none */
    void *track, *stats;
};

struct trial {
    const struct bny_codec *c;
    enum banyan_dtype dtype;
    size_t n;
    enum kind kind;
    unsigned cpu_flags;
    uint32_t step;
    struct state *state;
    float *ef_before;            /* [n] with state */
    const void *src;             /* [n], ends where its memory does */
    unsigned char *memory;       /* GUARD bytes, the message, GUARD bytes */
    unsigned char *out, *result; /* decoded, with GUARD bytes at both ends; out's begin */
};

static void say(char *text, size_t cap, const struct trial *t, const char *what)
{
    snprintf(text, cap, "%s, %zu elements of %s, data: %s, step %u, %s state: %s", t->c->spec,
             t->n, banyan_dtype_name(t->dtype), kind_names[t->kind], t->step,
             t->state ? "with" : "no", what);
}

#define EXPECT(cond, t, what)                                                                  \
    do {                                                                                       \
        char text_[256];                                                                       \
        if (!(cond)) {                                                                         \
            say(text_, sizeof text_, (t), (what));                                             \
            cr_assert_fail("%s", text_);                                                       \
        }                                                                                      \
    } while (0)

static int untouched(const unsigned char *p)
{
    for (int i = 0; i < GUARD; i++)
        if (p[i] != FILL)
            return 0;
    return 1;
}

static struct bny_enc encoder(const struct trial *t)
{
    struct bny_enc e = { .codec = t->c,
                         .cpu_flags = t->cpu_flags,
                         .dtype = t->dtype,
                         .ef_scale = 1,
                         .seed = SEED,
                         .step = t->step,
                         .rank = 3,
                         .nsum = 1,
                         .index = 1024 };

    if (t->state) {
        e.ef = t->state->ef;
        e.more = t->c->ops->elem_floats ? t->state->more : NULL;
        e.more_stride = t->n;
        e.track = t->c->ops->track_bytes ? t->state->track : NULL;
        e.stats = t->c->ops->stats_bytes ? t->state->stats : NULL;
        if (e.stats)
            memset(e.stats, 0, t->c->ops->stats_bytes);
    }
    return e;
}

/* Encodes into exactly cap bytes. */
static long encode(const struct trial *t, size_t cap)
{
    struct bny_enc e = encoder(t);
    unsigned char *wire = t->memory + GUARD;
    long len;

    memset(t->memory, FILL, GUARD);
    memset(wire + cap, FILL, GUARD);
    len = bny_message_encode(&e, wire, cap, t->src, t->n, 0);
    EXPECT(untouched(t->memory), t, "encode wrote in front of its memory");
    EXPECT(untouched(wire + cap), t, "encode wrote behind its memory");
    EXPECT(len == -BANYAN_ENOTSUP || len > 0, t, "encode failed");
    EXPECT(len < 0 || (size_t)len <= cap, t, "encode returned more than its memory");
    return len;
}

/* The message lies at the end of memory of its own: nothing behind it is read. */
static void decode(const struct trial *t, long len)
{
    struct bny_dec d = { .codec = t->c,
                         .cpu_flags = t->cpu_flags,
                         .dtype = t->dtype,
                         .scale = 1,
                         .seed = SEED,
                         .step = t->step,
                         .rank = 3,
                         .index = 1024 };
    size_t bytes = t->n * banyan_dtype_bytes(t->dtype);
    unsigned char *wire = malloc((size_t)len);
    float *y = (float *)(void *)t->result, *sum = malloc(bytes + 1);

    memcpy(wire, t->memory + GUARD, (size_t)len);
    memset(t->out, FILL, GUARD);
    memset(t->result + bytes, FILL, GUARD);
    EXPECT(bny_message_decode(&d, t->result, wire, (size_t)len, t->n) == 0, t,
           banyan_last_error());
    EXPECT(untouched(t->out) && untouched(t->result + bytes), t, "decode wrote elsewhere");
    if (t->c->ops->family == BNY_CODEC_EXACT) {
        EXPECT(!memcmp(t->result, t->src, bytes), t, "other bits came back");
    } else {
        for (size_t i = 0; i < t->n; i++)
            sum[i] = 0.5f;
        EXPECT(bny_message_decode_add(&d, sum, sum, wire, (size_t)len, t->n) == 0, t,
               banyan_last_error());
        for (size_t i = 0; i < t->n; i++)
            EXPECT(sum[i] == 0.5f + y[i] || isnan(y[i]), t, "decode_add adds something else");
    }
    free(sum);
    free(wire);
}

static int same_residuals(const struct trial *t)
{
    return !t->state || !t->n || !memcmp(t->ef_before, t->state->ef, 4 * t->n);
}

static void try_one(const struct trial *t)
{
    const struct bny_codec_ops *ops = t->c->ops;
    size_t head = sizeof(struct bny_coded_hdr), raw = t->n * banyan_dtype_bytes(t->dtype);
    size_t coded = bny_message_bound(t->c, t->n, t->dtype, 0);
    size_t any = bny_message_bound(t->c, t->n, t->dtype, 1);
    struct bny_coded_hdr h;
    long len;

    EXPECT(coded == head + ops->bound(t->c, t->n, t->dtype), t, "no room for the header");
    EXPECT(coded <= head + raw + 64, t, "the bound is far above raw");
    EXPECT(any >= coded && any >= head + raw, t, "no room for raw");
    if (t->state)
        memcpy(t->ef_before, t->state->ef, 4 * t->n);
    if (ops->begin && t->state)
        ops->begin(t->c, t->state->track, t->step);
    len = encode(t, coded);
    if (len < 0) {
        EXPECT(same_residuals(t), t, "declined, with other residuals");
        len = encode(t, any);
        EXPECT(len > 0, t, "refused although raw fits");
    }
    memcpy(&h, t->memory + GUARD, sizeof h);
    if (!(h.flags & BNY_CODED_RAW) && (ops->flags & BNY_CODEC_FIXED))
        EXPECT((size_t)len == coded, t, "not as long as is promised");
    decode(t, len);
    if (ops->end && t->state && t->n)
        ops->end(t->c, t->state->track, t->state->stats, 1);
}

/* More memory than the bound must not make messages longer; less is enough for what is sparse
 * and has residuals. */
static void try_other_memory(const struct trial *t)
{
    size_t head = sizeof(struct bny_coded_hdr), bound = t->c->ops->bound(t->c, t->n, t->dtype);
    struct bny_enc e = encoder(t);
    long len;

    if (t->state && t->c->ops->family == BNY_CODEC_SPARSE && bound > 64) {
        len = encode(t, head + 64 + (t->n * 37) % (bound - 64));
        if (len > 0)
            decode(t, len);
        e = encoder(t);
    }
    memset(t->memory + GUARD + bound, FILL, 2 * GUARD);
    len = t->c->ops->encode(&e, t->memory + GUARD, bound + 2 * GUARD, t->src, t->n);
    EXPECT(len == -BANYAN_ENOTSUP || (len >= 0 && (size_t)len <= bound), t,
           "with more memory encode returned more than the bound");
}

/* Three operations with the data of all kinds, the residuals those of the one before. */
static void try_length(const struct bny_codec *c, enum banyan_dtype dtype, size_t n,
                       const char *const *data)
{
    size_t bytes = banyan_dtype_bytes(dtype);
    size_t bound = c->ops->bound(c, n, dtype), most = bound > n * bytes ? bound : n * bytes;
    unsigned all = bny_cpu_flags();
    const unsigned flags[] = { all, all & ~(unsigned)BNY_CPU_AVX512, 0 };
    struct trial t = { .c = c, .dtype = dtype, .n = n };
    struct state s = { .ef = calloc(n + 1, 4),
                       .more = calloc(n * c->ops->elem_floats + 1, 4),
                       .track = calloc(1, c->ops->track_bytes + 1),
                       .stats = malloc(c->ops->stats_bytes + 1) };
    char *src = malloc(n * bytes + 1), *from = src + 1; /* any alignment */

    t.src = from;
    t.ef_before = malloc(4 * n + 4);
    t.memory = malloc(sizeof(struct bny_coded_hdr) + most + 4 * GUARD);
    t.out = malloc(n * bytes + 2 * GUARD);
    t.result = t.out + GUARD;
    for (unsigned k = 0; k < KINDS; k++) {
        t.kind = (enum kind)k;
        t.cpu_flags = flags[(n + k) % 3];
        memcpy(from, data[k] + n % SHORT * bytes, n * bytes);
        t.state = NULL;
        t.step = 0;
        try_one(&t);
        try_other_memory(&t);
        if (c->ops->family == BNY_CODEC_EXACT)
            continue;
        t.state = &s;
        memset(s.ef, 0, 4 * n + 4);
        memset(s.more, 0, 4 * n * c->ops->elem_floats + 4);
        memset(s.track, 0, c->ops->track_bytes);
        for (t.step = 0; t.step < STEPS; t.step++) {
            t.kind = (enum kind)((k + t.step) % KINDS);
            memcpy(from, data[t.kind] + n % SHORT * bytes, n * bytes);
            try_one(&t);
        }
        try_other_memory(&t);
    }
    free(t.out);
    free(t.memory);
    free(t.ef_before);
    free(src);
    free(s.ef);
    free(s.more);
    free(s.track);
    free(s.stats);
}

/* ---- parameters ---- */

static size_t add_value(double *v, size_t n, const struct bny_codec_param *p, double x)
{
    if (x < p->min || x > p->max || n == VALUES_MAX)
        return n;
    for (size_t i = 0; i < n; i++)
        if (v[i] == x)
            return n;
    v[n] = x;
    return n + 1;
}

/* The default first; all integers where they are few, else both ends and about the powers of
 * two; of reals both ends and three between. */
static size_t values_of(double *v, const struct bny_codec_param *p)
{
    size_t n = add_value(v, 0, p, p->def);

    n = add_value(v, n, p, p->min);
    n = add_value(v, n, p, p->max);
    for (int i = 1; i < 4 && !p->integer; i++) {
        double part = i / 4.0;

        n = add_value(v, n, p,
                      p->min > 0 ? p->min * pow(p->max / p->min, part)
                                 : p->min + (p->max - p->min) * part);
    }
    for (double x = p->min; x <= p->max && p->max - p->min < 24 && p->integer; x++)
        n = add_value(v, n, p, x);
    for (double x = 2; x <= p->max && p->integer; x *= 2)
        for (int d = -1; d <= 1; d++)
            n = add_value(v, n, p, x + d);
    for (double x = 12; x <= p->max && p->integer; x *= 7)
        n = add_value(v, n, p, x);
    return n;
}

static int is_legal(struct bny_codec *c)
{
    int len = snprintf(c->spec, sizeof c->spec, "%s", c->ops->name);

    for (int i = 0; i < BNY_CODEC_PARAMS && c->ops->params[i].name[0]; i++)
        if (c->param[i] != c->ops->params[i].def)
            len +=
                snprintf(c->spec + len, sizeof c->spec - (size_t)len, "%c%s=%g",
                         strchr(c->spec, ':') ? ',' : ':', c->ops->params[i].name, c->param[i]);
    return !c->ops->check || c->ops->check(c) == 0;
}

static void try_lengths(const struct bny_codec *c, enum banyan_dtype dtype,
                        const char *const *data, size_t from, size_t stride)
{
    for (size_t n = from; n <= SHORT; n += stride)
        try_length(c, dtype, n, data);
}

/* Sizes of chunks, and what is next to the sizes of blocks and segments. */
static void try_chunks(const struct bny_codec *c, enum banyan_dtype dtype,
                       const char *const *data)
{
    static const size_t sizes[] = { 511,  513,  1000, 1023,  1024,  1025,  2049,  4095,  4096,
                                    4097, 8191, 8195, 16385, 65535, 65536, 65537, 131071 };
    size_t n = sizeof sizes / sizeof sizes[0];

    for (size_t i = 0; i < n; i++)
        if (!BNY_CHECKS || sizes[i] < 9000)
            try_length(c, dtype, sizes[i], data);
}

static void try_parameters(const struct bny_codec_ops *ops, enum banyan_dtype dtype,
                           const char *const *data)
{
    struct bny_codec usual = { .ops = ops, .hash = 0x1234 }, c;
    double v[BNY_CODEC_PARAMS][VALUES_MAX];
    size_t nv[BNY_CODEC_PARAMS] = { 0 }, pair = 0, np = 0;

    for (; np < BNY_CODEC_PARAMS && ops->params[np].name[0]; np++) {
        nv[np] = values_of(v[np], &ops->params[np]);
        usual.param[np] = ops->params[np].def;
    }
    cr_assert(is_legal(&usual), "%s: its defaults are refused", ops->name);
    try_lengths(&usual, dtype, data, 0, 1);
    try_chunks(&usual, dtype, data);
    for (size_t a = 0; a < np; a++) {
        for (size_t i = 1; i < nv[a]; i++) {
            c = usual;
            c.param[a] = v[a][i];
            if (!is_legal(&c))
                continue;
            try_lengths(&c, dtype, data, i % ONE_STRIDE, ONE_STRIDE);
            if (i < 3)
                try_chunks(&c, dtype, data);
            for (size_t b = a + 1; b < np; b++)
                for (size_t j = 1; j < nv[b]; j++) {
                    c.param[b] = v[b][j];
                    if (is_legal(&c))
                        try_lengths(&c, dtype, data, pair++ % PAIR_STRIDE, PAIR_STRIDE);
                    c.param[b] = usual.param[b];
                }
        }
    }
}

/* ---- over the registry ---- */

struct name {
    char text[16];
};

ParameterizedTestParameters(bounds, hold_for_every_codec)
{
    static struct name names[64];
    size_t n = 0;

    for (size_t i = 0; bny_codecs[i] && n < 64; i++)
        if (bny_codecs[i]->encode)
            snprintf(names[n++].text, sizeof names[0].text, "%s", bny_codecs[i]->name);
    return cr_make_param_array(struct name, names, n);
}

ParameterizedTest(struct name *name, bounds, hold_for_every_codec)
{
    const struct bny_codec_ops *ops = bny_codec_find(name->text);
    unsigned types = ops->dtypes ? ops->dtypes : 1u << BANYAN_F32;

    for (int d = 0; d < BNY_DTYPE_COUNT; d++) {
        size_t bytes = banyan_dtype_bytes((enum banyan_dtype)d);
        const char *data[KINDS];
        char *memory;

        if (!(types >> d & 1))
            continue;
        memory = malloc(KINDS * (N_MAX + SHORT) * bytes);
        for (unsigned k = 0; k < KINDS; k++) {
            fill(memory + k * (N_MAX + SHORT) * bytes, (enum banyan_dtype)d, (enum kind)k);
            data[k] = memory + k * (N_MAX + SHORT) * bytes;
        }
        try_parameters(ops, (enum banyan_dtype)d, data);
        free(memory);
    }
}
