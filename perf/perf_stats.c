/* SPDX-License-Identifier: BSD-3-Clause */
/* Order statistics of the measured times. */
#include <stdlib.h>

#include "perf/perf.h"

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void perf_sort(double *v, size_t n)
{
    qsort(v, n, sizeof *v, compare);
}

double perf_percentile(const double *sorted, size_t n, double p)
{
    double at = p * (double)(n - 1);
    size_t lo = (size_t)at, hi = lo + 1 < n ? lo + 1 : lo;

    return sorted[lo] + (sorted[hi] - sorted[lo]) * (at - (double)lo);
}
