/* SPDX-License-Identifier: BSD-3-Clause */
/* Descriptors: their numbers, what waits for them, epoll, timers and event counters. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "simulator/sim.h"

#define IDLE_NS 1000u

struct sim_watch { /* an epoll instance's interest in a file */
    struct epoll *ep;
    struct sim_file *file;
    struct epoll_event ev;
    int edge; /* EPOLLET: something changed since it was told */
    struct sim_watch *of_file, *of_epoll;
    int listed; /* in the epoll's list of those to look at */
    struct sim_watch *next_listed;
};

struct epoll {
    struct sim_file file;
    struct sim_watch *watches;
    struct sim_watch *first, **last; /* to be looked at, in order of change */
};

struct counter {
    struct sim_file file;
    uint64_t value;    /* a timer's: expirations that nobody read */
    uint64_t every_ns; /* timers */
    uint64_t setting;  /* older alarms are void */
};

static struct sim_file **table;
static int ntable, table_cap;
static int lowest; /* below it all are taken */

/* ---- numbers ---- */

int sim_file_open(struct sim_file *f, enum sim_kind kind, struct sim_rank *rank)
{
    int slot = lowest;

    if (rank->nfiles >= rank->files_max) {
        errno = EMFILE;
        return -1;
    }
    while (slot < ntable && table[slot])
        slot++;
    if (slot == table_cap) {
        table_cap = table_cap ? 2 * table_cap : 256;
        table = realloc(table, (size_t)table_cap * sizeof *table);
        if (!table)
            sim_no_memory();
    }
    ntable = slot == ntable ? ntable + 1 : ntable;
    table[slot] = f;
    lowest = slot + 1;
    f->kind = kind;
    f->fd = SIM_FD_BASE + slot;
    f->rank = rank;
    f->next = rank->files;
    f->at = &rank->files;
    if (f->next)
        f->next->at = &f->next;
    rank->files = f;
    rank->nfiles++;
    return f->fd;
}

struct sim_file *sim_file_of(int fd)
{
    return fd >= SIM_FD_BASE && fd - SIM_FD_BASE < ntable ? table[fd - SIM_FD_BASE] : NULL;
}

/* ---- readiness, and those that wait for it ---- */

static uint32_t watch_ready(const struct sim_watch *w)
{
    uint32_t ready = sim_file_ready(w->file) & (w->ev.events | EPOLLERR | EPOLLHUP);

    return (w->ev.events & EPOLLET) && !w->edge ? 0 : ready;
}

uint32_t sim_file_ready(const struct sim_file *f)
{
    const struct counter *c = (const void *)f;
    const struct epoll *ep = (const void *)f;

    switch (f->kind) {
    case SIM_SOCK: return sim_sock_ready(f);
    case SIM_TIMER: return c->value ? EPOLLIN : 0;
    case SIM_EVENT: return (c->value ? EPOLLIN : 0) | EPOLLOUT;
    case SIM_EPOLL: break;
    }
    for (const struct sim_watch *w = ep->first; w; w = w->next_listed)
        if (watch_ready(w))
            return EPOLLIN;
    return 0;
}

static void file_list(struct sim_watch *w)
{
    if (w->listed)
        return;
    w->listed = 1;
    w->next_listed = NULL;
    *w->ep->last = w;
    w->ep->last = &w->next_listed;
}

/* Threads of a rank that poll are not many: all of them look again. */
static void wake_pollers(struct sim_rank *rank, const void *poll_mark)
{
    sim_wake_all(rank, poll_mark, 1 << 30);
}

static const char polling; /* what threads that poll wait for */

void sim_file_changed(struct sim_file *f)
{
    for (struct sim_watch *w = f->watches; w; w = w->of_file) {
        w->edge = 1;
        file_list(w);
        if (w->ep->file.watches)
            sim_file_changed(&w->ep->file);
    }
    wake_pollers(f->rank, &polling);
}

void sim_idle(void)
{
    struct sim_thread *t = sim_self();
    uint64_t ns = IDLE_NS << (t->idles < 8 ? t->idles : 8);

    if (sim_wait(sim_time() + ns, &polling))
        t->idles++;
    else
        t->idles = 0;
}

int sim_poll(struct pollfd *fds, size_t n, uint64_t until_ns)
{
    for (;;) {
        int found = 0;

        for (size_t i = 0; i < n; i++) {
            struct sim_file *f = sim_file_of(fds[i].fd);

            fds[i].revents = 0;
            if (fds[i].fd >= 0 && !f)
                fds[i].revents = POLLNVAL;
            else if (f) /* POLLIN is EPOLLIN, and so on */
                fds[i].revents = (short)(sim_file_ready(f) &
                                         ((uint32_t)fds[i].events | EPOLLERR | EPOLLHUP));
            found += fds[i].revents != 0;
        }
        if (found || sim_time() >= until_ns)
            return found;
        sim_wait(until_ns, &polling);
    }
}

/* ---- epoll ---- */

int sim_epoll_new(void)
{
    struct epoll *ep = calloc(1, sizeof *ep);
    int fd = ep ? sim_file_open(&ep->file, SIM_EPOLL, sim_self()->rank) : -1;

    if (ep)
        ep->last = &ep->first;
    if (fd < 0)
        free(ep);
    return fd;
}

