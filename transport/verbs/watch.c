/* SPDX-License-Identifier: BSD-3-Clause */
/* Detects changes of memory: watch.h. */
#include "transport/verbs/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fork.h"

#define FLOOD         100 /* events a second */
#define FLOOD_SECONDS 3
#define BATCH         16
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

struct range {
    uintptr_t start, end;
    uint8_t taken, changed;
};

struct vb_watch {
    int fd, stop; /* stop: ends the thread */
    pthread_t thread;
    int runs;
    void *page; /* our own, watched: to query changes in progress */
    size_t page_bytes;
    pthread_mutex_t lock; /* of what follows. Its holder neither allocates nor frees: the thread
                             would wait for it, and the kernel for the thread */
    struct range ranges[VB_WATCHED];
    uint64_t changes;
    uint64_t second_ns;
    int in_second, seconds, flooded;
};

/* ---- the thread ---- */

static void watch_changed(struct vb_watch *w, uint64_t start, uint64_t end)
{
    w->changes++;
    for (int i = 0; i < VB_WATCHED; i++)
        if (w->ranges[i].taken && w->ranges[i].start < end && start < w->ranges[i].end)
            w->ranges[i].changed = 1;
}

static void watch_count(struct vb_watch *w, int n)
{
    uint64_t now = bny_now_ns();

    if (now - w->second_ns >= 1000000000u) {
        w->seconds =
            w->in_second > FLOOD && now - w->second_ns < 2000000000u ? w->seconds + 1 : 0;
        w->second_ns = now;
        w->in_second = 0;
    }
    w->in_second += n;
    w->flooded |= w->seconds >= FLOOD_SECONDS;
}

/* The changing thread continues once its event is read: the lock is held from before that, so
 * that nobody looks in between. */
static void take_events(struct vb_watch *w)
{
    struct uffd_msg msg[BATCH];
    ssize_t got;

    pthread_mutex_lock(&w->lock);
    got = read(w->fd, msg, sizeof msg);
    for (int i = 0; i < (int)(got / (ssize_t)sizeof *msg); i++) {
        if (msg[i].event == UFFD_EVENT_REMAP) {
            watch_changed(w, msg[i].arg.remap.from,
                          msg[i].arg.remap.from + msg[i].arg.remap.len);
            watch_changed(w, msg[i].arg.remap.to, msg[i].arg.remap.to + msg[i].arg.remap.len);
        } else if (msg[i].event == UFFD_EVENT_UNMAP || msg[i].event == UFFD_EVENT_REMOVE) {
            watch_changed(w, msg[i].arg.remove.start, msg[i].arg.remove.end);
        }
    }
    if (got > 0)
        watch_count(w, (int)(got / (ssize_t)sizeof *msg));
    pthread_mutex_unlock(&w->lock);
}

static void *watch(void *arg)
{
    struct vb_watch *w = arg;
    struct pollfd fds[2] = { { .fd = w->fd, .events = POLLIN },
                             { .fd = w->stop, .events = POLLIN } };

    while (!(fds[1].revents & POLLIN)) {
        if (poll(fds, 2, -1) > 0 && fds[0].revents)
            take_events(w);
    }
    return NULL;
}

/* ---- which memory ---- */

/* Which part of [start, end) is in this line of /proc/self/maps? Returns its end, 0: this is
 * memory of another kind. */
static uintptr_t covers(const char *line, uintptr_t start, uintptr_t end)
{
    unsigned long from, to, inode;
    char mode[5], name[8] = "";

    if (sscanf(line, "%lx-%lx %4s %*s %*s %lu %7s", &from, &to, mode, &inode, name) < 4 ||
        to <= start || from >= end)
        return start;
    if (from > start || mode[3] != 'p' || mode[0] != 'r' || mode[1] != 'w' || inode ||
        (name[0] && strcmp(name, "[heap]") != 0 && strncmp(name, "[stack", 6) != 0 &&
         strncmp(name, "[anon", 5) != 0))
        return 0;
    return to < end ? to : end;
}

