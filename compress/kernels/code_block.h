/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks that share a scale. Part of code_loops.h. Each format has its largest value, quant_F: a value t in units of the
 * scale, |t| at most the largest but for rounding errors, to the nearest code, ties to even; and unit_F: a code's value
 * in those units. Plain arithmetic on every processor, without tables and without subnormal numbers, so that neither
 * flushing modes nor instruction sets show. */

/* 1.5 * 2^23: adding it leaves the nearest integer in the low bits. */
#define ROUND_FLOAT 0x1.8p23f
#define ROUND_BITS  0x4b400000

INLINE uint8_t quant_int8(float t)
{
    return (uint8_t)(f32_bits(t + ROUND_FLOAT) - ROUND_BITS);
}

INLINE float unit_int8(uint8_t code)
{
    return (float)(int8_t)code;
}

INLINE uint8_t quant_int4(float t)
{
    return (uint8_t)(f32_bits(t + ROUND_FLOAT) - ROUND_BITS + 8);
}

INLINE float unit_int4(uint8_t code)
{
    return (float)((int)code - 8);
}

/* A float of M bits of mantissa and exponent bias B, sign in bit S. small: a power of two whose unit in the last place
 * is the format's smallest number. */
#define MINIFLOAT(F, M, B, S, top, small)                                                                      \
    INLINE uint8_t quant_##F(float t)                                                                          \
    {                                                                                                          \
        uint32_t u = f32_bits(t), mag = u & ABS_BITS;                                                          \
        uint32_t sub = f32_bits(f32_from_bits(mag) + (small)) - f32_bits(small);                               \
        uint32_t odd = mag >> (23 - (M)) & 1;                                                                  \
        uint32_t norm = (mag + ((1u << (22 - (M))) - 1) + odd - ((127u - (B)) << 23)) >> (23 - (M));           \
        uint32_t code = mag < (128u - (B)) << 23 ? sub : norm;                                                 \
                                                                                                               \
        code = code > (top) ? (top) : code;                                                                    \
        return (uint8_t)(code | u >> 31 << (S));                                                               \
    }                                                                                                          \
    INLINE float unit_##F(uint8_t code)                                                                        \
    {                                                                                                          \
        uint32_t mag = code & ((1u << (S)) - 1);                                                               \
        uint32_t norm = (mag << (23 - (M))) + ((127u - (B)) << 23);                                            \
        uint32_t sub = f32_bits((float)(int32_t)mag * ((small) * 0x1p-23f));                                   \
                                                                                                               \
        return f32_from_bits((mag < 1u << (M) ? sub : norm) | (uint32_t)(code >> (S) & 1) << 31);              \
    }
MINIFLOAT(e4m3, 3, 7, 7, 0x7eu, 0x1p14f)
MINIFLOAT(e5m2, 2, 15, 7, 0x7bu, 0x1p7f)
MINIFLOAT(e2m1, 1, 1, 3, 7u, 0x1p22f)
#undef MINIFLOAT

/* u - 1/2 for u uniform in (0, 1), symmetric: odd multiples of 2^-17. */
INLINE float dither(struct bny_rand key, uint32_t index)
{
    return (float)((int32_t)(bny_rand_at(key, index) >> 16) * 2 - 65535) * 0x1p-17f;
}

/* Into [-top, top]: what v / scale exceeds by rounding, dithering would round up. */
INLINE float clamp(float t, float top)
{
    t = t < top ? t : top;
    return t > -top ? t : -top;
}

typedef uint8_t (*quant_fn)(float t);
typedef float (*unit_fn)(uint8_t code);

/* One block's job. */
struct block {
    const f32_at *x;
    f32_at *ef; /* or NULL */
    float s, scale, inv, top;
    struct bny_rand key;
    uint32_t index;
};

INLINE uint8_t quant_at(const struct block *b, float v, size_t i, quant_fn quant, int random)
{
    float t = v * b->inv;

    if (random)
        t = clamp(t, b->top) + dither(b->key, b->index + (uint32_t)i);
    return quant(t);
}

