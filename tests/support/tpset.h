/* SPDX-License-Identifier: BSD-3-Clause */
/* A few ranks of one transport in one process, driven in turn by one thread: for tests. */
#ifndef BNY_TESTS_TPSET_H
#define BNY_TESTS_TPSET_H

#include "transport/loop/loop.h"
#include "transport/transport.h"

#define TPSET_RANKS      65
#define TPSET_EVENTS     4096
#define TPSET_DEADLINE_S 20.0 /* of every wait */

struct tpset;
/* Takes the event (then returns 1), or leaves it to the rank's queue (0). */
typedef int (*tpset_sink)(struct tpset *s, int rank, const struct bny_event *ev);

struct tpset {
    const struct bny_transport_ops *ops;
    int n;
    struct bny_tp *tp[TPSET_RANKS];
    struct bny_ep *ep[TPSET_RANKS][TPSET_RANKS]; /* [from][to] */
    uint8_t blob[TPSET_RANKS][BNY_ADDR_MAX];
    int blob_len[TPSET_RANKS];
    struct bny_loop_fabric *fabric;
    uint64_t steps;
    int paused[TPSET_RANKS]; /* a paused rank is not polled */
    int lack_is_down;        /* where a rank's poll fails for want of something here all get a
                              * DOWN with its sentence, once, as the control plane tells it */
    int lacked;
    char lack_why[400];
    tpset_sink sink; /* may be NULL */
    void *user;
    struct bny_event *events[TPSET_RANKS]; /* [TPSET_EVENTS] not taken yet, oldest first */
    int nevents[TPSET_RANKS];
};

/* Creates n ranks and connects all pairs. faults: of loop; ignored by others; may be NULL.
 * Skips the test, with the transport's sentence, when this machine cannot; fails it on any
 * other error. */
void tpset_open(struct tpset *s, const struct bny_transport_ops *ops, int n,
                const struct bny_loop_faults *faults);
/* Destroys what is left of it. */
void tpset_close(struct tpset *s);
/* Another process, with the same secret and the same number: its ports are of that range. It is
 * in no set. NULL: they are taken. */
struct bny_tp *tpset_another(struct tpset *s, int rank, const char *port_range);
/* Destroys one rank only. */
void tpset_destroy_rank(struct tpset *s, int rank);
/* Polls every rank that is not paused once, by turns with poll and poll_ep. */
void tpset_step(struct tpset *s);
/* Takes the oldest event of a kind from rank's queue; steps until there is one. Fails the test
 * at the deadline. */
struct bny_event tpset_wait(struct tpset *s, int rank, enum bny_event_kind kind);
/* Number of events of a kind in rank's queue. */
int tpset_count(const struct tpset *s, int rank, enum bny_event_kind kind);
/* Sends by eager(), steps while the answer is BNY_AGAIN. Fails the test on an error. */
void tpset_eager(struct tpset *s, int from, int to, const struct bny_hdr *hdr, const void *buf);
void tpset_send(struct tpset *s, int from, int to, const struct bny_hdr *hdr, const void *buf,
                void *cookie);
void tpset_reserve(struct tpset *s, int from, int to, uint32_t cap, struct bny_slot *slot);
/* Copies the whole payload out, by data or by view() in pieces of `piece` bytes (into buf
 * itself when to_dst, else by lent tiles). Does not release. */
void tpset_read(struct tpset *s, const struct bny_msg *msg, uint8_t *buf, uint32_t piece,
                int to_dst);
/* A DATA header. */
struct bny_hdr tpset_hdr(int chan, uint32_t seq, uint32_t len);
/* The bytes that message seq between two ranks carries, and the check of them (index of the
 * first wrong byte, or -1). */
void tpset_fill(uint8_t *buf, uint32_t len, int from, int to, uint32_t seq);
long tpset_check(const uint8_t *buf, uint32_t len, int from, int to, uint32_t seq);

#endif
