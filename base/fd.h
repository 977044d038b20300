/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptors of the library. A child of fork has them all, and a connection whose descriptor
 * lives there does not end when this process dies: its peers would not see the death. So a
 * child gives them up in its fork handler. Their numbers stay taken there, by an empty eventfd,
 * until they are closed: what the child still frees closes no file of its own.
 *
 * Not for what other libraries open (librdmacm, PMIx, DPDK). A fork of one thread between
 * another's socket() and bny_fd_own() misses that one descriptor. */
#ifndef BNY_BASE_FD_H
#define BNY_BASE_FD_H

/* A descriptor that was just made, under a number that is no standard file's: where the program
 * has closed one of these, what it prints would else go to a peer. Close-on-exec, if it is not
 * above already. fd < 0: as it is. -1 and errno: there is no other number. Every descriptor of
 * the library passes here, or through bny_fd_own. Any thread. */
int bny_fd_high(int fd);
/* As this, and takes note of it: the library alone uses it. Any thread. */
int bny_fd_own(int fd);
/* Closes fd, which is ours (also where bny_fd_own had no memory to note it). Any thread. */
void bny_fd_close(int fd);

void bny_fds_in_child(void); /* base/fork.c calls it; async-signal-safe */

#endif
