/* SPDX-License-Identifier: BSD-3-Clause */
/* Connections that end while a child of fork has their sockets, too: there they live on until
 * the child has closed them, and epoll tells of them all that time. What the transport has
 * freed must not be watched any more. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/tpset.h"
#include "transport/shm/shm_impl.h"
#include "transport/tcp/tcp.h"

TestSuite(forked, .timeout = 60);

/* A child that closes nothing, as a fork's between two instructions. */
static pid_t child_with_all(void)
{
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    cr_assert_gt(pid, 0);
    return pid;
}

static void end(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static int watched(int epfd)
{
    char path[64], line[256];
    int n = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epfd);
    f = fopen(path, "r");
    cr_assert(f);
    while (fgets(line, sizeof line, f))
        n += !strncmp(line, "tfd:", 4);
    fclose(f);
    return n;
}

/* As both processes' deaths. */
static void end_unix_connections(void)
{
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_storage peer;
        socklen_t len = sizeof peer, size = sizeof(int);
        int type = 0;

        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET &&
            getpeername(fd, (struct sockaddr *)&peer, &len) == 0)
            shutdown(fd, SHUT_RDWR);
    }
}

Test(forked, a_connection_of_shared_memory_that_ended_is_not_watched)
{
    struct bny_hdr hdr = tpset_hdr(0, 7, 0);
    struct tpset s;
    int before, epfd;
    pid_t child;

    tpset_open(&s, bny_transport_find("shm"), 2, NULL);
    tpset_eager(&s, 0, 1, &hdr, NULL);
    s.ops->release(tpset_wait(&s, 1, BNY_EV_MSG).msg);
    epfd = ((struct shm_tp *)s.tp[1])->epfd;
    before = watched(epfd);
    child = child_with_all();
    end_unix_connections();
    for (int i = 0; i < 100000 && watched(epfd) == before; i++)
        tpset_step(&s);
    cr_assert_lt(watched(epfd), before);
    for (int i = 0; i < 1000; i++)
        tpset_step(&s);
    end(child);
    tpset_close(&s);
}

Test(forked, a_stranger_over_tcp_that_was_dropped_is_not_watched)
{
    uint8_t garbage[sizeof(struct tcp_hello)] = { 1 };
    struct tpset s;
    struct tcp_tp *t;
    int before, fd;
    pid_t child;

    tpset_open(&s, bny_transport_find("tcp"), 2, NULL);
    t = (struct tcp_tp *)s.tp[1];
    before = watched(t->epfd);
    fd = bny_net_connect(&t->blob.addrs[0]);
    cr_assert_geq(fd, 0);
    while (watched(t->epfd) == before)
        tpset_step(&s);
    child = child_with_all();
    cr_assert_eq(send(fd, garbage, sizeof garbage, 0), (ssize_t)sizeof garbage);
    while (t->nhalf)
        tpset_step(&s);
    tpset_step(&s);
    cr_assert_eq(watched(t->epfd), before);
    end(child);
    close(fd);
    tpset_close(&s);
}
