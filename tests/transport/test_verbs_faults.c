/* SPDX-License-Identifier: BSD-3-Clause */
/* Each call into the libraries that may fail does so once: of the set-up of two ranks, of
 * messages in all ways to send, of the replacement of what broke and of the end. Then the
 * messages arrive all the same, or both ranks say why not; borrowed memory comes back, and
 * nothing is left. Over the simulated device. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

TestSuite(verbs_faults, .timeout = 200);

enum {
    MESSAGES = 12,
    BYTES = 300000,
    BREAK_AT = 4,
    QUIET = 500,
    TRAVELS_MAX = 60,
    SETUP = 90,
    STRIDE = 5 /* each call of the set-up, then some of the many like each other: fewer where
                * BANYAN_TEST_SCALE is below 1 */
};

struct shape {
    int rails, qps, srq, notify;
    int dies; /* a device does, and comes back */
};

struct side {
    uint8_t *src, *dst;
    struct bny_window win;
    int has_win, borrowed, ended;
    uint32_t sent, heard;
};

struct play {
    struct tpset s;
    struct side side[2];
    int broken;
    uint32_t travels; /* in a row, without anything that moved */
};

static void ends(struct play *p, int r, const char *why)
{
    struct side *mine = &p->side[r];

    mine->ended = 1;
    cr_assert(strstr(why, "device") || strstr(why, "/dev/") ||
                  strstr(why, "closed its connection"),
              "%s", why);
    if (p->s.tp[r] && !p->s.lacked)
        cr_assert_eq(mine->borrowed, 0, "memory is kept: %s", why);
    tpset_destroy_rank(&p->s, r);
}

/* ---- one life ---- */

static void create(struct play *p, const struct shape *shape)
{
    static const uint8_t secret[32] = "faults";
    struct tpset *s = &p->s;

    s->ops = bny_transport_find("verbs");
    s->n = 2;
    s->lack_is_down = 1;
    for (int r = 0; r < 2; r++) {
        struct bny_tp_config cfg = { .rank = r,
                                     .nranks = 2,
                                     .nlocal = 2,
                                     .secret = secret,
                                     .port_range = "",
                                     .ifname = shape->rails == 2 ? "sim0,sim1" : "lo" };

        s->events[r] = calloc(TPSET_EVENTS, sizeof *s->events[r]);
        if (s->ops->create(&s->tp[r], &cfg) != 0) {
            cr_assert_null(s->tp[r]);
            ends(p, r, banyan_last_error());
        } else {
            s->blob_len[r] = s->ops->address(s->tp[r], s->blob[r], BNY_ADDR_MAX);
        }
    }
    for (int r = 0; r < 2 && s->tp[0] && s->tp[1]; r++)
        cr_assert_eq(
            s->ops->connect(s->tp[r], !r, s->blob[!r], (size_t)s->blob_len[!r], &s->ep[r][!r]),
            0);
    for (int r = 0; r < 2; r++) {
        struct side *mine = &p->side[r];

        mine->src = malloc(BYTES);
        mine->dst = malloc((size_t)MESSAGES * BYTES);
        if (!s->tp[0] || !s->tp[1])
            continue;
        s->ops->attach(s->tp[r], mine->src, BYTES);
        mine->has_win = s->ops->attach(s->tp[r], mine->dst, (size_t)MESSAGES * BYTES) == 0 &&
                        s->ops->window_open(s->ep[r][!r], mine->dst, (size_t)MESSAGES * BYTES,
                                            &mine->win) == 0;
    }
}

/* By another way each time. */
static int send_next(struct play *p, int r)
{
    static const uint32_t lens[] = { 64, 100000, 200000, BYTES };
    struct side *mine = &p->side[r], *peer = &p->side[!r];
    struct bny_ep *ep = p->s.ep[r][!r];
    uint32_t seq = mine->sent, way = seq % 4;
    struct bny_hdr hdr = tpset_hdr(0, seq, lens[way]);
    struct bny_slot slot;
    int rc;

    tpset_fill(mine->src, hdr.len, r, !r, seq);
    if (way == 0)
        return p->s.ops->eager(ep, &hdr, mine->src);
    if (way == 1) {
        rc = p->s.ops->reserve(ep, hdr.len, &slot);
        if (rc)
            return rc;
        memcpy(slot.mem, mine->src, hdr.len);
        return p->s.ops->commit(ep, &slot, &hdr);
    }
    if (way == 2 && peer->has_win) {
        hdr.kind = BNY_MSG_PUT;
        rc = p->s.ops->put(ep, &hdr, mine->src, hdr.len, &peer->win, (uint64_t)seq * BYTES,
                           mine->src);
        if (rc != -BANYAN_ENOTSUP) {
            mine->borrowed = rc == 0;
            return rc;
        }
        hdr.kind = BNY_MSG_DATA;
    }
    rc = p->s.ops->send(ep, &hdr, mine->src, mine->src);
    mine->borrowed = rc == 0;
    return rc;
}

