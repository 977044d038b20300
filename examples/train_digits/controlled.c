/* SPDX-License-Identifier: BSD-3-Clause */
/* How a training loop uses banyan/training.h and banyan/methods.h. */
#include "controlled.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t wire_now(const struct controlled *c)
{
    struct banyan_stats s = { .size = sizeof s };

    return banyan_comm_stats(c->comm, &s) == 0 ? s.wire_bytes : 0;
}

static void describe(struct controlled *c, const struct network *net, int l, int bias)
{
    int i = bias ? net->nlayers + l : l;

    snprintf(c->names[i], sizeof c->names[i], "layer%d.%s", l, bias ? "bias" : "weights");
    c->dims[i][0] = net->width[bias ? l + 1 : l];
    c->dims[i][1] = net->width[l + 1];
    c->tensors[i] =
        (struct banyan_tensor){ c->names[i], BANYAN_F32, bias ? 1 : 2, c->dims[i],
                                c->grad + (bias ? net->biases[l] : net->weights[l]) };
}

int controlled_init(struct controlled *c, struct banyan_comm *comm, const struct network *net,
                    float *grad, const struct method_options *opt)
{
    struct method_model model = { c->tensors, 2 * (size_t)net->nlayers, net->n, net->param,
                                  grad };

    c->comm = comm;
    c->grad = grad;
    c->n = net->n;
    c->before = calloc(net->n, sizeof(float));
    if (!c->before)
        return -BANYAN_ENOMEM;
    for (int l = 0; l < net->nlayers; l++) {
        size_t n = (size_t)net->width[l] * (size_t)net->width[l + 1];

        if (n >= 1024 && c->coded == net->weights[l])
            c->coded += n;
        describe(c, net, l, 0);
        describe(c, net, l, 1);
    }
    return method_create(&c->method, comm, &model, opt);
}

void controlled_free(struct controlled *c)
{
    method_free(c->method);
    free(c->before);
}

int controlled_reduce(struct controlled *c, int last, float share)
{
    uint64_t wire = wire_now(c);
    size_t tensors = 0;
    int rc = 0;

    for (size_t i = 0; i < c->n && last; i++)
        c->grad[i] *= share;
    while (c->tensors[tensors].name)
        tensors++;
    while (tensors-- > 0 && rc == 0)
        rc = method_ready(c->method, tensors);
    if (rc == 0)
        rc = method_reduce(c->method);
    c->wire += wire_now(c) - wire;
    return rc;
}

void controlled_before(struct controlled *c, const struct network *net)
{
    memcpy(c->before, net->param, c->n * sizeof(float));
}

int controlled_after(struct controlled *c, const struct network *net, double loss, double rate)
{
    uint64_t wire = wire_now(c);
    double squared = 0;
    int rc;

    for (size_t i = 0; i < c->n; i++) {
        double d = (double)net->param[i] - (double)c->before[i];

        squared += d * d;
    }
    rc = method_stepped(c->method, squared, loss, rate);
    c->wire += wire_now(c) - wire;
    return rc;
}

int controlled_settle(struct controlled *c)
{
    uint64_t wire = wire_now(c);
    int rc = method_settle(c->method);

    c->wire += wire_now(c) - wire;
    return rc;
}
