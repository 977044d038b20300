/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs that have rights which their caller lacks. */
#ifndef BNY_BASE_PRIVILEGED_H
#define BNY_BASE_PRIVILEGED_H

#include <sys/auxv.h>

/* 1: this program is set-uid, set-gid or has file capabilities (AT_SECURE). The environment and
 * what it names are the caller's, so the library reads none of it: variables are read by
 * secure_getenv. */
static inline int bny_privileged(void)
{
    return getauxval(AT_SECURE) != 0;
}

#endif
