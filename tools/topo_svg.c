/* SPDX-License-Identifier: BSD-3-Clause */
/* Drawing of graphs (topo_svg.h). */
#include "tools/topo_svg.h"

#include <math.h>
#include <stdlib.h>

#define PI 3.14159265358979323846

/* Drawn places: rows of z side by side. */
static int own_places(struct topo_place *p, const struct bny_graph *g)
{
    int wide = 0, high = 0, deep = 0, any = 0, levels = 0;
    double nx, ny, most;

    for (int v = 0; v < g->nnodes; v++) {
        const struct bny_node *n = &g->nodes[v];

        wide = n->x > wide ? n->x : wide;
        high = n->y > high ? n->y : high;
        deep = n->z > deep ? n->z : deep;
        any |= n->x | n->y | n->z;
        levels |= n->kind != BNY_NODE_COMPUTE;
    }
    if (!any)
        return 0;
    nx = (wide + 1.6) * (deep + 1) - 0.6;
    ny = high + 1;
    most = nx > ny ? nx : ny;
    for (int v = 0; v < g->nnodes; v++) {
        const struct bny_node *n = &g->nodes[v];

        p[v].x = (n->x + 0.5 + n->z * (wide + 1.6) + (most - nx) / 2) / most;
        p[v].y = levels ? (n->y + 0.5) / ny
                        : (n->y + 0.5 + (most - ny) / 2) / most; /* rows of switches apart */
    }
    for (int a = 0; a < g->nnodes; a++) /* two at one place: these places are not for drawing */
        for (int b = 0; b < a && g->nnodes <= 4096; b++)
            if (fabs(p[a].x - p[b].x) + fabs(p[a].y - p[b].y) < 1e-6)
                return 0;
    return 1;
}

struct topo_place *topo_places(const struct bny_graph *g)
{
    struct topo_place *p = calloc((size_t)g->nnodes + 1, sizeof *p);
    int inner = 0, outer = 0, i = 0, k = 0;

    if (!p || own_places(p, g))
        return p;
    for (int v = 0; v < g->nnodes; v++) {
        inner += g->nodes[v].kind != BNY_NODE_COMPUTE;
        outer += g->nodes[v].kind == BNY_NODE_COMPUTE;
    }
    for (int v = 0; v < g->nnodes; v++) {
        int compute = g->nodes[v].kind == BNY_NODE_COMPUTE;
        double angle = compute ? 2 * PI * i++ / outer : 2 * PI * (k++ + 0.5) / inner;
        double radius = compute ? 0.45 : inner == 1 ? 0 : inner > 12 && k % 2 ? 0.17 : 0.28;

        p[v].x = 0.5 + radius * sin(angle);
        p[v].y = 0.5 - radius * cos(angle);
    }
    return p;
}

void topo_arrow(FILE *to, const struct topo_place *a, const struct topo_place *b, double x0,
                double y0, double size, double width, const char *colour, double bend)
{
    double ax = x0 + a->x * size, ay = y0 + a->y * size, bx = x0 + b->x * size,
           by = y0 + b->y * size;
    double dx = bx - ax, dy = by - ay, len = sqrt(dx * dx + dy * dy), off = 2.2 * width;
    double px, py, mx, my;

    if (len < 1e-9)
        return;
    px = -dy / len;
    py = dx / len;
    if (off > size * 0.006)
        off = size * 0.006;
    mx = (ax + bx) / 2 + px * (bend * len + 2 * off);
    my = (ay + by) / 2 + py * (bend * len + 2 * off);
    fprintf(to,
            "<path d=\"M%.1f %.1fQ%.1f %.1f %.1f %.1f\" stroke=\"%s\" stroke-width=\"%.2f\" "
            "fill=\"none\"/>\n",
            ax + px * off, ay + py * off, mx, my, bx + px * off, by + py * off, colour, width);
}

void topo_heat(char colour[8], double value)
{
    static const int stops[5][3] = {
        { 205, 214, 226 }, { 86, 143, 199 }, { 76, 168, 104 }, { 232, 181, 48 }, { 205, 50, 44 }
    };
    double at = (value < 0 ? 0 : value > 1 ? 1 : value) * 4;
    int i = at >= 4 ? 3 : (int)at, c[3];

    for (int k = 0; k < 3; k++)
        c[k] = (int)(stops[i][k] + (at - i) * (stops[i + 1][k] - stops[i][k]) + 0.5);
    snprintf(colour, 8, "#%02x%02x%02x", c[0] & 255, c[1] & 255, c[2] & 255);
}
