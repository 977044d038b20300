/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan_perf: what its files share. perf_main.c reads options and sweeps; perf_run.c times one
 * size of one case; perf_case.c is the table of collectives; perf_data.c makes and checks
 * values; perf_out.c prints. */
#ifndef BNY_PERF_PERF_H
#define BNY_PERF_PERF_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "banyan/banyan.h"
#include "perf/perf_case.h"
#include "perf/perf_data.h"
#include "perf/perf_fault.h"

#define PERF_DTYPES      (BANYAN_U64 + 1) /* the types up to here have data to measure with */
#define PERF_MULSUM      0xff  /* index of the premultiplied sum beside the built-in ops */
#define PERF_BATCH       16    /* operations per clock reading ... */
#define PERF_BATCH_BYTES 32768 /* ... up to this size */
#define PERF_MAX_ITERS   1000000

enum perf_format { PERF_TABLE, PERF_CSV, PERF_OSU };
enum perf_mem { PERF_MALLOC, PERF_BANYAN, PERF_REGISTERED };

struct perf_opts {
    const struct perf_case *what;
    uint64_t min_bytes, max_bytes;
    uint64_t step_bytes; /* 0: multiply by factor */
    double factor;
    int iters, warmup, cycles;
    int check; /* 0: none, else checked operations before and after the timed ones */
    int dtype, dtype_all;
    unsigned op; /* enum banyan_op_kind or PERF_MULSUM */
    int op_all;
    int root;    /* -1: every rank in turn */
    int inplace; /* bit 0: out of place, bit 1: in place */
    enum perf_mem mem;
    double timeout_s; /* per size; 0: none */
    int nlocal;       /* -P: ranks to start here; 0: join the job of the environment */
    int bind;
    const char *transport, *schedule, *codec, *device;
    int codec_may; /* the codec is a permission, as in the library; else it is insisted on */
    const char *topology; /* NULL: BANYAN_TOPO's, or none */
    uint64_t chunk_bytes;
    struct perf_data_spec data;
    enum perf_format format;
    const char *json; /* file, or NULL */
    int roofline;     /* 0: skip that measurement */
    struct perf_faults faults;
};

/* Fills *o. Returns 0; 1 when the program should end at once with status *status (help, bad
 * usage: printed). */
int perf_opts_parse(struct perf_opts *o, int argc, char **argv, int *status);
/* "float" or "f32" -> enum banyan_dtype; -1 when unknown. */
int perf_parse_dtype(const char *name);
/* "sum" -> enum banyan_op_kind or PERF_MULSUM; -1 when unknown. */
int perf_parse_op(const char *name);
const char *perf_op_name(unsigned op);
/* Whether the op is defined for the type (bitwise: integers only; mulsum: floats only). */
int perf_op_valid(int dtype, unsigned op);
/* Next size of the sweep; 0 at its end. */
uint64_t perf_next_bytes(const struct perf_opts *o, uint64_t bytes);

/* One line of results; the JSON object's fields in their order. */
struct perf_row {
    const char *collective;
    char transport[32], schedule[64], codec[64];
    int ranks;
    uint64_t bytes, count;
    const char *dtype, *op;
    int root, inplace, iters;
    double time_min_us, time_median_us, time_p99_us;
    double algbw, busbw; /* GB/s */
    uint64_t wire_bytes; /* of the rank that sent most, per operation */
    double wire_busbw;   /* GB/s */
    int64_t wrong;       /* -1: not checked */
    double max_abs_err, rel_err;
    double cpu_s;        /* of all ranks in the timed operations */
    double predicted_us; /* by the plan, after them; 0: none is known */
    double roofline;     /* GB/s; 0: not measured */
};

/* This rank's buffers; all of them as large as the largest size needs. */
struct perf_buffers {
    void *send, *recv, *pristine;
    size_t bytes; /* of each */
    int fd[2];    /* memfd behind send and recv with PERF_REGISTERED */
};

struct perf_run {
    const struct perf_opts *opts;
    struct banyan_comm *comm;
    int rank, nranks;
    int first_rank;     /* at the start: it changes when others die */
    long timed;         /* iterations so far */
    int tries;          /* failures in a row of which nobody died */
    int said_refused;   /* the codec was refused, which is said once */
    int said_schedule;  /* another schedule runs than was asked for: said once */
    int keeps_time;     /* sets the process's alarm: one rank of it does */
    char transport[32]; /* that the communicator uses */
    struct perf_buffers buf;
    double *times_us; /* [iters] */
    int64_t wrong_total;
    double busbw_sum; /* for the closing line */
    int busbw_n;
};

int perf_buffers_alloc(struct perf_run *run, size_t bytes);
void perf_buffers_free(struct perf_run *run);
/* Warm-up, checks and timing of one call; fills every field of *row on all ranks. count is the
 * call's; root, dtype, op and inplace come from the row. Returns 0 or the library's error. */
int perf_run_row(struct perf_run *run, struct perf_row *row);
/* The same for put_bw and put_lat, over the windows of the transport contract. */
int perf_put_row(struct perf_run *run, struct perf_row *row);
void perf_put_finish(void);

/* Measures what this transport could do at best at this size (GB/s, the same number on all
 * ranks): shm: every rank copies that many bytes out of its neighbour's memory; tcp: one stream
 * over the loopback. 0 when it cannot be measured. Collective. */
double perf_roofline(struct perf_run *run, uint64_t bytes);

/* Closes descriptors and mappings of the roofline measurement. */
void perf_roofline_finish(void);

/* Output: rank 0 only. */
struct perf_out {
    const struct perf_opts *opts;
    FILE *text, *json;
    int columns; /* results printed in the present line: 0 none, 1 out of place */
};
int perf_out_open(struct perf_out *out, const struct perf_opts *o);
/* Rank 0 has died, this one goes on: behind what it wrote. */
int perf_out_go_on(struct perf_out *out, const struct perf_opts *o);
/* A line of its own among the rows, where the format has room for one. */
void perf_out_note(struct perf_out *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void perf_out_head(struct perf_out *out, const struct perf_run *run, const char *cards);
void perf_out_row(struct perf_out *out, const struct perf_row *row, int last_of_line);
int perf_out_close(struct perf_out *out, const struct perf_run *run);
/* One JSON object without newline into buf; returns its length. */
int perf_row_json(const struct perf_row *row, char *buf, size_t cap);

/* Sorts v[n]. */
void perf_sort(double *v, size_t n);
/* Of a sorted array, n > 0: linear interpolation between neighbours; p in [0, 1]. */
double perf_percentile(const double *sorted, size_t n, double p);

#endif
