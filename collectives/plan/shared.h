/* SPDX-License-Identifier: BSD-3-Clause */
/* Forests of graphs are functions of the graph, the hosts and a name alone, and of many ranks
 * they are slow to make and large. Ranks that live in one process (threads as ranks,
 * banyan_sim) share what one of them has made: what a forest costs, what the simulator says of
 * it, and the forest. The topologies of equal graphs and hosts hold it together. Nobody waits
 * for another one's planning: two that begin at the same time make it twice, and one of the two
 * is kept. A rank that is alone in its process keeps nothing here. Any thread. */
#ifndef BNY_COLLECTIVES_SHARED_H
#define BNY_COLLECTIVES_SHARED_H

#include "collectives/plan/topology_made.h"

/* t is settled: from now on it may share, until it leaves. job: the topology of all ranks, of
 * which t is a part; NULL: t itself. No memory for that: it shares nothing. */
void bny_shared_join(struct bny_topology *t, const struct bny_topology *job);
/* Nothing that was lent to t is used from now on. */
void bny_shared_leave(struct bny_topology *t);

/* Fills m, of zeros but its key, with what another one has made. m->forest, if any, is lent
 * until t leaves; m->shared says so. 1: filled. */
int bny_shared_find(struct bny_topology *t, struct bny_made *m);
/* Shows m to others, if there are any. Takes m's forest with `keep`, and lends it as above;
 * without, the forest stays m's alone. No memory for that: nothing happens. */
void bny_shared_tell(struct bny_topology *t, struct bny_made *m, int keep);
/* A question to the simulator about a forest, and its answer (topology_cost.c). */
struct bny_simulated {
    unsigned phases;
    double bytes, chunk, alpha_s, seconds;
};

/* 1: it was asked the same before, and q->seconds is set. */
int bny_shared_simulated(struct bny_topology *t, const struct bny_made *m,
                         struct bny_simulated *q);
void bny_shared_say(struct bny_topology *t, const struct bny_made *m,
                    const struct bny_simulated *q);

/* Of a forest that nobody keeps, of many ranks: its compiler is lent while ranks of the process
 * make their programs, one after the other. NULL: there is none now. */
struct bny_compiler *bny_shared_borrow(struct bny_topology *t, const struct bny_made *m);
/* Takes a forest that was made for want of one, and its compiler, and lends that. 1: taken; 0:
 * there is nobody to lend it to. */
int bny_shared_lend(struct bny_topology *t, const struct bny_made *m, struct bny_forest *f,
                    struct bny_compiler *k);
/* The program is made. After the last one of its ranks both go. */
void bny_shared_give_back(struct bny_topology *t, const struct bny_made *m);

/* A program that holds copies of the library (banyan_sim) gives them one place in common: of
 * so many bytes, zeros at first, aligned for anything. No other program has it. */
__attribute__((weak, visibility("default"))) void *bny_common_place(size_t bytes);

#endif
