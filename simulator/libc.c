/* SPDX-License-Identifier: BSD-3-Clause */
/* The functions of libc and libsodium that the copies of the library call: the program exports
 * them, so the dynamic linker finds these first. Threads that are none of the simulation, and
 * descriptors that are none of its, get the real ones. */
#include "simulator/real.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <sodium.h>

#include "base/rng.h"
#include "simulator/sim.h"

/* glibc declares addresses as unions of all their types. */
#pragma GCC diagnostic ignored "-Wpedantic"

#define MONOTONIC_S 1000
#define REALTIME_S  1700000000
/* The time that calls cost the calling thread. */
#define CLOCK_NS 25u
#define CALL_NS  500u
#define COPY_BPS 10 /* bytes a nanosecond */

struct sim_real real;

void sim_real_find(void)
{
#define FIND(name) *(void **)(void *)&real.name = dlsym(RTLD_NEXT, #name)
    FIND(clock_gettime);
    FIND(poll);
    FIND(ppoll);
    FIND(sched_yield);
    FIND(close);
    FIND(read);
    FIND(write);
    FIND(send);
    FIND(recv);
    FIND(sendmsg);
    FIND(recvmsg);
    FIND(ioctl);
    FIND(fcntl);
    FIND(fopen);
    FIND(readlink);
    FIND(gethostname);
    FIND(getifaddrs);
    FIND(freeifaddrs);
    FIND(dlopen);
    FIND(getpid);
    FIND(pthread_create);
    FIND(pthread_join);
    FIND(pthread_mutex_lock);
    FIND(pthread_mutex_trylock);
    FIND(pthread_mutex_unlock);
    FIND(pthread_cond_wait);
    FIND(pthread_cond_timedwait);
    FIND(pthread_cond_signal);
    FIND(pthread_cond_broadcast);
    FIND(randombytes_buf);
    FIND(randombytes_uniform);
#undef FIND
}

static const struct sim_real *found(void)
{
    if (!real.clock_gettime)
        sim_real_find();
    return &real;
}

/* ---- time ---- */

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    uint64_t ns;

    if (!sim_self())
        return found()->clock_gettime(clock, ts);
    sim_charge(CLOCK_NS);
    ns = sim_clock();
    ts->tv_sec = (time_t)(ns / SIM_S) + (clock == CLOCK_REALTIME ? REALTIME_S : MONOTONIC_S);
    ts->tv_nsec = (long)(ns % SIM_S);
    return 0;
}

static uint64_t until(const struct timespec *ts)
{
    return ts ? sim_time() + (uint64_t)ts->tv_sec * SIM_S + (uint64_t)ts->tv_nsec : SIM_NEVER;
}

static uint64_t until_ms(int ms)
{
    return ms < 0 ? SIM_NEVER : sim_time() + (uint64_t)ms * SIM_MS;
}

int nanosleep(const struct timespec *ts, struct timespec *rest)
{
    uint64_t end;

    (void)rest;
    if (!sim_self())
        return (int)syscall(SYS_nanosleep, ts, rest);
    end = until(ts);
    while (sim_time() < end)
        sim_wait(end, NULL);
    return 0;
}

int usleep(useconds_t us)
{
    struct timespec ts = { .tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000 };

    return nanosleep(&ts, NULL);
}

int sched_yield(void)
{
    if (!sim_self())
        return found()->sched_yield();
    sim_charge(CALL_NS);
    sim_idle();
    return 0;
}

/* ---- the machine ---- */

pid_t getpid(void)
{
    return sim_self() ? 100000 + sim_self()->rank->rank : found()->getpid();
}

int gethostname(char *name, size_t len)
{
    if (!sim_self())
        return found()->gethostname(name, len);
    snprintf(name, len, "host%d", sim_self()->rank->host);
    return 0;
}

ssize_t readlink(const char *path, char *buf, size_t len)
{
    char text[32];
    int n;

    if (!sim_self() || strcmp(path, "/proc/self/ns/net") != 0)
        return found()->readlink(path, buf, len);
    n = snprintf(text, sizeof text, "net:[%d]", 1 + sim_self()->rank->host);
    memcpy(buf, text, (size_t)n < len ? (size_t)n : len);
    return n;
}

/* Every host has a boot id of its own; of the rest of /proc and /sys nothing is told. */
FILE *fopen(const char *path, const char *mode)
{
    static char text[64];

    if (!sim_self() || (strncmp(path, "/proc/", 6) != 0 && strncmp(path, "/sys/", 5) != 0))
        return found()->fopen(path, mode);
    errno = ENOENT;
    if (strcmp(path, "/proc/sys/kernel/random/boot_id") != 0)
        return NULL;
    snprintf(text, sizeof text, "boot-of-host-%d\n", sim_self()->rank->host);
    return fmemopen(text, strlen(text), "r");
}

