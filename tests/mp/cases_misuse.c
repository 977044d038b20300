/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks that disagree, and arguments that are wrong on one rank. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/counts.h"
#include "collectives/match/table.h"
#include "collectives/world/comm.h"
#include "tests/mp/image.h"
#include "transport/bootstrap/control.h"

/* What the deviant rank does differently, and the two words by which a good message names both
 * sides. */
struct mismatch {
    const char *name;
    int (*call)(struct test *t, int deviant, void *buf, size_t n);
    const char *has[2];
};

static int allreduce_as(struct test *t, void *buf, size_t n, enum banyan_dtype dtype,
                        banyan_op op)
{
    return banyan_allreduce(buf, buf, n, dtype, op, t->comm, NULL);
}

static int differ_count(struct test *t, int deviant, void *buf, size_t n)
{
    return allreduce_as(t, buf, deviant ? n - 1 : n, BANYAN_F32, BANYAN_SUM);
}

static int differ_type(struct test *t, int deviant, void *buf, size_t n)
{
    return allreduce_as(t, buf, n, deviant ? BANYAN_I32 : BANYAN_F32, BANYAN_SUM);
}

static int differ_op(struct test *t, int deviant, void *buf, size_t n)
{
    return allreduce_as(t, buf, n, BANYAN_F32, deviant ? BANYAN_MAX : BANYAN_SUM);
}

static int differ_root(struct test *t, int deviant, void *buf, size_t n)
{
    return banyan_broadcast(buf, n, BANYAN_F32, deviant ? 1 : 0, t->comm, NULL);
}

static int differ_reduce_root(struct test *t, int deviant, void *buf, size_t n)
{
    return banyan_reduce(buf, buf, n, BANYAN_F32, BANYAN_SUM, deviant ? 1 : 0, t->comm, NULL);
}

/* Has a peer asked what this rank runs? */
static int is_asked(const struct bny_match *m)
{
    for (uint32_t b = 0; b <= m->mask; b++)
        for (const struct bny_unexpected *u = m->unexpected[b]; u; u = u->next)
            for (const struct bny_msg *x = u->msgs.first; x; x = x->next)
                if (x->hdr.kind == BNY_MSG_PROBE)
                    return 1;
    return 0;
}

/* This rank comes after the others have waited for so long that they ask what it runs. */
static int differ_late_root(struct test *t, int deviant, void *buf, size_t n)
{
    uint64_t deadline = bny_deadline_in(60 * mp_patience());

    while (deviant && !is_asked(t->comm->match)) {
        CHECK(t, !bny_deadline_passed(deadline), "no peer asks what this rank runs");
        banyan_progress(t->comm);
    }
    return differ_reduce_root(t, deviant, buf, n);
}

static int differ_order(struct test *t, int deviant, void *buf, size_t n)
{
    if (deviant)
        return banyan_broadcast(buf, n, BANYAN_F32, 0, t->comm, NULL);
    return allreduce_as(t, buf, n, BANYAN_F32, BANYAN_SUM);
}

static int differ_tag(struct test *t, int deviant, void *buf, size_t n)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    opts.tag = deviant ? 41 : 40;
    return banyan_allreduce(buf, buf, n, BANYAN_F32, BANYAN_SUM, t->comm, &opts);
}

static int differ_schedule(struct test *t, int deviant, void *buf, size_t n)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    opts.schedule = deviant ? "star" : "ring";
    return banyan_allreduce(buf, buf, n, BANYAN_F32, BANYAN_SUM, t->comm, &opts);
}

static int differ_deterministic(struct test *t, int deviant, void *buf, size_t n)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    opts.deterministic = deviant;
    return banyan_allreduce(buf, buf, n, BANYAN_F32, BANYAN_SUM, t->comm, &opts);
}

static int differ_chunk(struct test *t, int deviant, void *buf, size_t n)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;

    opts.chunk_bytes = deviant ? 7168 : 9216;
    return banyan_allreduce(buf, buf, n, BANYAN_F32, BANYAN_SUM, t->comm, &opts);
}

static _Thread_local int deviant_rank;

/* v-variants: the deviant expects a block of n - 1 of the first other rank, which sends n. */
static int differ_gatherv(struct test *t, int deviant, void *buf, size_t n)
{
    size_t counts[MP_RANKS_MAX];
    int root = deviant_rank;

    for (int r = 0; r < t->n; r++)
        counts[r] = r == (root + 1) % t->n ? n - 1 : 0;
    return banyan_gatherv(buf, t->rank == (root + 1) % t->n ? n : 0, buf, counts, NULL,
                          BANYAN_F32, root, t->comm, NULL);
}

static int differ_scatterv(struct test *t, int deviant, void *buf, size_t n)
{
    size_t counts[MP_RANKS_MAX];
    int root = (deviant_rank + 1) % t->n;

    for (int r = 0; r < t->n; r++)
        counts[r] = r == deviant_rank ? n : 0;
    return banyan_scatterv(buf, counts, NULL, buf, deviant ? n - 1 : 0, BANYAN_F32, root,
                           t->comm, NULL);
}

static int differ_allgatherv(struct test *t, int deviant, void *buf, size_t n)
{
    size_t counts[MP_RANKS_MAX];

    for (int r = 0; r < t->n; r++)
        counts[r] = r == (deviant_rank + 1) % t->n && deviant ? n / 16 - 1 : n / 16;
    return banyan_allgatherv((char *)buf + (size_t)t->rank * counts[0] * 4, buf, counts, NULL,
                             BANYAN_F32, t->comm, NULL);
}

