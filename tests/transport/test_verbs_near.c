/* SPDX-License-Identifier: BSD-3-Clause */
/* Which devices a rank takes where none is named: the choice by itself, the kernel's files, and
 * ranks that took different devices of one network. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "banyan/banyan.h"
#include "base/rng.h"
#include "tests/support/key.h"
#include "tests/support/verbs_ranks.h"
#include "tests/support/verbs_sim.h"
#include "transport/verbs/device_choice.h"

TestSuite(verbs_near, .timeout = 60);

/* ---- the choice ---- */

static void check_choice(const int *distance, int n, int ranks, int most)
{
    int load[8] = { 0 }, nearest = -1, near = 0, least, greatest = 0;

    for (int i = 0; i < n; i++)
        if (distance[i] >= 0 && (nearest < 0 || distance[i] < nearest))
            nearest = distance[i];
    for (int i = 0; i < n; i++)
        near += distance[i] == nearest;
    for (int r = 0; r < ranks; r++) {
        int chosen[8], again[8], equal,
            k = bny_verbs_near_choose(distance, n, r, most, chosen, &equal), here = 0;

        cr_assert_eq(k, most < n ? most : n);
        cr_assert_eq(equal, near);
        cr_assert_eq(bny_verbs_near_choose(distance, n, r, most, again, &equal), k);
        cr_assert_eq(memcmp(chosen, again, (size_t)k * sizeof *chosen), 0);
        for (int i = 0; i < k; i++) {
            cr_assert(chosen[i] >= 0 && chosen[i] < n && (!i || chosen[i] > chosen[i - 1]));
            here += distance[chosen[i]] == nearest;
            load[chosen[i]]++;
        }
        cr_assert_eq(here, k < near ? k : near, "%d of the nearest", here);
    }
    least = ranks;
    for (int i = 0; i < n; i++)
        if (distance[i] == nearest) {
            least = load[i] < least ? load[i] : least;
            greatest = load[i] > greatest ? load[i] : greatest;
        }
    cr_assert_leq(greatest - least, 1, "%d devices, %d ranks: from %d to %d", n, ranks, least,
                  greatest);
}

/* All distances out of three for up to five devices, some for more. */
Test(verbs_near, all_machines)
{
    static const int known[] = { VB_NEAR_SAME, 21, VB_FAR };
    uint64_t rng = 3;

    for (int n = 1; n <= 8; n++)
        for (int m = 0, all = n <= 5 ? (int[]){ 1, 3, 9, 27, 81, 243 }[n] : 200; m < all; m++) {
            int distance[8], code = n <= 5 ? m : (int)bny_rng_below(&rng, 6561);

            for (int i = 0; i < n; i++, code /= 3)
                distance[i] = known[code % 3];
            for (int ranks = 1; ranks <= 8; ranks++)
                for (int most = 1; most <= 4; most++)
                    check_choice(distance, n, ranks, most);
        }
}

/* ---- the kernel's files ---- */

static char root[64];

static void put(const char *text, const char *fmt, int a)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/", root);
    snprintf(path + strlen(path), sizeof path - strlen(path), fmt, a);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = 0;
        mkdir(path, 0700);
        *p = '/';
    }
    f = fopen(path, "w");
    cr_assert(f, "%s", path);
    fprintf(f, "%s\n", text);
    fclose(f);
}

/* Four devices of two NUMA nodes; the tests run on the CPUs of node 2, which is the second. */
static void machine(void)
{
    snprintf(root, sizeof root, "/tmp/verbs_near_XXXXXX");
    cr_assert(mkdtemp(root));
    put("0,2", "devices/system/node/online", 0);
    put("10 21", "devices/system/node/node%d/distance", 0);
    put("21 10", "devices/system/node/node%d/distance", 2);
    put("", "devices/system/node/node%d/cpulist", 0);
    put("0-1023", "devices/system/node/node%d/cpulist", 2);
    for (int i = 0; i < 4; i++) {
        put(i < 2 ? "0" : "2", "class/infiniband/sim%d/device/numa_node", i);
        put(i == 1 ? "1: DOWN" : "4: ACTIVE", "class/infiniband/sim%d/ports/1/state", i);
    }
    put("4: ACTIVE", "class/infiniband/sim%d/ports/1/state", 10);
    bny_verbs_near_root(root);
}

static void forget(void)
{
    char command[128];

    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
    bny_verbs_near_root(NULL);
}

static void check_look(const char *name, int node, int distance)
{
    struct vb_near d = { .port = 1 };
    cpu_set_t cpus;

    memset(&cpus, 0xff, sizeof cpus);
    snprintf(d.name, sizeof d.name, "%s", name);
    bny_verbs_near_look(&d, &cpus);
    cr_assert(d.node == node && d.distance == distance, "%s: node %d, distance %d", name,
              d.node, d.distance);
}

