/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of environment variables and their parsers. */
#include "base/param.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/privileged.h"
#include "base/text.h"

extern char **environ;

/* A variable, or behind it one of its keys: "BANYAN_VERBS=qps". Its values are one of the words
 * of a type such as "auto|qp|cm"; or whole numbers if there is a range; or text. Keys without
 * words and range are real numbers from 0. */
struct param {
    const char *name, *type, *def, *doc;
    int64_t min, max; /* range of whole numbers */
};

#define PARAM_TEXT 512 /* of a value other than bny_param_str's */

#define NPROTOCOL 8 /* rows of what banyan_run tells its ranks; then what users may set */
static const struct param params[] = {
    { "BANYAN_ID", "hex", "", "the job's id, set by banyan_run", 0, 0 },
    { "BANYAN_RANK", "rank", "", "this process's rank, set by banyan_run", 0, 0 },
    { "BANYAN_WORLD_SIZE", "ranks", "", "ranks of the job, set by banyan_run", 0, 0 },
    { "BANYAN_LOCAL_RANK", "rank", "", "this process's rank on its host, set by banyan_run", 0,
      0 },
    { "BANYAN_LOCAL_SIZE", "ranks", "", "number of processes on this host, set by banyan_run",
      0, 0 },
    { "BANYAN_LISTEN_FD", "fd", "", "rank 0's listening socket, set by banyan_run", 0, 0 },
    { "BANYAN_BOARD_FD", "fd", "-1",
      "shared memory where restarted ranks meet the job, set by banyan_run --restart", -1,
      INT32_MAX },
    { "BANYAN_RESTART_COUNT", "number", "0",
      "number of restarts of this rank, set by banyan_run --restart", 0, INT32_MAX },

    { "BANYAN_DEBUG", "error|warn|info|debug", "warn",
      "log level; info prints how this rank reaches the others, and one line per new plan", 0,
      0 },
    { "BANYAN_TRANSPORT", "auto|shm|verbs|ud|dpdk|tcp", "auto", "transport between ranks", 0,
      0 },
    { "BANYAN_SCHEDULE", "name|file", "auto",
      "schedule of every collective that can use it: auto, static (auto, but never in order of "
      "arrival), a name, or a plan's file",
      0, 0 },
    { "BANYAN_TOPO", "text|file", "",
      "the cluster graph: torus:8x8, or a file; see banyan_topo --help", 0, 0 },
    { "BANYAN_CODEC", "name", "none", "codec of f32 sums", 0, 0 },
    { "BANYAN_CODEC_CRC", "0|1", "0", "encoded chunks carry checksums", 0, 1 },
    { "BANYAN_CODEC_FORCE", "0|1", "0", "use codecs even where they are predicted to lose", 0,
      1 },
    { "BANYAN_ENCODE_THREADS", "threads", "-1",
      "threads of a rank that encode ahead of the wire; -1: CPUs beyond one a rank, at most 2",
      -1, 16 },
    { "BANYAN_LINK_GBPS", "Gbit/s", "0",
      "speed of a rank's link, for the choice of schedules and codecs; 0: codecs go by "
      "what calls measure",
      0, 0 },
    { "BANYAN_CHUNK", "bytes", "0", "chunk size; 0: chosen by size", 0, 1 << 26 },
    { "BANYAN_IFNAME", "list", "",
      "interfaces or their addresses: eth0,ib or ^lo; for verbs also an RDMA device: mlx5_0:1",
      0, 0 },
    { "BANYAN_INTEGRITY", "plain|mac|encrypt", "plain",
      "data between ranks: unprotected, authenticated, or also encrypted; auto leaves out "
      "transports that cannot; all ranks alike",
      0, 0 },
    { "BANYAN_TCP", "key=value,...", "", "settings of transport tcp", 0, 0 },
    { "BANYAN_TCP=replace", "seconds", "30",
      "time limit to replace a lost connection; 0: it is not replaced", 0, 3600 },
    { "BANYAN_VERBS", "key=value,...", "", "settings of transport verbs", 0, 0 },
    { "BANYAN_VERBS=tcp", "0|1", "0",
      "if verbs was requested: use tcp with ranks that it does not reach", 0, 1 },
    { "BANYAN_VERBS=qps", "1-16", "1",
      "queue pairs to a peer on each device; long messages are spread over them", 1, 16 },
    { "BANYAN_VERBS=devices", "0-8", "1",
      "devices of a rank if BANYAN_IFNAME names none: the nearest to its CPUs; 0: the first, "
      "however far",
      0, 8 },
    { "BANYAN_VERBS=routed", "0|1", "0",
      "devices of different subnets reach each other: choose among all by distance", 0, 1 },
    { "BANYAN_VERBS=connect", "auto|qp|cm", "auto",
      "how queue pairs are connected: by the ranks over TCP, or by rdma_cm; auto: by the ranks "
      "except for iWARP; all ranks alike",
      0, 0 },
    { "BANYAN_VERBS=gid_index", "number", "-1",
      "index of the devices' GID (show_gids); -1: by its type", -1, 65535 },
    { "BANYAN_VERBS=pkey", "number", "-1",
      "partition key, as 0x8001; -1: the first with full membership", -1, 65535 },
    { "BANYAN_VERBS=tc", "number", "-1",
      "traffic class; -1: the port or rdma_cm decides, as for sl", -1, 255 },
    { "BANYAN_VERBS=sl", "number", "-1", "service level", -1, 15 },
    { "BANYAN_VERBS=timeout", "0-31", "18", "retransmission after 4.096 us x 2^timeout", 0,
      31 },
    { "BANYAN_VERBS=retry", "0-7", "6", "retransmissions; some devices take 7 as endless", 0,
      7 },
    { "BANYAN_VERBS=rnr", "0-6", "6", "retries to a peer that is not ready to receive", 0, 6 },
    { "BANYAN_VERBS=replace", "seconds", "10",
      "time limit to replace a broken queue pair; 0: it is not replaced", 0, 600 },
    { "BANYAN_VERBS=memory", "bytes", "256M",
      "limit of registered memory for all peers of a rank on each device: large jobs have "
      "smaller slots; all ranks alike",
      65536, INT64_MAX },
    { "BANYAN_VERBS=cache", "off|uffd", "off",
      "uffd: unregistered buffers from 64 KiB on are registered and stay so until userfaultfd "
      "reports a change (docs/rdma.md)",
      0, 0 },
    { "BANYAN_VERBS=cache_bytes", "bytes", "1G", "limit of the memory that stays registered so",
      65536, INT64_MAX },
    { "BANYAN_VERBS=srq", "0|1", "0", "one receive queue for all queue pairs of a device", 0,
      1 },
    { "BANYAN_VERBS=notify", "0|1", "0",
      "messages instead of immediates, as for devices without them; all ranks alike", 0, 1 },
    { "BANYAN_VERBS=ar", "auto|0|1", "auto",
      "for networks with adaptive routing: long writes without an immediate, which follows "
      "alone; auto: InfiniBand",
      0, 0 },
    { "BANYAN_VERBS=relaxed_ordering", "auto|0|1", "auto",
      "writes of peers may pass each other on PCIe; auto: if rdma-core has it", 0, 0 },
    { "BANYAN_UD", "key=value,...", "", "settings of transport ud", 0, 0 },
    { "BANYAN_UD=memory", "bytes", "12M", "pinned memory for the datagrams of all peers",
      1 << 20, 1 << 30 },
    { "BANYAN_UD=check", "none|crc|mac|auto", "auto",
      "datagrams carry a crc32c, or a keyed hash; auto: the hash; all ranks alike", 0, 0 },
    { "BANYAN_UD=loss", "fraction", "0", "of datagrams: faults on purpose, as those below", 0,
      0 },
    { "BANYAN_UD=dup", "fraction", "0", "doubled", 0, 0 },
    { "BANYAN_UD=reorder", "fraction", "0", "overtaken by later ones", 0, 0 },
    { "BANYAN_UD=corrupt", "fraction", "0", "with a changed byte", 0, 0 },
    { "BANYAN_UD=gbps", "Gbit/s", "0", "a slower link; 0: as it is", 0, 0 },
    { "BANYAN_UD=seed", "number", "0", "of the faults", 0, INT64_MAX },
    { "BANYAN_DPDK", "key=value,...", "", "settings of transport dpdk, on all ranks", 0, 0 },
    { "BANYAN_DPDK=mtu", "bytes", "0",
      "longest packet; 0: the interface's, 9202 between ranks of a host", 0, 64000 },
    { "BANYAN_DPDK=queues", "1-16", "1",
      "queues of the port in each direction; frames spread over them by peer and channel", 1,
      16 },
    { "BANYAN_DPDK=vlan", "number", "0", "VLAN of the port's frames; 0: untagged", 0, 4094 },
    { "BANYAN_DPDK=check", "none|crc|mac|auto", "auto",
      "packets carry a crc32c, or a keyed hash; auto: the hash, and on one host none", 0, 0 },
    { "BANYAN_DPDK=loss", "fraction", "0", "of packets: faults on purpose, as those below", 0,
      0 },
    { "BANYAN_DPDK=dup", "fraction", "0", "doubled", 0, 0 },
    { "BANYAN_DPDK=reorder", "fraction", "0", "overtaken by later ones", 0, 0 },
    { "BANYAN_DPDK=corrupt", "fraction", "0", "with a changed byte", 0, 0 },
    { "BANYAN_DPDK=gbps", "Gbit/s", "0", "a slower link; 0: as it is", 0, 0 },
    { "BANYAN_DPDK=seed", "number", "0", "of the faults", 0, INT64_MAX },
    { "BANYAN_DPDK_PORT", "port", "memif",
      "memif, ring, af_packet:iface=veth0, a DPDK vdev, or a PCI address as 0000:03:00.0, with "
      "its driver's arguments as 0000:03:00.0,mprq_en=1",
      0, 0 },
    { "BANYAN_DPDK_ARGS", "text", "", "further arguments of DPDK's EAL", 0, 0 },
    { "BANYAN_DPDK_ADDR", "address[/prefix]", "",
      "IPv4 or IPv6 address of the DPDK port, with its subnet; empty: the interface's", 0, 0 },
    { "BANYAN_DPDK_GATEWAY", "address", "", "router to ranks of other subnets", 0, 0 },
    { "BANYAN_PORT_RANGE", "lo-hi", "", "TCP ports the library may listen on", 0, 0 },
    { "BANYAN_INIT_TREE", "ranks", "33",
      "number of ranks from which init sends cards along a tree instead of all through rank 0",
      2, INT32_MAX },
    { "BANYAN_INIT_TIMEOUT", "seconds", "60", "deadline of init; 0: none", 0, 0 },
    { "BANYAN_OP_TIMEOUT", "seconds", "300", "deadline of an operation; 0: none", 0, 0 },
    { "BANYAN_DETERMINISTIC", "0|1", "0", "the same bits for any size and schedule", 0, 1 },
    { "BANYAN_CONTROL_THREAD", "0|1", "1",
      "a thread receives failures and agrees on them while the rank computes", 0, 1 },
    { "BANYAN_SILENT_S", "seconds", "4.4",
      "a rank whose host does not answer for this long counts as dead", 1, 3600 },
    { "BANYAN_QUORUM", "majority|any|ranks", "majority",
      "how many ranks must be left after ranks fell silent, so that the rest continues", 0, 0 },
    { "BANYAN_DUMP", "folder", "",
      "where each rank writes its latest operations if one fails, or at SIGUSR2", 0, 0 },
    { "BANYAN_TRACE", "file", "",
      "each rank writes FILE.rankN, its latest operations and chunks, for banyan_trace merge",
      0, 0 },
    { "BANYAN_METRICS", "folder|file|port", "",
      "OpenMetrics counters: a folder, or a file with %r for the rank, written every 5 s and "
      "at the end; a number: HTTP at 127.0.0.1, port + local rank",
      0, 0 },
    { "BANYAN_SPIN_US", "microseconds", "-1", "busy-wait before yielding; -1: by ranks per CPU",
      -1, 10000000 },
    { "BANYAN_CMA", "0|1", "1",
      "single-copy between local processes (process_vm_readv, process_vm_writev)", 0, 1 },
    { "BANYAN_CPU_MASK", "bits", "-1",
      "instruction sets to use: 1 AVX2, 2 AVX-512, 4 NEON; 0 scalar", -1, 1 << 30 },
    { "BANYAN_TUNE", "0|1|file", "1",
      "the first jobs of a host measure its fastest settings, in milliseconds, and keep them "
      "in the user's cache, or in this file; 0: no measurement, the defaults hold",
      0, 0 },
    { "BANYAN_LIBRARY", "path", "", "libbanyan that the Python module loads", 0, 0 },
    { "BANYAN_MPI", "key=value,...", "", "settings of libbanyan-mpi", 0, 0 },
    { "BANYAN_MPI=after", "calls", "128",
      "blocking collectives on a communicator before it joins banyan", 0, INT32_MAX },
    { "BANYAN_MPI=nonblocking", "bytes", "-1",
      "non-blocking collectives of fewer bytes stay on MPI; -1: 1 MiB with MPICH, 4 MiB with "
      "Open MPI",
      -1, INT64_MAX },
    { "BANYAN_MPI=stats", "0|1", "0", "report at MPI_Finalize which calls ran where", 0, 1 },
    { "BANYAN_MPI=join", "seconds", "60", "time limit for all ranks to come to MPI_Init", 1,
      3600 },
    { "BANYAN_MPI_CODEC", "name", "none", "libbanyan-mpi: codec of MPI_FLOAT sums", 0, 0 },
    { "BANYAN_SECRET", "text", "",
      "job secret if the launcher has none (torchrun, Slurm); default: ~/.banyan-cookie", 0,
      0 },
    { "BANYAN_SECRET_FILE", "path", "", "the same, from a file", 0, 0 },
    { "BANYAN_INSECURE", "0|1", "0",
      "no secret under torchrun and Slurm: anyone that reaches the ports may join", 0, 1 },
};
#define NPARAMS (sizeof params / sizeof params[0])

