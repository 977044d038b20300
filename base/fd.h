/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptors of the library. A child of fork inherits them all, and a connection whose
 * descriptor stays open there does not end when this process dies: its peers would not detect
 * the death. So a child replaces them in its fork handler. An empty eventfd keeps each number
 * occupied until it is closed, so that frees in the child close no file of its own.
 *
 * Descriptors that other libraries open are not covered (librdmacm, PMIx, DPDK). A fork in one
 * thread between another's socket() and bny_fd_own() misses that descriptor. */
#ifndef BNY_BASE_FD_H
#define BNY_BASE_FD_H

#include <stdio.h>

/* Moves a new descriptor to a number above the standard files': if the program has closed one
 * of these, its output would otherwise go to a peer. Close-on-exec if it is moved. fd < 0:
 * returned as it is. -1 and errno: no other number is free. Every descriptor of the library
 * passes here, or through bny_fd_own. Any thread. */
int bny_fd_high(int fd);
/* Same, and records that only the library uses it. Any thread. */
int bny_fd_own(int fd);
/* Closes fd, which is ours (even if bny_fd_own had no memory to record it). Any thread. */
void bny_fd_close(int fd);

/* A new file to write, whatever others have put in its place: they may be able to write the
 * folder. NULL and errno. Any thread. */
FILE *bny_fd_new_file(const char *path);

void bny_fds_in_child(void); /* base/fork.c calls it; async-signal-safe */

#endif
