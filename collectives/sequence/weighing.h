/* SPDX-License-Identifier: BSD-3-Clause */
/* What the ranks of a communicator know of calls that weigh their codec (weighed.c): how fast
 * such calls were, raw and with each codec that they may use. Each rank measures for itself;
 * answers are what all of them know together, and the same at all of them. Guarded by the
 * world's lock. */
#ifndef BNY_COLLECTIVES_WEIGHING_H
#define BNY_COLLECTIVES_WEIGHING_H

#include "collectives/world/comm.h"

#define BNY_WEIGHED_LEAST                                                                      \
    (32u << 10) /* bytes of a call that is weighed, and of a measurement */
#define BNY_WEIGHED_LONG  (1u << 20)
#define BNY_WEIGHED_SIZES 12 /* of calls: each begins at twice the bytes of the one before */
#define BNY_WEIGHINGS     32 /* that a communicator remembers */
#define BNY_WEIGHED_KINDS                                                                      \
    (2 + BNY_BUDGET_PAIRS) /* raw, the codecs to choose from, and a mixture of both */
#define BNY_MIXED_PARTS 16 /* of a vector, of which some have the codec */

struct bny_measured {
    float Bps[2]; /* of a port in short calls and in long ones, bytes a second; 0: unknown */
    /* Of a call's own bytes, bytes a second; 0: not tried twice yet */
    float speeds[BNY_WEIGHED_KINDS][BNY_WEIGHED_SIZES];
};

/* What is decided for a call. */
struct bny_judgement {
    const struct bny_codec *codec; /* that keeps the call's budget; NULL: none does */
    int kind;                      /* that codec's */
    double raw_s, coded_s;         /* predicted, INFINITY: it cannot be */
    double mixed_s;                /* the same where `mixed` parts have the codec */
    uint8_t mixed;                 /* 0: they do not mix */
    uint8_t parts;  /* chosen: 0 raw, BNY_MIXED_PARTS all with the codec, or `mixed` */
    double bytes;   /* of the call */
    double Bps;     /* of a port; 0: unknown */
    uint32_t every; /* of the size's turns one in so many runs another way; 0: none does */
};

/* Calls of one codec, collective and type. */
struct bny_weighing {
    struct bny_weighing *next;
    const struct bny_codec *codec;
    uint8_t collective;
    enum banyan_dtype dtype;
    uint8_t is_dropped;         /* it serves the calls that use it, and no later ones */
    uint32_t uses;              /* calls that use it */
    uint32_t begun, asks;       /* calls that began; of these, those that asked */
    uint32_t known;             /* the latest of these whose answer is there; */
    struct bny_measured answer; /* it */
    struct {
        uint32_t begun; /* calls that began; */
        uint32_t turns; /* of these, those that may run another way */
        uint8_t mixed;  /* parts with the codec of the mixtures that were measured; */
        const struct bny_codec *mixed_codec; /* that codec */
    } sized[BNY_WEIGHED_SIZES];
    struct { /* of the latest call of each size, by this answer */
        uint32_t nth;
        struct bny_call part;
        struct bny_judgement verdict;
        char text[96]; /* of what was decided */
    } latest[BNY_WEIGHED_SIZES];
    int nkinds;
    struct bny_samples speeds[]
                             [BNY_WEIGHED_SIZES]; /* this rank's own: bytes of calls a second */
};

/* The one of such a call; NULL: there is none yet. */
struct bny_weighing *bny_weighing_find(const struct banyan_comm *c,
                                       const struct bny_call *call);
/* The same, which is made; NULL: no memory. Of more than BNY_WEIGHINGS it drops the one that no
 * call began with for the longest time. Ranks start the same calls in the same order, so they
 * drop the same ones. */
struct bny_weighing *bny_weighing_of(struct banyan_comm *c, const struct bny_call *call);
/* A call that used it is over. */
void bny_weighing_release(struct banyan_comm *c, struct bny_weighing *w);
void bny_weighings_free(struct banyan_comm *c);
/* The kind of a codec that calls may use; NULL: raw. */
int bny_weighing_kind(const struct bny_weighing *w, const struct bny_codec *codec);
/* That of mixtures. */
static inline int bny_weighing_mixed(const struct bny_weighing *w)
{
    return w->nkinds - 1;
}
int bny_weighing_size(double bytes);
/* Numbers that an answer of it has. */
size_t bny_weighing_numbers(const struct bny_weighing *w);
/* Copies an answer of it. */
void bny_weighing_copy(const struct bny_weighing *w, struct bny_measured *to,
                       const struct bny_measured *from);
/* What this rank knows. */
void bny_weighing_ask(const struct bny_weighing *w, const struct bny_port *p,
                      struct bny_measured *own);
/* Seconds of a call of such a kind, measured; 0: unknown. */
double bny_measured_seconds(const struct bny_measured *m, int kind, double bytes);
/* Such a call begins, is decided to be of a kind, and is over. is_trial: it is not the kind
 * that was chosen. */
void bny_port_begin(struct banyan_comm *c);
void bny_port_runs(struct banyan_comm *c, struct bny_weighing *w, int kind, double bytes,
                   int is_trial);
void bny_port_done(struct banyan_comm *c, int result);

#endif