static int is_anonymous(uintptr_t start, uintptr_t end)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t cap = 0;

    while (f && start && start < end && getline(&line, &cap, f) > 0)
        start = covers(line, start, end);
    free(line);
    if (f)
        fclose(f);
    return start == end;
}

/* ---- ranges ---- */

static int register_range(const struct vb_watch *w, uintptr_t start, uintptr_t end)
{
    struct uffdio_register r = { .range = { start, end - start },
                                 .mode = UFFDIO_REGISTER_MODE_WP };

    return ioctl(w->fd, UFFDIO_REGISTER, &r);
}

int bny_verbs_watch(struct vb_watch *w, uintptr_t start, uintptr_t end)
{
    int number = 0;

    if (!is_anonymous(start, end) || register_range(w, start, end) != 0)
        return -1;
    pthread_mutex_lock(&w->lock);
    while (number < VB_WATCHED && w->ranges[number].taken)
        number++;
    if (number < VB_WATCHED)
        w->ranges[number] = (struct range){ .start = start, .end = end, .taken = 1 };
    pthread_mutex_unlock(&w->lock);
    return number < VB_WATCHED ? number : -1;
}

/* The kernel drops it, too, unless other ranges overlap it: otherwise changes would be reported
 * in vain, and delay the thread that makes them. */
void bny_verbs_unwatch(struct vb_watch *w, int number)
{
    struct range r;
    int shared = 0;

    pthread_mutex_lock(&w->lock);
    r = w->ranges[number];
    w->ranges[number].taken = 0;
    for (int i = 0; i < VB_WATCHED; i++)
        shared |=
            w->ranges[i].taken && w->ranges[i].start < r.end && r.start < w->ranges[i].end;
    pthread_mutex_unlock(&w->lock);
    if (!shared && !r.changed) /* else it may belong to another range by now */
        ioctl(w->fd, UFFDIO_UNREGISTER,
              &(struct uffdio_range){ .start = r.start, .len = r.end - r.start });
}

/* The kernel returns EAGAIN while a change is in progress, from before its begin until its
 * thread continues. So a thread that got memory at this place after a change sees it
 * reported. */
static int is_steady(const struct vb_watch *w)
{
    struct uffdio_writeprotect none = { .range = { (uintptr_t)w->page, w->page_bytes } };

    return ioctl(w->fd, UFFDIO_WRITEPROTECT, &none) == 0;
}

int bny_verbs_is_as_it_was(struct vb_watch *w, int number)
{
    return is_steady(w) && !bny_verbs_has_changed(w, number);
}

int bny_verbs_has_changed(struct vb_watch *w, int number)
{
    int changed;

    pthread_mutex_lock(&w->lock);
    changed = w->ranges[number].changed;
    pthread_mutex_unlock(&w->lock);
    return changed;
}

uint64_t bny_verbs_watch_changes(struct vb_watch *w)
{
    uint64_t changes;

    pthread_mutex_lock(&w->lock);
    changes = w->changes;
    pthread_mutex_unlock(&w->lock);
    return changes;
}

int bny_verbs_watch_is_flooded(struct vb_watch *w)
{
    int flooded;

    pthread_mutex_lock(&w->lock);
    flooded = w->flooded;
    pthread_mutex_unlock(&w->lock);
    return flooded;
}

/* ---- life ---- */

/* Tests that changes of the two main kinds are reported. */
static int try_out(struct vb_watch *w)
{
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    int seen = 1;

    for (int how = 0; how < 2 && seen; how++) {
        char *at = mmap(NULL, w->page_bytes, prot, flags, -1, 0);
        int number;

        if (at == MAP_FAILED)
            return 0;
        *at = 1;
        number = bny_verbs_watch(w, (uintptr_t)at, (uintptr_t)at + w->page_bytes);
        seen = number >= 0 && bny_verbs_is_as_it_was(w, number);
        if (seen && how == 0)
            madvise(at, w->page_bytes, MADV_DONTNEED);
        munmap(at, w->page_bytes);
        seen &= number >= 0 && !bny_verbs_is_as_it_was(w, number);
        if (number >= 0)
            bny_verbs_unwatch(w, number);
    }
    return seen && is_steady(w);
}

