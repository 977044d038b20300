/* SPDX-License-Identifier: BSD-3-Clause */
/* Buckets, inside. buckets.c: made, compared between ranks, freed; buckets_rules.c: the text of
 * rules; buckets_cut.c: which tensors share an operation; buckets_step.c: a step, from the
 * first mark to the verdict; buckets_look.c: norms; buckets_state.c: codecs between steps,
 * saved states, statistics; buckets_profile.c: when tensors are ready, for the predictor.
 *
 * Every rank starts the same operations in the same order: b->bucket[0], [1], ..., and last the
 * verdict. A rank that finds a fault in a step (a tensor twice, in part or never, NaN) puts it
 * into the verdict's number, and takes part in all operations nevertheless. So nobody waits for
 * a rank that has given up. */
#ifndef BNY_TRAINING_BUCKETS_H
#define BNY_TRAINING_BUCKETS_H

#include "training/object.h"
#include "training/tensors.h"

struct bny_rule {
    char *pattern, *codec, *schedule; /* codec NULL: none; schedule NULL: the communicator's */
    size_t least, most;               /* elements of tensors that it fits */
};

struct bny_rules {
    struct bny_rule *at;
    size_t n;
};

/* A tensor's share of a bucket. */
struct bny_span {
    size_t tensor;
    size_t at, count; /* its elements */
    size_t offset;    /* of the first one in the bucket, in elements */
};

struct bny_bucket { /* one allreduce */
    struct banyan_request *req;
    struct bny_span *spans; /* in order of tensors; of bny_buckets.spans */
    size_t nspans;
    enum banyan_dtype dtype;
    size_t count;
    char *memory;   /* what is reduced */
    int is_copied;  /* memory is a buffer, not the gradients' own */
    size_t missing; /* elements that are not marked yet */
    int is_done;
    /* Of the latest step: when it started and ended, and bny_clock.in_library_ns then. */
    uint64_t started_ns, ended_ns, started_in_ns, ended_in_ns;
    uint64_t wire_bytes; /* of it */
};

struct bny_part {
    size_t at, end;
};

/* The buckets' state of b->model.at[i]. */
struct bny_bucketed {
    char *codec, *schedule;           /* NULL: none; the communicator's */
    struct banyan_codec_state *state; /* without a codec: its residual is sent by the next step,
                                         and the state freed; NULL: nothing waits */
    size_t first, npieces, piece;     /* its buckets; elements of each but the last */
    size_t offset;                    /* in its bucket, where it has but one */
    size_t marked;                    /* elements in this micro-step */
    struct bny_part *parts; /* of them, where marked in parts: in order, apart from each other
                             */
    size_t nparts, parts_cap;
    int is_used;    /* a micro-step of this step marked some of it */
    double squares; /* of this rank's gradient: this step's, as marked so far */
    double norm;    /* latest step's, as those below */
    uint64_t wire_bytes, hidden_ns, exposed_ns, bucket;
};

struct bny_clock {          /* times of one step, by CLOCK_MONOTONIC */
    uint64_t entry_ns;      /* of this call, from when something was in flight; 0: nothing is */
    uint64_t exit_ns;       /* of the latest call that left something in flight */
    uint64_t gap_ns;        /* from there to this entry */
    uint64_t latest_end_ns; /* of an operation */
    uint64_t in_library_ns, hidden_ns; /* so far */
};

/* Times for banyan_buckets_profile, of the latest cfg.profile steps; by CLOCK_MONOTONIC. */
struct bny_profiled {
    uint64_t *ready_ns;         /* [tensors][cfg.profile] own time when each was complete */
    uint64_t *own_ns, *step_ns; /* [cfg.profile] of a step, without and with the library's */
    size_t next, have;          /* step to be written; steps that are there */
    uint64_t began_ns, entered_ns, inside_ns; /* this step; the latest call; all calls so far */
};

/* The fault of a step, as a number: all ranks take the largest. */
enum bny_fault {
    BNY_FAULT_NONE,
    BNY_FAULT_UNUSED,
    BNY_FAULT_PART,
    BNY_FAULT_TWICE,
    BNY_FAULT_NAN,
};

#define BNY_BUCKETS_KIND 0x53544b42u /* "BKTS" */

struct banyan_buckets {
    struct bny_object object;
    struct banyan_comm *comm;
    struct banyan_buckets_config cfg; /* its texts are not kept */
    struct bny_tensors model;
    struct bny_bucketed *tensor; /* [model.n] */
    uint32_t *order;             /* [model.n]: tensors as rank 0's became ready */
    int has_order;               /* of a step, or loaded */
    uint32_t *seen;              /* [model.n]: this rank's in the first step */
    size_t nseen;

