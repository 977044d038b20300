/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks of what users hand to collectives. All return 0 or an error with its sentence, which
 * names the argument. */
#ifndef BNY_COLLECTIVES_ARGUMENTS_H
#define BNY_COLLECTIVES_ARGUMENTS_H

#include "collectives/api/job.h"

/* Every call begins with this: checks the communicator and the options, and fills in defaults.
 * what: the function's name. */
int bny_call_begin(struct bny_call *call, enum bny_collective collective, const char *what,
                   struct banyan_comm *comm, const struct banyan_opts *opts);
/* A timeout: any number is one. what: its name. */
int bny_check_seconds(const char *what, double seconds);
int bny_check_type(struct bny_call *call, enum banyan_dtype dtype);
int bny_check_op(struct bny_call *call, banyan_op op); /* after type and count */
int bny_check_op_counts(const struct bny_call *call, const size_t *counts, int n);
int bny_check_root(const struct bny_call *call, const struct banyan_comm *comm,
                   const char *what);
/* opts.reduce's participants, of a call that can have them, of a type and an operation: sets
 * the call's, and its sendbuf to NULL where this rank has no input. -BANYAN_EINVAL: an empty
 * set whose result would be no number. */
int bny_check_participants(struct bny_call *call, const struct banyan_comm *comm,
                           const struct banyan_opts *opts);
int bny_check_buffer(const void *ptr, size_t elems, const char *what);
/* SIZE_MAX when the sum does not fit. */
size_t bny_counts_sum(const size_t *counts, int n);
/* Byte offsets must fit: nothing behind this checks them again. */
int bny_check_extent(const struct banyan_comm *comm, const struct bny_call *call);
/* A codec that the call asked for must fit it, and with force=1 it must also shorten it; the
 * communicator's default steps aside, which is told. */
int bny_check_codec(struct bny_call *call, struct banyan_comm *comm,
                    const struct banyan_opts *opts);
/* A reduce_scatter that adds in order of ranks becomes an allreduce into staging memory, of
 * which [at, at + own) is this rank's: no scattered schedule has that order. After the codec.
 */
void bny_call_order(struct bny_call *call, const struct banyan_comm *comm, size_t at,
                    size_t own, size_t total);
/* An allgatherv or reduce_scatterv of equal counts becomes the plain collective, which has the
 * short paths: every rank knows all counts, so all do it alike. Displacements are known to this
 * rank alone and checked here: `spread`. */
void bny_call_even(struct bny_call *call, const struct banyan_comm *comm);
/* Calls that differ in their buffers alone need not be checked again, where the options are
 * ordinary ones: call_cache.c. Last. */
void bny_call_set_shape(struct bny_call *call, const struct banyan_comm *comm);

#endif
