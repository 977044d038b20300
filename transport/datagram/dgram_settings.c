/* SPDX-License-Identifier: BSD-3-Clause */
/* BANYAN_DPDK, BANYAN_DPDK_* and BANYAN_UD. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/param.h"
#include "transport/datagram/dgram.h"

#define CHECK_AUTO 3 /* of check=none|crc|mac|auto; the others are enum bny_dgram_checks */

/* "0000:03:00.0", possibly with arguments for its driver: "0000:03:00.0,mprq_en=1". */
static int is_pci(const char *text)
{
    unsigned a, b, c, d;
    int end = 0;

    return sscanf(text, "%4x:%2x:%2x.%1x%n", &a, &b, &c, &d, &end) == 4 &&
           (!text[end] || (text[end] == ',' && text[end + 1]));
}

/* "net_af_xdp0,iface=veth0,...": veth0. Other drivers create their interfaces, which are the
 * kernel's end of a wire. */
static void parse_iface(struct dp_settings *s, const char *text)
{
    const char *at = strstr(text, ",iface=");

    if (at && !strncmp(text + 4, "af_", 3))
        snprintf(s->iface, sizeof s->iface, "%.*s", (int)strcspn(at + 7, ","), at + 7);
}

/* The text after the first '=', or NULL. (For text + 16 gcc 12 warns, with the sanitizers, that
 * it may be behind the end.) */
static const char *value_of(const char *text)
{
    const char *eq = strchr(text, '=');

    return eq ? eq + 1 : NULL;
}

static int parse_port(struct dp_settings *s, const char *text)
{
    const char *iface;

    if (strlen(text) >= sizeof s->device)
        return bny_fail(BANYAN_EINVAL,
                        "BANYAN_DPDK_PORT=%.60s... has %zu characters, at most %zu", text,
                        strlen(text), sizeof s->device - 1);
    snprintf(s->device, sizeof s->device, "%s", text);
    iface = !strncmp(text, "af_packet:iface=", 16) ? value_of(text) : NULL;
    if (!strcmp(text, "memif")) {
        s->kind = BNY_DGRAM_MEMIF;
    } else if (!strcmp(text, "ring")) {
        s->kind = BNY_DGRAM_RING;
    } else if (iface && *iface) {
        s->kind = BNY_DGRAM_AF_PACKET;
        if (strlen(iface) >= sizeof s->iface || strchr(text, ','))
            return bny_fail(BANYAN_EINVAL,
                            "BANYAN_DPDK_PORT=%.60s: \"%.40s\" is no name of an interface",
                            text, iface);
        snprintf(s->device, sizeof s->device, "%s", iface);
        snprintf(s->iface, sizeof s->iface, "%s", iface);
    } else if (!strncmp(text, "net_", 4) || !strncmp(text, "eth_", 4)) {
        s->kind = BNY_DGRAM_VDEV;
        parse_iface(s, text);
    } else if (is_pci(text)) {
        s->kind = BNY_DGRAM_PCI;
    } else {
        return bny_fail(
            BANYAN_EINVAL,
            "BANYAN_DPDK_PORT=%.60s is no port: memif (ranks of one host), ring (ranks of one "
            "process), af_packet:iface=veth0, a vdev as net_af_xdp0,iface=veth0, or a PCI "
            "address as 0000:03:00.0, with its driver's arguments behind a comma",
            text);
    }
    return 0;
}

/* Checks, and faults on purpose: the keys of a variable that both transports have. */
static int parse_common(struct dp_settings *s, const char *variable)
{
    struct dp_fault *f = &s->fault;
    const struct {
        const char *key;
        double *at, most;
    } keys[] = {
        { "loss", &f->loss, 0.9 },       { "dup", &f->duplicate, 0.9 },
        { "reorder", &f->reorder, 0.9 }, { "corrupt", &f->corrupt, 0.9 },
        { "gbps", &f->rate, 1e6 },
    };
    char name[32];
    int how;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        snprintf(name, sizeof name, "%s=%s", variable, keys[i].key);
        *keys[i].at = bny_param_real(name);
        if (*keys[i].at > keys[i].most)
            return bny_fail(BANYAN_ECONFIG, "%s=%g is more than %g", name, *keys[i].at,
                            keys[i].most);
        f->on |= *keys[i].at > 0;
    }
    f->rate *= 1e9 / 8;
    snprintf(name, sizeof name, "%s=seed", variable);
    f->seed = (uint64_t)bny_param_int(name);
    snprintf(name, sizeof name, "%s=check", variable);
    how = bny_param_choice(name);
    if (how == CHECK_AUTO)
        how = s->kind == BNY_DGRAM_MEMIF || s->kind == BNY_DGRAM_RING ? BNY_DGRAM_NO_CHECK
                                                                      : BNY_DGRAM_MAC;
    s->checks = (enum bny_dgram_checks)how;
    return 0;
}

