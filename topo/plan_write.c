/* SPDX-License-Identifier: BSD-3-Clause */
/* Writes plan files (plan_file.h has the format). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/filesize.h"
#include "topo/bound.h"
#include "topo/dual.h"
#include "topo/plan_file.h"

static uint64_t plan_write_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

uint64_t bny_graph_hash(const struct bny_graph *g)
{
    uint64_t h = plan_write_mix(0x62616e79616eu, (uint64_t)g->nnodes);

    for (int r = 0; r < g->nranks; r++)
        h = plan_write_mix(h, (uint64_t)g->rank_node[r]);
    for (int l = 0; l < g->nlinks; l++) {
        const struct bny_link *k = &g->links[l];

        h = plan_write_mix(plan_write_mix(h, (uint64_t)k->from), (uint64_t)k->to);
        h = plan_write_mix(plan_write_mix(h, (uint64_t)k->cap), (uint64_t)k->lat_ns);
    }
    return h ? h : 1;
}

const char *bny_use_name(enum bny_forest_use use)
{
    return use == BNY_FOREST_SCATTERED ? "scattered"
           : use == BNY_FOREST_ROOTED  ? "rooted"
                                       : "allreduce";
}

const char *bny_cut_kind_name(int kind)
{
    static const char *const names[] = { "none",  "out", "in",       "out_in",  "split",
                                         "ports", "lp",  "root_out", "root_in", "parts" };

    return kind >= 0 && kind < (int)(sizeof names / sizeof names[0]) ? names[kind] : "none";
}

static void write_text(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            fprintf(to, "\\%c", c);
        else if (c < 0x20)
            fprintf(to, "\\u%04x", c);
        else
            fputc(c, to);
    }
    fputc('"', to);
}

static void write_ints(FILE *to, const char *name, const int *v, int n)
{
    fprintf(to, ",\n   \"%s\": [", name);
    for (int i = 0; i < n; i++)
        fprintf(to, "%s%d", i ? "," : "", v[i]);
    fputc(']', to);
}

static void write_steps(FILE *to, const char *name, const uint32_t *v, int n)
{
    fprintf(to, ",\n   \"%s\": [", name);
    for (int i = 0; i < n; i++)
        fprintf(to, "%s%" PRIu32, i ? "," : "", v[i]);
    fputc(']', to);
}

static void write_routes(FILE *to, const char *name, const struct bny_route *v, int n)
{
    fprintf(to, ",\n   \"%s\": [", name);
    for (int i = 0; i < n; i++) {
        fputs(i ? "," : "", to);
        if (v[i].nlinks == 1) {
            fprintf(to, "%d", v[i].links[0]);
            continue;
        }
        fputc('[', to);
        for (int k = 0; k < v[i].nlinks; k++)
            fprintf(to, "%s%d", k ? "," : "", v[i].links[k]);
        fputc(']', to);
    }
    fputc(']', to);
}

static void write_tree(FILE *to, const struct bny_tree *tree, int n, int routes)
{
    fprintf(to,
            "{ \"root\": %d, \"weight\": \"%" PRIu32 "/%" PRIu32 "\", \"pipeline\": %" PRIu32,
            tree->root, tree->weight_num, tree->weight_den, tree->pipeline);
    write_ints(to, "parent", tree->parent, n);
    write_steps(to, "step", tree->step, n);
    if (tree->up && routes)
        write_routes(to, "up", tree->up, n);
    if (tree->down_parent) {
        write_ints(to, "down_parent", tree->down_parent, n);
        write_steps(to, "down_step", tree->down_step, n);
    }
    if (tree->down && routes)
        write_routes(to, "down", tree->down, n);
    fputs(" }", to);
}

static void write_nodes(FILE *to, const uint8_t *in, int n)
{
    int first = 1;

    fputc('[', to);
    for (int v = 0; v < n; v++)
        if (in[v]) {
            fprintf(to, "%s%d", first ? "" : ",", v);
            first = 0;
        }
    fputc(']', to);
}

static void write_numbers(FILE *to, const char *key, const int64_t *a, int n)
{
    fprintf(to, ", \"%s\": [", key);
    for (int i = 0; i < n; i++)
        fprintf(to, "%s%" PRId64, i ? "," : "", a[i]);
    fputc(']', to);
}

static void write_dual(FILE *to, const struct bny_dual *d)
{
    fputs(",\n  \"dual\": { \"sets\": [", to);
    for (int s = 0; s < d->nsets; s++) {
        fprintf(to,
                "%s\n   { \"reduce\": %d, \"times\": %" PRId64 ", \"nodes\": ", s ? "," : "",
                d->reduce[s], d->times[s]);
        write_nodes(to, d->in + (size_t)s * (size_t)d->nnodes, d->nnodes);
        fputs(" }", to);
    }
    fputc(']', to);
    write_numbers(to, "down_pot", d->down_pot, d->nnodes);
    write_numbers(to, "up_pot", d->up_pot, d->nnodes);
    fputs(" }", to);
}

static void write_claim(FILE *to, const struct bny_claim *claim)
{
    char time[48], bound[48];
    int most = 0;

    fprintf(to, ",\n \"claim\": { \"time\": \"%s\", \"bound\": \"%s\", \"kind\": \"%s\"",
            bny_ratio_text(claim->time, time, sizeof time),
            bny_ratio_text(claim->bound, bound, sizeof bound),
            bny_cut_kind_name(claim->cut_kind));
    for (int v = 0; v < claim->cut_nodes; v++)
        most = claim->cut[v] > most ? claim->cut[v] : most;
    if (most > 1) {
        fputs(", \"parts\": [", to);
        for (int v = 0; v < claim->cut_nodes; v++)
            fprintf(to, "%s%d", v ? "," : "", claim->cut[v]);
        fputc(']', to);
    } else if (claim->cut) {
        fputs(", \"cut\": ", to);
        write_nodes(to, claim->cut, claim->cut_nodes);
    }
    if (claim->dual)
        write_dual(to, claim->dual);
    fputs(" }", to);
}

int bny_plan_write(FILE *to, const struct bny_forest *f, enum bny_forest_use use, int root,
                   const struct bny_graph *g)
{
    fprintf(to, "{ \"banyan_plan\": 1,\n \"name\": ");
    write_text(to, f->name);
    fprintf(to, ", \"use\": \"%s\", \"root\": %d, \"ranks\": %d, \"steps\": %" PRIu32,
            bny_use_name(use), use == BNY_FOREST_ROOTED ? root : -1, f->nranks, f->nsteps);
    if (g) {
        fprintf(to, ",\n \"topology\": { \"name\": ");
        write_text(to, g->name);
        fprintf(to, ", \"hash\": \"%016" PRIx64 "\", \"nodes\": %d, \"links\": %d }",
                bny_graph_hash(g), g->nnodes, g->nlinks);
        if (f->claim.time.den)
            write_claim(to, &f->claim);
    }
    fputs(",\n \"trees\": [", to);
    for (int t = 0; t < f->ntrees; t++) {
        fputs(t ? ",\n  " : "\n  ", to);
        write_tree(to, &f->trees[t], f->nranks, g != NULL);
    }
    fputs("\n ] }\n", to);
    return ferror(to) ? -BANYAN_ESYSTEM : 0;
}

int bny_plan_save(const char *path, const struct bny_forest *f, enum bny_forest_use use,
                  int root, const struct bny_graph *g)
{
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    int e = to ? bny_plan_write(to, f, use, root, g) : -1;

    if (to && fclose(to) != 0)
        e = -1;
    if (e == 0)
        e = bny_file_save(path, text, len);
    free(text);
    return e ? bny_fail_errno("cannot write the plan to %s", path) : 0;
}
