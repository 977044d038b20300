/* SPDX-License-Identifier: BSD-3-Clause */
/* CRC-32C: the processor's instruction if it has one, else a table of 16 entries (a nibble per
 * step). */
#include "base/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t by_table(uint32_t crc, const unsigned char *p, size_t len)
{
    static const uint32_t nibble[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };

    for (; len; len--) {
        crc ^= *p++;
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t
by_instruction(uint32_t crc, const unsigned char *p, size_t len)
{
    uint64_t c = crc;

    for (; len >= 8; len -= 8, p += 8) {
        uint64_t v;

        memcpy(&v, p, 8);
        c = _mm_crc32_u64(c, v);
    }
    for (; len; len--)
        c = _mm_crc32_u8((uint32_t)c, *p++);
    return (uint32_t)c;
}
#endif

uint32_t bny_crc32c(uint32_t crc, const void *buf, size_t len)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return ~by_instruction(~crc, buf, len);
#endif
    return ~by_table(~crc, buf, len);
}