static atomic_int told[NPARAMS]; /* the wrong value was reported: some are read at every init */

int banyan_param(size_t i, const char **name, const char **type, const char **def,
                 const char **doc)
{
    const size_t n = NPARAMS - NPROTOCOL;
    const struct param *p = &params[NPROTOCOL];

    if (i >= n)
        return bny_fail(BANYAN_EINVAL,
                        "banyan_param: there are %zu variables and keys, index %zu", n, i);
    if (!name || !type || !def || !doc)
        return bny_fail(BANYAN_EINVAL, "banyan_param: name, type, def, doc must not be NULL");
    *name = p[i].name;
    *type = p[i].type;
    *def = p[i].def;
    *doc = p[i].doc;
    return 0;
}

/* Of `len` characters; NULL: there is none. */
static const struct param *param_look(const char *name, size_t len)
{
    for (size_t i = 0; i < NPARAMS; i++)
        if (strlen(params[i].name) == len && !memcmp(params[i].name, name, len))
            return &params[i];
    return NULL;
}

static const struct param *param_find(const char *name)
{
    const struct param *p = param_look(name, strlen(name));

    if (!p) {
        assert(!"variable is not in the table of base/param.c");
        abort();
    }
    return p;
}

/* ---- keys ---- */

/* The key of "VARIABLE=key", or NULL: it is no key, but a variable. */
static const char *key_of(const struct param *p)
{
    const char *eq = strchr(p->name, '=');

    return eq ? eq + 1 : NULL;
}

