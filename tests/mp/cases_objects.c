/* SPDX-License-Identifier: BSD-3-Clause */
/* The object store: bytes against a model, by names that say what they hold; sizes, threads,
 * partial copies, reductions of k of n, deaths in the middle of all of it. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "banyan/objects.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/mp/case.h"
#include "tests/mp/fate.h"

/* ---- the model: an object's bytes follow from its name ---- */

static struct banyan_object_id name_of(uint64_t kind, uint64_t number)
{
    struct banyan_object_id id;

    memcpy(id.bytes, &kind, 8);
    memcpy(id.bytes + 8, &number, 8);
    return id;
}

/* Which byte is at place i of the object whose name has this hash. */
static unsigned char byte_of(uint64_t hash, size_t i)
{
    uint64_t s = hash + i / 8;

    return (unsigned char)(bny_rng_next(&s) >> (i % 8 * 8));
}

static void fill(void *to, const struct banyan_object_id *id, size_t from, size_t bytes)
{
    uint64_t hash = case_hash(id, sizeof *id);
    unsigned char *p = to;

    for (size_t i = from; i < bytes; i++)
        p[i] = byte_of(hash, i);
}

static void check_bytes(struct test *t, const struct banyan_object_id *id, const void *data,
                        size_t bytes)
{
    uint64_t hash = case_hash(id, sizeof *id);
    const unsigned char *p = data;

    for (size_t i = 0; i < bytes; i++)
        CHECK(t, p[i] == byte_of(hash, i), "object %llx: byte %zu of %zu",
              (unsigned long long)hash, i, bytes);
}

static const size_t sizes[] = { 0,     1,      64,     1000,    3968,    3969,
                                16384, 100000, 300000, 1 << 20, 5000001, 12345678 };
#define NSIZES (sizeof sizes / sizeof sizes[0])

static void put(struct test *t, struct banyan_objects *s, const struct banyan_object_id *id,
                size_t bytes)
{
    char *data = case_malloc(bytes);

    fill(data, id, 0, bytes);
    CHECK_OK(t, banyan_object_put(s, id, data, bytes));
    memset(data, 0, bytes); /* it was borrowed until return */
    free(data);
}

static void get(struct test *t, struct banyan_objects *s, const struct banyan_object_id *id,
                size_t bytes)
{
    struct banyan_object o;

    CHECK_OK(t, banyan_object_get(s, id, 30, &o));
    CHECK(t, o.bytes == bytes, "%zu bytes, not %zu", o.bytes, bytes);
    CHECK(t, (uintptr_t)o.data % 64 == 0, "alignment of %p", o.data);
    check_bytes(t, id, o.data, bytes);
    CHECK_OK(t, banyan_object_release(s, &o));
}

/* It was deleted; this rank's copy may not have heard of it yet. */
static void gone(struct test *t, struct banyan_objects *s, const struct banyan_object_id *id)
{
    uint64_t until = bny_deadline_in(20);
    struct banyan_object o;
    int rc;

    while ((rc = banyan_object_get(s, id, 10, &o)) == 0) {
        CHECK_OK(t, banyan_object_release(s, &o));
        CHECK(t, !bny_deadline_passed(until), "a deleted object is still here");
    }
    CHECK(t, rc == -BANYAN_EINVAL, "returned %d", rc);
    CHECK_HAS(t, banyan_last_error(), "deleted");
}

/* ---- one rank puts, all get; the owner computes ---- */

