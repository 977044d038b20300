/* SPDX-License-Identifier: BSD-3-Clause */
/* Ends TCP connections of this process as a network does, while the descriptor stays. */
#ifndef BNY_TESTS_CUT_H
#define BNY_TESTS_CUT_H

/* What `ss -K` does: both ends see a reset, and what the socket has received stays to be read.
 * 0, or -errno (-EPERM, -EOPNOTSUPP: this kernel or user cannot). */
int cut_kill(int fd);
/* Sends a reset by disconnecting the socket: the peer's end sees it, what either direction of
 * ours had is gone. Works anywhere. 0 or -errno. */
int cut_reset(int fd);
/* The first where it can be, else the second. */
int cut(int fd);

#endif
