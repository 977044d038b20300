/* SPDX-License-Identifier: BSD-3-Clause */
/* What transport/transport.h promises, kept by every transport of the registry. Random traffic
 * is in test_traffic.c, what only one transport has in a file of its own. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/param.h"
#include "base/rng.h"
#include "tests/support/tpset.h"

struct param {
    int index;
    char name[16];
};

static struct criterion_test_params all_transports(void)
{
    static struct param params[16];
    const char *only =
        getenv("BANYAN_TEST_TRANSPORT"); /* in a guest: the one with a device there */
    size_t n = 0;

    for (int i = 0; bny_transports[i] && n < 16; i++) {
        if (only && strcmp(only, bny_transports[i]->name) != 0)
            continue;
        params[n].index = i;
        strcpy(params[n++].name, bny_transports[i]->name);
    }
    return cr_make_param_array(struct param, params, n);
}

#define CONFORMANCE(test)                                                                      \
    ParameterizedTestParameters(conformance, test)                                             \
    {                                                                                          \
        return all_transports();                                                               \
    }                                                                                          \
    ParameterizedTest(struct param *p, conformance, test, .timeout = 60)

/* A message that is complete before the case begins, so that connections stand. */
static void warm_up(struct tpset *s)
{
    for (int a = 0; a < s->n; a++)
        for (int b = 0; b < s->n; b++) {
            for (int chan = 0; chan < BNY_CHANNELS && a != b; chan++) {
                struct bny_hdr hdr = tpset_hdr(chan, 1u << 20, 0);
                struct bny_event ev;

                tpset_eager(s, a, b, &hdr, NULL);
                ev = tpset_wait(s, b, BNY_EV_MSG);
                cr_assert_eq(ev.msg->hdr.seq, 1u << 20);
                s->ops->release(ev.msg);
            }
        }
}

static struct tpset *opened(const struct param *p, int n)
{
    struct tpset *s = malloc(sizeof *s);

    tpset_open(s, bny_transports[p->index], n, NULL);
    warm_up(s);
    return s;
}

static void closed(struct tpset *s)
{
    tpset_close(s);
    free(s);
}

/* Reads the message at rank's end and checks header and bytes; seq must be as expected.
 * Releases it. */
static void expect_message(struct tpset *s, int from, int to, struct bny_msg *msg,
                           const struct bny_hdr *hdr)
{
    uint8_t *buf = malloc(hdr->len + 1u);

    cr_assert_eq(msg->ep, s->ep[to][from]);
    cr_assert_eq(memcmp(&msg->hdr, hdr, sizeof *hdr), 0, "%s: header of %u: seq %u len %u",
                 s->ops->name, hdr->seq, msg->hdr.seq, msg->hdr.len);
    tpset_read(s, msg, buf, 7001, (int)hdr->seq & 1);
    cr_assert_eq(tpset_check(buf, hdr->len, from, to, hdr->seq), -1,
                 "%s: %u bytes: wrong from byte %ld", s->ops->name, hdr->len,
                 tpset_check(buf, hdr->len, from, to, hdr->seq));
    s->ops->release(msg);
    free(buf);
}

CONFORMANCE(mandatory_members_are_there)
{
    const struct bny_transport_ops *o = bny_transports[p->index];
    const struct bny_shared_memory *m = o->shared;

    cr_assert_eq(bny_transport_find(p->name), o);
    cr_assert(o->create && o->address && o->reachable && o->connect && o->destroy &&
              o->farewell);
    cr_assert(o->eager && o->reserve && o->commit && o->cancel && o->send);
    cr_assert(o->poll && o->poll_ep && o->view && o->release && o->arm && o->disarm);
    cr_assert_eq(!(o->caps & BNY_TP_PUT), !(o->window_open && o->window_close && o->put));
    cr_assert_eq(!(o->caps & BNY_TP_MEM), !(o->mem_alloc && o->mem_free));
    cr_assert_eq(!(o->caps & BNY_TP_ATTACH), !(o->attach && o->detach));
    if (m) {
        cr_assert((o->caps & BNY_TP_MEM) && (o->caps & BNY_TP_PUT) && m->mem_register &&
                  m->mem_deregister && m->is_shared && m->map && m->unmap && m->store);
        cr_assert(m->area_make && m->area_tell && m->area_take && m->area_give &&
                  m->area_free && m->area_wake);
    }
}

