/* SPDX-License-Identifier: BSD-3-Clause */
/* Methods of training that send less, or to fewer ranks, than an allreduce of every gradient,
 * as papers describe them: to try, and to compare with. Compiles alone as C11 and as C++17.
 * A library of its own on top of libbanyan: link with -lbanyan-methods -lbanyan, or by
 * pkg-config banyan-methods. The conventions are those of training.h, and so is struct
 * banyan_tensor.
 */
#ifndef BANYAN_METHODS_H
#define BANYAN_METHODS_H

#include <banyan/training.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------------
 * Shared-mask (band-limited) coordinate descent: in each step all ranks send the same small
 * part of the gradient's coordinates, so only values travel, by an ordinary allreduce; a memory
 * keeps the others (Zhang, Li, Zhang et al.: "Federated Learning over Wireless: a Band-limited
 * Coordinate Descent Method", Allerton 2020 and arXiv 2102.07972; Stich, Cordonnier, Jaggi:
 * "Sparsified SGD with Memory", NeurIPS 2018, arXiv 1809.07599). */
enum banyan_mask_order {
    BANYAN_MASK_RANDOM, /* random blocks, by the seed and the step's number */
    BANYAN_MASK_BAND,   /* one band after another: every coordinate in turn */
};
struct banyan_shared_mask; /* opaque */
struct banyan_shared_mask_config {
    size_t size;  /* sizeof of the caller */
    double delta; /* fraction of the blocks sent per step, (0, 1]: 0.1 */
    size_t block; /* elements selected together: 64 */
    enum banyan_mask_order order;
    int memory; /* 1: unsent parts are kept and added; 0: they are lost, and sent ones divided
                   by delta, so that the mean is right */
    uint64_t seed; /* the same on all ranks */
};
#define BANYAN_SHARED_MASK_CONFIG_INIT                                                         \
    {                                                                                          \
        sizeof(struct banyan_shared_mask_config), 0.1, 64, BANYAN_MASK_RANDOM, 1, 0            \
    }
/* Collective. Borrows comm; tensors: F32. Returns 0, -EINVAL, -ENOMEM, -EMISMATCH. */
BANYAN_API int banyan_shared_mask_create(struct banyan_shared_mask **out,
                                         struct banyan_comm *comm,
                                         const struct banyan_tensor *tensors, size_t n,
                                         const struct banyan_shared_mask_config *cfg);
/* Takes NULL. */
BANYAN_API int banyan_shared_mask_free(struct banyan_shared_mask *m);
/* Collective. Replaces the gradients by the mean over ranks of this step's coordinates, zero
 * elsewhere; the same bits on all ranks. Returns 0; -EINVAL: a gradient that is not finite
 * (tensor and rank). */
BANYAN_API int banyan_shared_mask_step(struct banyan_shared_mask *m);
/* Multiplies the memory: by old over new learning rate when that changes. */
BANYAN_API int banyan_shared_mask_scale(struct banyan_shared_mask *m, double factor);
/* State: each rank saves and loads its own. */
BANYAN_API size_t banyan_shared_mask_bytes(const struct banyan_shared_mask *m);
BANYAN_API int banyan_shared_mask_save(const struct banyan_shared_mask *m, void *buf,
                                       size_t cap);
