/* SPDX-License-Identifier: BSD-3-Clause */
/* Matching, without transports: tests hand headers from one struct bny_match to another as a
 * rank would get them. BANYAN_TEST_SEED repeats a run. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "collectives/call/collective.h"
#include "collectives/match/match.h"

#define ME   0
#define PEER 1

/* ---- memory that ends ---- */

static int no_memory;

void *__real_malloc(size_t n);
void *__real_calloc(size_t k, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t k, size_t n);

void *__wrap_malloc(size_t n)
{
    return no_memory ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t k, size_t n)
{
    return no_memory ? NULL : __real_calloc(k, n);
}

/* ---- one end ---- */

static struct bny_buffer_pool pool;
static struct bny_match *m;

static void open_one(void)
{
    m = bny_match_create(&pool, 3, ME);
    cr_assert_not_null(m);
}

static void close_one(void)
{
    bny_match_destroy(m);
    bny_buffered_free(&pool);
}

static struct bny_sig sig_of(uint64_t count)
{
    return (struct bny_sig){ .count = count, .collective = BNY_ALLREDUCE };
}

static struct bny_hdr collective_hdr(uint32_t seq)
{
    return (struct bny_hdr){ .kind = BNY_MSG_DATA, .seq = seq, .sig = sig_of(1) };
}

static enum bny_verdict find(const struct bny_hdr *h, struct bny_receiver **out)
{
    *out = NULL;
    return bny_match_find(m, PEER, h, out);
}

static int keep(const struct bny_hdr *h)
{
    static const char bytes[64];
    struct bny_msg *msg = bny_msg_make(&pool, h, bytes);

    cr_assert_not_null(msg);
    return bny_match_keep(m, PEER, msg);
}

/* How many messages wait for it; they are released. */
static int taken(struct bny_receiver *rc)
{
    struct bny_msg_list all = bny_match_take(m, rc);
    struct bny_msg *msg;
    int n = 0;

    while ((msg = bny_msg_list_pop_front(&all))) {
        bny_msg_release(&pool, msg);
        n++;
    }
    return n;
}

TestSuite(match, .init = open_one, .fini = close_one, .timeout = 60);

/* ---- collectives ---- */

Test(match, receivers_are_found_by_number)
{
    struct bny_sig sig = sig_of(1);
    struct bny_receiver rc[3], *out;
    struct bny_hdr h;

    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(bny_match_number(m), i);
        bny_match_open(m, &rc[i], &sig, 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        h = collective_hdr(i);
        cr_assert_eq(find(&h, &out), BNY_MATCH_FOUND);
        cr_assert_eq(out, &rc[i]);
    }
    bny_match_close(m, &rc[1], 1);
    bny_match_close(m, &rc[1], 1); /* idempotent */
    h = collective_hdr(1);
    cr_assert_eq(find(&h, &out), BNY_MATCH_PAST);
    h = collective_hdr(3);
    cr_assert_eq(find(&h, &out), BNY_MATCH_EARLY);
    h = collective_hdr(2);
    cr_assert_eq(find(&h, &out), BNY_MATCH_FOUND);
}

Test(match, unexpected_messages_are_kept_in_order)
{
    struct bny_sig sig = sig_of(1);
    struct bny_receiver rc;
    struct bny_msg_list all;
    struct bny_msg *msg;
    struct bny_hdr h = collective_hdr(1);

    for (uint32_t i = 0; i < 5; i++) {
        h.chunk = i;
        cr_assert_eq(keep(&h), 0);
    }
    bny_match_open(m, &rc, &sig, 0);
    cr_assert_eq(taken(&rc), 0, "they are for another number");
    bny_match_close(m, &rc, 1);
    bny_match_open(m, &rc, &sig, 0);
    all = bny_match_take(m, &rc);
    for (uint32_t i = 0; i < 5; i++) {
        msg = bny_msg_list_pop_front(&all);
        cr_assert(msg && msg->hdr.chunk == i);
        bny_msg_release(&pool, msg);
    }
    cr_assert_null(all.first);
    cr_assert_eq(taken(&rc), 0, "taken twice");
}

Test(match, of_equal_questions_one_is_kept)
{
    struct bny_sig sig = sig_of(1);
    struct bny_receiver rc;
    struct bny_hdr h = collective_hdr(0);

    h.kind = BNY_MSG_PROBE;
    for (int i = 0; i < 100; i++)
        cr_assert_eq(keep(&h), 0);
    h.sig.count = 2; /* another question */
    cr_assert_eq(keep(&h), 0);
    bny_match_open(m, &rc, &sig, 0);
    cr_assert_eq(taken(&rc), 2);
}

Test(match, the_latest_signatures_are_remembered)
{
    struct bny_receiver rc;

    for (uint32_t i = 0; i < 200; i++) {
        struct bny_sig sig = sig_of(i);
        bny_match_open(m, &rc, &sig, 0);
        bny_match_close(m, &rc, 1);
    }
    for (uint32_t i = 136; i < 200; i++) {
        const struct bny_sig *sig = bny_match_past(m, i);
        cr_assert(sig && sig->count == i, "operation %u", i);
    }
    cr_assert_null(bny_match_past(m, 135));
    cr_assert_null(bny_match_past(m, 0));
}

/* A stage that begins when many operations after its own have begun: their signatures stay. */
Test(match, old_numbers_do_not_take_the_place_of_later_ones)
{
    struct bny_receiver parent, stage, rc;
    struct bny_sig sig = sig_of(1000);

    bny_match_open(m, &parent, &sig, 2);
    for (uint32_t i = 3; i < 200; i++) {
        struct bny_sig one = sig_of(i);
        bny_match_open(m, &rc, &one, 0);
        bny_match_close(m, &rc, 1);
    }
    bny_match_open_kept(m, &stage, &sig, 2);
    bny_match_close(m, &stage, 1);
    for (uint32_t i = 136; i < 200; i++)
        cr_assert_eq(bny_match_past(m, i)->count, i, "operation %u", i);
    cr_assert_null(bny_match_past(m, 2));
    bny_match_close(m, &parent, 1);
}