CONFORMANCE(endpoint_announces_its_limits)
{
    struct tpset *s = opened(p, 2);
    const struct bny_ep *ep = s->ep[0][1];

    cr_assert_eq(ep->tp, s->tp[0]);
    cr_assert_eq(ep->ops, s->ops);
    cr_assert_eq(ep->peer, 1);
    cr_assert_geq(ep->eager_max, 1024u);
    cr_assert_geq(ep->slot_max, 16384u);
    closed(s);
}

CONFORMANCE(foreign_address_is_not_reachable)
{
    struct tpset *s = opened(p, 2);
    uint64_t rng = 5;
    uint8_t junk[BNY_ADDR_MAX];

    for (size_t len = 0; len <= sizeof junk; len += 1 + len / 16) {
        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (uint8_t)bny_rng_next(&rng);
        cr_assert_eq(s->ops->reachable(s->tp[0], 1, junk, len), 0, "%zu junk bytes", len);
    }
    for (int len = 0; len < s->blob_len[1]; len++)
        cr_assert_eq(s->ops->reachable(s->tp[0], 1, s->blob[1], (size_t)len), 0, "cut to %d",
                     len);
    cr_assert_lt(s->ops->address(s->tp[0], junk, 1), 0, "one byte cannot hold an address");
    closed(s);
}

CONFORMANCE(sizes_at_the_edges_arrive)
{
    struct tpset *s = opened(p, 2);
    uint32_t eager_max = s->ep[0][1]->eager_max, slot_max = s->ep[0][1]->slot_max;
    uint32_t sizes[] = { 0,       1, 63, 64, 65, 1000, eager_max - 1, eager_max, slot_max - 1,
                         slot_max };
    uint32_t seq = 1;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int how = sizes[i] > eager_max; how < 3; how++, seq++) {
            struct bny_hdr hdr = tpset_hdr((int)seq % BNY_CHANNELS, seq, sizes[i]);
            uint8_t *buf = malloc(sizes[i] + 1u);
            struct bny_slot slot;

            tpset_fill(buf, sizes[i], 0, 1, seq);
            if (how == 0) {
                tpset_eager(s, 0, 1, &hdr, buf);
            } else if (how == 1) {
                tpset_reserve(s, 0, 1, sizes[i], &slot);
                memcpy(slot.mem, buf, sizes[i]);
                cr_assert_eq(s->ops->commit(s->ep[0][1], &slot, &hdr), 0);
            } else {
                tpset_send(s, 0, 1, &hdr, buf, buf);
            }
            expect_message(s, 0, 1, tpset_wait(s, 1, BNY_EV_MSG).msg, &hdr);
            if (how == 2)
                cr_assert_eq(tpset_wait(s, 0, BNY_EV_SENT).cookie, buf);
            free(buf);
        }
    closed(s);
}

CONFORMANCE(oversized_messages_are_refused)
{
    struct tpset *s = opened(p, 2);
    struct bny_ep *ep = s->ep[0][1];
    struct bny_hdr hdr = tpset_hdr(0, 1, ep->eager_max + 1);
    uint8_t *buf = calloc(1, ep->eager_max + 1u);
    struct bny_slot slot;

    cr_assert_eq(s->ops->eager(ep, &hdr, buf), -BANYAN_EINVAL);
    cr_assert_eq(s->ops->reserve(ep, ep->slot_max + 1, &slot), -BANYAN_EINVAL);
    hdr = tpset_hdr(BNY_CHANNELS, 1, 8);
    cr_assert_eq(s->ops->eager(ep, &hdr, buf), -BANYAN_EINVAL, "there is no channel %d",
                 BNY_CHANNELS);
    free(buf);
    closed(s);
}

