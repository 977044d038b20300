/* SPDX-License-Identifier: BSD-3-Clause */
/* A model's tensors, with gradients: what buckets are tested with. */
#ifndef BNY_TESTS_MP_NET_H
#define BNY_TESTS_MP_NET_H

#include "banyan/training.h"
#include "tests/mp/case.h"

#define NET_MOST 40

struct net { /* a model's gradients */
    struct banyan_tensor at[NET_MOST];
    char name[NET_MOST][40];
    int64_t shape[NET_MOST][8];
    size_t count[NET_MOST], n, bytes;
    char *memory;
};

/* n tensors "layer0.weight", "layer0.bias", ...; mixed: of all floating types, else f32. */
void net_make(struct net *m, size_t n, int mixed, uint64_t *s);
/* Memory for gradients of m->count: in the order of the tensors, some behind a gap. */
void net_place(struct net *m, uint64_t *s);
void net_free(struct net *m);
/* Small whole numbers: their sums are exact in all types. */
double net_value(uint64_t key, size_t tensor, size_t i, int rank);
/* Gradients of any size, for codecs. */
void net_gauss(struct net *m, uint64_t key, int rank);
uint64_t net_hash(const struct net *m);
/* order[n]: the numbers below n. */
void net_shuffle(size_t *order, size_t n, uint64_t *s);
/* Marks a tensor whole, or in parts in any order; all of them in any order. */
void net_mark(struct test *t, struct banyan_buckets *b, const struct net *m, size_t i,
              uint64_t *s);
void net_mark_all(struct test *t, struct banyan_buckets *b, const struct net *m, uint64_t *s);
/* How exact an average is, of its size. */
double net_eps(enum banyan_dtype dtype);
/* Nine tensors of f32, four of them with a codec; sums, and the same bits however they are cut.
 */
struct banyan_buckets *net_with_codecs(struct test *t, struct net *m, struct banyan_comm *comm,
                                       size_t bucket_bytes, uint64_t *s);

#endif
