/* SPDX-License-Identifier: BSD-3-Clause */
/* Constants of the cost model: one core with AVX2 or better, data streamed from memory
 * (banyan_codec --where dram measures this machine's; only their ratio to the link matters).
 * Codecs not listed get their family's. */
#include "compress/speed.h"

#include <math.h>
#include <string.h>

#include "compress/linear.h"

static const struct {
    const char *name;
    double encode_ns, decode_ns; /* an element; with a residual */
} speeds[] = {
    { "f16", 0.9, 0.6 },      { "bf16", 0.8, 0.6 },     { "int8", 1.0, 0.5 },
    { "int4", 1.0, 0.55 },    { "e4m3", 1.1, 0.6 },     { "e5m2", 1.1, 0.6 },
    { "mxfp8", 1.2, 0.6 },    { "mxfp4", 1.3, 0.6 },    { "sign", 0.8, 0.4 },
    { "onebit", 1.2, 0.5 },   { "qsgd", 1.5, 0.6 },     { "terngrad", 1.5, 0.6 },
    { "natural", 1.3, 0.6 },  { "eden", 3.0, 3.0 },     { "topk", 0.9, 0.2 },
    { "gtopk", 0.9, 0.2 },    { "sidco", 1.2, 0.2 },    { "dgc", 1.5, 0.2 },
    { "topk_exact", 6, 0.2 }, { "lossless", 1.2, 1.2 }, { "randomk", 0.7, 1.5 },
    { "maxnorm", 1.8, 1.8 },  { "maxnorm_ms", 3, 3 },   { "ebint", 1.2, 1.2 },
    { "powersgd", 1.2, 1.8 }, { "sketch", 3, 4 },
};

struct bny_codec_speed bny_codec_speed(const struct bny_codec *c, enum banyan_dtype dtype)
{
    const struct bny_codec_ops *ops = c->ops;
    struct bny_codec_speed s = { 2e-9, 1e-9, 1 };
    double esz = (double)banyan_dtype_bytes(dtype), delta = bny_codec_get(c, "delta");
    size_t many = 1 << 16;

    for (size_t i = 0; i < sizeof speeds / sizeof speeds[0]; i++)
        if (!strcmp(speeds[i].name, ops->name)) {
            s.encode_s = speeds[i].encode_ns * 1e-9;
            s.decode_s = speeds[i].decode_ns * 1e-9;
        }
    switch (ops->family) {
    case BNY_CODEC_EXACT: s.wire_bytes = (esz > 2 ? 0.84 : 0.7) * esz; break;
    case BNY_CODEC_SPARSE: s.wire_bytes = isnan(delta) ? 0.1 * esz : delta * (esz + 2.5); break;
    case BNY_CODEC_LINEAR:
        s.wire_bytes = (double)ops->linear->code_bytes(c, many, 256, 256) / (double)many;
        if (!strcmp(ops->name, "ebint"))
            s.wire_bytes = 2; /* the widest fields have room, but for another bound than this */
        break;
    default: s.wire_bytes = (double)ops->bound(c, many, dtype) / (double)many;
    }
    return s;
}