BANYAN_API int banyan_shared_mask_load(struct banyan_shared_mask *m, const void *buf,
                                       size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * LGC: learned gradient compression. Abrahamyan, Chen, Bekoulis, Deligiannis, "Learned Gradient
 * Compression for Distributed Deep Learning", IEEE TNNLS 33(12), 2021, arXiv 2103.08870.
 *
 * Gradients of different ranks have a common part. The k largest values of each tensor form one
 * vector of length mu, which a 1-D convolutional autoencoder shortens to mu/4 numbers. A run
 * has three phases:
 *   1  dense_steps   all gradients uncompressed, averaged; no codec, no residual.
 *   2  train_steps   one rank, the leader (step modulo ranks), broadcasts the indices of the
 *                    largest values of its gradient plus residual; all ranks' values there go
 *                    to the root, which returns their mean and trains the autoencoder on them,
 *                    one step of the optimiser each.
 *   3  the rest      codes, while the gate is open; else the plain top-k of every rank: values
 *                    and own indices to all, averaged.
 * Ring instance: all ranks encode their values at the leader's indices, an allreduce averages
 * the codes, every rank decodes. Server instance: the leader's code goes to the root with every
 * rank's innovations, its delta_innovation largest values; the root decodes once per rank, with
 * a decoder for that rank, and broadcasts the mean. Weights that other ranks need are sent
 * once, before the first coded step (ring: all; server: the encoder).
 *
 * The gate: the mean over all pairs of ranks of the correlation of their values at the leader's
 * indices. In phase 2 every step has it, in phase 3 it is measured every gate_every steps on
 * gate_sample of the indices. At those steps, and at the end of phase 2, the mean of the
 * measurements since the last decision is compared with gate: above it the next step is coded.
 * An autoencoder whose training diverged keeps the gate shut.
 *
 * Feedback: unsent values stay in a rank's residual, an f32 per element, which is added to the
 * next gradient; at sent positions the residual is zero ("copy", as DGC without momentum):
 * decoding errors are lost.
 *
 * Reconstructed, as the paper's text was not available (an independent implementation of the
 * server instance was): the ring instance, its loss, which values phase 2 sends. Our own:
 * values are divided by the root mean square of the leader's before they are encoded;
 * innovations are the largest of the values at the leader's indices; the gate. Left out:
 * momentum correction.
 *
 * The decoders of different ranks give the same bits on processors of the same instruction set
 * with the same oneDNN. If ranks differ in these, use the server instance. */
enum banyan_lgc_instance { BANYAN_LGC_RING, BANYAN_LGC_SERVER };
enum banyan_lgc_optimiser { BANYAN_LGC_ADAM, BANYAN_LGC_SGD };

/* All members but module and threads must be the same on all ranks. */
struct banyan_lgc_config {
    size_t size;                         /* sizeof of the caller's */
    enum banyan_lgc_instance instance;   /* default: ring */
    enum banyan_lgc_optimiser optimiser; /* for the autoencoder; default: Adam */
    int root;             /* trains the autoencoder; server instance: the server; default 0 */
    int threads;          /* for oneDNN, while it works for this object; default 1 */
    uint64_t dense_steps; /* phase 1; default 200 */
    uint64_t train_steps; /* phase 2; default 300, at least 1 */
    double
        delta; /* fraction of a tensor's elements kept, in (0, 1]; at least one; default .001 */
    double
        delta_innovation; /* server: fraction of all coded tensors' elements; default .00001 */
    /* Patterns of names ("conv1.*,fc?.bias": shell wildcards, separated by commas). If both
     * match a tensor the first one counts. */
    const char *dense;    /* uncompressed in all phases; NULL: the first tensor; "": none */
    const char *topk;     /* never autoencoded; NULL: the last tensor of two or more dimensions,
                             and those after it; "": none */
    size_t dense_below;   /* smaller tensors are dense, too; default 1024 */
    double gate;          /* default .5; -2: always open, 2: always shut */
    uint64_t gate_every;  /* steps; default 20 */
    size_t gate_sample;   /* indices; 0: all; default 1024 */
    uint64_t seed;        /* for weights and random choices of training; default 1 */
    double learning_rate; /* of the autoencoder; default .001 */
    double lambda_reconstruction; /* server: weights of the parts of the loss; default .5 */
    double lambda_similarity;     /* default .5 */
    const char *module; /* path of libbanyan-lgc.so; NULL: next to libbanyan, or in its build */
};

