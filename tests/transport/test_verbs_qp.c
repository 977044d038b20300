/* SPDX-License-Identifier: BSD-3-Clause */
/* Queue pairs that the ranks connect by themselves: which GID, key and MTU, what is turned
 * away, and who dies or lies on the way. Over the simulated device, whose queue pairs lose
 * every packet that does not fit all that both ends were told. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"
#include "tests/support/verbs_sim_inside.h"

TestSuite(verbs_qp, .timeout = 60);

static const struct bny_transport_ops *ops;

static void fresh(void)
{
    verbs_sim = (struct verbs_sim){ .seed = 5 };
    set_key("BANYAN_VERBS=connect", "auto");
    set_key("BANYAN_VERBS=gid_index", NULL);
    set_key("BANYAN_VERBS=pkey", NULL);
    ops = bny_transport_find("verbs");
}

static void gid(int index, const char *text, int type)
{
    cr_assert_eq(inet_pton(AF_INET6, text, verbs_sim.gids[index].raw), 1);
    verbs_sim.gids[index].type = type;
}

/* A rank by itself; its error. */
static int make(int rank, const char *ifname, struct bny_tp **tp)
{
    static const uint8_t secret[32] = "qp";
    struct bny_tp_config cfg = { .rank = rank,
                                 .nranks = 2,
                                 .nlocal = 2,
                                 .secret = secret,
                                 .ifname = ifname,
                                 .port_range = "" };

    verbs_sim_use();
    set_key("BANYAN_VERBS=rnr", "0");
    return ops->create(tp, &cfg);
}

static void refused(int code, const char *a, const char *b, const char *c)
{
    struct bny_tp *tp;

    cr_assert_eq(make(1, "lo", &tp), -code, "%s", banyan_last_error());
    cr_assert(strstr(banyan_last_error(), a) && strstr(banyan_last_error(), b) &&
                  strstr(banyan_last_error(), c),
              "\"%s\" lacks one of \"%s\", \"%s\", \"%s\"", banyan_last_error(), a, b, c);
    cr_assert_eq(verbs_sim.open, 0, "%d objects leaked", verbs_sim.open);
}

static void streamed(struct tpset *s)
{
    verbs_stream(s, &(struct verbs_stream){ .breaks = 0 });
}

/* ---- the way ---- */

/* Two ranks connect over it, and this is the GID that both use. */
static void uses(int index)
{
    struct tpset s;

    verbs_joined(&s, 2);
    cr_assert_eq(((struct vb_tp *)s.tp[0])->how, (unsigned)VB_HOW_QP);
    cr_assert_eq(verbs_sim.used_sgid, index, "GID %d, not %d", verbs_sim.used_sgid, index);
    streamed(&s);
    cr_assert_eq(verbs_sim.early, 0u, "packets came before their queue pair was ready");
    verbs_left(&s);
}

Test(verbs_qp, the_best_gid_of_a_table)
{
    fresh();
    uses(3); /* RoCE v2 with an IPv4 address */
    cr_assert_eq(verbs_sim.used_hops, 255);
    cr_assert_eq(verbs_sim.by_hand, 2u);
    fresh();
    gid(0, "fe80::1", IBV_GID_TYPE_ROCE_V2);
    gid(1, "fd00::1", IBV_GID_TYPE_ROCE_V2);
    gid(2, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V1);
    uses(1); /* v2 before v1, and link-local only where there is nothing else */
    fresh();
    gid(0, "fe80::1", IBV_GID_TYPE_ROCE_V1);
    gid(3, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V1);
    uses(3);
    fresh();
    gid(2, "fe80::1", IBV_GID_TYPE_ROCE_V2);
    uses(2);
    fresh();
    gid(1, "fd00::1", IBV_GID_TYPE_ROCE_V2);
    gid(2, "::ffff:10.0.0.1", IBV_GID_TYPE_ROCE_V2);
    uses(2);
    fresh(); /* an interface of another network namespace is none of ours */
    gid(1, "::ffff:10.0.0.9", IBV_GID_TYPE_ROCE_V2);
    verbs_sim.gids[1].netdev = 1 << 20;
    gid(2, "fd00::1", IBV_GID_TYPE_ROCE_V2);
    uses(2);
}

