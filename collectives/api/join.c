/* SPDX-License-Identifier: BSD-3-Clause */
/* Joining a job: peer infos exchanged by the bootstrap and compared, endpoints made, nothing
 * connected yet; the communicator of all ranks. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/cpu.h"
#include "base/log.h"
#include "base/module.h"
#include "base/param.h"
#include "base/quota.h"
#include "base/secret.h"
#include "base/text.h"
#include "collectives/api/comm_parts.h"
#include "collectives/api/job.h"
#include "collectives/op/observe.h"
#include "collectives/progress/progress.h"
#include "collectives/plan/topology.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/net.h"
#include "transport/loop/loop.h"
#include "transport/proof.h"

#define SETTLE_GRACE_NS 300000000u
#define MANY_RANKS      64 /* whose init leaves much behind */

/* ---- this rank's peer info ---- */

static int wants(const char *transport, const char *name)
{
    if (!strcmp(transport, "auto"))
        return strcmp(name, "loop") != 0 && strcmp(name, "ud") != 0 &&
               (strcmp(name, "dpdk") != 0 || bny_param_is_set("BANYAN_DPDK_PORT"));
    return !strcmp(transport, name) || (!strcmp(transport, "verbs") && !strcmp(name, "tcp") &&
                                        bny_param_int("BANYAN_VERBS=tcp"));
}

/* May a job do without a transport that is not available? */
static int may_lack(const char *transport)
{
    return !strcmp(transport, "auto") ||
           (!strcmp(transport, "verbs") && bny_param_int("BANYAN_VERBS=tcp"));
}

/* Data between ranks must be as BANYAN_INTEGRITY says. Returns 0; 1: auto does without this
 * transport; or an error. */
static int check_integrity(const char *transport, const struct bny_tp *tp)
{
    static const char *const words[] = { "leaves unprotected",
                                         "authenticates, but does not encrypt" };
    int asked = bny_param_choice("BANYAN_INTEGRITY");

    if (tp->integrity >= asked)
        return 0;
    if (!strcmp(transport, "auto")) {
        bny_info("transport %s is left out: it %s data, and BANYAN_INTEGRITY=%s", tp->ops->name,
                 words[tp->integrity], bny_param_str("BANYAN_INTEGRITY"));
        return 1;
    }
    return bny_fail(
        BANYAN_ECONFIG,
        "transport %s %s data, and BANYAN_INTEGRITY=%s: use BANYAN_TRANSPORT=tcp or "
        "auto, or BANYAN_INTEGRITY=plain in a private network",
        tp->ops->name, words[tp->integrity], bny_param_str("BANYAN_INTEGRITY"));
}

static int create_transports(struct bny_init *in, const uint8_t *secret)
{
    struct bny_world *w = in->w;
    struct bny_tp_config tc = { .rank = w->rank,
                                .nranks = w->nranks,
                                .secret = secret,
                                .ifname = in->cfg.ifname,
                                .port_range = in->cfg.port_range };

    if (!strcmp(in->cfg.transport, "loop")) {
        w->fabric = bny_fabric_join(w->job, w->nranks);
        tc.fabric = w->fabric;
        if (!w->fabric)
            return bny_fail(BANYAN_ENOMEM, "no memory for a loop fabric");
    }
    for (int i = 0; bny_transports[i] && w->ntps < BNY_PEER_INFO_TPS; i++) {
        const struct bny_transport_ops *ops = bny_transports[i];
        int rc, len;
        if (!wants(in->cfg.transport, ops->name))
            continue;
        rc = ops->create(&w->tps[w->ntps], &tc);
        if (rc == -BANYAN_ENOTSUP && may_lack(in->cfg.transport)) {
            banyan_log(strcmp(in->cfg.transport, "auto") ? BANYAN_LOG_WARN : BANYAN_LOG_INFO,
                       "transport %s is not available: %s", ops->name, banyan_last_error());
            continue;
        }
        if (rc)
            return rc;
        rc = check_integrity(in->cfg.transport, w->tps[w->ntps]);
        if (rc) {
            ops->destroy(w->tps[w->ntps]);
            if (rc < 0)
                return rc;
            continue;
        }
        len = ops->address(w->tps[w->ntps], in->info.tp[w->ntps].blob, BNY_ADDR_MAX);
        if (len < 0) {
            w->ntps++;
            return len;
        }
        in->info.tp[w->ntps].len = (uint32_t)len;
        in->info.tp[w->ntps].eager_max = w->tps[w->ntps]->eager_max;
        in->info.tp[w->ntps].slot_max = w->tps[w->ntps]->slot_max;
        in->info.tp[w->ntps].whole_max = w->tps[w->ntps]->whole_max;
        if (!ops->shared && !in->info.mbps) /* the first reaches most ranks */
            in->info.mbps = w->tps[w->ntps]->mbps;
        snprintf(in->info.tp[w->ntps].name, 16, "%s", ops->name);
        w->ntps++;
    }
    if (w->ntps == 0)
        return bny_fail(BANYAN_ENOTSUP,
                        "transport: no transport named \"%s\" is available here; see "
                        "banyan_transport_name()",
                        in->cfg.transport);
    return 0;
}

