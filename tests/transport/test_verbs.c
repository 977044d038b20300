/* SPDX-License-Identifier: BSD-3-Clause */
/* What only the verbs transport has: secrets and keys, hostile peers, queue pairs in error,
 * where bytes lie. Over the simulated device, or a real one where BANYAN_TEST_IFNAMES names two
 * interfaces; faults that only the simulated one has are skipped quietly there. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <signal.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/err.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

TestSuite(verbs, .timeout = 60);

/* Posts an immediate of the test's own making (a note, where the device has none), with len
 * bytes written into the peer's slab at `at`. */
static void post_forged(struct tpset *s, uint32_t imm, uint64_t at, uint32_t len)
{
    struct vb_lane *c = verbs_conn(s, 0, 1);
    struct ibv_sge sge = { .addr = (uintptr_t)(c->peer->slab + VB_SLAB_BYTES),
                           .length = len,
                           .lkey = c->peer->mr_out[0]->lkey };
    struct vb_note note = { htonl(imm), len };
    struct ibv_sge note_sge = { .addr = (uintptr_t)&note, .length = sizeof note };
    struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                    .sg_list = &sge,
                                    .num_sge = len ? 1 : 0,
                                    .imm_data = htonl(imm),
                                    .send_flags = IBV_SEND_SIGNALED };

    wr.wr.rdma.remote_addr = c->peer->remote_addr + at;
    wr.wr.rdma.rkey = c->rkey;
    c->sent[c->posted % VB_SENDS] = (struct vb_sent){ .seq = ++c->imm_sent, .has_imm = 1 };
    wr.wr_id = c->posted++;
    c->to_post = c->posted;
    if (c->notify) {
        struct ibv_send_wr told = { .wr_id = wr.wr_id,
                                    .opcode = IBV_WR_SEND,
                                    .sg_list = &note_sge,
                                    .num_sge = 1,
                                    .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED };

        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.send_flags = 0;
        cr_assert_eq(len ? ibv_post_send(c->id->qp, &wr, &bad) : 0, 0);
        wr = told;
    }
    cr_assert_eq(ibv_post_send(c->id->qp, &wr, &bad), 0);
}

static void forged_header(struct tpset *s, uint32_t len)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, len);

    memcpy(verbs_conn(s, 0, 1)->peer->slab + VB_SLAB_BYTES, &hdr, sizeof hdr);
}

