/* SPDX-License-Identifier: BSD-3-Clause */
/* The object store, in jobs of 1 to 8 processes over the local transports. */
#include "tests/mp/table.h"

static struct mp_row basic[] = {
    { "objects_basic", "shm", 1 }, { "objects_basic", "shm", 2 }, { "objects_basic", "shm", 5 },
    { "objects_basic", "tcp", 2 }, { "objects_basic", "tcp", 4 },
};
MP_TABLE(objects, what_is_put_is_got_and_deleted, basic)

static struct mp_row others[] = {
    { "objects_computes", "shm", 3 }, { "objects_computes", "tcp", 3 },
    { "objects_chain", "shm", 5 },    { "objects_chain", "tcp", 4 },
    { "objects_refused", "shm", 1 },  { "objects_refused", "shm", 3 },
    { "objects_refused", "tcp", 2 },
};
MP_TABLE(objects, who_computes_serves_and_what_is_wrong_is_refused, others)

/* Arguments: steps, threads of each rank, deaths. */
static struct mp_row programs[] = {
    { "objects_random", "shm", 1, "20 2", 120 },
    { "objects_random", "shm", 2, "40 3", 120 },
    { "objects_random", "shm", 4, "30 2", 120 },
    { "objects_random", "tcp", 2, "40 3", 120 },
    { "objects_random", "tcp", 5, "20 2", 120 },
    { "objects_random", "shm", 8, "12 1" },
    { "objects_random", "tcp", 3, "30 2", 120, { "BANYAN_TEST_SEED=random" } },
    { "objects_random", "shm", 3, "30 2", 120, { "BANYAN_TEST_SEED=random" } },
};
MP_TABLE(objects, random_programs_get_what_was_put, programs)

static struct mp_row starved[] = {
    { "objects_starved", "shm", 2, "300" },
    { "objects_starved", "shm", 4, "300" },
    { "objects_starved", "tcp", 3, "300" },
    { "objects_starved_sum", "shm", 3, "50" },
    { "objects_starved_sum", "tcp", 3, "50" },
    { "objects_starved_sum", "shm", 4, "400000" },
    { "objects_starved_sum", "tcp", 3, "400000" },
};
MP_TABLE(objects, who_asks_a_rank_without_memory_gets_an_answer, starved)

static struct mp_row left[] = {
    { "objects_left", "shm", 3 },         { "objects_left", "tcp", 4 },
    { "objects_left", "shm", 2, "put" },  { "objects_left", "tcp", 3, "put" },
    { "objects_left", "tcp", 12, "put" },
};
MP_TABLE(objects, who_leaves_takes_what_it_alone_held, left)

Test(objects, a_rank_without_descriptors_is_told_so, .timeout = 100)
{
    struct mp mp = { .n = 4,
                     .case_name = "objects_no_descriptors",
                     .transport = "tcp",
                     .may_die = 1,
                     .timeout_s = 90 };

    MP_CHECK(mp_run(&mp));
}

Test(objects, who_was_out_of_reach_and_died_is_not_waited_for, .timeout = 100)
{
    for (int n = 2; n <= 4; n++) {
        struct mp mp = { .n = n,
                         .case_name = "objects_out_of_reach_dies",
                         .transport = "tcp",
                         .env = { "BANYAN_QUORUM=any" },
                         .may_die = 1,
                         .timeout_s = 90 };

        MP_CHECK(mp_run(&mp));
    }
}

static struct mp_row first_words[] = {
    { "objects_first_words", "tcp", 8, "0" }, { "objects_first_words", "tcp", 8, "1" },
    { "objects_first_words", "tcp", 8, "2" }, { "objects_first_words", "tcp", 8, "3" },
    { "objects_first_words", "tcp", 8, "4" }, { "objects_first_words", "shm", 8, "0" },
    { "objects_first_words", "shm", 8, "1" }, { "objects_first_words", "shm", 8, "2" },
    { "objects_first_words", "shm", 8, "3" }, { "objects_first_words", "shm", 8, "4" },
};
MP_TABLE(objects, first_words_are_said_when_there_is_memory, first_words)

static struct mp_row out_of_reach[] = {
    { "objects_out_of_reach", "tcp", 2 },
    { "objects_out_of_reach", "tcp", 3 },
};
MP_TABLE(objects, nobody_waits_for_a_rank_without_descriptors, out_of_reach)

struct deaths {
    char transport[8], arg[16], name[24];
    int n, seeds;
};
static struct deaths deaths[] = {
    { "shm", "20 2 1", "objects_deaths", 3, 4 },
    { "shm", "20 1 2", "objects_deaths", 5, 4 },
    { "tcp", "20 2 1", "objects_deaths", 3, 4 },
    { "tcp", "20 1 2", "objects_deaths", 6, 4 },
    { "shm", "12 1 4", "objects_deaths", 8, 3 },
    { "tcp", "20 3 1", "objects_deaths", 2, 4 },
    { "shm", "1 1 1", "objects_chain_deaths", 3, 6 },
    { "tcp", "1 1 2", "objects_chain_deaths", 5, 6 },
    { "shm", "1 1 3", "objects_chain_deaths", 6, 6 },
    { "shm", "", "objects_go_on", 4, 4 },
    { "tcp", "", "objects_go_on", 4, 4 },
    { "tcp", "", "objects_go_on", 6, 2 },
};

ParameterizedTestParameters(objects, deaths_cost_what_the_dead_alone_held)
{
    return MP_ROWS(struct deaths, deaths);
}

ParameterizedTest(struct deaths *d, objects, deaths_cost_what_the_dead_alone_held,
                  .timeout = 400)
{
    for (int i = 0; i < d->seeds; i++) {
        struct mp mp = { .n = d->n,
                         .case_name = d->name,
                         .arg = d->arg,
                         .transport = d->transport,
                         .timeout_s = 120,
                         .seed = mp_seed() + (uint64_t)i,
                         .env = { "BANYAN_QUORUM=any" },
                         .may_die = (1u << d->n) - 1 };

        MP_CHECK(mp_run(&mp));
    }
}
