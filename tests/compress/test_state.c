/* SPDX-License-Identifier: BSD-3-Clause */
/* Codec states by themselves: saving and loading (damaged bytes change nothing), moving,
 * scaling. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/crc32c.h"
#include "base/rng.h"
#include "compress/codecs.h"
#include "compress/state.h"

static struct banyan_codec_state *make(size_t count)
{
    struct banyan_codec_state *st;

    cr_assert_eq(banyan_codec_state_create(&st, count, 7), 0);
    for (size_t i = 0; i < count; i++)
        st->ef[i] = (float)i - 3;
    return st;
}

Test(state, saves_and_loads)
{
    struct banyan_codec_state *a = make(100), *b = make(100), *c = make(99);
    size_t bytes = banyan_codec_state_bytes(a);
    unsigned char *buf = malloc(bytes);

    a->step = 12;
    cr_assert_eq(banyan_codec_state_scale(a, 0.5), 0);
    cr_assert_eq(banyan_codec_state_save(a, buf, bytes - 1), -BANYAN_EINVAL);
    cr_assert_eq(banyan_codec_state_save(a, buf, bytes), 0);
    cr_assert_eq(banyan_codec_state_load(c, buf, bytes), -BANYAN_EINVAL);
    cr_assert_eq(banyan_codec_state_reset(b), 0);
    cr_assert_eq(banyan_codec_state_load(b, buf, bytes), 0, "%s", banyan_last_error());
    cr_assert_eq(memcmp(a->ef, b->ef, 400), 0);
    cr_assert_eq(b->step, 12);
    cr_assert_eq(b->seed, 7);
    cr_assert_float_eq(b->ef_scale, 0.5f, 0);
    free(buf);
    banyan_codec_state_free(a);
    banyan_codec_state_free(b);
    banyan_codec_state_free(c);
}

Test(state, any_damage_is_refused_and_changes_nothing)
{
    struct banyan_codec_state *a = make(20), *b = make(20);
    size_t bytes = banyan_codec_state_bytes(a);
    unsigned char *buf = malloc(bytes + 1);

    cr_assert_eq(banyan_codec_state_save(a, buf, bytes), 0);
    memset(b->ef, 0, 80);
    for (size_t i = 0; i < bytes; i++)
        for (int bit = 0; bit < 8; bit++) {
            buf[i] ^= (unsigned char)(1 << bit);
            cr_assert_lt(banyan_codec_state_load(b, buf, bytes), 0, "byte %zu bit %d", i, bit);
            buf[i] ^= (unsigned char)(1 << bit);
        }
    for (size_t len = 0; len <= bytes + 1; len++)
        if (len != bytes)
            cr_assert_lt(banyan_codec_state_load(b, buf, len), 0, "%zu bytes", len);
    cr_assert_eq(b->ef[5], 0);
    cr_assert_eq(banyan_codec_state_load(b, NULL, 0), -BANYAN_EINVAL);
    cr_assert_eq(banyan_codec_state_load(b, buf, bytes), 0);
    free(buf);
    banyan_codec_state_free(a);
    banyan_codec_state_free(b);
}

Test(state, moves_between_buckets)
{
    struct banyan_codec_state *a = make(10), *b = make(6);

    cr_assert_eq(banyan_codec_state_move(b, 2, a, 4, 4), 0);
    for (int i = 0; i < 10; i++)
        cr_expect_float_eq(a->ef[i], i >= 4 && i < 8 ? 0 : (float)i - 3, 0, "element %d", i);
    for (int i = 0; i < 6; i++)
        cr_expect_float_eq(b->ef[i], (float)i - 3 + (i >= 2 ? (float)i - 1 : 0), 0,
                           "element %d", i);
    cr_assert_eq(banyan_codec_state_move(b, 3, a, 0, 4), -BANYAN_EINVAL);
    cr_assert_eq(banyan_codec_state_move(b, 0, a, SIZE_MAX, 2), -BANYAN_EINVAL);
    cr_assert_eq(banyan_codec_state_move(b, 0, b, 3, 2), -BANYAN_EINVAL);
    cr_assert_eq(banyan_codec_state_scale(a, INFINITY), -BANYAN_EINVAL);
    banyan_codec_state_free(a);
    banyan_codec_state_free(b);
    banyan_codec_state_free(NULL);
}

/* What an operation does to a state, in a way of its own. */
static void scramble(struct banyan_codec_state *st, const char *spec, int64_t rows)
{
    const struct bny_codec *codec;

    cr_assert_eq(bny_codec_parse(&codec, spec), 0);
    cr_assert_eq(bny_state_begin(st, codec, rows, (int64_t)st->count / rows, 1), 0);
    for (size_t i = 0; i < st->count * st->planes; i++)
        st->ef[i] = st->ef[i] * 0.5f + (float)(i % 7);
    if (st->track) /* valid in all codecs: one operation; a tiny count or number */
        ((char *)st->track)[codec->ops->track_bytes > 16 ? 16 : 0] ^= 1;
    if (st->keep)
        memset(st->keep, 0x12, st->keep_bytes);
    bny_state_end(st);
}

