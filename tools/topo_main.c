/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_topo: machines, cluster graphs, bounds and plans. Options are read here, commands
 * stand in topo_*.c. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "base/param.h"
#include "tools/topo.h"

static const struct topo_command *const commands[] = {
    &topo_show,  &topo_bound,  &topo_plan, &topo_simulate, &topo_compare,
    &topo_probe, &topo_verify, &topo_draw, &topo_predict,
};
#define NCOMMANDS (sizeof commands / sizeof commands[0])

enum {
    OPT_HEIGHT = 'H',
    OPT_JSON = 'J',
    OPT_LOCKSTEP = 'L',
    OPT_CHUNK = 'C',
    OPT_JOINT = 'j',
    OPT_SECONDS = 'S',
    OPT_RANKS = 'R',
    OPT_CODEC = 'D',
    OPT_BUCKET = 'B',
    OPT_RATE = 'W',
    OPT_TRACE = 'T',
    OPT_PROGRESS = 'P',
    OPT_ACCELERATED = 'A',
    OPT_FROM = 'F',
    OPT_CORES = 'E',
    OPT_LATENCY = 'U',
    OPT_FORCE = 'X',
    OPT_BURST = 'Q',
    OPT_TCP = 'N'
};

/* The letter is the option's name in topo_command.options; upper case ones have no short form.
 */
static const struct {
    struct option o;
    const char *usage;
} all[] = {
    { { "topo", required_argument, NULL, 't' },
      "TOPO  a generator (see below) or a file; default: this machine" },
    { { "schedule", required_argument, NULL, 's' },
      "NAME|FILE  a builder or a plan's file; default: auto" },
    { { "collective", required_argument, NULL, 'c' },
      "NAME  allreduce (default), allgather, reduce_scatter, "
      "broadcast or reduce" },
    { { "root", required_argument, NULL, 'r' }, "RANK  of broadcast and reduce (0)" },
    { { "bytes", required_argument, NULL, 'b' },
      "SIZE  of the whole vector (64M); K, M, G are powers of two" },
    { { "trees", required_argument, NULL, 'k' },
      "N  trees a root, or pieces a shard (the builder's choice)" },
    { { "height", required_argument, NULL, OPT_HEIGHT }, "N  largest height of a tree (any)" },
    { { "slots", required_argument, NULL, 'n' },
      "N  buffers a channel of each pair of ranks (4)" },
    { { "chunk", required_argument, NULL, OPT_CHUNK },
      "SIZE  of a chunk (64K; --tcp: as the library would)" },
    { { "seconds", required_argument, NULL, OPT_SECONDS },
      "N  soft limit on the time to compute" },
    { { "lockstep", no_argument, NULL, OPT_LOCKSTEP }, "steps wait for each other" },
    { { "tcp", no_argument, NULL, OPT_TCP },
      "as over TCP: its headers, one way for each pair of hosts, links serve as it comes" },
    { { "joint", no_argument, NULL, OPT_JOINT },
      "roots where they serve best, both phases at once" },
    { { "ranks", required_argument, NULL, OPT_RANKS },
      "N[,N...]  ranks on one switch, where no --topo is given" },
    { { "rate", required_argument, NULL, OPT_RATE },
      "RATE[,...]  of the slowest link, such as 100Mbit or 25Gbit" },
    { { "codec", required_argument, NULL, OPT_CODEC },
      "CODEC[;CODEC...]  to choose from, of plan one; profile: as it has them" },
    { { "bucket", required_argument, NULL, OPT_BUCKET },
      "SIZE[,SIZE...]  to choose from (128K,512K,1M,4M,16M)" },
    { { "from", required_argument, NULL, OPT_FROM },
      "N  elements of the smallest tensor that has a codec (16K)" },
    { { "cores", required_argument, NULL, OPT_CORES },
      "N  that all ranks share (each has enough of its own)" },
    { { "accelerated", no_argument, NULL, OPT_ACCELERATED },
      "computing takes none of the --cores" },
    { { "progress", required_argument, NULL, OPT_PROGRESS },
      "thread|calls  how operations go on (as in the profile)" },
    { { "latency", required_argument, NULL, OPT_LATENCY },
      "US  of a message beside what links add (30)" },
    { { "burst", required_argument, NULL, OPT_BURST },
      "MS  of its rate that a shaped link may send at once when it was idle (0)" },
    { { "force", no_argument, NULL, OPT_FORCE },
      "codecs also where the library would refuse them" },
    { { "trace", required_argument, NULL, OPT_TRACE },
      "FILE  the best step, or the schedule's messages, for ui.perfetto.dev" },
    { { "output", required_argument, NULL, 'o' }, "FILE  instead of standard output" },
    { { "json", no_argument, NULL, OPT_JSON }, "a JSON object a row" },
    { { "help", no_argument, NULL, 'h' }, NULL },
    { { "version", no_argument, NULL, 'V' }, NULL },
};
#define NOPTIONS (sizeof all / sizeof all[0])

