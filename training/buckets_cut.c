/* SPDX-License-Identifier: BSD-3-Clause */
/* The buckets that cutting (cut.c) makes: the parts of tensors in each, its memory, its
 * request. Only where the memory lies is a rank's own. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "training/buckets.h"
#include "training/cut.h"

/* ---- which tensors share one ---- */

static int cut(struct banyan_buckets *b, struct bny_cut *c)
{
    size_t n = b->model.n;
    struct bny_cut_tensor *t = calloc(n + 1, sizeof *t);
    int rc;

    for (size_t i = 0; t && i < n; i++)
        t[i] = (struct bny_cut_tensor){ .count = b->model.at[i].count,
                                        .elem = banyan_dtype_bytes(b->model.at[i].dtype),
                                        .kind = b->model.at[i].dtype,
                                        .schedule = b->tensor[i].schedule,
                                        .alone = b->tensor[i].codec != NULL };
    rc = t ? bny_cut(c, t, n, b->order, b->cfg.bucket_bytes, b->cfg.first_bytes)
           : -BANYAN_ENOMEM;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        b->tensor[i].first = t[i].first;
        b->tensor[i].npieces = t[i].npieces;
        b->tensor[i].piece = t[i].piece;
    }
    free(t);
    return rc;
}

/* ---- what is in each ---- */

static void count_spans(struct banyan_buckets *b)
{
    struct bny_span *at = b->spans;

    for (size_t i = 0; i < b->model.n; i++) {
        struct bny_bucketed *k = &b->tensor[i];
        for (size_t p = 0; p < k->npieces; p++)
            b->bucket[k->first + p].nspans++;
    }
    for (size_t j = 0; j < b->nbuckets; j++) {
        b->bucket[j].spans = at;
        at += b->bucket[j].nspans;
        b->bucket[j].nspans = 0;
    }
}

/* In the order of registration, in which their memory most often lies. */
static void fill_spans(struct banyan_buckets *b)
{
    for (size_t i = 0; i < b->model.n; i++) {
        struct bny_bucketed *k = &b->tensor[i];
        for (size_t p = 0; p < k->npieces; p++) {
            struct bny_bucket *u = &b->bucket[k->first + p];
            size_t at = p * k->piece, rest = b->model.at[i].count - at;
            struct bny_span *s = &u->spans[u->nspans++];
            *s = (struct bny_span){ .tensor = i,
                                    .at = at,
                                    .count = rest < k->piece ? rest : k->piece,
                                    .offset = u->count };
            u->dtype = b->model.at[i].dtype;
            u->count += s->count;
            k->offset = s->offset;
        }
    }
}

static char *buckets_cut_place_of(const struct banyan_buckets *b, const struct bny_span *s)
{
    const struct bny_tensor *t = &b->model.at[s->tensor];

    return (char *)t->grad + s->at * banyan_dtype_bytes(t->dtype);
}

/* Gradients that lie one behind the other need no copy. */
static int is_contiguous(const struct banyan_buckets *b, const struct bny_bucket *u)
{
    size_t esz = banyan_dtype_bytes(u->dtype);

    for (size_t k = 1; k < u->nspans; k++)
        if (buckets_cut_place_of(b, &u->spans[k - 1]) + u->spans[k - 1].count * esz !=
            buckets_cut_place_of(b, &u->spans[k]))
            return 0;
    return 1;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Buffers of all that are copied are one piece of memory, which peers can map. */
static int make_memory(struct banyan_buckets *b)
{
    size_t need = 0;
    void *at;
    int rc;

    for (size_t j = 0; j < b->nbuckets; j++) {
        struct bny_bucket *u = &b->bucket[j];
        u->is_copied = !is_contiguous(b, u);
        if (u->is_copied)
            need += rounded(u->count * banyan_dtype_bytes(u->dtype));
        else
            u->memory = buckets_cut_place_of(b, &u->spans[0]);
    }
    if (!need)
        return 0;
    rc = banyan_mem_alloc(b->comm, need, &at);
    if (rc < 0)
        return rc;
    b->memory = at;
    need = 0;
    for (size_t j = 0; j < b->nbuckets; j++) {
        struct bny_bucket *u = &b->bucket[j];
        if (!u->is_copied)
            continue;
        u->memory = b->memory + need;
        need += rounded(u->count * banyan_dtype_bytes(u->dtype));
    }
    return 0;
}

/* ---- requests ---- */

int bny_buckets_request(struct banyan_buckets *b, size_t i, const char *codec, void *memory,
                        size_t count, struct banyan_request **out)
{
    const struct bny_tensor *t = &b->model.at[i];
    struct bny_bucketed *k = &b->tensor[i];
    struct banyan_opts o = BANYAN_OPTS_INIT;
    struct banyan_request_stats times = { .size = sizeof times };
    int rc;

    o.codec = codec ? codec : "none";
    o.schedule = k->schedule;
    o.timeout_s = b->cfg.timeout_s;
    /* With a codec every tensor is an operation of its own, however buckets are cut. */
    o.deterministic = codec ? 0 : b->cfg.deterministic;
    if (codec) {
        o.codec_state = k->state;
        o.shape = t->shape;
        o.ndim = t->ndim;
    }
    rc = banyan_allreduce_init(memory, memory, count, t->dtype, b->cfg.op, b->comm, &o, out);
    if (rc == 0)
        rc = banyan_request_stats(*out, &times); /* times are taken from now on */
    if (rc < 0)
        return bny_fail((enum banyan_error) - rc, "tensor %s, codec %s: %s", t->name, o.codec,
                        banyan_last_error());
    return 0;
}

static int make_requests(struct banyan_buckets *b)
{
    int rc = 0;

    for (size_t j = 0; j < b->nbuckets && rc == 0; j++) {
        struct bny_bucket *u = &b->bucket[j];
        size_t i = u->spans[0].tensor;
        u->missing = u->count;
        rc = bny_buckets_request(b, i, b->tensor[i].codec, u->memory, u->count, &u->req);
    }
    return rc;
}

void bny_buckets_uncut(struct banyan_buckets *b)
{
    for (size_t j = 0; j < b->nbuckets; j++)
        banyan_request_free(b->bucket[j].req);
    if (b->memory)
        banyan_mem_free(b->comm, b->memory);
    free(b->bucket);
    free(b->spans);
    b->memory = NULL;
    b->bucket = NULL;
    b->spans = NULL;
    b->nbuckets = b->next = b->oldest = 0;
}

int bny_buckets_cut(struct banyan_buckets *b)
{
    struct bny_cut c;
    int rc;

    bny_buckets_uncut(b);
    if (cut(b, &c) == 0) {
        b->bucket = calloc(c.nbuckets + 1, sizeof *b->bucket);
        b->spans = calloc(c.nspans + 1, sizeof *b->spans);
    }
    if (b->bucket && b->spans) {
        b->nbuckets = c.nbuckets;
        count_spans(b);
        fill_spans(b);
        rc = make_memory(b);
    } else {
        rc = bny_fail(BANYAN_ENOMEM, "no memory for buckets of %zu tensors", b->model.n);
    }
    if (rc == 0)
        rc = make_requests(b);
    b->is_stale = rc < 0;
    if (rc < 0)
        bny_buckets_uncut(b);
    return rc;
}
