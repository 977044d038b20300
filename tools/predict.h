/* SPDX-License-Identifier: BSD-3-Clause */
/* The predictor of training steps, between its files: topo_predict.c (options, tables, advice),
 * predict_step.c (a step as a job of the simulator), predict_op.c (an operation in it),
 * predict_trace.c (what was predicted, as a trace).
 *
 * The model. A rank computes from the step's start; tensors become ready when the profile says,
 * fill buckets (training/cut.h) and start operations in order. An operation is the plan that
 * the library would choose (collectives/plan), its program's messages cross the graph in the
 * simulator, oldest operation first, and encoding, decoding, adding and copying are work of a
 * processor of the rank: the one that computes, between two tensors, or with a progress thread
 * one beside it. The step ends when all are done, and all ranks have heard the verdict. */
#ifndef BNY_TOOLS_PREDICT_H
#define BNY_TOOLS_PREDICT_H

#include "collectives/plan/way.h"
#include "topo/simulate.h"
#include "training/profile.h"

/* Payload of what a link carries: headers of TCP, IP and Ethernet in 1514 bytes. */
#define PREDICT_WIRE_SHARE 0.955

/* Of transport/tcp: what plans are made for. */
#define PREDICT_EAGER_MAX 65536
#define PREDICT_CHUNK_MAX 262144

/* The machines and the network. */
struct predict_world {
    const struct bny_profile *profile;
    struct bny_graph *graph;       /* one rank a node */
    struct bny_topology *topology; /* what BANYAN_TOPO would be; NULL: nothing */
    double link_Bps;               /* what BANYAN_LINK_GBPS would be; 0: nothing */
    double alpha_s;                /* a message's way, beside what links add */
    double burst_s;                /* of shaped links: topo/simulate.h */
    double message_s, byte_s;      /* work of sending, and of receiving; of a message, a byte */
    double slower;                 /* work takes so many times as long: ranks share cores */
    double compute_slower;         /* and so does computing */
    int has_thread;                /* progress beside the computing */
    uint64_t codec_from;           /* elements: smaller tensors have no codec */
    int force;                     /* codecs are used where they are predicted to lose */
};

/* One of the settings to choose from. */
struct predict_setting {
    const char *codec; /* "none"; "profile": as tensors have it there */
    const char *schedule;
    uint64_t bucket_bytes, first_bytes;
};

/* The time of a step without each resource: the first difference is its bottleneck. */
enum predict_without { WITHOUT_NOTHING, WITHOUT_WIRE, WITHOUT_LATENCY, WITHOUT_WORK, NWITHOUT };

struct predicted {
    double step_s, compute_s;    /* all; its own computing */
    double wire_share;           /* of the step, in which the busiest link was used */
    double work_s;               /* encoding, adding, copying of a rank */
    uint64_t wire_bytes;         /* of the rank that sends most */
    size_t buckets, refused;     /* refused: whose codec the library would not use */
    char schedule[BNY_NAME_MAX]; /* of the largest bucket */
};

/* ---- a job being made ---- */

enum predict_what {
    PREDICT_COMPUTE,
    PREDICT_START,
    PREDICT_ENCODE,
    PREDICT_WIRE,
    PREDICT_DECODE,
    PREDICT_OTHER
};

struct predict_node { /* beside each transfer of the job, for traces */
    uint8_t what;
    uint32_t bucket;
};

struct predict_job {
    const struct predict_world *w;
    struct bny_sim_job sim;
    struct predict_node *nodes; /* [sim.n] */
    uint32_t nodes_cap;
    uint32_t bucket; /* whose operation is being added */
    double *sent;    /* [ranks] bytes */
    double *work;    /* [ranks] seconds */
};

/* 0 or an error; frees with predict_job_free in any case. */
int predict_job_init(struct predict_job *j, const struct predict_world *w);
void predict_job_free(struct predict_job *j);
/* Seconds of work on rank's processor for the library; the node's number. */
uint32_t predict_work(struct predict_job *j, int rank, enum predict_what what, double seconds);
uint32_t predict_compute(struct predict_job *j, int rank, double seconds);
/* A node that only waits. */
uint32_t predict_join(struct predict_job *j, int rank);
uint32_t predict_message(struct predict_job *j, int from, int to, double bytes,
                         uint32_t priority);
void predict_after(struct predict_job *j, uint32_t later, uint32_t earlier);

/* ---- an operation ---- */

struct predict_op {
    uint64_t count;
    enum banyan_dtype dtype;
    const char *codec, *schedule; /* "none", "auto" */
    /* Found: */
    const uint32_t *start; /* [ranks] nodes: the operation starts at the rank */
    uint32_t *sent;        /* [ranks] nodes: what start() sends at once was sent */
    uint32_t *finish;      /* [ranks] nodes: it is complete there */
    char chosen[BNY_NAME_MAX];
    int refused; /* its codec */
};
/* 0 or an error. */
int predict_op_add(struct predict_job *j, struct bny_scope *scopes, struct predict_op *op);

/* ---- a step ---- */

/* trace NULL: none. 0 or an error that names what is wrong. */
int predict_step(struct predicted *out, const struct predict_world *w,
                 const struct predict_setting *s, enum predict_without without,
                 const char *trace);
int predict_trace(const char *path, const struct predict_job *j, const struct bny_sim_result *r,
                  const struct predicted *p);

#endif
