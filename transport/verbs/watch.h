/* SPDX-License-Identifier: BSD-3-Clause */
/* Tells when memory of this process is not what it was any more: unmapped, moved, or its pages
 * given back (munmap, mmap over it, mremap, brk, madvise). A device that knows the memory would
 * go on with the pages of before.
 *
 * By userfaultfd(2): ranges are registered for write protection, nothing is ever protected, so
 * no access is held up; the kernel makes whoever changes such a range wait until a thread of
 * ours has read the event. Nothing of malloc, and no function of the C library, is replaced.
 *
 * Only private anonymous memory is watched (the heap, malloc, mmap): of shared memory and files
 * not every change is told. Not told either: shmat() with SHM_REMAP over such memory. */
#ifndef BNY_VERBS_WATCH_H
#define BNY_VERBS_WATCH_H

#include <stddef.h>
#include <stdint.h>

#define VB_WATCHED 2048 /* ranges of a process, at most */

struct vb_watch;

/* The process's: memory has one watcher at most. The first call starts the thread and tries all
 * of it. 0, or an error whose sentence says what is missing. Any thread, as all of this. */
int bny_verbs_watch_open(struct vb_watch **out);
void bny_verbs_watch_close(struct vb_watch *w); /* once for each open */
/* [start, end) of whole pages, as it is now. Its number; -1: it is not watched, for its kind or
 * as there is no number left. */
int bny_verbs_watch(struct vb_watch *w, uintptr_t start, uintptr_t end);
void bny_verbs_unwatch(struct vb_watch *w, int number);
/* 1: it is as it was; also with regard to what other threads are at, as far as it had begun. */
int bny_verbs_is_as_it_was(struct vb_watch *w, int number);
/* So many changes were told so far. */
uint64_t bny_verbs_watch_changes(struct vb_watch *w);
/* 1: it changed, as far as was told. */
int bny_verbs_has_changed(struct vb_watch *w, int number);
/* 1: ranges change so often (more than 100 a second, for three seconds in a row) that watching
 * costs more than it may be worth. */
int bny_verbs_watch_is_flooded(struct vb_watch *w);

#endif
