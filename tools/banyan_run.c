/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_run: starts N ranks of any program on this machine. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "tools/launcher.h"
#include "tools/local_ranks.h"
#include "tools/rank_binding.h"

#define VARIABLES_MAX 256 /* -x */

static const char usage[] =
    "usage: banyan_run -n N [options] PROGRAM [ARGUMENT...]\n"
    "       banyan_run --hosts HOST:N,... | --hostfile FILE [options] PROGRAM [ARGUMENT...]\n"
    "Starts N ranks of PROGRAM on this machine, or on hosts; banyan_comm_init_env() in them "
    "finds the\n"
    "others. Standard input goes to rank 0.\n"
    "  -n, -np, --ranks N number of ranks, 1 to 4096; default with hosts: as many as they "
    "have\n"
    "  --hosts LIST       hosts and their ranks: a:4,b:4; the launcher that is installed "
    "starts them.\n"
    "                     Also --host\n"
    "  --hostfile FILE    the same, one host in each line: \"a:4\", or \"a slots=4\". Also "
    "--machinefile\n"
    "  --launcher NAME    prterun, hydra, orterun or srun; default: srun inside Slurm, else "
    "the first of\n"
    "                     prterun, hydra and orterun that is installed\n"
    "  -x NAME[=VALUE]    set a variable for the ranks, or pass it on to other hosts; "
    "BANYAN_* are\n"
    "  --output-filename PREFIX\n"
    "                     what rank R prints goes to PREFIX.R.out and PREFIX.R.err (with "
    "prterun and\n"
    "                     orterun: to files as these name them)\n"
    "  --timeout S        end the job after S seconds (exit status 124; on hosts the "
    "launcher's own;\n"
    "                     srun counts whole minutes)\n"
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
    "many ranks failed (100: or more). On hosts it is the launcher's own.\n";

#define SECONDS_MAX 1e9

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

enum {
    OPT_TIMEOUT = 256,
    OPT_BIND,
    OPT_REPORT,
    OPT_TAG,
    OPT_GRACE,
    OPT_KEEP,
    OPT_RESTART,
    OPT_HOSTS,
    OPT_HOSTFILE,
    OPT_LAUNCHER,
    OPT_OUTPUT
};
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
    { "hosts", required_argument, NULL, OPT_HOSTS },
    { "host", required_argument, NULL, OPT_HOSTS },
    { "hostfile", required_argument, NULL, OPT_HOSTFILE },
    { "machinefile", required_argument, NULL, OPT_HOSTFILE },
    { "launcher", required_argument, NULL, OPT_LAUNCHER },
    { "output-filename", required_argument, NULL, OPT_OUTPUT },
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

/* For ranks of this machine: they inherit the environment. 0, or 2 after a message. */
static int set_variables(const struct bny_launcher_job *far)
{
    for (int i = 0; i < far->nvariables; i++)
        if (strchr(far->variables[i], '=') && putenv(far->variables[i]) != 0)
            return banyan_run_bad("-x: no memory for ", far->variables[i]);
    return 0;
}

struct options {
    struct bny_local_ranks job;
    struct bny_launcher_job far;
    int near, report;
};

/* Seconds, in [least, SECONDS_MAX]. */
static int banyan_run_seconds(const char *text, double least, double *out)
{
    char *end;

    *out = strtod(text, &end);
    return end != text && !*end && *out >= least && *out <= SECONDS_MAX;
}

/* An option that may be given once. 0 or 2. */
static int take_once(const char *name, const char **to)
{
    if (*to)
        return banyan_run_bad(name, " is given twice: name all hosts in one");
    *to = optarg;
    return 0;
}

/* The options that ranks on other hosts have, too. 0, or 2 after a message; -1: c is not one of
 * these. */
static int take_common(struct options *o, int c)
{
    switch (c) {
    case 'n':
        if (!banyan_run_whole(optarg, 1, 4096, &o->job.nranks))
            return banyan_run_bad("-n wants a number from 1 to 4096, got ", optarg);
        return 0;
    case 'x':
        if (!*optarg || *optarg == '=')
            return banyan_run_bad("-x wants NAME or NAME=value, got ", optarg);
        if (o->far.nvariables == VARIABLES_MAX)
            return banyan_run_bad("too many -x: the first that is too much is ", optarg);
        o->far.variables[o->far.nvariables++] = optarg;
        return 0;
    case OPT_TIMEOUT:
        if (!banyan_run_seconds(optarg, 1e-9, &o->job.timeout_s))
            return banyan_run_bad("--timeout wants seconds, at most 1e9, got ", optarg);
        return 0;
    case OPT_HOSTS: return take_once("--hosts", &o->far.hosts);
    case OPT_HOSTFILE: return take_once("--hostfile", &o->far.hostfile);
    case OPT_LAUNCHER: o->far.launcher = optarg; return 0;
    case OPT_OUTPUT: o->job.output = o->far.output = optarg; return 0;
    case OPT_TAG: o->job.tag = o->far.tag = 1; return 0;
    default: return -1;
    }
}

