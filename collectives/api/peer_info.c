/* SPDX-License-Identifier: BSD-3-Clause */
/* All ranks compute this from all peer infos. */
#include "collectives/api/peer_info.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/api/job.h"
#include "collectives/plan/topology.h"

/* Where each word of the settings' line comes from. */
static const struct {
    const char *word, *set;
} origins[] = {
    { "transport=", "BANYAN_TRANSPORT or config.transport" },
    { "schedule=", "BANYAN_SCHEDULE or config.schedule" },
    { "topology=", "BANYAN_TOPO or config.topology" },
    { "codec=", "BANYAN_CODEC or config.codec" },
    { "chunk=", "BANYAN_CHUNK or config.chunk_bytes" },
    { "deterministic=", "BANYAN_DETERMINISTIC or config.deterministic" },
    { "crc=", "BANYAN_CODEC_CRC" },
    { "force=", "BANYAN_CODEC_FORCE" },
    { "link=", "BANYAN_LINK_GBPS" },
    { "integrity=", "BANYAN_INTEGRITY" },
    { "verbs_memory=", "BANYAN_VERBS=memory" },
};

/* The setting in which these two lines differ first. */
static const char *origin(const char *a, const char *b)
{
    size_t at = 0;

    for (size_t i = 0; i < BNY_SETTINGS_MAX && a[i] && a[i] == b[i]; i++)
        if (a[i] == ' ')
            at = i + 1;
    for (size_t i = 0; i < sizeof origins / sizeof origins[0]; i++)
        if (!strncmp(a + at, origins[i].word, strlen(origins[i].word)))
            return origins[i].set;
    return "the BANYAN_* variables and the config";
}

/* For tools/banyan_doctor, which reads it in the library's file, also where that cannot be
 * loaded. */
#define STR2(x) #x
#define STR(x)  STR2(x)
__attribute__((used)) static const char version_in_file[] =
    "banyan " STR(BANYAN_VERSION_MAJOR) "." STR(BANYAN_VERSION_MINOR) "." STR(
        BANYAN_VERSION_PATCH) ", wire version " STR(BNY_WIRE_VERSION);

/* The first peer info is kept beside the one that is read. */
static int check_all(struct bny_peer_table *table, struct bny_peer_info *first)
{
    const struct bny_peer_info *c;

    for (int r = 0; (c = bny_peer_table_next(table)); r++) {
        if (r == 0)
            *first = *c;
        if (c->magic != BNY_PEER_INFO_MAGIC || c->wire_version != BNY_WIRE_VERSION ||
            strncmp(c->version, first->version, sizeof c->version) != 0)
            return bny_fail(BANYAN_EVERSION,
                            "rank %d runs banyan %.15s, rank 0 runs %.15s: install one version "
                            "everywhere",
                            r, c->version, first->version);
        if (strncmp(c->settings, first->settings, sizeof c->settings) != 0)
            return bny_fail(
                BANYAN_ECONFIG,
                "settings differ: set %s alike on all ranks; rank %d has \"%.240s\", rank 0 "
                "has \"%.240s\"",
                origin(first->settings, c->settings), r, c->settings, first->settings);
    }
    return 0;
}

int bny_cards_check(struct bny_peer_table *table)
{
    struct bny_peer_info *first = malloc(sizeof *first);
    int rc;

    if (!first)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    bny_peer_table_rewind(table);
    rc = check_all(table, first);
    free(first);
    return rc;
}

/* Bytes of struct bny_place in which ranks are alike that are on one ... */
#define ON_HOST   offsetof(struct bny_place, net)
#define ON_STACK  offsetof(struct bny_place, user) /* host and network namespace */
#define ON_MEMORY sizeof(struct bny_place)

/* Numbers what ranks are on, hosts for example: those alike in the first bytes, in the order of
 * the lowest ranks there. of[nranks] is the caller's to free. Returns how many there are. */
static int number_alike(const struct bny_place *at, int nranks, size_t bytes, int **of)
{
    unsigned n = (unsigned)nranks, mask = 1;
    int *first, count = 0;

    while (mask < 2 * n)
        mask *= 2;
    first = calloc(mask--, sizeof *first); /* a rank + 1; 0: none */
    *of = calloc(n, sizeof **of);
    if (!first || !*of) {
        free(first);
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    }
    for (unsigned r = 0; r < n; r++) {
        uint64_t slot;

        memcpy(&slot, at[r].host, sizeof slot); /* it is a hash */
        while (first[slot & mask] && memcmp(&at[first[slot & mask] - 1], &at[r], bytes) != 0)
            slot++;
        if (!first[slot & mask]) {
            first[slot & mask] = (int)r + 1;
            (*of)[r] = count++;
        } else {
            (*of)[r] = (*of)[first[slot & mask] - 1];
        }
    }
    free(first);
    return count;
}

