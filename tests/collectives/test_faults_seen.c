/* SPDX-License-Identifier: BSD-3-Clause */
/* Faults that were found by use, each in a world of two ranks over the loop transport, some
 * with a transport that fails where it is told to. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "collectives/api/job.h"
#include "collectives/plan/program_cache.h"
#include "collectives/plan/way.h"
#include "collectives/progress/progress.h"
#include "transport/loop/loop.h"

static struct bny_loop_fabric *fabric;
static struct banyan_comm *comm[2];
static struct bny_transport_ops failing; /* of rank 0, once it is told to fail */

static void open_two(void)
{
    struct banyan_config cfg = BANYAN_CONFIG_INIT;

    fabric = bny_loop_fabric_create(2, NULL);
    for (int r = 0; r < 2; r++)
        cr_assert_eq(bny_comm_loop(&comm[r], fabric, 2, r, &cfg), 0, "%s", banyan_last_error());
}

static void close_two(void)
{
    for (int r = 0; r < 2; r++) {
        comm[r]->world->orderly = 0;
        banyan_comm_destroy(comm[r]);
    }
    bny_loop_fabric_destroy(fabric);
}

static int failing_poll(struct bny_tp *tp, struct bny_event *ev, int n)
{
    return bny_fail(BANYAN_ESYSTEM, "the device is gone");
}

static int failing_ready(struct bny_ep *ep, const struct bny_hdr *h, const void *buf)
{
    return h->kind == BNY_MSG_CTS ? bny_fail(BANYAN_ESYSTEM, "no CTS goes out") : BNY_AGAIN;
}

/* An allreduce of rank 0 alone, which its transport ends. */
static void ends_with(size_t count, const char *text)
{
    static float a[1 << 18];
    struct banyan_request *req;
    int done = 0, rc = 0;

    cr_assert_eq(
        banyan_allreduce_init(a, a, count, BANYAN_F32, BANYAN_SUM, comm[0], NULL, &req), 0);
    rc = banyan_start(req);
    for (int i = 0; i < 10 && rc == 0 && !done; i++)
        rc = banyan_test(req, &done);
    cr_assert_eq(rc, -BANYAN_ESYSTEM, "%d: %s", rc, banyan_last_error());
    cr_assert_not_null(strstr(banyan_last_error(), text), "%s", banyan_last_error());
    cr_assert_eq(banyan_request_free(req), 0);
}

Test(faults_seen, a_transport_that_fails_ends_what_waits_for_it, .init = open_two,
     .fini = close_two)
{
    failing = *comm[0]->world->tps[0]->ops;
    failing.poll = failing_poll;
    comm[0]->world->tps[0]->ops = &failing;
    ends_with(4, "the device is gone");
}

Test(faults_seen, a_ready_that_cannot_be_sent_ends_the_operation, .init = open_two,
     .fini = close_two)
{
    failing = *comm[0]->peers[1].ep->ops;
    failing.eager = failing_ready;
    comm[0]->peers[1].ep->ops = &failing;
    ends_with(1 << 18, "no CTS goes out");
}

static int (*whole_poll)(struct bny_tp *tp, struct bny_event *ev, int n);

static int descriptors(struct bny_tp *tp, struct bny_event *ev, int n)
{
    int got = whole_poll(tp, ev, n);

    for (int i = 0; i < got; i++)
        if (ev[i].kind == BNY_EV_MSG && ev[i].msg->hdr.kind == BNY_MSG_DATA) {
            ev[i].msg->data = NULL;
            ev[i].msg->descriptor = 1;
        }
    return got;
}

/* A member that breaks the protocol: a short message, whose bytes stay with it. */
Test(faults_seen, a_short_message_without_its_bytes_is_refused, .init = open_two,
     .fini = close_two)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    struct banyan_request *req[2];
    float x[2] = { 1, 2 };
    int done = 0, rc = 0;

    failing = *comm[0]->world->tps[0]->ops;
    whole_poll = failing.poll;
    failing.poll = descriptors;
    comm[0]->world->tps[0]->ops = &failing;
    opts.schedule = "direct:messages";
    for (int r = 0; r < 2; r++) {
        cr_assert_eq(banyan_allreduce_init(&x[r], &x[r], 1, BANYAN_F32, BANYAN_SUM, comm[r],
                                           &opts, &req[r]),
                     0);
        cr_assert_eq(banyan_start(req[r]), 0);
    }
    for (int i = 0; i < 100 && rc == 0 && !done; i++) {
        banyan_test(req[1], &done);
        rc = banyan_test(req[0], &done);
    }
    cr_assert_eq(rc, -BANYAN_EPROTO, "%d: %s", rc, banyan_last_error());
    cr_assert_not_null(strstr(banyan_last_error(), "did not come as one"), "%s",
                       banyan_last_error());
    banyan_request_free(req[0]);
    banyan_request_free(req[1]);
}

static int silent_poll(struct bny_tp *tp, struct bny_event *ev, int n)
{
    return -BANYAN_ESYSTEM;
}

static int silent_ready(struct bny_ep *ep, const struct bny_hdr *h, const void *buf)
{
    return h->kind == BNY_MSG_CTS ? -BANYAN_ESYSTEM : BNY_AGAIN;
}

