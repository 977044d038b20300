/* SPDX-License-Identifier: BSD-3-Clause */
/* The failures a rank knows of, and which of them counts. */
#include "transport/bootstrap/failures.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int bny_failures_init(struct bny_failures *t, int nranks)
{
    t->cap = nranks + 64;
    t->count = 0;
    t->list = calloc((size_t)t->cap, sizeof *t->list);
    return t->list ? 0 : bny_fail(BANYAN_ENOMEM, "no memory for %d failure records", t->cap);
}

void bny_failures_finish(struct bny_failures *t)
{
    free(t->list);
    t->list = NULL;
    t->count = t->cap = 0;
}

int bny_failures_add(struct bny_failures *t, const struct bny_failure *f, uint64_t now,
                     int source)
{
    for (int i = 0; i < t->count; i++) {
        const struct bny_failure *have = &t->list[i].f;

        if (have->cause == f->cause && have->blamed == f->blamed && have->comm == f->comm)
            return 0;
    }
    if (t->count == t->cap)
        return 0;
    t->list[t->count++] = (struct bny_record){ .f = *f, .known_ns = now, .source = source };
    return 1;
}

static int concerns(const struct bny_failure *f, uint32_t comm)
{
    return comm == BNY_ALL_COMMS || f->comm == 0 || f->comm == comm;
}

/* Which of two failures counts. Communicators decide last, so that ties are decided alike
 * everywhere. */
static int smaller(const struct bny_failure *a, const struct bny_failure *b)
{
    if (a->cause != b->cause)
        return a->cause < b->cause;
    if (a->blamed != b->blamed)
        return a->blamed < b->blamed;
    return a->comm < b->comm;
}

/* Who aborts may end at once: of the first `count` records, is there an abort of the rank whose
 * end f is? */
static int follows_abort(const struct bny_failures *t, int count, const struct bny_failure *f,
                         uint32_t comm)
{
    if (f->cause != BNY_CAUSE_DEATH && f->cause != BNY_CAUSE_LEFT)
        return 0;
    for (int i = 0; i < count; i++) {
        const struct bny_failure *a = &t->list[i].f;

        if (a->cause == BNY_CAUSE_ABORT && a->blamed == f->blamed && concerns(a, comm))
            return 1;
    }
    return 0;
}

const struct bny_failure *bny_failures_winner(const struct bny_failures *t, uint32_t comm,
                                              uint64_t now, uint64_t grace_ns)
{
    const struct bny_failure *best = NULL;
    int begin = 0, end;

    /* Records stand in the order in which they became known. */
    while (begin < t->count && !concerns(&t->list[begin].f, comm))
        begin++;
    if (begin == t->count || now < t->list[begin].known_ns + grace_ns)
        return NULL;
    for (end = begin;
         end < t->count && t->list[end].known_ns <= t->list[begin].known_ns + grace_ns; end++)
        ;
    for (int i = begin; i < end; i++) {
        const struct bny_failure *f = &t->list[i].f;

        if (concerns(f, comm) && !follows_abort(t, end, f, comm) && (!best || smaller(f, best)))
            best = f;
    }
    return best;
}

int bny_failures_blames(const struct bny_failures *t, enum bny_cause cause, int rank)
{
    for (int i = 0; i < t->count; i++)
        if (t->list[i].f.cause == (uint32_t)cause && t->list[i].f.blamed == rank)
            return 1;
    return 0;
}

int bny_failure_valid(const struct bny_failure *f, int nranks)
{
    return f->cause >= BNY_CAUSE_DEATH && f->cause <= BNY_CAUSE_LEFT && f->code > 0 &&
           f->code < BANYAN_ERROR_COUNT && f->blamed >= -1 && f->blamed < nranks &&
           f->reporter >= 0 && f->reporter < nranks && memchr(f->text, 0, sizeof f->text);
}
