/* SPDX-License-Identifier: BSD-3-Clause */
/* Chooses a rail's port and device if rdma_cm is not used (tcp_cm.c), with its GIDs and
 * partition key. A rank's address has all usable GIDs of a port, and the answering rank chooses
 * a pair of one type, as neither type can read the other's packets; of several pairs, in this
 * order: RoCE v2 before v1   v1 is not routed, and some switches drop it one subnet before one
 * that needs routing IPv4-mapped         before IPv6, link-local last: it has no meaning beyond
 * its link A port lists the GIDs of the interface that BANYAN_IFNAME names first. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/verbs/lane.h"
#include "transport/verbs/device_choice.h"

#define TABLE 512 /* entries of a device's table to read */

static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

static int is_v4(const uint8_t raw[16])
{
    return memcmp(raw, mapped, sizeof mapped) == 0;
}

static int is_link_local(const uint8_t raw[16])
{
    return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}

const char *bny_verbs_gid_text(const struct vb_gid *g, char *out)
{
    static const char *const types[] = { "InfiniBand", "RoCE v1", "RoCE v2" };
    char text[INET6_ADDRSTRLEN] = "?";

    inet_ntop(AF_INET6, g->raw, text, sizeof text);
    snprintf(out, 64, "%.45s (%s)", text, g->type < 3 ? types[g->type] : "?");
    return out;
}

/* ---- which GIDs ---- */

