/* SPDX-License-Identifier: BSD-3-Clause */
/* Which tool checks our memory. bny_memcheck_written() tells valgrind's memcheck that another
 * process wrote there, which it cannot see. It costs a few instructions without effect outside
 * of valgrind, none if its headers were missing at build time. */
#ifndef BNY_BASE_MEMCHECK_H
#define BNY_BASE_MEMCHECK_H

#include <stddef.h>

#ifdef BNY_HAVE_MEMCHECK
#include <valgrind/memcheck.h>
#endif

/* gcc defines its own macros; clang has __has_feature. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define BNY_ADDRESS_SANITIZER 1
#else
#define BNY_ADDRESS_SANITIZER 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define BNY_THREAD_SANITIZER 1
#else
#define BNY_THREAD_SANITIZER 0
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
