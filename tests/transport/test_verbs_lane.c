/* SPDX-License-Identifier: BSD-3-Clause */
/* Queue pairs that break and are replaced, devices without immediates, and what devices tell by themselves. Over the
 * simulated device, or a real one where BANYAN_TEST_IFNAMES names two interfaces. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

TestSuite(verbs_lane, .timeout = 100);

static void break_pair(struct tpset *s, int from, int to)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    struct vb_conn *c = verbs_conn(s, from, to);

    cr_assert_eq(c->t->fn->ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE), 0);
}

enum { KINDS = 5, STREAM_BYTES = 600000 };

static uint32_t stream_len(uint32_t seq)
{
    static const uint32_t lens[KINDS] = { 16, 4096, 60000, STREAM_BYTES, 20000 };

    return lens[seq % KINDS];
}

/* Message seq of a stream from `a` to `b`, by another way each time. BNY_AGAIN: not now. */
static int send_one(struct tpset *s, int a, int b, uint32_t seq, uint8_t *buf, const struct bny_window *win)
{
    struct bny_hdr hdr = tpset_hdr(0, seq, stream_len(seq));
    struct bny_slot slot;
    int rc;

    tpset_fill(buf, hdr.len, a, b, seq);
    switch (seq % KINDS) {
    case 0:
    case 1: return s->ops->eager(s->ep[a][b], &hdr, buf);
    case 2:
        rc = s->ops->reserve(s->ep[a][b], hdr.len, &slot);
        if (rc)
            return rc;
        memcpy(slot.mem, buf, hdr.len);
        return s->ops->commit(s->ep[a][b], &slot, &hdr);
    case 3: return s->ops->send(s->ep[a][b], &hdr, buf, buf);
    default:
        hdr.kind = BNY_MSG_PUT;
        return s->ops->put(s->ep[a][b], &hdr, buf, hdr.len, win, 0, buf);
    }
}

/* A stream each way; queue pairs are broken in the middle, by chance, at either end. Everything arrives once, in order and
 * intact, and all borrowed memory comes back. */
static void stream_and_break(int breaks)
{
    const uint32_t messages = verbs_real_device() ? 25 : 60;
    struct tpset s;
    struct bny_window win[2];
    uint8_t *src[2], *dst[2], *got = malloc(STREAM_BYTES);
    uint32_t sent[2] = { 0 }, heard[2] = { 0 }, free_again[2] = { 1, 1 }, broken = 0;
    uint64_t rng = 77 + (uint64_t)breaks, deadline = bny_deadline_in(TPSET_DEADLINE_S);

    verbs_joined(&s, 2);
    breaks = verbs_iwarp(&s) ? 0 : breaks;
    for (int r = 0; r < 2; r++) {
        src[r] = malloc(STREAM_BYTES);
        dst[r] = malloc(STREAM_BYTES);
        cr_assert_eq(s.ops->attach(s.tp[r], src[r], STREAM_BYTES), 0);
        cr_assert_eq(s.ops->attach(s.tp[r], dst[r], STREAM_BYTES), 0);
        cr_assert_eq(s.ops->window_open(s.ep[r][!r], dst[r], STREAM_BYTES, &win[r]), 0);
    }
    while (heard[0] < messages || heard[1] < messages || !free_again[0] || !free_again[1]) {
        cr_assert(!bny_deadline_passed(deadline), "%u and %u of %u, after %u breaks", heard[0], heard[1], messages, broken);
        for (int r = 0; r < 2; r++) {
            if (sent[r] < messages && free_again[r]) {
                int rc = send_one(&s, r, !r, sent[r], src[r], &win[!r]);

                cr_assert(rc == 0 || rc == BNY_AGAIN, "%d: %s", rc, banyan_last_error());
                free_again[r] = rc != 0 || sent[r] % KINDS < 3; /* the others borrow src */
                sent[r] += rc == 0;
            }
            if (tpset_count(&s, r, BNY_EV_SENT)) {
                tpset_wait(&s, r, BNY_EV_SENT);
                free_again[r]++;
                cr_assert_eq(free_again[r], 1u, "memory came back twice");
            }
            cr_assert_eq(tpset_count(&s, r, BNY_EV_DOWN), 0);
            if (tpset_count(&s, r, BNY_EV_MSG)) {
                struct bny_msg *msg = tpset_wait(&s, r, BNY_EV_MSG).msg;
                uint32_t seq = msg->hdr.seq;

                cr_assert_eq(seq, heard[r], "message %u instead of %u", seq, heard[r]);
                heard[r]++;
                if (msg->hdr.kind == BNY_MSG_DATA)
                    tpset_read(&s, msg, got, 100000, 0);
                cr_assert_eq(tpset_check(msg->hdr.kind == BNY_MSG_PUT ? dst[r] : got, stream_len(seq), !r, r, seq), -1);
                s.ops->release(msg);
            }
        }
        tpset_step(&s);
        if (broken < (uint32_t)breaks && bny_rng_below(&rng, 12) == 0) {
            int r = (int)bny_rng_below(&rng, 2);

            if (verbs_conn(&s, r, !r)->id) {
                break_pair(&s, r, !r);
                broken++;
                deadline = bny_deadline_in(TPSET_DEADLINE_S);
            }
        }
    }
    cr_assert(broken == 0 || verbs_conn(&s, 0, 1)->epoch > 0, "nothing was replaced");
    for (int r = 0; r < 2; r++)
        cr_assert_eq(s.ops->window_close(s.ep[r][!r], &win[r]), 0);
    verbs_left(&s);
    for (int r = 0; r < 2; r++) {
        free(src[r]);
        free(dst[r]);
    }
    free(got);
}

