/* SPDX-License-Identifier: BSD-3-Clause */
/* Bits: packed codes and signs. Part of code_loops.h. */

/* One group of r <= 64 codes in b planes of `bytes` bytes. */
INLINE void pack_group(uint8_t *out, const uint8_t *codes, unsigned b, size_t bytes)
{
    for (unsigned p = 0; p < b; p++) {
        uint64_t word = plane_get(codes, p);

        memcpy(out + p * bytes, &word, bytes);
    }
}

INLINE void pack_planes(void *wire, const uint8_t *codes, size_t n, unsigned b)
{
    uint8_t *out = wire, tail[64] = { 0 };
    size_t i;

    for (i = 0; i + 64 <= n; i += 64, out += 8 * b)
        pack_group(out, codes + i, b, 8);
    if (i == n)
        return;
    memcpy(tail, codes + i, n - i);
    pack_group(out, tail, b, (n - i + 7) / 8);
}

INLINE void unpack_group(uint8_t *codes, const uint8_t *in, unsigned b, size_t bytes)
{
    memset(codes, 0, 64);
    for (unsigned p = 0; p < b; p++) {
        uint64_t word = 0;

        memcpy(&word, in + p * bytes, bytes);
        plane_put(codes, word, p);
    }
}

INLINE void unpack_planes(uint8_t *codes, const void *wire, size_t n, unsigned b)
{
    const uint8_t *in = wire;
    uint8_t group[64];
    size_t i;

    for (i = 0; i + 64 <= n; i += 64, in += 8 * b) {
        unpack_group(group, in, b, 8);
        memcpy(codes + i, group, 64);
    }
    if (i == n)
        return;
    unpack_group(group, in, b, (n - i + 7) / 8);
    memcpy(codes + i, group, n - i);
}

#define PLANES(b)                                                                              \
    static void pack##b(void *wire, const uint8_t *codes, size_t n)                            \
    {                                                                                          \
        pack_planes(wire, codes, n, b);                                                        \
    }                                                                                          \
    static void unpack##b(uint8_t *codes, const void *wire, size_t n)                          \
    {                                                                                          \
        unpack_planes(codes, wire, n, b);                                                      \
    }
PLANES(1)
PLANES(3)
PLANES(5)
PLANES(6)
PLANES(7)
#undef PLANES

static void pack2(void *wire, const uint8_t *codes, size_t n)
{
    uint8_t *out = wire;
    size_t i, full = n / 4;

    INDEPENDENT
    for (i = 0; i < full; i++) {
        uint32_t x = ((const u32_at *)codes)[i];

        out[i] = (uint8_t)(x | x >> 6 | x >> 12 | x >> 18);
    }
    if (4 * full < n)
        out[full] = 0;
    for (i = 4 * full; i < n; i++)
        out[full] |= (uint8_t)(codes[i] << 2 * (i % 4));
}

static void unpack2(uint8_t *codes, const void *wire, size_t n)
{
    const uint8_t *in = wire;
    size_t i, full = n / 4;

    INDEPENDENT
    for (i = 0; i < full; i++) {
        uint32_t x = in[i];

        ((u32_at *)codes)[i] = (x | x << 6 | x << 12 | x << 18) & 0x03030303;
    }
    for (i = 4 * full; i < n; i++)
        codes[i] = in[full] >> 2 * (i % 4) & 3;
}

static void pack4(void *wire, const uint8_t *codes, size_t n)
{
    uint8_t *out = wire;
    size_t full = n / 2;

    INDEPENDENT
    for (size_t i = 0; i < full; i++) {
        uint16_t x = ((const u16_at *)codes)[i];

        out[i] = (uint8_t)(x | x >> 4);
    }
    if (n % 2)
        out[full] = codes[n - 1];
}

