/* SPDX-License-Identifier: BSD-3-Clause */
/* Structs that callers of any version fill, or have filled. */
#include "base/sized.h"

#include <stdint.h>
#include <string.h>

#include "base/err.h"

static size_t size_of(const void *given)
{
    size_t size;

    memcpy(&size, given, sizeof size);
    return size;
}

/* Each version ends on a word boundary, so that none ends inside a member, such as half a
 * pointer. */
static int is_of_a_version(size_t size)
{
    return size >= sizeof size && size <= 4096 && size % sizeof(uint64_t) == 0;
}

int bny_sized_take(void *out, size_t size, const void *given, const char *what,
                   const char *start)
{
    size_t own = given ? size_of(given) : size;

    if (!is_of_a_version(own))
        return bny_fail(BANYAN_EINVAL,
                        "%s: size of the settings is %zu, which no version of them has; "
                        "start from %s",
                        what, own, start);
    for (size_t at = size; at < own; at++)
        if (((const unsigned char *)given)[at])
            return bny_fail(BANYAN_EINVAL,
                            "%s: byte %zu of the settings is set, and this version of the "
                            "library knows %zu: leave newer members as %s has them, or "
                            "update the library",
                            what, at, size, start);
    if (given)
        memcpy(out, given, own < size ? own : size);
    memcpy(out, &size, sizeof size);
    return 0;
}

int bny_sized_check(const void *out, const char *what)
{
    if (!out)
        return bny_fail(BANYAN_EINVAL, "%s: out must not be NULL", what);
    if (!is_of_a_version(size_of(out)))
        return bny_fail(BANYAN_EINVAL, "%s: out->size is %zu; set it to sizeof *out", what,
                        size_of(out));
    return 0;
}

void bny_sized_give(void *out, const void *full, size_t size)
{
    size_t own = size_of(out), known = own < size ? own : size;

    memcpy((char *)out + sizeof own, (const char *)full + sizeof own, known - sizeof own);
    memset((char *)out + known, 0, own - known);
}
