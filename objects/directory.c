/* SPDX-License-Identifier: BSD-3-Clause */
/* The directory: a home's knowledge of an object, and the source of each rank that wants it.
 * Receiver-driven broadcast of Hoplite (Zhuang et al., SIGCOMM 2021, section 4.1): copies stand
 * in chains; a rank that wants one is appended to the shortest chain whose head has, or makes,
 * all of it, so each copy sends to one rank at a time, and partial ones send, too. A copy that
 * is whole leaves its place and is the head of a chain of its own. A rank that loses its source
 * asks again. It is the head of those behind it then; as they hang on no whole copy nobody is
 * sent to them, so that no cycle can come to be. */
#include <stdlib.h>
#include <string.h>

#include "objects/store.h"

#define ENDED_MAX 65536u /* records of objects that are no more */

struct holder {
    struct holder *next;
    int rank;
    int up, down;    /* ranks: its source, whom it sends to; -1 */
    uint64_t order;  /* of who wants */
    uint32_t number; /* its request's */
    uint8_t root;    /* it has all of the object, or makes it */
    uint8_t wants;   /* a source */
    uint8_t watches; /* to hear that it is there */
    uint8_t is_copy; /* it has memory for it */
};

struct bny_record {
    struct bny_node node;
    uint8_t exists, gone; /* it was put; and deleted or lost: code says which */
    uint8_t has_data;     /* small: here */
    int code, owner;
    uint64_t bytes;
    char *data;
    struct holder *holders; /* who has it, is getting it, or waits */
    struct bny_record *next_ended;
    int client; /* whose latest request, and which, the replica is to acknowledge, too: */
    uint32_t client_number; /* the home may hear later than its client that one died */
};

int bny_home_of(const struct bny_store *st, const struct bny_name *name)
{
    int r = (int)((bny_name_hash(name) >> 32) % (uint64_t)st->n);

    while (st->dead[r])
        r = (r + 1) % st->n;
    return r;
}

static int replica_of(const struct bny_store *st, const uint8_t *dead, int home)
{
    int r = (home + 1) % st->n;

    while (r != home && dead[r])
        r = (r + 1) % st->n;
    return r == home ? -1 : r;
}

int bny_replica_of(const struct bny_store *st, const struct bny_name *name)
{
    return replica_of(st, st->dead, bny_home_of(st, name));
}

int bny_is_synced(const struct bny_store *st)
{
    for (int r = 0; r < st->n; r++)
        if (r != st->rank && !st->dead[r] && st->synced[r] < st->ndead)
            return 0;
    return 1;
}

/* ---- records ---- */

static struct bny_record *directory_find(const struct bny_store *st,
                                         const struct bny_name *name)
{
    return (struct bny_record *)(void *)bny_names_find(&st->records, name);
}

static struct bny_record *directory_get(struct bny_store *st, const struct bny_name *name)
{
    struct bny_record *r = directory_find(st, name);

    if (r || !(r = bny_spare_alloc(st, sizeof *r)))
        return r;
    r->node.name = *name;
    r->owner = r->client = -1;
    if (bny_names_add(&st->records, &r->node) == 0)
        return r;
    free(r);
    return NULL;
}

static struct holder *holder_of(const struct bny_record *rec, int rank)
{
    struct holder *h = rec->holders;

    while (h && h->rank != rank)
        h = h->next;
    return h;
}

static struct holder *holder_get(struct bny_store *st, struct bny_record *rec, int rank)
{
    struct holder *h = holder_of(rec, rank);

    if (h || !(h = bny_spare_alloc(st, sizeof *h)))
        return h;
    h->rank = rank;
    h->up = h->down = -1;
    h->next = rec->holders;
    rec->holders = h;
    return h;
}

static void unlink_up(struct bny_record *rec, struct holder *h)
{
    struct holder *up = h->up >= 0 ? holder_of(rec, h->up) : NULL;

    if (up && up->down == h->rank)
        up->down = -1;
    h->up = -1;
}

static void link_up(struct bny_store *st, struct bny_record *rec, struct holder *h, int source)
{
    struct holder *up = holder_get(st, rec, source);

    unlink_up(rec, h);
    if (!up)
        return;
    h->up = source;
    up->down = h->rank;
}

static void remove_holder(struct bny_record *rec, int rank)
{
    struct holder *h = holder_of(rec, rank), *down;

    if (!h)
        return;
    unlink_up(rec, h);
    down = h->down >= 0 ? holder_of(rec, h->down) : NULL;
    if (down && down->up == rank)
        down->up = -1;
    for (struct holder **at = &rec->holders; *at; at = &(*at)->next)
        if (*at == h) {
            *at = h->next;
            break;
        }
    free(h);
}

