/* SPDX-License-Identifier: BSD-3-Clause */
/* For the choice of all ways: predicted costs (cost.c) and chunk sizes (chunk_size.c).
 * All are pure functions of the call and of constants that all ranks agreed on, so every rank
 * computes the same. */
#ifndef BNY_COLLECTIVES_COST_H
#define BNY_COLLECTIVES_COST_H

#include "collectives/plan/scope.h"
#include "collectives/plan/topology.h"
#include "collectives/plan/tuning.h"
#include "compress/speed.h"

/* The cost of a chunk on a network of given links, by which the size of chunks is chosen. */
#define BNY_NETWORK_ALPHA_S BNY_LINK_ALPHA_S
/* Below, plans for the network are not worth looking for. */
#define BNY_NETWORK_BYTES_MIN 4096

/* A linear model of one message: alpha + bytes * beta, and gamma for the addition of a byte. */
struct bny_cost_model {
    double alpha_s, beta, gamma; /* seconds, seconds per byte */
};

/* cost.c: seconds */
/* A chunk's own, on links whose speed is told. */
static inline double bny_cost_chunk_s(const struct bny_scope *s)
{
    return BNY_NETWORK_ALPHA_S * (s->oversubscribed ? BNY_CROWDED_ALPHA : 1);
}
struct bny_cost_model bny_cost_model_of(const struct bny_scope *s);
/* Bytes of the whole vector that a collective's cost formula counts. */
double bny_call_bytes(const struct bny_scope *s, const struct bny_call *call);
/* Chunks of a schedule on the graph that the user gave, in bytes; 0 when it says nothing about
 * it. */
size_t bny_cost_network_chunk(const struct bny_scope *s, const struct bny_call *call,
                              const char *schedule, double bytes, struct bny_topology_cost *k);
/* Seconds on that graph; 0 when it says nothing. */
double bny_cost_network(const struct bny_scope *s, const struct bny_call *call,
                        const char *schedule, double bytes, const struct bny_cost_model *m);
/* `cost`, or on a graph with switches what the simulator says, if that may be below `most`. */
double bny_cost_switched(const struct bny_scope *s, const struct bny_call *call,
                         const char *schedule, double cost, double most);
/* A schedule that rests on the network; 0: it cannot be priced here. */
double bny_cost_scheduled(const struct bny_scope *s, const struct bny_call *call,
                          const char *schedule, enum bny_forest_use use, double bytes,
                          const struct bny_cost_model *m);
double bny_cost_builder(const struct bny_scope *s, const struct bny_call *call,
                        const struct bny_builder_ops *b, enum bny_forest_use use, double bytes,
                        const struct bny_cost_model *m);
/* The same for so many of the ranks, whatever the graph that the user gave says. */
double bny_cost_mesh(const struct bny_scope *s, int nranks, const struct bny_builder_ops *b,
                     enum bny_forest_use use, double bytes, const struct bny_cost_model *m);
double bny_cost_direct(const struct bny_scope *s, const struct bny_direct_ops *d,
                       const struct bny_call *call, double bytes,
                       const struct bny_cost_model *m);
/* Ranks that share a host's port; 1: it has one rank, or nothing is known of hosts. */
double bny_cost_ports(const struct bny_scope *s);
/* Of a rank's work, which is so many of a core, where ranks share CPUs. */
double bny_cost_work(const struct bny_scope *s, double seconds);
/* Of a schedule by its name, without a codec; 0: it cannot be priced here. */
double bny_cost_raw(const struct bny_scope *s, const struct bny_call *call,
                    const char *schedule);
/* Of a call with an exact codec, by a schedule that takes raw_s without it. */
double bny_cost_exact(const struct bny_scope *s, const struct bny_call *call, double raw_s);
/* Of a call with its codec, in such chunks. schedule: "" is a star of all ranks. */
double bny_cost_coded(const struct bny_scope *s, const struct bny_call *call,
                      const char *schedule, size_t chunk);
/* What ranks send of a call with its codec, over what they send of its raw data. */
double bny_cost_share(const struct bny_scope *s, const struct bny_call *call);
/* Of a core of a rank, for a call with its codec. */
double bny_cost_coding(const struct bny_scope *s, const struct bny_call *call,
                       const char *schedule);
/* Wire bytes for an element of a result of so many parts. */
double bny_cost_result_bytes(const struct bny_call *call, const struct bny_codec_speed *k,
                             double parts);

/* chunk_size.c: bytes before encoding. schedule: NULL for messages between two ranks. */
size_t bny_chunk_of(const struct bny_scope *s, const struct bny_call *call,
                    const char *schedule, const struct bny_program *p);

#endif
