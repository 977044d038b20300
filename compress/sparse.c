/* SPDX-License-Identifier: BSD-3-Clause */
/* The sparse codecs' message. sparse.h has the layout. */
#include "compress/sparse.h"

#include <math.h>

#include "base/err.h"
#include "compress/kernels/kernels.h"

#define SEGMENT BNY_SPARSE_SEGMENT
#define TILE    4096 /* elements selected on the stack for bitmaps; a multiple of 64 */

enum form { LIST, BITMAP, DENSE };

static size_t segment_at(size_t at, size_t n)
{
    return n - at < SEGMENT ? n - at : SEGMENT;
}

static size_t bitmap_bytes(size_t m)
{
    return (m + 7) / 8;
}

static size_t form_bytes(enum form f, size_t m, size_t kept)
{
    return 4 + (f == DENSE ? 4 * m : 4 * kept + (f == LIST ? 2 * kept : bitmap_bytes(m)));
}

static enum form shortest(size_t m, size_t kept)
{
    enum form f = 2 * kept <= bitmap_bytes(m) ? LIST : BITMAP;

    return form_bytes(f, m, kept) < form_bytes(DENSE, m, kept) ? f : DENSE;
}

static void put_head(char *p, enum form f, size_t kept)
{
    uint32_t head = (uint32_t)kept | (uint32_t)f << 30;

    memcpy(p, &head, sizeof head);
}

/* A selected element takes 6 bytes while it is collected: all elements of short chunks fit, so
 * that even a single element never waits for ever. */
static size_t bound_of(size_t n)
{
    size_t more = 4 * ((n + SEGMENT - 1) / SEGMENT) + 2 * n;

    return 4 * n + (more < 64 ? more : 64);
}

size_t bny_sparse_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return bound_of(n);
}

struct bny_sparse bny_sparse_start(void *wire, size_t cap, size_t n)
{
    return (struct bny_sparse){ .wire = wire, .cap = cap < bound_of(n) ? cap : bound_of(n) };
}

void bny_sparse_open(struct bny_sparse *s, size_t m)
{
    size_t left = s->cap - s->at;

    s->m = m;
    s->kept = 0;
    s->room = left < 4 ? 0 : (left - 4) / 6 < m ? (left - 4) / 6 : m;
    s->idx = s->wire + s->at + 4;
    s->val = s->idx + 2 * s->room;
}

void bny_sparse_close(struct bny_sparse *s)
{
    size_t k = s->kept, bytes = bitmap_bytes(s->m);
    enum form f = 2 * k <= bytes ? LIST : BITMAP;

    if (s->cap - s->at < 4)
        return;
    if (f == BITMAP) {
        uint8_t bits[SEGMENT / 8] = { 0 };

        for (size_t j = 0; j < k; j++) {
            uint16_t i;

            memcpy(&i, s->idx + 2 * j, 2);
            bits[i / 8] |= (uint8_t)(1u << i % 8);
        }
        memmove(s->idx + bytes, s->val, 4 * k);
        memcpy(s->idx, bits, bytes);
    } else if (k) {
        memmove(s->idx + 2 * k, s->val, 4 * k);
    }
    put_head(s->wire + s->at, f, k);
    s->at += form_bytes(f, s->m, k);
}

static void sum_up(struct bny_selection *sum, const struct bny_selection *x)
{
    sum->over += x->over;
    sum->excess += x->excess;
    sum->sum += x->sum;
}

long bny_sparse_over(const struct bny_enc *e, void *wire, size_t cap, const void *src, size_t n,
                     float eta, struct bny_selection *sel)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    struct bny_sparse s = bny_sparse_start(wire, cap, n);

    for (size_t at = 0; at < n; at += SEGMENT) {
        size_t m = segment_at(at, n);
        struct bny_selection part;

        bny_sparse_open(&s, m);
        s.kept = k->select16(s.idx, s.val, s.room, (const char *)src + 4 * at,
                             e->ef ? e->ef + at : NULL, e->ef_scale, m, eta, &part);
        bny_sparse_close(&s);
        sum_up(sel, &part);
    }
    return (long)s.at;
}

static size_t nonzeros(const struct bny_enc *e, const void *src, size_t at, size_t m)
{
    size_t count = 0;

    if (!e->ef) {
        for (size_t i = 0; i < m; i++)
            count += bny_f32_at(src, at + i) != 0;
        return count;
    }
    for (size_t i = 0; i < m; i++)
        count += bny_sparse_value(e, src, at + i) != 0;
    return count;
}

/* Writes the nonzero elements of a segment as a bitmap. */
static void put_bitmap(const struct bny_enc *e, char *p, const char *src, float *ef, size_t m)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    char *val = p + bitmap_bytes(m);
    uint16_t idx[TILE];
    float some[TILE];
    struct bny_selection sel;

    for (size_t at = 0; at < m; at += TILE) {
        size_t n = m - at < TILE ? m - at : TILE;
        uint8_t bits[TILE / 8] = { 0 };
        size_t kept = k->select16(idx, some, TILE, src + 4 * at, ef ? ef + at : NULL,
                                  e->ef_scale, n, 0, &sel);

        for (size_t j = 0; j < kept; j++)
            bits[idx[j] / 8] |= (uint8_t)(1u << idx[j] % 8);
        memcpy(p + at / 8, bits, bitmap_bytes(n));
        memcpy(val, some, 4 * kept);
        val += 4 * kept;
    }
}

