/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank without memory makes no plan: never another one than the ranks that have some. Each
 * allocation under a choice fails once. And what is kept of many groups of ranks is bounded. */
#include <criterion/criterion.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/way.h"
#include "collectives/plan/topology_made.h"

#define RANKS 9
#define MANY  100
#define CROWD 300

static long left = -1; /* allocations that succeed; -1: all */

static int fails(void)
{
    return left >= 0 && left-- == 0;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

static int members[CROWD];

static struct bny_topology *topology_of_nine(void)
{
    int host_of[RANKS];
    struct bny_topology *t;

    for (int r = 0; r < RANKS; r++)
        host_of[r] = r;
    cr_assert_eq(bny_topology_load(&t, "torus:3x3", "auto"), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_topology_settle(t, host_of, RANKS), 0, "%s", banyan_last_error());
    return t;
}

static struct bny_scope scope(struct bny_topology *t, int n)
{
    struct bny_scope s = { .n = n,
                           .members = members,
                           .topology = t,
                           .ways = bny_ways,
                           .eager_max = 4096,
                           .chunk_max = 65536,
                           .coded_max = 65536,
                           .schedule = "auto" };

    for (int r = 0; r < n; r++)
        members[r] = r;
    return s;
}

static int plan(struct bny_scope *s, const struct bny_call *call, struct bny_plan *out)
{
    int rc = bny_plan_get(s, call, out);

    cr_assert(rc == 0 || rc == -BANYAN_ENOMEM, "%d: %s", rc, banyan_last_error());
    return rc;
}

static void starve(int n, enum bny_collective collective, size_t count)
{
    struct bny_call call = {
        .collective = collective, .dtype = BANYAN_F32, .count = count, .timeout_s = -1
    };
    struct bny_topology *t = topology_of_nine();
    struct bny_scope s = scope(t, n);
    struct bny_plan right, got;
    int rc, tries = 0, all = 0;

    bny_call_set_schedule(&call, "auto");
    cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
    cr_assert_eq(plan(&s, &call, &right), 0);
    for (; !all; tries += tries < 40 ? 1 : tries / 20) {
        struct bny_topology *again = topology_of_nine();
        struct bny_scope other = scope(again, n);

        left = tries;
        rc = plan(&other, &call, &got);
        all = left >= 0; /* none failed */
        left = -1;
        cr_assert(rc != 0 || got.hash == right.hash, "%s, not %s, without allocation %d",
                  got.schedule, right.schedule, tries);
        if (rc == 0)
            bny_plan_drop(&got);
        cr_assert_eq(plan(&other, &call, &got), 0); /* it does not stay */
        cr_assert_eq(got.hash, right.hash, "%s, not %s, after allocation %d failed",
                     got.schedule, right.schedule, tries);
        bny_plan_drop(&got);
        bny_plans_free(&other);
        bny_topology_free(again);
    }
    cr_assert_gt(tries, 5);
    bny_plan_drop(&right);
    bny_plans_free(&s);
    bny_topology_free(t);
}

/* What was looked at and not chosen leaves nothing that grows with the square of the ranks:
 * with every candidate kept this is 23 MB. */
Test(plan_memory, forests_of_many_ranks_are_not_kept, .timeout = 120)
{
    struct bny_call call = {
        .collective = BNY_ALLREDUCE, .dtype = BANYAN_F32, .count = 1 << 20, .timeout_s = -1
    };
    int host_of[MANY];
    struct bny_topology *t;
    struct bny_scope s;
    struct bny_plan got;
    size_t before, kept;

    for (int r = 0; r < MANY; r++)
        host_of[r] = r;
    cr_assert_eq(bny_topology_load(&t, "torus:10x10", "auto"), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_topology_settle(t, host_of, MANY), 0, "%s", banyan_last_error());
    s = scope(t, MANY);
    bny_call_set_schedule(&call, "auto");
    cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
    before = mallinfo2().uordblks + mallinfo2().hblkhd;
    cr_assert_eq(plan(&s, &call, &got), 0);
    kept = mallinfo2().uordblks + mallinfo2().hblkhd - before;
    cr_assert_lt(kept, 2u << 20, "%zu bytes are kept of %s", kept, got.schedule);
    bny_plan_drop(&got);
    bny_plans_free(&s);
    bny_topology_free(t);
}

/* Each with each of hundreds of ranks is the fastest way through a switch, and not worth a
 * connection for each pair. */
Test(plan_memory, a_rank_of_hundreds_has_few_peers, .timeout = 120)
{
    struct bny_call call = {
        .collective = BNY_ALLREDUCE, .dtype = BANYAN_F32, .count = 1 << 18, .timeout_s = -1
    };
    int host_of[CROWD];
    struct bny_topology_cost k;
    struct bny_topology *t;
    struct bny_scope s;
    struct bny_plan got;

    for (int r = 0; r < CROWD; r++)
        host_of[r] = r;
    cr_assert_eq(bny_topology_load(&t, "star:300", "auto"), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_topology_settle(t, host_of, CROWD), 0, "%s", banyan_last_error());
    s = scope(t, CROWD);
    bny_call_set_schedule(&call, "auto");
    cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
    cr_assert_eq(bny_topology_cost(&k, &s, BNY_ALLREDUCE, "multitree", -1), 0);
    cr_assert_eq(k.peers, CROWD - 1);
    cr_assert_eq(plan(&s, &call, &got), 0);
    cr_assert_eq(bny_topology_cost(&k, &s, BNY_ALLREDUCE, got.schedule, -1), 0);
    cr_assert_leq(k.peers, 64, "%s: %d peers", got.schedule, k.peers);
    bny_plan_drop(&got);
    bny_plans_free(&s);
    bny_topology_free(t);
}

Test(plan_memory, no_plan_rather_than_another, .timeout = 120)
{
    starve(RANKS, BNY_ALLREDUCE, 1 << 20);
    starve(RANKS, BNY_BROADCAST, 1 << 20);
    starve(6, BNY_ALLREDUCE, 1 << 20); /* some of the ranks */
    starve(RANKS, BNY_ALLGATHER, 1 << 18);
}

Test(plan_memory, groups_of_ranks_are_bounded)
{
    struct bny_topology *t = topology_of_nine();

    for (int i = 1; i < 400; i++) {
        struct bny_scope s = scope(t, 0);

        for (int r = 0; r < RANKS; r++)
            if (i >> r & 1)
                members[s.n++] = r;
        cr_assert_not_null(bny_topology_of(&s));
        for (const struct bny_topology *sub = t->subsets; sub; sub = sub->next)
            s.n--;
        cr_assert_gt(s.n, -65);
    }
    bny_topology_free(t);
}
