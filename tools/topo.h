/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the subcommands of banyan_topo (topo_*.c, one a command). */
#ifndef BNY_TOOLS_TOPO_H
#define BNY_TOOLS_TOPO_H

#include <stdint.h>
#include <stdio.h>

#include "topo/forest.h"
#include "topo/graph.h"

struct topo_predict_opts { /* of predict, which reads them; NULL: not given */
    const char *ranks, *codecs, *buckets, *rates, *trace, *progress, *from, *latency, *burst;
    int cores, accelerated, force;
};

struct topo_opts {
    struct topo_predict_opts predict;
    const char *topo;     /* --topo, NULL: this machine */
    const char *schedule; /* --schedule, NULL: auto */
    const char *output;   /* --output, NULL: standard output */
    enum bny_forest_use use;
    enum topo_collective {
        TOPO_ALLREDUCE,
        TOPO_ALLGATHER,
        TOPO_REDUCE_SCATTER,
        TOPO_BROADCAST,
        TOPO_REDUCE
    } collective; /* --collective */
    int root, trees, height, slots, seconds;
    int lockstep, joint, tcp;
    int json;
    uint64_t bytes, chunk;
    int nargs; /* words that are no options */
    char **args;
};

struct topo_command {
    char name[12];
    const char
        *options; /* letters of the options (topo_main.c) that it takes; others are refused */
    const char *usage;
    int (*run)(const struct topo_opts *o); /* the exit status: 0, 1 failed, 2 wrong options */
};
extern const struct topo_command topo_show, topo_bound, topo_plan, topo_simulate, topo_probe,
    topo_verify, topo_draw, topo_predict, topo_compare;

/* Prints the thread's last error as the tool's; 1. */
int topo_failed(const char *what);
/* Says that words without an option are not wanted; 2. */
int topo_failed_args(const struct topo_opts *o);
/* Whether the collective's --root is no rank of the graph: says so; 2, else 0. */
int topo_root_missing(const struct topo_opts *o, const struct bny_graph *g);
/* The graph of --topo, or of this machine. 0 or an error (bny_fail). */
int topo_graph(struct bny_graph **g, const struct topo_opts *o);
struct bny_plan_file;
/* bny_plan_load of a name that is no builder's. 0 or an error. */
int topo_plan_load(struct bny_plan_file *plan, const char *name);
/* The forest of --schedule (a builder's name, or a plan's file, which must fit), with routes. 0
 * or an error. */
int topo_forest(struct bny_forest **f, const struct bny_graph *g, const struct topo_opts *o);
/* Data on each link for one use, in shares of the vector: load[nlinks]; both directions for
 * ALLREDUCE, else the larger. */
int topo_loads(double *load, const struct bny_forest *f, const struct bny_graph *g,
               enum bny_forest_use use);
/* Does the name end in .xml? */
int topo_is_xml(const char *path);
struct bny_program_set;
/* The same for programs, whose messages take the router's
 * ways; load[nlinks] is 0. 0 or an error. */
int topo_program_loads(double *load, const struct bny_program_set *set,
                       const struct bny_graph *g);
/* Programs of so many ranks take seconds and half a gigabyte to prove. */
#define TOPO_PROVE_RANKS_MAX 1024
/* Proves the forest's programs with up to `most` buffers a channel of each pair of ranks;
 * *slots: the number that suffices, -1 where nothing was proven (more ranks than that). 0 or an
 * error. */
int topo_prove(int *slots, const struct bny_forest *f, enum bny_forest_use use, int most);
/* The file of --output, or standard output. NULL: said. Closed by topo_close, which tells of a
 * failed write. */
FILE *topo_open(const struct topo_opts *o);
int topo_close(FILE *f, const struct topo_opts *o);
/* "text" with what JSON wants escaped. */
void topo_json_text(FILE *f, const char *text);

#endif
