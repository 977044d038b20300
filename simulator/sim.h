/* SPDX-License-Identifier: BSD-3-Clause */
/* Virtual time: the ranks of a job in one process, each with a copy of the library, over
 * sockets, clocks and random numbers that this program makes. All that happens is an event with
 * a time; one seed gives one run.
 *
 * - sched.c: time, events, threads of which one runs at a time; sim_turn.c: from one to another
 * - job_net.c: hosts and the links between them, how long a segment takes, what is cut
 * - sock.c: TCP sockets; file.c: descriptors, epoll, timers
 * - libc.c: the functions of libc and libsodium that the copies call instead
 * - rank.c: the copies of the library, what a rank does
 * - faults.c: what goes wrong, by plan or by seed; main.c: options, seeds, the report
 *
 * A thread gives the processor away only inside a function of libc.c: data races are not found
 * here. Computing takes no time but that which libc.c charges. */
#ifndef BNY_SIM_H
#define BNY_SIM_H

#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "simulator/sim_turn.h"

#define SIM_NEVER UINT64_MAX
#define SIM_US    1000u
#define SIM_MS    1000000u
#define SIM_S     1000000000u

struct sim_rank;
struct sim_file;

/* ---- sched.c ---- */

/* One that the library or the program made; a thread of the real system that runs when it is
 * its turn. */
struct sim_thread {
    struct sim_thread *next; /* of its rank */
    struct sim_rank *rank;
    struct sim_turn turn;
    void *(*start)(void *);
    void *arg, *result;
    uint32_t wait; /* number of the current wait: older wake-ups are void */
    int blocked, timed_out, ended;
    const void *waits_for; /* a mutex, a condition or a thread; NULL: files or time */
    unsigned idles;        /* file.c: yields in a row that found nothing */
    uint64_t ahead;        /* nanoseconds that its own calls took since it gave way */
};

extern uint64_t sim_now;  /* nanoseconds since the beginning */
extern uint64_t sim_hash; /* of all events so far */
extern uint64_t sim_nevents;
extern struct sim_thread *sim_self(void); /* NULL: no thread of the simulation */

/* The simulator itself lacks memory, which is no verdict on the library: ends the run with that
 * status. */
#define SIM_NO_MEMORY 3
__attribute__((noreturn)) void sim_no_memory(void);

/* Calls fn(a, b) at that time, after what was to be called at the same time already. */
void sim_at(uint64_t ns, void (*fn)(void *a, uint64_t b), void *a, uint64_t b);
struct sim_thread *sim_thread_new(struct sim_rank *rank, void *(*start)(void *), void *arg);
/* Gives way until something wakes the thread or the time has come. 0: woken; 1: the time. */
int sim_wait(uint64_t until_ns, const void *what);
/* Ends a wait, a moment from now. */
void sim_wake(struct sim_thread *t);
/* All threads of a rank that wait for this; most: at most so many. */
void sim_wake_all(struct sim_rank *rank, const void *what, int most);
/* The time as the running thread sees it; and: its call took so long. */
uint64_t sim_time(void);
/* The time on this thread's clock, no earlier than another thread of its rank has read. */
uint64_t sim_clock(void);
void sim_charge(uint64_t ns);
/* Others may run; the time that this thread has used passes. */
void sim_yield(void);
/* Runs everything until nothing is left, or virtual time is over. By the real main thread.
 * Returns 0, or 1 when threads of living ranks wait and nothing will ever happen. */
int sim_run(uint64_t until_ns);
/* A number that the seed decides. */
uint64_t sim_random(void);
void sim_seed(uint64_t seed);
void sim_mix(uint64_t x); /* into the hash */

/* ---- job_net.c ---- */

/* The network: link_Bps, latency_ns of each host's port; or a graph, where text is one. 0 or -1
 * after a message. */
int sim_net_open(int nhosts, double link_Bps, uint64_t latency_ns, const char *graph);
/* A segment leaves now; fn(a, b) is called when all of it has arrived at the other host. Those
 * of two hosts arrive in order. */
void sim_net_send(int from, int to, size_t bytes, void (*fn)(void *a, uint64_t b), void *a,
                  uint64_t b);
uint64_t sim_net_latency(int from, int to); /* of something tiny, without taking a share */
/* Nothing passes from one to the other. */
void sim_net_cut(int from, int to, int is_cut);
int sim_net_is_cut(int from, int to);
int sim_net_nhosts(void);

/* ---- file.c ---- */

#define SIM_FD_BASE 100000

enum sim_kind { SIM_SOCK, SIM_EPOLL, SIM_TIMER, SIM_EVENT };

