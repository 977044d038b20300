/* SPDX-License-Identifier: BSD-3-Clause */
/* V1: symbolic execution. A value is what one block of one memory holds: a sum, which is a
 * rank's operand or the addition of two sums. Equal sums are one (they are interned), so a
 * value is a number, a message copies a number, and equal numbers mean the same operands in the
 * same association: the same bits. A later check finds an operand that is twice in a sum, once
 * for each sum that is part of no other. The programs run rank by rank in program order over
 * unbounded buffers; V2 has shown that steps which may run concurrently do not meet in memory,
 * so every other order gives the same. */
#include <stdlib.h>
#include <string.h>

#include "collectives/program/verify.h"

#define UNDEFINED 0u
#define FINISHED  1u /* bit of a value; the others are the number of its sum */

struct sum {
    uint32_t left, right;    /* the sums in it, in order; left 0: a rank's operand */
    uint32_t ident;          /* which data: block, or sender * n + receiver (alltoall) */
    uint32_t count;          /* operands in it, at most n */
    int32_t lowest, highest; /* ranks in it */
    uint32_t made_by;        /* the addition: a step of all ranks' */
    uint8_t ordered;         /* every sum in it had only lower ranks on the left */
    uint8_t
        disjoint; /* no rank's operand is in it twice; known for what check_disjoint has seen */
};

struct run {
    const struct bny_proof *v;
    int in_place; /* IN == OUT */
    uint32_t nblocks;
    uint32_t *values; /* cells [n][4][nblocks], then one for each block of each step */
    size_t *made;     /* [nsteps] a step's first value: what it sent, received or kept */
    struct sum *sums; /* from 1: first a place for each operand of each rank */
    uint32_t nsums, cap;
    uint32_t first_made; /* from here on additions */
    uint32_t *table; /* of additions by content, a power of two, at most half full; 0: free */
    uint32_t mask;
    uint64_t *heard; /* of a barrier, see hear() */
    size_t words;    /* of a set of ranks */
};

