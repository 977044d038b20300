/* SPDX-License-Identifier: BSD-3-Clause */
/* A bounded cache of registrations: cache.h. */
#include "transport/verbs/cache.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/verbs/lane.h"
#include "transport/verbs/watch.h"

#define REFUSED   8   /* ranges known to be unusable here */
#define FORGOTTEN 256 /* uses before one of them is tried again */

struct cached {
    struct vb_region region;
    uint64_t used;    /* turn of its latest use */
    int number;       /* of the watch */
    uint32_t windows; /* open ones */
    int changed;
};

struct vb_cache {
    struct vb_watch *watch; /* NULL: given up; nothing new is registered */
    struct cached *at[VB_CACHED];
    int n;
    size_t bytes, most, page;
    uint64_t turn;
    struct {
        uintptr_t start, end;
        uint64_t turn;
    } refused[REFUSED];
    int next_refused;
    uint64_t told; /* changes processed */
    int kept;      /* changed ones that are busy */
    uint64_t registered, hits, changed;
};

static int is_in(const struct cached *e, uintptr_t start, size_t bytes)
{
    uintptr_t at = (uintptr_t)e->region.at;

    return start >= at && bytes <= e->region.bytes && start - at <= e->region.bytes - bytes;
}

static int overlaps(const struct cached *e, uintptr_t start, size_t bytes)
{
    uintptr_t at = (uintptr_t)e->region.at;

    return start < at + e->region.bytes && at < start + bytes;
}

/* ---- leaving ---- */

static int lane_reads(const struct vb_lane *l, const struct cached *e)
{
    for (uint32_t k = l ? l->done : 0; l && k != l->posted; k++) {
        const struct vb_sent *s = &l->sent[k % VB_SENDS];

        for (int i = 0; i < s->nsge; i++)
            if (overlaps(e, s->sge[i].addr, s->sge[i].length))
                return 1;
    }
    return 0;
}

/* Do requests in flight read it, or windows write it? */
static int is_busy(const struct vb_tp *t, const struct cached *e)
{
    for (int r = 0; r < t->tp.nranks && !e->windows; r++) {
        const struct vb_ep *ep = t->eps[r];

        for (uint32_t k = 0; ep && k < VB_LANES; k++) {
            const struct vb_ep *lane = k ? ep->lanes[k] : ep;

            if (lane && lane_reads(lane->conn, e))
                return 1;
        }
    }
    return e->windows != 0;
}

static void cache_drop(struct vb_tp *t, int i)
{
    struct vb_cache *c = t->cache;
    struct cached *e = c->at[i];

    c->at[i] = c->at[--c->n];
    c->bytes -= e->region.bytes;
    if (c->watch)
        bny_verbs_unwatch(c->watch, e->number);
    bny_counter_add(&t->tp.pinned_bytes, -(uint64_t)e->region.bytes);
    bny_verbs_region_unmake(t, &e->region);
    free(e);
}

/* Drops the changed ones that are not busy. */
static void drop_changed(struct vb_tp *t)
{
    struct vb_cache *c = t->cache;

    uint64_t told = bny_verbs_watch_changes(c->watch);

    if (told == c->told && !c->kept)
        return;
    c->told = told;
    c->kept = 0;
    for (int i = c->n - 1; i >= 0; i--) {
        struct cached *e = c->at[i];

        if (!e->changed && bny_verbs_has_changed(c->watch, e->number)) {
            e->changed = 1;
            c->changed++;
        }
        if (e->changed && is_busy(t, e))
            c->kept++;
        else if (e->changed)
            cache_drop(t, i);
    }
}

/* Drops the least recently used one. 0: all are busy. */
static int drop_oldest(struct vb_tp *t)
{
    struct vb_cache *c = t->cache;
    int oldest = -1;

    for (int i = 0; i < c->n; i++)
        if ((oldest < 0 || c->at[i]->used < c->at[oldest]->used) && !is_busy(t, c->at[i]))
            oldest = i;
    if (oldest >= 0)
        cache_drop(t, oldest);
    return oldest >= 0;
}

