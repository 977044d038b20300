/* SPDX-License-Identifier: BSD-3-Clause */
/* Turns an MSCCL algorithm (msccl.h) into programs, by running it symbolically: every cell of a
 * buffer knows whose data it holds and where that lies in our memories. Steps run as soon as
 * what they wait for is there; the order in which a rank's steps ran is its program. Messages
 * of a pair of ranks are received in the order in which they were sent, whatever their
 * channels: the order that ordinals follow.
 *
 * Where data lies: operands in IN until something is stored over them; stored results in OUT
 * (allgather: always; else in the place of the chunk), partial sums of other ranks' blocks
 * (reduce_scatter), scratch chunks and sums that are only passed on in SCRATCH or SCRATCH2, at
 * the block that they are part of. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"
#include "collectives/program/msccl.h"
#include "collectives/program/writer.h"
#include "topo/plan_file.h"
#include "transport/wire.h"

#define NOWHERE         (-1)
#define PARTS_MAX       (1 << 24) /* chunks that are moved, whether in a step or many in one */
#define CELLS_BYTES_MAX (INT64_C(1) << 30)

struct value {
    int block;        /* which chunk of the result it is part of; -1: undefined */
    uint8_t space;    /* enum bny_space: where it lies here */
    uint8_t finished; /* went through KEEP */
    uint64_t *ranks;  /* [words] whose operands are in it; points into the cell's or message's
                         own memory */
};

struct letter { /* a message between send and receive */
    struct letter *next;
    struct value v;
    int chan, gpu;
    uint32_t step; /* of the sender's program */
};

struct gpu {
    struct value *cells; /* i, o and s one after another */
    int at[3], ncells;
    int *owner[2]; /* [nblocks] the cell that has SCRATCH or SCRATCH2 at that block; NOWHERE */
    struct bny_writer w;
};

struct import {
    const char *name;
    const struct bny_msccl *m;
    int n, nblocks;
    size_t words;
    struct gpu *gpus;              /* [n] */
    struct letter **first, **last; /* [n * n] */
    int *next, *part;              /* [ntbs] step to run, chunks of it that are done */
    int rc;
};

static int msccl_import_bad(struct import *x, const struct bny_msccl_step *s, const char *fmt,
                            ...) __attribute__((format(printf, 3, 4)));
static int msccl_import_bad(struct import *x, const struct bny_msccl_step *s, const char *fmt,
                            ...)
{
    char text[300];
    va_list ap;

    if (x->rc)
        return x->rc;
    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return x->rc = bny_fail(BANYAN_ENOTSUP, "%s:%d: %s", x->name, s->line, text);
}

/* ---- cells ---- */

/* In place, two names stand for one cell. */
static int msccl_import_cell_of(const struct import *x, int gpu, char buf, int off)
{
    const struct gpu *g = &x->gpus[gpu];

    if (x->m->inplace && x->m->collective == BNY_ALLREDUCE && buf == 'o')
        buf = 'i';
    if (x->m->inplace && x->m->collective == BNY_ALLGATHER && buf == 'i') {
        buf = 'o';
        off = gpu;
    }
    if (x->m->inplace && x->m->collective == BNY_REDUCE_SCATTER && buf == 'o') {
        buf = 'i';
        off = gpu;
    }
    return g->at[buf == 'i' ? 0 : buf == 'o' ? 1 : 2] + off;
}

static void set_cell(struct import *x, int gpu, int cell, const struct value *v)
{
    struct value *c = &x->gpus[gpu].cells[cell];
    uint64_t *ranks = c->ranks;

    memmove(ranks, v->ranks, x->words * sizeof *ranks);
    *c = *v;
    c->ranks = ranks;
}

static int is_full(const struct import *x, const struct value *v)
{
    for (int r = 0; r < x->n; r++)
        if (!(v->ranks[r / 64] >> r % 64 & 1))
            return 0;
    return 1;
}

static int reduces(const struct import *x)
{
    return x->m->collective != BNY_ALLGATHER;
}

