/* SPDX-License-Identifier: BSD-3-Clause */
/* A lack of memory for a moment, while ranks of a host connect. */
#include <criterion/criterion.h>

#include "base/err.h"
#include "tests/support/tpset.h"

static int callocs = -1; /* that succeed; one then fails */

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
    if (callocs >= 0 && callocs-- == 0)
        return NULL;
    return __real_calloc(n, bytes);
}

/* Is an error of the rank that lacks it; neither end takes the other for dead, and the next
 * message arrives. */
Test(shm_starved, who_lacks_memory_is_not_dead)
{
    for (int k = 0; k < 3; k++) {
        struct bny_hdr hdr = tpset_hdr(0, 7, 0);
        struct tpset s;
        int rc;

        tpset_open(&s, bny_transport_find("shm"), 2, NULL);
        callocs = k;
        rc = s.ops->eager(s.ep[0][1], &hdr, NULL);
        callocs = -1;
        cr_assert(rc == 0 || rc == -BANYAN_ENOMEM, "%d: %s", rc, banyan_last_error());
        for (int i = 0; i < 10; i++)
            tpset_step(&s);
        if (rc)
            tpset_eager(&s, 0, 1, &hdr, NULL);
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        for (int r = 0; r < 2; r++)
            cr_assert_eq(tpset_count(&s, r, BNY_EV_DOWN), 0, "%d: at rank %d", k, r);
        tpset_close(&s);
    }
}
