/* SPDX-License-Identifier: BSD-3-Clause */
/* Faults that banyan_perf makes itself (--fault), and how its ranks go on after them. */
#ifndef BNY_PERF_PERF_FAULT_H
#define BNY_PERF_PERF_FAULT_H

#define PERF_FAULTS_MAX 16

enum perf_fault_kind { PERF_KILL, PERF_EXIT, PERF_STOP, PERF_LATE };

struct perf_fault {
    enum perf_fault_kind kind;
    int rank; /* as numbered at the start */
    long at;  /* timed iteration of the whole run, from 0 */
    int ms;   /* PERF_STOP, PERF_LATE: for so long */
};

struct perf_faults {
    struct perf_fault f[PERF_FAULTS_MAX];
    int n;
};

struct perf_run;
struct perf_out;

/* "kill=2@40,stop=1@10:500": adds them. 0, or -1: no such fault, or too many. */
int perf_fault_parse(struct perf_faults *faults, const char *spec);
/* Before each timed iteration: does what is due. */
void perf_fault_due(struct perf_run *run);
/* After each size, with its result, on all ranks that live: 1 when it went well with all of
 * them; 0 when it did not: run->comm is then one of those who are left, and the size is to be
 * done again; or the error that ends this rank. */
int perf_fault_agree(struct perf_run *run, struct perf_out *out, int rc);

/* At the end: says which fault of this rank never came. */
void perf_fault_left(const struct perf_run *run);
/* How many ranks they end. */
int perf_fault_deaths(const struct perf_faults *faults);

#endif
