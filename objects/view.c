/* SPDX-License-Identifier: BSD-3-Clause */
/* Deaths: each agreed view of the control plane lists the ranks that are gone, the same sets in
 * one order at all survivors. On a view a rank cuts off the dead, tells new homes what it holds
 * and wants, and then all that it has said so (SYNC). A home that has this word of every living
 * rank knows all copies, and decides which objects are lost; until then it gives nobody a
 * source. */
#include <string.h>
#include <stdlib.h>

#include "objects/store.h"

static int home_changed(const struct bny_store *st, const uint8_t *was_dead,
                        const struct bny_name *name)
{
    int r = (int)((bny_name_hash(name) >> 32) % (uint64_t)st->n);

    while (was_dead[r])
        r = (r + 1) % st->n;
    return st->dead[r];
}

/* The news of this copy for its home. */
static void report(struct bny_entry *e, const uint8_t *was_dead)
{
    struct bny_store *st = e->store;
    struct bny_obj_wire m = { .name = e->node.name, .rank = -1, .owner = -1 };
    int moved = home_changed(st, was_dead, &e->node.name), whole;
    int cut = e->source >= 0 && st->dead[e->source];

    if (e->state == BNY_ENTRY_DEAD || !e->published)
        return; /* what is being put is said by its request */
    whole = e->state == BNY_ENTRY_WHOLE || e->state == BNY_ENTRY_WRITING;
    if (moved && (whole || e->state == BNY_ENTRY_COMING)) {
        m.bytes = e->bytes;
        m.offset = e->have;
        m.flags = whole ? BNY_OBJ_WHOLE : 0;
        m.rank = cut ? -1 : e->source;
        bny_obj_send(st, bny_home_of(st, &e->node.name), BNY_OBJ_HOLD, &m, NULL, 0);
    }
    if (cut || (moved && e->source < 0 &&
                (e->state == BNY_ENTRY_WANTED || e->state == BNY_ENTRY_COMING)))
        bny_entry_want(e, -1);
}

static void ask_again(struct bny_store *st)
{
    for (struct bny_link *l = st->pendings.next; l && l != &st->pendings; l = l->next) {
        struct bny_pending *p = BNY_LINK_OF(l, struct bny_pending, link);

        if (st->dead[p->home] || (p->replica >= 0 && st->dead[p->replica]))
            bny_pending_send(st, p);
    }
}

static void adopt(struct bny_store *st, uint8_t *was_dead)
{
    struct bny_obj_wire sync = { .rank = -1, .owner = -1 };

    for (int r = 0; r < st->n; r++)
        if (st->dead[r] && !was_dead[r])
            bny_obj_outbox_free(st, r);
    bny_transfers_deaths(st);
    bny_directory_deaths(st, was_dead);
    for (struct bny_link *l = st->all.next; l && l != &st->all; l = l->next)
        report(BNY_LINK_OF(l, struct bny_entry, link), was_dead);
    ask_again(st);
    bny_partials_view(st);
    bny_sums_view(st);
    sync.view = st->ndead;
    for (int r = 0; r < st->n; r++)
        if (r != st->rank)
            bny_obj_send(st, r, BNY_OBJ_SYNC, &sync, NULL, 0);
    bny_obj_drain(st);
    bny_directory_settle(st);
}

void bny_view_look(struct bny_store *st)
{
    struct bny_world *w = st->world;
    uint8_t *was_dead;
    uint32_t view, ndead = 0;

    if (!w->control || !bny_control_suspect(w->control))
        return;
    view = bny_control_gone(w->control, st->gone);
    if (view == st->views)
        return;
    was_dead = malloc((size_t)st->n);
    if (!was_dead)
        return; /* at the next look */
    st->views = view;
    memcpy(was_dead, st->dead, (size_t)st->n);
    for (int r = 0; r < st->n; r++) {
        int world = st->comm->peers[r].world_rank;

        if (r != st->rank && (st->gone[world / 64] >> (world % 64) & 1))
            st->dead[r] = 1;
        ndead += st->dead[r];
    }
    if (ndead != st->ndead) {
        st->ndead = ndead;
        adopt(st, was_dead);
    }
    free(was_dead);
}

void bny_view_sync(struct bny_store *st, int from, const struct bny_obj_wire *m)
{
    if (m->view > st->synced[from])
        st->synced[from] = m->view;
    bny_directory_settle(st);
}