/* So many ranks share so many CPUs; 0: no limit. */
static void share_cpus(struct bny_world *w, uint32_t ranks, uint32_t cpus)
{
    int each = cpus && ranks > cpus ? (int)((ranks + cpus - 1) / cpus) : 0;

    w->oversubscribed = each > w->oversubscribed ? each : w->oversubscribed;
}

/* Has any group, a container for example, more ranks than it is granted CPUs' time? Groups on a
 * host have each their own. */
static int look_at_groups(struct bny_world *w, struct bny_peer_table *table,
                          const struct bny_place *at)
{
    struct bny_place *in = calloc((unsigned)w->nranks, sizeof *in);
    const struct bny_peer_info *c;
    uint32_t *ranks;
    int *of, n;

    bny_peer_table_rewind(table);
    for (int r = 0; in && (c = bny_peer_table_next(table)); r++) {
        in[r] = at[r];
        memcpy(in[r].net, &c->group, sizeof in[r].net);
    }
    n = in ? number_alike(in, w->nranks, ON_STACK, &of) : -1;
    free(in);
    if (n < 0)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    ranks = calloc((unsigned)n, sizeof *ranks);
    n = ranks ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    bny_peer_table_rewind(table);
    for (int r = 0; ranks && (c = bny_peer_table_next(table)); r++)
        share_cpus(w, ++ranks[of[r]], c->granted);
    free(of);
    free(ranks);
    return n;
}

/* More ranks than CPUs on any host? All ranks compute the same from all peer infos. Also: which
 * ranks are on ours. */
static int look_at_hosts(struct bny_world *w, struct bny_peer_table *table,
                         const struct bny_place *at)
{
    struct {
        uint64_t cpus[BNY_PEER_INFO_CPU_WORDS];
        uint32_t ranks;
    } * host;
    const struct bny_peer_info *c;
    int *of, n = number_alike(at, w->nranks, ON_HOST, &of);

    host = n < 0 ? NULL : calloc((unsigned)n, sizeof *host);
    bny_peer_table_rewind(table);
    for (int r = 0; host && (c = bny_peer_table_next(table)); r++) {
        host[of[r]].ranks++;
        for (int i = 0; i < BNY_PEER_INFO_CPU_WORDS; i++)
            host[of[r]].cpus[i] |= c->cpus[i];
    }
    for (int h = 0; host && h < n; h++) {
        uint32_t cpus = 0;

        for (int i = 0; i < BNY_PEER_INFO_CPU_WORDS; i++)
            cpus += (uint32_t)__builtin_popcountll(host[h].cpus[i]);
        share_cpus(w, host[h].ranks, cpus ? cpus : 1);
    }
    if (host) {
        w->nlocal = (int)host[of[w->rank]].ranks;
        w->all_local = n == 1;
    }
    free(of);
    if (n >= 0 && !host)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    free(host);
    return n < 0 ? n : 0;
}

/* A peer info's k-th transport; NULL: none that we know. */
static const struct bny_transport_ops *card_transport(const struct bny_peer_info *c, int k)
{
    char name[sizeof c->tp[k].name + 1] = "";

    memcpy(name, c->tp[k].name, sizeof c->tp[k].name);
    return bny_transport_find(name);
}

static int has_shared(const struct bny_peer_info *c)
{
    for (int k = 0; k < BNY_PEER_INFO_TPS; k++)
        if (c->tp[k].name[0] && card_transport(c, k) && card_transport(c, k)->shared)
            return 1;
    return 0;
}

static int settle_topology(struct bny_world *w, const struct bny_place *at)
{
    int *host_of;
    int rc = number_alike(at, w->nranks, ON_STACK, &host_of);

    if (rc > 0)
        rc = bny_topology_settle(w->topology, host_of, w->nranks);
    free(host_of);
    return rc;
}

