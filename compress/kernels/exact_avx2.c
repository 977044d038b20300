/* SPDX-License-Identifier: BSD-3-Clause */
/* The lossless codec's loops for x86-64 processors with AVX2. */
#include <immintrin.h>

#include "compress/kernels/exact_loops.h"
#include "compress/kernels/front.h"

static const uint64_t back[256] = TABLE_OF(BACK);

static inline __m256i load(const void *p)
{
    return _mm256_loadu_si256(p);
}

static void split2(uint8_t *symbols, void *rest, const void *src, size_t m)
{
    const __m256i byte = _mm256_set1_epi16(255);
    size_t i = 0;

    for (; i + 32 <= m; i += 32) {
        __m256i a = load((const char *)src + 2 * i), b = load((const char *)src + 2 * i + 32);
        __m256i ra = _mm256_or_si256(_mm256_slli_epi16(a, 1), _mm256_srli_epi16(a, 15));
        __m256i rb = _mm256_or_si256(_mm256_slli_epi16(b, 1), _mm256_srli_epi16(b, 15));
        __m256i hi = _mm256_packus_epi16(_mm256_srli_epi16(ra, 8), _mm256_srli_epi16(rb, 8));
        __m256i lo =
            _mm256_packus_epi16(_mm256_and_si256(ra, byte), _mm256_and_si256(rb, byte));

        _mm256_storeu_si256((void *)(symbols + i), _mm256_permute4x64_epi64(hi, 0xd8));
        _mm256_storeu_si256((void *)((uint8_t *)rest + i), _mm256_permute4x64_epi64(lo, 0xd8));
    }
    split2_from(i, symbols, rest, src, m);
}

static inline __m256i back2(__m256i r)
{
    return _mm256_or_si256(_mm256_srli_epi16(r, 1), _mm256_slli_epi16(r, 15));
}

static void join2(void *dst, const uint8_t *symbols, const void *rest, size_t m)
{
    size_t i = 0;

    for (; i + 32 <= m; i += 32) {
        __m256i hi = _mm256_permute4x64_epi64(load(symbols + i), 0xd8);
        __m256i lo = _mm256_permute4x64_epi64(load((const char *)rest + i), 0xd8);
        char *d = (char *)dst + 2 * i;

        _mm256_storeu_si256((void *)d, back2(_mm256_unpacklo_epi8(lo, hi)));
        _mm256_storeu_si256((void *)(d + 32), back2(_mm256_unpackhi_epi8(lo, hi)));
    }
    join2_from(i, dst, symbols, rest, m);
}

/* Bytes of four vectors of u32 < 256, in order. */
static inline __m256i bytes_of(const __m256i *r)
{
    __m256i ab = _mm256_packus_epi32(r[0], r[1]), cd = _mm256_packus_epi32(r[2], r[3]);

    return _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

static void split4(uint8_t *symbols, void *rest, const void *src, size_t m)
{
    const __m256i byte = _mm256_set1_epi32(255), half = _mm256_set1_epi32(0xffff);
    uint8_t *low = rest, *mid = low + 2 * m;
    size_t i = 0;

    for (; i + 32 <= m; i += 32) {
        __m256i l[4], d[4], h[4];

        for (int k = 0; k < 4; k++) {
            __m256i x = load((const char *)src + 4 * i + 32 * k);
            __m256i r = _mm256_or_si256(_mm256_slli_epi32(x, 1), _mm256_srli_epi32(x, 31));

            l[k] = _mm256_and_si256(r, half);
            d[k] = _mm256_and_si256(_mm256_srli_epi32(r, 16), byte);
            h[k] = _mm256_srli_epi32(r, 24);
        }
        for (int k = 0; k < 2; k++) {
            __m256i v = _mm256_packus_epi32(l[2 * k], l[2 * k + 1]);

            _mm256_storeu_si256((void *)(low + 2 * i + 32 * k),
                                _mm256_permute4x64_epi64(v, 0xd8));
        }
        _mm256_storeu_si256((void *)(mid + i), bytes_of(d));
        _mm256_storeu_si256((void *)(symbols + i), bytes_of(h));
    }
    split4_from(i, symbols, rest, src, m);
}

static void join4(void *dst, const uint8_t *symbols, const void *rest, size_t m)
{
    const uint8_t *low = rest, *mid = low + 2 * m;
    size_t i = 0;

    for (; i + 8 <= m; i += 8) {
        __m256i h = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(symbols + i)));
        __m256i d = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(mid + i)));
        __m256i l = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(low + 2 * i)));
        __m256i r = _mm256_or_si256(_mm256_or_si256(_mm256_slli_epi32(h, 24), l),
                                    _mm256_slli_epi32(d, 16));

        r = _mm256_or_si256(_mm256_srli_epi32(r, 1), _mm256_slli_epi32(r, 31));
        _mm256_storeu_si256((void *)((char *)dst + 4 * i), r);
    }
    join4_from(i, dst, symbols, rest, m);
}

