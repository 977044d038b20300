/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions of objects: the first k of n that appear are pulled to the rank that asked and
 * added in the order in which they are whole there (Hoplite, section 4.2, the tree of degree
 * n). Nothing of a sum is shown before all k are in it, so that one that is lost halfway can be
 * replaced by another that appears. */
#include <stdlib.h>
#include <string.h>

#include "collectives/local/local.h"
#include "collectives/objects/store.h"

enum source_state {
    SOURCE_WATCHED, /* its home says when it is there */
    SOURCE_FOUND,   /* it is there, others were before it */
    SOURCE_COMING,  /* it is pulled */
    SOURCE_ADDED,
    SOURCE_LOST
};

struct source {
    struct bny_name name;
    struct bny_entry *entry; /* COMING: with a reference */
    enum source_state state;
};

struct bny_sum {
    struct bny_link link;
    struct bny_entry *target; /* whose it is; it may be read long after the sum is complete */
    size_t n, k, count, added, coming, lost;
    enum banyan_dtype dtype;
    struct bny_redop op;
    struct source sources[];
};

static void watch(struct bny_store *st, const struct source *s)
{
    struct bny_obj_wire m = { .name = s->name, .rank = -1, .owner = -1 };

    bny_obj_send(st, bny_home_of(st, &s->name), BNY_OBJ_WATCH, &m, NULL, 0);
}

int bny_sum_start(struct bny_entry *target, const struct bny_sum_call *call)
{
    struct bny_store *st = target->store;
    struct bny_sum *s = calloc(1, sizeof *s + call->n * sizeof s->sources[0]);

    if (!s)
        return bny_fail(BANYAN_ENOMEM, "no memory for a reduction of %zu objects", call->n);
    s->target = target;
    s->n = call->n;
    s->k = call->k;
    s->count = call->count;
    s->dtype = call->dtype;
    s->op = call->op;
    target->sum = s;
    bny_link_in(&st->sums, &s->link);
    for (size_t i = 0; i < s->n; i++) {
        s->sources[i].name = call->names[i];
        watch(st, &s->sources[i]);
    }
    return 0;
}

static void let_go(struct source *s)
{
    struct bny_entry *e = s->entry;

    s->entry = NULL;
    if (e)
        bny_entry_drop(e);
}

static int is_watched(const struct bny_store *st, const struct bny_name *name)
{
    for (const struct bny_link *l = st->sums.next; l && l != &st->sums; l = l->next) {
        const struct bny_sum *s = BNY_LINK_OF(l, const struct bny_sum, link);

        for (size_t i = 0; i < s->n; i++)
            if (s->sources[i].state == SOURCE_WATCHED &&
                memcmp(&s->sources[i].name, name, sizeof *name) == 0)
                return 1;
    }
    return 0;
}

/* It needs nothing more: homes need not tell what no other sum of this rank asks for. */
void bny_sum_stop(struct bny_sum *s)
{
    struct bny_store *st;

    if (!s || !bny_link_is_in(&s->link))
        return;
    st = s->target->store;
    bny_link_out(&s->link);
    for (size_t i = 0; i < s->n; i++) {
        struct source *from = &s->sources[i];
        struct bny_obj_wire m = { .name = from->name, .rank = -1, .owner = -1 };

        m.flags = BNY_OBJ_WATCHED;
        if (from->state == SOURCE_WATCHED && !is_watched(st, &from->name))
            bny_obj_send(st, bny_home_of(st, &from->name), BNY_OBJ_FORGET, &m, NULL, 0);
        let_go(from);
    }
}

void bny_sum_free(struct bny_sum *s)
{
    bny_sum_stop(s);
    free(s);
}

/* It cannot be made: who waits for it anywhere hears so. */
static void fail(struct bny_sum *s, int code)
{
    struct bny_entry *target = s->target;
    struct bny_store *st = target->store;
    struct bny_pending *p;

    bny_sum_stop(s);
    p = bny_pending_new(st, BNY_OBJ_DELETE, &target->node.name, NULL);
    if (p) {
        p->detached = 1;
        p->m.flags = BNY_OBJ_GONE;
        bny_pending_send(st, p);
    }
    bny_entry_end(target, code);
}

static void finish(struct bny_sum *s)
{
    struct bny_entry *e = s->target;

    bny_sum_stop(s);
    bny_local_finish(bny_redop_averages(&s->op), s->dtype, e->data, e->data, s->count,
                     (int)s->k);
    e->have = e->bytes;
    bny_entry_grew(e);
}

