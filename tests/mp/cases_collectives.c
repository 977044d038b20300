/* SPDX-License-Identifier: BSD-3-Clause */
/* Every collective against the local model: random calls, systematic sweeps, counts beyond
 * 2^31. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/counts.h"
#include "base/rng.h"
#include "tests/mp/call.h"

/* BANYAN_TEST_SCALE, such as 0.2, makes this many calls of a number: for slow builds. */
static long scaled(long calls)
{
    const char *text = getenv("BANYAN_TEST_SCALE");
    double scale = text ? strtod(text, NULL) : 1;

    return scale > 0 && scale < 1 ? 1 + (long)((double)calls * scale) : calls;
}

/* "calls=N max=BYTES memory=K": number of calls, largest buffer, which ranks use special
 * memory. */
static long argument(const struct test *t, const char *name, long def)
{
    const char *at = strstr(t->arg, name);

    return at ? strtol(at + strlen(name), NULL, 0) : def;
}

/* Which memory this rank takes: the mask has bits of enum image_memory; ranks choose on their
 * own. */
static struct image_pool *choose_pool(struct image_pool *pools, unsigned mask, uint64_t *local)
{
    uint64_t k = bny_rng_below(local, 3);

    return k && (mask >> k & 1) ? &pools[k] : NULL;
}

static int differential(struct test *t)
{
    long calls = scaled(argument(t, "calls=", 300)), max = argument(t, "max=", 1 << 18),
         refused = 0;
    unsigned mask = (unsigned)argument(t, "memory=", 0);
    uint64_t s = t->seed, local = model_mix(t->seed, (uint64_t)t->rank + 1000);
    struct image_pool pools[3];

    for (int k = 1; k < 3; k++)
        if (mask >> k & 1)
            image_pool_make(t, t->comm, &pools[k], (enum image_memory)k, (size_t)max + 4096);
    for (long i = 0; i < calls; i++) {
        struct call c;
        call_random(&c, t->n, (size_t)max, bny_rng_next(&s), bny_rng_next(&local));
        c.pool = choose_pool(pools, mask, &local);
        if (call_check(t, t->comm, &c)) {
            refused++;
            c.schedule = NULL;
            call_check(t, t->comm, &c);
        }
    }
    for (int k = 1; k < 3; k++)
        if (mask >> k & 1)
            image_pool_free(t, t->comm, &pools[k]);
    if (t->rank == 0)
        printf("note: %ld calls, %ld refused by their schedule, seed %llu\n", calls, refused,
               (unsigned long long)t->seed);
    return 0;
}

/* One collective with all counts at which code changes its mind, in and out of place. */
static void sweep_one(struct test *t, struct call *c)
{
    long brief = argument(t, "brief=", 0);
    size_t n = (size_t)t->n, unit = model_unit(c->op);
    size_t counts[] = { 0,
                        1,
                        n - 1,
                        n,
                        n + 1,
                        4093,
                        16384 / banyan_dtype_bytes(c->dtype) + 1,
                        (1 << 20) / banyan_dtype_bytes(c->dtype) + 3 };

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        /* The large one once a collective: it costs a thousand small ones. */
        if (counts[i] > 65536 && (c->in_place || c->dtype != BANYAN_F32 || brief))
            continue;
        if (brief && (i == 2 || i == 4))
            continue;
        c->count = counts[i] * unit;
        for (int root = 0; root<t->n; root += t->n> 2 ? t->n - 1 : 1) {
            c->root = root;
            call_check(t, t->comm, c);
            c->seed++;
        }
    }
}

static int sweep(struct test *t)
{
    static const enum banyan_dtype types[] = { BANYAN_F32, BANYAN_BF16, BANYAN_I64, BANYAN_U8 };

    size_t ntypes = argument(t, "brief=", 0) ? 1 : sizeof types / sizeof types[0];

    for (int coll = 0; coll < C_COUNT; coll++)
        for (size_t d = 0; d < ntypes; d++)
            for (int in_place = 0; in_place < 2; in_place++) {
                struct call c = { .coll = (enum coll)coll,
                                  .dtype = types[d],
                                  .shift = 1 % t->n,
                                  .op = (enum model_op)BANYAN_SUM,
                                  .seed = t->seed };
                c.in_place = in_place && coll != C_BROADCAST && coll != C_GATHER &&
                             coll != C_GATHERV && coll != C_SCATTER && coll != C_SCATTERV &&
                             coll != C_ALLTOALLV && coll != C_BARRIER && coll != C_SENDRECV;
                if (c.in_place == in_place)
                    sweep_one(t, &c);
            }
    return 0;
}

