/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises: whatever way messages go (eager, slot, descriptor of private or shared memory,
 * put) and in whatever order they are released, they arrive once, in order, intact, and
 * memory comes back. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/transport/shm/pair.h"

#define BUFS      24
#define BUF_BYTES (200u << 10)
#define HOLD      40
#define PIECES    32
#define PIECE     8192u
#define MESSAGES  3000

struct buf {
    uint8_t *mem;
    int busy;
};
struct side { /* everything that one direction (sender) or the other end of it (receiver) needs
               */
    struct buf bufs[BUFS];
    uint32_t sent, received, puts_sent, puts_received;
    struct bny_msg *held[HOLD];
    int nheld;
    struct bny_window win[2]; /* windows that this side has opened */
    uint8_t *landing[2];
};
struct traffic {
    struct pair p;
    struct side s[2];
    uint64_t rng;
    int zcopy; /* private memory can be sent */
};

static uint32_t pick_len(struct traffic *t, uint32_t max)
{
    uint32_t bits = (uint32_t)bny_rng_below(&t->rng, 18);
    uint32_t len = (uint32_t)bny_rng_below(&t->rng, (1u << bits) + 1);

    return len < max ? len : max;
}

static int send_buf(struct traffic *t, int i, struct side *s)
{
    int k = (int)bny_rng_below(&t->rng, BUFS);
    struct bny_hdr h = header(pick_len(t, BUF_BYTES), s->sent);
    int rc;

    if (s->bufs[k].busy || (!t->zcopy && k % 2 == 0))
        return BNY_AGAIN;
    fill(s->bufs[k].mem, h.len, s->sent);
    rc = bny_shm_ops.send(t->p.ep[i], &h, s->bufs[k].mem, &s->bufs[k]);
    s->bufs[k].busy = rc == 0;
    return rc;
}

static int send_put(struct traffic *t, int i, struct side *s)
{
    static uint8_t src[PIECE];
    int w = t->zcopy ? (int)bny_rng_below(&t->rng, 2) : 1;
    struct bny_hdr h = header(0, s->sent);
    int rc;

    if (s->puts_sent - t->s[!i].puts_received == PIECES)
        return BNY_AGAIN;
    h.kind = BNY_MSG_PUT;
    h.codec_len_raw = pick_len(t, PIECE);
    h.step = (uint16_t)w;
    h.sig.count = s->puts_sent % PIECES * PIECE;
    fill(src, h.codec_len_raw, s->sent);
    rc = bny_shm_ops.put(t->p.ep[i], &h, src, h.codec_len_raw, &t->s[!i].win[w], h.sig.count,
                         NULL);
    s->puts_sent += rc == 0;
    return rc;
}

static int send_one(struct traffic *t, int i)
{
    static uint8_t bytes[SHM_EAGER_MAX];
    struct side *s = &t->s[i];
    struct bny_slot slot;
    struct bny_hdr h;
    int rc = BNY_AGAIN;

    switch (bny_rng_below(&t->rng, 4)) {
    case 0:
        h = header(pick_len(t, SHM_EAGER_MAX), s->sent);
        fill(bytes, h.len, s->sent);
        rc = bny_shm_ops.eager(t->p.ep[i], &h, bytes);
        memset(bytes, 0xee, h.len);
        break;
    case 1:
        h = header(pick_len(t, SHM_SLOT_BYTES), s->sent);
        rc = bny_shm_ops.reserve(t->p.ep[i], h.len, &slot);
        if (rc == 0 && bny_rng_below(&t->rng, 8) == 0) {
            bny_shm_ops.cancel(t->p.ep[i], &slot);
            return 0;
        }
        if (rc == 0) {
            fill(slot.mem, h.len, s->sent);
            rc = bny_shm_ops.commit(t->p.ep[i], &slot, &h);
        }
        break;
    case 2: rc = send_buf(t, i, s); break;
    default: rc = send_put(t, i, s);
    }
    cr_assert(rc == 0 || rc == BNY_AGAIN, "%s", banyan_last_error());
    s->sent += rc == 0;
    return rc;
}

