/* SPDX-License-Identifier: BSD-3-Clause */
/* train_graph: two graph convolutions (Kipf and Welling, ICLR 2017) on the part of the graph
 * that a rank has. Z = A relu(A X W0 + b0) W1 + b1, A the normalised neighbourhood; loss:
 * softmax cross-entropy of the training nodes. */
#ifndef GCN_H
#define GCN_H

#include "graph.h"

struct gcn {
    const struct graph *graph;
    const struct part *part;
    int hidden;
    float *param; /* W0 [FEATURES][hidden], b0, W1 [hidden][CLASSES], b1 */
    size_t n;
    float *ax;           /* [own][FEATURES] does not change */
    float *h;            /* [own][hidden] what others need of this rank */
    float *remote;       /* [halo][hidden] what this rank needs of others */
    float *mixed;        /* [own][hidden] A h */
    float *z;            /* [own][CLASSES], then the loss's derivative by it */
    float *dh, *dremote; /* derivatives by h and remote */
};

/* Returns 0 or -1. Parameters are the same on all ranks. */
int gcn_init(struct gcn *m, const struct graph *g, const struct part *p, int hidden,
             uint64_t seed);
void gcn_free(struct gcn *m);
/* The first layer: fills h. Then remote comes from the others; then the second layer. Adds up
 * the loss of this rank's training nodes, and counts [0] nodes to test, [1] right ones. */
void gcn_first(struct gcn *m);
void gcn_second(struct gcn *m, double *loss, int64_t *counts);
/* scale: of each training node in the loss. Fills grad's second layer, dh and dremote. Then
 * what others know of dh is added by gcn_add; then the first layer. */
void gcn_back_second(struct gcn *m, float scale, float *grad);
void gcn_add(struct gcn *m, const float *came);
void gcn_back_first(struct gcn *m, float *grad);

#endif
