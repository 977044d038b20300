/* SPDX-License-Identifier: BSD-3-Clause */
/* Any bytes as an encoded chunk, for every codec: refused with the destination untouched, or
 * decoded inside it. Byte 0 picks the codec, 1 and 2 the number of elements, 3 whether the rest
 * is the whole message or the payload of one whose header is right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/cpu.h"
#include "compress/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int ok, const char *what, const char *codec)
{
    if (!ok) {
        fprintf(stderr, "fuzz_codec: %s: %s: %s\n", codec, what, banyan_last_error());
        abort();
    }
}

/* The header of an empty message says what this codec's header looks like. */
static void put_header(unsigned char *wire, const struct bny_codec *c, size_t n, size_t bytes,
                       int raw)
{
    struct bny_enc e = { .codec = c, .dtype = BANYAN_F32, .ef_scale = 1, .nsum = 1 };
    unsigned char empty[256];
    struct bny_coded_hdr h;

    expect(bny_message_encode(&e, empty, sizeof empty, NULL, 0, 0) >= 0,
           "nothing is not encoded", c->spec);
    memcpy(&h, empty, sizeof h);
    h.nelem = (uint32_t)n;
    h.bytes = (uint32_t)bytes;
    h.flags = raw ? BNY_CODED_RAW : 0;
    memcpy(wire, &h, sizeof h);
}

static void decode(const struct bny_codec *c, const unsigned char *wire, size_t len, size_t n)
{
    struct bny_dec d = {
        .codec = c, .cpu_flags = bny_cpu_flags(), .dtype = BANYAN_F32, .scale = 1
    };
    float *dst = malloc(4 * n + 1),
          *before = malloc(4 * n + 1); /* where they end the sanitizer watches */
    int rc;

    memset(dst, 0x5a, 4 * n);
    memcpy(before, dst, 4 * n);
    rc = bny_message_decode(&d, dst, wire, len, n);
    expect(rc == 0 || rc == -BANYAN_EPROTO, "an unexpected error", c->spec);
    expect(rc == 0 || !memcmp(dst, before, 4 * n), "a refused message changed the destination",
           c->spec);
    memcpy(dst, before, 4 * n);
    if (c->ops->decode_add) {
        int rc2 = bny_message_decode_add(&d, dst, dst, wire, len, n);

        expect(rc2 == rc, "refused by one, decoded by the other", c->spec);
        expect(rc == 0 || !memcmp(dst, before, 4 * n), "a refused message changed the sum",
               c->spec);
    }
    free(before);
    free(dst);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t count = 0, n, header, len;
    const struct bny_codec *c;
    unsigned char *wire;

    while (bny_codecs[count])
        count++;
    if (size < 4 || !bny_codecs[data[0] % count]->encode)
        return 0;
    expect(bny_codec_parse(&c, bny_codecs[data[0] % count]->name) == 0, "does not parse",
           "registry");
    n = (data[1] | (size_t)data[2] << 8) % 9000;
    header = data[3] & 1 ? 0 : sizeof(struct bny_coded_hdr);
    len = header + size - 4;
    wire = malloc(len + !len);
    if (header)
        put_header(wire, c, n, size - 4, data[3] & 2);
    memcpy(wire + header, data + 4, size - 4);
    decode(c, wire, len, n);
    free(wire);
    return 0;
}
