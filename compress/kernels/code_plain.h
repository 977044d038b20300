/* SPDX-License-Identifier: BSD-3-Clause */
/* The functions that code_base.h asks for, in plain C. NEON_HOOKS: the including file has its
 * own of what stands last. */

INLINE vi vi_widen(const u8_at *p)
{
    vi v;

    for (int j = 0; j < LANES; j++)
        v[j] = p[j];
    return v;
}

INLINE void vi_narrow(u8_at *p, vi v)
{
    for (int j = 0; j < LANES; j++)
        p[j] = (uint8_t)v[j];
}

INLINE vf vf_e4m3(vi c)
{
    return vf_minifloat(c, 3, 7, 7);
}

INLINE vf vf_e2m1(vi c)
{
    return vf_minifloat(c, 1, 1, 3);
}

/* A word's byte i has one bit: bit i of a byte. */
INLINE uint64_t plane_get(const uint8_t *c, unsigned p)
{
    uint64_t word = 0;

    for (int i = 0; i < 8; i++) {
        uint64_t x = ((const u64_at *)c)[i] >> p & 0x0101010101010101;

        word |= x * 0x0102040810204080 >> 56 << 8 * i;
    }
    return word;
}

INLINE void plane_put(uint8_t *c, uint64_t w, unsigned p)
{
    for (int i = 0; i < 8; i++) {
        uint64_t x = (w >> 8 * i & 255) * 0x0101010101010101 & 0x8040201008040201;

        ((u64_at *)c)[i] |= ((x + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) << p;
    }
}

#ifndef NEON_HOOKS

INLINE unsigned vf_signs(vf v)
{
    unsigned bits = 0;

    for (int j = 0; j < LANES; j++)
        bits |= (uint32_t)((vi)v)[j] >> 31 << j;
    return bits;
}

INLINE vf vf_pick(unsigned bits, vf a, vf b)
{
    vf r = a;

    for (int j = 0; j < LANES; j++)
        r[j] = bits >> j & 1 ? b[j] : a[j];
    return r;
}

INLINE vf vf_pick_sign(vf v, vf a, vf b)
{
    vi on = (vi)v < 0;

    return (vf)(((vi)b & on) | ((vi)a & ~on));
}

INLINE vi vi_max(vi a, vi b)
{
    return (a & (a > b)) | (b & ~(a > b));
}

INLINE vi vi_min(vi a, vi b)
{
    return (a & (a < b)) | (b & ~(a < b));
}

INLINE void keep32(u8_at *idx, u8_at *val, vf v, unsigned bits, uint32_t i)
{
    for (size_t k = 0; bits; bits &= bits - 1, k++) {
        int j = __builtin_ctz(bits);

        ((u32_at *)idx)[k] = i + (uint32_t)j;
        ((f32_at *)val)[k] = v[j];
    }
}

INLINE void keep16(u8_at *idx, u8_at *val, vf v, unsigned bits, uint32_t i)
{
    for (size_t k = 0; bits; bits &= bits - 1, k++) {
        int j = __builtin_ctz(bits);

        ((u16_at *)idx)[k] = (uint16_t)(i + (uint32_t)j);
        ((f32_at *)val)[k] = v[j];
    }
}

#endif
