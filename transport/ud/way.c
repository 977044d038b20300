/* SPDX-License-Identifier: BSD-3-Clause */
/* Addresses of ranks, and an address handle for each, made for the first frame. Making one may
 * ask the kernel for a hardware address, and fail for a while. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "transport/ud/ud.h"

int bny_ud_address(struct bny_dgram_port *p, void *out, size_t cap)
{
    if (cap < sizeof p->addr)
        return -1;
    memcpy(out, &p->addr, sizeof p->addr);
    return (int)sizeof p->addr;
}

static int way_parse(const void *from, size_t len, struct ud_addr *a)
{
    if (len != sizeof *a)
        return -1;
    memcpy(a, from, len);
    return !memcmp(a->magic, "ud01", 4) && a->srd <= 1 && a->ngids > 0 && a->ngids <= VB_GIDS &&
                   a->qpn > 0 && a->qpn <= 0xffffff
               ? 0
               : -1;
}

/* Two limited members of a partition cannot communicate. */
static int same_partition(uint16_t a, uint16_t b)
{
    return !((a ^ b) & 0x7fff) && ((a | b) & 0x8000);
}

int bny_ud_reaches(struct bny_dgram_port *p, const void *addr, size_t len)
{
    struct ud_addr a;
    int mine, other;

    return way_parse(addr, len, &a) == 0 && a.srd == p->srd &&
           same_partition(a.pkey, p->rail.port.pkey) &&
           bny_verbs_port_pair(&p->rail, a.gids, a.ngids, &mine, &other);
}

int bny_ud_peer(struct bny_dgram_port *p, int rank, const void *addr, size_t len, char *text)
{
    struct ud_addr a;

    if (rank < 0 || rank >= p->nranks || p->ways[rank].addr || way_parse(addr, len, &a) != 0) {
        snprintf(text, BNY_DGRAM_TEXT, "its address is none of transport ud");
        return -1;
    }
    p->ways[rank].addr = malloc(sizeof a);
    if (!p->ways[rank].addr) {
        snprintf(text, BNY_DGRAM_TEXT, "no memory");
        return -1;
    }
    *p->ways[rank].addr = a;
    return 0;
}

static void way_make(struct bny_dgram_port *p, struct ud_way *w)
{
    const struct ud_addr *to = w->addr;
    const struct vb_path *path = &p->vt.path;
    const struct vb_gid *mine, *other;
    struct ibv_ah_attr ah;
    int i = 0, k = 0;

    bny_verbs_port_pair(&p->rail, to->gids, to->ngids, &i, &k);
    mine = &p->rail.port.gids[i];
    other = &to->gids[k];
    memset(&ah, 0, sizeof ah);
    ah.port_num = (uint8_t)p->number;
    ah.sl = (uint8_t)(path->sl >= 0 ? path->sl : 0);
    if (mine->type == IBV_GID_TYPE_IB)
        ah.dlid = to->lid;
    /* InfiniBand uses LIDs within a subnet; RoCE and EFA have none. */
    ah.is_global =
        mine->type != IBV_GID_TYPE_IB || !to->lid || memcmp(mine->raw, other->raw, 8) != 0;
    if (ah.is_global) {
        memcpy(ah.grh.dgid.raw, other->raw, sizeof other->raw);
        ah.grh.sgid_index = (uint8_t)mine->index;
        ah.grh.hop_limit = 255;
        ah.grh.traffic_class = (uint8_t)(path->tc >= 0         ? path->tc
                                         : p->rail.port.tc > 0 ? p->rail.port.tc
                                                               : 0);
    }
    errno = 0;
    w->ah = p->fn->ibv_create_ah(p->rail.pd, &ah);
    w->err = w->ah ? 0 : errno ? errno : EIO;
    w->tried_ns = bny_now_ns();
}

struct ud_way *bny_ud_way(struct bny_dgram_port *p, uint32_t rank)
{
    struct ud_way *w = rank < (uint32_t)p->nranks ? &p->ways[rank] : NULL;

    if (!w || !w->addr)
        return NULL;
    if (!w->ah && (!w->err || bny_now_ns() - w->tried_ns >= UD_AGAIN_NS))
        way_make(p, w);
    return w->ah ? w : NULL;
}

int bny_ud_way_state(struct bny_dgram_port *p, int rank, char *text)
{
    const struct ud_way *w = &p->ways[rank];

    if (p->dead) {
        snprintf(text, BNY_DGRAM_TEXT, "device %s accepts nothing any more; see dmesg",
                 p->rail.at);
        return -2;
    }
    if (!w->err)
        return 0;
    snprintf(text, BNY_DGRAM_TEXT, "device %s finds no route there (%s): %s", p->rail.at,
             strerror(w->err),
             w->err == ETIMEDOUT || w->err == EHOSTUNREACH
                 ? "its hardware address is not resolved: ping it, check its VLAN"
                 : "check show_gids, BANYAN_VERBS=gid_index and dmesg");
    return -1;
}

void bny_ud_ways_forget(struct bny_dgram_port *p)
{
    for (int r = 0; r < p->nranks; r++) {
        struct ud_old *o = p->ways[r].ah ? malloc(sizeof *o) : NULL;

        p->ways[r].err = 0;
        if (!o) /* without memory it stays as it is */
            continue;
        *o = (struct ud_old){ .next = p->olds, .ah = p->ways[r].ah };
        p->olds = o;
        p->ways[r].ah = NULL;
    }
}

void bny_ud_ways_sweep(struct bny_dgram_port *p)
{
    while (p->olds) {
        struct ud_old *o = p->olds;

        p->olds = o->next;
        p->fn->ibv_destroy_ah(o->ah);
        free(o);
    }
}

void bny_ud_ways_close(struct bny_dgram_port *p)
{
    bny_ud_ways_sweep(p);
    for (int r = 0; r < p->nranks && p->ways; r++) {
        if (p->ways[r].ah)
            p->fn->ibv_destroy_ah(p->ways[r].ah);
        free(p->ways[r].addr);
    }
    free(p->ways);
}
