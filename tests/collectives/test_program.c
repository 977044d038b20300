/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of programs: for every builder and direct program, collective and n = 1..64 the
 * programs of all ranks are proven, for rendezvous and for 1, 2 and 8 slots; steps and bytes
 * follow the closed forms. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "collectives/program/writer.h"
#include "program_sets.h"

static const int all_slots[] = { 0, 1, 2, 8 };

/* A broadcast of rank 0 to rank 1 in so many messages. */
static int many_messages(struct bny_program **out, int rank, uint32_t n)
{
    struct bny_writer w;

    bny_writer_init(&w, "many", BNY_BROADCAST, 2, rank, 0, n, 1);
    for (uint32_t b = 0; b < n && rank == 0; b++)
        bny_writer_step(&w, BNY_KEEP, -1, BNY_OUT, BNY_OUT, b, 0);
    for (uint32_t b = 0; b < n; b++)
        bny_writer_step(&w, rank ? BNY_RECV_COPY : BNY_SEND, !rank,
                        rank ? BNY_NOWHERE : BNY_OUT, rank ? BNY_OUT : BNY_NOWHERE, b, 0);
    return bny_writer_finish(&w, out);
}

/* One message more of a pair than its header can number: the writer and the prover refuse it.
 */
Test(program, too_many_messages_of_a_pair_are_refused)
{
    struct program_set s = { .n = 2 };
    struct bny_program *more;
    char why[256] = "";

    for (int r = 0; r < 2; r++) {
        cr_assert_eq(many_messages(&s.p[r], r, BNY_MESSAGES_MAX), 0);
        cr_assert_eq(many_messages(&more, r, BNY_MESSAGES_MAX + 1), -BANYAN_ENOTSUP);
        cr_assert_null(more);
        cr_assert_not_null(
            strstr(banyan_last_error(), "more than 65536 messages between ranks"), "%s",
            banyan_last_error());
    }
    cr_assert_eq(bny_program_verify(s.p, 2, 8, why, sizeof why), 0, "%s", why);
    for (int r = 0; r < 2; r++) { /* the last step once more, as no writer would */
        struct bny_program *p = s.p[r];

        p->steps = realloc(p->steps, (p->nsteps + 1) * sizeof *p->steps);
        p->steps[p->nsteps] = p->steps[p->nsteps - 1];
        p->steps[p->nsteps].ordinal = BNY_MESSAGES_MAX;
        if (r == 1) {
            p->recv_of = realloc(p->recv_of, (BNY_MESSAGES_MAX + 1) * sizeof *p->recv_of);
            p->recv_of[BNY_MESSAGES_MAX] = p->nsteps;
            p->recv_first[1]++;
            p->recv_first[2]++;
        }
        p->nsteps++;
    }
    cr_assert_eq(bny_program_verify(s.p, 2, 8, why, sizeof why), -BANYAN_EINVAL);
    cr_assert_not_null(strstr(why, "more than 65536 messages"), "%s", why);
    program_set_free(&s);
}

/* Only ranks 0 and 1 would exchange too many: rank 2 must refuse as well, or it would wait for
 * ranks that run another schedule. */
Test(program, a_forest_with_too_many_messages_is_refused_on_all_ranks)
{
    for (int over = 0; over < 2; over++) {
        int n = (int)BNY_MESSAGES_MAX / 2 + over;
        struct bny_forest *f = bny_forest_alloc("many", 3, n);

        cr_assert_not_null(f);
        f->nsteps = 2;
        for (int t = 0; t < n; t++) {
            f->trees[t].root = 0;
            f->trees[t].parent[1] = 0;
            f->trees[t].step[1] = 1;
            f->trees[t].parent[2] = t % 2;
        }
        for (int r = 0; r < 3; r++) {
            struct bny_program *p = NULL;
            int rc = bny_compile(&p, f, BNY_ALLREDUCE, r, 0);

            cr_assert_eq(rc, over ? -BANYAN_ENOTSUP : 0, "rank %d: %d %s", r, rc,
                         banyan_last_error());
            if (over)
                cr_assert_not_null(strstr(banyan_last_error(), "too many messages of a pair"));
            bny_program_free(p);
        }
        bny_forest_free(f);
    }
}

