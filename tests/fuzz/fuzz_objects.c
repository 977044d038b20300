/* SPDX-License-Identifier: BSD-3-Clause */
/* Any messages of an object store's peers, between what this rank's program does with it.
 * Nothing is written outside of copies, the limit on memory holds, every wait ends, and the
 * store can be ended at any moment. Each step is a byte that picks what is done, one for its
 * name, and its fields: small numbers, or any. */
#include <stddef.h>

#include "input.h"
#include "loop_rig.h"

#include "collectives/api/job.h"
#include "objects/store.h"
#include "collectives/progress/progress.h"
#include "transport/loop/loop.h"

#define NRANKS 3
#define LIMIT  (2u << 20)
#define BIG    600000 /* sums of such objects are chains */
#define GETS   32

static char payload[8192]; /* of messages: borrowed until they are delivered */

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    return 0;
}

struct rig {
    struct bny_loop_fabric *fabric;
    struct banyan_comm *comm;  /* of rank 0 */
    struct bny_tp *tp[NRANKS]; /* of the others */
    struct bny_ep *ep[NRANKS]; /* theirs to rank 0 */
    struct bny_store st;
    struct bny_future gets[GETS];
    struct banyan_object views[GETS];
    unsigned ngets;
};

static void rig_open(struct rig *g)
{
    memset(g, 0, sizeof *g);
    loop_rig_open(&g->fabric, &g->comm, NRANKS, 0, g->tp, g->ep);
    bny_world_lock(g->comm->world);
    g->st.limit = LIMIT;
    g->st.timeout_s = 10;
    EXPECT(bny_store_begin(&g->st, g->comm) == 0);
    bny_world_unlock(g->comm->world);
}

/* What rank 0 sends is taken and thrown away. */
static void deliver(struct rig *g)
{
    struct bny_event ev[8];

    for (int i = 0; i < 3; i++) {
        bny_world_lock(g->comm->world);
        bny_world_progress(g->comm->world);
        EXPECT(g->st.bytes <= LIMIT);
        EXPECT(g->st.draining == 0 && g->st.outboxes != NULL);
        bny_world_unlock(g->comm->world);
        for (int r = 1; r < NRANKS; r++) {
            int n = g->tp[r]->ops->poll(g->tp[r], ev, 8);
            for (int k = 0; k < n; k++)
                if (ev[k].kind == BNY_EV_MSG)
                    g->tp[r]->ops->release(ev[k].msg);
        }
    }
}

static struct bny_name name_of(unsigned n)
{
    return (struct bny_name){ { n % 5, 7 } };
}

static uint64_t number(struct input *in)
{
    uint64_t any;

    switch (input_byte(in) % 4) {
    case 0: return input_byte(in);
    case 1: return input_short(in);
    case 2: return 0;
    default: input_copy(in, &any, sizeof any); return any;
    }
}

/* Of partial sums: those that this peer, or rank 0, asked for. */
static struct bny_name partial_of(int from, unsigned n)
{
    return (struct bny_name){ { n % 2 ? (uint64_t)from : 0, n / 2 % 4 + 1 } };
}

static void send_data(struct rig *g, int from, struct input *in, unsigned name)
{
    struct bny_name id = input_byte(in) % 2 ? name_of(name) : partial_of(from, name);
    uint64_t offset = number(in);
    struct bny_hdr h = { .comm = g->comm->id,
                         .seq = (uint32_t)number(in),
                         .step = input_byte(in) % 2 ? BNY_OBJ_DATA : BNY_OBJ_PART,
                         .kind = BNY_MSG_OBJECT,
                         .chan = 3,
                         .chunk = (uint32_t)offset,
                         .started = (uint32_t)(offset >> 32),
                         .len = input_short(in) % 4096 };

    memcpy(&h.sig, &id, sizeof h.sig);
    h.codec_len_raw = h.len;
    g->ep[from]->ops->eager(g->ep[from], &h, payload);
}

