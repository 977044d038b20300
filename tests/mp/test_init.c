/* SPDX-License-Identifier: BSD-3-Clause */
/* Init that cannot succeed says why, on every rank that can know, and how to repair it. */
#include "tests/mp/table.h"

/* BANYAN_ECONFIG 13, BANYAN_EPROTO 7, BANYAN_ETIMEDOUT 3. */
static struct mp_row environments[] = {
    { "init_fails", "shm", 1, "13 BANYAN_RANK", 20, { "BANYAN_RANK" } },
    { "init_fails", "shm", 1, "13 BANYAN_WORLD_SIZE", 20, { "BANYAN_WORLD_SIZE" } },
    { "init_fails", "shm", 1, "13 BANYAN_ID", 20, { "BANYAN_ID=zz" } },
    { "init_fails", "shm", 1, "13 BANYAN_RANK", 20, { "BANYAN_RANK=one" } },
    { "init_fails", "shm", 1, "13 BANYAN_RANK", 20, { "BANYAN_RANK=3" } },
    { "init_fails", "shm", 1, "13 transport smh", 20, { "BANYAN_TRANSPORT=smh" } },
    { "init_fails", "shm", 1, "13 schedule rign", 20, { "BANYAN_SCHEDULE=rign" } },
    { "init_fails", "shm", 1, "13 codec f61", 20, { "BANYAN_CODEC=f61" } },
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
    { "init_fails", "shm", 2, "13 schedule rank~1", 20, { "@1 BANYAN_SCHEDULE=ring" } },
};
MP_TABLE(init, settings_that_differ_are_named, settings)

static struct mp_row strangers[] = {
    { "strangers", "shm", 2 },
    { "strangers", "tcp", 4 },
};
MP_TABLE(init, strangers_do_not_disturb, strangers)
