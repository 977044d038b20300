/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo draw: a forest on its graph, as SVG; of an algorithm in MSCCL XML the links
 * alone. Left all links, coloured by how long they are busy in proportion to the busiest; right
 * some of the trees, each with its root, edges coloured by time step. */
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/err.h"
#include "collectives/program/msccl.h"
#include "tools/topo.h"
#include "tools/topo_svg.h"
#include "topo/bound.h"
#include "topo/plan_file.h"

#define MAIN  640.0 /* size of the large panel */
#define TOP   64.0
#define TREES 9 /* small panels at most, unless --trees says otherwise */

struct drawing {
    FILE *to;
    const struct bny_graph *g;
    const struct bny_forest *f;
    const char *name; /* instead of a forest: the file */
    struct topo_place *place;
    double *load, busiest;
};

static void write_text(FILE *to, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&' || *text == '"')
            fprintf(to, "&#%d;", *text);
        else
            fputc(*text, to);
    }
}

/* Links round the back of a torus are bent, so that they do not lie on the others. */
static double bend_of(const struct drawing *d, int link)
{
    const struct topo_place *a = &d->place[d->g->links[link].from],
                            *b = &d->place[d->g->links[link].to];
    double dx = (b->x - a->x) * (b->x - a->x), dy = (b->y - a->y) * (b->y - a->y);
    const struct bny_node *n = &d->g->nodes[d->g->links[link].from],
                          *m = &d->g->nodes[d->g->links[link].to];
    int grid = (n->x == m->x && abs(n->y - m->y) > 1) || (n->y == m->y && abs(n->x - m->x) > 1);

    if (!grid || n->kind != BNY_NODE_COMPUTE || m->kind != BNY_NODE_COMPUTE || n->z != m->z)
        return 0;
    return dx + dy > 1e-4 ? (b->x > a->x || b->y > a->y ? 0.12 : -0.12) : 0;
}

static void draw_nodes(const struct drawing *d, double x0, double y0, double size, int root,
                       int labels)
{
    double r = size * (d->g->nnodes > 100 ? 0.006 : d->g->nnodes > 30 ? 0.012 : 0.02);

    for (int v = 0; v < d->g->nnodes; v++) {
        const struct bny_node *n = &d->g->nodes[v];
        double x = x0 + d->place[v].x * size, y = y0 + d->place[v].y * size;

        if (n->kind == BNY_NODE_COMPUTE)
            fprintf(d->to,
                    "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\" stroke=\"#333\" "
                    "stroke-width=\".6\"/>\n",
                    x, y, n->rank == root ? 1.6 * r : r, n->rank == root ? "#333" : "#fff");
        else
            fprintf(d->to,
                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                    "fill=\"#e8e8e8\" stroke=\"#555\" "
                    "stroke-width=\".6\"/>\n",
                    x - 1.3 * r, y - r, 2.6 * r, 2 * r);
        if (labels && n->kind == BNY_NODE_COMPUTE && d->g->nranks <= 128)
            fprintf(d->to,
                    "<text x=\"%.1f\" y=\"%.1f\" font-size=\"%.1f\" "
                    "text-anchor=\"middle\">%d</text>\n",
                    x, y + 0.35 * r, r, n->rank);
    }
}

static void draw_loads(const struct drawing *d)
{
    double width = d->g->nlinks > 600 ? 0.9 : d->g->nlinks > 150 ? 1.6 : 2.6;
    char colour[8];

    for (int l = 0; l < d->g->nlinks; l++) {
        const struct bny_link *k = &d->g->links[l];

        topo_heat(colour, d->busiest > 0 ? d->load[l] / (double)k->cap / d->busiest : 0);
        topo_arrow(d->to, &d->place[k->from], &d->place[k->to], 0, TOP, MAIN, width, colour,
                   bend_of(d, l));
    }
    draw_nodes(d, 0, TOP, MAIN, -1, 1);
    for (int i = 0; i <= 20; i++) {
        topo_heat(colour, i / 20.0);
        fprintf(d->to, "<rect x=\"%.1f\" y=\"%.1f\" width=\"9\" height=\"8\" fill=\"%s\"/>\n",
                20 + 9.0 * i, TOP + MAIN + 8, colour);
    }
    fprintf(d->to,
            "<text x=\"216\" y=\"%.1f\" font-size=\"11\">busy, of the busiest link</text>\n",
            TOP + MAIN + 16);
}

/* Edges away from the root, the latest step in red. */
static void draw_tree(const struct drawing *d, int t, double x0, double y0, double size)
{
    const struct bny_tree *tree = &d->f->trees[t];
    double width = d->g->nnodes > 100 ? 0.8 : 1.4,
           last = d->f->nsteps > 1 ? d->f->nsteps - 1 : 1;
    char colour[8];

    fprintf(d->to,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#fafafa\"/>\n"
            "<text x=\"%.1f\" y=\"%.1f\" font-size=\"10\">tree %d, root %d, %u/%u of the "
            "data</text>\n",
            x0, y0, size, size, x0 + 4, y0 + size - 4, t, tree->root, tree->weight_num,
            tree->weight_den);
    for (int v = 0; v < d->f->nranks; v++) {
        uint32_t step =
            tree->down_parent ? tree->down_step[v] : d->f->nsteps - 1 - tree->step[v];

        if (v == tree->root)
            continue;
        topo_heat(colour, 0.25 + 0.75 * step / last);
        for (int i = 0; i < tree->down[v].nlinks; i++) {
            const struct bny_link *k = &d->g->links[tree->down[v].links[i]];

            topo_arrow(d->to, &d->place[k->from], &d->place[k->to], x0, y0 + size * 0.02,
                       size * 0.94, width, colour, bend_of(d, tree->down[v].links[i]));
        }
    }
    draw_nodes(d, x0, y0 + size * 0.02, size * 0.94, tree->root, 0);
}

