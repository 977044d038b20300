/* SPDX-License-Identifier: BSD-3-Clause */
/* Proves programs (program.h, bny_program_verify): their form, memory (V2) and matching (V3);
 * contributions, codes and progress are in verify_values.c, verify_codes.c and
 * verify_progress.c. Time is linear in
 * steps but for V2, which is quadratic in the steps of one rank that touch one block. */
#include "collectives/program/verify.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "transport/wire.h"

#define ROUNDED (1 + 1e-9) /* claims are added up in another order */

int bny_proof_fail(const struct bny_proof *v, const char *fmt, ...)
{
    char text[256];
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (v->why && v->why_cap)
        snprintf(v->why, v->why_cap, "%s", text);
    return bny_fail(BANYAN_EINVAL, "program: %s", text);
}

int bny_proof_no_memory(const struct bny_proof *v)
{
    if (v->why && v->why_cap)
        snprintf(v->why, v->why_cap, "no memory to verify programs of %d ranks", v->n);
    return bny_fail(BANYAN_ENOMEM, "no memory to verify programs of %d ranks", v->n);
}

int bny_proof_run(const struct bny_proof *v, int (*step)(void *of, int rank, uint32_t i),
                  void *of)
{
    uint32_t *done = calloc((size_t)v->n, sizeof *done);
    int progress = 1, stuck = -1, e = done ? 0 : bny_proof_no_memory(v);

    while (progress && !e) {
        progress = 0;
        for (int r = 0; r < v->n && !e; r++) {
            for (; done[r] < v->p[r]->nsteps && !e; done[r]++, progress = 1) {
                const struct bny_step *s = &v->p[r]->steps[done[r]];

                if (bny_step_is_recv(s) &&
                    done[s->peer] <= v->match[v->base[r] + done[r]] - v->base[s->peer])
                    break;
                e = step(of, r, done[r]);
            }
        }
    }
    for (int r = 0; r < v->n && !e && stuck < 0; r++)
        if (done[r] < v->p[r]->nsteps)
            stuck = r;
    if (stuck >= 0)
        e = bny_proof_fail(v, "rank %d waits for ever at step %u, run in program order", stuck,
                           done[stuck]);
    free(done);
    return e;
}

/* ---- form ---- */

static int check_heads(const struct bny_proof *v)
{
    const struct bny_program *a = v->p[0];

    for (int r = 0; r < v->n; r++) {
        const struct bny_program *p = v->p[r];

        if (p->rank != r || p->nranks != v->n)
            return bny_proof_fail(v, "program %d is rank %d's of %d", r, p->rank, p->nranks);
        if (p->collective != a->collective || p->root != a->root || p->nblocks != a->nblocks ||
            strcmp(p->schedule, a->schedule) || !p->weight_num != !a->weight_num)
            return bny_proof_fail(v, "rank %d's program is for another call than rank 0's", r);
        if (!p->present != !a->present ||
            (p->present && memcmp(p->present, a->present, (size_t)v->n)))
            return bny_proof_fail(v, "ranks 0 and %d differ in who takes part", r);
        if (!p->owned_first != !a->owned_first ||
            (p->owned_first && memcmp(p->owned_first, a->owned_first,
                                      ((size_t)v->n + 1) * sizeof *p->owned_first)))
            return bny_proof_fail(v, "ranks 0 and %d differ in whose blocks are whose", r);
        for (uint32_t b = 0; p->weight_num && b < p->nblocks; b++)
            if (p->weight_num[b] != a->weight_num[b] || p->weight_den[b] != a->weight_den[b])
                return bny_proof_fail(v, "ranks 0 and %d differ in the weight of block %u", r,
                                      b);
    }
    return 0;
}

/* The blocks that a rank's call has in a memory: [*first, *end). */
static void blocks_of(const struct bny_program *p, uint8_t space, uint32_t *first,
                      uint32_t *end)
{
    uint32_t n = (uint32_t)p->nranks, me = (uint32_t)p->rank;
    int own = 0, none = 0, is_root = p->root == p->rank;

    *first = 0;
    *end = p->nblocks;
    switch (p->collective) {
    case BNY_REDUCE: none = space == BNY_OUT && !is_root; break;
    case BNY_BROADCAST: none = space == BNY_IN; break;
    case BNY_REDUCE_SCATTER: own = space == BNY_OUT; break;
    case BNY_ALLGATHER: own = space == BNY_IN; break;
    case BNY_GATHER: own = space == BNY_IN || (space == BNY_OUT && !is_root); break;
    case BNY_SCATTER:
        own = space == BNY_OUT;
        none = space == BNY_IN && !is_root;
        break;
    case BNY_ALLTOALL:
        if (space == BNY_OUT)
            *first = n;
        break;
    default: break;
    }
    if (own)
        *first = bny_owned_first(p, me), *end = bny_owned_first(p, me + 1);
    if (none)
        *end = *first;
}

