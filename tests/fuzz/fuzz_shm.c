/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared memory that a peer writes as it likes: what it lends lies inside of what it shares,
 * what it gives back was sent, or the peer is a liar. The input is a list of actions, byte 0 of
 * each says which: the peer writes a record, or one of its words; we look at what came, give
 * back, or send. */
#include <sys/mman.h>
#include <unistd.h>

#include "input.h"

#include "transport/shm/shm_impl.h"

#define HELD  24
#define ARENA 4096
#define ID    (3u << SHM_ARENA_BITS | 5)

struct rig {
    struct shm_tp tp;
    struct shm_ep ep;
    struct shm_peer_arena arenas[SHM_ARENAS];
    struct shm_ep *eps[1];
    struct bny_msg *held[HELD];
    int n, sending;
};

static struct rig rig;
static struct shm_seg *in_seg, *out_seg;
static uint8_t *tiles, arena[ARENA], mine[65536];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    banyan_set_log((banyan_log_fn)fuzz_no_log, NULL, BANYAN_LOG_ERROR);
    in_seg =
        mmap(NULL, sizeof *in_seg, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    out_seg =
        mmap(NULL, sizeof *out_seg, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tiles = malloc((size_t)BNY_CHANNELS * SHM_TILE);
    return in_seg == MAP_FAILED || out_seg == MAP_FAILED || !tiles;
}

/* As bny_shm_peer makes it, with both segments in place. */
static void rig_open(struct rig *g)
{
    struct shm_ep *ep = &g->ep;

    memset(g, 0, sizeof *g);
    memset(in_seg, 0, offsetof(struct shm_seg, data));
    memset(out_seg, 0, offsetof(struct shm_seg, data));
    g->tp.base = (struct bny_tp){ .rank = 0, .nranks = 2 };
    g->tp.epfd = -1;
    g->eps[0] = ep;
    g->tp.eps = g->eps;
    g->tp.neps = 1;
    ep->base = (struct bny_ep){ .tp = &g->tp.base, .peer = 1, .eager_max = SHM_EAGER_MAX };
    ep->in = in_seg;
    ep->out = out_seg;
    ep->tiles = tiles;
    ep->copy = SHM_COPY_CMA;
    ep->pid = getpid();
    ep->slots_free = (1u << SHM_SLOTS) - 1;
    ep->peer_arenas = g->arenas;
    g->arenas[ID & (SHM_ARENAS - 1)] =
        (struct shm_peer_arena){ .id = ID, .mem = arena, .bytes = ARENA };
    for (uint32_t i = 0; i < SHM_RING; i++)
        ep->free_sends[i] = (uint8_t)i;
    ep->data_bytes = SHM_DATA;
}

/* ---- the peer ---- */

static uint32_t written; /* records */

static void record(struct input *in, unsigned how)
{
    struct shm_rec *rec = &in_seg->ring[written % SHM_RING];
    uint32_t len = 0;

    rec->hdr = (struct bny_hdr){ .kind = BNY_MSG_DATA, .chan = (uint8_t)(how >> 6) };
    input_copy(in, &rec->info, 4);
    input_copy(in, &len, 3);
    rec->hdr.len = len;
    rec->word = input_short(in);
    if (how & 16)
        input_copy(in, &rec->word, 8);
    if (how & 32)
        input_copy(in, &rec->hdr, sizeof rec->hdr);
    atomic_store(&rec->seq, ++written);
}

static void word(struct input *in, unsigned how)
{
    unsigned at = input_byte(in);
    uint32_t v;

    input_copy(in, &v, 4);
    switch (how >> 4 & 3) {
    case 0: atomic_store(&out_seg->head, v); break;
    case 1: atomic_store(&out_seg->done[at % SHM_RING], v); break;
    case 2: atomic_store(&out_seg->slot_done[at % SHM_SLOTS], v); break;
    default: atomic_store(&in_seg->ring[at % SHM_RING].seq, v);
    }
}

/* ---- we ---- */

static int inside(const void *at, size_t len, const void *mem, size_t bytes)
{
    const uint8_t *a = at, *m = mem;

    return a >= m && len <= bytes && (size_t)(a - m) <= bytes - len;
}

static void check(const struct bny_msg *m)
{
    const struct shm_msg *s = (const struct shm_msg *)m;

    if (m->data)
        EXPECT(inside(m->data, m->hdr.len, in_seg->data, SHM_DATA) ||
               inside(m->data, m->hdr.len, arena, ARENA) ||
               inside(m->data, m->hdr.len, &s->word, sizeof s->word) ||
               (s->index < SHM_SLOTS &&
                inside(m->data, m->hdr.len, in_seg->slots[s->index], SHM_SLOT_BYTES)));
}

static void take(struct rig *g)
{
    struct bny_event ev[8];
    int room = HELD - g->n < 8 ? HELD - g->n : 8, n = bny_shm_poll_ep(&g->ep.base, ev, room);

    EXPECT(n >= 0 && n <= room);
    for (int i = 0; i < n; i++) {
        if (ev[i].kind == BNY_EV_MSG) {
            check(ev[i].msg);
            g->held[g->n++] = ev[i].msg;
        } else if (ev[i].kind == BNY_EV_SENT) {
            EXPECT(ev[i].cookie == mine && g->sending-- > 0);
        }
    }
}

static void give_back(struct rig *g, unsigned how)
{
    const void *ptr;
    struct bny_msg *m;
    unsigned i;

    if (!g->n)
        return;
    i = (how >> 4) % (unsigned)g->n;
    m = g->held[i];
    if (how & 8 && m->hdr.len && m->data)
        EXPECT(bny_shm_view(m, 0, m->hdr.len < 64 ? m->hdr.len : 64, mine, &ptr) > 0);
    bny_shm_release(m);
    g->held[i] = g->held[--g->n];
}

static void send_one(struct rig *g, struct input *in, unsigned how)
{
    struct bny_hdr h = { .kind = BNY_MSG_DATA, .len = input_short(in) };
    struct bny_slot slot;

    switch (how >> 4 & 3) {
    case 0:
        if (h.len <= SHM_EAGER_MAX)
            bny_shm_eager(&g->ep.base, &h, mine);
        break;
    case 1:
        if (bny_shm_reserve(&g->ep.base, h.len, &slot) == 0) {
            EXPECT(inside(slot.mem, slot.cap, out_seg->slots, sizeof out_seg->slots));
            bny_shm_commit(&g->ep.base, &slot, &h);
        }
        break;
    default: g->sending += bny_shm_send(&g->ep.base, &h, mine, mine) == 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };

    rig_open(&rig);
    written = 0;
    while (in.left) {
        unsigned how = input_byte(&in);

        switch (how & 7) {
        case 0:
        case 1:
        case 2: record(&in, how); break;
        case 3: word(&in, how); break;
        case 4:
        case 5: take(&rig); break;
        case 6: give_back(&rig, how); break;
        default: send_one(&rig, &in, how);
        }
    }
    while (rig.n)
        give_back(&rig, 0);
    return 0;
}
