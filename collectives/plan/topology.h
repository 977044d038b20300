/* SPDX-License-Identifier: BSD-3-Clause */
/* A world's network: the cluster graph that the user gave (BANYAN_TOPO,
 * config.topology), a schedule that is a file (plan or MSCCL XML), which ranks share a host;
 * and the forests made of these. One for each world, guarded by its lock. Everything that the
 * choice of a plan rests on is the same on all ranks: contents of the files are compared by
 * hash at init. */
#ifndef BNY_COLLECTIVES_TOPOLOGY_H
#define BNY_COLLECTIVES_TOPOLOGY_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/plan/scope.h"
#include "collectives/program/program.h"

struct bny_topology;

/* Reads what topo ("" for none) and schedule (when it names a file) say. 0 and *out, or an
 * error that names the file. */
int bny_topology_load(struct bny_topology **out, const char *topo, const char *schedule);
void bny_topology_free(struct bny_topology *t); /* takes NULL */
/* Ranks are known: host_of[nranks] numbers the hosts in order of their lowest ranks. 0, or
 * -BANYAN_EINVAL when graph or plan are for another number of ranks (and of hosts). */
int bny_topology_settle(struct bny_topology *t, const int *host_of, int nranks);
/* The number of the host of a rank of the job; 0 before bny_topology_settle(). */
int bny_topology_host(const struct bny_topology *t, int rank);
/* Hash of the graph, 0: none. Hash of the schedule's file, 0: none. */
uint64_t bny_topology_hash(const struct bny_topology *t);
uint64_t bny_topology_file_hash(const struct bny_topology *t);

/* "x.json", "x.xml", "./x", "/x": a file rather than a name. */
int bny_schedule_is_file(const char *schedule);
/* The name under which a schedule's file is known here: "file:" and its hash. */
void bny_topology_file_name(const struct bny_topology *t, char *buf, size_t cap);
/* The i-th schedule that needs a topology, or several ranks on several hosts; NULL past the
 * end. */
const char *bny_topology_schedule_name(size_t i);
int bny_topology_schedule_known(const char *name); /* those, and names of files */
/* The builder that joins the hosts, where the schedule is one of hosts of several ranks; else
 * NULL. */
const char *bny_topology_hosts_builder(const char *schedule);

/* Is there a topology of this communicator's ranks? One of some ranks, or in another order, has
 * the same graph, in which the other ranks only pass on what crosses them; it has no file. */
int bny_topology_applies(const struct bny_scope *s);
/* The hosts of its ranks; as many as ranks when nothing is known of them. */
int bny_topology_nhosts(const struct bny_scope *s);
/* May auto try it for raw data of so many bytes? Not what is slow to build for so many ranks,
 * nor what only stands for a publication, nor a star of hosts where a ring is as fast. */
int bny_topology_worth_trying(const struct bny_scope *s, const char *schedule, double bytes);
/* The family of packed forests from high and optimal to low and loaded: from one's name
 * (BNY_NAME_MAX bytes; "": packed itself) to the next lower one's. 0: there is none, or too
 * many ranks to build them all. Any of them is a schedule by its name. */
int bny_topology_lower(char *name, const struct bny_scope *s, enum bny_collective coll,
                       int root);
/* Compiles the named schedule for this rank. *borrowed: the program stays the topology's. 0;
 * -BANYAN_ENOTSUP when it is not for this collective or communicator. */
int bny_topology_program(struct bny_program **out, int *borrowed, const struct bny_scope *s,
                         enum bny_collective coll, const char *schedule, int root,
                         int coalesce);

/* The cost of a schedule on the graph, those of program.h and forest.h included. */
struct bny_topology_cost {
    double per_byte; /* seconds for each byte of the vector, once the pipelines are full */
    double by_steps; /* the same where a time step waits for the one before it */
    double link_Bps; /* of the slowest link that it uses */
    double carried;  /* share of the vector that crosses the busiest link */
    double largest;  /* share of the vector in the largest message of a time step */
    int hops;        /* edges of ranks on the longest way, all phases */
    int steps;       /* time steps, all phases */
    int peers;       /* that the busiest rank sends to */
    /* Of the rank with most of them: the share of the vector that it sends and receives, all
     * phases, and in how many messages at least: of each tree, and where trees are joined. */
    double traffic;
    int messages, joined;
};
/* 0; -BANYAN_ENOTSUP without a graph, or when the schedule is none for it. */
int bny_topology_cost(struct bny_topology_cost *out, const struct bny_scope *s,
                      enum bny_collective coll, const char *schedule, int root);
/* Does it connect more ranks with each other than a job of so many should, for one collective?
 * Of a thousand each with each are half a million connections. */
int bny_topology_crowded(const struct bny_scope *s, enum bny_collective coll,
                         const char *schedule, int root);
/* Where ways meet in switches, which choose them by a hash and not as a forest's plan has it,
 * no closed form knows what waits for what. Is the simulator asked? Not for many ranks or few
 * bytes. */
int bny_topology_simulates(const struct bny_scope *s, double bytes);
/* A forest's seconds by it, in such chunks; 0: it cannot say. */
double bny_topology_simulated(const struct bny_scope *s, enum bny_collective coll,
                              const char *schedule, int root, double bytes, size_t chunk,
                              double alpha_s, double scale);
/* Seconds of a program that is no forest on the graph: its rounds follow each other, each as
 * long as its fullest link takes. 0: not known here. */
double bny_topology_direct_seconds(const struct bny_scope *s, enum bny_collective coll,
                                   const struct bny_direct_ops *ops, double bytes,
                                   double alpha_s);
/* Seconds for a byte through the narrowest rank's port; 0 without a graph. */
double bny_topology_beta(const struct bny_scope *s);
/* Bytes of a chunk that fills and drains the pipelines about as fast as its own cost allows. */
size_t bny_topology_chunk(const struct bny_topology_cost *k, double bytes, double alpha_s);
/* Are all messages of `bytes` chunks, so that trees may share one? */
int bny_topology_joins(const struct bny_topology_cost *k, double bytes, size_t chunk);
/* Seconds for `bytes`, cut into such chunks; scale: how much longer than alone a rank takes for
 * a message. */
double bny_topology_seconds(const struct bny_topology_cost *k, double bytes, size_t chunk,
                            double alpha_s, double scale);

#endif