static void drop_holders(struct bny_record *rec)
{
    while (rec->holders) {
        struct holder *h = rec->holders;
        rec->holders = h->next;
        free(h);
    }
}

static void free_record(struct bny_store *st, struct bny_record *rec)
{
    bny_names_remove(&st->records, &rec->node);
    drop_holders(rec);
    free(rec->data);
    free(rec);
}

/* Nobody asks for it and it never was. */
static void free_if_idle(struct bny_store *st, struct bny_record *rec)
{
    if (!rec->exists && !rec->gone && !rec->holders)
        free_record(st, rec);
}

/* ---- what a home says ---- */

static struct bny_obj_wire about(const struct bny_record *rec)
{
    return (struct bny_obj_wire){
        .name = rec->node.name, .bytes = rec->bytes, .rank = -1, .owner = rec->owner
    };
}

static void say_lost(struct bny_store *st, const struct bny_record *rec, int to,
                     uint32_t number)
{
    struct bny_obj_wire m = about(rec);

    m.code = rec->code;
    m.number = number;
    bny_obj_send(st, to, BNY_OBJ_LOST, &m, NULL, 0);
}

/* It is no more, by code. Names are remembered, the oldest forgotten. */
static void end_record(struct bny_store *st, struct bny_record *rec, int code)
{
    if (rec->gone)
        return;
    rec->gone = 1;
    rec->code = code;
    for (const struct holder *h = rec->holders; h; h = h->next)
        say_lost(st, rec, h->rank, h->number);
    drop_holders(rec);
    free(rec->data);
    rec->data = NULL;
    rec->has_data = 0;
    if (st->ended_last)
        st->ended_last->next_ended = rec;
    else
        st->ended_first = rec;
    st->ended_last = rec;
    st->nended++;
}

void bny_directory_prune(struct bny_store *st)
{
    while (st->nended > ENDED_MAX) {
        struct bny_record *rec = st->ended_first;

        st->ended_first = rec->next_ended;
        st->nended--;
        free_record(st, rec);
    }
}

static void copy_to_replica(struct bny_store *st, const struct bny_record *rec)
{
    struct bny_obj_wire m = about(rec);

    m.rank = rec->client;
    m.number = rec->client_number;
    m.code = rec->code;
    m.flags = (rec->exists ? BNY_OBJ_EXISTS : 0) | (rec->gone ? BNY_OBJ_GONE : 0) |
              (rec->has_data ? BNY_OBJ_WHOLE : 0);
    bny_obj_send(st, bny_replica_of(st, &rec->node.name), BNY_OBJ_COPY, &m, rec->data,
                 rec->has_data ? (size_t)rec->bytes : 0);
}

/* Steps to the head of its chain; -1 unless that has, or makes, the whole object. Chains that
 * peers' words made may have cycles. */
static int depth(const struct bny_record *rec, const struct holder *h, int most)
{
    int steps = 0;

    while (h && !h->root && steps <= most) {
        h = h->up >= 0 ? holder_of(rec, h->up) : NULL;
        steps++;
    }
    return h && h->root ? steps : -1;
}

static struct holder *source_for(const struct bny_store *st, const struct bny_record *rec,
                                 const struct holder *who)
{
    struct holder *best = NULL;
    int least = 0;

    for (struct holder *h = rec->holders; h; h = h->next) {
        int d;

        if (h == who || h->down >= 0 || h->wants)
            continue;
        d = depth(rec, h, st->n);
        if (d >= 0 && (!best || d < least)) {
            best = h;
            least = d;
        }
    }
    return best;
}

static void tell_watchers(struct bny_store *st, struct bny_record *rec)
{
    const struct holder *root = rec->holders;

    while (root && !root->root)
        root = root->next;
    if (!root && !rec->has_data)
        return;
    for (struct holder *h = rec->holders; h; h = h->next) {
        struct bny_obj_wire m = about(rec);

        if (!h->watches)
            continue;
        h->watches = 0;
        m.rank = root ? root->rank : -1;
        bny_obj_send(st, h->rank, BNY_OBJ_FOUND, &m, NULL, 0);
    }
}

/* The rank that has waited longest comes first. */
static struct holder *next_who_wants(const struct bny_record *rec, uint64_t after)
{
    struct holder *best = NULL;

    for (struct holder *h = rec->holders; h; h = h->next)
        if (h->wants && h->order > after && (!best || h->order < best->order))
            best = h;
    return best;
}