/* A variable's value that has this key in front. */
static int is_pair_of(const struct bny_pair *pair, const char *key)
{
    return strlen(key) == pair->key_len && !memcmp(key, pair->key, pair->key_len);
}

/* The value as text: the environment's if it is set there, else the default. */
static void text_of(const struct param *p, char out[PARAM_TEXT])
{
    const char *key = key_of(p), *text;
    struct bny_pair pair;
    char variable[32];

    snprintf(variable, sizeof variable, "%.*s", (int)strcspn(p->name, "="), p->name);
    text = secure_getenv(variable);
    if (!key && text && *text)
        snprintf(out, PARAM_TEXT, "%s", text);
    else
        snprintf(out, PARAM_TEXT, "%s", p->def);
    while (key && text && bny_pair_next(&text, &pair))
        if (is_pair_of(&pair, key))
            snprintf(out, PARAM_TEXT, "%.*s", (int)pair.value_len, pair.value);
}

/* ---- values ---- */

const char *bny_param_str(const char *name)
{
    const struct param *p = param_find(name);
    const char *text = secure_getenv(name);

    return text && *text ? text : p->def;
}

int bny_param_is_set(const char *name)
{
    const char *text = secure_getenv(param_find(name)->name);

    return text && *text;
}

void bny_param_text(const char *name, char *out, size_t cap)
{
    char text[PARAM_TEXT];

    text_of(param_find(name), text);
    snprintf(out, cap, "%s", text);
}

