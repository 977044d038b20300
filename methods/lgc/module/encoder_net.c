/* SPDX-License-Identifier: BSD-3-Clause */
/* The autoencoder of LGC: its life, its passes, its loss, its optimiser. */
#include "methods/lgc/module/encoder_net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

static const int encoder[] = { 1, 64, 128, 256, 64, BNY_LGC_CODE };
static const int decoder[] = { BNY_LGC_CODE, 32, 64, 128, BNY_LGC_HIDDEN };
#define ENCODER_LAYERS 5
#define DECODER_LAYERS 4

static int failed(struct bny_net *n, const char *what, int status)
{
    snprintf(n->net.text, sizeof n->net.text, "oneDNN could not %s (%s)", what,
             status == dnnl_out_of_memory   ? "out of memory"
             : status == dnnl_unimplemented ? "not implemented on this processor"
                                            : "an error of its own");
    return -1;
}

/* ---- life ---- */
static int innovates(const struct bny_net *n)
{
    return n->conf.decoders > 1;
}

static int make_stacks(struct bny_net *n)
{
    struct bny_conv_shape like = { .batch = 1, .sets = 1 };
    int rc = bny_stack_init(&n->one, encoder, ENCODER_LAYERS, n->conf.mu, &like, n->engine,
                            n->stream);

    like = (struct bny_conv_shape){ .batch = n->conf.ranks, .sets = 1, .trains = 1 };
    if (!rc && n->conf.trains)
        rc = bny_stack_init(&n->all, encoder, ENCODER_LAYERS, n->conf.mu, &like, n->engine,
                            n->stream);
    like = (struct bny_conv_shape){
        .batch = 1, .sets = n->conf.decoders, .up = 1, .trains = n->conf.trains
    };
    if (!rc)
        rc = bny_stack_init(&n->dec, decoder, DECODER_LAYERS, n->conf.mu, &like, n->engine,
                            n->stream);
    return rc;
}

static int make_arrays(struct bny_net *n)
{
    struct bny_lgc_net *p = &n->net;

    n->ndecoder = n->dec.at[DECODER_LAYERS] + BNY_LGC_HIDDEN + (size_t)innovates(n) + 1;
    p->nencoder = n->one.at[ENCODER_LAYERS];
    p->nweights = p->nencoder + (size_t)n->conf.decoders * n->ndecoder;
    p->ncode = n->conf.mu / BNY_LGC_SHORTER * BNY_LGC_CODE;
    p->weights = bny_stack_floats(p->nweights);
    n->mean = bny_stack_floats(n->conf.mu);
    n->code = bny_stack_floats(p->ncode);
    n->rec = bny_stack_floats(n->conf.mu);
    if (n->conf.trains) {
        p->gradient = bny_stack_floats(p->nweights);
        p->moments = bny_stack_floats(2 * p->nweights);
    }
    return p->weights && n->mean && n->code && n->rec &&
                   (!n->conf.trains || (p->gradient && p->moments))
               ? 0
               : dnnl_out_of_memory;
}

static void encoder_net_draw(float *w, size_t n, double bound, uint64_t *state)
{
    for (size_t i = 0; i < n; i++)
        w[i] = (float)(bound * (2 * bny_rng_unit(state) - 1));
}

static void draw_stack(const struct bny_stack *s, float *w, uint64_t *state)
{
    for (int l = 0; l < s->layers; l++) {
        const struct bny_conv_shape *c = &s->conv[l].shape;

        encoder_net_draw(w + s->at[l], s->at[l + 1] - s->at[l],
                         1 / sqrt((double)c->wide * c->taps), state);
    }
}

/* Where decoder d's weights begin. */
static size_t decoder_at(const struct bny_net *n, int d)
{
    return n->net.nencoder + (size_t)d * n->ndecoder;
}

static void draw_all(struct bny_net *n)
{
    uint64_t state = n->conf.seed;
    size_t map = n->ndecoder - n->dec.at[DECODER_LAYERS];

    draw_stack(&n->one, n->net.weights, &state);
    for (int d = 0; d < n->conf.decoders; d++) {
        float *w = n->net.weights + decoder_at(n, d);

        draw_stack(&n->dec, w, &state);
        encoder_net_draw(w + n->dec.at[DECODER_LAYERS], map, 1 / sqrt((double)map - 1), &state);
    }
}

int bny_net_create(struct bny_net **out, const struct bny_lgc_net_conf *conf, char *text)
{
    struct bny_net *n = calloc(1, sizeof *n);
    int rc;

    *out = n;
    if (!n) {
        snprintf(text, BNY_LGC_TEXT, "no memory for an autoencoder");
        return -1;
    }
    n->conf = *conf;
    rc = dnnl_engine_create(&n->engine, dnnl_cpu, 0);
    if (!rc)
        rc = dnnl_stream_create(&n->stream, n->engine, dnnl_stream_default_flags);
    if (!rc)
        rc = make_stacks(n);
    if (!rc)
        rc = make_arrays(n);
    if (!rc) {
        draw_all(n);
        rc = bny_net_pack(n) ? dnnl_runtime_error : 0;
    }
    if (!rc)
        return 0;
    failed(n, "prepare the autoencoder", rc);
    snprintf(text, BNY_LGC_TEXT, "%s", n->net.text);
    bny_net_destroy(n);
    *out = NULL;
    return -1;
}

