/* SPDX-License-Identifier: BSD-3-Clause */
/* The descriptor of event loops: an epoll of what the transports' sleepers wait for, and a
 * timer for what no descriptor tells. Between two calls of banyan_progress the transports are
 * armed, as if a thread slept on them. */
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "collectives/local/workers.h"
#include "collectives/progress/progress.h"

/* While an operation runs: a doorbell may be missed, a deadline pass. */
#define BUSY_NS 1000000u
#define JOBS_NS 100000u    /* while threads encode */
#define IDLE_NS 100000000u /* what the control plane has to do, at the latest */

static int descriptor_watch(struct bny_world *w, int fd)
{
    struct epoll_event e = { .events = EPOLLIN, .data = { .fd = fd } };

    return epoll_ctl(w->progress_fd, EPOLL_CTL_ADD, fd, &e);
}

int bny_descriptor_open(struct bny_world *w)
{
    BNY_ASSERT_LOCKED(w);
    if (w->progress_fd >= 0)
        return w->progress_fd;
    w->progress_fd = bny_fd_high(epoll_create1(EPOLL_CLOEXEC));
    w->progress_timer =
        w->progress_fd < 0
            ? -1
            : bny_fd_high(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (w->progress_timer >= 0 && descriptor_watch(w, w->progress_timer) == 0) {
        bny_world_due(w);
        return w->progress_fd;
    }
    bny_fail_errno("banyan_progress_fd: epoll and timer");
    bny_world_close_descriptor(w);
    return -BANYAN_ESYSTEM;
}

static int is_busy(const struct bny_world *w)
{
    for (const struct banyan_comm *c = w->comms; c; c = c->next_comm)
        if (c->active_first || c->service)
            return 1;
    return 0;
}

/* How long nothing needs to be done unless a descriptor says so. */
static uint64_t rest_ns(const struct bny_world *w, uint64_t armed_ns)
{
    uint64_t ns = w->jobs_out ? JOBS_NS : is_busy(w) ? BUSY_NS : IDLE_NS, now = bny_now_ns();

    if (armed_ns < ns && (is_busy(w) || !armed_ns))
        ns = armed_ns;
    if (w->due_ns && w->due_ns < now + ns)
        ns = w->due_ns > now ? w->due_ns - now : 0;
    return ns;
}

/* The descriptors that tell of work from now on; those of before that are none any more are
 * left out. Returns for how long they suffice. */
static uint64_t arm(struct bny_world *w)
{
    uint64_t longest = UINT64_MAX;
    int fds[BNY_DESCRIPTORS_MAX], nfds = bny_world_arm(w, fds, &longest);

    w->descriptor_armed = 1;
    for (int i = 0; i < w->ndescriptors; i++) {
        int k = 0;
        while (k < nfds && fds[k] != w->descriptors[i])
            k++;
        if (k == nfds)
            epoll_ctl(w->progress_fd, EPOLL_CTL_DEL, w->descriptors[i], NULL);
    }
    for (int i = 0; i < nfds; i++)
        descriptor_watch(w, fds[i]); /* EEXIST: it is watched already */
    memcpy(w->descriptors, fds, (size_t)nfds * sizeof *fds);
    w->ndescriptors = nfds;
    return longest;
}

int bny_descriptor_progress(struct bny_world *w)
{
    uint64_t longest;
    int n, more, ticks;

    if (!bny_world_trylock(w))
        return 0;
    if (w->descriptor_armed)
        bny_world_disarm(w);
    w->descriptor_armed = 0;
    n = bny_world_progress(w);
    ticks = bny_now_ns() - w->tick_ns > BUSY_NS / 2;
    if (ticks)
        bny_world_tick(w);
    w->due_ns = 0;
    longest = arm(w);
    more = bny_world_progress(w); /* what came before they were armed */
    bny_world_rest(w, more > 0 ? 0 : rest_ns(w, longest));
    bny_world_unlock(w);
    if (ticks)
        bny_worlds_progress(w);
    bny_completed_call();
    return n + more;
}
