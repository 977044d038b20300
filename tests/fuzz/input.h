/* SPDX-License-Identifier: BSD-3-Clause */
/* What fuzz targets share: an oracle's assertion, and an input that is taken apart piece by
 * piece. */
#ifndef BNY_TESTS_FUZZ_INPUT_H
#define BNY_TESTS_FUZZ_INPUT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define EXPECT(ok) fuzz_expect(!!(ok), #ok, __func__, __LINE__)
static inline void fuzz_expect(int ok, const char *what, const char *func, int line)
{
    if (ok)
        return;
    fprintf(stderr, "%s:%d: not so: %s; last error: %s\n", func, line, what,
            banyan_last_error());
    abort();
}

/* Every refusal would be a line. */
static inline void fuzz_no_log(void *ctx, int level, const char *line)
{
}

struct input {
    const uint8_t *at;
    size_t left;
};

/* Up to n bytes; *len: how many. */
static inline const uint8_t *input_take(struct input *in, size_t n, size_t *len)
{
    const uint8_t *at = in->at;

    *len = n < in->left ? n : in->left;
    in->at += *len;
    in->left -= *len;
    return at;
}

/* The next bytes as a number, or as a struct; 0 behind the end. */
static inline void input_copy(struct input *in, void *to, size_t n)
{
    size_t len;
    const uint8_t *at = input_take(in, n, &len);

    memset(to, 0, n);
    if (len)
        memcpy(to, at, len);
}

static inline unsigned input_byte(struct input *in)
{
    uint8_t v;

    input_copy(in, &v, 1);
    return v;
}

static inline unsigned input_short(struct input *in)
{
    uint16_t v;

    input_copy(in, &v, 2);
    return v;
}

#endif