static int differ_alltoallv(struct test *t, int deviant, void *buf, size_t n)
{
    size_t send[MP_RANKS_MAX] = { 0 }, recv[MP_RANKS_MAX] = { 0 };
    int from = (deviant_rank + 1) % t->n;

    if (deviant)
        recv[from] = n / 2 - 1;
    if (t->rank == from)
        send[deviant_rank] = n / 2;
    return banyan_alltoallv(buf, send, NULL, (char *)buf + n * 2, recv, NULL, BANYAN_F32,
                            t->comm, NULL);
}

static int differ_recvcount(struct test *t, int deviant, void *buf, size_t n)
{
    n = n / 8 + 1;
    return banyan_allgather((char *)buf + (size_t)t->rank * (deviant ? n - 1 : n) * 4, buf,
                            deviant ? n - 1 : n, BANYAN_F32, t->comm, NULL);
}

/* NULL: the two counts, which depend on n. */
static const struct mismatch mismatches[] = {
    { "count", differ_count, { NULL, NULL } },
    { "type", differ_type, { "f32", "i32" } },
    { "op", differ_op, { "sum", "max" } },
    { "root", differ_root, { "root 0", "root 1" } },
    { "reduce_root", differ_reduce_root, { "root 0", "root 1" } },
    { "late_root", differ_late_root, { "root 0", "root 1" } },
    { "order", differ_order, { "allreduce", "broadcast" } },
    { "tag", differ_tag, { "tag 40", "tag 41" } },
    { "schedule", differ_schedule, { "with schedule", "rank" } },
    { "recvcount", differ_recvcount, { "count", "rank" } },
    { "deterministic", differ_deterministic, { "deterministic 0", "deterministic 1" } },
    { "chunk", differ_chunk, { "chunk 7168", "chunk 9216" } },
    { "gatherv", differ_gatherv, { NULL, NULL } },
    { "scatterv", differ_scatterv, { NULL, NULL } },
    { "allgatherv", differ_allgatherv, { "(count 6250, f32", "(counts by rank of" } },
    { "alltoallv", differ_alltoallv, { " 50000 f32", " 49999:" } },
    { "alltoallv_small", differ_alltoallv, { " 50 f32", " 49:" } },
};

/* The first error must come inside the call or, on ranks that were through before, in the next
 * ones. */
static int first_error(struct test *t, const struct mismatch *m, int deviant, void *buf,
                       size_t n)
{
    int rc = m->call(t, deviant, buf, n);

    while (rc == 0)
        rc = banyan_barrier(t->comm, NULL);
    return rc;
}

/* The communicator works, and nobody is still in that call when another rank goes wrong. */
static void all_work(struct test *t)
{
    case_check_works(t, t->comm);
    case_meet(t, t->comm);
}

/* "NAME COUNT DEVIANT": the deadline is far away, so a late discovery shows as a time-out of
 * the run. */
static int mismatch(struct test *t)
{
    char name[32], counts[2][24], text[512];
    const struct mismatch *m = NULL;
    size_t n;
    int who, rc, ok;
    struct image im;

    CHECK(t, sscanf(t->arg, "%31s %zu %d", name, &n, &who) == 3, "argument '%s'", t->arg);
    for (size_t i = 0; i < sizeof mismatches / sizeof mismatches[0]; i++)
        if (!strcmp(mismatches[i].name, name))
            m = &mismatches[i];
    CHECK(t, m, "no mismatch %s", name);
    deviant_rank = who;
    all_work(t);
    image_make(&im, NULL, n * 4 + 4096, 0, t->seed);
    memset(im.data, 0, n * 4 + 4096);
    rc = first_error(t, m, t->rank == who, im.data, n);
    snprintf(text, sizeof text, "%s", banyan_last_error());
    CHECK(t, rc == -BANYAN_EMISMATCH, "%s returned %d (%s)", t->arg, rc, banyan_strerror(rc));
    snprintf(counts[0], sizeof counts[0], "%zu", n);
    snprintf(counts[1], sizeof counts[1], "%zu", n - 1);
    CHECK_HAS(t, text, "rank");
    CHECK_HAS(t, text, m->has[0] ? m->has[0] : counts[0]);
    CHECK_HAS(t, text, m->has[1] ? m->has[1] : counts[1]);
    for (int i = 0; i < 3; i++)
        CHECK_RC(t, -BANYAN_EMISMATCH, banyan_barrier(t->comm, NULL));
    CHECK_RC(t, -BANYAN_EMISMATCH, banyan_async_error(t->comm, NULL, NULL, 0));
    /* Nothing beyond the buffer: what is in it after a failure is undefined. */
    memcpy(im.expect + im.lead, im.data, im.bytes);
    image_check(&im, &ok);
    CHECK(t, ok, "bytes beyond the buffer were written");
    image_free(&im);
    if (t->rank == 0)
        printf("note: %s\n", text);
    return 0;
}

/* A reduction to the one and a gather to the other: both only send, and the end of the
 * communicator tells. With "dup" its world goes on; with "dup late" the failure is known before
 * the end, of which no call of the communicator has told. */
