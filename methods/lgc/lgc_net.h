/* SPDX-License-Identifier: BSD-3-Clause */
/* LGC's autoencoder, as a table of functions. The real one is libbanyan-lgc.so
 * (module/), which links oneDNN and is loaded on first use: the library itself does not depend
 * on it.
 *
 * The network (compression.md, section 1). Encoder: five 1-D convolutions with leaky ReLU after
 * each, 1 -> 64 -> 128 -> 256 -> 64 -> 4 channels, kernel 3 and stride 2 but for the last one,
 * 1 and 1; zero padding of 1 before the first value. Decoder: four transposed convolutions with
 * leaky ReLU, 4 -> 32 -> 64 -> 128 -> 32 channels, kernel 3, stride 2, each exactly doubling
 * the length (output i of input j where i = 2 j + tap - 1); then for each value a linear map of
 * the 32 channels, and in the server instance of the innovation, to the result.
 *
 * Arrays of values: [length], or [length][channels] (the code: [mu/16][4]). Weights: for each
 * layer [narrow channels][wide channels][taps], where the narrow side is the one with the
 * shorter length, then its biases; for a decoder's last map its weights and its bias. First the
 * encoder, then each decoder.
 *
 * Functions that can fail return 0 or -1 and write one sentence to text of the network. One
 * thread at a time for each network. */
#ifndef BNY_METHODS_LGC_LGC_NET_H
#define BNY_METHODS_LGC_LGC_NET_H

#include <stddef.h>
#include <stdint.h>

#define BNY_LGC_NET_VERSION 1 /* of this table: library and module come from one build */
#define BNY_LGC_TEXT        200
#define BNY_LGC_SHORTER     16   /* times as many values as positions of a code */
#define BNY_LGC_CODE        4    /* channels of a code */
#define BNY_LGC_SLOPE       .01f /* of the leaky ReLU for negative inputs */

struct bny_lgc_net_conf {
    size_t mu; /* length of a vector; a multiple of 16 */
    int ranks;
    int decoders; /* 1: of the mean, without innovations; ranks: one each, with them */
    int trains;   /* gradients() and update() will be called */
    int sgd;      /* else Adam (beta .9, .999, epsilon 1e-8) */
    int threads;
    double rate;                       /* of learning */
    double lambda_rec, lambda_similar; /* used with innovations */
    uint64_t seed;
};

struct bny_lgc_net {
    size_t nencoder, nweights; /* numbers: of the encoder, of all */
    size_t ncode;              /* of a code */
    float *weights;            /* [nweights]; pack() after writing */
    float *gradient;           /* [nweights] of the latest gradients(); NULL: does not train */
    float *moments;            /* [2 * nweights] of Adam; NULL: does not train */
    uint64_t updates;          /* done by the optimiser */
    char text[BNY_LGC_TEXT];
};

struct bny_lgc_net_ops {
    uint32_t version;
    /* A network with weights of the seed, in [-1, 1] / sqrt(wide channels * taps), as PyTorch's
     * convolutions and transposed convolutions have them. */
    int (*create)(struct bny_lgc_net **out, const struct bny_lgc_net_conf *conf, char *text);
    void (*destroy)(struct bny_lgc_net *net);
    int (*pack)(struct bny_lgc_net *net);
    int (*encode)(struct bny_lgc_net *net, const float *x, float *code);
    /* decoder: its number; innovation: [mu], or NULL where there are none. */
    int (*decode)(struct bny_lgc_net *net, int decoder, const float *code,
                  const float *innovation, float *x);
    /* The loss of the ranks' vectors x [ranks][mu], its gradient, and in y [mu] the
     * reconstruction of their mean. With one decoder the mean code is decoded, and the loss is
     * its mean square error against the mean vector. With innovations [ranks][mu] all decoders
     * are given the code of rank `chosen`, and the loss is
     *     lambda_rec sum_w MSE(x_w, y_w) + lambda_similar sum_{i != j} MSE(code_i, code_j). */
    int (*gradients)(struct bny_lgc_net *net, const float *x, const float *innovation,
                     int chosen, float *y, double *loss);
    /* One step of the optimiser along gradient; packs. */
    int (*update)(struct bny_lgc_net *net);
};

/* The module's only symbol. */
typedef const struct bny_lgc_net_ops *bny_lgc_net_fn(void);

/* Loads the module at path (NULL: where bny_module_find looks). 0, or -BANYAN_ENOTSUP,
 * -BANYAN_EVERSION with how to get it. Any thread. */
int bny_lgc_net_load(const struct bny_lgc_net_ops **out, const char *path);

#endif