/* "10.9.0.1", "10.9.0.1/24", "fd00::1", "fd00::1/64"; prefix 0: no subnet. */
static int parse_ip(const char *name, const char *text, struct bny_dgram_ip *ip, int *prefix)
{
    const char *slash = strchr(text, '/');
    char copy[BNY_DGRAM_IP_TEXT], *end = NULL;
    long bits = slash && prefix ? strtol(slash + 1, &end, 10) : 1;
    int is4 = !strchr(text, ':'), rc;

    memset(ip, 0, sizeof *ip);
    if (!*text)
        return 0;
    if (is4)
        *ip = (struct bny_dgram_ip)BNY_DGRAM_IP4(0);
    snprintf(copy, sizeof copy, "%.*s", (int)(slash ? slash - text : 47), text);
    rc = inet_pton(is4 ? AF_INET : AF_INET6, copy, ip->at + (is4 ? BNY_DGRAM_IP4_AT : 0));
    if (rc != 1 || (slash && (!prefix || !slash[1] || *end)) || bits < 1 ||
        bits > (is4 ? 32 : 128) || (!is4 && (bny_dgram_ip_is4(ip) || ip->at[0] == 0xff)))
        return bny_fail(BANYAN_EINVAL, "%s=%.60s is no IPv4 or IPv6 address of one port%s",
                        name, text,
                        prefix ? ", nor one with the bits of its subnet, as 10.9.0.1/24 or "
                                 "fd00::1/64"
                               : "");
    if (prefix)
        *prefix = slash ? (int)bits + (is4 ? 96 : 0) : 0;
    return 0;
}

int bny_dgram_ip_shares(const struct bny_dgram_ip *a, const struct bny_dgram_ip *b, int prefix)
{
    int bytes = prefix / 8, bits = prefix % 8;

    return !memcmp(a->at, b->at, (size_t)bytes) &&
           (!bits || (a->at[bytes] ^ b->at[bytes]) >> (8 - bits) == 0);
}

static int check_gateway(const struct dp_settings *s)
{
    const char *gateway = bny_param_str("BANYAN_DPDK_GATEWAY"),
               *addr = bny_param_str("BANYAN_DPDK_ADDR");

    if (bny_dgram_ip_none(&s->gateway) || bny_dgram_ip_none(&s->ip))
        return 0;
    if (bny_dgram_ip_is4(&s->gateway) != bny_dgram_ip_is4(&s->ip))
        return bny_fail(BANYAN_EINVAL,
                        "BANYAN_DPDK_GATEWAY=%.45s and BANYAN_DPDK_ADDR=%.45s are not of one "
                        "family (IPv4, IPv6)",
                        gateway, addr);
    if (!s->prefix)
        return bny_fail(BANYAN_EINVAL,
                        "BANYAN_DPDK_GATEWAY is for other subnets: BANYAN_DPDK_ADDR=%.45s must "
                        "say what ours is, as %s",
                        addr, bny_dgram_ip_is4(&s->ip) ? "10.9.0.1/24" : "fd00::1/64");
    if (!bny_dgram_ip_is_local(&s->gateway) &&
        !bny_dgram_ip_shares(&s->gateway, &s->ip, s->prefix))
        return bny_fail(
            BANYAN_EINVAL,
            "BANYAN_DPDK_GATEWAY=%.45s is not in the subnet of BANYAN_DPDK_ADDR=%.45s", gateway,
            addr);
    return 0;
}

static int parse_addresses(struct dp_settings *s)
{
    int rc =
        parse_ip("BANYAN_DPDK_ADDR", bny_param_str("BANYAN_DPDK_ADDR"), &s->ip, &s->prefix);

    s->vlan = (uint16_t)bny_param_int("BANYAN_DPDK=vlan");
    if (rc == 0)
        rc = parse_ip("BANYAN_DPDK_GATEWAY", bny_param_str("BANYAN_DPDK_GATEWAY"), &s->gateway,
                      NULL);
    return rc ? rc : check_gateway(s);
}

int bny_dpdk_settings(struct dp_settings *s)
{
    int64_t mtu = bny_param_int("BANYAN_DPDK=mtu");
    int rc;

    memset(s, 0, sizeof *s);
    rc = parse_port(s, bny_param_str("BANYAN_DPDK_PORT"));
    if (rc == 0)
        rc = parse_common(s, "BANYAN_DPDK");
    if (rc == 0)
        rc = parse_addresses(s);
    if (rc)
        return rc;
    snprintf(s->args, sizeof s->args, "%s", bny_param_str("BANYAN_DPDK_ARGS"));
    s->queues = (int)bny_param_int("BANYAN_DPDK=queues");
    s->frame = mtu ? (uint32_t)mtu + 14 : DP_FRAME;
    return 0;
}

int bny_ud_settings(struct dp_settings *s)
{
    memset(s, 0, sizeof *s);
    s->kind = BNY_DGRAM_UD;
    s->queues = 1;
    s->frame = DP_FRAME + BNY_DGRAM_ETH;
    return parse_common(s, "BANYAN_UD");
}