struct sim_watch; /* an epoll's interest in a file */

struct sim_file {
    enum sim_kind kind;
    int fd; /* -1: closed by its owner, still needed here */
    struct sim_rank *rank;
    struct sim_watch *watches;
    struct sim_file *next, **at; /* of the rank */
};

/* A new descriptor of the running rank; -1 with errno EMFILE. */
int sim_file_open(struct sim_file *f, enum sim_kind kind, struct sim_rank *rank);
struct sim_file *sim_file_of(int fd); /* NULL: not ours */
/* EPOLLIN, EPOLLOUT, ... that hold now. */
uint32_t sim_file_ready(const struct sim_file *f);
/* Something about it changed. */
void sim_file_changed(struct sim_file *f);
void sim_file_close(struct sim_file *f);
/* A sched_yield of a polling thread: until a file of its rank changes, or a moment,
 * which is longer each time. */
void sim_idle(void);
int sim_poll(struct pollfd *fds, size_t n, uint64_t until_ns);

int sim_epoll_new(void);
int sim_epoll_ctl(struct sim_file *ep, int op, int fd, const struct epoll_event *ev);
int sim_epoll_wait(struct sim_file *ep, struct epoll_event *ev, int max, uint64_t until_ns);
int sim_timer_new(void);
int sim_timer_set(struct sim_file *f, uint64_t first_ns, uint64_t every_ns);
int sim_event_new(uint64_t value);
/* Of a timer or an event: 8, or -1 with errno. */
long sim_counter_read(struct sim_file *f, void *buf, size_t len);
long sim_counter_write(struct sim_file *f, const void *buf, size_t len);
/* sock.c, for file.c */
uint32_t sim_sock_ready(const struct sim_file *f);
void sim_sock_close(struct sim_file *f);

/* ---- sock.c ---- */

struct sockaddr;
int sim_sock_new(void);
int sim_sock_bind(struct sim_file *f, const struct sockaddr *sa);
int sim_sock_listen(struct sim_file *f, int backlog);
int sim_sock_accept(struct sim_file *f, struct sockaddr *sa, unsigned *len);
int sim_sock_connect(struct sim_file *f, const struct sockaddr *sa);
long sim_sock_send(struct sim_file *f, const void *buf, size_t len);
long sim_sock_recv(struct sim_file *f, void *buf, size_t len, int peek);
int sim_sock_name(struct sim_file *f, struct sockaddr *sa, unsigned *len, int of_peer);
int sim_sock_get(struct sim_file *f, int level, int name, void *val, unsigned *len);
int sim_sock_set(struct sim_file *f, int level, int name, const void *val, unsigned len);
int sim_sock_queue(struct sim_file *f, unsigned long request, int *out);
int sim_sock_shutdown(struct sim_file *f, int how);
/* Faults: a connected socket chosen by number gets and sends a reset. 0: there is none. */
int sim_sock_reset(struct sim_rank *rank, uint64_t which, int data);
/* A cut came or went: retransmissions, keep-alives. */
void sim_sock_cut_changed(void);

/* ---- rank.c ---- */

enum sim_fate { SIM_LIVES, SIM_STOPPED, SIM_DEAD };

struct sim_rank {
    int rank, host;
    enum sim_fate fate;
    struct sim_thread *threads;
    struct sim_file *files;
    int nfiles, files_max;
    uint64_t random;
    uint32_t ip;                 /* 10.x.y.z, host order */
    uint64_t calls, die_at_call; /* calls into libc.c; 0: never */
    uint64_t clock_ns;           /* the latest that a thread of it was told */
    uint64_t messages, bytes;    /* over sockets, both ways: pieces as they were sent */
    void *lib;
    const struct sim_api *api;
    /* What became of it */
    int done, rc, blamed;
    uint64_t begun_ns, failed_ns, done_ns;
    uint64_t init_messages, init_bytes; /* until begun_ns */
    uint64_t op_begun_ns, op_ended_ns;  /* the latest one */
    int is_hit;                         /* a fault meets it */
    int ops, shrinks, growths;
    uint64_t sums_asked, sums_by_arrival; /* of its last communicator, at the end */
    int is_in, came;  /* it is a member, or tries to become one at the start; it came later */
    int left, lowest; /* members of its last communicator, and the lowest of them */
    char text[320];
};

extern struct sim_rank *sim_ranks;
extern int sim_nranks;

/* Copies of the library at path, for so many ranks; before anything else. 0 or -1. */
int sim_ranks_open(int n, const char *path);
void sim_rank_kill(struct sim_rank *r);
void sim_rank_stop(struct sim_rank *r, int stop);

#endif