static int check_operand(const struct bny_proof *v, const struct bny_program *p, uint32_t i,
                         uint8_t space, int wanted)
{
    const struct bny_step *s = &p->steps[i];
    uint32_t first, end;

    if (!wanted)
        return space == BNY_NOWHERE ? 0
                                    : bny_proof_fail(v,
                                                     "rank %d step %u has an operand too "
                                                     "many",
                                                     p->rank, i);
    if (space >= BNY_NOWHERE)
        return bny_proof_fail(v, "rank %d step %u lacks an operand", p->rank, i);
    blocks_of(p, space, &first, &end);
    if (s->nblocks < 1 || s->block < first || s->block >= end || s->nblocks > end - s->block)
        return bny_proof_fail(v, "rank %d step %u: blocks %u+%u are not in memory %u", p->rank,
                              i, s->block, s->nblocks, space);
    if ((space == BNY_SCRATCH && !p->uses_scratch) ||
        (space == BNY_SCRATCH2 && !p->uses_scratch2))
        return bny_proof_fail(v, "rank %d step %u uses undeclared scratch", p->rank, i);
    return 0;
}

static int check_step(const struct bny_proof *v, const struct bny_program *p, uint32_t i)
{
    const struct bny_step *s = &p->steps[i];
    int sends = s->kind == BNY_SEND || s->kind == BNY_FORWARD, e;
    unsigned allowed = s->kind == BNY_RECV_ADD ? BNY_STEP_REV : BNY_STEP_PLACE;

    if (s->kind > BNY_KEEP || s->chan >= BNY_CHANNELS || s->code >= BNY_CODES)
        return bny_proof_fail(v, "rank %d step %u has kind %u, channel %u, code %u", p->rank, i,
                              s->kind, s->chan, s->code);
    if (s->kind == BNY_KEEP ? s->peer != -1
                            : s->peer < 0 || s->peer >= v->n || s->peer == p->rank)
        return bny_proof_fail(v, "rank %d step %u has peer %d", p->rank, i, s->peer);
    if ((s->flags & ~allowed) || (s->kind == BNY_KEEP && s->flags))
        return bny_proof_fail(v, "rank %d step %u has flags %u", p->rank, i, s->flags);
    e = check_operand(v, p, i, s->src, s->kind != BNY_RECV_COPY);
    if (!e)
        e = check_operand(v, p, i, s->dst, !sends);
    if (e)
        return e;
    if (s->dst == BNY_IN)
        return bny_proof_fail(v, "rank %d step %u writes the input", p->rank, i);
    if (s->kind != BNY_FORWARD && s->from != UINT32_MAX)
        return bny_proof_fail(v, "rank %d step %u forwards nothing", p->rank, i);
    if (s->kind == BNY_FORWARD) {
        const struct bny_step *f = s->from < i ? &p->steps[s->from] : NULL;

        if (!f || (f->kind != BNY_RECV_COPY && f->kind != BNY_KEEP) || f->block != s->block ||
            f->nblocks != s->nblocks)
            return bny_proof_fail(v, "rank %d step %u cannot forward step %u", p->rank, i,
                                  s->from);
    }
    if (s->dep > p->ndeps || s->ndeps > p->ndeps - s->dep)
        return bny_proof_fail(v, "rank %d step %u has dependencies out of range", p->rank, i);
    for (uint32_t d = 0; d < s->ndeps; d++)
        if (p->deps[s->dep + d] >= i)
            return bny_proof_fail(v, "rank %d step %u depends on step %u", p->rank, i,
                                  p->deps[s->dep + d]);
    return 0;
}

static int check_form(const struct bny_proof *v)
{
    int e = check_heads(v);

    for (int r = 0; r < v->n && !e; r++)
        for (uint32_t i = 0; i < v->p[r]->nsteps && !e; i++)
            e = check_step(v, v->p[r], i);
    return e;
}

