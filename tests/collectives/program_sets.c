/* SPDX-License-Identifier: BSD-3-Clause */
/* Builds the programs of all ranks (program_sets.h). */
#include "program_sets.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "banyan/banyan.h"

static enum bny_forest_use use_of(int collective)
{
    if (collective == BNY_ALLREDUCE)
        return BNY_FOREST_ALLREDUCE;
    return collective == BNY_REDUCE || collective == BNY_BROADCAST ? BNY_FOREST_ROOTED
                                                                   : BNY_FOREST_SCATTERED;
}

int program_kind_at(int k, struct program_kind *out)
{
    for (int b = 0; bny_builders[b]; b++)
        for (int c = BNY_ALLREDUCE; c <= BNY_ALLGATHER; c++)
            for (int coalesce = 0; coalesce < 2; coalesce++) {
                if (!(bny_builders[b]->uses & use_of(c)))
                    continue;
                *out = (struct program_kind){ b, -1, c, coalesce };
                if (k-- == 0)
                    return 1;
            }
    for (int d = 0; bny_directs[d]; d++)
        for (int c = 0; c < BNY_COLLECTIVE_COUNT; c++) {
            if (!(bny_directs[d]->collectives & 1u << c))
                continue;
            *out = (struct program_kind){ -1, d, c, 0 };
            if (k-- == 0)
                return 1;
        }
    return 0;
}

int program_kind_rooted(const struct program_kind *kind)
{
    return kind->collective == BNY_REDUCE || kind->collective == BNY_BROADCAST ||
           kind->collective == BNY_GATHER || kind->collective == BNY_SCATTER;
}

static int compile_all(struct program_set *s, const struct program_kind *kind, int root)
{
    struct bny_forest *f;
    int e = bny_builders[kind->builder]->build(&f, s->n, use_of(kind->collective), root);

    if (e)
        return e;
    for (int r = 0; r < s->n; r++) {
        e = bny_compile(&s->p[r], f, kind->collective, r, kind->coalesce);
        cr_assert_eq(e, 0, "%s rank %d: %s", s->name, r, banyan_last_error());
    }
    bny_forest_free(f);
    return 0;
}

int program_set_build(struct program_set *s, const struct program_kind *kind, int n, int root)
{
    const char *name = kind->builder >= 0 ? bny_builders[kind->builder]->name
                                          : bny_directs[kind->direct]->name;
    int e = 0;

    memset(s, 0, sizeof *s);
    s->n = n;
    snprintf(s->name, sizeof s->name, "%s %s n=%d root=%d%s", name,
             bny_collective_name(kind->collective), n, root, kind->coalesce ? " joined" : "");
    if (kind->builder >= 0)
        return compile_all(s, kind, root);
    for (int r = 0; r < n; r++) {
        e = bny_directs[kind->direct]->build(&s->p[r], kind->collective, n, r, root);
        cr_assert_eq(e, 0, "%s rank %d: %s", s->name, r, banyan_last_error());
    }
    return 0;
}

void program_set_free(struct program_set *s)
{
    for (int r = 0; r < s->n; r++)
        bny_program_free(s->p[r]);
}
