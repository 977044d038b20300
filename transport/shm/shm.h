/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared memory between ranks of one host: memfd segments passed over unix sockets, one
 * segment for each direction, nothing with a name in a file system.
 *
 * Beyond transport.h: where the kernel does not let ranks read each other's memory (or
 * BANYAN_CMA=0), and the memory is in no shared arena, send() and window_open() return
 * -BANYAN_ENOTSUP and ep->zcopy_min is UINT32_MAX, so that callers use reserve(). put() is
 * synchronous: its cookie may be NULL. After DOWN no SENT follows: the memory of unfinished
 * sends is the caller's again. Otherwise zcopy_min is what this host was measured to do:
 * shm_tune.h. */
#ifndef BNY_TRANSPORT_SHM_H
#define BNY_TRANSPORT_SHM_H

#include "transport/transport.h"

extern const struct bny_transport_ops bny_shm_ops;

#endif