Test(verbs, hostile_immediates_end_the_connection)
{
    static const struct {
        uint32_t imm, at, len, says_len;
        const char *part;
    } forged[] = {
        { 0u << 28, 0, 0, 0, "means nothing" },
        { 15u << 28 | 5, 0, 0, 0, "means nothing" },
        { VB_IMM_EAGER << 28 | 77, 0, 64, 0, "no credit" }, /* not the next slot */
        { VB_IMM_EAGER << 28 | 0xfff, 0, 64, 0, "no credit" },
        { VB_IMM_EAGER << 28 | 2 << VB_LANES_AT, 0, 64, 0, "no such lane" },
        { VB_IMM_PART << 28 | 0x8000 << VB_LANES_AT, 0, 64, 0, "no such lane" },
        { (uint32_t)VB_IMM_STRIPE << 28, 0, 64, 0, "means nothing" },  /* on the first lane */
        { VB_IMM_BULK << 28 | 8, 0, 64, 0, "no credit" },              /* there are 8 */
        { VB_IMM_EAGER << 28 | 1, VB_EAGER_STRIDE, 0, 0, "writes 0" }, /* no header at all */
        { VB_IMM_EAGER << 28 | 1, VB_EAGER_STRIDE, 64, 4,
          "writes 64" }, /* longer than what came */
        { VB_IMM_EAGER << 28 | 1, VB_EAGER_STRIDE, 65, UINT32_MAX, "writes 65" },
        { VB_IMM_BULK << 28 | 0, VB_SLAB_EAGER, 100, 37, "writes 100" },
        { VB_IMM_LONG << 28 | 0, VB_SLAB_EAGER, 164, 100, "writes 164" },
        { VB_IMM_LONG << 28 | 0, VB_SLAB_EAGER, 64, 1u << 30, "writes 64" },
        { VB_IMM_PART << 28 | 0, VB_SLAB_EAGER, 164, 100, "none is expected" },
        { VB_IMM_EAGER << 28 | 4 << 8 | 1, VB_EAGER_STRIDE, 64, 0,
          "no credit" }, /* there are 4 shapes */
        { (uint32_t)VB_IMM_AGAIN << 28 | 3u << 26, 0, 0, 0, "never sent" },
        { (uint32_t)VB_IMM_AGAIN << 28 | 1 << 8, VB_EAGER_STRIDE + 64, 8, 0,
          "writes 8" }, /* the header says none */
        { (uint32_t)VB_IMM_PUT_AGAIN << 28 | 1 << 8, 0, 8, 0, "writes 8" }, /* it was no put */
        { VB_IMM_FREED_EAGER << 28 | 200, 0, 0, 0, "means nothing" }, /* more than were sent */
        { VB_IMM_FREED_EAGER << 28 | 1 << 12 | 1, 0, 0, 0, "means nothing" },
        { VB_IMM_FREED_EAGER << 28 | 0xffff << 12 | 1, 0, 0, 0, "means nothing" },
        { VB_IMM_FREED_EAGER << 28 | 0xfff, 0, 0, 0, "means nothing" },
        { VB_IMM_FREED_EAGER << 28, 0, 0, 0, "means nothing" },    /* none at all */
        { VB_IMM_FREED_BULK << 28 | 3, 0, 0, 0, "means nothing" }, /* that slot is free */
        { VB_IMM_FREED_BULK << 28 | 31, 0, 0, 0, "means nothing" },
        { (uint32_t)VB_IMM_CLOSE << 28 | 1, 0, 0, 0, "not its turn" },
        { (uint32_t)VB_IMM_CLOSE << 28 | 1, VB_EAGER_STRIDE, 64, 0, "which is not closed" },
    };

    for (size_t i = 0; i < sizeof forged / sizeof forged[0]; i++) {
        struct tpset s;

        verbs_joined(&s, 2);
        forged_header(&s, forged[i].says_len);
        post_forged(&s, forged[i].imm, forged[i].at, forged[i].len);
        verbs_expect_down(&s, 1, forged[i].part);
        tpset_close(&s);
    }
}

Test(verbs, a_slot_is_not_taken_twice)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 5000);
    struct bny_slot slot;

    verbs_joined(&s, 2);
    tpset_reserve(&s, 0, 1, 5000, &slot);
    cr_assert_eq(s.ops->commit(s.ep[0][1], &slot, &hdr), 0);
    tpset_wait(&s, 1, BNY_EV_MSG); /* held */
    post_forged(&s, (uint32_t)VB_IMM_BULK << 28 | slot.index, VB_SLAB_EAGER, 64);
    verbs_expect_down(&s, 1, "no credit");
    tpset_close(&s);
}

Test(verbs, a_wrong_key_is_a_remote_access_error)
{
    struct tpset s;
    struct bny_window win;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    uint8_t *dst = calloc(1, 8192), *src = calloc(1, 8192);

    verbs_joined(&s, 2);
    cr_assert_eq(s.ops->attach(s.tp[0], src, 8192), 0);
    cr_assert_eq(s.ops->attach(s.tp[1], dst, 8192), 0);
    cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, 8192, &win), 0);
    win.key ^= 0xff;
    memset(src, 1, 8192);
    hdr.kind = BNY_MSG_PUT;
    cr_assert_eq(s.ops->put(s.ep[0][1], &hdr, src, 8192, &win, 0, src), 0);
    verbs_expect_down(&s, 0, verbs_iwarp(&s) ? "not reached" : "remote access error");
    cr_assert_eq(dst[0], 0);
    tpset_close(&s);
    free(dst);
    free(src);
}

/* Puts like an earlier one go another way than others, and very large ones in pieces; whatever
 * the inline size. */