FILE *fopen64(const char *path, const char *mode)
{
    return fopen(path, mode);
}

struct interfaces {
    struct ifaddrs of[2];
    struct sockaddr_in addr[2], mask[2];
};

int getifaddrs(struct ifaddrs **out)
{
    static char names[2][8] = { "lo", "eth0" };
    struct interfaces *i;

    if (!sim_self())
        return found()->getifaddrs(out);
    i = calloc(1, sizeof *i);
    for (int k = 0; i && k < 2; k++) {
        i->addr[k].sin_family = i->mask[k].sin_family = AF_INET;
        i->addr[k].sin_addr.s_addr = htonl(k ? sim_self()->rank->ip : 0x7f000001u);
        i->mask[k].sin_addr.s_addr = htonl(0xff000000u);
        i->of[k] = (struct ifaddrs){ .ifa_next = k ? NULL : &i->of[1],
                                     .ifa_name = names[k],
                                     .ifa_flags = IFF_UP | (k ? 0 : IFF_LOOPBACK),
                                     .ifa_addr = (struct sockaddr *)&i->addr[k],
                                     .ifa_netmask = (struct sockaddr *)&i->mask[k] };
    }
    *out = i ? &i->of[0] : NULL;
    return i ? 0 : -1;
}

void freeifaddrs(struct ifaddrs *list)
{
    if (sim_self())
        free(list); /* the first member of what we made */
    else
        found()->freeifaddrs(list);
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    if (!sim_self())
        return (int)syscall(SYS_sched_getaffinity, pid, size, set) < 0 ? -1 : 0;
    memset(set, 0, size);
    for (int i = 0; i < 4; i++)
        CPU_SET_S((size_t)i, size, set);
    return 0;
}

int sched_getcpu(void)
{
    return 0;
}

int pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t *set)
{
    (void)thread;
    (void)size;
    (void)set;
    return 0;
}

/* Optional libraries are missing, but the one that reads plans: it knows neither time nor
 * network. */
void *dlopen(const char *name, int flags)
{
    int may = !sim_self() || (name && !strncmp(name, "libexpat.so", 11));

    return found()->dlopen(may ? name : "banyan_sim has no modules", flags);
}

int malloc_trim(size_t pad)
{
    (void)pad;
    return 0;
}

/* ---- random numbers ---- */

void randombytes_buf(void *buf, size_t len)
{
    unsigned char *at = buf;

    if (!sim_self()) {
        found()->randombytes_buf(buf, len);
        return;
    }
    while (len > 0) {
        uint64_t x = bny_rng_next(&sim_self()->rank->random);
        size_t n = len < 8 ? len : 8;

        memcpy(at, &x, n);
        at += n;
        len -= n;
    }
}

uint32_t randombytes_uniform(uint32_t bound)
{
    if (!sim_self())
        return found()->randombytes_uniform(bound);
    return bound ? (uint32_t)bny_rng_below(&sim_self()->rank->random, bound) : 0;
}

/* ---- threads ---- */

int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*start)(void *),
                   void *arg)
{
    struct sim_thread *t;

    if (!sim_self())
        return found()->pthread_create(out, attr, start, arg);
    t = sim_thread_new(sim_self()->rank, start, arg);
    if (!t)
        return EAGAIN;
    *out = t->turn.thread;
    return 0;
}

static struct sim_thread *thread_of(pthread_t real_thread)
{
    struct sim_thread *t = sim_self()->rank->threads;

    while (t && !pthread_equal(t->turn.thread, real_thread))
        t = t->next;
    return t;
}

int pthread_join(pthread_t thread, void **result)
{
    struct sim_thread *t;

    if (!sim_self())
        return found()->pthread_join(thread, result);
    t = thread_of(thread);
    if (!t)
        return ESRCH;
    while (!t->ended)
        sim_wait(SIM_NEVER, t);
    if (result)
        *result = t->result;
    return 0; /* the real one stays until the program ends */
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
    int rc;

    if (!sim_self())
        return found()->pthread_mutex_lock(m);
    while ((rc = real.pthread_mutex_trylock(m)) == EBUSY)
        sim_wait(SIM_NEVER, m);
    return rc;
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
    int rc = found()->pthread_mutex_unlock(m);

    if (sim_self())
        sim_wake_all(sim_self()->rank, m, 1);
    return rc;
}