Test(verbs_qp, a_gid_that_was_named)
{
    fresh();
    set_key("BANYAN_VERBS=gid_index", "2");
    uses(2);
    set_key("BANYAN_VERBS=gid_index", "9");
    refused(BANYAN_ECONFIG, "rank 1: BANYAN_VERBS=gid_index=9", "device sim0 port 1",
            "show_gids");
    set_key("BANYAN_VERBS=gid_index", NULL);
    gid(0, "::", IBV_GID_TYPE_ROCE_V2);
    verbs_sim.gids[0].raw[0] = 1; /* no entry that is usable: an identifier of zeros */
    refused(BANYAN_ENOTSUP, "rank 1: device sim0 port 1", "no GID", "give it an address");
}

Test(verbs_qp, partition_keys)
{
    struct tpset s;

    fresh();
    verbs_sim.pkeys[0] = 0x7fff; /* a limited member: two of these do not talk */
    verbs_sim.pkeys[2] = 0x8001;
    verbs_joined(&s, 2);
    cr_assert_eq(verbs_sim.used_pkey, 2);
    verbs_left(&s);
    set_key("BANYAN_VERBS=pkey", "0x1"); /* whatever the membership */
    verbs_joined(&s, 2);
    cr_assert_eq(verbs_sim.used_pkey, 2);
    verbs_left(&s);
    set_key("BANYAN_VERBS=pkey", "0x8005");
    refused(BANYAN_ECONFIG, "rank 1: BANYAN_VERBS=pkey=0x8005", "0x7fff, 0x8001",
            "subnet manager");
}

static char said[1000];

static void hear(void *ctx, enum banyan_log_level level, const char *text)
{
    size_t len = strlen(said);

    if (level <= BANYAN_LOG_WARN)
        snprintf(said + len, sizeof said - len, "%s\n", text);
}

/* Are ranks of these settings a pair? If not, both say why. */
static int meet(const char *setting, const char *first, const char *second)
{
    struct bny_tp *tp[2];
    uint8_t blob[2][BNY_ADDR_MAX];
    int len[2], there;

    for (int r = 0; r < 2; r++) {
        set_key(setting, r ? second : first);
        cr_assert_eq(make(r, "lo", &tp[r]), 0, "%s", banyan_last_error());
        len[r] = ops->address(tp[r], blob[r], sizeof blob[r]);
        cr_assert_gt(len[r], 0);
    }
    set_key(setting, NULL);
    said[0] = 0;
    banyan_set_log(hear, NULL, BANYAN_LOG_WARN);
    there = ops->reachable(tp[0], 1, blob[1], (size_t)len[1]);
    cr_assert_eq(there, ops->reachable(tp[1], 0, blob[0], (size_t)len[0]));
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    for (int r = 0; r < 2; r++)
        ops->destroy(tp[r]);
    cr_assert_eq(there, !said[0], "%s", said);
    cr_assert(there || (strstr(said, "rank 0: device sim0 does not reach rank 1 by verbs") &&
                        strstr(said, "rank 1: device sim0 does not reach rank 0 by verbs")),
              "%s", said);
    return there;
}

Test(verbs_qp, ranks_that_cannot_meet_know_it_at_once)
{
    fresh();
    verbs_sim.pkeys[0] = 0x8001;
    verbs_sim.pkeys[1] = 0x8002;
    cr_assert_eq(meet("BANYAN_VERBS=gid_index", "1", "3"), 1);
    cr_assert_eq(meet("BANYAN_VERBS=gid_index", "2", "3"), 0, "RoCE v1 and v2");
    cr_assert(strstr(said, "no GID of one type") && strstr(said, "BANYAN_VERBS=gid_index"));
    cr_assert_eq(meet("BANYAN_VERBS=pkey", "0x8001", "1"), 1);
    cr_assert_eq(meet("BANYAN_VERBS=pkey", "0x8001", "0x8002"), 0);
    cr_assert(strstr(said, "8001 and 8002") && strstr(said, "BANYAN_VERBS=pkey"));
    cr_assert_eq(meet("BANYAN_VERBS=connect", "qp", "auto"), 1);
    cr_assert_eq(meet("BANYAN_VERBS=connect", "cm", "qp"), 0);
    cr_assert(strstr(said, "by rdma_cm") && strstr(said, "BANYAN_VERBS=connect"));
}

