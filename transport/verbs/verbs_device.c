/* SPDX-License-Identifier: BSD-3-Clause */
/* A rail's device, port and address, and the messages about them. If rdma_cm makes connections
 * the address decides: rdma_cm takes the GID of this address; verbs_route.c has the MTU,
 * verbs_port.c the choice if the ranks make connections. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/verbs/lane.h"
#include "transport/verbs/device_choice.h"

struct sockaddr *bny_verbs_sockaddr(const struct bny_addr *a, struct sockaddr_storage *ss)
{
    bny_addr_sockaddr(a, ss);
    return (struct sockaddr *)ss;
}

/* One log line about a connection and its parameters. */
void bny_verbs_describe(struct vb_lane *c, int rank)
{
    struct ibv_qp_init_attr init;
    struct ibv_qp_attr attr;
    const uint8_t *g = c->id->route.addr.addr.ibaddr.sgid.raw;
    char gid[INET6_ADDRSTRLEN] = "", at[BNY_ADDR_TEXT], lane[24] = "";
    unsigned mtu = 0;

    if (!bny_log_enabled(BANYAN_LOG_INFO))
        return;
    if (c->t->fn->ibv_query_qp(c->id->qp, &attr, IBV_QP_PATH_MTU, &init) == 0)
        mtu = 128u << attr.path_mtu;
    inet_ntop(AF_INET6, g, gid, sizeof gid);
    if (c->e->lane)
        snprintf(lane, sizeof lane, ", lane %u", c->e->lane);
    bny_info(
        "verbs: rank %d is connected over device %s port %u%s: MTU %u (ours is %u, its own "
        "%u), GID %s "
        "(of our address %s), inline up to %u bytes, random packet numbers; it took %.0f ms",
        rank, c->rail->device, c->id->port_num, lane, mtu, bny_verbs_mtu_bytes(c->rail->mtu),
        bny_verbs_mtu_bytes(c->e->main->blob.rail[c->rail->index].mtu), gid,
        bny_addr_text(&c->rail->addr, at), c->inline_max,
        (double)(bny_now_ns() - c->born_ns) / 1e6);
}

/* ---- what to do ---- */

static void host_text(const struct bny_addr *a, char *out, size_t cap)
{
    if (!inet_ntop(a->family == 6 ? AF_INET6 : AF_INET, a->ip, out, (socklen_t)cap))
        snprintf(out, cap, "its address");
}

const char *bny_verbs_path_remedy(const struct vb_ep *e, const struct vb_rail *rail, char *out)
{
    char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN];
    unsigned port = rail->listener->port_num;

    host_text(&rail->addr, from, sizeof from);
    host_text(&e->main->blob.rail[rail->index].addr, to, sizeof to);
    snprintf(out, VB_REMEDY,
             "check that the ports of both ends are up and have one MTU (ibv_devinfo -d %.24s "
             "-i %u, there too), and ping -I %.45s %.45s",
             rail->device, port, from, to);
    return out;
}

const char *bny_verbs_remedy(const struct vb_lane *c, enum ibv_wc_status status, char *out)
{
    const char *text = "see dmesg at both ends";

    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR: return bny_verbs_path_remedy(c->e, c->rail, out);
    case IBV_WC_REM_ACCESS_ERR:
        text = "a key is not valid there: memory was freed, or given to banyan_mem_deregister, "
               "before all ranks were done "
               "with it";
        break;
    case IBV_WC_LOC_PROT_ERR:
        text = "a key is not valid here: memory was freed, or given to banyan_mem_deregister, "
               "before it was sent";
        break;
    case IBV_WC_RNR_RETRY_EXC_ERR:
        text = "it was not ready to receive: set BANYAN_VERBS=rnr=6, and report it";
        break;
    case IBV_WC_LOC_QP_OP_ERR: text = "see that its interface is up: rdma link, ip link"; break;
    case IBV_WC_WR_FLUSH_ERR:
        text = "the other end broke it: see its log, and dmesg at both ends";
        break;
    default: break;
    }
    snprintf(out, VB_REMEDY, "%s", text);
    return out;
}

/* ---- which ---- */

