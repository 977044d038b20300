/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises: whatever each rank believes its host to do faster, and however many of them differ,
 * results are right, at the sizes where the way changes and at any others. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/mp.h"
#include "transport/shm/shm_tune.h"

/* A file of this host by which the single copy wins from the k-th size on; 3: never. */
static void believe(char *path, size_t cap, int k)
{
    struct shm_tune t = { .host = bny_shm_tune_host(), .runs = SHM_TUNE_RUNS, .hand_ns = 100 };
    char text[SHM_TUNE_TEXT];
    size_t n;
    int fd;

    for (int i = 0; i < SHM_TUNE_SIZES; i++) {
        t.ring_ns[i] = t.plain_ns[i] = 1000;
        t.single_ns[i] = i < k ? 2000 : 500;
    }
    snprintf(path, cap, "/tmp/banyan-tune-XXXXXX");
    fd = mkstemp(path);
    n = bny_shm_tune_format(&t, text, sizeof text);
    cr_assert(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    close(fd);
}

static void run(const char *name, const char *arg, int n, const int *beliefs)
{
    char path[4][64], env[4][400];
    struct mp mp = {
        .n = n, .case_name = name, .arg = arg, .transport = "shm", .timeout_s = 120
    };

    for (int r = 0; r < n; r++) {
        believe(path[r], sizeof path[r], beliefs[r]);
        snprintf(env[r], sizeof env[r], "@%d BANYAN_TUNE=%s", r,
                 beliefs[r] < 0 ? "0" : path[r]);
        mp.env[r] = env[r];
    }
    MP_CHECK(mp_run(&mp));
    for (int r = 0; r < n; r++)
        unlink(path[r]);
}

Test(tune, sizes_at_which_the_way_changes, .timeout = 400)
{
    for (int k = 0; k <= SHM_TUNE_SIZES; k++)
        run("edges", "", 2, (int[]){ k, k });
    run("edges", "", 2, (int[]){ -1, 3 });
    run("edges", "", 2, (int[]){ 3, 0 });
    run("edges", "", 3, (int[]){ 3, 0, -1 });
}

Test(tune, any_call_where_ranks_believe_different_things, .timeout = 400)
{
    run("differential", "calls=300 max=1048576 memory=6", 2, (int[]){ 3, 3 });
    run("differential", "calls=300 max=1048576 memory=6", 2, (int[]){ 3, -1 });
    run("differential", "calls=200 max=1048576 memory=6", 3, (int[]){ 0, 2, 3 });
    run("differential", "calls=200 max=1048576 memory=6", 4, (int[]){ 3, 3, 3, 3 });
}

Test(tune, features_together_where_ranks_believe_different_things, .timeout = 400)
{
    run("product", "60", 2, (int[]){ 3, 3 });
    run("product", "60", 3, (int[]){ 3, -1, 1 });
}
