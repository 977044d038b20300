/* SPDX-License-Identifier: BSD-3-Clause */
/* How a training loop uses codecs: a state for each tensor, its shape, and everything small
 * together in one ordinary allreduce. */
#include "exchange.h"

#include <string.h>

/* Elements: less costs more time in calls than it saves on any wire. */
#define ENCODE_MIN 1024

int exchange_init(struct exchange *ex, struct banyan_comm *comm, const struct network *net,
                  const char *codec, int feedback, uint64_t seed)
{
    memset(ex, 0, sizeof *ex);
    ex->comm = comm;
    ex->codec = codec;
    for (int l = 0; codec && l < net->nlayers; l++) {
        size_t n = (size_t)net->width[l] * (size_t)net->width[l + 1];
        int rc;

        if (n < ENCODE_MIN)
            break;
        ex->shape[l][0] = net->width[l];
        ex->shape[l][1] = net->width[l + 1];
        ex->ncoded++;
        ex->coded += n;
        rc = feedback ? banyan_codec_state_create(&ex->state[l], n, seed + (uint64_t)l) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

void exchange_free(struct exchange *ex)
{
    for (int l = 0; l < ex->ncoded; l++)
        banyan_codec_state_free(ex->state[l]);
}

static int sum_coded(struct exchange *ex, float *grad)
{
    for (int l = 0; l < ex->ncoded; l++) {
        struct banyan_opts o = BANYAN_OPTS_INIT;
        size_t n = (size_t)(ex->shape[l][0] * ex->shape[l][1]);
        int rc;

        o.codec = ex->codec;
        o.codec_state = ex->state[l];
        o.shape = ex->shape[l];
        o.ndim = 2;
        rc = banyan_allreduce(grad, grad, n, BANYAN_F32, BANYAN_SUM, ex->comm, &o);
        if (rc < 0)
            return rc;
        grad += n;
    }
    return 0;
}

int exchange_sum_coded(struct exchange *ex, float *grad)
{
    struct banyan_stats before = { .size = sizeof before }, after = { .size = sizeof after };
    int rc = banyan_comm_stats(ex->comm, &before);

    if (rc == 0)
        rc = sum_coded(ex, grad);
    if (rc == 0)
        rc = banyan_comm_stats(ex->comm, &after);
    if (rc == 0)
        ex->wire_bytes += after.wire_bytes - before.wire_bytes;
    return rc;
}

int exchange_sum_rest(struct exchange *ex, float *grad, size_t n)
{
    return banyan_allreduce(grad + ex->coded, grad + ex->coded, n + 1 - ex->coded, BANYAN_F32,
                            BANYAN_SUM, ex->comm, NULL);
}

int exchange_rate_changes(struct exchange *ex, double from, double to)
{
    int rc = 0;

    for (int l = 0; l < ex->ncoded && rc == 0; l++)
        if (ex->state[l])
            rc = banyan_codec_state_scale(ex->state[l], from / to);
    return rc;
}
