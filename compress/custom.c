/* SPDX-License-Identifier: BSD-3-Clause */
/* Codecs of the program: wraps the public table of three functions into one of ours. This file
 * handles residuals and sums, and ensures that a rejected message changes nothing, with memory
 * for a chunk. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sized.h"
#include "compress/codec.h"

struct custom {
    struct bny_codec_ops ops; /* first: codec->ops points here */
    struct banyan_codec user;
};

static const struct banyan_codec *user_of(const struct bny_codec *c)
{
    return &((const struct custom *)(const void *)c->ops)->user;
}

static size_t custom_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype)
{
    return user_of(c)->bound(user_of(c)->ctx, n);
}

static float *chunk(const struct bny_codec *c, size_t n)
{
    float *v = malloc((n ? n : 1) * sizeof *v);

    if (!v)
        bny_fail(BANYAN_ENOMEM, "codec %s: no memory for %zu elements", c->ops->name, n);
    return v;
}

static long custom_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                          size_t n)
{
    const struct banyan_codec *u = user_of(e->codec);
    float *v = chunk(e->codec, 2 * n), *back = v ? v + n : NULL;
    long len;

    if (!v)
        return -BANYAN_ENOMEM;
    if (n)
        memcpy(v, src, n * sizeof *v);
    for (size_t i = 0; e->ef && i < n; i++)
        v[i] += e->ef_scale * e->ef[i];
    len = u->encode(u->ctx, wire, cap, v, n);
    if (len < 0 || (size_t)len > cap) {
        len = len < 0 ? -BANYAN_ENOTSUP
                      : bny_fail(BANYAN_EINVAL, "codec %s wrote %ld bytes of %zu",
                                 e->codec->ops->name, len, cap);
    } else if (e->ef && u->decode(u->ctx, back, wire, (size_t)len, n) != 0) {
        len = bny_fail(BANYAN_EINVAL, "codec %s cannot decode what it has encoded",
                       e->codec->ops->name);
    } else {
        for (size_t i = 0; e->ef && i < n; i++)
            e->ef[i] = isfinite(back[i]) ? v[i] - back[i] : 0;
    }
    free(v);
    return len;
}

/* dst = acc + scale * decoded; acc NULL: none. */
static int decode(const struct bny_dec *d, float *dst, const float *acc, const void *wire,
                  size_t len, size_t n, float scale)
{
    const struct banyan_codec *u = user_of(d->codec);
    float *v = chunk(d->codec, n), x;

    if (!v)
        return -BANYAN_ENOMEM;
    if (u->decode(u->ctx, v, wire, len, n) != 0) {
        free(v);
        return bny_fail(BANYAN_EPROTO,
                        "codec %s refuses a message of %zu bytes for %zu elements",
                        d->codec->ops->name, len, n);
    }
    for (size_t i = 0; i < n; i++) {
        x = v[i] * scale;
        if (acc) {
            float a;
            memcpy(&a, (const char *)acc + 4 * i, 4);
            x += a;
        }
        memcpy((char *)dst + 4 * i, &x, 4);
    }
    free(v);
    return 0;
}

static int custom_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                         size_t n)
{
    return decode(d, dst, NULL, wire, len, n, d->scale);
}

static int custom_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                             const void *wire, size_t len, size_t n)
{
    return decode(d, dst, acc, wire, len, n, 1);
}

int banyan_codec_register(const struct banyan_codec *codec)
{
    struct banyan_codec given = BANYAN_CODEC_INIT;
    struct custom *c;
    int rc = bny_sized_take(&given, sizeof given, codec, "banyan_codec_register",
                            "BANYAN_CODEC_INIT");

    if (rc)
        return rc;
    codec = &given;
    if (!codec->name || !codec->bound || !codec->encode || !codec->decode)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_codec_register: name, bound, encode and decode must be set");
    if (!*codec->name || strlen(codec->name) >= sizeof c->ops.name ||
        strpbrk(codec->name, ":,= "))
        return bny_fail(BANYAN_EINVAL,
                        "banyan_codec_register: \"%.32s\" is no name of 1 to %zu letters",
                        codec->name, sizeof c->ops.name - 1);
    c = calloc(1, sizeof *c);
    if (!c)
        return bny_fail(BANYAN_ENOMEM, "no memory for a codec");
    memcpy(c->ops.name, codec->name, strlen(codec->name));
    c->user = *codec;
    c->ops.family = BNY_CODEC_BLOCK;
    c->ops.doc = "the program's own";
    c->ops.encode_ns = 2; /* nobody has measured it */
    c->ops.decode_ns = 1;
    c->ops.bound = custom_bound;
    c->ops.encode = custom_encode;
    c->ops.decode = custom_decode;
    c->ops.decode_add = custom_decode_add;
    rc = bny_codec_add(&c->ops);
    if (rc)
        free(c); /* else it lives as long as the process */
    return rc;
}
