/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo plan: builds a forest for a graph, certifies it, proves its programs, and with
 * --output writes it as a plan file. "claimed" and "bound" are times over the vector on
 * capacity 1; without --schedule packed, or joint with
 * --joint. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tools/topo.h"
#include "topo/bound.h"
#include "topo/forest.h"
#include "topo/plan_file.h"

struct row {
    int slots, height;
    double gap, seconds;
};

static void print_row(const struct topo_opts *o, const struct bny_graph *g,
                      const struct bny_forest *f, const struct row *r)
{
    char text[2][48];

    bny_ratio_text(f->claim.time, text[0], 48);
    bny_ratio_text(f->claim.bound, text[1], 48);
    if (!o->json) {
        printf("%s on %s: %d ranks, %d trees, %u steps, height %d\n  time %s, bound %s (%s): "
               "gap %.3g %%\n",
               f->name, g->name, f->nranks, f->ntrees, f->nsteps, r->height, text[0], text[1],
               bny_cut_kind_name(f->claim.cut_kind), 100 * r->gap);
        if (r->slots >= 0)
            printf("  no deadlock with %d buffers a channel\n", r->slots);
        printf("  %.6f s to build\n", r->seconds);
        return;
    }
    printf("{\"topo\":");
    topo_json_text(stdout, g->name);
    printf(",\"ranks\":%d,\"schedule\":", f->nranks);
    topo_json_text(stdout, f->name);
    printf(",\"trees\":%d,\"steps\":%u,\"height\":%d,\"claimed\":\"%s\",\"bound\":\"%s\","
           "\"gap\":%.6g,\"slots\":%d,"
           "\"seconds\":%.6f}\n",
           f->ntrees, f->nsteps, r->height, text[0], text[1], r->gap, r->slots, r->seconds);
}

static int plan(const struct topo_opts *o, const struct bny_graph *g)
{
    int root = o->use == BNY_FOREST_ROOTED ? o->root : -1, down, e;
    uint64_t since = bny_now_ns();
    struct row r = { 0 };
    struct bny_forest *f;
    char why[256];

    if (topo_root_missing(o, g))
        return 2;
    e = topo_forest(&f, g, o);
    r.seconds = (double)(bny_now_ns() - since) * 1e-9;
    if (!e &&
        (f->claim.cut_kind == BNY_CUT_NONE || (o->joint && o->use == BNY_FOREST_ALLREDUCE)))
        e = bny_forest_certify(f, g, o->use, root, o->joint);
    if (!e)
        e = bny_forest_recheck(f, g, o->use, root, why, sizeof why);
    if (!e)
        e = topo_prove(&r.slots, f, o->use, o->slots);
    if (!e && o->output)
        e = bny_plan_save(o->output, f, o->use, root, g);
    if (!e) {
        r.height = bny_forest_height(f, 0);
        down = bny_forest_height(f, 1);
        r.height = down > r.height ? down : r.height;
        r.gap = f->claim.bound.num > 0
                    ? bny_ratio_value(f->claim.time) / bny_ratio_value(f->claim.bound) - 1
                    : 0;
        print_row(o, g, f, &r);
    }
    bny_forest_free(f);
    return e ? topo_failed(o->topo) : 0;
}

static int topo_plan_run(const struct topo_opts *o)
{
    struct bny_graph *g;
    int status;

    if (o->nargs)
        return topo_failed_args(o);
    if (topo_graph(&g, o))
        return topo_failed(NULL);
    status = plan(o, g);
    bny_graph_free(g);
    return status;
}

const struct topo_command topo_plan = {
    .name = "plan",
    .options = "tscrknjoHSJ",
    .usage = "builds trees for a collective, with proof; --output FILE keeps them",
    .run = topo_plan_run,
};
