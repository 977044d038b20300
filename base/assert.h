/* SPDX-License-Identifier: BSD-3-Clause */
/* BNY_ASSERT states what a function relies on and its callers owe it: a slot that is taken, a
 * credit that is left, an offset within its range. For our own mistakes only; what a peer or
 * the user may cause is an error with its sentence (base/err.h).
 *
 * Builds for development check it (BNY_CHECKS=1: debug builds, sanitizers; meson.build).
 * Release builds do not even evaluate the condition, so that it may stand in inner loops; it
 * must therefore have no effect of its own. */
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
/* Compiled, so that it cannot rot, and dropped. */
#define BNY_ASSERT(cond) ((void)(0 && (cond)))
#endif

#endif