static void verify(struct program_set *s, int slots)
{
    char why[256] = "";
    int e = bny_program_verify(s->p, s->n, slots, why, sizeof why);

    cr_assert_eq(e, 0, "%s, %d slots: %s", s->name, slots, why);
}

ParameterizedTestParameters(program, proven_for_1_to_64_ranks)
{
    static struct program_kind kinds[128];
    size_t n = 0;

    while (n < 128 && program_kind_at((int)n, &kinds[n]))
        n++;
    return cr_make_param_array(struct program_kind, kinds, n);
}

ParameterizedTest(struct program_kind *kind, program, proven_for_1_to_64_ranks)
{
    const char *scale = getenv("BANYAN_TEST_SCALE"); /* below 1 for slow builds */
    int proven = 0, step = scale && atof(scale) < 1 ? 4 : 1;

    for (int n = 1; n <= SET_MAX_RANKS; n += n < 16 ? 1 : step) {
        struct program_set s;
        int root = program_kind_rooted(kind) ? n * 5 / 7 % n : 0;

        if (program_set_build(&s, kind, n, root) == -BANYAN_ENOTSUP)
            continue;
        for (int i = 0; i < 4; i++)
            verify(&s, all_slots[i]);
        program_set_free(&s);
        proven++;
    }
    cr_assert_geq(proven, 6);
}

Test(program, proven_for_every_root)
{
    struct program_kind kind;

    for (int k = 0; program_kind_at(k, &kind); k++)
        for (int n = 2; n <= 9 && program_kind_rooted(&kind); n++)
            for (int root = 0; root < n; root++) {
                struct program_set s;

                cr_assert_eq(program_set_build(&s, &kind, n, root), 0);
                verify(&s, root % 3);
                program_set_free(&s);
            }
}

static void build_named(struct program_set *s, const char *name, int collective, int n,
                        int coalesce)
{
    struct program_kind kind;
    int k = 0;

    while (program_kind_at(k++, &kind))
        if (kind.collective == collective && kind.coalesce == coalesce &&
            !strcmp(name, kind.builder >= 0 ? bny_builders[kind.builder]->name
                                            : bny_directs[kind.direct]->name)) {
            cr_assert_eq(program_set_build(s, &kind, n, 0), 0);
            return;
        }
    cr_assert_fail("no such program: %s", name);
}

/* What a rank sends, in shares of 1 / unit of the data; blocks have equal weights. */
static void sends_of(const struct bny_program *p, int *messages, long *blocks)
{
    *messages = 0;
    *blocks = 0;
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].kind == BNY_SEND || p->steps[i].kind == BNY_FORWARD) {
            ++*messages;
            *blocks += p->steps[i].nblocks;
        }
}

Test(program, messages_and_bytes_of_ring_and_star_follow_the_closed_forms)
{
    for (int n = 2; n <= SET_MAX_RANKS; n++) {
        struct program_set s;
        int messages;
        long blocks;

        build_named(&s, "ring", BNY_ALLREDUCE, n, 1);
        for (int r = 0; r < n; r++) {
            sends_of(s.p[r], &messages, &blocks);
            cr_assert_eq(blocks, 4 * (n - 1)); /* of S / 2n: 2 (n-1)/n S */
            cr_assert_eq(messages, 4 * (n - 1));
            cr_assert_eq(s.p[r]->weight_den[0], (uint32_t)(2 * n));
        }
        program_set_free(&s);
        build_named(&s, "star", BNY_ALLREDUCE, n, 1);
        for (int r = 0; r < n; r++) {
            sends_of(s.p[r], &messages, &blocks);
            cr_assert(messages == 2 * (n - 1) && blocks == 2 * (n - 1));
        }
        program_set_free(&s);
        build_named(&s, "ring", BNY_REDUCE_SCATTER, n, 1);
        for (int r = 0; r < n; r++) {
            sends_of(s.p[r], &messages, &blocks);
            cr_assert_eq(blocks, n - 1, "n=%d rank %d sends %ld", n, r, blocks);
        }
        program_set_free(&s);
    }
}