static void print_usage(void)
{
    printf("usage: banyan_topo COMMAND [options] [ARGUMENT...]\n");
    for (size_t i = 0; i < NCOMMANDS; i++)
        printf("  %-10s %s\n", commands[i]->name, commands[i]->usage);
    printf("options, where a command has them:\n");
    for (size_t i = 0; i < NOPTIONS; i++)
        if (all[i].usage)
            printf("  %c%c --%s%s%s\n", all[i].o.val >= 'a' ? '-' : ' ',
                   all[i].o.val >= 'a' ? all[i].o.val : ' ', all[i].o.name,
                   all[i].o.has_arg ? " " : "  ", all[i].usage);
    printf("  -h --help, -V --version\n"
           "The exit status is 1 when something is wrong or fails, 2 for wrong options.\n"
           "TOPO is the path of a file (own JSON, edge list, GraphML, NCCL or hwloc XML, "
           "ibnetdiscover) or\n");
    for (int i = 0; bny_generators[i]; i++)
        printf("  %s\n", bny_generators[i]->usage);
    printf("followed by any number of !dead=A-B, !dead=A and !slow=A-B/F: A and B are names of "
           "nodes or ranks.\n");
}

static int topo_main_bad(const char *what, const char *value)
{
    fprintf(stderr, "banyan_topo: %s%s; see banyan_topo --help\n", what, value);
    return 2;
}

static int topo_main_number(const char *text, int lo, int *out, const char *name)
{
    char *end;
    long v = strtol(text, &end, 10);

    if (end == text || *end || v < lo || v > 1 << 30) {
        fprintf(stderr, "banyan_topo: --%s wants a number of at least %d, got %s\n", name, lo,
                text);
        return 2;
    }
    *out = (int)v;
    return 0;
}

static int collective(struct topo_opts *o, const char *name)
{
    static const struct {
        const char *name;
        enum bny_forest_use use;
    } names[] = { { "allreduce", BNY_FOREST_ALLREDUCE },
                  { "allgather", BNY_FOREST_SCATTERED },
                  { "reduce_scatter", BNY_FOREST_SCATTERED },
                  { "broadcast", BNY_FOREST_ROOTED },
                  { "reduce", BNY_FOREST_ROOTED } };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(names[i].name, name)) {
            o->collective = (enum topo_collective)i;
            o->use = names[i].use;
            return 0;
        }
    return topo_main_bad("no such collective: ", name);
}

static int take_predict(struct topo_predict_opts *o, int c, const char *arg)
{
    switch (c) {
    case OPT_RANKS: o->ranks = arg; return 0;
    case OPT_RATE: o->rates = arg; return 0;
    case OPT_CODEC: o->codecs = arg; return 0;
    case OPT_BUCKET: o->buckets = arg; return 0;
    case OPT_FROM: o->from = arg; return 0;
    case OPT_PROGRESS: o->progress = arg; return 0;
    case OPT_LATENCY: o->latency = arg; return 0;
    case OPT_BURST: o->burst = arg; return 0;
    case OPT_TRACE: o->trace = arg; return 0;
    case OPT_CORES: return topo_main_number(arg, 1, &o->cores, "cores");
    case OPT_ACCELERATED: o->accelerated = 1; return 0;
    case OPT_FORCE: o->force = 1; return 0;
    default: return 2;
    }
}