static void unlist(struct sim_watch *w)
{
    struct sim_watch **at = &w->ep->first;

    while (*at && *at != w)
        at = &(*at)->next_listed;
    if (*at)
        *at = w->next_listed;
    w->ep->last = &w->ep->first;
    while (*w->ep->last)
        w->ep->last = &(*w->ep->last)->next_listed;
}

static void unwatch(struct sim_watch *w)
{
    struct sim_watch **at = &w->file->watches;

    while (*at != w)
        at = &(*at)->of_file;
    *at = w->of_file;
    for (at = &w->ep->watches; *at != w;)
        at = &(*at)->of_epoll;
    *at = w->of_epoll;
    unlist(w);
    free(w);
}

int sim_epoll_ctl(struct sim_file *file, int op, int fd, const struct epoll_event *ev)
{
    struct epoll *ep = (void *)file;
    struct sim_file *f = sim_file_of(fd);
    struct sim_watch *w = f ? f->watches : NULL;

    while (w && w->ep != ep)
        w = w->of_file;
    errno = !f ? EBADF : op == EPOLL_CTL_ADD ? EEXIST : ENOENT;
    if (!f || (op == EPOLL_CTL_ADD) == (w != NULL))
        return -1;
    if (op == EPOLL_CTL_DEL) {
        unwatch(w);
        return 0;
    }
    if (op == EPOLL_CTL_ADD) {
        w = calloc(1, sizeof *w);
        if (!w)
            return -1;
        w->ep = ep;
        w->file = f;
        w->of_file = f->watches;
        f->watches = w;
        w->of_epoll = ep->watches;
        ep->watches = w;
    }
    w->ev = *ev;
    w->edge = 1;
    file_list(w);
    if (watch_ready(w))
        sim_file_changed(file);
    return 0;
}

/* Those that are ready; of the others that were listed nothing need be known any more. */
static int file_collect(struct epoll *ep, struct epoll_event *ev, int max)
{
    struct sim_watch *todo = ep->first, *w;
    int n = 0;

    ep->first = NULL;
    ep->last = &ep->first;
    while ((w = todo)) {
        uint32_t ready;

        todo = w->next_listed;
        w->listed = 0;
        ready = watch_ready(w);
        if (!ready)
            continue;
        if (n == max) {
            file_list(w);
            continue;
        }
        ev[n] = w->ev;
        ev[n++].events = ready;
        w->edge = 0;
        if (!(w->ev.events & EPOLLET))
            file_list(w); /* looked at again */
    }
    return n;
}

int sim_epoll_wait(struct sim_file *file, struct epoll_event *ev, int max, uint64_t until_ns)
{
    for (;;) {
        int n = file_collect((struct epoll *)file, ev, max);

        if (n || sim_time() >= until_ns)
            return n;
        sim_wait(until_ns, &polling);
    }
}

/* ---- timers and event counters ---- */

static int counter_new(enum sim_kind kind, uint64_t value)
{
    struct counter *c = calloc(1, sizeof *c);
    int fd = c ? sim_file_open(&c->file, kind, sim_self()->rank) : -1;

    if (fd < 0)
        free(c);
    else
        c->value = value;
    return fd;
}

int sim_timer_new(void)
{
    return counter_new(SIM_TIMER, 0);
}

int sim_event_new(uint64_t value)
{
    return counter_new(SIM_EVENT, value);
}

static void alarm_rings(void *a, uint64_t setting)
{
    struct counter *c = a;

    if (c->setting != setting || c->file.fd < 0 || c->file.rank->fate == SIM_DEAD)
        return;
    c->value++;
    sim_file_changed(&c->file);
    if (c->every_ns)
        sim_at(sim_now + c->every_ns, alarm_rings, c, setting);
}

int sim_timer_set(struct sim_file *f, uint64_t first_ns, uint64_t every_ns)
{
    struct counter *c = (void *)f;

    c->value = 0;
    c->every_ns = every_ns;
    c->setting++;
    if (first_ns)
        sim_at(sim_now + first_ns, alarm_rings, c, c->setting);
    return 0;
}

long sim_counter_read(struct sim_file *f, void *buf, size_t len)
{
    struct counter *c = (void *)f;

    errno = len < 8 ? EINVAL : EAGAIN;
    if (len < 8 || !c->value)
        return -1;
    memcpy(buf, &c->value, 8);
    c->value = 0;
    return 8;
}

long sim_counter_write(struct sim_file *f, const void *buf, size_t len)
{
    struct counter *c = (void *)f;
    uint64_t more;

    errno = EINVAL;
    if (len < 8)
        return -1;
    memcpy(&more, buf, 8);
    c->value += more;
    sim_file_changed(f);
    return 8;
}

/* ---- the end of a descriptor ---- */

void sim_file_close(struct sim_file *f)
{
    table[f->fd - SIM_FD_BASE] = NULL;
    lowest = f->fd - SIM_FD_BASE < lowest ? f->fd - SIM_FD_BASE : lowest;
    f->fd = -1;
    *f->at = f->next;
    if (f->next)
        f->next->at = f->at;
    f->rank->nfiles--;
    while (f->watches)
        unwatch(f->watches);
    if (f->kind == SIM_EPOLL)
        while (((struct epoll *)f)->watches)
            unwatch(((struct epoll *)f)->watches);
    if (f->kind == SIM_SOCK)
        sim_sock_close(f);
    else if (f->kind == SIM_EPOLL)
        free(f); /* counters stay: alarms may be on their way */
}
