/* SPDX-License-Identifier: BSD-3-Clause */
/* The control plane's thread: receives, forwards and answers while the rank computes. It sleeps
 * while no message comes, takes no lock but the control plane's, and handles no signals. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/err.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/param.h"
#include "transport/bootstrap/control.h"

#define STACK                                                                                  \
    (256u << 10) /* it may call the user's log function; untouched pages cost nothing */

void bny_control_wake(struct bny_control *c)
{
    uint64_t one = 1;

    if (c->wake_fd >= 0 && write(c->wake_fd, &one, sizeof one) != sizeof one)
        bny_debug("rank %d: an eventfd cannot be written", c->rank);
}

static void *thread_main(void *arg)
{
    struct bny_control *c = arg;
    int stop, due = 1;

    do {
        struct epoll_event ev[1];
        int ms, n = 0, watcher_ms = -1;

        pthread_mutex_lock(&c->lock);
        control_progress_locked(c);
        due |= c->watcher_due;
        c->watcher_due = 0;
        ms = view_wait_ms(c);
        stop = c->stop;
        pthread_mutex_unlock(&c->lock);
        if (!stop && c->watcher)
            watcher_ms = c->watcher(c->watcher_ctx, due);
        if (watcher_ms >= 0 && (ms < 0 || watcher_ms < ms))
            ms = watcher_ms;
        if (!stop && (n = epoll_wait(c->epfd, ev, 1, ms)) < 0 && errno != EINTR) {
            bny_warn("rank %d: the control plane's thread ends: epoll_wait: %s", c->rank,
                     strerror(errno));
            stop = 1;
        }
        due = n > 0 && ev[0].data.ptr == c;
    } while (!stop);
    return NULL;
}

void bny_control_watch(struct bny_control *c, int (*fn)(void *, int), void *ctx)
{
    if (c->has_thread)
        return;
    c->watcher = fn;
    c->watcher_ctx = ctx;
}

void bny_control_watch_fd(struct bny_control *c, int fd)
{
    struct epoll_event ev = { .events = EPOLLIN | EPOLLET, .data.ptr = c };

    if (fd >= 0 && c->epfd >= 0 && epoll_ctl(c->epfd, EPOLL_CTL_ADD, fd, &ev) != 0)
        bny_debug("rank %d: epoll_ctl: %s", c->rank, strerror(errno));
}

int bny_control_start(struct bny_control *c)
{
    pthread_attr_t attr;
    sigset_t all, before;
    long least = sysconf(_SC_THREAD_STACK_MIN);
    int rc;

    if (c->epfd < 0 || c->has_thread || !bny_param_int("BANYAN_CONTROL_THREAD"))
        return 0;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, least > (long)STACK ? (size_t)least : STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&c->thread, &attr, thread_main, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0)
        bny_warn("rank %d: no thread for the control plane (%s): while this rank computes it "
                 "receives no failure, and ranks that must agree with it wait",
                 c->rank, strerror(rc));
    c->has_thread = rc == 0;
    return 0;
}

void control_stop(struct bny_control *c)
{
    if (!c->has_thread)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = 1;
    pthread_mutex_unlock(&c->lock);
    bny_control_wake(c);
    pthread_join(c->thread, NULL);
    c->has_thread = 0;
}