CONFORMANCE(reservations_commit_in_any_order)
{
    struct tpset *s = opened(p, 2);
    struct bny_slot slots[3];
    uint32_t order[] = { 2, 0 };

    for (uint32_t i = 0; i < 3; i++) {
        tpset_reserve(s, 0, 1, 5000 + i, &slots[i]);
        tpset_fill(slots[i].mem, 5000 + i, 0, 1, i);
    }
    s->ops->cancel(s->ep[0][1], &slots[1]);
    for (int i = 0; i < 2; i++) {
        struct bny_hdr hdr = tpset_hdr(1, order[i], 5000 + order[i]);

        cr_assert_eq(s->ops->commit(s->ep[0][1], &slots[order[i]], &hdr), 0);
        expect_message(s, 0, 1, tpset_wait(s, 1, BNY_EV_MSG).msg, &hdr);
    }
    cr_assert_eq(tpset_count(s, 1, BNY_EV_MSG), 0, "the cancelled one was sent");
    closed(s);
}

CONFORMANCE(cancelled_reservations_are_not_lost)
{
    struct tpset *s = opened(p, 2);
    struct bny_slot slot;

    for (int i = 0; i < 500; i++) {
        tpset_reserve(s, 0, 1, 16384, &slot);
        s->ops->cancel(s->ep[0][1], &slot);
    }
    closed(s);
}

CONFORMANCE(reserving_without_end_answers_again)
{
    struct tpset *s = opened(p, 2);
    struct bny_slot *slots = calloc(4096, sizeof *slots);
    int n = 0, rc = 0;

    while (n < 4096 && (rc = s->ops->reserve(s->ep[0][1], 16384, &slots[n])) == 0)
        n++;
    cr_assert(n > 0 && rc == BNY_AGAIN, "%d reservations, then %d", n, rc);
    while (n > 0)
        s->ops->cancel(s->ep[0][1], &slots[--n]);
    tpset_reserve(s, 0, 1, 16384, &slots[0]);
    s->ops->cancel(s->ep[0][1], &slots[0]);
    free(slots);
    closed(s);
}

CONFORMANCE(full_queue_answers_again_and_recovers)
{
    struct tpset *s = opened(p, 2);
    uint8_t buf[1024];
    uint32_t sent = 0, got = 0;
    int refused = 0;

    s->paused[1] = 1;
    while (refused < 100 && sent < 1000000) {
        struct bny_hdr hdr = tpset_hdr(0, sent, sizeof buf);
        int rc;

        tpset_fill(buf, sizeof buf, 0, 1, sent);
        rc = s->ops->eager(s->ep[0][1], &hdr, buf);
        cr_assert(rc == 0 || rc == BNY_AGAIN, "%d: %s", rc, banyan_last_error());
        sent += rc == 0;
        refused += rc == BNY_AGAIN;
        if (rc == BNY_AGAIN)
            tpset_step(s);
    }
    cr_assert_eq(refused, 100, "the queue never filled in %u messages", sent);
    s->paused[1] = 0;
    for (; got < sent; got++) {
        struct bny_msg *msg = tpset_wait(s, 1, BNY_EV_MSG).msg;
        struct bny_hdr hdr =
            tpset_hdr(0, s->ops->caps & BNY_TP_UNORDERED ? msg->hdr.seq : got, 1024);

        expect_message(s, 0, 1, msg, &hdr);
    }
    struct bny_hdr hdr = tpset_hdr(0, sent, 1024);
    tpset_fill(buf, sizeof buf, 0, 1, sent);
    tpset_eager(s, 0, 1, &hdr, buf);
    expect_message(s, 0, 1, tpset_wait(s, 1, BNY_EV_MSG).msg, &hdr);
    closed(s);
}

/* Holds one message of channel 0 unreleased while other channels (and the other direction) move
 * on. */
CONFORMANCE(held_message_stays_intact_and_blocks_no_other_channel)
{
    struct tpset *s = opened(p, 2);
    struct bny_hdr hdr = tpset_hdr(0, 0, 1000);
    struct bny_msg *held;
    uint8_t buf[1024];

    tpset_fill(buf, sizeof buf, 0, 1, 0);
    tpset_eager(s, 0, 1, &hdr, buf);
    held = tpset_wait(s, 1, BNY_EV_MSG).msg;
    cr_assert_not_null(held->data, "an eager message lies in memory when it is reported");
    for (uint32_t i = 1; i < 400;
         i++) { /* a ring may keep the held one's place: 200 must fit behind it */
        int from = (int)i & 1;
        struct bny_hdr h = tpset_hdr(1 + (int)(i % (BNY_CHANNELS - 1)), i, 1 + i % 1024);

        tpset_fill(buf, h.len, from, !from, i);
        tpset_eager(s, from, !from, &h, buf);
        expect_message(s, from, !from, tpset_wait(s, !from, BNY_EV_MSG).msg, &h);
    }
    cr_assert_eq(tpset_check(held->data, 1000, 0, 1, 0), -1);
    expect_message(s, 0, 1, held, &hdr);
    closed(s);
}