static int libc_wait_for(pthread_cond_t *c, pthread_mutex_t *m, uint64_t end)
{
    int timed_out;

    pthread_mutex_unlock(m);
    timed_out = sim_wait(end, c);
    pthread_mutex_lock(m);
    return timed_out ? ETIMEDOUT : 0;
}

int pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *at)
{
    uint64_t s;

    if (!sim_self())
        return found()->pthread_cond_timedwait(c, m, at);
    s = (uint64_t)at->tv_sec; /* its clock is told by its size */
    s -= s >= REALTIME_S ? REALTIME_S : s >= MONOTONIC_S ? MONOTONIC_S : s;
    return libc_wait_for(c, m, s * SIM_S + (uint64_t)at->tv_nsec);
}

int pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
    return sim_self() ? libc_wait_for(c, m, SIM_NEVER) : found()->pthread_cond_wait(c, m);
}

int pthread_cond_signal(pthread_cond_t *c)
{
    if (!sim_self())
        return found()->pthread_cond_signal(c);
    sim_wake_all(sim_self()->rank, c, 1);
    return 0;
}

int pthread_cond_broadcast(pthread_cond_t *c)
{
    if (!sim_self())
        return found()->pthread_cond_broadcast(c);
    sim_wake_all(sim_self()->rank, c, 1 << 30);
    return 0;
}

/* ---- descriptors ---- */

static struct sim_file *file_of(int fd, enum sim_kind kind)
{
    struct sim_file *f = sim_file_of(fd);

    errno = f ? EINVAL : EBADF;
    return f && f->kind == kind ? f : NULL;
}

int poll(struct pollfd *fds, nfds_t n, int ms)
{
    if (!sim_self())
        return found()->poll(fds, n, ms);
    sim_charge(CALL_NS);
    return sim_poll(fds, n, until_ms(ms));
}

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *set)
{
    if (!sim_self())
        return found()->ppoll(fds, n, ts, set);
    sim_charge(CALL_NS);
    return sim_poll(fds, n, until(ts));
}

int epoll_create1(int flags)
{
    (void)flags;
    sim_charge(CALL_NS);
    return sim_epoll_new();
}

int epoll_ctl(int ep, int op, int fd, struct epoll_event *ev)
{
    struct sim_file *f = file_of(ep, SIM_EPOLL);

    sim_charge(CALL_NS);
    return f ? sim_epoll_ctl(f, op, fd, ev) : -1;
}

int epoll_wait(int ep, struct epoll_event *ev, int max, int ms)
{
    struct sim_file *f = file_of(ep, SIM_EPOLL);

    sim_charge(CALL_NS);
    return f ? sim_epoll_wait(f, ev, max, until_ms(ms)) : -1;
}

int timerfd_create(int clock, int flags)
{
    (void)clock;
    (void)flags;
    return sim_timer_new();
}

int timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *was)
{
    struct sim_file *f = file_of(fd, SIM_TIMER);

    (void)flags;
    (void)was;
    if (!f)
        return -1;
    return sim_timer_set(
        f, (uint64_t)at->it_value.tv_sec * SIM_S + (uint64_t)at->it_value.tv_nsec,
        (uint64_t)at->it_interval.tv_sec * SIM_S + (uint64_t)at->it_interval.tv_nsec);
}

int eventfd(unsigned value, int flags)
{
    if (!sim_self())
        return (int)syscall(SYS_eventfd2, value, flags);
    return sim_event_new(value);
}

int close(int fd)
{
    struct sim_file *f;

    if (!sim_self() || !(f = sim_file_of(fd)))
        return found()->close(fd);
    sim_charge(CALL_NS);
    sim_file_close(f);
    return 0;
}

ssize_t read(int fd, void *buf, size_t len)
{
    struct sim_file *f;

    if (!sim_self() || !(f = sim_file_of(fd)))
        return found()->read(fd, buf, len);
    sim_charge(CALL_NS);
    return f->kind == SIM_SOCK ? sim_sock_recv(f, buf, len, 0) : sim_counter_read(f, buf, len);
}

ssize_t write(int fd, const void *buf, size_t len)
{
    struct sim_file *f;

    if (!sim_self() || !(f = sim_file_of(fd)))
        return found()->write(fd, buf, len);
    sim_charge(CALL_NS);
    return f->kind == SIM_SOCK ? sim_sock_send(f, buf, len) : sim_counter_write(f, buf, len);
}

int fcntl64(int fd, int cmd, ...)
{
    va_list ap;
    void *arg;

    va_start(ap, cmd);
    arg = va_arg(ap, void *);
    va_end(ap);
    if (sim_self() && sim_file_of(fd))
        return 0;
    return found()->fcntl(fd, cmd, arg);
}

