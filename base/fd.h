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

/* Takes note of fd, which the library alone uses; fd < 0: nothing. Returns fd. Any thread. */
int bny_fd_own(int fd);
/* Closes fd, which is ours (also where bny_fd_own had no memory to note it). Any thread. */
void bny_fd_close(int fd);

void bny_fds_in_child(void); /* base/fork.c calls it; async-signal-safe */

#endif
