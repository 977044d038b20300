/* SPDX-License-Identifier: BSD-3-Clause */
/* Going on after failures: what calls that agree are made of. */
#ifndef BNY_COLLECTIVES_SURVIVE_H
#define BNY_COLLECTIVES_SURVIVE_H

#include "collectives/world/comm.h"

/* Agrees with all live members of comm on what they contribute (mine->members is set here;
 * each: bytes of each rank of the world), whatever failed; every member makes the same calls of
 * this kind on a communicator in the same order. what: the public function. Blocks up to the
 * communicator's deadline. Returns 0; -BANYAN_ETIMEDOUT at all when members did not come;
 * -BANYAN_ERANKDEAD when the others have excluded this rank. out is borrowed; see bootstrap.h:
 * gone and late name ranks of the world. NULL members of out are not filled. */
int bny_comm_agree(struct banyan_comm *comm, const char *what, struct bny_contribution *mine,
                   struct bny_agreed *out);
/* What that is made of, and calls of some of a communicator's ranks. The number of the call has
 * its highest bit set where id is no communicator's. */
struct bny_meeting {
    struct banyan_comm *comm;
    const char *what, *how; /* the public function; what makes calls meet, in words, or "" */
    const uint64_t *members;
    uint32_t id, call;
    double timeout_s;
    int takes_late; /* that somebody did not come is for the caller to judge */
};
#define BNY_CALL_OF_SOME 0x80000000u
int bny_comm_may_agree(struct banyan_comm *comm, const char *what); /* 0 or an error */
int bny_meet(const struct bny_meeting *m, struct bny_contribution *mine,
             struct bny_agreed *out);
/* The same in parts, for several at a time. look: 1 when it is agreed, 0: not yet, or the
 * error, at which it is over, too; has, gone and late of out are filled, the world polled
 * between. */
int bny_meet_begin(const struct bny_meeting *m, struct bny_contribution *mine);
int bny_meet_look(const struct bny_meeting *m, const struct bny_contribution *mine,
                  const struct bny_agreed *out);
/* 0, or -BANYAN_ETIMEDOUT: the members that did not come. */
int bny_meet_late(const struct bny_meeting *m, const struct bny_agreed *got);
/* The next meeting of all members. members: bny_comm_members, the caller's to free (NULL: no
 * memory). */
void bny_meeting_of_all(struct bny_meeting *m, struct banyan_comm *comm, const char *what,
                        const uint64_t *members);
uint64_t *bny_comm_members(const struct banyan_comm *comm);
/* Has a member been late, for an operation or a call that agrees, until its deadline? */
int bny_comm_was_late(const struct banyan_comm *comm);
/* "ranks 1, 4", as many as there is room for. */
void bny_rank_list(char *buf, size_t cap, const int *ranks, int n);
/* comm_core.c: others would wait for this rank in a communicator that it does not have: id, for
 * want of memory; or, id 0, what the latest split of comm makes, perhaps, as comm failed before
 * this rank heard the number. The calls on comm are counted alike at all. */
void bny_comm_not_made(struct banyan_comm *comm, uint32_t id);
/* Words of a set of the world's ranks. */
static inline size_t bny_world_words(const struct bny_world *w)
{
    return ((size_t)w->nranks + 63) / 64;
}
/* Up to three sets of the world's ranks, zero: up to 4096 ranks without an allocation, so that
 * a rank without memory can still report that to the ranks that wait for it. at NULL: no
 * memory. */
struct bny_sets {
    uint64_t own[3 * 64], *at;
    size_t words; /* of one */
};
void bny_sets_begin(struct bny_sets *s, const struct bny_world *w);
void bny_sets_end(struct bny_sets *s);
static inline int bny_in_set(const uint64_t *set, int rank)
{
    return set[rank / 64] >> (rank % 64) & 1;
}
static inline void bny_add_to_set(uint64_t *set, int rank)
{
    set[rank / 64] |= (uint64_t)1 << (rank % 64);
}
/* Of the communicator's members those in a set of the world's ranks, ascending, the first cap
 * of them. Returns how many there are. */
int bny_comm_members_in(const struct banyan_comm *comm, const uint64_t *set, int *ranks,
                        int cap);

#endif