static void drop_idle(struct vb_tp *t)
{
    for (int i = t->cache->n - 1; i >= 0; i--)
        if (!is_busy(t, t->cache->at[i]))
            cache_drop(t, i);
}

static void cache_give_up(struct vb_tp *t)
{
    struct vb_cache *c = t->cache;

    bny_warn(
        "rank %d: BANYAN_VERBS=cache: registered memory changes more than 100 times a second, "
        "so "
        "no more is registered; keep buffers from call to call, or use banyan_mem_register",
        t->tp.rank);
    for (int i = 0; i < c->n; i++)
        c->at[i]->changed = 1;
    bny_verbs_watch_close(c->watch);
    c->watch = NULL;
}

/* ---- looking ---- */

const struct vb_region *bny_verbs_cached(const struct vb_tp *t, const void *at, size_t bytes)
{
    struct vb_cache *c = t->cache;

    for (int i = 0; c && c->watch && i < c->n; i++)
        if (!c->at[i]->changed && is_in(c->at[i], (uintptr_t)at, bytes) &&
            bny_verbs_is_as_it_was(c->watch, c->at[i]->number))
            return &c->at[i]->region;
    return NULL;
}

const struct vb_region *bny_verbs_cached_before(const struct vb_tp *t, const void *at,
                                                size_t bytes)
{
    const struct vb_region *r = bny_verbs_cached(t, at, bytes);
    struct vb_cache *c = t->cache;

    for (int i = 0; c && !r && i < c->n; i++)
        if (is_in(c->at[i], (uintptr_t)at, bytes))
            r = &c->at[i]->region;
    return r;
}

/* ---- windows ---- */

void bny_verbs_cache_hold(const struct vb_tp *t, const struct vb_region *r)
{
    struct vb_cache *c = t->cache;

    for (int i = 0; c && i < c->n; i++)
        c->at[i]->windows += &c->at[i]->region == r;
}

void bny_verbs_cache_let(const struct vb_tp *t, const struct bny_window *win)
{
    struct vb_cache *c = t->cache;
    struct bny_window keys;

    for (int i = 0; c && i < c->n; i++) {
        struct cached *e = c->at[i];

        if (!e->windows || !is_in(e, win->addr, win->bytes))
            continue;
        bny_verbs_region_keys(&e->region, &keys);
        if (keys.key == win->key && keys.offset == win->offset) {
            e->windows--;
            return;
        }
    }
}

/* ---- coming ---- */

static int is_refused(const struct vb_cache *c, uintptr_t start, uintptr_t end)
{
    for (int i = 0; i < REFUSED; i++)
        if (c->refused[i].start == start && c->refused[i].end == end &&
            c->turn - c->refused[i].turn < FORGOTTEN)
            return 1;
    return 0;
}

static void refuse(struct vb_cache *c, uintptr_t start, uintptr_t end)
{
    int i = c->next_refused++ % REFUSED;

    c->refused[i].start = start;
    c->refused[i].end = end;
    c->refused[i].turn = c->turn;
}

/* Registers it, and drops others if resources are exhausted. Returns 0, or an error. */
static int cache_make(struct vb_tp *t, struct vb_region *r, uintptr_t start, size_t bytes)
{
    int rc;

    do
        rc = bny_verbs_region_make(t, r, (void *)start, bytes);
    while (rc == -BANYAN_ENOMEM && drop_oldest(t));
    if (rc)
        bny_info("%s; messages from and to that memory are copied", banyan_last_error());
    return rc;
}

