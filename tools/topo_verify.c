/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo verify: what a plan claims, computed again. Its form, its loads on the links, its
 * cut, the bound itself, and the programs of all ranks: contributions, memory, matching, and
 * the least number of buffers without deadlock. */
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/err.h"
#include "collectives/program/msccl.h"
#include "tools/topo.h"
#include "topo/bound.h"
#include "topo/plan_file.h"
#include "topo/route.h"

struct report {
    const char *plan;
    char kind[12];                      /* "forest" or "program" */
    int ranks, trees, slots, certified; /* slots: -1: programs were not proven */
    double time, bound;                 /* units of S / capacity 1; bound < 0: none */
    char time_text[48], bound_text[48];
};

/* The claim is compared with what the forest's edges give, then with the bound computed anew.
 */
static int verify_forest(struct report *r, struct bny_forest *f, const struct bny_graph *g,
                         enum bny_forest_use use, int root, int slots)
{
    struct bny_ratio claimed = f->claim.time;
    int joint = f->claim.cut_kind != BNY_CUT_OUT_IN, had = f->claim.time.den != 0, e = 0;
    char why[256], a[48], b[48];

    snprintf(r->kind, sizeof r->kind, "forest");
    r->ranks = f->nranks;
    r->trees = f->ntrees;
    r->certified = f->claim.cut != NULL;
    if (bny_forest_check(f, use, root, why, sizeof why) != 0)
        return -BANYAN_EINVAL;
    e = bny_forest_route(f, g);
    if (!e && r->certified)
        e = bny_forest_recheck(f, g, use, root, why, sizeof why);
    if (!e)
        e = bny_forest_certify(f, g, use, root, joint);
    if (!e && had && bny_ratio_cmp(claimed, f->claim.time) != 0)
        e = bny_fail(BANYAN_EINVAL, "it claims time %s, its loads give %s",
                     bny_ratio_text(claimed, a, sizeof a),
                     bny_ratio_text(f->claim.time, b, sizeof b));
    if (e)
        return e;
    r->time = bny_ratio_value(f->claim.time);
    r->bound = bny_ratio_value(f->claim.bound);
    bny_ratio_text(f->claim.time, r->time_text, sizeof r->time_text);
    bny_ratio_text(f->claim.bound, r->bound_text, sizeof r->bound_text);
    return topo_prove(&r->slots, f, use, slots);
}

static int verify_program(struct report *r, const struct bny_graph *g)
{
    struct bny_program_set set;
    struct bny_bound b;
    double *load;
    int e = bny_msccl_load(&set, r->plan);

    if (e)
        return e;
    snprintf(r->kind, sizeof r->kind, "program");
    r->ranks = set.n;
    r->slots = set.slots;
    load = calloc((size_t)g->nlinks + 1, sizeof *load);
    e = load ? topo_program_loads(load, &set, g)
             : bny_fail(BANYAN_ENOMEM, "no memory for the loads of links");
    for (int l = 0; l < g->nlinks && !e; l++)
        if (load[l] / (double)g->links[l].cap > r->time)
            r->time = load[l] / (double)g->links[l].cap;
    snprintf(r->time_text, sizeof r->time_text, "%.9g", r->time);
    if (!e)
        e = set.collective == BNY_ALLREDUCE   ? bny_bound_allreduce(&b, g)
            : set.collective == BNY_ALLGATHER ? bny_bound_allgather(&b, g)
                                              : bny_bound_reduce_scatter(&b, g);
    if (!e) {
        r->bound = bny_ratio_value(b.value);
        bny_ratio_text(b.value, r->bound_text, sizeof r->bound_text);
        bny_bound_free(&b);
    }
    free(load);
    bny_program_set_free(&set);
    return e;
}

static void print(FILE *to, const struct report *r, const struct bny_graph *g,
                  const struct topo_opts *o)
{
    double gap = r->bound > 0 ? r->time / r->bound - 1 : 0;

    if (o->json) {
        fprintf(to, "{\"plan\":");
        topo_json_text(to, r->plan);
        fprintf(to, ",\"topo\":");
        topo_json_text(to, g->name);
        fprintf(
            to,
            ",\"kind\":\"%s\",\"ranks\":%d,\"trees\":%d,\"time\":\"%s\",\"bound\":\"%s\","
            "\"time_value\":%.9g,"
            "\"bound_value\":%.9g,\"gap\":%.6g,\"certified\":%s,\"slots\":%d,\"ok\":true}\n",
            r->kind, r->ranks, r->trees, r->time_text, r->bound_text, r->time, r->bound, gap,
            r->certified ? "true" : "false", r->slots);
        return;
    }
    fprintf(to, "%s on %s: correct\n  %s of %d ranks", r->plan, g->name, r->kind, r->ranks);
    if (r->trees)
        fprintf(to, ", %d trees", r->trees);
    fprintf(to, "\n  time %s, bound %s of the vector / capacity 1: %.3g %% above the bound%s\n",
            r->time_text, r->bound_text, 100 * gap,
            r->certified ? ", which its own cut proves too" : "");
    if (r->slots >= 0)
        fprintf(to, "  no deadlock with %d buffer%s a channel\n", r->slots,
                r->slots == 1 ? "" : "s");
    else
        fprintf(to, "  programs not proven: more than %d ranks\n", TOPO_PROVE_RANKS_MAX);
}

/* 0, an error, or 2: a wrong option, which is said. */
static int verify(const struct topo_opts *o, struct report *r, struct bny_graph **g)
{
    struct bny_plan_file plan;
    struct topo_opts built = *o;
    struct bny_forest *f;
    int root = o->use == BNY_FOREST_ROOTED ? o->root : -1, e;

    if (topo_is_xml(r->plan)) {
        e = topo_graph(g, o);
        return e ? e : verify_program(r, *g);
    }
    if (bny_graph_builder_find(r->plan) || bny_builder_find(r->plan)) {
        built.schedule = r->plan;
        e = topo_graph(g, o);
        if (!e)
            e = topo_root_missing(o, *g);
        if (!e)
            e = topo_forest(&f, *g, &built);
        if (!e) {
            e = verify_forest(r, f, *g, o->use, root, o->slots);
            bny_forest_free(f);
        }
        return e;
    }
    e = topo_plan_load(&plan, r->plan);
    if (e)
        return e;
    if (!o->topo && *plan.topology)
        built.topo = plan.topology;
    e = topo_graph(g, &built);
    if (!e)
        e = bny_plan_fits(&plan, *g, r->plan);
    if (!e)
        e = verify_forest(r, plan.forest, *g, plan.use, plan.root, o->slots);
    bny_plan_close(&plan);
    return e;
}

static int topo_verify_run(const struct topo_opts *o)
{
    struct report r = { .plan = o->nargs ? o->args[0] : o->schedule, .bound = -1 };
    struct bny_graph *g = NULL;
    FILE *to;
    int e;

    if (!r.plan) {
        fprintf(stderr, "banyan_topo: verify wants a plan: a file or a builder's name\n");
        return 2;
    }
    e = verify(o, &r, &g);
    if (e) {
        bny_graph_free(g);
        return e > 0 ? e : topo_failed(r.plan);
    }
    to = topo_open(o);
    if (to)
        print(to, &r, g, o);
    bny_graph_free(g);
    return to ? topo_close(to, o) : 1;
}

const struct topo_command topo_verify = {
    "verify", "tscrknoJHS",
    "PLAN: proves a plan's file (JSON, MSCCL XML) or a builder's forest anew", topo_verify_run
};
