/* SPDX-License-Identifier: BSD-3-Clause */
/* A child of fork has the memory as it was, and of the threads only the one that forked. What
 * the parent made is known by its generation. A lock of the process (struct bny_lock) is made
 * anew in a child: it may have been another thread's, in the middle of a change. */
#ifndef BNY_BASE_FORK_H
#define BNY_BASE_FORK_H

#include <pthread.h>
#include <stdatomic.h>

extern atomic_uint bny_generation;

/* Another one in each child of fork, once bny_fork_watch() was called. Any thread. */
static inline unsigned bny_process_generation(void)
{
    return atomic_load_explicit(&bny_generation, memory_order_relaxed);
}

void bny_fork_watch(void); /* any thread, any number of times; the first lock calls it, too */

struct bny_lock { /* static: it stays for the life of the process */
    pthread_mutex_t mutex;
    /* In a child: makes what the lock guards whole again, which may be half changed; or NULL.
     */
    void (*in_child)(struct bny_lock *l);
    atomic_int known; /* on the list */
    struct bny_lock *next;
};
#define BNY_LOCK(in_child_)                                                                    \
    {                                                                                          \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .in_child = (in_child_)                            \
    }

void bny_lock_take(struct bny_lock *l);
int bny_lock_try(struct bny_lock *l); /* 1: taken */
static inline void bny_lock_give(struct bny_lock *l)
{
    pthread_mutex_unlock(&l->mutex);
}

#endif
