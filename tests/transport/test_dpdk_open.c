/* SPDX-License-Identifier: BSD-3-Clause */
/* What the dpdk transport asks of a port that it opens, and what becomes of a port's refusal; a
 * driver that only pretends. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "transport/datagram/dgram.h"

extern const struct bny_transport_ops bny_dpdk_ops;

static struct bny_dgram_conf asked;

static int start(const char *args, const char *device, int loud, char *text)
{
    return 0;
}

static int refuse(const struct bny_dgram_conf *conf, struct bny_dgram_port **out,
                  struct bny_dgram_info *info, char *text)
{
    asked = *conf;
    *out = NULL;
    snprintf(text, BNY_DGRAM_TEXT, "no memory, says the driver");
    return -1;
}

static const struct bny_dgram_driver pretended = { .version = BNY_DGRAM_DRIVER_VERSION,
                                                   .start = start,
                                                   .open = refuse };

static int create(int nranks)
{
    static const uint8_t secret[32] = "secret";
    struct bny_tp_config cfg = {
        .nranks = nranks, .secret = secret, .ifname = "", .port_range = ""
    };
    struct bny_tp *tp = NULL;
    int rc;

    setenv("BANYAN_DPDK_PORT", "net_pretended0", 1);
    setenv("BANYAN_DPDK_ADDR", "10.9.0.1", 1);
    bny_dpdk_driver_set(&pretended);
    rc = bny_dpdk_ops.create(&tp, &cfg);
    bny_dpdk_driver_set(NULL);
    cr_assert_null(tp);
    return rc;
}

/* All peers may send what their credit allows before anything is looked at: with less, early
 * packets of some would hold all buffers, and what they wait for could not arrive. */
Test(dpdk_open, a_shared_port_has_buffers_for_every_rank)
{
    static const int ranks[] = { 1, 2, 33, 34, 65, 1000 };

    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        uint32_t peers = ranks[i] > 1 ? (uint32_t)ranks[i] - 1 : 1;

        create(ranks[i]);
        cr_assert_eq(asked.bufs, peers * DP_BUDGET, "%d ranks: %u buffers", ranks[i],
                     asked.bufs);
        cr_assert_geq(asked.bufs, peers * BNY_DGRAM_WINDOW,
                      "%d ranks: a peer's first credit is not covered", ranks[i]);
    }
}

Test(dpdk_open, a_refusal_is_told)
{
    cr_assert_eq(create(40), -BANYAN_ENOTSUP);
    cr_assert(strstr(banyan_last_error(), "rank 0: no memory, says the driver"), "%s",
              banyan_last_error());
}
