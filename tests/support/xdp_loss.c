/* SPDX-License-Identifier: BSD-3-Clause */
/* Random loss on a network interface of this namespace: an XDP program that drops each received
 * frame with a given probability. It runs before the packet sockets of the same interface,
 * which tc and netfilter do not, so it also hits what net_af_packet receives. The program stays
 * until it is replaced (probability "off" removes it) or the interface ends.
 *
 *   xdp_loss IFACE PROBABILITY [udp]     0 .. 1, or off; udp: IPv4/UDP frames only, so that ARP
 *                                        and TCP pass
 *
 * Tries the driver's own XDP with frames of several buffers, then without, then the kernel's
 * generic one (jumbo frames on old kernels). Prints which. Exit status: 0, 77 where the kernel
 * refuses (and why), 2 for wrong arguments. The instructions are written by hand: ten of them
 * do not deserve a compiler at run time. */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SKIP 77
#ifndef BPF_F_XDP_HAS_FRAGS
#define BPF_F_XDP_HAS_FRAGS (1u << 5)
#endif
#define INSN(c, d, s, o, i)                                                                    \
    {                                                                                          \
        .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)                    \
    }

/* Offsets of the jumps below count from the next instruction. */
static const struct bpf_insn only_udp[] = {
    INSN(BPF_LDX | BPF_MEM | BPF_W, 2, 1, offsetof(struct xdp_md, data), 0),
    INSN(BPF_LDX | BPF_MEM | BPF_W, 3, 1, offsetof(struct xdp_md, data_end), 0),
    INSN(BPF_ALU64 | BPF_MOV | BPF_X, 4, 2, 0, 0),
    INSN(BPF_ALU64 | BPF_ADD | BPF_K, 4, 0, 0, 24), /* Ethernet, and IPv4 up to its protocol */
    INSN(BPF_JMP | BPF_JGT | BPF_X, 4, 3, 8, 0),    /* shorter: pass */
    INSN(BPF_LDX | BPF_MEM | BPF_H, 5, 2, 12, 0),   /* the type, in network order */
    INSN(BPF_JMP | BPF_JNE | BPF_K, 5, 0, 6,
         __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? 0x0008 : 0x0800),
    INSN(BPF_LDX | BPF_MEM | BPF_B, 5, 2, 23, 0),
    INSN(BPF_JMP | BPF_JNE | BPF_K, 5, 0, 4, 17),
};
#define N_UDP (sizeof only_udp / sizeof *only_udp)

/* The threshold is the low half of ld_imm64: the comparison is of 64 bits, so that 2^32 drops
 * all. */
static unsigned assemble(struct bpf_insn *out, uint64_t threshold, int udp)
{
    const struct bpf_insn dice[] = {
        INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_get_prandom_u32),
        INSN(BPF_LD | BPF_IMM | BPF_DW, 1, 0, 0, (int32_t)(uint32_t)threshold),
        INSN(0, 0, 0, 0, (int32_t)(threshold >> 32)),
        INSN(BPF_JMP | BPF_JLT | BPF_X, 0, 1, 2, 0),
        INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
        INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_DROP),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    unsigned at = 0;

    if (udp) {
        memcpy(out, only_udp, sizeof only_udp);
        at = N_UDP;
    }
    memcpy(out + at, dice, sizeof dice);
    return at + sizeof dice / sizeof *dice;
}

/* A descriptor, or -errno with the verifier's last words in log. */
static int load(const struct bpf_insn *insn, unsigned n, unsigned flags, char *log,
                unsigned cap)
{
    union bpf_attr attr = { .prog_type = BPF_PROG_TYPE_XDP,
                            .insn_cnt = n,
                            .insns = (uintptr_t)insn,
                            .license = (uintptr_t) "BSD",
                            .prog_flags = flags,
                            .log_buf = (uintptr_t)log,
                            .log_size = cap,
                            .log_level = 1 };
    int fd = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof attr);

    return fd < 0 ? -errno : fd;
}

