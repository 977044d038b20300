/* SPDX-License-Identifier: BSD-3-Clause */
/* Transport dpdk: reliable datagrams (transport/datagram/) over the driver of dpdk_load.c. */
#include "transport/datagram/dgram.h"

static int dpdk_create(struct bny_tp **out, const struct bny_tp_config *cfg)
{
    return bny_dgram_create(out, cfg, &bny_dpdk_ops, bny_dpdk_driver, bny_dpdk_settings);
}

const struct bny_transport_ops bny_dpdk_ops = {
    .name = "dpdk",
    .create = dpdk_create,
    BNY_DGRAM_TABLE,
};
