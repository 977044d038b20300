/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of compress/kernels/code.h: the scalar table computes what the header says, by other
 * means than its own, and every other instruction set gives its bits for any bytes, length and
 * alignment, and touches nothing else. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/compress/code_compare.h"

TestSuite(code, .timeout = 120);

struct level {
    char name[8];
    unsigned flags;
};

ParameterizedTestParameters(code, isa_gives_the_scalar_bits)
{
    static struct level levels[] = { { "avx2", BNY_CPU_AVX2 },
                                     { "avx512", BNY_CPU_AVX2 | BNY_CPU_AVX512 } };

    return cr_make_param_array(struct level, levels, 2);
}

ParameterizedTest(struct level *level, code, isa_gives_the_scalar_bits)
{
    const struct bny_code_kernels *k = bny_code_kernels_for(level->flags);
    const char *bad;

    if ((bny_cpu_flags() & level->flags) != level->flags)
        cr_skip_test("this machine lacks the instruction set");
    cr_assert_str_eq(k->name, level->name);
    bad = code_compare(&bny_code_scalar, k);
    cr_expect(!bad, "%s", bad);
}
