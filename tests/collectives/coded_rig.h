/* SPDX-License-Identifier: BSD-3-Clause */
/* All ranks of a job in one thread over the loop transport, each with a codec state.
 * BANYAN_TEST_SEED repeats a run. */
#ifndef BNY_TESTS_CODED_RIG_H
#define BNY_TESTS_CODED_RIG_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "collectives/api/job.h"
#include "collectives/progress/progress.h"
#include "transport/loop/fabric.h"
#include "transport/loop/loop.h"

#define MAX_N 6

struct rig {
    int n;
    size_t count;
    struct bny_loop_fabric *fabric;
    struct banyan_comm *comm[MAX_N];
    struct banyan_request *req[MAX_N];
    struct banyan_codec_state *state[MAX_N];
    float *in[MAX_N], *out[MAX_N];
    uint64_t rng;
    char text[600]; /* the first error of drive() */
};

static inline uint64_t seed_of_run(void)
{
    const char *text = getenv("BANYAN_TEST_SEED");

    return text ? strtoull(text, NULL, 0) : 4711;
}

/* A network that loses, doubles and reorders. */
static inline struct bny_loop_faults faults_of_run(void)
{
    return (struct bny_loop_faults){ .seed = seed_of_run(),
                                     .loss = 0.1,
                                     .duplicate = 0.1,
                                     .reorder = 0.2,
                                     .delay_polls_max = 5,
                                     .queue_max = 4 };
}

static inline void rig_open(struct rig *g, int n, size_t count,
                            const struct bny_loop_faults *faults)
{
    memset(g, 0, sizeof *g);
    setenv("BANYAN_CODEC_FORCE", "1", 1);
    g->n = n;
    g->count = count;
    g->rng = seed_of_run() + (uint64_t)n;
    g->fabric = bny_loop_fabric_create(n, faults);
    cr_assert_not_null(g->fabric);
    for (int r = 0; r < n; r++) {
        cr_assert_eq(bny_comm_loop(&g->comm[r], g->fabric, n, r, NULL), 0, "%s",
                     banyan_last_error());
        cr_assert_eq(banyan_codec_state_create(&g->state[r], count, 99), 0);
        g->in[r] = calloc(count + 1, 4);
        g->out[r] = calloc(count + 1, 4);
    }
}

/* Each rank is a host: else ranks 2i and 2i + 1 are one, in which data goes raw. */
static inline void rig_part(struct rig *g)
{
    for (int r = 0; r < g->n; r++)
        g->comm[r]->scope.topology = NULL;
}

static inline void rig_close(struct rig *g)
{
    for (int r = 0; r < g->n; r++) {
        g->comm[r]->world->orderly = 0; /* no farewell: one thread cannot wait for itself */
        banyan_comm_destroy(g->comm[r]);
        banyan_codec_state_free(g->state[r]);
        free(g->in[r]);
        free(g->out[r]);
    }
    bny_loop_fabric_destroy(g->fabric);
}

static inline void fill(struct rig *g)
{
    for (int r = 0; r < g->n; r++)
        for (size_t i = 0; i < g->count; i++)
            g->in[r][i] = (float)((bny_rng_unit(&g->rng) - 0.5) * (1 + (double)(i % 7)));
}

/* Runs the requests of all ranks to their end. Returns the first error. */
static inline int drive(struct rig *g, const char *what)
{
    int done[MAX_N] = { 0 }, left = g->n, first = 0;

    for (int r = 0; r < g->n; r++)
        cr_assert_eq(banyan_start(g->req[r]), 0, "%s: %s", what, banyan_last_error());
    for (long turn = 0; left > 0; turn++) {
        int r = (int)bny_rng_below(&g->rng, (uint64_t)g->n), d = 0, rc;
        cr_assert_lt(turn, 3000000, "%s: stuck; %s", what, g->text);
        if (done[r]) {
            banyan_progress(g->comm[r]);
            continue;
        }
        rc = banyan_test(g->req[r], &d);
        if (rc && !first)
            snprintf(g->text, sizeof g->text, "rank %d: %s", r, banyan_last_error());
        first = first ? first : rc;
        if (d) {
            done[r] = 1;
            left--;
        }
    }
    for (int r = 0; r < g->n; r++)
        cr_assert_eq(banyan_request_free(g->req[r]), 0);
    return first;
}

static inline int allreduce(struct rig *g, const char *codec, const char *schedule,
                            size_t chunk, banyan_op op, int state, int in_place)
{
    struct banyan_opts o = BANYAN_OPTS_INIT;
    char what[160];

    snprintf(what, sizeof what, "allreduce n=%d codec=%s schedule=%s chunk=%zu op=%d state=%d",
             g->n, codec, schedule ? schedule : "auto", chunk, (int)op, state);
    o.codec = codec;
    o.schedule = schedule;
    o.chunk_bytes = chunk;
    for (int r = 0; r < g->n; r++) {
        int rc;
        o.codec_state = state ? g->state[r] : NULL;
        if (in_place)
            memcpy(g->out[r], g->in[r], 4 * g->count);
        rc = banyan_allreduce_init(in_place ? g->out[r] : g->in[r], g->out[r], g->count,
                                   BANYAN_F32, op, g->comm[r], &o, &g->req[r]);
        if (rc == -BANYAN_ENOTSUP && r == 0)
            return 1;
        cr_assert_eq(rc, 0, "%s: %s", what, banyan_last_error());
    }
    cr_assert_eq(drive(g, what), 0, "%s: %s", what, banyan_last_error());
    for (int r = 1; r < g->n; r++)
        cr_assert_eq(memcmp(g->out[0], g->out[r], 4 * g->count), 0, "%s: ranks 0 and %d differ",
                     what, r);
    return 0;
}

enum lie { FLIP_PAYLOAD, FLIP_HEADER, TRUNCATE, NOISE, LIES };

static inline int coded_is_linear(size_t i)
{
    return bny_codecs[i]->family == BNY_CODEC_LINEAR || bny_codecs[i]->family == BNY_CODEC_RAW;
}

/* test_coded.c: sum(inputs) + sum(old residuals) = n * avg + sum(new residuals), over many
 * steps, forests, parameters. */
void coded_law(const char *codec, const char *other, int n, size_t count);
/* test_coded_peers.c: spoils one chunk of an allreduce. 1: it was spoilt, and the peer named
 * for it. */
int coded_lie(const struct bny_codec_ops *codec, const char *schedule, enum lie lie, int crc,
              int round);

#endif