/* ---- V3: matching ---- */

/* Sends by (rank, peer, ordinal), as recv_of has the receives. */
static int match_sends(const struct bny_proof *v, uint32_t *sent, uint32_t *received)
{
    for (int r = 0; r < v->n; r++) {
        const struct bny_program *p = v->p[r];

        memset(sent, 0, (size_t)v->n * sizeof *sent);
        memset(received, 0, (size_t)v->n * sizeof *received);
        for (uint32_t i = 0; i < p->nsteps; i++) {
            const struct bny_step *s = &p->steps[i];
            const struct bny_program *q = s->peer >= 0 ? v->p[s->peer] : NULL;
            int in = bny_step_is_recv(s);
            uint32_t k, j;

            if (!q)
                continue;
            k = in ? received[s->peer]++ : sent[s->peer]++;
            if (k >= BNY_MESSAGES_MAX)
                return bny_proof_fail(v,
                                      "rank %d step %u: more than %u messages between ranks %d "
                                      "and %d",
                                      r, i, BNY_MESSAGES_MAX, r, s->peer);
            if (s->ordinal != k)
                return bny_proof_fail(v, "rank %d step %u has ordinal %u, it is number %u", r,
                                      i, s->ordinal, k);
            if (in) {
                j = p->recv_first[s->peer] + k;
                if (j >= p->recv_first[s->peer + 1] || p->recv_of[j] != i)
                    return bny_proof_fail(v, "rank %d step %u is not in its receive index", r,
                                          i);
                continue;
            }
            if (k >= q->recv_first[r + 1] - q->recv_first[r])
                return bny_proof_fail(v, "rank %d step %u: rank %d has no receive %u for it", r,
                                      i, s->peer, k);
            j = q->recv_of[q->recv_first[r] + k];
            if (j >= q->nsteps || !bny_step_is_recv(&q->steps[j]) || q->steps[j].peer != r ||
                v->match[v->base[s->peer] + j] != UINT32_MAX)
                return bny_proof_fail(v, "rank %d's receive index from rank %d is wrong",
                                      s->peer, r);
            v->match[v->base[r] + i] = v->base[s->peer] + j;
            v->match[v->base[s->peer] + j] = v->base[r] + i;
        }
    }
    return 0;
}

static int check_pair(const struct bny_proof *v, int r, uint32_t i)
{
    const struct bny_program *p = v->p[r];
    const struct bny_step *s = &p->steps[i], *m;
    uint32_t g = v->match[v->base[r] + i];

    if (g == UINT32_MAX)
        return bny_proof_fail(v, "rank %d step %u: rank %d sends nothing for it", r, i,
                              s->peer);
    m = bny_proof_step(v, s->peer, g);
    if (s->nblocks != m->nblocks || s->chan != m->chan || s->code != m->code)
        return bny_proof_fail(v,
                              "rank %d step %u receives %u blocks on channel %u in code %u, "
                              "rank %d sends %u on %u in %u",
                              r, i, s->nblocks, s->chan, s->code, s->peer, m->nblocks, m->chan,
                              m->code);
    for (uint32_t b = 0; p->weight_num && b < s->nblocks; b++)
        if ((uint64_t)p->weight_num[s->block + b] * p->weight_den[m->block + b] !=
            (uint64_t)p->weight_num[m->block + b] * p->weight_den[s->block + b])
            return bny_proof_fail(v, "rank %d step %u: blocks %u and %u have different weights",
                                  r, i, s->block + b, m->block + b);
    if ((s->flags ^ m->flags) & BNY_STEP_PLACE)
        return bny_proof_fail(v, "rank %d step %u: only one end may place", r, i);
    if (s->flags & BNY_STEP_PLACE && (s->dst != BNY_OUT || s->block != m->block))
        return bny_proof_fail(v, "rank %d step %u cannot be placed", r, i);
    return 0;
}

