/* SPDX-License-Identifier: BSD-3-Clause */
/* User memory: registered regions, and windows onto them. Only the cache, if enabled, registers
 * memory without a user's call (cache.h); malloc is never hooked. Unregistered memory travels
 * through slabs, with one copy. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "transport/verbs/cache.h"
#include "transport/verbs/lane.h"

#define CUT_S 0.8 /* time for a peer to confirm that it puts nothing more */
_Static_assert(VB_WINDOWS % 32 == 0 && !(VB_WINDOWS & (VB_WINDOWS - 1)),
               "bits, and a window is number and generation");

const struct vb_region *bny_verbs_listed(const struct vb_tp *t, const void *at, size_t bytes)
{
    const char *p = at;

    for (const struct vb_region *r = t->regions; r; r = r->next)
        if (p >= r->at && bytes <= r->bytes && (size_t)(p - r->at) <= r->bytes - bytes)
            return r;
    return NULL;
}

const struct vb_region *bny_verbs_region(const struct vb_tp *t, const void *at, size_t bytes)
{
    const struct vb_region *r = bny_verbs_listed(t, at, bytes);

    return r || !t->cache ? r : bny_verbs_cached(t, at, bytes);
}

const struct vb_region *bny_verbs_region_before(const struct vb_tp *t, const void *at,
                                                size_t bytes)
{
    const struct vb_region *r = bny_verbs_listed(t, at, bytes);

    return r || !t->cache ? r : bny_verbs_cached_before(t, at, bytes);
}

/* Why a device cannot register so many bytes. */
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

/* Relaxed ordering: the device's writes may overtake each other in PCIe, and a completion is
 * not visible before all of them (ibv_reg_mr(3)). Nothing here reads written data before its
 * completion, and no word is polled. */
struct ibv_mr *bny_verbs_register(const struct vb_tp *t, const struct vb_rail *rail, void *at,
                                  size_t bytes)
{
    const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr;

    if (!t->relaxed)
        return t->fn->ibv_reg_mr(rail->pd, at, bytes, (int)access);
    mr = t->fn->reg_mr_iova2(rail->pd, at, bytes, (uintptr_t)at,
                             access | IBV_ACCESS_RELAXED_ORDERING);
    /* kernels ignore flags that the device lacks; for one that refuses them */
    return mr || (errno != EINVAL && errno != EOPNOTSUPP)
               ? mr
               : t->fn->ibv_reg_mr(rail->pd, at, bytes, (int)access);
}

void bny_verbs_region_unmake(const struct vb_tp *t, struct vb_region *r)
{
    for (int i = 0; i < t->nrails; i++)
        if (r->mr[i])
            t->fn->ibv_dereg_mr(r->mr[i]);
}

/* The lowest unused region number; VB_FURTHER: all are used. */
static uint32_t free_number(const struct vb_tp *t)
{
    uint32_t taken[VB_FURTHER / 32] = { 0 }, n = 0;

    for (const struct vb_region *r = t->regions; r; r = r->next)
        if (r->number < VB_FURTHER)
            taken[r->number / 32] |= 1u << r->number % 32;
    while (n < VB_FURTHER && taken[n / 32] >> n % 32 & 1)
        n++;
    return n;
}

int bny_verbs_region_make(struct vb_tp *t, struct vb_region *r, void *at, size_t bytes)
{
    for (int i = 0; i < t->nrails; i++) {
        r->mr[i] = bny_verbs_register(t, &t->rails[i], at, bytes);
        if (!r->mr[i] && t->rails[i].down)
            t->rails[i].down = 2; /* for good: no lane may return to it */
        if (!r->mr[i] && !t->rails[i].down) {
            int err = errno;

            bny_verbs_region_unmake(t, r);
            return not_registered(t, &t->rails[i], at, bytes, err);
        }
    }
    r->at = at;
    r->bytes = bytes;
    return 0;
}

int bny_verbs_region_add(struct vb_tp *t, struct vb_region *r, void *at, size_t bytes)
{
    int rc = bny_verbs_region_make(t, r, at, bytes);

    if (rc)
        return rc;
    r->next = t->regions;
    t->regions = r;
    return 0;
}

void bny_verbs_region_end(struct vb_tp *t, struct vb_region *r)
{
    struct vb_region **p = &t->regions;

    while (*p != r)
        p = &(*p)->next;
    *p = r->next;
    bny_verbs_region_unmake(t, r);
}

int bny_verbs_attach(struct bny_tp *tp, void *at, size_t bytes)
{
    struct vb_tp *t = (struct vb_tp *)tp;
    struct vb_region *r = calloc(1, sizeof *r);
    int rc;

    if (!r)
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory to register a region", tp->rank);
    r->number = (uint32_t)t->nrails > VB_WINDOW_KEYS ? free_number(t) : VB_FURTHER;
    rc = bny_verbs_region_add(t, r, at, bytes);
    if (rc)
        free(r);
    return rc;
}

