/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan's training layer: what a data-parallel training loop needs on top of the collectives
 * of banyan.h. Compiles alone as C11 and as C++17. A library of its own on top of libbanyan:
 * link with -lbanyan-training -lbanyan, or by pkg-config banyan-training.
 *
 * Conventions are banyan.h's: errors are negative BANYAN_E* codes with a sentence in
 * banyan_last_error() that names tensor and rank, _free takes NULL, one thread at a time per
 * object and communicator. Besides:
 *   All ranks  make the same objects of the same tensors in the same order, and call them
 * alike. What differs between ranks is found where it can be and told with -EMISMATCH.
 *   Decisions  (levels, stops, phases) are functions of values that all ranks agreed on, so
 *              that all ranks decide alike.
 *   Handles    NULL, and an object that was freed, are told with -EINVAL, as banyan.h has it of
 *              its own (0 and NULL by functions that return bytes or pointers; _config_default
 *              and _free take NULL).
 *   Groups     inside banyan_group_start and _end, and in user operations, all that
 *              communicates returns -EBUSY: its own operations would run only later.
 *   State      what survives a step can be saved to memory of the caller's and loaded again; a
 *              run then goes on bit-identically. The format has a version and a checksum.
 *   Errors     after a collective step failed, the object can be loaded from a saved state, if
 *              the communicator is healthy, or freed; nothing else.
 *   Steady     a step allocates nothing once every kind of step was seen.
 */
#ifndef BANYAN_TRAINING_H
#define BANYAN_TRAINING_H

#include <banyan/banyan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One tensor of a model. Arrays of these describe a model, in an order that all ranks share;
 * functions copy what they need but for what grad points to. */
struct banyan_tensor {
    const char *name;        /* unique in the model: rules and errors name it */
    enum banyan_dtype dtype; /* F32; buckets: any floating type */
    int ndim;                /* 0: a scalar; at most 8 */
    const int64_t *shape;    /* [ndim], each > 0 */
    void *grad; /* its gradient, row-major, packed; borrowed for as long as the object lives */
};

/* ---------------------------------------------------------------------------------------------
 * Accordion: little compression while a tensor's gradients change fast, much while they do not
 * (Agarwal, Wang, Venkataraman, Papailiopoulos: "Adaptive Gradient Communication via Critical
 * Learning Regime Identification", MLSys 2021, arXiv 2010.16248).
 *
 * Every `interval` steps, for each tensor: D = the norm of the sum of rank 0's own gradients
 * over the last `window` steps. The tensor is critical, and gets little compression, where
 * |D_before - D| >= eta * D_before, or D_before is 0; else it gets much. Until the first
 * decision, and after the learning rate dropped until the next, all get little. Rank 0 decides
 * for all. Residuals are the caller's and stay: banyan_buckets_set_codec keeps them.
 *
 * With `accumulate` > 1 the batch is what adapts, by the norm over the whole model: one
 * micro-step for each update while it is critical, `accumulate` once it is not, and never fewer
 * again (the paper, section 4.3). The caller scales the learning rate by
 * banyan_accordion_accumulate().
 */
struct banyan_accordion; /* opaque */
struct banyan_accordion_config {
    size_t size;      /* sizeof of the caller */
    double eta;       /* 0.5 */
    int interval;     /* steps from one decision to the next: 100; the paper: 10 epochs */
    int window;       /* the last steps of an interval, whose gradients are summed; 0: all */
    double rate_drop; /* 0.7: a rate below this part of that at the last decision is a drop */
    size_t min_count; /* smaller tensors keep little compression: 1024 */
    const char *little, *much; /* codecs: "none" and "topk:delta=0.01" */
    int accumulate; /* 1: codecs adapt; more: the batch does, little and much are unused */
};
BANYAN_API void banyan_accordion_config_default(struct banyan_accordion_config *cfg);
/* Collective. Borrows comm; tensors: F32. cfg NULL: the default. Returns 0, -EINVAL, -ENOMEM,
 * -EMISMATCH (tensors differ between ranks). */
