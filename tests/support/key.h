/* SPDX-License-Identifier: BSD-3-Clause */
/* Sets one key of a variable whose value is "key=value,...": tests build such values bit by
 * bit. */
#ifndef BNY_TESTS_KEY_H
#define BNY_TESTS_KEY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* name: "BANYAN_VERBS=qps"; value NULL: removes the key. The variable's other keys stay. */
static inline void set_key(const char *name, const char *value)
{
    const char *key = strchr(name, '=') + 1, *text;
    char variable[64], all[1024] = "";
    struct bny_pair pair;
    size_t at = 0;

    snprintf(variable, sizeof variable, "%.*s", (int)(key - name - 1), name);
    text = getenv(variable);
    while (text && bny_pair_next(&text, &pair))
        if (pair.key_len != strlen(key) || memcmp(pair.key, key, pair.key_len) != 0)
            at += (size_t)snprintf(all + at, sizeof all - at, "%.*s=%.*s,", (int)pair.key_len,
                                   pair.key, (int)pair.value_len, pair.value);
    if (value)
        snprintf(all + at, sizeof all - at, "%s=%s", key, value);
    setenv(variable, all, 1);
}

#endif
