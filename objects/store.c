/* SPDX-License-Identifier: BSD-3-Clause */
/* The store of one rank: its tables, the life of a copy, its waiters. */
#include "objects/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "objects/object_wire.h"
#include "collectives/op/op_cookie.h"

/* ---- tables by name ---- */

/* Names may be counters: all bits count, and homes are drawn from the same number. */
uint64_t bny_name_hash(const struct bny_name *name)
{
    uint64_t z = name->w[0] * 0x9e3779b97f4a7c15u ^ (name->w[1] + 0x632be59bd9b4e019u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int same(const struct bny_name *a, const struct bny_name *b)
{
    return a->w[0] == b->w[0] && a->w[1] == b->w[1];
}

struct bny_node *bny_names_find(const struct bny_names *t, const struct bny_name *name)
{
    struct bny_node *n = t->buckets ? t->buckets[bny_name_hash(name) & t->mask] : NULL;

    while (n && !same(&n->name, name))
        n = n->next;
    return n;
}

static int store_grow(struct bny_names *t)
{
    size_t more = t->buckets ? 2 * (t->mask + 1) : 64;
    struct bny_node **b = calloc(more, sizeof *b);

    if (!b)
        return -BANYAN_ENOMEM;
    for (size_t i = 0; t->buckets && i <= t->mask; i++)
        while (t->buckets[i]) {
            struct bny_node *n = t->buckets[i], **to = &b[bny_name_hash(&n->name) & (more - 1)];
            t->buckets[i] = n->next;
            n->next = *to;
            *to = n;
        }
    free(t->buckets);
    t->buckets = b;
    t->mask = more - 1;
    return 0;
}

int bny_names_add(struct bny_names *t, struct bny_node *node)
{
    struct bny_node **to;

    if ((!t->buckets || t->count > t->mask) && store_grow(t) != 0 && !t->buckets)
        return -BANYAN_ENOMEM; /* an old table serves, if slowly */
    to = &t->buckets[bny_name_hash(&node->name) & t->mask];
    node->next = *to;
    *to = node;
    t->count++;
    return 0;
}

void bny_names_remove(struct bny_names *t, struct bny_node *node)
{
    struct bny_node **at = &t->buckets[bny_name_hash(&node->name) & t->mask];

    while (*at != node)
        at = &(*at)->next;
    *at = node->next;
    t->count--;
}

void bny_name_text(char out[BNY_NAME_HEX], const struct bny_name *name)
{
    const unsigned char *b = (const unsigned char *)name;

    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", b[i]);
}

/* ---- copies ---- */

struct bny_entry *bny_entry_find(const struct bny_store *st, const struct bny_name *name)
{
    return (struct bny_entry *)(void *)bny_names_find(&st->entries, name);
}

static struct bny_names *table_of(const struct bny_entry *e)
{
    return e->partial ? &e->store->partials : &e->store->entries;
}

static struct bny_entry *new_entry(struct bny_store *st, const struct bny_name *name,
                                   enum bny_entry_state state, int partial)
{
    struct bny_entry *e = calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->node.name = *name;
    e->store = st;
    e->state = state;
    e->partial = (uint8_t)partial;
    e->published = !partial;
    e->source = -1;
    if (bny_names_add(table_of(e), &e->node) != 0) {
        free(e);
        return NULL;
    }
    bny_link_in(&st->all, &e->link);
    return e;
}

struct bny_entry *bny_entry_new(struct bny_store *st, const struct bny_name *name,
                                enum bny_entry_state state)
{
    return new_entry(st, name, state, 0);
}

struct bny_entry *bny_entry_new_partial(struct bny_store *st, const struct bny_name *name,
                                        enum bny_entry_state state)
{
    return new_entry(st, name, state, 1);
}

static const struct bny_entry *biggest(const struct bny_store *st)
{
    const struct bny_entry *most = NULL;

    for (const struct bny_link *l = st->all.next; l && l != &st->all; l = l->next) {
        const struct bny_entry *e = BNY_LINK_OF(l, struct bny_entry, link);
        if (e->data && !e->partial && (!most || e->bytes > most->bytes))
            most = e;
    }
    return most;
}

int bny_entry_room(struct bny_entry *e, uint64_t bytes)
{
    struct bny_store *st = e->store;
    const struct bny_entry *most = NULL;
    char hex[BNY_NAME_HEX];
    void *p = NULL;

    if (!st->limit || (st->bytes <= st->limit && bytes <= st->limit - st->bytes)) {
        if (posix_memalign(&p, 64, bytes ? (size_t)bytes : 1) == 0) {
            e->data = p;
            e->bytes = bytes;
            st->bytes += bytes;
            return 0;
        }
    }
    most = biggest(st);
    if (!most)
        return bny_fail(BANYAN_ENOMEM,
                        "rank %d: no room for an object of %llu bytes (memory_bytes is %llu)",
                        st->rank, (unsigned long long)bytes, (unsigned long long)st->limit);
    bny_name_text(hex, &most->node.name);
    return bny_fail(BANYAN_ENOMEM,
                    "rank %d: no room for an object of %llu bytes: others take %llu here "
                    "(memory_bytes is %llu), the biggest of them %s, %llu; delete some",
                    st->rank, (unsigned long long)bytes, (unsigned long long)st->bytes,
                    (unsigned long long)st->limit, hex, (unsigned long long)most->bytes);
}

void bny_entry_forget_incoming(struct bny_entry *e)
{
    bny_msg_list_release(&e->store->world->held, &e->incoming);
    bny_link_out(&e->moving);
    e->taken = 0;
}

/* The bytes of the former source that were not taken are dropped. This rank asks the next
 * source for all bytes that the copy lacks then. */
void bny_entry_want(struct bny_entry *e, int bad)
{
    struct bny_obj_wire m = { .name = e->node.name, .rank = bad, .owner = -1 };

    bny_entry_forget_incoming(e);
    e->source = -1;
    e->number = m.number = ++e->store->numbers;
    m.bytes = e->data ? e->bytes : 0;
    m.offset = e->have;
    bny_obj_send(e->store, bny_home_of(e->store, &e->node.name), BNY_OBJ_WANT, &m, NULL, 0);
}

struct bny_entry *bny_entry_get(struct bny_store *st, const struct bny_name *name)
{
    struct bny_entry *e = bny_entry_find(st, name);

    if (e)
        return e;
    e = bny_entry_new(st, name, BNY_ENTRY_WANTED);
    if (e)
        bny_entry_want(e, -1);
    return e;
}

/* A reduction reads copies that have ended, too: it looks at them itself. */
void bny_entry_reap(struct bny_entry *e)
{
    if (e->state != BNY_ENTRY_DEAD || e->refs || e->sending || e->nout)
        return;
    bny_link_out(&e->link);
    bny_sum_free(e->sum);
    if (e->data && !e->lender) {
        e->store->bytes -= e->bytes;
        free(e->data);
    }
    free(e);
}

static void end_waiters(struct bny_entry *e, int code)
{
    while (!bny_ring_is_empty(&e->waiters))
        bny_future_end(BNY_LINK_OF(e->waiters.next, struct bny_future, link), code);
}

void bny_entry_end(struct bny_entry *e, int code)
{
    struct bny_store *st = e->store;

    if (e->state == BNY_ENTRY_DEAD)
        return;
    e->refs++; /* until the end of this function */
    bny_names_remove(table_of(e), &e->node);
    e->state = BNY_ENTRY_DEAD;
    e->code = code;
    bny_entry_forget_incoming(e);
    bny_sum_stop(e->sum);
    if (e->partial || !e->data || e->have < e->bytes)
        bny_transfers_end(e);
    end_waiters(e, code);
    bny_sum_progress(st);
    e->refs--;
    bny_entry_reap(e);
}

/* A copy that its home has not accepted may not be the object of that name. */
static int is_there(const struct bny_future *f, const struct bny_entry *e)
{
    return e->data && e->published && (e->state == BNY_ENTRY_WHOLE || e->have >= f->until);
}

static void look_at_waiters(struct bny_entry *e)
{
    for (struct bny_link *l = e->waiters.next, *next; l && l != &e->waiters; l = next) {
        struct bny_future *f = BNY_LINK_OF(l, struct bny_future, link);

        next = l->next;
        if (is_there(f, e))
            bny_future_end(f, 0);
        if (bny_ring_is_empty(&e->waiters))
            break;
    }
}

void bny_entry_grew(struct bny_entry *e)
{
    struct bny_store *st = e->store;
    struct bny_obj_wire m = { .name = e->node.name, .rank = -1, .owner = -1 };

    if (e->state == BNY_ENTRY_DEAD)
        return;
    if (e->have == e->bytes && e->state != BNY_ENTRY_WHOLE) {
        e->state = BNY_ENTRY_WHOLE;
        e->source = -1;
        m.bytes = m.offset = e->bytes;
        if (e->published)
            bny_obj_send(st, bny_home_of(st, &e->node.name), BNY_OBJ_DONE, &m, NULL, 0);
    }
    look_at_waiters(e);
    if (e->state == BNY_ENTRY_WHOLE || !bny_ring_is_empty(&st->partials_here))
        bny_sum_progress(st);
    if (e->nout)
        bny_store_mark_runnable(st);
}

/* ---- waiters ---- */

void bny_future_add(struct bny_future *f, struct bny_entry *e)
{
    f->store = e->store;
    f->name = e->node.name;
    f->entry = e;
    e->refs++;
    bny_link_in(&e->store->timed, &f->timed);
    if (e->state == BNY_ENTRY_DEAD)
        bny_future_end(f, e->code);
    else if (is_there(f, e))
        bny_future_end(f, 0);
    else
        bny_link_in(&e->waiters, &f->link);
}

static void say_why(struct bny_future *f, int code, const struct bny_entry *e)
{
    char hex[BNY_NAME_HEX];

    bny_name_text(hex, &f->name);
    if (code == -BANYAN_ETIMEDOUT)
        snprintf(f->why, sizeof f->why, "object %s: %s within the deadline", hex,
                 e->state == BNY_ENTRY_WANTED ? "nobody has put it, or it did not begin to come"
                 : e->state == BNY_ENTRY_WRITING ? "it is still being written here"
                                                 : "it has not all come");
    else if (code == -BANYAN_ERANKDEAD)
        snprintf(f->why, sizeof f->why,
                 "object %s is lost: the ranks that held it are dead, or too few are left of "
                 "the objects that it was to be reduced from",
                 hex);
    else if (code == -BANYAN_EMISMATCH)
        snprintf(
            f->why, sizeof f->why,
            "object %s cannot be made: an object that it was to be reduced from has another "
            "size than count elements",
            hex);
    else if (code == -BANYAN_ENOMEM && e->is_lost)
        snprintf(
            f->why, sizeof f->why,
            "object %s cannot be made: the rank that was to reduce it has no memory for it, "
            "or memory_bytes are full there",
            hex);
    else if (code == -BANYAN_EINVAL)
        snprintf(f->why, sizeof f->why, "object %s was deleted", hex);
    else
        snprintf(f->why, sizeof f->why, "%s", bny_why(code));
}

void bny_entry_drop(struct bny_entry *e)
{
    struct bny_obj_wire m = { .name = e->node.name, .rank = -1, .owner = -1 };

    e->refs--;
    if (e->state != BNY_ENTRY_WANTED || e->refs || !bny_ring_is_empty(&e->waiters)) {
        bny_entry_reap(e);
        return;
    }
    m.number = e->number;
    bny_obj_send(e->store, bny_home_of(e->store, &e->node.name), BNY_OBJ_FORGET, &m, NULL, 0);
    bny_entry_end(e, -BANYAN_ETIMEDOUT);
}

void bny_future_end(struct bny_future *f, int code)
{
    struct bny_entry *e = f->entry;

    if (!e)
        return;
    bny_link_out(&f->link);
    bny_link_out(&f->timed);
    f->entry = NULL;
    f->code = code;
    if (code)
        say_why(f, code, e);
    if (code == 0 && f->out) {
        *f->out = (struct banyan_object){ .data = e->data, .bytes = e->bytes, .ref = e };
        e->store->handles++;
    }
    f->done = 1;
    if (f->op) {
        f->op->result = code;
        bny_op_set_done(f->op);
    }
    if (code || !f->out) /* a view keeps the future's reference */
        bny_entry_drop(e);
}

/* Another rank's object has that name: waiters get that one. */
void bny_entry_yield(struct bny_entry *e)
{
    struct bny_store *st = e->store;
    struct bny_link waiters = { 0 };
    struct bny_name name = e->node.name;
    struct bny_entry *other;

    bny_ring_move(&waiters, &e->waiters);
    e->refs++;
    bny_entry_end(e, -BANYAN_EABORTED);
    other = bny_ring_is_empty(&waiters) ? NULL : bny_entry_get(st, &name);
    while (!bny_ring_is_empty(&waiters)) {
        struct bny_future *f = BNY_LINK_OF(waiters.next, struct bny_future, link);

        bny_link_out(&f->link);
        if (!other) {
            bny_future_end(f, -BANYAN_ENOMEM);
            continue;
        }
        bny_link_out(&f->timed);
        e->refs--;
        bny_future_add(f, other);
    }
    e->refs--;
    bny_entry_reap(e);
}

/* ---- answers that are waited for ---- */

struct bny_pending *bny_pending_new(struct bny_store *st, enum bny_object_msg kind,
                                    const struct bny_name *name, struct bny_entry *e)
{
    struct bny_pending *p = calloc(1, sizeof *p);

    if (!p) {
        bny_fail(BANYAN_ENOMEM, "no memory for a request of the object store");
        return NULL;
    }
    p->kind = kind;
    p->m = (struct bny_obj_wire){ .name = *name, .rank = -1, .owner = st->rank };
    p->m.number = ++st->numbers;
    p->entry = e;
    if (e) {
        e->refs++;
        p->m.bytes = e->bytes;
    }
    bny_link_in(&st->pendings, &p->link);
    return p;
}

void bny_pending_send(struct bny_store *st, struct bny_pending *p)
{
    const struct bny_entry *e = p->entry;
    int inlined = e && e->state == BNY_ENTRY_WHOLE && e->bytes <= BNY_OBJ_INLINE_MAX;

    p->home = bny_home_of(st, &p->m.name);
    p->replica = bny_replica_of(st, &p->m.name);
    p->home_said = p->replica_said = 0;
    if (e) {
        p->m.offset = e->have;
        p->m.flags = e->state == BNY_ENTRY_WHOLE ? BNY_OBJ_WHOLE : 0;
    }
    bny_obj_send(st, p->home, p->kind, &p->m, inlined ? e->data : NULL,
                 inlined ? (size_t)e->bytes : 0);
}

void bny_pending_end(struct bny_pending *p, int code)
{
    struct bny_entry *e = p->entry;

    bny_link_out(&p->link);
    p->done = 1;
    p->code = code;
    p->entry = NULL;
    if (e && code == 0) { /* at once: a new home must hear of it from now on */
        e->published = 1;
        bny_entry_grew(e);
    }
    if (e) {
        e->refs--;
        bny_entry_reap(e);
    }
    if (p->detached)
        free(p);
}

static void acknowledged(struct bny_store *st, int from, const struct bny_obj_wire *m)
{
    for (struct bny_link *l = st->pendings.next; l && l != &st->pendings; l = l->next) {
        struct bny_pending *p = BNY_LINK_OF(l, struct bny_pending, link);

        if (p->m.number != m->number)
            continue;
        p->home_said |= from == p->home;
        p->replica_said |= from == p->replica;
        if (m->code && from == p->home) {
            p->m.owner = m->owner;
            bny_pending_end(p, m->code);
        } else if (p->home_said && (p->replica_said || p->replica < 0)) {
            bny_pending_end(p, 0);
        }
        return;
    }
}

/* ---- what the directory says of a copy ---- */

static void begin_transfer(struct bny_entry *e, const struct bny_obj_wire *m)
{
    struct bny_store *st = e->store;
    struct bny_obj_wire pull = { .name = e->node.name, .rank = -1, .owner = -1 };
    int rc;

    if (e->state == BNY_ENTRY_WANTED) {
        rc = bny_entry_room(e, m->bytes);
        if (rc) {
            pull.number = e->number;
            bny_obj_send(st, bny_home_of(st, &e->node.name), BNY_OBJ_FORGET, &pull, NULL, 0);
            bny_entry_end(e, rc);
            return;
        }
        e->state = BNY_ENTRY_COMING;
    }
    if (m->bytes != e->bytes || m->rank == st->rank)
        return;              /* no home of ours says so */
    if (st->dead[m->rank]) { /* its home hears of the death later than we did */
        bny_entry_want(e, m->rank);
        return;
    }
    e->source = m->rank;
    pull.bytes = e->bytes;
    pull.offset = e->have;
    pull.number = e->number;
    bny_obj_send(st, m->rank, BNY_OBJ_PULL, &pull, NULL, 0);
    bny_entry_grew(e);
}

static void take_inline(struct bny_entry *e, const struct bny_obj_wire *m, const char *data)
{
    int rc = 0;

    if (e->state == BNY_ENTRY_WANTED)
        rc = bny_entry_room(e, m->bytes);
    if (rc) {
        bny_entry_end(e, rc);
        return;
    }
    if (e->bytes != m->bytes)
        return;
    e->state = BNY_ENTRY_COMING;
    if (m->bytes)
        memcpy(e->data, data, (size_t)m->bytes);
    e->have = e->bytes;
    bny_entry_grew(e);
}

static void entry_message(struct bny_store *st, int from, enum bny_object_msg kind,
                          const struct bny_obj_wire *m, const char *data)
{
    struct bny_entry *e = bny_entry_find(st, &m->name);
    int waits = e && (e->state == BNY_ENTRY_WANTED || e->state == BNY_ENTRY_COMING);

    if (kind == BNY_OBJ_NONE && (m->flags & BNY_OBJ_PARTIAL)) {
        e = bny_partial_find(st, &m->name);
        if (e && e->arriving && from == e->source && m->number == e->number && m->code)
            bny_partial_trouble(e, m->code); /* else: the rank that asked for the sum knows */
        return;
    }
    if (kind == BNY_OBJ_LOST)
        bny_sum_lost(st, m);
    if (!e)
        return;
    if (kind == BNY_OBJ_LOST && m->code) {
        e->is_lost = 1;
        if (m->code == -BANYAN_EINVAL || e->state != BNY_ENTRY_WHOLE)
            bny_entry_end(e, m->code);
    } else if (waits && m->number == e->number) {
        if (kind == BNY_OBJ_SOURCE && m->rank >= 0 && e->source < 0)
            begin_transfer(e, m);
        else if (kind == BNY_OBJ_INLINE)
            take_inline(e, m, data);
        else if (kind == BNY_OBJ_NONE && from == e->source)
            bny_entry_want(e, m->code ? -1 : from); /* it has a copy, but no memory now */
    }
}

void bny_store_message(struct bny_store *st, int from, enum bny_object_msg kind,
                       const struct bny_obj_wire *m, const char *data)
{
    struct bny_add add;

    switch (kind) {
    case BNY_OBJ_ADD:
        memcpy(&add, data, sizeof add);
        bny_partial_add(st, from, m, &add);
        break;
    case BNY_OBJ_DROP: bny_partial_drop(st, from, &m->name); break;
    case BNY_OBJ_BROKEN: bny_sum_broken(st, from, m); break;
    case BNY_OBJ_PULL: bny_transfer_pull(st, from, m); break;
    case BNY_OBJ_STOP: bny_transfer_stop(st, from, m); break;
    case BNY_OBJ_ACK: acknowledged(st, from, m); break;
    case BNY_OBJ_FOUND: bny_sum_found(st, m); break;
    case BNY_OBJ_SYNC: bny_view_sync(st, from, m); break;
    case BNY_OBJ_BYE: st->bye[from] = 1; break;
    case BNY_OBJ_SOURCE:
    case BNY_OBJ_INLINE:
    case BNY_OBJ_LOST:
    case BNY_OBJ_NONE: entry_message(st, from, kind, m, data); break;
    default: bny_directory_message(st, from, kind, m, data); break;
    }
}

/* ---- the service ---- */

static struct bny_store *store_of(struct banyan_comm *c)
{
    return (struct bny_store *)(void *)((char *)c->service -
                                        offsetof(struct bny_store, service));
}

/* Takes msg. A message that is none of the store's is dropped: a peer's mistake is its own. */
static void store_message(struct banyan_comm *c, int from, struct bny_msg *msg)
{
    struct bny_store *st = store_of(c);
    enum bny_object_msg kind = (enum bny_object_msg)msg->hdr.step;
    char copy[sizeof(struct bny_obj_wire) + BNY_OBJ_INLINE_MAX];
    struct bny_obj_wire m;
    size_t len = msg->hdr.len;

    if (msg->hdr.kind == BNY_MSG_OBJECT && (kind == BNY_OBJ_DATA || kind == BNY_OBJ_PART) &&
        !st->dead[from]) {
        bny_transfer_data(st, from, msg);
        return;
    }
    if (msg->hdr.kind != BNY_MSG_OBJECT || st->dead[from] || !msg->data || len > sizeof copy)
        len = 0;
    else
        memcpy(copy, msg->data, len); /* shared memory: checked, then used */
    bny_msg_release(&st->world->held, msg);
    if (bny_obj_parse(kind, st->n, len ? copy : NULL, len, &m))
        bny_store_message(st, from, kind, &m, len > sizeof m ? copy + sizeof m : NULL);
    bny_obj_drain(st);
}

/* Dead copies whose memory a transport has given back. */
static void sweep(struct bny_store *st)
{
    st->sweep = 0;
    for (struct bny_link *l = st->all.next, *next; l && l != &st->all; l = next) {
        next = l->next;
        bny_entry_reap(BNY_LINK_OF(l, struct bny_entry, link));
    }
}

static int store_advance(struct banyan_comm *c)
{
    struct bny_store *st = store_of(c);
    int moved;

    bny_obj_drain(st);
    moved = bny_transfers_run(st);
    moved |= bny_sums_run(st);
    bny_obj_drain(st);
    if (st->sweep)
        sweep(st);
    return moved | bny_obj_flush(st);
}

/* Some or all others are out of this rank's reach: what it waits for may never come. */
static void store_give_up(struct bny_store *st, int code)
{
    while (!bny_ring_is_empty(&st->timed))
        bny_future_end(BNY_LINK_OF(st->timed.next, struct bny_future, timed), code);
    while (!bny_ring_is_empty(&st->pendings))
        bny_pending_end(BNY_LINK_OF(st->pendings.next, struct bny_pending, link), code);
}

static int waits(const struct bny_store *st)
{
    return !bny_ring_is_empty(&st->timed) || !bny_ring_is_empty(&st->pendings) || st->finalizes;
}

/* A rank that leaves in order is no failure until a rank waits for it, as any call here does.
 * Then it becomes one, because all must agree that the rank is gone. */
static void miss_who_left(struct bny_store *st)
{
    struct bny_world *w = st->world;

    for (int r = 0; r < st->n; r++) {
        int peer = st->comm->peers[r].world_rank;

        if (r != st->rank && !st->dead[r] && !st->bye[r] && bny_control_left(w->control, peer))
            bny_report(w, NULL, BNY_CAUSE_LEFT, BANYAN_ERANKDEAD, peer,
                       "rank %d has left, and is missed by the object store", peer);
    }
}

static int lives_here(const void *store, int rank)
{
    const struct bny_store *st = (const struct bny_store *)store;
    int r = bny_rank_of(&st->comm->ranks, rank);

    return r >= 0 && !st->dead[r];
}

/* A rank that lacks what its connections need lives, and none of its answers come. When it has
 * ended that is a death. */
static int who_lacks(const struct bny_store *st)
{
    struct bny_failure f;

    if (!bny_control_lacking(st->world->control, lives_here, st, &f))
        return 0;
    f.text[sizeof f.text - 1] = '\0';
    return bny_fail((enum banyan_error)f.code, "%s", f.text);
}

#define LOOK_NS 20000000u

/* Messages of other ranks are waited for, but no longer than this. */
#define LACKS_NS 1000000000u

static int is_still(uint64_t *since, uint64_t now)
{
    *since = *since ? *since : now;
    return now - *since >= LACKS_NS;
}

static void give_up_what_stands(struct bny_store *st, int code, uint64_t now)
{
    for (struct bny_link *l = st->timed.next, *next; l && l != &st->timed; l = next) {
        struct bny_future *f = BNY_LINK_OF(l, struct bny_future, timed);
        uint64_t have = f->entry ? f->entry->have : 0;

        next = l->next;
        if (have != f->still_have)
            f->still_ns = 0;
        f->still_have = have;
        if (is_still(&f->still_ns, now))
            bny_future_end(f, code);
        if (bny_ring_is_empty(&st->timed))
            break;
    }
    for (struct bny_link *l = st->pendings.next, *next; l && l != &st->pendings; l = next) {
        struct bny_pending *p = BNY_LINK_OF(l, struct bny_pending, link);

        next = l->next;
        if (is_still(&p->still_ns, now))
            bny_pending_end(p, code);
        if (bny_ring_is_empty(&st->pendings))
            break;
    }
}

/* Deaths that no view tells of. */
static void look_at_ranks(struct bny_store *st, uint64_t now)
{
    struct bny_world *w = st->world;
    int rc = w->broken;

    if (now < st->look_ns || !waits(st))
        return;
    st->look_ns = now + LOOK_NS;
    if (rc)
        bny_fail((enum banyan_error) - rc, "%s", w->broken_why);
    else if (w->control)
        rc = bny_control_out(w->control);
    st->hopeless = rc;
    if (rc) {
        store_give_up(st, rc);
    } else if (w->control && (rc = who_lacks(st)) != 0) {
        st->hopeless = is_still(&st->lacks_ns, now) ? rc : 0;
        give_up_what_stands(st, rc, now);
    } else if (w->control) {
        st->lacks_ns = 0;
        miss_who_left(st);
    }
    if (rc)
        snprintf(st->hopeless_why, sizeof st->hopeless_why, "%s", bny_why(rc));
}

static void tick(struct banyan_comm *c, uint64_t now)
{
    struct bny_store *st = store_of(c);

    bny_view_look(st);
    look_at_ranks(st, now);
    for (struct bny_link *l = st->timed.next, *next; l && l != &st->timed; l = next) {
        struct bny_future *f = BNY_LINK_OF(l, struct bny_future, timed);

        next = l->next;
        if (f->op)
            f->deadline_ns = f->op->deadline_ns;
        if (f->deadline_ns && now >= f->deadline_ns)
            bny_future_end(f, -BANYAN_ETIMEDOUT);
        if (bny_ring_is_empty(&st->timed))
            break;
    }
    bny_directory_prune(st);
    if (st->sums_short) {
        st->sums_short = 0;
        bny_sum_progress(st);
    }
    bny_obj_drain(st);
}

static const struct bny_service_ops service_ops = { .message = store_message,
                                                    .advance = store_advance,
                                                    .tick = tick };

static void store_notify(struct bny_op *op, enum bny_notice what, uint32_t step)
{
    struct bny_store *st =
        (struct bny_store *)(void *)((char *)op - offsetof(struct bny_store, carrier));

    st->sweep = 1;
    bny_store_mark_runnable(st);
}

static const struct bny_way carrier_way = { .notify = store_notify };

int bny_store_begin(struct bny_store *st, struct banyan_comm *comm)
{
    size_t n = (size_t)comm->n;

    st->comm = comm;
    st->world = comm->world;
    st->rank = comm->rank;
    st->n = comm->n;
    st->service.ops = &service_ops;
    st->carrier.comm = comm;
    st->carrier.way = &carrier_way;
    st->dead = calloc(n, sizeof *st->dead);
    st->bye = calloc(n, sizeof *st->bye);
    st->synced = calloc(n, sizeof *st->synced);
    st->gone = calloc(((size_t)comm->world->nranks + 63) / 64, sizeof *st->gone);
    if (!st->dead || !st->bye || !st->synced || !st->gone || bny_obj_outboxes(st) != 0 ||
        store_grow(&st->records) != 0) {
        free(st->records.buckets);
        free(st->outboxes);
        bny_spares_free(st);
        free(st->dead);
        free(st->bye);
        free(st->synced);
        free(st->gone);
        return bny_fail(BANYAN_ENOMEM, "no memory for an object store");
    }
    comm->service = &st->service;
    return 0;
}

static void end_entries(struct bny_store *st)
{
    while (!bny_ring_is_empty(&st->all)) {
        struct bny_entry *e = BNY_LINK_OF(st->all.next, struct bny_entry, link);

        bny_sum_free(e->sum);
        e->sum = NULL;
        e->refs++;
        bny_entry_end(e, -BANYAN_EABORTED);
        e->refs = e->sending = 0;
        bny_entry_reap(e);
    }
}

/* Transports that still read what is being sent are made to have done with it first. */
void bny_store_end(struct bny_store *st)
{
    while (!bny_ring_is_empty(&st->transfers))
        bny_transfer_free(BNY_LINK_OF(st->transfers.next, struct bny_transfer, link));
    bny_sums_end(st); /* they refer to entries */
    bny_partials_end(st);
    for (struct bny_cookie *ck = st->carrier.cookies; ck; ck = ck->next)
        ck->readers = NULL;
    bny_cookies_drop(&st->carrier);
    while (!bny_ring_is_empty(&st->timed))
        bny_future_end(BNY_LINK_OF(st->timed.next, struct bny_future, timed), -BANYAN_EABORTED);
    while (!bny_ring_is_empty(&st->pendings))
        bny_pending_end(BNY_LINK_OF(st->pendings.next, struct bny_pending, link),
                        -BANYAN_EABORTED);
    end_entries(st);
    for (int r = 0; r < st->n; r++)
        bny_obj_outbox_free(st, r);
    bny_directory_free(st);
    st->comm->service = NULL;
    free(st->entries.buckets);
    free(st->records.buckets);
    free(st->partials.buckets);
    free(st->outboxes);
    bny_spares_free(st);
    free(st->dead);
    free(st->bye);
    free(st->synced);
    free(st->gone);
}
