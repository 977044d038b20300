/* SPDX-License-Identifier: BSD-3-Clause */
/* A cache of registrations for unregistered user memory, kept from one operation to the next if
 * BANYAN_VERBS=cache=uffd. Each operation declares the memory that it reads and writes
 * (bny_verbs_use); from VB_CACHE_MIN bytes on it is registered, until it changes (watch.h) or
 * others need the room: the least recently used goes first.
 *
 * Changed memory serves no further operation. It stays registered while a window onto it is
 * open, or a request in flight reads it: an operation's own memory does not change meanwhile,
 * but another part of the registered range may.
 *
 * Only peers with up to VB_WINDOW_KEYS devices get windows onto it: more would need keys sent
 * ahead. */
#ifndef BNY_VERBS_CACHE_H
#define BNY_VERBS_CACHE_H

#include "transport/verbs/verbs.h"

#define VB_CACHE_MIN 65536u /* copying shorter memory is cheaper than registering it */

#define VB_CACHED 1024 /* most ranges of a rank */

/* Reads the settings. Returns 0, or an error; a warning if the cache was requested but is
 * unavailable. */
int bny_verbs_cache_open(struct vb_tp *t);
void bny_verbs_cache_close(struct vb_tp *t); /* after all queue pairs */
void bny_verbs_use(struct bny_tp *tp, void *at, size_t bytes);
/* The region that contains these bytes, if they are unchanged; NULL: none. */
const struct vb_region *bny_verbs_cached(const struct vb_tp *t, const void *at, size_t bytes);
/* The same for a request in flight. */
const struct vb_region *bny_verbs_cached_before(const struct vb_tp *t, const void *at,
                                                size_t bytes);
/* Counts an opened or closed window onto a cached region. Other regions: no effect. */
void bny_verbs_cache_hold(const struct vb_tp *t, const struct vb_region *r);
void bny_verbs_cache_let(const struct vb_tp *t, const struct bny_window *win);

#endif