/* Every op on every type it is defined for. */
static int ops(struct test *t)
{
    static const enum coll colls[] = { C_ALLREDUCE, C_REDUCE, C_REDUCE_SCATTER, C_SCAN,
                                       C_EXSCAN };
    static const size_t counts[] = { 1, 7, 1000, 9000 };
    struct call c = { .seed = t->seed };

    for (int op = 0; op < M_OP_COUNT; op++)
        for (int d = 0; d < BNY_DTYPE_COUNT; d++)
            for (size_t i = 0; i < sizeof colls / sizeof colls[0]; i++)
                for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
                    if (!call_fits(colls[i], (enum model_op)op, (enum banyan_dtype)d))
                        continue;
                    c.coll = colls[i];
                    c.op = (enum model_op)op;
                    c.dtype = (enum banyan_dtype)d;
                    c.count = counts[k] * model_unit(c.op);
                    c.in_place = (int)(k & 1);
                    c.root = t->n - 1;
                    c.seed++;
                    call_check(t, t->comm, &c);
                }
    return 0;
}

/* Every schedule by its name on every collective: it works, or it is refused on all ranks
 * alike. */
static int schedules(struct test *t)
{
    static const size_t counts[] = { 0, 1, 5, 4093, 50000 };
    struct call c = { .dtype = BANYAN_I32, .op = (enum model_op)BANYAN_SUM, .seed = t->seed };
    const char *name;

    for (size_t i = 0; (name = banyan_schedule_name(i)); i++) {
        int served = 0;
        for (int coll = 0; coll < C_COUNT; coll++)
            for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
                c.coll = (enum coll)coll;
                c.count = counts[k];
                c.schedule = name;
                c.root = (int)(k % (size_t)t->n);
                c.chunk_bytes = k == 4 ? 8192 : 0;
                c.shift = (int)k % t->n;
                c.seed++;
                served += call_check(t, t->comm, &c) == 0;
            }
        CHECK(t, served > 0, "schedule %s serves nothing for %d ranks", name, t->n);
    }
    return 0;
}

/* In place, with a last chunk that takes another way than the ones before it (copied, while
 * they are lent to the peer): what is still being read must not be overwritten. */
static int ragged_in_place(struct test *t)
{
    static const size_t tails[] = { 1, 300, 1023, 1024, 1500, 2047, 2048 }; /* elements */
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    uint32_t *x = case_malloc((3 * 16384 + 2048) * 4);

    for (int round = 0; round < 60; round++)
        for (size_t i = 0; (opts.schedule = banyan_schedule_name(i)); i++) {
            size_t n = (size_t)(1 + round % 3) * 16384 + tails[round % 7];
            int rc;
            for (size_t k = 0; k < n; k++)
                x[k] = (uint32_t)(k + i) * 7 + (uint32_t)t->rank;
            rc = banyan_allreduce(x, x, n, BANYAN_U32, BANYAN_SUM, t->comm, &opts);
            if (rc == -BANYAN_ENOTSUP)
                continue;
            CHECK(t, rc == 0, "returned %d (%s)", rc, banyan_strerror(rc));
            for (size_t k = 0; k < n; k++)
                CHECK(t,
                      x[k] == (uint32_t)t->n * (uint32_t)(k + i) * 7 +
                                  (uint32_t)(t->n * (t->n - 1) / 2),
                      "round %d, %s: element %zu of %zu", round, opts.schedule, k, n);
        }
    free(x);
    return 0;
}

static size_t available_bytes(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long long kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (size_t)kib * 1024;
}

/* A pattern whose period is no power of two, and in each page its place, so that a wrapped
 * 32-bit offset shows; times n, byte by byte. */
#define HUGE_PAGE 4096
static void huge_page(unsigned char *page, size_t at, int n)
{
    static unsigned char period[HUGE_PAGE + 251];
    uint64_t place = at;

    for (size_t i = sizeof period; period[1] == 0 && i-- > 1;)
        period[i] = (unsigned char)(i % 251);
    memcpy(page, period + at % 251, HUGE_PAGE);
    memcpy(page, &place, sizeof place);
    for (size_t i = 0; n != 1 && i < HUGE_PAGE; i++)
        page[i] = (unsigned char)(page[i] * n);
}

static void huge_check(const struct test *t, const unsigned char *p, size_t count, int n)
{
    unsigned char page[HUGE_PAGE];

    for (size_t at = 0; at < count; at += HUGE_PAGE) {
        size_t left = count - at < HUGE_PAGE ? count - at : HUGE_PAGE;
        huge_page(page, at, n);
        CHECK(t, memcmp(p + at, page, left) == 0, "bytes %zu to %zu, times %d", at, at + left,
              n);
    }
}

