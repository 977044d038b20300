/* SPDX-License-Identifier: BSD-3-Clause */
/* Passes of the write-back allreduce, of exchanges, reductions to a root and blocks, all ranks
 * of a communicator in one thread: they take turns at random, several operations are under way,
 * each rank starts and lends as it likes. The sums are compared byte for byte with a fold in
 * the order of the ranks, and memory beside what an operation owns must stay as it was. Then
 * one rank lies. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "collectives/pipeline/pass.h"

#define RANKS 7
#define OPS   3
#define GUARD 64u

struct vector {
    char *mem; /* GUARD, data, GUARD */
    char *at;
};

struct rank {
    struct bny_pass pass[OPS];
    struct bny_pass_peer peers[OPS][RANKS];
    struct vector in[OPS], out[OPS];
    int started[OPS], done[OPS];
};

struct job {
    uint64_t s;
    int n, ops;
    struct bny_area_shape shape;
    char *area[RANKS];
    struct rank rank[RANKS];
    size_t count[OPS], esz[OPS];
    enum banyan_dtype dtype[OPS];
    struct bny_redop redop[OPS];
    enum way {
        ALLREDUCE,
        EXCHANGED, /* alltoall, allgather, reduce_scatter */
        EXCHANGED_SAME,
        EXCHANGED_SUMS,
        REDUCE,
        BROADCAST,
        GATHER,
        SCATTER,
        ALLGATHER
    } way[OPS];
    int root[OPS];
    size_t in_bytes[OPS], out_bytes[OPS];
    char *want[OPS][RANKS];
    uint32_t seq[OPS];
};

struct loan {
    struct job *j;
    int op, rank; /* who asks */
};
static struct loan loans[OPS][RANKS];
static int stored_by_givers; /* blocks, or parts of them */