int bny_parse_size(const char *text, uint64_t *out)
{
    char *end;
    unsigned long long v;
    int shift = 0;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (end == text || errno || *text == '-')
        return -BANYAN_EINVAL;
    switch (*end) {
    case 'k':
    case 'K':
        shift = 10;
        end++;
        break;
    case 'm':
    case 'M':
        shift = 20;
        end++;
        break;
    case 'g':
    case 'G':
        shift = 30;
        end++;
        break;
    default: break;
    }
    if (*end != '\0' || (shift && v > (UINT64_MAX >> shift)))
        return -BANYAN_EINVAL;
    *out = (uint64_t)v << shift;
    return 0;
}

static int parse_int(const char *text, int64_t *out)
{
    uint64_t v;
    int negative = *text == '-';
    char *end;

    if (!strncmp(text, "0x", 2)) {
        errno = 0;
        *out = strtoll(text, &end, 16);
        return errno || end == text + 2 || *end ? -1 : 0;
    }
    if (bny_parse_size(text + negative, &v) != 0 || v > INT64_MAX)
        return -1;
    *out = negative ? -(int64_t)v : (int64_t)v;
    return 0;
}

/* The place of a word in "auto|qp|cm"; -1: it is none of them. */
static int parse_word(const char *words, const char *text)
{
    size_t len = strlen(text);

    for (int i = 0;; i++) {
        size_t n = strcspn(words, "|");

        if (n == len && !memcmp(words, text, n))
            return i;
        if (!words[n])
            return -1;
        words += n + 1;
    }
}

