/* SPDX-License-Identifier: BSD-3-Clause */
/* The codecs' inner loops for x86-64 processors with AVX2, FMA and F16C. */
#include <immintrin.h>

#define LANES 8
#include "compress/kernels/code_base.h"
#include "compress/kernels/front.h"

INLINE unsigned vf_signs(vf v)
{
    return (unsigned)_mm256_movemask_ps((__m256)v);
}

INLINE vf vf_pick(unsigned bits, vf a, vf b)
{
    __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i on = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), lane), lane);

    return (vf)_mm256_blendv_ps((__m256)a, (__m256)b, (__m256)on);
}

INLINE vf vf_pick_sign(vf v, vf a, vf b)
{
    return (vf)_mm256_blendv_ps((__m256)a, (__m256)b, (__m256)v);
}

INLINE vi vi_max(vi a, vi b)
{
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
}

INLINE vi vi_min(vi a, vi b)
{
    return (vi)_mm256_min_epi32((__m256i)a, (__m256i)b);
}

INLINE vi vi_widen(const u8_at *p)
{
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
}

INLINE void vi_narrow(u8_at *p, vi v)
{
    const __m256i low =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, /* */
                         0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i b = _mm256_shuffle_epi8((__m256i)v, low);

    _mm_storel_epi64((void *)p, _mm_unpacklo_epi32(_mm256_castsi256_si128(b),
                                                   _mm256_extracti128_si256(b, 1)));
}

/* An f16 with the same bits is 2^-8 of it. Its conversion heeds no flushing mode. */
INLINE vf vf_e4m3(vi c)
{
    const __m256i low =
        _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, /* */
                         0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1);
    vi h = (c & 0x7f) << 7 | (c & 0x80) << 8;
    __m256i b = _mm256_shuffle_epi8((__m256i)h, low);
    __m128i packed =
        _mm_unpacklo_epi64(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));

    return (vf)_mm256_cvtph_ps(packed) * 256;
}

INLINE vf vf_e2m1(vi c)
{
    __m256 value = _mm256_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6);

    return (vf)((vi)_mm256_permutevar8x32_ps(value, (__m256i)c) | (c & 8) << 28);
}

INLINE uint64_t plane_get(const uint8_t *c, unsigned p)
{
    __m128i up = _mm_cvtsi32_si128(7 - (int)p);
    __m256i low = _mm256_loadu_si256((const void *)c),
            high = _mm256_loadu_si256((const void *)(c + 32));
    /* Bit p of each byte to its top; what comes from the byte below stays below. */
    uint32_t a = (uint32_t)_mm256_movemask_epi8(_mm256_sll_epi16(low, up));
    uint32_t b = (uint32_t)_mm256_movemask_epi8(_mm256_sll_epi16(high, up));

    return a | (uint64_t)b << 32;
}

/* Byte i is `value` where bit i is set, else 0. */
INLINE __m256i spread(uint32_t bits, char value)
{
    const __m256i copy =
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i x = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), copy), bit);

    return _mm256_and_si256(_mm256_cmpeq_epi8(x, bit), _mm256_set1_epi8(value));
}

INLINE void plane_put(uint8_t *c, uint64_t w, unsigned p)
{
    __m256i low = _mm256_loadu_si256((const void *)c),
            high = _mm256_loadu_si256((const void *)(c + 32));

    low = _mm256_or_si256(low, spread((uint32_t)w, (char)(1 << p)));
    high = _mm256_or_si256(high, spread((uint32_t)(w >> 32), (char)(1 << p)));
    _mm256_storeu_si256((void *)c, low);
    _mm256_storeu_si256((void *)(c + 32), high);
}

INLINE __m256i lanes_kept(unsigned bits)
{
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)front[bits]));
}

INLINE void keep32(u8_at *idx, u8_at *val, vf v, unsigned bits, uint32_t i)
{
    __m256i lane = lanes_kept(bits);

    _mm256_storeu_si256((void *)idx, _mm256_add_epi32(lane, _mm256_set1_epi32((int)i)));
    _mm256_storeu_ps((void *)val, _mm256_permutevar8x32_ps((__m256)v, lane));
}

INLINE void keep16(u8_at *idx, u8_at *val, vf v, unsigned bits, uint32_t i)
{
    __m128i number = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)front[bits]));

    _mm_storeu_si128((void *)idx, _mm_add_epi16(number, _mm_set1_epi16((short)i)));
    _mm256_storeu_ps((void *)val, _mm256_permutevar8x32_ps((__m256)v, lanes_kept(bits)));
}

#define TABLE      bny_code_avx2
#define TABLE_NAME "avx2"
#include "compress/kernels/code_loops.h"
