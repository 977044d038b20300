/* SPDX-License-Identifier: BSD-3-Clause */
/* A chunk's message: header, payload, and raw instead if the codec declines. codec.h has the
 * layout. */
#include <math.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/err.h"
#include "base/fpmode.h"
#include "compress/codec.h"
#include "compress/kernels/kernels.h"

#define VERSION 1

size_t bny_message_bound(const struct bny_codec *c, size_t n, enum banyan_dtype dtype,
                         int room_for_raw)
{
    size_t coded = c->ops->bound(c, n, dtype), raw = n * banyan_dtype_bytes(dtype);

    return sizeof(struct bny_coded_hdr) + (room_for_raw && raw > coded ? raw : coded);
}

static int is_finite(const void *v, size_t n)
{
    uint32_t bits, bad = 0;

    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, (const char *)v + 4 * i, 4);
        bad |= (bits & 0x7f800000) == 0x7f800000;
    }
    return !bad;
}

/* Writes the elements with their residuals; if some are not finite, residuals stay. Returns the
 * flags. */
static uint8_t put_raw(const struct bny_enc *e, char *wire, const void *src, size_t n)
{
    int lame;

    if (n)
        memcpy(wire, src, n * banyan_dtype_bytes(e->dtype));
    lame = e->dtype == BANYAN_F32 && !is_finite(wire, n);
    for (size_t i = 0; e->ef && i < n; i++) {
        float v;

        e->ef[i] *= e->ef_scale;
        if (lame)
            continue;
        memcpy(&v, wire + 4 * i, 4);
        v += e->ef[i];
        memcpy(wire + 4 * i, &v, 4);
        e->ef[i] = 0;
    }
    return lame ? BNY_CODED_RAW | BNY_CODED_NONFINITE : BNY_CODED_RAW;
}

/* Facts that must agree besides index and step: the codec, its parameters, the tensor's
 * seed. */
static uint32_t codec_hash(const struct bny_codec *c, uint64_t seed)
{
    return c->hash ^ (uint32_t)((seed * 0x9e3779b97f4a7c15u) >> 32);
}

/* h->crc is 0. */
static uint32_t checksum(const struct bny_coded_hdr *h, const void *payload)
{
    return bny_crc32c(bny_crc32c(0, h, sizeof *h), payload, h->bytes);
}

long bny_message_encode(const struct bny_enc *e, void *wire, size_t cap, const void *src,
                        size_t n, int with_crc)
{
    const struct bny_codec *c = e->codec;
    struct bny_coded_hdr h = { .magic = BNY_CODED_MAGIC,
                               .version = VERSION,
                               .codec = codec_hash(c, e->seed),
                               .nelem = (uint32_t)n,
                               .index = e->index,
                               .step = e->step };
    size_t raw = n * banyan_dtype_bytes(e->dtype), room = cap - sizeof h;
    char *payload = (char *)wire + sizeof h;
    BNY_FIXED_FP_MODE;
    long len = c->ops->encode(e, payload, room, src, n);

    if (len == -BANYAN_ENOTSUP) {
        if (raw > room)
            return len;
        h.flags = put_raw(e, payload, src, n);
        len = (long)raw;
    }
    if (len < 0)
        return len;
    h.bytes = (uint32_t)len;
    if (with_crc) {
        h.flags |= BNY_CODED_CRC;
        h.crc = checksum(&h, payload);
    }
    memcpy(wire, &h, sizeof h);
    return (long)sizeof h + len;
}

/* Checks everything except the payload's content. */
static int message_check(const struct bny_dec *d, struct bny_coded_hdr *h, const void *wire,
                         size_t len, size_t n)
{
    size_t raw = n * banyan_dtype_bytes(d->dtype);
    uint32_t crc;

    if (len < sizeof *h)
        return bny_fail(BANYAN_EPROTO, "an encoded chunk has %zu bytes, its header alone %zu",
                        len, sizeof *h);
    memcpy(h, wire, sizeof *h);
    if (h->magic != BNY_CODED_MAGIC || h->version != VERSION)
        return bny_fail(BANYAN_EPROTO,
                        "an encoded chunk starts with %04x version %u, not %04x version %d",
                        h->magic, h->version, BNY_CODED_MAGIC, VERSION);
    if (h->codec != codec_hash(d->codec, d->seed))
        return bny_fail(
            BANYAN_EPROTO,
            "a chunk is encoded with another codec, other parameters or for a codec state of "
            "another seed (%08x) than %s here",
            h->codec, d->codec->spec);
    if (h->nelem != n || h->index != d->index || h->step != d->step)
        return bny_fail(
            BANYAN_EPROTO,
            "an encoded chunk is for %u elements at %llu of step %u; expected %zu at %llu "
            "of step %u (do all ranks pass a codec state, used equally often?)",
            h->nelem, (unsigned long long)h->index, h->step, n, (unsigned long long)d->index,
            d->step);
    if (h->bytes != len - sizeof *h || ((h->flags & BNY_CODED_RAW) && h->bytes != raw))
        return bny_fail(BANYAN_EPROTO,
                        "an encoded chunk of %zu elements says %u bytes and has %zu", n,
                        h->bytes, len - sizeof *h);
    if (h->flags & ~(BNY_CODED_RAW | BNY_CODED_CRC | BNY_CODED_NONFINITE))
        return bny_fail(BANYAN_EPROTO, "an encoded chunk has unknown flags %02x", h->flags);
    if (d->need_crc && !(h->flags & BNY_CODED_CRC))
        return bny_fail(BANYAN_EPROTO, "an encoded chunk has no checksum");
    crc = h->crc;
    h->crc = 0;
    if ((h->flags & BNY_CODED_CRC) && checksum(h, (const char *)wire + sizeof *h) != crc)
        return bny_fail(BANYAN_EPROTO, "an encoded chunk fails its checksum");
    return 0;
}

int bny_message_decode(const struct bny_dec *d, void *dst, const void *wire, size_t len,
                       size_t n)
{
    const char *payload = (const char *)wire + sizeof(struct bny_coded_hdr);
    struct bny_coded_hdr h;
    int rc = message_check(d, &h, wire, len, n);
    BNY_FIXED_FP_MODE;

    if (rc)
        return rc;
    if (!(h.flags & BNY_CODED_RAW))
        return d->codec->ops->decode(d, dst, payload, h.bytes, n);
    if (n)
        memcpy(dst, payload, h.bytes);
    if (d->scale != 1 && d->dtype == BANYAN_F32)
        bny_kernels_for(d->cpu_flags)->scale[BANYAN_F32](dst, dst, n, (double)d->scale);
    return 0;
}

int bny_message_decode_add(const struct bny_dec *d, float *dst, const float *acc,
                           const void *wire, size_t len, size_t n)
{
    const char *payload = (const char *)wire + sizeof(struct bny_coded_hdr);
    struct bny_coded_hdr h;
    int rc = message_check(d, &h, wire, len, n);
    BNY_FIXED_FP_MODE;

    if (rc)
        return rc;
    if (!(h.flags & BNY_CODED_RAW))
        return d->codec->ops->decode_add(d, dst, acc, payload, h.bytes, n);
    bny_kernels_for(d->cpu_flags)->reduce[BANYAN_F32][BANYAN_SUM](dst, acc, payload, n);
    return 0;
}
