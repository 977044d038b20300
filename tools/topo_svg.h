/* SPDX-License-Identifier: BSD-3-Clause */
/* Places of nodes and arrows between them, for drawings of graphs (topo_draw.c). */
#ifndef BNY_TOOLS_TOPO_SVG_H
#define BNY_TOOLS_TOPO_SVG_H

#include <stdio.h>

#include "topo/graph.h"

struct topo_place {
    double x, y; /* of [0, 1] */
};

/* Places by the nodes' own, or ranks on a circle (or several), host by host, with switches
 * inside. NULL on no memory. */
struct topo_place *topo_places(const struct bny_graph *g);
/* An arrow from a to b in a panel at (x0, y0) of that size; long ones are bent, and both
 * directions are apart. */
void topo_arrow(FILE *to, const struct topo_place *a, const struct topo_place *b, double x0,
                double y0, double size, double width, const char *colour, double bend);
/* blue - green - yellow - red for 0 .. 1 */
void topo_heat(char colour[8], double value);

#endif