static int cache_add(struct vb_tp *t, uintptr_t start, uintptr_t end)
{
    struct vb_cache *c = t->cache;
    struct cached *e;
    int number;

    while (c->n == VB_CACHED || c->bytes + (end - start) > c->most)
        if (!drop_oldest(t))
            return 0; /* not now */
    number = bny_verbs_watch(c->watch, start, end);
    e = number >= 0 ? calloc(1, sizeof *e) : NULL;
    if (!e || cache_make(t, &e->region, start, end - start) != 0) {
        if (number >= 0)
            bny_verbs_unwatch(c->watch, number);
        free(e);
        return -1;
    }
    e->region.number = VB_FURTHER;
    e->number = number;
    e->used = c->turn;
    c->at[c->n++] = e;
    c->bytes += end - start;
    c->registered++;
    bny_counter_add(&t->tp.pinned_bytes, end - start);
    return 0;
}

/* An existing range, unchanged as far as reported. */
static struct cached *cache_find(const struct vb_cache *c, uintptr_t at, size_t bytes)
{
    for (int i = 0; i < c->n; i++)
        if (!c->at[i]->changed && is_in(c->at[i], at, bytes))
            return c->at[i];
    return NULL;
}

void bny_verbs_use(struct bny_tp *tp, void *at, size_t bytes)
{
    struct vb_tp *t = (struct vb_tp *)tp;
    struct vb_cache *c = t->cache;
    uintptr_t start, end;
    struct cached *e;

    if (!c || bytes < VB_CACHE_MIN || !at)
        return;
    if (c->watch && bny_verbs_watch_is_flooded(c->watch))
        cache_give_up(t);
    if (!c->watch) {
        drop_idle(t);
        return;
    }
    start = (uintptr_t)at & ~(uintptr_t)(c->page - 1);
    end = ((uintptr_t)at + bytes + c->page - 1) & ~(uintptr_t)(c->page - 1);
    c->turn++;
    drop_changed(t);
    e = cache_find(c, (uintptr_t)at, bytes);
    if (e) {
        e->used = c->turn;
        c->hits++;
    } else if (end > start && end - start <= c->most && !bny_verbs_listed(t, at, bytes) &&
               !is_refused(c, start, end) && cache_add(t, start, end) != 0) {
        refuse(c, start, end);
    }
}

/* ---- life ---- */

/* After a fork some kernels give the parent copies of pages that a device uses. */
static int survives_fork(const struct vb_tp *t)
{
    if (t->fn->fork_status && t->fn->fork_status() != IBV_FORK_DISABLED)
        return 0;
    return bny_fail(BANYAN_ENOTSUP,
                    "after a fork the device would have other pages than this process: use "
                    "Linux 5.12 and rdma-core 35, or set RDMAV_FORK_SAFE=1");
}

int bny_verbs_cache_open(struct vb_tp *t)
{
    struct vb_watch *watch;
    int rc;

    if (!bny_param_choice("BANYAN_VERBS=cache"))
        return 0;
    rc = survives_fork(t);
    if (rc == 0)
        rc = bny_verbs_watch_open(&watch);
    if (rc) {
        bny_warn(
            "rank %d: BANYAN_VERBS=cache=uffd: %s; buffers that are not registered are copied",
            t->tp.rank, banyan_last_error());
        return 0;
    }
    t->cache = calloc(1, sizeof *t->cache);
    if (!t->cache) {
        bny_verbs_watch_close(watch);
        return bny_fail(BANYAN_ENOMEM, "rank %d: no memory for a cache", t->tp.rank);
    }
    t->cache->watch = watch;
    t->cache->most = (size_t)bny_param_int("BANYAN_VERBS=cache_bytes");
    t->cache->page = (size_t)sysconf(_SC_PAGESIZE);
    return 0;
}

void bny_verbs_cache_close(struct vb_tp *t)
{
    struct vb_cache *c = t->cache;

    if (!c)
        return;
    bny_info("verbs: the cache registered %llu ranges of memory, reused %llu, and dropped %llu "
             "that had changed",
             (unsigned long long)c->registered, (unsigned long long)c->hits,
             (unsigned long long)c->changed);
    while (c->n)
        cache_drop(t, c->n - 1);
    bny_verbs_watch_close(c->watch);
    free(c);
    t->cache = NULL;
}
