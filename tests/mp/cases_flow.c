/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages between two ranks that nobody asked for yet: epochs of tags, credit. */
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/mp/case.h"

static uint32_t value(uint32_t tag, size_t i)
{
    return tag * 2654435761u + (uint32_t)i;
}

static void fill(uint32_t *x, uint32_t tag, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = value(tag, i);
}

static void check(const struct test *t, const uint32_t *x, uint32_t tag, size_t n)
{
    for (size_t i = 0; i < n; i++)
        CHECK(t, x[i] == value(tag, i), "tag %u, element %zu: %u", tag, i, x[i]);
}

/* The first calls of a job: more tags than an epoch has, before a connection is made. */
static int many_tags(struct test *t)
{
    enum { TAGS = 700, N = 16 };
    uint32_t *x = case_malloc(TAGS * N * 4);
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    CHECK_OK(t, banyan_group_start());
    for (uint32_t tag = 0; tag < TAGS; tag++) {
        opts.tag = tag;
        if (t->rank == 0)
            fill(x + tag * N, tag, N);
        if (t->rank == 0)
            CHECK_OK(t, banyan_send(x + tag * N, N, BANYAN_U32, 1, t->comm, &opts));
        else
            CHECK_OK(t, banyan_recv(x + tag * N, N, BANYAN_U32, 0, t->comm, &opts));
    }
    CHECK_OK(t, banyan_group_end());
    for (uint32_t tag = 0; tag < TAGS; tag++)
        check(t, x + tag * N, tag, N);
    free(x);
    return 0;
}

/* Messages to oneself wait without credit; a receive from oneself is not announced. */
static int receive_from_self(struct test *t)
{
    enum { MANY = 600 };
    uint32_t x = 7, y = 0, z;
    struct banyan_opts first = BANYAN_OPTS_INIT, other = BANYAN_OPTS_INIT;
    struct banyan_request *rq;

    first.tag = 1;
    other.tag = 2;
    CHECK_OK(t, banyan_recv_init(&y, 1, BANYAN_U32, t->rank, t->comm, &first, &rq));
    CHECK_OK(t, banyan_start(rq));
    for (uint32_t i = 0; i < MANY; i++)
        CHECK_OK(t, banyan_send(&i, 1, BANYAN_U32, t->rank, t->comm, &other));
    for (uint32_t i = 0; i < MANY; i++) {
        CHECK_OK(t, banyan_recv(&z, 1, BANYAN_U32, t->rank, t->comm, &other));
        CHECK(t, z == i, "message %u is %u", i, z);
    }
    CHECK_OK(t, banyan_send(&x, 1, BANYAN_U32, t->rank, t->comm, &first));
    CHECK_OK(t, banyan_wait(rq, 10));
    CHECK(t, y == x, "%u", y);
    CHECK_OK(t, banyan_request_free(rq));
    return 0;
}

/* Chunks that are small by the caller's wish need credit as any others: the last of more sends
 * than that is for can be received first, */
static void last_first(struct test *t, struct banyan_opts *opts)
{
    enum { SENDS = 61, N = 4096 };
    uint32_t *x = case_malloc(SENDS * N * 4);
    struct banyan_request *rq[SENDS];

    for (uint32_t tag = 0; tag < SENDS && t->rank == 0; tag++) {
        opts->tag = tag;
        fill(x + tag * N, tag, N);
        CHECK_OK(t, banyan_send_init(x + tag * N, N, BANYAN_U32, 1, t->comm, opts, &rq[tag]));
        CHECK_OK(t, banyan_start(rq[tag]));
    }
    if (t->rank == 0)
        CHECK_OK(t, banyan_wait_all(rq, SENDS, 15));
    for (uint32_t tag = SENDS; tag-- > 0;) {
        opts->tag = tag;
        if (t->rank == 0)
            CHECK_OK(t, banyan_request_free(rq[tag]));
        else
            CHECK_OK(t, banyan_recv(x + tag * N, N, BANYAN_U32, 0, t->comm, opts));
        check(t, x + tag * N, tag, N);
    }
    free(x);
}

/* and a long message waits for its receive. */
static void long_one_waits(struct test *t, struct banyan_opts *opts)
{
    enum { N = 1 << 20 };
    uint32_t *x = case_malloc(N * 4);
    struct banyan_request *rq;
    int done = 0;

    fill(x, 3, t->rank == 0 ? N : 0);
    if (t->rank == 0) {
        CHECK_OK(t, banyan_send_init(x, N, BANYAN_U32, 1, t->comm, opts, &rq));
        CHECK_OK(t, banyan_start(rq));
    }
    for (uint64_t end = bny_now_ns() + 300000000; bny_now_ns() < end;)
        CHECK(t, banyan_progress(t->comm) >= 0, "progress");
    if (t->rank == 0) {
        CHECK_OK(t, banyan_test(rq, &done));
        CHECK(t, !done, "all of it was sent before the receiver called");
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        CHECK_OK(t, banyan_wait(rq, 15));
        CHECK_OK(t, banyan_request_free(rq));
    } else {
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        CHECK_OK(t, banyan_recv(x, N, BANYAN_U32, 0, t->comm, opts));
    }
    check(t, x, 3, N);
    free(x);
}

static int small_chunks(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    opts.chunk_bytes = 256;
    last_first(t, &opts);
    opts.chunk_bytes = 4096;
    long_one_waits(t, &opts);
    return 0;
}

const struct mp_case cases_flow[] = {
    { "many_tags", many_tags, 0 },
    { "receive_from_self", receive_from_self, 0 },
    { "small_chunks", small_chunks, 0 },
    { 0 },
};
