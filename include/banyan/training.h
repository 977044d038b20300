/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan's training layer: building blocks of a data-parallel training loop, on top of the
 * collectives of banyan.h. Compiles alone as C11 and as C++17. A library of its own on top of
 * libbanyan: link with -lbanyan-training -lbanyan, or by pkg-config banyan-training.
 *
 * Conventions are banyan.h's: errors are negative BANYAN_E* codes with a sentence in
 * banyan_last_error() that names tensor and rank, _free takes NULL, one thread at a time per
 * object and communicator. Besides:
 *   All ranks  make the same objects of the same tensors in the same order, and make the same
 *              calls. Differences between ranks are detected if possible and return -EMISMATCH.
 *   Decisions  (levels, stops, phases) are functions of values that all ranks agreed on, so
 *              that all ranks decide alike.
 *   Handles    NULL, and an object that was freed, return -EINVAL, as in banyan.h (0 and NULL
 *              from functions that return bytes or pointers). _free returns 0, also for
 *              NULL, or -EINVAL.
 *   Groups     inside banyan_group_start and _end, and in user operations, all communicating
 *              calls return -EBUSY: their own operations would be delayed.
 *   State      the state between steps can be saved to the caller's memory and loaded again; a
 *              run then continues bit-identically. The format has a version and a checksum.
 *   Errors     after a failed collective step the object can be loaded from a saved state, if
 *              the communicator is healthy, or freed; nothing else.
 *   Steady     a step allocates nothing once every kind of step has run. */
#ifndef BANYAN_TRAINING_H
#define BANYAN_TRAINING_H

#include <banyan/banyan.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One tensor of a model. Arrays of these describe a model, in an order that all ranks share;
 * functions copy what they need, except the memory of grad. It never gets other members. */
struct banyan_tensor {
    const char *name;        /* unique in the model: rules and errors use it */
    enum banyan_dtype dtype; /* F32; buckets: any floating type */
    int ndim;                /* 0: a scalar; at most 8 */
    const int64_t *shape;    /* [ndim], each > 0 */
    void *grad; /* its gradient, row-major, packed; borrowed for the life of the object */
};

/* ---------------------------------------------------------------------------------------------
 * Accordion: little compression while a tensor's gradients change fast, much while they do not
 * (Agarwal, Wang, Venkataraman, Papailiopoulos: "Adaptive Gradient Communication via Critical
 * Learning Regime Identification", MLSys 2021, arXiv 2010.16248).
 *
 * Every `interval` steps, for each tensor: D = the norm of the sum of rank 0's own gradients
 * over the last `window` steps. The tensor is critical, and gets little compression, if
 * |D_before - D| >= eta * D_before, or D_before is 0; else it gets much. All tensors get little
 * until the first decision, and from a drop of the learning rate until the next decision. Rank
 * 0 decides for all. The caller keeps the residuals: banyan_buckets_set_codec preserves them.
 *
 * With `accumulate` > 1 the batch adapts instead, by the norm over the whole model: one
 * micro-step per update while it is critical, `accumulate` once it is not, and never fewer
 * again (the paper, section 4.3). The caller scales the learning rate by
 * banyan_accordion_accumulate(). */
struct banyan_accordion; /* opaque */
struct banyan_accordion_config {
    size_t size;  /* sizeof of the caller */
    double eta;   /* 0.5 */
    int interval; /* steps between decisions: 100; the paper: 10 epochs */
    int window;   /* last steps of an interval whose gradients are summed; 0: all */
    double
        rate_drop; /* 0.7: a rate below this fraction of that at the last decision is a drop */
    size_t min_count;          /* smaller tensors keep little compression: 1024 */
    const char *little, *much; /* codecs: "none" and "topk:delta=0.01" */
    int accumulate; /* 1: codecs adapt; more: the batch does, and little and much are unused */
};
#define BANYAN_ACCORDION_CONFIG_INIT                                                           \
    {                                                                                          \
        sizeof(struct banyan_accordion_config), 0.5, 100, 0, 0.7, 1024, "none",                \
            "topk:delta=0.01", 1                                                               \
    }
/* Collective. Borrows comm; tensors: F32. cfg NULL: the default. Returns 0, -EINVAL, -ENOMEM,
 * -EMISMATCH (tensors differ between ranks). */