/* A schedule that is a file goes by its content. */
static void schedule_name(const struct bny_init *in, char name[BNY_NAME_MAX])
{
    if (bny_topology_file_hash(in->w->topology))
        bny_topology_file_name(in->w->topology, name, BNY_NAME_MAX);
    else
        snprintf(name, BNY_NAME_MAX, "%s", in->cfg.schedule);
}

/* The CPUs that this process may use, and how many CPUs' time its group is granted. */
static void set_cpus(struct bny_peer_info *info)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int i = 0; i < BNY_PEER_INFO_CPU_WORDS * 64 && i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                info->cpus[i / 64] |= 1ull << (i % 64);
    info->granted = (uint32_t)bny_cpu_quota(&info->group);
}

static int fill_peer_info(struct bny_init *in)
{
    char schedule[BNY_NAME_MAX], integrity[16];
    int rc;

    in->info.magic = BNY_PEER_INFO_MAGIC;
    in->info.wire_version = BNY_WIRE_VERSION;
    snprintf(in->info.version, sizeof in->info.version, "%s", banyan_version_string());
    snprintf(in->info.transport, sizeof in->info.transport, "%.15s", in->cfg.transport);
    rc = bny_place_get(&in->info.at);
    if (rc)
        return rc;
    set_cpus(&in->info);
    schedule_name(in, schedule);
    bny_param_text("BANYAN_INTEGRITY", integrity, sizeof integrity);
    bny_snprintf(
        in->info.settings, sizeof in->info.settings,
        "transport=%.16s schedule=%s topology=%016llx codec=%s chunk=%zu deterministic=%d "
        "crc=%d force=%d link=%g integrity=%.8s verbs_memory=%lld",
        in->cfg.transport, schedule, (unsigned long long)bny_topology_hash(in->w->topology),
        in->cfg.codec, in->cfg.chunk_bytes, in->cfg.deterministic, in->w->codec_crc,
        in->w->codec_force, in->w->link_Bps * 8e-9, integrity,
        (long long)bny_param_int("BANYAN_VERBS=memory"));
    return 0;
}

static int connect_peer(struct bny_init *in, int peer, const struct bny_peer_info *c)
{
    struct bny_world *w = in->w;
    char why[300];

    bny_set_last_error(""); /* reachable() may say why not */

    for (int i = 0; i < w->ntps; i++)
        for (int k = 0; k < BNY_PEER_INFO_TPS; k++) {
            const struct bny_transport_ops *ops = w->tps[i]->ops;
            int rc;
            if (strncmp(c->tp[k].name, ops->name, 16) != 0 || c->tp[k].len > BNY_ADDR_MAX ||
                !ops->reachable(w->tps[i], peer, c->tp[k].blob, c->tp[k].len))
                continue;
            rc = ops->connect(w->tps[i], peer, c->tp[k].blob, c->tp[k].len,
                              &w->members.of[peer].ep);
            if (rc)
                return rc;
            bny_debug("rank %d is reached over %s", peer, ops->name);
            return 0;
        }
    snprintf(why, sizeof why, "%s%.280s", *banyan_last_error() ? ": " : "",
             banyan_last_error());
    return bny_fail(BANYAN_ENOTSUP, "rank %d cannot be reached by transport \"%s\"%s", peer,
                    in->cfg.transport,
                    *why ? why
                    : !strcmp(in->cfg.transport, "shm")
                        ? ": it runs on another host, or in another network or user namespace; "
                          "use auto or tcp"
                    : !strcmp(in->cfg.transport, "loop")
                        ? ": the loop transport joins ranks of one process; "
                          "use auto, shm or tcp between processes"
                        : "");
}