static void check_view(struct traffic *t, struct bny_msg *m)
{
    static uint8_t dst[BUF_BYTES];
    uint32_t off = 0;

    while (off < m->hdr.len) {
        uint32_t want = 64 * (1 + (uint32_t)bny_rng_below(&t->rng, 3000));
        int own = (int)bny_rng_below(&t->rng, 2);
        const void *ptr = NULL;
        long n;

        want = want < m->hdr.len - off ? want : m->hdr.len - off;
        n = bny_shm_ops.view(m, off, want, own ? dst : NULL, &ptr);
        cr_assert(n > 0 && n <= (long)want, "view: %ld %s", n, banyan_last_error());
        cr_assert(n == (long)want || n % 64 == 0);
        cr_assert(!own || ptr == dst);
        cr_assert(is_filled(ptr, off, (uint32_t)n, m->hdr.chunk), "message %u at %u",
                  m->hdr.chunk, off);
        off += (uint32_t)n;
    }
}

static void check_msg(struct traffic *t, int i, struct bny_msg *m)
{
    struct side *s = &t->s[i];

    cr_assert_eq(m->hdr.chunk, s->received, "rank %d wants message %u, got %u", i, s->received,
                 m->hdr.chunk);
    s->received++;
    if (m->hdr.kind == BNY_MSG_PUT) {
        cr_assert(is_filled(s->landing[m->hdr.step] + m->hdr.sig.count, 0, m->hdr.codec_len_raw,
                            m->hdr.chunk));
        s->puts_received++;
    } else {
        check_view(t, m);
    }
}

static void receive_one(struct traffic *t, int i)
{
    struct side *s = &t->s[i];
    struct bny_event ev[4];
    int room = HOLD - s->nheld < 4 ? HOLD - s->nheld : 4;
    int n = bny_rng_below(&t->rng, 2) ? bny_shm_ops.poll(t->p.tp[i], ev, room)
                                      : bny_shm_ops.poll_ep(t->p.ep[i], ev, room);

    cr_assert_geq(n, 0);
    for (int k = 0; k < n; k++) {
        cr_assert_neq(ev[k].kind, BNY_EV_DOWN, "%s", ev[k].reason);
        if (ev[k].kind == BNY_EV_SENT) {
            struct buf *b = ev[k].cookie;

            memset(b->mem, 0xdd, 64);
            b->busy = 0;
            continue;
        }
        check_msg(t, i, ev[k].msg);
        s->held[s->nheld++] = ev[k].msg;
    }
    while (s->nheld && (s->nheld > HOLD - 4 || bny_rng_below(&t->rng, 2))) {
        int k = (int)bny_rng_below(&t->rng, (uint64_t)s->nheld);

        bny_shm_ops.release(s->held[k]);
        s->held[k] = s->held[--s->nheld];
    }
}

static void traffic_open(struct traffic *t, const char *cma)
{
    pair_open(&t->p, cma);
    t->zcopy = 1; /* by CMA, or directly because it is one process */
    for (int i = 0; i < 2; i++) {
        void *arena;

        cr_assert_eq(
            bny_shm_ops.mem_alloc(t->p.tp[i], BUFS * BUF_BYTES + PIECES * PIECE, &arena), 0);
        for (int k = 0; k < BUFS; k++)
            t->s[i].bufs[k].mem =
                k % 2 ? (uint8_t *)arena + (size_t)k * BUF_BYTES : malloc(BUF_BYTES);
        t->s[i].landing[0] = malloc(PIECES * PIECE);
        t->s[i].landing[1] = (uint8_t *)arena + BUFS * BUF_BYTES;
        for (int w = 0; w < 2; w++)
            cr_assert_eq(bny_shm_ops.window_open(t->p.ep[i], t->s[i].landing[w], PIECES * PIECE,
                                                 &t->s[i].win[w]),
                         0, "%s", banyan_last_error());
    }
    for (int i = 0; i < 2; i++) {
        struct bny_event ev;

        for (int k = 0; k < 100; k++) /* enough to accept the other end's connection */
            cr_assert_eq(bny_shm_ops.poll(t->p.tp[i], &ev, 1), 0);
    }
}

