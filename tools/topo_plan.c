/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo plan: builds a forest for a graph, certifies it, proves its programs, and with
 * --output writes it as a plan file. With --codec it tells what a codec does on it, and which
 * one a budget chooses. "claimed" and "bound" are times over the vector on capacity 1; without
 * --schedule packed, or joint with
 * --joint. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/clock.h"
#include "base/err.h"
#include "collectives/plan/budget_choice.h"
#include "collectives/program/program.h"
#include "compress/speed.h"
#include "tools/msccl_write.h"
#include "tools/topo.h"
#include "topo/bound.h"
#include "topo/forest.h"
#include "topo/plan_file.h"

struct coded { /* codec NULL: raw data */
    const struct bny_codec *codec;
    struct bny_loss loss;
    double wire_s, cpu_s, raw_s;
    int is_refused; /* the library takes no budget on this schedule */
};

struct row {
    int slots, height;
    double gap, seconds;
    struct coded coded;
};

/* ---- a codec ---- */

static enum bny_collective collective_of(const struct topo_opts *o)
{
    static const enum bny_collective of[] = { [TOPO_ALLREDUCE] = BNY_ALLREDUCE,
                                              [TOPO_ALLGATHER] = BNY_ALLGATHER,
                                              [TOPO_REDUCE_SCATTER] = BNY_REDUCE_SCATTER,
                                              [TOPO_BROADCAST] = BNY_BROADCAST,
                                              [TOPO_REDUCE] = BNY_REDUCE };

    return of[o->collective];
}

/* Encodings on the paths of contributions up and of results down: nmse has their mean, max the
 * most of them. Proven of the programs. */
static int count_codes(struct bny_loss *up, struct bny_loss *down, const struct bny_forest *f,
                       enum bny_collective c)
{
    static const struct bny_loss
        ones[BNY_CODES] = { [BNY_CODE_UP] = { 1, 1 }, [BNY_CODE_DOWN] = { 1, 1 } },
        ups[BNY_CODES] = { [BNY_CODE_UP] = { 1, 1 } };
    struct bny_program **p = calloc((size_t)f->nranks, sizeof *p);
    struct bny_loss both = { 0, 0 };
    int e = p ? bny_compile_all(p, f, c, 0) : bny_fail(BANYAN_ENOMEM, "no memory for programs");

    if (!e)
        e = bny_program_verify_codes(p, f->nranks, ones, NULL, &both, NULL, 0);
    if (!e)
        e = bny_program_verify_codes(p, f->nranks, ups, NULL, up, NULL, 0);
    for (int r = 0; p && r < f->nranks; r++)
        bny_program_free(p[r]);
    free(p);
    *down = (struct bny_loss){ both.nmse - up->nmse, both.max - up->max };
    return e;
}

/* Times of f32 data on the busiest link, and of a rank's core. */
static struct coded price(const struct topo_opts *o, const struct bny_graph *g,
                          const struct bny_forest *f, const struct bny_codec *c,
                          const struct bny_loss *ups, const struct bny_loss *downs)
{
    struct bny_codec_speed up = bny_codec_speed(c->up, BANYAN_F32),
                           down = bny_codec_speed(c->down, BANYAN_F32);
    double elems = (double)o->bytes / 4, share = (f->nranks - 1.0) / f->nranks, goes_up,
           goes_down, cores = o->predict.cores ? (double)o->predict.cores / f->nranks : 1, q, h;
    struct coded k = { .codec = c };

    goes_up = ups->max > 0;
    goes_down = downs->max > 0;
    bny_codec_loss(c->up, &q, &h);
    k.loss = goes_up ? (struct bny_loss){ ups->nmse * q, ups->max * h } : k.loss;
    bny_codec_loss(c->down, &q, &h);
    if (goes_down)
        k.loss = (struct bny_loss){ k.loss.nmse + q, k.loss.max + h };
    k.wire_s = bny_ratio_value(f->claim.time) * elems / g->unit_Bps *
               (goes_up * up.wire_bytes + goes_down * down.wire_bytes) /
               fmax(1, goes_up + goes_down);
    k.cpu_s = elems / cores *
              (share * (goes_up * (up.encode_s + up.add_s) + goes_down * down.decode_s) +
               goes_down * (down.encode_s + down.decode_s) / f->nranks);
    return k;
}

