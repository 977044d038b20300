/* SPDX-License-Identifier: BSD-3-Clause */
/* One rank of test_launch.c's jobs: joins by the environment, gathers peer infos twice (a
 * program may call init twice), checks them. Prints "how rank nranks"; exits 0 when all is
 * well. Built a second time with BNY_WITH_MPI by hand to try it inside an MPI program. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "transport/bootstrap/bootstrap.h"

static int gather(const struct bny_launch *l, uint64_t deadline)
{
    struct bny_bootstrap *b;
    int infos[1024], mine = 1000 + l->rank, rc;

    rc = bny_bootstrap_start(&b, &l->id, l->nranks, l->rank, &mine, sizeof mine, "", "",
                             deadline);
    if (rc != 0)
        return rc;
    while ((rc = bny_bootstrap_progress(b, infos)) == 0)
        bny_pause();
    bny_bootstrap_destroy(b);
    for (int r = 0; rc == 1 && r < l->nranks; r++)
        if (infos[r] != 1000 + r)
            return -BANYAN_EPROTO;
    return rc == 1 ? 0 : rc;
}

int main(void)
{
    uint64_t deadline = bny_deadline_in(15);
    struct bny_launch l;

    for (int round = 0; round < 2; round++) {
        int rc = bny_launch_env(&l, "", "", deadline);

        if (rc == 0 && l.nranks > 1024)
            return 3;
        if (rc == 0)
            rc = gather(&l, deadline);
        if (rc != 0) {
            fprintf(stderr, "%s: %s\n", banyan_strerror(rc), banyan_last_error());
            return 1;
        }
    }
    printf("%s %d %d\n", l.how, l.rank, l.nranks);
    return 0;
}
