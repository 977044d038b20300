/* SPDX-License-Identifier: BSD-3-Clause */
/* Predicted seconds of a call: closed forms of a linear model for each kind of schedule, the
 * measured speed of codecs, and, on a graph that the user gave, the plan's own prediction. Pure
 * functions of the call and of constants that all ranks agreed on. */
#include <math.h>
#include <string.h>

#include "collectives/plan/cost.h"
#include "collectives/plan/tuning.h"
#include "compress/speed.h"
#include "collectives/program/directs.h"
#include "topo/simulate.h"

struct bny_cost_model bny_cost_model_of(const struct bny_scope *s)
{
    struct bny_cost_model m;

    if (s->shares_memory)
        m = (struct bny_cost_model){ BNY_SHM_ALPHA_S, BNY_SHM_BETA, BNY_GAMMA };
    else
        m = (struct bny_cost_model){ BNY_NET_ALPHA_S, BNY_NET_BETA, BNY_GAMMA };
    if (s->oversubscribed) {
        m.alpha_s *= BNY_CROWDED_ALPHA; /* each message waits for a context switch */
        m.beta *= BNY_CROWDED_BYTE;
        m.gamma *= BNY_CROWDED_BYTE;
    }
    if (bny_topology_beta(s) > m.beta)
        m.beta = bny_topology_beta(s);
    if (s->link_Bps > 0 && !s->shares_memory) {
        m.beta = 1 / s->link_Bps;
        if (m.alpha_s < BNY_LINK_ALPHA_S && m.beta > BNY_LOOPBACK_BETA_MAX)
            m.alpha_s = BNY_LINK_ALPHA_S; /* a link that somebody had to name is no loopback */
    }
    return m;
}

double bny_call_bytes(const struct bny_scope *s, const struct bny_call *call)
{
    double one = (double)call->count * (double)banyan_dtype_bytes(call->dtype);

    return bny_call_row(call)->per_rank ? one * s->n : one;
}

size_t bny_cost_network_chunk(const struct bny_scope *s, const struct bny_call *call,
                              const char *schedule, double bytes, struct bny_topology_cost *k)
{
    if (bny_topology_cost(k, s, (enum bny_collective)call->collective, schedule, call->root) !=
        0)
        return 0;
    return bny_topology_chunk(k, bytes, BNY_NETWORK_ALPHA_S);
}

/* Where ranks share CPUs each message waits for a turn, as above. */
static double message_scale(const struct bny_scope *s)
{
    return s->oversubscribed ? BNY_CROWDED_ALPHA : 1;
}

double bny_cost_network(const struct bny_scope *s, const struct bny_call *call,
                        const char *schedule, double bytes, const struct bny_cost_model *m)
{
    struct bny_topology_cost k;
    size_t chunk = bny_cost_network_chunk(s, call, schedule, bytes, &k);

    if (chunk && (call->chunk_bytes || s->chunk_bytes))
        chunk = call->chunk_bytes ? call->chunk_bytes : s->chunk_bytes;
    return chunk ? bny_topology_seconds(&k, bytes, chunk, m->alpha_s, message_scale(s)) : 0;
}

double bny_cost_switched(const struct bny_scope *s, const struct bny_call *call,
                         const char *schedule, double cost, double most)
{
    enum bny_collective coll = (enum bny_collective)call->collective;
    double bytes = bny_call_bytes(s, call), simulated;
    struct bny_topology_cost k;
    size_t chunk;

    if (!bny_topology_simulates(s, bytes))
        return cost;
    chunk = bny_cost_network_chunk(s, call, schedule, bytes, &k);
    if (!chunk)
        return cost;
    if (k.per_byte * bytes >= most) /* which is the least that it takes */
        return fmax(cost, most);
    if (call->chunk_bytes || s->chunk_bytes)
        chunk = call->chunk_bytes ? call->chunk_bytes : s->chunk_bytes;
    simulated = bny_topology_simulated(s, coll, schedule, call->root, bytes, chunk,
                                       bny_cost_model_of(s).alpha_s, message_scale(s));
    return simulated > 0 ? simulated : cost;
}

