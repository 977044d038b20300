/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks that share a scale. Part of code_loops.h. Each format has its largest value, and a way
 * from a value t in units of the scale to the nearest code, ties to even, and back. Integers:
 * plain loops (quant_F, unit_F), of which the compiler makes good vectors; small floats:
 * vectors written out, because blocks of 32 are too short for the compiler's. Plain arithmetic
 * on every processor, without tables and without subnormal numbers, so that neither flushing
 * modes nor instruction sets show. */

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

INLINE void quant_bytes(u8_at *codes, struct block b, size_t n, quant_fn quant, unit_fn unit,
                        int with_ef, int random)
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

INLINE void quant_nibbles(u8_at *codes, struct block b, size_t n, quant_fn quant, unit_fn unit,
                          int with_ef, int random)
{
    size_t half = (n + 1) / 2;

    INDEPENDENT
    for (size_t i = 0; i < n / 2; i++) {
        float v = with_ef ? b.x[i] + b.s * b.ef[i] : b.x[i];
        float w = with_ef ? b.x[i + half] + b.s * b.ef[i + half] : b.x[i + half];
        uint8_t low = quant_at(&b, v, i, quant, random),
                high = quant_at(&b, w, i + half, quant, random);

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

INLINE void unit_bytes(f32_at *d, const f32_at *acc, const u8_at *codes, size_t n, float scale,
                       float factor, unit_fn unit, int scaled)
{
    INDEPENDENT
    for (size_t i = 0; i < n; i++) {
        float y = unit(codes[i]) * scale;

        d[i] = acc ? acc[i] + y : scaled ? y * factor : y;
    }
}

INLINE void unit_nibbles(f32_at *d, const f32_at *acc, const u8_at *codes, size_t n,
                         float scale, float factor, unit_fn unit, int scaled)
{
    size_t half = (n + 1) / 2;

    INDEPENDENT
    for (size_t i = 0; i < half; i++) {
        float y = unit(codes[i] & 15) * scale;

        d[i] = acc ? acc[i] + y : scaled ? y * factor : y;
    }
    INDEPENDENT
    for (size_t i = 0; i < n / 2; i++) {
        float y = unit(codes[i] >> 4) * scale;

        d[i + half] = acc ? acc[i + half] + y : scaled ? y * factor : y;
    }
}

/* A format of small floats: bits of mantissa, exponent bias, sign's bit, largest code and its
 * value. */
struct mini {
    int m, bias, sign, code_top, nibbles;
    float top;
};

#define MINI_E4M3 ((struct mini){ 3, 7, 7, 0x7e, 0, 448 })
#define MINI_E5M2 ((struct mini){ 2, 15, 7, 0x7b, 0, 57344 })
#define MINI_E2M1 ((struct mini){ 1, 1, 3, 7, 1, 6 })

/* Codes of t; their values in back. Adding a power of two 23 - m binades above |t|'s (or above
 * the smallest normal number's) rounds to the format's unit there, and leaves the number of
 * units in the sum's low bits. */
INLINE vi mini_quant(struct mini f, vf t, vf *back)
{
    vi u = (vi)t, mag = u & ABS_BITS,
       e = vi_max(mag & 0x7f800000, (vi){ 0 } + ((128 - f.bias) << 23));
    vi big = e + ((23 - f.m) << 23);
    vf sum = (vf)mag + (vf)big, r = sum - (vf)big;
    vi code = (e >> (23 - f.m)) + ((vi)sum - big) - ((128 - f.bias) << f.m);

    *back = (vf)(vi_min((vi)r, (vi)vf_set1(f.top)) | (u & INT32_MIN));
    return vi_min(code, (vi){ 0 } + f.code_top) | (u >> (31 - f.sign) & 1 << f.sign);
}

INLINE vf mini_value(struct mini f, vi code)
{
    return f.m == 3   ? vf_e4m3(code)
           : f.m == 1 ? vf_e2m1(code)
                      : vf_minifloat(code, f.m, f.bias, f.sign);
}

/* LANES elements at x and ef: their codes; the residual is written. */
INLINE vi mini_one(struct mini f, const struct block *b, const f32_at *x, f32_at *ef)
{
    vf v = vf_value(x, ef, vf_set1(b->s), 0), back;
    vi code = mini_quant(f, v * vf_set1(b->inv), &back);

    if (ef)
        vf_store(ef, v - back * vf_set1(b->scale));
    return code;
}

/* Fewer than LANES. */
INLINE vi mini_some(struct mini f, const struct block *b, const f32_at *x, f32_at *ef, size_t n)
{
    float tx[LANES] = { 0 }, te[LANES] = { 0 };
    vi code;

    memcpy(tx, x, 4 * n);
    if (ef)
        memcpy(te, ef, 4 * n);
    code = mini_one(f, b, tx, ef ? te : NULL);
    if (ef)
        memcpy(ef, te, 4 * n);
    return code;
}

INLINE void mini_encode(struct mini f, u8_at *codes, struct block b, size_t n)
{
    size_t half = f.nibbles ? (n + 1) / 2 : n, i;
    u8_at some[LANES];

    for (i = 0; i + LANES <= half && i + LANES <= n - half + (f.nibbles ? 0 : n); i += LANES) {
        vi code = mini_one(f, &b, b.x + i, b.ef ? b.ef + i : NULL);

        if (f.nibbles)
            code |= mini_one(f, &b, b.x + i + half, b.ef ? b.ef + i + half : NULL) << 4;
        vi_narrow(codes + i, code);
    }
    for (; i < half; i += LANES) {
        size_t low = half - i < LANES ? half - i : LANES,
               high = n - half - (n - half < i ? n - half : i);
        vi code = mini_some(f, &b, b.x + i, b.ef ? b.ef + i : NULL, low);

        high = high < LANES ? high : LANES;
        if (f.nibbles && high)
            code |= mini_some(f, &b, b.x + i + half, b.ef ? b.ef + i + half : NULL, high) << 4;
        vi_narrow(some, code);
        memcpy(codes + i, some, low);
    }
}

/* LANES codes, or the first n of them, at d and acc. */
INLINE void mini_put(struct mini f, f32_at *d, const f32_at *acc, vi code, vf scale, vf factor,
                     int scaled, size_t n)
{
    vf y = mini_value(f, code) * scale;
    float t[LANES] = { 0 };

    if (n >= LANES) {
        vf_store(d, acc ? vf_load(acc) + y : scaled ? y * factor : y);
        return;
    }
    if (acc)
        memcpy(t, acc, 4 * n);
    vf_store(t, acc ? vf_load(t) + y : scaled ? y * factor : y);
    memcpy(d, t, 4 * n);
}

INLINE void mini_decode(struct mini f, f32_at *d, const f32_at *acc, const u8_at *codes,
                        size_t n, float scale, float factor, int scaled)
{
    size_t half = f.nibbles ? (n + 1) / 2 : n;
    vf vs = vf_set1(scale), vt = vf_set1(factor);
    u8_at some[LANES] = { 0 };

    for (size_t i = 0; i < half; i += LANES) {
        size_t low = half - i, high = n - half > i ? n - half - i : 0;
        vi code;

        if (low < LANES)
            memcpy(some, codes + i, low);
        code = vi_widen(low < LANES ? some : codes + i);
        mini_put(f, d + i, acc ? acc + i : NULL, f.nibbles ? code & 15 : code, vs, vt, scaled,
                 low);
        if (f.nibbles && high)
            mini_put(f, d + half + i, acc ? acc + half + i : NULL, code >> 4, vs, vt, scaled,
                     high);
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
        ((f32_at *)scales)[b] =
            absmax_bits < (127u - 110) << 23 ? 0 : f32_from_bits(absmax_bits) / top;
        return;
    }
    /* exponent(absmax) - exponent(top), biased */
    e = (absmax_bits >> 23) + 127;
    scales[b] = (uint8_t)(e <= etop ? 1 : e - etop);
}

#define TOO_LARGE ((127u + 127) << 23) /* 2^127, as bits: 127 * scale could overflow */

/* The differences between the tables' entries; all constants. */
struct kind {
    float top;
    int nibbles, mx;
    quant_fn quant; /* NULL: mini */
    unit_fn unit;
    struct mini mini;
};

INLINE void encode_block(struct kind f, u8_at *codes, struct block b, size_t n, int with_ef,
                         int random)
{
    if (!f.quant)
        mini_encode(f.mini, codes, b, n);
    else if (f.nibbles)
        quant_nibbles(codes, b, n, f.quant, f.unit, with_ef, random);
    else
        quant_bytes(codes, b, n, f.quant, f.unit, with_ef, random);
}

INLINE int encode_blocks(u8_at *scales, u8_at *codes, const struct bny_quant *q, size_t n,
                         size_t block, struct kind f, int with_ef, int random)
{
    struct block b = { .s = q->s, .top = f.top, .key = q->key };

    for (size_t at = 0, k = 0; with_ef && at < n; at += block, k++) {
        size_t m = n - at < block ? n - at : block;
        uint32_t max =
            absmax_of((const f32_at *)q->src + at, (const f32_at *)q->ef + at, q->s, m);

        if (max >= TOO_LARGE)
            return -1;
        put_scale(scales, k, max, f.top, f.mx);
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
            put_scale(scales, k, max, f.top, f.mx);
        }
        b.scale = get_scale(scales, k, f.mx);
        b.inv = b.scale > 0 ? 1 / b.scale : 0;
        encode_block(f, codes, b, m, with_ef, random);
        codes += f.nibbles ? (m + 1) / 2 : m;
    }
    return 0;
}

INLINE void decode_blocks(f32_at *d, const f32_at *acc, const u8_at *scales, const u8_at *codes,
                          size_t n, size_t block, float factor, struct kind f, int scaled)
{
    for (size_t at = 0, k = 0; at < n; at += block, k++) {
        size_t m = n - at < block ? n - at : block;
        float scale = get_scale(scales, k, f.mx);

        if (!f.quant)
            mini_decode(f.mini, d + at, acc ? acc + at : NULL, codes, m, scale, factor, scaled);
        else if (f.nibbles)
            unit_nibbles(d + at, acc ? acc + at : NULL, codes, m, scale, factor, f.unit,
                         scaled);
        else
            unit_bytes(d + at, acc ? acc + at : NULL, codes, m, scale, factor, f.unit, scaled);
        codes += f.nibbles ? (m + 1) / 2 : m;
    }
}

#define KIND_int8 ((struct kind){ 127, 0, 0, quant_int8, unit_int8, { 0 } })
#define KIND_int4 ((struct kind){ 7, 1, 0, quant_int4, unit_int4, { 0 } })
#define KIND_e4m3 ((struct kind){ 448, 0, 0, NULL, NULL, MINI_E4M3 })
#define KIND_e5m2 ((struct kind){ 57344, 0, 0, NULL, NULL, MINI_E5M2 })
#define KIND_e2m1 ((struct kind){ 6, 1, 0, NULL, NULL, MINI_E2M1 })
#define KIND_mx8  ((struct kind){ 448, 0, 1, NULL, NULL, MINI_E4M3 })
#define KIND_mx4  ((struct kind){ 6, 1, 1, NULL, NULL, MINI_E2M1 })

/* dithers: whether q->random is looked at. */
#define FORMAT(F, dithers)                                                                     \
    static int encode_##F(void *scales, void *codes, const struct bny_quant *q, size_t n,      \
                          size_t block)                                                        \
    {                                                                                          \
        if ((dithers) && q->random && q->ef)                                                   \
            return encode_blocks(scales, codes, q, n, block, KIND_##F, 1, 1);                  \
        if ((dithers) && q->random)                                                            \
            return encode_blocks(scales, codes, q, n, block, KIND_##F, 0, 1);                  \
        if (q->ef)                                                                             \
            return encode_blocks(scales, codes, q, n, block, KIND_##F, 1, 0);                  \
        return encode_blocks(scales, codes, q, n, block, KIND_##F, 0, 0);                      \
    }                                                                                          \
    static void decode_##F(void *dst, const void *scales, const void *codes, size_t n,         \
                           size_t block, float factor)                                         \
    {                                                                                          \
        if (factor == 1)                                                                       \
            decode_blocks(dst, NULL, scales, codes, n, block, 1, KIND_##F, 0);                 \
        else                                                                                   \
            decode_blocks(dst, NULL, scales, codes, n, block, factor, KIND_##F, 1);            \
    }                                                                                          \
    static void decode_add_##F(void *dst, const void *acc, const void *scales,                 \
                               const void *codes, size_t n, size_t block)                      \
    {                                                                                          \
        decode_blocks(dst, acc, scales, codes, n, block, 1, KIND_##F, 0);                      \
    }
FORMAT(int8, 1)
FORMAT(int4, 1)
FORMAT(e4m3, 0)
FORMAT(e5m2, 0)
FORMAT(e2m1, 0)
FORMAT(mx8, 0)
FORMAT(mx4, 0)
#undef FORMAT
