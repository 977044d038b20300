/* SPDX-License-Identifier: BSD-3-Clause */
/* V1: symbolic execution. A value is what one block of one memory holds: whose operands were
 * added, and in which association. The programs run rank by rank in program order over
 * unbounded buffers; V2 has shown that steps which may run concurrently do not meet in memory,
 * so every other order gives the same. */
#include <stdlib.h>
#include <string.h>

#include "collectives/verify.h"

#define UNDEFINED    UINT32_MAX
#define VALUES_BYTES ((size_t)128 << 20) /* of values at a time */

struct value {
    uint32_t ident; /* which data: block, or sender * n + receiver (alltoall) */
    uint8_t finished; /* went through KEEP where that changes it, see finishes() */
    uint8_t ordered;       /* every sum in it had only lower ranks on the left */
    int32_t lowest, highest; /* ranks in it */
    uint64_t association;  /* hash of the tree of additions: equal means the same bits */
};

struct run {
    const struct bny_proof *v;
    int in_place;     /* IN == OUT */
    size_t words;     /* of a set of ranks */
    uint32_t low, nblocks; /* the blocks of a run: low, low + 1, ...; memory is for these only */
    struct value *values; /* cells [n][4][nblocks], then one for each of these blocks of each step */
    uint64_t *sets;       /* [same][words] */
    size_t *made;         /* [nsteps] a step's first value of the run: what it sent, received or kept */
    uint32_t *done;       /* [n] steps done, the program counter */
    uint32_t from;        /* of the step that runs: its first block in the run. The same at both ends */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9e3779b97f4a7c15u + (b ^ 0x632be59bd9b4e019u);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t cell(const struct run *x, int rank, unsigned space, uint32_t block)
{
    if (x->in_place && space == BNY_OUT)
        space = BNY_IN;
    return ((size_t)rank * 4 + space) * x->nblocks + (block - x->low);
}

static void copy(struct run *x, size_t to, size_t from)
{
    x->values[to] = x->values[from];
    memmove(x->sets + to * x->words, x->sets + from * x->words, x->words * sizeof *x->sets);
}

static int same_sum(const struct run *x, size_t a, size_t b)
{
    return x->values[a].ident == x->values[b].ident &&
           x->values[a].association == x->values[b].association &&
           !memcmp(x->sets + a * x->words, x->sets + b * x->words, x->words * sizeof *x->sets);
}

static int same(const struct run *x, size_t a, size_t b)
{
    return same_sum(x, a, b) && x->values[a].finished == x->values[b].finished;
}

static void set_own(struct run *x, int rank, unsigned space, uint32_t block, uint32_t ident)
{
    size_t c = cell(x, rank, space, block);

    x->values[c] = (struct value){
        .ident = ident,
        .ordered = 1,
        .lowest = rank,
        .highest = rank,
        .association = mix((uint64_t)rank + 1, ident),
    };
    memset(x->sets + c * x->words, 0, x->words * sizeof *x->sets);
    x->sets[c * x->words + (size_t)rank / 64] = 1ull << rank % 64;
}

static void set_inputs(struct run *x, int rank)
{
    const struct bny_program *p = x->v->p[rank];
    uint32_t n = (uint32_t)x->v->n, me = (uint32_t)rank;

    for (uint32_t b = x->low; b < x->low + x->nblocks; b++) {
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
            if (b == me)
                set_own(x, rank, BNY_IN, b, b);
            break;
        case BNY_ALLTOALL: /* block n + rank of IN is the same memory as block rank */
            if (b < n || b == n + me)
                set_own(x, rank, BNY_IN, b, me * n + b % n);
            break;
        default:
            set_own(x, rank, BNY_IN, b, b);
        }
    }
}

/* Reductions divide for AVG in KEEP, and with a lossy codec the kept value is what all must
 * have. An allgather's own block may leave from IN (exact codecs: the same bits) or by FORWARD
 * of KEEP, elsewhere KEEP copies. */
static int finishes(const struct bny_program *p)
{
    return p->collective < BNY_ALLGATHER;
}

static int is_full(const struct run *x, size_t c, int lowest, int highest)
{
    const uint64_t *set = x->sets + c * x->words;

    for (int r = 0; r < x->v->n; r++)
        if ((int)(set[r / 64] >> r % 64 & 1) != (r >= lowest && r <= highest))
            return 0;
    return 1;
}