    struct bny_bucket *bucket;
    size_t nbuckets;
    struct bny_span *spans;
    char *memory; /* of all that are copied: banyan_mem_alloc */
    int is_stale; /* cut again before the next step */

    size_t next;   /* bucket to be started */
    size_t oldest; /* that is in flight; next: none */
    int in_step;   /* something was marked since the latest wait */
    int micro;     /* micro-steps that ended, of this step */
    uint64_t fault;
    uint64_t verdict[3]; /* the largest of: fault, micro-steps a step, ~that */
    struct banyan_request *verdict_req;

    struct bny_clock clock;
    struct bny_profiled *profile; /* NULL: not wanted */
    uint64_t steps, wire_bytes, wire_bytes_sum, hidden_ns_sum, exposed_ns_sum;
    int failed; /* the first error that no step survives; and its sentence */
    char failed_text[512];
};

/* As banyan_buckets_create; rules: in place of cfg's, NULL: cfg's. Whoever has parsed them
 * tells which are idle. */
int bny_buckets_create(struct banyan_buckets **out, struct banyan_comm *comm,
                       const struct banyan_tensor *tensors, size_t n,
                       const struct banyan_buckets_config *cfg, const struct bny_rules *rules);

/* ---- buckets_rules.c ---- */

/* 0, -BANYAN_EINVAL saying where, -BANYAN_ENOMEM. text may be NULL. */
int bny_rules_parse(struct bny_rules *out, const char *text);
void bny_rules_free(struct bny_rules *r);
/* The first that fits, or NULL. */
const struct bny_rule *bny_rules_find(const struct bny_rules *r, const struct bny_tensor *t);

/* Rank 0 warns of the rules, from the first-th on, whose names no tensor has. */
void bny_rules_tell_idle(const struct bny_rules *r, size_t first, const struct bny_tensors *t,
                         struct banyan_comm *comm);

/* ---- buckets_cut.c ---- */

/* Cuts b->order anew and makes all requests. Between steps. 0 or an error: then there are no
 * buckets. */
int bny_buckets_cut(struct banyan_buckets *b);
/* Frees requests and buffers; nothing is in flight. */
void bny_buckets_uncut(struct banyan_buckets *b);
/* A request for `count` elements at memory; t: whose codec, shape and schedule (i: its number;
 * codec may be another one than it has). 0 or an error that names it. */
int bny_buckets_request(struct banyan_buckets *b, size_t i, const char *codec, void *memory,
                        size_t count, struct banyan_request **out);

/* ---- buckets_look.c ---- */

/* The sum of the squares of n elements of a floating type, in f64. 1: all of them are finite.
 */
int bny_squares(const void *x, enum banyan_dtype dtype, size_t n, double *sum);

/* ---- buckets_profile.c: nothing where cfg.profile is 0 ---- */

int bny_buckets_profile_make(struct banyan_buckets *b); /* 0 or -BANYAN_ENOMEM */
void bny_buckets_profile_free(struct banyan_buckets *b);
/* Around what a call of the step's does; tensor i is complete; a step has ended. */
void bny_buckets_profile_enter(struct banyan_buckets *b);
void bny_buckets_profile_leave(struct banyan_buckets *b);
void bny_buckets_profile_ready(struct banyan_buckets *b, size_t i);
void bny_buckets_profile_step(struct banyan_buckets *b);

/* ---- buckets_step.c ---- */

/* Keeps the first error that no step survives, and tells the other ranks when it was born here.
 * Returns rc with the sentence. */
int bny_buckets_fail(struct banyan_buckets *b, int rc);
/* 0, or the error that the object failed of, or what is wrong with the handle: of calls that
 * talk to nobody; and of those that do. */
int bny_buckets_check(const struct banyan_buckets *b, const char *what);
int bny_buckets_enter(const struct banyan_buckets *b, const char *what);
/* As bny_buckets_check, and -BANYAN_EBUSY within a step. */
int bny_buckets_check_idle(const struct banyan_buckets *b, const char *what);
/* Forgets what a step marked. */
void bny_buckets_clear(struct banyan_buckets *b);

/* ---- buckets_state.c ---- */

/* A tensor has a state from its first codec on. */
int bny_buckets_make_state(struct banyan_buckets *b, size_t i);
/* Before a step: tensors that have no codec any more have their residuals ready to be added, in
 * this step, with all factors applied. 0 or -BANYAN_ENOMEM. */
int bny_buckets_take_residuals(struct banyan_buckets *b);
/* Adds what codecs left out in `from`, which is of the same tensors. 0 or -BANYAN_ENOMEM. */
int bny_buckets_move_residuals(struct banyan_buckets *to, struct banyan_buckets *from);
/* After a step that failed: residuals are zeros. */
void bny_buckets_drop_residuals(struct banyan_buckets *b);

#endif