Test(program, messages_and_bytes_of_halving_and_recursive_doubling)
{
    for (int n = 2; n <= SET_MAX_RANKS; n++) {
        struct program_set s;
        int p = 1, levels = 0, messages;
        long blocks;

        for (; p <= n / 2; p *= 2)
            levels++;
        build_named(&s, "halving", BNY_ALLREDUCE, n, 1);
        for (int r = 0; r < n; r++) {
            int folded = r < n - p;

            sends_of(s.p[r], &messages, &blocks);
            cr_assert_eq(messages, r < p ? 2 * levels + folded : 1, "n=%d rank %d", n, r);
            cr_assert_eq(blocks, r < p ? 2 * (p - 1) + folded * p : p);
        }
        program_set_free(&s);
        build_named(&s, "recursive_doubling", BNY_ALLREDUCE, n, 0);
        for (int r = 0; r < n; r++) {
            int extra = r < 2 * (n - p);

            sends_of(s.p[r], &messages, &blocks);
            cr_assert_eq(messages, extra && r % 2 == 0 ? 1 : levels + extra);
        }
        program_set_free(&s);
    }
}

/* Two trees of half weight: 2 (n-1) S in all, and no port more than 2 S. */
Test(program, bytes_of_double_binary_tree_stay_below_two_vectors)
{
    for (int n = 2; n <= SET_MAX_RANKS; n++) {
        struct program_set s;
        long all = 0;

        build_named(&s, "double_binary_tree", BNY_ALLREDUCE, n, 0);
        for (int r = 0; r < n; r++) {
            int messages;
            long halves;

            sends_of(s.p[r], &messages, &halves);
            cr_assert_leq(halves, 4, "n=%d rank %d sends %ld halves", n, r, halves);
            all += halves;
        }
        cr_assert_eq(all, 4 * (n - 1));
        program_set_free(&s);
    }
}

Test(program, halving_joins_blocks_for_every_collective)
{
    const int collectives[] = { BNY_REDUCE_SCATTER, BNY_ALLGATHER };

    for (int i = 0; i < 2; i++)
        for (int n = 2, levels = 1; n <= SET_MAX_RANKS; n *= 2, levels++) {
            struct program_set s;
            int messages;
            long blocks;

            build_named(&s, "halving", collectives[i], n, 1);
            for (int r = 0; r < n; r++) {
                sends_of(s.p[r], &messages, &blocks);
                cr_assert(messages == levels && blocks == n - 1, "%s rank %d: %d of %ld",
                          s.name, r, messages, blocks);
            }
            program_set_free(&s);
        }
}

Test(program, bucket_sends_one_message_a_step)
{
    struct program_set s;
    int messages;
    long blocks;

    build_named(&s, "bucket", BNY_ALLREDUCE, 12, 1); /* 3 x 4 */
    for (int r = 0; r < 12; r++) {
        sends_of(s.p[r], &messages, &blocks);
        cr_assert(messages == 2 * (3 + 4 - 2) && blocks == 2 * 11, "rank %d: %d, %ld", r,
                  messages, blocks);
    }
    program_set_free(&s);
}

Test(program, independent_pipelines_have_their_own_channels)
{
    const char *const names[] = { "ring", "double_binary_tree" };

    for (int i = 0; i < 2; i++) {
        struct program_set s;

        build_named(&s, names[i], BNY_ALLREDUCE, 8, 0);
        for (int r = 0; r < 8; r++)
            for (uint32_t k = 0; k < s.p[r]->nsteps; k++) {
                const struct bny_step *step = &s.p[r]->steps[k];
                uint32_t second = step->block >= s.p[r]->nblocks / 2;

                if (step->kind != BNY_KEEP)
                    cr_assert_eq(step->chan, second);
            }
        program_set_free(&s);
    }
}

