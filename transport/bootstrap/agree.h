/* SPDX-License-Identifier: BSD-3-Clause */
/* Agreement among ranks that may die at any moment, without a root: a lattice agreement with
 * sticky decisions. Bookkeeping alone: no socket, no clock, no thread; the owner locks, carries
 * messages over its links, and says who is gone.
 *
 * Ranks agree on one thing at a time, an instance. What a rank knows of it is its state: whose
 * contribution is in (has), who takes no part any more (gone; of these: left, who said
 * farewell, and proven, whose process a kernel said has ended), who is left out of this
 * instance because nothing was heard of it for long (late), and the value: AND of 64 bits,
 * union of failure records, a few bytes of each rank. States are merged by union (AND for
 * bits), so they only grow, and a message may come twice, late, or by any way.
 *
 * 1. A state that grew is sent over all links.
 * 2. When has, gone and late cover the members, a member locks: it puts itself into the set of
 *    those that have locked exactly this state (key: its hash). A state that grows has no
 * locks.
 * 3. When all members but those gone and late have locked the same state, it is decided. That
 *    is final. To anything that comes later about this instance the answer is the decision; who
 *    gets one adopts it and sends it on.
 * 4. From a rank that is gone nothing is taken any more, nor from one that is late in this
 *    instance: its decision must not overtake a lock already given to a state without it.
 * 5. A rank that is told to be gone is excluded: it takes no part any more. So is a
 *    member that was late and had decided otherwise; one that had not decided adopts. Of who is
 *    no member nothing goes by what it decided, when it woke and took the locks of all before
 *    it heard that they had gone on without its own.
 * 6. But where a decision says the same as ours, and leaves out more ranks than took part in
 *    it, both stand. In a cut of one direction those who are most hear the locks of the others,
 *    decide with them, and go on; the others do not hear theirs, and after a while decide
 *    without them. They must not end the job when the way is back.
 *
 * Why survivors agree: A decided s. Somebody who decides s' needs A's lock on s', which A does
 * not give any more, or A gone or late in s'. Then either nobody who counts in s' took s from A
 * before that (rule 4), or it holds s and answers so, and its lock is missing in s'. Why it
 * ends: states grow finitely often, and between two growths reach everybody over the links of
 * those who live, which the owner keeps connected.
 *
 * Why rule 6 does no harm: what a call answers is has, gone, bits and what each gave; of a view
 * also its records. They are alike, so nobody computes otherwise. Whether a view may be gone on
 * from is asked for by bny_agree_quorum, which counts those left out as lost: where anybody is
 * silent it fails those who are fewer, by default; with BANYAN_QUORUM=any or a number it need
 * not, and both parts may go on. Late is an answer only in a growth's last call: those who are
 * fewer have not joined, as behind a longer cut. (Of views and of growth's last call this was
 * argued, and not seen in a test.) Where the two say different things rule 5 stands.
 *
 * Why rule 5 believes whoever says that we are gone, also those who are too few to go on: an
 * accuser takes nothing from us any more, nor does who has heard it, so it is too late to
 * disagree. To believe only views of ranks who may go on was tried: those who were most were
 * accused by their own, who had heard it, and ended all the same; and of 6000 simulated jobs
 * one went on in two parts. So those who miss many speak later (control_silence.c). */
#ifndef BNY_BOOTSTRAP_AGREE_H
#define BNY_BOOTSTRAP_AGREE_H

#include "transport/bootstrap/bootstrap.h"

#define BNY_AGREE_RECORDS 32 /* of one instance; the smallest stay */
#define BNY_AGREE_VIEWS   16 /* decided views that are kept for those who come late */
#define BNY_AGREE_KEPT    64 /* instances in all */
#define BNY_AGREE_LINKS   64

enum bny_agree_kind {
    BNY_AGREE_VIEW = 1, /* of the world: failures, one view after the other; all are members */
    BNY_AGREE_CALL,     /* a user's call: by communicator and number of the call */
    BNY_AGREE_BLAME,    /* who is where: by communicator and operation */
};
struct bny_agree_id {
    uint32_t kind, comm, seq;
};

