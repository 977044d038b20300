/* SPDX-License-Identifier: BSD-3-Clause */
/* A child of fork inherits the memory, but only the thread that forked. A generation number
 * identifies objects that the parent made. A child resets each process-wide lock (struct
 * bny_lock), as another thread may have held it in the middle of a change. */
#ifndef BNY_BASE_FORK_H
#define BNY_BASE_FORK_H

#include <pthread.h>
#include <stdatomic.h>

extern atomic_uint bny_generation;

/* A different number in each child of fork, once bny_fork_watch() was called. Any thread. */
static inline unsigned bny_process_generation(void)
{
    return atomic_load_explicit(&bny_generation, memory_order_relaxed);
}

void bny_fork_watch(void); /* any thread, any number of times; the first lock also calls it */

struct bny_lock { /* static: lives as long as the process */
    pthread_mutex_t mutex;
    /* In a child: repairs the guarded data, which may be half changed; or NULL. */
    void (*in_child)(struct bny_lock *l);
    atomic_int known; /* registered */
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
