/* SPDX-License-Identifier: BSD-3-Clause */
/* Programs as MSCCL XML. Each lane (peer, channel, direction) of a
 * rank becomes a tb; dependencies between tbs become depid and deps, one a step, further ones
 * on nop steps before it. */
#include "tools/msccl_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "transport/wire.h"

#define DENOMINATOR_MAX 4096

struct place { /* of a step in the file */
    int tb, s;
};

struct export
{
    FILE *to;
    const struct bny_program *p;
    const int *first, *count; /* [nblocks] chunks of a block */
    struct place *at;         /* [nsteps] */
    int ntbs;
};

static int is_recv(const struct bny_step *s)
{
    return s->kind == BNY_RECV_ADD || s->kind == BNY_RECV_COPY;
}

/* The lane of a step as a number; KEEPs have one of their own. */
static int lane_of(const struct bny_step *s)
{
    return s->peer < 0 ? 0 : 1 + (s->peer * BNY_CHANNELS + s->chan) * 2 + is_recv(s);
}

/* Steps that do nothing in this format: finishing a sum in place. */
static int silent(const struct bny_step *s)
{
    return s->kind == BNY_KEEP && s->src == s->dst;
}

/* Earlier steps in other tbs that step i waits for, through silent ones. */
static void msccl_export_wait_for(const struct export *x, uint32_t i, int tb, int *latest)
{
    const struct bny_step *s = &x->p->steps[i];

    for (uint32_t k = 0; k < s->ndeps; k++) {
        uint32_t d = x->p->deps[s->dep + k];

        if (silent(&x->p->steps[d]))
            msccl_export_wait_for(x, d, tb, latest);
        else if (x->at[d].tb != tb && x->at[d].s > latest[x->at[d].tb])
            latest[x->at[d].tb] = x->at[d].s;
    }
}

static int count_waits(const int *latest, int ntbs)
{
    int n = 0;

    for (int t = 0; t < ntbs; t++)
        n += latest[t] >= 0;
    return n;
}

static char buffer(const struct export *x, uint8_t space)
{
    return space == BNY_IN ? 'i' : space == BNY_OUT ? 'o' : 's';
}

/* The offset of a block in a buffer, in chunks. Both scratch memories are in s, one behind the
 * other. */
static int offset(const struct export *x, uint8_t space, uint32_t block)
{
    int own = (space == BNY_OUT && x->p->collective == BNY_REDUCE_SCATTER) ||
              (space == BNY_IN && x->p->collective == BNY_ALLGATHER);
    int all = x->first[x->p->nblocks - 1] + x->count[x->p->nblocks - 1];

    return own ? 0 : x->first[block] + (space == BNY_SCRATCH2 ? all : 0);
}

static void write_step(const struct export *x, uint32_t i, int s, int depid, int deps)
{
    static const char *const types[] = { "s", "rrc", "r", "s", "cpy" };
    const struct bny_step *st = &x->p->steps[i];
    uint8_t src = st->src == BNY_NOWHERE ? st->dst : st->src,
            dst = st->dst == BNY_NOWHERE ? st->src : st->dst;
    int cnt = 0;

    for (uint32_t b = st->block; b < st->block + st->nblocks; b++)
        cnt += x->count[b];
    fprintf(x->to,
            "      <step s=\"%d\" type=\"%s\" srcbuf=\"%c\" srcoff=\"%d\" dstbuf=\"%c\" "
            "dstoff=\"%d\" cnt=\"%d\" "
            "depid=\"%d\" deps=\"%d\" hasdep=\"1\"/>\n",
            s, types[st->kind], buffer(x, src), offset(x, src, st->block), buffer(x, dst),
            offset(x, dst, st->block), cnt, depid, deps);
}

static void write_nop(const struct export *x, int s, int depid, int deps)
{
    fprintf(x->to,
            "      <step s=\"%d\" type=\"nop\" srcbuf=\"i\" srcoff=\"0\" dstbuf=\"o\" "
            "dstoff=\"0\" cnt=\"0\" "
            "depid=\"%d\" deps=\"%d\" hasdep=\"0\"/>\n",
            s, depid, deps);
}

/* All steps of one tb; latest: scratch [ntbs]. */
static void write_tb(const struct export *x, int tb, const struct bny_step *of, int *latest)
{
    fprintf(x->to, "    <tb id=\"%d\" send=\"%d\" recv=\"%d\" chan=\"%d\">\n", tb,
            of->peer >= 0 && !is_recv(of) ? of->peer : -1,
            of->peer >= 0 && is_recv(of) ? of->peer : -1, of->chan);
    for (uint32_t i = 0; i < x->p->nsteps; i++) {
        int s = x->at[i].s, left;

        if (silent(&x->p->steps[i]) || x->at[i].tb != tb)
            continue;
        memset(latest, 0xff, (size_t)x->ntbs * sizeof *latest);
        msccl_export_wait_for(x, i, tb, latest);
        left = count_waits(latest, x->ntbs);
        s -= left > 1 ? left - 1 : 0;
        for (int t = 0; t < x->ntbs && left; t++) {
            if (latest[t] < 0)
                continue;
            if (--left)
                write_nop(x, s++, t, latest[t]);
            else
                write_step(x, i, s++, t, latest[t]);
        }
        if (s == x->at[i].s)
            write_step(x, i, s, -1, -1);
    }
    fputs("    </tb>\n", x->to);
}