/* What failed before it, in another call of this thread, is not its cause. */
static void fail_otherwise(void)
{
    cr_assert_eq(banyan_barrier(NULL, NULL), -BANYAN_EINVAL);
    cr_assert_not_null(strstr(banyan_last_error(), "NULL"));
}

Test(faults_seen, a_transport_without_a_sentence_gets_no_old_one, .init = open_two,
     .fini = close_two)
{
    failing = *comm[0]->world->tps[0]->ops;
    failing.poll = silent_poll;
    comm[0]->world->tps[0]->ops = &failing;
    fail_otherwise();
    ends_with(4, "failed: a system call failed");
}

Test(faults_seen, a_message_without_a_sentence_gets_no_old_one, .init = open_two,
     .fini = close_two)
{
    failing = *comm[0]->peers[1].ep->ops;
    failing.eager = silent_ready;
    comm[0]->peers[1].ep->ops = &failing;
    fail_otherwise();
    ends_with(1 << 18, "failed: a system call failed");
}

/* Another message to oneself waits: that is no reason to wait for one that never comes. */
Test(faults_seen, a_receive_from_oneself_is_refused, .init = open_two, .fini = close_two)
{
    struct banyan_opts opts = BANYAN_OPTS_INIT;
    int x = 7, y = 0;

    opts.tag = 1;
    cr_assert_eq(banyan_send(&x, 1, BANYAN_I32, 0, comm[0], &opts), 0);
    opts.tag = 2;
    cr_assert_eq(banyan_recv(&y, 1, BANYAN_I32, 0, comm[0], &opts), -BANYAN_EINVAL);
    opts.tag = 1;
    cr_assert_eq(banyan_recv(&y, 1, BANYAN_I32, 0, comm[0], &opts), 0);
    cr_assert_eq(y, 7);
}

static uint64_t (*whole_arm)(struct bny_tp *tp, int *fds, int cap, int *n);
static int most_asleep, woke_others; /* by the world's lock */

static uint64_t watching_arm(struct bny_tp *tp, int *fds, int cap, int *n)
{
    uint64_t ns = whole_arm(tp, fds, cap, n);

    if (comm[0]->world->nappers > most_asleep)
        most_asleep = comm[0]->world->nappers;
    return ns ? 20000000 : 0;
}

static void watching_disarm(struct bny_tp *tp)
{
    woke_others += comm[0]->world->nappers > 0;
}

static void *wait_long(void *req)
{
    cr_assert_eq(banyan_wait(req, 0.5), -BANYAN_ETIMEDOUT, "%s", banyan_last_error());
    return NULL;
}

/* Who wakes while another thread sleeps must not tell peers that nobody does. */
Test(faults_seen, two_threads_that_sleep_are_armed_until_both_wake, .init = open_two,
     .fini = close_two)
{
    struct banyan_request *req[2];
    pthread_t thread[2];
    int x[2];

    failing = *comm[0]->world->tps[0]->ops;
    whole_arm = failing.arm;
    failing.arm = watching_arm;
    failing.disarm = watching_disarm;
    comm[0]->world->tps[0]->ops = &failing;
    for (int i = 0; i < 2; i++) {
        struct banyan_opts opts = BANYAN_OPTS_INIT;

        opts.tag = i;
        cr_assert_eq(banyan_recv_init(&x[i], 1, BANYAN_I32, 1, comm[0], &opts, &req[i]), 0);
        cr_assert_eq(banyan_start(req[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, wait_long, req[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(banyan_request_free(req[i]), 0);
    cr_assert_eq(most_asleep, 2);
    cr_assert_eq(woke_others, 0);
}

/* Every size, every kind of call: the memory of plans and programs ends somewhere. */
Test(faults_seen, what_a_communicator_keeps_is_bounded, .timeout = 300)
{
    struct bny_scope s = {
        .n = 96, .ways = bny_ways, .eager_max = 4096, .chunk_max = 65536, .coded_max = 65536
    };
    int members[96];

    s.members = members;
    snprintf(s.schedule, sizeof s.schedule, "auto");
    for (int r = 0; r < 96; r++)
        members[r] = r;
    for (int i = 0; i < 400; i++) {
        struct bny_call call = { .collective = i % 2 ? BNY_BROADCAST : BNY_REDUCE,
                                 .dtype = BANYAN_F32,
                                 .count = 1u << (i % 20),
                                 .root = i % 96,
                                 .timeout_s = -1 };
        struct bny_plan plan;

        bny_call_set_schedule(&call, "auto");
        cr_assert_eq(bny_redop_get(&call.redop, BANYAN_SUM, call.dtype), 0);
        cr_assert_eq(bny_plan_get(&s, &call, &plan), 0, "%s", banyan_last_error());
        cr_assert(plan.program->root == call.root, "root %d: program of %d", call.root,
                  plan.program->root);
        bny_plan_drop(&plan);
        cr_assert_leq(s.plans->nkept, 256);
    }
    cr_assert_gt(s.plans->nkept, 8);
    bny_plans_free(&s);
}