/* A transport that reaches nobody would only cost polls. Pairs choose alike, so nobody will
 * call on it either. */
static void drop_unused(struct bny_world *w)
{
    int kept = 0;

    for (int i = 0; i < w->ntps; i++) {
        int used = 0;
        for (int r = 0; r < w->nranks; r++)
            used |= w->members.of[r].ep && w->members.of[r].ep->tp == w->tps[i];
        if (used)
            w->tps[kept++] = w->tps[i];
        else
            w->tps[i]->ops->destroy(w->tps[i]);
    }
    w->ntps = kept;
}

/* How this rank reaches the others, and how that is protected. */
static void tell_ways(const struct bny_world *w)
{
    static const char *const words[] = { "unprotected", "authenticated", "encrypted",
                                         "in memory" };
    char file[PATH_MAX] = "", host[HOST_NAME_MAX + 1] = "", text[400] = "";
    size_t at = 0;

    if (!bny_log_enabled(BANYAN_LOG_INFO))
        return;
    bny_module_own_file(file);
    gethostname(host, sizeof host - 1);
    for (int i = 0; i < w->ntps; i++) {
        const struct bny_tp *tp = w->tps[i];
        int ranks = 0;

        for (int r = 0; r < w->nranks; r++)
            ranks += w->members.of[r].ep && w->members.of[r].ep->tp == tp;
        at +=
            (size_t)bny_snprintf(text + at, sizeof text - at, "%s%d rank%s over %s%s%s (%s)",
                                 at ? ", " : ": ", ranks, ranks == 1 ? "" : "s", tp->ops->name,
                                 *tp->at ? " from " : "", tp->at, words[tp->integrity]);
    }
    bny_info("banyan %s from %s, pid %d on %s%s", banyan_version_string(), file, (int)getpid(),
             host, text);
}

static int connect_control(const struct bny_init *in, struct bny_peer_table *table)
{
    const struct bny_world *w = in->w;
    unsigned n = (unsigned)w->nranks;
    uint8_t *same_host = malloc(n), (*blobs)[BNY_CONTROL_ADDR_MAX] = calloc(n, sizeof *blobs);
    const struct bny_peer_info *c;
    int rc;

    bny_peer_table_rewind(table);
    for (int r = 0; same_host && blobs && (c = bny_peer_table_next(table)); r++) {
        same_host[r] = (uint8_t)bny_place_has_one_loopback(&c->at, &in->info.at);
        memcpy(blobs[r], c->control, sizeof blobs[r]);
    }
    rc = same_host && blobs ? bny_control_connect(w->control, blobs, sizeof blobs[0], same_host)
                            : bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    free(same_host);
    free(blobs);
    return rc;
}

static int connect_peers(struct banyan_comm *comm, struct bny_peer_table *table)
{
    struct bny_world *w = comm->init->w;
    const struct bny_peer_info *c;
    int rc = 0;

    bny_peer_table_rewind(table);
    for (int r = 0; rc == 0 && (c = bny_peer_table_next(table)); r++)
        if (r != w->rank) {
            rc = connect_peer(comm->init, r, c);
            comm->peers[r].ep = w->members.of[r].ep;
        }
    return rc;
}

/* The peer infos as the bootstrap has them; or packed here, where the caller's all-gather
 * brought them, or nobody. *packed is the caller's to free. */
static int open_peer_table(struct bny_init *in, struct bny_peer_table *table, uint8_t **packed)
{
    size_t n = (size_t)in->w->nranks, bytes = sizeof *in->infos;

    *packed = NULL;
    if (!in->infos)
        return bny_bootstrap_peer_table(in->boot, table);
    *packed = malloc(bny_cards_packed_max(n, bytes));
    if (!*packed)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    return bny_peer_table_open(
        table, *packed, bny_cards_pack((uint8_t *)in->infos, n, bytes, *packed), n, bytes);
}

