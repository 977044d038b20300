/* SPDX-License-Identifier: BSD-3-Clause */
/* Joining a job: cards exchanged by the bootstrap and compared, endpoints made, nothing
 * connected yet; the communicator of all ranks. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/cpu.h"
#include "base/param.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "collectives/plan/topology.h"
#include "transport/loop/loop.h"

#define CARD_MAGIC       0x64726163u
#define CPU_WORDS        16 /* 1024 CPUs */
#define BNY_SETTINGS_MAX 256
#define CARD_TPS         4
#define MANY_RANKS       64 /* whose init leaves much behind */

/* What each rank tells all others. Plain bytes, same library version on both sides (checked
 * first). */
struct bny_card {
    uint32_t magic, wire_version;
    char version[16];
    uint8_t host[16], stack[16]; /* kernel; kernel and network namespace */
    uint8_t memory[16]; /* these and the user: ranks alike in it reach each other by transports
                           of one host (shm_reachable()) */
    uint64_t cpus[CPU_WORDS];
    char settings[BNY_SETTINGS_MAX];
    char transport[16];
    uint8_t control[BNY_CONTROL_ADDR_MAX];
    struct {
        char name[16];
        uint32_t eager_max, slot_max, whole_max; /* of struct bny_tp */
        uint32_t len;
        uint8_t blob[BNY_ADDR_MAX];
    } tp[CARD_TPS];
};
_Static_assert(sizeof(struct bny_card) <= BNY_CARD_MAX, "card");

struct bny_init {
    struct bny_world *w;
    struct bny_bootstrap *boot;
    struct bny_card card, *cards;
    struct banyan_config cfg;
    int done, joined, rc;
    uint64_t deadline_ns;
    char text[300]; /* of rc */
};

/* ---- this rank's card ---- */

/* netns: ranks in different network namespaces count as different hosts; user: so do those of
 * different users. */
static void host_id(uint8_t out[16], int netns, int user)
{
    char text[200] = { 0 };
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t len = f ? fread(text, 1, 64, f) : 0;

    if (f)
        fclose(f);
    if (len == 0)
        gethostname(text, 127);
    if (netns && readlink("/proc/self/ns/net", text + 128, 180 - 129) < 0)
        text[128] = 0;
    if (user)
        snprintf(text + 180, sizeof text - 180, "%u", (unsigned)geteuid());
    crypto_generichash(out, 16, (const unsigned char *)text, sizeof text, NULL, 0);
}

static int wants(const char *transport, const char *name)
{
    if (!strcmp(transport, "auto"))
        return strcmp(name, "loop") != 0 &&
               (strcmp(name, "dpdk") != 0 || bny_param_is_set("BANYAN_DPDK_PORT"));
    return !strcmp(transport, name) || (!strcmp(transport, "verbs") && !strcmp(name, "tcp") &&
                                        bny_param_int("BANYAN_ALLOW_TCP"));
}

