/* SPDX-License-Identifier: BSD-3-Clause */
/* Options of banyan_perf: the letters of nccl-tests, and our own long names. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/nearest.h"
#include "base/param.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "compress/codec.h"
#include "perf/perf.h"

static const char usage[] =
    "usage: banyan_perf COLLECTIVE [options]\n"
    "COLLECTIVE: allreduce reduce broadcast reduce_scatter allgather alltoall gather scatter\n"
    "            barrier sendrecv; put_bw put_lat: the raw transport between 2 ranks\n"
    "Sizes accept K, M, G (powers of two).\n"
    "  -b, --minbytes SIZE     first size (4)       -e, --maxbytes SIZE   last size (64M)\n"
    "  -f, --stepfactor F      multiply by F (4)    -i, --stepbytes SIZE  or add SIZE\n"
    "  -n, --iters N           timed iterations (20; 16 operations each up to 32K)\n"
    "  -w, --warmup_iters N    iterations before them (2)\n"
    "  -N, --run_cycles N      repeat the whole sweep N times (1)\n"
    "  -c, --check N           check N operations before and after the timed ones (1)\n"
    "  -d, --datatype T|all    f32 f64 f16 bf16 i8 u8 i32 u32 i64 u64, float double half ...\n"
    "  -o, --op OP|all         sum avg min max prod band bor bxor mulsum\n"
    "  -r, --root RANK         (0); -1: each rank in turn\n"
    "  -R, --local_register N  1: buffers are registered shared memory\n"
    "  -T, --timeout SECONDS   fail when one size takes longer (0: never)\n"
    "  -J, --json FILE         write one JSON object per row to FILE (- for standard output)\n"
    "  -P, --ranks N           start N ranks on this machine (--transport loop: as threads of\n"
    "                          one process); else join the launcher's job\n"
    "      --bind              with -P: one CPU per rank\n"
    "      --inplace 0|1|both  (both)\n"
    "      --mem malloc|banyan buffers from malloc (default) or banyan_mem_alloc\n"
    "      --transport auto|shm|verbs|ud|dpdk|tcp|loop  --schedule auto|NAME|FILE\n"
    "      --topo TOPO         the cluster graph: a generator (torus:3x3) or a file; "
    "banyan_topo --help\n"
    "      --codec none|NAME[:PARAM=VALUE,...]  may:NAME: only where it is predicted to gain;\n"
    "                          levels:up=NAME,down=NAME; auto:max=E, auto:nmse=E: any that "
    "keeps it\n"
    "      --chunk BYTES       --device INTERFACE[,...]\n"
    "      --data random|gauss|laplace|sparse=P|file=F  (random: sums are exact)\n"
    "      --csv, --osu        other output formats     --no-roofline  skip that measurement\n"
    "      --fault FAULT[,...] kill=RANK@N, exit=RANK@N, stop=RANK@N:MS, late=RANK@N:MS: in "
    "the\n"
    "                          N-th timed iteration of all, from 0; those who are left go on,\n"
    "                          and with -P those who died are no failure\n"
    "  -h, --help              -V, --version\n"
    "The exit status is 1 when a value is wrong or a call failed, 2 for wrong options.\n";

static const char *const op_names[] = { "sum",  "avg",  "min", "max",
                                        "prod", "band", "bor", "bxor" };

int perf_parse_dtype(const char *name)
{
    static const struct {
        char name[10];
        int dtype;
    } aliases[] = {
        { "float", BANYAN_F32 },     { "double", BANYAN_F64 }, { "half", BANYAN_F16 },
        { "bfloat16", BANYAN_BF16 }, { "int8", BANYAN_I8 },    { "uint8", BANYAN_U8 },
        { "int32", BANYAN_I32 },     { "uint32", BANYAN_U32 }, { "int64", BANYAN_I64 },
        { "uint64", BANYAN_U64 },    { "int", BANYAN_I32 },    { "char", BANYAN_I8 },
    };

    for (int d = 0; d < PERF_DTYPES; d++)
        if (!strcmp(banyan_dtype_name((enum banyan_dtype)d), name))
            return d;
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++)
        if (!strcmp(aliases[i].name, name))
            return aliases[i].dtype;
    return -1;
}

int perf_parse_op(const char *name)
{
    for (int op = 0; op < BNY_OP_COUNT; op++)
        if (!strcmp(op_names[op], name))
            return op;
    return strcmp(name, "mulsum") ? -1 : PERF_MULSUM;
}

const char *perf_op_name(unsigned op)
{
    return op == PERF_MULSUM ? "mulsum" : op_names[op];
}

int perf_op_valid(int dtype, unsigned op)
{
    if (op >= BANYAN_BAND && op <= BANYAN_BXOR)
        return dtype > BANYAN_BF16;
    return op != PERF_MULSUM || dtype <= BANYAN_BF16;
}

uint64_t perf_next_bytes(const struct perf_opts *o, uint64_t bytes)
{
    uint64_t next =
        o->step_bytes ? bytes + o->step_bytes : (uint64_t)((double)bytes * o->factor);

    if (next <= bytes)
        next = bytes + 1;
    return next > o->max_bytes ? 0 : next;
}

static int bad(const char *text, const char *value)
{
    fprintf(stderr, "banyan_perf: %s%s; see banyan_perf --help\n", text, value);
    return 2;
}

static int number(const char *text, long lo, long hi, int *out)
{
    char *end;
    long v = strtol(text, &end, 10);

    if (end == text || *end || v < lo || v > hi)
        return -1;
    *out = (int)v;
    return 0;
}

enum long_only {
    OPT_TRANSPORT = 256,
    OPT_SCHEDULE,
    OPT_TOPO,
    OPT_CODEC,
    OPT_DEVICE,
    OPT_GID,
    OPT_CHUNK,
    OPT_DATA,
    OPT_CSV,
    OPT_OSU,
    OPT_INPLACE,
    OPT_MEM,
    OPT_BIND,
    OPT_NO_ROOFLINE,
    OPT_FAULT,
};

static const struct option longs[] = {
    { "minbytes", required_argument, NULL, 'b' },
    { "maxbytes", required_argument, NULL, 'e' },
    { "stepfactor", required_argument, NULL, 'f' },
    { "stepbytes", required_argument, NULL, 'i' },
    { "iters", required_argument, NULL, 'n' },
    { "warmup_iters", required_argument, NULL, 'w' },
    { "run_cycles", required_argument, NULL, 'N' },
    { "check", required_argument, NULL, 'c' },
    { "datatype", required_argument, NULL, 'd' },
    { "op", required_argument, NULL, 'o' },
    { "root", required_argument, NULL, 'r' },
    { "local_register", required_argument, NULL, 'R' },
    { "timeout", required_argument, NULL, 'T' },
    { "json", required_argument, NULL, 'J' },
    { "ranks", required_argument, NULL, 'P' },
    { "transport", required_argument, NULL, OPT_TRANSPORT },
    { "schedule", required_argument, NULL, OPT_SCHEDULE },
    { "topo", required_argument, NULL, OPT_TOPO },
    { "codec", required_argument, NULL, OPT_CODEC },
    { "device", required_argument, NULL, OPT_DEVICE },
    { "gid", required_argument, NULL, OPT_GID },
    { "chunk", required_argument, NULL, OPT_CHUNK },
    { "data", required_argument, NULL, OPT_DATA },
    { "csv", no_argument, NULL, OPT_CSV },
    { "osu", no_argument, NULL, OPT_OSU },
    { "inplace", required_argument, NULL, OPT_INPLACE },
    { "mem", required_argument, NULL, OPT_MEM },
    { "bind", no_argument, NULL, OPT_BIND },
    { "no-roofline", no_argument, NULL, OPT_NO_ROOFLINE },
    { "fault", required_argument, NULL, OPT_FAULT },
    { "help", no_argument, NULL, 'h' },
    { "version", no_argument, NULL, 'V' },
    { NULL, 0, NULL, 0 },
};

/* Options that take a size, a number or a word each. Returns 0, 2 after a message, or -1: not
 * mine. */
