/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans of the zoo's topologies: every forest that looks at a graph compiles to programs which
 * are proven with at most 4 buffers a lane, and survives a plan file, routes and all. The
 * number of buffers is printed. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "collectives/program/msccl.h"
#include "tests/topo/zoo.h"
#include "topo/bound.h"
#include "topo/plan_file.h"

#define RANKS_PROVEN 32 /* larger ones for the main builders only */
#define RANKS_MAX    64

static void prove(const struct bny_forest *f, enum bny_collective c, int joined,
                  const char *topo)
{
    struct bny_program_set set = { .collective = c, .n = f->nranks };
    char why[256];

    set.p = calloc((size_t)set.n, sizeof *set.p);
    for (int r = 0; r < set.n; r++)
        cr_assert_eq(bny_compile(&set.p[r], f, c, r, joined), 0, "%s %s: %s", topo, f->name,
                     banyan_last_error());
    cr_assert_eq(bny_program_set_prove(&set, 4, why, sizeof why), 0, "%s %s %s: %s", topo,
                 f->name, bny_collective_name(c), why);
    if (set.slots > 0) /* the least that suffice: the checker finds the cycle with fewer */
        cr_assert_neq(bny_program_verify(set.p, set.n, set.slots / 2, why, sizeof why), 0,
                      "%s %s", topo, f->name);
    cr_log_info("%s, %s, %s: %d buffers a lane", topo, f->name, bny_collective_name(c),
                set.slots);
    bny_program_set_free(&set);
}

static void through_a_file(const struct bny_forest *f, enum bny_forest_use use,
                           const struct bny_graph *g)
{
    struct bny_plan_file p;
    char *text = NULL, why[256];
    size_t len;
    FILE *to = open_memstream(&text, &len);

    cr_assert_eq(bny_plan_write(to, f, use, -1, g), 0);
    fclose(to);
    cr_assert_eq(bny_plan_parse(&p, text, len, g->name), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_plan_fits(&p, g, g->name), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_ratio_cmp(p.forest->claim.time, f->claim.time), 0);
    if (f->claim.cut) /* whatever the certificate is worth, the file keeps it */
        cr_assert_eq(bny_forest_recheck(p.forest, g, use, -1, why, sizeof why),
                     bny_forest_recheck(f, g, use, -1, NULL, 0), "%s %s: %s", g->name, f->name,
                     why);
    bny_plan_close(&p);
    free(text);
}

static void one(const struct bny_graph *g, const struct bny_graph_builder_ops *b,
                enum bny_forest_use use, int k)
{
    struct bny_build_opts opts = { .k = k };
    struct bny_forest *f;

    if (!(b->uses & use) || b->build(&f, g, use, -1, &opts) != 0)
        return;
    if (use ==
        BNY_FOREST_SCATTERED) { /* one tree a rank with steps joined, two with steps apart */
        prove(f, BNY_REDUCE_SCATTER, k == 1, g->name);
        prove(f, BNY_ALLGATHER, k == 1, g->name);
    } else {
        prove(f, BNY_ALLREDUCE, 0, g->name);
        prove(f, BNY_ALLREDUCE, 1, g->name);
    }
    through_a_file(f, use, g);
    bny_forest_free(f);
}

Test(zoo_plans, are_proven_with_four_buffers)
{
    for (int i = 0; i < ZOO_ENTRIES; i++) {
        struct bny_graph *g;

        if (zoo[i].ranks > RANKS_MAX)
            continue;
        cr_assert_eq(bny_graph_make(&g, zoo[i].topo), 0, "%s", banyan_last_error());
        for (int b = 0; bny_graph_builders[b]; b++) {
            const char *name = bny_graph_builders[b]->name;
            int chief =
                !strcmp(name, "multitree") || !strcmp(name, "packed") || !strcmp(name, "joint");

            if (g->nranks > RANKS_PROVEN && !chief)
                continue;
            one(g, bny_graph_builders[b], BNY_FOREST_ALLREDUCE, 0);
            if (g->nranks <= RANKS_PROVEN) {
                one(g, bny_graph_builders[b], BNY_FOREST_SCATTERED, 1);
                if (chief)
                    one(g, bny_graph_builders[b], BNY_FOREST_SCATTERED, 2);
            }
        }
        bny_graph_free(g);
    }
}
