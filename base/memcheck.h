/* SPDX-License-Identifier: BSD-3-Clause */
/* Tells valgrind's memcheck what it cannot see: that another process wrote into our memory. A
 * few instructions without effect outside of valgrind, none at all if its headers were missing
 * when this was built. */
#ifndef BNY_BASE_MEMCHECK_H
#define BNY_BASE_MEMCHECK_H

#include <stddef.h>

#ifdef BNY_HAVE_MEMCHECK
#include <valgrind/memcheck.h>
#endif

static inline void bny_memcheck_written(const void *mem, size_t bytes)
{
#ifdef BNY_HAVE_MEMCHECK
    VALGRIND_MAKE_MEM_DEFINED_IF_ADDRESSABLE(mem, bytes);
#else
    (void)mem;
    (void)bytes;
#endif
}

#endif