/* How memory that peers write to is registered, with this setting. */
static int relaxes(const char *setting, int no_iova2, int no_relaxed)
{
    struct tpset s;

    fresh();
    verbs_sim.no_iova2 = no_iova2;
    verbs_sim.no_relaxed = no_relaxed;
    verbs_sim_use();
    set_key("BANYAN_VERBS=relaxed_ordering", setting);
    verbs_joined(&s, 2);
    verbs_stream(&s, &(struct verbs_stream){ .breaks = 1 });
    verbs_left(&s);
    cr_assert(!verbs_sim.relaxed != !verbs_sim.strict, "%llu relaxed, %llu strict",
              (unsigned long long)verbs_sim.relaxed, (unsigned long long)verbs_sim.strict);
    return verbs_sim.relaxed > 0;
}

Test(verbs_qp, relaxed_ordering_is_asked_for_where_it_may_be)
{
    cr_assert_eq(relaxes("auto", 0, 0), 1);
    cr_assert_eq(relaxes("1", 0, 0), 1);
    cr_assert_eq(relaxes("0", 0, 0), 0);
    cr_assert_eq(relaxes("auto", 1, 0), 0, "an old rdma-core");
    cr_assert_eq(relaxes("auto", 0, 1), 0, "a device that refuses it");
    fresh();
    verbs_sim.no_iova2 = 1;
    verbs_sim_use();
    set_key("BANYAN_VERBS=relaxed_ordering", "1");
    refused(BANYAN_ENOTSUP, "rank 1: BANYAN_VERBS=relaxed_ordering=1 needs rdma-core 28",
            "update", "");
}

/* Of one type, but of two families: only their handshake sees it. */
Test(verbs_qp, a_pair_without_a_way_is_told)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);

    fresh();
    tpset_open(&s, ops, 2, NULL);
    for (int r = 0; r < 2; r++) {
        struct vb_port *p = &((struct vb_tp *)s.tp[r])->rails[0].port;

        p->gids[0] = p->gids[r ? 0 : 1]; /* rank 0: link-local, rank 1: IPv4 */
        p->ngids = 1;
    }
    s.ops->eager(s.ep[0][1], &hdr, NULL);
    verbs_expect_down(&s, 0, "cannot take the connection");
    tpset_close(&s);
}

/* The kernel filled the table anew, as after ip link down and up: the same GID at another
 * place. */
Test(verbs_qp, a_gid_that_moves_is_found_again)
{
    struct tpset s;

    fresh();
    gid(1, "fd00::1", IBV_GID_TYPE_ROCE_V2);
    verbs_joined(&s, 2);
    cr_assert_eq(verbs_sim.used_sgid, 1);
    verbs_sim.gids[3] = verbs_sim.gids[1];
    memset(&verbs_sim.gids[1], 0, sizeof verbs_sim.gids[1]);
    for (int r = 0; r < 2; r++) /* one of the two takes it, and both have the device */
        for (int i = 0; i < 1000; i++) {
            if (((struct vb_tp *)s.tp[r])->rails[0].port.gids[0].index == 3)
                break;
            verbs_sim.event = (int)IBV_EVENT_GID_CHANGE + 1;
            tpset_step(&s);
        }
    verbs_stream(&s, &(struct verbs_stream){ .breaks = 2 });
    cr_assert_eq(verbs_sim.used_sgid, 3);
    verbs_left(&s);
}

Test(verbs_qp, infiniband_goes_by_lid)
{
    fresh();
    verbs_sim.link_ib = 1;
    gid(0, "fe80::2:c903:1", IBV_GID_TYPE_IB);
    refused(BANYAN_ENOTSUP, "rank 1: device sim0 port 1 has no LID", "subnet manager",
            "opensm");
    verbs_sim.lid = 7;
    uses(-1);
}

Test(verbs_qp, the_smaller_mtu)
{
    struct tpset s;

    fresh();
    for (int small = 0; small < 2; small++) {
        tpset_open(&s, ops, 2, NULL);
        ((struct vb_tp *)s.tp[small])->rails[0].mtu = IBV_MTU_1024;
        streamed(&s);
        for (int r = 0; r < 2; r++)
            cr_assert_eq(((struct sim_qp *)verbs_conn(&s, r, !r)->id->qp)->mtu, 1024u);
        verbs_left(&s);
    }
}