/* fd -1 removes the program of that mode. 0, or -errno. */
static int attach(int ifindex, int fd, uint32_t mode)
{
    struct {
        struct nlmsghdr h;
        struct ifinfomsg i;
        struct rtattr nest;
        struct rtattr fd_attr;
        int32_t fd;
        struct rtattr flags_attr;
        uint32_t flags;
    } req = {
        .h = { .nlmsg_len = sizeof req,
               .nlmsg_type = RTM_SETLINK,
               .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK },
        .i = { .ifi_family = AF_UNSPEC, .ifi_index = ifindex },
        .nest = { .rta_type = IFLA_XDP | NLA_F_NESTED, .rta_len = RTA_LENGTH(16) },
        .fd_attr = { .rta_type = IFLA_XDP_FD, .rta_len = RTA_LENGTH(4) },
        .fd = fd,
        .flags_attr = { .rta_type = IFLA_XDP_FLAGS, .rta_len = RTA_LENGTH(4) },
        .flags = mode,
    };
    struct {
        struct nlmsghdr h;
        struct nlmsgerr e;
        char rest[512];
    } ack;
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), rc;

    if (s < 0)
        return -errno;
    rc = send(s, &req, sizeof req, 0) < 0 ? -errno : 0;
    if (rc == 0)
        rc = recv(s, &ack, sizeof ack, 0) < (ssize_t)(sizeof ack.h + sizeof ack.e)
                 ? -EIO
                 : ack.e.error;
    close(s);
    return rc;
}

static int attach_best(int ifindex, const char *name, uint64_t threshold, int udp)
{
    static const struct {
        unsigned load;
        uint32_t mode;
        const char *name;
    } ways[] = {
        { BPF_F_XDP_HAS_FRAGS, XDP_FLAGS_DRV_MODE, "native, frags" },
        { 0, XDP_FLAGS_DRV_MODE, "native" },
        { 0, XDP_FLAGS_SKB_MODE, "generic" },
    };
    struct bpf_insn insn[N_UDP + 8];
    unsigned n = assemble(insn, threshold, udp);
    static char log[1 << 16];
    int rc = 0;

    for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
        int fd = load(insn, n, ways[i].load, log, sizeof log);

        if (fd == -EACCES)
            fprintf(stderr, "xdp_loss: the verifier: %s\n", log);
        rc = fd;
        if (fd < 0)
            continue;
        rc = attach(ifindex, fd, ways[i].mode);
        close(fd);
        if (rc == 0) {
            printf("%s: %g of %s frames dropped (%s)\n", name, (double)threshold / 4294967296.0,
                   udp ? "UDP" : "all", ways[i].name);
            return 0;
        }
    }
    fprintf(stderr, "xdp_loss: the kernel refuses an XDP program on %s: %s%s\n", name,
            strerror(-rc),
            rc == -EPERM
                ? " (CAP_NET_ADMIN and CAP_BPF are needed, in the first user namespace)"
                : "");
    return SKIP;
}

int main(int argc, char **argv)
{
    int udp = argc == 4 && !strcmp(argv[3], "udp"), ifindex;
    char *end;
    double p;

    if (argc < 3 || argc > 4 || (argc == 4 && !udp)) {
        fprintf(stderr, "usage: xdp_loss IFACE PROBABILITY|off [udp]\n");
        return 2;
    }
    ifindex = (int)if_nametoindex(argv[1]);
    if (!ifindex) {
        fprintf(stderr, "xdp_loss: no interface %s in this network namespace\n", argv[1]);
        return 2;
    }
    if (!strcmp(argv[2], "off")) {
        attach(ifindex, -1, XDP_FLAGS_DRV_MODE);
        attach(ifindex, -1, XDP_FLAGS_SKB_MODE);
        return 0;
    }
    p = strtod(argv[2], &end);
    if (*end || !(p >= 0 && p <= 1)) {
        fprintf(stderr, "xdp_loss: %s is not a probability between 0 and 1\n", argv[2]);
        return 2;
    }
    return attach_best(ifindex, argv[1], (uint64_t)(p * 4294967296.0 + 0.5), udp);
}