static void hear(struct play *p, int r, struct bny_msg *msg)
{
    struct side *mine = &p->side[r];
    uint32_t len = msg->hdr.kind == BNY_MSG_PUT ? msg->hdr.codec_len_raw : msg->hdr.len;
    uint8_t *at = mine->dst + (size_t)mine->heard * BYTES;
    const void *ptr;
    uint64_t turns = 0;
    int broke = 0;

    cr_assert_eq(msg->hdr.seq, mine->heard);
    cr_assert_leq(len, BYTES);
    for (uint32_t off = 0; msg->hdr.kind == BNY_MSG_DATA && off < len;) {
        long n = p->s.ops->view(msg, off, len - off, at + off, &ptr);

        cr_assert(++turns < 1000000, "a message never comes to its end");
        if (n == BNY_AGAIN) {
            if (turns % QUIET == 0)
                verbs_travel(&p->s, turns > (TRAVELS_MAX / 2) * QUIET);
            tpset_step(&p->s);
            continue;
        }
        broke = n < 0; /* in the middle; told next */
        if (broke)
            break;
        off += (uint32_t)n;
    }
    cr_assert(broke || tpset_check(at, len, !r, r, msg->hdr.seq) == -1, "message %u",
              msg->hdr.seq);
    mine->heard += !broke;
    p->s.ops->release(msg);
}

/* 1: something moved. */
static int move(struct play *p, int r)
{
    struct side *mine = &p->side[r];
    int moved = 0, rc;

    if (tpset_count(&p->s, r, BNY_EV_SENT)) {
        tpset_wait(&p->s, r, BNY_EV_SENT);
        cr_assert_eq(mine->borrowed, 1, "memory came back twice");
        mine->borrowed = 0;
        moved = 1;
    }
    if (tpset_count(&p->s, r, BNY_EV_MSG)) {
        hear(p, r, tpset_wait(&p->s, r, BNY_EV_MSG).msg);
        moved = 1;
    }
    if (tpset_count(&p->s, r, BNY_EV_DOWN) && !tpset_count(&p->s, r, BNY_EV_SENT)) {
        ends(p, r, tpset_wait(&p->s, r, BNY_EV_DOWN).reason);
        return 1;
    }
    if (mine->sent == MESSAGES || mine->borrowed || tpset_count(&p->s, r, BNY_EV_DOWN))
        return moved;
    rc = send_next(p, r);
    cr_assert(rc == 0 || rc == BNY_AGAIN || rc == -BANYAN_ERANKDEAD, "%d: %s", rc,
              banyan_last_error());
    mine->sent += rc == 0;
    return moved || rc == 0;
}

/* ---- the play ---- */

static int is_over(const struct play *p)
{
    int over = 1;

    for (int r = 0; r < 2; r++)
        over &= p->side[r].ended || (p->side[r].heard == MESSAGES &&
                                     p->side[r].sent == MESSAGES && !p->side[r].borrowed);
    return over;
}

/* What befalls them in any case. */
static void meddle(struct play *p, const struct shape *shape)
{
    uint32_t heard = p->side[0].heard;

    if (!p->broken && heard >= BREAK_AT && !p->side[0].ended) {
        struct vb_ep *e = (struct vb_ep *)p->s.ep[0][1];
        struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

        p->broken = 1;
        for (uint32_t k = 0; k < e->nlanes; k++) {
            struct vb_lane *c = verbs_lane_conn(&p->s, 0, 1, k);

            if (c && c->id)
                c->t->fn->ibv_modify_qp(c->id->qp, &attr, IBV_QP_STATE);
        }
    }
    if (shape->dies)
        verbs_sim.dead_device = heard >= BREAK_AT + 1 && heard < BREAK_AT + 4 ? 2 : 0;
}