/* The next region with its number has its own keys. */
static void forget_keys(struct vb_tp *t, const struct vb_region *r)
{
    for (int p = 0; r->number < VB_FURTHER && p < t->tp.nranks; p++)
        if (t->eps[p])
            t->eps[p]->told_keys[r->number / 32] &= ~(1u << r->number % 32);
}

int bny_verbs_detach(struct bny_tp *tp, void *at)
{
    struct vb_tp *t = (struct vb_tp *)tp;

    for (struct vb_region *r = t->regions; r; r = r->next)
        if (r->at == at && !r->ours) {
            forget_keys(t, r);
            bny_verbs_region_end(t, r);
            free(r);
            return 0;
        }
    return bny_fail(BANYAN_EINVAL, "rank %d: %p is not registered with device %s", tp->rank, at,
                    t->rails[0].device);
}

void bny_verbs_regions_free(struct vb_tp *t)
{
    while (t->regions) {
        struct vb_region *r = t->regions;

        bny_verbs_region_end(t, r);
        free(r);
    }
}

static int tell_keys(struct vb_ep *e, const struct vb_region *r)
{
    struct vb_further f = { .region = r->number };

    for (uint32_t i = VB_WINDOW_KEYS; i < VB_RAILS; i++)
        f.key[i - VB_WINDOW_KEYS] = r->mr[i] ? r->mr[i]->rkey : 0;
    return bny_verbs_tell_ahead(e->conn, VB_IMM_KEYS, &f, sizeof f);
}

#define OWED_MAX 4 /* regions whose keys are sent when a connection opens */

static int owed(const struct vb_ep *e)
{
    int n = 0;

    for (uint32_t i = 0; i < VB_FURTHER / 32; i++)
        n += __builtin_popcount(e->told_keys[i]);
    return n;
}

/* Sends keys that do not fit in the window ahead of it, in order with all that follows. Returns
 * 0, or BNY_AGAIN: not now. */
static int tell_first(struct vb_ep *e, const struct vb_region *r)
{
    uint32_t *told = &e->told_keys[r->number / 32], bit = 1u << r->number % 32;

    if (*told & bit)
        return 0;
    if (!e->conn && owed(e) == OWED_MAX)
        return BNY_AGAIN;
    if (e->conn && (e->state != VB_OPEN || tell_keys(e, r) != 0))
        return BNY_AGAIN;
    *told |= bit;
    return 0;
}

void bny_verbs_tell_owed(struct vb_ep *e)
{
    for (const struct vb_region *r = ((struct vb_tp *)e->ep.tp)->regions; r; r = r->next)
        if (r->number < VB_FURTHER && e->told_keys[r->number / 32] >> r->number % 32 & 1)
            tell_keys(e, r); /* the shortest queues have room for OWED_MAX */
}

/* As struct vb_keys: with one rail offset is 0. */
void bny_verbs_region_keys(const struct vb_region *r, struct bny_window *out)
{
    uint64_t keys[VB_WINDOW_KEYS];

    for (uint32_t i = 0; i < VB_WINDOW_KEYS; i++)
        keys[i] = r->mr[i] ? r->mr[i]->rkey : 0;
    out->key = keys[0] | keys[1] << 32;
    out->offset = keys[2] | keys[3] << 32;
}

static int mem_has(const uint32_t *bits, uint32_t n)
{
    return bits[n / 32] >> n % 32 & 1;
}

static void mem_put(uint32_t *bits, uint32_t n, int on)
{
    bits[n / 32] = (bits[n / 32] & ~(1u << n % 32)) | (uint32_t)on << n % 32;
}

/* VB_WINDOWS: all are open. */
static uint32_t free_window(const struct vb_windows *w)
{
    for (uint32_t i = 0; i < VB_WINDOWS / 32; i++)
        if (~w->open[i])
            return i * 32 + (uint32_t)__builtin_ctz(~w->open[i]);
    return VB_WINDOWS;
}

