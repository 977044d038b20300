/* SPDX-License-Identifier: BSD-3-Clause */
/* The failures a rank knows of. */
#include "transport/bootstrap/failures.h"

#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
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

        if (bny_failure_same(have, f))
            return 0;
    }
    if (t->count == t->cap) {
        struct bny_record *more = reallocarray(t->list, 2 * (size_t)t->cap, sizeof *more);

        if (!more)
            return bny_fail(BANYAN_ENOMEM, "no memory for %d failure records", 2 * t->cap);
        t->list = more;
        t->cap *= 2;
    }
    t->list[t->count++] = (struct bny_record){ .f = *f, .known_ns = now, .source = source };
    return 1;
}

int bny_failure_valid(const struct bny_failure *f, int nranks)
{
    return f->cause >= BNY_CAUSE_DEATH && f->cause <= BNY_CAUSE_NOT_MADE && f->code > 0 &&
           f->code < BNY_ERROR_COUNT && f->blamed >= -1 && f->blamed < nranks &&
           f->reporter >= 0 && f->reporter < nranks && memchr(f->text, 0, sizeof f->text);
}
