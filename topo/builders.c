/* SPDX-License-Identifier: BSD-3-Clause */
/* The registry of forest builders: one line each. */
#include <string.h>

#include "topo/build.h"

const struct bny_builder_ops *const bny_builders[] = {
    &bny_build_ring,     &bny_build_ring_uni, &bny_build_halving, &bny_build_double_binary_tree,
    &bny_build_binomial, &bny_build_star,     &bny_build_linear,  &bny_build_bucket,
    &bny_build_bine,     &bny_build_trivance, &bny_build_pat,     NULL,
};

const struct bny_builder_ops *bny_builder_find(const char *name)
{
    for (int i = 0; bny_builders[i]; i++)
        if (!strcmp(bny_builders[i]->name, name))
            return bny_builders[i];
    return NULL;
}
