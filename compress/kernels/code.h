/* SPDX-License-Identifier: BSD-3-Clause */
/* The inner loops of the codecs, one table per instruction set. The scalar table is the
 * definition; every other table gives the same bits for any input (NaN, infinities, subnormal
 * numbers), any n and any alignment. Arrays of elements, residuals and wire bytes are void *:
 * they may lie at any address. Arrays do not overlap unless a line says so; n may be 0. Nothing
 * here fails, allocates or checks foreign bytes, but for indexes_ok.
 *
 * v means src[i] + s * ef[i], product and sum rounded to f32, where a loop takes a residual,
 * and src[i] where ef is NULL. Sums of floats are defined as: 32 lanes (element i to lane i %
 * 32), each in f32 in order of i, over at most BNY_SUM_SPAN elements counted from the array's
 * start; then the lanes 0..31 in order in f64; the spans in order in f64. */
#ifndef BNY_COMPRESS_KERNELS_CODE_H
#define BNY_COMPRESS_KERNELS_CODE_H

#include <stddef.h>
#include <stdint.h>

#define BNY_SUM_SPAN 4096
#define BNY_FWHT     1024
#define BNY_F32_INF  0x7f800000u /* bits; |x| from here on is not finite */

/* Counter-based random numbers: what element index draws depends on nothing but the key and
 * index modulo 2^32. */
struct bny_rand {
    uint32_t a, b;
};

static inline struct bny_rand bny_rand_key(uint64_t seed, uint32_t step, uint32_t rank)
{
    uint64_t z = seed + (step + 1) * 0x9e3779b97f4a7c15u;

    for (int i = 0; i < 2; i++) { /* splitmix64's mixing */
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        z = (z ^ z >> 31) + rank * 0xd1342543de82ef95u;
    }
    return (struct bny_rand){ (uint32_t)z, (uint32_t)(z >> 32) };
}

