/* SPDX-License-Identifier: BSD-3-Clause */
/* Reductions of objects: the first k of n that appear. Two shapes of Hoplite's (section 4.2),
 * by size and what the network costs: small ones are pulled to the rank that asked and added in
 * the order in which they are whole there (its tree of degree n); big ones are added where they
 * are, in a chain in the order in which they appear (degree 1; partial.c), whose last sum is
 * pulled. Nothing of a sum is shown before all k are in it, so that one that is lost halfway
 * can be replaced by another that appears: in a chain those behind it begin again, those before
 * it do not notice. */
#include <stdlib.h>
#include <string.h>

#include "collectives/local/local.h"
#include "collectives/plan/arrival_tree.h"
#include "objects/store.h"
#include "collectives/plan/cost.h"

enum source_state {
    SOURCE_WATCHED, /* its home says when it is there */
    SOURCE_FOUND,   /* it is there, others were before it */
    SOURCE_COMING,  /* it is pulled */
    SOURCE_CHAINED, /* it is added in the chain */
    SOURCE_ADDED,
    SOURCE_LOST
};

struct source {
    struct bny_name name;
    struct bny_entry *entry; /* COMING: with a reference */
    enum source_state state;
    int rank; /* FOUND: who has it; -1: its home, or nobody knows */
};

struct slot {             /* of the chain */
    struct bny_name name; /* of the partial sum up to here */
    size_t source;
    int rank; /* who makes it */
};

struct bny_sum {
    struct bny_link link;
    struct bny_entry *target; /* whose it is; it may be read long after the sum is complete */
    struct slot *slots;       /* [k]; NULL: a star */
    size_t nslots;
    struct bny_entry *in; /* the last partial sum, as it comes; NULL: not yet, or made here */
    size_t n, k, count, added, coming, lost;
    enum banyan_dtype dtype;
    struct bny_redop op;
    struct source sources[];
};

static void object_reduce_watch(struct bny_store *st, const struct source *s)
{
    struct bny_obj_wire m = { .name = s->name, .rank = -1, .owner = -1 };

    bny_obj_send(st, bny_home_of(st, &s->name), BNY_OBJ_WATCH, &m, NULL, 0);
}

/* In a star all k come through this rank's end of the network. */
static int is_chain(const struct bny_store *st, uint64_t bytes, size_t k)
{
    struct bny_cost_model m = bny_cost_model_of(&st->comm->scope);

    return k > 1 && k < INT32_MAX && bytes > BNY_OBJ_INLINE_MAX &&
           bny_arrival_tree_choose((int)k + 1, (double)bytes, BNY_OBJ_CHUNK, m.alpha_s,
                                   m.beta) != BNY_SHAPE_STAR;
}

