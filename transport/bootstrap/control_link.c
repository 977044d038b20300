/* SPDX-License-Identifier: BSD-3-Clause */
/* The life of a control link: connect, authenticate, exchange records, end. control.c explains
 * what an end means. */
#include "transport/bootstrap/control.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/text.h"

#define MS         1000000u
#define CONNECT_NS (10000ull * MS)
/* For a lost link: the kernel retries after 1, 3 and 7 s, while the network may be back. */
#define CONNECT_AGAIN_NS (1000ull * MS)
/* For one address if there is another; doubles up to 16 s. */
#define SILENCE_NS  (500ull * MS)
#define AGAIN_NS    (250ull * MS)  /* between attempts to reconnect */
#define PATIENCE_NS (1000ull * MS) /* for a lower rank that must connect */
/* A rank that was silent for so long may have gone on by itself. */
#define AWAY_NS      (2000ull * MS)
#define REFUSALS_MAX 7
#define ATTEMPTS_MAX 40

/* ---- records ---- */

void control_add(struct bny_control *c, const struct bny_failure *f, int source)
{
    int silent = f->cause == BNY_CAUSE_SILENT, rc;

    /* Only a rank's own kernel reports its death, and the reporter has seen that. */
    if ((f->cause == BNY_CAUSE_DEATH || silent) && f->blamed == c->rank)
        c->agree.excluded = 1;
    else if ((f->cause == BNY_CAUSE_DEATH || silent) && f->blamed >= 0)
        bny_consensus_gone(&c->agree, f->blamed, silent ? BNY_GONE_SILENT : BNY_GONE_PROVEN);
    c->busy = 1;
    rc = bny_failures_add(&c->known, f, bny_now_ns(), source);
    if (rc < 0)
        c->agree.starved = 1;
    if (rc <= 0)
        return;
    atomic_store_explicit(&c->seen.suspect, 1, memory_order_release);
    bny_info("failure known (from rank %d): %s", source < 0 ? c->rank : source, f->text);
}

int control_has_news(const struct bny_control *c, const struct link *l)
{
    if (l->state != LINK_UP || c->agree.excluded)
        return 0;
    if (l->next_record < c->known.count)
        return 1;
    for (const struct bny_instance *it = c->agree.first; it && !c->agree.leaving; it = it->next)
        if (!it->held && it->unsent >> (l - c->links) & 1)
            return 1;
    return 0;
}

void control_push(struct bny_control *c, struct link *l)
{
    size_t len;

    if (c->agree.excluded) /* no rank should believe us any more */
        l->next_record = c->known.count;
    if (!control_has_news(c, l) || silence_may_begin(l))
        return;
    while (l->state == LINK_UP && l->next_record < c->known.count) {
        const struct bny_record *r = &c->known.list[l->next_record++];
        struct bny_failure f = r->f;

        if (r->source == l->peer || r->told)
            continue;
        if (bny_conn_send(l->conn, CONTROL_RECORD, &f,
                          offsetof(struct bny_failure, text) + strlen(f.text)) != 0) {
            l->next_record--;
            return;
        }
    }
    while (l->state == LINK_UP && !c->agree.leaving && !c->agree.excluded &&
           (len = bny_consensus_next(&c->agree, (int)(l - c->links), c->frame)))
        if (bny_conn_send(l->conn, CONTROL_AGREE, c->frame, len) != 0) {
            bny_consensus_again(&c->agree, (int)(l - c->links));
            return;
        }
}

static void own_failure(struct bny_control *c, enum bny_cause cause, enum banyan_error code,
                        int blamed, const char *text)
{
    struct bny_failure f = {
        .cause = cause, .code = (uint32_t)code, .blamed = blamed, .reporter = c->rank
    };

    snprintf(f.text, sizeof f.text, "%s", text);
    control_add(c, &f, -1);
}

void control_record_death(struct bny_control *c, int peer, enum bny_cause cause,
                          const char *how)
{
    char text[280], at[BNY_WHERE_TEXT], here[BNY_WHERE_TEXT];

    if (c->agree.leaving || c->agree.excluded)
        return;
    bny_control_where(c, peer, at);
    if (cause == BNY_CAUSE_SILENT)
        snprintf(text, sizeof text, "rank %d%s heard nothing of rank %d%s %s", c->rank,
                 bny_control_where(c, c->rank, here), peer, at, how);
    else
        snprintf(text, sizeof text, "rank %d%s died: %s", peer, at, how);
    own_failure(c, cause, BANYAN_ERANKDEAD, peer, text);
}

