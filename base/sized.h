/* SPDX-License-Identifier: BSD-3-Clause */
/* Structs from callers of any version: they begin with their own size. */
#ifndef BNY_BASE_SIZED_H
#define BNY_BASE_SIZED_H

#include <stddef.h>
#include <stdint.h>

/* Is it the size of some version of a struct? Each ends on a word boundary, so that none ends
 * inside a member, such as half a pointer. least: size of the first version. */
static inline int bny_size_is_one(size_t size, size_t least)
{
    return size >= least && size <= 4096 && size % sizeof(uint64_t) == 0;
}

/* Copies the members that the caller knows, if given is not NULL; out has the defaults, and
 * `size` bytes, which becomes its size. what: the called function; start: the function that
 * gives defaults. Returns 0 or -BANYAN_EINVAL. */
int bny_sized_take(void *out, size_t size, const void *given, size_t least, const char *what,
                   const char *start);

#endif