BANYAN_API int banyan_accordion_create(struct banyan_accordion **out, struct banyan_comm *comm,
                                       const struct banyan_tensor *tensors, size_t n,
                                       const struct banyan_accordion_config *cfg);
/* Takes NULL. */
BANYAN_API int banyan_accordion_free(struct banyan_accordion *a);
/* Call it once per step and tensor, when this rank's gradient is complete and not yet reduced.
 * -EINVAL: no such tensor. */
BANYAN_API int banyan_accordion_observe(struct banyan_accordion *a, size_t tensor);
/* Ends a step (an update) with learning rate `rate`; collective when an interval ends. Returns
 * the number of tensors whose level changed (in batch mode 1 if accumulate rose), or -EINVAL (a
 * gradient that is not finite: tensor and rank; a rate that is not a positive number),
 * -EMISMATCH (a rank has another step count, rate or settings). */
BANYAN_API int banyan_accordion_step(struct banyan_accordion *a, double rate);
/* 1 while the tensor gets much compression, else 0; -EINVAL. */
BANYAN_API int banyan_accordion_level(const struct banyan_accordion *a, size_t tensor);
/* The codec of that level, borrowed from the object; NULL: no such tensor. */
BANYAN_API const char *banyan_accordion_codec(const struct banyan_accordion *a, size_t tensor);
/* Current micro-steps per update: 1, or cfg.accumulate. */
BANYAN_API int banyan_accordion_accumulate(const struct banyan_accordion *a);
/* State: each rank saves and loads its own. -EINVAL: cap too small; not such a state, or for
 * other tensors (nothing changes then). */