/* Where a value that is stored into a cell goes. NOWHERE with the error set. */
static int space_for(struct import *x, const struct bny_msccl_step *s, int gpu, int cell,
                     int block)
{
    struct gpu *g = &x->gpus[gpu];
    int scratch = cell >= g->at[2], off = cell - (cell < g->at[1] ? g->at[0] : g->at[1]);
    int output = x->m->inplace || cell >= g->at[1];

    if (x->m->collective == BNY_ALLGATHER)
        return BNY_OUT;
    if (!scratch && x->m->collective == BNY_ALLREDUCE) {
        if (output && off == block)
            return BNY_OUT;
        msccl_import_bad(x, s,
                         output ? "chunk %d is stored at the place of chunk %d"
                                : "chunk %d is stored in the input, chunk %d",
                         block, off);
        return NOWHERE;
    }
    if (!scratch && ((x->m->inplace && off == gpu) || (!x->m->inplace && cell >= g->at[1]))) {
        if (block == gpu)
            return BNY_OUT;
        msccl_import_bad(x, s, "chunk %d is stored in the result of gpu %d", block, gpu);
        return NOWHERE;
    }
    for (int k = 0; k < 2; k++)
        if (g->owner[k][block] == cell || g->owner[k][block] == NOWHERE) {
            g->owner[k][block] = cell;
            return k ? BNY_SCRATCH2 : BNY_SCRATCH;
        }
    msccl_import_bad(x, s, "gpu %d holds more than two partial sums of chunk %d", gpu, block);
    return NOWHERE;
}

/* A cell that held a sum of another block gives that place back. */
static void msccl_import_release(struct import *x, int gpu, int cell, int block)
{
    struct gpu *g = &x->gpus[gpu];
    int old = g->cells[cell].block;

    if (old < 0 || old == block)
        return;
    for (int k = 0; k < 2; k++)
        if (g->owner[k][old] == cell)
            g->owner[k][old] = NOWHERE;
}

static uint32_t emit(struct import *x, int gpu, enum bny_step_kind kind, int peer, int chan,
                     int src, int dst, int block)
{
    struct bny_step step = { .kind = (uint8_t)kind,
                             .chan = (uint8_t)(chan % BNY_CHANNELS),
                             .src = (uint8_t)src,
                             .dst = (uint8_t)dst,
                             .code = kind == BNY_KEEP ? BNY_CODE_NONE : BNY_CODE_UP,
                             .peer = peer,
                             .block = (uint32_t)block,
                             .nblocks = 1,
                             .from = UINT32_MAX };

    return bny_writer_add(&x->gpus[gpu].w, &step);
}

/* ---- steps ---- */

static int post(struct import *x, const struct bny_msccl_tb *tb, int gpu,
                const struct bny_msccl_step *s, const struct value *v)
{
    size_t pair = (size_t)gpu * (size_t)x->n + (size_t)tb->send;
    struct letter *l;

    if (v->block < 0)
        return msccl_import_bad(x, s, "gpu %d sends a chunk that nothing was stored in", gpu);
    l = malloc(sizeof *l + x->words * sizeof *v->ranks);
    if (!l)
        return x->rc = bny_fail(BANYAN_ENOMEM, "%s: no memory for its messages", x->name);
    *l = (struct letter){ .v = *v, .chan = tb->chan, .gpu = gpu };
    l->v.ranks = (uint64_t *)(l + 1);
    memcpy(l->v.ranks, v->ranks, x->words * sizeof *v->ranks);
    l->step = emit(x, gpu, BNY_SEND, tb->send, tb->chan, v->space, BNY_NOWHERE, v->block);
    if (x->last[pair])
        x->last[pair]->next = l;
    else
        x->first[pair] = l;
    x->last[pair] = l;
    return 0;
}

/* The sum is complete: KEEP finishes it. In reduce_scatter only at its own rank, whose result
 * it is. */
static void msccl_import_finish(struct import *x, int gpu, struct value *v)
{
    if (!reduces(x) || v->finished || !is_full(x, v) ||
        (x->m->collective == BNY_REDUCE_SCATTER && v->block != gpu))
        return;
    emit(x, gpu, BNY_KEEP, -1, 0, v->space, BNY_OUT, v->block);
    v->space = BNY_OUT;
    v->finished = 1;
}

/* Receives what `l` brings: as it is, or added to the cell of src. *out: what this gpu has
 * then. */
static int msccl_import_take(struct import *x, const struct bny_msccl_tb *tb, int gpu,
                             const struct bny_msccl_step *s, int k, struct letter *l,
                             struct value *out)
{
    int stores = s->type != MSCCL_RRS, adds = s->type != MSCCL_R && s->type != MSCCL_RCS;
    int cell = stores ? msccl_import_cell_of(x, gpu, s->dstbuf, s->dstoff + k) : NOWHERE;
    const struct value *with =
        adds ? &x->gpus[gpu].cells[msccl_import_cell_of(x, gpu, s->srcbuf, s->srcoff + k)]
             : NULL;
    int space;
    uint32_t step;