Test(verbs_qp, the_traffic_class_and_the_times)
{
    struct tpset s;

    fresh();
    set_key("BANYAN_VERBS=tc", "106");
    set_key("BANYAN_VERBS=sl", "3");
    set_key("BANYAN_VERBS=timeout", "16");
    set_key("BANYAN_VERBS=retry", "5");
    verbs_joined(&s, 2);
    cr_assert(verbs_sim.tc == 106 && verbs_sim.sl == 3 && verbs_sim.timeout == 16 &&
              verbs_sim.retry == 5);
    verbs_left(&s);
}

Test(verbs_qp, iwarp_is_left_to_rdma_cm)
{
    struct tpset s;

    fresh();
    verbs_sim.no_immediates = 1;
    verbs_joined(&s, 2);
    cr_assert_eq(((struct vb_tp *)s.tp[0])->how, (unsigned)VB_HOW_CM);
    cr_assert_eq(verbs_sim.by_hand, 0u);
    verbs_left(&s);
    set_key("BANYAN_VERBS=connect", "qp");
    refused(BANYAN_ENOTSUP, "rank 1: no RDMA device", "iWARP", "BANYAN_VERBS=connect=cm");
}

/* ---- who lies, and who dies ---- */

static int call_listener(struct tpset *s, int rank)
{
    struct sockaddr_storage ss;
    socklen_t len = bny_addr_sockaddr(&((struct vb_tp *)s->tp[rank])->rails[0].addr, &ss);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    cr_assert_eq(connect(fd, (struct sockaddr *)&ss, len), 0);
    return fd;
}

enum { OFFER = 28 + VB_GIDS * 24 + 64 + 32 };

/* Bytes of strangers: by chance, and with what an offer begins with; whole, short, and too
 * long. The ranks do not mind, and nothing stays. */
Test(verbs_qp, strangers)
{
    uint64_t rng = 11;
    struct tpset s;
    int fds[40];

    fresh();
    signal(SIGPIPE, SIG_IGN);
    setenv("BANYAN_DEBUG", "error", 1);
    tpset_open(&s, ops, 2, NULL);
    for (int i = 0; i < 40; i++) {
        uint8_t bytes[OFFER + 50];
        size_t len = i % 4 == 3 ? bny_rng_below(&rng, OFFER) : OFFER + (i % 4 == 2 ? 50 : 0);

        for (size_t k = 0; k < sizeof bytes; k++)
            bytes[k] = (uint8_t)bny_rng_below(&rng, 256);
        memcpy(bytes, "bnyQ", i % 4 ? 4 : 0);
        bytes[6] = i % 8 == 1 ? 1 : bytes[6];
        bytes[7] = i % 8 == 5 ? 200 : bytes[7];
        fds[i] = call_listener(&s, i & 1);
        (void)!write(fds[i], bytes, len);
        for (int k = 0; k < 5; k++)
            tpset_step(&s);
    }
    streamed(&s);
    for (int i = 0; i < 40; i++)
        close(fds[i]);
    cr_assert_gt(
        ((struct vb_tp *)s.tp[0])->turned_away + ((struct vb_tp *)s.tp[1])->turned_away, 10u);
    verbs_left(&s);
}

/* It speaks the protocol, but has another secret: it gets neither a queue pair nor memory,
 * whoever connects. */
struct way {
    char connects[4];
};

static struct way ways[] = { { "qp" }, { "cm" } };

ParameterizedTestParameters(verbs_qp, who_proves_nothing_costs_nothing)
{
    return cr_make_param_array(struct way, ways, sizeof ways / sizeof ways[0]);
}