static uint32_t less(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* One transport of one rank, which some peer may talk to it by. */
static void count_limits(struct bny_limits *l, const struct bny_peer_info *c, int k,
                         int is_shared)
{
    l->eager_max = less(l->eager_max, c->tp[k].eager_max);
    l->slot_max = less(l->slot_max, c->tp[k].slot_max);
    if (c->tp[k].whole_max)
        l->whole_max = less(l->whole_max, c->tp[k].whole_max);
    if (is_shared)
        l->small_slots = 1;
    else
        l->at_once = less(l->at_once, c->tp[k].eager_max);
}

/* The transports of rank r's peer info. 1: all its peers share memory with it. */
static int count_peer_info(struct bny_world *w, const struct bny_peer_info *c, int neighbour,
                           int remote)
{
    int all_share = 1;

    for (int k = 0; k < BNY_PEER_INFO_TPS; k++) {
        const struct bny_transport_ops *ops = c->tp[k].name[0] ? card_transport(c, k) : NULL;
        int is_shared = ops && ops->shared;

        if (!ops || ((ops->caps & BNY_TP_LOCAL) && !neighbour))
            continue;
        if (is_shared)
            count_limits(&w->in_memory, c, k, 1);
        else if (remote || !has_shared(c))
            all_share = 0;
        else
            continue;
        count_limits(&w->agreed, c, k, is_shared);
    }
    return all_share;
}

/* The limits that hold for every pair: a plan's chunks must fit all of them, and each rank
 * knows its own endpoints only. So it is computed from all peer infos, alike on all ranks: of
 * each transport that both of some pair have, those of a host alone for pairs of one host.
 * memory_of[nranks], ranks_on[]: how many share each memory; ranks without a transport that
 * shares it leave it. */
static void agree_on_limits(struct bny_world *w, struct bny_peer_table *table, int *memory_of,
                            const int *ranks_on, int nmemories)
{
    static const struct bny_limits none = {
        UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0, 0
    };
    const struct bny_peer_info *c;
    int all_share = 1;

    w->agreed = w->in_memory = none;
    bny_peer_table_rewind(table);
    for (int r = 0; (c = bny_peer_table_next(table)); r++) {
        all_share &= count_peer_info(w, c, ranks_on[memory_of[r]] > 1, nmemories > 1);
        if (!has_shared(c))
            memory_of[r] = -1;
    }
    w->agreed.shares_memory = (uint8_t)(w->agreed.small_slots && all_share);
    w->in_memory.shares_memory = 1;
    if (!w->agreed.shares_memory)
        w->agreed.eager_max = less(w->agreed.eager_max, 4096); /* what every transport can */
}

/* The ranks that share memory, and the limits of all pairs. */
static int look_at_pairs(struct bny_world *w, struct bny_peer_table *table,
                         const struct bny_place *at)
{
    int *memory_of, *ranks_on, n = number_alike(at, w->nranks, ON_MEMORY, &memory_of);

    if (n < 0)
        return n;
    ranks_on = calloc((unsigned)n, sizeof *ranks_on);
    if (!ranks_on) {
        free(memory_of);
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    }
    for (int r = 0; r < w->nranks; r++)
        ranks_on[memory_of[r]]++;
    agree_on_limits(w, table, memory_of, ranks_on, n);
    if (w->agreed.shares_memory || !w->in_memory.small_slots) { /* all do, or nobody */
        free(memory_of);
        free(ranks_on);
        memory_of = ranks_on = NULL;
    }
    w->memory_of = memory_of;
    w->on_memory = ranks_on;
    return 0;
}

/* The slowest rank's device, where all say what theirs is. */
static void look_at_devices(struct bny_world *w, struct bny_peer_table *table)
{
    uint32_t least = UINT32_MAX;
    const struct bny_peer_info *c;

    bny_peer_table_rewind(table);
    while ((c = bny_peer_table_next(table)))
        least = less(least, c->mbps);
    w->device_Bps = least * 125e3;
}

int bny_cards_settle(struct bny_world *w, struct bny_peer_table *table)
{
    struct bny_place *at = calloc((unsigned)w->nranks, sizeof *at);
    const struct bny_peer_info *c;
    int rc;

    if (!at)
        return bny_fail(BANYAN_ENOMEM, "no memory for a communicator");
    bny_peer_table_rewind(table);
    for (int r = 0; (c = bny_peer_table_next(table)); r++)
        at[r] = c->at;
    look_at_devices(w, table);
    rc = look_at_hosts(w, table, at);
    if (rc == 0)
        rc = look_at_groups(w, table, at);
    if (rc == 0)
        rc = look_at_pairs(w, table, at);
    if (rc == 0)
        rc = settle_topology(w, at);
    free(at);
    return rc;
}