/* Kinds of bytes. */
enum banyan_lgc_kind {
    BANYAN_LGC_DENSE,       /* uncompressed tensors */
    BANYAN_LGC_INDICES,     /* of top-k values, with the leader's root mean square */
    BANYAN_LGC_VALUES,      /* unencoded top-k values */
    BANYAN_LGC_CODES,       /* 4 bytes per number: mu/4 of them */
    BANYAN_LGC_INNOVATIONS, /* 8 bytes each: a position and a value */
    BANYAN_LGC_MEANS,       /* from the root to all */
    BANYAN_LGC_WEIGHTS,     /* the autoencoder's */
    BANYAN_LGC_GATE,        /* for measuring the correlation */
    BANYAN_LGC_CHECKS /* whether all gradients are finite, and all ranks at the same step */
};

/* Members marked (all) are the same on all ranks. */
struct banyan_lgc_stats {
    size_t size;    /* sizeof of the caller's; set before the call */
    uint64_t step;  /* steps done (all) */
    int phase;      /* of the next step: 1, 2, 3 (all) */
    int open;       /* 1: the next step is coded (all) */
    uint64_t coded; /* coded steps (all) */
    uint64_t mu;    /* values of the vector; a multiple of 16, the last ones may be zeros */
    uint64_t code;  /* numbers of its code: mu/4 */
    uint64_t kept; /* elements that a rank keeps in a step that is not dense: coded and top-k */
    double correlation; /* latest measurement (all); 0: none */
    double loss;        /* of the autoencoder before its latest training step (all) */
    /* |x - y|^2 / |x|^2 of the averaged vector x of that step and its reconstruction y, before
     * training on it; and with the mu/4 largest values of x as y, which are as many numbers
     * (all). */
    double error, error_largest;
    /* Bytes of all steps, by enum banyan_lgc_kind, summed over ranks (all). sent: each rank's
     * own contribution, once, as papers count. wire: bytes that ranks handed to transports,
     * including forwarding; wrong if others used the communicator meanwhile. */
    uint64_t sent[16], wire[16];
    uint64_t sent_dense; /* the same for averaging without compression */
    /* Microseconds per call on this rank, means since creation: encoding one vector, decoding
     * one, one training step. 0: never. */
    double encode_us, decode_us, train_us;
};

struct banyan_lgc; /* opaque */

#define BANYAN_LGC_CONFIG_INIT                                                                 \
    {                                                                                          \
        sizeof(struct banyan_lgc_config), BANYAN_LGC_RING, BANYAN_LGC_ADAM, 0, 1, 200, 300,    \
            .001, .00001, NULL, NULL, 1024, .5, 20, 1024, 1, .001, .5, .5, NULL                \
    }
/* Collective. Prepares averaging the gradients of n f32 tensors over comm; borrows both until
 * the object is freed. cfg: NULL, or settings, which are copied. Returns 0; -EINVAL: a setting
 * or tensor is invalid (named), or nothing is left to encode; -EMISMATCH: tensors or settings
 * differ between ranks (named); -ENOTSUP: oneDNN or the module that links it cannot be loaded
 * (names the package), or the program is static; -EVERSION: the module is from another build;
 * -ENOMEM; or the error of the communication. If it fails on one rank it fails on all, with
 * that rank's name. */
BANYAN_API int banyan_lgc_create(struct banyan_lgc **out, struct banyan_comm *comm,
                                 const struct banyan_tensor *tensors, size_t n,
                                 const struct banyan_lgc_config *cfg);
/* Collective. Averages the gradients of all tensors over the ranks, in place, with the same
 * result on all. Returns 0; -EINVAL on all ranks: a gradient is not finite (tensor and rank);
 * gradients are then unchanged, and the step does not count; -EMISMATCH: ranks are at different
 * steps (after loading different states); or the error of the communication, such as
 * -ERANKDEAD: gradients are then undefined, residuals and autoencoder as before the step. */
