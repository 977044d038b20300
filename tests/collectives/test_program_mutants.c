/* SPDX-License-Identifier: BSD-3-Clause */
/* The verifier on planted faults (V8). A mutant is a proven set of programs with one change;
 * what merely follows from the steps (ordinals, receive index) is derived again, so that only
 * the change itself can be found.
 *
 * Every mutant must be rejected, but for those that can be equivalent, which the test counts:
 *   swap     of two steps of which neither waits for the other, and that are not two messages
 *     of one lane;
 *   drop dep in the barrier of a number of ranks that is no power of two: its last round tells
 *     little news;
 *   space    an allgather's own block and rank 0's part of a scan are the same in IN and OUT;
 *            what memory a barrier uses means nothing;
 *   rev      where no order of additions is promised. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "collectives/program/writer.h"
#include "program_sets.h"
#include "transport/wire.h"

#define NMUTANTS 120000

enum mutation {
    DROP_STEP,
    DROP_MESSAGE,
    DUPLICATE_STEP,
    DUPLICATE_MESSAGE,
    SWAP,
    RETARGET,
    DROP_DEP,
    MOVE_BLOCK,
    GROW,
    FLIP_KIND,
    ORDINAL,
    CHANNEL,
    SPACE,
    REV,
    WEIGHT,
    INDEX,
    NMUTATIONS
};

static const char *const names[NMUTATIONS] = {
    [DROP_STEP] = "drop step",
    [DROP_MESSAGE] = "drop message",
    [DUPLICATE_STEP] = "duplicate step",
    [DUPLICATE_MESSAGE] = "duplicate message",
    [SWAP] = "swap",
    [RETARGET] = "retarget",
    [DROP_DEP] = "drop dep",
    [MOVE_BLOCK] = "move block",
    [GROW] = "grow",
    [FLIP_KIND] = "flip kind",
    [ORDINAL] = "ordinal",
    [CHANNEL] = "channel",
    [SPACE] = "space",
    [REV] = "rev",
    [WEIGHT] = "weight",
    [INDEX] = "index",
};

/* What is known of a mutant. */
enum verdict { NO_MUTANT, MUST_FAIL, MAY_PASS };

static int is_recv(const struct bny_step *s)
{
    return s->kind == BNY_RECV_ADD || s->kind == BNY_RECV_COPY;
}

static void *copy_of(const void *src, size_t bytes)
{
    void *dst = src ? malloc(bytes + 64) : NULL; /* room for a duplicated step */

    if (dst)
        memcpy(dst, src, bytes);
    return dst;
}

static void clone_set(struct program_set *to, const struct program_set *from)
{
    *to = *from;
    for (int r = 0; r < from->n; r++) {
        const struct bny_program *p = from->p[r];
        struct bny_program *q = copy_of(p, sizeof *p);

        q->weight_num = copy_of(p->weight_num, p->nblocks * sizeof *p->weight_num);
        q->weight_den = copy_of(p->weight_den, p->nblocks * sizeof *p->weight_den);
        q->steps = copy_of(p->steps, p->nsteps * sizeof *p->steps);
        q->deps = malloc((p->ndeps + p->nsteps + 64) * sizeof *p->deps);
        memcpy(q->deps, p->deps ? p->deps : (uint32_t[1]){ 0 }, p->ndeps * sizeof *p->deps);
        q->recv_first = copy_of(p->recv_first, ((size_t)p->nranks + 1) * sizeof *p->recv_first);
        q->recv_of = copy_of(p->recv_of, p->nsteps * sizeof *p->recv_of);
        to->p[r] = q;
    }
}

