/* SPDX-License-Identifier: BSD-3-Clause */
/* Threads of which one runs at a time, by its turn. Each has its own stack and its own
 * thread-local storage. */
#ifndef BNY_SIM_SIM_TURN_H
#define BNY_SIM_SIM_TURN_H

#include <pthread.h>
#include <semaphore.h>

struct sim_turn {
    pthread_t thread;
    sem_t is_on;
    void *sp;         /* of one that does not run */
    unsigned long fs; /* where its thread-local storage is */
};

/* Of the thread that calls. */
void sim_turn_init(struct sim_turn *t);
/* A thread that runs body(arg) in its first turn; body does not return. 0, or an errno. */
int sim_turn_new(struct sim_turn *t, void (*body)(void *arg), void *arg);
/* From the one that runs to the other; returns with the next turn of from. */
void sim_turn_pass(struct sim_turn *from, struct sim_turn *to);

#endif
