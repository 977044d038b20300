/* SPDX-License-Identifier: BSD-3-Clause */
/* What codecs do to results, proven from programs (bny_program_verify_codes): one lossy code of
 * each block, which all ranks decode (V9), and losses that add up along paths (V10); of forests
 * of ranks and of hosts. And 10^4 planted faults: a result that is encoded again, or in two
 * ways. BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "collectives/plan/topology.h"
#include "collectives/plan/way.h"
#include "program_sets.h"

#define MUTANTS 10000

static const struct bny_loss codes[BNY_CODES] = {
    [BNY_CODE_UP] = { 1e-4, 1.0 / 254 }, [BNY_CODE_DOWN] = { 2e-2, 1.0 / 14 }
};

static const enum bny_collective collectives[] = { BNY_ALLREDUCE, BNY_REDUCE,
                                                   BNY_REDUCE_SCATTER, BNY_BROADCAST,
                                                   BNY_ALLGATHER };

static int goes_up(enum bny_collective c)
{
    return c != BNY_BROADCAST && c != BNY_ALLGATHER;
}

static int goes_down(enum bny_collective c)
{
    return c != BNY_REDUCE && c != BNY_REDUCE_SCATTER;
}

/* Results of so many parts, each of which is encoded `hops` times at most, and then as a
 * result. */
static struct bny_loss claim_of(enum bny_collective c, double hops, double parts)
{
    const struct bny_loss *up = &codes[BNY_CODE_UP], *down = &codes[BNY_CODE_DOWN];
    struct bny_loss claim = { 0, 0 };

    if (goes_up(c) && parts > 1)
        claim = (struct bny_loss){ hops * up->nmse * (parts - 1) / parts, hops * up->max };
    if (goes_down(c) && parts > 1) {
        claim.nmse += down->nmse;
        claim.max += down->max;
    }
    return claim;
}

/* ---- programs ---- */

/* The k-th kind of programs that lossy codecs may run. */
static int kind_at(int k, struct program_kind *kind)
{
    for (int i = 0; program_kind_at(i, kind); i++)
        if (kind->builder >= 0 && !kind->coalesce && k-- == 0)
            return 1;
    return 0;
}

static uint64_t seed_of_run(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");

    return text ? strtoull(text, NULL, 0) : 20261130;
}

Test(codes, losses_add_up_along_paths)
{
    struct program_kind kind;

    for (int k = 0; kind_at(k, &kind); k++)
        for (int n = 1; n <= 13; n++) {
            enum bny_collective c = (enum bny_collective)kind.collective;
            struct program_set s;
            struct bny_loss claim, found;
            char why[256];

            if (program_set_build(&s, &kind, n, 0))
                continue;
            claim = claim_of(c, strncmp(s.name, "star", 4) ? n - 1 : 1, n);
            cr_assert_eq(bny_program_verify(s.p, n, 4, why, sizeof why), 0, "%s: %s", s.name,
                         why);
            cr_assert_eq(
                bny_program_verify_codes(s.p, n, codes, &claim, &found, why, sizeof why), 0,
                "%s: %s", s.name, why);
            if (!strncmp(s.name, "star", 4)) {
                cr_expect_float_eq(found.nmse, claim.nmse, 1e-12, "%s: %g, not %g", s.name,
                                   found.nmse, claim.nmse);
                cr_expect_float_eq(found.max, claim.max, 1e-12, "%s", s.name);
            }
            claim.max = found.max * .99;
            cr_expect(found.max == 0 ||
                          bny_program_verify_codes(s.p, n, codes, &claim, NULL, why,
                                                   sizeof why) == -BANYAN_EINVAL,
                      "%s: less than it loses is claimed", s.name);
            program_set_free(&s);
        }
}

Test(codes, raw_results_lose_what_sums_do)
{
    static const struct bny_loss up[BNY_CODES] = { [BNY_CODE_UP] = { 1e-4, 1.0 / 254 } },
                                 down[BNY_CODES] = { [BNY_CODE_DOWN] = { 1e-4, 1.0 / 254 } };
    struct program_kind kind;

    for (int k = 0; kind_at(k, &kind); k++) {
        struct program_set s;
        struct bny_loss found;

        if (kind.collective != BNY_ALLREDUCE || program_set_build(&s, &kind, 5, 0))
            continue;
        cr_assert_eq(bny_program_verify_codes(s.p, 5, down, NULL, &found, NULL, 0), 0, "%s",
                     s.name);
        cr_expect_float_eq(found.nmse, 1e-4, 1e-12, "%s: %g", s.name, found.nmse);
        cr_expect_float_eq(found.max, 1.0 / 254, 1e-12, "%s", s.name);
        cr_assert_eq(bny_program_verify_codes(s.p, 5, up, NULL, &found, NULL, 0), 0, "%s",
                     s.name);
        cr_expect_geq(found.nmse, .8e-4 - 1e-12, "%s", s.name);
        program_set_free(&s);
    }
}

