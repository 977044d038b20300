/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the files of LGC: lgc_config.c checks settings and gives each tensor its part,
 * lgc_wire.c counts what collectives send, lgc_select.c finds the largest values,
 * lgc_exchange.c has one function for each way gradients travel, lgc.c is the step, lgc_state.c
 * what survives it. */
#ifndef BNY_METHODS_LGC_LGC_H
#define BNY_METHODS_LGC_LGC_H

#include "banyan/methods.h"
#include "methods/lgc/lgc_net.h"
#include "training/object.h"
#include "training/tensors.h"

enum bny_lgc_role { BNY_LGC_PART_DENSE, BNY_LGC_PART_TOPK, BNY_LGC_PART_CODED };

/* A tensor's part in it. Kept elements are numbered through all tensors, coded ones first. */
struct bny_lgc_part {
    enum bny_lgc_role role;
    size_t k, at;    /* kept elements, from number at */
    size_t count;    /* all elements */
    float *grad;     /* the caller's */
    float *residual; /* NULL: dense */
};

#define BNY_LGC_KINDS (BANYAN_LGC_CHECKS + 1) /* of bytes */

/* The saved values that are no arrays. It has no padding. */
struct bny_lgc_vars {
    uint64_t id;         /* of tensors, settings, rank and ranks: a state fits, or not */
    uint64_t step;       /* done */
    uint64_t coded;      /* of them */
    uint64_t rng;        /* root: choices of training */
    uint64_t updates;    /* root: of the optimiser */
    uint64_t sent_dense; /* all below, and this: struct banyan_lgc_stats */
    uint64_t sent[BNY_LGC_KINDS], wire[BNY_LGC_KINDS];
    double correlation, loss, error, error_largest;
    double sum; /* of correlations measured since the last decision, and their number */
    uint64_t measured;
    uint32_t open, shipped;
    uint32_t diverged; /* root: training did, for good */
    uint32_t broken;   /* the same, once all ranks know */
};

enum bny_lgc_work { BNY_LGC_ENCODING, BNY_LGC_DECODING, BNY_LGC_TRAINING, BNY_LGC_WORKS };

#define BNY_LGC_KIND 0x2043474cu /* "LGC " */

struct banyan_lgc {
    struct bny_object object;
    struct banyan_comm *comm;
    int rank, n;
    int server; /* instance; one rank alone is a ring */
    struct banyan_lgc_config cfg;
    struct bny_tensors tensors;
    struct bny_lgc_part *part;   /* [tensors.n] */
    size_t ncoded, nkept;        /* kept elements that are encoded, that are kept */
    size_t mu;                   /* ncoded, up to a multiple of 16 */
    size_t ninnovation, nsample; /* of a rank; indices that the gate looks at */
    float *residuals;            /* of all parts, in order */
    size_t nresiduals;
    struct bny_lgc_vars v;
    const struct bny_lgc_net_ops *ops;
    struct bny_lgc_net *net;
    struct banyan_opts opts;

    /* Buffers of a step. */
    uint32_t histogram[2048];  /* of select */
    uint32_t *index;           /* [nkept] own largest values */
    uint32_t *payload;         /* [2 nkept] plain top-k: indices, then values */
    uint32_t *payloads;        /* [n][2 nkept] */
    uint32_t *frame;           /* [1 + ncoded] leader's scale and indices */
    float *x;                  /* [mu] values in the frame, over scale */
    float *xs;                 /* root: [n][mu] */
    float *innovation;         /* root of a server: [n][mu] */
    float *mean;               /* [mu + 1] result over scale; correlation */
    float *y;                  /* root: [mu] */
    float *code;               /* [ncode] */
    uint32_t *news, *all_news; /* innovations: positions, then values; root: all's */
    float *sample;             /* [nsample + 1] */
    uint32_t *sample_index;    /* [nsample] */
    size_t *counts;            /* [n] of a gatherv */
    float scale;               /* leader's root mean square, or 1 */
    uint64_t work_ns[BNY_LGC_WORKS], works[BNY_LGC_WORKS];
};

/* lgc_config.c */
/* The caller's settings over the defaults, checked alone. 0, -BANYAN_EINVAL. */
int bny_lgc_config_take(struct banyan_lgc_config *out, const struct banyan_lgc_config *cfg,
                        int n);
/* Roles, sizes and residuals' places, from tensors and settings. 0, -BANYAN_EINVAL, _ENOMEM. */
int bny_lgc_parts(struct banyan_lgc *lgc);
/* Collective. 0, or -BANYAN_EMISMATCH: the first setting that differs from rank 0's. */
int bny_lgc_config_agree(struct banyan_lgc *lgc);

/* lgc_select.c */
/* The indices of the k largest |x[n]|, ascending; of equal ones the first. histogram: [2048]
 * to work with. k <= n <= UINT32_MAX. NaN counts as largest. */
void bny_lgc_select(const float *x, size_t n, size_t k, uint32_t *index, uint32_t *histogram);

/* lgc_wire.c: the collectives of banyan.h, counted by kind. */
int bny_lgc_allreduce(struct banyan_lgc *lgc, enum banyan_lgc_kind kind, void *buf,
                      size_t count, enum banyan_dtype dtype, enum banyan_op_kind op);
int bny_lgc_broadcast(struct banyan_lgc *lgc, enum banyan_lgc_kind kind, void *buf,
                      size_t count, enum banyan_dtype dtype, int root);
/* count indices, then as many values, of every rank to all: [n][2 count]. */
int bny_lgc_exchange_pairs(struct banyan_lgc *lgc, const uint32_t *send, uint32_t *recv,
                           size_t count);
/* To cfg.root: lgc->counts[r] elements of 4 bytes from rank r. */
int bny_lgc_gather(struct banyan_lgc *lgc, enum banyan_lgc_kind kind, const void *send,
                   void *recv);

/* lgc_exchange.c: parts of a step. All are collective; gradients with their residuals come in,
 * and the mean of what was sent goes out only in bny_lgc_commit. */
enum bny_lgc_way { BNY_LGC_WAY_DENSE, BNY_LGC_WAY_TRAIN, BNY_LGC_WAY_PLAIN, BNY_LGC_WAY_CODED };
int bny_lgc_leader(const struct banyan_lgc *lgc);
/* Of parts in [first, end) of the kept numbers: which values are this rank's largest. */
void bny_lgc_choose(struct banyan_lgc *lgc, size_t first, size_t end);
int bny_lgc_send_dense(struct banyan_lgc *lgc, int all);
int bny_lgc_send_plain(struct banyan_lgc *lgc, size_t first, size_t end);
int bny_lgc_send_frame(struct banyan_lgc *lgc);
int bny_lgc_send_values(struct banyan_lgc *lgc);
int bny_lgc_send_codes(struct banyan_lgc *lgc);
int bny_lgc_ship(struct banyan_lgc *lgc);
/* The correlation, by all ranks' values at (some of) the leader's indices; framed: they are
 * known, and x is filled. */
int bny_lgc_measure(struct banyan_lgc *lgc, int framed);
void bny_lgc_commit(struct banyan_lgc *lgc, enum bny_lgc_way way);
/* Root: one step of training on xs. */
int bny_lgc_train(struct banyan_lgc *lgc);
/* Positions of the ninnovation largest of x, and these values, to news. */
void bny_lgc_innovate(struct banyan_lgc *lgc, const float *x, uint32_t *news);
/* A failure of this rank alone: the others are told, too. Returns rc. */
int bny_lgc_give_up(struct banyan_lgc *lgc, int rc);

#endif
