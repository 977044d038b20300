/* SPDX-License-Identifier: BSD-3-Clause */
/* Texts of options and of the environment. Byte 0 picks the parser, the rest is the text:
 * refused, or what was understood says the same when it is written and read again. */
#include "input.h"

#include <ctype.h>
#include <strings.h>

#include "base/err.h"
#include "base/param.h"
#include "compress/codec.h"
#include "topo/graph.h"
#include "topo/ratio.h"
#include "transport/bootstrap/launch.h"
#include "transport/datagram/dgram.h"

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    return 0;
}

static void codec(const char *text)
{
    const struct bny_codec *a, *b;

    if (bny_codec_parse(&a, text) != 0)
        return;
    if (strlen(a->spec) < sizeof a->spec - 1 && bny_codec_parse(&b, a->spec) == 0)
        EXPECT(!strcmp(a->spec, b->spec) && a->hash == b->hash && a->force == b->force);
}

static void size(const char *text)
{
    char again[32];
    uint64_t v, w;

    if (bny_parse_size(text, &v) != 0)
        return;
    snprintf(again, sizeof again, "%llu", (unsigned long long)v);
    EXPECT(bny_parse_size(again, &w) == 0 && v == w);
}

static void ports(const char *text)
{
    uint16_t lo, hi;

    if (bny_net_port_range(text, &lo, &hi) == 0)
        EXPECT(lo <= hi && (lo > 0 || hi == 0));
}

static void id(const char *text)
{
    char again[BNY_ID_HEX];
    struct bny_id v;

    if (bny_id_from_hex(&v, text) != 0)
        return;
    bny_id_to_hex(&v, again);
    EXPECT(!strcasecmp(text, again));
}

static void ratio(const char *text)
{
    struct bny_ratio a, b;
    char again[48];

    if (bny_ratio_parse(&a, text) != 0 || !bny_ratio_ok(a))
        return;
    EXPECT(bny_ratio_parse(&b, bny_ratio_text(a, again, sizeof again)) == 0 &&
           bny_ratio_cmp(a, b) == 0);
}

static void slurm(const char *text)
{
    char *host = malloc(64); /* a sanitizer sees one byte too many */

    if (bny_slurm_first_host(text, host, 64) == 0)
        EXPECT(strlen(host) < 64);
    free(host);
}

/* Not a file's name, nor what asks hwloc; and no graph that takes longer than a fuzzer has. */
static int is_small_graph(const char *text)
{
    long one = 0, product = 1, most = strncmp(text, "hypercube", 9) ? 99 : 9;
    int known = 0, changes = 0;

    for (int i = 0; bny_generators[i]; i++)
        known |= !strncmp(text, bny_generators[i]->name, strlen(bny_generators[i]->name));
    for (const char *s = text; *s; s++) {
        one = isdigit((unsigned char)*s) ? 10 * one + (*s - '0') : 0;
        product *= isdigit((unsigned char)s[1]) || !one ? 1 : one;
        changes += *s == '!';
        if (one > most || product > 5000 || changes > 3)
            return 0;
    }
    return known && strncmp(text, "machine", 7) != 0;
}

static void graph(const char *text)
{
    struct bny_graph *g;

    if (!is_small_graph(text) || bny_graph_make(&g, text) != 0)
        return;
    EXPECT(g->nranks > 0 && g->nnodes >= g->nranks);
    bny_graph_free(g);
}

/* Values of several variables, one a line. */
static void variables(char *text, const char *const *names)
{
    for (; *names; names++) {
        char *end = text + strcspn(text, "\n"), *next = *end ? end + 1 : end;

        *end = 0;
        setenv(*names, text, 1);
        text = next;
    }
}

static void dpdk(char *text)
{
    static const char *const names[] = { "BANYAN_DPDK_PORT", "BANYAN_DPDK",
                                         "BANYAN_DPDK_ADDR", "BANYAN_DPDK_GATEWAY",
                                         "BANYAN_UD",        NULL };
    struct dp_settings s;

    variables(text, names);
    bny_param_check();
    if (bny_ud_settings(&s) == 0)
        EXPECT(s.fault.loss >= 0 && s.fault.loss <= 1 && s.fault.rate >= 0);
    if (bny_dpdk_settings(&s) != 0)
        return;
    EXPECT(s.queues >= 1 && s.queues <= 16 && s.fault.loss >= 0 && s.fault.loss <= 1 &&
           s.fault.rate >= 0);
    EXPECT(memchr(s.device, 0, sizeof s.device) && memchr(s.iface, 0, sizeof s.iface) &&
           memchr(s.args, 0, sizeof s.args));
}

static void launch(char *text)
{
    static const char *const names[] = { "BANYAN_RANK",  "BANYAN_WORLD_SIZE",   "BANYAN_ID",
                                         "BANYAN_CHUNK", "BANYAN_INIT_TIMEOUT", NULL };
    static const struct bny_launch_in in = { "", "", 0 };
    struct bny_launch out = { .rank = 0 };
    int64_t chunk;

    variables(text, names);
    if (bny_launch_run(&out, &in) == 1)
        EXPECT(out.rank >= 0 && out.rank < out.nranks);
    chunk = bny_param_int("BANYAN_CHUNK");
    EXPECT(chunk >= 0 && chunk <= 1 << 26 && bny_param_real("BANYAN_INIT_TIMEOUT") >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text;

    if (!n)
        return 0;
    text = malloc(n);
    memcpy(text, data + 1, n - 1);
    text[n - 1] = 0;
    switch (data[0] % 9) {
    case 0: codec(text); break;
    case 1: size(text); break;
    case 2: ports(text); break;
    case 3: id(text); break;
    case 4: ratio(text); break;
    case 5: slurm(text); break;
    case 6: graph(text); break;
    case 7: dpdk(text); break;
    default: launch(text);
    }
    free(text);
    return 0;
}
