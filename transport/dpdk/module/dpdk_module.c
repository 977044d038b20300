/* SPDX-License-Identifier: BSD-3-Clause */
/* The table that the library finds in libbanyan-dpdk.so. */
#include <pthread.h>

#include "transport/dpdk/module/dpdk_module.h"

/* Ranks that are threads may call at the same time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int dpdk_module_start(const char *args, const char *device, int loud, char *text)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = bny_eal_start(args, device, loud, text);
    pthread_mutex_unlock(&lock);
    return rc;
}

static int open_port(const struct bny_dgram_conf *conf, struct bny_dgram_port **out,
                     struct bny_dgram_info *info, char *text)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = bny_port_open(conf, out, info, text);
    pthread_mutex_unlock(&lock);
    return rc;
}

static void close_port(struct bny_dgram_port *port)
{
    pthread_mutex_lock(&lock);
    bny_port_close(port);
    pthread_mutex_unlock(&lock);
}

static int map(struct bny_dgram_port *port, void *mem, size_t bytes, char *text)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = bny_port_map(port, mem, bytes, text);
    pthread_mutex_unlock(&lock);
    return rc;
}

static void unmap(struct bny_dgram_port *port, void *mem, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bny_port_unmap(port, mem, bytes);
    pthread_mutex_unlock(&lock);
}

static const struct bny_dgram_driver table = {
    .version = BNY_DGRAM_DRIVER_VERSION,
    .start = dpdk_module_start,
    .open = open_port,
    .close = close_port,
    .link_up = bny_port_link_up,
    .tx = bny_io_tx,
    .rx = bny_io_rx,
    .free = bny_io_free,
    .reclaim = bny_io_reclaim,
    .flush = bny_queues_flush,
    .ref_init = bny_io_ref_init,
    .ref_busy = bny_io_ref_busy,
    .alloc = bny_eal_alloc,
    .release = bny_eal_release,
    .owns = bny_eal_owns,
    .map = map,
    .unmap = unmap,
    .page = 4096,
    .missed = bny_port_missed,
    .mbps = bny_port_mbps,
    .way = bny_events_way,
};

bny_dgram_driver_fn bny_dpdk_module;
__attribute__((visibility("default"))) const struct bny_dgram_driver *bny_dpdk_module(void)
{
    return &table;
}
