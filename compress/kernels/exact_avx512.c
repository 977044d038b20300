/* SPDX-License-Identifier: BSD-3-Clause */
/* The lossless codec's loops for x86-64 processors with AVX-512 F, BW, VL and DQ. */
#include <immintrin.h>

#include "compress/kernels/exact_loops.h"

static void split2(uint8_t *symbols, void *rest, const void *src, size_t m)
{
    size_t i = 0;

    for (; i + 32 <= m; i += 32) {
        __m512i x = _mm512_loadu_si512((const char *)src + 2 * i);
        __m512i r = _mm512_or_si512(_mm512_slli_epi16(x, 1), _mm512_srli_epi16(x, 15));

        _mm256_storeu_si256((void *)(symbols + i),
                            _mm512_cvtepi16_epi8(_mm512_srli_epi16(r, 8)));
        _mm256_storeu_si256((void *)((uint8_t *)rest + i), _mm512_cvtepi16_epi8(r));
    }
    split2_from(i, symbols, rest, src, m);
}

static void join2(void *dst, const uint8_t *symbols, const void *rest, size_t m)
{
    size_t i = 0;

    for (; i + 32 <= m; i += 32) {
        __m512i h = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)(symbols + i)));
        const void *low = (const char *)rest + i;
        __m512i r = _mm512_or_si512(_mm512_slli_epi16(h, 8),
                                    _mm512_cvtepu8_epi16(_mm256_loadu_si256(low)));

        r = _mm512_or_si512(_mm512_srli_epi16(r, 1), _mm512_slli_epi16(r, 15));
        _mm512_storeu_si512((char *)dst + 2 * i, r);
    }
    join2_from(i, dst, symbols, rest, m);
}

static void split4(uint8_t *symbols, void *rest, const void *src, size_t m)
{
    uint8_t *low = rest, *mid = low + 2 * m;
    size_t i = 0;

    for (; i + 16 <= m; i += 16) {
        __m512i r = _mm512_rol_epi32(_mm512_loadu_si512((const char *)src + 4 * i), 1);

        _mm256_storeu_si256((void *)(low + 2 * i), _mm512_cvtepi32_epi16(r));
        _mm_storeu_si128((void *)(mid + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(r, 16)));
        _mm_storeu_si128((void *)(symbols + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(r, 24)));
    }
    split4_from(i, symbols, rest, src, m);
}

static void join4(void *dst, const uint8_t *symbols, const void *rest, size_t m)
{
    const uint8_t *low = rest, *mid = low + 2 * m;
    size_t i = 0;

    for (; i + 16 <= m; i += 16) {
        __m512i h = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(symbols + i)));
        __m512i d = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(mid + i)));
        __m512i l = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(low + 2 * i)));
        __m512i r = _mm512_or_si512(_mm512_or_si512(_mm512_slli_epi32(h, 24), l),
                                    _mm512_slli_epi32(d, 16));

        _mm512_storeu_si512((char *)dst + 4 * i, _mm512_ror_epi32(r, 1));
    }
    join4_from(i, dst, symbols, rest, m);
}

static size_t pack(void *planes, uint8_t *escapes, const uint8_t *symbols, size_t m,
                   unsigned base, unsigned width)
{
    const __m512i vbase = _mm512_set1_epi8((char)base);
    const __m512i last = _mm512_set1_epi8((char)((1u << width) - 1));
    char *p = planes;
    size_t n = 0;

    for (size_t at = 0; at < m; at += 64, p += 8 * width) {
        __m512i s = _mm512_loadu_si512(symbols + at);
        __m512i c = _mm512_min_epu8(_mm512_sub_epi8(s, vbase), last);
        uint64_t esc = _mm512_cmpeq_epi8_mask(c, last);

        for (unsigned k = 0; k < width; k++)
            store64(p + 8 * k, _mm512_test_epi8_mask(c, _mm512_set1_epi8((char)(1u << k))));
        for (; esc; esc &= esc - 1)
            escapes[n++] = symbols[at + (size_t)__builtin_ctzll(esc)];
    }
    return n;
}