#define PUT_MAX 3000001u
Test(verbs, puts_of_all_sizes_land)
{
    static const uint32_t sizes[] = { 1,    7,    64,   155,  156,    157,    220,
                                      4096, 4096, 4096, 5000, 100000, PUT_MAX };
    uint8_t *dst = malloc(PUT_MAX + 8), *src = malloc(PUT_MAX);

    for (int inlined = 1; inlined >= verbs_real_device(); inlined--) {
        struct tpset s;
        struct bny_window win;

        verbs_sim.max_inline = inlined ? 0 : UINT32_MAX;
        verbs_joined(&s, 2);
        cr_assert_eq(s.ops->attach(s.tp[0], src, PUT_MAX), 0);
        cr_assert_eq(s.ops->attach(s.tp[1], dst, PUT_MAX + 8), 0);
        cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, PUT_MAX + 8, &win), 0);
        for (uint32_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct bny_hdr hdr = tpset_hdr(0, i, 0);
            struct bny_msg *msg;

            hdr.kind = BNY_MSG_PUT;
            hdr.codec_len_raw = sizes[i];
            memset(dst, 0xa5, PUT_MAX + 8);
            tpset_fill(src, sizes[i], 0, 1, i);
            cr_assert_eq(s.ops->put(s.ep[0][1], &hdr, src, sizes[i], &win, 3, src), 0);
            msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
            cr_assert_eq(memcmp(&msg->hdr, &hdr, sizeof hdr), 0);
            cr_assert_eq(tpset_check(dst + 3, sizes[i], 0, 1, i), -1, "%u bytes", sizes[i]);
            cr_assert(dst[2] == 0xa5 && dst[3 + sizes[i]] == 0xa5, "%u bytes: beside the range",
                      sizes[i]);
            s.ops->release(msg);
            cr_assert_eq(tpset_wait(&s, 0, BNY_EV_SENT).cookie, src);
        }
        cr_assert_eq(s.ops->window_close(s.ep[1][0], &win), 0);
        verbs_left(&s);
    }
    free(dst);
    free(src);
}

/* Borrowed memory comes back, once each, before the end is told; then sends are refused with a
 * sentence. */
Test(verbs, a_queue_pair_in_error_is_told)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 700000);
    uint8_t *buf = calloc(1, 700000);

    set_key("BANYAN_VERBS=replace", "0");
    verbs_joined(&s, 2);
    for (uintptr_t i = 1; i <= 3; i++)
        tpset_send(&s, 0, 1, &hdr, buf, (void *)i);
    verbs_break_pair(&s, 0, 1);
    hdr.len = 0;
    for (int i = 0; i < 20; i++)
        if (s.ops->eager(s.ep[0][1], &hdr, NULL) < 0)
            break;
    tpset_wait(&s, 0, BNY_EV_DOWN);
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_SENT), 3, "%d of 3",
                 tpset_count(&s, 0, BNY_EV_SENT));
    cr_assert_eq(s.ops->eager(s.ep[0][1], &hdr, NULL), -BANYAN_ERANKDEAD);
    cr_assert(strstr(banyan_last_error(), "rank 1"), "%s", banyan_last_error());
    tpset_wait(&s, 1, BNY_EV_DOWN);
    tpset_close(&s);
    free(buf);
}

