/* SPDX-License-Identifier: BSD-3-Clause */
/* Codec states by themselves: saving and loading (damaged bytes change nothing), moving,
 * scaling. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