static uint32_t interface_of(const struct bny_addr *a)
{
    struct ifaddrs *list = NULL;
    struct sockaddr_storage ss;
    uint32_t index = 0;

    bny_addr_sockaddr(a, &ss);
    if (getifaddrs(&list) != 0)
        return 0;
    for (struct ifaddrs *i = list; i && !index; i = i->ifa_next) {
        if (!i->ifa_addr || i->ifa_addr->sa_family != ss.ss_family)
            continue;
        if (a->family == 4
                ? !memcmp(&((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr, a->ip, 4)
                : !memcmp(&((struct sockaddr_in6 *)(void *)i->ifa_addr)->sin6_addr, a->ip, 16))
            index = if_nametoindex(i->ifa_name);
    }
    freeifaddrs(list);
    return index;
}

/* Prefix length of this host's subnet with the GID's address; 0: this host does not have it. */
static uint8_t subnet_of(const uint8_t raw[16])
{
    struct bny_subnet nets[32];
    int n = bny_net_subnets(nets, 32);

    for (int i = 0; i < n; i++) {
        const struct bny_addr *a = &nets[i].addr;

        if (a->family == 4 && is_v4(raw) && !memcmp(a->ip, raw + 12, 4))
            return (uint8_t)(nets[i].prefix + 96);
        if (a->family == 6 && !memcmp(a->ip, raw, 16))
            return nets[i].prefix;
    }
    return 0;
}

/* Higher is better. */
static int worth(const struct vb_gid *g, uint32_t ifindex)
{
    return (g->type == IBV_GID_TYPE_ROCE_V1 ? 0 : 8) + (is_link_local(g->raw) ? 0 : 4) +
           (is_v4(g->raw) ? 2 : 0) + (ifindex && g->ifindex == ifindex);
}

/* Entries of other network namespaces have an interface that is not ours. */
static int is_usable(const struct ibv_gid_entry *e, int ethernet)
{
    static const uint8_t none[8];
    char name[IF_NAMESIZE];

    if (memcmp(e->gid.raw + 8, none, sizeof none) == 0)
        return 0;
    if (!ethernet)
        return e->gid_type == IBV_GID_TYPE_IB;
    return (e->gid_type == IBV_GID_TYPE_ROCE_V1 || e->gid_type == IBV_GID_TYPE_ROCE_V2) &&
           e->ndev_ifindex && if_indextoname(e->ndev_ifindex, name);
}

/* Inserts it in order, and keeps the best. */
static void verbs_port_keep(struct vb_port *p, const struct vb_gid *g, uint32_t ifindex)
{
    int at = VB_GIDS - 1;

    if (p->ngids < VB_GIDS)
        at = p->ngids++;
    else if (worth(&p->gids[at], ifindex) >= worth(g, ifindex))
        return;
    for (; at > 0 && worth(&p->gids[at - 1], ifindex) < worth(g, ifindex); at--)
        p->gids[at] = p->gids[at - 1];
    p->gids[at] = *g;
}

/* Fills p->gids; leaves none if the requested index does not exist. */
static void read_gids(const struct vb_tp *t, struct ibv_context *ctx, int port, int ethernet,
                      struct vb_port *p)
{
    struct ibv_gid_entry *e = calloc(TABLE, sizeof *e);
    ssize_t n = e ? t->fn->query_gid_table(ctx, e, TABLE, 0, sizeof *e) : 0;

    p->ngids = 0;
    for (ssize_t i = 0; i < n; i++) {
        struct vb_gid g = { .type = (uint8_t)e[i].gid_type,
                            .index = (uint16_t)e[i].gid_index,
                            .ifindex = e[i].ndev_ifindex };

        if ((int)e[i].port_num != port || !is_usable(&e[i], ethernet) ||
            (t->path.gid_index >= 0 && (int)e[i].gid_index != t->path.gid_index))
            continue;
        memcpy(g.raw, e[i].gid.raw, sizeof g.raw);
        g.bits = subnet_of(g.raw);
        verbs_port_keep(p, &g, 0);
    }
    free(e);
}

static void prefer(struct vb_port *p, uint32_t ifindex)
{
    struct vb_port old = *p;

    memset(p->gids, 0, sizeof p->gids);
    p->ngids = 0;
    for (int i = 0; i < old.ngids; i++)
        verbs_port_keep(p, &old.gids[i], ifindex);
}

static int same_subnet(const struct vb_gid *a, const struct vb_gid *b)
{
    int whole = a->bits / 8, rest = a->bits % 8;

    return a->bits && !memcmp(a->raw, b->raw, (size_t)whole) &&
           (!rest || (a->raw[whole] ^ b->raw[whole]) >> (8 - rest) == 0);
}

int bny_verbs_port_pair(const struct vb_rail *rail, const struct vb_gid *theirs, int n,
                        int *mine, int *other)
{
    int best = -1;

    for (int i = 0; i < rail->port.ngids; i++)
        for (int j = 0; j < n; j++) {
            const struct vb_gid *a = &rail->port.gids[i], *b = &theirs[j];
            int score = (a->type == IBV_GID_TYPE_ROCE_V1 ? 0 : 8) +
                        (same_subnet(a, b) && !is_link_local(a->raw) ? 4 : 0) +
                        (is_link_local(a->raw) ? 0 : 2) + is_v4(a->raw);

            if (a->type != b->type || is_link_local(a->raw) != is_link_local(b->raw) ||
                is_v4(a->raw) != is_v4(b->raw) || score <= best)
                continue;
            best = score;
            *mine = i;
            *other = j;
        }
    return best >= 0;
}

/* ---- partition keys ---- */

/* Returns 0, or an error. The upper bit marks full members: two limited ones cannot
 * communicate. */
static int find_pkey(const struct vb_tp *t, struct ibv_context *ctx, int port, int table,
                     struct vb_port *p)
{
    char there[120] = "";
    int found = -1;

    for (int i = 0; i < table && i < 128; i++) {
        __be16 raw;
        uint16_t key;
        size_t len = strlen(there);

        if (t->fn->ibv_query_pkey(ctx, (uint8_t)port, i, &raw) != 0)
            continue;
        key = ntohs(raw);
        if (!(key & 0x7fff))
            continue;
        snprintf(there + len, sizeof there - len, "%s0x%04x", len ? ", " : "", key);
        if (t->path.pkey >= 0 && (key & 0x7fff) != (t->path.pkey & 0x7fff))
            continue;
        if (found >= 0 && (p->pkey & 0x8000 || !(key & 0x8000)))
            continue;
        found = i;
        p->pkey = key;
        p->pkey_index = (uint16_t)i;
    }
    if (found >= 0)
        return 0;
    if (t->path.pkey < 0) { /* a device without a table has the common key */
        p->pkey = 0xffff;
        p->pkey_index = 0;
        return 0;
    }
    return bny_fail(
        BANYAN_ECONFIG,
        "rank %d: BANYAN_VERBS=pkey=0x%04x is not in the table of device %s port %d, "
        "which has %s: name one of these, or have the subnet manager make this port "
        "a member",
        t->tp.rank, (unsigned)t->path.pkey, ctx->device->name, port, there[0] ? there : "none");
}

/* ---- which port ---- */

struct wanted { /* a part of BANYAN_IFNAME */
    char name[64];
    int port;      /* 0: any */
    int is_device; /* else addrs are the matching ones */
    struct bny_addr addrs[BNY_NET_CANDIDATES_MAX];
    int n;
};

static int is_device(struct ibv_context *const *ctx, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(ctx[i]->device->name, name))
            return 1;
    return 0;
}

static int name_of(struct ibv_context *const *ctx, int n, const char *text, struct wanted *w)
{
    size_t len = strcspn(text, ":");

    snprintf(w->name, sizeof w->name, "%.*s", (int)(len < 63 ? len : 63), text);
    w->port = text[len] ? atoi(text + len + 1) : 0;
    w->is_device = is_device(ctx, n, w->name);
    w->n = bny_net_candidates(w->addrs, BNY_NET_CANDIDATES_MAX, w->is_device ? "" : text);
    return w->n < 0 ? w->n : 0;
}

/* Does the interface with this address belong to the port? Over RoCE its GIDs decide; for IPoIB
 * the kernel does. */
static int has_address(const struct vb_tp *t, const struct ibv_context *ctx,
                       const struct vb_port *p, const struct bny_addr *a)
{
    uint32_t index = interface_of(a);
    char path[200], name[IF_NAMESIZE];

    if (t->fn->loopback)
        return 1;
    if (bny_addr_is_loopback(a) || !index)
        return 0;
    for (int i = 0; i < p->ngids; i++)
        if (p->gids[i].ifindex == index)
            return 1;
    if (!if_indextoname(index, name))
        return 0;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.60s/device/net/%s", ctx->device->name,
             name);
    return p->ngids && p->gids[0].type == IBV_GID_TYPE_IB && access(path, F_OK) == 0;
}

