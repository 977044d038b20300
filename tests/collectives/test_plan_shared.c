/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of one process share what they plan: the same plan as alone, no second making of a
 * forest, nothing kept when the last one has gone, and nothing shared between different graphs.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/err.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/way.h"
#include "collectives/plan/shared.h"

#define MANY 100

static int members[MANY];

static struct bny_topology *topology(const char *graph, int n)
{
    int host_of[MANY];
    struct bny_topology *t;

    for (int r = 0; r < n; r++)
        members[r] = host_of[r] = r;
    cr_assert_eq(bny_topology_load(&t, graph, "auto"), 0, "%s", banyan_last_error());
    cr_assert_eq(bny_topology_settle(t, host_of, n), 0, "%s", banyan_last_error());
    return t;
}

static struct bny_scope scope(struct bny_topology *t, int n, int rank)
{
    return (struct bny_scope){ .n = n,
                               .rank = rank,
                               .members = members,
                               .topology = t,
                               .ways = bny_ways,
                               .eager_max = 4096,
                               .chunk_max = 65536,
                               .coded_max = 65536,
                               .schedule = "auto" };
}

static uint8_t plan(struct bny_scope *s, size_t count)
{
    struct bny_call call = {
        .collective = BNY_ALLREDUCE, .dtype = BANYAN_F32, .count = count, .timeout_s = -1
    };
    struct bny_plan got;
    uint8_t hash;

    bny_call_set_schedule(&call, "auto");
    cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
    cr_assert_eq(bny_plan_get(s, &call, &got), 0, "%s", banyan_last_error());
    hash = got.hash;
    bny_plan_drop(&got);
    return hash;
}

/* The plan of a rank that is alone. */
static uint8_t alone(const char *graph, int n, size_t count)
{
    struct bny_topology *t = topology(graph, n);
    struct bny_scope s = scope(t, n, 0);
    uint8_t hash = plan(&s, count);

    cr_assert_not(t->made && t->made->shared);
    bny_plans_free(&s);
    bny_topology_free(t);
    return hash;
}

static int lent(const struct bny_topology *t)
{
    int n = 0;

    for (const struct bny_made *m = t->made; m; m = m->next)
        n += m->shared;
    return n;
}

Test(plan_shared, the_second_rank_has_the_first_ones_forests)
{
    uint8_t right = alone("fattree:16", 16, 1 << 18), other = alone("star:16", 16, 1 << 18);
    struct bny_topology *t[3] = { topology("fattree:16", 16), topology("fattree:16", 16),
                                  topology("star:16", 16) };
    struct bny_scope s[3];

    for (int i = 0; i < 3; i++) {
        s[i] = scope(t[i], 16, i);
        cr_assert_eq(plan(&s[i], 1 << 18), i < 2 ? right : other);
    }
    cr_assert_gt(lent(t[0]), 5);
    cr_assert_eq(lent(t[1]), lent(t[0]));
    for (const struct bny_made *a = t[0]->made, *b = t[1]->made; a; a = a->next, b = b->next)
        cr_assert_eq(a->forest, b->forest, "%s, %s", a->schedule, b->schedule);
    cr_assert_eq(lent(t[2]), 0);
    for (int i = 0; i < 3; i++) { /* who made them goes first */
        bny_plans_free(&s[i]);
        bny_topology_free(t[i]);
    }
}

/* The compiler of a schedule that ranks make programs of now; m: its name among t's. */
static struct bny_compiler *borrow(struct bny_topology *t, const struct bny_made **m)
{
    struct bny_compiler *k = NULL;

    for (*m = t->made; *m && !(k = bny_shared_borrow(t, *m));)
        *m = (*m)->next;
    return k;
}

/* Of many ranks a forest is there until the last one has made its program, and no longer. */
Test(plan_shared, large_forests_go_with_the_last_program, .timeout = 60)
{
    struct bny_topology *t[4];
    struct bny_scope s[4];
    const struct bny_made *m;

    for (int i = 0; i < 4; i++) {
        t[i] = topology("torus:10x10", MANY);
        s[i] = scope(t[i], MANY, i);
    }
    for (int i = 0; i < 3; i++) {
        plan(&s[i], 1 << 18);
        for (m = t[i]->made; m; m = m->next)
            cr_assert_null(m->forest);
        if (i > 0)
            continue;
        cr_assert_not_null(borrow(t[0], &m)); /* for the fourth */
        bny_shared_give_back(t[0], m);
    }
    cr_assert_null(borrow(t[0], &m), "%s is kept", m->schedule);
    for (int i = 0; i < 4; i++) {
        bny_plans_free(&s[i]);
        bny_topology_free(t[i]);
    }
}

static void *plan_at_once(void *arg)
{
    struct bny_scope *s = arg;
    uint8_t *hash = malloc(1);

    *hash = plan(s, 1 << 18);
    return hash;
}

Test(plan_shared, threads_that_plan_at_once_agree, .timeout = 60)
{
    static const char *const graphs[] = { "fattree:16", "torus:10x10" };

    for (int g = 0; g < 2; g++) {
        int n = g ? MANY : 16;
        uint8_t right = alone(graphs[g], n, 1 << 18);
        struct bny_topology *t[4];
        struct bny_scope s[4];
        pthread_t thread[4];

        for (int i = 0; i < 4; i++)
            t[i] = topology(graphs[g], n);
        for (int i = 0; i < 4; i++) {
            s[i] = scope(t[i], n, i);
            cr_assert_eq(pthread_create(&thread[i], NULL, plan_at_once, &s[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
            void *hash;

            cr_assert_eq(pthread_join(thread[i], &hash), 0);
            cr_assert_eq(*(uint8_t *)hash, right, "rank %d on %s", i, graphs[g]);
            free(hash);
            bny_plans_free(&s[i]);
            bny_topology_free(t[i]);
        }
    }
}
