/* SPDX-License-Identifier: BSD-3-Clause */
/* A program that starts DPDK itself, with its own arguments, and uses banyan beside it.
 *
 *   dpdk_host none|take|refuse [ARGUMENTS OF rte_eal_init]
 *
 * none: the driver answers for itself. take, refuse: the functions of rte_flow below are asked
 * in its place, as no virtual port on a kernel without TC flower takes rules; they check what
 * they are given. Prints "right" when an allreduce was. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>

#include "banyan/banyan.h"
#include "base/param.h"

#define EXPORT __attribute__((visibility("default")))

static const char *flow = "none";
static int rules;

static int is_to_us(const struct rte_flow_item *item)
{
    const struct rte_flow_item_ipv4 *ip = item->spec, *mask = item->mask;
    const struct rte_flow_item_ipv6 *ip6 = item->spec, *mask6 = item->mask;
    const char *addr = getenv("BANYAN_DPDK_ADDR");
    uint8_t at[16], all[16], none[16] = { 0 };

    if (!strchr(addr, ':'))
        return item->type == RTE_FLOW_ITEM_TYPE_IPV4 && mask->hdr.dst_addr == UINT32_MAX &&
               !mask->hdr.src_addr && ip->hdr.dst_addr == inet_addr(addr);
    memset(all, 0xff, sizeof all);
    return item->type == RTE_FLOW_ITEM_TYPE_IPV6 && inet_pton(AF_INET6, addr, at) == 1 &&
           !memcmp(ip6->hdr.dst_addr, at, 16) && !memcmp(mask6->hdr.dst_addr, all, 16) &&
           !memcmp(mask6->hdr.src_addr, none, 16);
}

/* Exported: found before those of librte_ethdev. */
static int is_ours(const struct rte_flow_item pattern[], const struct rte_flow_action actions[])
{
    const struct rte_flow_item_udp *udp = pattern[2].spec;
    const int queues = (int)bny_param_int("BANYAN_DPDK=queues");
    const struct rte_flow_action_rss *rss = actions[0].conf;

    if (pattern[0].type != RTE_FLOW_ITEM_TYPE_ETH || !is_to_us(&pattern[1]) ||
        pattern[2].type != RTE_FLOW_ITEM_TYPE_UDP ||
        pattern[3].type != RTE_FLOW_ITEM_TYPE_END || !udp->hdr.dst_port)
        return 0;
    if (queues == 1)
        return actions[0].type == RTE_FLOW_ACTION_TYPE_QUEUE;
    return actions[0].type == RTE_FLOW_ACTION_TYPE_RSS && (int)rss->queue_num == queues &&
           rss->queue[1] == 1 &&
           rss->types == (strchr(getenv("BANYAN_DPDK_ADDR"), ':')
                              ? RTE_ETH_RSS_NONFRAG_IPV6_UDP
                              : RTE_ETH_RSS_NONFRAG_IPV4_UDP);
}

EXPORT int rte_flow_validate(uint16_t port, const struct rte_flow_attr *attr,
                             const struct rte_flow_item pattern[],
                             const struct rte_flow_action actions[],
                             struct rte_flow_error *error)
{
    if (!strcmp(flow, "take") && attr->ingress && is_ours(pattern, actions))
        return 0;
    rte_flow_error_set(error, ENOTSUP, RTE_FLOW_ERROR_TYPE_UNSPECIFIED, NULL,
                       "refused for a test");
    return -ENOTSUP;
}

EXPORT struct rte_flow *rte_flow_create(uint16_t port, const struct rte_flow_attr *attr,
                                        const struct rte_flow_item pattern[],
                                        const struct rte_flow_action actions[],
                                        struct rte_flow_error *error)
{
    rules++;
    return (struct rte_flow *)(void *)&rules;
}

EXPORT int rte_flow_destroy(uint16_t port, struct rte_flow *rule, struct rte_flow_error *error)
{
    rules--;
    return 0;
}

static int allreduce(void)
{
    static float x[300000];
    struct banyan_comm *comm = NULL;
    int rank, n, wrong = 0;

    if (banyan_comm_init_env(&comm, NULL) < 0)
        return -1;
    rank = banyan_comm_rank(comm);
    n = banyan_comm_count(comm);
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < 300000; i++)
            x[i] = (float)(rank + i % 1000);
        if (banyan_allreduce(x, x, 300000, BANYAN_F32, BANYAN_SUM, comm, NULL) < 0) {
            banyan_comm_destroy(comm);
            return -1;
        }
        for (int i = 0; i < 300000; i++)
            wrong += x[i] != (float)(n * (i % 1000) + n * (n - 1) / 2);
    }
    if (!strcmp(flow, "take") && rules != 1)
        wrong++;
    if (banyan_comm_finalize(comm) < 0)
        return -1;
    return wrong + rules;
}

int main(int argc, char **argv)
{
    int rc;

    flow = argc > 1 ? argv[1] : "none";
    if (argc > 2 && rte_eal_init(argc - 1, argv + 1) < 0) {
        fprintf(stderr, "dpdk_host: rte_eal_init: %s\n", rte_strerror(rte_errno));
        return 2;
    }
    rc = allreduce();
    if (rc == 0)
        printf("right; %d ports are left\n", rte_eth_dev_count_avail());
    else if (rc > 0)
        fprintf(stderr, "dpdk_host: %d wrong\n", rc);
    else
        fprintf(stderr, "dpdk_host: %s\n", banyan_last_error());
    return rc != 0;
}
