/* SPDX-License-Identifier: BSD-3-Clause */
/* What participation sets cost: microseconds of an allreduce without a set, with one that
 * stays, and with one that is another in each call, whose plan is made anew most of the time
 * (2^n - 2 sets of n ranks, of which the library keeps the latest few).
 *
 *     sets [-P 4] [--schedule S]
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tools/local_ranks.h"

#define BATCHES 15

static void check(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "sets: %s\n", banyan_last_error());
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

enum kind { NONE, STAYS, CHANGES };

/* Half of the ranks or so, never none. */
static void draw(uint8_t *set, int n, uint64_t *s)
{
    int m = 0;

    for (int r = 0; r < n; r++)
        m += set[r] = (uint8_t)bny_rng_below(s, 2);
    if (!m)
        set[bny_rng_below(s, (uint64_t)n)] = 1;
}

/* The median of batches, of the slowest rank. */
static double time_us(struct banyan_comm *comm, enum kind kind, const char *schedule, float *x,
                      float *y, size_t count)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    int n = banyan_comm_count(comm), calls = count > 10000 ? 60 : 400;
    uint8_t *set = calloc(1, (size_t)n);
    double us[BATCHES];
    uint64_t s = 5;

    if (!set)
        exit(1);
    o.schedule = schedule;
    draw(set, n, &s);
    o.participants = kind == NONE ? NULL : set;
    for (int b = -1; b < BATCHES; b++) { /* the first is a warm-up */
        uint64_t start;

        check(banyan_barrier(comm, NULL));
        start = bny_now_ns();
        for (int i = 0; i < calls; i++) {
            if (kind == CHANGES)
                draw(set, n, &s);
            check(banyan_allreduce(x, y, count, BANYAN_F32, BANYAN_SUM, comm, &o));
        }
        if (b >= 0) {
            us[b] = (double)(bny_now_ns() - start) * 1e-3 / calls;
            check(banyan_allreduce(&us[b], &us[b], 1, BANYAN_F64, BANYAN_MAX, comm, NULL));
        }
    }
    free(set);
    qsort(us, BATCHES, sizeof us[0], by_value);
    return us[BATCHES / 2];
}

int main(int argc, char **argv)
{
    static const struct option names[] = { { "schedule", 1, NULL, 's' }, { NULL, 0, NULL, 0 } };
    static const size_t counts[] = { 16, 1024, 16384, 262144 };
    const char *schedule = NULL;
    struct banyan_comm *comm;
    int c, nlocal = 0;
    float *x, *y;

    while ((c = getopt_long(argc, argv, "P:", names, NULL)) != -1)
        if (c == 'P')
            nlocal = atoi(optarg);
        else if (c == 's')
            schedule = optarg;
        else
            return 2;
    if (nlocal > 0 && !getenv("BANYAN_RANK")) {
        struct bny_local_ranks job = { .tool = "sets",
                                       .exe = "/proc/self/exe",
                                       .nranks = nlocal };

        return bny_local_ranks_run(&job, argv);
    }
    check(banyan_comm_init_env(&comm, NULL));
    x = calloc(counts[3], sizeof *x);
    y = calloc(counts[3], sizeof *y);
    if (!x || !y)
        return 1;
    for (int k = 0; k < 4; k++) {
        double none = time_us(comm, NONE, schedule, x, y, counts[k]),
               stays = time_us(comm, STAYS, schedule, x, y, counts[k]),
               changes = time_us(comm, CHANGES, schedule, x, y, counts[k]);

        if (banyan_comm_rank(comm) == 0)
            printf("%8zu bytes: without a set %.2f us, a set that stays %.2f us, another set "
                   "each call %.2f us\n",
                   4 * counts[k], none, stays, changes);
    }
    free(x);
    free(y);
    check(banyan_comm_finalize(comm));
    return 0;
}
