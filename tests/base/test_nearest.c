/* SPDX-License-Identifier: BSD-3-Clause */
#include <criterion/criterion.h>

#include "base/nearest.h"

static const char *known(size_t i)
{
    static const char *const names[] = { "ring", "star", "binomial", "int8z", "int8", "int4" };

    return i < sizeof names / sizeof names[0] ? names[i] : NULL;
}

static const char *nothing(size_t i)
{
    (void)i;
    return NULL;
}

Test(nearest, slips_of_the_keyboard_are_found)
{
    cr_assert_str_eq(bny_did_you_mean("rnig", known, NULL), " (did you mean ring?)");
    cr_assert_str_eq(bny_did_you_mean("int88", known, NULL), " (did you mean int8?)");
    cr_assert_str_eq(bny_did_you_mean("binomal", known, NULL), " (did you mean binomial?)");
    cr_assert_str_eq(bny_did_you_mean("ibnoimal", known, NULL), " (did you mean binomial?)");
    cr_assert_str_eq(bny_did_you_mean("sta", known, NULL), " (did you mean star?)");
    cr_assert_str_eq(bny_did_you_mean("atuo", known, "auto"), " (did you mean auto?)");
}

Test(nearest, nothing_is_said_where_nothing_is_near)
{
    cr_assert_str_empty(bny_did_you_mean("", known, NULL));
    cr_assert_str_empty(bny_did_you_mean("qqq", known, NULL));
    cr_assert_str_empty(bny_did_you_mean("int99", known, NULL));
    cr_assert_str_empty(bny_did_you_mean("nonsense", known, "lines"));
    cr_assert_str_empty(bny_did_you_mean("gnir", known, NULL));
    cr_assert_str_empty(bny_did_you_mean("ring", nothing, NULL));
    cr_assert_str_eq(bny_did_you_mean("", known, "auto"), "");
}

Test(nearest, a_name_of_any_length_is_taken)
{
    char longer[300];

    for (int i = 0; i < 299; i++)
        longer[i] = 'r';
    longer[299] = '\0';
    cr_assert_str_empty(bny_did_you_mean(longer, known, NULL));
}
