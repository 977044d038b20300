/* SPDX-License-Identifier: BSD-3-Clause */
/* A lost connection is replaced, and the lane continues where it was.
 *
 * A reset or a broken path is a loss; the end of a stream without a farewell is the peer's
 * death. Both ends count the bytes of a lane since its first handshake. The sender keeps what
 * the peer's kernel has not acknowledged (keep.c) and reconnects with a higher epoch in its
 * hello. The receiver answers with the bytes that it has and still has to read from earlier
 * sockets, and reads these to that point before it uses the new one. Linux delivers
 * acknowledged bytes even after a reset, so no byte is lost; if one is, the answer is below the
 * acknowledged count, and the peer is down. The proofs cover epoch and count: no other process
 * can turn a lane back. An interrupted handshake is repeated; the answer may then be higher,
 * never lower.
 *
 * The receiver does not connect. It checks whether the peer still listens by its own first
 * lane, opened if necessary: a dead rank's port refuses, or belongs to another process, which
 * answers TCP_NOT_ME or cannot prove the secret. */
#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "transport/tcp/tcp.h"

#define REFUSALS_MAX 2
#define LOSSES_MAX   4

/* ---- the end of a connection ---- */

static int is_loss(int err)
{
    switch (err) {
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EPIPE:
    case ENOTCONN:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET: return 1;
    default: return 0;
    }
}

void bny_tcp_abort(int fd)
{
    struct linger now = { .l_onoff = 1 };

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    bny_fd_close(fd);
}

void bny_tcp_close(struct tcp_conn *c)
{
    if (c->fd >= 0)
        bny_fd_close(c->fd);
    c->fd = -1;
    while (c->nnext)
        bny_fd_close(c->next[--c->nnext].fd);
}

static void connect_again(struct tcp_conn *c, int err)
{
    uint64_t now = bny_now_ns();

    c->candidate = c->round = c->spared = c->silences = c->refusals = 0;
    c->tried = c->refused = c->unheard = 0;
    c->resuming = 1;
    c->err = 0;
    c->hs_have = 0;
    c->writable = 0;
    snprintf(c->why, sizeof c->why, "%s", strerror(err));
    c->give_up_ns = now + c->tp->replace_ns;
    c->retry_ns = now;
    c->state = TCP_BACKOFF;
    bny_tcp_join_begin(c);
    bny_tcp_owe(c);
}

void bny_tcp_lost(struct tcp_conn *c, int err)
{
    struct tcp_ep *e = c->ep;

    if (c->farewell_seen || e->ends.since_ns || (e->left && (c->outgoing || !is_loss(err)))) {
        bny_tcp_shut(c);
        return;
    }
    if (!is_loss(err) || !c->tp->replace_ns || e->down) {
        bny_tcp_shut(c);
        bny_tcp_gone(e, err ? strerror(err) : "it closed the connection without a farewell");
        return;
    }
    bny_info("tcp: the connection %s rank %d was lost (%s)", c->outgoing ? "to" : "from",
             e->ep.peer, strerror(err));
    bny_tcp_abort(c->fd);
    c->fd = -1;
    c->readable = c->err = 0;
    if (c->outgoing) {
        connect_again(c, err);
        return;
    }
    c->farewell_sent = 0;
    if (c->nnext)
        bny_tcp_switch(c);
    else if (e->claimed && !e->left && (!e->out[0] || e->out[0]->state == TCP_IDLE))
        bny_tcp_lane(&e->ep, 0);
}

/* ---- the sender ---- */

int bny_tcp_resume_gives_up(const struct tcp_conn *c, uint64_t now)
{
    return c->refusals >= REFUSALS_MAX || now >= c->give_up_ns;
}

int bny_tcp_resumed(struct tcp_conn *c)
{
    uint64_t at = c->answer.got;
    char why[260];

    if (!c->resuming && c->put == 0 && at == 0)
        return 0;
    c->losses = c->put > at && at == c->resumed_at ? c->losses + 1 : 0;
    c->resumed_at = at;
    if (c->losses >= LOSSES_MAX) {
        snprintf(why, sizeof why,
                 "%d connections in a row were lost without a byte. " BNY_NET_MTU, LOSSES_MAX);
    } else if (bny_tcp_rewind(c, at) != 0) {
        snprintf(why, sizeof why,
                 "bytes are lost with the connection: it wants to go on at %llu of %llu, and "
                 "had acknowledged %llu",
                 (unsigned long long)at, (unsigned long long)c->put,
                 (unsigned long long)c->acked);
    } else {
        c->resuming = 0;
        bny_tcp_owe(c);
        if (c->sec)
            bny_tcp_secure_restart_rx(c->sec);
        bny_counter_add(&c->tp->tp.replaced, 1);
        c->ep->replaced++;
        bny_info("tcp: the connection to rank %d was replaced at byte %llu", c->ep->ep.peer,
                 (unsigned long long)at);
        return 0;
    }
    bny_tcp_down(c->ep, why);
    return -1;
}

/* ---- the receiver ---- */

static uint64_t unread(int fd)
{
    int n = 0;

    return fd >= 0 && ioctl(fd, SIOCINQ, &n) == 0 && n > 0 ? (uint64_t)n : 0;
}

static uint64_t begin_of_last(const struct tcp_conn *in)
{
    return in->nnext > 1 ? in->next[in->nnext - 2].until : in->until;
}

uint64_t bny_tcp_announce(const struct tcp_conn *in)
{
    if (!in->nnext)
        return in->got + unread(in->fd);
    return begin_of_last(in) + unread(in->next[in->nnext - 1].fd);
}

void bny_tcp_switch(struct tcp_conn *in)
{
    BNY_ASSERT(in->nnext > 0);
    if (in->fd >= 0)
        bny_tcp_abort(in->fd);
    in->fd = in->next[0].fd;
    in->until = in->next[0].until;
    in->ends = in->nnext > 1;
    in->nnext--;
    memmove(in->next, in->next + 1, (size_t)in->nnext * sizeof in->next[0]);
    in->readable = 1;
    in->hs_have = 0;
    bny_tcp_activate(in);
}

int bny_tcp_follow(struct tcp_conn *in, struct tcp_conn *fresh)
{
    struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                              .data.ptr = in };

    if (in->nnext == TCP_NEXT_MAX || in->state != TCP_OPEN ||
        memcmp(in->hello.key, fresh->hello.key, sizeof in->hello.key) != 0 ||
        epoll_ctl(in->tp->epfd, EPOLL_CTL_MOD, fresh->fd, &ev) != 0)
        return -1;
    if (in->nnext) {
        in->next[in->nnext - 1].until = fresh->answer.got;
        if (begin_of_last(in) == fresh->answer.got) /* it has carried nothing */
            bny_tcp_abort(in->next[--in->nnext].fd);
    } else {
        in->until = fresh->answer.got;
        in->ends = 1;
    }
    in->next[in->nnext++] = (struct tcp_next){ .fd = fresh->fd };
    fresh->fd = -1;
    in->epoch = fresh->hello.epoch;
    in->farewell_sent = 0;
    while (in->nnext && (in->fd < 0 || in->got >= in->until))
        bny_tcp_switch(in);
    return 0;
}