static int only_sending(struct test *t)
{
    uint64_t deadline = bny_deadline_in(60 * mp_patience());
    struct banyan_comm *comm = t->comm;
    char x[8] = { 0 }, all[8 * MP_RANKS_MAX];
    int rc;

    if (strstr(t->arg, "dup"))
        CHECK_OK(t, banyan_comm_dup(t->comm, &comm));
    else
        t->comm = NULL;
    rc = t->rank == 0 ? banyan_reduce(x, all, 8, BANYAN_U8, BANYAN_MAX, 1, comm, NULL)
                      : banyan_gather(x, all, 8, BANYAN_U8, 0, comm, NULL);
    CHECK(t, rc == 0 || rc == -BANYAN_EMISMATCH, "returned %d (%s)", rc, banyan_strerror(rc));
    while (rc == 0 && strstr(t->arg, "late") && !bny_comm_has_failed(comm)) {
        CHECK(t, !bny_deadline_passed(deadline), "the message that differs does not come");
        banyan_progress(t->comm);
    }
    if (rc == 0)
        rc = banyan_comm_finalize(comm);
    else
        banyan_comm_destroy(comm);
    CHECK(t, rc == -BANYAN_EMISMATCH, "finalize returned %d (%s)", rc, banyan_strerror(rc));
    CHECK_HAS(t, banyan_last_error(), "reduce(count 8, u8, max, root 1)");
    CHECK_HAS(t, banyan_last_error(), "gather(count 8, u8, root 0)");
    if (t->comm)
        case_check_works(t, t->comm);
    return 0;
}

/* The sentence names the send of rank 0 and the receive of rank 1. */
static void check_pair_words(struct test *t, size_t sent, size_t received)
{
    char words[120];

    snprintf(words, sizeof words,
             "rank 0 called send (count %zu, u8) to rank 1, which called recv (count %zu, u8)",
             sent, received);
    CHECK_HAS(t, banyan_last_error(), words);
}

/* A receive longer than its send: neither rank can tell how much has come, and both are told.
 */
static int recv_too_long(struct test *t)
{
    size_t n = strtoul(t->arg, NULL, 0);
    unsigned char *buf = case_malloc(n + 1);
    int rc;

    memset(buf, 7, n + 1);
    rc = t->rank == 0 ? banyan_send(buf, n, BANYAN_U8, 1, t->comm, NULL)
                      : banyan_recv(buf, n + 1, BANYAN_U8, 0, t->comm, NULL);
    while (rc == 0)
        rc = banyan_barrier(t->comm, NULL);
    CHECK(t, rc == -BANYAN_EMISMATCH, "returned %d (%s)", rc, banyan_strerror(rc));
    check_pair_words(t, n, n + 1);
    free(buf);
    return 0;
}

/* A send longer than its receive: both ends are told, and nothing is written beyond the
 * receive. */
static int send_too_long(struct test *t)
{
    struct image im;
    size_t n = strtoul(t->arg, NULL, 0);
    unsigned char *src = case_malloc(n + 1);
    int rc, ok;

    memset(src, 7, n + 1);
    image_make(&im, NULL, n, 0, t->seed);
    if (t->rank == 0)
        rc = banyan_send(src, n + 1, BANYAN_U8, 1, t->comm, NULL);
    else
        rc = banyan_recv(im.data, n, BANYAN_U8, 0, t->comm, NULL);
    while (rc == 0)
        rc = banyan_barrier(t->comm, NULL);
    CHECK(t, rc == -BANYAN_EMISMATCH, "returned %d (%s)", rc, banyan_strerror(rc));
    check_pair_words(t, n + 1, n);
    memcpy(im.expect + im.lead, im.data, im.bytes);
    image_check(&im, &ok);
    CHECK(t, ok, "bytes beyond the buffer were written");
    image_free(&im);
    free(src);
    return 0;
}

/* One side has bulk, for which it waits until the other is ready; the other expects so little
 * that it announces nothing. */
static int send_bulk_for_little(struct test *t)
{
    size_t n = 1 << 20;
    unsigned char *buf = case_malloc(n);
    int rc;

    memset(buf, 7, n);
    if (t->rank == 0)
        rc = banyan_send(buf, n, BANYAN_U8, 1, t->comm, NULL);
    else
        rc = banyan_recv(buf, 3, BANYAN_U8, 0, t->comm, NULL);
    while (rc == 0)
        rc = banyan_barrier(t->comm, NULL);
    CHECK(t, rc == -BANYAN_EMISMATCH, "returned %d (%s)", rc, banyan_strerror(rc));
    check_pair_words(t, n, 3);
    free(buf);
    return 0;
}

static void add_triples(void *ctx, const void *in, void *inout, size_t n,
                        enum banyan_dtype dtype)
{
    for (size_t i = 0; i < 3 * n; i++)
        ((uint32_t *)inout)[i] += ((const uint32_t *)in)[i];
}

#define WRONG(word, call)                                                                      \
    do {                                                                                       \
        CHECK_RC(t, -BANYAN_EINVAL, call);                                                     \
        CHECK_HAS(t, banyan_last_error(), word);                                               \
    } while (0)