static int topo_main_take(struct topo_opts *o, int c, const char *arg)
{
    switch (c) {
    case 't': o->topo = arg; return 0;
    case 's': o->schedule = arg; return 0;
    case 'o': o->output = arg; return 0;
    case 'c': return collective(o, arg);
    case 'r': return topo_main_number(arg, 0, &o->root, "root");
    case 'k': return topo_main_number(arg, 1, &o->trees, "trees");
    case 'n': return topo_main_number(arg, 1, &o->slots, "slots");
    case OPT_HEIGHT: return topo_main_number(arg, 1, &o->height, "height");
    case OPT_SECONDS: return topo_main_number(arg, 1, &o->seconds, "seconds");
    case 'b':
        return bny_parse_size(arg, &o->bytes)
                   ? topo_main_bad("--bytes wants a size such as 64K, got ", arg)
                   : 0;
    case OPT_CHUNK:
        return bny_parse_size(arg, &o->chunk)
                   ? topo_main_bad("--chunk wants a size such as 64K, got ", arg)
                   : 0;
    case OPT_LOCKSTEP: o->lockstep = 1; return 0;
    case OPT_TCP: o->tcp = 1; return 0;
    case OPT_JOINT: o->joint = 1; return 0;
    case OPT_JSON: o->json = 1; return 0;
    default: return take_predict(&o->predict, c, arg);
    }
}

/* 0: go on; -1: done (help or version were asked for); 2: wrong. */
static int topo_main_parse(struct topo_opts *o, const struct topo_command *command, int argc,
                           char **argv)
{
    struct option longs[NOPTIONS + 1] = { { NULL, 0, NULL, 0 } };
    int c, e;

    for (size_t i = 0; i < NOPTIONS; i++)
        longs[i] = all[i].o;
    while ((c = getopt_long(argc, argv, "t:s:c:r:b:k:n:jo:hV", longs, NULL)) != -1) {
        if (c == 'h' || c == 'V') {
            if (c == 'h')
                print_usage();
            else
                printf("banyan_topo %s\n", banyan_version_string());
            return -1;
        }
        if (c == '?')
            return topo_main_bad("wrong option", ""); /* getopt has said which */
        if (command && !strchr(command->options, c)) {
            for (size_t i = 0; i < NOPTIONS; i++)
                if (all[i].o.val == c)
                    fprintf(stderr, "banyan_topo: %s takes no --%s\n", command->name,
                            all[i].o.name);
            return 2;
        }
        e = topo_main_take(o, c, optarg);
        if (e)
            return e;
    }
    o->args = argv + optind;
    o->nargs = argc - optind;
    return 0;
}

int topo_failed(const char *what)
{
    fprintf(stderr, "banyan_topo: %s%s%s\n", what ? what : "", what ? ": " : "",
            banyan_last_error());
    return 1;
}

int topo_failed_args(const struct topo_opts *o)
{
    return topo_main_bad("no such argument: ", o->args[0]);
}

int topo_root_missing(const struct topo_opts *o, const struct bny_graph *g)
{
    if (o->use != BNY_FOREST_ROOTED || o->root < g->nranks)
        return 0;
    fprintf(stderr, "banyan_topo: --root %d: %s has ranks 0 to %d\n", o->root, g->name,
            g->nranks - 1);
    return 2;
}

int topo_graph(struct bny_graph **g, const struct topo_opts *o)
{
    return bny_graph_make(g, o->topo ? o->topo : "machine");
}

FILE *topo_open(const struct topo_opts *o)
{
    FILE *f = o->output ? fopen(o->output, "w") : stdout;

    if (!f)
        fprintf(stderr, "banyan_topo: cannot write %s: %s\n", o->output, strerror(errno));
    return f;
}

int topo_close(FILE *f, const struct topo_opts *o)
{
    int broken = ferror(f) | (f == stdout ? fflush(f) : fclose(f));

    if (broken)
        fprintf(stderr, "banyan_topo: writing %s failed\n",
                o->output ? o->output : "standard output");
    return broken != 0;
}

void topo_json_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if (*s < 0x20)
            fprintf(f, "\\u%04x", *s);
        else
            fputc(*s, f);
    }
    fputc('"', f);
}

int main(int argc, char **argv)
{
    struct topo_opts o = { .bytes = 64 << 20, .slots = 4, .use = BNY_FOREST_ALLREDUCE };
    const struct topo_command *command = NULL;
    int e;

    for (size_t i = 0; argc > 1 && i < NCOMMANDS; i++)
        if (!strcmp(argv[1], commands[i]->name))
            command = commands[i];
    if (!command && argc > 1 && argv[1][0] != '-')
        return topo_main_bad("no such command: ", argv[1]);
    if (command)
        argv[1] = argv[0]; /* getopt begins its messages with it */
    e = topo_main_parse(&o, command, argc - (command != NULL), argv + (command != NULL));
    if (e)
        return e < 0 ? 0 : e;
    if (!command)
        return topo_main_bad("the command is missing", "");
    return command->run(&o);
}