static void put_segment(const struct bny_enc *e, char *p, const char *src, float *ef, size_t m,
                        size_t kept)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    enum form f = shortest(m, kept);
    struct bny_selection sel;

    put_head(p, f, f == DENSE ? m : kept);
    p += 4;
    if (f == LIST) {
        k->select16(p, p + 2 * kept, kept, src, ef, e->ef_scale, m, 0, &sel);
    } else if (f == BITMAP) {
        put_bitmap(e, p, src, ef, m);
    } else {
        k->compensate(p, src, ef, e->ef_scale, m);
        if (ef)
            memset(ef, 0, 4 * m);
    }
}

/* Without a residual one pass suffices if at most two of three elements are nonzero, as in most
 * sums: nothing is lost otherwise. Returns bytes; 0: use two passes. */
static long all_at_once(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    struct bny_sparse s = bny_sparse_start(wire, cap, n);

    for (size_t at = 0; at < n; at += SEGMENT) {
        size_t m = segment_at(at, n);
        struct bny_selection sel;

        bny_sparse_open(&s, m);
        s.kept =
            k->select16(s.idx, s.val, s.room, (const char *)src + 4 * at, NULL, 1, m, 0, &sel);
        if (s.kept < sel.over || s.cap - s.at < 4 || !isfinite(sel.sum))
            return 0;
        bny_sparse_close(&s);
    }
    return (long)s.at;
}

long bny_sparse_all(const struct bny_enc *e, void *wire, size_t cap, const void *src, size_t n)
{
    struct bny_selection sel = { 0 };
    size_t need = 0, out = 0;

    if (!e->ef && n) {
        long len = all_at_once(e, wire, cap, src, n);

        if (len > 0)
            return len;
    }
    if (!isfinite(bny_code_kernels_for(e->cpu_flags)->l1(src, e->ef, e->ef_scale, n)))
        return -BANYAN_ENOTSUP;
    for (size_t at = 0; at < n; at += SEGMENT) {
        size_t m = segment_at(at, n), kept = nonzeros(e, src, at, m);

        need += form_bytes(shortest(m, kept), m, kept);
    }
    if (need > cap)
        return e->ef ? bny_sparse_over(e, wire, cap, src, n, 0, &sel) : -BANYAN_ENOTSUP;
    for (size_t at = 0; at < n; at += SEGMENT) {
        size_t m = segment_at(at, n), kept = nonzeros(e, src, at, m);

        put_segment(e, (char *)wire + out, (const char *)src + 4 * at,
                    e->ef ? e->ef + at : NULL, m, kept);
        out += form_bytes(shortest(m, kept), m, kept);
    }
    return (long)out;
}

/* ---- reading ---- */

struct segment {
    enum form form;
    size_t m, kept, bytes;
    const char *idx, *val;
};

static int sparse_wrong(const struct bny_dec *d, size_t n, size_t at, const char *what)
{
    return bny_fail(BANYAN_EPROTO,
                    "codec %s: a peer's message for %zu elements %s in the segment at %zu",
                    d->codec->ops->name, n, what, at);
}

/* Bytes j to j + 7 of a bitmap, zeros behind its end. */
static uint64_t word_at(const char *bits, size_t j, size_t bytes)
{
    uint64_t w = 0;

    if (bytes - j >= 8)
        memcpy(&w, bits + j, 8);
    else
        memcpy(&w, bits + j, bytes - j);
    return w;
}

static int bits_ok(const char *bits, size_t m, size_t kept)
{
    size_t count = 0, bytes = bitmap_bytes(m);

    for (size_t j = 0; j < bytes; j += 8)
        count += (size_t)__builtin_popcountll(word_at(bits, j, bytes));
    return count == kept && (m % 8 == 0 || (uint8_t)bits[bytes - 1] >> m % 8 == 0);
}

/* Locates the parts of the segment at p, with len bytes left: the result is safe to read,
 * whatever the bytes. */
static int read_segment(const struct bny_dec *d, struct segment *s, const char *p, size_t len,
                        size_t at, size_t n)
{
    uint32_t head;

    if (len < 4)
        return sparse_wrong(d, n, at, "ends");
    memcpy(&head, p, sizeof head);
    s->form = (enum form)(head >> 30);
    s->kept = head & 0x3fffffff;
    s->m = segment_at(at, n);
    if (s->form > DENSE || s->kept > s->m || (s->form == DENSE && s->kept != s->m))
        return sparse_wrong(d, n, at, "keeps an impossible number of elements");
    s->bytes = form_bytes(s->form, s->m, s->kept);
    if (len < s->bytes)
        return sparse_wrong(d, n, at, "ends");
    s->idx = p + 4;
    s->val = s->idx + (s->form == LIST     ? 2 * s->kept
                       : s->form == BITMAP ? bitmap_bytes(s->m)
                                           : 0);
    return 0;
}