    if (adds && (!reduces(x) || with->block != l->v.block))
        return msccl_import_bad(x, s, "gpu %d adds chunk %d to chunk %d", gpu, l->v.block,
                                with->block);
    if (stores)
        msccl_import_release(x, gpu, cell, l->v.block);
    space = stores ? space_for(x, s, gpu, cell, l->v.block) : BNY_SCRATCH2;
    if (space == NOWHERE)
        return x->rc;
    if (!stores && x->gpus[gpu].owner[1][l->v.block] != NOWHERE)
        return msccl_import_bad(x, s, "gpu %d holds more than two partial sums of chunk %d",
                                gpu, l->v.block);
    step = emit(x, gpu, adds ? BNY_RECV_ADD : BNY_RECV_COPY, tb->recv, tb->chan,
                adds ? with->space : BNY_NOWHERE, space, l->v.block);
    if (!adds && space == BNY_OUT && !x->gpus[gpu].w.failed && !x->gpus[l->gpu].w.failed) {
        x->gpus[gpu].w.p->steps[step].flags |= BNY_STEP_PLACE;
        x->gpus[l->gpu].w.p->steps[l->step].flags |= BNY_STEP_PLACE;
    }
    for (size_t w = 0; w < x->words && adds; w++)
        l->v.ranks[w] |= with->ranks[w];
    *out = l->v;
    out->space = (uint8_t)space;
    msccl_import_finish(x, gpu, out);
    if (stores)
        set_cell(x, gpu, cell, out);
    return 0;
}

/* Copies within a rank are none where the data need not move. */
static int msccl_import_copy(struct import *x, int gpu, const struct bny_msccl_step *s, int k)
{
    struct value *from =
        &x->gpus[gpu].cells[msccl_import_cell_of(x, gpu, s->srcbuf, s->srcoff + k)];
    int to = msccl_import_cell_of(x, gpu, s->dstbuf, s->dstoff + k);

    if (from->block < 0)
        return msccl_import_bad(x, s, "gpu %d copies a chunk that nothing was stored in", gpu);
    if (from->space != BNY_IN && x->m->collective != BNY_ALLGATHER && !from->finished)
        return msccl_import_bad(x, s, "gpu %d copies a partial sum, which cannot be imported",
                                gpu);
    msccl_import_release(x, gpu, to, from->block);
    set_cell(x, gpu, to, from);
    return 0;
}

/* One chunk of a step. 1: done; 0: what it waits for is not there; or an error. */
static int run_part(struct import *x, int gpu, const struct bny_msccl_tb *tb,
                    const struct bny_msccl_step *s, int k)
{
    size_t pair = tb->recv >= 0 ? (size_t)tb->recv * (size_t)x->n + (size_t)gpu : 0;
    struct letter *l;
    struct value v;
    int e;

    if (s->type == MSCCL_NOP)
        return 1;
    if (s->type == MSCCL_CPY)
        return (e = msccl_import_copy(x, gpu, s, k)) ? e : 1;
    if (s->type == MSCCL_S) {
        e = post(x, tb, gpu, s,
                 &x->gpus[gpu].cells[msccl_import_cell_of(x, gpu, s->srcbuf, s->srcoff + k)]);
        return e ? e : 1;
    }
    l = x->first[pair];
    if (!l || l->chan != tb->chan)
        return 0;
    x->first[pair] = l->next;
    if (!l->next)
        x->last[pair] = NULL;
    e = msccl_import_take(x, tb, gpu, s, k, l, &v);
    if (!e && s->type != MSCCL_R && s->type != MSCCL_RRC)
        e = post(x, tb, gpu, s, &v);
    free(l);
    return e ? e : 1;
}

/* Runs a tb as far as it goes. 1: moved, 0: not, or an error. */
static int run_tb(struct import *x, int gpu, int t)
{
    const struct bny_msccl_tb *tb = &x->m->tbs[t];
    int moved = 0;

    while (x->next[t] < tb->nsteps) {
        const struct bny_msccl_step *s = &x->m->steps[tb->first + x->next[t]];
        int rc;

        if (s->depid >= 0 && x->next[x->m->gpus[gpu].first + s->depid] <= s->deps)
            break;
        rc = run_part(x, gpu, tb, s, x->part[t]);
        if (rc <= 0)
            return rc < 0 ? rc : moved;
        moved = 1;
        if (++x->part[t] >= s->cnt) {
            x->part[t] = 0;
            x->next[t]++;
        }
    }
    return moved;
}

