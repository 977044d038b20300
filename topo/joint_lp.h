/* SPDX-License-Identifier: BSD-3-Clause */
/* The joint allreduce program: root weights and the split of
 * every link between reduction and broadcast that minimise the time, by cutting planes. */
#ifndef BNY_TOPO_JOINT_LP_H
#define BNY_TOPO_JOINT_LP_H

#include "topo/dual.h"
#include "topo/graph.h"

struct bny_joint {
    double time;           /* in units of S / capacity 1 */
    double *weight;        /* [nranks] sum 1 */
    double *down, *up;     /* [nlinks] load of the broadcast and of the reduction */
    struct bny_dual *dual; /* proves a bound within about 1e-6 of time */
    int rounds, cuts;      /* of the cutting planes, for diagnosis */
};

/* 0, -BANYAN_ENOMEM, or -BANYAN_ENOTSUP for graphs of more than about 900 links and ranks. */
int bny_joint_solve(struct bny_joint *j, const struct bny_graph *g);
void bny_joint_free(struct bny_joint *j);

#endif