Test(verbs, a_rank_of_another_job_is_turned_away)
{
    const struct bny_transport_ops *ops = bny_transport_find("verbs");
    static uint8_t secrets[2][32] = { "one secret", "another secret" };
    struct bny_tp *tp[2];
    struct bny_ep *ep;
    struct bny_event ev = { 0 };
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    uint8_t blob[2][BNY_ADDR_MAX];
    uint64_t deadline = bny_deadline_in(30);
    size_t blob_len = 0;
    struct tpset s;

    tpset_open(&s, ops, 1, NULL); /* chooses the device, or skips */
    tpset_close(&s);
    for (int r = 0; r < 2; r++) {
        struct bny_tp_config cfg = { .rank = r,
                                     .nranks = 2,
                                     .secret = secrets[r],
                                     .port_range = "",
                                     .ifname = verbs_real_device() ? "w0" : "lo" };

        cr_assert_eq(ops->create(&tp[r], &cfg), 0, "%s", banyan_last_error());
        blob_len = (size_t)ops->address(tp[r], blob[r], BNY_ADDR_MAX);
    }
    cr_assert_eq(ops->connect(tp[0], 1, blob[1], blob_len, &ep), 0);
    cr_assert_eq(ops->eager(ep, &hdr, NULL), BNY_AGAIN);
    while (ev.kind != BNY_EV_DOWN) {
        cr_assert(!bny_deadline_passed(deadline));
        ops->poll(tp[0], &ev, 1);
        cr_assert_eq(ops->poll(tp[1], &ev, ev.kind != BNY_EV_DOWN), 0,
                     "the stranger hears something");
    }
    cr_assert(strstr(ev.reason, "secret"), "%s", ev.reason);
    ops->destroy(tp[0]);
    ops->destroy(tp[1]);
}

/* Encoders write into reserved memory: it must be the registered slab itself, and nothing be
 * copied on the way. */
Test(verbs, reservations_lie_in_the_slab)
{
    struct tpset s;
    uint32_t seq = 0;

    verbs_joined(&s, 2);
    for (int round = 0; round < 40; round++) {
        struct vb_lane *c = verbs_conn(&s, 0, 1);
        struct bny_hdr hdr = tpset_hdr(0, seq++, 70000);
        struct bny_slot slot;
        struct bny_msg *msg;
        const char *slab = c->peer->slab + VB_SLAB_BYTES;

        tpset_reserve(&s, 0, 1, 70000, &slot);
        cr_assert((char *)slot.mem >= slab &&
                  (char *)slot.mem + slot.cap <= slab + VB_SLAB_BYTES);
        cr_assert_eq(((uintptr_t)slot.mem - (uintptr_t)c->peer->slab) % 64, 0u, "not aligned");
        tpset_fill(slot.mem, 70000, 0, 1, hdr.seq);
        cr_assert_eq(s.ops->commit(s.ep[0][1], &slot, &hdr), 0);
        msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
        cr_assert((char *)msg->data >= verbs_conn(&s, 1, 0)->peer->slab &&
                      (char *)msg->data < verbs_conn(&s, 1, 0)->peer->slab + VB_SLAB_BYTES,
                  "not lent from the slab");
        cr_assert_eq(tpset_check(msg->data, 70000, 0, 1, hdr.seq), -1);
        s.ops->release(msg);
    }
    cr_assert_eq(bny_counter_read(&s.tp[0]->copied_bytes), 0u);
    cr_assert_eq(bny_counter_read(&s.tp[1]->copied_bytes), 0u);
    verbs_left(&s);
}

Test(verbs, registered_memory_is_sent_without_a_copy)
{
    struct tpset s;
    uint8_t *buf = malloc(2000000), *got = malloc(2000000);
    static const uint32_t sizes[] = { 5000, VB_SLOT_MAX, VB_SLOT_MAX + 1, 2000000 };

    verbs_joined(&s, 2);
    for (int known = 0; known < 2; known++) {
        uint64_t copied = bny_counter_read(&s.tp[0]->copied_bytes);

        if (known)
            cr_assert_eq(s.ops->attach(s.tp[0], buf, 2000000), 0, "%s", banyan_last_error());
        for (uint32_t i = 0; i < 4; i++) {
            struct bny_hdr hdr = tpset_hdr(1, i, sizes[i]);
            struct bny_msg *msg;

            tpset_fill(buf, sizes[i], 0, 1, i);
            tpset_send(&s, 0, 1, &hdr, buf, buf);
            msg = tpset_wait(&s, 1, BNY_EV_MSG).msg;
            tpset_read(&s, msg, got, 100000, 0);
            cr_assert_eq(tpset_check(got, sizes[i], 0, 1, i), -1, "%u bytes", sizes[i]);
            s.ops->release(msg);
            tpset_wait(&s, 0, BNY_EV_SENT);
        }
        copied = bny_counter_read(&s.tp[0]->copied_bytes) - copied;
        cr_assert(known ? copied == 0 : copied > 2000000, "%llu bytes copied",
                  (unsigned long long)copied);
    }
    cr_assert_eq(s.ops->detach(s.tp[0], buf), 0);
    cr_assert_eq(s.ops->detach(s.tp[0], buf), -BANYAN_EINVAL);
    verbs_left(&s);
    free(buf);
    free(got);
}