#define ENDED "its process ended without leaving the job"

int control_is_lack(int err)
{
    return err == ENOMEM || err == ENOBUFS || err == EMFILE || err == ENFILE;
}

/* Reports it to the others if there is memory for that. In any case the end of its links and
 * the refusal of its listener look like the death of this rank. */
void control_lack(struct bny_control *c, int err)
{
    int memory = err == ENOMEM || err == ENOBUFS;
    struct bny_failure f = { .cause = BNY_CAUSE_DEATH,
                             .code = BANYAN_ERANKDEAD,
                             .blamed = c->rank,
                             .reporter = c->rank };

    if (c->agree.leaving || c->agree.excluded)
        return;
    snprintf(f.text, sizeof f.text,
             "rank %d has %s its links to other ranks, and takes no part any more%s", c->rank,
             memory ? "no memory for" : "too many open files to make",
             memory ? "" : "; raise ulimit -n");
    bny_warn("%s", f.text);
    for (int i = 0; i < c->nlinks; i++) {
        struct link *l = &c->links[i];

        if (l->state == LINK_UP)
            bny_conn_send(l->conn, CONTROL_RECORD, &f,
                          offsetof(struct bny_failure, text) + strlen(f.text));
        if (l->state != LINK_GONE)
            link_close(l);
    }
    for (int k = 0; k < 2; k++)
        if (c->listen_fd[k] >= 0) {
            bny_fd_close(c->listen_fd[k]);
            c->listen_fd[k] = -1;
        }
    f.cause = BNY_CAUSE_RESET;
    f.code = memory ? BANYAN_ENOMEM : BANYAN_ESYSTEM;
    view_leave(c, &f);
}

/* ---- the life of a link ---- */

void link_close(struct link *l)
{
    bny_conn_free(l->conn);
    bny_conn_free(l->probe);
    l->conn = l->probe = NULL;
    l->state = LINK_GONE;
}

static void forget_refusals(struct link *l)
{
    l->refusals[0] = l->refusals[1] = 0;
}

/* Index of the address to try next. */
static int link_turn(const struct link *l)
{
    return l->lost_ns && l->proven ? l->proven - 1 : l->addr[1].family && !l->by_interface;
}

/* May another process listen at the address to try? Yes at the port of our loopback if the peer
 * has its own network namespace, unless the peer has answered there. */
static int link_is_doubtful(const struct link *l)
{
    return link_turn(l) == 1 && !(l->lost_ns && l->proven);
}

/* Were so many attempts refused, half of them at each address if there are two? A refusal at
 * one alone proves nothing: a peer with its own network namespace never listens on our
 * loopback. */
static int link_is_refused(const struct link *l, int attempts)
{
    int each = l->addr[1].family ? (attempts + 1) / 2 : attempts;

    if (l->lost_ns && l->proven)
        return l->refusals[l->proven - 1] >= attempts;
    return l->refusals[0] >= each && (!l->addr[1].family || l->refusals[1] >= each);
}

/* The lower rank reconnects, as before. An unresponsive host was already silent for a while
 * when the kernel gave up. */
static void link_lost(struct bny_control *c, struct link *l, int err)
{
    uint64_t now = bny_now_ns();
    int is_silence = err == ETIMEDOUT;
    uint64_t unheard =
        silence_unanswered_ns(l, is_silence ? CONTROL_QUIET_MS * (uint64_t)MS : 0);
    uint64_t silent = is_silence ? unheard : 0;

    bny_info("rank %d: the control link to rank %d broke (%s): connecting again", c->rank,
             l->peer, err ? strerror(err) : "its input was malformed");
    bny_conn_break(l->conn); /* an orderly end would mean that we died */
    l->conn = NULL;
    l->state = l->peer > c->rank ? LINK_TRYING : LINK_WAITING;
    l->lost_ns = c->awake_ns - silent;
    l->heard_ns = now - unheard;
    l->attempts = l->silences = 0;
    forget_refusals(l);
    l->retry_ns = 0;
    l->since_ns = now;
    c->busy = 1;
    silence_begins(c, l, silent);
}

