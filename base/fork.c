/* SPDX-License-Identifier: BSD-3-Clause */
/* The only fork handler, and the locks that it resets. */
#include "base/fork.h"

#include <stddef.h>

#include "base/fd.h"

atomic_uint bny_generation = 1;

static const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct bny_lock *_Atomic list;

static void fork_in_child(void)
{
    atomic_fetch_add(&bny_generation, 1);
    list_lock = unlocked;
    bny_fds_in_child();
    for (struct bny_lock *l = atomic_load(&list); l; l = l->next) {
        l->mutex = unlocked;
        if (l->in_child)
            l->in_child(l);
    }
}

static void fork_watch(void)
{
    pthread_atfork(NULL, NULL, fork_in_child);
}

void bny_fork_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, fork_watch);
}

/* Registers the lock before its first use: once registered, it may be held in a fork. */
static void know(struct bny_lock *l)
{
    bny_fork_watch();
    pthread_mutex_lock(&list_lock);
    if (!atomic_load(&l->known)) {
        l->next = atomic_load(&list);
        atomic_store(&list, l);
        atomic_store(&l->known, 1);
    }
    pthread_mutex_unlock(&list_lock);
}

void bny_lock_take(struct bny_lock *l)
{
    if (!atomic_load_explicit(&l->known, memory_order_acquire))
        know(l);
    pthread_mutex_lock(&l->mutex);
}

int bny_lock_try(struct bny_lock *l)
{
    if (!atomic_load_explicit(&l->known, memory_order_acquire))
        know(l);
    return pthread_mutex_trylock(&l->mutex) == 0;
}
