/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-gather's root: where it listens, the place of each rank, when all have come, and the
 * missing ranks at the deadline. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/wire_pack.h"
#include "transport/wire.h"

#define MS 1000000u
/* A head waits this long for a place while ranks are missing. */
#define PLACE_NS (2000ull * MS)
/* How long this root waits for another root at one of our other ports. */
#define PROBE_NS (1000ull * MS)

/* ---- where it listens ---- */

/* Binds the id's address if this process did not make the listening socket. */
static int bind_root(struct bny_bootstrap *b)
{
    struct bny_addr addr;
    char text[BNY_ADDR_TEXT];
    int span = b->id.span ? b->id.span : 1, fd = -EADDRINUSE;

    bny_id_addr(&b->id, &addr);
    for (int i = 0; i < span && fd == -EADDRINUSE; i++) {
        addr.port = (uint16_t)(b->id.port + i);
        fd = bny_net_listen_at(&addr, BNY_ID_BACKLOG);
    }
    if (fd >= 0)
        return fd;
    addr.port = b->id.port;
    bny_addr_text(&addr, text);
    if (fd == -EADDRNOTAVAIL)
        return bny_fail(BANYAN_ECONFIG,
                        "rank 0: the job's root address %s is not of this host; rank 0 must be "
                        "the process that made the id, or run where the launcher says",
                        text);
    if (fd == -EADDRINUSE)
        return bny_fail(BANYAN_EPROTO,
                        "rank 0: another process listens at the root address %s; was rank 0 "
                        "started twice? Else choose another port",
                        text);
    errno = -fd;
    return bny_fail_errno("rank 0: cannot listen at %s", text);
}

/* If the launcher names no secret per start, two jobs may have the same id, and ranks of one
 * may reach the root of the other: then both roots must know. A root that gathers answers at
 * another of our ports. */
static int probe_ports(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    struct bny_addr mine, other;

    if (b->id.span < 2)
        return 0;
    r->probes = calloc(b->id.span, sizeof *r->probes);
    if (!r->probes)
        return bny_fail(BANYAN_ENOMEM, "rank 0: no memory to look for another root");
    bny_net_bound(r->listen_fd, &mine);
    bny_id_addr(&b->id, &other);
    r->probes_end_ns = bny_now_ns() + PROBE_NS;
    for (int i = 0; i < b->id.span; i++, other.port++) {
        int fd = other.port == mine.port ? -1 : bny_net_connect(&other);
        struct bny_conn *c =
            fd < 0 ? NULL : bny_conn_new(fd, b->epfd, 1, &other, &b->self, GATHER_FRAME_MAX);

        if (!c)
            continue;
        c->expects = 0;
        r->probes[r->nprobes++] = c;
    }
    return 0;
}

void gather_root_stop_probes(struct gather_below *r)
{
    while (r->nprobes)
        bny_conn_free(r->probes[--r->nprobes]);
}

static const char second_root[] =
    "two jobs have the same MASTER_ADDR and MASTER_PORT, or rank 0 was started twice: give "
    "each job a MASTER_PORT of its own";

/* Has another root answered? */
static void look_at_probes(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    int late = r->nprobes && bny_now_ns() >= r->probes_end_ns;
    char at[BNY_ADDR_TEXT];

    for (int i = r->nprobes - 1; i >= 0; i--) {
        int rc = bny_conn_progress(r->probes[i]);

        if (rc == 1)
            gather_fail(b, BANYAN_EPROTO,
                        "rank 0: another root with this job's secret listens at %s: %s",
                        bny_addr_text(&r->probes[i]->peer, at), second_root);
        if (rc == 0 && !late)
            continue;
        bny_conn_free(r->probes[i]);
        r->probes[i] = r->probes[--r->nprobes];
    }
}

void gather_root_second(struct bny_bootstrap *b, const struct bny_conn *c)
{
    char at[BNY_ADDR_TEXT], other[BNY_ADDR_TEXT];

    bny_addr_text(&c->peer, at);
    gather_root_text(b, other);
    if (b->id.span > 1)
        gather_fail(b, BANYAN_EPROTO,
                    "rank 0: another root with this job's secret came from %s, while ranks "
                    "come to %s: %s",
                    at, other, second_root);
    else
        gather_fail(b, BANYAN_EPROTO,
                    "two processes joined as rank 0: the root at %s and %s; give each "
                    "process its own rank",
                    other, at);
}

int gather_root_start(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    size_t n = (size_t)b->nranks;
    int fd = bny_id_take_fd(&b->id), rc;

    if (fd < 0)
        fd = bind_root(b);
    if (fd < 0)
        return fd;
    rc = gather_below_start(b, fd, gather_near_start(b));
    if (rc == 0)
        rc = probe_ports(b);
    r->nhere = 1;
    r->strange = calloc(n, sizeof *r->strange);
    r->spots = b->tree ? calloc(n, sizeof *r->spots) : NULL;
    if (rc == 0 && (!r->strange || (b->tree && !r->spots)))
        rc = bny_fail(BANYAN_ENOMEM, "rank 0: no memory for %d connections", b->nranks);
    return rc;
}

