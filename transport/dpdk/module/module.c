/* SPDX-License-Identifier: BSD-3-Clause */
/* The table that the library finds in libbanyan-dpdk.so. */
#include "transport/dpdk/module/module.h"

static const struct bny_dpdk_driver table = {
    .version = BNY_DPDK_DRIVER_VERSION,
    .start = bny_eal_start,
    .open = bny_port_open,
    .close = bny_port_close,
    .link_up = bny_port_link_up,
    .tx = bny_io_tx,
    .rx = bny_io_rx,
    .free = bny_io_free,
    .reclaim = bny_io_reclaim,
    .ref_init = bny_io_ref_init,
    .ref_busy = bny_io_ref_busy,
    .alloc = bny_eal_alloc,
    .release = bny_eal_release,
    .owns = bny_eal_owns,
    .missed = bny_port_missed,
};

bny_dpdk_driver_fn bny_dpdk_module;
__attribute__((visibility("default"))) const struct bny_dpdk_driver *bny_dpdk_module(void)
{
    return &table;
}