Test(match, kept_numbers_are_no_past)
{
    struct bny_sig sig = sig_of(1);
    struct bny_receiver parent, stage, *out;
    struct bny_hdr h[5];

    for (uint32_t i = 0; i < 5; i++)
        h[i] = collective_hdr(i);
    bny_match_open(m, &parent, &sig, 3);
    cr_assert_eq(bny_match_number(m), 4);
    for (int i = 1; i < 5; i++)
        cr_assert_eq(find(&h[i], &out), BNY_MATCH_EARLY, "number %d", i);
    cr_assert_eq(keep(&h[2]), 0);
    bny_match_open_kept(m, &stage, &sig, 2); /* number 1 will not begin any more */
    cr_assert_eq(taken(&stage), 1);
    cr_assert_eq(find(&h[2], &out), BNY_MATCH_FOUND);
    cr_assert_eq(out, &stage);
    cr_assert_eq(find(&h[1], &out), BNY_MATCH_PAST);
    cr_assert_eq(find(&h[3], &out), BNY_MATCH_EARLY);
    bny_match_give_up(m, 1, 3);
    cr_assert_eq(find(&h[3], &out), BNY_MATCH_PAST);
    cr_assert_eq(find(&h[2], &out), BNY_MATCH_FOUND, "a receiver that is open stays");
    bny_match_close(m, &stage, 1);
    cr_assert_eq(find(&h[2], &out), BNY_MATCH_PAST);
}

Test(match, numbers_that_cannot_be_kept_are_not_given)
{
    struct bny_sig sig = sig_of(1);
    struct bny_receiver rc, *out;
    struct bny_hdr h = collective_hdr(0);

    no_memory = 1;
    cr_assert_eq(bny_match_open(m, &rc, &sig, 3), -BANYAN_ENOMEM);
    no_memory = 0;
    cr_assert_eq(bny_match_number(m), 0);
    cr_assert_eq(find(&h, &out), BNY_MATCH_EARLY);
    cr_assert_eq(bny_match_open(m, &rc, &sig, 3), 0);
    cr_assert_eq(find(&h, &out), BNY_MATCH_FOUND);
    cr_assert_eq(bny_match_number(m), 4);
}

Test(match, tables_grow)
{
    enum { MANY = 3000 };
    struct bny_sig sig = sig_of(1);
    struct bny_receiver *rc = calloc(MANY, sizeof *rc), *out;
    struct bny_hdr h;

    for (uint32_t i = 0; i < MANY; i++) {
        h = collective_hdr(MANY + i);
        cr_assert_eq(keep(&h), 0);
        bny_match_open(m, &rc[i], &sig, 0);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        h = collective_hdr(i);
        cr_assert_eq(find(&h, &out), BNY_MATCH_FOUND);
        cr_assert_eq(out, &rc[i]);
        bny_match_close(m, &rc[i], 1);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        bny_match_open(m, &rc[i], &sig, 0);
        cr_assert_eq(taken(&rc[i]), 1, "number %u", MANY + i);
        bny_match_close(m, &rc[i], 1);
    }
    free(rc);
}

/* ---- point to point: two ends, by hand ---- */

static struct bny_buffer_pool pools[2];
static struct bny_match *end[2];

static void open_two(void)
{
    for (int r = 0; r < 2; r++)
        cr_assert_not_null(end[r] = bny_match_create(&pools[r], 2, r));
}

static void close_two(void)
{
    for (int r = 0; r < 2; r++) {
        bny_match_destroy(end[r]);
        bny_buffered_free(&pools[r]);
    }
}

TestSuite(match_two, .init = open_two, .fini = close_two, .timeout = 120);

static void open_p2p(int r, struct bny_receiver *rc, uint32_t tag, int is_send, size_t bytes)
{
    cr_assert_eq(bny_match_open_p2p(end[r], rc, 1 - r, tag, is_send, bytes), 0);
}

/* What an operation of end r says. */
static struct bny_hdr say(int r, struct bny_receiver *rc, enum bny_msg_kind kind, uint32_t raw)
{
    struct bny_hdr h = { .kind = (uint8_t)kind,
                         .seq = rc->seq,
                         .codec_len_raw = raw,
                         .sig = { .collective = BNY_SENDRECV, .root_tag = rc->tag } };

    bny_match_stamp(end[r], rc, &h);
    bny_match_stamped(end[r], rc, &h);
    return h;
}

/* It arrives at end r: found (out), kept when it is early. */
static enum bny_verdict arrive(int r, const struct bny_hdr *h, struct bny_receiver **out)
{
    struct bny_receiver *none;
    enum bny_verdict v = bny_match_find(end[r], 1 - r, h, out ? out : &none);

    if (v == BNY_MATCH_EARLY)
        cr_assert_eq(bny_match_keep(end[r], 1 - r, bny_msg_make(&pools[r], h, NULL)), 0, "%s",
                     banyan_last_error());
    return v;
}

static int take(int r, struct bny_receiver *rc)
{
    struct bny_msg_list all = bny_match_take(end[r], rc);
    struct bny_msg *msg;
    int n = 0;

    while ((msg = bny_msg_list_pop_front(&all))) {
        bny_msg_release(&pools[r], msg);
        n++;
    }
    return n;
}

/* Everything that matching itself has to say goes to the other end. How many. */
static int talk(int r)
{
    struct bny_hdr h;
    int peer = 0, n = 0;

    while (bny_match_to_say(end[r], &peer, &h)) {
        cr_assert_eq(peer, 1 - r);
        bny_match_said(end[r], peer, &h);
        cr_assert_eq(arrive(1 - r, &h, NULL), BNY_MATCH_CONTROL);
        cr_assert_lt(++n, 100, "it says the same for ever");
    }
    return n;
}

/* A whole message from end 0 to end 1. */
static void transfer(uint32_t tag, uint32_t bytes)
{
    struct bny_receiver tx, rx, *out;
    struct bny_hdr h;

    open_p2p(0, &tx, tag, 1, bytes);
    open_p2p(1, &rx, tag, 0, bytes);
    cr_assert_eq(bny_match_has_credit(end[0], &tx), 1);
    h = say(0, &tx, BNY_MSG_DATA, bytes);
    bny_match_close(end[0], &tx, 1);
    cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_FOUND, "tag %u", tag);
    cr_assert_eq(out, &rx);
    bny_match_close(end[1], &rx, 1);
}

Test(match_two, each_tag_has_its_numbers)
{
    static const uint32_t tags[] = { 5, 7, 5, 5, 7 }, numbers[] = { 0, 0, 1, 2, 1 };
    struct bny_receiver tx[5], rx[5], *out;
    struct bny_hdr h;

    for (int i = 0; i < 5; i++) {
        open_p2p(0, &tx[i], tags[i], 1, 4);
        open_p2p(1, &rx[i], tags[i], 0, 4);
        cr_assert_eq(tx[i].seq, numbers[i]);
        cr_assert_eq(rx[i].seq, numbers[i]);
    }
    for (int i = 4; i >= 0; i--) { /* in any order */
        h = say(0, &tx[i], BNY_MSG_DATA, 4);
        cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_FOUND);
        cr_assert_eq(out, &rx[i]);
        h = say(1, &rx[i], BNY_MSG_CTS, 0); /* the other way, to the sending side */
        cr_assert_eq(arrive(0, &h, &out), BNY_MATCH_FOUND);
        cr_assert_eq(out, &tx[i]);
    }
    bny_match_close(end[1], &rx[0], 1);
    h = say(0, &tx[0], BNY_MSG_PROBE, 0);
    cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_PAST);
}