static void draw_title(const struct drawing *d)
{
    const struct bny_claim *c = d->f ? &d->f->claim : NULL;
    char time[48], bound[48];

    fputs("<text x=\"16\" y=\"26\" font-size=\"17\" font-weight=\"bold\">", d->to);
    write_text(d->to, d->f ? d->f->name : d->name);
    fputs(" on ", d->to);
    write_text(d->to, d->g->name);
    fprintf(d->to, "</text>\n<text x=\"16\" y=\"46\" font-size=\"12\">%d ranks, %d links",
            d->g->nranks, d->g->nlinks);
    if (d->f)
        fprintf(d->to, ", %d trees, %u steps", d->f->ntrees, d->f->nsteps);
    if (c && c->time.den && c->bound.den)
        fprintf(d->to, "; time %s, bound %s: %.2f %% above",
                bny_ratio_text(c->time, time, sizeof time),
                bny_ratio_text(c->bound, bound, sizeof bound),
                100 * (bny_ratio_value(c->time) / bny_ratio_value(c->bound) - 1));
    fputs("</text>\n", d->to);
}

static void topo_draw_draw(const struct drawing *d, int trees)
{
    int all = d->f ? d->f->ntrees : 0, n = all < trees ? all : trees,
        rows = n > 4   ? 3
               : n > 1 ? 2
                       : 1;
    int columns = (n + rows - 1) / rows;
    double size = MAIN / rows;

    fprintf(d->to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"sans-serif\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            MAIN + columns * size + 16, TOP + MAIN + 28);
    draw_title(d);
    draw_loads(d);
    for (int i = 0; i < n; i++) /* trees spread over all */
        draw_tree(d, (int)((long)i * d->f->ntrees / n), MAIN + 8 + i % columns * size,
                  TOP + i / columns * size, size - 6);
    fputs("</svg>\n", d->to);
}

/* The graph and what the plan loads on its links. 0, an error, or 2: a wrong option (said). */
static int make(struct drawing *d, struct bny_graph **g, struct bny_forest **f,
                const struct topo_opts *o)
{
    struct topo_opts with = *o;
    struct bny_plan_file plan = { .use = o->use };
    struct bny_program_set set = { 0 };
    const char *name = with.schedule;
    int e = 0, xml = name && topo_is_xml(name);

    if (xml)
        e = bny_msccl_load(&set, name);
    else if (name && !bny_graph_builder_find(name) && !bny_builder_find(name)) {
        e = topo_plan_load(&plan, name);
        with.topo = !e && !o->topo && *plan.topology ? plan.topology : o->topo;
    }
    with.trees = 0; /* here: how many are drawn */
    if (!e)
        e = topo_graph(g, &with);
    if (!e && !plan.forest && !xml)
        e = topo_root_missing(o, *g); /* 2: said */
    if (!e && !xml)
        e = topo_forest(f, *g, &with);
    if (!e) {
        *d = (struct drawing){ .g = *g,
                               .f = *f,
                               .name = name,
                               .place = topo_places(*g),
                               .load = calloc((size_t)(*g)->nlinks + 1, sizeof *d->load) };
        e = !d->place || !d->load ? bny_fail(BANYAN_ENOMEM, "no memory for a drawing")
            : xml                 ? topo_program_loads(d->load, &set, *g)
                                  : topo_loads(d->load, *f, *g, plan.use);
    }
    bny_plan_close(&plan);
    bny_program_set_free(&set);
    return e;
}

static int topo_draw_run(const struct topo_opts *o)
{
    struct topo_opts with = *o;
    struct drawing d = { 0 };
    struct bny_graph *g = NULL;
    struct bny_forest *f = NULL;
    int e;

    if (o->nargs)
        with.schedule = o->args[0];
    if (with.schedule && !strcmp(with.schedule, "auto"))
        with.schedule = NULL;
    e = make(&d, &g, &f, &with);
    for (int l = 0; l < (e ? 0 : g->nlinks); l++)
        if (d.load[l] / (double)g->links[l].cap > d.busiest)
            d.busiest = d.load[l] / (double)g->links[l].cap;
    d.to = e ? NULL : topo_open(o);
    if (e < 0)
        e = topo_failed(with.schedule);
    else if (!e && !d.to)
        e = 1;
    else if (!e) {
        topo_draw_draw(&d, o->trees ? o->trees : TREES);
        e = topo_close(d.to, o);
    }
    free(d.place);
    free(d.load);
    bny_forest_free(f);
    bny_graph_free(g);
    return e;
}

const struct topo_command topo_draw = {
    "draw", "tscrkoH",
    "[PLAN]: its trees on the graph as SVG, links coloured by load; of MSCCL XML the links",
    topo_draw_run
};
