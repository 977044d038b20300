/* SPDX-License-Identifier: BSD-3-Clause */
/* Hosts that do not answer: when does a silent rank count as dead?
 *
 * After BANYAN_SILENT_S without a connection, and no sooner. But the cut may be the path of one
 * rank to some others, or to all, or only one direction of it, while all the rest are
 * connected; and an accused rank is excluded. So
 *
 * 1. A rank that lost few hosts reports before a rank that lost many, which it thereby
 *    excludes. Of two ranks that lost each other the lower reports first.
 * 2. All count from the same moment. If only one direction is cut, one end sees the end of the
 *    link seconds later than the other. So a rank that lost another reports it to its
 *    neighbours, which forward it (CONTROL_MISSED). Two ranks with a link have a common
 *    neighbour: their distance is a power of two, or all ranks are linked.
 * 3. No accusation and no decision is sent over a link that may be lost: if our packets arrive
 *    but the peer's do not, it would receive them just before the end of the link.
 *
 * Suspicion before accusation, and indirect probes: SWIM (Das, Gupta, Motivala 2002), 3 and
 * 4. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "transport/bootstrap/control.h"

#define MS 1000000ull
/* A link without an answer for so long may be lost: two of the kernel's probes. */
#define UNSURE_NS (1500 * MS)
/* Silence before the end of a link counts up to this: after the end there is always time to
 * reconnect, and for one of two ranks to report first. */
#define AGE_MAX_NS (CONTROL_QUIET_MS * MS)
#define MORE_MAX   4 /* hosts for which an accusation is delayed */

/* The kernel probes an idle link every second (watch_host). */
uint64_t silence_unanswered_ns(const struct link *l, uint64_t unknown)
{
    struct tcp_info info;
    socklen_t len = sizeof info;
    uint64_t ns = unknown;

    memset(&info, 0, sizeof info);
    if (getsockopt(l->conn->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0)
        ns = info.tcpi_last_ack_recv * MS;
    return ns < AGE_MAX_NS ? ns : AGE_MAX_NS;
}

static int is_lost(const struct link *l)
{
    return l->lost_ns && !l->local && (l->state == LINK_TRYING || l->state == LINK_WAITING);
}

int silence_may_begin(const struct link *l)
{
    return l->state == LINK_UP && !l->local && silence_unanswered_ns(l, 0) > UNSURE_NS;
}

static int is_silent(const struct link *l)
{
    return is_lost(l) || silence_may_begin(l);
}

static int silent_hosts(const struct bny_control *c)
{
    int hosts = 0;

    for (int i = 0; i < c->nlinks; i++) {
        int is_new = is_silent(&c->links[i]);

        for (int k = 0; k < i && is_new; k++)
            is_new = !is_silent(&c->links[k]) ||
                     !bny_addr_is_same_host(&c->links[k].addr[0], &c->links[i].addr[0]);
        hosts += is_new;
    }
    return hosts;
}

int silence_is_over(const struct bny_control *c, const struct link *l)
{
    uint64_t eighth = c->silent_ns / 8, since = c->awake_ns - l->lost_ns, turn = 0;
    int more = silent_hosts(c) - 1;

    if (more > 0)
        turn = eighth * (uint64_t)(more < MORE_MAX ? more : MORE_MAX);
    return since >= c->silent_ns + turn + (more <= 0 && l->peer > c->rank ? 0 : eighth) &&
           bny_now_ns() - l->since_ns >= turn;
}

void silence_begins(struct bny_control *c, struct link *l, uint64_t silent_ns)
{
    struct control_missed m = { c->rank, l->peer, (uint32_t)(silent_ns / MS) };

    if (l->missed_ns && l->missed_ns < l->lost_ns &&
        l->missed_ns + 3 * AGE_MAX_NS > c->awake_ns)
        l->lost_ns = l->missed_ns;
    for (int i = 0; i < c->nlinks && silent_ns; i++) /* ranks that do not fit are omitted */
        if (c->links[i].state == LINK_UP)
            bny_conn_send(c->links[i].conn, CONTROL_MISSED, &m, sizeof m);
}

void silence_told(struct bny_control *c, const struct link *from, const uint8_t *data,
                  size_t len)
{
    struct control_missed m;
    struct link *l;

    if (len != sizeof m)
        return;
    memcpy(&m, data, sizeof m);
    l = control_link_to(c, m.rank == c->rank ? m.by : m.rank);
    if (!l || l->local)
        return;
    if (m.rank != c->rank) {
        if (m.by == from->peer && l->state == LINK_UP)
            bny_conn_send(l->conn, CONTROL_MISSED, &m, sizeof m);
        return;
    }
    l->missed_ns = c->awake_ns - (m.ms * MS < AGE_MAX_NS ? m.ms * MS : AGE_MAX_NS);
    if (is_lost(l) && l->missed_ns < l->lost_ns)
        l->lost_ns = l->missed_ns;
}
