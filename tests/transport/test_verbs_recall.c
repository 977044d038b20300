/* SPDX-License-Identifier: BSD-3-Clause */
/* What verbs does when an operation fails: memory goes back to its owner, and nobody who lives
 * is cut off for it. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

TestSuite(verbs_recall, .timeout = 60);

struct taken { /* memory that is sent or put, and where it goes */
    uint8_t *src, *dst;
    uint32_t len;
    int is_put;
};

static uint8_t *pages(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    cr_assert(at != MAP_FAILED);
    return at;
}

static void start_all(struct tpset *s, struct taken *m, int n, const struct bny_window *win)
{
    for (int i = 0; i < n; i++) {
        struct bny_hdr hdr = tpset_hdr(i % BNY_CHANNELS, (uint32_t)i, m[i].len);

        m[i].src = pages(m[i].len);
        cr_assert_eq(s->ops->attach(s->tp[0], m[i].src, m[i].len), 0);
        tpset_fill(m[i].src, m[i].len, 0, 1, (uint32_t)i);
        if (m[i].is_put) {
            hdr.kind = BNY_MSG_PUT;
            cr_assert_eq(s->ops->put(s->ep[0][1], &hdr, m[i].src, m[i].len, win,
                                     (uint64_t)(m[i].dst - (uint8_t *)win->addr), m[i].src),
                         0);
        } else {
            cr_assert_eq(s->ops->send(s->ep[0][1], &hdr, m[i].src, m[i].src), 0);
        }
    }
}

static void take_all(struct tpset *s, const struct taken *m, int n)
{
    for (int i = 0; i < n; i++) {
        s->ops->recall(s->tp[0], m[i].src);
        memset(m[i].src, 0xee, m[i].len);
        cr_assert_eq(s->ops->detach(s->tp[0], m[i].src), 0);
        cr_assert_eq(munmap(m[i].src, m[i].len), 0);
    }
}

static void expect_all(struct tpset *s, struct taken *m, int n)
{
    uint8_t *got = malloc(2u << 20);

    for (int i = 0; i < n; i++) {
        struct bny_msg *msg = tpset_wait(s, 1, BNY_EV_MSG).msg;

        cr_assert_eq(msg->hdr.seq, (uint32_t)i);
        if (!m[i].is_put)
            tpset_read(s, msg, got, 1 << 16, 1);
        cr_assert_eq(tpset_check(m[i].is_put ? m[i].dst : got, m[i].len, 0, 1, (uint32_t)i), -1,
                     "message %d", i);
        s->ops->release(msg);
    }
    for (int i = 0; i < n; i++) {
        const void *cookie = tpset_wait(s, 0, BNY_EV_SENT).cookie;
        int k = 0;

        while (k < n && m[k].src != cookie)
            k++;
        cr_assert_lt(k, n, "SENT comes once");
        m[k].src = NULL;
    }
    cr_assert_eq(tpset_count(s, 0, BNY_EV_DOWN) + tpset_count(s, 1, BNY_EV_DOWN), 0);
    free(got);
}

/* The wire may stand still meanwhile: what was on its way arrives as it was, by another queue
 * pair, and nobody is cut off. */
Test(verbs_recall, memory_that_is_taken_back_is_not_read)
{
    enum { WIN = 1u << 20 };
    uint8_t *dst = malloc(WIN);

    for (int still = 0; still < (verbs_real_device() ? 1 : 2); still++)
        for (int lanes = 1; lanes <= 3; lanes++) {
            struct taken m[] = {
                { .len = 5000 },
                { .len = 262144 },
                { .len = 300000, .is_put = 1, .dst = dst },
                { .len = 1500000 },
                { .len = 70000, .is_put = 1, .dst = dst + 400000 },
                { .len = 70000, .is_put = 1, .dst = dst + 500000 },
            };
            struct bny_window win;
            struct tpset s;

            set_key("BANYAN_VERBS=qps", lanes == 1 ? "1" : lanes == 2 ? "2" : "3");
            memset(dst, 0, WIN);
            verbs_joined(&s, 2);
            verbs_lanes_joined(&s, (uint32_t)lanes);
            cr_assert_eq(s.ops->attach(s.tp[1], dst, WIN), 0);
            cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, WIN, &win), 0);
            verbs_sim.write_delay = still;
            start_all(&s, m, 6, &win);
            take_all(&s, m, 6);
            verbs_sim.write_delay = 0;
            expect_all(&s, m, 6);
            if (!verbs_real_device())
                cr_assert_eq(bny_counter_read(&s.tp[0]->replaced),
                             still ? (unsigned)lanes : 0u);
            cr_assert_eq(s.ops->window_close(s.ep[1][0], &win), 0);
            verbs_left(&s);
        }
    set_key("BANYAN_VERBS=qps", NULL);
    free(dst);
}

