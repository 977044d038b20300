/* SPDX-License-Identifier: BSD-3-Clause */
/* Cutting: which tensors share an allreduce, in which order allreduces start, and what memory
 * they work on. A function of the order, sizes, types, codecs and schedules, which all ranks
 * share; only where the memory lies is a rank's own. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "training/buckets.h"

/* Tensors from so many buckets on are reduced in pieces: parts of them start while others are
 * not ready, and those that wait behind do so for less long. */
#define PIECES_FROM 8
#define PIECE_LEAST (32u << 10) /* bytes: more operations would only cost */

static size_t piece_bytes(const struct banyan_buckets *b)
{
    size_t bytes = PIECES_FROM * b->cfg.bucket_bytes;

    return bytes > PIECE_LEAST ? bytes : PIECE_LEAST;
}

/* ---- which tensors share one ---- */

struct open { /* a bucket that is being filled; one for each type and schedule */
    size_t id, bytes, last;
    enum banyan_dtype dtype;
    const char *schedule;
    int is_open;
};

struct cut {
    struct open *open; /* [nopen] */
    size_t nopen;
    size_t *place; /* [bucket's number]: its place in the order of starts */
    size_t nbuckets, nplaced, nspans;
};

static int same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static struct open *open_for(struct cut *c, const struct bny_tensor *t, const char *schedule)
{
    struct open *o = c->open;

    while (o < c->open + c->nopen &&
           (o->dtype != t->dtype || !same_text(o->schedule, schedule)))
        o++;
    if (o == c->open + c->nopen) {
        c->nopen++;
        *o = (struct open){ .dtype = t->dtype, .schedule = schedule };
    }
    return o;
}

static void close_one(struct cut *c, struct open *o)
{
    c->place[o->id] = c->nplaced++;
    o->is_open = 0;
}

static size_t limit(const struct banyan_buckets *b, const struct cut *c)
{
    return c->nplaced ? b->cfg.bucket_bytes : b->cfg.first_bytes;
}

/* With a codec, or large: an allreduce of its own, or several. */
static void place_alone(const struct banyan_buckets *b, struct cut *c, size_t i)
{
    const struct bny_tensor *t = &b->model.at[i];
    struct bny_bucketed *k = &b->tensor[i];
    size_t each = piece_bytes(b) / banyan_dtype_bytes(t->dtype);

    k->piece = k->codec || t->count <= each ? t->count : each;
    k->npieces = (t->count + k->piece - 1) / k->piece;
    k->first = c->nbuckets;
    c->nspans += k->npieces;
    for (size_t p = 0; p < k->npieces; p++)
        c->place[c->nbuckets++] = c->nplaced++;
}

static void place(const struct banyan_buckets *b, struct cut *c, size_t at)
{
    size_t i = b->order[at];
    const struct bny_tensor *t = &b->model.at[i];
    struct bny_bucketed *k = &b->tensor[i];
    struct open *o;

    if (k->codec || t->bytes >= b->cfg.bucket_bytes) {
        place_alone(b, c, i);
        return;
    }
    o = open_for(c, t, k->schedule);
    if (o->is_open && o->bytes + t->bytes > limit(b, c))
        close_one(c, o);
    if (!o->is_open) {
        o->is_open = 1;
        o->bytes = 0;
        o->id = c->nbuckets++;
    }
    o->bytes += t->bytes;
    o->last = at;
    k->first = o->id;
    k->npieces = 1;
    k->piece = t->count;
    c->nspans++;
    if (o->bytes >= limit(b, c))
        close_one(c, o);
}

/* Those that did not fill, in the order in which their last tensors become ready. */
static void close_rest(struct cut *c)
{
    for (;;) {
        struct open *first = NULL;
        for (size_t i = 0; i < c->nopen; i++)
            if (c->open[i].is_open && (!first || c->open[i].last < first->last))
                first = &c->open[i];
        if (!first)
            return;
        close_one(c, first);
    }
}

/* ---- what is in each ---- */

/* Numbers of buckets become places; sizes are counted. */
static void count_spans(struct banyan_buckets *b, const struct cut *c)
{
    struct bny_span *at = b->spans;

    for (size_t i = 0; i < b->model.n; i++) {
        struct bny_bucketed *k = &b->tensor[i];
        k->first = c->place[k->first];
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

static char *place_of(const struct banyan_buckets *b, const struct bny_span *s)
{
    const struct bny_tensor *t = &b->model.at[s->tensor];

    return (char *)t->grad + s->at * banyan_dtype_bytes(t->dtype);
}

/* Gradients that lie one behind the other need no copy. */
static int is_contiguous(const struct banyan_buckets *b, const struct bny_bucket *u)
{
    size_t esz = banyan_dtype_bytes(u->dtype);

    for (size_t k = 1; k < u->nspans; k++)
        if (place_of(b, &u->spans[k - 1]) + u->spans[k - 1].count * esz !=
            place_of(b, &u->spans[k]))
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
            u->memory = place_of(b, &u->spans[0]);
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
                        bny_why(rc));
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

static size_t most_buckets(const struct banyan_buckets *b)
{
    size_t most = 1;

    for (size_t i = 0; i < b->model.n; i++)
        most += 1 + b->model.at[i].bytes / piece_bytes(b);
    return most;
}

int bny_buckets_cut(struct banyan_buckets *b)
{
    struct cut c = { .open = calloc(b->model.n + 1, sizeof *c.open),
                     .place = calloc(most_buckets(b), sizeof *c.place) };
    int rc = 0;

    bny_buckets_uncut(b);
    if (c.open && c.place) {
        for (size_t at = 0; at < b->model.n; at++)
            place(b, &c, at);
        close_rest(&c);
        b->bucket = calloc(c.nbuckets + 1, sizeof *b->bucket);
        b->spans = calloc(c.nspans + 1, sizeof *b->spans);
    }
    if (b->bucket && b->spans) {
        b->nbuckets = c.nbuckets;
        count_spans(b, &c);
        fill_spans(b);
        rc = make_memory(b);
    } else {
        rc = bny_fail(BANYAN_ENOMEM, "no memory for buckets of %zu tensors", b->model.n);
    }
    if (rc == 0)
        rc = make_requests(b);
    free(c.open);
    free(c.place);
    b->is_stale = rc < 0;
    if (rc < 0)
        bny_buckets_uncut(b);
    return rc;
}