static int check_matching(const struct bny_proof *v)
{
    uint32_t *count = malloc(2 * (size_t)v->n * sizeof *count);
    int e;

    if (!count)
        return bny_proof_no_memory(v);
    e = match_sends(v, count, count + v->n);
    free(count);
    for (int r = 0; r < v->n && !e; r++) {
        const struct bny_program *p = v->p[r];

        if (p->recv_first[0] != 0)
            return bny_proof_fail(v, "rank %d's receive index does not start at 0", r);
        for (uint32_t i = 0; i < p->nsteps && !e; i++)
            if (bny_step_is_recv(&p->steps[i]))
                e = check_pair(v, r, i);
    }
    return e;
}

/* ---- V2: memory ---- */

/* The steps of one rank that touch one block, in program order, and which of them each one has
 * waited for. A dependency orders only elements that both steps name, so a chain of them must
 * stay in the block. */
struct touch {
    uint32_t step;
    uint64_t *before; /* bit k: touches[k] is complete before this one starts */
};

struct block_order {
    struct touch *t;
    uint32_t count, cap;
    uint32_t *index; /* [steps of the rank] position in t + 1; 0: does not touch the block */
    uint32_t *first; /* [nblocks + 1] where a block's steps begin in steps; of one rank */
    uint32_t *steps; /* in program order */
    size_t steps_cap;
    uint64_t *bits; /* room for all before sets */
    size_t bits_cap;
};

/* Steps of a rank by the blocks that they touch. */
static int index_blocks(struct block_order *o, const struct bny_program *p)
{
    uint32_t need = 0;

    memset(o->first, 0, ((size_t)p->nblocks + 2) * sizeof *o->first);
    for (uint32_t i = 0; i < p->nsteps; i++) {
        need += p->steps[i].nblocks;
        for (uint32_t b = 0; b < p->steps[i].nblocks; b++)
            o->first[p->steps[i].block + b + 2]++;
    }
    if (need > o->steps_cap) {
        uint32_t *steps = realloc(o->steps, need * sizeof *steps);

        if (!steps)
            return -1;
        o->steps = steps;
        o->steps_cap = need;
    }
    for (uint32_t b = 0; b < p->nblocks; b++)
        o->first[b + 2] += o->first[b + 1];
    for (uint32_t i = 0; i < p->nsteps; i++) /* first[b + 1] runs from b's start to its end */
        for (uint32_t b = 0; b < p->steps[i].nblocks; b++)
            o->steps[o->first[p->steps[i].block + b + 1]++] = i;
    for (uint32_t k = 0; k < o->count; k++)
        o->index[o->t[k].step] = 0;
    o->count = 0;
    return 0;
}

static int order_block(struct block_order *o, const struct bny_program *p, uint32_t b)
{
    size_t words, need;

    for (uint32_t k = 0; k < o->count; k++) /* of the block before */
        o->index[o->t[k].step] = 0;
    o->count = o->first[b + 1] - o->first[b];
    for (uint32_t k = 0; k < o->count; k++) {
        o->t[k].step = o->steps[o->first[b] + k];
        o->index[o->t[k].step] = k + 1;
    }
    words = (o->count + 63) / 64;
    need = words * o->count;
    if (need > o->bits_cap) {
        uint64_t *bits = realloc(o->bits, need * sizeof *bits);

        if (!bits)
            return -1;
        o->bits = bits;
        o->bits_cap = need;
    }
    if (need)
        memset(o->bits, 0, need * sizeof *o->bits);
    for (uint32_t k = 0; k < o->count; k++) {
        const struct bny_step *s = &p->steps[o->t[k].step];
        uint64_t *mine = o->t[k].before = o->bits + k * words;

        for (uint32_t d = 0; d < s->ndeps; d++) {
            uint32_t at = o->index[p->deps[s->dep + d]];

            if (!at)
                continue;
            mine[(at - 1) / 64] |= 1ull << (at - 1) % 64;
            for (size_t x = 0; x < words; x++)
                mine[x] |= o->t[at - 1].before[x];
        }
    }
    return 0;
}

/* Memory of an operand when IN and OUT are one: this has all conflicts of the other case. */
static int memory_of(uint8_t space)
{
    return space == BNY_SCRATCH ? 1 : space == BNY_SCRATCH2 ? 2 : space == BNY_NOWHERE ? -1 : 0;
}

static int conflict(const struct bny_step *a, const struct bny_step *b)
{
    int ar = memory_of(a->src), aw = memory_of(a->dst);
    int br = memory_of(b->src), bw = memory_of(b->dst);

    return (aw >= 0 && (aw == br || aw == bw)) || (bw >= 0 && bw == ar);
}