static int sparse_check(const struct bny_dec *d, const char *wire, size_t len, size_t n)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(d->cpu_flags);
    struct segment s = { 0 };
    size_t used = 0;
    int rc;

    for (size_t at = 0; at < n && used < len; at += SEGMENT) {
        if ((rc = read_segment(d, &s, wire + used, len - used, at, n)) != 0)
            return rc;
        if (s.form == LIST && !k->indexes_ok16(s.idx, s.kept, s.m))
            return sparse_wrong(d, n, at, "has indexes out of order or range");
        if (s.form == BITMAP && !bits_ok(s.idx, s.m, s.kept))
            return sparse_wrong(d, n, at, "has more or fewer bits than values");
        used += s.bytes;
    }
    return used == len ? 0 : sparse_wrong(d, n, n, "goes on after the last");
}

/* Indexes of up to TILE elements of the segment, from kept index *next or element *at on; both
 * advance. Safe to use. */
static size_t next_indexes(const struct bny_code_kernels *k, uint16_t *idx,
                           const struct segment *s, size_t *at, size_t *next)
{
    size_t count = 0, end = s->m - *at < TILE ? s->m : *at + TILE;

    if (s->form == LIST) {
        count = s->kept - *next < TILE ? s->kept - *next : TILE;
        memcpy(idx, s->idx + 2 * *next, 2 * count);
        *next += count;
        return k->indexes_ok16(idx, count, s->m) ? count : 0;
    }
    for (; *at < end; *at += 64)
        for (uint64_t b = word_at(s->idx, *at / 8, bitmap_bytes(s->m)); b; b &= b - 1) {
            size_t i = *at + (size_t)__builtin_ctzll(b);

            if (*next < s->kept && i < s->m) {
                idx[count++] = (uint16_t)i;
                ++*next;
            }
        }
    return count;
}

/* Adds to dst, or sets it. */
static void sparse_apply(const struct bny_dec *d, char *dst, const struct segment *s, int add)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(d->cpu_flags);
    const char *val = s->val;
    uint16_t idx[TILE];
    size_t at = 0, next = 0;

    if (s->form == DENSE) {
        if (add)
            bny_kernels_for(d->cpu_flags)->reduce[BANYAN_F32][BANYAN_SUM](dst, dst, val, s->m);
        else
            memcpy(dst, val, 4 * s->m);
        return;
    }
    while (next < s->kept && at < s->m) {
        size_t before = next, count = next_indexes(k, idx, s, &at, &next);

        (add ? k->scatter_add16 : k->scatter16)(dst, idx, val + 4 * before, count);
    }
}

/* A peer may still write to these bytes: they passed check(), but are not trusted. */
static void apply_all(const struct bny_dec *d, char *dst, const char *wire, size_t len,
                      size_t n, int add)
{
    struct segment s = { 0 };
    size_t used = 0;

    for (size_t at = 0; at < n && used < len; at += SEGMENT) {
        if (read_segment(d, &s, wire + used, len - used, at, n) != 0)
            return;
        sparse_apply(d, dst + 4 * at, &s, add);
        used += s.bytes;
    }
}

void bny_sparse_clear(const struct bny_enc *e, float *a, float *b, const void *wire, size_t len,
                      size_t n)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(e->cpu_flags);
    const struct bny_dec d = { .codec = e->codec, .cpu_flags = e->cpu_flags };
    struct segment s = { 0 };
    uint16_t idx[TILE];
    size_t used = 0;

    for (size_t from = 0; from < n && used < len; from += SEGMENT) {
        size_t at = 0, next = 0, count;

        if (read_segment(&d, &s, (const char *)wire + used, len - used, from, n) != 0)
            return;
        used += s.bytes;
        while (next < s.kept && at < s.m) {
            count = next_indexes(k, idx, &s, &at, &next);
            for (size_t j = 0; j < count; j++) {
                a[from + idx[j]] = 0;
                if (b)
                    b[from + idx[j]] = 0;
            }
        }
    }
}

int bny_sparse_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                      size_t n)
{
    int rc = sparse_check(d, wire, len, n);

    if (rc || n == 0)
        return rc;
    memset(dst, 0, 4 * n);
    apply_all(d, dst, wire, len, n, 0);
    if (d->scale != 1)
        bny_kernels_for(d->cpu_flags)->scale[BANYAN_F32](dst, dst, n, (double)d->scale);
    return 0;
}

int bny_sparse_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                          const void *wire, size_t len, size_t n)
{
    int rc = sparse_check(d, wire, len, n);

    if (rc || n == 0)
        return rc;
    if (dst != acc)
        memcpy(dst, acc, 4 * n);
    apply_all(d, (char *)dst, wire, len, n, 1);
    return 0;
}