Test(match_two, a_message_waits_for_its_receive)
{
    struct bny_receiver tx[2], rx;
    struct bny_hdr h;

    cr_assert_not(bny_match_next(end[1], 0, 9));
    for (int i = 0; i < 2; i++)
        open_p2p(0, &tx[i], 9, 1, 4);
    h = say(0, &tx[1], BNY_MSG_DATA, 4);
    cr_assert_eq(arrive(1, &h, NULL), BNY_MATCH_EARLY);
    cr_assert_not(bny_match_next(end[1], 0, 9), "the second is not the next");
    h = say(0, &tx[0], BNY_MSG_DATA, 4);
    cr_assert_eq(arrive(1, &h, NULL), BNY_MATCH_EARLY);
    cr_assert(bny_match_next(end[1], 0, 9));
    cr_assert_not(bny_match_next(end[1], 0, 8));
    open_p2p(1, &rx, 9, 0, 4);
    cr_assert_eq(take(1, &rx), 1);
    cr_assert(bny_match_next(end[1], 0, 9));
}

/* After 256 tags, all received, both ends forget them. */
Test(match_two, tags_are_forgotten_together)
{
    struct bny_receiver tx, rx, *out;
    struct bny_hdr h;

    for (uint32_t tag = 0; tag < 256; tag++)
        transfer(tag, 0);
    talk(1); /* 256 units: the receiver tells by itself */
    open_p2p(0, &tx, 3, 1, 0);
    cr_assert_eq(tx.epoch, 1);
    cr_assert_eq(tx.seq, 0, "tag 3 begins at 0 again");
    cr_assert_eq(talk(0), 1);
    open_p2p(1, &rx, 3, 0, 0);
    cr_assert_eq(rx.epoch, 1);
    cr_assert_eq(rx.seq, 0);
    h = say(0, &tx, BNY_MSG_DATA, 0);
    cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_FOUND);
    cr_assert_eq(out, &rx);
}

Test(match_two, tags_are_not_forgotten_while_messages_are_out)
{
    struct bny_receiver tx, last;

    open_p2p(0, &last, 1000, 1, 0);
    say(0, &last, BNY_MSG_DATA, 0); /* never arrives */
    for (uint32_t tag = 0; tag < 600; tag++) {
        transfer(tag, 0);
        talk(1);
    }
    open_p2p(0, &tx, 3, 1, 0);
    cr_assert_eq(tx.epoch, 0);
    cr_assert_eq(tx.seq, 1);
}

/* Sends and receives that wait while an epoch begins get the same new numbers. */
Test(match_two, what_waits_is_numbered_again)
{
    struct bny_receiver tx[4], rx[4], more, *out;
    enum bny_change change;
    struct bny_hdr h, ready;

    for (uint32_t tag = 0; tag < 256; tag++)
        transfer(tag, 0);
    for (uint32_t i = 0; i < 4; i++) {
        open_p2p(1, &rx[i], 10 + i % 2, 0, 0);
        cr_assert_eq(rx[i].seq, 1 + i / 2);
    }
    for (uint32_t i = 0; i < 4; i++) /* before the credit is back: still the old epoch */
        open_p2p(0, &tx[i], 10 + i % 2, 1, 0);
    ready = say(1, &rx[0], BNY_MSG_CTS, 0); /* on its way meanwhile; it gives credit, too */
    cr_assert_eq(arrive(0, &ready, &out), BNY_MATCH_FOUND);
    open_p2p(0, &more, 77, 1, 0);
    cr_assert_eq(more.epoch, 1);
    for (int i = 0; i < 4; i++)
        cr_assert(bny_match_changed(end[0], &change) && change == BNY_CHANGE_NUMBER);
    cr_assert_null(bny_match_changed(end[0], &change));
    cr_assert_eq(arrive(0, &ready, &out), BNY_MATCH_STALE, "CTS of old numbers");
    cr_assert_eq(talk(0), 1);
    for (int i = 0; i < 4; i++)
        cr_assert(bny_match_changed(end[1], &change) && change == BNY_CHANGE_NUMBER);
    cr_assert_null(bny_match_changed(end[1], &change));
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert(tx[i].seq == i / 2 && tx[i].epoch == 1);
        cr_assert(rx[i].seq == i / 2 && rx[i].epoch == 1);
    }
    for (int i = 0; i < 4; i++) {
        h = say(0, &tx[i], BNY_MSG_DATA, 0);
        cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_FOUND);
        cr_assert_eq(out, &rx[i]);
    }
}

/* While nothing can be sent (the transport connects), several epochs may begin: who hears of
 * the last one only has missed nothing. */
Test(match_two, epochs_that_were_not_said_are_skipped)
{
    enum { MANY = 600 };
    static struct bny_receiver tx[MANY], rx[MANY];
    struct bny_receiver *out;
    enum bny_change change;
    struct bny_hdr h;

    for (uint32_t i = 0; i < MANY; i++) {
        open_p2p(0, &tx[i], i, 1, 64);
        open_p2p(1, &rx[i], i, 0, 64);
    }
    cr_assert_gt(tx[0].epoch, 1);
    cr_assert_eq(talk(0), 1);
    while (bny_match_changed(end[1], &change))
        ;
    for (uint32_t i = 0; i < MANY; i++) {
        cr_assert_eq(rx[i].epoch, tx[i].epoch);
        h = say(0, &tx[i], BNY_MSG_DATA, 64);
        cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_FOUND, "message %u", i);
        cr_assert_eq(out, &rx[i]);
    }
}

/* What waits is numbered again with each epoch: with many such sends epochs are few. */
Test(match_two, epochs_begin_when_tags_have_doubled)
{
    enum { MANY = 40000 };
    struct bny_receiver *tx = calloc(MANY, sizeof *tx);

    for (uint32_t i = 0; i < MANY; i++) {
        open_p2p(0, &tx[i], i, 1, 1u << 20);
        cr_assert_eq(bny_match_has_credit(end[0], &tx[i]), 1);
    }
    cr_assert_eq(tx[0].epoch, 8); /* 256, 512 ... 32768 */
    for (uint32_t i = 0; i < MANY; i++)
        bny_match_close(end[0], &tx[i], 0);
    free(tx);
}