static int parse_letter(struct perf_opts *o, int c, const char *arg)
{
    char *end;

    switch (c) {
    case 'b':
        return bny_parse_size(arg, &o->min_bytes)
                   ? bad("-b wants a size such as 64K, got ", arg)
                   : 0;
    case 'e':
        return bny_parse_size(arg, &o->max_bytes)
                   ? bad("-e wants a size such as 64K, got ", arg)
                   : 0;
    case 'i':
        return bny_parse_size(arg, &o->step_bytes)
                   ? bad("-i wants a size such as 64K, got ", arg)
                   : 0;
    case 'f':
        o->factor = strtod(arg, &end);
        return end == arg || *end || !(o->factor > 1)
                   ? bad("-f wants a number over 1, got ", arg)
                   : 0;
    case 'n':
        return number(arg, 1, PERF_MAX_ITERS, &o->iters)
                   ? bad("-n wants 1 to 1000000, got ", arg)
                   : 0;
    case 'w':
        return number(arg, 0, PERF_MAX_ITERS, &o->warmup) ? bad("-w wants a count, got ", arg)
                                                          : 0;
    case 'N':
        return number(arg, 1, PERF_MAX_ITERS, &o->cycles) ? bad("-N wants a count, got ", arg)
                                                          : 0;
    case 'c':
        return number(arg, 0, PERF_MAX_ITERS, &o->check) ? bad("-c wants a count, got ", arg)
                                                         : 0;
    case 'd':
        o->dtype_all = !strcmp(arg, "all");
        o->dtype = o->dtype_all ? 0 : perf_parse_dtype(arg);
        return o->dtype < 0 ? bad("-d wants a type such as f32, got ", arg) : 0;
    case 'o':
        o->op_all = !strcmp(arg, "all");
        o->op = o->op_all ? 0 : (unsigned)perf_parse_op(arg);
        return o->op == (unsigned)-1 ? bad("-o wants an operation such as sum, got ", arg) : 0;
    case 'r':
        if (!strcmp(arg, "all"))
            arg = "-1";
        return number(arg, -1, 1 << 20, &o->root) ? bad("-r wants a rank, got ", arg) : 0;
    case 'R':
        if (strcmp(arg, "0") && strcmp(arg, "1"))
            return bad("-R wants 0 or 1, got ", arg);
        o->mem = *arg == '1' ? PERF_REGISTERED : PERF_MALLOC;
        return 0;
    case 'T':
        o->timeout_s = strtod(arg, &end);
        return end == arg || *end || !(o->timeout_s >= 0) ? bad("-T wants seconds, got ", arg)
                                                          : 0;
    case 'J': o->json = arg; return 0;
    case 'P':
        return number(arg, 1, 4096, &o->nlocal) ? bad("-P wants 1 to 4096 ranks, got ", arg)
                                                : 0;
    default: return -1;
    }
}