ParameterizedTest(struct way *w, verbs_qp, who_proves_nothing_costs_nothing, .timeout = 60)
{
    struct tpset s;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_event ev = { .kind = BNY_EV_MSG };
    struct bny_tp *stranger;
    struct bny_ep *ep;

    fresh();
    set_key("BANYAN_VERBS=connect", w->connects);
    tpset_open(&s, ops, 2, NULL);
    cr_assert_eq(make(0, "lo", &stranger), 0, "%s", banyan_last_error());
    ops->destroy(s.tp[0]);
    s.tp[0] = stranger;
    cr_assert_eq(ops->connect(stranger, 1, s.blob[1], (size_t)s.blob_len[1], &ep), 0);
    for (int i = 0; i < 100000 && ev.kind != BNY_EV_DOWN; i++) {
        struct bny_event none;

        ops->eager(ep, &hdr, NULL);
        cr_assert_eq(ops->poll(s.tp[1], &none, 1), 0);
        cr_assert_eq(((struct vb_tp *)s.tp[1])->nhalf, 0u, "a stranger has a queue pair");
        ops->poll(stranger, &ev, 1);
    }
    cr_assert_eq(ev.kind, BNY_EV_DOWN);
    cr_assert(strstr(ev.reason, "another secret"), "%s", ev.reason);
    cr_assert_eq(verbs_sim.by_hand, 0u);
    tpset_close(&s);
}

/* Another program has the port, and sends first: it gets no offer. */
Test(verbs_qp, a_greeting_of_another_protocol_gets_no_offer)
{
    static const char greeting[32] = "220 a mail server, which greets";
    struct bny_addr at = bny_addr_loopback(0), from;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_event ev;
    struct vb_blob blob;
    struct bny_tp *tp;
    struct bny_ep *ep;
    ssize_t n = -1;
    char byte;
    int listener = bny_net_listen_at(&at, 4), fd = -1, len;

    fresh();
    cr_assert_geq(listener, 0);
    cr_assert_eq(make(0, "lo", &tp), 0, "%s", banyan_last_error());
    len = ops->address(tp, &blob, sizeof blob);
    cr_assert_gt(len, 0);
    blob.rank = 1;
    for (int i = 0; i < blob.nrails; i++)
        blob.rail[i].addr = at;
    cr_assert_eq(ops->connect(tp, 1, &blob, (size_t)len, &ep), 0, "%s", banyan_last_error());
    for (int i = 0; i < 100000 && fd < 0; i++) {
        ops->eager(ep, &hdr, NULL);
        cr_assert_geq(ops->poll(tp, &ev, 1), 0);
        fd = bny_net_accept(listener, &from);
    }
    cr_assert_eq(write(fd, greeting, sizeof greeting), (ssize_t)sizeof greeting);
    for (int i = 0; i < 100000 && n < 0; i++) {
        cr_assert_geq(ops->poll(tp, &ev, 1), 0);
        n = recv(fd, &byte, 1, MSG_DONTWAIT);
        n = n < 0 && errno == ECONNRESET ? 0 : n;
    }
    cr_assert_eq(n, 0, "it got %zd", n);
    ops->destroy(tp);
    close(fd);
    close(listener);
}

/* They hold no places that ranks need: more of them than may ring at once. */
Test(verbs_qp, strangers_that_say_nothing)
{
    struct tpset s;
    int fds[300];

    fresh();
    tpset_open(&s, ops, 2, NULL);
    for (int i = 0; i < 300; i++) {
        fds[i] = call_listener(&s, 1);
        if (i % 20 == 0)
            verbs_travel(&s, 0);
        tpset_step(&s);
    }
    streamed(&s);
    for (int i = 0; i < 300; i++)
        close(fds[i]);
    verbs_left(&s);
}

/* No descriptor for a connection: it is told, and made when there is one. */
Test(verbs_qp, no_descriptors)
{
    struct rlimit old, none;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct tpset s;
    int fd;

    fresh();
    tpset_open(&s, ops, 2, NULL);
    getrlimit(RLIMIT_NOFILE, &old);
    fd = dup(0);
    none = old;
    none.rlim_cur = (rlim_t)fd + 1; /* the asker's is the last */
    close(fd);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    s.ops->eager(s.ep[0][1], &hdr, NULL);
    for (int i = 0; i < 2000; i++)
        tpset_step(&s);
    cr_assert_eq(tpset_count(&s, 0, BNY_EV_DOWN), 0);
    cr_assert_neq(((struct vb_ep *)s.ep[0][1])->state, (unsigned)VB_OPEN);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    verbs_travel(&s, 0);
    streamed(&s);
    verbs_left(&s);
}

static void until(struct tpset *s, enum vb_state state)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);

    while (((struct vb_ep *)s->ep[0][1])->state != state) {
        cr_assert(!bny_deadline_passed(deadline));
        tpset_step(s);
    }
}