/* CTS that waits here for a send is of no use in the next epoch. */
Test(match_two, unexpected_messages_of_an_old_epoch_go)
{
    struct bny_receiver tx, rx;
    struct bny_hdr h;

    for (uint32_t tag = 0; tag < 256; tag++)
        transfer(tag, 0);
    open_p2p(1, &rx, 500, 0, 0);
    h = say(1, &rx, BNY_MSG_CTS, 0);
    cr_assert_eq(arrive(0, &h, NULL), BNY_MATCH_EARLY);
    open_p2p(0, &tx, 500, 1, 0);
    cr_assert_eq(tx.epoch, 1);
    cr_assert_eq(take(0, &tx), 0);
}

/* A way that is full at the moment is in nobody's way. */
Test(match, one_peer_keeps_credit_from_no_other)
{
    struct bny_receiver rc;
    struct bny_hdr h;
    int peer = 0;

    for (int i = 0; i < 2 * (int)BNY_CREDIT; i++) {
        cr_assert_eq(bny_match_open_p2p(m, &rc, PEER + i % 2, 1, 0, 4), 0);
        bny_match_close(m, &rc, 1);
    }
    cr_assert(bny_match_to_say(m, &peer, &h) && peer == PEER);
    peer++;
    cr_assert(bny_match_to_say(m, &peer, &h) && peer == PEER + 1);
    cr_assert_eq(h.started, BNY_CREDIT);
    bny_match_said(m, peer, &h);
    cr_assert_not(bny_match_to_say(m, &peer, &h));
    cr_assert(bny_match_is_busy(m));
    peer = 0;
    cr_assert(bny_match_to_say(m, &peer, &h) && peer == PEER);
}

Test(match, messages_to_oneself_have_epochs_too)
{
    for (uint32_t i = 0; i < 1000; i++) {
        struct bny_receiver tx, rx, *out;
        struct bny_hdr h = { .kind = BNY_MSG_DATA };

        cr_assert_eq(bny_match_open_p2p(m, &rx, ME, i, 0, 100000), 0);
        cr_assert_eq(bny_match_open_p2p(m, &tx, ME, i, 1, 100000), 0);
        cr_assert_eq(bny_match_has_credit(m, &tx), 1);
        h.seq = tx.seq;
        h.sig = (struct bny_sig){ .collective = BNY_SENDRECV, .root_tag = i };
        bny_match_stamp(m, &tx, &h);
        bny_match_stamped(m, &tx, &h);
        bny_match_close(m, &tx, 1);
        cr_assert_eq(bny_match_find(m, ME, &h, &out), BNY_MATCH_FOUND, "message %u", i);
        cr_assert_eq(out, &rx);
        bny_match_close(m, &rx, 1);
        cr_assert_eq(tx.epoch, i / 256, "message %u", i);
    }
}

/* ---- credit ---- */

/* Sends from end 0 until there is no credit; returns how many went. */
static int send_all(struct bny_receiver *tx, int n, uint32_t bytes)
{
    for (int i = 0; i < n; i++) {
        struct bny_hdr h;

        open_p2p(0, &tx[i], 1, 1, bytes);
        if (!bny_match_has_credit(end[0], &tx[i]))
            return i;
        h = say(0, &tx[i], BNY_MSG_DATA, bytes);
        cr_assert_eq(arrive(1, &h, NULL), BNY_MATCH_EARLY);
    }
    return n;
}

Test(match_two, credit_is_counted_in_units)
{
    static const struct {
        uint32_t bytes, units;
    } cases[] = { { 0, 1 }, { 1023, 1 }, { 1024, 2 }, { 4096, 5 }, { 1u << 30, 17 } };

    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        static struct bny_receiver tx[BNY_CREDIT + 1];
        int went = send_all(tx, BNY_CREDIT + 1, cases[k].bytes);

        cr_assert_eq(went, (int)(BNY_CREDIT / cases[k].units), "%u bytes: %d", cases[k].bytes,
                     went);
        close_two();
        memset(pools, 0, sizeof pools);
        open_two();
    }
}

Test(match_two, credit_comes_back_and_wakes_as_many_as_it_is_for)
{
    static struct bny_receiver tx[BNY_CREDIT + 1], late[600];
    enum bny_change change;
    struct bny_receiver rx;
    int woken = 0;

    cr_assert_eq(send_all(tx, BNY_CREDIT + 1, 0), (int)BNY_CREDIT);
    for (int i = 0; i < 600; i++) {
        open_p2p(0, &late[i], 2, 1, 0);
        cr_assert_eq(bny_match_has_credit(end[0], &late[i]), 0);
    }
    for (int i = 0; i < 255; i++) {
        open_p2p(1, &rx, 1, 0, 0);
        cr_assert_eq(take(1, &rx), 1);
        bny_match_close(end[1], &rx, 1);
    }
    cr_assert_not(bny_match_is_busy(end[1]), "255 units are not worth a message");
    open_p2p(1, &rx, 1, 0, 0);
    cr_assert_eq(take(1, &rx), 1);
    bny_match_close(end[1], &rx, 1);
    cr_assert_eq(talk(1), 1);
    cr_assert_eq(bny_match_changed(end[0], &change), &tx[BNY_CREDIT], "in their order");
    cr_assert_eq(change, BNY_CHANGE_CREDIT);
    for (struct bny_receiver *rc; (rc = bny_match_changed(end[0], &change)); woken++)
        cr_assert(rc == &late[woken] && change == BNY_CHANGE_CREDIT);
    cr_assert_eq(woken, 255);
    cr_assert_eq(bny_match_has_credit(end[0], &late[0]), 1);
}

/* What was received but not as it should (a failed operation) gives no credit. */
Test(match_two, a_receive_that_failed_gives_no_credit)
{
    struct bny_receiver rx;

    for (int i = 0; i < 1000; i++) {
        open_p2p(1, &rx, 1, 0, 0);
        bny_match_close(end[1], &rx, 0);
    }
    cr_assert_not(bny_match_is_busy(end[1]));
}