static int check_block_order(const struct bny_proof *v, const struct bny_program *p,
                             const struct block_order *o, uint32_t b)
{
    for (uint32_t k = 1; k < o->count; k++) {
        const struct bny_step *s = &p->steps[o->t[k].step];

        for (uint32_t x = 0; x < k; x++) {
            const struct bny_step *earlier = &p->steps[o->t[x].step];
            int forwards = s->kind == BNY_FORWARD && s->from == o->t[x].step;

            if (o->t[k].before[x / 64] >> x % 64 & 1)
                continue;
            if (forwards || conflict(earlier, s))
                return bny_proof_fail(v,
                                      "rank %d: steps %u and %u both use block %u, and none "
                                      "waits for the other",
                                      p->rank, o->t[x].step, o->t[k].step, b);
        }
    }
    return 0;
}

static int check_memory(const struct bny_proof *v)
{
    struct block_order o = { 0 };
    uint32_t most = 1;
    int e = 0;

    for (int r = 0; r < v->n; r++)
        if (v->p[r]->nsteps > most)
            most = v->p[r]->nsteps;
    o.t = malloc(most * sizeof *o.t);
    o.index = calloc(most, sizeof *o.index);
    o.first = malloc(((size_t)v->p[0]->nblocks + 2) * sizeof *o.first);
    if (!o.t || !o.index || !o.first)
        e = bny_proof_no_memory(v);
    for (int r = 0; r < v->n && !e; r++) {
        e = index_blocks(&o, v->p[r]) ? bny_proof_no_memory(v) : 0;
        for (uint32_t b = 0; b < v->p[r]->nblocks && !e; b++)
            e = order_block(&o, v->p[r], b) ? bny_proof_no_memory(v)
                                            : check_block_order(v, v->p[r], &o, b);
    }
    free(o.t);
    free(o.index);
    free(o.first);
    free(o.steps);
    free(o.bits);
    return e;
}

/* ---- all of it ---- */

static int prove(struct bny_proof *v, int slots)
{
    int e = check_form(v);

    if (!e)
        e = check_matching(v);
    if (!e)
        e = check_memory(v);
    if (!e)
        e = bny_prove_values(v);
    return e ? e : bny_prove_progress(v, slots);
}

static int number_steps(struct bny_proof *v)
{
    v->base = calloc((size_t)v->n + 1, sizeof *v->base);
    if (!v->base)
        return bny_proof_no_memory(v);
    for (int r = 0; r < v->n; r++)
        v->base[r + 1] = v->base[r] + v->p[r]->nsteps;
    v->nsteps = v->base[v->n];
    v->match = malloc(((size_t)v->nsteps + 1) * sizeof *v->match);
    if (!v->match)
        return bny_proof_no_memory(v);
    memset(v->match, 0xff, ((size_t)v->nsteps + 1) * sizeof *v->match);
    return 0;
}

int bny_program_verify(struct bny_program *const *programs, int nranks, int slots, char *why,
                       size_t why_cap)
{
    struct bny_proof v = { .p = programs, .n = nranks, .why = why, .why_cap = why_cap };
    int e;

    if (nranks < 1 || slots < 0)
        return bny_proof_fail(&v, "%d ranks and %d slots", nranks, slots);
    e = number_steps(&v);
    if (!e)
        e = prove(&v, slots);
    free(v.base);
    free(v.match);
    return e;
}

int bny_program_verify_codes(struct bny_program *const *programs, int nranks,
                             const struct bny_loss code[BNY_CODES],
                             const struct bny_loss *claim, struct bny_loss *found, char *why,
                             size_t why_cap)
{
    struct bny_proof v = { .p = programs, .n = nranks, .why = why, .why_cap = why_cap };
    struct bny_loss sum = { 0, 0 };
    int e = number_steps(&v);

    if (!e)
        e = check_matching(&v);
    if (!e)
        e = bny_prove_codes(&v, code, &sum);
    if (!e && claim && !(sum.nmse <= claim->nmse * ROUNDED && sum.max <= claim->max * ROUNDED))
        e = bny_proof_fail(&v, "results lose nmse %g, max %g; the plan claims %g, %g", sum.nmse,
                           sum.max, claim->nmse, claim->max);
    if (found)
        *found = sum;
    free(v.base);
    free(v.match);
    return e;
}