static void traffic_close(struct traffic *t)
{
    for (int i = 0; i < 2; i++)
        for (int w = 0; w < 2; w++)
            cr_assert_eq(bny_shm_ops.window_close(t->p.ep[i], &t->s[i].win[w]), 0);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < BUFS; k++) {
            cr_assert(!t->s[i].bufs[k].busy, "buffer %d of rank %d did not come back", k, i);
            if (k % 2 == 0)
                free(t->s[i].bufs[k].mem);
        }
        cr_assert_eq(bny_shm_ops.mem_free(t->p.tp[i], t->s[i].bufs[1].mem - BUF_BYTES), 0);
        free(t->s[i].landing[0]);
    }
    pair_close(&t->p);
}

ParameterizedTestParameters(shm_traffic, all_ways_arrive_once_in_order_and_intact)
{
    static char modes[2] = { '1', '0' };

    return cr_make_param_array(char, modes, 2);
}

ParameterizedTest(char *mode, shm_traffic, all_ways_arrive_once_in_order_and_intact)
{
    struct traffic *t = calloc(1, sizeof *t);
    char cma[2] = { *mode, 0 };
    const char *seed = getenv("BANYAN_TEST_SEED");

    t->rng = seed ? strtoull(seed, NULL, 0) : 0x5eed0001;
    cr_log_info("seed %#llx", (unsigned long long)t->rng);
    traffic_open(t, cma);
    while (t->s[0].sent < MESSAGES || t->s[1].sent < MESSAGES) {
        int i = (int)bny_rng_below(&t->rng, 2);

        if (bny_rng_below(&t->rng, 2) && t->s[i].sent < MESSAGES)
            send_one(t, i);
        else
            receive_one(t, i);
    }
    for (int k = 0; k < 20000; k++)
        receive_one(t, k & 1);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(t->s[i].received, t->s[!i].sent, "rank %d got %u of %u", i,
                     t->s[i].received, t->s[!i].sent);
    traffic_close(t);
    free(t);
}

Test(shm_traffic, full_ring_answers_again_and_recovers_in_any_release_order)
{
    struct bny_msg *held[SHM_RING];
    static uint8_t big[SHM_EAGER_MAX];
    struct bny_hdr h;
    struct pair p;
    uint32_t sent, got;

    pair_open(&p, "1");
    for (uint32_t len = 4; len <= SHM_EAGER_MAX; len = len == 4 ? SHM_EAGER_MAX : 2 * len)
        for (int round = 0; round < 20; round++) {
            struct bny_event ev;
            int rc = 0;

            for (sent = 0; sent < 2 * SHM_RING; sent++) {
                h = header(len, sent);
                fill(big, len, sent);
                rc = bny_shm_ops.eager(p.ep[0], &h, big);
                if (rc != 0)
                    break;
            }
            cr_assert_eq(rc, BNY_AGAIN);
            cr_assert_geq(sent, len == 4 ? SHM_RING * 3 / 4 : 8, "only %u fit", sent);
            for (got = 0; got < sent; got++) {
                cr_assert(next_event(p.tp[1], &ev));
                held[got] = ev.msg;
            }
            for (uint32_t k = 0; k < got;
                 k++) { /* from both ends inwards: the first half goes last */
                struct bny_msg *m = held[k % 2 ? k / 2 : got - 1 - k / 2];

                cr_assert(is_filled(m->data, 0, len, m->hdr.chunk));
                bny_shm_ops.release(m);
            }
        }
    pair_close(&p);
}