Test(match_two, a_full_receiver_announces_its_receives)
{
    static struct bny_receiver tx[BNY_CREDIT];
    struct bny_receiver waiting[2], rx;
    enum bny_change change;
    struct bny_hdr h;

    for (uint32_t i = 0; i < 2; i++) {
        open_p2p(1, &waiting[i], 50 + i, 0, 0);
        cr_assert_eq(waiting[i].announce, 0);
    }
    cr_assert_eq(send_all(tx, BNY_CREDIT / 2 - 1, 0), (int)BNY_CREDIT / 2 - 1);
    cr_assert_not(bny_match_is_busy(end[1]));
    open_p2p(0, &tx[BNY_CREDIT - 1], 1, 1, 0);
    h = say(0, &tx[BNY_CREDIT - 1], BNY_MSG_DATA, 0);
    cr_assert_eq(arrive(1, &h, NULL), BNY_MATCH_EARLY);
    for (int i = 0; i < 2; i++) { /* in any order */
        struct bny_receiver *rc = bny_match_changed(end[1], &change);
        cr_assert((rc == &waiting[0] || rc == &waiting[1]) && change == BNY_CHANGE_ANNOUNCE);
    }
    cr_assert_null(bny_match_changed(end[1], &change));
    open_p2p(1, &rx, 60, 0, 0);
    cr_assert_eq(rx.announce, 1, "and those that come");
    open_p2p(1, &rx, 1, 0, 0);
    cr_assert_eq(take(1, &rx), 1);
    open_p2p(1, &rx, 61, 0, 0);
    cr_assert_eq(rx.announce, 0, "until it has room again");
}

/* One message that is never received keeps all tags; then nothing goes without CTS until
 * that one is received, and the next epoch begins. */
Test(match_two, a_crowded_sender_waits_for_its_epoch)
{
    struct bny_receiver held, rx, other, tx[2], *out;
    enum bny_change change;
    struct bny_hdr h, first;

    open_p2p(0, &held, 1u << 20, 1, 0);
    first = say(0, &held, BNY_MSG_DATA, 0);
    for (uint32_t tag = 0; tag < 16383; tag++) {
        transfer(tag, 0);
        talk(1);
    }
    open_p2p(1, &rx, 1u << 20, 0, 0);
    open_p2p(1, &other, 5, 0, 0);
    for (uint32_t i = 0; i < 2; i++) {
        open_p2p(0, &tx[i], 4 + i, 1, 0);
        cr_assert_eq(bny_match_has_credit(end[0], &tx[i]), 0);
    }
    cr_assert_eq(talk(0), 1, "it asks, once");
    for (int i = 0; i < 2; i++)
        cr_assert(bny_match_changed(end[1], &change) && change == BNY_CHANGE_ANNOUNCE);
    cr_assert_null(bny_match_changed(end[1], &change));
    h = say(1, &other, BNY_MSG_CTS, 0); /* with CTS a send may go all the same */
    cr_assert_eq(arrive(0, &h, &out), BNY_MATCH_FOUND);
    cr_assert_eq(out, &tx[1]);
    h = say(0, &tx[1], BNY_MSG_DATA, 0);
    cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_FOUND);
    cr_assert_eq(out, &other);
    bny_match_close(end[1], &other, 1);
    bny_match_close(end[0], &tx[1], 1);
    cr_assert_eq(arrive(1, &first, &out), BNY_MATCH_FOUND);
    bny_match_close(end[1], &rx, 1);
    bny_match_close(end[0], &held, 1);
    cr_assert_gt(talk(1), 0, "it was asked for credit");
    open_p2p(1, &rx, 4, 0, 0);
    h = say(1, &rx, BNY_MSG_CTS, 0); /* the credit of the last ones, if nothing else told */
    arrive(0, &h, NULL);
    cr_assert_eq(bny_match_changed(end[0], &change), &tx[0]);
    cr_assert_eq(change, BNY_CHANGE_CREDIT);
    if (!bny_match_has_credit(end[0], &tx[0])) { /* its epoch has begun */
        cr_assert_eq(bny_match_changed(end[0], &change), &tx[0]);
        cr_assert_eq(change, BNY_CHANGE_NUMBER);
    }
    cr_assert_eq(tx[0].epoch, 1);
    cr_assert_eq(bny_match_has_credit(end[0], &tx[0]), 1);
}

/* ---- hostile headers ---- */

static struct bny_hdr from_sender(uint32_t tag, uint32_t seq, uint16_t epoch)
{
    return (struct bny_hdr){ .kind = BNY_MSG_DATA,
                             .seq = seq,
                             .step = (uint16_t)(epoch << 1 | 1),
                             .sig = { .collective = BNY_SENDRECV, .root_tag = tag } };
}

Test(match_two, credit_that_was_not_taken_is_not_given)
{
    static struct bny_receiver tx[BNY_CREDIT + 1];
    static const uint32_t lies[] = { BNY_CREDIT + 1, 1u << 31, UINT32_MAX };
    enum bny_change change;
    struct bny_hdr h = from_sender(0, 0, 0);

    cr_assert_eq(send_all(tx, BNY_CREDIT + 1, 0), (int)BNY_CREDIT);
    h.kind = BNY_MSG_CREDIT;
    for (int i = 0; i < 3; i++) {
        h.started = lies[i];
        cr_assert_eq(arrive(0, &h, NULL), BNY_MATCH_CONTROL);
        cr_assert_null(bny_match_changed(end[0], &change), "%u units", lies[i]);
        cr_assert_eq(bny_match_has_credit(end[0], &tx[BNY_CREDIT]), 0);
    }
    h.started = 1; /* what is true still counts */
    arrive(0, &h, NULL);
    cr_assert_eq(bny_match_has_credit(end[0], &tx[BNY_CREDIT]), 1);
    h.started = 0; /* an old message: nothing is taken back */
    arrive(0, &h, NULL);
    cr_assert_eq(bny_match_has_credit(end[0], &tx[BNY_CREDIT]), 1);
}

Test(match_two, epochs_of_the_past_are_stale)
{
    struct bny_receiver rx, *out;
    struct bny_hdr h;

    open_p2p(1, &rx, 5, 0, 0);
    for (uint32_t epoch = 2; epoch < 0x8000; epoch += 97) {
        h = from_sender(5, 0, (uint16_t)epoch);
        if (epoch >= 0x4000) /* half of the numbers are behind us */
            cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_STALE, "epoch %u", epoch);
        h.step &= 0xfffe; /* as a receiver would say it: an epoch of our sends */
        cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_STALE);
    }
    cr_assert_eq(rx.epoch, 0);
    h = from_sender(5, 0, 0);
    cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_FOUND);
    h = from_sender(5, 0, 1);
    h.step &= 0xfffe; /* a receiver begins no epoch of ours */
    cr_assert_eq(arrive(1, &h, &out), BNY_MATCH_STALE);
}