static uint64_t verify_values_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9e3779b97f4a7c15u + (b ^ 0x632be59bd9b4e019u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- sums ---- */

/* The place of an addition in the table. */
static uint32_t verify_values_place_of(const struct run *x, const struct sum *s)
{
    uint32_t at = (uint32_t)verify_values_mix(s->left, s->right) & x->mask;

    for (; x->table[at]; at = (at + 1) & x->mask) {
        const struct sum *t = &x->sums[x->table[at]];

        if (t->left == s->left && t->right == s->right)
            break;
    }
    return at;
}

static int verify_values_grow(struct run *x, uint32_t cap)
{
    struct sum *sums = realloc(x->sums, cap * sizeof *sums);
    uint32_t size = 16, *table;

    while (size < 2 * (uint64_t)(cap - x->first_made) && size < 1u << 31)
        size *= 2;
    table = calloc(size, sizeof *table);
    if (sums)
        x->sums = sums;
    if (!sums || !table || cap > 1u << 30) { /* a value has 31 bits for it */
        free(table);
        return bny_proof_no_memory(x->v);
    }
    free(x->table);
    x->table = table;
    x->mask = size - 1;
    x->cap = cap;
    for (uint32_t i = x->first_made; i < x->nsums; i++)
        table[verify_values_place_of(x, &x->sums[i])] = i;
    return 0;
}

/* The number of the addition s, which may be there already, as `guess` if that is not 0; *e: no
 * memory. */
static uint32_t intern(struct run *x, const struct sum *s, uint32_t guess, int *e)
{
    uint32_t at;

    if (guess && x->sums[guess].left == s->left && x->sums[guess].right == s->right)
        return guess;
    if (x->nsums == x->cap && (*e = verify_values_grow(x, 2 * x->cap)) != 0)
        return 0;
    at = verify_values_place_of(x, s);
    if (!x->table[at]) {
        x->sums[x->nsums] = *s;
        x->table[at] = x->nsums++;
    }
    return x->table[at];
}

/* Marks what is part of the sum; 0 when a rank is in it twice. seen[n] has ranks already met:
 * stamp. */
static int visit(struct run *x, uint32_t sum, uint32_t *seen, uint32_t stamp, uint32_t *stack)
{
    uint32_t top = 0;

    stack[top++] = sum;
    while (top) { /* waiting sums are disjoint parts of one of at most n operands, so n places
                     suffice */
        struct sum *s = &x->sums[stack[--top]];

        if (!s->left) {
            if (seen[s->lowest] == stamp)
                return 0;
            seen[s->lowest] = stamp;
            continue;
        }
        s->disjoint = 1;
        stack[top++] = s->right;
        stack[top++] = s->left;
    }
    return 1;
}

/* Later sums hold earlier ones, so most are marked before their turn. */
static int check_disjoint(struct run *x)
{
    uint32_t *seen = calloc(2 * (size_t)x->v->n + 1, sizeof *seen), *stack = seen + x->v->n,
             stamp = 0, bad = 0;
    int rank = 0;

    if (!seen)
        return bny_proof_no_memory(x->v);
    for (uint32_t i = x->nsums; i-- > x->first_made && !bad;)
        if (!x->sums[i].disjoint && !visit(x, i, seen, ++stamp, stack))
            bad = i;
    while (bad) { /* the smallest one */
        const struct sum *s = &x->sums[bad];

        if (!visit(x, s->left, seen, ++stamp, stack))
            bad = s->left;
        else if (!visit(x, s->right, seen, ++stamp, stack))
            bad = s->right;
        else
            break;
    }
    free(seen);
    if (!bad)
        return 0;
    while (x->v->base[rank + 1] <= x->sums[bad].made_by)
        rank++;
    return bny_proof_fail(x->v, "rank %d step %u adds a rank's operand twice", rank,
                          x->sums[bad].made_by - x->v->base[rank]);
}

/* ---- steps ---- */

static size_t cell(const struct run *x, int rank, unsigned space, uint32_t block)
{
    if (x->in_place && space == BNY_OUT)
        space = BNY_IN;
    return ((size_t)rank * 4 + space) * x->nblocks + block;
}

static const struct sum *sum_of(const struct run *x, uint32_t value)
{
    return &x->sums[value >> 1];
}

/* The same operand in two places (alltoall) is one. */
static void set_own(struct run *x, int rank, unsigned space, uint32_t block, uint32_t ident)
{
    uint32_t operand =
        x->v->p[rank]->collective == BNY_ALLTOALL ? block % (uint32_t)x->v->n : block;
    uint32_t id = 1 + (uint32_t)rank * x->nblocks + operand;

    x->sums[id] = (struct sum){
        .ident = ident, .count = 1, .lowest = rank, .highest = rank, .ordered = 1
    };
    x->values[cell(x, rank, space, block)] = id << 1;
}

static void set_inputs(struct run *x, int rank)
{
    const struct bny_program *p = x->v->p[rank];
    uint32_t n = (uint32_t)x->v->n, me = (uint32_t)rank;

    for (uint32_t b = 0; b < x->nblocks; b++) {
        switch (p->collective) {
        case BNY_BROADCAST:
            if (rank == p->root)
                set_own(x, rank, BNY_OUT, b, b);
            break;
        case BNY_SCATTER:
            if (rank == p->root)
                set_own(x, rank, BNY_IN, b, b);
            break;
        case BNY_ALLGATHER:
        case BNY_GATHER:
            if (bny_block_owner(p, b) == me)
                set_own(x, rank, BNY_IN, b, b);
            break;
        case BNY_ALLTOALL: /* block n + rank of IN is the same memory as block rank */
            if (b < n || b == n + me)
                set_own(x, rank, BNY_IN, b, me * n + b % n);
            break;
        default: /* a rank that does not take part has nothing there: to read it is found */
            if (!p->present || p->present[rank])
                set_own(x, rank, BNY_IN, b, b);
        }
    }
}

/* The ranks that a full sum has. */
static void all_parts(const struct bny_program *p, int *lowest, int *highest, uint32_t *count)
{
    *lowest = 0;
    *highest = p->nranks - 1;
    *count = (uint32_t)p->nranks;
    if (!p->present)
        return;
    *count = 0;
    for (int r = p->nranks; r-- > 0;)
        if (p->present[r] && ++*count)
            *lowest = r;
    for (int r = 0; r < p->nranks; r++)
        if (p->present[r])
            *highest = r;
}

/* Reductions divide for AVG in KEEP, and with a lossy codec the kept value is what all must
 * have. An allgather's own block may leave from IN (exact codecs: the same bits) or by FORWARD
 * of KEEP, elsewhere KEEP copies. */
static int finishes(const struct bny_program *p)
{
    return p->collective < BNY_ALLGATHER;
}

/* check_disjoint checks that they are all different. */
static int is_full(const struct run *x, uint32_t value, int lowest, int highest, uint32_t count)
{
    const struct sum *s = sum_of(x, value);

    return value != UNDEFINED && s->lowest == lowest && s->highest == highest &&
           s->count == count;
}

/* dst = left (op) right, values in cells; msg is where the received one is. */
static int verify_values_add(struct run *x, int rank, uint32_t i, uint32_t k)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    uint32_t g = x->v->base[rank] + i;
    uint32_t here = x->values[cell(x, rank, s->src, s->block + k)],
             there = x->values[x->made[x->v->match[g]] + k];
    int rev = s->flags & BNY_STEP_REV, e = 0;
    const struct sum *a = sum_of(x, rev ? there : here), *b = sum_of(x, rev ? here : there);
    struct sum both;
    uint32_t *made;

    if (here == UNDEFINED || there == UNDEFINED || a->ident != b->ident)
        return bny_proof_fail(x->v, "rank %d step %u adds different or undefined data", rank,
                              i);
    if ((here | there) & FINISHED)
        return bny_proof_fail(x->v, "rank %d step %u adds to a finished result", rank, i);
    if (a->count + b->count > (uint32_t)x->v->n)
        return bny_proof_fail(x->v, "rank %d step %u adds a rank's operand twice", rank, i);
    both = (struct sum){
        .left = (rev ? there : here) >> 1,
        .right = (rev ? here : there) >> 1,
        .ident = a->ident,
        .count = a->count + b->count,
        .lowest = a->lowest < b->lowest ? a->lowest : b->lowest,
        .highest = a->highest > b->highest ? a->highest : b->highest,
        .made_by = g,
        .ordered = a->ordered && b->ordered && a->highest < b->lowest,
    };
    made = &x->values[x->made[g] + k]; /* of the run before, where there was one */
    *made = x->values[cell(x, rank, s->dst, s->block + k)] = intern(x, &both, *made >> 1, &e)
                                                             << 1;
    return e;
}