Test(shm_traffic, reservation_is_a_promise_even_when_the_ring_fills_up)
{
    struct bny_hdr h = header(4, 0);
    struct bny_slot slot;
    struct bny_event ev;
    struct pair p;
    uint32_t n = 0;

    pair_open(&p, "1");
    cr_assert_eq(bny_shm_ops.reserve(p.ep[0], 1000, &slot), 0);
    while (bny_shm_ops.eager(p.ep[0], &h, "abc") == 0)
        n++;
    cr_assert_eq(n, SHM_RING - 1);
    fill(slot.mem, 1000, 77);
    h = header(1000, 77);
    cr_assert_eq(bny_shm_ops.commit(p.ep[0], &slot, &h), 0);
    for (uint32_t k = 0; k <= n; k++) {
        cr_assert(next_event(p.tp[1], &ev));
        if (k < n)
            bny_shm_ops.release(ev.msg);
    }
    cr_assert(ev.msg->hdr.chunk == 77 && is_filled(ev.msg->data, 0, 1000, 77));
    bny_shm_ops.release(ev.msg);
    for (uint32_t k = 0; k < SHM_SLOTS; k++)
        cr_assert_eq(bny_shm_ops.reserve(p.ep[0], SHM_SLOT_BYTES, &slot), 0);
    cr_assert_eq(bny_shm_ops.reserve(p.ep[0], 1, &slot), BNY_AGAIN);
    pair_close(&p);
}

/* Ends of a job of many ranks use less of the data area: nothing gets stuck or is overwritten
 * in it, also where messages are held for a while. */
Test(shm_traffic, many_ranks_share_less_memory, .timeout = 60)
{
    enum { N = 6000, HELD = 3 };
    uint64_t rng = 128, deadline = bny_deadline_in(PAIR_DEADLINE_S);
    struct bny_tp *tp[2];
    struct bny_ep *ep[2];
    struct bny_msg *held[HELD] = { NULL };
    uint32_t sent = 0, got = 0, len = 0;
    static uint8_t buf[SHM_EAGER_MAX];

    for (int i = 0; i < 2; i++)
        tp[i] = end_open(i, SHM_RANKS_FEW + 1);
    for (int i = 0; i < 2; i++) {
        uint8_t blob[BNY_ADDR_MAX];
        int n = bny_shm_ops.address(tp[!i], blob, sizeof blob);

        cr_assert_eq(bny_shm_ops.connect(tp[i], !i, blob, (size_t)n, &ep[i]), 0);
    }
    while (got < N) {
        struct bny_event ev;

        cr_assert(!bny_deadline_passed(deadline), "%u sent, %u came", sent, got);
        while (sent < N) {
            struct bny_hdr hdr;
            int rc;

            if (!len)
                len = 1 + (uint32_t)bny_rng_below(&rng, sent % 7 ? 3000 : SHM_EAGER_MAX);
            hdr = header(len, sent);
            fill(buf, len, sent);
            rc = bny_shm_ops.eager(ep[0], &hdr, buf);
            if (rc == BNY_AGAIN)
                break;
            cr_assert_eq(rc, 0, "%s", banyan_last_error());
            sent++;
            len = 0;
        }
        if (bny_shm_ops.poll(tp[1], &ev, 1) != 1)
            continue;
        cr_assert_eq(ev.kind, BNY_EV_MSG);
        cr_assert_eq(ev.msg->hdr.chunk, got);
        if (held[got % HELD]) {
            const struct bny_msg *m = held[got % HELD];

            cr_assert(is_filled(m->data, 0, m->hdr.len, m->hdr.chunk), "message %u",
                      m->hdr.chunk);
            bny_shm_ops.release(held[got % HELD]);
        }
        held[got++ % HELD] = ev.msg;
    }
    for (int i = 0; i < HELD; i++)
        bny_shm_ops.release(held[i]);
    cr_assert_lt(((struct shm_ep *)ep[1])->nmsgs, 8u, "it touches messages that it needs not");
    for (int i = 0; i < 2; i++)
        bny_shm_ops.destroy(tp[i]);
}
