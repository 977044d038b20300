/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared memory between ranks of one host: memfd segments passed over unix sockets, one segment
 * for each direction; nothing has a name in a file system.
 *
 * Beyond transport.h: if the kernel does not let ranks read each other's memory (or
 * BANYAN_CMA=0), and the memory is in no shared arena, send() and window_open() return
 * -BANYAN_ENOTSUP and ep->zcopy_min is UINT32_MAX, so that callers use reserve(). Otherwise
 * zcopy_min is a measurement of this host: shm_tune.h. put() is synchronous: its cookie may be
 * NULL. No SENT follows DOWN: the caller again owns the memory of unfinished sends. */
#ifndef BNY_TRANSPORT_SHM_H
#define BNY_TRANSPORT_SHM_H

#include "transport/transport.h"

extern const struct bny_transport_ops bny_shm_ops;

#endif