/* A sleeper is woken by a message: its descriptors become readable. */
Test(verbs, a_message_wakes_a_sleeper)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_event ev;
    struct pollfd p[4];
    int fds[4], n = 0;

    verbs_joined(&s, 2);
    for (int i = 0; i < 20; i++) {
        uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

        while (s.ops->arm(s.tp[1], fds, 4, &n) == 0) {
            cr_assert(!bny_deadline_passed(deadline), "there is always something");
            s.ops->disarm(s.tp[1]);
            cr_assert_eq(s.ops->poll(s.tp[1], &ev, 1), 0);
        }
        cr_assert_eq(s.ops->eager(s.ep[0][1], &hdr, NULL), 0);
        for (int k = 0; k < n; k++)
            p[k] = (struct pollfd){ .fd = fds[k], .events = POLLIN };
        cr_assert_gt(poll(p, (nfds_t)n, 20000), 0, "nobody woke it");
        s.ops->disarm(s.tp[1]);
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    }
    verbs_left(&s);
}

/* ---- what only a simulated device does ---- */

Test(verbs, credits_keep_the_receiver_ready)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 0, 64);
    uint8_t buf[64] = { 0 };
    uint32_t sent = 0;
    int rc;

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    s.paused[1] = 1; /* the receiver sleeps: the sender must stop by itself */
    while ((rc = s.ops->eager(s.ep[0][1], &hdr, buf)) == 0)
        sent++;
    cr_assert_eq(rc, BNY_AGAIN);
    cr_assert(sent > 200 && sent <= VB_EAGER_SLOTS, "%u", sent);
    for (int i = 0; i < 2000; i++)
        tpset_step(&s);
    cr_assert_eq(verbs_sim.rnr, 0u);
    s.paused[1] = 0;
    for (uint32_t i = 0; i < sent; i++)
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    tpset_eager(&s, 0, 1, &hdr, buf);
    verbs_left(&s);
}

/* Should the arithmetic of credits be wrong, the end is an error and no silent hang. */
Test(verbs, a_receiver_that_is_not_ready_is_told)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 0, 64);
    uint8_t buf[64] = { 0 };
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    verbs_sim.steal_recvs = 16;
    while (tpset_count(&s, 0, BNY_EV_DOWN) == 0) {
        cr_assert(!bny_deadline_passed(deadline));
        s.ops->eager(s.ep[0][1], &hdr, buf);
        tpset_step(&s);
        while (tpset_count(&s, 1, BNY_EV_MSG))
            s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    }
    verbs_expect_down(&s, 0, "RNR");
    tpset_close(&s);
}

Test(verbs, lost_packets_for_ever_are_told)
{
    set_key("BANYAN_VERBS=replace", "0");
    for (uint64_t cut = 5; cut < 40; cut += 7) {
        struct tpset s;
        struct bny_hdr hdr = tpset_hdr(0, 0, 300000);
        uint8_t *buf = calloc(1, 300000);
        uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
        int rc = 0;

        if (verbs_real_device()) {
            free(buf);
            return;
        }
        verbs_joined(&s, 2);
        verbs_sim.cut_after = verbs_sim.executed + cut;
        while (tpset_count(&s, 0, BNY_EV_DOWN) == 0) {
            cr_assert(!bny_deadline_passed(deadline));
            if (rc == 0 || rc == BNY_AGAIN)
                rc = s.ops->send(s.ep[0][1], &hdr, buf, buf);
            tpset_step(&s);
            while (tpset_count(&s, 1, BNY_EV_MSG))
                s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
            while (tpset_count(&s, 0, BNY_EV_SENT))
                tpset_wait(&s, 0, BNY_EV_SENT);
        }
        verbs_expect_down(&s, 0, "retry counter exceeded");
        verbs_sim.cut_after = 0;
        tpset_close(&s);
        free(buf);
    }
}

