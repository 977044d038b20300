/* SPDX-License-Identifier: BSD-3-Clause */
/* Structs from callers of any version: they begin with their own size. */
#ifndef BNY_BASE_SIZED_H
#define BNY_BASE_SIZED_H

#include <stddef.h>

/* Settings: copies the members that the caller knows, if given is not NULL; out has the
 * defaults, and `size` bytes, which becomes its size. what: the called function; start: the
 * macro that gives defaults. Returns 0, or -BANYAN_EINVAL: a size that no version has, or a
 * member that this version does not know is not 0. */
int bny_sized_take(void *out, size_t size, const void *given, const char *what,
                   const char *start);

/* Structs that a call fills. Before it: returns 0, or -BANYAN_EINVAL: out is NULL, or its size
 * is of no version. */
int bny_sized_check(const void *out, const char *what);
/* Copies all but the size from `full`, of `size` bytes, as far as the caller knows; members
 * that only the caller knows become 0. */
void bny_sized_give(void *out, const void *full, size_t size);

#endif