BANYAN_API int banyan_accordion_create(struct banyan_accordion **out, struct banyan_comm *comm,
                                       const struct banyan_tensor *tensors, size_t n,
                                       const struct banyan_accordion_config *cfg);
/* Takes NULL. */
BANYAN_API void banyan_accordion_free(struct banyan_accordion *a);
/* Once a step and tensor, when its gradient of this rank is complete and not yet reduced.
 * -EINVAL: no such tensor. */
BANYAN_API int banyan_accordion_observe(struct banyan_accordion *a, size_t tensor);
/* Ends a step (an update) that ran at learning rate `rate`; collective when an interval ends.
 * Returns how many tensors have another level than before (in batch mode 1 when accumulate
 * rose), or -EINVAL (a gradient that is not finite: tensor and rank; a rate that is no positive
 * number), -EMISMATCH (a rank counts other steps, or has another rate or other settings). */
BANYAN_API int banyan_accordion_step(struct banyan_accordion *a, double rate);
/* 1 while the tensor gets much compression, else 0; -EINVAL. */
BANYAN_API int banyan_accordion_level(const struct banyan_accordion *a, size_t tensor);
/* The codec of that level, borrowed from the object; NULL: no such tensor. */
BANYAN_API const char *banyan_accordion_codec(const struct banyan_accordion *a, size_t tensor);
/* Micro-steps for an update at present: 1, or cfg.accumulate. */
BANYAN_API int banyan_accordion_accumulate(const struct banyan_accordion *a);
/* State: each rank saves and loads its own. -EINVAL: cap too small; no such state, or of other
 * tensors (nothing is changed then). */
