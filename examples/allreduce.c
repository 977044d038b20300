/* SPDX-License-Identifier: BSD-3-Clause */
/* Every rank contributes its number; all get the sum. Run it alone, or
 *   banyan_run -n 4 ./allreduce        mpirun -n 4 ./allreduce        torchrun --no-python ...
 */
#include <banyan/banyan.h>
#include <stdio.h>

int main(void)
{
    struct banyan_comm *comm = NULL;
    float x[1000];
    int rank, nranks;

    /* Finds the other ranks through the launcher's environment; NULL: default settings. */
    if (banyan_comm_init_env(&comm, NULL) < 0)
        goto fail;
    rank = banyan_comm_rank(comm);
    nranks = banyan_comm_count(comm);

    for (int i = 0; i < 1000; i++)
        x[i] = (float)(rank + i);
    /* In place: the same buffer for send and receive. */
    if (banyan_allreduce(x, x, 1000, BANYAN_F32, BANYAN_SUM, comm, NULL) < 0)
        goto fail;
    printf("rank %d of %d: x[0] = %g, x[999] = %g\n", rank, nranks, (double)x[0],
           (double)x[999]);

    if (banyan_comm_finalize(comm) < 0)
        goto fail_message;
    return 0;

fail:
    banyan_comm_destroy(comm);
fail_message:
    fprintf(stderr, "allreduce: %s\n", banyan_last_error());
    return 1;
}
