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
#include "base/text.h"

extern char **environ;

struct param {
    const char *name, *type, *def, *doc;
    int64_t min, max; /* range of whole numbers */
};

static const struct param params[] = {
    { "BANYAN_DEBUG", "error|warn|info|debug", "warn",
      "log level; info prints one line per new plan", 0, 0 },
    { "BANYAN_TRANSPORT", "auto|shm|verbs|ud|dpdk|tcp", "auto", "transport between ranks", 0,
      0 },
    { "BANYAN_ALLOW_TCP", "0|1", "0",
      "if verbs was requested: use tcp with ranks that it does not reach", 0, 1 },
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
      "speed of a rank's link, for the choice of schedules and codecs; 0: by transport", 0, 0 },
    { "BANYAN_CHUNK", "bytes", "0", "chunk size; 0: chosen by size", 0, 1 << 26 },
    { "BANYAN_IFNAME", "list", "",
      "interfaces: eth0,ib or ^lo,docker; for verbs also an RDMA device: mlx5_0:1", 0, 0 },
    { "BANYAN_TCP_INTEGRITY", "plain|mac|encrypt", "plain",
      "tcp data between ranks: unprotected, authenticated, or also encrypted; all ranks alike",
      0, 0 },
    { "BANYAN_TCP_REPLACE", "seconds", "30",
      "time limit to replace a lost tcp connection; 0: it is not replaced", 0, 3600 },
    { "BANYAN_VERBS_NOTIFY", "0|1", "0",
      "messages instead of immediates, as for devices without them; all ranks alike", 0, 1 },
    { "BANYAN_VERBS_QPS", "1-16", "1",
      "queue pairs to a peer on each device; long messages are spread over them", 1, 16 },
    { "BANYAN_VERBS_REPLACE", "seconds", "10",
      "time limit to replace a broken queue pair; 0: it is not replaced", 0, 600 },
    { "BANYAN_VERBS_RNR", "0-6", "6",
      "retries of a verbs device to a peer that is not ready to receive", 0, 6 },
    { "BANYAN_VERBS_PATH", "list", "",
      "path of verbs connections: tc=106,sl=3,timeout=18,retry=6; the port or rdma_cm decides "
      "the rest",
      0, 0 },
    { "BANYAN_VERBS_MEMORY", "bytes", "256M",
      "limit of registered memory for all peers of a rank on each device: large jobs have "
      "smaller slots; all ranks alike",
      65536, INT64_MAX },
    { "BANYAN_VERBS_SRQ", "0|1", "0", "one receive queue for all queue pairs of a device", 0,
      1 },
    { "BANYAN_IB_AR", "auto|0|1", "auto",
      "for networks with adaptive routing: long writes without an immediate, which follows "
      "alone; auto: InfiniBand",
      0, 0 },
    { "BANYAN_IB_RELAXED_ORDERING", "auto|0|1", "auto",
      "writes of peers may pass each other on PCIe; auto: if rdma-core has it", 0, 0 },
    { "BANYAN_IB_CACHE", "off|uffd", "off",
      "uffd: unregistered buffers from 64 KiB on are registered and stay so until userfaultfd "
      "reports a change (docs/rdma.md)",
      0, 0 },
    { "BANYAN_IB_CACHE_BYTES", "bytes", "1G",
      "limit of the memory that BANYAN_IB_CACHE keeps registered", 65536, INT64_MAX },
    { "BANYAN_IB_CONNECT", "auto|qp|cm", "auto",
      "how verbs queue pairs are connected: by the ranks over TCP, or by rdma_cm; auto: by the "
      "ranks except for iWARP; all ranks alike",
      0, 0 },
    { "BANYAN_IB_DEVICES", "0-8", "1",
      "verbs devices of a rank if BANYAN_IFNAME names none: the nearest to its CPUs; 0: the "
      "first, however far",
      0, 8 },
    { "BANYAN_IB_ROUTED", "0|1", "0",
      "verbs devices of different subnets reach each other: choose among all by distance", 0,
      1 },
    { "BANYAN_IB_GID_INDEX", "number", "",
      "index of the GID of verbs devices (show_gids); default: by its type", 0, 0 },
    { "BANYAN_IB_PKEY", "number", "",
      "partition key of verbs devices, as 0x8001; default: the first with full membership", 0,
      0 },
    { "BANYAN_DPDK_PORT", "port", "memif",
      "memif, ring, af_packet:iface=veth0, a DPDK vdev, or a PCI address as 0000:03:00.0, with "
      "its driver's arguments as 0000:03:00.0,mprq_en=1",
      0, 0 },
    { "BANYAN_DPDK_ARGS", "text", "", "further arguments of DPDK's EAL", 0, 0 },
    { "BANYAN_DPDK_MTU", "bytes", "0",
      "longest packet; 0: the interface's, 9202 between ranks of a host", 0, 64000 },
    { "BANYAN_DPDK_QUEUES", "number", "1",
      "queues of the DPDK port in each direction; frames spread over them by peer and channel",
      1, 16 },
    { "BANYAN_DPDK_ADDR", "address[/prefix]", "",
      "IPv4 or IPv6 address of the DPDK port, with its subnet; empty: the interface's", 0, 0 },
    { "BANYAN_DPDK_GATEWAY", "address", "", "router to ranks of other subnets", 0, 0 },
    { "BANYAN_DPDK_VLAN", "number", "0", "VLAN of the DPDK port's frames; 0: untagged", 0,
      4094 },
    { "BANYAN_DPDK_CHECK", "none|crc|mac", "none", "packets carry a crc32c, or a keyed hash", 0,
      0 },
    { "BANYAN_DPDK_FAULT", "list", "",
      "injected faults: loss=.01,dup=,reorder=,corrupt=,rate=1G,seed=7", 0, 0 },
    { "BANYAN_UD_MEMORY", "bytes", "12M",
      "pinned memory for the datagrams of transport ud, of all peers", 1 << 20, 1 << 30 },
    { "BANYAN_UD_CHECK", "none|crc|mac", "none",
      "datagrams of transport ud carry a crc32c, or a keyed hash; all ranks alike", 0, 0 },
    { "BANYAN_UD_FAULT", "list", "", "as BANYAN_DPDK_FAULT, for transport ud", 0, 0 },
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
    { "BANYAN_ID", "hex", "", "the job's id, set by banyan_run", 0, 0 },
    { "BANYAN_RANK", "rank", "", "this process's rank, set by banyan_run", 0, 0 },
    { "BANYAN_WORLD_SIZE", "ranks", "", "ranks of the job, set by banyan_run", 0, 0 },
    { "BANYAN_LOCAL_RANK", "rank", "", "this process's rank on its host, set by banyan_run", 0,
      0 },
    { "BANYAN_LOCAL_SIZE", "ranks", "", "number of processes on this host, set by banyan_run",
      0, 0 },
    { "BANYAN_LIBRARY", "path", "", "libbanyan that the Python module loads", 0, 0 },
    { "BANYAN_LISTEN_FD", "fd", "", "rank 0's listening socket, set by banyan_run", 0, 0 },
    { "BANYAN_BOARD_FD", "fd", "-1",
      "shared memory where restarted ranks meet the job, set by banyan_run --restart", -1,
      INT32_MAX },
    { "BANYAN_RESTART_COUNT", "number", "0",
      "number of restarts of this rank, set by banyan_run --restart", 0, INT32_MAX },
    { "BANYAN_MPI_CODEC", "name", "none", "libbanyan-mpi: codec of MPI_FLOAT sums", 0, 0 },
    { "BANYAN_MPI_STATS", "0|1", "0",
      "libbanyan-mpi: report at MPI_Finalize which calls ran where", 0, 1 },
    { "BANYAN_MPI_AFTER", "calls", "128",
      "libbanyan-mpi: blocking collectives on a communicator before it joins banyan", 0, 0 },
    { "BANYAN_MPI_NONBLOCKING", "bytes", "MPICH: 1 MiB, Open MPI: 4 MiB",
      "libbanyan-mpi: non-blocking collectives of fewer bytes stay on MPI", 0, 0 },
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
    if (i >= NPARAMS)
        return bny_fail(BANYAN_EINVAL, "banyan_param: there are %zu variables, index %zu",
                        NPARAMS, i);
    if (!name || !type || !def || !doc)
        return bny_fail(BANYAN_EINVAL, "banyan_param: name, type, def, doc must not be NULL");
    *name = params[i].name;
    *type = params[i].type;
    *def = params[i].def;
    *doc = params[i].doc;
    return 0;
}