/* While its queue pair is being replaced, too. */
Test(verbs_recall, memory_is_taken_back_while_there_is_no_queue_pair)
{
    uint8_t *dst = malloc(200000);
    struct taken m[] = { { .len = 100000 },
                         { .len = 200000, .is_put = 1, .dst = dst },
                         { .len = 1500000 } };
    struct bny_window win;
    struct tpset s;

    verbs_joined(&s, 2);
    cr_assert_eq(s.ops->attach(s.tp[1], dst, 200000), 0);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, 200000, &win), 0);
    verbs_sim.write_delay = 1;
    start_all(&s, m, 3, &win);
    verbs_break_pair(&s, 0, 1);
    s.paused[1] = 1;
    while (!verbs_conn(&s, 0, 1)->lost)
        tpset_step(&s);
    for (int i = 0; i < 20; i++)
        tpset_step(&s);
    take_all(&s, m, 3);
    verbs_sim.write_delay = 0;
    s.paused[1] = 0;
    expect_all(&s, m, 3);
    verbs_left(&s);
    free(dst);
}

/* ---- farewells ---- */

/* Neither is lost that waits for slots when its sender says goodbye and goes: a long message,
 * and one that was committed behind it. */
Test(verbs_recall, what_waits_for_slots_comes_before_a_farewell)
{
    enum { LONG = 3 << 20, SHORT = 1000 };
    struct bny_hdr hdr[2] = { tpset_hdr(0, 0, LONG), tpset_hdr(0, 1, SHORT) };
    uint8_t *src = malloc(LONG), *got = malloc(LONG);
    struct bny_slot slot;
    struct tpset s;
    int heard = 0, rc;

    verbs_joined(&s, 2);
    tpset_fill(src, LONG, 0, 1, 0);
    cr_assert_eq(s.ops->reserve(s.ep[0][1], SHORT, &slot), 0);
    cr_assert_eq(s.ops->send(s.ep[0][1], &hdr[0], src, src), 0);
    tpset_fill(slot.mem, SHORT, 0, 1, 1);
    cr_assert_eq(s.ops->commit(s.ep[0][1], &slot, &hdr[1]), 0);
    s.paused[1] = 1;
    for (int i = 0; i < 50; i++) { /* the receiver computes */
        cr_assert_eq(s.ops->farewell(s.tp[0]), BNY_AGAIN);
        tpset_step(&s);
    }
    s.paused[1] = 0;
    do {
        rc = s.ops->farewell(s.tp[0]);
        cr_assert(rc == 0 || rc == BNY_AGAIN);
        tpset_step(&s);
        if (tpset_count(&s, 1, BNY_EV_MSG)) {
            struct bny_msg *msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;

            cr_assert_eq(msg->hdr.seq, (uint32_t)heard);
            tpset_read(&s, msg, got, 1 << 16, 1);
            cr_assert_eq(tpset_check(got, msg->hdr.len, 0, 1, msg->hdr.seq), -1);
            s.ops->release(msg);
            heard++;
        }
    } while (rc);
    tpset_destroy_rank(&s, 0);
    for (; heard < 2; heard++) {
        struct bny_msg *msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;

        cr_assert_eq(msg->hdr.seq, (uint32_t)heard);
        s.ops->release(msg);
    }
    tpset_close(&s);
    free(src);
    free(got);
}

