/* SPDX-License-Identifier: BSD-3-Clause */
/* Plan files: a forest with its routes, claim and cut, as JSON. Independent of sizes, and
 * checked on load: a file's content is trusted only as far as bny_forest_check (here) and
 * bny_forest_recheck (with the graph) confirm it.
 *
 *   { "banyan_plan": 1, "name": "packed", "use": "allreduce", "root": -1, "ranks": 9,
 *     "steps": 5,
 *     "topology": { "name": "torus:3x3", "hash": "91b0..", "nodes": 9, "links": 36 },
 *     "claim": { "time": "16/9", "bound": "16/9", "kind": "ports", "cut": [0, 1, 2] },
 *     "trees": [ { "root": 0, "weight": "1/9", "pipeline": 0,
 *                  "parent": [-1, 0, ..], "step": [0, 3, ..], "up": [[], 4, [5, 7], ..],
 *                  "down_parent": [..], "down_step": [..], "down": [..] } ] }
 *
 * use: allreduce, scattered (reduce_scatter and allgather), or rooted (broadcast and reduce;
 * root is a rank). Lists in a tree have an entry for each rank; up and down are routes: numbers
 * of links in order of travel (a route of one link is the number alone). topology, claim and
 * the routes are optional; so are down_parent and down_step, and without them results travel
 * the edges of the sums backwards. cut lists the nodes of X; claim.parts has a number for each
 * node instead, for kinds of cut with more than in and out; claim.dual is the proof of kind
 * "lp" (topo/dual.h): { "sets": [ { "reduce": 0, "times": 3, "nodes": [..] } ], "down_pot":
 * [..], "up_pot": [..] }. */
#ifndef BNY_TOPO_PLAN_FILE_H
#define BNY_TOPO_PLAN_FILE_H

#include <stdio.h>

#include "topo/forest.h"
#include "topo/graph.h"

#define BNY_PLAN_BYTES_MAX (512u << 20)

struct bny_plan_file {
    struct bny_forest *forest; /* checked for `use` */
    enum bny_forest_use use;
    int root;            /* -1 if the use has none */
    char topology[64];   /* its name; "" if the file has none */
    uint64_t graph_hash; /* 0: none */
};

/* Depends on ranks, links, capacities and latencies; not on names and drawing positions. */
uint64_t bny_graph_hash(const struct bny_graph *g);

/* g may be NULL (routes and claim, which need it, are then omitted). Returns 0 or
 * -BANYAN_ESYSTEM, with the file's name. */
int bny_plan_save(const char *path, const struct bny_forest *f, enum bny_forest_use use,
                  int root, const struct bny_graph *g);
int bny_plan_write(FILE *to, const struct bny_forest *f, enum bny_forest_use use, int root,
                   const struct bny_graph *g);
/* Reads and checks. Returns 0 and *out (bny_plan_close); -BANYAN_EINVAL (unreadable or invalid)
 * with file and place ("plan.json: trees[3].parent[7]: ..."), -BANYAN_ENOMEM. */
int bny_plan_load(struct bny_plan_file *out, const char *path);
/* The same from memory; name is for messages. */
int bny_plan_parse(struct bny_plan_file *out, const char *text, size_t len, const char *name);
/* Does the plan fit the graph: made for it (if the plan has a hash), with routes of existing
 * links that connect the right ranks? Returns 0, or -BANYAN_EINVAL with the mismatch. Do not
 * use a plan's routes before. */
int bny_plan_fits(const struct bny_plan_file *plan, const struct bny_graph *g,
                  const char *name);
void bny_plan_close(struct bny_plan_file *plan);

/* All of a regular file of at most `max` bytes, with a 0 behind it; or NULL with the reason as
 * the error. */
char *bny_file_read(const char *path, size_t max, size_t *len);

const char *bny_use_name(enum bny_forest_use use);
const char *bny_cut_kind_name(int kind);

#endif