static int objects_basic(struct test *t)
{
    struct banyan_objects *s;
    struct banyan_objects_stats st = { .size = sizeof st };
    uint64_t want = 0;

    CHECK_OK(t, banyan_objects_create(t->comm, NULL, &s));
    for (size_t i = 0; i < NSIZES; i++) {
        struct banyan_object_id id = name_of(1, i);
        int owner = (int)(i % (size_t)t->n);

        if (t->rank == owner)
            put(t, s, &id, sizes[i]);
        get(t, s, &id, sizes[i]);
        want += t->rank != owner && sizes[i] > 3968 ? sizes[i] : 0;
    }
    CHECK_OK(t, banyan_objects_stats(s, &st));
    CHECK(t, st.received == want, "%llu bytes came, not %llu", (unsigned long long)st.received,
          (unsigned long long)want);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    for (size_t i = 0; i < NSIZES; i++) {
        struct banyan_object_id id = name_of(1, i);

        if (t->rank == (int)((i + 1) % (size_t)t->n))
            CHECK_OK(t, banyan_object_delete(s, &id));
        CHECK_OK(t, banyan_barrier(t->comm, NULL));
        gone(t, s, &id);
    }
    CHECK_OK(t, banyan_objects_stats(s, &st));
    CHECK(t, st.objects == 0 && st.bytes == 0 && st.records == 0, "%llu objects, %llu bytes",
          (unsigned long long)st.objects, (unsigned long long)st.bytes);
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

/* The owners' programs do not call the library before all others have what they put: they wait
 * on memory that the library knows nothing of. */
static int objects_computes(struct test *t)
{
    struct banyan_objects *s;

    CHECK_OK(t, banyan_objects_create(t->comm, NULL, &s));
    for (int owner = 0; owner < t->n; owner++) {
        struct banyan_object_id id = name_of(2, (uint64_t)owner);
        uint64_t until = bny_deadline_in(30);

        if (t->rank == owner) {
            put(t, s, &id, 3000000);
            atomic_fetch_add(&t->shared->marker[owner], 1);
            while (atomic_load(&t->shared->marker[owner]) < (uint32_t)t->n)
                CHECK(t, !bny_deadline_passed(until), "nobody serves while rank %d computes",
                      owner);
        } else {
            get(t, s, &id, 3000000);
            atomic_fetch_add(&t->shared->marker[owner], 1);
            while (atomic_load(&t->shared->marker[owner]) < (uint32_t)t->n)
                sched_yield();
        }
    }
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

/* Big objects are added where they are: what comes to who asked is one object's bytes, to
 * others those of the sum before theirs and of the whole one. */
static int objects_chain(struct test *t)
{
    enum { COUNT = 1500007 };
    struct banyan_object_id ids[MP_RANKS_MAX], sum = name_of(8, 99);
    struct banyan_objects_stats st = { .size = sizeof st };
    uint64_t bytes = COUNT * sizeof(float);
    struct banyan_objects *s;
    struct banyan_object o;
    float *x;

    CHECK_OK(t, banyan_objects_create(t->comm, NULL, &s));
    for (int r = 0; r < t->n; r++)
        ids[r] = name_of(8, (uint64_t)r);
    if (t->rank == 0)
        CHECK_OK(t, banyan_object_reduce(s, &sum, ids, (size_t)t->n, (size_t)t->n, COUNT,
                                         BANYAN_F32, BANYAN_AVG));
    CHECK_OK(t, banyan_object_create(s, &ids[t->rank], bytes, (void **)&x));
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = (float)(i % 1000 + (size_t)t->rank * t->n);
        if (i % 200000 == 0)
            CHECK_OK(t, banyan_object_fill(s, &ids[t->rank], i * sizeof *x));
    }
    CHECK_OK(t, banyan_object_fill(s, &ids[t->rank], bytes));
    CHECK_OK(t, banyan_object_get(s, &sum, 30, &o));
    for (size_t i = 0; i < COUNT; i++)
        CHECK(t,
              ((const float *)o.data)[i] == (float)(i % 1000) + (float)(t->n * (t->n - 1)) / 2,
              "element %zu: %g", i, (double)((const float *)o.data)[i]);
    CHECK_OK(t, banyan_object_release(s, &o));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK_OK(t, banyan_objects_stats(s, &st));
    CHECK(t, st.received <= (t->rank ? 2 : 1) * bytes, "%llu bytes came for a sum of %llu",
          (unsigned long long)st.received, (unsigned long long)bytes);
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

static void gets_over_limit(struct test *t, struct banyan_objects *s)
{
    struct banyan_object_id small = name_of(3, 1), big = name_of(3, 2), more = name_of(3, 3);
    char data[1000] = { 0 };
    struct banyan_object o;
    void *p;

    CHECK_OK(t, banyan_object_put(s, &small, data, sizeof data));
    CHECK_OK(t, banyan_object_create(s, &big, 50000, &p));
    CHECK_RC(t, -BANYAN_ENOMEM, banyan_object_create(s, &more, 50000, &p));
    CHECK_HAS(t, banyan_last_error(), "0300000000000000"); /* the biggest one's name */
    CHECK_HAS(t, banyan_last_error(), "50000");
    CHECK_OK(t, banyan_object_fill(s, &big, 50000));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_object_fill(s, &big, 50001));
    CHECK_OK(t, banyan_object_get(s, &big, 0, &o));
    CHECK_OK(t, banyan_object_delete(s, &big));
    CHECK_RC(t, -BANYAN_ENOMEM, banyan_object_create(s, &more, 50000, &p)); /* it is read */
    CHECK_RC(t, -BANYAN_EBUSY, banyan_objects_finalize(s));
    CHECK_OK(t, banyan_object_release(s, &o));
    CHECK_OK(t, banyan_object_release(s, &o));
    CHECK_OK(t, banyan_object_put(s, &more, data, sizeof data));
}

/* A sum that waits for what nobody puts can be deleted, and its target then is not waited for.
 */
static void sum_is_given_up(struct test *t, struct banyan_objects *s)
{
    struct banyan_object_id none = name_of(5, 0), sum = name_of(5, 1 + (uint64_t)t->rank);
    struct banyan_objects_stats st = { .size = sizeof st };
    struct banyan_object o;

    CHECK_OK(t, banyan_object_reduce(s, &sum, &none, 1, 1, 10, BANYAN_F32, BANYAN_SUM));
    CHECK_RC(t, -BANYAN_ETIMEDOUT, banyan_object_get(s, &sum, 0.02, &o));
    CHECK_HAS(t, banyan_last_error(), "still being written");
    CHECK_OK(t, banyan_object_delete(s, &sum));
    gone(t, s, &sum);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    if (t->rank == 0)
        put(t, s, &none, 40); /* nobody asks for it any more */
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK_OK(t, banyan_objects_stats(s, &st));
    CHECK(t, st.objects <= 5, "%llu copies", (unsigned long long)st.objects);
}

/* A reduction of an object of another size, by rank 0: every get, at every rank, hears why. */
static void failed_sum_tells_why(struct test *t, struct banyan_objects *s,
                                 const struct banyan_object_id *small)
{
    struct banyan_object_id sum = name_of(97, 1);
    struct banyan_object o;

    if (t->rank == 0)
        CHECK_OK(t, banyan_object_reduce(s, &sum, small, 1, 1, 100, BANYAN_F32, BANYAN_SUM));
    for (int i = 0; i < 3; i++) {
        CHECK_RC(t, -BANYAN_EMISMATCH, banyan_object_get(s, &sum, -1, &o));
        CHECK_HAS(t, banyan_last_error(), "another size");
    }
}

/* What is wrong is refused, and costs nothing. */
static int objects_refused(struct test *t)
{
    struct banyan_objects_config cfg = { .size = sizeof cfg, .memory_bytes = 60000 };
    struct banyan_object_id id = name_of(4, 0), none = name_of(4, 9), sum = name_of(4, 10);
    struct banyan_objects *s, *bad = NULL;
    struct banyan_request *req;
    struct banyan_object o;
    uint8_t in[1];
    int x = 5, rc;

    CHECK_OK(t, banyan_objects_create(t->comm, &cfg, &s));
    if (t->rank == 0)
        gets_over_limit(t, s);
    rc = banyan_object_put(s, &id, &x, sizeof x); /* all ranks: one of them is first */
    CHECK(t, rc == 0 || rc == -BANYAN_EBUSY, "returned %d", rc);
    CHECK_OK(t, banyan_object_get(s, &id, 20, &o));
    CHECK(t, *(const int *)o.data == 5, "another object");
    CHECK_OK(t, banyan_object_release(s, &o));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_object_get(s, NULL, 1, &o));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_object_get(s, &none, NAN, &o));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_object_put(s, &none, NULL, 1));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_object_delete(s, &none));
    CHECK_RC(t, -BANYAN_ETIMEDOUT, banyan_object_get(s, &none, 0.02, &o));
    CHECK_OK(t, banyan_object_get_init(s, &none, &o, &req));
    CHECK_OK(t, banyan_start(req));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_request_free(req));
    CHECK_RC(t, -BANYAN_ETIMEDOUT, banyan_wait(req, 0.02));
    CHECK_HAS(t, banyan_last_error(), "nobody has put it");
    CHECK_RC(t, -BANYAN_EBUSY, banyan_objects_finalize(s));
    CHECK_OK(t, banyan_request_free(req));
    CHECK_RC(t, -BANYAN_EINVAL,
             banyan_object_reduce(s, &sum, &id, 1, 2, 1, BANYAN_I32, BANYAN_SUM));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_object_contributors(s, &sum, in, 1));
    sum_is_given_up(t, s);
    failed_sum_tells_why(t, s, &id);
    CHECK_OK(t, banyan_object_get_init(s, &id, &o, &req));
    CHECK_OK(t, banyan_start(req));
    CHECK_OK(t, banyan_wait(req, -1));
    CHECK_RC(t, -BANYAN_EBUSY, banyan_start(req)); /* its view is lent */
    CHECK_OK(t, banyan_object_release(s, &o));
    CHECK_OK(t, banyan_start(req));
    CHECK_OK(t, banyan_wait(req, -1));
    CHECK_OK(t, banyan_object_release(s, &o));
    CHECK_OK(t, banyan_request_free(req));
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    CHECK_OK(t, banyan_objects_finalize(s));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_object_delete(s, &id));
    CHECK_RC(t, -BANYAN_EINVAL, banyan_objects_finalize(bad));
    banyan_objects_destroy(NULL);
    case_check_works(t, t->comm);
    return 0;
}