static void send_words(struct rig *g, int from, struct input *in, unsigned name)
{
    struct bny_hdr h = { .comm = g->comm->id,
                         .step = (uint16_t)(input_byte(in) % (BNY_OBJ_MSG_COUNT + 2)),
                         .kind = input_byte(in) % 32 ? BNY_MSG_OBJECT : BNY_MSG_DATA,
                         .chan = 2 };
    struct bny_obj_wire m = { .name = name_of(name) };

    m.bytes = input_byte(in) % 8 ? number(in) : BIG;
    m.offset = number(in);
    m.number = (uint32_t)number(in);
    m.view = input_byte(in);
    m.rank = (int32_t)input_byte(in) % (NRANKS + 2) - 1;
    m.owner = (int32_t)input_byte(in) % (NRANKS + 2) - 1;
    m.code = -(int32_t)(input_byte(in) % 16);
    m.flags = input_byte(in);
    if (h.step >= BNY_OBJ_ADD || (m.flags & BNY_OBJ_PARTIAL))
        m.name = partial_of(from, input_byte(in));
    memcpy(payload, &m, sizeof m);
    h.len = sizeof m;
    if (h.step == BNY_OBJ_ADD) {
        struct bny_add add = { .own = name_of(name), .count = m.bytes / 4 };

        add.before = partial_of(1 + (from + 1) % (NRANKS - 1), input_byte(in));
        add.dtype = input_byte(in) % 4 ? BANYAN_F32 : (int32_t)number(in);
        add.op = input_byte(in) % 4 ? BANYAN_SUM : (int32_t)number(in);
        memcpy(payload + sizeof m, &add, sizeof add);
        h.len += sizeof add;
    } else if (input_byte(in) % 2 && m.bytes < 4000)
        h.len += (uint32_t)m.bytes;
    if (input_byte(in) % 16 == 0)
        h.len = input_short(in) % 4096;
    h.codec_len_raw = h.len;
    g->ep[from]->ops->eager(g->ep[from], &h, payload);
}

/* The program of rank 0. */
static void act(struct rig *g, unsigned what, struct input *in, unsigned name)
{
    struct bny_name id = name_of(name);
    struct bny_store *st = &g->st;
    struct bny_pending *p = NULL;
    struct bny_entry *e;

    bny_world_lock(st->world);
    e = bny_entry_find(st, &id);
    if (what == 0 && g->ngets < GETS) {
        struct bny_future *f = &g->gets[g->ngets];

        *f = (struct bny_future){ .out = &g->views[g->ngets++],
                                  .until = input_byte(in) % 2 ? UINT64_MAX : 0 };
        if ((e = bny_entry_get(st, &id)))
            bny_future_add(f, e);
    } else if (what == 1 && !e && (e = bny_entry_new(st, &id, BNY_ENTRY_WRITING)) != NULL) {
        if (bny_entry_room(e, input_byte(in) % 4 ? input_short(in) % 9000 : BIG) == 0) {
            e->published = 0;
            memset(e->data, 1, (size_t)e->bytes);
            e->have = input_byte(in) % 2 ? e->bytes : 0;
            bny_entry_grew(e);
            p = bny_pending_new(st, BNY_OBJ_PUT, &id, e);
        } else {
            bny_entry_end(e, -BANYAN_ENOMEM);
        }
    } else if (what == 2) {
        p = bny_pending_new(st, BNY_OBJ_DELETE, &id, NULL);
    } else if (what == 3) {
        for (unsigned i = 0; i < g->ngets; i++)
            bny_future_end(&g->gets[i], -BANYAN_ETIMEDOUT);
    } else if (what == 4 && e && e->data && !e->sum && e->state == BNY_ENTRY_WRITING) {
        struct bny_name names[3] = { name_of(name + 1), name_of(name + 2), name_of(name + 3) };
        struct bny_sum_call call = { .names = names, .n = 3, .k = 1 + name % 3 };

        call.count = (size_t)e->bytes / 4;
        EXPECT(bny_redop_get(&call.op, BANYAN_SUM, BANYAN_F32) == 0);
        call.dtype = BANYAN_F32;
        if (call.count * 4 == e->bytes)
            bny_sum_start(e, &call);
    }
    if (p) {
        p->detached = 1;
        bny_pending_send(st, p);
    }
    bny_obj_drain(st);
    bny_world_unlock(st->world);
}

static void rig_close(struct rig *g)
{
    bny_world_lock(g->comm->world);
    for (unsigned i = 0; i < g->ngets; i++)
        bny_future_end(&g->gets[i], -BANYAN_ETIMEDOUT);
    for (unsigned i = 0; i < g->ngets; i++)
        if (g->views[i].ref) {
            struct bny_entry *e = g->views[i].ref;
            EXPECT(e->data == g->views[i].data && e->bytes == g->views[i].bytes);
            e->refs--;
            bny_entry_reap(e);
        }
    bny_store_end(&g->st);
    EXPECT(g->st.bytes == 0);
    bny_world_unlock(g->comm->world);
    banyan_comm_destroy(g->comm);
    for (int r = 1; r < NRANKS; r++)
        g->tp[r]->ops->destroy(g->tp[r]);
    bny_loop_fabric_destroy(g->fabric);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    static struct rig g;

    rig_open(&g);
    for (int steps = 0; in.left && steps < 200; steps++) {
        unsigned what = input_byte(&in), name = input_byte(&in);
        int from = 1 + (int)(what / 16 % (NRANKS - 1));

        if (what % 16 < 8)
            send_words(&g, from, &in, name);
        else if (what % 16 < 11)
            send_data(&g, from, &in, name);
        else
            act(&g, what % 16 - 11, &in, name);
        deliver(&g);
    }
    rig_close(&g);
    return 0;
}