INLINE void quant_bytes(u8_at *codes, struct block b, size_t n, quant_fn quant, unit_fn unit, int with_ef, int random)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float v = with_ef ? b.x[i] + b.s * b.ef[i] : b.x[i];
        uint8_t code = quant_at(&b, v, i, quant, random);

        codes[i] = code;
        if (with_ef)
            b.ef[i] = v - unit(code) * b.scale;
    }
}

INLINE void quant_nibbles(u8_at *codes, struct block b, size_t n, quant_fn quant, unit_fn unit, int with_ef,
                          int random)
{
    size_t half = (n + 1) / 2;

    INDEPENDENT
    for (size_t i = 0; i < n / 2; i++) {
        float v = with_ef ? b.x[i] + b.s * b.ef[i] : b.x[i];
        float w = with_ef ? b.x[i + half] + b.s * b.ef[i + half] : b.x[i + half];
        uint8_t low = quant_at(&b, v, i, quant, random), high = quant_at(&b, w, i + half, quant, random);

        codes[i] = (uint8_t)(low | high << 4);
        if (with_ef) {
            b.ef[i] = v - unit(low) * b.scale;
            b.ef[i + half] = w - unit(high) * b.scale;
        }
    }
    if (n % 2) {
        float v = with_ef ? b.x[half - 1] + b.s * b.ef[half - 1] : b.x[half - 1];

        codes[half - 1] = quant_at(&b, v, half - 1, quant, random);
        if (with_ef)
            b.ef[half - 1] = v - unit(codes[half - 1]) * b.scale;
    }
}

INLINE void unit_bytes(f32_at *d, const f32_at *acc, const u8_at *codes, size_t n, float scale, float factor,
                       unit_fn unit, int scaled)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float y = unit(codes[i]) * scale;

        d[i] = acc ? canon(acc[i] + y) : scaled ? y * factor : y;
    }
}

INLINE void unit_nibbles(f32_at *d, const f32_at *acc, const u8_at *codes, size_t n, float scale, float factor,
                         unit_fn unit, int scaled)
{
    size_t half = (n + 1) / 2;

    INDEPENDENT
    for (size_t i = 0; i < half; i++) {
        float y = unit(codes[i] & 15) * scale;

        d[i] = acc ? canon(acc[i] + y) : scaled ? y * factor : y;
    }
    INDEPENDENT
    for (size_t i = 0; i < n / 2; i++) {
        float y = unit(codes[i] >> 4) * scale;

        d[i + half] = acc ? canon(acc[i + half] + y) : scaled ? y * factor : y;
    }
}

/* Scales on the wire. */
INLINE float get_scale(const u8_at *scales, size_t b, int mx)
{
    uint32_t e;

    if (!mx)
        return ((const f32_at *)scales)[b];
    e = scales[b];
    /* 2^-127, subnormal, is no encoder's and taken as 2^-126; 255 is refused before. */
    return f32_from_bits((e ? e : 1) << 23);
}

INLINE void put_scale(u8_at *scales, size_t b, uint32_t absmax_bits, float top, int mx)
{
    uint32_t e, etop = f32_bits(top) >> 23;

    if (!mx) {
        ((f32_at *)scales)[b] = absmax_bits < (127u - 110) << 23 ? 0 : f32_from_bits(absmax_bits) / top;
        return;
    }
    /* exponent(absmax) - exponent(top), biased */
    e = (absmax_bits >> 23) + 127;
    scales[b] = (uint8_t)(e <= etop ? 1 : e - etop);
}

#define TOO_LARGE ((127u + 127) << 23) /* 2^127, as bits: 127 * scale could overflow */

