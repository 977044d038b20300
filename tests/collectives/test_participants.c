/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs of participation sets: proved for every builder that makes forests of any ranks, for
 * 1 to 16 ranks, random sets and roots; what those send that are not in the set; and that the
 * proof finds what a set forbids. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "collectives/program/program.h"
#include "collectives/program/writer.h"

#define RANKS_MAX 16
#define SETS      12

struct part {
    int n, m; /* ranks; of them in the set */
    uint8_t present[RANKS_MAX];
    uint32_t nsteps; /* time steps of a phase */
    struct bny_program *p[RANKS_MAX];
};

static void part_free(struct part *s)
{
    for (int r = 0; r < s->n; r++)
        bny_program_free(s->p[r]);
}

/* Random, but for the first ones: one rank, the first half, all but one. */
static void draw(struct part *s, int n, int which, uint64_t *seed)
{
    s->n = n;
    s->m = 0;
    for (int r = 0; r < n; r++) {
        s->present[r] = which == 0   ? r == n - 1
                        : which == 1 ? r < (n + 1) / 2
                        : which == 2 ? r != n / 2 || n == 1
                                     : bny_rng_below(seed, 2) != 0;
        s->m += s->present[r];
    }
    if (!s->m)
        s->present[bny_rng_below(seed, (uint64_t)n)] = 1, s->m = 1;
}

/* 0 or -BANYAN_ENOTSUP; the root of the inner forest as plan/programs.c chooses it. */
static int build(struct part *s, const struct bny_builder_ops *b, int collective, int sink,
                 int coalesce)
{
    int use = collective == BNY_REDUCE ? BNY_FOREST_ROOTED : BNY_FOREST_ALLREDUCE, root = 0;
    struct bny_forest *inner, *f;
    char why[256] = "";

    for (int r = 0; r < sink && !(b->traits & BNY_BUILDER_ORDERED) && s->present[sink]; r++)
        root += s->present[r];
    if (b->build(&inner, s->m, (enum bny_forest_use)use, root) != 0)
        return -BANYAN_ENOTSUP;
    cr_assert_eq(bny_forest_part(&f, inner, s->n, s->present, sink), 0);
    bny_forest_free(inner);
    cr_assert_eq(
        bny_forest_check(f, (enum bny_forest_use)use, f->trees[0].root, why, sizeof why), 0,
        "%s of %d of %d: %s", b->name, s->m, s->n, why);
    for (int r = 0; r < s->n; r++)
        cr_assert_eq(bny_compile(&s->p[r], f, (enum bny_collective)collective, r, coalesce), 0);
    s->nsteps = f->nsteps;
    bny_forest_free(f);
    return 0;
}

static uint32_t sends_of(const struct bny_program *p)
{
    uint32_t blocks = 0;

    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].kind == BNY_SEND || p->steps[i].kind == BNY_FORWARD)
            blocks += p->steps[i].nblocks;
    return blocks;
}

static void prove(const struct part *s, const char *what)
{
    char why[256] = "";

    for (int slots = 0; slots <= 4; slots += 2)
        cr_assert_eq(bny_program_verify(s->p, s->n, slots, why, sizeof why), 0,
                     "%s of %d of %d, %d slots: %s", what, s->m, s->n, slots, why);
}

Test(participants, every_builder_is_proved_for_random_sets)
{
    uint64_t seed = 7;
    int proved = 0;

    for (int i = 0; bny_builders[i]; i++)
        for (int n = 1; n <= RANKS_MAX; n++)
            for (int k = 0; k < SETS; k++)
                for (int c = 0; c < 4; c++) {
                    int reduce = c & 1,
                        sink = reduce ? (int)bny_rng_below(&seed, (uint64_t)n) : -1;
                    struct part s;

                    draw(&s, n, k, &seed);
                    if (!(bny_builders[i]->uses &
                          (reduce ? BNY_FOREST_ROOTED : BNY_FOREST_ALLREDUCE)) ||
                        build(&s, bny_builders[i], reduce ? BNY_REDUCE : BNY_ALLREDUCE, sink,
                              c >> 1) != 0)
                        continue;
                    prove(&s, bny_builders[i]->name);
                    for (int r = 0; r < n; r++)
                        if (!s.present[r] && (reduce || 2 * s.m >= n))
                            cr_assert_eq(sends_of(s.p[r]), 0, "%s: rank %d of %d sends",
                                         bny_builders[i]->name, r, n);
                    proved++;
                    part_free(&s);
                }
    cr_assert_gt(proved, 5000, "only %d", proved);
}

/* Serving the others is shared: nobody of the set sends a block to more than
 * ceil(n / m) + log2 of the steps needs. */
