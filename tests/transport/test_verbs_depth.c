/* SPDX-License-Identifier: BSD-3-Clause */
/* Devices with short queues: how deep a rank's are within any limits, and ranks that live with
 * the least of them. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"

TestSuite(verbs_depth, .timeout = 60);

/* ---- the arithmetic ---- */

static const struct vb_limits smallest = { .wr = 64, .cqe = 128, .sge = 1 };

/* Of records: a piece of a message with all bulk slots besides, behind those that no completion
 * was asked for. Of receives: all that may come before the rank looks. */
static void check_depth(const struct vb_depth *d, const struct vb_limits *l, uint32_t eager,
                        uint32_t requests)
{
    uint32_t sq = d->requests * d->sends + 1, rq = d->recvs + 1;

    cr_assert(sq <= l->wr && (l->shared || rq <= l->wr), "%u and %u of %u", sq, rq, l->wr);
    cr_assert_leq((uint64_t)sq + rq, l->cqe);
    cr_assert(d->sends <= VB_SENDS_OF(eager) && d->recvs <= VB_RECVS_OF(eager) &&
              d->eager <= eager);
    cr_assert_eq(d->requests, l->sge < 2 ? 3 : requests);
    cr_assert(d->signal_every >= 1 && d->sends - d->spare >= VB_BULK_SLOTS + d->signal_every);
    cr_assert_gt(d->spare, VB_BULK_SLOTS);
    cr_assert_geq(d->eager, VB_EAGER_LEAST);
    cr_assert_leq(d->eager + 2 * VB_BULK_SLOTS + 5 + 5 + 1 + d->recv_batch - 1, d->recvs);
}

static const uint32_t slots[] = { 8, 16, 32, 64, 128, 256 };

Test(verbs_depth, all_limits)
{
    static const uint32_t some[] = {
        0,   1,   16,  38,  39,   41,   61,   64,   70,   78,   82,   100,   122,       128,
        200, 333, 513, 834, 1023, 1024, 1346, 1537, 1857, 1858, 4096, 32768, UINT32_MAX
    };
    const size_t n = sizeof some / sizeof some[0];
    int served = 0, refused = 0;

    for (size_t i = 0; i < n * n * 2 * 2 * 2 * 6; i++) {
        struct vb_limits l = { .wr = some[i % n],
                               .cqe = some[i / n % n],
                               .sge = i / n / n % 2 ? 1 : 30,
                               .shared = i / n / n / 2 % 2 != 0 };
        uint32_t requests = 1 + (uint32_t)(i / n / n / 4 % 2), eager = slots[i / n / n / 8],
                 need;
        struct vb_depth d;

        need = bny_verbs_depth_of(&d, &l, eager, requests);
        if (!need) {
            check_depth(&d, &l, eager, requests);
            served++;
            continue;
        }
        refused++;
        cr_assert(l.wr < need || l.cqe < (l.shared ? need + VB_RECVS_OF(eager) + 1 : 2 * need));
        l.wr = need; /* the limits that the sentence asks for serve */
        l.cqe = l.shared ? need + VB_RECVS_OF(eager) + 1 : 2 * need;
        cr_assert_eq(bny_verbs_depth_of(&d, &l, eager, requests), 0u);
        check_depth(&d, &l, eager, requests);
    }
    cr_assert(served > 500 && refused > 500, "%d, %d", served, refused);
}

/* A device without limits, or with those of a mlx5, has what it always had. */
Test(verbs_depth, the_usual)
{
    struct vb_limits l = { .wr = 8192, .cqe = 4194303, .sge = 30 };
    struct vb_depth d;

    for (uint32_t requests = 1; requests <= 2; requests++) {
        cr_assert_eq(bny_verbs_depth_of(&d, &l, VB_EAGER_SLOTS, requests), 0u);
        cr_assert(d.sends == 512 && d.recvs == 320 && d.eager == 256 && d.spare == 32 &&
                  d.signal_every == 16 && d.recv_batch == 16 && d.sges == 2 &&
                  d.requests == requests);
    }
}