BANYAN_API int banyan_lgc_step(struct banyan_lgc *lgc);
/* Collective. Returns 0, -EINVAL, or the error of the communication. */
BANYAN_API int banyan_lgc_get_stats(struct banyan_lgc *lgc, struct banyan_lgc_stats *out);
/* A rank's state between two steps: counters, residuals, gate, autoencoder (on the root with
 * its optimiser's moments). _save writes banyan_lgc_bytes to buf: 0, or -EINVAL if cap is less.
 * _load accepts it on the same rank of the same number, into an object with the same tensors
 * and settings, which continues bit-identically. -EINVAL, with no change, for anything else. */
BANYAN_API size_t banyan_lgc_bytes(const struct banyan_lgc *lgc);
BANYAN_API int banyan_lgc_save(const struct banyan_lgc *lgc, void *buf, size_t cap);
BANYAN_API int banyan_lgc_load(struct banyan_lgc *lgc, const void *buf, size_t bytes);
/* Takes NULL. Local. */
BANYAN_API int banyan_lgc_free(struct banyan_lgc *lgc);

/* ---------------------------------------------------------------------------------------------
 * Ordered and lazy gradients: a rank sends the change of its gradient only when that is worth
 * it. Every rank m keeps the gradient that the others have of it, g_m; all ranks keep the sum
 * of these. In a step each rank computes the norm of its innovation, delta_m = gradient - g_m;
 * one allgather gives all ranks the norms (24 bytes per rank); all select the same ranks; only
 * their innovations are summed (reduce.participants of banyan.h) and added to the sum. A step
 * may have no upload at all: only the norms travel, and the sum does not change. It pays for
 * full or large-batch gradients of ranks with different data; the noise of small batches looks
 * like news.
 *
 * Which of W ranks send, with rhs = xi / alpha^2 * (sum of the last `history` squared steps of
 * the parameters) and the norms in descending order, d_1 >= d_2 >= ... :
 *   ALL         every rank (gradient descent, for comparison)
 *   ORDERED_R1  the n first, n the smallest with ((W - n) d_(n+1))^2 <= rhs. The Ordered
 *               Gradient Approach (Chen, Blum and Sadler, SPAWC 2020), in which silence of a
 *               timer has the role of the norms here; the rule is a reconstruction from its
 *               abstract
 *   ORDERED_R2  the n first, n the smallest with (d_(n+1) + ... + d_W)^2 <= rhs: never more
 *               than R1, possible as all norms are known
 *   LAG         all with d_m^2 > rhs / W^2: LAG-WK (Chen, Giannakis, Sun and Yin, NeurIPS 2018)
 *   CHB         the same with a history of 1, for steps with momentum: censored heavy ball
 *               (Chen, Blum, Takac and Sadler 2022, from memory)
 * In each the norm of all unsent innovations is at most sqrt(rhs). An upload of a set of ranks
 * that was not among the latest few makes a plan, and so allocates.
 *
 * A loop in which the library takes the steps:
 *     struct banyan_lazy_config cfg = BANYAN_LAZY_CONFIG_INIT;
 *     cfg.alpha = 0.01;
 *     banyan_lazy_create(&lazy, comm, n, &cfg);
 *     for (;;) {
 *         gradient(theta, grad);
 *         banyan_lazy_exchange(lazy, grad, NULL);
 *         banyan_lazy_descend(lazy, theta);
 *     } */