static unsigned char *saved(const struct banyan_codec_state *st, size_t *bytes)
{
    unsigned char *buf;

    *bytes = banyan_codec_state_bytes(st);
    buf = malloc(*bytes);
    cr_assert_eq(banyan_codec_state_save(st, buf, *bytes), 0);
    return buf;
}

/* Also where the operation came with another codec than the one before, which had other memory.
 */
Test(state, an_operation_is_undone_whatever_codec_it_had)
{
    size_t n = 0;

    while (bny_codecs[n])
        n++;
    for (size_t a = 0; a < n; a++)
        for (size_t b = 0; b < n; b++) {
            struct banyan_codec_state *st = make(96), *fresh = make(96);
            size_t before_bytes, bytes;
            unsigned char *before, *after;
            uint32_t step;

            cr_assert_eq(banyan_codec_state_keep_undo(st, 1), 0);
            scramble(st, bny_codecs[a]->name, 8);
            cr_assert_eq(banyan_codec_state_step(st, &step), 0);
            cr_assert_eq(step, 1);
            before = saved(st, &before_bytes);
            scramble(st, bny_codecs[b]->name, 12);
            cr_assert_eq(banyan_codec_state_undo(st, step), 0, "%s", banyan_last_error());
            after = saved(st, &bytes);
            /* A plane more may stay, of zeros: the saved states are equal once loaded. */
            cr_assert_eq(banyan_codec_state_load(fresh, before, before_bytes), 0, "%s",
                         banyan_last_error());
            cr_assert_eq(memcmp(fresh->ef, st->ef, 96 * 4), 0, "%s, %s", bny_codecs[a]->name,
                         bny_codecs[b]->name);
            for (size_t i = 96 * fresh->planes; i < 96 * st->planes; i++)
                cr_assert_eq(st->ef[i], 0);
            if (bytes == before_bytes)
                cr_assert_eq(memcmp(before, after, bytes), 0, "%s, %s", bny_codecs[a]->name,
                             bny_codecs[b]->name);
            cr_assert_eq(st->step, 1);
            cr_assert_eq(banyan_codec_state_undo(st, step), 0, "where nothing began since");
            free(before);
            free(after);
            banyan_codec_state_free(st);
            banyan_codec_state_free(fresh);
        }
}

Test(state, what_cannot_be_undone_is_refused)
{
    struct banyan_codec_state *st = make(16), *other = make(16);

    scramble(st, "int8", 4);
    cr_assert_eq(banyan_codec_state_undo(st, 0), -BANYAN_EINVAL, "not asked for");
    cr_assert_eq(banyan_codec_state_keep_undo(st, 1), 0);
    cr_assert_eq(banyan_codec_state_undo(st, 0), -BANYAN_EINVAL, "asked for too late");
    scramble(st, "int8", 4);
    scramble(st, "int8", 4);
    cr_assert_eq(banyan_codec_state_undo(st, 1), -BANYAN_EINVAL, "two operations ago");
    cr_assert_eq(banyan_codec_state_scale(st, 0.5), 0);
    cr_assert_eq(banyan_codec_state_undo(st, 2), -BANYAN_EINVAL, "scaled since");
    scramble(st, "int8", 4);
    cr_assert_eq(banyan_codec_state_move(other, 0, st, 0, 16), 0);
    cr_assert_eq(banyan_codec_state_undo(st, 3), -BANYAN_EINVAL, "moved since");
    scramble(st, "int8", 4);
    cr_assert_eq(banyan_codec_state_undo(st, 4), 0);
    cr_assert_eq(banyan_codec_state_keep_undo(st, 0), 0);
    scramble(st, "int8", 4);
    cr_assert_eq(banyan_codec_state_undo(st, 4), -BANYAN_EINVAL, "asked for no more");
    cr_assert_eq(banyan_codec_state_step(st, NULL), -BANYAN_EINVAL);
    banyan_codec_state_free(st);
    banyan_codec_state_free(other);
}

/* ---- contents that no operation leaves behind ---- */

enum { COUNT = 512, HEAD = 152, CRC_AT = 36 };

