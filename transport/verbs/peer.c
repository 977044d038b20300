/* SPDX-License-Identifier: BSD-3-Clause */
/* A peer's memory: our slabs. All of it is pinned, so huge pages cost nothing more, and make
 * registration and the device's translations cheaper. A child process does not inherit it: with
 * older kernels the device would miss our pages after a copy-on-write (the child has no use for
 * them, and may not call us). */
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "transport/verbs/lane.h"

#define LARGE_PAGE ((size_t)2 << 20)

static size_t mapped(const struct vb_slab *s)
{
    return (2 * (size_t)s->bytes + 65535) / 65536 * 65536; /* for any page size */
}

/* Maps at the start of a huge page. NULL: no memory. */
static char *map_slabs(size_t bytes)
{
    size_t before;
    char *at = mmap(NULL, bytes + LARGE_PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        return NULL;
    before = -(uintptr_t)at % LARGE_PAGE;
    if (before)
        munmap(at, before);
    at += before;
    munmap(at + bytes, LARGE_PAGE - before);
    madvise(at, bytes, MADV_HUGEPAGE); /* if the machine's owner allows it */
    madvise(at, bytes, MADV_DONTFORK);
    return at;
}

struct vb_peer *bny_verbs_peer_new(struct vb_lane *first)
{
    struct vb_peer *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->t = first->t;
    p->first = first;
    p->shape = p->t->slab;
    for (uint32_t i = 0; i < VB_EAGER_SLOTS; i++)
        p->order_out[i] = p->order_in[i] = (uint8_t)i;
    for (uint32_t i = 0; i < VB_EAGER_TELLS; i++)
        p->tell_at[i] = UINT32_MAX - VB_EAGER_SLOTS; /* taken long ago */
    p->slab = map_slabs(mapped(&p->shape));
    if (p->slab)
        return p;
    free(p);
    return NULL;
}

static void count_pinned(struct vb_peer *p, const struct ibv_mr *mr, int more)
{
    uint64_t n = mr ? p->shape.bytes : 0;

    bny_counter_add(&p->t->tp.pinned_bytes, more ? n : -n);
}

int bny_verbs_peer_register(struct vb_peer *p, const struct vb_fn *fn,
                            const struct vb_rail *rail)
{
    int i = rail->index;

    if (!p->mr_in[i]) {
        p->mr_in[i] = bny_verbs_register(p->t, rail, p->slab, p->shape.bytes);
        count_pinned(p, p->mr_in[i], 1);
    }
    if (p->mr_in[i] && !p->mr_out[i]) {
        p->mr_out[i] = fn->ibv_reg_mr(rail->pd, p->slab + p->shape.bytes, p->shape.bytes,
                                      IBV_ACCESS_LOCAL_WRITE);
        count_pinned(p, p->mr_out[i], 1);
    }
    return p->mr_out[i] ? 0 : -1;
}

void bny_verbs_peer_deregister(struct vb_peer *p, const struct vb_fn *fn)
{
    for (uint32_t i = 0; i < VB_RAILS; i++) {
        count_pinned(p, p->mr_in[i], 0);
        count_pinned(p, p->mr_out[i], 0);
        if (p->mr_in[i])
            fn->ibv_dereg_mr(p->mr_in[i]);
        if (p->mr_out[i])
            fn->ibv_dereg_mr(p->mr_out[i]);
        p->mr_in[i] = p->mr_out[i] = NULL;
    }
}

void bny_verbs_peer_free(struct vb_peer *p)
{
    munmap(p->slab, mapped(&p->shape));
    free(p->waiting);
    free(p->further);
    free(p);
}

void bny_verbs_free_order(uint8_t *order, uint32_t slots, uint32_t freed, uint32_t skip,
                          uint32_t n)
{
    uint8_t held[VB_EAGER_SLOTS];

    if (!skip) /* they are in place already */
        return;
    for (uint32_t i = 0; i < skip; i++)
        held[i] = order[(freed + i) & (slots - 1)];
    for (uint32_t i = 0; i < n; i++)
        order[(freed + i) & (slots - 1)] = order[(freed + skip + i) & (slots - 1)];
    for (uint32_t i = 0; i < skip; i++)
        order[(freed + n + i) & (slots - 1)] = held[i];
}