void bny_net_destroy(struct bny_net *n)
{
    if (!n)
        return;
    bny_stack_finish(&n->one);
    bny_stack_finish(&n->all);
    bny_stack_finish(&n->dec);
    free(n->net.weights);
    free(n->net.gradient);
    free(n->net.moments);
    free(n->mean);
    free(n->code);
    free(n->rec);
    if (n->stream)
        dnnl_stream_destroy(n->stream);
    if (n->engine)
        dnnl_engine_destroy(n->engine);
    free(n);
}

int bny_net_pack(struct bny_net *n)
{
    int rc = bny_stack_pack(&n->one, 0, n->net.weights);

    if (!rc && n->conf.trains)
        rc = bny_stack_pack(&n->all, 0, n->net.weights);
    for (int d = 0; d < n->conf.decoders && !rc; d++)
        rc = bny_stack_pack(&n->dec, d, n->net.weights + decoder_at(n, d));
    return rc ? failed(n, "pack weights", rc) : 0;
}

/* ---- forward ---- */
/* The last map of a decoder: of the hidden channels, and of the innovation where there is one.
 * Eight partial sums, which a compiler can keep in vectors. */
static void map_forward(const float *restrict h, const float *restrict w,
                        const float *innovation, float *restrict x, size_t mu)
{
    size_t extra = innovation ? 1 : 0;
    float bias = w[BNY_LGC_HIDDEN + extra];

    for (size_t i = 0; i < mu; i++, h += BNY_LGC_HIDDEN) {
        float sum[8] = { 0 };

        for (size_t c = 0; c < BNY_LGC_HIDDEN; c += 8)
            for (size_t k = 0; k < 8; k++)
                sum[k] += h[c + k] * w[c + k];
        x[i] = ((sum[0] + sum[4]) + (sum[1] + sum[5])) +
               ((sum[2] + sum[6]) + (sum[3] + sum[7])) + bias;
        if (extra)
            x[i] += w[BNY_LGC_HIDDEN] * innovation[i];
    }
}

int bny_net_encode(struct bny_net *n, const float *x, float *code)
{
    int rc = bny_stack_forward(&n->one, 0, n->net.weights, x);

    if (rc)
        return failed(n, "encode", rc);
    memcpy(code, n->one.out[ENCODER_LAYERS], n->net.ncode * sizeof *code);
    return 0;
}

int bny_net_decode(struct bny_net *n, int d, const float *code, const float *innovation,
                   float *x)
{
    const float *w = n->net.weights + decoder_at(n, d);
    int rc = bny_stack_forward(&n->dec, d, w, code);

    if (rc)
        return failed(n, "decode", rc);
    map_forward(n->dec.out[DECODER_LAYERS], w + n->dec.at[DECODER_LAYERS], innovation, x,
                n->conf.mu);
    return 0;
}

/* ---- loss and gradient ---- */
/* From d, the gradient by the decoder's result: by its weights, and by the hidden channels. */
static void map_backward(struct bny_net *n, const float *restrict w, const float *restrict d,
                         const float *innovation, float *restrict g)
{
    const float *restrict h = n->dec.out[DECODER_LAYERS];
    float *restrict dh = n->dec.diff[DECODER_LAYERS];
    size_t extra = innovation ? 1 : 0;

    memset(g, 0, (BNY_LGC_HIDDEN + extra + 1) * sizeof *g);
    for (size_t i = 0; i < n->conf.mu; i++, h += BNY_LGC_HIDDEN, dh += BNY_LGC_HIDDEN) {
        for (size_t c = 0; c < BNY_LGC_HIDDEN; c++) {
            dh[c] = d[i] * w[c];
            g[c] += d[i] * h[c];
        }
        if (extra)
            g[BNY_LGC_HIDDEN] += d[i] * innovation[i];
        g[BNY_LGC_HIDDEN + extra] += d[i];
    }
}

/* Decodes code with decoder d, adds share times the reconstruction to y and weight times its
 * mean square error against x to the loss; then backward down to dec.diff[0]. */
static int decoder_pass(struct bny_net *n, int d, const float *code, const float *innovation,
                        const float *x, double weight, float share, float *y, double *loss)
{
    size_t at = decoder_at(n, d), map = at + n->dec.at[DECODER_LAYERS], mu = n->conf.mu;
    float scale = (float)(2 * weight / (double)mu);
    double sum = 0;
    int rc = bny_net_decode(n, d, code, innovation, n->rec);

    if (rc)
        return rc;
    for (size_t i = 0; i < mu; i++) {
        float e = n->rec[i] - x[i];

        y[i] += share * n->rec[i];
        sum += (double)e * e;
        n->rec[i] = scale * e;
    }
    *loss += weight * sum / (double)mu;
    map_backward(n, n->net.weights + map, n->rec, innovation, n->net.gradient + map);
    rc = bny_stack_backward(&n->dec, d, code, n->net.gradient + at, 1);
    return rc ? failed(n, "train", rc) : 0;
}

