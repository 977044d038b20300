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
static char asked_link[64];

static int start(const char *args, const char *device, int loud, char *text)
{
    return 0;
}

static int refuse(const struct bny_dgram_conf *conf, struct bny_dgram_port **out,
                  struct bny_dgram_info *info, char *text)
{
    asked = *conf;
    snprintf(asked_link, sizeof asked_link, "%s", conf->link ? conf->link : "");
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

/* The name of a pair's socket, as one end of it asks for it. */
static void link_of(int rank, struct bny_tp *tp[2], char *name, size_t cap)
{
    uint8_t blob[BNY_ADDR_MAX];
    int len = bny_dpdk_ops.address(tp[!rank], blob, sizeof blob);
    struct bny_ep *ep;

    cr_assert_gt(len, 0);
    cr_assert_eq(bny_dpdk_ops.connect(tp[rank], !rank, blob, (size_t)len, &ep),
                 -BANYAN_ESYSTEM);
    snprintf(name, cap, "%s", asked_link);
}

/* Who sees the sockets of other pairs in /proc/net/unix must not know what this pair's will be
 * called: whoever has the name first gets the client's memory. */
Test(dpdk_open, only_the_secret_tells_a_pairs_socket)
{
    static const uint8_t secrets[2][32] = { "secret", "another" };
    char name[2][2][64]; /* of a secret, by an end */

    setenv("BANYAN_DPDK_PORT", "memif", 1);
    bny_dpdk_driver_set(&pretended);
    for (int k = 0; k < 2; k++) {
        struct bny_tp *tp[2];

        for (int r = 0; r < 2; r++) {
            struct bny_tp_config cfg = {
                .rank = r, .nranks = 2, .secret = secrets[k], .ifname = "", .port_range = ""
            };

            cr_assert_eq(bny_dpdk_ops.create(&tp[r], &cfg), 0, "%s", banyan_last_error());
            ((struct dp_tp *)tp[r])->blob.nonce = 0xabcdef0102030405u;
        }
        for (int r = 0; r < 2; r++)
            link_of(r, tp, name[k][r], sizeof name[k][r]);
        for (int r = 0; r < 2; r++)
            bny_dpdk_ops.destroy(tp[r]);
        cr_assert_str_eq(name[k][0], name[k][1]);
    }
    cr_assert_str_neq(name[0][0], name[1][0], "the nonces alone tell it");
    bny_dpdk_driver_set(NULL);
}

Test(dpdk_open, a_refusal_is_told)
{
    cr_assert_eq(create(40), -BANYAN_ENOTSUP);
    cr_assert(strstr(banyan_last_error(), "rank 0: no memory, says the driver"), "%s",
              banyan_last_error());
}
