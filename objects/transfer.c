/* SPDX-License-Identifier: BSD-3-Clause */
/* Objects' bytes on their way: what comes goes straight to its place in the copy, and from
 * there on to the ranks that this rank serves, as far as it has come. */
#include <stdlib.h>
#include <string.h>

#include "collectives/local/local.h"
#include "objects/store.h"
#include "objects/object_wire.h"
#include "collectives/op/op_cookie.h"

#define TURN 4 /* messages of a transfer, until others have their turn */

/* ---- in ---- */

static uint64_t offset_of(const struct bny_hdr *h)
{
    return (uint64_t)h->started << 32 | h->chunk;
}

void bny_transfer_data(struct bny_store *st, int from, struct bny_msg *msg)
{
    struct bny_name name;
    struct bny_entry *e;

    memcpy(&name, &msg->hdr.sig, sizeof name);
    e = msg->hdr.step == BNY_OBJ_PART ? bny_partial_find(st, &name) : bny_entry_find(st, &name);
    if (!e || e->state != BNY_ENTRY_COMING || e->source != from || e->number != msg->hdr.seq) {
        bny_msg_release(&st->world->held, msg);
        return;
    }
    bny_msg_list_push_back(&e->incoming, msg);
    bny_link_in(&st->moving, &e->moving);
    bny_store_mark_runnable(st);
}

/* Bytes of the first message that have been placed, 0: none yet, or an error: the transport's,
 * or -BANYAN_EPROTO where they make no sense. */
static long transfer_place(struct bny_entry *e, const struct bny_msg *msg)
{
    struct bny_msg *first = e->incoming.first;
    uint32_t left = msg->hdr.len - (uint32_t)e->taken;
    const void *ptr;
    long n;

    if (!msg->hdr.len || offset_of(&msg->hdr) + e->taken != e->have ||
        left > e->bytes - e->have)
        return -BANYAN_EPROTO;
    if (msg->data) {
        bny_local_place(e->data + e->have, (const char *)msg->data + e->taken, left);
        return (long)left;
    }
    n = msg->ep->ops->view(first, (uint32_t)e->taken, left, e->data + e->have, &ptr);
    return n == BNY_AGAIN ? 0 : n;
}

static int transfer_take(struct bny_entry *e)
{
    struct bny_store *st = e->store;
    uint64_t before = e->have;
    int from = e->source;
    long n = 0;

    while (e->incoming.first) {
        struct bny_msg *msg = e->incoming.first;

        n = transfer_place(e, msg);
        if (n <= 0)
            break;
        e->have += (uint64_t)n;
        e->taken += (uint64_t)n;
        st->received += (uint64_t)n;
        if (e->taken == msg->hdr.len) {
            e->taken = 0;
            bny_msg_release(&st->world->held, bny_msg_list_pop_front(&e->incoming));
        }
    }
    if (n < 0) {
        bny_entry_forget_incoming(e);
        if (n == -BANYAN_ERANKDEAD) {
            /* This process knows first. All that follows from a death waits for the view. */
        } else if (e->partial) {
            bny_partial_trouble(e, (int)n);
            return 1;
        } else {
            bny_entry_want(e, from); /* a peer that breaks the protocol: another serves */
        }
    }
    if (!e->incoming.first)
        bny_link_out(&e->moving);
    if (e->have != before)
        bny_entry_grew(e);
    return e->have != before;
}

/* ---- out ---- */

void bny_transfer_free(struct bny_transfer *t)
{
    struct bny_entry *e = t->entry;

    bny_link_out(&t->link);
    free(t);
    e->nout--;
    if (e->partial && e->state == BNY_ENTRY_WANTED && !e->nout)
        bny_entry_end(e, -BANYAN_EABORTED); /* it stood for those who pull it */
    else
        bny_entry_reap(e);
}

static struct bny_transfer *transfer_find(const struct bny_store *st, int peer,
                                          const struct bny_obj_wire *m)
{
    int partial = (m->flags & BNY_OBJ_PARTIAL) != 0;

    for (struct bny_link *l = st->transfers.next; l && l != &st->transfers; l = l->next) {
        struct bny_transfer *t = BNY_LINK_OF(l, struct bny_transfer, link);
        if (t->peer == peer && t->entry->partial == partial &&
            !memcmp(&t->entry->node.name, &m->name, sizeof m->name))
            return t;
    }
    return NULL;
}

