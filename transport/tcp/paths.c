/* SPDX-License-Identifier: BSD-3-Clause */
/* What the kernel knows of the paths to the peers: a path that is gone is a loss (resume.c); of
 * one that loses packets the user is told. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "transport/tcp/tcp.h"

#define WATCH_NS     1000000000u
#define GONE_MS      3000u
#define GONE_BACKOFF 3 /* retransmitted after 0.2, 0.4, 0.8 s, or more on a slow path */
/* A path loses packets if so many were sent again, and one of so many. A congested link with
 * short queues loses up to some percent. */
#define RESENT_MIN 30
#define RESENT_OF  20
#define SENT_MAX   100000u /* packets after which older ones count half */

/* Is the path to the peer gone, or is the peer only busy? A lost path acknowledges nothing,
 * however often we retransmit. A peer that does not read has a full or shrunken buffer, so it
 * drops data, but its kernel answers each window probe; probes become as rare as on a lost
 * path, but the last answer is as old as the last probe. So it takes two unanswered probes, the
 * last of them older than the path's largest delay. A user timeout would end all of these. */
static int path_is_gone(const struct tcp_info *info)
{
    uint32_t rto_ms, first_ms, asked_ms, answered_ms;

    if (info->tcpi_unacked == 0 || info->tcpi_backoff < GONE_BACKOFF || info->tcpi_backoff > 31)
        return 0;
    rto_ms =
        info->tcpi_rto / 1000; /* doubled with each probe: half of it separates the last two */
    first_ms = rto_ms >> info->tcpi_backoff;
    asked_ms = info->tcpi_last_data_sent;
    answered_ms = info->tcpi_last_ack_recv;
    return answered_ms > GONE_MS && asked_ms > first_ms &&
           answered_ms > asked_ms + rto_ms / 2 + first_ms;
}

/* Said once for a peer. */
static void tell_gone(struct tcp_conn *c)
{
    char at[BNY_ADDR_TEXT];

    if (c->ep->told_gone)
        return;
    c->ep->told_gone = 1;
    bny_warn("rank %d at %s acknowledges nothing that was sent to it in the last %u "
             "s, again and again; is the link down, or " BNY_NET_MTU,
             c->ep->ep.peer, bny_addr_text(&c->addr, at), GONE_MS / 1000);
}

static void watch_losses(struct tcp_conn *c, const struct tcp_info *info)
{
    uint32_t resent = info->tcpi_total_retrans, mss = info->tcpi_snd_mss;
    char at[BNY_ADDR_TEXT];

    if (resent < c->seen_resent || !mss) /* a new connection */
        c->seen_resent = 0;
    c->resent += resent - c->seen_resent;
    c->sent += (c->put - c->seen_put) / (mss ? mss : 1) + 1;
    c->seen_resent = resent;
    c->seen_put = c->put;
    if (c->resent >= RESENT_MIN && c->resent * RESENT_OF > c->sent && !c->ep->told_losses) {
        c->ep->told_losses = 1;
        bny_warn("%u of about %llu packets to rank %d at %s were sent again: the "
                 "network between these hosts loses them, which slows down all ranks; look at "
                 "ip -s link and ethtool -S on both, and at the switch",
                 c->resent, (unsigned long long)c->sent + c->resent, c->ep->ep.peer,
                 bny_addr_text(&c->addr, at));
    }
    if (c->sent > SENT_MAX) {
        c->sent /= 2;
        c->resent /= 2;
    }
}

static void watch(struct tcp_conn *c)
{
    struct tcp_info info = { 0 };
    socklen_t len = sizeof info;
    int owes = bny_tcp_pending(c) || c->pos > c->acked;

    if ((c->state != TCP_OPEN && c->state != TCP_CHALLENGE) ||
        (c->state == TCP_OPEN && !owes && c->put == c->seen_put) ||
        getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return;
    if (c->state == TCP_OPEN)
        watch_losses(c, &info);
    if (!path_is_gone(&info))
        return;
    if (c->state == TCP_CHALLENGE) {
        bny_tcp_join_lost(c);
    } else if (owes) {
        tell_gone(c);
        bny_tcp_lost(c, ETIMEDOUT);
    }
}

void bny_tcp_watch_paths(struct tcp_tp *t)
{
    uint64_t now = bny_now_ns();

    if (now < t->watch_ns || !t->replace_ns)
        return;
    t->watch_ns = now + WATCH_NS;
    for (int r = 0; r < t->tp.nranks; r++)
        for (int lane = 0; t->eps[r] && lane < TCP_LANES; lane++)
            if (t->eps[r]->out[lane])
                watch(t->eps[r]->out[lane]);
}