/* Those of this machine's ranks alone. 0 or 2. */
static int take_local(struct options *o, int c)
{
    struct bny_local_ranks *job = &o->job;

    switch (c) {
    case OPT_BIND:
        o->near = !optarg || !strcmp(optarg, "near");
        job->bind = optarg && !strcmp(optarg, "list");
        if (!o->near && !job->bind && strcmp(optarg, "none") != 0)
            return banyan_run_bad("--bind wants near, list or none, got ", optarg);
        break;
    case OPT_REPORT: o->report = 1; break;
    case OPT_GRACE:
        if (!banyan_run_seconds(optarg, 0, &job->grace_s))
            return banyan_run_bad("--grace wants seconds, at most 1e9, got ", optarg);
        job->grace_s = job->grace_s > 0 ? job->grace_s : -1;
        break;
    case OPT_KEEP: job->keep_going = 1; break;
    case OPT_RESTART:
        if (!banyan_run_whole(optarg, 0, 1000000, &job->restarts))
            return banyan_run_bad("--restart wants a number from 0 to 1000000, got ", optarg);
        job->keep_going = 1;
        break;
    default: return banyan_run_bad("wrong option", ""); /* getopt has said which */
    }
    return 0;
}

/* Do the options go together? 0 or 2. */
static int check(const struct options *o, int argc)
{
    const struct bny_local_ranks *job = &o->job;
    int is_far = o->far.hosts || o->far.hostfile;

    if (!job->nranks && !is_far)
        return banyan_run_bad("-n is missing", "");
    if (o->far.hosts && o->far.hostfile)
        return banyan_run_bad("give --hosts or --hostfile, not both", "");
    if (o->far.launcher && !is_far)
        return banyan_run_bad("--launcher is for ranks on hosts: give --hosts or --hostfile",
                              "");
    if (is_far && (o->near || o->report || job->bind || job->keep_going || job->grace_s != 0))
        return banyan_run_bad("--bind, --report-bindings, --grace, --keep-going and --restart "
                              "are for ranks of this machine: on hosts use the launcher "
                              "itself, as docs/hosts.md shows",
                              "");
    if (!is_far && job->tag && job->output)
        return banyan_run_bad("--tag is for lines of several ranks in one stream, and with "
                              "--output-filename each rank has files of its own: give one of "
                              "them",
                              "");
    if (job->keep_going && job->grace_s != 0)
        return banyan_run_bad(
            "--grace ends the ranks that --keep-going and --restart leave alone: give "
            "one of them",
            "");
    if (optind >= argc)
        return banyan_run_bad("the program to start is missing", "");
    return 0;
}

static int run_local(struct options *o, char **argv)
{
    struct bny_rank_binding *places = NULL;
    int rc;

    if ((o->near || (o->report && !o->job.bind)) &&
        !(places = places_of(&o->job, o->near, o->report)))
        return 125;
    rc = set_variables(&o->far);
    if (rc == 0)
        rc = bny_local_ranks_run(&o->job, argv);
    free(places);
    return rc;
}

/* mpirun's "-np 2", also "-np2" and "-np=2", which getopt takes for "-n" and "p...". */
static void take_np(int argc, char **argv)
{
    if (optarg != argv[optind - 1] + 2 || *optarg != 'p')
        return;
    optarg += optarg[1] == '=' ? 2 : 1;
    if (!*optarg && optind < argc)
        optarg = argv[optind++];
}

int main(int argc, char **argv)
{
    static char *variables[VARIABLES_MAX];
    struct options o = { .job = { .tool = "banyan_run" }, .far = { .variables = variables } };
    int c, rc;

    /* "+": options end at the program's name. */
    while ((c = getopt_long(argc, argv, "+n:x:hV", longs, NULL)) != -1) {
        if (c == 'h') {
            fputs(usage, stdout);
            return 0;
        }
        if (c == 'V') {
            printf("banyan_run %s\n", banyan_version_string());
            return 0;
        }
        if (c == 'n')
            take_np(argc, argv);
        rc = take_common(&o, c);
        if (rc < 0)
            rc = take_local(&o, c);
        if (rc)
            return rc;
    }
    rc = check(&o, argc);
    if (rc)
        return rc;
    o.far.nranks = o.job.nranks;
    o.far.timeout_s = o.job.timeout_s;
    if (o.far.hosts || o.far.hostfile)
        return bny_launcher_exec(&o.far, argv + optind);
    return run_local(&o, argv + optind);
}