BANYAN_API size_t banyan_accordion_bytes(const struct banyan_accordion *a);
BANYAN_API int banyan_accordion_save(const struct banyan_accordion *a, void *buf, size_t cap);
BANYAN_API int banyan_accordion_load(struct banyan_accordion *a, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Local SGD: ranks take steps of their own and average their parameters now and then (Stich:
 * "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv 1805.09767). What is
 * summed is each rank's difference to the parameters that all had after the last average, which
 * a codec may compress, with a residual.
 */
enum banyan_local_sgd_mode {
    BANYAN_LOCAL_FIXED,    /* every `period` steps */
    BANYAN_LOCAL_ADAPTIVE, /* every ceil(period * sqrt(loss / first loss)) steps, at most period
                            * (Wang and Joshi: AdaComm, MLSys 2019, arXiv 1810.08313, eq. 17) */
    BANYAN_LOCAL_OVERLAPPED, /* as fixed, but an average is used one period later, added to what
                              * was learned since: the wire works while ranks compute (after
                              * Wang, Liang, Joshi: Overlap Local-SGD, arXiv 2002.09539) */
};
struct banyan_local_sgd; /* opaque */
struct banyan_local_sgd_config {
    size_t size; /* sizeof of the caller */
    enum banyan_local_sgd_mode mode;
    int period;        /* steps: 8 */
    int warm_up;       /* steps at the start that are all averaged (post-local SGD): 0 */
    const char *codec; /* of the differences; NULL: none. With a residual */
    uint64_t seed;     /* of the codec; the same on all ranks */
};
BANYAN_API void banyan_local_sgd_config_default(struct banyan_local_sgd_config *cfg);
/* Collective. tensors: F32, their grad being the parameters, which are set to rank 0's. Borrows
 * comm. Returns 0, -EINVAL, -ENOMEM, -EMISMATCH. */
BANYAN_API int banyan_local_sgd_create(struct banyan_local_sgd **out, struct banyan_comm *comm,
                                       const struct banyan_tensor *tensors, size_t n,
                                       const struct banyan_local_sgd_config *cfg);
/* Takes NULL. Not while others wait for this rank's average: finish first. */
BANYAN_API void banyan_local_sgd_free(struct banyan_local_sgd *l);
/* After a step of this rank's own; loss: of that step, used when adaptive. Collective when a
 * period ends. Returns 1 when an average was taken into the parameters, else 0; -EINVAL: a
 * parameter or loss that is not finite (tensor and rank). */
BANYAN_API int banyan_local_sgd_step(struct banyan_local_sgd *l, double loss);
/* Collective. Ends an average that is under way, then averages once more without codec: all
 * ranks hold the same bits. */
BANYAN_API int banyan_local_sgd_finish(struct banyan_local_sgd *l);
/* Steps to the next average when it has just begun; changes when adaptive. */
BANYAN_API int banyan_local_sgd_period(const struct banyan_local_sgd *l);
/* State: each rank saves and loads its own; the parameters are the caller's to save. -EBUSY
 * while an average is under way: banyan_local_sgd_settle (collective) ends it first. */
BANYAN_API int banyan_local_sgd_settle(struct banyan_local_sgd *l);
BANYAN_API size_t banyan_local_sgd_bytes(const struct banyan_local_sgd *l);
BANYAN_API int banyan_local_sgd_save(const struct banyan_local_sgd *l, void *buf, size_t cap);
BANYAN_API int banyan_local_sgd_load(struct banyan_local_sgd *l, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Buckets: gradients averaged over all ranks while backward still runs (as PyTorch's
 * DistributedDataParallel, Li et al., VLDB 2020, section 3.2). A training loop:
 *
 *     struct banyan_buckets_config cfg;
 *     struct banyan_buckets *b;
 *
 *     banyan_buckets_config_default(&cfg);
 *     cfg.rules = "*:<16384=none; *=topk:delta=0.01";
 *     if (banyan_buckets_create(&b, comm, tensors, n, &cfg) < 0)
 *         return fail(banyan_last_error());
 *     for (int step = 0; step < steps; step++) {
 *         forward(next_batch());
 *         for (size_t i = n; i-- > 0;) {
 *             backward(i); // leaves its gradient in tensors[i].grad
 *             banyan_buckets_ready(b, i);
 *         }
 *         if (banyan_buckets_wait(b) < 0)
 *             return fail(banyan_last_error());
 *         optimiser_step();
 *     }
 *     banyan_buckets_free(b);
 *
 * How: small tensors without a codec are fused into buckets, one allreduce each; large ones are
 * reduced where they lie, in pieces when they are very large; a tensor with a codec has an
 * operation and a codec state of its own. A bucket starts when all of it is ready and all
 * buckets before it have started, so that ranks start them in one order however their own
 * gradients come. In the first step buckets are cut in the opposite order of registration;
 * after it they are cut again, in the order in which rank 0's tensors became ready. A steady
 * step makes no request and allocates nothing.
 *   Memory   grad lies in the same place for as long as the object lives. From _ready to the
 *            return of _wait it is the library's: not to be read or written.
 *   Order    Between two calls of _wait every rank marks every tensor once, in any order.
 *            Other operations on comm belong between _wait and the next _ready: all ranks call
 *            operations of one communicator in one order. Give buckets a communicator of their
 *            own (banyan_comm_dup) to be free of that.
 *   Threads  one at a time. Reductions go on in the communicator's progress thread where it has
 *            one (banyan_config.progress_thread), and in _ready, _progress and _wait.
 *   Bits     a tensor with a codec: the same however buckets are cut. One without: the same
 *            with deterministic=1; else additions are associated as the schedule of its
 *            bucket's size has it, and bits may differ with bucket_bytes (not between ranks).
 *   Errors   what is wrong at one rank (a tensor marked twice, in part, never, with NaN) is
 * told to all ranks by _wait of that step, with the same sentence, which names tensor and rank.
 * Nobody hangs for it: that rank counts as zeros where it has nothing. The gradients of that
 * step are void, the object goes on with the next one. After an error of the communicator (a
 * rank lost, a deadline passed) every call returns that.
 */
struct banyan_buckets; /* opaque */

/* A tensor that a rank has not marked in a step. */
enum banyan_unused {
    BANYAN_UNUSED_ERROR, /* _wait fails at all ranks and names it */
    BANYAN_UNUSED_ZERO   /* this rank's part is zero, also where no other rank marked it */
};

/* Rules: which codec and schedule a tensor has, as text.
 *     rules  = rule { ";" rule }
 *     rule   = pattern { ":" test } "=" [ codec ] [ "@" schedule ]
 *     test   = ( "<" | "<=" | ">" | ">=" ) elements
 * pattern: fnmatch(3) on the tensor's name, without ":", "=" and ";" ("?" stands for them).
 * elements: of the tensor, decimal. codec: as banyan_opts.codec; none, or nothing: without.
 * schedule: as banyan_opts.schedule. Blanks around ";" and rules do not count. The first rule
 * that fits a tensor is its rule; where none does, banyan_buckets_config.codec holds.
 *     "*.bias=none; fc*.weight:>=65536=topk:delta=0.01; *=int8@ring"
 * Lossy codecs take f32 only, and below some ten thousand elements an operation of its own
 * costs more than a codec gains: leave small tensors to the buckets. */

struct banyan_buckets_config {
    size_t size;         /* sizeof(struct banyan_buckets_config) of the caller */
    size_t bucket_bytes; /* tensors are fused up to this; default 1 MiB: 8 ms at 1 Gbit/s, where
                            a start costs 0.1 ms, so finer buckets would hide no more. Tensors
                            of more than 8 times as much are reduced in pieces of that (at
                            least 32 KiB) */
    size_t first_bytes;  /* the same for the first bucket, so that the network has work soon;
                            default 128 KiB */
    banyan_op op;        /* BANYAN_AVG (default) or BANYAN_SUM */
    const char *codec;   /* of tensors that no rule names; default NULL: none */
    const char *rules;   /* above; default NULL: no rules */
    int accumulate;      /* micro-steps a step; default 1 */
    enum banyan_unused unused; /* default BANYAN_UNUSED_ERROR */
    int deterministic; /* of sums without a codec, as banyan_opts.deterministic; default -1 */
    uint64_t seed;     /* of codecs that choose at random; the same on all ranks; default 1 */
    int check_nan;    /* 1: _ready looks for NaN and infinities, a pass over each gradient; what
                         has some counts as zeros, and _wait names its tensor. Default 0: they
                         are summed; linear codecs fail the communicator for them */
    int norms;        /* 1: _ready takes the norm of each local gradient, in the same pass */
    int progress;     /* 0: _ready does not drive what is in flight, for communicators with a
                         progress thread; default 1 */
    double timeout_s; /* deadline of each operation; default -1: the communicator's */
    int profile; /* keeps times of so many of the latest steps for banyan_buckets_profile(), at
                    most 10000; default 0: none. Each rank by itself */
};
BANYAN_API void banyan_buckets_config_default(struct banyan_buckets_config *cfg);

/* Collective: compares tensors and settings between ranks. Copies names and shapes and borrows
 * each grad. tensors: F32, F64, F16, BF16. cfg may be NULL. Borrows comm until freed. 0;
 * -EINVAL: settings, rules (with the position of what is wrong), tensors; -ENOTSUP: a codec or
 * a schedule that does not take a tensor, which it names; -EMISMATCH: the first tensor, or that
 * settings, which differ at which rank; -ENOMEM; or the communicator's. */
BANYAN_API int banyan_buckets_create(struct banyan_buckets **out, struct banyan_comm *comm,
                                     const struct banyan_tensor *tensors, size_t n,
                                     const struct banyan_buckets_config *cfg);
/* Takes NULL. Before comm is destroyed. In the middle of a step: waits for what has started,
 * so that all ranks call it alike, or after their communicator has failed. */
BANYAN_API void banyan_buckets_free(struct banyan_buckets *b);

/* The gradient of tensors[tensor] is complete at this rank: it may be sent from now on. 0;
 * -EINVAL: no such tensor, or it was marked before in this micro-step (nothing is sent again,
 * and _wait tells all ranks); -ENOMEM: the object has failed, and the other ranks get -EABORTED
 * with this rank's sentence; or the communicator's failure, naming the tensor on the way. */
BANYAN_API int banyan_buckets_ready(struct banyan_buckets *b, size_t tensor);
/* The same of its elements [at, at + count). Parts come in any order and together make the
 * tensor. -EINVAL also: beyond its end, or some of them were marked before. */
BANYAN_API int banyan_buckets_ready_part(struct banyan_buckets *b, size_t tensor, size_t at,
                                         size_t count);
/* Drives what is in flight, without waiting: for long computations between two _ready, without
 * a progress thread. 0 or the communicator's failure. */
BANYAN_API int banyan_buckets_progress(struct banyan_buckets *b);

/* Ends the micro-step. In the last one of a step: starts what is left, waits, and all gradients
 * are reduced in place, bit-identical on all ranks. In the others: only checks. 0; -EINVAL,
 * told at all ranks: a tensor marked twice, in part or never, with NaN; -EMISMATCH: ranks have
 * other codecs for a tensor, or other numbers of micro-steps; or the communicator's failure,
 * naming rank and tensor. */
BANYAN_API int banyan_buckets_wait(struct banyan_buckets *b);

/* Gradient accumulation: a step has k micro-steps, each ended by _wait; gradients are the
 * caller's to add up in grad and are reduced in the last one. A tensor is unused that no
 * micro-step marked. Between steps, on all ranks alike. 0, -EINVAL (k < 1), -EBUSY within a
 * step. */
BANYAN_API int banyan_buckets_set_accumulate(struct banyan_buckets *b, int k);
/* Micro-steps that have ended of the step that runs: 0 after the _wait that reduced. */
BANYAN_API int banyan_buckets_micro(const struct banyan_buckets *b);

/* Another codec, or other parameters, for a tensor from the next step on: for controllers. On
 * all ranks alike, between steps. codec: as banyan_opts.codec; NULL: none. Residuals stay: the
 * next step adds them, with whatever codec; without one it sends all of them. 0; -EINVAL,
 * -ENOTSUP: the tensor keeps the codec it has; -EBUSY within a step; -ENOMEM. */
BANYAN_API int banyan_buckets_set_codec(struct banyan_buckets *b, size_t tensor,
                                        const char *codec);
/* What it has: "none" or as it was given; until changed. NULL: no such tensor. */
BANYAN_API const char *banyan_buckets_codec(const struct banyan_buckets *b, size_t tensor);
/* All residuals times factor in the next step, as banyan_codec_state_scale: old learning rate
 * to new. Between steps. 0, -EINVAL, -EBUSY. */
BANYAN_API int banyan_buckets_scale_residuals(struct banyan_buckets *b, double factor);
/* The residual of a tensor, f32 [its elements], until the next step; NULL: it has none, for
 * want of a codec. */
BANYAN_API const float *banyan_buckets_residual(const struct banyan_buckets *b, size_t tensor);

/* What a tensor cost in the latest step. Only members that the caller's size has are written.
 */
struct banyan_buckets_tensor_stats {
    size_t size;         /* sizeof of the caller; set before the call */
    double norm;         /* L2 of this rank's gradient as marked; 0 without cfg.norms */
    uint64_t wire_bytes; /* payload this rank sent; of a bucket: the tensor's share by length */
    double hidden_s;     /* of the time from its operation's start to its end (of its pieces'):
                            while the caller was elsewhere, computing */
    double exposed_s;    /* the rest: while the caller was in _ready, _progress or _wait */
    uint64_t bucket;     /* which bucket, in order of their starts; its first piece's */
};
/* Between steps. 0, -EINVAL. */
BANYAN_API int banyan_buckets_tensor_stats(const struct banyan_buckets *b, size_t tensor,
                                           struct banyan_buckets_tensor_stats *out);

/* All tensors together. */
struct banyan_buckets_stats {
    size_t size;             /* sizeof of the caller; set before the call */
    uint64_t steps;          /* that reduced, since it was made (a loaded state's included) */
    uint64_t buckets;        /* operations a step, but for the verdict on errors */
    uint64_t wire_bytes;     /* payload this rank sent in the latest step, verdict included */
    uint64_t wire_bytes_sum; /* and in all steps */
    double hidden_s;  /* latest step: time in which something was in flight and the caller was
                         elsewhere, computing */
    double exposed_s; /* latest step: something was in flight and the caller in _ready,
                         _progress or _wait */
    double hidden_s_sum, exposed_s_sum;
};
BANYAN_API int banyan_buckets_stats(const struct banyan_buckets *b,
                                    struct banyan_buckets_stats *out);

/* Writes what banyan_topo predict wants to know of a training step, as JSON: each tensor's
 * name, type, elements and bytes, codec, and when its gradient is complete ("ready_s", medians
 * over the steps that cfg.profile keeps), "forward_s" to the first of these and "backward_s"
 * from there to the last, "compute_s" all of the step's own time, "step_s" its time by the
 * clock. Times are this rank's own, without what it spent in buckets: a job of one rank is
 * enough, and a job of several says the same. The first step is not counted. training/README.md
 * has every field. Local, between steps; overwrites path. 0; -EINVAL: cfg.profile is 0, or
 * fewer than two steps have ended; -EBUSY within a step; -ESYSTEM: the file cannot be written;
 * -ENOMEM. */
BANYAN_API int banyan_buckets_profile(const struct banyan_buckets *b, const char *path);

/* Saves residuals, what codecs keep, each tensor's codec, the order of the buckets, accumulate
 * and counters, between steps; each rank its own. _bytes: what _save needs now. Loaded into
 * buckets of the same tensors, also with another bucket_bytes, a run goes on bit-identically as
 * far as "Bits" above promises. All ranks load alike, between steps. -EINVAL: too small, or no
 * such state: nothing is changed then; -EBUSY within a step. */
BANYAN_API size_t banyan_buckets_bytes(const struct banyan_buckets *b);
BANYAN_API int banyan_buckets_save(const struct banyan_buckets *b, void *buf, size_t cap);
BANYAN_API int banyan_buckets_load(struct banyan_buckets *b, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Rows: what ranks that share a graph (or an embedding table) send each other in each step.
 * Every rank owns a matrix of rows of `width` numbers; it sends some of them to each peer,
 * always the same ones, and gets some from each. Features go forward by one object; gradients
 * of what came go back by another, with the lists swapped. DENSE     all rows, each time.
 *   CACHED    a row again only where it changed: |x - sent| > threshold * |x| in the largest of
 *             its elements, sent being what the receiver has; else the receiver takes what it
 *             has (Zhang, Jiang, You: "CDFGNN: a Systematic Design of Cache-based Distributed
 *             Full-Batch Graph Neural Network Training with Communication Reduction", arXiv
 *             2408.00232). The threshold adapts: times `grow` after a step whose loss was lower
 *             than the one before, times `shrink` after one that was not, between `least` and
 *             `most`. The rule is a reconstruction from the abstract.
 *   VARIABLE  of each row 1/c of the elements, chosen by the seed, the step and the row at both
 *             ends, so that only values travel; the others are 0. The ratio falls during
 *             training: c = max(1, first - slope * (first - 1) * step / steps) (Cervino, Turja,
 *             Mostafa, Himayat, Ribeiro: "Distributed Training of Large Graph Neural Networks
 *             with Variable Communication Rates", arXiv 2406.17611, section III). Two objects
 *             of one seed whose lists are swapped choose the same elements, so that gradients
 *             come back of exactly what was sent.
 * With bits 8 the values of a row travel as int8 of a scale of its own, max |x| / 127, rounded
 * to nearest. Besides, 16 bytes a pair of ranks and step: how long, and which step.
 */
struct banyan_rows; /* opaque */
enum banyan_rows_mode { BANYAN_ROWS_DENSE, BANYAN_ROWS_CACHED, BANYAN_ROWS_VARIABLE };
/* The same on all ranks, or -EMISMATCH. */
struct banyan_rows_config {
    size_t size; /* sizeof of the caller */
    enum banyan_rows_mode mode;
    int bits;            /* of a value: 32, the default, or 8 */
    double threshold;    /* cached, at the beginning: 0.05 */
    double least, most;  /* cached: 0.005, 0.1 */
    double grow, shrink; /* cached: 1.05, 0.7 */
    double first;        /* variable: the ratio of the first step, at least 1: 32 */
    double slope;   /* variable: 5, full rate after a fifth of the steps; 1: at their end */
    uint64_t steps; /* variable: of the training: 100 */
    uint64_t seed;  /* variable: 1 */
};
BANYAN_API void banyan_rows_config_default(struct banyan_rows_config *cfg);
/* What is sent between all ranks; each rank's own, copied. Rows to rank p stand behind those to
 * the ranks before it; so do those that come. A rank may send to itself. */
struct banyan_rows_plan {
    const char *name;          /* for errors: "layer1" */
    size_t width;              /* numbers a row; the same on all ranks */
    size_t rows;               /* of this rank's matrix */
    const size_t *send_counts; /* [ranks] rows to each */
    const uint32_t *send_rows; /* [sum of send_counts] which, below rows */
    const size_t *recv_counts; /* [ranks] rows from each */
};
/* Collective. Borrows comm. Returns 0, -EINVAL, -ENOMEM, -EMISMATCH: settings or widths differ,
 * or a rank expects other counts than another sends (which, and how many). */
BANYAN_API int banyan_rows_create(struct banyan_rows **out, struct banyan_comm *comm,
                                  const struct banyan_rows_plan *plan,
                                  const struct banyan_rows_config *cfg);
BANYAN_API void banyan_rows_free(struct banyan_rows *r); /* takes NULL */
/* Collective. in [rows * width]: this rank's matrix; out [sum of recv_counts * width]: what the
 * others have, in order of their ranks and lists. Returns 0; -EINVAL, on all ranks: a value
 * that would be sent is not finite (name, rank; nothing has changed); -EMISMATCH, on all ranks:
 * ranks are at different steps; or what the communicator fails with. Lengths that were not
 * among the latest few make a plan, and so allocate: cached ones mostly do. */
BANYAN_API int banyan_rows_exchange(struct banyan_rows *r, const float *in, float *out);
/* After a step: its loss. Cached: adapts the threshold, which is a sender's own affair; else
 * nothing. -EINVAL: not finite. */
BANYAN_API int banyan_rows_adapt(struct banyan_rows *r, double loss);
struct banyan_rows_stats {
    size_t size;          /* sizeof of the caller; set before the call */
    uint64_t steps;       /* exchanges; kept by saving, as all that follows */
    uint64_t rows;        /* that this rank had to send */
    uint64_t sent;        /* that it sent */
    uint64_t bytes;       /* that it sent to other ranks, lengths included */
    uint64_t dense_bytes; /* of all rows as f32 */
    double threshold;     /* cached: of the next step */
    double ratio;         /* variable: of the next step */
};
BANYAN_API int banyan_rows_stats(const struct banyan_rows *r, struct banyan_rows_stats *out);
/* State: each rank saves and loads its own. */
BANYAN_API size_t banyan_rows_bytes(const struct banyan_rows *r);
BANYAN_API int banyan_rows_save(const struct banyan_rows *r, void *buf, size_t cap);
BANYAN_API int banyan_rows_load(struct banyan_rows *r, const void *buf, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