static void leave(struct play *p)
{
    int waits = 1;

    for (int i = 0; i < 40 * QUIET && waits; i++) {
        waits = 0;
        for (int r = 0; r < 2; r++)
            if (p->s.tp[r])
                waits |= p->s.ops->farewell(p->s.tp[r]) == BNY_AGAIN;
        if (i % QUIET == QUIET - 1)
            verbs_travel(&p->s, i > 20 * QUIET);
        tpset_step(&p->s);
    }
    cr_assert_eq(waits, 0, "call %llu (%s): somebody never leaves",
                 (unsigned long long)verbs_sim.fail_call, verbs_sim.failed);
}

/* 0: there is no such call. */
static int run(const struct shape *shape, uint64_t fail_call, int *whole)
{
    struct play *p = calloc(1, sizeof *p);
    uint64_t quiet = 0;
    int failed;

    verbs_sim =
        (struct verbs_sim){ .seed = 7, .devices = shape->rails, .fail_call = fail_call };
    verbs_sim_use();
    create(p, shape);
    for (int r = 0; r < 2; r++)
        if (!p->side[r].ended && p->side[!r].ended && !p->s.ep[r][!r])
            ends(p, r, "the other has no device");
    while (!is_over(p)) {
        int moved = 0;

        tpset_step(&p->s);
        for (int r = 0; r < 2; r++)
            if (!p->side[r].ended)
                moved |= move(p, r);
        meddle(p, shape);
        quiet = moved ? 0 : quiet + 1;
        p->travels = moved ? 0 : p->travels;
        if (quiet % QUIET == QUIET - 1)
            verbs_travel(&p->s, ++p->travels > TRAVELS_MAX / 2);
        cr_assert_lt(p->travels, TRAVELS_MAX,
                     "call %llu (%s): a hang; %u and %u of %d heard, states %d and %d",
                     (unsigned long long)fail_call, verbs_sim.failed, p->side[0].heard,
                     p->side[1].heard, MESSAGES,
                     p->s.ep[0][1] ? (int)((struct vb_ep *)p->s.ep[0][1])->state : -1,
                     p->s.ep[1][0] ? (int)((struct vb_ep *)p->s.ep[1][0])->state : -1);
    }
    leave(p);
    *whole += !p->side[0].ended && !p->side[1].ended;
    failed = verbs_sim.failed != NULL;
    tpset_close(&p->s);
    for (int r = 0; r < 2; r++) {
        free(p->side[r].src);
        free(p->side[r].dst);
    }
    free(p);
    cr_assert_eq(verbs_sim.open, 0, "call %llu (%s): %d objects leaked",
                 (unsigned long long)fail_call, verbs_sim.failed, verbs_sim.open);
    return failed;
}

static void all_calls(struct shape shape)
{
    const char *scale = getenv("BANYAN_TEST_SCALE");
    uint64_t call = 1, stride = scale && atof(scale) < 1 ? 2 * STRIDE : STRIDE;
    int whole = 0, tried = 0;
    char qps[8];

    if (verbs_real_device())
        return;
    snprintf(qps, sizeof qps, "%d", shape.qps);
    set_key("BANYAN_VERBS=qps", qps);
    set_key("BANYAN_VERBS=srq", shape.srq ? "1" : "0");
    set_key("BANYAN_VERBS=notify", shape.notify ? "1" : "0");
    setenv("BANYAN_DEBUG", "error", 1);
    run(&shape, 0, &whole);
    cr_assert_eq(whole, 1, "it does not even work where nothing fails");
    for (; run(&shape, call, &whole); tried++)
        call += call < SETUP ? 1 : stride;
    cr_assert_gt(call, SETUP);
    cr_assert_gt(whole, tried / 5, "%d of %d lived", whole, tried);
}

Test(verbs_faults, one_queue_pair)
{
    all_calls((struct shape){ .rails = 1, .qps = 1 });
}
Test(verbs_faults, several_queue_pairs)
{
    all_calls((struct shape){ .rails = 1, .qps = 3 });
}
Test(verbs_faults, two_devices)
{
    all_calls((struct shape){ .rails = 2, .qps = 1, .dies = 1 });
}
Test(verbs_faults, two_devices_with_several_queue_pairs)
{
    all_calls((struct shape){ .rails = 2, .qps = 2 });
}
Test(verbs_faults, a_shared_receive_queue)
{
    all_calls((struct shape){ .rails = 2, .qps = 1, .srq = 1 });
}
Test(verbs_faults, notes)
{
    all_calls((struct shape){ .rails = 2, .qps = 1, .notify = 1, .dies = 1 });
}
