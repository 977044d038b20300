/* SPDX-License-Identifier: BSD-3-Clause */
/* Models that cases of training/ and methods/ make from a seed, alike on all ranks. */
#include "tests/mp/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "tests/mp/model.h"

/* Where tensor i lies: the same order as the tensors, some with a gap before them. */
void net_place(struct net *m, uint64_t *s)
{
    size_t at = 0, place[NET_MOST];

    for (size_t i = 0; i < m->n; i++) {
        size_t esz = banyan_dtype_bytes(m->at[i].dtype);
        at += bny_rng_below(s, 3) ? 0 : 64 * bny_rng_below(s, 3);
        at = (at + esz - 1) & ~(esz - 1);
        place[i] = at;
        at += m->count[i] * esz;
    }
    m->bytes = at + 64;
    m->memory = case_malloc(m->bytes);
    memset(m->memory, 0, m->bytes);
    for (size_t i = 0; i < m->n; i++)
        m->at[i].grad = m->memory + place[i];
}

static void net_tensor(struct net *m, size_t i, enum banyan_dtype dtype, uint64_t *s)
{
    static const int64_t lengths[] = { 1, 2, 3, 7, 16, 33, 100, 257 };
    int ndim = (int)bny_rng_below(s, 4);

    snprintf(m->name[i], sizeof m->name[i], "layer%zu.%s", i / 2, i % 2 ? "bias" : "weight");
    m->count[i] = 1;
    for (int d = 0; d < ndim; d++) {
        m->shape[i][d] = lengths[bny_rng_below(s, d == 2 ? 4 : 8)];
        m->count[i] *= (size_t)m->shape[i][d];
    }
    m->at[i] = (struct banyan_tensor){
        .name = m->name[i], .dtype = dtype, .ndim = ndim, .shape = m->shape[i]
    };
}

void net_make(struct net *m, size_t n, int mixed, uint64_t *s)
{
    static const enum banyan_dtype types[] = { BANYAN_F32, BANYAN_F64, BANYAN_F16,
                                               BANYAN_BF16 };

    memset(m, 0, sizeof *m);
    m->n = n;
    for (size_t i = 0; i < n; i++)
        net_tensor(m, i, mixed ? types[bny_rng_below(s, 4)] : BANYAN_F32, s);
    net_place(m, s);
}

void net_free(struct net *m)
{
    free(m->memory);
}

/* Small whole numbers: their sums are exact in all types. */
double net_value(uint64_t key, size_t tensor, size_t i, int rank)
{
    uint64_t x = model_mix(model_mix(key, tensor * 1000003 + i), (uint64_t)rank);

    return (double)(x % 9) - 4;
}

/* Numbers of any size, for codecs. */
void net_gauss(struct net *m, uint64_t key, int rank)
{
    for (size_t i = 0; i < m->n; i++)
        model_gauss(m->at[i].grad, m->count[i], m->at[i].dtype,
                    model_mix(model_mix(key, i), (uint64_t)rank));
}

uint64_t net_hash(const struct net *m)
{
    uint64_t h = 0;

    for (size_t i = 0; i < m->n; i++)
        h = model_mix(
            h, case_hash(m->at[i].grad, m->count[i] * banyan_dtype_bytes(m->at[i].dtype)));
    return h;
}

void net_shuffle(size_t *order, size_t n, uint64_t *s)
{
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n; i > 1; i--) {
        size_t j = bny_rng_below(s, i), x = order[j];
        order[j] = order[i - 1];
        order[i - 1] = x;
    }
}

/* Marks it whole, or in parts in any order. */
void net_mark(struct test *t, struct banyan_buckets *b, const struct net *m, size_t i,
              uint64_t *s)
{
    size_t count = m->count[i], cuts[5] = { 0, 0, 0, 0, count }, order[4];

    if (bny_rng_below(s, 3)) {
        CHECK_OK(t, banyan_buckets_ready(b, i));
        return;
    }
    for (int k = 1; k < 4; k++)
        cuts[k] = cuts[k - 1] + bny_rng_below(s, count - cuts[k - 1] + 1);
    net_shuffle(order, 4, s);
    for (int k = 0; k < 4; k++)
        CHECK_OK(t, banyan_buckets_ready_part(b, i, cuts[order[k]],
                                              cuts[order[k] + 1] - cuts[order[k]]));
}

void net_mark_all(struct test *t, struct banyan_buckets *b, const struct net *m, uint64_t *s)
{
    size_t order[NET_MOST];

    net_shuffle(order, m->n, s);
    for (size_t k = 0; k < m->n; k++)
        net_mark(t, b, m, order[k], s);
}

double net_eps(enum banyan_dtype dtype)
{
    return dtype == BANYAN_F64   ? 0x1p-51
           : dtype == BANYAN_F32 ? 0x1p-22
           : dtype == BANYAN_F16 ? 0x1p-10
                                 : 0x1p-7;
}

struct banyan_buckets *net_with_codecs(struct test *t, struct net *m, struct banyan_comm *comm,
                                       size_t bucket_bytes, uint64_t *s)
{
    struct banyan_buckets_config cfg;
    struct banyan_buckets *b;

    net_make(m, 9, 0, s);
    for (size_t i = 0; i < 9; i += 2) { /* weights that a matrix codec likes */
        m->shape[i][0] = 60 + (int64_t)i;
        m->shape[i][1] = 40;
        m->at[i].ndim = 2;
        m->count[i] = (size_t)(60 + i) * 40;
    }
    /* Two that are large enough for chunks: sums depend on where in a bucket they lie, but for
     * deterministic ones. */
    m->at[3].ndim = m->at[8].ndim = 1;
    m->count[3] = (size_t)(m->shape[3][0] = 50001);
    m->count[8] = (size_t)(m->shape[8][0] = 40000);
    net_free(m);
    net_place(m, s);
    cfg = (struct banyan_buckets_config)BANYAN_BUCKETS_CONFIG_INIT;
    cfg.bucket_bytes = bucket_bytes;
    cfg.first_bytes = bucket_bytes / 2 + 1;
    cfg.deterministic = 1;
    cfg.op = BANYAN_SUM;
    cfg.seed = t->seed;
    cfg.rules = "layer0.weight=topk:delta=0.05,force=1; layer1.weight=int8:random=1,force=1;"
                "layer2.weight=powersgd:rank=2,force=1; layer3.weight=onebit:force=1;*=none";
    CHECK_OK(t, banyan_buckets_create(&b, comm, m->at, m->n, &cfg));
    return b;
}