/* Which of a step's blocks the run has: k from *from to before the result. */
static uint32_t in_run(const struct run *x, const struct bny_step *s, uint32_t *from)
{
    uint32_t end = x->low + x->nblocks;

    *from = s->block < x->low ? x->low - s->block : 0;
    return s->block >= end ? 0 : end - s->block < s->nblocks ? end - s->block : s->nblocks;
}

/* dst = left (op) right, values in cells; msg is where the received one is. */
static int add(struct run *x, int rank, uint32_t i, uint32_t k)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    uint32_t g = x->v->base[rank] + i;
    size_t here = cell(x, rank, s->src, s->block + k), there = x->made[x->v->match[g]] + k - x->from;
    size_t to = cell(x, rank, s->dst, s->block + k);
    int rev = s->flags & BNY_STEP_REV;
    struct value a = x->values[rev ? there : here], b = x->values[rev ? here : there];

    if (a.ident == UNDEFINED || b.ident == UNDEFINED || a.ident != b.ident)
        return bny_proof_fail(x->v, "rank %d step %u adds different or undefined data", rank,
                              i);
    if (a.finished || b.finished)
        return bny_proof_fail(x->v, "rank %d step %u adds to a finished result", rank, i);
    for (size_t w = 0; w < x->words; w++)
        if (x->sets[here * x->words + w] & x->sets[there * x->words + w])
            return bny_proof_fail(x->v, "rank %d step %u adds a rank's operand twice", rank, i);
    for (size_t w = 0; w < x->words; w++)
        x->sets[to * x->words + w] =
            x->sets[here * x->words + w] | x->sets[there * x->words + w];
    x->values[to] = (struct value){
        .ident = a.ident,
        .ordered = a.ordered && b.ordered && a.highest < b.lowest,
        .lowest = a.lowest < b.lowest ? a.lowest : b.lowest,
        .highest = a.highest > b.highest ? a.highest : b.highest,
        .association = mix(a.association, b.association),
    };
    return 0;
}

static int keep(struct run *x, int rank, uint32_t i, uint32_t k)
{
    const struct bny_program *p = x->v->p[rank];
    const struct bny_step *s = &p->steps[i];
    size_t from = cell(x, rank, s->src, s->block + k), to = cell(x, rank, s->dst, s->block + k);
    int reduces = p->collective == BNY_ALLREDUCE || p->collective == BNY_REDUCE ||
                  p->collective == BNY_REDUCE_SCATTER;

    if (x->values[from].finished)
        return bny_proof_fail(x->v, "rank %d step %u finishes twice", rank, i);
    if (reduces && !is_full(x, from, 0, x->v->n - 1))
        return bny_proof_fail(x->v, "rank %d step %u finishes an incomplete sum", rank, i);
    if (to != from && same_sum(x, to, from))
        return bny_proof_fail(x->v, "rank %d step %u copies what is there already", rank, i);
    copy(x, to, from);
    x->values[to].finished = (uint8_t)finishes(p);
    copy(x, x->made[x->v->base[rank] + i] + k - x->from, to);
    return 0;
}

static int send(struct run *x, int rank, uint32_t i, uint32_t k)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    size_t msg = x->made[x->v->base[rank] + i] + k - x->from;

    copy(x, msg, cell(x, rank, s->src, s->block + k));
    if (s->kind == BNY_FORWARD && !same(x, msg, x->made[x->v->base[rank] + s->from] + k - x->from))
        return bny_proof_fail(x->v, "rank %d step %u forwards other data than its operand",
                              rank, i);
    if (x->values[msg].ident == UNDEFINED)
        return bny_proof_fail(x->v, "rank %d step %u sends undefined data", rank, i);
    return 0;
}

static int receive(struct run *x, int rank, uint32_t i, uint32_t k)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    uint32_t g = x->v->base[rank] + i;
    size_t to = cell(x, rank, s->dst, s->block + k), msg = x->made[x->v->match[g]] + k - x->from;

    if (same(x, to, msg))
        return bny_proof_fail(x->v, "rank %d step %u receives what it has already", rank, i);
    copy(x, to, msg);
    copy(x, x->made[g] + k - x->from, msg);
    return 0;
}

static int execute(struct run *x, int rank, uint32_t i)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    uint32_t end = in_run(x, s, &x->from);
    int e = 0;

    for (uint32_t k = x->from; k < end && !e; k++) {
        switch (s->kind) {
        case BNY_RECV_ADD:
            e = add(x, rank, i, k);
            break;
        case BNY_RECV_COPY:
            e = receive(x, rank, i, k);
            break;
        case BNY_KEEP:
            e = keep(x, rank, i, k);
            break;
        default:
            e = send(x, rank, i, k);
        }
    }
    return e;
}