static void directory_serve(struct bny_store *st, struct bny_record *rec)
{
    struct holder *h;
    uint64_t after = 0;

    if (!rec->exists || rec->gone || !bny_is_synced(st))
        return;
    tell_watchers(st, rec);
    while ((h = next_who_wants(rec, after))) {
        struct bny_obj_wire m = about(rec);
        struct holder *from = rec->has_data ? NULL : source_for(st, rec, h);

        after = h->order;
        m.number = h->number;
        if (!rec->has_data && !from)
            continue;
        h->wants = 0;
        h->is_copy = 1;
        if (from) {
            link_up(st, rec, h, from->rank);
            m.rank = from->rank;
            bny_obj_send(st, h->rank, BNY_OBJ_SOURCE, &m, NULL, 0);
        } else {
            h->root = 1;
            bny_obj_send(st, h->rank, BNY_OBJ_INLINE, &m, rec->data, (size_t)rec->bytes);
        }
    }
}

/* Is all of it anywhere? */
static void judge(struct bny_store *st, struct bny_record *rec)
{
    const struct holder *h = rec->holders;

    if (!rec->exists || rec->gone || rec->has_data || !bny_is_synced(st) ||
        bny_home_of(st, &rec->node.name) != st->rank)
        return;
    while (h && !h->root)
        h = h->next;
    if (h)
        return;
    end_record(st, rec, -BANYAN_ERANKDEAD);
    copy_to_replica(st, rec);
}

/* ---- what is said to a home ---- */

static void keep_data(struct bny_record *rec, const char *data, uint64_t bytes)
{
    if (rec->has_data || (bytes && !data))
        return;
    rec->data = malloc(bytes ? (size_t)bytes : 1);
    if (!rec->data)
        return; /* its holders have it */
    if (bytes)
        memcpy(rec->data, data, (size_t)bytes);
    rec->has_data = 1;
}

static void acknowledge(struct bny_store *st, int to, const struct bny_record *rec,
                        uint32_t number, int code)
{
    struct bny_obj_wire m = about(rec);

    m.number = number;
    m.code = code;
    bny_obj_send(st, to, BNY_OBJ_ACK, &m, NULL, 0);
}

static void on_put(struct bny_store *st, int from, struct bny_record *rec,
                   const struct bny_obj_wire *m, const char *data)
{
    struct holder *h;

    if (rec->gone ||
        (rec->exists && ((rec->owner != from && rec->owner >= 0) || rec->bytes != m->bytes))) {
        acknowledge(st, from, rec, m->number, rec->gone ? -BANYAN_EINVAL : -BANYAN_EBUSY);
        return;
    }
    h = holder_get(st, rec, from);
    if (!h)
        return; /* it asks until its deadline */
    rec->exists = 1;
    rec->owner = from;
    rec->bytes = m->bytes;
    if ((m->flags & BNY_OBJ_WHOLE) && m->bytes <= BNY_OBJ_INLINE_MAX)
        keep_data(rec, data, m->bytes);
    unlink_up(rec, h);
    h->root = h->is_copy = 1;
    h->wants = 0;
    rec->client = from;
    rec->client_number = m->number;
    copy_to_replica(st, rec);
    acknowledge(st, from, rec, m->number, 0);
    directory_serve(st, rec);
}

static void on_want(struct bny_store *st, int from, struct bny_record *rec,
                    const struct bny_obj_wire *m, int watch)
{
    struct holder *h;

    if (rec->gone) {
        say_lost(st, rec, from, m->number);
        return;
    }
    if (m->rank >= 0 && m->rank != from && !watch) {
        remove_holder(rec, m->rank);
        judge(st, rec);
        if (rec->gone) {
            say_lost(st, rec, from, m->number);
            return;
        }
    }
    h = holder_get(st, rec, from);
    if (!h)
        return;
    if (watch) {
        h->watches = 1;
    } else {
        unlink_up(rec, h);
        h->wants = 1;
        h->order = ++st->orders;
        h->number = m->number;
        h->is_copy |= m->bytes != 0;
    }
    directory_serve(st, rec);
}

static void on_hold(struct bny_store *st, int from, struct bny_record *rec,
                    const struct bny_obj_wire *m)
{
    struct holder *h;

    if (rec->gone) {
        say_lost(st, rec, from, m->number);
        return;
    }
    h = rec->exists && rec->bytes != m->bytes ? NULL : holder_get(st, rec, from);
    if (!h)
        return;
    rec->exists = 1;
    rec->bytes = m->bytes;
    h->is_copy = 1;
    if (m->flags & BNY_OBJ_WHOLE)
        h->root = 1;
    else if (m->rank >= 0 && m->rank != from && !st->dead[m->rank])
        link_up(st, rec, h, m->rank);
    directory_serve(st, rec);
}

static void on_done(struct bny_store *st, int from, struct bny_record *rec)
{
    struct holder *h = rec->exists && !rec->gone ? holder_get(st, rec, from) : NULL;

    if (!h)
        return;
    unlink_up(rec, h);
    h->root = h->is_copy = 1;
    h->wants = 0;
    directory_serve(st, rec);
}

