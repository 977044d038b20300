/* SPDX-License-Identifier: BSD-3-Clause */
/* Any bytes as a schedule's file, MSCCL XML if the first of them is '<', else a plan: refused;
 * or a forest that is sound, written and read back as the same, and whose programs can be made
 * and looked at, right or wrong; or programs that are proven, written and read back. */
#include "input.h"

#include "tools/msccl_write.h"
#include "topo/bound.h"
#include "topo/build_graph.h"
#include "topo/plan_file.h"

#define PROVE_MAX 8 /* ranks and trees: larger ones take too long for a fuzzer */

static void same(const struct bny_forest *a, const struct bny_forest *b)
{
    EXPECT(a->nranks == b->nranks && a->ntrees == b->ntrees && a->nsteps == b->nsteps);
    for (int t = 0; t < a->ntrees; t++) {
        const struct bny_tree *x = &a->trees[t], *y = &b->trees[t];
        size_t bytes = (size_t)a->nranks * sizeof *x->parent;

        EXPECT(x->root == y->root && x->pipeline == y->pipeline);
        EXPECT((uint64_t)x->weight_num * y->weight_den ==
               (uint64_t)y->weight_num * x->weight_den);
        EXPECT(!memcmp(x->parent, y->parent, bytes) && !memcmp(x->step, y->step, bytes));
        EXPECT(!x->down_parent == !y->down_parent);
        if (x->down_parent)
            EXPECT(!memcmp(x->down_parent, y->down_parent, bytes) &&
                   !memcmp(x->down_step, y->down_step, bytes));
    }
}

/* As collectives/plan/topology.c proves a plan before it runs. */
static void prove(const struct bny_plan_file *plan)
{
    static const enum bny_collective of_use[] = { BNY_ALLREDUCE, BNY_REDUCE_SCATTER,
                                                  BNY_REDUCE };
    struct bny_program_set set = { .n = plan->forest->nranks };
    char why[256];

    if (plan->forest->nranks > PROVE_MAX || plan->forest->ntrees > PROVE_MAX)
        return;
    set.collective = of_use[plan->use == BNY_FOREST_ALLREDUCE   ? 0
                            : plan->use == BNY_FOREST_SCATTERED ? 1
                                                                : 2];
    set.p = calloc((size_t)set.n, sizeof *set.p);
    if (bny_compile_all(set.p, plan->forest, set.collective, 1) == 0)
        bny_program_set_prove(&set, 8, why, sizeof why);
    bny_program_set_free(&set);
}

/* As banyan_topo verify looks at it, on a ring: what it claims and the ways that it names are
 * right or refused. */
static void claim(struct bny_plan_file *plan)
{
    const struct bny_forest *f = plan->forest;
    struct bny_graph *g;
    char name[24], why[256];

    if (f->nranks < 3 || f->nranks > PROVE_MAX || f->ntrees > PROVE_MAX)
        return;
    snprintf(name, sizeof name, "ring:%d", f->nranks);
    EXPECT(bny_graph_make(&g, name) == 0);
    if (plan->graph_hash) /* the fuzzer would never find it */
        plan->graph_hash = bny_graph_hash(g);
    if (bny_plan_fits(plan, g, "f") == 0 && bny_forest_route(plan->forest, g) == 0) {
        for (int t = 0; t < f->ntrees; t++)
            for (int v = 0; v < f->nranks; v++)
                for (int i = 0; i < f->trees[t].up[v].nlinks; i++)
                    EXPECT(f->trees[t].up[v].links[i] >= 0 &&
                           f->trees[t].up[v].links[i] < g->nlinks);
        bny_forest_recheck(f, g, plan->use, plan->root, why, sizeof why);
    }
    bny_graph_free(g);
}

static void plan(const char *text, size_t size)
{
    struct bny_plan_file p, q;
    char *again;
    size_t len;
    FILE *f;

    if (bny_plan_parse(&p, text, size, "f") != 0) {
        EXPECT(!p.forest);
        return;
    }
    EXPECT(bny_forest_check(p.forest, p.use, p.root, NULL, 0) == 0);
    f = open_memstream(&again, &len);
    EXPECT(bny_plan_write(f, p.forest, p.use, p.root, NULL) == 0);
    fclose(f);
    EXPECT(bny_plan_parse(&q, again, len, "g") == 0);
    EXPECT(p.use == q.use && p.root == q.root);
    same(p.forest, q.forest);
    free(again);
    bny_plan_close(&q);
    prove(&p);
    claim(&p);
    bny_plan_close(&p);
}

/* A short file can have long programs, which take long to prove. */
static int is_small(const char *text, size_t size)
{
    struct bny_msccl m;
    int64_t parts = 0, cells = 0;

    if (bny_msccl_read(&m, text, size, "f") != 0)
        return 1; /* as it is once more */
    for (int i = 0; i < m.nsteps; i++)
        parts += m.steps[i].cnt;
    for (int g = 0; g < m.ngpus; g++)
        cells += m.nchunks + m.ngpus + m.gpus[g].chunks[2];
    bny_msccl_free(&m);
    return parts < 500 && cells < 5000;
}

static void msccl(const char *text, size_t size)
{
    struct bny_program_set set, back;
    char *again;
    size_t len;
    FILE *f;
    int e;

    if (!is_small(text, size) || bny_msccl_parse(&set, text, size, "f") != 0)
        return;
    f = open_memstream(&again, &len);
    e = msccl_write(f, set.p, set.n);
    fclose(f);
    EXPECT(e == 0 || e == -BANYAN_ENOTSUP);
    if (!e && bny_msccl_parse(&back, again, len, "g") == 0) {
        EXPECT(back.n == set.n && back.collective == set.collective);
        bny_program_set_free(&back);
    }
    free(again);
    bny_program_set_free(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + !size); /* exactly as long: a sanitizer sees one byte too many */

    memcpy(text, data, size);
    if (size && *text == '<')
        msccl(text, size);
    else
        plan(text, size);
    free(text);
    return 0;
}