Test(verbs_lane, a_queue_pair_in_error_is_replaced)
{
    stream_and_break(0);
    for (int i = 1; i <= (verbs_real_device() ? 3 : 12); i++)
        stream_and_break(i % 4 + 1);
}

/* Notes in place of immediates: the same promises. */
Test(verbs_lane, a_device_without_immediates_works)
{
    setenv("BANYAN_VERBS_NOTIFY", "1", 1);
    verbs_sim.no_immediates = 1;
    stream_and_break(0);
    verbs_sim.no_immediates = 0; /* else it is iWARP, and replaces nothing */
    stream_and_break(3);
    if (verbs_real_device())
        return;
    verbs_sim.max_inline = UINT32_MAX;
    stream_and_break(1);
}

/* There a completion does not tell that something arrived. */
Test(verbs_lane, iwarp_replaces_nothing)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.no_immediates = 1;
    verbs_joined(&s, 2);
    cr_assert(verbs_iwarp(&s));
    break_pair(&s, 0, 1);
    verbs_expect_down(&s, 0, "not reached");
    verbs_expect_down(&s, 1, "device sim0"); /* closed, or not reached */
    tpset_close(&s);
}

/* A peer that has ended takes no other connection: that is told, soon. */
Test(verbs_lane, a_peer_that_ended_is_told)
{
    struct tpset s;

    verbs_joined(&s, 2);
    tpset_destroy_rank(&s, 1);
    verbs_expect_down(&s, 0, verbs_iwarp(&s) ? "not reached" : "ended");
    tpset_close(&s);
}

/* Packets are lost for a while: longer than the device tries, shorter than we do. */
Test(verbs_lane, a_flap_is_invisible)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 7, 64);
    uint8_t buf[64] = { 0 };
    struct bny_msg *msg;

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    verbs_sim.cut_after = verbs_sim.executed;
    cr_assert_eq(s.ops->eager(s.ep[0][1], &hdr, buf), 0);
    while (!verbs_conn(&s, 0, 1)->lost)
        tpset_step(&s);
    verbs_sim.cut_after = 0;
    msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    cr_assert_eq(msg->hdr.seq, 7u);
    s.ops->release(msg);
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN) + tpset_count(&s, 1, BNY_EV_DOWN), 0);
    verbs_left(&s);
}

Test(verbs_lane, what_a_device_tells)
{
    struct tpset s;
    static const enum ibv_event_type harmless[] = { IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_LID_CHANGE,
                                                    IBV_EVENT_GID_CHANGE, IBV_EVENT_SRQ_ERR };

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    s.paused[1] = 1;
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        verbs_sim.event = (int)harmless[i] + 1;
        while (verbs_sim.event)
            tpset_step(&s);
        cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN), 0);
    }
    verbs_sim.event = (int)IBV_EVENT_DEVICE_FATAL + 1;
    verbs_expect_down(&s, 0, "device sim0 has failed");
    s.paused[1] = 0;
    tpset_close(&s);
}