static int msccl_import_run(struct import *x)
{
    int moved = 1;

    while (moved) {
        moved = 0;
        for (int g = 0; g < x->n; g++)
            for (int t = x->m->gpus[g].first; t < x->m->gpus[g].first + x->m->gpus[g].ntbs;
                 t++) {
                int rc = run_tb(x, g, t);

                if (rc < 0)
                    return rc;
                moved |= rc;
            }
    }
    for (int t = 0; t < x->m->ntbs; t++)
        if (x->next[t] < x->m->tbs[t].nsteps)
            return msccl_import_bad(
                x, &x->m->steps[x->m->tbs[t].first + x->next[t]],
                "this step waits for ever (or its channels overtake one another)");
    for (size_t pair = 0; pair < (size_t)x->n * (size_t)x->n; pair++)
        if (x->first[pair])
            return x->rc =
                       bny_fail(BANYAN_EINVAL,
                                "%s: gpu %zu sends gpu %zu a chunk that it does not receive",
                                x->name, pair / (size_t)x->n, pair % (size_t)x->n);
    return 0;
}

/* ---- begin and end ---- */

static int check_shape(const struct import *x)
{
    for (int g = 0; g < x->n; g++) {
        const int *chunks = x->m->gpus[g].chunks;
        int in = x->m->collective == BNY_ALLGATHER ? 1 : x->nblocks;
        int out = x->m->collective == BNY_REDUCE_SCATTER ? 1 : x->nblocks;

        if (chunks[0] > in || chunks[1] > out || (chunks[0] < in && chunks[1] < out))
            return bny_fail(
                BANYAN_ENOTSUP,
                "%s:%d: gpu %d has %d input and %d output chunks, where %s of %d chunks a "
                "loop has %d and %d here",
                x->name, x->m->gpus[g].line, g, chunks[0], chunks[1],
                bny_collective_name(x->m->collective), x->m->nchunks, in, out);
    }
    return 0;
}

/* A few numbers of a short file can ask for more memory than there is. */
static int check_size(const struct import *x)
{
    int64_t parts = 0, cells = 0;

    for (int i = 0; i < x->m->nsteps; i++)
        parts += x->m->steps[i].cnt;
    for (int g = 0; g < x->n; g++)
        cells += 2 * x->nblocks + x->m->gpus[g].chunks[2];
    if (parts > PARTS_MAX ||
        cells > CELLS_BYTES_MAX / (int64_t)(sizeof(struct value) + x->words * sizeof(uint64_t)))
        return bny_fail(
            BANYAN_ENOTSUP,
            "%s: its steps move %lld chunks and its buffers hold %lld, which is too many",
            x->name, (long long)parts, (long long)cells);
    return 0;
}

/* Cells of one gpu, with its operands in them. */
static int gpu_open(struct import *x, int gpu, uint64_t **bits)
{
    struct gpu *g = &x->gpus[gpu];
    int ag = x->m->collective == BNY_ALLGATHER, rs = x->m->collective == BNY_REDUCE_SCATTER;
    int in = ag ? 1 : x->nblocks, out = rs ? 1 : x->nblocks;

    g->at[1] = in;
    g->at[2] = in + out;
    g->ncells = in + out + x->m->gpus[gpu].chunks[2];
    g->cells = calloc((size_t)g->ncells, sizeof *g->cells);
    g->owner[0] = malloc(2 * (size_t)x->nblocks * sizeof *g->owner[0]);
    *bits = calloc((size_t)g->ncells * x->words, sizeof **bits);
    bny_writer_init(&g->w, x->m->name, x->m->collective, x->n, gpu, -1, (uint32_t)x->nblocks,
                    !ag && !rs);
    if (!g->cells || !g->owner[0] || !*bits || g->w.failed) {
        free(*bits);
        *bits = NULL;
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for gpu %d", x->name, gpu);
    }
    g->w.p->owned_only = ag || rs;
    g->owner[1] = g->owner[0] + x->nblocks;
    memset(g->owner[0], 0xff, 2 * (size_t)x->nblocks * sizeof *g->owner[0]);
    for (int c = 0; c < g->ncells; c++)
        g->cells[c] = (struct value){ .block = -1, .ranks = *bits + (size_t)c * x->words };
    for (int b = 0; b < in; b++) {
        struct value *v = &g->cells[ag ? msccl_import_cell_of(x, gpu, 'i', 0) : b];

        v->block = ag ? gpu : b;
        v->space = BNY_IN;
        v->ranks[gpu / 64] |= 1ull << gpu % 64;
    }
    if (ag)
        emit(x, gpu, BNY_KEEP, -1, 0, BNY_IN, BNY_OUT, gpu);
    return 0;
}