static int is_same_step(const struct bny_step *a, const struct bny_step *b)
{
    return a->kind == b->kind && a->chan == b->chan && a->src == b->src && a->dst == b->dst &&
           a->flags == b->flags && a->peer == b->peer && a->block == b->block &&
           a->nblocks == b->nblocks && a->ordinal == b->ordinal && a->from == b->from &&
           a->dep == b->dep && a->ndeps == b->ndeps;
}

/* Whoever compiled before, each rank gets what it would have made alone. */
Test(program, one_compiler_serves_all_ranks_and_collectives)
{
    static const enum bny_collective kinds[] = { BNY_ALLGATHER, BNY_REDUCE_SCATTER };
    struct bny_program *p, *alone;
    struct bny_compiler *k;
    struct bny_forest *f;

    cr_assert_eq(bny_builder_find("ring_uni")->build(&f, 6, BNY_FOREST_SCATTERED, -1), 0);
    cr_assert_eq(bny_compiler_new(&k, f, BNY_BROADCAST), -BANYAN_EINVAL);
    cr_assert_null(k);
    cr_assert_eq(bny_compiler_new(&k, f, BNY_ALLGATHER), 0);
    for (int i = 0; i < 24; i++) {
        enum bny_collective coll = kinds[i / 6 % 2];
        int rank = i * 5 % 6, joined = i / 12;

        cr_assert_eq(bny_compiler_run(k, &p, coll, rank, joined), 0);
        cr_assert_eq(bny_compile(&alone, f, coll, rank, joined), 0);
        cr_assert_eq(p->nsteps, alone->nsteps);
        for (uint32_t s = 0; s < p->nsteps; s++)
            cr_assert(is_same_step(&p->steps[s], &alone->steps[s]));
        bny_program_free(p);
        bny_program_free(alone);
    }
    cr_assert_eq(bny_compiler_run(k, &p, BNY_BROADCAST, 0, 0), -BANYAN_EINVAL);
    cr_assert_eq(bny_compiler_run(k, &p, BNY_ALLGATHER, 6, 0), -BANYAN_EINVAL);
    cr_assert_null(p);
    bny_compiler_free(k);
    bny_forest_free(f);
}

Test(program, wrong_arguments_are_refused)
{
    struct bny_program *p = (struct bny_program *)1;
    struct bny_forest *f;
    const struct bny_direct_ops *rd = bny_direct_find("recursive_doubling");

    cr_assert_eq(bny_builder_find("ring_uni")->build(&f, 4, BNY_FOREST_ALLREDUCE, 0), 0);
    cr_assert_eq(bny_compile(&p, f, BNY_ALLREDUCE, 4, 0), -BANYAN_EINVAL);
    cr_assert_null(p);
    cr_assert_eq(bny_compile(&p, f, BNY_BROADCAST, 0, 0), -BANYAN_EINVAL);
    cr_assert_eq(bny_compile(&p, f, BNY_ALLTOALL, 0, 0), -BANYAN_EINVAL);
    bny_forest_free(f);
    cr_assert_eq(rd->build(&p, BNY_SCAN, 4, 0, -1), -BANYAN_EINVAL);
    cr_assert_eq(rd->build(&p, BNY_ALLREDUCE, 4, 4, -1), -BANYAN_EINVAL);
    cr_assert_eq(bny_direct_find("rooted")->build(&p, BNY_GATHER, 4, 1, 4), -BANYAN_EINVAL);
    cr_assert_null(p);
    cr_assert_null(bny_direct_find("no such program"));
    cr_assert_str_eq(bny_collective_name(BNY_EXSCAN), "exscan");
    cr_assert_str_eq(bny_collective_name(BNY_COLLECTIVE_COUNT), "unknown");
    bny_program_free(NULL);
}
