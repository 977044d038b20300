/* SPDX-License-Identifier: BSD-3-Clause */
/* A hostile rank in jobs that share memory. Each job has a seed of its own: BANYAN_TEST_SEED is
 * the first one's, and BANYAN_TEST_SCALE above 1 multiplies their number. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/mp.h"

#define JOBS 8

struct shape {
    int n;
    char setting[40];
};

static struct shape shapes[] = { { 3, "" }, { 4, "BANYAN_CMA=0" } };

ParameterizedTestParameters(hostile, a_rank_that_writes_everywhere_harms_no_other)
{
    return cr_make_param_array(struct shape, shapes, sizeof shapes / sizeof shapes[0]);
}

ParameterizedTest(struct shape *w, hostile, a_rank_that_writes_everywhere_harms_no_other,
                  .timeout = 3600)
{
    static struct mp_shared out;
    const char *scale = getenv("BANYAN_TEST_SCALE");
    int jobs = (int)(JOBS * (scale && atof(scale) > 1 ? atof(scale) : 1));
    uint64_t well = 0, failed = 0, among = 0, segments = 0, areas = 0;

    for (int i = 0; i < jobs; i++) {
        struct mp mp = { .n = w->n,
                         .case_name = "hostile_memory",
                         .transport = "shm",
                         .seed = mp_seed() + (uint64_t)i,
                         .timeout_s = 30 * mp_patience(),
                         .env = { w->setting[0] ? w->setting : NULL },
                         .may_end = 1u << (w->n - 1),
                         .out = &out };

        MP_CHECK(mp_run(&mp));
        for (int r = 0; r < w->n - 1; r++) {
            well += atomic_load(&out.value[r][0]);
            failed += atomic_load(&out.value[r][1]);
            among += atomic_load(&out.value[r][2]);
        }
        segments += atomic_load(&out.value[w->n - 1][0]);
        areas += atomic_load(&out.value[w->n - 1][1]);
    }
    fprintf(stderr,
            "# %d jobs of %d ranks: beside the writer %llu operations with it and %llu sums "
            "without it were completed, %llu failed\n",
            jobs, w->n, (unsigned long long)well, (unsigned long long)among,
            (unsigned long long)failed);
    fprintf(stderr, "# %llu words into segments, %llu into areas\n",
            (unsigned long long)segments, (unsigned long long)areas);
    cr_assert(segments && areas, "there was nothing to write into");
    cr_assert(well && among, "nothing was computed beside the writer");
    cr_assert(failed, "the writer was never noticed");
}