/* 32 random bits. The multipliers are those of Wellons's lowbias32. */
static inline uint32_t bny_rand_at(struct bny_rand k, uint32_t index)
{
    uint32_t x = index ^ k.a;

    x = (x ^ x >> 16) * 0x7feb352du + k.b;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

struct bny_moments {
    double sum;  /* of |x| */
    double sum2; /* of x^2, each product in f32: infinite from |x| = 2^64 on, 0 below 2^-75 */
    float max;   /* of |x| */
    uint32_t nonfinite; /* how many NaN and infinities; they count as 0 above */
};

/* Result of a selection. */
struct bny_selection {
    size_t over;   /* elements with |v| > eta, kept or not */
    double excess; /* sum of |v| - eta over them */
    double sum;    /* of |v| over all n elements */
};

/* Element formats of blocks that share a scale. One block of m elements:
 *   8 bits: code i in byte i. 4 bits: byte j < h = (m + 1) / 2 has code j in its low half, code
 *   j + h in its high half (0 where there is none). */
enum bny_format {
    BNY_INT8, /* two's complement, -127..127 */
    BNY_INT4, /* code + 8: 1..15; 0 decodes as -8 */
    BNY_E4M3, /* OCP FP8: bias 7, largest 448, no infinity; codes 7f and ff decode as +-480 */
    BNY_E5M2, /* OCP FP8: bias 15, largest 57344; codes 7c-7f, fc-ff decode as +-65536 * (1 +
                 m/4) */
    BNY_E2M1, /* OCP FP4: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives */
    BNY_FORMAT_COUNT,
};

/* A block's scale: f32, absmax / largest value, 0 where absmax < 2^-110. Or E8M0 (OCP MX):
 * 2^(floor(log2 absmax) - exponent of the largest value), one byte, exponent + 127, at least 1;
 * values beyond the largest saturate. */

/* An encoding's inputs. */
struct bny_quant {
    const void *src;
    void *ef;   /* NULL: none. Else receives v - decoded; ef is not src */
    float s;    /* ef's factor */
    int random; /* INT8, INT4: stochastic rounding */
    struct bny_rand key;
    uint32_t index; /* of src[0] */
};

struct bny_format_kernels {
    /* Blocks of `block` elements (even, the last may be shorter) with F32 scales: all scales
     * first, then quantise. 0, or -1 when some |v| >= 2^127 or is NaN: then scales may be
     * written, ef is not. codes: blocks one after another. */
    int (*encode)(void *scales, void *codes, const struct bny_quant *q, size_t n, size_t block);
    /* dst[i] = scale * code (* factor when it is not 1, as a product of its own). Any scales.
     */
    void (*decode)(void *dst, const void *scales, const void *codes, size_t n, size_t block,
                   float factor);
    /* dst[i] = acc[i] + scale * code; dst may be acc. A NaN of acc stays one, quiet. */
    void (*decode_add)(void *dst, const void *acc, const void *scales, const void *codes,
                       size_t n, size_t block);
};

struct bny_code_kernels {
    char name[8];
    /* Bits of the largest |x| (|v|): from BNY_F32_INF on some are not finite. 0 for n = 0. */
    uint32_t (*absmax)(const void *src, const void *ef, float s, size_t n);
    /* v[i], NaN as the processor makes them. out may be src or ef. */
    void (*compensate)(void *out, const void *src, const void *ef, float s, size_t n);
    /* ef[i] = v[i] - back[i], 0 where back is not finite: what became infinite is not made good
     * later. */
    void (*residual)(void *ef, const void *v, const void *back, size_t n);
    void (*moments)(struct bny_moments *m, const void *src, size_t n);
    /* Elements with |v| > eta, in order, the first cap of them: idx[j] = i, val[j] = v (f32).
     * Returns their number; bytes of idx and val up to cap may be overwritten. With ef: ef[i] =
     * v, or 0 where it was kept. n <= 65536 for the u16 one. v must be finite: a NaN is never
     * over, but sum is then NaN. */
    size_t (*select16)(void *idx, void *val, size_t cap, const void *src, void *ef, float s,
                       size_t n, float eta, struct bny_selection *sel);
    size_t (*select32)(void *idx, void *val, size_t cap, const void *src, void *ef, float s,
                       size_t n, float eta, struct bny_selection *sel);
    /* 1 when the k foreign indexes increase strictly and are below n. */
    int (*indexes_ok16)(const void *idx, size_t k, size_t n);
    int (*indexes_ok32)(const void *idx, size_t k, size_t n);
    /* dst[idx[j]] += val[j] (scatter_add), = val[j] (scatter); indexes checked before. gather:
     * val[j] = src[idx[j]]. */
    void (*scatter16)(void *dst, const void *idx, const void *val, size_t k);
    void (*scatter32)(void *dst, const void *idx, const void *val, size_t k);
    void (*scatter_add16)(void *dst, const void *idx, const void *val, size_t k);
    void (*scatter_add32)(void *dst, const void *idx, const void *val, size_t k);
    void (*gather32)(void *val, const void *src, const void *idx, size_t k);
    /* Codes of b bits, 1..8; one code a byte before packing, its upper bits 0. Wire bytes:
     * bny_packed_bytes(b, n). b = 1, 2, 4, 8: code i starts at bit i * b, lowest bit of the
     * lowest byte first. b = 3, 5, 6, 7: groups of 64 codes, b words of 64 bits each, bit i of
     * word p = bit p of code i; in a last group of r codes the words have (r + 7) / 8 bytes.
     * Unused bits are 0. [0] is NULL. */
    void (*pack[9])(void *wire, const uint8_t *codes, size_t n);
    void (*unpack[9])(uint8_t *codes, const void *wire, size_t n);
    /* Orthonormal Walsh-Hadamard transform of 1024 elements in place, its own inverse: strides
     * 512, 256, ... 1, then times 2^-5. */
    void (*fwht)(void *x);
    /* out[i] = x[i] with the sign turned where bny_rand_at(key, index + i) is odd. out may be
     * src. */
    void (*flip)(void *out, const void *src, struct bny_rand key, uint32_t index, size_t n);
    /* out[i] = bny_rand_at(key, index + i). */
    void (*random)(uint32_t *out, struct bny_rand key, uint32_t index, size_t n);
    /* Sum of |v|. Not finite when some v is not. */
    double (*l1)(const void *src, const void *ef, float s, size_t n);
    /* Bit i (1-bit packing) = sign bit of v; with ef: ef = v - (sign ? neg : pos). */
    void (*sign_encode)(void *bits, const void *src, void *ef, float s, size_t n, float pos,
                        float neg);
    /* dst[i] = bit i ? neg : pos; and added to acc[i] (dst may be acc). */
    void (*sign_decode)(void *dst, const void *bits, size_t n, float pos, float neg);
    void (*sign_decode_add)(void *dst, const void *acc, const void *bits, size_t n, float pos,
                            float neg);
    struct bny_format_kernels format[BNY_FORMAT_COUNT];
    /* The same with E8M0 scales, one byte a block; E4M3 and E2M1 only, others NULL. */
    struct bny_format_kernels mx[BNY_FORMAT_COUNT];
};

extern const struct bny_code_kernels bny_code_scalar, bny_code_avx2, bny_code_avx512,
    bny_code_neon;

static inline size_t bny_packed_bytes(unsigned b, size_t n)
{
    if (b == 3 || b >= 5)
        return b == 8 ? n : n / 64 * 8 * b + (n % 64 + 7) / 8 * b;
    return n / 8 * b + (n % 8 * b + 7) / 8;
}

/* The best table for a set of bny_cpu_flags. Pure; any thread. */
const struct bny_code_kernels *bny_code_kernels_for(unsigned cpu_flags);

#endif
