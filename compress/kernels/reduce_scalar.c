/* SPDX-License-Identifier: BSD-3-Clause */
/* The inner loops in plain C: the definition of every result, for any processor. */
#include "compress/kernels/half.h"
#include "compress/kernels/kernels.h"

#define LANES 1
typedef float vf;

static inline vf vf_load_f32(const unsigned char *p)
{
    vf v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vf_store_f32(unsigned char *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

static inline vf vf_load_f16(const unsigned char *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

static inline void vf_store_f16(unsigned char *p, vf v)
{
    uint16_t h = f16_from_f32(v);

    memcpy(p, &h, sizeof h);
}

static inline vf vf_load_bf16(const unsigned char *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof h);
    return bf16_to_f32(h);
}

static inline void vf_store_bf16(unsigned char *p, vf v)
{
    uint16_t h = bf16_from_f32(v);

    memcpy(p, &h, sizeof h);
}

/* As stored and loaded again; a NaN comes of an addition of such numbers. */
static inline vf vf_round_f16(vf v)
{
    return f16_to_f32(f16_from_f32(v));
}

static inline vf vf_round_bf16(vf v)
{
    return bf16_to_f32(bf16_from_f32(v));
}

static inline vf vf_add(vf a, vf b)
{
    return a + b;
}

static inline vf vf_mul(vf a, vf b)
{
    return a * b;
}

static inline vf vf_set1(float x)
{
    return x;
}

static inline vf vf_canon(vf v)
{
    return v != v ? f32_from_bits(0x7fc00000) : v;
}

static inline void vf_store_canon_f16(unsigned char *p, vf v)
{
    vf_store_f16(p, vf_canon(v));
}

static inline void vf_store_canon_bf16(unsigned char *p, vf v)
{
    vf_store_bf16(p, vf_canon(v));
}

#define STREAM_FROM SIZE_MAX
static inline void stream_line(unsigned char *d, const unsigned char *s)
{
    memcpy(d, s, 64);
}

static inline void stream_end(void)
{
}

#define KERNELS      bny_kernels_scalar
#define KERNELS_NAME "scalar"
#include "compress/kernels/loops.h"

#define PRODUCT(name, part)                                                                    \
    void name(void *dst, const void *a, const void *b, size_t n)                               \
    {                                                                                          \
        for (size_t i = 0; i < n; i++) {                                                       \
            part x[2], y[2], r[2];                                                             \
                                                                                               \
            memcpy(x, (const char *)a + i * sizeof x, sizeof x);                               \
            memcpy(y, (const char *)b + i * sizeof y, sizeof y);                               \
            r[0] = x[0] * y[0] - x[1] * y[1];                                                  \
            r[1] = x[0] * y[1] + x[1] * y[0];                                                  \
            for (int k = 0; k < 2; k++)                                                        \
                r[k] = r[k] != r[k] ? (part)NAN : r[k];                                        \
            memcpy((char *)dst + i * sizeof r, r, sizeof r);                                   \
        }                                                                                      \
    }
PRODUCT(bny_prod_c64, float)
PRODUCT(bny_prod_c128, double)
#undef PRODUCT