/* ---- windows of operations that failed ---- */

/* Of three ranks one dies: the other two go on with each other, whatever they put. */
Test(verbs_recall, survivors_of_a_failed_operation_keep_each_other)
{
    enum { LEN = 200000 };
    uint8_t *mem[2] = { calloc(1, LEN), calloc(1, LEN) };
    struct bny_window win[2];
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct tpset s;

    verbs_joined(&s, 3);
    hdr.kind = BNY_MSG_PUT;
    hdr.codec_len_raw = LEN;
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(s.ops->attach(s.tp[r], mem[r], LEN), 0);
        cr_assert_eq(s.ops->window_open(s.ep[r][!r], mem[r], LEN, &win[r]), 0);
    }
    for (int r = 0; r < 2; r++)
        cr_assert_eq(s.ops->put(s.ep[r][!r], &hdr, mem[r], LEN, &win[!r], 0, mem[r]), 0);
    tpset_destroy_rank(&s, 2);
    for (int r = 0; r < 2; r++)
        tpset_wait(&s, r, BNY_EV_DOWN);
    for (int r = 0; r < 2; r++) /* the operation fails */
        s.ops->recall(s.tp[r], mem[r]);
    for (int open = 3; open;)
        for (int r = 0; r < 2; r++) {
            if (open >> r & 1) {
                s.ops->fence(s.ep[r][!r], &win[r]);
                open &= ~((s.ops->window_close(s.ep[r][!r], &win[r]) == 0) << r);
            }
            tpset_step(&s);
        }
    for (int r = 0; r < 2; r++)
        cr_assert_eq(s.ops->detach(s.tp[r], mem[r]), 0);
    for (int r = 0; r < 2; r++) {
        struct bny_hdr after = tpset_hdr(0, 2, 0);

        tpset_eager(&s, r, !r, &after, NULL);
        while (tpset_count(&s, !r, BNY_EV_MSG) < 2)
            tpset_step(&s);
        cr_assert_eq(tpset_count(&s, r, BNY_EV_SENT), 1);
        cr_assert_eq(tpset_count(&s, r, BNY_EV_DOWN), 0, "a survivor was cut off");
        cr_assert_eq(bny_counter_read(&s.tp[r]->replaced), 0u);
    }
    tpset_close(&s);
    free(mem[0]);
    free(mem[1]);
}

static void put_on(struct tpset *s, uint8_t *src, uint32_t len, const struct bny_window *win)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    int rc;

    hdr.kind = BNY_MSG_PUT;
    hdr.codec_len_raw = len;
    rc = s->ops->put(s->ep[0][1], &hdr, src, len, win, 0, src);
    cr_assert(rc == 0 || rc == BNY_AGAIN || rc == -BANYAN_ENOTSUP, "%s", banyan_last_error());
    tpset_step(s);
    while (tpset_count(s, 1, BNY_EV_MSG))
        s->ops->release(tpset_wait(s, 1, BNY_EV_MSG).msg);
    s->nevents[0] = 0;
}

/* Nothing lands after the end of a window, over however many lanes, and whether or not a queue
 * pair breaks: what it carried is posted again. */
Test(verbs_recall, a_window_ends_while_queue_pairs_are_replaced)
{
    enum { LEN = 300000, ROUNDS = 30 };
    uint8_t *dst = calloc(1, LEN), *src = calloc(1, LEN);
    struct bny_window win;
    struct tpset s;

    set_key("BANYAN_VERBS=qps", "3");
    verbs_joined(&s, 2);
    verbs_lanes_joined(&s, 3);
    cr_assert_eq(s.ops->attach(s.tp[0], src, LEN), 0);
    cr_assert_eq(s.ops->attach(s.tp[1], dst, LEN), 0);
    for (int round = 0; round < ROUNDS && !verbs_iwarp(&s); round++) {
        uint32_t lane = (uint32_t)round % 4; /* 3: none */
        struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
        struct vb_lane *c =
            lane < 3 ? verbs_lane_conn(&s, round & 1, !(round & 1), lane) : NULL;

        cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, LEN, &win), 0);
        for (int i = 0; i < 5 + round; i++)
            put_on(&s, src, LEN, &win);
        if (c)
            c->t->fn->ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE);
        do {
            s.ops->fence(s.ep[1][0], &win);
            put_on(&s, src, LEN, &win);
        } while (s.ops->window_close(s.ep[1][0], &win) == BNY_AGAIN);
        memset(dst, 0xa5, LEN);
        for (int i = 0; i < 60; i++)
            put_on(&s, src, LEN, &win);
        verbs_lanes_joined(&s, 3);
        for (int i = 0; i < LEN; i++)
            cr_assert_eq(dst[i], 0xa5, "round %d: a put landed at %d", round, i);
        cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN) + tpset_count(&s, 1, BNY_EV_DOWN), 0);
    }
    set_key("BANYAN_VERBS=qps", NULL);
    verbs_left(&s);
    free(dst);
    free(src);
}