/* Which of the addresses is the port's; w->n: none, but it works even so. -1: not a requested
 * port. */
static int address_of(const struct vb_tp *t, const struct ibv_context *ctx, int port,
                      const struct vb_port *p, const struct wanted *w)
{
    if (w->is_device &&
        (strcmp(ctx->device->name, w->name) != 0 || (w->port && w->port != port)))
        return -1;
    for (int i = 0; i < w->n; i++)
        if (has_address(t, ctx, p, &w->addrs[i]))
            return i;
    /* InfiniBand needs no address of its own: any that peers can reach will do */
    return w->is_device || (!w->name[0] && p->ngids && p->gids[0].type == IBV_GID_TYPE_IB)
               ? w->n
               : -1;
}

static void read_tc(const char *device, int port, struct vb_port *p)
{
    char path[120], line[64];
    FILE *f;

    p->tc = -1;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.60s/tc/%d/traffic_class", device,
             port);
    f = fopen(path, "re");
    if (!f)
        return;
    if (fgets(line, sizeof line, f) && sscanf(line, "Global tclass=%d", &p->tc) == 1 &&
        (p->tc < 0 || p->tc > 255))
        p->tc = -1;
    fclose(f);
}

struct found {
    struct ibv_context *ctx;
    int number, at; /* at: index in wanted.addrs */
    struct vb_port port;
};