/* At each of its steps: the asked rank is gone, and that is told. */
Test(verbs_qp, a_rank_that_dies_in_the_handshake)
{
    static const enum vb_state states[] = { VB_ADDR, VB_ASKING };
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct tpset s;

    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        fresh();
        tpset_open(&s, ops, 2, NULL);
        s.paused[1] = 1;
        s.ops->eager(s.ep[0][1], &hdr, NULL);
        until(&s, states[i]);
        tpset_destroy_rank(&s, 1);
        for (uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
             !tpset_count(&s, 0, BNY_EV_DOWN);) {
            cr_assert(!bny_deadline_passed(deadline), "from state %d", states[i]);
            verbs_travel(&s, 0);
            s.ops->eager(s.ep[0][1], &hdr, NULL);
            tpset_step(&s);
        }
        verbs_expect_down(&s, 0, "ended");
        tpset_close(&s);
        cr_assert_eq(verbs_sim.open, 0);
    }
}

/* A number that is no queue pair's any more: what was sent there is lost, and goes once more.
 */
Test(verbs_qp, stale_numbers)
{
    struct tpset s;

    fresh();
    verbs_joined(&s, 2);
    ((struct sim_qp *)verbs_conn(&s, 0, 1)->id->qp)->dest = 0xfffff;
    streamed(&s);
    cr_assert_gt(bny_counter_read(&s.tp[0]->replaced), 0u);
    verbs_left(&s);
}

/* A device that refuses the way: a sentence says so at both ends. */
Test(verbs_qp, a_way_that_the_device_refuses)
{
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct tpset s;

    fresh();
    tpset_open(&s, ops, 2, NULL);
    verbs_sim.no_rtr = ETIMEDOUT;
    s.ops->eager(s.ep[0][1], &hdr, NULL);
    verbs_expect_down(&s, 0, "cannot take the connection of device sim0 port 1");
    tpset_close(&s);
}

/* ---- packets that take ways of their own ---- */

/* With and without immediates of their own, and ranks that differ in it; whole where queue
 * pairs break. */
Test(verbs_qp, adaptive_routing)
{
    static const char *const qps[] = { "1", "3" };

    for (int i = 0; i < 8; i++) {
        struct tpset s;
        uint64_t before;

        fresh();
        verbs_sim.seed = 40 + (uint64_t)i;
        verbs_sim.reorders = 1;
        set_key("BANYAN_VERBS=ar", i & 1 ? "1" : "0");
        set_key("BANYAN_VERBS=qps", qps[i >> 1 & 1]);
        setenv("BANYAN_DEBUG", "error", 1);
        verbs_joined(&s, 2);
        verbs_lanes_joined(&s, (uint32_t)atoi(qps[i >> 1 & 1]));
        before = verbs_sim.long_imms;
        verbs_stream(&s, &(struct verbs_stream){ .breaks = i < 4 ? 0 : 3, .seed = 9 });
        cr_assert_gt(verbs_sim.packets, 1000u);
        cr_assert_eq(verbs_sim.long_imms == before, i & 1, "%llu long immediates",
                     (unsigned long long)(verbs_sim.long_imms - before));
        verbs_left(&s);
    }
    fresh();
}

/* Auto: InfiniBand, where switches may do it for all that has its service level; not RoCE. */
Test(verbs_qp, adaptive_routing_by_network)
{
    struct bny_tp *tp;

    fresh();
    set_key("BANYAN_VERBS=ar", NULL);
    cr_assert_eq(make(1, "lo", &tp), 0, "%s", banyan_last_error());
    cr_assert_eq(((struct vb_tp *)tp)->apart, 0);
    ops->destroy(tp);
    verbs_sim.link_ib = 1;
    verbs_sim.lid = 7;
    gid(0, "fe80::2:c903:1", IBV_GID_TYPE_IB);
    cr_assert_eq(make(1, "lo", &tp), 0, "%s", banyan_last_error());
    cr_assert_eq(((struct vb_tp *)tp)->apart, 1);
    ops->destroy(tp);
}

/* ---- limits, and what the device tells ---- */

/* Rank 0 sends until rank `who` fails, for want of what only it lacks. Nobody is said to be
 * gone.
 */
