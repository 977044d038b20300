/* SPDX-License-Identifier: BSD-3-Clause */
/* What others may see of a running rank. A tool of the same user (tools/banyan_status) connects
 * to an abstract unix socket of any rank and gets a line of JSON from every rank of the job.
 * BANYAN_METRICS has counters written to a file, or served by HTTP at a loopback port. All of
 * it runs in the control plane's thread, when somebody asks or time has passed. */
#ifndef BNY_COLLECTIVES_OBSERVE_H
#define BNY_COLLECTIVES_OBSERVE_H

#include <stdio.h>

#include "collectives/op/recorder.h"

struct bny_observer;

/* After bny_recorder_open(), before the control plane's thread starts. What cannot be opened is
 * left out, with a warning if BANYAN_METRICS asked for it. */
void bny_observer_open(struct bny_world *w);
/* Writes the metrics a last time. There is no control plane any more, transports still are. */
void bny_observer_close(struct bny_world *w);

/* status.c: this rank's line of JSON, without its end. is_locked: the caller holds the world's
 * lock; without it the line has less. */
void bny_status_write(FILE *f, const struct bny_world *w, const char *host, int is_locked);
/* metrics.c: all counters at one moment, for the caller to free; NULL: no memory. The world has
 * a recorder. Lock held. */
struct bny_metrics;
struct bny_metrics *bny_metrics_read(struct bny_world *w);
/* The same as OpenMetrics text. No lock is needed. */
void bny_metrics_write(FILE *f, const struct bny_metrics *m, const char *host);

#endif