static int wrong_counts(struct test *t, struct banyan_comm *comm)
{
    size_t counts[MP_RANKS_MAX] = { 0 };
    unsigned char b[64] = { 0 };
    float x[64] = { 0 }, y[64];
    banyan_op triples;

    WRONG("counts", banyan_allgatherv(x, y, NULL, NULL, BANYAN_F32, comm, NULL));
    WRONG("counts", banyan_reduce_scatterv(x, y, NULL, BANYAN_F32, BANYAN_SUM, comm, NULL));
    counts[0] = SIZE_MAX / 4 + 2;
    WRONG("counts", banyan_allgatherv(x, y, counts, NULL, BANYAN_F32, comm, NULL));
    CHECK_OK(t, banyan_op_create_user(add_triples, NULL, 12, 4, 1, &triples));
    WRONG("count", banyan_allreduce(b, b + 32, 13, BANYAN_U8, triples, comm, NULL));
    for (int r = 0; r < t->n; r++) /* their sum may be a multiple */
        counts[r] = r ? 7 : 5;
    WRONG("counts: 5 bytes of rank 0",
          banyan_reduce_scatterv(b, b, counts, BANYAN_U8, triples, comm, NULL));
    for (int r = 0; r < t->n; r++)
        counts[r] = 12 * (size_t)(r != 0);
    CHECK_OK(t, banyan_reduce_scatterv(b, y, counts, BANYAN_U8, triples, comm, NULL));
    CHECK_OK(t, banyan_op_free(triples));
    return 0;
}

/* The sentence has the elements of all ranks' blocks. */
static int missing_buffers(struct test *t, struct banyan_comm *comm)
{
    float x[64] = { 0 }, y[64];
    char all[40];

    snprintf(all, sizeof all, "for %d elements", 2 * t->n);
    WRONG(all, banyan_alltoall(NULL, y, 2, BANYAN_F32, comm, NULL));
    WRONG(all, banyan_alltoall(x, NULL, 2, BANYAN_F32, comm, NULL));
    WRONG(all, banyan_allgather(x, NULL, 2, BANYAN_F32, comm, NULL));
    WRONG("for 2 elements", banyan_gather(NULL, y, 2, BANYAN_F32, 0, comm, NULL));
    if (t->rank == 0)
        WRONG(all, banyan_scatter(NULL, y, 2, BANYAN_F32, 0, comm, NULL));
    return 0;
}

/* Requests that are not there, and times that are none. */
static int wrong_requests(struct test *t, struct banyan_comm *comm)
{
    struct banyan_request *rq = NULL;
    float x[1] = { 0 }, y[1];
    size_t index;
    int done;

    WRONG("out", banyan_allreduce_init(x, y, 1, BANYAN_F32, BANYAN_SUM, comm, NULL, NULL));
    WRONG("sendbuf",
          banyan_allreduce_init(NULL, y, 1, BANYAN_F32, BANYAN_SUM, comm, NULL, &rq));
    CHECK(t, rq == NULL, "a request in spite of the error");
    WRONG("", banyan_start(NULL));
    WRONG("", banyan_wait(NULL, 1));
    WRONG("", banyan_test(NULL, &done));
    CHECK_OK(t, banyan_allreduce_init(x, y, 1, BANYAN_F32, BANYAN_SUM, comm, NULL, &rq));
    CHECK_OK(t, banyan_start(rq));
    WRONG("banyan_wait: timeout_s", banyan_wait(rq, NAN));
    WRONG("banyan_wait_all: timeout_s", banyan_wait_all(&rq, 1, NAN));
    WRONG("banyan_wait_any: timeout_s", banyan_wait_any(&rq, 1, NAN, &index));
    CHECK_OK(t, banyan_wait(rq, 30));
    CHECK_OK(t, banyan_request_free(rq));
    return 0;
}

/* A call that no codec serves refuses one by name, whatever its type, and takes "none". */
static void codecs_out_of_place(struct test *t, struct banyan_comm *comm)
{
    static const char *const codecs[] = { "int8:force=1", "int8", "lossless", "powersgd" };
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_request *rq = NULL;
    float x[4] = { 1, 2, 3, 4 }, y[4] = { 0 };
    int me = t->rank;

#define REFUSED(call)                                                                          \
    do {                                                                                       \
        CHECK_RC(t, -BANYAN_ENOTSUP, call);                                                    \
        CHECK_HAS(t, banyan_last_error(), "it serves no such call");                           \
    } while (0)
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        opts.codec = codecs[i];
        REFUSED(banyan_send(x, 4, BANYAN_F32, me, comm, &opts));
        REFUSED(banyan_recv(y, 4, BANYAN_F32, me, comm, &opts));
        REFUSED(banyan_send_init(x, 4, BANYAN_F32, me, comm, &opts, &rq));
        REFUSED(banyan_recv_init(y, 4, BANYAN_I32, me, comm, &opts, &rq));
        REFUSED(banyan_sendrecv(x, 4, BANYAN_F32, me, y, 4, BANYAN_F32, me, comm, &opts));
        REFUSED(banyan_barrier(comm, &opts));
    }
#undef REFUSED
    opts.codec = "none";
    CHECK_OK(t, banyan_sendrecv(x, 4, BANYAN_F32, me, y, 4, BANYAN_F32, me, comm, &opts));
    CHECK(t, y[3] == 4, "received %g", (double)y[3]);
    CHECK_OK(t, banyan_barrier(comm, &opts));
}

/* Wrong arguments: refused at once on the rank that has them, with the argument's name, nothing
 * sent. */