static void lacks(struct tpset *s, int who, int code, const char *a, const char *b)
{
    uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    struct bny_event ev;
    int rc;

    do {
        cr_assert(!bny_deadline_passed(deadline), "rank %d does not fail", who);
        cr_assert_eq(s->ops->eager(s->ep[0][1], &hdr, NULL), BNY_AGAIN);
        cr_assert_eq(s->ops->poll(s->tp[!who], &ev, 1), 0);
        rc = s->ops->poll(s->tp[who], &ev, 1);
        cr_assert_leq(rc, 0, "an event, of kind %d", (int)ev.kind);
    } while (rc == 0);
    cr_assert_eq(rc, code);
    cr_assert(strstr(banyan_last_error(), "no connections to other ranks: ") &&
                  strstr(banyan_last_error(), a) && strstr(banyan_last_error(), b),
              "\"%s\" lacks \"%s\" or \"%s\"", banyan_last_error(), a, b);
}

static void lacks_queue_pairs(int max_qp, int who, const char *a, const char *b)
{
    struct tpset s;

    fresh();
    verbs_sim.max_qp = max_qp;
    tpset_open(&s, ops, 2, NULL);
    lacks(&s, who, -BANYAN_ENOMEM, a, b);
    verbs_sim.max_qp = 0;
    tpset_close(&s);
    cr_assert_eq(verbs_sim.open, 0, "%d objects leaked", verbs_sim.open);
}

/* What a rank lacks for a connection is its own failure, and not its peer's; what comes before
 * that is noticed at all, or behind it, is there. */
Test(verbs_qp, who_lacks_something_is_told)
{
    struct rlimit limit, none;
    struct tpset s;
    uint64_t until;
    struct bny_hdr hdr = tpset_hdr(0, 1, 0);
    int next;

    lacks_queue_pairs(-1, 0, "creating a queue pair", "it has -1 for all processes");
    lacks_queue_pairs(1, 1, "creating a queue pair", "rdma resource"); /* of both together */

    fresh(); /* for a second only */
    verbs_sim.max_qp = 1;
    tpset_open(&s, ops, 2, NULL);
    until = bny_deadline_in(1);
    do {
        cr_assert_eq(s.ops->eager(s.ep[0][1], &hdr, NULL), BNY_AGAIN);
        tpset_step(&s);
    } while (!bny_deadline_passed(until));
    verbs_sim.max_qp = 0;
    tpset_eager(&s, 0, 1, &hdr, NULL);
    tpset_wait(&s, 1, BNY_EV_MSG);
    tpset_close(&s);

    fresh(); /* descriptors */
    tpset_open(&s, ops, 2, NULL);
    getrlimit(RLIMIT_NOFILE, &limit);
    next = open("/dev/null", O_RDONLY);
    none = limit;
    none.rlim_cur = (rlim_t)next;
    setrlimit(RLIMIT_NOFILE, &none);
    close(next);
    while (dup(0) >= 0) /* what is free below it */
        ;
    lacks(&s, 0, -BANYAN_ESYSTEM, "Too many open files", "raise ulimit -n");
    setrlimit(RLIMIT_NOFILE, &limit);
    tpset_close(&s);
}

static char memory[1 << 20];

Test(verbs_qp, limits_are_told)
{
    struct tpset s;

    fresh();
    verbs_sim.max_cqe = 70;
    refused(BANYAN_ENOTSUP, "needs room for 78 entries", "the device has 70", "BANYAN_IFNAME");
    fresh();
    set_key("BANYAN_VERBS=ar", "1");
    verbs_sim.max_cqe = 80;
    refused(BANYAN_ENOTSUP, "needs room for 82 entries", "the device has 80",
            "BANYAN_TRANSPORT=tcp");
    set_key("BANYAN_VERBS=ar", NULL);
    fresh();
    verbs_sim.max_send_wr = 32;
    refused(BANYAN_ENOTSUP, "needs room for 39 requests", "the device has 32 (max_qp_wr",
            "BANYAN_TRANSPORT=tcp");
    fresh();
    verbs_sim.max_cqe = 834; /* as many as one needs: a queue for each */
    verbs_joined(&s, 4);
    verbs_left(&s);
    fresh();
    verbs_sim.max_mr_size = 4u << 20;
    verbs_joined(&s, 2);
    cr_assert_eq(ops->attach(s.tp[0], memory, 5u << 20), -BANYAN_ENOTSUP);
    cr_assert(strstr(banyan_last_error(), "rank 0: device sim0 registers 4194304 bytes") &&
                  strstr(banyan_last_error(), "5242880"),
              "%s", banyan_last_error());
    cr_assert_eq(ops->attach(s.tp[0], memory, sizeof memory), 0);
    cr_assert_eq(ops->detach(s.tp[0], memory), 0);
    verbs_left(&s);
}