/* 1: this port is usable, and all of f is set but its partition key. */
static int may_serve(struct vb_tp *t, struct ibv_context *ctx, int number,
                     const struct wanted *w, struct ibv_port_attr *a, struct found *f)
{
    struct rdma_cm_id probe = { .verbs = ctx, .port_num = (uint8_t)number };

    *a = (struct ibv_port_attr){ .state = IBV_PORT_NOP };
    *f = (struct found){ .ctx = ctx, .number = number };
    if (bny_verbs_rail_of(t, &probe) ||
        t->fn->ibv_query_port(ctx, (uint8_t)number, (struct _compat_ibv_port_attr *)a) != 0 ||
        (a->state != IBV_PORT_ACTIVE && !t->fn->loopback))
        return 0;
    read_gids(t, ctx, number, a->link_layer == IBV_LINK_LAYER_ETHERNET, &f->port);
    f->port.lid = a->lid;
    f->port.lmc = a->lmc;
    f->at = address_of(t, ctx, number, &f->port, w);
    return f->at >= 0;
}

/* 1: this port is better than *best, and replaces it. */
static int consider(struct vb_tp *t, struct ibv_context *ctx, int number,
                    const struct wanted *w, struct found *best)
{
    struct ibv_port_attr a;
    struct found f;

    if (!may_serve(t, ctx, number, w, &a, &f) || (best->ctx && best->at <= f.at))
        return 0;
    if (find_pkey(t, ctx, number, a.pkey_tbl_len, &f.port) != 0)
        return -1;
    if (f.at < w->n)
        prefer(&f.port, interface_of(&w->addrs[f.at]));
    read_tc(ctx->device->name, number, &f.port);
    *best = f;
    return 1;
}

static int is_on_a_network(const struct vb_tp *t, const struct found *f)
{
    if (t->datagrams && f->ctx->device->transport_type == IBV_TRANSPORT_UNSPECIFIED)
        return f->port.ngids > 0;
    return f->port.ngids && (f->port.gids[0].type != IBV_GID_TYPE_IB || f->port.lid);
}

static int has_a_way(const struct vb_tp *t, const struct found *f)
{
    if (is_on_a_network(t, f))
        return 0;
    if (t->path.gid_index >= 0 && !f->port.ngids)
        return bny_fail(
            BANYAN_ECONFIG,
            "rank %d: BANYAN_VERBS=gid_index=%d: device %s port %d has no GID of this "
            "host there (show_gids, or /sys/class/infiniband/%s/ports/%d/gids): "
            "name another one, or unset it",
            t->tp.rank, t->path.gid_index, f->ctx->device->name, f->number,
            f->ctx->device->name, f->number);
    if (f->port.ngids)
        return bny_fail(BANYAN_ENOTSUP,
                        "rank %d: device %s port %d has no LID: no subnet manager runs on its "
                        "network (sminfo); start opensm on one host",
                        t->tp.rank, f->ctx->device->name, f->number);
    return bny_fail(
        BANYAN_ENOTSUP,
        "rank %d: device %s port %d has no GID of an interface of this host: ip link "
        "set its interface up, and give it an address",
        t->tp.rank, f->ctx->device->name, f->number);
}

static int listen_there(struct vb_tp *t, struct vb_rail *rail, const struct found *f,
                        struct bny_addr a)
{
    struct sockaddr_storage ss;
    char text[BNY_ADDR_TEXT];
    struct rdma_cm_id *id;

    a.port = 0;
    rail->port = f->port;
    if (t->fn->rdma_create_id(t->events, &id, NULL, RDMA_PS_TCP) != 0)
        return bny_fail_errno("rank %d: no memory to listen for connections", t->tp.rank);
    id->verbs = f->ctx;
    id->port_num = (uint8_t)f->number;
    if (t->fn->rdma_bind_addr(id, bny_verbs_sockaddr(&a, &ss)) != 0 ||
        t->fn->rdma_listen(id, VB_BACKLOG(t->tp.nranks)) != 0) {
        int rc = bny_fail(
            BANYAN_ENOTSUP,
            "rank %d: device %s port %d: cannot listen at %s for the set-up of connections: "
            "%s; BANYAN_IFNAME names another interface, BANYAN_PORT_RANGE other ports",
            t->tp.rank, f->ctx->device->name, f->number, bny_addr_text(&a, text),
            strerror(errno));

        t->fn->rdma_destroy_id(id);
        return rc;
    }
    rail->listener = id;
    rail->ctx = f->ctx;
    snprintf(rail->device, sizeof rail->device, "%s", f->ctx->device->name);
    snprintf(rail->at, sizeof rail->at, "%s port %d", rail->device, f->number);
    rail->addr = a;
    rail->addr.port = ntohs(t->fn->rdma_get_src_port(id));
    return 0;
}

