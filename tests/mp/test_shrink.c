/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_comm_shrink in jobs of up to 8 processes. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/mp/table.h"

struct waves {
    char transport[8];
    int n, least, runs;
    char env[48];
};

static struct waves waves[] = {
    { "shm", 2, 1, 2 },
    { "shm", 4, 1, 3 },
    { "shm", 8, 2, 3 },
    { "tcp", 3, 1, 2 },
    { "tcp", 5, 1, 3 },
    { "tcp", 8, 2, 3 },
    { "tcp", 12, 3, 2 },
    { "tcp", 6, 2, 2, "BANYAN_TOPO=star:3x100+3x25" },
    { "shm", 4, 1, 1, "BANYAN_TEST_ONE_CPU=1" },
};

ParameterizedTestParameters(shrink, survivors_go_on)
{
    return MP_ROWS(struct waves, waves);
}

ParameterizedTest(struct waves *p, shrink, survivors_go_on, .timeout = 400)
{
    uint64_t seed = mp_seed();

    for (int run = 0; run < p->runs; run++) {
        char arg[16];
        struct mp mp = { .n = p->n,
                         .case_name = "shrink_waves",
                         .transport = p->transport,
                         .seed = seed + (uint64_t)run,
                         .may_die = UINT32_MAX,
                         .arg = arg,
                         .env = { p->env[0] ? p->env : NULL },
                         .timeout_s = 60 };

        snprintf(arg, sizeof arg, "%d", p->least);
        MP_CHECK(mp_run(&mp));
    }
}

static struct mp_row whole[] = {
    { "shrink_whole", "shm", 1 }, { "shrink_whole", "shm", 2 }, { "shrink_whole", "shm", 5 },
    { "shrink_whole", "tcp", 3 }, { "shrink_whole", "tcp", 9 },
};
MP_TABLE(shrink, without_a_death_it_is_a_dup, whole)

static struct mp_row sleepers[] = {
    { "shrink_sleepers", "shm", 4, "2" },   { "shrink_sleepers", "tcp", 3, "0" },
    { "shrink_sleepers", "shm", 2, "1" },   { "shrink_sleepers", "tcp", 5, "13" },
    { "shrink_sleepers", "tcp", 4, "23" },  { "shrink_sleepers", "shm", 4, "01" },
    { "shrink_sleepers", "tcp", 4, "123" },
};
MP_TABLE(shrink, who_is_stopped_is_left_out_by_most, sleepers)

struct second {
    char transport[8], what[8];
};
static struct second seconds[] = { { "shm", "agree" }, { "shm", "shrink" }, { "shm", "grow" },
                                   { "tcp", "agree" }, { "tcp", "shrink" }, { "tcp", "grow" } };

ParameterizedTestParameters(shrink, a_second_death_in_agree_shrink_and_grow)
{
    return MP_ROWS(struct second, seconds);
}

ParameterizedTest(struct second *p, shrink, a_second_death_in_agree_shrink_and_grow,
                  .timeout = 400)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");
    int runs = (int)(6 * (scale ? atof(scale) : 1)) + 1;
    uint64_t seed = mp_seed();

    for (int run = 0; run < runs; run++) {
        struct mp mp = { .n = 4 + run % 3,
                         .case_name = "second_death",
                         .transport = p->transport,
                         .arg = p->what,
                         .seed = seed + (uint64_t)run,
                         .may_die = UINT32_MAX,
                         .timeout_s = 60 };

        MP_CHECK(mp_run(&mp));
    }
}

/* More failures than a table of them once held. */
static struct waves often[] = { { "shm", 3 }, { "tcp", 2 } };

ParameterizedTestParameters(shrink, after_many_a_death_is_missed)
{
    return MP_ROWS(struct waves, often);
}

ParameterizedTest(struct waves *p, shrink, after_many_a_death_is_missed, .timeout = 100)
{
    struct mp mp = { .n = p->n,
                     .case_name = "shrink_often",
                     .transport = p->transport,
                     .arg = "100",
                     .may_die = 1u << (p->n - 1),
                     .timeout_s = 60 };

    MP_CHECK(mp_run(&mp));
}

struct crosswise {
    char transport[8];
    int n, deaths, runs;
};

static struct crosswise crosswise[] = {
    { "shm", 4, 0, 1 }, { "shm", 6, 1, 3 }, { "shm", 8, 2, 3 },
    { "tcp", 5, 1, 3 }, { "tcp", 8, 3, 3 }, { "tcp", 3, 0, 1 },
};

ParameterizedTestParameters(shrink, several_communicators_in_any_order)
{
    return MP_ROWS(struct crosswise, crosswise);
}

ParameterizedTest(struct crosswise *p, shrink, several_communicators_in_any_order,
                  .timeout = 200)
{
    uint64_t seed = mp_seed();

    for (int run = 0; run < p->runs; run++) {
        char arg[16];
        struct mp mp = { .n = p->n,
                         .case_name = "shrink_crosswise",
                         .transport = p->transport,
                         .seed = seed + (uint64_t)run,
                         .may_die = UINT32_MAX,
                         .arg = arg,
                         .timeout_s = 60 };

        snprintf(arg, sizeof arg, "%d", p->deaths);
        MP_CHECK(mp_run(&mp));
    }
}

static struct mp_row crossed[] = { { "shrink_crossed", "shm", 2 },
                                   { "shrink_crossed", "tcp", 2 } };
MP_TABLE(shrink, one_after_the_other_crosswise_ends_with_words, crossed)

struct owing {
    char transport[8];
    int n, runs;
};
static struct owing owing[] = { { "shm", 5, 3 }, { "tcp", 5, 3 }, { "tcp", 3, 3 } };

ParameterizedTestParameters(shrink, residuals_keep_their_law_without_the_dead)
{
    return MP_ROWS(struct owing, owing);
}

/* Ranks 0 and 1 are killed in the middle of a sum by topk; it is undone and taken again. */
ParameterizedTest(struct owing *p, shrink, residuals_keep_their_law_without_the_dead,
                  .timeout = 200)
{
    static struct mp_shared out;
    uint64_t seed = mp_seed(), undone = 0;

    for (int run = 0; run < p->runs; run++) {
        struct mp mp = { .n = p->n,
                         .case_name = "residuals_of_the_dead",
                         .transport = p->transport,
                         .seed = seed + (uint64_t)run,
                         .may_die = 3,
                         .out = &out,
                         .timeout_s = 60 };

        MP_CHECK(mp_run(&mp));
        for (int r = 2; r < p->n; r++)
            undone += atomic_load(&out.value[r][0]);
    }
    cr_expect_gt(undone, 0u, "no sum had begun when a rank died");
}
