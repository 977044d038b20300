/* SPDX-License-Identifier: BSD-3-Clause */
/* Partial sums of objects, made where the objects are (Hoplite, section 4.2, its chains): each
 * rank adds its object to the sum of those before it, as far as both have come, and the next
 * rank pulls what has been added. The rank that asked for the sum (object_reduce.c) decides the
 * order of the ranks, and takes the last partial sum.
 *
 * A sum comes into the memory that it is added in: behind what has been added it is the sum
 * before, up to where that has come. The first in a chain is its object. Names are given once:
 * what is made anew, because one before it has died, has a new one, so that nothing of the old
 * can be taken for it. */
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "collectives/local/local.h"
#include "objects/store.h"

#define STRIDE 64 /* sums end at multiples of it, until they are whole */

struct bny_partial {
    struct bny_link link;
    struct bny_entry *out;  /* what others pull */
    struct bny_entry *own;  /* the object, with a reference; NULL: it is in */
    struct bny_entry *in;   /* the sum before, as it comes; NULL: it is made here, too */
    struct bny_name before; /* its name */
    int before_at;          /* the rank that makes it; -1: there is none */
    int root;               /* who asked */
    size_t bytes, elem;
    enum banyan_dtype dtype;
    struct bny_redop op;
};

struct bny_entry *bny_partial_find(const struct bny_store *st, const struct bny_name *name)
{
    return (struct bny_entry *)(void *)bny_names_find(&st->partials, name);
}

/* ---- the sum before ---- */

struct bny_entry *bny_partial_pull(struct bny_store *st, const struct bny_name *name, int rank,
                                   struct bny_entry *into)
{
    struct bny_obj_wire pull = { .name = *name, .rank = -1, .owner = -1 };
    struct bny_entry *in;

    if (bny_partial_find(st, name))
        return NULL;
    in = bny_entry_new_partial(st, name, BNY_ENTRY_COMING);
    if (!in)
        return NULL;
    in->arriving = 1;
    in->lender = into;
    in->data = into->data;
    in->bytes = into->bytes;
    in->source = rank;
    in->number = pull.number = ++st->numbers;
    pull.bytes = in->bytes;
    pull.flags = BNY_OBJ_PARTIAL;
    bny_obj_send(st, rank, BNY_OBJ_PULL, &pull, NULL, 0);
    return in;
}

void bny_partial_unpull(struct bny_entry *in)
{
    struct bny_obj_wire stop = { .rank = -1, .owner = -1, .flags = BNY_OBJ_PARTIAL };

    if (!in)
        return;
    if (in->state == BNY_ENTRY_COMING) {
        stop.name = in->node.name;
        stop.number = in->number;
        bny_obj_send(in->store, in->source, BNY_OBJ_STOP, &stop, NULL, 0);
    }
    bny_entry_end(in, -BANYAN_EABORTED);
}

/* ---- one partial sum ---- */

static void let_go(struct bny_partial *p)
{
    struct bny_entry *own = p->own;

    p->own = NULL;
    if (own)
        bny_entry_drop(own);
}

/* The rank that asked for the sum tells the puller of it. Memory of a lent object that a
 * transport still reads stays: the object counts its readers. */
static void partial_end(struct bny_partial *p)
{
    bny_link_out(&p->link);
    bny_partial_unpull(p->in); /* before the memory that it comes into */
    bny_entry_end(p->out, -BANYAN_EABORTED);
    let_go(p);
    free(p);
}

static void refuse(struct bny_store *st, int root, const struct bny_name *name, int code)
{
    struct bny_obj_wire m = { .name = *name, .rank = -1, .owner = -1, .code = code };

    bny_obj_send(st, root, BNY_OBJ_BROKEN, &m, NULL, 0);
}

static void partial_give_up(struct bny_partial *p, int code)
{
    refuse(p->out->store, p->root, &p->out->node.name, code);
    partial_end(p);
}

/* Its memory, as soon as the object's is here. 0, or a code. */
static int partial_begin(struct bny_partial *p)
{
    struct bny_entry *out = p->out;
    int rc = 0;

    if (p->own->bytes != p->bytes)
        return -BANYAN_EMISMATCH;
    if (p->before_at < 0) {
        out->lender = p->own;
        out->data = p->own->data;
        out->bytes = p->bytes;
    } else {
        rc = bny_entry_room(out, p->bytes);
    }
    if (rc)
        return rc;
    out->state = BNY_ENTRY_WRITING;
    if (p->before_at >= 0 && p->before_at != out->store->rank) {
        p->in = bny_partial_pull(out->store, &p->before, p->before_at, out);
        if (!p->in)
            return -BANYAN_ENOMEM;
    }
    return 0;
}

/* How far the sum before has come, and where. */
static uint64_t before_has(const struct bny_partial *p, const char **data)
{
    const struct bny_entry *e = p->in ? p->in : bny_partial_find(p->out->store, &p->before);

    if (!e || !e->data || e->bytes != p->bytes)
        return 0; /* it is dropped: so will this one be */
    *data = e->data;
    return e->have;
}

static void add_up_to(struct bny_partial *p, uint64_t upto, const char *before)
{
    struct bny_entry *out = p->out;
    size_t at = (size_t)out->have;

    if (before)
        bny_local_reduce(&p->op, p->dtype, out->data + at, before + at, p->own->data + at,
                         (size_t)(upto - at) / p->elem);
    out->have = upto;
    bny_entry_grew(out);
    if (out->state == BNY_ENTRY_WHOLE && before) {
        bny_partial_unpull(p->in);
        p->in = NULL;
        let_go(p);
    }
}

