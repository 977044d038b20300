/* SPDX-License-Identifier: BSD-3-Clause */
/* banyan's training layer: what a data-parallel training loop needs on top of the collectives
 * of banyan.h. Compiles alone as C11 and as C++17; part of libbanyan.
 *
 * Conventions are banyan.h's: errors are negative BANYAN_E* codes with a sentence in
 * banyan_last_error() that names tensor and rank, _free takes NULL, one thread at a time per
 * object and communicator. Besides:
 *   All ranks  make the same objects of the same tensors in the same order, and call them
 * alike. What differs between ranks is found where it can be and told with -EMISMATCH.
 *   Decisions  (levels, stops, phases) are functions of values that all ranks agreed on, so
 *              that all ranks decide alike.
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
 * Shared-mask (band-limited) coordinate descent: in each step all ranks send the same small
 * part of the gradient's coordinates, so only values travel, by an ordinary allreduce; the
 * others wait in a memory (Zhang, Li, Zhang et al.: "Federated Learning over Wireless: a
 * Band-limited Coordinate Descent Method", Allerton 2020 and arXiv 2102.07972; Stich,
 * Cordonnier, Jaggi: "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599).
 */
enum banyan_mask_order {
    BANYAN_MASK_RANDOM, /* blocks at random, by the seed and the step's number */
    BANYAN_MASK_BAND,   /* one band after another: every coordinate in turn */
};
struct banyan_shared_mask; /* opaque */
struct banyan_shared_mask_config {
    size_t size;  /* sizeof of the caller */
    double delta; /* part of the blocks that travel in a step, (0, 1]: 0.1 */
    size_t block; /* elements that are chosen together: 64 */
    enum banyan_mask_order order;
    int memory;    /* 1: what does not travel is kept and added; 0: it is lost, and what travels
                    * is divided by delta, so that the mean is right */
    uint64_t seed; /* the same on all ranks */
};
BANYAN_API void banyan_shared_mask_config_default(struct banyan_shared_mask_config *cfg);
/* Collective. Borrows comm; tensors: F32. Returns 0, -EINVAL, -ENOMEM, -EMISMATCH. */
BANYAN_API int banyan_shared_mask_create(struct banyan_shared_mask **out,
                                         struct banyan_comm *comm,
                                         const struct banyan_tensor *tensors, size_t n,
                                         const struct banyan_shared_mask_config *cfg);
/* Takes NULL. */
BANYAN_API void banyan_shared_mask_free(struct banyan_shared_mask *m);
/* Collective. Replaces the gradients by the mean over ranks of this step's coordinates, zero
 * elsewhere; the same bits on all ranks. Returns 0; -EINVAL: a gradient that is not finite
 * (tensor and rank). */
BANYAN_API int banyan_shared_mask_step(struct banyan_shared_mask *m);
/* Multiplies the memory: by the old learning rate over the new one when it changes. */
BANYAN_API int banyan_shared_mask_scale(struct banyan_shared_mask *m, double factor);
/* State: each rank saves and loads its own. */
BANYAN_API size_t banyan_shared_mask_bytes(const struct banyan_shared_mask *m);
BANYAN_API int banyan_shared_mask_save(const struct banyan_shared_mask *m, void *buf,
                                       size_t cap);
BANYAN_API int banyan_shared_mask_load(struct banyan_shared_mask *m, const void *buf,
                                       size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