/* A transfer to this rank. A partial sum that this rank has not been told to make yet will be.
 */
static struct bny_entry *what_is_pulled(struct bny_store *st, const struct bny_obj_wire *m)
{
    struct bny_entry *e;

    if (!(m->flags & BNY_OBJ_PARTIAL))
        return bny_entry_find(st, &m->name);
    e = bny_partial_find(st, &m->name);
    if (e)
        return e->arriving ? NULL : e;
    return bny_entry_new_partial(st, &m->name, BNY_ENTRY_WANTED);
}

/* A copy that has no memory yet will have: its home has sent the peer here because it has sent
 * this rank to another. */
void bny_transfer_pull(struct bny_store *st, int from, const struct bny_obj_wire *m)
{
    struct bny_transfer *t = transfer_find(st, from, m);
    struct bny_obj_wire none = { .name = m->name, .number = m->number, .rank = -1 };
    struct bny_entry *e;

    none.flags = m->flags & BNY_OBJ_PARTIAL;
    if (t)
        bny_transfer_free(t);
    if (from == st->rank)
        return; /* no rank of ours says so */
    e = what_is_pulled(st, m);
    t = e && (!e->data || m->offset <= e->bytes) ? bny_spare_alloc(st, sizeof *t) : NULL;
    if (!t) {
        none.code = e && !(e->data && m->offset > e->bytes) ? -BANYAN_ENOMEM : 0;
        if (e && e->partial && e->state == BNY_ENTRY_WANTED && !e->nout)
            bny_entry_end(e, -BANYAN_ENOMEM);
        bny_obj_send(st, from, BNY_OBJ_NONE, &none, NULL, 0);
        return;
    }
    *t = (struct bny_transfer){
        .entry = e, .peer = from, .number = m->number, .offset = m->offset
    };
    e->nout++;
    bny_link_in(&st->transfers, &t->link);
    bny_store_mark_runnable(st);
}

void bny_transfer_stop(struct bny_store *st, int from, const struct bny_obj_wire *m)
{
    struct bny_transfer *t = transfer_find(st, from, m);

    if (t && t->number == m->number)
        bny_transfer_free(t);
}

static int by_reference(struct bny_transfer *t, struct bny_ep *ep, struct bny_hdr *h)
{
    struct bny_store *st = t->entry->store;
    struct bny_cookie *ck = bny_cookie_take(st->world, &st->carrier, 0);
    struct bny_entry *whose = t->entry->lender ? t->entry->lender : t->entry;
    int rc;

    if (!ck)
        return -BANYAN_ENOMEM;
    ck->readers = &whose->sending;
    rc = ep->ops->send(ep, h, t->entry->data + t->offset, ck);
    if (rc)
        bny_cookie_give(st->world, ck);
    else
        whose->sending++;
    return rc;
}

static int by_copy(const struct bny_transfer *t, struct bny_ep *ep, struct bny_hdr *h)
{
    struct bny_slot slot;
    int rc;

    if (h->len > ep->slot_max)
        h->len = h->codec_len_raw = ep->slot_max;
    rc = ep->ops->reserve(ep, h->len, &slot);
    if (rc)
        return rc;
    bny_local_place(slot.mem, t->entry->data + t->offset, h->len);
    bny_counter_add(&ep->tp->copied_bytes, h->len);
    return ep->ops->commit(ep, &slot, h);
}