/* May a job do without a transport that is not available? */
static int may_lack(const char *transport)
{
    return !strcmp(transport, "auto") ||
           (!strcmp(transport, "verbs") && bny_param_int("BANYAN_ALLOW_TCP"));
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
    for (int i = 0; bny_transports[i] && w->ntps < CARD_TPS; i++) {
        const struct bny_transport_ops *ops = bny_transports[i];
        int rc, len;
        if (!wants(in->cfg.transport, ops->name))
            continue;
        rc = ops->create(&w->tps[w->ntps], &tc);
        if (rc == -BANYAN_ENOTSUP && may_lack(in->cfg.transport)) {
            bny_log(strcmp(in->cfg.transport, "auto") ? BANYAN_LOG_WARN : BANYAN_LOG_INFO,
                    "transport %s is not available: %s", ops->name, banyan_last_error());
            continue;
        }
        if (rc)
            return rc;
        len = ops->address(w->tps[w->ntps], in->card.tp[w->ntps].blob, BNY_ADDR_MAX);
        if (len < 0) {
            w->ntps++;
            return len;
        }
        in->card.tp[w->ntps].len = (uint32_t)len;
        in->card.tp[w->ntps].eager_max = w->tps[w->ntps]->eager_max;
        in->card.tp[w->ntps].slot_max = w->tps[w->ntps]->slot_max;
        in->card.tp[w->ntps].whole_max = w->tps[w->ntps]->whole_max;
        snprintf(in->card.tp[w->ntps].name, 16, "%s", ops->name);
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

static int fill_card(struct bny_init *in)
{
    char schedule[BNY_NAME_MAX];
    cpu_set_t set;

    in->card.magic = CARD_MAGIC;
    in->card.wire_version = BNY_WIRE_VERSION;
    snprintf(in->card.version, sizeof in->card.version, "%s", banyan_version_string());
    snprintf(in->card.transport, sizeof in->card.transport, "%.15s", in->cfg.transport);
    host_id(in->card.host, 0, 0);
    host_id(in->card.stack, 1, 0);
    host_id(in->card.memory, 1, 1);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int i = 0; i < CPU_WORDS * 64 && i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                in->card.cpus[i / 64] |= 1ull << (i % 64);
    schedule_name(in, schedule);
    snprintf(in->card.settings, sizeof in->card.settings,
             "transport=%.16s schedule=%s topology=%016llx codec=%s chunk=%zu deterministic=%d "
             "crc=%d force=%d link=%g",
             in->cfg.transport, schedule,
             (unsigned long long)bny_topology_hash(in->w->topology), in->cfg.codec,
             in->cfg.chunk_bytes, in->cfg.deterministic, in->w->codec_crc, in->w->codec_force,
             in->w->link_Bps * 8e-9);
    return 0;
}

static int check_settings(const struct bny_init *in)
{
    int n = in->w->nranks;

    for (int r = 0; r < n; r++) {
        const struct bny_card *c = &in->cards[r];
        if (c->magic != CARD_MAGIC || c->wire_version != BNY_WIRE_VERSION ||
            strncmp(c->version, in->cards[0].version, sizeof c->version) != 0)
            return bny_fail(BANYAN_EVERSION,
                            "rank %d runs banyan %.15s, rank 0 runs %.15s: install one version "
                            "everywhere",
                            r, c->version, in->cards[0].version);
        if (strncmp(c->settings, in->cards[0].settings, sizeof c->settings) != 0)
            return bny_fail(
                BANYAN_ECONFIG,
                "settings differ: rank 0 has \"%.240s\", rank %d has \"%.240s\"; set the "
                "BANYAN_* variables and the config alike on all ranks",
                in->cards[0].settings, r, c->settings);
    }
    return 0;
}

/* More ranks than CPUs on any host? All ranks compute the same from all cards. */
static int any_oversubscribed(const struct bny_init *in)
{
    int n = in->w->nranks;

    for (int h = 0; h < n; h++) {
        uint64_t cpus[CPU_WORDS] = { 0 };
        int ranks = 0, count = 0;
        for (int r = 0; r < n; r++) {
            if (memcmp(in->cards[r].host, in->cards[h].host, 16) != 0)
                continue;
            if (r < h) {
                ranks = -1;
                break; /* this host was looked at already */
            }
            ranks++;
            for (int i = 0; i < CPU_WORDS; i++)
                cpus[i] |= in->cards[r].cpus[i];
        }
        for (int i = 0; i < CPU_WORDS; i++)
            count += __builtin_popcountll(cpus[i]);
        if (ranks > count)
            return 1;
    }
    return 0;
}

/* A card's k-th transport; NULL: none that we know. */
static const struct bny_transport_ops *card_transport(const struct bny_card *c, int k)
{
    char name[sizeof c->tp[k].name + 1] = "";

    memcpy(name, c->tp[k].name, sizeof c->tp[k].name);
    return bny_transport_find(name);
}

static int has_shared(const struct bny_card *c)
{
    for (int k = 0; k < CARD_TPS; k++)
        if (c->tp[k].name[0] && card_transport(c, k) &&
            (card_transport(c, k)->caps & BNY_TP_SHARED))
            return 1;
    return 0;
}

static int connect_peer(struct bny_init *in, int peer)
{
    struct bny_world *w = in->w;
    const struct bny_card *c = &in->cards[peer];

    for (int i = 0; i < w->ntps; i++)
        for (int k = 0; k < CARD_TPS; k++) {
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
    return bny_fail(BANYAN_ENOTSUP, "rank %d cannot be reached by transport \"%s\"%s", peer,
                    in->cfg.transport,
                    !strcmp(in->cfg.transport, "shm")
                        ? ": it runs on another host; use auto or tcp"
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

/* Numbers the hosts in order of their lowest ranks. */
static int settle_topology(struct bny_init *in)
{
    struct bny_world *w = in->w;
    int *host_of = calloc((unsigned)w->nranks, sizeof *host_of), nhosts = 0, rc;

    if (!host_of)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    for (int r = 0; r < w->nranks; r++) {
        int first = 0;

        while (memcmp(in->cards[first].stack, in->cards[r].stack, 16) != 0)
            first++;
        host_of[r] = first == r ? nhosts++ : host_of[first];
    }
    rc = bny_topology_settle(w->topology, host_of, w->nranks);
    free(host_of);
    return rc;
}

static uint32_t less(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* One transport of one rank, which some peer may talk to it by. */
static void count_limits(struct bny_world *w, const struct bny_card *c, int k)
{
    w->agreed.eager_max = less(w->agreed.eager_max, c->tp[k].eager_max);
    w->agreed.slot_max = less(w->agreed.slot_max, c->tp[k].slot_max);
    if (c->tp[k].whole_max)
        w->agreed.whole_max = less(w->agreed.whole_max, c->tp[k].whole_max);
}

/* What every rank can rely on whichever pair talks: a plan's chunks must fit all of them, and
 * each rank knows its own endpoints only. So it is computed from all cards, alike on all ranks:
 * of each transport that both of some pair have, those of a host alone for pairs of one host.
 */
static void agree_on_limits(struct bny_init *in)
{
    struct bny_world *w = in->w;
    int n = w->nranks, shared = 0, others = 0;

    w->agreed.eager_max = w->agreed.slot_max = w->agreed.whole_max = UINT32_MAX;
    for (int r = 0; r < n; r++) {
        const struct bny_card *c = &in->cards[r];
        int neighbour = 0, remote = 0;

        for (int q = 0; q < n && !(neighbour && remote); q++) {
            int same = !memcmp(in->cards[q].memory, c->memory, 16);

            neighbour |= q != r && same;
            remote |= !same;
        }
        for (int k = 0; k < CARD_TPS; k++) {
            const struct bny_transport_ops *ops =
                c->tp[k].name[0] ? card_transport(c, k) : NULL;

            if (!ops || ((ops->caps & BNY_TP_LOCAL) && !neighbour))
                continue;
            if (ops->caps & BNY_TP_SHARED)
                shared = 1;
            else if (remote || !has_shared(c))
                others = 1;
            else
                continue; /* all its peers share memory with it */
            count_limits(w, c, k);
        }
    }
    w->agreed.small_slots = (uint8_t)shared;
    w->agreed.shares_memory = (uint8_t)(shared && !others);
    if (!w->agreed.shares_memory)
        w->agreed.eager_max = less(w->agreed.eager_max, 4096); /* what every transport can */
}

static int connect_control(const struct bny_init *in)
{
    const struct bny_world *w = in->w;
    uint8_t *same_host = malloc((unsigned)w->nranks);
    int rc;

    if (!same_host)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    for (int r = 0; r < w->nranks; r++)
        same_host[r] = !memcmp(in->cards[r].host, in->cards[w->rank].host, 16);
    rc = bny_control_connect(w->control, in->cards[0].control, sizeof in->cards[0], same_host);
    free(same_host);
    return rc;
}

/* All cards are here. */
static int join(struct banyan_comm *comm)
{
    struct bny_init *in = comm->init;
    struct bny_world *w = in->w;
    int rc = check_settings(in);

    if (rc)
        return rc;
    w->all_local = 1;
    for (int r = 0; r < w->nranks; r++) {
        w->nlocal += !memcmp(in->cards[r].host, in->cards[w->rank].host, 16);
        w->all_local &= !memcmp(in->cards[r].host, in->cards[0].host, 16);
    }
    agree_on_limits(in);
    w->oversubscribed = any_oversubscribed(in);
    rc = settle_topology(in);
    if (rc)
        return rc;
    for (int r = 0; r < w->nranks; r++)
        if (r != w->rank) {
            rc = connect_peer(in, r);
            if (rc)
                return rc;
            comm->peers[r].ep = w->members.of[r].ep;
        }
    drop_unused(w);
    return w->control ? connect_control(in) : 0;
}

static void *progress_thread(void *arg)
{
    struct bny_world *w = arg;
    struct bny_waiter wt;

    if (w->thread_cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)w->thread_cpu % CPU_SETSIZE, &set);
        if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
            bny_warn("progress thread: cannot bind to CPU %d", w->thread_cpu);
    }
    bny_wait_init(&wt);
    while (!atomic_load_explicit(&w->stop_thread, memory_order_relaxed)) {
        int n = 0;
        if (bny_world_trylock(w)) {
            n = bny_world_progress(w);
            bny_world_unlock(w);
        }
        if (n > 0)
            bny_wait_found(&wt, w);
        else
            bny_wait_turn(&wt, w, NULL);
    }
    return NULL;
}

static int start_thread(struct bny_world *w, const struct banyan_config *cfg)
{
    w->thread_cpu = cfg->progress_cpu;
    if (!cfg->progress_thread)
        return 0;
    if (pthread_create(&w->thread, NULL, progress_thread, w) != 0)
        return bny_fail(BANYAN_ENOMEM, "cannot start a progress thread");
    w->has_thread = 1;
    return 0;
}

/* ---- init ---- */

void bny_init_free(struct bny_init *init)
{
    if (!init)
        return;
    bny_bootstrap_destroy(init->boot);
    free(init->cards);
    free((char *)init->cfg.transport);
    free((char *)init->cfg.schedule);
    free((char *)init->cfg.codec);
    free((char *)init->cfg.ifname);
    free((char *)init->cfg.port_range);
    free((char *)init->cfg.topology);
    free(init);
}

static struct bny_init *init_new(const struct banyan_config *cfg)
{
    struct bny_init *in = calloc(1, sizeof *in);

    if (!in)
        return NULL;
    in->cfg = *cfg;
    in->cfg.transport = strdup(cfg->transport ? cfg->transport : "auto");
    in->cfg.schedule = strdup(cfg->schedule ? cfg->schedule : "auto");
    in->cfg.codec = strdup(cfg->codec ? cfg->codec : "none");
    in->cfg.ifname = strdup(cfg->ifname ? cfg->ifname : "");
    in->cfg.port_range = strdup(cfg->port_range ? cfg->port_range : "");
    in->cfg.topology = strdup(cfg->topology ? cfg->topology : "");
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
 * job's secret, then cards. */
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
    free(all);
    return rc;
}

int bny_init_start(struct banyan_comm **out, const struct bny_id *given, int nranks, int rank,
                   const struct banyan_config *cfg)
{
    uint64_t deadline = bny_deadline_in(cfg->init_timeout_s);
    struct bny_init *in = init_new(cfg);
    struct bny_id id;
    int rc;

    *out = NULL;
    if (in)
        in->deadline_ns = deadline;
    if (sodium_init() < 0)
        rc = bny_fail(BANYAN_ESYSTEM, "libsodium cannot start");
    else
        rc = in && (in->w = bny_world_new(nranks, rank))
                 ? 0
                 : bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    if (rc == 0) {
        memset(&id, 0, sizeof id);
        if (given)
            id = *given;
        if (cfg->allgather)
            rc = user_secret(in, &id);
    }
    if (rc == 0) {
        memcpy(in->w->job, id.job, sizeof id.job);
        bny_log_set_rank(rank);
        in->cards = calloc((size_t)nranks, sizeof *in->cards);
        rc = bny_topology_load(&in->w->topology, in->cfg.topology, in->cfg.schedule);
    }
    if (rc == 0) {
        rc =
            in->cards ? fill_card(in) : bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    }
    if (rc == 0 && nranks > 1)
        rc = create_transports(in, id.secret);
    if (rc == 0 && nranks > 1) {
        rc = bny_control_create(&in->w->control, rank, nranks, id.secret, id.job,
                                in->cfg.ifname, in->cfg.port_range);
        if (rc == 0)
            rc = bny_control_address(in->w->control, in->card.control, sizeof in->card.control);
        rc = rc > 0 ? 0 : rc;
    }
    if (rc == 0)
        rc = comm_from_init(out, in);
    if (rc == 0 && cfg->allgather) {
        if (cfg->allgather(cfg->allgather_ctx, &in->card, in->cards, sizeof in->card) != 0)
            rc = bny_fail(BANYAN_ESYSTEM, "rank %d: config.allgather failed", rank);
        in->done = 1;
    } else if (rc == 0 && nranks > 1) {
        rc = bny_bootstrap_start(&in->boot, &id, nranks, rank, &in->card, sizeof in->card,
                                 in->cfg.ifname, in->cfg.port_range, deadline);
    } else if (rc == 0) {
        in->cards[0] = in->card;
        in->done = 1;
    }
    if (rc) {
        char text[512];
        snprintf(text, sizeof text, "%s", banyan_last_error());
        if (*out)
            banyan_comm_destroy(*out);
        else if (in) {
            bny_world_free(in->w);
            bny_init_free(in);
        }
        *out = NULL;
        bny_set_last_error(text);
    }
    return rc;
}

/* The cards of all ranks, and the root's connections to them, were some MiB: what the heap
 * keeps of them would stay with each rank. */
static void give_back(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
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
    if (!in->done) {
        rc = bny_bootstrap_progress(in->boot, in->cards);
        if (rc == 0)
            return 0;
        in->done = rc == 1;
        in->rc = rc < 0 ? rc : 0;
    }
    if (in->rc == 0 && !in->joined) {
        in->rc = join(comm);
        in->joined = 1;
    }
    if (in->rc == 0 && in->w->control && !bny_control_ready(in->w->control)) {
        /* a death before these connections stand would go unnoticed */
        bny_control_progress(in->w->control);
        if (!bny_deadline_passed(in->deadline_ns))
            return 0;
        in->rc = bny_fail(
            BANYAN_ETIMEDOUT,
            "rank %d: the control connections to other ranks did not come up before the "
            "deadline of init; is a firewall in the way of BANYAN_PORT_RANGE?",
            in->w->rank);
    }
    if (in->rc == 0)
        in->rc = start_thread(in->w, &in->cfg);
    if (in->rc) {
        snprintf(in->text, sizeof in->text, "%s", banyan_last_error());
        return in->rc;
    }
    if (in->w->nranks > 1)
        bny_held_make(&in->w->held);
    bny_worlds_add(in->w);
    bny_comm_settle(comm);
    comm->init = NULL;
    bny_init_free(in);
    if (comm->world->nranks >= MANY_RANKS)
        give_back();
    return 1;
}

int bny_init_fds(struct banyan_comm *comm, int *fds, int cap)
{
    if (comm->init && comm->init->joined && comm->world->control)
        return bny_control_fds(comm->world->control, fds, cap);
    return comm->init && comm->init->boot ? bny_bootstrap_fds(comm->init->boot, fds, cap) : 0;
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
    struct banyan_config dflt;
    struct bny_tp_config tc = { .rank = rank,
                                .nranks = nranks,
                                .secret = secret,
                                .ifname = "",
                                .port_range = "",
                                .fabric = fabric };
    struct bny_init *in;
    int rc;

    banyan_config_default(&dflt);
    in = init_new(cfg ? cfg : &dflt);
    if (!in || !(in->w = bny_world_new(nranks, rank))) {
        bny_init_free(in);
        return -BANYAN_ENOMEM;
    }
    rc = bny_transport_find("loop")->create(&in->w->tps[0], &tc);
    if (rc == 0) {
        in->w->ntps = 1;
        in->w->nlocal = nranks;
        in->w->all_local = 1;
        in->w->agreed.eager_max = in->w->tps[0]->eager_max;
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
