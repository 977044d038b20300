/* SPDX-License-Identifier: BSD-3-Clause */
/* Direct programs by name and number: directs.h lists them. */
#include "collectives/program/directs.h"

#include <string.h>

#include "base/err.h"

#define ENTRY(table) &table,
const struct bny_direct_ops *const bny_directs[] = { BNY_DIRECTS(ENTRY) NULL };
#undef ENTRY

const struct bny_direct_ops *bny_direct_find(const char *name)
{
    for (int i = 0; bny_directs[i]; i++)
        if (!strcmp(bny_directs[i]->name, name))
            return bny_directs[i];
    return NULL;
}

int bny_direct_check(const struct bny_direct_ops *ops, enum bny_collective c, int nranks,
                     int rank, int root)
{
    int has_root = bny_collective_of_wire(c) && bny_collective_row(c)->rooted;

    if ((unsigned)c >= BNY_COLLECTIVE_COUNT || !(ops->collectives & 1u << c))
        return bny_fail(BANYAN_EINVAL, "%s has no program for %s", ops->name,
                        bny_collective_name(c));
    if (nranks < 1 || rank < 0 || rank >= nranks)
        return bny_fail(BANYAN_EINVAL, "%s: rank %d of %d ranks", ops->name, rank, nranks);
    if (has_root && (root < 0 || root >= nranks))
        return bny_fail(BANYAN_EINVAL, "%s: root %d of %d ranks", ops->name, root, nranks);
    return 0;
}
