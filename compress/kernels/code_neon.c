/* SPDX-License-Identifier: BSD-3-Clause */
/* The codecs' inner loops for aarch64. The compiler's vectors do most; intrinsics move kept
 * elements to the front and make masks. */
#include <arm_neon.h>

#define LANES 4
#include "compress/kernels/code_base.h"

#define NEON_HOOKS
#include "compress/kernels/code_plain.h"

INLINE unsigned vf_signs(vf v)
{
    const uint32x4_t weight = { 1, 2, 4, 8 };
    uint32x4_t on = (uint32x4_t)vshrq_n_s32((int32x4_t)v, 31);

    return vaddvq_u32(vandq_u32(on, weight));
}

INLINE vf vf_pick(unsigned bits, vf a, vf b)
{
    const uint32x4_t weight = { 1, 2, 4, 8 };

    return (vf)vbslq_f32(vtstq_u32(vdupq_n_u32(bits), weight), (float32x4_t)b, (float32x4_t)a);
}

INLINE vf vf_pick_sign(vf v, vf a, vf b)
{
    uint32x4_t on = (uint32x4_t)vshrq_n_s32((int32x4_t)v, 31);

    return (vf)vbslq_f32(on, (float32x4_t)b, (float32x4_t)a);
}

INLINE vi vi_max(vi a, vi b)
{
    return (vi)vmaxq_s32((int32x4_t)a, (int32x4_t)b);
}

INLINE vi vi_min(vi a, vi b)
{
    return (vi)vminq_s32((int32x4_t)a, (int32x4_t)b);
}

/* The numbers of the set bits, to the front, four bits each. */
static const uint16_t front[16] = { 0, 0,    1,    0x10,  2,    0x20,  0x21,  0x210,
                                    3, 0x30, 0x31, 0x310, 0x32, 0x320, 0x321, 0x3210 };

INLINE uint32x4_t lanes_kept(unsigned bits)
{
    const int32x4_t shift = { 0, -4, -8, -12 };

    return vandq_u32(vshlq_u32(vdupq_n_u32(front[bits]), shift), vdupq_n_u32(3));
}

/* v's lanes in that order: bytes 4 l .. 4 l + 3 of each. */
INLINE void keep_values(u8_at *val, vf v, uint32x4_t lane)
{
    uint8x16_t bytes =
        vreinterpretq_u8_u32(vmlaq_n_u32(vdupq_n_u32(0x03020100), lane, 0x04040404));

    vst1q_u8(val, vqtbl1q_u8((uint8x16_t)v, bytes));
}

INLINE void keep32(u8_at *idx, u8_at *val, vf v, unsigned bits, uint32_t i)
{
    uint32x4_t lane = lanes_kept(bits);

    vst1q_u8(idx, vreinterpretq_u8_u32(vaddq_u32(lane, vdupq_n_u32(i))));
    keep_values(val, v, lane);
}

INLINE void keep16(u8_at *idx, u8_at *val, vf v, unsigned bits, uint32_t i)
{
    uint32x4_t lane = lanes_kept(bits);

    vst1_u8(idx, vreinterpret_u8_u16(vmovn_u32(vaddq_u32(lane, vdupq_n_u32(i)))));
    keep_values(val, v, lane);
}

#define TABLE      bny_code_neon
#define TABLE_NAME "neon"
#include "compress/kernels/code_loops.h"