int bny_sum_start(struct bny_entry *target, const struct bny_sum_call *call)
{
    struct bny_store *st = target->store;
    struct bny_sum *s = calloc(1, sizeof *s + call->n * sizeof s->sources[0]);
    int chain = is_chain(st, target->bytes, call->k);

    if (s && chain)
        s->slots = calloc(call->k, sizeof *s->slots);
    if (!s || (chain && !s->slots)) {
        free(s);
        return bny_fail(BANYAN_ENOMEM, "no memory for a reduction of %zu objects", call->n);
    }
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
        object_reduce_watch(st, &s->sources[i]);
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

/* ---- a chain ---- */

static void drop_slot(struct bny_store *st, const struct slot *slot)
{
    struct bny_obj_wire m = { .name = slot->name, .rank = -1, .owner = -1 };

    bny_obj_send(st, slot->rank, BNY_OBJ_DROP, &m, NULL, 0);
}

/* Slot i and all behind it are nothing any more; what stands before goes on. */
static void drop_from(struct bny_sum *s, size_t i)
{
    bny_partial_unpull(s->in);
    s->in = NULL;
    for (; i < s->nslots; i++)
        drop_slot(s->target->store, &s->slots[i]);
}

/* Slot i is asked for, under a name of its own. */
static void ask_for(struct bny_sum *s, size_t i)
{
    struct bny_store *st = s->target->store;
    struct slot *slot = &s->slots[i];
    struct bny_add add = { .own = s->sources[slot->source].name,
                           .count = s->count,
                           .dtype = (int32_t)s->dtype,
                           .op = s->op.kind };
    struct bny_obj_wire m = { .bytes = s->target->bytes, .rank = -1, .owner = -1 };

    slot->name.w[0] = (uint64_t)st->rank;
    slot->name.w[1] = ++st->partial_names;
    m.name = slot->name;
    if (i > 0) {
        add.before = s->slots[i - 1].name;
        m.rank = s->slots[i - 1].rank;
    }
    bny_obj_send(st, slot->rank, BNY_OBJ_ADD, &m, &add, sizeof add);
}

static void ask_from(struct bny_sum *s, size_t i)
{
    for (; i < s->nslots; i++)
        ask_for(s, i);
    bny_sum_progress(s->target->store);
}

static void remove_slot(struct bny_sum *s, size_t i)
{
    memmove(&s->slots[i], &s->slots[i + 1], (--s->nslots - i) * sizeof s->slots[0]);
}

static int is_here(const struct bny_sum *s, const struct source *from)
{
    const struct bny_store *st = s->target->store;

    return from->rank < 0 || from->rank == st->rank || st->dead[from->rank];
}

/* Inputs that were found, here or elsewhere, take the next places until enough are taken. */
static void extend_to(struct bny_sum *s, int here, size_t places)
{
    for (size_t i = 0; i < s->n && s->nslots < places; i++) {
        struct source *from = &s->sources[i];

        if (from->state != SOURCE_FOUND || is_here(s, from) != here)
            continue;
        from->state = SOURCE_CHAINED;
        s->slots[s->nslots] =
            (struct slot){ .source = i, .rank = here ? s->target->store->rank : from->rank };
        ask_for(s, s->nslots++);
    }
}

/* In the order in which they appear, but those of this rank last: what comes to it, comes once.
 */
static void extend(struct bny_sum *s)
{
    size_t here = 0;

    for (size_t i = 0; i < s->n && here < s->k - s->nslots; i++)
        here += s->sources[i].state == SOURCE_FOUND && is_here(s, &s->sources[i]);
    extend_to(s, 0, s->k - here);
    if (s->nslots + here == s->k)
        extend_to(s, 1, s->k);
}

/* 1: all of the last partial sum is in the target's memory. */
static int chain_is_in(struct bny_sum *s)
{
    struct bny_store *st = s->target->store;
    const struct slot *last;
    const struct bny_entry *e;

    if (s->nslots < s->k)
        return 0;
    last = &s->slots[s->nslots - 1];
    if (last->rank != st->rank) {
        if (!s->in)
            s->in = bny_partial_pull(st, &last->name, last->rank, s->target);
        st->sums_short |= !s->in;
        return s->in && s->in->state == BNY_ENTRY_WHOLE;
    }
    e = bny_partial_find(st, &last->name);
    if (!e || e->state != BNY_ENTRY_WHOLE)
        return 0;
    bny_local_copy(s->target->data, e->data, (size_t)e->bytes);
    return 1;
}

/* It needs nothing more: homes need not tell what no other sum of this rank asks for. */
void bny_sum_stop(struct bny_sum *s)
{
    struct bny_store *st;

    if (!s || !bny_link_is_in(&s->link))
        return;
    st = s->target->store;
    bny_link_out(&s->link);
    drop_from(s, 0);
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
    if (s)
        free(s->slots);
    free(s);
}

void bny_sums_end(struct bny_store *st)
{
    while (!bny_ring_is_empty(&st->sums))
        bny_sum_stop(BNY_LINK_OF(st->sums.next, struct bny_sum, link));
}

/* It cannot be made: all ranks that wait for it get the error. */
static void object_reduce_fail(struct bny_sum *s, int code)
{
    struct bny_entry *target = s->target;
    struct bny_store *st = target->store;
    struct bny_pending *p;

    bny_sum_stop(s);
    p = bny_pending_new(st, BNY_OBJ_DELETE, &target->node.name, NULL);
    if (p) {
        p->detached = 1;
        p->m.flags = BNY_OBJ_GONE;
        p->m.code = code;
        bny_pending_send(st, p);
    }
    bny_entry_end(target, code);
}

static void object_reduce_finish(struct bny_sum *s)
{
    struct bny_entry *e = s->target;

    bny_sum_stop(s);
    bny_local_finish(bny_redop_averages(&s->op), s->dtype, e->data, e->data, s->count,
                     (int)s->k);
    e->have = e->bytes;
    bny_entry_grew(e);
}

static void object_reduce_add(struct bny_sum *s, struct source *from)
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

static void object_reduce_begin(struct bny_sum *s, struct source *from)
{
    struct bny_entry *e = bny_entry_get(s->target->store, &from->name);

    if (!e) {
        s->target->store->sums_short = 1;
        return;
    }
    e->refs++;
    from->entry = e;
    from->state = SOURCE_COMING;
    s->coming++;
    bny_sum_progress(s->target->store); /* it may be whole already */
}

/* 1: it is complete. */
static int run_chain(struct bny_sum *s)
{
    extend(s);
    if (!chain_is_in(s))
        return 0;
    for (size_t i = 0; i < s->nslots; i++)
        s->sources[s->slots[i].source].state = SOURCE_ADDED;
    return 1;
}

/* 1: it is complete; -1: it has failed. */
static int run_star(struct bny_sum *s)
{
    for (size_t i = 0; i < s->n; i++) {
        struct source *from = &s->sources[i];
        const struct bny_entry *e = from->entry;

        if (from->state == SOURCE_COMING && e->state == BNY_ENTRY_DEAD &&
            e->code == -BANYAN_ENOMEM && !e->is_lost) {
            object_reduce_fail(s, e->code); /* of this rank: the object is where it was */
            return -1;
        } else if (from->state == SOURCE_COMING && e->state == BNY_ENTRY_DEAD)
            lose(s, from);
        else if (from->state == SOURCE_COMING && e->data && e->bytes != s->target->bytes) {
            object_reduce_fail(s, -BANYAN_EMISMATCH);
            return -1;
        } else if (from->state == SOURCE_COMING && e->state == BNY_ENTRY_WHOLE && e->published)
            object_reduce_add(s, from);
    }
    for (size_t i = 0; i < s->n && s->added + s->coming < s->k; i++)
        if (s->sources[i].state == SOURCE_FOUND)
            object_reduce_begin(s, &s->sources[i]);
    return s->added == s->k;
}

/* 1: it is complete or has failed. */
static int object_reduce_run(struct bny_sum *s)
{
    int done = s->slots ? run_chain(s) : run_star(s);

    if (done > 0) {
        object_reduce_finish(s);
    } else if (!done && s->n - s->lost < s->k) {
        object_reduce_fail(s, -BANYAN_ERANKDEAD);
        done = -1;
    }
    return done != 0;
}

void bny_sum_progress(struct bny_store *st)
{
    if (bny_ring_is_empty(&st->sums) && bny_ring_is_empty(&st->partials_here))
        return;
    st->sums_stirred = 1;
    bny_store_mark_runnable(st);
}

int bny_sums_run(struct bny_store *st)
{
    int moved;

    if (!st->sums_stirred)
        return 0;
    st->sums_stirred = 0;
    moved = bny_partials_run(st);
    for (struct bny_link *l = st->sums.next, *next; l && l != &st->sums; l = next) {
        struct bny_sum *s = BNY_LINK_OF(l, struct bny_sum, link);

        next = l->next;
        moved |= object_reduce_run(s);
    }
    return moved;
}

static void object_reduce_note(struct bny_store *st, const struct bny_obj_wire *m,
                               enum source_state state)
{
    for (struct bny_link *l = st->sums.next; l && l != &st->sums; l = l->next) {
        struct bny_sum *s = BNY_LINK_OF(l, struct bny_sum, link);

        for (size_t i = 0; i < s->n; i++) {
            struct source *from = &s->sources[i];

            if (memcmp(&from->name, &m->name, sizeof m->name) != 0)
                continue;
            from->rank = m->rank;
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
    object_reduce_note(st, m, SOURCE_FOUND);
}

void bny_sum_lost(struct bny_store *st, const struct bny_obj_wire *m)
{
    object_reduce_note(st, m, SOURCE_LOST);
}

/* ---- what goes wrong in a chain ---- */

/* A slot that cannot be made where it is: the object may be gone, and another takes the last
 * place; or it is made here. */
static void mend(struct bny_sum *s, size_t i, int code)
{
    struct bny_store *st = s->target->store;
    struct slot *slot = &s->slots[i];
    int gone = code == -BANYAN_EINVAL || code == -BANYAN_ERANKDEAD;

    if (!gone && (code == -BANYAN_EMISMATCH || slot->rank == st->rank)) {
        object_reduce_fail(s, code);
        return;
    }
    drop_from(s, i);
    if (gone) {
        lose(s, &s->sources[slot->source]);
        remove_slot(s, i);
    } else {
        slot->rank = st->rank;
    }
    ask_from(s, i);
}

void bny_sum_broken(struct bny_store *st, int from, const struct bny_obj_wire *m)
{
    for (struct bny_link *l = st->sums.next; l && l != &st->sums; l = l->next) {
        struct bny_sum *s = BNY_LINK_OF(l, struct bny_sum, link);

        for (size_t i = 0; i < s->nslots; i++)
            if (s->slots[i].rank == from && m->code &&
                memcmp(&s->slots[i].name, &m->name, sizeof m->name) == 0) {
                mend(s, i, m->code);
                return;
            }
    }
}

int bny_sum_trouble(struct bny_store *st, const struct bny_entry *in, int code)
{
    for (struct bny_link *l = st->sums.next; l && l != &st->sums; l = l->next) {
        struct bny_sum *s = BNY_LINK_OF(l, struct bny_sum, link);

        if (s->in != in)
            continue;
        mend(s, s->nslots - 1, code);
        return 1;
    }
    return 0;
}

/* Others may have the dead rank's input, or it is lost: its home will tell. */
static void bury(struct bny_sum *s)
{
    const struct bny_store *st = s->target->store;
    size_t first = 0;

    while (first < s->nslots && !st->dead[s->slots[first].rank])
        first++;
    if (first == s->nslots)
        return;
    drop_from(s, first);
    for (size_t i = first; i < s->nslots;) {
        if (!st->dead[s->slots[i].rank]) {
            i++;
            continue;
        }
        s->sources[s->slots[i].source].state = SOURCE_WATCHED;
        remove_slot(s, i);
    }
    ask_from(s, first);
}

void bny_sums_view(struct bny_store *st)
{
    for (struct bny_link *l = st->sums.next; l && l != &st->sums; l = l->next) {
        struct bny_sum *s = BNY_LINK_OF(l, struct bny_sum, link);

        bury(s);
        for (size_t i = 0; i < s->n; i++)
            if (s->sources[i].state == SOURCE_WATCHED)
                object_reduce_watch(st, &s->sources[i]);
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
