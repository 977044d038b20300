/* SPDX-License-Identifier: BSD-3-Clause */
/* Rules as text: the first that fits, and where bad text is wrong. And the pass over gradients.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "training/buckets.h"

/* "codec@schedule" of a tensor, "-" where there is none. */
static const char *rule_of(const char *text, const char *name, size_t count)
{
    static char out[100];
    struct bny_tensor t = { .name = (char *)(uintptr_t)name, .count = count };
    const struct bny_rule *r;
    struct bny_rules rules;

    cr_assert_eq(bny_rules_parse(&rules, text), 0, "%s", banyan_last_error());
    r = bny_rules_find(&rules, &t);
    if (!r)
        snprintf(out, sizeof out, "no rule");
    else
        snprintf(out, sizeof out, "%s@%s", r->codec ? r->codec : "-",
                 r->schedule ? r->schedule : "-");
    bny_rules_free(&rules);
    return out;
}

#define IS(text, name, count, want) cr_assert_str_eq(rule_of(text, name, count), want)

Test(rules, the_first_that_fits_holds)
{
    const char *text = "*.bias=none; fc*.weight:>=65536=topk:delta=0.01,force=1; *=int8@ring";

    IS(text, "fc1.bias", 100000, "-@-");
    IS(text, "fc1.weight", 65536, "topk:delta=0.01,force=1@-");
    IS(text, "fc1.weight", 65535, "int8@ring");
    IS(text, "conv", 1, "int8@ring");
    IS("", "a", 1, "no rule");
    IS(NULL, "a", 1, "no rule");
    IS(" ; ;", "a", 1, "no rule");
    IS("b=int8", "a", 1, "no rule");
}

Test(rules, tests_of_size)
{
    IS("a:<10=int8", "a", 9, "int8@-");
    IS("a:<10=int8", "a", 10, "no rule");
    IS("a:<=10=int8", "a", 10, "int8@-");
    IS("a:<=10=int8", "a", 11, "no rule");
    IS("a:>10=int8", "a", 11, "int8@-");
    IS("a:>10=int8", "a", 10, "no rule");
    IS("a:>=10=int8", "a", 10, "int8@-");
    IS("a:>=10=int8", "a", 9, "no rule");
    IS("a:>=10:<20=int8", "a", 19, "int8@-");
    IS("a:<20:>=10=int8", "a", 20, "no rule");
    IS("a:<20:<5=int8", "a", 5, "no rule");
}

Test(rules, patterns_and_blanks)
{
    IS("layer[0-2].*=int8;*=f16", "layer2.w", 1, "int8@-");
    IS("layer[0-2].*=int8;*=f16", "layer3.w", 1, "f16@-");
    IS("a?b=int8", "a:b", 1, "int8@-");
    IS("  a  = int8 @ ring  ; b=", "a", 1, "int8@ring");
    IS("  a  = int8 @ ring  ; b=", "b", 1, "-@-");
    IS("a=@ring", "a", 1, "-@ring");
    IS("a=none@ring", "a", 1, "-@ring");
}

static void refused(const char *text, const char *part)
{
    struct bny_rules rules;

    cr_assert_eq(bny_rules_parse(&rules, text), -BANYAN_EINVAL, "\"%s\" was taken", text);
    cr_assert(strstr(banyan_last_error(), part), "\"%s\": %s", text, banyan_last_error());
    cr_assert_null(rules.at);
}

Test(rules, bad_text_is_refused_with_its_position)
{
    refused("a=int8;b", "character 8");
    refused("=int8", "character 1");
    refused("a=int8; =f16", "character 9");
    refused("a:10=int8", "character 3");
    refused("a:>x=int8", "character 4");
    refused("a:>=-1=int8", "character 5");
    refused("a:>=10", "character 7");
    refused("a:>=10k=int8", "character 7");
    refused("a:>=99999999999999999999=int8", "character 5");
    refused("a:<0=int8", "character 4");
    refused("a:>=10:<5=int8", "character 1");
    refused("a=int8@", "character 7");
    refused("a=int9", "character 3");
    refused("a=int9", "int8");
    refused("x=f16;a=toppk:delta=0.1", "character 9");
}

/* ---- squares ---- */

Test(look, sums_squares_and_finds_what_is_not_finite)
{
    /* 1, -2, 0.5, 65504 or 2^10, the smallest positive one. */
    static const uint16_t half[] = { 0x3c00, 0xc000, 0x3800, 0x7bff, 0x0001 };
    static const uint16_t brain[] = { 0x3f80, 0xc000, 0x3f00, 0x4480, 0x0001 };
    float f[37];
    double d[19], want = 0, got;

    for (int i = 0; i < 37; i++) {
        f[i] = (float)i - 18.5f;
        want += (double)f[i] * (double)f[i];
    }
    cr_assert(bny_squares(f, BANYAN_F32, 37, &got));
    cr_assert_float_eq(got, want, 1e-9);
    cr_assert(bny_squares(half, BANYAN_F16, 5, &got));
    cr_assert_float_eq(got, 5.25 + 65504.0 * 65504.0 + 0x1p-48, 1e-6);
    cr_assert(bny_squares(brain, BANYAN_BF16, 5, &got));
    cr_assert_float_eq(got, 5.25 + 0x1p20, 1e-9);
    for (int i = 0; i < 19; i++)
        d[i] = 1e200; /* its square is not finite, it is */
    cr_assert(bny_squares(d, BANYAN_F64, 19, &got));
    for (int i = 0; i < 37; i++) {
        float keep = f[i];
        f[i] = i % 2 ? NAN : -INFINITY;
        cr_assert_not(bny_squares(f, BANYAN_F32, 37, &got), "element %d", i);
        f[i] = keep;
    }
    memmove((char *)f + 1, f, sizeof f - sizeof *f); /* gradients lie anywhere */
    cr_assert(bny_squares((char *)f + 1, BANYAN_F32, 3, &got));
    cr_assert_float_eq(got, 18.5 * 18.5 + 17.5 * 17.5 + 16.5 * 16.5, 1e-9);
    d[7] = NAN;
    cr_assert_not(bny_squares(d, BANYAN_F64, 19, &got));
    cr_assert_not(bny_squares((uint16_t[]){ 0x7c00 }, BANYAN_F16, 1, &got));
    cr_assert_not(bny_squares((uint16_t[]){ 0xfe00 }, BANYAN_F16, 1, &got));
    cr_assert_not(bny_squares((uint16_t[]){ 0xff80 }, BANYAN_BF16, 1, &got));
    cr_assert(bny_squares(f, BANYAN_F32, 0, &got));
    cr_assert_eq(got, 0.0);
}