static int arguments(struct test *t)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_comm *comm = t->comm;
    struct banyan_request *rq = NULL;
    float x[64] = { 0 }, y[64];
    unsigned char b[64] = { 0 };

    WRONG("sendbuf", banyan_allreduce(NULL, y, 1, BANYAN_F32, BANYAN_SUM, comm, NULL));
    WRONG("recvbuf", banyan_allreduce(x, NULL, 1, BANYAN_F32, BANYAN_SUM, comm, NULL));
    WRONG("dtype", banyan_allreduce(x, y, 1, BNY_DTYPE_COUNT, BANYAN_SUM, comm, NULL));
    WRONG("dtype", banyan_broadcast(x, 1, (enum banyan_dtype) - 1, 0, comm, NULL));
    WRONG("op", banyan_allreduce(x, y, 1, BANYAN_F32, 12345678, comm, NULL));
    WRONG("op", banyan_allreduce(x, y, 1, BANYAN_F32, BANYAN_BXOR, comm, NULL));
    WRONG("avg", banyan_scan(x, y, 1, BANYAN_F32, BANYAN_AVG, comm, NULL));
    WRONG("comm", banyan_allreduce(x, y, 1, BANYAN_F32, BANYAN_SUM, NULL, NULL));
    WRONG("count", banyan_allreduce(x, y, SIZE_MAX / 2, BANYAN_F32, BANYAN_SUM, comm, NULL));
    WRONG("count", banyan_allgather(x, y, SIZE_MAX / 8 + 1, BANYAN_F32, comm, NULL));
    WRONG("root", banyan_broadcast(x, 1, BANYAN_F32, t->n, comm, NULL));
    WRONG("root", banyan_reduce(x, y, 1, BANYAN_F32, BANYAN_SUM, -1, comm, NULL));
    WRONG("peer", banyan_send(x, 1, BANYAN_F32, t->n, comm, NULL));
    WRONG("peer", banyan_recv(x, 1, BANYAN_F32, -2, comm, NULL));
    opts.schedule = "rign";
    WRONG("did you mean ring?", banyan_allreduce(x, y, 1, BANYAN_F32, BANYAN_SUM, comm, &opts));
    opts.schedule = "nonsense";
    WRONG("\"nonsense\" is unknown; there are",
          banyan_allreduce(x, y, 1, BANYAN_F32, BANYAN_SUM, comm, &opts));
    opts.schedule = "direct"; /* only planning finds that it cannot */
    if (t->n > 1)
        CHECK_RC(
            t, -BANYAN_ENOTSUP,
            banyan_allreduce_init(x, y, 1u << 30, BANYAN_F32, BANYAN_SUM, comm, &opts, &rq));
    CHECK(t, rq == NULL, "a request in spite of the error");
    opts.schedule = NULL;
    opts.codec = "f61";
    WRONG("did you mean f16?", banyan_allreduce(x, y, 1, BANYAN_F32, BANYAN_SUM, comm, &opts));
    codecs_out_of_place(t, comm);
    opts.codec = NULL;
    opts.timeout_s = NAN;
    WRONG("timeout_s: it is not a number",
          banyan_allreduce(x, y, 1, BANYAN_F32, BANYAN_SUM, comm, &opts));
    opts.timeout_s = -1;
    opts.size = 3;
    WRONG("size", banyan_allreduce(x, y, 1, BANYAN_F32, BANYAN_SUM, comm, &opts));
    WRONG("send: comm", banyan_send(x, 1, BANYAN_F32, 0, NULL, NULL));
    WRONG("recv: comm", banyan_recv(x, 1, BANYAN_F32, 0, NULL, NULL));
    WRONG("banyan_send_init: out", banyan_send_init(x, 1, BANYAN_F32, 0, comm, NULL, NULL));
    WRONG("banyan_recv_init: out", banyan_recv_init(x, 1, BANYAN_F32, 0, comm, NULL, NULL));
    if (wrong_counts(t, comm) || missing_buffers(t, comm) || wrong_requests(t, comm))
        return 1;
    WRONG("comm", banyan_barrier(NULL, NULL));
    WRONG("name, type", banyan_param(0, NULL, NULL, NULL, NULL));
    CHECK_OK(t, banyan_comm_destroy(NULL));
    case_check_works(t, comm);
    /* Count 0 needs no buffers. */
    CHECK_OK(t, banyan_allreduce(NULL, NULL, 0, BANYAN_F32, BANYAN_SUM, comm, NULL));
    CHECK_OK(t, banyan_broadcast(NULL, 0, BANYAN_U8, 0, comm, NULL));
    CHECK_OK(t, banyan_alltoall(NULL, b, 0, BANYAN_U8, comm, NULL));
    case_check_works(t, comm);
    return 0;
}
#undef WRONG

