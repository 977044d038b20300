/* SPDX-License-Identifier: BSD-3-Clause */
/* Hosts that do not answer: when does a rank count as dead of which nothing is heard?
 *
 * After BANYAN_SILENT_S and no sooner, in which it could not be connected to. What was cut,
 * though, may be the way of one rank to some others, or to all, or only one direction of it,
 * while the rest reach everybody; and whoever is accused is excluded. So
 *
 * 1. Who misses few hosts speaks before who misses many: that one is excluded by them, and not
 *    they by it. Of two that miss each other the lower one speaks first.
 * 2. All count from the same moment. Where one still hears the other, which does not hear it,
 *    the end of the link comes to it seconds later than to the other. So who misses somebody
 *    says so to its neighbours, who pass it on (CONTROL_MISSED). Two ranks with a link have a
 *    neighbour in common: their distance is a power of two, or all have links to all.
 * 3. No accusation and no decision is sent over a link that may be lost: where our packets
 *    arrive and theirs do not, it would be heard just before the end of the link.
 *
 * Suspicion before accusation, and asking others: SWIM (Das, Gupta, Motivala 2002), 3 and 4. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "transport/bootstrap/control.h"

#define MS 1000000ull
/* A link that has had no answer for so long may be lost: two of the kernel's questions. */
#define UNSURE_NS (1500 * MS)
/* Silence before the end of a link counts up to this: when it has ended there is always time to
 * connect again, and for one of two to speak first. */
#define AGE_MAX_NS (CONTROL_QUIET_MS * MS)
#define MORE_MAX   4 /* hosts for which an accusation is put off */

/* An idle link asks every second (watch_host). */
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
    for (int i = 0; i < c->nlinks && silent_ns; i++) /* what does not fit is not said */
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
