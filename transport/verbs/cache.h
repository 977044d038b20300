/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory of the user that nobody registered: kept registered from one operation to the next, if
 * BANYAN_IB_CACHE=uffd asks for it. What an operation reads and writes is told by its begin
 * (bny_verbs_use), in whole; from VB_CACHE_MIN bytes on it is registered, and stays so until it
 * changes (watch.h), or others need the room: whoever was not used for longest goes first.
 *
 * What has changed serves no further operation. It stays registered while a window onto it is
 * open, or a request under way reads it: an operation's own memory does not change meanwhile,
 * another part of what is registered may.
 *
 * Windows onto it are for ranks of up to VB_WINDOW_KEYS devices: more need keys told ahead. */
#ifndef BNY_VERBS_CACHE_H
#define BNY_VERBS_CACHE_H

#include "transport/verbs/verbs.h"

#define VB_CACHE_MIN 65536u /* shorter memory is copied sooner than it is registered */

#define VB_CACHED 1024 /* ranges of a rank, at most */

/* Reads the settings. 0, or an error; where it is asked for and cannot be had: a warning. */
int bny_verbs_cache_open(struct vb_tp *t);
void bny_verbs_cache_close(struct vb_tp *t); /* after all queue pairs */
void bny_verbs_use(struct bny_tp *tp, void *at, size_t bytes);
/* The region that these bytes are in, if they are what was registered; NULL: there is none. */
const struct vb_region *bny_verbs_cached(const struct vb_tp *t, const void *at, size_t bytes);
/* The same for a request under way. */
const struct vb_region *bny_verbs_cached_before(const struct vb_tp *t, const void *at,
                                                size_t bytes);
/* A window onto a cached region is open, or not any more. Others: nothing. */
void bny_verbs_cache_hold(const struct vb_tp *t, const struct vb_region *r);
void bny_verbs_cache_let(const struct vb_tp *t, const struct bny_window *win);

#endif
