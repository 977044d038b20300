/* SPDX-License-Identifier: BSD-3-Clause */
/* What the transport needs of DPDK, as a table of functions. The real one is libbanyan-dpdk.so
 * (module/), loaded on first use: the library itself does not depend on DPDK, and tests put a
 * simulated wire behind the same table.
 *
 * Packets cross the table in bursts, so one indirect call serves up to BNY_DPDK_BURST of them.
 * Functions that can fail return 0 or -1 and write one sentence to text. Calls for one port
 * come from one thread at a time. */
#ifndef BNY_DPDK_DRIVER_H
#define BNY_DPDK_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BNY_DPDK_DRIVER_VERSION 7 /* of this table: library and module come from one build */
#define BNY_DPDK_BURST          32
#define BNY_DPDK_TEXT           400
#define BNY_DPDK_QUEUES         16

/* An IPv6 address, or an IPv4 one as ::ffff:a.b.c.d (RFC 4291, 2.5.5.2); all zero: none. */
struct bny_dpdk_ip {
    uint8_t at[16];
};

#define BNY_DPDK_IP4_AT 12 /* where the four bytes of an IPv4 address stand */
/* Host order. */
#define BNY_DPDK_IP4(v)                                                                        \
    {                                                                                          \
        {                                                                                      \
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, (uint32_t)(v) >> 24 & 255,                 \
                (uint32_t)(v) >> 16 & 255, (uint32_t)(v) >> 8 & 255, (uint32_t)(v)&255         \
        }                                                                                      \
    }

static inline int bny_dpdk_ip_is(const struct bny_dpdk_ip *a, const struct bny_dpdk_ip *b)
{
    return !memcmp(a, b, sizeof *a);
}

static inline int bny_dpdk_ip_none(const struct bny_dpdk_ip *a)
{
    static const struct bny_dpdk_ip none;

    return bny_dpdk_ip_is(a, &none);
}

static inline int bny_dpdk_ip_is4(const struct bny_dpdk_ip *a)
{
    static const struct bny_dpdk_ip any = BNY_DPDK_IP4(0);

    return !memcmp(a, &any, BNY_DPDK_IP4_AT);
}

/* fe80::/10: of one link, whatever the subnet. */
static inline int bny_dpdk_ip_is_local(const struct bny_dpdk_ip *a)
{
    return a->at[0] == 0xfe && (a->at[1] & 0xc0) == 0x80;
}

enum bny_dpdk_kind {
    BNY_DPDK_MEMIF,
    BNY_DPDK_RING,
    BNY_DPDK_AF_PACKET,
    BNY_DPDK_VDEV,
    BNY_DPDK_PCI,
    BNY_DPDK_UD /* none of DPDK: transport/ud */
};

/* What a driver really does; what it reports itself is wrong in places (docs/dpdk-inside.md).
 */
enum bny_dpdk_caps {
    BNY_DPDK_GATHER = 1 << 0,     /* sends packets of several segments */
    BNY_DPDK_EXT_ANY = 1 << 1,    /* a segment may lie in any memory of the process */
    BNY_DPDK_EXT_EAL = 1 << 2,    /* ... or only in memory of alloc() and of map() */
    BNY_DPDK_PAIR = 1 << 3,       /* one port for each peer */
    BNY_DPDK_LOSSLESS = 1 << 4,   /* what the driver takes arrives, in order */
    BNY_DPDK_LINK_TELLS = 1 << 5, /* the link goes down when the peer's process ends */
    BNY_DPDK_KERNEL_IP = 1 << 6,  /* the kernel has the interface too, and answers ARP */
    BNY_DPDK_CSUM = 1 << 7,       /* computes IP and UDP checksums */
    BNY_DPDK_VERIFIES = 1 << 8,   /* drops frames whose UDP checksum is wrong; 0 is none, where
                                     the address is IPv4 */
    BNY_DPDK_UNORDERED = 1 << 9,  /* repairs losses itself, and keeps no order */
};

struct bny_dpdk_conf {
    enum bny_dpdk_kind kind;
    const char *device;    /* interface, vdev string or PCI address */
    const char *iface;     /* the kernel's interface behind it, or "" */
    const char *link;      /* pairs: name that both ends know */
    const char *secret;    /* pairs: at most 24 bytes of text */
    int id, server;        /* pairs: number at the server; which end this is */
    uint32_t frame_max;    /* bytes of a frame that must pass */
    uint32_t bufs;         /* receive buffers that may be held at once */
    uint32_t ring;         /* devices: frames that may come between two looks; the port may have
                              fewer places */
    uint8_t mac[6];        /* pairs: ours */
    int queues;            /* devices: each way */
    struct bny_dpdk_ip ip; /* devices: ours, to be steered to us; none: not known */
    uint16_t udp_port;     /* the same; 0: nothing is steered */
    uint16_t vlan; /* devices: of all frames, told by none that crosses the table; 0: none */
    /* BNY_DPDK_UD */
    int rank, nranks;
    const char *ifname; /* BANYAN_IFNAME syntax */
};