/* Two jobs may have the same id, where launchers name no secret of this start: from now on the
 * links of ours prove that they know what its rank 0 drew. */
static void secret_of_this_start(struct bny_world *w, struct bny_peer_table *table)
{
    static const char what[] = "banyan secret of one start, version 1";
    const struct bny_peer_info *root;
    crypto_generichash_state st;

    bny_peer_table_rewind(table);
    root = bny_peer_table_next(table);
    crypto_generichash_init(&st, w->secret, BNY_SECRET_BYTES, BNY_SECRET_BYTES);
    crypto_generichash_update(&st, (const uint8_t *)what, sizeof what - 1);
    crypto_generichash_update(&st, root->nonce, sizeof root->nonce);
    crypto_generichash_final(&st, w->secret, BNY_SECRET_BYTES);
    sodium_memzero(&st, sizeof st);
    bny_secret_forget();
}

/* All peer infos are here. */
static int join(struct banyan_comm *comm)
{
    struct bny_init *in = comm->init;
    struct bny_world *w = in->w;
    struct bny_peer_table table = { 0 };
    uint8_t *packed;
    int rc = open_peer_table(in, &table, &packed);

    if (rc == 0)
        rc = bny_cards_check(&table);
    if (rc == 0)
        secret_of_this_start(w, &table);
    if (rc == 0)
        rc = bny_cards_settle(w, &table);
    if (rc == 0)
        rc = connect_peers(comm, &table);
    if (rc == 0)
        drop_unused(w);
    if (rc == 0)
        tell_ways(w);
    if (rc == 0 && w->control)
        rc = connect_control(in, &table);
    bny_peer_table_close(&table);
    free(packed);
    return rc;
}

/* ---- init ---- */

static struct bny_init *init_new(const struct banyan_config *cfg)
{
    struct bny_init *in = calloc(1, sizeof *in);

    if (!in)
        return NULL;
    in->cfg = *cfg;
    in->cfg.transport = strdup(cfg->transport);
    in->cfg.schedule = strdup(cfg->schedule);
    in->cfg.codec = strdup(cfg->codec);
    in->cfg.ifname = strdup(cfg->ifname);
    in->cfg.port_range = strdup(cfg->port_range);
    in->cfg.topology = strdup(cfg->topology);
    if (in->cfg.transport && in->cfg.schedule && in->cfg.codec && in->cfg.ifname &&
        in->cfg.port_range && in->cfg.topology)
        return in;
    bny_init_free(in);
    return NULL;
}

static int comm_from_init(struct banyan_comm **out, struct bny_init *in)
{
    struct bny_world *w = in->w;
    int *ranks = calloc((size_t)w->nranks, sizeof *ranks);
    struct banyan_comm *comm;

    if (!ranks)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    for (int r = 0; r < w->nranks; r++)
        ranks[r] = r;
    comm = bny_comm_alloc(w, 1, w->nranks, w->rank, ranks);
    free(ranks);
    if (!comm)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    w->comm_ids = 1;
    schedule_name(in, comm->scope.schedule);
    snprintf(comm->scope.codec_spec, sizeof comm->scope.codec_spec, "%s", in->cfg.codec);
    comm->scope.chunk_bytes = in->cfg.chunk_bytes;
    comm->scope.deterministic = in->cfg.deterministic != 0;
    comm->op_timeout_s = w->op_timeout_s = in->cfg.op_timeout_s;
    comm->progress_hook = in->cfg.progress_hook;
    comm->progress_hook_ctx = in->cfg.progress_hook_ctx;
    comm->init = in;
    *out = comm;
    return 0;
}

/* The caller's all-gather stands in for the bootstrap: first random bytes, whose hash is the
 * job's secret, then peer infos. */
static int user_secret(struct bny_init *in, struct bny_id *id)
{
    int n = in->w->nranks;
    uint8_t mine[32], *all = malloc((size_t)n * 32);
    int rc = all ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for the bootstrap");

    randombytes_buf(mine, sizeof mine);
    if (rc == 0 && in->cfg.allgather(in->cfg.allgather_ctx, mine, all, sizeof mine) != 0)
        rc = bny_fail(BANYAN_ESYSTEM, "rank %d: config.allgather failed", in->w->rank);
    if (rc == 0) {
        crypto_generichash(id->secret, 32, all, (size_t)n * 32, NULL, 0);
        crypto_generichash(id->job, sizeof id->job, id->secret, 32, NULL, 0);
    }
    sodium_memzero(mine, sizeof mine);
    if (all)
        sodium_memzero(all, (size_t)n * 32);
    free(all);
    return rc;
}

