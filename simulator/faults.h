/* SPDX-License-Identifier: BSD-3-Clause */
/* The faults of a run: their number by kind; their victims and times follow from the seed.
 */
#ifndef BNY_SIM_FAULTS_H
#define BNY_SIM_FAULTS_H

#include "simulator/sim.h"

enum sim_fault_kind {
    SIM_KILL,    /* a process, at a time */
    SIM_CRASH,   /* a process, inside its n-th call into libc */
    SIM_STOP,    /* a process, for some time */
    SIM_CUT,     /* the way between two hosts, for some time */
    SIM_SPLIT,   /* all ways between two parts of the hosts, for longer */
    SIM_VANISH,  /* a host, for good */
    SIM_RESET,   /* one connection */
    SIM_BREAK,   /* one that carries data: with keepalive, without a user timeout */
    SIM_ONEWAY,  /* as SPLIT, but what the second part sends still reaches the first */
    SIM_PARTIAL, /* a host's ways to some others, whom the rest still reach; one way or both */
    SIM_FAULT_KINDS
};

struct sim_fault {
    enum sim_fault_kind kind;
    int victim, other; /* ranks; other: CUT's */
    int ways; /* PARTIAL: 1: what the victim sends is lost, 2: what they send, 3: both */
    uint64_t at, for_ns;
    /* CRASH: of the call; RESET: of the connection; SPLIT, ONEWAY: hosts of a part; PARTIAL: of
     * those behind the victim's */
    uint64_t number;
    int bridge; /* SPLIT: this host reaches both parts; -1: none does */
};

#define SIM_FAULTS_MAX 32

/* "kill=2,cut=1" into so many of each kind. 0, or -1 after a message. */
int sim_faults_parse(int count[SIM_FAULT_KINDS], const char *text);
/* Draws them; some fewer than at most, where `some`. Returns their number. */
int sim_faults_draw(struct sim_fault *out, const int count[SIM_FAULT_KINDS], int some,
                    uint64_t window_ns, uint64_t *seed);
/* Their times count from now on, and calls of ranks, too. */
void sim_faults_plan(struct sim_fault *faults, int n);
void sim_fault_print(const struct sim_fault *f);
/* SPLIT, ONEWAY: the part that rank r is in, 0 or 1; -1: it reaches both. PARTIAL: 0: the
 * victim's host, 1: those it does not reach, -1: the rest. */
int sim_fault_part(const struct sim_fault *f, int r);
/* Is rank r one that may be found dead or silent by this fault? */
int sim_fault_hits(const struct sim_fault *f, int r);

#endif