struct bny_dpdk_info {
    unsigned caps;
    uint32_t frame_max;
    uint8_t mac[6];
    char driver[32];
    int queues;
    uint32_t ring;   /* receive places of all queues; 0: not known */
    uint32_t mbps;   /* the link's speed, or the most that the card has; 0: not known, or not to
                        be believed: virtual ports say what they like */
    uint64_t pinned; /* bytes of its buffers, where the caller counts them */
    char name[96];   /* what was opened; "": as it was asked for */
    char notes[400]; /* what became of queues, steering and attached memory, for the log */
};

/* One frame to be sent: head is copied; body is attached where the port can, when ref is set,
 * else copied. */
struct bny_dpdk_tx {
    const void *head, *body;
    uint32_t head_len, body_len;
    struct bny_dpdk_ref *ref; /* of body's memory */
};

struct bny_dpdk_rx {
    void *buf; /* to be given back by free() */
    const uint8_t *data;
    uint32_t len;
    uint8_t summed; /* the port found the UDP checksum to be right */
};

/* Counts who still uses some memory: the owner and each frame that the driver holds. */
struct bny_dpdk_ref {
    uint64_t opaque[4];
};

struct bny_dpdk_port;

struct bny_dpdk_driver {
    uint32_t version;
    /* Starts the EAL, once per process, or takes the one that the program started. args: extra
     * ones; device: a PCI address that must be probed, or NULL. loud: DPDK's own lines go to
     * stderr, else the last one goes into text when something fails. */
    int (*start)(const char *args, const char *device, int loud, char *text);
    int (*open)(const struct bny_dpdk_conf *conf, struct bny_dpdk_port **out,
                struct bny_dpdk_info *info, char *text);
    void (*close)(struct bny_dpdk_port *port);
    /* 1 up, 0 down. A pair that is not connected yet tries again. */
    int (*link_up)(struct bny_dpdk_port *port);
    /* Returns how many were taken: the first ones. */
    int (*tx)(struct bny_dpdk_port *port, const struct bny_dpdk_tx *tx, int n);
    int (*rx)(struct bny_dpdk_port *port, struct bny_dpdk_rx *rx, int n);
    void (*free)(void *const *bufs, int n);
    /* Lets the driver give back what it has sent. Many do so only while they are given more. */
    void (*reclaim)(struct bny_dpdk_port *port);
    /* Has it give back everything, sent or not: stops and starts the port. Frames get lost. */
    void (*flush)(struct bny_dpdk_port *port);
    void (*ref_init)(struct bny_dpdk_ref *ref);
    int (*ref_busy)(const struct bny_dpdk_ref *ref);
    void *(*alloc)(
        size_t bytes); /* page-aligned memory that ports can send from; NULL: none left */
    void (*release)(void *mem);
    int (*owns)(const void *mem, size_t bytes); /* 1: memory of alloc() */
    /* Whole pages of any memory, which the port may then read until unmap(); the caller sees to
     * it that no frame points there any more. */
    int (*map)(struct bny_dpdk_port *port, void *mem, size_t bytes, char *text);
    void (*unmap)(struct bny_dpdk_port *port, void *mem, size_t bytes);
    size_t page; /* bytes of these pages */
    /* Frames that the port dropped or could not keep, since it was opened. */
    uint64_t (*missed)(struct bny_dpdk_port *port);
    /* Of a link that is up, as info->mbps. */
    uint32_t (*mbps)(struct bny_dpdk_port *port);
    /* Asks for a sign of the next frame, and returns the descriptor that becomes readable with
     * it; -1: nobody wakes. Frames that are there already give none. disarm: it was looked at.
     * NULL: as -1. */
    int (*arm)(struct bny_dpdk_port *port);
    void (*disarm)(struct bny_dpdk_port *port);
    /* 0: there is a way to the rank, or none was needed yet; -1: not now, -2: never again. */
    int (*way)(struct bny_dpdk_port *port, int rank, char *text);
    /* The rest only where ranks have addresses of the driver's own (BNY_DPDK_UD), which stand
     * behind those of ports.c; else NULL. Ours: its length, or -1. */
    int (*address)(struct bny_dpdk_port *port, void *out, size_t cap);
    /* 1: a rank with this address is reached. Foreign input, here and in peer(). */
    int (*reaches)(struct bny_dpdk_port *port, const void *addr, size_t len);
    /* Frames to a rank's MAC (ports.c) go to this address from now on. */
    int (*peer)(struct bny_dpdk_port *port, int rank, const void *addr, size_t len, char *text);
};

/* The module's only symbol. */
typedef const struct bny_dpdk_driver *bny_dpdk_driver_fn(void);

/* RDMA devices (transport/ud); no module. */
const struct bny_dpdk_driver *bny_ud_driver(void);
/* Loads the module; NULL, with the sentence, where it or DPDK is absent. */
const struct bny_dpdk_driver *bny_dpdk_driver(void);
/* Tests: this table instead; NULL: the real one again. */
void bny_dpdk_driver_set(const struct bny_dpdk_driver *driver);

#endif