static void on_forget(struct bny_store *st, int from, struct bny_record *rec,
                      const struct bny_obj_wire *m)
{
    struct holder *h = holder_of(rec, from);

    if (h && (m->flags & BNY_OBJ_WATCHED)) {
        h->watches = 0;
    } else if (h && h->number == m->number) {
        unlink_up(rec, h);
        h->wants = h->is_copy = 0;
    }
    if (h && !h->root && !h->watches && !h->wants && !h->is_copy)
        remove_holder(rec, from);
    free_if_idle(st, rec);
}

static void on_delete(struct bny_store *st, int from, struct bny_record *rec,
                      const struct bny_obj_wire *m)
{
    int lost = m->flags & BNY_OBJ_GONE;

    if (!rec->exists && !rec->gone) {
        acknowledge(st, from, rec, m->number, -BANYAN_EINVAL);
        free_if_idle(st, rec);
        return;
    }
    end_record(st, rec, !lost ? -BANYAN_EINVAL : m->code ? m->code : -BANYAN_ERANKDEAD);
    rec->client = from;
    rec->client_number = m->number;
    copy_to_replica(st, rec);
    acknowledge(st, from, rec, m->number, 0);
}

static void on_copy(struct bny_store *st, struct bny_record *rec, const struct bny_obj_wire *m,
                    const char *data)
{
    if ((m->flags & BNY_OBJ_EXISTS) && (!rec->exists || rec->bytes == m->bytes)) {
        rec->exists = 1;
        rec->bytes = m->bytes;
        rec->owner = m->owner;
        if (!rec->gone && (m->flags & BNY_OBJ_WHOLE))
            keep_data(rec, data, m->bytes);
    }
    if (m->flags & BNY_OBJ_GONE)
        end_record(st, rec, m->code);
    if (m->rank >= 0 && m->number)
        acknowledge(st, m->rank, rec, m->number, 0);
}

void bny_directory_message(struct bny_store *st, int from, enum bny_object_msg kind,
                           const struct bny_obj_wire *m, const char *data)
{
    struct bny_record *rec = directory_get(st, &m->name);

    if (!rec)
        return;
    switch (kind) {
    case BNY_OBJ_PUT: on_put(st, from, rec, m, data); break;
    case BNY_OBJ_WANT: on_want(st, from, rec, m, 0); break;
    case BNY_OBJ_WATCH: on_want(st, from, rec, m, 1); break;
    case BNY_OBJ_FORGET: on_forget(st, from, rec, m); break;
    case BNY_OBJ_DONE:
        on_done(st, from, rec);
        free_if_idle(st, rec);
        break;
    case BNY_OBJ_HOLD: on_hold(st, from, rec, m); break;
    case BNY_OBJ_DELETE: on_delete(st, from, rec, m); break;
    case BNY_OBJ_COPY: on_copy(st, rec, m, data); break;
    default: free_if_idle(st, rec); break;
    }
}

/* ---- deaths ---- */

static int home_among(const struct bny_store *st, const uint8_t *dead,
                      const struct bny_name *name)
{
    int r = (int)((bny_name_hash(name) >> 32) % (uint64_t)st->n);

    while (dead[r])
        r = (r + 1) % st->n;
    return r;
}

void bny_directory_deaths(struct bny_store *st, const uint8_t *was_dead)
{
    for (size_t b = 0; st->records.buckets && b <= st->records.mask; b++)
        for (struct bny_node *n = st->records.buckets[b]; n; n = n->next) {
            struct bny_record *rec = (struct bny_record *)(void *)n;
            int was = home_among(st, was_dead, &n->name);

            for (int r = 0; r < st->n; r++)
                if (st->dead[r] && !was_dead[r])
                    remove_holder(rec, r);
            if (bny_home_of(st, &n->name) == st->rank && (rec->exists || rec->gone) &&
                (was != st->rank ||
                 replica_of(st, was_dead, was) != bny_replica_of(st, &n->name)))
                copy_to_replica(st, rec);
        }
}

void bny_directory_settle(struct bny_store *st)
{
    if (!bny_is_synced(st))
        return;
    for (size_t b = 0; st->records.buckets && b <= st->records.mask; b++)
        for (struct bny_node *n = st->records.buckets[b], *next; n; n = next) {
            next = n->next;
            judge(st, (struct bny_record *)(void *)n);
            directory_serve(st, (struct bny_record *)(void *)n);
        }
}

void bny_directory_free(struct bny_store *st)
{
    for (size_t b = 0; st->records.buckets && b <= st->records.mask; b++)
        while (st->records.buckets[b])
            free_record(st, (struct bny_record *)(void *)st->records.buckets[b]);
}
