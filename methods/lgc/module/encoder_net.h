/* SPDX-License-Identifier: BSD-3-Clause */
/* The autoencoder: struct bny_lgc_net with what is behind it. Functions of encoder_net.c, as
 * the table of methods/lgc/lgc_net.h documents them; lgc_module.c limits oneDNN's threads
 * around them. */
#ifndef BNY_METHODS_LGC_MODULE_ENCODER_NET_H
#define BNY_METHODS_LGC_MODULE_ENCODER_NET_H

#include "methods/lgc/module/stack.h"
#include "methods/lgc/lgc_net.h"

#define BNY_LGC_HIDDEN 32 /* channels before a decoder's last map */

struct bny_net {
    struct bny_lgc_net net; /* first */
    struct bny_lgc_net_conf conf;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct bny_stack one, all; /* encoders: of one vector; of every rank's, for training */
    struct bny_stack dec;
    size_t ndecoder; /* weights of one */
    float *mean;     /* [mu] vector */
    float *code;     /* [ncode] mean code, or the sum of the codes */
    float *rec;      /* [mu] a reconstruction, then the loss's gradient by it */
};

int bny_net_create(struct bny_net **out, const struct bny_lgc_net_conf *conf, char *text);
void bny_net_destroy(struct bny_net *n);
int bny_net_pack(struct bny_net *n);
int bny_net_encode(struct bny_net *n, const float *x, float *code);
int bny_net_decode(struct bny_net *n, int decoder, const float *code, const float *innovation,
                   float *x);
int bny_net_gradients(struct bny_net *n, const float *x, const float *innovation, int chosen,
                      float *y, double *loss);
int bny_net_update(struct bny_net *n);

#endif