/* out = sum over ranks of x [ranks][n], times share. */
static void sum_ranks(float *restrict out, const float *x, int ranks, size_t n, float share)
{
    memset(out, 0, n * sizeof *out);
    for (int r = 0; r < ranks; r++)
        for (size_t i = 0; i < n; i++)
            out[i] += x[(size_t)r * n + i];
    for (size_t i = 0; i < n; i++)
        out[i] *= share;
}

static int ring_pass(struct bny_net *n, const float *x, float *y, double *loss)
{
    float *codes = n->all.out[ENCODER_LAYERS], *diff = n->all.diff[ENCODER_LAYERS];
    size_t ncode = n->net.ncode;
    float share = 1 / (float)n->conf.ranks;
    int rc;

    sum_ranks(n->mean, x, n->conf.ranks, n->conf.mu, share);
    sum_ranks(n->code, codes, n->conf.ranks, ncode, share);
    rc = decoder_pass(n, 0, n->code, NULL, n->mean, 1, 1, y, loss);
    for (size_t i = 0; i < (size_t)n->conf.ranks * ncode; i++)
        diff[i] = share * n->dec.diff[0][i % ncode];
    return rc;
}

/* weight * sum_{i != j} MSE(code_i, code_j), which counts each pair twice, and its gradient. */
static void similarity(struct bny_net *n, double weight, double *loss)
{
    float *codes = n->all.out[ENCODER_LAYERS], *diff = n->all.diff[ENCODER_LAYERS];
    size_t ncode = n->net.ncode, ranks = (size_t)n->conf.ranks;
    float scale = (float)(4 * weight / (double)ncode);
    double sum = 0;

    sum_ranks(n->code, codes, n->conf.ranks, ncode, 1);
    for (size_t i = 0; i < ranks * ncode; i++) {
        float c = codes[i], total = n->code[i % ncode];

        sum +=
            (double)c * ((double)ranks * c - total); /* over i: sum of (c_i - c_j)^2, j < i */
        diff[i] = scale * ((float)ranks * c - total);
    }
    *loss += 2 * weight * sum / (double)ncode;
}

static int server_pass(struct bny_net *n, const float *x, const float *innovation, int chosen,
                       float *y, double *loss)
{
    size_t ncode = n->net.ncode, mu = n->conf.mu;
    const float *code = n->all.out[ENCODER_LAYERS] + (size_t)chosen * ncode;
    float *diff = n->all.diff[ENCODER_LAYERS] + (size_t)chosen * ncode;
    int rc = 0;

    similarity(n, n->conf.lambda_similar, loss);
    for (int w = 0; w < n->conf.ranks && !rc; w++) {
        rc = decoder_pass(n, w, code, innovation + (size_t)w * mu, x + (size_t)w * mu,
                          n->conf.lambda_rec, 1 / (float)n->conf.ranks, y, loss);
        for (size_t i = 0; i < ncode; i++)
            diff[i] += n->dec.diff[0][i];
    }
    return rc;
}

int bny_net_gradients(struct bny_net *n, const float *x, const float *innovation, int chosen,
                      float *y, double *loss)
{
    int rc = bny_stack_forward(&n->all, 0, n->net.weights, x);

    if (rc)
        return failed(n, "train", rc);
    *loss = 0;
    memset(y, 0, n->conf.mu * sizeof *y);
    rc = innovates(n) ? server_pass(n, x, innovation, chosen, y, loss)
                      : ring_pass(n, x, y, loss);
    if (rc)
        return rc;
    rc = bny_stack_backward(&n->all, 0, x, n->net.gradient, 0);
    return rc ? failed(n, "train", rc) : 0;
}

/* ---- optimiser ---- */
/* Adam (Kingma, Ba, ICLR 2015, algorithm 1). */
static void adam(struct bny_lgc_net *p, double rate)
{
    const float b1 = .9f, b2 = .999f;
    double t = (double)p->updates;
    float step = (float)(rate / (1 - pow(.9, t)));
    float root = (float)(1 / sqrt(1 - pow(.999, t)));
    float *restrict m = p->moments, *restrict v = p->moments + p->nweights;
    float *restrict w = p->weights;
    const float *restrict g = p->gradient;

    for (size_t i = 0; i < p->nweights; i++) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        w[i] -= step * m[i] / (sqrtf(v[i]) * root + 1e-8f);
    }
}

int bny_net_update(struct bny_net *n)
{
    n->net.updates++;
    if (n->conf.sgd)
        for (size_t i = 0; i < n->net.nweights; i++)
            n->net.weights[i] -= (float)n->conf.rate * n->net.gradient[i];
    else
        adam(&n->net, n->conf.rate);
    return bny_net_pack(n);
}