static int verify_values_keep(struct run *x, int rank, uint32_t i, uint32_t k)
{
    const struct bny_program *p = x->v->p[rank];
    const struct bny_step *s = &p->steps[i];
    size_t to = cell(x, rank, s->dst, s->block + k), from = cell(x, rank, s->src, s->block + k);
    uint32_t value = x->values[from];
    int reduces = p->collective == BNY_ALLREDUCE || p->collective == BNY_REDUCE ||
                  p->collective == BNY_REDUCE_SCATTER;
    int lowest, highest;
    uint32_t count;

    all_parts(p, &lowest, &highest, &count);
    if (value & FINISHED)
        return bny_proof_fail(x->v, "rank %d step %u finishes twice", rank, i);
    if (reduces && !is_full(x, value, lowest, highest, count))
        return bny_proof_fail(x->v, "rank %d step %u finishes an incomplete sum", rank, i);
    if (to != from && (x->values[to] | FINISHED) == (value | FINISHED))
        return bny_proof_fail(x->v, "rank %d step %u copies what is there already", rank, i);
    value |= finishes(p) ? FINISHED : 0;
    x->values[to] = x->values[x->made[x->v->base[rank] + i] + k] = value;
    return 0;
}

static int send(struct run *x, int rank, uint32_t i, uint32_t k)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    uint32_t value = x->values[cell(x, rank, s->src, s->block + k)];

    x->values[x->made[x->v->base[rank] + i] + k] = value;
    if (s->kind == BNY_FORWARD && value != x->values[x->made[x->v->base[rank] + s->from] + k])
        return bny_proof_fail(x->v, "rank %d step %u forwards other data than its operand",
                              rank, i);
    if (value >> 1 == UNDEFINED)
        return bny_proof_fail(x->v, "rank %d step %u sends undefined data", rank, i);
    if (x->v->p[rank]->present && !x->v->p[rank]->present[rank] && !(value & FINISHED))
        return bny_proof_fail(x->v, "rank %d step %u: who does not take part sends a sum", rank,
                              i);
    return 0;
}