static int parse_real(const char *text, double *out)
{
    char *end;

    *out = bny_strtod(text, &end);
    return end != text && *end == '\0' && *out >= 0 && isfinite(*out) ? 0 : -1;
}

int bny_param_first_wrong(const char *name)
{
    return !atomic_exchange_explicit(&told[param_find(name) - params], 1, memory_order_relaxed);
}

/* What a value must be: " is not a number in [0, 7]". */
static const char *param_must(const struct param *p, char out[100])
{
    if (strchr(p->type, '|'))
        snprintf(out, 100, " is none of %s", p->type);
    else if (p->max)
        snprintf(out, 100, " is not a number in [%lld, %lld]", (long long)p->min,
                 (long long)p->max);
    else
        snprintf(out, 100, " is not a number >= 0 (%s)", p->type);
    return out;
}

static void tell_wrong(const struct param *p, const char *text)
{
    char must[100];

    if (bny_param_first_wrong(p->name))
        bny_warn("%s%s%s%s; using %s", p->name, "=", text, param_must(p, must), p->def);
}

int64_t bny_param_int(const char *name)
{
    const struct param *p = param_find(name);
    char text[PARAM_TEXT];
    int64_t v = 0;

    text_of(p, text);
    if (parse_int(text, &v) == 0 && v >= p->min && v <= p->max)
        return v;
    tell_wrong(p, text);
    parse_int(p->def, &v);
    return v;
}

