/* SPDX-License-Identifier: BSD-3-Clause */
/* Criterion tests that are rows of a table: which case on how many ranks over which transport.
 * Rows are plain data, because every row runs in a process of its own. */
#ifndef BNY_TESTS_MP_TABLE_H
#define BNY_TESTS_MP_TABLE_H

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "tests/support/mp.h"

struct mp_row {
    char case_name[24], transport[8];
    int n;
    char arg[80];
    double timeout_s; /* 0: MP_TIMEOUT_S */
    char env[3][80];  /* as struct mp.env; "" none */
};

static inline void mp_row_run(const struct mp_row *row)
{
    struct mp mp = { .n = row->n,
                     .case_name = row->case_name,
                     .arg = row->arg,
                     .transport = row->transport[0] ? row->transport : NULL,
                     .timeout_s = row->timeout_s };

    for (int i = 0; i < 3 && row->env[i][0]; i++)
        mp.env[i] = row->env[i];
    MP_CHECK(mp_run(&mp));
}

/* Test `name` of `suite`: every row of the array `rows`. */
#define MP_TABLE(suite, name, rows)                                                            \
    ParameterizedTestParameters(suite, name)                                                   \
    {                                                                                          \
        return cr_make_param_array(struct mp_row, rows, sizeof rows / sizeof rows[0]);         \
    }                                                                                          \
    ParameterizedTest(struct mp_row *row, suite, name, .timeout = 400)                         \
    {                                                                                          \
        mp_row_run(row);                                                                       \
    }

#endif