/* A queue pair in error, of which only an event tells: it is replaced, and nothing is lost.
 * With notes as well. */
Test(verbs_qp, events_of_queue_pairs)
{
    static const int events[] = { IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
                                  IBV_EVENT_QP_ACCESS_ERR };

    for (int i = 0; i < 6; i++) {
        struct tpset s;

        fresh();
        set_key("BANYAN_VERBS=notify", i & 1 ? "1" : "0");
        verbs_joined(&s, 2);
        verbs_sim.broken_qp = verbs_conn(&s, 0, 1)->id->qp;
        verbs_sim.broken_qp_event = events[i >> 1];
        for (uint64_t deadline = bny_deadline_in(TPSET_DEADLINE_S);
             !bny_counter_read(&s.tp[0]->replaced);) {
            cr_assert(!bny_deadline_passed(deadline), "event %d is not heard", events[i >> 1]);
            verbs_travel(&s, 0);
            tpset_step(&s);
        }
        streamed(&s);
        verbs_left(&s);
    }
    set_key("BANYAN_VERBS=notify", NULL);
}

/* ---- memory ---- */

/* Flags of the mapping that has this address, as /proc/self/smaps has them. */
static void flags_of(const void *at, char *out, size_t cap)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    unsigned long from, to;
    char line[400];
    int inside = 0;

    out[0] = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = (uintptr_t)at >= from && (uintptr_t)at < to;
        if (inside && !strncmp(line, "VmFlags:", 8))
            snprintf(out, cap, "%.150s", line + 8);
    }
    if (f)
        fclose(f);
}

/* Slabs are whole, on large pages where there are such, and no child's. */
Test(verbs_qp, slabs_are_not_inherited)
{
    struct tpset s;
    char flags[200];
    char *slab;

    fresh();
    verbs_joined(&s, 2);
    slab = verbs_conn(&s, 0, 1)->peer->slab;
    cr_assert_eq((uintptr_t)slab % (2u << 20), 0u);
    for (size_t at = 0; at < 2 * (size_t)VB_SLAB_BYTES; at += VB_SLAB_BYTES) {
        flags_of(slab + at, flags, sizeof flags);
        cr_assert(strstr(flags, " dc"), "a child gets it: %s", flags);
    }
    flags_of(slab + 2 * (size_t)VB_SLAB_BYTES - 1, flags, sizeof flags);
    cr_assert(strstr(flags, " dc"), "a child gets its end: %s", flags);
    streamed(&s);
    verbs_left(&s);
}

/* The connections that carry offers keep to the ports that a firewall lets through. */
Test(verbs_qp, ports)
{
    static const uint8_t secret[32] = "qp";
    struct bny_tp_config cfg = { .nranks = 2, .nlocal = 2, .secret = secret, .ifname = "lo" };
    struct bny_tp *tp, *none;
    char range[32];
    uint16_t port;

    fresh();
    cr_assert_eq(make(0, "lo", &tp), 0); /* which port is free? */
    port = ((struct vb_tp *)tp)->rails[0].addr.port;
    ops->destroy(tp);
    snprintf(range, sizeof range, "%u-%u", port, port);
    cfg.port_range = range;
    cr_assert_eq(ops->create(&tp, &cfg), 0, "%s", banyan_last_error());
    cr_assert_eq(((struct vb_tp *)tp)->rails[0].addr.port, port);
    cfg.rank = 1;
    cr_assert_eq(ops->create(&none, &cfg), -BANYAN_ENOTSUP);
    cr_assert(strstr(banyan_last_error(), "rank 1: device sim0 port 1") &&
                  strstr(banyan_last_error(), "BANYAN_PORT_RANGE"),
              "%s", banyan_last_error());
    ops->destroy(tp);
    cr_assert_eq(verbs_sim.open, 0);
}