/* ---- random programs of several threads ---- */

#define STEPS_MAX   64
#define THREADS_MAX 4
#define HELD        4
#define LAG         12 /* steps behind its put an object may be deleted */
#define COUNT_MAX   70000

struct plan { /* the same on all ranks */
    int steps, threads, deaths;
    uint64_t seed;
    uint32_t victims; /* a bit a rank */
};

struct worker {
    struct test *t;
    const struct plan *plan;
    struct banyan_objects *s;
    int number;
    uint64_t s_own;
    struct banyan_object held[HELD];
    struct banyan_object_id held_id[HELD];
    pthread_t thread;
};

static uint64_t draw(const struct plan *p, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t key[4] = { p->seed, a, b, c };

    return case_hash(key, sizeof key);
}

static struct banyan_object_id bytes_id(const struct plan *p, int step, int rank, int thread)
{
    return name_of(p->seed * 4, (uint64_t)(step * 256 + rank * 8 + thread));
}

static struct banyan_object_id numbers_id(const struct plan *p, int step, int rank)
{
    return name_of(p->seed * 4 + 1, (uint64_t)(step * 256 + rank));
}

static size_t bytes_of(const struct plan *p, int step, int rank, int thread)
{
    uint64_t h = draw(p, 1, (uint64_t)step, (uint64_t)(rank * 8 + thread));

    return h % 8 ? sizes[h / 8 % 9] : sizes[9 + h / 8 % 2];
}

static int is_deleted(const struct plan *p, int step, int rank, int thread)
{
    return !p->deaths && draw(p, 2, (uint64_t)step, (uint64_t)(rank * 8 + thread)) % 2;
}

static int is_victim(const struct plan *p, int rank)
{
    return p->victims >> rank & 1;
}

static void put_bit_by_bit(struct worker *w, const struct banyan_object_id *id, size_t bytes)
{
    struct test *t = w->t;
    size_t at = 0;
    void *data;

    CHECK_OK(t, banyan_object_create(w->s, id, bytes, &data));
    while (at < bytes) {
        size_t some = 1 + (size_t)bny_rng_below(&w->s_own, bytes / 3 + 1);

        some = some < bytes - at ? some : bytes - at;
        fill(data, id, at, at + some);
        at += some;
        CHECK_OK(t, banyan_object_fill(w->s, id, at));
        if (bny_rng_below(&w->s_own, 3) == 0)
            usleep(200);
    }
    if (!bytes)
        CHECK_OK(t, banyan_object_fill(w->s, id, 0));
}

/* Which number rank r adds at place i of a step's reduction: sums of them are exact. */
static float number_at(const struct plan *p, int step, int rank, size_t i)
{
    return (float)(draw(p, 3, (uint64_t)step, (uint64_t)rank * 4096 + i % 61) % 1000);
}

