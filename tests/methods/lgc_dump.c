/* SPDX-License-Identifier: BSD-3-Clause */
/* Lets LGC's autoencoder compute, and writes what went in and what came out as f32 files, for
 * test_lgc_numpy.py to compute again: two steps of training, then codes and reconstructions.
 * Usage: lgc_dump FOLDER MU RANKS ring|server adam|sgd */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "methods/lgc/lgc_net.h"

static const char *folder;

static void write_floats(const char *name, const float *x, size_t n)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (!f || fwrite(x, sizeof *x, n, f) != n || fclose(f)) {
        perror(path);
        exit(1);
    }
}

static void must(int rc, const struct bny_lgc_net *net)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s\n", net ? net->text : banyan_last_error());
    exit(1);
}

/* Two-sided values far from zero, as top-k ones are, correlated between ranks. */
static void draw(float *x, size_t ranks, size_t mu)
{
    uint64_t state = 7;

    for (size_t i = 0; i < mu; i++) {
        double common = bny_rng_unit(&state) < .5 ? -1 : 1;

        for (size_t r = 0; r < ranks; r++)
            x[r * mu + i] = (float)(common + bny_rng_unit(&state) - .5);
    }
}

static void train(const struct bny_lgc_net_ops *ops, struct bny_lgc_net *net, const float *x,
                  const float *news, float *y)
{
    static const char *const after[] = { "weights1", "weights2" };
    static const char *const gradient[] = { "gradient0", "gradient1" };

    for (int i = 0; i < 2; i++) {
        double loss;

        must(ops->gradients(net, x, news, 1, y, &loss), net);
        printf("%.9g\n", loss);
        write_floats(gradient[i], net->gradient, net->nweights);
        must(ops->update(net), net);
        write_floats(after[i], net->weights, net->nweights);
    }
}

int main(int argc, char **argv)
{
    struct bny_lgc_net_conf conf = { .threads = 1,
                                     .trains = 1,
                                     .rate = .001,
                                     .lambda_rec = .5,
                                     .lambda_similar = .25,
                                     .seed = 3 };
    const struct bny_lgc_net_ops *ops;
    struct bny_lgc_net *net;
    float *x, *news, *y, *codes;
    char text[BNY_LGC_TEXT] = "";
    size_t ranks, mu;
    int server;

    if (argc != 6)
        return 2;
    folder = argv[1];
    conf.mu = mu = (size_t)atoi(argv[2]);
    conf.ranks = atoi(argv[3]);
    server = !strcmp(argv[4], "server");
    conf.decoders = server ? conf.ranks : 1;
    conf.sgd = !strcmp(argv[5], "sgd");
    ranks = (size_t)conf.ranks;
    must(bny_lgc_net_load(&ops, NULL), NULL);
    if (ops->create(&net, &conf, text)) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    x = calloc(ranks * mu, sizeof *x);
    news = calloc(ranks * mu, sizeof *news);
    y = calloc(ranks * mu, sizeof *y);
    codes = calloc(ranks * net->ncode, sizeof *codes);
    if (!x || !news || !y || !codes)
        return 1;
    draw(x, ranks, mu);
    for (size_t i = 0; i < ranks * mu; i += 5)
        news[i] = x[i];
    write_floats("x", x, ranks * mu);
    write_floats("innovation", news, ranks * mu);
    write_floats("weights0", net->weights, net->nweights);
    train(ops, net, x, server ? news : NULL, y);
    for (size_t r = 0; r < ranks; r++) {
        must(ops->encode(net, x + r * mu, codes + r * net->ncode), net);
        must(ops->decode(net, server ? (int)r : 0, codes + r * net->ncode,
                         server ? news + r * mu : NULL, y + r * mu),
             net);
    }
    write_floats("codes", codes, ranks * net->ncode);
    write_floats("y", y, ranks * mu);
    ops->destroy(net);
    free(x);
    free(news);
    free(y);
    free(codes);
    return 0;
}
