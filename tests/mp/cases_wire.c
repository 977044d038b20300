/* SPDX-License-Identifier: BSD-3-Clause */
/* Schedules times codecs, every codec once, and a rank that dies: cases for a transport that is
 * slow to test (a software RDMA device under emulation), few calls each. They share nothing
 * between the ranks but the communicator. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "tests/mp/case.h"
#include "tests/mp/model.h"

enum { COUNT = 6000, STRIDE = 997 };

/* Small whole numbers at the same few places of every rank, zero elsewhere: sums are exact, and
 * a codec that keeps only large values keeps all of them. */
static float sparse_at(int rank, size_t i, uint64_t seed)
{
    return i % STRIDE ? 0.0f : (float)(model_mix(seed, i) % 50 + 1 + (uint64_t)rank);
}

/* Every rank has the bits of the others; returns the relative error (L2). */
static double run_one(struct test *t, const char *schedule, const char *codec, int sparse)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    float *in = case_malloc(COUNT * 4), *out = case_malloc(COUNT * 4);
    double err = 0, all = 0;
    int rc;

    opts.schedule = schedule;
    opts.codec = codec;
    opts.chunk_bytes = 8192;
    for (size_t i = 0; i < COUNT; i++)
        in[i] = sparse ? sparse_at(t->rank, i, t->seed)
                       : (float)(t->rank + 1) * sinf((float)i * 0.37f);
    rc = banyan_allreduce(in, out, COUNT, BANYAN_F32, BANYAN_SUM, t->comm, &opts);
    CHECK(t, rc == 0, "%s %s returned %d (%s)", schedule ? schedule : "auto", codec, rc,
          banyan_last_error());
    case_check_agree(t, t->comm, case_hash(out, COUNT * 4), codec);
    for (size_t i = 0; i < COUNT; i++) {
        double want = 0;

        for (int r = 0; r < t->n; r++)
            want += sparse ? sparse_at(r, i, t->seed) : (r + 1) * sin(i * 0.37);
        CHECK(t, isfinite(out[i]), "%s: element %zu is %g", codec, i, (double)out[i]);
        err += (out[i] - want) * (out[i] - want);
        all += want * want;
    }
    free(in);
    free(out);
    return sqrt(err / all);
}

static int matrix(struct test *t)
{
    static const char *const schedules[] = { "ring", "multitree", "packed" };
    static const struct {
        const char *name;
        double error;
    } codecs[] = { { "none", 0 },
                   { "lossless:force=1", 0 },
                   { "int8:force=1", 0.03 },
                   { "topk:force=1", 0 } };

    for (size_t s = 0; s < sizeof schedules / sizeof schedules[0]; s++)
        for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++) {
            double err = run_one(t, schedules[s], codecs[c].name, 1);

            CHECK(t, err <= codecs[c].error, "%s %s: relative error %g", schedules[s],
                  codecs[c].name, err);
        }
    return 0;
}

/* What each codec loses is its own tests' affair; here it must come across, the same
 * everywhere, and be no junk (a codec that drops at random and scales up has errors above 2).
 */
static int every_codec(struct test *t)
{
    const char *name;
    char text[64];

    for (size_t i = 0; (name = banyan_codec_name(i)); i++) {
        double err;

        snprintf(text, sizeof text, "%s%s", name, strcmp(name, "none") ? ":force=1" : "");
        err = run_one(t, NULL, text, 0);
        CHECK(t, err < 4, "%s: relative error %g", text, err);
        if (t->rank == 0)
            printf("note: %s: relative error %.3g\n", name, err);
    }
    return 0;
}

/* Encoders write where the device reads: no codec's bytes are copied on their way, by either
 * end. */
static int no_copies(struct test *t)
{
    enum { MANY = 65536 };
    float *in = case_malloc(MANY * 4), *out = case_malloc(MANY * 4);
    const char *name;
    char text[64];

    for (size_t i = 0; i < MANY; i++)
        in[i] = sinf((float)i * 0.37f);
    for (size_t i = 0; (name = banyan_codec_name(i)); i++) {
        struct banyan_stats before = { .size = sizeof before },
                            after = { .size = sizeof after };
        struct banyan_opts opts = BANYAN_OPTS_INIT;

        snprintf(text, sizeof text, "%s:force=1", name);
        opts.codec = text;
        opts.schedule = "ring";
        opts.chunk_bytes = 65536;
        if (!strcmp(name, "none"))
            continue;
        CHECK_OK(t, banyan_comm_stats(t->comm, &before));
        CHECK_OK(t, banyan_allreduce(in, out, MANY, BANYAN_F32, BANYAN_SUM, t->comm, &opts));
        CHECK_OK(t, banyan_comm_stats(t->comm, &after));
        /* one small message: scales that some codecs agree upon first, by an ordinary operation
         */
        CHECK(t, after.copied_bytes - before.copied_bytes < 4200, "%s: %llu bytes copied", name,
              (unsigned long long)(after.copied_bytes - before.copied_bytes));
        CHECK(t, after.wire_bytes > before.wire_bytes, "%s: nothing sent", name);
    }
    free(in);
    free(out);
    return 0;
}