int bny_param_choice(const char *name)
{
    const struct param *p = param_find(name);
    char text[PARAM_TEXT];
    int i;

    text_of(p, text);
    i = parse_word(p->type, text);
    if (i >= 0)
        return i;
    tell_wrong(p, text);
    return parse_word(p->type, p->def);
}

double bny_param_real(const char *name)
{
    const struct param *p = param_find(name);
    char text[PARAM_TEXT];
    double v;

    text_of(p, text);
    if (parse_real(text, &v) == 0)
        return v;
    tell_wrong(p, text);
    return bny_strtod(p->def, NULL);
}

/* ---- the environment as a whole ---- */

static const char *name_at(size_t i)
{
    return i < NPARAMS ? params[i].name : NULL;
}

/* Variables of the tests, of scripts/softroce-guest and scripts/test. */
static int is_no_parameter(const char *name)
{
    static const char *const others[] = { "BANYAN_TEST_", "BANYAN_GUEST_",
                                          "BANYAN_SKIP_GUEST" };

    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (!strncmp(name, others[i], strlen(others[i])))
            return 1;
    return 0;
}

/* The key that was a variable of this name before, or would be one: BANYAN_IB_AR. NULL: none.
 */
static const struct param *moved_to(const char *name)
{
    static const struct {
        const char *prefix, *variable;
    } moved[] = {
        { "BANYAN_VERBS_", "BANYAN_VERBS" }, { "BANYAN_IB_", "BANYAN_VERBS" },
        { "BANYAN_UD_", "BANYAN_UD" },       { "BANYAN_DPDK_", "BANYAN_DPDK" },
        { "BANYAN_TCP_", "BANYAN_TCP" },     { "BANYAN_MPI_", "BANYAN_MPI" },
        { "BANYAN_ALLOW_", "BANYAN_VERBS" },
    };
    char row[64];

    if (!strcmp(name, "BANYAN_TCP_INTEGRITY"))
        return param_find("BANYAN_INTEGRITY");
    for (size_t i = 0; i < sizeof moved / sizeof moved[0]; i++) {
        const size_t n = strlen(moved[i].prefix);
        const struct param *p;
        int at;

        if (strncmp(name, moved[i].prefix, n) != 0)
            continue;
        at = snprintf(row, sizeof row, "%s=", moved[i].variable);
        for (const char *c = name + n; *c && at < (int)sizeof row - 1; c++)
            row[at++] = (char)(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
        p = param_look(row, (size_t)at);
        if (p)
            return p;
        if (!strcmp(name + n, "PATH") || !strcmp(name + n, "FAULT")) /* a list of keys itself */
            return param_find(moved[i].variable);
    }
    return NULL;
}

/* Does the table lack this variable, NAME=value, whose name is like ours? */
static int is_unknown(const char *e, char name[64], const char **value)
{
    size_t len = strcspn(e, "=");

    if (strncmp(e, "BANYAN_", 7) != 0 || len >= 64 || is_no_parameter(e) || !e[len])
        return 0;
    memcpy(name, e, len);
    name[len] = '\0';
    *value = e + len + 1;
    return !param_look(name, len);
}

static void check_unknown(void)
{
    const char *value;
    char name[64];
    int ignored = 0;

    for (char **e = environ; bny_privileged() && e && *e; e++)
        ignored += !strncmp(*e, "BANYAN_", 7);
    if (ignored)
        bny_warn(
            "this program is set-uid or has file capabilities: the %d BANYAN_ variables of "
            "its environment are not read",
            ignored);
    if (bny_log_level_named(bny_param_str("BANYAN_DEBUG")) < 0)
        bny_warn("BANYAN_DEBUG=%s is none of error, warn, info and debug; using warn",
                 bny_param_str("BANYAN_DEBUG"));
    for (char **e = environ; !ignored && e && *e; e++)
        if (is_unknown(*e, name, &value) && !moved_to(name))
            bny_warn("unknown variable %s%s", name, bny_did_you_mean(name, name_at, NULL));
}

static int check_moved(void)
{
    const struct param *p;
    const char *value;
    char name[64];

    for (char **e = environ; !bny_privileged() && e && *e; e++)
        if (is_unknown(*e, name, &value) && *value && (p = moved_to(name)))
            return bny_fail(BANYAN_ECONFIG, "there is no variable %s now: set %s=%.200s", name,
                            p->name, value);
    return 0;
}

/* "a key of it: qps, devices, ..." */
static int unknown_key(const struct param *p, const struct bny_pair *pair)
{
    char list[400] = "";
    size_t at = 0;

    if (!strcmp(p->name, "BANYAN_TCP") && is_pair_of(pair, "integrity"))
        return bny_fail(BANYAN_ECONFIG,
                        "BANYAN_TCP has no key integrity now: set BANYAN_INTEGRITY=%.*s",
                        (int)(pair->value_len < 40 ? pair->value_len : 40), pair->value);
    for (const struct param *k = p + 1; k < params + NPARAMS && key_of(k); k++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", key_of(k));
    return bny_fail(BANYAN_ECONFIG, "%s: \"%.*s\" is none of its keys, each as key=value: %s",
                    p->name, (int)(pair->key_len < 40 ? pair->key_len : 40), pair->key, list);
}

/* One pair of a variable whose rows of keys follow it. *seen: bits of the keys so far. */
static int check_pair(const struct param *p, const struct bny_pair *pair, uint64_t *seen)
{
    const struct param *k = p + 1;
    char text[PARAM_TEXT], must[100];
    double real;
    int64_t v;
    int rc;

    while (k < params + NPARAMS && key_of(k) && !is_pair_of(pair, key_of(k)))
        k++;
    if (k == params + NPARAMS || !key_of(k) || !pair->value)
        return unknown_key(p, pair);
    if (*seen & 1ull << (k - p))
        return bny_fail(BANYAN_ECONFIG, "%s: %s is in it twice", p->name, key_of(k));
    *seen |= 1ull << (k - p);
    snprintf(text, sizeof text, "%.*s", (int)pair->value_len, pair->value);
    if (strchr(k->type, '|'))
        rc = parse_word(k->type, text);
    else if (k->max)
        rc = parse_int(text, &v) == 0 && v >= k->min && v <= k->max ? 0 : -1;
    else
        rc = parse_real(text, &real);
    return rc >= 0 ? 0
                   : bny_fail(BANYAN_ECONFIG, "%s: %s=%.40s%s", p->name, key_of(k), text,
                              param_must(k, must));
}

static int check_keys(const struct param *p)
{
    const char *text = bny_param_str(p->name);
    struct bny_pair pair;
    uint64_t seen = 0;
    int rc = 0;

    while (rc == 0 && bny_pair_next(&text, &pair))
        if (pair.key_len || pair.value) /* a comma too many is none */
            rc = check_pair(p, &pair, &seen);
    return rc;
}

int bny_param_check(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int rc = check_moved();

    pthread_once(&once, check_unknown);
    for (const struct param *p = params; rc == 0 && p + 1 < params + NPARAMS; p++)
        if (!key_of(p) && key_of(p + 1))
            rc = check_keys(p);
    if (rc == 0 && parse_word("plain|mac|encrypt", bny_param_str("BANYAN_INTEGRITY")) < 0)
        rc = bny_fail(BANYAN_ECONFIG, "BANYAN_INTEGRITY=%.40s is none of plain|mac|encrypt",
                      bny_param_str("BANYAN_INTEGRITY"));
    return rc;
}
