/* SPDX-License-Identifier: BSD-3-Clause */
/* Exact top-k by magnitude: a radix selection on the 31 bits below the sign, 11, 10 and 10 at a
 * time. The order of magnitudes is that of these bits. */
#include <string.h>

#include "methods/lgc/lgc.h"

static uint32_t magnitude(const float *x, size_t i)
{
    uint32_t bits;

    memcpy(&bits, &x[i], sizeof bits);
    return bits & 0x7fffffffu;
}

/* Of the magnitudes that agree with prefix above `shift + width` bits: how many have which
 * next bits. */
static void lgc_select_count(const float *x, size_t n, uint32_t prefix, int shift, int width,
                             uint32_t *histogram)
{
    uint32_t low = (1u << width) - 1;

    memset(histogram, 0, sizeof *histogram << width);
    for (size_t i = 0; i < n; i++) {
        uint32_t m = magnitude(x, i) >> shift;

        if (m >> width == prefix)
            histogram[m & low]++;
    }
}

void bny_lgc_select(const float *x, size_t n, size_t k, uint32_t *index, uint32_t *histogram)
{
    static const struct {
        int shift, width;
    } digits[] = { { 20, 11 }, { 10, 10 }, { 0, 10 } };
    uint32_t prefix = 0;
    size_t left = k, found = 0; /* left: to be taken from those that have the prefix */

    if (k == 0)
        return;
    for (int d = 0; d < 3; d++) {
        uint32_t at = (1u << digits[d].width) - 1;

        lgc_select_count(x, n, prefix, digits[d].shift, digits[d].width, histogram);
        while (histogram[at] < left)
            left -= histogram[at--];
        prefix = prefix << digits[d].width | at;
    }
    for (size_t i = 0; i < n && found < k; i++) {
        uint32_t m = magnitude(x, i);

        if (m < prefix || (m == prefix && left == 0))
            continue;
        left -= m == prefix;
        index[found++] = (uint32_t)i;
    }
}
