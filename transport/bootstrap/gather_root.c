/* SPDX-License-Identifier: BSD-3-Clause */
/* The all-gather's root: where it listens, who gets which place, when all are there, and who is
 * missing at the deadline. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "transport/bootstrap/gather.h"
#include "transport/bootstrap/id.h"
#include "transport/bootstrap/pack.h"
#include "transport/wire.h"

#define MS             1000000u
#define PLACE_NS       (2000ull * MS) /* who waits so long for a place stays with the root */
#define PLACE_EVERY_NS (100ull * MS)

/* Binds the id's address when the listening socket was not made by this process. */
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

int gather_root_start(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    size_t n = (size_t)b->nranks;
    int fd = bny_id_take_fd(&b->id), rc;

    if (fd < 0)
        fd = bind_root(b);
    if (fd < 0)
        return fd;
    rc = gather_below_start(b, fd);
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

/* A connection that says that our secret is another one. Of strangers nothing is believed; but
 * where the secret is the user's affair, a rank that comes again and again is most likely one
 * that has none of ours, and waiting for it is in vain. */
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

/* Says to a rank where its place is. While whom it is below has not come it waits, unless late:
 * then it stays with us, as it does when nobody is served there. */
static void place(struct bny_bootstrap *b, int rank, int late)
{
    struct gather_below *r = &b->below;
    struct gather_spot *s = r->spots ? &r->spots[rank] : NULL;
    struct gather_place there = { .rank = gather_above(rank) };

    if (s && (!s->here || s->placed || !r->ranks[rank]))
        return;
    if (s && there.rank && r->spots[there.rank].here)
        there.addr = r->spots[there.rank].addr;
    else if (s && there.rank && r->via[there.rank] < 0 && !late)
        return;
    if (!there.addr.family)
        there.rank = 0;
    if (bny_conn_send(r->ranks[rank], GATHER_PLACE, &there, sizeof there) != 0)
        gather_fail(b, BANYAN_ENOMEM, "rank 0: no memory for a frame");
    if (s)
        s->placed = 1;
}

void gather_root_here(struct bny_bootstrap *b, struct bny_conn *c, const uint8_t *data,
                      size_t len)
{
    struct gather_below *r = &b->below;
    struct gather_here here;
    int rank = c->theirs.rank;

    if (len != sizeof here || (r->spots && r->spots[rank].here)) {
        gather_fail(b, BANYAN_EPROTO, "rank %d sent no address where it serves others", rank);
        return;
    }
    memcpy(&here, data, sizeof here);
    if (r->spots) {
        if ((here.addr.family == 4 || here.addr.family == 6) && here.addr.port)
            r->spots[rank].addr = here.addr;
        r->spots[rank].here = 1;
    }
    place(b, rank, 0);
    for (int64_t i = 2 * (int64_t)rank; r->spots && i <= 2 * (int64_t)rank + 1; i++)
        if (i < b->nranks)
            place(b, (int)i, 0);
}

/* Those who wait for somebody who has not come. */
static void place_late(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    uint64_t now = bny_now_ns();

    if (!r->spots || now - r->placed_ns < PLACE_EVERY_NS)
        return;
    r->placed_ns = now;
    for (int rank = 1; rank < b->nranks; rank++)
        if (r->spots[rank].here && !r->spots[rank].placed && r->ranks[rank] &&
            now - r->ranks[rank]->since_ns > PLACE_NS)
            place(b, rank, 1);
}

/* ---- the table, and failures ---- */

static int pack(struct bny_bootstrap *b)
{
    size_t n = (size_t)b->nranks;
    uint8_t *less;

    b->packed = malloc(bny_cards_packed_max(n, b->card_bytes));
    if (!b->packed)
        return gather_fail(b, BANYAN_ENOMEM, "rank 0: no memory to send the cards");
    b->have = b->npacked = bny_cards_pack(b->table, n, b->card_bytes, b->packed);
    less = realloc(b->packed, b->npacked);
    b->packed = less ? less : b->packed;
    b->full = 1;
    return 0;
}

/* What the sentence is about. */
enum lack { LACK_COMING, LACK_CARD, LACK_READY };

static int lacks(const struct bny_bootstrap *b, int rank, enum lack what)
{
    const struct gather_below *r = &b->below;

    if (what == LACK_READY)
        return !r->ready[rank];
    return r->via[rank] < 0 && (what == LACK_CARD || !r->spots || !r->spots[rank].here);
}

/* Who lacks it, a byte a rank, in memory that is the caller's to free; NULL without. Where
 * nothing came of a rank and of all those whose word goes through it, it is the one. */
static uint8_t *who_lacks(const struct bny_bootstrap *b, enum lack what, int *count)
{
    int n = b->nranks;
    uint8_t *who = calloc((size_t)n, 1);

    *count = 0;
    for (int r = n - 1; who && r > 0; r--) {
        int64_t left = 2 * (int64_t)r, right = left + 1;

        who[r] = (uint8_t)lacks(b, r, what);
        if (who[r] && (left >= n || who[left] == 2) && (right >= n || who[right] == 2))
            who[r] = 2; /* and all below it */
    }
    for (int r = n - 1; who && r > 0; r--) {
        if (b->tree && what != LACK_COMING && gather_above(r) && who[gather_above(r)] == 2)
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

static void check_deadline(struct bny_bootstrap *b)
{
    struct gather_below *r = &b->below;
    uint64_t now = bny_now_ns(), margin, all = r->first_deadline - b->start_ns;
    char missing[120], foreign[100] = "", at[BNY_ADDR_TEXT];
    enum lack what = r->settling ? LACK_READY : LACK_COMING;
    uint8_t *who;
    int count;

    if (!r->first_deadline)
        return;
    /* Early enough that those already here can still hear of it before their own deadline. */
    margin = all / 10 < 200u * MS ? all / 10 : 200u * MS;
    if (now + margin < r->first_deadline)
        return;
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
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank%s %s of %d did not connect to the other ranks within %.1f s; is a "
                    "firewall in the way of BANYAN_PORT_RANGE?",
                    count > 1 ? "s" : "", count ? missing : "0", b->nranks,
                    (double)(now - b->start_ns) / 1e9);
    else if (count == 0)
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "the root could not send all cards within %.1f s: %d of %d ranks "
                    "took them",
                    (double)(now - b->start_ns) / 1e9, r->served, r->nmembers);
    else if (what == LACK_CARD)
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank%s %s of %d reached the root at %s, but no card came within %.1f s; "
                    "do they run, is a firewall in the way of BANYAN_PORT_RANGE?",
                    count > 1 ? "s" : "", missing, b->nranks, at,
                    (double)(now - b->start_ns) / 1e9);
    else
        gather_fail(b, BANYAN_ETIMEDOUT,
                    "rank%s %s of %d did not reach the root at %s within %.1f s%s; check "
                    "that they run, and firewall, BANYAN_IFNAME and BANYAN_PORT_RANGE",
                    count > 1 ? "s" : "", missing, b->nranks, at,
                    (double)(now - b->start_ns) / 1e9, foreign);
}

int gather_root_progress(struct bny_bootstrap *b)
{
    if (b->done)
        return 1;
    gather_look_around(b);
    if (!b->error)
        place_late(b);
    if (!b->error && b->has_card && b->below.arrived == b->nranks - 1 &&
        (b->packed || pack(b) == 0))
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