/* ---- hosts ---- */

#define HOSTS 4
#define NEAR  3

static int members[HOSTS * NEAR], host_of[HOSTS * NEAR];

static int host_set(struct program_set *s, int hosts, int near, const char *schedule,
                    enum bny_collective c)
{
    struct bny_topology *t;
    int e = 0;

    memset(s, 0, sizeof *s);
    s->n = hosts * near;
    snprintf(s->name, sizeof s->name, "%s %s, %d hosts of %d", schedule, bny_collective_name(c),
             hosts, near);
    for (int r = 0; r < s->n; r++) {
        members[r] = r;
        host_of[r] = r / near;
    }
    cr_assert_eq(bny_topology_load(&t, "", "auto"), 0);
    cr_assert_eq(bny_topology_settle(t, host_of, s->n), 0);
    for (int r = 0; r < s->n && !e; r++) {
        struct bny_scope scope = {
            .n = s->n, .rank = r, .members = members, .topology = t, .ways = bny_ways
        };
        int borrowed;

        e = bny_topology_program(&s->p[r], &borrowed, &scope, c, schedule,
                                 c == BNY_REDUCE || c == BNY_BROADCAST ? s->n / 2 : -1, 0);
        bny_plans_free(&scope);
    }
    bny_topology_free(t);
    return e;
}

/* Within a host nothing is encoded, so that a path has as many codes as it crosses hosts. */
Test(codes, between_hosts_alone)
{
    static const char *const schedules[] = { "host_star", "host_ring", "host_tree" };
    char why[256];

    for (size_t k = 0; k < 3 * sizeof collectives / sizeof *collectives; k++)
        for (int hosts = 2; hosts <= HOSTS; hosts++)
            for (int near = 2; near <= NEAR; near++) {
                enum bny_collective c = collectives[k / 3];
                struct bny_loss claim, found;
                struct program_set s;

                if (host_set(&s, hosts, near, schedules[k % 3], c))
                    continue;
                claim = claim_of(c, k % 3 ? hosts - 1 : 1, hosts);
                cr_assert_eq(bny_program_verify(s.p, s.n, 4, why, sizeof why), 0, "%s: %s",
                             s.name, why);
                cr_assert_eq(
                    bny_program_verify_codes(s.p, s.n, codes, &claim, &found, why, sizeof why),
                    0, "%s: %s", s.name, why);
                cr_expect(k % 3 || fabs(found.nmse - claim.nmse) < 1e-12, "%s: %g, not %g",
                          s.name, found.nmse, claim.nmse);
                program_set_free(&s);
            }
}

/* ---- planted faults ---- */

enum fault {
    ENCODES_AGAIN,    /* a result is encoded again on its way down */
    ENCODES_AS_SUM,   /* the same with the code of sums */
    FORWARDS_UNMADE,  /* an owner forwards a code that it does not make */
    FORWARDS_DECODED, /* a rank that receives raw data forwards a code */
    SENDS_UNDECODED,  /* some get an owner's data, others its code */
    ADDS_A_RESULT,    /* a sum travels in the code of results */
    ENDS_DIFFER,      /* only one end changes the code */
    FAULTS
};

static struct bny_step *other_end(const struct program_set *set, int rank,
                                  const struct bny_step *s)
{
    const struct bny_program *q = set->p[s->peer];

    return &q->steps[q->recv_of[q->recv_first[rank] + s->ordinal]];
}

static int is_forwarded(const struct bny_program *p, uint32_t i)
{
    uint32_t k = 0;

    while (k < p->nsteps && (p->steps[k].kind != BNY_FORWARD || p->steps[k].from != i ||
                             p->steps[k].code != BNY_CODE_DOWN))
        k++;
    return k < p->nsteps;
}

