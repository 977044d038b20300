/* SPDX-License-Identifier: BSD-3-Clause */
/* The speeds that the cost model takes from a codec's table, and from its family. */
#include "compress/speed.h"

#include <math.h>

#include "compress/linear.h"

/* Seconds to copy, and to add, a byte of raw data. */
#define RAW_COPY_S 0.03e-9
#define RAW_ADD_S  0.06e-9

struct bny_codec_speed bny_codec_speed(const struct bny_codec *c, enum banyan_dtype dtype)
{
    double esz = (double)banyan_dtype_bytes(dtype), delta;
    struct bny_codec_speed s = { 0, RAW_COPY_S * esz, RAW_ADD_S * esz, esz };
    const struct bny_codec_ops *ops;
    size_t many = 1 << 16;

    if (!c)
        return s;
    ops = c->ops;
    s = (struct bny_codec_speed){ ops->encode_ns * 1e-9, ops->decode_ns * 1e-9,
                                  ops->decode_ns * 1e-9, 1 };
    delta = bny_codec_get(c, "delta");
    switch (ops->family) {
    case BNY_CODEC_EXACT: s.wire_bytes = (esz > 2 ? 0.84 : 0.7) * esz; break;
    case BNY_CODEC_SPARSE: s.wire_bytes = isnan(delta) ? 0.1 * esz : delta * (esz + 2.5); break;
    case BNY_CODEC_LINEAR:
        s.wire_bytes = (double)ops->linear->code_bytes(c, many, 256, 256) / (double)many;
        break;
    default: s.wire_bytes = (double)ops->bound(c, many, dtype) / (double)many;
    }
    if (ops->wire_bytes > 0)
        s.wire_bytes = ops->wire_bytes;
    return s;
}

void bny_codec_loss(const struct bny_codec *c, double *nmse, double *max)
{
    int is_known = 1;

    *nmse = *max = 0;
    if (!c || c->ops->family == BNY_CODEC_EXACT)
        return;
    for (int i = 0; i < BNY_CODEC_PARAMS && c->ops->params[i].name[0]; i++)
        is_known &= !(c->param[i] != c->ops->params[i].def);
    *nmse = is_known && c->ops->max > 0 ? c->ops->nmse : INFINITY;
    *max = is_known && c->ops->max > 0 ? c->ops->max : INFINITY;
}
