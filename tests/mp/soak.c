/* SPDX-License-Identifier: BSD-3-Clause */
/* Random faults against real processes:
 *   soak ROUNDS [SEED]   rounds; each prints its line and its seed, a failed one its output.
 *                        Without SEED times BANYAN_TEST_SCALE
 *   soak ROUNDS SEED TRANSPORT [KINDS]   over that one only (any: shm and tcp; verbs: 2 to 4
 *                        ranks, on interfaces by BANYAN_TEST_IFNAMES), and those kinds only,
 *                        with commas; SEED 0: BANYAN_TEST_SEED, as without any
 *   soak 1 SEED KIND PLACE TRANSPORT RANKS   one round again
 * Exit status 0 when none failed. scripts/soak builds and runs it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "tests/support/mp.h"

static const char *const kinds[] = { "kill",     "double", "triple", "stop",
                                     "stopcont", "exit",   "abort",  "reset" };
static const char *const places[] = { "first", "chunk", "between", "init", "finalize" };
static const char *const transports[] = { "shm", "tcp" };

static struct {
    uint64_t rounds, failed, late, worst_ns;
} total;

static void add_times(const struct mp_shared *out, int n)
{
    for (int r = 0; r < n; r++) {
        uint64_t ns = atomic_load(&out->value[r][3]);

        total.worst_ns = ns > total.worst_ns ? ns : total.worst_ns;
        total.late += ns > 100000000u;
    }
}

static void count(int bad, uint64_t begin, const char *what, const char *where,
                  const char *transport, int n, uint64_t seed)
{
    printf("%s %s %s %d ranks seed %llu: %s in %.2f s\n", what, where, transport, n,
           (unsigned long long)seed, bad ? "FAILED" : "ok",
           (double)(bny_now_ns() - begin) * 1e-9);
    fflush(stdout);
    total.rounds++;
    total.failed += (uint64_t)bad;
}

/* DPDK's interrupt thread panics without descriptors. */
static const char *all_of(const char *transport)
{
    return !strcmp(transport, "dpdk") ? "kill,exit,stop,slow,nomem,starve,abort" : "";
}

/* A job that goes on (cases_trouble.c). All who came to the end have the same members. */
static int trouble(uint64_t seed, const char *which, const char *transport, int n)
{
    static struct mp_shared out;
    struct mp mp = { .n = n,
                     .case_name = "trouble",
                     .transport = transport,
                     .arg = strcmp(which, "all") ? which : all_of(transport),
                     .seed = seed,
                     .out = &out,
                     .may_die = (1u << n) - 1,
                     .timeout_s = 120 };
    uint64_t begin = bny_now_ns(), members = 0;
    int bad = mp_run(&mp) != 0;

    for (int r = 0; !bad && r < n; r++) {
        uint64_t theirs = atomic_load(&out.value[r][0]);

        bad = theirs && members && theirs != members;
        members = theirs ? theirs : members;
    }
    /* Who did not come to the end may have been out of it: to such a rank all is lost. */
    for (int r = 0; !bad && r < n; r++)
        if (atomic_load(&out.value[r][0]) && atomic_load(&out.value[r][5]) & members) {
            fprintf(stderr, "rank %d was told that an object of a rank that lives is lost\n",
                    r);
            bad = 1;
        }
    count(bad, begin, "trouble", which, transport, n, seed);
    return bad;
}

static int one_round(uint64_t seed, const char *kind, const char *place, const char *transport,
                     int n)
{
    static struct mp_shared out;
    char arg[40];
    struct mp mp = { .n = n,
                     .case_name = "survive",
                     .transport = transport,
                     .arg = arg,
                     .seed = seed,
                     .out = &out,
                     .may_end = (1u << n) - 1, /* narrowed to the victims below */
                     .timeout_s = 60 };
    uint64_t s = seed, begin = bny_now_ns();
    int victims = !strcmp(kind, "double") ? 2 : !strcmp(kind, "triple") ? 3 : 1, bad;
    uint32_t chosen = 0;

    /* As cases_survive.c draws them. */
    for (int i = 0; i < victims; i++) {
        uint32_t v;

        do
            v = 1u << bny_rng_below(&s, (uint64_t)n);
        while (chosen & v);
        chosen |= v;
        bny_rng_next(&s); /* its time */
    }
    mp.may_end = strcmp(kind, "stopcont") && strcmp(kind, "reset") ? chosen : 0;
    snprintf(arg, sizeof arg, "%s %s", kind, place);
    bad = mp_run(&mp) != 0;
    count(bad, begin, kind, place, transport, n, seed);
    if (!bad && strcmp(kind, "stop") != 0) /* which waits for a deadline */
        add_times(&out, n);
    return bad;
}