Test(match_two, more_than_the_credit_is_refused)
{
    struct bny_msg *msg;
    struct bny_hdr h;

    for (uint32_t i = 0; i < BNY_CREDIT / 17; i++) {
        h = from_sender(9, i, 0);
        h.codec_len_raw = 1u << 20;
        cr_assert_eq(arrive(1, &h, NULL), BNY_MATCH_EARLY);
    }
    h.seq++; /* 1020 of 1024 units are used */
    msg = bny_msg_make(&pools[1], &h, NULL);
    cr_assert_eq(bny_match_keep(end[1], 0, msg), -BANYAN_EPROTO);
    cr_assert_not_null(strstr(banyan_last_error(), "rank 0"), "%s", banyan_last_error());
    for (uint32_t i = 0; i < 4; i++) {
        h = from_sender(10, i, 0);
        cr_assert_eq(arrive(1, &h, NULL), BNY_MATCH_EARLY);
    }
    h.seq++;
    msg = bny_msg_make(&pools[1], &h, NULL);
    cr_assert_eq(bny_match_keep(end[1], 0, msg), -BANYAN_EPROTO);
}

/* A message that says it brings 1 GiB, of an endpoint. */
static struct bny_msg *giant(struct bny_ep *ep, uint32_t seq)
{
    struct bny_hdr h = collective_hdr(seq);
    struct bny_msg *msg = bny_msg_make(&pool, &h, NULL);

    cr_assert_not_null(msg);
    msg->hdr.len = 1u << 30;
    msg->ep = ep;
    return msg;
}

/* Of each peer, whatever it sends; what is taken or forgotten does not count any more. */
Test(match, what_a_peer_makes_us_keep_is_bounded)
{
    /* Messages that are left behind name them when the end is closed. */
    static struct bny_ep ep = { .peer = PEER }, other = { .peer = PEER + 1 };
    struct bny_sig sig = sig_of(1);
    struct bny_receiver rc[2];

    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 3; i++)
            cr_assert_eq(bny_match_keep(m, PEER, giant(&ep, 100 + i)), 0);
        bny_match_forget(m);
    }
    for (uint32_t i = 0; i < 3; i++)
        cr_assert_eq(bny_match_keep(m, PEER, giant(&ep, i)), 0);
    cr_assert_eq(bny_match_keep(m, PEER, giant(&ep, 1)), -BANYAN_EPROTO);
    cr_assert_not_null(strstr(banyan_last_error(), "rank 1 of the job"));
    cr_assert_not_null(strstr(banyan_last_error(), "banyan_barrier"));
    cr_assert_eq(bny_match_keep(m, PEER + 1, giant(&other, 1)), 0);
    bny_match_open(m, &rc[0], &sig, 0);
    cr_assert_eq(taken(&rc[0]), 1);
    cr_assert_eq(bny_match_keep(m, PEER, giant(&ep, 1)), 0);
    bny_match_open(m, &rc[1], &sig, 0);
    cr_assert_eq(taken(&rc[1]), 3);
}

/* All peers together: else a job of many ranks could take more than there is. */
Test(match, the_bound_is_a_share_of_the_memory)
{
    static struct bny_tp tp = { .nranks = 1 << 20 };
    static struct bny_ep ep = { .peer = PEER, .tp = &tp };
    const uint64_t gib = 1ull << 30;

    cr_assert_eq(bny_kept_max(64 * gib, 2), BNY_KEPT_MAX);
    cr_assert_eq(bny_kept_max(64 * gib, 64), gib);
    cr_assert_eq(bny_kept_max(64 * gib, 1 << 20), BNY_KEPT_LEAST);
    cr_assert_eq(bny_match_keep(m, PEER, giant(&ep, 1)), -BANYAN_EPROTO);
    cr_assert_not_null(strstr(banyan_last_error(), " 64 MiB"), "%s", banyan_last_error());
}

/* Communicators that do not exist here count as well. */
Test(match, what_waits_for_communicators_is_bounded)
{
    static struct bny_world w;
    static struct bny_ep ep = { .peer = PEER };
    struct bny_msg_list mine;
    struct bny_msg *msg;

    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            msg = giant(&ep, i);
            msg->hdr.comm = 7 + i % 2;
            cr_assert_eq(bny_orphans_keep(&w, msg), i < 3 ? 0 : -BANYAN_EPROTO);
        }
        for (uint32_t id = 7; id < 9; id++) {
            mine = bny_orphans_take(&w, id);
            bny_msg_list_release(&w.held, &mine);
        }
    }
    bny_buffered_free(&w.held);
}

/* It may be gone, not to come: credit of it would stay for ever. What a sender asks or says of
 * epochs is kept for one that is to come. */
Test(match, credit_of_unknown_communicators_is_not_kept)
{
    static struct bny_world w;
    struct bny_hdr h = {
        .comm = 7, .kind = BNY_MSG_CREDIT, .started = 300, .sig = { .collective = BNY_SENDRECV }
    };

    cr_assert_eq(bny_orphans_keep(&w, bny_msg_make(&w.held, &h, NULL)), 0);
    cr_assert_null(w.unclaimed.first);
    h.step = 3;
    cr_assert_eq(bny_orphans_keep(&w, bny_msg_make(&w.held, &h, NULL)), 0);
    cr_assert_not_null(w.unclaimed.first);
    bny_msg_list_release(&w.held, &w.unclaimed);
    bny_buffered_free(&w.held);
}

/* Of a communicator that failed and was destroyed its peers may send for as long as they have
 * not heard: nobody would ever take it. */
Test(match, messages_for_ended_communicators_are_not_kept)
{
    static struct bny_world w;

    for (uint32_t id = 7; id < 7 + 2 * BNY_ENDED_MAX; id++) {
        static const char payload[64];
        struct bny_hdr h = { .comm = id, .kind = BNY_MSG_DATA, .len = sizeof payload };

        cr_assert_eq(bny_orphans_keep(&w, bny_msg_make(&w.held, &h, payload)), 0);
        cr_assert_not_null(w.unclaimed.first);
        bny_orphans_end(&w, id);
        cr_assert_null(w.unclaimed.first, "what was here is dropped");
        cr_assert_eq(bny_orphans_keep(&w, bny_msg_make(&w.held, &h, payload)), 0);
        cr_assert_null(w.unclaimed.first, "what comes is dropped");
    }
    cr_assert(bny_orphans_has_ended(&w, 6 + 2 * BNY_ENDED_MAX));
    cr_assert_not(bny_orphans_has_ended(&w, 7), "the oldest are forgotten");
    bny_orphans_begin(&w, 6 + 2 * BNY_ENDED_MAX);
    cr_assert_not(bny_orphans_has_ended(&w, 6 + 2 * BNY_ENDED_MAX), "its id is another's now");
    bny_buffered_free(&w.held);
}

/* The first message of a peer makes an account of it; without memory it is not lost in silence.
 */
