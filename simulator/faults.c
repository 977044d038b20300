/* SPDX-License-Identifier: BSD-3-Clause */
#include "simulator/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

static const char *const names[SIM_FAULT_KINDS] = { "kill",   "crash",  "stop",  "cut",
                                                    "split",  "vanish", "reset", "break",
                                                    "oneway", "partial" };

int sim_faults_parse(int count[SIM_FAULT_KINDS], const char *text)
{
    while (*text) {
        size_t len = strcspn(text, "=,");
        int k = 0;

        while (k < SIM_FAULT_KINDS &&
               (strlen(names[k]) != len || strncmp(names[k], text, len) != 0))
            k++;
        if (k == SIM_FAULT_KINDS) {
            fprintf(
                stderr,
                "banyan_sim: --faults %.*s: there are kill, crash, stop, cut, split, vanish, "
                "reset, break, oneway and partial\n",
                (int)len, text);
            return -1;
        }
        count[k] = text[len] == '=' ? atoi(text + len + 1) : 1;
        text += strcspn(text, ",");
        text += *text == ',';
    }
    return 0;
}

/* Early moments as often as late ones of any magnitude: init is short, training long. */
static uint64_t moment(uint64_t window_ns, uint64_t *seed)
{
    uint64_t span = window_ns >> bny_rng_below(seed, 12);

    return bny_rng_below(seed, span ? span : 1);
}

/* Of those that are for parts of the network. */
static int lasts_long(enum sim_fault_kind kind)
{
    return kind == SIM_SPLIT || kind == SIM_ONEWAY || kind == SIM_PARTIAL;
}

static struct sim_fault faults_draw(enum sim_fault_kind kind, uint64_t window_ns,
                                    uint64_t *seed)
{
    struct sim_fault f = { .kind = kind };

    f.victim = (int)bny_rng_below(seed, (uint64_t)sim_nranks);
    f.other = (int)bny_rng_below(seed, (uint64_t)sim_nranks);
    f.at = moment(window_ns, seed);
    f.for_ns = (uint64_t)10 * SIM_MS << bny_rng_below(seed, 11);
    f.number = 1 + bny_rng_below(seed, (uint64_t)1 << (4 + bny_rng_below(seed, 12)));
    f.bridge = -1;
    if (lasts_long(kind)) { /* of any sizes, and for longer than silence may last, or not */
        int hosts = sim_net_nhosts();

        f.number = hosts < 2 ? 0 : 1 + f.number % (uint64_t)(hosts - 1);
        f.for_ns = (uint64_t)2 * SIM_S << bny_rng_below(seed, 4);
        if (kind == SIM_SPLIT && bny_rng_below(seed, 4) == 0)
            f.bridge = sim_ranks[f.other].host;
    }
    if (kind == SIM_PARTIAL)
        f.ways = 1 + (int)bny_rng_below(seed, 3);
    return f;
}

int sim_faults_draw(struct sim_fault *out, const int count[SIM_FAULT_KINDS], int some,
                    uint64_t window_ns, uint64_t *seed)
{
    int n = 0;

    for (int k = 0; k < SIM_FAULT_KINDS; k++) {
        int most = count[k];

        if (some && most)
            most = (int)bny_rng_below(seed, (uint64_t)most + 1);
        for (int i = 0; i < most && n < SIM_FAULTS_MAX; i++)
            out[n++] = faults_draw((enum sim_fault_kind)k, window_ns, seed);
    }
    return n;
}

enum { THERE = 1, BACK = 2, BOTH = THERE | BACK };

static void cut(int a, int b, int ways, int is_cut)
{
    if (a == b)
        return;
    if (ways & THERE)
        sim_net_cut(a, b, is_cut);
    if (ways & BACK)
        sim_net_cut(b, a, is_cut);
    sim_sock_cut_changed();
}

static int part_of_host(const struct sim_fault *f, int host)
{
    int n = sim_net_nhosts(), victim = sim_ranks[f->victim].host;

    if (f->kind == SIM_PARTIAL)
        return host == victim ? 0 : (uint64_t)((host - victim + n) % n) <= f->number ? 1 : -1;
    return host == f->bridge ? -1 : (uint64_t)((host + f->victim) % n) < f->number;
}

int sim_fault_part(const struct sim_fault *f, int r)
{
    return part_of_host(f, sim_ranks[r].host);
}