/* Nobody finalizes what is in flight: refused by name, and the communicator lives on. */
static int finalize_busy(struct test *t)
{
    struct banyan_comm *comm;
    struct banyan_request *rq[2];
    uint32_t x = 7, y = 0;
    int next = (t->rank + 1) % t->n, last = (t->rank + t->n - 1) % t->n;

    CHECK_OK(t, banyan_comm_dup(t->comm, &comm));
    CHECK_OK(t, banyan_recv_init(&y, 1, BANYAN_U32, last, comm, NULL, &rq[0]));
    CHECK_OK(t, banyan_start(rq[0]));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_comm_finalize(comm));
    CHECK_HAS(t, banyan_last_error(), "recv from rank");
    CHECK_OK(t, banyan_group_start());
    CHECK_RC(t, -BANYAN_EBUSY, banyan_comm_finalize(comm));
    CHECK_HAS(t, banyan_last_error(), "group");
    CHECK_OK(t, banyan_group_end());
    CHECK_OK(t, banyan_barrier(t->comm, NULL)); /* all have been refused */
    case_check_works(t, comm);
    CHECK_OK(t, banyan_send(&x, 1, BANYAN_U32, next, comm, NULL));
    CHECK_OK(t, banyan_wait(rq[0], -1));
    CHECK(t, y == 7, "received %u", y);
    CHECK_OK(t, banyan_request_free(rq[0]));
    if (t->n > 1 && t->rank == 0) { /* a collective, which the others come to later */
        CHECK_OK(t,
                 banyan_allreduce_init(&x, &y, 1, BANYAN_U32, BANYAN_SUM, comm, NULL, &rq[0]));
        CHECK_OK(t, banyan_start(rq[0]));
        CHECK_RC(t, -BANYAN_EBUSY, banyan_comm_finalize(comm));
        CHECK_HAS(t, banyan_last_error(), "allreduce");
    }
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    if (t->n > 1 && t->rank == 0) {
        CHECK_OK(t, banyan_wait(rq[0], -1));
        CHECK_OK(t, banyan_request_free(rq[0]));
    } else if (t->n > 1) {
        CHECK_OK(t, banyan_allreduce(&x, &y, 1, BANYAN_U32, BANYAN_SUM, comm, NULL));
    }
    CHECK_OK(t, banyan_comm_finalize(comm));
    return 0;
}

/* A communicator that is destroyed inside a group takes its calls along; the others run. */
static int destroy_in_group(struct test *t)
{
    struct banyan_comm *dup[2];
    uint32_t x = 1, y[3] = { 0 };
    size_t n = 100000;
    float *big = case_malloc(n * 4);

    memset(big, 0, n * 4);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++)
            CHECK_OK(t, banyan_comm_dup(t->comm, &dup[i]));
        CHECK_OK(t, banyan_group_start());
        CHECK_OK(t, banyan_allreduce(&x, &y[0], 1, BANYAN_U32, BANYAN_SUM, dup[0], NULL));
        CHECK_OK(t, banyan_allreduce(&x, &y[1], 1, BANYAN_U32, BANYAN_SUM, dup[1], NULL));
        CHECK_OK(t, banyan_allreduce(big, big, n, BANYAN_F32, BANYAN_SUM, dup[0], NULL));
        CHECK_OK(t, banyan_allreduce(&x, &y[2], 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
        banyan_comm_destroy(dup[0]);
        CHECK_RC(t, -BANYAN_EINVAL, banyan_group_end());
        CHECK_HAS(t, banyan_last_error(), "destroyed");
        CHECK(t, y[0] == 0 && y[1] == (uint32_t)t->n && y[2] == y[1], "sums %u, %u, %u", y[0],
              y[1], y[2]);
        CHECK_OK(t, banyan_group_start());
        CHECK_OK(t, banyan_group_end());
        CHECK_OK(t, banyan_comm_finalize(dup[1]));
        memset(y, 0, sizeof y);
    }
    free(big);
    return 0;
}

/* ---- calls from inside a user operation ---- */
struct inside {
    struct test *t;
    struct banyan_request *rq;
    int calls;
};

#define INSIDE(word, call)                                                                     \
    do {                                                                                       \
        CHECK_RC(t, -BANYAN_EBUSY, call);                                                      \
        CHECK_HAS(t, banyan_last_error(), word);                                               \
        CHECK_HAS(t, banyan_last_error(), "inside a user operation");                          \
    } while (0)

static void calling_op(void *ctx, const void *in, void *inout, size_t n,
                       enum banyan_dtype dtype)
{
    struct inside *s = ctx;
    struct test *t = s->t;
    struct banyan_stats stats = { .size = sizeof stats };
    struct banyan_comm *out;
    struct banyan_codec_state *st;
    struct banyan_request *none;
    banyan_op op;
    uint32_t x = 0, y;
    char text[100];
    void *mem;
    size_t which;
    int done;

