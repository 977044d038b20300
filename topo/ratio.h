/* SPDX-License-Identifier: BSD-3-Clause */
/* Exact fractions, for bounds and weights. */
#ifndef BNY_TOPO_RATIO_H
#define BNY_TOPO_RATIO_H

#include <stddef.h>
#include <stdint.h>

/* num/den in lowest terms, den > 0. {1, 0} stands for "infinite" or "overflowed": see
 * bny_ratio_ok. */
struct bny_ratio {
    int64_t num, den;
};

int bny_ratio_ok(struct bny_ratio r);
/* den != 0 */
struct bny_ratio bny_ratio_of(int64_t num, int64_t den);
/* Computed in 128 bits; a result that does not fit in lowest terms is {1, 0}. */
struct bny_ratio bny_ratio_add(struct bny_ratio a, struct bny_ratio b);
struct bny_ratio bny_ratio_mul(struct bny_ratio a, struct bny_ratio b);
struct bny_ratio bny_ratio_div(struct bny_ratio a, struct bny_ratio b);
/* <0, 0, >0; exact. */
int bny_ratio_cmp(struct bny_ratio a, struct bny_ratio b);
double bny_ratio_value(struct bny_ratio r);
/* "p/q", or "p" when q is 1. Returns buf. */
char *bny_ratio_text(struct bny_ratio r, char *buf, size_t cap);
/* Parses "p", "p/q" or a decimal ("12.5", up to 8 decimals count). Returns 0 or
 * -BANYAN_EINVAL. */
int bny_ratio_parse(struct bny_ratio *out, const char *text);

#endif
