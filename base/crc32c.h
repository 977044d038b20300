/* SPDX-License-Identifier: BSD-3-Clause */
/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), reflected, initial value and final xor ~0. */
#ifndef BNY_BASE_CRC32C_H
#define BNY_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* crc of `len` more bytes; start with 0. Any thread. */
uint32_t bny_crc32c(uint32_t crc, const void *buf, size_t len);

#endif
