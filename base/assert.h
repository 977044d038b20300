/* SPDX-License-Identifier: BSD-3-Clause */
/* BNY_ASSERT states a precondition that callers guarantee: a slot that is taken, a credit that
 * is left, an offset within its range. For our own mistakes only; anything that a peer or user
 * may cause is an error with its sentence (base/err.h).
 *
 * Development builds check it (BNY_CHECKS=1: debug builds, sanitizers; meson.build). Release
 * builds do not even evaluate the condition, so it may be used in inner loops, and must have no
 * side effect. */
#ifndef BNY_BASE_ASSERT_H
#define BNY_BASE_ASSERT_H

#include <stdio.h>
#include <stdlib.h>

#ifndef BNY_CHECKS
#define BNY_CHECKS 0
#endif

__attribute__((cold, noreturn)) static inline void
bny_assert_failed(const char *what, const char *file, int line, const char *function)
{
    fprintf(stderr, "%s:%d: %s: does not hold: %s\n", file, line, function, what);
    abort();
}

#if BNY_CHECKS
#define BNY_ASSERT(cond)                                                                       \
    ((cond) ? (void)0 : bny_assert_failed(#cond, __FILE__, __LINE__, __func__))
#else
/* Compiled, so that it stays valid, and dropped. */
#define BNY_ASSERT(cond) ((void)(0 && (cond)))
#endif

#endif
