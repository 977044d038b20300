/* SPDX-License-Identifier: BSD-3-Clause */
/* A codec of one's own: values on the wire as multiples of 1/16 in a byte, from -8 to 8. The
 * library adds residuals, sums, checks and routes.
 *   banyan_run -n 4 ./custom_codec
 */
#include <banyan/banyan.h>
#include <math.h>
#include <stdio.h>

#define COUNT 4000

static size_t bound(void *ctx, size_t n)
{
    (void)ctx;
    return n;
}

static long encode(void *ctx, void *wire, size_t cap, const float *src, size_t n)
{
    signed char *out = wire;

    (void)ctx;
    for (size_t i = 0; i < n && i < cap; i++) {
        if (!(fabsf(src[i]) < 7.9f))
            return -1; /* does not fit (or is NaN): this chunk travels as it is */
        out[i] = (signed char)lrintf(src[i] * 16);
    }
    return (long)n;
}

static int decode(void *ctx, float *dst, const void *wire, size_t len, size_t n)
{
    const signed char *in = wire;

    (void)ctx;
    if (len != n) /* what comes from peers is checked */
        return -1;
    for (size_t i = 0; i < n; i++)
        dst[i] = (float)in[i] / 16;
    return 0;
}

int main(void)
{
    const struct banyan_codec sixteenths = {
        sizeof sixteenths, "sixteenths", NULL, bound, encode, decode
    };
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_codec_state *state = NULL;
    struct banyan_comm *comm = NULL;
    static float x[COUNT], y[COUNT];
    double error = 0, total = 0;
    int steps = 50, rc;

    if (banyan_codec_register(&sixteenths) < 0 ||
        banyan_codec_state_create(&state, COUNT, 1) < 0 ||
        banyan_comm_init_env(&comm, NULL) < 0)
        goto fail;
    opts.codec = "sixteenths:force=1";
    opts.codec_state = state;
    for (int i = 0; i < COUNT; i++)
        x[i] = sinf((float)i) / 10;
    for (int s = 0; s < steps; s++) {
        if (banyan_allreduce(x, y, COUNT, BANYAN_F32, BANYAN_AVG, comm, &opts) < 0)
            goto fail;
        total += (double)y[1];
    }
    error = fabs(total / steps - (double)x[1]);
    printf("rank %d: the mean of %d averages is off by %.5f; one value on the wire by up to "
           "0.03125\n",
           banyan_comm_rank(comm), steps, error);
    banyan_codec_state_free(state);
    rc = banyan_comm_finalize(comm);
    return rc < 0 || error > 0.01;

fail:
    fprintf(stderr, "custom_codec: %s\n", banyan_last_error());
    banyan_codec_state_free(state);
    banyan_comm_destroy(comm);
    return 1;
}