/* Ordinals and receive index from the steps' order. */
static void renumber(struct bny_program *p)
{
    uint32_t sent[SET_MAX_RANKS] = { 0 }, received[SET_MAX_RANKS] = { 0 };

    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].peer >= 0)
            p->steps[i].ordinal =
                is_recv(&p->steps[i]) ? received[p->steps[i].peer]++ : sent[p->steps[i].peer]++;
    for (int r = 0; r < p->nranks; r++)
        p->recv_first[r + 1] = p->recv_first[r] + received[r];
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (is_recv(&p->steps[i]))
            p->recv_of[p->recv_first[p->steps[i].peer] + p->steps[i].ordinal] = i;
}

/* Moves references to steps: old index i becomes to[i]; UINT32_MAX: gone, with dependencies on
 * it. */
static void remap(struct bny_program *p, const uint32_t *to)
{
    for (uint32_t i = 0; i < p->nsteps; i++) {
        struct bny_step *s = &p->steps[i];
        uint32_t kept = 0;

        if (s->from != UINT32_MAX)
            s->from = to[s->from];
        for (uint32_t d = 0; d < s->ndeps; d++)
            if (to[p->deps[s->dep + d]] != UINT32_MAX)
                p->deps[s->dep + kept++] = to[p->deps[s->dep + d]];
        s->ndeps = kept;
    }
}

static void drop(struct bny_program *p, uint32_t at)
{
    uint32_t to[4096];

    for (uint32_t i = 0; i < p->nsteps; i++)
        to[i] = i < at ? i : i == at ? UINT32_MAX : i - 1;
    memmove(p->steps + at, p->steps + at + 1, (p->nsteps - at - 1) * sizeof *p->steps);
    p->nsteps--;
    remap(p, to);
}

/* The copy follows at once and waits for the original, so that memory alone does not give it
 * away. */
static void duplicate(struct bny_program *p, uint32_t at)
{
    uint32_t to[4096];
    struct bny_step *steps = realloc(p->steps, (p->nsteps + 1) * sizeof *steps);
    struct bny_step *s;

    p->steps = steps;
    p->recv_of = realloc(p->recv_of, (p->nsteps + 1) * sizeof *p->recv_of);
    for (uint32_t i = 0; i < p->nsteps; i++)
        to[i] = i <= at ? i : i + 1;
    remap(p, to);
    memmove(steps + at + 1, steps + at, (p->nsteps - at) * sizeof *steps);
    p->nsteps++;
    s = &steps[at + 1];
    memcpy(p->deps + p->ndeps, p->deps + s->dep, s->ndeps * sizeof *p->deps);
    s->dep = p->ndeps;
    p->deps[s->dep + s->ndeps++] = at;
    p->ndeps += s->ndeps;
}

static void swap(struct bny_program *p, uint32_t at)
{
    uint32_t to[4096];
    struct bny_step s = p->steps[at];

    for (uint32_t i = 0; i < p->nsteps; i++)
        to[i] = i;
    to[at] = at + 1;
    to[at + 1] = at;
    p->steps[at] = p->steps[at + 1];
    p->steps[at + 1] = s;
    remap(p, to);
}

/* The step at the other end, before any change. */
static uint32_t other_end(const struct program_set *set, int rank, uint32_t i)
{
    const struct bny_step *s = &set->p[rank]->steps[i];
    const struct bny_program *q = set->p[s->peer];

    for (uint32_t j = 0; j < q->nsteps; j++)
        if (q->steps[j].peer == rank && q->steps[j].ordinal == s->ordinal &&
            is_recv(&q->steps[j]) != is_recv(s))
            return j;
    cr_assert_fail("%s: rank %d step %u has no other end", set->name, rank, i);
    return 0;
}

static enum verdict swap_neighbours(struct bny_program *p, uint32_t at)
{
    const struct bny_step *a = &p->steps[at], *b = a + 1;
    int same_lane = a->peer >= 0 && a->peer == b->peer && is_recv(a) == is_recv(b);
    int waits = 0;

    if (at + 1 == p->nsteps)
        return NO_MUTANT;
    for (uint32_t d = 0; d < b->ndeps; d++)
        waits |= p->deps[b->dep + d] == at;
    swap(p, at);
    return waits || same_lane ? MUST_FAIL : MAY_PASS;
}