Test(participants, the_result_reaches_all_in_few_steps)
{
    uint64_t seed = 3;

    for (int n = 2; n <= RANKS_MAX; n++)
        for (int m = 1; m < n; m++) {
            const struct bny_builder_ops *b = bny_builder_find("star");
            uint32_t rounds = 0, all = 0;
            struct part s;

            draw(&s, n, 3, &seed);
            for (int r = 0; r < n; r++)
                s.present[r] = r < m;
            s.m = m;
            cr_assert_eq(build(&s, b, BNY_ALLREDUCE, -1, 0), 0);
            for (int h = m; h < n; h *= 2)
                rounds++;
            cr_assert_leq(s.nsteps, rounds + 2);
            for (int r = 0; r < n; r++)
                all += sends_of(s.p[r]);
            /* of m blocks: up m - 1 each, down n - 1 each */
            cr_assert_eq(all, (uint32_t)(m * (m - 1 + n - 1)), "%d of %d: %u", m, n, all);
            part_free(&s);
        }
}

/* ---- the proof can fail ---- */

static void refuted(struct part *s, const char *because)
{
    char why[256] = "";

    cr_assert_neq(bny_program_verify(s->p, s->n, 0, why, sizeof why), 0, "not found: %s",
                  because);
    cr_assert_not_null(strstr(why, because), "'%s' lacks '%s'", why, because);
    part_free(s);
}

static void sample(struct part *s)
{
    static const uint8_t present[4] = { 1, 0, 1, 1 };

    s->n = 4;
    s->m = 3;
    memcpy(s->present, present, sizeof present);
    cr_assert_eq(build(s, bny_builder_find("star"), BNY_ALLREDUCE, -1, 0), 0);
    prove(s, "star");
}

Test(participants, the_proof_finds_a_wrong_set)
{
    struct part s;

    sample(&s);
    s.p[3]->present[1] = 1;
    refuted(&s, "differ in who takes part");
    sample(&s); /* one is promised who gave nothing */
    for (int r = 0; r < 4; r++)
        s.p[r]->present[1] = 1;
    refuted(&s, "incomplete");
    sample(&s); /* one gives who is said to have nothing */
    for (int r = 0; r < 4; r++)
        s.p[r]->present[3] = 0;
    refuted(&s, "undefined data");
    sample(&s); /* the result does not reach the rank that is not in the set */
    for (uint32_t i = 0; i < s.p[1]->nsteps; i++)
        s.p[1]->steps[i].block = 0;
    refuted(&s, "");
}

/* A reduce to rank 2 in which rank 1, which is not in the set, passes on what rank 0 sent. All
 * sums are right; what is wrong is that rank 1 has a part in them. */
Test(participants, the_proof_finds_a_sum_that_an_absent_rank_passes_on)
{
    static const uint8_t present[3] = { 1, 0, 1 };
    struct part s = { .n = 3, .m = 2 };

    for (int r = 0; r < 3; r++) {
        struct bny_writer w;

        bny_writer_init(&w, "relay", BNY_REDUCE, 3, r, 2, 1, 1);
        if (r == 1)
            bny_writer_step(&w, BNY_RECV_COPY, 0, BNY_NOWHERE, BNY_SCRATCH, 0, 0);
        if (r == 2)
            bny_writer_step(&w, BNY_RECV_ADD, 1, BNY_IN, BNY_OUT, 0, 0);
        if (r < 2)
            bny_writer_step(&w, BNY_SEND, r + 1, r ? BNY_SCRATCH : BNY_IN, BNY_NOWHERE, 0, 0);
        else
            bny_writer_step(&w, BNY_KEEP, -1, BNY_OUT, BNY_OUT, 0, 0);
        w.p->present = malloc(3);
        cr_assert_not_null(w.p->present);
        memcpy(w.p->present, present, 3);
        cr_assert_eq(bny_writer_finish(&w, &s.p[r]), 0);
    }
    refuted(&s, "who does not take part sends a sum");
}

Test(participants, a_forest_of_a_part_is_checked)
{
    const struct bny_builder_ops *b = bny_builder_find("star");
    static const uint8_t present[4] = { 1, 0, 1, 1 };
    struct bny_forest *inner, *f;
    struct bny_program *p;
    char why[256];

    cr_assert_eq(b->build(&inner, 3, BNY_FOREST_ALLREDUCE, 0), 0);
    cr_assert_eq(bny_forest_part(&f, inner, 4, present, -1), 0);
    bny_forest_free(inner);
    cr_assert_neq(bny_compile(&p, f, BNY_REDUCE, 0, 0), 0);
    cr_assert_neq(bny_compile(&p, f, BNY_REDUCE_SCATTER, 0, 0), 0);
    f->trees[0].parent[1] = 2;
    cr_assert_neq(bny_forest_check(f, BNY_FOREST_ALLREDUCE, -1, why, sizeof why), 0);
    cr_assert_not_null(strstr(why, "absent rank 1"), "%s", why);
    f->trees[0].parent[1] = -1;
    f->trees[1].down_parent[1] = -1;
    cr_assert_neq(bny_forest_check(f, BNY_FOREST_ALLREDUCE, -1, why, sizeof why), 0);
    f->trees[1].down_parent[1] = 0;
    f->trees[2].root = 1;
    cr_assert_neq(bny_forest_check(f, BNY_FOREST_ALLREDUCE, -1, why, sizeof why), 0);
    bny_forest_free(f);
}