static void faults_split(const struct sim_fault *f, int is_cut)
{
    int ways = f->kind == SIM_ONEWAY ? THERE : f->kind == SIM_PARTIAL ? f->ways : BOTH;

    for (int a = 0; a < sim_net_nhosts(); a++)
        for (int b = 0; b < sim_net_nhosts(); b++)
            if (part_of_host(f, a) == 0 && part_of_host(f, b) == 1)
                cut(a, b, ways, is_cut);
}

static void heal(void *a, uint64_t b)
{
    const struct sim_fault *f = a;

    (void)b;
    if (f->kind == SIM_STOP)
        sim_rank_stop(&sim_ranks[f->victim], 0);
    else if (lasts_long(f->kind))
        faults_split(f, 0);
    else
        cut(sim_ranks[f->victim].host, sim_ranks[f->other].host, BOTH, 0);
}

static void strike(void *a, uint64_t b)
{
    struct sim_fault *f = a;
    struct sim_rank *r = &sim_ranks[f->victim];

    (void)b;
    sim_mix((uint64_t)f->kind + 0xfa000000u);
    switch (f->kind) {
    case SIM_KILL: sim_rank_kill(r); break;
    case SIM_STOP:
        sim_rank_stop(r, 1);
        sim_at(sim_now + f->for_ns, heal, f, 0);
        break;
    case SIM_CUT:
        cut(r->host, sim_ranks[f->other].host, BOTH, 1);
        sim_at(sim_now + f->for_ns, heal, f, 0);
        break;
    case SIM_SPLIT:
    case SIM_ONEWAY:
    case SIM_PARTIAL:
        faults_split(f, 1);
        sim_at(sim_now + f->for_ns, heal, f, 0);
        break;
    case SIM_VANISH:
        for (int h = 0; h < sim_net_nhosts(); h++)
            cut(r->host, h, BOTH, 1);
        for (int i = 0; i < sim_nranks; i++)
            if (sim_ranks[i].host == r->host)
                sim_ranks[i].fate = SIM_DEAD; /* its kernel says nothing more */
        break;
    case SIM_RESET: sim_sock_reset(r, f->number, 0); break;
    case SIM_BREAK: sim_sock_reset(r, f->number, 1); break;
    default: break;
    }
}

void sim_faults_plan(struct sim_fault *faults, int n)
{
    for (int i = 0; i < n; i++) {
        struct sim_fault *f = malloc(sizeof *f);

        if (!f)
            sim_no_memory();
        faults[i].at += sim_time();
        *f = faults[i];
        if (f->kind == SIM_CRASH)
            sim_ranks[f->victim].die_at_call = sim_ranks[f->victim].calls + f->number;
        else
            sim_at(f->at, strike, f, 0);
    }
}

void sim_fault_print(const struct sim_fault *f)
{
    printf("  %s of rank %d", names[f->kind], f->victim);
    if (f->kind == SIM_CRASH)
        printf(" in its call %llu\n", (unsigned long long)f->number);
    else
        printf(" at %.3f ms", (double)f->at * 1e-6);
    if (f->kind == SIM_CUT)
        printf(", from rank %d", f->other);
    if (f->kind == SIM_PARTIAL)
        printf(", %s ranks", f->ways == THERE  ? "not heard by"
                             : f->ways == BACK ? "not hearing"
                                               : "from");
    if (f->kind == SIM_SPLIT || f->kind == SIM_ONEWAY)
        printf(f->kind == SIM_SPLIT ? ", from part" : ", not heard by part");
    for (int r = 0; r < sim_nranks && r < 64 && lasts_long(f->kind); r++)
        if (sim_fault_part(f, r) > 0 || (sim_fault_part(f, r) < 0 && f->kind == SIM_SPLIT))
            printf(" %s%d", sim_fault_part(f, r) < 0 ? "bridge " : "", r);
    if (f->kind == SIM_CUT || f->kind == SIM_STOP || lasts_long(f->kind))
        printf(", for %.0f ms", (double)f->for_ns * 1e-6);
    if (f->kind != SIM_CRASH)
        printf("\n");
}

/* Links are hosts'. */
int sim_fault_hits(const struct sim_fault *f, int r)
{
    int host = sim_ranks[r].host;

    if (lasts_long(f->kind))
        return f->kind != SIM_PARTIAL || sim_fault_part(f, r) >= 0;
    if (f->kind == SIM_CUT && sim_ranks[f->other].host == host)
        return 1;
    if (f->kind == SIM_CUT || f->kind == SIM_VANISH)
        return sim_ranks[f->victim].host == host;
    return f->kind != SIM_RESET && f->kind != SIM_BREAK && f->victim == r;
}
