/* SPDX-License-Identifier: BSD-3-Clause */
/* Forest builders by name and number: build.h lists them. */
#include <string.h>

#include "topo/build.h"

#define ENTRY(table) &table,
const struct bny_builder_ops *const bny_builders[] = { BNY_BUILDERS(ENTRY) NULL };
#undef ENTRY

const struct bny_builder_ops *bny_builder_find(const char *name)
{
    for (int i = 0; bny_builders[i]; i++)
        if (!strcmp(bny_builders[i]->name, name))
            return bny_builders[i];
    return NULL;
}