/* The engine may lend several messages of a channel before it releases the first. */
CONFORMANCE(several_messages_may_be_held_and_released_in_any_order)
{
    struct tpset *s = opened(p, 2);
    struct bny_msg *held[4];
    struct bny_hdr hdr[4];
    uint8_t buf[1024];

    for (uint32_t i = 0; i < 4; i++) {
        hdr[i] = tpset_hdr(2, i, 900 + i);
        tpset_fill(buf, hdr[i].len, 0, 1, i);
        tpset_eager(s, 0, 1, &hdr[i], buf);
        held[i] = tpset_wait(s, 1, BNY_EV_MSG).msg;
    }
    for (int i = 3; i >= 0; i -= 2)
        expect_message(s, 0, 1, held[i], &hdr[i]);
    for (int i = 2; i >= 0; i -= 2)
        expect_message(s, 0, 1, held[i], &hdr[i]);
    closed(s);
}

/* Unviewed and partly viewed messages may be released: their bytes are dropped, the next
 * message is intact. */
CONFORMANCE(unviewed_messages_may_be_released)
{
    struct tpset *s = opened(p, 2);
    uint32_t len = 300000;
    uint8_t *buf = malloc(len);
    const void *ptr;
    long n;

    for (uint32_t i = 0; i < 12; i++) {
        struct bny_hdr hdr = tpset_hdr(0, i, len), small = tpset_hdr(0, 100 + i, 77);
        uint8_t text[77];
        struct bny_msg *msg;

        tpset_fill(buf, len, 0, 1, i);
        tpset_send(s, 0, 1, &hdr, buf, buf);
        msg = tpset_wait(s, 1, BNY_EV_MSG).msg;
        cr_assert_eq(msg->hdr.seq, i);
        for (uint32_t tries = 0; i % 3 && !msg->data && tries < 1000; tries++) {
            n = s->ops->view(msg, 0, i % 3 == 1 ? 64 : 100000, NULL, &ptr);
            if (n > 0)
                break;
            tpset_step(s);
        }
        s->ops->release(msg);
        cr_assert_eq(tpset_wait(s, 0, BNY_EV_SENT).cookie, buf);
        tpset_fill(text, sizeof text, 0, 1, small.seq);
        tpset_eager(s, 0, 1, &small, text);
        expect_message(s, 0, 1, tpset_wait(s, 1, BNY_EV_MSG).msg, &small);
    }
    free(buf);
    closed(s);
}

/* Pieces of several sizes, with and without dst; nothing beyond the announced bytes is written.
 */
CONFORMANCE(view_gives_every_byte_once)
{
    struct tpset *s = opened(p, 2);
    static const uint32_t pieces[] = { 64, 1000, 4096, 65536, 1 << 20 };
    uint32_t len = 500001, seq = 0;
    uint8_t *src = malloc(len), *dst = malloc(len + 64);

    for (size_t i = 0; i < 5; i++)
        for (int to_dst = 0; to_dst < 2; to_dst++, seq++) {
            struct bny_hdr hdr = tpset_hdr((int)seq % BNY_CHANNELS, seq, len);
            struct bny_msg *msg;

            tpset_fill(src, len, 0, 1, seq);
            memset(dst, 0xa5, len + 64);
            tpset_send(s, 0, 1, &hdr, src, NULL);
            msg = tpset_wait(s, 1, BNY_EV_MSG).msg;
            tpset_read(s, msg, dst, pieces[i], to_dst);
            cr_assert_eq(tpset_check(dst, len, 0, 1, seq), -1, "pieces of %u, dst %d",
                         pieces[i], to_dst);
            for (int g = 0; g < 64; g++)
                cr_assert_eq(dst[len + (uint32_t)g], 0xa5, "guard");
            s->ops->release(msg);
            tpset_wait(s, 0, BNY_EV_SENT);
        }
    free(src);
    free(dst);
    closed(s);
}