/* A device with other limits: nothing is taken for granted. */
Test(verbs, a_device_without_inline_data_works)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim.max_inline = UINT32_MAX;
    verbs_joined(&s, 4);
    cr_assert_eq(verbs_conn(&s, 0, 1)->inline_max, 0u);
    verbs_left(&s);
}

/* What the device has is less than it said when the rank opened it. */
static void expect_no_connection(int *limit, int value, const char *part)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 0, 0);
    int rc;

    tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
    s.lack_is_down = 1;
    *limit = value;
    rc = s.ops->eager(s.ep[0][1], &hdr, NULL);
    cr_assert(rc == BNY_AGAIN, "%d", rc);
    verbs_expect_down(&s, 0, part);
    tpset_close(&s);
    *limit = 0;
    cr_assert_eq(verbs_sim.open, 0);
}

Test(verbs, small_devices_are_told)
{
    if (verbs_real_device())
        return;
    expect_no_connection(&verbs_sim.max_cqe, 100, "completion queue");
    expect_no_connection(&verbs_sim.max_send_wr, 100, "queue pair");
    verbs_sim.registered = 0;
    expect_no_connection(&verbs_sim.registrations, 1, "ulimit -l");
}

/* What a job registers for itself is a constant times its peers. */
Test(verbs, registered_memory_is_bounded)
{
    if (verbs_real_device())
        return;
    for (int n = 2; n <= 4; n++) {
        struct tpset s;

        verbs_joined(&s, n);
        cr_assert_leq(verbs_sim.registered_bytes,
                      (uint64_t)(n * (n - 1)) * VB_PEER_BYTES(1, 1));
        verbs_left(&s);
        cr_assert_eq(verbs_sim.registered_bytes, 0u);
    }
}

Test(verbs, memory_that_does_not_register_is_copied)
{
    struct tpset s;
    uint8_t *buf = calloc(1, 50000);
    struct bny_hdr hdr = tpset_hdr(0, 0, 50000);
    struct bny_window win;

    if (verbs_real_device()) {
        free(buf);
        return;
    }
    verbs_joined(&s, 2);
    verbs_sim.registrations = (int)verbs_sim.registered;
    cr_assert_eq(s.ops->attach(s.tp[0], buf, 50000), -BANYAN_ENOMEM);
    cr_assert(strstr(banyan_last_error(), "ulimit -l"), "%s", banyan_last_error());
    cr_assert_eq(s.ops->window_open(s.ep[0][1], buf, 50000, &win), -BANYAN_ENOTSUP);
    tpset_send(&s, 0, 1, &hdr, buf, buf);
    s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    tpset_wait(&s, 0, BNY_EV_SENT);
    verbs_left(&s);
    free(buf);
}

Test(verbs, no_device_is_told_with_its_remedy)
{
    const struct bny_transport_ops *ops = bny_transport_find("verbs");
    static uint8_t secret[32];
    struct bny_tp_config cfg = {
        .rank = 0, .nranks = 2, .secret = secret, .ifname = "", .port_range = ""
    };
    struct bny_tp *tp;

    if (verbs_real_device())
        return;
    verbs_sim_use();
    verbs_sim.no_device = 1;
    cr_assert_eq(ops->create(&tp, &cfg), -BANYAN_ENOTSUP);
    cr_assert(strstr(banyan_last_error(), "rdma link add"), "%s", banyan_last_error());
}

#if BNY_CHECKS
/* The second time it may be somebody else's already. */
Test(verbs, a_slot_is_given_back_once, .signal = SIGABRT)
{
    struct bny_slot slot;
    struct tpset s;

    verbs_joined(&s, 2);
    tpset_reserve(&s, 0, 1, 5000, &slot);
    s.ops->cancel(s.ep[0][1], &slot);
    s.ops->cancel(s.ep[0][1], &slot);
}
#endif
