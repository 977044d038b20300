/* SPDX-License-Identifier: BSD-3-Clause */
/* The functions of DPDK that the transport needs, as a table. The real one is libbanyan-dpdk.so
 * (module/), loaded on first use: the library itself does not depend on DPDK, and tests put a
 * simulated wire behind the same table.
 *
 * Packets cross the table in bursts, so one indirect call serves up to BNY_DGRAM_BURST of them.
 * Functions that can fail return 0 or -1 and write one sentence to text. Calls for one port
 * come from one thread at a time. */
#ifndef BNY_DGRAM_DRIVER_H
#define BNY_DGRAM_DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BNY_DGRAM_DRIVER_VERSION 7 /* of this table: library and module come from one build */
#define BNY_DGRAM_BURST          32
#define BNY_DGRAM_TEXT           400
#define BNY_DGRAM_QUEUES         16

/* An IPv6 address, or an IPv4 one as ::ffff:a.b.c.d (RFC 4291, 2.5.5.2); all zero: none. */
struct bny_dgram_ip {
    uint8_t at[16];
};

#define BNY_DGRAM_IP4_AT 12 /* offset of the four bytes of an IPv4 address */
/* Host order. */
#define BNY_DGRAM_IP4(v)                                                                       \
    {                                                                                          \
        {                                                                                      \
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, (uint32_t)(v) >> 24 & 255,                 \
                (uint32_t)(v) >> 16 & 255, (uint32_t)(v) >> 8 & 255, (uint32_t)(v)&255         \
        }                                                                                      \
    }

static inline int bny_dgram_ip_is(const struct bny_dgram_ip *a, const struct bny_dgram_ip *b)
{
    return !memcmp(a, b, sizeof *a);
}

static inline int bny_dgram_ip_none(const struct bny_dgram_ip *a)
{
    static const struct bny_dgram_ip none;

    return bny_dgram_ip_is(a, &none);
}

static inline int bny_dgram_ip_is4(const struct bny_dgram_ip *a)
{
    static const struct bny_dgram_ip any = BNY_DGRAM_IP4(0);

    return !memcmp(a, &any, BNY_DGRAM_IP4_AT);
}

/* fe80::/10: link-local, whatever the subnet. */
static inline int bny_dgram_ip_is_local(const struct bny_dgram_ip *a)
{
    return a->at[0] == 0xfe && (a->at[1] & 0xc0) == 0x80;
}

enum bny_dgram_kind {
    BNY_DGRAM_MEMIF,
    BNY_DGRAM_RING,
    BNY_DGRAM_AF_PACKET,
    BNY_DGRAM_VDEV,
    BNY_DGRAM_PCI,
    BNY_DGRAM_UD /* not DPDK: transport/ud */
};

/* A driver's actual abilities; its own report is wrong in places (docs/dpdk-inside.md). */
enum bny_dgram_caps {
    BNY_DGRAM_GATHER = 1 << 0,     /* sends packets of several segments */
    BNY_DGRAM_EXT_ANY = 1 << 1,    /* a segment may be in any memory of the process */
    BNY_DGRAM_EXT_EAL = 1 << 2,    /* ... or only in memory of alloc() and of map() */
    BNY_DGRAM_PAIR = 1 << 3,       /* one port for each peer */
    BNY_DGRAM_LOSSLESS = 1 << 4,   /* all frames that the driver accepts arrive, in order */
    BNY_DGRAM_LINK_TELLS = 1 << 5, /* the link goes down when the peer's process ends */
    BNY_DGRAM_KERNEL_IP = 1 << 6,  /* the kernel has the interface too, and answers ARP */
    BNY_DGRAM_CSUM = 1 << 7,       /* computes IP and UDP checksums */
    BNY_DGRAM_VERIFIES =
        1
        << 8, /* drops frames with a wrong UDP checksum; 0 means none, if the address is IPv4 */
    BNY_DGRAM_UNORDERED = 1 << 9, /* repairs losses itself, without order */
};

struct bny_dgram_conf {
    enum bny_dgram_kind kind;
    const char *device; /* interface, vdev string or PCI address */
    const char *iface;  /* the kernel's interface behind it, or "" */
    const char *link;   /* pairs: name known to both ends */
    const char *secret; /* pairs: at most 24 bytes of text */
    int id, server;     /* pairs: number at the server; which end this is */
    uint32_t frame_max; /* size of a frame that must pass */
    uint32_t bufs;      /* receive buffers that may be held at once */
    uint32_t ring;  /* devices: frames that may come between two polls; the port may have fewer
                       places */
    uint8_t mac[6]; /* pairs: ours */
    int queues;     /* devices: in each direction */
    struct bny_dgram_ip ip; /* devices: our address, for steering; none: unknown */
    uint16_t udp_port;      /* the same; 0: no steering */
    uint16_t vlan; /* devices: of all frames, though none has its tag in this table; 0: none */
    /* BNY_DGRAM_UD */
    int rank, nranks;
    const char *ifname; /* BANYAN_IFNAME syntax */
};

