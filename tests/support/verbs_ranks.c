/* SPDX-License-Identifier: BSD-3-Clause */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

int verbs_real_device(void)
{
    return getenv("BANYAN_TEST_IFNAMES") != NULL;
}

int verbs_iwarp(const struct tpset *s)
{
    return ((struct vb_tp *)s->tp[0])->ctx->device->transport_type == IBV_TRANSPORT_IWARP;
}

void verbs_joined(struct tpset *s, int n)
{
    tpset_open(s, bny_transport_find("verbs"), n, NULL);
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            struct bny_hdr hdr = tpset_hdr(0, 1u << 20, 0);

            if (a == b)
                continue;
            tpset_eager(s, a, b, &hdr, NULL);
            s->ops->release(tpset_wait(s, b, BNY_EV_MSG).msg);
        }
}

void verbs_left(struct tpset *s)
{
    tpset_close(s);
    if (verbs_real_device())
        return;
    cr_assert_eq(verbs_sim.rnr, 0u, "%llu requests found no receive request", (unsigned long long)verbs_sim.rnr);
    cr_assert_eq(verbs_sim.overflows, 0u, "a completion queue overflowed");
    cr_assert_eq(verbs_sim.devices_open, 0, "%d queue pairs leaked", verbs_sim.devices_open);
}

struct vb_conn *verbs_conn(struct tpset *s, int from, int to)
{
    return ((struct vb_ep *)s->ep[from][to])->conn;
}

void verbs_expect_down(struct tpset *s, int rank, const char *part)
{
    struct bny_event ev = tpset_wait(s, rank, BNY_EV_DOWN);

    cr_assert(strstr(ev.reason, part), "\"%s\" lacks \"%s\"", ev.reason, part);
    for (int i = 0; i < 50; i++)
        tpset_step(s);
    cr_assert_eq(tpset_count(s, rank, BNY_EV_DOWN), 0, "told twice");
}