/* Of a round that is not trouble: one of those that are asked for. */
static const char *draw_kind(const char *asked, uint64_t *s)
{
    const char *chosen[sizeof kinds / sizeof kinds[0]];
    int n = 0;

    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        size_t len = strlen(kinds[k]);
        const char *at = asked;

        while (at && (strncmp(at, kinds[k], len) != 0 || (at[len] && at[len] != ',')))
            at = (at = strchr(at, ',')) ? at + 1 : NULL;
        if (at || !*asked)
            chosen[n++] = kinds[k];
    }
    return n ? chosen[bny_rng_below(s, (uint64_t)n)] : NULL;
}

/* Returns 0 when nothing that is asked for is known. */
static int random_round(uint64_t seed, const char *only, const char *asked)
{
    uint64_t pick = seed;
    int is_slow = !strcmp(only, "verbs"), only_trouble = !strcmp(asked, "trouble");
    const char *kind = draw_kind(only_trouble ? "" : asked, &pick);
    const char *place = places[bny_rng_below(&pick, sizeof places / sizeof places[0])];
    const char *transport = transports[bny_rng_below(&pick, 2)];
    int n;

    if (!kind)
        return 0;
    n = (!strcmp(kind, "triple") ? 5 : 3) + (int)bny_rng_below(&pick, 5);
    transport = strcmp(only, "any") ? only : transport;
    if (is_slow) /* emulated devices on an emulated machine */
        n = !strcmp(kind, "triple") ? 4 : 2 + n % 3;
    if (is_slow && n < 3 && !strcmp(kind, "double"))
        n = 3;
    if (only_trouble || (!*asked && bny_rng_below(&pick, 2))) {
        n = 2 + (int)bny_rng_below(&pick, is_slow ? 3 : 6);
        trouble(seed, "all", transport, n);
        return 1;
    }
    /* A stop in init or finalize only waits for deadlines; a sleep, or a reset, needs work to
     * go on. */
    if ((!strncmp(kind, "stop", 4) || !strcmp(kind, "reset")) &&
        (!strcmp(place, "init") || !strcmp(place, "finalize")))
        place = "between";
    one_round(seed, kind, place, transport, n);
    return 1;
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 20;
    uint64_t s = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    const char *scale = getenv("BANYAN_TEST_SCALE"),
               *only = argc == 4 || argc == 5 ? argv[3] : "any",
               *asked = argc == 5 ? argv[4] : "";
    int fixed = s != 0;

    s = fixed ? s : mp_seed();
    if (argc == 7 && !strcmp(argv[3], "trouble"))
        return trouble(s, argv[4], argv[5], atoi(argv[6]));
    if (argc == 7)
        return one_round(s, argv[3], argv[4], argv[5], atoi(argv[6]));
    if (scale && !fixed)
        rounds = (uint64_t)((double)rounds * atof(scale)) + 1;
    for (uint64_t i = 0; i < rounds; i++)
        if (!random_round(bny_rng_next(&s) >> 16 | 1, only, asked)) {
            fprintf(stderr, "soak: no kind in '%s' is known\n", asked);
            return 2;
        }
    printf("%llu rounds, %llu failed; the last survivor heard of a death after %.1f ms, %llu "
           "survivors after more than 100 ms\n",
           (unsigned long long)total.rounds, (unsigned long long)total.failed,
           (double)total.worst_ns * 1e-6, (unsigned long long)total.late);
    return total.failed != 0;
}