/* The buffer is overwritten the moment SENT is seen; a transport that still reads it is caught.
 */
CONFORMANCE(sent_means_that_the_buffer_is_free)
{
    struct tpset *s = opened(p, 2);
    uint32_t len = 1 << 20;
    uint8_t *src = malloc(len), *dst = malloc(len);

    for (uint32_t seq = 0; seq < 6; seq++) {
        struct bny_hdr hdr = tpset_hdr((int)seq % BNY_CHANNELS, seq, len);
        struct bny_msg *msg;
        uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

        tpset_fill(src, len, 0, 1, seq);
        tpset_send(s, 0, 1, &hdr, src, src);
        for (int i = 0; i < 50 && tpset_count(s, 0, BNY_EV_SENT) == 0; i++)
            tpset_step(s);
        if (tpset_count(s, 0, BNY_EV_SENT))
            memset(src, 0xee, len);
        msg = tpset_wait(s, 1, BNY_EV_MSG).msg;
        tpset_read(s, msg, dst, 1 << 16, 1);
        s->ops->release(msg);
        cr_assert(!bny_deadline_passed(deadline));
        cr_assert_eq(tpset_wait(s, 0, BNY_EV_SENT).cookie, src);
        cr_assert_eq(tpset_check(dst, len, 0, 1, seq), -1);
    }
    free(src);
    free(dst);
    closed(s);
}

CONFORMANCE(dead_peer_is_reported_once)
{
    struct tpset *s = opened(p, 3);
    uint8_t byte = 0;
    struct bny_hdr hdr = tpset_hdr(0, 9, 1);
    struct bny_event ev;
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    int rc;

    tpset_destroy_rank(s, 2);
    for (int r = 0; r < 2; r++) {
        ev = tpset_wait(s, r, BNY_EV_DOWN);
        cr_assert_eq(ev.ep, s->ep[r][2]);
        cr_assert(ev.reason && *ev.reason, "DOWN has a reason");
    }
    for (int i = 0; i < 200; i++)
        tpset_step(s);
    cr_assert_eq(tpset_count(s, 0, BNY_EV_DOWN) + tpset_count(s, 1, BNY_EV_DOWN), 0, "twice");
    while ((rc = s->ops->eager(s->ep[0][2], &hdr, &byte)) == BNY_AGAIN || rc == 0)
        cr_assert(!bny_deadline_passed(deadline), "sending to the dead goes on for ever");
    cr_assert_eq(rc, -BANYAN_ERANKDEAD);
    tpset_eager(s, 0, 1, &hdr, &byte);
    s->ops->release(tpset_wait(s, 1, BNY_EV_MSG).msg);
    closed(s);
}

CONFORMANCE(a_peer_that_died_before_the_first_word_is_down)
{
    struct tpset *s = malloc(sizeof *s);
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    int rc = 0;

    tpset_open(s, bny_transports[p->index], 2, NULL);
    tpset_destroy_rank(s, 1);
    while (rc != -BANYAN_ERANKDEAD) {
        rc = s->ops->eager(s->ep[0][1], &hdr, NULL);
        cr_assert(rc == 0 || rc == BNY_AGAIN || rc == -BANYAN_ERANKDEAD, "%s",
                  banyan_last_error());
        cr_assert(!bny_deadline_passed(deadline), "nobody notices");
        tpset_step(s);
    }
    tpset_wait(s, 0, BNY_EV_DOWN);
    closed(s);
}

