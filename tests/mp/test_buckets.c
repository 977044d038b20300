/* SPDX-License-Identifier: BSD-3-Clause */
/* Buckets of gradients, in jobs of several processes. */
#include <signal.h>

#include "tests/mp/table.h"

static struct mp_row sums[] = {
    { "buckets", "shm", 1, "12" }, { "buckets", "shm", 2, "25" }, { "buckets", "shm", 3, "12" },
    { "buckets", "shm", 5, "5" },  { "buckets", "tcp", 2, "12" }, { "buckets", "tcp", 4, "5" },
    { "buckets_law", "shm", 1 },   { "buckets_law", "shm", 2 },   { "buckets_law", "shm", 4 },
    { "buckets_law", "tcp", 3 },   { "buckets_scale", "shm", 1 }, { "buckets_scale", "shm", 3 },
    { "buckets_bytes", "shm", 1 }, { "buckets_bytes", "shm", 2 }, { "buckets_bytes", "shm", 3 },
    { "buckets_bytes", "tcp", 3 },
};
MP_TABLE(buckets, sum_what_ranks_put_in, sums)

static struct mp_row state[] = {
    { "buckets_resume", "shm", 1 },
    { "buckets_resume", "shm", 2 },
    { "buckets_resume", "shm", 4 },
    { "buckets_resume", "tcp", 3 },
};
MP_TABLE(buckets, go_on_bit_identically, state)

static struct mp_row wrong[] = {
    { "buckets_wrong", "shm", 1 },
    { "buckets_wrong", "shm", 2 },
    { "buckets_wrong", "shm", 4 },
    { "buckets_wrong", "tcp", 3 },
    { "buckets_refused", "shm", 1 },
    { "buckets_refused", "shm", 2 },
    { "buckets_refused", "tcp", 3 },
    { "buckets_settings", "shm", 1 },
    { "buckets_settings", "shm", 2 },
    { "buckets_unlike", "shm", 1 },
    { "buckets_unlike", "shm", 2 },
    { "buckets_unlike", "tcp", 3 },
    { "buckets_codecs", "shm", 2, "" },
    { "buckets_codecs", "shm", 3, "topk:delta=0.06,force=1" },
    { "buckets_codecs", "tcp", 2, "int8:force=1" },
    { "buckets_starves", "shm", 2 },
    { "buckets_starves", "tcp", 3 },
    { "buckets_free", "shm", 2 },
    { "buckets_free", "tcp", 3 },
};
MP_TABLE(buckets, say_what_is_wrong, wrong)

static struct mp_row quiet[] = {
    { "buckets_quiet", "shm", 1 },
    { "buckets_quiet", "shm", 2 },
    { "buckets_quiet", "shm", 3 },
    { "buckets_quiet", "tcp", 2 },
};
MP_TABLE(buckets, allocate_nothing_in_a_steady_step, quiet)

static void lose_last(const char *transport, int n)
{
    struct mp mp = { .n = n,
                     .case_name = "buckets_dies",
                     .transport = transport,
                     .kill = { .signal = SIGKILL, .rank = n - 1, .marker = 1 } };

    MP_CHECK(mp_run(&mp));
}

Test(buckets, name_the_rank_that_died, .timeout = 200)
{
    lose_last("shm", 2);
    lose_last("shm", 4);
    lose_last("tcp", 3);
}