/* With fewer slots queues are shorter, and all slots can be used. */
Test(verbs_depth, as_deep_as_the_slots_need)
{
    struct vb_limits l = { .wr = 8192, .cqe = 4194303, .sge = 30 };

    for (int i = 0; i < 5; i++) {
        struct vb_depth less, more;

        cr_assert_eq(bny_verbs_depth_of(&less, &l, slots[i], 1), 0u);
        cr_assert_eq(bny_verbs_depth_of(&more, &l, slots[i + 1], 1), 0u);
        cr_assert_lt(less.recvs, more.recvs);
        cr_assert_leq(less.sends, more.sends);
        cr_assert_eq(less.eager, slots[i]);
        cr_assert_leq(slots[i], less.sends - less.spare);
    }
}

/* ---- ranks ---- */

static void make_small(void)
{
    verbs_sim = (struct verbs_sim){ .max_send_wr = (int)smallest.wr,
                                    .max_cqe = (int)smallest.cqe,
                                    .max_sge = (int)smallest.sge,
                                    .max_inline = UINT32_MAX };
}

/* With immediates, notes, and immediates that follow alone; with one queue pair and with two;
 * queue pairs break. */
Test(verbs_depth, streams_of_the_smallest)
{
    for (int i = 0; i < 6 && !verbs_real_device(); i++) {
        struct tpset s;

        make_small();
        set_key("BANYAN_VERBS=notify", i % 3 == 1 ? "1" : "0");
        set_key("BANYAN_VERBS=ar", i % 3 == 2 ? "1" : "0");
        set_key("BANYAN_VERBS=qps", i < 3 ? "1" : "2");
        verbs_sim.reorders = i % 3 == 2;
        verbs_joined(&s, 2);
        verbs_stream(&s, &(struct verbs_stream){ .breaks = 3, .seed = 70 + (uint64_t)i });
        verbs_left(&s);
    }
    set_key("BANYAN_VERBS=notify", NULL);
    set_key("BANYAN_VERBS=ar", NULL);
    set_key("BANYAN_VERBS=qps", NULL);
}

/* Only one of two ranks has such a device. */
Test(verbs_depth, a_small_one_and_a_large_one)
{
    for (int small = 0; small < 2 && !verbs_real_device(); small++) {
        struct bny_hdr hdr = tpset_hdr(0, 1, 0);
        struct tpset s;

        verbs_sim = (struct verbs_sim){ .seed = 9 };
        tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
        cr_assert_eq(bny_verbs_depth_of(&((struct vb_tp *)s.tp[small])->depth, &smallest,
                                        VB_EAGER_SLOTS, 1),
                     0u);
        tpset_eager(&s, 0, 1, &hdr, NULL);
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
        verbs_stream(&s, &(struct verbs_stream){ .breaks = 2, .seed = 90 });
        verbs_left(&s);
    }
}

/* A receiver that does not look has requests for all that may come; those that it holds take
 * slots, and no requests. */
Test(verbs_depth, nothing_meets_a_receiver_that_is_not_ready)
{
    struct tpset s;
    struct bny_msg *held[200];
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    int sent = 0, rc;

    if (verbs_real_device())
        return;
    make_small();
    verbs_joined(&s, 2);
    s.paused[1] = 1;
    for (int i = 0; i < 3000; i++) {
        rc = s.ops->eager(s.ep[0][1], &hdr, NULL);
        cr_assert(rc == 0 || rc == BNY_AGAIN, "%d", rc);
        sent += rc == 0;
        tpset_step(&s);
    }
    cr_assert_eq((uint32_t)sent + 1 - verbs_conn(&s, 0, 1)->peer->eager_taken,
                 ((struct vb_tp *)s.tp[1])->depth.eager);
    cr_assert_eq(verbs_sim.rnr, 0u);
    s.paused[1] = 0;
    for (int i = 0; i < sent; i++)
        s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    for (int i = 0; i < 200; i++) {
        tpset_eager(&s, 0, 1, &hdr, NULL);
        held[i] = tpset_wait(&s, 1, BNY_EV_MSG).msg;
    }
    for (int i = 0; i < 200; i++)
        s.ops->release(held[i]);
    verbs_left(&s);
}
