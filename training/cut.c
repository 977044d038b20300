/* SPDX-License-Identifier: BSD-3-Clause */
/* Buckets fill in the order in which tensors become ready (cut.h). */
#include "training/cut.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Tensors from so many buckets on are reduced in pieces: parts of them start while others are
 * not ready, and those that wait behind do so for less long. */
#define PIECES_FROM 8
#define PIECE_LEAST (32u << 10) /* bytes: more operations would only cost */

struct open { /* a bucket that is being filled; one for each kind and schedule */
    size_t id, bytes, last;
    int kind;
    const char *schedule;
    int is_open;
};

struct cut {
    struct open *open; /* [nopen] */
    size_t nopen;
    size_t *place; /* [bucket's number]: its place in the order of starts */
    size_t nbuckets, nplaced, nspans;
    size_t bucket_bytes, first_bytes, piece_bytes;
};

static int same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

static struct open *open_for(struct cut *c, const struct bny_cut_tensor *t)
{
    struct open *o = c->open;

    while (o < c->open + c->nopen &&
           (o->kind != t->kind || !same_text(o->schedule, t->schedule)))
        o++;
    if (o == c->open + c->nopen) {
        c->nopen++;
        *o = (struct open){ .kind = t->kind, .schedule = t->schedule };
    }
    return o;
}

static void close_one(struct cut *c, struct open *o)
{
    c->place[o->id] = c->nplaced++;
    o->is_open = 0;
}

static size_t limit(const struct cut *c)
{
    return c->nplaced ? c->bucket_bytes : c->first_bytes;
}

/* With a codec, or large: an allreduce of its own, or several. */
static void place_alone(struct cut *c, struct bny_cut_tensor *t)
{
    size_t each = c->piece_bytes / t->elem;

    t->piece = t->alone || t->count <= each ? t->count : each;
    t->npieces = (t->count + t->piece - 1) / t->piece;
    t->first = c->nbuckets;
    c->nspans += t->npieces;
    for (size_t p = 0; p < t->npieces; p++)
        c->place[c->nbuckets++] = c->nplaced++;
}

static void cut_place(struct cut *c, struct bny_cut_tensor *t, size_t at)
{
    size_t bytes = t->count * t->elem;
    struct open *o;

    if (t->alone || bytes >= c->bucket_bytes) {
        place_alone(c, t);
        return;
    }
    o = open_for(c, t);
    if (o->is_open && o->bytes + bytes > limit(c))
        close_one(c, o);
    if (!o->is_open) {
        o->is_open = 1;
        o->bytes = 0;
        o->id = c->nbuckets++;
    }
    o->bytes += bytes;
    o->last = at;
    t->first = o->id;
    t->npieces = 1;
    t->piece = t->count;
    c->nspans++;
    if (o->bytes >= limit(c))
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

static size_t most_buckets(const struct cut *c, const struct bny_cut_tensor *t, size_t n)
{
    size_t most = 1;

    for (size_t i = 0; i < n; i++)
        most += 2 + t[i].count * t[i].elem / c->piece_bytes;
    return most;
}

int bny_cut(struct bny_cut *out, struct bny_cut_tensor *t, size_t n, const uint32_t *order,
            size_t bucket_bytes, size_t first_bytes)
{
    struct cut c = { .bucket_bytes = bucket_bytes,
                     .first_bytes = first_bytes,
                     .piece_bytes = PIECES_FROM * bucket_bytes };

    if (c.piece_bytes < PIECE_LEAST)
        c.piece_bytes = PIECE_LEAST;
    c.open = calloc(n + 1, sizeof *c.open);
    c.place = calloc(most_buckets(&c, t, n), sizeof *c.place);
    if (!c.open || !c.place) {
        free(c.open);
        free(c.place);
        return -BANYAN_ENOMEM;
    }
    for (size_t at = 0; at < n; at++)
        cut_place(&c, &t[order[at]], at);
    close_rest(&c);
    for (size_t i = 0; i < n; i++) /* numbers of buckets become places */
        t[i].first = c.place[t[i].first];
    *out = (struct bny_cut){ c.nbuckets, c.nspans };
    free(c.open);
    free(c.place);
    return 0;
}