/* The same for options without a letter. */
static int parse_long(struct perf_opts *o, int c, const char *arg)
{
    switch (c) {
    case OPT_TRANSPORT: o->transport = arg; return 0;
    case OPT_SCHEDULE: o->schedule = arg; return 0;
    case OPT_TOPO: o->topology = arg; return 0;
    case OPT_CODEC:
        o->codec_may = !strncmp(arg, "may:", 4);
        o->codec = arg + (o->codec_may ? 4 : 0);
        return 0;
    case OPT_DEVICE: o->device = arg; return 0;
    case OPT_CSV: o->format = PERF_CSV; return 0;
    case OPT_OSU: o->format = PERF_OSU; return 0;
    case OPT_BIND: o->bind = 1; return 0;
    case OPT_NO_ROOFLINE: o->roofline = 0; return 0;
    case OPT_FAULT:
        o->roofline = 0; /* its ranks do not die */
        return perf_fault_parse(&o->faults, arg)
                   ? bad("--fault wants kill=RANK@N, exit=RANK@N, stop=RANK@N:MS or "
                         "late=RANK@N:MS, at most 16, got ",
                         arg)
                   : 0;
    case OPT_DATA: return perf_data_parse(&o->data, arg) ? 2 : 0;
    case OPT_CHUNK:
        return bny_parse_size(arg, &o->chunk_bytes)
                   ? bad("--chunk wants a size such as 64K, got ", arg)
                   : 0;
    case OPT_GID:
        return bad(
            "--gid is not needed: verbs takes the GID of the address of --device; got --gid ",
            arg);
    case OPT_INPLACE:
        o->inplace = !strcmp(arg, "0")      ? 1
                     : !strcmp(arg, "1")    ? 2
                     : !strcmp(arg, "both") ? 3
                                            : 0;
        return o->inplace ? 0 : bad("--inplace wants 0, 1 or both, got ", arg);
    case OPT_MEM:
        if (strcmp(arg, "malloc") && strcmp(arg, "banyan"))
            return bad("--mem wants malloc or banyan, got ", arg);
        o->mem = *arg == 'b' ? PERF_BANYAN : PERF_MALLOC;
        return 0;
    default: return bad("wrong option", ""); /* getopt has said which */
    }
}