static void unpack4(uint8_t *codes, const void *wire, size_t n)
{
    const uint8_t *in = wire;
    size_t full = n / 2;

    INDEPENDENT
    for (size_t i = 0; i < full; i++) {
        uint16_t x = in[i];

        ((u16_at *)codes)[i] = (uint16_t)((x | x << 4) & 0x0f0f);
    }
    if (n % 2)
        codes[n - 1] = in[full] & 15;
}

static void pack8(void *wire, const uint8_t *codes, size_t n)
{
    if (n)
        memcpy(wire, codes, n);
}

static void unpack8(uint8_t *codes, const void *wire, size_t n)
{
    if (n)
        memcpy(codes, wire, n);
}

/* STEP elements. */
INLINE uint32_t sign_step(const f32_at *x, f32_at *ef, vf s, vf pos, vf neg)
{
    unsigned bits = 0;

    for (int k = 0; k < VECTORS; k++) {
        vf v = vf_value(x, ef, s, k * LANES);
        unsigned b = vf_signs(v);

        bits |= b << k * LANES;
        if (ef)
            vf_store(ef + k * LANES, v - vf_pick_sign(v, pos, neg));
    }
    return bits;
}

INLINE void sign_loop(u8_at *out, const f32_at *x, f32_at *ef, float s, size_t n, float pos,
                      float neg)
{
    vf vs = vf_set1(s), vpos = vf_set1(pos), vneg = vf_set1(neg);
    float tx[STEP] = { 0 }, te[STEP] = { 0 };
    uint32_t bits;
    size_t i;

    for (i = 0; i + STEP <= n; i += STEP)
        *(u32_at *)(out + i / 8) = sign_step(x + i, ef ? ef + i : NULL, vs, vpos, vneg);
    if (i == n)
        return;
    memcpy(tx, x + i, 4 * (n - i));
    if (ef)
        memcpy(te, ef + i, 4 * (n - i));
    bits = sign_step(tx, ef ? te : NULL, vs, vpos, vneg);
    bits &= (1u << (n - i)) - 1; /* 0 - 0 or a residual's sign beyond the end */
    memcpy(out + i / 8, &bits, (n - i + 7) / 8);
    if (ef)
        memcpy(ef + i, te, 4 * (n - i));
}

static void sign_encode(void *bits, const void *src, void *ef, float s, size_t n, float pos,
                        float neg)
{
    if (ef)
        sign_loop(bits, src, ef, s, n, pos, neg);
    else
        sign_loop(bits, src, NULL, s, n, pos, neg);
}

INLINE void sign_spread(f32_at *d, const f32_at *acc, unsigned bits, vf pos, vf neg)
{
    for (int k = 0; k < VECTORS; k++) {
        vf v = vf_pick(bits >> k * LANES & ((1u << LANES) - 1), pos, neg);

        if (acc)
            v = vf_load(acc + k * LANES) + v;
        vf_store(d + k * LANES, v);
    }
}

INLINE void sign_unloop(f32_at *d, const f32_at *acc, const u8_at *in, size_t n, float pos,
                        float neg)
{
    vf vpos = vf_set1(pos), vneg = vf_set1(neg);
    float td[STEP], ta[STEP] = { 0 };
    uint32_t bits = 0;
    size_t i;

    for (i = 0; i + STEP <= n; i += STEP)
        sign_spread(d + i, acc ? acc + i : NULL, *(const u32_at *)(in + i / 8), vpos, vneg);
    if (i == n)
        return;
    memcpy(&bits, in + i / 8, (n - i + 7) / 8);
    if (acc)
        memcpy(ta, acc + i, 4 * (n - i));
    sign_spread(td, acc ? ta : NULL, bits, vpos, vneg);
    memcpy(d + i, td, 4 * (n - i));
}

static void sign_decode(void *dst, const void *bits, size_t n, float pos, float neg)
{
    sign_unloop(dst, NULL, bits, n, pos, neg);
}

static void sign_decode_add(void *dst, const void *acc, const void *bits, size_t n, float pos,
                            float neg)
{
    sign_unloop(dst, acc, bits, n, pos, neg);
}
