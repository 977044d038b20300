/* SPDX-License-Identifier: BSD-3-Clause */
/* The library's version: ranks compare it before they trust each other's bytes. */
#include "banyan/banyan.h"

#define STR2(x) #x
#define STR(x)  STR2(x)

const char *banyan_version_string(void)
{
    return STR(BANYAN_VERSION_MAJOR) "." STR(BANYAN_VERSION_MINOR) "." STR(
        BANYAN_VERSION_PATCH);
}

int banyan_version(void)
{
    return BANYAN_VERSION_MAJOR * 10000 + BANYAN_VERSION_MINOR * 100 + BANYAN_VERSION_PATCH;
}