/* What the ranks of a host add and copy, each with each, by shared memory. */
static double in_host_s(const struct bny_scope *s, enum bny_forest_use use, double bytes)
{
    int nhosts = bny_topology_nhosts(s), local = (s->n + nhosts - 1) / nhosts;
    struct bny_scope host = { .shares_memory = 1, .oversubscribed = s->oversubscribed };
    struct bny_cost_model shared = bny_cost_model_of(&host);

    return bny_cost_mesh(&host, local, bny_builder_find("star"), use, bytes, &shared);
}

/* Hosts of several ranks, joined as a full mesh: what crosses hosts, and what is done in them.
 */
static double hierarchical_cost(const struct bny_scope *s, const char *schedule,
                                enum bny_forest_use use, double bytes,
                                const struct bny_cost_model *m)
{
    const struct bny_builder_ops *b = bny_builder_find(bny_topology_hosts_builder(schedule));

    return b->cost(bny_topology_nhosts(s), use, bytes, m->alpha_s, m->beta, m->gamma) +
           in_host_s(s, use, bytes);
}

double bny_cost_scheduled(const struct bny_scope *s, const struct bny_call *call,
                          const char *schedule, enum bny_forest_use use, double bytes,
                          const struct bny_cost_model *m)
{
    double cost = bny_cost_network(s, call, schedule, bytes, m);

    if (cost > 0 || !bny_topology_hosts_builder(schedule) || bny_topology_beta(s) > 0)
        return cost;
    return hierarchical_cost(s, schedule, use, bytes, m);
}

/* Round a ring both ways half a block that needs no CTS is there before it is wanted, and
 * both halves of a step cost one delay. */
static int goes_at_once(const struct bny_scope *s, const struct bny_builder_ops *b,
                        double nranks, enum bny_forest_use use, double bytes)
{
    return s->link_Bps > 0 && !s->shares_memory && use == BNY_FOREST_ALLREDUCE &&
           !strcmp(b->name, "ring") && bytes / nranks / 2 <= s->at_once;
}

static double idle_s(const struct bny_scope *s, const struct bny_builder_ops *b, double nranks,
                     enum bny_forest_use use, double bytes, double beta)
{
    double block = bytes / nranks;

    if (s->link_Bps <= 0 || s->shares_memory || use != BNY_FOREST_ALLREDUCE)
        return 0;
    if (goes_at_once(s, b, nranks, use, bytes))
        return 0;
    if (!(b->traits & BNY_BUILDER_NEIGHBOURS))
        return (BNY_PORT_GAPS - 1) * 2 * (nranks - 1) * block * beta;
    return beta * (!strcmp(b->name, "ring_uni") ? block : fmin(block, BNY_RING_CHUNK));
}

/* Ranks that all share memory pull at the same time: there is no port that the (n - 1) messages
 * of a star queue at, as the closed forms have it. The time depends on how often ranks wait for
 * each other, and on the memory's speed. */
double bny_cost_mesh(const struct bny_scope *s, int nranks, const struct bny_builder_ops *b,
                     enum bny_forest_use use, double bytes, const struct bny_cost_model *m)
{
    struct bny_cost_model shared = *m;
    int nhosts = bny_topology_nhosts(s);
    double n = nranks;

    if (nhosts > 1 && nhosts < nranks && !(b->traits & BNY_BUILDER_NEIGHBOURS))
        shared.beta *= n / nhosts; /* a ring crosses once */
    if (goes_at_once(s, b, n, use, bytes))
        shared.alpha_s /= 2;
    if (s->shares_memory && (b->traits & BNY_BUILDER_DIRECT) && use != BNY_FOREST_ROOTED) {
        double phases = use == BNY_FOREST_ALLREDUCE ? 2 : 1;
        /* 0.8 us: the system calls of a message to pull or to put */
        return phases * (m->alpha_s + (n - 1) * 0.8e-6 * (s->oversubscribed ? 2 : 1)) +
               (n - 1) / n * bytes * (phases * 0.9 * m->beta + m->gamma / 2);
    }
    if (s->shares_memory && (b->traits & BNY_BUILDER_DIRECT))
        return m->alpha_s + (n - 1) * 0.1e-6 + bytes * m->beta * (n > 8 ? n / 8 : 1);
    return b->cost(nranks, use, bytes, shared.alpha_s, shared.beta, m->gamma) +
           idle_s(s, b, n, use, bytes, shared.beta);
}