static void add(struct bny_sum *s, struct source *from)
{
    const struct bny_entry *e = from->entry;

    if (s->added++)
        bny_local_reduce(&s->op, s->dtype, s->target->data, s->target->data, e->data, s->count);
    else
        bny_local_copy(s->target->data, e->data, (size_t)e->bytes);
    s->coming--;
    from->state = SOURCE_ADDED;
    let_go(from);
}

static void lose(struct bny_sum *s, struct source *from)
{
    if (from->state == SOURCE_COMING)
        s->coming--;
    s->lost += from->state != SOURCE_LOST;
    from->state = SOURCE_LOST;
    let_go(from);
}

static void begin(struct bny_sum *s, struct source *from)
{
    struct bny_entry *e = bny_entry_get(s->target->store, &from->name);

    if (!e)
        return; /* no memory: at the next look */
    e->refs++;
    from->entry = e;
    from->state = SOURCE_COMING;
    s->coming++;
    bny_sum_progress(s->target->store); /* it may be whole already */
}

/* 1: it is complete or has failed. */
static int run(struct bny_sum *s)
{
    for (size_t i = 0; i < s->n; i++) {
        struct source *from = &s->sources[i];
        const struct bny_entry *e = from->entry;

        if (from->state == SOURCE_COMING && e->state == BNY_ENTRY_DEAD)
            lose(s, from);
        else if (from->state == SOURCE_COMING && e->data && e->bytes != s->target->bytes) {
            fail(s, -BANYAN_EMISMATCH);
            return 1;
        } else if (from->state == SOURCE_COMING && e->state == BNY_ENTRY_WHOLE && e->published)
            add(s, from);
    }
    for (size_t i = 0; i < s->n && s->added + s->coming < s->k; i++)
        if (s->sources[i].state == SOURCE_FOUND)
            begin(s, &s->sources[i]);
    if (s->added == s->k) {
        finish(s);
        return 1;
    }
    if (s->n - s->lost < s->k) {
        fail(s, -BANYAN_ERANKDEAD);
        return 1;
    }
    return 0;
}

void bny_sum_progress(struct bny_store *st)
{
    if (bny_ring_is_empty(&st->sums))
        return;
    st->sums_stirred = 1;
    bny_store_stir(st);
}

int bny_sums_run(struct bny_store *st)
{
    int moved = 0;

    if (!st->sums_stirred)
        return 0;
    st->sums_stirred = 0;
    for (struct bny_link *l = st->sums.next, *next; l && l != &st->sums; l = next) {
        next = l->next;
        moved |= run(BNY_LINK_OF(l, struct bny_sum, link));
    }
    return moved;
}

static void note(struct bny_store *st, const struct bny_name *name, enum source_state state)
{
    for (struct bny_link *l = st->sums.next; l && l != &st->sums; l = l->next) {
        struct bny_sum *s = BNY_LINK_OF(l, struct bny_sum, link);

        for (size_t i = 0; i < s->n; i++) {
            struct source *from = &s->sources[i];

            if (memcmp(&from->name, name, sizeof *name) != 0)
                continue;
            if (state == SOURCE_LOST &&
                (from->state == SOURCE_WATCHED || from->state == SOURCE_FOUND))
                lose(s, from);
            else if (from->state == SOURCE_WATCHED)
                from->state = state;
        }
    }
    bny_sum_progress(st);
}

void bny_sum_found(struct bny_store *st, const struct bny_obj_wire *m)
{
    note(st, &m->name, SOURCE_FOUND);
}

void bny_sum_lost(struct bny_store *st, const struct bny_obj_wire *m)
{
    note(st, &m->name, SOURCE_LOST);
}

void bny_sums_view(struct bny_store *st)
{
    for (struct bny_link *l = st->sums.next; l && l != &st->sums; l = l->next) {
        const struct bny_sum *s = BNY_LINK_OF(l, struct bny_sum, link);

        for (size_t i = 0; i < s->n; i++)
            if (s->sources[i].state == SOURCE_WATCHED)
                watch(st, &s->sources[i]);
    }
    bny_sum_progress(st);
}

int bny_sum_contributors(const struct bny_entry *e, uint8_t *in, size_t n)
{
    int sum = 0;

    if (!e || !e->sum || e->sum->n != n)
        return bny_fail(
            BANYAN_EINVAL,
            "banyan_object_contributors: this rank made no reduction of %zu objects "
            "of that name",
            n);
    if (e->state != BNY_ENTRY_WHOLE)
        return bny_fail(BANYAN_EBUSY, "banyan_object_contributors: the reduction is not "
                                      "complete; get it first");
    for (size_t i = 0; i < n; i++)
        sum += in[i] = e->sum->sources[i].state == SOURCE_ADDED;
    return sum;
}