struct bny_instance {
    struct bny_agree_id id;
    struct bny_instance *next;
    int entered; /* we have contributed, or are no member */
    int decided;
    int excluded;     /* we had decided otherwise than the others, without us */
    uint64_t unsent;  /* a bit a link: it has not had this state */
    uint64_t changes; /* grows with the state and its locks */
    int pressing;     /* the latest change is one that the others wait for: we locked */
    /* Sets of ranks, [words] each: one block, from has to late what is agreed on. */
    uint64_t *has, *gone, *left, *proven, *late, *locks, *members;
    uint64_t key, bits;
    struct bny_failure *records; /* ascending; NULL: none */
    int nrecords;
    unsigned each;  /* bytes of each rank */
    uint8_t *given; /* [nranks * each]; 0 of who is not in has */
    /* The owner's: when it saw that we had entered; the state it saw change last, and when;
     * until when a call may take; whether somebody waits for the decision, and what was done
     * about it. */
    uint64_t begun_ns, seen_changes, since_ns, deadline_ns;
    int asked, answered, judged, hasty;
    /* The owner's: nothing of it is sent now; what was sent last, and when. */
    int held, sent_have, sent_lack;
    uint64_t sent_changes, sent_ns;
    uint32_t parent; /* who aborts this communicator, from log entry log_from on, ends it */
    int log_from;
};

struct bny_agree {
    int rank, nranks, words;
    uint64_t *gone, *left, *proven; /* as far as we know, of all ranks; parts of gone */
    uint32_t view;                  /* the latest that was decided here; they have no gaps */
    int excluded;                   /* others say that we are gone */
    int leaving;                    /* we said farewell: no part in anything any more */
    int starved;                    /* there was no memory for an instance */
    uint64_t conflicts;             /* decisions that contradict ours: a mistake of this file */
    struct bny_instance *first;     /* from old to new */
    int count;
    struct bny_instance *got; /* the message at hand */
};

static inline int bny_bit(const uint64_t *set, int rank)
{
    return set[rank / 64] >> (rank % 64) & 1;
}

static inline void bny_bit_set(uint64_t *set, int rank)
{
    set[rank / 64] |= (uint64_t)1 << (rank % 64);
}

/* Total order of records; the same order decides which failure counts: cause, rank blamed,
 * communicator, then who reported it and how. */
int bny_failure_compare(const struct bny_failure *a, const struct bny_failure *b);

/* 0 or -BANYAN_ENOMEM. */
int bny_agree_init(struct bny_agree *a, int rank, int nranks);
void bny_agree_finish(struct bny_agree *a);

/* What this rank contributes is copied. Only the first time counts. Returns the instance, which
 * lives until newer ones push it out, or NULL: no memory. */
struct bny_instance *bny_agree_enter(struct bny_agree *a, struct bny_agree_id id,
                                     const struct bny_contribution *c);
struct bny_instance *bny_agree_find(const struct bny_agree *a, struct bny_agree_id id);
/* The view that others have begun and we have not entered, or NULL. */
struct bny_instance *bny_agree_next_view(const struct bny_agree *a);

/* How a rank is known to be gone: a kernel says that its process has ended; it said farewell;
 * nothing was heard of it, and it may live on where we do not reach. */
enum bny_gone { BNY_GONE_PROVEN, BNY_GONE_LEFT, BNY_GONE_SILENT };
/* The rank takes no part any more. */
void bny_agree_gone(struct bny_agree *a, int rank, enum bny_gone how);
/* May those who decided this view go on? P: ranks that were not gone in the view before; K: of
 * these, whose end is proven, or who left; live: those neither gone nor late. Where nobody of P
 * has fallen silent: yes. Else if live > (P - K) / 2, or equal, and the smallest of P - K is
 * live; so of two parts that are cut from each other at most one does. least > 0: if live >=
 * least instead. *cut becomes the number of those of P - K who are not live, *all that of P.
 * Who is proven dead cannot be part of another half. */
int bny_agree_quorum(const struct bny_agree *a, const struct bny_instance *it, int least,
                     int *cut, int *all);
/* Nothing has changed for too long: members that are missing are left out. Returns how many. */
int bny_agree_late(struct bny_agree *a, struct bny_instance *it);

/* Bytes that a message has at most. */
size_t bny_agree_message_max(int nranks);
/* A message of neighbour `from`, over link `link`. Foreign bytes. 0; -BANYAN_EPROTO: broken;
 * -BANYAN_ENOMEM. */
int bny_agree_take(struct bny_agree *a, int from, int link, const uint8_t *data, size_t len);
/* The next message that the link has to carry, but of instances that are held, into
 * buf[bny_agree_message_max()]; its length, or 0: none. */
size_t bny_agree_next(struct bny_agree *a, int link, uint8_t *buf);
/* The link is another connection: all is to be told again. */
void bny_agree_again(struct bny_agree *a, int link);

#endif
