/* SPDX-License-Identifier: BSD-3-Clause */
/* Another user connects as fast as a rank accepts: each call returns nevertheless, and the
 * ranks meet. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/err.h"
#include "tests/transport/shm/pair.h"

#define ENDLESS 1000 /* accepts in one call */

static struct bny_tp *flooded; /* before each accept comes another connection; NULL: none */
static int accepts;            /* since the latest call */

static socklen_t address(struct sockaddr_un *a, const char *name)
{
    *a = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(a->sun_path + 1, name, strlen(name));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

/* A connection of the other user, closed at once: it waits to be accepted. 0: the queue is
 * full. */
static int knock(struct bny_tp *tp)
{
    static unsigned number;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), rc;
    struct sockaddr_un a;
    char name[64];

    snprintf(name, sizeof name, "flood-%d-%u", (int)getpid(), number++);
    cr_assert_eq(bind(fd, (struct sockaddr *)&a, address(&a, name)), 0);
    rc = connect(fd, (struct sockaddr *)&a, address(&a, ((struct shm_tp *)tp)->name));
    cr_assert(rc == 0 || errno == EAGAIN, "%s", strerror(errno));
    close(fd);
    return rc == 0;
}

int __real_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
    if (flooded) {
        cr_assert_lt(++accepts, ENDLESS, "one call accepts for ever");
        knock(flooded);
    }
    return __real_accept4(fd, addr, len, flags);
}

/* The kernel's word about the other user. */
int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    int rc = __real_getsockopt(fd, level, name, value, len);
    struct sockaddr_un a = { 0 };
    socklen_t size = sizeof a;

    if (level == SOL_SOCKET && name == SO_PEERCRED &&
        getpeername(fd, (struct sockaddr *)&a, &size) == 0 &&
        !strncmp(a.sun_path + 1, "flood-", 6))
        ((struct ucred *)value)->uid++;
    return rc;
}

/* A message from each rank, however often it has to be offered. */
static void exchange(struct pair *p)
{
    int sent[2] = { 0 }, got[2] = { 0 };

    while (!got[0] || !got[1])
        for (int i = 0; i < 2; i++) {
            struct bny_hdr h = header(0, 0);
            struct bny_event ev;
            int rc = sent[i] ? 0 : bny_shm_ops.eager(p->ep[i], &h, NULL);

            cr_assert(rc == 0 || rc == BNY_AGAIN, "%s", banyan_last_error());
            sent[i] |= rc == 0;
            accepts = 0;
            if (bny_shm_ops.poll(p->tp[i], &ev, 1) == 1) {
                cr_assert_eq(ev.kind, BNY_EV_MSG);
                bny_shm_ops.release(ev.msg);
                got[i]++;
            }
        }
}

Test(shm_flood, an_endless_one_lets_calls_return_and_ranks_meet, .timeout = 60)
{
    struct pair p;

    pair_open(&p, "1");
    flooded = p.tp[0];
    exchange(&p);
    flooded = NULL;
    pair_close(&p);
}

Test(shm_flood, a_full_queue_is_waited_for, .timeout = 60)
{
    struct bny_hdr h = header(0, 0);
    struct pair p;

    pair_open(&p, "1");
    while (knock(p.tp[0]))
        ;
    cr_assert_eq(bny_shm_ops.eager(p.ep[1], &h, NULL), BNY_AGAIN);
    flooded = p.tp[0];
    exchange(&p);
    flooded = NULL;
    pair_close(&p);
}
