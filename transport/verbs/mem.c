/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of the user: registered regions, and windows onto them. Nothing is registered behind
 * the user's back: no cache, no hooks into malloc. What is not registered travels through
 * slabs, with one copy. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "transport/verbs/lane.h"

const struct vb_region *bny_verbs_region(struct vb_tp *t, const void *at, size_t bytes)
{
    const char *p = at;

    for (struct vb_region *r = t->regions; r; r = r->next)
        if (p >= r->at && bytes <= r->bytes && (size_t)(p - r->at) <= r->bytes - bytes)
            return r;
    return NULL;
}

/* Why a device does not register so many bytes. */
static int not_registered(const struct vb_tp *t, const struct vb_rail *rail, const void *at,
                          size_t bytes, int err)
{
    struct ibv_device_attr a;

    if (t->fn->ibv_query_device(rail->ctx, &a) == 0 && a.max_mr_size && bytes > a.max_mr_size)
        return bny_fail(
            BANYAN_ENOTSUP,
            "rank %d: device %s registers %llu bytes at once at most (max_mr_size of "
            "ibv_devinfo -v), and %zu at %p are more: register it in parts",
            t->tp.rank, rail->device, (unsigned long long)a.max_mr_size, bytes, at);
    return bny_fail(err == ENOMEM ? BANYAN_ENOMEM : BANYAN_ESYSTEM,
                    "rank %d: device %s does not register %zu bytes at %p: %s%s", t->tp.rank,
                    rail->device, bytes, at, strerror(err),
                    err == ENOMEM ? "; raise the limit of locked memory (ulimit -l unlimited)"
                                  : "");
}

/* Relaxed ordering: the device's writes may overtake each other on their way through PCIe, and
 * a completion is not seen before all of them (ibv_reg_mr(3)). Nobody here looks at what a
 * write brings before its completion, and no word is polled. */
struct ibv_mr *bny_verbs_register(const struct vb_tp *t, const struct vb_rail *rail, void *at,
                                  size_t bytes)
{
    const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr;

    if (!t->relaxed)
        return t->fn->ibv_reg_mr(rail->pd, at, bytes, (int)access);
    mr = t->fn->reg_mr_iova2(rail->pd, at, bytes, (uintptr_t)at,
                             access | IBV_ACCESS_RELAXED_ORDERING);
    /* kernels leave out what a device has not; for one that refuses */
    return mr || (errno != EINVAL && errno != EOPNOTSUPP)
               ? mr
               : t->fn->ibv_reg_mr(rail->pd, at, bytes, (int)access);
}

static void region_free(struct vb_tp *t, struct vb_region *r)
{
    for (int i = 0; i < t->nrails; i++)
        if (r->mr[i])
            t->fn->ibv_dereg_mr(r->mr[i]);
    free(r);
}

int bny_verbs_attach(struct bny_tp *tp, void *at, size_t bytes)
{
    struct vb_tp *t = (struct vb_tp *)tp;
    struct vb_region *r = calloc(1, sizeof *r);

    if (!r)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory to register a region", tp->rank);
    for (int i = 0; i < t->nrails; i++) {
        r->mr[i] = bny_verbs_register(t, &t->rails[i], at, bytes);
        if (!r->mr[i] && t->rails[i].down)
            t->rails[i].down = 2; /* for good: no lane may come back to it */
        if (!r->mr[i] && !t->rails[i].down) {
            int err = errno;

            region_free(t, r);
            return not_registered(t, &t->rails[i], at, bytes, err);
        }
    }
    r->at = at;
    r->bytes = bytes;
    r->next = t->regions;
    t->regions = r;
    return 0;
}

int bny_verbs_detach(struct bny_tp *tp, void *at)
{
    struct vb_tp *t = (struct vb_tp *)tp;

    for (struct vb_region **p = &t->regions; *p; p = &(*p)->next)
        if ((*p)->at == at) {
            struct vb_region *r = *p;

            *p = r->next;
            region_free(t, r);
            return 0;
        }
    return bny_fail(BANYAN_EINVAL, "rank %d: %p is not registered with device %s", tp->rank, at,
                    t->rails[0].device);
}

void bny_verbs_regions_free(struct vb_tp *t)
{
    while (t->regions) {
        struct vb_region *r = t->regions;

        t->regions = r->next;
        region_free(t, r);
    }
}

int bny_verbs_window_open(struct bny_ep *ep, void *addr, size_t bytes, struct bny_window *out)
{
    struct vb_tp *t = (struct vb_tp *)ep->tp;
    const struct vb_region *r = bny_verbs_region(t, addr, bytes);
    uint64_t keys[VB_RAILS] = { 0 };

    if (!r)
        return -BANYAN_ENOTSUP;
    for (int i = 0; i < t->nrails; i++)
        keys[i] = r->mr[i] ? r->mr[i]->rkey : 0;
    /* as struct vb_keys: where there is one rail, offset is 0 */
    *out = (struct bny_window){ .addr = (uintptr_t)addr,
                                .bytes = bytes,
                                .key = keys[0] | keys[1] << 32,
                                .offset = keys[2] | keys[3] << 32 };
    ((struct vb_ep *)ep)->windows++;
    return 0;
}

/* The key stays valid as long as the region is registered. After an operation that ended well
 * nothing is under way: every put was announced by a message, and all of them have come. After
 * one that failed the caller fences. */
int bny_verbs_window_close(struct bny_ep *ep, struct bny_window *win)
{
    ((struct vb_ep *)ep)->windows--;
    return 0;
}
