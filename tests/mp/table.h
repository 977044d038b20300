/* SPDX-License-Identifier: BSD-3-Clause */
/* Criterion tests that are rows of a table: which case on how many ranks over which transport.
 * Rows are plain data, because every row runs in a process of its own. With
 * BANYAN_TEST_ROWS=first, or last, a table runs one row for each transport. */
#ifndef BNY_TESTS_MP_TABLE_H
#define BNY_TESTS_MP_TABLE_H

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <stdlib.h>
#include <string.h>

#include "tests/support/mp.h"

struct mp_row {
    char case_name[24], transport[8];
    int n;
    char arg[80];
    double timeout_s; /* 0: MP_TIMEOUT_S */
    char env[3][80];  /* as struct mp.env; "" none */
    int is_dear;      /* left out where few rows run, even where it is the only one */
};

/* "all", "first" or "last". */
static inline const char *mp_rows_asked(void)
{
    const char *asked = getenv("BANYAN_TEST_ROWS");

    return asked && asked[0] ? asked : "all";
}

static inline int mp_rows_are_few(void)
{
    return strcmp(mp_rows_asked(), "all") != 0;
}

static inline void mp_row_run(const struct mp_row *row)
{
    struct mp mp = { .n = row->n,
                     .case_name = row->case_name,
                     .arg = row->arg,
                     .transport = row->transport[0] ? row->transport : NULL,
                     .timeout_s = row->timeout_s };

    if (row->is_dear && mp_rows_are_few())
        cr_skip_test("too dear where few rows run");
    for (int i = 0; i < 3 && row->env[i][0]; i++)
        mp.env[i] = row->env[i];
    MP_CHECK(mp_run(&mp));
}

/* How many of a table's rows run, which are put in front: where few rows run, those of each
 * transport with several ranks that stand first, or last. */
static inline size_t mp_rows_in_order(struct mp_row *rows, size_t n)
{
    size_t chosen = 0;

    for (size_t i = 0; strcmp(mp_rows_asked(), "last") == 0 && i < n / 2; i++) {
        struct mp_row row = rows[i];

        rows[i] = rows[n - 1 - i];
        rows[n - 1 - i] = row;
    }
    for (size_t i = 0; mp_rows_are_few() && i < n; i++) {
        struct mp_row row = rows[i];
        int is_new = row.n > 1 && !row.is_dear;

        for (size_t k = 0; is_new && k < chosen; k++)
            is_new = strcmp(rows[k].transport, row.transport) != 0;
        if (!is_new)
            continue;
        rows[i] = rows[chosen];
        rows[chosen++] = row;
    }
    return chosen ? chosen : n;
}

/* Rows of other types: one where few rows run. */
static inline size_t mp_row_first(size_t n)
{
    return strcmp(mp_rows_asked(), "last") == 0 ? n - 1 : 0;
}

#define MP_ROWS(type, rows)                                                                    \
    cr_make_param_array(type, (rows) + mp_row_first(sizeof rows / sizeof rows[0]),             \
                        mp_rows_are_few() ? 1 : sizeof rows / sizeof rows[0])

/* Test `name` of `suite`: every row of the array `rows`. */
#define MP_TABLE(suite, name, rows)                                                            \
    ParameterizedTestParameters(suite, name)                                                   \
    {                                                                                          \
        return cr_make_param_array(struct mp_row, rows,                                        \
                                   mp_rows_in_order(rows, sizeof rows / sizeof rows[0]));      \
    }                                                                                          \
    ParameterizedTest(struct mp_row *row, suite, name, .timeout = 400)                         \
    {                                                                                          \
        mp_row_run(row);                                                                       \
    }

#endif