static int finish_programs(struct import *x, struct bny_program_set *out)
{
    int e = 0;

    out->p = calloc((size_t)x->n, sizeof *out->p);
    out->n = x->n;
    out->collective = x->m->collective;
    if (!out->p)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for its programs", x->name);
    for (int g = 0; g < x->n && !e; g++)
        e = bny_writer_finish(&x->gpus[g].w, &out->p[g]);
    return e;
}

static void import_close(struct import *x)
{
    for (int g = 0; g < x->n && x->gpus; g++) {
        if (x->gpus[g].cells)
            free(x->gpus[g].cells[0].ranks); /* of all cells: one piece */
        free(x->gpus[g].cells);
        free(x->gpus[g].owner[0]);
        bny_program_free(x->gpus[g].w.p);
        free(x->gpus[g].w.extra);
    }
    for (size_t pair = 0; x->first && pair < (size_t)x->n * (size_t)x->n; pair++)
        for (struct letter *l = x->first[pair], *next; l; l = next) {
            next = l->next;
            free(l);
        }
    free(x->gpus);
    free(x->first);
    free(x->last);
    free(x->next);
    free(x->part);
}

static int convert(struct bny_program_set *out, const struct bny_msccl *m, const char *name)
{
    size_t pairs = (size_t)m->ngpus * (size_t)m->ngpus;
    struct import x = {
        .name = name,
        .m = m,
        .n = m->ngpus,
        .nblocks = m->collective == BNY_ALLREDUCE ? m->nchunks : m->ngpus,
        .words = (size_t)(m->ngpus + 63) / 64,
        .gpus = calloc((size_t)m->ngpus, sizeof *x.gpus),
        .first = calloc(pairs, sizeof *x.first),
        .last = calloc(pairs, sizeof *x.last),
        .next = calloc((size_t)m->ntbs + 1, sizeof *x.next),
        .part = calloc((size_t)m->ntbs + 1, sizeof *x.part),
    };
    int e = check_shape(&x);
    uint64_t *bits;

    if (!e && (!x.gpus || !x.first || !x.last || !x.next || !x.part))
        e = bny_fail(BANYAN_ENOMEM, "%s: no memory for %d gpus", name, m->ngpus);
    if (!e)
        e = check_size(&x);
    for (int g = 0; g < x.n && !e; g++)
        e = gpu_open(&x, g, &bits);
    if (!e)
        e = msccl_import_run(&x);
    if (!e)
        e = finish_programs(&x, out);
    import_close(&x);
    return e;
}

void bny_program_set_free(struct bny_program_set *set)
{
    for (int r = 0; set->p && r < set->n; r++)
        bny_program_free(set->p[r]);
    free(set->p);
    set->p = NULL;
}

int bny_program_set_prove(struct bny_program_set *set, int max_slots, char *why, size_t why_cap)
{
    int e = -BANYAN_EINVAL;

    for (int slots = 0; slots <= max_slots && e == -BANYAN_EINVAL;
         slots = slots ? 2 * slots : 1) {
        e = bny_program_verify(set->p, set->n, slots, why, why_cap);
        set->slots = slots;
        if (e && slots == 0 && !strstr(why, "waits for ever"))
            break; /* more buffers do not help */
    }
    return e;
}

int bny_msccl_parse(struct bny_program_set *out, const char *text, size_t len, const char *name)
{
    struct bny_msccl m;
    char why[256];
    int e;

    memset(out, 0, sizeof *out);
    e = bny_msccl_read(&m, text, len, name);
    if (e)
        return e;
    e = convert(out, &m, name);
    bny_msccl_free(&m);
    if (!e && bny_program_set_prove(out, 8, why, sizeof why) != 0)
        e = bny_fail(BANYAN_EINVAL, "%s is no correct %s: %s", name,
                     bny_collective_name(out->collective), why);
    if (e)
        bny_program_set_free(out);
    return e;
}

int bny_msccl_load(struct bny_program_set *out, const char *path)
{
    size_t len;
    char *text = bny_file_read(path, BNY_MSCCL_BYTES_MAX, &len);
    int e;

    memset(out, 0, sizeof *out);
    if (!text)
        return -BANYAN_EINVAL;
    e = bny_msccl_parse(out, text, len, path);
    free(text);
    return e;
}
