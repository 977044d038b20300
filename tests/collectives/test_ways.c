/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of ways and the choice over it, with random calls of random communicators: "auto"
 * takes the cheapest of what can serve, a way that is asked for by name serves or says why not,
 * and the same call has the same plan at every rank. BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/way.h"

#define MANY  70
#define CALLS 3000

static int members[MANY], memory_of[MANY];

static uint64_t seed_of_run(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 12345;

    fprintf(stderr, "# BANYAN_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static struct bny_scope draw_scope(uint64_t *s)
{
    static const int ns[] = { 1, 2, 2, 3, 4, 6, 8, 16, 64, 70 };
    struct bny_scope scope = { .n = ns[bny_rng_below(s, 10)],
                               .members = members,
                               .ways = bny_ways,
                               .eager_max = 4096,
                               .at_once = 65536,
                               .chunk_max = 65536,
                               .coded_max = 65536,
                               .memory_of = memory_of,
                               .schedule = "auto" };
    int where = (int)bny_rng_below(s, 4);

    scope.rank = (int)bny_rng_below(s, (uint64_t)scope.n);
    scope.shares_memory = where == 0;
    scope.one_host = where < 2;
    scope.oversubscribed = bny_rng_below(s, 3) == 0;
    if (where == 2 && scope.n % 2 == 0 && scope.n > 2)
        scope.near = scope.n / 2;
    if (where == 3)
        scope.link_Bps = 125e6;
    for (int r = 0; r < scope.n; r++) {
        members[r] = r;
        memory_of[r] = scope.near ? r / scope.near : r;
    }
    return scope;
}

static struct bny_call draw_call(uint64_t *s, const struct bny_scope *scope)
{
    static const size_t quanta[] = { 1, 7, 64, 1000 };
    struct bny_call call;
    int rooted;

    memset(&call, 0, sizeof call);
    call.collective = (uint8_t)bny_rng_below(s, BNY_SENDRECV);
    call.dtype = bny_rng_below(s, 2) ? BANYAN_F32 : BANYAN_U8;
    call.count = quanta[bny_rng_below(s, 4)] << bny_rng_below(s, 15);
    call.deterministic = bny_rng_below(s, 6) == 0;
    rooted = bny_call_row(&call)->rooted;
    call.root = rooted ? (int)bny_rng_below(s, (uint64_t)scope->n) : -1;
    call.timeout_s = -1;
    if (bny_call_row(&call)->reduces)
        cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
    if (call.collective == BNY_BARRIER)
        call.count = 1;
    bny_call_set_schedule(&call, "auto");
    return call;
}

static struct bny_plan plan_of(struct bny_scope *scope, const struct bny_call *call)
{
    struct bny_plan plan;

    cr_assert_eq(bny_plan_get(scope, call, &plan), 0, "%s of %zu on %d ranks: %s",
                 bny_call_name(call), call->count, scope->n, banyan_last_error());
    return plan;
}

#define CARRIED(symbol) "direct:" #symbol,
static const char *const carried[] = { BNY_CARRIERS(CARRIED) };
#define NCARRIED (sizeof carried / sizeof carried[0])

Test(ways, auto_takes_the_cheapest_that_can_serve, .timeout = 120)
{
    uint64_t s = seed_of_run();
    int chosen[BNY_WAY_COUNT] = { 0 }, by[NCARRIED] = { 0 };

    for (int i = 0; i < CALLS; i++) {
        struct bny_scope scope = draw_scope(&s);
        struct bny_call call = draw_call(&s, &scope);
        struct bny_plan plan = plan_of(&scope, &call);
        const struct bny_way *way = bny_ways[plan.way];

        chosen[plan.way]++;
        for (size_t c = 0; c < NCARRIED; c++)
            by[c] += !strcmp(plan.schedule, carried[c]);
        cr_assert(way->cannot && !way->cannot(&scope, &call));
        for (int w = 0; w < BNY_WAY_COUNT && !bny_call_is_local(&scope, &call); w++) {
            const struct bny_way *other = bny_ways[w];
            char name[BNY_NAME_MAX] = "";
            double seconds;

            if (!other->seconds || (other->traits & BNY_WAY_BY_NAME) ||
                other->cannot(&scope, &call) || plan.late_s > 0)
                continue;
            seconds = other->seconds(&scope, &call, INFINITY, name);
            cr_assert_geq(seconds, plan.predicted_s,
                          "%s of %zu on %d ranks: %s takes %g s, %s %g s", bny_call_name(&call),
                          call.count, scope.n, plan.schedule, plan.predicted_s, name, seconds);
        }
        bny_plan_drop(&plan);
        bny_plans_free(&scope);
    }
    for (int w = 0; w < BNY_WAY_COUNT; w++)
        fprintf(stderr, "# way %d was chosen %d times\n", w, chosen[w]);
    cr_assert(chosen[BNY_WAY_DIRECT] && chosen[BNY_WAY_PIPELINE] && chosen[BNY_WAY_SEQUENCE] &&
              chosen[BNY_WAY_PROGRAM]);
    for (size_t c = 0; c < NCARRIED; c++)
        cr_assert(by[c], "%s was never chosen", carried[c]);
}

/* Names of ways, of "" those that users cannot ask for. */
#define WAY_NAME(id, symbol, name) name,
static const char *const names[] = { BNY_WAYS(WAY_NAME) };

Test(ways, one_that_is_asked_for_serves_or_says_why_not, .timeout = 120)
{
    uint64_t s = seed_of_run();
    int served = 0, refused = 0;

    for (int i = 0; i < CALLS; i++) {
        struct bny_scope scope = draw_scope(&s);
        struct bny_call call = draw_call(&s, &scope);
        int w = (int)bny_rng_below(&s, BNY_WAY_COUNT), rc;
        const char *why;
        struct bny_plan plan;

        if (!names[w][0] || scope.n == 1)
            continue;
        why = bny_ways[w]->cannot(&scope, &call);
        bny_call_set_schedule(&call, names[w]);
        rc = bny_plan_get(&scope, &call, &plan);
        cr_assert_eq(rc, why ? -BANYAN_ENOTSUP : 0, "%s: %d", names[w], rc);
        if (why)
            cr_assert(strstr(banyan_last_error(), why), "\"%s\" lacks \"%s\"",
                      banyan_last_error(), why);
        else if (!(bny_ways[w]->traits & BNY_WAY_BY_NAME)) /* which may find a faster one */
            cr_assert_eq((int)plan.way, w);
        served += !why;
        refused += why != NULL;
        bny_plan_drop(&plan);
        bny_plans_free(&scope);
    }
    cr_assert(served > CALLS / 20 && refused > CALLS / 20);
}

/* Of ways, builders and direct programs. */
Test(ways, no_two_schedules_have_the_same_name)
{
    const char *name, *other;

    for (size_t i = 0; (name = banyan_schedule_name(i)); i++)
        for (size_t k = 0; k < i && (other = banyan_schedule_name(k)); k++)
            cr_assert(strcmp(name, other) != 0, "schedules %zu and %zu are both %s", k, i,
                      name);
}

/* Ranks of which some ask for deterministic sums are told, whatever the plan is. */
Test(ways, deterministic_sums_have_another_hash)
{
    uint64_t s = seed_of_run();
    int alike = 0;

    for (int i = 0; i < CALLS; i++) {
        struct bny_scope scope = draw_scope(&s);
        struct bny_call call = draw_call(&s, &scope);
        struct bny_plan plan[2] = { { .hash = 0 } };
        int rc[2];

        for (int k = 0; k < 2; k++) {
            call.deterministic = (uint8_t)k;
            rc[k] = bny_plan_get(&scope, &call, &plan[k]);
        }
        if (!rc[0] && !rc[1] && bny_call_row(&call)->reduces &&
            !strcmp(plan[0].schedule, plan[1].schedule) && plan[0].codec == plan[1].codec &&
            plan[0].chunk_bytes == plan[1].chunk_bytes && plan[0].late_s == plan[1].late_s) {
            /* a bit of its own: differing by chance would not do */
            cr_assert_eq(plan[0].hash ^ plan[1].hash, 0x80, "schedule %s", plan[0].schedule);
            alike++;
        }
        for (int k = 0; k < 2; k++)
            if (!rc[k])
                bny_plan_drop(&plan[k]);
        bny_plans_free(&scope);
    }
    cr_assert_gt(alike, CALLS / 50);
}

/* A carrier that is asked for carries or cannot; "direct" takes the cheapest that can. */
Test(ways, a_carrier_that_is_asked_for_carries, .timeout = 120)
{
    uint64_t s = seed_of_run();
    int served[NCARRIED] = { 0 };

    for (int i = 0; i < CALLS; i++) {
        struct bny_scope scope = draw_scope(&s);
        struct bny_call call = draw_call(&s, &scope);
        struct bny_plan any = { .hash = 0 };
        int can = 0;

        bny_call_set_schedule(&call, "direct");
        can = bny_plan_get(&scope, &call, &any) == 0;
        cr_assert(!can || scope.n == 1 || !strncmp(any.schedule, "direct:", 7), "direct is %s",
                  any.schedule);
        for (size_t c = 0; c < NCARRIED && scope.n > 1; c++) {
            struct bny_plan plan;
            int rc;

            bny_call_set_schedule(&call, carried[c]);
            rc = bny_plan_get(&scope, &call, &plan);
            cr_assert(rc == 0 || rc == -BANYAN_ENOTSUP, "%s: %d", carried[c], rc);
            cr_assert(can || rc, "%s carries what direct cannot serve", carried[c]);
            served[c] += rc == 0;
            if (rc == 0)
                cr_assert_str_eq(plan.schedule, carried[c]);
            else
                cr_assert(strcmp(any.schedule, carried[c]) != 0, "direct is %s", carried[c]);
            bny_plan_drop(&plan);
        }
        bny_plan_drop(&any);
        bny_plans_free(&scope);
    }
    cr_assert(!served[0] && served[1] > CALLS / 20 && served[2] > CALLS / 20);
    cr_assert(bny_schedule_known("direct:cells") && !bny_schedule_known("direct:") &&
              !bny_schedule_known("direct:rings") && !bny_schedule_known("pipeline:cells"));
}

Test(ways, every_rank_has_the_same_plan, .timeout = 120)
{
    uint64_t s = seed_of_run();

    for (int i = 0; i < CALLS / 10; i++) {
        struct bny_scope scope = draw_scope(&s);
        struct bny_call call = draw_call(&s, &scope);
        struct bny_plan first = { .hash = 0 };

        for (int r = 0; r < scope.n; r += 1 + scope.n / 5) {
            struct bny_scope of_rank = scope;
            struct bny_plan plan;

            of_rank.rank = r;
            plan = plan_of(&of_rank, &call);
            if (r == 0)
                first = plan;
            cr_assert_eq(plan.way, first.way);
            cr_assert_eq(plan.hash, first.hash);
            cr_assert_str_eq(plan.schedule, first.schedule);
            bny_plan_drop(&plan);
            bny_plans_free(&of_rank);
        }
    }
}