/* The best port with this name. Returns 0, VB_NO_PORT or an error. */
static int best_port(struct vb_tp *t, const char *name, struct wanted *w, struct found *best)
{
    struct ibv_context *const *ctx;
    int n = bny_verbs_tcp_cm_contexts(t, &ctx), rc;

    *best = (struct found){ .ctx = NULL };
    rc = name_of(ctx, n, name, w);
    if (rc)
        return rc;
    for (int i = 0; i < n; i++) {
        struct ibv_device_attr a = { .phys_port_cnt = 1 };

        if (t->fn->ibv_query_device(ctx[i], &a) != 0)
            continue;
        for (int port = 1; port <= a.phys_port_cnt; port++)
            if (consider(t, ctx[i], port, w, best) < 0)
                return -BANYAN_ECONFIG;
    }
    if (!best->ctx)
        return VB_NO_PORT; /* verbs_device.c explains */
    return has_a_way(t, best);
}

int bny_verbs_port_listen(struct vb_tp *t, struct vb_rail *rail, const char *name)
{
    struct found best;
    struct wanted w;
    int rc = best_port(t, name, &w, &best);

    return rc ? rc : listen_there(t, rail, &best, w.addrs[best.at < w.n ? best.at : 0]);
}

int bny_verbs_port_find(struct vb_tp *t, struct vb_rail *rail, const char *name, int *number)
{
    struct found best;
    struct wanted w;
    int rc = best_port(t, name, &w, &best);

    if (rc)
        return rc;
    rail->ctx = best.ctx;
    rail->port = best.port;
    *number = best.number;
    snprintf(rail->device, sizeof rail->device, "%s", best.ctx->device->name);
    snprintf(rail->at, sizeof rail->at, "%s port %d", rail->device, best.number);
    return 0;
}

void bny_verbs_port_renew(struct vb_tp *t, struct vb_rail *rail, int number)
{
    struct ibv_port_attr a = { .state = IBV_PORT_NOP };
    struct vb_port p = rail->port;

    if (!t->fn->query_gid_table || !rail->port.ngids ||
        t->fn->ibv_query_port(rail->ctx, (uint8_t)number, (struct _compat_ibv_port_attr *)&a) !=
            0)
        return;
    read_gids(t, rail->ctx, number, a.link_layer == IBV_LINK_LAYER_ETHERNET, &p);
    if (!p.ngids) /* its interface may be coming up again */
        return;
    if (rail->addr.family)
        prefer(&p, interface_of(&rail->addr));
    p.lid = a.lid;
    p.lmc = a.lmc;
    for (int i = 0; i < a.pkey_tbl_len; i++) { /* the key that the peers know */
        __be16 raw;

        if (t->fn->ibv_query_pkey(rail->ctx, (uint8_t)number, i, &raw) == 0 &&
            ntohs(raw) == p.pkey) {
            p.pkey_index = (uint16_t)i;
            break;
        }
    }
    rail->port = p;
}

/* ---- where no port is named ---- */

int bny_verbs_port_meets(const struct vb_port *a, const struct vb_port *b)
{
    if ((a->pkey ^ b->pkey) & 0x7fff)
        return 0;
    for (int i = 0; i < a->ngids; i++)
        for (int j = 0; j < b->ngids; j++) {
            const struct vb_gid *g = &a->gids[i], *h = &b->gids[j];

            if (g->type != h->type)
                continue;
            if (g->type == IBV_GID_TYPE_IB ? !memcmp(g->raw, h->raw, 8)
                                           : same_subnet(g, h) && !is_link_local(g->raw))
                return 1;
        }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct found *f = a, *g = b;
    int c = strverscmp(f->ctx->device->name, g->ctx->device->name);

    return c ? c : f->number - g->number;
}