static void unpack(uint8_t *symbols, const void *planes, const uint8_t *escapes, size_t room,
                   size_t m, unsigned base, unsigned width)
{
    const __m512i vbase = _mm512_set1_epi8((char)base);
    const uint8_t *end = escapes + room;
    const char *p = planes;

    for (size_t at = 0; at < m; at += 64, p += 8 * width) {
        __m512i s = vbase;
        uint64_t esc = ~(uint64_t)0;

        for (unsigned k = 0; k < width; k++) {
            uint64_t w = load64(p + 8 * k);

            esc &= w;
            s = _mm512_mask_add_epi8(s, w, s, _mm512_set1_epi8((char)(1u << k)));
        }
        _mm512_storeu_si512(symbols + at, s);
        for (; esc && escapes < end; esc &= esc - 1)
            symbols[at + (size_t)__builtin_ctzll(esc)] = *escapes++;
    }
}

/* Kept elements move to the front of a register, which is stored whole. */
static size_t squeeze2(void *out, uint64_t *mask, const void *src, size_t m)
{
    size_t n = 0, at = 0;

    for (; at + 64 <= m; at += 64) {
        uint64_t bits = 0;

        for (size_t i = 0; i < 64; i += 16) {
            const void *p = (const char *)src + 2 * (at + i);
            __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
            __mmask16 there = _mm512_test_epi32_mask(x, x);
            __m256i kept = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(there, x));

            _mm256_storeu_si256((void *)((char *)out + 2 * n), kept);
            bits |= (uint64_t)there << i;
            n += (size_t)__builtin_popcount(there);
        }
        mask[at / 64] = bits;
    }
    return squeeze_from1(at, n, out, mask, src, m);
}

static size_t squeeze4(void *out, uint64_t *mask, const void *src, size_t m)
{
    size_t n = 0, at = 0;

    for (; at + 64 <= m; at += 64) {
        uint64_t bits = 0;

        for (size_t i = 0; i < 64; i += 16) {
            __m512i x = _mm512_loadu_si512((const char *)src + 4 * (at + i));
            __mmask16 there = _mm512_test_epi32_mask(x, x);

            _mm512_storeu_si512((char *)out + 4 * n, _mm512_maskz_compress_epi32(there, x));
            bits |= (uint64_t)there << i;
            n += (size_t)__builtin_popcount(there);
        }
        mask[at / 64] = bits;
    }
    return squeeze_from2(at, n, out, mask, src, m);
}

static void spread2(void *dst, const uint64_t *mask, const void *src, size_t m)
{
    size_t n = 0, at = 0;

    for (; at + 16 <= m; at += 16) {
        __mmask16 there = (__mmask16)(mask[at / 64] >> at % 64);
        const void *p = (const char *)src + 2 * n;
        __m512i x =
            _mm512_maskz_expand_epi32(there, _mm512_cvtepu16_epi32(_mm256_loadu_si256(p)));

        _mm256_storeu_si256((void *)((char *)dst + 2 * at), _mm512_cvtepi32_epi16(x));
        n += (size_t)__builtin_popcount(there);
    }
    spread_from1(at, n, dst, mask, src, m);
}

static void spread4(void *dst, const uint64_t *mask, const void *src, size_t m)
{
    size_t n = 0, at = 0;

    for (; at + 16 <= m; at += 16) {
        __mmask16 there = (__mmask16)(mask[at / 64] >> at % 64);
        __m512i x = _mm512_loadu_si512((const char *)src + 4 * n);

        _mm512_storeu_si512((char *)dst + 4 * at, _mm512_maskz_expand_epi32(there, x));
        n += (size_t)__builtin_popcount(there);
    }
    spread_from2(at, n, dst, mask, src, m);
}

const struct bny_exact_kernels bny_exact_avx512 = {
    .split = { NULL, split2, split4, split8 },
    .join = { NULL, join2, join4, join8 },
    .pack = pack,
    .unpack = unpack,
    .squeeze = { NULL, squeeze2, squeeze4, squeeze_plain3 },
    .spread = { NULL, spread2, spread4, spread_plain3 },
    .count = count,
    .choose = choose,
};