Test(match_two, without_memory_a_message_fails)
{
    struct bny_receiver *out;
    struct bny_hdr h = from_sender(5, 0, 0);
    struct bny_msg *msg = bny_msg_make(&pools[1], &h, NULL);

    no_memory = 1;
    cr_assert_eq(bny_match_find(end[1], 0, &h, &out), BNY_MATCH_EARLY);
    cr_assert_eq(bny_match_keep(end[1], 0, msg), -BANYAN_ENOMEM);
    no_memory = 0;
    cr_assert_not_null(strstr(banyan_last_error(), "no memory"), "%s", banyan_last_error());
}

/* Any bytes: no crash (sanitizers look), and a verdict. */
Test(match_two, random_headers)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t rng = text ? strtoull(text, NULL, 0) : 4711;
    struct bny_receiver rc[64];
    int open = 0;

    fprintf(stderr, "seed %llu\n", (unsigned long long)rng);
    for (int i = 0; i < 20000; i++) {
        struct bny_hdr h = { .kind = (uint8_t)(1 + bny_rng_below(&rng, 6)),
                             .seq = (uint32_t)bny_rng_below(&rng, 6) - 2,
                             .step = (uint16_t)bny_rng_below(&rng, 8),
                             .chunk = (uint32_t)bny_rng_below(&rng, 2),
                             .started = (uint32_t)bny_rng_below(&rng, 64) - 20 };
        struct bny_receiver *out;
        enum bny_change change;
        int peer = 0;

        h.sig.collective = bny_rng_below(&rng, 4) ? BNY_SENDRECV : BNY_ALLREDUCE;
        h.sig.root_tag = (uint32_t)bny_rng_below(&rng, 5);
        if (bny_rng_below(&rng, 20) == 0)
            h.step = (uint16_t)bny_rng_below(&rng, 65536);
        if (open < 64)
            open_p2p(1, &rc[open++], (uint32_t)bny_rng_below(&rng, 5), i & 1, 0);
        else
            while (open)
                bny_match_close(end[1], &rc[--open], i & 1);
        if (bny_match_find(end[1], 0, &h, &out) == BNY_MATCH_EARLY) {
            int rc_keep = bny_match_keep(end[1], 0, bny_msg_make(&pools[1], &h, NULL));
            cr_assert(rc_keep == 0 || rc_keep == -BANYAN_EPROTO);
        }
        while (bny_match_changed(end[1], &change))
            cr_assert(change >= BNY_CHANGE_NUMBER && change <= BNY_CHANGE_CREDIT);
        while (bny_match_to_say(end[1], &peer, &h))
            bny_match_said(end[1], peer, &h);
        cr_assert_not(bny_match_is_busy(end[1]));
    }
}

/* ---- two ends and a network with delays ---- */

#define CALLS 6000
#define TAGS  700
#define WAYS  4096

/* What an operation does with matching, and the network between two of them: messages overtake
 * each other. The k-th send with a tag must meet the k-th receive with it. */
struct call {
    struct bny_receiver rc;
    uint32_t tag, ordinal, bytes;
    int is_open, is_ready, wants_cts, has_announced;
    struct bny_expected expected;
};

struct wire {
    struct bny_hdr at[WAYS];
    int n;
};

struct game {
    uint64_t rng;
    struct call send[2][CALLS], receive[2][CALLS];
    uint32_t sent[2][TAGS], received[2][TAGS]; /* ordinals so far */
    struct wire to[2];
    int opened[2], listened[2], went[2], came[2], done, epochs, short_sent, short_met;
};

static void post(struct game *g, int to, const struct bny_hdr *h)
{
    cr_assert_lt(g->to[to].n, WAYS, "messages pile up");
    g->to[to].at[g->to[to].n++] = *h;
}

static struct bny_hdr call_hdr(int r, struct call *c, enum bny_msg_kind kind)
{
    struct bny_hdr h = { .kind = (uint8_t)kind,
                         .seq = c->rc.seq,
                         .codec_len_raw = c->bytes,
                         .crc = c->ordinal,
                         .sig = { .collective = BNY_SENDRECV, .root_tag = c->tag } };

    bny_match_stamp(end[r], &c->rc, &h);
    bny_match_stamped(end[r], &c->rc, &h);
    return h;
}

static void try_send(struct game *g, int r, struct call *c)
{
    struct bny_hdr h;

    if (!c->is_open || (!c->is_ready && !bny_match_has_credit(end[r], &c->rc)))
        return;
    h = call_hdr(r, c, BNY_MSG_DATA);
    bny_match_close(end[r], &c->rc, 1);
    c->is_open = 0;
    g->went[r]++;
    post(g, 1 - r, &h);
}

static void announce(struct game *g, int r, struct call *c)
{
    struct bny_hdr h;

    if (!c->is_open || !c->wants_cts || c->has_announced)
        return;
    h = call_hdr(r, c, BNY_MSG_CTS);
    c->has_announced = 1;
    post(g, 1 - r, &h);
}

static void got(struct game *g, int r, struct call *c, const struct bny_hdr *h)
{
    cr_assert_eq(h->kind, BNY_MSG_DATA);
    cr_assert(c->is_open && h->sig.root_tag == c->tag && h->crc == c->ordinal,
              "receive %u of tag %u got message %u of tag %u", c->ordinal, c->tag, h->crc,
              h->sig.root_tag);
    bny_match_close(end[r], &c->rc, 1);
    c->is_open = 0;
    g->came[r]++;
}

static void look_at_changes(struct game *g, int r)
{
    enum bny_change change;
    struct bny_receiver *rc;
    struct bny_hdr h;
    int peer = 0;

    while ((rc = bny_match_changed(end[r], &change))) {
        struct call *c = (struct call *)(void *)((char *)rc - offsetof(struct call, rc));

        if (change == BNY_CHANGE_NUMBER)
            c->is_ready = c->has_announced = 0;
        c->wants_cts |= rc->announce;
        if (rc->side == BNY_SIDE_SENDS)
            try_send(g, r, c);
        else
            announce(g, r, c);
    }
    while (bny_match_to_say(end[r], &peer, &h)) {
        g->epochs += (h.step & 1) && !h.chunk;
        bny_match_said(end[r], peer, &h);
        post(g, 1 - r, &h);
    }
}

