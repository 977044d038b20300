/* SPDX-License-Identifier: BSD-3-Clause */
/* The functions that libc.c stands in front of. */
#ifndef BNY_SIM_REAL_H
#define BNY_SIM_REAL_H

#include <ifaddrs.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

struct sim_real {
    int (*clock_gettime)(clockid_t, struct timespec *);
    int (*poll)(struct pollfd *, nfds_t, int);
    int (*ppoll)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *);
    int (*sched_yield)(void);
    int (*close)(int);
    ssize_t (*read)(int, void *, size_t);
    ssize_t (*write)(int, const void *, size_t);
    ssize_t (*send)(int, const void *, size_t, int);
    ssize_t (*recv)(int, void *, size_t, int);
    ssize_t (*sendmsg)(int, const struct msghdr *, int);
    ssize_t (*recvmsg)(int, struct msghdr *, int);
    int (*ioctl)(int, unsigned long, ...);
    int (*fcntl)(int, int, ...);
    FILE *(*fopen)(const char *, const char *);
    ssize_t (*readlink)(const char *, char *, size_t);
    int (*gethostname)(char *, size_t);
    int (*getifaddrs)(struct ifaddrs **);
    void (*freeifaddrs)(struct ifaddrs *);
    void *(*dlopen)(const char *, int);
    pid_t (*getpid)(void);
    int (*pthread_create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    int (*pthread_join)(pthread_t, void **);
    int (*pthread_mutex_lock)(pthread_mutex_t *);
    int (*pthread_mutex_trylock)(pthread_mutex_t *);
    int (*pthread_mutex_unlock)(pthread_mutex_t *);
    int (*pthread_cond_wait)(pthread_cond_t *, pthread_mutex_t *);
    int (*pthread_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    int (*pthread_cond_signal)(pthread_cond_t *);
    int (*pthread_cond_broadcast)(pthread_cond_t *);
    void (*randombytes_buf)(void *, size_t);
    uint32_t (*randombytes_uniform)(uint32_t);
};
extern struct sim_real real;
/* Before anything else. */
void sim_real_find(void);

#endif
