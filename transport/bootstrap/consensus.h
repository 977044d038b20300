/* SPDX-License-Identifier: BSD-3-Clause */
/* Agreement among ranks that may die at any moment, without a root: a lattice agreement with
 * sticky decisions. This is bookkeeping alone, without socket, clock or thread; the owner
 * locks, carries messages over its links, and reports gone ranks.
 *
 * Ranks agree on one instance at a time. A rank's state of an instance is: the ranks whose
 * contribution is in (has), those that take no part any more (gone; subsets of it: left, which
 * sent a farewell, and proven, whose process ended according to a kernel), those left out of
 * this instance because they were silent for long (late), and the value: AND of 64 bits, union
 * of failure records, a few bytes of each rank. Ranks merge states by union (AND for bits), so
 * states only grow, and a message may come twice, late, or over any route.
 *
 * 1. A rank sends a state that grew over all links.
 * 2. When has, gone and late cover the members, a member locks: it adds itself to the set of
 *    ranks that locked exactly this state (key: its hash). When a state grows its locks are
 *    void.
 * 3. When all members but the gone and late ones have locked the same state, it is decided, for
 *    good. A rank answers any later message about this instance with the decision; a rank that
 *    receives a decision adopts it and forwards it.
 * 4. A rank accepts nothing from a rank that is gone, or late in this instance: its decision
 *    must not overtake a lock already given to a state without it.
 * 5. A rank that receives a state in which it is gone is excluded: it takes no part any more.
 *    So is a member that was late and had decided otherwise; one that had not decided adopts. A
 *    non-member that wakes up may decide with locks of all ranks before it receives the
 *    decision that left it out: it stays, as no call of its own used its decision.
 * 6. If a decision has the same value as ours, and leaves out more ranks than took part in it,
 *    both stand. When one direction of a network is cut, the majority receives the minority's
 *    locks, decides with them, and goes on; the minority does not receive the majority's locks
 *    and decides alone after a while. It must not end the job when the network is back.
 *
 * Why survivors agree: A decided s. A rank that decides s' needs A's lock on s', which A
 * refuses from then on, or A gone or late in s'. Then either no rank that counts in s' took s
 * from A before that (rule 4), or one holds s and answers with it, and its lock is missing in
 * s'. Why it ends: states grow finitely often, and between two growths they reach all live
 * ranks over the links, which the owner keeps connected.
 *
 * Why rule 6 is harmless: the result of a call is has, gone, bits and each rank's bytes; that
 * of a view also its records. They are equal, so no rank computes differently.
 * bny_consensus_quorum decides whether ranks may continue from a view, and counts left-out
 * ranks as lost: if any rank is silent it fails the minority by default; with BANYAN_QUORUM=any
 * or a number it may not, and both parts may continue. Late is a result only in a growth's last
 * call: the minority has not joined, as after a longer cut. (For views and growth's last call
 * this is argued, not tested.) If the two values differ rule 5 holds.
 *
 * Why rule 5 believes any accuser, even one of a minority: an accuser accepts nothing from us
 * any more, nor does a rank that received the accusation, so it is too late to disagree. (If
 * only quorate views counted, the majority would still end, as its own members believe the
 * accusation; 1 of 6000 simulated jobs went on in two parts.) So ranks that lost many hosts
 * report later (failure_detector.c). */
#ifndef BNY_BOOTSTRAP_CONSENSUS_H
#define BNY_BOOTSTRAP_CONSENSUS_H

#include "transport/bootstrap/bootstrap.h"

#define BNY_CONSENSUS_RECORDS 32 /* per instance; the smallest stay */
#define BNY_CONSENSUS_VIEWS   16 /* decided views kept for ranks that enter late */
#define BNY_CONSENSUS_KEPT    64 /* instances in all */
#define BNY_CONSENSUS_LINKS   64

enum bny_consensus_kind {
    BNY_CONSENSUS_VIEW =
        1,               /* of the world: failures, one view after another; all are members */
    BNY_CONSENSUS_CALL,  /* a user's call: identified by communicator and number of the call */
    BNY_CONSENSUS_BLAME, /* each member's position: identified by communicator and operation */
    BNY_CONSENSUS_WHERE, /* the same, for a warning: nobody acts on it, so two different
                            decisions may stand */
};
struct bny_consensus_id {
    uint32_t kind, comm, seq;
};