static enum verdict change_place(struct program_set *set, int r, uint32_t i, enum mutation m)
{
    struct bny_program *p = set->p[r];
    int peer = p->steps[i].peer, both = m == DROP_MESSAGE || m == DUPLICATE_MESSAGE;
    void (*change)(struct bny_program *, uint32_t) =
        m == DROP_STEP || m == DROP_MESSAGE ? drop : duplicate;
    enum verdict verdict = MUST_FAIL;

    if (both && peer < 0)
        return NO_MUTANT;
    if (both) {
        change(set->p[peer], other_end(set, r, i));
        renumber(set->p[peer]);
    }
    if (m == SWAP)
        verdict = swap_neighbours(p, i);
    else
        change(p, i);
    renumber(p);
    return verdict;
}

static void flip_kind(struct bny_step *s)
{
    switch (s->kind) {
    case BNY_RECV_ADD:
        s->kind = BNY_RECV_COPY;
        s->src = BNY_NOWHERE;
        s->flags = 0;
        break;
    case BNY_RECV_COPY:
        s->kind = BNY_RECV_ADD;
        s->src = s->dst;
        s->flags = 0;
        break;
    case BNY_SEND:
        s->kind = BNY_RECV_COPY;
        s->dst = s->src == BNY_IN ? BNY_OUT : s->src;
        s->src = BNY_NOWHERE;
        break;
    case BNY_KEEP: s->kind = BNY_FORWARD; break;
    default: s->kind = BNY_KEEP; s->dst = s->src;
    }
}

static int change_space(struct bny_step *s, uint64_t *rng)
{
    uint8_t *space = s->dst == BNY_NOWHERE || (s->src != BNY_NOWHERE && bny_rng_below(rng, 2))
                         ? &s->src
                         : &s->dst;
    uint8_t old = *space;

    *space = (uint8_t)bny_rng_below(rng, BNY_NOWHERE);
    return *space != old;
}

static int promises_order(const struct bny_program *p)
{
    return !strcmp(p->schedule, "recursive_doubling") || !strcmp(p->schedule, "chain") ||
           !strcmp(p->schedule, "linear_reduce") ||
           (!strcmp(p->schedule, "linear") && p->collective == BNY_ALLREDUCE);
}

static enum verdict drop_dep(struct bny_program *p, struct bny_step *s, uint64_t *rng)
{
    uint32_t k;

    if (!s->ndeps)
        return NO_MUTANT;
    k = s->dep + (uint32_t)bny_rng_below(rng, s->ndeps);
    p->deps[k] = p->deps[s->dep + --s->ndeps];
    return p->collective == BNY_BARRIER && (p->nranks & (p->nranks - 1)) ? MAY_PASS : MUST_FAIL;
}

static enum verdict change_peer(struct bny_program *p, struct bny_step *s, uint64_t *rng)
{
    if (p->nranks < 3)
        return NO_MUTANT;
    s->peer = (s->peer + 1 + (int)bny_rng_below(rng, (uint64_t)p->nranks - 1)) % p->nranks;
    if (s->peer != p->rank)
        renumber(p);
    return MUST_FAIL;
}