struct banyan_lazy; /* opaque */
enum banyan_lazy_rule {
    BANYAN_LAZY_ALL,
    BANYAN_LAZY_ORDERED_R1,
    BANYAN_LAZY_ORDERED_R2,
    BANYAN_LAZY_LAG,
    BANYAN_LAZY_CHB
};
/* The same on all ranks, or -EMISMATCH. */
struct banyan_lazy_config {
    size_t size;                /* sizeof of the caller */
    enum banyan_lazy_rule rule; /* ORDERED_R2 */
    double alpha; /* > 0: the rate of steps along the sum over the ranks; for steps with rate r
                     along the mean: r / ranks. No default */
    double xi;    /* weight of each squared step of the history: 0.1; 0: only ranks without any
                     change are silent */
    int history;  /* D, number of squared steps in rhs, 1 to 1000; 0: 10, for CHB 1 */
    int warmup;   /* first steps in which every rank sends; < 0: for LAG D, as in its authors'
                     code, else 1. At least 1 */
    double momentum; /* of banyan_lazy_descend, beta of the heavy ball, [0, 1); < 0: 0, for CHB
                        0.4 */
    const char *codec; /* for uploads, as opts.codec of banyan.h; NULL: none. A residual keeps
                          what a lossy codec loses; it counts as innovation, and goes with the
                          rank's next upload */
    const char
        *schedule; /* for uploads, as opts.schedule of banyan.h; NULL: the communicator's */
    uint64_t seed; /* of a codec's random choices */
};
#define BANYAN_LAZY_CONFIG_INIT                                                                \
    {                                                                                          \
        sizeof(struct banyan_lazy_config), BANYAN_LAZY_ORDERED_R2, 0.0, 0.1, 0, -1, -1.0,      \
            NULL, NULL, 0                                                                      \
    }
/* An object for a gradient of count f32. Collective; borrows comm. Returns 0; -EINVAL (an
 * invalid setting); -EMISMATCH: settings differ, the sentence names which, and on which rank;
 * -ENOMEM; or the communicator's failure. */
BANYAN_API int banyan_lazy_create(struct banyan_lazy **out, struct banyan_comm *comm,
                                  size_t count, const struct banyan_lazy_config *cfg);
BANYAN_API int banyan_lazy_free(struct banyan_lazy *lazy); /* takes NULL */
/* One step. Collective. grad [count]: this rank's gradient; only read. sum [count] gets the sum
 * over the ranks of the gradients as last sent, the same bits on all ranks; NULL: not needed.
 * Returns 0; -EINVAL, on all ranks, if a gradient is not finite: the sentence names the rank,
 * on that rank also the element, and nothing has changed; -EMISMATCH, on all ranks: one has
 * done another number of steps, or its sqrt(rhs) is more than 0.1 % off; or the communicator's
 * failure. */
BANYAN_API int banyan_lazy_exchange(struct banyan_lazy *lazy, const float *grad, float *sum);
/* Takes the step theta [count] += -alpha * sum + momentum * (the step before), and records its
 * squared length for rhs. Local: if theta was the same on all ranks it stays so. Once after
 * each exchange. Returns 0 or -EINVAL (no exchange before it). */
BANYAN_API int banyan_lazy_descend(struct banyan_lazy *lazy, float *theta);
/* Replaces banyan_lazy_descend for steps of the caller: their squared length
 *
 * theta_(k+1) - theta_k
 *
 * ^2. Returns 0 or -EINVAL (negative or not finite; no exchange before it). */
BANYAN_API int banyan_lazy_moved(struct banyan_lazy *lazy, double squared);
/* Sets the rate from now on; on all ranks. -EINVAL: not positive or not finite. */
BANYAN_API int banyan_lazy_set_alpha(struct banyan_lazy *lazy, double alpha);
/* Since creation; included in a saved state. */
struct banyan_lazy_stats {
    size_t size;           /* sizeof of the caller; set before the call */
    uint64_t steps;        /* exchanges */
    uint64_t uploads;      /* of all ranks */
    uint64_t own;          /* of these, this rank's */
    uint64_t silent;       /* steps without any upload */
    uint64_t latest;       /* uploads of the latest step */
    uint64_t norms_bytes;  /* payload of norms that this rank handed to transports */
    uint64_t upload_bytes; /* and of gradients, including forwarded results */
    double norm, rhs;      /* latest: this rank's norm, and sqrt(rhs) */
};
BANYAN_API int banyan_lazy_stats(const struct banyan_lazy *lazy, struct banyan_lazy_stats *out);
/* The state of this rank, to continue bit-identically: each rank loads its own. Not between
 * ranks, nor with other settings (-EINVAL, unchanged). */
