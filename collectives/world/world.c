/* SPDX-License-Identifier: BSD-3-Clause */
/* Making a world, and its lock. */
#include "collectives/world/world.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/param.h"
#include "base/secret.h"

/* ---- lock ---- */

void bny_world_lock_contended(struct bny_world *w)
{
    for (unsigned i = 0; !bny_world_trylock(w); i++) {
        if (i % 64 == 63)
            sched_yield();
        else
            bny_pause();
    }
}

/* ---- making ---- */

struct bny_world *bny_world_new(int nranks, int rank)
{
    struct bny_world *w = calloc(1, sizeof *w);

    bny_fork_watch();
    if (!w)
        return NULL;
    w->rank = rank;
    w->nranks = nranks;
    w->generation = bny_process_generation();
    w->progress_fd = w->progress_timer = -1;
    w->orderly = 1;
    w->spin_us = bny_param_int("BANYAN_SPIN_US");
    w->codec_crc = (int)bny_param_int("BANYAN_CODEC_CRC");
    w->codec_force = (int)bny_param_int("BANYAN_CODEC_FORCE");
    w->encode_threads = bny_param_int("BANYAN_ENCODE_THREADS");
    w->link_Bps = bny_param_real("BANYAN_LINK_GBPS") / 8e-9;
    atomic_flag_clear(&w->lock);
    atomic_init(&w->refs, 1);
    w->secret = bny_secret_new();
    if (w->secret && bny_members_init(&w->members, nranks) == 0)
        return w;
    bny_secret_free(w->secret);
    free(w);
    return NULL;
}

void bny_world_rest(struct bny_world *w, uint64_t ns)
{
    struct itimerspec once = { .it_value = { .tv_sec = (time_t)(ns / 1000000000u),
                                             .tv_nsec = (long)(ns % 1000000000u) } };

    if (!ns)
        once.it_value.tv_nsec = 1; /* 0 stops it */
    if (w->progress_timer >= 0)
        timerfd_settime(w->progress_timer, 0, &once, NULL);
}

void bny_world_due(struct bny_world *w)
{
    bny_world_rest(w, 0);
}

void bny_world_close_descriptor(struct bny_world *w)
{
    if (w->progress_timer >= 0)
        close(w->progress_timer);
    if (w->progress_fd >= 0)
        close(w->progress_fd);
    w->progress_fd = w->progress_timer = -1;
}

static void plain_free(struct bny_plain *p)
{
    while (p) {
        struct bny_plain *next = p->next;

        if (p->owned)
            free(p->ptr);
        free(p);
        p = next;
    }
}

void bny_world_delete(struct bny_world *w)
{
    plain_free(w->plain);
    bny_buffered_free(&w->held);
    bny_members_free(&w->members);
    free(w->memory_of);
    free(w->on_memory);
    bny_secret_free(w->secret);
    free(w);
}