/* Tells the other ranks of this one's failure, which is the last error. The sentence stays. */
static void tell_others(struct bny_bootstrap *boot, int rank, int rc)
{
    char text[400], own[512], name[24];
    size_t len = (size_t)snprintf(name, sizeof name, "rank %d", rank);

    snprintf(own, sizeof own, "%s", banyan_last_error());
    if (!strncmp(own, name, len) && strchr(": ", own[len])) /* it says whose it is */
        snprintf(text, sizeof text, "%.390s", own);
    else
        snprintf(text, sizeof text, "%s cannot join: %.360s", name, own);
    if (boot)
        bny_bootstrap_abort(boot, (enum banyan_error) - rc, text);
    bny_set_last_error(own);
}

void bny_init_refuse(const struct bny_id *id, int nranks, int rank, int rc,
                     uint64_t deadline_ns)
{
    struct bny_bootstrap *boot = NULL;
    char own[512];

    snprintf(own, sizeof own, "%s", banyan_last_error());
    if (nranks > 1 &&
        bny_bootstrap_start(&boot, id, nranks, rank, NULL, 1, "", "", deadline_ns) != 0)
        boot = NULL;
    bny_set_last_error(own);
    tell_others(boot, rank, rc);
    bny_bootstrap_destroy(boot);
}

/* The job's id; its root is looked for from now on, before anything that may fail or take
 * long. */
static int find_root(struct bny_init *in, const struct bny_id *given, int nranks, int rank)
{
    if (given)
        in->id = *given;
    if (sodium_init() < 0)
        return bny_fail(BANYAN_ESYSTEM, "libsodium cannot start");
    if (nranks == 1 || in->cfg.allgather)
        return 0;
    return bny_bootstrap_start(&in->boot, &in->id, nranks, rank, NULL, sizeof in->info,
                               in->cfg.ifname, in->cfg.port_range, in->deadline_ns);
}

/* Everything that the peer info tells of. */
static int make_peer_info(struct bny_init *in, int nranks, int rank)
{
    struct bny_addr root = { 0 };
    char ifname[BNY_ADDR_TEXT];
    int rc;

    in->w = bny_world_new(nranks, rank);
    if (nranks == 1 || in->cfg.allgather)
        in->infos = calloc((size_t)nranks, sizeof *in->infos);
    if (!in->w || (!in->infos && (nranks == 1 || in->cfg.allgather)))
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    rc = in->cfg.allgather ? user_secret(in, &in->id) : 0;
    memcpy(in->w->job, in->id.job, sizeof in->id.job);
    memcpy(in->w->secret, in->id.secret, BNY_SECRET_BYTES);
    bny_log_set_rank(rank);
    if (rc == 0)
        rc = bny_topology_load(&in->w->topology, in->cfg.topology, in->cfg.schedule);
    if (rc == 0)
        rc = fill_peer_info(in);
    if (rank == 0)
        randombytes_buf(in->info.nonce, sizeof in->info.nonce);
    if (rc || nranks == 1)
        return rc;
    rc = create_transports(in, in->w->secret);
    if (in->id.port)
        bny_id_addr(&in->id, &root);
    if (rc == 0)
        rc = bny_control_create(&in->w->control, rank, nranks, in->w->secret, in->id.job,
                                bny_net_ifname(in->cfg.ifname, &root, ifname),
                                in->cfg.port_range);
    if (rc == 0)
        rc = bny_control_address(in->w->control, in->info.control, sizeof in->info.control);
    return rc > 0 ? 0 : rc;
}

/* Sends the peer info on its way to the others. */
static int give_peer_info(struct bny_init *in)
{
    struct bny_world *w = in->w;

    if (in->cfg.allgather) {
        in->done = 1;
        if (in->cfg.allgather(in->cfg.allgather_ctx, &in->info, in->infos, sizeof in->info) !=
            0)
            return bny_fail(BANYAN_ESYSTEM, "rank %d: config.allgather failed", w->rank);
    } else if (w->nranks > 1) {
        bny_bootstrap_peer_info(in->boot, &in->info);
    } else {
        in->infos[0] = in->info;
        in->done = 1;
    }
    return 0;
}