BANYAN_API size_t banyan_lazy_bytes(const struct banyan_lazy *lazy);
BANYAN_API int banyan_lazy_save(const struct banyan_lazy *lazy, void *buf, size_t cap);
BANYAN_API int banyan_lazy_load(struct banyan_lazy *lazy, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Gossip: no allreduce at all. After each local step a rank averages its parameters with its
 * neighbours in a graph, pair by pair, so a rank waits for only one other at a time, and a slow
 * link delays its two ends first. Ranks' parameters differ by the consensus distance.
 *   low_rank > 0  PowerGossip (Vogels, Karimireddy, Jaggi: "Practical Low-Rank Communication
 *                 Compression in Decentralized Deep Learning", NeurIPS 2020, arXiv 2008.01425):
 *                 for the difference D of two ranks' matrices each end computes D q, after both
 *                 have sent their X q, for a common q. Both move by half of D q q^T towards
 *                 each other. The next time D q / |D q| is multiplied from the other side: a
 *                 power iteration, which finds the largest differences. No residual, no step
 *                 size. With low_rank columns q are orthonormal.
 *   low_rank 0    plain gossip: whole parameters (Lian et al., NeurIPS 2017, arXiv 1705.09056).
 * The pairs of a round average at once, with weight 1/2, round after round, where the paper has
 * one weighted sum over all neighbours; rounds are the colours of the graph's edges. Matrices:
 * shape[0] rows, the rest columns; tensors with less than two dimensions, and those with at
 * most (rows + columns) * low_rank elements, travel whole. The sum over ranks is preserved up
 * to rounding. Messages use tag 20551 of comm. Both ends of a pair compute the same basis from
 * the same bytes, and so need the same build. */
struct banyan_gossip; /* opaque */
/* The same on all ranks, or -EMISMATCH. */
struct banyan_gossip_config {
    size_t size;       /* sizeof of the caller */
    const char *graph; /* ring, torus:AxB[xC...], hypercube, exponential,
                        * random[:degree=D,seed=S] or complete; default ring */
    int low_rank;      /* 1; 0: plain gossip; at most 32 */
    int iterations;    /* exchanges of a pair per step: 1 */
    int rounds;        /* colours per step, in turn; 0, the default: all */
    uint64_t seed;     /* for the first q; 1 */
};
#define BANYAN_GOSSIP_CONFIG_INIT                                                              \
    {                                                                                          \
        sizeof(struct banyan_gossip_config), "ring", 1, 1, 0, 1                                \
    }
/* Collective. tensors: F32; their grad points to the parameters, which are set to rank 0's.
 * Borrows comm. Returns 0, -EINVAL (settings, tensors; no such graph for this number of ranks),
 * -ENOMEM, -EMISMATCH. */
BANYAN_API int banyan_gossip_create(struct banyan_gossip **out, struct banyan_comm *comm,
                                    const struct banyan_tensor *tensors, size_t n,
                                    const struct banyan_gossip_config *cfg);
/* Takes NULL. Local. */
BANYAN_API int banyan_gossip_free(struct banyan_gossip *g);
/* Call it after a local step: averages with the neighbours. All ranks take the same number of
 * steps. Returns 0; -EINVAL: a parameter of this rank is not finite; -EMISMATCH: a neighbour is
 * at another step (a state was not loaded on all ranks). Both fail the communicator, as more
 * distant ranks would wait for this one: they get -EABORTED with the sentence, which names
 * tensor and rank. */
BANYAN_API int banyan_gossip_step(struct banyan_gossip *g);
/* Collective. The root mean square over ranks of their parameters' distance from the mean,
 * divided by the mean's length (0 if that is 0). Costs an allreduce of all parameters: use it
 * now and then. */
BANYAN_API int banyan_gossip_consensus(struct banyan_gossip *g, double *out);
/* Collective. All ranks get the mean, the same bits. */
BANYAN_API int banyan_gossip_finish(struct banyan_gossip *g);
struct banyan_gossip_stats {
    size_t size;    /* sizeof of the caller; set before the call */
    uint64_t steps; /* included in a saved state, as bytes is */
    uint64_t bytes; /* sent by this rank in steps */
    int neighbours; /* of this rank */
    int degree;     /* the graph's largest */
    int rounds;     /* number of edge colours */
};
BANYAN_API int banyan_gossip_stats(const struct banyan_gossip *g,
                                   struct banyan_gossip_stats *out);
/* State: each rank saves and loads its own; the caller saves the parameters. */
BANYAN_API size_t banyan_gossip_bytes(const struct banyan_gossip *g);
BANYAN_API int banyan_gossip_save(const struct banyan_gossip *g, void *buf, size_t cap);
BANYAN_API int banyan_gossip_load(struct banyan_gossip *g, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Sketched updates: each rank adds its gradient into a count sketch, a small table; tables add
 * up, so an ordinary allreduce sums them, whatever each rank's large elements are. All ranks
 * then extract the same k elements from the sum.
 *   SGD   FetchSGD (Rothchild et al., ICML 2020, arXiv 2007.07682, algorithm 1): momentum and
 *         the part not yet extracted are tables too, S_u = momentum S_u + S, S_e += S_u; the
 *         update is the k elements of S_e that are largest by the median of its rows; their
 *         cells become zero in both tables, as in the authors' code (the paper subtracts).
 *   ADAM  after Xian, Huang, Huang: "Communication-Efficient Adam-Type Algorithms for
 *         Distributed Data Mining", ICDM 2022, arXiv 2210.07454 (SketchedAMSGrad), a
 *         reconstruction: the same with S_u = momentum S_u + (1 - momentum) S, and each element
 *         of the update is divided by the root of the largest second moment that it ever had,
 *         over its own updates alone, with the usual correction for the first ones. Elements
 *         are chosen by their size before that division, so an element of small gradients is
 *         updated more rarely than Adam would.
 * A row hashes blocks of 16 neighbouring elements to places of 16 columns, with a sign per
 * element. */
struct banyan_sketch; /* opaque */
enum banyan_sketch_mode { BANYAN_SKETCH_SGD, BANYAN_SKETCH_ADAM };
/* The same on all ranks, or -EMISMATCH. */
struct banyan_sketch_config {
    size_t size; /* sizeof of the caller */
    enum banyan_sketch_mode mode;
    int rows;              /* odd, 1 to 9: 5 */
    size_t cols;           /* per row, 16 or more; 0: elements / 50, rows then hold a tenth */
    size_t k;              /* elements per update; 0: elements / 100, at least 1 */
    double momentum;       /* [0, 1): 0.9 */
    double beta2, epsilon; /* ADAM: 0.999, 1e-8 */
    uint64_t seed;         /* 1 */
};
#define BANYAN_SKETCH_CONFIG_INIT                                                              \
    {                                                                                          \
        sizeof(struct banyan_sketch_config), BANYAN_SKETCH_SGD, 5, 0, 0, 0.9, 0.999, 1e-8, 1   \
    }
/* Collective. Borrows comm; tensors: F32. Returns 0, -EINVAL, -ENOMEM, -EMISMATCH. */
BANYAN_API int banyan_sketch_create(struct banyan_sketch **out, struct banyan_comm *comm,
                                    const struct banyan_tensor *tensors, size_t n,
                                    const struct banyan_sketch_config *cfg);
BANYAN_API int banyan_sketch_free(struct banyan_sketch *s); /* takes NULL */
/* Collective. Replaces the gradients by the update of their mean over ranks: k elements, zero
 * elsewhere; the same bits on all ranks. The caller subtracts it, times the learning rate,
 * without other momentum. Returns 0; -EINVAL: a gradient that is not finite (tensor and rank);
 * -EMISMATCH: ranks are at different steps. These errors change nothing. */
BANYAN_API int banyan_sketch_step(struct banyan_sketch *s);
/* Multiplies the part not yet extracted: by old over new learning rate when that changes. */
BANYAN_API int banyan_sketch_scale(struct banyan_sketch *s, double factor);
struct banyan_sketch_stats {
    size_t size;      /* sizeof of the caller; set before the call */
    uint64_t steps;   /* included in a saved state */
    uint64_t cells;   /* per table */
    uint64_t k;       /* elements per update */
    double recovered; /* latest step: the update's squared length over an estimate of that of
                         the whole table, the mean of the rows' squared lengths */
};
BANYAN_API int banyan_sketch_stats(const struct banyan_sketch *s,
                                   struct banyan_sketch_stats *out);
/* State: the same on all ranks; each saves and loads its own. */
BANYAN_API size_t banyan_sketch_bytes(const struct banyan_sketch *s);
BANYAN_API int banyan_sketch_save(const struct banyan_sketch *s, void *buf, size_t cap);
BANYAN_API int banyan_sketch_load(struct banyan_sketch *s, const void *buf, size_t bytes);

/* ---------------------------------------------------------------------------------------------
 * Stale and K-of-n updates: the effects of a parameter server on training, without its
 * accidents: the delay and the participants are functions of the step, so that runs can be
 * repeated and compared.
 *   delay  the update of a step is the mean of gradients `delay` steps old (Ho et al.: "More
 *          Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS
 *          2013): the exchange of a step is waited for that much later, and so overlaps as many
 *          steps' computation.
 *   k      in each step only the gradients of k ranks are summed, in turn: ranks (step * k + i)
 *          mod n. A rank that is left out drops its gradient, and the mean is over k (Chen et
 *          al.: "Revisiting Distributed Synchronous SGD", arXiv 1604.00981, with n - k backup
 *          workers); or, with `late`, adds it to the next one that it sends, and the mean is
 *          over n. With schedule "star" all data goes through rank 0, as through a server. */
struct banyan_stale; /* opaque */
/* The same on all ranks, or -EMISMATCH. */
struct banyan_stale_config {
    size_t size; /* sizeof of the caller */
    int delay;   /* steps, 0 to 64: 1 */
    int k;       /* ranks per step; 0 or more than there are: all */
    int late;    /* 1: a gradient that is left out comes later; 0, the default: it is lost */
    const char *schedule; /* as banyan_opts.schedule; NULL: the communicator's */
};
#define BANYAN_STALE_CONFIG_INIT                                                               \
    {                                                                                          \
        sizeof(struct banyan_stale_config), 1, 0, 0, NULL                                      \
    }
/* Collective. Borrows comm; tensors: F32. Returns 0, -EINVAL, -ENOMEM, -EMISMATCH, -ENOTSUP (a
 * schedule that does not support sets of ranks, with k). */
BANYAN_API int banyan_stale_create(struct banyan_stale **out, struct banyan_comm *comm,
                                   const struct banyan_tensor *tensors, size_t n,
                                   const struct banyan_stale_config *cfg);
/* Takes NULL. Waits for exchanges in flight, so all ranks call it alike. */
BANYAN_API int banyan_stale_free(struct banyan_stale *s);
/* Collective. Takes the gradients, and replaces them by the mean of those from `delay` steps
 * before, the same bits on all ranks. Returns 1; 0 in the first `delay` steps: there is no
 * update yet, and the gradients are zeros; -EINVAL: one of those gradients is not finite
 * (tensor and rank). */
BANYAN_API int banyan_stale_step(struct banyan_stale *s);
/* Collective: ends exchanges in flight, before saving; later steps are not affected. */
BANYAN_API int banyan_stale_settle(struct banyan_stale *s);
/* State: each rank saves and loads its own, with the exchanges that no update has used yet.
 * -EBUSY while one is in flight: settle first. Load at the same step on all ranks. */
BANYAN_API size_t banyan_stale_bytes(const struct banyan_stale *s);
BANYAN_API int banyan_stale_save(const struct banyan_stale *s, void *buf, size_t cap);
BANYAN_API int banyan_stale_load(struct banyan_stale *s, const void *buf, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
