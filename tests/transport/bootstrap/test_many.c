/* SPDX-License-Identifier: BSD-3-Clause */
/* What the all-gather of 4096 ranks takes of the busiest one. All are driven by one thread, and
 * a round of all takes a millisecond of theirs, however long it takes: on a loaded machine
 * heads would speak of those who are there already, and again of the others. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "support.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"

static uint64_t virtual_ns = 1000000000;

int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
    (void)id;
    ts->tv_sec = (time_t)(virtual_ns / 1000000000);
    ts->tv_nsec = (long)(virtual_ns % 1000000000);
    return 0;
}

TestSuite(many, .timeout = 240);

#define FILES 18000 /* all ranks are in this process */

static void count_frames(int nranks, int block, uint64_t *root, uint64_t *busiest,
                         uint64_t *bytes)
{
    struct bny_bootstrap **b = calloc((size_t)nranks, sizeof *b);
    uint64_t end = bny_deadline_in(200);
    struct rlimit files = { 0 };
    struct bny_id id;
    uint8_t info[120];
    int open = nranks, *rc = calloc((size_t)nranks, sizeof *rc);

    getrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_max < FILES)
        cr_skip_test("needs %d descriptors: ulimit -Hn says %llu", FILES,
                     (unsigned long long)files.rlim_max);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    setenv("BANYAN_INIT_TREE", "33", 1);
    cr_assert_eq(bny_id_create(&id, "lo", "", 1), 0, "%s", banyan_last_error());
    for (int r = 0; r < nranks; r++) {
        uint64_t seed = (uint64_t)r / (uint64_t)block + 1;

        test_fill(&seed, info, sizeof info); /* peer infos of a host are alike but for a part */
        seed = (uint64_t)r + 1;
        test_fill(&seed, info, 40);
        test_on_host(r, nranks, 0, block);
        cr_assert_eq(bny_bootstrap_start(&b[r], &id, nranks, r, info, sizeof info, "", "", end),
                     0, "%s", banyan_last_error());
    }
    while (open && !bny_deadline_passed(end)) { /* rc: 1 has the table, 2 may go */
        open = 0;
        for (int r = 0; r < nranks; r++) {
            int got = rc[r] == 2 ? 0
                      : rc[r]    ? bny_bootstrap_settle(b[r], 1)
                                 : bny_bootstrap_progress(b[r], NULL);

            cr_assert_geq(got, 0, "rank %d: %s", r, banyan_last_error());
            rc[r] += got;
            open += rc[r] < 2;
        }
        virtual_ns += 1000000;
    }
    *root = b[0]->tally.frames;
    *busiest = *bytes = 0;
    for (int r = 0; r < nranks; r++) {
        if (r && b[r]->tally.frames > *busiest)
            *busiest = b[r]->tally.frames;
        if (b[r]->tally.bytes > *bytes)
            *bytes = b[r]->tally.bytes;
        cr_assert_eq(rc[r], 2, "rank %d is not through", r);
    }
    for (int r = 0; r < nranks; r++)
        bny_bootstrap_destroy(b[r]);
    free(b);
    free(rc);
}

Test(many, init_of_4096_ranks_takes_few_messages_a_host)
{
    uint64_t root, busiest, bytes;

    count_frames(4096, 64, &root, &busiest, &bytes);
    cr_log_info("64 hosts of 64: %llu messages at rank 0, %llu at another, %llu bytes\n",
                (unsigned long long)root, (unsigned long long)busiest,
                (unsigned long long)bytes);
    /* All came to it before: 20 500. */
    cr_assert_lt(root, 6 * 64);
    cr_assert_lt(busiest, 70);
    cr_assert_lt(bytes, 2u << 20);
    count_frames(4096, 8, &root, &busiest, &bytes);
    cr_log_info("512 hosts of 8: %llu messages at rank 0, %llu at another, %llu bytes\n",
                (unsigned long long)root, (unsigned long long)busiest,
                (unsigned long long)bytes);
    cr_assert_lt(root, 6 * 512);
    cr_assert_lt(busiest, 70);
    cr_assert_lt(bytes, 2u << 20);
}