/* 1: it went without a receiver. */
static int send_short(struct game *g, int r, const struct call *c)
{
    struct bny_hdr h = { .kind = BNY_MSG_DATA,
                         .codec_len_raw = c->bytes,
                         .crc = c->ordinal,
                         .sig = { .collective = BNY_SENDRECV, .root_tag = c->tag } };

    if (bny_rng_below(&g->rng, 2) || !bny_match_next_send(end[r], 1 - r, &h.sig, c->bytes, &h))
        return 0;
    bny_match_sent(end[r], 1 - r, c->bytes, &h);
    g->went[r]++;
    g->short_sent++;
    post(g, 1 - r, &h);
    return 1;
}

static void open_send(struct game *g, int r)
{
    struct call *c = &g->send[r][g->opened[r]++];

    c->tag = (uint32_t)bny_rng_below(&g->rng, TAGS);
    c->bytes =
        (uint32_t)bny_rng_below(&g->rng, 4) ? 0 : (uint32_t)bny_rng_below(&g->rng, 20000);
    c->ordinal = g->sent[r][c->tag]++;
    if (send_short(g, r, c))
        return;
    open_p2p(r, &c->rc, c->tag, 1, c->bytes);
    c->is_open = 1;
    if (bny_match_next(end[r], 1 - r, c->tag)) /* only asks: must not change anything */
        cr_assert_lt(g->received[r][c->tag], g->sent[1 - r][c->tag]);
    for (struct bny_msg_list early = bny_match_take(end[r], &c->rc); early.first;) {
        c->is_ready = 1;
        bny_msg_release(&pools[r], bny_msg_list_pop_front(&early));
    }
    try_send(g, r, c);
}

static void deliver_one(struct game *g, int r);

/* 1: it was found without a receiver. Messages of this game have no payload. */
static int receive_short(struct game *g, int r, struct call *c)
{
    const struct bny_sig sig = { .collective = BNY_SENDRECV, .root_tag = c->tag };

    c->expected = (struct bny_expected){ .sig = &sig, .peer = 1 - r };
    if (c->bytes || bny_rng_below(&g->rng, 2) || !bny_match_expect(end[r], &c->expected))
        return 0;
    for (uint64_t looks = 1 + bny_rng_below(&g->rng, 20); looks && !c->expected.got; looks--)
        deliver_one(g, r);
    bny_match_give_up_expected(end[r]);
    return c->expected.got;
}

/* In about the order of the sends: never more than `ahead` of them. */
static void open_receive(struct game *g, int r)
{
    struct call *c = &g->receive[r][g->listened[r]];
    struct bny_msg_list early;
    int n = g->opened[1 - r];

    if (g->listened[r] == n)
        return;
    g->listened[r]++;
    c->tag = UINT32_MAX;
    for (uint32_t first = (uint32_t)bny_rng_below(&g->rng, TAGS), k = 0; k < TAGS; k++) {
        uint32_t tag = (first + k) % TAGS;

        if (g->received[r][tag] < g->sent[1 - r][tag]) {
            c->tag = tag;
            break;
        }
    }
    cr_assert_neq(c->tag, UINT32_MAX);
    c->ordinal = g->received[r][c->tag]++;
    c->bytes = 0;
    for (int i = 0; i < n; i++)
        if (g->send[1 - r][i].tag == c->tag && g->send[1 - r][i].ordinal == c->ordinal)
            c->bytes = g->send[1 - r][i].bytes;
    if (receive_short(g, r, c))
        return;
    open_p2p(r, &c->rc, c->tag, 0, c->bytes);
    c->is_open = 1;
    c->wants_cts = c->rc.announce || c->bytes > 8192;
    early = bny_match_take(end[r], &c->rc);
    if (early.first) {
        struct bny_msg *msg = bny_msg_list_pop_front(&early);
        cr_assert_null(early.first);
        got(g, r, c, &msg->hdr);
        bny_msg_release(&pools[r], msg);
    }
    announce(g, r, c);
}

static int meet(struct game *g, int r, const struct bny_hdr *h)
{
    struct bny_expected *x = bny_match_is_expected(end[r], 1 - r, h);
    struct call *c;

    if (!x)
        return 0;
    c = (struct call *)(void *)((char *)x - offsetof(struct call, expected));
    cr_assert(h->sig.root_tag == c->tag && h->crc == c->ordinal,
              "receive %u of tag %u met message %u of tag %u", c->ordinal, c->tag, h->crc,
              h->sig.root_tag);
    bny_match_met(end[r], x, h);
    g->came[r]++;
    g->short_met++;
    return 1;
}

static void deliver_one(struct game *g, int r)
{
    struct wire *w = &g->to[r];
    struct bny_receiver *rc;
    struct bny_hdr h;
    struct call *c;
    uint64_t k;

    if (!w->n)
        return;
    k = bny_rng_below(&g->rng, (uint64_t)w->n);
    h = w->at[k];
    w->at[k] = w->at[--w->n];
    if (meet(g, r, &h))
        return;
    if (arrive(r, &h, &rc) != BNY_MATCH_FOUND)
        return;
    c = (struct call *)(void *)((char *)rc - offsetof(struct call, rc));
    if (rc->side == BNY_SIDE_RECEIVES) {
        got(g, r, c, &h);
    } else {
        c->is_ready = 1;
        try_send(g, r, c);
    }
}

static int is_over(const struct game *g)
{
    return g->came[0] == CALLS && g->came[1] == CALLS;
}

Test(match_two, sends_meet_their_receives_whatever_overtakes)
{
    const char *text = getenv("BANYAN_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20261122;
    int epochs = 0, sent = 0, met = 0;

    for (int round = 0; round < 6; round++, seed++) {
        struct game *g = calloc(1, sizeof *g);
        /* bursts: how far sends run ahead of receives */
        int ahead = round % 3 == 0 ? 40 : round % 3 == 1 ? 400 : 3000;

        g->rng = seed;
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        for (long turn = 0; !is_over(g); turn++) {
            int r = (int)bny_rng_below(&g->rng, 2), what = (int)bny_rng_below(&g->rng, 4);

            cr_assert_lt(turn, 3000000, "stuck: %d and %d of %d sent, %d and %d received",
                         g->went[0], g->went[1], CALLS, g->came[1], g->came[0]);
            if (what == 0 && g->opened[r] < CALLS && g->opened[r] < g->came[1 - r] + ahead)
                open_send(g, r);
            else if (what == 1)
                open_receive(g, r);
            else
                deliver_one(g, r);
            look_at_changes(g, r);
        }
        epochs += g->epochs;
        sent += g->short_sent;
        met += g->short_met;
        free(g);
        close_two();
        memset(pools, 0, sizeof pools);
        open_two();
    }
    cr_assert_gt(epochs, 10, "only %d epochs began: the test shows little", epochs);
    cr_assert(sent > CALLS && met > 100, "only %d short sends, %d met: it shows little", sent,
              met);
}
