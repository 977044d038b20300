/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages of the store: their form, and those that wait to be sent. Requests and answers go by
 * one channel, in order, so that what a rank says last is what holds; bytes by another. */
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "objects/store.h"
#include "objects/object_wire.h"

struct post {
    struct post *next;
    struct bny_hdr hdr;
    char payload[];
};
struct bny_outbox {
    struct post *first, *last;
};

int bny_obj_outboxes(struct bny_store *st)
{
    st->outboxes = calloc((size_t)st->n, sizeof *st->outboxes);
    return st->outboxes ? bny_spares_fill(st) : -BANYAN_ENOMEM;
}

/* ---- memory that is kept for when there is no other ---- */

static const size_t spare_bytes[BNY_SPARES] = {
    128, sizeof(struct post) + sizeof(struct bny_obj_wire) + BNY_OBJ_INLINE_MAX
};
static const int spare_counts[BNY_SPARES] = { 64, 32 };

static int fill_one(struct bny_store *st, int kind)
{
    struct bny_spare *p = malloc(spare_bytes[kind]);

    if (!p)
        return -BANYAN_ENOMEM;
    p->next = st->spares[kind];
    st->spares[kind] = p;
    st->nspares[kind]++;
    return 0;
}

int bny_spares_fill(struct bny_store *st)
{
    int rc = 0;

    for (int kind = 0; kind < BNY_SPARES; kind++)
        while (st->nspares[kind] < spare_counts[kind] && rc == 0)
            rc = fill_one(st, kind);
    return rc;
}

void bny_spares_free(struct bny_store *st)
{
    for (int kind = 0; kind < BNY_SPARES; kind++)
        while (st->spares[kind]) {
            struct bny_spare *p = st->spares[kind];

            st->spares[kind] = p->next;
            free(p);
        }
}

void *bny_spare_alloc(struct bny_store *st, size_t bytes)
{
    int kind = bytes <= spare_bytes[0] ? 0 : 1;
    struct bny_spare *spare = st->spares[kind];
    void *p = calloc(1, bytes);

    if (p) {
        for (int i = 0; i < 2 && st->nspares[kind] < spare_counts[kind]; i++)
            fill_one(st, kind);
        return p;
    }
    if (!spare || bytes > spare_bytes[kind])
        return NULL;
    st->spares[kind] = spare->next;
    st->nspares[kind]--;
    return memset(spare, 0, bytes);
}

int bny_obj_parse(enum bny_object_msg kind, int n, const void *payload, size_t len,
                  struct bny_obj_wire *m)
{
    size_t more;
    int brings;

    if (kind < BNY_OBJ_PUT || kind >= BNY_OBJ_MSG_COUNT || kind == BNY_OBJ_DATA ||
        kind == BNY_OBJ_PART || len < sizeof *m || !payload)
        return 0;
    memcpy(m, payload, sizeof *m);
    more = len - sizeof *m;
    brings = kind == BNY_OBJ_PUT || kind == BNY_OBJ_INLINE || kind == BNY_OBJ_COPY;
    if (kind == BNY_OBJ_ADD && more != sizeof(struct bny_add))
        return 0;
    if (kind != BNY_OBJ_ADD &&
        (more > BNY_OBJ_INLINE_MAX || (more && (!brings || more != m->bytes))))
        return 0;
    if (kind == BNY_OBJ_INLINE && more != m->bytes)
        return 0;
    return m->rank >= -1 && m->rank < n && m->owner >= -1 && m->owner < n &&
           m->bytes <= SIZE_MAX / 2 && m->offset <= m->bytes && m->code <= 0 &&
           m->code > -BNY_ERROR_COUNT;
}

static void object_wire_enqueue(struct bny_store *st, int to, struct post *p)
{
    struct bny_outbox *box = &st->outboxes[to];

    if (box->last)
        box->last->next = p;
    else
        box->first = p;
    box->last = p;
    st->nposts++;
    bny_store_mark_runnable(st);
}

void bny_obj_send(struct bny_store *st, int to, enum bny_object_msg kind,
                  const struct bny_obj_wire *m, const void *data, size_t len)
{
    struct post *p;

    if (to < 0 || st->dead[to])
        return;
    p = bny_spare_alloc(st, sizeof *p + sizeof *m + len);
    if (!p) { /* its request ends by its deadline */
        bny_warn("rank %d: no memory for a message of the object store", st->rank);
        return;
    }
    p->hdr.comm = st->comm->id;
    p->hdr.kind = BNY_MSG_OBJECT;
    p->hdr.step = (uint16_t)kind;
    p->hdr.chan = BNY_OBJ_TALK;
    p->hdr.len = p->hdr.codec_len_raw = (uint32_t)(sizeof *m + len);
    memcpy(p->payload, m, sizeof *m);
    if (len)
        memcpy(p->payload + sizeof *m, data, len);
    object_wire_enqueue(st, to, p);
}

static struct post *pop(struct bny_store *st, int peer)
{
    struct bny_outbox *box = &st->outboxes[peer];
    struct post *p = box->first;

    if (!p)
        return NULL;
    box->first = p->next;
    if (!box->first)
        box->last = NULL;
    st->nposts--;
    return p;
}

void bny_obj_outbox_free(struct bny_store *st, int peer)
{
    struct post *p;

    while (st->outboxes && (p = pop(st, peer)))
        free(p);
}

/* A peer whose endpoint refuses messages is dead, or its death will be announced. Then the
 * messages that it missed go to others (view.c). A message for which there is no memory now is
 * sent later. */
int bny_obj_flush(struct bny_store *st)
{
    int moved = 0;

    for (int r = 0; r < st->n && st->nposts; r++) {
        struct bny_ep *ep = st->comm->peers[r].ep;

        while (r != st->rank && st->outboxes[r].first) {
            struct post *p = st->outboxes[r].first;
            int rc = ep->ops->eager(ep, &p->hdr, p->payload);

            if (rc == BNY_AGAIN || rc == -BANYAN_ENOMEM)
                break;
            free(pop(st, r));
            moved = 1;
        }
    }
    if (st->nposts)
        bny_store_mark_runnable(st);
    return moved;
}

void bny_obj_drain(struct bny_store *st)
{
    struct post *p;

    if (st->draining)
        return;
    st->draining = 1;
    while ((p = pop(st, st->rank))) {
        struct bny_obj_wire m;

        if (bny_obj_parse((enum bny_object_msg)p->hdr.step, st->n, p->payload, p->hdr.len, &m))
            bny_store_message(st, st->rank, (enum bny_object_msg)p->hdr.step, &m,
                              p->hdr.len > sizeof m ? p->payload + sizeof m : NULL);
        free(p);
    }
    st->draining = 0;
}