enum { ELEMS = 3 * 65536, SLACK = 4000 }; /* SLACK: short messages of 6 calls */

/* Bytes that this rank copied to send them, by calls from memory of banyan_mem_alloc. */
static int copies_nothing(struct test *t, const char *what, const char *codec, float *in,
                          float *out)
{
    struct banyan_stats a = { .size = sizeof a }, b = { .size = sizeof b };
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    size_t each = (size_t)(ELEMS / t->n);
    uint64_t copied, wire;
    int rc;

    opts.codec = codec;
    CHECK_OK(t, banyan_comm_stats(t->comm, &a));
    for (int turn = 0; turn < 6; turn++) {
        if (!strcmp(what, "allreduce"))
            rc = banyan_allreduce(in, out, ELEMS, BANYAN_F32, BANYAN_SUM, t->comm, &opts);
        else if (!strcmp(what, "allgather"))
            rc = banyan_allgather(in, out, each, BANYAN_F32, t->comm, &opts);
        else
            rc = banyan_alltoall(in, out, each, BANYAN_F32, t->comm, &opts);
        CHECK_OK(t, rc);
    }
    CHECK_OK(t, banyan_comm_stats(t->comm, &b));
    wire = b.wire_bytes - a.wire_bytes;
    copied = b.staged_bytes - a.staged_bytes;
    CHECK(t, copied <= b.copied_bytes - a.copied_bytes, "copied in part, not in all");
    printf("rank %d: %s, %s: %llu bytes copied of %llu sent\n", t->rank, what, codec,
           (unsigned long long)copied, (unsigned long long)wire);
    CHECK(t, wire > 6 * each, "%s, %s: %llu bytes sent", what, codec, (unsigned long long)wire);
    CHECK(t, copied <= SLACK, "%s, %s: %llu bytes copied of %llu sent", what, codec,
          (unsigned long long)copied, (unsigned long long)wire);
    return 0;
}

static int copy_nothing(struct test *t, float *in, float *out)
{
    static const char *const calls[] = { "allreduce", "allgather", "alltoall" };
    static const char *const codecs[] = { "none", "int8:force=1" };

    for (size_t i = 0; i < ELEMS; i++)
        in[i] = sinf((float)i * 0.37f);
    for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++)
        for (size_t c = 0; c < sizeof codecs / sizeof codecs[0]; c++)
            if (c == 0 || strcmp(calls[k], "alltoall") != 0) /* takes no codec */
                copies_nothing(t, calls[k], codecs[c], in, out);
    return 0;
}

/* From and to the library's memory a network that reads it itself sends everything from where
 * it lies, or from where an encoder wrote it. */
static int zero_copy(struct test *t)
{
    float *in, *out;

    CHECK_OK(t, banyan_mem_alloc(t->comm, ELEMS * 4, (void **)&in));
    CHECK_OK(t, banyan_mem_alloc(t->comm, ELEMS * 4, (void **)&out));
    copy_nothing(t, in, out);
    CHECK_OK(t, banyan_mem_free(t->comm, in));
    CHECK_OK(t, banyan_mem_free(t->comm, out));
    return 0;
}

/* The same of memory that nobody registered, with BANYAN_VERBS=cache. */
static int zero_copy_cached(struct test *t)
{
    float *in = case_malloc(ELEMS * 4), *out = case_malloc(ELEMS * 4);

    copy_nothing(t, in, out);
    free(in);
    free(out);
    return 0;
}

/* A child that outlives its parent; the test ends it. Output's end is not to wait for it. */
static void leave_child(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        alarm(60);
        pause();
        _exit(0);
    }
    printf("child %d\n", (int)pid);
    fflush(stdout);
}

/* The last rank kills itself in the middle; the others learn of it within seconds, by its
 * number. arg "child": a child of that one lives on. */