int ioctl(int fd, unsigned long request, ...)
{
    struct sim_file *f;
    va_list ap;
    void *arg;

    va_start(ap, request);
    arg = va_arg(ap, void *);
    va_end(ap);
    if (!sim_self() || !(f = sim_file_of(fd)))
        return found()->ioctl(fd, request, arg);
    sim_charge(CALL_NS);
    return sim_sock_queue(f, request, arg);
}

/* ---- sockets ---- */

int socket(int domain, int type, int protocol)
{
    if (!sim_self())
        return (int)syscall(SYS_socket, domain, type, protocol);
    sim_charge(CALL_NS);
    errno = EAFNOSUPPORT;
    return domain == AF_INET && (type & 0xf) == SOCK_STREAM ? sim_sock_new() : -1;
}

int bind(int fd, const struct sockaddr *sa, socklen_t len)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    (void)len;
    return f ? sim_sock_bind(f, sa) : -1;
}

int listen(int fd, int backlog)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    return f ? sim_sock_listen(f, backlog) : -1;
}

int accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    (void)flags;
    sim_charge(CALL_NS);
    return f ? sim_sock_accept(f, sa, len) : -1;
}

int connect(int fd, const struct sockaddr *sa, socklen_t len)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    (void)len;
    sim_charge(CALL_NS);
    return f ? sim_sock_connect(f, sa) : -1;
}

int shutdown(int fd, int how)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    return f ? sim_sock_shutdown(f, how) : -1;
}

int getsockname(int fd, struct sockaddr *sa, socklen_t *len)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    return f ? sim_sock_name(f, sa, len, 0) : -1;
}

int getpeername(int fd, struct sockaddr *sa, socklen_t *len)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    return f ? sim_sock_name(f, sa, len, 1) : -1;
}

int getsockopt(int fd, int level, int name, void *val, socklen_t *len)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    return f ? sim_sock_get(f, level, name, val, len) : -1;
}

int setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    return f ? sim_sock_set(f, level, name, val, len) : -1;
}

ssize_t send(int fd, const void *buf, size_t len, int flags)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);

    if (!sim_self())
        return found()->send(fd, buf, len, flags);
    sim_charge(CALL_NS + len / COPY_BPS);
    return f ? sim_sock_send(f, buf, len) : -1;
}

ssize_t recv(int fd, void *buf, size_t len, int flags)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);
    long n;

    if (!sim_self())
        return found()->recv(fd, buf, len, flags);
    sim_charge(CALL_NS);
    n = f ? sim_sock_recv(f, buf, len, flags & MSG_PEEK) : -1;
    if (n > 0)
        sim_self()->ahead += (uint64_t)n / COPY_BPS;
    return n;
}

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    struct sim_file *f = file_of(fd, SIM_SOCK);
    ssize_t done = 0;

    if (!sim_self())
        return found()->sendmsg(fd, m, flags);
    sim_charge(CALL_NS);
    for (size_t i = 0; f && i < m->msg_iovlen; i++) {
        size_t len = m->msg_iov[i].iov_len;
        long n = len ? sim_sock_send(f, m->msg_iov[i].iov_base, len) : 0;

        if (n < 0)
            return done ? done : n;
        done += n;
        sim_self()->ahead += (uint64_t)n / COPY_BPS;
        if ((size_t)n < len)
            break;
    }
    return f ? done : -1;
}

ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
    if (!sim_self())
        return found()->recvmsg(fd, m, flags);
    return recv(fd, m->msg_iov[0].iov_base, m->msg_iov[0].iov_len, flags);
}

/* ---- as a library built with _FORTIFY_SOURCE calls them ---- */

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int __poll_chk(struct pollfd *fds, nfds_t n, int ms, size_t room)
{
    (void)room;
    return poll(fds, n, ms);
}

int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *set,
                size_t room)
{
    (void)room;
    return ppoll(fds, n, ts, set);
}

ssize_t __read_chk(int fd, void *buf, size_t len, size_t room)
{
    (void)room;
    return read(fd, buf, len);
}

ssize_t __recv_chk(int fd, void *buf, size_t len, size_t room, int flags)
{
    (void)room;
    return recv(fd, buf, len, flags);
}

ssize_t __readlink_chk(const char *path, char *buf, size_t len, size_t room)
{
    (void)room;
    return readlink(path, buf, len);
}

int __gethostname_chk(char *name, size_t len, size_t room)
{
    (void)room;
    return gethostname(name, len);
}
