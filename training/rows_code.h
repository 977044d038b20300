/* SPDX-License-Identifier: BSD-3-Clause */
/* How rows travel: as f32 or as int8 of a scale of their own, whole or in part. */
#ifndef BNY_TRAINING_ROWS_CODE_H
#define BNY_TRAINING_ROWS_CODE_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of a row of n values. bits: 32 or 8. */
size_t bny_row_bytes(size_t n, int bits);
/* x[n] to wire; returns its end. */
unsigned char *bny_row_encode(unsigned char *wire, const float *x, size_t n, int bits);
/* The same back; scales come from a peer, and may be anything. */
const unsigned char *bny_row_decode(float *x, const unsigned char *wire, size_t n, int bits);
/* Chooses k of n places, ascending, each set with the same chance; of key alone. */
void bny_row_choose(uint64_t key, size_t n, size_t k, uint32_t *places);

#endif
