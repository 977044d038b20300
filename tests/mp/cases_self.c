/* SPDX-License-Identifier: BSD-3-Clause */
/* Cases without the library, by which the harness itself is tested. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/mp/image.h"
#include "tests/mp/model.h"

static int self_pass(struct test *t)
{
    atomic_store(&t->shared->value[t->rank][0], (uint64_t)t->rank + 10);
    mp_shared_barrier(t->shared, t->n);
    for (int r = 0; r < t->n; r++)
        CHECK(t, atomic_load(&t->shared->value[r][0]) == (uint64_t)r + 10, "rank %d", r);
    CHECK(t, t->seed == 77 && !strcmp(t->arg, "x y"), "arguments");
    CHECK(t, atoi(getenv("BANYAN_RANK")) == t->rank, "BANYAN_RANK");
    CHECK(t, !getenv("BANYAN_WORLD_SIZE") == (t->rank == 1), "BANYAN_WORLD_SIZE");
    CHECK(t, !getenv("BANYAN_LISTEN_FD") == (t->rank != 0), "BANYAN_LISTEN_FD");
    return 0;
}

/* ARG: what the last rank does; the others wait for ever. */
static int self_misbehave(struct test *t)
{
    if (t->rank != t->n - 1)
        for (;;)
            pause();
    if (!strcmp(t->arg, "check"))
        CHECK(t, 1 + 1 == 3, "sums are wrong");
    if (!strcmp(t->arg, "crash"))
        raise(SIGSEGV);
    for (;;)
        pause();
}

static int self_skip(struct test *t)
{
    puts("note: something else");
    return t->rank == 1 ? case_skip("this machine has %d legs", 3) : 0;
}

/* The victim runs until it is killed; the others until it was. */
static int self_victim(struct test *t)
{
    atomic_store(&t->shared->marker[t->rank], 1);
    while (t->rank == 1 || atomic_load(&t->shared->signal_ns) == 0)
        usleep(100);
    CHECK(t, bny_now_ns() >= atomic_load(&t->shared->signal_ns), "clocks");
    return 0;
}

/* A byte outside of what was expected is seen wherever it is. */
static int self_image(struct test *t)
{
    static const unsigned char in[4] = { 1, 2, 3, 4 };
    struct image im;
    int ok;

    image_make(&im, NULL, 100, 3, t->seed);
    image_put(&im, 10, in, sizeof in);
    image_check(&im, &ok);
    CHECK(t, ok, "a fresh image differs");
    for (size_t i = 0; i < im.total; i++) {
        im.mem[i] ^= 1;
        CHECK(t, image_check(&im, &ok) == (ptrdiff_t)i - (ptrdiff_t)im.lead && !ok, "byte %zu",
              i);
        im.mem[i] ^= 1;
    }
    image_want(&im, 0, in, sizeof in);
    CHECK(t, image_check(&im, &ok) == 0 && !ok, "a missing result is not seen");
    image_free(&im);
    return 0;
}

/* The model's own arithmetic, on values worked out by hand. */
static int self_model(struct test *t)
{
    static const struct {
        enum banyan_dtype dtype;
        double v;
        uint16_t bits;
    } floats[] = {
        { BANYAN_F16, 1, 0x3c00 },           { BANYAN_F16, -2, 0xc000 },
        { BANYAN_F16, 65504, 0x7bff },       { BANYAN_F16, 65520, 0x7c00 },
        { BANYAN_F16, 0x1p-24, 1 },          { BANYAN_F16, 0x1p-14, 0x400 },
        { BANYAN_F16, 1 + 0x1p-11, 0x3c00 }, { BANYAN_F16, 1 + 0x3p-11, 0x3c02 },
        { BANYAN_F16, 2 - 0x1p-12, 0x4000 }, { BANYAN_F16, 0x1p-14 - 0x1p-26, 0x400 },
        { BANYAN_BF16, 1, 0x3f80 },          { BANYAN_BF16, 1 + 0x1p-8, 0x3f80 },
        { BANYAN_BF16, 1 + 0x3p-8, 0x3f82 }, { BANYAN_BF16, -3, 0xc040 },
    };
    int8_t a[2] = { 100, -128 }, b[2] = { 100, -1 };

    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        uint16_t bits;
        model_set(&bits, 0, floats[i].dtype, floats[i].v);
        CHECK(t, bits == floats[i].bits, "%g is %#x, not %#x", floats[i].v, bits,
              floats[i].bits);
    }
    model_add(a, b, 2, BANYAN_I8, (enum model_op)BANYAN_SUM);
    CHECK(t, a[0] == -56 && a[1] == 127, "sums wrap: %d %d", a[0], a[1]);
    model_end(a, 1, BANYAN_I8, (enum model_op)BANYAN_AVG, 3);
    CHECK(t, a[0] == -18, "averages are truncated: %d", a[0]);
    return 0;
}

const struct mp_case cases_self[] = {
    { "self_pass", self_pass, CASE_OWN_INIT },
    { "self_misbehave", self_misbehave, CASE_OWN_INIT },
    { "self_skip", self_skip, CASE_OWN_INIT },
    { "self_victim", self_victim, CASE_OWN_INIT },
    { "self_image", self_image, CASE_OWN_INIT },
    { "self_model", self_model, CASE_OWN_INIT },
    { 0 },
};
