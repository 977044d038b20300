/* SPDX-License-Identifier: BSD-3-Clause */
/* Common parts of the sparse codecs: the message, its writer and its reader, thresholds.
 *
 * Wire: for each segment of 65536 elements (the last may be shorter) a u32, kept | form << 30,
 * then
 *     LIST    kept strictly increasing u16 indexes within the segment, kept f32 values
 *     BITMAP  (m + 7) / 8 bytes, bit i of byte j for element 8 j + i; kept f32 values
 *     DENSE   m f32 values (kept == m)
 * Segments missing at the end have nothing. */
#ifndef BNY_COMPRESS_SPARSE_H
#define BNY_COMPRESS_SPARSE_H

#include <string.h>

#include "compress/codec.h"
#include "compress/kernels/code.h"

#define BNY_SPARSE_SEGMENT 65536

/* A message being written. Between open and close, elements of one segment are added in
 * order. */
struct bny_sparse {
    char *wire;
    size_t cap, at;
    char *idx, *val; /* u16, f32 of the open segment */
    size_t m, kept, room;
};

size_t bny_sparse_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype);

/* A message of n elements: at most cap bytes, and never more than bny_sparse_bound(). */
struct bny_sparse bny_sparse_start(void *wire, size_t cap, size_t n);
void bny_sparse_open(struct bny_sparse *s, size_t m);
/* Chooses the shorter of list and bitmap. */
void bny_sparse_close(struct bny_sparse *s);

/* Adds element i of the open segment; 0: no room, not added. */
static inline int bny_sparse_keep(struct bny_sparse *s, size_t i, float v)
{
    uint16_t index = (uint16_t)i;

    if (s->kept == s->room)
        return 0;
    memcpy(s->idx + 2 * s->kept, &index, 2);
    memcpy(s->val + 4 * s->kept, &v, 4);
    s->kept++;
    return 1;
}

/* f32 at any address. */
static inline float bny_f32_at(const void *p, size_t i)
{
    float v;

    memcpy(&v, (const char *)p + 4 * i, 4);
    return v;
}

/* src[i] + ef_scale * ef[i]. */
static inline float bny_sparse_value(const struct bny_enc *e, const void *src, size_t i)
{
    float v = bny_f32_at(src, i);

    return e->ef ? v + e->ef_scale * bny_f32_at(e->ef, i) : v;
}

/* Sends elements with |v| > eta up to the room; the residual keeps the others. All v are
 * finite. Adds to *sel. Returns bytes. */
long bny_sparse_over(const struct bny_enc *e, void *wire, size_t cap, const void *src, size_t n,
                     float eta, struct bny_selection *sel);
/* Sends all nonzero elements in the shortest form; -BANYAN_ENOTSUP as encode(): not finite, or
 * no room and no residual to keep the rest. */
long bny_sparse_all(const struct bny_enc *e, void *wire, size_t cap, const void *src, size_t n);

/* Zeroes a and b (or NULL) at the elements of the message, which is our own. */
void bny_sparse_clear(const struct bny_enc *e, float *a, float *b, const void *wire, size_t len,
                      size_t n);

/* decode() and decode_add() of every codec that writes this format. */
int bny_sparse_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                      size_t n);
int bny_sparse_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                          const void *wire, size_t len, size_t n);

/* ---- thresholds (threshold.c) ---- */

/* Bits of the k-th largest |v|, 1 <= k <= n. */
uint32_t bny_kth_largest(const struct bny_enc *e, const void *src, size_t n, size_t k);

/* Tail-Newton tracking. A threshold is c times the mean of |v|; each operation moves c by a
 * Newton step on the logarithm of the survival function, which is exact for exponential tails.
 * One c for contributions and one for owners' sums. The mean is the tensor's of the previous
 * operation, times the chunk's growth since. Thresholds are exact for a chunk's first
 * operations with one delta: residuals change the distribution most then. */
#define BNY_TRACK_CHUNKS 64
struct bny_track {
    struct bny_track_side {
        float c, mean;  /* 0: nothing known */
        double delta;   /* for which c was found */
        uint32_t fresh; /* operations with this delta, at most 4 */
        uint32_t nchunks;
        struct {
            uint64_t index;
            float mean;
        } chunk[BNY_TRACK_CHUNKS];
    } side[2];
};
struct bny_track_stats { /* of one encoding */
    uint64_t index;
    uint32_t n, owner;
    uint64_t over;
    double sum;   /* of |v| */
    double delta; /* requested */
    double eta;
    double excess; /* sum of (|v| - eta) / eta over selected elements */
};

/* The threshold for a chunk whose |v| sum to l1. Without history it is exact. */
float bny_track_eta(const struct bny_enc *e, double delta, double l1, const void *src,
                    size_t n);
void bny_track_note(const struct bny_enc *e, double delta, double l1, float eta,
                    const struct bny_selection *sel, size_t n);
/* bny_codec_ops.track_ok and .end. */
int bny_track_ok(const void *track);
void bny_track_end(const struct bny_codec *c, void *track, const void *stats, size_t nchunks);
/* All of encode() for fraction delta of the elements: -BANYAN_ENOTSUP if they are not
 * finite. */
long bny_track_encode(const struct bny_enc *e, double delta, void *wire, size_t cap,
                      const void *src, size_t n);

#endif
