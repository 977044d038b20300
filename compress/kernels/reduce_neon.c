/* SPDX-License-Identifier: BSD-3-Clause */
/* The inner loops for aarch64: f16 and bf16 conversions by intrinsics. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "compress/kernels/kernels.h"

#define LANES 4
typedef float32x4_t vf;

static inline vf vf_load_f32(const unsigned char *p)
{
    return vreinterpretq_f32_u8(vld1q_u8(p));
}

static inline void vf_store_f32(unsigned char *p, vf v)
{
    vst1q_u8(p, vreinterpretq_u8_f32(v));
}

static inline vf vf_load_f16(const unsigned char *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

static inline void vf_store_f16(unsigned char *p, vf v)
{
    vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(v)));
}

static inline vf vf_load_bf16(const unsigned char *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

static inline uint32x4_t is_nan(vf v)
{
    return vmvnq_u32(vceqq_f32(v, v));
}

/* v's bits + 0x7fff, and 1 when the last bit that stays is set: the upper half is rounded. */
static inline uint32x4_t bf16_round(uint32x4_t u)
{
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));

    return vshrq_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
}

static inline void vf_store_bf16(unsigned char *p, vf v)
{
    uint32x4_t u = vreinterpretq_u32_f32(v),
               quiet = vorrq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(0x40));

    vst1_u8(p, vreinterpret_u8_u16(vmovn_u32(vbslq_u32(is_nan(v), quiet, bf16_round(u)))));
}

static inline void vf_store_canon_bf16(unsigned char *p, vf v)
{
    uint32x4_t h =
        vbslq_u32(is_nan(v), vdupq_n_u32(0x7fc0), bf16_round(vreinterpretq_u32_f32(v)));

    vst1_u8(p, vreinterpret_u8_u16(vmovn_u32(h)));
}

/* As stored and loaded again; a NaN comes of an addition of such numbers. */
static inline vf vf_round_f16(vf v)
{
    return vcvt_f32_f16(vcvt_f16_f32(v));
}

static inline vf vf_round_bf16(vf v)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(bf16_round(vreinterpretq_u32_f32(v)), 16));
}

static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}

static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}

static inline vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}

static inline vf vf_canon(vf v)
{
    return vreinterpretq_f32_u32(
        vbslq_u32(is_nan(v), vdupq_n_u32(0x7fc00000), vreinterpretq_u32_f32(v)));
}

static inline void vf_store_canon_f16(unsigned char *p, vf v)
{
    vf_store_f16(p, vf_canon(v));
}

/* Not measured: never. */
#define STREAM_FROM SIZE_MAX
static inline void stream_line(unsigned char *d, const unsigned char *s)
{
    memcpy(d, s, 64);
}

static inline void stream_end(void)
{
}

#define KERNELS      bny_kernels_neon
#define KERNELS_NAME "neon"
#include "compress/kernels/loops.h"