CONFORMANCE(messages_before_a_farewell_arrive_and_no_down_follows)
{
    struct tpset *s = opened(p, 2);
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    /* With the slots of large jobs more need not fit until the first is released. */
    int messages = bny_param_int("BANYAN_VERBS=memory") < 1 << 20 ? 7 : 20, rc;
    uint8_t buf[1000];

    for (uint32_t i = 0; i < (uint32_t)messages; i++) {
        struct bny_hdr hdr = tpset_hdr((int)i % BNY_CHANNELS, i, sizeof buf);

        tpset_fill(buf, sizeof buf, 1, 0, i);
        tpset_eager(s, 1, 0, &hdr, buf);
    }
    while ((rc = s->ops->farewell(s->tp[1])) != 0) {
        cr_assert_eq(rc, BNY_AGAIN);
        cr_assert(!bny_deadline_passed(deadline), "farewell takes for ever");
        tpset_step(s);
    }
    tpset_destroy_rank(s, 1);
    for (int i = 0; i < messages; i++) {
        struct bny_msg *msg = tpset_wait(s, 0, BNY_EV_MSG).msg;
        struct bny_hdr hdr = tpset_hdr(msg->hdr.chan, msg->hdr.seq, sizeof buf);

        expect_message(s, 1, 0, msg, &hdr);
    }
    struct bny_hdr hdr = tpset_hdr(0, 9, 1);
    while ((rc = s->ops->eager(s->ep[0][1], &hdr, buf)) == BNY_AGAIN || rc == 0) {
        cr_assert(!bny_deadline_passed(deadline), "sending to one who left goes on for ever");
        tpset_step(s);
    }
    cr_assert_eq(rc, -BANYAN_ERANKDEAD);
    for (int i = 0; i < 200; i++)
        tpset_step(s);
    cr_assert_eq(tpset_count(s, 0, BNY_EV_DOWN), 0, "it left in order");
    closed(s);
}

/* Are faults set, by which the transport has to send datagrams again? */
static int loses_datagrams(void)
{
    const char *dpdk = getenv("BANYAN_DPDK"), *ud = getenv("BANYAN_UD");

    return (dpdk && strstr(dpdk, "loss=")) || (ud && strstr(ud, "loss=")) ||
           getenv("BANYAN_TEST_LOSSY");
}

/* A rank that ends without a farewell is dead; what its transport had delivered before is read
 * first, and the death is reported behind it. Messages of loop stay with their sender until the
 * receiver polls, and end with it; so do datagrams that were lost on the way. */
CONFORMANCE(messages_before_a_death_arrive_first)
{
    struct tpset *s = opened(p, 2);
    uint8_t buf[1000];
    struct bny_hdr hdr = tpset_hdr(0, 1, sizeof buf);

    if (!strcmp(s->ops->name, "loop") || loses_datagrams()) {
        closed(s);
        return;
    }
    tpset_eager(s, 0, 1, &hdr, buf); /* a connection */
    s->ops->release(tpset_wait(s, 1, BNY_EV_MSG).msg);
    s->paused[0] = 1;
    for (uint32_t i = 0; i < 5; i++) {
        tpset_fill(buf, sizeof buf, 1, 0, i);
        hdr = tpset_hdr((int)i % BNY_CHANNELS, i, sizeof buf);
        tpset_eager(s, 1, 0, &hdr, buf);
    }
    for (int i = 0; i < 200; i++)
        tpset_step(s);
    tpset_destroy_rank(s, 1);
    s->paused[0] = 0;
    tpset_wait(s, 0, BNY_EV_DOWN);
    cr_assert_eq(tpset_count(s, 0, BNY_EV_MSG), 5, "all that it had sent is there by then");
    for (uint32_t i = 0; i < 5; i++) {
        struct bny_msg *msg = tpset_wait(s, 0, BNY_EV_MSG).msg;

        hdr = tpset_hdr(msg->hdr.chan, msg->hdr.seq, sizeof buf);
        expect_message(s, 1, 0, msg, &hdr);
    }
    closed(s);
}

/* Rank 0 has said goodbye and stays, as others keep it; then rank 1 goes. */
CONFORMANCE(who_said_goodbye_first_sees_the_other_leave)
{
    struct tpset *s = opened(p, 2);
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    uint8_t buf[100] = { 0 };

    for (int r = 0; r < 2; r++) { /* connections both ways */
        struct bny_hdr hdr = tpset_hdr(0, 1, sizeof buf);

        tpset_eager(s, r, 1 - r, &hdr, buf);
        tpset_wait(s, 1 - r, BNY_EV_MSG);
    }
    for (int r = 0; r < 2; r++) {
        while (s->ops->farewell(s->tp[r]) == BNY_AGAIN) {
            cr_assert(!bny_deadline_passed(deadline), "farewell takes for ever");
            tpset_step(s);
        }
        for (int i = 0; i < 200; i++)
            tpset_step(s);
    }
    tpset_destroy_rank(s, 1);
    for (int i = 0; i < 1000; i++)
        tpset_step(s);
    cr_assert_eq(tpset_count(s, 0, BNY_EV_DOWN), 0, "it left in order");
    closed(s);
}

