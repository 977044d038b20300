/* SPDX-License-Identifier: BSD-3-Clause */
/* train_digits, elastic_train: the sum of all ranks' gradients, with or without a codec. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <banyan/banyan.h>

#include "network.h"

struct exchange {
    struct banyan_comm *comm;
    const char *codec; /* NULL: everything in one ordinary allreduce */
    int ncoded;        /* matrices that are encoded: the first ones */
    size_t coded;      /* their elements, which lie in front */
    int64_t shape[LAYERS_MAX][2];
    struct banyan_codec_state *state[LAYERS_MAX]; /* of each; NULL: without feedback */
    uint64_t wire_bytes; /* that this rank sent for these matrices so far */
};

/* Matrices from the first on, as long as they have 1024 elements, are encoded. codec may be
 * NULL. Returns 0 or the library's error. */
int exchange_init(struct exchange *ex, struct banyan_comm *comm, const struct network *net,
                  const char *codec, int feedback, uint64_t seed);
void exchange_free(struct exchange *ex);
/* grad[n + 1], gradients and, behind them, one more number, becomes the sum over ranks: first
 * what is encoded, then the rest. */
int exchange_sum_coded(struct exchange *ex, float *grad);
int exchange_sum_rest(struct exchange *ex, float *grad, size_t n);
/* Steps are taken at another rate from now on. What waits in the residuals was meant for the
 * old one. */
int exchange_rate_changes(struct exchange *ex, double from, double to);

#endif