/* "name" or "name:port" of a device. */
struct wanted {
    char name[64];
    int port; /* 0: any */
};

static struct wanted verbs_device_split(const char *text)
{
    struct wanted w = { .port = 0 };
    const char *colon = strchr(text, ':');

    snprintf(w.name, sizeof w.name, "%.*s",
             colon && colon - text < 63 ? (int)(colon - text) : 63, text);
    if (colon)
        w.port = atoi(colon + 1);
    return w;
}

static int first_line(const char *path, char *out, int cap)
{
    FILE *f = fopen(path, "re");

    out[0] = 0;
    if (!f)
        return 0;
    if (fgets(out, cap, f))
        out[strcspn(out, "\n")] = 0;
    fclose(f);
    return out[0] != 0;
}

/* Why no port of this name can listen, and the remedy. */
static void explain(const struct wanted *w, char *out, size_t cap)
{
    char path[160], text[64];

    snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/%d/state", w->name,
             w->port ? w->port : 1);
    if (w->name[0] && first_line(path, text, sizeof text)) {
        snprintf(out, cap,
                 "port %d of device %s is in state %s, and an address must be on its "
                 "interface: ibv_devinfo -d %s; "
                 "ip addr",
                 w->port ? w->port : 1, w->name, text, w->name);
        return;
    }
    snprintf(path, sizeof path, "/sys/class/net/%s/operstate", w->name);
    if (w->name[0] && first_line(path, text, sizeof text) && !strcmp(text, "down")) {
        snprintf(out, cap, "interface %s is down: ip link set %s up", w->name, w->name);
        return;
    }
    snprintf(out, cap,
             "no address of interfaces or device \"%s\" belongs to an RDMA device; see "
             "ibv_devices and rdma link; "
             "soft-RoCE: rdma link add rxe0 type rxe netdev eth0",
             w->name);
}

/* Listens at the address if it belongs to an RDMA device (this one, unless NULL) that is not a
 * rail yet. Returns 1: yes; 0: it does not; or the device's refusal. */
static int listen_at(struct vb_tp *t, struct vb_rail *rail, const struct bny_addr *a,
                     const struct wanted *device)
{
    struct sockaddr_storage ss;
    struct rdma_cm_id *id;

    if ((bny_addr_is_loopback(a) && !t->fn->loopback) ||
        t->fn->rdma_create_id(t->events, &id, NULL, RDMA_PS_TCP) != 0)
        return 0;
    if (t->fn->rdma_bind_addr(id, bny_verbs_sockaddr(a, &ss)) != 0 || !id->verbs ||
        bny_verbs_rail_of(t, id) ||
        (device && (strcmp(id->verbs->device->name, device->name) != 0 ||
                    (device->port && device->port != id->port_num)))) {
        t->fn->rdma_destroy_id(id);
        return 0;
    }
    if (t->fn->rdma_listen(id, VB_BACKLOG(t->tp.nranks)) != 0) {
        int rc = bny_fail(
            BANYAN_ENOTSUP,
            "rank %d: device %s port %u does not listen for connections: %s; see dmesg, and "
            "rdma resource",
            t->tp.rank, id->verbs->device->name, id->port_num, strerror(errno));

        t->fn->rdma_destroy_id(id);
        return rc;
    }
    rail->listener = id;
    rail->ctx = id->verbs;
    snprintf(rail->device, sizeof rail->device, "%s", id->verbs->device->name);
    snprintf(rail->at, sizeof rail->at, "%s port %u", rail->device, id->port_num);
    rail->addr = *a;
    rail->addr.port = ntohs(t->fn->rdma_get_src_port(id));
    return 1;
}

