/* SPDX-License-Identifier: BSD-3-Clause */
/* What the transport could do at best, measured in the same run.
 *   shm  every rank copies the bytes out of its neighbour's freshly written memory into its
 * own, all at the same time: no exchange of that many bytes through shared memory moves each
 * byte less than once. tcp  one stream from rank 0 to rank 1, read and written in large pieces.
 * Small sizes are measured with 64 KiB (tcp: 1 MiB): below, both measure latency, which is no
 * bandwidth. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "perf/perf.h"

#define SHM_MIN  (64u << 10)
#define TCP_MIN  (1u << 20)
#define MOST     (64u << 20)
#define REPS_MAX 15

/* How the others reach this rank. */
struct card {
    char host[64];
    int32_t pid, fd;
    uint32_t addr; /* IPv4 of the tcp listener, network order */
    uint16_t port, pad;
};

static _Thread_local struct { /* of this rank */
    int ready;                /* 1: set up, -1: cannot be measured */
    size_t cap;
    int fd, sock;
    char *mine, *theirs, *dst;
} roof = { .fd = -1, .sock = -1 };

static double slowest(struct perf_run *run, double v, int *rc)
{
    struct banyan_opts plain = BANYAN_OPTS_INIT;

    plain.schedule = "auto";
    plain.codec = "none";
    *rc = banyan_allreduce(&v, &v, 1, BANYAN_F64, BANYAN_MAX, run->comm, &plain);
    return v;
}

static size_t clamp(uint64_t bytes, size_t lo)
{
    return bytes < lo ? lo : bytes > MOST ? MOST : (size_t)bytes;
}

static int exchange(struct perf_run *run, struct card *me, struct card *peer, int who)
{
    struct card *all = calloc((size_t)run->nranks, sizeof *all);
    int rc = all ? 0 : -BANYAN_ENOMEM;

    gethostname(me->host, sizeof me->host - 1);
    if (rc == 0)
        rc = banyan_allgather(me, all, sizeof *me, BANYAN_U8, run->comm, NULL);
    if (rc == 0)
        *peer = all[who];
    free(all);
    return rc;
}

/* Maps the neighbour's memory; where that is refused (other PID namespace), a rank copies its
 * own. */