INLINE int encode_blocks(u8_at *scales, u8_at *codes, const struct bny_quant *q, size_t n, size_t block, float top,
                         int nibbles, int mx, quant_fn quant, unit_fn unit, int with_ef, int random)
{
    struct block b = { .s = q->s, .top = top, .key = q->key };

    for (size_t at = 0, k = 0; with_ef && at < n; at += block, k++) {
        size_t m = n - at < block ? n - at : block;
        uint32_t max = absmax_of((const f32_at *)q->src + at, (const f32_at *)q->ef + at, q->s, m);

        if (max >= TOO_LARGE)
            return -1;
        put_scale(scales, k, max, top, mx);
    }
    for (size_t at = 0, k = 0; at < n; at += block, k++) {
        size_t m = n - at < block ? n - at : block;

        b.x = (const f32_at *)q->src + at;
        b.ef = with_ef ? (f32_at *)q->ef + at : NULL;
        b.index = q->index + (uint32_t)at;
        if (!with_ef) {
            uint32_t max = absmax_of(b.x, NULL, 0, m);

            if (max >= TOO_LARGE)
                return -1;
            put_scale(scales, k, max, top, mx);
        }
        b.scale = get_scale(scales, k, mx);
        b.inv = b.scale > 0 ? 1 / b.scale : 0;
        if (nibbles)
            quant_nibbles(codes, b, m, quant, unit, with_ef, random);
        else
            quant_bytes(codes, b, m, quant, unit, with_ef, random);
        codes += nibbles ? (m + 1) / 2 : m;
    }
    return 0;
}

INLINE void decode_blocks(f32_at *d, const f32_at *acc, const u8_at *scales, const u8_at *codes, size_t n, size_t block,
                          float factor, int nibbles, int mx, unit_fn unit, int scaled)
{
    for (size_t at = 0, k = 0; at < n; at += block, k++) {
        size_t m = n - at < block ? n - at : block;
        float scale = get_scale(scales, k, mx);

        if (nibbles)
            unit_nibbles(d + at, acc ? acc + at : NULL, codes, m, scale, factor, unit, scaled);
        else
            unit_bytes(d + at, acc ? acc + at : NULL, codes, m, scale, factor, unit, scaled);
        codes += nibbles ? (m + 1) / 2 : m;
    }
}

/* NAME: the loops' suffix; F: the format; dithers: whether q->random is looked at. */
#define FORMAT(NAME, F, top, nibbles, mx, dithers)                                                             \
    static int encode_##NAME(void *scales, void *codes, const struct bny_quant *q, size_t n, size_t block)     \
    {                                                                                                          \
        if ((dithers) && q->random && q->ef)                                                                   \
            return encode_blocks(scales, codes, q, n, block, top, nibbles, mx, quant_##F, unit_##F, 1, 1);     \
        if ((dithers) && q->random)                                                                            \
            return encode_blocks(scales, codes, q, n, block, top, nibbles, mx, quant_##F, unit_##F, 0, 1);     \
        if (q->ef)                                                                                             \
            return encode_blocks(scales, codes, q, n, block, top, nibbles, mx, quant_##F, unit_##F, 1, 0);     \
        return encode_blocks(scales, codes, q, n, block, top, nibbles, mx, quant_##F, unit_##F, 0, 0);         \
    }                                                                                                          \
    static void decode_##NAME(void *dst, const void *scales, const void *codes, size_t n, size_t block,        \
                              float factor)                                                                    \
    {                                                                                                          \
        if (factor == 1)                                                                                       \
            decode_blocks(dst, NULL, scales, codes, n, block, 1, nibbles, mx, unit_##F, 0);                    \
        else                                                                                                   \
            decode_blocks(dst, NULL, scales, codes, n, block, factor, nibbles, mx, unit_##F, 1);               \
    }                                                                                                          \
    static void decode_add_##NAME(void *dst, const void *acc, const void *scales, const void *codes, size_t n, \
                                  size_t block)                                                                \
    {                                                                                                          \
        decode_blocks(dst, acc, scales, codes, n, block, 1, nibbles, mx, unit_##F, 0);                         \
    }
FORMAT(int8, int8, 127, 0, 0, 1)
FORMAT(int4, int4, 7, 1, 0, 1)
FORMAT(e4m3, e4m3, 448, 0, 0, 0)
FORMAT(e5m2, e5m2, 57344, 0, 0, 0)
FORMAT(e2m1, e2m1, 6, 1, 0, 0)
FORMAT(mx8, e4m3, 448, 0, 1, 0)
FORMAT(mx4, e2m1, 6, 1, 1, 0)
#undef FORMAT