static const struct param *param_find(const char *name)
{
    for (size_t i = 0; i < NPARAMS; i++)
        if (!strcmp(params[i].name, name))
            return &params[i];
    assert(!"variable is not in the table of base/param.c");
    abort();
}

const char *bny_param_str(const char *name)
{
    const struct param *p = param_find(name);
    const char *text = getenv(name);

    return text && *text ? text : p->def;
}

int bny_param_is_set(const char *name)
{
    const char *text = getenv(param_find(name)->name);

    return text && *text;
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

    if (bny_parse_size(text + negative, &v) != 0 || v > INT64_MAX)
        return -1;
    *out = negative ? -(int64_t)v : (int64_t)v;
    return 0;
}

int bny_param_first_wrong(const char *name)
{
    return !atomic_exchange_explicit(&told[param_find(name) - params], 1, memory_order_relaxed);
}

int64_t bny_param_int(const char *name)
{
    const struct param *p = param_find(name);
    const char *text = bny_param_str(name);
    int64_t v = 0;

    if (parse_int(text, &v) == 0 && v >= p->min && v <= p->max)
        return v;
    if (bny_param_first_wrong(name))
        bny_warn("%s=%s is not a number in [%lld, %lld]; using %s", name, text,
                 (long long)p->min, (long long)p->max, p->def);
    parse_int(p->def, &v);
    return v;
}

double bny_param_real(const char *name)
{
    const char *text = bny_param_str(name);
    char *end;
    double v = bny_strtod(text, &end);

    if (end != text && *end == '\0' && v >= 0 && isfinite(v))
        return v;
    if (bny_param_first_wrong(name))
        bny_warn("%s=%s is not a number >= 0; using %s", name, text, param_find(name)->def);
    return bny_strtod(param_find(name)->def, NULL);
}

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

static int is_known(const char *name)
{
    for (size_t i = 0; i < NPARAMS; i++)
        if (!strcmp(params[i].name, name))
            return 1;
    return 0;
}

static void check_unknown(void)
{
    if (bny_log_level_named(bny_param_str("BANYAN_DEBUG")) < 0)
        bny_warn("BANYAN_DEBUG=%s is none of error, warn, info and debug; using warn",
                 bny_param_str("BANYAN_DEBUG"));
    for (char **e = environ; e && *e; e++) {
        char name[64];
        size_t len = strcspn(*e, "=");

        if (strncmp(*e, "BANYAN_", 7) != 0 || len >= sizeof name || is_no_parameter(*e))
            continue;
        memcpy(name, *e, len);
        name[len] = '\0';
        if (!is_known(name))
            bny_warn("unknown variable %s%s", name, bny_did_you_mean(name, name_at, NULL));
    }
}

void bny_param_check_unknown(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, check_unknown);
}