static int open_fd(struct vb_watch *w)
{
    const uint64_t events =
        UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;
    struct uffdio_api api = { .api = UFFD_API,
                              .features = events | UFFD_FEATURE_PAGEFAULT_FLAG_WP };

    w->fd = bny_fd_high(
        (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
    if (w->fd < 0 && errno == EINVAL) /* before Linux 5.11 */
        w->fd = bny_fd_high((int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
    if (w->fd < 0)
        return bny_fail(
            BANYAN_ENOTSUP,
            "userfaultfd is not available (%s): sysctl vm.unprivileged_userfaultfd=1, and "
            "check that the container's seccomp profile allows it",
            strerror(errno));
    if (ioctl(w->fd, UFFDIO_API, &api) != 0)
        return bny_fail(
            BANYAN_ENOTSUP,
            "userfaultfd does not report changes (%s): Linux 5.7 on x86-64 does, 6.10 on arm64",
            strerror(errno));
    return 0;
}

static int start_thread(struct vb_watch *w)
{
    sigset_t all, before;

    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    errno = pthread_create(&w->thread, NULL, watch, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->runs = errno == 0;
    return w->runs ? 0 : -1;
}

static int open_rest(struct vb_watch *w)
{
    w->stop = bny_fd_high(eventfd(0, EFD_CLOEXEC));
    w->page =
        mmap(NULL, w->page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w->page == MAP_FAILED)
        w->page = NULL;
    if (w->stop < 0 || !w->page ||
        register_range(w, (uintptr_t)w->page, (uintptr_t)w->page + w->page_bytes) != 0 ||
        start_thread(w) != 0)
        return bny_fail(BANYAN_ESYSTEM, "a thread that watches memory does not start: %s",
                        strerror(errno));
    return try_out(w)
               ? 0
               : bny_fail(BANYAN_ENOTSUP, "userfaultfd did not report a change that was made "
                                          "as a test: this kernel's is not usable here");
}

/* While the thread runs no watched memory may change hands unnoticed, so it ends first; then
 * the descriptor, and with it the kernel's state; our memory last. */
static void watch_end(struct vb_watch *w)
{
    if (w->runs) {
        uint64_t one = 1;

        while (write(w->stop, &one, sizeof one) < 0 && errno == EINTR)
            ;
        pthread_join(w->thread, NULL);
    }
    if (w->fd >= 0)
        close(w->fd);
    if (w->stop >= 0)
        close(w->stop);
    if (w->page)
        munmap(w->page, w->page_bytes);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static int watch_begin(struct vb_watch **out)
{
    struct vb_watch *w = calloc(1, sizeof *w);
    int rc;

    *out = NULL;
    if (!w)
        return bny_fail(BANYAN_ENOMEM, "no memory to watch memory");
    w->fd = w->stop = -1;
    w->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_init(&w->lock, NULL);
    rc = open_fd(w);
    if (rc == 0)
        rc = open_rest(w);
    if (rc)
        watch_end(w);
    else
        *out = w;
    return rc;
}

static struct vb_watch *the_watch;
static int users;

/* A child of fork has neither the thread nor its parent's memory: it starts anew. The
 * descriptor is its parent's: while any process has it open the kernel reports changes, and
 * after the parent closed it a changing thread there would wait for ever. */
static void watch_in_child(struct bny_lock *l)
{
    (void)l;
    if (the_watch)
        close(the_watch->fd);
    the_watch = NULL;
    users = 0;
}

static struct bny_lock lock = BNY_LOCK(watch_in_child);

int bny_verbs_watch_open(struct vb_watch **out)
{
    int rc = 0;

    bny_lock_take(&lock);
    if (!the_watch)
        rc = watch_begin(&the_watch);
    users += rc == 0;
    *out = the_watch;
    bny_lock_give(&lock);
    return rc;
}

void bny_verbs_watch_close(struct vb_watch *w)
{
    bny_lock_take(&lock);
    if (w && w == the_watch && --users == 0) {
        watch_end(w);
        the_watch = NULL;
    }
    bny_lock_give(&lock);
}