/* A barrier moves no data: a message carries all that its sender had waited for when it was
 * sent. The cell of OUT gathers all that a rank has heard. */
static int hear(struct run *x, int rank, uint32_t i)
{
    const struct bny_program *p = x->v->p[rank];
    const struct bny_step *s = &p->steps[i];
    uint32_t base = x->v->base[rank], g = base + i;
    uint64_t *heard = x->sets + x->made[g] * x->words;
    uint64_t *all = x->sets + cell(x, rank, BNY_OUT, 0) * x->words;
    int news = 0;

    if (s->kind != BNY_SEND && s->kind != BNY_RECV_COPY)
        return bny_proof_fail(x->v, "rank %d step %u has no place in a barrier", rank, i);
    heard[rank / 64] |= 1ull << rank % 64;
    for (uint32_t d = 0; d < s->ndeps; d++)
        for (size_t w = 0; w < x->words; w++)
            heard[w] |= x->sets[x->made[base + p->deps[s->dep + d]] * x->words + w];
    for (size_t w = 0; w < x->words; w++) {
        if (bny_step_is_recv(s))
            heard[w] |= x->sets[x->made[x->v->match[g]] * x->words + w];
        news |= (heard[w] & ~all[w]) != 0;
        all[w] |= heard[w];
    }
    if (bny_step_is_recv(s) && !news)
        return bny_proof_fail(x->v, "rank %d step %u hears nothing new", rank, i);
    return 0;
}

static int run_all(struct run *x)
{
    const struct bny_proof *v = x->v;
    int progress = 1, e;

    while (progress) {
        progress = 0;
        for (int r = 0; r < v->n; r++) {
            for (; x->done[r] < v->p[r]->nsteps; x->done[r]++, progress = 1) {
                uint32_t i = x->done[r];
                const struct bny_step *s = &v->p[r]->steps[i];

                if (bny_step_is_recv(s) &&
                    x->done[s->peer] <= v->match[v->base[r] + i] - v->base[s->peer])
                    break;
                e = v->p[r]->collective == BNY_BARRIER ? hear(x, r, i) : execute(x, r, i);
                if (e)
                    return e;
            }
        }
    }
    for (int r = 0; r < v->n; r++)
        if (x->done[r] < v->p[r]->nsteps)
            return bny_proof_fail(v, "rank %d waits for ever at step %u, run in program order",
                                  r, x->done[r]);
    return 0;
}

/* What the collective promises in OUT. */
struct promise {
    int given;           /* 0: nothing in this block */
    uint32_t ident;
    int lowest, highest; /* the ranks in it */
};

static struct promise promised(const struct bny_program *p, uint32_t b)
{
    int last = p->nranks - 1, me = p->rank, at = (int)b;

    switch (p->collective) {
    case BNY_ALLREDUCE:
        return (struct promise){ 1, b, 0, last };
    case BNY_REDUCE:
        return (struct promise){ me == p->root, b, 0, last };
    case BNY_REDUCE_SCATTER:
        return (struct promise){ at == me, b, 0, last };
    case BNY_BROADCAST:
        return (struct promise){ 1, b, p->root, p->root };
    case BNY_ALLGATHER:
        return (struct promise){ 1, b, at, at };
    case BNY_GATHER:
        return (struct promise){ me == p->root, b, at, at };
    case BNY_SCATTER:
        return (struct promise){ at == me, b, p->root, p->root };
    case BNY_ALLTOALL:
        at -= p->nranks;
        return (struct promise){ at >= 0, (uint32_t)(at * p->nranks + me), at, at };
    case BNY_SCAN:
        return (struct promise){ 1, b, 0, me };
    case BNY_EXSCAN:
        return (struct promise){ me > 0, b, 0, me - 1 };
    default:
        return (struct promise){ 0, 0, 0, 0 };
    }
}