const char *gather_root_text(const struct bny_bootstrap *b, char *text)
{
    struct bny_addr addr;

    bny_id_addr(&b->id, &addr);
    if (b->below.listen_fd >= 0)
        bny_net_bound(b->below.listen_fd, &addr);
    return bny_addr_text(&addr, text);
}

/* A connection claims that our secret is wrong. Foreign connections are not trusted. But if
 * users set the secret, a rank that comes repeatedly most likely has a wrong one, and waiting
 * for it is useless. */
void gather_root_strange(struct bny_bootstrap *b, const struct bny_conn *c)
{
    struct gather_below *r = &b->below;
    int rank = c->theirs.rank;
    char at[BNY_ADDR_TEXT], here[BNY_ADDR_TEXT];

    if (b->id.key_from == BNY_KEY_DRAWN || rank < 1 || rank >= b->nranks || r->ranks[rank] ||
        !gather_strange(&r->strange[rank], c, GATHER_STRANGE_ROOT_NS))
        return;
    gather_fail(b, BANYAN_ECONFIG, "rank %d (%s) has another secret than rank 0 (%s): %s", rank,
                bny_addr_text(&c->peer, at), gather_root_text(b, here),
                gather_strange_remedy(&b->id));
}

/* ---- places ---- */

void gather_root_came(struct bny_bootstrap *b, int rank, int from)
{
    struct gather_below *r = &b->below;
    struct gather_spot *s = r->spots ? &r->spots[rank] : NULL;

    if (!s)
        return;
    r->nwait -= s->waits;
    s->waits = 0;
    if (s->here)
        return;
    s->here = 1;
    s->above = rank == from ? 0 : from;
    r->nhere++;
}

static void say_place(struct bny_bootstrap *b, int rank, uint32_t below)
{
    struct gather_below *r = &b->below;
    struct gather_place there = { .below = below };

    if (r->spots && r->spots[rank].above) {
        there.rank = r->spots[rank].above;
        there.addr = r->spots[there.rank].addr;
    }
    if (bny_conn_send(r->ranks[rank], GATHER_PLACE, &there, sizeof there) != 0)
        gather_fail(b, BANYAN_ENOMEM, "rank 0: no memory for a frame");
}

/* One rank that a head reports. */
static void take_here(struct bny_bootstrap *b, int rank, uint32_t who)
{
    struct gather_below *r = &b->below;

    if (who < 1 || who >= (uint32_t)b->nranks) {
        gather_fail(b, BANYAN_EPROTO, "rank %d reports rank %u, but the job has %d ranks", rank,
                    who, b->nranks);
        return;
    }
    if (r->spots[who].here || ((int)who != rank && r->ranks[who])) {
        gather_fail(b, BANYAN_EPROTO,
                    "two processes joined as rank %u, one of them on the host of rank %d; give "
                    "each process its own rank",
                    who, rank);
        return;
    }
    r->spots[who].here = 1;
    r->spots[who].above = (int)who == rank ? 0 : rank;
    r->spots[rank].ranks++;
    r->nhere++;
}

void gather_root_here(struct bny_bootstrap *b, struct bny_conn *c, const uint8_t *data,
                      size_t len)
{
    struct gather_below *r = &b->below;
    int rank = c->theirs.rank;
    struct gather_here here;
    struct gather_spot *s = r->spots ? &r->spots[rank] : NULL;

    if (len >= sizeof here)
        memcpy(&here, data, sizeof here);
    if (len < sizeof here || here.count > len / 4 || len != sizeof here + 4 * here.count) {
        gather_fail(b, BANYAN_EPROTO, "rank %d sent no address where it serves others", rank);
        return;
    }
    if (!s) { /* it takes the job for a large one */
        say_place(b, rank, 0);
        return;
    }
    if (!s->asked) {
        take_here(b, rank, (uint32_t)rank);
        if ((here.addr.family == 4 || here.addr.family == 6) && here.addr.port)
            s->addr = here.addr;
        s->asked = s->waits = 1;
        if (!r->nwait++)
            r->waits_ns = bny_now_ns();
    }
    for (uint32_t i = 0; i < here.count && !b->error; i++) {
        uint32_t who;

        memcpy(&who, data + sizeof here + 4 * (size_t)i, 4);
        take_here(b, rank, who);
    }
}

/* Makes a tree of the waiting heads, by rank, below the root, once all ranks have come or the
 * time is up. Head i, from 1 on, is below i / 2 or, if that serves no ranks, below its nearest
 * ancestor that does. */
