/* SPDX-License-Identifier: BSD-3-Clause */
/* Between steps: codecs of tensors change, states are saved and loaded, costs are told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sized.h"
#include "training/buckets.h"
#include "training/saved.h"

/* ---- codecs ---- */

/* Codecs that choose at random shall not choose alike for all tensors. */
static uint64_t seed_of(const struct banyan_buckets *b, size_t i)
{
    return b->cfg.seed + 0x9e3779b97f4a7c15u * (i + 1);
}

int bny_buckets_make_state(struct banyan_buckets *b, size_t i)
{
    struct bny_bucketed *k = &b->tensor[i];

    if (k->state)
        return 0;
    return banyan_codec_state_create(&k->state, b->model.at[i].count, seed_of(b, i));
}

/* Moving applies the factors that wait for an operation. */
int bny_buckets_take_residuals(struct banyan_buckets *b)
{
    int rc = 0;

    for (size_t i = 0; i < b->model.n && rc == 0; i++) {
        struct bny_bucketed *k = &b->tensor[i];
        struct banyan_codec_state *old = k->state;
        if (k->codec || !old)
            continue;
        k->state = NULL;
        rc = bny_buckets_make_state(b, i);
        if (rc == 0)
            rc = banyan_codec_state_move(k->state, 0, old, 0, b->model.at[i].count);
        banyan_codec_state_free(old);
    }
    return rc;
}

int bny_buckets_move_residuals(struct banyan_buckets *to, struct banyan_buckets *from)
{
    int rc = 0;

    for (size_t i = 0; i < to->model.n && rc == 0; i++) {
        if (!from->tensor[i].state)
            continue;
        rc = bny_buckets_make_state(to, i);
        if (rc == 0)
            rc = banyan_codec_state_move(to->tensor[i].state, 0, from->tensor[i].state, 0,
                                         to->model.at[i].count);
    }
    return rc;
}

void bny_buckets_drop_residuals(struct banyan_buckets *b)
{
    for (size_t i = 0; i < b->model.n; i++)
        if (b->tensor[i].state)
            banyan_codec_state_reset(b->tensor[i].state);
}

static int buckets_state_find(const struct banyan_buckets *b, size_t tensor, const char *what)
{
    int rc = bny_object_check(b, BNY_BUCKETS_KIND, what);

    if (rc == 0 && tensor >= b->model.n)
        rc = bny_fail(BANYAN_EINVAL, "%s: tensor %zu of %zu", what, tensor, b->model.n);
    return rc;
}

/* The request is made first, so that a codec that does not fit changes nothing. */
static int change_codec(struct banyan_buckets *b, size_t i, char *codec)
{
    struct bny_bucketed *k = &b->tensor[i];
    struct banyan_request *req = NULL;
    int rc = 0;

    if (codec)
        rc = bny_buckets_make_state(b, i);
    if (rc == 0 && codec)
        rc = bny_buckets_request(b, i, codec, b->model.at[i].grad, b->model.at[i].count, &req);
    if (rc < 0)
        return rc;
    if (req && k->codec && !b->is_stale) {
        struct bny_bucket *u = &b->bucket[k->first];
        struct banyan_request *old = u->req;
        u->req = req;
        req = old;
    } else {
        b->is_stale = 1; /* into a bucket with others, or out of it */
    }
    banyan_request_free(req);
    free(k->codec);
    k->codec = codec;
    return 0;
}

int banyan_buckets_set_codec(struct banyan_buckets *b, size_t tensor, const char *codec)
{
    static const char what[] = "banyan_buckets_set_codec";
    int rc = bny_buckets_check_idle(b, what);
    char *copy = NULL;

    if (rc == 0)
        rc = buckets_state_find(b, tensor, what);
    if (rc < 0)
        return rc;
    if (codec && (!*codec || !strcmp(codec, "none")))
        codec = NULL;
    if (codec == b->tensor[tensor].codec ||
        (codec && b->tensor[tensor].codec && !strcmp(codec, b->tensor[tensor].codec)))
        return 0;
    if (codec && !(copy = strdup(codec)))
        return bny_fail(BANYAN_ENOMEM, "no memory for the codec of tensor %s",
                        b->model.at[tensor].name);
    rc = change_codec(b, tensor, copy);
    if (rc < 0)
        free(copy);
    return rc;
}

const char *banyan_buckets_codec(const struct banyan_buckets *b, size_t tensor)
{
    if (buckets_state_find(b, tensor, "banyan_buckets_codec") < 0)
        return NULL;
    return b->tensor[tensor].codec ? b->tensor[tensor].codec : "none";
}

int banyan_buckets_scale_residuals(struct banyan_buckets *b, double factor)
{
    int rc = bny_buckets_check_idle(b, "banyan_buckets_scale_residuals");

    for (size_t i = 0; rc == 0 && i < b->model.n; i++)
        if (b->tensor[i].state)
            rc = banyan_codec_state_scale(b->tensor[i].state, factor);
    return rc;
}

const float *banyan_buckets_residual(const struct banyan_buckets *b, size_t tensor)
{
    if (buckets_state_find(b, tensor, "banyan_buckets_residual") < 0 ||
        !b->tensor[tensor].state)
        return NULL;
    return banyan_codec_state_residual(b->tensor[tensor].state);
}