/* Where each step will stand: its tb, and its number there behind its nops. */
static void place_steps(struct export *x, int *tb_of_lane, int *used, int *latest)
{
    for (uint32_t i = 0; i < x->p->nsteps; i++) {
        const struct bny_step *s = &x->p->steps[i];
        int lane = lane_of(s), waits;

        if (silent(s))
            continue;
        if (tb_of_lane[lane] < 0)
            tb_of_lane[lane] = x->ntbs++;
        memset(latest, 0xff, (size_t)x->ntbs * sizeof *latest);
        msccl_export_wait_for(x, i, tb_of_lane[lane], latest);
        waits = count_waits(latest, x->ntbs);
        x->at[i].tb = tb_of_lane[lane];
        x->at[i].s = used[x->at[i].tb] + (waits > 1 ? waits - 1 : 0);
        used[x->at[i].tb] = x->at[i].s + 1;
    }
}

static int write_gpu(FILE *to, const struct bny_program *p, const int *first, const int *count)
{
    int all = first[p->nblocks - 1] + count[p->nblocks - 1],
        lanes = 1 + p->nranks * BNY_CHANNELS * 2;
    struct export x = { .to = to,
                        .p = p,
                        .first = first,
                        .count = count,
                        .at = calloc((size_t)p->nsteps + 1, sizeof *x.at) };
    int *tb_of_lane = malloc((size_t)lanes * sizeof *tb_of_lane);
    int *used = calloc((size_t)lanes, sizeof *used),
        *latest = malloc((size_t)lanes * sizeof *latest);
    int e = -BANYAN_ENOMEM;

    if (x.at && tb_of_lane && used && latest) {
        memset(tb_of_lane, 0xff, (size_t)lanes * sizeof *tb_of_lane);
        place_steps(&x, tb_of_lane, used, latest);
        fprintf(to, "  <gpu id=\"%d\" i_chunks=\"%d\" o_chunks=\"%d\" s_chunks=\"%d\">\n",
                p->rank, p->collective == BNY_ALLGATHER ? 1 : all,
                p->collective == BNY_REDUCE_SCATTER ? 1 : all,
                p->uses_scratch2  ? 2 * all
                : p->uses_scratch ? all
                                  : 0);
        for (int tb = 0; tb < x.ntbs; tb++)
            for (uint32_t i = 0; i < p->nsteps; i++)
                if (!silent(&p->steps[i]) && x.at[i].tb == tb) {
                    write_tb(&x, tb, &p->steps[i], latest);
                    break;
                }
        fputs("  </gpu>\n", to);
        e = 0;
    }
    free(x.at);
    free(tb_of_lane);
    free(used);
    free(latest);
    return e;
}

/* Chunks of equal size, such that each block is some of them. 0 or -1. */
static int chunk_blocks(const struct bny_program *p, int *first, int *count)
{
    uint64_t den = 1;
    int all = 0;

    for (uint32_t b = 0; p->weight_num && b < p->nblocks; b++) {
        uint64_t a = den, c = p->weight_den[b];

        while (c) {
            uint64_t r = a % c;

            a = c;
            c = r;
        }
        den = den / a * p->weight_den[b];
        if (den > DENOMINATOR_MAX)
            return -1;
    }
    for (uint32_t b = 0; b < p->nblocks; b++) {
        first[b] = all;
        count[b] = p->weight_num ? (int)(den / p->weight_den[b] * p->weight_num[b]) : 1;
        all += count[b];
    }
    return 0;
}

int msccl_write(FILE *to, struct bny_program *const *programs, int n)
{
    const struct bny_program *p = programs[0];
    int *first = calloc((size_t)p->nblocks + 1, sizeof *first),
        *count = calloc((size_t)p->nblocks + 1, sizeof *count);
    int e = 0;

    if (!first || !count)
        e = bny_fail(BANYAN_ENOMEM, "no memory to export %s", p->schedule);
    else if (p->collective != BNY_ALLREDUCE && p->collective != BNY_ALLGATHER &&
             p->collective != BNY_REDUCE_SCATTER)
        e = bny_fail(
            BANYAN_ENOTSUP,
            "%s has no place in MSCCL XML; allreduce, allgather and reduce_scatter have",
            bny_collective_name(p->collective));
    else if (p->owned_first)
        e = bny_fail(
            BANYAN_ENOTSUP,
            "%s of several trees a rank has no place in MSCCL XML here: plan it with k=1",
            p->schedule);
    else if (chunk_blocks(p, first, count))
        e = bny_fail(BANYAN_ENOTSUP, "%s has weights without a common denominator up to %d",
                     p->schedule, DENOMINATOR_MAX);
    if (!e) {
        fprintf(to,
                "<algo name=\"%s\" proto=\"Simple\" nchannels=\"%d\" nchunksperloop=\"%d\" "
                "ngpus=\"%d\" coll=\"%s\" "
                "inplace=\"0\">\n",
                p->schedule, BNY_CHANNELS, first[p->nblocks - 1] + count[p->nblocks - 1], n,
                bny_collective_name(p->collective));
        for (int r = 0; r < n && !e; r++)
            if (write_gpu(to, programs[r], first, count) != 0)
                e = bny_fail(BANYAN_ENOMEM, "no memory to export %s", p->schedule);
        fputs("</algo>\n", to);
    }
    free(first);
    free(count);
    return e;
}