Test(verbs_near, what_the_kernel_says)
{
    struct vb_near d[8];
    char why[160];

    machine();
    check_look("sim0", 0, 21);
    check_look("sim3", 2, VB_NEAR_SAME);
    check_look("sim10", -1, VB_FAR);
    put("-1", "class/infiniband/sim%d/device/numa_node", 0);
    check_look("sim0", -1, VB_FAR);
    put("7", "class/infiniband/sim%d/device/numa_node", 0);
    check_look("sim0", 7, VB_FAR);
    put("two", "devices/system/node/node%d/distance", 2);
    check_look("sim3", 2, VB_FAR);
    cr_assert_eq(bny_verbs_near_list(d, 8), 4);
    cr_assert(!strcmp(d[0].name, "sim0") && !strcmp(d[1].name, "sim2") &&
                  !strcmp(d[3].name, "sim10"),
              "%s %s", d[1].name, d[3].name);
    d[0] = (struct vb_near){ .node = 1, .distance = VB_NEAR_SAME };
    cr_assert_str_eq(bny_verbs_near_why(&d[0], 1, 4, why, sizeof why),
                     "nearest of 4; NUMA node 1, as the rank");
    forget();
}

Test(verbs_near, the_local_rank)
{
    unsetenv("BANYAN_RANK");
    cr_assert_eq(bny_verbs_near_local(9), 9);
    setenv("SLURM_LOCALID", "3", 1);
    cr_assert_eq(bny_verbs_near_local(9), 3);
    setenv("SLURM_LOCALID", "-3", 1);
    cr_assert_eq(bny_verbs_near_local(9), 9);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2", 1);
    cr_assert_eq(bny_verbs_near_local(9), 2);
    setenv("BANYAN_RANK", "9", 1); /* of banyan_run in a job's script */
    cr_assert_eq(bny_verbs_near_local(9), 9);
    unsetenv("BANYAN_RANK");
    unsetenv("SLURM_LOCALID");
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
}

/* ---- ranks ---- */

static char said[20000];

static void hear(void *arg, enum banyan_log_level level, const char *line)
{
    size_t len = strlen(said);

    (void)level;
    (void)arg;
    snprintf(said + len, sizeof said - len, "%s\n", line);
}

/* Four ports of one InfiniBand network; ranks are told no device. */
static void four(void)
{
    verbs_sim =
        (struct verbs_sim){ .devices = 4, .one_network = 1, .unnamed = 1, .link_ib = 1 };
    verbs_sim.lid = 7;
    verbs_sim.gids[0].raw[0] = 0xfe;
    verbs_sim.gids[0].raw[1] = 0x80;
    verbs_sim.gids[0].raw[15] = 1;
    verbs_sim.gids[0].type = IBV_GID_TYPE_IB;
    set_key("BANYAN_VERBS=connect", "qp");
    set_key("BANYAN_VERBS=devices", NULL);
    set_key("BANYAN_VERBS=routed", NULL);
    unsetenv("BANYAN_RANK");
    machine();
}

static void check_rails(struct tpset *s, int rank, const char *first, const char *second)
{
    const struct vb_tp *t = (struct vb_tp *)s->tp[rank];

    cr_assert_eq(t->nrails, second ? 2 : 1, "%d rails", t->nrails);
    cr_assert_str_eq(t->rails[0].device, first);
    if (second)
        cr_assert_str_eq(t->rails[1].device, second);
}

/* Rail 0 of each is another device: they talk, and go on after queue pairs broke. */
Test(verbs_near, ranks_share_the_nearest)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    four();
    said[0] = 0;
    banyan_set_log(hear, NULL, BANYAN_LOG_INFO);
    verbs_joined(&s, 4);
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    for (int r = 0; r < 4; r++)
        check_rails(&s, r, r & 1 ? "sim3" : "sim2", NULL);
    cr_assert(strstr(said,
                     "device sim3 port 1 for local rank 1: one of the 2 nearest of 4, its "
                     "turn; NUMA node 2, as the rank"),
              "%s", said);
    verbs_stream(&s, &(struct verbs_stream){ .breaks = 3 });
    verbs_left(&s);
    forget();
}

Test(verbs_near, ranks_with_several)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    four();
    set_key("BANYAN_VERBS=devices", "2");
    put("0", "class/infiniband/sim%d/device/numa_node", 2); /* only sim3 is near */
    verbs_joined(&s, 2);
    check_rails(&s, 0, "sim0", "sim3");
    check_rails(&s, 1, "sim1", "sim3");
    verbs_lanes_joined(&s, 2);
    verbs_stream(&s, &(struct verbs_stream){ .breaks = 3 });
    verbs_left(&s);
    set_key("BANYAN_VERBS=devices", "0"); /* as the device list has it */
    verbs_joined(&s, 2);
    check_rails(&s, 0, "sim0", NULL);
    check_rails(&s, 1, "sim0", NULL);
    verbs_left(&s);
    forget();
}

/* A port that is down is not chosen, however near. */
Test(verbs_near, a_port_that_is_down)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    four();
    verbs_sim.dead_device = 3;
    verbs_joined(&s, 2);
    check_rails(&s, 0, "sim3", NULL);
    check_rails(&s, 1, "sim3", NULL);
    verbs_left(&s);
    forget();
}