/* ---- accumulation ---- */

int banyan_buckets_set_accumulate(struct banyan_buckets *b, int k)
{
    int rc = bny_buckets_check_idle(b, "banyan_buckets_set_accumulate");

    if (rc == 0 && k < 1)
        rc = bny_fail(BANYAN_EINVAL, "banyan_buckets_set_accumulate: %d micro-steps; 1 or more",
                      k);
    if (rc == 0)
        b->cfg.accumulate = k;
    return rc;
}

int banyan_buckets_micro(const struct banyan_buckets *b)
{
    return bny_object_check(b, BNY_BUCKETS_KIND, "banyan_buckets_micro") == 0 ? b->micro : 0;
}

/* ---- saving ---- */

struct saved_head { /* what all tensors share */
    uint64_t n, model, seed, steps, wire_bytes_sum, hidden_ns_sum, exposed_ns_sum;
    int32_t accumulate, has_order;
};

struct saved_tensor { /* then the codec's text, then the state */
    uint64_t codec_bytes, state_bytes;
};

static struct saved_head head_of(const struct banyan_buckets *b)
{
    return (struct saved_head){ .n = b->model.n,
                                .model = b->model.hash,
                                .seed = b->cfg.seed,
                                .steps = b->steps,
                                .wire_bytes_sum = b->wire_bytes_sum,
                                .hidden_ns_sum = b->hidden_ns_sum,
                                .exposed_ns_sum = b->exposed_ns_sum,
                                .accumulate = b->cfg.accumulate,
                                .has_order = b->has_order };
}

/* Counting and writing. 0 or an error of a codec's state. */
static int buckets_state_put(struct bny_saved *s, const struct banyan_buckets *b)
{
    struct saved_head h = head_of(b);
    int rc = 0;

    bny_saved_bytes(s, &h, sizeof h);
    bny_saved_bytes(s, b->order, b->model.n * sizeof *b->order);
    for (size_t i = 0; i < b->model.n && rc == 0; i++) {
        const struct bny_bucketed *k = &b->tensor[i];
        struct saved_tensor t = { .codec_bytes = k->codec ? strlen(k->codec) : 0,
                                  .state_bytes =
                                      k->state ? banyan_codec_state_bytes(k->state) : 0 };
        bny_saved_bytes(s, &t, sizeof t);
        if (t.codec_bytes)
            bny_saved_bytes(s, k->codec, t.codec_bytes);
        if (s->what == BNY_SAVED_WRITE && t.state_bytes)
            rc = banyan_codec_state_save(k->state, s->at + s->len, t.state_bytes);
        s->len += t.state_bytes;
    }
    return rc;
}

size_t banyan_buckets_bytes(const struct banyan_buckets *b)
{
    struct bny_saved s;
    size_t bytes = 0;

    if (bny_buckets_check(b, "banyan_buckets_bytes") < 0)
        return 0;
    bny_saved_count(&s, BNY_BUCKETS_KIND);
    if (buckets_state_put(&s, b) == 0)
        bny_saved_end(&s, &bytes);
    return bytes;
}

int banyan_buckets_save(const struct banyan_buckets *b, void *buf, size_t cap)
{
    struct bny_saved s;
    int rc = bny_buckets_check_idle(b, "banyan_buckets_save");

    if (rc == 0)
        rc = bny_saved_write(&s, BNY_BUCKETS_KIND, buf, cap, banyan_buckets_bytes(b));
    if (rc == 0)
        rc = buckets_state_put(&s, b);
    return rc ? rc : bny_saved_end(&s, NULL);
}

/* A loaded state, before any of it is taken. */
struct loaded {
    struct saved_head head;
    uint32_t *order;
    struct bny_bucketed *tensor; /* [n]: codec and state */
};

static int no_state(const char *what)
{
    return bny_fail(BANYAN_EINVAL, "banyan_buckets_load: %s", what);
}

static int load_tensor(struct bny_saved *s, const struct banyan_buckets *b, struct loaded *l,
                       size_t i)
{
    struct bny_bucketed *k = &l->tensor[i];
    struct saved_tensor t;
    int rc = 0;

    bny_saved_bytes(s, &t, sizeof t);
    if (s->short_of || t.codec_bytes > s->cap - s->len ||
        t.state_bytes > s->cap - s->len - t.codec_bytes)
        return no_state("the state is of other tensors: it is too short");
    if (t.codec_bytes) {
        k->codec = strndup(s->at + s->len, t.codec_bytes);
        if (!k->codec)
            return bny_fail(BANYAN_ENOMEM, "no memory to load buckets");
    }
    s->len += t.codec_bytes;
    if (t.state_bytes) {
        rc = banyan_codec_state_create(&k->state, b->model.at[i].count, 0);
        if (rc == 0)
            rc = banyan_codec_state_load(k->state, s->at + s->len, t.state_bytes);
    }
    s->len += t.state_bytes;
    if (rc == 0 && k->codec && !k->state)
        rc = no_state("a tensor with a codec has no state");
    return rc;
}