double bny_cost_builder(const struct bny_scope *s, const struct bny_call *call,
                        const struct bny_builder_ops *b, enum bny_forest_use use, double bytes,
                        const struct bny_cost_model *m)
{
    double network = bny_cost_network(s, call, b->name, bytes, m);

    return network > 0 ? network : bny_cost_mesh(s, s->n, b, use, bytes, m);
}

double bny_cost_ports(const struct bny_scope *s)
{
    int nhosts = bny_topology_nhosts(s);

    return nhosts > 1 && nhosts < s->n ? (double)s->n / nhosts : 1;
}

/* Recursive doubling sends what it has just summed, by copies; on shared memory that costs 2.5
 * times a put. Between hosts all ranks of one send at once. */
double bny_cost_direct(const struct bny_scope *s, const struct bny_direct_ops *d,
                       const struct bny_call *call, double bytes,
                       const struct bny_cost_model *m)
{
    double network = bytes < BNY_NETWORK_BYTES_MIN
                         ? 0
                         : bny_topology_direct_seconds(s, (enum bny_collective)call->collective,
                                                       d, bytes, m->alpha_s);

    if (network > 0)
        return network;
    return d->cost((enum bny_collective)call->collective, s->n, bytes, m->alpha_s,
                   (s->shares_memory ? 2.5 : bny_cost_ports(s)) * m->beta, m->gamma);
}

/* Wire bytes for an element of a result. A sum of sparse parts has what any of them has, where
 * it is not selected from again: with elements in different places everywhere n times as many,
 * and dense at most. */
double bny_cost_result_bytes(const struct bny_call *call, const struct bny_codec_speed *k,
                             double parts)
{
    if (call->codec->ops->family != BNY_CODEC_SPARSE ||
        bny_codec_get(call->codec, "reselect") == 1)
        return k->wire_bytes;
    return fmin(parts * k->wire_bytes, (double)banyan_dtype_bytes(call->dtype));
}

/* Who exchanges encoded data: ranks, or hosts, each by one of its ranks at a time. */
struct exchange {
    double parts; /* so many */
    double own;   /* elements that the busiest rank encodes, and decodes */
    double port;  /* elements of all ranks that share a port */
    double raw_s; /* before and behind it, in the hosts */
};

static struct exchange exchange_of(const struct bny_scope *s, const struct bny_call *call,
                                   const char *schedule)
{
    double bytes = bny_call_bytes(s, call), n = s->n, hosts = bny_topology_nhosts(s),
           elems = bytes / (double)banyan_dtype_bytes(call->dtype), near = ceil(n / hosts);
    int is_rooted = bny_call_row(call)->has_use && bny_call_row(call)->use == BNY_FOREST_ROOTED;

    if (call->among == BNY_AMONG_RAIL)
        return (struct exchange){ n / s->near, elems, elems * s->near, 0 };
    if (hosts > 1 && hosts < n && bny_topology_hosts_builder(schedule))
        return (struct exchange){ hosts, is_rooted ? elems : elems / fmin(near, hosts), elems,
                                  in_host_s(s, bny_call_row(call)->use, bytes) };
    if (hosts > 1 && hosts < n) /* what stays in the host passes no port */
        return (struct exchange){ n, elems,
                                  elems * (is_rooted ? 1 : near) * (n - near) / (n - 1), 0 };
    return (struct exchange){ n, elems, elems, 0 };
}

/* Across hosts the wire works while we do; on one host it is our own work. */
static double overlapped(const struct bny_scope *s, double wire, double work, double chunks)
{
    if (!s->one_host || s->link_Bps > 0)
        return fmax(wire, work) + fmin(wire, work) / fmax(1, chunks);
    return wire + work;
}

/* The cores' part in the sockets of all that a rank sends and receives. */
static double copies_s(const struct bny_scope *s, double wire_bytes)
{
    return s->one_host ? 0 : 2 * wire_bytes * BNY_SIM_TCP_COPY_S_PER_BYTE;
}

double bny_cost_work(const struct bny_scope *s, double seconds)
{
    return seconds * (s->oversubscribed ? fmax(2, s->oversubscribed) : 1);
}

/* Of an exchange of so many parts, for an element of it: what a rank sends, and its work. Each
 * element is encoded once, decoded by its owner and by all. */
struct coding {
    double sent, work_s;
};

