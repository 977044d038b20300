/* SPDX-License-Identifier: BSD-3-Clause */
/* V9 and V10: what the codecs of a plan do to results (program.h, bny_program_verify_codes).
 * Symbolic execution, of programs whose values are proven: each block of each memory knows the
 * encoding whose decode it is, and what was lost on the way of the contributions in it. */
#include <math.h>
#include <stdlib.h>

#include "collectives/program/verify.h"

struct value {
    uint32_t
        code; /* 1 + the step that made the lossy code of which it is the decode; 0: none */
    uint32_t parts; /* contributions in it */
    uint8_t is_result;
    double max;      /* the longest path of them */
    double up, down; /* mean squared errors: added over them; of the result's code */
};

struct run {
    const struct bny_proof *v;
    const struct bny_loss *code;
    uint32_t nblocks;
    struct value *cells; /* [n][4][nblocks], then one for each block of each step */
    size_t *made;        /* [nsteps] a step's first value */
};

static int is_lossy(const struct run *x, unsigned code)
{
    return x->code[code].max > 0;
}

static struct value *cell(const struct run *x, int rank, unsigned space, uint32_t block)
{
    return &x->cells[((size_t)rank * 4 + space) * x->nblocks + block];
}

static int codes_send(struct run *x, int rank, uint32_t i, struct value *v)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    const struct bny_loss *loss = &x->code[s->code];

    if (!is_lossy(x, s->code))
        return 0;
    if (v->is_result)
        return bny_proof_fail(x->v, "rank %d step %u encodes a result again", rank, i);
    if (s->code == BNY_CODE_DOWN)
        return bny_proof_fail(x->v, "rank %d step %u sends a sum in the code of results", rank,
                              i);
    v->max += loss->max;
    v->up += v->parts * loss->nmse;
    return 0;
}

/* A code is what the step that it forwards had, whatever the operand is. */
static int codes_forward(const struct run *x, int rank, uint32_t i, uint32_t k, struct value *v)
{
    const struct bny_program *p = x->v->p[rank];
    const struct bny_step *s = &p->steps[i];

    if (!is_lossy(x, s->code))
        return 0;
    *v = x->cells[x->made[x->v->base[rank] + s->from] + k];
    if (s->code != p->steps[s->from].code || !v->code)
        return bny_proof_fail(x->v,
                              "rank %d step %u forwards a code that step %u does not have",
                              rank, i, s->from);
    return 0;
}

static int codes_keep(struct run *x, int rank, uint32_t i, struct value *v)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    const struct bny_loss *loss = &x->code[s->code];

    if (s->code == BNY_CODE_UP)
        return bny_proof_fail(x->v, "rank %d step %u keeps a result in the code of sums", rank,
                              i);
    v->is_result = 1;
    if (!is_lossy(x, s->code))
        return 0;
    v->code = 1 + x->v->base[rank] + i;
    v->max += loss->max;
    v->down = loss->nmse;
    return 0;
}

static int codes_receive(struct run *x, int rank, uint32_t i, struct value *v,
                         const struct value *here)
{
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    int adds = s->kind == BNY_RECV_ADD;

    if (is_lossy(x, s->code) && s->code != (adds ? BNY_CODE_UP : BNY_CODE_DOWN))
        return bny_proof_fail(x->v, "rank %d step %u decodes the wrong way's code", rank, i);
    if (!adds)
        return 0;
    v->parts += here->parts;
    v->up += here->up;
    v->max = fmax(v->max, here->max);
    return 0;
}

static int codes_step(void *of, int rank, uint32_t i)
{
    struct run *x = of;
    const struct bny_step *s = &x->v->p[rank]->steps[i];
    uint32_t g = x->v->base[rank] + i;
    int e = 0;

    for (uint32_t k = 0; k < s->nblocks && !e; k++) {
        struct value *made = &x->cells[x->made[g] + k],
                     *here = s->src < BNY_NOWHERE ? cell(x, rank, s->src, s->block + k) : NULL;

        *made = bny_step_is_recv(s) ? x->cells[x->made[x->v->match[g]] + k] : *here;
        switch (s->kind) {
        case BNY_SEND: e = codes_send(x, rank, i, made); break;
        case BNY_FORWARD: e = codes_forward(x, rank, i, k, made); break;
        case BNY_KEEP: e = codes_keep(x, rank, i, made); break;
        default: e = codes_receive(x, rank, i, made, here);
        }
        if (s->dst < BNY_NOWHERE)
            *cell(x, rank, s->dst, s->block + k) = *made;
    }
    return e;
}

static void codes_inputs(struct run *x)
{
    for (int r = 0; r < x->v->n; r++)
        for (uint32_t b = 0; b < x->nblocks; b++) {
            cell(x, r, BNY_IN, b)->parts = 1;
            if (x->v->p[r]->collective == BNY_BROADCAST)
                cell(x, r, BNY_OUT, b)->parts = 1;
        }
}

/* Does rank r end with this block? Of collectives that have a lossy codec. */
static int has_result(const struct bny_program *p, int r, uint32_t b)
{
    return p->collective == BNY_REDUCE           ? r == p->root
           : p->collective == BNY_REDUCE_SCATTER ? (int)bny_block_owner(p, b) == r
                                                 : 1;
}

static int codes_results(const struct run *x, struct bny_loss *sum)
{
    for (uint32_t b = 0; b < x->nblocks; b++) {
        const struct value *first = NULL;

        for (int r = 0; r < x->v->n; r++) {
            const struct value *v = cell(x, r, BNY_OUT, b);

            if (!has_result(x->v->p[r], r, b))
                continue;
            first = first ? first : v;
            if (v->code != first->code)
                return bny_proof_fail(x->v, "rank %d decodes another code of block %u", r, b);
            sum->max = fmax(sum->max, v->max);
            sum->nmse = fmax(sum->nmse, v->up / (v->parts ? v->parts : 1) + v->down);
        }
    }
    return 0;
}

int bny_prove_codes(const struct bny_proof *v, const struct bny_loss code[BNY_CODES],
                    struct bny_loss *sum)
{
    struct run x = { .v = v,
                     .code = code,
                     .nblocks = v->p[0]->nblocks,
                     .made = malloc(((size_t)v->nsteps + 1) * sizeof *x.made) };
    size_t nvalues = (size_t)v->n * 4 * x.nblocks;
    int e = x.made ? 0 : bny_proof_no_memory(v);

    for (int r = 0; r < v->n && !e; r++)
        for (uint32_t i = 0; i < v->p[r]->nsteps; i++) {
            x.made[v->base[r] + i] = nvalues;
            nvalues += v->p[r]->steps[i].nblocks;
        }
    x.cells = e ? NULL : calloc(nvalues + 1, sizeof *x.cells);
    if (!e && !x.cells)
        e = bny_proof_no_memory(v);
    if (!e) {
        codes_inputs(&x);
        e = bny_proof_run(v, codes_step, &x);
    }
    if (!e)
        e = codes_results(&x, sum);
    free(x.cells);
    free(x.made);
    return e;
}