/* Devices of other subnets may have no way to each other: all ranks take the first, unless told
 * that there is one. */
Test(verbs_near, devices_of_several_networks)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    four();
    memset(verbs_sim.gids, 0, sizeof verbs_sim.gids);
    verbs_sim.link_ib = 0;
    verbs_sim.one_network = 0;
    said[0] = 0;
    banyan_set_log(hear, NULL, BANYAN_LOG_INFO);
    verbs_joined(&s, 2);
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    check_rails(&s, 0, "sim0", NULL);
    check_rails(&s, 1, "sim0", NULL);
    cr_assert(strstr(said, "is on another network than sim0") &&
                  strstr(said, "BANYAN_VERBS=routed=1"),
              "%s", said);
    verbs_left(&s);
    verbs_sim.one_network = 1;
    set_key("BANYAN_VERBS=routed", "1");
    verbs_joined(&s, 2);
    check_rails(&s, 0, "sim2", NULL);
    check_rails(&s, 1, "sim3", NULL);
    verbs_stream(&s, &(struct verbs_stream){ .breaks = 0 });
    verbs_left(&s);
    set_key("BANYAN_VERBS=routed", NULL);
    forget();
}

/* Four addresses of an interface each, of one network, as rdma_cm wants them. */
static int addresses;

int __real_bny_net_candidates(struct bny_addr *out, int max, const char *ifname);
int __wrap_bny_net_candidates(struct bny_addr *out, int max, const char *ifname);

int __wrap_bny_net_candidates(struct bny_addr *out, int max, const char *ifname)
{
    if (!addresses || (ifname[0] && ifname[0] != '^'))
        return __real_bny_net_candidates(out, max, ifname);
    for (int i = 0; i < addresses && i < max; i++)
        out[i] = (struct bny_addr){ .family = 4, .ip = { 198, 51, 100, (uint8_t)(i + 1) } };
    return addresses < max ? addresses : max;
}

Test(verbs_near, ranks_share_the_nearest_where_rdma_cm_connects)
{
    struct tpset s;

    if (verbs_real_device())
        return;
    four();
    set_key("BANYAN_VERBS=connect", "cm");
    addresses = 4;
    said[0] = 0;
    banyan_set_log(hear, NULL, BANYAN_LOG_INFO);
    verbs_joined(&s, 4);
    banyan_set_log(NULL, NULL, BANYAN_LOG_WARN);
    for (int r = 0; r < 4; r++)
        check_rails(&s, r, r & 1 ? "sim3" : "sim2", NULL);
    cr_assert(strstr(said, "device sim3 port 1 for local rank 1: one of the 2 nearest of 4"),
              "%s", said);
    verbs_stream(&s, &(struct verbs_stream){ .breaks = 3 });
    verbs_left(&s);
    set_key("BANYAN_VERBS=devices", "2");
    put("0", "class/infiniband/sim%d/device/numa_node", 2); /* only sim3 is near */
    verbs_joined(&s, 2);
    check_rails(&s, 0, "sim0", "sim3");
    check_rails(&s, 1, "sim1", "sim3");
    verbs_left(&s);
    addresses = 0;
    set_key("BANYAN_VERBS=connect", "qp");
    forget();
}

static struct vb_port with(int type, const char *raw, int bits, int pkey)
{
    struct vb_port p = { .ngids = 1, .pkey = (uint16_t)pkey };

    p.gids[0].type = (uint8_t)type;
    p.gids[0].bits = (uint8_t)bits;
    memcpy(p.gids[0].raw, raw, 16);
    return p;
}

#define V4(c, d) "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x4d" c d

Test(verbs_near, what_is_one_network)
{
    struct vb_port a = with(IBV_GID_TYPE_ROCE_V2, V4("\1", "\1"), 120, 0xffff),
                   b = with(IBV_GID_TYPE_ROCE_V2, V4("\1", "\2"), 120, 0xffff),
                   c = with(IBV_GID_TYPE_ROCE_V2, V4("\2", "\1"), 120, 0xffff),
                   d = with(IBV_GID_TYPE_ROCE_V1, V4("\1", "\3"), 120, 0xffff),
                   e = with(IBV_GID_TYPE_ROCE_V2, V4("\1", "\4"), 120, 0x8001),
                   f = with(IBV_GID_TYPE_IB, "\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 0, 0xffff),
                   g = with(IBV_GID_TYPE_IB, "\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\2", 0, 0xffff),
                   h = with(IBV_GID_TYPE_IB, "\xfe\x80\0\0\0\0\0\1\0\0\0\0\0\0\0\3", 0, 0xffff);

    cr_assert(bny_verbs_port_meets(&a, &b));
    cr_assert(!bny_verbs_port_meets(&a, &c));
    cr_assert(!bny_verbs_port_meets(&a, &d));
    cr_assert(!bny_verbs_port_meets(&a, &e));
    cr_assert(!bny_verbs_port_meets(&a, &f));
    cr_assert(bny_verbs_port_meets(&f, &g));
    cr_assert(!bny_verbs_port_meets(&f, &h));
}
