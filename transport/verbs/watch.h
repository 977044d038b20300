/* SPDX-License-Identifier: BSD-3-Clause */
/* Detects changes of this process's memory: unmapped, moved, or its pages discarded (munmap,
 * mmap over it, mremap, brk, madvise). A device that registered the memory would keep using the
 * old pages.
 *
 * By userfaultfd(2): ranges are registered for write protection but never protected, so no
 * access is delayed; the kernel blocks a thread that changes such a range until our thread has
 * read the event. No malloc and no function of the C library is replaced.
 *
 * Only private anonymous memory is watched (the heap, malloc, mmap): for shared memory and
 * files the kernel does not report every change. Nor does it for shmat() with SHM_REMAP over
 * such memory. */
#ifndef BNY_VERBS_WATCH_H
#define BNY_VERBS_WATCH_H

#include <stddef.h>
#include <stdint.h>

#define VB_WATCHED 2048 /* most ranges of a process */

struct vb_watch;

/* The process's only watcher. The first call starts the thread and tests everything. Returns 0,
 * or an error whose sentence names what is missing. All functions: any thread. */
int bny_verbs_watch_open(struct vb_watch **out);
void bny_verbs_watch_close(struct vb_watch *w); /* once for each open */
/* Watches [start, end) of whole pages. Returns its number; -1: not watched, because of its kind
 * or for lack of numbers. */
int bny_verbs_watch(struct vb_watch *w, uintptr_t start, uintptr_t end);
void bny_verbs_unwatch(struct vb_watch *w, int number);
/* 1: unchanged; this includes changes that other threads have begun. */
int bny_verbs_is_as_it_was(struct vb_watch *w, int number);
/* Number of changes reported so far. */
uint64_t bny_verbs_watch_changes(struct vb_watch *w);
/* 1: it changed, as far as reported. */
int bny_verbs_has_changed(struct vb_watch *w, int number);
/* 1: ranges change so often (more than 100 a second, for three seconds in a row) that watching
 * may not pay. */
int bny_verbs_watch_is_flooded(struct vb_watch *w);

#endif