static double seconds_of(const struct coded *k)
{
    return fmax(k->wire_s, k->cpu_s);
}

/* What --codec does; of a budget the pair that keeps it and takes the least time, or raw data.
 */
static int choose_codec(struct coded *best, const struct topo_opts *o,
                        const struct bny_graph *g, const struct bny_forest *f)
{
    const struct bny_codec *asked, *const *may = &asked;
    static const struct bny_codec none;
    struct coded raw;
    struct bny_loss up, down;
    double least = INFINITY;
    int n = 1, e = bny_codec_parse(&asked, o->predict.codecs);

    if (e)
        return e;
    if (asked->ops->linear || f->nranks > TOPO_PROVE_RANKS_MAX)
        return bny_fail(BANYAN_ENOTSUP, "--codec: %s",
                        asked->ops->linear ? "linear codecs run in stages of all ranks"
                                           : "plans of more than 1024 ranks are not proven");
    e = count_codes(&up, &down, f, collective_of(o));
    if (e)
        return e;
    raw = price(o, g, f, &none, &up, &down);
    raw.codec = NULL;
    *best = raw;
    if (asked->ops->family == BNY_CODEC_RAW)
        n = 0;
    if (asked->budget) {
        may = asked->budget->pairs;
        n = asked->budget->npairs;
        least = seconds_of(&raw);
    }
    for (int i = 0; i < n; i++) {
        struct coded k = price(o, g, f, may[i], &up, &down);
        double t = seconds_of(&k);

        if (t >= least || (may[i]->up != may[i]->down && !(up.max > 0 && down.max > 0)) ||
            (asked->budget && !bny_budget_keeps(asked->budget, &k.loss)))
            continue;
        least = t;
        *best = k;
    }
    best->raw_s = seconds_of(&raw);
    best->is_refused = asked->budget && !bny_budget_serves(f->name);
    return 0;
}

static const char *code_name(const struct bny_codec *c)
{
    return c ? c->ops->name : "raw";
}

/* null: unknown. */
static void print_known(const char *name, double x)
{
    if (isfinite(x))
        printf(",\"%s\":%.6g", name, x);
    else
        printf(",\"%s\":null", name);
}

/* "unknown" where it is not known. */
static const char *known(char text[32], double x)
{
    snprintf(text, 32, isfinite(x) ? "%.3g" : "unknown", x);
    return text;
}

static void print_codec_json(const struct coded *k)
{
    printf(",\"codec\":\"%s\",\"raw_s\":%.6g", k->codec ? k->codec->spec : "none", k->raw_s);
    if (k->is_refused)
        printf(",\"refused\":true");
    if (!k->codec)
        return;
    printf(",\"up\":\"%s\",\"down\":\"%s\",\"wire_s\":%.6g,\"cpu_s\":%.6g",
           code_name(k->codec->up), code_name(k->codec->down), k->wire_s, k->cpu_s);
    print_known("nmse", k->loss.nmse);
    print_known("max", k->loss.max);
}

static void print_codec(const struct topo_opts *o, const struct coded *k)
{
    char text[2][32];

    printf("  codec %s: ", o->predict.codecs);
    if (k->codec)
        printf("up %s, down %s; nmse %s, max %s; %.3g ms on the wire, %.3g ms of a core; ",
               code_name(k->codec->up), code_name(k->codec->down), known(text[0], k->loss.nmse),
               known(text[1], k->loss.max), 1e3 * k->wire_s, 1e3 * k->cpu_s);
    printf("raw data %.3g ms\n", 1e3 * k->raw_s);
    if (k->is_refused)
        printf("  the library takes budgets on schedules auto, star, host_star and "
               "hierarchical alone: use schedule auto, or name the pair\n");
}

/* ---- all of it ---- */