static int is_order(const uint32_t *order, size_t n, uint32_t *seen)
{
    memset(seen, 0, n * sizeof *seen);
    for (size_t i = 0; i < n; i++)
        if (order[i] >= n || seen[order[i]]++)
            return 0;
    return 1;
}

static int load_all(struct bny_saved *s, struct banyan_buckets *b, struct loaded *l)
{
    size_t n = b->model.n;
    int rc = 0;

    l->order = calloc(n + 1, sizeof *l->order);
    l->tensor = calloc(n + 1, sizeof *l->tensor);
    if (!l->order || !l->tensor)
        return bny_fail(BANYAN_ENOMEM, "no memory to load buckets");
    bny_saved_bytes(s, &l->head, sizeof l->head);
    if (l->head.n != n || l->head.model != b->model.hash)
        return no_state("the state is of other tensors than these buckets");
    bny_saved_bytes(s, l->order, n * sizeof *l->order);
    if (!is_order(l->order, n, b->seen) || l->head.accumulate < 1)
        return no_state("the state's order of tensors is none");
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = load_tensor(s, b, l, i);
    return rc ? rc : bny_saved_end(s, NULL);
}

static void swap_in(struct banyan_buckets *b, struct loaded *l)
{
    b->cfg.seed = l->head.seed;
    b->cfg.accumulate = l->head.accumulate;
    b->steps = l->head.steps;
    b->wire_bytes_sum = l->head.wire_bytes_sum;
    b->hidden_ns_sum = l->head.hidden_ns_sum;
    b->exposed_ns_sum = l->head.exposed_ns_sum;
    b->has_order = l->head.has_order;
    memcpy(b->order, l->order, b->model.n * sizeof *b->order);
    for (size_t i = 0; i < b->model.n; i++) {
        struct bny_bucketed *k = &b->tensor[i], old = *k;
        k->codec = l->tensor[i].codec;
        k->state = l->tensor[i].state;
        l->tensor[i].codec = old.codec;
        l->tensor[i].state = old.state;
    }
}

static void loaded_free(struct loaded *l, size_t n)
{
    for (size_t i = 0; l->tensor && i < n; i++) {
        banyan_codec_state_free(l->tensor[i].state);
        free(l->tensor[i].codec);
    }
    free(l->tensor);
    free(l->order);
}

int banyan_buckets_load(struct banyan_buckets *b, const void *buf, size_t bytes)
{
    static const char what[] = "banyan_buckets_load";
    struct loaded l = { .order = NULL };
    struct bny_saved s;
    int rc = bny_buckets_check_idle(b, what);

    if (rc == 0)
        rc = bny_saved_read(&s, BNY_BUCKETS_KIND, buf, bytes, what);
    if (rc < 0)
        return rc;
    rc = load_all(&s, b, &l);
    if (rc == 0) {
        bny_buckets_uncut(b); /* requests use the old states */
        swap_in(b, &l);
        rc = bny_buckets_cut(b);
        bny_buckets_clear(b);
        rc = rc < 0 ? bny_buckets_fail(b, rc) : 0;
    }
    loaded_free(&l, b->model.n);
    return rc;
}

/* ---- statistics ---- */

int banyan_buckets_tensor_stats(const struct banyan_buckets *b, size_t tensor,
                                struct banyan_buckets_tensor_stats *out)
{
    static const char what[] = "banyan_buckets_tensor_stats";
    struct banyan_buckets_tensor_stats s = { 0 };
    const struct bny_bucketed *k;
    int rc = bny_sized_check(out, what);

    if (rc == 0)
        rc = bny_object_check(b, BNY_BUCKETS_KIND, what);
    if (rc == 0)
        rc = buckets_state_find(b, tensor, what);
    if (rc < 0)
        return rc;
    k = &b->tensor[tensor];
    s.norm = k->norm;
    s.wire_bytes = k->wire_bytes;
    s.hidden_s = (double)k->hidden_ns * 1e-9;
    s.exposed_s = (double)k->exposed_ns * 1e-9;
    s.bucket = k->bucket;
    bny_sized_give(out, &s, sizeof s);
    return 0;
}

int banyan_buckets_stats(const struct banyan_buckets *b, struct banyan_buckets_stats *out)
{
    static const char what[] = "banyan_buckets_stats";
    struct banyan_buckets_stats s = { 0 };
    int rc = bny_sized_check(out, what);

    if (rc == 0)
        rc = bny_object_check(b, BNY_BUCKETS_KIND, what);
    if (rc < 0)
        return rc;
    s.steps = b->steps;
    s.buckets = b->nbuckets;
    s.wire_bytes = b->wire_bytes;
    s.wire_bytes_sum = b->wire_bytes_sum;
    s.hidden_s = (double)b->clock.hidden_ns * 1e-9;
    s.exposed_s = (double)b->clock.in_library_ns * 1e-9;
    s.hidden_s_sum = (double)b->hidden_ns_sum * 1e-9;
    s.exposed_s_sum = (double)b->exposed_ns_sum * 1e-9;
    bny_sized_give(out, &s, sizeof s);
    return 0;
}
