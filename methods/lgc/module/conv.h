/* SPDX-License-Identifier: BSD-3-Clause */
/* One 1-D convolution of oneDNN, used in both directions: down, from its wide side (longer) to
 * its narrow one, as an encoder's layer; up, the transposed convolution, as a decoder's. The
 * backward pass of either is the forward pass of the other. No bias.
 *
 * Values are [batch][length][channels]. Weights are packed once in the layouts that oneDNN
 * likes best, in numbered sets. Functions return 0 or a dnnl_status_t. */
#ifndef BNY_METHODS_LGC_MODULE_CONV_H
#define BNY_METHODS_LGC_MODULE_CONV_H

#include <stddef.h>

#include <dnnl.h>

struct bny_conv_shape {
    int batch;
    int wide, narrow; /* channels */
    int length;       /* of the wide side; the narrow one's times the stride */
    int taps, stride; /* 3 and 2, or 1 and 1 */
    int sets;         /* of weights */
    int up;           /* forward is up */
    int trains;       /* backward passes are wanted */
};

/* A primitive, its weights in its own layout, and its working memory. */
struct bny_conv_pass {
    dnnl_primitive_t run, pack;
    dnnl_memory_t *weights; /* [sets] */
    dnnl_memory_t scratch;
};

struct bny_conv {
    struct bny_conv_shape shape;
    struct bny_conv_pass down, up, grad; /* grad: one set, its result */
    dnnl_memory_t wide, narrow, plain;   /* memory of the caller's */
    dnnl_stream_t stream;
};

int bny_conv_init(struct bny_conv *c, const struct bny_conv_shape *shape, dnnl_engine_t engine,
                  dnnl_stream_t stream);
void bny_conv_finish(struct bny_conv *c);
size_t bny_conv_weights(const struct bny_conv_shape *shape);
/* Weights [narrow][wide][taps] of a set. */
int bny_conv_pack(struct bny_conv *c, int set, const float *weights);
int bny_conv_down(struct bny_conv *c, int set, const float *wide, float *narrow);
int bny_conv_up(struct bny_conv *c, int set, const float *narrow, float *wide);
/* The weights' gradient from what the wide and the narrow side had, one of them a gradient. */
int bny_conv_grad(struct bny_conv *c, const float *wide, const float *narrow, float *weights);

#endif