/* An established link has ended. */
static void link_ended(struct bny_control *c, struct link *l)
{
    if (l->left) {
        link_close(l);
    } else if (control_is_lack(l->conn->err)) {
        control_lack(c, l->conn->err);
    } else if (l->conn->fin) {
        link_close(l);
        control_record_death(c, l->peer, BNY_CAUSE_DEATH, ENDED);
    } else {
        link_lost(c, l, l->conn->err);
    }
}

/* The lost link has had no input. 1: for too long, so the peer counts as dead. */
static int link_given_up(struct bny_control *c, struct link *l)
{
    char how[100];

    if (!l->lost_ns || (l->local && !l->lacks) || !silence_is_over(c, l))
        return 0;
    if (l->lacks) {
        control_lack(c, l->lacks);
        return 1;
    }
    link_close(l);
    bny_snprintf(how, sizeof how,
                 "for %.3g s (BANYAN_SILENT_S): that host, or the network between them, failed",
                 (double)c->silent_ns * 1e-9);
    control_record_death(c, l->peer, BNY_CAUSE_SILENT, how);
    return 1;
}

/* The peer's kernel accepted the connection and keeps answering: its host and the network work.
 * The rank is stopped or has no CPU, which is not death. */
static int kernel_answers(const struct bny_control *c, struct link *l,
                          const struct bny_conn *conn)
{
    if (conn->state == BNY_CONN_CONNECTING || link_is_doubtful(l))
        return 0;
    if (l->lost_ns)
        l->lost_ns = c->awake_ns;
    return 1;
}

/* The peer's listener is closed. After a silence this does not prove a death: the peer may have
 * gone on with others to the end of the job. The silence counts even if this rank was stopped
 * meanwhile, and even if the peer answered probes. A link that only repairs the ring may lead
 * to a rank whose farewell has not reached us. */
static void link_refused(struct bny_control *c, struct link *l)
{
    int away = l->lost_ns && bny_now_ns() - l->heard_ns > AWAY_NS;

    link_close(l);
    if (l->repaired)
        bny_consensus_gone(&c->agree, l->peer, away ? BNY_GONE_SILENT : BNY_GONE_PROVEN);
    else if (away)
        control_record_death(c, l->peer, BNY_CAUSE_SILENT,
                             "for a while, and then its process had ended");
    else
        control_record_death(c, l->peer, BNY_CAUSE_DEATH, ENDED);
}

/* A host that vanished ends no stream: keepalive probes it. With unacknowledged bytes only the
 * timeout counts; if that is set the number of probes does not. */
