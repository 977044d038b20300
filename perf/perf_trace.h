/* SPDX-License-Identifier: BSD-3-Clause */
/* --trace: the last timed iteration of each row as a file for Perfetto or chrome://tracing. */
#ifndef BNY_PERF_PERF_TRACE_H
#define BNY_PERF_PERF_TRACE_H

#include <stdint.h>

struct perf_run;
struct perf_row;
struct bny_trace_event;

struct perf_trace {
    struct bny_trace_event *events; /* of this rank, this row */
    uint64_t n, lost;
    uint64_t t0, t1; /* of the iteration, this rank's clock, ns */
};

/* Rank 0 opens --trace's file; nothing without --trace. 0, or -1 after a message. */
int perf_trace_open(struct perf_run *run);
/* Around one iteration, whose time on this rank was [t0, t1]. 0 or the library's error. */
int perf_trace_begin(struct perf_run *run, struct perf_trace *t);
int perf_trace_end(struct perf_run *run, struct perf_trace *t, uint64_t t0, uint64_t t1);
/* Collective: rank 0 writes all ranks' events, and keeps a verdict for perf_trace_say(). 0 or
 * the library's error. */
int perf_trace_write(struct perf_run *run, const struct perf_row *row, int batch,
                     struct perf_trace *t);
/* The verdicts so far, to stderr; between lines of the table. */
void perf_trace_say(struct perf_run *run);
/* Ends the file. 0, or -1 after a message: it could not be written. */
int perf_trace_close(struct perf_run *run);

#endif