/* A tensor's next operation: one encoding of a sum of so many, and its statistics. */
static void operate_on(struct banyan_codec_state *st, const struct bny_codec *codec,
                       uint32_t nsum)
{
    static float src[COUNT];
    static char wire[1 << 16];
    const struct bny_codec_ops *ops = codec->ops;
    struct bny_enc e = { .codec = codec, .ef_scale = 1, .seed = 1, .nsum = nsum };

    cr_assert_eq(bny_state_begin(st, codec, 32, COUNT / 32, 1), 0);
    for (size_t i = 0; i < COUNT; i++)
        src[i] = (float)((i * 7919) % 101) - 50;
    e.cpu_flags = bny_cpu_flags();
    e.ef = st->ef;
    e.more = ops->elem_floats ? st->ef + COUNT : NULL;
    e.more_stride = COUNT;
    e.track = st->track;
    e.stats = calloc(1, ops->stats_bytes + 1);
    e.step = st->step;
    cr_assert_geq(ops->encode(&e, wire, sizeof wire, src, COUNT), 0, "%s", codec->spec);
    if (ops->end)
        ops->end(codec, st->track, e.stats, 1);
    free(e.stats);
    bny_state_end(st);
}

static void operate(struct banyan_codec_state *st, const struct bny_codec *codec)
{
    operate_on(st, codec, 1);
}

static void seal(unsigned char *buf, size_t bytes)
{
    uint32_t crc;

    memset(buf + CRC_AT, 0, 4);
    crc = bny_crc32c(0, buf, bytes);
    memcpy(buf + CRC_AT, &crc, 4);
}

/* One of its 32-bit words, of which small changes, powers of two and numbers that are not
 * finite are the ones that matter. */
static void damage(unsigned char *buf, size_t from, size_t bytes, uint64_t *seed)
{
    static const uint32_t words[] = { 0xffffffff, 0x7fffffff, 0x80000000, 0x7f800000,
                                      0x7fc00000, 65,         5,          0xbf800000 };
    size_t at = from + 4 * (bny_rng_below(seed, (bytes - from) / 4));
    uint32_t word = words[bny_rng_next(seed) % (sizeof words / sizeof words[0])];

    if (bny_rng_next(seed) % 2)
        buf[at + bny_rng_next(seed) % 4] ^= (unsigned char)(1u << bny_rng_next(seed) % 8);
    else
        memcpy(buf + at, &word, sizeof word);
}

/* A checkpoint has a checksum, but no proof of where it comes from. */
Test(state, damaged_statistics_with_a_right_checksum_are_refused_or_harmless, .timeout = 120)
{
    static const char *const specs[] = { "topk", "dgc", "sidco", "powersgd" };
    uint64_t seed = 1;

    for (size_t k = 0; k < sizeof specs / sizeof specs[0]; k++) {
        struct banyan_codec_state *st = make(COUNT), *other = make(COUNT);
        const struct bny_codec *codec;
        size_t bytes, refused = 0, tries = 3000;
        unsigned char *good, *bad;

        cr_assert_eq(bny_codec_parse(&codec, specs[k]), 0);
        for (int i = 0; i < 6; i++)
            if (codec->ops->encode)
                operate(st, codec);
            else
                scramble(st, specs[k], 32);
        good = saved(st, &bytes);
        bad = malloc(bytes);
        for (size_t i = 0; i < tries; i++) {
            memcpy(bad, good, bytes);
            damage(bad, HEAD + COUNT * 4 * st->planes, bytes, &seed);
            seal(bad, bytes);
            if (banyan_codec_state_load(other, bad, bytes) != 0)
                refused++;
            else if (codec->ops->encode)
                operate(other, codec);
        }
        cr_expect_gt(refused, tries / 100, "%s: %zu of %zu", specs[k], refused, tries);
        cr_expect_eq(banyan_codec_state_load(other, good, bytes), 0);
        free(good);
        free(bad);
        banyan_codec_state_free(st);
        banyan_codec_state_free(other);
    }
}

/* Each codec that keeps statistics says which bytes can be some. */
Test(state, tracked_codecs_check_their_statistics)
{
    for (size_t i = 0; bny_codecs[i]; i++)
        cr_expect_eq(!bny_codecs[i]->track_bytes, !bny_codecs[i]->track_ok, "%s",
                     bny_codecs[i]->name);
}

/* A rank that encodes nothing but sums counts no elements, so no period of sidco ends. */
Test(state, what_operations_of_sums_leave_can_be_loaded)
{
    for (size_t k = 0; bny_codecs[k]; k++) {
        struct banyan_codec_state *st = make(COUNT), *other = make(COUNT);
        const struct bny_codec *codec;
        unsigned char *buf;
        size_t bytes;

        cr_assert_eq(bny_codec_parse(&codec, bny_codecs[k]->name), 0);
        for (int i = 0; codec->ops->track_bytes && i < 10; i++)
            operate_on(st, codec, 2);
        buf = saved(st, &bytes);
        cr_expect_eq(banyan_codec_state_load(other, buf, bytes), 0, "%s: %s", codec->spec,
                     banyan_last_error());
        free(buf);
        banyan_codec_state_free(st);
        banyan_codec_state_free(other);
    }
}