/* Messages that are lent or not even polled when the world ends are the transport's to free. */
CONFORMANCE(destroy_frees_what_is_lent)
{
    struct tpset *s = opened(p, 2);
    uint8_t *buf = calloc(1, 100000);
    struct bny_hdr small = tpset_hdr(0, 1, 500), large = tpset_hdr(1, 2, 100000);
    struct bny_slot slot;

    tpset_eager(s, 0, 1, &small, buf);
    tpset_wait(s, 1, BNY_EV_MSG);
    tpset_send(s, 0, 1, &large, buf, buf);
    tpset_wait(s, 1, BNY_EV_MSG);
    tpset_reserve(s, 0, 1, 16384, &slot);
    s->ops->cancel(s->ep[0][1], &slot);
    tpset_eager(s, 0, 1, &small, buf);
    tpset_destroy_rank(s, 0);
    closed(s);
    free(buf);
}

CONFORMANCE(a_sleeper_wakes_on_traffic)
{
    struct tpset *s = opened(p, 2);
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S), sleep_ns;
    struct bny_hdr hdr = tpset_hdr(0, 3, 4);
    uint8_t buf[4];
    int fds[56], nfds;

    while ((sleep_ns = s->ops->arm(s->tp[1], fds, 56, &nfds)) == 0) {
        s->ops->disarm(s->tp[1]);
        tpset_step(s);
        cr_assert(!bny_deadline_passed(deadline), "arm finds something ready for ever");
    }
    cr_assert(nfds > 0 || sleep_ns < 1000000000u, "neither a descriptor nor a short sleep");
    tpset_fill(buf, 4, 0, 1, 3);
    s->paused[1] = 1;
    tpset_eager(s, 0, 1, &hdr, buf);
    while (nfds > 0) {
        struct pollfd pfd[16];

        for (int i = 0; i < nfds; i++)
            pfd[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
        if (poll(pfd, (nfds_t)nfds, 10) > 0)
            break;
        tpset_step(s); /* the sender may have more to do */
        cr_assert(!bny_deadline_passed(deadline), "traffic does not wake the sleeper");
    }
    s->paused[1] = 0;
    s->ops->disarm(s->tp[1]);
    expect_message(s, 0, 1, tpset_wait(s, 1, BNY_EV_MSG).msg, &hdr);
    closed(s);
}

