/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans for a cluster after a loss: of a link, a NIC, a rank, or speed. */
#ifndef BNY_TOPO_REPAIR_H
#define BNY_TOPO_REPAIR_H

#include "topo/bound.h"

struct bny_repair {
    int kept, mended,
        planned; /* trees taken unchanged; with some edges replaced; made anew (then all are) */
    double seconds;
};

/* A forest for `after`, which is `before` without some nodes, links or capacity (nodes are
 * matched by name), from one for `before`. Trees lose edges over missing or full links, and
 * their parts are attached again through the remaining capacity at the new optimum; if that
 * does not come within 1 % of the bound, everything is packed anew. Shares of missing roots go
 * to the others in proportion. root (rooted use): as in before. Certified on after. report may
 * be NULL. Returns 0; -BANYAN_EINVAL (graphs that do not belong together, the root is missing),
 * other errors of the builders. */
int bny_forest_repair(struct bny_forest **out, const struct bny_forest *f,
                      const struct bny_graph *before, const struct bny_graph *after,
                      enum bny_forest_use use, int root, struct bny_repair *report);

#endif