struct bny_instance {
    struct bny_consensus_id id;
    struct bny_instance *next;
    int entered; /* we have contributed, or are no member */
    int decided;
    int excluded;     /* the others decided otherwise, without us */
    uint64_t unsent;  /* one bit for each link that has not carried this state */
    uint64_t changes; /* grows with the state and its locks */
    int pressing;     /* the others wait for the latest change: our lock */
    /* Sets of ranks, [words] each, in one block; those from has to late are agreed on. */
    uint64_t *has, *gone, *left, *proven, *late, *locks, *members;
    uint64_t key, bits;
    struct bny_failure *records; /* ascending; NULL: none */
    int nrecords;
    unsigned each;  /* bytes of each rank */
    uint8_t *given; /* [nranks * each]; 0 for ranks not in has */
    /* The owner's: when it saw that we entered; the last state change it saw, and when; the
     * call's deadline; whether a caller waits for the decision, and what was done about it. */
    uint64_t begun_ns, seen_changes, since_ns, deadline_ns;
    int asked, answered, judged, hasty;
    /* The owner's: the instance is held back; has and lack counts sent last, and when. */
    int held, sent_have, sent_lack;
    uint64_t sent_changes, sent_ns;
    uint32_t parent; /* an abort of this communicator, from log entry log_from on, ends it */
    int log_from;
};

struct bny_consensus {
    int rank, nranks, words;
    uint64_t *gone, *left, *proven; /* gone, of all ranks, as far as we know; its subsets */
    uint32_t view;                  /* the latest decided here; numbers have no gaps */
    int excluded;                   /* others report us as gone */
    int leaving;                    /* we sent our farewell and take no part any more */
    int starved;                    /* no memory was left for an instance */
    uint64_t conflicts;             /* decisions that contradict ours: a bug in this file */
    struct bny_instance *first;     /* from oldest to newest */
    int count;
    struct bny_instance *got; /* the message being decoded */
};

static inline int bny_bit(const uint64_t *set, int rank)
{
    return set[rank / 64] >> (rank % 64) & 1;
}

static inline void bny_bit_set(uint64_t *set, int rank)
{
    set[rank / 64] |= (uint64_t)1 << (rank % 64);
}

/* Total order of records: by cause, blamed rank, communicator, call, reporter, code, text. The
 * same order decides which failure counts. */
int bny_failure_compare(const struct bny_failure *a, const struct bny_failure *b);

/* 0 or -BANYAN_ENOMEM. */
int bny_consensus_init(struct bny_consensus *a, int rank, int nranks);
void bny_consensus_finish(struct bny_consensus *a);

/* Copies this rank's contribution; only the first call counts. Returns the instance, which
 * lives until newer ones push it out, or NULL: no memory. */
struct bny_instance *bny_consensus_enter(struct bny_consensus *a, struct bny_consensus_id id,
                                         const struct bny_contribution *c);
struct bny_instance *bny_consensus_find(const struct bny_consensus *a,
                                        struct bny_consensus_id id);
/* The view that others have begun and this rank has not entered, or NULL. */
struct bny_instance *bny_consensus_next_view(const struct bny_consensus *a);

/* Evidence that a rank is gone: a kernel reported the end of its process; it sent a farewell;
 * or it is silent, and may live on where we cannot reach it. */
enum bny_gone { BNY_GONE_PROVEN, BNY_GONE_LEFT, BNY_GONE_SILENT };
/* The rank takes no part any more. */
void bny_consensus_gone(struct bny_consensus *a, int rank, enum bny_gone how);
/* May the ranks that decided this view go on? P: ranks not gone in the view before; K: those of
 * P that left or whose end is proven; live: ranks neither gone nor late. If no rank of P has
 * fallen silent: yes. Else if live > (P - K) / 2, or equal and the smallest of P - K is live;
 * so at most one of two separated parts goes on. least > 0: if live >= least instead. *cut
 * becomes the number of ranks of P - K that are not live, *all the size of P. A proven dead
 * rank cannot be part of another half. */
int bny_consensus_quorum(const struct bny_consensus *a, const struct bny_instance *it,
                         int least, int *cut, int *all);
/* The state has not changed for too long: leaves out missing members. Returns how many. */
int bny_consensus_late(struct bny_consensus *a, struct bny_instance *it);

/* Upper bound of a message's bytes. */
size_t bny_consensus_message_max(int nranks);
/* Processes a message of neighbour `from`, over link `link`. Untrusted bytes. Returns 0;
 * -BANYAN_EPROTO: malformed; -BANYAN_ENOMEM. */
int bny_consensus_take(struct bny_consensus *a, int from, int link, const uint8_t *data,
                       size_t len);
/* Writes the next message for the link, from instances that are not held, into
 * buf[bny_consensus_message_max()]. Returns its length, or 0: none. */
size_t bny_consensus_next(struct bny_consensus *a, int link, uint8_t *buf);
/* The link has a new connection: everything is sent again. */
void bny_consensus_again(struct bny_consensus *a, int link);

#endif
