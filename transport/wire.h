/* SPDX-License-Identifier: BSD-3-Clause */
/* The header that every message between ranks carries, 48 bytes, little endian (the only byte
 * order supported; bootstrap refuses others). Transports carry it unread, except len. */
#ifndef BNY_TRANSPORT_WIRE_H
#define BNY_TRANSPORT_WIRE_H

#include <stdint.h>

#define BNY_WIRE_VERSION 23 /* bootstrap compares it; change it with any change below */

enum bny_msg_kind {
    BNY_MSG_DATA = 1,   /* one chunk of a step */
    BNY_MSG_CTS = 2,    /* payload: struct bny_window; its sender has started operation seq */
    BNY_MSG_PUT = 3,    /* a chunk that already lies at its final place (no payload) */
    BNY_MSG_PROBE = 4,  /* sender waits in operation seq (sig) for you; payload: its plan */
    BNY_MSG_RAW = 5,    /* a chunk of a step whose codec declined it: unencoded */
    BNY_MSG_CREDIT = 6, /* for matching alone: collectives/match/ */
    BNY_MSG_ARRIVE = 7, /* to a desk of collectives/arrival/; dropped if that is closed */
    BNY_MSG_OBJECT = 8, /* of an object store: objects/; step selects the kind */
};

/* An operation's signature in 16 bytes, so that a receiver can name both sides of a
 * mismatch. */
#define BNY_SIG_COUNT_BITS (((uint64_t)1 << 48) - 1)

struct bny_sig {
    uint64_t count;      /* elements of the call (0 for v-variants with local counts); with a
                            participation set, or counts by rank, the count (or sum) takes
                            48 bits, below a mark of those that begins with a 1 */
    uint32_t root_tag;   /* root rank (collectives with root), xor opts.tag rotated by 16 bits;
                            point to point: tag */
    uint8_t collective;  /* enum bny_collective */
    uint8_t dtype;       /* enum banyan_dtype */
    uint8_t op;          /* built-in op kind; 0xfe user, 0xfd premul */
    uint8_t codec_sched; /* hash of codec and schedule names, chunk bytes and deterministic */
};

struct bny_hdr {
    uint32_t comm;  /* communicator id */
    uint32_t seq;   /* operation number in that communicator; point to point: of the tag */
    uint16_t step;  /* ordinal of this message's step among those from its sender to its
                       receiver; point to point: epoch * 2, + 1 from the sender of the data */
    uint8_t kind;   /* enum bny_msg_kind */
    uint8_t chan;   /* 0..BNY_CHANNELS-1: channels do not block each other */
    uint32_t chunk; /* chunk number in the step; CREDIT: 1 asks for credit */
    struct bny_sig sig;
    uint32_t len;           /* payload bytes */
    uint32_t codec_len_raw; /* raw bytes it stands for (equals len when not encoded) */
    uint32_t started;       /* newest operation number that its sender has started on that
                               communicator; point to point: units received from the peer */
    uint32_t crc; /* RAW: crc32c of the payload if the ranks agreed on checksums; else 0 */
};
_Static_assert(sizeof(struct bny_sig) == 16, "wire format");
_Static_assert(sizeof(struct bny_hdr) == 48, "wire format");

#define BNY_CHANNELS 4

#endif