int bny_init_start(struct banyan_comm **out, const struct bny_id *given, int nranks, int rank,
                   const struct banyan_config *cfg)
{
    uint64_t deadline = bny_deadline_in(cfg->init_timeout_s);
    struct bny_init *in = init_new(cfg);
    char text[512];
    int rc;

    *out = NULL;
    if (!in) {
        rc = bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
        if (given && !cfg->allgather)
            bny_init_refuse(given, nranks, rank, rc, deadline);
        return rc;
    }
    in->deadline_ns = deadline;
    bny_recorder_heed_signal();
    rc = find_root(in, given, nranks, rank);
    if (rc == 0)
        rc = make_peer_info(in, nranks, rank);
    if (rc == 0)
        rc = comm_from_init(out, in);
    if (rc == 0)
        rc = give_peer_info(in);
    if (rc == 0)
        return 0;
    tell_others(in->boot, rank, rc);
    snprintf(text, sizeof text, "%s", banyan_last_error());
    if (*out) {
        bny_comm_end(*out);
    } else {
        bny_world_free(in->w);
        bny_init_free(in);
    }
    *out = NULL;
    bny_set_last_error(text);
    return rc;
}

/* The peer infos of all ranks, and the root's connections to them, were some MiB: what the heap
 * keeps of them would stay with each rank. */