int bny_verbs_window_open(struct bny_ep *ep, void *addr, size_t bytes, struct bny_window *out)
{
    struct vb_tp *t = (struct vb_tp *)ep->tp;
    const struct vb_region *r = bny_verbs_region(t, addr, bytes);
    struct vb_windows *w = &((struct vb_ep *)ep)->windows;
    uint32_t n = free_window(w);
    int further;

    if (!r || n == VB_WINDOWS)
        return -BANYAN_ENOTSUP; /* the operation sends messages instead of puts */
    further = (uint32_t)((struct vb_ep *)ep)->nrails > VB_WINDOW_KEYS;
    if (further && (r->number == VB_FURTHER || tell_first((struct vb_ep *)ep, r) != 0))
        return -BANYAN_ENOTSUP;
    mem_put(w->open, n, 1);
    *out = (struct bny_window){ .addr = (uintptr_t)addr,
                                .bytes = bytes,
                                .segment = further ? r->number + 1 : 0,
                                .slot = n + w->generation[n] * VB_WINDOWS };
    bny_verbs_region_keys(r, out);
    bny_verbs_cache_hold(t, r);
    return 0;
}

static uint32_t number_of(const struct bny_window *win)
{
    return win->slot % VB_WINDOWS;
}

/* The key stays valid while the region is registered. After a successful operation nothing is
 * in flight: a message announced every put, and all have come. After a failed one the caller
 * fences. */
int bny_verbs_window_close(struct bny_ep *ep, struct bny_window *win)
{
    struct vb_ep *e = (struct vb_ep *)ep;
    struct vb_windows *w = &e->windows;
    uint32_t n = number_of(win);

    if (mem_has(w->closing, n) && !mem_has(w->closed, n) && e->conn && !e->conn->dead)
        return BNY_AGAIN;
    w->generation[n] += (uint32_t)mem_has(w->closing, n);
    mem_put(w->open, n, 0);
    mem_put(w->closing, n, 0);
    mem_put(w->asked, n, 0);
    mem_put(w->closed, n, 0);
    bny_verbs_cache_let((struct vb_tp *)ep->tp, win);
    return 0;
}

/* ---- windows of failed operations ---- */

/* A single key of a region cannot be revoked, so the peer is asked to stop its puts. If it does
 * not answer, the end of the queue pair keeps it out, before the operation releases its memory
 * (CLOSE_NS of collectives/engine/open.c). */
void bny_verbs_fence(struct bny_ep *ep, const struct bny_window *win)
{
    struct vb_ep *e = (struct vb_ep *)ep;
    struct vb_windows *w = &e->windows;
    uint32_t n = number_of(win);
    struct vb_closing ask = { .window = win->slot };

    if (!e->conn || e->conn->dead)
        return;
    if (!mem_has(w->closing, n))
        w->cut_ns[n] = bny_deadline_in(CUT_S);
    mem_put(w->closing, n, 1);
    if (e->left) /* its farewell follows all its puts */
        mem_put(w->closed, n, 1);
    if (!mem_has(w->asked, n) && e->state == VB_OPEN &&
        bny_verbs_tell_ahead(e->conn, VB_IMM_CLOSE, &ask, sizeof ask) == 0)
        mem_put(w->asked, n, 1);
    if (!mem_has(w->closed, n) && bny_deadline_passed(w->cut_ns[n]))
        bny_verbs_down(e,
                       "was cut off after a failed operation, so that it writes nothing more: "
                       "it has not answered for %.1f s",
                       CUT_S);
}

int bny_verbs_window_is_open(const struct vb_ep *e, const struct bny_window *win)
{
    uint32_t ahead = win->slot / VB_WINDOWS - e->windows.shut[number_of(win)];

    return ahead % (UINT32_MAX / VB_WINDOWS + 1) <= UINT32_MAX / VB_WINDOWS / 2;
}

void bny_verbs_answer_closing(struct vb_ep *e)
{
    struct vb_windows *w = &e->windows;

    for (uint32_t n = 0; n < VB_WINDOWS && w->nanswers && e->state == VB_OPEN; n++) {
        struct vb_closing c = { .window = n + (w->shut[n] - 1) * VB_WINDOWS, .answer = 1 };

        if (!mem_has(w->answers_due, n))
            continue;
        if (bny_verbs_tell_ahead(e->conn, VB_IMM_CLOSE, &c, sizeof c) != 0)
            return;
        mem_put(w->answers_due, n, 0);
        w->nanswers--;
    }
}

void bny_verbs_closing_arrived(struct vb_ep *e, const struct vb_closing *c)
{
    struct vb_windows *w = &e->windows;
    uint32_t n = c->window % VB_WINDOWS, generation = c->window / VB_WINDOWS;

    if (!c->answer) {
        w->shut[n] = generation + 1;
        w->nanswers += !mem_has(w->answers_due, n);
        mem_put(w->answers_due, n, 1);
    } else if (mem_has(w->asked, n) &&
               w->generation[n] % (UINT32_MAX / VB_WINDOWS + 1) == generation) {
        mem_put(w->closed, n, 1);
    } else {
        bny_verbs_down(e, "answers about window %u, which is not closed", n);
    }
}