static size_t count_of(const struct plan *p, int step)
{
    static const size_t counts[] = { 1, 7, 500, 992, 993, 30000, COUNT_MAX };

    return counts[draw(p, 4, (uint64_t)step, 0) % 7];
}

static void put_numbers(struct worker *w, int step)
{
    struct banyan_object_id id = numbers_id(w->plan, step, w->t->rank);
    size_t n = count_of(w->plan, step);
    float *x = case_malloc(n * sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = number_at(w->plan, step, w->t->rank, i);
    CHECK_OK(w->t, banyan_object_put(w->s, &id, x, n * sizeof *x));
    free(x);
}

static void check_sum(struct worker *w, int step, const float *sum, const uint8_t *in, int k,
                      int avg)
{
    struct test *t = w->t;
    size_t n = count_of(w->plan, step);
    int m = 0;

    for (int r = 0; r < t->n; r++)
        m += in[r];
    CHECK(t, m == k, "%d contributors, not %d", m, k);
    for (size_t i = 0; i < n; i++) {
        float want = 0;

        for (int r = 0; r < t->n; r++)
            want += in[r] ? number_at(w->plan, step, r, i) : 0;
        if (avg)
            want *= 1.0f / (float)k;
        CHECK(t, sum[i] == want, "step %d: element %zu: %g, not %g", step, i, (double)sum[i],
              (double)want);
    }
}

static void reduce(struct worker *w, int step)
{
    const struct plan *p = w->plan;
    struct test *t = w->t;
    struct banyan_object_id ids[MP_RANKS_MAX];
    struct banyan_object_id target =
        name_of(p->seed * 4 + 2, (uint64_t)(step * 256 + t->rank * 8 + w->number));
    int alive = t->n - __builtin_popcount(p->victims);
    int k = 1 + (int)bny_rng_below(&w->s_own, (uint64_t)alive);
    int avg = (int)bny_rng_below(&w->s_own, 2);
    uint8_t in[MP_RANKS_MAX];
    struct banyan_object o;

    for (int r = 0; r < t->n; r++)
        ids[r] = numbers_id(p, step, r);
    CHECK_OK(t, banyan_object_reduce(w->s, &target, ids, (size_t)t->n, (size_t)k,
                                     count_of(p, step), BANYAN_F32,
                                     avg ? BANYAN_AVG : BANYAN_SUM));
    CHECK_OK(t, banyan_object_get(w->s, &target, 60, &o));
    CHECK(t, banyan_object_contributors(w->s, &target, in, (size_t)t->n) == k, "of %d", k);
    check_sum(w, step, o.data, in, k, avg);
    CHECK_OK(t, banyan_object_release(w->s, &o));
    CHECK_OK(t, banyan_object_delete(w->s, &target));
}

/* Views outlive their objects: they are looked at once more before they are given back. */
static void hold(struct worker *w, const struct banyan_object_id *id, struct banyan_object *o)
{
    int i = (int)bny_rng_below(&w->s_own, HELD);

    if (w->held[i].ref)
        check_bytes(w->t, &w->held_id[i], w->held[i].data, w->held[i].bytes);
    CHECK_OK(w->t, banyan_object_release(w->s, &w->held[i]));
    w->held[i] = *o;
    w->held_id[i] = *id;
}

static int by_request(struct worker *w, const struct banyan_object_id *id, double timeout_s,
                      struct banyan_object *o)
{
    struct banyan_request *req;
    uint64_t until = bny_deadline_in(timeout_s);
    int rc, done = 0;

    CHECK_OK(w->t, banyan_object_get_init(w->s, id, o, &req));
    CHECK_OK(w->t, banyan_start(req));
    if (bny_rng_below(&w->s_own, 2)) {
        rc = banyan_wait(req, timeout_s);
    } else {
        while ((rc = banyan_test(req, &done)) == 0 && !done && !bny_deadline_passed(until))
            sched_yield();
        if (!done)
            rc = banyan_wait(req, 0.01);
    }
    CHECK_OK(w->t, banyan_request_free(req));
    return rc;
}

static int as_stream(struct worker *w, const struct banyan_object_id *id, double timeout_s,
                     struct banyan_object *o)
{
    size_t have = 0;
    int rc = banyan_object_open(w->s, id, timeout_s, o);

    while (rc == 0 && have < o->bytes) {
        size_t more = have + 1 + (size_t)bny_rng_below(&w->s_own, o->bytes - have);

        rc = banyan_object_wait(w->s, o, more, timeout_s, &have);
        CHECK(w->t, rc || have >= more, "%zu bytes of the %zu waited for", have, more);
        check_bytes(w->t, id, o->data, have);
    }
    if (rc)
        banyan_object_release(w->s, o);
    return rc;
}

static void get_some(struct worker *w, int step)
{
    const struct plan *p = w->plan;
    struct test *t = w->t;
    int at = step - (int)bny_rng_below(&w->s_own, 4), rank, thread, rc;
    struct banyan_object_id id;
    struct banyan_object o = { 0 };
    double timeout_s;

    at = at < 0 ? 0 : at;
    rank = (int)bny_rng_below(&w->s_own, (uint64_t)t->n);
    thread = (int)bny_rng_below(&w->s_own, (uint64_t)p->threads);
    id = bytes_id(p, at, rank, thread);
    timeout_s = is_victim(p, rank) ? 0.1 : 60; /* it may never be put */
    switch (bny_rng_below(&w->s_own, 3)) {
    case 0: rc = banyan_object_get(w->s, &id, timeout_s, &o); break;
    case 1: rc = by_request(w, &id, timeout_s, &o); break;
    default: rc = as_stream(w, &id, timeout_s, &o); break;
    }
    if (rc == -BANYAN_EINVAL && is_deleted(p, at, rank, thread))
        return;
    if (is_victim(p, rank) && (rc == -BANYAN_ERANKDEAD || rc == -BANYAN_ETIMEDOUT))
        return;
    CHECK(t, rc == 0, "object of step %d, rank %d, thread %d: %s", at, rank, thread,
          banyan_strerror(rc));
    CHECK(t, o.bytes == bytes_of(p, at, rank, thread), "%zu bytes", o.bytes);
    check_bytes(t, &id, o.data, o.bytes);
    __atomic_store_n(&t->shared->blob[t->rank][at * 128 + rank * 8 + thread], 1,
                     __ATOMIC_RELAXED); /* threads of a rank may have the same one */
    hold(w, &id, &o);
}

static void delete_old(struct worker *w, int step)
{
    struct banyan_object_id id = bytes_id(w->plan, step - LAG, w->t->rank, w->number);

    if (step >= LAG && is_deleted(w->plan, step - LAG, w->t->rank, w->number))
        CHECK_OK(w->t, banyan_object_delete(w->s, &id));
}

/* Everybody puts what a step has before it gets anything of that step, so nobody waits for
 * ever. */
static void *work(void *arg)
{
    struct worker *w = arg;

    for (int step = 0; step < w->plan->steps; step++) {
        struct banyan_object_id id = bytes_id(w->plan, step, w->t->rank, w->number);
        size_t bytes = bytes_of(w->plan, step, w->t->rank, w->number);

        if (bny_rng_below(&w->s_own, 2))
            put(w->t, w->s, &id, bytes);
        else
            put_bit_by_bit(w, &id, bytes);
        if (w->number == 0)
            put_numbers(w, step);
        for (uint64_t i = bny_rng_below(&w->s_own, 4); i > 0; i--)
            get_some(w, step);
        if (bny_rng_below(&w->s_own, 4) == 0)
            reduce(w, step);
        delete_old(w, step);
    }
    for (int i = 0; i < HELD; i++)
        CHECK_OK(w->t, banyan_object_release(w->s, &w->held[i]));
    return NULL;
}

static void run_workers(struct test *t, const struct plan *p, struct banyan_objects *s)
{
    struct worker w[THREADS_MAX];

    memset(w, 0, sizeof w);
    for (int i = 0; i < p->threads; i++) {
        w[i].t = t;
        w[i].plan = p;
        w[i].s = s;
        w[i].number = i;
        w[i].s_own = draw(p, 5, (uint64_t)t->rank, (uint64_t)i);
        CHECK(t, pthread_create(&w[i].thread, NULL, work, &w[i]) == 0, "a thread");
    }
    for (int i = 0; i < p->threads; i++)
        pthread_join(w[i].thread, NULL);
}

static void plan_of(const struct test *t, struct plan *p)
{
    memset(p, 0, sizeof *p);
    p->seed = t->seed;
    p->threads = 2;
    CHECK(t, sscanf(t->arg, "%d %d %d", &p->steps, &p->threads, &p->deaths) >= 1, "'%s'",
          t->arg);
    CHECK(t, p->steps <= STEPS_MAX && p->threads <= THREADS_MAX, "'%s'", t->arg);
}

static int objects_random(struct test *t)
{
    struct banyan_objects *s;
    struct plan p;

    plan_of(t, &p);
    CHECK_OK(t, banyan_objects_create(t->comm, NULL, &s));
    run_workers(t, &p, s);
    CHECK_OK(t, banyan_objects_finalize(s));
    case_check_works(t, t->comm);
    return 0;
}

/* ---- deaths ---- */

static void *die(void *arg)
{
    const struct worker *w = arg;
    uint64_t s = draw(w->plan, 6, (uint64_t)w->t->rank, 0);

    usleep((unsigned)bny_rng_below(&s, 300000));
    raise(SIGKILL);
    return NULL;
}

/* What a rank that lives has had all can have, however many have died. */
static void get_all_that_live_have(struct test *t, const struct plan *p,
                                   struct banyan_objects *s)
{
    for (int step = 0; step < p->steps; step++)
        for (int rank = 0; rank < t->n; rank++)
            for (int thread = 0; thread < p->threads; thread++) {
                struct banyan_object_id id = bytes_id(p, step, rank, thread);
                int is_there = !is_victim(p, rank);

                for (int r = 0; r < t->n; r++)
                    is_there |=
                        !is_victim(p, r) && t->shared->blob[r][step * 128 + rank * 8 + thread];
                if (is_there)
                    get(t, s, &id, bytes_of(p, step, rank, thread));
            }
}

/* Returns how many live. */
static int draw_victims(const struct test *t, struct plan *p)
{
    uint64_t draws;

    plan_of(t, p);
    draws = draw(p, 7, 0, 0);
    for (int i = 0; i < p->deaths; i++)
        p->victims |= 1u << bny_rng_below(&draws, (uint64_t)t->n);
    return t->n - __builtin_popcount(p->victims);
}

static int objects_deaths(struct test *t)
{
    struct plan p;
    struct worker victim = { .t = t, .plan = &p };
    struct banyan_objects *s;
    int alive = draw_victims(t, &p);

    CHECK_OK(t, banyan_objects_create(t->comm, NULL, &s));
    if (is_victim(&p, t->rank))
        CHECK(t, pthread_create(&victim.thread, NULL, die, &victim) == 0, "a thread");
    run_workers(t, &p, s);
    if (is_victim(&p, t->rank))
        pause();
    mp_shared_barrier(t->shared, alive);
    usleep(400000); /* the last have died, at random moments of what follows */
    get_all_that_live_have(t, &p, s);
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

/* Every survivor has a sum of as many big objects as survivors have; in the chains of these
 * sums some die. Whose objects are in is said, and is exactly what the sum is of. */
static int objects_chain_deaths(struct test *t)
{
    enum { COUNT = 400000 };
    struct plan p;
    struct worker victim = { .t = t, .plan = &p };
    struct banyan_object_id ids[MP_RANKS_MAX], sum = name_of(9, 100 + (uint64_t)t->rank);
    uint64_t again = t->seed + (uint64_t)t->rank;
    uint8_t in[MP_RANKS_MAX];
    struct banyan_objects *s;
    struct banyan_object o;
    int alive = draw_victims(t, &p), k;
    float *x;

    CHECK_OK(t, banyan_objects_create(t->comm, NULL, &s));
    for (int r = 0; r < t->n; r++)
        ids[r] = name_of(9, (uint64_t)r);
    mp_shared_barrier(t->shared, t->n);
    if (is_victim(&p, t->rank))
        CHECK(t, pthread_create(&victim.thread, NULL, die, &victim) == 0, "a thread");
    usleep((unsigned)bny_rng_below(&again, 150000));
    CHECK_OK(t, banyan_object_create(s, &ids[t->rank], COUNT * sizeof *x, (void **)&x));
    for (size_t i = 0; i < COUNT; i++)
        x[i] = (float)(i % 1000 + ((size_t)1 << (10 + t->rank)));
    CHECK_OK(t, banyan_object_fill(s, &ids[t->rank], COUNT * sizeof *x));
    CHECK_OK(t, banyan_object_reduce(s, &sum, ids, (size_t)t->n, (size_t)alive, COUNT,
                                     BANYAN_F32, BANYAN_SUM));
    CHECK_OK(t, banyan_object_get(s, &sum, 60, &o));
    if (is_victim(&p, t->rank))
        pause();
    k = banyan_object_contributors(s, &sum, in, (size_t)t->n);
    CHECK(t, k == alive, "%d contributors, not %d", k, alive);
    for (size_t i = 0; i < COUNT; i++) {
        size_t want = i % 1000 * (size_t)k;

        for (int r = 0; r < t->n; r++)
            want += in[r] ? (size_t)1 << (10 + r) : 0;
        CHECK(t, ((const float *)o.data)[i] == (float)want, "element %zu: %g, not %zu", i,
              (double)((const float *)o.data)[i], want);
    }
    CHECK_OK(t, banyan_object_release(s, &o));
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

/* Receivers come one after the other, so that they are a chain; the second rank dies when half
 * of the object has come. Each goes on where it stood: no byte is taken twice. */
static int objects_go_on(struct test *t)
{
    enum { BYTES = 32 << 20, VICTIM = 1 };
    struct banyan_object_id id = name_of(9, 200);
    struct banyan_objects_stats st = { .size = sizeof st };
    struct banyan_objects *s;
    struct banyan_object o;
    size_t have;

    CHECK_OK(t, banyan_objects_create(t->comm, NULL, &s));
    if (t->rank == 0)
        put(t, s, &id, BYTES);
    mp_shared_barrier(t->shared, t->n);
    usleep(2000 * (unsigned)t->rank);
    if (t->rank == VICTIM) {
        CHECK_OK(t, banyan_object_open(s, &id, 60, &o));
        CHECK_OK(t, banyan_object_wait(s, &o, BYTES / 2, 60, &have));
        raise(SIGKILL);
    }
    if (t->rank)
        get(t, s, &id, BYTES);
    CHECK_OK(t, banyan_objects_stats(s, &st));
    CHECK(t, st.received == (t->rank ? BYTES : 0), "%llu bytes came",
          (unsigned long long)st.received);
    mp_shared_barrier(t->shared, t->n - 1); /* all have what they want */
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

/* ---- a rank that lacks something ---- */

/* Each rank has put an object, and rank 0 has no descriptors left. */
static struct banyan_objects *store_without_descriptors(struct test *t)
{
    struct banyan_objects_config cfg = { .size = sizeof cfg, .timeout_s = CASE_NEVER_S };
    struct banyan_object_id own = name_of(1, (uint64_t)t->rank);
    struct banyan_objects *s;

    CHECK_OK(t, banyan_objects_create(t->comm, &cfg, &s));
    put(t, s, &own, 300000);
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    if (t->rank == 0)
        fate_use_up_descriptors();
    mp_shared_barrier(t->shared, t->n);
    return s;
}

/* Rank 0 finds no descriptor for its connections: it is told so at once, ends, and is a rank
 * that died to the others. */
static int objects_no_descriptors(struct test *t)
{
    struct banyan_objects *s = store_without_descriptors(t);
    struct banyan_object o;
    int rc = 0;

    for (int i = 1; i < t->n && rc == 0; i++) {
        struct banyan_object_id id = name_of(1, (uint64_t)((t->rank + i) % t->n));

        rc = banyan_object_get(s, &id, CASE_NEVER_S, &o);
        if (t->rank && rc == -BANYAN_ERANKDEAD && (t->rank + i) % t->n == 0)
            rc = 0; /* rank 0 has ended, and nobody else had it */
        else if (rc == 0)
            CHECK_OK(t, banyan_object_release(s, &o));
    }
    if (t->rank == 0) {
        CHECK(t, rc == -BANYAN_ESYSTEM, "returned %d", rc);
        CHECK_HAS(t, banyan_last_error(), "too many open files");
        raise(SIGKILL);
    }
    CHECK(t, rc == 0, "returned %d", rc);
    mp_shared_barrier(t->shared, t->n - 1);
    banyan_objects_destroy(s);
    return 0;
}

/* Rank 0 finds no descriptor for its connections, and asks for nothing: it waits for the
 * others, and lives. Who waits for what it has, or for its answer, is told why a second later.
 */
static int objects_out_of_reach(struct test *t)
{
    struct banyan_object_id zero = name_of(1, 0);
    struct banyan_objects *s = store_without_descriptors(t);
    struct banyan_object o;
    uint64_t word = 1;
    int rc;

    if (t->rank) {
        rc = banyan_object_get(s, &zero, -1, &o);
        CHECK(t, rc == -BANYAN_ESYSTEM, "get returned %d (%s)", rc, banyan_last_error());
        CHECK_HAS(t, banyan_last_error(), "rank 0: ");
        CHECK_HAS(t, banyan_last_error(), "too many open files");
        rc = banyan_objects_finalize(s);
        CHECK(t, rc == -BANYAN_ESYSTEM, "finalize returned %d (%s)", rc, banyan_last_error());
    }
    rc = banyan_comm_agree(t->comm, &word, NULL, 0);
    CHECK(t, rc == 0, "agree returned %d (%s)", rc, banyan_last_error());
    if (t->rank == 0)
        banyan_objects_destroy(s);
    return 0;
}

/* As above; then rank 0 dies, and the others finish without it: that it was out of reach counts
 * no more. */
static int objects_out_of_reach_dies(struct test *t)
{
    struct banyan_object_id zero = name_of(1, 0);
    struct banyan_objects *s = store_without_descriptors(t);
    struct banyan_object o;
    int rc;

    if (t->rank) {
        rc = banyan_object_get(s, &zero, -1, &o);
        CHECK(t, rc == -BANYAN_ESYSTEM, "get returned %d (%s)", rc, banyan_last_error());
    }
    mp_shared_barrier(t->shared, t->n);
    if (t->rank == 0)
        raise(SIGKILL);
    while (banyan_comm_failed(t->comm, NULL, 0) == 0)
        usleep(1000);
    rc = banyan_objects_finalize(s);
    CHECK(t, rc == 0 || rc == -BANYAN_ERANKDEAD, "finalize returned %d (%s)", rc,
          banyan_last_error());
    return 0;
}

/* Rank 0 leaves, in order, and its process lives on: what it alone held is lost at once, and
 * another keeps its part of the directory. arg: "put": that is asked first. */
static int objects_left(struct test *t)
{
    struct banyan_objects_config cfg = { .size = sizeof cfg, .timeout_s = 60 };
    struct banyan_object_id big = name_of(1, 0), small = name_of(2, 0), later = name_of(3, 0);
    struct banyan_objects *s;
    struct banyan_object o;

    CHECK_OK(t, banyan_objects_create(t->comm, &cfg, &s));
    if (t->rank == 0) {
        put(t, s, &big, 300000);
        put(t, s, &small, 100);
    }
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
    case_meet(t, t->comm);
    if (t->rank == 0) {
        banyan_objects_destroy(s);
        banyan_comm_destroy(t->comm);
        t->comm = NULL;
        mp_shared_barrier(t->shared, t->n); /* until then its progress may serve a get */
        mp_shared_barrier(t->shared, t->n);
        return 0;
    }
    mp_shared_barrier(t->shared, t->n);
    for (int i = 0; i < 20 && *t->arg; i++) {
        struct banyan_object_id id = name_of(4, (uint64_t)(t->rank * 100 + i));

        put(t, s, &id, 5000);
    }
    CHECK_RC(t, -BANYAN_ERANKDEAD, banyan_object_get(s, &big, -1, &o));
    get(t, s, &small, 100);
    if (t->rank == t->n - 1)
        put(t, s, &later, 300000);
    get(t, s, &later, 300000);
    mp_shared_barrier(t->shared, t->n);
    banyan_objects_destroy(s);
    return 0;
}

/* Connections are made, and all that is made once. */
static void objects_warm(struct test *t, struct banyan_objects *s)
{
    for (int i = 0; i < 4 * t->n; i++) {
        struct banyan_object_id id = name_of(2, (uint64_t)i);

        if (i % t->n == t->rank)
            put(t, s, &id, 200);
        get(t, s, &id, 200);
    }
    CHECK_OK(t, banyan_barrier(t->comm, NULL));
}

/* What rank 0 has alone, of sizes that go neither in a message of the directory's nor alike. */
static size_t served_bytes(int i)
{
    return i % 2 ? 5000 : 100000;
}

/* Rank 0, which serves the others, finds no memory again and again, a few allocations long.
 * Whoever asks gets an answer, if only that one; and what rank 0 has it gets, it being there.
 * arg: how many rounds. */
static int objects_starved(struct test *t)
{
    struct banyan_objects_config cfg = { .size = sizeof cfg, .timeout_s = 20 };
    struct banyan_objects *s;
    uint64_t own = t->seed + (uint64_t)t->rank;
    int rounds = atoi(t->arg), failed = 0;

    CHECK_OK(t, banyan_objects_create(t->comm, &cfg, &s));
    objects_warm(t, s);
    for (int i = 0; i < rounds && t->rank == 0; i++) {
        struct banyan_object_id served = name_of(5, (uint64_t)i);

        put(t, s, &served, served_bytes(i));
    }
    mp_shared_barrier(t->shared, t->n);
    for (int i = 0; i < rounds; i++) {
        struct banyan_object_id id = name_of(3, (uint64_t)(i * t->n + t->rank));
        struct banyan_object_id served = name_of(5, (uint64_t)i);
        struct banyan_object o;
        char data[200];
        int rc;

        if (t->rank == 0) { /* its progress thread serves */
            case_starve_after((long)bny_rng_below(&own, 5), 1 + (long)bny_rng_below(&own, 6));
            usleep(4000);
            continue;
        }
        fill(data, &id, 0, sizeof data);
        rc = banyan_object_put(s, &id, data, sizeof data);
        if (rc == 0)
            rc = banyan_object_get(s, &id, -1, &o);
        if (rc == 0)
            CHECK_OK(t, banyan_object_release(s, &o));
        CHECK(t, rc == 0 || rc == -BANYAN_ENOMEM, "round %d: %d (%s)", i, rc,
              banyan_strerror(rc));
        failed += rc != 0;
        get(t, s, &served, served_bytes(i));
    }
    case_starve_after(0, 0);
    printf("note: %d of %d found no memory\n", failed, rounds);
    mp_shared_barrier(t->shared, t->n);
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

/* Rank 0 finds no memory, now and then, for its first words to a peer: they are said later, and
 * what it asks for comes. */
static int objects_first_words(struct test *t)
{
    struct banyan_objects_config cfg = { .size = sizeof cfg, .timeout_s = 10 };
    struct banyan_object_id id = name_of(1, (uint64_t)t->rank);
    struct banyan_objects *s;
    struct banyan_object o;
    struct banyan_config world = case_config(t);
    long allocations = atoi(t->arg);

    world.schedule = "ring"; /* else all have talked to all before */
    CHECK_OK(t, case_init(t, &world, &t->comm));
    CHECK_OK(t, banyan_objects_create(t->comm, &cfg, &s));
    if (t->rank)
        put(t, s, &id, 300000);
    mp_shared_barrier(t->shared, t->n);
    for (int r = 1; r < t->n && t->rank == 0; r++) {
        int rc;

        id = name_of(1, (uint64_t)r);
        case_starve_after(allocations, 4);
        rc = banyan_object_get(s, &id, -1, &o);
        case_starve_after(0, 0);
        CHECK(t, rc == 0 || rc == -BANYAN_ENOMEM, "rank %d: %d (%s)", r, rc,
              banyan_last_error());
        if (rc == 0)
            CHECK_OK(t, banyan_object_release(s, &o));
    }
    mp_shared_barrier(t->shared, t->n);
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

/* Rank 0 finds no memory at the n-th allocation of a sum of what the others have, for each n:
 * it says so, or goes on when there is memory again. arg: how many elements. */
static int objects_starved_sum(struct test *t)
{
    struct banyan_objects_config cfg = { .size = sizeof cfg, .timeout_s = 10 };
    size_t count = (size_t)atol(t->arg), others = (size_t)t->n - 1;
    struct banyan_object_id ids[MP_RANKS_MAX];
    struct banyan_objects *s;
    struct banyan_object o;
    int failed = 0, nth = 0;

    CHECK_OK(t, banyan_objects_create(t->comm, &cfg, &s));
    objects_warm(t, s);
    for (int round = 0; round < 60; round++) {
        struct banyan_object_id sum = name_of(11, (uint64_t)round);
        int rc;

        for (size_t i = 0; i < others; i++)
            ids[i] = name_of(10, (uint64_t)round << 8 | i);
        if (t->rank)
            put(t, s, &ids[t->rank - 1], count * 4);
        mp_shared_barrier(t->shared, t->n);
        if (t->rank == 0) {
            case_starve_after(nth, 1 + round % 3);
            rc = banyan_object_reduce(s, &sum, ids, others, others, count, BANYAN_U32,
                                      BANYAN_SUM);
            rc = rc ? rc : banyan_object_get(s, &sum, -1, &o);
            case_starve_after(0, 0);
            CHECK(t, rc == 0 || rc == -BANYAN_ENOMEM, "round %d: %d (%s)", round, rc,
                  banyan_last_error());
            failed += rc != 0;
            if (rc == 0)
                CHECK_OK(t, banyan_object_release(s, &o));
            nth = (nth + 1) % 30;
        }
        mp_shared_barrier(t->shared, t->n);
    }
    printf("note: %d of 60 found no memory\n", failed);
    CHECK_OK(t, banyan_objects_finalize(s));
    return 0;
}

const struct mp_case cases_objects[] = {
    { "objects_first_words", objects_first_words, CASE_OWN_INIT | CASE_NO_THREADS },
    { "objects_basic", objects_basic, 0 },
    { "objects_computes", objects_computes, 0 },
    { "objects_chain", objects_chain, 0 },
    { "objects_refused", objects_refused, 0 },
    { "objects_random", objects_random, 0 },
    { "objects_no_descriptors", objects_no_descriptors, CASE_FAILS | CASE_NO_THREADS },
    { "objects_out_of_reach", objects_out_of_reach, CASE_FAILS | CASE_NO_THREADS },
    { "objects_out_of_reach_dies", objects_out_of_reach_dies, CASE_FAILS | CASE_NO_THREADS },
    { "objects_left", objects_left, CASE_FAILS },
    { "objects_starved", objects_starved, CASE_NO_THREADS },
    { "objects_starved_sum", objects_starved_sum, CASE_NO_THREADS },
    { "objects_deaths", objects_deaths, CASE_FAILS | CASE_NO_THREADS },
    { "objects_chain_deaths", objects_chain_deaths, CASE_FAILS | CASE_NO_THREADS },
    { "objects_go_on", objects_go_on, CASE_FAILS | CASE_NO_THREADS },
    { NULL, NULL, 0 },
};