/* Changes step i of a rank, and the step at the other end; 0: not a step for this fault. */
static int plant(struct program_set *set, int rank, uint32_t i, enum fault fault)
{
    struct bny_program *p = set->p[rank];
    struct bny_step *s = &p->steps[i];
    int forwards = s->kind == BNY_FORWARD && s->code == BNY_CODE_DOWN;

    switch (fault) {
    case ENCODES_AGAIN:
    case ENCODES_AS_SUM:
        if (!forwards)
            return 0;
        s->kind = BNY_SEND;
        s->from = UINT32_MAX;
        if (fault == ENCODES_AS_SUM)
            s->code = other_end(set, rank, s)->code = BNY_CODE_UP;
        return 1;
    case FORWARDS_UNMADE:
        if (s->kind != BNY_KEEP || !is_forwarded(p, i))
            return 0;
        s->code = BNY_CODE_NONE;
        return 1;
    case FORWARDS_DECODED:
        if (!forwards || !is_forwarded(set->p[s->peer], (uint32_t)(other_end(set, rank, s) -
                                                                   set->p[s->peer]->steps)))
            return 0;
        s->code = other_end(set, rank, s)->code = BNY_CODE_NONE;
        return 1;
    case SENDS_UNDECODED:
        if (!forwards || p->steps[s->from].kind != BNY_KEEP || p->collective != BNY_ALLGATHER)
            return 0;
        s->src = BNY_IN;
        s->code = other_end(set, rank, s)->code = BNY_CODE_NONE;
        return 1;
    case ADDS_A_RESULT:
        if (s->kind != BNY_SEND || s->code != BNY_CODE_UP)
            return 0;
        s->code = other_end(set, rank, s)->code = BNY_CODE_DOWN;
        return 1;
    default:
        if (s->kind == BNY_KEEP)
            return 0;
        s->code = (uint8_t)((s->code + 1) % BNY_CODES);
        return 1;
    }
}

static int try_fault(struct program_set *set, enum fault fault, uint64_t *rng)
{
    int rank = (int)bny_rng_below(rng, (uint64_t)set->n);
    struct bny_program *p = set->p[rank];
    struct bny_step was, other = { .kind = 0 }, *end = NULL;
    uint32_t i;
    char why[256] = "";
    int planted;

    if (!p->nsteps)
        return 0;
    i = (uint32_t)bny_rng_below(rng, p->nsteps);
    was = p->steps[i];
    if (was.kind == BNY_SEND || was.kind == BNY_FORWARD) {
        end = other_end(set, rank, &was);
        other = *end;
    }
    planted = plant(set, rank, i, fault);
    if (planted)
        cr_expect_eq(
            bny_program_verify_codes(set->p, set->n, codes, NULL, NULL, why, sizeof why),
            -BANYAN_EINVAL, "%s: fault %d at rank %d, step %u passes", set->name, fault, rank,
            i);
    cr_expect(!planted || why[0]);
    p->steps[i] = was;
    if (end)
        *end = other;
    return planted;
}

Test(codes, a_result_that_is_encoded_twice_is_found, .timeout = 120)
{
    uint64_t rng = seed_of_run();
    int made[FAULTS] = { 0 }, all = 0, nkinds = 0;
    struct program_kind kind;

    cr_log_info("seed %llu\n", (unsigned long long)rng);
    while (kind_at(nkinds, &kind))
        nkinds++;
    while (all < MUTANTS) {
        int hosts = bny_rng_below(&rng, 4) == 0, n = 2 + (int)bny_rng_below(&rng, 8);
        struct program_set s;

        kind_at((int)bny_rng_below(&rng, (uint64_t)nkinds), &kind);
        if (hosts ? host_set(&s, 2 + n % 3, 2, n % 2 ? "host_ring" : "host_star",
                             collectives[bny_rng_below(&rng, 5)])
                  : program_set_build(&s, &kind, n, 0))
            continue;
        for (int k = 0; k < 400; k++) {
            enum fault fault = (enum fault)bny_rng_below(&rng, FAULTS);
            int planted = try_fault(&s, fault, &rng);

            made[fault] += planted;
            all += planted;
        }
        cr_assert_eq(bny_program_verify_codes(s.p, s.n, codes, NULL, NULL, NULL, 0), 0);
        program_set_free(&s);
    }
    for (int f = 0; f < FAULTS; f++)
        cr_assert_geq(made[f], 50, "fault %d: %d", f, made[f]);
}