/* One message. 0, BNY_AGAIN, or an error. */
static int send_some(struct bny_transfer *t)
{
    const struct bny_entry *e = t->entry;
    struct bny_ep *ep = e->store->comm->peers[t->peer].ep;
    uint64_t left = e->have - t->offset;
    struct bny_hdr h = { .comm = e->store->comm->id,
                         .seq = t->number,
                         .step = e->partial ? BNY_OBJ_PART : BNY_OBJ_DATA,
                         .kind = BNY_MSG_OBJECT,
                         .chan = BNY_OBJ_BULK };
    int rc = -BANYAN_ENOTSUP;

    h.len = left < BNY_OBJ_CHUNK ? (uint32_t)left : BNY_OBJ_CHUNK;
    h.codec_len_raw = h.len;
    h.chunk = (uint32_t)t->offset;
    h.started = (uint32_t)(t->offset >> 32);
    memcpy(&h.sig, &e->node.name, sizeof h.sig);
    if (h.len <= ep->eager_max && !((ep->ops->caps & BNY_TP_DESC) && h.len >= ep->zcopy_min)) {
        rc = ep->ops->eager(ep, &h, e->data + t->offset);
    } else {
        if (h.len >= ep->zcopy_min || h.len > ep->slot_max)
            rc = by_reference(t, ep, &h);
        if (rc == -BANYAN_ENOTSUP)
            rc = by_copy(t, ep, &h);
    }
    if (rc == 0) {
        t->offset += h.len;
        e->store->sent += h.len;
    }
    return rc;
}

/* The copy is here, but no memory to send from it: the puller is told, and asks again. */
static void say_none(const struct bny_transfer *t, int code)
{
    const struct bny_entry *e = t->entry;
    struct bny_obj_wire none = {
        .name = e->node.name, .number = t->number, .rank = -1, .code = code
    };

    none.flags = e->partial ? BNY_OBJ_PARTIAL : 0;
    bny_obj_send(e->store, t->peer, BNY_OBJ_NONE, &none, NULL, 0);
}

/* A rank to which nothing can be sent is dead, or is told the reason. */
static int transfer_serve(struct bny_transfer *t)
{
    struct bny_entry *e = t->entry;
    int rc = 0, n = 0;

    if (!e->data)
        return 0;
    while (rc == 0 && n < TURN && t->offset < e->have) {
        rc = send_some(t);
        n += rc == 0;
    }
    if (rc == BNY_AGAIN || (rc == 0 && t->offset < e->have))
        bny_store_mark_runnable(e->store);
    if (rc == -BANYAN_ENOMEM || rc == -BANYAN_ESYSTEM)
        say_none(t, -BANYAN_ENOMEM);
    if ((rc && rc != BNY_AGAIN) || t->offset == e->bytes)
        bny_transfer_free(t);
    return n > 0;
}

static int read_all(struct bny_store *st)
{
    struct bny_link todo = { 0 };
    int moved = 0;

    bny_ring_move(&todo, &st->moving);
    while (!bny_ring_is_empty(&todo)) {
        struct bny_entry *e = BNY_LINK_OF(todo.next, struct bny_entry, moving);

        bny_link_out(&e->moving);
        bny_link_in(&st->moving, &e->moving);
        moved |= transfer_take(e);
    }
    if (!bny_ring_is_empty(&st->moving))
        bny_store_mark_runnable(st);
    return moved;
}

int bny_transfers_run(struct bny_store *st)
{
    int moved = read_all(st);

    for (struct bny_link *l = st->transfers.next, *next; l && l != &st->transfers; l = next) {
        next = l->next;
        moved |= transfer_serve(BNY_LINK_OF(l, struct bny_transfer, link));
    }
    return moved;
}

/* The dead rank's bytes are not taken: the new home hears how far this copy has come. */
void bny_transfers_deaths(struct bny_store *st)
{
    for (struct bny_link *l = st->transfers.next, *next; l && l != &st->transfers; l = next) {
        struct bny_transfer *t = BNY_LINK_OF(l, struct bny_transfer, link);

        next = l->next;
        if (st->dead[t->peer])
            bny_transfer_free(t);
    }
    for (struct bny_link *l = st->all.next; l && l != &st->all; l = l->next) {
        struct bny_entry *e = BNY_LINK_OF(l, struct bny_entry, link);

        if (e->source >= 0 && st->dead[e->source])
            bny_entry_forget_incoming(e);
    }
}

/* A copy that will never be whole: a rank that pulls from it asks for another. */
void bny_transfers_end(const struct bny_entry *e)
{
    struct bny_store *st = e->store;

    for (struct bny_link *l = st->transfers.next, *next; l && l != &st->transfers; l = next) {
        struct bny_transfer *t = BNY_LINK_OF(l, struct bny_transfer, link);

        next = l->next;
        if (t->entry != e)
            continue;
        say_none(t, 0);
        bny_transfer_free(t);
    }
}