static struct coding coding_of(const struct bny_call *call, double parts)
{
    struct bny_codec_speed up = bny_codec_speed(call->codec->up, call->dtype),
                           down = bny_codec_speed(call->codec->down, call->dtype);
    int sums = bny_call_row(call)->averages,
        results = call->collective == BNY_ALLREDUCE || !sums;
    const struct bny_codec_speed *owner = results ? &down : &up;
    double share = (parts - 1) / parts;
    struct coding c = { 0, (owner->encode_s + owner->decode_s) / parts };

    if (sums) {
        c.sent = up.wire_bytes;
        c.work_s += share * (up.encode_s + up.add_s);
    }
    if (results) {
        c.sent += sums ? bny_cost_result_bytes(call, &down, parts) : down.wire_bytes;
        c.work_s += share * down.decode_s;
    }
    return c;
}

double bny_cost_share(const struct bny_scope *s, const struct bny_call *call)
{
    double phases = call->collective == BNY_ALLREDUCE ? 2 : 1;

    return coding_of(call, s->n).sent / (phases * (double)banyan_dtype_bytes(call->dtype));
}

double bny_cost_coding(const struct bny_scope *s, const struct bny_call *call,
                       const char *schedule)
{
    struct exchange x = exchange_of(s, call, schedule);
    struct coding k = coding_of(call, x.parts);

    return bny_cost_work(s, x.own * k.work_s +
                                copies_s(s, (x.parts - 1) / x.parts * x.own * k.sent));
}

static double lossy_seconds(const struct bny_scope *s, const struct bny_call *call,
                            const char *schedule, size_t chunk)
{
    struct exchange x = exchange_of(s, call, schedule);
    struct coding k = coding_of(call, x.parts);
    struct bny_cost_model m = bny_cost_model_of(s);
    double phases = call->collective == BNY_ALLREDUCE ? 2 : 1, share = (x.parts - 1) / x.parts;
    double wire = share * x.port * k.sent * m.beta;
    double fill = phases * (m.alpha_s + (x.parts - 1) * 2e-6);

    if (call->collective == BNY_BROADCAST || call->collective == BNY_REDUCE)
        wire = x.port * k.sent * m.beta * (x.parts - 1);
    return overlapped(s, wire, bny_cost_coding(s, call, schedule),
                      x.own * (double)banyan_dtype_bytes(call->dtype) / (double)chunk) +
           fill + x.raw_s;
}

double bny_cost_raw(const struct bny_scope *s, const struct bny_call *call,
                    const char *schedule)
{
    const struct bny_builder_ops *b = bny_builder_find(schedule);
    const struct bny_direct_ops *d = bny_direct_find(schedule);
    enum bny_forest_use use = bny_call_row(call)->use;
    struct bny_cost_model m = bny_cost_model_of(s);
    double bytes = bny_call_bytes(s, call);

    if (call->among == BNY_AMONG_RAIL) {
        bytes *= s->near;
        return d ? d->cost(BNY_ALLREDUCE, s->n / s->near, bytes, m.alpha_s, m.beta, m.gamma)
                 : b->cost(s->n / s->near, BNY_FOREST_ALLREDUCE, bytes, m.alpha_s, m.beta,
                           m.gamma);
    }
    if (d)
        return bny_cost_direct(s, d, call, bytes, &m);
    if (b && bny_call_row(call)->has_use)
        return bny_cost_builder(s, call, b, use, bytes, &m);
    return bny_topology_schedule_known(schedule) && bny_call_row(call)->has_use
               ? bny_cost_scheduled(s, call, schedule, use, bytes, &m)
               : 0;
}

double bny_cost_exact(const struct bny_scope *s, const struct bny_call *call, double raw_s)
{
    struct coding k = coding_of(call, s->n);
    double esz = (double)banyan_dtype_bytes(call->dtype), elems = bny_call_bytes(s, call) / esz,
           phases = call->collective == BNY_ALLREDUCE ? 2 : 1;

    return overlapped(s, raw_s * k.sent / (phases * esz), bny_cost_work(s, elems * k.work_s),
                      elems * esz / (double)BNY_CODED_CHUNK);
}

double bny_cost_coded(const struct bny_scope *s, const struct bny_call *call,
                      const char *schedule, size_t chunk)
{
    double raw = bny_call_is_lossy(call) ? 0 : bny_cost_raw(s, call, schedule);

    return raw > 0 ? bny_cost_exact(s, call, raw) : lossy_seconds(s, call, schedule, chunk);
}
