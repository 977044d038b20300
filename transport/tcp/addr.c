/* SPDX-License-Identifier: BSD-3-Clause */
/* Where this rank listens, and the address blob for peers. One listening socket for each
 * address that the interface choice allows; never a wildcard address. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <sodium.h>

#include "base/err.h"
#include "base/fd.h"
#include "transport/process_place.h"
#include "transport/tcp/tcp.h"

/* Processes of one host and network namespace reach each other by any of their addresses. */
static void host_id(uint8_t out[8])
{
    struct bny_place at;
    uint8_t hash[16];

    if (bny_place_get(&at) != 0) /* unknown: no rank is on our host, which is always safe */
        randombytes_buf(&at, sizeof at);
    crypto_generichash(hash, sizeof hash, (const uint8_t *)&at,
                       offsetof(struct bny_place, user), NULL, 0);
    memcpy(out, hash, 8);
}

int bny_tcp_listen(struct tcp_tp *t, const char *ifname, const char *port_range)
{
    struct bny_addr addrs[TCP_ADDRS];
    int n = bny_net_candidates(addrs, TCP_ADDRS, ifname), fd;

    if (n < 0)
        return n;
    memset(&t->blob, 0, sizeof t->blob);
    memcpy(t->blob.magic, "tcp1", 4);
    t->blob.rank = t->tp.rank;
    host_id(t->blob.host);
    randombytes_buf(t->blob.instance, sizeof t->blob.instance);
    t->tp.mbps = bny_net_mbps(&addrs[0]);
    t->nsubnets = bny_net_subnets(t->subnets, 2 * TCP_ADDRS);
    for (int i = 0; i < n; i++) {
        struct epoll_event ev = { .events = EPOLLIN, .data.u64 = (uint64_t)t->nlisten };

        fd = bny_net_listen(&addrs[i], port_range, 1024);
        if (fd == -BANYAN_ESYSTEM && (i + 1 < n || t->nlisten))
            continue; /* an address may vanish or be tentative; one that works suffices */
        if (fd < 0)
            return fd;
        t->listeners[t->nlisten] = bny_fd_own(fd);
        if (!t->nlisten)
            bny_net_text_at(&addrs[i], t->tp.at, sizeof t->tp.at);
        t->blob.addrs[t->nlisten++] = addrs[i];
        t->blob.count = (uint32_t)t->nlisten;
        if (epoll_ctl(t->epfd, EPOLL_CTL_ADD, fd, &ev) != 0)
            return bny_fail_errno("rank %d: cannot watch the listening socket", t->tp.rank);
    }
    return 0;
}

static int adjacent(const struct tcp_tp *t, const struct bny_addr *a)
{
    for (int i = 0; i < t->nsubnets; i++)
        if (bny_subnet_has(&t->subnets[i], a))
            return 1;
    return 0;
}

void bny_tcp_prefer_adjacent(const struct tcp_tp *t, struct tcp_blob *blob)
{
    struct bny_addr sorted[TCP_ADDRS];
    uint32_t n = 0;

    for (int far = 0; far < 2; far++)
        for (uint32_t i = 0; i < blob->count; i++)
            if (adjacent(t, &blob->addrs[i]) != far)
                sorted[n++] = blob->addrs[i];
    memcpy(blob->addrs, sorted, n * sizeof *sorted);
}

int bny_tcp_blob_check(const struct tcp_tp *t, int peer, const void *blob, size_t len,
                       struct tcp_blob *out, int *same_host)
{
    char text[BNY_ADDR_TEXT];
    int usable = 0;

    if (len != sizeof *out || peer < 0 || peer >= t->tp.nranks)
        return 0;
    memcpy(out, blob, sizeof *out);
    if (memcmp(out->magic, "tcp1", 4) != 0 || out->rank != peer || out->count < 1 ||
        out->count > TCP_ADDRS)
        return 0;
    *same_host = !memcmp(out->host, t->blob.host, sizeof out->host);
    for (uint32_t i = 0; i < out->count; i++) {
        const struct bny_addr *a = &out->addrs[i];

        if ((a->family != 4 && a->family != 6) || a->port == 0)
            return 0;
        usable += *same_host || !bny_addr_is_loopback(a);
    }
    if (!usable)
        bny_fail(
            BANYAN_ECONFIG,
            "it gives no address but its loopback's (%s), and runs on another host, or in "
            "another network namespace; set BANYAN_IFNAME to the interface that joins them",
            bny_addr_text(&out->addrs[0], text));
    return usable > 0;
}
