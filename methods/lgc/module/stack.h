/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions one after another, with bias and leaky ReLU after each: the encoder, or the
 * decoder up to its last map. Flat weights are those of encoder_net.h. */
#ifndef BNY_METHODS_LGC_MODULE_STACK_H
#define BNY_METHODS_LGC_MODULE_STACK_H

#include "methods/lgc/module/conv.h"

#define BNY_STACK_LAYERS 5

struct bny_stack {
    int layers;
    struct bny_conv conv[BNY_STACK_LAYERS];
    size_t
        at[BNY_STACK_LAYERS + 1]; /* each layer's weights in the flat ones; at the end: all */
    size_t count[BNY_STACK_LAYERS + 1]; /* values: of the input, then of each layer's output */
    float *out[BNY_STACK_LAYERS + 1];   /* of each layer, after its ReLU; [0]: none */
    float *diff[BNY_STACK_LAYERS + 1];  /* the loss's gradient by out; by the input [0] */
};

/* channels[layers + 1] from input to output; length: of the longest side; a layer of an encoder
 * whose channels become 4 has one tap and stride 1. 0, or a dnnl_status_t. */
int bny_stack_init(struct bny_stack *s, const int *channels, int layers, size_t length,
                   const struct bny_conv_shape *like, dnnl_engine_t engine,
                   dnnl_stream_t stream);
void bny_stack_finish(struct bny_stack *s);
int bny_stack_pack(struct bny_stack *s, int set, const float *weights);
/* Fills out[1] to out[layers]. */
int bny_stack_forward(struct bny_stack *s, int set, const float *weights, const float *in);
/* From diff[layers] and the latest forward pass: the weights' gradient, and, where by_input,
 * diff[0]. Overwrites the diffs. */
int bny_stack_backward(struct bny_stack *s, int set, const float *in, float *gradient,
                       int by_input);
/* n floats on a cache line; NULL: none left. */
float *bny_stack_floats(size_t n);

#endif