int bny_verbs_listen(struct vb_tp *t, struct vb_rail *rail, const char *name)
{
    struct bny_addr addrs[BNY_NET_CANDIDATES_MAX];
    struct wanted named = verbs_device_split(name), *device = NULL;
    char why[384], interface[32];
    int n = bny_net_candidates(addrs, BNY_NET_CANDIDATES_MAX, name), refused = 0;

    if (bny_net_device(name, interface, sizeof interface))
        device = &named;
    if (t->how == VB_HOW_QP) {
        int rc = bny_verbs_port_listen(t, rail, name);

        if (rc != VB_NO_PORT)
            return rc;
        n = 0;
    } else if (n < 0) { /* no interface of that name: possibly a device */
        device = &named;
        n = bny_net_candidates(addrs, BNY_NET_CANDIDATES_MAX, "");
        if (n < 0)
            return n;
    }
    for (int i = 0; i < n; i++) {
        int rc = listen_at(t, rail, &addrs[i], device);

        if (rc > 0)
            return 0;
        refused = rc < 0 ? rc : refused;
    }
    if (refused)
        return refused;
    explain(&named, why, sizeof why);
    return bny_fail(BANYAN_ENOTSUP, "rank %d: transport verbs: %s", t->tp.rank, why);
}

/* ---- where none is named ---- */

static int near_by_name(const void *a, const void *b)
{
    const struct vb_near *p = a, *q = b;
    int c = strverscmp(p->name, q->name);

    return c ? c : p->port - q->port;
}

/* Is this address on the first one's network? Yes if no interface decides. */
static int shares(const struct bny_subnet *nets, int n, const struct bny_addr *first,
                  const struct bny_addr *a)
{
    int known = 0;

    for (int i = 0; i < n; i++) {
        known |= bny_subnet_has(&nets[i], first);
        if (bny_subnet_has(&nets[i], first) && bny_subnet_has(&nets[i], a))
            return 1;
    }
    return !known;
}

/* Gets the device of each address from rdma_cm, once. */
static int list_devices(struct vb_tp *t, struct rdma_event_channel *channel,
                        const struct bny_addr *addrs, int n, struct vb_near *near,
                        char apart[64])
{
    struct bny_subnet nets[32];
    int nnets = bny_net_subnets(nets, 32), routed = (int)bny_param_int("BANYAN_VERBS=routed"),
        first = -1, kind = 0, k = 0;

    for (int i = 0; i < n; i++) {
        struct sockaddr_storage ss;
        struct rdma_cm_id *id;
        struct vb_near d;
        int known = 0, its = 0;

        if ((bny_addr_is_loopback(&addrs[i]) && !t->fn->loopback) ||
            t->fn->rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) != 0)
            continue;
        d = (struct vb_near){ .node = -1 };
        if (t->fn->rdma_bind_addr(id, bny_verbs_sockaddr(&addrs[i], &ss)) == 0 && id->verbs) {
            d.port = id->port_num;
            its = id->verbs->device->transport_type;
            snprintf(d.name, sizeof d.name, "%.63s", id->verbs->device->name);
        }
        t->fn->rdma_destroy_id(id);
        for (int j = 0; j < k; j++)
            known |= near[j].port == d.port && !strcmp(near[j].name, d.name);
        if (!d.name[0] || known)
            continue;
        kind = first < 0 ? its : kind;
        first = first < 0 ? i : first;
        if (its == kind && (routed || shares(nets, nnets, &addrs[first], &addrs[i])))
            near[k++] = d;
        else
            snprintf(apart, 64, "%s", d.name);
    }
    return k;
}

int bny_verbs_cm_near(struct vb_tp *t, const char *ifname, char (*names)[VB_NEAR_NAME],
                      int most)
{
    struct bny_addr addrs[BNY_NET_CANDIDATES_MAX];
    struct vb_near near[VB_NEAR_MAX];
    int n = bny_net_candidates(addrs, BNY_NET_CANDIDATES_MAX, ifname);
    struct rdma_event_channel *channel = n > 1 ? t->fn->rdma_create_event_channel() : NULL;
    char apart[64] = "", first[64];

    if (!channel)
        return 0;
    n = list_devices(t, channel, addrs, n, near, apart);
    t->fn->rdma_destroy_event_channel(channel);
    snprintf(first, sizeof first, "%s", n ? near[0].name : "");
    if (apart[0])
        bny_verbs_near_apart(apart, first);
    qsort(near, (size_t)n, sizeof *near, near_by_name);
    return bny_verbs_near_take(t, near, n, names, most);
}
