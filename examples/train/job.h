/* SPDX-License-Identifier: BSD-3-Clause */
/* The job around a training loop: ranks of this machine, a clock, checkpoints, what is shown
 * and logged. */
#ifndef TRAIN_JOB_H
#define TRAIN_JOB_H

#include <banyan/banyan.h>
#include <stdio.h>
#include <sys/types.h>

#define JOB_RANKS_MAX 512

/* nlocal > 0: starts so many ranks as processes of this machine, this one being rank 0; 0:
 * joins the launcher's job. children [JOB_RANKS_MAX]. Call it before threads are made. Returns
 * 0 or an error of banyan. */
int job_join(struct banyan_comm **comm, int nlocal, pid_t *children);
/* rc: how the loop ended. Leaves the job and waits for the children; returns the exit status.
 */
int job_leave(struct banyan_comm *comm, pid_t *children, const char *program, int rc);

double job_now(void); /* seconds */

/* Do all ranks hold the same floats? Compares a checksum's smallest and largest value. */
int job_same(struct banyan_comm *comm, const float *x, size_t n, int *same);

/* A bar on stderr, where that is a terminal. */
void job_bar(int step, int steps, double loss, double seconds);

/* The state of a rank, in FOLDER/rank<N>: written beside and renamed when all ranks have
 * written, so that an end at any time leaves a whole one. Collective. Read back at the sizes
 * that parts have; *rest, of *bytes, is what was written behind them, to be freed. Returns 0,
 * or -1 after a message. */
struct job_part {
    void *at;
    size_t bytes;
};
int job_write(const char *folder, struct banyan_comm *comm, const struct job_part *parts,
              int n);
int job_read(const char *folder, struct banyan_comm *comm, const struct job_part *parts, int n,
             void **rest, size_t *bytes);

#endif