static int check_result(const struct run *x, int rank, uint32_t b)
{
    const struct bny_program *p = x->v->p[rank];
    size_t c = cell(x, rank, BNY_OUT, b);
    const struct value *out = &x->values[c];
    struct promise want = promised(p, b);
    int ordered = p->collective == BNY_SCAN || p->collective == BNY_EXSCAN ||
                  !strcmp(p->schedule, "linear_reduce") ||
                  !strcmp(p->schedule, "recursive_doubling") ||
                  (!strcmp(p->schedule, "linear") && p->collective == BNY_ALLREDUCE);

    if (p->collective == BNY_BARRIER && !is_full(x, c, 0, p->nranks - 1) && p->nranks > 1)
        return bny_proof_fail(x->v, "rank %d leaves the barrier before all have entered", rank);
    if (!want.given)
        return 0;
    if (out->ident != want.ident || !is_full(x, c, want.lowest, want.highest))
        return bny_proof_fail(x->v, "rank %d ends with a wrong or incomplete block %u", rank,
                              b);
    if (finishes(p) && !out->finished)
        return bny_proof_fail(x->v, "rank %d ends with an unfinished block %u", rank, b);
    if (ordered && !out->ordered)
        return bny_proof_fail(x->v, "rank %d ends with block %u added out of order", rank, b);
    if (p->collective == BNY_ALLREDUCE &&
        out->association != x->values[cell(x, 0, BNY_OUT, b)].association)
        return bny_proof_fail(x->v, "ranks 0 and %d associate block %u differently", rank, b);
    return 0;
}

static int run_variant(struct run *x, size_t nvalues)
{
    int e;

    memset(x->sets, 0, nvalues * x->words * sizeof *x->sets);
    memset(x->done, 0, (size_t)x->v->n * sizeof *x->done);
    for (size_t i = 0; i < nvalues; i++)
        x->values[i] = (struct value){ .ident = UNDEFINED };
    for (int r = 0; r < x->v->n; r++)
        set_inputs(x, r);
    if (x->v->p[0]->collective == BNY_BARRIER)
        memset(x->sets, 0, nvalues * x->words * sizeof *x->sets);
    e = run_all(x);
    for (int r = 0; r < x->v->n && !e; r++)
        for (uint32_t b = x->low; b < x->low + x->nblocks && !e; b++)
            e = check_result(x, r, b);
    return e;
}

/* Values of the run's blocks: fills made. */
static size_t count_values(struct run *x)
{
    const struct bny_proof *v = x->v;
    size_t nvalues = (size_t)v->n * 4 * x->nblocks;

    for (int r = 0; r < v->n; r++)
        for (uint32_t i = 0; i < v->p[r]->nsteps; i++) {
            uint32_t from, end = in_run(x, &v->p[r]->steps[i], &from);

            x->made[v->base[r] + i] = nvalues;
            nvalues += end > from ? end - from : 0;
        }
    return nvalues;
}

static int run_blocks(struct run *x)
{
    size_t nvalues = count_values(x);
    int e;

    x->values = malloc(nvalues * sizeof *x->values);
    x->sets = malloc(nvalues * x->words * sizeof *x->sets);
    e = x->values && x->sets ? 0 : bny_proof_no_memory(x->v);
    for (x->in_place = 0; x->in_place < 2 && !e; x->in_place++)
        e = run_variant(x, nvalues);
    free(x->values);
    free(x->sets);
    return e;
}

/* Blocks never mix, so they can be run some at a time where both ends of a message number them alike (they do in what
 * forests compile to): memory is then bounded, whatever the number of ranks. */
static uint32_t blocks_at_once(struct run *x)
{
    const struct bny_proof *v = x->v;
    size_t nvalues = count_values(x), each = sizeof *x->values + x->words * sizeof *x->sets;
    uint32_t runs = (uint32_t)(nvalues * each / VALUES_BYTES + 1);

    for (int r = 0; r < v->n && runs > 1; r++)
        for (uint32_t i = 0; i < v->p[r]->nsteps; i++) {
            const struct bny_step *s = &v->p[r]->steps[i];

            if (s->peer >= 0 && bny_proof_step(v, s->peer, v->match[v->base[r] + i])->block != s->block)
                runs = 1;
        }
    return (x->nblocks + runs - 1) / runs;
}

int bny_prove_values(const struct bny_proof *v)
{
    uint32_t nblocks = v->p[0]->nblocks, step;
    struct run x = {
        .v = v,
        .words = (size_t)(v->n + 63) / 64,
        .nblocks = nblocks,
        .made = malloc(((size_t)v->nsteps + 1) * sizeof *x.made),
        .done = malloc((size_t)v->n * sizeof *x.done),
    };
    int e = x.made && x.done ? 0 : bny_proof_no_memory(v);

    step = e ? 0 : blocks_at_once(&x);
    do {
        x.nblocks = nblocks - x.low < step ? nblocks - x.low : step;
        e = e ? e : run_blocks(&x);
        x.low += step;
    } while (!e && x.low < nblocks);
    free(x.made);
    free(x.done);
    return e;
}
