/* SPDX-License-Identifier: BSD-3-Clause */
/* The driver's table, and settings of transport ud. */
#include <string.h>
#include <sys/mman.h>

#include "base/param.h"
#include "transport/datagram/dgram.h"
#include "transport/ud/ud.h"

#define HEADER 4096u /* a page before memory of alloc() has its length */

static int table_start(const char *args, const char *device, int loud, char *text)
{
    return 0;
}

static void ref_init(struct bny_dgram_ref *ref)
{
    memset(ref, 0, sizeof *ref);
}

static int ref_busy(const struct bny_dgram_ref *ref)
{
    return ref->opaque[0] != 0;
}

/* Plain pages, which take no memory before use. The port reads those registered with map(). */
static void *alloc(size_t bytes)
{
    uint8_t *at =
        mmap(NULL, bytes + HEADER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    memcpy(at, &bytes, sizeof bytes);
    return at + HEADER;
}

static void table_release(void *mem)
{
    uint8_t *at = (uint8_t *)mem - HEADER;
    size_t bytes;

    memcpy(&bytes, at, sizeof bytes);
    munmap(at, bytes + HEADER);
}

static int owns(const void *mem, size_t bytes)
{
    return 0;
}

static uint64_t missed(struct bny_dgram_port *port)
{
    return port->missed;
}

static uint32_t mbps(struct bny_dgram_port *port)
{
    return 0;
}

const struct bny_dgram_driver *bny_ud_driver(void)
{
    static const struct bny_dgram_driver table = {
        .version = BNY_DGRAM_DRIVER_VERSION,
        .start = table_start,
        .open = bny_ud_open,
        .close = bny_ud_close,
        .link_up = bny_ud_link_up,
        .tx = bny_ud_tx,
        .rx = bny_ud_rx,
        .free = bny_ud_free,
        .reclaim = bny_ud_reclaim,
        .flush = bny_ud_restart,
        .ref_init = ref_init,
        .ref_busy = ref_busy,
        .alloc = alloc,
        .release = table_release,
        .owns = owns,
        .map = bny_ud_map,
        .unmap = bny_ud_unmap,
        .page = 1,
        .missed = missed,
        .mbps = mbps,
        .arm = bny_ud_arm,
        .disarm = bny_ud_disarm,
        .address = bny_ud_address,
        .reaches = bny_ud_reaches,
        .peer = bny_ud_peer,
        .way = bny_ud_way_state,
    };

    return &table;
}

/* ---- the transport ---- */

static int ud_create(struct bny_tp **out, const struct bny_tp_config *cfg)
{
    return bny_dgram_create(out, cfg, &bny_ud_ops, bny_ud_driver, bny_ud_settings);
}

const struct bny_transport_ops bny_ud_ops = {
    .name = "ud",
    .create = ud_create,
    BNY_DGRAM_TABLE,
};
