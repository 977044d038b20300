/* SPDX-License-Identifier: BSD-3-Clause */
/* Init that cannot succeed says why, on every rank that can know, and how to repair it. */
#include <stdio.h>

#include "base/clock.h"
#include "tests/mp/table.h"

/* BANYAN_ECONFIG 13, BANYAN_EPROTO 7, BANYAN_ETIMEDOUT 3. */
static struct mp_row environments[] = {
    { "init_fails", "shm", 1, "13 BANYAN_RANK", 20, { "BANYAN_RANK" } },
    { "init_fails", "shm", 1, "13 BANYAN_WORLD_SIZE", 20, { "BANYAN_WORLD_SIZE" } },
    { "init_fails", "shm", 1, "13 BANYAN_ID", 20, { "BANYAN_ID=zz" } },
    { "init_fails", "shm", 1, "13 BANYAN_RANK", 20, { "BANYAN_RANK=one" } },
    { "init_fails", "shm", 1, "13 BANYAN_RANK", 20, { "BANYAN_RANK=3" } },
    { "init_fails",
      "shm",
      1,
      "13 BANYAN_TRANSPORT smh mean~shm?",
      20,
      { "BANYAN_TRANSPORT=smh" } },
    { "init_fails",
      "shm",
      1,
      "13 BANYAN_SCHEDULE rign mean~ring?",
      20,
      { "BANYAN_SCHEDULE=rign" } },
    { "init_fails", "shm", 1, "13 codec itn8 mean~int8?", 20, { "BANYAN_CODEC=itn8" } },
    { "init_fails", "shm", 1, "13 codec f61 mean~f16?", 20, { "BANYAN_CODEC=f61" } },
    { "wrong_names", "", 1 },
    { "init_fails", "tcp", 2, "13 BANYAN_IFNAME", 20, { "BANYAN_IFNAME=nosuch0" } },
};
MP_TABLE(init, a_wrong_environment_names_the_variable, environments)

static struct mp_row jobs[] = {
    { "init_fails", "loop", 2, "8 loop~transport~joins~ranks~of~one~process", 20 },
    { "init_fails",
      "shm",
      3,
      "7 rank~1",
      30,
      { "@2 BANYAN_RANK=1", "BANYAN_INIT_TIMEOUT=20" } },
    { "init_fails",
      "shm",
      3,
      "3 2=13 @0:rank~2",
      30,
      { "@2 BANYAN_RANK=9", "BANYAN_INIT_TIMEOUT=2" } },
    { "init_fails",
      "shm",
      2,
      "7 2 3",
      30,
      { "@1 BANYAN_WORLD_SIZE=3", "BANYAN_INIT_TIMEOUT=20" } },
    { "init_fails",
      "shm",
      2,
      "3 @1:127.0.0.1",
      30,
      { "@0 BANYAN_RANK=1", "BANYAN_INIT_TIMEOUT=2", "@0 BANYAN_LISTEN_FD" } },
    { "unreachable", "shm", 1 },
    { "unreachable", "tcp", 1 },
    { "version_differs", "shm", 2 },
    { "version_differs", "tcp", 3 },
};
MP_TABLE(init, a_job_that_cannot_meet_says_who_is_missing, jobs)

static struct mp_row settings[] = {
    { "config_differs", "shm", 2, "schedule", 20 },
    { "config_differs", "tcp", 3, "codec", 20 },
    { "config_differs", "shm", 2, "chunk", 20 },
    { "config_differs", "shm", 3, "deterministic", 20 },
    { "init_fails",
      "shm",
      2,
      "13 set~BANYAN_SCHEDULE rank~1",
      20,
      { "@1 BANYAN_SCHEDULE=ring" } },
    { "init_fails",
      "tcp",
      3,
      "13 integrity=plain integrity=mac rank~2",
      20,
      { "@2 BANYAN_INTEGRITY=mac" } },
    { "init_fails",
      "tcp",
      3,
      "13 set~BANYAN_VERBS=memory~alike~on~all rank~2",
      20,
      { "@2 BANYAN_VERBS=memory=1M" } },
    { "init_fails", "tcp", 2, "13 secret plain", 20, { "BANYAN_INTEGRITY=secret" } },
};
MP_TABLE(init, settings_that_differ_are_named, settings)

static struct mp_row strangers[] = {
    { "strangers", "shm", 2 },
    { "strangers", "tcp", 4 },
};
MP_TABLE(init, strangers_do_not_disturb, strangers)

static struct mp_row full[] = { { "queues_are_full", "tcp", 3 } };
MP_TABLE(init, strangers_in_all_queues_end_no_job, full)

static struct mp_row starts[] = {
    { "secret_of_a_start", "shm", 2 },
    { "secret_of_a_start", "tcp", 3 },
    { "secret_of_a_start", "shm", 2, .env = { "BANYAN_INIT_TIMEOUT=0" } },
};
MP_TABLE(init, each_start_has_a_secret_of_its_own, starts)

static struct mp_row wiped[] = { { "secret_is_wiped", "shm", 2 } };
MP_TABLE(init, the_secret_leaves_the_environment, wiped)

/* No promise, a number to look at: what a start costs on this machine as busy as it is. */
Test(init, two_ranks_start, .timeout = 100)
{
    static struct mp_shared out;
    struct mp mp = { .n = 2, .case_name = "first_barrier", .transport = "shm", .out = &out };

    for (int run = 0; run < 5; run++) {
        uint64_t begun = bny_now_ns(), first = UINT64_MAX, last = 0;

        MP_CHECK(mp_run(&mp));
        for (int r = 0; r < mp.n; r++) {
            uint64_t from = atomic_load(&out.value[r][0]), to = atomic_load(&out.value[r][1]);
            first = from < first ? from : first;
            last = to > last ? to : last;
        }
        fprintf(stderr, "# first barrier of 2 ranks: %.1f ms after main, %.1f ms after spawn\n",
                (double)(last - first) * 1e-6, (double)(last - begun) * 1e-6);
    }
}