static enum verdict change_member(struct bny_program *p, uint32_t i, enum mutation m,
                                  uint64_t *rng)
{
    struct bny_step *s = &p->steps[i];

    if (s->peer < 0 && (m == RETARGET || m == ORDINAL || m == CHANNEL || m == INDEX))
        return NO_MUTANT;
    switch (m) {
    case RETARGET: return change_peer(p, s, rng);
    case DROP_DEP: return drop_dep(p, s, rng);
    case MOVE_BLOCK:
        if (p->nblocks == 1)
            return NO_MUTANT;
        s->block = (s->block + 1 + (uint32_t)bny_rng_below(rng, p->nblocks - 1)) % p->nblocks;
        return MUST_FAIL;
    case GROW: s->nblocks++; return MUST_FAIL;
    case FLIP_KIND:
        flip_kind(s);
        renumber(p);
        return MUST_FAIL;
    case ORDINAL: s->ordinal += 1 + (uint32_t)bny_rng_below(rng, 3); return MUST_FAIL;
    case CHANNEL:
        s->chan =
            (uint8_t)((s->chan + 1 + bny_rng_below(rng, BNY_CHANNELS)) % (BNY_CHANNELS + 1));
        return MUST_FAIL;
    case SPACE:
        if (!change_space(s, rng))
            return NO_MUTANT;
        return p->collective == BNY_ALLGATHER || p->collective == BNY_SCAN ||
                       p->collective == BNY_BARRIER
                   ? MAY_PASS
                   : MUST_FAIL;
    case REV:
        s->flags ^= BNY_STEP_REV;
        return s->kind != BNY_RECV_ADD || promises_order(p) ? MUST_FAIL : MAY_PASS;
    case WEIGHT:
        if (!p->weight_num || p->nranks == 1)
            return NO_MUTANT;
        p->weight_num[s->block]++;
        return MUST_FAIL;
    default: /* INDEX */
        if (!is_recv(s))
            return NO_MUTANT;
        p->recv_of[p->recv_first[s->peer] + s->ordinal] ^= 1;
        return MUST_FAIL;
    }
}

struct tally {
    int made, rejected;
};

static enum verdict mutate(struct program_set *set, enum mutation m, uint64_t *rng)
{
    int r = (int)bny_rng_below(rng, (uint64_t)set->n);
    struct bny_program *p = set->p[r];
    uint32_t i;

    if (!p->nsteps)
        return NO_MUTANT;
    i = (uint32_t)bny_rng_below(rng, p->nsteps);
    return m <= SWAP ? change_place(set, r, i, m) : change_member(p, i, m, rng);
}

static void try_mutant(const struct program_set *good, uint64_t seed, struct tally *tally)
{
    uint64_t rng = seed;
    enum mutation m = (enum mutation)bny_rng_below(&rng, NMUTATIONS);
    int slots = (int[]){ 0, 1, 2 }[bny_rng_below(&rng, 3)];
    struct program_set bad;
    enum verdict verdict;
    char why[256] = "";

    clone_set(&bad, good);
    verdict = mutate(&bad, m, &rng);
    if (verdict != NO_MUTANT) {
        int e = bny_program_verify(bad.p, bad.n, slots, why, sizeof why);

        tally[m].made++;
        tally[m].rejected += e != 0;
        cr_assert(e == 0 || (e == -BANYAN_EINVAL && why[0]));
        cr_expect(e || verdict == MAY_PASS, "%s: mutant '%s' of seed %llu with %d slots passes",
                  good->name, names[m], (unsigned long long)seed, slots);
    }
    program_set_free(&bad);
}

static uint64_t test_seed(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");

    return text ? strtoull(text, NULL, 0) : 20260707;
}

Test(program_mutants, faults_are_found)
{
    static const int ranks[] = { 2, 3, 4, 5, 6, 7, 8, 9, 12 };
    struct tally tally[NMUTATIONS] = { { 0 } };
    struct program_kind kind;
    uint64_t rng = test_seed();
    int nkinds = 0, made = 0;

    cr_log_info("seed %llu\n", (unsigned long long)rng);
    while (program_kind_at(nkinds, &kind))
        nkinds++;
    for (int k = 0; k < nkinds; k++)
        for (int x = 0; x < 9; x++) {
            struct program_set good;
            int n = ranks[x], root = 0;

            program_kind_at(k, &kind);
            if (program_kind_rooted(&kind))
                root = (int)bny_rng_below(&rng, (uint64_t)n);
            if (program_set_build(&good, &kind, n, root))
                continue;
            for (int i = 0; i < NMUTANTS / (nkinds * 9); i++)
                try_mutant(&good, bny_rng_next(&rng), tally);
            program_set_free(&good);
        }
    for (int m = 0; m < NMUTATIONS; m++) {
        made += tally[m].made;
        cr_log_info("%-18s %5d made %5d rejected %4d pass\n", names[m], tally[m].made,
                    tally[m].rejected, tally[m].made - tally[m].rejected);
        cr_assert(tally[m].made >= 50 && tally[m].rejected > 0, "%s", names[m]);
    }
    cr_assert_geq(made, 10000);
}