struct bny_dgram_info {
    unsigned caps;
    uint32_t frame_max;
    uint8_t mac[6];
    char driver[32];
    int queues;
    uint32_t ring;   /* receive places of all queues; 0: unknown */
    uint32_t mbps;   /* the link's speed, or the card's highest; 0: unknown or not credible, as
                        for virtual ports */
    uint64_t pinned; /* bytes of its buffers, if the caller counts them */
    char name[96];   /* the opened device; "": as requested */
    char notes[400]; /* for the log: queues, steering and attached memory */
};

/* A frame to send: head is copied; body is attached if ref is set and the port can, else
 * copied. */
struct bny_dgram_tx {
    const void *head, *body;
    uint32_t head_len, body_len;
    struct bny_dgram_ref *ref; /* for body's memory */
};

struct bny_dgram_rx {
    void *buf; /* return it with free() */
    const uint8_t *data;
    uint32_t len;
    uint8_t summed; /* the port verified the UDP checksum */
};

/* Counts the users of some memory: the owner and each frame that the driver holds. */
struct bny_dgram_ref {
    uint64_t opaque[4];
};

struct bny_dgram_port;

struct bny_dgram_driver {
    uint32_t version;
    /* Starts the EAL, once per process, or uses the one that the program started. args:
     * additional ones; device: a PCI address that must be probed, or NULL. loud: DPDK's own
     * lines go to stderr; else, on failure, the last one goes into text. */
    int (*start)(const char *args, const char *device, int loud, char *text);
    int (*open)(const struct bny_dgram_conf *conf, struct bny_dgram_port **out,
                struct bny_dgram_info *info, char *text);
    void (*close)(struct bny_dgram_port *port);
    /* 1 up, 0 down. A pair that is not connected yet retries. */
    int (*link_up)(struct bny_dgram_port *port);
    /* Returns how many were accepted: the first ones. */
    int (*tx)(struct bny_dgram_port *port, const struct bny_dgram_tx *tx, int n);
    int (*rx)(struct bny_dgram_port *port, struct bny_dgram_rx *rx, int n);
    void (*free)(void *const *bufs, int n);
    /* Lets the driver return sent frames. Many do so only when they get more. */
    void (*reclaim)(struct bny_dgram_port *port);
    /* Makes it return all frames, sent or not: stops and starts the port. Frames get lost. */
    void (*flush)(struct bny_dgram_port *port);
    void (*ref_init)(struct bny_dgram_ref *ref);
    int (*ref_busy)(const struct bny_dgram_ref *ref);
    void *(*alloc)(
        size_t bytes); /* page-aligned memory that ports can send from; NULL: none left */
    void (*release)(void *mem);
    int (*owns)(const void *mem, size_t bytes); /* 1: memory of alloc() */
    /* Whole pages of any memory, which the port may then read until unmap(); by then the caller
     * ensures that no frame refers to them. */
    int (*map)(struct bny_dgram_port *port, void *mem, size_t bytes, char *text);
    void (*unmap)(struct bny_dgram_port *port, void *mem, size_t bytes);
    size_t page; /* size of these pages */
    /* Frames dropped by the port since it was opened. */
    uint64_t (*missed)(struct bny_dgram_port *port);
    /* For a link that is up, like info->mbps. */
    uint32_t (*mbps)(struct bny_dgram_port *port);
    /* Requests an event for the next frame, and returns the descriptor that becomes readable
     * then; -1: no event comes. Frames already there cause none. disarm: the event was handled.
     * NULL: like -1. */
    int (*arm)(struct bny_dgram_port *port);
    void (*disarm)(struct bny_dgram_port *port);
    /* 0: the rank has a route, or needed none yet; -1: none now, -2: never again. */
    int (*way)(struct bny_dgram_port *port, int rank, char *text);
    /* The rest only if ranks have addresses of the driver's own (BNY_DGRAM_UD), which follow
     * those of ports.c; else NULL. Ours: returns its length, or -1. */
    int (*address)(struct bny_dgram_port *port, void *out, size_t cap);
    /* 1: a rank with this address is reachable. Untrusted input, here and in peer(). */
    int (*reaches)(struct bny_dgram_port *port, const void *addr, size_t len);
    /* From now on frames to a rank's MAC (ports.c) go to this address. */
    int (*peer)(struct bny_dgram_port *port, int rank, const void *addr, size_t len,
                char *text);
};

/* The module's only symbol. */
typedef const struct bny_dgram_driver *bny_dgram_driver_fn(void);

/* RDMA devices (transport/ud); no module. */
const struct bny_dgram_driver *bny_ud_driver(void);
/* Loads the module; NULL, with the sentence, if it or DPDK is missing. */
const struct bny_dgram_driver *bny_dpdk_driver(void);
/* Tests: replaces the table; NULL: the real one again. */
void bny_dpdk_driver_set(const struct bny_dgram_driver *driver);

#endif
