/* SPDX-License-Identifier: BSD-3-Clause */
/* The methods of banyan/training.h and banyan/methods.h behind one face, for training loops
 * that compare them. Each step of a loop:
 *     zero the gradients; backward, with method_ready() as each tensor is complete;
 *     method_reduce(); take a step; method_stepped().
 * A rank's gradient is its share of the sum over ranks: the gradient of what all ranks'
 * examples lose, divided by their number. */
#ifndef TRAIN_METHOD_H
#define TRAIN_METHOD_H

#include <banyan/methods.h>

struct method_model {
    const struct banyan_tensor *tensors; /* gradients, one after another in grad */
    size_t ntensors, n;                  /* n: floats of all */
    float *param, *grad;                 /* [n], in the order of tensors */
};

struct method_options {
    const char *name;   /* one of method_names() */
    const char *codec;  /* of tensors from 1024 elements on; accordion: much compression */
    const char *little; /* accordion: little compression */
    const char *local;  /* of local_ways in method.c */
    const char *lgc;    /* ring or server */
    int interval;       /* accordion: steps */
    int accumulate;    /* accordion: more than 1: the batch adapts, up to so many micro-steps */
    int period;        /* local SGD: steps */
    const char *graph; /* gossip */
    int low_rank, iterations, rounds; /* gossip; low_rank 0: whole parameters */
    const char *rules;   /* buckets: instead of the codec, as banyan_buckets_config.rules */
    const char *profile; /* buckets: rank 0 writes one there in the end; NULL: none */
    int delay, k, late;  /* stale */
    size_t block;        /* shared-mask: elements chosen together */
    const char *sketch;  /* sgd or adam */
    int sketch_rows;
    double sketch_part; /* of the elements: cells of a sketch, which takes delta of them */
    int dense_steps, train_steps; /* lgc: of its first two phases */
    double delta;                 /* lgc, shared-mask, sketch: part of the elements; 0: .01, .1,
                                   * .05 */
    double gate;                  /* lgc */
    size_t bucket_bytes;          /* 0: the library's */
    double rate;                  /* the learning rate of the first step */
    double alpha, xi; /* ordered, lag, chb: how far a step goes along the gradient, 0: rate; and
                       * their threshold, < 0: the library's */
    uint64_t seed;
};
#define METHOD_OPTIONS_INIT                                                                    \
    {                                                                                          \
        .name = "calls", .codec = NULL, .little = "none", .local = "fixed", .lgc = "ring",     \
        .interval = 50, .accumulate = 1, .period = 8, .dense_steps = 200, .train_steps = 300,  \
        .gate = 0.5, .xi = -1, .seed = 1, .graph = "ring", .low_rank = 1, .iterations = 1,     \
        .block = 64, .delay = 1, .sketch = "sgd", .sketch_rows = 1, .sketch_part = 0.5         \
    }

struct method;
/* Functions return 0 or what the library did; banyan_last_error() has the sentence. */
int method_create(struct method **out, struct banyan_comm *comm,
                  const struct method_model *model, const struct method_options *opt);
void method_free(struct method *m);
/* The gradient of a tensor is complete. */
int method_ready(struct method *m, size_t tensor);
/* All are. Afterwards grad is what to step by. */
int method_reduce(struct method *m);
/* After the step: its squared length, this rank's loss, and the rate of the next step. */
int method_stepped(struct method *m, double squared, double loss, double rate);
/* Micro-steps of the next step, whose gradients add up; 1 but for accordion's batches. */
int method_accumulate(const struct method *m);
/* 1: the method lets the ranks' parameters go apart. */
int method_is_local(const struct method *m);
/* Collective: ends what is under way, before a checkpoint; and what brings all ranks'
 * parameters together, at the end (the profile is written there). */
int method_settle(struct method *m);
int method_finish(struct method *m);
/* A line of what is special to it: levels, uploads, phases. Collective. */
int method_describe(struct method *m, char *buf, size_t cap);
/* State, between steps and settled. */
size_t method_bytes(const struct method *m);
int method_save(const struct method *m, void *buf, size_t cap);
int method_load(struct method *m, const void *buf, size_t bytes);
/* "calls, buckets, ..." */
const char *method_names(void);
/* The momentum that a loop should have beside a method, which may have its own or act as one:
 * what a shared mask keeps comes some ten steps later. NULL: no method. */
float method_momentum(const char *name);

/* The options of methods for getopt_long(), and what they do: 1, or 0 for another option. Ends
 * the process with 2 after a message where a value is wrong. */
enum method_option_number {
    METHOD_CONTROLLER = 1000,
    METHOD_LITTLE,
    METHOD_INTERVAL,
    METHOD_ACCUMULATE,
    METHOD_LOCAL,
    METHOD_PERIOD,
    METHOD_LGC,
    METHOD_PHASES,
    METHOD_GATE,
    METHOD_DELTA,
    METHOD_XI,
    METHOD_BUCKET,
    METHOD_GRAPH,
    METHOD_LOW_RANK,
    METHOD_ITERATIONS,
    METHOD_ROUNDS,
    METHOD_SKETCH,
    METHOD_CELLS,
    METHOD_ROWS,
    METHOD_RULES,
    METHOD_DELAY,
    METHOD_K,
    METHOD_LATE,
    METHOD_BLOCK,
    METHOD_PROFILE,
};
#define METHOD_LONG_OPTIONS                                                                    \
    { "controller", 1, NULL, METHOD_CONTROLLER }, { "little", 1, NULL, METHOD_LITTLE },        \
        { "interval", 1, NULL, METHOD_INTERVAL },                                              \
        { "accumulate", 1, NULL, METHOD_ACCUMULATE }, { "local", 1, NULL, METHOD_LOCAL },      \
        { "period", 1, NULL, METHOD_PERIOD }, { "lgc", 1, NULL, METHOD_LGC },                  \
        { "phases", 1, NULL, METHOD_PHASES }, { "gate", 1, NULL, METHOD_GATE },                \
        { "delta", 1, NULL, METHOD_DELTA }, { "xi", 1, NULL, METHOD_XI },                      \
        { "graph", 1, NULL, METHOD_GRAPH }, { "low-rank", 1, NULL, METHOD_LOW_RANK },          \
        { "iterations", 1, NULL, METHOD_ITERATIONS }, { "rounds", 1, NULL, METHOD_ROUNDS },    \
        { "sketch", 1, NULL, METHOD_SKETCH }, { "cells", 1, NULL, METHOD_CELLS },              \
        { "sketch-rows", 1, NULL, METHOD_ROWS }, { "rules", 1, NULL, METHOD_RULES },           \
        { "delay", 1, NULL, METHOD_DELAY }, { "k", 1, NULL, METHOD_K },                        \
        { "late", 0, NULL, METHOD_LATE }, { "block", 1, NULL, METHOD_BLOCK },                  \
        { "profile", 1, NULL, METHOD_PROFILE },                                                \
    {                                                                                          \
        "bucket", 1, NULL, METHOD_BUCKET                                                       \
    }
int method_option(struct method_options *opt, int option, const char *value,
                  const char *program);

#endif
