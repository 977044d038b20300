/* SPDX-License-Identifier: BSD-3-Clause */
/* One random test over the product of features (mix.h), where nothing happens to anybody. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mp/mix.h"

static void open_all(struct mix *m, struct test *t)
{
    memset(m, 0, sizeof *m);
    m->t = t;
    m->max = 1 << 20;
    m->shared = t->seed;
    m->own = model_mix(t->seed, (uint64_t)t->rank + 1000);
    m->late_us = 1000;
    m->ncomms = MIX_COMMS;
    m->comm[0] = t->comm;
    CHECK_OK(t, banyan_comm_dup(t->comm, &m->comm[1]));
    CHECK_OK(t, banyan_comm_split(t->comm, t->rank % 2, 0, &m->comm[2]));
    CHECK_OK(t, banyan_comm_split(t->comm, 0, t->n - t->rank, &m->comm[3]));
    for (int c = 0; c < MIX_COMMS; c++)
        for (int k = 0; k < MIX_STATES; k++)
            CHECK_OK(t, banyan_codec_state_create(&m->state[c][k], lossy_count(k), t->seed));
    for (int i = 0; i < MIX_ITEMS; i++)
        for (int k = 0; k < 2; k++)
            image_pool_make(t, t->comm, &m->pool[i][k], (enum image_memory)(k + 1),
                            m->max + 4096);
}

static void close_all(struct mix *m)
{
    const struct test *t = m->t;

    for (int i = 0; i < MIX_ITEMS; i++)
        for (int k = 0; k < 2; k++)
            image_pool_free(t, t->comm, &m->pool[i][k]);
    for (int c = 0; c < MIX_COMMS; c++)
        for (int k = 0; k < MIX_STATES; k++)
            banyan_codec_state_free(m->state[c][k]);
    for (int c = MIX_COMMS - 1; c > 0; c--)
        CHECK_OK(t, banyan_comm_finalize(m->comm[c]));
}

/* "ROUNDS", scaled by BANYAN_TEST_SCALE. */
static int product(struct test *t)
{
    struct mix *m = case_malloc(sizeof *m);
    const char *scale = getenv("BANYAN_TEST_SCALE");
    long rounds = (long)((double)atol(t->arg) * (scale ? strtod(scale, NULL) : 1)) + 1;

    open_all(m, t);
    for (long round = 0; round < rounds; round++)
        CHECK_OK(t, mix_round(m));
    if (t->rank == 0)
        printf("note: %ld rounds, %ld calls, %ld refused, seed %llu\n", rounds, m->calls,
               m->refused, (unsigned long long)t->seed);
    close_all(m);
    free(m);
    return 0;
}

const struct mp_case cases_product[] = {
    { "product", product, 0 },
    { 0 },
};