static void join_give_back(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/* All peer infos are here and this rank has joined: do its control connections stand, and those
 * of all others? A death before would go unnoticed. 1: yes, 0: not yet, else an error. */
static int join_settle(struct bny_init *in)
{
    struct bny_world *w = in->w;
    struct bny_failure f;
    int ready, failed;

    if (!w->control)
        return 1;
    failed = bny_control_progress(w->control) && bny_control_failure(w->control, &f);
    ready = bny_control_ready(w->control);
    if (ready < 0)
        return ready;
    if (in->boot) {
        /* First, as it has the cause: ranks that it ended leave, and seem to die. */
        int rc = bny_bootstrap_settle(in->boot, ready);

        if (rc)
            return rc;
    }
    if (failed && !in->failed_ns)
        in->failed_ns = bny_now_ns();
    if (failed && (!in->boot || bny_now_ns() - in->failed_ns > SETTLE_GRACE_NS))
        return bny_fail((enum banyan_error)f.code, "%s", f.text);
    if (in->boot)
        return 0;
    if (!ready && bny_deadline_passed(in->deadline_ns))
        return bny_fail(
            BANYAN_ETIMEDOUT,
            "rank %d: the control connections to other ranks did not come up before the "
            "deadline of init; is a firewall in the way of BANYAN_PORT_RANGE? " BNY_NET_DOCTOR,
            w->rank);
    return ready;
}

static void finish_at_exit(void)
{
    bny_worlds_each(bny_recorder_finish);
}

static void open_recorder(struct bny_world *w)
{
    static atomic_int at_exit;

    bny_recorder_open(w);
    if (w->trace && !atomic_exchange(&at_exit, 1))
        atexit(finish_at_exit); /* a program may end without a farewell */
}

/* 1: this rank and all others have joined, 0: not yet, else an error, the last one. */
static int join_advance(struct banyan_comm *comm)
{
    struct bny_init *in = comm->init;
    int rc;

    if (!in->done) {
        rc = bny_bootstrap_progress(in->boot, NULL);
        if (rc != 1)
            return rc;
        in->done = 1;
    }
    if (!in->joined) {
        rc = join(comm);
        if (rc)
            return rc;
        in->joined = 1;
    }
    if (!in->settled) {
        rc = join_settle(in);
        if (rc != 1)
            return rc;
        in->settled = 1;
    }
    open_recorder(in->w);
    bny_observer_open(in->w);
    if (in->w->control)
        bny_control_here(in->w->control);
    rc = in->w->control ? bny_control_start(in->w->control) : 0;
    if (rc == 0)
        rc = in->cfg.progress_thread ? bny_world_thread(in->w, in->cfg.progress_cpu) : 0;
    return rc ? rc : 1;
}

int bny_init_progress(struct banyan_comm *comm)
{
    struct bny_init *in = comm->init;
    int rc;

    if (!in)
        return 1;
    if (in->rc) {
        bny_set_last_error(in->text);
        return in->rc;
    }
    rc = join_advance(comm);
    if (rc == 0)
        return 0;
    if (rc < 0) {
        in->rc = rc;
        tell_others(in->boot, in->w->rank, rc);
        snprintf(in->text, sizeof in->text, "%s", banyan_last_error());
        return rc;
    }
    if (in->w->nranks > 1)
        bny_buffered_make(&in->w->held);
    bny_worlds_add(in->w);
    bny_comm_settle(comm);
    comm->init = NULL;
    bny_init_free(in);
    if (comm->world->nranks >= MANY_RANKS)
        join_give_back();
    return 1;
}

void bny_init_give_up(struct banyan_comm *comm, int rc)
{
    struct bny_init *in = comm->init;
    char own[512];

    if (!in || in->rc)
        return;
    snprintf(own, sizeof own, "%s", banyan_last_error());
    snprintf(in->text, sizeof in->text, "%s", own);
    in->rc = rc;
    if (in->boot)
        bny_bootstrap_abort_now(in->boot, (enum banyan_error) - rc, own);
    bny_set_last_error(own);
}

int bny_init_fds(struct banyan_comm *comm, int *fds, int cap)
{
    int n = 0;

    if (comm->init && comm->init->joined && comm->world->control)
        n = bny_control_fds(comm->world->control, fds, cap);
    if (comm->init && comm->init->boot)
        n += bny_bootstrap_fds(comm->init->boot, fds + n, cap - n);
    return n;
}

/* In the tests' worlds ranks 2i and 2i + 1 are a host, so that there are hosts of several
 * ranks. */
static int settle_loop(struct bny_world *w)
{
    int host_of[256];

    if (w->nranks > 256)
        return bny_fail(BANYAN_EINVAL, "%d ranks are too many for a world of one process",
                        w->nranks);
    for (int r = 0; r < w->nranks; r++)
        host_of[r] = r / 2;
    return bny_topology_settle(w->topology, host_of, w->nranks);
}

int bny_comm_loop(struct banyan_comm **out, struct bny_loop_fabric *fabric, int nranks,
                  int rank, const struct banyan_config *cfg)
{
    static const uint8_t secret[32];
    struct bny_tp_config tc = { .rank = rank,
                                .nranks = nranks,
                                .secret = secret,
                                .ifname = "",
                                .port_range = "",
                                .fabric = fabric };
    struct banyan_config c;
    struct bny_init *in;
    int rc = bny_config_take(&c, cfg);

    if (rc)
        return rc;
    in = init_new(&c);
    if (!in || !(in->w = bny_world_new(nranks, rank))) {
        bny_init_free(in);
        return -BANYAN_ENOMEM;
    }
    rc = bny_transport_find("loop")->create(&in->w->tps[0], &tc);
    if (rc == 0) {
        in->w->ntps = 1;
        in->w->nlocal = nranks;
        in->w->all_local = 1;
        in->w->agreed.eager_max = in->w->agreed.at_once = in->w->tps[0]->eager_max;
        in->w->agreed.slot_max = in->w->tps[0]->slot_max;
        in->w->agreed.whole_max = UINT32_MAX;
        rc = bny_topology_load(&in->w->topology, in->cfg.topology, in->cfg.schedule);
    }
    if (rc == 0)
        rc = settle_loop(in->w);
    if (rc == 0)
        rc = comm_from_init(out, in);
    if (rc) {
        bny_world_free(in->w);
        bny_init_free(in);
        return rc;
    }
    for (int r = 0; rc == 0 && r < nranks; r++)
        if (r != rank) {
            uint8_t blob[BNY_ADDR_MAX];
            rc = in->w->tps[0]->ops->connect(in->w->tps[0], r, blob,
                                             bny_loop_fabric_address(fabric, r, blob),
                                             &in->w->members.of[r].ep);
            (*out)->peers[r].ep = in->w->members.of[r].ep;
        }
    if (rc == 0) {
        bny_comm_settle(*out);
        (*out)->init = NULL;
        bny_init_free(in);
    }
    return rc;
}
