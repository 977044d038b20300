/* SPDX-License-Identifier: BSD-3-Clause */
/* Uses the installed library: a sum over ranks, checked; exit status 1 when it is wrong. */
#include <banyan/banyan.h>

#include <stdio.h>

#define N 1000

static int check(const float *x, int nranks)
{
    float expected = (float)(nranks * (nranks + 1) / 2);

    for (int i = 0; i < N; i++)
        if (x[i] != expected)
            return fprintf(stderr, "element %d is %g, not %g\n", i, (double)x[i],
                           (double)expected);
    return 0;
}

int main(void)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_comm *comm;
    float x[N];
    int rank, nranks, wrong;

    if (banyan_comm_init_env(&comm, NULL) != 0)
        goto fail;
    rank = banyan_comm_rank(comm);
    nranks = banyan_comm_count(comm);
    for (int i = 0; i < N; i++)
        x[i] = (float)(rank + 1);
    if (banyan_allreduce(x, x, N, BANYAN_F32, BANYAN_SUM, comm, &opts) != 0)
        goto fail;
    wrong = check(x, nranks);
    if (banyan_comm_finalize(comm) != 0)
        goto fail;
    printf("rank %d of %d: banyan %s\n", rank, nranks, banyan_version_string());
    return wrong != 0;
fail:
    fprintf(stderr, "%s\n", banyan_last_error());
    return 1;
}
