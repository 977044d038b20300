/* SPDX-License-Identifier: BSD-3-Clause */
/* Settings, copied from callers of any version. */
#include "base/sized.h"

#include <string.h>

#include "base/err.h"

int bny_sized_take(void *out, size_t size, const void *given, size_t least, const char *what,
                   const char *start)
{
    size_t own;

    if (given) {
        memcpy(&own, given, sizeof own);
        if (!bny_size_is_one(own, least))
            return bny_fail(BANYAN_EINVAL,
                            "%s: size of the settings is %zu, which no version of them has; "
                            "start from %s",
                            what, own, start);
        memcpy(out, given, own < size ? own : size);
    }
    memcpy(out, &size, sizeof size);
    return 0;
}