static int receive(struct run *x, int rank, uint32_t i, uint32_t k)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    uint32_t g = x->v->base[rank] + i, *to = &x->values[cell(x, rank, s->dst, s->block + k)];
    uint32_t value = x->values[x->made[x->v->match[g]] + k];

    if (*to == value)
        return bny_proof_fail(x->v, "rank %d step %u receives what it has already", rank, i);
    *to = x->values[x->made[g] + k] = value;
    return 0;
}

static int execute(void *of, int rank, uint32_t i)
{
    struct run *x = of;
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    int e = 0;

    for (uint32_t k = 0; k < s->nblocks && !e; k++) {
        switch (s->kind) {
        case BNY_RECV_ADD: e = verify_values_add(x, rank, i, k); break;
        case BNY_RECV_COPY: e = receive(x, rank, i, k); break;
        case BNY_KEEP: e = verify_values_keep(x, rank, i, k); break;
        default: e = send(x, rank, i, k);
        }
    }
    return e;
}

/* A barrier moves no data: a message carries all that its sender had waited for when it was
 * sent. heard has a set of ranks for each step, and after these one for each rank: all that it
 * has heard. */
static int verify_values_hear(void *of, int rank, uint32_t i)
{
    struct run *x = of;
    const struct bny_program *p = x->v->p[rank];
    const struct bny_step *s = &p->steps[i];
    uint32_t base = x->v->base[rank], g = base + i;
    uint64_t *heard = x->heard + g * x->words;
    uint64_t *all = x->heard + (x->v->nsteps + (size_t)rank) * x->words;
    int news = 0;

    if (s->kind != BNY_SEND && s->kind != BNY_RECV_COPY)
        return bny_proof_fail(x->v, "rank %d step %u has no place in a barrier", rank, i);
    heard[rank / 64] |= 1ull << rank % 64;
    for (uint32_t d = 0; d < s->ndeps; d++)
        for (size_t w = 0; w < x->words; w++)
            heard[w] |= x->heard[(base + p->deps[s->dep + d]) * x->words + w];
    for (size_t w = 0; w < x->words; w++) {
        if (bny_step_is_recv(s))
            heard[w] |= x->heard[x->v->match[g] * x->words + w];
        news |= (heard[w] & ~all[w]) != 0;
        all[w] |= heard[w];
    }
    if (bny_step_is_recv(s) && !news)
        return bny_proof_fail(x->v, "rank %d step %u hears nothing new", rank, i);
    return 0;
}

/* The collective's promise for OUT. */
struct promise {
    int given; /* 0: nothing in this block */
    uint32_t ident;
    int lowest, highest; /* the ranks in it */
    uint32_t count;      /* so many of them */
};

static struct promise promised(const struct bny_program *p, uint32_t b)
{
    int last, me = p->rank, at = (int)bny_block_owner(p, b), first;
    uint32_t count;

    all_parts(p, &first, &last, &count);
    switch (p->collective) {
    case BNY_ALLREDUCE: return (struct promise){ 1, b, first, last, count };
    case BNY_REDUCE: return (struct promise){ me == p->root, b, first, last, count };
    case BNY_REDUCE_SCATTER: return (struct promise){ at == me, b, first, last, count };
    case BNY_BROADCAST: return (struct promise){ 1, b, p->root, p->root, 1 };
    case BNY_ALLGATHER: return (struct promise){ 1, b, at, at, 1 };
    case BNY_GATHER: return (struct promise){ me == p->root, b, at, at, 1 };
    case BNY_SCATTER: return (struct promise){ at == me, b, p->root, p->root, 1 };
    case BNY_ALLTOALL:
        at -= p->nranks;
        return (struct promise){ at >= 0, (uint32_t)(at * p->nranks + me), at, at, 1 };
    case BNY_SCAN: return (struct promise){ 1, b, 0, me, (uint32_t)me + 1 };
    case BNY_EXSCAN: return (struct promise){ me > 0, b, 0, me - 1, (uint32_t)me };
    default: return (struct promise){ 0, 0, 0, 0, 0 };
    }
}