static void print_row(const struct topo_opts *o, const struct bny_graph *g,
                      const struct bny_forest *f, const struct row *r)
{
    char text[2][48];

    bny_ratio_text(f->claim.time, text[0], 48);
    bny_ratio_text(f->claim.bound, text[1], 48);
    if (!o->json) {
        printf("%s on %s: %d ranks, %d trees, %u steps, height %d\n  time %s, bound %s (%s): "
               "gap %.3g %%\n",
               f->name, g->name, f->nranks, f->ntrees, f->nsteps, r->height, text[0], text[1],
               bny_cut_kind_name(f->claim.cut_kind), 100 * r->gap);
        if (r->slots >= 0)
            printf("  no deadlock with %d buffers a channel\n", r->slots);
        if (o->predict.codecs)
            print_codec(o, &r->coded);
        printf("  %.6f s to build\n", r->seconds);
        return;
    }
    printf("{\"topo\":");
    topo_json_text(stdout, g->name);
    printf(",\"ranks\":%d,\"schedule\":", f->nranks);
    topo_json_text(stdout, f->name);
    printf(",\"trees\":%d,\"steps\":%u,\"height\":%d,\"claimed\":\"%s\",\"bound\":\"%s\","
           "\"gap\":%.6g,\"slots\":%d,"
           "\"seconds\":%.6f",
           f->ntrees, f->nsteps, r->height, text[0], text[1], r->gap, r->slots, r->seconds);
    if (o->predict.codecs)
        print_codec_json(&r->coded);
    printf("}\n");
}

/* The programs of all ranks as an algorithm of MSCCL, which does not know codecs. */
static int save_xml(const struct topo_opts *o, const struct bny_forest *f)
{
    struct bny_program **p = calloc((size_t)f->nranks, sizeof *p);
    FILE *to = NULL;
    int e = p ? bny_compile_all(p, f, collective_of(o), 1)
              : bny_fail(BANYAN_ENOMEM, "no memory for programs");

    if (!e) {
        to = fopen(o->output, "w");
        e = to ? msccl_write(to, p, f->nranks)
               : bny_fail_errno("%.200s cannot be written", o->output);
    }
    if (to && (ferror(to) | (fclose(to) != 0)) && !e)
        e = bny_fail_errno("writing %.200s", o->output);
    if (to && e)
        remove(o->output);
    for (int r = 0; p && r < f->nranks; r++)
        bny_program_free(p[r]);
    free(p);
    return e;
}

static int plan(const struct topo_opts *o, const struct bny_graph *g)
{
    int root = o->use == BNY_FOREST_ROOTED ? o->root : -1, down, e;
    uint64_t since = bny_now_ns();
    struct row r = { 0 };
    struct bny_forest *f;
    char why[256];

    if (topo_root_missing(o, g))
        return 2;
    e = topo_forest(&f, g, o);
    r.seconds = (double)(bny_now_ns() - since) * 1e-9;
    if (!e &&
        (f->claim.cut_kind == BNY_CUT_NONE || (o->joint && o->use == BNY_FOREST_ALLREDUCE)))
        e = bny_forest_certify(f, g, o->use, root, o->joint);
    if (!e)
        e = bny_forest_recheck(f, g, o->use, root, why, sizeof why);
    if (!e)
        e = topo_prove(&r.slots, f, o->use, o->slots);
    if (!e && o->predict.codecs)
        e = choose_codec(&r.coded, o, g, f);
    if (!e && o->output)
        e = topo_is_xml(o->output) ? save_xml(o, f)
                                   : bny_plan_save(o->output, f, o->use, root, g);
    if (!e) {
        r.height = bny_forest_height(f, 0);
        down = bny_forest_height(f, 1);
        r.height = down > r.height ? down : r.height;
        r.gap = f->claim.bound.num > 0
                    ? bny_ratio_value(f->claim.time) / bny_ratio_value(f->claim.bound) - 1
                    : 0;
        print_row(o, g, f, &r);
    }
    bny_forest_free(f);
    return e ? topo_failed(o->topo) : 0;
}

static int topo_plan_run(const struct topo_opts *o)
{
    struct bny_graph *g;
    int status;

    if (o->nargs)
        return topo_failed_args(o);
    if (topo_graph(&g, o))
        return topo_failed(NULL);
    status = plan(o, g);
    bny_graph_free(g);
    return status;
}

const struct topo_command topo_plan = {
    .name = "plan",
    .options = "tscrkbnjoHSJDE",
    .usage = "builds trees for a collective, with proof; --output FILE keeps them, FILE.xml "
             "for MSCCL",
    .run = topo_plan_run,
};