    for (size_t i = 0; i < n; i++)
        ((uint32_t *)inout)[i] += ((const uint32_t *)in)[i];
    if (s->calls++)
        return;
    INSIDE("allreduce", banyan_allreduce(&x, &y, 1, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
    INSIDE("send", banyan_send(&x, 1, BANYAN_U32, 0, t->comm, NULL));
    INSIDE("barrier", banyan_barrier(t->comm, NULL));
    INSIDE("barrier", banyan_barrier_init(t->comm, NULL, &none));
    INSIDE("start", banyan_start(s->rq));
    INSIDE("test", banyan_test(s->rq, &done));
    INSIDE("wait", banyan_wait(s->rq, 1));
    INSIDE("wait_all", banyan_wait_all(&s->rq, 1, 1));
    INSIDE("wait_any", banyan_wait_any(&s->rq, 1, 1, &which));
    INSIDE("request_free", banyan_request_free(s->rq));
    INSIDE("group_start", banyan_group_start());
    INSIDE("group_end", banyan_group_end());
    INSIDE("split", banyan_comm_dup(t->comm, &out));
    INSIDE("finalize", banyan_comm_finalize(t->comm));
    INSIDE("init", banyan_comm_init_env(&out, NULL));
    INSIDE("plan", banyan_comm_plan(t->comm, "barrier", 0, BANYAN_U8, text, sizeof text));
    INSIDE("progress", banyan_progress(t->comm));
    INSIDE("mem_alloc", banyan_mem_alloc(t->comm, 64, &mem));
    INSIDE("mem_register", banyan_mem_register(t->comm, &x, 4, -1, 0));
    banyan_comm_destroy(t->comm);
    CHECK(t, banyan_comm_rank(t->comm) == t->rank, "rank %d", banyan_comm_rank(t->comm));
    CHECK(t, banyan_comm_count(t->comm) == t->n, "count %d", banyan_comm_count(t->comm));
    CHECK_OK(t, banyan_comm_stats(t->comm, &stats));
    CHECK_OK(t, banyan_async_error(t->comm, NULL, NULL, 0));
    CHECK_OK(t, banyan_op_create_premul_sum(2, &op));
    CHECK_OK(t, banyan_op_free(op));
    CHECK_OK(t, banyan_codec_state_create(&st, 8, 1));
    banyan_codec_state_free(st);
}
#undef INSIDE

static int op_calls_banyan(struct test *t)
{
    struct inside s = { .t = t };
    static uint32_t x[100000], y[100000];
    banyan_op op;

    CHECK_OK(t, banyan_op_create_user(calling_op, &s, 0, 0, 1, &op));
    for (size_t n = 1; n <= 100000; n += 99999) { /* the short cut, and chunks */
        struct banyan_request *rq;

        CHECK_OK(t, banyan_barrier_init(t->comm, NULL, &rq));
        s.rq = rq;
        s.calls = 0;
        for (size_t i = 0; i < n; i++)
            x[i] = (uint32_t)i;
        CHECK_OK(t, banyan_allreduce(x, y, n, BANYAN_U32, op, t->comm, NULL));
        for (size_t i = 0; i < n; i++)
            CHECK(t, y[i] == (uint32_t)t->n * i, "element %zu is %u", i, y[i]);
        CHECK_OK(t, banyan_start(rq));
        CHECK_OK(t, banyan_wait(rq, -1));
        CHECK_OK(t, banyan_request_free(rq));
        case_check_agree(t, t->comm, n, "the size");
    }
    CHECK_OK(t, banyan_op_free(op));
    return 0;
}

/* ---- handles that were freed ---- */
#define FREED(word, call)                                                                      \
    do {                                                                                       \
        CHECK_RC(t, -BANYAN_EINVAL, call);                                                     \
        CHECK_HAS(t, banyan_last_error(), word);                                               \
        CHECK_HAS(t, banyan_last_error(), "already");                                          \
    } while (0)

static void use_dead_comm(struct test *t, struct banyan_comm *dead)
{
    struct banyan_stats stats = { .size = sizeof stats };
    struct banyan_comm *out;
    struct banyan_request *rq;
    char x[4] = { 0 }, y[4 * MP_RANKS_MAX], text[80];
    void *mem;
    int n;

    FREED("allreduce", banyan_allreduce(x, y, 4, BANYAN_U8, BANYAN_MAX, dead, NULL));
    FREED("broadcast", banyan_broadcast(x, 4, BANYAN_U8, 0, dead, NULL));
    FREED("reduce", banyan_reduce(x, y, 4, BANYAN_U8, BANYAN_MAX, 0, dead, NULL));
    FREED("allgather", banyan_allgather(x, y, 4, BANYAN_U8, dead, NULL));
    FREED("barrier", banyan_barrier(dead, NULL));
    FREED("send", banyan_send(x, 4, BANYAN_U8, 0, dead, NULL));
    FREED("allreduce", banyan_allreduce_init(x, y, 4, BANYAN_U8, BANYAN_MAX, dead, NULL, &rq));
    FREED("finalize", banyan_comm_finalize(dead));
    FREED("split", banyan_comm_split(dead, 0, 0, &out));
    FREED("split", banyan_comm_dup(dead, &out));
    FREED("init_test", banyan_comm_init_test(dead, &n));
    FREED("rank", banyan_comm_rank(dead));
    FREED("count", banyan_comm_count(dead));
    FREED("stats", banyan_comm_stats(dead, &stats));
    FREED("plan", banyan_comm_plan(dead, "allreduce", 1, BANYAN_F32, text, sizeof text));
    FREED("async_error", banyan_async_error(dead, &n, text, sizeof text));
    FREED("abort", banyan_abort(dead, "for nothing"));
    FREED("progress", banyan_progress(dead));
    FREED("progress_fd", banyan_progress_fd(dead));
    FREED("mem_alloc", banyan_mem_alloc(dead, 64, &mem));
    FREED("mem_free", banyan_mem_free(dead, x));
    FREED("mem_register", banyan_mem_register(dead, x, 4, -1, 0));
    FREED("mem_deregister", banyan_mem_deregister(dead, x));
    FREED("destroy", banyan_comm_destroy(dead));
}

static void use_dead_request(struct test *t, struct banyan_request *dead)
{
    size_t which;
    int done;

    FREED("start", banyan_start(dead));
    FREED("wait", banyan_wait(dead, 1));
    FREED("test", banyan_test(dead, &done));
    FREED("wait_all", banyan_wait_all(&dead, 1, 1));
    FREED("wait_any", banyan_wait_any(&dead, 1, 1, &which));
    FREED("request_free", banyan_request_free(dead));
}

static void use_dead_state(struct test *t, struct banyan_codec_state *dead)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    char x[64] = { 0 };

    opts.codec_state = dead;
    FREED("codec_state", banyan_allreduce(x, x, 1, BANYAN_F32, BANYAN_SUM, t->comm, &opts));
    FREED("reset", banyan_codec_state_reset(dead));
    FREED("scale", banyan_codec_state_scale(dead, 2));
    FREED("save", banyan_codec_state_save(dead, x, sizeof x));
    FREED("load", banyan_codec_state_load(dead, x, sizeof x));
    CHECK(t, banyan_codec_state_residual(dead) == NULL, "residuals of a freed state");
    CHECK(t, banyan_codec_state_bytes(dead) == 0, "bytes of a freed state");
    FREED("free", banyan_codec_state_free(dead));
}

/* Whoever goes on with a handle that was freed is told so, as is who frees it again, also after
 * others were made. Under the address sanitizer: nothing freed is read. */
static int dead_handles(struct test *t)
{
    struct banyan_comm *dup, *gone, *others[20];
    struct banyan_request *rq, *orphan, *on_dup;
    struct banyan_codec_state *st;
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    float x[4] = { 0 };

    CHECK_OK(t, banyan_comm_dup(t->comm, &dup));
    CHECK_OK(t, banyan_comm_dup(t->comm, &gone));
    CHECK_OK(t, banyan_barrier_init(gone, NULL, &orphan));
    CHECK_OK(t, banyan_barrier_init(t->comm, NULL, &rq));
    CHECK_OK(t, banyan_barrier_init(dup, NULL, &on_dup));
    CHECK_OK(t, banyan_codec_state_create(&st, 4, 1));
    CHECK_OK(t, banyan_request_free(on_dup));
    CHECK_OK(t, banyan_comm_finalize(dup));
    CHECK_OK(t, banyan_comm_finalize(gone));
    CHECK_OK(t, banyan_request_free(rq));
    banyan_codec_state_free(st);
    for (int round = 0; round < 2; round++) {
        use_dead_comm(t, dup);
        use_dead_request(t, rq);
        use_dead_request(t, on_dup);
        use_dead_state(t, st);
        for (int i = 0; i < 20; i++)
            CHECK_OK(t, banyan_comm_dup(t->comm, &others[i]));
        for (int i = 0; i < 20; i++)
            CHECK_OK(t, banyan_comm_finalize(others[i]));
    }
    /* A request outlives its communicator, whose memory others have used meanwhile. */
    for (int i = 0; i < 100; i++) {
        CHECK_OK(t, banyan_comm_dup(t->comm, &others[0]));
        CHECK_OK(t, banyan_comm_finalize(others[0]));
    }
    FREED("communicator", banyan_start(orphan));
    FREED("communicator", banyan_request_free(orphan));
    FREED("request was freed", banyan_request_free(orphan));
    /* A state that its request outlives. */
    opts.codec = "bf16:force=1";
    CHECK_OK(t, banyan_codec_state_create(&st, 4, 1));
    opts.codec_state = st;
    CHECK_OK(t, banyan_allreduce_init(x, x, 4, BANYAN_F32, BANYAN_SUM, t->comm, &opts, &rq));
    banyan_codec_state_free(st);
    FREED("codec_state", banyan_start(rq));
    CHECK_OK(t, banyan_request_free(rq));
    case_check_works(t, t->comm);
    return 0;
}
#undef FREED

/* Do all other ranks wait in the call that agrees next? */
static int others_have_begun(const struct test *t)
{
    struct bny_control *c = t->comm->world->control;
    struct bny_consensus_id id = { BNY_CONSENSUS_CALL, t->comm->id, t->comm->agree_calls + 1 };
    const struct bny_instance *it;
    int have = 0;

    pthread_mutex_lock(&c->lock);
    it = bny_consensus_find(&c->agree, id);
    for (int r = 0; it && r < t->n; r++)
        have += bny_bit(it->has, r);
    pthread_mutex_unlock(&c->lock);
    return have == t->n - 1;
}

/* Rank 0 shrinks while the others grow: what they agree on is longer than it has room for. */
static int agree_on_other_things(struct test *t)
{
    struct banyan_comm *out = NULL;
    struct banyan_id id;
    int rc;

    if (t->rank == 1)
        CHECK_OK(t, banyan_comm_grow_id(t->comm, &id));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    if (t->rank == 0) {
        while (!others_have_begun(t))
            usleep(1000);
        CHECK_RC(t, -BANYAN_EMISMATCH, banyan_comm_shrink(t->comm, &out));
        CHECK_HAS(t, banyan_last_error(), "made a different call");
        return 0;
    }
    rc = banyan_comm_grow(t->comm, t->rank == 1 ? &id : NULL, 1, NULL, &out);
    CHECK(t, rc < 0, "it grew");
    return 0;
}

const struct mp_case cases_misuse[] = {
    { "agree_on_other_things", agree_on_other_things, CASE_FAILS },
    { "mismatch", mismatch, CASE_FAILS },
    { "only_sending", only_sending, 0 },
    { "recv_too_long", recv_too_long, CASE_FAILS },
    { "send_too_long", send_too_long, CASE_FAILS },
    { "send_bulk_for_little", send_bulk_for_little, CASE_FAILS },
    { "arguments", arguments, 0 },
    { "finalize_busy", finalize_busy, 0 },
    { "destroy_in_group", destroy_in_group, 0 },
    { "op_calls_banyan", op_calls_banyan, 0 },
    { "dead_handles", dead_handles, 0 },
    { 0 },
};