static void place_heads(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    struct gather_spot *s = r->spots;
    uint32_t *below;
    int *heads, n = 0;

    if (!r->nwait || (r->nhere < b->nranks && bny_now_ns() - r->waits_ns < PLACE_NS))
        return;
    heads = malloc((size_t)r->nwait * sizeof *heads);
    below = calloc((size_t)b->nranks, sizeof *below);
    for (int i = 1; heads && below && i < b->nranks; i++)
        if (s[i].waits && r->ranks[i])
            heads[n++] = i;
    for (int i = 0; i < n; i++) {
        int up = (i + 1) / 2;

        while (up && !s[heads[up - 1]].addr.family)
            up /= 2;
        s[heads[i]].above = up ? heads[up - 1] : 0;
        s[heads[i]].waits = 0;
    }
    for (int i = n - 1; i >= 0; i--) {
        int above = s[heads[i]].above;

        if (above)
            below[above] += below[heads[i]] + s[heads[i]].ranks;
        say_place(b, heads[i], below[heads[i]]);
    }
    if (!heads || !below)
        gather_fail(b, BANYAN_ENOMEM, "rank 0: no memory to place %d ranks", r->nwait);
    r->nwait = 0;
    free(heads);
    free(below);
}

/* ---- the table, and failures ---- */

static int gather_root_pack(struct bny_bootstrap *b)
{
    size_t n = (size_t)b->nranks;
    uint8_t *less;

    b->packed = malloc(bny_cards_packed_max(n, b->info_bytes));
    if (!b->packed)
        return gather_fail(b, BANYAN_ENOMEM, "rank 0: no memory to send the peer infos");
    b->have = b->npacked = bny_cards_pack(b->table, n, b->info_bytes, b->packed);
    less = realloc(b->packed, b->npacked);
    b->packed = less ? less : b->packed;
    b->full = 1;
    return 0;
}

/* The missing ranks, as a sentence. */
enum lack { LACK_COMING, LACK_CARD, LACK_READY };

/* Small jobs: has it proven itself to the root? */
static int is_connected(const struct gather_below *r, int rank)
{
    int found = 0;

    for (int i = 0; i < r->nhalf && !found; i++)
        found = r->half[i]->state == BNY_CONN_READY && r->half[i]->theirs.rank == rank;
    return found;
}

static int lacks(const struct bny_bootstrap *b, int rank, enum lack what)
{
    const struct gather_below *r = &b->below;

    if (what == LACK_READY)
        return !r->ready[rank];
    if (r->via[rank] >= 0)
        return 0;
    return what == LACK_CARD || !(r->spots ? r->spots[rank].here : is_connected(r, rank));
}

/* The rank through which this rank's messages come; 0: the root, or unknown. It is never a
 * later rank, so a loop over ranks from the last meets all ranks below one before that one. */
static int above(const struct bny_bootstrap *b, int rank)
{
    const struct gather_spot *s = b->below.spots;

    return s && s[rank].above < rank ? s[rank].above : 0;
}

/* The ranks that lack it, one byte each, in memory that the caller frees; NULL: no memory. If a
 * rank and all ranks below it lack it, only that rank is blamed. */
static uint8_t *who_lacks(const struct bny_bootstrap *b, enum lack what, int *count)
{
    int n = b->nranks;
    uint8_t *who = calloc((size_t)n, 1);

    *count = 0;
    for (int r = 1; who && r < n; r++)
        who[r] = lacks(b, r, what) ? 2 : 0; /* 2: so do all below it, as far as known */
    for (int r = n - 1; who && r > 0; r--)
        if (who[r] != 2 && who[above(b, r)] == 2)
            who[above(b, r)] = 1;
    for (int r = n - 1; who && r > 0; r--) {
        if (what != LACK_COMING && above(b, r) && who[above(b, r)] == 2)
            who[r] = 0;
        *count += who[r] != 0;
    }
    return who;
}

/* "2, 5-7" */
static void missing_text(const struct bny_bootstrap *b, const uint8_t *who, char *text,
                         size_t cap)
{
    size_t at = 0;

    text[0] = '\0';
    for (int i = 1; who && i < b->nranks; i++) {
        int first = i;

        if (!who[i])
            continue;
        while (i + 1 < b->nranks && who[i + 1])
            i++;
        if (at + 30 > cap) {
            snprintf(text + at, cap - at, ", ...");
            return;
        }
        at += (size_t)snprintf(text + at, cap - at, i > first ? "%s%d-%d" : "%s%d",
                               at ? ", " : "", first, i);
    }
}

