/* SPDX-License-Identifier: BSD-3-Clause */
/* What others may see of a running rank. A tool of the same user (tools/banyan_status) connects
 * to an abstract unix socket of any rank and gets a line of JSON from every rank of the job.
 * It runs in the control plane's thread, when somebody asks. */
#ifndef BNY_COLLECTIVES_OBSERVE_H
#define BNY_COLLECTIVES_OBSERVE_H

#include <stdio.h>

#include "collectives/op/recorder.h"

struct bny_observer;

/* After bny_recorder_open(), before the control plane's thread starts. What cannot be opened is
 * left out. */
void bny_observer_open(struct bny_world *w);
/* There is no control plane any more. */
void bny_observer_close(struct bny_world *w);

/* status.c: this rank's line of JSON, without its end. is_locked: the caller holds the world's
 * lock; without it the line has less. */
void bny_status_write(FILE *f, const struct bny_world *w, const char *host, int is_locked);

#endif
