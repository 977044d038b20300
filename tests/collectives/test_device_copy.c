/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of CUDA memory's copies, over a driver that copies as late as it may: right bytes,
 * and none beside them, for any length and both directions; nothing piles up; a failure of any
 * call of the driver is an error with its text, and the next copy is right. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/local/memory_kind.h"
#include "tests/support/fake_cuda.h"
#include "transport/loop/loop.h"

#define BYTES ((size_t)5 << 20) /* five pieces */
#define GUARD 64u

static const struct fake_cuda *fake;
static char *device[2], *host;

static void rig(void)
{
    fake = fake_cuda_load();
    cr_assert_not_null(fake);
    bny_device_look();
    for (int i = 0; i < 2; i++)
        device[i] = fake->alloc(BYTES, i);
    host = malloc(BYTES);
    cr_assert(device[0] && device[1] && host);
}

/* Mostly short ones; some of several pieces, and some that end at a piece's end. */
static size_t draw_length(uint64_t *rng)
{
    uint64_t kind = bny_rng_below(rng, 100);

    if (kind < 90)
        return bny_rng_below(rng, 5000);
    if (kind < 98)
        return bny_rng_below(rng, 300000);
    if (kind < 99)
        return bny_rng_below(rng, BYTES - 2 * GUARD);
    return ((size_t)1 << 20) * (1 + bny_rng_below(rng, 4)) + bny_rng_below(rng, 3) - 1;
}

static void fill(char *p, size_t n, uint64_t *rng)
{
    uint64_t x = bny_rng_next(rng);

    for (size_t i = 0; i < n; i++)
        p[i] = (char)((x + i * 0x9e3779b9u) >> 7);
}

/* Copies in a drawn direction. */
static int copy_once(uint64_t *rng, int compare)
{
    size_t n = draw_length(rng), at = GUARD + bny_rng_below(rng, BYTES - 2 * GUARD - n + 1);
    int which = (int)bny_rng_below(rng, 2), out = (int)bny_rng_below(rng, 2), rc;
    char *dev = device[which] + at - GUARD, *mem = host + at - GUARD, *seen = fake->reach(dev);
    char *dst = out ? seen : mem, *src = out ? mem : seen, *before = malloc(2 * GUARD);

    fill(src, n + 2 * GUARD, rng);
    memcpy(before, dst, GUARD);
    memcpy(before + GUARD, dst + GUARD + n, GUARD);
    rc = out ? bny_mem_cuda.copy(dev + GUARD, mem + GUARD, n)
             : bny_mem_cuda.copy(mem + GUARD, dev + GUARD, n);
    if (compare) {
        cr_assert_eq(rc, 0, "%s", banyan_last_error());
        cr_assert(memcmp(dst + GUARD, src + GUARD, n) == 0, "%zu bytes, out %d", n, out);
    }
    cr_assert(memcmp(dst, before, GUARD) == 0 &&
              memcmp(dst + GUARD + n, before + GUARD, GUARD) == 0);
    free(before);
    return rc;
}

static void check_counts(size_t devices)
{
    struct fake_cuda_counts c;

    fake->counts(&c);
    cr_assert(c.streams == devices && c.events == 2 * devices && c.pinned == 2 * devices &&
                  c.stack == 0 && c.pageable == 0,
              "%zu streams, %zu events, %zu pinned pieces, %zu contexts, %zu pageable copies",
              c.streams, c.events, c.pinned, c.stack, c.pageable);
}

Test(device_copy, ten_thousand_copies_are_right, .timeout = 120)
{
    uint64_t rng = 5;

    rig();
    for (uint64_t seed = 0; seed < 10000; seed++) {
        fake->seed(seed);
        copy_once(&rng, 1);
    }
    check_counts(2);
}

Test(device_copy, any_call_of_the_driver_may_fail, .timeout = 120)
{
    uint64_t rng = 6;
    int failures = 0;

    rig();
    for (size_t after = 0; after < 60; after++)
        for (int k = 0; k < 3; k++) {
            fake->fail(700, after);
            if (copy_once(&rng, 0)) {
                failures++;
                cr_assert(strstr(banyan_last_error(), "700") &&
                              strstr(banyan_last_error(), "illegal memory access"),
                          "%s", banyan_last_error());
            }
            fake->fail(0, 0);
            copy_once(&rng, 1);
        }
    cr_assert_gt(failures, 12);
    check_counts(2);
}

Test(device_copy, a_child_of_fork_leaves_the_driver_alone)
{
    struct fake_cuda_counts before, after;
    const struct bny_mem_kind *kind;
    uint64_t rng = 7;
    int status;
    pid_t child;

    rig();
    copy_once(&rng, 1);
    child = fork();
    if (child == 0) {
        fake->counts(&before);
        if (bny_mem_kind_of(&kind, device[0]) || kind != &bny_mem_host)
            _exit(1);
        fake->counts(&after);
        _exit(before.calls == after.calls ? 0 : 2);
    }
    cr_assert(waitpid(child, &status, 0) == child && status == 0, "%d", status);
    cr_assert(bny_mem_kind_of(&kind, device[0]) == 0 && kind == &bny_mem_cuda);
}

/* A query that fails tells of no memory what it is, so no result stays away without a word. */
Test(device_copy, a_query_may_fail)
{
    struct bny_loop_fabric *fabric = bny_loop_fabric_create(1, NULL);
    const struct bny_mem_kind *kind;
    struct banyan_comm *c;
    int *in = malloc(4000), rc;

    rig();
    for (int i = 0; i < 1000; i++)
        in[i] = i;
    cr_assert_eq(bny_comm_loop(&c, fabric, 1, 0, NULL), 0, "%s", banyan_last_error());
    for (int unused = 3; unused <= 4; unused++) { /* CUDA is not used, any more */
        fake->fail_queries(unused);
        cr_assert(bny_mem_kind_of(&kind, in) == 0 && kind == &bny_mem_host);
    }
    fake->fail_queries(0);
    rc = banyan_allreduce(in, device[0], 1000, BANYAN_I32, BANYAN_SUM, c, NULL);
    cr_assert_eq(rc, 0, "%s", banyan_last_error());
    cr_assert(memcmp(fake->reach(device[0]), in, 4000) == 0);
    fake->fail_queries(700);
    cr_assert_eq(bny_mem_kind_of(&kind, device[0]), -BANYAN_ESYSTEM);
    cr_assert_eq(bny_mem_cuda.copy(device[0], in, 4000), -BANYAN_ESYSTEM);
    rc = banyan_allreduce(in, device[0], 1000, BANYAN_I32, BANYAN_SUM, c, NULL);
    cr_assert_eq(rc, -BANYAN_ESYSTEM, "%d", rc);
    cr_assert_not_null(strstr(banyan_last_error(), "700"), "%s", banyan_last_error());
    fake->fail_queries(0);
    c->world->orderly = 0;
    banyan_comm_destroy(c);
    bny_loop_fabric_destroy(fabric);
    free(in);
}