/* A member that the table does not reach, though it is connected; 0: none. */
static int stuck_member(const struct bny_bootstrap *b)
{
    const struct gather_below *r = &b->below;

    for (int i = 0; i < r->nmembers; i++) {
        const struct bny_conn *c = r->ranks[r->members[i]];

        if (c && bny_net_is_stuck(c->fd))
            return r->members[i];
    }
    return 0;
}

/* What init has waited for until now. */
static void root_waits_for(const struct bny_bootstrap *b, char text[GATHER_TEXT])
{
    const struct gather_below *r = &b->below;
    double seconds = (double)(bny_now_ns() - b->start_ns) / 1e9;
    char missing[120], foreign[100] = "", at[BNY_ADDR_TEXT];
    enum lack what = r->settling ? LACK_READY : LACK_COMING;
    uint8_t *who;
    int count, stuck;

    who = who_lacks(b, what, &count);
    if (!count && what == LACK_COMING) {
        free(who);
        what = LACK_CARD;
        who = who_lacks(b, what, &count);
    }
    missing_text(b, who, missing, sizeof missing);
    free(who);
    gather_root_text(b, at);
    if (r->foreign.total)
        snprintf(foreign, sizeof foreign,
                 "; %llu connections did not prove themselves (other id or "
                 "secret?)",
                 (unsigned long long)r->foreign.total);
    if (r->settling)
        bny_snprintf(text, GATHER_TEXT,
                     "rank%s %s of %d did not connect to the other ranks within %.1f s; is a "
                     "firewall in the way of BANYAN_PORT_RANGE? " BNY_NET_DOCTOR,
                     count > 1 ? "s" : "", count ? missing : "0", b->nranks, seconds);
    else if (count == 0 && !b->has_peer_info)
        bny_snprintf(text, GATHER_TEXT,
                     "all ranks reached the root, whose own transports did not open within "
                     "%.1f s",
                     seconds);
    else if (count == 0 && (stuck = stuck_member(b)) > 0)
        bny_snprintf(text, GATHER_TEXT,
                     "the peer infos do not get through to rank %d, though its connection "
                     "has stood for %.1f s. " BNY_NET_MTU,
                     stuck, seconds);
    else if (count == 0)
        bny_snprintf(text, GATHER_TEXT,
                     "the root could not send all peer infos within %.1f s: %d of %d ranks "
                     "took them",
                     seconds, r->served, r->nmembers);
    else if (what == LACK_CARD)
        bny_snprintf(text, GATHER_TEXT,
                     "rank%s %s of %d reached the root at %s, but no peer info came within "
                     "%.1f s. The transports there may not be open yet. " BNY_NET_MTU,
                     count > 1 ? "s" : "", missing, b->nranks, at, seconds);
    else
        bny_snprintf(
            text, GATHER_TEXT,
            "rank%s %s of %d did not reach the root at %s within %.1f s%s; check "
            "that they run, and firewall, BANYAN_IFNAME and BANYAN_PORT_RANGE; " BNY_NET_DOCTOR,
            count > 1 ? "s" : "", missing, b->nranks, at, seconds, foreign);
}

static void check_deadline(struct bny_bootstrap *b)
{
    uint64_t now = bny_now_ns(), margin, all = b->below.first_deadline - b->start_ns;
    char text[GATHER_TEXT];

    /* Early enough to send the failure to connected ranks before their own deadline. */
    margin = all / 10 < 200u * MS ? all / 10 : 200u * MS;
    if (b->below.first_deadline && now + margin >= b->below.first_deadline) {
        root_waits_for(b, text);
        gather_fail(b, BANYAN_ETIMEDOUT, "%s", text);
    } else if (gather_word_due(b)) {
        root_waits_for(b, text);
        bny_warn("init goes on: %s", text);
    }
}

int gather_root_progress(struct bny_bootstrap *b)
{
    if (b->done)
        return 1;
    look_at_probes(b);
    gather_look_around(b);
    if (!b->error)
        place_heads(b);
    if (!b->error && b->has_peer_info && b->below.arrived == b->nranks - 1 &&
        !b->below.nprobes && (b->packed || gather_root_pack(b) == 0))
        b->done = gather_serve(b);
    if (!b->error && !b->done)
        check_deadline(b);
    if (b->error)
        return gather_tell_all(b);
    return b->done;
}

int gather_root_settle(struct bny_bootstrap *b, int ready)
{
    struct gather_below *r = &b->below;

    if (b->settled)
        return 1;
    gather_settle_begin(b);
    gather_look_around(b);
    if (!b->error && !r->went && ready && r->nready == b->nranks - 1)
        gather_let_go(b);
    if (!b->error && !r->went)
        check_deadline(b);
    if (b->error)
        return gather_tell_all(b);
    b->settled = r->went && gather_went(b);
    return b->settled;
}

int gather_root_tell(struct bny_bootstrap *b)
{
    gather_look_around(b);
    return gather_tell_all(b);
}
