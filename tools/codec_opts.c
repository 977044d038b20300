/* SPDX-License-Identifier: BSD-3-Clause */
/* Options of banyan_codec. */
#include "tools/codec_opts.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "compress/codec.h"
#include "compress/kernels/code.h"

#define ELEMS_MAX (64l << 20)
#define REPS_MAX  100000

static void print_usage(void)
{
    printf("usage: banyan_codec [options]: GB/s of f32 of codecs and their loops, beside "
           "memcpy of the same run\n"
           "  --codec SPEC     only this one (name:param=value,...), without the plain loops; "
           "there are: %s\n"
           "  --kernel TEXT    only loops whose name contains it: encode, encode_ef, decode, "
           "decode_add, owner;\n"
           "                   operation and operation_ef (a rank's part of a linear codec); "
           "encode_bf16 and\n"
           "                   encode_zeros (exact codecs); select, moments, absmax, hadamard, "
           "pack3, ...\n"
           "  --isa NAME       scalar, avx2, avx512 or neon (all that this machine has)\n"
           "  --where W        cache (128 KiB an array) or dram (64 MiB an array) (both)\n"
           "  --elements N     of an array, instead\n"
           "  --reps N         samples (31)\n"
           "  --json           one object a row\n"
           "  --list           the codecs: name, recommended or research, what it is\n"
           "  -h, --help       -V, --version\n"
           "The exit status is 2 for wrong options.\n",
           bny_codec_list());
}

static void print_list(void)
{
    const struct bny_codec_ops *ops;

    for (size_t i = 0; (ops = bny_codec_at(i)); i++)
        printf("%-12s %-12s %s\n", ops->name, ops->recommended ? "recommended" : "research",
               ops->doc);
}

int codec_bad(const char *what, const char *value)
{
    fprintf(stderr, "banyan_codec: %s%s; see banyan_codec --help\n", what, value);
    return 2;
}

static int opts_number(const char *text, long most, long *out)
{
    char *end;

    *out = strtol(text, &end, 10);
    return end == text || *end || *out < 1 || *out > most;
}

/* Whether this machine has the instruction set --isa, or none was asked for. */
static int has_isa(const struct codec_opts *opt)
{
    for (size_t l = 0; opt->isa && l < CODEC_LEVELS; l++)
        if ((bny_cpu_flags() & codec_levels[l]) == codec_levels[l] &&
            !strcmp(bny_code_kernels_for(codec_levels[l])->name, opt->isa))
            return 1;
    return !opt->isa;
}

/* The checks that need all options. */
static int opts_check(const struct codec_opts *opt)
{
    const struct bny_codec *codec;

    if (opt->where && strcmp(opt->where, "cache") && strcmp(opt->where, "dram"))
        return codec_bad("--where wants cache or dram, got ", opt->where);
    if (!has_isa(opt))
        return codec_bad("this machine does not have --isa ", opt->isa);
    if (opt->codec && bny_codec_parse(&codec, opt->codec) != 0)
        return codec_bad("--", banyan_last_error());
    return 0;
}

int codec_opts_parse(struct codec_opts *opt, int argc, char **argv)
{
    static const struct option options[] = {
        { "json", no_argument, NULL, 'j' },
        { "list", no_argument, NULL, 'l' },
        { "codec", required_argument, NULL, 'c' },
        { "isa", required_argument, NULL, 'i' },
        { "where", required_argument, NULL, 'w' },
        { "kernel", required_argument, NULL, 'k' },
        { "elements", required_argument, NULL, 'n' },
        { "reps", required_argument, NULL, 'r' },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'V' },
        { NULL, 0, NULL, 0 },
    };
    int o;

    while ((o = getopt_long(argc, argv, "hV", options, NULL)) != -1) {
        switch (o) {
        case 'j': opt->json = 1; break;
        case 'l': print_list(); return -1;
        case 'c': opt->codec = optarg; break;
        case 'i': opt->isa = optarg; break;
        case 'w': opt->where = optarg; break;
        case 'k': opt->kernel = optarg; break;
        case 'n':
            if (opts_number(optarg, ELEMS_MAX, &opt->elems))
                return codec_bad("--elements wants 1 to 67108864, got ", optarg);
            break;
        case 'r':
            if (opts_number(optarg, REPS_MAX, &opt->reps))
                return codec_bad("--reps wants 1 to 100000, got ", optarg);
            break;
        case 'h': print_usage(); return -1;
        case 'V': printf("banyan_codec %s\n", banyan_version_string()); return -1;
        default: fprintf(stderr, "see banyan_codec --help\n"); return 2;
        }
    }
    return optind < argc ? codec_bad("no such argument: ", argv[optind]) : opts_check(opt);
}