/* 1: something was added. p may be gone. */
static int partial_run(struct bny_partial *p)
{
    const char *before = NULL;
    uint64_t upto, has;
    int rc;

    if (!p->own)
        return 0;
    if (p->own->state == BNY_ENTRY_DEAD && p->own->have < p->bytes) {
        partial_give_up(p, p->own->code ? p->own->code : -BANYAN_EABORTED);
        return 1;
    }
    if (!p->own->data || !p->own->published)
        return 0;
    rc = p->out->data ? 0 : partial_begin(p);
    if (rc) {
        partial_give_up(p, rc);
        return 1;
    }
    upto = p->own->have;
    if (p->before_at >= 0) {
        has = before_has(p, &before);
        upto = has < upto ? has : upto;
    }
    if (upto < p->bytes)
        upto -= upto % STRIDE;
    if (upto <= p->out->have)
        return 0;
    add_up_to(p, upto, before);
    return 1;
}

int bny_partials_run(struct bny_store *st)
{
    int moved = 0;

    for (struct bny_link *l = st->partials_here.next, *next; l && l != &st->partials_here;
         l = next) {
        next = l->next;
        moved |= partial_run(BNY_LINK_OF(l, struct bny_partial, link));
    }
    return moved;
}

/* ---- messages to the rank that makes it ---- */

static struct bny_partial *partial_find(const struct bny_store *st, const struct bny_name *name)
{
    for (struct bny_link *l = st->partials_here.next; l && l != &st->partials_here;
         l = l->next) {
        struct bny_partial *p = BNY_LINK_OF(l, struct bny_partial, link);

        if (memcmp(&p->out->node.name, name, sizeof *name) == 0)
            return p;
    }
    return NULL;
}

static int is_sound(const struct bny_obj_wire *m, const struct bny_add *add, size_t *elem)
{
    if (add->dtype < 0 || add->dtype >= BNY_DTYPE_COUNT || add->op < 0 ||
        add->op >= BNY_OP_COUNT || !add->count)
        return 0;
    *elem = banyan_dtype_bytes((enum banyan_dtype)add->dtype);
    return *elem && m->bytes / *elem == add->count && m->bytes % *elem == 0;
}

/* The entry that others pull: one may stand for it already, as they asked before. */
static struct bny_entry *out_of(struct bny_store *st, const struct bny_name *name)
{
    struct bny_entry *e = bny_partial_find(st, name);

    return e ? e : bny_entry_new_partial(st, name, BNY_ENTRY_WANTED);
}

void bny_partial_add(struct bny_store *st, int from, const struct bny_obj_wire *m,
                     const struct bny_add *add)
{
    struct bny_entry *there = bny_partial_find(st, &m->name);
    struct bny_partial *p;
    size_t elem;

    if (m->name.w[0] != (uint64_t)from || partial_find(st, &m->name) ||
        (there && there->arriving) || !is_sound(m, add, &elem))
        return; /* no rank of ours says so */
    p = calloc(1, sizeof *p);
    if (!p || bny_redop_get(&p->op, (banyan_op)add->op, (enum banyan_dtype)add->dtype) != 0 ||
        !(p->out = out_of(st, &m->name))) {
        free(p);
        refuse(st, from, &m->name, -BANYAN_ENOMEM);
        return;
    }
    p->before = add->before;
    p->before_at = m->rank;
    p->root = from;
    p->bytes = (size_t)m->bytes;
    p->elem = elem;
    p->dtype = (enum banyan_dtype)add->dtype;
    p->out->state = BNY_ENTRY_WRITING; /* it stands for itself from now on */
    p->own = bny_entry_get(st, &add->own);
    bny_link_in(&st->partials_here, &p->link);
    if (!p->own) {
        partial_give_up(p, -BANYAN_ENOMEM);
        return;
    }
    p->own->refs++;
    bny_sum_progress(st);
}

/* A partial sum that is not made here has ended, or was refused. */
void bny_partial_drop(struct bny_store *st, int from, const struct bny_name *name)
{
    struct bny_partial *p = partial_find(st, name);

    if (p && p->root == from)
        partial_end(p);
}

void bny_partial_trouble(struct bny_entry *in, int code)
{
    struct bny_store *st = in->store;

    for (struct bny_link *l = st->partials_here.next; l && l != &st->partials_here;
         l = l->next) {
        struct bny_partial *p = BNY_LINK_OF(l, struct bny_partial, link);

        if (p->in == in) {
            partial_give_up(p, code);
            return;
        }
    }
    if (!bny_sum_trouble(st, in, code))
        bny_entry_end(in, code);
}

/* Sums of the dead are nobody's. */
void bny_partials_view(struct bny_store *st)
{
    for (struct bny_link *l = st->partials_here.next, *next; l && l != &st->partials_here;
         l = next) {
        struct bny_partial *p = BNY_LINK_OF(l, struct bny_partial, link);

        next = l->next;
        if (st->dead[p->root])
            partial_end(p);
    }
}

void bny_partials_end(struct bny_store *st)
{
    while (!bny_ring_is_empty(&st->partials_here))
        partial_end(BNY_LINK_OF(st->partials_here.next, struct bny_partial, link));
}