/* Ports that are up and reach the networks of the first, ordered by name: ranks that use the
 * same rule number them alike. *apart: one that does not, or NULL. */
static int list_ports(struct vb_tp *t, const struct wanted *w, int routed, struct found *all,
                      const char **apart)
{
    struct ibv_context *const *ctx;
    int contexts = bny_verbs_tcp_cm_contexts(t, &ctx), n = 0, first = 0, kept = 0;

    for (int i = 0; i < contexts; i++) {
        struct ibv_device_attr a = { .phys_port_cnt = 1 };

        if (t->fn->ibv_query_device(ctx[i], &a) != 0)
            continue;
        for (int port = 1; port <= a.phys_port_cnt && n < VB_NEAR_MAX; port++) {
            struct ibv_port_attr attr;

            if (may_serve(t, ctx[i], port, w, &attr, &all[n]) &&
                attr.state == IBV_PORT_ACTIVE && is_on_a_network(t, &all[n]) &&
                find_pkey(t, ctx[i], port, attr.pkey_tbl_len, &all[n].port) == 0) {
                first = all[n].at < all[first].at ? n : first;
                n++;
            }
        }
    }
    *apart = NULL;
    for (int i = 0; i < n; i++)
        if (!routed && i != first && !bny_verbs_port_meets(&all[first].port, &all[i].port)) {
            all[i].at = -1;
            *apart = all[i].ctx->device->name;
        }
    for (int i = 0; i < n; i++)
        if (all[i].at >= 0)
            all[kept++] = all[i];
    qsort(all, (size_t)kept, sizeof *all, by_name);
    return kept;
}

int bny_verbs_near_take(const struct vb_tp *t, struct vb_near *near, int n,
                        char (*names)[VB_NEAR_NAME], int most)
{
    int distance[VB_NEAR_MAX], chosen[VB_NEAR_MAX], taken = 0, equal,
                                                    local = bny_verbs_near_local(t->tp.rank);
    char why[160];
    cpu_set_t cpus;

    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0)
        memset(&cpus, 0xff, sizeof cpus);
    for (int i = 0; i < n; i++) {
        bny_verbs_near_look(&near[i], &cpus);
        distance[i] = near[i].distance;
    }
    if (n > 1)
        taken = bny_verbs_near_choose(distance, n, local, most, chosen, &equal);
    for (int i = 0; i < taken; i++) {
        const struct vb_near *d = &near[chosen[i]];

        snprintf(names[i], VB_NEAR_NAME, "%.63s:%d", d->name, d->port);
        bny_info("verbs: device %s port %d for local rank %d: %s", d->name, d->port, local,
                 bny_verbs_near_why(d, equal, n, why, sizeof why));
    }
    return taken;
}

void bny_verbs_near_apart(const char *device, const char *first)
{
    bny_info("verbs: device %s is on another network than %s, or another subnet: it is not "
             "chosen by its distance; BANYAN_VERBS=routed=1 if each reaches the other",
             device, first);
}

int bny_verbs_port_near(struct vb_tp *t, const char *ifname, char (*names)[VB_NEAR_NAME],
                        int most)
{
    struct found *all = calloc(VB_NEAR_MAX, sizeof *all);
    struct vb_near near[VB_NEAR_MAX];
    const char *apart = NULL;
    struct wanted w;
    int n = 0;

    if (all && name_of(NULL, 0, ifname, &w) == 0)
        n = list_ports(t, &w, (int)bny_param_int("BANYAN_VERBS=routed"), all, &apart);
    for (int i = 0; i < n; i++) {
        near[i] = (struct vb_near){ .port = all[i].number };
        snprintf(near[i].name, sizeof near[i].name, "%s", all[i].ctx->device->name);
    }
    if (apart)
        bny_verbs_near_apart(apart, n ? near[0].name : "the first");
    free(all);
    return bny_verbs_near_take(t, near, n, names, most);
}
