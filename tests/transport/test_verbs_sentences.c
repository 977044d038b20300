/* SPDX-License-Identifier: BSD-3-Clause */
/* What a user reads when something is wrong: the sentence names the device with its port, and
 * what to do. Whom it is about is the event's endpoint, or the sentence's own "rank". Over the
 * simulated device. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"
#include "transport/verbs/ibv_symbols.h"

TestSuite(verbs_sentences, .timeout = 60);

static void check(const char *text, const char *const parts[])
{
    for (int i = 0; parts[i]; i++)
        cr_assert(strstr(text, parts[i]), "\"%s\" lacks \"%s\"", text, parts[i]);
    cr_assert_lt(strlen(text), 470u, "it is cut off where it is told: %s", text);
}

static void expect(struct tpset *s, int rank, const char *const parts[])
{
    struct bny_event ev = tpset_wait(s, rank, BNY_EV_DOWN);

    cr_assert_eq(ev.ep->peer, !rank);
    check(ev.reason, parts);
    tpset_close(s);
}

#define PARTS(...)                                                                             \
    (const char *const[])                                                                      \
    {                                                                                          \
        __VA_ARGS__, NULL                                                                      \
    }

static void expect_no_transport(const char *ifname, const char *const parts[])
{
    const struct bny_transport_ops *ops = bny_transport_find("verbs");
    static uint8_t secret[32];
    struct bny_tp_config cfg = {
        .rank = 3, .nranks = 4, .secret = secret, .ifname = ifname, .port_range = ""
    };
    struct bny_tp *tp;

    cr_assert_eq(ops->create(&tp, &cfg), -BANYAN_ENOTSUP);
    cr_assert(strstr(banyan_last_error(), "rank 3"), "%s", banyan_last_error());
    check(banyan_last_error(), parts);
    cr_assert_eq(verbs_sim.open, 0);
}

Test(verbs_sentences, no_device)
{
    if (verbs_real_device())
        return;
    verbs_sim_use();
    verbs_sim.no_device = 1;
    expect_no_transport("", PARTS("no RDMA device", "modprobe", "rdma link add"));
}

static struct rdma_event_channel *no_channel(void)
{
    errno = EACCES;
    return NULL;
}

Test(verbs_sentences, no_permission)
{
    struct vb_fn fn;

    if (verbs_real_device())
        return;
    verbs_sim_use();
    fn = *bny_verbs_fn();
    fn.rdma_create_event_channel = no_channel;
    bny_verbs_fn_set(&fn);
    expect_no_transport(
        "", PARTS("Permission denied", "modprobe rdma_ucm", "/dev/infiniband/rdma_cm"));
}

/* The address is what chooses the GID. */
Test(verbs_sentences, a_device_or_port_that_has_no_address)
{
    if (verbs_real_device())
        return;
    verbs_sim_use();
    expect_no_transport("mlx5_7:2", PARTS("\"mlx5_7\"", "ibv_devices", "rdma link"));
    expect_no_transport("sim0:2", PARTS("\"sim0\"", "ibv_devices"));
}

static int no_listener(struct rdma_cm_id *id, int backlog)
{
    (void)id;
    (void)backlog;
    errno = EADDRINUSE;
    return -1;
}

Test(verbs_sentences, a_device_that_does_not_listen)
{
    struct vb_fn fn;

    if (verbs_real_device())
        return;
    verbs_sim_use();
    fn = *bny_verbs_fn();
    fn.rdma_listen = no_listener;
    bny_verbs_fn_set(&fn);
    expect_no_transport("lo", PARTS("device sim0 port 1", "Address already in use"));
}

static void asked(struct tpset *s)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);

    cr_assert_eq(s->ops->eager(s->ep[0][1], &hdr, NULL), BNY_AGAIN);
}

/* Of either end. */
Test(verbs_sentences, memory_that_may_not_be_locked)
{
    struct tpset s;

    for (int ours = 0; ours < 2 && !verbs_real_device(); ours++) {
        verbs_sim.registrations = 0;
        tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
        s.lack_is_down = 1;
        if (ours)
            verbs_sim.registrations = (int)verbs_sim.registered + 1;
        asked(&s);
        while (!ours && ((struct vb_ep *)s.ep[0][1])->state != VB_ASKING)
            tpset_step(&s);
        if (!ours) /* what the asking rank needs is there by now */
            verbs_sim.registrations = (int)verbs_sim.registered;
        while (!tpset_count(&s, 0, BNY_EV_DOWN)) { /* for two seconds, if it is the other */
            asked(&s);
            tpset_step(&s);
        }
        expect(&s, 0, PARTS("device sim0 port 1", "ulimit -l unlimited", "registering"));
    }
}

Test(verbs_sentences, a_port_that_is_down)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);

    if (verbs_real_device())
        return;
    tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
    verbs_sim.dead_device = 1;
    asked(&s);
    tpset_step(&s);
    verbs_travel(&s, 1);
    while (tpset_count(&s, 0, BNY_EV_DOWN) == 0) {
        s.ops->eager(s.ep[0][1], &hdr, NULL);
        tpset_step(&s);
        verbs_travel(&s, 0);
    }
    expect(
        &s, 0,
        PARTS("device sim0 port 1", "ibv_devinfo -d sim0 -i 1", "ping -I 127.0.0.1 127.0.0.1"));
}

Test(verbs_sentences, packets_that_get_lost)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);

    if (verbs_real_device())
        return;
    set_key("BANYAN_VERBS=replace", "0");
    verbs_joined(&s, 2);
    verbs_sim.dead_device = 1;
    s.ops->eager(s.ep[0][1], &hdr, NULL);
    expect(&s, 0,
           PARTS("device sim0 port 1", "retry counter exceeded", "ibv_devinfo -d sim0 -i 1",
                 "MTU", "ping -I 127.0.0.1 127.0.0.1"));
}