#define HUGE_COUNT ((1ull << 31) + 12345)
static int huge(struct test *t)
{
    unsigned char *p;

    if (t->rank == 0)
        atomic_store(&t->shared->value[0][0], available_bytes());
    mp_shared_barrier(t->shared, t->n);
    if (atomic_load(&t->shared->value[0][0]) < 10ull << 30)
        return case_skip(
            "%llu MiB of memory are available, a count of 2^31 + 12345 needs 10 GiB",
            (unsigned long long)atomic_load(&t->shared->value[0][0]) >> 20);
    p = calloc(HUGE_COUNT + HUGE_PAGE, 1);
    CHECK(t, p, "no memory");
    if (t->rank == 0)
        for (size_t at = 0; at < HUGE_COUNT; at += HUGE_PAGE)
            huge_page(p + at, at, 1);
    memset(p + HUGE_COUNT, 0x5a, 64);
    CHECK_OK(t, banyan_broadcast(p, HUGE_COUNT, BANYAN_U8, 0, t->comm, NULL));
    huge_check(t, p, HUGE_COUNT, 1);
    CHECK_OK(t, banyan_allreduce(p, p, HUGE_COUNT, BANYAN_U8, BANYAN_SUM, t->comm, NULL));
    huge_check(t, p, HUGE_COUNT, t->n);
    for (size_t i = 0; i < 64; i++)
        CHECK(t, p[HUGE_COUNT + i] == 0x5a, "guard byte %zu", i);
    free(p);
    return 0;
}

/* ---- sizes at which a message goes another way ---- */

static unsigned char edge_byte(int rank, size_t i, uint64_t salt)
{
    return (unsigned char)((i * 131 + (size_t)rank * 17 + salt) >> (i & 3));
}

static void edge_fill(unsigned char *p, int rank, size_t n, uint64_t salt)
{
    for (size_t i = 0; i < n; i++)
        p[i] = edge_byte(rank, i, salt);
}

static void edge_check(const struct test *t, const char *what, const unsigned char *p, int rank,
                       size_t n, uint64_t salt)
{
    for (size_t i = 0; i < n; i++)
        CHECK(t, p[i] == edge_byte(rank, i, salt), "%s of %zu bytes: byte %zu", what, n, i);
    CHECK(t, p[n] == 0x5a, "%s of %zu bytes wrote behind its end", what, n);
}

/* Round the ring, both ways at once; from a root; a maximum, which is the last rank's. */
static void edge_size(struct test *t, unsigned char *in, unsigned char *out, size_t n,
                      uint64_t salt)
{
    int to = (t->rank + 1) % t->n, from = (t->rank + t->n - 1) % t->n,
        root = (int)(n % (size_t)t->n);

    edge_fill(in, t->rank, n, salt);
    memset(out, 0x5a, n + 1);
    CHECK_OK(t, banyan_group_start());
    CHECK_OK(t, banyan_send(in, n, BANYAN_U8, to, t->comm, NULL));
    CHECK_OK(t, banyan_recv(out, n, BANYAN_U8, from, t->comm, NULL));
    CHECK_OK(t, banyan_group_end());
    edge_check(t, "sendrecv", out, from, n, salt);
    if (t->rank == root)
        edge_fill(out, root, n, salt + 1);
    CHECK_OK(t, banyan_broadcast(out, n, BANYAN_U8, root, t->comm, NULL));
    edge_check(t, "broadcast", out, root, n, salt + 1);
    for (size_t i = 0; i < n; i++)
        in[i] = (unsigned char)(edge_byte(0, i, salt) / 2 + (t->rank == t->n - 1 ? 100 : 0));
    memset(out, 0x5a, n + 1);
    CHECK_OK(t, banyan_reduce(in, out, n, BANYAN_U8, BANYAN_MAX, root, t->comm, NULL));
    for (size_t i = 0; t->rank == root && i < n; i++)
        CHECK(t, out[i] == (unsigned char)(edge_byte(0, i, salt) / 2 + 100),
              "reduce of %zu bytes: byte %zu", n, i);
}

static int edges(struct test *t)
{
    static const size_t at[] = { 8,         56,         64,         256,
                                 4096,      8u << 10,   16u << 10,  32u << 10,
                                 64u << 10, 128u << 10, 160u << 10, 1u << 20 };
    unsigned char *in = malloc((1u << 20) + 65), *out = malloc((1u << 20) + 65);
    uint64_t salt = t->seed;

    CHECK(t, in && out, "no memory");
    for (size_t k = 0; k < sizeof at / sizeof *at; k++)
        for (int off = -1; off <= 1; off++)
            for (int again = 0; again < 3; again++, salt++)
                edge_size(t, in + again, out + again, at[k] + (size_t)off, salt);
    for (size_t n = 1; n <= 72; n++)
        edge_size(t, in, out, n, salt++);
    free(in);
    free(out);
    return 0;
}

const struct mp_case cases_collectives[] = {
    { "differential", differential, 0 },
    { "sweep", sweep, 0 },
    { "ops", ops, 0 },
    { "schedules", schedules, 0 },
    { "ragged_in_place", ragged_in_place, 0 },
    { "huge", huge, CASE_NO_THREADS },
    { "edges", edges, 0 },
    { 0 },
};