/* Without its scratch the exchange of two ranks adds into the memory that is still being sent:
 * right with a buffer, a deadlock by rendezvous. */
Test(program_mutants, exchange_in_place_needs_a_buffer)
{
    struct program_set s = { .n = 2 };
    char why[256];

    for (int r = 0; r < 2; r++) {
        struct bny_writer w;

        bny_writer_init(&w, "in_place", BNY_ALLREDUCE, 2, r, -1, 1, 1);
        bny_writer_step(&w, BNY_SEND, !r, BNY_IN, BNY_NOWHERE, 0, 0);
        bny_writer_step(&w, BNY_RECV_ADD, !r, BNY_IN, BNY_OUT, 0, r ? BNY_STEP_REV : 0);
        bny_writer_step(&w, BNY_KEEP, -1, BNY_OUT, BNY_OUT, 0, 0);
        cr_assert_eq(bny_writer_finish(&w, &s.p[r]), 0);
    }
    cr_assert_eq(bny_program_verify(s.p, 2, 1, why, sizeof why), 0, "%s", why);
    cr_assert_eq(bny_program_verify(s.p, 2, 0, why, sizeof why), -BANYAN_EINVAL);
    cr_assert_not_null(strstr(why, "waits for ever"), "%s", why);
    program_set_free(&s);
}

/* exscan with its two receives the other way round: right while IN and OUT are apart, but in
 * place the prefix has overwritten the operand that is to be added to it. */
Test(program_mutants, in_place_is_proven_too)
{
    struct program_set s = { .n = 3 };
    char why[256];

    for (int r = 0; r < 3; r++) {
        struct bny_writer w;

        bny_writer_init(&w, "in_place", BNY_EXSCAN, 3, r, -1, 1, 1);
        if (r)
            bny_writer_step(&w, BNY_RECV_COPY, r - 1, BNY_NOWHERE, BNY_OUT, 0, 0);
        if (r == 1)
            bny_writer_step(&w, BNY_RECV_ADD, 0, BNY_IN, BNY_SCRATCH, 0, BNY_STEP_REV);
        if (r == 0)
            bny_writer_step(&w, BNY_SEND, 1, BNY_IN, BNY_NOWHERE, 0, 0);
        if (r < 2)
            bny_writer_step(&w, BNY_SEND, r + 1, r ? BNY_SCRATCH : BNY_IN, BNY_NOWHERE, 0, 0);
        cr_assert_eq(bny_writer_finish(&w, &s.p[r]), 0);
    }
    cr_assert_eq(bny_program_verify(s.p, 3, 1, why, sizeof why), -BANYAN_EINVAL);
    cr_assert_not_null(strstr(why, "adds a rank's operand twice"), "%s", why);
    program_set_free(&s);
}

/* Two ranks that both receive before they send. */
Test(program_mutants, receiving_first_on_all_ranks_is_a_deadlock)
{
    struct program_set s = { .n = 2 };
    char why[256];

    for (int r = 0; r < 2; r++) {
        cr_assert_eq(bny_direct_find("dissemination")->build(&s.p[r], BNY_BARRIER, 2, r, -1),
                     0);
        swap(s.p[r], 0);
        renumber(s.p[r]);
    }
    cr_assert_eq(bny_program_verify(s.p, 2, 8, why, sizeof why), -BANYAN_EINVAL);
    cr_assert_not_null(strstr(why, "in program order"), "%s", why);
    program_set_free(&s);
}