/* The path takes short packets only: what is short keeps going both ways, and what is long
 * never comes. */
Test(verbs_sentences, an_mtu_that_does_not_fit)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    struct bny_hdr hdr = tpset_hdr(0, 1, 100000), brief = tpset_hdr(1, 1, 16);
    uint8_t *buf = calloc(1, 100000);
    struct tpset s;

    if (verbs_real_device()) {
        free(buf);
        return;
    }
    verbs_joined(&s, 2);
    verbs_sim.lost_above = 1024;
    tpset_send(&s, 0, 1, &hdr, buf, buf);
    while (tpset_count(&s, 0, BNY_EV_DOWN) == 0) {
        cr_assert(!bny_deadline_passed(deadline), "%llu replacements",
                  (unsigned long long)bny_counter_read(&s.tp[0]->replaced));
        s.ops->eager(s.ep[1][0], &brief, buf);
        tpset_step(&s);
        verbs_travel(&s, 0);
        while (tpset_count(&s, 0, BNY_EV_MSG))
            s.ops->release(tpset_wait(&s, 0, BNY_EV_MSG).msg);
    }
    expect(&s, 0, PARTS("device sim0 port 1", "MTU", "ibv_devinfo -d sim0 -i 1"));
    free(buf);
}

/* Two ports of 4096 and 1024 bytes: both ways the queue pair has the smaller, whoever asks. */
Test(verbs_sentences, ends_of_different_mtus_take_the_smaller)
{
    uint8_t *buf = calloc(1, 100000);
    struct tpset s;

    for (int asker = 0; asker < 2 && !verbs_real_device(); asker++) {
        struct bny_hdr hdr = tpset_hdr(0, 1, 100000), first = tpset_hdr(0, 0, 0);

        verbs_sim_use();
        verbs_sim.mtu[0] = IBV_MTU_4096;
        verbs_sim.mtu[1] = IBV_MTU_1024;
        tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
        tpset_eager(&s, asker, !asker, &first, NULL);
        s.ops->release(tpset_wait(&s, !asker, BNY_EV_MSG).msg);
        for (int from = 0; from < 2; from++) {
            struct bny_msg *m;

            hdr.seq = (uint32_t)(1 + from);
            tpset_send(&s, from, !from, &hdr, buf, buf);
            tpset_wait(&s, from, BNY_EV_SENT);
            m = tpset_wait(&s, !from, BNY_EV_MSG).msg;
            cr_assert_eq(m->hdr.len, 100000);
            s.ops->release(m);
        }
        cr_assert_eq(bny_counter_read(&s.tp[0]->replaced) +
                         bny_counter_read(&s.tp[1]->replaced),
                     0, "packets got lost");
        verbs_left(&s);
    }
    free(buf);
}

Test(verbs_sentences, an_mtu_that_the_manager_does_not_take)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim_use();
    verbs_sim.mtu[0] = IBV_MTU_4096;
    verbs_sim.mtu[1] = IBV_MTU_1024;
    verbs_sim.no_path = 1;
    tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
    asked(&s);
    expect(&s, 0,
           PARTS("device sim0", "1024 bytes", "4096", "one MTU", "ip link set INTERFACE mtu"));
}

Test(verbs_sentences, what_users_say_of_paths_is_done)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_sim_use();
    verbs_sim.tc = verbs_sim.sl = -1;
    verbs_joined(&s, 2);
    verbs_left(&s);
    cr_assert(verbs_sim.tc == -1 && verbs_sim.sl == -1, "nobody asked for it");
    cr_assert(verbs_sim.timeout == 18 && verbs_sim.retry == 6);
    set_key("BANYAN_VERBS=tc", "106");
    set_key("BANYAN_VERBS=sl", "3");
    set_key("BANYAN_VERBS=timeout", "16");
    set_key("BANYAN_VERBS=retry", "7");
    verbs_joined(&s, 2);
    verbs_left(&s);
    cr_assert_eq(verbs_sim.tc, 106);
    cr_assert_eq(verbs_sim.sl, 3);
    cr_assert_eq(verbs_sim.timeout, 16);
    cr_assert_eq(verbs_sim.retry, 7);
}

Test(verbs_sentences, a_device_with_short_queues)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    tpset_open(&s, bny_transport_find("verbs"), 2, NULL);
    verbs_sim.max_send_wr = 100;
    asked(&s);
    expect(&s, 0,
           PARTS("device sim0 port 1", "the device has 100", "max_qp_wr", "BANYAN_IFNAME"));
}

Test(verbs_sentences, a_wrong_key)
{
    struct tpset s;
    struct bny_window win;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    uint8_t *dst = calloc(1, 8192), *src = calloc(1, 8192);

    if (!verbs_real_device()) {
        verbs_joined(&s, 2);
        cr_assert_eq(s.ops->attach(s.tp[0], src, 8192), 0);
        cr_assert_eq(s.ops->attach(s.tp[1], dst, 8192), 0);
        cr_assert_eq(s.ops->window_open(s.ep[1][0], dst, 8192, &win), 0);
        win.key ^= 0xff;
        hdr.kind = BNY_MSG_PUT;
        cr_assert_eq(s.ops->put(s.ep[0][1], &hdr, src, 8192, &win, 0, src), 0);
        expect(&s, 0,
               PARTS("device sim0 port 1", "remote access error", "banyan_mem_deregister"));
    }
    free(dst);
    free(src);
}

Test(verbs_sentences, a_peer_that_is_dead)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    verbs_joined(&s, 2);
    tpset_destroy_rank(&s, 1);
    expect(&s, 0, PARTS("device sim0 port 1", "ended or was killed", "its log"));
}