/* What can be told only once all options are known. */
static int cross_check(struct perf_opts *o)
{
    const struct bny_codec *codec;
    int known;

    if (!strcmp(o->transport, "auto"))
        o->transport = bny_param_str("BANYAN_TRANSPORT");
    known = !strcmp(o->transport, "auto");
    for (size_t i = 0; banyan_transport_name(i); i++)
        known |= !strcmp(o->transport, banyan_transport_name(i));
    if (!known)
        return bad("this build has no transport ", o->transport);
    if (!strcmp(o->transport, "loop") && (!o->nlocal || getenv("BANYAN_RANK")))
        return bad("transport loop joins ranks of one process: start them with -P N and no "
                   "launcher, or use shm or tcp",
                   "");
    if (o->device && strcmp(o->transport, "tcp") && strcmp(o->transport, "verbs") &&
        strcmp(o->transport, "auto"))
        return bad("--device names network interfaces or RDMA devices and needs --transport "
                   "tcp or verbs, not ",
                   o->transport);
    if (o->faults.n && (o->what->flags & PERF_RAW || !strcmp(o->transport, "loop")))
        return bad("--fault goes with collectives between processes", "");
    for (int i = 0; i < o->faults.n && o->nlocal; i++)
        if (o->faults.f[i].rank >= o->nlocal)
            return bad("--fault names a rank that -P does not start", "");
    if ((o->what->flags & PERF_RAW) && o->nlocal && o->nlocal != 2)
        return bad("-P wants 2 ranks for ", o->what->name);
    if (!strncmp(o->codec, "auto:", 5) && !strchr(o->codec, '=') &&
        bny_codec_parse(&codec, o->codec + 5) == 0)
        return bad("--codec auto: names what may be lost, such as auto:max=1e-2; where a codec "
                   "is predicted to gain it is may:",
                   o->codec + 5);
    if (bny_codec_parse(&codec, o->codec) != 0)
        return bad("--", banyan_last_error()); /* it begins with the word codec */
    if (!bny_schedule_known(o->schedule)) {
        fprintf(stderr, "banyan_perf: --schedule \"%s\" is unknown%s; there are: %s\n",
                o->schedule, bny_did_you_mean(o->schedule, banyan_schedule_name, "auto"),
                bny_schedule_list());
        return 2;
    }
    if (o->max_bytes < o->min_bytes)
        return bad("-e, the last size, is smaller than -b, the first", "");
    if (o->bind && !o->nlocal && !getenv("BANYAN_RANK"))
        return bad("--bind needs -P", "");
    if (!o->dtype_all && !o->op_all && (o->what->flags & PERF_REDUCES) &&
        !perf_op_valid(o->dtype, o->op))
        return bad("that type does not have the operation -o ", perf_op_name(o->op));
    if (o->what->flags & PERF_NO_DATA)
        o->min_bytes = o->max_bytes = 0;
    o->inplace &= (o->what->flags & PERF_OUT ? 1 : 0) | (o->what->flags & PERF_IN ? 2 : 0);
    if (!o->inplace)
        return bad("--inplace: that variant does not exist for ", o->what->name);
    return 0;
}

int perf_opts_parse(struct perf_opts *o, int argc, char **argv, int *status)
{
    int c;

    *o = (struct perf_opts){
        .min_bytes = 4,
        .max_bytes = 64 << 20,
        .factor = 4,
        .iters = 20,
        .warmup = 2,
        .cycles = 1,
        .check = 1,
        .dtype = BANYAN_F32,
        .op = BANYAN_SUM,
        .inplace = 3,
        .transport = "auto",
        .schedule = "auto",
        .codec = "none",
        .roofline = 1,
    };
    optind = 1;
    while ((c = getopt_long(argc, argv, "b:e:f:i:n:w:N:c:d:o:r:R:T:J:P:hV", longs, NULL)) !=
           -1) {
        *status = 0;
        if (c == 'h')
            fputs(usage, stdout);
        if (c == 'V')
            printf("banyan_perf %s\n", banyan_version_string());
        if (c == 'h' || c == 'V')
            return 1;
        *status = parse_letter(o, c, optarg);
        if (*status < 0)
            *status = parse_long(o, c, optarg);
        if (*status)
            return 1;
    }
    if (optind != argc - 1) {
        *status = bad(optind == argc ? "the collective is missing"
                                     : "one collective at a time, not also ",
                      optind == argc ? "" : argv[optind + 1]);
        return 1;
    }
    o->what = perf_case_find(argv[optind]);
    *status = o->what ? cross_check(o) : bad("unknown collective ", argv[optind]);
    return *status != 0;
}
