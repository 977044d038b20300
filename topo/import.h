/* SPDX-License-Identifier: BSD-3-Clause */
/* Graphs from files. An importer turns one format into nodes and links; this has the common
 * parts (size limits, names, common unit of capacities, numbering, the position in an error).
 * Files are untrusted input: everything is checked. */
#ifndef BNY_TOPO_IMPORT_H
#define BNY_TOPO_IMPORT_H

#include <stdio.h>

#include "topo/graph.h"

#define BNY_IMPORT_BYTES_MAX (16 << 20)
#define BNY_IMPORT_NODES_MAX 100000
#define BNY_IMPORT_LINKS_MAX 1000000

struct bny_import_link {
    int from, to;
    struct bny_ratio cap;
    int64_t lat_ns, lanes;
};

struct bny_import {
    const char *file; /* for errors */
    const char *text; /* [len], a 0 behind it */
    size_t len;
    struct bny_graph *g;
    double unit_Bps; /* unit of the links' capacities; 1e9 unless the importer sets it */
    int reduce; /* divide capacities by their greatest common divisor (and multiply the unit) */
    struct bny_import_link *links;
    int nlinks, links_cap;
    int *names, names_cap; /* name -> node, open addressing */
};

struct bny_importer {
    char name[16];
    int (*sniff)(const char *text, size_t len); /* 1: mine */
    int (*parse)(struct bny_import *im);        /* 0 or an error with file and place */
};
/* NULL-terminated; the last accepts everything. */
extern const struct bny_importer *const bny_importers[];
extern const struct bny_importer bny_import_json, bny_import_graphml, bny_import_nccl,
    bny_import_ib, bny_import_hwloc, bny_import_edges;

/* "FILE:LINE: sentence" (line 0: "FILE: sentence") as the thread's error; -BANYAN_EINVAL. */
int bny_import_fail(const struct bny_import *im, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The node of that name, added as a compute node if it does not exist. Returns its index or an
 * error. */
int bny_import_node(struct bny_import *im, const char *name, int line);
int bny_import_find(const struct bny_import *im, const char *name); /* or -1 */
/* One direction. 0 or an error. */
int bny_import_link(struct bny_import *im, int from, int to, struct bny_ratio cap,
                    int64_t lat_ns, int line);
/* Whole and decimal numbers in a text field: at most 9 digits on each side. Returns 0 or an
 * error. */
int bny_import_number(const struct bny_import *im, struct bny_ratio *out, const char *text,
                      const char *what, int line);
/* Microseconds into whole ns. */
int bny_import_us(const struct bny_import *im, int64_t *ns, const char *text, int line);

/* Detects the format of text (len bytes and a 0 behind them), reads it and freezes the
 * graph. */
int bny_graph_parse(struct bny_graph **out, const char *file, const char *text, size_t len);
/* The same from a file of at most BNY_IMPORT_BYTES_MAX bytes. */
int bny_graph_load(struct bny_graph **out, const char *path);
/* Writes own JSON, which bny_graph_parse reads back as the same graph. extra: NULL, or more
 * members of the object (", \"date\": ..."). Returns 0 or -BANYAN_ESYSTEM. */
int bny_graph_save(const struct bny_graph *g, FILE *f, const char *extra);

#endif