/* Who does not look cannot say that it writes nothing more. */
Test(verbs_recall, a_peer_that_stands_still_is_cut_off)
{
    uint8_t *dst = calloc(1, 8192);
    struct bny_window win;
    struct tpset s;

    verbs_joined(&s, 2);
    cr_assert_eq(s.ops->attach(s.tp[1], dst, 8192), 0);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, 8192, &win), 0);
    s.paused[0] = 1;
    do {
        s.ops->fence(s.ep[1][0], &win);
        tpset_step(&s);
    } while (s.ops->window_close(s.ep[1][0], &win) == BNY_AGAIN);
    verbs_expect_down(&s, 1, "has not answered for");
    tpset_close(&s);
    free(dst);
}

/* As many as have numbers: when their operations fail the peer is asked about each, and stays.
 * What would be one more is none: its operation sends messages. */
Test(verbs_recall, more_windows_than_there_are_numbers)
{
    enum { LEN = 5000, N = VB_WINDOWS };
    uint8_t *dst = calloc(1, LEN), *src = calloc(1, LEN);
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_window win[N], more;
    int open = N;
    struct tpset s;

    verbs_joined(&s, 2);
    hdr.kind = BNY_MSG_PUT;
    cr_assert_eq(s.ops->attach(s.tp[0], src, LEN), 0);
    cr_assert_eq(s.ops->attach(s.tp[1], dst, LEN), 0);
    for (int i = 0; i < N; i++)
        cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, LEN, &win[i]), 0);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, LEN, &more), -BANYAN_ENOTSUP);
    for (int i = 0; i < N; i++) {
        memset(src, i + 1, LEN);
        cr_assert_eq(s.ops->put(s.ep[0][1], &hdr, src, LEN, &win[i], 0, src), 0);
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        cr_assert(dst[0] == (uint8_t)(i + 1) && dst[LEN - 1] == (uint8_t)(i + 1), "window %d",
                  i);
        tpset_wait(&s, 0, BNY_EV_SENT);
    }
    while (open) {
        open = 0;
        for (int i = 0; i < N; i++) {
            if (win[i].bytes) {
                s.ops->fence(s.ep[1][0], &win[i]);
                win[i].bytes = s.ops->window_close(s.ep[1][0], &win[i]) == BNY_AGAIN;
                open += win[i].bytes != 0;
            }
        }
        tpset_step(&s);
    }
    cr_assert_eq(tpset_count(&s, 1, BNY_EV_DOWN), 0);
    for (int i = 0; i < N; i++)
        cr_assert_neq(s.ops->put(s.ep[0][1], &hdr, src, LEN, &win[i], 0, src), 0,
                      "window %d was closed", i);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, LEN, &more), 0);
    memset(src, 77, LEN);
    cr_assert_eq(s.ops->put(s.ep[0][1], &hdr, src, LEN, &more, 0, src), 0);
    s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    cr_assert(dst[0] == 77 && dst[LEN - 1] == 77);
    cr_assert_eq(s.ops->window_close(s.ep[1][0], &more), 0);
    tpset_wait(&s, 0, BNY_EV_SENT);
    verbs_left(&s);
    free(dst);
    free(src);
}