static int rank_dies(struct test *t)
{
    struct rlimit no_core = { 0, 0 };
    char name[24];
    uint32_t x[5000] = { 0 };
    uint64_t t0;
    int rc = 0, victim = t->rank == t->n - 1;

    /* The last one that it does may fail at the others already. */
    for (int i = 0; i < (victim ? 3 : 2); i++)
        CHECK_OK(t, banyan_allreduce(x, x, 5000, BANYAN_U32, BANYAN_MAX, t->comm, NULL));
    if (victim) {
        setrlimit(RLIMIT_CORE, &no_core);
        if (!strcmp(t->arg, "child"))
            leave_child();
        raise(SIGKILL);
    }
    t0 = bny_now_ns();
    while (rc == 0)
        rc = banyan_allreduce(x, x, 5000, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
    printf("rank %d: after %.1f s: %s\n", t->rank, (double)(bny_now_ns() - t0) * 1e-9,
           banyan_last_error());
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d: %s", rc, banyan_last_error());
    snprintf(name, sizeof name, "rank %d", t->n - 1);
    CHECK_HAS(t, banyan_last_error(), name);
    return 0;
}

/* Lines of this process's memory map with that word; -1: there is no map. */
static int mappings(const char *word)
{
    FILE *f = fopen("/proc/self/maps", "r");
    char line[512];
    int n = 0;

    while (f && fgets(line, sizeof line, f))
        n += strstr(line, word) != NULL;
    if (f)
        fclose(f);
    return f ? n : -1;
}

/* The last rank kills itself; what the others share with it stays mapped until they close their
 * ends, as they may be in a burst there. arg: what the mappings have in their name. */
static int rings_outlive_the_dead(struct test *t)
{
    struct rlimit no_core = { 0, 0 };
    struct timespec nap = { .tv_nsec = 300000000 };
    uint32_t x = 0;
    int before, after, rc;

    CHECK_OK(t, banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL));
    before = mappings(t->arg);
    /* The victim gets past it when all have counted; for them it may fail. */
    rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
    if (t->rank == t->n - 1) {
        setrlimit(RLIMIT_CORE, &no_core);
        raise(SIGKILL);
    }
    nanosleep(&nap, NULL);
    after = mappings(t->arg);
    CHECK(t, before > 0 && before == after, "%d mappings of %s before the death, %d after",
          before, t->arg, after);
    while (rc == 0)
        rc = banyan_allreduce(&x, &x, 1, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
    CHECK(t, rc == -BANYAN_ERANKDEAD, "returned %d: %s", rc, banyan_last_error());
    printf("rank %d: %d mappings stay\n", t->rank, after);
    return 0;
}

/* Calls until one fails, with something to fail: the test takes the device away meanwhile. */
static int until_failure(struct test *t)
{
    uint64_t t0 = bny_now_ns();
    uint32_t x[5000] = { 0 };
    int rc = 0;

    CHECK_OK(t, banyan_allreduce(x, x, 5000, BANYAN_U32, BANYAN_MAX, t->comm, NULL));
    printf("working\n");
    fflush(stdout);
    while (rc == 0 && bny_now_ns() - t0 < 60000000000ull)
        rc = banyan_allreduce(x, x, 5000, BANYAN_U32, BANYAN_MAX, t->comm, NULL);
    CHECK(t, rc != 0, "nothing failed within 60 s");
    printf("rank %d: %s\n", t->rank, banyan_last_error());
    return 0;
}

/* Sums until a connection of every rank went elsewhere and came back, while the test takes its
 * device away for a while. */
static int there_and_back(struct test *t)
{
    enum { MANY = 131072 };
    uint32_t *x = case_malloc(MANY * 4), n = (uint32_t)t->n, back = 0;
    struct banyan_stats s = { .size = sizeof s };
    uint64_t told = 0;

    for (uint32_t round = 0; !back; round++) {
        for (uint32_t i = 0; i < MANY; i++)
            x[i] = i + round + (uint32_t)t->rank;
        CHECK_OK(t, banyan_allreduce(x, x, MANY, BANYAN_U32, BANYAN_SUM, t->comm, NULL));
        for (uint32_t i = 0; i < MANY; i++)
            CHECK(t, x[i] == n * (i + round) + n * (n - 1) / 2, "round %u: element %u is %u",
                  round, i, x[i]);
        CHECK_OK(t, banyan_comm_stats(t->comm, &s));
        CHECK(t, s.moved <= s.replaced, "%llu moved", (unsigned long long)s.moved);
        if (s.moved != told)
            printf("rank %d: moved %llu\n", t->rank, (unsigned long long)s.moved);
        told = s.moved;
        fflush(stdout);
        back = s.moved >= 2;
        usleep(10000); /* others compute meanwhile */
        CHECK_OK(t, banyan_allreduce(&back, &back, 1, BANYAN_U32, BANYAN_MIN, t->comm, NULL));
    }
    free(x);
    return 0;
}

const struct mp_case cases_wire[] = {
    { "matrix", matrix, 0 },
    { "every_codec", every_codec, 0 },
    { "no_copies", no_copies, 0 },
    { "zero_copy", zero_copy, 0 },
    { "zero_copy_cached", zero_copy_cached, 0 },
    { "rank_dies", rank_dies, CASE_FAILS },
    { "rings_outlive_the_dead", rings_outlive_the_dead, CASE_FAILS },
    { "until_failure", until_failure, CASE_FAILS },
    { "there_and_back", there_and_back, 0 },
    { 0 },
};