static uint64_t seed_of_run(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 42;

    fprintf(stderr, "# BANYAN_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static int borrow(void *ctx, int r, size_t at, size_t len, const char **src, char **dst)
{
    struct loan *l = ctx;
    struct rank *k = &l->j->rank[r];

    if (bny_rng_below(&l->j->s, 4) == 0)
        return -1; /* not now */
    cr_assert_leq(at + len, l->j->in_bytes[l->op]);
    *src = k->in[l->op].at + at;
    *dst = k->out[l->op].at + at;
    return 0;
}

static void give_back(void *ctx, int r)
{
    (void)ctx;
    (void)r;
}

static int store(void *ctx, int r, size_t at, const char *src, size_t len)
{
    struct loan *l = ctx;
    size_t block = l->j->count[l->op] * l->j->esz[l->op];

    if (bny_rng_below(&l->j->s, 4) == 0)
        return -1; /* not now */
    cr_assert_eq(r, l->j->root[l->op]);
    cr_assert_leq(at + len, block);
    memcpy(l->j->rank[r].out[l->op].at + block * (size_t)l->rank + at, src, len);
    stored_by_givers++;
    return 0;
}

static void vector_make(struct vector *v, size_t bytes, size_t shift, uint64_t *s)
{
    v->mem = malloc(bytes + 2 * GUARD);
    v->at = v->mem + GUARD - shift;
    memset(v->mem, 0xa5, bytes + 2 * GUARD);
    for (size_t i = 0; i < bytes; i++)
        v->at[i] = (char)(bny_rng_next(s) % 3 + 1); /* small numbers of every type */
}

static void vector_check(const struct vector *v, size_t bytes)
{
    size_t before = (size_t)(v->at - v->mem), all = bytes + 2 * GUARD;

    for (size_t i = 0; i < all; i++)
        if (i < before || i >= before + bytes)
            cr_assert_eq((unsigned char)v->mem[i], 0xa5, "byte %zu of %zu", i, all);
}

/* The fold that defines rank r's result: of the vector, or of everybody's block for it. A
 * root's input is the last one. */
static void expect_sum(struct job *j, int o, int r)
{
    const struct bny_pass *p = &j->rank[r].pass[o];
    size_t from = p->kind == BNY_PASS_EXCHANGE ? j->out_bytes[o] * (size_t)r : 0;
    int last = p->kind == BNY_PASS_REDUCE ? j->root[o] : j->n - 1, first = last == 0;

    memcpy(j->want[o][r], j->rank[first].in[o].at + from, j->out_bytes[o]);
    for (int q = first + 1; q <= j->n; q++)
        if (q == j->n || q != last)
            bny_redop_run(&j->redop[o], j->dtype[o], j->want[o][r], j->want[o][r],
                          j->rank[q == j->n ? last : q].in[o].at + from, j->count[o]);
    if (p->averages)
        bny_divide(j->want[o][r], j->want[o][r], j->count[o], j->dtype[o], j->n);
}

static void expect(struct job *j, int o, int r)
{
    const struct bny_pass *p = &j->rank[r].pass[o];
    size_t block = j->count[o] * j->esz[o];

    j->want[o][r] = malloc(j->out_bytes[o] + 1);
    memcpy(j->want[o][r], j->rank[r].out[o].at, j->out_bytes[o]); /* who gets nothing */
    if (p->kind == BNY_PASS_ALLREDUCE || p->adds ||
        (p->kind == BNY_PASS_REDUCE && r == j->root[o]))
        expect_sum(j, o, r);
    else if (p->from_root)
        memcpy(j->want[o][r], j->rank[j->root[o]].in[o].at + (p->same ? 0 : block * (size_t)r),
               block);
    else if (p->kind != BNY_PASS_REDUCE && (j->way[o] != GATHER || r == j->root[o]))
        for (int q = 0; q < j->n; q++)
            memcpy(j->want[o][r] + block * (size_t)q,
                   j->rank[q].in[o].at + (p->same ? 0 : block * (size_t)r), block);
}

static enum bny_pass_kind kind_of(enum way way)
{
    if (way == ALLREDUCE)
        return BNY_PASS_ALLREDUCE;
    if (way == REDUCE)
        return BNY_PASS_REDUCE;
    return way >= BROADCAST ? BNY_PASS_BLOCKS : BNY_PASS_EXCHANGE;
}

static int draw_loan(struct job *j, const struct bny_pass *p, int vector)
{
    if (p->direct)
        return p->rank == p->root ? (int)bny_rng_below(&j->s, BNY_PASS_LENDS_COPIES + 1) : 0;
    return bny_rng_below(&j->s, vector || bny_rng_below(&j->s, 2) ? 3 : 1) == 0;
}

/* What it borrows by, its tile, and the areas of all. */
static void pass_prepare(struct job *j, int o, int r, size_t chunk)
{
    struct bny_pass *p = &j->rank[r].pass[o];

    loans[o][r] = (struct loan){ j, o, r };
    p->borrow = borrow;
    p->give_back = give_back;
    p->store = store;
    p->ctx = &loans[o][r];
    p->tile = malloc(BNY_PASS_TILE);
    bny_pass_cut(p, chunk);
    for (int q = 0; q < j->n; q++)
        p->peers[q].area = (struct bny_area_head *)(void *)j->area[q];
    j->rank[r].started[o] = j->rank[r].done[o] = 0;
}

static void op_make(struct job *j, int o, size_t chunk)
{
    static const enum banyan_dtype types[] = { BANYAN_F32, BANYAN_F64, BANYAN_F16, BANYAN_BF16,
                                               BANYAN_I8,  BANYAN_U64, BANYAN_I32 };
    static const banyan_op ops[] = { BANYAN_SUM, BANYAN_MAX, BANYAN_PROD, BANYAN_AVG };
    size_t edges[] = { 0, 1, 15, 16, 17, 1024, 4096, 16384, 32768, 65536, 100000 };
    size_t n = (size_t)j->n, stores_from = bny_rng_below(&j->s, 4) ? 0 : 100000;
    enum way way = (enum way)bny_rng_below(&j->s, ALLGATHER + 1);
    int same = way == EXCHANGED_SAME || way == BROADCAST || way == GATHER || way == ALLGATHER,
        adds = way == EXCHANGED_SUMS, from_root = way == BROADCAST || way == SCATTER,
        vector = way == ALLREDUCE || way == REDUCE,
        direct = way == GATHER && n > 2 && bny_rng_below(&j->s, 2);

    j->way[o] = way;
    j->root[o] = way >= REDUCE && way <= SCATTER ? (int)bny_rng_below(&j->s, n) : -1;
    j->dtype[o] = types[bny_rng_below(&j->s, 7)];
    j->esz[o] = banyan_dtype_bytes(j->dtype[o]);
    cr_assert_eq(bny_redop_get(&j->redop[o], ops[bny_rng_below(&j->s, 4)], j->dtype[o]), 0);
    j->count[o] =
        edges[bny_rng_below(&j->s, 11)] * (1 + bny_rng_below(&j->s, n)) / (vector ? 1 : n) +
        bny_rng_below(&j->s, 3);
    j->in_bytes[o] = j->count[o] * j->esz[o] * (vector || same ? 1 : n);
    j->out_bytes[o] = j->count[o] * j->esz[o] * (vector || adds || from_root ? 1 : n);
    j->seq[o] = (o ? j->seq[o - 1] : (uint32_t)bny_rng_next(&j->s)) + 1 +
                (uint32_t)bny_rng_below(&j->s, 5);
    for (int r = 0; r < j->n; r++) {
        struct bny_pass *p = &j->rank[r].pass[o];
        size_t shift = bny_rng_below(&j->s, 3) * j->esz[o];
        int in_place = way == BROADCAST || ((int)bny_rng_below(&j->s, 2) && vector);

        memset(p, 0, sizeof *p);
        vector_make(&j->rank[r].in[o], j->in_bytes[o], shift, &j->s);
        j->rank[r].out[o] = j->rank[r].in[o];
        if (!in_place)
            vector_make(&j->rank[r].out[o], j->out_bytes[o], shift, &j->s);
        p->kind = kind_of(way);
        p->from_root = (uint8_t)from_root;
        p->root = j->root[o];
        p->same = (uint8_t)same;
        p->adds = (uint8_t)adds;
        p->shape = &j->shape;
        p->peers = j->rank[r].peers[o];
        p->n = j->n;
        p->rank = r;
        p->touches = (uint8_t)bny_rng_below(&j->s, 2);
        p->stores_from = stores_from;
        p->averages = bny_redop_averages(&j->redop[o]);
        p->redop = j->redop[o];
        p->dtype = j->dtype[o];
        p->esz = j->esz[o];
        p->count = j->count[o];
        p->in = j->rank[r].in[o].at;
        p->out = j->rank[r].out[o].at;
        p->seq = j->seq[o];
        p->sig.count = j->count[o];
        p->slice = ((uint32_t)o + (uint32_t)r) % BNY_AREA_SLICES;
        p->direct = (uint8_t)direct;
        p->lends = draw_loan(j, p, vector);
        pass_prepare(j, o, r, chunk);
    }
    for (int r = 0; r < j->n; r++)
        expect(j, o, r);
}

/* One turn of a rank at an operation; operations start in order. 1: it is done now. */
static int turn(struct job *j, int r, int o)
{
    struct rank *k = &j->rank[r];

    if (k->done[o] || (o && !k->started[o - 1]))
        return 0;
    if (!k->started[o]) {
        k->started[o] = 1;
        bny_pass_begin(&k->pass[o]);
    }
    bny_pass_go(&k->pass[o]);
    k->done[o] = bny_pass_is_done(&k->pass[o]);
    for (int q = 0; q < j->n; q++)
        cr_assert(!k->done[o] || !bny_pass_lacks(&k->pass[o], q));
    return k->done[o];
}

static void job_make(struct job *j, uint64_t seed, int n)
{
    memset(j, 0, sizeof *j);
    j->s = seed;
    j->n = n;
    j->ops = 1 + (int)bny_rng_below(&j->s, OPS);
    bny_area_shape_init(&j->shape, n, (int)bny_rng_below(&j->s, 2), bny_rng_below(&j->s, 5000));
    for (int r = 0; r < n; r++)
        j->area[r] = aligned_alloc(4096, j->shape.area_bytes);
    for (int r = 0; r < n; r++)
        memset(j->area[r], 0, j->shape.area_bytes);
}

static void ops_free(struct job *j)
{
    for (int o = 0; o < j->ops; o++) {
        for (int r = 0; r < j->n; r++) {
            struct rank *k = &j->rank[r];

            vector_check(&k->in[o], j->in_bytes[o]);
            vector_check(&k->out[o], j->out_bytes[o]);
            if (k->out[o].mem != k->in[o].mem)
                free(k->out[o].mem);
            free(k->in[o].mem);
            free(k->pass[o].tile);
            free(j->want[o][r]);
        }
    }
}

static void job_free(struct job *j)
{
    for (int r = 0; r < j->n; r++)
        free(j->area[r]);
}

static size_t any_chunk(struct job *j)
{
    static const size_t chunks[] = { 0, 0, 64, 1000, 4096, 1u << 30 };

    return chunks[bny_rng_below(&j->s, 6)];
}

Test(pipeline, ranks_in_any_order_have_the_sums_of_rank_order, .timeout = 300)
{
    static struct job j;
    uint64_t seed = seed_of_run();
    int stored = 0; /* broadcasts whose root stored into others' vectors */

    for (int round = 0; round < 80; round++) {
        int n = 2 + round % (RANKS - 1), left;
        job_make(&j, seed + (uint64_t)round, n);
        for (int again = 0; again < 3; again++) { /* in the same areas */
            for (int o = 0; o < j.ops; o++)
                op_make(&j, o, any_chunk(&j));
            left = n * j.ops;
            for (long tries = 0; left > 0; tries++) {
                left -= turn(&j, (int)bny_rng_below(&j.s, (uint64_t)n),
                             (int)bny_rng_below(&j.s, (uint64_t)j.ops));
                cr_assert_lt(tries, 10000000, "round %d of seed %llu hangs", round,
                             (unsigned long long)seed);
            }
            for (int o = 0; o < j.ops; o++)
                stored += j.way[o] == BROADCAST && j.rank[j.root[o]].pass[o].stored;
            for (int o = 0; o < j.ops; o++)
                for (int r = 0; r < n; r++)
                    cr_assert_arr_eq(j.rank[r].out[o].at, j.want[o][r], j.out_bytes[o],
                                     "round %d of seed %llu: rank %d of %d", round,
                                     (unsigned long long)seed, r, n);
            ops_free(&j);
        }
        job_free(&j);
    }
    cr_assert_gt(stored, 0);
    cr_assert_gt(stored_by_givers, 0);
}

/* Rank n - 1 writes anything anywhere into all areas, also what looks like a count. Nothing
 * outside of the others' vectors may change, and nobody may read outside of an area (the
 * address sanitizer looks). */
Test(pipeline, a_liar_harms_nothing_but_sums, .timeout = 300)
{
    static struct job j;
    uint64_t seed = seed_of_run() ^ 0x11a6;

    for (int round = 0; round < 40; round++) {
        int n = 2 + round % (RANKS - 1);

        job_make(&j, seed + (uint64_t)round, n);
        for (int o = 0; o < j.ops; o++)
            op_make(&j, o, any_chunk(&j));
        for (int k = 0; k < 20000; k++) {
            int o = (int)bny_rng_below(&j.s, (uint64_t)j.ops);
            char *area = j.area[bny_rng_below(&j.s, (uint64_t)n)];
            struct bny_area_entry *e =
                &((struct bny_area_head *)(void *)area)->entries[j.seq[o] % BNY_AREA_ENTRIES];
            uint64_t count = (uint64_t)j.seq[o] << 32 | bny_rng_next(&j.s) >> 33;

            switch (bny_rng_below(&j.s, 8)) {
            case 0: atomic_store(&e->filled, count); break;
            case 1: atomic_store(&e->added, count); break;
            case 2: e->slice = (uint32_t)bny_rng_next(&j.s); break;
            case 3: e->sig = j.rank[0].pass[o].sig; break;
            case 4:
                area[bny_rng_below(&j.s, j.shape.area_bytes)] = (char)bny_rng_next(&j.s);
                break;
            default: turn(&j, (int)bny_rng_below(&j.s, (uint64_t)n - 1), o);
            }
        }
        ops_free(&j);
        job_free(&j);
    }
}

Test(pipeline, another_operation_of_the_same_number_is_seen)
{
    static struct job j;
    uint64_t seed = seed_of_run();

    for (uint64_t round = 0; round < 60; round++) {
        const struct bny_pass_peer *of_0, *of_1;

        job_make(&j, seed + round, 2);
        j.ops = 1;
        op_make(&j, 0, any_chunk(&j));
        j.rank[1].pass[0].sig.op = 77;
        for (int i = 0; i < 100; i++) {
            turn(&j, 0, 0);
            turn(&j, 1, 0);
        }
        of_0 = &j.rank[0].peers[0][1];
        of_1 = &j.rank[1].peers[0][0];
        /* who only gives, into slots, need not look at the other */
        cr_assert((!j.rank[0].done[0] || bny_pass_is_read_on(&j.rank[0].pass[0])) &&
                  (!j.rank[1].done[0] || bny_pass_is_read_on(&j.rank[1].pass[0])));
        cr_assert(of_0->differs || of_1->differs, "round %d", (int)round);
        cr_assert(!of_0->differs ||
                  (of_0->theirs.op == 77 && bny_pass_lacks(&j.rank[0].pass[0], 1)));
        cr_assert(!of_1->differs || bny_pass_lacks(&j.rank[1].pass[0], 0));
        ops_free(&j);
        job_free(&j);
    }
}
