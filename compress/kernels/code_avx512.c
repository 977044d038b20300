/* SPDX-License-Identifier: BSD-3-Clause */
/* The codecs' inner loops for x86-64 processors with AVX-512 F, BW, VL and DQ. */
#include <immintrin.h>

#define LANES 16
#include "compress/kernels/code_base.h"

INLINE unsigned vf_signs(vf v)
{
    return _mm512_movepi32_mask((__m512i)v);
}

INLINE vf vf_pick(unsigned bits, vf a, vf b)
{
    return (vf)_mm512_mask_blend_ps((__mmask16)bits, (__m512)a, (__m512)b);
}

INLINE vf vf_pick_sign(vf v, vf a, vf b)
{
    return vf_pick(vf_signs(v), a, b);
}

INLINE vi vi_max(vi a, vi b)
{
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

INLINE vi vi_min(vi a, vi b)
{
    return (vi)_mm512_min_epi32((__m512i)a, (__m512i)b);
}

INLINE vi vi_widen(const u8_at *p)
{
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}

INLINE void vi_narrow(u8_at *p, vi v)
{
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8((__m512i)v));
}

/* An f16 with the same bits is 2^-8 of it. Its conversion heeds no flushing mode. */
INLINE vf vf_e4m3(vi c)
{
    vi h = (c & 0x7f) << 7 | (c & 0x80) << 8;

    return (vf)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)h)) * 256;
}

INLINE vf vf_e2m1(vi c)
{
    __m512 value =
        _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6);

    return (vf)_mm512_permutexvar_ps((__m512i)c, value);
}

INLINE uint64_t plane_get(const uint8_t *c, unsigned p)
{
    return _mm512_test_epi8_mask(_mm512_loadu_si512(c), _mm512_set1_epi8((char)(1 << p)));
}

INLINE void plane_put(uint8_t *c, uint64_t w, unsigned p)
{
    __m512i old = _mm512_loadu_si512(c);

    _mm512_storeu_si512(c, _mm512_or_si512(old, _mm512_maskz_set1_epi8(w, (char)(1 << p))));
}

INLINE __m512i lane_numbers(unsigned bits, uint32_t i)
{
    __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

    return _mm512_maskz_compress_epi32((__mmask16)bits,
                                       _mm512_add_epi32(lane, _mm512_set1_epi32((int)i)));
}

INLINE void keep32(u8_at *idx, u8_at *val, vf v, unsigned bits, uint32_t i)
{
    _mm512_storeu_si512(idx, lane_numbers(bits, i));
    _mm512_storeu_ps(val, _mm512_maskz_compress_ps((__mmask16)bits, (__m512)v));
}

INLINE void keep16(u8_at *idx, u8_at *val, vf v, unsigned bits, uint32_t i)
{
    _mm256_storeu_si256((void *)idx, _mm512_cvtepi32_epi16(lane_numbers(bits, i)));
    _mm512_storeu_ps(val, _mm512_maskz_compress_ps((__mmask16)bits, (__m512)v));
}

#define TABLE      bny_code_avx512
#define TABLE_NAME "avx512"
#include "compress/kernels/code_loops.h"
