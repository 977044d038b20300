/* SPDX-License-Identifier: BSD-3-Clause */
/* The progress thread of a world: what comes is handled while the program computes. */
#include <sched.h>

#include "collectives/progress/progress.h"

static _Thread_local int is_thread;

int bny_world_is_thread(void)
{
    return is_thread;
}

static void *thread_main(void *arg)
{
    struct bny_world *w = arg;
    struct bny_waiter wt;

    is_thread = 1;
    if (w->thread_cpu >= 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)w->thread_cpu % CPU_SETSIZE, &set);
        if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
            bny_warn("progress thread: cannot bind to CPU %d", w->thread_cpu);
    }
    bny_wait_init(&wt);
    while (!atomic_load_explicit(&w->stop_thread, memory_order_relaxed)) {
        int n = 0;
        if (bny_world_trylock(w)) {
            n = bny_world_progress(w);
            bny_world_unlock(w);
        }
        bny_completed_call();
        if (n > 0)
            bny_wait_found(&wt, w);
        else
            bny_wait_turn(&wt, w, NULL);
    }
    return NULL;
}

int bny_world_thread(struct bny_world *w, int cpu)
{
    BNY_ASSERT_LOCKED(w);
    if (w->has_thread)
        return 0;
    w->thread_cpu = cpu;
    if (pthread_create(&w->thread, NULL, thread_main, w) != 0)
        return bny_fail(BANYAN_ENOMEM, "cannot start a progress thread");
    w->has_thread = 1;
    return 0;
}