static int check_result(const struct run *x, int rank, uint32_t b)
{
    const struct bny_program *p = x->v->p[rank];
    uint32_t out = x->values[cell(x, rank, BNY_OUT, b)];
    struct promise want = promised(p, b);
    int ordered =
        p->collective == BNY_SCAN || p->collective == BNY_EXSCAN ||
        !strcmp(p->schedule, "linear_reduce") || !strcmp(p->schedule, "recursive_doubling") ||
        (!strcmp(p->schedule, "linear") && (p->collective == BNY_ALLREDUCE || p->present));

    if (!want.given)
        return 0;
    if (sum_of(x, out)->ident != want.ident ||
        !is_full(x, out, want.lowest, want.highest, want.count))
        return bny_proof_fail(x->v, "rank %d ends with a wrong or incomplete block %u", rank,
                              b);
    if (finishes(p) && !(out & FINISHED))
        return bny_proof_fail(x->v, "rank %d ends with an unfinished block %u", rank, b);
    if (ordered && !sum_of(x, out)->ordered)
        return bny_proof_fail(x->v, "rank %d ends with block %u added out of order", rank, b);
    if (p->collective == BNY_ALLREDUCE && out != x->values[cell(x, 0, BNY_OUT, b)])
        return bny_proof_fail(x->v, "ranks 0 and %d associate block %u differently", rank, b);
    return 0;
}

static int run_variant(struct run *x)
{
    int e, twice;

    memset(x->values, 0,
           (size_t)x->v->n * 4 * x->nblocks *
               sizeof *x->values); /* the others are written before they are read */
    for (int r = 0; r < x->v->n; r++)
        set_inputs(x, r);
    e = bny_proof_run(x->v, execute, x);
    for (int r = 0; r < x->v->n && !e; r++)
        for (uint32_t b = 0; b < x->nblocks && !e; b++)
            e = check_result(x, r, b);
    twice = check_disjoint(x); /* the cause, where there are both */
    return twice ? twice : e;
}

/* Values of all steps: fills made. *most: sums that right programs make at most. */
static size_t count_values(struct run *x, size_t *most)
{
    const struct bny_proof *v = x->v;
    size_t nvalues = (size_t)v->n * 4 * x->nblocks;

    *most = (size_t)v->n * x->nblocks + 2;
    for (int r = 0; r < v->n; r++)
        for (uint32_t i = 0; i < v->p[r]->nsteps; i++) {
            x->made[v->base[r] + i] = nvalues;
            nvalues += v->p[r]->steps[i].nblocks;
            *most += v->p[r]->steps[i].kind == BNY_RECV_ADD ? v->p[r]->steps[i].nblocks : 0;
        }
    return nvalues;
}

static int run_sums(struct run *x)
{
    size_t most, nvalues = count_values(x, &most);
    int e;

    x->first_made = x->nsums = 1 + (uint32_t)x->v->n * x->nblocks;
    x->values = calloc(nvalues, sizeof *x->values);
    e = x->values ? verify_values_grow(x, most < UINT32_MAX ? (uint32_t)most : UINT32_MAX)
                  : bny_proof_no_memory(x->v);
    for (x->in_place = 0; x->in_place < 2 && !e; x->in_place++)
        e = run_variant(x);
    free(x->values);
    free(x->sums);
    free(x->table);
    return e;
}

static int run_barrier(struct run *x)
{
    int e;

    x->words = (size_t)(x->v->n + 63) / 64;
    x->heard = calloc(((size_t)x->v->nsteps + (size_t)x->v->n) * x->words, sizeof *x->heard);
    e = x->heard ? bny_proof_run(x->v, verify_values_hear, x) : bny_proof_no_memory(x->v);
    for (int r = 0; r < x->v->n && !e && x->v->n > 1; r++)
        for (int from = 0; from < x->v->n && !e; from++)
            if (!(x->heard[(x->v->nsteps + (size_t)r) * x->words + (size_t)from / 64] >>
                      from % 64 &
                  1))
                e = bny_proof_fail(x->v, "rank %d leaves the barrier before all have entered",
                                   r);
    free(x->heard);
    return e;
}

int bny_prove_values(const struct bny_proof *v)
{
    struct run x = {
        .v = v,
        .nblocks = v->p[0]->nblocks,
        .made = malloc(((size_t)v->nsteps + 1) * sizeof *x.made),
    };
    int e = x.made ? 0 : bny_proof_no_memory(v);

    if (!e)
        e = v->p[0]->collective == BNY_BARRIER ? run_barrier(&x) : run_sums(&x);
    free(x.made);
    return e;
}
