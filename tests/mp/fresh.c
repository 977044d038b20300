/* SPDX-License-Identifier: BSD-3-Clause */
/* Receives into memory that nobody has written, then looks at every element: under valgrind
 * (test_valgrind.py) each that another process wrote unnoticed is an error. Exit status 1 when
 * a value is wrong. */
#include <stdio.h>
#include <stdlib.h>

#include <banyan/banyan.h>

/* Elements: 1 MiB, in windows and chunk by chunk; few go through rings. */
#define MAX (1u << 18)

static int wrong(const char *what, size_t i, float got, float expected)
{
    if (got == expected)
        return 0;
    return fprintf(stderr, "%s: element %zu is %g, not %g\n", what, i, (double)got,
                   (double)expected);
}

/* One call of each kind with that many elements. Returns 0, 1 when values are wrong, or an
 * error. */
static int exchange(struct banyan_comm *comm, size_t count)
{
    int rank = banyan_comm_rank(comm), n = banyan_comm_count(comm), rc, bad = 0;
    float *in = malloc(count * sizeof *in), *sum = malloc(count * sizeof *sum),
          *spread = malloc(count * sizeof *spread),
          *all = malloc(count * sizeof *all * (size_t)n);

    for (size_t i = 0; i < count; i++) {
        in[i] = (float)(rank + (int)(i % 7));
        if (rank == 0)
            spread[i] = (float)(i % 5);
    }
    rc = banyan_allreduce(in, sum, count, BANYAN_F32, BANYAN_SUM, comm, NULL);
    if (rc == 0)
        rc = banyan_broadcast(spread, count, BANYAN_F32, 0, comm, NULL);
    if (rc == 0)
        rc = banyan_allgather(in, all, count, BANYAN_F32, comm, NULL);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        bad |= wrong("sum", i, sum[i], (float)(n * (int)(i % 7) + n * (n - 1) / 2));
        bad |= wrong("broadcast", i, spread[i], (float)(i % 5));
        for (int r = 0; r < n; r++)
            bad |= wrong("allgather", i, all[(size_t)r * count + i], (float)(r + (int)(i % 7)));
    }
    free(all);
    free(spread);
    free(sum);
    free(in);
    return rc != 0 ? rc : bad != 0;
}

int main(void)
{
    struct banyan_comm *comm = NULL;
    int rc = banyan_comm_init_env(&comm, NULL);

    for (size_t count = 1; rc == 0 && count <= MAX; count *= 8)
        rc = exchange(comm, count);
    if (rc == 0)
        rc = banyan_comm_finalize(comm);
    if (rc < 0)
        fprintf(stderr, "%s\n", banyan_last_error());
    return rc != 0;
}