BANYAN_API size_t banyan_accordion_bytes(const struct banyan_accordion *a);
BANYAN_API int banyan_accordion_save(const struct banyan_accordion *a, void *buf, size_t cap);
BANYAN_API int banyan_accordion_load(struct banyan_accordion *a, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Outer: local steps, and now and then an average of what they changed (local SGD: Stich, ICLR
 * 2019, arXiv 1805.09767; DiLoCo: Douillard et al., arXiv 2311.08105; Streaming DiLoCo:
 * Douillard et al., arXiv 2501.18512; SparseLoCo: Sarfi et al., arXiv 2508.15706).
 *
 * The model is divided into fragments of consecutive tensors. Of one of them, x are a rank's
 * parameters, theta those that all ranks agree on, m is a momentum, C a codec and e what C
 * lost so far. Every `period` steps, one fragment after another, an average starts:
 *
 *     c = C(x - theta + residual * e)
 *     G = mean of the ranks' c
 *
 * It is used `delay` steps later, which hide the transfer (the momentum is Nesterov's):
 *
 *     m = momentum * m + G
 *     theta += rate * (G + momentum * m)
 *     x += merge * (theta - x as it was when the average started)
 *
 *     struct banyan_outer_config cfg = BANYAN_OUTER_CONFIG_INIT;
 *
 *     cfg.rules = "*:>=4096=topk:delta=0.03";
 *     banyan_outer_create(&o, comm, parameters, n, &cfg);
 *     for (int step = 0; step < steps; step++) {
 *         train_on(next_batch());
 *         banyan_outer_step(o, loss, 1);
 *     }
 *     banyan_outer_finish(o);
 *
 * Methods by settings (momentum, rate, fragments, delay): the defaults are Streaming DiLoCo's;
 * DiLoCo (.9, .7, 1, 0); local SGD (0, 1, 1, 0); CoCoD-SGD (Shen et al., IJCAI 2019), whose
 * averages are used one period later (0, 1, 1, period); SparseLoCo (0, 1, 1, 0) with residual
 * .95 and topk:delta=0.03. MuLoCo is DiLoCo with Muon as the ranks' own optimiser. */
struct banyan_outer; /* opaque */
struct banyan_outer_config {
    size_t size;       /* sizeof of the caller */
    int period;        /* steps between the averages of a fragment: 30 */
    int fragments;     /* at most: 4; fewer if there are fewer tensors */
    int delay;         /* steps from the start of an average to its use: 1; 0: the step waits */
    int warm_up;       /* initial steps in which all is averaged, by momentum 0, rate 1: 0 */
    double momentum;   /* of the agreed parameters, 0 to below 1: .9 */
    double rate;       /* their learning rate: .7 */
    double merge;      /* above 0 to 1: 1. Less keeps some of a rank's own parameters */
    double residual;   /* part of what a codec lost that the next average gets, 0 to 1: 1 */
    const char *codec; /* for tensors without a rule; NULL: none */
    const char *rules; /* by name and size, as of buckets; NULL: none */
    int adaptive;  /* 1: the period is ceil(period * sqrt(loss / first loss)) of the steps' mean
                      loss, at most period: AdaComm (Wang and Joshi, MLSys 2019, arXiv
                      1810.08313, eq. 17) at each average, without its rule for a loss that
                      stays. One fragment only: 0 */
    int weighted;  /* 1: the mean is weighted by banyan_outer_step's weights; else by none: 0 */
    uint64_t seed; /* for codecs that choose at random: 1 */
};
#define BANYAN_OUTER_CONFIG_INIT                                                               \
    {                                                                                          \
        sizeof(struct banyan_outer_config), 30, 4, 1, 0, .9, .7, 1, 1, NULL, NULL, 0, 0, 1     \
    }
/* Collective. tensors: F32; their grad points to the parameters, which are set to rank 0's.
 * Settings are the same on all ranks. Borrows comm. Returns 0, -EINVAL, -ENOMEM, -ENOTSUP (a
 * codec and a tensor), -EMISMATCH. */
BANYAN_API int banyan_outer_create(struct banyan_outer **out, struct banyan_comm *comm,
                                   const struct banyan_tensor *tensors, size_t n,
                                   const struct banyan_outer_config *cfg);
/* Takes NULL. Do not call it while others wait for this rank's average: finish first. */
BANYAN_API int banyan_outer_free(struct banyan_outer *o);
/* Call it after each local step. loss: of that step, used with adaptive. weight: of it, for
 * example its tokens, used with weighted: a rank whose steps have weight 0 only receives, and
 * where no rank has any weight, all of the change waits for the next average. Collective when
 * a fragment's average starts or is due. Returns 1 if one was merged into the parameters, else
 * 0; -EINVAL: a parameter is not finite (tensor and rank, at all ranks): the change stays in
 * the parameters for the next average, but what codecs still had of earlier ones is lost; a
 * mean loss that is not finite; a weight that is no number from 0 on (at that rank alone,
 * which has done nothing: call again); the communicator's failure. */
BANYAN_API int banyan_outer_step(struct banyan_outer *o, double loss, double weight);
/* Collective. Ends averages in flight, then averages once more without codec and weights: all
 * ranks hold the same bits. */
BANYAN_API int banyan_outer_finish(struct banyan_outer *o);
/* Steps between averages; varies if adaptive. */
BANYAN_API int banyan_outer_period(const struct banyan_outer *o);
/* Moves the object to another communicator, on which other ranks may call banyan_outer_create:
 * after banyan_comm_shrink or banyan_comm_grow. The former one may be destroyed before.
 * Collective. What is agreed becomes that of the rank which merged the latest average, and new
 * ranks start from it; the others keep what they have learnt since, and their residuals. An
 * average that failed, or is in flight, counts as not started. Returns as banyan_outer_create,
 * the same on all ranks; after an error call it again, with another communicator, or free o. */
BANYAN_API int banyan_outer_move(struct banyan_outer *o, struct banyan_comm *comm);
/* State: each rank saves and loads its own, of the same step; the caller saves the parameters.
 * -EBUSY while an average is in flight: banyan_outer_settle (collective) ends it first. */
BANYAN_API int banyan_outer_settle(struct banyan_outer *o);
BANYAN_API size_t banyan_outer_bytes(const struct banyan_outer *o);
BANYAN_API int banyan_outer_save(const struct banyan_outer *o, void *buf, size_t cap);
BANYAN_API int banyan_outer_load(struct banyan_outer *o, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Buckets: gradients averaged over all ranks while backward still runs (as PyTorch's
 * DistributedDataParallel, Li et al., VLDB 2020, section 3.2). A training loop:
 *
 *     struct banyan_buckets_config cfg = BANYAN_BUCKETS_CONFIG_INIT;
 *     struct banyan_buckets *b;
 *
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
 * reduced in place, in pieces if they are very large; a tensor with a codec has its own
 * operation and codec state. A bucket starts when all of it is ready and all earlier buckets
 * have started, so ranks start them in the same order whatever the order of their gradients. In
 * the first step buckets are cut in reverse order of registration, later in the order in which
 * rank 0's tensors became ready. A steady step makes no request and allocates nothing.
 *   Memory   grad stays in place for the life of the object. From _ready to the return of _wait
 *            it belongs to the library: do not read or write it.
 *   Order    Between two calls of _wait every rank marks every tensor once, in any order. Other
 *            operations on comm belong between _wait and the next _ready: all ranks call
 *            operations of one communicator in the same order. Give buckets their own
 *            communicator (banyan_comm_dup) to avoid this.
 *   Threads  one at a time. Reductions progress in the communicator's progress thread if it has
 *            one (banyan_config.progress_thread), and in _ready, _progress and _wait.
 *   Bits     a tensor with a codec: the same however buckets are cut. One without: the same
 *            with deterministic=1; else the schedule for its bucket's size determines the
 *            association of additions, and bits may differ with bucket_bytes (not between
 *            ranks).
 *   Errors   _wait of that step reports an error of one rank (a tensor marked twice, in part,
 *            never, with NaN) on all ranks, with the same sentence, which names tensor and
 *            rank. No rank hangs: missing parts count as zeros. The gradients of that step are
 *            undefined, and the object continues with the next one. After an error of the
 *            communicator (a rank lost, a deadline passed) every call returns that. */
struct banyan_buckets; /* opaque */

/* Handling of a tensor that a rank did not mark in a step. */
enum banyan_unused {
    BANYAN_UNUSED_ERROR, /* _wait fails on all ranks and names it */
    BANYAN_UNUSED_ZERO   /* this rank's part is zero, also if no other rank marked it */
};

/* Rules: codec and schedule of each tensor, as text.
 *     rules  = rule { ";" rule }
 *     rule   = pattern { ":" test } "=" [ codec ] [ "@" schedule ]
 *     test   = ( "<" | "<=" | ">" | ">=" ) elements
 * pattern: fnmatch(3) on the tensor's name, without ":", "=" and ";" (write "?" for them).
 * elements: of the tensor, decimal. codec: as banyan_opts.codec; none, or nothing: without.
 * schedule: as banyan_opts.schedule. Blanks around ";" and rules are ignored. The first rule
 * that matches a tensor applies; if none does, banyan_buckets_config.codec.
 *     "*.bias=none; fc*.weight:>=65536=topk:delta=0.01; *=int8@ring"
 * Lossy codecs take f32 only, and below some ten thousand elements a separate operation costs
 * more than a codec gains: leave small tensors to the buckets. */

struct banyan_buckets_config {
    size_t size; /* sizeof(struct banyan_buckets_config) of the caller */
    size_t
        bucket_bytes;   /* tensors are fused up to this size; default 1 MiB: 8 ms at 1 Gbit/s,
                           where a start costs 0.1 ms; finer buckets would hide no more. Tensors
                           over 8 times this are reduced in pieces of it (at least 32 KiB) */
    size_t first_bytes; /* the same for the first bucket, so that the network starts early;
                           default 128 KiB */
    banyan_op op;       /* BANYAN_AVG (default) or BANYAN_SUM */
    const char *codec;  /* for tensors without a rule; default NULL: none */
    const char *rules;  /* above; default NULL: no rules */
    int accumulate;     /* micro-steps per step; default 1 */
    enum banyan_unused unused; /* default BANYAN_UNUSED_ERROR */
    int deterministic; /* for sums without a codec, as banyan_opts.deterministic; default -1 */
    uint64_t seed;     /* for codecs that choose at random; the same on all ranks; default 1 */
    int check_nan;     /* 1: _ready checks for NaN and infinities, a pass over each
                          gradient; a tensor that has any counts as zeros, and _wait names
                          it. 0 (default): they are summed; linear codecs fail the
                          communicator for them */
    int norms;    /* 1: _ready computes the norm of each local gradient, in the same pass */
    int progress; /* 0: _ready does not progress operations, for communicators with a progress
                     thread; default 1 */
    double timeout_s; /* deadline of each operation; default -1: the communicator's */
    int profile; /* number of latest steps whose times are kept for banyan_buckets_profile(), at
                    most 10000; default 0: none. May differ between ranks */
};
#define BANYAN_BUCKETS_CONFIG_INIT                                                             \
    {                                                                                          \
        sizeof(struct banyan_buckets_config), 1 << 20, 128 << 10, BANYAN_AVG, NULL, NULL, 1,   \
            BANYAN_UNUSED_ERROR, -1, 1, 0, 0, 1, -1.0, 0                                       \
    }

/* Collective: compares tensors and settings between ranks. Copies names and shapes and borrows
 * each grad. tensors: F32, F64, F16, BF16. cfg may be NULL. Borrows comm until freed. 0;
 * -EINVAL: settings, rules (with the position of the error), tensors; -ENOTSUP: a codec or
 * schedule does not support a tensor, which is named; -EMISMATCH: names the first tensor that
 * differs, or that settings do, and the rank; -ENOMEM; or the communicator's. */
BANYAN_API int banyan_buckets_create(struct banyan_buckets **out, struct banyan_comm *comm,
                                     const struct banyan_tensor *tensors, size_t n,
                                     const struct banyan_buckets_config *cfg);
/* Takes NULL. Call it before comm is destroyed. Within a step it waits for started operations,
 * so all ranks must call it alike, or after their communicator has failed. */
BANYAN_API int banyan_buckets_free(struct banyan_buckets *b);

/* The gradient of tensors[tensor] is complete on this rank and may be sent from now on. 0;
 * -EINVAL: no such tensor, or it was marked before in this micro-step (nothing is sent again,
 * and _wait reports it on all ranks); -ENOMEM: the object has failed, and the other ranks get
 * -EABORTED with this rank's sentence; or the communicator's failure, with the tensor in
 * flight. */
BANYAN_API int banyan_buckets_ready(struct banyan_buckets *b, size_t tensor);
/* The same for its elements [at, at + count). Parts come in any order and together make the
 * tensor. -EINVAL also: beyond its end, or some were marked before. */
BANYAN_API int banyan_buckets_ready_part(struct banyan_buckets *b, size_t tensor, size_t at,
                                         size_t count);
/* Progresses operations without waiting: for long computations between two _ready, without a
 * progress thread. 0 or the communicator's failure. */
BANYAN_API int banyan_buckets_progress(struct banyan_buckets *b);

/* Ends the micro-step. In the last one of a step: starts the rest, waits, and all gradients are
 * reduced in place, bit-identical on all ranks. In the others: only checks. 0; -EINVAL, on all
 * ranks: a tensor marked twice, in part or never, with NaN; -EMISMATCH: ranks have different
 * codecs for a tensor, or different numbers of micro-steps; or the communicator's failure, with
 * rank and tensor. */
BANYAN_API int banyan_buckets_wait(struct banyan_buckets *b);

/* Gradient accumulation: a step has k micro-steps, each ended by _wait; the caller adds up
 * gradients in grad, which are reduced in the last one. A tensor is unused if no micro-step
 * marked it. Call it between steps, on all ranks alike. 0, -EINVAL (k < 1), -EBUSY within a
 * step. */
BANYAN_API int banyan_buckets_set_accumulate(struct banyan_buckets *b, int k);
/* Number of micro-steps that have ended in the current step: 0 after the _wait that reduced. */
BANYAN_API int banyan_buckets_micro(const struct banyan_buckets *b);

/* Sets another codec, or other parameters, for a tensor from the next step on: for controllers.
 * On all ranks alike, between steps. codec: as banyan_opts.codec; NULL: none. Residuals stay:
 * the next step adds them, with any codec; without one it sends all of them. 0; -EINVAL,
 * -ENOTSUP: the tensor keeps its codec; -EBUSY within a step; -ENOMEM. */
BANYAN_API int banyan_buckets_set_codec(struct banyan_buckets *b, size_t tensor,
                                        const char *codec);
/* The tensor's codec: "none" or the text given; valid until changed. NULL: no such tensor. */
BANYAN_API const char *banyan_buckets_codec(const struct banyan_buckets *b, size_t tensor);
/* The next step multiplies all residuals by factor, as banyan_codec_state_scale: old over new
 * learning rate. Between steps. 0, -EINVAL, -EBUSY. */
BANYAN_API int banyan_buckets_scale_residuals(struct banyan_buckets *b, double factor);
/* The residual of a tensor, f32 [its elements], until the next step; NULL: none, as it has no
 * codec. */
BANYAN_API const float *banyan_buckets_residual(const struct banyan_buckets *b, size_t tensor);

/* The cost of a tensor in the latest step. */
struct banyan_buckets_tensor_stats {
    size_t size; /* sizeof of the caller; set before the call */
    double norm; /* L2 of this rank's gradient as marked; 0 without cfg.norms */
    uint64_t
        wire_bytes;   /* payload sent by this rank; in a bucket: the tensor's share by length */
    double hidden_s;  /* from the start of its operation (or pieces) to the end: time in which
                         the caller was elsewhere, computing */
    double exposed_s; /* the rest: while the caller was in _ready, _progress or _wait */
    uint64_t bucket;  /* index of its bucket, in order of starts; of its first piece */
};
/* Between steps. 0, -EINVAL. */
BANYAN_API int banyan_buckets_tensor_stats(const struct banyan_buckets *b, size_t tensor,
                                           struct banyan_buckets_tensor_stats *out);

/* Totals of all tensors. */
struct banyan_buckets_stats {
    size_t size;             /* sizeof of the caller; set before the call */
    uint64_t steps;          /* reducing steps since creation (including a loaded state's) */
    uint64_t buckets;        /* operations per step, without the verdict on errors */
    uint64_t wire_bytes;     /* payload this rank sent in the latest step, verdict included */
    uint64_t wire_bytes_sum; /* and in all steps */
    double hidden_s;  /* latest step: time with operations in flight and the caller elsewhere,
                         computing */
    double exposed_s; /* latest step: time with operations in flight and the caller in _ready,
                         _progress or _wait */
    double hidden_s_sum, exposed_s_sum;
};
BANYAN_API int banyan_buckets_stats(const struct banyan_buckets *b,
                                    struct banyan_buckets_stats *out);

/* Writes the input of banyan_topo predict for a training step, as JSON: each tensor's name,
 * type, elements and bytes, codec, and the time when its gradient is complete ("ready_s",
 * medians over the steps that cfg.profile keeps), "forward_s" to the first of these and
 * "backward_s" from there to the last, "compute_s" all of the step's own time, "step_s" its
 * elapsed time. Times are this rank's own, without time spent in buckets: a job of one rank
 * suffices, and a job of several gives the same. The first step is not counted.
 * training/README.md describes every field. Local, between steps; overwrites path. 0; -EINVAL:
 * cfg.profile is 0, or fewer than two steps have ended; -EBUSY within a step; -ESYSTEM: the
 * file cannot be written; -ENOMEM. */
BANYAN_API int banyan_buckets_profile(const struct banyan_buckets *b, const char *path);

/* Saves residuals, codec states, each tensor's codec, the order of the buckets, accumulate and
 * counters, between steps; each rank its own. _bytes: the size that _save needs now. After
 * loading into buckets of the same tensors, also with another bucket_bytes, a run continues
 * bit-identically within the promises of "Bits" above. All ranks load alike, between steps.
 * -EINVAL: too small, or not such a state: nothing changes then; -EBUSY within a step. */
BANYAN_API size_t banyan_buckets_bytes(const struct banyan_buckets *b);
BANYAN_API int banyan_buckets_save(const struct banyan_buckets *b, void *buf, size_t cap);
BANYAN_API int banyan_buckets_load(struct banyan_buckets *b, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Rows: the exchange of each step between ranks that share a graph (or an embedding table).
 * Every rank owns a matrix of rows of `width` numbers; it sends some of them to each peer,
 * always the same ones, and receives some from each. One object carries features forward;
 * another, with the lists swapped, carries gradients of received rows back.
 *   DENSE     all rows, each time.
 *   CACHED    a row again only if it changed: |x - sent| > threshold * |x| in the largest of
 *             its elements, sent being the receiver's copy; else the receiver uses its copy
 *             (Zhang, Jiang, You: "CDFGNN: a Systematic Design of Cache-based Distributed
 *             Full-Batch Graph Neural Network Training with Communication Reduction", arXiv
 *             2408.00232). The threshold adapts: times `grow` after a step whose loss was lower
 *             than the one before, times `shrink` after one whose was not, between `least` and
 *             `most`. The rule is a reconstruction from the abstract.
 *   VARIABLE  1/c of the elements of each row, chosen by seed, step and row at both ends, so
 *             that only values travel; the others are 0. The ratio falls during training: c =
 *             max(1, first - slope * (first - 1) * step / steps) (Cervino, Turja, Mostafa,
 *             Himayat, Ribeiro: "Distributed Training of Large Graph Neural Networks with
 *             Variable Communication Rates", arXiv 2406.17611, section III). Two objects with
 *             one seed and swapped lists choose the same elements, so that gradients return for
 *             exactly the elements that were sent.
 * With bits 8 the values of a row travel as int8 with the row's scale, max |x| / 127, rounded
 * to nearest. Each pair of ranks and step takes 16 bytes more: length and step. */
struct banyan_rows; /* opaque */
enum banyan_rows_mode { BANYAN_ROWS_DENSE, BANYAN_ROWS_CACHED, BANYAN_ROWS_VARIABLE };
/* The same on all ranks, or -EMISMATCH. */
struct banyan_rows_config {
    size_t size; /* sizeof of the caller */
    enum banyan_rows_mode mode;
    int bits;            /* per value: 32, the default, or 8 */
    double threshold;    /* cached, initial value: 0.05 */
    double least, most;  /* cached: 0.005, 0.1 */
    double grow, shrink; /* cached: 1.05, 0.7 */
    double first;        /* variable: the ratio of the first step, at least 1: 32 */
    double slope;   /* variable: 5, full rate after a fifth of the steps; 1: at their end */
    uint64_t steps; /* variable: length of the training: 100 */
    uint64_t seed;  /* variable: 1 */
};
#define BANYAN_ROWS_CONFIG_INIT                                                                \
    {                                                                                          \
        sizeof(struct banyan_rows_config), BANYAN_ROWS_DENSE, 32, 0.05, 0.005, 0.1, 1.05, 0.7, \
            32.0, 5.0, 100, 1                                                                  \
    }
/* The exchange between all ranks; each rank's own, copied. Rows to rank p follow those to the
 * ranks before it; so do received ones. A rank may send to itself. */
struct banyan_rows_plan {
    size_t size;               /* sizeof of the caller */
    const char *name;          /* for errors: "layer1" */
    size_t width;              /* numbers per row; the same on all ranks */
    size_t rows;               /* of this rank's matrix */
    const size_t *send_counts; /* [ranks] rows to each */
    const uint32_t *send_rows; /* [sum of send_counts] indices, below rows */
    const size_t *recv_counts; /* [ranks] rows from each */
};
#define BANYAN_ROWS_PLAN_INIT                                                                  \
    {                                                                                          \
        sizeof(struct banyan_rows_plan), NULL, 0, 0, NULL, NULL, NULL                          \
    }
/* Collective. Borrows comm. Returns 0, -EINVAL, -ENOMEM, -EMISMATCH: settings or widths differ,
 * or a rank expects other counts than another sends (names them). */
BANYAN_API int banyan_rows_create(struct banyan_rows **out, struct banyan_comm *comm,
                                  const struct banyan_rows_plan *plan,
                                  const struct banyan_rows_config *cfg);
BANYAN_API int banyan_rows_free(struct banyan_rows *r); /* takes NULL */
/* Collective. in [rows * width]: this rank's matrix; out [sum of recv_counts * width]: the
 * received rows, in order of ranks and lists. Returns 0; -EINVAL, on all ranks: a value to be
 * sent is not finite (name, rank; nothing has changed); -EMISMATCH, on all ranks: ranks are at
 * different steps; or the communicator's failure. Lengths that were not among the latest few
 * make a plan, and so allocate: cached ones mostly do. */
BANYAN_API int banyan_rows_exchange(struct banyan_rows *r, const float *in, float *out);
/* After a step: its loss. Cached: adapts this sender's threshold; else nothing. -EINVAL: not
 * finite. */
BANYAN_API int banyan_rows_adapt(struct banyan_rows *r, double loss);
struct banyan_rows_stats {
    size_t size;          /* sizeof of the caller; set before the call */
    uint64_t steps;       /* exchanges; included in a saved state, as all that follows */
    uint64_t rows;        /* rows that this rank had to send */
    uint64_t sent;        /* rows that it sent */
    uint64_t bytes;       /* bytes that it sent to other ranks, lengths included */
    uint64_t dense_bytes; /* for all rows as f32 */
    double threshold;     /* cached: for the next step */
    double ratio;         /* variable: for the next step */
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