static int set_up_shm(struct perf_run *run)
{
    struct card me = { .pid = (int32_t)getpid() }, peer;
    int neighbour = run->rank ^ 1, fd, rc;
    char path[64];

    if (neighbour >= run->nranks)
        neighbour = run->rank ? run->rank - 1 : 0;
    roof.cap = clamp(run->opts->max_bytes, SHM_MIN);
    roof.fd = memfd_create("banyan_perf_roofline", MFD_CLOEXEC);
    if (roof.fd < 0 || ftruncate(roof.fd, (off_t)roof.cap) != 0)
        return -1;
    roof.mine = mmap(NULL, roof.cap, PROT_READ | PROT_WRITE, MAP_SHARED, roof.fd, 0);
    roof.dst = malloc(roof.cap);
    if (roof.mine == MAP_FAILED || !roof.dst)
        return -1;
    memset(roof.mine, 1, roof.cap);
    memset(roof.dst, 1, roof.cap);
    me.fd = roof.fd;
    rc = exchange(run, &me, &peer, neighbour);
    if (rc < 0)
        return rc;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", peer.pid, peer.fd);
    fd = strcmp(me.host, peer.host) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    roof.theirs = fd < 0 ? MAP_FAILED : mmap(NULL, roof.cap, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (roof.theirs == MAP_FAILED)
        roof.theirs = roof.mine;
    return 0;
}

/* The address at which another host reaches this one: the first IPv4 interface that is up. */
static uint32_t own_address(void)
{
    struct ifaddrs *list, *i;
    uint32_t addr = htonl(INADDR_LOOPBACK);

    if (getifaddrs(&list) != 0)
        return addr;
    for (i = list; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
            !(i->ifa_flags & IFF_LOOPBACK)) {
            addr = ((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr;
            break;
        }
    freeifaddrs(list);
    return addr;
}

/* Rank 0 listens, rank 1 connects: to the loopback on the same host. */
static int set_up_tcp(struct perf_run *run)
{
    struct card me = { .addr = own_address() }, peer;
    struct sockaddr_in sa = { .sin_family = AF_INET };
    struct timeval limit = { .tv_sec = 10 };
    socklen_t len = sizeof sa;
    int listener = -1, one = 1, rc;

    if (run->rank == 0) {
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (listener >= 0 && bind(listener, (struct sockaddr *)&sa, sizeof sa) == 0 &&
            listen(listener, 1) == 0 &&
            getsockname(listener, (struct sockaddr *)&sa, &len) == 0)
            me.port = sa.sin_port;
        setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    rc = exchange(run, &me, &peer, 0);
    if (rc == 0 && run->rank == 0 && me.port)
        roof.sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (rc == 0 && run->rank == 1 && peer.port) {
        sa.sin_port = peer.port;
        sa.sin_addr.s_addr = strcmp(me.host, peer.host) ? peer.addr : htonl(INADDR_LOOPBACK);
        roof.sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(roof.sock, (struct sockaddr *)&sa, sizeof sa) != 0) {
            close(roof.sock);
            roof.sock = -1;
        }
    }
    if (listener >= 0)
        close(listener);
    if (roof.sock >= 0) {
        setsockopt(roof.sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(roof.sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(roof.sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
    roof.cap = clamp(run->opts->max_bytes, TCP_MIN);
    roof.dst = malloc(roof.cap);
    if (roof.dst)
        memset(roof.dst, 1, roof.cap);
    return rc < 0 || !roof.dst || (run->rank < 2 && roof.sock < 0) ? -1 : 0;
}

static double clock_us(clockid_t which)
{
    struct timespec ts;

    clock_gettime(which, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

/* With more ranks than CPUs the copies take turns: then a copy counts as its CPU time, and
 * crowd (ranks per CPU) such copies follow one another. */
static double copy_once(struct perf_run *run, size_t bytes, int rep, double crowd, int *rc)
{
    clockid_t which = crowd > 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    double t0;

    memset(roof.mine, rep, bytes);
    *rc = banyan_barrier(run->comm, NULL);
    t0 = clock_us(which);
    memcpy(roof.dst, roof.theirs, bytes);
    __asm__ __volatile__("" : : "r"(roof.dst) : "memory");
    return (clock_us(which) - t0) * (crowd > 1 ? crowd : 1);
}

/* Moves bytes one way; the receiver's answer of one byte ends the measurement at the sender. */
static double stream_once(struct perf_run *run, size_t bytes, int *rc)
{
    size_t done = 0;
    uint64_t t0;
    char ack = 0;

    *rc = banyan_barrier(run->comm, NULL);
    t0 = bny_now_ns();
    while (*rc == 0 && run->rank < 2 && done < bytes) {
        ssize_t n = run->rank == 0
                        ? send(roof.sock, roof.dst + done, bytes - done, MSG_NOSIGNAL)
                        : recv(roof.sock, roof.dst + done, bytes - done, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 1e12; /* the stream is gone: reported as no measurement */
        done += (size_t)n;
    }
    if (run->rank == 0 && recv(roof.sock, &ack, 1, 0) != 1)
        return 1e12;
    if (run->rank == 1 && send(roof.sock, &ack, 1, MSG_NOSIGNAL) != 1)
        return 1e12;
    return (double)(bny_now_ns() - t0) / 1000;
}

double perf_roofline(struct perf_run *run, uint64_t bytes)
{
    int is_shm = !strcmp(run->transport, "shm"), is_tcp = !strcmp(run->transport, "tcp"), rc,
        reps;
    size_t size = clamp(bytes, is_shm ? SHM_MIN : TCP_MIN);
    double us[REPS_MAX];
    double crowd = (double)run->nranks / (double)sysconf(_SC_NPROCESSORS_ONLN);

    if (!(is_shm || (is_tcp && run->nranks > 1)) || roof.ready < 0)
        return 0;
    if (!roof.ready) {
        int failed = is_shm ? set_up_shm(run) : set_up_tcp(run);

        roof.ready = slowest(run, failed ? 1 : 0, &rc) > 0 || rc < 0 ? -1 : 1;
        if (roof.ready < 0)
            return 0;
    }
    reps = size >= (8u << 20) ? 5 : REPS_MAX;
    for (int i = 0; i < reps; i++) {
        us[i] = is_shm ? copy_once(run, size, i, crowd, &rc) : stream_once(run, size, &rc);
        us[i] = rc < 0 ? 0 : slowest(run, us[i], &rc);
        if (rc < 0)
            return 0;
    }
    perf_sort(us, (size_t)reps); /* the best: a limit that a busy machine does not lower */
    return us[0] > 0 && us[0] < 1e11 ? (double)size / us[0] / 1000 : 0;
}

void perf_roofline_finish(void)
{
    if (roof.theirs && roof.theirs != roof.mine && roof.theirs != MAP_FAILED)
        munmap(roof.theirs, roof.cap);
    if (roof.mine && roof.mine != MAP_FAILED)
        munmap(roof.mine, roof.cap);
    free(roof.dst);
    if (roof.fd >= 0)
        close(roof.fd);
    if (roof.sock >= 0)
        close(roof.sock);
    memset(&roof, 0, sizeof roof);
    roof.fd = roof.sock = -1;
}