/* Bits k of 32 codes below 128. */
static inline uint32_t plane(__m256i codes, unsigned k)
{
    __m128i left = _mm_cvtsi32_si128((int)(7 - k)); /* bits of a neighbour end below bit 7 */

    return (uint32_t)_mm256_movemask_epi8(_mm256_sll_epi16(codes, left));
}

static size_t pack(void *planes, uint8_t *escapes, const uint8_t *symbols, size_t m,
                   unsigned base, unsigned width)
{
    const __m256i vbase = _mm256_set1_epi8((char)base);
    const __m256i last = _mm256_set1_epi8((char)((1u << width) - 1));
    char *p = planes;
    size_t n = 0;

    for (size_t at = 0; at < m; at += 64, p += 8 * width) {
        __m256i a = _mm256_sub_epi8(load(symbols + at), vbase);
        __m256i b = _mm256_sub_epi8(load(symbols + at + 32), vbase);
        uint64_t esc;

        a = _mm256_min_epu8(a, last);
        b = _mm256_min_epu8(b, last);
        esc = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, last));
        esc |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(b, last)) << 32;
        for (unsigned k = 0; k < width; k++)
            store64(p + 8 * k, plane(a, k) | (uint64_t)plane(b, k) << 32);
        for (; esc; esc &= esc - 1)
            escapes[n++] = symbols[at + (size_t)__builtin_ctzll(esc)];
    }
    return n;
}

/* 32 bytes, -1 where the bit is set. */
static inline __m256i spread(uint32_t bits)
{
    const __m256i from = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2,
                                          2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), from);

    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}

static void unpack(uint8_t *symbols, const void *planes, const uint8_t *escapes, size_t room,
                   size_t m, unsigned base, unsigned width)
{
    const __m256i vbase = _mm256_set1_epi8((char)base);
    const uint8_t *end = escapes + room;
    const char *p = planes;

    for (size_t at = 0; at < m; at += 64, p += 8 * width) {
        __m256i a = vbase, b = vbase;
        uint64_t esc = ~(uint64_t)0;

        for (unsigned k = 0; k < width; k++) {
            uint64_t w = load64(p + 8 * k);
            __m256i add = _mm256_set1_epi8((char)(1u << k));

            esc &= w;
            a = _mm256_add_epi8(a, _mm256_and_si256(spread((uint32_t)w), add));
            b = _mm256_add_epi8(b, _mm256_and_si256(spread((uint32_t)(w >> 32)), add));
        }
        _mm256_storeu_si256((void *)(symbols + at), a);
        _mm256_storeu_si256((void *)(symbols + at + 32), b);
        for (; esc && escapes < end; esc &= esc - 1)
            symbols[at + (size_t)__builtin_ctzll(esc)] = *escapes++;
    }
}

/* Numbers of eight lanes of 4 bytes; of 2 bytes, as bytes. */
static inline __m256i lanes4(uint64_t numbers)
{
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)numbers));
}

