/* SPDX-License-Identifier: BSD-3-Clause */
/* What the kernel knows of the paths to the peers: a path that is gone is a loss (resume.c); of
 * one that loses packets the user is told. */
#include <errno.h>
#include <linux/tcp.h> /* has more of struct tcp_info than netinet/tcp.h */
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "transport/tcp/tcp.h"

#define WATCH_NS     1000000000u
#define GONE_MS      3000u
#define GONE_BACKOFF 3 /* retransmitted after 0.2, 0.4, 0.8 s, or more on a slow path */
/* A path loses packets if one of so many was sent again in each of three windows in a row. A
 * window lasts until it has enough packets to tell, and at least from one look to the next. A
 * congested link with short queues loses up to some percent. */
#define RESENT_OF     20
#define WINDOWS       3
#define WINDOW_RESENT 10
#define WINDOW_SENT   (WINDOW_RESENT * RESENT_OF)

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
    bny_warn("rank %d at %s has acknowledged nothing for %u s, though data were sent to it "
             "again and again. The link may be down. " BNY_NET_MTU,
             c->ep->ep.peer, bny_addr_text(&c->addr, at), GONE_MS / 1000);
}

static void tell_losses(struct tcp_conn *c)
{
    char at[BNY_ADDR_TEXT];

    if (c->tp->told_losses)
        return;
    c->tp->told_losses = 1;
    bny_warn("%u of about %llu packets to rank %d at %s were sent again: the network between "
             "these hosts loses them, which slows down all ranks. Either a cable or a port is "
             "bad (then ip -s link and ethtool -S on both hosts, or the switch, count errors), "
             "or the network is congested: its queues are too short for the ranks that send at "
             "once (then they count drops)",
             c->lossy_resent, (unsigned long long)c->lossy_sent + c->lossy_resent,
             c->ep->ep.peer, bny_addr_text(&c->addr, at));
}

static void watch_losses(struct tcp_conn *c, const struct tcp_info *info)
{
    uint32_t resent = info->tcpi_total_retrans, mss = info->tcpi_snd_mss;

    if (resent < c->seen_resent || !mss) /* a new connection */
        c->seen_resent = 0;
    c->resent += resent - c->seen_resent;
    c->ep->resent += resent - c->seen_resent;
    c->sent += (c->put - c->seen_put) / (mss ? mss : 1) + 1;
    c->seen_resent = resent;
    c->seen_put = c->put;
    if (c->resent < WINDOW_RESENT && c->sent < WINDOW_SENT)
        return;
    if (c->resent * RESENT_OF > c->sent) {
        c->lossy++;
        c->lossy_resent += c->resent;
        c->lossy_sent += c->sent;
    } else {
        c->lossy = 0;
        c->lossy_resent = 0;
        c->lossy_sent = 0;
    }
    c->resent = 0;
    c->sent = 0;
    if (c->lossy >= WINDOWS)
        tell_losses(c);
}

/* How busy was it since the last look? Time in which the peer left no room does not count; nor
 * does a connection whose pace was the program's, or a late peer's, as small messages are on
 * their way until their acknowledgement, which may be delayed. */
static void watch_pace(struct tcp_conn *c, const struct tcp_info *info,
                       struct bny_busy_path *most)
{
    uint64_t now = bny_now_ns(), arrived = info->tcpi_bytes_acked;
    uint64_t busy_us = info->tcpi_busy_time - info->tcpi_rwnd_limited;
    int is_new = !c->seen_ns || busy_us < c->seen_busy_us || arrived < c->seen_arrived;
    double passed = 1e-3 * (double)(now - c->seen_ns),
           busy = (double)(busy_us - c->seen_busy_us);

    if (!is_new && !info->tcpi_delivery_rate_app_limited && info->tcpi_delivery_rate &&
        busy / passed > (double)most->part)
        *most = (struct bny_busy_path){ .peer = c->ep->ep.peer,
                                        .part = (float)(busy / passed),
                                        .Bps = (double)info->tcpi_delivery_rate,
                                        .seen_ns = now };
    c->seen_ns = now;
    c->seen_busy_us = busy_us;
    c->seen_arrived = arrived;
}

static void watch(struct tcp_conn *c, struct bny_busy_path *most)
{
    struct tcp_info info = { 0 };
    socklen_t len = sizeof info;
    int owes = bny_tcp_pending(c) || c->pos > c->acked;

    if ((c->state != TCP_OPEN && c->state != TCP_CHALLENGE) ||
        (c->state == TCP_OPEN && !owes && c->put == c->seen_put) ||
        getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return;
    if (c->state == TCP_OPEN) {
        watch_losses(c, &info);
        watch_pace(c, &info, most);
    }
    if (!c->tp->replace_ns || !path_is_gone(&info))
        return;
    if (c->state == TCP_CHALLENGE) {
        bny_tcp_join_lost(c);
    } else if (owes) {
        tell_gone(c);
        bny_tcp_lost(c, ETIMEDOUT);
    }
}

/* Packets that were sent again since watch() last looked. */
static uint32_t resent_since(const struct tcp_conn *c, uint32_t *rtt_us)
{
    struct tcp_info info = { 0 };
    socklen_t len = sizeof info;

    if (c->state != TCP_OPEN || getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return 0;
    if (!*rtt_us || info.tcpi_rtt < *rtt_us)
        *rtt_us = info.tcpi_rtt;
    return info.tcpi_total_retrans -
           (info.tcpi_total_retrans < c->seen_resent ? 0 : c->seen_resent);
}

void bny_tcp_traffic(const struct bny_ep *base, struct bny_traffic *out)
{
    const struct tcp_ep *ep = (const struct tcp_ep *)base;

    *out = (struct bny_traffic){ .resent = ep->resent, .replaced = ep->replaced };
    for (int lane = 0; lane < TCP_LANES; lane++) {
        if (ep->out[lane]) {
            out->sent += ep->out[lane]->put;
            out->resent += resent_since(ep->out[lane], &out->rtt_us);
        }
        if (ep->in[lane])
            out->received += ep->in[lane]->got;
    }
}

void bny_tcp_watch_paths(struct tcp_tp *t)
{
    uint64_t now = bny_now_ns();
    struct bny_busy_path most = { 0 };

    if (now < t->watch_ns)
        return;
    t->watch_ns = now + WATCH_NS;
    for (int r = 0; r < t->tp.nranks; r++)
        for (int lane = 0; t->eps[r] && lane < TCP_LANES; lane++)
            if (t->eps[r]->out[lane])
                watch(t->eps[r]->out[lane], &most);
    t->tp.busiest = most;
}