static void watch_host(int fd)
{
    int one = 1, idle = 1, every = 1, times = 3, limit_ms = CONTROL_QUIET_MS;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

void link_up(struct bny_control *c, struct link *l, struct bny_conn *conn)
{
    watch_host(conn->fd);
    bny_conn_free(l->probe);
    l->probe = NULL;
    l->conn = conn;
    l->state = LINK_UP;
    l->lost_ns = l->missed_ns = 0;
    l->local = bny_addr_is_loopback(&conn->peer);
    l->repaired = 0;
    l->next_record = 0;
    bny_consensus_again(&c->agree, (int)(l - c->links));
}

/* The failure to connect at all. */
static void link_failed(struct bny_control *c, struct link *l, const char *why)
{
    char text[300], at[BNY_ADDR_TEXT];
    int is_ours = !c->peers[l->peer].same_host && bny_addr_is_same_host(&l->addr[0], &c->addr);

    if (l->lacks) {
        control_lack(c, l->lacks);
        return;
    }
    bny_consensus_gone(&c->agree, l->peer,
                       link_is_refused(l, REFUSALS_MAX) ? BNY_GONE_PROVEN : BNY_GONE_SILENT);
    link_close(l);
    snprintf(text, sizeof text, "rank %d cannot connect to rank %d at %s: %s; %s", c->rank,
             l->peer, bny_addr_text(&l->addr[0], at), why,
             is_ours
                 ? "both have this address, as of a bridge to containers: set BANYAN_IFNAME "
                   "to the interface that joins them"
                 : "is it running, does a firewall block the port (BANYAN_PORT_RANGE), is "
                   "it the right interface (BANYAN_IFNAME)? " BNY_NET_DOCTOR);
    own_failure(c, BNY_CAUSE_RESET, BANYAN_ERANKDEAD, l->peer, text);
}

static void link_retry(struct bny_control *c, struct link *l, const char *why, int err)
{
    uint64_t now = bny_now_ns(), wait = 5u * MS << (l->attempts < 6 ? l->attempts : 6);

    bny_conn_free(l->conn);
    l->conn = NULL;
    l->refusals[link_turn(l)] += err == ECONNREFUSED;
    l->lacks = control_is_lack(err) ? err : 0;
    l->by_interface = !l->by_interface;
    l->attempts++;
    if (l->lost_ns) {
        if (link_is_refused(l, 2))
            link_refused(c, l);
        else
            l->retry_ns = now + (wait < AGAIN_NS ? wait : AGAIN_NS);
        return;
    }
    if (link_is_refused(l, REFUSALS_MAX) || l->attempts > ATTEMPTS_MAX ||
        (err && now - l->since_ns > CONNECT_NS)) {
        link_failed(c, l, why);
        return;
    }
    l->retry_ns = now + wait;
}

/* Accepted but not answered: the peer is slow; or it has its own network namespace on this
 * host, and another process, perhaps this one, listens at its port of our loopback. Its other
 * address decides. */
static void link_silent(struct link *l)
{
    bny_conn_free(l->conn);
    l->conn = NULL;
    l->by_interface = !l->by_interface;
    l->attempts = 0;
    forget_refusals(l);
    l->silences += l->silences < 5;
    l->since_ns = bny_now_ns();
}

static void link_try(struct bny_control *c, struct link *l)
{
    const struct bny_addr *a = &l->addr[link_turn(l)];
    int fd;

    if (bny_now_ns() < l->retry_ns)
        return;
    fd = bny_net_connect(a);
    if (fd < 0) {
        link_retry(c, l, strerror(-fd), -fd);
        return;
    }
    l->attempt_ns = bny_now_ns();
    l->conn = bny_conn_new(fd, c->epfd, 1, a, &c->self, control_frame_max(c));
    if (!l->conn) {
        link_retry(c, l, strerror(ENOMEM), ENOMEM);
        return;
    }
    l->conn->expects = l->peer;
    if (l->lost_ns)
        watch_host(fd);
}

/* The peer of a probe closes it, or first reports that we were excluded. 1: it may still do
 * so. */
static int probe_may_tell(struct bny_control *c, struct link *l)
{
    uint32_t type = 0;
    const uint8_t *data;
    size_t len;
    int rc = bny_conn_next(l->probe, &type, &data, &len);

    if (rc == 1 && type == CONTROL_EXCLUDED && !c->agree.leaving)
        c->agree.excluded = c->busy = 1;
    return rc == 0 && bny_now_ns() - l->attempt_ns < AGAIN_NS * 4;
}

/* The lower rank connects. If it does not come, a probe checks whether it lives: a live rank
 * accepts. */
void link_wait(struct bny_control *c, struct link *l)
{
    uint64_t now = bny_now_ns();
    const struct bny_addr *a = &l->addr[link_turn(l)];
    int fd, rc;

    if (link_given_up(c, l) || (!l->lost_ns && now - l->since_ns < PATIENCE_NS))
        return;
    if (!l->probe && now >= l->retry_ns) {
        fd = bny_net_connect(a);
        l->attempt_ns = now;
        l->lacks = fd < 0 && control_is_lack(-fd) ? -fd : 0;
        if (fd >= 0)
            l->probe = bny_conn_new(fd, c->epfd, 1, a, &c->self, 0);
        if (l->probe) {
            l->probe->expects = l->peer;
            watch_host(fd);
        }
    }
    rc = l->probe ? bny_conn_progress(l->probe) : 0;
    if (l->probe && rc == 0 &&
        (kernel_answers(c, l, l->probe) || now - l->attempt_ns < AGAIN_NS * 4))
        return;
    if (rc < 0 && l->probe->err == ECONNREFUSED)
        l->refusals[link_turn(l)]++;
    else if (rc == 1) { /* it lives, and will notice */
        forget_refusals(l);
        l->lost_ns = l->lost_ns ? c->awake_ns : 0;
        if (probe_may_tell(c, l))
            return;
    }
    if (l->probe) {
        bny_conn_free(l->probe);
        l->probe = NULL;
        l->by_interface = !l->by_interface;
        l->retry_ns = now + (l->lost_ns && l->attempts++ < 4 ? AGAIN_NS / 10 : AGAIN_NS);
    }
    if (link_is_refused(l, 3))
        link_refused(c, l);
}

/* The peer, which waits for us, checked that we live. So the network works, but an earlier
 * attempt may still be waiting for long. */
void link_asked(struct bny_control *c, struct link *l)
{
    if (l->state != LINK_TRYING || !l->lost_ns)
        return;
    l->lost_ns = c->awake_ns;
    if (l->conn && l->conn->state == BNY_CONN_CONNECTING) {
        bny_conn_free(l->conn);
        l->conn = NULL;
        l->retry_ns = 0;
    }
}

void link_connect(struct bny_control *c, struct link *l)
{
    int rc;

    if (link_given_up(c, l))
        return;
    if (!l->conn)
        link_try(c, l);
    if (!l->conn)
        return;
    rc = bny_conn_progress(l->conn);
    if (rc == 0)
        kernel_answers(c, l, l->conn);
    if (rc == 1) {
        l->proven = 1 + link_turn(l);
        link_up(c, l, l->conn);
    } else if (rc < 0)
        link_retry(c, l, l->conn->err ? strerror(l->conn->err) : l->conn->why, l->conn->err);
    else if (l->conn->state == BNY_CONN_CONNECTING &&
             bny_now_ns() - l->attempt_ns > (l->lost_ns ? CONNECT_AGAIN_NS : CONNECT_NS))
        link_retry(c, l, "no answer in time", ETIMEDOUT);
    else if (l->conn->state != BNY_CONN_CONNECTING && l->addr[1].family &&
             !(l->lost_ns && l->proven) &&
             bny_now_ns() - l->attempt_ns > SILENCE_NS << l->silences)
        link_silent(l);
}

static void take_record(struct bny_control *c, struct link *l, const uint8_t *data, size_t len)
{
    struct bny_failure f = { 0 };
    char text[100];

    if (len < sizeof f && len >= offsetof(struct bny_failure, text))
        memcpy(&f, data, len);
    if (!bny_failure_valid(&f, c->nranks)) {
        snprintf(text, sizeof text, "rank %d sent a malformed failure record to rank %d",
                 l->peer, c->rank);
        link_close(l);
        own_failure(c, BNY_CAUSE_RESET, BANYAN_EPROTO, l->peer, text);
        return;
    }
    control_add(c, &f, l->peer);
}

static void take_agree(struct bny_control *c, struct link *l, const uint8_t *data, size_t len)
{
    char text[100];
    int rc = bny_consensus_take(&c->agree, l->peer, (int)(l - c->links), data, len);

    c->busy = 1;
    if (rc != -BANYAN_EPROTO)
        return;
    snprintf(text, sizeof text, "rank %d sent a malformed agreement message to rank %d",
             l->peer, c->rank);
    link_close(l);
    own_failure(c, BNY_CAUSE_RESET, BANYAN_EPROTO, l->peer, text);
}

void link_read(struct bny_control *c, struct link *l)
{
    uint32_t type;
    const uint8_t *data;
    size_t len;
    int rc = 0;

    while (l->state == LINK_UP && (rc = bny_conn_next(l->conn, &type, &data, &len)) == 1) {
        if (type == CONTROL_RECORD)
            take_record(c, l, data, len);
        else if (type == CONTROL_AGREE)
            take_agree(c, l, data, len);
        else if (type == CONTROL_FAREWELL)
            view_farewell(c, l, data, len);
        else if (type == CONTROL_MISSED)
            silence_told(c, l, data, len);
        else if (type == CONTROL_ASK)
            survey_asked(c, l, data, len);
        else if (type == CONTROL_ANSWER)
            survey_answered(c, data, len);
        else if (type == CONTROL_EXCLUDED && !c->agree.leaving)
            c->agree.excluded = c->busy = 1;
    }
    if (l->state == LINK_UP && rc < 0)
        link_ended(c, l);
    if (c->agree.starved)
        control_lack(c, ENOMEM);
}