static inline __m128i lanes2(uint64_t numbers)
{
    __m128i n = _mm_cvtepu8_epi16(_mm_cvtsi64_si128((long long)numbers));

    return _mm_add_epi16(_mm_mullo_epi16(n, _mm_set1_epi16(0x202)), _mm_set1_epi16(0x100));
}

static size_t squeeze2(void *out, uint64_t *mask, const void *src, size_t m)
{
    size_t n = 0, at = 0;

    for (; at + 64 <= m; at += 64) {
        uint64_t word = 0;

        for (unsigned k = 0; k < 64; k += 8) {
            __m128i v = _mm_loadu_si128((const void *)((const char *)src + 2 * (at + k)));
            __m128i none = _mm_cmpeq_epi16(v, _mm_setzero_si128());
            unsigned bits = ~(unsigned)_mm_movemask_epi8(_mm_packs_epi16(none, none)) & 255;

            _mm_storeu_si128((void *)((char *)out + 2 * n),
                             _mm_shuffle_epi8(v, lanes2(front[bits])));
            n += (size_t)__builtin_popcount(bits);
            word |= (uint64_t)bits << k;
        }
        mask[at / 64] = word;
    }
    return squeeze_from1(at, n, out, mask, src, m);
}

static size_t squeeze4(void *out, uint64_t *mask, const void *src, size_t m)
{
    size_t n = 0, at = 0;

    for (; at + 64 <= m; at += 64) {
        uint64_t word = 0;

        for (unsigned k = 0; k < 64; k += 8) {
            __m256i v = load((const char *)src + 4 * (at + k));
            __m256i none = _mm256_cmpeq_epi32(v, _mm256_setzero_si256());
            unsigned bits = ~(unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(none)) & 255;

            _mm256_storeu_si256((void *)((char *)out + 4 * n),
                                _mm256_permutevar8x32_epi32(v, lanes4(front[bits])));
            n += (size_t)__builtin_popcount(bits);
            word |= (uint64_t)bits << k;
        }
        mask[at / 64] = word;
    }
    return squeeze_from2(at, n, out, mask, src, m);
}

static void spread2(void *dst, const uint64_t *mask, const void *src, size_t m)
{
    const __m128i bit = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128);
    size_t n = 0, at = 0;

    for (; at + 8 <= m; at += 8) {
        unsigned bits = (unsigned)(mask[at / 64] >> at % 64) & 255;
        __m128i v = _mm_loadu_si128((const void *)((const char *)src + 2 * n));
        __m128i there = _mm_cmpeq_epi16(_mm_and_si128(_mm_set1_epi16((short)bits), bit), bit);

        _mm_storeu_si128((void *)((char *)dst + 2 * at),
                         _mm_and_si128(_mm_shuffle_epi8(v, lanes2(back[bits])), there));
        n += (size_t)__builtin_popcount(bits);
    }
    spread_from1(at, n, dst, mask, src, m);
}

static void spread4(void *dst, const uint64_t *mask, const void *src, size_t m)
{
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    size_t n = 0, at = 0;

    for (; at + 8 <= m; at += 8) {
        unsigned bits = (unsigned)(mask[at / 64] >> at % 64) & 255;
        __m256i v =
            _mm256_permutevar8x32_epi32(load((const char *)src + 4 * n), lanes4(back[bits]));
        __m256i there =
            _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), bit), bit);

        _mm256_storeu_si256((void *)((char *)dst + 4 * at), _mm256_and_si256(v, there));
        n += (size_t)__builtin_popcount(bits);
    }
    spread_from2(at, n, dst, mask, src, m);
}

const struct bny_exact_kernels bny_exact_avx2 = {
    .split = { NULL, split2, split4, split8 },
    .join = { NULL, join2, join4, join8 },
    .pack = pack,
    .unpack = unpack,
    .squeeze = { NULL, squeeze2, squeeze4, squeeze_plain3 },
    .spread = { NULL, spread2, spread4, spread_plain3 },
    .count = count,
    .choose = choose,
};
