/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of the floating-point mode: reductions and codecs give the bits of the default mode
 * in whatever mode the thread is, which it has again afterwards. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "base/cpu.h"
#include "base/text.h"
#include "collectives/local/local.h"
#include "compress/codec.h"
#include "tests/support/fp_modes.h"

enum { N = 5000 };

static float a[N], b[N], c[N], d[N], want[2 * N], got[2 * N];

/* Everything that local work does to f32 operands, one result behind the other. */
static void reduce(float *out, enum banyan_op_kind kind, int mode)
{
    const void *const in[] = { a, b, c, d };
    struct bny_redop op;

    cr_assert_eq(bny_redop_get(&op, kind, BANYAN_F32), 0);
    fp_take(mode);
    bny_local_reduce(&op, BANYAN_F32, out, a, b, N);
    bny_local_reduce_all(&op, BANYAN_F32, out + N, out + N, in, 4, N);
    if (bny_redop_twice(&op, BANYAN_F32))
        bny_redop_run_twice(&op, BANYAN_F32, out, out + N, out, out + N, N / 2);
    bny_local_finish(kind == BANYAN_AVG, BANYAN_F32, out, out, N, 3);
    cr_assert(fp_is(mode), "mode %d is another", mode);
    fp_take(FP_DEFAULT);
}

static void fill(void)
{
    fp_fill(a, N, 0);
    fp_fill(b, N, 1);
    fp_fill(c, N, 2);
    fp_fill(d, N, 3);
}

Test(fp_mode, reductions)
{
    fill();
    for (int mode = FP_FLUSH; mode < FP_MODES; mode++)
        for (int kind = BANYAN_SUM; kind <= BANYAN_PROD; kind++) {
            memset(want, 0, sizeof want);
            memset(got, 0, sizeof got);
            reduce(want, (enum banyan_op_kind)kind, FP_DEFAULT);
            reduce(got, (enum banyan_op_kind)kind, mode);
            cr_assert_eq(memcmp(want, got, sizeof got), 0, "mode %d, op %d", mode, kind);
        }
}

static int mode_seen;

static void user(void *ctx, const void *in, void *inout, size_t n, enum banyan_dtype dtype)
{
    mode_seen = (int)(bny_fp_get() & ~(bny_fp_mode)BNY_FP_FLAGS);
}

/* Who of several threads calls it is a race, too. */
Test(fp_mode, user_operations_have_the_default)
{
    banyan_op handle;
    struct bny_redop op;

    fill();
    cr_assert_eq(banyan_op_create_user(user, NULL, 0, 0, 1, &handle), 0);
    cr_assert_eq(bny_redop_get(&op, handle, BANYAN_F32), 0);
    fp_take(FP_FLUSH);
    bny_local_reduce(&op, BANYAN_F32, got, a, b, 10);
    cr_assert(fp_is(FP_FLUSH));
    fp_take(FP_DEFAULT);
    cr_assert_eq(mode_seen, (int)BNY_FP_FIXED);
    banyan_op_free(handle);
}

/* Encoded, decoded and added: message and sum; returns the message's length. */
static long code(const struct bny_codec *codec, char *wire, size_t cap, float *out, int mode)
{
    struct bny_enc enc = {
        .codec = codec, .cpu_flags = bny_cpu_flags(), .dtype = BANYAN_F32, .nsum = 1, .seed = 7
    };
    struct bny_dec dec = { .codec = codec,
                           .cpu_flags = bny_cpu_flags(),
                           .dtype = BANYAN_F32,
                           .scale = 0.3f,
                           .seed = 7 };
    long len;

    fp_take(mode);
    len = bny_message_encode(&enc, wire, cap, a, N, 0);
    cr_assert(len > 0 && bny_message_decode(&dec, out, wire, (size_t)len, N) == 0, "%s: %s",
              codec->spec, banyan_last_error());
    if (codec->ops->decode_add)
        cr_assert_eq(bny_message_decode_add(&dec, out + N, b, wire, (size_t)len, N), 0);
    cr_assert(fp_is(mode), "mode %d is another", mode);
    fp_take(FP_DEFAULT);
    return len;
}

Test(fp_mode, codecs)
{
    char *first = malloc(64 * N), *other = malloc(64 * N);
    const struct bny_codec *codec;

    fill();
    for (int i = 0; i < N; i++) /* what every codec takes */
        if (i % 9 == 4 || i % 1024 == 77)
            a[i] = b[i] = 1;
    for (size_t i = 0; bny_codecs[i]; i++)
        for (int mode = FP_FLUSH; mode < FP_MODES && bny_codecs[i]->encode; mode++) {
            size_t cap = 64 * N;
            long len;
            cr_assert_eq(bny_codec_parse(&codec, bny_codecs[i]->name), 0);
            len = code(codec, first, cap, want, FP_DEFAULT);
            cr_assert(code(codec, other, cap, got, mode) == len &&
                          !memcmp(first, other, (size_t)len),
                      "%s in mode %d: another message", codec->spec, mode);
            cr_assert_eq(memcmp(want, got, sizeof got), 0, "%s in mode %d", codec->spec, mode);
        }
    free(first);
    free(other);
}

Test(fp_mode, text)
{
    char text[40];

    fp_take(FP_UP);
    cr_assert_eq(bny_strtod("0.1", NULL), 0x1.999999999999ap-4);
    bny_snprintf(text, sizeof text, "%.3f", 0.1);
    cr_assert(fp_is(FP_UP));
    fp_take(FP_DEFAULT);
    cr_assert_str_eq(text, "0.100");
}
