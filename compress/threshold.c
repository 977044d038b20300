/* SPDX-License-Identifier: BSD-3-Clause */
/* Thresholds for a requested number of elements: exact by radix, or tracked from one operation
 * to the next. */
#include <math.h>
#include <string.h>

#include "compress/sparse.h"

/* Largest change of c per step. With a residual, elements gather just below the threshold, many
 * more than the tail above it predicts: without these limits heavy tails made the number kept
 * vary by a factor of 100. */
#define UP    0.2
#define DOWN  0.06
#define FRESH 4

static uint32_t magnitude(const struct bny_enc *e, const void *src, size_t i)
{
    float v = bny_sparse_value(e, src, i);
    uint32_t bits;

    memcpy(&bits, &v, sizeof bits);
    return bits & 0x7fffffff;
}

/* The digit of the k-th largest; *k becomes its rank among those with this digit. */
static uint32_t digit_of(const uint32_t *count, uint32_t digits, size_t *k)
{
    uint32_t d = digits - 1;

    for (; d > 0 && count[d] < *k; d--)
        *k -= count[d];
    return d;
}

uint32_t bny_kth_largest(const struct bny_enc *e, const void *src, size_t n, size_t k)
{
    const int shift[] = { 20, 10, 0 };
    uint32_t count[2048], prefix = 0;

    for (int round = 0; round < 3; round++) {
        uint32_t digits = round ? 1024 : 2048;

        memset(count, 0, sizeof count);
        for (size_t i = 0; i < n; i++) {
            uint32_t bits = magnitude(e, src, i) >> shift[round];

            if (round == 0 || bits / 1024 == prefix)
                count[bits % digits]++;
        }
        prefix = prefix * 1024 + digit_of(count, digits, &k);
    }
    return prefix;
}

static float below(uint32_t bits)
{
    float v;

    bits -= bits > 0;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* The chunk's mean in the previous operation; 0: unknown. */
static float mean_then(const struct bny_track_side *t, uint64_t index)
{
    for (uint32_t i = 0; i < t->nchunks && i < BNY_TRACK_CHUNKS; i++)
        if (t->chunk[i].index == index)
            return t->chunk[i].mean;
    return 0;
}

static int is_amount(double v)
{
    return isfinite(v) && v >= 0;
}

static int side_ok(const struct bny_track_side *t)
{
    int ok = is_amount((double)t->c) && is_amount((double)t->mean) && is_amount(t->delta) &&
             t->fresh <= FRESH && t->nchunks <= BNY_TRACK_CHUNKS;

    for (uint32_t i = 0; ok && i < t->nchunks; i++)
        ok = is_amount((double)t->chunk[i].mean);
    return ok;
}

int bny_track_ok(const void *track)
{
    struct bny_track t;

    memcpy(&t, track, sizeof t);
    return side_ok(&t.side[0]) && side_ok(&t.side[1]);
}

float bny_track_eta(const struct bny_enc *e, double delta, double l1, const void *src, size_t n)
{
    const struct bny_track_side *t =
        e->track ? &((const struct bny_track *)e->track)->side[e->nsum > 1] : NULL;
    double mean = l1 / (double)n, growth, then;
    size_t k = (size_t)(delta * (double)n + 0.5);

    if (l1 == 0)
        return 0;
    if (!t || t->c == 0 || t->fresh < FRESH || (double)t->delta != delta)
        return below(bny_kth_largest(e, src, n, k > 0 ? k : 1));
    then = (double)mean_then(t, e->index);
    growth = then > 0 ? mean / then : 1;
    if (then <= 0 && t->nchunks < BNY_TRACK_CHUNKS)
        return (float)((double)t->c * mean); /* the chunks differ from the last operation's */
    return (float)((double)(t->c * t->mean) * fmin(fmax(growth, 0.1), 10));
}

void bny_track_note(const struct bny_enc *e, double delta, double l1, float eta,
                    const struct bny_selection *sel, size_t n)
{
    struct bny_track_stats *s = e->stats;

    if (!s)
        return;
    *s = (struct bny_track_stats){ .index = e->index,
                                   .n = (uint32_t)n,
                                   .owner = e->nsum > 1,
                                   .over = sel->over,
                                   .sum = l1,
                                   .delta = delta,
                                   .eta = (double)eta,
                                   .excess = eta > 0 ? sel->excess / (double)eta : 0 };
}

static void end_side(struct bny_track_side *t, const struct bny_track_stats *s, size_t nchunks,
                     uint32_t owner)
{
    double n = 0, sum = 0, over = 0, excess = 0, delta = 0, eta = 0, move;

    t->nchunks = 0;
    for (size_t i = 0; i < nchunks; i++) {
        if (s[i].n == 0 || s[i].owner != owner)
            continue;
        n += s[i].n;
        sum += s[i].sum;
        delta = s[i].delta;
        eta += s[i].eta * s[i].n;
        over += (double)s[i].over;
        excess += s[i].excess;
        if (t->nchunks < BNY_TRACK_CHUNKS) {
            t->chunk[t->nchunks].index = s[i].index;
            t->chunk[t->nchunks++].mean = (float)(s[i].sum / s[i].n);
        }
    }
    if (!(sum > 0)) /* empty, or all zero: the previous value stays */
        return;
    move = over > 0 ? excess / over * log(over / fmax(delta * n, 1)) : -1;
    move = fmin(fmax(move, -DOWN), UP);
    if ((double)t->delta != delta)
        t->fresh = 0;
    if (t->fresh < FRESH) {
        t->fresh++;
        t->c = (float)(eta / sum);
    } else {
        t->c = (float)fmin(fmax((double)t->c * (1 + move), 0.05), 50);
    }
    t->delta = delta;
    t->mean = (float)(sum / n);
}

void bny_track_end(const struct bny_codec *codec, void *track, const void *stats,
                   size_t nchunks)
{
    struct bny_track *t = track;

    for (uint32_t owner = 0; owner < 2; owner++)
        end_side(&t->side[owner], stats, nchunks, owner);
}

long bny_track_encode(const struct bny_enc *e, double delta, void *wire, size_t cap,
                      const void *src, size_t n)
{
    double l1 = bny_code_kernels_for(e->cpu_flags)->l1(src, e->ef, e->ef_scale, n);
    struct bny_selection sel = { 0 };
    float eta;
    long len;

    if (!isfinite(l1))
        return -BANYAN_ENOTSUP;
    eta = n ? bny_track_eta(e, delta, l1, src, n) : 0;
    len = bny_sparse_over(e, wire, cap, src, n, eta, &sel);
    bny_track_note(e, delta, l1, eta, &sel, n);
    return len;
}
