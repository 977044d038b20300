/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_run: starts N ranks of any program on this machine. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "tools/local_ranks.h"
#include "tools/rank_binding.h"

static const char usage[] =
    "usage: banyan_run -n N [options] PROGRAM [ARGUMENT...]\n"
    "Starts N ranks of PROGRAM on this machine; banyan_comm_init_env() in them finds the "
    "others. Standard input goes to rank 0.\n"
    "  -n, --ranks N      number of ranks, 1 to 4096\n"
    "  --timeout S        end the job after S seconds (exit status 124)\n"
    "  --bind             give each rank a CPU, and the free ones near it for its threads: "
    "spread over\n"
    "                     packages, memories and caches, neighbours side by side; default: "
    "unbound\n"
    "  --bind=list        run rank i on the (i mod CPUs)-th CPU this process may use\n"
    "  --report-bindings  say which CPUs --bind gives\n"
    "  --tag              begin every line a rank prints with [rank]\n"
    "  --grace S          when a rank fails, the others have S seconds to end (5); 0: none\n"
    "  --keep-going       when a rank fails, the others run on\n"
    "  --restart N        a rank that fails is started again, up to N times each, and meets "
    "the others,\n"
    "                     which run on, by banyan_comm_join(); then as --keep-going. Also "
    "--max-restarts\n"
    "  -h, --help         this text\n"
    "  -V, --version      the version\n"
    "The exit status is the first failing rank's, 128 + signal when it was killed; with "
    "--keep-going how\n"
    "many ranks failed (100: or more).\n";

static int banyan_run_bad(const char *what, const char *value)
{
    fprintf(stderr, "banyan_run: %s%s; see banyan_run --help\n", what, value);
    return 2;
}

/* Where the ranks go, or would. NULL after a message. */
static struct bny_rank_binding *places_of(struct bny_local_ranks *job, int near, int report)
{
    struct bny_rank_binding *places = bny_rank_bindings(job->nranks);

    if (!places) {
        fprintf(stderr, "banyan_run: --bind: %s\n", banyan_last_error());
        return NULL;
    }
    for (int r = 0; r < job->nranks && report; r++)
        fprintf(stderr, "banyan_run: rank %d: %s%s\n", r, places[r].text,
                near ? "" : ", if it were bound (--bind)");
    job->bindings = near ? places : NULL;
    return places;
}

enum { OPT_TIMEOUT = 256, OPT_BIND, OPT_REPORT, OPT_TAG, OPT_GRACE, OPT_KEEP, OPT_RESTART };
static const struct option longs[] = {
    { "ranks", required_argument, NULL, 'n' },
    { "timeout", required_argument, NULL, OPT_TIMEOUT },
    { "bind", optional_argument, NULL, OPT_BIND },
    { "report-bindings", no_argument, NULL, OPT_REPORT },
    { "tag", no_argument, NULL, OPT_TAG },
    { "grace", required_argument, NULL, OPT_GRACE },
    { "keep-going", no_argument, NULL, OPT_KEEP },
    { "restart", required_argument, NULL, OPT_RESTART },
    { "max-restarts", required_argument, NULL, OPT_RESTART },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, 'V' },
    { NULL, 0, NULL, 0 },
};

/* A whole number in [least, most]. */
static int banyan_run_whole(const char *text, long least, long most, int *out)
{
    char *end;
    long v = strtol(text, &end, 10);

    *out = (int)v;
    return end != text && !*end && v >= least && v <= most;
}

int main(int argc, char **argv)
{
    struct bny_local_ranks job = { .tool = "banyan_run" };
    struct bny_rank_binding *places = NULL;
    int near = 0, report = 0, c;
    char *end;

    /* "+": options end at the program's name. */
    while ((c = getopt_long(argc, argv, "+n:hV", longs, NULL)) != -1) {
        switch (c) {
        case 'n':
            if (!banyan_run_whole(optarg, 1, 4096, &job.nranks))
                return banyan_run_bad("-n wants a number from 1 to 4096, got ", optarg);
            break;
        case OPT_TIMEOUT:
            job.timeout_s = strtod(optarg, &end);
            if (end == optarg || *end || !(job.timeout_s > 0))
                return banyan_run_bad("--timeout wants seconds, got ", optarg);
            break;
        case OPT_BIND:
            near = !optarg || !strcmp(optarg, "near");
            job.bind = optarg && !strcmp(optarg, "list");
            if (!near && !job.bind && strcmp(optarg, "none") != 0)
                return banyan_run_bad("--bind wants near, list or none, got ", optarg);
            break;
        case OPT_REPORT: report = 1; break;
        case OPT_TAG: job.tag = 1; break;
        case OPT_GRACE:
            job.grace_s = strtod(optarg, &end);
            if (end == optarg || *end || !(job.grace_s >= 0))
                return banyan_run_bad("--grace wants seconds, got ", optarg);
            job.grace_s = job.grace_s > 0 ? job.grace_s : -1;
            break;
        case OPT_KEEP: job.keep_going = 1; break;
        case OPT_RESTART:
            if (!banyan_run_whole(optarg, 0, 1000000, &job.restarts))
                return banyan_run_bad("--restart wants a number from 0 to 1000000, got ",
                                      optarg);
            job.keep_going = 1;
            break;
        case 'h': fputs(usage, stdout); return 0;
        case 'V': printf("banyan_run %s\n", banyan_version_string()); return 0;
        default: return banyan_run_bad("wrong option", ""); /* getopt has said which */
        }
    }
    if (!job.nranks)
        return banyan_run_bad("-n is missing", "");
    if (job.keep_going && job.grace_s != 0)
        return banyan_run_bad(
            "--grace ends the ranks that --keep-going and --restart leave alone: give "
            "one of them",
            "");
    if (optind >= argc)
        return banyan_run_bad("the program to start is missing", "");
    if ((near || (report && !job.bind)) && !(places = places_of(&job, near, report)))
        return 125;
    c = bny_local_ranks_run(&job, argv + optind);
    free(places);
    return c;
}