/* Something that waits to be polled is not slept over. */
CONFORMANCE(arm_sees_what_has_arrived_already)
{
    struct tpset *s = opened(p, 2);
    struct bny_hdr hdr = tpset_hdr(0, 3, 0);
    struct pollfd pfd[16];
    int fds[56], nfds;

    s->paused[1] = 1;
    tpset_eager(s, 0, 1, &hdr, NULL);
    if (s->ops->arm(s->tp[1], fds, 56, &nfds) != 0) {
        for (int i = 0; i < nfds; i++)
            pfd[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
        /* a datagram that is lost comes with the next try of rank 0, which is not driven */
        cr_assert(nfds == 0 || getenv("BANYAN_TEST_LOSSY") ||
                  poll(pfd, (nfds_t)nfds, 5000) > 0);
    }
    s->ops->disarm(s->tp[1]);
    s->paused[1] = 0;
    expect_message(s, 0, 1, tpset_wait(s, 1, BNY_EV_MSG).msg, &hdr);
    closed(s);
}

/* As after an operation that failed: the memory goes away at once, and what was on its way out
 * of it arrives as it was. */
CONFORMANCE(recalled_memory_is_not_read_again)
{
    const uint32_t len = 3u << 20; /* more than any window: most of it was not sent yet */
    struct tpset *s = opened(p, 2);
    struct bny_hdr hdr = tpset_hdr(0, 5, len);
    uint8_t *dst = malloc(len);
    void *src = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct bny_msg *msg;

    cr_assert(src != MAP_FAILED && dst);
    if (s->ops->recall && s->ep[0][1]->zcopy_min != UINT32_MAX) {
        tpset_fill(src, len, 0, 1, 5);
        s->paused[1] = 1;
        tpset_send(s, 0, 1, &hdr, src, src);
        for (int i = 0; i < 20; i++)
            tpset_step(s);
        s->ops->recall(s->tp[0], src);
        cr_assert_eq(munmap(src, len), 0);
        s->paused[1] = 0;
        msg = tpset_wait(s, 1, BNY_EV_MSG).msg;
        tpset_read(s, msg, dst, 1 << 16, 1);
        cr_assert_eq(tpset_check(dst, len, 0, 1, 5), -1);
        s->ops->release(msg);
        cr_assert_eq(tpset_wait(s, 0, BNY_EV_SENT).cookie, src, "SENT comes all the same");
    }
    free(dst);
    closed(s);
}

/* Once ep->unsent is 0 the sender may compute for as long as it likes: what it has sent arrives
 * all the same, also the first message of all, which may wait for a connection. */
CONFORMANCE(what_is_under_way_needs_no_sender)
{
    struct tpset *s = malloc(sizeof *s);
    struct bny_hdr hdr = tpset_hdr(0, 3, 1000);
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    uint8_t buf[1000];

    tpset_open(s, bny_transports[p->index], 2, NULL);
    tpset_fill(buf, sizeof buf, 0, 1, 3);
    tpset_eager(s, 0, 1, &hdr, buf);
    while (s->ep[0][1]->unsent) {
        cr_assert(!bny_deadline_passed(deadline), "never under way");
        tpset_step(s);
    }
    s->paused[0] = 1;
    expect_message(s, 0, 1, tpset_wait(s, 1, BNY_EV_MSG).msg, &hdr);
    s->paused[0] = 0;
    closed(s);
}

/* The same of registered memory, which is registered no more when it goes: nobody may be cut
 * off for that, and what is on its way arrives. */
CONFORMANCE(recalled_memory_may_be_unregistered)
{
    static const uint32_t lens[] = { 5000, 100000, 262144, 3u << 20, 70000 };
    enum { N = sizeof lens / sizeof lens[0] };
    const size_t bytes = 4u << 20;
    struct tpset *s = opened(p, 2);
    int may = s->ops->recall && (s->ops->caps & BNY_TP_ATTACH) &&
              s->ep[0][1]->zcopy_min != UINT32_MAX;
    uint8_t *src[N] = { NULL };
    unsigned came =
        0; /* bits: the last one does not wait for the long one, of another channel */

    for (uint32_t i = 0; i < N && may; i++) {
        struct bny_hdr hdr = tpset_hdr(i == N - 1, i, lens[i]);
        src[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        cr_assert(src[i] != MAP_FAILED);
        cr_assert_eq(s->ops->attach(s->tp[0], src[i], bytes), 0, "%s", banyan_last_error());
        tpset_fill(src[i], lens[i], 0, 1, i);
        tpset_send(s, 0, 1, &hdr, src[i], src[i]);
    }
    s->paused[1] = 1;
    for (uint32_t i = 0; i < N && may; i++) {
        s->ops->recall(s->tp[0], src[i]);
        cr_assert_eq(s->ops->detach(s->tp[0], src[i]), 0, "%s", banyan_last_error());
        cr_assert_eq(munmap(src[i], bytes), 0);
    }
    s->paused[1] = 0;
    for (uint32_t i = 0; i < N && may; i++) {
        struct bny_msg *msg = tpset_wait(s, 1, BNY_EV_MSG).msg;
        uint32_t seq = msg->hdr.seq;
        struct bny_hdr hdr = tpset_hdr(seq == N - 1, seq, lens[seq % N]);

        cr_assert(seq < N && !(came >> seq & 1));
        came |= 1u << seq;
        expect_message(s, 0, 1, msg, &hdr);
    }
    for (uint32_t i = 0; i < N && may; i++) {
        const void *cookie = tpset_wait(s, 0, BNY_EV_SENT).cookie;
        uint32_t k = 0;

        while (k < N && src[k] != cookie)
            k++;
        cr_assert_lt(k, N, "SENT comes all the same, once");
        src[k] = NULL;
    }
    cr_assert_eq(tpset_count(s, 0, BNY_EV_DOWN) + tpset_count(s, 1, BNY_EV_DOWN), 0);
    closed(s);
}
